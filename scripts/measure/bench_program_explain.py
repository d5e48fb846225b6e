#!/usr/bin/env python3
"""How long does explain take by a recorded program, and how long by the hand-built Plan of the same model? A random Llama of TinyLlama's shape (1.1 B weights,
f32), all taps of a prefill, mistakes made in PyTorch. Wall time, and `--cpu` the time of all threads together, which says the same on a machine that does other work.

    python scripts/measure/bench_program_explain.py --command target/release/firstdiff [--layers 22] [--tokens 14] [--rounds 3] [--at-most 1.5] [--cpu]
"""

import argparse
import copy
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import LlamaForCausalLM

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.measure import tinyllama
import firstdiff


def draw(weight):
    """Norms around 1, matrices around 0."""
    is_norm = weight.dim() == 1
    weight.normal_(1.0 if is_norm else 0.0, 0.1 if is_norm else 0.02)


def wrong_base(model, config):
    """Angles of another base."""
    other = copy.copy(config)
    other.rope_theta = 500000.0
    model.model.rotary_emb = type(model.model.rotary_emb)(other)
    return "rope-theta"


def wrong_scale(model, config):
    """Scores that are not divided by the root of the head's width."""
    for layer in model.model.layers:
        layer.self_attn.scaling = 1.0
    return "score-scale"


def wrong_weights(model, config):
    """Gate and up of one layer exchanged."""
    mlp = model.model.layers[len(model.model.layers) // 2].mlp
    mlp.gate_proj, mlp.up_proj = mlp.up_proj, mlp.gate_proj
    return "gate-up-swapped"


def record(model, folder, ids, program):
    with torch.no_grad(), firstdiff.record(model, folder, program=program):
        model(ids)


def clock(cpu):
    """Seconds so far: on the wall, or of all processes that were waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime if cpu else time.perf_counter()


def seconds(cpu, command, *words):
    """The time that a command took, and the causes that were found."""
    start = clock(cpu)
    ran = subprocess.run([command, "explain", *map(str, words), "--json", "-"], capture_output=True, text=True)
    took = clock(cpu) - start
    if ran.returncode not in (0, 1):
        sys.exit(ran.stderr)
    findings = json.loads(ran.stdout)["findings"]
    return took, [finding["cause"] or "unknown" for finding in findings]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", required=True, help="the firstdiff to time")
    parser.add_argument("--layers", type=int, default=22)
    parser.add_argument("--tokens", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="the time of all threads together, in place of wall time")
    parser.add_argument("--at-most", type=float, default=1.5, help="fail where the ratio of a mistake is larger")
    args = parser.parse_args()
    torch.set_num_threads(2)
    torch.manual_seed(1)
    worst = 0.0
    with tempfile.TemporaryDirectory() as work:
        work = Path(work)
        model, ids = tinyllama.model(args.layers, draw), torch.arange(args.tokens)[None] * 37 % 32000
        model.save_pretrained(work / "model")
        record(model, work / "golden", ids, True)
        for mistake in (wrong_base, wrong_scale, wrong_weights):
            model = LlamaForCausalLM.from_pretrained(work / "model", attn_implementation="eager", dtype=torch.float32).eval()
            cause = mistake(model, model.config)
            out = work / mistake.__name__
            record(model, out, ids, False)
            del model
            times = {"plan": [], "program": []}
            for _ in range(args.rounds):
                for how, words in (("plan", (work / "model", out)), ("program", (work / "golden", out, "--weights", work / "model"))):
                    took, found = seconds(args.cpu, args.command, *words)
                    times[how].append(took)
                    print(f"  {mistake.__name__} by {how}: {took:.1f} s: {', '.join(found)} (made: {cause})", flush=True)
            plan, program = statistics.median(times["plan"]), statistics.median(times["program"])
            worst = max(worst, program / plan)
            print(f"{mistake.__name__}: {plan:.1f} s by the Plan, {program:.1f} s by the program: {program / plan:.2f} times", flush=True)
    sys.exit(0 if worst <= args.at_most else 1)


if __name__ == "__main__":
    main()
