//! Multiplies rows of integers: pair by pair for few rows of x; for many, 16 or 32 interleaved rows of w at a time.
//!
//! The sum of a run is an integer, so its order does not matter. The runs are added one after the other, in every kernel and at every level.

use std::cell::RefCell;
use std::ops::Range;

use bytemuck::Pod;
use firstdiff_simd::Level;
use rayon::prelude::*;

use super::{Row, RunLayout};

/// Adds the product of two rows to `total`: for each run, the integer sum times both scales, with one rounding.
#[inline(always)]
fn dot<const BLOCK: usize, const REST: usize>(w: Row<'_>, x: Row<'_>, mut total: f32) -> f32 {
    let runs = usize::from(REST > 0) + 1;
    let blocks = w.values.chunks_exact(BLOCK + REST).zip(x.values.chunks_exact(BLOCK + REST));
    let scales = w.scales.chunks_exact(runs).zip(x.scales.chunks_exact(runs));
    for ((w, x), (dw, dx)) in blocks.zip(scales) {
        let sum = int_dot::<BLOCK>(&w[..BLOCK], &x[..BLOCK]);
        total = (dw[0] * dx[0]).mul_add(sum as f32, total);
        if REST > 0 {
            let sum = int_dot::<REST>(&w[BLOCK..], &x[BLOCK..]);
            total = (dw[1] * dx[1]).mul_add(sum as f32, total);
        }
    }
    total
}

#[inline(always)]
fn int_dot<const N: usize>(w: &[i16], x: &[i16]) -> i32 {
    let (w, x): (&[i16; N], &[i16; N]) = (w.first_chunk().expect("a run"), x.first_chunk().expect("a run"));
    let mut sum = 0;
    for i in 0..N {
        sum += i32::from(w[i]) * i32::from(x[i]);
    }
    sum
}

/// The products of one row with others, in plain Rust.
#[inline(always)]
fn scalar(runs: RunLayout, w: Row<'_>, x: &[Row<'_>], out: &mut [f32]) {
    // A plain loop: a closure would be compiled without the caller's instruction set.
    for (to, &x) in out.iter_mut().zip(x) {
        *to = match runs {
            RunLayout::Block32 => dot::<32, 0>(w, x, 0.0),
            RunLayout::Block256 => dot::<256, 0>(w, x, 0.0),
            RunLayout::Block256WithMinima => dot::<256, 16>(w, x, 0.0),
        }
    }
}

macro_rules! levels {
    ($($level:ident $name:ident $features:literal;)*) => {
        $(
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = $features)]
            fn $name(runs: RunLayout, w: Row<'_>, x: &[Row<'_>], out: &mut [f32]) {
                if runs == RunLayout::Block32 {
                    avx2::multiply_few(w, x, out);
                } else {
                    scalar(runs, w, x, out);
                }
            }
        )*

        /// The products of a row with a few others at a level that the processor must have: the same code, compiled for its registers.
        ///
        /// # Safety
        /// The processor has the level.
        pub(super) unsafe fn multiply_few(level: Level, runs: RunLayout, w: Row<'_>, x: &[Row<'_>], out: &mut [f32]) {
            match level {
                $(
                    // SAFETY: guaranteed by the caller.
                    #[cfg(target_arch = "x86_64")]
                    Level::$level => unsafe { $name(runs, w, x, out) },
                )*
                _ => scalar(runs, w, x, out),
            }
        }
    };
}

levels! {
    Avx2 few_avx2 "avx2,fma";
    Avx512 few_avx512 "avx2,fma,avx512f,avx512bw,avx512vl";
    Vnni few_vnni "avx2,fma,avx512f,avx512bw,avx512vl,avx512vnni";
}

/// Adds the products of some runs, of R rows of x with a block of rows of w, to `totals`, one row of x after the other. Each of `words` is a pair of
/// integers; `scales` holds one scale for each run and row, rows interleaved. `lengths` are the lengths of the runs in words, repeated cyclically.
type PassFn = unsafe fn(lengths: &[usize], x: Interleaved<'_>, w: Interleaved<'_>, totals: &mut [f32]);

/// Some runs of interleaved rows.
#[derive(Clone, Copy)]
struct Interleaved<'a> {
    words: &'a [i32],
    scales: &'a [f32],
}

/// The code for one set of instructions.
#[derive(Clone, Copy)]
struct PanelKernel {
    /// Rows of w in a block.
    columns: usize,
    /// One for each number of rows of x in a strip, from 1 on.
    passes: &'static [PassFn],
}

fn kernel(level: Level) -> Option<PanelKernel> {
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Vnni => Some(PanelKernel { columns: vnni::COLUMNS, passes: vnni::PASSES }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => Some(PanelKernel { columns: avx512::COLUMNS, passes: avx512::PASSES }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => Some(PanelKernel { columns: avx2::COLUMNS, passes: avx2::PASSES }),
        #[cfg(target_arch = "aarch64")]
        Level::Neon => Some(PanelKernel { columns: neon::COLUMNS, passes: neon::PASSES }),
        _ => None,
    }
}

/// Rows of x in strips of nearly equal height; the rows of a strip are interleaved.
pub(super) struct Strips {
    kernel: PanelKernel,
    level: Level,
    rows: Vec<Range<usize>>,
    words: Vec<i32>,
    scales: Vec<f32>,
    /// Words and runs in a row.
    size: (usize, usize),
}

impl Strips {
    /// Packs the rows; `None` where the level has no kernel for many rows.
    pub(super) fn new(level: Level, x: &[Row<'_>]) -> Option<Strips> {
        let kernel = kernel(level)?;
        let size = x.first().map_or((0, 0), |row| (row.values.len() / 2, row.scales.len()));
        let rows: Vec<_> = firstdiff_core::balanced_ranges(x.len(), kernel.passes.len()).collect();
        let (mut words, mut scales) = (vec![0; x.len() * size.0], vec![0.0; x.len() * size.1]);
        let (mut rest_words, mut rest_scales) = (&mut words[..], &mut scales[..]);
        let mut strips = Vec::with_capacity(rows.len());
        for rows in &rows {
            let (words, scales);
            (words, rest_words) = rest_words.split_at_mut(rows.len() * size.0);
            (scales, rest_scales) = rest_scales.split_at_mut(rows.len() * size.1);
            strips.push((&x[rows.clone()], words, scales));
        }
        strips.into_par_iter().for_each(|(rows, words, scales)| {
            for (r, row) in rows.iter().enumerate() {
                let words = words.iter_mut().skip(r).step_by(rows.len());
                words.zip(row.values.as_chunks::<2>().0).for_each(|(to, &pair)| *to = bytemuck::cast(pair));
                scales.iter_mut().skip(r).step_by(rows.len()).zip(row.scales).for_each(|(to, from)| *to = *from);
            }
        });
        Some(Strips { kernel, level, rows, words, scales, size })
    }

    /// Some runs of one strip.
    fn side(&self, rows: &Range<usize>, words: Range<usize>, runs: Range<usize>) -> Interleaved<'_> {
        let (first_word, first_run) = (rows.start * self.size.0, rows.start * self.size.1);
        Interleaved {
            words: &self.words[first_word + words.start * rows.len()..first_word + words.end * rows.len()],
            scales: &self.scales[first_run + runs.start * rows.len()..first_run + runs.end * rows.len()],
        }
    }
}

/// How many runs are processed together while those of w are in the first-level cache: 256 elements.
fn runs_per_pass(runs: RunLayout) -> usize {
    match runs {
        RunLayout::Block32 => 8,
        RunLayout::Block256 => 1,
        RunLayout::Block256WithMinima => 2,
    }
}

thread_local! {
    /// A thread's buffers: an interleaved block of w, its scales, and its products.
    static INTERLEAVED: RefCell<[Vec<u32>; 3]> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) };
}

/// Gives the buffer room for `count` elements.
pub(super) fn resized<T: Pod>(buffer: &mut Vec<u32>, count: usize) -> &mut [T] {
    const { assert!(size_of::<T>() == size_of::<u32>()) };
    if buffer.len() < count {
        buffer.resize(count, 0);
    }
    bytemuck::cast_slice_mut(&mut buffer[..count])
}

/// Multiplies many rows of x with some rows of w, whose words and scales are contiguous; `out` \[x, w\].
pub(super) fn multiply_many(runs: RunLayout, x: &Strips, w: &[i32], scales: &[f32], out: &mut [&mut [f32]]) {
    let ((words, count), columns) = (x.size, x.kernel.columns);
    let lengths: Vec<usize> = runs.lengths().iter().map(|length| length / 2).collect();
    let height = x.rows.last().map_or(0, |rows| rows.end);
    INTERLEAVED.with_borrow_mut(|[side, side_scales, totals]| {
        // Rows are interleaved 16 words at a time.
        let side = resized(side, words.next_multiple_of(16) * columns);
        let (side_scales, totals) = (resized(side_scales, count * columns), resized(totals, height * columns));
        let blocks = w.chunks(columns * words).zip(scales.chunks(columns * count)).enumerate();
        for (number, (rows, scales)) in blocks {
            for (part, rows) in rows.chunks(16 * words).enumerate() {
                let rows: Vec<&[f32]> = rows.chunks_exact(words).map(bytemuck::cast_slice).collect();
                firstdiff_core::interleave_rows(x.level, &rows, &mut side[16 * part..], columns);
            }
            for (row, from) in scales.chunks_exact(count).enumerate() {
                side_scales.iter_mut().skip(row).step_by(columns).zip(from).for_each(|(to, from)| *to = *from);
            }
            totals.fill(0.0);
            let mut end = 0;
            for run in (0..count).step_by(runs_per_pass(runs)) {
                let some = run..(run + runs_per_pass(runs)).min(count);
                let words = end..end + some.clone().map(|run| lengths[run % lengths.len()]).sum::<usize>();
                end = words.end;
                let w = Interleaved {
                    words: bytemuck::cast_slice(&side[words.start * columns..words.end * columns]),
                    scales: &side_scales[some.start * columns..some.end * columns],
                };
                for rows in &x.rows {
                    let (x, pass) = (x.side(rows, words.clone(), some.clone()), x.kernel.passes[rows.len() - 1]);
                    // SAFETY: the processor has the instructions of `kernel`.
                    unsafe { pass(&lengths, x, w, &mut totals[rows.start * columns..rows.end * columns]) };
                }
            }
            for (to, totals) in out.iter_mut().zip(totals.chunks_exact(columns)) {
                let to = &mut to[number * columns..][..rows.len() / words];
                to.copy_from_slice(&totals[..to.len()]);
            }
        }
    });
}

/// Defines the passes of one set of instructions: for 1, 2, .. rows of x and $vectors registers of $width rows of w each.
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
macro_rules! passes {
    ($($features:literal)?, $vectors:literal x $width:literal by $($rows:literal)*) => {
        pub(super) const COLUMNS: usize = $vectors * $width;

        pub(super) const PASSES: &[super::PassFn] = &[$(pass::<$rows>),*];

        #[allow(clippy::needless_range_loop)] // an array that is iterated over does not stay in registers
        $(#[target_feature(enable = $features)])?
        fn pass<const R: usize>(lengths: &[usize], x: super::Interleaved<'_>, w: super::Interleaved<'_>, totals: &mut [f32]) {
            let totals = &mut totals[..R * COLUMNS];
            let (mut x_words, mut w_words) = (x.words.as_chunks::<R>().0, w.words.as_chunks::<COLUMNS>().0);
            let scales = x.scales.as_chunks::<R>().0.iter().zip(w.scales.as_chunks::<COLUMNS>().0);
            for ((dx, dw), &length) in scales.zip(lengths.iter().cycle()) {
                let (some_x, some_w);
                (some_x, x_words) = x_words.split_at(length);
                (some_w, w_words) = w_words.split_at(length);
                let mut sums = [[zero(); $vectors]; R];
                for (x, w) in some_x.iter().zip(some_w) {
                    // SAFETY: a register's elements; no alignment is needed.
                    let ws: [_; $vectors] = std::array::from_fn(|v| unsafe { words(w[v * $width..].as_ptr()) });
                    for r in 0..R {
                        let x = splat(x[r]);
                        for v in 0..$vectors {
                            sums[r][v] = add(sums[r][v], x, ws[v]);
                        }
                    }
                }
                // SAFETY: as above.
                let dw: [_; $vectors] = std::array::from_fn(|v| unsafe { floats(dw[v * $width..].as_ptr()) });
                for r in 0..R {
                    for v in 0..$vectors {
                        let to = &mut totals[r * COLUMNS + v * $width..][..$width];
                        // SAFETY: as above.
                        unsafe { store(to.as_mut_ptr(), scaled(dw[v], dx[r], sums[r][v], floats(to.as_ptr()))) };
                    }
                }
            }
        }
    };
}

/// Pairs of integers in registers of 512 bits.
#[cfg(target_arch = "x86_64")]
macro_rules! x86_512 {
    ($name:ident: $features:literal, |$sum:ident, $x:ident, $w:ident| $add:expr) => {
        mod $name {
            use std::arch::x86_64::*;

            #[target_feature(enable = "avx512f")]
            #[inline]
            fn zero() -> __m512i {
                _mm512_setzero_si512()
            }

            #[target_feature(enable = "avx512f")]
            #[inline]
            unsafe fn words(at: *const i32) -> __m512i {
                // SAFETY: the caller has 16 words there.
                unsafe { _mm512_loadu_si512(at.cast()) }
            }

            #[target_feature(enable = "avx512f")]
            #[inline]
            unsafe fn floats(at: *const f32) -> __m512 {
                // SAFETY: the caller has 16 elements there.
                unsafe { _mm512_loadu_ps(at) }
            }

            #[target_feature(enable = "avx512f")]
            #[inline]
            unsafe fn store(at: *mut f32, values: __m512) {
                // SAFETY: the caller has room for 16 elements there.
                unsafe { _mm512_storeu_ps(at, values) };
            }

            #[target_feature(enable = "avx512f")]
            #[inline]
            fn splat(word: i32) -> __m512i {
                _mm512_set1_epi32(word)
            }

            #[target_feature(enable = $features)]
            #[inline]
            fn add($sum: __m512i, $x: __m512i, $w: __m512i) -> __m512i {
                $add
            }

            #[target_feature(enable = "avx512f")]
            #[inline]
            fn scaled(dw: __m512, dx: f32, sum: __m512i, total: __m512) -> __m512 {
                _mm512_fmadd_ps(_mm512_mul_ps(dw, _mm512_set1_ps(dx)), _mm512_cvtepi32_ps(sum), total)
            }

            passes!($features, 2 x 16 by 1 2 3 4 5 6 7 8 9 10 11 12 13 14);
        }
    };
}

#[cfg(target_arch = "x86_64")]
x86_512!(vnni: "avx512f,avx512bw,avx512vnni", |sum, x, w| _mm512_dpwssd_epi32(sum, x, w));
#[cfg(target_arch = "x86_64")]
x86_512!(avx512: "avx512f,avx512bw", |sum, x, w| _mm512_add_epi32(sum, _mm512_madd_epi16(x, w)));

#[cfg(target_arch = "x86_64")]
mod avx2 {
    use std::arch::x86_64::*;

    use super::Row;

    #[target_feature(enable = "avx2")]
    #[inline]
    fn zero() -> __m256i {
        _mm256_setzero_si256()
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn words(at: *const i32) -> __m256i {
        // SAFETY: the caller has 8 words there.
        unsafe { _mm256_loadu_si256(at.cast()) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn floats(at: *const f32) -> __m256 {
        // SAFETY: the caller has 8 elements there.
        unsafe { _mm256_loadu_ps(at) }
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    unsafe fn store(at: *mut f32, values: __m256) {
        // SAFETY: the caller has room for 8 elements there.
        unsafe { _mm256_storeu_ps(at, values) };
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn splat(word: i32) -> __m256i {
        _mm256_set1_epi32(word)
    }

    #[target_feature(enable = "avx2")]
    #[inline]
    fn add(sum: __m256i, x: __m256i, w: __m256i) -> __m256i {
        _mm256_add_epi32(sum, _mm256_madd_epi16(x, w))
    }

    #[target_feature(enable = "avx2,fma")]
    #[inline]
    fn scaled(dw: __m256, dx: f32, sum: __m256i, total: __m256) -> __m256 {
        _mm256_fmadd_ps(_mm256_mul_ps(dw, _mm256_set1_ps(dx)), _mm256_cvtepi32_ps(sum), total)
    }

    passes!("avx2,fma", 2 x 8 by 1 2 3 4 5 6);

    /// The products of a row with others, in runs of 32: eight runs are summed together.
    #[target_feature(enable = "avx2,fma")]
    pub(super) fn multiply_few(w: Row<'_>, x: &[Row<'_>], out: &mut [f32]) {
        let ((w_values, w_rest), (w_scales, w_last)) = (w.values.as_chunks::<256>(), w.scales.as_chunks::<8>());
        for (to, &x) in out.iter_mut().zip(x) {
            let ((x_values, x_rest), (x_scales, x_last)) = (x.values.as_chunks(), x.scales.as_chunks::<8>());
            let mut total = 0f32;
            for ((dw, dx), (w, x)) in w_scales.iter().zip(x_scales).zip(w_values.iter().zip(x_values)) {
                let [mut factors, mut sums] = [[0f32; 8]; 2];
                // SAFETY: eight elements each; no alignment is needed.
                unsafe {
                    _mm256_storeu_ps(factors.as_mut_ptr(), _mm256_mul_ps(floats(dw.as_ptr()), floats(dx.as_ptr())));
                    _mm256_storeu_ps(sums.as_mut_ptr(), _mm256_cvtepi32_ps(eight(w, x)));
                }
                for i in 0..8 {
                    total = factors[i].mul_add(sums[i], total);
                }
            }
            let (w, x) = (Row { values: w_rest, scales: w_last }, Row { values: x_rest, scales: x_last });
            *to = super::dot::<32, 0>(w, x, total);
        }
    }

    /// The sums of eight runs of 32.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn eight(w: &[i16; 256], x: &[i16; 256]) -> __m256i {
        let (w, x) = (w.as_chunks::<16>().0, x.as_chunks::<16>().0);
        let half = |i: usize| {
            // SAFETY: 32 bytes each; no alignment is needed.
            let [w, x] = [&w[i], &x[i]].map(|row| unsafe { _mm256_loadu_si256(row.as_ptr().cast()) });
            _mm256_madd_epi16(w, x)
        };
        let run = |i: usize| _mm256_add_epi32(half(2 * i), half(2 * i + 1));
        let two = |i: usize| _mm256_hadd_epi32(run(2 * i), run(2 * i + 1));
        let four = |i: usize| _mm256_hadd_epi32(two(2 * i), two(2 * i + 1));
        let (low, high) = (four(0), four(1));
        _mm256_add_epi32(_mm256_permute2x128_si256::<0x20>(low, high), _mm256_permute2x128_si256::<0x31>(low, high))
    }
}

#[cfg(target_arch = "aarch64")]
mod neon {
    use std::arch::aarch64::*;

    /// The sums of pairs of integers are kept apart until the end, for two rows in each register.
    #[target_feature(enable = "neon")]
    #[inline]
    fn zero() -> [int32x4_t; 2] {
        [vdupq_n_s32(0); 2]
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn words(at: *const i32) -> int16x8_t {
        // SAFETY: the caller has 4 words there.
        vreinterpretq_s16_s32(unsafe { vld1q_s32(at) })
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn floats(at: *const f32) -> float32x4_t {
        // SAFETY: the caller has 4 elements there.
        unsafe { vld1q_f32(at) }
    }

    #[target_feature(enable = "neon")]
    #[inline]
    unsafe fn store(at: *mut f32, values: float32x4_t) {
        // SAFETY: the caller has room for 4 elements there.
        unsafe { vst1q_f32(at, values) };
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn splat(word: i32) -> int16x8_t {
        vreinterpretq_s16_s32(vdupq_n_s32(word))
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn add([low, high]: [int32x4_t; 2], x: int16x8_t, w: int16x8_t) -> [int32x4_t; 2] {
        [vmlal_s16(low, vget_low_s16(x), vget_low_s16(w)), vmlal_high_s16(high, x, w)]
    }

    #[target_feature(enable = "neon")]
    #[inline]
    fn scaled(dw: float32x4_t, dx: f32, [low, high]: [int32x4_t; 2], total: float32x4_t) -> float32x4_t {
        vfmaq_f32(total, vmulq_n_f32(dw, dx), vcvtq_f32_s32(vpaddq_s32(low, high)))
    }

    passes!("neon", 2 x 4 by 1 2 3 4);
}
