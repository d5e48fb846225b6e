//! Multiplies rows of quantised blocks with quantised activations as llama.cpp does: each block is summed in integers, in any order, then scaled with one
//! multiply-add in f32.
//!
//! Each row of w is unpacked once for all rows of x. Source: llama.cpp, ggml-cpu, ggml_vec_dot_q4_K_q8_K and similar. There the order in which block sums
//! are added depends on the processor; here it is always one after the other.

mod kernel;
mod unpack;

use std::cell::RefCell;

use firstdiff_core::QuantisedBlocks;
use firstdiff_simd::Level;
use ndarray::{ArrayView1, ArrayViewMut2, Axis};
use rayon::prelude::*;

use super::Type;

/// Rows of w that a thread takes at a time.
const TILE_ROWS: usize = 32;

/// How a row is divided into runs, each of integers that are summed under one scale.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RunLayout {
    /// Blocks of 32.
    Block32,
    /// Blocks of the K types that are centred on 0: elements times the scales of their parts.
    Block256,
    /// Blocks of the K types with minima: each is followed by its 16 minima, which are multiplied with the sums of 16 elements of x.
    Block256WithMinima,
}

impl RunLayout {
    /// Elements of the runs, repeated cyclically.
    fn lengths(self) -> &'static [usize] {
        match self {
            RunLayout::Block32 => &[32],
            RunLayout::Block256 => &[256],
            RunLayout::Block256WithMinima => &[256, 16],
        }
    }

    /// How many integers and scales a row of this many elements has.
    fn size(self, elements: usize) -> (usize, usize) {
        let lengths = self.lengths();
        let blocks = elements / lengths[0];
        (blocks * lengths.iter().sum::<usize>(), blocks * lengths.len())
    }
}

/// Rows of x from which on interleaving rows of w saves more time than it takes.
const MANY: usize = 4;

/// A row in runs, with one scale for each. Values are below 2¹³ on one side, at most 128 on the other.
#[derive(Clone, Copy)]
struct Row<'a> {
    values: &'a [i16],
    scales: &'a [f32],
}

/// Whether [`products`] supports this type.
pub(crate) fn is_supported(kind: Type) -> bool {
    unpack::runs(kind).is_some()
}

thread_local! {
    /// A thread's rows of w: pairs of integers, and scales.
    static TILE: RefCell<[Vec<u32>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// out\[t,j\] = x\[t\] · row j of `bytes`. `x` \[T,n\] in the blocks that the type needs, `out` \[T,N\].
///
/// For a block of 256 of the K types, (d · dx) · Σ scale q qx is added to the sum; then, for types with minima, (-m · dx) · Σ minimum · (qx summed over
/// 16), with integer scales and minima. For a block of 32 of the other types (d · dx) · Σ q qx is added. The factor is rounded once, an integer sum above
/// 2²⁴ once, and the fused multiply-add once. Neither T, nor threads, nor instructions change a bit.
///
/// # Panics
/// When the type is not supported, the bytes are not N rows of n elements, or a row of `out` is not contiguous.
pub(crate) fn products(kind: Type, bytes: &[u8], x: &QuantisedBlocks, out: ArrayViewMut2<'_, f32>) {
    products_at(Level::best(), kind, bytes, x, out);
}

fn products_at(level: Level, kind: Type, bytes: &[u8], x: &QuantisedBlocks, mut out: ArrayViewMut2<'_, f32>) {
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    let (runs, unpack) = unpack::runs(kind)
        .zip(unpack::unpack(level, kind))
        .unwrap_or_else(|| panic!("{} has no such products", kind.name()));
    let columns = x.quants.ncols();
    assert!(columns.is_multiple_of(kind.block_len()) && columns == x.scales.ncols() * kind.block_len());
    let stride = columns / kind.block_len() * kind.block_bytes();
    assert!(bytes.len() == stride * out.ncols() && out.nrows() == x.quants.nrows());
    if bytes.is_empty() || x.quants.is_empty() {
        return;
    }
    let (length, count) = runs.size(columns);
    let (values, scales) = input(runs, x);
    let rows = values.chunks_exact(length).zip(scales.chunks_exact(count));
    let x: Vec<_> = rows.map(|(values, scales)| Row { values, scales }).collect();
    let strips = (x.len() >= MANY).then(|| kernel::Strips::new(level, &x)).flatten();
    let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), TILE_ROWS).zip(bytes.chunks(TILE_ROWS * stride)).collect();
    tiles.into_par_iter().for_each(|(mut tile, bytes)| {
        let rows =
            tile.rows_mut().into_iter().map(|row| row.into_slice().expect("rows of a result that lie in one piece"));
        let mut out: Vec<&mut [f32]> = rows.collect();
        TILE.with_borrow_mut(|[words, scales]| {
            // With few rows of x, they are multiplied with each row of w while it is in the first-level cache.
            let height = if strips.is_some() { bytes.len() / stride } else { 1 };
            let words: &mut [i32] = kernel::resized(words, height * length / 2);
            let scales: &mut [f32] = kernel::resized(scales, height * count);
            let mut products = vec![0.0; x.len()];
            for (number, rows) in bytes.chunks(height * stride).enumerate() {
                let values: &mut [i16] = bytemuck::cast_slice_mut(words);
                let to = values.chunks_exact_mut(length).zip(scales.chunks_exact_mut(count));
                for (row, (values, scales)) in rows.chunks_exact(stride).zip(to) {
                    // SAFETY: the processor has the instructions of the level.
                    unsafe { unpack(row, values, scales) };
                }
                if let Some(strips) = &strips {
                    kernel::multiply_many(runs, strips, words, scales, &mut out);
                } else {
                    // SAFETY: as above.
                    unsafe { kernel::multiply_few(level, runs, Row { values, scales }, &x, &mut products) };
                    out.iter_mut().zip(&products).for_each(|(to, product)| to[number] = *product);
                }
            }
        });
    });
}

/// The rows of x in runs: their integers, and the scales.
fn input(runs: RunLayout, x: &QuantisedBlocks) -> (Vec<i16>, Vec<f32>) {
    let (length, count) = runs.size(x.quants.ncols());
    let (mut values, mut scales) = (vec![0; x.quants.nrows() * length], vec![0.0; x.quants.nrows() * count]);
    let to = values.par_chunks_exact_mut(length).zip(scales.par_chunks_exact_mut(count)).enumerate();
    to.for_each(|(row, (values, scales))| fill(runs, x.quants.row(row), x.scales.row(row), values, scales));
    (values, scales)
}

fn fill(runs: RunLayout, quants: ArrayView1<'_, i8>, ds: ArrayView1<'_, f32>, values: &mut [i16], scales: &mut [f32]) {
    let lengths = runs.lengths();
    let blocks = values.chunks_exact_mut(lengths.iter().sum()).zip(scales.chunks_exact_mut(lengths.len()));
    for ((quants, &d), (values, scales)) in quants.exact_chunks(lengths[0]).into_iter().zip(ds).zip(blocks) {
        scales.fill(d);
        let (values, sums) = values.split_at_mut(lengths[0]);
        values.iter_mut().zip(quants).for_each(|(to, &q)| *to = q.into());
        sums.iter_mut().zip(values.as_chunks::<16>().0).for_each(|(to, values)| *to = values.iter().sum());
    }
}

#[cfg(test)]
mod tests {
    use firstdiff_core::{ActivationType, quantise, quantise_to_ints};
    use ndarray::Array2;

    use super::*;

    const KINDS: [Type; 9] =
        [Type::Q2K, Type::Q3K, Type::Q4K, Type::Q5K, Type::Q6K, Type::Q4_0, Type::Q5_0, Type::Q8_0, Type::IQ4NL];

    struct Random(u32);

    impl Random {
        fn byte(&mut self) -> u8 {
            self.0 = self.0.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (self.0 >> 24) as u8
        }

        /// Random blocks, with scales of ordinary size.
        fn blocks(&mut self, kind: Type, count: usize) -> Vec<u8> {
            let mut bytes: Vec<u8> = (0..count * kind.block_bytes()).map(|_| self.byte()).collect();
            for block in bytes.chunks_exact_mut(kind.block_bytes()) {
                for &(offset, width, count) in kind.words().iter().filter(|words| words.1 == 2) {
                    (0..count).map(|i| offset + i * width + 1).for_each(|at| block[at] = block[at] & 0x83 | 0x20);
                }
            }
            bytes
        }

        fn activations(&mut self, rows: usize, columns: usize) -> Array2<f32> {
            Array2::from_shape_fn((rows, columns), |_| f32::from(self.byte()) / 100.0 - 1.28)
        }
    }

    fn rounding(kind: Type) -> ActivationType {
        if kind.block_len() == 256 { ActivationType::Q8K } else { ActivationType::Q8_0 }
    }

    #[test]
    fn products_are_those_of_the_values_that_blocks_stand_for() {
        let mut random = Random(3);
        for kind in KINDS {
            for (tokens, rows, blocks) in [(1, 1, 1), (3, 5, 2), (9, 70, 3), (17, 4, 11)] {
                let columns = blocks * kind.block_len();
                let bytes = random.blocks(kind, rows * blocks);
                let x = random.activations(tokens, columns);
                let whole = quantise_to_ints(x.view(), rounding(kind)).unwrap();
                let mut out = Array2::zeros((tokens, rows));
                products(kind, &bytes, &whole, out.view_mut());
                let mut w = vec![0f32; rows * columns];
                kind.dequantise(&bytes, &mut w);
                let w = Array2::from_shape_vec((rows, columns), w).unwrap().mapv(f64::from);
                let x = quantise(x.view(), rounding(kind)).unwrap().values.mapv(f64::from);
                let exact = x.dot(&w.t());
                let size = (&x * &x).sum().sqrt() * (&w * &w).sum().sqrt();
                for (out, exact) in out.iter().zip(&exact) {
                    let apart = (f64::from(*out) - exact).abs();
                    assert!(apart <= 1e-6 * size, "{} {tokens} x {rows}: {out} for {exact}", kind.name());
                }
            }
        }
    }

    #[test]
    fn every_level_and_every_number_of_rows_gives_the_same_bits() {
        let mut random = Random(5);
        for kind in KINDS {
            for (rows, blocks) in [(3, 2), (37, 3), (70, 8)] {
                let columns = blocks * kind.block_len();
                let bytes = random.blocks(kind, rows * blocks);
                for tokens in (1..=17).chain([20, 29, 43]) {
                    let x = quantise_to_ints(random.activations(tokens, columns).view(), rounding(kind)).unwrap();
                    let at_level = |level: Level| {
                        let mut out = Array2::from_elem((tokens, rows), f32::NAN);
                        products_at(level, kind, &bytes, &x, out.view_mut());
                        out.mapv(f32::to_bits)
                    };
                    let expected = at_level(Level::Scalar);
                    for level in Level::available() {
                        assert_eq!(expected, at_level(level), "{level:?} {} {tokens} x {rows}, {blocks}", kind.name());
                    }
                }
            }
        }
    }

    /// With the largest values of blocks and activations, no integer sum exceeds 32 bits.
    #[test]
    fn the_largest_numbers_do_not_overflow() {
        for kind in KINDS {
            for byte in [0xffu8, 0x00, 0x80, 0x7f, 0x0f, 0xf0] {
                let mut bytes = vec![byte; kind.block_bytes()];
                kind.words().iter().for_each(|&(offset, width, count)| {
                    (0..count).for_each(|i| bytes[offset + i * width..][..2].copy_from_slice(&[0, 0x3c]));
                });
                let mut w = vec![0f32; kind.block_len()];
                kind.dequantise(&bytes, &mut w);
                let x = Array2::from_shape_fn((1, w.len()), |(_, i)| 127f32.copysign(w[i]));
                let whole = quantise_to_ints(x.view(), rounding(kind)).unwrap();
                let exact: f64 = x.iter().zip(&w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
                let mut out = Array2::zeros((1, 1));
                products(kind, &bytes, &whole, out.view_mut());
                let apart = (f64::from(out[[0, 0]]) - exact).abs();
                assert!(apart <= 1e-6 * exact.abs(), "{} {byte:#x}: {out} for {exact}", kind.name());
            }
        }
    }

    #[test]
    fn what_is_not_finite_does_not_vanish() {
        let mut random = Random(7);
        for kind in KINDS {
            let bytes = random.blocks(kind, 1);
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = random.activations(2, kind.block_len());
                x[[1, 3]] = bad;
                let mut out = Array2::zeros((2, 1));
                products(kind, &bytes, &quantise_to_ints(x.view(), rounding(kind)).unwrap(), out.view_mut());
                assert!(out[[0, 0]].is_finite() && out[[1, 0]].is_nan(), "{} {bad}", kind.name());
            }
        }
    }
}
