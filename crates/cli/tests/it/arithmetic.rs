//! Checks the verdict for the type of a K/V cache, a quantised engine and a second right run. On fixtures/rounded (scripts/goldens/make_rounded.py).

use std::fs;
use std::path::Path;

use firstdiff::trace::{Dump, Meta, Recorder};

use crate::command::{FAULTY, GOLDEN, refuses};
use crate::common::{firstdiff, fixtures, in_one_line, json};

/// What a command prints, on one line.
fn screen(args: &[&str]) -> String {
    in_one_line(&crate::common::screen(args))
}

const MODEL: &str = "models/llama";

fn rounded(name: &str) -> String {
    format!("rounded/{name}.npz")
}

/// The first tap that diverged.
fn first(args: &[&str]) -> Option<String> {
    json(args)["first_divergence"]["tap"].as_str().map(str::to_owned)
}

/// An engine with an undeclared K/V cache of this type: parity, and the screen mentions it, with and without the model.
#[track_caller]
fn takes_a_cache(name: &str, cache: &str) {
    let dump = rounded(name);
    for args in [&["compare", GOLDEN, &dump][..], &["replay", MODEL, &dump]] {
        let said = json(args);
        let words = (said["verdict"].as_str(), said["cache"].as_str(), said["cache_is_assumed"].as_bool());
        assert_eq!(words, (Some("parity"), Some(cache), Some(true)), "{args:?}: {}", said["first_divergence"]);
        let line = format!("a K/V cache in {cache}, which is not stated");
        assert!(screen(args).contains(&line), "{args:?}");
        let asked = json(&[args, &["--cache", cache]].concat());
        let words = (asked["verdict"].as_str(), asked["cache_is_assumed"].as_bool());
        assert_eq!(words, (Some("parity"), Some(false)), "{args:?} --cache {cache}");
        // A requested type is used.
        assert_eq!(json(&[args, &["--cache", "f32"]].concat())["verdict"], "diverged", "{args:?} --cache f32");
    }
}

#[test]
fn a_cache_is_assumed_beside_a_fault_too() {
    // Everything from the norm on is wrong, so that nothing behind it resembles the reference; yet keys and values were stored in f16.
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("faulty");
    let dump = Dump::open(fixtures().join(rounded("cache-f16-kept"))).unwrap();
    let recorder = Recorder::create(&path).unwrap();
    recorder.tokens(dump.meta().tokens.as_deref().unwrap());
    for entry in dump.entries().iter().filter(|entry| entry.step == 0) {
        let name = entry.tap.to_string();
        let behind = name.starts_with("layers.0.ffn") || name == "layers.0.h" || entry.tap.layer.is_some_and(|l| l > 0);
        let values = dump.read(entry).unwrap().values().to_f64();
        let kept = name.ends_with("k_rope") || name.ends_with(".v");
        let wrong = |(i, x): (usize, &f64)| match (behind, kept, i % 3) {
            (false, ..) => *x,
            (true, _, 0) => -x,
            (true, true, _) => 2.0 * x,
            (true, false, _) => 1.7 * x,
        };
        let values: Vec<f32> = values.iter().enumerate().map(|at| wrong(at) as f32).collect();
        // Without its axes: the layout of a tap that resembles nothing cannot be found.
        let shape = [entry.shape[0], entry.shape[1..].iter().product()];
        let shape = if kept { &shape[..] } else { &entry.shape[..] };
        recorder.record(entry.tap, shape, &values).unwrap();
    }
    recorder.finish().unwrap();
    let report = json(&["compare", GOLDEN, path.to_str().unwrap()]);
    assert_eq!(report["first_divergence"]["tap"], "layers.0.ffn_norm");
    assert_eq!((report["cache"].as_str(), report["cache_is_assumed"].as_bool()), (Some("f16"), Some(true)));
}

#[test]
fn a_cache_that_nothing_shows_makes_no_parity() {
    // That what was recorded agrees with keys and values in f16 does not show where those are cached.
    let of_streams = |name: &str| ["h0", "logits"].contains(&name) || name.ends_with(".h");
    let of_keys = |name: &str| [".k", ".k_rope", ".v"].iter().any(|site| name.ends_with(site));
    let of_attention = |name: &str| [".qk", ".scores", ".probs"].iter().any(|site| name.ends_with(site));
    let without_keys = |name: &str| !of_keys(name);
    let without_attention = |name: &str| !of_keys(name) && !of_attention(name);
    for kept in [&of_streams as &dyn Fn(&str) -> bool, &without_keys, &without_attention] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("some");
        let dump = Dump::open(fixtures().join(rounded("cache-f16"))).unwrap();
        let recorder = Recorder::create(&path).unwrap();
        recorder.tokens(dump.meta().tokens.as_deref().unwrap());
        for entry in dump.entries().iter().filter(|entry| entry.step == 0 && kept(&entry.tap.to_string())) {
            let values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
            recorder.record(entry.tap, &entry.shape, &values).unwrap();
        }
        recorder.finish().unwrap();
        let path = path.to_str().unwrap();
        assert_eq!(json(&["compare", GOLDEN, path])["verdict"], "diverged");
        for command in ["replay", "explain"] {
            let said = json(&[command, MODEL, path]);
            assert_eq!(said["verdict"], "incomparable", "{command}");
            assert!(said["reason"].as_str().unwrap().ends_with("say --cache f16"), "{command}: {}", said["reason"]);
            assert_eq!(json(&[command, MODEL, path, "--cache", "f16"])["verdict"], "parity", "{command}");
        }
    }
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn the_type_of_the_cache_is_assumed_where_it_fits_and_said() {
    takes_a_cache("cache-f16", "f16");
    takes_a_cache("cache-f16-kept", "f16");
    takes_a_cache("cache-bf16", "bf16");
    takes_a_cache("cache-q8_0", "q8_0");
    takes_a_cache("cache-q8_0-kept", "q8_0");
    let explained = json(&["explain", MODEL, &rounded("cache-f16")]);
    assert_eq!((explained["verdict"].as_str(), explained["cache"].as_str()), (Some("parity"), Some("f16")));
}

#[test]
fn a_right_engine_needs_no_cache() {
    for args in [&["compare", GOLDEN, "golden/llama-llama-cpp.npz"], &["replay", MODEL, GOLDEN]] {
        let said = json(args);
        assert_eq!(
            (said["cache"].as_str(), said["cache_is_assumed"].as_bool()),
            (Some("f32"), Some(false)),
            "{args:?}"
        );
    }
}

#[test]
fn a_cache_hides_no_fault() {
    // A factor of 1.001 is half a step of f16, and a head 3 % too large less than bf16 may cost.
    for (name, tap) in [("cache-f16-times", "layers.1.v"), ("cache-f16-head", "layers.1.context")] {
        let dump = rounded(name);
        for more in [&[][..], &["--cache", "f16"]] {
            let args = [&["compare", GOLDEN, &dump][..], more].concat();
            assert_eq!(first(&args).as_deref(), Some(tap), "{args:?}");
            let replay = json(&[&["replay", MODEL, &dump][..], more].concat());
            let taps: Vec<&str> =
                replay["findings"].as_array().unwrap().iter().map(|f| f["tap"].as_str().unwrap()).collect();
            assert_eq!(taps, [tap], "{name}");
        }
    }
    assert_eq!(
        first(&["compare", GOLDEN, &rounded("cache-f16-head"), "--cache", "bf16"]).as_deref(),
        Some("layers.1.context")
    );
    // A fault that no cache explains is found where it is, whatever type of cache is given.
    for cache in ["f32", "f16", "bf16", "q8_0"] {
        let of = |args: &[&str]| first(&[args, &["--cache", cache]].concat());
        assert_eq!(of(&["compare", GOLDEN, FAULTY]).as_deref(), Some("layers.0.q_rope"), "{cache}");
    }
}

#[test]
fn a_dump_is_made_in_any_cache_in_any_profile() {
    let folder = tempfile::tempdir().unwrap();
    let tokens = "1,17,42,99,3,150,77,17,128,64,5";
    for cache in ["f16", "bf16", "q8_0"] {
        let out = folder.path().join(cache);
        let out = out.to_str().unwrap();
        let args = ["dump", MODEL, "-o", out, "--tokens", tokens, "--decode-tokens", "23", "--cache", cache];
        assert_eq!(firstdiff(&args).status.code(), Some(0));
        assert_eq!(Dump::open(out).unwrap().meta().cache.as_deref(), Some(cache));
        let said = json(&["compare", out, &rounded(&format!("cache-{cache}"))]);
        assert_eq!((said["verdict"].as_str(), said["cache"].as_str()), (Some("parity"), Some(cache)), "{cache}");
        // The cache of either side counts: comparing the plain run with this one agrees too.
        assert_eq!(json(&["compare", GOLDEN, out])["verdict"], "parity", "{cache}");
        assert_eq!(json(&["replay", MODEL, out])["verdict"], "parity", "{cache}");
    }
    refuses_usage(&["compare", GOLDEN, GOLDEN, "--cache", "q4_0"], "q8_0");
}

/// Exit code 2, and a message with this word.
#[track_caller]
fn refuses_usage(args: &[&str], word: &str) {
    let output = firstdiff(args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.code() == Some(2) && error.contains(word), "{args:?}: {error}");
}

/// A quantised engine: no parity, no operation to blame except `wrong`, and which arithmetic it looks like.
#[track_caller]
fn is_another_arithmetic(name: &str, looks_like: &[&str], wrong: &[&str]) {
    let dump = rounded(name);
    let said = json(&["explain", MODEL, &dump, "--seconds", "2"]);
    assert_eq!(said["verdict"], "diverged", "{name}");
    let findings = said["findings"].as_array().unwrap();
    let first = &findings[0];
    assert_eq!((first["cause"].as_str(), first["match"].as_str()), (Some("precision"), Some("reproduced")), "{first}");
    let words = first["arithmetic"]["looks_like"].as_str().unwrap();
    assert!(looks_like.iter().all(|like| words.contains(like)), "{name}: {words}");
    let others: Vec<&str> = findings[1..].iter().map(|f| f["tap"].as_str().unwrap()).collect();
    assert_eq!(others, wrong, "{name}");
    let replay = screen(&["replay", MODEL, &dump]);
    assert!(replay.contains("another arithmetic, not a mistake"), "{replay}");
    assert_eq!(replay.contains("wrong in itself"), !wrong.is_empty(), "{replay}");
    let compared = screen(&["compare", GOLDEN, &dump]);
    assert!(compared.contains("another arithmetic (quantised"), "{compared}");
}

#[test]
#[ignore = "slow: cargo test -- --ignored, as .ci/run does"]
fn quantised_engines_are_another_arithmetic() {
    let by_row = ["weights rounded to 8 bits, one scale a row", "activations rounded to 8 bits, one scale a row"];
    is_another_arithmetic("a8-row", &by_row, &[]);
    is_another_arithmetic("a8-row-times", &by_row, &["layers.1.ffn_up"]);
    is_another_arithmetic("w8-g32", &["weights rounded to 8 bits, one scale a group of 32, symmetric"], &[]);
    is_another_arithmetic("w4-a32", &["weights rounded to 4 bits, one scale a group of 32, with a minimum"], &[]);
    let torch = ["weights rounded to 8 bits, one scale a tensor", "activations rounded to 7 bits, one scale a tensor"];
    is_another_arithmetic("torch-int8", &torch, &[]);
}

#[test]
fn a_second_right_run_says_what_is_allowed() {
    let (torch, by_row, wrong) = (rounded("torch-int8"), rounded("a8-row"), rounded("a8-row-times"));
    let said = json(&["compare", GOLDEN, &by_row, "--noise", &torch]);
    assert_eq!(said["verdict"], "parity", "{}", said["first_divergence"]);
    let q = said["taps"].as_array().unwrap().iter().find(|t| t["tap"] == "layers.0.q").unwrap();
    let [noise, allowed, ratio] =
        ["noise_nmse", "allowed_nmse", "error_over_noise"].map(|key| q[key].as_f64().unwrap());
    assert!((allowed / noise - 4.0).abs() < 1e-6 && ratio < 4.0, "{q}");
    // A matrix 1.1 times as large is a factor, whatever the noise.
    for noise in [&torch, &by_row] {
        assert_eq!(
            first(&["compare", GOLDEN, &wrong, "--noise", noise]).as_deref(),
            Some("layers.1.ffn_up"),
            "{noise}"
        );
    }
    // With the reference itself as the second run, nothing is measured.
    assert_eq!(first(&["compare", GOLDEN, &by_row, "--noise", GOLDEN]).as_deref(), Some("layers.0.q"));
    assert!(screen(&["compare", GOLDEN, &by_row, "--noise", GOLDEN]).contains("it is the reference, bit for bit"));
    // Taps that it lacks are judged by the profile, and that is reported.
    let folder = tempfile::tempdir().unwrap();
    let part = |name: &str, keep: &dyn Fn(&str) -> bool, change: &dyn Fn(&str, &mut Vec<f32>)| {
        let out = folder.path().join(name);
        let dump = Dump::open(fixtures().join(&torch)).unwrap();
        let recorder = Recorder::create(&out).unwrap();
        recorder.describe(|meta| *meta = Meta { taps: None, decode_tokens: None, ..dump.meta().clone() });
        for entry in dump.entries().iter().filter(|e| e.step == 0 && keep(&e.tap.to_string())) {
            let mut values: Vec<f32> = dump.read(entry).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
            change(&entry.tap.to_string(), &mut values);
            recorder.record(entry.tap, &entry.shape, &values).unwrap();
        }
        recorder.finish().unwrap();
        out.to_str().unwrap().to_owned()
    };
    let lacks = part("lacks", &|tap| tap != "layers.0.k", &|_, _| {});
    let said = json(&["compare", GOLDEN, &by_row, "--noise", &lacks]);
    assert_eq!(said["first_divergence"]["tap"], "layers.0.k");
    assert_eq!(said["noise"]["lacking"][0], "layers.0.k");
    let nan = part("nan", &|_| true, &|tap, values| {
        if tap == "layers.0.k" {
            values[0] = f32::NAN
        }
    });
    refuses(&["compare", GOLDEN, &by_row, "--noise", &nan], &["layers.0.k", "no right run"]);
    // Masked scores stay in place: a value that is not finite would be refused earlier.
    let other = part("other", &|tap| !tap.ends_with("scores"), &|_, values| values.reverse());
    refuses(&["compare", GOLDEN, &by_row, "--noise", &other], &["a run of something else"]);
}

#[test]
fn an_engine_that_is_not_at_parity_can_be_held_to_itself() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("held").to_str().unwrap().to_owned();
    let dump = rounded("a8-row");
    let gate =
        |dump: &str, more: &[&str]| firstdiff(&[&["gate", GOLDEN, dump, "--baseline", &file][..], more].concat());
    assert_eq!(gate(&dump, &["--update"]).status.code(), Some(2));
    assert!(!Path::new(&file).exists());
    assert_eq!(gate(&dump, &["--accept-diverged"]).status.code(), Some(2), "only with --update");
    let reason = ["--update", "--accept-diverged", "--by", "ann", "--reason", "int8\nfor now"];
    assert_eq!(gate(&dump, &reason[2..]).status.code(), Some(2), "only with --accept-diverged");
    assert_eq!(gate(&dump, &reason).status.code(), Some(0));
    assert_eq!(
        json(&["gate", GOLDEN, &dump, "--baseline", &file])["accepted"],
        serde_json::json!({"by": "ann", "because": "int8 for now"})
    );
    assert_eq!(gate(&dump, &["--update", "--accept-diverged"]).status.code(), Some(0));
    assert!(fs::read_to_string(&file).unwrap().contains("# NOT PARITY: "));
    let again = gate(&dump, &[]);
    assert_eq!(again.status.code(), Some(0));
    assert!(in_one_line(&String::from_utf8_lossy(&again.stdout)).contains("not parity: held to its own baseline"));
    let said = json(&["gate", GOLDEN, &dump, "--baseline", &file]);
    assert_eq!((said["passed"].as_bool(), said["verdict"].as_str()), (Some(true), Some("diverged")));
    assert_eq!(said["held_to_own_baseline"], true);
    let worse = gate(&rounded("a8-row-times"), &[]);
    assert_eq!(worse.status.code(), Some(1));
    assert!(in_one_line(&String::from_utf8_lossy(&worse.stdout)).contains("layers.1.ffn_up"));
    assert_eq!(gate(&rounded("w4-a32"), &[]).status.code(), Some(1));
    // Nothing may be accepted that need not be.
    let better = gate(GOLDEN, &[]);
    assert_eq!(better.status.code(), Some(1));
    let screen = in_one_line(&String::from_utf8_lossy(&better.stdout));
    assert!(screen.contains("agrees now") && screen.contains("write the baseline again (--update)"), "{screen}");
    let said = json(&["gate", GOLDEN, GOLDEN, "--baseline", &file]);
    assert_eq!(said["regressions"][0]["outgrown"], true);
    assert_eq!(json(&["gate", GOLDEN, GOLDEN, "--baseline", &file])["held_to_own_baseline"], false);
}

/// bf16's table has room for all operations up to a tap: with a model each is held to its own rounding.
#[test]
fn a_model_sees_what_the_table_of_16_bits_has_room_for() {
    let folder = tempfile::tempdir().unwrap();
    let right = Dump::open(fixtures().join("right/llama-torch-bf16.npz")).unwrap();
    let scaled = |name: &str, factor: f64| {
        let path = folder.path().join(format!("{name}-{factor}"));
        let recorder = Recorder::create(&path).unwrap();
        recorder.describe(|meta| *meta = Meta { taps: None, ..right.meta().clone() });
        for entry in right.entries() {
            let times = if entry.tap.to_string() == name { factor } else { 1.0 };
            // To the nearest number of 16 bits.
            let rounded = |x: f64| f32::from_bits((((x * times) as f32).to_bits() + 0x8000) & 0xffff_0000);
            let values: Vec<f32> = right.read(entry).unwrap().values().to_f64().into_iter().map(rounded).collect();
            recorder.record(entry.tap, &entry.shape, &values).unwrap();
        }
        recorder.finish().unwrap();
        path.to_string_lossy().into_owned()
    };
    let compared = |candidate: &str| json(&["compare", GOLDEN, candidate, "--model", MODEL]);
    assert_eq!(compared(&scaled("none", 1.0))["verdict"], "parity");
    for name in ["logits", "layers.1.q_rope", "layers.0.ffn_act"] {
        let candidate = scaled(name, 1.0156);
        assert_eq!(compared(&candidate)["first_divergence"]["tap"], name);
        assert_eq!(json(&["replay", MODEL, &candidate])["verdict"], "diverged");
    }
}
