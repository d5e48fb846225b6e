//! What is done wrong in a norm? Right: w · x / √(mean(x²) + eps) over the last axis.

use firstdiff_model::{Op, Profile, Role, WeightRef};
use firstdiff_trace::Site;
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake, OneOf, StandsBehind, sites};
use super::head::FINAL_NORM_OMITTED;
use super::param::Param;
use super::residual::RESIDUAL_PARALLEL;
use super::{List, Out, Params, Scale, StepContext, by_row};

/// A mistake of the norms.
const NORM: Mistake = Mistake { at: sites::NORMS, begins_later: BeginsLater::InOneOperation, ..Mistake::ORDINARY };

/// Values of epsilon that models have, and larger ones to begin a fit from.
pub(crate) const EPSILONS: [f64; 9] = [1e-6, 1e-5, 0.0, 1e-8, 1e-12, 1e-7, 1e-4, 1e-3, 0.1];

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &NORM_PLUS_ONE,
    &NORM_EPS,
    &NORM_EPS_OUTSIDE,
    &NORM_WEIGHT_TWICE,
    &NORM_WEIGHT_OMITTED,
    &NORM_CENTERED,
    &NORM_SUM,
    &NORM_AXIS,
    &NORM_WIDTH,
    &NORM_WRONG_WEIGHT,
    &NORM_OMITTED,
    &QK_NORM_ORDER,
];

pub(crate) static NORM_PLUS_ONE: Mistake = Mistake {
    id: "norm-plus-one",
    what: "the norm's gain has 1 added or taken off, as Gemma's",
    fix: "weigh by the gain as the reference does: as it is stored, or with 1 added",
    in_file: Some("add 1 to the gains once: in the file or in the engine"),
    params: &[Param::words("kind", &["missing"])],
    ..NORM
};
pub(crate) static NORM_EPS: Mistake = Mistake {
    id: "norm-eps",
    what: "the norm adds another epsilon",
    fix: "add what the reference adds in this norm: most often a number of the config (rms_norm_eps, layer_norm_eps)",
    params: &[Param::free("eps")],
    shows_one_number_a_row: true,
    right_value: |_, step| match step.op {
        Op::RmsNorm { eps } => Some(format!("{eps:e}")),
        _ => None,
    },
    one_of: Some(OneOf::Divisor),
    ..NORM
};
pub(crate) static NORM_EPS_OUTSIDE: Mistake = Mistake {
    id: "norm-eps-outside",
    what: "epsilon is added outside the square root",
    fix: "x / sqrt(mean(x^2) + eps)",
    params: &[Param::free("eps")],
    shows_one_number_a_row: true,
    one_of: Some(OneOf::Divisor),
    ..NORM
};
pub(crate) static NORM_WEIGHT_TWICE: Mistake = Mistake {
    id: "norm-weight-twice",
    what: "the norm's gain is applied twice",
    fix: "multiply by the gain once",
    ..NORM
};
pub(crate) static NORM_WEIGHT_OMITTED: Mistake =
    Mistake { id: "norm-weight-omitted", what: "the norm's gain is not applied", fix: "multiply by the gain", ..NORM };
pub(crate) static NORM_CENTERED: Mistake = Mistake {
    id: "norm-centered",
    what: "the mean is taken off first, as in LayerNorm",
    fix: "RMSNorm does not centre",
    ..NORM
};
pub(crate) static NORM_SUM: Mistake = Mistake {
    id: "norm-sum",
    what: "the squares are summed, not averaged",
    fix: "divide the sum of squares by the width",
    one_of: Some(OneOf::Divisor),
    is_a_factor: true,
    stands_behind: StandsBehind::All,
    ..NORM
};
pub(crate) static NORM_AXIS: Mistake = Mistake {
    id: "norm-axis",
    what: "the mean square is taken over another axis",
    fix: "one mean for each row, over its last axis",
    params: &[Param::words("kind", &["whole-tensor", "over-positions"])],
    one_of: Some(OneOf::Divisor),
    mixes_tokens: true,
    ..NORM
};
pub(crate) static NORM_WIDTH: Mistake = Mistake {
    id: "norm-width",
    what: "the mean square is taken over another width",
    fix: "divide by the number of elements that are summed: look at padding, at partial reads",
    params: &[Param::words("kind", &["all-heads"]), Param::free("width")],
    one_of: Some(OneOf::Divisor),
    is_a_factor: true,
    shows_one_number_a_row: true,
    stands_behind: StandsBehind::All,
    ..NORM
};
pub(crate) static NORM_WRONG_WEIGHT: Mistake = Mistake {
    id: "norm-wrong-weight",
    what: "another norm's gain is applied",
    fix: "look at which tensor is bound to this norm",
    in_file: Some("look at the name under which it is looked up"),
    params: &[Param::other("weight", "the norm whose gain it is"), Param::layer("layer")],
    ..NORM
};
pub(crate) static NORM_OMITTED: Mistake = Mistake {
    id: "norm-omitted",
    what: "the norm is skipped, or done twice",
    fix: "norm here, once",
    at: &[Site::AttnNorm, Site::FfnNorm, Site::QNorm, Site::KNorm, Site::QRope, Site::KRope],
    params: &[Param::words("kind", &["twice", "gain-only", "not-read"])],
    one_of: Some(OneOf::Divisor),
    ..NORM
};
pub(crate) static QK_NORM_ORDER: Mistake = Mistake {
    id: "qk-norm-order",
    what: "q or k is normed after the rotation",
    fix: "norm first, then rotate",
    at: &[Site::QNorm, Site::KNorm, Site::QRope, Site::KRope, Site::Qk],
    made_together: &[Site::QNorm, Site::KNorm, Site::QRope, Site::KRope],
    ..Mistake::ORDINARY
};

/// Every site of a norm.
const SITES: [(Site, Role); 5] = [
    (Site::AttnNorm, Role::AttnNorm),
    (Site::FfnNorm, Role::FfnNorm),
    (Site::QNorm, Role::QNorm),
    (Site::KNorm, Role::KNorm),
    (Site::FinalNorm, Role::FinalNorm),
];

pub(super) fn listed(list: &mut List<'_>, eps: f64) {
    // w · x / √(mean(x²) + e)
    for other in EPSILONS {
        if (other - eps).abs() > 0.01 * eps {
            list.op_with(&NORM_EPS, "eps", other, |eps| Op::RmsNorm { eps });
        }
    }
    // w · x / (√mean(x²) + eps)
    list.add(&NORM_EPS_OUTSIDE, vec![], move |at| outside(eps, at));
    // The same with any other, to begin a fit from.
    for other in [1e-3, 0.1] {
        list.tunable(&NORM_EPS_OUTSIDE, "eps", other, outside);
    }
    // w² · x / √…
    list.add(&NORM_WEIGHT_TWICE, vec![], |at| weighed(at, |w| w));
    // x / √…
    list.add(&NORM_WEIGHT_OMITTED, vec![], |at| normed(at, |_| 1.0));
    // (1 + w) · x / √…
    list.add(&NORM_PLUS_ONE, vec![], |at| normed(at, |w| 1.0 + w));
    list.add(&NORM_PLUS_ONE, vec![("kind", json!("missing"))], |at| normed(at, |w| w - 1.0));
    // w · (x - mean(x)) / √(var(x) + eps)
    list.add(&NORM_CENTERED, vec![], |at| {
        at.on(&[by_row(at.input(0)?, |row| {
            let mean = row.iter().sum::<f64>() / row.len() as f64;
            row.iter_mut().for_each(|x| *x -= mean);
        })])
    });
    // w · x / √(Σx² + eps)
    list.add(&NORM_SUM, vec![], move |at| {
        let n = width(at)?;
        widened(at, eps, 1.0, n)
    });
    // One mean over all rows
    list.add(&NORM_AXIS, vec![("kind", json!("whole-tensor"))], move |at| over_all(at, eps));
    list.add(&NORM_AXIS, vec![("kind", json!("over-positions"))], move |at| over_positions(at, eps));
    if matches!(list.site(), Site::QNorm | Site::KNorm) {
        list.add(&NORM_WIDTH, vec![("kind", json!("all-heads"))], move |at| over_heads(at, eps));
    }
    widths(list, eps);
    gains(list);
    omitted(list);
    if list.site() == Site::QNorm || list.site() == Site::KNorm {
        order(list);
    }
    // The feed-forward reads the layer's input, as attention does.
    if let (Site::FfnNorm, Some(stream)) = (list.site(), list.stream()) {
        list.read(&RESIDUAL_PARALLEL, vec![], &[stream]);
    }
}

/// The sum divided by another width than the row's.
fn widths(list: &mut List<'_>, eps: f64) {
    let n = list.model.plan.dims.shape(list.step.weights[0].role)[0];
    let dims = &list.model.plan.dims;
    let mut others =
        vec![n.next_power_of_two(), n.next_multiple_of(32), n.next_multiple_of(64), n.next_multiple_of(128)];
    others.extend([
        n.next_multiple_of(256),
        n / 2,
        2 * n,
        dims.ffn,
        dims.heads * dims.head_dim,
        dims.hidden,
        dims.head_dim,
    ]);
    others.sort_unstable();
    others.dedup();
    for other in others.into_iter().filter(|&m| m != n && m > 0) {
        width_edit(list, eps, other);
    }
}

fn width_edit(list: &mut List<'_>, eps: f64, other: usize) {
    list.tunable_by(Scale::Whole, &NORM_WIDTH, "width", other as f64, move |m, at| {
        let n = width(at)?;
        // No buffer is that much longer or shorter than its row.
        (m / n <= 16.0 && n / m <= 16.0).then(|| widened(at, eps, m, n))?
    });
}

/// Another norm's gain, or another layer's.
fn gains(list: &mut List<'_>) {
    let own = list.step.weights[0];
    let others: Vec<WeightRef> = SITES
        .iter()
        .map(|&(_, role)| WeightRef { layer: if role == Role::FinalNorm { None } else { own.layer.or(Some(0)) }, role })
        .collect();
    let name = |other: WeightRef| {
        let plain = short(&list.model.weights.name(other));
        if counterpart(own.role) == Some(other.role) { "the layer's other norm".to_owned() } else { plain }
    };
    let mut named: Vec<(WeightRef, Params)> = others
        .into_iter()
        .filter(|&other| other != own)
        .map(|other| (other, vec![("weight", json!(name(other)))]))
        .collect();
    for (layer, name) in own.layer.map(|layer| list.other_layers(layer)).unwrap_or_default() {
        named.push((WeightRef { layer: Some(layer), role: own.role }, vec![("layer", name)]));
    }
    // Of two layers, the next is the previous.
    named.dedup_by_key(|(other, _)| *other);
    for (other, params) in named {
        if list.model.weights.shape(other) == list.model.weights.shape(own) {
            list.weights(&NORM_WRONG_WEIGHT, params, vec![other]);
        }
    }
}

fn counterpart(role: Role) -> Option<Role> {
    match role {
        Role::AttnNorm => Some(Role::FfnNorm),
        Role::FfnNorm => Some(Role::AttnNorm),
        Role::QNorm => Some(Role::KNorm),
        Role::KNorm => Some(Role::QNorm),
        _ => None,
    }
}

/// A weight's name without its layer.
fn short(name: &str) -> String {
    name.split('.').filter(|part| part.parse::<u32>().is_err()).collect::<Vec<_>>().join(".")
}

fn omitted(list: &mut List<'_>) {
    let last = list.site() == Site::FinalNorm;
    if last {
        list.add(&FINAL_NORM_OMITTED, vec![("kind", json!("omitted"))], |at| at.input(0).cloned());
        list.add(&FINAL_NORM_OMITTED, vec![("kind", json!("twice"))], |at| at.on(&[at.right()?]));
    } else {
        list.add(&NORM_OMITTED, vec![], |at| at.input(0).cloned());
        list.add(&NORM_OMITTED, vec![("kind", json!("twice"))], |at| at.on(&[at.right()?]));
    }
    let mistake = if last { &FINAL_NORM_OMITTED } else { &NORM_OMITTED };
    list.add(mistake, vec![("kind", json!("gain-only"))], |at| {
        let w = at.vector(0)?;
        Some(at.kept(by_row(at.input(0)?, |row| row.iter_mut().zip(&w).for_each(|(x, w)| *x *= w))))
    });
}

/// QK-norm after the rotation.
fn order(list: &mut List<'_>) {
    let from = if list.site() == Site::QNorm { Site::QRope } else { Site::KRope };
    if let Some(rotated) = list.sibling(from) {
        list.read(&QK_NORM_ORDER, vec![], &[rotated]);
    }
    normed_last(list);
}

/// QK-norm after the rotation, where one name has what both give: what the products read, whatever it is called.
pub(super) fn normed_last(list: &mut List<'_>) {
    let sites = match list.site() {
        Site::QNorm | Site::QRope => [Site::Q, Site::QNorm, Site::QRope],
        _ => [Site::K, Site::KNorm, Site::KRope],
    };
    let steps = sites.map(|site| list.sibling(site).and_then(|tap| list.model.plan.step(tap)).cloned());
    let [Some(plain), Some(norm), Some(rope)] = steps else { return };
    let edit = list.add(&QK_NORM_ORDER, vec![], move |at| at.run(&norm, &[at.run(&rope, at.inputs)?]));
    edit.reads = vec![plain.tap];
}

fn width(at: &StepContext<'_>) -> Option<f64> {
    at.input(0)?.shape().last().map(|&n| n as f64)
}

/// w · x / (√mean(x²) + eps).
fn outside(eps: f64, at: &StepContext<'_>) -> Out {
    scaled(at, |mean| 1.0 / (mean.sqrt() + eps), |w| w)
}

/// gain(w) · x · scale(mean(x²)).
fn scaled(at: &StepContext<'_>, scale: impl Fn(f64) -> f64, gain: impl Fn(f64) -> f64) -> Out {
    let (w, square) = (at.vector(0)?, squares(at.profile));
    Some(at.kept(by_row(at.input(0)?, |row| {
        let factor = scale(square(row));
        row.iter_mut().zip(&w).for_each(|(x, &w)| *x *= factor * gain(w));
    })))
}

/// The mean square; of an engine in f32, infinite where f32's squares are.
fn squares(profile: Profile) -> fn(&[f64]) -> f64 {
    match profile {
        Profile::Exact => mean_square,
        _ => |row| row.iter().map(|&x| f64::from(x as f32 * x as f32)).sum::<f64>() / row.len() as f64,
    }
}

fn mean_square(row: &[f64]) -> f64 {
    row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64
}

/// The norm times a function of the gain.
fn weighed(at: &StepContext<'_>, of: impl Fn(f64) -> f64) -> Out {
    let w = at.vector(0)?;
    Some(at.kept(by_row(&at.right()?, |row| row.iter_mut().zip(&w).for_each(|(x, &w)| *x *= of(w)))))
}

/// The norm with another gain.
pub(super) fn normed(at: &StepContext<'_>, gain: impl Fn(f64) -> f64) -> Out {
    let Op::RmsNorm { eps } = at.step.op else { return None };
    scaled(at, |mean| 1.0 / (mean + eps).sqrt(), gain)
}

/// w · x / √(Σx² / m + eps), from the norm itself: √(m/n) · w · x / √(mean(x²) + eps · m/n).
fn widened(at: &StepContext<'_>, eps: f64, m: f64, n: f64) -> Out {
    let ratio = m / n;
    let out = at.doing(Op::RmsNorm { eps: eps * ratio })?;
    Some(at.kept(out.mapv(|x| x * ratio.sqrt())))
}

fn over_all(at: &StepContext<'_>, eps: f64) -> Out {
    let x = at.input(0)?;
    let mean = x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (mean + eps).sqrt();
    scaled(at, |_| scale, |w| w)
}

/// The mean over the rows, a column at a time.
fn over_positions(at: &StepContext<'_>, eps: f64) -> Out {
    let x = super::flat(at.input(0)?)?;
    let means: Vec<f64> =
        x.columns().into_iter().map(|c| c.iter().map(|x| x * x).sum::<f64>() / c.len() as f64).collect();
    let w = at.vector(0)?;
    let mut out = x.to_owned();
    for mut row in out.rows_mut() {
        row.iter_mut().enumerate().for_each(|(i, x)| *x *= w[i % w.len()] / (means[i] + eps).sqrt());
    }
    out.into_dyn().into_shape_with_order(at.input(0)?.raw_dim()).ok().map(|x| at.kept(x))
}

/// The mean over all heads of a position.
fn over_heads(at: &StepContext<'_>, eps: f64) -> Out {
    let x = super::flat(at.input(0)?)?;
    let w = at.vector(0)?;
    let mut out = x.to_owned();
    for mut row in out.rows_mut() {
        let scale = 1.0 / (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + eps).sqrt();
        row.iter_mut().enumerate().for_each(|(i, x)| *x *= scale * w[i % w.len()]);
    }
    out.into_dyn().into_shape_with_order(at.input(0)?.raw_dim()).ok().map(|x| at.kept(x))
}
