//! What do candle-transformers' Llamas, as published, show of themselves? Records them without a line changed in them.
//!
//!     FIRSTDIFF_DIR=out cargo run --release -- MODEL llama 1,403,407 261,378        # or llama2_c; README.md tells them apart
//!
//! MODEL is a Hugging Face folder. ENGINE_MISTAKE plants a mistake, named as firstdiff names it: rope-theta, rope-pairing,
//! weight-transposed, norm-eps, rope-position.

use std::path::Path;

use anyhow::{Result, bail};
use candle_core::{DType, Device, Tensor};
use firstdiff_trace::{NamedRows, Producer, QkRows, Recorder, Rows};

mod engine;

use engine::{Code, Cut, Engine, Model};

/// Records a tensor, its values as f32; where recording is off nothing is copied.
fn record(rec: &Recorder, tap: &str, x: &Tensor) -> Result<()> {
    if rec.is_on() {
        let values = x.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        rec.record(tap, x.dims(), &values)?;
    }
    Ok(())
}

/// The whole model first, then what it computes on the way: an engine cut short at each place whose value a norm and a head can show.
fn engines(model: &Model) -> Result<Vec<(String, Engine)>> {
    let mut all =
        vec![("logits".to_owned(), model.engine(Cut::None)?), ("final_norm".to_owned(), model.engine(Cut::FinalNorm)?)];
    for layer in 0..model.layers() {
        all.push((format!("layers.{layer}.attn_norm"), model.engine(Cut::AttnNorm(layer))?));
        all.push((format!("layers.{layer}.ffn_norm"), model.engine(Cut::FfnNorm(layer))?));
    }
    Ok(all)
}

/// One forward pass of every engine over the new tokens.
fn pass(rec: &Recorder, model: &Model, engines: &mut [(String, Engine)], ids: &[u32], position: usize) -> Result<()> {
    for (tap, engine) in engines.iter_mut() {
        record(rec, tap, &engine.forward(ids, position)?)?;
    }
    let whole = &engines[0].1;
    if let Some(h0) = whole.embed(ids)? {
        record(rec, "h0", &h0)?;
    }
    for layer in 0..model.layers() {
        if let Some((k, v)) = whole.newest(layer, ids.len())? {
            record(rec, &format!("layers.{layer}.k_rope"), &k)?;
            record(rec, &format!("layers.{layer}.v"), &v)?;
        }
    }
    Ok(())
}

fn ids(text: &str) -> Result<Vec<u32>> {
    Ok(text.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>()?)
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, code, tokens, rest @ ..] = arguments.as_slice() else {
        bail!("usage: firstdiff-candle MODEL llama|llama2_c TOKENS [DECODE_TOKENS]");
    };
    let mistake = std::env::var("ENGINE_MISTAKE").unwrap_or_default();
    let model = Model::open(Path::new(folder), code.parse()?, &mistake, &Device::Cpu)?;
    let (prompt, decoded) = (ids(tokens)?, rest.first().map_or(Ok(Vec::new()), |rest| ids(rest))?);

    let rec = Recorder::from_env()?;
    rec.tokens(&prompt.iter().map(|&id| id.into()).collect::<Vec<_>>());
    rec.describe(|meta| {
        meta.producer = Producer::new(&format!("candle-transformers, {code}"), env!("CARGO_PKG_VERSION"));
        meta.precision = Some("f32".into());
        (meta.qk_rows, meta.rows) = match model.code {
            Code::Llama => (Some(QkRows::Half), Some(Rows::Named(NamedRows::Last))),
            Code::Llama2C => (Some(QkRows::Adjacent), None),
        };
    });
    let mut engines = engines(&model)?;
    pass(&rec, &model, &mut engines, &prompt, 0)?;
    for (n, &id) in decoded.iter().enumerate() {
        rec.next_step(id.into());
        let position = if mistake == "rope-position" { 0 } else { prompt.len() + n };
        pass(&rec, &model, &mut engines, &[id], position)?;
    }
    rec.finish()?;
    Ok(())
}
