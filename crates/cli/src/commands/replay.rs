//! `firstdiff replay MODEL CAND`: which operations are wrong in themselves? Arguments, screen and JSON.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::{Place, Report, Status, Verdict, Warning, number};
use firstdiff_explain::explain::{Explanation, Finding};
use firstdiff_explain::misrecorded as misrecorded_in_words;
use firstdiff_explain::replay::{Reason, Replay, Replayed};
use firstdiff_trace::{Cache, Site};
use serde_json::{Value, json};

use crate::render::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, described, paint, unchecked};
use crate::render::table::taps;
use crate::session::arithmetic::{Loosened, parity};
use crate::session::cause;
use crate::session::given::{CandidateArgs, Given};
use crate::session::incomplete::Incomplete;
use crate::session::reading::ReadingArgs;
use crate::words::{layers_in_short, safe, shorten, taps_in_words};

/// What is to be said of what is in a file and cannot be computed with.
const COARSE: &str = "but only in part or with too few digits to compute with: print whole tensors with six significant digits (%g, %.6e) or more";

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

/// A replay and what it was of.
pub(crate) struct Session {
    pub(crate) given: Given,
    pub(crate) verbose: bool,
    pub(crate) replay: Replay,
    /// Why, as far as that was asked.
    pub(crate) findings: Vec<Finding>,
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
        Ok(Session { given, verbose, replay, findings })
    };
    let session = of_each_sequence(&args.of, judge, |session| session)?;
    let verdict = session.verdict();
    if let Some(path) = &json {
        crate::output::write_json(path, &session.json(&verdict), &inputs)?;
    }
    if json.as_deref() != Some(Path::new("-")) {
        crate::output::print(session.screen(&verdict).as_str())?;
    }
    if let Verdict::Incomparable(reason) = &verdict {
        bail!("incomparable: {}: {reason}", session.given.dump.path().display());
    }
    Ok(crate::output::exit_code(&verdict))
}

/// Why a tap is wrong, or why nothing is said of it, in words.
fn why(tap: &Replayed) -> String {
    tap.reason.as_ref().map(Reason::to_string).unwrap_or_default()
}

impl Session {
    /// What may be said of the candidate; of one that was not recorded to its end, parity only where that was asked for.
    pub(crate) fn verdict(&self) -> Verdict {
        self.given.incomplete(Some(self.replay.taps.len())).verdict(self.of_what_is_there(), self.given.partial)
    }

    fn of_what_is_there(&self) -> Verdict {
        let (wrong, right) = (self.replay.count(|s| s == Status::Diverged), self.replay.count(Status::agrees));
        // That the embedding is a table says nothing of an engine.
        let only_table = right == 1
            && self.replay.taps.iter().any(|t| t.report.place.tap.site == Site::H0 && t.report.status.agrees());
        let unclear: Vec<&Replayed> = self.replay.taps.iter().filter(|t| t.is_for(Reason::is_unclear)).collect();
        let misfits = |t: &&Replayed| t.is_for(Reason::is_shape);
        let unconfirmed = |t: &&Replayed| t.is_for(Reason::is_unconfirmed);
        let (misfit, held) = (
            self.replay.taps.iter().filter(misfits).count(),
            self.replay.taps.iter().filter(|t| !t.is_for(Reason::is_absent)).count(),
        );
        let first_of = |is: &dyn Fn(&&Replayed) -> bool| {
            let first = self.replay.taps.iter().find(is);
            first.map_or(String::new(), |t| format!("{}: {}", t.report.place, why(t)))
        };
        let first_misfit = || first_of(&misfits);
        match (wrong, right) {
            _ if misfit * 4 > held => Verdict::Incomparable(format!(
                "{} of {} have shapes that are not this model's ({}): is it another model's dump, or of other tokens?",
                misfit,
                taps_in_words(held),
                first_misfit()
            )),
            (0, _) if !unclear.is_empty() => Verdict::Incomparable(format!(
                "{} are off by no more than {} rounding costs, but are not its numbers (first {}): nobody can tell; {right} are right",
                taps_in_words(unclear.len()),
                self.given.named,
                unclear[0].report.place
            )),
            (0, 0) => Verdict::Incomparable(self.nothing()),
            (0, _) if misfit > 0 => Verdict::Incomparable(format!(
                "{} of {} have another shape than the model gives them ({}); what could be judged is right",
                misfit,
                taps_in_words(held),
                first_misfit()
            )),
            (0, _) if self.replay.taps.iter().any(|t| unconfirmed(&t)) => Verdict::Incomparable(format!(
                "nobody can tell the layout of {} from a mistake ({}); what could be judged is right",
                taps_in_words(self.replay.taps.iter().filter(unconfirmed).count()),
                first_of(&unconfirmed)
            )),
            (0, _) if self.replay.order_is_open => Verdict::Incomparable(
                "what is recorded of Q and K is wrong in either order of their rows; what else could be judged is right".into(),
            ),
            (0, _) if let Some(reason) = self.judged_nowhere() => Verdict::Incomparable(reason),
            (0, _) if only_table => Verdict::Incomparable("nothing but the embedding could be judged".into()),
            (0, _) => Verdict::Parity,
            _ => Verdict::Diverged,
        }
    }

    /// What was recorded in the prefill, or in decode steps, and could be judged at none of its places: of that nothing is known.
    fn judged_nowhere(&self) -> Option<String> {
        let recorded = |t: &&Replayed| {
            let place = t.report.place;
            place.tap.site != Site::H0 && self.given.dump.find(place.tap, place.step).is_some()
        };
        let kind = |t: &Replayed| (t.report.place.tap.site, t.report.place.step > 0);
        let recorded: Vec<&Replayed> = self.replay.taps.iter().filter(recorded).collect();
        let judged: BTreeSet<_> = recorded.iter().filter(|t| t.report.metrics.is_some()).map(|t| kind(t)).collect();
        let open: Vec<&&Replayed> = recorded.iter().filter(|t| !judged.contains(&kind(t))).collect();
        let first = open.first()?;
        let sites: BTreeSet<Site> = open.iter().map(|t| t.report.place.tap.site).collect();
        let names: Vec<String> = sites.into_iter().map(|site| site.name().to_owned()).collect();
        Some(format!(
            "{} of {} could not be judged ({}: {}); what could be is right",
            shorten(&names, 5),
            if first.report.place.step > 0 { "the decode steps" } else { "the prefill" },
            first.report.place,
            first.reason.as_ref().map_or("unchecked".into(), Reason::to_string)
        ))
    }

    /// Why nothing could be judged: the reason that most taps have.
    fn nothing(&self) -> String {
        let mut reasons: Vec<(usize, &Reason)> = Vec::new();
        let recorded = self.replay.taps.iter().filter(|t| !t.is_for(Reason::is_absent));
        for reason in recorded.filter_map(|t| t.reason.as_ref()) {
            match reasons.iter_mut().find(|(_, known)| *known == reason) {
                Some((count, _)) => *count += 1,
                None => reasons.push((1, reason)),
            }
        }
        let dump = &self.given.dump;
        let coarse = dump.parts().iter().filter(|part| dump.find(part.tap, part.step).is_none()).count();
        let otherwise = match coarse {
            0 => "nothing of the model was recorded".to_owned(),
            count => format!("{} are in the file, {COARSE}", taps_in_words(count)),
        };
        let most = reasons.iter().max_by_key(|(count, _)| *count).map_or(otherwise, |r| r.1.to_string());
        format!("no operation could be judged: {most}")
    }

    /// Whether a place is known, but not so that it can be computed with.
    fn is_coarse(&self, place: Place) -> bool {
        let dump = &self.given.dump;
        dump.find_part(place.tap, place.step).is_some() && dump.find(place.tap, place.step).is_none()
    }

    /// In the form that compare's own screen takes.
    pub(crate) fn report(&self, verdict: &Verdict) -> Report {
        let recorded = |t: &&Replayed| !t.is_for(Reason::is_absent);
        Report {
            verdict: verdict.clone(),
            profile: self.given.named,
            cache: self.replay.cache,
            prompt: 0,
            first: None,
            taps: self.replay.taps.iter().filter(recorded).map(Replayed::listed).collect(),
            warnings: self.replay.warnings.iter().cloned().map(Warning::Note).collect(),
            unnamed: self.given.dump.unnamed().to_vec(),
            laid: None,
        }
    }

    fn screen(&self, verdict: &Verdict) -> Screen {
        let mut screen = Screen::default();
        self.heading(&mut screen);
        screen.line("");
        let report = self.report(verdict);
        taps(&mut screen, &report, if self.verbose { Detail::Every } else { Detail::Folded });
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

    /// The type of the K/V cache, where it is not that of the arithmetic.
    fn cache_in_words(&self) -> String {
        match self.replay.cache {
            Cache::F32 => String::new(),
            cache => format!(" with a K/V cache in {cache}"),
        }
    }

    /// What a verdict must say of a cache that nobody named.
    pub(crate) fn assumed_cache(&self) -> String {
        match self.replay.cache_is_assumed {
            true => format!(
                "; that takes a K/V cache in {}, which nobody says: with it attention comes out right, without it not",
                self.replay.cache
            ),
            false => String::new(),
        }
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

    fn finding_json(&self, group: &[&Replayed]) -> Value {
        let one = group[0];
        let layers: std::collections::BTreeSet<u32> = group.iter().filter_map(|t| t.report.place.tap.layer).collect();
        let why = cause::of(&self.findings, one.report.place);
        let nmse = one.report.metrics.and_then(|m| m.nmse());
        let unknown =
            || json!({"cause": null, "params": {}, "match": "unknown", "residual_nmse": nmse, "alternatives": []});
        let mut value = why.map_or_else(unknown, |(finding, _)| cause::json(&self.given.model, finding));
        // Further mistakes in the same operation, that give these numbers together with the first.
        let others = cause::all_of(&self.findings, one.report.place).skip(1);
        value["together"] = others.map(|(finding, _)| cause::json(&self.given.model, finding)).collect();
        value["misrecorded"] = misrecorded_by(group).iter().map(ToString::to_string).collect();
        value["tap"] = one.report.place.tap.to_string().into();
        value["op"] = one.report.op.clone().into();
        value["layers"] = json!(layers);
        value["base_nmse"] = nmse.into();
        value["from"] = one.from.iter().map(ToString::to_string).collect();
        value["through"] = one.through.iter().map(ToString::to_string).collect();
        value["fit"] = fit_json(one);
        value["note"] = one.reason.as_ref().map(Reason::to_string).into();
        value
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

    /// Every tap, as JSON.
    pub(crate) fn taps_json(&self) -> Vec<Value> {
        let entry = |t: &Replayed| {
            let mut entry = crate::render::json::tap(&t.listed());
            entry["exact_nmse"] = t.exact_nmse.into();
            entry["from"] = t.from.iter().map(ToString::to_string).collect();
            entry["through"] = t.through.iter().map(ToString::to_string).collect();
            entry["fit"] = fit_json(t);
            entry
        };
        self.replay.taps.iter().map(entry).collect()
    }

    fn json(&self, verdict: &Verdict) -> Value {
        let taps = self.taps_json();
        json!({
            "schema": 1,
            "command": "replay",
            "verdict": verdict.name(),
            "reason": match verdict { Verdict::Incomparable(why) => Some(why), _ => None },
            "profile": self.given.named.name(),
            "profile_loosened": Loosened::json(self.given.loosened),
            "cache": self.replay.cache.name(),
            "cache_is_assumed": self.replay.cache_is_assumed,
            "model": self.given.path.to_string_lossy(),
            "candidate": crate::render::json::provenance(&self.given.dump),
            "findings": self.replay.wrong().iter().map(|g| self.finding_json(g)).collect::<Vec<_>>(),
            "taps": taps,
            "unnamed": self.given.dump.unnamed(),
            "warnings": self.replay.warnings,
        })
    }
}

/// What speaks for it that all taps of a group are only recorded wrongly.
fn misrecorded_by(group: &[&Replayed]) -> Vec<Place> {
    group.iter().flat_map(|t| t.misrecorded.iter().copied()).collect()
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

fn fit_json(t: &Replayed) -> Value {
    t.fit.as_ref().map_or(
        Value::Null,
        |fit| {
            let terms: serde_json::Map<_, _> = fit.terms.iter().map(|(tap, n)| (tap.to_string(), json!(n))).collect();
            json!({"x": fit.stream, "branch": fit.branch, "norm": fit.norm, "terms": terms, "residual_nmse": fit.residual_nmse})
        },
    )
}

/// Judges a candidate; of a batch every sequence in turn, and the first that is not right is the answer. `session` is the session of what was judged.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn of_each_sequence<T>(
    args: &CandidateArgs,
    judge: impl Fn(CandidateArgs) -> Result<T>,
    session: impl Fn(&mut T) -> &mut Session,
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
