//! The operations. One binary: each links the whole crate anew.

mod goldens;
mod properties;
mod quantise;
