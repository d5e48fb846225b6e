//! Renders the answer of `replay`: what is judged, and each operation that is wrong in itself.

use firstdiff_compare::{Profile, Verdict, number};

use crate::render::compare::{described, not_checked};
use crate::render::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, paint};
use crate::render::table::taps;
use crate::report::{Architecture, Counts, JudgedIn, Replay, ReplayInputs, WrongOperation, where_of};
use crate::session::arithmetic::parity;
use crate::session::cause;
use crate::session::incomplete::Incomplete;
use crate::session::replay::ReplaySession;
use crate::words::{safe, shorten, taps_in_words};

/// The screen of a replay.
pub(crate) fn render(session: &ReplaySession, report: &Replay, verdict: &Verdict, verbose: bool) -> Screen {
    let mut screen = Screen::default();
    heading(&mut screen, session, &report.judged);
    screen.line("");
    taps(&mut screen, &session.report(verdict), if verbose { Detail::Every } else { Detail::Folded });
    screen.line("");
    conclusion(&mut screen, session, report, verdict);
    notes_section(&mut screen, &report.judged);
    screen
}

/// What is judged, and in which arithmetic.
pub(crate) fn heading(screen: &mut Screen, session: &ReplaySession, inputs: &ReplayInputs) {
    let Architecture { family, layers, hidden } = &inputs.architecture;
    let what = format!("({family}, {layers} layers, {hidden} wide)");
    screen.line(&format!("model      {}  {}", safe(&inputs.model), paint(DIM, &what)));
    screen.line(&format!("candidate  {}", described(&inputs.candidate)));
    let JudgedIn { profile, profile_reason, .. } = &inputs.judged_in;
    let cache = session.cache_in_words();
    let how = format!("judged as  {profile}{cache} ({profile_reason}), each operation on the candidate's own inputs");
    screen.line(&paint(DIM, &how));
    for routed in inputs.routing.iter().take(MOST_ROUTERS) {
        screen.line(&format!("routing    {}", safe(&routed.words)));
    }
    if let Some(more) = inputs.routing.len().checked_sub(MOST_ROUTERS).filter(|more| *more > 0) {
        screen.line(&format!("routing    and so do {more} more"));
    }
}

/// How many routers are listed one by one.
const MOST_ROUTERS: usize = 4;

/// What was not checked, and other notes.
pub(crate) fn notes_section(screen: &mut Screen, inputs: &ReplayInputs) {
    not_checked(screen, &inputs.not_checked);
    for warning in &inputs.warnings {
        screen.line(&format!("{} {}", paint(WARN, "note:"), safe(warning)));
    }
}

/// How many taps are right, where none is wrong.
pub(crate) fn right_of_all(session: &ReplaySession, counts: &Counts) -> String {
    let (right, all) = (counts.agree(), counts.all());
    let rest = if right < all { format!("; {} not checked", all - right) } else { String::new() };
    let rest = rest + &Incomplete::suffix(&[("the candidate", &session.input.dump)]);
    let how = match session.input.named {
        Profile::Exact | Profile::F32 => String::new(),
        coarse => format!(", as far as the rounding of {coarse} shows"),
    };
    format!("{right} of {} come out right from what they read{how}{rest}", taps_in_words(all))
}

fn conclusion(screen: &mut Screen, session: &ReplaySession, report: &Replay, verdict: &Verdict) {
    let counts = &report.judged.counts;
    match verdict {
        Verdict::Parity => {
            let (how, assumed) = (paint(GOOD, &parity(session.input.coarser_profile)), session.assumed_cache());
            screen.line(&format!("{how} {}{assumed}", right_of_all(session, counts)));
        }
        Verdict::Incomparable(reason) => screen.line(&format!("{} {reason}", paint(WARN, "incomparable:"))),
        Verdict::Diverged => {
            // Products in another arithmetic are reported together.
            let groups = session.wrong_operations();
            let findings: Vec<WrongOperation> = groups.iter().map(|g| WrongOperation::new(session, g)).collect();
            let count = |of: &dyn Fn(&WrongOperation) -> bool| -> usize {
                findings.iter().filter(|f| of(f)).map(|f| f.taps.len()).sum()
            };
            let taps = |n: usize| if n == 1 { "a tap is".to_owned() } else { format!("{n} taps are") };
            let (alone, on_the_way): (Vec<&WrongOperation>, Vec<&WrongOperation>) =
                findings.iter().filter(|f| f.diagnosis.is_blamed()).partition(|f| f.span.is_empty());
            let of_operations = match alone.len() {
                1 => Some("one operation is wrong in itself".to_owned()),
                n => (n > 1).then(|| format!("{n} operations are wrong in themselves")),
            };
            // Of several operations that lie between two recorded taps one is wrong, and nothing says which.
            let of_stretches = match on_the_way.iter().map(|f| f.taps.len()).sum() {
                1 => Some("an operation on the way to one tap is wrong".to_owned()),
                n => (n > 1).then(|| format!("operations on the way to {n} taps are wrong")),
            };
            // Where a tap is only recorded wrongly, or its error is undone, no operation is wrong.
            let misrecorded = count(&|f| !f.diagnosis.misrecorded.is_empty());
            let taken_back = count(&|f| !f.diagnosis.taken_back.is_empty());
            let of_taps = (misrecorded > 0).then(|| format!("{} off, and what reads it right", taps(misrecorded)));
            let undone = (taken_back > 0).then(|| format!("{} off by what is taken back", taps(taken_back)));
            let of_all = match &report.arithmetic {
                Some(_) => Some("another arithmetic of all products with weights".to_owned()),
                None => session.taps_rounded_otherwise().next().map(|_| "another arithmetic, not a mistake".to_owned()),
            };
            let wrong = of_operations.into_iter().chain(of_stretches);
            let parts: Vec<String> = of_all.into_iter().chain(wrong).chain(of_taps).chain(undone).collect();
            let (right, assumed) = (taps_in_words(counts.agree()), session.assumed_cache());
            screen.line(&format!("{} {}; {right} right{assumed}", paint(BAD, "diverged:"), parts.join(", ")));
            for line in report.arithmetic.iter().flat_map(|other| &other.words) {
                screen.line(&format!("  {line}"));
            }
            for other in session.taps_rounded_otherwise().filter(|other| other.arithmetic.is_none()) {
                let what = other.cause.as_ref().map(cause::cause_text).unwrap_or_default();
                screen.line(&format!("  {}: {what}", where_of(&other.taps)));
                screen.line(&format!("    {}", cause::proof(other)));
            }
            findings.iter().for_each(|found| finding(screen, found));
            if let Some(next) = &report.next {
                screen.line(&format!("next: {next}"));
            }
        }
    }
}

fn finding(screen: &mut Screen, operation: &WrongOperation) {
    let and_so_on = if operation.taps.len() > 1 { " and so on" } else { "" };
    let due = match operation.from.is_empty() {
        _ if operation.is_of_the_reference => format!("the reference's own value{and_so_on}"),
        true => format!("what comes out of the tokens{and_so_on}"),
        false => format!("what comes out of the candidate's own {}{and_so_on}", shorten(&operation.from, 4)),
    };
    let last_of = if operation.diagnosis.is_blamed() && !operation.span.is_empty() { "up to " } else { "" };
    screen.line(&format!("  {}  {last_of}{}", paint(BOLD, &operation.place), operation.op));
    let reason = operation.note.as_deref().unwrap_or_default();
    let limit = operation.allowed_nmse.unwrap_or(f64::INFINITY);
    let text = match operation.worst_nmse {
        Some(nmse) if nmse > limit => {
            format!("NMSE {} against {due} ({} allowed)", number(nmse), number(limit))
        }
        // Too small for that measure, or no measure at all.
        Some(nmse) => format!("{reason}, against {due} (NMSE {})", number(nmse)),
        None => reason.to_owned(),
    };
    screen.line(&format!("    {}", safe(&text)));
    let causes = std::iter::once(&operation.diagnosis).chain(&operation.together);
    for (at, summary) in causes.filter_map(|cause| cause.summary.as_ref()).enumerate() {
        let word = if at == 0 { "why:" } else { "and:" };
        screen.line(&format!("    {} {summary}", paint(BOLD, word)));
    }
    if let Some(proof) = &operation.diagnosis.proof {
        screen.line(&format!("    {proof}"));
    }
    for note in &operation.notes {
        screen.line(&format!("    {} {}", paint(WARN, "note:"), safe(note)));
    }
    if !operation.diagnosis.is_blamed() {
        return;
    }
    if !operation.span.is_empty() {
        let how = match (operation.is_in_part, operation.is_recorded) {
            (true, _) => "not recorded at all token positions",
            (_, true) => "recorded, and not judged,",
            _ => "not recorded",
        };
        let text = format!("{how} between: {}; the fault may be in any of them", shorten(&operation.span, 5));
        screen.line(&format!("    {text}"));
    }
    if let Some(fit) = operation.fit.as_ref().filter(|_| operation.diagnosis.summary.is_none()) {
        let left = format!("(leaves NMSE {})", number(fit.residual_nmse));
        screen.line(&if fit.residual_nmse < EXPLAINS * operation.worst_nmse.unwrap_or(f64::INFINITY) {
            format!("    it is {} {left}", fit.words)
        } else {
            format!("    no sum of {} and others of the stream gives it", operation.from.join(", "))
        });
    }
}

/// A fit that leaves less than this share of the error explains it.
const EXPLAINS: f64 = 0.01;
