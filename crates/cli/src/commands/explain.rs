//! `firstdiff explain MODEL CAND`: why is it wrong? Arguments, screen and JSON.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_compare::{Status, Verdict, number};
use firstdiff_explain::explain::{Effort, Explanation, Finding, Match, Remainder};
use firstdiff_explain::mistakes::{ids, what};
use firstdiff_explain::replay::Replayed;
use firstdiff_trace::{Site, Tap};

use crate::commands::replay::of_each_sequence;
use crate::render::screen::{BAD, BOLD, DIM, GOOD, Screen, WARN, paint};
use crate::report::{self, is_ruled_out};
use crate::session::arithmetic::parity;
use crate::session::cause;
use crate::session::given::CandidateArgs;
use crate::session::incomplete::Incomplete;
use crate::session::replay::ReplaySession;
use crate::words::{layers_in_short, safe, shorten, taps_in_words};

pub(crate) const HELP: &str = "Examples:
  firstdiff explain models/TinyLlama out/dump
  firstdiff explain model.gguf logits.npz --tokens 1,403,407         the logits alone: the whole model is run under each mistake
  firstdiff explain model.gguf last.npz --rows last --faults 2

Every operation that replay finds wrong is done again with each known mistake, and a cause is named only when the candidate's own numbers
come out, to rounding. Several mistakes at once are tried where one is not it. Where little was recorded the stretch from the nearest
recorded taps, or from the tokens, is run under each mistake.";

/// What `explain` is asked.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    of: CandidateArgs,
    /// How many mistakes at once to try between two recorded taps
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u8).range(1..=5))]
    faults: u8,
    /// Seconds for each kind of search in each stretch (single mistakes take four times as long at most); not a limit for the whole
    #[arg(long, default_value_t = 60.0)]
    seconds: f64,
    /// Try these ids of the catalogue only
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,
    /// A reference's dump: whether it is right itself is judged as well
    #[arg(long = "ref", value_name = "REF")]
    reference: Option<PathBuf>,
    /// List all that was tried, with the best residual of each
    #[arg(long, short)]
    verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Explains, prints, and gives the exit code.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn run(args: ExplainArgs) -> Result<u8> {
    for id in &args.only {
        if what(id).is_empty() {
            let stem = id.split('-').next().unwrap_or_default();
            let near: Vec<&str> = ids().into_iter().filter(|known| known.starts_with(stem)).collect();
            let near = if near.is_empty() { ids() } else { near };
            bail!("--only {id}: no such id; there is {}", near.join(", "));
        }
    }
    let inputs = args.of.inputs().and(&args.reference);
    inputs.spare(args.json.as_deref())?;
    let effort = Effort {
        only: args.only.clone(),
        faults: usize::from(args.faults),
        seconds: args.seconds,
        ..Effort::default()
    };
    let reference = args.reference.as_ref().map(|path| of_reference(&args.of, path, &effort)).transpose()?;
    let explained = of_each_sequence(&args.of, |of| explained(of, &effort), |explained| &mut explained.session)?;
    let verdict = explained.session.verdict();
    if let Some(path) = &args.json {
        let reference = reference.as_ref().map(|reference| &reference.session);
        let report = report::Explain::of(&explained.session, &verdict, &explained.invisible, reference);
        crate::render::json::to_file(path, &report, &inputs)?;
    }
    if args.json.as_deref() != Some(Path::new("-")) {
        let mut screen = Screen::default();
        explained.screen(&mut screen, &verdict, args.verbose);
        if let Some(reference) = &reference {
            reference.beside(&mut screen);
        }
        crate::output::print(screen.as_str())?;
    }
    if let Verdict::Incomparable(reason) = &verdict {
        bail!("incomparable: {}: {reason}", explained.session.given.dump.path().display());
    }
    Ok(crate::output::exit_code(&verdict))
}

/// A dump that was explained.
struct Explained {
    session: ReplaySession,
    invisible: Vec<String>,
}

fn explained(of: CandidateArgs, effort: &Effort) -> Result<Explained> {
    let given = of.open()?;
    let Explanation { mut replay, findings, invisible } = cause::searched(&given, effort)?;
    replay.warnings.extend(given.notes());
    Ok(Explained { session: ReplaySession { given, replay, findings }, invisible })
}

/// The reference, explained in its own right.
fn of_reference(of: &CandidateArgs, path: &Path, effort: &Effort) -> Result<Explained> {
    let args = CandidateArgs {
        model: of.model.clone(),
        candidate: path.to_owned(),
        profile: None,
        cache: None,
        tokens: of.tokens.clone(),
        decode_tokens: of.decode_tokens.clone(),
        rows: None,
        reading: of.reading.clone(),
    };
    explained(args, effort)
}

impl Explained {
    fn screen(&self, screen: &mut Screen, verdict: &Verdict, verbose: bool) {
        self.session.heading(screen);
        screen.line("");
        let report = self.session.report(verdict);
        let right = report.count(Status::agrees);
        match verdict {
            Verdict::Parity => {
                let (all, unchecked) = (report.taps.len(), report.taps.len() - right);
                let rest = if unchecked > 0 { format!("; {unchecked} not checked") } else { String::new() };
                let rest = rest + &Incomplete::suffix(&[("the candidate", &self.session.given.dump)]);
                let text = format!("{right} of {} come out right from what they read{rest}", taps_in_words(all));
                let assumed = self.session.assumed_cache();
                screen.line(&format!(
                    "{} {text}; there is nothing to explain{assumed}",
                    paint(GOOD, &parity(self.session.given.loosened))
                ));
            }
            Verdict::Incomparable(reason) => screen.line(&format!("{} {reason}", paint(WARN, "incomparable:"))),
            Verdict::Diverged => {
                let proved = self.session.findings.iter().filter(|f| f.matched == Match::Reproduced).count();
                let misrecorded = self.session.findings.iter().filter(|f| !f.misrecorded.is_empty()).count();
                let arithmetic = self.session.findings.iter().filter(|f| f.arithmetic.is_some());
                let (named, unnamed): (Vec<_>, Vec<_>) = arithmetic.partition(|f| f.matched == Match::Reproduced);
                let proved = proved - named.len();
                let open = self.session.findings.len() - proved - misrecorded - named.len() - unnamed.len();
                let causes = |n: usize| format!("{n} cause{}", if n == 1 { "" } else { "s" });
                let rest = match open {
                    0 => String::new(),
                    1 => ", and a fault without a known one".into(),
                    n => format!(", and {n} faults without a known one"),
                };
                let rest = match misrecorded {
                    0 => rest,
                    1 => rest + ", and a tap that is recorded wrongly",
                    n => format!("{rest}, and {n} taps that are recorded wrongly"),
                };
                let other = named.len() + unnamed.len() > 0;
                let said = match (other, proved) {
                    (true, 0) => "another arithmetic, no mistake proved".to_owned(),
                    (true, n) => format!("another arithmetic, and {} proved", causes(n)),
                    (false, n) => format!("{} proved", causes(n)),
                };
                screen.line(&format!(
                    "{} {said}{rest}; {} right{}",
                    paint(BAD, "diverged:"),
                    taps_in_words(right),
                    self.session.assumed_cache()
                ));
                for finding in &self.session.findings {
                    self.finding(screen, finding, verbose);
                }
            }
        }
        self.session.rest(screen, &report);
        if !self.invisible.is_empty() {
            let list = self.invisible.join(", ");
            screen.line(&format!("{} what was recorded could not have shown: {list}", paint(WARN, "not shown:")));
        }
    }

    /// What, the proof, what to change.
    fn finding(&self, screen: &mut Screen, finding: &Finding, verbose: bool) {
        let step = finding.shown_at.iter().map(|place| place.step).min().filter(|&step| step > 0);
        let place =
            where_of(&finding.taps) + &step.map_or(String::new(), |step| format!(", from decode step {step} on"));
        match (&finding.cause, finding.matched) {
            _ if let Some(other) = &finding.arithmetic => {
                let [what, which] = cause::arithmetic(other);
                screen.line(&format!("  {}: {what}", paint(BOLD, &place)));
                screen.line(&format!("    {which}"));
                screen.line(&format!("    {} {}", paint(DIM, "next:"), cause::beside_another_arithmetic(other)));
            }
            (Some(cause), Match::Reproduced) => {
                screen.line(&format!("  {}: {}", paint(BOLD, &place), cause::said(cause)));
                screen.line(&format!("    {}", cause::proof(finding)));
                let mend = cause::mend(&self.session.given.model, cause.id, finding);
                screen.line(&format!("    {} {mend}", paint(DIM, "mend:")));
                if verbose && !finding.tried.is_empty() {
                    screen.line(&format!("    tried, and what each leaves: {}", tried(finding, true).join(", ")));
                }
            }
            _ if !finding.misrecorded.is_empty() => {
                let nmse = number(finding.base_nmse);
                screen.line(&format!("  {}: recorded wrongly (NMSE {nmse})", paint(BOLD, &place)));
            }
            _ => self.open_finding(screen, finding, &place, verbose),
        }
        if let Some(note) = &finding.note {
            screen.line(&format!("    {} {}", paint(WARN, "note:"), safe(note)));
        }
    }

    /// A fault without a cause: what came nearest, and what it is not.
    fn open_finding(&self, screen: &mut Screen, finding: &Finding, place: &str, verbose: bool) {
        let shown = |t: &&Replayed| finding.shown_at.contains(&t.report.place);
        let reason = self.session.replay.taps.iter().find(shown).and_then(|t| t.reason.as_ref());
        let what = match finding.through.len() {
            0 => finding.op.clone(),
            n => format!("wrong from one of {} operations up to here", n + 1),
        };
        let nmse = number(finding.base_nmse);
        screen.line(&format!("  {}: {what}, no known mistake reproduces it (NMSE {nmse})", paint(BOLD, place)));
        if let Some(reason) = reason.filter(|reason| !reason.is_size_alone()) {
            screen.line(&format!("    {}", safe(&reason.to_string())));
        }
        if finding.matched == Match::Closest {
            let near: Vec<String> = finding.alternatives.iter().map(cause::in_words).collect();
            // What gives these numbers, and is no cause for another reason.
            let how = if finding.note.is_some() { "nearest, but not stated" } else { "nearest, but not it" };
            screen.line(&format!("    {how}: {} {}", near.join(" with "), what_is_left(finding)));
        }
        let words = tried(finding, verbose);
        if !words.is_empty() {
            let text = if verbose { words.join(", ") } else { shorten(&words, 8) };
            // Between several operations another fault may stand beside it, that hides it.
            let how = if finding.through.is_empty() {
                "ruled out"
            } else {
                "could not be shown, and alone it is none of these"
            };
            // A variant that was not tried may be the truth.
            screen.line(&format!("    {how}, in the forms tried here: {text}"));
        }
        if finding.untried > 0 {
            let text =
                format!("{} mistakes and sets of them were not tried for want of time (--seconds)", finding.untried);
            screen.line(&format!("    {} {text}", paint(WARN, "not tried:")));
        }
        if finding.through.is_empty() {
            if let Some(fit) = self
                .session
                .replay
                .taps
                .iter()
                .find(|t| Some(t.report.place.tap) == finding.taps.first().copied())
                .and_then(|t| t.fit.as_ref())
            {
                screen.line(&format!("    as a sum: {} (leaves NMSE {})", fit.in_words(), number(fit.residual_nmse)));
            }
            screen.line(&format!(
                "    {} look at the code of this operation alone: all it reads is right",
                paint(DIM, "next:")
            ));
        } else {
            let names: Vec<String> = finding.through.iter().map(ToString::to_string).collect();
            screen.line(&format!(
                "    {} record {} as well: that tells which operation it is",
                paint(DIM, "next:"),
                shorten(&names, 4)
            ));
        }
    }

    /// What is said of a reference.
    fn beside(&self, screen: &mut Screen) {
        let path = safe(&self.session.given.dump.path().to_string_lossy());
        let text = match self.session.verdict() {
            Verdict::Parity => format!("{path} is right by itself"),
            Verdict::Incomparable(reason) => format!("{path}: {reason}"),
            Verdict::Diverged => format!("{path} is wrong itself"),
        };
        screen.line("");
        screen.line(&format!("reference  {text}"));
        for finding in &self.session.findings {
            self.finding(screen, finding, false);
        }
    }
}

/// What the nearest mistake leaves: where least of the error is left, and where most.
fn what_is_left(finding: &Finding) -> String {
    let Some((least, most)) = finding.least_and_most_left() else {
        return format!("leaves NMSE {}", number(finding.residual_nmse));
    };
    let left = |r: Remainder| format!("{} of {} at {}", number(r.residual_nmse), number(r.base_nmse), r.place);
    match finding.remainders.len() {
        1 => format!("leaves NMSE {}", left(least)),
        _ => format!("leaves NMSE {}, and {}", left(least), left(most)),
    }
}

/// The ids that were tried, the nearest first, and what each leaves where that is asked.
fn tried(finding: &Finding, verbose: bool) -> Vec<String> {
    let mut tried: Vec<(&str, f64)> = finding.tried.iter().map(|(id, r)| (*id, *r)).collect();
    if finding.cause.is_none() {
        tried.retain(|(id, _)| is_ruled_out(finding, id));
    }
    tried.sort_by(|a, b| a.1.total_cmp(&b.1));
    let word = |(id, r): &(&str, f64)| if verbose { format!("{id} ({})", number(*r)) } else { (*id).to_owned() };
    tried.iter().map(word).collect()
}

/// `layers 0-2, q_rope and k_rope`.
fn where_of(taps: &[Tap]) -> String {
    let mut sites: Vec<Site> = Vec::new();
    for tap in taps {
        if !sites.contains(&tap.site) {
            sites.push(tap.site);
        }
    }
    let names: Vec<&str> = sites.iter().map(|s| s.name()).collect();
    let names = match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
        _ => names.join(""),
    };
    let layers: std::collections::BTreeSet<u32> = taps.iter().filter_map(|t| t.layer).collect();
    let Some(first) = layers.first() else { return names };
    let list = layers_in_short(layers.iter().copied());
    if layers.len() == 1 { format!("layer {first}, {names}") } else { format!("layers {list}, {names}") }
}
