//! Checks that the command line aligns runs with different chunks, and reports by position, prefill and decode.

use std::fs;
use std::path::Path;

use crate::common::{firstdiff, in_one_line, json, screen};

const GOLDEN: &str = "golden/llama-torch";
const MODEL: &str = "models/llama";
/// The golden dump's tokens: eleven at once, three one by one.
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
            assert_eq!(report["alignment"]["cells"].as_array().map(Vec::len), Some(cells));
            assert!(report["taps"].as_array().unwrap().iter().all(|t| t["status"] != "unchecked"));
        }
        let screen = in_one_line(&screen(&["compare", GOLDEN, &out]));
        let said = format!("candidate {how}");
        assert!(screen.contains(&said) && screen.contains("14 positions compared"), "{screen}");
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
    let text = in_one_line(&screen(&["compare", &reference, &out]));
    for line in [
        "ok positions 0-10 (prefill)",
        "first divergence: layers.1.k_rope (rope) at position 12 (decode step 2), after layers.1.k, which agrees",
        "prefill and the first decode step are right (12 positions, 78 taps)",
        "it is the reference's of position 11",
        "`firstdiff compare ONEPASS STEPS`",
    ] {
        assert!(text.contains(line), "'{line}' is not in:\n{text}");
    }
    let report = json(&["compare", &reference, &out]);
    let first = &report["first_divergence"];
    assert_eq!((&first["tap"], &first["position"]), (&"layers.1.k_rope".into(), &12.into()));
    assert_eq!(report["alignment"]["phases"]["prefill"]["differ"], 0);
    assert_eq!(report["alignment"]["phases"]["decode"]["differ"], 1);
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
    assert!(error.contains("name different tokens from position 11 on; up to there 39 taps agree"), "{error}");
}

/// Turns every step's `k_rope` and `v` into the whole cache so far, in 32 slots; slot `wrong` of the last step holds another slot's row.
fn whole_caches(folder: &Path, wrong: Option<usize>) {
    for layer in 0..2 {
        for site in ["k_rope", "v"] {
            let mut cache: Vec<u8> = Vec::new();
            let mut width = 0;
            for step in 0..14 {
                let name = if step == 0 { String::new() } else { format!(".step{step}") };
                let path = folder.join(format!("layers.{layer}.{site}{name}.npy"));
                let raw = fs::read(&path).unwrap();
                let data = 10 + usize::from(u16::from_le_bytes([raw[8], raw[9]]));
                let header = String::from_utf8_lossy(&raw[10..data]).into_owned();
                (width, cache) = (raw.len() - data, [cache, raw[data..].to_vec()].concat());
                if let (Some(slot), 13, "v", 1) = (wrong, step, site, layer) {
                    cache.copy_within(0..width, slot * width);
                }
                let mut header = header.trim_end().replacen("(1,", "(32,", 1);
                header += &" ".repeat(64 - (11 + header.len()) % 64);
                header += "\n";
                let length = (header.len() as u16).to_le_bytes();
                let mut out = [&b"\x93NUMPY\x01\x00"[..], &length, header.as_bytes(), &cache].concat();
                out.resize(10 + header.len() + 32 * width, 0);
                fs::write(&path, out).unwrap();
            }
            assert!(width > 0);
        }
    }
    // The shapes are those of the files.
    let meta = fs::read_to_string(folder.join("dump.json")).unwrap();
    let mut meta: serde_json::Value = serde_json::from_str(&meta).unwrap();
    for tap in meta["taps"].as_array_mut().unwrap() {
        let name = tap["tap"].as_str().unwrap().to_owned();
        if name.ends_with(".k_rope") || name.ends_with(".v") {
            tap["shape"][0] = 32.into();
        }
    }
    fs::write(folder.join("dump.json"), meta.to_string()).unwrap();
}

#[test]
fn of_a_cache_written_whole_each_steps_own_rows_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let out = dump(folder.path(), 1);
    whole_caches(Path::new(&out), None);
    for command in [vec!["compare", GOLDEN, &out], vec!["explain", MODEL, &out]] {
        let report = json(&command);
        assert_eq!(report["verdict"], "parity", "{command:?}: {}", report["first_divergence"]);
        assert!(report["warnings"].to_string().contains("a K/V cache of 32 slots"), "{}", report["warnings"]);
    }
    // Its newest slot holds the first token's values.
    let out = dump(&folder.path().join("wrong"), 1);
    whole_caches(Path::new(&out), Some(13));
    let report = json(&["compare", GOLDEN, &out]);
    let first = &report["first_divergence"];
    assert_eq!((&first["tap"], &first["step"]), (&"layers.1.v".into(), &13.into()), "{first}");
}

#[test]
fn a_baseline_serves_runs_whose_steps_are_of_the_same_positions() {
    let folder = tempfile::tempdir().unwrap();
    let (steps, singles) = (dump(folder.path(), 11), dump(folder.path(), 1));
    let gate = |candidate: &str, baseline: &str, more: &[&str]| {
        let file = folder.path().join(baseline).to_string_lossy().into_owned();
        let out = firstdiff(&[&["gate", GOLDEN, candidate, "--baseline", &file], more].concat());
        (out.status.code(), in_one_line(&String::from_utf8(out.stdout).unwrap()))
    };
    for (own, baseline, other) in [(&steps, "steps", &singles), (&singles, "singles", &steps)] {
        assert_eq!(gate(own, baseline, &["--update"]).0, Some(0));
        assert_eq!(gate(own, baseline, &[]).0, Some(0));
        let (code, said) = gate(other, baseline, &[]);
        assert!(code == Some(1) && said.contains("other token positions"), "{code:?}: {said}");
    }
}

/// Right, but with its own continuation; or with the golden one, but wrong from the first decode step on. Without ids and embeddings that is undecidable.
#[test]
fn decode_steps_of_which_nothing_agrees_and_nobody_knows_the_tokens_are_undecided() {
    let folder = tempfile::tempdir().unwrap();
    let all = folder.path().join("all").to_string_lossy().into_owned();
    let (prompt, rest) = ("1,17,42,99,3,150,77,17,128,64,5", "7,11,9");
    let own = ["dump", MODEL, "-o", &all, "--tokens", prompt, "--decode-tokens", rest];
    assert_eq!(firstdiff(&own).status.code(), Some(0));
    for with_h0 in [false, true] {
        let bare = folder.path().join(with_h0.to_string());
        fs::create_dir(&bare).unwrap();
        for file in fs::read_dir(&all).unwrap().map(|file| file.unwrap().path()) {
            let name = file.file_name().unwrap().to_string_lossy().into_owned();
            if name.ends_with(".npy") && (with_h0 || !name.starts_with("h0")) {
                fs::copy(&file, bare.join(name)).unwrap();
            }
        }
        let bare = bare.to_string_lossy().into_owned();
        let report = json(&["compare", GOLDEN, &bare]);
        assert_ne!(report["verdict"], "parity");
        if !with_h0 {
            assert_eq!(report["verdict"], "incomparable", "{report}");
        }
        let told = json(&["compare", GOLDEN, &bare, "--tokens", prompt, "--decode-tokens", "23,108,61"]);
        assert_eq!(told["verdict"], "diverged");
    }
}
