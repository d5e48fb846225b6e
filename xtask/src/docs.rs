//! `cargo xtask docs`: the tables under docs/, written from what the scripts measure on this machine.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Runs the scripts and writes docs/QUANTS.md, docs/QUANTISED.md and docs/WEIGHTS.md.
pub(crate) fn run() -> Result<u8> {
    let docs = crate::root()?.join("docs");
    write(&docs.join("QUANTS.md"), &quants(&measured("suites/test_quants.py")?)?)?;
    write(&docs.join("QUANTISED.md"), &quantised(&measured("suites/test_quantised.py")?)?)?;
    write(&docs.join("WEIGHTS.md"), &weights(&measured("planted/weight_zoo.py")?)?)?;
    Ok(0)
}

/// What a script writes with `--json`.
fn measured(script: &str) -> Result<Vec<Value>> {
    let folder = tempfile::tempdir()?;
    let json = folder.path().join("rows.json");
    let path = crate::root()?.join("scripts").join(script);
    let status = Command::new(crate::python()).arg(&path).arg("--json").arg(&json).status()?;
    ensure!(status.success(), "{script} failed; its table is not written");
    let text = fs::read_to_string(&json).with_context(|| format!("{script} wrote no {}", json.display()))?;
    Ok(serde_json::from_str(&text)?)
}

pub(crate) fn write(path: &Path, text: &str) -> Result<()> {
    fs::write(path, text)?;
    println!("{} written", path.display());
    Ok(())
}

fn quants(rows: &[Value]) -> Result<String> {
    let mut text = "# ggml's block types, dequantised\n\nOur values against those of PyPI gguf 0.19 and of llama.cpp's own code (llama-cpp-python 0.3.36), bit for \
                    bit.\nBlocks are random and valid. \"-\": that side has no such function. Below the types: activations as llama.cpp's CPU backend \
                    rounds them (x86-64).\n\nWritten by `cargo xtask docs` from scripts/suites/test_quants.py.\n\n| type | blocks | gguf | llama.cpp |\n|---|---|---|---|\n"
        .to_owned();
    let word = |value: &Value| match value.as_bool() {
        Some(true) => "equal",
        Some(false) => "DIFFERENT",
        None => "-",
    };
    for row in rows {
        text += &format!(
            "| {} | {} | {} | {} |\n",
            name(row, "type")?,
            row["blocks"],
            word(&row["gguf"]),
            word(&row["llama.cpp"])
        );
    }
    Ok(text)
}

fn quantised(rows: &[Value]) -> Result<String> {
    let mut text = "# llama.cpp's quantised arithmetic, reproduced\n\nRandom models (256 wide, 3 layers), quantised by llama.cpp itself, run by llama.cpp \
                    (13 tokens and 2 decode steps), and replayed: each operation on llama.cpp's own recorded inputs. NMSE of the worst tap.\n\n\
                    *exact* is what any reference that does not round activations makes of it, under which real faults hide. *logits* are of a forward pass of ours from the \
                    tokens on. Where they part, *parts at* names the first tap beyond 1e-10: there a value stood on the edge between two steps of \
                    rounding, and the last bit of an f32 sum, which depends on the order of summation, decided. Activations rounded to f16 or bf16 stand \
                    on such edges often, those of 8 bits seldom; a value that falls the other way is right in both.\n\n\
                    Written by `cargo xtask docs` from scripts/suites/test_quantised.py.\n\n\
                    | family | weights | cache | linear, ggml | linear, exact | others, ggml | logits, ggml | logits, exact | parts at |\n\
                    |---|---|---|---|---|---|---|---|---|\n"
        .to_owned();
    for row in rows {
        let number = |key: &str| row[key].as_f64().map_or("-".into(), |x| format!("{x:.1e}"));
        text += &format!(
            "| {} | {} | {} | {} | {} | {} | {} | {} | {} |\n",
            name(row, "family")?,
            name(row, "type")?,
            name(row, "cache")?,
            number("linear ggml"),
            number("linear exact"),
            number("other ggml"),
            number("logits ggml"),
            number("logits exact"),
            name(row, "parts at")?
        );
    }
    Ok(text)
}

fn weights(rows: &[Value]) -> Result<String> {
    let wrong = rows.iter().filter(|row| row["right"] == false);
    let right: Vec<&Value> = rows.iter().filter(|row| row["right"] == true).collect();
    let alarms = right.iter().filter(|row| row["outcome"] != "right").count();
    let mut text = format!(
        "# Planted mistakes in weight files\n\nWhat `firstdiff weights` says of files that scripts/planted/weight_zoo.py made without our code. *named*: the right cause, on \
         the right tensors, and no other; *unknown*: seen, not explained. A cause of \"-\" is a difference that no mistake of the catalogue \
         explains: it must be seen, and no cause named.\n\nRight conversions: {}, of them called wrong: {alarms}.\n\n\
         Written by `cargo xtask docs` from scripts/planted/weight_zoo.py.\n\n| planted | cause | outcome | said |\n|---|---|---|---|\n",
        right.len()
    );
    for row in wrong {
        let said = name(row, "said")?.replace('|', "/");
        text += &format!(
            "| {} | {} | {} | {said} |\n",
            name(row, "id")?,
            row["cause"].as_str().unwrap_or("-"),
            name(row, "outcome")?
        );
    }
    Ok(text)
}

fn name<'a>(row: &'a Value, key: &str) -> Result<&'a str> {
    row[key].as_str().with_context(|| format!("a row without '{key}'"))
}
