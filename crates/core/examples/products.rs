//! How fast are rows multiplied with a matrix? `cargo run --release -p firstdiff-core --example products -- T [T ..]`
//!
//! x \[T,2048\] with a matrix of \[16384,2048\] in f32, f16 and bf16, which no cache holds, on 2 threads; best of some runs. JSON: for each type and T
//! the multiply-adds a second, and what the two cores do without touching memory. `FIRSTDIFF_SIMD` says with which instructions.

use std::error::Error;
use std::hint::black_box;
use std::time::Instant;

use firstdiff_core::{Packed, Rows, linear_rows, multiply_adds};
use firstdiff_simd::Level;
use half::{bf16, f16};
use ndarray::{Array2, Axis};
use rayon::prelude::*;

const ROWS: usize = 16384;
const COLUMNS: usize = 2048;
/// Rows of the matrix that a thread takes at a time.
const TILE: usize = 64;
const THREADS: usize = 2;

/// A matrix by its rows' storage.
type Stored<'a> = Box<dyn Fn(usize, usize) -> Rows<'a, f32> + Sync + 'a>;

fn main() -> Result<(), Box<dyn Error>> {
    let level = Level::asked()?.unwrap_or(Level::best());
    let sizes = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?;
    let w: Vec<f32> = (0..ROWS * COLUMNS).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
    let half: Vec<f16> = w.iter().map(|&w| f16::from_f32(w)).collect();
    let brain: Vec<bf16> = w.iter().map(|&w| bf16::from_f32(w)).collect();
    let types: [(&str, Stored<'_>); 3] = [
        ("f32", Box::new(|from, to| Rows::Own(&w[from..to]))),
        ("f16", Box::new(|from, to| Rows::F16(&half[from..to]))),
        ("bf16", Box::new(|from, to| Rows::BF16(&brain[from..to]))),
    ];
    let peak =
        pool.install(|| best(1.0, || (0..THREADS).into_par_iter().map(|_| multiply_adds(level, 5_000_000).0).sum()));
    let mut parts = vec![format!("\"level\": \"{}\", \"peak\": {peak:.4e}", level.name())];
    for (name, rows) in &types {
        for &size in &sizes {
            let x: Vec<f32> = (0..size * COLUMNS).map(|i| ((i * 31) % 997) as f32 / 997.0 - 0.5).collect();
            let mut out = Array2::<f32>::zeros((size, ROWS));
            let once = || {
                let x = Packed::new(x.chunks(COLUMNS).collect());
                let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), TILE).enumerate().collect();
                tiles.into_par_iter().for_each(|(number, tile)| {
                    let (from, count) = (number * TILE * COLUMNS, tile.ncols() * COLUMNS);
                    linear_rows(&x, rows(from, from + count), tile).unwrap_or_else(|error| panic!("{error}"));
                });
                size * ROWS * COLUMNS
            };
            let rate = pool.install(|| best(1.5, once));
            parts.push(format!("\"{name} {size}\": {rate:.4e}"));
        }
    }
    println!("{{{}}}", parts.join(", "));
    Ok(())
}

/// The best rate of some runs, for so many seconds: whatever else the machine does can only slow one down.
fn best(seconds: f64, mut work: impl FnMut() -> usize) -> f64 {
    let (begun, mut rate) = (Instant::now(), 0f64);
    while begun.elapsed().as_secs_f64() < seconds || rate == 0.0 {
        let start = Instant::now();
        let done = black_box(work());
        rate = rate.max(done as f64 / start.elapsed().as_secs_f64());
    }
    rate
}
