//! The `firstdiff` command.
fn main() {}
