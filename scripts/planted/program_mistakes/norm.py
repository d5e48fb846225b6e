"""Norms: of a layer, the last one, those of heads."""

import inspect
import re

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import bf16, exchange, from_other_layer, generating, head_width, heads_of, layers_of, skip, stuck
from scripts.planted.program_mistakes.sets import first, fourth, held, mistake, second, text, third, UNLISTED
from scripts.planted.program_mistakes.site import in_layer, is_layer_norm, is_norm

RMS = r"self\.weight \* hidden_states|self\.weight\.to\(torch\.float32\) \* hidden_states"
PLUS_ONE = r"\(1\.0 \+ self\.weight\.float\(\)\)"
INVERSE = (r"torch\.rsqrt\(variance \+ self\.variance_epsilon\)", r"torch\.rsqrt\(x\.pow\(2\)\.mean\(-1, keepdim=True\) \+ self\.eps\)")
SQUARES = r"(hidden_states|x)(\.to\(torch\.float32\))?\.pow\(2\)\.mean\(-1, keepdim=True\)"
EPS = ["variance_epsilon", "eps"]
text(first, 1, "norm-eps-outside", "norm-eps-outside", (INVERSE[0], r"(1 / (torch.sqrt(variance) + self.variance_epsilon))"),
     (INVERSE[1], r"(1 / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + self.eps))"))
text(first, 2, "norm-plus-one", "norm-plus-one", (RMS, r"(1 + self.weight) * hidden_states"), (PLUS_ONE, r"self.weight.float()"))
text(first, 3, "norm-weight-twice", "norm-weight-twice", (RMS, r"self.weight * self.weight * hidden_states"), (PLUS_ONE, r"(1.0 + self.weight.float()) ** 2"))
text(first, 4, "norm-weight-omitted", "norm-weight-omitted", (RMS, r"1.0 * hidden_states"), (PLUS_ONE, "1.0"))
text(first, 5, "norm-sum", "norm-sum", (SQUARES, r"\1\2.pow(2).sum(-1, keepdim=True)"))
text(first, 6, "norm-whole-tensor", "norm-axis", (SQUARES, r"\1\2.pow(2).mean()"))
text(first, 7, "norm-over-positions", "norm-axis unlisted", (SQUARES, r"\1\2.pow(2).mean(-2, keepdim=True)"))
text(first, 8, "norm-centered", "norm-centered", (SQUARES, r"\1.float().var(-1, keepdim=True, unbiased=False)"),
     (r"hidden_states = hidden_states \* torch\.rsqrt\(", r"hidden_states = (hidden_states - hidden_states.mean(-1, keepdim=True)) * torch.rsqrt("),
     (r"return x \* torch\.rsqrt\(", r"return (x - x.mean(-1, keepdim=True)) * torch.rsqrt("))
text(first, 9, "norm-first-half", "unlisted norm-width", (SQUARES, r"\1\2[..., :\1.shape[-1] // 2].pow(2).mean(-1, keepdim=True)"))
text(first, 10, "norm-absolute", "unlisted", (SQUARES, r"\1\2.abs().mean(-1, keepdim=True).pow(2)"))
text(first, 11, "norm-width-less-one", "norm-width", (SQUARES, r"(\1\2.pow(2).sum(-1, keepdim=True) / (\1.shape[-1] - 1))"))
text(first, 12, "norm-previous-row", "unlisted", (SQUARES, r"\1\2.pow(2).mean(-1, keepdim=True).roll(1, -2)"))
text(first, 13, "norm-gain-first", "unlisted", (r"(    input_dtype = hidden_states\.dtype\n)", r"\1    hidden_states = hidden_states * self.weight\n"),
     where=r"Norm\.forward")
text(first, 14, "gated-norm-order", "unlisted norm-gate-order",
     (r"( +)if gate is not None:\n.*\n((?:.*\n)*?) *return self\.weight \* hidden_states\.to\(input_dtype\)",
      r"\2\1return self.weight * hidden_states.to(input_dtype) * nn.functional.silu(gate)"), where="Gated")
text(first, 15, "gate-not-activated", "unlisted activation", (r"nn\.functional\.silu\(gate\.to\(torch\.float32\)\)", r"gate.to(torch.float32)"),
     (r"self\.act\(gate\)", "gate"))


@mistake(first, 16, "norm-eps-swapped", "norm-eps")
def eps_swapped(site):
    return site.set(EPS, lambda eps, module: {1e-5: 1e-6, 1e-6: 1e-5}.get(eps, 1e-5 if eps else None), is_norm)


@mistake(first, 17, "norm-eps-large", "norm-eps")
def eps_large(site):
    eps = site.rng.choice([1e-3, 1e-2])
    return site.set(EPS, lambda old, module: eps, is_norm)


def layer_norm_without(centre=True, gain=lambda w: w, bias=lambda b: b, count=0, outside=False):
    """A LayerNorm with something left out."""
    def make(module, own):
        def forward(x):
            flat = x - x.mean(-1, keepdim=True) if centre else x
            square = flat.pow(2).sum(-1, keepdim=True) / (x.shape[-1] - count)
            flat = flat / (square.sqrt() + module.eps) if outside else flat * torch.rsqrt(square + module.eps)
            out = flat * gain(module.weight)
            return out if module.bias is None else out + bias(module.bias)

        return forward

    return make


@mistake(first, 18, "layer-norm-not-centered", "norm-centered", "norm-not-centered")
def not_centered(site):
    return site.forward(site.role(is_layer_norm), layer_norm_without(centre=False)) or site.edit(
        (r"\(hidden_states - mean\)", "hidden_states"), where="Norm")


@mistake(first, 19, "layer-norm-gain-omitted", "norm-weight-omitted")
def gain_omitted(site):
    return site.forward(site.role(is_layer_norm), layer_norm_without(gain=torch.ones_like))


@mistake(first, 20, "layer-norm-bias-omitted", "bias-omitted", "norm-bias-omitted")
def norm_bias_omitted(site):
    return site.forward(site.role(lambda name, module: is_layer_norm(name, module) and module.bias is not None), layer_norm_without(bias=torch.zeros_like))


@mistake(first, 21, "layer-norm-plus-one", "norm-plus-one")
def layer_norm_plus_one(site):
    return site.forward(site.role(is_layer_norm), layer_norm_without(gain=lambda w: 1 + w))


@mistake(first, 22, "layer-norm-unbiased", "norm-width", UNLISTED)
def unbiased(site):
    return site.forward(site.role(is_layer_norm), layer_norm_without(count=1))


@mistake(first, 23, "layer-norm-eps-outside", "norm-eps-outside")
def layer_norm_outside(site):
    return site.forward(site.role(is_layer_norm), layer_norm_without(outside=True))


@mistake(first, 24, "norm-omitted", "norm-omitted", "final-norm-omitted")
def norm_omitted(site):
    return site.forward(site.role(is_norm), skip)


@mistake(first, 25, "norm-done-twice", "norm-omitted", "final-norm-omitted")
def norm_twice(site):
    return site.forward(site.role(lambda name, module: is_norm(name, module) and "Gated" not in type(module).__name__), lambda module, own: lambda x: own(own(x)))


QK_NORM = re.compile(r"(^|\.)(q_norm|k_norm|q_layernorm|k_layernorm|query_layernorm|key_layernorm|query_norm|key_norm)$")


@mistake(first, 26, "q-or-k-norm-omitted", "norm-omitted")
def qk_norm_omitted(site):
    found = [(name, module) for name, module in site.role(lambda name, module: bool(QK_NORM.search(name)))]
    return site.forward(found, skip)


text(first, 27, "qk-norm-after-rope", "qk-norm-order", (r"self\.[qk]_norm\((self\.[qk]_proj\(hidden_states\)\.view\(hidden_shape\))\)", r"\1"),
     (r"^ +(query|key)_states = self\.[qk]_norm\(\1_states\)\n", ""),
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))\n",
      r"\1\2\n\1query_states, key_states = self.q_norm(query_states), self.k_norm(key_states)\n"), where=r"Attention\.forward")


@mistake(first, 28, "latent-norm-omitted", "norm-omitted")
def latent_norm_omitted(site):
    return site.forward(site.role(lambda name, module: bool(re.search(r"\.(kv_a|q_a|dt|b|c)_layernorm$", name))), skip)


@mistake(first, 29, "norm-gain-of-other-norm", "norm-wrong-weight")
def gain_of_other(site):
    """Two norms of a layer exchange their gains."""
    layers = {}
    for name, module in site.modules(lambda name, module: is_norm(name, module) and in_layer(name) and getattr(module, "weight", None) is not None):
        layers.setdefault((re.search(r".*?\.\d+\.", name)[0], module.weight.shape), []).append((name, module))
    pairs = [found for found in layers.values() if len(found) > 1]
    return bool(pairs) and exchange(site, *site.rng.sample(site.rng.choice(pairs), 2))


@mistake(first, 30, "norm-gain-of-other-layer", "norm-wrong-weight")
def gain_of_other_layer(site):
    found = site.modules(lambda name, module: is_norm(name, module) and in_layer(name) and len(site.siblings(name)) > 1)
    return bool(found) and from_other_layer(site, *site.rng.choice(found))


text(second, 1, "norm-in-bf16", "precision unlisted", (r"hidden_states = hidden_states\.to\(torch\.float32\)\n( +)(variance|mean) =",
                                           r"hidden_states = hidden_states.to(torch.bfloat16)\n\1\2 ="),
     (r"self\._norm\(x\.float\(\)\)", "self._norm(x.bfloat16()).float()"), where="Norm")
text(second, 2, "norm-mean-square-in-bf16", "precision unlisted", (SQUARES, r"\1.bfloat16().pow(2).mean(-1, keepdim=True).type_as(\1)"))
text(second, 3, "norm-eps-as-floor", "norm-eps unlisted", (INVERSE[0], "torch.rsqrt(variance.clamp(min=self.variance_epsilon))"),
     (INVERSE[1], "torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp(min=self.eps))"))
text(second, 4, "norm-by-largest-magnitude", "unlisted", (SQUARES, r"\1\2.abs().amax(-1, keepdim=True).pow(2)"))


@mistake(second, 5, "norm-eps-omitted", "norm-eps")
def eps_omitted(site):
    return site.set(EPS, lambda eps, module: 0.0, is_norm)


def affine(x, module):
    x = x * module.weight
    return x if module.bias is None else x + module.bias


def layer_norm(tag, number, name, causes, how, biased=False):
    """A LayerNorm by other code; `how` has the input and the module."""
    @mistake(tag, number, name, causes)
    def plant(site):
        found = site.role(lambda name, module: is_layer_norm(name, module) and (module.bias is not None or not biased))
        return site.forward(found, lambda module, own: lambda x: how(x, module))


layer_norm(second, 6, "layer-norm-sum", "norm-sum",
           lambda x, module: affine((x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).sum(-1,
               keepdim=True) + module.eps), module))
layer_norm(second, 7, "layer-norm-whole-tensor", "norm-axis",
           lambda x, module: affine((x - x.mean(-1, keepdim=True)) * torch.rsqrt((x - x.mean(-1, keepdim=True)).pow(2).mean() + module.eps), module))
layer_norm(second, 8, "layer-norm-bias-before-gain", "unlisted",
           lambda x, module: (nn.functional.layer_norm(x, x.shape[-1:], None, None, module.eps) + module.bias) * module.weight, biased=True)
layer_norm(second, 9, "layer-norm-in-bf16", "precision unlisted",
           lambda x, module: affine(nn.functional.layer_norm(x.bfloat16(), x.shape[-1:], None, None, module.eps).type_as(x), module))
layer_norm(second, 10, "layer-norm-variance-without-mean", "unlisted",
           lambda x, module: affine((x - x.mean(-1, keepdim=True)) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.eps), module))


def renormed(site, found, mean):
    """Norms by another mean square, whatever their gain is."""
    def make(module, own):
        eps = next(getattr(module, key) for key in EPS if hasattr(module, key))

        def forward(x):
            square = x.float().pow(2)
            return own(x) * torch.rsqrt((mean(square) + eps) / (square.mean(-1, keepdim=True) + eps)).type_as(x)

        return forward

    return site.forward(found, make)


def qk_norms(site, width):
    return [(name, module) for name, module in site.role(lambda name, module: bool(QK_NORM.search(name)) and any(hasattr(module, key) for key in EPS)
            and isinstance(getattr(module, "weight", None),
                           torch.Tensor) and module.weight.dim() == 1 and (module.weight.numel() == head_width(site)) == width)]


@mistake(second, 11, "qk-norm-over-all-heads", "norm-width norm-axis")
def norm_of_all_heads(site):
    heads = heads_of(site)

    def mean(square):
        axis = next(axis for axis in (1, 2) if square.shape[axis] in heads)
        return square.mean((axis, -1), keepdim=True)

    return head_width(site) > 0 and renormed(site, qk_norms(site, True), mean)


@mistake(second, 12, "qk-norm-per-head", "norm-width norm-axis unlisted")
def norm_of_each_head(site):
    width = head_width(site)
    return width > 0 and renormed(site, qk_norms(site, False), lambda square: square.unflatten(-1, (-1, width)).mean(-1, keepdim=True).expand(
        *square.shape[:-1], -1, width).flatten(-2))


text(second, 13, "k-norm-by-norm-of-q", "norm-wrong-weight", (r"self\.k_norm\(", "self.q_norm("), where=r"ttention\.forward")
text(second, 14, "post-norm-of-sum", "unlisted",
     (r"^( +)(hidden_states = self\.post_\w*norm\(hidden_states\))\n +hidden_states = residual \+ hidden_states$",
      r"\1hidden_states = residual + hidden_states\n\1\2"))
text(second, 15, "one-norm-for-both-blocks", "norm-wrong-weight",
     (r"(residual = hidden_states\n +hidden_states = self\.)post_attention_layernorm\(", r"\1input_layernorm("),
     (r"(residual = hidden_states\n +hidden_states = self\.)ln_2\(", r"\1ln_1("),
     (r"self\.mlp\(self\.post_attention_layernorm\(", "self.mlp(self.input_layernorm("),
     (r"self\.ln_mlp\(hidden_states\)", "self.ln_attn(hidden_states)"),
     where=r"Layer|Block")
text(second, 16, "cross-norm-is-that-of-self-attention", "norm-wrong-weight", (r"self\.encoder_attn_layer_norm\(", "self.self_attn_layer_norm("))
text(second, 17, "gated-norm-in-groups", "norm-width norm-axis unlisted",
     (SQUARES, r"\1.pow(2).unflatten(-1, (2, -1)).mean(-1, keepdim=True).expand(*\1.shape[:-1], 2, \1.shape[-1] // 2).flatten(-2)"), where="Gated")
text(second, 18, "gated-norm-by-sigmoid", "activation unlisted",
     (r"(?:nn\.functional|F)\.silu\(gate\.to\(torch\.float32\)\)", "torch.sigmoid(gate.to(torch.float32))"))
text(second, 19, "state-norm-of-b-is-that-of-c", "norm-wrong-weight", (r"self\.b_layernorm\(B\)", "self.c_layernorm(B)"))
held(second, 20, "norm-gain-in-bf16", "precision unlisted", r"weight$", bf16, is_norm)
held(second, 21, "norm-gain-f16-as-bf16", "storage-type norm-weight-omitted", r"weight$", lambda gain: gain.half().view(torch.bfloat16).float(), is_norm)
held(second, 22, "norm-gain-rolled", "unlisted storage-shape", r"weight$", lambda gain: gain.roll(1), is_norm)


@mistake(second, 23, "final-norm-holds-gain-of-layer", "norm-wrong-weight")
def final_gain(site):
    norms = site.modules(lambda name, module: is_norm(name, module) and getattr(module, "weight", None) is not None)
    last = next((module for name, module in reversed(norms) if not in_layer(name)), None)
    layers = [module for name, module in norms if in_layer(name) and last is not None and module.weight.shape == last.weight.shape]
    if not layers:
        return False
    last.weight.data.copy_(layers[-1].weight)
    return True


text(third, 1, "norm-eps-added-to-the-sum", "norm-eps",
     (INVERSE[0], "torch.rsqrt(variance + self.variance_epsilon / hidden_states.shape[-1])"),
     (INVERSE[1], "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps / x.shape[-1])"))
text(third, 2, "norm-eps-times-the-width", "norm-eps", (INVERSE[0], "torch.rsqrt(variance + self.variance_epsilon * hidden_states.shape[-1])"),
     (INVERSE[1], "torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps * x.shape[-1])"))
text(third, 3, "norm-eps-of-norm-without-gain", "norm-eps", (r"self\.normalized_shape, None, None, eps=1e-5", "self.normalized_shape, None, None, eps=1e-2"))
text(third, 4, "norm-without-gain-not-centered", "norm-not-centered",
     (r"F\.layer_norm\((hidden_states\.to\(dtype=torch\.float32\)), self\.normalized_shape, None, None, eps=1e-5\)",
      r"F.rms_norm(\1, self.normalized_shape, None, 1e-5)"))
text(third, 5, "norm-divides-by-gain", "unlisted", (r"self\.weight \* hidden_states", "hidden_states / self.weight"),
     (r"output \* \(1\.0 \+ self\.weight\.float\(\)\)", "output / (1.0 + self.weight.float())"))
text(third, 6, "layer-norm-plus-one-omitted", "norm-plus-one", (r"self\.weight \+ 1,", "self.weight,"), where="LayerNorm1P")
text(third, 7, "norm-by-newton-step", "result-scaled unlisted", (INVERSE[0], "(lambda v, y: y * (1.5 - 0.5 * v * y * y))(variance + self.variance_epsilon, "
     "1.03 * torch.rsqrt(variance + self.variance_epsilon))"))
text(third, 8, "norm-before-sum-in-post-norm", "unlisted", (r"self\.LayerNorm\(hidden_states \+ input_tensor\)", "self.LayerNorm(hidden_states) + input_tensor"),
     (r"self\.sa_layer_norm\(sa_output \+ x\)", "self.sa_layer_norm(sa_output) + x"))
text(third, 9, "norm-on-input-for-norm-on-output", "unlisted norm-omitted",
     (r"hidden_states = self\.mlp\(hidden_states\)\n( +)hidden_states = self\.post_feedforward_layernorm\(hidden_states\)",
      r"hidden_states = self.mlp(self.post_feedforward_layernorm(hidden_states))"))
text(third, 10, "qk-norm-without-gain-omitted", "norm-omitted", (r'if hasattr\(self, "qk_norm"\):', "if False:"), where=r"ttention\.forward")
text(third, 11, "qk-norm-before-rope", "qk-norm-order",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\)\n)( +query_states = self\.query_layernorm\(query_states\)\n +key_states = self\.key_layernorm\(key_states\)\n)",
      r"\3\1\2"), where=r"ttention\.forward")
text(third, 12, "qk-norm-on-values-too", "unlisted", (r"^( +)(cos, sin = position_embeddings)$", r"\1value_states = self.k_norm(value_states)\n\1\2"),
     where=r"ttention\.forward", only=lambda site: any(QK_NORM.search(name) and name.endswith("k_norm") and module.weight.numel() == head_width(site)
                                                      for name, module in site.model.named_modules() if hasattr(module, "weight")))


def normed(x, module):
    return nn.functional.layer_norm(x, x.shape[-1:], None, None, module.eps)


layer_norm(third, 13, "layer-norm-bias-twice", "bias-twice unlisted", lambda x, module: affine(normed(x, module), module) + module.bias, biased=True)
layer_norm(third, 14, "layer-norm-bias-subtracted", "sign-flipped unlisted", lambda x, module: normed(x, module) * module.weight - module.bias, biased=True)
layer_norm(third, 15, "layer-norm-gain-twice", "norm-weight-twice", lambda x, module: affine(normed(x, module) * module.weight, module))
layer_norm(third, 16, "layer-norm-over-positions", "norm-axis", lambda x, module: affine(
    (x - x.mean(-2, keepdim=True)) * torch.rsqrt(x.var(-2, keepdim=True, unbiased=False) + module.eps), module))
layer_norm(third, 17, "layer-norm-mean-put-back", "unlisted", lambda x, module: affine(normed(x, module) + x.mean(-1, keepdim=True), module))
layer_norm(third, 18, "layer-norm-by-mean-deviation", "unlisted", lambda x, module: affine(
    (x - x.mean(-1, keepdim=True)) / ((x - x.mean(-1, keepdim=True)).abs().mean(-1, keepdim=True) + module.eps), module))
held(third, 19, "layer-norm-bias-of-next-channel", "unlisted", r"bias$", lambda bias: bias.roll(1), is_layer_norm)


@mistake(third, 20, "norm-bias-of-other-norm", "unlisted norm-wrong-weight weight-swapped")
def bias_of_other_norm(site):
    """Two LayerNorms of a layer exchange what they add, not their gains."""
    layers = {}
    for name, module in site.modules(lambda name, module: is_layer_norm(name, module) and module.bias is not None and in_layer(name)):
        layers.setdefault((re.search(r".*?\.\d+\.", name)[0], module.bias.shape), []).append((name, module))
    found = [norms for norms in layers.values() if len(norms) > 1]
    if not found:
        return False
    (name, first), (_, second) = site.rng.sample(site.rng.choice(found), 2)
    first.bias.data, second.bias.data = second.bias.data.clone(), first.bias.data.clone()
    return site.note(name)


@mistake(third, 21, "norm-of-first-layer-in-all", "norm-wrong-weight")
def norms_stuck(site):
    return stuck(site, is_norm)


def norm(tag, number, name, causes, how, test=lambda name, module: True):
    """Norms of one role by other code, in front of the gain: `how` has what is normed, centred where the norm centres, and epsilon."""
    @mistake(tag, number, name, causes)
    def plant(site):
        plain = lambda name, module: is_norm(name, module) and "Gated" not in type(module).__name__ and any(hasattr(module, key) for key in EPS)

        def make(module, own):
            source = "" if isinstance(module, nn.LayerNorm) else inspect.getsource(type(module))
            centred = isinstance(module, nn.LayerNorm) or re.search(r"mean = hidden_states\.mean", source)
            eps = next(getattr(module, key) for key in EPS if hasattr(module, key))

            def forward(x):
                flat = x.float() - x.float().mean(-1, keepdim=True) if centred else x.float()
                out = how(flat, eps).type_as(x) * (1.0 + module.weight if re.search(PLUS_ONE, source) else module.weight)
                return out if getattr(module, "bias", None) is None else out + module.bias

            return forward

        return site.forward(site.role(lambda name, module: plain(name, module) and test(name, module)), make)


of_rows = lambda name, module: not QK_NORM.search(name)
square = lambda x: x.pow(2).mean(-1, keepdim=True)
norm(fourth, 1, "norm-without-root", "unlisted", lambda x, eps: x / (square(x) + eps))
norm(fourth, 2, "norm-statistics-of-first-row", "unlisted norm-axis", lambda x, eps: x * torch.rsqrt(square(x)[:, :1] + eps), of_rows)
norm(fourth, 3, "norm-sums-not-reset-between-rows", "unlisted", lambda x, eps: x * torch.rsqrt(square(x).cumsum(1) + eps), of_rows)
norm(fourth, 4, "norm-last-elements-unread", "norm-width unlisted", lambda x, eps: x * torch.rsqrt(x[..., :-3].pow(2).sum(-1, keepdim=True) / x.shape[-1] + eps))
norm(fourth, 5, "norm-of-small-rows-left-out", "unlisted norm-omitted", lambda x, eps: x * torch.rsqrt(square(x) + eps).clamp(max=1.0))
norm(fourth, 6, "norm-in-four-groups", "unlisted norm-width norm-axis",
     lambda x, eps: (x.unflatten(-1, (4, -1)) * torch.rsqrt(x.unflatten(-1, (4, -1)).pow(2).mean(-1, keepdim=True) + eps)).flatten(-2))
norm(fourth, 7, "norm-times-root-of-width", "result-scaled unlisted norm-width", lambda x, eps: x * torch.rsqrt(square(x) + eps) * x.shape[-1] ** 0.5)
norm(fourth, 8, "norm-inverse-root-in-f16", "precision unlisted", lambda x, eps: x * torch.rsqrt(square(x) + eps).half().float())
norm(fourth, 9, "norm-clips-its-result", "unlisted", lambda x, eps: (x * torch.rsqrt(square(x) + eps)).clamp(-1.5, 1.5))


def padded(x, module):
    """Statistics over a row that zeros follow."""
    mean = x.sum(-1, keepdim=True) / (x.shape[-1] + 8)
    count = x.pow(2).sum(-1, keepdim=True) / (x.shape[-1] + 8) - mean * mean
    return affine((x - mean) * torch.rsqrt(count + module.eps), module)


def difference(x, module):
    """The variance as a difference of two means, kept in 16 bits."""
    mean = x.mean(-1, keepdim=True)
    variance = x.pow(2).mean(-1, keepdim=True).bfloat16().float() - (mean * mean).bfloat16().float()
    return affine((x - mean) * torch.rsqrt(variance.clamp(min=0) + module.eps).type_as(x), module)


layer_norm(fourth, 10, "layer-norm-of-padded-row", "norm-width unlisted", padded)
layer_norm(fourth, 11, "layer-norm-variance-by-difference-in-bf16", "precision unlisted", difference)
layer_norm(fourth, 12, "layer-norm-mean-of-all-rows", "norm-axis unlisted", lambda x, module: affine(
    (x - x.mean((-2, -1), keepdim=True)) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) + module.eps), module))
layer_norm(fourth, 13, "layer-norm-gain-and-bias-exchanged", "unlisted", lambda x, module: nn.functional.layer_norm(
    x, x.shape[-1:], None, None, module.eps) * module.bias + module.weight, biased=True)
layer_norm(fourth, 14, "layer-norm-bias-in-place-of-mean", "unlisted", lambda x, module: (x - module.bias) * torch.rsqrt(
    x.var(-1, keepdim=True, unbiased=False) + module.eps) * module.weight, biased=True)


@mistake(fourth, 15, "norm-omitted-in-decode", "norm-omitted final-norm-omitted unlisted linear-input")
def norm_in_decode(site):
    """The path of a single token has no norm here."""
    found = site.role(lambda name, module: is_norm(name, module) and of_rows(name, module) and "Gated" not in type(module).__name__)
    return generating(site) and site.forward(found, lambda module, own: lambda x: x if x.dim() == 3 and x.shape[1] == 1 else own(x))


text(fourth, 16, "norm-one-taken-off-gain", "norm-plus-one unlisted", (RMS, r"(self.weight - 1) * hidden_states"))
text(fourth, 17, "norm-plus-one-doubled", "norm-plus-one", (PLUS_ONE, r"(2.0 + self.weight.float())"))
held(fourth, 18, "norm-gain-unset", "weight-unset norm-weight-omitted unlisted", r"weight$", torch.zeros_like, is_norm)
held(fourth, 19, "norm-gain-in-f8", "precision unlisted", r"weight$", lambda gain: gain.to(torch.float8_e4m3fn).float(), is_norm)
held(fourth, 20, "qk-norm-gain-in-order-of-pairs", "unlisted qk-row-order", r"(q|k)_(norm|layernorm)\.weight$",
     lambda gain: gain.unflatten(0, (2, -1)).T.flatten() if gain.dim() == 1 and len(gain) == 8 else None)
text(fourth, 21, "gated-norm-gate-added", "unlisted gate-product", (r"hidden_states \* ((?:nn\.functional|F)\.silu\(gate\.to\(torch\.float32\)\))", r"hidden_states + \1"))


@mistake(fourth, 22, "first-norm-holds-gain-of-final-norm", "norm-wrong-weight")
def gain_of_final(site):
    norms = site.modules(lambda name, module: is_norm(name, module) and getattr(module, "weight", None) is not None)
    last = next((module for name, module in reversed(norms) if not in_layer(name)), None)
    found = [(name, module) for name, module in norms if in_layer(name) and last is not None and module.weight.shape == last.weight.shape]
    if not found:
        return False
    found[0][1].weight.data.copy_(last.weight)
    return site.note(found[0][0])


@mistake(fourth, 23, "final-norm-behind-every-layer", "unlisted operation-input")
def final_norm_everywhere(site):
    norms = site.modules(lambda name, module: is_norm(name, module) and not in_layer(name) and "embed" not in name.lower())
    layers = layers_of(site)
    if not norms or not layers:
        return False

    def make(module, own):
        def forward(*args, **more):
            out = own(*args, **more)
            return (norms[-1][1](out[0]), *out[1:]) if isinstance(out, tuple) else norms[-1][1](out)

        return forward

    return site.forward(layers[:-1], make)


PRE = r"( +)(hidden_states = self\.(?:input_layernorm|ln_1|self_attn_layer_norm|pre_attention_layernorm)\(hidden_states\))\n"
text(fourth, 24, "pre-norm-as-post-norm", "unlisted norm-omitted linear-input",
     (r"\A((?:.*\n)*?)" + PRE + r"((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n", r"\1\4\5hidden_states = residual + hidden_states\n\5\3\n"),
     where=r"(Layer|Block)\.forward")
