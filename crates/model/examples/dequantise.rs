//! Which values does a file of blocks stand for? What scripts/test_quants.py compares with gguf's and llama.cpp's own.
//!
//! `cargo run --release -p firstdiff-model --example dequantise -- Q4_K blocks.bin values.f32`

use std::process::ExitCode;

use firstdiff_model::ggml::Type;

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [name, input, output] = &args[..] else { return refuse("usage: dequantise TYPE IN OUT") };
    let Some(kind) = Type::ALL.iter().find(|kind| kind.name() == name) else { return refuse("no such type") };
    let Ok(bytes) = std::fs::read(input) else { return refuse("the input cannot be read") };
    if bytes.len() % kind.block_bytes() != 0 {
        return refuse("the input is no whole number of blocks");
    }
    let mut values = vec![0f32; bytes.len() / kind.block_bytes() * kind.block_len()];
    kind.dequantise(&bytes, &mut values);
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
