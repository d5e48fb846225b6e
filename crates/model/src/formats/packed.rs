//! Recognises packed weights that are not supported (AWQ, GPTQ, bitsandbytes, ..), by the config or by the names of their tensors.

use std::path::Path;

use crate::storage::Storage;
use crate::weights::Weights;

/// Endings of tensor names that belong to a packing, and the packing's name.
const SUFFIXES: [(&str, &str); 9] = [
    (".qweight", "AWQ or GPTQ"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_2", "NVFP4"),
    (".weight_scale_inv", "FP8"),
    (".weight_scale", "FP8 or INT8"),
    (".W_q", "HQQ"),
    (".SCB", "bitsandbytes"),
    (".absmax", "bitsandbytes"),
    ("_blocks", "MXFP4"),
];

/// The name of the packing; `None` where the weights are plain numbers.
pub(super) fn detect_packing(path: &Path, weights: &Weights) -> Option<String> {
    // Integer tensors, and types of 8 bits and less, are not weights by themselves.
    let is_number = |name: &str| {
        let view = weights.tensor(name).ok().flatten();
        view.is_some_and(|view| !matches!(view.storage(), Storage::I8 | Storage::I16 | Storage::I32))
    };
    let sign =
        |(end, packing): (&str, &str)| weights.names().any(|name| name.ends_with(end)).then(|| packing.to_owned());
    (!weights.names().all(is_number)).then(|| from_config(path).or_else(|| SUFFIXES.into_iter().find_map(sign)))?
}

/// Summarises `quantization_config` of config.json: `AWQ (4 bits, groups of 16, gemm)`.
fn from_config(folder: &Path) -> Option<String> {
    let file = folder.join("config.json");
    let config = super::parse_config(&file, &super::config_bytes(&file).ok()?).ok()?;
    let found = config.get("quantization_config")?;
    let text =
        |key: &str| Some(found.get(key)?.as_str()?.chars().filter(|c| !c.is_control()).take(40).collect::<String>());
    let number = |key: &str, words: fn(u64) -> String| found.get(key)?.as_u64().map(words);
    let numbers = [number("bits", |n| format!("{n} bits")), number("group_size", |n| format!("groups of {n}"))];
    let kinds = ["version", "format", "quant_algo", "bnb_4bit_quant_type", "fmt"].iter().filter_map(|key| text(key));
    let details = numbers.into_iter().flatten().chain(kinds).collect::<Vec<_>>().join(", ");
    let name = text("quant_method").unwrap_or_else(|| "an unnamed method".into());
    let name = if name.len() < 6 { name.to_uppercase() } else { name };
    Some(if details.is_empty() { name } else { format!("{name} ({details})") })
}
