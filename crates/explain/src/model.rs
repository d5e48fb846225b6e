//! Judges a candidate by a model that is read as a Plan: by the Plan's program, beside the model's own run of the candidate's tokens.

use std::collections::HashSet;
use std::path::Path;

use firstdiff_compare::{ExpertRows, InReferenceOrder, Profile as Judged, ShownCache, compare, graph_of, shown_cache};
use firstdiff_model::{Cache, Model, Profile, RunPrecision, Step, TapValues, run_steps};
use firstdiff_program::Program;
use firstdiff_trace::{Dump, DumpError, GraphNode, Meta, Tap, Tensor, Values};

use crate::explain::{Effort, Explanation, Progress};
use crate::program::{self, Candidate, Recording};
use crate::replay::{Options, Replay, ReplayError};

/// A model's own run: what it computes for some tokens, and its program.
#[derive(Debug)]
pub struct ModelRun {
    /// The program of its Plan, in the steps of the run.
    pub program: Program,
    /// What it gives, as a dump.
    pub reference: Dump,
}

impl ModelRun {
    /// Runs a model on the tokens of each step, in an arithmetic and with a type of cache; of the taps that `candidate` names.
    ///
    /// # Errors
    /// When the model cannot be run.
    pub fn beside(
        model: &Model,
        candidate: &Dump,
        steps: &[Vec<u32>],
        (profile, cache): (Profile, Cache),
    ) -> Result<ModelRun, ReplayError> {
        let ids = |steps: &[Vec<u32>]| steps.iter().flatten().map(|&id| i64::from(id)).collect::<Vec<_>>();
        let (first, later) = steps.split_at(steps.len().min(1));
        let meta = Meta {
            tokens: Some(ids(first)),
            decode_tokens: (!later.is_empty()).then(|| ids(later)),
            precision: Some(judged(profile).to_string()),
            qk_rows: Some(model.qk_rows),
            graph: Some(model.plan.steps.iter().map(node).collect()),
            ..Meta::default()
        };
        let parts = candidate.parts().iter().map(|part| part.tap);
        let held: HashSet<Tap> = candidate.all_entries().iter().map(|entry| entry.tap).chain(parts).collect();
        let mut reference = Dump::assembled(Path::new("the model"), meta, Vec::new())?;
        let tokens: Vec<&[u32]> = steps.iter().map(Vec::as_slice).collect();
        run_steps(
            &model.plan,
            &model.weights,
            &tokens,
            RunPrecision { profile, cache },
            |tap| held.contains(&tap),
            |tap, step, values| {
                let (shape, values) = match values {
                    TapValues::F32(x) => {
                        (x.shape().to_vec(), Values::F32(x.iter().copied().collect::<Vec<_>>().into()))
                    }
                    TapValues::F64(x) => {
                        (x.shape().to_vec(), Values::F64(x.iter().copied().collect::<Vec<_>>().into()))
                    }
                };
                reference.put(tap, step, Tensor::held(shape, values).expect("as many as its shape"));
                Ok::<(), ReplayError>(())
            },
        )?;
        Ok(ModelRun { program: Program::of_model(model, steps), reference })
    }
}

/// An operation as a dump says it.
fn node(step: &Step) -> GraphNode {
    GraphNode {
        tap: step.tap.to_string(),
        op: Some(step.op.name().to_owned()),
        reads: step.reads.iter().map(ToString::to_string).collect(),
    }
}

/// What a comparison calls a profile.
fn judged(profile: Profile) -> Judged {
    match profile {
        Profile::Exact => Judged::Exact,
        Profile::F32 => Judged::F32,
        Profile::F16 => Judged::F16,
        Profile::Bf16 => Judged::Bf16,
        Profile::Ggml { .. } => Judged::Ggml,
    }
}

/// Runs every operation of `model` on what `dump` recorded. `progress` is told how many of how many taps are done.
///
/// # Errors
/// When a file cannot be read, or the model's weights do not suit it.
pub fn replay(
    model: &Model,
    dump: &Dump,
    options: &Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Replay, ReplayError> {
    beside(model, dump, options, |recording, candidate| program::replay(recording, candidate, progress))
}

/// Replays `dump` on `model`, and looks for what is done otherwise where it goes wrong.
///
/// # Errors
/// As [`replay`].
pub fn explain(
    model: &Model,
    dump: &Dump,
    options: &Options,
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ReplayError> {
    beside(model, dump, options, |recording, candidate| program::explain(recording, candidate, effort, progress))
}

fn beside<T>(
    model: &Model,
    dump: &Dump,
    options: &Options,
    judge: impl FnOnce(&Recording<'_>, &Candidate<'_>) -> Result<T, ReplayError>,
) -> Result<T, ReplayError> {
    let steps: Vec<Vec<u32>> = std::iter::once(&options.tokens).chain(&options.decode_tokens).cloned().collect();
    let ModelRun { program, reference } =
        ModelRun::beside(model, dump, &steps, (options.profile, options.cache.unwrap_or_default()))?;
    let graph = graph_of(&reference, dump);
    let cache = match options.cache {
        Some(cache) => (cache, false),
        None => shown(dump, &reference)?.map_or((Cache::F32, false), |cache| (cache, true)),
    };
    let (rows, profile) = (options.rows.clone(), judged(options.profile));
    let compared = firstdiff_compare::Options { rows, cache: cache.0, ..firstdiff_compare::Options::new(profile) };
    let report = compare(&reference, dump, &graph, &compared, &mut |_, _| {})?;
    let values = InReferenceOrder::new(&reference, dump, &graph, &compared);
    let candidate = Candidate {
        dump,
        recorded: dump,
        values: &values,
        taps: &report.taps,
        experts: &ExpertRows::default(),
        padding: &options.padding,
        is_padded: !options.padding.is_empty(),
        profile: options.profile,
        cache,
        are_tokens_known: options.tokens_are_known,
    };
    judge(&Recording { program: &program, weights: &model.weights }, &candidate)
}

/// The type of a K/V cache that the candidate's own values show.
fn shown(dump: &Dump, reference: &Dump) -> Result<Option<Cache>, DumpError> {
    Ok(match shown_cache(dump, reference)? {
        ShownCache::Is(cache) => Some(cache),
        _ => None,
    })
}
