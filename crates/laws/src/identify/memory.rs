//! A tensor whose memory is read with other strides or extents: rows that are another buffer's width apart, a transpose that is left out or done once too
//! often, tiles of a packed kernel.

mod layouts;

use std::collections::HashSet;
use std::sync::Arc;

use ndarray::{Array2, ArrayD, IxDyn};

use crate::case::{Axis, Case, Kind};
use crate::describe::choice;
use crate::fit::ROOM;
use crate::identify::after::Offers;
use crate::identify::operands::{called, with};
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// Where each number of a tensor is read in the memory of the right one.
#[derive(Clone, Debug)]
pub(in crate::identify) struct Gather {
    pub(super) words: String,
    pub(super) bits: f64,
    places: Places,
}

/// Which number of the memory stands at a place.
#[derive(Clone, Debug)]
enum Places {
    /// By digits of the place.
    Digits {
        /// How many values each has, the slowest first, and how far apart these are in the memory.
        digits: Vec<(usize, usize)>,
        /// From here on the last digit has nothing.
        end: usize,
    },
    /// Written in one layout, and read in another.
    Between(Arc<layouts::Between>),
}

/// Numbers of a tile.
const TILES: [usize; 7] = [2, 4, 8, 16, 32, 64, 128];
/// Axes, those of tiles among them, whose orders are all tried.
const MOST_AXES: usize = 5;
/// Strides that are tried one by one.
const MOST_STRIDES: usize = 4096;
/// Places that a reading is tried on first.
const SAMPLE: usize = 48;
/// Elements of a tensor up to which an operand is read otherwise.
const MOST_ELEMENTS: usize = 1 << 20;

impl Gather {
    fn by(words: String, bits: f64, digits: Vec<(usize, usize)>, end: usize) -> Gather {
        Gather { words, bits, places: Places::Digits { digits, end } }
    }

    /// The number of the memory that stands at a place; `None` where it has none.
    pub(super) fn from(&self, at: usize) -> Option<usize> {
        let (digits, end) = match &self.places {
            Places::Digits { digits, end } => (digits, *end),
            Places::Between(between) => return between.from(at),
        };
        let (mut rest, mut from) = (at, 0);
        for (number, &(count, stride)) in digits.iter().enumerate().rev() {
            let digit = rest % count;
            if number + 1 == digits.len() && digit >= end {
                return None;
            }
            from += digit * stride;
            rest /= count;
        }
        Some(from)
    }

    /// The number that is read at a place; nothing behind the memory's end.
    pub(super) fn value(&self, memory: &[f64], at: usize) -> f64 {
        self.from(at).and_then(|from| memory.get(from)).copied().unwrap_or(0.0)
    }

    /// The tensor read so; zeros behind its end.
    fn of(&self, x: &ArrayD<f64>) -> Option<ArrayD<f64>> {
        let memory = x.as_standard_layout();
        let memory = memory.as_slice()?;
        let read: Vec<f64> = (0..memory.len()).map(|at| self.value(memory, at)).collect();
        ArrayD::from_shape_vec(IxDyn(x.shape()), read).ok()
    }

    /// The same of a matrix.
    pub(super) fn of_matrix(&self, x: &Array2<f64>) -> Option<Array2<f64>> {
        self.of(&x.clone().into_dyn())?.into_dimensionality().ok()
    }

    /// Whether nothing is read elsewhere.
    fn is_as_it_stands(&self, count: usize) -> bool {
        places(count).all(|at| self.from(at) == Some(at))
    }
}

/// Some places of so many, spread over all.
fn places(count: usize) -> impl Iterator<Item = usize> + Clone {
    (0..SAMPLE.min(count)).map(move |i| (i * 2_654_435_761 + i * i * 40_503 + 1) % count.max(1))
}

fn by(extents: impl IntoIterator<Item = usize>) -> String {
    extents.into_iter().map(|n| n.to_string()).collect::<Vec<_>>().join(" by ")
}

/// Axes of which all orders are tried; of more, those in which one has moved, or two have changed places.
const MOST_ORDERED: usize = 4;

/// Orders of so many things.
fn orders(count: usize) -> Vec<Vec<usize>> {
    if count > MOST_ORDERED {
        let pairs = || (0..count).flat_map(|a| (0..count).filter(move |b| *b != a).map(move |b| (a, b)));
        let natural: Vec<usize> = (0..count).collect();
        let moved = pairs().map(|(from, to)| {
            let mut order = natural.clone();
            let one = order.remove(from);
            order.insert(to, one);
            order
        });
        let exchanged = pairs().filter(|(a, b)| a + 1 < *b).map(|(a, b)| {
            let mut order = natural.clone();
            order.swap(a, b);
            order
        });
        return moved.chain(exchanged).collect();
    }
    let mut all = vec![Vec::new()];
    for next in 0..count {
        let put = |order: &Vec<usize>| {
            (0..=order.len()).map(|at| [&order[..at], &[next], &order[at..]].concat()).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(put).collect();
    }
    all
}

/// The extents of a tensor's axes, some of them taken apart into tiles; with how many tiles.
fn tiled(shape: &[usize]) -> Vec<(Vec<usize>, usize)> {
    let mut all = vec![(Vec::new(), 0)];
    for &extent in shape {
        let tiles = |of: usize| TILES.into_iter().filter(move |tile| *tile < of && of.is_multiple_of(*tile));
        let twice = |n: usize| tiles(n).map(move |inner| vec![extent / n, n / inner, inner]);
        let once = tiles(extent).map(|n| vec![extent / n, n]);
        let parts: Vec<Vec<usize>> =
            std::iter::once(vec![extent]).chain(once).chain(tiles(extent).flat_map(twice)).collect();
        let put = |(done, count): &(Vec<usize>, usize)| {
            parts.iter().map(|part| ([&done[..], part].concat(), count + part.len() - 1)).collect::<Vec<_>>()
        };
        all = all.iter().flat_map(put).collect();
    }
    all.retain(|(extents, _)| extents.len() <= MOST_AXES);
    all
}

/// Axes put in another order, whole or by tiles: as they are stored, or as they are read.
fn reordered(shape: &[usize]) -> Vec<Gather> {
    let mut all = Vec::new();
    let natural =
        |extents: &[usize]| -> Vec<usize> { (0..extents.len()).map(|at| extents[at + 1..].iter().product()).collect() };
    for (extents, tiles) in tiled(shape) {
        let (strides, orders) = (natural(&extents), orders(extents.len()));
        let bits = 4.0 + 3.0 * tiles as f64 + choice(orders.len());
        for order in orders {
            let put: Vec<usize> = order.iter().map(|&axis| extents[axis]).collect();
            let put_strides = natural(&put);
            let place = |axis: usize| order.iter().position(|&at| at == axis).unwrap_or(axis);
            let read: Vec<(usize, usize)> =
                (0..extents.len()).map(|axis| (extents[axis], put_strides[place(axis)])).collect();
            let stored: Vec<(usize, usize)> = order.iter().map(|&axis| (extents[axis], strides[axis])).collect();
            let back: Vec<usize> = (0..extents.len()).map(place).collect();
            let in_order = |order: &[usize]| order.iter().map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
            // Where extents are alike, both are one.
            let is_one = read == stored;
            let whole = by(shape.iter().copied());
            let words = match (shape.len(), tiles, transposed_tile(&extents, &order)) {
                (_, _, Some(tile)) => format!("with each tile of {tile} by {tile} transposed"),
                (2, 0, _) => format!("as memory of {}, and transposed", by(put.iter().copied())),
                _ => format!(
                    "as memory of {whole}, read as {} with its axes in the order {}",
                    by(put.iter().copied()),
                    in_order(&back)
                ),
            };
            all.push(Gather::by(words, bits, read, usize::MAX));
            if !is_one {
                let words = match (shape.len(), tiles) {
                    (2, 0) => format!("transposed, with its memory read as {whole}"),
                    _ => format!(
                        "as {} with its axes in the order {}, and that memory read as {whole}",
                        by(extents.iter().copied()),
                        in_order(&order)
                    ),
                };
                all.push(Gather::by(words, bits, stored, usize::MAX));
            }
        }
    }
    all
}

/// The extent of square tiles that alone are transposed.
fn transposed_tile(extents: &[usize], order: &[usize]) -> Option<usize> {
    let moved: Vec<usize> = (0..order.len()).filter(|&at| order[at] != at).collect();
    let [a, b] = moved[..] else { return None };
    (extents[a] == extents[b] && b + 1 == extents.len() && extents.len() > 2).then_some(extents[a])
}

/// Slices of an axis that lie another number of elements apart than they are long.
fn apart(shape: &[usize], axis: usize, strides: impl Iterator<Item = usize>, all: &mut Vec<Gather>) {
    let (count, due) = (shape[axis], shape[axis + 1..].iter().product::<usize>());
    let outer: usize = shape[..axis].iter().product();
    let name = match (axis, shape.len()) {
        (0, _) => "rows",
        (1, 3) => "heads",
        _ => "channels",
    };
    for stride in strides.filter(|stride| *stride != due) {
        let words = format!("with its {name} {stride} numbers apart in memory, not {due} (nothing behind its end)");
        let digits = vec![(outer, count * due), (count, stride), (due, 1)];
        all.push(Gather::by(words, 8.0 + choice(2 * due), digits, usize::MAX));
        if axis == 0 && stride > due {
            let words = format!(
                "as written with {stride} numbers for each of its {name}, the last of them 0, and read with {due}"
            );
            let digits = vec![(usize::MAX, due), (stride, 1)];
            all.push(Gather::by(words, 9.0 + choice(2 * due), digits, due));
        }
    }
}

/// What the three axes of a tensor are called.
pub(super) type Names = [&'static str; 3];
pub(super) const OF_HEADS: Names = ["positions", "heads", "dimensions"];
const OF_PROBABILITIES: Names = ["heads", "queries", "keys"];

/// Every reading of a tensor of this shape that is cheap to try.
pub(super) fn gathers(shape: &[usize], names: Names) -> Vec<Gather> {
    let mut all = reordered(shape);
    for axis in 0..shape.len().saturating_sub(1) {
        let due: usize = shape[axis + 1..].iter().product();
        apart(shape, axis, 1..=(2 * due).min(MOST_STRIDES), &mut all);
    }
    all.extend(layouts::between(shape, names));
    kept(all, shape)
}

/// The readings that engines make by mistake most often.
fn few_gathers(shape: &[usize], widths: &[usize], names: Names) -> Vec<Gather> {
    let mut all = reordered(shape);
    for axis in 0..shape.len().saturating_sub(1) {
        let due: usize = shape[axis + 1..].iter().product();
        let beside = [2 * due, due / 2, 4 * due, due + 1, due + 4, due + 8, due + 16, due + 32, due + 64];
        let rounded = [32, 64, 128, 256].map(|to| due.next_multiple_of(to));
        let mut strides: Vec<usize> = [&beside[..], &rounded, widths].concat();
        strides.sort_unstable();
        strides.dedup();
        apart(shape, axis, strides.into_iter().filter(|stride| *stride > 0), &mut all);
    }
    all.extend(layouts::between(shape, names));
    kept(all, shape)
}

fn kept(mut all: Vec<Gather>, shape: &[usize]) -> Vec<Gather> {
    let count: usize = shape.iter().product();
    all.retain(|gather| !gather.is_as_it_stands(count));
    all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    // The same by other tiles.
    let mut seen = HashSet::new();
    all.retain(|gather| seen.insert(places(count).map(|at| gather.from(at)).collect::<Vec<_>>()));
    all
}

/// Laws of a subject whose memory is read otherwise.
pub(super) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let (right, own) = (subject.right.as_standard_layout(), subject.own.as_standard_layout());
    let (Some(memory), Some(own)) = (right.as_slice(), own.as_slice()) else { return Vec::new() };
    if memory.len() != own.len() || subject.right.ndim() < 2 {
        return Vec::new();
    }
    let size = (own.iter().map(|y| y * y).sum::<f64>() / own.len() as f64).sqrt();
    let is_at = |gather: &Gather, at: usize| {
        let due = gather.value(memory, at);
        (own[at] - due).abs() <= ROOM * subject.noise * (due.abs() + size)
    };
    let mut laws = Vec::new();
    let names = if subject.axes.first() == Some(&Axis::Head) { OF_PROBABILITIES } else { OF_HEADS };
    for gather in gathers(subject.right.shape(), names) {
        if !case.has_time() {
            break;
        }
        if !places(own.len()).all(|at| is_at(&gather, at))
            || !gather.of(&subject.right).is_some_and(|x| subject.is_near(&x))
        {
            continue;
        }
        let words = format!("{} is the right one {}", subject.label, gather.words);
        let law = subject.law(Form::OutputSource, words, gather.bits, {
            let gather = gather.clone();
            move |right| gather.of(right)
        });
        laws.push(law.with("memory", gather.words));
        // Those behind it are dearer.
        break;
    }
    laws
}

/// Laws of an operation that reads an operand's memory otherwise.
pub(super) fn of_operands(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    let count = case.first().inputs.len();
    let mut widths: Vec<usize> =
        case.first().inputs.iter().chain([&case.first().right]).flat_map(|x| x.shape().to_vec()).collect();
    widths.extend(case.first().inputs.iter().filter_map(|x| Some(x.len() / x.shape().first()?)));
    for (operand, input) in case.first().inputs.iter().enumerate() {
        let is_small = input.len() <= MOST_ELEMENTS && input.ndim() > 1;
        if !is_small || case.kind == Kind::Choice {
            continue;
        }
        let name = called(case.kind, count, operand);
        let is_of_cache = matches!(case.kind, Kind::Probs | Kind::Context);
        let names = if (case.kind, operand) == (Kind::Context, 0) { OF_PROBABILITIES } else { OF_HEADS };
        for gather in few_gathers(input.shape(), &widths, names) {
            if is_of_cache && !case.has_half_of_time() {
                break;
            }
            let (words, bits) = (gather.words.clone(), gather.bits);
            let said = format!("{name} read {words}");
            let made = with(operand, Arc::new(move |x: &ArrayD<f64>| gather.of(x)));
            if let Some(law) = offers.offer(Form::OperationInput, said, bits + 2.0, made) {
                law.parameters.push(("operand", name.into()));
                law.parameters.push(("memory", words.into()));
                return offers.laws;
            }
        }
    }
    offers.laws
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(shape: &[usize], read: impl Fn(usize) -> Option<usize>) -> Vec<String> {
        let count: usize = shape.iter().product();
        let is = |gather: &&Gather| {
            let inside = |at: Option<usize>| at.filter(|at| *at < count);
            (0..count).all(|at| inside(gather.from(at)) == inside(read(at)))
        };
        gathers(shape, OF_HEADS).iter().filter(is).map(|gather| gather.words.clone()).collect()
    }

    #[test]
    fn memory_is_read_transposed_by_tiles_and_in_rows_of_another_width() {
        let transposed = found(&[20, 64], |at| Some(at % 64 * 20 + at / 64));
        assert_eq!(transposed, ["as memory of 64 by 20, and transposed"]);
        let tiles = found(&[8, 16], |at| {
            let (row, column) = (at / 16, at % 16);
            Some((row / 4 * 4 + column % 4) * 16 + column / 4 * 4 + row % 4)
        });
        assert_eq!(tiles, ["with each tile of 4 by 4 transposed"]);
        let rows = found(&[6, 10], |at| Some(at / 10 * 7 + at % 10));
        assert_eq!(rows, ["with its rows 7 numbers apart in memory, not 10 (nothing behind its end)"]);
        let padded = found(&[6, 10], |at| (at % 12 < 10).then_some(at / 12 * 10 + at % 12));
        assert_eq!(padded, ["as written with 12 numbers for each of its rows, the last of them 0, and read with 10"]);
    }

    #[test]
    fn what_is_read_as_it_stands_is_no_law() {
        assert!(gathers(&[6, 10], OF_HEADS).iter().all(|gather| (0..60).any(|at| gather.from(at) != Some(at))));
    }
}
