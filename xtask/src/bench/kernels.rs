//! How fast are the products at every level of instructions, and how near to what the cores can do?

use std::fmt::Write;
use std::process::Command;

use anyhow::{Context, Result};
use firstdiff_simd::{Level, VARIABLE};
use serde_json::Value;

use super::{THREADS, binary, build, load, output};

const SIZES: [&str; 4] = ["1", "14", "128", "512"];
const TYPES: [&str; 3] = ["f32", "f16", "bf16"];

/// A table of each level: what the cores can do, and what the products reach.
pub(super) fn run() -> Result<String> {
    build(&["-p", "firstdiff-core", "--example", "products"])?;
    let load = load();
    let mut text = format!(
        "Rows of x \\[T,2048\\] with a matrix \\[16384,2048\\] that no cache holds, {THREADS} threads, in 10⁹ multiply-adds a second, medians (load \
         before: {load}). *peak*: what the two cores do without touching memory, measured for as long before each run. In brackets: the median share of the \
         peak just before; at T = 1 the matrix is read at memory speed.\n\n\
         | level | peak | weights | T = 1 | T = 14 | T = 128 | T = 512 |\n|---|---|---|---|---|---|---|\n"
    );
    // Plain Rust takes minutes for what the others do in a second, and its speed is nobody's concern.
    // VNNI is for whole numbers; floats are multiplied as with AVX-512.
    for level in Level::available().into_iter().filter(|level| !matches!(level, Level::Scalar | Level::Vnni)) {
        let mut command = Command::new(binary("examples/products")?);
        let found = output(command.args(SIZES).env(VARIABLE, level.name()), &[0])?;
        let found: Value = serde_json::from_slice(&found.stdout)?;
        let number = |value: &Value, key: &str| value.as_f64().with_context(|| format!("products gave no '{key}'"));
        let peak = number(&found["peak"], "peak")?;
        for kind in TYPES {
            write!(text, "| {} | {:.1} | {kind} |", level.name(), peak / 1e9)?;
            for size in SIZES {
                let key = format!("{kind} {size}");
                let [rate, share] = [0, 1].map(|at| number(&found[&key][at], &key));
                write!(text, " {:.1} ({:.0} %) |", rate? / 1e9, 100.0 * share?)?;
            }
            text.push('\n');
        }
    }
    Ok(text)
}
