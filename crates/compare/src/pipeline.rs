//! Compares two dumps: runs the stages of a comparison in order. Each stage is a folder beside this file, and hands a type to the next.
//!
//! 1. `plan`: [`AlignmentPlan`], which token positions the two runs hold, by what the dumps declare and their shapes show.
//!    Runs with different chunks are aligned before, by [`crate::align()`].
//! 2. `taps`: every tap by itself, in forward order: [`AlignedTap`], its two sides or why it has none; then [`TapJudgement`], in the `layout` that
//!    fits, by the verdict function of `judge`, and again with the errors that its operation may have passed on from its inputs.
//! 3. `rules`: [`Attributed`], judgements revised by rules over all taps. A judgement is never changed: a rule gives another, which is logged.
//! 4. `conclude`: [`Report`], with status by the graph, verdict, first divergence, and what this input could not have shown.
//!
//! `run` holds what is known of a single run: its steps, their positions, its K/V cache.
//!
//! [`AlignmentPlan`]: crate::plan::AlignmentPlan
//! [`AlignedTap`]: crate::taps::aligned::AlignedTap
//! [`TapJudgement`]: crate::taps::context::TapJudgement
//! [`Attributed`]: crate::rules::Attributed

use firstdiff_trace::{Dump, DumpError, QkRows, Values};

use crate::graph::{Graph, Place};
use crate::layout::candidates::LayoutCandidates;
use crate::layout::types::Layout;
use crate::report::detail::TapDetail;
use crate::report::{Report, TapReport};
use crate::rules::attribute;
use crate::taps::context::{ComparisonContext, Options};
use crate::taps::judge_taps;
use crate::threads;

/// Compares `candidate` with `reference`. `graph` gives the order in which taps are produced and what each reads; without a model, use [`graph_of`].
/// `progress` is called before each tap with its number and their count.
///
/// # Errors
/// When a file cannot be read. A difference is no error.
pub fn compare(
    reference: &Dump,
    candidate: &Dump,
    graph: &Graph,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Report, DumpError> {
    let run = ComparisonContext::new(reference, candidate, graph, options);
    let judged = judge_taps(&run, progress)?;
    let attributed = attribute(&run, judged)?;
    run.conclude(attributed)
}

/// The candidate's values in the reference's order, by the layouts in which a comparison read them.
pub struct InReferenceOrder<'a> {
    run: ComparisonContext<'a>,
}

impl std::fmt::Debug for InReferenceOrder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InReferenceOrder").finish_non_exhaustive()
    }
}

impl<'a> InReferenceOrder<'a> {
    /// The two sides as [`compare`] was given them.
    pub fn new(
        reference: &'a Dump,
        candidate: &'a Dump,
        graph: &'a Graph,
        options: &'a Options,
    ) -> InReferenceOrder<'a> {
        InReferenceOrder { run: ComparisonContext::new(reference, candidate, graph, options) }
    }

    /// The candidate's values of a tap of that comparison, one for each of [`TapReport::shape`]; `None` where it was not compared whole.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn values(&self, tap: &TapReport) -> Result<Option<Vec<f64>>, DumpError> {
        let Some(layout) = tap.layout.as_ref().filter(|_| tap.part.is_none()) else { return Ok(None) };
        self.values_in(tap.place, layout)
    }

    /// What can be drawn of taps of that comparison; `None` for a tap that was not compared whole.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn details(&self, taps: &[&TapReport]) -> Result<Vec<Option<TapDetail>>, DumpError> {
        let detail = |tap: &&TapReport| match tap.layout.as_ref().filter(|_| tap.part.is_none()) {
            Some(layout) => {
                self.run.with_pair(tap.place, layout, |pair, _| TapDetail::measure(pair).in_shape(pair, &tap.shape))
            }
            None => Ok(None),
        };
        threads::map(taps.len(), |i| detail(&taps[i])).into_iter().collect()
    }

    /// The candidate's values of a place in a layout; `None` where the two cannot be paired in it.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn values_in(&self, place: Place, layout: &Layout) -> Result<Option<Vec<f64>>, DumpError> {
        self.run.with_pair(place, layout, |pair, _| (0..pair.len()).map(|i| pair.candidate(i)).collect())
    }

    /// Passes on the layouts in which the candidate's values of a place may stand, beside other values than the reference's, as many and in its order; `None`
    /// where they are not as many, or not both sides have the tap.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn beside<X>(
        &self,
        place: Place,
        due: &[f64],
        then: impl FnOnce(&LayoutCandidates<'_>) -> X,
    ) -> Result<Option<X>, DumpError> {
        let (Some(left), Some(right)) = self.run.both(place) else { return Ok(None) };
        let is_whole = left.rows.is_none() && right.rows.is_none();
        if !is_whole || left.shape.iter().product::<usize>() != due.len() {
            return Ok(None);
        }
        let (due, candidate) = (Values::F64(due.into()), self.run.candidate.read(&right)?);
        let candidate = candidate.values();
        Ok(Some(then(self.run.tap_judge(&left, &due, &right, &candidate).sides())))
    }

    /// What is wrong in the candidate's tap beyond the reference's part.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn padding_error(&self, tap: &TapReport) -> Result<Option<String>, DumpError> {
        let Some(layout) = &tap.layout else { return Ok(None) };
        self.run.with_tap_judge(tap.place, |sides, _| sides.padding_error(layout)).map(Option::flatten)
    }
}

impl InReferenceOrder<'_> {
    /// Whether both sides are the same dump: then agreement shows nothing.
    pub fn is_of_one_dump(&self) -> bool {
        let whole = |dump: &Dump| dump.path().canonicalize().ok();
        whole(self.run.reference).is_some_and(|path| Some(path) == whole(self.run.candidate))
    }

    /// The RoPE order of the rows of Q and K that the candidate may have as well as the reference's: the other one, where it declares none.
    pub fn other_rows(&self) -> Option<QkRows> {
        let [ours, theirs] = [self.run.reference, self.run.candidate].map(|dump| dump.meta().qk_rows);
        ours.filter(|_| theirs.is_none()).map(QkRows::other)
    }

    /// Whether a tap may stand in a layout by the orders of the rows of Q and K that both sides declare.
    pub fn permits(&self, place: Place, layout: &Layout) -> bool {
        let [ours, theirs] = [self.run.reference, self.run.candidate].map(|dump| dump.meta().qk_rows);
        let is_open = ours.is_none() || theirs.is_none() || !place.tap.last_site().has_rope_rows();
        is_open || layout.rows() == self.run.declared()
    }

    /// The reference's values of a tap; `None` where it was not recorded whole.
    ///
    /// # Errors
    /// When a file cannot be read.
    pub fn reference(&self, place: Place) -> Result<Option<Vec<f64>>, DumpError> {
        let reference = self.run.reference;
        let entry = reference.entry(place.tap, place.step).filter(|entry| entry.rows.is_none());
        entry.map(|entry| Ok(reference.read(&entry)?.values().to_f64())).transpose()
    }
}

/// The graph of two dumps, without a model: see [`Graph::from_dumps`].
pub fn graph_of(reference: &Dump, candidate: &Dump) -> Graph {
    Graph::from_dumps(reference, candidate, None)
}
