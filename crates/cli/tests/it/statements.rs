//! Is each sentence that is printed true of the numbers? A planted case for each that was not, and one beside it of which more may be said.

use std::fs;
use std::path::{Path, PathBuf};

use crate::common::{firstdiff, in_one_line, screen};

const MODEL: &str = "models/llama";
const TOKENS: &str = "1,17,42,99,3,150,77,17,128,64,5";
const DECODED: &str = "23,108,61";
const STREAM: &str = "h0,layers.*.h,final_norm,logits";

/// Our own run in a prefill and three steps, or in one pass.
fn run(folder: &Path, name: &str, taps: Option<&str>, in_one_pass: bool) -> PathBuf {
    let out = folder.join(name);
    let path = out.to_string_lossy().into_owned();
    let all = format!("{TOKENS},{DECODED}");
    let mut args = vec!["dump", MODEL, "-o", &path];
    match in_one_pass {
        true => args.extend(["--tokens", &all]),
        false => args.extend(["--tokens", TOKENS, "--decode-tokens", DECODED]),
    }
    args.extend(taps.iter().flat_map(|taps| ["--taps", *taps]));
    assert_eq!(firstdiff(&args).status.code(), Some(0));
    out
}

/// Changes the values of a file in f32.
fn change(file: &Path, with: impl Fn(usize, f32) -> f32) {
    let mut npy = fs::read(file).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    for (at, x) in npy[begin..].chunks_exact_mut(4).enumerate() {
        let other = with(at, f32::from_le_bytes(x.try_into().unwrap()));
        x.copy_from_slice(&other.to_le_bytes());
    }
    fs::write(file, npy).unwrap();
}

/// Something that no mistake gives.
fn noise(at: usize, x: f32) -> f32 {
    x + ((at * 7919 % 101) as f32 - 50.0) / 50.0
}

/// Takes a tap of a step out of a dump.
fn leave_out(dump: &Path, tap: &str, step: u64) {
    let path = dump.join("dump.json");
    let mut meta: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    let taps = meta["taps"].as_array_mut().unwrap();
    let before = taps.len();
    taps.retain(|t| t["tap"] != tap || t["step"].as_u64().unwrap_or(0) != step);
    assert_eq!(taps.len() + 1, before);
    fs::write(&path, meta.to_string()).unwrap();
    fs::remove_file(dump.join(format!("{tap}.step{step}.npy"))).unwrap();
}

fn said(command: &str, first: &Path, second: &Path) -> String {
    in_one_line(&screen(&[command, &first.to_string_lossy(), &second.to_string_lossy()]))
}

#[track_caller]
fn says(text: &str, words: &str) {
    assert!(text.contains(words), "'{words}' is not in:\n{text}");
}

#[test]
fn what_a_pass_takes_up_is_called_by_what_the_dumps_show() {
    let folder = tempfile::tempdir().unwrap();
    for (taps, words) in [
        (None, "the first that reads the K/V cache,"),
        (
            Some(STREAM),
            "the first that takes up what the pass before left (a K/V cache, or the state of a convolution or an SSM),",
        ),
    ] {
        let name = if taps.is_some() { "few" } else { "all" };
        let reference = run(folder.path(), &format!("one-{name}"), taps, true);
        let candidate = run(folder.path(), &format!("steps-{name}"), taps, false);
        change(&candidate.join("layers.0.h.step1.npy"), noise);
        says(&said("compare", &reference, &candidate), words);
    }
}

#[test]
fn taps_are_to_be_recorded_in_the_run_that_lacks_them() {
    let folder = tempfile::tempdir().unwrap();
    let [all, few] = [None, Some(STREAM)].map(|taps| run(folder.path(), taps.map_or("all", |_| "few"), taps, false));
    let both = run(folder.path(), "both", Some(STREAM), false);
    for out in [&all, &few] {
        change(&out.join("layers.0.h.npy"), noise);
    }
    let right = run(folder.path(), "right", None, false);
    for (reference, candidate, runs) in
        [(&right, &few, "the candidate"), (&both, &all, "the reference"), (&both, &few, "both runs")]
    {
        let text = said("compare", reference, candidate);
        says(&text, &format!("record layers.0.attn_norm to layers.0.ffn_out in {runs}, and compare again"));
    }
}

#[test]
fn a_step_is_alone_where_the_others_are_known_to_be_right() {
    let folder = tempfile::tempdir().unwrap();
    let out = run(folder.path(), "out", None, false);
    change(&out.join("layers.1.ffn_act.step2.npy"), noise);
    says(&said("replay", Path::new(MODEL), &out), "layers.1.ffn_act (in decode step 2 alone)");
    leave_out(&out, "layers.1.ffn_act", 3);
    says(&said("replay", Path::new(MODEL), &out), "layers.1.ffn_act (in decode step 2)");
    for (steps, words) in
        [(&[2, 3][..], "from decode step 2 on"), (&[3], "from decode step 3 on"), (&[1, 3], "in decode steps 1,3")]
    {
        let out = run(folder.path(), &format!("{steps:?}"), None, false);
        steps.iter().for_each(|step| change(&out.join(format!("layers.1.ffn_act.step{step}.npy")), noise));
        says(&said("replay", Path::new(MODEL), &out), &format!("layers.1.ffn_act ({words})"));
    }
    let out = run(folder.path(), "all of them", None, false);
    for step in ["", ".step1", ".step2", ".step3"] {
        change(&out.join(format!("layers.1.ffn_act{step}.npy")), noise);
    }
    let text = said("replay", Path::new(MODEL), &out);
    assert!(!text.contains("layers.1.ffn_act ("), "{text}");
}

#[test]
fn of_a_fault_that_nothing_explains_only_what_was_seen_is_said() {
    let folder = tempfile::tempdir().unwrap();
    // Nothing that was recorded reads either of the two.
    let attention =
        "h0,layers.0.attn_norm,layers.0.q*,layers.0.k*,layers.0.v,layers.0.scores,layers.0.probs,layers.0.context";
    for (taps, file, words) in [
        (
            "final_norm,logits",
            "logits.npy",
            "next: look at this code and its weights alone: it is wrong by what it reads itself",
        ),
        (
            attention,
            "layers.0.context.step1.npy",
            "and the K/V cache of an earlier pass, which is not recorded: it is wrong by what else it reads",
        ),
    ] {
        let out = run(folder.path(), file, Some(taps), false);
        change(&out.join(file), noise);
        let text = in_one_line(&screen(&["explain", MODEL, &out.to_string_lossy(), "--seconds", "1", "--faults", "1"]));
        says(&text, "none of the mistakes tried here (");
        says(&text, words);
        assert!(!text.contains("all that it reads is right"), "{text}");
    }
}
