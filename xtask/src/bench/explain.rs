//! Measures how long `explain` takes on a wrong model of 1.1 billion parameters, from all taps and from the logits only.

use std::fmt::Write;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::{THREADS, binary, build, load, output};

/// Cases beside the catalogue's mistakes: a right engine, and a mistake in no list.
const RIGHT: &str = "right";
const UNLISTED: &str = "slope";

/// A row for each wrong engine of scripts/measure/bench_explain.py.
pub(super) fn run(folder: Option<&Path>) -> Result<String> {
    let folder = folder.map_or_else(|| std::env::temp_dir().join("firstdiff-bench"), Path::to_owned);
    let (model, dumps) = (folder.join("f32.gguf"), folder.join("explain"));
    super::forward::models(&folder)?;
    build(&["-p", "firstdiff"])?;
    let mut script = Command::new(crate::python());
    script.arg(crate::root()?.join("scripts/measure/bench_explain.py")).args([&model, &dumps]);
    output(&mut script, &[0])?;
    let mut text = format!(
        "`firstdiff explain` on a model of 1.1 billion parameters in f32 (14 tokens, {THREADS} threads, one run each; load before: {}): mistakes made by a NumPy engine, \
         with all taps recorded and with logits alone. No list has {UNLISTED}: with all taps its law is measured, from logits alone it is not found, and the time is \
         that of the whole search.\n\n\
         | mistake | all taps | said | logits alone | said |\n|---|---|---|---|---|\n",
        load()
    );
    let mut seconds = [Vec::new(), Vec::new()];
    let names = fs::read_dir(&dumps)?.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    let mut names = names.collect::<Result<Vec<String>>>()?;
    names.sort();
    for name in names {
        let mut row = format!("| {} |", name.replace('-', " "));
        for (kind, seconds) in ["all", "logits"].into_iter().zip(&mut seconds) {
            let (taken, said) = explained(&model, &dumps.join(&name).join(kind))?;
            write!(row, " {taken:.1} s | {said} |")?;
            if name != RIGHT && name != UNLISTED {
                seconds.push(taken);
            }
        }
        eprintln!("{row}");
        writeln!(text, "{row}")?;
    }
    for (seconds, of) in seconds.iter_mut().zip(["all taps", "logits alone"]) {
        seconds.sort_by(f64::total_cmp);
        let (middle, last) = (seconds.get(seconds.len() / 2), seconds.last());
        let (median, worst) = middle.zip(last).context("scripts/measure/bench_explain.py wrote no dump")?;
        writeln!(text, "\nThe other {} mistakes, {of}: median {median:.1} s, worst {worst:.1} s.", seconds.len())?;
    }
    Ok(text)
}

/// The time in seconds, and the causes or laws of all findings.
fn explained(model: &Path, dump: &Path) -> Result<(f64, String)> {
    let mut command = Command::new(binary("firstdiff")?);
    command.arg("explain").args([model, dump]).args(["--json", "-"]).env("RAYON_NUM_THREADS", THREADS.to_string());
    let start = Instant::now();
    let found = output(&mut command, &[0, 1])?;
    let seconds = start.elapsed().as_secs_f64();
    let report: Value = serde_json::from_slice(&found.stdout)?;
    let describe = |finding: &Value| -> String {
        let measured = &finding["measured"];
        let law =
            measured["form"].as_str().map(|form| format!("{form}: {}", measured["words"].as_str().unwrap_or_default()));
        let cause = finding["cause"].as_str().map(str::to_owned);
        cause.or(law).unwrap_or_else(|| "unknown".to_owned()).replace('|', "/")
    };
    let mut all: Vec<String> = report["findings"].as_array().into_iter().flatten().map(describe).collect();
    all.dedup();
    Ok((seconds, if all.is_empty() { "nothing".to_owned() } else { all.join("; ") }))
}
