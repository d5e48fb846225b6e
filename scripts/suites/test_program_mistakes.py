#!/usr/bin/env python3
"""Tests that mistakes planted in PyTorch models are located and named, in recorded architectures.
Mistakes of planted/program_mistakes are made in a model; `firstdiff compare` must name the tap where it becomes visible, `firstdiff explain` its cause, and
right runs must be at parity.

    python scripts/suites/test_program_mistakes.py --command target/release/firstdiff [--only ARCH MISTAKE ..] [--each 4] [--variant f32,half] [--seed 1]
        [--compare-only] [--set fourth]
    python scripts/suites/test_program_mistakes.py --list [--set fourth] [--only ARCH MISTAKE ..]

Where a mistake becomes visible is decided here, from PyTorch's values of both runs: the first taps, in the order of the reference's program, that differ by more
than `VISIBLE` while everything that they are made of is as it was. Of a run in bf16 what counts is what the mistake does in f32, against what bf16 does to a right run.
`said unseen`: at parity, with the warning that rounding has grown beyond the type's own and smaller faults cannot be seen. `not told`: nothing is blamed and
nothing passed. Both are counted, and are no failure.
"""

import argparse
import copy
import fnmatch
import inspect
import json
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from pathlib import Path
from unittest import mock

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.planted.program_mistakes import SETS, UNLISTED, Site
from scripts.suites import architectures
from scripts.suites.test_program_faults import buffers_in
import firstdiff

NAMES = ("llama qwen2 qwen3 gemma gemma2 gemma3_text granite phi phi3 falcon gpt2 gptj gpt_neox bloom mpt opt bert vit mamba mamba2 qwen3_moe qwen2_moe mixtral glm4_moe "
         "deepseek_v3 gpt_oss jamba bamba olmoe olmo2 cohere cohere2 stablelm starcoder2 t5 whisper modernbert smollm3 llama4_text").split()
# The same architectures with what their sizes there leave off.
MORE = {
    "llama with llama3 scaling": ("llama", dict(rope_theta=100.0, rope_scaling=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                                                                                   original_max_position_embeddings=16))),
    "llama with linear scaling and biases": ("llama", dict(rope_scaling=dict(rope_type="linear", factor=4.0), attention_bias=True, mlp_bias=True, tie_word_embeddings=True)),
    "llama with a large epsilon": ("llama", dict(rms_norm_eps=1e-3)), "gpt2 with a large epsilon": ("gpt2", dict(layer_norm_epsilon=1e-3)),
    "t5 of both halves": ("t5", dict(is_encoder_decoder=True)), "bart": ("bart", dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, max_position_embeddings=64, scale_embedding=True)),
    "qwen2 with yarn": ("qwen2", dict(rope_theta=100.0, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16))),
    "deepseek_v3 with yarn": ("deepseek_v3", dict(rope_theta=100.0, rope_scaling=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, mscale=1.0,
                                                                                     mscale_all_dim=0.8))),
    "falcon with alibi": ("falcon", dict(alibi=True, parallel_attn=False, bias=True, multi_query=False)),
    "falcon of 40b": ("falcon", dict(new_decoder_architecture=True, num_kv_heads=2)),
    "gpt_neox in sequence": ("gpt_neox", dict(use_parallel_residual=False, rotary_pct=0.5)),
    "stablelm parallel": ("stablelm", dict(use_parallel_residual=True, use_qkv_bias=True)),
    "glm4_moe scaled": ("glm4_moe", dict(routed_scaling_factor=2.5, n_group=2, topk_group=1, attention_bias=True)),
}
# Of an encoder and a decoder both; of the architectures by themselves only the encoder is built.
BOTH = {"t5": "T5ForConditionalGeneration", "bart": "BartForConditionalGeneration"}
VARIANTS = ("f32", "bf16", "half", "layers", "gguf", "gguf-unstated", "heads")
# NMSE. A difference below the second is none; between the two it is too small to be held against anybody.
VISIBLE, NOTHING = 1e-8, 1e-13
# How far above the rounding of bf16 a mistake must be in a run in bf16; and what is no rounding: another value has the name, or another expert was chosen.
ABOVE_ROUNDING, NO_ROUNDING = 30.0, 0.02
HIDDEN = -1e30
# Causes that give the same numbers where what stands between two taps was not recorded.
ALIKE = [set(alike.split()) for alike in (
    "score-scale rope-attention-factor softmax-base", "residual-scale residual-source residual-omitted layer-skipped weight-unset", "rope-pairing qk-row-order",
    "weight-swapped gate-up-swapped fused-split", "alibi alibi-omitted alibi-slopes position-bias", "weight-transposed weight-stride", "norm-omitted final-norm-omitted linear-input", "embed-scale embed-multiplier")]
# Names of modules outside of the layers that firstdiff knows as h0, final_norm and logits: an engine that writes the taps does not write them again.
AGAIN = re.compile(r"[\w.]*/(embed_tokens|wte|word_embeddings|embed_in|embeddings|norm|ln_f|final_layernorm|final_layer_norm|norm_f|lm_head|embed_out)")
# Taps of the vocabulary with an axis of heads: of others no other order of the axes is tried.
HEADED, ROTATED = re.compile(r"layers\.\d+\.([qkv]|[qk]_(norm|rope))"), re.compile(r"layers\.\d+\.([qk]|[qk]_(norm|rope))")


# ---- models ----


def build(name):
    if name not in MORE:
        return architectures.build(name)
    base, more = MORE[name]
    table = next((table for table in (architectures.DECODERS, architectures.OWN_NAMES, architectures.OPT, architectures.OWN_ENCODERS) if base in table), architectures.OWN_ENCODERS)
    with mock.patch.dict(table, {base: {**table.get(base, {}), **more}}), mock.patch.dict(architectures.PARTS, BOTH):
        return architectures.build(base)


def narrowed(model, dtype=torch.bfloat16):
    """A model in 16 bits as `from_pretrained` loads one: the frequencies of rotations stay in f32."""
    kept = {module: module.inv_freq for module in model.modules() if isinstance(getattr(module, "inv_freq", None), torch.Tensor)}
    model.to(dtype)
    for module, frequency in kept.items():
        module.inv_freq = frequency
    return model


def run(model, name):
    """A prompt, and two tokens behind it where the model gives a cache. Returns the tensors of the outputs."""
    with torch.no_grad():
        given, ids = architectures.inputs(MORE[name][0] if name in MORE else name, model), "input_ids"
        if "decoder_input_ids" in inspect.signature(model.forward).parameters:
            given, ids = {"decoder_input_ids": given["input_ids"].flip(1), **given}, "decoder_input_ids"
        outs = [model(**{key: value.to(model.dtype) if value.is_floating_point() else value for key, value in given.items()})]
        for token in (7, 19):
            if getattr(outs[-1], "past_key_values", None) is not None:
                more = {"encoder_outputs": (outs[0].encoder_last_hidden_state,)} if ids != "input_ids" else {}
                more |= {} if more else architectures.place(model, given[ids].shape[1] + len(outs) - 1)
                outs.append(model(**{ids: torch.tensor([[token]])}, past_key_values=outs[-1].past_key_values, **more))
            elif getattr(outs[-1], "cache_params", None) is not None:
                position = torch.tensor([given[ids].shape[1] + len(outs) - 1])
                outs.append(model(input_ids=torch.tensor([[token]]), cache_params=outs[-1].cache_params, cache_position=position))
    return [value.float() for out in outs for value in out.values() if isinstance(value, torch.Tensor)]


def record(model, name, folder):
    with firstdiff.record(model, folder, program=True):
        run(model, name)
    return Dump(folder)


class Dump:
    """The taps of a recorded run, in f32."""

    def __init__(self, folder):
        self.head = json.loads((folder / "dump.json").read_text())
        self.values = {(entry["tap"], entry["step"]): plain(folder / entry["file"], entry["dtype"]) for entry in self.head["taps"] if not AGAIN.fullmatch(entry["tap"])}
        self.weight_of = weights_of(folder)

    def write(self, folder, values, **more):
        """The same as an engine would leave it: no program, no graph, taps in f32."""
        folder.mkdir(parents=True)
        head = {key: value for key, value in self.head.items() if key not in ("graph", "taps", "precision")} | more
        head["taps"] = []
        for (tap, step), value in values.items():
            file = firstdiff.file_name(tap, step)
            np.save(folder / file, np.ascontiguousarray(value))
            head["taps"].append({"tap": tap, "step": step, "file": file, "shape": list(value.shape), "dtype": "f32"})
        (folder / "dump.json").write_text(json.dumps(head))


def weights_of(folder):
    """The weight that the operation behind each tap reads."""
    program = json.loads((folder / "program.json").read_text())
    names = {int(buffer): name for buffer, name in program["weights"].items()}
    read = lambda op: [names[buffer] for buffer in buffers_in(op["i"]) if buffer in names]
    return {(tap["tap"], tap["step"]): name for tap in program["taps"] for name in read(program["ops"][tap["op"]])}


def plain(file, dtype):
    array = np.load(file)
    if dtype == "bf16":
        array = (array.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float32)


# ---- where is it due? ----


def difference(reference, candidate):
    """NMSE of a tap, masked scores aside."""
    a, b = reference.astype(np.float64), candidate.astype(np.float64)
    hidden = (a <= HIDDEN) & (b <= HIDDEN)
    a, b = np.where(hidden, 0, a), np.where(hidden, 0, b)
    with np.errstate(all="ignore"):
        found = ((a - b) ** 2).sum() / max((a * a).sum(), 1e-300)
    return found if np.isfinite(found) else np.inf


def order_of_rows(reference, candidate):
    """For each row of the reference which of the candidate's it is; None where they are not the same rows, or stand as they do there."""
    order = np.lexsort(candidate.T)[np.argsort(np.lexsort(reference.T))]
    same = difference(reference, candidate[order]) <= NOTHING < difference(reference, candidate)
    return tuple(order) if same else None


def in_own_order(reference, candidate):
    """The rows of each expert in the reference's order: in which order an expert takes its tokens is each engine's own, where all its taps have it."""
    of_expert = defaultdict(list)
    for tap, step in candidate:
        if (tap, step) in reference and candidate[tap, step].ndim == 2 and (found := re.match(r".*experts\.\d+", tap)):
            of_expert[found[0], step].append((tap, step))
    moved = dict(candidate)
    for keys in of_expert.values():
        same = [key for key in keys if reference[key].shape == candidate[key].shape]
        orders = {key: order_of_rows(reference[key], candidate[key]) for key in same}
        right = [key for key in same if orders[key] is None and difference(reference[key], candidate[key]) <= NOTHING]
        if not right and len(found := {order for order in orders.values() if order is not None}) == 1:
            moved |= {key: candidate[key][list(*found)] for key in same if len(candidate[key]) == len(*found)}
    return moved


class Reference:
    """The recorded program of the right model: its taps in order, and what each is made of."""

    def __init__(self, folder):
        self.folder, self.dump = folder, Dump(folder)
        program = json.loads((folder / "program.json").read_text())
        taps = sorted(program["taps"], key=lambda tap: tap["op"])
        self.order = [(tap["tap"], tap["step"]) for tap in taps]
        self.above, behind, made = {}, defaultdict(set), defaultdict(list)
        for tap in taps:
            made[tap["op"]].append((tap["tap"], tap["step"]))
        for at, op in enumerate(program["ops"]):
            reads = [*buffers_in(op["i"]), *buffers_in(list(op.get("a", {}).values()))]
            depends = set().union(*(behind[buffer] for buffer in reads))
            self.above.update(dict.fromkeys(made[at], depends))
            for buffer in buffers_in(op["y"]):
                behind[buffer] = depends | set(made[at])

    def errors(self, values):
        """NMSE of each tap that both have in one shape, in the program's order."""
        own, values = self.dump.values, in_own_order(self.dump.values, values)
        return {key: difference(own[key], values[key]) for key in self.order if key in values and values[key].shape == own[key].shape}

    def due(self, errors, visible):
        """The step in which a mistake shows, and the taps of it that show it first. None where it does not show; and whether it is clearly there."""
        shown = [key for key, error in errors.items() if not error <= visible(key)]
        if not shown:
            return None
        step = min(step for _, step in shown)
        roots = [key for key in shown if key[1] == step and not self.above[key] & set(shown)]
        faint = any(NOTHING < error <= visible(key) for key, error in errors.items() if key[1] < step or any(key in self.above[root] for root in roots))
        return step, [tap for tap, _ in roots], faint


# ---- variants ----


def whole_rotation(model):
    """Whether rows of Q and K can be brought into GGUF's order: halves of the whole head are rotated."""
    for module in model.modules():
        frequency = getattr(module, "inv_freq", None)
        if isinstance(frequency, torch.Tensor):
            return 2 * len(frequency)
    return 0


def altered(variant, values, rng, rotated):
    """The taps as another engine would have recorded them, and what its dump.json says; None where this has no meaning."""
    if variant == "half":
        names = sorted({tap for tap, _ in values})
        kept = set(rng.sample(names, len(names) // 2)) | {"h0", "logits"}
        return {key: value for key, value in values.items() if key[0] in kept}, {}
    if variant == "layers":
        kept = {key: value for key, value in values.items() if re.fullmatch(r"h0|logits|layers\.\d+\.h", key[0])}
        return (kept, {}) if len({tap for tap, _ in kept}) > 2 else None
    if variant == "heads":
        turned = [key for key, value in values.items() if HEADED.fullmatch(key[0]) and value.ndim == 3]
        return ({key: value.transpose(1, 0, 2) if key in turned else value for key, value in values.items()}, {}) if turned else None
    if variant.startswith("gguf"):
        turned = [key for key in values if ROTATED.fullmatch(key[0])]
        if not any(key[0].endswith("_rope") for key in turned) or any(values[key].shape[-1] != rotated for key in turned):
            return None
        order = np.arange(rotated).reshape(2, -1).T.reshape(-1)
        values = {key: value[..., order] if key in turned else value for key, value in values.items()}
        return values, {"qk_rows": "adjacent"} if variant == "gguf" else {}
    return values, {"precision": "bf16"} if variant == "bf16" else {}


# ---- what firstdiff says ----


def ask(command, *words):
    start = time.monotonic()
    try:
        done = subprocess.run([command, *map(str, words), "--json", "-"], capture_output=True, text=True, timeout=300)
    except subprocess.TimeoutExpired:
        return None, {"error": "no answer in 300 s"}, 300.0
    seconds = time.monotonic() - start
    if not done.stdout.startswith("{"):
        return done.returncode, {"error": (done.stderr.strip().splitlines() or ["nothing said"])[-1]}, seconds
    return done.returncode, json.loads(done.stdout), seconds


def judge_place(code, report, step, roots):
    """Whether the first divergence is one of the taps that show the mistake first."""
    if "error" in report:
        return "not comparable", report["error"]
    if report["verdict"] == "incomparable":
        return "not told", report["reason"]
    first = report.get("first_divergence")
    if code == 0 and any("smaller faults cannot be seen here" in warning for warning in report["warnings"]):
        return "said unseen", report["verdict"]
    if code != 1 or not first:
        return "at parity", report["verdict"]
    return ("right" if first["tap"] in roots and first["step"] == step else "elsewhere"), f"{first['tap']} step {first['step']}"


# What else is true of the numbers as they are recorded. Some plants change which value the recorder takes for a tap (a stream that is normed is recorded normed, and
# its norm is gone; keys are recorded as they are scaled); of one row, in a layer with a window, two masks hide the same.
AS_RECORDED = {
    "stream-normed": {"operation-omitted", "linear-input"}, "cache-int8": {"result-scaled"}, "keys-scaled": {"result-scaled"}, "conv-bias-omitted": {"operation-omitted"},
    "rope-position-doubled": {"rope-twice"}, "mask-from-the-top-left": {"mask-inverted"}, "gate-reads-attention-branch": {"operation-omitted"},
}
# Rows of q and k that are in another order, of which nothing says so.
UNSTATED = {"qk-row-order", "rope-pairing"}


def possible(expected, variant, mistake):
    """The causes that may be named: more of them where less is recorded."""
    expected = expected | AS_RECORDED.get(mistake, set()) | (UNSTATED if variant == "gguf-unstated" else set())
    if variant not in ("half", "layers"):
        return {cause for cause in expected if not cause.startswith("~")}
    expected = {cause.lstrip("~") for cause in expected}
    return expected.union(*(alike for alike in ALIKE if alike & expected))


# What the numbers prove of an operation where no mistake has a name.
# Said by the line of the reference and what is done there, where the catalogue has no name: true wherever it gives the candidate's numbers.
EDITS = {"operation-differs", "operation-moved", "operation-input", "function-differs", "order-differs", "tensors-exchanged"}
OF_OPERATIONS = {"operation-omitted", "sign-flipped", "number-differs", "result-scaled"} | EDITS


def judge_cause(code, report, expected):
    """Whether a cause that reproduces the candidate's numbers is one that is expected."""
    if "error" in report or code is None:
        return "no answer", report.get("error")
    findings = [found for found in report.get("findings", []) if found["match"] == "reproduced"]
    named = [found["cause"] for found in findings]
    if not findings:
        return ("unknown, as it is" if UNLISTED in expected else "unknown"), [found["match"] for found in report.get("findings", [])]
    if set(named) <= (OF_OPERATIONS if UNLISTED in expected else EDITS - expected):
        return "said of the operation", named
    good = [bool(expected & {found["cause"], *found["alternatives"]}) or found["cause"] in EDITS for found in findings]
    return ("named" if all(good) else "named beside others" if any(good) else "named wrongly"), named


# ---- the suite ----


class Suite:
    def __init__(self, args, work):
        self.args, self.work, self.lines = args, work, []
        self.out = open(args.lines, "w") if args.lines else None
        self.kinds, self.tried = defaultdict(set), defaultdict(set)

    def keep(self, **line):
        self.lines.append(line)
        if self.out:
            self.out.write(json.dumps(line) + "\n")
            self.out.flush()
        bad = line["place"] in ("elsewhere", "at parity", "not comparable", "not told", "false alarm", "false finding") or line.get("contradicts") or line.get("cause") in ("named wrongly", "no answer", "named beside others")
        if bad or self.args.verbose:
            print(f"  {line['place']:14} {line.get('cause') or '':20} {line['architecture']}, {line['mistake']}, {line['variant']}: {line.get('said')}"
                  f" where {line.get('due')} is due {line.get('named') or ''}"
                  f"{' parity by ' + ' and '.join(line['contradicts']) if line.get('contradicts') else ''}", flush=True)

    def architecture(self, name):
        torch.set_num_threads(1)
        model = build(name)
        folder = self.work / re.sub(r"\W", "-", name)
        record(copy.deepcopy(model), name, folder / "golden")
        reference = Reference(folder / "golden")
        model.save_pretrained(folder / "model")
        rounding = self.clean(name, model, reference, folder)
        order = list(self.args.mistakes)
        random.Random(f"{self.args.seed} {name}").shuffle(order)
        order.sort(key=lambda mistake: len(self.kinds[mistake]))  # what was made least is first
        done = 0
        for at in order:
            if done >= self.args.each:
                break
            done += self.mistake(name, at, model, reference, folder, rounding)
        print(f"{name}: {done} mistakes, {len(reference.order)} taps", flush=True)
        shutil.rmtree(folder)

    def clean(self, name, model, reference, folder):
        """Right runs: in other kernels, in bf16, and of some of the taps. Returns what bf16 does to each tap; None where it is more than rounding."""
        rng = random.Random(f"{self.args.seed} {name} right")
        torch.set_num_threads(2)
        with torch.backends.mkldnn.flags(enabled=False):
            other = record(copy.deepcopy(model), name, folder / "other")
        torch.set_num_threads(1)
        narrow = record(narrowed(copy.deepcopy(model)), name, folder / "narrow")
        errors = reference.errors(narrow.values)
        strange = {tap for (tap, _), error in errors.items() if not error <= NO_ROUNDING}
        self.strange = strange | {tap for tap, _ in narrow.values.keys() ^ reference.dump.values.keys()}
        usual = {key: value for key, value in narrow.values.items() if key[0] not in self.strange}
        for variant in VARIANTS:
            if variant in self.args.variants:
                made = altered(variant, usual if variant == "bf16" else other.values, rng, whole_rotation(model))
                if made:
                    self.right(name, variant, other, *made, reference, folder)
        if self.strange and "bf16" in self.args.variants:
            # As the recorder names what runs in bf16, and where an expert is chosen by rounding.
            self.right(name, "bf16-as-recorded", narrow, *altered("bf16", narrow.values, rng, 0), reference, folder)
        flipped = any(re.fullmatch(r"logits|layers\.\d+\.h", tap) for tap in strange)
        return None if flipped else errors

    def right(self, name, variant, dump, values, more, reference, folder):
        out = folder / f"right-{variant}"
        dump.write(out, values, **more)
        code, report, seconds = ask(self.args.command, "compare", reference.folder, out)
        first = (report.get("first_divergence") or {}).get("tap")
        place = "parity" if code == 0 else "false alarm" if code == 1 else "not comparable" if "error" in report else "not told"
        line = dict(architecture=name, mistake="none", variant=variant, place=place, said=report.get("error") or report.get("reason") or first, seconds=seconds)
        if not self.args.compare_only:
            code, report, _ = ask(self.args.command, "explain", reference.folder, out, "--weights", folder / "model")
            named = [found["cause"] for found in report.get("findings", [])]
            line.update(cause="no answer" if "error" in report else "found" if named else "none", named=report.get("error") or named)
            if named:
                line["place"] = "false finding"
        self.keep(**line)

    def mistake(self, name, mistake, model, reference, folder, rounding):
        """One mistake, in every variant that is asked for. False where it cannot be made here, or has no effect."""
        plant, expected = self.args.set[mistake]
        out = folder / "wrong"
        shutil.rmtree(out, ignore_errors=True)
        made = self.made(name, model, mistake, plant, out)
        if made is None:
            return False
        dump, notes = made
        errors = reference.errors(dump.values)
        due = reference.due(errors, lambda key: VISIBLE)
        if due is None:
            return False
        self.kinds[mistake].add(name)
        rng = random.Random(f"{self.args.seed} {name} {mistake}")
        variants = self.args.variants if self.args.all_variants else ["f32", *rng.sample([v for v in self.args.variants if v != "f32"], min(1, len(self.args.variants) - 1))]
        for variant in [variant for variant in variants if variant in self.args.variants]:
            self.variant(name, mistake, variant, model, plant, dump, errors, reference, folder, rounding, notes, expected, rng)
        return True

    def made(self, name, model, mistake, plant, out, narrow=False):
        """The dump of a run with the mistake in it, and where it was made."""
        candidate = copy.deepcopy(model)
        site = Site(candidate, random.Random(f"{self.args.seed} {name} {mistake}"))
        with site.stack:
            try:
                if not plant(site):
                    return None
                candidate = narrowed(candidate) if narrow else candidate
                run(candidate, name)  # what cannot run is known before anything is recorded of it
                return record(candidate, name, out), site.notes
            except Exception as error:
                self.tried[mistake].add(f"{name}: {type(error).__name__} {str(error)[:80]}")
                return None

    def variant(self, name, mistake, variant, model, plant, dump, errors, reference, folder, rounding, notes, expected, rng):
        visible = lambda key: VISIBLE
        if variant == "bf16":
            if rounding is None:
                return
            shutil.rmtree(folder / "wrong-narrow", ignore_errors=True)
            made = self.made(name, model, mistake, plant, folder / "wrong-narrow", narrow=True)
            if made is None:
                return
            dump, visible = made[0], lambda key: max(VISIBLE, ABOVE_ROUNDING * rounding.get(key, np.inf))
        # An engine has its own code, and no module that the reference does not have; what has another shape than the reference's is no longer that tap.
        values = {key: value for key, value in dump.values.items() if key in reference.dump.values and value.shape == reference.dump.values[key].shape}
        # The recorder names by the graph, which the mistake may have changed; an engine calls what it computes of a weight by its own name.
        weights = reference.dump.weight_of
        taken = lambda key: dump.weight_of.get(key) in weights.values() and key in weights and dump.weight_of[key] != weights[key]
        values = {key: value for key, value in values.items() if not taken(key)}
        values = {key: value for key, value in values.items() if variant != "bf16" or key[0] not in self.strange}
        made = altered(variant, values, rng, whole_rotation(model))
        if not made:
            return
        values, more = made
        due = reference.due({key: error for key, error in errors.items() if key in values}, visible)
        line = dict(architecture=name, mistake=mistake, variant=variant, seed=self.args.seed, notes=notes[:4], expected=sorted(expected))
        if due is None or due[2]:
            return self.keep(**line, place="too small", due=due and due[1])
        step, roots, _ = due
        out = folder / "as-recorded"
        shutil.rmtree(out, ignore_errors=True)
        dump.write(out, values, **more)
        code, report, seconds = ask(self.args.command, "compare", reference.folder, out)
        compared = code
        if variant == "gguf-unstated":
            roots = [*roots, *(key for key, at in values if at == step and key.rsplit(".")[-1] in ("q", "k"))]
        place, said = judge_place(code, report, step, roots)
        line.update(due=roots, step=step, nmse=errors[roots[0], step], first=roots[0], place=place, said=said, seconds=round(seconds, 2))
        if not self.args.compare_only:
            code, report, seconds = ask(self.args.command, "explain", reference.folder, out, "--weights", folder / "model")
            cause, named = judge_cause(code, report, possible(expected, variant, mistake))
            line.update(cause=cause, named=named, explain_seconds=round(seconds, 2))
            replayed, _, _ = ask(self.args.command, "replay", reference.folder, out, "--weights", folder / "model")
            # No command says parity where another says diverged of the same dumps.
            line["contradicts"] = [what for what, said in (("explain", code), ("replay", replayed)) if compared == 1 and said == 0]
        if self.args.keep and (place != "right" or line.get("cause") in ("named wrongly", "named beside others", "no answer", "unknown")):
            kept = Path(self.args.keep) / re.sub(r"\W+", "-", f"{name} {mistake} {variant}")
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(reference.folder, kept / "golden")
            shutil.copytree(out, kept / "out")
            shutil.copytree(folder / "model", kept / "model")
        self.keep(**line)

    def count(self, name):
        """In which architectures each mistake can be made with an effect on the output: without recording anything."""
        model = build(name)
        right = run(copy.deepcopy(model), name)
        for mistake in self.args.mistakes:
            candidate = copy.deepcopy(model)
            site = Site(candidate, random.Random(f"{self.args.seed} {name} {mistake}"))
            with site.stack:
                try:
                    wrong = run(candidate, name) if self.args.set[mistake][0](site) else []
                except Exception as error:
                    self.tried[mistake].add(f"{name}: {type(error).__name__} {str(error)[:80]}")
                    continue
            if any(a.shape != b.shape or not difference(a.numpy(), b.numpy()) <= VISIBLE for a, b in zip(right, wrong)):
                self.kinds[mistake].add(name)

    def tell(self):
        """The table at the end. True where nothing is wrong."""
        places, causes = defaultdict(Counter), defaultdict(Counter)
        for line in self.lines:
            places[line["variant"]][line["place"]] += 1
            if line.get("cause") and line["mistake"] != "none":
                causes[line["variant"]][line["cause"]] += 1
        for title, table in (("first tap", places), ("cause", causes)):
            columns = sorted({key for row in table.values() for key in row})
            if columns:
                print(f"\n{title:14}" + "".join(f"{column:>20}" for column in columns))
            for variant, row in table.items():
                print(f"{variant:14}" + "".join(f"{row[column]:20}" for column in columns))
        if self.args.kinds:
            for mistake in self.args.mistakes:
                print(f"{len(self.kinds[mistake]):4} {mistake:36} {', '.join(sorted(self.args.set[mistake][1])):50} {'; '.join(sorted(self.tried[mistake]))[:100]}")
            return True
        print(f"\n{len({(line['architecture'], line['mistake']) for line in self.lines if line['mistake'] != 'none'})} mistakes made, of {sum(map(bool, self.kinds.values()))} kinds, "
              f"in {len({line['architecture'] for line in self.lines})} architectures")
        asked = [line for line in self.lines if "contradicts" in line]
        print(f"{len(asked)} pairs judged by compare, explain and replay; parity where compare says diverged: {sum(bool(line['contradicts']) for line in asked)}")
        bad = {"elsewhere", "at parity", "not comparable", "false alarm", "false finding"}
        return not any(line["place"] in bad or line.get("contradicts") or line.get("cause") in ("named wrongly", "named beside others", "no answer") for line in self.lines)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--command", help="the firstdiff to judge")
    parser.add_argument("--set", choices=SETS, default="first", help="the mistakes of one set of planted/program_mistakes/sets.py (default first)")
    parser.add_argument("--only", nargs="*", default=[], metavar="PATTERN", help="architectures and mistakes with these names; * matches anything")
    parser.add_argument("--each", type=int, default=8, help="mistakes in each architecture (default 8)")
    parser.add_argument("--variant", default=",".join(VARIANTS), help=f"of {', '.join(VARIANTS)}; a mistake is judged in f32 and in one of the others")
    parser.add_argument("--all-variants", action="store_true", help="judge every mistake in every variant")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compare-only", action="store_true", help="do not ask for causes")
    parser.add_argument("--lines", metavar="FILE", help="a line of JSON for every case")
    parser.add_argument("--keep", metavar="FOLDER", help="keep golden, out and model of what is not right here")
    parser.add_argument("--list", "--kinds", action="store_true", dest="kinds", help="only say in how many architectures each mistake can be made, and the causes that are expected")
    parser.add_argument("--verbose", action="store_true", help="a line for what is right, too")
    args = parser.parse_args()
    if not (args.command or args.kinds):
        parser.error("--command or --list is needed")
    args.variants, args.set = args.variant.split(","), SETS[args.set].mistakes
    every = [*NAMES, *MORE]
    match = lambda names: [name for name in names if any(fnmatch.fnmatch(name, pattern) for pattern in args.only)]
    known = [pattern for pattern in args.only if not fnmatch.filter([*every, *architectures.ALL, *args.set], pattern)]
    if known:
        parser.error(f"no architecture and no mistake: {', '.join(known)}")
    args.mistakes = match(args.set) or list(args.set)
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as work:
        suite = Suite(args, Path(work))
        for name in match(dict.fromkeys([*every, *architectures.ALL])) or every:
            suite.count(name) if args.kinds else suite.architecture(name)
        fine = suite.tell()
    print(f"{time.monotonic() - start:.0f} s")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
