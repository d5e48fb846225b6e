//! Rows of a cache, one for each position and head: whose row stands in each, where some have that of another position, another head or both.

use ndarray::{Array2, Array3, ArrayD, ArrayView1, s};

use crate::case::Axis;
use crate::describe::set::{Set, describe as describe_set};
use crate::describe::source::{Source, describe as describe_source};
use crate::fit::ROOM;
use crate::identify::subject::{Subject, cube};
use crate::law::{Form, Law};

/// A position and a head.
pub(super) type Cell = (usize, usize);

/// Whose row stands in each cell; `None` for nothing but zeros.
#[derive(Clone, Debug)]
pub(super) struct Cells {
    pub(super) words: String,
    pub(super) bits: f64,
    /// Where all heads have those of other positions: of which, in words.
    pub(super) positions: Option<String>,
    from: Array2<Option<Cell>>,
}

/// A list of cells that is dearer is none.
const DEAR: f64 = 60.0;

impl Cells {
    /// The rows `[S,K,d]` of these cells, of the right ones.
    pub(super) fn rows(&self, right: &Array3<f64>) -> Option<Array3<f64>> {
        (self.from.dim() == (right.shape()[0], right.shape()[1])).then_some(())?;
        let mut out = Array3::zeros(right.dim());
        for ((key, head), from) in self.from.indexed_iter() {
            if let Some((k, h)) = from {
                out.slice_mut(s![key, head, ..]).assign(&right.slice(s![*k, *h, ..]));
            }
        }
        Some(out)
    }

    /// Cells that were found to have these rows, where that is not known `None`, as a box of positions and heads with one source of each.
    pub(super) fn of(found: &Array2<Option<Option<Cell>>>) -> Option<Cells> {
        let (keys, heads) = found.dim();
        let is_other = |(key, head): Cell| found[[key, head]].map(|from| from != Some((key, head)));
        let part = |count: usize, of: &dyn Fn(usize) -> Vec<Cell>, axis: Axis| {
            let meant: Vec<Option<bool>> = (0..count)
                .map(|at| {
                    let told: Vec<bool> = of(at).into_iter().filter_map(is_other).collect();
                    (!told.is_empty()).then(|| told.contains(&true))
                })
                .collect();
            meant.contains(&Some(true)).then(|| describe_set(&meant, axis, None))
        };
        let in_keys = part(keys, &|key| (0..heads).map(|head| (key, head)).collect(), Axis::Key)?;
        let in_heads = part(heads, &|head| (0..keys).map(|key| (key, head)).collect(), Axis::Head)?;
        // Of the positions that are others, or of all by one rule.
        let every = (!in_keys.is_all()).then(|| Set::all(keys));
        let ways = std::iter::once(in_keys).chain(every);
        let all = ways.filter_map(|in_keys| Cells::inside(found, &in_keys, &in_heads));
        all.min_by(|a, b| a.bits.total_cmp(&b.bits))
    }

    /// The same in a box of these positions and heads.
    fn inside(found: &Array2<Option<Option<Cell>>>, in_keys: &Set, in_heads: &Set) -> Option<Cells> {
        let (keys, heads) = found.dim();
        let inside: Vec<Cell> = (0..keys)
            .filter(|&key| in_keys.has[key])
            .flat_map(|key| (0..heads).map(move |head| (key, head)))
            .filter(|(_, head)| in_heads.has[*head])
            .collect();
        let heads_of = |key: usize| (0..heads).filter(|head| in_heads.has[*head]).map(move |head| (key, head));
        // One source of the position and one of the head.
        let of = |count: usize, index: fn(Cell) -> usize| -> Option<Vec<Option<usize>>> {
            let mut from = vec![None; count];
            for &cell in &inside {
                if let Some(Some(there)) = found[cell] {
                    let (at, there) = (index(cell), index(there));
                    if from[at].is_some_and(|known| known != there) {
                        return None;
                    }
                    from[at] = Some(there);
                }
            }
            Some(from)
        };
        let is_zero = inside.iter().all(|&cell| found[cell].is_none_or(|from| from.is_none()));
        let on: Vec<String> = [(in_heads, "head"), (in_keys, "key")].into_iter().filter_map(whom).collect();
        let on = if on.is_empty() { String::new() } else { format!(" for {}", on.join(", ")) };
        let mut from = Array2::from_shape_fn(found.dim(), Some);
        let bits = in_keys.bits + in_heads.bits;
        let mut positions = None;
        let (words, bits) = if is_zero {
            inside.iter().for_each(|&cell| from[cell] = None);
            (format!("zero{on}"), bits + 2.0)
        } else {
            let source = |count: usize, index: fn(Cell) -> usize, axis: Axis| -> Option<(Source, String)> {
                let known = of(count, index)?;
                let source = describe_source(&known, count, axis);
                let mut there = known.iter().flatten();
                let first = there.next();
                let words = match first {
                    Some(first) if there.all(|other| other == first) => format!("{} {first}", axis.name()),
                    _ => source.words.clone(),
                };
                Some((source, words))
            };
            let (key, head) = (source(keys, |cell| cell.0, Axis::Key)?, source(heads, |cell| cell.1, Axis::Head)?);
            inside.iter().for_each(|&(k, h)| from[[k, h]] = Some((key.0.from[k], head.0.from[h])));
            let parts: Vec<String> = [&key, &head]
                .into_iter()
                .filter(|(source, _)| !source.is_itself)
                .map(|(_, words)| format!("of {words}"))
                .collect();
            let (key, head) = (key.0, head.0);
            // Of some positions nothing stands there.
            let told = |k: usize| heads_of(k).filter_map(|cell| found[cell]).next().map(|from| from.is_none());
            let nothing: Vec<Option<bool>> = (0..keys).map(told).collect();
            let (mut zero, mut price) = (String::new(), bits + key.bits + head.bits);
            if nothing.contains(&Some(true)) {
                let set = describe_set(&nothing, Axis::Key, None);
                inside.iter().filter(|(k, _)| set.has[*k]).for_each(|&cell| from[cell] = None);
                zero = format!(", and zero for {}", set.words?);
                price += set.bits + 3.0;
            }
            positions = (on.is_empty() && head.is_itself).then(|| format!("{}{zero}", key.words));
            (format!("those {}{on}{zero}", parts.join(" ")), price)
        };
        let fits = found.indexed_iter().all(|(at, known)| known.is_none_or(|known| known == from[at]));
        (fits && bits <= DEAR).then_some(Cells { words, bits, positions, from })
    }
}

/// Which positions or heads, in words; `None` where it is all.
fn whom((set, name): (&Set, &str)) -> Option<String> {
    let mut inside = (0..set.has.len()).filter(|&at| set.has[at]);
    match (inside.next(), inside.next()) {
        (Some(one), None) if set.has.len() > 1 => Some(format!("{name} {one}")),
        _ => set.words.clone(),
    }
}

/// Cells that are looked through.
const MOST: usize = 1 << 12;

/// A tensor of positions, heads and dimensions, of which some rows are those of other positions and heads.
pub(super) fn laws(subject: &Subject) -> Option<Law> {
    let (right, own) = (cube(&subject.right)?, cube(&subject.own)?);
    let [Axis::Token, Axis::Head, Axis::Dim] = subject.axes[..] else { return None };
    let (rows, heads, d) = right.dim();
    if own.dim() != right.dim() || rows * heads > MOST || d < 2 {
        return None;
    }
    let size = (own.iter().map(|x| x * x).sum::<f64>() / own.len().max(1) as f64).sqrt();
    let error = ROOM * subject.noise * size;
    let mut all = Array2::from_elem((rows, heads), None);
    for row in 0..rows {
        for head in 0..heads {
            let cell = (row, head);
            all[cell] = Some(found(own.slice(s![row, head, ..]), error, cell, &right)?);
        }
    }
    let cells = Cells::of(&all)?;
    let words = format!("{} of each position and head is {}", subject.label, cells.words);
    let bits = 6.0 + cells.bits;
    let made = move |right: &ArrayD<f64>| cells.rows(&cube(right)?).map(Array3::into_dyn);
    Some(subject.law(Form::OutputSource, words, bits, made))
}

/// Which of all rows a measured one is, within this error of each element; the cell's own first, then nothing, then the others. `None` where none is, or none can be told.
pub(super) fn found(measured: ArrayView1<'_, f64>, error: f64, own: Cell, right: &Array3<f64>) -> Option<Option<Cell>> {
    let most = error * error * measured.len() as f64;
    let is = |row: Option<ArrayView1<'_, f64>>| {
        let mut off = 0.0;
        for (at, x) in measured.iter().enumerate() {
            off += (x - row.as_ref().map_or(0.0, |row| row[at])).powi(2);
            if off > most {
                return false;
            }
        }
        true
    };
    let row = |(key, head): Cell| right.slice(s![key, head, ..]);
    if is(Some(row(own))) {
        return Some(Some(own));
    }
    if is(None) {
        return Some(None);
    }
    let (keys, heads) = (right.shape()[0], right.shape()[1]);
    let mut all = (0..keys).flat_map(|key| (0..heads).map(move |head| (key, head)));
    all.find(|&cell| is(Some(row(cell)))).map(Some)
}
