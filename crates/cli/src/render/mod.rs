//! How is a report shown? On a terminal, as JSON, tap by tap.

pub mod json;
pub(crate) mod laid;
pub mod screen;
pub(crate) mod table;
pub(crate) mod why;
pub(crate) mod wrap;
