//! Checks the streaming metrics against the plain formulas, and that no value that is not finite passes unnoticed.

use firstdiff_compare::metrics::{Metrics, Occurrences, Values};
use half::{bf16, f16};
use proptest::prelude::*;

/// The textbook formulas, in two passes.
struct Naive {
    nmse: f64,
    rmse: f64,
    mean_abs: f64,
    correlation: f64,
    cosine: f64,
    max: f64,
}

fn naive(reference: &[f64], candidate: &[f64]) -> Naive {
    let n = reference.len() as f64;
    let sum = |f: &dyn Fn(f64, f64) -> f64| reference.iter().zip(candidate).map(|(&r, &c)| f(r, c)).sum::<f64>();
    let (r_mean, c_mean) = (sum(&|r, _| r) / n, sum(&|_, c| c) / n);
    let squares = sum(&|r, c| (c - r).powi(2));
    Naive {
        nmse: squares / sum(&|r, _| r * r),
        rmse: (squares / n).sqrt(),
        mean_abs: sum(&|r, c| (c - r).abs()) / n,
        correlation: sum(&|r, c| (r - r_mean) * (c - c_mean))
            / (sum(&|r, _| (r - r_mean).powi(2)) * sum(&|_, c| (c - c_mean).powi(2))).sqrt(),
        cosine: sum(&|r, c| r * c) / (sum(&|r, _| r * r) * sum(&|_, c| c * c)).sqrt(),
        max: reference.iter().zip(candidate).map(|(r, c)| (c - r).abs()).fold(0.0, f64::max),
    }
}

fn widen(values: &[f32]) -> Vec<f64> {
    values.iter().copied().map(f64::from).collect()
}

/// A fixed pseudo-random sequence in (-1, 1), for lengths at which proptest is slow.
fn noise(seed: u64, len: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..len).map(|_| next()).collect()
}

#[track_caller]
fn assert_near(what: &str, got: f64, expected: f64, relative: f64) {
    assert!((got - expected).abs() <= relative * expected.abs(), "{what}: {got:e}, expected {expected:e}");
}

#[track_caller]
fn assert_same(got: &Metrics, expected: &Metrics) {
    assert_eq!(
        (got.len(), got.compared(), got.non_finite()),
        (expected.len(), expected.compared(), expected.non_finite())
    );
    assert_eq!((got.is_equal(), got.is_identical()), (expected.is_equal(), expected.is_identical()));
    assert_eq!(got.finite_part().max_abs_diff(), expected.finite_part().max_abs_diff());
    let (got, expected) = (got.finite_part(), expected.finite_part());
    type Measure = (&'static str, fn(&Metrics) -> Option<f64>, f64);
    let measures: [Measure; 5] = [
        ("nmse", Metrics::nmse, 1e-12),
        ("rmse", Metrics::rmse, 1e-12),
        ("mean", Metrics::mean_abs_diff, 1e-12),
        ("reference", Metrics::reference_rms, 1e-12),
        ("candidate", Metrics::candidate_rms, 1e-12),
    ];
    for (what, measure, relative) in measures {
        match (measure(&got), measure(&expected)) {
            (Some(got), Some(expected)) => assert_near(what, got, expected, relative),
            (got, expected) => assert_eq!(got, expected, "{what}"),
        }
    }
}

fn pairs(len: impl Into<prop::collection::SizeRange>) -> impl Strategy<Value = Vec<(f32, f32)>> {
    prop::collection::vec((-100f32..100.0, -100f32..100.0), len)
}

/// Any bit pattern, often a NaN, an infinity, a subnormal number or a zero of either sign.
fn any_pairs() -> impl Strategy<Value = Vec<(f32, f32)>> {
    let value = prop_oneof![
        4 => -10f32..10.0,
        1 => any::<u32>().prop_map(f32::from_bits),
        1 => prop::sample::select(vec![0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-45, f32::MAX]),
    ];
    prop::collection::vec((value.clone(), value), 0..200)
}

proptest! {
    #[test]
    fn agrees_with_the_plain_formulas(pairs in pairs(2..400)) {
        let (r, c): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let metrics = Metrics::measure_f32(&r, &c);
        let expected = naive(&widen(&r), &widen(&c));
        prop_assume!(expected.correlation.is_finite() && expected.nmse.is_finite());
        assert_near("nmse", metrics.nmse().unwrap(), expected.nmse, 1e-12);
        assert_near("rmse", metrics.rmse().unwrap(), expected.rmse, 1e-12);
        assert_near("mean", metrics.mean_abs_diff().unwrap(), expected.mean_abs, 1e-12);
        prop_assert!((metrics.correlation().unwrap() - expected.correlation).abs() < 1e-12);
        prop_assert!((metrics.cosine().unwrap() - expected.cosine).abs() < 1e-12);
        let peak = metrics.max_abs_diff().unwrap();
        prop_assert_eq!(peak.abs_diff, expected.max);
        let first = r.iter().zip(&c).position(|(r, c)| (f64::from(*c) - f64::from(*r)).abs() == expected.max);
        prop_assert_eq!(Some(peak.index), first);
        prop_assert_eq!((peak.reference, peak.candidate), (f64::from(r[peak.index]), f64::from(c[peak.index])));
    }

    #[test]
    fn any_split_merges_to_the_whole(pairs in any_pairs(), at in 0.0f64..=1.0) {
        let (r, c): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let at = (at * r.len() as f64) as usize;
        let merged = Metrics::measure_f32(&r[..at], &c[..at]).merge(Metrics::measure_f32(&r[at..], &c[at..]));
        assert_same(&merged, &Metrics::measure_f32(&r, &c));
    }

    #[test]
    fn every_pair_is_counted_once(pairs in any_pairs()) {
        let (r, c): (Vec<f32>, Vec<f32>) = pairs.iter().copied().unzip();
        let metrics = Metrics::measure_f32(&r, &c);
        let tally = |is: &dyn Fn(f32, f32) -> bool| Occurrences {
            count: pairs.iter().filter(|(r, c)| is(*r, *c)).count(),
            first: pairs.iter().position(|(r, c)| is(*r, *c)),
        };
        let found = metrics.non_finite();
        prop_assert_eq!(found.nan_reference, tally(&|r, _| r.is_nan()));
        prop_assert_eq!(found.nan_candidate, tally(&|_, c| c.is_nan()));
        prop_assert_eq!(found.inf_reference, tally(&|r, c| r.is_infinite() && c.is_finite()));
        prop_assert_eq!(found.inf_candidate, tally(&|r, c| r.is_finite() && c.is_infinite()));
        prop_assert_eq!(found.inf_sign, tally(&|r, c| r.is_infinite() && c.is_infinite() && r != c));
        prop_assert_eq!(found.inf_equal, tally(&|r, c| r.is_infinite() && r == c));
        prop_assert_eq!(metrics.compared(), tally(&|r, c| r.is_finite() && c.is_finite()).count);
        let agree = tally(&|r, c| r == c).count == pairs.len() && !pairs.is_empty();
        prop_assert_eq!(metrics.is_equal(), agree);
        prop_assert_eq!(metrics.nmse() == Some(0.0), agree);
        let same = tally(&|r, c| !r.is_nan() && r.to_bits() == c.to_bits()).count == pairs.len() && !pairs.is_empty();
        prop_assert_eq!(metrics.is_identical(), same);
        prop_assert_eq!(metrics.is_finite(), found.disagreeing() == 0);
        if !metrics.is_finite() {
            prop_assert_eq!((metrics.nmse(), metrics.rmse(), metrics.correlation(), metrics.cosine()), (None, None, None, None));
            prop_assert_eq!((metrics.mean_abs_diff(), metrics.max_abs_diff(), metrics.best_factor()), (None, None, None));
        }
    }

    #[test]
    fn every_type_is_compared_by_its_values(pairs in pairs(1..100)) {
        let (r, c): (Vec<f32>, Vec<f32>) = pairs.into_iter().unzip();
        let r_bf16: Vec<bf16> = r.iter().copied().map(bf16::from_f32).collect();
        let c_f16: Vec<f16> = c.iter().copied().map(f16::from_f32).collect();
        let (r_f32, c_f32): (Vec<f32>, Vec<f32>) = (r_bf16.iter().map(|x| x.to_f32()).collect(), c_f16.iter().map(|x| x.to_f32()).collect());
        let (r_f64, c_f64) = (widen(&r_f32), widen(&c_f32));
        let expected = Metrics::measure_f32(&r_f32, &c_f32);
        for reference in [Values::F32(&r_f32), Values::F64(&r_f64), Values::BF16(&r_bf16)] {
            for candidate in [Values::F32(&c_f32), Values::F64(&c_f64), Values::F16(&c_f16)] {
                prop_assert_eq!(Metrics::measure(reference, candidate), expected);
            }
            prop_assert!(Metrics::measure(reference, Values::F32(&r_f32)).is_identical());
        }
    }
}

#[test]
fn threads_change_no_bit() {
    for len in [0, 1, 16_383, 16_385, (1 << 20) + 1, (3 << 20) + 12_345] {
        let (r, mut c) = (noise(1, len), noise(2, len));
        if len > 2 << 20 {
            (c[17], c[(1 << 20) + 5], c[len - 1]) = (f32::NAN, f32::INFINITY, 40.0);
        }
        let on = |threads| {
            let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
            pool.install(|| format!("{:?}", Metrics::measure_f32(&r, &c)))
        };
        assert_eq!(on(1), on(2), "{len} values");
        assert_eq!(on(1), on(3), "{len} values");
    }
}

#[test]
fn long_sequences_agree_with_the_plain_formulas_from_any_start() {
    let (r, c) = (noise(3, 2_100_003), noise(4, 2_100_003));
    for skip in [0, 1, 3, 16_384] {
        let (r, c) = (&r[skip..], &c[skip..]);
        let (metrics, expected) = (Metrics::measure_f32(r, c), naive(&widen(r), &widen(c)));
        assert_near("nmse", metrics.nmse().unwrap(), expected.nmse, 1e-11);
        assert!((metrics.correlation().unwrap() - expected.correlation).abs() < 1e-12);
        let peak = metrics.max_abs_diff().unwrap();
        assert_eq!(peak.abs_diff, expected.max);
        assert_eq!(
            Some(peak.index),
            r.iter().zip(c).position(|(r, c)| (f64::from(*c) - f64::from(*r)).abs() == expected.max)
        );
        let cut = 1_234_567;
        assert_same(
            &Metrics::measure_f32(&r[..cut], &c[..cut]).merge(Metrics::measure_f32(&r[cut..], &c[cut..])),
            &metrics,
        );
    }
}

#[test]
fn a_large_common_offset_leaves_the_correlation_right() {
    // Multiples of 1/1024 around 1e4 are f32 values, and 2^-10-spaced integers make the expected value exact.
    let len = 100_003;
    let steps = |seed| -> Vec<i64> { noise(seed, len).into_iter().map(|x| (x * 8.0) as i64).collect() };
    let (x, y) = (steps(5), steps(6));
    let mixed: Vec<i64> = x.iter().zip(&y).map(|(x, y)| x + y).collect();
    let values = |steps: &[i64]| -> Vec<f32> { steps.iter().map(|&s| 1e4 + s as f32 / 1024.0).collect() };
    let sum = |f: &dyn Fn(usize) -> i64| (0..len).map(f).sum::<i64>();
    let n = len as i64;
    let (sx, sm) = (sum(&|i| x[i]), sum(&|i| mixed[i]));
    let co = n * sum(&|i| x[i] * mixed[i]) - sx * sm;
    let (vx, vm) = (n * sum(&|i| x[i] * x[i]) - sx * sx, n * sum(&|i| mixed[i] * mixed[i]) - sm * sm);
    let expected = co as f64 / ((vx as f64).sqrt() * (vm as f64).sqrt());
    let correlation = Metrics::measure_f32(&values(&x), &values(&mixed)).correlation().unwrap();
    assert!((correlation - expected).abs() < 1e-9, "{correlation} {expected}");
    // The chunk's first value is the worst possible shift: an outlier there.
    let mut with_outlier = noise(7, len);
    with_outlier[0] = 1e8;
    let c = noise(8, len);
    // The plain sums meet it last: behind 1e16 they would lose the rest.
    let reversed = |values: &[f32]| -> Vec<f64> { widen(values).into_iter().rev().collect() };
    let expected = naive(&reversed(&with_outlier), &reversed(&c));
    let metrics = Metrics::measure_f32(&with_outlier, &c);
    assert!((metrics.correlation().unwrap() - expected.correlation).abs() < 1e-9);
    assert_near("nmse", metrics.nmse().unwrap(), expected.nmse, 1e-12);
}

#[test]
fn constants_have_no_correlation() {
    let len = 40_000;
    for value in [0.0f32, 0.1, -7.7e5] {
        let (constant, c) = (vec![value; len], noise(9, len));
        assert_eq!(Metrics::measure_f32(&constant, &c).correlation(), None);
        assert_eq!(Metrics::measure_f32(&c, &constant).correlation(), None);
    }
}

#[test]
fn a_zero_reference_is_never_divided_by() {
    let (zero, c) = (vec![0.0f32; 50], noise(10, 50));
    let metrics = Metrics::measure_f32(&zero, &c);
    assert_eq!((metrics.nmse(), metrics.cosine(), metrics.best_factor()), (None, None, None));
    assert!(metrics.rmse().unwrap() > 0.0 && !metrics.is_equal());
    let both = Metrics::measure_f32(&zero, &zero);
    assert_eq!((both.nmse(), both.rmse(), both.cosine()), (Some(0.0), Some(0.0), None));
    assert!(both.is_identical());
    let candidate = Metrics::measure_f32(&c, &zero);
    assert_near("nmse", candidate.nmse().unwrap(), 1.0, 1e-15);
    assert_eq!((candidate.cosine(), candidate.best_factor()), (None, None));
}

#[test]
fn nothing_agrees_with_nothing() {
    let metrics = Metrics::measure_f32(&[], &[]);
    assert!(!metrics.is_equal() && !metrics.is_identical() && metrics.is_empty());
    assert_eq!(
        (metrics.nmse(), metrics.rmse(), metrics.correlation(), metrics.max_abs_diff()),
        (None, None, None, None)
    );
    let one = Metrics::measure_f32(&[2.0], &[2.5]);
    assert_eq!(metrics.merge(one), one);
    assert_eq!(one.merge(metrics), one);
}

#[test]
fn zeros_of_both_signs_are_equal_but_not_identical() {
    let metrics = Metrics::measure_f32(&[0.0, 1.0], &[-0.0, 1.0]);
    assert!(metrics.is_equal() && !metrics.is_identical());
    assert_eq!(metrics.nmse(), Some(0.0));
}

#[test]
fn a_nan_anywhere_takes_every_measure_away() {
    for len in [1usize, 16, 17, 16_384, 40_000] {
        for at in [0, len / 2, len - 1] {
            let r = noise(11, len);
            let mut c = r.clone();
            c[at] = f32::NAN;
            for (metrics, both) in [
                (Metrics::measure_f32(&r, &c), false),
                (Metrics::measure_f32(&c, &r), false),
                (Metrics::measure_f32(&c, &c), true),
            ] {
                assert!(!metrics.is_equal() && !metrics.is_identical() && !metrics.is_finite());
                assert_eq!((metrics.nmse(), metrics.max_abs_diff()), (None, None));
                assert_eq!(metrics.non_finite().disagreeing(), if both { 2 } else { 1 });
                assert_eq!(metrics.non_finite().first_disagreeing(), Some(at));
                assert_eq!(metrics.finite_part().nmse(), (len > 1).then_some(0.0));
            }
        }
    }
    let all = vec![f32::NAN; 33];
    assert_eq!(Metrics::measure_f32(&all, &all).nmse(), None);
}

#[test]
fn masked_scores_agree_where_both_are_minus_infinity() {
    let (r, noise) = (noise(12, 1000), noise(13, 1000));
    let mask = |values: &[f32]| -> Vec<f32> {
        values.iter().enumerate().map(|(i, &x)| if i % 3 == 0 { f32::NEG_INFINITY } else { x }).collect()
    };
    let masked = Metrics::measure_f32(&mask(&r), &mask(&noise));
    let kept = |values: &[f32]| -> Vec<f32> {
        values.iter().enumerate().filter(|(i, _)| i % 3 != 0).map(|(_, &x)| x).collect()
    };
    assert!(masked.is_finite());
    assert_eq!(masked.nmse(), Metrics::measure_f32(&kept(&r), &kept(&noise)).nmse());
    assert_eq!(masked.non_finite().inf_equal, Occurrences { count: 334, first: Some(0) });
    let peak = masked.max_abs_diff().unwrap();
    assert_eq!((peak.reference, peak.candidate), (f64::from(r[peak.index]), f64::from(noise[peak.index])));
    let mut flipped = mask(&noise);
    flipped[3] = f32::INFINITY;
    let metrics = Metrics::measure_f32(&mask(&r), &flipped);
    assert_eq!((metrics.nmse(), metrics.non_finite().inf_sign), (None, Occurrences { count: 1, first: Some(3) }));
    assert!(Metrics::measure_f32(&mask(&r), &mask(&r)).is_identical());
    assert_eq!(Metrics::measure_f32(&[f32::INFINITY; 5], &[f32::INFINITY; 5]).nmse(), Some(0.0));
}

#[test]
fn denormals_and_huge_f32_values_are_in_range() {
    let units = |n: [u32; 3]| n.map(f32::from_bits);
    let metrics = Metrics::measure_f32(&units([1, 0, 2]), &units([2, 0, 2]));
    assert_near("nmse", metrics.nmse().unwrap(), 1.0 / 5.0, 1e-12);
    let metrics = Metrics::measure_f32(&[f32::MAX, 0.0], &[-f32::MAX, 0.0]);
    assert_near("nmse", metrics.nmse().unwrap(), 4.0, 1e-12);
    assert_near("correlation", metrics.correlation().unwrap(), -1.0, 1e-12);
}

#[test]
fn f64_values_out_of_range_are_never_agreement() {
    for (r, c) in [
        (vec![1e300, 2e300], vec![1e300, -2e300]),
        (vec![1e300, 2e300], vec![-1e300, 2e300]),
        (vec![1e-200, 1.5e-200], vec![2e-200, 1.5e-200]),
        (vec![1e308, 1e308], vec![-1e308, 1e308]),
        (vec![1.0, 1e300], vec![1.0, 1.1e300]),
        (vec![1e-161, 1e-161], vec![1.1e-161, 1e-161]),
    ] {
        let metrics = Metrics::measure_f64(&r, &c);
        assert!(
            metrics.nmse().is_none() && metrics.correlation().is_none() && metrics.cosine().is_none(),
            "{r:?} {c:?} {metrics:?}"
        );
        assert!(!metrics.is_equal() && metrics.is_finite());
        assert!(metrics.max_abs_diff().unwrap().abs_diff > 0.0);
        assert!(Metrics::measure_f64(&r, &r).is_identical());
        assert_eq!(Metrics::measure_f64(&r, &r).nmse(), Some(0.0));
    }
    let unlike = Metrics::measure_f64(&[1.0, 1.0 + f64::EPSILON], &[1.0, 1.0]);
    assert!(unlike.nmse().unwrap() > 0.0);
}

#[test]
fn the_best_factor_is_found_and_divided_out() {
    let len = 30_000;
    let (r, other) = (noise(14, len), noise(15, len));
    for factor in [1.01f32, 0.99, 8.0, 0.088_388_346, -1.0, 1e-3, 250.0] {
        let c: Vec<f64> = r.iter().map(|&r| f64::from(r) * f64::from(factor)).collect();
        let best = Metrics::measure_f64(&widen(&r), &c).best_factor().unwrap();
        assert_near("factor", best.factor, factor.into(), 1e-12);
        assert!(best.remaining_nmse < 1e-13, "{factor}: {}", best.remaining_nmse);
        // With noise on top: after dividing the factor out, the noise remains.
        let noisy: Vec<f64> = c.iter().zip(&other).map(|(c, &o)| c * (1.0 + 0.01 * f64::from(o))).collect();
        let best = Metrics::measure_f64(&widen(&r), &noisy).best_factor().unwrap();
        let divided: Vec<f64> = noisy.iter().map(|c| c / best.factor).collect();
        assert_near("remaining", best.remaining_nmse, naive(&widen(&r), &divided).nmse, 1e-9);
    }
    let equal = Metrics::measure_f32(&r, &r).best_factor().unwrap();
    assert_eq!((equal.factor, equal.remaining_nmse), (1.0, 0.0));
}

#[test]
#[should_panic(expected = "one length")]
fn sequences_of_two_lengths_are_refused() {
    Metrics::measure_f32(&[1.0], &[1.0, 2.0]);
}
