//! What is done wrong in a projection, or the head? Right: x Wᵀ + b, W \[out,in\].

use firstdiff_core::softcap;
use firstdiff_model::{Op, Role, Step, WeightRef};
use firstdiff_trace::{QkRows, Site, Tap};
use ndarray::{ArrayD, Axis, concatenate};
use serde_json::json;

use super::{At, List, Out, Params, Seen, factor, matrix_shape, merged, rows, snapped};

pub(super) fn listed(list: &mut List<'_>) {
    misread(list);
    inputs(list);
    biases(list);
    others(list);
    // A matrix that was never loaded.
    list.add("weight-unset", vec![], |at| {
        let zeros = ndarray::Array2::zeros((at.chunk.tokens.len(), at.matrix_shape()?[0])) + merged_bias(at);
        at.split(at.kept(zeros.into_dyn()))
    });
    if list.site() == Site::Logits {
        head(list);
    }
    if matches!(list.site(), Site::Q | Site::K) {
        row_order(list);
    }
    if matches!(list.site(), Site::Q | Site::K | Site::V) {
        // One matrix of all rows, split as if its rows came group by group.
        list.add("fused-split", vec![("kind", json!("by-group"))], by_group);
        // [d,H] read as [H,d]; the buffer read as [H,T,d]
        list.add("head-layout", vec![("kind", json!("d-first"))], |at| heads(at.right()?, true));
        list.add("head-layout", vec![("kind", json!("head-first"))], |at| heads(at.right()?, false));
    }
    if matches!(list.site(), Site::FfnGate | Site::FfnUp) {
        list.add("fused-split", vec![("kind", json!("interleaved"))], interleaved);
        super::feed_forward::clamped(list, super::feed_forward::LIMIT);
    }
}

/// The stored elements read in another order.
pub(super) fn misread(list: &mut List<'_>) {
    let Some([out, inner]) = matrix_shape(list.model, list.step) else { return };
    // The bytes of [out,in] read as [in,out]: x · W.reshape(in, out)
    // Large ones are read once and never made into another matrix.
    let streamed = out * inner > 1 << 20 && !matches!(list.step.op, Op::Embedding { .. });
    let edit = list.add("weight-transposed", vec![("form", json!("reshape"))], move |at| {
        if streamed && at.unread_from.is_none() && super::half(at.profile).is_none() {
            return at.reversed();
        }
        at.remapped(|o, i| Some(i * out + o))
    });
    if out == inner && out > 1 {
        // The same thing where the matrix is square: x · W
        edit.params = vec![("form", json!("transpose"))];
    }
    for (lda, what) in [(inner - 1, "in-1"), (inner + 1, "in+1")] {
        list.add("weight-stride", vec![("leading_dimension", json!(what))], move |at| {
            at.remapped(|o, i| Some(o * lda + i))
        });
    }
}

/// Another tap for the one that should be read.
fn inputs(list: &mut List<'_>) {
    let layer = |site| list.sibling(site);
    let last = Tap::layer(list.model.plan.dims.layers.saturating_sub(1), Site::H);
    let others: Vec<Option<Tap>> = match list.site() {
        Site::Q | Site::K | Site::V => vec![list.stream()],
        Site::FfnGate | Site::FfnUp => {
            vec![layer(Site::HAttn), layer(Site::AttnNorm), layer(Site::AttnOut), list.stream()]
        }
        Site::FfnOut => vec![layer(Site::FfnGate), layer(Site::FfnUp)],
        Site::AttnOut => vec![layer(Site::AttnNorm)],
        _ => vec![],
    };
    let wide = |tap: Tap| list.model.plan.dims.width(tap.site);
    let due = list.step.reads.first().map(|&tap| wide(tap));
    let fitting: Vec<Tap> = others.into_iter().flatten().filter(|&tap| Some(wide(tap)) == due).collect();
    for tap in fitting {
        let name = if Some(tap) == list.stream() { "layer input" } else { tap.site.name() };
        list.read("linear-input", vec![("reads", json!(name))], &[tap]);
    }
    if list.site() == Site::Logits {
        list.read("final-norm-omitted", vec![("kind", json!("omitted"))], &[last]);
    }
}

fn biases(list: &mut List<'_>) {
    let [matrix, _] = list.step.weights[..] else { return };
    list.weights("bias-omitted", vec![], vec![matrix]);
    list.add("bias-twice", vec![], |at| {
        let (bias, out) = (at.vector(1)?, at.right()?);
        let shape = out.raw_dim();
        let twice = merged(out)? + ndarray::Array1::from_vec(bias);
        twice.into_dyn().into_shape_with_order(shape).ok().map(|x| at.kept(x))
    });
}

/// Other matrices of that shape: another projection's, another layer's.
fn others(list: &mut List<'_>) {
    let own = list.step.weights[0];
    let bias = list.step.weights.get(1).copied();
    let Some(layer) = own.layer else { return };
    const PAIRS: [(Role, Role); 7] = [
        (Role::Q, Role::QBias),
        (Role::K, Role::KBias),
        (Role::V, Role::VBias),
        (Role::AttnOut, Role::AttnOutBias),
        (Role::Gate, Role::GateBias),
        (Role::Up, Role::UpBias),
        (Role::Down, Role::DownBias),
    ];
    let shape = |role| list.model.plan.dims.shape(role);
    let same: Vec<_> = PAIRS.iter().filter(|(role, _)| *role != own.role && shape(*role) == shape(own.role)).collect();
    for &&(role, other_bias) in &same {
        let weight = list.weight(role);
        let params = || -> Params { vec![("with", json!(word(role)))] };
        if bias.is_some() && list.model.weights.holds(list.weight(other_bias)) {
            list.weights("weight-swapped", params(), vec![weight, list.weight(other_bias)]);
        }
        list.weights("weight-swapped", params(), std::iter::once(weight).chain(bias).collect());
        if bias.is_some() && list.model.weights.holds(list.weight(other_bias)) {
            let part = [params(), vec![("part", json!("bias"))]].concat();
            list.weights("weight-swapped", part, vec![own, list.weight(other_bias)]);
        }
    }
    for (other, name) in list.other_layers(layer) {
        let weight = WeightRef { layer: Some(other), role: own.role };
        list.weights(
            "weight-wrong-layer",
            vec![("layer", name.clone())],
            std::iter::once(weight).chain(bias).collect(),
        );
        if let Some(bias) = bias {
            let bias = WeightRef { layer: Some(other), role: bias.role };
            list.weights("weight-wrong-layer", vec![("layer", name), ("bias", json!(true))], vec![weight, bias]);
        }
    }
}

/// The step's bias, or nothing.
fn merged_bias(at: &At<'_>) -> ndarray::Array1<f64> {
    at.vector(1).map_or_else(|| ndarray::Array1::zeros(1), ndarray::Array1::from_vec)
}

fn word(role: Role) -> &'static str {
    match role {
        Role::Q => "q",
        Role::K => "k",
        Role::V => "v",
        Role::AttnOut => "attn_out",
        Role::Gate => "ffn_gate",
        Role::Up => "ffn_up",
        Role::Down => "ffn_out",
        _ => "other",
    }
}

fn head(list: &mut List<'_>) {
    let embedding = WeightRef { layer: None, role: Role::Embedding };
    if list.model.weights.name(list.step.weights[0]) == list.model.weights.name(embedding) {
        // A head of its own, never loaded.
        list.add("head-untied", vec![("kind", json!("ones"))], |at| {
            at.product(|_, row, _| row.fill(1.0), at.matrix_shape()?)
        });
    } else {
        list.weights("head-tied", vec![], vec![embedding]);
    }
    // The logits of the position before, or behind.
    for (shift, from) in [(1usize, "before"), (usize::MAX, "behind")] {
        list.add("logit-row", vec![("row", json!(from))], move |at| {
            let x = at.right()?;
            let n = x.shape()[0];
            let order: Vec<usize> = (0..n).map(|t| if shift == 1 { (t + n - 1) % n } else { (t + 1) % n }).collect();
            (n > 1).then(|| rows(&x, &order))
        });
    }
    for cap in [30.0, 50.0, 15.0] {
        list.tunable("logit-softcap", "cap", cap, |cap, at| Some(at.kept(at.right()?.mapv(|x| softcap(x, cap)))));
    }
    for c in [0.5, 2.0] {
        scale(list, c);
    }
    let root = (list.model.plan.dims.hidden as f64).sqrt();
    scale(list, root);
    scale(list, 1.0 / root);
}

fn scale(list: &mut List<'_>, c: f64) {
    list.tunable("logit-scale", "factor", c, |c, at| Some(at.kept(at.right()?.mapv(|x| x * c))));
}

/// The factor on the logits.
pub(super) fn fitted(list: &mut List<'_>, seen: &Seen<'_>) {
    if let Some(c) = factor(seen.own, seen.right).map(|c| snapped(c, 1e-6)).filter(|c| (c - 1.0).abs() > 1e-9) {
        scale(list, c);
    }
}

/// Rows of Q and K ordered for the other rotation than the one at hand.
fn row_order(list: &mut List<'_>) {
    let width = list.model.plan.dims.head_dim;
    let has_bias = list.step.weights.len() > 1;
    for (to, kind) in [(QkRows::Adjacent, "halves-to-pairs"), (QkRows::Half, "pairs-to-halves")] {
        list.add("qk-row-order", vec![("kind", json!(kind))], move |at| permuted(at.right()?, to, width));
        if has_bias {
            list.add("qk-row-order", vec![("kind", json!(kind)), ("bias", json!("left"))], move |at| {
                let matrix = Step { weights: at.step.weights[..1].to_vec(), ..at.step.clone() };
                let out = permuted(at.run(&matrix, at.inputs)?, to, width)?;
                let shape = out.raw_dim();
                let biased = merged(out)? + ndarray::Array1::from_vec(at.vector(1)?);
                biased.into_dyn().into_shape_with_order(shape).ok().map(|x| at.kept(x))
            });
        }
    }
    let (heads, kv_heads) = (list.model.plan.dims.heads, list.model.plan.dims.kv_heads);
    if list.site() == Site::K && heads != kv_heads && (kv_heads * width).is_multiple_of(2 * heads) {
        // K permuted as if it had as many heads as Q.
        let narrow = kv_heads * width / heads;
        for (to, kind) in [(QkRows::Adjacent, "halves-to-pairs"), (QkRows::Half, "pairs-to-halves")] {
            list.add("qk-row-order", vec![("kind", json!(kind)), ("heads", json!(heads))], move |at| {
                permuted(at.right()?, to, narrow)
            });
        }
    }
}

/// Rows of each head in the order of the other rotation.
pub(super) fn permuted(x: ArrayD<f64>, to: QkRows, width: usize) -> Out {
    let shape = x.raw_dim();
    let values: Vec<f64> = x.iter().copied().collect();
    ArrayD::from_shape_vec(shape, reordered(&values, to, width)).ok()
}

/// Heads of `width` elements brought into the order `to` from the other one.
fn reordered(values: &[f64], to: QkRows, width: usize) -> Vec<f64> {
    let mut out = vec![0.0; values.len()];
    for (from, out) in values.chunks_exact(width).zip(out.chunks_exact_mut(width)) {
        for i in 0..width / 2 {
            let (half, adjacent) = ([i, i + width / 2], [2 * i, 2 * i + 1]);
            let (source, target) = match to {
                QkRows::Adjacent => (half, adjacent),
                QkRows::Half => (adjacent, half),
            };
            out[target[0]] = from[source[0]];
            out[target[1]] = from[source[1]];
        }
    }
    out
}

/// Heads read with their axes exchanged.
fn heads(x: ArrayD<f64>, d_first: bool) -> Out {
    let &[tokens, heads, width] = x.shape() else { return None };
    let (shape, axes) = if d_first { ([tokens, width, heads], [0, 2, 1]) } else { ([heads, tokens, width], [1, 0, 2]) };
    if heads == 1 || !d_first && tokens == 1 {
        return None;
    }
    let x = x.as_standard_layout().into_owned().into_shape_with_order(shape.to_vec()).ok()?;
    Some(x.permuted_axes(axes.to_vec()).as_standard_layout().into_owned())
}

/// Another projection of the same layer on the same input, \[T,·\].
fn of_sibling(at: &At<'_>, site: Site) -> Option<ndarray::Array2<f64>> {
    let step = at.model.plan.step(Tap::layer(at.step.tap.layer?, site))?;
    merged(at.run(step, at.inputs)?)
}

/// The rows of [Q; K; V] taken as K groups of H/K query heads, a key head and a value head.
fn by_group(at: &At<'_>) -> Out {
    let dims = &at.model.plan.dims;
    let [q, k, v] = [Site::Q, Site::K, Site::V].map(|site| of_sibling(at, site));
    let (q, k, v) = (q?, k?, v?);
    let fused = concatenate(Axis(1), &[q.view(), k.view(), v.view()]).ok()?;
    let (group, d) = (dims.heads / dims.kv_heads, dims.head_dim);
    let tokens = fused.nrows();
    let heads: Vec<usize> = (0..dims.kv_heads)
        .flat_map(|g| {
            let first = g * (group + 2);
            match at.step.tap.site {
                Site::Q => (first..first + group).collect::<Vec<_>>(),
                Site::K => vec![first + group],
                _ => vec![first + group + 1],
            }
        })
        .collect();
    let columns: Vec<usize> = heads.iter().flat_map(|h| h * d..(h + 1) * d).collect();
    fused
        .select(Axis(1), &columns)
        .into_dyn()
        .as_standard_layout()
        .into_owned()
        .into_shape_with_order(vec![tokens, heads.len(), d])
        .ok()
}

/// The rows of [gate; up] taken as stored in turn.
fn interleaved(at: &At<'_>) -> Out {
    let (gate, up) = (of_sibling(at, Site::FfnGate)?, of_sibling(at, Site::FfnUp)?);
    let fused = concatenate(Axis(1), &[gate.view(), up.view()]).ok()?;
    let first = usize::from(at.step.tap.site == Site::FfnUp);
    let columns: Vec<usize> = (first..fused.ncols()).step_by(2).collect();
    Some(fused.select(Axis(1), &columns).into_dyn().as_standard_layout().into_owned())
}
