//! Compares a dump with a golden dump in `cargo test`, and reports where the two diverge.
//!
//! ```no_run
//! firstdiff_parity::assert_parity!(reference: "tests/golden/llama", candidate: "target/dump");
//! firstdiff_parity::assert_parity!(reference: "tests/golden/llama", candidate: "target/dump-bf16", profile: "bf16");
//! ```
//!
//! [`check_parity`] gives the [`report`] itself, tap by tap:
//!
//! ```no_run
//! use firstdiff_parity::{Sides, check_parity};
//! let parity = check_parity(Sides { reference: "tests/golden/llama", candidate: "target/dump" }, None);
//! let report = parity.inspect_err(|failure| println!("{failure}")).expect("parity with PyTorch");
//! assert_eq!(report.counts.unchecked, 0);
//! ```
//!
//! Where the command `firstdiff` is installed, a test that fails also reports the cause, if the golden dump holds the program that made it, and leaves a
//! page. The command is this crate with models, recorded programs and causes. Modules that only it needs are hidden here, and may change with any version.

mod cause;
mod installed;
mod parity;
#[doc(hidden)]
pub mod render;
pub mod report;
#[doc(hidden)]
pub mod session;
#[doc(hidden)]
pub mod words;

pub use firstdiff_compare as compare;
pub use firstdiff_trace as trace;
pub use parity::{NoParity, REPORTS, Sides, check_parity};

/// Panics unless the dump `candidate` is at parity with the dump `reference`; the message is the command's own screen.
///
/// `profile` may be "exact", "f32", "f16", "bf16" or "ggml". By default the dumps declare it. Both dumps are named, so that they cannot be confused:
///
/// ```compile_fail
/// firstdiff_parity::assert_parity!("target/dump", "tests/golden/llama");
/// ```
///
/// Where the variable FIRSTDIFF_REPORTS names a folder, a comparison that fails leaves its page there, and the message gives the page's path.
#[macro_export]
macro_rules! assert_parity {
    (@ $reference:expr, $candidate:expr, $profile:expr) => {
        let sides = $crate::Sides { reference: $reference, candidate: $candidate };
        if let ::core::result::Result::Err(failure) = $crate::check_parity(sides, $profile) {
            ::core::panic!("{}", failure.in_a_test(::core::concat!(::core::module_path!(), "-", ::core::line!())));
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
