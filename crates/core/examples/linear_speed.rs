//! Measures the speed of a linear layer: GFLOP/s for the shapes of prefill and decode, with 1 and 2 threads.
//!
//! `cargo run --release -p firstdiff-core --example linear_speed`

use std::time::Instant;

use firstdiff_core::{Float, linear};
use ndarray::Array2;

fn main() {
    println!("x [T,in] times W [out,in] transposed; best of several runs");
    for (tokens, width, out) in [(1, 2048, 5632), (14, 2048, 5632), (128, 2048, 5632), (512, 2048, 2048)] {
        measure::<f32>("f32", tokens, width, out);
    }
    measure::<f64>("f64", 14, 2048, 5632);
}

fn measure<F: Float>(name: &str, tokens: usize, width: usize, out: usize) {
    let noise = |i: usize, j: usize| F::from_f64((((i * 7919 + j * 104_729) % 2003) as f64 - 1001.0) / 1001.0);
    let x = Array2::from_shape_fn((tokens, width), |(i, j)| noise(i, j));
    let w = Array2::from_shape_fn((out, width), |(i, j)| noise(i + 5, j));
    print!("{name} {tokens:>4} x {width} x {out}:");
    for threads in [1, 2] {
        let Ok(pool) = rayon::ThreadPoolBuilder::new().num_threads(threads).build() else { return };
        let seconds = (0..12).map(|_| {
            let start = Instant::now();
            let y = pool.install(|| linear(x.view(), w.view(), None));
            let seconds = start.elapsed().as_secs_f64();
            assert!(y.is_ok());
            seconds
        });
        let best = seconds.fold(f64::INFINITY, f64::min);
        print!("  {:6.1} GFLOP/s ({threads} threads)", 2e-9 * (tokens * width * out) as f64 / best);
    }
    println!();
}
