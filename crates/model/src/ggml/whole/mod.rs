//! How are rows of blocks multiplied with activations that are whole numbers too? As llama.cpp does: the sum of a block in whole numbers, which no
//! order changes, and one multiply-add in f32 for its scales.
//!
//! A row is unpacked once for all rows of x. Source: llama.cpp, ggml-cpu, ggml_vec_dot_q4_K_q8_K and its kin; there the sums of blocks are added in
//! an order of its own for every processor, here in eight lanes everywhere.

mod kernel;
mod unpack;

use std::cell::RefCell;

use firstdiff_core::WholeNumbers;
use firstdiff_simd::Level;
use ndarray::{ArrayView1, ArrayViewMut2, Axis};
use rayon::prelude::*;

use super::{Type, ahead};
use kernel::Multiply;

/// Lanes that a sum is kept in.
const LANES: usize = 8;
/// Elements of a part: four for every lane.
const PART: usize = 32;
/// Parts of a block.
const PARTS: usize = 8;
/// Elements of a block.
pub(crate) const BLOCK: usize = PART * PARTS;
/// Bytes of unpacked rows that a thread holds: of the second-level cache, or of the first where they are used for one row of x only.
const TILE_BYTES: usize = 1 << 19;
const SMALL_TILE_BYTES: usize = 1 << 14;
/// The most rows of a tile.
const TILE_ROWS: usize = 64;

/// A block of the K types: element i stands for d · scales\[i/16\] · quants\[i\] - m · minima\[i/16\].
#[derive(Clone)]
#[repr(C, align(64))]
struct Scaled {
    /// Below 128; products of two of them with 8 bits do not leave 16.
    quants: [[u8; PART]; PARTS],
    /// The scale of every two elements of a part: eight times that of the first half, eight times that of the second.
    scales: [[i16; PART / 2]; PARTS],
    minima: [i16; BLOCK / 16],
    d: f32,
    m: f32,
}

/// What a [`Scaled`] is multiplied with: 256 activations under one scale.
#[derive(Clone)]
#[repr(C, align(64))]
struct ScaledInput {
    quants: [[i8; PART]; PARTS],
    /// Of every 16 of them.
    sums: [i16; BLOCK / 16],
    d: f32,
}

/// Eight blocks of 32 about 0: element i stands for d\[i/32\] · quants\[i\].
#[derive(Clone)]
#[repr(C, align(64))]
struct Plain {
    quants: [[i8; PART]; PARTS],
    /// Of the same numbers.
    magnitudes: [[u8; PART]; PARTS],
    d: [f32; PARTS],
}

/// What a [`Plain`] is multiplied with: eight times 32 activations, each under its scale.
#[derive(Clone)]
#[repr(C, align(64))]
struct PlainInput {
    quants: [[i8; PART]; PARTS],
    /// The same and 128, for instructions that take one side without signs.
    raised: [[u8; PART]; PARTS],
    d: [f32; PARTS],
}

/// How a type's blocks are multiplied.
#[derive(Clone, Copy)]
enum Form {
    Scaled(fn(&[u8], &mut Scaled)),
    /// One block of 32 into the part of that number.
    Plain(fn(&[u8], usize, &mut Plain)),
}

fn form(kind: Type) -> Option<Form> {
    unpack::form(Level::best(), kind)
}

/// Whether [`products`] takes rows of this type.
pub(crate) fn suits(kind: Type) -> bool {
    form(kind).is_some()
}

/// out\[t,j\] = x\[t\] · row j of `bytes`. `x` \[T,n\] in the blocks that the type asks for, `out` \[T,N\].
///
/// A sum is kept in eight lanes: lane l takes of every 32 elements those from 4 l to 4 l + 3. For a block of 256 of the K types it adds
/// (d · dx) · Σ scales q qx, then -(m · dx) · Σ minima · sums, where lane l has the minima of groups 2 l and 2 l + 1; for a block of 32 of the others
/// (d · dx) · Σ q qx: each with one rounding of the factor, one of a sum beyond 2²⁴, and one fused multiply-add. In the end l and l + 4, l + 2,
/// l + 1 are added. Neither T nor threads nor instructions change a bit.
///
/// # Panics
/// When the type does not suit, or the bytes are not N rows of n elements.
pub(crate) fn products(kind: Type, bytes: &[u8], x: &WholeNumbers, out: ArrayViewMut2<'_, f32>) {
    let form = form(kind).unwrap_or_else(|| panic!("{} has no such products", kind.name()));
    let columns = x.quants.ncols();
    assert!(columns.is_multiple_of(kind.block_len()) && columns == x.scales.ncols() * kind.block_len());
    let stride = columns / kind.block_len() * kind.block_bytes();
    assert!(bytes.len() == stride * out.ncols() && out.nrows() == x.quants.nrows());
    if stride == 0 {
        return;
    }
    match form {
        Form::Scaled(unpack) => {
            let fill = |row: &[u8], to: &mut [Scaled]| {
                row.chunks_exact(kind.block_bytes()).zip(to).for_each(|(block, to)| {
                    ahead(block);
                    unpack(block, to);
                });
            };
            tiles(bytes, stride, scaled_input(x), &fill, out);
        }
        Form::Plain(unpack) => {
            let fill = |row: &[u8], to: &mut [Plain]| {
                for (number, block) in row.chunks_exact(kind.block_bytes()).enumerate() {
                    ahead(block);
                    unpack(block, number % PARTS, &mut to[number / PARTS]);
                }
                // Parts that the row does not have count for nothing.
                let last = columns / PART % PARTS;
                if let (Some(to), 1..) = (to.last_mut(), last) {
                    to.d[last..].fill(0.0);
                }
            };
            tiles(bytes, stride, plain_input(x), &fill, out);
        }
    }
}

/// What a row of x is packed into: as many blocks as a row of w.
struct Input<X> {
    blocks: Vec<X>,
    width: usize,
}

fn scaled_input(x: &WholeNumbers) -> Input<ScaledInput> {
    let width = x.quants.ncols() / BLOCK;
    let none = ScaledInput { quants: [[0; PART]; PARTS], sums: [0; BLOCK / 16], d: 0.0 };
    input(x, width, none, |row, scales, to| {
        for ((quants, &d), to) in row.exact_chunks(BLOCK).into_iter().zip(scales).zip(to) {
            to.quants.as_flattened_mut().iter_mut().zip(quants).for_each(|(to, &from)| *to = from);
            let groups = to.quants.as_flattened().as_chunks::<16>().0;
            to.sums.iter_mut().zip(groups).for_each(|(to, from)| *to = from.iter().map(|&q| i16::from(q)).sum());
            to.d = d;
        }
    })
}

fn plain_input(x: &WholeNumbers) -> Input<PlainInput> {
    let width = x.quants.ncols().div_ceil(BLOCK);
    let none = PlainInput { quants: [[0; PART]; PARTS], raised: [[128; PART]; PARTS], d: [0.0; PARTS] };
    input(x, width, none, |row, scales, to| {
        for ((number, quants), &d) in row.exact_chunks(PART).into_iter().enumerate().zip(scales) {
            let (to, part) = (&mut to[number / PARTS], number % PARTS);
            to.quants[part].iter_mut().zip(quants).for_each(|(to, &from)| *to = from);
            to.raised[part] = to.quants[part].map(|q| q.cast_unsigned() ^ 128);
            to.d[part] = d;
        }
    })
}

/// Every row by `fill`, from its numbers and scales, into `width` blocks that are as `none`.
fn input<X: Clone + Send>(
    x: &WholeNumbers,
    width: usize,
    none: X,
    fill: impl Fn(ArrayView1<'_, i8>, ArrayView1<'_, f32>, &mut [X]) + Sync,
) -> Input<X> {
    let mut blocks = vec![none; x.quants.nrows() * width];
    let rows: Vec<_> = blocks.chunks_exact_mut(width.max(1)).zip(x.quants.rows()).zip(x.scales.rows()).collect();
    rows.into_par_iter().for_each(|((to, quants), scales)| fill(quants, scales, to));
    Input { blocks, width }
}

/// A block of weights that a thread keeps some of.
trait Block: Multiply<Input: Sync> + Clone + Send + 'static {
    /// One that holds nothing.
    const EMPTY: Self;

    /// Memory of a thread for unpacked rows.
    fn buffer() -> &'static std::thread::LocalKey<RefCell<Vec<Self>>>;
}

macro_rules! block {
    ($block:ident, $empty:expr) => {
        impl Block for $block {
            const EMPTY: $block = $empty;

            fn buffer() -> &'static std::thread::LocalKey<RefCell<Vec<$block>>> {
                thread_local! {
                    static BUFFER: RefCell<Vec<$block>> = const { RefCell::new(Vec::new()) };
                }
                &BUFFER
            }
        }
    };
}

block!(
    Scaled,
    Scaled { quants: [[0; PART]; PARTS], scales: [[0; PART / 2]; PARTS], minima: [0; BLOCK / 16], d: 0.0, m: 0.0 }
);
block!(Plain, Plain { quants: [[0; PART]; PARTS], magnitudes: [[0; PART]; PARTS], d: [0.0; PARTS] });

/// Some rows of w at a time, on several threads.
fn tiles<B: Block>(
    bytes: &[u8],
    stride: usize,
    x: Input<B::Input>,
    fill: &(impl Fn(&[u8], &mut [B]) + Sync),
    mut out: ArrayViewMut2<'_, f32>,
) {
    let rows: Vec<&[B::Input]> = x.blocks.chunks_exact(x.width).collect();
    let room = if rows.len() == 1 { SMALL_TILE_BYTES } else { TILE_BYTES };
    let height = (room / (x.width * size_of::<B>())).clamp(1, TILE_ROWS);
    let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), height).zip(bytes.chunks(height * stride)).collect();
    tiles.into_par_iter().for_each(|(tile, bytes)| {
        B::buffer().with_borrow_mut(|buffer| {
            let needed = tile.ncols() * x.width;
            if buffer.len() < needed {
                buffer.resize(needed, B::EMPTY);
            }
            let buffer = &mut buffer[..needed];
            bytes.chunks_exact(stride).zip(buffer.chunks_exact_mut(x.width)).for_each(|(row, to)| fill(row, to));
            tile_products(buffer, &rows, x.width, tile);
        });
    });
}

/// All rows of x with the rows of a tile, some blocks of a few rows of x at a time, which stay in the first-level cache meanwhile.
fn tile_products<B: Block>(w: &[B], x: &[&[B::Input]], width: usize, mut out: ArrayViewMut2<'_, f32>) {
    let level = Level::best();
    for (x, mut out) in x.chunks(kernel::ROWS).zip(out.axis_chunks_iter_mut(Axis(0), kernel::ROWS)) {
        let mut lanes = vec![[0f32; LANES]; out.len()];
        for start in (0..width).step_by(CHUNK) {
            let range = start..(start + CHUNK).min(width);
            let mut part = [&x[0][..0]; kernel::ROWS];
            part.iter_mut().zip(x).for_each(|(to, x)| *to = &x[range.clone()]);
            let rows: Vec<&[B]> = w.chunks_exact(width).map(|row| &row[range.clone()]).collect();
            kernel::add(level, &rows, &part[..x.len()], &mut lanes);
        }
        for (mut column, lanes) in out.columns_mut().into_iter().zip(lanes.chunks_exact(x.len())) {
            column.iter_mut().zip(lanes).for_each(|(to, &lanes)| *to = kernel::tree(lanes));
        }
    }
}

/// Blocks of a row that are taken at a time.
const CHUNK: usize = 8;

#[cfg(test)]
mod tests {
    use firstdiff_core::{Activations, quantise, whole_numbers};
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

        /// Blocks of any bits, with scales of a common size.
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

    fn asked(kind: Type) -> Activations {
        if kind.block_len() == 256 { Activations::Q8K } else { Activations::Q8_0 }
    }

    #[test]
    fn products_are_those_of_the_values_that_blocks_stand_for() {
        let mut random = Random(3);
        for kind in KINDS {
            for (tokens, rows, blocks) in [(1, 1, 1), (3, 5, 2), (9, 70, 3), (17, 4, 11)] {
                let columns = blocks * kind.block_len();
                let bytes = random.blocks(kind, rows * blocks);
                let x = random.activations(tokens, columns);
                let whole = whole_numbers(x.view(), asked(kind)).unwrap();
                let mut out = Array2::zeros((tokens, rows));
                products(kind, &bytes, &whole, out.view_mut());
                let mut w = vec![0f32; rows * columns];
                kind.dequantise(&bytes, &mut w);
                let w = Array2::from_shape_vec((rows, columns), w).unwrap().mapv(f64::from);
                let x = quantise(x.view(), asked(kind)).unwrap().values.mapv(f64::from);
                let exact = x.dot(&w.t());
                let size = (&x * &x).sum().sqrt() * (&w * &w).sum().sqrt();
                for (out, exact) in out.iter().zip(&exact) {
                    let apart = (f64::from(*out) - exact).abs();
                    assert!(apart <= 1e-6 * size, "{} {tokens} x {rows}: {out} for {exact}", kind.name());
                }
            }
        }
    }

    /// The lanes of three rows of two blocks each with x.
    fn lanes<B: Block>(level: Level, rows: &[B], x: &Input<B::Input>, together: bool) -> Vec<u32> {
        let (rows, x): (Vec<_>, Vec<_>) = (rows.chunks(2).collect(), x.blocks.chunks_exact(x.width).collect());
        let mut lanes = vec![[0f32; LANES]; rows.len() * x.len()];
        if together {
            kernel::add(level, &rows, &x, &mut lanes);
        } else {
            let pairs = rows.iter().flat_map(|row| x.iter().map(move |x| (row, x)));
            pairs.zip(&mut lanes).for_each(|((row, x), to)| kernel::add(level, &[row], &[x], std::array::from_mut(to)));
        }
        lanes.as_flattened().iter().map(|x| x.to_bits()).collect()
    }

    #[test]
    fn every_level_and_every_number_of_rows_gives_the_same_bits() {
        let mut random = Random(5);
        for kind in KINDS {
            let bytes = random.blocks(kind, 6 * BLOCK / kind.block_len());
            for tokens in 1..=17 {
                let x = whole_numbers(random.activations(tokens, 2 * BLOCK).view(), asked(kind)).unwrap();
                let all = |level: Level, together: bool| {
                    let bytes = bytes.chunks_exact(kind.block_bytes());
                    match unpack::form(level, kind).unwrap() {
                        Form::Scaled(unpack) => {
                            let mut rows = vec![Scaled::EMPTY; 6];
                            bytes.zip(&mut rows).for_each(|(from, to)| unpack(from, to));
                            lanes(level, &rows, &scaled_input(&x), together)
                        }
                        Form::Plain(unpack) => {
                            let mut rows = vec![Plain::EMPTY; 6];
                            bytes.enumerate().for_each(|(i, from)| unpack(from, i % PARTS, &mut rows[i / PARTS]));
                            lanes(level, &rows, &plain_input(&x), together)
                        }
                    }
                };
                let expected = all(Level::Scalar, false);
                for level in Level::available() {
                    assert_eq!(expected, all(level, true), "{level:?} {} {tokens}", kind.name());
                }
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
                products(kind, &bytes, &whole_numbers(x.view(), asked(kind)).unwrap(), out.view_mut());
                assert!(out[[0, 0]].is_finite() && out[[1, 0]].is_nan(), "{} {bad}", kind.name());
            }
        }
    }
}
