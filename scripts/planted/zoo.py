#!/usr/bin/env python3
"""Generates wrong candidates of every kind for `cargo xtask zoo`, which counts the mistakes that `firstdiff explain` names.

    zoo.py OUT [--models fixtures/models] [--kinds full,streams,last,logits,last-logits] [--every N] [--seed S]

Every mistake of engine_mistakes.py, at several parameters and sites, in all layers and in one, on every family; then pairs and triples of them;
then those of engine_mistakes_free.py, their parameters drawn.
The engine is engine_numpy.py, which shares no code with firstdiff. OUT gets a .npz a candidate and index.json, which says what was planted.
What is recorded, by kind:
    full         every tap, the decode steps included where the mistake shows in them only
    streams      h0, the residual stream after each layer, final_norm and logits
    last         the same of the last token only
    logits       all tokens' logits
    last-logits  the last token's logits
Requirements: numpy==2.4.6
"""

import argparse
import fnmatch
import itertools
import json
import random
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES
from scripts.engines import engine_numpy
from scripts.engines.engine_mistakes import MISTAKES, Chosen
from scripts.engines.engine_numpy import LAYER_TAPS, full_name
from scripts.goldens.fixture_models import DECODE_TOKENS, TOKENS

LISTED = tuple(MISTAKES)
from scripts.engines.engine_mistakes_free import drawn, DRAWN  # adds to MISTAKES  # noqa: E402

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "minimind", "qwen2-f16", "llama-bf16")
STREAMS = ("h0", "layers.*.h", "final_norm", "logits")
KINDS = ("full", "streams", "last", "logits", "last-logits")
# In names of files.
FILE = str.maketrans("=@,/", "--+-")
# A mistake shows where a recorded tap is off by more than this.
SHOWS = 1e-10

# Further parameters and sites, beside every value of every mistake at its own taps.
MORE = """
    norm-eps=1e-5  norm-eps=1e-3  norm-eps=0  norm-eps=3e-4  norm-eps=1e-4@ffn_norm  norm-eps=1e-3@final_norm
    norm-eps-outside@attn_norm  norm-eps-outside@ffn_norm
    norm-weight-twice@attn_norm  norm-weight-twice@ffn_norm  norm-weight-twice@final_norm
    norm-weight-omitted@attn_norm  norm-weight-omitted@ffn_norm  norm-weight-omitted@final_norm  norm-weight-omitted@q_norm,k_norm
    norm-plus-one@attn_norm  norm-plus-one@final_norm  norm-plus-one@q_norm,k_norm
    norm-centered@attn_norm  norm-centered@ffn_norm  norm-centered@final_norm
    norm-sum@attn_norm  norm-sum@final_norm  norm-axis@ffn_norm  norm-axis@attn_norm
    norm-width=50  norm-width=96  norm-width=56@final_norm  norm-width=last-left-out@ffn_norm  norm-omitted@attn_norm  norm-omitted@q_norm  norm-omitted@q_norm,k_norm
    weight-transposed@q  weight-transposed@k  weight-transposed@v  weight-transposed@attn_out  weight-transposed@ffn_gate
    weight-transposed@ffn_up  weight-transposed@ffn_out  weight-transposed@q,k,v  weight-transposed@ffn_gate,ffn_up,ffn_out
    weight-stride@q  weight-stride@ffn_gate  weight-stride@ffn_out  weight-stride@v
    weight-wrong-layer@q  weight-wrong-layer@v  weight-wrong-layer@attn_out  weight-wrong-layer@ffn_gate  weight-wrong-layer@ffn_out
    weight-swapped@ffn_gate,ffn_up  weight-unset@q  weight-unset@v  weight-unset@ffn_up  weight-unset@ffn_out
    bias-omitted@q  bias-omitted@k  bias-omitted@v  bias-twice@q  bias-twice@v
    linear-input@q  linear-input@k  linear-input@v  linear-input@ffn_gate,ffn_up  linear-input@ffn_gate  linear-input@ffn_up
    qk-row-order@q  qk-row-order@k
    rope-pairing@q_rope  rope-pairing@k_rope  rope-theta=500000  rope-theta=1000000  rope-theta=20000  rope-theta=123456  rope-theta=100
    rope-partial=0.25  rope-partial=0.5@k_rope  rope-direction@q_rope  rope-direction@k_rope  rope-omitted@q_rope  rope-omitted@k_rope
    rope-twice@q_rope  rope-twice@k_rope
    residual-source=doubled@h  residual-source=normed@h_attn  residual-source=normed@h  residual-source=input@h  residual-omitted@h
    residual-scale=2  residual-scale=0.7  residual-scale=0.1@h  residual-scale=1.1@h_attn
    embed-multiplier=0.5  embed-multiplier=3.7  score-softcap=30  score-softcap=20  logit-scale=2  logit-scale=1.3  logit-scale=0.0625  logit-softcap=50
""".split()


def variants():
    """Every mistake as engine_numpy's --mistake has it."""
    texts = []
    for id in LISTED:
        values = MISTAKES[id].values
        texts += [f"{id}={v}" if values else id for v in values or ("",)]
    return list(dict.fromkeys(texts + MORE))


def fits(text, engine):
    """Whether a model can have the mistake, and what was chosen."""
    try:
        chosen = Chosen.parse(text)
    except SystemExit:
        return None
    if not engine.qk_norm and set(chosen.at) <= {"q_norm", "k_norm"}:
        return None
    return chosen if MISTAKES[chosen.id].needs(engine) else None


def same(chosen, engine):
    """Whether the value is what the config has anyway."""
    key = {"norm-eps": "rms_norm_eps", "rope-theta": "rope_theta"}.get(chosen.id)
    return key is not None and chosen.value == engine.config.get(key, 10000.0)


def run(folder, mistakes, decode):
    """All taps, or None where the model cannot have one of the mistakes."""
    try:
        return engine_numpy.run(folder, TOKENS, DECODE_TOKENS if decode else (), mistakes)
    except (SystemExit, IndexError, KeyError, ValueError):
        return None


def nmse(c, r):
    c, r = c.astype(np.float64), r.astype(np.float64)
    both = np.isfinite(c) & np.isfinite(r)
    foreign = np.mean(np.isfinite(c) != np.isfinite(r))
    energy = np.sum(r[both] ** 2)
    return np.sum((c[both] - r[both]) ** 2) / (energy or 1) + foreign


def keep(taps, kind):
    """What a candidate of this kind records: {(tap, step): array}, and its rows."""
    globs = {"full": ("*",), "streams": STREAMS, "last": STREAMS, "logits": ("logits",), "last-logits": ("logits",)}[kind]
    kept = {key: x for key, x in taps.items() if any(fnmatch.fnmatchcase(key[0], g) for g in globs)}
    if kind in ("last", "last-logits"):
        kept = {key: x[-1:] for key, x in kept.items()}
    return kept


def write(path, taps, about, kind):
    members = engine_numpy.dump_members(taps, about)
    if kind in ("last", "last-logits"):
        head = json.loads(members["dump.json"])
        for entry in head["taps"]:
            entry["rows"] = "last"
        members["dump.json"] = json.dumps(head).encode()
    engine_numpy.write_dump(path, members)


class Zoo:
    def __init__(self, out, models, kinds):
        self.out, self.models, self.kinds, self.index, self.right = out, models, kinds, [], {}

    def each_shows(self, folder, chosen, taps, decode):
        """Whether each of several mistakes changes something at its own first tap; what is not run at all cannot."""
        if len(chosen) == 1:
            return True
        engine = engine_numpy.Engine(folder)
        for one in chosen:
            first = one.first_tap(engine)
            without = run(folder, [c for c in chosen if c is not one], decode)
            if without is None or first not in taps or first not in without[0] or nmse(taps[first], without[0][first]) <= SHOWS:
                return False
        return True

    def matters(self, folder, chosen, one, mine, kind, decode):
        """Whether what is recorded would be otherwise without one of several mistakes."""
        rest = [c for c in chosen if c is not one]
        without = keep(run(folder, rest, decode)[0], kind) if rest else keep(self.right[folder.name, decode], kind)
        return any(key not in without or nmse(x, without[key]) > SHOWS for key, x in mine.items())

    def add(self, group, model, texts, layers, kinds):
        """One candidate for each kind: `texts` planted at once, in `layers` or in all."""
        folder = self.models / model
        engine = engine_numpy.Engine(folder)
        chosen = [fits(text, engine) for text in texts]
        if any(c is None or same(c, engine) for c in chosen):
            return False
        chosen = [c._replace(layers=layers) for c in chosen]
        decode = any(c.first_tap(engine)[1] > 0 for c in chosen)
        made = run(folder, chosen, decode)
        if made is None:
            return False
        taps, about = made
        right = self.right.setdefault((model, decode), run(folder, [], decode)[0])
        for kind in kinds:
            mine, due = keep(taps, kind), keep(right, kind)
            shown = any(nmse(x, due[key]) > SHOWS for key, x in mine.items() if key in due)
            if kind == "full" and not (shown and self.each_shows(folder, chosen, taps, decode)):
                return False
            name = f"{len(self.index):05}-{model}-{'+'.join(texts)}-{kind}".translate(FILE) + ".npz"
            alone = [self.matters(folder, chosen, c, mine, kind, decode) for c in chosen]
            write(self.out / name, mine, about, kind)
            firsts = [c.first_tap(engine) for c in chosen]
            order = ["h0", *(full_name(l, t) for l in range(engine.L) for t in LAYER_TAPS), "final_norm", "logits"]
            first = min(firsts, key=lambda f: (f[1], order.index(f[0])))
            self.index.append({
                "file": name, "model": model, "group": group, "kind": kind, "shows": bool(shown), "first": first[0],
                "layers": "all" if layers is None else "one",
                "planted": [{"id": c.id.split("/")[0], "params": c.params(), "at": list(c.at), "shows": s} for c, s in zip(chosen, alone)]})
        return True


def one_factor(texts):
    """Whether two of several mistakes are factors on the logits: to whoever sees the product alone they are one."""
    chosen = [Chosen.parse(t) for t in texts]
    factors = [c for c in chosen if c.id in ("norm-width", "norm-sum", "logit-scale") and set(c.at) <= {"final_norm", "logits"}]
    return len(factors) > 1


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("out", type=Path)
    p.add_argument("--models", type=Path, default=FIXTURES / "models")
    p.add_argument("--kinds", default=",".join(KINDS))
    p.add_argument("--every", type=int, default=1, help="only every Nth mistake")
    p.add_argument("--pairs", type=int, default=150)
    p.add_argument("--triples", type=int, default=100)
    p.add_argument("--free", type=int, default=280, help="mistakes whose parameter is any number")
    p.add_argument("--seed", type=int, default=1)
    a = p.parse_args()
    a.out.mkdir(parents=True, exist_ok=True)
    kinds = a.kinds.split(",")
    zoo, dice = Zoo(a.out, a.models, kinds), random.Random(a.seed)
    texts = variants()[:: a.every]
    for n, text in enumerate(texts):
        for m, model in enumerate(FAMILIES):
            zoo.add("single", model, [text], None, [k for k in kinds if k == "full" or (n + m) % 2 == 0])
            # In one layer: what a typing mistake in a hand-unrolled layer does, and what a wrong tensor name does.
            if not all(t in ("h0", "final_norm", "logits", "*") for t in Chosen.parse(text).at):
                zoo.add("single", model, [text], [1], [k for k in kinds if k == "full" or k == "streams" and (n + m) % 3 == 0])
    for count, group, wanted in ((2, "pair", a.pairs), (3, "triple", a.triples)):
        made = 0
        for _ in range(wanted * 20):
            if made >= wanted:
                break
            chosen = dice.sample(texts, count)
            sites = [set(Chosen.parse(t).at) for t in chosen]
            ids = {Chosen.parse(t).id for t in chosen}
            apart = all(not (x & y) for x, y in itertools.combinations(sites, 2)) and not any("*" in s for s in sites)
            steps = all(not isinstance(MISTAKES[Chosen.parse(t).id].step, int) or MISTAKES[Chosen.parse(t).id].step == 0 for t in chosen)
            if len(ids) == count and apart and steps:
                wanted_kinds = [k for k in kinds if k in ("full", "streams") or made % 2 == 0 and k == "logits"]
                if one_factor(chosen):
                    wanted_kinds = [k for k in wanted_kinds if k == "full"]
                made += zoo.add(group, dice.choice(FAMILIES[:5]), chosen, None, wanted_kinds)
    for n in range(a.free):
        id = list(DRAWN)[n % len(DRAWN)]
        layers = [1] if n // len(DRAWN) % 2 and not id.startswith(("embed", "logit")) else None
        zoo.add("free", dice.choice(FAMILIES[:5]), [drawn(dice, id)], layers, kinds)
    (a.out / "index.json").write_text("[\n " + ",\n ".join(json.dumps(r) for r in zoo.index) + "\n]\n")
    print(f"{len(zoo.index)} candidates in {a.out}")


if __name__ == "__main__":
    main()
