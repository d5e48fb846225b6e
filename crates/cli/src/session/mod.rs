//! Adds to a comparison of two dumps what only the command has: models, recorded programs, causes, and a progress bar.

pub(crate) mod asked;
pub(crate) mod cause;
pub(crate) mod diagnosis;
pub(crate) mod input;
pub(crate) mod model;
pub(crate) mod next_taps;
pub(crate) mod own_program;
pub(crate) mod replay;
pub(crate) mod source;

use anyhow::Result;
use firstdiff_compare::Verdict;
pub use firstdiff_parity::session::Tools;
use firstdiff_parity::session::batch::into_undecided;
pub use firstdiff_parity::session::{ByModel, Comparison, Session, pair};
pub(crate) use firstdiff_parity::session::{
    arithmetic, declared_cache, ids, incomplete, is_recorded, notes, reading, streams,
};

use crate::progress::Bar;

/// The tools of this command: models, causes, and a progress bar.
pub const TOOLS: Tools<'static> =
    Tools { with_model: model::with_model, run: &run, sign_of_error: asked::sign_of_error };

/// Compares with a progress bar, and asks the model, if there is one, for the cause of a first difference; where there is none, whether each operation is
/// right by itself.
///
/// # Errors
/// When a file cannot be read.
pub fn run(session: Session) -> Result<Comparison> {
    let judged = once(session)?;
    let (report, Some(model)) = (&judged.report, &judged.session.model) else { return Ok(judged) };
    // What a second right run allows, no profile describes.
    if report.verdict != Verdict::Parity || judged.session.noise.is_some() {
        return Ok(judged);
    }
    let wrong = asked::wrong_by_model(model, &judged.session, &report.taps);
    let Some(first) = wrong.keys().next().copied() else { return Ok(judged) };
    let mut session = judged.session;
    let which = if wrong.len() == 1 { "it is".to_owned() } else { format!("it and {} more are", wrong.len() - 1) };
    let why = format!(
        "{first}: the model shows that {which} wrong of what was recorded before, by less than the profile's table sees; `firstdiff replay` says more"
    );
    session.warnings.push(why.clone());
    (session.options.wrong_by_model, session.options.judged) = (wrong, None);
    let judged = once(session)?;
    Ok(if judged.report.verdict == Verdict::Parity { into_undecided(judged, why) } else { judged })
}

fn once(session: Session) -> Result<Comparison> {
    let bar = Bar::new(&session.reference);
    let progress = &mut |done, total| bar.step(done, total);
    let mut judged = session.run_with(progress, |session, report, fed| match (fed, &session.model, &report.first) {
        (Some((edits, tap)), ..) => Some(asked::token_cause(edits, tap)),
        (None, Some(model), Some(first)) => {
            asked::explain_divergence(model, session, report.taps[first.index].place, first.is_bracketed())
        }
        _ => None,
    })?;
    bar.finish();
    let folder = judged.session.recorded()[0].path();
    if judged.report.first.as_ref().is_some_and(|first| !first.unchecked_between.is_empty()) && is_recorded(folder) {
        judged.recorder_gives = source::taps_of(folder).ok();
    }
    Ok(judged)
}
