//! Are the products with weights right, but in another arithmetic? All of them off alike and without structure, and nothing else: then weights or
//! activations are rounded to few bits, and no operation is wrong. Which rounding it is, is imitated on what was recorded.

use std::collections::{BTreeSet, HashSet};

use firstdiff_compare::{Outcome, Place, Profile as Judged, Status};
use firstdiff_model::{Half, Op, Profile};
use firstdiff_trace::{Site, Tap};
use ndarray::{Array2, ArrayD};

use crate::explain::finding::{Cause, Finding, Match};
use crate::mistakes::precision::PRECISION;
use crate::mistakes::rounding::{Grid, KINDS, Over, Rounding, activation_grids, weight_grids};
use crate::replay::reason::Reason;
use crate::replay::replayed::{Replay, Replayed};
use crate::replay::right::compared;
use crate::replay::{Done, Run};
use crate::tolerance::search::{
    NEAR_ROUNDING_LEAVES, NEARLY_ALL, OFF_ALIKE, OWN_FAULT, QUANTISED_NMSE, ROUNDING_LEAVES,
};

/// Another arithmetic of the products with weights, and how it was imitated.
#[derive(Clone, Debug)]
pub struct OtherArithmetic {
    /// The products that are off alike.
    pub places: Vec<Place>,
    /// How many products could be judged.
    pub judged: usize,
    /// Whether every other operation that could be judged is right.
    pub alone: bool,
    /// The least and the largest NMSE of those that are off.
    pub nmse: [f64; 2],
    /// The rounding that comes nearest, where it takes a good part of the error away.
    pub nearest: Option<Rounding>,
    /// What it leaves of the error: NMSE, the worst of all places, and the median share.
    pub residual_nmse: f64,
    /// The median, over all places, of what it leaves of their own error.
    pub share: f64,
}

/// A run of which products with weights are looked at.
pub(crate) trait Products {
    /// Whether a tap is a product with a matrix of weights.
    fn is_product(&self, place: Place) -> bool;

    /// What was multiplied, and what came of it; `None` where that is not known.
    ///
    /// # Errors
    /// When a file cannot be read.
    fn product(&mut self, place: Place) -> Done<Option<Product>>;

    /// Of a tap that is looked up in a table of weights, what the candidate has and what is right, \[T,D\], and what the rows are multiplied by.
    ///
    /// # Errors
    /// When a file cannot be read.
    fn looked_up(&mut self, place: Place) -> Done<Option<([Array2<f64>; 2], f64)>>;
}

/// What a run looks like in which all products with weights are off alike; `None` where they are not. Of products that are off and have
/// structure of their own, the reason is set to that.
///
/// # Errors
/// When a file cannot be read.
pub(crate) fn recognised(run: &mut impl Products, replay: &mut Replay) -> Done<Option<OtherArithmetic>> {
    let product = |t: &Replayed| run.is_product(t.report.place) && t.through.is_empty();
    let known = |t: &&Replayed| t.report.status.agrees() || t.report.status == Status::Diverged;
    let (products, others): (Vec<&Replayed>, Vec<&Replayed>) =
        replay.taps.iter().filter(known).partition(|t| product(t));
    let off = |t: &&&Replayed| {
        let nmse = t.report.metrics.and_then(|m| m.nmse());
        t.is_at_fault() && nmse.is_some_and(|n| QUANTISED_NMSE.contains(&n))
    };
    let candidates: Vec<(Place, f64)> =
        products.iter().filter(off).filter_map(|t| Some((t.report.place, t.report.metrics?.nmse()?))).collect();
    let judged = products.len();
    let others: Vec<Place> =
        others.iter().filter(|t| t.report.status == Status::Diverged).map(|t| t.report.place).collect();
    if (candidates.len() as f64) < NEARLY_ALL * judged as f64 || kinds(&candidates) < KINDS {
        return Ok(None);
    }
    let mut sizes: Vec<f64> = candidates.iter().map(|c| c.1).collect();
    sizes.sort_by(f64::total_cmp);
    let median = sizes[sizes.len() / 2];
    let mut structured = Vec::new();
    let mut alike = Vec::new();
    for (place, nmse) in candidates {
        let Some(product) = run.product(place)? else { continue };
        match compared(
            place.tap.site,
            &product.shaped(&product.right),
            &product.shaped(&product.own),
            Judged::Ggml,
            2.0 * nmse,
        )
        .0
        .outcome
        {
            Outcome::Differs(difference) => structured.push((place, difference)),
            _ if nmse <= OFF_ALIKE * median => alike.push((place, nmse)),
            _ => {}
        }
    }
    if (alike.len() as f64) < NEARLY_ALL * judged as f64 || kinds(&alike) < KINDS {
        return Ok(None);
    }
    let least = alike.iter().map(|a| a.1).fold(f64::INFINITY, f64::min);
    let most = alike.iter().map(|a| a.1).fold(0.0, f64::max);
    let places: Vec<Place> = alike.iter().map(|a| a.0).collect();
    let mut found = OtherArithmetic {
        judged,
        alone: false,
        nmse: [least, most],
        nearest: None,
        residual_nmse: most,
        share: 1.0,
        places,
    };
    found.simulate(run, &alike)?;
    for (place, difference) in structured {
        // The rounding that gives the others' numbers may have structure by itself, as where one channel has a large weight.
        if found.leaves_little_of(run, place)? {
            found.places.push(place);
        } else if let Some(tap) = replay.taps.iter_mut().find(|t| t.report.place == place) {
            tap.reason = Some(Reason::DiffersAlone(difference));
        }
    }
    let weights = found.nearest.and_then(|rounding| rounding.weights).filter(|_| found.is_reproduced());
    let mut alone = true;
    for place in others {
        match weights {
            Some(grid) if looks_up_rounded(run, place, grid)? => {
                found.places.push(place);
                found.judged += 1;
            }
            _ => alone = false,
        }
    }
    found.alone = alone;
    Ok(Some(found))
}

/// Whether a place is the embedding, of a table whose rows are rounded as the weights are.
fn looks_up_rounded(run: &mut impl Products, place: Place, grid: Grid) -> Done<bool> {
    let Some(([own, right], scale)) = run.looked_up(place)?.filter(|_| grid.over != Over::Tensor) else {
        return Ok(false);
    };
    let distance =
        |made: &Array2<f64>| own.iter().zip(made).map(|(own, made)| (own - scale * made).powi(2)).sum::<f64>();
    let mut rounded = right.clone();
    grid.round(&mut rounded);
    Ok(distance(&rounded) <= ROUNDING_LEAVES * distance(&right))
}

impl Products for Run<'_> {
    fn is_product(&self, place: Place) -> bool {
        let step = self.recorded.model.plan.step(place.tap);
        step.is_some_and(|step| matches!(step.op, Op::Linear { .. } | Op::Head))
    }

    fn product(&mut self, place: Place) -> Done<Option<Product>> {
        let model = self.recorded.model;
        let Some(step) = model.plan.step(place.tap) else { return Ok(None) };
        let Ok(own) = self.recorded.read(place) else { return Ok(None) };
        let Ok((_, x)) = self.value(step.reads[0], place.step)? else { return Ok(None) };
        let Some(x) = flat(&x) else { return Ok(None) };
        let view = |at: usize| model.weights.view(*step.weights.get(at)?).ok();
        let Some((w, &[rows, columns])) = view(0).map(|w| (w, w.shape())) else { return Ok(None) };
        let first = if rows * columns <= WHOLE { 0 } else { rows.saturating_sub(OUTPUTS) };
        let bias = match step.weights.len() {
            0 | 1 => None,
            _ => match view(1) {
                Some(bias) => Some(bias.vector::<f64>().to_vec()),
                None => return Ok(None),
            },
        };
        Ok(Product::new(self.profile, own, x, (w.rows::<f64>(first..rows), first), bias))
    }

    fn looked_up(&mut self, place: Place) -> Done<Option<([Array2<f64>; 2], f64)>> {
        let model = self.recorded.model;
        let step = model.plan.step(place.tap).and_then(|step| Some((&step.op, *step.weights.first()?)));
        let Some((&Op::Embedding { scale }, table)) = step else { return Ok(None) };
        let (Ok(own), Ok(view)) = (self.recorded.read(place), model.weights.view(table)) else { return Ok(None) };
        let (Some(own), &[rows, width]) = (flat(&own), view.shape()) else { return Ok(None) };
        let Some(tokens) = self.recorded.tokens.get(place.step as usize) else { return Ok(None) };
        let ids: Vec<usize> = tokens.iter().map(|&token| token as usize).filter(|&token| token < rows).collect();
        if own.dim() != (ids.len(), width) {
            return Ok(None);
        }
        let mut right = Array2::zeros(own.dim());
        for (mut row, id) in right.rows_mut().into_iter().zip(ids) {
            row.assign(&view.rows::<f64>(id..id + 1).row(0));
        }
        Ok(Some(([own, right], scale)))
    }
}

/// How many kinds of products there are among `places`.
fn kinds(places: &[(Place, f64)]) -> usize {
    places.iter().map(|(place, _)| place.tap.site).collect::<BTreeSet<Site>>().len()
}

/// Products that are looked at for the best rounding, of as many kinds; and weight rounding that is tried with every rounding of activations.
const LOOKED_AT: usize = 4;
const BEST: usize = 6;

impl OtherArithmetic {
    /// Whether an imitation gives the candidate's numbers, to a hundredth of the error.
    pub fn is_reproduced(&self) -> bool {
        self.nearest.is_some() && self.share <= ROUNDING_LEAVES
    }

    /// Takes its place among what was found: before all, where nothing else gives the same, and in place of what is unknown of the products.
    pub(crate) fn take_up(self, findings: &mut Vec<Finding>, replay: &Replay) {
        let of_it = |f: &Finding| f.shown_at.iter().all(|place| self.places.contains(place));
        let stated = |f: &Finding| f.matched == Match::Reproduced;
        let rounds = |f: &&Finding| stated(f) && f.is_another_arithmetic();
        let holds = |place: &Place| findings.iter().filter(rounds).any(|f| f.shown_at.contains(place));
        if !findings.iter().filter(rounds).any(of_it) && !self.places.iter().all(holds) {
            findings.retain(|f| stated(f) || !of_it(f));
            // What is wrong beside it in one place is not wrong in those that are off alike.
            for finding in findings.iter_mut().filter(|f| !stated(f)) {
                let is_other = |place: &Place| !self.places.contains(place);
                let (shown, off): (Vec<Place>, Vec<Place>) = finding.shown_at.iter().partition(|place| is_other(place));
                let is_off = |tap: &Tap| off.iter().any(|p| p.tap == *tap) && !shown.iter().any(|p| p.tap == *tap);
                finding.taps.retain(|tap| !is_off(tap));
                finding.remainders.retain(|left| is_other(&left.place));
                finding.shown_at = shown;
            }
            findings.insert(0, self.finding(replay));
        }
    }

    /// What is said of it as a finding: no operation is to blame.
    fn finding(self, replay: &Replay) -> Finding {
        let matched = match self.nearest {
            Some(_) if self.is_reproduced() => Match::Reproduced,
            Some(_) => Match::Closest,
            None => Match::Unknown,
        };
        let cause = self.nearest.map(|rounding| Cause { id: PRECISION.id, params: rounding.params() });
        let (stated, near) = if matched == Match::Reproduced { (cause, None) } else { (None, cause) };
        let mut met = HashSet::new();
        let off = replay.taps.iter().map(|t| t.report.place).filter(|place| self.places.contains(place));
        let taps = off.map(|place| place.tap).filter(|tap| met.insert(*tap)).collect();
        Finding {
            taps,
            shown_at: self.places.clone(),
            op: "linear".into(),
            cause: stated,
            residual_nmse: self.residual_nmse,
            base_nmse: self.nmse[1],
            alternatives: near.into_iter().collect(),
            arithmetic: Some(self),
            ..Finding::without_cause(matched)
        }
    }

    /// Whether the rounding that was found takes nearly all of a product's error away.
    fn leaves_little_of(&self, run: &mut impl Products, place: Place) -> Done<bool> {
        let Some(rounding) = self.nearest else { return Ok(false) };
        Ok(run.product(place)?.is_some_and(|product| product.left_by(rounding) <= OWN_FAULT))
    }

    fn simulate(&mut self, run: &mut impl Products, alike: &[(Place, f64)]) -> Done<()> {
        let mut sample: Vec<Product> = Vec::new();
        let mut seen = BTreeSet::new();
        for (place, _) in alike.iter().filter(|(place, _)| place.step == 0) {
            if sample.len() < LOOKED_AT && seen.insert(place.tap.site) {
                sample.extend(run.product(*place)?);
            }
        }
        let left = |rounding: Rounding| -> f64 {
            let logs = sample.iter().map(|product| product.left_by(rounding).max(1e-12).ln());
            logs.sum::<f64>() / sample.len().max(1) as f64
        };
        let mut by_weights: Vec<(f64, Rounding)> = weight_grids()
            .map(|weights| Rounding { weights, activations: None })
            .map(|rounding| (left(rounding), rounding))
            .collect();
        by_weights.sort_by(|a, b| a.0.total_cmp(&b.0));
        let none = by_weights.iter().copied().find(|(_, r)| r.weights.is_none());
        let mut all: Vec<(f64, Rounding)> = by_weights.iter().copied().take(BEST).chain(none).collect();
        for (_, rounding) in all.clone() {
            let with = |activations| Rounding { activations: Some(activations), ..rounding };
            all.extend(activation_grids().map(|grid| (left(with(grid)), with(grid))));
        }
        let Some((_, best)) = all.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)) else { return Ok(()) };
        let mut shares: Vec<(Place, f64, f64)> = Vec::new();
        for (place, nmse) in alike {
            if let Some(product) = run.product(*place)? {
                shares.push((*place, product.left_by(best), *nmse));
            }
        }
        let mut sorted: Vec<f64> = shares.iter().map(|(_, share, _)| *share).collect();
        sorted.sort_by(f64::total_cmp);
        let share = sorted.get(sorted.len() / 2).copied().unwrap_or(1.0);
        // Where nearly all come out, what does not has a fault of its own.
        if share <= ROUNDING_LEAVES {
            shares.retain(|(_, share, _)| *share <= OWN_FAULT);
            self.places = shares.iter().map(|(place, ..)| *place).collect();
        }
        let worst = shares.iter().map(|(_, share, nmse)| share * nmse).fold(0.0, f64::max);
        // Written so that a NaN is no likeness.
        if share <= NEAR_ROUNDING_LEAVES && (best.weights.is_some() || best.activations.is_some()) {
            (self.nearest, self.share, self.residual_nmse) = (Some(best), share, worst);
        }
        Ok(())
    }
}

/// Rows of activations, and of the matrix, that are multiplied: the last of each.
const ROWS: usize = 32;
const OUTPUTS: usize = 128;

/// A product with weights, part of it, as the candidate recorded it.
pub(crate) struct Product {
    /// All activations, \[T,in\].
    x: Array2<f64>,
    /// The whole matrix of small ones, else its last rows, \[out,in\].
    w: Array2<f64>,
    /// What is added to the columns, where there is a bias.
    bias: Option<Vec<f64>>,
    /// What the candidate recorded, and what is right, \[T,out\].
    own: Array2<f64>,
    right: Array2<f64>,
    shape: Vec<usize>,
    /// The first of the matrix's rows in `w`.
    first: usize,
    half: Option<Half>,
}

/// Matrices up to so many elements are rounded whole, so that a scale of a whole tensor can be had.
const WHOLE: usize = 1 << 22;

impl Product {
    /// Rows `first` and on of a matrix, times activations \[T,in\]; `None` where the extents do not fit.
    pub(crate) fn new(
        profile: Profile,
        own: ArrayD<f64>,
        x: Array2<f64>,
        (w, first): (Array2<f64>, usize),
        bias: Option<Vec<f64>>,
    ) -> Option<Product> {
        let shape = own.shape().to_vec();
        let own = own.as_standard_layout().into_owned().into_shape_with_order((x.nrows(), first + w.nrows())).ok()?;
        if x.ncols() != w.ncols() {
            return None;
        }
        let half = match profile {
            Profile::F16 => Some(Half::F16),
            Profile::Bf16 => Some(Half::BF16),
            _ => None,
        };
        let mut product = Product { x, w, bias, right: own.clone(), own, shape, first, half };
        let right = product.multiplied(&product.x, &product.w, 0..product.x.nrows(), 0);
        product.right.slice_mut(ndarray::s![.., first..]).assign(&right);
        Some(product)
    }

    /// Rows `tokens` of x times rows of w from `from` on, and the bias.
    fn multiplied(&self, x: &Array2<f64>, w: &Array2<f64>, tokens: std::ops::Range<usize>, from: usize) -> Array2<f64> {
        let mut out = x.slice(ndarray::s![tokens, ..]).dot(&w.slice(ndarray::s![from.., ..]).t());
        for mut row in out.rows_mut() {
            for (column, y) in row.iter_mut().enumerate() {
                *y += self.bias.as_ref().map_or(0.0, |bias| bias[self.first + from + column]);
                *y = self.half.map_or(*y, |half| f64::from(half.round(*y as f32)));
            }
        }
        out
    }

    /// In the tap's own shape.
    fn shaped(&self, x: &Array2<f64>) -> ArrayD<f64> {
        x.clone().into_shape_with_order(self.shape.clone()).unwrap_or_else(|_| x.clone().into_dyn())
    }

    /// The share of the error that this rounding leaves.
    fn left_by(&self, rounding: Rounding) -> f64 {
        let (mut x, mut w) = (self.x.clone(), self.w.clone());
        if let Some(grid) = rounding.activations {
            grid.round(&mut x);
        }
        // A scale of a whole tensor needs all of it.
        if rounding.weights.is_some_and(|grid| grid.over == Over::Tensor) && self.first > 0 {
            return f64::INFINITY;
        }
        if let Some(grid) = rounding.weights {
            grid.round(&mut w);
        }
        let tokens = self.x.nrows().saturating_sub(ROWS)..self.x.nrows();
        let from = w.nrows().saturating_sub(OUTPUTS);
        let made = self.multiplied(&x, &w, tokens.clone(), from);
        let part = ndarray::s![tokens, self.first + from..];
        let (own, right) = (self.own.slice(part), self.right.slice(part));
        let distance = |other: ndarray::ArrayView2<'_, f64>| -> f64 {
            own.iter().zip(other).map(|(own, other)| (own - other).powi(2)).sum()
        };
        distance(made.view()) / distance(right)
    }
}

/// All axes but the first merged.
fn flat(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    let rows = x.shape().first().copied()?;
    let columns = x.len().checked_div(rows)?;
    x.as_standard_layout().into_owned().into_shape_with_order((rows, columns)).ok()
}
