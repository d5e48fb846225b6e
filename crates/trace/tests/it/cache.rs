//! Checks the rounding of keys and values to the types of a K/V cache.

use firstdiff_trace::{Cache, F8};
use half::f16;

fn heads() -> Vec<f64> {
    (0..200u32).map(|i| f64::from((i * 37 % 101) as f32 * 0.0731 - 3.3)).collect()
}

#[test]
fn rounding_twice_changes_nothing_and_moves_by_half_a_step_at_most() {
    for cache in Cache::ALL {
        for width in [40, 50, 100] {
            let x = heads();
            let mut once = x.clone();
            cache.round(&mut once, width);
            let mut twice = once.clone();
            cache.round(&mut twice, width);
            assert_eq!(once, twice, "{cache}");
            let steps = cache.half_steps(&x, width);
            for ((x, y), half) in x.iter().zip(&once).zip(&steps) {
                assert!((x - y).abs() <= *half * (1.0 + 1e-6), "{cache}: {x} became {y}, half a step is {half}");
            }
            assert_eq!(cache == Cache::F32, x == once);
        }
    }
}

#[test]
fn blocks_do_not_cross_heads() {
    let mut x = vec![1.0; 64];
    x[32..].fill(127.0);
    x[40] = 0.4;
    let mut of_64 = x.clone();
    Cache::Q8_0.round(&mut of_64, 64);
    assert_eq!((of_64[0], of_64[40]), (f64::from(f16::from_f32(1.0 / 127.0).to_f32()) * 127.0, 0.0));
    let mut of_16 = vec![1.0; 16];
    of_16.extend([100.0; 16]);
    Cache::Q8_0.round(&mut of_16, 16);
    assert!((of_16[0] - 1.0).abs() < 1e-3);
}

#[test]
fn numbers_of_8_bits_are_pytorchs() {
    // torch.tensor(x).to(torch.float8_e4m3fn)
    let mut x = [1.05, 1.0625, 1.1875, -3.3, 0.0011, 0.0, -447.9, 1e4, f64::NAN];
    Cache::E4m3.round(&mut x, 3);
    // PyTorch turns larger numbers into NaN; the cache clamps them.
    assert_eq!(x[..8], [1.0, 1.0, 1.25, -3.25, 0.001953125, 0.0, -448.0, 448.0]);
    assert!(x[8].is_nan());
}

#[test]
fn names_round_trip() {
    for cache in Cache::ALL {
        assert_eq!(cache.name().parse(), Ok(cache));
    }
    assert!("q4_0".parse::<Cache>().is_err());
}

#[test]
fn floats_of_eight_bits_are_pytorchs() {
    // torch.tensor(x).to(torch.float8_e4m3fn) and .to(torch.float8_e5m2)
    let x = [448.0, 464.0, 3.3, 17.0, 18.0, 0.000_976_562_5, 0.0137, -0.3, 0.015, 0.017_578_125];
    let e4m3 = [448.0, 448.0, 3.25, 16.0, 18.0, 0.0, 0.013_671_875, -0.3125, 0.015_625, 0.017_578_125];
    let e5m2 = [448.0, 448.0, 3.5, 16.0, 16.0, 0.000_976_562_5, 0.013_671_875, -0.3125, 0.015_625, 0.015_625];
    assert_eq!((x.map(|x| F8::E4m3.nearest(x)), x.map(|x| F8::E5m2.nearest(x))), (e4m3, e5m2));
    assert!([465.0, 1e9, f64::INFINITY, f64::NAN].iter().all(|x| F8::E4m3.nearest(*x).is_nan()));
    let large = [57344.0, 61439.0, 61440.0, f64::INFINITY].map(|x| F8::E5m2.nearest(x));
    assert_eq!(large, [57344.0, 57344.0, f64::INFINITY, f64::INFINITY]);
    assert_eq!((F8::E4m3.saturated(-1e9), F8::E5m2.saturated(61440.0)), (-448.0, 57344.0));
}
