//! Computes the sums of one chunk at the speed of memory.
//!
//! One body in sixteen lanes, written out for the registers of AVX2 and AVX-512, because compilers do not keep its sums in them. Additions and
//! multiplications are never fused, so all forms give the same bits.

use firstdiff_simd::Level;

use super::moments::Moments;

const LANES: usize = 16;
/// Rows of [`LANES`] values that are added up one group of lanes after the other: they stay in the first-level cache meanwhile.
const ROWS: usize = 8;
#[cfg(target_arch = "x86_64")]
const PREFETCH_BYTES: usize = 4096;

/// A float that widens to f64.
pub(super) trait Float: Copy + Into<f64> {
    /// Whether it is an f64; else an f32.
    #[cfg(target_arch = "x86_64")]
    const IS_F64: bool;

    /// Whether both have the same bits.
    fn is_same(self, other: Self) -> bool;
}

impl Float for f32 {
    #[cfg(target_arch = "x86_64")]
    const IS_F64: bool = false;

    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

impl Float for f64 {
    #[cfg(target_arch = "x86_64")]
    const IS_F64: bool = true;

    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

/// The sums of a chunk and its largest |c-r|. With a NaN or an infinity in the chunk they are not finite.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct Chunk {
    pub(super) moments: Moments,
    pub(super) max: f64,
}

impl Chunk {
    /// Whether every value in the chunk was finite and nothing overflowed.
    pub(super) fn is_finite(&self) -> bool {
        // A value that is not finite makes its own mean so; an overflow shows in its variation or in the differences.
        let m = &self.moments;
        [
            m.diff_squares,
            m.diff_abs,
            m.reference_mean,
            m.candidate_mean,
            m.reference_variation,
            m.candidate_variation,
            m.co_variation,
            self.max,
        ]
        .iter()
        .all(|sum| sum.is_finite())
    }
}

/// The sums of a chunk, computed in the widest registers of this processor.
pub(super) fn chunk<T: Float>(reference: &[T], candidate: &[T]) -> Chunk {
    chunk_at(Level::best(), reference, candidate)
}

fn chunk_at<T: Float>(level: Level, reference: &[T], candidate: &[T]) -> Chunk {
    assert!(level.is_available(), "this processor lacks the instructions of {level:?}");
    match level {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 | Level::Vnni => chunk_by::<T, 8>(reference, candidate, |r, c, from, all| {
            // SAFETY: the processor has AVX-512.
            unsafe { avx512(r, c, from, all) }
        }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => chunk_by::<T, 4>(reference, candidate, |r, c, from, all| {
            // SAFETY: the processor has AVX2.
            unsafe { avx2(r, c, from, all) }
        }),
        _ => chunk_by::<T, 4>(reference, candidate, add_group::<T, 4>),
    }
}

/// Adds some rows to the lanes of one register, beginning at lane `from`: like [`add_group`], but with the sums in registers throughout. Not inlined: in one
/// merged loop the groups' sums would not stay in registers.
#[cfg(target_arch = "x86_64")]
macro_rules! add_group_with {
    ($name:ident, $features:literal, $lanes:literal, $load:ident, $store:ident, $set:ident, $add:ident, $sub:ident, $mul:ident, $max:ident, $abs:expr, $widened:expr) => {
        #[target_feature(enable = $features)]
        #[inline(never)]
        fn $name<T: Float>(r: &[[T; LANES]], c: &[[T; LANES]], from: usize, all: &mut Lanes<LANES>) {
            use std::arch::x86_64::*;
            // At most LANES - $lanes, which spares the loop a check.
            let from = from & (LANES - $lanes);
            let shift = ($set(all.shift.0), $set(all.shift.1));
            // SAFETY: lanes of one register, of sixteen, from `from` on.
            let mut sums = all.sums().map(|lanes| unsafe { $load(lanes[from..from + $lanes].as_ptr()) });
            let [diff_squares, diff_abs, max, sum_r, sum_c, rr, cc, rc] = &mut sums;
            for (r, c) in r.iter().zip(c) {
                if from == 0 {
                    prefetch_next(r);
                    prefetch_next(c);
                }
                let at = (r[from..from + $lanes].as_ptr(), c[from..from + $lanes].as_ptr());
                // SAFETY: values of one register, of the type that T says it is.
                let (r, c) = unsafe {
                    match T::IS_F64 {
                        true => ($load(at.0.cast()), $load(at.1.cast())),
                        false => ($widened(at.0.cast()), $widened(at.1.cast())),
                    }
                };
                let d = $sub(c, r);
                let abs = $abs(d);
                *diff_squares = $add(*diff_squares, $mul(d, d));
                *diff_abs = $add(*diff_abs, abs);
                // The second where the first is not larger, NaN included.
                *max = $max(abs, *max);
                let (r, c) = ($sub(r, shift.0), $sub(c, shift.1));
                *sum_r = $add(*sum_r, r);
                *sum_c = $add(*sum_c, c);
                *rr = $add(*rr, $mul(r, r));
                *cc = $add(*cc, $mul(c, c));
                *rc = $add(*rc, $mul(r, c));
            }
            for (lanes, sum) in all.sums_mut().into_iter().zip(sums) {
                // SAFETY: as above.
                unsafe { $store(lanes[from..from + $lanes].as_mut_ptr(), sum) };
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
add_group_with!(
    avx2,
    "avx2",
    4,
    _mm256_loadu_pd,
    _mm256_storeu_pd,
    _mm256_set1_pd,
    _mm256_add_pd,
    _mm256_sub_pd,
    _mm256_mul_pd,
    _mm256_max_pd,
    |d| _mm256_andnot_pd(_mm256_set1_pd(-0.0), d),
    |at| _mm256_cvtps_pd(_mm_loadu_ps(at))
);
#[cfg(target_arch = "x86_64")]
add_group_with!(
    avx512,
    "avx512f",
    8,
    _mm512_loadu_pd,
    _mm512_storeu_pd,
    _mm512_set1_pd,
    _mm512_add_pd,
    _mm512_sub_pd,
    _mm512_mul_pd,
    _mm512_max_pd,
    |d| _mm512_abs_pd(d),
    |at| _mm512_cvtps_pd(_mm256_loadu_ps(at))
);

/// Running sums of N lanes, of values shifted near their mean.
#[derive(Clone, Copy)]
struct Lanes<const N: usize> {
    shift: (f64, f64),
    diff_squares: [f64; N],
    diff_abs: [f64; N],
    max: [f64; N],
    r: [f64; N],
    c: [f64; N],
    rr: [f64; N],
    cc: [f64; N],
    rc: [f64; N],
}

/// The sums of a chunk. `add` adds GROUP lanes of some rows: as many lanes as have all their sums in registers.
#[inline(always)]
fn chunk_by<T: Float, const GROUP: usize>(
    reference: &[T],
    candidate: &[T],
    add: impl Fn(&[[T; LANES]], &[[T; LANES]], usize, &mut Lanes<LANES>),
) -> Chunk {
    if reference.is_empty() {
        return Chunk::default();
    }
    let mut lanes = Lanes::<LANES>::new((shift(reference), shift(candidate)));
    let (r, r_rest) = reference.as_chunks::<LANES>();
    let (c, c_rest) = candidate.as_chunks::<LANES>();
    for (r, c) in r.chunks(ROWS).zip(c.chunks(ROWS)) {
        (0..LANES).step_by(GROUP).for_each(|from| add(r, c, from, &mut lanes));
    }
    for (i, (&r, &c)) in r_rest.iter().zip(c_rest).enumerate() {
        lanes.add(i, r.into(), c.into());
    }
    lanes.total(reference.len())
}

/// Adds GROUP lanes, from lane `from` on, of some rows.
#[inline(always)]
fn add_group<T: Float, const GROUP: usize>(r: &[[T; LANES]], c: &[[T; LANES]], from: usize, all: &mut Lanes<LANES>) {
    let mut group: Lanes<GROUP> = all.group(from);
    for (r, c) in r.iter().zip(c) {
        for i in 0..GROUP {
            group.add(i, r[from + i].into(), c[from + i].into());
        }
    }
    all.set_group(from, &group);
}

/// A value no further from the mean than the chunk's spread times √(n/16): sums of squares around it lose almost no precision. For a constant chunk it is
/// exactly that constant.
#[inline(always)]
fn shift<T: Float>(values: &[T]) -> f64 {
    match values.first_chunk::<LANES>() {
        Some(head) => sum(head.map(Into::into)) / LANES as f64,
        None => values[0].into(),
    }
}

impl<const N: usize> Lanes<N> {
    #[inline(always)]
    fn new(shift: (f64, f64)) -> Self {
        let zero = [0.0; N];
        Lanes { shift, diff_squares: zero, diff_abs: zero, max: zero, r: zero, c: zero, rr: zero, cc: zero, rc: zero }
    }

    #[inline(always)]
    fn sums(&self) -> [&[f64; N]; 8] {
        [&self.diff_squares, &self.diff_abs, &self.max, &self.r, &self.c, &self.rr, &self.cc, &self.rc]
    }

    #[inline(always)]
    fn sums_mut(&mut self) -> [&mut [f64; N]; 8] {
        [
            &mut self.diff_squares,
            &mut self.diff_abs,
            &mut self.max,
            &mut self.r,
            &mut self.c,
            &mut self.rr,
            &mut self.cc,
            &mut self.rc,
        ]
    }

    /// Lanes from `from` on.
    #[inline(always)]
    fn group<const M: usize>(&self, from: usize) -> Lanes<M> {
        let mut group = Lanes::new(self.shift);
        for (to, all) in group.sums_mut().into_iter().zip(self.sums()) {
            to.copy_from_slice(&all[from..from + M]);
        }
        group
    }

    #[inline(always)]
    fn set_group<const M: usize>(&mut self, from: usize, group: &Lanes<M>) {
        for (all, part) in self.sums_mut().into_iter().zip(group.sums()) {
            all[from..from + M].copy_from_slice(part);
        }
    }

    #[inline(always)]
    fn add(&mut self, i: usize, r: f64, c: f64) {
        let d = c - r;
        let abs = d.abs();
        self.diff_squares[i] += d * d;
        self.diff_abs[i] += abs;
        self.max[i] = if abs > self.max[i] { abs } else { self.max[i] };
        let r = r - self.shift.0;
        let c = c - self.shift.1;
        self.r[i] += r;
        self.c[i] += c;
        self.rr[i] += r * r;
        self.cc[i] += c * c;
        self.rc[i] += r * c;
    }
}

impl Lanes<LANES> {
    fn total(&self, n: usize) -> Chunk {
        let count = n as f64;
        let (r, c) = (sum(self.r), sum(self.c));
        let moments = Moments {
            n,
            diff_squares: sum(self.diff_squares),
            diff_abs: sum(self.diff_abs),
            reference_mean: self.shift.0 + r / count,
            candidate_mean: self.shift.1 + c / count,
            reference_variation: not_negative(sum(self.rr) - r * (r / count)),
            candidate_variation: not_negative(sum(self.cc) - c * (c / count)),
            co_variation: sum(self.rc) - r * (c / count),
        };
        Chunk { moments, max: self.max.into_iter().fold(0.0, f64::max) }
    }
}

/// Rounding may leave a variation just below zero; NaN stays.
fn not_negative(x: f64) -> f64 {
    if x < 0.0 { 0.0 } else { x }
}

/// The sum of all lanes, halves added pairwise.
#[inline(always)]
fn sum(lanes: [f64; LANES]) -> f64 {
    let [sum] = halve::<2, 1>(halve::<4, 2>(halve::<8, 4>(halve::<16, 8>(lanes))));
    sum
}

#[inline(always)]
fn halve<const N: usize, const HALF: usize>(x: [f64; N]) -> [f64; HALF] {
    std::array::from_fn(|i| x[i] + x[i + HALF])
}

/// Prefetches the cache lines that the loop reaches next. Without this the loop waits for them, and runs at half the memory's speed.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_next<T>(row: &[T; LANES]) {
    for line in (0..size_of_val(row)).step_by(64) {
        firstdiff_simd::prefetch(row.as_ptr().wrapping_byte_add(PREFETCH_BYTES + line));
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every compiled form that this processor can run.
    fn forms<T: Float>(reference: &[T], candidate: &[T]) -> Vec<(&'static str, Chunk)> {
        let mut forms = vec![("all lanes at once", chunk_by::<T, LANES>(reference, candidate, add_group::<T, LANES>))];
        forms.extend(Level::available().into_iter().map(|level| (level.name(), chunk_at(level, reference, candidate))));
        forms
    }

    fn bits(chunk: &Chunk) -> [u64; 9] {
        let m = &chunk.moments;
        let sums = [
            m.diff_squares,
            m.diff_abs,
            m.reference_mean,
            m.candidate_mean,
            m.reference_variation,
            m.candidate_variation,
            m.co_variation,
        ];
        let [a, b, c, d, e, f, g] = sums.map(f64::to_bits);
        [m.n as u64, a, b, c, d, e, f, g, chunk.max.to_bits()]
    }

    #[track_caller]
    fn check_forms<T: Float>(reference: &[T], candidate: &[T]) {
        let forms = forms(reference, candidate);
        for (name, chunk) in &forms[1..] {
            assert_eq!(bits(chunk), bits(&forms[0].1), "{name} against any, {} values", reference.len());
        }
    }

    proptest! {
        #[test]
        fn all_instruction_sets_give_the_same_bits(
            pairs in prop::collection::vec((-1e6f32..1e6, -1e6f32..1e6), 0..300),
            skip in 0usize..17,
            scale in prop::sample::select(vec![1e-40f64, 1e-6, 1.0, 1e30]),
        ) {
            let skip = skip.min(pairs.len());
            let (r, c): (Vec<f32>, Vec<f32>) = pairs.iter().map(|&(r, c)| ((f64::from(r) * scale) as f32, (f64::from(c) * scale) as f32)).unzip();
            check_forms(&r[skip..], &c[skip..]);
            let (r, c): (Vec<f64>, Vec<f64>) = pairs.iter().map(|&(r, c)| (f64::from(r) * scale / 3.0, f64::from(c) * scale / 7.0)).unzip();
            check_forms(&r[skip..], &c[skip..]);
        }
    }

    #[test]
    fn a_value_that_is_not_finite_shows_wherever_it_is() {
        for len in [1, 15, 16, 17, 31, 32, 48, 1000] {
            for at in 0..len {
                for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let fine = vec![1.5f32; len];
                    let mut spoiled = fine.clone();
                    spoiled[at] = bad;
                    for (reference, candidate) in [(&fine, &spoiled), (&spoiled, &fine), (&spoiled, &spoiled)] {
                        for (name, chunk) in forms(reference, candidate) {
                            assert!(!chunk.is_finite(), "{name}: {bad} at {at} of {len}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_constant_varies_by_exactly_nothing() {
        for len in [1, 3, 16, 19, 100] {
            for value in [0.1f32, -3.3e7, 1e-45] {
                let chunk = chunk(&vec![value; len], &vec![value * 3.0; len]);
                assert_eq!((chunk.moments.reference_variation, chunk.moments.candidate_variation), (0.0, 0.0));
            }
        }
    }
}
