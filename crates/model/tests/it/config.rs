//! Checks that config.json is read as transformers 4.57 reads it. Expected values are facts of its configuration_*.py and modeling_*.py.

use crate::common::with_config;
use firstdiff_core::{Activation, RopeScaling};
use firstdiff_model::{Config, Op, Window, load};
use serde_json::{Value, json};

/// The config of the fixture `model` with keys replaced; `None` removes a key.
#[track_caller]
fn config(model: &str, edits: &[(&str, Option<Value>)]) -> Config {
    let folder = with_config(model, |config| {
        for (key, value) in edits {
            match value {
                Some(value) => drop(config.insert((*key).into(), value.clone())),
                None => drop(config.remove(*key)),
            }
        }
    });
    load(folder.path()).unwrap().config
}

#[test]
fn windows() {
    assert_eq!(config("mistral", &[]).window, Window::AllLayers(5));
    assert_eq!(config("mistral", &[("sliding_window", None)]).window, Window::AllLayers(4096));
    assert_eq!(config("mistral", &[("sliding_window", Some(Value::Null))]).window, Window::None);

    let on = ("use_sliding_window", Some(json!(true)));
    let size = ("sliding_window", Some(json!(4)));
    assert_eq!(config("qwen2", &[]).window, Window::None);
    assert_eq!(config("qwen2", &[("sliding_window", Some(json!(0)))]).window, Window::None, "unused, so not judged");
    let from = config("qwen3", &[on.clone(), size.clone(), ("max_window_layers", Some(json!(1)))]).window;
    assert_eq!((from.in_layer(0), from.in_layer(1)), (None, Some(4)));
    let types = ("layer_types", Some(json!(["sliding_attention", "full_attention"])));
    let listed = config("qwen2", &[on, size, types]).window;
    assert_eq!((listed.in_layer(0), listed.in_layer(1), listed.in_layer(2)), (Some(4), None, None));
}

#[test]
fn the_window_reaches_the_plan() {
    let model = load(crate::common::fixture("mistral")).unwrap();
    let windows = model.plan.steps.iter().filter_map(|step| match &step.op {
        Op::Scores(scores) => Some(scores.window),
        _ => None,
    });
    assert_eq!(windows.collect::<Vec<_>>(), [Some(5), Some(5)]);
}

#[test]
fn activations() {
    for (name, activation) in [
        ("silu", Activation::Silu),
        ("gelu", Activation::GeluErf),
        ("gelu_new", Activation::GeluTanh),
        ("gelu_pytorch_tanh", Activation::GeluTanh),
        ("relu", Activation::Relu),
    ] {
        assert_eq!(config("llama", &[("hidden_act", Some(json!(name)))]).activation, activation);
    }
    assert_eq!(config("qwen2", &[("hidden_act", None)]).activation, Activation::Silu);
}

#[test]
fn defaults() {
    let llama = config("llama", &[("rope_theta", None), ("rms_norm_eps", None), ("tie_word_embeddings", None)]);
    assert_eq!((llama.rope_theta, llama.rms_norm_eps, llama.tied), (1e4, 1e-6, false));
    let minimind = config("minimind", &[("rope_theta", None), ("rms_norm_eps", None), ("tie_word_embeddings", None)]);
    assert_eq!((minimind.rope_theta, minimind.rms_norm_eps, minimind.tied), (1e6, 1e-5, true));
    assert_eq!(config("minimind", &[("num_key_value_heads", None)]).dims.kv_heads, 2);
    assert_eq!(config("qwen2", &[]).dims.head_dim, 8, "D/H");
}

#[test]
fn biases_and_norms() {
    let flags = |c: Config| (c.qkv_bias, c.attn_out_bias, c.mlp_bias, c.qk_norm);
    assert_eq!(flags(config("llama", &[])), (false, false, false, false));
    assert_eq!(flags(config("mistral", &[])), (false, false, false, false));
    assert_eq!(flags(config("qwen2", &[])), (true, false, false, false));
    assert_eq!(flags(config("qwen3", &[])), (false, false, false, true));
    assert_eq!(flags(config("minimind", &[])), (false, false, false, false));
}

fn scaling(value: Value) -> RopeScaling {
    config("llama", &[("rope_scaling", Some(value))]).rope_scaling
}

#[test]
fn rope_scalings() {
    assert_eq!(scaling(Value::Null), RopeScaling::None);
    assert_eq!(scaling(json!({"rope_type": "default"})), RopeScaling::None);
    let linear = RopeScaling::Linear { factor: 2.5 };
    assert_eq!(scaling(json!({"type": "linear", "factor": 2.5})), linear);
    assert_eq!(scaling(json!({"rope_type": "linear", "type": "linear", "factor": 2.5})), linear);
    // transformers 5 stores the base beside the scaling.
    let newer = json!({"rope_type": "linear", "factor": 2.5, "rope_theta": 7.0});
    let newer = config("llama", &[("rope_theta", None), ("rope_scaling", None), ("rope_parameters", Some(newer))]);
    assert_eq!((newer.rope_theta, newer.rope_scaling), (7.0, linear));
}

#[test]
fn yarn_defaults() {
    let yarn = RopeScaling::Yarn {
        factor: 4.0,
        original_max_position: 512.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: None,
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    };
    assert_eq!(scaling(json!({"rope_type": "yarn", "factor": 4})), yarn);
    assert_eq!(scaling(json!({"type": "yarn", "factor": 4, "beta_fast": 0, "beta_slow": null})), yarn, "0 is no value");
}

#[test]
fn minimind_scales_by_constants_of_its_own() {
    let on = ("inference_rope_scaling", Some(json!(true)));
    let long = ("max_position_embeddings", Some(json!(32768)));
    let yarn = config("minimind", &[on.clone(), long]).rope_scaling;
    let expected = RopeScaling::Yarn {
        factor: 16.0,
        original_max_position: 2048.0,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.0),
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    };
    assert_eq!(yarn, expected);
    assert_eq!(config("minimind", &[on]).rope_scaling, RopeScaling::None, "512 positions need no scaling");
}
