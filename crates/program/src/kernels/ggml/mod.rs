//! Lists the kernels of ggml's operations, as in llama.cpp's graphs. A tensor has four axes; leading axes of extent 1 may be absent.
//!
//! Names and parameters are ggml's, axes and results in NumPy's order. Sources: the definitions in ggml.h and the CPU backend's ops.cpp. Kernels compute in
//! f64, ggml in f32. ggml also rounds in ways that are not reproduced here, and count as error of the operation: a product with f16 or bf16 weights rounds
//! the other operand to that type, one with quantised weights quantises it, and GELU uses an f16 table.

mod elementwise;
mod order;
mod places;
mod product;
mod recurrent;
pub(crate) mod rope;
mod rows;
mod streams;

use super::call::{Arg, Call, Kernel};
use crate::value::error::KernelError;
use crate::value::tensor::Tensor;
use crate::value::view::contiguous_strides;

/// Every operation of ggml that can be evaluated.
pub(super) const KERNELS: &[(&str, Kernel)] = &[
    ("ggml.ADD", elementwise::add),
    ("ggml.SUB", elementwise::sub),
    ("ggml.MUL", elementwise::mul),
    ("ggml.DIV", elementwise::div),
    ("ggml.SCALE", elementwise::scale),
    ("ggml.CLAMP", elementwise::clamp),
    ("ggml.LEAKY_RELU", elementwise::leaky_relu),
    ("ggml.UNARY.SGN", elementwise::sgn),
    ("ggml.UNARY.STEP", elementwise::step),
    ("ggml.UNARY.ELU", elementwise::elu),
    ("ggml.UNARY.GELU_QUICK", elementwise::gelu_quick),
    ("ggml.UNARY.HARDSWISH", elementwise::hardswish),
    ("ggml.UNARY.HARDSIGMOID", elementwise::hardsigmoid),
    ("ggml.UNARY.EXPM1", elementwise::expm1),
    ("ggml.UNARY.XIELU", elementwise::xielu),
    ("ggml.UNARY.FLOOR", elementwise::floor),
    ("ggml.UNARY.CEIL", elementwise::ceil),
    ("ggml.UNARY.ROUND", elementwise::round),
    ("ggml.UNARY.TRUNC", elementwise::trunc),
    ("ggml.GLU.GEGLU_QUICK", elementwise::geglu_quick),
    ("ggml.GLU.SWIGLU_OAI", elementwise::swiglu_oai),
    ("ggml.GLU.SWIGLU_CLAMP", elementwise::swiglu_clamp),
    // Row operations.
    ("ggml.L2_NORM", rows::l2_norm),
    ("ggml.GROUP_NORM", rows::group_norm),
    ("ggml.SOFT_MAX", rows::soft_max),
    ("ggml.SUM", rows::sum),
    ("ggml.CUMSUM", rows::cumsum),
    ("ggml.ARGMAX", order::argmax),
    ("ggml.ARGSORT", order::argsort),
    ("ggml.TOP_K", order::top_k),
    ("ggml.ROPE", rope::rope),
    ("ggml.ROPE_BACK", rope::rope_back),
    // Products.
    ("ggml.MUL_MAT", product::mul_mat),
    ("ggml.MUL_MAT_ID", product::mul_mat_id),
    ("ggml.SSM_CONV", product::ssm_conv),
    ("ggml.SOLVE_TRI", product::solve_tri),
    ("ggml.LIGHTNING_INDEXER", streams::lightning_indexer),
    // Hyper-connections: several residual streams.
    ("ggml.DSV4_HC_COMB", streams::comb),
    ("ggml.DSV4_HC_PRE", streams::pre),
    ("ggml.DSV4_HC_POST", streams::post),
    // Recurrent state.
    ("ggml.SSM_SCAN", recurrent::ssm_scan),
    ("ggml.RWKV_WKV6", recurrent::wkv6),
    ("ggml.RWKV_WKV7", recurrent::wkv7),
    ("ggml.GATED_LINEAR_ATTN", recurrent::gated_linear_attention),
    ("ggml.GATED_DELTA_NET", recurrent::gated_delta_net),
    // Copies, reordering and constants.
    ("ggml.CONT", places::copy),
    ("ggml.CPY", places::copy),
    ("ggml.DUP", places::copy),
    ("ggml.GET_ROWS", places::get_rows),
    ("ggml.SET_ROWS", places::set_rows),
    ("ggml.SET", places::set),
    ("ggml.ADD_ID", places::add_id),
    ("ggml.REPEAT", places::repeat),
    ("ggml.PAD", places::pad),
    ("ggml.ROLL", places::roll),
    ("ggml.TRI", places::tri),
    ("ggml.DIAG", places::diag),
    ("ggml.DIAG_MASK_INF", places::diag_mask_inf),
    ("ggml.FILL", places::fill),
    ("ggml.ARANGE", places::arange),
];

/// The extents of ggml's four axes.
fn four(shape: &[usize]) -> Result<[usize; 4], KernelError> {
    let too_many = || KernelError::Shape { what: "ggml's axes", left: shape.into(), right: vec![4] };
    let lead = 4usize.checked_sub(shape.len()).ok_or_else(too_many)?;
    let mut out = [1; 4];
    out[lead..].copy_from_slice(shape);
    Ok(out)
}

/// `Ok` when `fits`, else the error with both shapes.
fn ensure(fits: bool, what: &'static str, left: &[usize], right: &[usize]) -> Result<(), KernelError> {
    super::call::ensure(fits, what, left, right)
}

/// A float parameter.
fn float(call: &Call<'_>, name: &'static str) -> Result<f64, KernelError> {
    call.float(usize::MAX, name)?.ok_or(KernelError::Absent(name))
}

/// An integer parameter.
fn int(call: &Call<'_>, name: &'static str) -> Result<i64, KernelError> {
    call.int(usize::MAX, name)?.ok_or(KernelError::Absent(name))
}

/// An integer parameter, 0 if absent.
fn or_zero(call: &Call<'_>, name: &'static str) -> Result<i64, KernelError> {
    Ok(call.int(usize::MAX, name)?.unwrap_or(0))
}

/// Whether there is a tensor operand at a position.
fn is_given(call: &Call<'_>, position: usize) -> bool {
    matches!(call.get(position, ""), Some(Arg::Tensor(_)))
}

/// A result with the shape of the operand.
fn result_like(x: &Tensor<'_>, values: Vec<f64>) -> Vec<Tensor<'static>> {
    vec![Tensor::of(x.shape.clone(), values)]
}

/// Calls `at` with every index of four axes, in row-major order.
fn for_each(shape: [usize; 4], mut at: impl FnMut([usize; 4])) {
    for i in 0..shape[0] {
        for j in 0..shape[1] {
            for k in 0..shape[2] {
                for l in 0..shape[3] {
                    at([i, j, k, l]);
                }
            }
        }
    }
}

/// The offset of an index in dense values.
fn offset(shape: [usize; 4], at: [usize; 4]) -> usize {
    contiguous_strides(&shape).iter().zip(at).map(|(stride, i)| stride * i).sum()
}

/// Repeats values along each axis until they fill `to`.
fn repeated<T: Copy>(values: &[T], from: [usize; 4], to: [usize; 4]) -> Result<Vec<T>, KernelError> {
    let fits = from.iter().zip(to).all(|(&from, to)| if from == 0 { to == 0 } else { to.is_multiple_of(from) });
    ensure(fits, "a tensor to be repeated", &from, &to)?;
    if from == to {
        return Ok(values.to_vec());
    }
    let strides = contiguous_strides(&from);
    let mut out = Vec::with_capacity(to.iter().product());
    for_each(to, |at| out.push(values[(0..4).map(|axis| at[axis] % from[axis] * strides[axis]).sum::<usize>()]));
    Ok(out)
}
