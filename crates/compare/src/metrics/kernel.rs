//! What does one chunk add up to, as fast as the memory delivers it?
//!
//! One body in sixteen lanes, compiled for three instruction sets. Additions and multiplications are never fused, so all three give the
//! same bits.

use super::moments::Moments;

const LANES: usize = 16;
const PREFETCH_BYTES: usize = 2048;

/// A float that widens to f64.
pub(super) trait Real: Copy + Into<f64> {
    /// Whether both are the same bits.
    fn is_same(self, other: Self) -> bool;
}

impl Real for f32 {
    fn is_same(self, other: Self) -> bool {
        self.to_bits() == other.to_bits()
    }
}

impl Real for f64 {
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

/// The sums of a chunk, on the widest registers there are.
pub(super) fn chunk<T: Real>(reference: &[T], candidate: &[T]) -> Chunk {
    #[cfg(target_arch = "x86_64")]
    {
        if is_x86_feature_detected!("avx512f") {
            // SAFETY: the processor has AVX-512F.
            return unsafe { chunk_avx512(reference, candidate) };
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has AVX2.
            return unsafe { chunk_avx2(reference, candidate) };
        }
    }
    chunk_any(reference, candidate)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn chunk_avx512<T: Real>(reference: &[T], candidate: &[T]) -> Chunk {
    chunk_any(reference, candidate)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn chunk_avx2<T: Real>(reference: &[T], candidate: &[T]) -> Chunk {
    chunk_any(reference, candidate)
}

/// Per-lane running sums, of values shifted near their mean.
#[derive(Clone, Copy)]
struct Lanes {
    shift: (f64, f64),
    diff_squares: [f64; LANES],
    diff_abs: [f64; LANES],
    max: [f64; LANES],
    r: [f64; LANES],
    c: [f64; LANES],
    rr: [f64; LANES],
    cc: [f64; LANES],
    rc: [f64; LANES],
}

#[inline(always)]
fn chunk_any<T: Real>(reference: &[T], candidate: &[T]) -> Chunk {
    if reference.is_empty() {
        return Chunk::default();
    }
    let zero = [0.0; LANES];
    let shift = (shift(reference), shift(candidate));
    let mut lanes =
        Lanes { shift, diff_squares: zero, diff_abs: zero, max: zero, r: zero, c: zero, rr: zero, cc: zero, rc: zero };
    let (r, r_rest) = reference.as_chunks::<LANES>();
    let (c, c_rest) = candidate.as_chunks::<LANES>();
    for (r, c) in r.iter().zip(c) {
        prefetch(r);
        prefetch(c);
        lanes.add(r, c);
    }
    lanes.add_some(r_rest, c_rest);
    lanes.total(reference.len())
}

/// A value no further from the mean than the chunk's spread times √(n/16): sums of squares around it lose next to nothing.
/// For a constant chunk it is that constant, exactly.
#[inline(always)]
fn shift<T: Real>(values: &[T]) -> f64 {
    match values.first_chunk::<LANES>() {
        Some(head) => sum(head.map(Into::into)) / LANES as f64,
        None => values[0].into(),
    }
}

impl Lanes {
    #[inline(always)]
    fn add<T: Real>(&mut self, reference: &[T; LANES], candidate: &[T; LANES]) {
        for i in 0..LANES {
            self.add_at(i, reference[i].into(), candidate[i].into());
        }
    }

    #[inline(always)]
    fn add_some<T: Real>(&mut self, reference: &[T], candidate: &[T]) {
        for (i, (&r, &c)) in reference.iter().zip(candidate).enumerate() {
            self.add_at(i, r.into(), c.into());
        }
    }

    #[inline(always)]
    fn add_at(&mut self, i: usize, r: f64, c: f64) {
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

/// Asks for the cache lines that the loop reaches next. Processors prefetch within a page only, and this loop is busy enough to wait for them:
/// without this it runs at half the memory's speed.
#[inline(always)]
fn prefetch<T>(row: &[T; LANES]) {
    #[cfg(target_arch = "x86_64")]
    for line in (0..size_of_val(row)).step_by(64) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        let ahead = row.as_ptr().wrapping_byte_add(PREFETCH_BYTES + line);
        // SAFETY: a prefetch is a hint, which at any address whatever reads nothing and faults never.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(ahead.cast()) };
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = row;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Every compiled form that this processor can run.
    fn forms<T: Real>(reference: &[T], candidate: &[T]) -> Vec<(&'static str, Chunk)> {
        let mut forms = vec![("any", chunk_any(reference, candidate)), ("detected", chunk(reference, candidate))];
        #[cfg(target_arch = "x86_64")]
        {
            if is_x86_feature_detected!("avx2") {
                // SAFETY: the processor has AVX2.
                forms.push(("avx2", unsafe { chunk_avx2(reference, candidate) }));
            }
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has AVX-512F.
                forms.push(("avx512", unsafe { chunk_avx512(reference, candidate) }));
            }
        }
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
    fn check_forms<T: Real>(reference: &[T], candidate: &[T]) {
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
