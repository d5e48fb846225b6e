//! Renders reports: on a terminal, as JSON, tap by tap, as a page.

pub use firstdiff_parity::render::screen;
pub(crate) use firstdiff_parity::render::{alignment, divergence, table};

pub(crate) mod github;
pub(crate) mod html;
pub mod json;
pub(crate) mod junit;
pub(crate) mod show;
pub(crate) mod why;
