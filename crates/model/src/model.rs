//! What is in a model folder? Config, weights and the Plan they agree on.

use std::collections::HashSet;
use std::path::Path;

use firstdiff_trace::QkRows;
use serde_json::{Map, Value};

use crate::config::Config;
use crate::error::ModelError;
use crate::family::FAMILIES;
use crate::keys::Keys;
use crate::plan::{Plan, Role, WeightRef};
use crate::safetensors;
use crate::weights::Weights;

/// A model that can be run: its Plan, and weights that were found to suit it.
#[derive(Debug)]
pub struct Model {
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
}

/// Loads the Hugging Face folder `folder`. No weight is read yet; every one is known to be there, in the right shape.
///
/// # Errors
/// When a file is absent or malformed, when the config is not of a known family or contradicts itself or its weights.
pub fn load(folder: impl AsRef<Path>) -> Result<Model, ModelError> {
    let folder = folder.as_ref();
    if folder.is_file() {
        let reason = "is no folder: a model is a folder of config.json and *.safetensors".into();
        return Err(ModelError::Format { file: folder.into(), reason });
    }
    let file = folder.join("config.json");
    let map = read_config(&file)?;
    let keys = Keys::new(&file, &map);
    let name = keys.text("model_type").and_then(|name| keys.required("model_type", name))?;
    let Some(family) = FAMILIES.iter().find(|family| family.name == name) else {
        let known: Vec<_> = FAMILIES.iter().map(|family| family.name).collect();
        return Err(keys.error("model_type", format!("'{name:.40}' is not one of {}", known.join(", "))));
    };
    let mut weights = safetensors::open(folder)?;
    let config = (family.read)(&keys, &weights)?;
    // Before a Plan of that length is made.
    if config.dims.layers as usize > weights.len() {
        let reason = format!("{} layers, but the weights hold {} tensors", config.dims.layers, weights.len());
        return Err(keys.error("num_hidden_layers", reason));
    }
    if config.tied {
        tie(&mut weights);
    }
    let plan = (family.plan)(&config);
    let unread = check(&plan, &weights)?;
    Ok(Model { config, plan, weights, qk_rows: QkRows::Half, unread })
}

fn read_config(file: &Path) -> Result<Map<String, Value>, ModelError> {
    let io = |source| ModelError::Io { file: file.into(), source };
    if !std::fs::metadata(file).map_err(io)?.is_file() {
        return Err(ModelError::Format { file: file.into(), reason: "is no regular file".into() });
    }
    let bytes = std::fs::read(file).map_err(io)?;
    serde_json::from_slice(&bytes).map_err(|e| ModelError::Format { file: file.into(), reason: e.to_string() })
}

/// One matrix serves as embedding and head; files hold it under either name.
fn tie(weights: &mut Weights) {
    let embedding = WeightRef { layer: None, role: Role::Embedding };
    let head = WeightRef { layer: None, role: Role::Head };
    if weights.holds(embedding) { weights.tie(head, embedding) } else { weights.tie(embedding, head) }
}

/// Whether the weights hold all that the Plan reads, as it reads it; the tensors it does not read.
fn check(plan: &Plan, weights: &Weights) -> Result<Vec<String>, ModelError> {
    let mut read = HashSet::new();
    for &weight in plan.steps.iter().flat_map(|step| &step.weights) {
        weights.check(weight, &plan.dims.shape(weight.role))?;
        read.insert(weights.name(weight));
    }
    let mut unread: Vec<String> = weights.names().filter(|name| !read.contains(*name)).map(String::from).collect();
    unread.sort_unstable();
    Ok(unread)
}
