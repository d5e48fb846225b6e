//! Lists the known model families, and how each reads its config.

use firstdiff_core::RopeScaling;

use crate::config::{self, Config, Defaults, Window};
use crate::error::ModelError;
use crate::keys::Keys;
use crate::plan::{Role, WeightRef};
use crate::weights::Weights;

/// A family, with the function that reads its config.
pub(crate) struct Family {
    /// `model_type` in config.json.
    pub(crate) name: &'static str,
    /// Reads the config. What the config does not give is inferred from the weights.
    pub(crate) read: fn(&Keys<'_>, &Weights) -> Result<Config, ModelError>,
}

/// Every family, by `model_type`.
pub(crate) const FAMILIES: &[Family] = &[
    Family { name: "llama", read: llama },
    Family { name: "mistral", read: mistral },
    Family { name: "qwen2", read: qwen2 },
    Family { name: "qwen3", read: qwen3 },
    Family { name: "minimind", read: minimind },
];

/// The defaults of LlamaConfig; other families list only what differs.
const LLAMA: Defaults = Defaults {
    vocab: 32000,
    hidden: 4096,
    ffn: 11008,
    layers: 32,
    heads: 32,
    kv_heads: None,
    head_dim: None,
    eps: 1e-6,
    theta: 10000.0,
    tied: false,
    positions: 2048,
};

const QWEN2: Defaults = Defaults { vocab: 151_936, ffn: 22016, kv_heads: Some(32), positions: 32768, ..LLAMA };

fn llama(keys: &Keys<'_>, _: &Weights) -> Result<Config, ModelError> {
    let mut config = config::read("llama", keys, &LLAMA)?;
    config.qkv_bias = keys.flag("attention_bias")?.unwrap_or(false);
    config.attn_out_bias = config.qkv_bias;
    config.mlp_bias = keys.flag("mlp_bias")?.unwrap_or(false);
    Ok(config)
}

fn mistral(keys: &Keys<'_>, _: &Weights) -> Result<Config, ModelError> {
    let defaults = Defaults { ffn: 14336, kv_heads: Some(8), positions: 4096 * 32, ..LLAMA };
    let mut config = config::read("mistral", keys, &defaults)?;
    config.window = match keys.count("sliding_window")? {
        Some(size) => Window::AllLayers(size),
        None if keys.has("sliding_window") => Window::None,
        None => Window::AllLayers(4096),
    };
    Ok(config)
}

fn qwen2(keys: &Keys<'_>, _: &Weights) -> Result<Config, ModelError> {
    let mut config = config::read("qwen2", keys, &QWEN2)?;
    config.qkv_bias = true;
    config.window = qwen_window(keys, &config)?;
    Ok(config)
}

fn qwen3(keys: &Keys<'_>, _: &Weights) -> Result<Config, ModelError> {
    let mut config = config::read("qwen3", keys, &Defaults { head_dim: Some(128), ..QWEN2 })?;
    config.qkv_bias = keys.flag("attention_bias")?.unwrap_or(false);
    config.attn_out_bias = config.qkv_bias;
    config.qk_norm = true;
    config.window = qwen_window(keys, &config)?;
    Ok(config)
}

/// Reads the window: none unless `use_sliding_window` is set; then in the layers of `layer_types`, or from `max_window_layers` on.
fn qwen_window(keys: &Keys<'_>, config: &Config) -> Result<Window, ModelError> {
    let size = if !keys.flag("use_sliding_window")?.unwrap_or(false) {
        None
    } else {
        match keys.count("sliding_window")? {
            None if keys.has("sliding_window") => None,
            size => Some(size.unwrap_or(4096)),
        }
    };
    let Some(types) = keys.texts("layer_types")? else {
        let layer = keys.index("max_window_layers")?.unwrap_or(28);
        return Ok(size.map_or(Window::None, |size| Window::FromLayer { layer, size }));
    };
    if types.len() != config.dims.layers as usize {
        let reason = format!("has {} entries for {} layers", types.len(), config.dims.layers);
        return Err(keys.error("layer_types", reason));
    }
    let sliding = |kind: &str| match kind {
        "full_attention" => Ok(false),
        "sliding_attention" => Ok(true),
        other => Err(keys.error("layer_types", format!("'{other:.40}' is not supported"))),
    };
    let layers = types.into_iter().map(sliding).collect::<Result<Vec<_>, _>>()?;
    match size {
        Some(size) => Ok(Window::PerLayer { layers, size }),
        None if layers.contains(&true) => {
            Err(keys
                .error("layer_types", "asks for sliding_attention, but use_sliding_window or sliding_window do not"))
        }
        None => Ok(Window::None),
    }
}

/// MiniMind has two generations under one `model_type`: the later one norms q and k, and has other defaults. The config does not distinguish them; the
/// weights do.
fn minimind(keys: &Keys<'_>, weights: &Weights) -> Result<Config, ModelError> {
    if keys.flag("use_moe")?.unwrap_or(false) {
        return Err(keys.error("use_moe", "mixtures of experts are not supported"));
    }
    let qk_norm = weights.holds(WeightRef { layer: Some(0), role: Role::QNorm });
    let hidden = keys.count("hidden_size")?;
    let defaults = if qk_norm {
        let hidden = hidden.unwrap_or(768);
        let ffn = (hidden as f64 * std::f64::consts::PI / 64.0).ceil() as usize;
        Defaults { hidden, ffn: ffn.saturating_mul(64), kv_heads: Some(4), eps: 1e-6, ..MINIMIND }
    } else {
        let hidden = hidden.unwrap_or(512);
        let ffn = (hidden.saturating_mul(8) / 3).div_ceil(64);
        Defaults { hidden, ffn: ffn.saturating_mul(64), ..MINIMIND }
    };
    let mut config = config::read("minimind", keys, &defaults)?;
    config.qk_norm = qk_norm;
    config.rope_scaling = minimind_scaling(keys, &config)?;
    Ok(config)
}

const MINIMIND: Defaults = Defaults {
    vocab: 6400,
    hidden: 512,
    ffn: 0,
    layers: 8,
    heads: 8,
    kv_heads: Some(2),
    head_dim: None,
    eps: 1e-5,
    theta: 1e6,
    tied: true,
    positions: 32768,
};

/// YaRN with MiniMind's own constants where `inference_rope_scaling` is set; the model does not read `rope_scaling`.
fn minimind_scaling(keys: &Keys<'_>, config: &Config) -> Result<RopeScaling, ModelError> {
    const ORIGINAL: usize = 2048;
    if !keys.flag("inference_rope_scaling")?.unwrap_or(false) {
        return Ok(RopeScaling::None);
    }
    if let Some(saved) = keys.object("rope_scaling", "rope_scaling.")? {
        let other = |key, value| saved.positive(key).map(|v: Option<f64>| v.is_some_and(|v| v != value));
        if other("beta_fast", 32.0)? || other("factor", 16.0)? {
            return Err(saved.error("beta_fast", "the scaling of an earlier MiniMind is not supported"));
        }
    }
    if keys.count("max_position_embeddings")?.is_some_and(|positions| positions <= ORIGINAL) {
        return Ok(RopeScaling::None);
    }
    // MiniMind clamps the ramp at the last pair, transformers does not; for MiniMind's own sizes the result is the same.
    let (d, turns) = (config.dims.head_dim as f64, ORIGINAL as f64 / (2.0 * std::f64::consts::PI));
    if (d * turns.ln() / (2.0 * config.rope_theta.ln())).ceil() > d / 2.0 - 1.0 {
        return Err(keys.error("inference_rope_scaling", "this head_dim and rope_theta are not supported with it"));
    }
    Ok(RopeScaling::Yarn {
        factor: 16.0,
        original_max_position: ORIGINAL as f64,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: Some(1.0),
        mscale: None,
        mscale_all_dim: None,
        truncate: true,
    })
}
