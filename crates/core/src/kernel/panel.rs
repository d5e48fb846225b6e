//! How are many rows of x multiplied with a tile of w? Lane by lane, each as a product of two matrices.
//!
//! A [`dot`](super::dot::dot) has 16 lanes. Of one lane alone, all pairs of rows make a product of matrices: of every 16th column of x and of w. So both
//! are packed lane by lane, and a register holds the sums of one row of x with as many rows of w, not the lanes of one pair. The lanes come in the order
//! in which they are added, 0 and 8, then 4 and 12 and both pairs, so that five sums of a pair are kept, not 16. Sums in f32, and those of `dot` to
//! the bit. What differs from one set of instructions to the next is a [`Micro`].

use std::cell::RefCell;
use std::ops::Range;

use crate::kernel::dot::LANES;
use crate::kernel::packed::{CacheLine, Packed, flat_mut};

/// Sums of a pair that are kept: of 1, 2, 4, 8 and 16 lanes.
const SUMS: usize = LANES.ilog2() as usize + 1;

/// Rows of x that meet a whole tile of w, lane by lane, while they and their sums are in the second-level cache.
const GROUP: usize = 168;

/// What is written for each set of instructions.
struct Micro<W> {
    /// Rows of w in a block: one row's sums with them are in registers side by side.
    columns: usize,
    /// Some rows, at most [`LANES`], by lane.
    pack_x: Pack<f32>,
    pack_w: Pack<W>,
    /// By rows of x in a strip, from 1 on: as many as the registers have sums for.
    passes: &'static [Pass],
}

/// From rows of equal length, at most 16: element k of row r to `to[k % 16 · lane + k / 16 · across + r]`.
type Pack<W> = unsafe fn(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize);

/// The products of one lane of a strip of x with that of a block of w, each line by line, and the sums they give with those of the lanes before. The
/// number of the lane, in the order in which they come, says which of the sums are complete.
type Pass = unsafe fn(x: &[f32], w: &[f32], number: usize, sums: &mut [f32]);

thread_local! {
    /// A thread's tile of w, and the sums of a group with it.
    static TILE: RefCell<[Vec<CacheLine<f32>>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// Rows by lane.
struct ByLane<'a> {
    lanes: Lanes,
    values: &'a [f32],
}

impl ByLane<'_> {
    /// One lane of some rows that are packed together.
    fn get(&self, lane: usize, rows: &Range<usize>) -> &[f32] {
        &self.values[self.lanes.range(lane, rows.clone())]
    }
}

/// Where packed rows lie.
struct Lanes {
    /// Elements from one lane to the next: a line more than they take, as what lies a power of two apart shares a place in the cache.
    stride: usize,
    /// Elements of a row.
    width: usize,
}

impl Lanes {
    /// Of `rows` rows of `width` elements.
    fn new(rows: usize, width: usize) -> Lanes {
        Lanes { stride: (rows * width.div_ceil(LANES)).next_multiple_of(LANES) + LANES, width }
    }

    /// Elements of a row that a lane has.
    fn steps(&self, lane: usize) -> usize {
        (self.width + LANES - 1 - lane) / LANES
    }

    /// Where lane `lane` of `rows` lies, which are packed together.
    fn range(&self, lane: usize, rows: Range<usize>) -> Range<usize> {
        let start = lane * self.stride + rows.start * self.width.div_ceil(LANES);
        start..start + rows.len() * self.steps(lane)
    }
}

/// `count` rows in as few parts of at most `most` as there can be, none much smaller than another.
fn parts(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.div_ceil(most);
    (0..parts).map(move |part| part * count / parts..(part + 1) * count / parts)
}

/// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\].
///
/// # Safety
/// The processor has the instructions of `micro`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn products<W>(micro: &Micro<W>, x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
    let width = x.width();
    assert!(w.iter().all(|row| row.len() >= width) && out.iter().all(|row| row.len() == w.len()));
    let strips: Vec<Range<usize>> = parts(x.rows().len(), micro.passes.len()).collect();
    let lanes = Lanes::new(x.rows().len(), width);
    let values = x.by_lane(LANES * lanes.stride, |rows, to| {
        for strip in &strips {
            let to = &mut to[lanes.range(0, strip.clone()).start..];
            // SAFETY: as the caller says.
            unsafe { (micro.pack_x)(&rows[strip.clone()], to, lanes.stride, strip.len()) };
        }
    });
    let x = ByLane { lanes, values };
    TILE.with_borrow_mut(|[tile, sums]| {
        let blocks: Vec<Range<usize>> = (0..w.len()).step_by(micro.columns).map(|at| at..at + micro.columns).collect();
        let lanes = Lanes::new(blocks.len() * micro.columns, width);
        let values = grown(tile, LANES * lanes.stride);
        for (block, w) in blocks.iter().zip(w.chunks(micro.columns)) {
            let to = &mut values[lanes.range(0, block.clone()).start..];
            for (number, rows) in w.chunks(LANES).enumerate() {
                let rows: Vec<&[W]> = rows.iter().map(|row| &row[..width]).collect();
                // SAFETY: as the caller says.
                unsafe { (micro.pack_w)(&rows, &mut to[number * LANES..], lanes.stride, micro.columns) };
            }
        }
        let w_by_lane = ByLane { lanes, values };
        for group in parts(strips.len(), GROUP / micro.passes.len()) {
            let strips = &strips[group];
            // Sums of each block with each strip.
            let size = |strip: &Range<usize>| SUMS * strip.len() * micro.columns;
            let sums = grown(sums, blocks.len() * strips.iter().map(size).sum::<usize>());
            for number in 0..LANES {
                let lane = number.reverse_bits() >> (usize::BITS - LANES.ilog2());
                let mut rest = &mut *sums;
                for block in &blocks {
                    let w = w_by_lane.get(lane, block);
                    for strip in strips {
                        let sums;
                        (sums, rest) = rest.split_at_mut(size(strip));
                        let x = x.get(lane, strip);
                        // SAFETY: as the caller says.
                        unsafe { (micro.passes[strip.len() - 1])(x, w, number, sums) };
                    }
                }
            }
            let mut rest = &*sums;
            for block in &blocks {
                for strip in strips {
                    let sums;
                    (sums, rest) = rest.split_at(size(strip));
                    let whole = &sums[size(strip) / SUMS * (SUMS - 1)..];
                    for (out, sums) in out[strip.clone()].iter_mut().zip(whole.chunks_exact(micro.columns)) {
                        let to = &mut out[block.start..w.len().min(block.end)];
                        to.copy_from_slice(&sums[..to.len()]);
                    }
                }
            }
        }
    });
}

/// A buffer with room for `count` elements.
fn grown(buffer: &mut Vec<CacheLine<f32>>, count: usize) -> &mut [f32] {
    let lines = count.div_ceil(LANES);
    if buffer.len() < lines {
        buffer.resize(lines, CacheLine([0.0; LANES]));
    }
    &mut flat_mut(buffer)[..count]
}

/// Line `line` of each row, by `load`; what the rows have no more is 0.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn lines<W: Copy + Default>(
    rows: &[&[W]],
    line: usize,
    load: impl Fn(*const W, &mut [f32; LANES]),
    to: &mut [[f32; LANES]],
) {
    for (row, to) in rows.iter().zip(to) {
        let row = &row[line * LANES..];
        match row.first_chunk::<LANES>() {
            Some(whole) => load(whole.as_ptr(), to),
            None => {
                let mut whole = [W::default(); LANES];
                whole[..row.len()].copy_from_slice(row);
                load(whole.as_ptr(), to);
            }
        }
    }
}

/// The passes of one set of instructions: with 1, 2, .. rows of x and a block of $vectors registers of $width rows of w.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! passes {
    ($name:ident by $($rows:literal)*: $(#[$attribute:meta])?, $vectors:literal x $width:literal, $zero:path, $load:path, $splat:path, $fma:path, $add:path, $store:path) => {
        const $name: &[super::Pass] = {
            #[allow(clippy::needless_range_loop)] // an array that is iterated over does not stay in registers
            $(#[$attribute])?
            fn pass<const R: usize>(x: &[f32], w: &[f32], number: usize, sums: &mut [f32]) {
                const COLUMNS: usize = $vectors * $width;
                let mut lane = [[$zero(); $vectors]; R];
                let complete = number.trailing_ones() as usize;
                // What the pass ends with, and the strip that follows, are asked of the second-level cache meanwhile.
                let mut to = sums[complete * R * COLUMNS..].as_ptr();
                let length = x.len();
                for (x, w) in x.as_chunks::<R>().0.iter().zip(w.as_chunks::<COLUMNS>().0) {
                    firstdiff_simd::prefetch(x.as_ptr().wrapping_add(length));
                    firstdiff_simd::prefetch(to);
                    to = to.wrapping_add(LANES);
                    // SAFETY: a register's elements; no alignment is needed.
                    let ws: [_; $vectors] = std::array::from_fn(|v| unsafe { $load(w[v * $width..].as_ptr()) });
                    for r in 0..R {
                        let x = $splat(x[r]);
                        for v in 0..$vectors {
                            lane[r][v] = $fma(x, ws[v], lane[r][v]);
                        }
                    }
                }
                let (before, to) = sums.split_at_mut(complete * R * COLUMNS);
                for before in before.chunks_exact(R * COLUMNS) {
                    for r in 0..R {
                        for v in 0..$vectors {
                            // SAFETY: a register's elements; no alignment is needed.
                            let before = unsafe { $load(before[r * COLUMNS + v * $width..][..$width].as_ptr()) };
                            lane[r][v] = $add(before, lane[r][v]);
                        }
                    }
                }
                let to = &mut to[..R * COLUMNS];
                for r in 0..R {
                    for v in 0..$vectors {
                        // SAFETY: a register's elements; no alignment is needed.
                        unsafe { $store(to[r * COLUMNS + v * $width..][..$width].as_mut_ptr(), lane[r][v]) };
                    }
                }
            }
            &[$(pass::<$rows>),*]
        };
    };
}

/// For AVX-512 and AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use firstdiff_simd::prefetch_for_later;

    use super::{Micro, lines, products};
    use crate::kernel::dot::LANES;
    use crate::kernel::packed::Packed;
    use crate::kernel::widen::x86::Weight;

    /// The products with AVX-512.
    ///
    /// # Safety
    /// The processor has it.
    pub(crate) unsafe fn avx512<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro { columns: 32, pack_x: pack_avx512, pack_w: pack_avx512::<W>, passes: AVX512 };
        // SAFETY: as the caller says.
        unsafe { products(&micro, x, w, out) }
    }

    /// The products with AVX2, FMA and F16C.
    ///
    /// # Safety
    /// The processor has them.
    pub(crate) unsafe fn avx2<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro { columns: 16, pack_x: pack_avx2, pack_w: pack_avx2::<W>, passes: AVX2 };
        // SAFETY: as the caller says.
        unsafe { products(&micro, x, w, out) }
    }

    passes!(AVX512 by 1 2 3 4 5 6 7 8 9 10 11 12 13 14: #[target_feature(enable = "avx512f")], 2 x 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, _mm512_storeu_ps);
    passes!(AVX2 by 1 2 3 4 5 6: #[target_feature(enable = "avx2,fma")], 2 x 8, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, _mm256_storeu_ps);

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
    fn pack_avx512<W: Weight>(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize) {
        let width = rows[0].len();
        let mask = ((1u32 << rows.len()) - 1) as u16;
        let mut from = [[0.0; LANES]; LANES];
        for line in 0..width.div_ceil(LANES) {
            // SAFETY: 16 elements each; no alignment is needed.
            let load = |from: *const W, to: &mut [f32; LANES]| unsafe {
                // What lies a page on.
                prefetch_for_later(from.wrapping_add(LANES * width));
                _mm512_storeu_ps(to.as_mut_ptr(), W::load_16(from));
            };
            lines(rows, line, load, &mut from);
            for four in 0..LANES / 4 {
                // Four elements of four rows each: of rows r, r + 4, r + 8, r + 12.
                let [a, b, c, d] = std::array::from_fn(|r| {
                    // SAFETY: four elements of a row.
                    let part = |row: usize| unsafe { _mm_loadu_ps(from[row][four * 4..].as_ptr()) };
                    let sum = _mm512_castps128_ps512(part(r));
                    let sum = _mm512_insertf32x4::<1>(sum, part(r + 4));
                    let sum = _mm512_insertf32x4::<2>(sum, part(r + 8));
                    _mm512_insertf32x4::<3>(sum, part(r + 12))
                });
                let (ab, cd) = (_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d));
                let (ab_high, cd_high) = (_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d));
                let pd = |lower: bool, ab, cd| {
                    let (ab, cd) = (_mm512_castps_pd(ab), _mm512_castps_pd(cd));
                    _mm512_castpd_ps(if lower { _mm512_unpacklo_pd(ab, cd) } else { _mm512_unpackhi_pd(ab, cd) })
                };
                let by_lane =
                    [pd(true, ab, cd), pd(false, ab, cd), pd(true, ab_high, cd_high), pd(false, ab_high, cd_high)];
                for (l, values) in by_lane.into_iter().enumerate() {
                    let to = &mut to[(four * 4 + l) * lane + line * across..][..rows.len()];
                    // SAFETY: as many elements as there are rows; no alignment is needed.
                    unsafe { _mm512_mask_storeu_ps(to.as_mut_ptr(), mask, values) };
                }
            }
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    fn pack_avx2<W: Weight>(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize) {
        let width = rows[0].len();
        let mut from = [[0.0; LANES]; LANES];
        for line in 0..width.div_ceil(LANES) {
            let load = |from: *const W, to: &mut [f32; LANES]| {
                prefetch_for_later(from.wrapping_add(LANES * width));
                for half in [0, 8] {
                    // SAFETY: 8 elements each; no alignment is needed.
                    unsafe { _mm256_storeu_ps(to[half..].as_mut_ptr(), W::load_8(from.add(half))) };
                }
            };
            lines(rows, line, load, &mut from);
            for (eight, rows) in rows.chunks(8).enumerate() {
                for four in 0..LANES / 4 {
                    // Four elements of two rows each: of rows r, r + 4.
                    let [a, b, c, d] = std::array::from_fn(|r| {
                        // SAFETY: four elements of a row.
                        let part = |row: usize| unsafe { _mm_loadu_ps(from[eight * 8 + row][four * 4..].as_ptr()) };
                        _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(part(r)), part(r + 4))
                    });
                    let (ab, cd) = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    let (ab_high, cd_high) = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    let by_lane = [
                        _mm256_shuffle_ps::<0b01_00_01_00>(ab, cd),
                        _mm256_shuffle_ps::<0b11_10_11_10>(ab, cd),
                        _mm256_shuffle_ps::<0b01_00_01_00>(ab_high, cd_high),
                        _mm256_shuffle_ps::<0b11_10_11_10>(ab_high, cd_high),
                    ];
                    for (l, values) in by_lane.into_iter().enumerate() {
                        let to = &mut to[(four * 4 + l) * lane + line * across + eight * 8..][..rows.len()];
                        match to.first_chunk_mut::<8>() {
                            // SAFETY: 8 elements; no alignment is needed.
                            Some(to) => unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) },
                            None => {
                                let mut whole = [0.0; 8];
                                // SAFETY: as above.
                                unsafe { _mm256_storeu_ps(whole.as_mut_ptr(), values) };
                                to.copy_from_slice(&whole[..to.len()]);
                            }
                        }
                    }
                }
            }
        }
    }
}

/// For NEON.
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{Micro, products};
    use crate::kernel::dot::LANES;
    use crate::kernel::packed::Packed;
    use crate::kernel::widen::neon::{Weight, add_f32, fma_f32, splat_f32, zero_f32};

    /// The products with NEON, which every aarch64 has.
    ///
    /// # Safety
    /// None is asked; it is one of the kernels that do.
    pub(crate) unsafe fn neon<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro { columns: 16, pack_x: pack, pack_w: pack::<W>, passes: NEON };
        // SAFETY: the processor has the instructions.
        unsafe { products(&micro, x, w, out) }
    }

    passes!(NEON by 1 2 3 4 5 6: , 4 x 4, zero_f32, vld1q_f32, splat_f32, fma_f32, add_f32, vst1q_f32);

    fn pack<W: Weight>(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize) {
        for line in 0..rows[0].len().div_ceil(LANES) {
            for (number, rows) in rows.chunks(4).enumerate() {
                let mut from = [[0.0; LANES]; 4];
                let load = |from: *const W, to: &mut [f32; LANES]| {
                    for (four, to) in to.as_chunks_mut::<4>().0.iter_mut().enumerate() {
                        // SAFETY: 4 elements each.
                        unsafe { vst1q_f32(to.as_mut_ptr(), W::load_4(from.add(four * 4))) };
                    }
                };
                super::lines(rows, line, load, &mut from);
                for four in 0..LANES / 4 {
                    // SAFETY: four elements of a row; the instructions are part of every aarch64.
                    let by_lane = unsafe {
                        let [a, b, c, d] = from.map(|row| vld1q_f32(row[four * 4..].as_ptr()));
                        let (ac, bd) = (vzip1q_f32(a, c), vzip1q_f32(b, d));
                        let (ac_high, bd_high) = (vzip2q_f32(a, c), vzip2q_f32(b, d));
                        [
                            vzip1q_f32(ac, bd),
                            vzip2q_f32(ac, bd),
                            vzip1q_f32(ac_high, bd_high),
                            vzip2q_f32(ac_high, bd_high),
                        ]
                    };
                    for (l, values) in by_lane.into_iter().enumerate() {
                        let mut whole = [0.0; 4];
                        // SAFETY: 4 elements.
                        unsafe { vst1q_f32(whole.as_mut_ptr(), values) };
                        to[(four * 4 + l) * lane + line * across + number * 4..][..rows.len()]
                            .copy_from_slice(&whole[..rows.len()]);
                    }
                }
            }
        }
    }
}
