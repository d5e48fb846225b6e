//! What is done wrong in a projection, or the head? Right: x Wᵀ + b, W \[out,in\].

use firstdiff_model::{Model, Op, Role, Step, WeightRef};
use firstdiff_trace::{QkRows, Site, Tap};
use ndarray::{ArrayD, Axis, concatenate};
use serde_json::json;

use super::catalogue::{BeginsLater, Mistake, OneOf, sites};
use super::head::FINAL_NORM_OMITTED;
use super::param::Param;
use super::{Edit, List, Out, Params, StepContext, matrix_shape, merged};

/// A mistake of the products with weights.
const LINEAR: Mistake = Mistake { at: sites::PRODUCTS, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &WEIGHT_TRANSPOSED,
    &WEIGHT_STRIDE,
    &WEIGHT_WRONG_LAYER,
    &WEIGHT_SWAPPED,
    &WEIGHT_UNSET,
    &BIAS_OMITTED,
    &BIAS_TWICE,
    &LINEAR_INPUT,
    &QK_ROW_ORDER,
    &FUSED_SPLIT,
    &HEAD_LAYOUT,
];

pub(crate) static WEIGHT_TRANSPOSED: Mistake = Mistake {
    id: "weight-transposed",
    what: "the matrix is read as [in,out] where its bytes are [out,in]",
    fix: "multiply by the transpose: y[o] = sum over i of x[i] * w[o*in + i]",
    in_file: Some(
        "a linear layer is x · Wᵀ with W stored [out,in] row by row; GGUF names the fastest axis first, so \
        its [in,out] is that memory",
    ),
    at: sites::MATRICES,
    params: &[Param::words("form", &["reshape", "transpose"]).of_shape()],
    makes_a_matrix: true,
    ..LINEAR
};
pub(crate) static WEIGHT_STRIDE: Mistake = Mistake {
    id: "weight-stride",
    what: "rows of the matrix are read at a wrong distance",
    fix: "the leading dimension is the width of a row, in",
    at: sites::MATRICES,
    params: &[Param::words("leading_dimension", &["in-1", "in+1"])],
    makes_a_matrix: true,
    ..LINEAR
};
pub(crate) static WEIGHT_WRONG_LAYER: Mistake = Mistake {
    id: "weight-wrong-layer",
    what: "another layer's matrix is used",
    fix: "look at the layer index in the tensor's name",
    in_file: Some("look at the name under which it is looked up"),
    at: sites::PROJECTIONS,
    params: &[Param::layer("layer"), Param::flag("bias"), Param::words("part", &["bias"])],
    ..LINEAR
};
pub(crate) static WEIGHT_SWAPPED: Mistake = Mistake {
    id: "weight-swapped",
    what: "another projection's matrix is used",
    fix: "look at which tensor is bound to which projection",
    in_file: Some("look at the name under which it is looked up"),
    at: sites::PROJECTIONS,
    params: &[
        Param::words("with", &["q", "k", "v", "attn_out", "ffn_gate", "ffn_up", "ffn_out"]),
        Param::words("part", &["bias"]),
        Param::words("kind", &["exchanged"]),
    ],
    ..LINEAR
};
pub(crate) static WEIGHT_UNSET: Mistake = Mistake {
    id: "weight-unset",
    what: "the matrix, or what of it makes this tensor, is all zeros",
    fix: "look whether the tensor was loaded at all",
    in_file: Some("it was never filled: look at whether its name was found"),
    ..LINEAR
};
pub(crate) static BIAS_OMITTED: Mistake = Mistake {
    id: "bias-omitted",
    what: "the bias is not added",
    fix: "add the bias: the file holds one",
    in_file: Some("load the biases too"),
    at: sites::PROJECTIONS,
    right_value: bias_name,
    one_of: Some(OneOf::Bias),
    ..LINEAR
};
pub(crate) static BIAS_TWICE: Mistake = Mistake {
    id: "bias-twice",
    what: "the bias is added twice",
    fix: "add the bias once",
    at: sites::PROJECTIONS,
    right_value: bias_name,
    one_of: Some(OneOf::Bias),
    ..LINEAR
};
pub(crate) static LINEAR_INPUT: Mistake = Mistake {
    id: "linear-input",
    what: "the projection reads another tensor",
    fix: "look at what is passed in",
    at: sites::PROJECTIONS,
    params: &[Param::words("reads", &["layer input", "attn_norm", "attn_out", "h_attn", "ffn_gate", "ffn_up"])],
    begins_later: BeginsLater::InOneOperation,
    ..LINEAR
};
pub(crate) static QK_ROW_ORDER: Mistake = Mistake {
    id: "qk-row-order",
    what: "the rows of Q or K are in the order of the other rotation",
    fix: "permute the rows of Wq and Wk per head, or rotate the other pairs, not both",
    in_file: Some(
        "permute the rows of Q and K once, head by head with each one's own number of heads, or rotate the \
        other pairs",
    ),
    at: &[Site::Q, Site::K, Site::QRope, Site::KRope],
    params: &[
        Param::words(
            "kind",
            &["halves-to-pairs", "pairs-to-halves", "rows of the other pairing rotated as if they were of this"],
        ),
        Param::words("bias", &["left"]),
        Param::number("heads"),
    ],
    is_a_row_order: true,
    ..LINEAR
};
pub(crate) static FUSED_SPLIT: Mistake = Mistake {
    id: "fused-split",
    what: "a fused matrix is split in the wrong order",
    fix: "look at how its rows are stored: blocks, groups, or in turn",
    at: &[Site::Q, Site::K, Site::V, Site::FfnGate, Site::FfnUp],
    params: &[
        Param::words("kind", &["by-group", "interleaved", "blocks"]),
        Param::other("order", "the parts as they are taken to lie"),
        Param::words("how", &["read", "stored"]),
        Param::number("first"),
    ],
    ..LINEAR
};
pub(crate) static HEAD_LAYOUT: Mistake = Mistake {
    id: "head-layout",
    what: "heads are read with their axes exchanged",
    fix: "rows of a projection are [H,d], positions before heads: [T,H,d]",
    at: &[Site::Q, Site::K, Site::V],
    params: &[Param::words("kind", &["d-first", "head-first"])],
    mixes_tokens: true,
    ..LINEAR
};

pub(super) fn listed(list: &mut List<'_>) {
    misread(list);
    inputs(list);
    biases(list);
    others(list);
    // A matrix that was never loaded.
    list.add(&WEIGHT_UNSET, vec![], |at| {
        let zeros = ndarray::Array2::zeros((at.chunk.tokens.len(), at.matrix_shape()?[0])) + merged_bias(at);
        at.split(at.kept(zeros.into_dyn()))
    });
    if list.site() == Site::Logits {
        super::head::listed(list);
    }
    if matches!(list.site(), Site::Q | Site::K) {
        row_order(list);
    }
    if matches!(list.site(), Site::Q | Site::K | Site::V) {
        // One matrix of all rows, split as if its rows came group by group.
        list.add(&FUSED_SPLIT, vec![("kind", json!("by-group"))], by_group);
        // [d,H] read as [H,d]; the buffer read as [H,T,d]
        list.add(&HEAD_LAYOUT, vec![("kind", json!("d-first"))], |at| heads(at.right()?, true));
        list.add(&HEAD_LAYOUT, vec![("kind", json!("head-first"))], |at| heads(at.right()?, false));
    }
    if matches!(list.site(), Site::FfnGate | Site::FfnUp) {
        list.add(&FUSED_SPLIT, vec![("kind", json!("interleaved"))], interleaved);
        super::feed_forward::clamped(list, super::feed_forward::LIMIT);
    }
}

/// The bias that a step adds.
fn bias_name(model: &Model, step: &Step) -> Option<String> {
    step.weights.get(1).map(|&bias| format!("{} and the other biases", model.weights.name(bias)))
}

impl Edit {
    /// Whether a step has the weights of the projection at another site.
    pub(crate) fn has_weights_of(&self, site: Site) -> bool {
        self.mistake == &WEIGHT_SWAPPED && self.params.iter().any(|(_, value)| *value == site.name())
    }
}

/// The stored elements read in another order.
pub(super) fn misread(list: &mut List<'_>) {
    let Some([out, inner]) = matrix_shape(list.model, list.step) else { return };
    // The bytes of [out,in] read as [in,out]: x · W.reshape(in, out)
    // Large ones are read once and never made into another matrix.
    let streamed = out * inner > 1 << 20 && !matches!(list.step.op, Op::Embedding { .. });
    let edit = list.add(&WEIGHT_TRANSPOSED, vec![("form", json!("reshape"))], move |at| {
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
        list.add(&WEIGHT_STRIDE, vec![("leading_dimension", json!(what))], move |at| {
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
        list.read(&LINEAR_INPUT, vec![("reads", json!(name))], &[tap]);
    }
    if list.site() == Site::Logits {
        list.read(&FINAL_NORM_OMITTED, vec![("kind", json!("omitted"))], &[last]);
    }
}

fn biases(list: &mut List<'_>) {
    let [matrix, _] = list.step.weights[..] else { return };
    list.weights(&BIAS_OMITTED, vec![], vec![matrix]);
    list.add(&BIAS_TWICE, vec![], |at| {
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
            list.weights(&WEIGHT_SWAPPED, params(), vec![weight, list.weight(other_bias)]);
        }
        list.weights(&WEIGHT_SWAPPED, params(), std::iter::once(weight).chain(bias).collect());
        if bias.is_some() && list.model.weights.holds(list.weight(other_bias)) {
            let part = [params(), vec![("part", json!("bias"))]].concat();
            list.weights(&WEIGHT_SWAPPED, part, vec![own, list.weight(other_bias)]);
        }
    }
    for (other, name) in list.other_layers(layer) {
        let weight = WeightRef { layer: Some(other), role: own.role };
        list.weights(&WEIGHT_WRONG_LAYER, vec![("layer", name.clone())], std::iter::once(weight).chain(bias).collect());
        if let Some(bias) = bias {
            let bias = WeightRef { layer: Some(other), role: bias.role };
            list.weights(&WEIGHT_WRONG_LAYER, vec![("layer", name), ("bias", json!(true))], vec![weight, bias]);
        }
    }
}

/// The step's bias, or nothing.
fn merged_bias(at: &StepContext<'_>) -> ndarray::Array1<f64> {
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

/// Rows of Q and K ordered for the other rotation than the one at hand.
fn row_order(list: &mut List<'_>) {
    let width = list.model.plan.dims.head_dim;
    let has_bias = list.step.weights.len() > 1;
    for (to, kind) in [(QkRows::Adjacent, "halves-to-pairs"), (QkRows::Half, "pairs-to-halves")] {
        list.add(&QK_ROW_ORDER, vec![("kind", json!(kind))], move |at| permuted(at.right()?, to, width));
        if has_bias {
            list.add(&QK_ROW_ORDER, vec![("kind", json!(kind)), ("bias", json!("left"))], move |at| {
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
            list.add(&QK_ROW_ORDER, vec![("kind", json!(kind)), ("heads", json!(heads))], move |at| {
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
fn of_sibling(at: &StepContext<'_>, site: Site) -> Option<ndarray::Array2<f64>> {
    let step = at.model.plan.step(Tap::layer(at.step.tap.layer?, site))?;
    merged(at.run(step, at.inputs)?)
}

/// The rows of [Q; K; V] taken as K groups of H/K query heads, a key head and a value head.
fn by_group(at: &StepContext<'_>) -> Out {
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
fn interleaved(at: &StepContext<'_>) -> Out {
    let (gate, up) = (of_sibling(at, Site::FfnGate)?, of_sibling(at, Site::FfnUp)?);
    let fused = concatenate(Axis(1), &[gate.view(), up.view()]).ok()?;
    let first = usize::from(at.step.tap.site == Site::FfnUp);
    let columns: Vec<usize> = (first..fused.ncols()).step_by(2).collect();
    Some(fused.select(Axis(1), &columns).into_dyn().as_standard_layout().into_owned())
}
