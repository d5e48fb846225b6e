//! Are runs that took the tokens in other chunks laid together on the command line, and said in terms of positions, prefill and decode?

use std::fs;
use std::path::Path;

mod common;
use common::{firstdiff, json, screen};

const GOLDEN: &str = "golden/llama-torch";
const MODEL: &str = "models/llama";
/// The golden dump's own: eleven at once, three one by one.
const TOKENS: &str = "1,17,42,99,3,150,77,17,128,64,5,23,108,61";

/// Our own run of the golden tokens, the first `prefill` of them at once.
fn dump(folder: &Path, prefill: usize) -> String {
    let out = folder.join(format!("by-{prefill}")).to_string_lossy().into_owned();
    let at = TOKENS.match_indices(',').nth(prefill - 1).map_or(TOKENS.len(), |(at, _)| at);
    let (first, rest) = (&TOKENS[..at], TOKENS[at..].trim_start_matches(','));
    let mut args = vec!["dump", MODEL, "-o", &out, "--tokens", first];
    if !rest.is_empty() {
        args.extend(["--decode-tokens", rest]);
    }
    assert_eq!(firstdiff(&args).status.code(), Some(0));
    out
}

#[test]
fn pytorchs_prefill_and_steps_against_our_one_pass_and_our_token_by_token() {
    let folder = tempfile::tempdir().unwrap();
    for (prefill, how, cells) in [(14, "in one pass", 4), (1, "token by token", 14), (6, "6 tokens at once and 8", 9)] {
        let out = dump(folder.path(), prefill);
        for (reference, candidate) in [(GOLDEN, out.as_str()), (&out, GOLDEN)] {
            let report = json(&["compare", reference, candidate]);
            assert_eq!(report["verdict"], "parity", "{prefill}: {}", report["first_divergence"]);
            assert_eq!(report["laid"]["cells"].as_array().map(Vec::len), Some(cells));
            assert!(report["taps"].as_array().unwrap().iter().all(|t| t["status"] != "unchecked"));
        }
        let screen = screen(&["compare", GOLDEN, &out]);
        let said = format!("the candidate ran {how}");
        assert!(screen.contains(&said) && screen.contains("14 positions laid together"), "{screen}");
        let report = json(&["compare", GOLDEN, &out, "--model", MODEL]);
        assert_eq!(report["verdict"], "parity", "{prefill}, with the model: {}", report["first_divergence"]);
    }
}

#[test]
fn a_key_one_slot_off_is_said_by_position_and_phase() {
    let folder = tempfile::tempdir().unwrap();
    let out = dump(folder.path(), 11);
    let key = |step: u32| Path::new(&out).join(format!("layers.1.k_rope.step{step}.npy"));
    fs::copy(key(1), key(2)).unwrap();
    let reference = dump(folder.path(), 14);
    let text = screen(&["compare", &reference, &out]);
    for line in [
        "  ok   positions 0-10 (prefill)",
        "first divergence: layers.1.k_rope (rope) at position 12 (decode step 2), after layers.1.k, which agrees",
        "prefill and the first decode step are right (12 positions, 78 taps)",
        "it is      the reference's of position 11",
        "`firstdiff compare ONEPASS STEPS`",
    ] {
        assert!(text.contains(line), "'{line}' is not in:\n{text}");
    }
    let report = json(&["compare", &reference, &out]);
    let first = &report["first_divergence"];
    assert_eq!((&first["tap"], &first["position"]), (&"layers.1.k_rope".into(), &12.into()));
    assert_eq!(report["laid"]["phases"]["prefill"]["differ"], 0);
    assert_eq!(report["laid"]["phases"]["decode"]["differ"], 1);
}

#[test]
fn one_list_of_tokens_is_shared_out_among_a_dumps_own_steps() {
    let folder = tempfile::tempdir().unwrap();
    for prefill in [1, 11] {
        let out = dump(folder.path(), prefill);
        let declared = json(&["replay", MODEL, &out, "--tokens", TOKENS]);
        assert_eq!(declared["verdict"], "parity", "what dump.json says as well: {}", declared["reason"]);
        fs::remove_file(Path::new(&out).join("dump.json")).unwrap();
        for command in ["replay", "explain"] {
            let report = json(&[command, MODEL, &out, "--tokens", TOKENS]);
            assert_eq!(report["verdict"], "parity", "{command} {prefill}: {}", report["reason"]);
            let unchecked = report["taps"].as_array().unwrap().iter().filter(|t| t["status"] == "unchecked").count();
            assert_eq!(unchecked, 0, "{command} {prefill}");
        }
        let fewer = firstdiff(&["replay", MODEL, &out, "--tokens", "1,17"]);
        let error = String::from_utf8(fewer.stderr).unwrap();
        assert_eq!(fewer.status.code(), Some(2), "{error}");
        assert!(error.contains("--tokens"), "{error}");
    }
}

#[test]
fn other_tokens_are_no_fault_of_the_engine() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("other").to_string_lossy().into_owned();
    let other = TOKENS.replace(",23,", ",24,");
    assert_eq!(firstdiff(&["dump", MODEL, "-o", &out, "--tokens", &other]).status.code(), Some(0));
    let done = firstdiff(&["compare", GOLDEN, &out]);
    let error = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(2), "{error}");
    assert!(error.contains("fed different tokens from position 11 on; up to there 39 taps agree"), "{error}");
}
