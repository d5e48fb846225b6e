"""Goldens of ggml's operations for crates/program: what the ggml in llama-cpp-python computes, one operation at a time, as dump_llama_cpp.py
records it.

    python scripts/goldens/ggml_program_goldens.py crates/program/tests/goldens

The cases have the form of op_program_goldens.py's; "within" is how far f32, or a table of f16, may be from the exact value, relatively.
"""

import ctypes
import json
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import scripts  # its firstdiff is the tree's
import llama_cpp
from firstdiff.dump import llamacpp as recorder

LIBRARIES = Path(llama_cpp.__file__).parent / "lib"
# Sums of a few f32; and tables by an argument of 11 bits.
F32_ROUNDING, F16_TABLE = 4e-6, 2e-3
TYPES = {np.dtype("f4"): 0, np.dtype("f2"): 1, np.dtype("i4"): 26, np.dtype("i8"): 27}
NORMAL, NEOX, MROPE, VISION, IMROPE = 0, 2, 8, 24, 40
RANDOM = np.random.default_rng(7)


class Parameters(ctypes.Structure):
    """ggml_init_params."""

    _fields_ = [("size", ctypes.c_size_t), ("buffer", ctypes.c_void_p), ("no_alloc", ctypes.c_bool)]


class Ggml(recorder.Ggml):
    """Tensors in memory of ggml's own, that no backend has allocated."""

    def __init__(self):
        super().__init__(LIBRARIES)
        self.base = ctypes.CDLL(str(next(LIBRARIES.glob("*ggml-base.so"))))
        self.cpu = ctypes.CDLL(str(next(LIBRARIES.glob("*ggml-cpu*.so"))))
        self.base.ggml_init.restype, self.base.ggml_init.argtypes = ctypes.c_void_p, [Parameters]
        self.cpu.ggml_cpu_init()
        self.context = ctypes.c_void_p(self.base.ggml_init(Parameters(64 << 20, None, False)))

    def stored(self, address):
        tensor = recorder.Tensor.from_address(address)
        buffer = (ctypes.c_char * self.ggml_nbytes(address)).from_address(tensor.data)
        values = np.ndarray(tuple(tensor.ne)[::-1], recorder.NUMPY[recorder.DTYPES[tensor.type]], buffer, 0, tuple(tensor.nb)[::-1])
        return values.copy()

    def call(self, name, *args):
        """A function of ggml that makes a tensor. Whole numbers go as 64 bits, which is right for fewer as well."""
        def argument(value):
            if isinstance(value, Tensor):
                return ctypes.c_void_p(value.address)
            if isinstance(value, float):
                return ctypes.c_float(value)
            if isinstance(value, list):
                return (ctypes.c_int * len(value))(*value)
            return ctypes.c_void_p(None) if value is None else ctypes.c_int64(value)

        function = getattr(self.base, f"ggml_{name}")
        function.restype, function.argtypes = ctypes.c_void_p, None
        return Tensor(function(self.context, *map(argument, args)))

    def compute(self, tensor):
        self.base.ggml_new_graph.restype = ctypes.c_void_p
        graph = ctypes.c_void_p(self.base.ggml_new_graph(self.context))
        self.base.ggml_build_forward_expand(graph, ctypes.c_void_p(tensor.address))
        assert self.cpu.ggml_graph_compute_with_ctx(self.context, graph, 1) == 0


class Tensor:
    def __init__(self, address):
        self.address = address


GGML = Ggml()


def t(values):
    """A tensor of these values; its axes are NumPy's."""
    values = np.ascontiguousarray(values)
    tensor = GGML.call(f"new_tensor_{values.ndim}d", TYPES[values.dtype], *values.shape[::-1])
    ctypes.memmove(recorder.Tensor.from_address(tensor.address).data, values.ctypes.data, values.nbytes)
    return tensor


def f(*shape, scale=1.0):
    return t((RANDOM.standard_normal(shape) * scale).round(2).astype("f4"))


def i(values, dtype="i4"):
    return t(np.array(values, dtype))


def case(name, *args, within=F32_ROUNDING, then=None):
    """What an operation gives. `then` changes the node before it runs."""
    node = GGML.call(name, *args)
    if then:
        then(node)
    program = recorder.Program(GGML)
    program.record(node.address)
    GGML.compute(node)
    parsed = json.loads(b"".join(program.files({})["program.json"]))
    op, values, given = parsed["ops"][0], parsed["values"], len(program.constants)
    place = op["y"][0]
    buffer, shape = place["v"][:2] if isinstance(place, dict) else (place, values[place][1])
    record = {key: op[key] for key in "oiaw" if key in op}
    return {**record, "values": values[:given], "data": [elements(program.constants[number]) for number in range(given)],
            "y": [[values[buffer][0], shape, elements(GGML.stored(node.address))]], "within": within}


def elements(values):
    """As JSON has them, floats in as many digits as f32 holds."""
    return [x if isinstance(x, int) else float(f"{x:.8g}") if np.isfinite(x) else str(x) for x in values.reshape(-1).tolist()]


def elementwise():
    x = (RANDOM.standard_normal((2, 6)) * 3).round(2).astype("f4")
    for name in "add sub mul div".split():
        yield case(name, f(2, 3, 4), t(RANDOM.uniform(0.5, 2, (4,)).astype("f4")))
        yield case(name, f(2, 1, 4, 6), t(RANDOM.uniform(0.5, 2, (1, 1, 2, 3)).astype("f4")))
    yield from (case("scale", t(x), 0.25), case("scale_bias", t(x), -1.5, 0.5), case("clamp", t(x), -1.0, 2.5), case("sqr", t(x)))
    yield from (case(name, t(np.abs(x) + 0.1)) for name in ("sqrt", "log"))
    yield from (case("sin", t(x)), case("cos", t(x)), case("leaky_relu", t(x), 0.1, 0))
    for name in "abs sgn neg step tanh elu relu sigmoid gelu_erf silu hardswish hardsigmoid exp expm1 softplus floor ceil round trunc".split():
        yield case(name, t(x))
    yield from (case(name, t(x), within=F16_TABLE) for name in ("gelu", "gelu_quick"))
    yield case("xielu", t(x), 0.8, 0.6, 0.5, -1e-6)
    for name in "reglu geglu swiglu geglu_erf geglu_quick".split():
        within = F16_TABLE if name in ("geglu", "geglu_quick") else F32_ROUNDING
        yield from (case(name, t(x), within=within), case(f"{name}_swapped", t(x), within=within))
        yield case(f"{name}_split", t(x), f(2, 6), within=within)
    yield from (case("swiglu_oai", t(x), f(2, 6, scale=3), 1.702, 2.0), case("swiglu_clamp", t(x), f(2, 6, scale=3), 1.5))


def rows():
    yield from (case(name, f(2, 3, 8), 1e-5) for name in ("norm", "rms_norm", "l2_norm"))
    yield from (case("l2_norm", f(2, 3), 5.0), case("group_norm", f(1, 6, 2, 3), 3, 1e-5), case("group_norm", f(2, 5, 2, 3), 2, 1e-5))
    yield from (case("soft_max", f(2, 3, 5)), case("sum", f(2, 5)), case("sum_rows", f(2, 3, 5)), case("mean", f(2, 3, 5)), case("cumsum", f(2, 6)))
    mask = np.where(np.tri(4, 5, dtype="f4") > 0, 0, -np.inf).astype("f4")
    yield case("soft_max_ext", f(3, 4, 5), t(mask), 0.5, 0.0)
    yield case("soft_max_ext", f(2, 6, 4, 5), t(RANDOM.standard_normal((2, 3, 6, 5)).round(1).astype("f2")), 0.3, 0.0)
    for heads in (4, 6):
        yield case("soft_max_ext", f(heads, 4, 5), t(-np.abs(np.subtract.outer(np.arange(4), np.arange(5))).astype("f4")), 1.0, 8.0)
    yield case("soft_max_ext", f(3, 4, 5), t(mask), 0.5, 0.0, then=lambda node: GGML.base.ggml_soft_max_add_sinks(
        ctypes.c_void_p(node.address), ctypes.c_void_p(f(3).address)))
    different = t(RANDOM.permutation(24).reshape(2, 3, 4).astype("f4"))
    yield from (case("argsort", different, order) for order in (0, 1))
    yield from (case("top_k", different, k) for k in (1, 3))
    yield case("argmax", f(3, 7))


def rope():
    positions, plain = i([0, 1, 5]), [10000.0, 1.0, 0.0, 1.0, 32.0, 1.0]
    yarn = [10000.0, 0.25, 1.0, 1.0, 32.0, 1.0]
    for mode in (NORMAL, NEOX):
        yield case("rope_ext", f(3, 2, 8), positions, None, 8, mode, 0, *plain)
        yield case("rope_ext", f(3, 2, 8), positions, None, 4, mode, 0, *plain)
        yield case("rope_ext", f(3, 1, 8), positions, t(np.array([1, 1.5, 2, 8], "f4")), 8, mode, 0, 500000.0, 0.5, 0.0, 1.2, 32.0, 1.0)
        yield case("rope_ext", f(3, 1, 16), positions, None, 16, mode, 64, *yarn)
        offset = lambda node: GGML.base.ggml_rope_set_offset(ctypes.c_void_p(node.address), 4)
        yield case("rope_ext", f(3, 1, 8), positions, None, 4, mode, 0, *plain, then=offset)
    streams = i([0, 1, 5, 0, 2, 3, 1, 1, 7, 0, 0, 4])
    for mode in (MROPE, IMROPE):
        yield case("rope_multi", f(3, 2, 16), streams, None, 16, [3, 3, 2, 0], mode, 0, *plain)
        yield case("rope_multi", f(3, 2, 16), streams, None, 12, [2, 1, 1, 1], mode, 0, *plain)
    yield case("rope_multi", f(3, 2, 16), streams, None, 8, [4, 4, 0, 0], VISION, 0, *plain)
    yield case("rope_ext_back", f(3, 2, 8), positions, None, 6, NEOX, 0, 10000.0, 1.0, 0.0, 1.5, 32.0, 1.0)


def product():
    yield from (case("mul_mat", f(4, 8), f(3, 8)), case("mul_mat", f(2, 4, 8), f(6, 3, 8)), case("mul_mat", f(1, 2, 4, 8), f(2, 4, 3, 8)))
    yield case("mul_mat_id", f(4, 5, 8), f(3, 1, 8), i([[0, 3], [2, 1], [3, 0]]))
    yield case("mul_mat_id", f(4, 5, 8), f(2, 2, 8), i([[0, 3], [2, 2]]))
    yield from (case("ssm_conv", f(2, 3, 7), f(3, 4)), case("solve_tri", t((np.tri(4, dtype="f4") + np.eye(4, dtype="f4"))), f(4, 3), 1, 1, 0))


def recurrent():
    falling = lambda *shape: t(-RANDOM.uniform(0.2, 2, shape).round(2).astype("f4"))
    yield case("ssm_scan", f(3, 4, 2, 6), f(2, 5, 4, 2), f(2, 5, 4), falling(4, 1), f(2, 5, 2, 6), f(2, 5, 2, 6), i([2, 0]), 1)
    yield case("ssm_scan", f(1, 4, 1, 6), f(1, 5, 4, 1), f(1, 5, 4), falling(4, 6), f(1, 5, 1, 6), f(1, 5, 1, 6), i([0]), 1)
    heads = lambda: f(4, 2, 8, scale=0.5)
    decay = lambda *shape: t(RANDOM.uniform(0.3, 0.99, shape or (4, 2, 8)).round(2).astype("f4"))
    state = lambda: f(2, 2 * 8 * 8, scale=0.3)
    yield case("rwkv_wkv6", heads(), heads(), heads(), f(2, 8), decay(), state())
    # Of heads smaller than its vectors ggml leaves out a part.
    large = lambda: f(2, 1, 64, scale=0.2)
    yield case("rwkv_wkv7", large(), decay(2, 1, 64), large(), large(), large(), large(), f(1, 64 * 64, scale=0.3))
    yield case("gated_linear_attn", heads(), heads(), heads(), decay(), state(), 0.35)
    for gates in (1, 8):
        gate = t(-RANDOM.uniform(0.05, 1, (2, 3, 4, gates)).astype("f4"))
        beta = t(RANDOM.uniform(0.1, 0.9, (2, 3, 4, 1)).astype("f4"))
        yield case("gated_delta_net", f(2, 3, 2, 8), f(2, 3, 2, 8, scale=0.3), f(2, 3, 4, 8), gate, beta, f(2, 4, 8, 8, scale=0.3), 1)


def streams():
    yield from (case("dsv4_hc_comb", f(2, 24), f(3), f(24), 1e-3, times) for times in (1, 4))
    yield from (case("dsv4_hc_pre", f(2, 4, 6), f(2, 4)), case("dsv4_hc_pre_gated", f(2, 4, 6), f(2, 4, 6), 1.5))
    yield from (case("dsv4_hc_post", f(2, 6), f(2, 4, 6), f(2, 4), f(2, 4, 4)), case("dsv4_hc_post", f(2, 6), f(2, 4, 6), f(2, 4), None))
    mask = t(np.where(np.tri(3, 5) > 0, 0, -np.inf).astype("f2"))
    yield case("lightning_indexer", f(3, 2, 8), f(5, 1, 8), f(3, 2), mask)


def places():
    turned = lambda x: GGML.call("permute", x, 1, 0, 2, 3)
    yield from (case("cont", turned(f(2, 3, 4))), case("dup", f(2, 3)), case("cpy", f(2, 3), t(np.zeros((3, 2), "f4"))), case("cast", f(2, 3), 1))
    yield case("cont_2d", turned(f(2, 3, 4)), 6, 4)
    yield from (case("get_rows", f(5, 4), i([3, 0, 3])), case("get_rows", f(2, 5, 4), i([[3, 0], [1, 1]])))
    yield case("get_rows", i([[1, 2], [3, 4]]), i([1]))
    yield from (case("set_rows", f(5, 4), f(2, 4), i([3, 1], "i8")), case("set_rows", f(2, 5, 4), f(2, 2, 4), i([[3, 1]], "i8")))
    yield case("set_rows", t(np.zeros((5, 4), "f2")), f(2, 4), i([0, 4]))
    yield from (case("set", f(3, 4), f(2, 2), 16, 48, 48, 20), case("set_1d_inplace", f(6), f(2), 8))
    yield case("add_id", f(3, 2, 4), f(5, 4), i([[0, 3], [4, 4], [1, 0]]))
    yield from (case("concat", f(2, 3, 4), f(2, 3, 5), 0), case("concat", f(2, 3, 4), f(1, 3, 4), 2))
    yield from (case("repeat", f(1, 3), t(np.zeros((2, 4, 6), "f4"))), case("repeat_4d", f(2, 3), 3, 4, 2, 1))
    yield from (case("pad", f(2, 3), 2, 1, 0, 0), case("pad_ext", f(2, 3), 1, 2, 0, 1, 1, 0, 0, 0))
    yield case("pad_ext_circular", f(2, 3), 1, 2, 0, 1, 0, 0, 0, 0)
    yield from (case("roll", f(3, 4), 1, -1, 0, 0), *(case("tri", f(3, 3), kind) for kind in range(4)), case("diag", f(2, 1, 3)))
    yield from (case("diag_mask_inf", f(3, 5), 1), case("fill", f(2, 3), 1.5), case("arange", 1.0, 4.0, 0.5))


def main():
    cases = [made for group in (elementwise, rows, rope, product, recurrent, streams, places) for made in group()]
    lines = ",\n".join(json.dumps(record, separators=(",", ":")) for record in cases)
    (Path(sys.argv[1]) / "ggml.json").write_text(f"[\n{lines}\n]\n")
    print("ggml", len(cases))


main()
