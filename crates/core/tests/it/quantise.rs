//! Checks that activations are rounded bit for bit as llama.cpp's CPU backend rounds them: its own values in fixtures/quants.
//!
//! scripts/suites/test_quants.py wrote them on x86-64 and compares 10,000 blocks.

use std::path::Path;

use firstdiff_core::{ActivationType, quantise};
use ndarray::Array2;

fn fixture(name: &str) -> Vec<f32> {
    let path =
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/quants").join(format!("activations.{name}.f32"));
    std::fs::read(path).unwrap().as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

#[test]
fn every_kind_to_the_bit() {
    let x = fixture("x");
    let x = Array2::from_shape_vec((x.len() / 256, 256), x).unwrap();
    let bits = |values: Vec<f32>| values.into_iter().map(f32::to_bits).collect::<Vec<_>>();
    for (name, kind) in [
        ("Q8_0", ActivationType::Q8_0),
        ("Q8_1", ActivationType::Q8_1),
        ("Q8_K", ActivationType::Q8K),
        ("F16", ActivationType::F16),
        ("BF16", ActivationType::BF16),
    ] {
        let rounded = quantise(x.view(), kind).unwrap();
        assert!(bits(rounded.values.into_raw_vec_and_offset().0) == bits(fixture(name)), "{name}");
        if let Some(excess) = rounded.excess {
            assert!(bits(excess.into_raw_vec_and_offset().0) == bits(fixture("Q8_1.excess")), "the sums of Q8_1");
        }
    }
}
