//! Programs read and evaluated. One binary: each links the whole crate anew.

mod common;
mod evaluate;
mod experts;
mod goldens;
mod hostile;
