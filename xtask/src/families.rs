//! Checks which command works on which model: runs each on every family and format in fixtures/, and writes or compares docs/reference/families.md.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use rayon::iter::{IntoParallelRefIterator, ParallelIterator};

const HEAD: &str = "# Which command takes which model

Each cell is a run on files of [fixtures](../../fixtures/README.md). **yes**: the command gives a verdict. **no**: it refuses (exit code 2) and says why. MODEL is the first column. \
CAND is a dump of an engine that runs this model, with or without a mistake.

- `compare`, `gate` and `report` need a reference's dump. Here they also have the model (`--model MODEL`), so that order and tolerance come from it, and `report` looks for the cause. \
In the last two rows MODEL is the reference's dump. Without a model they compare dumps of any architecture.
- `inspect`, `import` and `align` read no model. They take any dump.
- `bisect` takes a MODEL that `dump` can run, or a reference's dump.
- MODEL may also be a llama2.c `.bin` (llama), a GGUF in parts, or a folder with several shards. Tests of crates/model and scripts/planted/weight_formats.py check that these give the same weights.
- Any other architecture that PyTorch or llama.cpp runs needs a [recorded program](../design/programs.md). [Architectures](../measured/architectures.md) lists those that were tried.

Written by `cargo xtask families`.

| MODEL | families | `weights` | `compare`, `gate` | `replay` | `explain` | `report` | `dump`, `bisect` |
|---|---|---|---|---|---|---|---|
";

/// A family in one format, with files of it in fixtures/.
struct ModelFiles {
    what: &'static str,
    families: &'static str,
    model: &'static str,
    /// The same weights in another format, or the same file.
    other: &'static str,
    /// Two dumps of it; the second is the candidate. If there are none, the output of `dump` is used for both.
    dumps: [&'static str; 2],
    /// Additional arguments.
    arguments: &'static [&'static str],
    tokens: &'static str,
}

const PROMPT: &str = "1,17,42,99,3,150,77,17,128,64,5";
const FORGETTING: &[&str] = &["--weights", "programs/forgetting/model.safetensors"];

/// A family as a Hugging Face folder.
const fn folder(
    families: &'static str,
    model: &'static str,
    other: &'static str,
    dumps: [&'static str; 2],
) -> ModelFiles {
    ModelFiles { what: "Hugging Face folder", families, model, other, dumps, arguments: &[], tokens: PROMPT }
}

/// The same in another format.
const fn in_format(format: &'static str, source: ModelFiles) -> ModelFiles {
    ModelFiles { what: format, ..source }
}

const SOURCES: [ModelFiles; 12] = [
    folder("llama", "models/llama", "gguf/llama-f16.gguf", ["golden/llama-torch", "faulty/llama-rope-pairing"]),
    folder("mistral", "models/mistral", "models/mistral", ["golden/mistral-torch.npz", "faulty/mistral-mask-fill.npz"]),
    folder("qwen2", "models/qwen2", "gguf/qwen2-f32.gguf", ["golden/qwen2-torch.npz", "faulty/qwen2-bias-omitted.npz"]),
    folder(
        "qwen3",
        "models/qwen3",
        "gguf/qwen3-f16.gguf",
        ["golden/qwen3-torch.safetensors", "faulty/qwen3-softmax-axis.npz"],
    ),
    folder(
        "minimind",
        "models/minimind",
        "models/minimind",
        ["golden/minimind-torch.npz", "faulty/minimind-norm-eps-outside.npz"],
    ),
    in_format(
        "Hugging Face folder in bf16",
        folder(
            "llama",
            "models/llama-bf16",
            "models/llama",
            ["golden/llama-bf16-torch.npz", "golden/llama-bf16-torch.npz"],
        ),
    ),
    in_format(
        "GGUF, f16",
        folder("llama", "gguf/llama-f16.gguf", "models/llama", ["golden/llama-torch", "faulty/llama-rope-pairing"]),
    ),
    in_format(
        "GGUF, f32",
        folder(
            "qwen2",
            "gguf/qwen2-f32.gguf",
            "models/qwen2",
            ["golden/qwen2-torch.npz", "faulty/qwen2-bias-omitted.npz"],
        ),
    ),
    ModelFiles {
        what: "GGUF, quantised",
        families: "llama",
        model: "field/rustorch.gguf",
        other: "field/rustorch.gguf",
        dumps: ["", ""],
        arguments: &[],
        tokens: "1,403,407,261,378",
    },
    ModelFiles {
        what: "MiniMind `.json`",
        families: "minimind",
        model: "field/celer_infer.json",
        other: "field/celer_infer.json",
        dumps: ["", "field/celer_infer.npz"],
        arguments: &[],
        tokens: "126,109,126,66,92",
    },
    ModelFiles {
        what: "recorded program",
        families: "any architecture",
        model: "programs/forgetting/golden",
        other: "programs/forgetting/model.safetensors",
        dumps: ["programs/forgetting/golden", "programs/forgetting/wrong.npz"],
        arguments: FORGETTING,
        tokens: "",
    },
    in_format(
        "dump without a program",
        folder(
            "any architecture",
            "golden/llama-torch",
            "models/llama",
            ["golden/llama-torch", "faulty/llama-rope-pairing"],
        ),
    ),
];

/// Writes docs/reference/families.md, or with `check` fails if the results differ.
pub(crate) fn run(check: bool) -> Result<u8> {
    let root = crate::root()?;
    let command = crate::readme::build(&root)?;
    let rows: Vec<String> = SOURCES.par_iter().map(|source| row(source, &root, &command)).collect::<Result<_>>()?;
    let text = HEAD.to_owned() + &rows.concat();
    let path = root.join("docs/reference/families.md");
    if !check {
        crate::docs::write(&path, &text)?;
    } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
        bail!("docs/reference/families.md does not say what the commands do; run `cargo xtask families`");
    }
    Ok(0)
}

fn row(source: &ModelFiles, root: &Path, command: &Path) -> Result<String> {
    let out = tempfile::tempdir()?;
    let at = |name: &str| out.path().join(name).display().to_string();
    let (made, page) = (at("dump"), at("page.html"));
    let ModelFiles { model, other, arguments, .. } = *source;
    let [reference, candidate] = source.dumps.map(|dump| if dump.is_empty() { made.as_str() } else { dump });
    let tokens: &[&str] = if source.tokens.is_empty() { &[] } else { &["--tokens", source.tokens] };
    let from: &[&str] = if model == reference { arguments } else { &["--model", model] };
    let weights = if arguments.is_empty() {
        vec!["weights", model, other]
    } else {
        vec!["weights", other, other, "--program", model]
    };
    // The order of runs is that of their dependencies, not that of the table.
    let runs = [
        [&["dump", model, "-o", &made][..], tokens, arguments].concat(),
        weights,
        [&["compare", reference, candidate][..], if arguments.is_empty() { from } else { &[] }].concat(),
        [&["replay", model, candidate][..], arguments].concat(),
        [&["explain", model, candidate][..], arguments].concat(),
        [&["report", reference, candidate, "-o", &page][..], from].concat(),
    ];
    let mut cells = Vec::new();
    for arguments in runs {
        let mut run = Command::new(command);
        let run = run.args(&arguments).current_dir(root.join("fixtures"));
        let status = run.stdout(Stdio::null()).stderr(Stdio::null()).status()?;
        cells.push(match status.code().context("killed")? {
            0 | 1 => "yes",
            2 => "no",
            code => bail!("firstdiff {} ended with {code}", arguments.join(" ")),
        });
    }
    cells.rotate_left(1);
    Ok(format!("| {} | {} | {} |\n", source.what, source.families, cells.join(" | ")))
}
