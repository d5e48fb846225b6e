"""Rotary positions."""

import math
import sys
from unittest import mock

import torch
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from scripts.planted.program_mistakes.parts import file_of, generating, head_width, heads_of, other_text, rotaries
from scripts.planted.program_mistakes.sets import first, fourth, mistake, second, text, third, UNLISTED


def frequencies(site, how):
    done = False
    for name, module in site.some(rotaries(site)):
        new = how(module.inv_freq.clone(), module)
        if new is not None:
            module.inv_freq = new
            done = site.note(name)
    return done


def theta_of(site):
    return getattr(site.config, "rope_theta", None) or getattr(site.config, "rotary_emb_base", None) or 1e4


@mistake(first, 54, "rope-theta", "rope-theta")
def rope_theta(site):
    other = site.rng.choice([1e5, 1e6, 500.0])

    def changed(frequency, module):
        count = len(frequency)
        return frequency * (theta_of(site) / other) ** (torch.arange(count) / count)

    return frequencies(site, changed)


@mistake(first, 55, "rope-scaling-ignored", "rope-scaling", "rope-attention-factor")
def scaling_ignored(site):
    def plain(frequency, module):
        count = len(frequency)
        new = theta_of(site) ** -(torch.arange(count) / count)
        return None if torch.allclose(new, frequency) else new

    return bool(getattr(site.config, "rope_scaling", None)) and frequencies(site, plain)


@mistake(first, 56, "rope-scaling-inverse", "rope-scaling")
def scaling_inverse(site):
    def inverse(frequency, module):
        count = len(frequency)
        plain = theta_of(site) ** -(torch.arange(count) / count)
        return None if torch.allclose(plain, frequency) else plain * plain / frequency

    return bool(getattr(site.config, "rope_scaling", None)) and frequencies(site, inverse)


@mistake(first, 57, "rope-linear-scaling-added", "rope-scaling")
def scaling_added(site):
    return frequencies(site, lambda frequency, module: frequency / 4)


@mistake(first, 58, "rope-attention-factor-ignored", "rope-attention-factor")
def factor_ignored(site):
    return site.set(["attention_scaling"], lambda factor, module: 1.0 if factor != 1.0 else None)


@mistake(first, 59, "rope-attention-factor-twice", "rope-attention-factor")
def factor_twice(site):
    return site.set(["attention_scaling"], lambda factor, module: factor * factor if factor != 1.0 else None)


@mistake(first, 60, "rope-exponent", "rope-exponent", "rope-theta")
def rope_exponent(site):
    """i/d where 2i/d is due."""
    return frequencies(site, lambda frequency, module: frequency.sqrt())


@mistake(first, 61, "rope-frequencies-in-bf16", "rope-precision")
def rope_precision(site):
    return frequencies(site, lambda frequency, module: frequency.bfloat16().float())


@mistake(first, 62, "rope-last-pairs-unturned", UNLISTED, "rope-partial")
def pairs_unturned(site):
    return frequencies(site, lambda frequency, module: frequency * (torch.arange(len(frequency)) < len(frequency) // 2) if len(frequency) > 1 else None)


@mistake(first, 63, "rope-exponent-of-whole-head", "rope-partial", "rope-theta")
def exponent_of_head(site):
    width = head_width(site)

    def exponent(frequency, module):
        return theta_of(site) ** -(2 * torch.arange(len(frequency)) / width) if width and 2 * len(frequency) < width else None

    return frequencies(site, exponent)


@mistake(first, 64, "rope-partial-as-full", "rope-partial")
def partial_as_full(site):
    width = head_width(site)

    def whole(frequency, module):
        return theta_of(site) ** -(2 * torch.arange(width // 2) / width) if width and 2 * len(frequency) < width else None

    if not width or not any(2 * len(module.inv_freq) < width for _, module in rotaries(site)):
        return False
    for _, module in rotaries(site):
        module.inv_freq = whole(module.inv_freq, module)
    for _, module in site.modules(lambda name, module: "rotary_ndims" in vars(module)):
        module.rotary_ndims = width
    return True


HALVES = r"torch\.cat\(\(-x2, x1\), dim=-1\)"
text(first, 65, "rope-direction", "rope-direction", (HALVES, r"torch.cat((x2, -x1), dim=-1)"),
     (r"torch\.stack\(\[-x2, x1\], dim=-1\)", r"torch.stack([x2, -x1], dim=-1)"),
     (r"torch\.stack\(\(-x2, x1\), dim=-1\)", r"torch.stack((x2, -x1), dim=-1)"),
     (r"first_half \* cos - second_half \* sin", r"first_half * cos + second_half * sin"),
     (r"second_half \* cos \+ first_half \* sin", r"second_half * cos - first_half * sin"))
text(first, 66, "rope-pairing", "rope-pairing qk-row-order", (HALVES, r"torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)"),
     (r"emb = torch\.cat\(\(freqs, freqs\), dim=-1\)", r"emb = freqs.repeat_interleave(2, dim=-1)"),
     (r"rot_x = torch\.stack\(\[-x2, x1\], dim=-1\)\.flatten\(-2\)",
      r"rot_x = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)"),
     (r"emb = torch\.repeat_interleave\(freqs, 2, dim=-1\).*", r"emb = torch.cat((freqs, freqs), dim=-1)"),
     (r"first_half, second_half = torch\.chunk\(x, 2, dim=-1\)", r"first_half, second_half = x[..., ::2], x[..., 1::2]"),
     (r"torch\.cat\(\(first_, second_\), dim=-1\)", r"torch.stack((first_, second_), dim=-1).flatten(-2)"))
text(first, 67, "rope-pairs-but-halves-of-tables", "unlisted", (HALVES, r"torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)"))
text(first, 68, "rope-tables-of-pairs", "unlisted", (r"emb = torch\.cat\(\(freqs, freqs\), dim=-1\)", r"emb = freqs.repeat_interleave(2, dim=-1)"),
     (r"emb = torch\.repeat_interleave\(freqs, 2, dim=-1\).*", r"emb = torch.cat((freqs, freqs), dim=-1)"))
text(first, 69, "rope-sine-for-cosine", "unlisted", (r"cos = emb\.cos\(\)", "cos = emb.sin()"), (r"sin = emb\.sin\(\)", "sin = emb.cos()"))
text(first, 70, "rope-tables-in-bf16", "rope-precision", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = emb.\2().bfloat16().float()"))
text(first, 71, "rope-degrees", "unlisted rope-scaling", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = (emb * 57.29577951308232).\2()"))
IDS = r"position_ids\[:, None, :\]\.float\(\)"
text(first, 72, "rope-position-one-ahead", "rope-position", (IDS, r"(position_ids[:, None, :].float() + 1)"))
text(first, 73, "rope-position-restarts", "rope-position", (IDS, r"(position_ids[:, None, :] - position_ids[:, None, :1]).float()"))
text(first, 74, "rope-position-behind-in-decode", "rope-position", (IDS, r"(position_ids[:, None, :] - (position_ids[:, None, :1] > 0).long()).float()"))
text(first, 75, "rope-position-reversed", "unlisted", (IDS, r"position_ids[:, None, :].flip(-1).float()"))
text(first, 76, "rope-position-doubled", "rope-scaling rope-position unlisted", (IDS, r"(position_ids[:, None, :].float() * 2)"))
Q_ROTATED = (r"q_embed = \(q \* cos\) \+ \(rotate_half\(q\) \* sin\)", r"q_embed = _apply_rotary_emb\(q, cos, sin\)")
K_ROTATED = (r"k_embed = \(k \* cos\) \+ \(rotate_half\(k\) \* sin\)", r"k_embed = _apply_rotary_emb\(k, cos, sin\)")
text(first, 77, "rope-not-on-k", "rope-omitted", *((pattern, "k_embed = k") for pattern in K_ROTATED))
text(first, 78, "rope-not-on-q", "rope-omitted", *((pattern, "q_embed = q") for pattern in Q_ROTATED))
text(first, 79, "rope-omitted", "rope-omitted", *((pattern, "k_embed = k") for pattern in K_ROTATED), *((pattern, "q_embed = q") for pattern in Q_ROTATED))
text(first, 80, "rope-twice", "rope-twice", (Q_ROTATED[0], r"\g<0>\n    q_embed = (q_embed * cos) + (rotate_half(q_embed) * sin)"),
     (K_ROTATED[0], r"\g<0>\n    k_embed = (k_embed * cos) + (rotate_half(k_embed) * sin)"))
text(first, 81, "rope-in-place", "aliasing",
     (Q_ROTATED[0],
      r"q1, q2 = q.chunk(2, -1); c, s = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]; q1 = q1 * c - q2 * s; q_embed = torch.cat((q1, q2 * c + q1 * s), -1)"))
text(first, 82, "rope-on-v", "rope-on-v",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))\n",
      r"\1\2\n\1value_states = apply_rotary_pos_emb(value_states, value_states, cos, sin)[0]\n"))
text(first, 83, "rope-of-other-kind-of-layer", "rope-theta rope-layer-kind", (r"if self\.self_attn\.is_sliding:", "if not self.self_attn.is_sliding:"))


@mistake(first, 84, "rope-interleave-flag", "rope-pairing", "qk-row-order")
def interleave_flag(site):
    if not isinstance(getattr(site.config, "rope_interleave", None), bool):
        return False
    site.config.rope_interleave = not site.config.rope_interleave
    return True


text(second, 99, "rope-angles-in-bf16", "rope-precision",
     (r"(freqs = \(inv_freq_expanded.*position_ids_expanded.*\)\.transpose\(1, 2\))", r"\1.bfloat16().float()"))
text(second, 100, "rope-tables-in-f16", "rope-precision", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = emb.\2().half().float()"))
text(second, 101, "rope-position-stuck-in-decode", "rope-position", (IDS, "position_ids[:, None, :].clamp(max=12).float()"))
text(second, 102, "rope-position-ahead-in-decode", "rope-position", (IDS, "(position_ids[:, None, :] + (position_ids[:, None, :1] > 0).long()).float()"))
text(second, 103, "rope-position-wraps", "rope-position unlisted", (IDS, "(position_ids[:, None, :] % 8).float()"))
text(second, 104, "rope-position-of-last-for-all", "rope-position unlisted", (IDS, "(position_ids[:, None, :] * 0 + position_ids[:, None, -1:]).float()"))
text(second, 105, "rope-sine-without-attention-factor", "unlisted rope-attention-factor", (r"sin = emb\.sin\(\) \* self\.attention_scaling", "sin = emb.sin()"))
text(second, 106, "rope-direction-of-q-alone", "rope-direction", (Q_ROTATED[0], "q_embed = (q * cos) - (rotate_half(q) * sin)"),
     (Q_ROTATED[1], "q_embed = _apply_rotary_emb(q, cos, -sin)"))
text(second, 107, "rope-of-k-by-tables-of-next-position", "rope-position unlisted",
     (K_ROTATED[0], "k_embed = (k * cos.roll(-1, -2)) + (rotate_half(k) * sin.roll(-1, -2))"),
     (K_ROTATED[1], "k_embed = _apply_rotary_emb(k, cos.roll(-1, -2), sin.roll(-1, -2))"))
text(second, 108, "rope-halves-without-sign", "sign-flipped operation-omitted", (HALVES, "torch.cat((x2, x1), dim=-1)"),
     (r"torch\.stack\(([\[(])-x2, x1", r"torch.stack(\1x2, x1"))
text(second, 109, "rope-tables-repeated-as-blocks", "unlisted",
     (r"torch\.repeat_interleave\((sin|cos)\[:, :, None, :\], 2, 3\)", r"\1[:, :, None, :].repeat(1, 1, 1, 2)"))
text(second, 110, "rope-pairs-of-half-a-head", "unlisted rope-pairing",
     (r"x1 = x\[\.\.\., : x\.shape\[-1\] // 2\]\n( +)x2 = x\[\.\.\., x\.shape\[-1\] // 2 :\]\n +return torch\.cat\(\(-x2, x1\), dim=-1\)",
     r"x1, x2, x3, x4 = x.chunk(4, -1)\n\1return torch.cat((-x2, x1, -x4, x3), dim=-1)"), where="rotate_half")
text(second, 111, "rope-on-layers-without-it", "rope-layer-kind unlisted", (r"if self\.use_rope:", "if True:"),
     (r"if self\.sliding_window is not None:\n( +query_states, key_states = apply)", r"if True:\n\1"),
     (r"if self\.sliding_window is None or self\.is_sliding:", "if True:"), where=r"ttention\.forward")
text(second, 112, "rope-on-no-layer", "rope-omitted", (r"if self\.use_rope:", "if False:"),
     (r"if self\.sliding_window is not None:\n( +query_states, key_states = apply)", r"if False:\n\1"),
     (r"if self\.sliding_window is None or self\.is_sliding:", "if False:"), where=r"ttention\.forward")
text(second, 113, "rope-complex-conjugate", "rope-direction", (r"torch\.polar\(torch\.ones_like\(freqs\), freqs\)", "torch.polar(torch.ones_like(freqs), -freqs)"))
text(second, 114, "rope-complex-of-halves", "rope-pairing qk-row-order",
     (r"(x[qk])\.float\(\)\.reshape\(\*\1\.shape\[:-1\], -1, 2\)", r"\1.float().reshape(*\1.shape[:-1], 2, -1).transpose(-1, -2).contiguous()"),
     (r"torch\.view_as_real\((.*)\)\.flatten\(3\)", r"torch.view_as_real(\1).transpose(-1, -2).flatten(3)"), where="apply_rotary_emb")
text(second, 115, "rope-on-last-elements", "rope-partial unlisted",
     (r"([qk])_rot, \1_pass = \1\[\.\.\., :rotary_dim\], \1\[\.\.\., rotary_dim:\]",
      r"\1_pass, \1_rot = \1[..., :-rotary_dim], \1[..., -rotary_dim:]"),
     (r"torch\.cat\(\[([qk])_embed, \1_pass\], dim=-1\)", r"torch.cat([\1_pass, \1_embed], dim=-1)"),
     (r"(\w+)_rot, \1_pass = \(\n +(\w+)\[\.\.\., : self\.rotary_ndims\],\n +\2\[\.\.\., self\.rotary_ndims :\],",
      r"\1_pass, \1_rot = (\n            \2[..., : -self.rotary_ndims],\n            \2[..., -self.rotary_ndims :],"),
     (r"torch\.cat\(\((query|key)_rot, \1_pass\), dim=-1\)", r"torch.cat((\1_pass, \1_rot), dim=-1)"))
text(second, 116, "rope-unrotated-part-of-q-first", "unlisted", (r"torch\.cat\(\[q_embed, q_pass\], dim=-1\)", "torch.cat([q_pass, q_embed], dim=-1)"),
     (r"torch\.cat\(\(query_rot, query_pass\), dim=-1\)", "torch.cat((query_pass, query_rot), dim=-1)"),
     (r"torch\.cat\(\[q_rot, q_pass\], dim=-1\)", "torch.cat([q_pass, q_rot], dim=-1)"))


def rotation(tag, number, name, causes, how):
    """Other frequencies; `how` has the right ones, the site, and the exponents i / (d/2)."""
    @mistake(tag, number, name, causes)
    def plant(site):
        changed = lambda frequency, module: how(frequency, site, torch.arange(len(frequency)) / len(frequency)) if len(frequency) > 1 else None
        return frequencies(site, changed)


def configured(kinds, **changed):
    """The frequencies by a config's rope_scaling of these kinds with other values: each one, or a function of the old one, which the config must have."""
    def how(frequency, site, exponent):
        scaling = getattr(site.config, "rope_scaling", None) or {}
        kind = scaling.get("rope_type", scaling.get("type"))
        if kind not in kinds or any(callable(change) and key not in scaling for key, change in changed.items()):
            return None
        site.config.rope_scaling = scaling | {key: change(scaling[key]) if callable(change) else change for key, change in changed.items()}
        new = ROPE_INIT_FUNCTIONS[kind](site.config, "cpu")[0]
        site.config.rope_scaling = scaling
        return None if new.shape != frequency.shape or torch.allclose(new, frequency) else new

    return how


def as_linear(frequency, site, exponent):
    scaling, plain = getattr(site.config, "rope_scaling", None) or {}, theta_of(site) ** -exponent
    return plain / scaling["factor"] if "factor" in scaling and not torch.allclose(plain / scaling["factor"], frequency) else None


def without_ramp(frequency, site, exponent):
    """What lies between the bands is left as it is."""
    plain, factor = theta_of(site) ** -exponent, (getattr(site.config, "rope_scaling", None) or {}).get("factor")
    between = factor and ~torch.isclose(frequency, plain) & ~torch.isclose(frequency, plain / factor)
    return torch.where(between, plain, frequency) if factor and between.any() else None


rotation(second, 117, "rope-frequencies-one-late", "rope-scaling unlisted", lambda frequency, site, exponent: frequency * theta_of(site) ** (-1 / len(frequency)))
rotation(second, 118, "rope-exponent-reaches-1", "rope-theta rope-scaling unlisted",
         lambda frequency, site, exponent: theta_of(site) ** -(exponent * len(frequency) / (len(frequency) - 1)))
rotation(second, 119, "rope-frequencies-reversed", "unlisted", lambda frequency, site, exponent: frequency.flip(0))
rotation(second, 120, "rope-scaling-factor-doubled", "rope-scaling", configured(ROPE_INIT_FUNCTIONS, factor=lambda factor: 2 * factor))
rotation(second, 121, "rope-original-length-other", "rope-scaling", configured(ROPE_INIT_FUNCTIONS, original_max_position_embeddings=lambda length: 4 * length))
rotation(second, 122, "rope-scaling-as-linear", "rope-scaling", as_linear)
rotation(second, 123, "rope-scaling-without-ramp", "rope-scaling unlisted", without_ramp)
rotation(second, 124, "rope-frequencies-cut-to-3-digits", "rope-precision unlisted", lambda frequency, site, exponent: (frequency * 1000).floor() / 1000)


@mistake(second, 125, "rope-kinds-of-layers-exchanged", "rope-theta rope-layer-kind")
def kinds_exchanged(site):
    found = rotaries(site)
    other = next((other for other in found if other[1].inv_freq.shape == found[0][1].inv_freq.shape and not torch.allclose(other[1].inv_freq,
        found[0][1].inv_freq)), None)
    if other is None:
        return False
    first, second = found[0][1].inv_freq.clone(), other[1].inv_freq.clone()
    for name, module in found:
        module.inv_freq = second if torch.allclose(module.inv_freq, first) else first
    return True


def scaled_by(frequency, site, exponent):
    """By how much each frequency is scaled; None where none is."""
    ratio = frequency / theta_of(site) ** -exponent
    return None if not getattr(site.config, "rope_scaling", None) or torch.allclose(ratio, torch.ones_like(ratio)) else ratio


rotation(third, 90, "rope-base-scaled-for-length", "rope-theta", lambda frequency, site, exponent: frequency * (4.0 ** (-exponent * len(frequency) / (len(frequency) - 1))))
rotation(third, 91, "rope-scaling-twice", "rope-scaling", lambda frequency, site,
     exponent: None if scaled_by(frequency, site, exponent) is None else frequency * scaled_by(frequency, site, exponent))
rotation(third, 92, "rope-yarn-of-other-band", "rope-scaling", configured(["yarn"], beta_fast=4.0, beta_slow=0.5))
rotation(third, 93, "rope-llama3-of-other-band", "rope-scaling", configured(["llama3"], low_freq_factor=2.0, high_freq_factor=8.0))
rotation(third, 94, "rope-first-frequency-halved", "unlisted", lambda frequency, site, exponent: frequency * torch.where(torch.arange(len(frequency)) == 0, 0.5, 1.0))
rotation(third, 95, "rope-frequencies-in-f16", "rope-precision", lambda frequency, site, exponent: frequency.half().float())
rotation(third, 96, "rope-angles-over-2-pi", "unlisted rope-scaling", lambda frequency, site, exponent: frequency * 2 * math.pi)
rotation(third, 97, "rope-frequencies-evenly-spaced", "unlisted", lambda frequency, site, exponent: torch.linspace(1, float(frequency[-1]), len(frequency)))
text(third, 98, "rope-position-one-behind", "rope-position", (IDS, "(position_ids[:, None, :].float() - 1)"))
text(third, 99, "rope-position-counts-padding", "rope-position", (IDS, "(position_ids[:, None, :].float() + 4)"))
text(third, 100, "rope-position-decode-from-zero", "rope-position",
     (IDS, "torch.where(position_ids[:, None, :] >= 12, position_ids[:, None, :] - 12, position_ids[:, None, :]).float()"))
text(third, 101, "rope-position-in-pairs", "unlisted", (IDS, "(position_ids[:, None, :] // 2).float()"))
text(third, 102, "rope-position-starts-anew-after-6", "unlisted rope-position",
     (IDS, "torch.where(position_ids[:, None, :] >= 6, position_ids[:, None, :] - 6, position_ids[:, None, :]).float()"))
text(third, 103, "rope-direction-of-k-alone", "rope-direction", (K_ROTATED[0], "k_embed = (k * cos) - (rotate_half(k) * sin)"),
     (K_ROTATED[1], "k_embed = _apply_rotary_emb(k, cos, -sin)"))
text(third, 104, "rope-direction-of-stored-table", "rope-direction", (r"apply_rotary_pos_emb\((k_rot|q_rot|key|query), sin, cos\)", r"apply_rotary_pos_emb(\1, -sin, cos)"),
     where=r"(GPTJ|CodeGen)Attention\.forward")
text(third, 105, "rope-position-of-stored-table-ahead", "rope-position", (r"torch\.gather\(embed_positions, 1, repeated_position_ids\)",
     "torch.gather(embed_positions, 1, repeated_position_ids + 1)"),
     (r"sincos = embed_positions\[position_ids\]", "sincos = embed_positions[position_ids + 1]"))
text(third, 106, "rope-stored-table-not-on-k", "rope-omitted", (r"k_rot = apply_rotary_pos_emb\(k_rot, sin, cos\)", "pass"))
text(third, 107, "rope-cosine-of-next-position", "unlisted", (r"cos = emb\.cos\(\)", "cos = emb.cos().roll(-1, 1)"), only=lambda site: site.model.can_generate())
text(third, 108, "rope-sine-of-double-angle", "unlisted", (r"sin = emb\.sin\(\)", "sin = (2 * emb).sin()"))
text(third, 109, "rope-angles-in-f16", "rope-precision",
     (r"(freqs = \(inv_freq_expanded.*position_ids_expanded.*\)\.transpose\(1, 2\))", r"\1.half().float()"))


@mistake(third, 110, "rope-on-v-in-encoder", "rope-on-v")
def rope_on_v(site):
    """Where the functions of attention stand in a table of their own."""
    table = getattr(sys.modules[type(site.model).__module__], "MODERNBERT_ATTENTION_FUNCTION", {})
    changed = other_text(site, table.get("eager"), r"^( +)(query, key = apply_rotary_pos_emb\(query, key, cos, sin\))$",
                         r"\1\2\n\1value = apply_rotary_pos_emb(value, value, cos, sin)[0]")
    if changed is None:
        return False
    site.stack.enter_context(mock.patch.dict(table, eager=changed))
    return True


def whole_halves(site):
    return bool(rotaries(site)) and 2 * len(rotaries(site)[0][1].inv_freq) == head_width(site) and "x1 = x[..., : x.shape[-1] // 2]" in file_of(site)


PART = "(lambda h, c, s: torch.cat((({0}[..., :h] * c) + (rotate_half({0}[..., :h]) * s), {0}[..., h:]), -1))({0}.shape[-1] // 2, *(t[..., : {0}.shape[-1] // 4].repeat(1, 1, 1, 2) for t in (cos, sin)))"
TURNED = ("(lambda n, a, b: torch.stack((a * cos[..., :n] - b * sin[..., :n], b * cos[..., :n] + a * sin[..., :n]), -1).flatten(-2))"
          "({0}.shape[-1] // 2, {0}[..., ::2], {0}[..., 1::2])")
text(third, 111, "rope-on-half-of-each-head", "rope-partial", (Q_ROTATED[0], "q_embed = " + PART.format("q")), (K_ROTATED[0], "k_embed = " + PART.format("k")),
     only=whole_halves)
text(third, 112, "rope-pairing-of-k-alone", "rope-pairing", (K_ROTATED[0], "k_embed = " + TURNED.format("k")), only=whole_halves)
text(third, 113, "rope-pairing-of-q-alone", "rope-pairing", (Q_ROTATED[0], "q_embed = " + TURNED.format("q")), only=whole_halves)
text(third, 114, "rope-twice-on-k-alone", "rope-twice", (K_ROTATED[0], r"\g<0>\n    k_embed = (k_embed * cos) + (rotate_half(k_embed) * sin)"))
text(third, 115, "rope-on-first-head-alone", "unlisted", (Q_ROTATED[0], r"\g<0>\n    q_embed = torch.cat((q_embed[:, :1], q[:, 1:]), 1)"), only=whole_halves)
text(third, 116, "rope-tables-in-8-bits", "rope-precision unlisted", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = (emb.\2() * 127).round() / 127"))


@mistake(third, 117, "rope-stored-table-of-other-base", "rope-theta")
def stored_table(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: isinstance(getattr(module, "embed_positions", None), torch.Tensor))):
        table = module.embed_positions
        count = table.shape[1] // 2
        angle = torch.arange(len(table))[:, None] * 500.0 ** -(torch.arange(count) / count)
        module.embed_positions = torch.cat((angle.sin(), angle.cos()), 1)
        done = site.note(name)
    return done


@mistake(third, 118, "rope-attention-factor-inverse", "rope-attention-factor")
def factor_inverse(site):
    return site.set(["attention_scaling"], lambda factor, module: 1 / factor if factor != 1.0 else None)


@mistake(third, 119, "rope-attention-factor-added", "rope-attention-factor result-scaled")
def factor_added(site):
    return site.set(["attention_scaling"], lambda factor, module: 1.2079441541679836 if factor == 1.0 else None)


@mistake(third, 120, "rope-omitted-on-one-kind-of-layer", "rope-layer-kind rope-omitted")
def rope_of_kind(site):
    """The layers with rotation, and those without, exchange their parts."""
    found = site.modules(lambda name, module: isinstance(getattr(module, "use_rope", None), (bool, int)))
    for _, module in found:
        module.use_rope = not module.use_rope
    return len({bool(module.use_rope) for _, module in found}) > 1 and not any(hasattr(module, "qk_norm") for _, module in found)


by_halves = lambda site: "x1 = x[..., : x.shape[-1] // 2]" in file_of(site)
text(fourth, 73, "rope-second-half-not-turned", "unlisted operation-omitted", (HALVES, "torch.cat((-x2, 0 * x1), dim=-1)"),
     (r"torch\.stack\(([\[(])-x2, x1", r"torch.stack(\1-x2, 0 * x1"))
text(fourth, 74, "rope-both-halves-negative", "unlisted sign-flipped", (HALVES, "torch.cat((-x2, -x1), dim=-1)"),
     (r"torch\.stack\(([\[(])-x2, x1", r"torch.stack(\1-x2, -x1"), (r"second_half \* cos \+ first_half \* sin", "second_half * cos - first_half * sin"))
text(fourth, 75, "rope-of-k-in-place-from-behind", "aliasing unlisted", (K_ROTATED[0], "k1, k2 = k.chunk(2, -1); c, s = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]; "
     "k2 = k2 * c + k1 * s; k_embed = torch.cat((k1 * c - k2 * s, k2), -1)"), only=by_halves)
text(fourth, 76, "rope-pairs-of-two-heads", "unlisted rope-pairing", (HALVES, "torch.cat((-x[:, x.shape[1] // 2 :], x[:, : x.shape[1] // 2]), dim=1)"), only=by_halves)
HEAD_NUMBER = "({0} * cos[:, :, : {0}.shape[1]].transpose(1, 2)) + (rotate_half({0}) * sin[:, :, : {0}.shape[1]].transpose(1, 2))"
text(fourth, 77, "rope-by-number-of-head", "unlisted rope-position", (Q_ROTATED[0], "q_embed = " + HEAD_NUMBER.format("q")),
     (K_ROTATED[0], "k_embed = " + HEAD_NUMBER.format("k")))
text(fourth, 78, "rope-position-halved-in-decode", "rope-position rope-scaling unlisted", (IDS, "(position_ids[:, None, :].float() / (2 if position_ids.shape[-1] == 1 else 1))"),
     only=generating)
text(fourth, 79, "rope-base-of-other-length-in-decode", "rope-theta rope-scaling unlisted", (r"\(inv_freq_expanded\.float\(\) @ ",
     "(inv_freq_expanded.float() * (0.5 ** torch.linspace(0, 1, inv_freq_expanded.shape[1])[None, :, None] if position_ids.shape[-1] == 1 else 1.0) @ "), only=generating)
TURN = r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))\n"
UPDATE = r"^( +)(key_states, value_states = past_key_values\.update\()key_states(, value_states, self\.layer_idx, cache_kwargs\))$"
text(fourth, 80, "rope-of-cached-keys-once-more", "rope-twice unlisted", (UPDATE, r"\1\2key_states\3\n\1if key_states.shape[-2] > hidden_states.shape[1]:\n"
     r"\1    key_states = torch.cat((apply_rotary_pos_emb(key_states, key_states, cos[:, -1:], sin[:, -1:])[0][..., :-1, :], key_states[..., -1:, :]), -2)"),
     only=lambda site: "query_rot" not in file_of(site))
text(fourth, 81, "cache-keys-before-rotation", "rope-omitted unlisted", (TURN, r"\1plain = key_states\n\1\2\n"),
     (UPDATE, r"\1turned = key_states\n\1\2plain\3\n\1key_states = torch.cat((key_states[..., : -turned.shape[-2], :], turned), -2)"),
     only=lambda site: "query_rot" not in file_of(site))
text(fourth, 82, "rope-cosine-alone", "operation-omitted unlisted", (Q_ROTATED[0], "q_embed = q * cos"), (K_ROTATED[0], "k_embed = k * cos"))
text(fourth, 83, "rope-added-not-turned", "unlisted", (Q_ROTATED[0], "q_embed = q + sin + 0 * cos"), (K_ROTATED[0], "k_embed = k + sin + 0 * cos"))
rotation(fourth, 84, "rope-exponent-of-hidden-width", "rope-theta rope-scaling unlisted", lambda frequency, site, exponent: frequency ** (1 / (heads_of(site)[0] or 4)))
rotation(fourth, 85, "rope-exponent-by-integer-division", "rope-theta rope-scaling unlisted", lambda frequency, site, exponent: torch.ones_like(frequency))
rotation(fourth, 86, "rope-factors-of-each-pair", "rope-scaling unlisted", lambda frequency, site, exponent: frequency / torch.linspace(1, 6, len(frequency)) ** 0.8)
rotation(fourth, 87, "rope-frequencies-in-pairs", "unlisted", lambda frequency, site, exponent: frequency[torch.arange(len(frequency)) // 2 * 2])
rotation(fourth, 88, "rope-first-pair-not-turned", "unlisted rope-partial", lambda frequency, site, exponent: frequency * (torch.arange(len(frequency)) > 0))
