//! Is a tensor another one in another order of its elements? As rows for columns, or as bytes of one shape read under another.

use super::diagnose::{Pair, close, near};
use super::relations::exchanged;
use super::side::Tensor;

/// In which other order of elements B's values `b` are those of `pair.left`, and the NMSE that is left: memory of \[in,out\] under the shape \[out,in\], or
/// bytes of \[out,in\] read as \[in,out\], then rows as columns.
pub(super) fn relaid(pair: &Pair<'_>, b: &[f32]) -> Option<(String, f64)> {
    let [rows, columns] = *pair.left.shape() else { return None };
    if b.len() != pair.left.len() || rows == 1 || columns == 1 || pair.left.unreadable().is_some() {
        return None;
    }
    let words = [
        format!("the memory of [in,out] = [{columns}, {rows}] under the shape [{rows}, {columns}]"),
        format!("[{rows}, {columns}] read as [{columns}, {rows}], then rows as columns"),
    ];
    let ways = [[rows, columns], [columns, rows]].into_iter().zip(words);
    let ways = ways.take(if rows == columns { 1 } else { 2 }).filter(|(read, _)| may_be(*read, pair.left, b));
    ways.map(|(read, words)| (read, if rows == columns { "it is transposed".into() } else { words }))
        .find_map(|(read, words)| Some((words, close(&exchanged(&pair.left.values(), &read), b, pair)?)))
}

/// Whether some elements are as they must be where the others are read in this shape: most tensors are refused without reading them whole.
fn may_be([rows, columns]: [usize; 2], left: &Tensor<'_>, b: &[f32]) -> bool {
    const SOME: usize = 12;
    let width = left.row_len();
    let places: Vec<usize> = (0..SOME).map(|i| (2 * i + 1) * b.len() / (2 * SOME)).collect();
    let element = |at: usize| left.read(at / width * width..(at / width + 1) * width)[at % width];
    let from: Vec<f32> = places.iter().map(|at| element(at % rows * columns + at / rows)).collect();
    let to: Vec<f32> = places.iter().map(|&at| b[at]).collect();
    near(&from, &to) < 0.2
}
