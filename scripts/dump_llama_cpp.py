#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["llama-cpp-python==0.3.36", "numpy>=1.26"]
# ///
"""What does llama.cpp compute at every tap of a model? Writes a firstdiff dump of a .gguf.

    python dump_llama_cpp.py MODEL.gguf -o DIR --tokens 1,403,407 --decode 3
    firstdiff compare DIR my_engine_dump/

The file is complete in itself: copy it anywhere. It needs llama-cpp-python 0.3.36 (`uv run dump_llama_cpp.py ...` builds
it, some minutes) exactly: tensors are read through the ggml_tensor struct of that release, whose layout is checked first.

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

dump.json's `precision` is f32 when weights and cache are; f16 or bf16 when a matrix or the cache is; ggml when a matrix is
quantised (llama.cpp then quantises activations too). `qk_rows` is `adjacent` for files of NORM-type RoPE (llama, mistral …),
whose Q and K rows are permuted against Hugging Face's, and `half` for NEOX-type (qwen2, qwen3 …). firstdiff undoes it.
Weights run on the CPU, as they are stored: AMX and repacked weights are switched off (use_extra_bufts). None of the archs llama, qwen2, qwen3 knows a sliding window: with T beyond it, they show another model.
"""

import argparse
import ctypes
import fnmatch
import json
import os
import re
import shutil
import sys
from pathlib import Path

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
F32, F16, BF16 = 0, 1, 30


class Refused(Exception):
    """What the user is told in one line, exit 2."""


def say(message):
    print(f"{NAME}: {message}", file=sys.stderr, flush=True)


# ---- the dump on disk (format 1 of firstdiff's docs/FORMAT.md) ----


class Dump:
    """A dump in the making: a temporary folder beside the final one, renamed when everything is in it."""

    def __init__(self, out, patterns, force):
        self.out = Path(out)
        self.patterns = patterns
        self.entries = {}
        if self.out.exists() and not self.out.is_dir():
            raise Refused(f"{self.out}: exists and is not a folder")
        if self.out.is_dir() and any(self.out.iterdir()):
            if not force:
                raise Refused(f"{self.out}: exists and is not empty; choose another, or --force to replace a dump")
            if not (self.out / "dump.json").is_file():
                raise Refused(f"{self.out}: holds no dump.json, so --force does not replace it")
        self.folder = self.out.with_name(f".{self.out.name}.{os.getpid()}.partial")

    def __enter__(self):
        self.folder.mkdir(parents=True)
        # What is left of a run that was killed says so.
        (self.folder / "dump.json").write_text('{"format": 1, "complete": false}\n', encoding="utf-8")
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.folder, ignore_errors=True)

    def wants(self, tap):
        return not self.patterns or any(fnmatch.fnmatchcase(tap, pattern) for pattern in self.patterns)

    def write(self, tap, step, values):
        import numpy as np

        file = f"{tap}.npy" if step == 0 else f"{tap}.step{step}.npy"
        np.save(self.folder / file, np.ascontiguousarray(values, "<f4"))
        self.entries[tap, step] = {"tap": tap, "step": step, "file": file, "shape": list(values.shape), "dtype": "f32"}

    def finish(self, note):
        if not self.entries:
            raise Refused("no tap matches --taps: nothing to write")
        lines = ",\n    ".join(json.dumps(entry) for entry in self.entries.values())
        head = json.dumps({"format": 1, "complete": True, **note}, indent=2)
        (self.folder / "dump.json").write_text(f'{head[:-2]},\n  "taps": [\n    {lines}\n  ]\n}}\n', encoding="utf-8")
        aside = self.out.with_name(f".{self.out.name}.{os.getpid()}.old")
        if self.out.is_dir() and any(self.out.iterdir()):
            os.rename(self.out, aside)
        os.rename(self.folder, self.out)
        shutil.rmtree(aside, ignore_errors=True)


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

    def read(self, address):
        """The values as f32, axes slowest first. ggml lists the fastest axis first and may have any strides."""
        import numpy as np

        tensor = Tensor.from_address(address)
        kinds = {F32: np.dtype("<f4"), F16: np.dtype("<f2"), BF16: np.dtype("<u2")}
        if tensor.type not in kinds:
            raise Refused(f"node {tensor.name.decode()} is of ggml type {tensor.type}; f32, f16 and bf16 are read")
        size = self.ggml_nbytes(address)
        buffer = (ctypes.c_char * size)()
        self.ggml_backend_tensor_get(address, buffer, 0, size)
        view = np.ndarray(tuple(tensor.ne)[::-1], kinds[tensor.type], buffer, 0, tuple(tensor.nb)[::-1])
        if tensor.type == BF16:
            return (view.astype(np.uint32) << 16).view(np.float32)
        return view.astype(np.float32)


# ---- recording ----


class Recorder:
    """Turns nodes into taps. `begin` before every llama_decode; `error` holds what went wrong in the callback."""

    def __init__(self, ggml, dump, heads):
        self.ggml, self.dump, self.heads = ggml, dump, heads
        self.step, self.rows, self.keys = 0, 0, 0
        self.seen, self.weights, self.attn_out = set(), set(), {}
        self.error, self.checked = None, False

    def begin(self, step, rows, keys):
        self.step, self.rows, self.keys, self.attn_out = step, rows, keys, {}

    def tap_of(self, address):
        """The tap of this node, or None. Names are `stem-layer`."""
        tensor = Tensor.from_address(address)
        name, op = tensor.name.decode(errors="replace"), self.ggml.op(tensor)
        if name in OUTER:
            return OUTER[name]
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
        if op == "ROPE" and match[1] in ROPED:
            return f"layers.{layer}.{ROPED[match[1]]}"
        kind, ops = NODES.get(match[1], (None, None))
        return f"layers.{layer}.{kind}" if kind and (ops is None or op in ops) else None

    def shaped(self, tap, values):
        """From ggml's four axes to the vocabulary's shape."""
        kind, T = tap.rsplit(".", 1)[-1], self.rows
        if kind in ("qk", "probs"):
            return values[0, :, :, : self.keys]
        if kind in PER_HEAD:
            return values.reshape(T, self.heads["H" if kind[0] == "q" else "K"], -1)
        return values.reshape(T, -1)

    def __call__(self, address, ask, _):
        """Called before a node (ask: is it wanted?) and after it (False stops the run)."""
        try:
            if ask:
                if not self.checked:
                    self.ggml.check(address)
                    self.checked = True
                self.note_weights(Tensor.from_address(address))
                tap = self.tap_of(address)
                self.seen.add(tap)
                return tap is not None and self.dump.wants(tap)
            tap = self.tap_of(address)
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


def feed(api, context, batch, tokens, position):
    batch.n_tokens = len(tokens)
    for i, token in enumerate(tokens):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, position + i, 1, 1
        batch.seq_id[i][0] = 0
    return api.llama_decode(context, batch)


def run(api, log, model, recorder, tokens, steps, fixed, cache, threads):
    """Prefill, then `steps` decode steps: on the tokens of `fixed`, or greedily. Returns the decoded ids."""
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
    batch = api.llama_batch_init(len(tokens), 0, 1)
    vocab = api.llama_vocab_n_tokens(api.llama_model_get_vocab(model))
    now, decoded, position = list(tokens), [], 0
    try:
        for step in range(steps + 1):
            recorder.begin(step, len(now), position + len(now))
            code = feed(api, context, batch, now, position)
            if recorder.error:
                raise recorder.error
            if code != 0:
                raise Refused(f"llama_decode failed with {code} at step {step}{log.because()}")
            say(f"step {step} of {steps}: {len(now)} token{'s' * (len(now) > 1)}")
            position += len(now)
            if step < steps:
                logits = np.ctypeslib.as_array(api.llama_get_logits_ith(context, -1), (vocab,))
                now = [fixed[step] if fixed else int(logits.argmax())]
                decoded += now
    finally:
        api.llama_batch_free(batch)
        api.llama_free(context)
    return decoded


# ---- the command ----


def ids(text):
    try:
        values = [int(part) for part in text.replace(",", " ").split()]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of token ids such as 1,403,407") from None
    if not values:
        raise argparse.ArgumentTypeError("no token ids")
    return values


def count(text):
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is not a count")
    return int(text)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.gguf", help="a local GGUF file")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="the dump to write")
    parser.add_argument("--tokens", type=ids, required=True, metavar="1,403,..", help="ids of the prompt. Use 8 or more: position 0 hides RoPE, mask and GQA mistakes")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--decode", type=count, default=0, metavar="N", help="then N greedy steps with the KV cache")
    more.add_argument("--decode-tokens", type=ids, metavar="5,9,..", help="then one step for each of these ids, as the engine under test was fed")
    parser.add_argument("--taps", metavar="GLOB[,GLOB]", help="only these, e.g. 'layers.0.*,logits'. Default: all")
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
        recorder = Recorder(ggml, out, {"H": api.llama_model_n_head(model), "K": api.llama_model_n_head_kv(model)})
        decoded = run(api, log, model, recorder, args.tokens, len(fixed) or args.decode, fixed, args.cache, args.threads or 1)

        layers = range(api.llama_model_n_layer(model))
        expected = ["h0", *(f"layers.{n}.{kind}" for n in layers for kind in EXPECTED), "final_norm", "logits"]
        missing = [tap for tap in expected if tap not in recorder.seen and out.wants(tap)]
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
        out.finish(note)
        say(f"{out.out}: {len(out.entries)} tensors" + (f", decoded {','.join(map(str, decoded))}" if decoded else ""))
        api.llama_model_free(model)


def main():
    try:
        dump(arguments())
    except ModuleNotFoundError as error:
        return fail(f"needs the Python package {error.name}: pip install llama-cpp-python=={NEEDS}, or uv run {NAME}")
    except (Refused, OSError) as error:
        return fail(error)
    except KeyboardInterrupt:
        return fail("interrupted; nothing was written")
    return 0


def fail(message):
    print(f"{NAME}: error: {message}", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
