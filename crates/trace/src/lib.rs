//! Named taps of a transformer's forward pass: the vocabulary, a recorder for engines, and dumps on disk.
//!
//! This crate says what was recorded. It knows no tolerance and never says whether a value is right.

mod tap;

pub use tap::{Axes, Site, Tap, TapError};
