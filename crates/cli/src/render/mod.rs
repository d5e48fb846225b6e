//! How is a report shown? On a terminal, as JSON, tap by tap.

pub(crate) mod alignment;
pub(crate) mod divergence;
pub(crate) mod github;
pub(crate) mod html;
pub mod json;
pub(crate) mod junit;
pub mod screen;
pub(crate) mod show;
pub(crate) mod table;
pub(crate) mod why;
pub(crate) mod wrap;
