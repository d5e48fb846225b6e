//! Model folders, and our own forward. One binary: each links the whole crate anew.

mod bad_input;
mod common;
mod config;
mod formats;
mod ggml_types;
mod parity;
mod run;
