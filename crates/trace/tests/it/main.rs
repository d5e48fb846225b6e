//! Dumps, the recorder, and files of other forms. One binary: each links the whole crate anew.

mod cache;
mod foreign;
mod import;
mod join;
mod recorder;
mod store;
mod taps;
