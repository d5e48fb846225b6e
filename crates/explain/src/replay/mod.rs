//! Which operations are wrong in themselves? Each step of the Plan is run on the candidate's own recorded inputs.
//!
//! Where an input was not recorded it is computed from the nearest recorded ones, and the finding names the whole stretch.

pub(crate) mod doubts;
pub(crate) mod kept;
pub(crate) mod operation;
pub(crate) mod outliers;
pub(crate) mod padding;
pub(crate) mod reason;
pub(crate) mod recorded;
pub(crate) mod replayed;
pub(crate) mod residual;
pub(crate) mod right;
pub(crate) mod tokens;

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_compare::{Place, SeenPadding, Status, is_masked};
use firstdiff_model::{Cache, Chunk, Model, Op, Profile, Step, eval_step, eval_step_in, keep};
use firstdiff_trace::{DType, Dump, Rows, Site, Tap};
use ndarray::{ArrayD, Axis, concatenate};

use crate::replay::operation::{Operation, is_coarse, loses, lost, unit_of};
use crate::replay::recorded::{Recorded, Unusable};
use crate::replay::right::{distance, jittered};
use crate::tolerance::replay::{FEW_ROWS, INPUT_ROOM};

pub use crate::replay::reason::{InOnePlace, Reason, Unfit, UnfitInput};
pub use crate::replay::replayed::{Options, Replay, ReplayError, Replayed, Rerouted, Routing, shared_out};

/// What is said of scores that are right but for what stands where the mask hides keys.
pub(crate) const UNMASKED: &str = "scores were recorded before they were masked, or hold the buffer's own numbers there: read so, and the probabilities are \
     those of the masked ones";

/// Runs every step of `model` on what `dump` recorded. `progress` is told how many of how many taps are done.
///
/// # Errors
/// When a file cannot be read, or the model's weights do not suit it.
pub fn replay(
    model: &Model,
    dump: &Dump,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replay, ReplayError> {
    Ok(crate::replay::kept::replayed(model, dump, options, progress)?.1)
}

pub(crate) struct Run<'a> {
    pub(crate) recorded: Recorded<'a>,
    pub(crate) profile: Profile,
    /// Whether the tokens are known.
    pub(crate) known: bool,
    /// Whether the order of the rows of Q and K is neither declared nor shown by anything.
    pub(crate) order_is_open: bool,
    /// What was computed for want of a recorded tap: in the profile's arithmetic, and in f64.
    pub(crate) memo: HashMap<Place, ArrayD<f32>>,
    pub(crate) wide: HashMap<Place, ArrayD<f64>>,
    /// NMSE that the recording's rounding of the inputs costs a step.
    pub(crate) of_inputs: HashMap<Place, f64>,
    /// What rounding cost a tap in the steps before, at most.
    noise: HashMap<Tap, f64>,
    /// NMSE by which right runs of a stretch differ from each other.
    pub(crate) rounding_spread: HashMap<Place, f64>,
    /// Scores that leave keys of padding unmasked.
    pub(crate) padding: Vec<SeenPadding>,
}

pub(crate) type Done<T> = Result<T, ReplayError>;
/// A value, or the reason why there is none.
pub(crate) type Found<T> = Done<Result<T, Reason>>;

impl<'a> Run<'a> {
    pub(crate) fn new(model: &'a Model, dump: &'a Dump, options: &Options) -> Run<'a> {
        let decoded = options.decode_tokens.iter().cloned();
        let recorded = Recorded {
            dump,
            model,
            tokens: std::iter::once(options.tokens.clone()).chain(decoded).collect(),
            rows: options.rows.clone(),
            cache: options.cache.unwrap_or_default(),
            declared: dump.meta().qk_rows.filter(|rows| *rows != model.qk_rows),
            layouts: BTreeMap::new(),
            unconfirmed: BTreeMap::new(),
            unordered: BTreeSet::new(),
            left_out: BTreeSet::new(),
        };
        let (memo, wide) = (HashMap::new(), HashMap::new());
        Run {
            recorded,
            profile: options.cache.map_or(options.profile, |cache| options.profile.with_cache(cache)),
            known: options.tokens_are_known,
            order_is_open: false,
            memo,
            wide,
            of_inputs: HashMap::new(),
            noise: HashMap::new(),
            rounding_spread: HashMap::new(),
            padding: options.padding.clone(),
        }
    }

    /// Judges every step, each tap in the layout that it was recorded in. `progress` is told how many of how many are done.
    pub(crate) fn all(&mut self, progress: &mut dyn FnMut(usize, usize)) -> Result<Replay, ReplayError> {
        let (mut taps, mut warnings) = self.in_their_layouts(progress)?;
        warnings.extend(self.forgive_unmasked(&mut taps)?);
        self.compute_what_does_not_fit(&mut taps)?;
        self.leave_out_misrecorded(&mut taps)?;
        self.leave_out_taken_back(&mut taps)?;
        self.leave_out_what_is_right_at_the_end(&mut taps)?;
        self.blame_what_is_beyond(&mut taps)?;
        padding::blame_unmasked_padding(&self.padding, &mut taps);
        warnings.extend(crate::replay::doubts::of(&self.recorded, &taps));
        let (order_is_open, cache) = (self.order_is_open, self.recorded.cache);
        Ok(Replay { taps, routing: Vec::new(), warnings, order_is_open, cache, cache_is_assumed: false })
    }
}

impl Run<'_> {
    /// Judges what reads a tap of another shape as if that tap had not been recorded.
    fn compute_what_does_not_fit(&mut self, taps: &mut [Replayed]) -> Done<()> {
        let unfit = |t: &Replayed| t.is_for(|reason| matches!(reason, Reason::Unfit(Unfit::Shape(_))));
        let places: Vec<Place> = taps.iter().filter(|t| unfit(t)).map(|t| t.report.place).collect();
        if places.is_empty() {
            return Ok(());
        }
        self.recorded.unordered.extend(places);
        let hidden = |t: &Replayed| t.is_for(|reason| matches!(reason, Reason::Input { .. }));
        for tap in taps.iter_mut().filter(|t| hidden(t)) {
            *tap = self.judged_again(tap.report.place)?;
        }
        Ok(())
    }
}

/// How often the rounding of inputs is tried where there are few rows.
const CHANCES: u64 = 8;

/// What is due at a tap, computed from what was recorded.
pub(crate) struct Due {
    /// The positions that the tap holds, where not all.
    pub(crate) positions: Option<Vec<usize>>,
    /// The value in the profile's arithmetic, and in f64.
    pub(crate) right: ArrayD<f32>,
    pub(crate) exact: ArrayD<f64>,
    /// The recorded taps it was computed from, and those between.
    pub(crate) from: Vec<Tap>,
    pub(crate) through: Vec<Tap>,
}

impl Run<'_> {
    pub(crate) fn judge(&mut self, step: &Step, number: u32) -> Done<Replayed> {
        let place = Place { step: number, tap: step.tap };
        if !self.recorded.holds(place) {
            let layout = self.recorded.unconfirmed.get(&place).cloned();
            let reason = layout.map_or(Reason::NotRecorded, Reason::Unconfirmed);
            return Ok(Replayed::unchecked(step, place, reason));
        }
        let due = self.due(step, number)?;
        self.judged(step, place, due.as_ref())
    }

    /// What is due at a recorded tap, or why nobody can say.
    pub(crate) fn due(&mut self, step: &Step, number: u32) -> Found<Due> {
        let place = Place { step: number, tap: step.tap };
        let positions = match self.recorded.positions(place) {
            None => None,
            Some(rows) => match self.listed(&rows, place) {
                Some(list) if rowwise(&step.op) => Some(list),
                Some(_) => return Ok(Err(Reason::NeedsAllPositions)),
                None => return Ok(Err(Reason::PositionsOutside)),
            },
        };
        let computed = match &positions {
            None => self.computed(step, number)?,
            Some(list) => self.computed_rows(step, number, list)?,
        };
        let (right, exact) = match computed {
            Ok(both) => both,
            Err(reason) => return Ok(Err(reason)),
        };
        let (from, through) = self.span(step, number);
        let cost =
            if self.profile == Profile::Exact { 0.0 } else { distance(step.tap.site, &exact, &right.mapv(f64::from)) };
        let known = self.noise.entry(step.tap).or_insert(0.0);
        *known = known.max(cost);
        Ok(Ok(Due { positions, right, exact, from, through }))
    }

    /// What was recorded, in the layout that it has now, held against what is due.
    pub(crate) fn judged(&mut self, step: &Step, place: Place, due: Result<&Due, &Reason>) -> Done<Replayed> {
        let own = match due {
            Ok(Due { positions: Some(list), .. }) => self.recorded.read_rows(place, list),
            _ if self.recorded.positions(place).is_some() => Err(Unfit::Partial.into()),
            _ => self.recorded.read(place),
        };
        let own = match (own, due) {
            (Err(Unusable::Dump(e)), _) => return Err(e.into()),
            (Err(Unusable::Unfit(Unfit::Partial)) | Ok(_), Err(reason)) => {
                return Ok(Replayed::unchecked(step, place, reason.clone()));
            }
            (Err(Unusable::Unfit(unfit)), _) => return Ok(Replayed::unchecked(step, place, Reason::Unfit(unfit))),
            (Ok(own), Ok(_)) => own,
        };
        let Ok(due) = due else { unreachable!("matched above") };
        let positions = due.positions.as_deref();
        let mut replayed = match due.through.is_empty() {
            true if matches!(step.op, Op::Softmax) => {
                let (mut right, mut exact) = (due.right.clone(), due.exact.clone());
                if let Some(Ok((_, scores))) = step.reads.first().map(|&tap| self.value(tap, place.step)).transpose()? {
                    leave_hidden_rows(&mut right, &own, &scores, |x| x as f32);
                    leave_hidden_rows(&mut exact, &own, &scores, |x| x);
                }
                self.verdict(step, place, &own, &right, &exact, false)
            }
            true => self.verdict(step, place, &own, &due.right, &due.exact, false),
            false => self.judge_stretch(step, place, &own, &due.right.mapv(f64::from), &due.exact, positions),
        };
        replayed.report.positions = due.positions.clone();
        (replayed.from, replayed.through) = (due.from.clone(), due.through.clone());
        let attends = |tap: Tap| self.recorded.model.plan.step(tap).is_some_and(|step| step.cached().is_some());
        let is_cached = place.step > 0 && (attends(step.tap) || replayed.through.iter().any(|tap| attends(*tap)));
        replayed.takes_up = is_cached.then_some("the K/V cache of an earlier pass");
        let add = matches!(step.op, Op::Residual { .. }) && replayed.through.is_empty() && due.positions.is_none();
        if replayed.report.status == Status::Diverged && add {
            replayed.fit = self.residual(step, place.step, &own)?;
        }
        Ok(replayed)
    }

    /// The step's value in the profile's arithmetic and in f64, from what was recorded.
    pub(crate) fn computed(&mut self, step: &Step, number: u32) -> Found<(ArrayD<f32>, ArrayD<f64>)> {
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        for &tap in &step.reads {
            let found = if step.cached() == Some(tap) { self.whole(tap, number)? } else { self.value(tap, number)? };
            match found {
                Ok((_, w)) if !can_be_read(tap.site, &w) => {
                    return Ok(Err(Reason::Input { tap, why: UnfitInput::NotFinite }));
                }
                Ok((n, w)) => {
                    narrow.push(n);
                    wide.push(w);
                }
                Err(reason) => return Ok(Err(reason)),
            }
        }
        let tokens = self.recorded.tokens.get(number as usize).cloned().unwrap_or_default();
        if tokens.is_empty() || !self.known && matches!(step.op, Op::Embedding { .. }) {
            return Ok(Err(Reason::NoTokenOfStep(number)));
        }
        let chunk = Chunk { tokens: &tokens, start: self.recorded.start(number) };
        let (right, exact) = self.evaluated(step, &narrow, &wide, chunk)?;
        // A row or two may be hit less by one chance than by another; a sum over a matrix is hit alike by all.
        let few = exact.shape().get(step.tap.site.position_axis()).is_none_or(|&rows| rows < FEW_ROWS);
        let by_chance = few && !matches!(step.op, Op::Linear { .. } | Op::Head);
        // What the recording rounded of what is read.
        if let Some(unit) = self.rounded_inputs(step, number, by_chance) {
            let chances = if by_chance { CHANCES } else { 1 };
            let mut most = 0.0f64;
            for seed in 1..=chances {
                let moved: Vec<ArrayD<f64>> = wide.iter().map(|x| jittered(x, unit, seed)).collect();
                let views: Vec<_> = moved.iter().map(|x| x.view()).collect();
                let moved = eval_step(step, &views, chunk, &self.recorded.model.weights)?;
                most = most.max(distance(step.tap.site, &exact, &moved));
            }
            self.of_inputs.insert(Place { step: number, tap: step.tap }, INPUT_ROOM * most);
        }
        Ok(Ok((right, exact)))
    }

    /// The unit of rounding in which inputs were recorded, where that is coarser than the profile's own values, or than what an engine may go on with that
    /// rounds only what it records: many rows leave room for that, a few (`by_chance`) may not.
    fn rounded_inputs(&self, step: &Step, number: u32, by_chance: bool) -> Option<f64> {
        let kinds = self.span(step, number).0.into_iter().filter_map(|tap| self.recorded.dump.find(tap, number));
        let is_half = |dtype: DType| matches!(dtype, DType::F16 | DType::BF16);
        let is_rounded = |dtype: DType| loses(self.profile, dtype) || by_chance && is_half(dtype);
        kinds.filter(|e| is_rounded(e.dtype)).map(|e| unit_of(e.dtype)).reduce(f64::max)
    }

    pub(crate) fn evaluated(
        &self,
        step: &Step,
        narrow: &[ArrayD<f32>],
        wide: &[ArrayD<f64>],
        chunk: Chunk<'_>,
    ) -> Done<(ArrayD<f32>, ArrayD<f64>)> {
        let weights = &self.recorded.model.weights;
        let views: Vec<_> = wide.iter().map(|x| x.view()).collect();
        let exact = eval_step(step, &views, chunk, weights)?;
        if self.profile == Profile::Exact {
            return Ok((exact.mapv(|x| x as f32), exact));
        }
        let views: Vec<_> = narrow.iter().map(|x| x.view()).collect();
        Ok((eval_step_in(self.profile, step, &views, chunk, weights)?, exact))
    }

    /// A step that looks at each position by itself, at some positions.
    fn computed_rows(&mut self, step: &Step, number: u32, positions: &[usize]) -> Found<(ArrayD<f32>, ArrayD<f64>)> {
        let tokens = self.recorded.tokens.get(number as usize).cloned().unwrap_or_default();
        let mut inputs = Vec::new();
        for &tap in &step.reads {
            let place = Place { step: number, tap };
            if !self.recorded.is_readable(place) && self.recorded.dump.find(tap, number).is_some() {
                return Ok(Err(Reason::Input { tap, why: UnfitInput::LeftOut }));
            }
            match self.recorded.read_rows(place, positions) {
                Ok(rows) => inputs.push(rows),
                Err(Unusable::Dump(e)) => return Err(e.into()),
                Err(Unusable::Unfit(unfit)) => return Ok(Err(Reason::Input { tap, why: unfit.into() })),
            }
        }
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        for (row, &position) in positions.iter().enumerate() {
            let row: Vec<ArrayD<f64>> =
                inputs.iter().map(|x| x.slice_axis(Axis(0), (row..row + 1).into()).to_owned()).collect();
            let rounded: Vec<ArrayD<f32>> = row.iter().map(|x| x.mapv(|x| x as f32)).collect();
            let Some(token) = tokens.get(position..position + 1) else {
                return Ok(Err(Reason::NoTokenAt(position)));
            };
            let chunk = Chunk { tokens: token, start: self.recorded.start(number) + position };
            let (n, w) = self.evaluated(step, &rounded, &row, chunk)?;
            narrow.push(n);
            wide.push(w);
        }
        Ok(joined(&narrow).and_then(|n| Ok((n, joined(&wide)?))))
    }

    /// A tap's own rows in a step: as recorded, or else computed from what it reads.
    pub(crate) fn value(&mut self, tap: Tap, number: u32) -> Found<(ArrayD<f32>, ArrayD<f64>)> {
        let place = Place { step: number, tap };
        if self.recorded.is_readable(place) {
            return match self.recorded.read(place) {
                Ok(wide) => Ok(Ok((wide.mapv(|x| x as f32), wide))),
                Err(Unusable::Dump(e)) => Err(e.into()),
                Err(Unusable::Unfit(unfit)) => Ok(Err(Reason::Input { tap, why: unfit.into() })),
            };
        }
        if let (Some(narrow), Some(wide)) = (self.memo.get(&place), self.wide.get(&place)) {
            return Ok(Ok((narrow.clone(), wide.clone())));
        }
        let Some(step) = self.recorded.model.plan.step(tap) else {
            return Ok(Err(Reason::NotOfTheModel(tap)));
        };
        let computed = self.computed(step, number)?;
        if let Ok((narrow, wide)) = &computed {
            self.memo.insert(place, narrow.clone());
            self.wide.insert(place, wide.clone());
        }
        Ok(computed)
    }

    /// All rows of keys or values up to a step.
    fn whole(&mut self, tap: Tap, number: u32) -> Found<(ArrayD<f32>, ArrayD<f64>)> {
        let (mut narrow, mut wide) = (Vec::new(), Vec::new());
        for step in 0..=number {
            match self.value(tap, step)? {
                Ok((n, w)) => {
                    narrow.push(n);
                    wide.push(w);
                }
                Err(reason) => return Ok(Err(reason)),
            }
        }
        Ok(joined(&narrow).and_then(|n| Ok((n, joined(&wide)?))).map(|(mut narrow, mut wide)| {
            keep(self.recorded.cache, &mut narrow);
            keep(self.recorded.cache, &mut wide);
            (narrow, wide)
        }))
    }

    /// The positions of a tap's rows within the step.
    pub(crate) fn listed(&self, rows: &Rows, place: Place) -> Option<Vec<usize>> {
        let tokens = self.recorded.tokens.get(place.step as usize)?.len();
        let list = match rows {
            Rows::List(list) => list.clone(),
            Rows::Named(firstdiff_trace::NamedRows::All) => (0..tokens).collect(),
            Rows::Named(firstdiff_trace::NamedRows::Last) => vec![tokens.checked_sub(1)?],
        };
        list.iter().all(|&p| p < tokens).then_some(list)
    }

    /// The recorded taps a step is computed from, and those between that were computed.
    pub(crate) fn span(&self, step: &Step, number: u32) -> (Vec<Tap>, Vec<Tap>) {
        let (mut from, mut through) = (BTreeSet::new(), BTreeSet::new());
        let mut open = step.reads.clone();
        while let Some(tap) = open.pop() {
            if self.recorded.is_readable(Place { step: number, tap }) {
                from.insert(tap);
            } else if through.insert(tap)
                && let Some(step) = self.recorded.model.plan.step(tap)
            {
                open.extend(&step.reads);
            }
        }
        (from.into_iter().collect(), through.into_iter().collect())
    }

    /// Judges what came out of several steps; where rounding might be all, it is measured how far right runs part from each other.
    pub(crate) fn judge_stretch(
        &mut self,
        step: &Step,
        place: Place,
        own: &ArrayD<f64>,
        right: &ArrayD<f64>,
        exact: &ArrayD<f64>,
        positions: Option<&[usize]>,
    ) -> Replayed {
        let narrow = right.mapv(|x| x as f32);
        let first = self.verdict(step, place, own, &narrow, exact, true);
        let unclear = first.is_for(Reason::is_unclear);
        // A key near the edge of a step of the cache's type falls to its other side in another right run.
        let through_the_cache = self.recorded.cache != Cache::F32 && first.report.status == Status::Diverged;
        if !unclear && !through_the_cache {
            return first;
        }
        self.know_edges(place, right, positions);
        self.verdict(step, place, own, &narrow, exact, true)
    }

    /// Measures, once, how far right runs part from each other at a place.
    pub(crate) fn know_edges(&mut self, place: Place, right: &ArrayD<f64>, positions: Option<&[usize]>) {
        if !self.rounding_spread.contains_key(&place) {
            self.rounding_spread.insert(place, self.edges_of(place, right, positions));
        }
    }

    pub(crate) fn verdict(
        &self,
        step: &Step,
        place: Place,
        own: &ArrayD<f64>,
        right: &ArrayD<f32>,
        exact: &ArrayD<f64>,
        span: bool,
    ) -> Replayed {
        let right = if self.profile == Profile::Exact { exact.clone() } else { right.mapv(f64::from) };
        let kept = self.as_kept(place, own, &right);
        let own = kept.as_ref().unwrap_or(own);
        let dtype = self.recorded.dump.find(place.tap, place.step).map_or(DType::F64, |e| e.dtype);
        let operation = Operation {
            place,
            site: place.tap.site,
            name: step.op.name(),
            profile: self.profile,
            is_softmax: matches!(step.op, Op::Softmax),
            is_span: span,
            is_recorded: false,
            noise: None,
            noise_before: self.noise.get(&step.tap).copied().unwrap_or(0.0),
            stored: lost(self.profile, dtype) + self.of_inputs.get(&place).copied().unwrap_or(0.0),
            spread: self.rounding_spread.get(&place).copied().unwrap_or(0.0),
            condition: 1.0,
        };
        operation.judged(own, &right, exact)
    }

    /// Whether one operation's rounding is larger than its order of summation.
    pub(crate) fn is_coarse(&self) -> bool {
        is_coarse(self.profile)
    }
}

/// Whether a recorded input has one outcome: finite, and in scores at least one number a row, as a row of -inf alone makes NaN.
pub(crate) fn can_be_read(site: Site, values: &ArrayD<f64>) -> bool {
    match site {
        Site::Scores => values.rows().into_iter().all(|row| {
            row.iter().any(|x| x.is_finite()) && row.iter().all(|x| x.is_finite() || *x == f64::NEG_INFINITY)
        }),
        _ => values.iter().all(|x| x.is_finite()),
    }
}

/// Takes the other's probabilities in rows of which every key is masked, as those of padding: engines make equal numbers or zeros of such a row, and
/// neither is wrong.
pub(crate) fn leave_hidden_rows<E>(
    of: &mut ArrayD<E>,
    other: &ArrayD<f64>,
    scores: &ArrayD<f64>,
    convert: fn(f64) -> E,
) {
    if of.shape() != scores.shape() || other.shape() != scores.shape() {
        return;
    }
    for ((mut row, other), scores) in of.rows_mut().into_iter().zip(other.rows()).zip(scores.rows()) {
        if scores.iter().all(|score| is_masked(Site::Scores, *score)) {
            row.iter_mut().zip(other).for_each(|(value, other)| *value = convert(*other));
        }
    }
}

/// Whether a position of the result depends on that position of the inputs alone.
pub(crate) fn rowwise(op: &Op) -> bool {
    !matches!(op, Op::Qk | Op::Scores(_) | Op::Softmax | Op::Context)
}

pub(crate) fn joined<E: Clone>(parts: &[ArrayD<E>]) -> Result<ArrayD<E>, Reason> {
    let views: Vec<_> = parts.iter().map(|x| x.view()).collect();
    concatenate(Axis(0), &views).map_err(|e| Reason::RowsDoNotFit(e.to_string()))
}
