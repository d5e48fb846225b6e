"""Rearranges the tensors of a run as other engines store them. NumPy code that shares nothing with firstdiff's.

A layout takes the taps of a run, {(tap, step): array}, and gives them laid otherwise.
"""

import numpy as np

HEADS = ("q", "k", "v", "q_norm", "k_norm", "q_rope", "k_rope")
KV = ("k", "v", "k_norm", "k_rope")
KEYS = ("qk", "scores", "probs")
ROTATED = ("q", "k", "q_norm", "k_norm", "q_rope", "k_rope")


def site(tap):
    return tap.rsplit(".", 1)[-1]


def each(change, sites=None):
    """A layout that changes every tensor of these sites by itself."""
    return lambda taps: {key: change(key, x) if sites is None or site(key[0]) in sites else x for key, x in taps.items()}


def chain(*layouts):
    def all_of(taps):
        for layout in layouts:
            taps = layout(taps)
        return taps

    return all_of


def flat(key, x):
    return np.ascontiguousarray(x).reshape(-1)


def moved(*axes):
    return lambda key, x: np.ascontiguousarray(x.transpose(axes))


def column_major(key, x):
    """The bytes of a column-major array under the row-major shape."""
    return np.ascontiguousarray(x.transpose()).reshape(x.shape)


def backwards(key, x):
    """ggml's extents, fastest first, of memory that is as it was."""
    return x.reshape(x.shape[::-1])


def batch(key, x):
    return x[:, None] if key[0].endswith((".q", ".v", "h_attn")) else x[None]


def split_context(key, x):
    return x.reshape(len(x), 6, -1)


def context_heads_first(key, x):
    return np.ascontiguousarray(split_context(key, x).swapaxes(0, 1))


def adjacent(key, x):
    """GGUF's order of the rows of Q and K."""
    d = x.shape[-1]
    return x.reshape(*x.shape[:-1], 2, d // 2).swapaxes(-1, -2).reshape(x.shape)


def pad_keys(to):
    def change(key, x):
        fill = {"qk": 0.37, "scores": -np.inf, "probs": 0.0}[site(key[0])]
        return np.concatenate([x, np.full((*x.shape[:2], to - x.shape[2]), fill)], axis=2)

    return each(change, KEYS)


def pad_vocabulary(key, x):
    return np.concatenate([x, np.full((len(x), 160 - x.shape[1]), -1.5)], axis=1)


def pad_positions(to, left):
    noise = np.random.default_rng(3)

    def pad(x, axis, fill):
        width = [(0, 0)] * x.ndim
        more = to - x.shape[axis]
        width[axis] = (more, 0) if left else (0, more)
        padded = np.pad(x, width, constant_values=fill)
        if fill == 7:  # what an engine computes for padding tokens
            at = [slice(None)] * x.ndim
            at[axis] = slice(0, more) if left else slice(to - more, None)
            padded[tuple(at)] = noise.normal(size=padded[tuple(at)].shape)
        return padded

    def change(key, x):
        if key[1]:
            return x
        if site(key[0]) in KEYS:
            fill = {"qk": 0.37, "scores": -np.inf, "probs": 0.0}[site(key[0])]
            return pad(pad(x, 2, fill), 1, 7)
        return pad(x, 0, 7)

    return each(change)


def repeat_heads(key, x):
    return np.repeat(x, 3, axis=1)
