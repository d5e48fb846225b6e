//! Writes tables in docs/ from the measurements of the scripts on this machine: `cargo xtask docs`.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Runs the scripts and writes docs/measured/quants.md, docs/measured/quantised.md and docs/measured/weights.md.
pub(crate) fn run() -> Result<u8> {
    let docs = crate::root()?.join("docs/measured");
    write(&docs.join("quants.md"), &quants(&measured("suites/test_quants.py")?)?)?;
    write(&docs.join("quantised.md"), &quantised(&measured("suites/test_quantised.py")?)?)?;
    write(&docs.join("weights.md"), &weights(&measured("planted/weight_zoo.py")?)?)?;
    Ok(0)
}

/// The rows that a script writes with `--json`.
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
    let mut text = "# ggml's block types, dequantised\n\nfirstdiff's values, bit for bit, against those of PyPI gguf 0.19 and of llama.cpp's own code (llama-cpp-python 0.3.36), on \
                    random valid blocks. \"-\": that side has no such function. The last rows are activations as llama.cpp's CPU backend rounds them (x86-64).\n\n\
                    Written by `cargo xtask docs` from scripts/suites/test_quants.py.\n\n| type | blocks | gguf | llama.cpp |\n|---|---|---|---|\n"
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
    let mut text = "# llama.cpp's quantised arithmetic, reproduced\n\nDoes profile ggml round as llama.cpp does? llama.cpp quantises random models (256 wide, 3 layers) and runs \
                    them: 13 tokens and 2 decode steps. `replay` then computes each operation on llama.cpp's own inputs. The cells are the NMSE of the worst tap.\n\n\
                    *ggml* and *exact*: the profile of the replay. An exact reference does not round activations, and real faults hide under the difference. *logits*: those of a \
                    forward pass of firstdiff from the tokens on. *parts at*: its first tap beyond 1e-10. There a value lay on the edge between two steps of rounding, and the \
                    order of an f32 sum decided. That is common where activations are rounded to f16 or bf16, and rare with 8 bits; either side is right.\n\n\
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
    let right: Vec<&Value> = rows.iter().filter(|row| row["right"] == true).collect();
    let alarms = right.iter().filter(|row| row["outcome"] != "right").count();
    let wrong: Vec<&Value> = rows.iter().filter(|row| row["right"] == false).collect();
    let mut by_answer: Vec<(String, Vec<String>)> = Vec::new();
    for row in &wrong {
        let (said, outcome) = (name(row, "said")?.replace('|', "/"), name(row, "outcome")?);
        let mut planted = name(row, "id")?.to_owned();
        if outcome != "named" {
            planted += &format!(" ({outcome})");
        }
        match by_answer.iter_mut().find(|(known, _)| *known == said) {
            Some((_, all)) => all.push(planted),
            None => by_answer.push((said, vec![planted])),
        }
    }
    let named = wrong.iter().filter(|row| row["outcome"] == "named").count();
    let mut text = format!(
        "# Planted mistakes in weight files\n\nWhat does `firstdiff weights` say of wrong files? scripts/planted/weight_zoo.py makes them without firstdiff's code. {named} of {} have \
         the right answer: the cause, on the right tensors, and no other; or *None*, where no mistake of the catalogue explains the difference, which must be seen. Another \
         outcome stands behind its file.\n\nRight conversions: {}, of them called wrong: {alarms}.\n\nWritten by `cargo xtask docs` from scripts/planted/weight_zoo.py.\n\n\
         | said | of these |\n|---|---|\n",
        wrong.len(),
        right.len()
    );
    for (said, planted) in by_answer {
        text += &format!("| {said} | {} |\n", planted.join("; "));
    }
    Ok(text)
}

fn name<'a>(row: &'a Value, key: &str) -> Result<&'a str> {
    row[key].as_str().with_context(|| format!("a row without '{key}'"))
}
