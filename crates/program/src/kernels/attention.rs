//! Computes scaled dot-product attention as one operation.

use rayon::prelude::*;

use super::call::{Call, Results, ensure, expanded};
use super::matmul::rows_by_rows;
use super::reduce::log_sum_exp;
use super::rows::permute;
use super::scan::soft;
use crate::value::dtype::{DType, Kind};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Number of scores that are in memory at a time.
const TILE: usize = 1 << 20;

/// softmax(q kᵀ · scale + mask) v; a row that the mask hides completely gives 0.
pub(super) fn attention(call: &Call<'_>) -> Results {
    let mut out = attend(call, call.optional(3, "attn_mask")?, call.flag(5, "is_causal", false)?)?;
    out.truncate(1);
    Ok(out)
}

/// The same, with the logarithm of each row's sum of exponentials.
pub(super) fn flash_attention(call: &Call<'_>) -> Results {
    attend(call, call.optional(usize::MAX, "attn_mask")?, call.flag(4, "is_causal", false)?)
}

/// `q` \[..,H,T,d\], `k` \[..,K,S,d\], `v` \[..,K,S,e\]; with `enable_gqa` each of the K heads serves H/K of q's heads.
fn attend(call: &Call<'_>, mask: Option<&Tensor<'_>>, is_causal: bool) -> Results {
    let (q, k, v) = (call.tensor(0, "query")?, call.tensor(1, "key")?, call.tensor(2, "value")?);
    let misfit = || KernelError::Shape { what: "query and key", left: q.shape.clone(), right: k.shape.clone() };
    let ([q_batch @ .., t, d], [k_batch @ .., s, d2], [v_batch @ .., s2, e]) =
        (q.shape.as_slice(), k.shape.as_slice(), v.shape.as_slice())
    else {
        return Err(misfit());
    };
    let (t, s, d, e) = (*t, *s, *d, *e);
    if d != *d2 || s != *s2 || k_batch != v_batch || q.kind().max(k.kind()).max(v.kind()) != Kind::Float {
        return Err(misfit());
    }
    // Which of k's matrices each matrix of q uses.
    let gqa = call.flag(usize::MAX, "enable_gqa", false)? && q_batch != k_batch;
    let (heads, kv_heads) = (q_batch.last().copied().unwrap_or(1), k_batch.last().copied().unwrap_or(1));
    let matrices: usize = q_batch.iter().product();
    let sources: Vec<usize> = if gqa {
        let lead = |batch: &[usize]| batch[..batch.len().saturating_sub(1)].to_vec();
        if lead(q_batch) != lead(k_batch) || kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(misfit());
        }
        (0..matrices).map(|i| i / heads * kv_heads + i % heads / (heads / kv_heads)).collect()
    } else {
        if call.broadcast(q_batch, k_batch)? != q_batch {
            return Err(misfit());
        }
        let strides = crate::memory::broadcast_strides(k_batch, q_batch).ok_or_else(misfit)?;
        crate::value::view::offsets(q_batch, &strides)
    };
    let mut rows = q_batch.to_vec();
    rows.push(t);
    let mut shape = rows.clone();
    shape.push(e);
    let shape = call.claim("attention and its output", shape)?;
    let scale = call.float(usize::MAX, "scale")?.unwrap_or(1.0 / (d as f64).sqrt());
    let mask = mask.map(|mask| added(mask, &rows, s)).transpose()?;
    let (q, k, values) = (q.to_floats(), k.to_floats(), v.to_floats());
    // v's columns as rows.
    let mut order: Vec<usize> = (0..v.shape.len()).collect();
    order.swap(v.shape.len() - 2, v.shape.len() - 1);
    let v = permute(&values, &v.shape, &order);
    let tile = (TILE / s.max(1)).clamp(1, t.max(1));
    let jobs: Vec<(usize, usize)> = (0..matrices).flat_map(|i| (0..t).step_by(tile).map(move |row| (i, row))).collect();
    let parts = jobs.into_par_iter().map(|(i, start)| {
        let count = tile.min(t - start);
        let queries = &q[(i * t + start) * d..(i * t + start + count) * d];
        let keys = &k[sources[i] * s * d..(sources[i] + 1) * s * d];
        let mut scores = rows_by_rows(queries, keys, (count, s, d))?;
        let mut sums = Vec::with_capacity(count);
        for (at, row) in scores.chunks_exact_mut(s.max(1)).enumerate() {
            row.iter_mut().for_each(|x| *x *= scale);
            if let Some(mask) = &mask {
                row.iter_mut().zip(&mask[(i * t + start + at) * s..]).for_each(|(x, m)| *x += m);
            }
            if is_causal {
                row.iter_mut().skip(start + at + 1).for_each(|x| *x = f64::NEG_INFINITY);
            }
            sums.push(log_sum_exp(row));
            match row.iter().all(|x| *x == f64::NEG_INFINITY) {
                true => row.fill(0.0),
                false => soft(row),
            }
        }
        sums.resize(count, f64::NEG_INFINITY);
        let columns = &v[sources[i] * s * e..(sources[i] + 1) * s * e];
        Ok((rows_by_rows(&scores, columns, (count, e, s))?, sums))
    });
    let parts = parts.collect::<Result<Vec<_>, KernelError>>()?;
    let (mut out, mut sums) = (Vec::with_capacity(matrices * t * e), Vec::with_capacity(matrices * t));
    for (part, sum) in parts {
        out.extend(part);
        sums.extend(sum);
    }
    Ok(vec![Tensor::of(shape, out), Tensor::of(rows, sums)])
}

/// What the mask adds to each score: a boolean mask hides where it is false.
fn added(mask: &Tensor<'_>, rows: &[usize], s: usize) -> Result<Vec<f64>, KernelError> {
    let mut shape = rows.to_vec();
    shape.push(s);
    ensure(mask.kind() != Kind::Complex, "mask", &mask.shape, &shape)?;
    let values = match mask.dtype {
        DType::Bool => mask.to_bools().iter().map(|&seen| if seen { 0.0 } else { f64::NEG_INFINITY }).collect(),
        _ => mask.to_floats().into_owned(),
    };
    Ok(expanded(&values, &mask.shape, &shape)?.into_owned())
}
