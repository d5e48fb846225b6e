//! Defines named taps of a transformer's forward pass, a recorder for engines, and dumps on disk.
//!
//! This crate handles recorded data only. It has no tolerances and does not judge values.
//!
//! An engine that records and reads nothing takes `default-features = false, features = ["record"]`: slices of f32 and f64, without the dependencies of
//! reading. The feature `half` adds f16 and bf16 of the crate half, `ndarray` adds `Recorder::record_view`.
//!
//! ```
//! use firstdiff_trace::Recorder;
//!
//! # let folder = tempfile::tempdir()?;
//! # let out = folder.path().join("dump");
//! let rec = Recorder::create(&out)?;                     // in an engine: Recorder::from_env()
//! rec.tokens(&[1, 17]);
//! rec.record("layers.0.h", &[2, 3], &[0.1f32, 0.2, 0.3, 0.4, 0.5, 0.6])?;
//! rec.finish()?;
//! # #[cfg(feature = "read")]
//! # {
//! use firstdiff_trace::{Dump, Tap};
//!
//! let dump = Dump::open(&out)?;
//! let entry = dump.entry(Tap::named("layers.0.h"), 0).expect("recorded");
//! assert_eq!(dump.read(&entry)?.shape(), [2, 3]);
//! # }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

/// Implements `Debug` as `Display`, so that errors are readable where `main` returns them or a test unwraps them.
#[doc(hidden)]
#[macro_export]
macro_rules! debug_is_display {
    ($($error:ty),*) => { $(
        impl ::std::fmt::Debug for $error {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                ::std::fmt::Display::fmt(self, f)
            }
        }
    )* };
}

debug_is_display!(RecordError, TapError);
#[cfg(feature = "read")]
debug_is_display!(DimsError, DumpError, FileError, NamesError, NpyError);

mod element;
mod filter;
mod meta;
mod recorder;
mod tap;

#[cfg(feature = "read")]
mod base64;
#[cfg(feature = "read")]
mod batch;
#[cfg(feature = "read")]
mod cache;
#[cfg(feature = "read")]
mod dims;
#[cfg(feature = "read")]
mod dump;
#[cfg(feature = "read")]
mod file;
#[cfg(feature = "read")]
mod names;
#[cfg(feature = "read")]
mod narrow;
#[cfg(feature = "read")]
mod npy;
#[cfg(feature = "read")]
mod tensor;

pub use element::{DType, Element, element_count};
pub use meta::{
    AttentionMask, DecodeDiffers, FORMAT, GraphNode, Meta, NamedRows, PaddingSide, Producer, QkRows, Rows,
    SequenceTokens, TapMeta, escaped_name, stored_name,
};
#[cfg(feature = "read")]
pub use meta::{name_in_file, split_stored_name};
pub use recorder::{RecordError, Recorder};
pub use tap::{Axes, OpenName, Site, Tap, TapError};

#[cfg(feature = "read")]
pub use {
    base64::decode_base64,
    batch::{Batch, SingleShape},
    cache::Cache,
    dims::{AxisNotation, DimsError, Share},
    dump::import::{KnownElements, Partial},
    dump::join::{Joined, Ranks, join},
    dump::open::{OpenOptions, own_table},
    dump::store::{Piece, Store},
    dump::{Dump, DumpError, Entry, NameMap, tap_names},
    file::{FileError, JSON_LIMIT, TABLE_LIMIT, json_fits, memory_limit, open_regular, read_regular},
    names::{Names, NamesError},
    narrow::{F8, to_bf16, to_f16},
    npy::NpyError,
    tensor::{Tensor, Values},
};
