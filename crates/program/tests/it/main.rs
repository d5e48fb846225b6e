//! Tests reading and evaluating programs. One binary, because each test binary links the whole crate again.

mod common;
mod evaluate;
mod experts;
mod goldens;
mod hostile;
