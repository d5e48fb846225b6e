//! What `replay`, `explain` and `weights` find, right and wrong. One binary: each links the whole crate anew.

mod again;
mod by_program;
mod catalogue;
mod common;
mod explain;
mod few;
mod large;
mod misrecorded;
mod onset;
mod open;
mod padding;
mod relations;
mod replay;
mod weights;
