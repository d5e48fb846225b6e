//! Evaluates attention one head at a time when none of its inner taps is recorded, so that no \[H,T,S\] tensor is held in memory.

use firstdiff_trace::Tap;
use ndarray::{Array2, ArrayD, ArrayViewD, Axis, Ix2, Slice};
use rayon::prelude::*;

use crate::error::ModelError;
use crate::plan::{Op, Step};
use crate::storage::Real;

/// The four steps of one layer's attention: qk, scores, softmax, context.
pub(crate) type AttentionSteps<'a> = [&'a Step; 4];

/// Returns the first four of `steps` if they are one attention, in which each step reads the one before.
pub(crate) fn find_attention<'s, 'a>(steps: &'s [&'a Step]) -> Option<&'s AttentionSteps<'a>> {
    let four: &AttentionSteps<'_> = steps.first_chunk()?;
    let kinds = matches!(four.map(|step| &step.op), [Op::Qk, Op::Scores(_), Op::Softmax, Op::Context]);
    let chained = four.windows(2).all(|pair| pair[1].reads.first() == Some(&pair[0].tap));
    let counts = four.map(|step| step.reads.len()) == [2, 1, 1, 2];
    (kinds && chained && counts).then_some(four)
}

/// Queries, keys and values: the step that reads each, and its tap.
pub(crate) fn reads<'a>(steps: &AttentionSteps<'a>) -> [(&'a Step, Tap); 3] {
    let [qk, .., context] = *steps;
    [(qk, qk.reads[0]), (qk, qk.reads[1]), (context, context.reads[1])]
}

/// Computes the context \[T,H·d\] from queries \[T,H,d\], keys \[S,K,d\] and values \[S,K,d\]. Heads are independent, so it has the same bits as the four
/// steps one after the other.
pub(crate) fn context<E: Real>(
    steps: &AttentionSteps<'_>,
    [q, k, v]: [ArrayViewD<'_, E>; 3],
    eval: impl Fn(&Step, &[ArrayViewD<'_, E>]) -> Result<ArrayD<E>, ModelError> + Sync,
) -> Result<ArrayD<E>, ModelError> {
    let [qk, scores, softmax, context] = steps;
    let error = |reason: String| ModelError::Step { tap: qk.tap, reason };
    let (&[tokens, heads, width], &[_, groups, _], &[_, kinds, _]) = (q.shape(), k.shape(), v.shape()) else {
        return Err(error(format!(
            "queries {:?}, keys {:?}, values {:?}: not 3 axes each",
            q.shape(),
            k.shape(),
            v.shape()
        )));
    };
    if groups == 0 || groups != kinds || !heads.is_multiple_of(groups) {
        return Err(error(format!("{heads} heads of queries, {groups} of keys, {kinds} of values")));
    }
    let mut out = Array2::zeros((tokens, heads * width));
    let parts: Vec<_> = out.axis_chunks_iter_mut(Axis(1), width.max(1)).enumerate().collect();
    parts.into_par_iter().try_for_each(|(h, mut part)| {
        let kind = h / (heads / groups);
        let (q, k, v) = (head(&q, h), head(&k, kind), head(&v, kind));
        let products = eval(qk, &[q, k])?;
        let scored = eval(scores, &[products.view()])?;
        let probs = eval(softmax, &[scored.view()])?;
        let found = eval(context, &[probs.view(), v])?;
        let shape = format!("{:?}", found.shape());
        let found = found.into_dimensionality::<Ix2>().ok().filter(|found| found.dim() == part.dim());
        part.assign(&found.ok_or_else(|| error(format!("context of a head has shape {shape}")))?);
        Ok(())
    })?;
    Ok(out.into_dyn())
}

/// One head of \[T,H,d\], as \[T,1,d\].
fn head<'a, E>(x: &'a ArrayViewD<'_, E>, at: usize) -> ArrayViewD<'a, E> {
    x.slice_axis(Axis(1), Slice::from(at..at + 1))
}
