//! Is a tensor another one in another order of its elements? As rows for columns, or as bytes of one shape read under another.

use super::diagnose::{Pair, close, near};
use super::side::Tensor;

/// A way to read the elements of a matrix in another order.
#[derive(Clone, Copy)]
enum Way {
    /// Memory of \[in,out\] under the shape \[out,in\].
    Memory,
    /// Bytes of \[out,in\] read as \[in,out\], then rows as columns.
    Reread,
}

impl Way {
    /// Which element of a matrix of this shape becomes element `at`.
    fn source(self, [rows, columns]: [usize; 2], at: usize) -> usize {
        match self {
            Way::Memory => at % rows * columns + at / rows,
            Way::Reread => at % columns * rows + at / columns,
        }
    }

    fn words(self, [rows, columns]: [usize; 2]) -> String {
        match self {
            _ if rows == columns => "it is transposed".into(),
            Way::Memory => format!("the memory of [in,out] = [{columns}, {rows}] under the shape [{rows}, {columns}]"),
            Way::Reread => format!("[{rows}, {columns}] read as [{columns}, {rows}], then rows as columns"),
        }
    }
}

/// In which other order of elements B's values `b` are those of `pair.left`, and the NMSE that is left.
pub(super) fn relaid(pair: &Pair<'_>, b: &[f32]) -> Option<(String, f64)> {
    let [rows, columns] = *pair.left.shape() else { return None };
    if b.len() != pair.left.len() || rows == 1 || columns == 1 || pair.left.unreadable().is_some() {
        return None;
    }
    let ways = [Way::Memory, Way::Reread].into_iter().take(if rows == columns { 1 } else { 2 });
    ways.filter(|way| may_be(*way, pair.left, b)).find_map(|way| {
        let a = pair.left.values();
        let a: Vec<f32> = (0..a.len()).map(|at| a[way.source([rows, columns], at)]).collect();
        Some((way.words([rows, columns]), close(&a, b, pair)?))
    })
}

/// Whether some elements are as they must be: most tensors are refused without reading them whole.
fn may_be(way: Way, left: &Tensor<'_>, b: &[f32]) -> bool {
    const SOME: usize = 12;
    let (shape, width) = ([left.rows(), left.row_len()], left.row_len());
    let places: Vec<usize> = (0..SOME).map(|i| (2 * i + 1) * b.len() / (2 * SOME)).collect();
    let element = |at: usize| left.read(at / width * width..(at / width + 1) * width)[at % width];
    let from: Vec<f32> = places.iter().map(|&at| element(way.source(shape, at))).collect();
    let to: Vec<f32> = places.iter().map(|&at| b[at]).collect();
    near(&from, &to) < 0.2
}
