//! What should be known before a replay is believed? Taps of no step, a prompt too short to show mistakes, weights of another model.

use firstdiff_compare::Status;
use firstdiff_model::{Model, Op};
use firstdiff_trace::{Dump, Site};

use crate::replay::Replayed;
use crate::replay::recorded::Recorded;
use crate::tolerance::replay::UNLIKE;

/// What is to be said beside a replay.
pub(crate) fn of(recorded: &Recorded<'_>, taps: &[Replayed]) -> Vec<String> {
    let all =
        [outside_the_plan(recorded.model, recorded.dump), one_token(recorded), another_model(recorded.model, taps)];
    all.into_iter().flatten().collect()
}

/// Taps that the model has not.
fn outside_the_plan(model: &Model, dump: &Dump) -> Option<String> {
    let foreign: Vec<String> =
        dump.entries().iter().filter(|e| model.plan.step(e.tap).is_none()).map(|e| e.tap.to_string()).collect();
    let some = foreign.iter().take(3).cloned().collect::<Vec<_>>().join(", ");
    (!foreign.is_empty())
        .then(|| format!("{} taps are none of this model's and were not looked at: {some}", foreign.len()))
}

/// StepContext position 0 nothing is rotated, and softmax over one key is 1.
fn one_token(recorded: &Recorded<'_>) -> Option<String> {
    let tokens: usize = recorded.tokens.iter().map(Vec::len).sum();
    (tokens == 1).then(|| {
        "one token: no mistake of RoPE, masks, attention scale or key heads reaches what comes out; use 9 or more"
            .to_owned()
    })
}

/// Nearly every product is another's, and by far.
fn another_model(model: &Model, taps: &[Replayed]) -> Option<String> {
    let product = |t: &&Replayed| {
        let step = model.plan.step(t.report.place.tap);
        let matrix = step.is_some_and(|s| matches!(s.op, Op::Linear { .. } | Op::Embedding { .. }));
        matrix && t.through.is_empty() && t.report.status != Status::Unchecked
    };
    let far = |t: &&Replayed| {
        t.report.status == Status::Diverged && t.report.metrics.and_then(|m| m.nmse()).is_none_or(|nmse| nmse > UNLIKE)
    };
    let (products, wrong) = (taps.iter().filter(product).count(), taps.iter().filter(product).filter(far).count());
    let table = taps.iter().filter(product).any(|t| t.report.place.tap.site == Site::H0 && far(&t));
    (products >= 5 && table && wrong * 10 >= products * 9).then(|| {
        format!("{wrong} of {products} products with a matrix are far off, the embedding among them: are these another model's weights? `firstdiff weights` compares files")
    })
}
