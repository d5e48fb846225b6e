//! `firstdiff gate`: fails where a tap is worse than its baseline.

use std::collections::HashSet;
use std::path::PathBuf;

use anyhow::{Result, bail};
use clap::Args;

use crate::baseline::{Accepted, Baseline, Regression};
use crate::commands::ci::CiArgs;
use crate::commands::compare::finish;
use crate::commands::{in_lines, print_lines};
use crate::output::{DIVERGED, Inputs, PARITY, is_stdout, print};
use crate::render::compare::render;
use crate::render::gate::{
    accepted_suffix, failed_in_words, note, passed_in_words, unmet_in_words, unmet_line, worse_number,
};
use crate::render::html::Page;
use crate::render::screen::Detail;
use crate::report::{CiFailure, CiOutcome, Gate, RequiredUnchecked};
use crate::session::Comparison;
use crate::session::arithmetic::as_it_asks;
use crate::session::incomplete::Incomplete;
use crate::session::pair::PairArgs;
use crate::words::taps_in_words;

pub(crate) const GATE_HELP: &str = "Examples:
  firstdiff gate golden/llama out/dump --baseline parity.baseline --update    once, and when the change is meant
  firstdiff gate golden/llama out/dump --baseline parity.baseline             in CI
  firstdiff gate golden/llama out/dump --baseline parity.baseline --fail-on-unchecked --format github --html report.html

The baseline is a text file with one line a tap. A tap fails when it diverged, is missing, is compared at fewer positions, or its
NMSE is more than 4 times its baseline's (and more than a hundredth of what the profile allows: other processors round otherwise).

An engine in another arithmetic, whose error you know and accept, can be held to its own: --update --accept-diverged --reason TEXT writes a
baseline that says it is not parity, of which taps, who accepts that and why. Later runs fail where a tap is worse than that, or has another
constant factor (by more than 2 %), or where a tap that agreed is wrong in itself; and where a tap agrees again, so that nothing is allowed that need not be.";

#[derive(Debug, Args)]
pub(crate) struct GateArgs {
    #[command(flatten)]
    pair: PairArgs,
    /// The baseline file
    #[arg(long, value_name = "FILE")]
    baseline: PathBuf,
    /// Write the baseline from this comparison, which must be at parity
    #[arg(long)]
    update: bool,
    /// With --update: write it though the two are not at parity; the engine is then held to what it is now, and that is said each time
    #[arg(long, requires = "update")]
    accept_diverged: bool,
    /// With --accept-diverged: why they may differ; it stands in the baseline, and every pass says it
    #[arg(long, value_name = "TEXT", requires = "accept_diverged")]
    reason: Option<String>,
    /// With --accept-diverged: who accepts it [default: who runs the job or is logged in]
    #[arg(long, value_name = "NAME", requires = "accept_diverged")]
    by: Option<String>,
    /// Write the report as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Write the comparison as a page to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
    #[command(flatten)]
    ci: CiArgs,
}

pub(crate) fn run_gate(args: GateArgs) -> Result<u8> {
    let dumps = Inputs::of_command_line();
    let inputs = dumps.clone().also([&args.baseline]);
    let [junit, summary] = args.ci.files();
    let files = [args.json.as_deref(), args.html.as_deref(), junit.as_deref(), summary.as_deref()];
    let written = Some(&*args.baseline).filter(|_| args.update);
    dumps.refuse_inputs_as_outputs(files.into_iter().chain([written]))?;
    inputs.refuse_inputs_as_outputs(files)?;
    let by = args.by.clone().or_else(whoever_runs_this);
    let accepted_now = Accepted::new(by.as_deref(), args.reason.as_deref());
    for (option, text, kept) in
        [("--reason", &args.reason, &accepted_now.because), ("--by", &args.by, &accepted_now.by)]
    {
        if text.is_some() && kept.is_none() {
            bail!("{option}: says nothing");
        }
    }
    // An unreadable baseline is reported before a long comparison.
    let baseline = if args.update { None } else { Some(Baseline::read(&args.baseline)?) };
    let judged = args.pair.judged(&crate::session::TOOLS)?;
    let regressions = baseline.as_ref().map(|b| b.regressions(&judged.report)).unwrap_or_default();
    let finished = finish(&judged);
    let accepted = baseline.as_ref().and_then(Baseline::accepted);
    let is_accepted = accepted.is_some() && !matches!(finished, Ok(PARITY));
    let unmet = args.ci.required_unchecked(&judged.report, args.pair.rows.is_some())?;
    let report = Gate::new(&judged, &regressions, accepted.filter(|_| is_accepted), unmet);
    let unmet = &report.compare.required_unchecked;
    let worse = if regressions.is_empty() && !unmet.is_empty() { String::new() } else { failed_in_words(&regressions) };
    let worse_in_words = worse + &unmet_line(unmet);
    crate::render::json::to_file(args.json.as_deref(), &report, &inputs)?;
    if let Some(path) = &args.html {
        let failed = match (report.passed, is_accepted) {
            (true, true) => {
                vec![format!(
                    "Not parity: held to its own baseline, {}{}.",
                    args.baseline.display(),
                    accepted_suffix(accepted)
                )]
            }
            (true, false) => Vec::new(),
            (false, _) => worse_in_words.lines().map(|line| line.trim().to_owned()).collect(),
        };
        let passed = (!args.update).then_some(report.passed);
        Page { compared: Some((&judged, &report.compare)), passed, failed, ..Page::default() }
            .to_file(Some(path), &inputs)?;
    }
    let held_by = accepted.filter(|_| is_accepted);
    let passed = || in_lines(&passed_in_words(&args.baseline, &judged, baseline.as_ref(), held_by));
    let concluded = match (args.update, report.passed) {
        (true, _) => judged.report.verdict.name(),
        (false, true) => "gate passed",
        (false, false) => "gate failed",
    };
    let failures = failures(&judged, &regressions, is_accepted, unmet);
    args.ci.write_outcome(
        &CiOutcome { report: &judged.report, concluded, failures, held: is_accepted },
        || match report.passed {
            true => anstream::adapter::strip_str(&passed()).to_string(),
            false => render(&judged, Detail::Folded).to_plain() + &worse_in_words,
        },
        &inputs,
    )?;
    let screen = !is_stdout(args.json.as_ref()) && !is_stdout(args.html.as_ref());
    let code = finished?;
    if args.update {
        let written = update(&args, &judged, accepted_now, unmet, code)?;
        if screen {
            print_lines(&written)?;
        }
        return Ok(PARITY);
    }
    if report.passed {
        if screen {
            print(&args.ci.screen_text(&passed()))?;
        }
        return Ok(PARITY);
    }
    if screen {
        if code != PARITY {
            print(&args.ci.screen_text(render(&judged, Detail::Folded).as_str()))?;
        }
        print(&args.ci.screen_text(&in_lines(&worse_in_words)))?;
    }
    Ok(DIVERGED)
}

/// Writes the baseline, and reports that.
fn update(
    args: &GateArgs,
    judged: &Comparison,
    accepted: Accepted,
    unmet: &[RequiredUnchecked],
    code: u8,
) -> Result<String> {
    let path = args.baseline.display();
    if code != PARITY && !args.accept_diverged {
        print(render(judged, Detail::Folded).as_str())?;
        bail!("{path}: not written, as the two are not at parity (--accept-diverged holds the engine to what it is)");
    }
    if let Some(text) = unmet_in_words(unmet) {
        bail!("{path}: not written: {text}");
    }
    if !Incomplete::find_in(&judged.session.sides(), None).is_empty() {
        bail!("{path}: not written, as a recording is not complete: a baseline is of complete ones");
    }
    let baseline = Baseline::from_report(&judged.report, accepted)?;
    crate::output::write(&args.baseline, &baseline.to_text(judged), &Inputs::of_command_line())?;
    let differ = baseline.accepted().map_or(String::new(), |accepted| {
        let count = baseline.differing();
        format!(
            "; not parity: {count} of them differ, and are held to what they are now{}",
            accepted_suffix(Some(accepted))
        )
    });
    let (count, how) = (taps_in_words(baseline.len()), as_it_asks(judged.session.coarser_profile));
    Ok(format!("gate: baseline of {count} written to {path}{how}{differ}\n{}", note(judged)))
}

/// The user for whom GitHub or GitLab runs the job, else the one who is logged in.
fn whoever_runs_this() -> Option<String> {
    let variables = ["GITHUB_ACTOR", "GITLAB_USER_LOGIN", "USER", "USERNAME"];
    variables.iter().find_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()))
}

/// The reasons for the gate to fail: taps worse than the baseline, taps that had to be compared, and differences that no baseline allows.
fn failures(
    judged: &Comparison,
    regressions: &[Regression],
    is_accepted: bool,
    unmet: &[RequiredUnchecked],
) -> Vec<CiFailure> {
    let report = &judged.report;
    let worse = regressions.iter().map(|worse| CiFailure {
        place: report.name(worse.place),
        kind: worse.kind(),
        message: format!(
            "NMSE was {}, is {}: {}",
            worse_number(worse.baseline_nmse),
            worse_number(worse.now),
            worse.reason
        ),
    });
    let others =
        CiFailure::from_report(report, unmet).into_iter().filter(|failure| !is_accepted || failure.kind != "diverged");
    let mut reported = HashSet::new();
    worse.chain(others).filter(|failure| reported.insert(failure.place.clone())).collect()
}
