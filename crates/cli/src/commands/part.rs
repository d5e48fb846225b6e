//! Writes a part of one comparison, which `firstdiff join` joins with the others.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result, bail};
use clap::{ArgMatches, CommandFactory};
use firstdiff_compare::{Place, Share, judge_share};
use firstdiff_trace::Tap;
use serde::{Deserialize, Serialize};

use crate::commands::Cli;
use crate::commands::ci::matching_none;
use crate::output::{Inputs, PARITY, write_bytes};
use crate::session::Session;
use crate::session::pair::PairArgs;

/// The first line of a part; the taps follow it.
#[derive(Serialize, Deserialize)]
pub(crate) struct PartHeader {
    /// The version of the command that wrote it: another may judge differently.
    pub(crate) firstdiff: String,
    /// The arguments of `compare`, without the part.
    pub(crate) asked: Vec<String>,
    pub(crate) share: Share,
    /// A checksum of the rest.
    pub(crate) crc32: u32,
}

/// Judges a share and writes it.
pub(crate) fn write_part(pair: &PairArgs, taps: Option<&str>, share: Share, output: &Path) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(Some(output))?;
    let mut session = pair.open(&crate::session::TOOLS)?;
    if let Some(patterns) = taps {
        narrow(&mut session, patterns)?;
    }
    let bar = crate::progress::Bar::new(&session.reference);
    let (reference, candidate) = (&session.reference, &session.candidate);
    let judged = judge_share(reference, candidate, &session.graph, &session.options, share, &mut |done, all| {
        bar.step(done, all)
    })?;
    bar.finish();
    let taps = postcard::to_allocvec(&judged)?;
    let firstdiff = env!("CARGO_PKG_VERSION").to_owned();
    let head = PartHeader { firstdiff, asked: compare_arguments()?, share, crc32: crc32fast::hash(&taps) };
    let mut bytes = serde_json::to_vec(&head)?;
    bytes.push(b'\n');
    bytes.extend(taps);
    write_bytes(output, &bytes, &inputs)?;
    Ok(PARITY)
}

/// The arguments of `compare` in this process, without the part and its file.
fn compare_arguments() -> Result<Vec<String>> {
    let mut command = Cli::command();
    command.build();
    let matches = command.clone().get_matches();
    let (name, matches) = matches.subcommand().context("a part is one of `firstdiff compare`")?;
    let compare = command.find_subcommand(name).context("a part is one of `firstdiff compare`")?;
    let passed_on = compare.get_arguments().filter(|arg| !["part", "output"].contains(&arg.get_id().as_str()));
    let mut arguments = Vec::new();
    for arg in passed_on.filter(|arg| is_given(matches, arg.get_id().as_str())) {
        let values = matches.get_raw(arg.get_id().as_str()).into_iter().flatten();
        let values: Vec<String> = values
            .map(|value| value.to_str().map(str::to_owned).with_context(|| format!("{} is no UTF-8", value.display())))
            .collect::<Result<_>>()?;
        match arg.get_long() {
            Some(long) if arg.get_action().takes_values() => {
                arguments.extend(values.iter().map(|value| format!("--{long}={value}")))
            }
            Some(long) => arguments.push(format!("--{long}")),
            None => arguments.extend(values),
        }
    }
    Ok(arguments)
}

fn is_given(matches: &ArgMatches, id: &str) -> bool {
    matches.value_source(id) == Some(clap::parser::ValueSource::CommandLine)
}

/// Restricts the comparison to the taps that `patterns` name.
pub(crate) fn narrow(session: &mut Session, patterns: &str) -> Result<()> {
    let only: BTreeSet<Place> = session.graph.places().iter().copied().filter(|p| p.tap.matches(patterns)).collect();
    let all: Vec<Tap> = session.graph.places().iter().map(|place| place.tap).collect();
    if let Some(pattern) = matching_none(patterns, &all) {
        bail!("--taps {pattern}: no tap of either dump matches");
    }
    session.options.only = Some(only);
    session.warnings.push(format!("only the taps that match '{patterns}' were looked at"));
    Ok(())
}
