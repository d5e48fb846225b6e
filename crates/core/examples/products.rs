//! Measures how fast rows are multiplied with a matrix: `cargo run --release -p firstdiff-core --example products -- T [T ..]`
//!
//! x \[T,2048\] with a matrix of \[16384,2048\] in f32, f16 and bf16, larger than any cache, on 2 threads. Before each run both cores do multiply-adds for
//! as long without touching memory, because the speed of a shared machine changes by the second. JSON: for each type and T the median multiply-adds a
//! second, and their median share of that peak. `FIRSTDIFF_SIMD` selects the instructions.

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

/// Gives rows of a matrix in their storage type.
type RowReader<'a> = Box<dyn Fn(usize, usize) -> Rows<'a, f32> + Sync + 'a>;

fn main() -> Result<(), Box<dyn Error>> {
    let level = Level::from_env()?.unwrap_or(Level::best());
    let sizes = std::env::args().skip(1).map(|size| size.parse()).collect::<Result<Vec<usize>, _>>()?;
    let pool = rayon::ThreadPoolBuilder::new().num_threads(THREADS).build()?;
    let w: Vec<f32> = (0..ROWS * COLUMNS).map(|i| ((i * 7919) % 1013) as f32 / 1013.0 - 0.5).collect();
    let half: Vec<f16> = w.iter().map(|&w| f16::from_f32(w)).collect();
    let brain: Vec<bf16> = w.iter().map(|&w| bf16::from_f32(w)).collect();
    let types: [(&str, RowReader<'_>); 3] = [
        ("f32", Box::new(|from, to| Rows::Native(&w[from..to]))),
        ("f16", Box::new(|from, to| Rows::F16(&half[from..to]))),
        ("bf16", Box::new(|from, to| Rows::BF16(&brain[from..to]))),
    ];
    // Keeps both cores busy with multiply-adds for about `seconds`; returns how many they did a second.
    let mut rounds = 1_000_000;
    let mut peak = |seconds: f64| {
        let start = Instant::now();
        let done: usize = pool.install(|| (0..THREADS).into_par_iter().map(|_| multiply_adds(level, rounds).0).sum());
        let taken = start.elapsed().as_secs_f64();
        rounds = ((rounds as f64 * seconds / taken) as usize).max(1000);
        done as f64 / taken
    };
    peak(0.1);
    let (mut parts, mut peaks) = (vec![format!("\"level\": \"{}\"", level.name())], Vec::new());
    for (name, rows) in &types {
        for &size in &sizes {
            let x: Vec<f32> = (0..size * COLUMNS).map(|i| ((i * 31) % 997) as f32 / 997.0 - 0.5).collect();
            let mut out = Array2::<f32>::zeros((size, ROWS));
            let mut once = || {
                let x = Packed::new(x.chunks(COLUMNS).collect());
                let tiles: Vec<_> = out.axis_chunks_iter_mut(Axis(1), TILE).enumerate().collect();
                tiles.into_par_iter().for_each(|(number, tile)| {
                    let (from, count) = (number * TILE * COLUMNS, tile.ncols() * COLUMNS);
                    linear_rows(&x, rows(from, from + count), tile).unwrap_or_else(|error| panic!("{error}"));
                });
                size * ROWS * COLUMNS
            };
            let mut timed = || {
                let start = Instant::now();
                let done = black_box(pool.install(&mut once));
                (done as f64, start.elapsed().as_secs_f64())
            };
            let (_, first) = timed();
            let (mut rates, mut shares) = (Vec::new(), Vec::new());
            for _ in 0..((1.5 / first) as usize).clamp(3, 99) | 1 {
                let most = peak(first);
                let (done, taken) = timed();
                rates.push(done / taken);
                shares.push(done / taken / most);
                peaks.push(most);
            }
            parts.push(format!("\"{name} {size}\": [{:.4e}, {:.4}]", median(rates), median(shares)));
        }
    }
    parts.push(format!("\"peak\": {:.4e}", median(peaks)));
    println!("{{{}}}", parts.join(", "));
    Ok(())
}

fn median(mut numbers: Vec<f64>) -> f64 {
    numbers.sort_by(f64::total_cmp);
    numbers[numbers.len() / 2]
}
