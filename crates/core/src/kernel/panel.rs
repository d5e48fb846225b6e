//! Multiplies many rows of x with a tile of w: one matrix product for each of the 16 lanes of a dot product.
//!
//! Lane l of a [`dot`](super::dot::dot) reads every 16th column. So for one lane alone all pairs of rows form a matrix product, of every 16th column of x
//! and of w. Both are packed lane by lane; a register holds the sums of one row of x with several rows of w. The lanes come in the order in which they are
//! added (0 and 8, then 4 and 12, then both pairs), so that five sums a pair are kept, not 16. Sums are in f32, bit for bit those of `dot`. [`PanelKernel`] holds
//! what differs between sets of instructions.

use std::cell::RefCell;
use std::ops::Range;

use firstdiff_simd::{Level, prefetch_for_later};

use crate::kernel::dot::LANES;
use crate::kernel::packed::{CacheLine, flat, flat_mut};
use crate::kernel::par_each;

/// Sums that are kept for a pair: of 1, 2, 4, 8 and 16 lanes.
const SUMS: usize = LANES.ilog2() as usize + 1;

/// Rows of x that are multiplied with a whole tile of w, lane by lane, while they and their sums are in the second-level cache.
const GROUP: usize = 168;

/// Rows of w in a block: 32 with AVX-512, half as many otherwise.
pub(crate) const COLUMNS: usize = 32;

/// Rows of x from which on packing w saves more time than it takes.
const PACK_THRESHOLD: usize = 28;

/// Cost of packing an element, in multiply-adds.
const PACK_COST: usize = 8;

/// Lines of packed rows that a thread keeps for reuse, at most: 16 MiB.
const MAX_SPARE_LINES: usize = 1 << 18;

/// The code for one set of instructions and one weight type.
struct PanelKernel<W> {
    /// Rows of w in a block: their sums with one row of x are side by side in registers.
    columns: usize,
    pack: Pack<W>,
    /// One for each number of rows of x in a strip, from 1 on, up to what the registers have room for.
    passes: &'static [PassFn],
}

/// Packs at most 16 rows of equal length: element k of row r goes to `to[k % 16 · lane + k / 16 · across + r]`.
type Pack<W> = unsafe fn(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize);

/// Multiplies one lane of a strip of x with that of a block of w, and adds the result to the sums of the lanes before. `number`, the lane's place in the
/// order of additions, determines which sums are complete. `next` is the address of what the next pass reads of x.
type PassFn = unsafe fn(x: &[f32], w: &[f32], number: usize, sums: &mut [f32], next: *const f32);

thread_local! {
    /// Memory in which rows of x were packed before: new memory takes as long as packing.
    static SPARE: RefCell<Vec<CacheLine<f32>>> = const { RefCell::new(Vec::new()) };
    /// A thread's tile of w, and the sums of a group with it.
    static TILE: RefCell<[Vec<CacheLine<f32>>; 2]> = const { RefCell::new([Vec::new(), Vec::new()]) };
}

/// The layout of packed rows: by lane, then by element, then by row.
#[derive(Clone, Copy)]
struct PanelLayout {
    rows: usize,
    /// Elements of a row.
    width: usize,
}

impl PanelLayout {
    /// Elements from one lane to the next: one line more than needed, so that lanes are no power of two apart in the cache.
    fn stride(self) -> usize {
        (self.rows * self.width.div_ceil(LANES)).next_multiple_of(LANES) + LANES
    }

    fn size(self) -> usize {
        LANES * self.stride()
    }

    /// One lane of rows in this layout.
    fn lane(self, lane: usize, values: &[f32]) -> &[f32] {
        let steps = (self.width + LANES - 1 - lane) / LANES;
        &values[lane * self.stride()..][..steps * self.rows]
    }
}

/// Rows of x in strips of nearly equal height, each packed by itself.
pub struct Strips {
    values: Vec<CacheLine<f32>>,
    /// The rows of each strip, and where it begins.
    each: Vec<(Range<usize>, usize)>,
    width: usize,
}

impl Strips {
    /// Packs rows of equal length for a level; `None` where they are few or short, or the level has no panel kernel.
    pub(crate) fn new(level: Level, rows: &[&[f32]]) -> Option<Strips> {
        let (most, pack) = packing(level)?;
        let width = rows.first()?.len();
        if rows.len() < PACK_THRESHOLD || width < LANES {
            return None;
        }
        let mut size = 0;
        let heights: Vec<_> = balanced_ranges(rows.len(), most)
            .map(|rows| {
                let start = size;
                size += PanelLayout { rows: rows.len(), width }.size();
                (rows, start)
            })
            .collect();
        let mut values = SPARE.take();
        let mut rest = resized(&mut values, size);
        let mut strips = Vec::with_capacity(heights.len());
        for (strip, _) in &heights {
            let layout = PanelLayout { rows: strip.len(), width };
            let to;
            (to, rest) = rest.split_at_mut(layout.size());
            strips.push((&rows[strip.clone()], to, layout));
        }
        let pack = |(rows, to, layout): (&[&[f32]], &mut [f32], PanelLayout)| {
            // SAFETY: the processor has the instructions of the level.
            unsafe { pack(rows, to, layout.stride(), layout.rows) };
        };
        assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
        par_each(strips, rows.len() * width * PACK_COST, pack);
        Some(Strips { values, each: heights, width })
    }

    /// One lane of strip `number`.
    fn lane(&self, number: usize, lane: usize) -> &[f32] {
        let (rows, start) = &self.each[number];
        PanelLayout { rows: rows.len(), width: self.width }.lane(lane, &flat(&self.values)[*start..])
    }
}

impl Drop for Strips {
    fn drop(&mut self) {
        if self.values.len() <= MAX_SPARE_LINES {
            SPARE.set(std::mem::take(&mut self.values));
        }
    }
}

/// The most rows of x in a strip at a level, and the function that packs rows of f32; `None` where the level has no panel kernel.
fn packing(level: Level) -> Option<(usize, Pack<f32>)> {
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Vnni => Some((x86::AVX512.len(), x86::pack_avx512)),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Some((x86::AVX2.len(), x86::pack_avx2)),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => Some((neon::NEON.len(), neon::pack)),
        _ => None,
    }
}

/// Splits `count` items into as few parts of at most `most` as possible, of nearly equal size.
#[doc(hidden)]
pub fn balanced_ranges(count: usize, most: usize) -> impl Iterator<Item = Range<usize>> {
    let parts = count.div_ceil(most);
    (0..parts).map(move |part| part * count / parts..(part + 1) * count / parts)
}

/// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\].
///
/// # Safety
/// The processor has the instructions of `kernel`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn products<W>(kernel: &PanelKernel<W>, x: &Strips, w: &[&[W]], out: &mut [&mut [f32]]) {
    let columns = kernel.columns;
    assert!(w.iter().all(|row| row.len() >= x.width) && out.iter().all(|row| row.len() == w.len()));
    let layout = PanelLayout { rows: columns, width: x.width };
    TILE.with_borrow_mut(|[tile, sums]| {
        let tile = resized(tile, w.len().div_ceil(columns) * layout.size());
        for (w, to) in w.chunks(columns).zip(tile.chunks_exact_mut(layout.size())) {
            for (number, rows) in w.chunks(LANES).enumerate() {
                let rows: Vec<&[W]> = rows.iter().map(|row| &row[..x.width]).collect();
                // SAFETY: guaranteed by the caller.
                unsafe { (kernel.pack)(&rows, &mut to[number * LANES..], layout.stride(), columns) };
            }
        }
        for strips in balanced_ranges(x.each.len(), GROUP / kernel.passes.len()) {
            let rows = x.each[strips.clone()].iter().map(|(rows, _)| rows.len()).sum::<usize>();
            let sums = resized(sums, w.len().div_ceil(columns) * SUMS * rows * columns);
            for number in 0..LANES {
                // SAFETY: guaranteed by the caller.
                unsafe { one_lane(kernel, number, x, strips.clone(), layout, tile, sums) };
            }
            let mut sums = &*sums;
            for block in (0..w.len()).step_by(columns) {
                for (rows, _) in &x.each[strips.clone()] {
                    let whole;
                    (whole, sums) = sums.split_at(SUMS * rows.len() * columns);
                    let whole = whole[(SUMS - 1) * rows.len() * columns..].chunks_exact(columns);
                    for (out, sums) in out[rows.clone()].iter_mut().zip(whole) {
                        let to = &mut out[block..w.len().min(block + columns)];
                        to.copy_from_slice(&sums[..to.len()]);
                    }
                }
            }
        }
    });
}

/// Multiplies one lane, number `number` in the order of additions, of some strips with all blocks of a tile: block after block with each strip.
///
/// # Safety
/// The processor has the instructions of `kernel`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn one_lane<W>(
    kernel: &PanelKernel<W>,
    number: usize,
    x: &Strips,
    strips: Range<usize>,
    layout: PanelLayout,
    tile: &[f32],
    mut sums: &mut [f32],
) {
    let lane = number.reverse_bits() >> (usize::BITS - LANES.ilog2());
    for w in tile.chunks_exact(layout.size()) {
        let w = layout.lane(lane, w);
        for strip in strips.clone() {
            let rows = x.each[strip].0.len();
            let own;
            (own, sums) = sums.split_at_mut(SUMS * rows * kernel.columns);
            let next = if strip + 1 < strips.end { strip + 1 } else { strips.start };
            let next = x.lane(next, lane).as_ptr();
            // SAFETY: guaranteed by the caller.
            unsafe { (kernel.passes[rows - 1])(x.lane(strip, lane), w, number, own, next) };
        }
    }
}

/// Gives the buffer room for `count` elements.
fn resized(buffer: &mut Vec<CacheLine<f32>>, count: usize) -> &mut [f32] {
    let lines = count.div_ceil(LANES);
    if buffer.len() < lines {
        buffer.resize(lines, CacheLine([0.0; LANES]));
    }
    &mut flat_mut(buffer)[..count]
}

/// Calls `each` with the number of every line and its address in each row; what is left of the rows is padded with zeros, and missing rows repeat a row.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn lines<W: Copy + Default>(rows: &[&[W]], mut each: impl FnMut(usize, [*const W; LANES])) {
    let row = |r: usize| rows[r.min(rows.len() - 1)];
    let whole = rows[0].len() / LANES;
    assert!(rows.iter().all(|row| row.len() == rows[0].len()));
    let mut at: [*const W; LANES] = std::array::from_fn(|r| row(r).as_ptr());
    for line in 0..whole {
        for at in at {
            // The same elements of the next rows, if the rows are contiguous.
            prefetch_for_later(at.wrapping_add(LANES * rows[0].len()));
        }
        each(line, at);
        at = at.map(|at| at.wrapping_add(LANES));
    }
    if !rows[0].len().is_multiple_of(LANES) {
        let last: [[W; LANES]; LANES] = std::array::from_fn(|r| {
            let mut last = [W::default(); LANES];
            let rest = &row(r)[whole * LANES..];
            last[..rest.len()].copy_from_slice(rest);
            last
        });
        each(whole, std::array::from_fn(|r| last[r].as_ptr()));
    }
}

/// Interleaves rows: element k of row r becomes `to[k · across + r]`. At most 16 rows of equal length, `across` at least as many. Those rows of `to` are
/// overwritten up to the next multiple of 16 elements. The level changes no bit.
///
/// # Panics
/// When the processor lacks the level, the lengths differ, or `to` is too short.
#[doc(hidden)]
pub fn interleave_rows(level: Level, rows: &[&[f32]], to: &mut [f32], across: usize) {
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    assert!(rows.len() <= LANES.min(across) && rows.iter().all(|row| row.len() == rows[0].len()));
    match packing(level) {
        // SAFETY: the processor has the instructions of the level.
        Some((_, pack)) if !rows.is_empty() => unsafe { pack(rows, to, across, LANES * across) },
        _ => {
            for (r, row) in rows.iter().enumerate() {
                row.iter().enumerate().for_each(|(k, &x)| to[k * across + r] = x);
            }
        }
    }
}

/// Lets `store` write N elements to the beginning of `to`, or only the first `count` of them.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn put<const N: usize>(count: usize, to: &mut [f32], store: impl Fn(&mut [f32; N])) {
    match to.first_chunk_mut::<N>() {
        // No copy where all N are wanted.
        Some(to) if count >= N => store(to),
        _ => {
            let mut all = [0.0; N];
            store(&mut all);
            let count = count.min(N);
            to[..count].copy_from_slice(&all[..count]);
        }
    }
}

/// Defines the passes of one set of instructions: for 1, 2, .. rows of x and a block of $vectors registers of $width rows of w.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! passes {
    ($name:ident by $($rows:literal)*: $(#[$attribute:meta])?, $vectors:literal x $width:literal, $zero:path, $load:path, $splat:path, $fma:path, $add:path, $store:path) => {
        pub(super) const $name: &[super::PassFn] = {
            #[allow(clippy::needless_range_loop)] // an array that is iterated over does not stay in registers
            $(#[$attribute])?
            fn pass<const R: usize>(x: &[f32], w: &[f32], number: usize, sums: &mut [f32], mut next: *const f32) {
                const COLUMNS: usize = $vectors * $width; // of a block at this level
                let mut lane = [[$zero(); $vectors]; R];
                let complete = number.trailing_ones() as usize;
                // The sums at the end of the pass, and the next strip, are prefetched into the second-level cache.
                let mut to = sums[complete * R * COLUMNS..].as_ptr();
                for (x, w) in x.as_chunks::<R>().0.iter().zip(w.as_chunks::<COLUMNS>().0) {
                    firstdiff_simd::prefetch(next);
                    next = next.wrapping_add(R);
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

/// AVX-512 and AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::{COLUMNS, PanelKernel, Strips, lines, products, put};
    use crate::kernel::dot::LANES;
    use crate::kernel::widen::x86::Weight;

    /// The products with AVX-512.
    ///
    /// # Safety
    /// The processor has AVX-512.
    pub(crate) unsafe fn avx512<W: Weight>(x: &Strips, w: &[&[W]], out: &mut [&mut [f32]]) {
        let kernel = PanelKernel { columns: COLUMNS, pack: pack_avx512::<W>, passes: AVX512 };
        // SAFETY: guaranteed by the caller.
        unsafe { products(&kernel, x, w, out) }
    }

    /// The products with AVX2, FMA and F16C.
    ///
    /// # Safety
    /// The processor has these instructions.
    pub(crate) unsafe fn avx2<W: Weight>(x: &Strips, w: &[&[W]], out: &mut [&mut [f32]]) {
        let kernel = PanelKernel { columns: COLUMNS / 2, pack: pack_avx2::<W>, passes: AVX2 };
        // SAFETY: guaranteed by the caller.
        unsafe { products(&kernel, x, w, out) }
    }

    passes!(AVX512 by 1 2 3 4 5 6 7 8 9 10 11 12 13 14: #[target_feature(enable = "avx512f")], 2 x 16, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_set1_ps, _mm512_fmadd_ps, _mm512_add_ps, _mm512_storeu_ps);
    passes!(AVX2 by 1 2 3 4 5 6: #[target_feature(enable = "avx2,fma")], 2 x 8, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_set1_ps, _mm256_fmadd_ps, _mm256_add_ps, _mm256_storeu_ps);

    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx2,f16c")]
    pub(super) fn pack_avx512<W: Weight>(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize) {
        let mask = ((1u32 << rows.len()) - 1) as u16;
        lines(rows, |line, from| {
            let to = &mut to[line * across..];
            assert!(to.len() >= (LANES - 1) * lane + rows.len());
            for four in 0..LANES / 4 {
                // Four elements of four rows each: of rows r, r + 4, r + 8, r + 12.
                let [a, b, c, d] = std::array::from_fn(|r| {
                    // SAFETY: 16 elements of each row.
                    let part = |row: usize| unsafe { W::load_4(from[row].add(four * 4)) };
                    let sum = _mm512_castps128_ps512(part(r));
                    let sum = _mm512_insertf32x4::<1>(sum, part(r + 4));
                    let sum = _mm512_insertf32x4::<2>(sum, part(r + 8));
                    _mm512_insertf32x4::<3>(sum, part(r + 12))
                });
                let low = [_mm512_unpacklo_ps(a, b), _mm512_unpacklo_ps(c, d)].map(|x| _mm512_castps_pd(x));
                let high = [_mm512_unpackhi_ps(a, b), _mm512_unpackhi_ps(c, d)].map(|x| _mm512_castps_pd(x));
                let by_lane = [
                    _mm512_unpacklo_pd(low[0], low[1]),
                    _mm512_unpackhi_pd(low[0], low[1]),
                    _mm512_unpacklo_pd(high[0], high[1]),
                    _mm512_unpackhi_pd(high[0], high[1]),
                ];
                for (l, values) in by_lane.into_iter().enumerate() {
                    // SAFETY: as many elements as there are rows (above); no alignment is needed.
                    unsafe {
                        _mm512_mask_storeu_ps(
                            to.as_mut_ptr().add((four * 4 + l) * lane),
                            mask,
                            _mm512_castpd_ps(values),
                        )
                    };
                }
            }
        });
    }

    #[target_feature(enable = "avx2,f16c")]
    pub(super) fn pack_avx2<W: Weight>(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize) {
        lines(rows, |line, from| {
            for (from, first) in from.as_chunks::<8>().0.iter().zip((0..rows.len()).step_by(8)) {
                for four in 0..LANES / 4 {
                    // Four elements of two rows each: of rows r, r + 4.
                    let [a, b, c, d] = std::array::from_fn(|r| {
                        // SAFETY: 16 elements of each row.
                        let part = |row: usize| unsafe { W::load_4(from[row].add(four * 4)) };
                        _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(part(r)), part(r + 4))
                    });
                    let low = (_mm256_unpacklo_ps(a, b), _mm256_unpacklo_ps(c, d));
                    let high = (_mm256_unpackhi_ps(a, b), _mm256_unpackhi_ps(c, d));
                    let by_lane = [
                        _mm256_shuffle_ps::<0b01_00_01_00>(low.0, low.1),
                        _mm256_shuffle_ps::<0b11_10_11_10>(low.0, low.1),
                        _mm256_shuffle_ps::<0b01_00_01_00>(high.0, high.1),
                        _mm256_shuffle_ps::<0b11_10_11_10>(high.0, high.1),
                    ];
                    for (l, values) in by_lane.into_iter().enumerate() {
                        let to = &mut to[(four * 4 + l) * lane + line * across + first..];
                        // SAFETY: 8 elements; no alignment is needed.
                        put::<8>(rows.len() - first, to, |to| unsafe { _mm256_storeu_ps(to.as_mut_ptr(), values) });
                    }
                }
            }
        });
    }
}

/// NEON.
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{COLUMNS, PanelKernel, Strips, lines, products, put};
    use crate::kernel::dot::LANES;
    use crate::kernel::widen::neon::{Weight, add_f32, fma_f32, splat_f32, zero_f32};

    /// The products with NEON, which every aarch64 has.
    ///
    /// # Safety
    /// Nothing is required; the signature is that of the other kernels.
    pub(crate) unsafe fn neon<W: Weight>(x: &Strips, w: &[&[W]], out: &mut [&mut [f32]]) {
        let kernel = PanelKernel { columns: COLUMNS / 2, pack: pack::<W>, passes: NEON };
        // SAFETY: the processor has the instructions.
        unsafe { products(&kernel, x, w, out) }
    }

    passes!(NEON by 1 2 3 4 5 6: , 4 x 4, zero_f32, vld1q_f32, splat_f32, fma_f32, add_f32, vst1q_f32);

    pub(super) fn pack<W: Weight>(rows: &[&[W]], to: &mut [f32], lane: usize, across: usize) {
        lines(rows, |line, from| {
            for (from, first) in from.as_chunks::<4>().0.iter().zip((0..rows.len()).step_by(4)) {
                for four in 0..LANES / 4 {
                    // SAFETY: 16 elements of each row; the instructions are part of every aarch64.
                    let by_lane = unsafe {
                        let [a, b, c, d] = from.map(|row| W::load_4(row.add(four * 4)));
                        let low = (vzip1q_f32(a, c), vzip1q_f32(b, d));
                        let high = (vzip2q_f32(a, c), vzip2q_f32(b, d));
                        [
                            vzip1q_f32(low.0, low.1),
                            vzip2q_f32(low.0, low.1),
                            vzip1q_f32(high.0, high.1),
                            vzip2q_f32(high.0, high.1),
                        ]
                    };
                    for (l, values) in by_lane.into_iter().enumerate() {
                        let to = &mut to[(four * 4 + l) * lane + line * across + first..];
                        // SAFETY: 4 elements; no alignment is needed.
                        put::<4>(rows.len() - first, to, |to| unsafe { vst1q_f32(to.as_mut_ptr(), values) });
                    }
                }
            }
        });
    }
}
