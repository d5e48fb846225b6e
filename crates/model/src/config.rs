//! Reads config.json: the sizes and choices of a model, with the defaults of transformers 4.57.

use firstdiff_core::{Activation, RopeScaling};
use firstdiff_trace::QkRows;

use crate::error::ModelError;
use crate::keys::Keys;
use crate::plan::ModelDims;

/// A model's sizes and choices.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// `model_type`.
    pub family: &'static str,
    /// The sizes.
    pub dims: ModelDims,
    /// The activation of the gate.
    pub activation: Activation,
    /// Added to the mean square of every norm.
    pub rms_norm_eps: f64,
    /// The base of the rotary frequencies.
    pub rope_theta: f64,
    /// How the rotary frequencies are changed.
    pub rope_scaling: RopeScaling,
    /// The attention window of each layer.
    pub window: Window,
    /// Whether q, k and v have a bias.
    pub qkv_bias: bool,
    /// Whether the output projection of attention has a bias.
    pub attn_out_bias: bool,
    /// Whether gate, up and down have a bias.
    pub mlp_bias: bool,
    /// Whether q and k are normed, head by head, before they are rotated.
    pub qk_norm: bool,
    /// Whether the head is the embedding.
    pub tied: bool,
    /// `torch_dtype` as given.
    pub torch_dtype: Option<String>,
    /// The RoPE pairing for which the rows of Q and K are ordered in the weights.
    pub qk_rows: QkRows,
}

/// How many keys the layers see at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Window {
    /// All keys, everywhere.
    None,
    /// This many, in every layer.
    AllLayers(usize),
    /// This many, from a layer on.
    FromLayer {
        /// The first such layer.
        layer: usize,
        /// Keys seen.
        size: usize,
    },
    /// This many, in the marked layers.
    PerLayer {
        /// One mark for each layer.
        layers: Vec<bool>,
        /// Keys seen.
        size: usize,
    },
}

impl Window {
    /// How many keys a query of `layer` sees at most; `None` for all.
    pub fn in_layer(&self, layer: u32) -> Option<usize> {
        let layer = layer as usize;
        match self {
            Window::None => None,
            Window::AllLayers(size) => Some(*size),
            Window::FromLayer { layer: first, size } => (layer >= *first).then_some(*size),
            Window::PerLayer { layers, size } => layers.get(layer).is_some_and(|&l| l).then_some(*size),
        }
    }
}

/// The values of a family where config.json has no entry.
pub(crate) struct Defaults {
    pub(crate) vocab: usize,
    pub(crate) hidden: usize,
    pub(crate) ffn: usize,
    pub(crate) layers: usize,
    pub(crate) heads: usize,
    /// `None`: as many as heads.
    pub(crate) kv_heads: Option<usize>,
    /// `None`: D/H.
    pub(crate) head_dim: Option<usize>,
    pub(crate) eps: f64,
    pub(crate) theta: f64,
    pub(crate) tied: bool,
    pub(crate) positions: usize,
}

/// Reads what all families share. Family flags are off and the window is none; the scaling is read from `rope_scaling`.
pub(crate) fn read(family: &'static str, keys: &Keys<'_>, defaults: &Defaults) -> Result<Config, ModelError> {
    let dims = dims(keys, defaults)?;
    if keys.positive("partial_rotary_factor")?.is_some_and(|f| f != 1.0) {
        return Err(keys.error("partial_rotary_factor", "rotating a part of each head is not supported"));
    }
    let parameters = keys.object("rope_parameters", "rope_parameters.")?;
    let theta = match (keys.positive("rope_theta")?, &parameters) {
        (None, Some(parameters)) => parameters.positive("rope_theta")?,
        (theta, _) => theta,
    };
    let rope_theta = theta.unwrap_or(defaults.theta);
    let positions = keys.count("max_position_embeddings")?.unwrap_or(defaults.positions);
    let scaling = keys.object("rope_scaling", "rope_scaling.")?.or(parameters);
    Ok(Config {
        family,
        dims,
        activation: activation(keys)?,
        rms_norm_eps: keys.non_negative("rms_norm_eps")?.unwrap_or(defaults.eps),
        rope_theta,
        rope_scaling: match scaling {
            Some(scaling) => rope_scaling(&scaling, positions, rope_theta)?,
            None => RopeScaling::None,
        },
        window: Window::None,
        qkv_bias: false,
        attn_out_bias: false,
        mlp_bias: false,
        qk_norm: false,
        tied: keys.flag("tie_word_embeddings")?.unwrap_or(defaults.tied),
        torch_dtype: match keys.text("torch_dtype")? {
            Some(dtype) => Some(dtype.into()),
            None => keys.text("dtype")?.map(Into::into),
        },
        qk_rows: QkRows::Half,
    })
}

fn dims(keys: &Keys<'_>, defaults: &Defaults) -> Result<ModelDims, ModelError> {
    let hidden = keys.count("hidden_size")?.unwrap_or(defaults.hidden);
    let heads = keys.count("num_attention_heads")?.unwrap_or(defaults.heads);
    let kv_heads = match keys.count("num_key_value_heads")? {
        None if keys.has("num_key_value_heads") => heads,
        None => defaults.kv_heads.unwrap_or(heads),
        Some(kv_heads) => kv_heads,
    };
    if !heads.is_multiple_of(kv_heads) {
        let reason = format!("{kv_heads} key/value heads do not divide {heads} heads");
        return Err(keys.error("num_key_value_heads", reason));
    }
    let default = if keys.has("head_dim") { None } else { defaults.head_dim };
    let head_dim = match keys.count("head_dim")?.or(default) {
        Some(head_dim) => head_dim,
        None if hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let reason = format!("{heads} heads do not divide hidden_size {hidden}, and head_dim is absent");
            return Err(keys.error("num_attention_heads", reason));
        }
    };
    if !head_dim.is_multiple_of(2) {
        return Err(keys.error("head_dim", format!("{head_dim} is odd: its elements cannot be rotated in pairs")));
    }
    let layers = keys.count("num_hidden_layers")?.unwrap_or(defaults.layers);
    let layers = u32::try_from(layers).map_err(|_| keys.error("num_hidden_layers", format!("{layers} is too many")))?;
    let dims = ModelDims {
        vocab: keys.count("vocab_size")?.unwrap_or(defaults.vocab),
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn: keys.count("intermediate_size")?.unwrap_or(defaults.ffn),
        layers,
    };
    check_dims(&dims).map_err(|reason| keys.error("hidden_size", reason))?;
    Ok(dims)
}

/// Checks that sizes from a file are plausible: heads that divide evenly, an even rotary dimension, no matrix larger than any memory.
pub(crate) fn check_dims(dims: &ModelDims) -> Result<(), String> {
    let ModelDims { vocab, hidden, heads, kv_heads, head_dim, ffn, layers } = *dims;
    if [vocab, hidden, heads, kv_heads, head_dim, ffn, layers as usize].contains(&0) {
        return Err(format!("a size of 0 among {dims:?}"));
    }
    if !heads.is_multiple_of(kv_heads) {
        return Err(format!("{kv_heads} key/value heads do not divide {heads} heads"));
    }
    if !head_dim.is_multiple_of(2) {
        return Err(format!("heads of {head_dim} elements cannot be rotated in pairs"));
    }
    let fits = |x: usize, y: usize| x.checked_mul(y).filter(|&n| n <= isize::MAX as usize / 8);
    let queries = fits(heads, head_dim).and_then(|queries| fits(queries, hidden));
    match queries.and(fits(ffn, hidden)).and(fits(vocab, hidden)) {
        Some(_) => Ok(()),
        None => Err(format!(
            "{hidden} wide with {heads} heads of {head_dim}, {ffn} and {vocab} is more than memory can hold"
        )),
    }
}

fn activation(keys: &Keys<'_>) -> Result<Activation, ModelError> {
    match keys.text("hidden_act")?.unwrap_or("silu") {
        "silu" | "swish" => Ok(Activation::Silu),
        "gelu" => Ok(Activation::GeluErf),
        "gelu_new" | "gelu_pytorch_tanh" => Ok(Activation::GeluTanh),
        "relu" => Ok(Activation::Relu),
        other => Err(keys.error("hidden_act", format!("'{other:.40}' is not supported"))),
    }
}

/// Reads `rope_scaling`: linear, llama3 or yarn.
fn rope_scaling(keys: &Keys<'_>, positions: usize, theta: f64) -> Result<RopeScaling, ModelError> {
    let kind = match (keys.text("rope_type")?, keys.text("type")?) {
        (Some(new), Some(old)) if new != old => {
            return Err(keys.error("type", format!("'{old:.40}' contradicts rope_type '{new:.40}'")));
        }
        (new, old) => keys.required("rope_type", new.or(old))?,
    };
    let need = |key: &str| keys.positive(key).and_then(|value| keys.required(key, value));
    let original = keys.count("original_max_position_embeddings")?;
    match kind {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: need("factor")? }),
        "llama3" => {
            let (low, high) = (need("low_freq_factor")?, need("high_freq_factor")?);
            if low >= high {
                return Err(keys.error("low_freq_factor", format!("{low} is not below high_freq_factor {high}")));
            }
            Ok(RopeScaling::Llama3 {
                factor: need("factor")?,
                low_freq_factor: low,
                high_freq_factor: high,
                original_max_position: keys.required("original_max_position_embeddings", original)? as f64,
            })
        }
        "yarn" => yarn(keys, original.unwrap_or(positions), theta),
        other => Err(keys.error("rope_type", format!("'{other:.40}' is not supported (linear, llama3, yarn are)"))),
    }
}

fn yarn(keys: &Keys<'_>, original: usize, theta: f64) -> Result<RopeScaling, ModelError> {
    let factor = keys.positive("factor")?;
    let factor = keys.required("factor", factor)?;
    if theta == 1.0 {
        return Err(keys.error("rope_type", "yarn has no meaning where rope_theta is 1"));
    }
    Ok(RopeScaling::Yarn {
        factor,
        original_max_position: original as f64,
        beta_fast: keys.non_negative("beta_fast")?.filter(|&b| b > 0.0).unwrap_or(32.0),
        beta_slow: keys.non_negative("beta_slow")?.filter(|&b| b > 0.0).unwrap_or(1.0),
        attention_factor: keys.positive("attention_factor")?,
        mscale: keys.non_negative("mscale")?,
        mscale_all_dim: keys.non_negative("mscale_all_dim")?,
        truncate: keys.flag("truncate")?.unwrap_or(true),
    })
}
