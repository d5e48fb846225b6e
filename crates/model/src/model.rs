//! What is in a model? Config, weights and the Plan they agree on.

use std::collections::HashSet;
use std::path::Path;

use firstdiff_trace::QkRows;

use crate::config::Config;
use crate::error::ModelError;
use crate::formats::{self, Format};
use crate::plan::Plan;
use crate::weights::Weights;

/// A model that can be run: its Plan, and weights that were found to suit it.
#[derive(Debug)]
pub struct Model {
    /// In which format its files are.
    pub format: Format,
    /// What the config says.
    pub config: Config,
    /// What the model computes.
    pub plan: Plan,
    /// The mapped weights.
    pub weights: Weights,
    /// For which RoPE pairing the rows of Q and K are ordered in the files.
    pub qk_rows: QkRows,
    /// Tensors of the files that the Plan does not read, sorted. A bias among them means that the config left it out.
    pub unread: Vec<String>,
    /// The prompts that its file was made with, where it holds them: a MiniMind .json does.
    pub prompts: Vec<Vec<u32>>,
}

/// Loads the model at `path`: a Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json. No weight is read yet; every
/// one is known to be there, in the right shape.
///
/// # Errors
/// When a file is absent or malformed, when the config is not of a known family or contradicts itself or its weights.
pub fn load(path: impl AsRef<Path>) -> Result<Model, ModelError> {
    let path = path.as_ref();
    let opened = formats::open(path)?;
    let (config, mut weights, prompts) = (opened.config?, opened.weights, opened.prompts);
    // Before a Plan of that length is made.
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
    let unread = check(&plan, &weights)?;
    Ok(Model { format: opened.format, qk_rows: config.qk_rows, config, plan, weights, unread, prompts })
}

/// Whether the weights hold all that the Plan reads, as it reads it; the tensors it does not read.
fn check(plan: &Plan, weights: &Weights) -> Result<Vec<String>, ModelError> {
    let mut read = HashSet::new();
    for &weight in plan.steps.iter().flat_map(|step| &step.weights) {
        weights.check(weight, &plan.dims.shape(weight.role))?;
        read.insert(weights.name(weight));
    }
    // Divisors of the rotation's frequencies are in the Plan itself.
    let unread = weights.names().filter(|name| !read.contains(*name) && *name != crate::names::ROPE_FREQS);
    let mut unread: Vec<String> = unread.map(String::from).collect();
    unread.sort_unstable();
    Ok(unread)
}
