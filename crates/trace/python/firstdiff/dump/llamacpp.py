"""Writes a firstdiff dump of a .gguf: every tap that llama.cpp computes.

    python -m firstdiff.dump llama_cpp MODEL.gguf -o DIR --tokens 1,403,407 --decode 3
    firstdiff compare DIR my_engine_dump/

Needs llama-cpp-python 0.3.36 (pip builds it, some minutes) exactly: tensors are read through the ggml_tensor struct of that
release, whose layout is checked first.

What is written: DIR/dump.json and one .npy a tap, all f32: h0, layers.N.{attn_norm, q, k, v, q_norm, k_norm, q_rope,
k_rope, qk, probs, context, attn_out, h_attn, ffn_norm, ffn_gate, ffn_up, ffn_act, ffn_out, h}, final_norm, logits. Step 0 is
the prefill, every decode step holds its one new row, in files with `.stepN`.

How llama.cpp is read:
  * Its graph calls back after every node (cb_eval); the values are copied there and then, by their strides, since
    buffers are used again. Several nodes share a name (Qcur-0 is a product, a bias sum and a RoPE): the operation tells.
  * Flash attention is off (with it, kq and kq_soft_max do not exist). The batch is one, and every token's logits are
    asked for, else llama.cpp cuts the last layer to the last token.
  * qk is node kq: unscaled, unmasked, padded with unused cache cells, which are cut off. `scores` does not exist:
    scale and mask are inside the softmax. v is read before the cache, where it lies transposed.
  * attn_out has no name in most families: it is the product that reads kqv_out, plus its bias.
  * --cache f32 (default) makes attention comparable with other engines; f16 is what llama.cpp does by itself.

Beside the taps it writes program.json and program.safetensors: every operation of the graph, its operands as strided views of
buffers (firstdiff's docs/design/programs.md), for any architecture; --no-program leaves them out. Every node that llama.cpp names is a tap then: what the tables below do not
know is called as llama.cpp calls it (`layers.0.ffn_moe_weights`), and dump.json's `graph` says which operation makes a tap and
what that reads.

dump.json's `precision` is f32 when weights and cache are; f16 or bf16 when a matrix or the cache is; ggml when a matrix is
quantised (llama.cpp then quantises activations too). `qk_rows` is `adjacent` for files of NORM-type RoPE (llama, mistral …),
whose Q and K rows are permuted against Hugging Face's, and `half` for NEOX-type (qwen2, qwen3 …). firstdiff undoes it.
Weights run on the CPU, as they are stored: AMX and repacked weights are switched off (use_extra_bufts). None of the archs llama, qwen2, qwen3 knows a sliding window: with T beyond it, they show another model.
"""

import argparse
import ctypes
import json
import os
import re
from pathlib import Path

from .files import Folder, Refused, count, exit_code, ids, say

NAME = "dump_llama_cpp.py"
VERSION = "0.1.0"
NEEDS = "0.3.36"

# Node name and operations -> tap. Where several nodes match, the last one in the graph holds: with a bias, the sum.
VALUE = ("MUL_MAT", "ADD", "VIEW")
NODES = {
    "attn_norm": ("attn_norm", ("MUL",)),
    "Qcur": ("q", VALUE), "Kcur": ("k", VALUE), "Vcur": ("v", VALUE),
    "Qcur_normed": ("q_norm", ("MUL",)), "Kcur_normed": ("k_norm", ("MUL",)),
    "kq": ("qk", ("MUL_MAT",)), "kq_soft_max": ("probs", ("SOFT_MAX",)), "kqv_out": ("context", ("CONT",)),
    "attn_out": ("attn_out", ("MUL_MAT", "ADD")),
    "ffn_inp": ("h_attn", ("ADD",)), "ffn_norm": ("ffn_norm", ("MUL",)),
    "ffn_gate": ("ffn_gate", ("MUL_MAT",)), "ffn_gate_b": ("ffn_gate", ("ADD",)),
    "ffn_up": ("ffn_up", ("MUL_MAT",)), "ffn_up_b": ("ffn_up", ("ADD",)),
    "ffn_swiglu": ("ffn_act", None), "ffn_geglu": ("ffn_act", None), "ffn_reglu": ("ffn_act", None), "ffn_gate_par": ("ffn_act", None),
    "ffn_out": ("ffn_out", ("MUL_MAT", "ADD")), "l_out": ("h", ("ADD",)),
}
ROPED = {"Qcur": "q_rope", "Kcur": "k_rope"}
OUTER = {"embd": "h0", "inp_embd": "h0", "result_norm": "final_norm", "result_output": "logits"}
PER_HEAD = {"q", "k", "v", "q_norm", "k_norm", "q_rope", "k_rope"}
EXPECTED = ["attn_norm", "q", "k", "v", "q_rope", "k_rope", "qk", "probs", "context", "attn_out", "h_attn", "ffn_norm",
            "ffn_gate", "ffn_up", "ffn_act", "ffn_out", "h"]
# With --program nodes of any architecture are read: a norm ends in its gain, its bias, or in itself.
NORMED = ("MUL", "ADD", "RMS_NORM", "NORM")
MORE_NODES = {
    "attn_norm": ("attn_norm", NORMED), "ffn_norm": ("ffn_norm", NORMED), "Qcur_normed": ("q_norm", NORMED), "Kcur_normed": ("k_norm", NORMED),
    "Qcur_norm": ("q_norm", NORMED), "Kcur_norm": ("k_norm", NORMED), "attn_post_norm": ("attn_post_norm", NORMED),
    "post_attn_norm": ("attn_post_norm", NORMED), "ffn_post_norm": ("ffn_post_norm", NORMED),
    "sa_out": ("h_attn", ("ADD",)), "mamba_out": ("mixer_out", ("MUL_MAT", "ADD")),
    **dict.fromkeys(("ffn_gelu", "ffn_silu", "ffn_relu", "ffn_sqr(relu)", "ffn_xielu", "ffn_swiglu_oai", "ffn_swiglu_limited"), ("ffn_act", None)),
    "ffn_moe_logits": ("router_logits", ("MUL_MAT", "ADD")), "ffn_moe_logits_biased": ("router_logits", ("ADD",)),
    "ffn_moe_probs": ("router_probs", ("SOFT_MAX", "UNARY")), "ffn_moe_probs ADD": ("router_logits", None), "ffn_moe_topk": ("router_topk", None),
}
MORE_ROPED = {"Qcur_pos": "q_rope", "Kcur_pos": "k_rope", "Qcur_rope": "q_rope", "Kcur_rope": "k_rope"}
MORE_OUTER = {"inp_scaled": "h0", "inpL": "h0", "inp_norm": "h0", "embd_norm": "h0"}
KINDS = {kind for kind, _ in (NODES | MORE_NODES).values()} | {"q_rope", "k_rope"} | {*OUTER.values()}
# What the feed-forward gives where nothing is named so: the sum of experts, or the projection if no bias is added to it.
ALIASES = {"ffn_moe_out": "ffn_out", "ffn_down": "ffn_out"}
F32, F16, BF16 = 0, 1, 30
# Operations that compute nothing: they look at a buffer in another way.
LOOKS = {"NONE", "VIEW", "RESHAPE", "PERMUTE", "TRANSPOSE"}
# Parameters in the order of op_params: whole numbers, `:f` floats, `:b` bytes, told in elements, `:x` an axis counted from the fastest, `?` left out
# at 0, `_` what nothing reads.
# Of an operation that is not here they stay the numbers that they are.
PARAMETERS = {
    "CONCAT": "axis:x", "NORM": "eps:f", "RMS_NORM": "eps:f", "L2_NORM": "eps:f", "GROUP_NORM": "n_groups eps:f", "SCALE": "scale:f bias:f",
    "CLAMP": "min:f max:f", "SOFT_MAX": "scale:f max_bias:f", "LEAKY_RELU": "negative_slope:f", "FILL": "value:f", "ARANGE": "start:f stop:f step:f",
    "ARGSORT": "order", "TRI": "kind", "DIAG_MASK_INF": "n_past", "DIAG_MASK_ZERO": "n_past", "MUL_MAT": "precision? hint? _ source_precision?",
    "MUL_MAT_ID": "precision? hint? _ source_precision?", "FLASH_ATTN_EXT": "scale:f max_bias:f logit_softcap:f precision? n_kv_max?",
    "SET": "stride1:b stride2:b stride3:b offset:b _",
    "ROPE": "_ n_dims mode _ n_ctx_orig freq_base:f freq_scale:f ext_factor:f attn_factor:f beta_fast:f beta_slow:f "
            "section0? section1? section2? section3? offset?",
    "PAD": "before0 after0 before1 after1 before2 after2 before3 after3 circular?", "ROLL": "shift0 shift1 shift2 shift3",
    "SSM_SCAN": "snapshots", "GATED_DELTA_NET": "snapshots", "GATED_LINEAR_ATTN": "scale:f",
    "DSV4_HC_COMB": "eps:f n_iter", "DSV4_HC_PRE": "scale:f gated", "UNARY": "_", "UNARY.XIELU": "_ alpha_n:f alpha_p:f beta:f eps:f",
    "GLU": "_ swapped?", "GLU.SWIGLU_OAI": "_ swapped? alpha:f limit:f", "GLU.SWIGLU_CLAMP": "_ swapped? _ limit:f",
}
DTYPES = {F32: "f32", F16: "f16", BF16: "bf16", 24: "i8", 25: "i16", 26: "i32", 27: "i64", 28: "f64"}
NUMPY = {"f32": "<f4", "f16": "<f2", "bf16": "<u2", "i8": "<i1", "i16": "<i2", "i32": "<i4", "i64": "<i8", "f64": "<f8"}
# ggml_backend_buffer_usage: weights; and what lives for one graph. Anything else is memory that a later step finds again.
WEIGHTS, COMPUTE = 1, 2


# ---- the dump on disk (format 1 of firstdiff's docs/reference/format.md) ----


class Dump(Folder):
    def __init__(self, out, patterns, force):
        super().__init__(out, patterns, force)
        self.entries, self.files = {}, {}

    def write(self, tap, step, values):
        import numpy as np

        file = f"{file_name(tap)}.npy" if step == 0 else f"{file_name(tap)}.step{step}.npy"
        np.save(self.folder / file, np.ascontiguousarray(values, "<f4"))
        self.entries[tap, step] = {"tap": tap, "step": step, "file": file, "shape": list(values.shape), "dtype": "f32"}

    def rename(self, names):
        """Other names for taps that are written."""
        self.entries = {(names.get(tap, tap), step): {**entry, "tap": names.get(tap, tap)} for (tap, step), entry in self.entries.items()}

    def halve(self, tap, names):
        """Two taps, the halves of the last axis of one."""
        import numpy as np

        for _, step in [key for key in self.entries if key[0] == tap]:
            file = self.folder / self.entries.pop((tap, step))["file"]
            values = np.load(file)
            file.unlink()
            for name, half in zip(names, np.split(values, 2, axis=-1)):
                if self.wants(name):
                    self.write(name, step, half)

    def finish(self, note):
        if not self.entries:
            raise Refused("no tap matches --taps: nothing to write")
        for name, parts in self.files.items():
            with open(self.folder / name, "wb") as file:
                file.writelines(parts)
        self.tell_whole(note, self.entries.values())
        self.place()


def file_name(tap):
    """The name of a tap as that of a file: docs/reference/format.md."""
    plain = re.sub(rb"[^A-Za-z0-9_.-]", lambda byte: b"%%%02X" % byte[0][0], tap.encode()).decode()
    return re.sub(r"^\.|\.(?=step\d+$)", "%2E", plain)


# ---- ggml through ctypes ----


class Tensor(ctypes.Structure):
    """ggml_tensor of the ggml in llama-cpp-python 0.3.36, up to its name."""


Tensor._fields_ = [
    ("type", ctypes.c_int), ("buffer", ctypes.c_void_p), ("ne", ctypes.c_int64 * 4), ("nb", ctypes.c_size_t * 4),
    ("op", ctypes.c_int), ("op_params", ctypes.c_int32 * 16), ("flags", ctypes.c_int32),
    ("src", ctypes.POINTER(Tensor) * 10), ("view_src", ctypes.POINTER(Tensor)), ("view_offs", ctypes.c_size_t),
    ("data", ctypes.c_void_p), ("name", ctypes.c_char * 64),
]


class Ggml:
    """The few functions of libggml-base that are needed."""

    def __init__(self, folder):
        found = [path for path in sorted(folder.iterdir()) if re.fullmatch(r"(lib)?ggml-base\.(so|dylib|dll)", path.name)]
        if not found:
            raise Refused(f"{folder}: no ggml-base library; llama-cpp-python {NEEDS} has one")
        library = ctypes.CDLL(str(found[0]))
        for name, result, args in [
            ("ggml_nbytes", ctypes.c_size_t, [ctypes.c_void_p]), ("ggml_nelements", ctypes.c_int64, [ctypes.c_void_p]),
            ("ggml_get_name", ctypes.c_char_p, [ctypes.c_void_p]), ("ggml_op_name", ctypes.c_char_p, [ctypes.c_int]),
            ("ggml_backend_tensor_get", None, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t]),
            ("ggml_unary_op_name", ctypes.c_char_p, [ctypes.c_int]), ("ggml_glu_op_name", ctypes.c_char_p, [ctypes.c_int]),
            ("ggml_blck_size", ctypes.c_int64, [ctypes.c_int]), ("ggml_type_size", ctypes.c_size_t, [ctypes.c_int]),
            ("ggml_backend_buffer_get_usage", ctypes.c_int, [ctypes.c_void_p]),
        ]:
            function = getattr(library, name)
            function.restype, function.argtypes = result, args
            setattr(self, name, function)

    def check(self, address):
        """Does the struct as declared here agree with the library's own answers?"""
        tensor = Tensor.from_address(address)
        count = tensor.ne[0] * tensor.ne[1] * tensor.ne[2] * tensor.ne[3]
        if count != self.ggml_nelements(address) or tensor.name != self.ggml_get_name(address):
            raise Refused(f"ggml_tensor has another layout than in llama-cpp-python {NEEDS}")

    def op(self, tensor):
        return self.ggml_op_name(tensor.op).decode()

    def kind(self, tensor):
        """`MUL_MAT`; `UNARY.SILU` and `GLU.SWIGLU`, of which the first parameter says which function."""
        op = self.op(tensor)
        which = {"UNARY": self.ggml_unary_op_name, "GLU": self.ggml_glu_op_name}.get(op)
        return f"{op}.{which(tensor.op_params[0]).decode()}" if which else op

    def stored(self, address):
        """The values in their own type (bf16 as its bits), axes slowest first. ggml lists the fastest axis first and may have any strides."""
        import numpy as np

        tensor = Tensor.from_address(address)
        if tensor.type not in DTYPES:
            raise Refused(f"node {tensor.name.decode()} is of ggml type {tensor.type}; plain floats and whole numbers are read")
        size = self.ggml_nbytes(address)
        buffer = (ctypes.c_char * size)()
        if size:
            self.ggml_backend_tensor_get(address, buffer, 0, size)
        return np.ndarray(tuple(tensor.ne)[::-1], NUMPY[DTYPES[tensor.type]], buffer, 0, tuple(tensor.nb)[::-1])

    def read(self, address):
        """The values as f32."""
        import numpy as np

        values = self.stored(address)
        if Tensor.from_address(address).type == BF16:
            return (values.astype(np.uint32) << 16).view(np.float32)
        return values.astype(np.float32)


# ---- the program (version 1 of firstdiff's docs/design/programs.md) ----


class View:
    """How a tensor looks at a buffer: axes slowest first, strides and offset in elements."""

    def __init__(self, buffer, dtype, shape, strides, offset):
        self.buffer, self.dtype, self.shape, self.strides, self.offset = buffer, dtype, list(shape), list(strides), offset

    def parts(self):
        return self.dtype, self.shape, self.strides, self.offset

    def is_same(self, other):
        return self.buffer == other.buffer and self.parts() == other.parts()

    def shown(self, look):
        """The view that `look` gives of an array; None where that is a copy."""
        import numpy as np

        if 0 in self.shape:
            return None
        held = np.zeros(self.offset + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides)) + 1, np.int8)
        seen = look(np.ndarray(self.shape, np.int8, held, self.offset, self.strides))
        if not np.shares_memory(seen, held):
            return None
        return View(self.buffer, self.dtype, seen.shape, seen.strides, seen.ctypes.data - held.ctypes.data)


class Program:
    """The operations of llama.cpp's graphs, in the order in which they run; K/V caches and states link the steps."""

    def __init__(self, ggml):
        self.ggml, self.buffers, self.weights, self.inputs, self.constants = ggml, [], {}, {}, {}
        self.ops, self.steps, self.taps, self.scopes = [], [], {}, {}
        self.lasting, self.passing = {}, {}  # buffers by the address of their tensor: those that stay, and those of this step's graph
        self.writers, self.reads = {}, []

    def begin(self):
        """The next graph uses addresses again."""
        self.passing = {}

    def end(self, tokens, output):
        """Ends a step. `output`: what it gave, if that is known."""
        start = self.steps[-1]["ops"][1] if self.steps else 0
        self.steps.append({"ops": [start, len(self.ops)], "tokens": tokens, "output": output})

    # -- operands --

    def look(self, tensor, buffer):
        """ggml counts strides in bytes, and those of a quantised type in blocks: a reader takes its elements as f32, one after the other."""
        block, size = self.ggml.ggml_blck_size(tensor.type), self.ggml.ggml_type_size(tensor.type)
        shape, strides = list(tensor.ne)[::-1], [bytes_ * block // size for bytes_ in tensor.nb][::-1]
        strides[-1] = 1 if block > 1 else strides[-1]
        while len(shape) > 1 and shape[0] == 1:
            shape, strides = shape[1:], strides[1:]
        return View(buffer, DTYPES.get(tensor.type, "f32"), shape, strides, tensor.view_offs * block // size)

    def view(self, address):
        memory = root(address)
        known = self.passing.get(memory, self.lasting.get(memory))
        return self.look(Tensor.from_address(address), self.new_buffer(memory) if known is None else known)

    def new_buffer(self, address):
        """A buffer that is seen for the first time: what an operation makes, a weight, an input of this graph, or memory that stays."""
        tensor, number = Tensor.from_address(address), len(self.buffers)
        name = tensor.name.decode(errors="replace")
        self.buffers.append(self.look(tensor, number))
        usage = self.ggml.ggml_backend_buffer_get_usage(tensor.buffer) if tensor.buffer else COMPUTE
        kept = self.passing if self.ggml.op(tensor) != "NONE" or usage == COMPUTE else self.lasting
        kept[address] = number
        if self.ggml.op(tensor) != "NONE":
            return number
        if usage == WEIGHTS:
            self.weights[number] = name
        elif usage == COMPUTE:
            self.inputs[number] = name if not self.steps else f"{name}@{len(self.steps)}"
            self.constants[number] = self.ggml.stored(address)
        else:
            values = self.ggml.stored(address)
            if values.any():
                self.constants[number] = values
            else:  # an empty cache
                self.add("zeros", [[{"c": extent} for extent in self.buffers[number].shape]], {}, self.buffers[number], [], name)
        return number

    # -- operations --

    def add(self, name, given, parameters, output, written, scope):
        op = {"o": name, "i": given, "y": [output]}
        if parameters:
            op["a"] = parameters
        if written:
            op["w"] = written
        op["s"] = self.scopes.setdefault(scope, len(self.scopes))
        read = [maker for view in given if isinstance(view, View) for maker in self.writers.get(view.buffer, [])]
        self.reads.append(list(dict.fromkeys(read)))
        whole = output.parts() == self.buffers[output.buffer].parts()
        self.writers[output.buffer] = [*([] if whole else self.writers.get(output.buffer, [])), len(self.ops)]
        self.ops.append(op)

    def record(self, address):
        """Records the operation of a node, before it runs: its inputs hold their values then."""
        tensor = Tensor.from_address(address)
        op = self.ggml.op(tensor)
        if op in LOOKS:
            return
        sources = [ctypes.addressof(source.contents) if source else None for source in tensor.src]
        if op == "CPY":
            sources = sources[:1]  # the other is where it goes
        while sources and sources[-1] is None:
            sources.pop()
        given = [source and self.view(source) for source in sources]
        output = self.view(address)
        written = [at for at, view in enumerate(given) if view and view.is_same(output)][:1]
        kind = self.ggml.kind(tensor)
        self.add(f"ggml.{kind}", given, parameters(kind, tensor), output, written, tensor.name.decode(errors="replace"))

    def tap(self, name, address, look):
        """Notes what is a tap, if its operation is of this step."""
        view = self.view(address)
        writers = self.writers.get(view.buffer)
        shown = view.shown(lambda array: look(array.reshape((1,) * (4 - array.ndim) + array.shape)))
        start = self.steps[-1]["ops"][1] if self.steps else 0
        if shown is None or not writers or writers[-1] < start:
            return
        self.put({"tap": name, "step": len(self.steps), "op": writers[-1], "v": shown})

    def put(self, tap):
        self.taps[tap["tap"], tap["step"]] = tap

    def in_order(self):
        return sorted(self.taps.values(), key=lambda tap: tap["op"])

    def rename(self, names):
        for tap in self.in_order():
            del self.taps[tap["tap"], tap["step"]]
            self.put({**tap, "tap": names.get(tap["tap"], tap["tap"])})

    def is_biased(self, name):
        """Whether a weight is added to what a tap shows."""
        made = {tap["op"] for tap in self.taps.values() if tap["tap"] == name}
        return any(op["o"] == "ggml.ADD" and made & set(reads) and any(view.buffer in self.weights for view in op["i"])
                   for op, reads in zip(self.ops, self.reads))

    def halve(self, tap, names):
        """Two taps, the halves of the last axis of one."""
        for key in [key for key in self.taps if key[0] == tap]:
            entry = self.taps.pop(key)
            view = entry["v"]
            half = view.shape[-1] // 2
            for name, offset in zip(names, (0, half * view.strides[-1])):
                seen = View(view.buffer, view.dtype, [*view.shape[:-1], half], view.strides, view.offset + offset)
                self.put({**entry, "tap": name, "v": seen})

    def graph(self):
        """Of each tap, in the step where it first is: the operation that makes it, and the nearest taps above that it is made of."""
        first, by_op, scopes, rows = {}, {}, list(self.scopes), []
        for tap in self.in_order():
            first.setdefault(tap["tap"], tap)
        taps = list(first.values())
        for tap in taps:
            by_op.setdefault(tap["op"], []).append(tap["tap"])
        for tap in taps:
            same = by_op[tap["op"]]
            # Another look at the same tensor comes from the first.
            reads, open_, seen = dict.fromkeys(same[:1] if tap["tap"] != same[0] else []), [], set()
            open_ = [] if reads else list(self.reads[tap["op"]])
            while open_:
                at = open_.pop(0)
                if at in seen:
                    continue
                seen.add(at)
                if at in by_op:
                    reads[by_op[at][0]] = None
                else:
                    open_ += self.reads[at]
            op = self.ops[tap["op"]]
            rows.append({"tap": tap["tap"], "op": f"{op['o'].removeprefix('ggml.')} ({scopes[op['s']]})", "reads": list(reads)})
        return rows

    def files(self, about):
        """program.json and program.safetensors, in parts, by name."""
        def operand(value):
            if isinstance(value, list):
                return [operand(item) for item in value]
            if not isinstance(value, View):
                return value
            own = self.buffers[value.buffer]
            if value.parts() == own.parts():
                return value.buffer
            view = [value.buffer, value.shape, value.strides]
            if value.dtype != own.dtype:
                return {"v": [*view, value.offset, value.dtype]}
            return {"v": [*view, value.offset] if value.offset else view}

        def canonical(view):
            due = [1]
            for extent in reversed(view.shape[1:]):
                due.insert(0, due[0] * extent)
            return [view.dtype, view.shape] if (view.strides, view.offset) == (due, 0) else list(view.parts())

        head = {"version": 1, **about, "weights": {str(b): name for b, name in self.weights.items()},
                "constants": sorted(set(self.constants) - set(self.inputs)), "inputs": {str(b): name for b, name in self.inputs.items()},
                "scopes": [[name, [], None] for name in self.scopes], "steps": [{**step, "output": operand(step["output"])} for step in self.steps],
                "taps": [{**tap, "v": operand(tap["v"])} for tap in self.in_order()]}
        lines = [f"  {json.dumps(key)}: {json.dumps(item, separators=(',', ':'))}" for key, item in head.items()]
        ops = [{**op, "i": operand(op["i"]), "y": operand(op["y"])} for op in self.ops]
        for key, items in {"values": map(canonical, self.buffers), "ops": ops}.items():
            rows = ",\n    ".join(json.dumps(item, separators=(",", ":")) for item in items)
            lines.append(f'  "{key}": [\n    {rows}\n  ]')
        return {"program.json": [("{\n" + ",\n".join(lines) + "\n}\n").encode()], "program.safetensors": self.safetensors()}

    def safetensors(self):
        head, data, at = {}, [], 0
        for number, values in sorted(self.constants.items()):
            view, raw = self.buffers[number], values.tobytes()
            head[str(number)] = {"dtype": view.dtype.upper(), "shape": view.shape, "data_offsets": [at, at + len(raw)]}
            data.append(raw)
            at += len(raw)
        text = json.dumps(head, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        return [len(text).to_bytes(8, "little"), text, *data]


def root(address):
    """The tensor whose memory a tensor looks at."""
    tensor = Tensor.from_address(address)
    return ctypes.addressof(tensor.view_src.contents) if tensor.view_src else address


def parameters(kind, tensor):
    """What op_params say, by name."""
    words = PARAMETERS.get(kind, PARAMETERS.get(kind.split(".")[0].removesuffix("_BACK")))
    if words is None:
        values = list(tensor.op_params)
        while values and values[-1] == 0:
            values.pop()
        return {"op_params": [{"c": value} for value in values]} if values else {}
    found, floats = {}, (ctypes.c_float * 16).from_buffer(tensor.op_params)
    for at, word in enumerate(words.split()):
        name, _, form = word.partition(":")
        plain = tensor.op_params[at]
        value = {"f": floats[at], "x": -1 - plain, "b": plain // tensor.nb[0]}.get(form, plain)
        if name != "_" and (value or not name.endswith("?")):
            found[name.removesuffix("?")] = {"c": str(value) if value in (float("inf"), float("-inf")) or value != value else value}
    return found


# ---- recording ----


class Recorder:
    """Turns nodes into taps. `begin` before every llama_decode; `error` holds what went wrong in the callback."""

    def __init__(self, ggml, dump, heads, program):
        self.ggml, self.dump, self.heads, self.program = ggml, dump, heads, program
        self.nodes, self.roped, self.outer = (NODES | MORE_NODES, ROPED | MORE_ROPED, OUTER | MORE_OUTER) if program else (NODES, ROPED, OUTER)
        self.step, self.rows, self.keys = 0, 0, 0
        self.seen, self.weights, self.attn_out = set(), set(), {}
        # Of this step: taps by the address of a node, how often a name has come, and what a tap of the tables was last.
        self.named, self.count, self.holds = {}, {}, {}
        self.stack, self.ranks, self.fused = "", {}, {}
        self.error, self.checked = None, False

    def begin(self, step, rows, keys, stack=""):
        self.step, self.rows, self.keys, self.attn_out, self.stack = step, rows, keys, {}, stack
        self.named, self.count, self.holds = {}, {}, {}
        if self.program:
            self.program.begin()

    def end(self):
        """The step is over."""
        if self.program:
            logits = self.program.taps.get((f"{self.stack}logits", self.step))
            self.program.end(self.rows, logits and logits["v"])

    def tap_of(self, address):
        """The tap of this node, or None. Names are `stem-layer`."""
        tensor = Tensor.from_address(address)
        name, op = tensor.name.decode(errors="replace"), self.ggml.op(tensor)
        if name in self.outer:
            return self.outer[name]
        match = re.fullmatch(r"(.+)-(\d+)", name)
        layer = match and match[2]
        source = tensor.src[0] and tensor.src[0].contents
        if op == "MUL_MAT" and tensor.src[1] and (out := re.fullmatch(r"kqv_out-(\d+)", tensor.src[1].contents.name.decode())):
            self.attn_out[address] = out[1]
            return f"layers.{out[1]}.attn_out"
        if op == "ADD" and source and ctypes.addressof(source) in self.attn_out and not tensor.src[1].contents.op:
            return f"layers.{self.attn_out[ctypes.addressof(source)]}.attn_out"
        if not match:
            return None
        if op == "ROPE" and match[1] in self.roped:
            return f"layers.{layer}.{self.roped[match[1]]}"
        if self.program and match[1] in self.outer:
            return self.outer[match[1]]
        kind, ops = self.nodes.get(f"{match[1]} {op}", self.nodes.get(match[1], (None, None)))
        return f"layers.{layer}.{kind}" if kind and (ops is None or op in ops) else None

    def open_tap(self, address):
        """A node that no table knows, under llama.cpp's name."""
        tensor = Tensor.from_address(address)
        name, op = tensor.name.decode(errors="replace"), self.ggml.op(tensor)
        # ggml itself names nodes `node_7` and `x (view)`.
        if not name or re.fullmatch(r"(node|leaf)_\d+|.* \(.*\)", name) or op in LOOKS - {"VIEW"}:
            return None
        if op == "VIEW" and self.ggml.ggml_nelements(address) == self.ggml.ggml_nelements(ctypes.addressof(tensor.src[0].contents)):
            return None  # the same values again
        match = re.fullmatch(r"(.+)-(\d+)", name)
        stem, layer = (match[1], f"layers.{match[2]}.") if match else (name, "")
        # What llama.cpp calls `q` may be another thing than the vocabulary does.
        return self.counted(f"{layer}node/{stem}" if stem in KINDS else f"{layer}{stem}")

    def observe(self, address):
        """With --program: the operation of a node, and its name. Called once for each node, in the order in which they run."""
        self.program.record(address)
        tap = self.meant(self.tap_of(address), address) or self.open_tap(address)
        if tap is not None:
            tap = self.stack + tap
            self.program.tap(tap, address, lambda array: self.shaped(tap, array))
        self.named[address] = tap

    def meant(self, tap, address):
        """The tap of the tables that a node is by what it reads, or None. llama.cpp gives one name to several things."""
        if tap is None:
            return None
        tensor, (layer, _, kind) = Tensor.from_address(address), tap.rpartition(".")
        op, sources = self.ggml.op(tensor), [root(ctypes.addressof(source.contents)) for source in tensor.src if source]
        if kind == "qk" and sources[1] not in self.holds.values() and self.ggml.op(Tensor.from_address(sources[1])) in ("SCALE", "MUL"):
            return None  # the queries were scaled before
        if kind == "attn_post_norm" and self.holds.get(f"{layer}.h_attn") in self.normed(sources[0]):
            tap = f"{layer}.ffn_norm"
        if kind == "ffn_act" and op == "GLU" and len(sources) == 1 and sources[0] == self.holds.get(f"{layer}.ffn_up"):
            self.fused[f"{self.stack}{layer}"] = bool(tensor.op_params[1])
        before = self.holds.get(tap)
        if before is not None and layer:
            # A sum with a bias takes the place of what it adds to; one with an activation is another thing, and so is what reads neither.
            others = [source for source in sources if source != before]
            is_biased = all(self.ggml.op(Tensor.from_address(source)) == "NONE" for source in others)
            if before not in {*sources, root(address)} or (op == "ADD" and not is_biased):
                return None
        self.holds[tap] = root(address)
        return tap

    def normed(self, address):
        """What the statistic of a norm reads, where this node is one, and the node itself."""
        tensor = Tensor.from_address(address)
        return {address, root(ctypes.addressof(tensor.src[0].contents))} if self.ggml.op(tensor) in NORMED and tensor.src[0] else {address}

    def counted(self, name):
        """The second of a name in a step as `name#2`."""
        self.count[name] = self.count.get(name, 0) + 1
        return name if self.count[name] == 1 else f"{name}#{self.count[name]}"

    def settle(self):
        """Names that hang on what else a run has."""
        taken, names = {tap for tap, _ in self.dump.entries}, {}
        for tap in taken:
            stem, _, kind = tap.rpartition(".")
            if kind in ALIASES and f"{stem}.{ALIASES[kind]}" not in taken and not self.program.is_biased(tap):
                names[tap] = f"{stem}.{ALIASES[kind]}"
        for keeper in (self.dump, self.program):
            keeper.rename(names)
            for layer, swapped in self.fused.items():  # gate and up in one product
                keeper.halve(f"{layer}.ffn_up", [f"{layer}.ffn_gate", f"{layer}.ffn_up"][::-1 if swapped else 1])

    def shaped(self, tap, values):
        """From ggml's four axes to the vocabulary's shape."""
        kind, T = tap.rsplit(".", 1)[-1], self.rows
        if kind in ("qk", "probs"):
            return values[0, :, :, : self.keys]
        if self.program and (kind not in KINDS or values.size % T):
            return self.in_own_axes(tap, values)
        if kind in PER_HEAD:
            heads = self.heads["H" if kind[0] == "q" else "K"]
            if self.program and values.shape[1] == T and values.shape[2] > 1:  # the node has them as an axis
                heads = values.shape[2]
            if not heads or values.size % (T * heads):  # other layers have heads in other numbers
                return values.reshape(T, -1)
            return values.reshape(T, heads, -1)
        return values.reshape(T, -1)

    def in_own_axes(self, tap, values):
        """Without axes of one element in front: as many axes in every step as in the first, and two at least."""
        rank = next((4 - at for at, extent in enumerate(values.shape) if extent > 1), 0)
        self.ranks[tap] = max(rank, self.ranks.get(tap, 2))
        return values.reshape(values.shape[4 - self.ranks[tap]:])

    def __call__(self, address, ask, _):
        """Called before a node (ask: is it wanted?) and after it (False stops the run)."""
        try:
            if ask:
                if not self.checked:
                    self.ggml.check(address)
                    self.checked = True
                self.note_weights(Tensor.from_address(address))
                if self.program:
                    self.observe(address)
                tap = self.named[address] if self.program else self.tap_of(address)
                self.seen.add(tap)
                return tap is not None and self.dump.wants(tap)
            tap = self.named[address] if self.program else self.tap_of(address)
            self.dump.write(tap, self.step, self.shaped(tap, self.ggml.read(address)))
            return True
        except BaseException as error:  # must not escape into C
            self.error = self.error or error
            return bool(ask)

    def note_weights(self, tensor):
        """The types of the matrices that are multiplied or looked up."""
        if self.ggml.op(tensor) in ("MUL_MAT", "MUL_MAT_ID", "GET_ROWS") and tensor.src[0]:
            weight = tensor.src[0].contents
            if weight.name.endswith(b".weight"):
                self.weights.add(weight.type)

    def precision(self, cache):
        if self.weights - {F32, F16, BF16}:
            return "ggml"
        if BF16 in self.weights:
            return "bf16"
        return "f16" if F16 in self.weights or cache == "f16" else "f32"


# ---- llama.cpp ----


class Log:
    """Keeps llama.cpp's log off the terminal; its last complaint explains a failure."""

    def __init__(self, api):
        self.last = ""
        self.callback = api.llama_log_callback(self.line)  # kept: a collected callback crashes the process
        api.llama_log_set(self.callback, ctypes.c_void_p(0))

    def line(self, level, text, _):
        if level == 4 and text.strip():  # GGML_LOG_LEVEL_ERROR
            self.last = text.decode(errors="replace").strip()

    def because(self):
        return f": {self.last}" if self.last else ""


def metadata(api, model, key):
    buffer = ctypes.create_string_buffer(256)
    size = api.llama_model_meta_val_str(model, key.encode(), buffer, len(buffer))
    return buffer.value.decode(errors="replace") if size >= 0 else ""


def check_file(path):
    try:
        with open(path, "rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    if magic != b"GGUF":
        raise Refused(f"{path}: not a GGUF file (it begins with {magic!r})")


def feed(api, context, batch, tokens, position, encode=False):
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position + i, 1, 1
        batch.seq_id[i][0] = 0
    return (api.llama_encode if encode else api.llama_decode)(context, batch)


def run(api, log, model, recorder, tokens, steps, fixed, cache, threads):
    """Prefill, then `steps` decode steps: on the tokens of `fixed`, or greedily. Returns the decoded ids.

    Of an encoder with a decoder the first step is the encoder's, and the others the decoder's, from its start token on."""
    import numpy as np

    callback = api.ggml_backend_sched_eval_callback(recorder)  # kept until the context is freed
    params = api.llama_context_default_params()
    params.n_ctx = len(tokens) + steps
    params.n_batch = params.n_ubatch = len(tokens)
    params.n_threads = params.n_threads_batch = threads
    params.flash_attn_type = api.LLAMA_FLASH_ATTN_TYPE_DISABLED
    params.type_k = params.type_v = F32 if cache == "f32" else F16
    params.swa_full = True
    params.cb_eval = callback
    context = api.llama_init_from_model(model, params)
    if not context:
        raise Refused(f"llama.cpp makes no context{log.because()}")
    if steps and not (api.llama_get_memory(context) and api.llama_model_has_decoder(model)):
        api.llama_free(context)
        raise Refused("this model keeps nothing between steps: it has no decode steps")
    encodes = api.llama_model_has_encoder(model) and api.llama_model_has_decoder(model)
    batch = api.llama_batch_init(len(tokens), 0, 1)
    vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    now, decoded, position = list(tokens), [], 0
    try:
        for step in range(steps + 1):
            recorder.begin(step, len(now), position + len(now), ("decoder." if step else "encoder.") if encodes else "")
            code = feed(api, context, batch, now, position, encodes and step == 0)
            if recorder.error:
                raise recorder.error
            if code != 0:
                raise Refused(f"llama_decode failed with {code} at step {step}{log.because()}")
            say(f"step {step} of {steps}: {len(now)} token{'s' * (len(now) > 1)}")
            recorder.end()
            position = 0 if encodes and step == 0 else position + len(now)
            if encodes and step == 0 and steps:
                now = [fixed[0] if fixed else max(api.llama_model_decoder_start_token(model), 0)]
                decoded += now
            elif step < steps:
                logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocab,))
                now = [fixed[step] if fixed else int(logits.argmax())]
                decoded += now
    finally:
        api.llama_batch_free(batch)
        api.llama_free(context)
    return decoded


# ---- the command ----


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="a local GGUF file")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="the dump to write")
    parser.add_argument("--tokens", type=ids, required=True, metavar="1,403,..", help="ids of the prompt. Use 8 or more: position 0 hides RoPE, mask and GQA mistakes")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--decode", type=count, default=0, metavar="N", help="then N greedy steps with the KV cache")
    more.add_argument("--decode-tokens", type=ids, metavar="5,9,..", help="then one step for each of these ids, as the engine under test was fed")
    parser.add_argument("--taps", metavar="GLOB[,GLOB]", help="only these, e.g. 'layers.0.*,logits'. Default: all")
    parser.add_argument("--program", action=argparse.BooleanOptionalAction, default=True,
                        help="write program.json too: every operation; every named node is a tap then (default; --no-program: the vocabulary's taps alone)")
    parser.add_argument("--cache", choices=["f32", "f16"], default="f32", help="type of the KV cache (default f32)")
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 1, metavar="N", help="threads. Default: all cores")
    parser.add_argument("--force", action="store_true", help="replace DIR if it holds a dump")
    parser.add_argument("--version", action="version", version=f"{NAME} {VERSION}")
    return parser.parse_args()


def dump(args):
    check_file(args.model)
    patterns = [glob for glob in (args.taps or "").split(",") if glob]
    with Dump(args.out, patterns, args.force) as out:
        import llama_cpp
        from llama_cpp import llama_cpp as api

        if llama_cpp.__version__ != NEEDS:
            say(f"warning: llama-cpp-python {llama_cpp.__version__}; written for {NEEDS}")
        log = Log(api)
        ggml = Ggml(Path(llama_cpp.__file__).parent / "lib")
        api.llama_backend_init()
        params = api.llama_model_default_params()
        params.n_gpu_layers = 0
        # Neither AMX nor repacked weights: their kernels differ from machine to machine, and AMX's crash where a sandbox forbids its tiles.
        params.use_extra_bufts = False
        say(f"loading {args.model}")
        model = api.llama_model_load_from_file(str(args.model).encode(), params)
        if not model:
            raise Refused(f"{args.model}: llama.cpp does not load it{log.because()}")
        fixed = args.decode_tokens or []
        vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
        for token in args.tokens + fixed:
            if not 0 <= token < vocab:
                raise Refused(f"token {token} is outside the vocabulary of {vocab}")
        rows = {api.LLAMA_ROPE_TYPE_NORM: "adjacent", api.LLAMA_ROPE_TYPE_NEOX: "half"}.get(api.llama_model_rope_type(model))
        heads = {"H": api.llama_model_n_head(model), "K": api.llama_model_n_head_kv(model)}
        recorder = Recorder(ggml, out, heads, Program(ggml) if args.program else None)
        decoded = run(api, log, model, recorder, args.tokens, len(fixed) or args.decode, fixed, args.cache, args.threads or 1)

        layers = range(api.llama_model_n_layer(model))
        expected = ["h0", *(f"layers.{n}.{kind}" for n in layers for kind in EXPECTED), "final_norm", "logits"]
        # A program names what there is: what else an architecture might have is not missing.
        missing = [tap for tap in expected if not args.program and tap not in recorder.seen and out.wants(tap)]
        if missing:
            say(f"warning: no node of the graph is {', '.join(missing[:4])}{' …' if len(missing) > 4 else ''}: not recorded")
        note = {
            "producer": {"name": NAME, "version": VERSION, "llama-cpp-python": llama_cpp.__version__},
            "model": args.model.name, "architecture": metadata(api, model, "general.architecture"),
            "tokens": args.tokens, "decode_tokens": decoded,
            "precision": recorder.precision(args.cache), "cache": args.cache, "attention": "no flash attention",
        }
        if rows:
            note["qk_rows"] = rows
        if missing:
            note["not_recorded"] = {"taps": missing, "reason": "no such node in llama.cpp's graph"}
        if args.program:
            recorder.settle()
            note["graph"] = recorder.program.graph()
            about = {"source": f"llama.cpp of llama-cpp-python {llama_cpp.__version__}", "model": note["architecture"]}
            out.files = recorder.program.files(about)
        out.finish(note)
        say(f"{out.out}: {len(out.entries)} tensors" + (f", decoded {','.join(map(str, decoded))}" if decoded else ""))
        api.llama_model_free(model)


def main():
    return exit_code(lambda: dump(arguments()), f"llama-cpp-python=={NEEDS}")
