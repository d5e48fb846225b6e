//! Describes a single run: its steps, their token positions, its K/V cache.

pub(crate) mod batch;
pub(crate) mod embeddings;
pub(crate) mod infer_steps;
pub(crate) mod kv_cache;
pub(crate) mod last;
pub(crate) mod misaligned;
pub(crate) mod padding;
pub(crate) mod positions;
pub(crate) mod seen_padding;
pub(crate) mod shown_cache;
pub(crate) mod side;
pub(crate) mod slice;
pub(crate) mod steps;
pub(crate) mod tokens;
