//! Does the search of a large model, on the first tokens before all of them, find what that of a small one does? From the last tap alone, and every
//! model counts as large.

use std::collections::BTreeSet;
use std::fs;

use firstdiff_explain::explain::{Effort, Match};
use firstdiff_model::{ModelError, Op, Profile, Prompt, Scores, TapValues, load, run};
use firstdiff_trace::{Dump, Site, Tap};

use crate::again::with_effort;
use crate::common::fixtures;

/// What a dump has of the end of the model: its logits, or else the residual stream of its last layer.
fn end(dump: &str) -> Option<Tap> {
    let dump = Dump::open(fixtures().join("faulty").join(dump)).unwrap();
    let of = |site: Site| {
        dump.entries().iter().map(|entry| entry.tap).filter(|tap| tap.site == site).max_by_key(|tap| tap.layer)
    };
    of(Site::Logits).or_else(|| of(Site::H))
}

/// The mistakes that are stated of that tap alone.
fn stated(dump: &str, end: Tap, small: usize) -> Vec<String> {
    let model = dump.split('-').next().unwrap();
    let effort = Effort { faults: 1, seconds: 600.0, small, ..Effort::default() };
    let alone = with_effort(model, &format!("faulty/{dump}"), &|_, tap, _, x| (tap == end).then_some(x), &effort);
    let found = alone.findings.iter().filter(|f| f.matched == Match::Reproduced);
    let mut found: Vec<String> = found.filter_map(|f| Some(f.cause.as_ref()?.id.to_owned())).collect();
    found.sort();
    found
}

fn same(dumps: &[String]) {
    let mut named = 0;
    for dump in dumps {
        let Some(end) = end(dump) else { continue };
        let small = stated(dump, end, usize::MAX);
        named += usize::from(!small.is_empty());
        assert_eq!(stated(dump, end, 0), small, "{dump}");
    }
    assert!(2 * named > dumps.len(), "{named} of {} are named from their last tap", dumps.len());
}

#[test]
fn what_the_last_tap_of_a_large_model_shows_is_found() {
    same(&["llama-rope-theta.npz", "minimind-residual-scale.npz"].map(str::to_owned));
}

/// What is named where the scores of every layer are made otherwise, from the logits alone, as of a large model.
fn named(change: impl Fn(&mut Scores)) -> (&'static str, serde_json::Value) {
    let model = load(fixtures().join("models/llama")).unwrap();
    let mut plan = model.plan.clone();
    for step in &mut plan.steps {
        if let Op::Scores(scores) = &mut step.op {
            change(scores);
        }
    }
    let golden = Dump::open(fixtures().join("golden/llama-torch")).unwrap();
    let tokens: Vec<u32> = golden.meta().tokens.iter().flatten().map(|&id| id as u32).collect();
    let (end, mut wrong) = ("logits".parse::<Tap>().unwrap(), Vec::new());
    let prompt = Prompt { tokens: &tokens, decode_tokens: &[] };
    let mut keep = |x: TapValues<'_>| {
        if let TapValues::F32(x) = x {
            wrong.extend(x.iter().copied());
        }
    };
    let sink = |_, _, x: TapValues<'_>| -> Result<(), ModelError> {
        keep(x);
        Ok(())
    };
    run(&plan, &model.weights, prompt, Profile::F32, |tap| tap == end, sink).unwrap();
    let effort = Effort { faults: 1, seconds: 600.0, small: 0, ..Effort::default() };
    let recorded = |_: &Dump, tap, step, _| (tap == end && step == 0).then(|| wrong.clone());
    let found = with_effort("llama", "golden/llama-torch", &recorded, &effort);
    let cause = found.findings.iter().find_map(|f| f.cause.as_ref()).expect("a cause");
    (cause.id, cause.params[0].1.clone())
}

/// A window that the config does not have, of a size that is not listed: the number is fitted, though what hides keys looks at all tokens; also where no
/// few of the first tokens are wrong.
#[test]
fn a_number_of_what_looks_at_all_tokens_is_fitted() {
    for window in [4, 8] {
        let found = named(|scores| scores.window = Some(window));
        assert_eq!(found, ("window-size", serde_json::json!(window)));
    }
}

/// Each place of a scan beside the right number is farther off than no mistake at all.
#[test]
fn a_number_near_the_right_one_is_fitted() {
    let (id, scale) = named(|scores| scores.scale *= 1.06);
    let right = 1.06 / (load(fixtures().join("models/llama")).unwrap().plan.dims.head_dim as f64).sqrt();
    let off = scale.as_f64().unwrap() / right - 1.0;
    assert!(id == "score-scale" && off.abs() < 1e-5, "{id} {scale} for {right}");
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn what_the_last_tap_of_a_large_model_shows_is_found_of_some_of_the_fixtures() {
    // .ci/full asks for more than .ci/run.
    let every = if std::env::var_os("FIRSTDIFF_CI_ALL").is_some_and(|all| !all.is_empty()) { 3 } else { 9 };
    let entries = fs::read_dir(fixtures().join("faulty")).unwrap();
    let mut dumps: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    dumps.retain(|name| name != "index.json");
    dumps.sort();
    let always = ["minimind-norm-eps-outside.npz", "qwen2-weight-swapped.npz"].map(str::to_owned);
    let some: BTreeSet<String> = dumps.into_iter().step_by(every).chain(always).collect();
    same(&some.into_iter().collect::<Vec<_>>());
}
