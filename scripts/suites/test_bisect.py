#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "numpy>=1.26"]
# ///
"""Tests that `firstdiff bisect --run` finds a fault in an engine of 22 layers in 8 runs, with under 1 % of the bytes of a full dump.

    python scripts/suites/test_bisect.py [--firstdiff BINARY] [--tinyllama] [--keep DIR]

The engine is this file again (`test_bisect.py engine MODEL`): a Llama written in PyTorch from the papers, with a K/V cache, recording itself
through crates/trace/python; it makes one mistake of its own, which ENGINE_FAULT names (`window 4 + sharp 15`: two; test_explain_run.py uses those
that no catalogue lists). The model has 22 layers of random weights in
TinyLlama's proportions, 16 times narrower; with --tinyllama also TinyLlama's own sizes (2 GB of bf16 weights are written). Prints the runs
and the share of bytes for every fault. Exit 1 where one is not found, or costs more.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT

LAYERS, TOKENS, DECODED = 22, [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5, 200, 33, 8], [23, 108]
SMALL = dict(hidden_size=128, intermediate_size=352, num_attention_heads=8, num_key_value_heads=1, vocab_size=2000)
TINYLLAMA = dict(hidden_size=2048, intermediate_size=5632, num_attention_heads=32, num_key_value_heads=4, vocab_size=32000)

# fault -> the tap that must be named, and the step.
FAULTS = {
    "none": (None, 0),
    "embedding": ("h0", 0),
    "norm-eps every": ("layers.0.attn_norm", 0),
    "rope-pairs every": ("layers.0.q_rope", 0),
    "rope-pairs 13": ("layers.13.q_rope", 0),
    "bias-k 17": ("layers.17.k", 0),
    "mask every": ("layers.0.scores", 0),
    "mask 6": ("layers.6.scores", 0),
    "mask-one 6": ("layers.6.scores", 0),
    "scale 11": ("layers.11.scores", 0),
    "kv-map 9": ("layers.9.qk", 0),
    "first-rows 8": ("layers.8.ffn_out", 0),
    "gelu 3": ("layers.3.ffn_act", 0),
    "gate-up 19": ("layers.19.ffn_act", 0),
    "residual 21": ("layers.21.h", 0),
    "residual 0": ("layers.0.h_attn", 0),
    "final-norm": ("final_norm", 0),
    "head": ("logits", 0),
    "cache 15": ("layers.15.qk", 1),
    "decode-position every": ("layers.0.q_rope", 1),
    "second-step 4": ("layers.4.ffn_out", 2),
    "decode-behind every": ("layers.0.q_rope", 1),
    "decode-once every": ("layers.0.q_rope", 1),
}
# Where the cause that is named matters: that of all positions would leave the decoded rows right, and the runs saw that they are wrong. Of one step
# alone there is none in the catalogue.
CAUSES = {"decode-behind every": ("rope-position", {"kind": "decode-behind"}), "decode-once every": (None, {})}
# What takes more than the 1 % of a full dump: parity, which is claimed of the whole of the logits.
DEAR = {"none": 5.0}
# As right where the engine ignores FIRSTDIFF_ROWS: the same mistake in the narrower of two taps that do not read each other. The wider one,
# which costs more, is listed as not asked.
EQUAL = {"layers.0.q_rope": "layers.0.k_rope"}
# CI runs these.
USUAL = ["none", "rope-pairs every", "bias-k 17", "mask 6", "gelu 3", "first-rows 8", "head", "cache 15", "second-step 4",
         "decode-behind every", "decode-once every"]
FAILED = []


def check(good, what):
    print(f"  {'ok  ' if good else 'FAIL'} {what}", flush=True)
    if not good:
        FAILED.append(what)


# ---- the engine ----


class Engine:
    """Shapes: T new tokens, S keys, D hidden, H heads, K key/value heads, d head dim."""

    def __init__(self, folder, fault):
        import torch
        self.torch = torch
        self.c = json.loads((folder / "config.json").read_text())
        self.w = {}
        raw = np.memmap(folder / "model.safetensors", mode="r")
        data = 8 + int.from_bytes(bytes(raw[:8]), "little")
        header = json.loads(bytes(raw[8:data]))
        header.pop("__metadata__", None)
        for name, t in header.items():
            at = slice(data + t["data_offsets"][0], data + t["data_offsets"][1])
            self.w[name] = torch.from_numpy(np.array(raw[at]).view("<u2").astype("<u4") << 16 if t["dtype"] == "BF16" else
                                            np.array(raw[at]).view("<u4")).view(torch.float32).reshape(t["shape"])
        self.faults = [each.strip().partition(" ")[::2] for each in fault.split("+")]
        self.cache, self.step = {}, 0

    def wrong(self, fault, layer=None):
        return any(made == fault and (layer is None or where in ("every", str(layer))) for made, where in self.faults)

    def norm(self, x, weight, outside=False):
        ms = x.pow(2).mean(-1, keepdim=True)
        eps = self.c["rms_norm_eps"]
        return x / (ms.sqrt() + 30 * eps if outside else (ms + eps).sqrt()) * weight

    def rope(self, x, start, layer, query):
        torch, d = self.torch, x.shape[-1]
        at = torch.arange(start, start + x.shape[0], dtype=torch.float64)
        if self.step and query and self.wrong("decode-position", layer):
            at = at * 0
        if self.step and self.wrong("decode-behind", layer) or self.step == 1 and self.wrong("decode-once", layer):
            at = at - 1
        angle = at[:, None] / self.c["rope_theta"] ** (torch.arange(0, d, 2, dtype=torch.float64) / d)
        angle = angle * 1.02 if self.wrong("angle", layer) else angle
        cos, sin = angle.cos().float()[:, None], angle.sin().float()[:, None]
        if self.wrong("rope-pairs", layer):
            a, b = x[..., 0::2], x[..., 1::2]
            return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)
        a, b = x[..., :d // 2], x[..., d // 2:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def forward(self, tokens, start, record):
        torch, c = self.torch, self.c
        D, H, K = c["hidden_size"], c["num_attention_heads"], c["num_key_value_heads"]
        T, d = len(tokens), D // H
        h = self.w["model.embed_tokens.weight"][tokens]
        h = record("h0", h * 1.01 if self.wrong("embedding") else h)
        for n in range(c["num_hidden_layers"]):
            p, tap = f"model.layers.{n}.", f"layers.{n}."
            w = lambda name: self.w[f"{p}{name}.weight"]
            x = record(tap + "attn_norm", self.norm(h, w("input_layernorm"), self.wrong("norm-eps", n)))
            q = record(tap + "q", (x @ w("self_attn.q_proj").T).view(T, H, d))
            k = x @ w("self_attn.k_proj").T
            k = record(tap + "k", (k + 0.1 if self.wrong("bias-k", n) else k).view(T, K, d))
            v = record(tap + "v", (x @ w("self_attn.v_proj").T).view(T, K, d))
            q = record(tap + "q_rope", self.rope(q, start, n, True))
            k = record(tap + "k_rope", self.rope(k, start, n, False))
            keys, values = self.cache.get(n, (k[:0], v[:0]))
            if self.step and self.wrong("cache", n):
                keys = keys.roll(1, 0)
            keys, values = torch.cat([keys, k]), torch.cat([values, v])
            self.cache[n] = keys, values
            S, group = keys.shape[0], torch.arange(H) // (H // K)
            if self.wrong("kv-map", n):
                group = (torch.arange(H) + 1) % K if K > 1 else group
            queries = q.roll(1, 1) if self.wrong("kv-map", n) and K == 1 else q
            qk = record(tap + "qk", torch.einsum("thd,shd->hts", queries, keys[:, group]))
            scores = qk * (1 / d if self.wrong("scale", n) else d ** -0.5)
            seen = 1 if self.wrong("mask-one", n) else S if self.wrong("mask", n) else 0
            future = torch.ones(T, S, dtype=torch.bool).triu(S - T + 1 + seen)
            if self.wrong("window", n):
                future |= torch.ones(T, S, dtype=torch.bool).tril(S - T - 5)
            if self.wrong("slope", n):
                scores = scores * torch.linspace(1, 1.07, H)[:, None, None]
            scores = record(tap + "scores", scores.masked_fill(future, float("-inf")))
            probs = record(tap + "probs", scores.softmax(-1))
            if self.wrong("values-before", n):
                values = torch.cat([values[:1], values[:-1]])
            context = record(tap + "context", torch.einsum("hts,shd->thd", probs, values[:, torch.arange(H) // (H // K)]).reshape(T, D))
            out = record(tap + "attn_out", context @ w("self_attn.o_proj").T)
            h = record(tap + "h_attn", 2 * h if self.wrong("residual", n) and n == 0 else h + out)
            x = record(tap + "ffn_norm", self.norm(h, w("post_attention_layernorm")))
            gate = record(tap + "ffn_gate", x @ w("mlp.gate_proj").T)
            up = record(tap + "ffn_up", x @ w("mlp.up_proj").T)
            if self.wrong("gate-up", n):
                gate, up = up, gate
            act = torch.nn.functional.gelu(gate, approximate="tanh") if self.wrong("gelu", n) else torch.nn.functional.silu(gate)
            act = gate * torch.sigmoid(1.35 * gate) if self.wrong("sharp", n) else act
            act = record(tap + "ffn_act", act * up)
            out = act @ w("mlp.down_proj").T
            if self.wrong("first-rows", n) and T > 1:  # a tile of rows that is never written
                out[:3] = 0
            if self.wrong("second-step", n) and self.step == 2:
                out = out * 1.5
            out = record(tap + "ffn_out", out)
            h = 1.003 * h if self.wrong("residual-times", n) else h
            h = record(tap + "h", x + out if self.wrong("residual", n) and n else h + out)
        x = record("final_norm", h if self.wrong("final-norm") else self.norm(h, self.w["model.norm.weight"]))
        record("logits", x @ (self.w["model.embed_tokens.weight"] if self.wrong("head") else self.w["lm_head.weight"]).T)


def engine(folder):
    import firstdiff
    import torch
    torch.set_num_threads(int(os.environ.get("ENGINE_THREADS", "1")))
    if os.environ.get("ENGINE_ROWS") == "ignored":
        os.environ.pop("FIRSTDIFF_ROWS", None)
    run = Engine(Path(folder), os.environ.get("ENGINE_FAULT", "none"))
    firstdiff.note(producer="test_bisect.py", precision="f32", qk_rows="half")
    firstdiff.tokens(TOKENS)

    def record(name, value):
        firstdiff.record(name, value)
        return value

    with torch.inference_mode():
        run.forward(TOKENS, 0, record)
        for at, token in enumerate(DECODED):
            firstdiff.next_step(token)
            run.step += 1
            run.forward([token], len(TOKENS) + at, record)
    firstdiff.finish()


# ---- the model ----


def write_model(folder, sizes):
    """Random weights, rounded to bf16, of which every layer adds about as much as there is."""
    import torch
    from scripts.goldens.fixture_models import safetensors_bytes

    c = dict(architectures=["LlamaForCausalLM"], model_type="llama", num_hidden_layers=LAYERS, rms_norm_eps=1e-5, rope_theta=10000.0,
             max_position_embeddings=2048, hidden_act="silu", tie_word_embeddings=False, attention_bias=False, mlp_bias=False,
             torch_dtype="bfloat16", **sizes)
    D, F, H, K, V = (sizes[k] for k in ("hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "vocab_size"))
    random, entries = torch.Generator().manual_seed(7), {}

    def add(name, *shape, scale):
        x = torch.randn(shape, generator=random) * scale if scale else 0.5 + torch.rand(shape, generator=random)
        entries[name] = "BF16", shape, x.bfloat16().view(torch.int16).numpy().tobytes()

    add("model.embed_tokens.weight", V, D, scale=0.5)
    for n in range(LAYERS):
        p = f"model.layers.{n}."
        add(p + "input_layernorm.weight", D, scale=None)
        for name, rows in (("q", D), ("k", D // H * K), ("v", D // H * K)):
            add(f"{p}self_attn.{name}_proj.weight", rows, D, scale=1.3 * D ** -0.5)
        add(p + "self_attn.o_proj.weight", D, D, scale=D ** -0.5)
        add(p + "post_attention_layernorm.weight", D, scale=None)
        for name in ("gate", "up"):
            add(f"{p}mlp.{name}_proj.weight", F, D, scale=D ** -0.5)
        add(p + "mlp.down_proj.weight", D, F, scale=F ** -0.5)
    add("model.norm.weight", D, scale=None)
    add("lm_head.weight", V, D, scale=D ** -0.5)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(c))
    (folder / "model.safetensors").write_bytes(safetensors_bytes(entries, {"format": "pt"}))


# ---- what is asked ----


def bisect(binary, reference, model, work, fault, **environment):
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("FIRSTDIFF_", "ENGINE_"))}
    command = f"'{sys.executable}' '{Path(__file__).resolve()}' engine '{model}'"
    done = subprocess.run([binary, "bisect", reference, "--run", command, "--work", work, "--json", "-"], capture_output=True, text=True,
                          env=kept | {"ENGINE_FAULT": fault} | environment)
    if not done.stdout:
        check(False, f"{fault}: {done.stderr.strip()}")
        return None, done
    return json.loads(done.stdout), done


def one(binary, reference, model, work, fault, most=1.0, **environment):
    tap, step = FAULTS[fault]
    began = time.perf_counter()
    report, done = bisect(binary, reference, model, work, fault, **environment)
    if report is None:
        return
    first = report["first_divergence"] or {}
    share = 100 * report["bytes"] / report["full_bytes"]
    due = (tap, EQUAL.get(tap, tap)) if environment.get("ENGINE_ROWS") == "ignored" else (tap,)
    found = first.get("tap") in due and first.get("step", 0) == step and not first.get("unchecked_between")
    right = found and done.returncode == (0 if tap is None else 1) and len(report["runs"]) <= 8 and share < max(most, DEAR.get(fault, 0))
    why = first.get("why") or {}
    cause = why.get("cause")
    # A cause needs the weights, which a dump does not hold.
    named = cause, why.get("params") or {}
    right = right and (reference != model or named == CAUSES.get(fault, named))
    check(right, f"{fault:<22} {len(report['runs'])} runs, {share:.2f} %, {time.perf_counter() - began:.1f} s: "
                 f"{report['verdict']} {first.get('tap', '')} step {first.get('step', 0)}{' (' + cause + ')' if cause else ''}"
                 f"{'' if found else f'; due {tap} step {step}, ' + done.stderr.strip()}")


def main():
    if sys.argv[1:2] == ["engine"]:
        return engine(sys.argv[2])
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--firstdiff", type=Path, default=ROOT / "target/release/firstdiff", metavar="BINARY")
    p.add_argument("--tinyllama", action="store_true", help="TinyLlama's own sizes as well, four faults")
    p.add_argument("--all", action="store_true", help="every fault, not the usual ones alone")
    p.add_argument("--only", metavar="FAULT", help="this fault only")
    p.add_argument("--keep", type=Path, metavar="DIR", help="work in this folder and leave it")
    a = p.parse_args()
    binary = a.firstdiff.resolve()
    faults = [f for f in FAULTS if (a.only or f) == f and (a.all or a.only or f in USUAL)]

    def each(faults, reference, model, name, **more):
        """Side by side, as the engine works with one thread."""
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            jobs = [pool.submit(one, binary, reference, model, work / f"{name}-{f}".replace(" ", "-"), f, **more) for f in faults]
        for job in jobs:
            job.result()

    with tempfile.TemporaryDirectory() as temporary:
        work = (a.keep or Path(temporary)).resolve()
        model = work / "model"
        if not (model / "model.safetensors").exists():
            write_model(model, SMALL)
        print("22 layers, the model as the reference")
        each(faults, model, model, "model")
        print("the reference is a dump")
        golden = work / "golden"
        if not golden.exists():
            subprocess.run([binary, "dump", model, "-o", golden, "--tokens", ",".join(map(str, TOKENS)), "--decode-tokens",
                            ",".join(map(str, DECODED))], check=True, capture_output=True)
        each(faults[3::6], golden, model, "dump")
        print("the engine ignores FIRSTDIFF_ROWS")
        each(faults[2::6], model, model, "rows", most=4.0 if a.all else 1.0, ENGINE_ROWS="ignored")
        if a.tinyllama:
            print("TinyLlama's sizes")
            large = work / "tinyllama"
            if not (large / "model.safetensors").exists():
                write_model(large, TINYLLAMA)
            for fault in ("none", "rope-pairs 13", "mask 6", "gelu 3", "cache 15") if a.only is None else faults:
                one(binary, large, large, work / f"tinyllama-{fault}".replace(" ", "-"), fault, ENGINE_THREADS="2")
    print(f"{len(FAILED)} failed" if FAILED else "all good")
    return 1 if FAILED else 0


if __name__ == "__main__":
    sys.exit(main())
