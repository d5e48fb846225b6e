//! Which of candle-transformers' public functions show what a Llama computes inside?
//!
//! `llama`: logits of the last position, and the embedding. `llama2_c`: logits of every position, and the cache, whose fields are public.
//! Neither shows hidden states. But a head that is the identity shows what the final norm gives; and over the first n layers alone,
//! with the norm of layer n for the final one, that is layer n's `attn_norm`; with the last layer's down projection zero, its `ffn_norm`.

use std::collections::HashMap;
use std::path::Path;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, llama2_c};

/// Which of the two implementations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// `candle_transformers::models::llama`: Hugging Face checkpoints.
    Llama,
    /// `candle_transformers::models::llama2_c`: rotates adjacent pairs.
    Llama2C,
}

impl FromStr for Code {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Code> {
        match text {
            "llama" => Ok(Code::Llama),
            "llama2_c" => Ok(Code::Llama2C),
            _ => bail!("'{text}' is neither llama nor llama2_c"),
        }
    }
}

/// Where an engine is cut short, and shows a norm instead of logits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// Nowhere: logits.
    None,
    /// Before the head.
    FinalNorm,
    /// After this layer's first norm.
    AttnNorm(usize),
    /// After this layer's second norm.
    FfnNorm(usize),
}

/// A model's config and weights, as the chosen code wants them.
pub struct Model {
    /// The code that is to run it.
    pub code: Code,
    config: llama::LlamaConfig,
    weights: HashMap<String, Tensor>,
    device: Device,
}

impl Model {
    /// Reads a Hugging Face folder, and plants the mistake.
    pub fn open(folder: &Path, code: Code, mistake: &str, device: &Device) -> Result<Model> {
        let config = std::fs::read(folder.join("config.json")).context("config.json cannot be read")?;
        let config = serde_json::from_slice(&config).context("config.json is not a Llama's")?;
        let weights = candle_core::safetensors::load(folder.join("model.safetensors"), device)?;
        let mut model = Model { code, config, weights, device: device.clone() };
        if code == Code::Llama2C && mistake != "rope-pairing" {
            model.adjacent_rows()?;
        }
        model.plant(mistake)?;
        Ok(model)
    }

    /// How many layers there are.
    pub fn layers(&self) -> usize {
        self.config.num_hidden_layers
    }

    fn plant(&mut self, mistake: &str) -> Result<()> {
        match mistake {
            "" | "rope-position" => {}
            "rope-pairing" if self.code == Code::Llama2C => {}
            "rope-pairing" => self.adjacent_rows()?,
            "rope-theta" if self.code == Code::Llama => self.config.rope_theta = 500_000.0,
            "norm-eps" => self.config.rms_norm_eps /= 10.0,
            "weight-transposed" => self.edit("self_attn.o_proj.weight", |w| w.t()?.contiguous())?,
            _ => bail!("ENGINE_MISTAKE={mistake} is none of this engine's"),
        }
        Ok(())
    }

    /// Puts the rows of Q and K from halves into adjacent pairs: row s*d/2+i of a head becomes row 2i+s.
    fn adjacent_rows(&mut self) -> Result<()> {
        let half = self.config.hidden_size / self.config.num_attention_heads / 2;
        let order = |w: &Tensor| {
            let (rows, columns) = w.dims2()?;
            w.reshape((rows / half / 2, 2, half, columns))?.transpose(1, 2)?.contiguous()?.reshape((rows, columns))
        };
        self.edit("self_attn.q_proj.weight", order)?;
        self.edit("self_attn.k_proj.weight", order)
    }

    fn edit(&mut self, kind: &str, edit: impl Fn(&Tensor) -> candle_core::Result<Tensor>) -> Result<()> {
        for (name, weight) in self.weights.iter_mut().filter(|(name, _)| name.ends_with(kind)) {
            *weight = edit(weight).with_context(|| name.clone())?;
        }
        Ok(())
    }

    fn weight(&self, name: &str) -> Result<&Tensor> {
        self.weights.get(name).with_context(|| format!("{name} is missing"))
    }

    /// The engine that shows what stands at `cut`.
    pub fn engine(&self, cut: Cut) -> Result<Engine> {
        let (mut config, mut weights) = (self.config.clone(), self.weights.clone());
        let mut shown = self.config.vocab_size;
        if !weights.contains_key("lm_head.weight") {
            weights.insert("lm_head.weight".into(), self.weight("model.embed_tokens.weight")?.clone());
        }
        config.tie_word_embeddings = Some(false);
        if cut != Cut::None {
            shown = config.hidden_size;
            ensure!(shown <= config.vocab_size, "a vocabulary smaller than the model is wide cannot hold the identity");
            let identity = Tensor::eye(shown, DType::F32, &self.device)?;
            let identity = identity.pad_with_zeros(0, 0, config.vocab_size - shown)?;
            weights.insert("lm_head.weight".into(), identity);
        }
        if let Cut::AttnNorm(layer) | Cut::FfnNorm(layer) = cut {
            let (layers, norm) = match cut {
                Cut::FfnNorm(_) => (layer + 1, "post_attention_layernorm"),
                _ => (layer, "input_layernorm"),
            };
            config.num_hidden_layers = layers;
            weights.insert(
                "model.norm.weight".into(),
                self.weight(&format!("model.layers.{layer}.{norm}.weight"))?.clone(),
            );
            let down = format!("model.layers.{layer}.mlp.down_proj.weight");
            let nothing = self.weight(&down)?.zeros_like()?;
            weights.insert(down, nothing);
        }
        let vb = VarBuilder::from_tensors(weights, DType::F32, &self.device);
        Ok(Engine { inner: self.load(config, vb)?, shown, device: self.device.clone() })
    }

    fn load(&self, config: llama::LlamaConfig, vb: VarBuilder) -> Result<Inner> {
        Ok(match self.code {
            Code::Llama => {
                let config = config.into_config(false);
                let cache = llama::Cache::new(true, DType::F32, &config, &self.device)?;
                Inner::Llama(llama::Llama::load(vb, &config)?, cache)
            }
            Code::Llama2C => {
                let config = llama2_c::Config {
                    dim: config.hidden_size,
                    hidden_dim: config.intermediate_size,
                    n_layers: config.num_hidden_layers,
                    n_heads: config.num_attention_heads,
                    n_kv_heads: config.num_key_value_heads(),
                    vocab_size: config.vocab_size,
                    seq_len: config.max_position_embeddings,
                    norm_eps: config.rms_norm_eps,
                };
                let cache = llama2_c::Cache::new(true, &config, vb.clone())?;
                Inner::Llama2C(llama2_c::Llama::load(vb, config)?, cache)
            }
        })
    }
}

enum Inner {
    Llama(llama::Llama, llama::Cache),
    Llama2C(llama2_c::Llama, llama2_c::Cache),
}

/// A published model with its cache, whole or cut short.
pub struct Engine {
    inner: Inner,
    shown: usize,
    device: Device,
}

impl Engine {
    /// What stands at the cut, [T,V] or [T,D] of the new tokens; [1,V] or [1,D], the last one's, of `llama`.
    pub fn forward(&mut self, ids: &[u32], position: usize) -> Result<Tensor> {
        let x = Tensor::new(ids, &self.device)?.unsqueeze(0)?;
        let out = match &mut self.inner {
            Inner::Llama(model, cache) => model.forward(&x, position, cache)?,
            Inner::Llama2C(model, cache) => model.forward(&x, position, cache)?.squeeze(0)?,
        };
        Ok(out.narrow(1, 0, self.shown)?.contiguous()?)
    }

    /// The embedding of the last of these tokens, [1,D].
    pub fn embed(&self, ids: &[u32]) -> Result<Option<Tensor>> {
        let Inner::Llama(model, _) = &self.inner else { return Ok(None) };
        let last = Tensor::new(&ids[ids.len() - 1..], &self.device)?;
        Ok(Some(model.embed(&last)?))
    }

    /// Keys, after RoPE, and values of the newest tokens in a layer's cache, [T,K,d].
    pub fn newest(&self, layer: usize, tokens: usize) -> Result<Option<(Tensor, Tensor)>> {
        let Inner::Llama2C(_, cache) = &self.inner else { return Ok(None) };
        let Some((k, v)) = &cache.kvs[layer] else { return Ok(None) };
        let newest = |x: &Tensor| x.squeeze(0)?.narrow(0, x.dim(1)? - tokens, tokens)?.contiguous();
        Ok(Some((newest(k)?, newest(v)?)))
    }
}
