//! Is it another arithmetic, and no mistake? The step as it should be, in every other profile.

use firstdiff_model::{Cache, Half, Op, Profile};
use firstdiff_trace::{Site, Tap};
use serde_json::json;

use super::catalogue::Mistake;
use super::norm::normed;
use super::param::Param;
use super::{List, Out, StepContext, flat};
use crate::mistakes::rounding::{Grid, HALF, Kind, Over, Rounding, Steps};

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[&PRECISION];

pub(crate) static PRECISION: Mistake = Mistake {
    id: "precision",
    what: "no mistake: another arithmetic",
    fix: "give its name by --profile, or in dump.json as precision; one of few bits has none: hold it against a \
        second right run (compare --noise)",
    at: Site::ALL,
    params: &[
        Param::words(
            "format",
            &[
                "bf16",
                "f16",
                "ggml",
                "ggml, f16 cache",
                "f32",
                "f16 weights",
                "bf16 weights",
                "f16 weights and inputs",
                "bf16 weights and inputs",
            ],
        ),
        Param::other("weights", "to how few bits, and what shares a scale"),
        Param::other("activations", "the same"),
        Param::other("cache", "the same, of keys or values as attention reads them"),
        Param::words("of", &["past"]),
    ],
    of_all_matrices: true,
    makes_a_matrix: true,
    is_another_arithmetic: true,
    ..Mistake::ORDINARY
};

pub(super) fn listed(list: &mut List<'_>) {
    let others = [
        ("bf16", Profile::Bf16),
        ("f16", Profile::F16),
        ("ggml", Profile::Ggml { cache: Cache::F32 }),
        ("ggml, f16 cache", Profile::Ggml { cache: Cache::F16 }),
        ("f32", Profile::F32),
    ];
    for (name, profile) in others {
        list.add(&PRECISION, vec![("format", json!(name))], move |at| match at.profile {
            Profile::Exact => at.right(),
            own => (own != profile).then(|| at.run_as(profile, at.step, at.inputs))?,
        });
    }
    let is_product = matches!(list.step.op, Op::Linear { .. } | Op::Head);
    let has_weights = is_product || matches!(list.step.op, Op::Embedding { .. } | Op::RmsNorm { .. });
    for (name, half) in [("f16 weights", Half::F16), ("bf16 weights", Half::BF16)] {
        if has_weights {
            list.add(&PRECISION, vec![("format", json!(name))], move |at| of_half_weights(at, half, false));
        }
        if is_product {
            let params = vec![("format", json!(format!("{name} and inputs")))];
            list.add(&PRECISION, params, move |at| of_half_weights(at, half, true));
        }
    }
    if let Op::Qk | Op::Context = list.step.op {
        let by_row =
            [Kind::Symmetric { beyond: 0.0 }, Kind::Affine].map(|kind| Grid { bits: 8, over: Over::Row, kind });
        for grid in by_row.into_iter().chain(HALF.map(|kind| Grid { bits: 8, over: Over::Group(32), kind })) {
            list.add(&PRECISION, vec![("cache", json!(grid.words()))], move |at| of_rounded_cache(at, grid));
        }
    }
}

/// A step whose weights, of a bias and a norm's gain too, were rounded to 16 bits, and its inputs where that is asked.
fn of_half_weights(at: &StepContext<'_>, half: Half, inputs_too: bool) -> Out {
    let round = move |x: f64| f64::from(half.round(x as f32));
    match at.step.op {
        _ if at.profile == Profile::Exact => return at.right(),
        Op::RmsNorm { .. } => return normed(at, round),
        _ => {}
    }
    let read = |x: f64| if inputs_too { round(x) } else { x };
    let inputs: Vec<_> = at.inputs.iter().map(|input| input.mapv(read)).collect();
    let shape = at.matrix_shape()?;
    let rounded = |flat: &[f32], row: &mut [f32], o: usize| {
        row.iter_mut().zip(&flat[o * shape[1]..]).for_each(|(to, &x)| *to = half.round(x));
    };
    let mut out = StepContext { inputs: &inputs, ..*at }.product(rounded, shape)?;
    if let Some(bias) = at.vector(1) {
        out.iter_mut().zip(bias.iter().cycle()).for_each(|(y, &b)| *y += round(b) - b);
    }
    Some(out)
}

/// Attention whose keys or values were rounded to few bits, a row for each position and head, before it read them.
fn of_rounded_cache(at: &StepContext<'_>, grid: Grid) -> Out {
    if at.profile == Profile::Exact {
        return at.right();
    }
    let mut inputs = at.inputs.to_vec();
    let kept = inputs.get_mut(1)?;
    let (shape, width) = (kept.shape().to_vec(), *kept.shape().last()?);
    let mut rows = kept.to_shape((kept.len().checked_div(width)?, width)).ok()?.into_owned();
    grid.round(&mut rows);
    *kept = rows.into_dyn().into_shape_with_order(shape).ok()?;
    at.on(&inputs)
}

/// A product, or a row of the embedding, with weights and activations rounded to few bits.
pub(super) fn rounded(list: &mut List<'_>, rounding: Rounding) {
    match list.step.op {
        // A row is looked up, not multiplied: there are no activations.
        Op::Embedding { .. } if rounding.weights.is_none() => return,
        Op::Embedding { .. } | Op::Linear { .. } | Op::Head => {}
        _ => return,
    }
    list.add(&PRECISION, rounding.params(), move |at| in_few_bits(at, rounding));
}

fn in_few_bits(at: &StepContext<'_>, rounding: Rounding) -> Out {
    if at.profile == Profile::Exact {
        return at.right();
    }
    let shape = at.matrix_shape()?;
    let inputs: Vec<_> = match (rounding.activations, at.inputs) {
        (Some(grid), [x]) if !matches!(at.step.op, Op::Embedding { .. }) => {
            let mut rows = flat(x)?.to_owned();
            grid.round(&mut rows);
            vec![rows.into_dyn().into_shape_with_order(x.shape().to_vec()).ok()?]
        }
        _ => at.inputs.to_vec(),
    };
    let shared: Option<Steps> = match rounding.weights {
        Some(grid) if matches!(grid.over, Over::Tensor | Over::Joined) => {
            let simulate_batch = if grid.over == Over::Joined { joined(at) } else { vec![at.step.weights.first()?] };
            let tensors = simulate_batch.into_iter().map(|&weight| at.model.weights.view(weight).ok());
            let tensors: Vec<_> =
                tensors.map(|view| view.map(|v| v.rows::<f32>(0..v.shape()[0]))).collect::<Option<_>>()?;
            Some(grid.steps(tensors.iter().flatten().map(|&x| f64::from(x))))
        }
        _ => None,
    };
    let row = |stored: &[f32], row: &mut [f32], o: usize| {
        let mut values: Vec<f64> = stored[o * shape[1]..][..shape[1]].iter().map(|&x| f64::from(x)).collect();
        match (shared, rounding.weights) {
            (Some(steps), _) => steps.round(&mut values),
            (None, Some(grid)) => grid.round_row(&mut values),
            (None, None) => {}
        }
        row.iter_mut().zip(values).for_each(|(to, x)| *to = x as f32);
    };
    StepContext { inputs: &inputs, ..*at }.product(row, shape)
}

/// The matrices that share a scale with a step's: Q, K and V of its layer, else its own.
fn joined<'a>(at: &StepContext<'a>) -> Vec<&'a firstdiff_model::WeightRef> {
    const TOGETHER: [Site; 3] = [Site::Q, Site::K, Site::V];
    let layer = at.step.tap.layer.filter(|_| TOGETHER.contains(&at.step.tap.site));
    let Some(layer) = layer else { return at.step.weights.first().into_iter().collect() };
    let of = |site| at.model.plan.step(Tap::layer(layer, site)).and_then(|step| step.weights.first());
    TOGETHER.into_iter().filter_map(of).collect()
}
