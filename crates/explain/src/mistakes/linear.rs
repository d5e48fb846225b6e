//! Imitates mistakes in a projection, or the head. Right: x Wᵀ + b, W \[out,in\].

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake, sites};
use super::param::Param;

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
    what: "the matrix is read with its rows for its columns",
    fix: "multiply by the transpose: of a matrix that lies as [out,in], as PyTorch's Linear has it, y[o] = sum over i of x[i] * w[o*in + i]; of one \
        that lies as [in,out], as its Conv1D (GPT-2) has it, x[i] * w[i*out + o]",
    in_file: Some(
        "read it as A has it: PyTorch's Linear stores W as [out,in] row by row, its Conv1D (GPT-2) as [in,out]; GGUF \
        names the fastest axis first, so its [in,out] is the memory of [out,in]",
    ),
    at: sites::MATRICES,
    params: &[Param::words("form", &["reshape", "transpose"]).of_shape()],
    ..LINEAR
};
pub(crate) static WEIGHT_STRIDE: Mistake = Mistake {
    id: "weight-stride",
    what: "rows of the matrix are read at a wrong distance",
    fix: "the leading dimension is the width of a row, in",
    at: sites::MATRICES,
    params: &[Param::words("leading_dimension", &["in-1", "in+1"])],
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
    ..LINEAR
};
pub(crate) static BIAS_TWICE: Mistake = Mistake {
    id: "bias-twice",
    what: "the bias is added twice",
    fix: "add the bias once",
    at: sites::PROJECTIONS,
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
    ..LINEAR
};
