//! Handles what CI needs beside the verdict: taps that must have been compared, and the outcome in the formats of CI systems.

use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::{Args, ValueEnum};
use firstdiff_compare::{Report, Status, TapReport};
use firstdiff_trace::Tap;

use crate::output::{DIVERGED, Inputs, PARITY};
use crate::render::github;
use crate::render::junit;
use crate::report::{CiOutcome, RequiredUnchecked};

/// Arguments of the commands that run in CI.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct CiArgs {
    /// Taps that must have been compared, at every step that either dump holds of them: patterns with *, separated by commas. Unchecked there is exit code 1
    #[arg(long, value_name = "PATTERNS")]
    require: Option<String>,
    /// Exit code 1 where any tap is unchecked: the same as --require '*'
    #[arg(long, conflicts_with = "require")]
    fail_on_unchecked: bool,
    /// github: also annotations of the job, and its summary
    #[arg(long, value_enum, default_value_t)]
    format: Format,
    /// Write every tap as a test case to this file, in JUnit's form
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
}

/// In which form the outcome is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// For people.
    #[default]
    Text,
    /// For people, with commands that GitHub's runner reads.
    Github,
}

impl CiArgs {
    /// The files that are written: the test cases, and the summary of the step.
    pub(crate) fn files(&self) -> [Option<PathBuf>; 2] {
        [self.junit.clone(), self.summary()]
    }

    /// The summary of the step, in a job of GitHub Actions.
    fn summary(&self) -> Option<PathBuf> {
        let path = std::env::var_os("GITHUB_STEP_SUMMARY").filter(|path| !path.is_empty());
        path.filter(|_| self.format == Format::Github).map(PathBuf::from)
    }

    /// The screen for standard output. In a job of GitHub Actions the runner is told not to look for commands in it, as it contains foreign names.
    pub(crate) fn screen_text(&self, screen: &str) -> String {
        match self.format {
            Format::Text => screen.to_owned(),
            Format::Github => github::without_commands(screen),
        }
    }

    /// The taps that had to be compared and were not, or only in part. `rows_asked`: whether only some token positions were requested.
    ///
    /// # Errors
    /// When a pattern matches no tap of either dump: a misspelt pattern would require nothing.
    pub(crate) fn required_unchecked(&self, report: &Report, rows_asked: bool) -> Result<Vec<RequiredUnchecked>> {
        let patterns = match (&self.require, self.fail_on_unchecked) {
            (Some(patterns), _) => patterns.as_str(),
            (None, true) => "*",
            (None, false) => return Ok(Vec::new()),
        };
        // Of the names that are no taps, those that are required by name; dumped weights have a command of their own.
        let named = report.unmapped.iter().filter(|name| self.require.is_some() && !name.starts_with("weights."));
        let one_sided: Vec<Tap> = report.one_sided.iter().chain(named).map(|name| Tap::named(name)).collect();
        let all: Vec<Tap> = report.taps.iter().map(|tap| tap.place.tap).chain(one_sided.iter().copied()).collect();
        if let Some(pattern) = matching_none(patterns, &all) {
            bail!("--require {pattern}: none of the taps that are looked at matches");
        }
        // A tap that a dump holds in part was compared in part. Of requested rows, all were compared.
        let is_in_part = |tap: &TapReport| {
            !rows_asked
                && (tap.positions.is_some() || tap.is_last || tap.part.as_ref().is_some_and(|part| !part.is_all()))
        };
        let is_unmet = |tap: &&TapReport| {
            (tap.status == Status::Unchecked || tap.status.agrees() && is_in_part(tap))
                && tap.place.tap.matches(patterns)
        };
        let unmet = report.taps.iter().filter(is_unmet).map(|tap| RequiredUnchecked::new(report, tap));
        let in_one = one_sided.iter().filter(|tap| tap.matches(patterns)).map(|tap| RequiredUnchecked {
            tap: tap.to_string(),
            step: 0,
            place: tap.to_string(),
            reason: Some("in one of the two dumps alone".to_owned()),
        });
        Ok(unmet.chain(in_one).collect())
    }

    /// Prints and writes what CI shows. `screen` is the screen without colours.
    ///
    /// # Errors
    /// When it cannot be printed or written.
    pub(crate) fn write_outcome(
        &self,
        outcome: &CiOutcome<'_>,
        screen: impl Fn() -> String,
        inputs: &Inputs,
    ) -> Result<()> {
        if let Some(path) = &self.junit {
            crate::output::write(path, &junit::text(outcome)?, inputs)?;
        }
        if self.format == Format::Github {
            // The runner reads both streams; standard output may be needed for JSON.
            eprint!("{}", github::annotations(outcome));
            if let Some(path) = self.summary() {
                github::add_summary(&path, outcome.concluded, &screen())?;
            }
        }
        Ok(())
    }
}

/// The exit code, where what had to be compared was not.
pub(crate) fn with_unmet(code: u8, unmet: &[RequiredUnchecked]) -> u8 {
    if code == PARITY && !unmet.is_empty() { DIVERGED } else { code }
}

/// The first of the patterns that matches none of `taps`.
pub(crate) fn matching_none<'a>(patterns: &'a str, taps: &[Tap]) -> Option<&'a str> {
    patterns.split(',').map(str::trim).find(|pattern| !taps.iter().any(|tap| tap.matches(pattern)))
}
