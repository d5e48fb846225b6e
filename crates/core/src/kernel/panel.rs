//! How are many rows of x multiplied with a tile of w? Both packed, so that every load is aligned and follows the one before.
//!
//! Sums in f32, and those of `dot` to the bit. What differs from one set of instructions to the next is a [`Micro`].

use std::cell::RefCell;

use crate::kernel::dot::LANES;
use crate::kernel::float::Float;
use crate::kernel::packed::{Line, Packed, STRIP};

/// Rows of x from which on packing w takes less time than it saves.
const MANY: usize = 24;
/// Rows of w in a block.
const COLUMNS: usize = 4;

/// 16 elements of each row of a block of w.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Columns([[f32; LANES]; COLUMNS]);

/// The lanes of a strip of x with a block of w.
type Sums = [[[f32; LANES]; COLUMNS]; STRIP];

/// What is written for each set of instructions.
struct Micro<W> {
    /// Rows of w, at most a block, side by side.
    pack: unsafe fn(&[&[W]], &mut [Columns]),
    /// The lanes of a strip with a block, in registers meanwhile; behind those that the sums hold where `true` is given.
    block: unsafe fn(&[Line<f32>], &[Columns], bool, &mut Sums),
    /// The sum of each pair's lanes, of one row of x.
    trees: unsafe fn(&[[f32; LANES]; COLUMNS]) -> [f32; COLUMNS],
    /// Lines after which the lanes are put aside, so that a strip and a block of w stay in the first-level cache.
    chunk: usize,
}

thread_local! {
    /// A thread's tile of w.
    static PANEL: RefCell<Vec<Columns>> = const { RefCell::new(Vec::new()) };
}

/// Whether [`products`] is for these rows.
pub(crate) fn suits<F: Float>(x: &Packed<'_, F>) -> bool {
    x.rows().len() >= MANY && x.width() >= LANES && x.width().is_multiple_of(LANES)
}

/// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\], rows of a whole number of lines.
///
/// # Safety
/// The processor has the instructions of `micro`.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
unsafe fn products<W>(micro: &Micro<W>, x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
    assert!(suits(x) && w.iter().all(|row| row.len() >= x.width()) && out.iter().all(|row| row.len() == w.len()));
    let count = x.width() / LANES;
    PANEL.with_borrow_mut(|panel| {
        let needed = count * w.len().div_ceil(COLUMNS);
        if panel.len() < needed {
            panel.resize(needed, Columns([[0.0; LANES]; COLUMNS]));
        }
        let panel = &mut panel[..needed];
        for (w, to) in w.chunks(COLUMNS).zip(panel.chunks_exact_mut(count)) {
            // SAFETY: the caller's processor; rows are as long as those of x (above).
            unsafe { (micro.pack)(w, to) };
        }
        let blocks: Vec<&[Columns]> = panel.chunks_exact(count).collect();
        let mut sums: Vec<Sums> = vec![[[[0.0; LANES]; COLUMNS]; STRIP]; blocks.len()];
        for ((lines, _), out) in x.strips().zip(out.chunks_mut(STRIP)) {
            // SAFETY: as the caller says.
            unsafe { strip(micro, lines, &blocks, &mut sums, out) };
        }
    });
}

/// A strip of x with all blocks of w.
///
/// # Safety
/// The processor has the instructions of `micro`.
unsafe fn strip<W>(
    micro: &Micro<W>,
    lines: &[Line<f32>],
    blocks: &[&[Columns]],
    all: &mut [Sums],
    out: &mut [&mut [f32]],
) {
    for start in (0..lines.len()).step_by(micro.chunk) {
        let end = (start + micro.chunk).min(lines.len());
        for (j, (w, sums)) in blocks.iter().zip(all.iter_mut()).enumerate() {
            // SAFETY: as the caller says.
            unsafe { (micro.block)(&lines[start..end], &w[start..end], start > 0, sums) };
            if end < lines.len() {
                continue;
            }
            for (out, sums) in out.iter_mut().zip(sums.iter()) {
                let to = &mut out[j * COLUMNS..];
                // SAFETY: as the caller says.
                let found = unsafe { (micro.trees)(sums) };
                match to.first_chunk_mut() {
                    Some(to) => *to = found,
                    None => to.copy_from_slice(&found[..to.len()]),
                }
            }
        }
    }
}

/// For AVX-512 and AVX2.
#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use firstdiff_simd::prefetch;

    use super::{COLUMNS, Columns, Micro, Sums, products};
    use crate::kernel::dot::{LANES, trees_avx2};
    use crate::kernel::packed::{Line, Packed, STRIP};
    use crate::kernel::widen::x86::Weight;

    /// Bytes that are asked of memory ahead of time: the processor's own prefetching stops at the end of a page.
    const AHEAD: usize = 4096;
    /// Bytes of the tile that are asked of the second-level cache ahead of time.
    const NEXT: usize = 1024;

    /// The products with AVX-512.
    ///
    /// # Safety
    /// The processor has it.
    pub(crate) unsafe fn avx512<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro { pack: pack_avx512::<W>, block: block_avx512, trees: trees_avx2::<COLUMNS>, chunk: 64 };
        // SAFETY: as the caller says.
        unsafe { products(&micro, x, w, out) }
    }

    /// The products with AVX2, FMA and F16C.
    ///
    /// # Safety
    /// The processor has them.
    pub(crate) unsafe fn avx2<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro { pack: pack_avx2::<W>, block: block_avx2, trees: trees_avx2::<COLUMNS>, chunk: 32 };
        // SAFETY: as the caller says.
        unsafe { products(&micro, x, w, out) }
    }

    #[target_feature(enable = "avx512f")]
    fn pack_avx512<W: Weight>(w: &[&[W]], to: &mut [Columns]) {
        for (c, row) in w.iter().enumerate() {
            for (from, to) in row.as_chunks::<LANES>().0.iter().zip(to.iter_mut()) {
                // What lies a page on.
                prefetch(from.as_ptr().wrapping_byte_add(AHEAD));
                // SAFETY: 16 elements each; `Columns` begins where a line of the cache does.
                unsafe { _mm512_store_ps(to.0[c].as_mut_ptr(), W::load_16(from.as_ptr())) };
            }
        }
    }

    #[target_feature(enable = "avx2,f16c")]
    fn pack_avx2<W: Weight>(w: &[&[W]], to: &mut [Columns]) {
        for (c, row) in w.iter().enumerate() {
            for (from, to) in row.as_chunks::<LANES>().0.iter().zip(to.iter_mut()) {
                // What lies a page on.
                prefetch(from.as_ptr().wrapping_byte_add(AHEAD));
                for half in [0, LANES / 2] {
                    // SAFETY: 8 elements each; `Columns` begins where a line of the cache does, and its half where half a line does.
                    unsafe { _mm256_store_ps(to.0[c].as_mut_ptr().add(half), W::load_8(from.as_ptr().add(half))) };
                }
            }
        }
    }

    // Indices below, since an array that is iterated over does not stay in registers.

    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "avx512f")]
    fn block_avx512(x: &[Line<f32>], w: &[Columns], more: bool, sums: &mut Sums) {
        let mut lanes = [[_mm512_setzero_ps(); COLUMNS]; STRIP];
        if more {
            for r in 0..STRIP {
                for c in 0..COLUMNS {
                    // SAFETY: 16 elements; no alignment is needed.
                    lanes[r][c] = unsafe { _mm512_loadu_ps(sums[r][c].as_ptr()) };
                }
            }
        }
        for (x, w) in x.iter().zip(w) {
            for c in 0..COLUMNS {
                prefetch(w.0[c].as_ptr().wrapping_byte_add(NEXT));
            }
            // SAFETY: 16 elements each; `Columns` and `Line` begin where a line of the cache does.
            let ws: [_; COLUMNS] = std::array::from_fn(|c| unsafe { _mm512_load_ps(w.0[c].as_ptr()) });
            for r in 0..STRIP {
                // SAFETY: as above.
                let xs = unsafe { _mm512_load_ps(x.0[r].as_ptr()) };
                for c in 0..COLUMNS {
                    lanes[r][c] = _mm512_fmadd_ps(xs, ws[c], lanes[r][c]);
                }
            }
        }
        for r in 0..STRIP {
            for c in 0..COLUMNS {
                // SAFETY: 16 elements; no alignment is needed.
                unsafe { _mm512_storeu_ps(sums[r][c].as_mut_ptr(), lanes[r][c]) };
            }
        }
    }

    /// Half the rows and half the lanes at a time, so that the lanes of all their pairs fit 16 registers.
    #[allow(clippy::needless_range_loop)]
    #[target_feature(enable = "avx2,fma")]
    fn block_avx2(x: &[Line<f32>], w: &[Columns], more: bool, sums: &mut Sums) {
        const ROWS: usize = STRIP / 2;
        for (first, half) in [(0, 0), (0, LANES / 2), (ROWS, 0), (ROWS, LANES / 2)] {
            let mut lanes = [[_mm256_setzero_ps(); COLUMNS]; ROWS];
            if more {
                for r in 0..ROWS {
                    for c in 0..COLUMNS {
                        // SAFETY: 8 elements from `half` on; no alignment is needed.
                        lanes[r][c] = unsafe { _mm256_loadu_ps(sums[first + r][c].as_ptr().add(half)) };
                    }
                }
            }
            for (x, w) in x.iter().zip(w) {
                if (first, half) == (0, 0) {
                    for c in 0..COLUMNS {
                        prefetch(w.0[c].as_ptr().wrapping_byte_add(NEXT));
                    }
                }
                // SAFETY: 8 elements from `half` on; `Columns` and `Line` begin where a line of the cache does.
                let xs: [_; ROWS] =
                    std::array::from_fn(|r| unsafe { _mm256_load_ps(x.0[first + r].as_ptr().add(half)) });
                for c in 0..COLUMNS {
                    // SAFETY: as above.
                    let w = unsafe { _mm256_load_ps(w.0[c].as_ptr().add(half)) };
                    for r in 0..ROWS {
                        lanes[r][c] = _mm256_fmadd_ps(xs[r], w, lanes[r][c]);
                    }
                }
            }
            for r in 0..ROWS {
                for c in 0..COLUMNS {
                    // SAFETY: 8 elements from `half` on; no alignment is needed.
                    unsafe { _mm256_storeu_ps(sums[first + r][c].as_mut_ptr().add(half), lanes[r][c]) };
                }
            }
        }
    }
}

/// For NEON.
#[cfg(target_arch = "aarch64")]
pub(crate) mod neon {
    use std::arch::aarch64::*;

    use super::{COLUMNS, Columns, Micro, Sums, products};
    use crate::kernel::dot::{LANES, trees};
    use crate::kernel::packed::{Line, Packed, STRIP};
    use crate::kernel::widen::neon::{Weight, fma_f32, zero_f32};

    /// Elements of a register.
    const WIDTH: usize = 4;

    /// The products with NEON, which every aarch64 has.
    ///
    /// # Safety
    /// None is asked; it is one of the kernels that do.
    pub(crate) unsafe fn neon<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
        let micro = Micro { pack: pack::<W>, block, trees: trees::<f32, COLUMNS>, chunk: 64 };
        // SAFETY: the processor has the instructions.
        unsafe { products(&micro, x, w, out) }
    }

    fn pack<W: Weight>(w: &[&[W]], to: &mut [Columns]) {
        for (c, row) in w.iter().enumerate() {
            for (from, to) in row.as_chunks::<LANES>().0.iter().zip(to.iter_mut()) {
                for part in (0..LANES).step_by(WIDTH) {
                    // SAFETY: 4 elements each from `part` on.
                    unsafe { vst1q_f32(to.0[c].as_mut_ptr().add(part), W::load_4(from.as_ptr().add(part))) };
                }
            }
        }
    }

    /// A quarter of the lanes at a time, so that those of all pairs fit 32 registers.
    #[allow(clippy::needless_range_loop)] // an array that is iterated over does not stay in registers
    fn block(x: &[Line<f32>], w: &[Columns], more: bool, sums: &mut Sums) {
        for part in (0..LANES).step_by(WIDTH) {
            let mut lanes = [[zero_f32(); COLUMNS]; STRIP];
            if more {
                for r in 0..STRIP {
                    for c in 0..COLUMNS {
                        // SAFETY: 4 elements from `part` on.
                        lanes[r][c] = unsafe { vld1q_f32(sums[r][c].as_ptr().add(part)) };
                    }
                }
            }
            for (x, w) in x.iter().zip(w) {
                // SAFETY: 4 elements from `part` on.
                let ws: [_; COLUMNS] = std::array::from_fn(|c| unsafe { vld1q_f32(w.0[c].as_ptr().add(part)) });
                for r in 0..STRIP {
                    // SAFETY: as above.
                    let xs = unsafe { vld1q_f32(x.0[r].as_ptr().add(part)) };
                    for c in 0..COLUMNS {
                        lanes[r][c] = fma_f32(xs, ws[c], lanes[r][c]);
                    }
                }
            }
            for r in 0..STRIP {
                for c in 0..COLUMNS {
                    // SAFETY: 4 elements from `part` on.
                    unsafe { vst1q_f32(sums[r][c].as_mut_ptr().add(part), lanes[r][c]) };
                }
            }
        }
    }
}
