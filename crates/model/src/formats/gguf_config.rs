//! Reads the [`Config`] of a model from GGUF metadata, for the architectures llama, qwen2 and qwen3.
//!
//! Source: llama.cpp, llama-model.cpp and llama-context.cpp (which keys are read, and the defaults of absent ones).

use std::collections::HashMap;
use std::path::Path;

use firstdiff_core::{Activation, RopeScaling};
use firstdiff_trace::QkRows;

use super::gguf::{Gguf, Value};
use crate::config::{Config, Window, check_dims};
use crate::error::ModelError;
use crate::names::ROPE_FREQS;
use crate::plan::{ModelDims, Role, WeightRef};
use crate::weights::Weights;

/// The known architectures, and the RoPE pairing for which their files order the rows of Q and K.
const ARCHITECTURES: &[(&str, QkRows)] =
    &[("llama", QkRows::Adjacent), ("qwen2", QkRows::Half), ("qwen3", QkRows::Half)];

type Read<T> = Result<T, ModelError>;

/// The config of `gguf`, which was read from `file`.
pub(crate) fn config(file: &Path, gguf: &Gguf) -> Read<Config> {
    let keys = Metadata::new(file, &gguf.metadata)?;
    let holds = |layer, role| gguf.weights.holds(WeightRef { layer, role });
    let dims = dims(&keys, &gguf.weights)?;
    if keys.count("expert_count")?.is_some_and(|n| n > 0) {
        return Err(keys.error("expert_count", "mixtures of experts are not supported"));
    }
    let rotary = keys.count("rope.dimension_count")?.unwrap_or(dims.head_dim);
    if rotary != dims.head_dim {
        let reason = format!("{rotary} of {} elements: rotating a part of each head is not supported", dims.head_dim);
        return Err(keys.error("rope.dimension_count", reason));
    }
    let eps = "attention.layer_norm_rms_epsilon";
    Ok(Config {
        family: keys.family,
        dims,
        activation: Activation::Silu,
        rms_norm_eps: keys.number(eps)?.ok_or_else(|| keys.error(eps, "is absent"))?,
        rope_theta: keys.number("rope.freq_base")?.unwrap_or(10_000.0),
        rope_scaling: scaling(&keys, &gguf.weights, dims.head_dim)?,
        window: Window::None,
        qkv_bias: holds(Some(0), Role::QBias),
        attn_out_bias: holds(Some(0), Role::AttnOutBias),
        mlp_bias: holds(Some(0), Role::DownBias),
        qk_norm: holds(Some(0), Role::QNorm),
        tied: !holds(None, Role::Head),
        torch_dtype: None,
        qk_rows: keys.qk_rows,
    })
}

/// The row order of Q and K in files of the architecture that `metadata` names, if known.
pub(crate) fn qk_rows(metadata: &HashMap<String, Value>) -> Option<QkRows> {
    let Some(Value::Text(name)) = metadata.get("general.architecture") else { return None };
    ARCHITECTURES.iter().find(|(known, _)| known == name).map(|(_, rows)| *rows)
}

/// The number of query heads and key heads, if the metadata gives them.
pub(crate) fn heads(file: &Path, metadata: &HashMap<String, Value>) -> Option<(usize, usize)> {
    let keys = Metadata::new(file, metadata).ok()?;
    let heads = keys.count("attention.head_count").ok()??;
    Some((heads, keys.count("attention.head_count_kv").ok()?.unwrap_or(heads)))
}

fn dims(keys: &Metadata<'_>, weights: &Weights) -> Read<ModelDims> {
    let need = |key: &str| keys.count(key)?.ok_or_else(|| keys.error(key, "is absent"));
    let (hidden, heads) = (need("embedding_length")?, need("attention.head_count")?);
    let kv_heads = keys.count("attention.head_count_kv")?.unwrap_or(heads);
    let divided = hidden.checked_div(heads).unwrap_or(0);
    let head_dim = keys.count("attention.key_length")?.unwrap_or(divided);
    if keys.count("attention.value_length")?.is_some_and(|value| value != head_dim) {
        return Err(keys.error("attention.value_length", "values of another width than keys are not supported"));
    }
    let layers = need("block_count")?;
    let embedding = WeightRef { layer: None, role: Role::Embedding };
    let vocab = weights.shape(embedding).and_then(|shape| shape.first().copied());
    let dims = ModelDims {
        vocab: vocab.map_or_else(|| need("vocab_size"), Ok)?,
        hidden,
        heads,
        kv_heads,
        head_dim,
        ffn: need("feed_forward_length")?,
        layers: u32::try_from(layers).map_err(|_| keys.error("block_count", format!("{layers} is too many")))?,
    };
    check_dims(&dims).map_err(|reason| keys.error("attention.head_count", reason))?;
    Ok(dims)
}

/// The RoPE scaling: none, linear or YaRN from the metadata, or the divisors in `rope_freqs.weight`.
fn scaling(keys: &Metadata<'_>, weights: &Weights, head_dim: usize) -> Read<RopeScaling> {
    let divisors = match weights.tensor(ROPE_FREQS)? {
        Some(view) if view.shape() == [head_dim / 2] => Some(view.vector::<f64>().to_vec()),
        Some(view) => {
            let reason = format!("has the shape {:?}, and a head {} pairs", view.shape(), head_dim / 2);
            return Err(keys.tensor(ROPE_FREQS, reason));
        }
        None => None,
    };
    if divisors.iter().flatten().any(|x| !x.is_finite() || *x <= 0.0) {
        return Err(keys.tensor(ROPE_FREQS, "holds a value that is no divisor".into()));
    }
    let factor = match keys.number("rope.scaling.factor")? {
        // The older key for the same.
        None => keys.number("rope.scale_linear")?,
        factor => factor,
    };
    let kind = keys.text("rope.scaling.type")?.unwrap_or(if factor.is_some() { "linear" } else { "none" });
    let scaled = factor.filter(|&f| f != 1.0 && f > 0.0);
    match (kind, scaled, divisors) {
        ("none", _, None) | ("linear", None, None) => Ok(RopeScaling::None),
        ("none", _, Some(divisors)) | ("linear", None, Some(divisors)) => Ok(RopeScaling::Divided { divisors }),
        ("linear", Some(factor), None) => Ok(RopeScaling::Linear { factor }),
        ("yarn", _, None) => {
            let factor = factor.ok_or_else(|| keys.error("rope.scaling.factor", "is absent"))?;
            let context = match keys.number("rope.scaling.original_context_length")? {
                None => keys.number("context_length")?,
                own => own,
            };
            let own = keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0);
            Ok(RopeScaling::Yarn {
                factor,
                original_max_position: context.ok_or_else(|| keys.error("context_length", "is absent"))?,
                beta_fast: keys.number("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0),
                beta_slow: keys.number("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0),
                // llama.cpp multiplies the file's factor with that of the paper.
                attention_factor: Some(own * (1.0 + 0.1 * factor.ln())),
                mscale: None,
                mscale_all_dim: None,
                truncate: true,
            })
        }
        (other, _, None) => Err(keys.error("rope.scaling.type", format!("'{other:.40}' is not supported"))),
        (_, _, Some(_)) => Err(keys.error("rope.scaling.type", "together with rope_freqs.weight is not supported")),
    }
}

/// The metadata under the architecture's prefix.
struct Metadata<'a> {
    file: &'a Path,
    map: &'a HashMap<String, Value>,
    family: &'static str,
    qk_rows: QkRows,
}

impl<'a> Metadata<'a> {
    fn new(file: &'a Path, map: &'a HashMap<String, Value>) -> Read<Metadata<'a>> {
        let error =
            |reason: String| ModelError::Config { file: file.into(), key: "general.architecture".into(), reason };
        let Some(Value::Text(name)) = map.get("general.architecture") else { return Err(error("is absent".into())) };
        let known = || ARCHITECTURES.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let found = ARCHITECTURES.iter().find(|(known, _)| known == name);
        let &(family, qk_rows) = found.ok_or_else(|| error(format!("'{name:.40}' is not one of {}", known())))?;
        Ok(Metadata { file, map, family, qk_rows })
    }

    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(&format!("{}.{key}", self.family))
    }

    fn error(&self, key: &str, reason: impl Into<String>) -> ModelError {
        ModelError::Config { file: self.file.into(), key: format!("{}.{key}", self.family), reason: reason.into() }
    }

    fn tensor(&self, name: &str, reason: String) -> ModelError {
        ModelError::Tensor { file: self.file.into(), tensor: name.into(), reason }
    }

    /// A whole number. A list must have the same number for all layers.
    fn count(&self, key: &str) -> Read<Option<usize>> {
        let whole = |n: f64| ((0.0..9e15).contains(&n) && n.fract() == 0.0).then_some(n as usize);
        let count = match self.get(key) {
            None => return Ok(None),
            Some(Value::Unsigned(n)) => usize::try_from(*n).ok(),
            Some(Value::Signed(n)) => usize::try_from(*n).ok(),
            Some(Value::List(_, all)) if !all.is_empty() && all.iter().all(|n| *n == all[0]) => whole(all[0]),
            Some(_) => None,
        };
        count.map(Some).ok_or_else(|| self.error(key, "is not a whole number, the same for every layer"))
    }

    fn number(&self, key: &str) -> Read<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(x)) if x.is_finite() && *x >= 0.0 => Ok(Some(*x)),
            Some(Value::Unsigned(n)) => Ok(Some(*n as f64)),
            Some(_) => Err(self.error(key, "is not a number of at least 0")),
        }
    }

    fn text(&self, key: &str) -> Read<Option<&'a str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => Ok(Some(text)),
            Some(_) => Err(self.error(key, "is not a text")),
        }
    }
}
