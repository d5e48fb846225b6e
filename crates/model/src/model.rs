//! Loads a model: its config, its weights, and the Plan that fits both.

use std::collections::HashSet;
use std::path::Path;

use firstdiff_trace::QkRows;

use crate::config::Config;
use crate::error::ModelError;
use crate::formats::{self, Format};
use crate::plan::Plan;
use crate::weights::Weights;

/// A model that can be run: its Plan, and weights that match it.
#[derive(Debug)]
pub struct Model {
    /// The format of its files.
    pub format: Format,
    /// The content of the config.
    pub config: Config,
    /// The steps of the model.
    pub plan: Plan,
    /// The mapped weights.
    pub weights: Weights,
    /// The RoPE pairing for which the rows of Q and K are ordered in the files.
    pub qk_rows: QkRows,
    /// Tensors of the files that the Plan does not read, sorted. A bias among them means that the config omits it.
    pub unread: Vec<String>,
    /// The prompts with which its file was made, if it holds them: a MiniMind .json does.
    pub prompts: Vec<Vec<u32>>,
}

/// Loads the model at `path`: a Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json. No weight is read yet; all are checked to be present, in
/// the right shape.
///
/// # Errors
/// When a file is absent or malformed, the family is not known, or the config contradicts itself or its weights.
pub fn load(path: impl AsRef<Path>) -> Result<Model, ModelError> {
    let path = path.as_ref();
    let opened = formats::open(path)?;
    let (config, mut weights, prompts) = (opened.config?, opened.weights, opened.prompts);
    // Checked before a Plan with that many layers is built.
    if config.dims.layers as usize > weights.len() {
        let (layers, held) = (config.dims.layers, weights.len());
        let reason = format!(
            "num_hidden_layers (or n_layer, block_count): {layers} layers, but the weights hold {held} tensors"
        );
        let config = path.join("config.json");
        return Err(ModelError::Format { file: if config.exists() { config } else { path.into() }, reason });
    }
    if config.tied {
        formats::tie(&mut weights);
    }
    let plan = crate::decoder::plan(&config);
    let unread = unread_tensors(&plan, &weights)?;
    Ok(Model { format: opened.format, qk_rows: config.qk_rows, config, plan, weights, unread, prompts })
}

/// Checks that the weights hold everything that the Plan reads; returns the tensors that it does not read.
fn unread_tensors(plan: &Plan, weights: &Weights) -> Result<Vec<String>, ModelError> {
    let mut read = HashSet::new();
    for &weight in plan.steps.iter().flat_map(|step| &step.weights) {
        weights.check(weight, &plan.dims.shape(weight.role))?;
        read.insert(weights.name(weight));
    }
    // The Plan itself holds the divisors of the RoPE frequencies.
    let unread = weights.names().filter(|name| !read.contains(*name) && *name != crate::names::ROPE_FREQS);
    let mut unread: Vec<String> = unread.map(String::from).collect();
    unread.sort_unstable();
    Ok(unread)
}
