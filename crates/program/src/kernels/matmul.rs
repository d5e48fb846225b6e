//! Computes matrix products. Floats use [`firstdiff_core::linear`]: dot products of rows, in f64, on several threads.

use std::borrow::Cow;

use ndarray::ArrayView2;

use super::call::{Call, Results, ensure};
use super::rows::permute;
use super::{binary, call};
use crate::value::dtype::Kind;
use crate::value::error::KernelError;
use crate::value::tensor::{Tensor, Values};
use crate::value::view::offsets;

/// y\[i,j\] = Σₗ a\[i,l\] · b\[j,l\]: rows with rows.
pub(super) fn rows_by_rows(a: &[f64], b: &[f64], (m, n, k): (usize, usize, usize)) -> Result<Vec<f64>, KernelError> {
    if m == 0 || n == 0 || k == 0 {
        return Ok(vec![0.0; m * n]);
    }
    let misfit = || KernelError::Shape { what: "a product", left: vec![m, k], right: vec![n, k] };
    let a = ArrayView2::from_shape((m, k), a).map_err(|_| misfit())?;
    let b = ArrayView2::from_shape((n, k), b).map_err(|_| misfit())?;
    let y = firstdiff_core::linear(a, b, None).map_err(|_| misfit())?;
    Ok(y.into_raw_vec_and_offset().0)
}

/// The same of integers and of complex numbers.
fn naive<T: Copy>(a: &[T], b: &[T], (m, n, k): (usize, usize, usize), zero: T, add: impl Fn(T, T, T) -> T) -> Vec<T> {
    let dot = |i: usize, j: usize| (0..k).fold(zero, |sum, l| add(sum, a[i * k + l], b[j * k + l]));
    (0..m * n).map(|at| dot(at / n, at % n)).collect()
}

fn ints(a: &[i64], b: &[i64], size: (usize, usize, usize)) -> Vec<i64> {
    naive(a, b, size, 0, |sum, x, y| sum.wrapping_add(x.wrapping_mul(y)))
}

fn complex(a: &[[f64; 2]], b: &[[f64; 2]], size: (usize, usize, usize)) -> Vec<[f64; 2]> {
    naive(a, b, size, [0.0; 2], |sum, x, y| [sum[0] + x[0] * y[0] - x[1] * y[1], sum[1] + x[0] * y[1] + x[1] * y[0]])
}

/// y\[..,o\] = Σᵢ x\[..,i\] · w\[o,i\] + b\[o\].
pub(super) fn linear(call: &Call<'_>) -> Results {
    let (x, w) = (call.tensor(0, "input")?, call.tensor(1, "weight")?);
    let (Some((&k, batch)), [outer @ .., last]) = (x.shape.split_last(), w.shape.as_slice()) else {
        return Err(KernelError::Shape { what: "input and weight", left: x.shape.clone(), right: w.shape.clone() });
    };
    ensure(outer.len() <= 1 && *last == k, "input and weight", &x.shape, &w.shape)?;
    call.room("a product", &[batch, outer].concat())?;
    let (m, n) = (batch.iter().product(), outer.first().copied().unwrap_or(1));
    let mut shape = batch.to_vec();
    shape.extend(outer);
    let values: Values<'static> = match x.kind().max(w.kind()) {
        Kind::Int => ints(&x.to_ints(), &w.to_ints(), (m, n, k)).into(),
        Kind::Float => rows_by_rows(&x.to_floats(), &w.to_floats(), (m, n, k))?.into(),
        Kind::Complex => complex(&x.to_complex(), &w.to_complex(), (m, n, k)).into(),
    };
    let y = Tensor::of(shape, values);
    match call.get(2, "bias") {
        None => Ok(vec![y]),
        Some(_) => sum(call, &y, &call.operand(2, "bias")?),
    }
}

fn sum(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Results {
    combine(call, a, b, 1.0, 1.0)
}

/// β · b + α · a.
fn combine(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>, alpha: f64, beta: f64) -> Results {
    let shape = call.broadcast(&a.shape, &b.shape)?;
    // If β is 0 the bias is not read, because it may hold NaN.
    let values: Values<'static> = match a.kind().max(b.kind()) {
        Kind::Float => {
            let add = |x: f64, y: f64| alpha * x + if beta == 0.0 { 0.0 } else { beta * y };
            binary::zip((&a.to_floats(), &a.shape), (&b.to_floats(), &b.shape), &shape, add)?.into()
        }
        Kind::Int => {
            let add = |x: i64, y: i64| (alpha as i64).wrapping_mul(x).wrapping_add((beta as i64).wrapping_mul(y));
            binary::zip((&a.to_ints(), &a.shape), (&b.to_ints(), &b.shape), &shape, add)?.into()
        }
        Kind::Complex => {
            let add = |x: [f64; 2], y: [f64; 2]| [alpha * x[0] + beta * y[0], alpha * x[1] + beta * y[1]];
            binary::zip((&a.to_complex(), &a.shape), (&b.to_complex(), &b.shape), &shape, add)?.into()
        }
    };
    Ok(vec![Tensor::of(shape, values)])
}

/// y\[..,i,j\] = Σₗ a\[..,i,l\] · b\[..,l,j\], the axes before the last two broadcast; a vector is a row on the left and a column on the right.
pub(super) fn matmul(call: &Call<'_>) -> Results {
    let (a, b) = (call.tensor(0, "self")?, call.tensor(1, "other")?);
    Ok(vec![product(call, a, b)?])
}

/// See [`matmul`].
fn product(call: &Call<'_>, a: &Tensor<'_>, b: &Tensor<'_>) -> Result<Tensor<'static>, KernelError> {
    let misfit = || KernelError::Shape { what: "a product", left: a.shape.clone(), right: b.shape.clone() };
    let (mut left, mut right) = (a.shape.clone(), b.shape.clone());
    if left.is_empty() || right.is_empty() {
        return Err(misfit());
    }
    let (row, column) = (left.len() == 1, right.len() == 1);
    if row {
        left.insert(0, 1);
    }
    if column {
        right.push(1);
    }
    let ([left_batch @ .., m, k], [right_batch @ .., k2, n]) = (left.as_slice(), right.as_slice()) else {
        return Err(misfit());
    };
    let (m, k, n) = (*m, *k, *n);
    if k != *k2 {
        return Err(misfit());
    }
    let batch = call.broadcast(left_batch, right_batch)?;
    let mut shape = batch.clone();
    if !row {
        shape.push(m);
    }
    if !column {
        shape.push(n);
    }
    call.room("a product", &[batch.as_slice(), &[m, n]].concat())?;
    // The matrices of b, transposed.
    let mut order: Vec<usize> = (0..right.len()).collect();
    order.swap(right.len() - 2, right.len() - 1);
    // A matrix that is the same for all batches is multiplied once.
    let (batch, left_batch, m) = match right_batch.iter().all(|&extent| extent == 1)
        && left_batch.iter().product::<usize>() == batch.iter().product::<usize>()
    {
        true => (vec![], vec![], batch.iter().product::<usize>() * m),
        false => (batch, left_batch.to_vec(), m),
    };
    let right_batch = if batch.is_empty() { vec![] } else { right_batch.to_vec() };
    let starts = |from: &[usize], width: usize| -> Result<Vec<usize>, KernelError> {
        let strides = crate::memory::broadcast_strides(from, &batch).ok_or_else(misfit)?;
        Ok(offsets(&batch, &strides).into_iter().map(|at| at * width).collect())
    };
    let pairs: Vec<(usize, usize)> =
        starts(&left_batch, m * k)?.into_iter().zip(starts(&right_batch, n * k)?).collect();
    let size = (m, n, k);
    let values: Values<'static> = match a.kind().max(b.kind()) {
        Kind::Float => {
            let b = b.to_floats();
            multiply_batches(&pairs, &a.to_floats(), &transposed(&b, &right, &order), size, rows_by_rows)?.into()
        }
        Kind::Int => {
            let b = b.to_ints();
            let ints = |a: &[i64], b: &[i64], size| Ok(ints(a, b, size));
            multiply_batches(&pairs, &a.to_ints(), &transposed(&b, &right, &order), size, ints)?.into()
        }
        Kind::Complex => {
            let b = b.to_complex();
            let complex = |a: &[[f64; 2]], b: &[[f64; 2]], size| Ok(complex(a, b, size));
            multiply_batches(&pairs, &a.to_complex(), &transposed(&b, &right, &order), size, complex)?.into()
        }
    };
    Ok(Tensor::of(shape, values))
}

/// The product of each pair of matrices, which begin at these offsets.
fn multiply_batches<T>(
    pairs: &[(usize, usize)],
    a: &[T],
    b: &[T],
    (m, n, k): (usize, usize, usize),
    product: impl Fn(&[T], &[T], (usize, usize, usize)) -> Result<Vec<T>, KernelError>,
) -> Result<Vec<T>, KernelError> {
    let mut out = Vec::with_capacity(pairs.len() * m * n);
    for &(i, j) in pairs {
        out.extend(product(&a[i..i + m * k], &b[j..j + n * k], (m, n, k))?);
    }
    Ok(out)
}

fn transposed<'a, T: Copy>(values: &'a [T], shape: &[usize], order: &[usize]) -> Cow<'a, [T]> {
    let [.., k, n] = shape else { return Cow::Borrowed(values) };
    if *k == 1 || *n == 1 {
        return Cow::Borrowed(values);
    }
    debug_assert_eq!(shape.len(), order.len());
    permute(values, shape, order)
}

/// β · x + α · a b, for matrices and for batches of them.
pub(super) fn addmm(call: &Call<'_>) -> Results {
    let x = call.operand(0, "self")?;
    let y = product(call, call.tensor(1, "mat1")?, call.tensor(2, "mat2")?)?;
    let (alpha, beta) = (call.float(usize::MAX, "alpha")?, call.float(usize::MAX, "beta")?);
    let shape = y.shape.clone();
    let out = combine(call, &y, &x, alpha.unwrap_or(1.0), beta.unwrap_or(1.0))?;
    call::ensure(out[0].shape == shape, "the product and what it is added to", &shape, &x.shape)?;
    Ok(out)
}
