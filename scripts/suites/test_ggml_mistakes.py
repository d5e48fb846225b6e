#!/usr/bin/env python3
"""Tests that mistakes made in llama.cpp are located and explained by the programs that dump_llama_cpp.py recorded of the right model.
A mistake is a changed copy of a small random model's GGUF: llama.cpp runs it, and `firstdiff explain` judges that run by the program and the right file.

    python scripts/suites/test_ggml_mistakes.py --command target/release/firstdiff [NAME ..] [--each N] [--seed S] [--only REGEX] [--seconds S] [--keep FOLDER]

Which mistakes an architecture can have is seen in its file; N of them are drawn. One that changes no tap is replaced by another. Where it shows first is decided here,
from llama.cpp's values of both runs. `look`: a cause that is not listed beside this mistake. What a right run is charged with too is not counted again.
Exit code 1: a right run is not at parity, the first tap is another one, or a cause is named that is not true or has to be looked at.
"""

import argparse
import json
import logging
import random
import re
import subprocess
import sys
import tempfile
from collections import Counter, namedtuple
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites import architectures, test_ggml_programs as programs

# NMSE: what shows, what is none, and what is not even rounding.
SHOWS, NOTHING, SAME = 1e-9, 1e-10, 1e-14
FATES = ("named", "measured", "unknown", "wrong", "look", "missed", "refused")
NORM, MATRIX = r"norm(\.weight)?$", r"blk\.\d+\.\w*(attn|ffn|ssm|conv)[a-z_]*(?<!norm)(\.\w+)?\.weight$"
zero, double, flip, one_on = (lambda x: 0 * x), (lambda x: 2 * x), (lambda x: not x), (lambda x: np.roll(x, -1, 0))
# Numbers of the file: mistake, key, the change, the causes that are true of it, and the parameter that must be the new number.
NUMBERS = [
    *((f"{key} x 2", key, double, f"{cause} number-differs result-scaled operation-omitted", None) for key, cause in (
      ("embedding_scale", "embed-multiplier"), ("logit_scale", "logit-scale"), ("residual_scale", "residual-scale"), ("attention.scale", "score-scale"), ("expert_weights_scale", "router-scale"))),
    ("epsilon x 100", "attention.layer_norm(_rms)?_epsilon", lambda x: 100 * x, "norm-eps number-differs", "eps"),
    ("rope base x 2", "rope.freq_base(_swa)?", double, "rope-theta rope-scaling", "theta"),
    ("rope dimensions halved", "rope.dimension_count", lambda x: x // 2, "rope-partial", "rotary_dim"),
    ("score cap / 10", "attn_logit_softcapping", lambda x: x / 10, "score-softcap result-scaled", "cap"),
    ("logit cap / 10", "final_logit_softcapping", lambda x: x / 10, "logit-softcap", "cap"),
    ("experts used - 1", "expert_used_count", lambda x: max(x - 1, 1), "router-topk", "experts"),
    ("groups used + 1", "expert_group_used_count", lambda x: x + 1, "", None),
    ("experts norm flag", "expert_weights_norm", flip, "router-norm operation-omitted", None),
    ("experts function", "expert_gating_func", lambda x: 3 - x, "router-bias", None),
    ("window - 2", "attention.sliding_window", lambda x: max(x - 2, 2), "window-size", "window"),
    ("ALiBi / 2", "attention.max_alibi_bias", lambda x: x / 2, "position-bias number-differs", None),
    ("dt, B, C norm flag", "ssm.dt_b_c_rms", flip, "norm-omitted operation-omitted", None),
    ("parallel flag", "use_parallel_residual", flip, "residual-parallel operation-input", None),
    ("alpha x 2", "alpha_p", lambda x: [2 * one for one in x], "number-differs", None),
    ("silu", "hidden_activation", lambda x: "silu", "activation operation-differs", None),
]
# Tensors: mistake, name, the change, and the causes that are true of it; where a form of laws is listed, no other one is true.
TENSORS = [
    ("norm weight ones", NORM, np.ones_like, "norm-weight-omitted operation-omitted"), ("norm weight + 1", NORM, lambda x: x + 1, "norm-plus-one"),
    ("bias zero", r"\.bias$", zero, "bias-omitted operation-omitted weight-unset"),
    ("bias twice", r"\.bias$", double, "bias-twice function-differs operation-differs"),
    ("weight zero", MATRIX, zero, "weight-unset operation-omitted residual-source"),
    ("rope factors omitted", "rope_freqs", np.ones_like, "rope-scaling operation-omitted"),
    ("matrix transposed", r"\.weight$", lambda x: x.T if x.ndim == 2 and len(x) == x.shape[1] else x, "weight-transposed"),
    ("rows too near", MATRIX, lambda x: x.reshape(-1)[np.arange(len(x))[:, None] * (x.shape[1] - 1) + np.arange(x.shape[1])] if x.ndim == 2 else x, "weight-stride"),
    ("router rows one on", r"ffn_gate_inp\.weight$", one_on, "order-differs expert-order"),
    ("experts one on", r"ffn_(gate|up|down)_exps\.weight$", one_on, "expert-order order-differs"),
    ("choice bias zero", "exp_probs_b", zero, "router-bias operation-omitted"),
    ("sinks omitted", "attn_sinks", lambda x: 0 * x - 1e30, "sink-omitted probs.denominator"),
    ("A not negated", r"ssm_a$", lambda x: -x, "sign-flipped function-differs result-scaled"),
    ("A by exp twice", r"ssm_a$", lambda x: -np.exp(-x), "function-differs"),
    ("convolution reversed", r"conv(1d)?\.weight$", lambda x: x[:, ::-1], "order-differs"), ("D zero", r"ssm_d$", zero, "operation-omitted weight-unset"),
    ("positions one on", "position_embd", one_on, "position-embedding-offset"), ("other token type", "token_types", one_on, "token-types-differ order-differs"),
    ("token types omitted", "token_types", zero, "operation-omitted weight-unset"), ("relative positions x 2", r"rel_b\.weight$", double, "position-bias"),
]
# A mistake, where it is, what it changes, the causes that are true of it, and what parameters must be.
Change = namedtuple("Change", "kind words numbers tensors causes due")


def turned_rows(matrix, width, rotated, is_adjacent):
    """Rows of q or k in the order of the other rotation."""
    rows = matrix.reshape(-1, width, *matrix.shape[1:]).copy()
    part = rows[:, :rotated]
    rows[:, :rotated] = part.reshape(len(rows), *((-1, 2) if is_adjacent else (2, rotated // 2)), *matrix.shape[1:]).swapaxes(1, 2).reshape(part.shape)
    return rows.reshape(matrix.shape)


def changes(numbers, tensors, is_adjacent, rng):
    """The mistakes that a file can have, each once, somewhere."""
    found, get = [], tensors.get
    number = lambda suffix: next((max(value) if isinstance(value, list) else value for key, value in numbers.items() if key.endswith(suffix)), None)

    def some(pattern, condition=lambda one: True):
        names = [name for name in tensors if re.search(pattern, name) and condition(get(name))]
        return rng.choice(names) if names else None

    def add(kind, causes, tensors=(), numbers=(), words="", due=()):
        found.append(Change(kind, words or ", ".join(dict(tensors)), dict(numbers), dict(tensors), set(causes.split()), dict(due)))

    for kind, pattern, change, causes, parameter in NUMBERS:
        for key in [key for key in numbers if re.fullmatch(rf"[\w-]+\.{pattern}", key)]:
            new = change(numbers[key])
            if new != numbers[key]:
                add(kind, causes, numbers={key: new}, words=f"{key} {numbers[key]} -> {new}", due={parameter: new})
    base = next((key.removesuffix("rope.freq_base") for key in numbers if key.endswith("rope.freq_base")), None)
    if base and base + "rope.scaling.type" not in numbers:
        more = {base + "rope.scaling.type": "linear", base + "rope.scaling.factor": 4.0}  # of deepseek, the scores get a factor too
        add("linear rope scaling", "rope-scaling score-scale" if base == "deepseek2." else "rope-scaling", numbers=more, words="by 4")
    for kind, pattern, change, causes in TENSORS:
        if name := some(pattern, lambda one: not np.array_equal(change(one), one)):
            add(kind, causes, {name: change(get(name))})
    for kind, pattern, alike, causes in (("norm weight of another norm", NORM, r".*", "norm-wrong-weight operation-input"),
                                         ("weight of another layer", MATRIX, r"\d+", "weight-wrong-layer operation-input")):
        names, plain = [name for name in tensors if re.search(pattern, name)], lambda one: re.sub(alike, "", one, count=1)
        if pairs := [(one, other) for one in names for other in names if one != other and plain(one) == plain(other) and get(one).shape == get(other).shape]:
            name, other = rng.choice(pairs)
            add(kind, causes, {name: get(other)}, words=f"{name} <- {other}")
    for kind, one, other in (("q and k exchanged", "attn_q", "attn_k"), ("gate and up exchanged", "ffn_gate(?=_exps|_shexp|\\.)", "ffn_up")):
        name = some(rf"{one}\w*\.weight$", lambda one: one.ndim > 1) or ""
        if (pair := re.sub(one, other, name)) in tensors and get(name).shape == get(pair).shape:
            add(kind, "weight-swapped gate-up-swapped tensors-exchanged operation-input", {name: get(pair), pair: get(name)})
    exchanged = lambda one, start, middle, end: np.concatenate([one[:start], one[middle:end], one[start:middle], one[end:]])
    heads, inner = number("attention.head_count") or 1, number("feed_forward_length")
    width = number("attention.key_length") or number("embedding_length") // heads
    if name := some(r"ffn_up\.weight$", lambda one: len(one) == 2 * inner):
        add("halves of gate and up exchanged", "fused-split gate-up-swapped order-differs", {name: exchanged(get(name), 0, inner, 2 * inner)})
    if name := some(r"attn_qkv\.weight$"):
        rows, queries = len(get(name)), heads * width
        add("k and v exchanged in q, k, v", "fused-split order-differs", {name: exchanged(get(name), queries, (queries + rows) // 2, rows)})
    if name := some(r"attn_[qkv]\.weight$", lambda one: len(one) > width and len(one) % width == 0):
        add("two heads exchanged", "order-differs", {name: exchanged(get(name), 0, width, 2 * width)})
    if base and (name := some(r"attn_[qk]\.weight$", lambda one: len(one) % width == 0)):
        names = [one for one in (name, name.replace("weight", "bias")) if one in tensors]
        rotated = number("rope.dimension_count") or width
        turned = {one: turned_rows(get(one), width, rotated, is_adjacent) for one in names}
        add("rows of the other rotation", "qk-row-order order-differs", turned)
    return found


def write(path, fields, numbers, tensors):
    """A GGUF of the fields of another one, with these numbers and tensors."""
    import gguf

    path.parent.mkdir(parents=True, exist_ok=True)
    writer, kinds = gguf.GGUFWriter(path, arch=numbers["general.architecture"]), gguf.GGUFValueType
    for key in numbers.keys() - {"general.architecture"}:
        types = fields[key].types if key in fields else [kinds.get_type(numbers[key])]
        writer.add_key_value(key, numbers[key], types[0], types[-1] if types[0] == kinds.ARRAY else None)
    for name, value in tensors.items():
        writer.add_tensor(name, np.ascontiguousarray(value, np.float32))
    for step in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        step()


def as_candidate(model, out, *options):
    """A run as another engine would leave it: no program, and no graph. Returns its taps."""
    programs.record(model, out, "--cache", "f32", "--force", *options)
    note = json.loads((out / "dump.json").read_text())
    (out / "dump.json").write_text(json.dumps({key: value for key, value in note.items() if key != "graph"}))
    for name in ("program.json", "program.safetensors"):
        (out / name).unlink()
    return programs.taps_of(out)


def first_taps(golden, right, found):
    """The taps that show a mistake first, where nothing that they read does: by what shows, and by what is no rounding."""
    graph = {row["tap"]: row["reads"] for row in json.loads((golden / "dump.json").read_text())["graph"]}
    gap = lambda a, b: (np.where(a == b, 0, a - b) ** 2).sum() / max((a[np.isfinite(a)] ** 2).sum(), 1e-300) if a.shape == b.shape else np.inf
    with np.errstate(all="ignore"):
        errors = {key: np.nan_to_num(gap(right[key], found[key]), nan=np.inf, posinf=np.inf) for key in right if key in found}
    first = set()
    for bound in (SHOWS, SAME) if max(errors.values()) > NOTHING else ():
        shown = {key for key, nmse in errors.items() if nmse > bound}
        step = min((step for _, step in shown), default=0)
        is_shown = lambda tap: (tap, step) in shown if (tap, step) in errors else any(map(is_shown, graph.get(tap, [])))
        first |= {tap for tap, at in shown if at == step and not any(map(is_shown, graph.get(tap, [])))}
    return first


def judge(report, change, alarms):
    """What became of a mistake, the place that is told first, and all that is said, in words. `alarms`: what a right run is charged with."""
    if not report:
        return "refused", None, []
    is_alarm = lambda taps, nmse: set(taps) <= alarms.keys() and (nmse or 0) <= 10 * max(alarms.values())
    wrong = [tap for tap in report["taps"] if tap["status"] == "diverged" and not is_alarm([tap["tap"]], tap["nmse"])]
    place = min(wrong, key=lambda tap: tap["step"])["tap"] if wrong else None
    fates, said = [], []
    for one in report["findings"]:
        law, params = one["measured"], one["params"] or {}
        if is_alarm(one["taps"], one["base_nmse"]):
            continue
        is_off = any(name in params and abs(params[name] - due) > 1e-3 * abs(due) for name, due in change.due.items())
        named = "wrong" if is_off else "named" if change.causes & {one["cause"], *one["alternatives"]} else "look"
        law_is_true = law and (law["form"] in change.causes or not any("." in one for one in change.causes))
        fates.append(named if one["match"] == "reproduced" and one["cause"] else "unknown" if not law else "measured" if law_is_true else "wrong")
        said.append("; or ".join([f"{one['place']}: {one['summary'] or (law or {}).get('words') or one['match']}", *one["alternatives"]]))
    return next((fate for fate in ("wrong", "look", "unknown", "measured", "named") if fate in fates), "missed"), place, said


def explain(args, golden, candidate, weights):
    report = candidate.parent / "said.json"
    report.write_text("null")
    words = [args.command, "explain", golden, candidate, "--weights", weights, "--seconds", str(args.seconds), "--json", report]
    done = subprocess.run(words, capture_output=True, text=True)
    (candidate.parent / "said.txt").write_text(done.stdout + done.stderr)
    return done.returncode, json.loads(report.read_text())


def check(name, folder, args, counts):
    import gguf

    folder.mkdir(parents=True, exist_ok=True)
    weights, golden = programs.convert(name, folder), folder / "golden"
    programs.record(weights, golden, "--cache", "f32", "--force")
    as_candidate(weights, folder / "right" / "dump", "--threads", "2")
    code, report = explain(args, golden, folder / "right" / "dump", weights)
    alarms = {tap["tap"]: tap["nmse"] or 0 for tap in report["taps"] if tap["status"] == "diverged"} if report else {}
    counts.update(["architectures", "parity"] if code == 0 else ["architectures"])
    print(f"FAIL   {name:17} a right run: exit code {code}, {sorted(alarms)}\n" if code else "", end="", flush=True)
    reader, right, rng, done = gguf.GGUFReader(weights), programs.taps_of(golden), random.Random(f"{args.seed} {name}"), 0
    numbers = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    tensors, note = {tensor.name: np.array(tensor.data) for tensor in reader.tensors}, json.loads((golden / "dump.json").read_text())
    drawn = [change for change in changes(numbers, tensors, note.get("qk_rows") == "adjacent", rng) if re.search(args.only, change.kind)]
    rng.shuffle(drawn)
    while drawn and done < args.each:
        change = drawn.pop()
        at = folder / f"{args.seed}-{re.sub('[^a-z0-9A-Z]+', '-', change.kind)}"
        write(at / weights.name, reader.fields, numbers | change.numbers, tensors | change.tensors)
        try:
            if not (first := first_taps(golden, right, as_candidate(at / weights.name, at / "dump"))):
                continue  # it shows nowhere
        except AssertionError:
            continue  # llama.cpp does not load it
        done += 1
        fate, place, said = judge(explain(args, golden, at / "dump", weights)[1], change, alarms)
        counts.update(["cases", fate, "first tap"] if place in first else ["cases", fate])
        mark, told = "  ok  " if place in first and fate in FATES[:3] else "FAIL  ", "" if place in first else f", told {place}"
        print(f"{mark} {name:17} {fate:8} {change.kind} ({change.words}); first {', '.join(sorted(first))}{told}")
        print("".join(f"           {line[:260]}\n" for line in said[:6]), end="", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    for name, kind, default in (("command", str, None), ("each", int, 3), ("seed", int, 1), ("only", str, ""), ("seconds", int, 20), ("keep", Path, None)):
        parser.add_argument(f"--{name}", type=kind, default=default, required=name == "command")
    args, counts = parser.parse_args(), Counter()
    torch.set_num_threads(1)
    programs.vendored(None)
    logging.disable(logging.CRITICAL)
    for table in (architectures.DECODERS, architectures.OWN_NAMES, architectures.OWN_ENCODERS):
        table.update({name: {**given, **programs.CONFIGS.get(name, {})} for name, given in table.items()})
    with tempfile.TemporaryDirectory() as temporary:
        for name in args.names or programs.ALL:
            try:
                check(name, (args.keep or Path(temporary)) / name, args, counts)
            except (Exception, SystemExit) as why:
                counts["broken"] += 1
                print(f"FAIL   {name:17} {type(why).__name__}: {str(why)[:200]} (line {why.__traceback__.tb_next.tb_lineno})", flush=True)
    print(f"right runs at parity: {counts['parity']} of {counts['architectures']}; first tap right: {counts['first tap']} of {counts['cases']} mistakes")
    print(", ".join(f"{fate} {counts[fate]}" for fate in FATES))
    is_placed = (counts["parity"], counts["first tap"]) == (counts["architectures"], counts["cases"])
    sys.exit(not is_placed or any(counts[fate] for fate in (*FATES[3:], "broken")))


if __name__ == "__main__":
    main()
