//! Checks dumps that declare tensors away, or hold values where the model has none: a planted case for each, and a right run beside it.

use std::fs;
use std::path::{Path, PathBuf};

use firstdiff_trace::{Dump, Recorder};
use serde_json::{Value, json};

use crate::common::{firstdiff, fixtures, in_one_line, refused};

const MODEL: &str = "models/llama";
const TOKENS: [i64; 11] = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5];

/// Our own run of the model.
fn right(folder: &Path, taps: &str) -> PathBuf {
    let out = folder.join("right");
    let tokens = TOKENS.map(|id| id.to_string()).join(",");
    let args = ["dump", MODEL, "-o", &out.to_string_lossy(), "--tokens", &tokens, "--taps", taps];
    assert_eq!(firstdiff(&args).status.code(), Some(0));
    out
}

type Shaped = (Vec<usize>, Vec<f32>);

/// The same run with other tensors, and other fields in its dump.json.
fn other(from: &Path, name: &str, tensor: impl Fn(&str, Shaped) -> Shaped, words: &[(&str, Value)]) -> PathBuf {
    let (dump, to) = (Dump::open(from).unwrap(), from.with_file_name(name));
    let _ = fs::remove_dir_all(&to);
    let recorder = Recorder::create(&to).unwrap();
    recorder.tokens(&TOKENS);
    for entry in dump.entries() {
        let values = dump.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect();
        let (shape, values) = tensor(&entry.tap.to_string(), (entry.shape.clone(), values));
        recorder.record(entry.tap, &shape, &values).unwrap();
    }
    recorder.finish().unwrap();
    let path = to.join("dump.json");
    let mut meta: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    words.iter().for_each(|(key, value)| meta[*key] = value.clone());
    fs::write(&path, meta.to_string()).unwrap();
    to
}

/// Exit codes of compare against a run, and of replay and explain of the model.
fn codes(right: &Path, own: &Path) -> [Option<i32>; 3] {
    let [right, own] = [right, own].map(|path| path.to_string_lossy().into_owned());
    let of = |args: &[&str]| firstdiff(args).status.code();
    // What is wrong, not why: the replay decides the exit code.
    let quick = ["--seconds", "0"];
    [
        of(&["compare", &right, &own]),
        of(&["replay", MODEL, &own]),
        of(&[&["explain", MODEL, &own], &quick[..]].concat()),
    ]
}

/// Additional elements in each row of a tap.
fn wider(of: &'static str, cells: [f32; 3]) -> impl Fn(&str, Shaped) -> Shaped {
    move |tap, (mut shape, values)| {
        let Some(width) = shape.last_mut().filter(|_| tap == of) else { return (shape, values) };
        let rows = values.chunks(*width).flat_map(|row| row.iter().copied().chain(cells)).collect();
        *width += cells.len();
        (shape, rows)
    }
}

#[test]
fn cells_beyond_the_models_shape_are_looked_at() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.1.scores,layers.1.probs,layers.1.h,final_norm,logits");
    let padded = |tap, cells| codes(&right, &other(&right, "own", wider(tap, cells), &[]));
    // Ids beyond the vocabulary: zeros, or one that would be chosen.
    assert_eq!(padded("logits", [0.0; 3]), [Some(0); 3]);
    for largest in [99.0, f32::NAN, f32::INFINITY] {
        assert_eq!(padded("logits", [0.0, largest, 0.0]), [Some(1); 3], "{largest}");
    }
    // Keys that do not exist.
    assert_eq!(padded("layers.1.probs", [0.0; 3]), [Some(0); 3]);
    assert_eq!(padded("layers.1.probs", [0.0, 0.3, 0.0]), [Some(1); 3]);
    assert_eq!(padded("layers.1.scores", [f32::NEG_INFINITY; 3]), [Some(0); 3]);
}

#[test]
fn a_mask_hides_no_token_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.*.h,final_norm,logits");
    let garbage = |_: &str, (shape, mut values): Shaped| {
        let width = values.len() / shape[0];
        values[8 * width..].fill(7.0);
        (shape, values)
    };
    let mask = [[1; 8].as_slice(), &[0; 3]].concat();
    let hidden = other(&right, "hidden", garbage, &[("attention_mask", json!(mask))]);
    assert_eq!(codes(&right, &hidden), [Some(2); 3]);
    // Padding behind the tokens is padding.
    let padded = |_: &str, (mut shape, mut values): Shaped| {
        let width = values.len() / shape[0];
        values.extend(vec![7.0; 3 * width]);
        shape[0] += 3;
        (shape, values)
    };
    let (ids, mask) = ([TOKENS.as_slice(), &[0; 3]].concat(), [[1; 11].as_slice(), &[0; 3]].concat());
    let words = [("tokens", json!(ids)), ("attention_mask", json!(mask))];
    assert_eq!(codes(&right, &other(&right, "padded", padded, &words)), [Some(0); 3]);
}

/// All tokens in one pass, including those that the reference decoded: all are recorded, and none is padding.
#[test]
fn rows_of_named_tokens_are_no_padding() {
    let folder = tempfile::tempdir().unwrap();
    let golden = fixtures().join("golden/llama-torch");
    let meta = Dump::open(&golden).unwrap().meta().clone();
    let (prompt, decoded) = (meta.tokens.unwrap(), meta.decode_tokens.unwrap());
    let ids: Vec<String> = prompt.iter().chain(&decoded).map(i64::to_string).collect();
    let all = folder.path().join("all");
    let args =
        ["dump", MODEL, "-o", &all.to_string_lossy(), "--tokens", &ids.join(","), "--taps", "h0,layers.*.h,logits"];
    assert_eq!(firstdiff(&args).status.code(), Some(0));
    let words = [("tokens", json!(prompt)), ("decode_tokens", json!(decoded))];
    assert_eq!(codes(&golden, &other(&all, "right", |_, tensor| tensor, &words)), [Some(0); 3]);
    let garbage = |tap: &str, (shape, mut values): Shaped| {
        let width = values.len() / shape[0];
        let from = if tap == "h0" { values.len() } else { prompt.len() * width };
        values[from..].iter_mut().enumerate().for_each(|(i, x)| *x = (i % 7) as f32 - 3.0);
        (shape, values)
    };
    let codes = codes(&golden, &other(&all, "garbage", garbage, &words));
    assert!(codes.iter().all(|code| *code != Some(0)), "{codes:?}");
}

/// Grouped heads are one axis more, and not a batch of as many sequences as tokens.
#[test]
fn heads_in_groups_are_no_batch() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.*.q,layers.*.q_rope,layers.*.k_rope,layers.*.h,logits");
    let grouped = |tap: &str, (shape, values): Shaped| match (tap.split('.').next_back(), &shape[..]) {
        (Some("q" | "q_rope"), &[t, heads, d]) => (vec![t, 2, heads / 2, d], values),
        (Some("h"), &[t, width]) => (vec![t, width, 1], values),
        _ => (shape, values),
    };
    assert_eq!(codes(&right, &other(&right, "grouped", grouped, &[])), [Some(0); 3]);
}

#[test]
fn rows_that_a_file_contradicts_and_a_number_in_the_place_of_rows_are_no_parity() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.*.h,final_norm,logits");
    for rows in [json!([]), json!("last")] {
        let own = other(&right, "own", |_, tensor| tensor, &[]);
        let path = own.join("dump.json");
        let mut meta: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
        let taps = meta["taps"].as_array_mut().unwrap();
        taps.iter_mut().find(|tap| tap["tap"] == "layers.0.h").unwrap()["rows"] = rows.clone();
        fs::write(&path, meta.to_string()).unwrap();
        let codes = codes(&right, &own);
        assert!(codes.iter().all(|code| *code == Some(2)), "{rows}: {codes:?}");
    }
    let own = other(&right, "scalar", |_, tensor| tensor, &[]);
    fs::remove_file(own.join("dump.json")).unwrap();
    let header = format!("{:<117}\n", "{'descr': '<f4', 'fortran_order': False, 'shape': (), }");
    fs::write(own.join("h0.npy"), [b"\x93NUMPY\x01\x00v\x00", header.as_bytes(), &1f32.to_le_bytes()].concat())
        .unwrap();
    let codes = codes(&right, &own);
    assert!(codes.iter().all(|code| matches!(code, Some(0..=2))), "{codes:?}");
}

#[test]
fn one_share_of_a_sum_is_no_parity() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.*.h,final_norm,logits");
    let off = |tap: &str, (shape, mut values): Shaped| {
        values.iter_mut().filter(|_| tap == "layers.0.h").for_each(|x| *x += 1.0);
        (shape, values)
    };
    let words = [("dims", json!({"layers.0.h": "T D partial"}))];
    assert_eq!(codes(&right, &other(&right, "share", off, &words)), [Some(2); 3]);
}

#[test]
fn ids_that_h0_contradicts_make_no_other_prompt() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.*.h,final_norm,logits");
    let twice = |is_right: bool| {
        move |tap: &str, (shape, values): Shaped| {
            let second: Vec<f32> = values.iter().map(|x| if is_right || tap == "h0" { *x } else { 7.0 - x }).collect();
            ([&[2], &shape[..]].concat(), [values, second].concat())
        }
    };
    let code = |own: PathBuf| firstdiff(&["compare", &right.to_string_lossy(), &own.to_string_lossy()]).status.code();
    let of = |second: [i64; 11]| [("tokens", json!([TOKENS, second]))];
    assert_eq!(code(other(&right, "same", twice(true), &of(TOKENS))), Some(0));
    assert_eq!(code(other(&right, "other", twice(false), &of([9; 11]))), Some(2));
}

#[test]
fn no_output_is_written_over_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,logits");
    let second = other(&right, "second", |_, tensor| tensor, &[]);
    let weights = folder.path().join("weights");
    fs::create_dir(&weights).unwrap();
    let program = fixtures().join("programs/attention");
    fs::copy(program.join("model.safetensors"), weights.join("model.safetensors")).unwrap();
    let [right, noise, logits, weights, file] =
        [&right, &second, &second.join("logits.npy"), &weights, &weights.join("model.safetensors")]
            .map(|path| path.to_string_lossy().into_owned());
    let before = [&logits, &file].map(|path| fs::read(path).unwrap());
    refused(
        &firstdiff(&["compare", &right, &right, "--noise", &noise, "--json", &logits]),
        &["is read by this command"],
    );
    let [golden, own] = ["golden", "fused.npz"].map(|name| program.join(name).to_string_lossy().into_owned());
    for command in ["replay", "explain"] {
        for flag in ["--json", "--html"] {
            let output = firstdiff(&[command, &golden, &own, "--weights", &weights, flag, &file]);
            refused(&output, &["is read by this command"]);
        }
    }
    assert_eq!([&logits, &file].map(|path| fs::read(path).unwrap()), before);
}

/// A narrow cache is something that an engine may have, but need not.
#[test]
fn a_cache_that_is_told_excuses_and_demands_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let program = fixtures().join("programs/attention");
    let golden = program.join("golden");
    let own = folder.path().join("own");
    fs::create_dir(&own).unwrap();
    for file in fs::read_dir(&golden).unwrap().map(|file| file.unwrap()) {
        if !file.file_name().to_string_lossy().starts_with("program") {
            fs::copy(file.path(), own.join(file.file_name())).unwrap();
        }
    }
    let [program, golden, own] = [&program, &golden, &own].map(|path| path.to_string_lossy().into_owned());
    let weights: &[&str] = &["--weights", &program];
    for (command, more) in [("compare", &[][..]), ("replay", weights), ("explain", weights)] {
        let output = firstdiff(&[&[command, &golden, &own, "--cache", "f16"], more].concat());
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
    }
    let text = in_one_line(&String::from_utf8_lossy(&firstdiff(&["compare", &golden, &own, "--cache", "f16"]).stdout));
    assert!(text.contains("a K/V cache in f16 is told, and left out"), "{text}");
}

/// Whole numbers are always numbers of bf16, which shows nothing.
#[test]
fn sixteen_bits_are_seen_by_their_last_digit() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, with: &dyn Fn(usize) -> f32| {
        let path = folder.path().join(name);
        let recorder = Recorder::create(&path).unwrap();
        recorder.tokens(&TOKENS);
        let values: Vec<f32> = (0..11 * 40).map(with).collect();
        recorder.record("logits".parse::<firstdiff_trace::Tap>().unwrap(), &[11, 40], &values).unwrap();
        recorder.finish().unwrap();
        path.to_string_lossy().into_owned()
    };
    let whole = |at: usize| (at * 7919 % 211) as f32;
    let off = |at: usize| whole(at) + f32::from(u8::from(at / 40 == 4));
    let output = firstdiff(&["compare", &of("ref", &whole), &of("cand", &off)]);
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stdout));
    // Values rounded to bf16 are recognised as bf16.
    let exact = |at: usize| ((at * 7919 % 211) as f32 - 100.3) / 17.0;
    let rounded =
        |at: usize| f32::from_bits((exact(at).to_bits() + 0x7fff + (exact(at).to_bits() >> 16 & 1)) & !0xffff);
    let output = firstdiff(&["compare", &of("exact", &exact), &of("rounded", &rounded)]);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stdout));
}

/// A 16-bit engine keeps a tap or two in f32, such as a state; an f32 engine has at most a layer in 16 bits.
#[test]
fn sixteen_bits_are_of_half_of_the_taps() {
    let folder = tempfile::tempdir().unwrap();
    let write = |name: &str, exact_taps: usize, rounds: bool| {
        let path = folder.path().join(name);
        let recorder = Recorder::create(&path).unwrap();
        recorder.tokens(&TOKENS);
        for tap in 0..8 {
            let value = |at: usize| ((at * 7919 % 211 + tap) as f32 - 100.3) / 17.0;
            let rounded = |at: usize| half::bf16::from_f32(value(at)).to_f32();
            let values: Vec<f32> =
                (0..11 * 40).map(|at| if rounds && tap >= exact_taps { rounded(at) } else { value(at) }).collect();
            recorder.record(format!("layers.{tap}.h"), &[11, 40], &values).unwrap();
        }
        recorder.finish().unwrap();
        path.to_string_lossy().into_owned()
    };
    let reference = write("ref", 0, false);
    for (exact_taps, code) in [(0, 0), (3, 0), (4, 0), (5, 1), (6, 1)] {
        let output = firstdiff(&["compare", &reference, &write(&format!("cand{exact_taps}"), exact_taps, true)]);
        assert_eq!(output.status.code(), Some(code), "{exact_taps}: {}", String::from_utf8_lossy(&output.stdout));
    }
}

/// An engine's recording of attention in the first layer of a recorded program, with changed scores: `probs` are their softmax, except in rows without a key.
fn masked(folder: &Path, hides: fn(usize, usize) -> bool, without_a_key: f32) -> Value {
    let program = fixtures().join("programs/attention");
    let golden = Dump::open(program.join("golden")).unwrap();
    let recorder = Recorder::create(folder).unwrap();
    let ids = golden.meta().tokens.clone().unwrap();
    recorder.tokens(&ids);
    let count = ids.len();
    let read =
        |tap: &str| golden.find(tap.parse().unwrap(), 0).map(|entry| (entry.clone(), golden.read(entry).unwrap()));
    for tap in ["h0", "layers.0.q_rope", "layers.0.k_rope", "layers.0.qk", "layers.0.v"] {
        let Some((entry, tensor)) = read(tap) else { continue };
        let values: Vec<f32> = tensor.values().to_f64().iter().map(|&x| x as f32).collect();
        recorder.record(entry.tap, &entry.shape, &values).unwrap();
    }
    let (entry, tensor) = read("layers.0.scores").unwrap();
    let of = |(at, score): (usize, &f64)| if hides(at / count % count, at % count) { f32::MIN } else { *score as f32 };
    let scores: Vec<f32> = tensor.values().to_f64().iter().enumerate().map(of).collect();
    let softmax = |row: &[f32]| {
        let most = row.iter().copied().fold(f32::MIN, f32::max);
        let sum: f32 = row.iter().map(|score| (score - most).exp()).sum();
        let of = |score: &f32| if most == f32::MIN { without_a_key } else { (score - most).exp() / sum };
        row.iter().map(of).collect::<Vec<f32>>()
    };
    let probs: Vec<f32> = scores.chunks(count).flat_map(softmax).collect();
    recorder.record(entry.tap, &entry.shape, &scores).unwrap();
    recorder.record("layers.0.probs".parse::<firstdiff_trace::Tap>().unwrap(), &entry.shape, &probs).unwrap();
    recorder.finish().unwrap();
    let [golden, weights, own] =
        [&program.join("golden"), &program, folder].map(|path| path.to_string_lossy().into_owned());
    crate::common::json(&["explain", &golden, &own, "--weights", &weights, "--seconds", "2", "--faults", "1"])
}

#[test]
fn masks_are_of_keys_and_rows_without_one_have_no_right_probabilities() {
    let folder = tempfile::tempdir().unwrap();
    let of = |name: &str, hides: fn(usize, usize) -> bool, without: f32| {
        let report = masked(&folder.path().join(name), hides, without);
        let findings = report["findings"].as_array().unwrap().clone();
        let taps: Vec<Value> = findings.iter().map(|finding| finding["taps"].clone()).collect();
        assert_eq!(taps, [json!(["layers.0.scores"])], "{report:#}");
        findings[0]["measured"]["words"].as_str().unwrap_or_default().to_owned()
    };
    let behind = of("behind", |query, key| key > query || key >= 4, 0.0);
    assert!(behind.contains("before position 4"), "{behind}");
    // The first two rows have no key: an engine leaves 0 there, or equal numbers.
    for (name, without) in [("zeros", 0.0), ("equal", 0.1)] {
        let in_front = of(name, |query, key| key > query || key < 2, without);
        assert!(in_front.contains("position 2"), "{in_front}");
    }
}

/// Rows that neither ids nor other taps explain, though another row of the tap agrees.
#[test]
fn rows_of_one_tap_alone_are_no_padding() {
    let folder = tempfile::tempdir().unwrap();
    let right = right(folder.path(), "h0,layers.*.ffn_up,layers.*.h,final_norm,logits");
    let noise = |count: usize| (0..count).map(|i| (i * 37 % 101) as f32 / 25.0 - 2.0).collect::<Vec<_>>();
    let of_two = |tap: &str, (shape, values): Shaped| match tap {
        "logits" => ([&[2], &shape[..]].concat(), [values.clone(), noise(values.len())].concat()),
        _ => (shape, values),
    };
    assert_eq!(codes(&right, &other(&right, "two", of_two, &[])), [Some(2); 3]);
    // All taps of a prompt, in a longer buffer.
    let padded = |_: &str, (mut shape, mut values): Shaped| {
        values.extend(noise(3 * values.len() / shape[0]));
        shape[0] += 3;
        (shape, values)
    };
    assert_eq!(codes(&right, &other(&right, "padded", padded, &[])), [Some(0); 3]);
}

/// A prompt and three decode steps of our own run, with other tensors.
fn decoded(folder: &Path, name: &str, tensor: impl Fn(&str, u32, Shaped) -> Shaped) -> [Option<i32>; 3] {
    let golden = fixtures().join("golden/llama-torch");
    let dump = Dump::open(&golden).unwrap();
    let to = folder.join(name);
    let _ = fs::remove_dir_all(&to);
    let recorder = Recorder::create(&to).unwrap();
    recorder.tokens(dump.meta().tokens.as_ref().unwrap());
    for (step, token) in (0..).zip(std::iter::once(&0).chain(dump.meta().decode_tokens.as_ref().unwrap())) {
        if step > 0 {
            recorder.next_step(*token);
        }
        let here = dump.entries().iter().filter(|e| e.step == step);
        for entry in here.filter(|e| matches!(e.tap.site.name(), "h0" | "v" | "k_rope" | "logits")) {
            let values = dump.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect();
            let (shape, values) = tensor(&entry.tap.to_string(), step, (entry.shape.clone(), values));
            recorder.record(entry.tap, &shape, &values).unwrap();
        }
    }
    recorder.finish().unwrap();
    codes(&golden, &to)
}

#[test]
fn rows_beside_a_decode_steps_own_are_no_padding_and_a_cache_keeps_what_was_written() {
    let folder = tempfile::tempdir().unwrap();
    assert_eq!(decoded(folder.path(), "right", |_, _, tensor| tensor), [Some(0); 3]);
    for before in [false, true] {
        let beside = |tap: &str, step: u32, (mut shape, values): Shaped| {
            if tap != "logits" || step == 0 {
                return (shape, values);
            }
            shape[0] += 1;
            let other = values.iter().rev().copied().collect();
            (shape, if before { [other, values] } else { [values, other] }.concat())
        };
        let codes = decoded(folder.path(), "beside", beside);
        assert!(codes.iter().all(|code| *code == Some(2)), "{before}: {codes:?}");
    }
    // Keys and values of all positions so far in every step.
    let golden = &Dump::open(fixtures().join("golden/llama-torch")).unwrap();
    let cached = |overwritten: bool| {
        move |tap: &str, step: u32, (mut shape, values): Shaped| {
            if !(tap.ends_with(".v") || tap.ends_with(".k_rope")) {
                return (shape, values);
            }
            let rows = (0..step).flat_map(|step| {
                let entry = golden.entries().iter().find(|e| e.tap.to_string() == tap && e.step == step).unwrap();
                golden.read(entry).unwrap().values().to_f64().iter().map(|&x| x as f32).collect::<Vec<_>>()
            });
            let mut all: Vec<f32> = rows.chain(values).collect();
            let width = shape[1] * shape[2];
            shape[0] = all.len() / width;
            if overwritten && step > 0 {
                all.copy_within(11 * width..12 * width, 3 * width);
            }
            (shape, all)
        }
    };
    let codes = [false, true].map(|overwritten| decoded(folder.path(), "cache", cached(overwritten)));
    assert_eq!(codes[0], [Some(0); 3]);
    assert!(codes[1].iter().all(|code| *code != Some(0)), "{:?}", codes[1]);
}
