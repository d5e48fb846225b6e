//! How are dumps read that do not say everything themselves? Tables of names, element types, and which sequence of a batch.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use clap::Args;
use firstdiff_trace::{DType, Dump, Names, Reading};

/// What can be told of files that do not say it.
#[derive(Clone, Debug, Default, Args)]
pub struct ReadingArgs {
    /// A table of names, `"your_name_l{N}" = "layers.{N}.q"` [default: firstdiff.toml in the dump's folder, else in this one]
    #[arg(long, value_name = "FILE")]
    pub map: Option<PathBuf>,
    /// The element type of raw floats that have no header: f32, f16, bf16, f64 [default: as the file's ending or its bits say]
    #[arg(long)]
    pub dtype: Option<DType>,
    /// Which sequence of a batch, counted from 0
    #[arg(long, value_name = "N")]
    pub sequence: Option<usize>,
}

impl ReadingArgs {
    /// Opens a dump.
    ///
    /// # Errors
    /// When it, or the table of names, cannot be read.
    pub fn open(&self, path: &Path) -> Result<Dump> {
        let names = match &self.map {
            Some(map) => Some(Names::open(map)?),
            None if path.join(FILE).exists() => None,
            None if Path::new(FILE).exists() => Some(Names::open(Path::new(FILE))?),
            None => None,
        };
        let mut dump = Dump::open_with(path, &Reading { names, dtype: self.dtype, name: None })?;
        firstdiff_compare::own_rows(&mut dump)?;
        Ok(dump)
    }
}

/// The tokens that a dump does not name itself.
#[derive(Clone, Debug, Default, Args)]
pub struct TokenArgs {
    /// Token ids that were fed, where a dump does not say: those of the prefill, or of all steps
    #[arg(long, value_delimiter = ',')]
    pub tokens: Option<Vec<i64>>,
    /// Token ids of the decode steps, where a dump does not say
    #[arg(long, value_delimiter = ',', requires = "tokens")]
    pub decode_tokens: Option<Vec<i64>>,
}

impl TokenArgs {
    /// The dump, told which tokens it was fed if it does not say so itself.
    ///
    /// # Errors
    /// When it says others.
    pub fn tell(&self, dump: Dump) -> Result<Dump> {
        let Some(tokens) = &self.tokens else { return Ok(dump) };
        let path = dump.path().display().to_string();
        dump.told_tokens(tokens, self.decode_tokens.as_deref().unwrap_or_default()).map_err(|at| {
            anyhow::anyhow!("{path}: its own token ids are others than those of --tokens, from index {at} on: leave --tokens out, or correct one")
        })
    }
}

/// The table of names that is read unasked.
const FILE: &str = "firstdiff.toml";

/// The run of one sequence of `dump`, of which `count` were run at once; and what is left unchecked.
pub(crate) fn one_of(dump: Dump, asked: Option<usize>, count: usize) -> Result<(Dump, Vec<String>)> {
    let index = asked.unwrap_or(0);
    let path = dump.path().display().to_string();
    let one = Dump::sequence(&Arc::new(dump), index, count).with_context(|| path)?;
    let said = match asked {
        Some(index) => format!("a batch of {count} sequences: sequence {index} was judged"),
        None => format!("a batch of {count} sequences: the first was judged; --sequence N for another"),
    };
    Ok((one, if count > 1 { vec![said] } else { Vec::new() }))
}
