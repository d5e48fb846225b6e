//! Writes the files that packages ship with the command: man pages, one for each subcommand, and shell completions.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{CommandFactory, ValueEnum};
use clap_complete::Shell;
use firstdiff::commands::Cli;

/// Writes `man/*.1` and `completions/*` into a folder.
pub(crate) fn run(folder: &Path) -> Result<u8> {
    let (man, completions) = (folder.join("man"), folder.join("completions"));
    for folder in [&man, &completions] {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    clap_mangen::generate_to(Cli::command(), &man).with_context(|| man.display().to_string())?;
    for shell in Shell::value_variants() {
        clap_complete::generate_to(*shell, &mut Cli::command(), "firstdiff", &completions)
            .with_context(|| completions.display().to_string())?;
    }
    Ok(0)
}
