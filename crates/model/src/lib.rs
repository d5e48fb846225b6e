//! Loads models as a [`Plan`], and runs the Plan in a numeric profile.
//!
//! A model is a [`Plan`]: a list of steps as data. [`load`] reads config and weights and checks that they agree; [`run`] walks the steps and gives every
//! wanted tap to a sink; [`eval_step`] runs one step on given inputs.
//!
//! Formats: Hugging Face folders (`config.json`; safetensors of f64, f32, f16 or bf16, single or sharded), GGUF of any ggml type,
//! llama2.c's `.bin`, MiniMind's `.json`. Families: llama, mistral, qwen2, qwen3, minimind.
//!
//! The rows of Q and K are ordered as in the checkpoint: RoPE pairs are (i, i + d/2).
//!
//! # Limits
//! No mixtures of experts, no frequencies that depend on the length of the prompt (dynamic NTK, LongRoPE), no padding. A weight file must not be truncated
//! while it is mapped.
//!
//! ```
//! use firstdiff_model::{ModelError, Profile, Prompt, TapValues, load, run};
//!
//! # let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/models/llama");
//! let model = load(path)?;
//! let prompt = Prompt { tokens: &[1, 17, 42], decode_tokens: &[] };
//! let mut shapes = Vec::new();
//! run::<ModelError>(&model.plan, &model.weights, prompt, Profile::F32, |tap| tap.to_string() == "logits", |_, _, values| {
//!     if let TapValues::F32(logits) = values {
//!         shapes.push(logits.shape().to_vec());
//!     }
//!     Ok(())
//! })?;
//! assert_eq!(shapes, [[3, 151]]);
//! # Ok::<(), ModelError>(())
//! ```

mod arithmetic;
mod attention;
mod cache;
mod config;
mod decoder;
mod entry;
mod error;
mod eval;
mod family;
mod file;
mod formats;
pub mod ggml;
mod keys;
mod matmul;
mod model;
mod names;
mod packed;
mod plan;
mod run;
mod storage;
mod weights;

pub use arithmetic::{Profile, RunPrecision, eval_step_in, ggml_activations, ggml_minima};
pub use cache::keep;
pub use config::{Config, Window};
pub use error::ModelError;
pub use eval::{Chunk, eval_step};
pub use formats::{Format, Opened, open as open_weights};
#[doc(hidden)]
pub use formats::{check_gguf, check_llama2c, check_minimind};
pub use model::{Model, load};
pub use names::{gguf as gguf_name, hugging_face as hugging_face_name, meaning};
pub use packed::{Misread, Misreading};
pub use plan::{ModelDims, Op, Plan, Role, Rope, Scores, Step, WeightRef};
pub use run::{Prompt, TapValues, run, run_steps};
pub use storage::{Half, Levels, Packing, Real, Storage};
pub use weights::{WeightView, Weights};

pub use firstdiff_trace::Cache;
