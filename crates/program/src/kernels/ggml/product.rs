//! Computes ggml's matrix products, short convolutions and triangular solves. ggml multiplies rows with rows.

use std::collections::BTreeMap;

use super::super::call::{self, Call, Results};
use super::super::matmul::rows_by_rows;
use super::{ensure, four, offset};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// y\[..,i,j\] = Σₗ b\[..,i,l\] · a\[..,j,l\]. If b has more matrices, each matrix of a is used for several neighbouring ones.
pub(super) fn mul_mat(call: &Call<'_>) -> Results {
    let (a, b) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let (left, right) = (four(&a.shape)?, four(&b.shape)?);
    let ([a3, a2, n, k], [b3, b2, m, width]) = (left, right);
    let fits = width == k && a3 > 0 && a2 > 0 && b3.is_multiple_of(a3) && b2.is_multiple_of(a2);
    ensure(fits, "a product", &left, &right)?;
    call.room("a product", &[b3, b2, m, n])?;
    let (a, b) = (a.to_floats(), b.to_floats());
    let shape = vec![b3, b2, m, n];
    if a3 * a2 == 1 {
        return Ok(vec![Tensor::of(shape, rows_by_rows(&b, &a, (b3 * b2 * m, n, k))?)]);
    }
    let mut out = Vec::with_capacity(b3 * b2 * m * n);
    for batch in 0..b3 {
        for head in 0..b2 {
            let at = (batch / (b3 / a3) * a2 + head / (b2 / a2)) * n * k;
            let from = (batch * b2 + head) * m * k;
            out.extend(rows_by_rows(&b[from..from + m * k], &a[at..at + n * k], (m, n, k))?);
        }
    }
    Ok(vec![Tensor::of(shape, out)])
}

/// y\[t,u,j\] = Σₗ b\[t,u,l\] · a\[ids\[t,u\],j,l\]: for each token the matrices of its experts; b may have a single row for all of them.
pub(super) fn mul_mat_id(call: &Call<'_>) -> Results {
    let (a, b, ids) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?, call.tensor(2, "src2")?);
    let (matrices, rows, chosen) = (four(&a.shape)?, four(&b.shape)?, four(&ids.shape)?);
    let ([one, experts, n, k], [batch, tokens, given, width], [.., count, used]) = (matrices, rows, chosen);
    let is_three = one == 1 && batch == 1 && chosen[0] * chosen[1] == 1;
    ensure(is_three && width == k && count == tokens, "a product by index", &matrices, &rows)?;
    ensure(given > 0 && used.is_multiple_of(given), "rows of the experts", &rows, &chosen)?;
    call.room("a product by index", &[tokens, used, n])?;
    let (a, b) = (a.to_floats(), b.to_floats());
    let mut by_expert: BTreeMap<usize, Vec<usize>> = BTreeMap::new();
    for (at, &id) in ids.to_ints().iter().enumerate() {
        by_expert.entry(check_index(id, experts)?).or_default().push(at);
    }
    let mut out = vec![0.0; tokens * used * n];
    for (expert, places) in by_expert {
        let mut rows = Vec::with_capacity(places.len() * k);
        for at in &places {
            let start = (at / used * given + at % used % given) * k;
            rows.extend_from_slice(&b[start..start + k]);
        }
        let y = rows_by_rows(&rows, &a[expert * n * k..(expert + 1) * n * k], (places.len(), n, k))?;
        for (row, at) in places.into_iter().enumerate() {
            out[at * n..(at + 1) * n].copy_from_slice(&y[row * n..(row + 1) * n]);
        }
    }
    Ok(vec![Tensor::of(vec![1, tokens, used, n], out)])
}

/// Checks that an index is not negative and within the axis.
pub(super) fn check_index(index: i64, extent: usize) -> Result<usize, KernelError> {
    match index {
        0.. => call::index(index, extent),
        _ => Err(KernelError::Index { index, extent }),
    }
}

/// y\[s,t,c\] = Σᵢ x\[s,c,t+i\] · w\[c,i\]: a separate convolution along the tokens for each channel.
pub(super) fn ssm_conv(call: &Call<'_>) -> Results {
    let (x, w) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let (shape, kernel) = (four(&x.shape)?, four(&w.shape)?);
    let ([one, sequences, channels, length], [.., rows, width]) = (shape, kernel);
    let is_matrix = one == 1 && kernel[0] * kernel[1] == 1;
    ensure(is_matrix && rows == channels && width > 0 && length + 1 > width, "a convolution", &shape, &kernel)?;
    let (x, w, tokens) = (x.to_floats(), w.to_floats(), length + 1 - width);
    let mut out = Vec::with_capacity(sequences * tokens * channels);
    for sequence in 0..sequences {
        for token in 0..tokens {
            for channel in 0..channels {
                let start = offset(shape, [0, sequence, channel, token]);
                let taps = x[start..start + width].iter().zip(&w[channel * width..]);
                out.push(taps.map(|(x, w)| x * w).sum::<f64>());
            }
        }
    }
    Ok(vec![Tensor::of(vec![1, sequences, tokens, channels], out)])
}

/// Solves A X = B for X, with A lower triangular.
pub(super) fn solve_tri(call: &Call<'_>) -> Results {
    let (a, b) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let (left, right) = (four(&a.shape)?, four(&b.shape)?);
    let [outer, heads, n, columns] = right;
    ensure(left == [outer, heads, n, n], "a triangular system", &left, &right)?;
    let (a, mut x) = (a.to_floats(), b.to_floats().into_owned());
    for batch in 0..outer * heads {
        let (a, x) = (&a[batch * n * n..], &mut x[batch * n * columns..(batch + 1) * n * columns]);
        for row in 0..n {
            for column in 0..columns {
                let sum: f64 = (0..row).map(|t| a[row * n + t] * x[t * columns + column]).sum();
                x[row * columns + column] = (x[row * columns + column] - sum) / a[row * n + row];
            }
        }
    }
    Ok(vec![Tensor::of(right.to_vec(), x)])
}
