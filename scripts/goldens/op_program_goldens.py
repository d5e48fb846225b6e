"""Goldens of single operations for crates/program: what PyTorch gives, in the encoding of program.json. New groups come last: all draw from one generator.

    python scripts/goldens/op_program_goldens.py crates/program/tests/goldens

A case is an operation with its operands ("o", "i", "a", "w" as in program.json), "values" with the canonical views of its buffers, "data" with their
elements, and "y" with dtype, shape and elements of each result, or "x" with the scalar that it gives.
"""

import json
import math
import sys
from pathlib import Path

import torch

A = torch.ops.aten
NAMES = {torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32",
         torch.int16: "i16", torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128"}
INF, NAN = math.inf, math.nan


def number(x):
    """A scalar as JSON has it."""
    if isinstance(x, complex):
        return [number(x.real), number(x.imag)]
    if isinstance(x, float) and not math.isfinite(x):
        return "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"
    return x


def elements(t):
    t = t.detach().reshape(-1)
    if t.dtype.is_complex:
        return [part for x in t.tolist() for part in number(x)]
    return [number(x) for x in t.tolist()]


class Case:
    def __init__(self):
        self.values, self.data, self.known = [], [], {}

    def operand(self, x):
        if isinstance(x, torch.Tensor):
            dtype, storage = NAMES[x.dtype], x.untyped_storage()
            key = storage.data_ptr() if storage.nbytes() else id(x)
            if key not in self.known:
                whole = x if x.is_contiguous() and not x.storage_offset() else torch.empty(0, dtype=x.dtype).set_(storage)
                self.known[key] = (len(self.values), list(whole.shape))
                self.values.append([dtype, list(whole.shape)])
                self.data.append(elements(whole))
            buffer, shape = self.known[key]
            if list(x.shape) == shape and x.is_contiguous():
                return buffer
            return {"v": [buffer, list(x.shape), list(x.stride()), x.storage_offset()]}
        if isinstance(x, torch.dtype):
            return {"t": NAMES[x]}
        if x is None:
            return None
        if isinstance(x, (list, tuple)):
            return [self.operand(y) for y in x]
        return {"c": number(x)}


def case(op, *args, w=None, **kwargs):
    """Runs an overload, named as in program.json."""
    name, _, overload = op.partition(".")
    call = getattr(getattr(A, name), overload or "default")
    made = Case()
    record = {"o": op, "i": [made.operand(x) for x in args]}
    if kwargs:
        record["a"] = {key: made.operand(x) for key, x in kwargs.items()}
    if w is not None:
        record["w"] = w
    record["values"], record["data"] = made.values, made.data
    out = call(*args, **kwargs)
    if isinstance(out, (bool, int, float)):
        record["x"] = number(out)
        return record
    out = list(out) if isinstance(out, (list, tuple)) else [out]
    record["y"] = [None if y is None else [NAMES[y.dtype], list(y.shape), elements(y)] for y in out]
    return record


GENERATOR = torch.Generator().manual_seed(7)


def f(*shape, scale=1.0):
    return (torch.randn(shape, generator=GENERATOR, dtype=torch.float64) * scale).mul(100).round().div(100)


def i(*shape, high=5, low=0):
    return torch.randint(low, high, shape, generator=GENERATOR)


def b(*shape):
    return torch.randint(0, 2, shape, generator=GENERATOR).bool()


def t(x, dtype=torch.float64):
    return torch.tensor(x, dtype=dtype)


def cx(*shape):
    return torch.complex(f(*shape), f(*shape))


def unary():
    x = t([-3.0, -0.5, -0.0, 0.25, 1.5, 2.5, 25.0, NAN, INF, -INF])
    for op in ("neg abs sign sgn square floor ceil trunc round frac exp exp2 expm1 cos sin tan tanh erf sigmoid log_sigmoid silu relu relu6 gelu softplus "
               "hardtanh hardswish hardsigmoid leaky_relu elu selu celu mish logical_not isnan isinf isfinite nan_to_num reciprocal").split():
        # PyTorch gives NaN for a few of these at an infinity, where the limit is a number.
        yield case(op, x[:7] if op in ("frac", "silu", "gelu", "mish", "hardswish", "celu", "elu", "selu", "tan", "log_sigmoid") else x)
    y = t([0.0, 1e-3, 0.5, 1.0, 7.0, INF])
    for op in "sqrt rsqrt log log2 log10 log1p".split():
        yield case(op, y)
    yield case("erfinv", t([-1.0, -0.999, -0.3, 0.0, 1e-9, 0.7, 1.0, 1.5]))
    yield case("gelu", x[:7], approximate="tanh")
    yield case("softplus", x[:7], 2.0, 5.0)
    yield case("hardtanh", x, -2.0, 2.0)
    yield case("leaky_relu", x, 0.2)
    yield case("elu", x[:7], 0.5, 2.0, 0.3)
    yield case("celu", x[:7], 0.5)
    yield case("round.decimals", t([1.234, -1.235, 0.5]), decimals=1)
    yield case("nan_to_num", x, 1.0, 2.0, -2.0)
    for op in "neg abs sign square floor relu bitwise_not logical_not".split():
        yield case(op, t([-3, 0, 4], torch.int64))
    yield case("bitwise_not", t([True, False], torch.bool))
    yield case("neg", t([3, 200], torch.uint8))
    yield case("exp", t([0, 1, 2], torch.int64))
    for op in "neg abs exp".split():
        yield case(op, cx(3))
    yield case("sin", f(3, 2).T)
    yield case("relu_", f(2, 3), w=[0])
    yield case("clamp_", f(2, 3), -0.5, 0.5, w=[0])
    yield case("cos", f(0, 3))


def binary():
    x, y = f(2, 3), f(3)
    for op in "add.Tensor sub.Tensor mul.Tensor div.Tensor atan2 maximum minimum fmod.Tensor remainder.Tensor floor_divide logaddexp".split():
        yield case(op, x, y)
        yield case(op, f(2, 1, 3), f(4, 1))
    yield case("add.Tensor", x, y, alpha=0.5)
    yield case("sub.Tensor", x, y, alpha=2)
    yield case("add.Tensor", x, 2.5)
    yield case("add.Tensor", f(0, 3), y)
    yield case("add.Tensor", f(3, 2).T, f(2, 1).expand(2, 3))
    yield case("rsub.Scalar", x, 1)
    yield case("rsub.Scalar", x, 1, 0.5)
    yield case("multiply.Tensor", x, y)
    yield case("add_.Tensor", f(2, 3), y, w=[0])
    yield case("mul_.Tensor", f(6, 3)[1::2], y, w=[0])
    yield case("div_.Scalar", f(2, 3), 3, w=[0])
    n, m = t([-7, -2, 0, 5, 8], torch.int64), t([2, -3, 4, -2, 3], torch.int64)
    for op in "add.Tensor sub.Tensor mul.Tensor div.Tensor fmod.Tensor remainder.Tensor floor_divide maximum minimum".split():
        yield case(op, n, m)
    big = t([2**53 + 1, -(2**62) - 1], torch.int64)
    yield case("add.Tensor", big, 1)
    yield case("floor_divide", big, t(3, torch.int64))
    yield case("mul.Tensor", t([100, 3], torch.int8), t([2, 2], torch.int8))
    for mode in ("floor", "trunc", None):
        yield case("div.Tensor_mode", n, m, rounding_mode=mode)
        yield case("div.Tensor_mode", t([-7.5, 7.5, 1.0, 0.3]), t([2.0, -2.0, 0.1, 0.1]), rounding_mode=mode)
    yield case("div.Tensor_mode", t([1.0, -1.0, 0.0]), t([0.0, 0.0, 0.0]), rounding_mode="floor")
    for x, y in ((n, 3), (t([-7.5, 7.5]), -2.0)):
        yield case("remainder.Scalar", x, y)
    x, y = f(2, 3), f(3)
    for exponent in (2, 3, 0.5, -1, 1.7, 0):
        yield case("pow.Tensor_Scalar", t([0.5, 2.0, 3.25]), exponent)
    yield case("pow.Tensor_Scalar", n, 3)
    yield case("pow.Scalar", 10000.0, f(3))
    yield case("pow.Tensor_Tensor", t([2.0, 3.0]), f(2, 2))
    for op in "mul.Tensor add.Tensor".split():
        yield case(op, b(4), b(4))
    yield case("mul.Tensor", b(4), 2.5)
    yield case("mul.Tensor", cx(2, 2), cx(2))
    yield case("add.Tensor", cx(2, 2), f(2))
    yield case("sub.Tensor", cx(2), cx(2))
    yield case("div.Tensor", cx(2), cx(2))
    for low, high in ((-0.5, None), (None, 0.5)):
        yield case("clamp", x, low, high)
    yield case("clamp.Tensor", x, y, y + 1)
    yield case("clamp", n, 0, 5)
    yield case("clip", x, -1, 1)
    yield case("clamp_min", x, 0.0)
    yield case("clamp_max", x, 0.0)
    yield case("maximum", t([NAN, 1.0]), t([1.0, NAN]))
    yield case("lerp.Scalar", x, y, 0.25)
    yield case("lerp.Tensor", x, y, f(3))
    yield case("addcmul", x, y, y, value=0.5)
    yield case("addcdiv", x, y, y)
    yield case("polar", f(3), f(3))
    yield case("outer", f(2), f(3))
    yield case("logaddexp", t([-INF, 1.0]), t([-INF, 2.0]))


def compare():
    x, y = t([1.0, 2.0, NAN, -INF]), t([1.0, 1.0, NAN, 3.0])
    for op in "eq ne lt le gt ge less less_equal greater greater_equal not_equal".split():
        yield case(op + ".Tensor", x, y)
        yield case(op + ".Scalar", t([1, 2, 3], torch.int64), 2)
    yield case("le.Tensor", i(3, 1), i(1, 4))
    yield case("eq.Tensor", cx(2), cx(2))
    yield case("equal", x[:2], x[:2])
    yield case("equal", x[:2], y[:2])
    yield case("isin.Tensor_Tensor", i(5), t([1, 3], torch.int64))
    yield case("isin.Tensor_Tensor", i(5), t([1, 3], torch.int64), invert=True)
    yield case("isin.Tensor_Scalar", t([1.0, 2.0, NAN]), 2.0)
    for op in "bitwise_and bitwise_or bitwise_xor __and__ __or__ __xor__".split():
        yield case(op + ".Tensor", b(4), b(4))
        yield case(op + ".Tensor", i(4, high=100), i(4, high=100))
    for op in "logical_and logical_or logical_xor".split():
        yield case(op, f(4).round(), b(4))
    yield case("__iand__.Tensor", b(4), b(4), w=[0])
    yield case("where.self", b(2, 3), f(3), f(2, 1))
    yield case("where.ScalarOther", b(2, 3), f(3), -INF)
    yield case("where.ScalarSelf", b(2, 3), 0.0, f(3))
    yield case("where.Scalar", b(3), 1, 0)
    yield case("where.self", b(3), i(3), f(3))
    yield case("where", b(2, 3))
    yield case("where", i(4, high=2))
    yield case("masked_fill.Scalar", f(2, 3), b(3), -INF)
    yield case("masked_fill.Tensor", f(2, 3), b(2, 1), t(7.0))
    yield case("masked_fill_.Scalar", f(2, 3), b(3), 1.5, w=[0])


def reduce():
    x = f(2, 3, 4)
    for op in "sum mean".split():
        yield case(op, x)
        for dims, keep in (([-1], True), ([0, 2], False), ([1], False)):
            yield case(op + (".dim_IntList" if op == "sum" else ".dim"), x, dims, keep)
    yield case("sum.dim_IntList", x, None, True)
    yield case("sum", i(3, 2))
    yield case("sum", b(5))
    yield case("sum.dim_IntList", cx(2, 3), [0])
    yield case("sum.dim_IntList", f(0, 3), [0])
    yield case("mean.dim", f(2, 0), [1])
    yield case("sum.dim_IntList", i(2, 3), [-1], dtype=torch.float64)
    yield case("prod", f(4))
    yield case("prod.dim_int", i(2, 3, low=1), 1, True)
    for op in "var std".split():
        yield case(op, x)
        yield case(op, x, False)
        yield case(op + ".dim", x, [-1], False, True)
        yield case(op + ".dim", x, [0, 1])
        yield case(op + ".correction", x, [1], correction=0, keepdim=True)
        yield case(op + ".correction", x, [1])
    yield case("var_mean.correction", x, [1], correction=0)
    yield case("std_mean", x)
    for op in "amax amin".split():
        yield case(op, x, [-1], True)
        yield case(op, x)
    for op in "max min".split():
        yield case(op, x)
        yield case(op + ".dim", x, 1)
        yield case(op + ".dim", t([[1.0, NAN, 2.0], [3.0, 3.0, -1.0]]), -1, True)
        yield case(op + ".other", x, f(4))
        yield case(op, i(4))
    for op in "argmax argmin".split():
        yield case(op, x)
        yield case(op, x, -1, True)
        yield case(op, t([[2, 2, 1], [0, 5, 0]], torch.int64), 1)
    for op in "any all".split():
        yield case(op, b(2, 3))
        yield case(op + ".dim", b(2, 3), -1, True)
        yield case(op + ".dims", f(2, 3, 2).round(), [0, 2])
        yield case(op, b(0))
    yield case("_is_all_true", t([True, True], torch.bool))
    for y in (x, t([[-INF, -INF], [1.0, INF]])):
        yield case("logsumexp", y, [1], True)
    for p in (2, 1, 0, 3, INF, -INF):
        yield case("linalg_vector_norm", x, p, [1], True)
    yield case("linalg_vector_norm", x)
    yield case("norm.ScalarOpt_dim", x, 2, [-1], True)
    yield case("norm.Scalar", x, 2)


def scan():
    x = f(2, 3, 4)
    masked = t([[-INF, -INF, -INF], [0.5, -INF, 1.0]])
    for op in "softmax log_softmax".split():
        yield case(op + ".int", x, -1)
        yield case(op + ".int", x, 1)
        yield case(op + ".int", masked, 1)
        yield case(op + ".int", x.float(), -1, torch.float64)
        yield case("_" + op, x, 0, False)
        yield case(op + ".int", t(2.0), 0)
    for op in "cumsum cumprod".split():
        yield case(op, x, 1)
        yield case(op, i(2, 3), -1)
        yield case(op, b(4), 0)
        yield case(op, f(0, 2), 0)
    yield case("cumsum", i(3), 0, dtype=torch.float64)
    yield case("diff", f(2, 4))
    yield case("diff", f(2, 4), 2, -1)
    yield case("diff", i(4, 2), 1, 0)
    yield case("diff", f(2, 3), 1, -1, f(2, 1), f(2, 2))
    yield case("glu", f(2, 4))
    yield case("glu", f(4, 3), 0)


def norm():
    x = f(2, 3, 4)
    yield case("layer_norm", x, [4])
    yield case("layer_norm", x, [4], f(4), f(4), 1e-3)
    yield case("layer_norm", x, [3, 4], f(3, 4))
    yield case("native_layer_norm", x, [4], f(4), f(4), 1e-5)
    yield case("native_layer_norm", x, [3, 4], None, None, 1e-5)
    yield case("rms_norm", x, [4], f(4), 1e-6)
    yield case("rms_norm", x, [4])
    yield case("group_norm", f(2, 4, 3), 2, f(4), f(4))
    yield case("group_norm", f(2, 4, 2, 2), 4)
    yield case("group_norm", f(2, 4), 2)
    mean, var = f(3), f(3).abs() + 0.1
    yield case("batch_norm", f(2, 3, 4), f(3), f(3), mean, var, False, 0.1, 1e-5, True)
    yield case("batch_norm", f(2, 3), None, None, mean, var, False, 0.1, 1e-3, True)
    yield case("native_batch_norm", f(2, 3, 2), f(3), f(3), mean, var, False, 0.1, 1e-5)
    yield case("_native_batch_norm_legit_no_training", f(2, 3, 2), f(3), f(3), mean, var, 0.1, 1e-5)


def order():
    x = t([[1.0, 3.0, 2.0, -1.0], [0.5, NAN, 7.0, 0.25]])
    yield case("topk", x, 2)
    yield case("topk", x, 3, -1, False)
    yield case("topk", f(4, 2), 2, 0)
    yield case("topk", t([3, 9, 4], torch.int64), 2)
    # Equal values: which are taken is libstdc++'s choice.
    for k, largest, ordered in ((2, True, False), (4, True, True), (6, True, False), (3, False, True)):
        yield case("topk", i(6, 12, high=4).double(), k, -1, largest, ordered)
        yield case("topk", i(5, 40, high=9), k + 15, 1, largest, ordered)
    yield case("sort", x)
    yield case("sort", x, -1, True)
    yield case("sort", f(3, 2), 0)
    yield case("sort.stable", i(8), stable=True, descending=True)
    yield case("sort.stable", i(2, 3), stable=True, dim=0)
    yield case("argsort", x, -1, True)
    yield case("argsort.stable", i(8), stable=True)
    yield case("sort", f(0))


def matmul():
    yield case("linear", f(2, 3, 5), f(4, 5), f(4))
    yield case("linear", f(5), f(4, 5))
    yield case("linear", f(0, 5), f(4, 5), f(4))
    yield case("linear", f(3, 2).T, f(4, 3))
    shapes = (((3, 4), (4, 2)), ((4,), (4,)), ((3, 4), (4,)), ((4,), (4, 2)), ((2, 3, 4), (4, 2)), ((2, 1, 3, 4), (5, 4, 2)))
    for left, right in (*shapes, ((3, 4), (2, 4, 2)), ((2, 3, 4), (4,)), ((4,), (2, 4, 3)), ((1, 1, 4), (2, 4, 1))):
        yield case("matmul", f(*left), f(*right))
    yield case("matmul", f(2, 4, 3).transpose(1, 2), f(2, 2, 4).transpose(1, 2))
    yield case("matmul", f(2, 0), f(0, 3))
    yield case("matmul", i(2, 3), i(3, 2))
    yield case("matmul", cx(2, 3), cx(3, 2))
    yield case("bmm", f(2, 3, 4), f(2, 4, 2))
    yield case("mm", f(3, 20), f(20, 2))
    yield case("mv", f(3, 4), f(4))
    yield case("dot", f(4), f(4))
    yield case("addmm", f(2), f(3, 4), f(4, 2))
    yield case("addmm", f(3, 2), f(3, 4), f(4, 2), beta=0.5, alpha=2)
    yield case("baddbmm", f(2, 3, 2), f(2, 3, 4), f(2, 4, 2), beta=0.5, alpha=2)
    yield case("baddbmm", t([NAN]).expand(2, 3, 2), f(2, 3, 4), f(2, 4, 2), beta=0)


def convolution():
    yield case("conv1d", f(2, 4, 6), f(3, 4, 3), f(3))
    yield case("conv1d", f(1, 4, 6), f(4, 1, 3), f(4), [1], [2], [1], 4)
    yield case("conv1d", f(4, 7), f(2, 2, 2), None, [2], [1], [2], 2)
    yield case("conv1d.padding", f(1, 2, 5), f(2, 2, 4), None, [1], "same")
    yield case("conv1d.padding", f(1, 2, 5), f(2, 2, 2), None, [2], "valid")
    yield case("conv2d", f(2, 3, 4, 5), f(2, 3, 2, 2), f(2))
    yield case("conv2d", f(1, 2, 5, 5), f(4, 1, 3, 2), None, [2, 1], [1, 0], [1, 2], 2)
    yield case("conv2d", f(1, 3, 4, 4), f(2, 3, 2, 2), f(2), [2, 2])
    yield case("conv2d.padding", f(1, 1, 4, 4), f(1, 1, 3, 2), None, [1, 1], "same")
    yield case("conv2d", f(2, 4, 4), f(1, 2, 3, 3), f(1))
    yield case("avg_pool2d", f(1, 2, 4, 4), [2, 2])
    yield case("avg_pool2d", f(2, 5, 5), [3, 2], [2, 1], [1, 1])
    yield case("avg_pool2d", f(1, 1, 4, 4), [3], [1], [1], False, False)
    yield case("avg_pool2d", f(1, 1, 4, 4), [2, 2], [2, 2], [0, 0], False, True, 3)


def attention():
    q, k, v = f(1, 2, 3, 4), f(1, 2, 5, 4), f(1, 2, 5, 4)
    op = "scaled_dot_product_attention"
    yield case(op, q, k, v)
    yield case(op, q, k, v, f(3, 5))
    yield case(op, q, k, v, b(1, 1, 3, 5))
    yield case(op, q, k, v, t([[False] * 5, [True] * 5, [True] * 5], torch.bool))
    yield case(op, q, k, v, None, 0.0, True, scale=0.3)
    yield case(op, f(2, 4, 3, 2), f(2, 2, 5, 2), f(2, 2, 5, 2), enable_gqa=True)
    op = "_scaled_dot_product_flash_attention_for_cpu"
    yield case(op, q, k, v)
    yield case(op, q, f(1, 2, 3, 4), f(1, 2, 3, 4), 0.0, True)
    yield case(op, q, k, v, attn_mask=f(1, 1, 3, 5), scale=0.5)


def index():
    x = f(3, 4, 2)
    yield case("embedding", f(5, 3), i(2, 2))
    yield case("embedding", f(5, 3), i(2), 0)
    yield case("embedding", f(5, 3), i(0))
    yield case("index_select", x, 1, t([3, 0, 3], torch.int64))
    yield case("index_select", x, -1, t([1], torch.int64))
    yield case("gather", x, 1, i(3, 2, 2, high=4))
    yield case("gather", f(2, 3), -1, i(2, 5, high=3))
    yield case("take_along_dim", x, i(3, 4, 2, high=3), 0)
    rows, columns = t([0, -1], torch.int64), t([[1], [2]], torch.int64)
    for indices in ([rows], [None, rows], [rows, columns], [rows, None, t([0, 1], torch.int64)], [None, None, t([1], torch.int64)], [b(3)], [b(3, 4)],
                    [None, b(4)], [rows, b(4) | True], [None, columns, rows % 2]):
        if len(indices) == 2 and indices[1] is not None and indices[1].dtype == torch.bool and indices[0] is not None:
            indices = [t([0, 1, 2, 0], torch.int64), indices[1]]
        yield case("index.Tensor", x, indices)
    yield case("index.Tensor", i(4), [i(2, 3, high=4)])
    yield case("index.Tensor", f(3), [t([False] * 3, torch.bool)])
    yield case("nonzero", b(2, 3))
    yield case("nonzero", f(4).round())
    yield case("index_put", x, [rows, rows], f(2, 2))
    yield case("index_put", x, [t([0, 0, 1], torch.int64)], f(3, 1, 1), True)
    yield case("index_put", x, [b(3)], t(5.0))
    yield case("index_put_", f(3, 4), [None, rows], f(3, 2), w=[0])
    yield case("masked_scatter", f(2, 3), t([True, False, True], torch.bool), f(4))
    yield case("index_add", x, 0, t([2, 0], torch.int64), f(2, 4, 2))
    yield case("index_add", f(2, 4), 1, t([1, 1, 3], torch.int64), f(2, 3), alpha=0.5)
    yield case("index_add_", f(4, 2), 0, t([1, 1, 3], torch.int64), f(3, 2), w=[0])
    yield case("index_copy", f(4, 2), 0, t([3, 1], torch.int64), f(2, 2))
    yield case("index_fill.int_Scalar", f(3, 4), 1, t([0, 2], torch.int64), 9.0)
    yield case("scatter.value", f(2, 4), 1, i(2, 2, high=4), 5.0)
    yield case("scatter.src", f(2, 4), -1, t([[0, 3], [2, 1]], torch.int64), f(2, 3))
    yield case("scatter.value_reduce", f(2, 3), 1, t([[0], [2]], torch.int64), 2.0, reduce="multiply")
    yield case("scatter.reduce", f(2, 3), 0, t([[0, 0, 1]], torch.int64), f(1, 3), reduce="add")
    yield case("scatter_add", f(3, 3), 0, t([[0, 1, 2], [0, 0, 0]], torch.int64), f(2, 3))
    yield case("scatter_.src", i(2, 3), 1, t([[0], [2]], torch.int64), i(2, 1), w=[0])


def shape():
    x = f(2, 3)
    for op in "clone contiguous detach alias lift_fresh positive".split():
        yield case(op, f(3, 2).T)
    for dtype in (torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool):
        yield case("_to_copy", t([0.0, 1.1, 100.7, 2.00390625, 1e-8]), dtype=dtype)
    yield from (case("to.dtype", t([70000.0, -1.1, 1e-8]), torch.float16), case("to.dtype", i(3), torch.float64))
    yield from (case("to.dtype", f(3), torch.complex128), case("type_as", i(3), f(1)), case("dropout", x, 0.5, False), case("copy", f(2, 3), f(3)))
    yield from (case("copy_", f(4, 3)[::2], i(3), w=[0]), case("reshape", f(3, 4).T, [2, -1]), case("flatten.using_ints", f(2, 3).T))
    yield from (case("cat", [x, f(2, 2)], -1), case("cat", [x, f(0), f(1, 3)]), case("cat", [i(2), f(1)]), case("concat", [cx(2), f(1)]))
    yield from (case("concatenate", [x, x], 1), case("stack", [x, f(2, 3)], -1), case("stack", [t(1.0), t(2.0)]), case("pad", x, [1, 2]))
    yield from (case("pad", x, [1, -1, 0, 1], "constant", 7.0), case("pad", b(2), [1, 0]))
    for mode in ("reflect", "replicate", "circular"):
        yield case("pad", f(1, 2, 4), [2, 1], mode)
    yield from (case("constant_pad_nd", x, [0, 1], 3), case("repeat", x, [2, 1, 2]), case("repeat", x, [0, 1]), case("tile", x, [2]))
    yield from (case("repeat_interleave.self_int", x, 2, 0), case("repeat_interleave.self_int", x, 2))
    yield from (case("repeat_interleave.self_Tensor", x, t([2, 0, 1], torch.int64), 1), case("repeat_interleave.Tensor", t([2, 0, 3], torch.int64)))
    yield from (case("roll", x, [1], [-1]), case("roll", f(3, 4), [1, -2], [0, 1]), case("roll", x, [2]), case("flip", x, [0, -1]))
    for op in "tril triu".split():
        yield case(op, f(2, 3, 3))
        yield case(op, f(3, 4), 1)
        yield case(op, i(3, 2), -1)
        yield case(op, f(0, 3))
    for op in "item _local_scalar_dense is_nonzero".split():
        yield case(op, t([3], torch.int64))
    yield from (case("item", t(0.5)), case("size.int", x, -1))


def create():
    x = f(2, 3)
    yield from (case("arange", 5), case("arange", 5, dtype=torch.float64), case("arange.start", 2, 6), case("arange.start_step", 7, -1, -2))
    yield from (case("arange.start_step", 0.0, 1.0, 0.3, dtype=torch.float64), case("arange", 0), case("eye", 3))
    yield from (case("eye.m", 2, 3, dtype=torch.int64), case("one_hot", i(2, 3)), case("one_hot", i(3), 6), case("zeros", [2, 3]))
    yield from (case("ones", [2], dtype=torch.int64), case("full", [2, 2], -INF), case("full", [], 2.5, dtype=torch.float64), case("full", [2], True))
    for op in "zeros_like ones_like".split():
        yield case(op, x)
        yield case(op, x, dtype=torch.bool)
    yield case("full_like", x, 3)
    for op, *rest in (("new_zeros", [2]), ("new_ones", [2]), ("new_full", [2], 7.5)):
        yield case(op, x, *rest)
    yield from (case("scalar_tensor", 2.5), case("zero_", f(2), w=[0]), case("fill_.Scalar", f(2, 2), 1.5, w=[0]))
    yield case("fill.Tensor", f(2, 2), t(1.5))


def angles():
    for op in "acos asin atan sinh cosh asinh atanh".split():
        yield case(op, t([-0.9, -0.25, 0.0, 0.5, 0.99]))
    yield case("acosh", t([1.0, 1.5, 7.0]))


def grouped():
    yield case("histc", t([0.0, 0.0, 1.0, 2.0, 3.0, 3.0, 5.0], torch.float32), 4, 0, 3)
    yield case("histc", f(12), 5)
    yield case("histc", f(4) * 0, 3)
    yield case("histc", f(20), 7, -1, 0.5)
    yield case("bincount", t([0, 3, 3, 1], torch.int64))
    yield case("bincount", t([0, 3, 3, 1], torch.int64), f(4), 6)
    ends = t([2, 2, 5, 7], torch.int32)
    yield case("_grouped_mm", f(7, 4).float(), f(4, 8, 4).float().transpose(1, 2), ends)
    yield case("_grouped_mm", f(7, 4).float(), f(4, 4, 8).float(), ends)
    yield case("_grouped_mm", f(3, 4, 4).float(), f(3, 4, 4).float())
    # The same, as transformers has it where PyTorch has it not.
    yield {**case("_grouped_mm", f(7, 4).float(), f(4, 4, 8).float(), ends), "o": "transformers.grouped_mm_fallback"}
    lower = f(2, 3, 3).tril() + 2 * torch.eye(3)
    yield case("linalg_solve_triangular", lower, f(2, 3, 2), upper=False)
    yield case("linalg_solve_triangular", lower.mT, f(3, 2), upper=True)
    yield case("linalg_solve_triangular", lower, f(2, 4, 3), upper=False, left=False)
    yield case("linalg_solve_triangular", lower.mT, f(2, 4, 3), upper=True, left=False)
    yield case("linalg_solve_triangular", f(3, 3), f(3, 3), upper=False, unitriangular=True)


def window():
    yield case("avg_pool2d", f(1, 2, 5, 5), [2, 2], [2, 2], [0, 0], True)
    yield case("avg_pool2d", f(1, 2, 5, 6), [3, 3], [2, 2], [1, 1], True)
    yield case("avg_pool2d", f(1, 2, 6, 6), [3, 3], [2, 2], [1, 1], True, False)
    yield case("max_pool2d", f(1, 2, 5, 5), [3, 3], [2, 2], [1, 1])
    yield case("max_pool2d", f(2, 5, 6), [2, 2], [2, 2], [0, 0], [1, 2], True)
    yield case("max_pool2d_with_indices", f(1, 2, 4, 4), [2, 2])
    yield case("max_pool2d", t([[[1.0, NAN], [0.0, 2.0]]]), [2, 2])
    yield case("adaptive_avg_pool1d", f(1, 2, 7), [3])
    yield case("adaptive_avg_pool2d", f(1, 2, 5, 7), [2, 3])
    yield case("adaptive_avg_pool2d", f(2, 4, 4), [1, 1])
    yield case("_adaptive_avg_pool2d", f(1, 2, 3, 4), [2, 2])
    yield case("im2col", f(1, 2, 4, 5), [2, 3], [1, 1], [0, 1], [1, 2])
    yield case("im2col", f(2, 5, 5), [2, 2], [2, 2], [1, 1], [2, 2])


def resize():
    for op in "upsample_bilinear2d upsample_bicubic2d".split():
        for corners in (False, True):
            yield case(f"{op}.vec", f(1, 2, 3, 4), [5, 7], corners, None)
            yield case(f"{op}.vec", f(1, 1, 5, 4), [2, 3], corners, None)
            yield case(f"{op}.vec", f(1, 1, 3, 3), None, corners, [1.7, 2.0])
            yield case(op, f(1, 1, 3, 3), [1, 6], corners)
    yield case("upsample_nearest2d.vec", f(1, 2, 3, 4), [5, 7], None)
    yield case("upsample_nearest2d.vec", f(1, 1, 3, 3), None, [1.7, 2.0])
    yield case("upsample_nearest2d", f(1, 1, 3, 3), [2, 6])


def fourier():
    yield case("fft_fft", cx(2, 5))
    yield case("fft_fft", f(4, 3), 6, 0, "ortho")
    yield case("fft_ifft", cx(2, 4), 3)
    yield case("fft_fftn", f(2, 3, 4), None, [1, 2])
    yield case("fft_fftn", cx(2, 3), norm="forward")
    for n in (5, 6):
        yield case("fft_rfft", f(2, n))
        yield case("fft_rfft", f(2, 4), n)
        yield case("fft_irfft", cx(2, 4), n, -1, "ortho")
    yield case("fft_irfft", cx(3, 2), None, 0)


def scatter():
    x, index, source = f(4, 3), i(5, 3, high=4), f(5, 3)
    for how in "sum prod mean amax amin".split():
        for include in (True, False):
            yield case("scatter_reduce.two", x, 0, index, source, how, include_self=include)
    yield case("scatter_reduce.two", i(4), 0, i(3, high=4), i(3), "amax")
    yield case("fill_diagonal_", f(3, 4), 7.0, w=[0])
    yield case("fill_diagonal_", f(7, 3), 7.0, True, w=[0])
    yield case("fill_diagonal_", f(3, 3, 3), 7.0, w=[0])


def volumes():
    yield case("conv3d", f(2, 3, 2, 4, 5), f(2, 3, 2, 2, 2), f(2))
    yield case("conv3d", f(3, 2, 4, 4), f(4, 3, 2, 4, 4), None, [2, 4, 4])
    yield case("conv3d", f(1, 2, 3, 5, 4), f(4, 1, 2, 3, 2), f(4), [1, 2, 1], [1, 0, 1], [1, 1, 2], 2)
    yield case("conv3d.padding", f(1, 1, 3, 4, 4), f(1, 1, 3, 3, 2), None, [1, 1, 1], "same")
    yield from (case("linspace", 0.0, 47.0, n, dtype=torch.float64) for n in (0, 1, 2, 5, 8))
    yield case("linspace", 1.5, -2.0, 4, dtype=torch.float64)
    yield case("linspace", 0, 10, 4, dtype=torch.int64)
    yield case("linspace.Tensor_Tensor", t(0.5), t(2.0), 5, dtype=torch.float64)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for group in (unary, binary, compare, reduce, scan, norm, order, matmul, convolution, attention, index, shape, create, angles, grouped, window,
                  resize, fourier, scatter, volumes):
        cases = list(group())
        lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in cases)
        (folder / f"{group.__name__}.json").write_text(f"[\n{lines}\n]\n")
        print(group.__name__, len(cases))


main()
