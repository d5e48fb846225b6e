//! Rounds activations before a quantised matrix product: to 8 bits in blocks, as llama.cpp's CPU backend does, or to f16 or bf16.

use half::{bf16, f16};
use ndarray::{Array2, ArrayView2};

use crate::error::{OpError, ensure};
use crate::kernel::par_each;

/// The type that activations are rounded to before a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ActivationType {
    /// Blocks of 32 with a scale in f16: for Q4_0, Q5_0, Q8_0, IQ4_NL, MXFP4.
    Q8_0,
    /// As Q8_0, and the block's sum in f16: for Q4_1, Q5_1, whose blocks have a minimum.
    Q8_1,
    /// Blocks of 256 with a scale in f32: for the K, IQ and TQ types.
    Q8K,
    /// IEEE half.
    F16,
    /// bfloat16.
    BF16,
}

impl ActivationType {
    /// Elements that share a scale.
    pub fn block_len(self) -> usize {
        match self {
            ActivationType::Q8_0 | ActivationType::Q8_1 => 32,
            ActivationType::Q8K => 256,
            ActivationType::F16 | ActivationType::BF16 => 1,
        }
    }
}

/// Activations after rounding.
#[derive(Clone, Debug)]
pub struct Quantised {
    /// The values that are multiplied, \[T,n\].
    pub values: Array2<f32>,
    /// Of [`ActivationType::Q8_1`], \[T,n/32\]: the block sum that ggml multiplies with the minimum, less the sum of the block's rounded values.
    pub excess: Option<Array2<f32>>,
}

/// Activations in blocks of integers: element i of row t is `quants[t, i] · scales[t, i / block]`.
#[derive(Clone, Debug)]
pub struct QuantisedBlocks {
    /// -127 to 127, \[T,n\].
    pub quants: Array2<i8>,
    /// \[T,n/block\]; NaN where an element of the block is not finite.
    pub scales: Array2<f32>,
    /// As in [`Quantised`].
    pub excess: Option<Array2<f32>>,
}

/// Rounds every row of `x` \[T,n\], n a multiple of the block.
///
/// Q8_0, Q8_1, Q8_K: the values of [`quantise_to_ints`]. F16, BF16: rounded to nearest, ties to even.
///
/// # Errors
/// When n is no multiple of the block.
///
/// ```
/// use firstdiff_core::{ActivationType, quantise};
/// let x = ndarray::Array2::from_shape_fn((1, 32), |(_, i)| i as f32);
/// let rounded = quantise(x.view(), ActivationType::Q8_0)?.values;
/// assert_eq!(rounded[[0, 31]], 127.0 * half::f16::from_f32(31.0 / 127.0).to_f32());
/// # Ok::<(), firstdiff_core::OpError>(())
/// ```
pub fn quantise(x: ArrayView2<'_, f32>, kind: ActivationType) -> Result<Quantised, OpError> {
    let rounded = |round: fn(f32) -> f32| {
        let mut values = x.as_standard_layout().into_owned();
        let work = values.len() * WORK;
        par_each(values.rows_mut().into_iter().collect(), work, |mut row| row.mapv_inplace(round));
        Ok(Quantised { values, excess: None })
    };
    match kind {
        ActivationType::F16 => return rounded(|x| f16::from_f32(x).to_f32()),
        ActivationType::BF16 => return rounded(|x| bf16::from_f32(x).to_f32()),
        ActivationType::Q8_0 | ActivationType::Q8_1 | ActivationType::Q8K => {}
    }
    let QuantisedBlocks { quants, scales, excess } = quantise_to_ints(x, kind)?;
    let mut values = quants.mapv(f32::from);
    let blocks = values.exact_chunks_mut((1, kind.block_len()));
    blocks.into_iter().zip(&scales).for_each(|(mut block, &scale)| block *= scale);
    Ok(Quantised { values, excess })
}

/// Rounds every row of `x` \[T,n\] to integers, n a multiple of the block.
///
/// Q8_0, Q8_1: d = max|x| / 127 over 32 elements; q = round(x · 127/max|x|), ties to even; the scale is f16(d). Q8_1's sum is f16(d · Σq), with d
/// before it is rounded. Q8_K: i = -127/m over 256 elements, m the element of the largest magnitude, the first of equals; q = min(127, round(i · x));
/// the scale is 1/i.
///
/// Source: llama.cpp, ggml-quants and ggml-cpu (x86), quantize_row_q8_0, quantize_row_q8_1, quantize_row_q8_K. Other processors' code takes
/// 1/d for 127/max and rounds halves away from zero: one step of a value now and then.
///
/// # Errors
/// When n is no multiple of the block, or the kind is a 16-bit float.
pub fn quantise_to_ints(x: ArrayView2<'_, f32>, kind: ActivationType) -> Result<QuantisedBlocks, OpError> {
    let (block, tokens) = (kind.block_len(), x.nrows());
    ensure(block > 1, "quantise_to_ints", x.shape(), &[block], "16-bit floats are no whole numbers")?;
    ensure(x.ncols().is_multiple_of(block), "quantise", x.shape(), &[block], "x is [T,n], n a multiple of the block")?;
    let x = x.as_standard_layout();
    let mut quants = Array2::<i8>::zeros(x.raw_dim());
    let mut scales = Array2::<f32>::zeros((tokens, x.ncols() / block));
    let mut excess = (kind == ActivationType::Q8_1).then(|| Array2::<f32>::zeros(scales.raw_dim()));
    let mut beyond: Vec<_> = excess.iter_mut().flat_map(|e| e.rows_mut()).collect();
    beyond.resize_with(tokens, || ndarray::ArrayViewMut1::from(&mut []));
    let rows: Vec<_> = x.outer_iter().zip(quants.rows_mut()).zip(scales.rows_mut()).zip(beyond).collect();
    par_each(rows, x.len() * WORK, |(((x, mut quants), mut scales), mut beyond)| {
        let (Some(x), Some(quants)) = (x.to_slice(), quants.as_slice_mut()) else { return };
        if kind == ActivationType::Q8K {
            let blocks = x.as_chunks::<256>().0.iter().zip(quants.as_chunks_mut::<256>().0);
            scales.iter_mut().zip(blocks).for_each(|(scale, (x, quants))| *scale = q8_k(x, quants));
            return;
        }
        let blocks = x.as_chunks::<32>().0.iter().zip(quants.as_chunks_mut::<32>().0);
        for (i, (scale, (x, quants))) in scales.iter_mut().zip(blocks).enumerate() {
            let over;
            (*scale, over) = q8(x, quants);
            if let Some(beyond) = beyond.get_mut(i) {
                *beyond = over;
            }
        }
    });
    Ok(QuantisedBlocks { quants, scales, excess })
}

/// Cost of rounding an element, in multiply-adds.
const WORK: usize = 8;

/// The nearest integer, ties to even, of a number below 2^22: adding 1.5 · 2^23 rounds the fraction away. Zero is +0.
#[inline(always)]
fn round_ties_even(x: f32) -> f32 {
    const SHIFT: f32 = (3 << 22) as f32;
    (x + SHIFT) - SHIFT
}

/// The largest magnitude of a block.
#[inline(always)]
fn max_abs(block: &[f32]) -> f32 {
    let mut lanes = [0f32; 16];
    for part in block.as_chunks::<16>().0 {
        for (lane, x) in lanes.iter_mut().zip(part) {
            *lane = if x.abs() > *lane { x.abs() } else { *lane };
        }
    }
    lanes.into_iter().fold(0.0, f32::max)
}

/// Rounds one block of Q8_0 or Q8_1; returns its scale, and f16(d · Σq) - Σ q · f16(d).
fn q8(x: &[f32; 32], quants: &mut [i8; 32]) -> (f32, f32) {
    let top = max_abs(x);
    let (d, inverse) = (top / 127.0, if top == 0.0 { 0.0 } else { 127.0 / top });
    let stored = f16::from_f32(d).to_f32();
    if !quantise_block(x, inverse, quants) {
        return (f32::NAN, f32::NAN);
    }
    let sum: f32 = quants.iter().map(|&q| f32::from(q)).sum();
    (stored, f16::from_f32(d * sum).to_f32() - stored * sum)
}

/// Rounds one block of Q8_K; returns its scale.
fn q8_k(x: &[f32; 256], quants: &mut [i8; 256]) -> f32 {
    let size = max_abs(x);
    let Some(&top) = x.iter().find(|x| x.abs() == size && size > 0.0) else {
        return if quantise_block(x, 0.0, quants) { 0.0 } else { f32::NAN };
    };
    let inverse = -127.0 / top;
    if quantise_block(x, inverse, quants) { 1.0 / inverse } else { f32::NAN }
}

/// Rounds x · inverse to the nearest integers; returns whether all of x are finite.
fn quantise_block(x: &[f32], inverse: f32, quants: &mut [i8]) -> bool {
    let mut finite = true;
    for (q, &x) in quants.iter_mut().zip(x) {
        finite &= x.is_finite();
        *q = round_ties_even(x * inverse).min(127.0) as i8;
    }
    finite
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_whole_steps_and_zeros_stay() {
        let x = Array2::from_shape_fn((3, 256), |(t, i)| if t == 1 { 0.0 } else { ((i * 37 + t) % 101) as f32 - 50.0 });
        for kind in
            [ActivationType::Q8_0, ActivationType::Q8_1, ActivationType::Q8K, ActivationType::F16, ActivationType::BF16]
        {
            let rounded = quantise(x.view(), kind).unwrap();
            assert!(rounded.values.row(1).iter().all(|&y| y == 0.0));
            assert_eq!(rounded.excess.is_some(), kind == ActivationType::Q8_1);
            for (a, b) in x.iter().zip(&rounded.values) {
                assert!((a - b).abs() <= 50.0 / 127.0, "{kind:?}: {a} became {b}");
            }
        }
        assert!(quantise(x.view().slice_move(ndarray::s![.., ..33]), ActivationType::Q8_0).is_err());
    }
}
