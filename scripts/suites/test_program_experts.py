#!/usr/bin/env python3
"""Tests that experts are judged under the candidate's own routing, and that a router is blamed only if it is wrong.
Small mixtures of experts of transformers are recorded, and run again in ways that send tokens to other experts.

    python scripts/suites/test_program_experts.py --command target/release/firstdiff [ARCH ..] [--keep DIR]

- `bf16`: the same model in bf16. Nothing may be blamed.
- `rounding`: two experts of each router are alike up to the last bits, and so is the candidate's router. Tokens flip; nothing may be blamed.
- `behind`: the same, and the head is another. `logits` (or the head itself, where they are scaled) must be blamed, and nothing else: what follows a token that went elsewhere is judged.
- `router`: the candidate's routers are others by half. `router_logits` must be blamed, and no expert.
- `expert`: the same, and one matrix of an expert is another, in a layer and a step where the reference did not hit that expert and the candidate does.
  That expert's `ffn_out` must be blamed there, beside the routers, and nothing else.

Of each: how many tokens went elsewhere, how many taps of experts and behind them were judged, and how many were not.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites import architectures
from scripts.suites.test_program_faults import buffers_in
import firstdiff

NAMES = ("mixtral qwen3_moe olmoe phimoe flex_olmo qwen2_moe gpt_oss hunyuan_v1_moe ernie4_5_moe glm4_moe deepseek_v2 deepseek_v3 dots1 minimax qwen3_next jamba granitemoe "
         "granitemoeshared granitemoehybrid jetmoe llama4_text dbrx").split()
DBRX = dict(d_model=32, n_heads=4, n_layers=2, vocab_size=99, max_seq_len=64, attn_config=dict(kv_n_heads=2, clip_qkv=8.0),
            ffn_config=dict(ffn_hidden_size=48, moe_num_experts=4, moe_top_k=2))
LAST_BITS, BY_HALF = 2.0 ** -23, 0.5
# Of these taps a wrong router is named: what its weights give, and nothing behind.
ROUTERS = re.compile(r".*\brouter_logits(\.step\d+)?")


def build(name):
    if name == "dbrx":
        architectures.OWN_NAMES.setdefault(name, DBRX)
    return architectures.build(name)


def record(model, name, folder):
    with firstdiff.record(model, folder, program=True):
        architectures.run(model, name)


class Golden:
    """The recorded program of the reference: which weights its routers and experts read, and which experts it hits."""

    def __init__(self, folder):
        self.folder, self.program = folder, json.loads((folder / "program.json").read_text())
        self.weights = {int(key): name for key, name in self.program["weights"].items()}
        self.taps = {(tap["tap"], tap["step"]): tap for tap in self.program["taps"]}
        self.made = {}
        for at, op in enumerate(self.program["ops"]):
            for buffer in buffers_in(op["y"]):
                self.made.setdefault(buffer, at)

    def matrix(self, key):
        """The weight of at least two axes that makes a tap, or that its operation's operands come of."""
        at = self.taps[key]["op"]
        for _ in range(3):
            values = [value for value in self.program["ops"][at]["i"] if isinstance(value, int) or isinstance(value, dict) and "v" in value]
            views = [value["v"] if isinstance(value, dict) else [value, self.program["values"][value][1]] for value in values]
            for view in views:
                if view[0] in self.weights and len(view[1]) > 1:
                    return self.weights[view[0]]
            at = next(self.made[view[0]] for view in views if view[0] in self.made and view[0] not in self.weights)
        raise LookupError(key)

    def reads(self, tap, matrix):
        """Whether an operation that makes a tap of any step, or one of the two before it, reads a matrix."""
        ops = {found["op"] for key, found in self.taps.items() if key[0] == tap}
        for _ in range(3):
            buffers = {buffer for op in ops for buffer in buffers_in(self.program["ops"][op]["i"])}
            if any(self.weights.get(buffer) == matrix for buffer in buffers):
                return True
            ops = {self.made[buffer] for buffer in buffers if buffer in self.made}
        return False

    def routers(self):
        return sorted({self.matrix(key) for key in self.taps if key[0].endswith("router_logits")})

    def hit(self):
        """Layer, step and number of every expert that some token goes to."""
        return hits(self.folder)


def hits(folder):
    found = set()
    for tap in json.loads((folder / "dump.json").read_text())["taps"]:
        layer = re.fullmatch(r"layers\.(\d+)\.router_topk", tap["tap"])
        if layer:
            found |= {(int(layer[1]), tap["step"], int(expert)) for expert in np.unique(np.load(folder / tap["file"]))}
    return found


def other_routers(model, routers, size):
    generator = torch.Generator().manual_seed(13)
    with torch.no_grad():
        for name in routers:
            weight = model.get_parameter(name)
            weight.mul_(1 + size * torch.randn(weight.shape, generator=generator))


def alike(model, routers):
    """Two experts of each router that only the last bits tell apart."""
    generator = torch.Generator().manual_seed(17)
    with torch.no_grad():
        for name in routers:
            weight = model.get_parameter(name)
            weight[2] = weight[1] * (1 + LAST_BITS * torch.randn(weight[1].shape, generator=generator))


def replay(command, golden, candidate, weights, *more):
    done = subprocess.run([command, "replay", golden, candidate, "--weights", weights, "--json", "-", *more], capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return {"error": (done.stderr.strip().splitlines() or ["nothing said"])[-1]}
    return json.loads(done.stdout)


def told(report):
    """The taps that are blamed, and how it stands with those of experts and behind them."""
    wrong = [f"{tap['tap']}@{tap['step']}" for tap in report["taps"] if tap["status"] == "diverged"]
    experts = [tap for tap in report["taps"] if ".experts." in tap["tap"] and "/" not in tap["tap"] or tap["tap"].endswith("ffn_out")]
    judged = sum(tap["status"] in ("exact", "rounding", "diverged") for tap in experts)
    open_ = [tap for tap in experts if tap["status"] == "unchecked" and tap["reason"] != "not recorded"]
    return wrong, judged, open_


def cases(golden, name, folder):
    """Each run: its name, the folder of the candidate, and which taps it may be blamed for, and which must be."""
    routers = golden.routers()
    try:
        record(build(name).to(torch.bfloat16), name, folder / "bf16")
        yield "bf16", folder / "bf16", re.compile("(?!)"), None
    except RuntimeError as error:
        print(f"{name:18} bf16      is not run by transformers: {error}", flush=True)
    model = build(name)
    other_routers(model, routers, BY_HALF)
    record(model, name, folder / "router")
    yield "router", folder / "router", ROUTERS, ROUTERS
    new = sorted(hits(folder / "router") - golden.hit())
    for layer, step, expert in new:
        known = [key for key in golden.taps if re.fullmatch(rf"layers\.{layer}\.experts\.\d+\.ffn_out", key[0])]
        if not known:
            continue
        sibling = int(known[0][0].split(".")[3])
        matrix = golden.matrix(known[0])
        model = build(name)
        other_routers(model, routers, BY_HALF)
        with torch.no_grad():
            weight = model.get_parameter(matrix)
            if weight.dim() > 2:
                weight = weight[expert]
            elif f".experts.{sibling}." in matrix:
                weight = model.get_parameter(matrix.replace(f".experts.{sibling}.", f".experts.{expert}."))
            else:
                rows = weight.shape[0] // 4
                weight = weight[expert * rows:(expert + 1) * rows]
            weight[: weight.shape[0] // 3] *= 1.25
        record(model, name, folder / "expert")
        due = rf"layers\.{layer}\.experts\.{expert}\.ffn_out"
        if any(op["o"] == "tolist" for op in golden.program["ops"]):
            # Pieces of one tensor: where no row is the expert's its operations run all the same, and have no tap. The next one behind them has it.
            due = rf"({due}|layers\.{layer}(\.ffn_out|\..*/output_linear|/\w+))"
        yield "expert", folder / "expert", re.compile(rf".*router_logits|{due}"), re.compile(rf"{due}@{step}")
        break


def arguments(text):
    """What scripts that judge the command on mixtures are asked."""
    parser = argparse.ArgumentParser(description=text.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="ARCH")
    parser.add_argument("--command", required=True, help="the firstdiff to judge")
    parser.add_argument("--keep", metavar="DIR", help="leave the dumps there")
    return parser


def recorded(args, made):
    """Each architecture, with a folder that holds its `model` and the recording of a right run of it, `golden`."""
    for name in args.names or NAMES:
        folder = Path(args.keep or made) / name
        shutil.rmtree(folder, ignore_errors=True)
        model = build(name)
        model.save_pretrained(folder / "model", safe_serialization=True)
        record(model, name, folder / "golden")
        yield name, folder, model


def main():
    args = arguments(__doc__).parse_args()
    torch.set_num_threads(1)
    bad = total = 0
    with tempfile.TemporaryDirectory() as made:
        for name, folder, model in recorded(args, made):
            runs = [(golden := Golden(folder / "golden"), folder / "model", case) for case in cases(Golden(folder / "golden"), name, folder)]
            model = build(name)
            alike(model, golden.routers())
            model.save_pretrained(folder / "alike-model", safe_serialization=True)
            record(model, name, folder / "alike")
            other_routers(model, golden.routers(), LAST_BITS)
            record(model, name, folder / "rounding")
            alike_golden = Golden(folder / "alike")
            runs.append((alike_golden, folder / "alike-model", ("rounding", folder / "rounding", re.compile("(?!)"), None)))
            head = model.get_output_embeddings()
            if head is not None and head.weight is not model.get_input_embeddings().weight:
                with torch.no_grad():
                    head.weight[::3] *= 1.25
                record(model, name, folder / "behind")
                runs.append((alike_golden, folder / "alike-model", ("behind", folder / "behind", re.compile("logits|/lm_head"), re.compile("logits|/lm_head"))))
            for golden, weights, (case, candidate, may, must) in runs:
                report = replay(args.command, golden.folder, candidate, weights)
                total += 1
                if "error" in report:
                    bad += 1
                    print(f"{name:18} {case:9} ERROR {report['error']}", flush=True)
                    continue
                wrong, judged, unjudged = told(report)
                tokens = sum(len(routed["rerouted"]) for routed in report["routing"])
                because = sorted({routed["because"] for routed in report["routing"]})
                false = [tap for tap in wrong if not may.fullmatch(tap.split("@")[0])]
                missed = must is not None and not any(must.fullmatch(tap if "@" in must.pattern else tap.split("@")[0]) for tap in wrong)
                word = "FALSE ALARM" if false else "MISSED" if missed else "ok"
                bad += word != "ok"
                new = sorted({key[0] for key in hits(candidate) ^ hits(golden.folder)})
                print(f"{name:18} {case:9} {word:11} {tokens:3} tokens elsewhere ({', '.join(because) or 'none'}), experts otherwise hit in layers {new}; "
                      f"taps of experts judged {judged}, not {len(unjudged)}; blamed {len(wrong)} {false[:3]}", flush=True)
                if unjudged:
                    print(f"{'':18} not judged: {unjudged[0]['tap']}@{unjudged[0]['step']}: {unjudged[0]['reason']}", flush=True)
    print(f"{total} runs, {bad} bad")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
