//! Replay and explain on a recorded program: each operation of a candidate judged by the one that the reference ran there.

mod arithmetic;
mod arrays;
mod budget;
mod change;
mod condition;
mod context;
mod edits;
mod explain;
mod findings;
mod first;
mod form;
mod forms;
mod held;
mod judge;
mod kept;
mod laws;
mod layouts;
pub(crate) mod mixture;
mod not_testable;
mod orders;
mod partial;
mod places;
mod products;
mod quantised;
mod replay;
mod replays;
mod routing;
mod rows;
mod search;
mod slices;
mod stand;
mod taken_back;

use firstdiff_compare::{ExpertRows, InReferenceOrder, Place, Profile as Judged, SeenPadding, TapReport};
use firstdiff_model::{Cache, Profile};
use firstdiff_parity::session::Session;
use firstdiff_program::{Arithmetic, Half, Program, Weights};
use firstdiff_trace::{DType, Dump};

pub use crate::program::explain::explain;
pub use crate::program::first::first_tokens;
pub use crate::program::replay::replay;
use crate::replay::operation::is_coarse;

/// A reference's program, with the weights that it reads.
#[derive(Clone, Copy)]
pub struct Recording<'a> {
    /// What it ran.
    pub program: &'a Program,
    /// Its weights.
    pub weights: &'a dyn Weights,
}

/// A candidate, as a comparison with the reference read it.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// Its dump.
    pub dump: &'a Dump,
    /// The same in the steps in which it was recorded.
    pub recorded: &'a Dump,
    /// Its values, in the order in which the reference has them.
    pub values: &'a InReferenceOrder<'a>,
    /// How the comparison lists its taps.
    pub taps: &'a [TapReport],
    /// In which forms the rows of its experts may stand.
    pub experts: &'a ExpertRows,
    /// Probabilities of keys of padding, as the dump shows before its padding is cut off.
    pub padding: &'a [SeenPadding],
    /// Whether there is any: what sees it is wrong then.
    pub is_padded: bool,
    /// In what arithmetic a right candidate works.
    pub profile: Profile,
    /// The type in which it keeps keys and values, and who says so.
    pub cache: (Cache, CacheSaidBy),
    /// Whether the program's tokens are those that it was fed: what reads them is judged only then.
    pub are_tokens_known: bool,
    /// Whether the reference's own values show how far a right run may be off: not where other weights are tried than it ran with.
    pub is_by_the_reference: bool,
}

/// What says in which type keys and values are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheSaidBy {
    /// A dump, or who compares.
    Word,
    /// Values come out right with this type alone.
    Values,
    /// Nothing.
    Nothing,
}

impl CacheSaidBy {
    fn of(session: &Session) -> CacheSaidBy {
        match (session.known_cache(), session.cache_shown_by()) {
            (None, _) => CacheSaidBy::Nothing,
            (_, Some(_)) => CacheSaidBy::Values,
            _ => CacheSaidBy::Word,
        }
    }

    /// Whether values alone say it.
    fn is_assumed(self) -> bool {
        self == CacheSaidBy::Values
    }
}

impl<'a> Candidate<'a> {
    /// As a comparison with the reference read it; `taps`: as that lists them.
    pub fn of(session: &'a Session, values: &'a InReferenceOrder<'a>, taps: &'a [TapReport]) -> Candidate<'a> {
        Candidate {
            dump: &session.candidate,
            recorded: session.recorded()[1],
            values,
            taps,
            experts: &session.experts,
            padding: &session.padding,
            is_padded: session.is_padded,
            profile: profile(session.options.profile, session.options.cache),
            cache: (session.options.cache, CacheSaidBy::of(session)),
            are_tokens_known: true,
            is_by_the_reference: true,
        }
    }

    /// What its profile's arithmetic is called in a program; `None` where it is f64.
    fn arithmetic(&self) -> Option<Arithmetic> {
        arithmetic(self.profile.with_cache(self.cache.0))
    }

    /// The arithmetic of exact values: what the program itself rounds to 16 bits is exact where a right candidate may round it otherwise.
    fn exact(&self) -> Arithmetic {
        if is_coarse(self.profile) { Arithmetic::Wide } else { Arithmetic::F64 }
    }

    /// Whether its numbers stand on steps: one near the edge of a step falls to its other side in another right run.
    fn is_stepped(&self) -> bool {
        is_coarse(self.profile) || self.cache.0 != Cache::F32
    }

    /// The type that a tap was recorded in.
    fn dtype(&self, place: Place) -> DType {
        self.dump.entry(place.tap, place.step).map_or(DType::F64, |entry| entry.dtype)
    }
}

/// The arithmetic of a comparison's profile, with a type of cache.
pub fn profile(named: Judged, cache: Cache) -> Profile {
    match named {
        Judged::Exact => Profile::Exact,
        Judged::F32 => Profile::F32,
        Judged::F16 => Profile::F16,
        Judged::Bf16 => Profile::Bf16,
        Judged::Ggml => Profile::Ggml { cache },
    }
}

/// What a profile's arithmetic is called in a program; `None` where it is f64.
pub fn arithmetic(profile: Profile) -> Option<Arithmetic> {
    match profile {
        Profile::Exact => None,
        Profile::F32 => Some(Arithmetic::F32),
        Profile::Ggml { cache } => Some(Arithmetic::Ggml { cache }),
        Profile::F16 => Some(Arithmetic::Half(Half::F16)),
        Profile::Bf16 => Some(Arithmetic::Half(Half::BF16)),
    }
}

impl std::fmt::Debug for Recording<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recording").field("model", &self.program.model()).finish_non_exhaustive()
    }
}
