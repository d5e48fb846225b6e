//! How are many rows of x multiplied with a tile of w? Both packed, so that every load is aligned and follows the one before.
//!
//! AVX-512 and f32 sums only. The sums are those of `dot`, to the bit.

use std::arch::x86_64::*;
use std::cell::RefCell;

use crate::kernel::dot::LANES;
use crate::kernel::packed::{Line, Packed, STRIP};
use crate::kernel::{Weight, trees_avx512};

/// Rows of x from which on packing w takes less time than it saves.
const MANY: usize = 24;
/// Rows of w in a block.
const COLUMNS: usize = 4;
/// Lines after which the lanes are put aside, so that the rows of x at hand stay in the first-level cache.
const CHUNK: usize = 64;

/// Bytes that are asked of memory ahead of time: the processor's own prefetching stops at the end of a page.
const AHEAD: usize = 4096;

/// Bytes of the tile that are asked of the second-level cache ahead of time.
const NEXT: usize = 1024;

/// 16 elements of each row of a block of w.
#[derive(Clone, Copy)]
#[repr(align(64))]
struct Columns([[f32; LANES]; COLUMNS]);

type Sums = [[[f32; LANES]; COLUMNS]; STRIP];

thread_local! {
    /// A thread's tile of w.
    static PANEL: RefCell<Vec<Columns>> = const { RefCell::new(Vec::new()) };
}

/// Whether [`products`] is for these rows.
pub(crate) fn suits(x: &Packed<'_, f32>) -> bool {
    x.rows().len() >= MANY && x.width() >= LANES && x.width().is_multiple_of(LANES)
}

/// out\[i,j\] = dot(x\[i\], w\[j\]); `out` \[x, w\], rows of a whole number of lines.
#[target_feature(enable = "avx512f,avx2,fma")]
pub(crate) fn products<W: Weight>(x: &Packed<'_, f32>, w: &[&[W]], out: &mut [&mut [f32]]) {
    assert!(suits(x) && w.iter().all(|row| row.len() >= x.width()) && out.iter().all(|row| row.len() == w.len()));
    let count = x.width() / LANES;
    PANEL.with_borrow_mut(|panel| {
        let needed = count * w.len().div_ceil(COLUMNS);
        if panel.len() < needed {
            panel.resize(needed, Columns([[0.0; LANES]; COLUMNS]));
        }
        let panel = &mut panel[..needed];
        for (w, to) in w.chunks(COLUMNS).zip(panel.chunks_exact_mut(count)) {
            pack(w, to);
        }
        let blocks: Vec<&[Columns]> = panel.chunks_exact(count).collect();
        let mut sums: Vec<Sums> = vec![[[[0.0; LANES]; COLUMNS]; STRIP]; blocks.len()];
        for ((lines, _), out) in x.strips().zip(out.chunks_mut(STRIP)) {
            strip(lines, &blocks, &mut sums, out);
        }
    });
}

/// Rows of w, at most a block, side by side.
#[target_feature(enable = "avx512f")]
fn pack<W: Weight>(w: &[&[W]], to: &mut [Columns]) {
    for (c, row) in w.iter().enumerate() {
        for (from, to) in row.as_chunks::<LANES>().0.iter().zip(to.iter_mut()) {
            // What lies a page on; a wrong address is no harm.
            _mm_prefetch::<_MM_HINT_T0>(from.as_ptr().cast::<i8>().wrapping_add(AHEAD));
            // SAFETY: 16 elements each; `Columns` begins where a line of the cache does.
            unsafe { _mm512_store_ps(to.0[c].as_mut_ptr(), W::load(from.as_ptr())) };
        }
    }
}

/// A strip of x with all blocks of w.
#[target_feature(enable = "avx512f,avx2,fma")]
fn strip(lines: &[Line<f32>], blocks: &[&[Columns]], all: &mut [Sums], out: &mut [&mut [f32]]) {
    for start in (0..lines.len()).step_by(CHUNK) {
        let end = (start + CHUNK).min(lines.len());
        for (j, (w, sums)) in blocks.iter().zip(all.iter_mut()).enumerate() {
            block(&lines[start..end], &w[start..end], start > 0, sums);
            if end < lines.len() {
                continue;
            }
            for (out, sums) in out.iter_mut().zip(sums.iter()) {
                let to = &mut out[j * COLUMNS..];
                let found = trees_avx512(sums);
                match to.first_chunk_mut() {
                    Some(to) => *to = found,
                    None => to.copy_from_slice(&found[..to.len()]),
                }
            }
        }
    }
}

// Indices, since an array that is iterated over does not stay in registers.
#[allow(clippy::needless_range_loop)]
/// The lanes of a strip with a block, in registers meanwhile; `more`: behind those that `sums` holds.
#[target_feature(enable = "avx512f")]
fn block(x: &[Line<f32>], w: &[Columns], more: bool, sums: &mut Sums) {
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
            _mm_prefetch::<_MM_HINT_T0>(w.0[c].as_ptr().cast::<i8>().wrapping_add(NEXT));
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
