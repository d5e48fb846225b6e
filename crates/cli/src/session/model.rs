//! Takes order, dependencies and tolerances of a comparison from a model, by running it.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firstdiff_compare::metrics::Squares;
use firstdiff_compare::{ChunkAlignment, Graph, Node, Place, Profile, number};
use firstdiff_model::{Model, Prompt, TapValues};
use firstdiff_parity::session::{Session, ids};
use firstdiff_trace::{Dump, Tap};

/// Takes order, dependencies and tolerances from a model: each tap may be as far off as the profile's arithmetic is from the exact one, with room for other
/// orders of summation.
///
/// # Errors
/// When the model cannot be read or run, or neither dump declares its tokens.
pub(crate) fn with_model(mut session: Session, path: &Path) -> Result<Session> {
    session.model = Some(path.to_owned());
    let model = firstdiff_model::load(path)?;
    same_model(&model, &session.reference)
        .with_context(|| format!("{} is not of the model {}", session.reference.path().display(), path.display()))?;
    session.graph = Graph::from_dumps(&session.reference, &session.candidate, Some(&nodes(&model)));
    if !matches!(session.options.profile, Profile::F32) {
        let note = "tolerances are the table's; those of f32 alone are measured by running the model";
        session.warnings.push(format!("profile {}: {note}", session.options.profile));
        return Ok(session);
    }
    // Measured by running a prefill and then one token at a time.
    let together = |alignment: &&ChunkAlignment| {
        alignment.cells.iter().skip(1).any(|c| c.len() > 1 && c.start < alignment.common_positions())
    };
    if session.alignment().filter(together).is_some() {
        session.warnings.push("the two meet in chunks of several tokens: tolerances are the table's".into());
        return Ok(session);
    }
    let measured = measured(&session, &model)?;
    session.options.allowed = measured.allowed;
    if let Some((place, nmse)) = measured.doubt {
        let mismatch =
            format!("the reference's {place} is off the exact run of {} by NMSE {}", path.display(), number(nmse));
        if nmse > OTHER {
            bail!(
                "{mismatch}: it is a run of another model, or the reference is the wrong side; compare without --model"
            );
        }
        session.warnings.push(format!("{mismatch}: it may be the wrong side"));
    }
    session.warnings.extend(window_warning(&model, &session.reference));
    Ok(session)
}

/// The distance between the f32 run and the exact run at every tap, with room for other orders of summation, and the distance of the reference from the exact
/// run.
fn measured(session: &Session, model: &Model) -> Result<Measured> {
    let meta = [session.reference.meta(), session.candidate.meta()];
    let Some(tokens) = meta.iter().find_map(|m| m.tokens.as_ref()) else {
        bail!("--model needs the token ids, and neither dump.json has 'tokens'");
    };
    let decode = meta.iter().find_map(|m| m.decode_tokens.clone()).unwrap_or_default();
    let (tokens, decode) = (ids(tokens)?, ids(&decode)?);
    let prompt = Prompt { tokens: &tokens, decode_tokens: &decode };
    let recorded = |tap: Tap| session.reference.entries().iter().any(|e| e.tap == tap);
    let mut exact: BTreeMap<Place, Vec<f64>> = BTreeMap::new();
    let (plan, weights) = (&model.plan, &model.weights);
    firstdiff_model::run(plan, weights, prompt, firstdiff_model::Profile::Exact, recorded, |tap, step, values| {
        if let TapValues::F64(values) = values {
            exact.insert(Place { step, tap }, values.iter().copied().collect());
        }
        Ok::<(), anyhow::Error>(())
    })?;
    let mut doubt = None;
    for (place, exact) in &exact {
        doubt = doubt
            .or(reference_nmse(session, *place, exact)?.filter(|nmse| *nmse > DOUBTFUL).map(|nmse| (*place, nmse)));
    }
    let mut allowed = BTreeMap::new();
    firstdiff_model::run(plan, weights, prompt, firstdiff_model::Profile::F32, recorded, |tap, step, values| {
        let place = Place { step, tap };
        if let (TapValues::F32(values), Some(exact)) = (values, exact.remove(&place)) {
            let nmse = finite_nmse(&exact, values.iter().map(|&c| f64::from(c)));
            allowed.insert(place, (ROOM * nmse).max(LEAST));
        }
        Ok::<(), anyhow::Error>(())
    })?;
    Ok(Measured { allowed, doubt })
}

/// NMSE between a tap of the reference and the exact run, where the two can be compared as they stand: not for Q and K, whose rows have two orders, and not
/// for scores, which are masked in many ways.
fn reference_nmse(session: &Session, place: Place, exact: &[f64]) -> Result<Option<f64>> {
    let alignment = matches!(place.tap.site.axes(), ['T', 'D' | 'C' | 'F' | 'V']);
    let Some(entry) = session.reference.find(place.tap, place.step).filter(|_| alignment) else { return Ok(None) };
    let tensor = session.reference.read(entry)?;
    let values = tensor.values();
    let same = values.len() == exact.len();
    Ok(same.then(|| finite_nmse(exact, (0..values.len()).map(|i| values.get(i)))))
}

/// What a model's own runs show for a comparison.
struct Measured {
    /// The NMSE each place is allowed.
    allowed: BTreeMap<Place, f64>,
    /// The reference's first tap that is further from the exact run than any right run would be, and how far.
    doubt: Option<(Place, f64)>,
}

/// NMSE of `candidate` over the finite values of `exact`; infinite where a value is not finite.
fn finite_nmse(exact: &[f64], candidate: impl Iterator<Item = f64>) -> f64 {
    let nmse = Squares::sum(exact.iter().copied().zip(candidate).filter(|(r, _)| r.is_finite())).nmse();
    if nmse.is_nan() { f64::INFINITY } else { nmse }
}

/// Whether `reference` can be a run of `model`, by its taps and their shapes.
fn same_model(model: &Model, reference: &Dump) -> Result<()> {
    for entry in reference.entries() {
        let (tap, axes) = (entry.tap, entry.tap.site.axes());
        if !model.plan.steps.iter().any(|step| step.tap == tap) {
            bail!("it holds {tap}, which that model has not");
        }
        // A shape with all of the vocabulary's axes gives the sizes, in any order.
        let whole = entry.shape.iter().filter(|&&n| n > 1).count() == axes.len();
        for axis in axes.iter().filter(|_| whole) {
            if let Some(size) = model.plan.dims.extent(*axis).filter(|size| !entry.shape.contains(size)) {
                bail!("{tap} has the shape {:?}, and there {axis} is {size}", entry.shape);
            }
        }
    }
    Ok(())
}

/// A reference this far from the exact run is a run of something else, or wrong.
const OTHER: f64 = 1e-3;
/// No right run in f32 is this far from the exact one.
const DOUBTFUL: f64 = 1e-8;
/// Room between one right order of summation and another: a plain loop is six times as far off as eight lanes.
const ROOM: f64 = 64.0;
/// The smallest tolerance of a tap in f32.
const LEAST: f64 = 1e-12;

pub(crate) fn nodes(model: &Model) -> Vec<Node> {
    let node = |s: &firstdiff_model::Step| Node { tap: s.tap, op: s.op.name().into(), reads: Some(s.reads.clone()) };
    model.plan.steps.iter().map(node).collect()
}

/// A prompt shorter than the sliding window cannot show a mistake in it.
fn window_warning(model: &Model, reference: &Dump) -> Option<String> {
    let tokens = reference.meta().tokens.as_ref()?.len() + reference.meta().decode_tokens.as_ref().map_or(0, Vec::len);
    let window = (0..model.config.dims.layers).filter_map(|layer| model.config.window.in_layer(layer)).min()?;
    (tokens <= window)
        .then(|| format!("{tokens} tokens fit the sliding window of {window}: a wrong window cannot show"))
}
