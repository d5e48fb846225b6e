//! Measures the cost of a recorder call: `cost call N` records N times if FIRSTDIFF_DIR is set, `cost none N` runs the same loop without the call.
//!
//! scripts/suites/test_recorders.py counts the instructions of both, and the MB/s.

use std::hint::black_box;

use firstdiff_trace::{RecordError, Recorder};

fn main() -> Result<(), RecordError> {
    let mut args = std::env::args().skip(1);
    let call = args.next().is_some_and(|word| word == "call");
    let turns: u32 = args.next().and_then(|count| count.parse().ok()).unwrap_or(0);
    let x = vec![0f32; 1 << 18];
    let rec = Recorder::from_env()?;
    match call {
        true => with_call(&rec, &x, turns)?,
        false => without(&x, turns),
    }
    rec.finish()
}

#[inline(never)]
fn with_call(rec: &Recorder, x: &[f32], turns: u32) -> Result<(), RecordError> {
    for layer in 0..turns {
        rec.record(format_args!("layers.{layer}.h"), &[1 << 9, 1 << 9], x)?;
        black_box(x);
    }
    Ok(())
}

#[inline(never)]
fn without(x: &[f32], turns: u32) {
    for _ in 0..turns {
        black_box(x);
    }
}
