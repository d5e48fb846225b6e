//! Tests dumps, the recorder, and files of other programs. One binary, because each test binary links the whole crate again.

mod cache;
mod foreign;
mod import;
mod join;
mod recorder;
mod store;
mod taps;
