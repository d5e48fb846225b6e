//! What is left of keys and values in the type of a K/V cache.

use firstdiff_trace::Cache;
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
    // Of what is larger than all of them PyTorch makes NaN, and caches the largest.
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
