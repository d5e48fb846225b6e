//! Mistakes in operations that the families with a Plan do not have: they are found in recorded programs alone.

use super::mistake::{Mistake, StandsBehind};
use super::param::Param;

/// A mistake in an operation of a recorded program.
const RECORDED: Mistake = Mistake { in_programs: true, ..Mistake::ORDINARY };

/// What is done to an operation, where no entry of the catalogue says more.
const UNLISTED: Mistake = Mistake { is_unlisted: true, ..RECORDED };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[
    &POSITION_EMBEDDING_OFFSET,
    &TOKEN_TYPES_DIFFER,
    &ROPE_LAYER_KIND,
    &NORM_NOT_CENTERED,
    &POSITION_BIAS,
    &ROUTER_NORM,
    &ROUTER_BIAS,
    &ROUTER_SCALE,
    &ROUTER_TOPK,
    &EXPERT_ORDER,
    &SHARED_GATE,
    &OPERATION_INPUT,
    &RESULT_SCALED,
    &OPERATION_OMITTED,
    &SIGN_FLIPPED,
    &NUMBER_DIFFERS,
    &OPERATION_DIFFERS,
    &OPERATION_MOVED,
    &FUNCTION_DIFFERS,
    &ORDER_DIFFERS,
    &TENSORS_EXCHANGED,
];

/// The operation that is done otherwise, by its name and its line.
const OPERATION: Param = Param::other("operation", "its name and its line");
/// What it reads: a weight, a tap, or what an operation gives.
const TENSOR: Param = Param::other("tensor", "a weight, a tap, or what an operation gives");

pub(crate) static POSITION_EMBEDDING_OFFSET: Mistake = Mistake {
    id: "position-embedding-offset",
    what: "tokens get the learned positions of others",
    fix: "look at the offset of the position table, and at the first position",
    params: &[Param::number("offset"), Param::words("kind", &["restarts"])],
    ..RECORDED
};
pub(crate) static TOKEN_TYPES_DIFFER: Mistake = Mistake {
    id: "token-types-differ",
    what: "other token types were embedded",
    fix: "feed the same token types (token_type_ids): most models have 0 in the first text, 1 in the second",
    params: &[Param::words("types", &["all 0", "all 1"])],
    ..RECORDED
};
pub(crate) static ROPE_LAYER_KIND: Mistake = Mistake {
    id: "rope-layer-kind",
    what: "a layer is rotated as layers of another kind are",
    fix: "look at which layers have which base, and which have no rotation",
    params: &[Param::words("kind", &["rotated", "other tables"])],
    ..RECORDED
};
pub(crate) static NORM_NOT_CENTERED: Mistake = Mistake {
    id: "norm-not-centered",
    what: "the mean is not taken off",
    fix: "LayerNorm centres: (x - mean(x)) / sqrt(var(x) + eps)",
    ..RECORDED
};
pub(crate) static POSITION_BIAS: Mistake = Mistake {
    id: "position-bias",
    what: "what is added to the scores by distance has another factor",
    fix: "look at the slopes of ALiBi, or at the table of relative positions",
    params: &[Param::free("factor")],
    ..RECORDED
};
pub(crate) static ROUTER_NORM: Mistake = Mistake {
    id: "router-norm",
    what: "the weights of the chosen experts are not divided by their sum, or are where they should not be",
    fix: "divide by their sum where the reference does (norm_topk_prob of many configs)",
    params: &[Param::words("kind", &["normalised", "not-normalised"])],
    ..RECORDED
};
pub(crate) static ROUTER_BIAS: Mistake = Mistake {
    id: "router-bias",
    what: "experts are scored otherwise",
    fix: "look at the function of the router's logits, and at the bias that only the choice sees",
    params: &[Param::words("kind", &["ignored", "in-weights", "softmax", "sigmoid"])],
    ..RECORDED
};
pub(crate) static ROUTER_SCALE: Mistake = Mistake {
    id: "router-scale",
    what: "the weights of the experts have another factor",
    fix: "look at routed_scaling_factor in the config",
    params: &[Param::free("factor")],
    ..RECORDED
};
pub(crate) static ROUTER_TOPK: Mistake = Mistake {
    id: "router-topk",
    what: "another number of experts takes part",
    fix: "take num_experts_per_tok from the config",
    params: &[Param::number("experts")],
    ..RECORDED
};
pub(crate) static EXPERT_ORDER: Mistake = Mistake {
    id: "expert-order",
    what: "another expert's matrix is used",
    fix: "look at the order of the experts' matrices, and at the number of the first",
    params: &[Param::words("expert", &["next", "previous"])],
    ..RECORDED
};
pub(crate) static SHARED_GATE: Mistake = Mistake {
    id: "shared-gate",
    what: "the shared expert's gate is not applied",
    fix: "multiply the shared expert by the sigmoid of its gate",
    ..RECORDED
};
pub(crate) static OPERATION_OMITTED: Mistake = Mistake {
    id: "operation-omitted",
    what: "an operation of the reference is left out",
    fix: "carry it out",
    params: &[OPERATION, Param::words("keeps", &["second"])],
    ..RECORDED
};
pub(crate) static OPERATION_INPUT: Mistake = Mistake {
    id: "operation-input",
    what: "another tensor is read",
    fix: "look at what is passed in",
    params: &[OPERATION, TENSOR, Param::other("reads", "the tensor that it reads, or how a longer one is cut")],
    ..RECORDED
};
pub(crate) static RESULT_SCALED: Mistake = Mistake {
    id: "result-scaled",
    what: "the result has a factor, or what a function is taken of",
    fix: "look for a factor that the reference does not have, or has",
    params: &[Param::free("factor"), Param::words("of", &["operand"])],
    shows_one_number_a_row: true,
    stands_behind: StandsBehind::All,
    ..RECORDED
};
pub(crate) static SIGN_FLIPPED: Mistake = Mistake {
    id: "sign-flipped",
    what: "a sign is turned about",
    fix: "look at the sign of the operation",
    params: &[OPERATION],
    ..RECORDED
};
pub(crate) static NUMBER_DIFFERS: Mistake = Mistake {
    id: "number-differs",
    what: "a number of an operation is another one",
    fix: "take the reference's own number",
    params: &[Param::free("value"), OPERATION, Param::other("name", "what the operation calls it")],
    ..RECORDED
};
pub(crate) static OPERATION_DIFFERS: Mistake = Mistake {
    id: "operation-differs",
    what: "an operation of the reference is another one",
    fix: "carry out the reference's own",
    params: &[OPERATION, Param::other("is", "what is done in its place")],
    ..UNLISTED
};
pub(crate) static OPERATION_MOVED: Mistake = Mistake {
    id: "operation-moved",
    what: "an operation of the reference is carried out on another tensor",
    fix: "look at the order of the operations",
    params: &[OPERATION, Param::other("of", "the tensor that it is carried out on")],
    ..UNLISTED
};
pub(crate) static FUNCTION_DIFFERS: Mistake = Mistake {
    id: "function-differs",
    what: "a function is taken of a tensor before it is read",
    fix: "read it as the reference does",
    params: &[OPERATION, TENSOR, Param::other("function", "the function, of x")],
    ..UNLISTED
};
pub(crate) static ORDER_DIFFERS: Mistake = Mistake {
    id: "order-differs",
    what: "a tensor is read in another order",
    fix: "look at its layout, and at the index that reads it",
    params: &[OPERATION, TENSOR, Param::other("order", "which part is read for part i")],
    ..UNLISTED
};
pub(crate) static TENSORS_EXCHANGED: Mistake = Mistake {
    id: "tensors-exchanged",
    what: "two tensors are read, each in the place of the other",
    fix: "look at which part is which",
    params: &[Param::other("tensors", "the two")],
    ..UNLISTED
};
