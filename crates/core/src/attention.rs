//! Computes attention: products of queries with keys, scaled and masked scores, and the weighted sum of the values; for multi-head, grouped and multi-query
//! heads.

use ndarray::{Array2, Array3, ArrayView3, Axis};

use crate::error::{OpError, ensure};
use crate::kernel::float::Float;
use crate::kernel::{par_each, product};
use crate::mask::Mask;

/// qk\[h,t,s\] = Σᵢ q\[t,h,i\] · k\[s,⌊h/(H/K)⌋,i\], neither scaled nor masked.
///
/// `q` \[T,H,d\], `k` \[S,K,d\] with K a divisor of H (K = H: multi-head, K = 1: multi-query); the result is \[H,T,S\]. Each sum is a
/// [`dot`](crate::dot).
///
/// Source: Vaswani et al., Attention Is All You Need, 2017; Ainslie et al., GQA, 2023.
///
/// # Errors
/// When the shapes do not fit.
pub fn qk<F: Float>(q: ArrayView3<'_, F>, k: ArrayView3<'_, F>) -> Result<Array3<F>, OpError> {
    let ((tokens, heads, width), (keys, kv_heads, key_width)) = (q.dim(), k.dim());
    let fits = width == key_width && kv_heads > 0 && heads.is_multiple_of(kv_heads);
    ensure(fits, "qk", q.shape(), k.shape(), "q is [T,H,d], k [S,K,d], K divides H")?;
    let group = heads / kv_heads;
    let mut out = Array3::zeros((heads, tokens, keys));
    let heads = out.axis_iter_mut(Axis(0)).enumerate().collect();
    par_each(heads, q.len().saturating_mul(keys), |(h, products)| {
        product(q.index_axis(Axis(1), h), k.index_axis(Axis(1), h / group), &[], products);
    });
    Ok(out)
}

/// cap · tanh(x / cap): soft-capping, for scores and logits.
///
/// Source: Gemma 2 technical report, 2024.
pub fn softcap<F: Float>(x: F, cap: F) -> F {
    cap * (x / cap).tanh()
}

/// scores = mask(softcap(scale · qk)): scaled, then capped, then -inf where the mask hides the key.
///
/// `qk` \[H,T,S\]; so is the result; the mask's padding, where there is one, \[S\]. The T queries are the last of the S positions:
/// query t stands at S - T + t.
///
/// Source: PyTorch, torch.nn.functional.scaled_dot_product_attention.
///
/// # Errors
/// When there are fewer keys than queries, or the padding is not \[S\].
pub fn scores<F: Float>(qk: ArrayView3<'_, F>, scale: F, cap: Option<F>, mask: Mask<'_>) -> Result<Array3<F>, OpError> {
    let (_, tokens, keys) = qk.dim();
    ensure(keys >= tokens, "scores", qk.shape(), &[tokens], "qk is [H,T,S], S >= T")?;
    if let Some(padding) = mask.padding {
        ensure(keys == padding.len(), "scores", qk.shape(), &[padding.len()], "qk is [H,T,S], padding [S]")?;
    }
    let mut out = Array3::zeros(qk.dim());
    let heads: Vec<_> = qk.outer_iter().zip(out.outer_iter_mut()).collect();
    par_each(heads, qk.len(), |(qk, mut head)| {
        for (t, (qk, mut row)) in qk.rows().into_iter().zip(head.rows_mut()).enumerate() {
            let Some(row) = row.as_slice_mut() else { continue };
            let reach = mask.visible_range(keys - tokens + t);
            let (first, last) = (reach.start.min(keys), reach.end.min(keys));
            row[..first].fill(F::neg_infinity());
            row[last..].fill(F::neg_infinity());
            let seen = &mut row[first..last];
            seen.iter_mut().zip(qk.iter().skip(first)).for_each(|(x, &qk)| *x = qk * scale);
            if let Some(cap) = cap {
                seen.iter_mut().for_each(|x| *x = softcap(*x, cap));
            }
            for (x, _) in row.iter_mut().zip(mask.padding.unwrap_or_default()).filter(|(_, real)| **real == 0) {
                *x = F::neg_infinity();
            }
        }
    });
    Ok(out)
}

/// context\[t, h·d + i\] = Σₛ probs\[h,t,s\] · v\[s,⌊h/(H/K)⌋,i\].
///
/// `probs` \[H,T,S\], `v` \[S,K,d\]; the result is \[T,H*d\], heads side by side. Each sum over the keys is a
/// [`dot`](crate::dot); a key of probability 0 and of finite values changes no bit of it (but a
/// zero's sign).
///
/// Source: as [`qk`].
///
/// # Errors
/// When the shapes do not fit.
pub fn context<F: Float>(probs: ArrayView3<'_, F>, v: ArrayView3<'_, F>) -> Result<Array2<F>, OpError> {
    let ((heads, tokens, keys), (values, kv_heads, width)) = (probs.dim(), v.dim());
    let fits = keys == values && kv_heads > 0 && heads.is_multiple_of(kv_heads);
    ensure(fits, "context", probs.shape(), v.shape(), "probs is [H,T,S], v [S,K,d], K divides H")?;
    let group = heads / kv_heads;
    let mut out = Array2::zeros((tokens, heads * width));
    let heads = out.axis_chunks_iter_mut(Axis(1), width.max(1)).enumerate().collect();
    par_each(heads, probs.len().saturating_mul(width), |(h, context)| {
        product(probs.index_axis(Axis(0), h), v.index_axis(Axis(1), h / group).reversed_axes(), &[], context);
    });
    Ok(out)
}
