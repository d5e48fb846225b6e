//! Named taps of a transformer's forward pass: the vocabulary, a recorder for engines, and dumps on disk.
//!
//! This crate says what was recorded. It knows no tolerance and never says whether a value is right.

mod archive;
mod batch;
mod dims;
mod dump;
mod import;
mod join;
mod meta;
mod names;
mod npy;
mod open;
mod recorder;
mod tap;
mod tensor;
mod wanted;

pub use dims::{Dims, DimsError, Share};
pub use dump::{Dump, DumpError, Entry};
pub use import::{Part, Partial};
pub use join::{Joined, Ranks, join};
pub use meta::{FORMAT, Meta, NamedRows, Producer, QkRows, Rows, TapMeta, stored_name};
pub use names::{Names, NamesError};
pub use npy::{Element, NpyError};
pub use open::Reading;
pub use recorder::{RecordError, Recorder};
pub use tap::{Axes, Site, Tap, TapError};
pub use tensor::{DType, Tensor, Values, element_count};
