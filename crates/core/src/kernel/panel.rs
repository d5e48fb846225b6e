//! How are many rows of x multiplied with a tile of w? Both packed, so that what one pass reads lies one after the other.
//!
//! Sums in f32, and those of `dot` to the bit. What differs from one set of instructions to the next is a [`Micro`].

use std::cell::RefCell;
use std::ops::Range;

use crate::kernel::dot::LANES;
use crate::kernel::float::Float;
use crate::kernel::packed::{CacheLine, Cut, Packed, flat_mut};

/// Rows of w in a block.
const COLUMNS: usize = 4;
/// The most rows of x in a strip.
const ROWS: usize = 6;

/// The lanes of a strip with a block of w, a part of the lanes after the other; in each by rows of x, then rows of w.
type Sums = [f32; ROWS * COLUMNS * LANES];

/// What is written for each set of instructions.
struct Micro<W> {
    /// Rows of x in a strip, and lanes that are in registers at a time: a part of the 16.
    cut: Cut,
    /// Rows of w, at most a block, side by side: each part of the lanes by itself.
    pack: unsafe fn(&[&[W]], &mut [f32]),
    /// One part of the lanes of a strip with a block, in registers meanwhile; behind those that the sums hold where `true` is given. From the address on,
    /// one line of the cache is asked of memory for each of the strip's.
    pass: unsafe fn(&[f32], &[f32], bool, &mut [f32], *const f32),
    /// The sum of each pair's lanes, of one row of x.
    trees: unsafe fn(&Sums, usize) -> [f32; COLUMNS],
    /// Strips that a block of w is multiplied with while it is in the first-level cache.
    together: usize,
    /// Lines after which the lanes are put aside, so that these strips and a block of w stay there.
    chunk: usize,
    /// Bytes of packed w that stay in the second-level cache.
    panel: usize,
}

thread_local! {
    /// A thread's tile of w.
    static PANEL: RefCell<Vec<CacheLine<f32>>> = const { RefCell::new(Vec::new()) };
}

/// Whether [`products`] takes rows of this length.
pub(crate) fn suits<F: Float>(x: &Packed<'_, F>) -> bool {
    x.width() >= LANES && x.width().is_multiple_of(LANES)
}

/// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\], rows of a whole number of lines.
///
/// # Safety
/// The processor has the instructions of `micro`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn products<W>(micro: &Micro<W>, x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
    assert!(suits(x) && w.iter().all(|row| row.len() >= x.width()) && out.iter().all(|row| row.len() == w.len()));
    assert!(micro.cut.rows <= ROWS && LANES.is_multiple_of(micro.cut.lanes));
    let size = x.width() * COLUMNS;
    let height = (micro.panel / (size * size_of::<f32>())).max(1) * COLUMNS;
    let strips: Vec<&[f32]> = x.cut(micro.cut).collect();
    PANEL.with_borrow_mut(|panel| {
        for (number, w) in w.chunks(height).enumerate() {
            let needed = size * w.len().div_ceil(COLUMNS);
            if panel.len() < needed / LANES {
                panel.resize(needed / LANES, CacheLine([0.0; LANES]));
            }
            let panel = &mut flat_mut(panel)[..needed];
            for (w, to) in w.chunks(COLUMNS).zip(panel.chunks_exact_mut(size)) {
                // SAFETY: the caller's processor; rows are as long as those of x (above).
                unsafe { (micro.pack)(w, to) };
            }
            let blocks: Vec<&[f32]> = panel.chunks_exact(size).collect();
            let mut sums = vec![[0.0; ROWS * COLUMNS * LANES]; blocks.len() * micro.together];
            let columns = number * height..number * height + w.len();
            let rows = micro.together * micro.cut.rows;
            for (strips, out) in strips.chunks(micro.together).zip(out.chunks_mut(rows)) {
                // SAFETY: as the caller says.
                unsafe { some_strips(micro, x.width() / LANES, strips, &blocks, &mut sums, columns.clone(), out) };
            }
        }
    });
}

/// Some strips with all blocks of w, to `columns` of their rows of `out`.
///
/// # Safety
/// The processor has the instructions of `micro`.
unsafe fn some_strips<W>(
    micro: &Micro<W>,
    lines: usize,
    strips: &[&[f32]],
    blocks: &[&[f32]],
    sums: &mut [Sums],
    columns: Range<usize>,
    out: &mut [&mut [f32]],
) {
    let Cut { rows, lanes } = micro.cut;
    for start in (0..lines).step_by(micro.chunk) {
        let end = (start + micro.chunk).min(lines);
        for part in 0..LANES / lanes {
            let of = |packed: usize| (part * lines + start) * packed * lanes..(part * lines + end) * packed * lanes;
            for (number, (w, sums)) in blocks.iter().zip(sums.chunks_exact_mut(micro.together)).enumerate() {
                for (x, sums) in strips.iter().zip(sums) {
                    let x = &x[of(rows)];
                    // What follows of the strip, a share of it with each block: of many rows x is in no cache of the core.
                    let next = x.as_ptr().wrapping_add(x.len() + number * (end - start) * LANES);
                    let next = if number * LANES < rows * lanes { next } else { x.as_ptr() };
                    let size = rows * COLUMNS * lanes;
                    let sums = &mut sums[part * size..(part + 1) * size];
                    // SAFETY: as the caller says.
                    unsafe { (micro.pass)(x, &w[of(COLUMNS)], start > 0, sums, next) };
                }
            }
        }
    }
    for (number, out) in out.chunks_mut(rows).enumerate() {
        for (row, out) in out.iter_mut().enumerate() {
            let sums = sums.iter().skip(number).step_by(micro.together);
            for (to, sums) in out[columns.clone()].chunks_mut(COLUMNS).zip(sums) {
                // SAFETY: as the caller says.
                let found = unsafe { (micro.trees)(sums, row) };
                // Without a call where all are there.
                match to.first_chunk_mut::<COLUMNS>() {
                    Some(to) => *to = found,
                    None => to.copy_from_slice(&found[..to.len()]),
                }
            }
        }
    }
}

/// The lanes of one row of a strip of R with a block, of which the sums have W at a time.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
#[inline(always)]
fn lanes<const R: usize, const W: usize>(sums: &Sums, row: usize) -> [[f32; LANES]; COLUMNS] {
    let parts = sums.as_chunks::<W>().0;
    let mut whole = [[0.0; LANES]; COLUMNS];
    for (column, whole) in whole.iter_mut().enumerate() {
        for (part, whole) in whole.as_chunks_mut::<W>().0.iter_mut().enumerate() {
            *whole = parts[(part * R + row) * COLUMNS + column];
        }
    }
    whole
}

/// The pass of one set of instructions: $rows rows of x with a block of w, $width lanes at a time; w may be asked of the second-level cache some bytes ahead
/// of time.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! pass {
    ($name:ident $(ahead $ahead:ident)?: $(#[$attribute:meta])?, $rows:expr, $width:expr, $zero:path, $load:path, $fma:path, $store:path) => {
        #[allow(clippy::needless_range_loop)] // an array that is iterated over does not stay in registers
        $(#[$attribute])?
        fn $name(x: &[f32], w: &[f32], more: bool, sums: &mut [f32], mut next: *const f32) {
            const SIZE: usize = $rows * COLUMNS * $width;
            let sums = sums.first_chunk_mut::<SIZE>().expect("lanes of all pairs");
            let mut lanes = [[$zero(); COLUMNS]; $rows];
            if more {
                for r in 0..$rows {
                    for c in 0..COLUMNS {
                        // SAFETY: a register's elements; no alignment is needed.
                        lanes[r][c] = unsafe { $load(sums[(r * COLUMNS + c) * $width..].as_ptr()) };
                    }
                }
            }
            for (x, w) in x.as_chunks::<{ $rows * $width }>().0.iter().zip(w.as_chunks::<{ COLUMNS * $width }>().0) {
                firstdiff_simd::prefetch_for_later(next);
                next = next.wrapping_add(LANES);
                $(for line in 0..COLUMNS * $width / LANES {
                    firstdiff_simd::prefetch(w.as_ptr().wrapping_byte_add($ahead + line * 64));
                })?
                // SAFETY: a register's elements each; no alignment is needed.
                let xs: [_; $rows] = std::array::from_fn(|r| unsafe { $load(x[r * $width..].as_ptr()) });
                for c in 0..COLUMNS {
                    // SAFETY: as above.
                    let w = unsafe { $load(w[c * $width..].as_ptr()) };
                    for r in 0..$rows {
                        lanes[r][c] = $fma(xs[r], w, lanes[r][c]);
                    }
                }
            }
            for r in 0..$rows {
                for c in 0..COLUMNS {
                    // SAFETY: a register's elements; no alignment is needed.
                    unsafe { $store(sums[(r * COLUMNS + c) * $width..].as_mut_ptr(), lanes[r][c]) };
                }
            }
        }
    };
}

/// For AVX-512 and AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use firstdiff_simd::prefetch;

    use super::{COLUMNS, Cut, Micro, ROWS, Sums, lanes, products};
    use crate::kernel::dot::{LANES, trees_avx2};
    use crate::kernel::packed::Packed;
    use crate::kernel::widen::x86::Weight;

    /// Bytes that are asked of memory ahead of time: the processor's own prefetching stops at the end of a page.
    const AHEAD: usize = 4096;
    /// The same of a packed panel, for which a core with AVX-512 waits a sixth of its time otherwise.
    const AHEAD_IN_PANEL: usize = 1024;

    /// The products with AVX-512.
    ///
    /// # Safety
    /// The processor has it.
    pub(crate) unsafe fn avx512<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro {
            cut: Cut { rows: ROWS, lanes: LANES },
            pack: pack_avx512::<W>,
            pass: pass_avx512,
            trees: trees_of_avx512,
            together: 1,
            chunk: 64,
            panel: 1 << 19,
        };
        // SAFETY: as the caller says.
        unsafe { products(&micro, x, w, out) }
    }

    /// The products with AVX2, FMA and F16C.
    ///
    /// # Safety
    /// The processor has them.
    pub(crate) unsafe fn avx2<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro {
            cut: Cut { rows: HALF_ROWS, lanes: HALF },
            pack: pack_avx2::<W>,
            pass: pass_avx2,
            trees: trees_of_avx2,
            together: 2,
            chunk: 64,
            panel: 1 << 17,
        };
        // SAFETY: as the caller says.
        unsafe { products(&micro, x, w, out) }
    }

    #[target_feature(enable = "avx2")]
    fn trees_of_avx512(sums: &Sums, row: usize) -> [f32; COLUMNS] {
        trees_avx2(&lanes::<ROWS, LANES>(sums, row))
    }

    #[target_feature(enable = "avx2")]
    fn trees_of_avx2(sums: &Sums, row: usize) -> [f32; COLUMNS] {
        trees_avx2(&lanes::<HALF_ROWS, HALF>(sums, row))
    }

    #[target_feature(enable = "avx512f")]
    fn pack_avx512<W: Weight>(w: &[&[W]], to: &mut [f32]) {
        for (c, row) in w.iter().enumerate() {
            for (from, to) in row.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<{ COLUMNS * LANES }>().0) {
                // What lies a page on.
                prefetch(from.as_ptr().wrapping_byte_add(AHEAD));
                let to = &mut to[c * LANES..(c + 1) * LANES];
                // SAFETY: 16 elements each; no alignment is needed.
                unsafe { _mm512_storeu_ps(to.as_mut_ptr(), W::load_16(from.as_ptr())) };
            }
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    fn pack_avx2<W: Weight>(w: &[&[W]], to: &mut [f32]) {
        let (first, second) = to.split_at_mut(to.len() / 2);
        let lines = first.as_chunks_mut::<{ COLUMNS * HALF }>().0.iter_mut();
        let mut lines = lines.zip(second.as_chunks_mut::<{ COLUMNS * HALF }>().0);
        for k in 0.. {
            let Some((first, second)) = lines.next() else { return };
            for (c, row) in w.iter().enumerate() {
                let Some(from) = row[k * LANES..].first_chunk::<LANES>() else { return };
                // What lies a page on.
                prefetch(from.as_ptr().wrapping_byte_add(AHEAD));
                for (half, to) in [&mut first[c * HALF..(c + 1) * HALF], &mut second[c * HALF..(c + 1) * HALF]]
                    .into_iter()
                    .enumerate()
                {
                    // SAFETY: 8 elements each; no alignment is needed.
                    unsafe { _mm256_storeu_ps(to.as_mut_ptr(), W::load_8(from.as_ptr().add(half * HALF))) };
                }
            }
        }
    }

    /// Rows of x of which the lanes of all pairs fit 16 registers, half of the lanes at a time.
    const HALF_ROWS: usize = 3;
    const HALF: usize = LANES / 2;

    pass!(pass_avx512 ahead AHEAD_IN_PANEL: #[target_feature(enable = "avx512f")], ROWS, LANES, _mm512_setzero_ps, _mm512_loadu_ps, _mm512_fmadd_ps, _mm512_storeu_ps);
    pass!(pass_avx2: #[target_feature(enable = "avx2,fma")], HALF_ROWS, HALF, _mm256_setzero_ps, _mm256_loadu_ps, _mm256_fmadd_ps, _mm256_storeu_ps);
}

/// For NEON.
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{COLUMNS, Cut, Micro, ROWS, lanes, products};
    use crate::kernel::dot::{LANES, trees};
    use crate::kernel::packed::Packed;
    use crate::kernel::widen::neon::{Weight, fma_f32, zero_f32};

    /// Elements of a register.
    const WIDTH: usize = 4;

    /// The products with NEON, which every aarch64 has.
    ///
    /// # Safety
    /// None is asked; it is one of the kernels that do.
    pub(crate) unsafe fn neon<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro {
            cut: Cut { rows: ROWS, lanes: WIDTH },
            pack: pack::<W>,
            pass,
            trees: |sums, row| trees(&lanes::<ROWS, WIDTH>(sums, row)),
            together: 2,
            chunk: 32,
            panel: 1 << 17,
        };
        // SAFETY: the processor has the instructions.
        unsafe { products(&micro, x, w, out) }
    }

    fn pack<W: Weight>(w: &[&[W]], to: &mut [f32]) {
        let size = to.len() * WIDTH / LANES;
        for (part, to) in to.chunks_exact_mut(size).enumerate() {
            for (c, row) in w.iter().enumerate() {
                for (from, to) in row.as_chunks::<LANES>().0.iter().zip(to.as_chunks_mut::<{ COLUMNS * WIDTH }>().0) {
                    let (from, to) = (&from[part * WIDTH..][..WIDTH], &mut to[c * WIDTH..][..WIDTH]);
                    // SAFETY: 4 elements each.
                    unsafe { vst1q_f32(to.as_mut_ptr(), W::load_4(from.as_ptr())) };
                }
            }
        }
    }

    // A quarter of the lanes, so that those of all pairs fit 32 registers.
    pass!(pass: , ROWS, WIDTH, zero_f32, vld1q_f32, fma_f32, vst1q_f32);
}
