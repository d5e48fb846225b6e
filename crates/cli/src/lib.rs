//! firstdiff finds the first tensor where a transformer implementation departs from its reference.
//!
//! This crate is the `firstdiff` command. For tests in other repositories [`parity`] (the crate `firstdiff-parity`) is enough, and much smaller:
//!
//! ```no_run
//! firstdiff::assert_parity!(reference: "tests/golden/llama", candidate: "target/dump");
//! ```
//!
//! Only this crate prints and exits. The crates below it can be used by themselves: [`trace`] (taps, dumps, the recorder), [`model`] (weights, plans, the
//! reference forward) and [`compare`] (metrics, verdicts). Modules that only the command needs are hidden here, and may change with any version.

#[doc(hidden)]
pub mod baseline;
#[doc(hidden)]
pub mod bisect;
#[doc(hidden)]
pub mod commands;
mod driver;
#[doc(hidden)]
pub mod output;
mod progress;
#[doc(hidden)]
pub mod render;
pub mod report;
pub mod session;

pub use firstdiff_compare as compare;
pub use firstdiff_model as model;
pub(crate) use firstdiff_parity::words;
pub use firstdiff_parity::{self as parity, NoParity, REPORTS, Sides, assert_parity, check_parity};
pub use firstdiff_trace as trace;
pub use parity::session::arithmetic::CoarserProfile;
pub use session::pair::PairArgs;
pub use session::{Comparison, Session};
