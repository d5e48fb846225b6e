//! Dequantises a file of ggml blocks, or rounds activations to a block type. scripts/suites/test_quants.py compares the output with PyPI gguf and
//! llama.cpp.
//!
//! `cargo run --release -p firstdiff-model --example dequantise -- Q4_K blocks.bin values.f32`

use std::process::ExitCode;

use firstdiff_core::{ActivationType, quantise};
use firstdiff_model::ggml::Type;
use ndarray::Array2;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, input, output] = &args[..] else { return refuse("usage: dequantise TYPE|activations:TYPE IN OUT") };
    if let Some(name) = name.strip_prefix("activations:") {
        return activations(name, input, output);
    }
    let Some(kind) = Type::ALL.iter().find(|kind| kind.name() == name) else { return refuse("no such type") };
    let Ok(bytes) = std::fs::read(input) else { return refuse("the input cannot be read") };
    if bytes.len() % kind.block_bytes() != 0 {
        return refuse("the input is no whole number of blocks");
    }
    let mut values = vec![0f32; bytes.len() / kind.block_bytes() * kind.block_len()];
    kind.dequantise(&bytes, &mut values);
    write(&values, output)
}

/// Rounds rows of 256 f32; for Q8_1 writes the excess of each block's sum after them.
fn activations(name: &str, input: &str, output: &str) -> ExitCode {
    let kind = match name {
        "Q8_0" => ActivationType::Q8_0,
        "Q8_1" => ActivationType::Q8_1,
        "Q8_K" => ActivationType::Q8K,
        "F16" => ActivationType::F16,
        "BF16" => ActivationType::BF16,
        _ => return refuse("no such type of activations"),
    };
    let Ok(bytes) = std::fs::read(input) else { return refuse("the input cannot be read") };
    let values: Vec<f32> = bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect();
    let rows = Array2::from_shape_vec((values.len() / 256, 256), values);
    let Ok(rounded) = rows.map_err(drop).and_then(|rows| quantise(rows.view(), kind).map_err(drop)) else {
        return refuse("the input is no rows of 256");
    };
    let values: Vec<f32> = rounded.values.iter().chain(rounded.excess.iter().flatten()).copied().collect();
    write(&values, output)
}

fn write(values: &[f32], output: &str) -> ExitCode {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    match std::fs::write(output, bytes) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => refuse("the output cannot be written"),
    }
}

fn refuse(reason: &str) -> ExitCode {
    eprintln!("dequantise: {reason}");
    ExitCode::from(2)
}
