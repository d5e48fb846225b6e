//! Computes hyper-connections: mixes, reads and writes several residual streams. Source: Zhu et al., Hyper-Connections, 2024.

use super::super::call::{Call, Results};
use super::super::scan::soft;
use super::super::special;
use super::{ensure, float, four, int, is_given, or_zero};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;

/// Number of streams.
const STREAMS: usize = 4;

/// A matrix of streams for each token whose rows and columns sum to one: the softmax of scale₂ · x + base over the values after the first two of each
/// stream, plus eps; then columns and rows are divided by their sums plus eps in turn, `n_iter` times, columns first.
pub(super) fn comb(call: &Call<'_>) -> Results {
    const VALUES: usize = (2 + STREAMS) * STREAMS;
    let (mixes, scale, base) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?, call.tensor(2, "src2")?);
    let [one, also, tokens, width] = four(&mixes.shape)?;
    let fits = one * also == 1 && width == VALUES && scale.len() > 2 && base.len() == VALUES;
    ensure(fits, "the values of streams", &mixes.shape, &base.shape)?;
    let (eps, times) = (float(call, "eps")?, int(call, "n_iter")?);
    if !(1..1000).contains(&times) {
        return Err(KernelError::Value { name: "n_iter", value: times.to_string() });
    }
    let (mixes, scale, base) = (mixes.to_floats(), scale.to_floats()[2], base.to_floats());
    let first = 2 * STREAMS;
    let mut out = Vec::with_capacity(tokens * STREAMS * STREAMS);
    for token in mixes.chunks_exact(VALUES) {
        let mut matrix: Vec<f64> = token[first..].iter().zip(&base[first..]).map(|(x, b)| scale * x + b).collect();
        for row in matrix.chunks_exact_mut(STREAMS) {
            soft(row);
            row.iter_mut().for_each(|x| *x += eps);
        }
        for turn in 0..times {
            if turn > 0 {
                (0..STREAMS).for_each(|i| balance(&mut matrix, i * STREAMS, 1, eps));
            }
            (0..STREAMS).for_each(|j| balance(&mut matrix, j, STREAMS, eps));
        }
        out.extend(matrix);
    }
    Ok(vec![Tensor::of(vec![1, tokens, STREAMS, STREAMS], out)])
}

/// Divides a row or column by its sum plus eps.
fn balance(matrix: &mut [f64], start: usize, stride: usize, eps: f64) {
    let places = || (0..STREAMS).map(|i| start + i * stride);
    let sum = eps + places().map(|at| matrix[at]).sum::<f64>();
    places().for_each(|at| matrix[at] /= sum);
}

/// scale · Σₕ x\[t,h,:\] · w\[t,h\]; `gated`: w\[t,h,:\] through the sigmoid.
pub(super) fn pre(call: &Call<'_>) -> Results {
    let (x, w) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?);
    let (scale, gated) = (float(call, "scale")?, or_zero(call, "gated")? != 0);
    let (shape, weights) = (four(&x.shape)?, four(&w.shape)?);
    let [one, tokens, streams, width] = shape;
    let due = if gated { shape } else { [1, 1, tokens, streams] };
    ensure(one == 1 && weights == due, "streams and their weights", &shape, &weights)?;
    let (x, w) = (x.to_floats(), w.to_floats());
    let mut out = vec![0.0; tokens * width];
    for (at, &x) in x.iter().enumerate() {
        let stream = at / width;
        let w = if gated { special::sigmoid(w[at]) } else { w[stream] };
        out[stream / streams * width + at % width] += scale * x * w;
    }
    Ok(vec![Tensor::of(vec![1, 1, tokens, width], out)])
}

/// x\[t,:\] · post\[t,h\] + Σᵢ residual\[t,i,:\] · comb\[t,i,h\] for each stream h; without a matrix, plus the stream's own residual.
pub(super) fn post(call: &Call<'_>) -> Results {
    let (x, residual, post) = (call.tensor(0, "src0")?, call.tensor(1, "src1")?, call.tensor(2, "src2")?);
    let (shape, given, gains) = (four(&residual.shape)?, four(&x.shape)?, four(&post.shape)?);
    let [one, tokens, streams, width] = shape;
    ensure(one == 1 && given == [1, 1, tokens, width], "streams and what is added", &shape, &given)?;
    ensure(gains == [1, 1, tokens, streams], "streams and their gains", &shape, &gains)?;
    let matrix = if is_given(call, 3) { Some(call.tensor(3, "src3")?) } else { None };
    if let Some(matrix) = matrix {
        let found = four(&matrix.shape)?;
        ensure(found == [1, tokens, streams, streams], "streams and their matrix", &shape, &found)?;
    }
    let matrix = matrix.map(Tensor::to_floats);
    let (x, residual, post) = (x.to_floats(), residual.to_floats(), post.to_floats());
    let mut out = Vec::with_capacity(residual.len());
    for stream in 0..tokens * streams {
        let (token, to) = (stream / streams, stream % streams);
        for i in 0..width {
            let kept = matrix.as_ref().map_or(residual[stream * width + i], |matrix| {
                let part = |from: usize| {
                    residual[(token * streams + from) * width + i] * matrix[(token * streams + from) * streams + to]
                };
                (0..streams).map(part).sum()
            });
            out.push(x[token * width + i] * post[stream] + kept);
        }
    }
    Ok(vec![Tensor::of(shape.to_vec(), out)])
}

/// Σₕ max(q\[t,h\] · k\[s\], 0) · w\[t,h\] + mask\[t,s\]: the index score of each key for a token. Source: DeepSeek-V3.2, 2025.
pub(super) fn lightning_indexer(call: &Call<'_>) -> Results {
    let src = |at: usize| call.tensor(at, "src");
    let (queries, keys, weights, mask) = (src(0)?, src(1)?, src(2)?, src(3)?);
    let (q, k, w, m) = (four(&queries.shape)?, four(&keys.shape)?, four(&weights.shape)?, four(&mask.shape)?);
    let ([streams, tokens, heads, width], [also, count, one, depth]) = (q, k);
    ensure(also == streams && one == 1 && depth == width, "queries and keys", &q, &k)?;
    ensure(w == [streams, 1, tokens, heads], "queries and their weights", &q, &w)?;
    let fits = m[0] > 0 && streams.is_multiple_of(m[0]) && m[1..] == [1, tokens, count];
    ensure(fits, "tokens, keys and their mask", &[tokens, count], &m)?;
    call.room("keys of tokens", &[streams, tokens, count])?;
    let (queries, keys, weights, mask) = (queries.to_floats(), keys.to_floats(), weights.to_floats(), mask.to_floats());
    let mut out = Vec::with_capacity(streams * tokens * count);
    for row in 0..streams * tokens {
        let (stream, token) = (row / tokens, row % tokens);
        for key in 0..count {
            let k = &keys[(stream * count + key) * width..][..width];
            let worth = |head: usize| {
                let q = &queries[(row * heads + head) * width..][..width];
                q.iter().zip(k).map(|(q, k)| q * k).sum::<f64>().max(0.0) * weights[row * heads + head]
            };
            let hidden = mask[(stream % m[0] * tokens + token) * count + key];
            out.push((0..heads).map(worth).sum::<f64>() + hidden);
        }
    }
    Ok(vec![Tensor::of(vec![streams, 1, tokens, count], out)])
}
