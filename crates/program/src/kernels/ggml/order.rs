//! Sorts the values of rows. ggml leaves the order of equal values open; here the first comes first.

use super::super::call::{Call, Results};
use super::{ensure, four, int};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// The indices of a row's values, sorted descending or ascending.
fn sorted(row: &[f64], largest: bool) -> Vec<usize> {
    let mut places: Vec<usize> = (0..row.len()).collect();
    places.sort_by(|&i, &j| if largest { row[j].total_cmp(&row[i]) } else { row[i].total_cmp(&row[j]) });
    places
}

/// The `count` indices that f selects in each row.
fn select_indices(call: &Call<'_>, count: usize, f: impl Fn(&[f64]) -> Vec<usize>) -> Results {
    let x = call.tensor(0, "src0")?;
    let shape = four(&x.shape)?;
    let [batch, heads, rows, width] = shape;
    ensure(count <= width, "places of a row", &[count], &shape)?;
    let values = x.to_floats();
    let picked = (0..batch * heads * rows).flat_map(|row| f(&values[row * width..(row + 1) * width]));
    let out: Vec<i64> = picked.map(|i| i as i64).collect();
    Ok(vec![Tensor::of(vec![batch, heads, rows, count], out)])
}

/// The indices that sort each row; `order` 0 is ascending, 1 descending.
pub(super) fn argsort(call: &Call<'_>) -> Results {
    let largest = match int(call, "order")? {
        0 => false,
        1 => true,
        other => return Err(KernelError::Value { name: "order", value: other.to_string() }),
    };
    select_indices(call, four(&call.tensor(0, "src0")?.shape)?[3], |row| sorted(row, largest))
}

/// The indices of the k largest of each row, descending, except that the first two are exchanged as ggml does: their order is left open.
pub(super) fn top_k(call: &Call<'_>) -> Results {
    let k = four(call.output_shape(0)?)?[3];
    select_indices(call, k, |row| {
        let mut places = sorted(row, true);
        places.truncate(k);
        if k > 1 {
            places.swap(0, 1);
        }
        places
    })
}

/// The index of the largest value in each row of a matrix.
pub(super) fn argmax(call: &Call<'_>) -> Results {
    let out = select_indices(call, 1, |row| sorted(row, true)[..1].to_vec())?;
    Ok(out.into_iter().map(|y| Tensor { shape: vec![y.values.len()], ..y }).collect())
}
