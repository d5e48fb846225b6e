//! Measures how fast the metrics of two arrays in memory are computed. `cargo run --release -p firstdiff-compare --example metrics`
//!
//! Two arrays of 512 MiB f32 that differ by rounding, on all threads that RAYON_NUM_THREADS allows; ten runs. JSON: the seconds of each.
//! `FIRSTDIFF_SIMD` selects the instructions.

use std::hint::black_box;
use std::time::Instant;

use firstdiff_compare::metrics::Metrics;

const VALUES: usize = 128 << 20;
const RUNS: usize = 10;

fn main() {
    let reference: Vec<f32> = (0..VALUES).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
    let candidate: Vec<f32> =
        reference.iter().enumerate().map(|(i, &x)| if i % 3 == 0 { x * (1.0 + f32::EPSILON) } else { x }).collect();
    let seconds = (0..RUNS).map(|_| {
        let begun = Instant::now();
        black_box(Metrics::measure_f32(&reference, &candidate));
        begun.elapsed().as_secs_f64()
    });
    println!("{{\"seconds\": {:?}}}", seconds.collect::<Vec<f64>>());
}
