//! Judges taps of which one run is known only in part: the corners of a printed tensor, the first values, a few decimals.

use std::borrow::Cow;
use std::collections::HashMap;

use firstdiff_trace::{DType, DumpError, Entry, Partial, Rows, Values, element_count};

use crate::graph::Place;
use crate::judge::cached::move_towards;
use crate::judge::judge;
use crate::judge::tensor::{Difference, Outcome, PairJudgement, Tolerance};
use crate::layout::elements::TensorRef;
use crate::layout::mismatch::{NotComparable, ShapeMismatch};
use crate::layout::pair::Pair;
use crate::layout::rows::are_all;
use crate::layout::types::Layout;
use crate::report::KnownPart;
use crate::report::reason::Reason;
use crate::run::side::Side;
use crate::taps::context::{AsStored, Compared, ComparisonContext, TapJudgement};
use crate::tolerance::allowed_nmse;
use crate::tolerance::context::{DIGITS_SHOW, FEW_OF_A_TAP, PRINTED_SUM};
use crate::tolerance::judge::ROW_ROOM;

/// The energy of values, and that of half a unit of their last digits.
#[derive(Default)]
struct Sharpness {
    energy: f64,
    blur: f64,
}

impl Sharpness {
    fn add(&mut self, known: f64, half_unit: f64) {
        self.energy += if known.is_finite() { known * known } else { 0.0 };
        self.blur += half_unit * half_unit;
    }

    /// Whether the values are hardly larger than the digits that were not printed.
    fn is_lost(&self) -> bool {
        self.energy < DIGITS_SHOW * self.blur
    }
}

/// Elements known on both sides: their index and value on the whole side, and their number on the other.
struct Placement {
    layout: Layout,
    picks: Vec<(usize, f64, usize)>,
}

impl ComparisonContext<'_> {
    /// Judges a place of which one side is known in part.
    pub(crate) fn judge_one_part(
        &self,
        place: Place,
        whole: &Entry,
        part: &Partial,
        side: Side,
    ) -> Result<TapJudgement, DumpError> {
        let part_is_candidate = side == Side::Candidate;
        let dump = if part_is_candidate { self.reference } else { self.candidate };
        let tensor = dump.read(whole)?;
        let values = tensor.values();
        let readings = match readings(whole, &values, part, self.options.rows.as_ref()) {
            Ok(readings) => readings,
            Err(NotComparable::NoRows) => return Ok(TapJudgement::without_rows(self.options.rows.is_some())),
            Err(NotComparable::Shapes(reason)) => return Ok(TapJudgement::ShapeMismatch(reason)),
        };
        let own = self.allowed(place, whole, whole);
        let sides = PartialPair { place, whole, values: &values, part, part_is_candidate, own };
        let mut judged = None;
        for reading in readings {
            let found = match self.judge_part(&sides, &reading) {
                Ok(found) => found,
                Err(reason) => return Ok(TapJudgement::Unchecked(reason)),
            };
            let agrees = found.judgement.outcome.agrees();
            match &judged {
                None if agrees => return Ok(TapJudgement::from(found)),
                None => judged = Some(found),
                Some(plain) if agrees => {
                    let as_stored = Some(AsStored::Compared(Box::new(plain.judgement.clone())));
                    return Ok(TapJudgement::from(Compared { as_stored, ..found }));
                }
                Some(_) => {}
            }
        }
        Ok(match judged {
            None => TapJudgement::NotComparable(Reason::NothingKnown),
            // A list may hold any heads, queries and keys; that it is the beginning of the whole is a guess.
            Some(_) if part.part.shape.is_none() && place.tap.site.position_axis() > 0 => {
                TapJudgement::NotComparable(Reason::ListWithoutShape { values: part.part.elements.len() })
            }
            Some(judged) => TapJudgement::from(judged),
        })
    }

    /// Judges a place where both sides are known in part, by the elements that both have.
    pub(crate) fn judge_two_parts(&self, place: Place, left: &Partial, right: &Partial) -> TapJudgement {
        if left.part.shape != right.part.shape || left.part.elements != right.part.elements {
            return TapJudgement::Unchecked(Reason::OtherPart);
        }
        let (mut r, mut c, mut sharpness) = (Vec::new(), Vec::new(), Sharpness::default());
        for (&a, &b) in left.values.iter().zip(right.values.iter()) {
            let half = left.half_unit(a) + right.half_unit(b);
            sharpness.add(a, half);
            r.push(a);
            c.push(move_towards(b, a, half));
        }
        if sharpness.is_lost() {
            return TapJudgement::Unchecked(too_coarse(right));
        }
        let own = allowed_nmse(self.options.profile, place.tap, self.plan.extent, [DType::F32; 2]);
        let shape = left.part.shape.clone().unwrap_or_default();
        let total: usize = shape.iter().product();
        let judgement = self.judge_values(place, [&r, &c], own, total);
        let part = Some(KnownPart::new(left.part.elements.clone().into(), total, right));
        TapJudgement::from(Compared { judgement, shape, positions: None, layout: Layout::Same, as_stored: None, part })
    }

    fn judge_part(&self, side: &PartialPair<'_>, reading: &Placement) -> Result<Compared, Reason> {
        let (mut reference, mut candidate, mut sharpness) = (Vec::new(), Vec::new(), Sharpness::default());
        for &(_, known, number) in &reading.picks {
            let printed = side.part.values[number];
            let half = side.part.half_unit(printed);
            let printed = move_towards(printed, known, half);
            let (r, c) = if side.part_is_candidate { (known, printed) } else { (printed, known) };
            sharpness.add(known, half);
            reference.push(r);
            candidate.push(c);
        }
        if sharpness.is_lost() {
            return Err(too_coarse(side.part));
        }
        let total = side.values.len();
        let mut judgement = self.judge_values(side.place, [&reference, &candidate], side.own, total);
        if judgement.outcome.agrees()
            && side.part.part.elements.len() < side.part.part.shape.as_ref().map_or(0, |s| s.iter().product())
            && let Some(difference) = side.sums_differ()
        {
            judgement.outcome = Outcome::Differs(difference);
        }
        let elements = reading.picks.iter().map(|(at, ..)| *at).collect();
        let part = Some(KnownPart::new(elements, total, side.part));
        // The readings treat the whole side as the reference.
        let layout = match (&reading.layout, side.part_is_candidate) {
            (Layout::Rows { rows, axes }, false) => Layout::Rows { rows: rows.other(), axes: axes.clone() },
            (layout, _) => layout.clone(),
        };
        let shape = side.whole.shape.clone();
        Ok(Compared { judgement, shape, positions: None, layout, as_stored: None, part })
    }

    /// The judgement of lists of values, out of `total`, in which no rows, heads or channels can be seen.
    fn judge_values(&self, place: Place, [reference, candidate]: [&[f64]; 2], own: f64, total: usize) -> PairJudgement {
        let site = place.tap.site;
        // A few values scatter like those of one row, and are too few to distinguish a factor from chance.
        let few = FEW_OF_A_TAP * reference.len() < total;
        let own = if few { ROW_ROOM * own } else { own };
        let mut shape = vec![1; site.axes().len()];
        if let Some(last) = shape.last_mut() {
            *last = reference.len();
        }
        let (reference, candidate) = (Values::F64(Cow::Borrowed(reference)), Values::F64(Cow::Borrowed(candidate)));
        let left = TensorRef { values: &reference, shape: &shape, rows: None };
        let right = TensorRef { values: &candidate, shape: &shape, rows: None };
        let mut judgement = match Pair::new(site, &left, &right, None) {
            Ok(pair) => judge(&pair, self.options.profile, &Tolerance::rounding_only(own)),
            // Two lists of one length always fit.
            Err(_) => unreachable!("equal shapes"),
        };
        let by_chance = few && matches!(judgement.outcome, Outcome::Differs(Difference::Factor { .. }));
        if judgement.outcome == Outcome::Exact || by_chance {
            judgement.outcome = Outcome::Rounding;
        }
        judgement
    }
}

/// One side whole, the other in part.
struct PartialPair<'a> {
    place: Place,
    whole: &'a Entry,
    values: &'a Values<'a>,
    part: &'a Partial,
    part_is_candidate: bool,
    own: f64,
}

impl PartialPair<'_> {
    /// The difference of the sums over all elements, where one was printed. Programs that print sums compute them in f32.
    fn sums_differ(&self) -> Option<Difference> {
        let (Some(printed), Some(shape)) = (self.part.part.sum, &self.part.part.shape) else { return None };
        let whole = are_all(&self.part.rows) && are_all(&self.whole.rows);
        if !whole || shape.iter().product::<usize>() != self.values.len() {
            return None;
        }
        let (mut sum, mut size, mut energy) = (0.0, 0.0, 0.0);
        for value in (0..self.values.len()).map(|i| self.values.get(i)) {
            (sum, size, energy) = (sum + value, size + value.abs(), energy + value * value);
        }
        if !sum.is_finite() {
            return None;
        }
        let count = self.values.len() as f64;
        let in_f32 = 2.0 * f64::from(f32::EPSILON) * count.sqrt() * size;
        let rounding = 8.0 * (self.own * energy * count).sqrt();
        let off = (printed - sum).abs();
        let agrees = off <= PRINTED_SUM + in_f32 + rounding;
        (!agrees).then_some(match self.part_is_candidate {
            true => Difference::Sum { reference: sum, candidate: printed },
            false => Difference::Sum { reference: printed, candidate: sum },
        })
    }
}

/// The ways to place the part's elements in the whole: as they stand, and with rows of Q and K in the other order.
fn readings(
    whole: &Entry,
    values: &Values<'_>,
    part: &Partial,
    rows: Option<&Rows>,
) -> Result<Vec<Placement>, NotComparable> {
    let site = whole.tap.site;
    let shape = part.part.shape.clone().unwrap_or_else(|| {
        let mut shape = whole.shape.clone();
        if let (Some(Rows::List(list)), Some(extent)) = (&part.rows, shape.get_mut(site.position_axis())) {
            *extent = list.len();
        }
        shape
    });
    let total = element_count(&shape).filter(|&n| n <= 2 * values.len().max(1) * 256);
    let Some(total) = total else {
        let witness = whole.shape.clone();
        return Err(NotComparable::Shapes(ShapeMismatch::Shapes { candidate: shape, witness, may_be_rows: false }));
    };
    if part.part.elements.iter().any(|&at| at >= total) {
        return Err(NotComparable::Shapes(ShapeMismatch::TooManyValues {
            values: part.part.elements.len(),
            of: total,
        }));
    }
    // Each element of the part's tensor gets its own number: that shows its place in the pair under every layout.
    let numbers = Values::F64((0..total).map(|i| i as f64).collect::<Vec<_>>().into());
    let left = TensorRef { values, shape: &whole.shape, rows: whole.rows.as_ref() };
    let right = TensorRef { values: &numbers, shape: &shape, rows: part.rows.as_ref() };
    let pair = Pair::new(site, &left, &right, rows)?;
    let known: HashMap<usize, usize> =
        part.part.elements.iter().enumerate().map(|(number, &at)| (at, number)).collect();
    let pick = |pair: &Pair<'_>| {
        let here = |i: usize| Some((i, pair.reference(i), *known.get(&(pair.candidate(i) as usize))?));
        Placement { layout: pair.layout().clone(), picks: (0..pair.len()).filter_map(here).collect() }
    };
    let mut all = vec![pick(&pair)];
    all.extend(pair.other_row_orders().iter().map(pick));
    all.retain(|reading| !reading.picks.is_empty());
    Ok(all)
}

fn too_coarse(part: &Partial) -> Reason {
    Reason::PrintedTooCoarsely { precision: part.precision().unwrap_or_default() }
}
