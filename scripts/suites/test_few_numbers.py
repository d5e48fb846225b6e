#!/usr/bin/env python3
"""Tests that nothing is proved from a few numbers that differ without a mistake.
Classifiers and pooled embeddings of 1 to 64 numbers are recorded as programs; candidates are the numbers of other prompts, of other models, of other rows, and
noise. No cause, law or factor may be proved of them, by `explain` or `compare`.

    python scripts/suites/test_few_numbers.py --command target/release/firstdiff [--count 500] [--seed 1] [--seconds 5]

Exits with 1 where one is.
"""

import argparse
import copy
import json
import re
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites import architectures
from scripts.suites.test_program_mistakes import ask, firstdiff

NAMES = "bert roberta distilbert llama qwen2 qwen3 gpt2 mistral opt gemma phi3 stablelm".split()
WIDTHS = (1, 1, 2, 2, 3, 4, 5, 8, 16, 32, 64)
# What compare and explain say where a factor or a relation is claimed of the numbers.
FACTOR = re.compile(r"times the reference|leaves NMSE|times the right value")


def classifier(name, width, seed):
    """A small model whose last row becomes `width` numbers."""
    torch.manual_seed(seed)
    config = architectures.config(name)
    config.num_labels, config.pad_token_id = width, 0
    model = AutoModelForSequenceClassification.from_config(config)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.normal_(0, 1.3 / weight.shape[-1] ** 0.5)
    return model.eval()


def numbers(model, ids):
    with torch.no_grad():
        return model(input_ids=ids).logits.float().numpy()


def prompt(rng, length):
    return torch.tensor([rng.integers(3, 99, length)])


def candidates(rng, name, width, model, ids, right):
    """Numbers that no mistake gives, each with its kind."""
    length = ids.shape[1]
    yield "another prompt", numbers(model, prompt(rng, length))
    yield "a longer prompt", numbers(model, prompt(rng, length + int(rng.integers(1, 9))))
    yield "an id exchanged", numbers(model, torch.where(torch.arange(length) == int(rng.integers(length)), int(rng.integers(3, 99)), ids))
    yield "another model", numbers(classifier(name, width, int(rng.integers(2, 10**6))), ids)
    yield "noise", rng.normal(0, right.std() or 1.0, right.shape)
    yield "another size", (rng.normal(0, 1, right.shape) * 10.0 ** rng.integers(-3, 4))
    yield "noise beside it", right + rng.normal(0, 0.1, right.shape) * np.abs(right)
    yield "rounded by hand", np.round(numbers(model, prompt(rng, length)), 2)


def write(folder, ids, values):
    """A dump of the numbers that claims the reference's tokens."""
    folder.mkdir(exist_ok=True)
    np.save(folder / "logits.npy", values.astype(np.float32))
    head = {"format": 1, "complete": True, "tokens": ids[0].tolist(),
            "taps": [{"tap": "logits", "step": 0, "file": "logits.npy", "shape": list(values.shape), "dtype": "f32"}]}
    (folder / "dump.json").write_text(json.dumps(head))


def proofs(report):
    found = [f for f in report.get("findings", []) if f["match"] in ("reproduced", "measured")]
    return [f["cause"] or (f.get("measured") or {}).get("words") for f in found]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", required=True, help="the firstdiff to judge")
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", default="5", help="explain's own limit for each")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng, done, bad, kinds = np.random.default_rng(args.seed), 0, 0, Counter()
    while done < args.count:
        name, width = NAMES[int(rng.integers(len(NAMES)))], WIDTHS[int(rng.integers(len(WIDTHS)))]
        with tempfile.TemporaryDirectory() as work:
            work = Path(work)
            model = classifier(name, width, int(rng.integers(10**6)))
            ids = prompt(rng, int(rng.integers(4, 14)))
            try:
                recorded = copy.deepcopy(model)
                with firstdiff.record(recorded, work / "golden", program=True):
                    numbers(recorded, ids)
            except Exception as error:
                print(f"{name}: not recorded: {type(error).__name__} {str(error)[:100]}")
                continue
            finally:
                right = numbers(model, ids)
            model.save_pretrained(work / "model")
            for kind, values in candidates(rng, name, width, model, ids, right):
                write(work / "candidate", ids, values)
                kinds[kind] += 1
                done += 1
                _, report, _ = ask(args.command, "explain", work / "golden", work / "candidate", "--weights", work / "model", "--seconds", args.seconds)
                _, compared, _ = ask(args.command, "compare", work / "golden", work / "candidate")
                claimed = proofs(report) + FACTOR.findall(str(compared)) + FACTOR.findall(" ".join(str(f.get("note")) for f in report.get("findings", [])))
                if claimed:
                    bad += 1
                    print(f"  proved: {name}, {width} numbers, {kind}: {claimed}", flush=True)
                elif "error" in report:
                    kinds["no answer: " + report["error"][-90:]] += 1
    print(f"\n{done} candidates of 1 to 64 numbers: {bad} with something proved; {dict(kinds)}")
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
