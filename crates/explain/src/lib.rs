//! Finds what is wrong, and where it comes from. Each operation of a recorded run is judged by itself ([`replay`](mod@replay)), and
//! weights against weights ([`weights`]).
//!
//! [`model`] and [`program`] carry out every operation of a model, or of a program that a reference recorded, on the candidate's own recorded inputs: an error
//! upstream cannot hide one here, so one run names every wrong operation. [`weights`] lays the tensors of two files against each other, in whatever format they are.
//!
//! [`explain`](mod@explain) then makes the mistakes of the [catalogue](mistakes::catalogue), until the candidate's own numbers come out:
//!
//! ```
//! use firstdiff_explain::explain::{Effort, Options};
//! use firstdiff_explain::model::explain;
//! use firstdiff_model::{Profile, load};
//! use firstdiff_trace::Dump;
//!
//! # let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
//! # let path = |name: &str| format!("{fixtures}/{name}");
//! let model = load(path("models/llama"))?;
//! let dump = Dump::open(path("faulty/llama-rope-pairing"))?;
//! let options = Options::declared(&dump, Profile::F32).expect("token ids in dump.json");
//! let explanation = explain(&model, &dump, &options, &Effort::quick(), &|_, _, _| {})?;
//! let causes: Vec<&str> = explanation.findings.iter().filter_map(|finding| Some(finding.cause.as_ref()?.id)).collect();
//! assert_eq!(causes, ["rope-pairing"]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod explain;
mod laws;
mod minimum;
pub mod mistakes;
pub mod model;
mod other_weights;
mod paid;
pub mod program;
pub mod replay;
mod tolerance;
pub mod weights;

pub use explain::finding::OtherArithmetic;
pub use explain::misrecorded::taken_back;
pub use explain::misrecorded::words as misrecorded;
pub use laws::Measured;
pub use mistakes::rounding::Rounding;
pub use replay::residual::Fit;
