//! Lists the kernels: the function that computes each operation of aten or ggml from its operands, in f64 and i64.

mod attention;
mod binary;
mod call;
mod compare;
mod convolution;
mod create;
mod fourier;
pub(crate) mod ggml;
mod grouped;
mod index;
mod indexing;
mod matmul;
mod norm;
mod order;
mod reduce;
mod resize;
mod rows;
mod scan;
mod scatter;
mod select;
mod shape;
mod solve;
mod special;
mod unary;
mod window;

pub(crate) use call::{Arg, Call, Kernel};

/// The supported operations of PyTorch's aten, without overload and without the `_` of in-place variants; of other namespaces with their prefix.
const KERNELS: &[(&str, Kernel)] = &[
    // Functions of one number.
    ("neg", unary::neg),
    ("abs", unary::abs),
    ("sign", unary::sign),
    ("sgn", unary::sign),
    ("square", unary::square),
    ("floor", unary::floor),
    ("ceil", unary::ceil),
    ("trunc", unary::trunc),
    ("round", unary::round),
    ("frac", unary::frac),
    ("sqrt", unary::sqrt),
    ("rsqrt", unary::rsqrt),
    ("reciprocal", unary::reciprocal),
    ("exp", unary::exp),
    ("exp2", unary::exp2),
    ("expm1", unary::expm1),
    ("log", unary::log),
    ("log2", unary::log2),
    ("log10", unary::log10),
    ("log1p", unary::log1p),
    ("cos", unary::cos),
    ("sin", unary::sin),
    ("tan", unary::tan),
    ("tanh", unary::tanh),
    ("acos", unary::acos),
    ("asin", unary::asin),
    ("atan", unary::atan),
    ("sinh", unary::sinh),
    ("cosh", unary::cosh),
    ("acosh", unary::acosh),
    ("asinh", unary::asinh),
    ("atanh", unary::atanh),
    ("erf", unary::erf),
    ("erfinv", unary::erfinv),
    ("sigmoid", unary::sigmoid),
    ("log_sigmoid", unary::log_sigmoid),
    ("silu", unary::silu),
    ("relu", unary::relu),
    ("relu6", unary::relu6),
    ("gelu", unary::gelu),
    ("softplus", unary::softplus),
    ("hardtanh", unary::hardtanh),
    ("hardswish", unary::hardswish),
    ("hardsigmoid", unary::hardsigmoid),
    ("leaky_relu", unary::leaky_relu),
    ("elu", unary::elu),
    ("selu", unary::selu),
    ("celu", unary::celu),
    ("mish", unary::mish),
    ("conj", unary::conj),
    ("logical_not", unary::logical_not),
    ("bitwise_not", unary::bitwise_not),
    ("isnan", unary::isnan),
    ("isinf", unary::isinf),
    ("isfinite", unary::isfinite),
    ("nan_to_num", unary::nan_to_num),
    // Functions of two or three numbers, broadcast.
    ("add", binary::add),
    ("sub", binary::sub),
    ("subtract", binary::sub),
    ("rsub", binary::rsub),
    ("mul", binary::mul),
    ("multiply", binary::mul),
    ("div", binary::div),
    ("divide", binary::div),
    ("true_divide", binary::div),
    ("floor_divide", binary::floor_divide),
    ("remainder", binary::remainder),
    ("fmod", binary::fmod),
    ("pow", binary::pow),
    ("atan2", binary::atan2),
    ("maximum", binary::maximum),
    ("minimum", binary::minimum),
    ("clamp", binary::clamp),
    ("clip", binary::clamp),
    ("clamp_min", binary::clamp_min),
    ("clamp_max", binary::clamp_max),
    ("lerp", binary::lerp),
    ("addcmul", binary::addcmul),
    ("addcdiv", binary::addcdiv),
    ("logaddexp", binary::logaddexp),
    ("polar", binary::polar),
    ("outer", binary::outer),
    ("eq", compare::eq),
    ("ne", compare::ne),
    ("not_equal", compare::ne),
    ("lt", compare::lt),
    ("less", compare::lt),
    ("le", compare::le),
    ("less_equal", compare::le),
    ("gt", compare::gt),
    ("greater", compare::gt),
    ("ge", compare::ge),
    ("greater_equal", compare::ge),
    ("equal", compare::equal),
    ("isin", compare::isin),
    ("bitwise_and", compare::bitwise_and),
    ("bitwise_or", compare::bitwise_or),
    ("bitwise_xor", compare::bitwise_xor),
    ("__and__", compare::bitwise_and),
    ("__or__", compare::bitwise_or),
    ("__xor__", compare::bitwise_xor),
    ("__iand__", compare::bitwise_and),
    ("__ior__", compare::bitwise_or),
    ("logical_and", compare::logical_and),
    ("logical_or", compare::logical_or),
    ("logical_xor", compare::logical_xor),
    ("where", compare::where_),
    ("masked_fill", compare::masked_fill),
    // Reductions and other operations over axes.
    ("sum", reduce::sum),
    ("mean", reduce::mean),
    ("prod", reduce::prod),
    ("var", reduce::var),
    ("std", reduce::std),
    ("var_mean", reduce::var_mean),
    ("std_mean", reduce::std_mean),
    ("amax", reduce::amax),
    ("amin", reduce::amin),
    ("max", reduce::max),
    ("min", reduce::min),
    ("argmax", reduce::argmax),
    ("argmin", reduce::argmin),
    ("any", reduce::any),
    ("all", reduce::all),
    ("_is_all_true", reduce::all),
    ("logsumexp", reduce::logsumexp),
    ("linalg_vector_norm", reduce::vector_norm),
    ("norm", reduce::vector_norm),
    ("softmax", scan::softmax),
    ("_softmax", scan::softmax),
    ("log_softmax", scan::log_softmax),
    ("_log_softmax", scan::log_softmax),
    ("cumsum", scan::cumsum),
    ("cumprod", scan::cumprod),
    ("diff", scan::diff),
    ("glu", scan::glu),
    ("layer_norm", norm::layer_norm),
    ("native_layer_norm", norm::layer_norm),
    ("rms_norm", norm::rms_norm),
    ("_fused_rms_norm", norm::rms_norm),
    ("group_norm", norm::group_norm),
    ("batch_norm", norm::batch_norm),
    ("native_batch_norm", norm::native_batch_norm),
    ("_native_batch_norm_legit_no_training", norm::batch_norm_no_training),
    ("topk", order::topk),
    ("sort", order::sort),
    ("argsort", order::argsort),
    // Products.
    ("linear", matmul::linear),
    ("matmul", matmul::matmul),
    ("bmm", matmul::matmul),
    ("mm", matmul::matmul),
    ("mv", matmul::matmul),
    ("dot", matmul::matmul),
    ("addmm", matmul::addmm),
    ("baddbmm", matmul::addmm),
    ("_grouped_mm", grouped::grouped_mm),
    ("transformers.grouped_mm_fallback", grouped::grouped_mm),
    ("histc", grouped::histc),
    ("bincount", grouped::bincount),
    ("linalg_solve_triangular", solve::solve_triangular),
    ("conv1d", convolution::conv1d),
    ("conv2d", convolution::conv2d),
    ("conv3d", convolution::conv3d),
    ("avg_pool2d", window::avg_pool2d),
    ("max_pool2d", window::max_pool2d),
    ("max_pool2d_with_indices", window::max_pool2d),
    ("adaptive_avg_pool1d", window::adaptive_avg_pool1d),
    ("adaptive_avg_pool2d", window::adaptive_avg_pool2d),
    ("_adaptive_avg_pool2d", window::adaptive_avg_pool2d),
    ("im2col", window::im2col),
    ("upsample_nearest2d", resize::nearest),
    ("upsample_bilinear2d", resize::bilinear),
    ("upsample_bicubic2d", resize::bicubic),
    ("fft_fft", fourier::fft),
    ("fft_ifft", fourier::ifft),
    ("fft_fftn", fourier::fftn),
    ("fft_rfft", fourier::rfft),
    ("fft_irfft", fourier::irfft),
    ("scaled_dot_product_attention", attention::attention),
    ("_scaled_dot_product_flash_attention_for_cpu", attention::flash_attention),
    // Indexing.
    ("embedding", indexing::embedding),
    ("index_select", indexing::index_select),
    ("gather", indexing::gather),
    ("take_along_dim", indexing::gather),
    ("index", index::index),
    ("nonzero", index::nonzero),
    ("index_put", index::index_put),
    ("masked_scatter", index::masked_scatter),
    ("index_add", scatter::index_add),
    ("index_copy", scatter::index_copy),
    ("index_fill", scatter::index_fill),
    ("scatter", scatter::scatter),
    ("scatter_add", scatter::scatter_add),
    ("scatter_reduce", scatter::scatter_reduce),
    ("fill_diagonal", scatter::fill_diagonal),
    // Copies and reordering.
    ("clone", shape::unchanged),
    ("contiguous", shape::unchanged),
    ("to", shape::unchanged),
    ("_to_copy", shape::unchanged),
    ("type_as", shape::unchanged),
    ("detach", shape::unchanged),
    ("alias", shape::unchanged),
    ("lift_fresh", shape::unchanged),
    ("positive", shape::unchanged),
    ("dropout", shape::dropout),
    ("copy", shape::copy),
    ("reshape", shape::reshape),
    ("view", shape::reshape),
    ("_unsafe_view", shape::reshape),
    ("flatten", shape::reshape),
    ("unflatten", shape::reshape),
    ("squeeze", shape::reshape),
    ("unsqueeze", shape::reshape),
    ("expand", shape::expand),
    ("cat", shape::cat),
    ("concat", shape::cat),
    ("concatenate", shape::cat),
    ("stack", shape::stack),
    ("pad", shape::pad),
    ("constant_pad_nd", shape::pad),
    ("repeat", shape::repeat),
    ("tile", shape::repeat),
    ("repeat_interleave", shape::repeat_interleave),
    ("roll", shape::roll),
    ("flip", shape::flip),
    ("tril", shape::tril),
    ("triu", shape::triu),
    ("item", shape::unchanged),
    ("_local_scalar_dense", shape::unchanged),
    ("tolist", shape::unchanged),
    ("is_nonzero", shape::is_nonzero),
    ("size", create::size),
    // Creation.
    ("arange", create::arange),
    ("linspace", create::linspace),
    ("eye", create::eye),
    ("one_hot", create::one_hot),
    ("zeros", create::zeros),
    ("zeros_like", create::zeros),
    ("new_zeros", create::zeros),
    ("zero", create::zeros),
    ("empty", create::zeros),
    ("empty_like", create::zeros),
    ("new_empty", create::zeros),
    ("empty_strided", create::zeros),
    ("new_empty_strided", create::zeros),
    ("ones", create::ones),
    ("ones_like", create::ones),
    ("new_ones", create::ones),
    ("full", create::full),
    ("full_like", create::full),
    ("new_full", create::full_new),
    ("scalar_tensor", create::scalar_tensor),
    ("fill", create::full),
];

/// Splits the name of an operation from its overload: `add` and `Tensor` of `add.Tensor`.
pub(crate) fn base_and_overload(name: &str) -> (&str, &str) {
    name.split_once('.').unwrap_or((name, ""))
}

/// The kernel of an operation: ggml's by full name, aten's by the name without overload, or also without the `_` of the in-place variant.
pub(crate) fn find(name: &str) -> Option<Kernel> {
    let (base, _) = base_and_overload(name);
    let known = |table: &[(&str, Kernel)], name: &str| {
        table.iter().find(|(known, _)| *known == name).map(|(_, kernel)| *kernel)
    };
    known(ggml::KERNELS, name)
        .or_else(|| known(KERNELS, name))
        .or_else(|| known(KERNELS, base))
        .or_else(|| known(KERNELS, base.strip_suffix('_')?))
}

/// The names of all supported operations.
pub fn kernel_names() -> impl Iterator<Item = &'static str> {
    KERNELS.iter().chain(ggml::KERNELS).map(|(name, _)| *name)
}
