//! Tests the operations. One binary, because each test binary links the whole crate again.

mod goldens;
mod properties;
mod quantise;
