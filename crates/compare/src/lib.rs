//! Where do two runs of one model part? Metrics, tolerance, the first divergence, and the anatomy of an error.
//!
//! The crate is handed two dumps and a [`Graph`] that says in what order taps are produced and who reads whom; it returns a
//! [`Report`]. It prints nothing, and knows neither weights nor operations.
//!
//! A tap agrees, differs, or is unchecked. Agreement is stated positively and in one place, [`judge`]; a NaN never passes, and what
//! was not checked is neither passed nor blamed.

mod alone;
mod anatomy;
mod batch;
mod cache;
mod counted;
mod custom;
mod cut;
mod doubts;
mod embeddings;
mod extents;
mod first;
mod graph;
mod guess;
mod hidden;
mod inherit;
mod inspect;
mod judge;
mod kept;
mod laid;
mod last;
mod layout;
mod leak;
pub mod metrics;
mod nameless;
mod naming;
mod noise;
mod overlay;
mod pair;
mod parts;
mod positions;
mod prints;
mod probe;
mod profile;
mod readings;
mod reason;
mod report;
mod rotation;
mod rows;
mod settle;
mod shapes;
mod shards;
mod slots;
mod steps;

pub use anatomy::{Anatomy, Change, Undone, anatomy};
pub use batch::{Sequences, spoiled};
pub use cache::{own_rows, own_rows_by};
pub use counted::one_a_token;
pub use custom::LayoutConvention;
pub use embeddings::{Prompt, prompt};
pub use first::{Options, compare, vocabulary_graph};
pub use graph::{Graph, Node, Place, UnrecordedLayers, op_of};
pub use guess::Guess;
pub use inherit::Inherited;
pub use inspect::{Finding, Inspection, Sureness, inspect};
pub use judge::{Allowance, Difference, Judgement, NotFinite, NotFiniteKind, Outcome, judge, size_of};
pub use kept::{ShownCache, cache_nmse, shown_cache};
pub use laid::{Aligned, Laid, align};
pub use last::one_row_of_several;
pub use layout::LayoutCandidates;
pub use leak::{Leak, UNDERFLOW};
pub use naming::{Alias, Evidence, Naming, Proposal, propose};
pub use noise::{DROWNED, NOISE_ROOM, Noise, TapNoise};
pub use pair::{Layout, Misfit, Operand, Pair};
pub use positions::with_positions;
pub use profile::{Extent, Profile, allowed_nmse, storage_nmse};
pub use readings::Stored;
pub use reason::{AxisUnknown, CutError, Missing, Parting, Reason, ShapeMismatch, Side, Unwitnessed, Warning};
pub use report::{FirstDivergence, KnownPart, Report, Status, TapReport, Verdict, index_in_words, number};
pub use settle::{keeps_places, layout_notes};
pub use shards::RankError;
pub use steps::Chunks;
