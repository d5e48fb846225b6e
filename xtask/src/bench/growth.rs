//! Measures how time and memory grow with layers, width, tokens and taps: doubles each with the others fixed, and fits an exponent.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Result;

use super::{Cost, THREADS, binary, build, load, output, watched};

/// The sizes that are not varied.
const USUAL: Size = Size { layers: 8, width: 512, tokens: 64 };
const RUNS: usize = 3;
const COMMANDS: [&str; 4] = ["dump", "compare", "replay", "explain"];

#[derive(Clone, Copy)]
struct Size {
    layers: usize,
    width: usize,
    tokens: usize,
}

/// A size that is varied, and its values.
type Axis = (&'static str, [usize; 4], fn(&mut Size, usize));

const AXES: [Axis; 3] = [
    ("layers", [4, 8, 16, 32], |size, n| size.layers = n),
    ("width", [256, 512, 1024, 2048], |size, n| size.width = n),
    ("tokens", [32, 64, 128, 256], |size, n| size.tokens = n),
];

/// Measures one row for each command and axis.
pub(super) fn run() -> Result<String> {
    build(&["-p", "firstdiff"])?;
    let folder = tempfile::tempdir()?;
    let mut text = format!(
        "Random llamas in f32 of {} layers, width {} and {} tokens, of which one number is varied; the candidate rotates with another theta, all taps are recorded. \
         {THREADS} threads, best of {RUNS} runs (load before: {}). In each cell seconds and MiB beside the mapped files. *grows as*: the exponents of both, \
         fitted; the number of values grows as 1 in each, the scores' as 2 in tokens, the weights' as 2 in width.\n\n\
         | command | varied | first | second | third | fourth | time grows as | memory grows as |\n|---|---|---|---|---|---|---|---|\n",
        USUAL.layers,
        USUAL.width,
        USUAL.tokens,
        load()
    );
    for (name, values, set) in AXES {
        let mut costs: [Vec<Cost>; 4] = Default::default();
        for value in values {
            let mut size = USUAL;
            set(&mut size, value);
            let made = Fixture::build(folder.path(), size)?;
            for (costs, command) in costs.iter_mut().zip(COMMANDS) {
                costs.push(measured(made.command(command)?)?);
            }
            fs::remove_dir_all(&made.folder)?;
        }
        for (costs, command) in costs.iter().zip(COMMANDS) {
            write!(text, "| {command} | {name} |")?;
            for (value, cost) in values.iter().zip(costs) {
                write!(text, " {value}: {:.2} s, {:.0} MiB |", cost.seconds, cost.memory)?;
            }
            let grows = |of: fn(&Cost) -> f64| exponent(&values, &costs.iter().map(of).collect::<Vec<_>>());
            writeln!(text, " {:.1} | {:.1} |", grows(|cost| cost.seconds), grows(|cost| cost.memory))?;
        }
    }
    Ok(text)
}

/// A model, a right dump of it, and one of the same weights with another RoPE theta.
struct Fixture {
    folder: PathBuf,
    tokens: String,
}

impl Fixture {
    fn build(folder: &Path, size: Size) -> Result<Fixture> {
        let folder = folder.join(format!("{}-{}-{}", size.layers, size.width, size.tokens));
        let tokens = (1..=size.tokens).map(|id| (id * 37 % 1024).to_string()).collect::<Vec<_>>().join(",");
        let made = Fixture { folder, tokens };
        for (name, theta) in [("model", "10000"), ("other", "20000")] {
            let mut script = Command::new(crate::python());
            script
                .arg(crate::root()?.join("scripts/measure/bench_models.py"))
                .arg(made.folder.join(name))
                .args(["--theta", theta]);
            script.args(["--layers", &size.layers.to_string(), "--width", &size.width.to_string()]);
            output(&mut script, &[0])?;
        }
        for (model, dump) in [("model", "right"), ("other", "wrong")] {
            output(&mut made.firstdiff(&["dump", model, "--tokens", &made.tokens, "-o", dump])?, &[0])?;
        }
        Ok(made)
    }

    fn firstdiff(&self, args: &[&str]) -> Result<Command> {
        let mut command = Command::new(binary("firstdiff")?);
        command.args(args).current_dir(&self.folder).env("RAYON_NUM_THREADS", THREADS.to_string());
        Ok(command)
    }

    fn command(&self, name: &str) -> Result<Command> {
        match name {
            "dump" => self.firstdiff(&["dump", "model", "--tokens", &self.tokens, "-o", "again"]),
            "compare" => self.firstdiff(&["compare", "right", "wrong"]),
            name => self.firstdiff(&[name, "model", "wrong"]),
        }
    }
}

/// The best time of several runs, and the largest memory of any.
fn measured(mut command: Command) -> Result<Cost> {
    let mut best = Cost { seconds: f64::INFINITY, memory: 0.0 };
    for _ in 0..RUNS {
        if let Some(again) = command.get_current_dir().map(|folder| folder.join("again")).filter(|again| again.exists())
        {
            fs::remove_dir_all(again)?;
        }
        // Exit code 1: the candidate is wrong, as expected.
        let cost = watched(&mut command, &[0, 1])?;
        best = Cost { seconds: best.seconds.min(cost.seconds), memory: best.memory.max(cost.memory) };
    }
    Ok(best)
}

/// The exponent p of the best fit y = c xᵖ: the slope of log y over log x.
fn exponent(x: &[usize], y: &[f64]) -> f64 {
    let points: Vec<(f64, f64)> = x.iter().zip(y).map(|(&x, &y)| ((x as f64).ln(), y.max(1e-9).ln())).collect();
    let count = points.len() as f64;
    let (mean_x, mean_y) =
        (points.iter().map(|p| p.0).sum::<f64>() / count, points.iter().map(|p| p.1).sum::<f64>() / count);
    let over = points.iter().map(|(x, y)| (x - mean_x) * (y - mean_y)).sum::<f64>();
    over / points.iter().map(|(x, _)| (x - mean_x).powi(2)).sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exponent_of_a_square_is_two() {
        assert!((exponent(&[1, 2, 4, 8], &[3.0, 12.0, 48.0, 192.0]) - 2.0).abs() < 1e-12);
    }
}
