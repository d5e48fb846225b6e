//! Tests model loading and our own forward pass. One binary, because each test binary links the whole crate again.

mod bad_input;
mod common;
mod config;
mod formats;
mod ggml_types;
mod packed;
mod parity;
mod run;
