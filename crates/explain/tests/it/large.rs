//! Does the search of a large model, on the first tokens before all of them, find what that of a small one does? From the last tap alone, and every
//! model counts as large.

use std::fs;

use firstdiff_explain::explain::{Effort, Match};
use firstdiff_model::{ModelError, Op, Profile, Prompt, TapValues, load, run};
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
    let dumps = [
        "llama-rope-theta.npz",
        "minimind-residual-scale.npz",
        "minimind-norm-eps-outside.npz",
        "qwen2-weight-swapped.npz",
    ];
    same(&dumps.map(str::to_owned));
}

/// A window that the config does not have, of a size that is not listed: the number is fitted, though what hides keys looks at all tokens.
#[test]
fn a_number_of_what_looks_at_all_tokens_is_fitted() {
    let model = load(fixtures().join("models/llama")).unwrap();
    let mut plan = model.plan.clone();
    for step in &mut plan.steps {
        if let Op::Scores(scores) = &mut step.op {
            scores.window = Some(4);
        }
    }
    let golden = Dump::open(fixtures().join("golden/llama-torch")).unwrap();
    let tokens: Vec<u32> = golden.meta().tokens.iter().flatten().map(|&id| id as u32).collect();
    let (end, mut wrong) = ("logits".parse::<Tap>().unwrap(), Vec::new());
    let prompt = Prompt { tokens: &tokens, decode_tokens: &[] };
    run(
        &plan,
        &model.weights,
        prompt,
        Profile::F32,
        |tap| tap == end,
        |_, _, x| {
            if let TapValues::F32(x) = x {
                wrong.extend(x.iter().copied());
            }
            Ok::<(), ModelError>(())
        },
    )
    .unwrap();
    let effort = Effort { faults: 1, seconds: 600.0, small: 0, ..Effort::default() };
    let recorded = |_: &Dump, tap, step, _| (tap == end && step == 0).then(|| wrong.clone());
    let found = with_effort("llama", "golden/llama-torch", &recorded, &effort);
    let cause = found.findings.iter().find_map(|f| f.cause.as_ref()).expect("a cause");
    assert_eq!((cause.id, &cause.params[..]), ("window-size", &[("window", serde_json::json!(4))][..]));
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn what_the_last_tap_of_a_large_model_shows_is_found_of_a_third_of_the_fixtures() {
    let entries = fs::read_dir(fixtures().join("faulty")).unwrap();
    let mut dumps: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    dumps.retain(|name| name != "index.json");
    dumps.sort();
    let third: Vec<String> = dumps.into_iter().step_by(3).collect();
    same(&third);
}
