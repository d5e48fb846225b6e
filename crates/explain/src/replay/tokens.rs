//! Reads the tokens that the candidate was fed off its h0: each row is looked up in the model's table.

use firstdiff_compare::metrics::Metrics;
use firstdiff_compare::{Place, Status, TokenEdits, rows_of};
use firstdiff_model::{Chunk, Model, Op, Step};
use firstdiff_trace::Dump;
use ndarray::{ArrayView2, Axis, Slice};

use crate::mistakes::embedding::ids;
use crate::replay::reason::Reason;
use crate::replay::replayed::{Options, Replay};
use crate::replay::right::distance;
use crate::replay::{Done, Run};

/// As told, with the tokens of the prefill that the candidate's own rows of h0 say it was fed, where these are more or fewer, and most the same. As many are told
/// apart by the operation itself.
pub(crate) fn fed(model: &Model, dump: &Dump, options: &Options) -> Done<Option<(Options, TokenEdits)>> {
    let told = &options.tokens;
    let Some(step) = embedding(model).filter(|_| options.tokens_are_known) else { return Ok(None) };
    let Some(rows) = rows_of(dump, step.tap)?.filter(|rows| rows.len() != told.len()) else { return Ok(None) };
    let listed = rows.concat();
    let own = ArrayView2::from_shape((rows.len(), rows[0].len()), &listed).ok();
    let Some(tokens) = own.and_then(|own| ids(model, step, own, told)) else { return Ok(None) };
    let [ours, theirs] = [told, &tokens].map(|ids| ids.iter().map(|&id| i64::from(id)).collect::<Vec<i64>>());
    let edits = TokenEdits::compare_ids(&ours, &theirs);
    Ok(edits.map(|edits| (Options { tokens, ..options.clone() }, edits)))
}

fn embedding(model: &Model) -> Option<&Step> {
    model.plan.steps.iter().find(|step| matches!(step.op, Op::Embedding { .. }))
}

/// Says of a replay on the tokens that were fed that they are not those that were told.
pub(crate) fn tell(edits: TokenEdits, told: &[u32], run: &mut Run<'_>, replay: &mut Replay) -> Done<()> {
    let Some(step) = embedding(run.recorded.model) else { return Ok(()) };
    let place = Place { step: 0, tap: step.tap };
    let found = replay.taps.iter_mut().find(|tap| tap.report.place == place);
    let Some((own, tap)) = run.recorded.read(place).ok().zip(found) else { return Ok(()) };
    let count = told.len().min(own.len_of(Axis(0)));
    let (_, due) = run.evaluated(step, &[], &[], Chunk { tokens: &told[..count], start: 0 })?;
    let own = own.slice_axis(Axis(0), Slice::from(..count)).to_owned();
    tap.report.metrics = due.as_slice().zip(own.as_slice()).map(|(due, own)| Metrics::measure_f64(due, own));
    tap.exact_nmse = Some(distance(step.tap.site, &due, &own));
    (tap.report.status, tap.reason) = (Status::Diverged, Some(Reason::OtherTokens(edits)));
    Ok(())
}
