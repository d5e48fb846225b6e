//! Laws of a Plan's steps.

use firstdiff_compare::Place;
use firstdiff_laws::Kind;
use firstdiff_model::{Chunk, Model, Op, Profile, Step, WeightRef, eval_step, ggml_activations};
use firstdiff_trace::{Site, Tap};
use ndarray::ArrayD;

use crate::explain::{Effort, Finding, Progress};
use crate::laws::{Wrong, allowed_at, called_from, kind_of, law_of};
use crate::other_weights::{Known, OtherWeights};
use crate::replay::{Replay, ReplayError, Run};

/// Measures the laws of the faults that no mistake of the catalogue explains.
///
/// # Errors
/// When a file or a weight cannot be read.
pub(crate) fn measure(
    run: &mut Run<'_>,
    replay: &Replay,
    effort: &Effort,
    findings: &mut [Finding],
    progress: Progress<'_>,
) -> Result<(), ReplayError> {
    let count = findings.len();
    for (done, finding) in findings.iter_mut().enumerate() {
        let may_be_a_law = finding.asks_for_a_law() || finding.is_coarse(run.profile);
        if !may_be_a_law || finding.arithmetic.is_some() || !finding.is_blamed() {
            continue;
        }
        if let Some(place) = finding.shown_at.first() {
            progress(&format!("{place}: measuring what it does instead"), done, count);
        }
        let measured = of_finding(run, replay, finding)?;
        finding.take_law(measured, effort);
    }
    Ok(())
}

/// The taps that a step of this place is measured from, and the steps between.
struct Chain<'a> {
    reads: Vec<Tap>,
    steps: Vec<&'a Step>,
}

fn chain(model: &Model, place: Place) -> Option<Chain<'_>> {
    let plan = &model.plan;
    let step = plan.step(place.tap)?;
    let mut chain = Chain { reads: step.reads.clone(), steps: vec![step] };
    // Scores and probabilities are measured from the queries and keys.
    while matches!(chain.steps[0].op, Op::Softmax | Op::Scores(_)) {
        let before = plan.step(*chain.steps[0].reads.first()?)?;
        chain.reads.clone_from(&before.reads);
        chain.steps.insert(0, before);
    }
    Some(chain)
}

fn of_finding(
    run: &mut Run<'_>,
    replay: &Replay,
    finding: &Finding,
) -> Result<Option<crate::laws::Measured>, ReplayError> {
    let (model, mut wrong) = (run.recorded.model, Vec::new());
    let (mut chains, mut site) = (Vec::new(), None);
    let inner = [Site::Qk, Site::Scores];
    for &place in finding.shown_at.iter().filter(|place| place.step == 0) {
        if !run.recorded.is_whole(place) {
            continue;
        }
        let Some(chain) = chain(model, place) else { continue };
        let is_one = finding.through.iter().all(|tap| chain.steps.len() > 1 && inner.contains(&tap.site));
        if !is_one
            || site.is_some_and(|site| site != place.tap.site)
            || chain.reads.iter().any(|tap| !run.recorded.is_whole(Place { step: 0, tap: *tap }))
        {
            return Ok(None);
        }
        site = Some(place.tap.site);
        let mut inputs = Vec::new();
        for &tap in &chain.reads {
            match run.value(tap, 0)? {
                Ok((_, wide)) => inputs.push(taken(run, &chain, wide)),
                Err(_) => return Ok(None),
            }
        }
        let is_embedding = matches!(chain.steps[0].op, Op::Embedding { .. });
        if is_embedding {
            inputs =
                vec![ndarray::Array1::from_iter(run.recorded.tokens[0].iter().map(|id| f64::from(*id))).into_dyn()];
        }
        let (Ok(own), Some(allowed)) = (run.recorded.read(place), allowed_at(replay, place)) else { return Ok(None) };
        let Some(right) = evaluated(run, &chain, &inputs) else { return Ok(None) };
        let around = around(run, place)?;
        wrong.push(Wrong { place, inputs, right, own, allowed, around });
        chains.push(chain);
    }
    let Some(site) = site else { return Ok(None) };
    let kind = wrong.first().map(|wrong| kind_of(site, &wrong.inputs, &wrong.right)).unwrap_or(Kind::Other);
    let tokens = run.known.then(|| run.recorded.tokens[0].clone());
    let run = &*run;
    let apply = |at: usize, inputs: &[ArrayD<f64>]| evaluated(run, &chains[at], inputs);
    let (weights, known) = weights_of(model);
    let values = |at: usize| {
        let view = model.weights.view(*weights.get(at)?).ok()?;
        let rows = || view.rows::<f64>(0..view.shape()[0]).into_iter().collect();
        Some(if view.shape().len() == 2 { rows() } else { view.vector::<f64>().to_vec() })
    };
    let places = chains.iter().map(|chain| chain.steps[0].tap).collect();
    let weights = OtherWeights { known: &known, values: &values, places, experts: None };
    Ok(law_of(kind, site, wrong, tokens, run.profile, &apply, Some(&weights)))
}

/// The weights of a model, each once, and what is made with each.
fn weights_of(model: &Model) -> (Vec<WeightRef>, Vec<Known>) {
    let (mut weights, mut known): (Vec<WeightRef>, Vec<Known>) = (Vec::new(), Vec::new());
    for (tap, at, weight) in
        model.plan.steps.iter().flat_map(|s| s.weights.iter().enumerate().map(|(at, w)| (s.tap, at, *w)))
    {
        let number = weights.iter().position(|known| *known == weight).unwrap_or(weights.len());
        weights.extend((number == weights.len()).then_some(weight));
        let shape = model.weights.shape(weight).map(|shape| shape.to_vec());
        known.extend(shape.map(|shape| Known { weight: number, tap, is_bias: at > 0, shape }));
    }
    (weights, known)
}

/// What the first step takes of a tensor: in llama.cpp's arithmetic a product takes its rows rounded to what its weight asks. In that of others, and
/// where they cannot be rounded so, the tensor as it is.
fn taken(run: &Run<'_>, chain: &Chain<'_>, x: ArrayD<f64>) -> ArrayD<f64> {
    let weight = match (run.profile, &chain.steps[0].op, chain.steps[0].weights.first()) {
        (Profile::Ggml { .. }, Op::Linear { .. } | Op::Head, Some(&weight)) => run.recorded.model.weights.view(weight),
        _ => return x,
    };
    let narrow = x.mapv(|x| x as f32).into_dimensionality();
    let rounded = weight.ok().zip(narrow.ok()).and_then(|(w, x)| ggml_activations(x.view(), w.storage()).ok());
    rounded.map_or(x, |rounded| rounded.mapv(f64::from).into_dyn())
}

/// What the steps give for other inputs; an embedding's are token ids.
fn evaluated(run: &Run<'_>, chain: &Chain<'_>, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
    let model = run.recorded.model;
    let mut tokens = run.recorded.tokens.first()?.clone();
    let mut values: Vec<ArrayD<f64>> = inputs.iter().map(|x| taken(run, chain, x.clone())).collect();
    if matches!(chain.steps[0].op, Op::Embedding { .. }) {
        tokens = inputs.first()?.iter().map(|id| u32::try_from(*id as i64).ok()).collect::<Option<_>>()?;
        values.clear();
    }
    let chunk = Chunk { tokens: &tokens, start: 0 };
    for step in &chain.steps {
        let views: Vec<_> = values.iter().map(|x| x.view()).collect();
        let value = eval_step(step, &views, chunk, &model.weights).ok()?;
        values = vec![value];
    }
    values.pop()
}

/// Layers whose cache may be another's.
const MOST_SHARED: u32 = 64;

/// Other taps of the layer and of those before; behind the layers, of the last ones. A cache that several layers share is called by its layer.
fn around(run: &mut Run<'_>, place: Place) -> Result<Vec<(String, ArrayD<f64>)>, ReplayError> {
    let plan = &run.recorded.model.plan;
    let (own, layers) = (place.tap, plan.dims.layers);
    let reads = plan.step(own).map(|step| step.reads.clone()).unwrap_or_default();
    let cached = match own.site {
        Site::Context => Some(Site::V),
        Site::Probs | Site::Scores | Site::Qk => Some(Site::KRope),
        _ => None,
    };
    let shared = (0..own.layer.unwrap_or(layers).min(MOST_SHARED)).flat_map(|layer| {
        cached.map(|site| (Tap { site, layer: Some(layer) }, format!("{} of layer {layer}", site.name())))
    });
    let is_alike = |tap: &Tap| !matches!(tap.site, Site::Qk | Site::Scores | Site::Probs | Site::FinalNorm);
    let before = plan.steps.iter().map(|step| step.tap).take_while(|tap| *tap != own);
    let near = before.filter(|tap| is_alike(tap) && !reads.contains(tap));
    let named = near.filter_map(|tap| Some((tap, called_from(own, tap, layers.checked_sub(1))?)));
    let mut all = Vec::new();
    for (tap, name) in shared.chain(named).collect::<Vec<_>>() {
        if run.recorded.is_whole(Place { step: 0, tap })
            && let Ok((_, wide)) = run.value(tap, 0)?
        {
            all.push((name, wide));
        }
    }
    Ok(all)
}
