//! Checks that a few numbers prove nothing that chance gives as well: one factor fits any single number.

use std::path::Path;

use serde_json::{Value, json};

use crate::common::{firstdiff, fixtures, in_one_line, json};

const FORGETTING: &str = "programs/forgetting";

/// The values of a .npy of f32.
pub(crate) fn values(path: &Path) -> Vec<f32> {
    let npy = std::fs::read(path).unwrap();
    let begin = 10 + usize::from(u16::from_le_bytes([npy[8], npy[9]]));
    npy[begin..].chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect()
}

fn write(path: &Path, shape: [usize; 2], values: &[f32]) {
    let header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", shape[0], shape[1]);
    let mut npy = b"\x93NUMPY\x01\x00\x76\x00".to_vec();
    npy.extend(format!("{header:<117}\n").bytes());
    npy.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    std::fs::write(path, npy).unwrap();
}

/// Meaningless numbers between -1 and 1.
fn noise(seed: usize) -> impl Iterator<Item = f32> {
    let mut state = seed as u64;
    std::iter::repeat_with(move || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u32 << 23) as f32 - 1.0
    })
}

/// Mistakes with a free number, and some without.
const SOME: &str = "logit-scale,logit-softcap,embed-multiplier,embed-scale,residual-scale,result-scaled,number-differs,norm-eps,norm-width,norm-omitted,weight-transposed,tokens-differ";

/// The recorded program with only the first `n` logits of the last position, which in the candidate are `candidate`.
fn explained(n: usize, candidate: &[f32], only: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let golden = folder.path().join("golden");
    std::fs::create_dir(&golden).unwrap();
    let from = fixtures().join(FORGETTING).join("golden");
    for file in std::fs::read_dir(&from).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), golden.join(file.file_name())).unwrap();
    }
    let read = |name: &str| serde_json::from_slice::<Value>(&std::fs::read(from.join(name)).unwrap()).unwrap();
    let (mut program, mut dump) = (read("program.json"), read("dump.json"));
    let tap = program["taps"].as_array_mut().unwrap().iter_mut().find(|tap| tap["tap"] == "logits").unwrap();
    let buffer = tap["v"]["v"][0].clone();
    tap["v"]["v"] = json!([buffer, [1, n], [50, 1], 450]);
    let tap = dump["taps"].as_array_mut().unwrap().iter_mut().find(|tap| tap["tap"] == "logits").unwrap();
    tap["shape"] = json!([1, n]);
    std::fs::write(golden.join("program.json"), program.to_string()).unwrap();
    std::fs::write(golden.join("dump.json"), dump.to_string()).unwrap();
    write(&golden.join("logits.npy"), [1, n], &values(&from.join("logits.npy"))[450..450 + n]);
    let own = folder.path().join("candidate");
    std::fs::create_dir(&own).unwrap();
    write(&own.join("logits.npy"), [1, n], candidate);
    std::fs::write(own.join("dump.json"), json!({ "tokens": dump["tokens"] }).to_string()).unwrap();
    let [golden, own] = [golden, own].map(|path| path.to_string_lossy().into_owned());
    let weights = format!("{FORGETTING}/model.safetensors");
    json(&["explain", &golden, &own, "--weights", &weights, "--seconds", "0.5", "--only", only])
}

fn logits() -> Vec<f32> {
    values(&fixtures().join(FORGETTING).join("golden/logits.npy"))
}

#[test]
fn a_few_numbers_of_something_else_prove_no_cause() {
    let logits = logits();
    let row = &logits[450..];
    let size = (row.iter().map(|x| x * x).sum::<f32>() / 50.0).sqrt();
    for (seed, n) in [1, 2, 3, 6, 50].into_iter().enumerate() {
        let mut random = noise(seed);
        let candidates: [(&str, Vec<f32>); 5] = [
            ("another row", logits[150 + 50 * (seed % 4)..][..n].to_vec()),
            ("other columns", row.iter().cycle().skip(7).take(n).copied().collect()),
            ("noise", random.by_ref().take(n).map(|x| 1.7 * size * x).collect()),
            ("noise beside it", row[..n].iter().zip(&mut random).map(|(x, noise)| x * (1.0 + 0.3 * noise)).collect()),
            ("one sigmoid more", row[..n].iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect()),
        ];
        for (what, candidate) in candidates {
            // Two numbers with all their digits are enough evidence for a function without a free number.
            if what == "one sigmoid more" && n > 1 {
                continue;
            }
            let report = explained(n, &candidate, SOME);
            assert_eq!(report["verdict"], "diverged", "{what}, {n}");
            for finding in report["findings"].as_array().expect("findings") {
                let is_open = finding["match"] == "closest" || finding["match"] == "unknown";
                assert!(is_open && finding["cause"].is_null(), "{what}, {n}: {finding:#}");
            }
        }
    }
}

#[test]
fn a_function_too_many_is_named_where_two_numbers_pay_for_it() {
    let logits = logits();
    let sigmoid = |x: &f32| 1.0 / (1.0 + (-x).exp());
    let exp: Vec<f32> = logits[450..].iter().map(|x| x.exp()).collect();
    let sum: f32 = exp.iter().sum();
    let functions: [(&str, Vec<f32>); 3] = [
        ("sigmoid", logits[450..].iter().map(sigmoid).collect()),
        ("tanh", logits[450..].iter().map(|x| x.tanh()).collect()),
        ("softmax", exp.iter().map(|x| x / sum).collect()),
    ];
    let all = format!("{SOME},result-activated");
    for (function, candidate) in functions {
        for n in [2, 50].into_iter().filter(|n| function != "softmax" || *n == 50) {
            let report = explained(n, &candidate[..n], &all);
            let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
            let named = (&finding["match"], &finding["cause"], &finding["params"]["function"]);
            assert_eq!(named, (&json!("reproduced"), &json!("result-activated"), &json!(function)), "{n}: {finding:#}");
        }
    }
    // One number fits it, as it fits much else: then nothing is stated, not even a law.
    let report = explained(1, &[sigmoid(&logits[450])], &all);
    let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
    let note = finding["note"].as_str().unwrap_or_default();
    assert!(
        finding["match"] == "closest" && finding["cause"].is_null() && finding["measured"].is_null(),
        "{finding:#}"
    );
    assert!(note.contains("but so would chance: 1 number carries"), "{note}");
}

#[test]
fn what_takes_less_than_half_away_is_no_cause() {
    let logits = logits();
    for size in [1e-2f32, 1e-4, 1e-5, 1e-6] {
        let off = |(x, noise): (&f32, f32)| x * (1.0 + size * (1.0 + 2.0 * noise));
        let candidate: Vec<f32> = logits[450..].iter().zip(noise(3)).map(off).collect();
        let report = explained(50, &candidate, SOME);
        assert_eq!(report["verdict"], "diverged", "{size}");
        for finding in report["findings"].as_array().expect("findings") {
            assert!(finding["cause"].is_null() && finding["measured"].is_null(), "{size}: {finding:#}");
        }
    }
}

#[test]
fn what_is_not_proved_says_what_the_numbers_carry() {
    let report = explained(1, &[1.3 * logits()[450]], "logit-scale");
    let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
    assert_eq!(finding["match"], "closest", "{finding:#}");
    let note = finding["note"].as_str().unwrap_or_default();
    assert!(note.contains("but so would chance: 1 number carries 2"), "{note}");
    assert!(!finding["record_next"].as_array().expect("taps").is_empty(), "{finding:#}");
}

/// An epsilon of all norms shows in each of a row's numbers; one of the last norm in one number alone.
#[test]
fn a_row_of_logits_carries_what_is_made_in_the_layers() {
    let folder = tempfile::tempdir().unwrap();
    let model = folder.path().join("model");
    std::fs::create_dir(&model).unwrap();
    for file in std::fs::read_dir(fixtures().join("models/llama")).unwrap().map(Result::unwrap) {
        std::fs::copy(file.path(), model.join(file.file_name())).unwrap();
    }
    let config = model.join("config.json");
    let mut read: Value = serde_json::from_slice(&std::fs::read(&config).unwrap()).unwrap();
    read["rms_norm_eps"] = json!(0.002);
    std::fs::write(&config, read.to_string()).unwrap();
    let [out, model] = [folder.path().join("out"), model].map(|path| path.to_string_lossy().into_owned());
    let ids = "1,17,42,99,3,150,77,17,128,64";
    let made = firstdiff(&["dump", &model, "-o", &out, "--tokens", ids, "--taps", "logits"]);
    assert_eq!(made.status.code(), Some(0));
    let logits = values(&Path::new(&out).join("logits.npy"));
    let vocab = logits.len() / 10;
    let own = folder.path().join("own");
    std::fs::create_dir(&own).unwrap();
    write(&own.join("logits.npy"), [1, vocab], &logits[9 * vocab..]);
    let own = own.to_string_lossy().into_owned();
    let report = json(&[
        "explain",
        "models/llama",
        &own,
        "--rows",
        "last",
        "--tokens",
        ids,
        "--only",
        "norm-eps,norm-omitted,logit-scale",
        "--seconds",
        "20",
    ]);
    let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
    assert_eq!((&finding["cause"], &finding["params"]["eps"]), (&json!("norm-eps"), &json!(0.002)), "{finding:#}");
}

#[test]
fn a_cause_that_its_numbers_pay_for_is_proved() {
    let capped: Vec<f32> = logits()[450..].iter().map(|x| 3.0 * (x / 3.0).tanh()).collect();
    let report = explained(50, &capped, SOME);
    let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
    assert_eq!((&finding["match"], &finding["cause"]), (&json!("reproduced"), &json!("logit-softcap")), "{finding:#}");
}

/// A factor is one number of the row, however many logits it has: a norm of another width leaves such a row as well.
#[test]
fn a_factor_of_one_row_proves_no_cause() {
    let scaled: Vec<f32> = logits()[450..].iter().map(|x| 1.3 * x).collect();
    for only in [SOME, "embed-scale,logit-softcap,logit-scale", "logit-scale"] {
        let report = explained(50, &scaled, only);
        let [finding] = &report["findings"].as_array().expect("findings")[..] else { panic!("{report:#}") };
        assert_ne!(finding["match"], "reproduced", "{finding:#}");
    }
}

#[test]
fn a_factor_is_stated_of_numbers_that_pay_for_it() {
    let folder = tempfile::tempdir().unwrap();
    let compared = |n: usize| {
        let [a, b] = ["a", "b"].map(|name| folder.path().join(format!("{name}{n}")));
        for (path, by) in [(&a, 1.0), (&b, 1.3)] {
            std::fs::create_dir(path).unwrap();
            let values: Vec<f32> = noise(n).take(n).map(|x| by * x).collect();
            write(&path.join("logits.npy"), [1, n], &values);
        }
        let [a, b] = [a, b].map(|path| path.to_string_lossy().into_owned());
        let screen = String::from_utf8(firstdiff(&["compare", &a, &b]).stdout).unwrap();
        (json(&["compare", &a, &b])["first_divergence"]["anatomy"].clone(), in_one_line(&screen))
    };
    for n in [1, 2] {
        let (anatomy, screen) = compared(n);
        assert_eq!((&anatomy["factor"], &anatomy["explained_by"]), (&Value::Null, &json!([])), "{n}: {anatomy:#}");
        assert!(!screen.contains("leaves NMSE") && screen.contains("so would chance"), "{screen}");
    }
    let (anatomy, screen) = compared(64);
    assert!((anatomy["factor"]["factor"].as_f64().unwrap() - 1.3).abs() < 1e-6, "{anatomy:#}");
    assert!(screen.contains("1.300000 times the reference"), "{screen}");
}

/// Values 1.5 times too large: a norm of another width gives layer 1 as well, as a norm of the heads behind it takes a factor off again, and not layer 0.
#[test]
fn what_fails_in_another_layer_is_no_cause() {
    let folder = tempfile::tempdir().unwrap();
    let [model, out] = ["model", "out"].map(|name| folder.path().join(name));
    std::fs::create_dir(&model).unwrap();
    let right = fixtures().join("models/qwen3");
    std::fs::copy(right.join("config.json"), model.join("config.json")).unwrap();
    let mut file = std::fs::read(right.join("model.safetensors")).unwrap();
    let begin = 8 + u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    let head: Value = serde_json::from_slice(&file[8..begin]).unwrap();
    for (_, tensor) in head.as_object().unwrap().iter().filter(|(name, _)| name.ends_with("v_proj.weight")) {
        let [from, to] = [0, 1].map(|at| begin + tensor["data_offsets"][at].as_u64().unwrap() as usize);
        for x in file[from..to].chunks_exact_mut(4) {
            let other = 1.5 * f32::from_le_bytes((&*x).try_into().unwrap());
            x.copy_from_slice(&other.to_le_bytes());
        }
    }
    std::fs::write(model.join("model.safetensors"), file).unwrap();
    let [model, out] = [model, out].map(|path| path.to_string_lossy().into_owned());
    let taps = ["--taps", "h0,layers.*.attn_out", "--tokens", "1,17,42,99,3,150,77,18,128,64,5"];
    assert_eq!(firstdiff(&[&["dump", &model, "-o", &out], &taps[..]].concat()).status.code(), Some(0));
    let report = json(&["explain", "models/qwen3", &out, "--seconds", "2", "--faults", "1"]);
    let findings = report["findings"].as_array().expect("findings");
    // That the output is 1.5 times the right one is true of both.
    let is_a_factor = |finding: &Value| finding["cause"].is_null() || finding["cause"] == "result-scaled";
    assert!(!findings.is_empty() && findings.iter().all(is_a_factor), "{findings:#?}");
}
