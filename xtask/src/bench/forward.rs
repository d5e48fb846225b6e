//! How long does a forward pass take, against PyTorch and llama.cpp in the same run?
//!
//! A TinyLlama shape with random weights. Also `weights` on two files of that size against NumPy, and
//! the memory a run from Q4_K_M takes beside the mapped file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use anyhow::{Result, ensure};
use firstdiff_simd::{Level, VARIABLE};

use super::{THREADS, binary, build, load, watched};

const SIZES: [&str; 4] = ["1", "14", "128", "512"];

/// The files of a model, and the arithmetics that each is run in.
const FILES: [(&str, &[&str]); 7] = [
    ("f32", &["f32"]),
    ("f16", &["f32"]),
    ("bf16", &["f32"]),
    ("q4_k_m", &["f32", "ggml"]),
    ("q6_k", &["f32", "ggml"]),
    ("q8_0", &["f32", "ggml"]),
    ("q4_0", &["f32", "ggml"]),
];

type Seconds = BTreeMap<String, f64>;

/// Makes the models in `folder` where they are not there, and measures.
pub(super) fn run(folder: Option<&Path>) -> Result<String> {
    let folder = folder.map_or_else(|| std::env::temp_dir().join("firstdiff-bench"), Path::to_owned);
    models(&folder)?;
    build(&["-p", "firstdiff"])?;
    build(&["-p", "firstdiff-model", "--example", "forward"])?;
    let mut text = format!(
        "Seconds for all logits at T tokens, {THREADS} threads, best of some runs (load before: {}). The ratio is ours to the faster of the others. \
         llama.cpp with weights as they are stored (neither AMX nor repacked).\n\n\
         | weights | arithmetic | T | ours | PyTorch f32 | llama.cpp | ratio |\n|---|---|---|---|---|---|---|\n",
        load()
    );
    let torch = seconds(&script(&with_sizes(&["torch"]))?)?;
    for (file, profiles) in FILES {
        let path = folder.join(format!("{file}.gguf"));
        let theirs = seconds(&script(&with_sizes(&["llama.cpp", &path.to_string_lossy()]))?)?;
        for profile in profiles {
            let ours = seconds(&forward(&path, profile, Level::best())?)?;
            for size in SIZES {
                let torch = torch.get(size).copied().filter(|_| file == "f32");
                let (ours, theirs) = (ours[size], theirs[size]);
                let fastest = torch.map_or(theirs, |torch| torch.min(theirs));
                let torch = torch.map_or("-".into(), |s| format!("{s:.3}"));
                text += &format!(
                    "| {file} | {profile} | {size} | {ours:.3} | {torch} | {theirs:.3} | {:.2} |\n",
                    ours / fastest
                );
            }
        }
    }
    text += &levels(&folder)?;
    text += &weights(&folder)?;
    text += &memory(&folder)?;
    Ok(text)
}

/// Makes the models where they are not there.
pub(super) fn models(folder: &Path) -> Result<()> {
    script(&["make".as_ref(), folder.as_os_str()]).map(|_| ())
}

/// `weights` on two files of the shape, against what people write in NumPy.
fn weights(folder: &Path) -> Result<String> {
    let (a, b) = (folder.join("f16.gguf"), folder.join("f32.gguf"));
    let once = || -> Result<f64> {
        let start = Instant::now();
        let output = Command::new(binary("firstdiff")?).arg("weights").args([&b, &a]).output()?;
        ensure!(output.status.code() == Some(0), "weights: {}", String::from_utf8_lossy(&output.stdout));
        Ok(start.elapsed().as_secs_f64())
    };
    let best = (0..3).map(|_| once()).collect::<Result<Vec<_>>>()?.into_iter().fold(f64::INFINITY, f64::min);
    let numpy: f64 = script(&["weights".as_ref(), b.as_os_str(), a.as_os_str()])?.trim().parse()?;
    let bytes = (a.metadata()?.len() + b.metadata()?.len()) as f64 / 1e9;
    Ok(format!(
        "\n`firstdiff weights f32.gguf f16.gguf` ({bytes:.1} GB): {best:.2} s, {:.1} GB/s; the NumPy script {numpy:.1} s, {:.1} GB/s: {:.0} times as fast.\n",
        bytes / best,
        bytes / numpy,
        numpy / best
    ))
}

/// The most memory that is no mapped file, of `weights` and of a forward pass.
fn memory(folder: &Path) -> Result<String> {
    let (small, large) = (folder.join("q4_k_m.gguf"), folder.join("f32.gguf"));
    let weights = watched(Command::new(binary("firstdiff")?).arg("weights").args([&large, &small]), &[0, 1])?.memory;
    let run = watched(Command::new(binary("examples/forward")?).arg(&small).args(["ggml", "14"]), &[0])?.memory;
    Ok(format!(
        "\nMemory beside the mapped files: {weights:.0} MiB for `weights f32.gguf q4_k_m.gguf`; {run:.0} MiB for a forward of 14 tokens from q4_k_m.gguf.\n"
    ))
}

/// The same at every level of instructions, for a type of each kind of product.
fn levels(folder: &Path) -> Result<String> {
    let mut text =
        format!("\nWith fewer of the processor's instructions, in seconds:\n\n| weights | arithmetic | level |{}\n", {
            let heads: String = SIZES.iter().map(|size| format!(" T = {size} |")).collect();
            format!("{heads}\n|---|---|---|{}", "---|".repeat(SIZES.len()))
        });
    for (file, profile) in [("f16", "f32"), ("q4_k_m", "ggml"), ("q8_0", "ggml")] {
        // Plain Rust takes minutes for what the others do in a second.
        for level in Level::available().into_iter().filter(|level| *level != Level::Scalar) {
            let found = seconds(&forward(&folder.join(format!("{file}.gguf")), profile, level)?)?;
            let cells: String = SIZES.iter().map(|size| format!(" {:.3} |", found[*size])).collect();
            text += &format!("| {file} | {profile} | {} |{cells}\n", level.name());
        }
    }
    Ok(text)
}

fn forward(model: &Path, profile: &str, level: Level) -> Result<String> {
    let mut command = Command::new(binary("examples/forward")?);
    let output = command.arg(model).arg(profile).args(SIZES).env(VARIABLE, level.name()).output()?;
    ensure!(output.status.success(), "forward: {}", String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?)
}

fn with_sizes<'a>(first: &[&'a str]) -> Vec<&'a std::ffi::OsStr> {
    first.iter().copied().chain(SIZES).map(std::ffi::OsStr::new).collect()
}

/// Runs scripts/bench_forward.py; its last line is what it found.
fn script(args: &[&std::ffi::OsStr]) -> Result<String> {
    let path = crate::root()?.join("scripts/bench_forward.py");
    let output = Command::new(crate::python()).arg(path).args(args).env("FIRSTDIFF_EXTRA_BUFTS", "0").output()?;
    ensure!(output.status.success(), "bench_forward.py: {}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8(output.stdout)?;
    Ok(text.lines().last().unwrap_or_default().to_owned())
}

fn seconds(json: &str) -> Result<Seconds> {
    Ok(serde_json::from_str(json)?)
}
