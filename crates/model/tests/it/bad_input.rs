//! Checks that damaged models give an error of one line with file and reason, and never a panic.

use std::fs;
use std::path::Path;

use crate::common::{copy, refusal, run_briefly, with_config};
use firstdiff_model::{ModelError, Profile, Prompt, load, run};
use proptest::prelude::*;
use serde_json::{Value, json};

#[track_caller]
fn config_refused(model: &str, key: &str, value: Value, reason: &str) {
    let folder = with_config(model, |config| drop(config.insert(key.into(), value)));
    let message = refusal(folder.path());
    assert!(message.contains(reason), "{message}");
    assert!(message.contains("config.json") || message.contains(".safetensors"), "{message}");
}

#[test]
fn absurd_configs() {
    for key in ["hidden_size", "num_attention_heads", "num_key_value_heads", "num_hidden_layers", "vocab_size"] {
        for value in [json!(0), json!(-1), json!(2.5), json!("48"), json!([]), json!(1e300), json!(true)] {
            config_refused("llama", key, value, &format!("config.json: {key}: "));
        }
    }
    config_refused("llama", "num_hidden_layers", json!(1_000_000_000), "num_hidden_layers");
    config_refused("llama", "num_hidden_layers", json!(u64::MAX), "num_hidden_layers");
    config_refused("llama", "num_attention_heads", json!(1u64 << 62), "hidden_size: ");
    config_refused("llama", "vocab_size", json!(u64::MAX), "more than memory can hold");
    config_refused("llama", "head_dim", json!(15), "head_dim: 15 is odd");
    config_refused("llama", "num_key_value_heads", json!(4), "4 key/value heads do not divide 6 heads");
    config_refused("qwen2", "hidden_size", json!(47), "do not divide hidden_size 47");
    config_refused("llama", "rms_norm_eps", json!(-1e-5), "rms_norm_eps: -0.00001 is not a number of at least 0");
    config_refused("llama", "rope_theta", json!(0), "rope_theta");
    config_refused("llama", "hidden_act", json!("mish"), "'mish' is not supported");
    config_refused("llama", "model_type", json!("gpt2"), "'gpt2' is not one of llama, mistral, qwen2, qwen3, minimind");
    config_refused("llama", "model_type", Value::Null, "model_type: is absent");
    config_refused("llama", "partial_rotary_factor", json!(0.5), "partial_rotary_factor");
    config_refused("mistral", "sliding_window", json!(0), "sliding_window");
    config_refused("qwen2", "layer_types", json!(["full_attention"]), "has 1 entries for 2 layers");
    config_refused("qwen2", "layer_types", json!(["full_attention", "linear_attention"]), "'linear_attention'");
    config_refused("qwen2", "layer_types", json!(["full_attention", "sliding_attention"]), "use_sliding_window");
    config_refused("minimind", "use_moe", json!(true), "use_moe: mixtures of experts");
}

#[test]
fn rope_scalings_that_are_not_known() {
    let refused = |scaling, reason| config_refused("llama", "rope_scaling", scaling, reason);
    refused(json!({"rope_type": "dynamic", "factor": 2.0}), "rope_scaling.rope_type: 'dynamic' is not supported");
    refused(json!({"type": "longrope", "factor": 2.0}), "'longrope' is not supported");
    refused(json!({"factor": 2.0}), "rope_scaling.rope_type: is absent");
    refused(json!({"type": "linear"}), "rope_scaling.factor: is absent");
    refused(json!({"type": "linear", "factor": 0}), "rope_scaling.factor: 0 is not a number above 0");
    refused(json!({"type": "linear", "rope_type": "yarn", "factor": 2}), "'linear' contradicts rope_type 'yarn'");
    refused(json!({"rope_type": "yarn"}), "rope_scaling.factor: is absent");
    refused(json!("linear"), "rope_scaling: \"linear\" is not an object");
}

#[test]
fn configs_that_contradict_their_weights() {
    let refused = |model, key, value, reason| config_refused(model, key, value, reason);
    refused(
        "llama",
        "vocab_size",
        json!(150),
        "tensor model.embed_tokens.weight has shape [151, 48], and the config asks for [150, 48]",
    );
    refused("llama", "num_hidden_layers", json!(3), "tensor model.layers.2.input_layernorm.weight is absent");
    refused("llama", "attention_bias", json!(true), "model.layers.0.self_attn.q_proj.bias is absent");
    refused(
        "llama",
        "num_key_value_heads",
        json!(3),
        "k_proj.weight has shape [32, 48], and the config asks for [48, 48]",
    );
    refused("llama", "model_type", json!("qwen3"), "q_norm.weight is absent");
    refused("mistral", "intermediate_size", json!(81), "has shape [80, 48], and the config asks for [81, 48]");
    refused("qwen2", "tie_word_embeddings", json!(false), "lm_head.weight is absent");
}

#[test]
fn what_the_plan_leaves_unread_is_told() {
    let folder = with_config("llama", |config| drop(config.insert("num_hidden_layers".into(), json!(1))));
    let model = load(folder.path()).unwrap();
    assert_eq!(model.unread.len(), 9);
    assert!(model.unread.iter().all(|name| name.starts_with("model.layers.1.")));
}

#[test]
fn files_that_are_absent_or_no_files() {
    let folder = copy("llama");
    assert!(refusal(Path::new("no/such/folder")).contains("no/such/folder: No such file"));
    fs::remove_file(folder.path().join("model.safetensors")).unwrap();
    assert!(refusal(folder.path()).contains("holds neither model.safetensors nor model.safetensors.index.json"));
    assert!(refusal(&folder.path().join("config.json")).contains("config.json: is no MiniMind JSON"));
    fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert!(refusal(folder.path()).contains("no regular file"));
    fs::remove_dir(folder.path().join("model.safetensors")).unwrap();
    fs::write(folder.path().join("model.safetensors"), "").unwrap();
    assert!(refusal(folder.path()).contains("is empty"));
    fs::write(folder.path().join("config.json"), b"{\"model_type\": \"\xff\"}").unwrap();
    assert!(refusal(folder.path()).contains("config.json"));
}

/// Replaces the header of a .safetensors file.
fn with_header(folder: &Path, edit: impl FnOnce(String) -> String) {
    let path = folder.join("model.safetensors");
    let bytes = fs::read(&path).unwrap();
    let data = 8 + u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header = edit(String::from_utf8(bytes[8..data].to_vec()).unwrap()).into_bytes();
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header);
    out.extend(&bytes[data..]);
    fs::write(path, out).unwrap();
}

#[track_caller]
fn header_refused(edit: impl FnOnce(String) -> String, reason: &str) {
    let folder = copy("llama");
    with_header(folder.path(), edit);
    let message = refusal(folder.path());
    assert!(message.contains("model.safetensors") && message.contains(reason), "{message}");
}

#[test]
fn headers_that_lie() {
    let norm = r#""model.norm.weight":{"dtype":"F32","shape":[48]"#;
    header_refused(
        |h| h.replace(norm, &norm.replace("F32", "U32")),
        "tensor model.norm.weight: U32 is no element type that is read",
    );
    header_refused(|h| h.replace(norm, &norm.replace("48", "4611686018427387905")), "overflow");
    header_refused(|h| h.replace(norm, &norm.replace("48", "49")), "invalid shape");
    header_refused(|h| h.replacen("{\"dtype\"", "{\"dtypo\"", 1), "JSON");
    header_refused(|h| h.replace("F32", "F33"), "F33");
    // A duplicate tensor with the same bytes passes the check of the offsets.
    let twice = |h: String| {
        let start = h.find("\"model.norm.weight\"").unwrap();
        let end = start + h[start..].find('}').unwrap() + 1;
        format!("{{{},{}", &h[start..end], &h[1..])
    };
    header_refused(twice, "tensor model.norm.weight is there twice");
}

#[track_caller]
fn index_refused(edit: impl FnOnce(&mut serde_json::Map<String, Value>), reason: &str) {
    let folder = copy("mistral");
    let path = folder.path().join("model.safetensors.index.json");
    let mut index: Value = serde_json::from_slice(&fs::read(&path).unwrap()).unwrap();
    edit(index["weight_map"].as_object_mut().unwrap());
    fs::write(path, index.to_string()).unwrap();
    let message = refusal(folder.path());
    assert!(message.contains(reason), "{message}");
}

#[test]
fn indices_that_lie() {
    const NORM: &str = "model.norm.weight";
    for climbing in [
        "../model-00001-of-00002.safetensors",
        "/etc/passwd",
        "a/b",
        "..",
        ".",
        "",
        "C:x",
        "a\\b",
        "./x",
        "x\u{0}y",
        "x/",
    ] {
        index_refused(|map| drop(map.insert(NORM.into(), json!(climbing))), "no plain file name");
    }
    index_refused(|map| drop(map.insert(NORM.into(), json!(7))), "model.safetensors.index.json");
    index_refused(|map| map.clear(), "weight_map is empty");
    index_refused(
        |map| drop(map.insert(NORM.into(), json!("model-00003-of-00002.safetensors"))),
        "model-00003-of-00002.safetensors",
    );
    index_refused(
        |map| drop(map.insert("extra".into(), json!("model-00001-of-00002.safetensors"))),
        "tensor extra: model.safetensors.index.json places it in model-00001-of-00002.safetensors",
    );
}

#[test]
fn a_tensor_in_two_shards_is_refused() {
    let folder = copy("mistral");
    let first = folder.path().join("model-00001-of-00002.safetensors");
    fs::copy(first, folder.path().join("third.safetensors")).unwrap();
    let path = folder.path().join("model.safetensors.index.json");
    let index = fs::read_to_string(&path).unwrap().replacen("model-00001-of-00002", "third", 1);
    fs::write(path, index).unwrap();
    let message = refusal(folder.path());
    assert!(message.contains("third.safetensors: tensor") && message.contains("also in"), "{message}");
}

#[test]
fn tokens_outside_the_vocabulary() {
    let model = load(crate::common::fixture("qwen2")).unwrap();
    let run = |tokens: &[u32], decode_tokens: &[u32]| {
        let prompt = Prompt { tokens, decode_tokens };
        run::<ModelError>(&model.plan, &model.weights, prompt, Profile::Exact, |_| true, |_, _, _| Ok(()))
    };
    assert!(run(&[150], &[]).is_ok());
    let message = run(&[1, 151], &[]).unwrap_err().to_string();
    assert_eq!(message, "token 151 (number 1) is outside the vocabulary of 151");
    assert!(matches!(run(&[1], &[2, u32::MAX]), Err(ModelError::Token { index: 2, .. })));
    assert!(matches!(run(&[], &[1]), Err(ModelError::NoTokens)));
}

/// Loads a copy of `model` with a changed `file`; if it still loads, it must run.
fn survives(model: &str, file: &str, change: impl FnOnce(&mut Vec<u8>)) {
    let folder = copy(model);
    let path = folder.path().join(file);
    let mut bytes = fs::read(&path).unwrap();
    change(&mut bytes);
    fs::write(&path, bytes).unwrap();
    match load(folder.path()) {
        Ok(model) => run_briefly(&model).unwrap(),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}

const FILES: [(&str, &str); 5] = [
    ("llama", "config.json"),
    ("qwen3", "config.json"),
    ("minimind", "model.safetensors"),
    ("mistral", "model-00002-of-00002.safetensors"),
    ("mistral", "model.safetensors.index.json"),
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_bytes(which in 0..FILES.len(), edits in prop::collection::vec((0usize..4096, any::<u8>()), 1..4)) {
        let (model, file) = FILES[which];
        survives(model, file, |bytes| {
            for (at, byte) in edits {
                let at = at % bytes.len();
                bytes[at] = byte;
            }
        });
    }

    #[test]
    fn digits_for_digits(which in 0..FILES.len(), at in 0usize..4096, digit in b'0'..=b'9') {
        let (model, file) = FILES[which];
        survives(model, file, |bytes| {
            let digits: Vec<usize> = (0..bytes.len().min(4096)).filter(|&i| bytes[i].is_ascii_digit()).collect();
            bytes[digits[at % digits.len()]] = digit;
        });
    }

    #[test]
    fn truncations(which in 0..FILES.len(), part in 0f64..1.0, early in any::<bool>()) {
        let (model, file) = FILES[which];
        survives(model, file, |bytes| {
            let length = if early { bytes.len().min(4096) } else { bytes.len() };
            bytes.truncate((part * length as f64) as usize);
        });
    }
}
