//! Defines the report of `replay`: the operations that are wrong by themselves.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{Place, Report, Status, Verdict, number};
use firstdiff_explain::replay::{Reason, Replayed, Rerouted, Routing};
use serde::Serialize;

use crate::report::explain::{NOT_JUDGED, unrecorded};
use crate::report::{
    CoarserProfileReport, Conclusion, Counts, Diagnosis, Header, JudgedIn, OtherArithmetic, Provenance, TapEntry,
    names, not_checked,
};
use crate::session::cause;
use crate::session::replay::{COARSE, ReplaySession};
use crate::words::{layers_in_short, shorten, taps_in_words};

/// The report of `firstdiff replay`.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Replay {
    /// Schema and command.
    #[serde(flatten)]
    pub header: Header,
    /// What is concluded.
    #[serde(flatten)]
    pub conclusion: Conclusion,
    /// What was judged, and in which arithmetic.
    #[serde(flatten)]
    pub judged: ReplayInputs,
    /// Wrong operations, the same one of several layers together, in the order of the Plan.
    pub findings: Vec<WrongOperation>,
    /// Where all products with weights are in another arithmetic.
    pub arithmetic: Option<OtherArithmetic>,
    /// What to do next about the first.
    pub next: Option<String>,
}

/// What `replay` and `explain` judged, and every tap.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "replayed"))]
pub struct ReplayInputs {
    /// The arithmetic in which it was judged.
    #[serde(flatten)]
    pub judged_in: JudgedIn,
    /// Where the model was read.
    pub model: String,
    /// Its family and size.
    pub architecture: Architecture,
    /// The candidate.
    pub candidate: Provenance,
    /// Routers that send tokens to other experts than the reference's.
    pub routing: Vec<Routed>,
    /// How many of the recorded taps have which status.
    pub counts: Counts,
    /// Every tap that the candidate recorded, and every other tap of the Plan, in the order of the Plan.
    pub taps: Vec<ReplayedTap>,
    /// Names in the dump that are no taps.
    pub unmapped: Vec<String>,
    /// What was not checked, and why, in lines.
    pub not_checked: Vec<String>,
    /// Other notes.
    pub warnings: Vec<String>,
}

/// A router that sends tokens to other experts than the reference's.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Routed {
    /// The tap.
    pub tap: String,
    /// Its step.
    pub step: u32,
    /// How many tokens it has.
    pub tokens: usize,
    /// Those that go elsewhere.
    pub rerouted: Vec<Rerouted>,
    /// Whether the router is wrong by itself, or why it is not.
    pub because: RoutingCause,
    /// All of this in words.
    pub words: String,
}

/// Why tokens go to other experts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "kebab-case")]
pub enum RoutingCause {
    /// Rounding decides between them: no fault.
    Rounding,
    /// Its scores differ from the reference's, and this is the right choice by them.
    Scores,
    /// The choice contradicts its scores.
    Fault,
    /// Unknown whether the choice follows its scores.
    Unknown,
}

impl Routed {
    fn new(routing: &Routing, replay: &firstdiff_explain::replay::Replay) -> Routed {
        let judged = replay.taps.iter().find(|tap| tap.report.place == routing.place);
        let because = match judged.map(|tap| tap.report.status) {
            Some(Status::Diverged) => RoutingCause::Fault,
            // Behind a fault, its scores differ because of that.
            Some(Status::Exact) if replay.count(|status| status == Status::Diverged) > 0 => RoutingCause::Scores,
            _ if routing.is_rounding() => RoutingCause::Rounding,
            Some(status) if status.agrees() => RoutingCause::Scores,
            _ => RoutingCause::Unknown,
        };
        let Routing { place, rows, tokens, .. } = routing;
        Routed {
            tap: place.tap.to_string(),
            step: place.step,
            tokens: *rows,
            rerouted: tokens.clone(),
            because,
            words: format!("{place}: {}", in_words(routing, because)),
        }
    }
}

/// `2 of 12 tokens go to other experts than the reference's ..`
fn in_words(routing: &Routing, because: RoutingCause) -> String {
    let list = |experts: &[usize]| experts.iter().map(ToString::to_string).collect::<Vec<_>>().join(" and ");
    let tokens = if routing.rows == 1 { "token" } else { "tokens" };
    let how = routing.widest().map(|token| {
        let margin = token.margin.map_or_else(String::new, |margin| {
            format!(", whose scores are {} of the largest apart", number(margin.abs()))
        });
        let which = if routing.rows == 1 { "it".to_owned() } else { format!("token {} of the step", token.row) };
        format!("{which} goes to {} instead of {}{margin}", list(&token.taken), list(&token.left))
    });
    let why = match because {
        RoutingCause::Rounding => "rounding decides between them: no fault",
        RoutingCause::Scores => "right by the candidate's own scores, which are others than the reference's",
        RoutingCause::Fault => "not what the candidate's own scores say",
        RoutingCause::Unknown => "whether its own scores say so is not known",
    };
    let how = how.unwrap_or_default();
    let count = routing.tokens.len();
    format!("{count} of {} {tokens} to other experts than the reference's ({how}): {why}", routing.rows)
}

/// A model's family and size.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Architecture {
    /// Its family.
    pub family: String,
    /// How many layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: usize,
}

/// One tap, judged on the candidate's own inputs.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct ReplayedTap {
    /// Status and measures against the right value.
    #[serde(flatten)]
    pub entry: TapEntry,
    /// NMSE against the value in f64.
    pub exact_nmse: Option<f64>,
    /// The recorded taps it was computed from.
    pub from: Vec<String>,
    /// Taps in between that were computed: the fault may be in any of them.
    pub span: Vec<String>,
    /// For a wrong residual add, what was added.
    pub fit: Option<Fit>,
}

/// What was added to the residual stream.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Fit {
    /// How many times the stream before it is in the sum; 1 where it is right.
    pub x: f64,
    /// How many times the branch is; 1 where it is right.
    pub branch: f64,
    /// How many times the normed stream is; 0 where it is right; null where it was not recorded.
    pub norm: Option<f64>,
    /// The taps that were added, and how many times each.
    pub terms: BTreeMap<String, f64>,
    /// NMSE of what the fit leaves.
    pub residual_nmse: f64,
    /// The sum in words.
    pub words: String,
}

/// A wrong operation.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct WrongOperation {
    /// The first tap that shows it.
    pub tap: String,
    /// All of them, with their steps.
    pub taps: Vec<String>,
    /// The same in words.
    pub place: String,
    /// The operation.
    pub op: String,
    /// The layers it is wrong in.
    pub layers: BTreeSet<u32>,
    /// The cause, where a known mistake gives the candidate's numbers.
    #[serde(flatten)]
    pub diagnosis: Diagnosis,
    /// NMSE of the first tap.
    pub base_nmse: Option<f64>,
    /// The largest NMSE of all of them.
    pub worst_nmse: Option<f64>,
    /// The NMSE that is allowed of the first.
    pub allowed_nmse: Option<f64>,
    /// Whether it was compared with the reference's own value, as it cannot be computed.
    #[serde(skip)]
    pub is_of_the_reference: bool,
    /// The recorded taps it was computed from.
    pub from: Vec<String>,
    /// Taps in between that were computed: the fault may be in any of them.
    pub span: Vec<String>,
    /// Whether some of these were recorded, at some token positions only.
    #[serde(skip)]
    pub is_in_part: bool,
    /// Whether all of these were recorded, and could not be judged.
    #[serde(skip)]
    pub is_recorded: bool,
    /// For a wrong residual add, what was added.
    pub fit: Option<Fit>,
    /// Further mistakes in the same operation, which together with the first give these numbers.
    pub together: Vec<Diagnosis>,
    /// Why it is wrong, where its size alone does not show that.
    pub note: Option<String>,
    /// Other notes on its causes.
    pub notes: Vec<String>,
}

impl Replay {
    pub(crate) fn new(session: &ReplaySession, verdict: &Verdict) -> Replay {
        Replay {
            header: Header::new("replay"),
            conclusion: Conclusion::new(verdict),
            judged: ReplayInputs::new(session),
            findings: session.all_wrong_operations().iter().map(|group| WrongOperation::new(session, group)).collect(),
            arithmetic: session.other_arithmetic().map(crate::session::diagnosis::other_arithmetic),
            next: next(session).filter(|_| *verdict == Verdict::Diverged),
        }
    }
}

impl ReplayInputs {
    pub(crate) fn new(session: &ReplaySession) -> ReplayInputs {
        let ReplaySession { input, replay, .. } = session;
        let listed = session.report(&Verdict::Parity);
        let (family, layers, hidden) = input.source.sizes();
        ReplayInputs {
            judged_in: JudgedIn {
                profile: input.named.name(),
                profile_reason: input.why.clone(),
                profile_loosened: CoarserProfileReport::new(input.coarser_profile),
                cache: replay.cache.name(),
                cache_is_assumed: replay.cache_is_assumed,
            },
            model: input.path.to_string_lossy().into_owned(),
            architecture: Architecture { family: family.to_owned(), layers, hidden },
            candidate: Provenance::new(&input.dump),
            routing: replay.routing.iter().map(|routing| Routed::new(routing, replay)).collect(),
            counts: Counts::count(&listed.taps),
            taps: replay.taps.iter().map(ReplayedTap::new).collect(),
            unmapped: input.source.unmapped().to_vec(),
            not_checked: lines_not_checked(session, &listed),
            warnings: replay.warnings.clone(),
        }
    }
}

impl ReplayedTap {
    fn new(tap: &Replayed) -> ReplayedTap {
        ReplayedTap {
            entry: TapEntry::new(&tap.listed()),
            exact_nmse: tap.exact_nmse,
            from: names(&tap.from),
            span: names(&tap.through),
            fit: Fit::from_replayed(tap),
        }
    }
}

impl Fit {
    fn from_replayed(tap: &Replayed) -> Option<Fit> {
        tap.fit.as_ref().map(|fit| Fit {
            x: fit.stream,
            branch: fit.branch,
            norm: fit.norm,
            terms: fit.terms.iter().map(|(tap, factor)| (tap.to_string(), *factor)).collect(),
            residual_nmse: fit.residual_nmse,
            words: fit.in_words(),
        })
    }
}

impl WrongOperation {
    pub(crate) fn new(session: &ReplaySession, group: &[&Replayed]) -> WrongOperation {
        let one = group[0];
        let nmse = one.report.metrics.and_then(|m| m.nmse());
        let mut causes =
            cause::causes_at(&session.findings, one.report.place).map(|(f, _)| crate::session::diagnosis::diagnosis(f));
        let mut diagnosis = causes.next().unwrap_or_else(|| Diagnosis::unknown(nmse));
        // Evidence that all taps of a group are only recorded wrongly.
        let misrecorded: Vec<Place> = group.iter().flat_map(|t| t.misrecorded.iter().copied()).collect();
        let taken_back: BTreeSet<Place> = group.iter().flat_map(|t| t.taken_back.iter().copied()).collect();
        let taken_back: Vec<Place> = taken_back.into_iter().collect();
        (diagnosis.misrecorded, diagnosis.taken_back) = (names(&misrecorded), names(&taken_back));
        let notes = cause::causes_at(&session.findings, one.report.place).filter_map(|(f, _)| f.note.clone());
        let is_open = diagnosis.cause.is_none() && diagnosis.is_blamed();
        let stretch = one.stretch.clone().filter(|_| is_open);
        let recorded = session.input.dump.all_entries();
        let recorded_wrongly = (!misrecorded.is_empty()).then(|| firstdiff_explain::misrecorded(&misrecorded));
        let undone = (!taken_back.is_empty()).then(|| firstdiff_explain::taken_back(&taken_back));
        WrongOperation {
            tap: one.report.place.tap.to_string(),
            taps: names(group.iter().map(|t| t.report.place)),
            place: where_of(group, session),
            op: one.report.op.clone(),
            layers: group.iter().filter_map(|t| t.report.place.tap.layer).collect(),
            diagnosis,
            base_nmse: nmse,
            worst_nmse: group.iter().filter_map(|t| t.report.metrics?.nmse()).reduce(f64::max),
            allowed_nmse: one.report.allowed,
            is_of_the_reference: one.is_for(Reason::is_of_the_reference),
            // A choice of experts that was not recorded is supposed.
            from: names(one.from.iter().filter(|tap| recorded.iter().any(|entry| entry.tap == **tap))),
            span: names(&one.through),
            is_in_part: session.replay.is_held_in_part(&one.through),
            is_recorded: unrecorded(one.through.clone(), &session.replay, &session.input.dump).is_empty(),
            fit: Fit::from_replayed(one),
            together: causes.collect(),
            note: one.reason.as_ref().map(Reason::to_string),
            notes: notes.chain(stretch).chain(recorded_wrongly).chain(undone).collect(),
        }
    }
}

/// The next step for the first wrong operation.
fn next(session: &ReplaySession) -> Option<String> {
    let groups = session.wrong_operations();
    let Some(group) = groups.iter().find(|group| group[0].is_blamed()).or(groups.first()) else {
        let other = session.taps_rounded_otherwise().next()?;
        return other
            .arithmetic
            .as_ref()
            .map(cause::beside_another_arithmetic)
            .or_else(|| other.cause.as_ref().map(|found| cause::fix(found.id, other)));
    };
    let one = group[0];
    let cause = cause::cause_at(&session.findings, one.report.place).filter(|_| one.is_blamed());
    if let Some((finding, found)) = cause {
        return Some(format!("{}, and replay again", cause::fix(found.id, finding)));
    }
    let place = where_of(group, session);
    if !one.misrecorded.is_empty() {
        return Some(format!(
            "look at what is recorded as {place}, and when; record it where it is made, and replay again"
        ));
    }
    if !one.taken_back.is_empty() {
        return Some(format!("nothing is to be done for {place}: what is off there is taken back"));
    }
    Some(match one.through.as_slice() {
        [] if one.stretch.is_some() => format!(
            "`firstdiff explain` with the same arguments tries more; look at the operations that make {place}, up to '{}'",
            one.report.op
        ),
        [] => format!(
            "`firstdiff explain` with the same arguments tries more; look at how {place} is made and recorded (the reference: '{}'), and replay again",
            one.report.op
        ),
        through => match &unrecorded(through.to_vec(), &session.replay, &session.input.dump)[..] {
            [] => format!(
                "{NOT_JUDGED}; `firstdiff explain` with the same arguments tries known mistakes in that stretch"
            ),
            missing => format!(
                "`firstdiff explain` with the same arguments tries known mistakes in that stretch; or record {}{} as well, and replay again",
                if session.replay.is_held_in_part(missing) { "all token positions of " } else { "" },
                shorten(&names(missing), 4)
            ),
        },
    })
}

/// What was not checked, and why: of the recorded taps, and taps that were not recorded.
fn lines_not_checked(session: &ReplaySession, listed: &Report) -> Vec<String> {
    let mut lines = not_checked(listed, &session.input.dump.path().to_string_lossy());
    let is_coarse = |t: &&Replayed| session.is_coarse(t.report.place);
    let coarse = session.replay.taps.iter().filter(is_coarse).count();
    let absent = session.replay.taps.iter().filter(|t| t.is_for(Reason::is_absent) && !is_coarse(t)).count();
    if absent > 0 {
        let were = if absent == 1 { "was" } else { "were" };
        lines.push(format!("{} of the model {were} not recorded", taps_in_words(absent)));
    }
    if coarse > 0 {
        lines.push(format!("{} are in the file, {COARSE}", taps_in_words(coarse)));
    }
    lines
}

/// `layers.0.h_attn`, or `layers.0-2.h_attn` for a group.
fn where_of(group: &[&Replayed], session: &ReplaySession) -> String {
    let tap = group[0].report.place.tap;
    let layers = layers_in_short(group.iter().filter_map(|t| t.report.place.tap.layer));
    let steps = session.steps_in_words(&group.iter().map(|t| t.report.place).collect::<Vec<_>>(), &[]);
    let steps = steps.map_or(String::new(), |steps| format!(" ({steps})"));
    format!("{}{steps}", tap.in_layers(&layers))
}
