//! Two operands that an engine keeps in one tensor, and takes apart otherwise than they were put together; an operand of which one block is another's.

use std::sync::Arc;

use ndarray::{ArrayD, Axis as Dimension, concatenate};

use crate::case::{Case, Kind};
use crate::identify::after::Offers;
use crate::identify::operands::{called, picked, with};
use crate::law::{Form, Law};

/// Channels of a block of two tensors that lie block by block.
const BLOCKS: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Elements of an output on which blocks are tried.
const MOST: usize = 1 << 20;

/// For each channel of the one and then of the other, which it is of both, side by side.
type Order = Arc<dyn Fn(usize, usize) -> usize + Send + Sync>;

/// Ways to take two tensors of one width apart.
fn orders(width: usize) -> Vec<(String, f64, Order)> {
    let mut all: Vec<(String, f64, Order)> = Vec::new();
    for block in BLOCKS.into_iter().filter(|block| width.is_multiple_of(*block)) {
        let (alternate, halves) = match block {
            1 => (
                "the even and the odd channels of both, side by side".to_owned(),
                "the halves of both, channel by channel in turn".to_owned(),
            ),
            _ => (
                format!("every other block of {block} channels of both, side by side"),
                format!("the halves of both, in turn by blocks of {block} channels"),
            ),
        };
        let bits = if block == 1 { 5.0 } else { 9.0 };
        if block >= 8 {
            for (from, which) in (1..2 * width / block).flat_map(|at| [(at * block, 0), (at * block, 1)]) {
                let begins = move |own: usize| if own == which { from } else { own * width };
                if from != which * width && from + width <= 2 * width {
                    let called = if which == 0 { "the first" } else { "the second" };
                    let words = format!(
                        "taken from both, side by side, {called} from channel {from} on and not from {} on",
                        which * width
                    );
                    all.push((words, 9.0, Arc::new(move |which, i| begins(which) + i)));
                }
            }
        }
        all.push((alternate, bits, Arc::new(move |which, i| i / block * 2 * block + which * block + i % block)));
        let in_turn: Order = Arc::new(move |which, i| {
            let at = which * width + i;
            at / block % 2 * width + at / (2 * block) * block + at % block
        });
        all.push((halves, bits, in_turn));
    }
    all
}

/// For each row of the one (0) and the other (1), of so many: which it is of the rows of both, one tensor behind the other.
type Plane = fn(usize, usize, usize) -> usize;
const PLANES: [(&str, Plane); 2] = [
    ("position by position in turn, and are read as all of the one and then all of the other", |which, t, rows| {
        let at = which * rows + t;
        at % 2 * rows + at / 2
    }),
    ("one behind the other, and are read position by position in turn", |which, t, _| 2 * t + which),
];

/// The laws of two operands in one tensor, and of a block of one.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    if let [a, b] = &case.first().inputs[..]
        && a.shape() == b.shape()
        && let (Kind::Gate | Kind::Sum | Kind::Other, Some(&width)) = (case.kind, a.shape().last())
    {
        let names = [called(case.kind, 2, 0), called(case.kind, 2, 1)];
        for (words, bits, order) in orders(width) {
            let made = move |case: &Case<'_>, place: usize| {
                let last = case.places[place].inputs.first()?.ndim().checked_sub(1)?;
                of_both(case, place, last, |which, i, count| (count == width).then(|| order(which, i)))
            };
            let said = format!("{} and {} are {words}", names[0], names[1]);
            if offers.offer(Form::OperationInput, said, bits, made).is_some() {
                break;
            }
        }
        pitches(&mut offers, names, width);
        for (words, of) in PLANES {
            let made =
                move |case: &Case<'_>, place: usize| of_both(case, place, 0, |which, t, rows| Some(of(which, t, rows)));
            let said = format!("{} and {} lie {words}", names[0], names[1]);
            if offers.offer(Form::OperationInput, said, 8.0, made).is_some() {
                break;
            }
        }
    }
    if offers.laws.is_empty() && matches!(case.kind, Kind::Gate | Kind::Sum | Kind::Activation | Kind::Other) {
        blocks(case, &mut offers);
    }
    offers.laws
}

/// The operation of two operands that are joined along an axis and taken apart so: of which, which, and of how many.
fn of_both(
    case: &Case<'_>,
    place: usize,
    axis: usize,
    from: impl Fn(usize, usize, usize) -> Option<usize>,
) -> Option<ArrayD<f64>> {
    let [a, b] = &case.places[place].inputs[..] else { return None };
    let count = *a.shape().get(axis).filter(|_| a.shape() == b.shape())?;
    let both = concatenate(Dimension(axis), &[a.view(), b.view()]).ok()?;
    let of = |which: usize| {
        let picked: Option<Vec<usize>> = (0..count).map(|i| from(which, i, count)).collect();
        Some(both.select(Dimension(axis), &picked?))
    };
    case.operation.apply(place, &[of(0)?, of(1)?])
}

/// The rows of both, side by side, in one memory, of which the one and the other are read with another distance from row to row or from another number on.
fn pitches(offers: &mut Offers<'_>, names: [&'static str; 2], width: usize) {
    let right = [(2 * width, 0), (2 * width, width)];
    let reads = |distance: usize, from: usize| (distance, from);
    let first = [reads(width, 0), reads(width, width), reads(2 * width, width)];
    let second = [reads(width, 0), reads(width, width), reads(2 * width, 0), reads(2 * width, 2 * width)];
    let mut ways: Vec<[(usize, usize); 2]> = Vec::new();
    ways.extend(first.map(|one| [one, right[1]]));
    ways.extend(second.map(|other| [right[0], other]));
    ways.extend([[reads(width, 0), reads(width, width)], [reads(width, width), reads(width, 0)]]);
    for way in ways {
        let made = move |case: &Case<'_>, place: usize| {
            let [a, b] = &case.places[place].inputs[..] else { return None };
            let last = Dimension(a.ndim().checked_sub(1)?);
            (a.shape() == b.shape() && a.len_of(last) == width).then_some(())?;
            let both = concatenate(last, &[a.view(), b.view()]).ok()?;
            let memory: Vec<f64> = both.iter().copied().collect();
            let of = |(distance, from): (usize, usize)| {
                let value = |at: usize| memory.get(at / width * distance + from + at % width).copied().unwrap_or(0.0);
                ArrayD::from_shape_vec(a.raw_dim(), (0..a.len()).map(value).collect()).ok()
            };
            case.operation.apply(place, &[of(way[0])?, of(way[1])?])
        };
        let said: Vec<String> = names
            .iter()
            .zip(way.iter().zip(right))
            .filter(|(_, (own, right))| *own != right)
            .map(|(name, ((distance, from), _))| format!("{name} at {distance} t + {from}"))
            .collect();
        let words = format!(
            "{} and {} lie side by side in rows of {}, and {} (t: the position) is read",
            names[0],
            names[1],
            2 * width,
            said.join(", ")
        );
        if offers.offer(Form::OperationInput, words, 10.0, made).is_some() {
            break;
        }
    }
}

/// Where the wrong channels are one block, an operand may have another block there: a tile that was not loaded anew.
fn blocks(case: &Case<'_>, offers: &mut Offers<'_>) {
    let first = case.first();
    let Some(last) = first.own.ndim().checked_sub(1).filter(|_| first.own.len() <= MOST) else { return };
    let wrong = crate::identify::wrong(first);
    let is_wrong: Vec<bool> = wrong.axis_iter(Dimension(last)).map(|channel| channel.iter().any(|w| *w)).collect();
    let (Some(begin), Some(end)) = (is_wrong.iter().position(|w| *w), is_wrong.iter().rposition(|w| *w)) else {
        return;
    };
    let (width, count) = (end + 1 - begin, is_wrong.len());
    if width == count || !is_wrong[begin..=end].iter().all(|w| *w) {
        return;
    }
    for (operand, input) in first.inputs.iter().enumerate() {
        if input.shape().get(last) != Some(&count) {
            continue;
        }
        let name = called(case.kind, first.inputs.len(), operand);
        for from in (0..=count - width).filter(|from| from.abs_diff(begin) >= width) {
            let of: Vec<Option<usize>> =
                (0..count).map(|i| Some(if (begin..=end).contains(&i) { i - begin + from } else { i })).collect();
            let made = with(operand, Arc::new(move |x: &ArrayD<f64>| picked(x, last, &of)));
            let words =
                format!("channels {begin} to {end} of {name} are read as channels {from} to {}", from + width - 1);
            if offers.offer(Form::OperationInput, words, 14.0, made).is_some() {
                return;
            }
        }
    }
}
