//! Evaluates a recorded program, and prints the NMSE of each tap against the value in its dump.
//!
//!     cargo run -p firstdiff-program --example evaluate -- DUMP MODEL [f32 | ggml] [as OTHER]
//!
//! `as OTHER`: evaluates the program with the experts that another dump of the same tokens chose, and compares with that dump's taps.

use std::collections::HashMap;
use std::error::Error;
use std::path::Path;
use std::time::Instant;

use firstdiff_program::{Arithmetic, Evaluator, ModelFolder, Program, Tensor, Values};
use firstdiff_trace::{Cache, Dump, Tap};

/// Σ (x - y)² / Σ y².
fn nmse(x: &[f64], y: &[f64]) -> f64 {
    let square = |sum: f64, x: f64| sum + x * x;
    let error = x.iter().zip(y).filter(|(x, y)| x != y).map(|(x, y)| x - y).fold(0.0, square);
    if error == 0.0 { 0.0 } else { error / y.iter().copied().fold(0.0, square) }
}

/// The rows of a tensor, sorted by value: a sort that is not stable leaves the rows of one expert in any order.
fn in_order(values: &[f64], width: usize) -> Vec<f64> {
    let mut rows: Vec<&[f64]> = values.chunks(width.max(1)).collect();
    rows.sort_by(|a, b| a[0].total_cmp(&b[0]));
    rows.concat()
}

/// A tap of a dump.
fn stored(dump: &Dump, tap: &str, step: usize) -> Option<firstdiff_trace::Tensor> {
    let entry = dump.entry(Tap::named(tap), step as u32)?;
    dump.read(&entry).ok()
}

/// The values of a dump's integer taps.
fn choices(program: &Program, dump: &Dump) -> HashMap<usize, Tensor<'static>> {
    let held = |number: usize| {
        let tap = &program.taps()[number];
        let values: Vec<i64> = stored(dump, &tap.tap, tap.step)?.values().to_f64().iter().map(|&x| x as i64).collect();
        Some((number, Tensor::new(tap.view.dtype, tap.view.shape.clone(), Values::from(values))?))
    };
    program.choices().filter_map(held).collect()
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dump, model, rest @ ..] = args.as_slice() else { return Err("evaluate DUMP MODEL [f32 | ggml]".into()) };
    let (arithmetic, other) = match rest.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => (Arithmetic::F64, None),
        ["f32"] => (Arithmetic::F32, None),
        ["ggml"] => (Arithmetic::Ggml { cache: Cache::F32 }, None),
        ["as", other] => (Arithmetic::F64, Some(other)),
        _ => return Err(format!("{rest:?} is no arithmetic (f32, ggml) and no other dump (as OTHER)").into()),
    };
    let mut program = Program::open(Path::new(dump))?;
    if let Some(other) = other {
        program = program.with_choices(&choices(&program, &Dump::open(other)?)).ok_or("it chooses the same")?;
    }
    let dump = other.unwrap_or(dump);
    for (name, count) in program.unsupported() {
        println!("no kernel for {name} ({count})");
    }
    let dump = Dump::open(dump)?;
    let weights = ModelFolder::open(Path::new(model))?;
    program.check_memory(&weights)?;
    program.check_work(&weights)?;
    let mut evaluator = Evaluator::new(&program, arithmetic, &weights);
    let (mut worst, mut count, mut reordered, mut lacking) = (0.0, 0, 0, 0);
    for step in 0..program.steps().len() {
        let start = Instant::now();
        evaluator.run_step(step, &mut |found| {
            let Some(stored) = stored(&dump, found.tap, step) else {
                lacking += 1;
                println!("{step} {:40} is not in the dump", found.tap);
                return;
            };
            let (x, y) = (found.value.to_floats(), stored.values().to_f64());
            let mut error = if x.len() == y.len() { nmse(&x, &y) } else { f64::INFINITY };
            if let ([_, row @ ..], true) = (found.value.shape(), error.is_finite()) {
                let width = row.iter().product();
                let sorted = nmse(&in_order(&x, width), &in_order(&y, width));
                if sorted < 1e-6 * error {
                    (error, reordered) = (sorted, reordered + 1);
                }
            }
            println!("{step} {:40} {:?} {error:.2e}", found.tap, found.value.shape());
            count += 1;
            worst = if error > worst || error.is_nan() { error } else { worst };
        })?;
        println!("step {step}: {:.2} s", start.elapsed().as_secs_f64());
    }
    println!("{count} taps, worst NMSE {worst:.2e}, {reordered} with rows in another order, {lacking} not in the dump");
    Ok(())
}
