//! Finds a tensor that is another one in another order of its elements: rows for columns, or bytes of one shape read under another; and with a law beside.

use super::changes::Both;
use super::diagnose::{Diagnosis, Pair, close, near};
use super::relations::exchanged;
use super::side::Tensor;
use crate::tolerance::weights::{LIKE_ITSELF, SAME_MOMENT, SAME_MOMENT_COARSE};

/// In which other order of elements B's values `b` are those of `pair.left`, and the NMSE that is left: memory of \[in,out\] under the shape \[out,in\], or
/// bytes of \[out,in\] read as \[in,out\], then rows as columns.
pub(super) fn relaid(pair: &Pair<'_>, b: &[f32]) -> Option<(String, f64)> {
    let ways = ways(pair, b.len()).into_iter().filter(|(read, _)| may_be(*read, pair.left, b));
    let mut found =
        ways.filter_map(|(read, words)| Some((words, close(&exchanged(&pair.left.values(), &read), b, pair)?)));
    found.next()
}

/// The law of what is another one in another order of elements, and is not that either: its rows, columns or size are changed beside.
pub(super) fn changed_too(both: &Both<'_>) -> Option<Diagnosis> {
    let (pair, a, b) = (both.pair, both.a, both.b);
    let coarse = [pair.left, pair.right].iter().filter_map(|of| of.storage()).any(|storage| storage.is_quantised());
    let room = if coarse { SAME_MOMENT_COARSE } else { SAME_MOMENT };
    let may_be = near(a, b) > LIKE_ITSELF && (moment(a) / moment(b) - 1.0).abs() < room;
    ways(pair, b.len()).into_iter().filter(|_| may_be).find_map(|([rows, columns], words)| {
        let b = exchanged(b, &[columns, rows]);
        let both = Both::of(pair, a, &b);
        let found = both.throughout().or_else(|| both.reordered())?;
        Some(Diagnosis { note: format!("{words}; read so: {}", found.note), ..found })
    })
}

/// Σx⁴/(Σx²)², which neither an order nor one factor changes: most pairs are refused by it.
fn moment(values: &[f32]) -> f64 {
    let sum = |of: &dyn Fn(f64) -> f64| values.iter().map(|x| of(f64::from(*x))).sum::<f64>();
    sum(&|x| x.powi(4)) / sum(&|x| x * x).powi(2)
}

/// Other orders of the elements of a matrix: as which shape A's is read before rows become columns, and in words.
fn ways(pair: &Pair<'_>, len: usize) -> Vec<([usize; 2], String)> {
    let [rows, columns] = *pair.left.shape() else { return Vec::new() };
    if len != pair.left.len() || rows == 1 || columns == 1 || pair.left.unreadable().is_some() {
        return Vec::new();
    }
    if rows == columns {
        return vec![([rows, columns], "it is transposed".into())];
    }
    let words = [
        format!("the memory of [in,out] = [{columns}, {rows}] under the shape [{rows}, {columns}]"),
        format!("[{rows}, {columns}] read as [{columns}, {rows}], then rows as columns"),
    ];
    [[rows, columns], [columns, rows]].into_iter().zip(words).collect()
}

/// Whether some elements are as they must be where the others are read in this shape: most tensors are refused without reading them whole.
fn may_be([rows, columns]: [usize; 2], left: &Tensor<'_>, b: &[f32]) -> bool {
    const SOME: usize = 12;
    let width = left.row_len();
    let places: Vec<usize> = (0..SOME).map(|i| (2 * i + 1) * b.len() / (2 * SOME)).collect();
    let element = |at: usize| left.read(at / width * width..(at / width + 1) * width)[at % width];
    let from: Vec<f32> = places.iter().map(|at| element(at % rows * columns + at / rows)).collect();
    let to: Vec<f32> = places.iter().map(|&at| b[at]).collect();
    near(&from, &to) < LIKE_ITSELF
}
