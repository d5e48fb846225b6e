#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["numpy>=1.26"]
# ///
"""Tests that `replay` and `explain` accept every layout that `compare` accepts: every order of axes, in tiny models whose sizes coincide.

    python scripts/suites/test_layouts.py [--command PATH] [--only TEXT] [--explain] [--keep DIR]

A NumPy engine (engine_numpy.py, which shares no code with firstdiff) runs a tiny model right, with adjacent RoPE pairs in q_rope, and with wrong value
weights; its taps are then recorded in another layout. Of a right run `replay` must never say diverged, and end with 0 where `compare` finds every tap
equal; of a wrong one it must never end with 0, nor blame another operation. Prints what is otherwise; exit 1 if there is any.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import ROOT
from scripts.engines import engine_numpy
from scripts.goldens import fixture_models
from scripts.planted.layouts import HEADS, KEYS, KV, ROTATED, adjacent, backwards, batch, chain, column_major, each, flat, moved, pad_keys, site

WIDE = ("h0", "attn_norm", "attn_out", "h_attn", "ffn_norm", "ffn_gate", "ffn_up", "ffn_act", "ffn_out", "h", "final_norm", "context")
#        name                 H  K  d   D  T
SIZES = {"apart": (4, 2, 8, 24, 7), "H = d": (8, 2, 8, 24, 5), "H = T": (6, 2, 8, 24, 6), "K = 1": (4, 1, 8, 24, 5), "T = d": (4, 2, 8, 24, 8)}


def layouts():
    orders = {"T,H,d": (0, 1, 2), "H,T,d": (1, 0, 2), "T,d,H": (0, 2, 1), "d,H,T": (2, 1, 0), "H,d,T": (1, 2, 0), "d,T,H": (2, 0, 1)}
    found = {}
    for name, axes in orders.items():
        for whose, sites in (("heads", HEADS), ("q_rope and k_rope", ("q_rope", "k_rope"))):
            found[f"{whose} [{name}]"] = each(moved(*axes), sites)
            found[f"{whose} [{name}], flat"] = chain(each(moved(*axes), sites), each(flat, sites))
            found[f"{whose} [1,{name}]"] = chain(each(moved(*axes), sites), each(lambda k, x: x[None], sites))
    keys = {"H,T,S": (0, 1, 2), "T,H,S": (1, 0, 2), "H,S,T": (0, 2, 1), "S,T,H": (2, 1, 0)}
    for name, axes in keys.items():
        found[f"keys [{name}]"] = each(moved(*axes), KEYS)
        found[f"keys [{name}], flat"] = chain(each(moved(*axes), KEYS), each(flat, KEYS))
    merged = each(lambda k, x: x.reshape(len(x), -1), HEADS)
    found |= {
        "heads merged": merged,
        "context heads first": each(context_heads_first, ("context",)),
        "context heads first, flat": chain(each(context_heads_first, ("context",)), each(flat)),
        "all flat": each(flat),
        "[D,T]": each(moved(1, 0), WIDE),
        "[D,T], flat": chain(each(moved(1, 0), WIDE), each(flat, WIDE)),
        "column-major": each(column_major),
        "ggml extents": each(backwards),
        "batch axes": each(batch),
        "batch axis 1": each(lambda k, x: x[:, None], HEADS),
        "64 keys": pad_keys(64),
        "64 keys, flat": chain(pad_keys(64), each(flat, KEYS)),
        "KV heads repeated": each(repeat_heads, KV),
        "GGUF rows": each(adjacent, ROTATED),
        "GGUF rows, heads first": chain(each(adjacent, ROTATED), each(moved(1, 0, 2), HEADS)),
        "GGUF rows, heads first, flat": chain(each(adjacent, ROTATED), each(moved(1, 0, 2), HEADS), each(flat)),
    }
    return found


def repeat_heads(key, x):
    return np.repeat(x, context_heads_first.heads // x.shape[1], axis=1)


def context_heads_first(key, x):
    return np.ascontiguousarray(x.reshape(len(x), context_heads_first.heads, -1).swapaxes(0, 1))


class WrongValues(engine_numpy.Engine):
    """The rows of v's matrix in another order."""

    def matrix(self, l, tap):
        right = super().matrix(l, tap)
        return np.roll(right, 3, axis=0) if tap == "v" else right


class AdjacentQueries(engine_numpy.Engine):
    """Adjacent pairs for halves, in q alone."""

    def rotate(self, l, tap, x, cos, sin):
        if tap != "q_rope":
            return super().rotate(l, tap, x, cos, sin)
        halves = super().rotate(l, tap, np.concatenate([x[..., 0::2], x[..., 1::2]], axis=-1), cos, sin)
        half = x.shape[-1] // 2
        return np.stack([halves[..., :half], halves[..., half:]], axis=-1).reshape(x.shape)


ENGINES = {"right": (engine_numpy.Engine, None), "v": (WrongValues, "v"), "q_rope": (AdjacentQueries, "q_rope")}


def model(folder, sizes):
    heads, kv_heads, width, hidden, _ = sizes
    config = fixture_models.COMMON | dict(
        model_type="llama", architectures=["LlamaForCausalLM"], num_attention_heads=heads, num_key_value_heads=kv_heads, head_dim=width, hidden_size=hidden,
        intermediate_size=40, num_hidden_layers=2, vocab_size=61, rms_norm_eps=1e-5, rope_theta=10000.0, tie_word_embeddings=False, torch_dtype="float32",
        attention_bias=False, mlp_bias=False)
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for name, x in fixture_models.tensors(7, config).items():
        raw = np.ascontiguousarray(x, dtype="<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(x.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (folder / "model.safetensors").write_bytes(len(head).to_bytes(8, "little") + head + data)
    return folder


def write(path, taps, meta):
    path.mkdir(parents=True)
    for (tap, step), x in taps.items():
        np.save(path / f"{tap}{f'.step{step}' if step else ''}.npy", np.ascontiguousarray(x))
    (path / "dump.json").write_text(json.dumps(meta))
    return path


def said(command, *arguments):
    done = subprocess.run([command, *map(str, arguments), "--json", "-"], capture_output=True, text=True)
    try:
        return json.loads(done.stdout), done.returncode
    except ValueError:
        return {"verdict": "failed", "reason": done.stderr[-300:], "taps": [], "findings": []}, done.returncode


def unchecked(report):
    recorded = [tap for tap in report["taps"] if tap["status"] == "unchecked" and tap.get("reason") != "not recorded"]
    return [f"{tap['tap']}.{tap.get('step', 0)}" for tap in recorded]


def check(command, folder, reference, name, taps, meta, fault, asked):
    """What is not as it should be."""
    dump, wrong = write(folder, taps, meta), []
    compared, code = said(command, "compare", reference, dump)
    whole = compared["verdict"] == "parity" and not unchecked(compared)
    for what in asked:
        report, code = said(command, what, folder.parent.parent / "model", dump)
        if fault is None:
            if code not in (0, 2) or whole and code == 2:
                wrong.append(f"{name}: {what} ends with {code}, compare is at {compared['verdict']}: {report.get('reason')} {blamed(report)[:4]}")
        elif code == 0 or code not in (1, 2):
            wrong.append(f"{name}: {what} ends with {code} though {fault} is wrong")
        else:
            others = [tap for tap, through in blamed(report) if site(tap) != fault and not any(site(t) == fault for t in through)]
            if others:
                wrong.append(f"{name}: {what} blames {others[:4]}, {fault} is wrong")
            elif code == 2:
                check.vague.append(f"{name}: {what}: {(report.get('reason') or '')[:150]}")
    check.done += 1
    return wrong


check.done, check.vague = 0, []


def blamed(report):
    return [(finding["tap"], finding.get("span", [])) for finding in report.get("findings", [])]


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    p.add_argument("--only", default="", help="cases whose name contains this")
    p.add_argument("--explain", action="store_true", help="ask `explain` as well")
    p.add_argument("--keep", type=Path, help="where to leave the dumps")
    a = p.parse_args()
    asked = ["replay", "explain"] if a.explain else ["replay"]
    wrong = []
    with tempfile.TemporaryDirectory() as temporary:
        root = a.keep or Path(temporary)
        for size_name, sizes in SIZES.items():
            at = root / size_name.replace(" ", "")
            folder, tokens = model(at / "model", sizes), [1, 17, 42, 9, 3, 55, 20, 33, 8][: sizes[4]]
            context_heads_first.heads = sizes[0]
            meta = {"tokens": tokens, "decode_tokens": [23], "precision": "f32"}
            runs = {name: engine(folder).run(tokens, [23]) for name, (engine, _) in ENGINES.items()}
            reference = write(at / "ref", runs["right"], {**meta, "qk_rows": "half"})
            for number, (layout_name, layout) in enumerate(layouts().items()):
                for engine_name, (_, fault) in ENGINES.items():
                    name = f"{size_name}, {layout_name}, {engine_name}"
                    if a.only not in name:
                        continue
                    # Who does not know that there are two orders of rows declares none.
                    own = meta if "GGUF" in layout_name else {**meta, "qk_rows": "half"}
                    wrong += check(a.command, at / "dumps" / f"{number}-{engine_name}", reference, name, layout(runs[engine_name]), own, fault, asked)
    print("\n".join(["unclear:", *check.vague, "wrong:", *wrong]))
    print(f"{check.done} dumps, {len(check.vague)} of wrong runs unchecked, {len(wrong)} wrong outcomes")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
