//! Checks that each printed sentence is true of the numbers: a planted case for each that was not, and one beside it where the sentence holds.

use std::fs;
use std::path::{Path, PathBuf};

use firstdiff::trace::{Dump, Element, Entry, Meta, Recorder, Site};
use half::{bf16, f16};

use crate::common::{firstdiff, in_one_line, screen};
use crate::few_numbers::values;

const MODEL: &str = "models/llama";
const TOKENS: &str = "1,17,42,99,3,150,77,17,128,64,5";
const DECODED: &str = "23,108,61";
const STREAM: &str = "h0,layers.*.h,final_norm,logits";

/// Our own run, with a prefill and three steps, or in one pass.
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

/// An error that no mistake gives.
fn noise(at: usize, x: f32) -> f32 {
    x + ((at * 7919 % 101) as f32 - 50.0) / 50.0
}

/// Removes a tap of a step from a dump.
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
    // No recorded tap reads either of the two.
    let attention =
        "h0,layers.0.attn_norm,layers.0.q*,layers.0.k*,layers.0.v,layers.0.scores,layers.0.probs,layers.0.context";
    for (taps, file, words) in [
        (
            "final_norm,logits",
            "logits.npy",
            "next: look at this code, its weights and what it is passed: of the inputs that were recorded another value is due",
        ),
        (
            attention,
            "layers.0.context.step1.npy",
            "the K/V cache of an earlier pass (not recorded) and what it is passed",
        ),
    ] {
        let out = run(folder.path(), file, Some(taps), false);
        change(&out.join(file), noise);
        let text =
            in_one_line(&screen(&["explain", MODEL, &out.to_string_lossy(), "--seconds", "0.3", "--faults", "1"]));
        says(&text, "none of the mistakes tried here (");
        says(&text, words);
        assert!(!text.contains("all that it reads is right"), "{text}");
    }
}

#[test]
fn no_wider_arithmetic_is_advised_by_size_alone() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(folder.path(), "ref", Some(STREAM), true);
    // As far off as a 16-bit cache would cause, but not by a cache.
    let candidate = run(folder.path(), "cand", Some(STREAM), true);
    change(&candidate.join("layers.1.h.npy"), |at, x| x * (1.0 + ((at * 7919 % 101) as f32 - 50.0) * 2e-5));
    let text = said("compare", &reference, &candidate);
    assert!(text.contains("first divergence") && !text.contains("--cache") && !text.contains("--profile"), "{text}");
    // h0 times a factor, as far off as bf16 is: none of its numbers is one of bf16.
    let candidate = run(folder.path(), "factor", None, true);
    let reference = run(folder.path(), "all", None, true);
    change(&candidate.join("h0.npy"), |_, x| x * 1.0013);
    let text = said("compare", &reference, &candidate);
    assert!(text.contains("1.001300 times the reference") && !text.contains("--profile"), "{text}");
    // The reference's own values, rounded.
    let candidate = run(folder.path(), "rounded", None, true);
    change(&candidate.join("h0.npy"), |_, x| {
        f32::from_bits((x.to_bits() + 0x7fff + (x.to_bits() >> 16 & 1)) & !0xffff)
    });
    says(&said("compare", &reference, &candidate), "h0 is the reference's, rounded to bf16");
}

#[test]
fn an_arithmetic_that_is_told_and_not_shown_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let (all, few) = (run(folder.path(), "all", None, true), run(folder.path(), "few", Some(STREAM), true));
    let told = |dump: &Path, more: [&str; 2]| {
        let dump = dump.to_string_lossy();
        in_one_line(&screen(&["compare", &dump, &dump, more[0], more[1]]))
    };
    let text = told(&all, ["--cache", "bf16"]);
    says(&text, "nothing recorded shows one: the candidate's keys, values and products come out without such rounding");
    says(&text, "parity");
    says(&told(&few, ["--cache", "bf16"]), "nothing recorded shows one: too little was recorded");
    says(
        &told(&all, ["--profile", "bf16"]),
        "nothing recorded shows it: the values of neither run are numbers of bf16",
    );
    assert!(!told(&all, ["--cache", "f32"]).contains("nothing recorded shows"));
    assert!(!told(&all, ["--profile", "f32"]).contains("nothing recorded shows"));
}

#[test]
fn a_tap_whose_readers_agree_is_looked_at_itself() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(folder.path(), "ref", None, true);
    let candidate = run(folder.path(), "cand", None, true);
    fs::copy(reference.join("layers.1.q_rope.npy"), candidate.join("layers.1.q.npy")).unwrap();
    let text = said("compare", &reference, &candidate);
    says(&text, "look at what the candidate records under layers.1.q");
    assert!(!text.contains("look at the operation"), "{text}");
    change(&candidate.join("layers.1.q_rope.npy"), noise);
    says(&said("compare", &reference, &candidate), "look at what the candidate records under layers.1.q");
}

#[test]
fn a_context_with_its_heads_apart_has_the_positions_of_its_step() {
    let folder = tempfile::tempdir().unwrap();
    let dump = |name: &str, factor: f32| {
        let out = run(folder.path(), name, None, false);
        for (step, rows) in [("", 11), (".step1", 1), (".step2", 1), (".step3", 1)] {
            let file = out.join(format!("layers.1.context{step}.npy"));
            let head = |at: usize| at / 16 % 6 == 2;
            change(&file, |at, x| if head(at) && step == ".step1" { x * factor } else { x });
            // The same numbers as [T, H, d], with a header of the same length.
            let mut npy = fs::read(&file).unwrap();
            let text: String = npy[..128].iter().map(|&byte| char::from(byte)).collect();
            let (flat, apart) = (format!("({rows}, 96), }}     "), format!("({rows}, 6, 16), }}  "));
            assert!(text.contains(&flat), "{text}");
            npy.splice(..128, text.replace(&flat, &apart).chars().map(|c| c as u8));
            fs::write(file, npy).unwrap();
        }
        let meta = out.join("dump.json");
        let text = fs::read_to_string(&meta).unwrap();
        let mut meta_json: serde_json::Value = serde_json::from_str(&text).unwrap();
        for tap in meta_json["taps"].as_array_mut().unwrap() {
            if tap["tap"] == "layers.1.context" {
                let rows = tap["shape"][0].clone();
                tap["shape"] = serde_json::json!([rows, 6, 16]);
            }
        }
        fs::write(meta, meta_json.to_string()).unwrap();
        out
    };
    let (reference, candidate) = (dump("ref", 1.0), dump("cand", 1.5));
    let text = said("compare", &reference, &candidate);
    says(&text, "heads 0-1, 3-5 right, 2 wrong");
    says(&text, "at position 11, channel");
    assert!(!text.contains(" positions "), "{text}");
    says(&said("compare", &reference, &reference), "parity");
}

/// A channel that is a thousand times less wrong than another is wrong as well.
#[test]
fn the_channels_that_are_named_are_all_that_are_beyond_the_tolerance() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(folder.path(), "ref", Some("*norm"), true);
    let candidate = run(folder.path(), "cand", Some("*norm"), true);
    change(&candidate.join("layers.0.attn_norm.npy"), |at, x| match at % 48 {
        1 | 8..=10 => x * 1.001,
        0 | 2 | 3 | 11 => x * 1.00013,
        _ => x,
    });
    says(
        &said("compare", &reference, &candidate),
        "channels 1, 8, 10 hold 94 % of the error; 4-7, 12-47 right, 0-3, 8-11 beyond tolerance: NMSE 1.7e-8 to 1.0e-6,",
    );
    let candidate = run(folder.path(), "few", Some("*norm"), true);
    change(&candidate.join("layers.0.attn_norm.npy"), |at, x| match at % 48 {
        5 => x * 2.0,
        6 => x * 1.01,
        _ => x,
    });
    let words =
        "channels 5 holds more than 99 % of the error; 0-4, 7-47 right, 5-6 beyond tolerance: NMSE 1.0e-4 to 1.0000,";
    says(&said("compare", &reference, &candidate), words);
    let candidate = run(folder.path(), "one", Some("*norm"), true);
    change(&candidate.join("layers.0.attn_norm.npy"), |at, x| if at / 48 == 7 { x * 2.0 } else { x });
    says(&said("compare", &reference, &candidate), "positions 0-6, 8-13 right, 7 wrong: NMSE 1.0000 ");
}

/// A factor in the query rather than in the scores: nothing behind them changes.
#[test]
fn what_is_taken_back_further_on_is_not_to_be_fixed() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(folder.path(), "ref", None, true);
    let candidate = run(folder.path(), "cand", None, true);
    for tap in ["q_rope", "qk"] {
        change(&candidate.join(format!("layers.0.{tap}.npy")), |_, x| x / 4.0);
    }
    let text = said("compare", &reference, &candidate);
    says(&text, "but all that is made of it agrees again, from layers.0.scores on");
    says(
        &text,
        "next look at what the candidate records under layers.0.q_rope, layers.0.qk: layers.0.scores, which is made of them, agrees, so that 'rope' need not be \
         wrong: a factor may be applied in another place",
    );
    // Another fault further on is reported separately.
    change(&candidate.join("logits.npy"), noise);
    says(&said("compare", &reference, &candidate), "but all that is made of it agrees again");
    // Where nothing is recorded behind it, that is unknown.
    let taps = Some("h0,layers.0.attn_norm,layers.0.q*,layers.0.k*");
    let [reference, candidate] = ["few", "cut"].map(|name| run(folder.path(), name, taps, true));
    for tap in ["q_rope", "qk"] {
        change(&candidate.join(format!("layers.0.{tap}.npy")), |_, x| x / 4.0);
    }
    let text = said("compare", &reference, &candidate);
    assert!(!text.contains("agrees again") && text.contains("look at the operation 'rope'"), "{text}");
}

#[test]
fn what_gives_the_same_numbers_is_put_right_as_well() {
    let folder = tempfile::tempdir().unwrap();
    let candidate = run(folder.path(), "cand", Some("layers.1.qk,layers.1.scores"), true);
    // Scores without a mask, which are those with 0 added for one.
    let products = values(&candidate.join("layers.1.qk.npy"));
    change(&candidate.join("layers.1.scores.npy"), |at, _| 0.25 * products[at]);
    let path = candidate.to_string_lossy();
    let text = in_one_line(&screen(&["explain", MODEL, &path, "--only", "mask-omitted,mask-fill"]));
    says(&text, "so does mask-fill, fill 0.0");
    says(&text, "; or, if it is mask-fill: ");
}

/// A law of scores is measured in the probabilities, and a mask by its share of cells: neither is an NMSE of scores.
#[test]
fn an_nmse_is_called_by_what_it_is_of() {
    let folder = tempfile::tempdir().unwrap();
    let explained = |name: &str, with: &dyn Fn(usize, f32) -> f32| {
        let candidate = run(folder.path(), name, Some("layers.1.q*,layers.1.k*,layers.1.scores"), true);
        change(&candidate.join("layers.1.scores.npy"), with);
        let args = ["explain", MODEL, &candidate.to_string_lossy(), "--seconds", "0.5", "--faults", "1"];
        in_one_line(&screen(&args))
    };
    let text = explained("head", &|at, x| if at / (14 * 14) == 2 { x * 1.1 } else { x });
    says(&text, " in the probabilities that the scores make; ");
    let window = |at: usize, x: f32| if at % 14 + 4 <= at / 14 % 14 { f32::NEG_INFINITY } else { x };
    says(&explained("window", &window), ", with the share of the cells that are masked or no number on one side alone");
}

/// A growing cache has as many slots as there are positions so far.
#[test]
fn a_cache_has_the_slots_that_it_has_in_each_step() {
    let folder = tempfile::tempdir().unwrap();
    let reference = run(folder.path(), "ref", None, false);
    let dump = Dump::open(&reference).unwrap();
    let candidate = folder.path().join("cand");
    let recorder = Recorder::create(&candidate).unwrap();
    recorder.tokens(dump.meta().tokens.as_ref().unwrap());
    let values =
        |entry: &Entry| dump.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect::<Vec<f32>>();
    for step in 0..4 {
        for entry in dump.entries().iter().filter(|entry| entry.step == step) {
            let (mut shape, mut held) = (entry.shape.clone(), values(entry));
            if matches!(entry.tap.site, Site::KRope | Site::V) {
                let before = (0..step).flat_map(|step| values(dump.find(entry.tap, step).unwrap()));
                held = before.chain(held).collect();
                shape[0] = 11 + step as usize;
            }
            recorder.record(entry.tap, &shape, &held).unwrap();
        }
        if let Some(token) = dump.meta().decode_tokens.as_ref().unwrap().get(step as usize) {
            recorder.next_step(*token);
        }
    }
    recorder.finish().unwrap();
    let text = said("compare", &reference, &candidate);
    says(&text, "parity: all");
    says(&text, "hold a K/V cache of 11 to 14 slots in every step:");
}

/// A tap that is another one of the reference: its operation is left out where that is what it reads, and nothing is where two are exchanged.
#[test]
fn a_tap_that_holds_another_is_left_out_only_where_it_reads_it() {
    let folder = tempfile::tempdir().unwrap();
    let taps = "layers.0.ffn_norm,layers.0.ffn_gate,layers.0.ffn_up,layers.0.q,layers.0.q_rope";
    let right = run(folder.path(), "right", Some(taps), true);
    for (tap, other, words, not) in [
        ("ffn_gate", "ffn_up", "if the engine goes on with it, it takes the one for the other", "is left out"),
        ("q_rope", "q", "if the engine goes on with it, 'rope' is left out", "the one for the other"),
    ] {
        let out = run(folder.path(), tap, Some(taps), true);
        let file = |folder: &Path, tap: &str| folder.join(format!("layers.0.{tap}.npy"));
        fs::copy(file(&right, other), file(&out, tap)).unwrap();
        let text = said("compare", &right, &out);
        says(&text, words);
        assert!(!text.contains(not), "{text}");
    }
}

/// Numbers without a law are none, and each tap is counted.
#[test]
fn the_heading_counts_what_is_listed() {
    let folder = tempfile::tempdir().unwrap();
    let out = run(folder.path(), "out", Some("final_norm,logits"), false);
    for step in ["", ".step1", ".step2", ".step3"] {
        // Each row times a number of its own.
        change(&out.join(format!("logits{step}.npy")), |at, x| noise(at / 151 * 31 + step.len(), 3.0) * x);
    }
    let text = in_one_line(&screen(&["explain", MODEL, &out.to_string_lossy(), "--seconds", "0.3", "--faults", "1"]));
    says(&text, "1 fault measured, no law found");
    says(&text, "true numbers, no law found");
    let golden = "programs/forgetting/golden";
    let weights = ["--weights", "programs/forgetting/model.safetensors"];
    let out = folder.path().join("twice");
    let path = out.to_string_lossy().into_owned();
    let args = [&["dump", golden, "-o", &path, "--tokens", "7,3,19,42,8,8,31,2,25,11"], &weights[..]].concat();
    assert_eq!(firstdiff(&args).status.code(), Some(0));
    for tap in ["layers.1.ffn_gate", "layers.2.ffn_gate"] {
        change(&out.join(format!("{tap}.npy")), |_, x| 2.0 * x);
        change(&out.join(format!("{}.npy", tap.replace("gate", "act"))), |_, x| 4.0 * x);
    }
    let text =
        in_one_line(&screen(&["explain", golden, &path, weights[0], weights[1], "--seconds", "0.5", "--faults", "1"]));
    says(&text, "2 taps off by what is taken back");
}

/// Behind the last layer of a decoder there are no more, whatever its stack is called.
#[test]
fn no_layers_are_missing_behind_the_last_of_a_stack() {
    let folder = tempfile::tempdir().unwrap();
    let node = |tap: &str, reads: &[&str]| serde_json::json!({"tap": tap, "op": "linear", "reads": reads});
    let graph = serde_json::json!([
        node("encoder.h0", &[]),
        node("encoder.layers.0.h", &["encoder.h0"]),
        node("decoder.h0", &[]),
        node("decoder.layers.0.h", &["decoder.h0", "encoder.layers.0.h"]),
        node("decoder.layers.1.h", &["decoder.layers.0.h", "encoder.layers.0.h"]),
        node("final_norm", &["decoder.layers.1.h"]),
        node("logits", &["final_norm"]),
    ]);
    let written = |name: &str, off: f32, taps: &[&str]| {
        let recorder = Recorder::create(folder.path().join(name)).unwrap();
        recorder.tokens(&[1, 2, 3, 4, 5]);
        for (seed, tap) in taps.iter().enumerate() {
            let off = if *tap == "logits" { off } else { 1.0 };
            let values: Vec<f32> = (0..40).map(|at| off * noise(at * 13 + seed * 7, 0.0)).collect();
            recorder.record(firstdiff::trace::Tap::named(tap), &[5, 8], &values).unwrap();
        }
        recorder.finish().unwrap();
        let path = folder.path().join(name).join("dump.json");
        let mut meta: serde_json::Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        meta["graph"] = graph.clone();
        fs::write(&path, meta.to_string()).unwrap();
        folder.path().join(name)
    };
    let few = ["encoder.layers.0.h", "decoder.layers.0.h", "decoder.layers.1.h", "logits"];
    let all = ["encoder.layers.0.h", "decoder.layers.0.h", "decoder.layers.1.h", "final_norm", "logits"];
    let text = said("compare", &written("golden", 1.0, &all), &written("own", 1.1, &few));
    says(&text, "not checked in between: final_norm");
    says(&text, "record final_norm in the candidate, and compare again");
    assert!(!text.contains("the layers (none recorded)"), "{text}");
}

/// A copy of a dump of a prefill, each tap as `with` has it: its shape and its numbers.
fn copied<T: Element>(dump: &Path, out: &Path, with: impl Fn(&Entry, Vec<f64>) -> (Vec<usize>, Vec<T>)) {
    let from = Dump::open(dump).unwrap();
    let recorder = Recorder::create(out).unwrap();
    recorder.describe(|meta| *meta = Meta { taps: None, ..from.meta().clone() });
    for entry in from.entries() {
        let (shape, values) = with(entry, from.read(entry).unwrap().values().to_f64());
        recorder.record(entry.tap, &shape, &values).unwrap();
    }
    recorder.finish().unwrap();
}

fn in_f32(x: Vec<f64>) -> Vec<f32> {
    x.into_iter().map(|x| x as f32).collect()
}

#[test]
fn a_run_that_is_stored_in_16_bits_is_right_whatever_its_operations_amplify() {
    let folder = tempfile::tempdir().unwrap();
    let right = run(folder.path(), "right", None, true);
    let [half, brain] = ["half", "brain"].map(|name| folder.path().join(name));
    copied(&right, &half, |entry, x| (entry.shape.clone(), x.into_iter().map(f16::from_f64).collect()));
    copied(&right, &brain, |entry, x| (entry.shape.clone(), x.into_iter().map(bf16::from_f64).collect()));
    for out in [half, brain] {
        says(&said("explain", Path::new(MODEL), &out), "parity");
        says(&said("replay", Path::new(MODEL), &out), "parity");
    }
}

#[test]
fn a_buffer_that_was_never_written_takes_nothing_back() {
    let folder = tempfile::tempdir().unwrap();
    let out = run(folder.path(), "out", None, true);
    for entry in Dump::open(&out).unwrap().entries() {
        if entry.tap.layer == Some(1) && entry.tap.site != Site::H {
            change(&out.join(format!("{}.npy", entry.tap)), |_, _| 0.0);
        }
    }
    let text = said("explain", Path::new(MODEL), &out);
    says(&text, "layer 1, attn_norm: off, and what reads it is right");
    says(&text, "layer 1, h_attn: off, and what reads it is right");
    assert!(!text.contains("taken back later"), "{text}");
}

#[test]
fn lanes_that_hold_values_are_no_padding() {
    let folder = tempfile::tempdir().unwrap();
    let right = run(folder.path(), "right", None, true);
    for (name, fill, words) in [("values", 0.5, "against the reference's [14, 6, 16]"), ("zeros", 0.0, "parity")] {
        let wide = folder.path().join(name);
        copied(&right, &wide, |entry, x| match entry.tap.site {
            Site::Q if entry.tap.layer == Some(0) => {
                let [tokens, heads, lanes] = entry.shape[..] else { panic!("{:?}", entry.shape) };
                let row = |row: &[f64]| [row, &vec![fill; lanes]].concat();
                (vec![tokens, heads, 2 * lanes], in_f32(x.chunks(lanes).flat_map(row).collect()))
            }
            _ => (entry.shape.clone(), in_f32(x)),
        });
        let text = said("compare", &right, &wide);
        says(&text, words);
        assert!(!text.contains("diverged"), "{text}");
    }
}

/// Layers in which another mistake is made stand apart.
#[test]
fn each_layer_has_its_own_cause() {
    let folder = tempfile::tempdir().unwrap();
    let taps = Some("layers.*.ffn_gate,layers.*.ffn_up,layers.*.ffn_act");
    let out = run(folder.path(), "out", taps, true);
    for (layer, activation) in [(0, f64::tanh as fn(f64) -> f64), (1, |x: f64| x.max(0.0))] {
        let of = |tap: &str| values(&out.join(format!("layers.{layer}.{tap}.npy")));
        let (gate, up) = (of("ffn_gate"), of("ffn_up"));
        let other = |at: usize, _| (activation(f64::from(gate[at])) * f64::from(up[at])) as f32;
        change(&out.join(format!("layers.{layer}.ffn_act.npy")), other);
    }
    let text = said("replay", Path::new(MODEL), &out);
    says(&text, "2 operations are wrong in themselves");
    says(&text, "(activation, activation tanh)");
    says(&text, "(activation, activation relu)");
}
