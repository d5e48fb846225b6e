//! Measures the matrix products at every instruction level, as a share of the peak of the cores.

use std::ffi::OsStr;
use std::fmt::Write;
use std::process::Command;

use anyhow::{Context, Result};
use firstdiff_simd::{Level, VARIABLE};
use serde_json::Value;

use super::forward::{Peer, median};
use super::{THREADS, binary, build, load, output};

const SIZES: [&str; 4] = ["1", "14", "128", "512"];
/// Rows and columns of the matrix.
const MATRIX: [&str; 2] = ["16384", "2048"];
const TYPES: [&str; 3] = ["f32", "f16", "bf16"];

/// A table for each level: the peak of the cores, and the speed of the products.
pub(super) fn run() -> Result<String> {
    build(&["-p", "firstdiff-core", "--example", "products"])?;
    let load = load();
    let mut text = format!(
        "Rows of x \\[T,2048\\] with a matrix \\[16384,2048\\] that no cache holds, {THREADS} threads, in 10⁹ multiply-adds a second, medians (load \
         before: {load}). *peak*: what the two cores do without touching memory, measured for as long before each run. In brackets: the median share of the \
         peak just before; at T = 1 the matrix is read at memory speed. The last row is PyTorch (MKL), as long after each level, beside the same peak.\n\n\
         | level | peak | weights | T = 1 | T = 14 | T = 128 | T = 512 |\n|---|---|---|---|---|---|---|\n"
    );
    let [rows, columns] = MATRIX;
    let mut torch = Peer::of_script(&["product", rows, columns].map(OsStr::new))?;
    let mut seconds = SIZES.map(|_| Vec::new());
    let mut most = 0f64;
    // The scalar level takes minutes where the others take a second, and its speed does not matter. VNNI is for integers; floats are multiplied as with
    // AVX-512.
    for level in Level::available().into_iter().filter(|level| !matches!(level, Level::Scalar | Level::Vnni)) {
        let mut command = Command::new(binary("examples/products")?);
        let found = output(command.args(SIZES).env(VARIABLE, level.name()), &[0])?;
        let found: Value = serde_json::from_slice(&found.stdout)?;
        let number = |value: &Value, key: &str| value.as_f64().with_context(|| format!("products gave no '{key}'"));
        let peak = number(&found["peak"], "peak")?;
        most = most.max(peak);
        for (size, seconds) in SIZES.iter().zip(&mut seconds) {
            let runs = (0..=9).map(|_| torch.seconds(size.parse()?)).collect::<Result<Vec<f64>>>()?;
            // The first run is a warm-up.
            seconds.extend(runs.into_iter().skip(1));
        }
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
    write!(text, "| PyTorch | {:.1} | f32 |", most / 1e9)?;
    let elements = rows.parse::<f64>()? * columns.parse::<f64>()?;
    for (size, seconds) in SIZES.iter().zip(seconds) {
        let rate = size.parse::<f64>()? * elements / median(seconds);
        write!(text, " {:.1} ({:.0} %) |", rate / 1e9, 100.0 * rate / most)?;
    }
    text.push('\n');
    Ok(text)
}
