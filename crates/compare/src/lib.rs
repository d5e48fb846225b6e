//! Compares two runs of one model: metrics, tolerance, the first divergence, and the anatomy of its error.
//!
//! The crate takes two dumps and a [`Graph`] (the order in which taps are produced, and what each reads), and returns a [`Report`]. It prints nothing, and
//! knows neither weights nor operations.
//!
//! A tap agrees, differs, or is unchecked. Agreement is stated positively and in one place, [`judge`]. A NaN never passes; an unchecked tap neither passes
//! nor is blamed.
//!
//! ```
//! use firstdiff_compare::{Options, Profile, Verdict, compare, graph_of};
//! use firstdiff_trace::Dump;
//!
//! # let fixtures = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures");
//! # let path = |name: &str| format!("{fixtures}/{name}");
//! let reference = Dump::open(path("golden/llama-torch"))?;
//! let candidate = Dump::open(path("faulty/llama-rope-pairing"))?;
//! let graph = graph_of(&reference, &candidate);
//! let report = compare(&reference, &candidate, &graph, &Options::new(Profile::F32), &mut |_, _| {})?;
//! assert_eq!(report.verdict, Verdict::Diverged);
//! let first = report.first.expect("what diverged diverged first somewhere");
//! assert_eq!(report.taps[first.index].place.tap.to_string(), "layers.0.q_rope");
//! # Ok::<(), firstdiff_trace::DumpError>(())
//! ```

mod align;
mod conclude;
mod expert;
mod experts;
mod graph;
mod inspect;
mod judge;
pub mod layout;
pub mod metrics;
mod pipeline;
mod plan;
mod propose;
mod report;
mod rules;
mod run;
mod taps;
mod threads;
mod tolerance;
mod words;

pub use align::chunks::{Aligned, CellsOf, ChunkAlignment, TokenDivergence, Unaligned, align};
pub use expert::is_of_expert;
pub use experts::{
    ExpertPiece, ExpertRows, RightReading, RowVotes, SiteRows, right_readings, row_distance, split_experts,
};
pub use graph::{Graph, Node, Place, UnrecordedLayers, op_of};
pub use inspect::{Certainty, FUTURE_ATTENDED, InspectFinding, Inspection, inspect};
pub use judge::cached::beyond_the_profile;
pub use judge::cached::move_towards;
pub use judge::choice::{choice_margin, margin_of_best};
pub use judge::inherited::Inherited;
pub use judge::judge;
pub use judge::leak::Leak;
pub use judge::tensor::{Difference, NotFinite, NotFiniteKind, Outcome, PairJudgement, Tolerance, size_of};
pub use layout::candidates::LayoutCandidates;
pub use layout::convention::LayoutConvention;
pub use layout::elements::TensorRef;
pub use layout::mismatch::{NotComparable, ShapeMismatch};
pub use layout::pair::Pair;
pub use layout::row_order::row_order;
pub use layout::strided::StridedLayout;
pub use layout::types::{Layout, layout_notes};
pub use pipeline::{InReferenceOrder, compare, graph_of};
pub use propose::guess::{NextTap, ProposalBasis};
pub use propose::names::{Alias, Naming, Proposal, propose, unnamed};
pub use report::anatomy::{Anatomy, Change, RankError, Transform, anatomy};
pub use report::detail::{DifferenceHistogram, GroupErrors, ProbabilityMaps, TapDetail, ValuePair};
pub use report::log::{LogEntry, Stage, Standing};
pub use report::noise::{Noise, TapNoise};
pub use report::reason::{OtherChoice, RankShortfall, Reason, Warning};
pub use report::{FirstDivergence, KnownPart, Report, Status, TapReport, Verdict};
pub use run::batch::{Sequences, grids, sign_of_error};
pub use run::embeddings::{Prompt, prompt, rows_of};
pub use run::infer_steps::one_a_token;
pub use run::kv_cache::{own_rows, own_rows_by};
pub use run::last::one_row_of_several;
pub use run::misaligned::{Contradiction, Misaligned, UnknownPositions};
pub use run::padding::{is_padded, without_padding};
pub use run::positions::with_positions;
pub use run::seen_padding::{SeenPadding, seen_padding};
pub use run::shown_cache::{ShownCache, shown_cache};
pub use run::side::Side;
pub use run::slice::{AxisUnknown, CutError};
pub use run::steps::Chunks;
pub use run::tokens::{TokenEdits, token_edits};
pub use taps::choice::{CHOICE, WEIGHTS};
pub use taps::context::{JudgedBefore, Options};
pub use taps::share::{JudgedShare, Share, judge_share};
pub use tolerance::context::NOISE_ROOM;
pub use tolerance::judge::{MASKED, SECOND_RUN_LIMIT, UNDERFLOW, is_masked};
pub use tolerance::layout::CHANGE_LEAVES;
pub use tolerance::run::{SIXTEEN_BITS_DIGITS, SIXTEEN_BITS_NUMBERS, SIXTEEN_BITS_TAPS, SIXTEEN_BITS_VALUES};
pub use tolerance::{Extent, Profile, allowed_nmse, cache_nmse, storage_nmse};
pub use words::{index_in_words, number, ranges, unravel};
