//! Queries or keys that were read elsewhere: another position for each of them, or their memory in another order.

use std::sync::Arc;

use ndarray::{Array3, Axis as Dimension, s};

use super::field::Field;
use super::scores::scaled;
use super::{DEAR, Draft, How, LOG_ROOM, Made, cube};
use crate::case::Axis;
use crate::describe::set::describe as describe_set;
use crate::describe::source::describe;
use crate::identify::first_along;
use crate::law::Form;

/// Keys up to which each is looked for among all.
pub(super) const MOST_KEYS: usize = 96;
/// Cells of a row or column that are enough to tell one from another.
const CELLS: usize = 48;

impl How<'_> {
    /// Queries and keys of other positions, or of other tensors, and their memory in another order.
    pub(super) fn sources(&mut self, field: &Field) {
        self.rows_of_keys(field);
        if let Some(from) = self.queries_of(field).filter(|_| self.own.dim().1 <= MOST_KEYS) {
            let source = describe(&from, from.len(), Axis::Query);
            if !source.is_itself {
                let of = source.from;
                let made = of_operands(move |operands| {
                    (operands[0].shape()[0] == of.len()).then_some(())?;
                    operands[0] = operands[0].select(Dimension(0), &of);
                    Some(())
                });
                let words = format!("queries of position i are those of {}", source.words);
                let draft = Draft::new(Form::ScoreSource, words, source.bits + 4.0).with("source", source.words);
                self.offer(draft, made, None, true);
            }
        }
        self.of_others(field);
        self.memory();
    }

    /// Keys, or queries, of some positions that are those of another recorded tensor.
    fn of_others(&mut self, field: &Field) {
        let first = self.case.first();
        let near = LOG_ROOM * field.each();
        for (which, called) in [(1usize, "keys"), (0, "queries")] {
            let due = first.inputs[which].shape();
            for (name, tensor) in first.around.iter().filter(|(_, x)| x.shape() == due) {
                let mut operands = [first.inputs[0].clone(), first.inputs[1].clone()];
                operands[which] = tensor.clone();
                let [Some(q), Some(k)] = operands.each_ref().map(cube) else { continue };
                let Some(scores) = scaled(&q, &k, self.right) else { continue };
                let Some(meant) = self.told(field, &scores, which == 1, near) else { continue };
                let axis = if which == 1 { Axis::Key } else { Axis::Query };
                let set = describe_set(&meant, axis, self.case.tokens_of(axis));
                if set.bits > DEAR || !meant.contains(&Some(true)) {
                    continue;
                }
                let (known, has) = (name.clone(), set.has);
                let made: Made = Arc::new(move |case, at, right| {
                    let place = &case.places[at];
                    let mut operands = [place.inputs.first()?.clone(), place.inputs.get(1)?.clone()];
                    let (_, other) = place.around.iter().find(|(name, _)| *name == known)?;
                    let fits = other.shape() == operands[which].shape() && has.len() == other.shape()[0];
                    fits.then_some(())?;
                    for at in (0..has.len()).filter(|&at| has[at]) {
                        operands[which].index_axis_mut(Dimension(0), at).assign(&other.index_axis(Dimension(0), at));
                    }
                    scaled(&cube(&operands[0])?, &cube(&operands[1])?, right)
                });
                let on = set.words.map_or_else(String::new, |on| format!(" ({on})"));
                let draft = Draft::new(Form::ScoreSource, format!("{called} are {name}{on}"), 9.0 + set.bits);
                self.offer(draft.with("source", name.clone()), made, None, true);
            }
        }
    }

    /// For each key, or each query, whether the logarithms are those of other scores.
    fn told(&self, field: &Field, scores: &Array3<f64>, of_keys: bool, near: f64) -> Option<Vec<Option<bool>>> {
        let (heads, rows, keys) = self.own.dim();
        let both = [&self.right.scores, scores];
        let told = |fits: [bool; 2]| match fits {
            [true, true] => Some(None),
            [true, false] => Some(Some(false)),
            [false, true] => Some(Some(true)),
            [false, false] => None,
        };
        let off = |cells: &mut dyn Iterator<Item = f64>| {
            let (sum, count) = cells.fold((0.0, 0usize), |(sum, count), x| (sum + x * x, count + 1));
            (sum / count.max(1) as f64).sqrt() <= near
        };
        if !of_keys {
            let row = |t: usize| {
                told(both.map(|scores| {
                    let of_head = |h: usize| {
                        let cells: Vec<usize> = (0..keys).filter(|&s| field.counted[[h, t, s]]).collect();
                        let of = |&s: &usize| field.logs[[h, t, s]] - scores[[h, t, s]];
                        let mean = cells.iter().map(of).sum::<f64>() / cells.len().max(1) as f64;
                        cells.into_iter().map(move |s| field.logs[[h, t, s]] - scores[[h, t, s]] - mean)
                    };
                    off(&mut (0..heads).flat_map(of_head))
                }))
            };
            return (0..rows).map(row).collect();
        }
        // The constant of each row is told by one key, which is the right one's or the other's.
        let count = |key: usize| field.counted.slice(s![.., .., key]).iter().filter(|c| **c).count();
        let first = (0..keys).max_by_key(|&key| (count(key), keys - key))?;
        both.into_iter().find_map(|base| {
            let key = |key: usize| {
                let cells = || {
                    let all = (0..heads).flat_map(|h| (0..rows).map(move |t| (h, t)));
                    all.filter(|&(h, t)| field.counted[[h, t, key]] && field.counted[[h, t, first]])
                };
                told(both.map(|scores| {
                    off(&mut cells().map(|(h, t)| {
                        let own = field.logs[[h, t, key]] - field.logs[[h, t, first]];
                        own - scores[[h, t, key]] + base[[h, t, first]]
                    }))
                }))
            };
            (0..keys).map(key).collect::<Option<Vec<_>>>()
        })
    }

    /// The query that the logarithms of each row are those of.
    fn queries_of(&self, field: &Field) -> Option<Vec<Option<usize>>> {
        let (heads, rows, keys) = self.own.dim();
        let near = LOG_ROOM * field.each();
        let off = |row: usize, other: usize| -> Option<f64> {
            let (mut rest, mut count) = (0.0, 0);
            for h in 0..heads {
                let counted: Vec<usize> = (0..keys).filter(|&s| field.counted[[h, row, s]]).take(CELLS).collect();
                if counted.len() < 2 {
                    continue;
                }
                let differences: Vec<f64> =
                    counted.iter().map(|&s| field.logs[[h, row, s]] - self.right.scores[[h, other, s]]).collect();
                let mean = differences.iter().sum::<f64>() / differences.len() as f64;
                rest += differences.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
                count += differences.len();
            }
            (count > 0).then(|| (rest / count as f64).sqrt())
        };
        let mut from = vec![None; rows];
        for (row, from) in from.iter_mut().enumerate() {
            let Some(own) = off(row, row) else { continue };
            let others = (0..rows).filter_map(|other| Some((off(row, other)?, other)));
            let best = others.min_by(|a, b| a.0.total_cmp(&b.0))?;
            let (left, other) = if own <= near { (own, row) } else { best };
            if left > near {
                return None;
            }
            *from = Some(other);
        }
        Some(from)
    }

    /// The memory of queries or keys, with its axes in another order.
    fn memory(&mut self) {
        let first = first_along(&crate::identify::wrong(self.case.first()), 1);
        for (which, called) in [(1, "keys"), (0, "queries")] {
            for ((order, words), from) in MEMORY.into_iter().flat_map(|memory| [(memory, 0), (memory, first)]) {
                let made = of_operands(move |operands| {
                    operands[which] = in_memory_from(&operands[which], order, from)?;
                    Some(())
                });
                let on = if from > 0 { format!(" for positions from {from} on") } else { String::new() };
                let words =
                    format!("the memory of the {called}, positions by heads by dimensions, is read as {words}{on}");
                let bits = 8.0 + if from > 0 { crate::describe::choice(self.own.shape()[1]) } else { 0.0 };
                self.offer(Draft::new(Form::ScoreSource, words, bits), made, None, true);
            }
        }
    }
}

/// Orders in which the memory of `[T,H,d]` may be read, and what they are called.
pub(in crate::identify) const MEMORY: [([usize; 3], &str); 4] = [
    ([1, 0, 2], "heads by positions by dimensions"),
    ([0, 2, 1], "positions by dimensions by heads"),
    ([1, 2, 0], "heads by dimensions by positions"),
    ([2, 1, 0], "dimensions by heads by positions"),
];

/// The same for the rows of positions from one on, each by itself where that is not the first.
pub(in crate::identify) fn in_memory_from(x: &Array3<f64>, order: [usize; 3], from: usize) -> Option<Array3<f64>> {
    if from == 0 {
        return in_memory(x, order);
    }
    let mut out = x.clone();
    let rest = in_memory(&x.slice(s![from.min(x.shape()[0]).., .., ..]).to_owned(), order)?;
    out.slice_mut(s![from.., .., ..]).assign(&rest);
    Some(out)
}

/// Memory of a tensor, taken for one whose axes stand in another order.
pub(in crate::identify) fn in_memory(x: &Array3<f64>, order: [usize; 3]) -> Option<Array3<f64>> {
    let shape = [x.shape()[0], x.shape()[1], x.shape()[2]];
    let taken = x.to_shape(order.map(|axis| shape[axis])).ok()?;
    let mut back = [0; 3];
    order.iter().enumerate().for_each(|(at, axis)| back[*axis] = at);
    let out = taken.permuted_axes(back).as_standard_layout().into_owned();
    (out != *x).then_some(out)
}

/// Scores of other queries and keys.
pub(super) fn of_operands(change: impl Fn(&mut [Array3<f64>; 2]) -> Option<()> + Send + Sync + 'static) -> Made {
    Arc::new(move |_, _, right| {
        let mut operands = [right.q.clone(), right.k.clone()];
        change(&mut operands)?;
        scaled(&operands[0], &operands[1], right)
    })
}
