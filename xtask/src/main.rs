//! Runs the project's tasks: `cargo xtask assets | bisect | gate | fixtures | bench | fuzz | docs | mistakes | readme | zoo`. Only a thin layer over the
//! crates.

mod assets;
mod bench;
mod bisect;
mod book;
mod docs;
mod families;
mod fixtures;
mod fuzz;
mod gate;
mod links;
mod markdown;
mod readme;
mod schema;
mod why;
mod zoo;

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use clap::Parser;

/// The project's tasks.
#[derive(Parser)]
#[command(name = "cargo xtask")]
enum Xtask {
    /// Bisects two dumps by layer, then within the layer
    Bisect(firstdiff::PairArgs),
    /// What CI runs: our own forward against every golden dump, no tap worse than its baseline
    Gate {
        /// Write the baselines anew
        #[arg(long)]
        update: bool,
    },
    /// Makes every fixture again from scripts/ and compares; needs Python with scripts/requirements.txt
    Fixtures {
        /// Write them into fixtures/ instead of comparing
        #[arg(long)]
        update: bool,
        /// Leave out what needs llama-cpp-python
        #[arg(long)]
        skip_llama_cpp: bool,
    },
    /// Measures speed, against what people would use instead in the same run, and writes docs/measured/speed.md
    #[command(subcommand)]
    Bench(bench::Bench),
    /// Reads changed inputs of every form; exit code 1: one made a reader panic, hang, or allocate far more than it holds
    Fuzz(fuzz::FuzzArgs),
    /// Writes the command's man pages and shell completions, for packages
    Assets {
        /// Where to
        folder: PathBuf,
    },
    /// Writes the tables of docs/ from what the scripts measure; needs Python with scripts/requirements.txt
    Docs,
    /// Writes docs/reference/why, docs/SUMMARY.md and docs/reference/schema.md from the catalogue, the laws and the schema, or fails if they say something else
    Mistakes {
        /// Only compare
        #[arg(long)]
        check: bool,
    },
    /// Writes the JSON Schema of the reports and its pages from the reports' types, or fails if they say something else; builds the command with them
    Schema {
        /// Only compare
        #[arg(long)]
        check: bool,
    },
    /// Plants mistakes of every kind, has `explain` name them, and writes docs/measured/zoo.md; needs Python with NumPy. Exit code 1: a wrong cause
    Zoo {
        /// Where the candidates are, or are made [default: a temporary folder]
        #[arg(long)]
        folder: Option<PathBuf>,
        /// Plant only every Nth mistake
        #[arg(long, default_value_t = 1)]
        every: usize,
        /// Print the table, write nothing
        #[arg(long)]
        check: bool,
    },
    /// Writes the terminal runs in all documents anew, or fails if they are not what the command prints
    Readme {
        /// Only compare
        #[arg(long)]
        check: bool,
        /// Those too that take minutes
        #[arg(long)]
        slow: bool,
    },
    /// Runs every command on every kind of model of fixtures/ and writes docs/reference/families.md, or fails if it says something else
    Families {
        /// Only compare
        #[arg(long)]
        check: bool,
    },
    /// Looks for links of the documents that lead nowhere; exit code 2: there are some
    Links {
        /// Ask for pages of other people too; needs curl and a network
        #[arg(long)]
        online: bool,
    },
    /// What mdBook runs: leads links to files that are no pages to the repository
    Book {
        /// `supports RENDERER`, where mdBook asks that
        asked: Vec<String>,
    },
}

fn main() -> ExitCode {
    let outcome = match Xtask::parse() {
        Xtask::Bisect(args) => bisect::run(args),
        Xtask::Gate { update } => gate::run(update),
        Xtask::Fixtures { update, skip_llama_cpp } => fixtures::run(update, skip_llama_cpp),
        Xtask::Bench(what) => bench::run(&what),
        Xtask::Fuzz(args) => fuzz::run(&args),
        Xtask::Assets { folder } => assets::run(&folder),
        Xtask::Docs => docs::run(),
        Xtask::Mistakes { check } => why::run(check).and(schema::write_pages(check)),
        Xtask::Schema { check } => schema::run(check),
        Xtask::Zoo { folder, every, check } => zoo::run(folder, every.max(1), check),
        Xtask::Readme { check, slow } => readme::run(check, slow),
        Xtask::Families { check } => families::run(check),
        Xtask::Links { online } => links::run(online),
        Xtask::Book { asked } => book::run(&asked),
    };
    ExitCode::from(outcome.unwrap_or_else(|error| {
        firstdiff::output::report_error(&error);
        firstdiff::output::UNUSABLE
    }))
}

/// The repository's root.
fn root() -> Result<PathBuf> {
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    manifest.parent().map(PathBuf::from).ok_or_else(|| anyhow::anyhow!("xtask has no parent folder"))
}

/// The Python to run scripts with: `FIRSTDIFF_PYTHON`, else python3.
fn python() -> String {
    std::env::var("FIRSTDIFF_PYTHON").unwrap_or_else(|_| "python3".into())
}
