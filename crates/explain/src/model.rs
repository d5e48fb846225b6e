//! Judges a candidate by a model that is read as a Plan: by the Plan's program, beside the model's own run of the candidate's tokens.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use firstdiff_compare::metrics::Metrics;
use firstdiff_compare::{CellsOf, Place, Profile as Judged, Status, TokenEdits, rows_of};
use firstdiff_model::{Cache, Model, Op, Profile, RunPrecision, Step, TapValues, run_steps};
use firstdiff_parity::session::reading::{ReadingArgs, TokenArgs};
use firstdiff_parity::session::{Comparison, Session};
use firstdiff_program::Program;
use firstdiff_trace::{Dump, GraphNode, Meta, Tap, Tensor, Values};
use ndarray::{ArrayView1, ArrayView2};
use serde_json::json;

use crate::explain::{Cause, Effort, Explanation, Finding, Match, Pass, Progress, other_tokens};
use crate::mistakes::embedding::TOKENS_DIFFER;
use crate::program::{self, CacheSaidBy, Candidate, Recording};
use crate::replay::{Options, Reason, Replay, ReplayError};
use crate::tolerance::mistakes::{TOKEN_ROW, TOKEN_ROW_ZERO};
use crate::tolerance::search::NEARER;

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
    let mut explained = beside(model, dump, options, |recording, candidate| {
        first_and_all(model, recording, candidate, &options.tokens, effort, progress)
    })?;
    let told: Vec<i64> = options.tokens.iter().map(|&id| i64::from(id)).collect();
    name_tokens(model, dump, &told, &mut explained.findings)?;
    Ok(explained)
}

/// A model is large where so many numbers are multiplied, about, for one evaluation.
const LARGE: usize = 1 << 27;
/// So many of its first tokens are looked at first.
const FIRST: usize = 8;

/// Explains a candidate beside a model: of a large one on its first tokens before all. What gives these tokens' numbers is carried out on all; where that is not
/// all of it, what they have not ruled out is looked for.
///
/// # Errors
/// As [`replay`].
pub fn first_and_all(
    model: &Model,
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    tokens: &[u32],
    effort: &Effort,
    progress: Progress<'_>,
) -> Result<Explanation, ReplayError> {
    let (layers, width) = (model.plan.dims.layers as usize, model.plan.dims.hidden);
    let is_large = width > effort.small || 12 * layers * width * width * tokens.len() > LARGE;
    // Where most was recorded, each operation is looked at alone.
    let is_sparse = 2 * candidate.taps.len() < recording.program.taps().len();
    let first = match is_large && is_sparse && !effort.quick && tokens.len() > FIRST {
        true => program::first_tokens(recording, candidate, FIRST)?,
        false => None,
    };
    let Some(first) = first else { return program::explain(recording, candidate, effort, progress) };
    let options = Options {
        profile: candidate.profile,
        cache: Some(candidate.cache.0).filter(|_| candidate.cache.1 != CacheSaidBy::Nothing),
        tokens: tokens[..FIRST].to_vec(),
        tokens_are_known: candidate.are_tokens_known,
        decode_tokens: Vec::new(),
        rows: None,
        padding: Vec::new(),
    };
    let of_first = beside(model, &first, &options, |recording, candidate| {
        program::explain(recording, candidate, effort, progress)
    })?;
    let named = |finding: &Finding| finding.matched == Match::Reproduced;
    let causes =
        |finding: &Finding| finding.cause.iter().chain(&finding.alternatives).map(|cause| cause.id).collect::<Vec<_>>();
    let found: Vec<&'static str> = of_first.findings.iter().filter(|f| named(f)).flat_map(causes).collect();
    let tried = |explained: &mut Explanation| {
        for finding in &mut explained.findings {
            let same = of_first.findings.iter().filter(|other| other.taps.iter().any(|tap| finding.taps.contains(tap)));
            for (id, left) in same.flat_map(|other| &other.tried) {
                finding.tried.entry(id).or_insert(*left);
            }
        }
    };
    if !found.is_empty() {
        let effort = Effort { pass: Pass::Of(found), ..effort.clone() };
        let mut all = program::explain(recording, candidate, &effort, progress)?;
        if all.findings.iter().all(named) {
            tried(&mut all);
            return Ok(all);
        }
    }
    let open = of_first.findings.iter().filter(|finding| !named(finding) && finding.is_blamed());
    let ruled_out =
        open.flat_map(|finding| finding.tried.iter().filter(|(_, left)| **left > NEARER * finding.base_nmse));
    let effort = Effort { pass: Pass::Without(ruled_out.map(|(id, _)| *id).collect()), ..effort.clone() };
    let mut all = program::explain(recording, candidate, &effort, progress)?;
    tried(&mut all);
    Ok(all)
}

/// The tokens of the prefill that the candidate's own rows of h0 say it was fed, each looked up in the model's table; `None` where nothing says so. Of as many
/// rows as there are tokens told, these are what is told.
///
/// # Errors
/// When a file cannot be read.
pub fn fed(model: &Model, dump: &Dump, options: &Options) -> Result<Option<Vec<u32>>, ReplayError> {
    let Some(step) = embedding(model) else { return Ok(None) };
    let is_told = |count: usize| options.tokens_are_known && count == options.tokens.len();
    let Some(rows) =
        rows_of(dump, Place { step: 0, tap: step.tap })?.filter(|rows| !is_told(rows.len()) && !rows.is_empty())
    else {
        return Ok(None);
    };
    let told: &[u32] = if options.tokens_are_known { &options.tokens } else { &[] };
    Ok(ids(model, step, &rows, told))
}

/// Says of an answer that the candidate was fed other tokens than those that were told: h0 is not theirs, and all else is judged on its own.
///
/// # Errors
/// When a file cannot be read, or the model cannot be run.
pub fn tell_of_tokens(
    model: &Model,
    dump: &Dump,
    told: &[u32],
    edits: &TokenEdits,
    Explanation { replay, findings, .. }: &mut Explanation,
) -> Result<(), ReplayError> {
    let Some(step) = embedding(model) else { return Ok(()) };
    let place = Place { step: 0, tap: step.tap };
    let Some(tap) = replay.taps.iter_mut().find(|tap| tap.report.place == place) else { return Ok(()) };
    let own = rows_of(dump, place)?.unwrap_or_default().concat();
    let mut due = Vec::new();
    run_steps(
        &model.plan,
        &model.weights,
        &[told],
        Profile::Exact,
        |tap| tap == step.tap,
        |_, _, values| {
            if let TapValues::F64(values) = values {
                due.extend(values.iter().copied());
            }
            Ok::<(), ReplayError>(())
        },
    )?;
    let count = due.len().min(own.len());
    let metrics = Metrics::measure_f64(&due[..count], &own[..count]);
    (tap.report.metrics, tap.exact_nmse) = (Some(metrics), metrics.nmse());
    (tap.report.status, tap.reason) = (Status::Diverged, Some(Reason::OtherTokens(edits.clone())));
    findings.insert(0, other_tokens(edits, place, metrics.nmse().unwrap_or(0.0)).1);
    Ok(())
}

/// Names the ids that the rows of h0 are of, where a candidate was fed other tokens than those that were told, as many.
///
/// # Errors
/// When a file cannot be read.
pub fn name_tokens(model: &Model, dump: &Dump, told: &[i64], findings: &mut [Finding]) -> Result<(), ReplayError> {
    let Some(step) = embedding(model) else { return Ok(()) };
    let is_it = |cause: &&mut Cause| cause.id == TOKENS_DIFFER.id && cause.params.is_empty();
    let told: Option<Vec<u32>> = told.iter().map(|&id| u32::try_from(id).ok()).collect();
    for Finding { cause, shown_at, .. } in findings {
        let Some(cause) = cause.as_mut().filter(is_it) else { continue };
        let mut all = Some(Vec::new());
        for at in shown_at.iter().map(|place| place.step).collect::<BTreeSet<u32>>() {
            // Where one row of the table is as another, what was told says which.
            let told = told.as_deref().filter(|_| at == 0).unwrap_or_default();
            let rows = rows_of(dump, Place { step: at, tap: step.tap })?.filter(|rows| !rows.is_empty());
            let of_step = rows.and_then(|rows| ids(model, step, &rows, told));
            all = all.zip(of_step).map(|(all, of_step)| [all, of_step].concat());
        }
        cause.params.extend(all.filter(|ids| !ids.is_empty()).map(|ids| ("tokens", json!(ids))));
    }
    Ok(())
}

fn embedding(model: &Model) -> Option<&Step> {
    model.plan.steps.iter().find(|step| matches!(step.op, Op::Embedding { .. }))
}

/// Which row of the table each of these is, whatever factor is on it; that of the token that is told there, where several are the same. Nothing where a row is
/// none, or may be several.
fn ids(model: &Model, step: &Step, rows: &[Vec<f64>], told: &[u32]) -> Option<Vec<u32>> {
    let all = rows.concat();
    let own = ArrayView2::from_shape((rows.len(), rows.first()?.len()), &all).ok()?;
    let view = model.weights.view(*step.weights.first()?).ok()?;
    let [vocab, width] = *view.shape() else { return None };
    (width == own.ncols()).then_some(())?;
    let largest = |row: ArrayView1<'_, f64>| (0..width).max_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs()));
    let peaks: Vec<usize> = own.rows().into_iter().map(largest).collect::<Option<_>>()?;
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); own.nrows()];
    const TILE: usize = 256;
    for first in (0..vocab).step_by(TILE) {
        let tile = view.rows::<f32>(first..(first + TILE).min(vocab));
        for ((row, &peak), found) in own.rows().into_iter().zip(&peaks).zip(&mut found) {
            let near = |id: &usize| {
                let factor = row[peak] / f64::from(tile[[*id, peak]]);
                let is_near = |i: usize| {
                    (f64::from(tile[[*id, i]]) * factor - row[i]).abs() <= TOKEN_ROW * row[i].abs() + TOKEN_ROW_ZERO
                };
                factor.is_finite() && factor > 0.0 && (0..width).all(is_near)
            };
            found.extend((0..tile.nrows()).filter(near).map(|id| (first + id) as u32));
        }
    }
    let one = |(at, ids): (usize, Vec<u32>)| match &ids[..] {
        &[id] => Some(id),
        several => told.get(at).copied().filter(|id| several.contains(id)),
    };
    found.into_iter().enumerate().map(one).collect()
}

/// A model's program, and its own run beside a candidate's dump, as both are read for a comparison.
///
/// # Errors
/// When a file cannot be read, or the model cannot be run.
pub fn session(
    model: &Model,
    candidate: &Dump,
    options: &Options,
    reading: &ReadingArgs,
) -> Result<(Program, Session), ReplayError> {
    let parts = candidate.parts().iter().map(|part| part.step);
    let last = candidate.all_entries().iter().map(|entry| entry.step).chain(parts).max().unwrap_or(0) as usize;
    let decoded = options.decode_tokens.iter().take(last);
    let steps: Vec<Vec<u32>> = std::iter::once(&options.tokens).chain(decoded).cloned().collect();
    let arithmetic = (options.profile, options.cache.unwrap_or_default());
    let ModelRun { program, reference } = ModelRun::beside(model, candidate, &steps, arithmetic)?;
    let (both, rows) = ([reference, candidate.clone()], options.rows.clone());
    let (profile, tokens) = (Some(judged(options.profile)), TokenArgs::default());
    let session = Session::of_dumps(both, profile, rows, reading, &tokens, CellsOf::Reference);
    let session = session.map_err(|error| ReplayError::Read(error.into()))?;
    let (padding, is_padded) = (options.padding.clone(), !options.padding.is_empty());
    Ok((program, Session { padding, is_padded, ..session }.with_cache(options.cache)))
}

fn beside<T>(
    model: &Model,
    dump: &Dump,
    options: &Options,
    judge: impl FnOnce(&Recording<'_>, &Candidate<'_>) -> Result<T, ReplayError>,
) -> Result<T, ReplayError> {
    let (program, session) = session(model, dump, options, &ReadingArgs::default())?;
    let Comparison { session, report, .. } = session.run().map_err(|error| ReplayError::Read(error.into()))?;
    let values = session.in_reference_order();
    let candidate = Candidate::of(&session, &values, &report.taps);
    let candidate = Candidate { are_tokens_known: options.tokens_are_known, ..candidate };
    judge(&Recording { program: &program, weights: &model.weights }, &candidate)
}
