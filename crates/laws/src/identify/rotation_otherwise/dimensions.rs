//! The two factors of each dimension by itself, and loops over pairs that turn what they have turned already.

use ndarray::{Array3, ArrayD};

use super::ROOM;
use crate::case::{Axis, Case, Place};
use crate::describe::source::describe as describe_source;
use crate::identify::after::Offers;
use crate::identify::rotation::{Right, operands, pairings};
use crate::law::Form;

/// A dimension, the other one of its pair, and of which pairs it has cosine and sine.
#[derive(Clone, Copy)]
struct Turned {
    other: usize,
    is_first: bool,
    cosine: usize,
    sine: usize,
}

impl Turned {
    fn value(self, right: &Right, x: &Array3<f64>, (t, h, j): (usize, usize, usize)) -> f64 {
        let angle = |pair: usize| t as f64 * right.frequencies[pair].value;
        let (cos, sin) = (angle(self.cosine).cos(), angle(self.sine).sin());
        let sin = if self.is_first { -sin } else { sin };
        let by = |pair: usize| right.magnitude[[t, pair]];
        by(self.cosine) * cos * x[[t, h, j]] + by(self.sine) * sin * x[[t, h, self.other]]
    }
}

/// The two factors of each dimension, told by the heads: which pair's cosine it has, and which one's sine.
pub(super) fn by_dimension(case: &Case<'_>, right: &Right, offers: &mut Offers<'_>) {
    let first = case.first();
    let Some((x, own)) = operands(first, &first.own) else { return };
    let (n, heads, d) = x.dim();
    let pairs = right.frequencies.len();
    if heads < 2 || pairs == 0 || pairs > MOST_PAIRS {
        return;
    }
    for pairing in pairings(d).into_iter().filter(|pairing| !pairing.is_reflected) {
        let mut partner = vec![(0usize, false); d];
        for (&a, &b) in pairing.first.iter().zip(&pairing.second) {
            (partner[a], partner[b]) = ((b, true), (a, false));
        }
        let size: f64 = own.iter().map(|y| y * y).sum::<f64>() / d as f64;
        // The last positions tell most; a few of them at first.
        let off = |j: usize, turned: Turned, positions: usize| -> f64 {
            let places = (n - positions..n).flat_map(|t| (0..heads).map(move |h| (t, h, j)));
            places.map(|at| (turned.value(right, &x, at) - own[at]).powi(2)).sum()
        };
        let best = |j: usize| -> Option<Turned> {
            let (other, is_first) = partner[j];
            // With both of one pair first: that is plainer.
            let one = (0..pairs).map(|pair| (pair, pair));
            let two = (0..pairs).flat_map(|a| (0..pairs).map(move |b| (a, b))).filter(|(a, b)| a != b);
            let all = one.chain(two).map(|(cosine, sine)| Turned { other, is_first, cosine, sine });
            let near = (ROOM * first.noise()).powi(2) * size + 1e-9 * size;
            all.filter(|turned| off(j, *turned, n.min(FEW)) <= near).find(|turned| off(j, *turned, n) <= near)
        };
        let mut all = Vec::new();
        for j in 0..d {
            let Some(turned) = best(j).filter(|_| case.has_time()) else { break };
            all.push(turned);
        }
        if all.len() < d {
            continue;
        }
        let source = |of: fn(&Turned) -> usize| {
            describe_source(&all.iter().map(|turned| Some(of(turned))).collect::<Vec<_>>(), pairs, Axis::Dim)
        };
        let (cosine, sine) = (source(|turned| turned.cosine), source(|turned| turned.sine));
        let is_one = all.iter().all(|turned| turned.cosine == turned.sine);
        let whose = match is_one {
            true => format!("by the angle of the pair numbered {}", cosine.words),
            false => format!(
                "with the cosine of the pair numbered {}, and the sine of the pair numbered {}",
                cosine.words, sine.words
            ),
        };
        let words = format!("dimensions {} are rotated together, dimension i {whose}", pairing.words);
        let bits = 8.0 + pairing.bits + cosine.bits + if is_one { 0.0 } else { sine.bits + 2.0 };
        offers.offer(Form::RotationMatrix, words, bits, move |case, at| {
            let place = &case.places[at];
            let right = Right::of(place)?;
            let (x, mut out) = operands(place, &place.right)?;
            let fits = |turned: &Turned| turned.cosine.max(turned.sine) < right.frequencies.len();
            let is_of_rows = right.magnitude.nrows() == x.shape()[0] && x.shape()[2] == all.len();
            (is_of_rows && all.iter().all(fits)).then_some(())?;
            for (at, y) in out.indexed_iter_mut() {
                *y = all[at.2].value(&right, &x, at);
            }
            Some(out.into_dyn())
        });
    }
}

/// Positions that pairs are tried at first.
const FEW: usize = 4;
/// Pairs up to which cosine and sine are each looked for.
const MOST_PAIRS: usize = 64;

/// Elements that a loop turns together, one step after the other and in place.
#[derive(Clone, Copy)]
struct Loop {
    /// How far apart the two are.
    apart: usize,
    step: usize,
    /// Whether it runs over the heads of a position as one row.
    over_heads: bool,
    /// Whether the angle's number is that of the step, or half of the element's.
    by_step: bool,
}

impl Loop {
    fn of(self, place: &Place) -> Option<ArrayD<f64>> {
        let right = Right::of(place)?;
        let (x, _) = operands(place, &place.right)?;
        let (n, heads, d) = x.dim();
        let width = if self.over_heads { heads * d } else { d };
        let (pairs, mut out) = (right.frequencies.len(), x.as_standard_layout().into_owned());
        let memory = out.as_slice_mut()?;
        for (row, values) in memory.chunks_mut(width).enumerate() {
            let t = row * width / (heads * d);
            for (number, i) in (0..width.saturating_sub(self.apart)).step_by(self.step).enumerate() {
                // Blocks of so many that are turned with the next so many.
                if self.step == 1 && self.apart > 1 && !self.over_heads && i >= self.apart {
                    break;
                }
                let pair = if self.by_step { number } else { i / 2 } % pairs;
                let (sin, cos) = (t as f64 * right.frequencies[pair].value).sin_cos();
                let by = right.magnitude[[t, pair]];
                let (a, b) = (values[i], values[i + self.apart]);
                (values[i], values[i + self.apart]) = (by * (a * cos - b * sin), by * (b * cos + a * sin));
            }
        }
        (n > 0).then(|| out.into_dyn())
    }
}

/// Loops over pairs that overlap: what one step has turned the next one turns again.
pub(super) fn one_after_the_other(offers: &mut Offers<'_>) {
    let Some(d) = offers.width() else { return };
    for apart in [1, d / 2].into_iter().filter(|apart| *apart > 0) {
        for (step, over_heads, by_step) in
            [(1, false, false), (1, false, true), (2, false, false), (1, true, false), (1, true, true), (2, true, true)]
        {
            let way = Loop { apart, step, over_heads, by_step };
            let over = if over_heads { "all heads of a position, one after the other" } else { "a head" };
            let angle = if by_step { "of the step's number" } else { "numbered i div 2" };
            let every = if step == 1 { "every i" } else { "every even i" };
            let words = format!(
                "elements i and i + {apart} are turned together, in place, for {every} of {over}, by the angle {angle}: each is turned again with the next one"
            );
            offers.offer(Form::RotationPairing, words, 11.0, move |case, at| way.of(&case.places[at]));
        }
    }
}

/// All heads of a position turned as one row.
#[derive(Clone, Copy)]
struct WholeRow {
    /// Whether neighbours are turned together, or elements half a row apart.
    is_of_neighbours: bool,
    /// Whether the frequencies are spread over the row, or those of a head again and again.
    is_spread: bool,
}

impl WholeRow {
    fn of(self, place: &Place) -> Option<ArrayD<f64>> {
        let right = Right::of(place)?;
        let (x, _) = operands(place, &place.right)?;
        let (rows, heads, d) = x.dim();
        let (width, own) = (heads * d, &right.frequencies);
        let first = own.first()?.value;
        // From one pair to the next a head's frequencies fall by this.
        let fall = own.get(1)?.value / first;
        let mut out = x.as_standard_layout().into_owned();
        for (t, values) in out.as_slice_mut()?.chunks_mut(width).enumerate().take(rows) {
            for pair in 0..width / 2 {
                let frequency = match self.is_spread {
                    true => first * fall.powf((pair * d) as f64 / width as f64),
                    false => own[pair % own.len()].value,
                };
                let (sin, cos) = (t as f64 * frequency).sin_cos();
                let (i, j) = if self.is_of_neighbours { (2 * pair, 2 * pair + 1) } else { (pair, pair + width / 2) };
                let (a, b, by) = (values[i], values[j], right.magnitude[[t, pair % own.len()]]);
                (values[i], values[j]) = (by * (a * cos - b * sin), by * (b * cos + a * sin));
            }
        }
        Some(out.into_dyn())
    }
}

/// Rows of all heads that are turned as if they were one head.
pub(super) fn whole_rows(offers: &mut Offers<'_>) {
    for (pairs, is_of_neighbours) in [("i and i + half of the row", false), ("2i and 2i + 1 of the row", true)] {
        for (frequencies, is_spread) in
            [("base^(-2i/width of the row)", true), ("those of a head, again for each head", false)]
        {
            let way = WholeRow { is_of_neighbours, is_spread };
            let words = format!(
                "the row of all heads is rotated as one head: elements {pairs} together, frequencies {frequencies}"
            );
            offers.offer(Form::RotationPairing, words, 8.0, move |case, at| way.of(&case.places[at]));
        }
    }
}
