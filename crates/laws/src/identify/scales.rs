//! Rows that have another row's scale: a cache or a buffer of whole numbers, of which the numbers and the scales are taken from two places.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use crate::identify::statistics::SIZES;

/// A tensor as rows of its last axis.
fn rows_of(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    let width = *x.shape().last()?;
    x.to_shape((x.len() / width.max(1), width)).ok().map(|x| x.into_owned())
}

/// The sizes of a tensor's rows.
pub(super) fn sizes(x: &ArrayD<f64>, size: fn(&[f64]) -> f64) -> Option<Vec<f64>> {
    Some(rows_of(x)?.rows().into_iter().map(|row| size(&row.to_vec())).collect())
}

/// A tensor whose rows are each multiplied; nothing where a factor is none.
pub(super) fn by_rows(x: &ArrayD<f64>, by: impl Fn(usize) -> f64) -> Option<ArrayD<f64>> {
    let mut rows = rows_of(x)?;
    for (at, mut row) in rows.rows_mut().into_iter().enumerate() {
        let by = by(at);
        by.is_finite().then(|| row.mapv_inplace(|x| x * by))?;
    }
    rows.into_dyn().to_shape(x.raw_dim()).ok().map(|x| x.into_owned())
}

/// Which row's scale a row has: of its number, of the rows of a position, and of all.
type Other = fn(usize, usize, usize) -> usize;
const OTHERS: [(&str, Other, bool); 8] = [
    ("the first position", |row, inside, _| row % inside, false),
    ("the last position", |row, inside, all| all - inside + row % inside, false),
    ("the position before (the first: its own)", |row, inside, _| row.checked_sub(inside).unwrap_or(row), false),
    (
        "the next position (the last: its own)",
        |row, inside, all| if row + inside < all { row + inside } else { row },
        false,
    ),
    ("the first head", |row, inside, _| row / inside * inside, true),
    ("the last head", |row, inside, _| row / inside * inside + inside - 1, true),
    (
        "the head before, around the end",
        |row, inside, _| row / inside * inside + (row % inside + inside - 1) % inside,
        true,
    ),
    ("the next head, around the end", |row, inside, _| row / inside * inside + (row % inside + 1) % inside, true),
];

/// Ways to read a tensor of this shape with other scales of its rows.
pub(super) fn readings(shape: &[usize]) -> Vec<(String, f64, Reading)> {
    let mut all: Vec<(String, f64, Reading)> = Vec::new();
    let inside: usize = shape.get(1..shape.len().saturating_sub(1)).unwrap_or_default().iter().product();
    for (called, size) in SIZES {
        for (whose, other, _) in OTHERS.into_iter().filter(|(.., of_heads)| !of_heads || inside > 1) {
            let words = format!("with the scale of {whose}: times the {called} of that row over its own");
            let reading: Reading = Arc::new(move |x| {
                let sizes = sizes(x, size)?;
                by_rows(x, |row| sizes[other(row, inside, sizes.len())] / sizes[row])
            });
            all.push((words, 7.0, reading));
        }
        let powers: [(&str, i32); 3] = [("times", 1), ("over the square of", -2), ("times the square of", 2)];
        for (way, power) in powers {
            let reading: Reading = Arc::new(move |x| {
                let sizes = sizes(x, size)?;
                by_rows(x, |row| sizes[row].powi(power))
            });
            all.push((format!("{way} the {called} of its row"), 7.0, reading));
        }
    }
    all
}

/// A tensor with the scales of another of its extents, row by row.
pub(super) fn of_another(x: &ArrayD<f64>, other: &ArrayD<f64>, size: fn(&[f64]) -> f64) -> Option<ArrayD<f64>> {
    let (own, others) = (sizes(x, size)?, sizes(other, size)?);
    (x.shape() == other.shape()).then_some(())?;
    by_rows(x, |row| others[row] / own[row])
}

/// A tensor read otherwise; `None` where its shape does not allow it.
pub(crate) type Reading = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;
