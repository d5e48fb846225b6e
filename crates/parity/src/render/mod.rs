//! Shows a comparison on a screen.

pub mod alignment;
pub mod compare;
pub mod divergence;
pub mod screen;
pub mod table;
pub mod wrap;
