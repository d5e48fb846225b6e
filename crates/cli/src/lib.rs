//! firstdiff finds the first tensor where a transformer implementation departs from its reference.
//!
//! This crate is the `firstdiff` command, and the same as a library for other people's tests:
//!
//! ```no_run
//! firstdiff::assert_parity!(reference: "tests/golden/llama", candidate: "target/dump");
//! firstdiff::assert_parity!(reference: "tests/golden/llama", candidate: "target/dump-bf16", profile: "bf16");
//! ```
//!
//! [`check_parity`] gives the [`report`] itself, tap by tap:
//!
//! ```no_run
//! use firstdiff::{Sides, check_parity};
//! let parity = check_parity(Sides { reference: "tests/golden/llama", candidate: "target/dump" }, None);
//! let report = parity.inspect_err(|failure| println!("{failure}")).expect("parity with PyTorch");
//! assert_eq!(report.counts.unchecked, 0);
//! ```
//!
//! Only this crate prints and exits. What it stands on can be used by itself: [`trace`] (taps, dumps, the recorder),
//! [`model`] (weights, plans, the reference forward) and [`compare`] (metrics, verdicts). Modules that the command needs and nobody else
//! are hidden here, and may change with any version.

#[doc(hidden)]
pub mod baseline;
#[doc(hidden)]
pub mod bisect;
#[doc(hidden)]
pub mod commands;
mod driver;
#[doc(hidden)]
pub mod output;
mod parity;
mod progress;
#[doc(hidden)]
pub mod render;
pub mod report;
pub mod session;
mod words;

pub use firstdiff_compare as compare;
pub use firstdiff_model as model;
pub use firstdiff_trace as trace;
pub use parity::{NoParity, REPORTS, Sides, check_parity};
pub use session::arithmetic::Loosened;
pub use session::pair::PairArgs;
pub use session::{Judged, Session};

/// Panics unless the dump `candidate` is at parity with the dump `reference`; the message is the command's own screen.
///
/// `profile` may be "exact", "f32", "f16", "bf16" or "ggml". By default the dumps say it. Both dumps are named, so that neither is taken for the other:
///
/// ```compile_fail
/// firstdiff::assert_parity!("target/dump", "tests/golden/llama");
/// ```
///
/// Where the variable FIRSTDIFF_REPORTS names a folder, a comparison that fails leaves its page there, and the message names it.
#[macro_export]
macro_rules! assert_parity {
    (@ $reference:expr, $candidate:expr, $profile:expr) => {
        let sides = $crate::Sides { reference: $reference, candidate: $candidate };
        if let ::core::result::Result::Err(failure) = $crate::check_parity(sides, $profile) {
            ::core::panic!("{}", failure.told(::core::concat!(::core::module_path!(), "-", ::core::line!())));
        }
    };
    (reference: $reference:expr, candidate: $candidate:expr $(,)?) => {{
        $crate::assert_parity!(@ $reference, $candidate, ::core::option::Option::None);
    }};
    (reference: $reference:expr, candidate: $candidate:expr, profile: $profile:expr $(,)?) => {{
        $crate::assert_parity!(@ $reference, $candidate, ::core::option::Option::Some($profile));
    }};
    ($($other:tt)*) => {
        ::core::compile_error!("name both sides: assert_parity!(reference: \"tests/golden/llama\", candidate: \"target/dump\"), and if need be a profile: \"bf16\"")
    };
}
