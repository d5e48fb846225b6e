//! Solves systems of linear equations with triangular matrices.

use super::call::{Call, Results, ensure, expanded};
use super::rows::permute;
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Solves A · X = B, or X · A = B, for X, with triangular matrices A; the axes before the last two are equal.
pub(super) fn solve_triangular(call: &Call<'_>) -> Results {
    let (a, b) = (call.tensor(0, "self")?, call.tensor(1, "B")?);
    let misfit = || KernelError::Shape { what: "a triangular system", left: a.shape.clone(), right: b.shape.clone() };
    let ([batch @ .., n, n2], [others @ .., rows, columns]) = (a.shape.as_slice(), b.shape.as_slice()) else {
        return Err(misfit());
    };
    let (n, rows, columns) = (*n, *rows, *columns);
    let upper = call.flag(usize::MAX, "upper", false)?;
    let left = call.flag(usize::MAX, "left", true)?;
    let unit = call.flag(usize::MAX, "unitriangular", false)?;
    ensure(n == *n2 && n == if left { rows } else { columns }, "a triangular system", &a.shape, &b.shape)?;
    if a.kind().max(b.kind()) == Kind::Complex {
        return Err(KernelError::Kind { what: "a triangular system", kind: Kind::Complex });
    }
    let batch = call.broadcast(batch, others)?;
    let count: usize = batch.iter().product();
    let (values, sides) = (a.to_floats(), b.to_floats());
    let matrices = expanded(&values, &a.shape, &[batch.as_slice(), &[n, n]].concat())?;
    let sides = expanded(&sides, &b.shape, &[batch.as_slice(), &[rows, columns]].concat())?;
    let mut out = Vec::with_capacity(count * rows * columns);
    for number in 0..count {
        let matrix = &matrices[number * n * n..(number + 1) * n * n];
        let side = &sides[number * rows * columns..(number + 1) * rows * columns];
        // X · A = B means Aᵀ · Xᵀ = Bᵀ, and Aᵀ is upper if A is lower.
        let (matrix, side) = match left {
            true => (matrix.to_vec(), side.to_vec()),
            false => {
                (permute(matrix, &[n, n], &[1, 0]).into_owned(), permute(side, &[rows, columns], &[1, 0]).into_owned())
            }
        };
        let x = solve(&matrix, side, n, upper == left, unit);
        out.extend(if left { x } else { permute(&x, &[columns, rows], &[1, 0]).into_owned() });
    }
    let shape = [batch.as_slice(), &[rows, columns]].concat();
    Ok(vec![Tensor::of(shape, out)])
}

/// Solves A · X = B for X, where A is [n,n] and only its triangle is read.
fn solve(a: &[f64], mut x: Vec<f64>, n: usize, upper: bool, unit: bool) -> Vec<f64> {
    let columns = x.len().checked_div(n).unwrap_or(0);
    for step in 0..n {
        let i = if upper { n - 1 - step } else { step };
        let known = if upper { i + 1..n } else { 0..i };
        for c in 0..columns {
            let sum: f64 = known.clone().map(|j| a[i * n + j] * x[j * columns + c]).sum();
            let rest = x[i * columns + c] - sum;
            x[i * columns + c] = if unit { rest } else { rest / a[i * n + i] };
        }
    }
    x
}
