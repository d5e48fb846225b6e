//! Which operations are wrong in themselves? The program is run once, and takes the candidate's values at every tap that the candidate holds:
//! so each tap is computed from the candidate's own values above it.

use std::collections::{BTreeSet, HashMap};

use firstdiff_compare::{Layout, Place, Status, TapReport, layout_notes};
use firstdiff_model::{Cache, Profile};
use firstdiff_program::{Bench, Program, Slice};
use firstdiff_trace::{DType, QkRows, Site, Tap};

use crate::explain::Effort;
use crate::explain::quantised::OtherArithmetic;
use crate::mistakes::precision::PRECISION;
use crate::program::arithmetic::HeldProducts;
use crate::program::held::Held;
use crate::program::judge::replayed;
use crate::program::kept::explains;
use crate::program::layouts::Decided;
use crate::program::quantised::recognised;
use crate::program::routing::Routed;
use crate::program::{CacheSaidBy, Candidate, Recording};
use crate::replay::operation::{Operation, unit_of};
use crate::replay::{Replay, ReplayError, Replayed};
use crate::tolerance::layouts::ORDER_TELLS;

/// Judges every tap that the candidate recorded. `progress` is told how many of how many taps are done.
///
/// # Errors
/// When a file or a weight cannot be read.
pub fn replay(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replay, ReplayError> {
    Ok(ProgramReplay::run(recording, candidate, progress)?.replays.replay)
}

/// A candidate's values in the reference's program, with the experts that it chose, and how each of its taps is judged.
pub(crate) struct ProgramReplay {
    /// `None` where the recorded one serves.
    pub(super) program: Option<Program>,
    pub(crate) held: Held,
    pub(crate) replays: Replays,
    /// The type of cache that it was judged by.
    pub(crate) cache: Cache,
}

impl ProgramReplay {
    /// Judges it as the comparison read it, and where taps are wrong then, as it may be read as well: with the rows of Q and K in the other order where
    /// it declares none, and without the type of cache that is told, as a narrow one is what an engine may have, not what it must have. Of these that by
    /// which the fewest taps are wrong.
    ///
    /// # Errors
    /// When a file or a weight cannot be read.
    pub(crate) fn run(
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ProgramReplay, ReplayError> {
        let mut judged = ProgramReplay::once(recording, candidate, progress)?;
        let wrong = |judged: &ProgramReplay| judged.replays.wrong().count();
        let taps =
            candidate.values.other_rows().filter(|_| judged.has_wrong_rows()).map(|rows| in_rows(candidate, rows));
        let turned = taps.as_ref().map(|taps| Candidate { taps, ..*candidate });
        let mut read = candidate;
        if let Some(turned) = &turned {
            let other = ProgramReplay::once(recording, turned, progress)?;
            // Of products that are wrong in both orders, those that are nearer in one tell which it is.
            let is_nearer = match (judged.likeness_of_products(), other.likeness_of_products()) {
                (Some(own), Some(turned)) => turned - own >= ORDER_TELLS,
                _ => true,
            };
            if is_nearer && wrong(&other) < wrong(&judged) {
                (judged, read) = (other, turned);
                let rows = turned.taps.iter().filter(|tap| !tap.status.agrees()).filter_map(|tap| tap.layout.as_ref());
                let layouts: Vec<&Layout> = rows.filter(|layout| layout.rows().is_some()).collect();
                judged.replays.replay.warnings.extend(layout_notes(&layouts, "model"));
            }
        }
        if wrong(&judged) > 0 && candidate.cache.0 != Cache::F32 {
            let mut other = ProgramReplay::once(
                recording,
                &Candidate { cache: (Cache::F32, CacheSaidBy::Word), ..*read },
                progress,
            )?;
            let (cache, said_by) = candidate.cache;
            (other.replays.replay.cache, other.replays.replay.cache_is_assumed) = (cache, said_by.is_assumed());
            if wrong(&other) < wrong(&judged) {
                judged = other;
            }
        }
        if candidate.cache == (Cache::F32, CacheSaidBy::Nothing)
            && let Some(cache) = judged.fitting_cache(recording, read)
        {
            let kept = Candidate { cache: (cache, CacheSaidBy::Values), ..*read };
            let other = ProgramReplay::once(recording, &kept, progress)?;
            if explains(&judged.replays.replay, &other.replays.replay) {
                judged = other;
            }
        }
        Ok(judged)
    }

    /// Whether a tap of which the rows have an order is wrong.
    fn has_wrong_rows(&self) -> bool {
        self.replays.wrong().any(|tap| self.held.place(tap).tap.last_site().has_rope_rows())
    }

    /// How near wrong products of which the rows have an order are to what is due, in the mean.
    fn likeness_of_products(&self) -> Option<f64> {
        let wrong = self.replays.replay.taps.iter().filter(|tap| tap.report.status == Status::Diverged);
        let products = wrong.filter(|tap| matches!(tap.report.place.tap.last_site(), Site::Q | Site::K));
        let near: Vec<f64> = products.filter_map(|tap| tap.report.metrics?.correlation()).collect();
        (!near.is_empty()).then(|| near.iter().sum::<f64>() / near.len() as f64)
    }

    fn once(
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<ProgramReplay, ReplayError> {
        let mut decided = Decided::new();
        for round in 1.. {
            let Routed { program, mut held, undecided, counts, notes } = Routed::of(recording, candidate)?;
            let routed = Recording { program: program.as_ref().unwrap_or(recording.program), ..*recording };
            let (mut replays, told) =
                replayed(&routed, candidate, &mut held, (&undecided, &counts), &decided, progress)?;
            if round < ROUNDS && !told.is_empty() {
                decided.extend(told);
                continue;
            }
            replays.replay.warnings.extend(notes);
            return Ok(ProgramReplay { program, held, replays, cache: candidate.cache.0 });
        }
        unreachable!("the last round returns")
    }

    /// What a run looks like of which all products with weights are off alike.
    pub(crate) fn other_arithmetic(
        &mut self,
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        effort: &Effort,
    ) -> Option<OtherArithmetic> {
        let program = self.program.as_ref().unwrap_or(recording.program);
        let exact = Bench::new(program, candidate.exact(), recording.weights);
        let taps = self.replays.taps.iter().map(|&tap| (self.held.place(tap), tap)).collect();
        let mut products = HeldProducts { program, held: &self.held, taps, exact, profile: candidate.profile };
        recognised(&mut products, &mut self.replays.replay).filter(|_| effort.tries(&PRECISION))
    }

    /// What it was judged by.
    pub(crate) fn recording<'a>(&'a self, recording: &Recording<'a>) -> Recording<'a> {
        Recording { program: self.program.as_ref().unwrap_or(recording.program), ..*recording }
    }
}

/// How the comparison lists a candidate's taps, those of Q and K that agree in no order of rows with theirs in this one.
fn in_rows(candidate: &Candidate<'_>, rows: QkRows) -> Vec<TapReport> {
    let turned = |tap: &TapReport| {
        if tap.status.agrees() || !tap.place.tap.last_site().has_rope_rows() {
            return tap.clone();
        }
        let axes = match &tap.layout {
            Some(Layout::Permuted(axes)) => Some(axes.clone()),
            _ => None,
        };
        TapReport { layout: Some(Layout::Rows { rows, axes }), ..tap.clone() }
    };
    candidate.taps.iter().map(turned).collect()
}

/// A replay, and by what its taps were judged.
pub(crate) struct Replays {
    pub(crate) replay: Replay,
    /// For each tap of the replay its index in the program.
    pub(crate) taps: Vec<usize>,
    /// What recording costs a place, and by how much right runs differ there.
    pub(super) noise: HashMap<Place, Costs>,
}

impl Replays {
    /// How a tap was judged.
    pub(crate) fn operation<'t>(&self, tap: &'t Replayed, profile: Profile) -> Operation<'t> {
        let noise = self.noise.get(&tap.report.place).copied().unwrap_or_default();
        operation(tap.report.place, &tap.report.op, profile, !tap.through.is_empty(), noise)
    }
}

/// What recording a place costs, by how much right runs differ there, and what rounding costs where that was measured.
pub(super) type Costs = (f64, f64, Option<f64>);

/// How a tap is judged, by what recording it costs and by how much right runs of it differ.
pub(super) fn operation(
    place: Place,
    name: &str,
    profile: Profile,
    is_span: bool,
    (stored, spread, noise): Costs,
) -> Operation<'_> {
    let (site, is_softmax) = (place.tap.last_site(), place.tap.site == Site::Probs);
    let (noise_before, condition) = (0.0, 1.0);
    Operation {
        place,
        site,
        name,
        profile,
        is_softmax,
        is_span,
        is_recorded: true,
        noise,
        noise_before,
        stored,
        spread,
        condition,
    }
}

/// Rounds of judging: what readers tell of layouts changes what was judged before.
const ROUNDS: usize = 4;

/// The unit by which an arithmetic rounds its values.
pub(crate) fn own_unit(profile: Profile) -> f64 {
    match profile {
        Profile::Exact => 2f64.powi(-53),
        Profile::F32 | Profile::Ggml { .. } => 2f64.powi(-24),
        Profile::F16 => unit_of(DType::F16),
        Profile::Bf16 => unit_of(DType::BF16),
    }
}

pub(crate) fn taps_of(held: &Held, taps: impl Iterator<Item = usize>) -> Vec<Tap> {
    taps.map(|tap| held.place(tap).tap).collect::<BTreeSet<_>>().into_iter().collect()
}

/// The taps that a slice makes on the way, and that are not read as the candidate holds them.
pub(crate) fn between(program: &Program, held: &Held, slice: &Slice<'_>) -> Vec<Tap> {
    taps_of(held, on_the_way(program, slice).into_iter().filter(|&tap| !held.is_read_by(tap, slice.target())))
}

/// The taps that a slice makes on the way, by their index.
pub(crate) fn on_the_way(program: &Program, slice: &Slice<'_>) -> Vec<usize> {
    let ops: BTreeSet<usize> = slice.ops().collect();
    let made = program.taps().iter().enumerate().filter(|(_, tap)| ops.contains(&tap.op)).map(|(number, _)| number);
    made.filter(|&tap| tap != slice.target()).collect()
}
