//! `firstdiff replay MODEL CAND`: which operations are wrong in themselves? Arguments, screen and JSON.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::{Report, Status, Verdict, number};
use firstdiff_explain::explain::Explanation;
use firstdiff_explain::misrecorded as misrecorded_in_words;
use firstdiff_explain::replay::Replayed;

use crate::render::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, described, paint, unchecked};
use crate::render::table::taps;
use crate::report::{self, misrecorded_by};
use crate::session::arithmetic::parity;
use crate::session::cause;
use crate::session::given::CandidateArgs;
use crate::session::incomplete::Incomplete;
use crate::session::reading::ReadingArgs;
use crate::session::replay::{COARSE, ReplaySession, why};
use crate::words::{layers_in_short, safe, shorten, taps_in_words};

pub(crate) const HELP: &str = "Examples:
  firstdiff replay models/TinyLlama out/dump
  firstdiff replay TinyLlama-Q4_K_M.gguf out/dump                    the profile is ggml where dump.json says so
  firstdiff replay model.gguf last.npz --rows last --tokens 1,403,407

Every operation is run on the candidate's own recorded inputs, so one run names every wrong one, whatever came before it. What was not
recorded is computed from the nearest recorded taps before it; the fault then lies in that stretch. No reference run is needed.";

/// What `replay` is asked.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    #[command(flatten)]
    pub(crate) of: CandidateArgs,
    /// Show every tap on a line of its own
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// Replays, prints, and gives the exit code.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn run(args: ReplayArgs) -> Result<u8> {
    let (verbose, json) = (args.verbose, args.json.clone());
    let inputs = args.of.inputs();
    inputs.spare(json.as_deref())?;
    let judge = |of: CandidateArgs| {
        let given = of.open()?;
        let Explanation { mut replay, findings, .. } = cause::quickly(&given, 2)?;
        replay.warnings.extend(given.notes());
        Ok(ReplaySession { given, replay, findings })
    };
    let session = of_each_sequence(&args.of, judge, |session| session)?;
    let verdict = session.verdict();
    if let Some(path) = &json {
        crate::render::json::to_file(path, &report::Replay::of(&session, &verdict), &inputs)?;
    }
    if json.as_deref() != Some(Path::new("-")) {
        crate::output::print(session.screen(&verdict, verbose).as_str())?;
    }
    if let Verdict::Incomparable(reason) = &verdict {
        bail!("incomparable: {}: {reason}", session.given.dump.path().display());
    }
    Ok(crate::output::exit_code(&verdict))
}

impl ReplaySession {
    fn screen(&self, verdict: &Verdict, verbose: bool) -> Screen {
        let mut screen = Screen::default();
        self.heading(&mut screen);
        screen.line("");
        let report = self.report(verdict);
        taps(&mut screen, &report, if verbose { Detail::Every } else { Detail::Folded });
        screen.line("");
        self.conclusion(&mut screen, verdict, &report);
        self.rest(&mut screen, &report);
        screen
    }

    /// What is judged, and as what.
    pub(crate) fn heading(&self, screen: &mut Screen) {
        let dims = &self.given.model.plan.dims;
        let path = safe(&self.given.path.to_string_lossy());
        let what = format!("({}, {} layers, {} wide)", self.given.model.plan.family, dims.layers, dims.hidden);
        screen.line(&format!("model      {path}  {}", paint(DIM, &what)));
        screen.line(&format!("candidate  {}", described(&self.given.dump)));
        screen.line(&paint(
            DIM,
            &format!(
                "judged as  {}{} ({}), each operation on the candidate's own inputs",
                self.given.named,
                self.cache_in_words(),
                self.given.why
            ),
        ));
    }

    /// What was not checked, and what else is to be known.
    pub(crate) fn rest(&self, screen: &mut Screen, report: &Report) {
        unchecked(screen, report, &self.given.dump.path().to_string_lossy());
        let coarse = self.replay.taps.iter().filter(|t| self.is_coarse(t.report.place)).count();
        let absent = self.replay.taps.len() - report.taps.len() - coarse;
        let texts = [
            (absent, format!("{} of the model were not recorded", taps_in_words(absent))),
            (coarse, format!("{} are in the file, {COARSE}", taps_in_words(coarse))),
        ];
        for (_, text) in texts.iter().filter(|(count, _)| *count > 0) {
            screen.line(&format!("{} {text}", paint(WARN, "not checked:")));
        }
        for warning in &self.replay.warnings {
            screen.line(&format!("{} {}", paint(WARN, "note:"), safe(warning)));
        }
    }

    fn conclusion(&self, screen: &mut Screen, verdict: &Verdict, report: &Report) {
        let right = report.count(Status::agrees);
        match verdict {
            Verdict::Parity => {
                let all = report.taps.len();
                let rest = if right < all { format!("; {} not checked", all - right) } else { String::new() };
                let rest = rest + &Incomplete::suffix(&[("the candidate", &self.given.dump)]);
                let text = format!("{right} of {} come out right from what they read{rest}", taps_in_words(all));
                screen.line(&format!("{} {text}{}", paint(GOOD, &parity(self.given.loosened)), self.assumed_cache()));
            }
            Verdict::Incomparable(reason) => screen.line(&format!("{} {reason}", paint(WARN, "incomparable:"))),
            Verdict::Diverged => {
                let other = self.findings.iter().find_map(|f| f.arithmetic.as_ref());
                let in_it = |t: &Replayed| other.is_some_and(|other| other.places.contains(&t.report.place));
                let mut groups = self.replay.wrong();
                groups.iter_mut().for_each(|group| group.retain(|t| !in_it(t)));
                groups.retain(|group| !group.is_empty());
                // Of what is recorded wrongly no operation is wrong.
                let (wrong, misrecorded): (Vec<_>, Vec<_>) = groups.iter().partition(|g| g[0].misrecorded.is_empty());
                let of_operations = match wrong.len() {
                    1 => Some("one operation is wrong in itself".to_owned()),
                    n => (n > 1).then(|| format!("{n} operations are wrong in themselves")),
                };
                let taps: usize = misrecorded.iter().map(|g| g.len()).sum();
                let of_taps = (taps > 0).then(|| {
                    format!(
                        "{} recorded wrongly",
                        if taps == 1 { "a tap is".into() } else { format!("{taps} taps are") }
                    )
                });
                let of_all = other.map(|_| "another arithmetic of all products with weights".to_owned());
                let said: Vec<String> = of_all.into_iter().chain(of_operations).chain(of_taps).collect();
                let right = taps_in_words(right);
                let assumed = self.assumed_cache();
                screen.line(&format!("{} {}; {right} right{assumed}", paint(BAD, "diverged:"), said.join(", ")));
                for line in other.iter().flat_map(|other| cause::arithmetic(other)) {
                    screen.line(&format!("  {line}"));
                }
                for group in &groups {
                    self.finding(screen, group);
                }
                match (groups.first(), other) {
                    (Some(group), _) => screen.line(&format!("next: {}", self.next(group))),
                    (None, Some(other)) => screen.line(&format!("next: {}", cause::beside_another_arithmetic(other))),
                    (None, None) => {}
                }
            }
        }
    }

    fn finding(&self, screen: &mut Screen, group: &[&Replayed]) {
        let worst = group.iter().filter_map(|t| t.report.metrics?.nmse()).reduce(f64::max);
        let one = group[0];
        let reads = one.from.iter().map(ToString::to_string).collect::<Vec<_>>();
        let inputs =
            if reads.is_empty() { "the tokens".into() } else { format!("the candidate's own {}", shorten(&reads, 4)) };
        let of = if group.len() > 1 { " and so on" } else { "" };
        screen.line(&format!("  {}  {}", paint(BOLD, &where_of(group)), one.report.op));
        let reason = why(one);
        let limit = one.report.allowed.unwrap_or(f64::INFINITY);
        let text = match worst {
            Some(nmse) if nmse > limit => {
                format!("NMSE {} against what comes out of {inputs}{of} ({} allowed)", number(nmse), number(limit))
            }
            // Too small for that measure, or none at all.
            Some(nmse) => format!("{reason}, against what comes out of {inputs}{of} (NMSE {})", number(nmse)),
            None => format!("{reason}, against what comes out of {inputs}{of}"),
        };
        screen.line(&format!("    {}", safe(&text)));
        let why: Vec<_> = cause::all_of(&self.findings, one.report.place).collect();
        for (at, (_, cause)) in why.iter().enumerate() {
            let word = if at == 0 { "why:" } else { "and:" };
            screen.line(&format!("    {} {}", paint(BOLD, word), cause::said(cause)));
        }
        if let Some((finding, _)) = why.first() {
            let them = if why.len() > 1 { "imitating them" } else { "imitating it" };
            screen.line(&format!("    {}", cause::proof(finding).replacen("imitating it", them, 1)));
        }
        for note in why.iter().filter_map(|(finding, _)| finding.note.as_ref()) {
            screen.line(&format!("    {} {}", paint(WARN, "note:"), safe(note)));
        }
        let misrecorded = misrecorded_by(group);
        if !misrecorded.is_empty() {
            screen.line(&format!("    {} {}", paint(WARN, "note:"), misrecorded_in_words(&misrecorded)));
            return;
        }
        if !one.through.is_empty() {
            let names = one.through.iter().map(ToString::to_string).collect::<Vec<_>>();
            let text = format!("not recorded between: {}; the fault may be in any of them", shorten(&names, 5));
            screen.line(&format!("    {text}"));
        }
        if let Some(fit) = one.fit.as_ref().filter(|_| why.is_empty()) {
            let left = format!("(leaves NMSE {})", number(fit.residual_nmse));
            screen.line(&if fit.residual_nmse < EXPLAINS * worst.unwrap_or(f64::INFINITY) {
                format!("    it is {} {left}", fit.in_words())
            } else {
                format!(
                    "    no sum of {} and others of the stream gives it",
                    one.from.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
                )
            });
        }
    }

    /// What to do about the first finding.
    fn next(&self, group: &[&Replayed]) -> String {
        let one = group[0];
        if let Some((finding, cause)) = cause::of(&self.findings, one.report.place) {
            return format!("{}, and replay again", cause::mend(&self.given.model, cause.id, finding));
        }
        if !one.misrecorded.is_empty() {
            return format!(
                "look at what is recorded as {}, and when; record it where it is made, and replay again",
                where_of(group)
            );
        }
        match one.through.as_slice() {
            [] => format!(
                "`firstdiff explain` with the same arguments tries more; mend the operation '{}' that makes {} first, and replay again",
                one.report.op,
                where_of(group)
            ),
            through => {
                let names: Vec<String> = through.iter().map(ToString::to_string).collect();
                format!(
                    "`firstdiff explain` with the same arguments tries known mistakes in that stretch; or record {} as well, and replay again",
                    shorten(&names, 4)
                )
            }
        }
    }
}

/// A fit that leaves less than this share of the error explains it.
const EXPLAINS: f64 = 0.01;

/// `layers.0.h_attn`, or `layers.0-2.h_attn` for a group.
fn where_of(group: &[&Replayed]) -> String {
    let tap = group[0].report.place.tap;
    let mut layers: Vec<u32> = group.iter().filter_map(|t| t.report.place.tap.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let steps = if group.iter().all(|t| t.report.place.step > 0) {
        format!(" (from decode step {} on)", group[0].report.place.step)
    } else {
        String::new()
    };
    match (layers.first(), layers.last()) {
        (Some(first), Some(last)) if first != last => {
            let list = layers_in_short(layers.iter().copied());
            format!("layers.{list}.{}{steps}", tap.site.name())
        }
        _ => format!("{tap}{steps}"),
    }
}

/// Judges a candidate; of a batch every sequence in turn, and the first that is not right is the answer. `session` is the session of what was judged.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn of_each_sequence<T>(
    args: &CandidateArgs,
    judge: impl Fn(CandidateArgs) -> Result<T>,
    session: impl Fn(&mut T) -> &mut ReplaySession,
) -> Result<T> {
    let mut judged = judge(args.clone())?;
    let count = session(&mut judged).given.sequences;
    if args.reading.sequence.is_some() || count == 1 {
        return Ok(judged);
    }
    for index in 1..count {
        if session(&mut judged).verdict() != Verdict::Parity {
            return Ok(judged);
        }
        let reading = ReadingArgs { sequence: Some(index), ..args.reading.clone() };
        judged = judge(CandidateArgs { reading, ..args.clone() }).with_context(|| {
            format!(
                "sequence {index} of a batch of {count}, of which those before it are right (--sequence N judges one)"
            )
        })?;
    }
    session(&mut judged)
        .replay
        .warnings
        .push(format!("a batch of {count} sequences: those before this one were judged too, and are right"));
    Ok(judged)
}
