//! Judges which operations are wrong in themselves. The program is run once, and takes the candidate's values at every tap that the candidate holds:
//! so each tap is computed from the candidate's own values above it.

use firstdiff_compare::{Layout, Status, TapReport, layout_notes};
use firstdiff_model::Cache;
use firstdiff_program::Bench;
use firstdiff_trace::{QkRows, Site};

use crate::explain::Effort;
use crate::explain::finding::OtherArithmetic;
use crate::mistakes::precision::PRECISION;
use crate::program::judge::replayed;
use crate::program::kept::explains;
use crate::program::layouts::Decided;
use crate::program::products::HeldProducts;
use crate::program::quantised::recognised;
use crate::program::replays::ProgramReplay;
use crate::program::routing::Routed;
use crate::program::{CacheSaidBy, Candidate, Recording};
use crate::replay::{Replay, ReplayError};
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

/// Rounds of judging: what readers tell of layouts changes what was judged before.
const ROUNDS: usize = 4;
