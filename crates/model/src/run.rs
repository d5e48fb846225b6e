//! Runs a Plan over a prompt, and frees each tap when no later step reads it.

use std::collections::{HashMap, HashSet};

use firstdiff_trace::{Cache, Tap};
use ndarray::{ArrayD, ArrayViewD, Axis, Slice};

use crate::arithmetic::{Profile, RunPrecision, eval_step_in};
use crate::attention;
use crate::cache::keep;
use crate::error::ModelError;
use crate::eval::{Chunk, eval_step};
use crate::plan::{Plan, Step};
use crate::storage::Real;
use crate::weights::Weights;

/// The tokens of a run.
#[derive(Clone, Copy, Debug)]
pub struct Prompt<'a> {
    /// The prefill: step 0.
    pub tokens: &'a [u32],
    /// Decode tokens, one a step: steps 1, 2 …
    pub decode_tokens: &'a [u32],
}

/// The values of a tap, in the profile's arithmetic.
#[derive(Clone, Debug)]
pub enum TapValues<'a> {
    /// From the profile `exact`.
    F64(ArrayViewD<'a, f64>),
    /// From every other profile.
    F32(ArrayViewD<'a, f32>),
}

/// Runs `plan` over `prompt`: the prefill (step 0), then a step for each decode token.
///
/// Keys and values are recorded as computed, and read as rounded to the cache type.
///
/// Every tap that `wanted` selects goes to `sink` with its step as soon as it is computed. A decode step's taps hold the new row only; `qk`, `scores` and
/// `probs` (\[H,1,S\]) have all keys so far. Steps that no wanted tap depends on are not run. The result does not depend on the number of threads.
///
/// # Errors
/// When there are no tokens, one is outside the vocabulary, or the plan does not fit the weights; and the errors of `sink`.
pub fn run<X: From<ModelError>>(
    plan: &Plan,
    weights: &Weights,
    prompt: Prompt<'_>,
    arithmetic: impl Into<RunPrecision>,
    wanted: impl Fn(Tap) -> bool,
    sink: impl FnMut(Tap, u32, TapValues<'_>) -> Result<(), X>,
) -> Result<(), X> {
    let steps: Vec<&[u32]> = std::iter::once(prompt.tokens).chain(prompt.decode_tokens.chunks(1)).collect();
    run_steps(plan, weights, &steps, arithmetic, wanted, sink)
}

/// The same for the tokens of each step: steps behind the first may have several.
///
/// # Errors
/// As [`run`].
pub fn run_steps<X: From<ModelError>>(
    plan: &Plan,
    weights: &Weights,
    steps: &[&[u32]],
    arithmetic: impl Into<RunPrecision>,
    wanted: impl Fn(Tap) -> bool,
    mut sink: impl FnMut(Tap, u32, TapValues<'_>) -> Result<(), X>,
) -> Result<(), X> {
    let RunPrecision { profile, cache } = arithmetic.into();
    if profile == Profile::Exact {
        return forward::<f64, X>(plan, weights, steps, cache, wanted, eval_step, |t, s, v| {
            sink(t, s, TapValues::F64(v))
        });
    }
    let eval = |step: &Step, inputs: &[ArrayViewD<'_, f32>], chunk: Chunk<'_>, weights: &Weights| {
        eval_step_in(profile, step, inputs, chunk, weights)
    };
    forward::<f32, X>(plan, weights, steps, cache, wanted, eval, |t, s, v| sink(t, s, TapValues::F32(v)))
}

fn forward<E: Real, X: From<ModelError>>(
    plan: &Plan,
    weights: &Weights,
    steps: &[&[u32]],
    cache: Cache,
    wanted: impl Fn(Tap) -> bool,
    eval: impl Fn(&Step, &[ArrayViewD<'_, E>], Chunk<'_>, &Weights) -> Result<ArrayD<E>, ModelError> + Sync,
    mut sink: impl FnMut(Tap, u32, ArrayViewD<'_, E>) -> Result<(), X>,
) -> Result<(), X> {
    check_tokens(plan, steps)?;
    let schedule = Schedule::new(plan, &wanted)?;
    let mut live = HashMap::new();
    let last = steps.len() - 1;
    let mut start = 0;
    for (number, &tokens) in steps.iter().enumerate() {
        let chunk = Chunk { tokens, start };
        let eval = |step: &Step, inputs: &[ArrayViewD<'_, E>]| eval(step, inputs, chunk, weights);
        let mut at = 0;
        while at < schedule.steps.len() {
            let (steps, out) = match schedule.attention(at, &wanted) {
                Some(inside) => {
                    let read = attention::reads(inside).map(|(step, tap)| schedule.rows(step, tap, &live, chunk));
                    (inside.len(), attention::context(inside, read, eval)?)
                }
                None => (1, eval(schedule.steps[at], &schedule.inputs(schedule.steps[at], &live, chunk))?),
            };
            let done = at + steps - 1;
            let tap = schedule.steps[done].tap;
            if wanted(tap) {
                sink(tap, number as u32, out.view())?;
            }
            schedule.keep(done, out, cache, &mut live)?;
            (at..=done).for_each(|at| schedule.release(at, number == last, &mut live));
            at = done + 1;
        }
        start += tokens.len();
    }
    Ok(())
}

fn check_tokens(plan: &Plan, steps: &[&[u32]]) -> Result<(), ModelError> {
    if steps.is_empty() || steps.iter().any(|tokens| tokens.is_empty()) {
        return Err(ModelError::NoTokens);
    }
    let vocab = plan.dims.vocab;
    match steps.concat().into_iter().enumerate().find(|&(_, token)| token as usize >= vocab) {
        Some((index, token)) => Err(ModelError::Token { index, token, vocab }),
        None => Ok(()),
    }
}

/// The steps to run, and until when each tap is needed.
struct Schedule<'a> {
    steps: Vec<&'a Step>,
    /// The index of the last step that reads each tap.
    last_use: HashMap<Tap, usize>,
    /// Taps whose rows are kept from chunk to chunk: keys and values.
    cached: HashSet<Tap>,
}

impl<'a> Schedule<'a> {
    fn new(plan: &'a Plan, wanted: impl Fn(Tap) -> bool) -> Result<Schedule<'a>, ModelError> {
        let mut needed = HashSet::new();
        let mut steps = Vec::new();
        for step in plan.steps.iter().rev() {
            if wanted(step.tap) || needed.contains(&step.tap) {
                needed.extend(step.reads.iter().copied());
                steps.push(step);
            }
        }
        steps.reverse();
        let (mut last_use, mut made) = (HashMap::new(), HashSet::new());
        for (at, step) in steps.iter().enumerate() {
            for &tap in &step.reads {
                if !made.contains(&tap) {
                    let reason = format!("reads {tap}, which no step before it produces");
                    return Err(ModelError::Step { tap: step.tap, reason });
                }
                last_use.insert(tap, at);
            }
            made.insert(step.tap);
        }
        let cached = steps.iter().filter_map(|step| step.cached()).collect();
        Ok(Schedule { steps, last_use, cached })
    }

    /// The attention that begins at step `at`, unless one of its inner taps is wanted or read from outside.
    fn attention(&self, at: usize, wanted: impl Fn(Tap) -> bool) -> Option<&attention::AttentionSteps<'a>> {
        let four = attention::find_attention(&self.steps[at..])?;
        let hidden =
            |(n, step): (usize, &&Step)| !wanted(step.tap) && self.last_use.get(&step.tap) == Some(&(at + n + 1));
        four[..3].iter().enumerate().all(hidden).then_some(four)
    }

    /// The inputs of `step`.
    fn inputs<'l, E: Real>(
        &self,
        step: &Step,
        live: &'l HashMap<Tap, ArrayD<E>>,
        chunk: Chunk<'_>,
    ) -> Vec<ArrayViewD<'l, E>> {
        step.reads.iter().map(|&tap| self.rows(step, tap, live, chunk)).collect()
    }

    /// What `step` reads of `tap`: all rows so far for keys and values, otherwise those of the chunk.
    fn rows<'l, E: Real>(
        &self,
        step: &Step,
        tap: Tap,
        live: &'l HashMap<Tap, ArrayD<E>>,
        chunk: Chunk<'_>,
    ) -> ArrayViewD<'l, E> {
        let mut rows = live[&tap].view();
        if self.cached.contains(&tap) && step.cached() != Some(tap) {
            rows.slice_axis_inplace(Axis(0), Slice::from(-(chunk.tokens.len() as isize)..));
        }
        rows
    }

    /// Keeps the output of step `at`, if a later step reads it.
    fn keep<E: Real>(
        &self,
        at: usize,
        mut out: ArrayD<E>,
        cache: Cache,
        live: &mut HashMap<Tap, ArrayD<E>>,
    ) -> Result<(), ModelError> {
        let tap = self.steps[at].tap;
        if self.cached.contains(&tap) {
            keep(cache, &mut out);
        }
        if self.cached.contains(&tap)
            && let Some(rows) = live.get_mut(&tap)
        {
            return rows
                .append(Axis(0), out.view())
                .map_err(|e| ModelError::Step { tap, reason: format!("cannot join the rows of earlier steps: {e}") });
        }
        if self.last_use.get(&tap).is_some_and(|&last| last > at) {
            live.insert(tap, out);
        }
        Ok(())
    }

    /// Frees the taps that step `at` is the last to read; keys and values only in the last chunk.
    fn release<E>(&self, at: usize, last_chunk: bool, live: &mut HashMap<Tap, ArrayD<E>>) {
        for tap in &self.steps[at].reads {
            if self.last_use[tap] == at && (last_chunk || !self.cached.contains(tap)) {
                live.remove(tap);
            }
        }
    }
}
