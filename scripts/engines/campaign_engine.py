"""A transformer in NumPy that shares no code with firstdiff or the other scripts: random models, four arithmetics, planted faults.

For campaign.py, which says what it is for. Shapes: T tokens, S keys, D hidden, H heads, K key/value heads, d head dim, F feed-forward, V vocabulary.
"""

import numpy as np

# ---------------------------------------------------------------- arithmetic


def to_bf16(x):
    bits = np.asarray(x, np.float32).view(np.uint32).astype(np.uint64)
    even = bits + 0x7FFF + ((bits >> 16) & 1)
    return (even & 0xFFFF0000).astype(np.uint32).view(np.float32)


def to_f16(x):
    with np.errstate(over="ignore"):
        return np.asarray(x, np.float32).astype(np.float16).astype(np.float32)


def to_q8(x):
    """Blocks of 32 along the last axis, one f16 scale each."""
    x = np.asarray(x, np.float32)
    flat = x.reshape(-1, 32) if x.shape[-1] % 32 == 0 else x.reshape(-1, x.shape[-1])
    scale = np.abs(flat).max(1, keepdims=True) / 127
    code = np.round(flat / np.where(scale == 0, 1, scale))
    return (code * to_f16(scale)).reshape(x.shape).astype(np.float32)


ROUND = {"f32": lambda x: np.asarray(x, np.float32), "bf16": to_bf16, "f16": to_f16, "ggml": lambda x: np.asarray(x, np.float32)}
CACHES = {"f32": lambda x: x, "f16": to_f16, "bf16": to_bf16}


class Arithmetic:
    """How a run rounds: `name` a profile, `order` another order of summation, `cache` what keys and values are rounded to."""

    def __init__(self, name, order, cache="f32"):
        self.name, self.order, self.round, self.cache = name, order, ROUND[name], CACHES[cache]

    def product(self, x, w):
        """x [.., n] times w [m, n] transposed, in f32, summed in pieces."""
        x, w = np.asarray(x, np.float32), np.asarray(w, np.float32)
        if self.name == "ggml":
            x = to_q8(x)
        return self.round(self.total(x, w))

    def total(self, x, w):
        if self.order == 0:
            return x @ w.T
        if self.order == 1:
            return (x[..., ::-1] @ w[:, ::-1].T).astype(np.float32)
        pieces = [x[..., i : i + 8] @ w[:, i : i + 8].T for i in range(0, x.shape[-1], 8)]
        return np.sum(np.stack(pieces[::-1]), 0, dtype=np.float32)


# ---------------------------------------------------------------- model


def make_model(rng):
    heads = int(rng.choice([2, 4]))
    kv = int(rng.choice([k for k in (1, 2, 4) if heads % k == 0]))
    d = int(rng.choice([8, 16]))
    width = int(rng.choice([32, 64, heads * d]))
    width += -width % 32
    m = {"H": heads, "K": kv, "d": d, "D": width, "F": 96, "V": 101, "L": int(rng.choice([1, 2, 3])), "theta": 10000.0, "eps": 1e-5}
    m["bias"], m["window"] = bool(rng.random() < 0.3), None
    if rng.random() < 0.2:
        m["window"] = 6

    def matrix(rows, columns):
        return (rng.standard_normal((rows, columns)) / np.sqrt(columns) * rng.choice([0.7, 1.0, 1.6])).astype(np.float32)

    def gain():
        return (1 + 0.3 * rng.standard_normal(width)).astype(np.float32)

    m["embed"], m["norm"], m["head"] = matrix(m["V"], width) * 3, gain(), matrix(m["V"], width)
    m["layers"] = []
    for _ in range(m["L"]):
        layer = {
            "an": gain(), "fn": gain(), "q": matrix(heads * d, width), "k": matrix(kv * d, width), "v": matrix(kv * d, width),
            "o": matrix(width, heads * d), "gate": matrix(m["F"], width), "up": matrix(m["F"], width), "down": matrix(width, m["F"]),
        }
        for name, rows in [("q", heads * d), ("k", kv * d), ("v", kv * d)]:
            layer["b" + name] = (rng.standard_normal(rows) * 0.5).astype(np.float32) if m["bias"] else np.zeros(rows, np.float32)
        m["layers"].append(layer)
    return m


class Run:
    """One run of a model. `fault(tap, layer, value)` may change what an operation gives; `quirks` change how one works."""

    def __init__(self, model, arithmetic, quirks=None, fault=None):
        self.m, self.a, self.q, self.fault = model, arithmetic, quirks or {}, fault
        self.cache = [None] * model["L"]
        self.steps = []
        # The largest probability of a key that is masked.
        self.leak = 0.0

    def keep(self, name, value, layer=None):
        value = np.asarray(value, np.float32)
        if self.fault:
            changed = self.fault(name, layer, value, self.start)
            value = value if changed is None else self.a.round(changed)
        self.taps[name if layer is None else f"layers.{layer}.{name}"] = value
        return value

    def here(self, name, layer=None):
        """The value of quirk `name`, if it holds at this layer and position range."""
        quirk = self.q.get(name)
        if quirk is None or (quirk.get("layer") is not None and quirk["layer"] != layer):
            return None
        return quirk["value"]

    def norm(self, x, w, name, layer=None):
        square = np.mean(np.square(x, dtype=np.float32), -1, keepdims=True, dtype=np.float32)
        eps = self.m["eps"]
        if (other := self.here("eps", layer)) is not None:
            eps = other
        y = x / np.sqrt(square + np.float32(eps))
        if self.here("gain-omitted", (name, layer)) is None:
            y = self.a.round(y) * w
        return self.keep(name, self.a.round(y), layer)

    def rope(self, x, name, layer):
        d, start = self.m["d"], self.start
        at = np.arange(start, start + x.shape[0], dtype=np.float64)
        at = at + (self.here("shift", name) or 0)
        theta = self.here("theta", layer) or self.m["theta"]
        angle = at[:, None] * theta ** (-np.arange(0, d, 2) / d)
        if self.here("direction", name):
            angle = -angle
        cos, sin = (self.a.round(f(angle))[:, None, :] for f in (np.cos, np.sin))
        if self.here("pairing", layer):
            even, odd = x[..., 0::2], x[..., 1::2]
            y = np.stack([even * cos - odd * sin, odd * cos + even * sin], -1).reshape(x.shape)
        else:
            a, b = x[..., : d // 2], x[..., d // 2 :]
            y = np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)
        if self.here("rope-omitted", name):
            y = x
        return self.keep(name, self.a.round(y), layer)

    def attention(self, x, layer):
        m, w, a = self.m, self.m["layers"][layer], self.a
        rows = x.shape[0]
        q, k, v = (self.linear(x, w, n, layer) for n in "qkv")
        q, k, v = (t.reshape(rows, -1, m["d"]) for t in (q, k, v))
        for name, value in [("q", q), ("k", k), ("v", v)]:
            self.taps[f"layers.{layer}.{name}"] = value
        q, k = self.rope(q, "q_rope", layer), self.rope(k, "k_rope", layer)
        k, v = a.cache(k), a.cache(v)
        if self.cache[layer] is not None:
            k, v = (np.concatenate([old, new]) for old, new in zip(self.cache[layer], (k, v)))
        self.cache[layer] = (k, v)
        group = m["H"] // m["K"]
        heads = np.arange(m["H"]) // group
        if self.here("head-map", layer):
            heads = np.arange(m["H"]) % m["K"]
        qk = self.keep("qk", a.round(np.stack([a.total(q[:, h], k[:, heads[h]]) for h in range(m["H"])])), layer)
        scale = self.here("scale", layer) or 1 / np.sqrt(m["d"])
        s = a.round(qk * np.float32(scale))
        i = np.arange(self.start, self.start + rows)[:, None] + (self.here("mask-shift", layer) or 0)
        j = np.arange(k.shape[0])[None]
        seen = j <= i
        window = m["window"]
        if (change := self.here("window", layer)) is not None and window:
            window = None if change == "off" else window + change
        if window:
            seen &= j > i - window
        if self.here("mask-omitted", layer):
            seen[:] = True
        fill = self.here("fill", layer)
        if fill is not None:
            s = np.where(seen, s, a.round(s + fill["value"]) if fill["added"] else np.float32(fill["value"]))
        else:
            s = np.where(seen, s, -np.inf)
        s = self.keep("scores", s, layer)
        top = np.max(s, -1, keepdims=True)
        with np.errstate(invalid="ignore"):
            e = np.exp(s - np.where(np.isfinite(top), top, 0))
            p = e / np.sum(e, -1, keepdims=True, dtype=np.float32)
        p = self.keep("probs", a.round(np.where(np.isnan(p) & ~seen, 0, p)), layer)
        hidden = np.broadcast_to(~seen, p.shape)
        self.leak = max(self.leak, float(np.max(p, where=hidden, initial=0.0)))
        c = np.stack([a.total(p[h], v[:, heads[h]].T) for h in range(m["H"])], 1)
        return self.keep("context", a.round(c.reshape(rows, -1)), layer)

    def linear(self, x, w, name, layer):
        matrix = w[name]
        if self.here("transposed", (name, layer)) and matrix.size:
            matrix = matrix.reshape(matrix.shape[1], matrix.shape[0]).T
        if self.here("other-layer", (name, layer)):
            matrix = self.m["layers"][(layer + 1) % self.m["L"]][name]
        y = self.a.product(x, matrix)
        if "b" + name in w and self.here("bias-omitted", (name, layer)) is None:
            y = self.a.round(y + w["b" + name])
        return self.keep(name, y, layer) if name in "qkv" else y

    def step(self, tokens):
        m, a = self.m, self.a
        self.taps, self.start = {}, sum(len(t) for t, _ in self.steps)
        h = self.keep("h0", a.round(m["embed"][np.asarray(tokens)]))
        for layer in range(m["L"]):
            w = m["layers"][layer]
            context = self.attention(self.norm(h, w["an"], "attn_norm", layer), layer)
            out = self.keep("attn_out", self.linear(context, w, "o", layer), layer)
            base = self.taps[f"layers.{layer}.attn_norm"] if self.here("residual-normed", layer) else h
            h = self.keep("h_attn", a.round(base + out), layer)
            x = self.norm(h, w["fn"], "ffn_norm", layer)
            gate, up = (self.keep("ffn_" + n, self.linear(x, w, n, layer), layer) for n in ("gate", "up"))
            if self.here("gate-up", layer):
                gate, up = up, gate
            with np.errstate(over="ignore"):
                act = a.round(gate / (1 + np.exp(-gate)))
            if self.here("gelu", layer):
                act = a.round(0.5 * gate * (1 + np.tanh(0.7978845608 * (gate + 0.044715 * gate**3))))
            act = self.keep("ffn_act", a.round(act * up), layer)
            out = self.keep("ffn_out", self.linear(act, w, "down", layer), layer)
            h = self.keep("h", a.round(h + out), layer)
        x = h if self.here("final-norm-omitted") else self.norm(h, m["norm"], "final_norm")
        if self.here("final-norm-omitted"):
            self.keep("final_norm", x)
        self.keep("logits", a.product(x, m["head"]))
        self.steps.append((list(tokens), self.taps))
        return self


# ---------------------------------------------------------------- faults


def value_fault(kind, tap, layer, size, rng, onset=0):
    """A change of what one operation gives, from position `onset` on."""

    def fault(name, at, value, start):
        if name != tap or at != layer:
            return None
        finite = np.isfinite(value)
        y = value.astype(np.float64)
        axis = 1 if name in ("qk", "scores", "probs") else 0
        rows = np.arange(start, start + value.shape[axis])
        if kind == "row":
            chosen = rows == onset
        else:
            chosen = rows >= onset
        chosen = chosen.reshape([-1 if i == axis else 1 for i in range(value.ndim)])
        if kind in ("factor", "row"):
            new = y * size
        elif kind == "head":
            lead = np.arange(value.shape[0]) if axis == 1 else np.arange(value.shape[-2] if value.ndim == 3 else 1)
            shape = (-1, 1, 1) if axis == 1 else (1, -1, 1)
            new = y * np.where(lead == 0, size, 1).reshape(shape) if value.ndim == 3 else y * size
        elif kind == "channel":
            new = y.copy()
            new[..., channel % value.shape[-1]] *= size
        elif kind == "offset":
            new = y + (size - 1) * np.sqrt(np.mean(np.square(y[finite])))
        elif kind == "nan":
            new = y.copy()
            new.reshape(-1)[channel % value.size] = np.nan
            return new
        elif kind == "zeros":
            new = y * 0
        elif kind == "noise":
            new = y * (1 + (size - 1) * noise.standard_normal(y.shape))
        else:
            raise AssertionError(kind)
        return np.where(chosen & finite, new, value)

    channel, noise = int(rng.integers(1000)), np.random.default_rng(int(rng.integers(1 << 30)))
    return fault


VALUE_TAPS = ["h0", "final_norm", "logits", "attn_norm", "q", "k", "v", "q_rope", "k_rope", "qk", "scores", "probs", "context", "attn_out",
              "h_attn", "ffn_norm", "ffn_gate", "ffn_up", "ffn_act", "ffn_out", "h"]


def choose_fault(rng, model, profile):
    """(words, quirks, fault function, taps that may be blamed first)."""
    layer = int(rng.integers(model["L"]))
    at = lambda *names: [f"layers.{layer}.{n}" for n in names]
    if rng.random() < 0.5:
        tap = str(rng.choice(VALUE_TAPS))
        place = None if tap in VALUE_TAPS[:3] else layer
        kind = str(rng.choice(["factor", "factor", "factor", "head", "row", "channel", "offset", "nan", "zeros"]))
        if kind == "head" and tap not in ("q", "k", "v", "q_rope", "k_rope", "qk", "scores", "probs"):
            kind = "factor"
        if kind == "head" and model["K" if tap in ("k", "v", "k_rope") else "H"] == 1:
            kind = "factor"
        size = 1 + float(np.exp(rng.uniform(np.log(1e-3), np.log(3)))) * float(rng.choice([1, -1]))
        onset = int(rng.integers(0, 8)) if kind == "row" or rng.random() < 0.3 else 0
        fault = value_fault(kind, tap, place, size, rng, onset)
        name = tap if place is None else f"layers.{layer}.{tap}"
        # Heads of a tap that is known before its axes are split.
        return f"{kind} {size:.4g} of {name} from {onset}", {}, fault, [name]
    quirk = str(rng.choice(["fill", "fill", "fill", "mask-omitted", "mask-shift", "window", "pairing", "theta", "shift", "direction", "rope-omitted",
                            "scale", "head-map", "eps", "gain-omitted", "transposed", "other-layer", "bias-omitted", "residual-normed",
                            "gate-up", "gelu", "final-norm-omitted"]))
    value, where, blamed = True, layer, []
    if quirk == "fill":
        size = float(-np.exp(rng.uniform(np.log(1), np.log(40))))
        value, blamed = {"value": size, "added": bool(rng.random() < 0.4)}, at("scores", "probs")
    elif quirk in ("mask-omitted", "mask-shift", "window"):
        value = {"mask-omitted": True, "mask-shift": int(rng.choice([-1, 1])), "window": [1, -1, "off"][int(rng.integers(3))]}[quirk]
        blamed = at("scores", "probs")
    elif quirk in ("pairing", "theta"):
        value, blamed = (True if quirk == "pairing" else float(rng.choice([5e3, 1e5, 1e6]))), at("q_rope", "k_rope")
    elif quirk in ("shift", "direction", "rope-omitted"):
        where = str(rng.choice(["q_rope", "k_rope"]))
        value, blamed = (int(rng.choice([-1, 1])) if quirk == "shift" else True), [f"layers.{n}.{where}" for n in range(model["L"])]
    elif quirk == "scale":
        value, blamed = float(rng.choice([1 / model["d"], 1.0, 1 / np.sqrt(model["D"])])), at("scores")
    elif quirk == "head-map":
        blamed = at("qk", "context")
    elif quirk == "eps":
        value, blamed = float(rng.choice([0.0, 1e-3, 0.05])), at("attn_norm", "ffn_norm")
    elif quirk == "gain-omitted":
        name = str(rng.choice(["attn_norm", "ffn_norm"]))
        where, blamed = (name, layer), at(name)
    elif quirk in ("transposed", "other-layer", "bias-omitted"):
        name = str(rng.choice(["q", "k", "v"] if quirk == "bias-omitted" else ["q", "k", "v", "o", "gate", "up", "down"]))
        tap = {"o": "attn_out", "gate": "ffn_gate", "up": "ffn_up", "down": "ffn_out"}.get(name, name)
        where, blamed = (name, layer), at(tap)
    elif quirk == "residual-normed":
        blamed = at("h_attn")
    elif quirk in ("gate-up", "gelu"):
        blamed = at("ffn_act")
    elif quirk == "final-norm-omitted":
        where, blamed = None, ["final_norm"]
    return f"{quirk} {value} at {where}", {quirk: {"layer": where, "value": value}}, None, blamed
