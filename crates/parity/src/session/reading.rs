//! Defines the arguments for reading dumps that do not fully describe themselves: tables of names, element types, the sequence of a batch. Opens dumps by
//! them.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, Result, bail};
use firstdiff_trace::{Batch, DType, Dump, NameMap, Names, OpenOptions, Rows, Tap, own_table, split_stored_name};

use crate::session::remote;
use crate::words::shorten;

/// What can be told of files that do not say it.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "command", derive(clap::Args))]
pub struct ReadingArgs {
    /// A table of names, `"your_name_l{N}" = "layers.{N}.q"` [default: firstdiff.toml in the folder of the dump, or of its file, else in this one]
    #[cfg_attr(feature = "command", arg(long, value_name = "FILE"))]
    pub map: Option<PathBuf>,
    /// The element type of raw floats that have no header, and of two-byte NumPy arrays that name none: f32, f16, bf16, f64 [default: as the file's ending or its bits say]
    #[cfg_attr(feature = "command", arg(long))]
    pub dtype: Option<DType>,
    /// Which sequence of a batch, counted from 0
    #[cfg_attr(feature = "command", arg(long, value_name = "N"))]
    pub sequence: Option<usize>,
    /// Judge what is there of a recording that was not finished: its dump.json says "complete": false
    #[cfg_attr(feature = "command", arg(long))]
    pub partial: bool,
}

impl ReadingArgs {
    /// Opens a dump.
    ///
    /// # Errors
    /// When it, or the table of names, cannot be read.
    pub fn open(&self, path: &Path) -> Result<Dump> {
        self.open_as(path, None, false)
    }

    /// Opens a candidate's dump: a name that the reference uses too means the same tap.
    ///
    /// # Errors
    /// When it, or the table of names, cannot be read, or that table names taps that the reference does not have.
    pub fn open_beside(&self, reference: &NameMap, path: &Path) -> Result<Dump> {
        self.open_as(path, Some(reference), false)
    }

    /// Opens two dumps. Of two that hold one tensor each, of which at least one has the name of no tap, the tensors are compared whatever their names are.
    ///
    /// # Errors
    /// As [`ReadingArgs::open_beside`].
    pub fn open_both(&self, reference: &Path, candidate: &Path) -> Result<[Dump; 2]> {
        let ours = self.open_as(reference, None, true)?;
        let mut theirs = self.open_as(candidate, Some(ours.names_read()), true)?;
        let is_open = |tap: Option<Tap>| tap.is_some_and(|tap| tap.is_open());
        let (one, other) = match [&ours, &theirs].map(Dump::only_tensor) {
            [Some(one), Some(other)] => (one, other),
            // A file of one tensor must tell which of several it is.
            [one, None] if is_open(one) => return Ok([self.open(reference)?, theirs]),
            [None, other] if is_open(other) => {
                let theirs = self.open_beside(ours.names_read(), candidate)?;
                return Ok([ours, theirs]);
            }
            _ => return Ok([ours, theirs]),
        };
        if one != other && (one.is_open() || other.is_open()) {
            let file = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            theirs.note(format!("the one tensor of {} was compared with that of {}", file(candidate), file(reference)));
        }
        let unnamed = if one == other { one } else { Tap::named(TENSOR) };
        Ok(match [one, other].map(|tap| tap.is_open()) {
            [true, true] => [ours.rename_only_tensor(unnamed)?, theirs.rename_only_tensor(unnamed)?],
            [true, false] => [ours.rename_only_tensor(other)?, theirs],
            [false, true] => [ours, theirs.rename_only_tensor(one)?],
            [false, false] => [ours, theirs],
        })
    }

    fn open_as(&self, path: &Path, reference: Option<&NameMap>, unnamed: bool) -> Result<Dump> {
        let is_address = remote::is_address(path);
        let names = match &self.map {
            Some(map) => Some(Names::open(map)?),
            // For files that are elsewhere, only their own table counts.
            None if is_address || own_table(path).is_some() => None,
            None if Path::new(FILE).exists() => Some(Names::open(Path::new(FILE))?),
            None => None,
        };
        let reference = reference.map(|names| Arc::new(names.clone()));
        let asked = names.clone().filter(|_| self.map.is_some() && reference.is_some());
        let options = OpenOptions { names, dtype: self.dtype, name: None, unnamed, reference };
        let mut dump = match is_address {
            true => remote::open(path, &options)?,
            false => Dump::open_with(path, &options)?,
        };
        firstdiff_compare::own_rows(&mut dump)?;
        asked.map_or(Ok(()), |names| note_unused(&names, &mut dump))?;
        Ok(dump)
    }
}

/// Notes the taps for which a table has names and a dump has no tensor by any of them.
///
/// # Errors
/// When that is all of the table.
fn note_unused(names: &Names, dump: &mut Dump) -> Result<()> {
    let held = dump.entries().iter().map(|entry| entry.tap).chain(dump.parts().iter().map(|part| part.tap));
    let open = dump.unmapped().iter().map(|name| Tap::named(split_stored_name(name).0));
    let held: BTreeSet<String> = held.chain(open).flat_map(|tap| [tap.to_string(), tap.in_layers("{N}")]).collect();
    let unused: Vec<String> = names.taps().filter(|tap| !held.contains(*tap)).map(str::to_owned).collect();
    let (table, list) = (names.origin().display().to_string(), shorten(&unused, 4));
    if !unused.is_empty() && unused.len() == names.taps().count() {
        let own: Vec<String> = dump.unmapped().to_vec();
        let own = if own.is_empty() { String::new() } else { format!("; its unknown names are {}", shorten(&own, 4)) };
        bail!("--map {table}: {} has no tensor of any name in it (for {list}){own}", dump.path().display());
    }
    if !unused.is_empty() {
        dump.note(format!("{table}: the candidate has no tensor of the names in it for {list}"));
    }
    Ok(())
}

impl ReadingArgs {
    /// The requested sequence; the dump unchanged where none was requested.
    ///
    /// # Errors
    /// When the dump has no such sequence, or is not a batch.
    pub fn asked_sequence(&self, dump: Dump) -> Result<Dump> {
        let Some(index) = self.sequence else { return Ok(dump) };
        match Batch::detect(&dump, &|_, _| None) {
            Some(batch) => Ok(take_sequence(dump, Some(index), &batch)?.0),
            None if index == 0 => Ok(dump),
            None => bail!("--sequence {index}: {} is not of a batch", dump.path().display()),
        }
    }
}

/// A token's id on the command line.
pub fn token<T: FromStr>(text: &str) -> Result<T, String> {
    text.trim()
        .parse()
        .map_err(|_| "token ids are wanted, not text: numbers separated by commas, as 1,403,407".to_owned())
}

/// Refuses token positions that none of the dumps has, where they say how many there are.
///
/// # Errors
/// When a position is behind the last.
pub fn refuse_rows(rows: Option<&Rows>, dumps: &[&Dump]) -> Result<()> {
    let Some(Rows::List(list)) = rows else { return Ok(()) };
    let Some(count) = dumps.iter().filter_map(|dump| positions(dump)).max() else { return Ok(()) };
    match list.iter().find(|&&row| row >= count) {
        Some(row) => bail!("--rows {row}: the run has {count} tokens, the last at position {}", count - 1),
        None => Ok(()),
    }
}

/// How many token positions the run has: as declared, or as the shapes of a prefill of several show. Where that is unclear, a number that is not too small.
fn positions(dump: &Dump) -> Option<usize> {
    let meta = dump.meta();
    let later = meta.decode_tokens.as_ref().map_or(0, Vec::len);
    if let Some(tokens) = &meta.tokens {
        return Some(tokens.len() + later);
    }
    let entries = dump.entries().iter();
    // In another layout any axis may be that of positions: the longest of all is not too short.
    let longest = entries.clone().filter_map(|e| e.shape.iter().max()).max().copied();
    let in_shape = entries.clone().any(|e| e.shape.len() >= e.tap.site.axes().len() && e.rows.is_none());
    let steps = entries.map(|e| e.step as usize).max().unwrap_or(0).max(later);
    longest.filter(|&extent| in_shape && extent > 1).and_then(|extent| extent.checked_add(steps))
}

/// The tokens that a dump does not name itself.
#[derive(Clone, Debug, Default)]
#[cfg_attr(feature = "command", derive(clap::Args))]
pub struct TokenArgs {
    /// Token ids that were fed, where a dump does not say: those of the prefill, or of all steps
    #[cfg_attr(feature = "command", arg(long, value_delimiter = ',', value_parser = token::<i64>))]
    pub tokens: Option<Vec<i64>>,
    /// Token ids of the decode steps, where a dump does not say
    #[cfg_attr(feature = "command", arg(long, value_delimiter = ',', requires = "tokens", value_parser = token::<i64>))]
    pub decode_tokens: Option<Vec<i64>>,
}

impl TokenArgs {
    /// The dump with the ids of the tokens it was fed, if it does not declare them itself.
    ///
    /// # Errors
    /// When it declares others.
    pub fn add_tokens(&self, dump: Dump) -> Result<Dump> {
        let Some(tokens) = &self.tokens else { return Ok(dump) };
        let path = dump.path().display().to_string();
        dump.with_tokens(tokens, self.decode_tokens.as_deref().unwrap_or_default()).map_err(|at| {
            anyhow::anyhow!("{path}: its own token ids are others than those of --tokens, from index {at} on: leave --tokens out, or correct one")
        })
    }
}

/// The name under which the only tensor of a file is compared with that of another, where neither has the name of a tap.
const TENSOR: &str = "tensor";

/// The table of names that is read by default.
pub const FILE: &str = "firstdiff.toml";

/// The run of one sequence of `dump`, which is a batch; and notes on what is left unchecked.
pub fn take_sequence(dump: Dump, requested: Option<usize>, batch: &Batch) -> Result<(Dump, Vec<String>)> {
    let (index, count) = (requested.unwrap_or(0), batch.count());
    let path = dump.path().display().to_string();
    let one = batch.sequence(&Arc::new(dump), index).with_context(|| path)?;
    let note = match requested {
        Some(index) => format!("a batch of {count} sequences: sequence {index} was judged"),
        None => format!("a batch of {count} sequences: the first was judged; --sequence N for another"),
    };
    Ok((one, vec![note]))
}
