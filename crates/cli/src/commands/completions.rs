//! `firstdiff completions`: prints a script that completes commands in a shell.

use anyhow::Result;
use clap::{Args, CommandFactory};
use clap_complete::Shell;

use crate::commands::Cli;
use crate::output::{PARITY, print};

pub(crate) const HELP: &str = "Examples:
  firstdiff completions bash > ~/.local/share/bash-completion/completions/firstdiff
  firstdiff completions zsh > ~/.zfunc/_firstdiff             a folder that stands in fpath
  firstdiff completions fish > ~/.config/fish/completions/firstdiff.fish";

#[derive(Debug, Args)]
pub(crate) struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

/// Prints the script.
///
/// # Errors
/// When standard output cannot be written.
pub(crate) fn run(args: &CompletionsArgs) -> Result<u8> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "firstdiff", &mut script);
    print(&String::from_utf8(script)?)?;
    Ok(PARITY)
}
