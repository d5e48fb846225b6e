//! `firstdiff join`: joins the parts of one comparison that several processes made.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use clap::{Args, Parser};
use firstdiff_compare::{JudgedBefore, JudgedShare};

use crate::commands::compare::{ShownArgs, show};
use crate::commands::part::PartHeader;
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

/// How many missing parts are named.
const NAMED: usize = 8;

/// The largest size of a part.
const LIMIT: u64 = 4 << 30;

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
    Ok((head, postcard::from_bytes(taps).with_context(no_part)?))
}
