"""Pairs of dumps whose truth is known: what the first wrong tap is, or that nothing is wrong, or that the candidate is not all there.

`make(folder, fixtures)` writes each pair as two dumps of format 1 and gives the list of them. The truth follows from how a pair is made, never from what a
comparator says. Runs are those of engine_numpy.py and campaign_engine.py and the shipped goldens; nothing of firstdiff's own code takes part.
"""

import io
import json
from typing import NamedTuple

import numpy as np

from scripts.engines import campaign_engine
from scripts.planted import layouts
from scripts.engines.engine_mistakes import Chosen
from scripts.engines.engine_numpy import LAYER_TAPS, Engine, full_name, write_dump

TOKENS, DECODED = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5], [23, 108, 61]  # of the goldens
RIGHT, INCOMPLETE = "right", "incomplete"
READS = {"q": ["attn_norm"], "k": ["attn_norm"], "v": ["attn_norm"], "q_norm": ["q"], "k_norm": ["k"], "q_rope": ["q"], "k_rope": ["k"], "qk": ["q_rope", "k_rope"],
         "scores": ["qk"], "probs": ["scores"], "context": ["probs", "v"], "attn_out": ["context"], "h_attn": ["attn_out"], "ffn_norm": ["h_attn"], "ffn_gate": ["ffn_norm"],
         "ffn_up": ["ffn_norm"], "ffn_act": ["ffn_gate", "ffn_up"], "ffn_out": ["ffn_act"], "h": ["h_attn", "ffn_out"], "logits": ["final_norm"]}


class Pair(NamedTuple):
    name: str       # a few words, for the table
    truth: object   # RIGHT, INCOMPLETE, or the taps of which any may be called first: `tap` or `tap@step`
    why: str        # how it was made
    dims: str = ""  # the candidate's axes where they are not the usual ones, as SGLang's comparator is told them: `site=dims,..`
    sglang: tuple = ()  # arguments that SGLang's documents name for such a pair


def label(tap, step):
    return f"{tap}@{step}" if step else tap


def in_order(taps):
    """{(tap, step): array} in the order in which the taps are computed."""
    def place(key):
        parts = key[0].split(".")
        inside = parts[0] == "layers" and parts[2] in LAYER_TAPS
        outside = {"h0": -1, "final_norm": 1 << 20, "logits": 1 << 21}
        return key[1], (int(parts[1]) * 100 + LAYER_TAPS.index(parts[2])) if inside else outside.get(key[0], 1 << 22)
    return {key: taps[key] for key in sorted(taps, key=place)}


def write(folder, taps, about, bf16=False):
    """A dump of format 1. With `bf16` the upper halves of f32 are stored, exact for values that are bf16 already."""
    entries, members = [], {}
    for (tap, step), x in taps.items():
        file, x = f"{tap}.step{step}.npy" if step else f"{tap}.npy", np.ascontiguousarray(x)
        kind = {"float64": "f64", "float32": "f32", "float16": "f16"}.get(x.dtype.name, x.dtype.name)
        if bf16 and kind == "f32":
            kind, x = "bf16", (x.view("<u4") >> 16).astype("<u2").view("V2")
        entries.append({"tap": tap, "step": step, "file": file, "shape": list(x.shape), "dtype": kind})
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, x)
        members[file] = buffer.getvalue()
    members["dump.json"] = json.dumps({"format": 1, "complete": True, **about, "taps": entries}, indent=1).encode()
    write_dump(folder, members)


def golden(path):
    """A shipped dump, its taps in order and what it says of itself."""
    read = (lambda name: np.load(path / name)) if path.is_dir() else np.load(path).__getitem__
    about = json.loads((path / "dump.json").read_bytes() if path.is_dir() else _member(path, "dump.json"))
    key = (lambda file: file) if path.is_dir() else (lambda file: file.removesuffix(".npy"))
    taps = {(e["tap"], e["step"]): read(key(e["file"])) for e in about.pop("taps")}
    return in_order(taps), about


def _member(path, name):
    import zipfile

    with zipfile.ZipFile(path) as z:
        return z.read(name)


class Edited(Engine):
    """A run in which `fault(tap, step, x)` may give another value than the one that was computed; what follows reads it."""

    def __init__(self, folder, fault):
        super().__init__(folder)
        self.fault = fault

    def record(self, l, tap, x):
        other = self.fault(full_name(l, tap), self.step, x)
        return super().record(l, tap, x if other is None else np.asarray(other, np.float32))


def ran(model, fault=lambda *_: None, mistake=None, layers=None, tokens=TOKENS, decoded=DECODED):
    """The taps of a run of engine_numpy, what its dump.json says, and where the mistake must first show."""
    engine, due = Edited(model, fault), None
    if mistake:
        chosen = Chosen.parse(mistake, layers)
        due = label(*chosen.first_tap(engine))
        chosen.apply(engine)
    with np.errstate(all="ignore"):
        taps = engine.run(tokens, decoded)
    about = {"producer": {"name": "engine_numpy"}, "model": engine.name, "architecture": engine.name, "tokens": list(tokens), "decode_tokens": list(decoded),
             "precision": "f32", "qk_rows": "half"}
    return in_order(taps), about, due


def at(tap, change):
    """A fault of one tap, in all steps."""
    return lambda name, step, x: change(x.copy()) if name == tap else None


def times(factor, *where):
    def change(x):
        x[where] *= np.float32(factor)
        return x
    return change


def put(value, *where):
    def change(x):
        x[where] = value
        return x
    return change


class InTwo(campaign_engine.Arithmetic):
    """Products summed in two halves, each rounded before they are added, as PyTorch's allow_bf16_reduced_precision_reduction (its default) lets a GPU do."""

    def total(self, x, w):
        half = x.shape[-1] // 2
        return self.round(super().total(x[..., :half], w[:, :half])) + self.round(super().total(x[..., half:], w[:, half:]))


def random_run(arithmetic, order, model, fault=None):
    """A run of campaign_engine's random model: one prompt, two decode steps. Order 2 sums in another order than 0, in 16 bits in halves."""
    kind = InTwo if order and arithmetic != "f32" else campaign_engine.Arithmetic
    run = campaign_engine.Run(model, kind(arithmetic, order), {}, fault)
    for tokens in ([5, 17, 42, 99, 3, 50, 77, 17, 28, 64, 5], [9], [33]):
        run.step(tokens)
    taps = {(tap, step): x for step, (_, found) in enumerate(run.steps) for tap, x in found.items()}
    return in_order(taps), {"tokens": run.steps[0][0], "decode_tokens": [9, 33], "precision": arithmetic, "qk_rows": "half"}


def large(folder, seed=3):
    """Two dumps of 256 MiB, a right pair: 16 taps of [1024, 4096] f32 that differ by a rounding error."""
    rng = np.random.default_rng(seed)
    sides = {"reference": {}, "candidate": {}}
    for tap in ["h0", *(f"layers.{l}.h" for l in range(15))]:
        x = rng.standard_normal((1024, 4096), np.float32)
        sides["reference"][tap, 0] = x
        sides["candidate"][tap, 0] = x * (1 + np.float32(6e-8) * rng.integers(-1, 2, x.shape).astype(np.float32))
    for side, taps in sides.items():
        write(folder / side, taps, {"precision": "f32", "model": "llama", "tokens": list(range(1, 1025))})


def make(folder, fixtures):
    """Writes all pairs under `folder`; the list of them, each with its reference and candidate at folder/NUMBER."""
    pairs = []
    without_scores = lambda taps: {k: x for k, x in taps.items() if not k[0].endswith(".scores")}
    llama, qwen2 = fixtures / "models/llama", fixtures / "models/qwen2"
    torch_llama, about_llama = golden(fixtures / "golden/llama-torch")
    torch_qwen2, about_qwen2 = golden(fixtures / "golden/qwen2-torch.npz")
    right, about, _ = ran(llama)

    def add(name, truth, why, candidate, about=about, reference=torch_llama, reference_about=about_llama, bf16=(False, False), scores=False, **more):
        if not scores:  # masked scores hold -inf, which some comparators take for a difference: in the pairs that are about that alone
            candidate, reference = without_scores(candidate), without_scores(reference)
        place = folder / f"{len(pairs):02}"
        write(place / "reference", reference, reference_about, bf16[0])
        write(place / "candidate", candidate, about, bf16[1])
        pairs.append(Pair(name, truth, why, **more))
        return place / "candidate"

    def planted(name, why, fault, truth, **how):
        taps, said, _ = ran(llama, fault, **how)
        add(name, [truth], why, taps, said)

    def mistaken(name, why, mistake, model=llama, layers=None, keep=lambda tap: True, truth=None, **side):
        taps, said, due = ran(model, mistake=mistake, layers=layers)
        add(name, truth or [due], why, {k: x for k, x in taps.items() if keep(k[0])}, said, **side)

    # -- right runs: nothing may be blamed --
    add("f32, NumPy", RIGHT, "PyTorch's run and a NumPy engine's, all in f32", right)
    cpp, about_cpp = golden(fixtures / "golden/qwen2-llama-cpp.npz")
    add("f32, llama.cpp", RIGHT, "PyTorch's run and llama.cpp's, of taps that both record", cpp, about_cpp, torch_qwen2, about_qwen2)
    cpp, about_cpp = golden(fixtures / "golden/llama-llama-cpp.npz")
    add("GGUF's row order", RIGHT, "the same of a GGUF, whose rows of Q and K are permuted within each head", cpp, about_cpp, torch_llama, about_llama)
    model = campaign_engine.make_model(np.random.default_rng(12))
    exact, about_exact = random_run("f32", 0, model)
    halved = lambda taps: {k: x.astype(np.float16) for k, x in taps.items()}
    same = lambda taps: taps
    for kind, store, narrow in (("bf16", same, True), ("f16", halved, False)):
        own, about_own = random_run(kind, 0, model)
        other, about_other = random_run(kind, 2, model)
        add(f"{kind} and {kind}", RIGHT, f"two runs in {kind}, stored as that; the candidate sums each product in two halves that are rounded", store(other), about_other, store(own), about_own, (narrow, narrow))
        add(f"{kind} and f32", RIGHT, f"a run in {kind}, stored as that, and the f32 reference", store(other), about_other, exact, about_exact, (False, narrow))
    rounded, about_rounded = golden(fixtures / "rounded/torch-int8.npz")
    recorded = lambda taps: {k: x for k, x in taps.items() if k in rounded}
    add("int8", RIGHT, "PyTorch's dynamic int8 of the same model: another arithmetic, and no operation is wrong", rounded, about_rounded, recorded(torch_llama),
        {**about_llama, "decode_tokens": about_rounded["decode_tokens"]})
    add("f32 kept in f16", RIGHT, "a run in f32 whose tensors are stored in 16 bits, `precision` f16", halved(right), {**about, "precision": "f16"})
    heads_first = layouts.each(layouts.moved(1, 0, 2), layouts.HEADS)(right)
    add("heads first", RIGHT, "q, k, v and their rotations as [H,T,d] where the reference has [T,H,d]", heads_first, dims=",".join(f"{s}=h t d" for s in layouts.HEADS))
    add("batch axis", RIGHT, "an axis of length 1 before all", {k: x[None] for k, x in right.items()}, dims="*=b")
    merged = layouts.each(lambda key, x: x.reshape(len(x), -1), layouts.HEADS)(right)
    add("heads merged", RIGHT, "q, k, v and their rotations as [T,H*d]", merged, dims=",".join(f"{s}=t (h*d)" for s in layouts.HEADS))
    no_keys = lambda taps: {k: x for k, x in taps.items() if k[0].rsplit(".", 1)[-1] not in layouts.KEYS}
    one_pass, about_pass, _ = ran(llama, tokens=TOKENS + DECODED, decoded=[])
    add("steps and one pass", RIGHT, "14 tokens in one pass, and 11 with 3 decode steps; no tap with keys", no_keys(right), about, no_keys(one_pass), about_pass,
        sglang=("--preset", "sglang_megatron"))
    filled = layouts.each(lambda key, x: np.where(np.isinf(x), np.float32(-1e9), x), ("scores",))(right)
    add("mask of -1e9", RIGHT, "masked scores are -1e9 where the reference has -inf; the probabilities are equal", filled, scores=True)
    add("mask of -inf", RIGHT, "masked scores are -inf in both runs, as PyTorch and NumPy write them", right, scores=True)
    model = campaign_engine.make_model(np.random.default_rng(13))
    for layer in model["layers"]:
        layer["down"] = layer["down"] * 0
    zero, about_zero = random_run("f32", 0, model)
    add("all zero", RIGHT, "the output of each FFN is 0 in both runs", random_run("f32", 2, model)[0], about_zero, zero, about_zero)
    extra = dict(right) | {("scratch", 0): np.arange(12, dtype=np.float32)}
    add("a tap more", RIGHT, "the candidate has a buffer that the reference has not", extra)

    # -- one fault: which tap is the first that is wrong? --
    mistaken("RoPE pairs", "adjacent pairs are rotated", "rope-pairing")
    mistaken("epsilon 1e-6", "1e-6 for 1e-5 in all norms", "norm-eps=1e-6")
    planted("attention, 1 %", "the scale of attention in layer 1 is 1 % too large", at("layers.1.scores", lambda x: x * np.float32(1.01)), "layers.1.probs")
    planted("head 2, 3 %", "head 2 of layer 1's context is 3 % too large", at("layers.1.context", times(1.03, slice(None), slice(32, 48))), "layers.1.context")
    planted("channel 7, 5 %", "one channel of a norm of layer 0 is 5 % too large", at("layers.0.ffn_norm", times(1.05, slice(None), 7)), "layers.0.ffn_norm")
    planted("one value", "one value of layer 0's gated product is 0.5 too large, in the prompt", lambda name, step, x: x + put(0.5, 5, 17)(np.zeros_like(x))
            if (name, step) == ("layers.0.ffn_act", 0) else None, "layers.0.ffn_act")
    mistaken("mask, one late", "layer 1 sees one key of the future", "mask-shifted=future", layers=[1], scores=True)
    mistaken("heads of keys", "query head h reads key head h mod K", "kv-head-map=mod")
    mistaken("bias omitted", "Qwen2's q, k, v without their bias", "bias-omitted", qwen2, reference=torch_qwen2, reference_about=about_qwen2)
    mistaken("cache slot", "a key is written to a wrong slot of the cache: wrong in decode steps alone", "kv-cache-shift")
    mistaken("residual", "layer 0 adds the branch to itself instead of the stream", "residual-source=doubled", layers=[0])
    planted("NaN", "one NaN in layer 1's gated product", at("layers.1.ffn_act", put(np.nan, 0, 3)), "layers.1.ffn_act")
    planted("output is 0", "layer 0's attn_out was never written", at("layers.0.attn_out", lambda x: x * 0), "layers.0.attn_out")
    planted("constant", "layer 1's ffn_up is one value throughout", at("layers.1.ffn_up", lambda x: np.full_like(x, x.mean())), "layers.1.ffn_up")
    leak = lambda name, step, x: np.where(np.isinf(x), np.float32(-15), x) if name == "layers.0.scores" else None
    taps, said, _ = ran(llama, leak)
    add("mask of -15", ["layers.0.scores", "layers.0.probs"], "layer 0 fills its mask with -15, so that masked keys have weights of up to 1e-6", taps, said, scores=True)
    model = campaign_engine.make_model(np.random.default_rng(12))
    wrong = campaign_engine.value_fault("head", "context", 0, 1.1, np.random.default_rng(1))
    channel = campaign_engine.value_fault("channel", "ffn_out", 0, 1.5, np.random.default_rng(1))
    for kind, store, narrow in (("bf16", same, True), ("f16", halved, False)):
        own, about_own = random_run(kind, 0, model)
        for words, fault, tap in (("10 %", wrong, "layers.0.context"), ("one channel", channel, "layers.0.ffn_out")):
            taps, said = random_run(kind, 2, model, fault)
            add(f"{kind}, {words}", [tap], f"two runs in {kind}; {'context is 10 % too large' if tap.endswith('context') else 'one channel of ffn_out is 1.5 times as large'}",
                store(taps), said, store(own), about_own, (narrow, narrow))
    for kind, narrow, size in (("f32", False, 1.001), ("bf16", True, 1.01), ("bf16", True, 1.03)):
        own, about_own = random_run(kind, 0, model)
        scale = lambda name, at, x, start: x * np.float32(size) if name == "scores" and at == 0 else None
        taps, said = random_run(kind, 2, model, scale)
        add(f"{kind}, attention {round(100 * size - 100, 1):g} %", ["layers.0.probs"], f"two runs in {kind}; the scale of attention is {round(100 * size - 100, 1):g} % too large",
            taps, said, own, about_own, (narrow, narrow))
    small = dict(model) | {"embed": model["embed"] * np.float32(1e-6)}
    own, about_own = random_run("f32", 0, small)
    taps, said = random_run("f32", 2, small, lambda name, at, x, start: x * np.float32(1.2) if name == "h0" else None)
    add("small values", ["h0"], "embeddings of about 1e-6, 20 % too large", taps, said, own, about_own)
    big = dict(model) | {"embed": model["embed"] * np.where(np.arange(model["D"]) == 3, 3000, 1).astype(np.float32)}
    own, about_own = random_run("f32", 0, big)
    taps, said = random_run("f32", 2, big, lambda name, at, x, start: np.where(np.arange(x.shape[-1]) == 3, x, x * np.float32(1.01)) if name == "h0" else None)
    add("a massive channel", ["h0"], "one channel is 3000 times as large as the others, which are 1 % too large", taps, said, own, about_own)
    mistaken("streams only", "another RoPE base; the candidate recorded h0, each layer's output, final_norm and logits", "rope-theta",
             keep=lambda tap: tap in ("h0", "final_norm", "logits") or tap.split(".")[-1] == "h", truth=["layers.0.h"])
    mistaken("not recorded", "adjacent RoPE pairs, and neither q_rope nor k_rope in the candidate", "rope-pairing",
             keep=lambda tap: not tap.endswith("_rope"), truth=["layers.0.qk"])
    other, said, _ = ran(llama, tokens=[2, *TOKENS[1:]])
    add("other tokens", ["h0", INCOMPLETE], "the first token is another one, and both dumps say their tokens", other, said)
    ids = {("picked", step): np.argmax(right["logits", step], -1).astype(np.float32) for step in range(4)}  # read as integers where a comparator takes any
    wrong_ids = {k: x + (np.arange(len(x), dtype=np.float32) == 4) if k[1] == 0 else x for k, x in ids.items()}
    add("token ids", ["picked"], "ids of picked tokens beside the taps, one of them off by 1", dict(right) | wrong_ids, about, dict(torch_llama) | ids, about_llama)

    # -- not all there: must not pass without a word --
    add("a tap less", INCOMPLETE, "layers.1.attn_norm of the prompt is not in the candidate; the rest is right", {k: x for k, x in right.items() if k != ("layers.1.attn_norm", 0)})
    cut = dict(list(right.items())[: len(right) // 8])
    add("run cut off", INCOMPLETE, "the engine died within layer 0 of the prompt; dump.json says `complete: false`", cut, {**about, "complete": False})
    broken = add("file cut off", INCOMPLETE, "one file of a right dump holds half of its bytes", right)
    file = broken / "layers.1.ffn_gate.npy"
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    return pairs
