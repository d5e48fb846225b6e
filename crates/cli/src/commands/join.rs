//! `firstdiff join`: joins the parts of one comparison that several processes made.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::{ArgMatches, Args, CommandFactory, Parser};
use firstdiff_compare::{JudgedBefore, JudgedShare, Share, judge_share};
use serde::{Deserialize, Serialize};

use crate::commands::Cli;
use crate::commands::compare::{ShownArgs, narrow, show};
use crate::output::{Inputs, PARITY, write_bytes};
use crate::session::pair::PairArgs;

pub(crate) const HELP: &str = "Examples:
  firstdiff compare golden/llama out/dump --part 1/2 -o 1.part      on one machine
  firstdiff compare golden/llama out/dump --part 2/2 -o 2.part      on another, at the same time
  firstdiff join 1.part 2.part --json report.json                   the report of one run, byte for byte

Every part names the two dumps as it was given them: join from the same folder, or use absolute paths. The dumps are read once more where
taps differ, to see whether what they read explains it; of what agrees some bytes are, and a dump that is no longer what a part was made of is refused (not one in an
object store: there nothing is read).";

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// What `firstdiff compare --part 1/N` .. `--part N/N` wrote, in any order
    #[arg(required = true, value_name = "PART")]
    parts: Vec<PathBuf>,
    #[command(flatten)]
    shown: ShownArgs,
}

/// The arguments that `compare` was given.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct CompareArguments {
    #[command(flatten)]
    pair: PairArgs,
    #[arg(long)]
    taps: Option<String>,
}

/// The first line of a part; the taps follow it.
#[derive(Serialize, Deserialize)]
struct PartHeader {
    /// The version of the command that wrote it: another may judge differently.
    firstdiff: String,
    /// The arguments of `compare`, without the part.
    asked: Vec<String>,
    share: Share,
    /// A checksum of the rest.
    crc32: u32,
}

/// How many missing parts are named.
const NAMED: usize = 8;

/// The largest size of a part.
const LIMIT: u64 = 4 << 30;

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
    let taps = judged.to_bytes()?;
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

pub(crate) fn run(args: JoinArgs) -> Result<u8> {
    let parts = args.parts.iter().map(|path| read(path)).collect::<Result<Vec<(PartHeader, JudgedShare)>>>()?;
    let [(first, _), ..] = &parts[..] else { bail!("no part is named") };
    for ((head, _), path) in parts.iter().zip(&args.parts) {
        ensure!(
            head.asked == first.asked && head.share.of == first.share.of,
            "{}: the parts are not of one comparison: `compare {}` in {} parts, and `compare {}` in {}",
            path.display(),
            first.asked.join(" "),
            first.share.of,
            head.asked.join(" "),
            head.share.of
        );
    }
    let (of, numbers) = (first.share.of, parts.iter().map(|(head, _)| head.share.number).collect::<BTreeSet<usize>>());
    let absent = of - numbers.range(1..=of.max(1)).count().min(of);
    let missing = (1..=of).filter(|number| !numbers.contains(number)).map(|number| format!("{number}/{of}"));
    let missing = missing.take(NAMED.min(absent)).collect::<Vec<_>>().join(", ");
    let more = absent.checked_sub(NAMED + 1).map_or(String::new(), |more| format!(" and {} more", more + 1));
    ensure!(absent == 0, "part {missing}{more} is missing");
    ensure!(parts.len() == of, "a part is named twice");
    let arguments = CompareArguments::try_parse_from(&first.asked)?;
    let judged: JudgedBefore = parts.into_iter().map(|(_, judged)| judged).collect();
    show(&arguments.pair, arguments.taps.as_deref(), &args.shown, &args.parts, Some(Arc::new(judged)))
}

fn read(path: &Path) -> Result<(PartHeader, JudgedShare)> {
    let bytes = firstdiff_trace::read_regular(path, LIMIT)?;
    let no_part = || format!("{}: not what `firstdiff compare --part` writes", path.display());
    let end = bytes.iter().position(|byte| *byte == b'\n').with_context(no_part)?;
    let head: PartHeader = serde_json::from_slice(&bytes[..end]).with_context(no_part)?;
    let own = env!("CARGO_PKG_VERSION");
    ensure!(head.firstdiff == own, "{}: written by firstdiff {}, and this is {own}", path.display(), head.firstdiff);
    let taps = &bytes[end + 1..];
    ensure!(crc32fast::hash(taps) == head.crc32, "{}: cut short, or changed since it was written", path.display());
    Ok((head, JudgedShare::from_bytes(taps).with_context(no_part)?))
}
