//! Reads one tensor against another: shapes, rows, orders of axes, padding; and decides which matching layout is the dump's own.

pub(crate) mod candidates;
pub(crate) mod convention;
pub(crate) mod elements;
pub(crate) mod mismatch;
pub(crate) mod pair;
pub(crate) mod resolve;
pub(crate) mod rotation;
pub(crate) mod row_order;
pub(crate) mod rows;
pub(crate) mod shapes;
pub(crate) mod strided;
pub(crate) mod types;

pub use resolve::{Claim, LayoutEvidence, ResolvedClaims, Witness, explains, resolve};
