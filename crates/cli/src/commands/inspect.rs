//! `firstdiff inspect CAND`: checks one dump without a reference. Arguments, screen and JSON.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anstyle::Style;
use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::{Certainty, InspectFinding, Inspection, inspect};
use firstdiff_trace::{Rows, Site, Tap};

use crate::output::{DIVERGED, Inputs, PARITY};
use crate::progress::Bar;
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, described, paint};
use crate::report::Inspect;
use crate::session::incomplete::Incomplete;
use crate::session::is_recorded;
use crate::session::own_program::OwnProgram;
use crate::session::reading::refuse_rows;
use crate::words::{by_stack, layers_of, safe, shorten, taps_in_words, with_suggestion};

pub(crate) const HELP: &str = "Examples:
  firstdiff inspect out/dump                            before there is a reference, or weights to hand
  firstdiff inspect 'out/*_cpp.npy' --json -
  firstdiff inspect last.npz --rows last                the dump holds the last token only

Looks for what no right engine does: NaN, tensors or tails of exact zeros, uninitialised memory, constant rows, probabilities that do not
sum to 1 or lie behind the query, q_rope that equals q, rows that do not change with position, a residual stream that does not add up, one
buffer under two names. Each line says how sure it is: `certain` (no right engine does this), `likely`, or `note`. Where dump.json names no
architecture, or one that is no plain decoder, what another architecture may do on purpose (no RoPE, no mask, no softmax) is `likely` at most.
Where the dump holds its program (program.json), the operations that read no weights are carried out on the dump's own tensors: what is not
their result is `likely` wrong, and what they do themselves is a `note`.
None is a verdict: a dump without findings may still be wrong everywhere. Exit code 0: nothing certain. 1: something certain. 2: bad input.";

/// Lines of findings on the screen, unless all are requested.
const LINES: usize = 12;

/// The arguments of `inspect`.
#[derive(Debug, Args)]
pub(crate) struct InspectArgs {
    /// The dump to look at
    #[arg(value_name = "CAND")]
    pub(crate) candidate: PathBuf,
    /// Token positions the dump holds: all, last, or 0,3,7
    #[arg(long)]
    pub(crate) rows: Option<Rows>,
    #[command(flatten)]
    pub(crate) reading: crate::session::reading::ReadingArgs,
    #[command(flatten)]
    pub(crate) told: crate::session::reading::TokenArgs,
    /// Show every finding on a line of its own
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Inspects, prints, and returns the exit code.
///
/// # Errors
/// When something cannot be read, or the dump holds no tap.
pub(crate) fn run(args: InspectArgs) -> Result<u8> {
    let inputs = Inputs::of_command_line();
    inputs.refuse_input_as_output(args.json.as_deref())?;
    let dump = args.told.add_tokens(args.reading.open(&args.candidate)?)?;
    let dump = args.reading.asked_sequence(dump)?;
    refuse_rows(args.rows.as_ref(), &[&dump])?;
    let dump = firstdiff_compare::with_positions(dump).printed_as_f16();
    if let (true, Some(part)) = (dump.entries().is_empty(), dump.parts().first()) {
        let how = part.precision().map_or("in part".to_owned(), |p| format!("with {p}"));
        bail!(
            "{}: its taps are known {how} only ({} ..): `compare` uses such, inspect needs whole tensors",
            args.candidate.display(),
            part.tap
        );
    }
    if dump.entries().is_empty() && dump.open_taps().is_empty() {
        let names: Vec<String> = dump.unmapped().iter().map(|n| with_suggestion(n)).collect();
        bail!("{}: no tensor in it is named as a tap: {}", args.candidate.display(), shorten(&names, 4));
    }
    let bar = Bar::new(&dump);
    let mut inspection = inspect(&dump, args.rows.as_ref(), &mut |done, total| bar.step(done, total))?;
    bar.finish();
    if is_recorded(&args.candidate) {
        let own = OwnProgram::run(&args.candidate, args.rows.clone(), &args.reading, &args.told, &inspection)?;
        own.apply_to(&mut inspection);
    }
    let report = Inspect::new(&dump, &inspection);
    crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
    if args.json.as_deref() != Some(Path::new("-")) {
        crate::output::print(screen(&report, &inspection, args.verbose).as_str())?;
    }
    if inspection.count(Certainty::Certain) > 0 {
        return Ok(DIVERGED);
    }
    let incomplete = Incomplete::find_in(&[("the candidate", &dump)], None);
    match incomplete.is_empty() || args.reading.partial {
        true => Ok(PARITY),
        false => bail!("{}: {}", args.candidate.display(), incomplete.why_no_parity()),
    }
}

fn screen(report: &Inspect, inspection: &Inspection, verbose: bool) -> Screen {
    let mut screen = Screen::default();
    screen.line(&format!("candidate  {}", described(&report.candidate)));
    let read = format!(
        "looked at  {}, with no reference and no weights: nothing here is a verdict",
        taps_in_words(report.looked_at)
    );
    screen.line(&paint(DIM, &read));
    screen.line("");
    let groups = group_findings(inspection, verbose);
    let most = if verbose { usize::MAX } else { LINES };
    for group in groups.iter().take(most) {
        finding(&mut screen, group);
    }
    if groups.len() > most {
        screen.line(&format!("  ... and {} more (-v shows all)", groups.len() - most));
    }
    let [certain, likely, notes] = [Certainty::Certain, Certainty::Likely, Certainty::Note]
        .map(|sure| groups.iter().filter(|g| g[0].sure == sure).count());
    let counts = format!("{certain} certain, {likely} likely, {notes} to note");
    match certain + likely {
        0 => screen.line(&format!("{} nothing that right engines do not do, {notes} to note", paint(GOOD, "found:"))),
        _ => screen.line(&format!("{} {counts}", paint(if certain > 0 { BAD } else { WARN }, "found:"))),
    }
    for text in &report.unseen {
        screen.line(&format!("{} {}", paint(WARN, "not looked at:"), safe(text)));
    }
    if !report.unmapped.is_empty() {
        let names: Vec<String> = report.unmapped.iter().map(|n| with_suggestion(n)).collect();
        screen.line(&format!("{} names that are no taps: {}", paint(WARN, "not looked at:"), shorten(&names, 6)));
    }
    for note in &report.warnings {
        screen.line(&format!("{} {note}", paint(WARN, "note:")));
    }
    screen.line(&format!("next: {}", report.next));
    screen
}

/// Findings grouped by kind, the most certain first, else in the order in which they were found.
fn group_findings(inspection: &Inspection, verbose: bool) -> Vec<Vec<&InspectFinding>> {
    let mut groups: Vec<Vec<&InspectFinding>> = Vec::new();
    for finding in &inspection.findings {
        let same = |g: &&mut Vec<&InspectFinding>| {
            (g[0].sure, g[0].what, g[0].points_to) == (finding.sure, finding.what, finding.points_to)
        };
        match if verbose { None } else { groups.iter_mut().find(same) } {
            Some(group) => group.push(finding),
            None => groups.push(vec![finding]),
        }
    }
    groups.sort_by_key(|g| g[0].sure);
    groups
}

fn style(sure: Certainty) -> Style {
    match sure {
        Certainty::Certain => BAD,
        Certainty::Likely => WARN,
        Certainty::Note => DIM,
    }
}

fn finding(screen: &mut Screen, group: &[&InspectFinding]) {
    let first = group[0];
    let sure = paint(style(first.sure), &format!("{:<7}", first.sure.name()));
    let more = if group.len() > 1 { " (the first)" } else { "" };
    screen.line(&format!("  {sure}  {}: {}{more}", paint(BOLD, &places(group)), safe(&first.detail)));
    if !first.points_to.is_empty() {
        screen.line(&paint(DIM, &format!("           {}", first.points_to)));
    }
}

/// `layers 0-21, q_rope`; the first few names where sites are several.
fn places(group: &[&InspectFinding]) -> String {
    if group.len() == 1 {
        return group[0].place.to_string();
    }
    let (low, high) = (group.iter().map(|f| f.place.step).min(), group.iter().map(|f| f.place.step).max());
    let steps = match (low, high) {
        (Some(0), Some(0)) => String::new(),
        (Some(low), Some(high)) if low == high => format!(" (decode step {low})"),
        (Some(low), Some(high)) => format!(" (steps {low}-{high})"),
        _ => String::new(),
    };
    let taps: BTreeSet<Tap> = group.iter().map(|f| f.place.tap).collect();
    let stacks = by_stack(taps.iter().copied());
    let sites: BTreeSet<Site> = taps.iter().map(|t| t.site).collect();
    if let [layers] = stacks.values().collect::<Vec<_>>().as_slice()
        && let (Some(low), Some(high)) = (layers.first(), layers.last())
        && low < high
        && (high - low) as usize + 1 == layers.len()
        && layers.len() * sites.len() == taps.len()
    {
        let sites: Vec<String> = sites.iter().map(|s| s.name().to_owned()).collect();
        return format!("{}, {}{steps}", layers_of(taps), shorten(&sites, 4));
    }
    let names: Vec<String> = taps.iter().map(ToString::to_string).collect();
    format!("{}{steps}", shorten(&names, 4))
}
