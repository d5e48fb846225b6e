#!/usr/bin/env python3
"""Tests that right engines are not blamed when they are judged by a recorded program.
Small models of many architectures run right in other arithmetics, with fused attention, with narrow K/V caches and with other threads; `compare`, `replay` and
`explain` must find nothing against the eager run's program.

    python scripts/suites/test_right_programs.py --command target/release/firstdiff [--only ARCH ..] [--variant VARIANT ..] [--keep FOLDER]

A run is `accused` where a command ends with 1, `not judged` with 2. Exits with 1 where one is accused, where `explain` or `replay` say parity of what `compare` calls
diverged, or where 2 % or more are not judged.
"""

import argparse
import copy
import re
import shutil
import sys
import tempfile
from collections import Counter, defaultdict
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from unittest import mock

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites import architectures
from scripts.suites.test_program_mistakes import ask, build, narrowed, record

NAMES = ("llama qwen2 qwen3 gemma gemma2 gemma3_text granite phi phi3 falcon gpt2 gptj gpt_neox bloom mpt opt mistral starcoder2 cohere cohere2 olmo2 stablelm glm4 smollm3 "
         "bert vit mamba2 bamba falcon_h1 t5 qwen3_moe mixtral deepseek_v3").split()


# ---- right engines ----


def through(dtype):
    return lambda value: value.to(dtype).to(value.dtype)


def e4m3(value):
    """The nearest number with four binary digits from 2^-6 to 448, as fp8 (e4m3fn) has them: in operations that the recorder knows."""
    step = torch.exp2(torch.floor(torch.log2(value.abs().clamp(min=2.0**-20))).clamp(min=-6) - 3)
    return (torch.round(value / step) * step).clamp(-448, 448)


@contextmanager
def narrow_cache(narrow):
    """Keys and values are made narrow before they are read, those of the token itself too: as caches of engines hold them."""
    layers = [kind for name, kind in vars(transformers.cache_utils).items() if name.endswith("Layer") and "update" in vars(kind)]
    with ExitStack() as stack:
        for kind in layers:
            update = kind.update

            def rounded(self, keys, values, *more, update=update, **named):
                return update(self, narrow(keys), narrow(values), *more, **named)

            stack.enter_context(mock.patch.object(kind, "update", rounded))
        yield


@contextmanager
def two_threads():
    torch.set_num_threads(2)
    try:
        with torch.backends.mkldnn.flags(enabled=False):
            yield
    finally:
        torch.set_num_threads(1)


def fused(model):
    if getattr(model.config, "attn_logit_softcapping", None):
        raise ValueError("PyTorch's fused attention leaves the cap of the scores out: no right engine")
    model.set_attn_implementation("sdpa")
    return model


half = lambda model: narrowed(model, torch.float16)
same = lambda model: model
# By name: what becomes of the model, around what it runs, what dump.json says beside the tokens (None: there is no dump.json), flags.
VARIANTS = {
    "f32-threads": (same, two_threads, {}, ()),
    "f32-fused": (fused, nullcontext, {}, ()),
    "bf16": (narrowed, nullcontext, {"precision": "bf16"}, ()),
    "bf16-told-by-nothing": (narrowed, nullcontext, None, ()),
    "bf16-fused": (lambda model: fused(narrowed(model)), nullcontext, {"precision": "bf16"}, ()),
    "bf16-flag": (narrowed, nullcontext, {}, ("--profile", "bf16")),
    "f16": (half, nullcontext, {"precision": "f16"}, ()),
    "f16-fused": (lambda model: fused(half(model)), nullcontext, {"precision": "f16"}, ()),
    "f16-cache": (same, lambda: narrow_cache(through(torch.float16)), {}, ("--cache", "f16")),
    "f16-cache-untold": (same, lambda: narrow_cache(through(torch.float16)), {}, ()),
    "bf16-cache": (same, lambda: narrow_cache(through(torch.bfloat16)), {}, ("--cache", "bf16")),
    "fp8-cache-untold": (same, lambda: narrow_cache(e4m3), {}, ()),
}
CACHED = re.compile("cache")


# ---- the suite ----


def write(dump, folder, golden, more):
    """The run as an engine leaves it: what the reference has too, in f32, without a program."""
    shutil.rmtree(folder, ignore_errors=True)
    values = {key: value for key, value in dump.values.items() if key in golden.values and value.shape == golden.values[key].shape}
    if more is not None:
        dump.write(folder, values, **more)
        return values
    folder.mkdir(parents=True)
    first = {tap: value for (tap, step), value in values.items() if step == 0}
    for tap, value in first.items():
        np.save(folder / (tap.replace("/", "%2F") + ".npy"), value)
    return first


def routes_alike(dump, golden):
    """Whether the same experts were chosen: where rounding chooses another one, values are others, and that is no matter of this suite."""
    chosen = [key for key in golden.values if key[0].endswith("router_topk") and key in dump.values]
    return all(np.array_equal(np.sort(dump.values[key]), np.sort(golden.values[key])) for key in chosen)


def judged(command, words):
    code, report, _ = ask(command, *words)
    if code == 0:
        return "parity", ""
    if code != 1:
        return "not judged", report.get("error") or report.get("reason")
    first = report.get("first_divergence") or {}
    findings = [found.get("cause") or (found.get("measured") or {}).get("words") or found.get("match") for found in report.get("findings", [])]
    return "accused", f"{first.get('tap')} {findings}"


def architecture(name, args, work, count):
    model = build(name)
    folder = work / re.sub(r"\W", "-", name)
    goldens = {"f32": record(copy.deepcopy(model), name, folder / "golden-f32")}
    model.save_pretrained(folder / "model-f32")
    try:
        goldens["bf16"] = record(narrowed(copy.deepcopy(model)), name, folder / "golden-bf16")
        narrowed(copy.deepcopy(model)).save_pretrained(folder / "model-bf16")
    except Exception as error:
        print(f"{name}: not in bf16: {str(error)[:80]}")
    prompt = architectures.inputs(name, model).get("input_ids", torch.tensor([[]]))[0].tolist()
    for variant in args.variant:
        prepare, around, more, flags = VARIANTS[variant]
        shutil.rmtree(folder / "run", ignore_errors=True)
        try:
            with around():
                dump = record(prepare(copy.deepcopy(model)), name, folder / "run")
        except Exception as error:
            print(f"  {name}, {variant}: not to be had: {type(error).__name__} {str(error)[:80]}")
            continue
        for held, golden in goldens.items():
            # What is rounded more coarsely than the candidate cannot judge it.
            if held == "bf16" and "bf16" not in variant or not routes_alike(dump, golden):
                continue
            values = write(dump, folder / "candidate", golden, more)
            if len(values) < 3 or CACHED.search(variant) and not any("k_rope" in tap or tap.endswith(".k") for tap in map(str, golden.values)):
                continue
            reference, candidate = folder / f"golden-{held}", folder / "candidate"
            weights = ("--weights", folder / f"model-{held}")
            flags = ("--tokens", ",".join(map(str, prompt))) if more is None and prompt else flags
            asked = {"compare": ("compare", reference, candidate, *flags), "replay": ("replay", reference, candidate, *weights, *flags),
                     "explain": ("explain", reference, candidate, *weights, *flags)}
            answers = {what: judged(args.command, words) for what, words in asked.items()}
            wrong = answers["compare"][0] == "accused" and "parity" in (answers["replay"][0], answers["explain"][0])
            for what, (verdict, said) in answers.items():
                count[variant, what][verdict] += 1
                if verdict != "parity":
                    print(f"  {verdict:10} {name}, {variant} against {held}, {what}: {said}", flush=True)
            if wrong:
                count[variant, "contradiction"]["accused"] += 1
                print(f"  contradiction {name}, {variant} against {held}: {answers}", flush=True)
            if args.keep and any(verdict != "parity" for verdict, _ in answers.values()):
                kept = Path(args.keep) / f"{name}-{variant}-{held}"
                shutil.rmtree(kept, ignore_errors=True)
                for part in (reference.name, "candidate", f"model-{held}"):
                    shutil.copytree(folder / part, kept / part)
    shutil.rmtree(folder)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", required=True, help="the firstdiff to judge")
    parser.add_argument("--only", nargs="*", default=NAMES, metavar="ARCH")
    parser.add_argument("--variant", nargs="*", default=list(VARIANTS), choices=VARIANTS)
    parser.add_argument("--keep", help="a folder for what was not at parity")
    args = parser.parse_args()
    torch.set_num_threads(1)
    count = defaultdict(Counter)
    with tempfile.TemporaryDirectory() as work:
        for name in args.only:
            architecture(name, args, Path(work), count)
    print(f"\n{'':22}{'':14}" + "".join(f"{verdict:>12}" for verdict in ("parity", "accused", "not judged")))
    for (variant, what), row in count.items():
        print(f"{variant:22}{what:14}" + "".join(f"{row[verdict]:12}" for verdict in ("parity", "accused", "not judged")))
    total = sum(count.values(), Counter())
    runs = sum(sum(row.values()) for (_, what), row in count.items() if what == "compare")
    print(f"\n{runs} right runs of {len(args.only)} architectures, each judged by three commands: {total['accused']} accused, {total['not judged']} not judged")
    sys.exit(bool(total["accused"]) or not runs or total["not judged"] >= 0.02 * sum(total.values()))


if __name__ == "__main__":
    main()
