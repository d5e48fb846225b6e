//! Renders reports: on a terminal, as JSON, tap by tap, as a page.

pub(crate) use firstdiff_parity::render::{alignment, divergence, table};
pub use firstdiff_parity::render::{compare, screen};

pub(crate) mod cause;
pub(crate) mod explain;
pub(crate) mod gate;
pub(crate) mod github;
pub(crate) mod html;
pub(crate) mod import;
pub(crate) mod inspect;
pub mod json;
pub(crate) mod junit;
pub(crate) mod names;
pub(crate) mod replay;
pub(crate) mod show;
pub(crate) mod weights;
pub(crate) mod why;
