//! Shows how a Rust engine in an early state records itself: the embedding and the first norm of a Llama, with one line each.
//!
//!     FIRSTDIFF_DIR=out cargo run -p firstdiff-trace --example first_steps -- fixtures/models/llama 1,17,42,99

use std::error::Error;
use std::path::Path;

use firstdiff_trace::{Producer, Recorder};
use safetensors::SafeTensors;

/// An f32 tensor of the file, with its shape.
fn weight(file: &SafeTensors, name: &str) -> Result<(Vec<usize>, Vec<f32>), Box<dyn Error>> {
    let tensor = file.tensor(name)?;
    if tensor.dtype() != safetensors::Dtype::F32 {
        return Err(format!("{name} is not f32").into());
    }
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    Ok((tensor.shape().to_vec(), values.collect()))
}

/// x / sqrt(mean(x^2) + eps) * gain, row by row.
fn rms_norm(x: &[f32], gain: &[f32], eps: f32) -> Vec<f32> {
    let normed = |row: &[f32]| {
        let mean = row.iter().map(|v| v * v).sum::<f32>() / row.len() as f32;
        row.iter().zip(gain).map(|(v, g)| v / (mean + eps).sqrt() * g).collect::<Vec<_>>()
    };
    x.chunks(gain.len()).flat_map(normed).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(model), Some(ids)) = (arguments.next(), arguments.next()) else {
        return Err("usage: first_steps MODEL TOKENS".into());
    };
    let ids = ids.split(',').map(str::parse).collect::<Result<Vec<usize>, _>>()?;
    let bytes = std::fs::read(Path::new(&model).join("model.safetensors"))?;
    let file = SafeTensors::deserialize(&bytes)?;

    let rec = Recorder::from_env()?;
    rec.tokens(&ids.iter().map(|&id| id as i64).collect::<Vec<_>>());
    rec.describe(|meta| meta.producer = Producer::new("first_steps", env!("CARGO_PKG_VERSION")));

    let (shape, embedding) = weight(&file, "model.embed_tokens.weight")?;
    let (tokens, hidden) = (ids.len(), shape[1]);
    let mut h = Vec::with_capacity(tokens * hidden);
    for &id in &ids {
        h.extend_from_slice(embedding.get(id * hidden..(id + 1) * hidden).ok_or("no such token")?);
    }
    rec.record("h0", &[tokens, hidden], &h)?;

    let layer = 0;
    let (_, gain) = weight(&file, &format!("model.layers.{layer}.input_layernorm.weight"))?;
    let x = rms_norm(&h, &gain, 1e-5);
    rec.record(format_args!("layers.{layer}.attn_norm"), &[tokens, hidden], &x)?;

    rec.finish()?;
    Ok(())
}
