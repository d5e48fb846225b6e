"""Mistakes that people make when they port a model, made in PyTorch: the source of a model's own functions is rewritten, an attribute set, or a weight exchanged.

Each says which causes of docs/reference/why/README.md name it (`unlisted`: none does). A mistake finds its site by the text of the code and by the shapes of weights,
in whatever architecture has such a text; where it finds none it is not plantable there. Nothing here is shared with the product.
`~cause`: gives the same numbers where what stands between two taps was not recorded.
"""

import inspect
import math
import re
import sys
import textwrap
import types
from contextlib import ExitStack

import torch
import transformers.activations
import transformers.cache_utils
import transformers.masking_utils
import transformers.modeling_attn_mask_utils
from torch import nn
from transformers.pytorch_utils import Conv1D

UNLISTED = "unlisted"
# What is computed elsewhere for all models: masks and the cache.
SHARED = (transformers.masking_utils, transformers.modeling_attn_mask_utils)
SHARED_CLASSES = (transformers.cache_utils.DynamicLayer, transformers.modeling_attn_mask_utils.AttentionMaskConverter)
NOT_RUN = re.compile(r"__|_init_weights|extra_repr|prepare_inputs|resize|load_|.*flash|.*cuda|.*flex|prune_|.*docstring")
# Decorators that look at a function's file again.
DECORATORS = re.compile(r"^@(auto_docstring|can_return_tuple|add_\w+|replace_\w+)(\(.*?\)\n|\n|\(\n.*?^\)\n)", re.M | re.S)


class Unit:
    """A function that may run: where it stands, and its text."""

    def __init__(self, owner, name, function, source):
        self.owner, self.name, self.function, self.source = owner, name, function, source

    def compiled(self, source):
        """The function with another text, in the same file."""
        file, body = sys.modules[self.function.__module__], DECORATORS.sub("", source)
        line = self.function.__code__.co_firstlineno
        if "super()" in body:
            body = f"def outer(__class__):\n{textwrap.indent(body, '    ')}\n    return {self.function.__name__}\n"
        space = {}
        exec(compile("\n" * (line - 1) + body, inspect.getsourcefile(self.function), "exec", dont_inherit=True), vars(file), space)
        return space["outer"](self.owner) if "outer" in space else space[self.function.__name__]


UNITS = {}


def units(model):
    """The functions of a model: the methods of its modules, the functions of their files, the masks and the cache."""
    if type(model) not in UNITS:
        found, files = {}, set(SHARED)
        kinds = [kind for module in model.modules() for kind in type(module).__mro__ if kind.__module__.startswith("transformers.models.")]
        for kind in dict.fromkeys([*kinds, *SHARED_CLASSES]):
            if kind.__module__.startswith("transformers.models."):
                files.add(sys.modules[kind.__module__])
            for name, function in vars(kind).items():
                plain = function.__func__ if isinstance(function, staticmethod) else function
                if inspect.isfunction(plain):
                    found[kind, name] = plain
        for file in sorted(files, key=lambda file: file.__name__):
            found.update({(file, name): function for name, function in vars(file).items() if inspect.isfunction(function) and function.__module__ == file.__name__})
        UNITS[type(model)] = [Unit(owner, name, inspect.unwrap(function), textwrap.dedent(inspect.getsource(function)))
                              for (owner, name), function in found.items() if not NOT_RUN.match(name)]
    return UNITS[type(model)]


class Site:
    """A model in which a mistake is to be planted. What is patched outside of the model is put back when `stack` is closed."""

    def __init__(self, model, rng):
        self.model, self.rng, self.stack, self.notes = model, rng, ExitStack(), []
        self.config = model.config

    def note(self, text):
        self.notes.append(text)
        return True

    # -- texts --

    def edit(self, *pairs, one=False, where=""):
        """Rewrites what matches a pattern, in every function; `one`: at one place of all that match. False where nothing does."""
        found = []
        for unit in units(self.model):
            if where and not re.search(where, unit.function.__qualname__):
                continue
            for pattern, replacement in pairs:
                found += [(unit, match.start(), match.end(), match.expand(replacement)) for match in re.finditer(pattern, unit.source, re.M)]
        found = [self.rng.choice(found)] if one and found else found
        for unit in {id(unit): unit for unit, *_ in found}.values():
            source = unit.source
            for _, begin, end, text in sorted((place for place in found if place[0] is unit), key=lambda place: -place[1]):
                source = source[:begin] + text + source[end:]
            self.replace(unit, unit.compiled(source), len({id(place[0]) for place in found}) == 1)
        return bool(found)

    def replace(self, unit, function, alone):
        """Puts a function in a unit's place; of a method at times in one module alone, as where one layer is handled by other code."""
        owners = [(name, module) for name, module in self.model.named_modules() if isinstance(unit.owner, type) and isinstance(module, unit.owner)]
        if alone and len(owners) > 1 and self.rng.random() < 0.3:
            name, module = self.rng.choice(owners)
            setattr(module, unit.name, types.MethodType(function, module))
            return self.note(f"{unit.function.__qualname__} of {name}")
        old = vars(unit.owner)[unit.name]
        setattr(unit.owner, unit.name, staticmethod(function) if isinstance(old, staticmethod) else function)
        self.stack.callback(setattr, unit.owner, unit.name, old)
        return self.note(unit.function.__qualname__)

    # -- modules --

    def modules(self, test):
        return [(name, module) for name, module in self.model.named_modules() if test(name, module)]

    def some(self, found):
        """All of a list, or at times one."""
        return [self.rng.choice(found)] if len(found) > 1 and self.rng.random() < 0.3 else found

    def role(self, test):
        """The modules of one role, which is the name without numbers: of one layer, or of all."""
        roles = {}
        for name, module in self.modules(test):
            roles.setdefault(re.sub(r"\d+", "#", name), []).append((name, module))
        return self.some(self.rng.choice(list(roles.values()))) if roles else []

    def set(self, attributes, how, test=lambda name, module: True):
        """Sets the first of several attributes that a module has; `how` makes the new value of the old, None: leave it."""
        done = False
        for name, module in self.some(self.modules(lambda name, module: test(name, module) and any(key in vars(module) for key in attributes))):
            key = next(key for key in attributes if key in vars(module))
            value = how(vars(module)[key], module)
            if value is not None:
                setattr(module, key, value)
                done = self.note(f"{name}.{key} = {value}")
        return done

    def forward(self, found, make):
        """Gives modules another forward."""
        for name, module in found:
            module.forward = make(module, module.forward)
            self.note(name)
        return bool(found)

    def linears(self, test=lambda name, module: True):
        return self.modules(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and in_layer(name) and test(name, module))

    def siblings(self, name):
        """The modules of the same role in the other layers, in order."""
        role = re.sub(r"\d+", "#", name)
        return [module for other, module in self.model.named_modules() if re.sub(r"\d+", "#", other) == role]


def in_layer(name):
    return bool(re.search(r"\.\d+(\.|$)", name))


def is_norm(name, module):
    return "Norm" in type(module).__name__ and any(weight.dim() == 1 for weight in module.parameters(recurse=False))


def is_layer_norm(name, module):
    return isinstance(module, nn.LayerNorm) and module.weight is not None


MISTAKES = {}


def mistake(name, *causes):
    """Registers a mistake, with the causes that may be named for it."""
    def keep(plant):
        assert name not in MISTAKES, name
        MISTAKES[name] = (plant, set(causes))
        return plant

    return keep


def text(name, causes, *pairs, one=False, where=""):
    mistake(name, *causes.split())(lambda site: site.edit(*pairs, one=one, where=where))


# ---- norms ----

RMS = r"self\.weight \* hidden_states|self\.weight\.to\(torch\.float32\) \* hidden_states"
PLUS_ONE = r"\(1\.0 \+ self\.weight\.float\(\)\)"
INVERSE = (r"torch\.rsqrt\(variance \+ self\.variance_epsilon\)", r"torch\.rsqrt\(x\.pow\(2\)\.mean\(-1, keepdim=True\) \+ self\.eps\)")
SQUARES = r"(hidden_states|x)(\.to\(torch\.float32\))?\.pow\(2\)\.mean\(-1, keepdim=True\)"
EPS = ["variance_epsilon", "eps"]

text("norm-eps-outside", "norm-eps-outside", (INVERSE[0], r"(1 / (torch.sqrt(variance) + self.variance_epsilon))"),
     (INVERSE[1], r"(1 / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + self.eps))"))
text("norm-plus-one", "norm-plus-one", (RMS, r"(1 + self.weight) * hidden_states"), (PLUS_ONE, r"self.weight.float()"))
text("norm-weight-twice", "norm-weight-twice", (RMS, r"self.weight * self.weight * hidden_states"), (PLUS_ONE, r"(1.0 + self.weight.float()) ** 2"))
text("norm-weight-omitted", "norm-weight-omitted", (RMS, r"1.0 * hidden_states"), (PLUS_ONE, "1.0"))
text("norm-sum", "norm-sum", (SQUARES, r"\1\2.pow(2).sum(-1, keepdim=True)"))
text("norm-whole-tensor", "norm-axis", (SQUARES, r"\1\2.pow(2).mean()"))
text("norm-over-positions", "norm-axis unlisted", (SQUARES, r"\1\2.pow(2).mean(-2, keepdim=True)"))
text("norm-centered", "norm-centered", (SQUARES, r"\1.float().var(-1, keepdim=True, unbiased=False)"),
     (r"hidden_states = hidden_states \* torch\.rsqrt\(", r"hidden_states = (hidden_states - hidden_states.mean(-1, keepdim=True)) * torch.rsqrt("),
     (r"return x \* torch\.rsqrt\(", r"return (x - x.mean(-1, keepdim=True)) * torch.rsqrt("))
text("norm-first-half", "unlisted norm-width", (SQUARES, r"\1\2[..., :\1.shape[-1] // 2].pow(2).mean(-1, keepdim=True)"))
text("norm-absolute", "unlisted", (SQUARES, r"\1\2.abs().mean(-1, keepdim=True).pow(2)"))
text("norm-width-less-one", "norm-width", (SQUARES, r"(\1\2.pow(2).sum(-1, keepdim=True) / (\1.shape[-1] - 1))"))
text("norm-previous-row", "unlisted", (SQUARES, r"\1\2.pow(2).mean(-1, keepdim=True).roll(1, -2)"))
text("norm-gain-first", "unlisted", (r"(    input_dtype = hidden_states\.dtype\n)", r"\1    hidden_states = hidden_states * self.weight\n"),
     where=r"Norm\.forward")
text("gated-norm-order", "unlisted norm-gate-order",
     (r"( +)if gate is not None:\n.*\n((?:.*\n)*?) *return self\.weight \* hidden_states\.to\(input_dtype\)",
      r"\2\1return self.weight * hidden_states.to(input_dtype) * nn.functional.silu(gate)"), where="Gated")
text("gate-not-activated", "unlisted activation", (r"nn\.functional\.silu\(gate\.to\(torch\.float32\)\)", r"gate.to(torch.float32)"),
     (r"self\.act\(gate\)", "gate"))


@mistake("norm-eps-swapped", "norm-eps")
def eps_swapped(site):
    return site.set(EPS, lambda eps, module: {1e-5: 1e-6, 1e-6: 1e-5}.get(eps, 1e-5 if eps else None), is_norm)


@mistake("norm-eps-large", "norm-eps")
def eps_large(site):
    eps = site.rng.choice([1e-3, 1e-2])
    return site.set(EPS, lambda old, module: eps, is_norm)


def layer_norm(centre=True, gain=lambda w: w, bias=lambda b: b, count=0, outside=False):
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


@mistake("layer-norm-not-centered", "norm-centered", "norm-not-centered")
def not_centered(site):
    return site.forward(site.role(is_layer_norm), layer_norm(centre=False)) or site.edit(
        (r"\(hidden_states - mean\)", "hidden_states"), where="Norm")


@mistake("layer-norm-gain-omitted", "norm-weight-omitted")
def gain_omitted(site):
    return site.forward(site.role(is_layer_norm), layer_norm(gain=torch.ones_like))


@mistake("layer-norm-bias-omitted", "bias-omitted", "norm-bias-omitted")
def norm_bias_omitted(site):
    return site.forward(site.role(lambda name, module: is_layer_norm(name, module) and module.bias is not None), layer_norm(bias=torch.zeros_like))


@mistake("layer-norm-plus-one", "norm-plus-one")
def layer_norm_plus_one(site):
    return site.forward(site.role(is_layer_norm), layer_norm(gain=lambda w: 1 + w))


@mistake("layer-norm-unbiased", "norm-width", UNLISTED)
def unbiased(site):
    return site.forward(site.role(is_layer_norm), layer_norm(count=1))


@mistake("layer-norm-eps-outside", "norm-eps-outside")
def layer_norm_outside(site):
    return site.forward(site.role(is_layer_norm), layer_norm(outside=True))


def skip(module, own):
    return lambda x, *args, **more: x


@mistake("norm-omitted", "norm-omitted", "final-norm-omitted")
def norm_omitted(site):
    return site.forward(site.role(is_norm), skip)


@mistake("norm-done-twice", "norm-omitted", "final-norm-omitted")
def norm_twice(site):
    return site.forward(site.role(lambda name, module: is_norm(name, module) and "Gated" not in type(module).__name__), lambda module, own: lambda x: own(own(x)))


QK_NORM = re.compile(r"(^|\.)(q_norm|k_norm|q_layernorm|k_layernorm|query_layernorm|key_layernorm|query_norm|key_norm)$")


@mistake("q-or-k-norm-omitted", "norm-omitted")
def qk_norm_omitted(site):
    found = [(name, module) for name, module in site.role(lambda name, module: bool(QK_NORM.search(name)))]
    return site.forward(found, skip)


text("qk-norm-after-rope", "qk-norm-order", (r"self\.[qk]_norm\((self\.[qk]_proj\(hidden_states\)\.view\(hidden_shape\))\)", r"\1"),
     (r"^ +(query|key)_states = self\.[qk]_norm\(\1_states\)\n", ""),
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))\n",
      r"\1\2\n\1query_states, key_states = self.q_norm(query_states), self.k_norm(key_states)\n"), where=r"Attention\.forward")


@mistake("latent-norm-omitted", "norm-omitted")
def latent_norm_omitted(site):
    return site.forward(site.role(lambda name, module: bool(re.search(r"\.(kv_a|q_a|dt|b|c)_layernorm$", name))), skip)


@mistake("norm-gain-of-other-norm", "norm-wrong-weight")
def gain_of_other(site):
    """Two norms of a layer exchange their gains."""
    layers = {}
    for name, module in site.modules(lambda name, module: is_norm(name, module) and in_layer(name) and getattr(module, "weight", None) is not None):
        layers.setdefault((re.search(r".*?\.\d+\.", name)[0], module.weight.shape), []).append((name, module))
    pairs = [found for found in layers.values() if len(found) > 1]
    return bool(pairs) and exchange(site, *site.rng.sample(site.rng.choice(pairs), 2))


@mistake("norm-gain-of-other-layer", "norm-wrong-weight")
def gain_of_other_layer(site):
    found = site.modules(lambda name, module: is_norm(name, module) and in_layer(name) and len(site.siblings(name)) > 1)
    return bool(found) and from_other_layer(site, *site.rng.choice(found))


def exchange(site, first, second):
    """Two modules exchange what they hold."""
    with torch.no_grad():
        for (_, one), (_, other) in zip(first[1].named_parameters(), second[1].named_parameters()):
            kept = one.clone()
            one.copy_(other)
            other.copy_(kept)
    return site.note(f"{first[0]} and {second[0]} exchanged")


def from_other_layer(site, name, module):
    others = site.siblings(name)
    at = next(at for at, other in enumerate(others) if other is module)
    step = site.rng.choice([step for step in (-1, 1) if 0 <= at + step < len(others)])
    with torch.no_grad():
        for one, other in zip(module.parameters(), others[at + step].parameters()):
            one.copy_(other)
    return site.note(f"{name} holds what layer {step:+} has")


# ---- projections ----


@mistake("bias-omitted", "bias-omitted")
def bias_omitted(site):
    return weigh(site, "bias", lambda bias, module: bias * 0)


@mistake("bias-twice", "bias-twice")
def bias_twice(site):
    return weigh(site, "bias", lambda bias, module: bias * 2)


@mistake("bias-negated", UNLISTED)
def bias_negated(site):
    return weigh(site, "bias", lambda bias, module: -bias)


def weigh(site, key, how, test=lambda name, module: True):
    """Changes a weight of the linear layers of one role."""
    found = site.role(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and in_layer(name) and getattr(module, key, None) is not None and test(name, module))
    for name, module in found:
        with torch.no_grad():
            weight = getattr(module, key)
            weight.copy_(how(weight.clone(), module))
        site.note(f"{name}.{key}")
    return bool(found)


def pair(site, *names):
    """Two linear layers beside each other whose shapes are the same, by names."""
    found = []
    for name, module in site.linears(lambda name, module: name.rsplit(".", 1)[-1] in {first for first, _ in names}):
        before, _, last = name.rpartition(".")
        for first, second in names:
            other = dict(site.model.named_modules()).get(f"{before}.{second}") if last == first else None
            if isinstance(other, (nn.Linear, Conv1D)) and other.weight.shape == module.weight.shape:
                found.append(((name, module), (f"{before}.{second}", other)))
    return site.some(found)


def exchanged(name, causes, *names):
    @mistake(name, *causes.split())
    def plant(site):
        return any([exchange(site, *both) for both in pair(site, *names)])


exchanged("q-and-k-exchanged", "weight-swapped", ("q_proj", "k_proj"), ("query", "key"), ("q_lin", "k_lin"), ("q", "k"))
exchanged("k-and-v-exchanged", "weight-swapped", ("k_proj", "v_proj"), ("key", "value"), ("k_lin", "v_lin"), ("k", "v"))
exchanged("gate-and-up-exchanged", "weight-swapped gate-up-swapped", ("gate_proj", "up_proj"), ("w1", "w3"), ("wi_0", "wi_1"))
SQUARE = lambda name, module: module.weight.shape[0] == module.weight.shape[1]


@mistake("square-transposed", "weight-transposed", "weight-stride")
def square_transposed(site):
    return weigh(site, "weight", lambda weight, module: weight.T, SQUARE)


@mistake("bytes-transposed", "weight-transposed", "weight-stride")
def bytes_transposed(site):
    """The bytes of [out,in] are read as [in,out]."""
    return weigh(site, "weight", lambda weight, module: weight.reshape(weight.shape[1], weight.shape[0]).T, lambda name, module: not SQUARE(name, module))


@mistake("leading-dimension", "weight-stride")
def leading_dimension(site):
    step = site.rng.choice([-1, 1])

    def shifted(weight, module):
        flat = torch.cat([weight.reshape(-1), weight.new_zeros(weight.shape[0])])
        at = torch.arange(weight.shape[0])[:, None] * (weight.shape[1] + step) + torch.arange(weight.shape[1])
        return flat[at]

    return weigh(site, "weight", shifted)


@mistake("neighbour-layer", "weight-wrong-layer")
def neighbour_layer(site):
    found = site.linears(lambda name, module: len(site.siblings(name)) > 1 and not re.search(r"experts?\.\d", name))
    return bool(found) and from_other_layer(site, *site.rng.choice(found))


@mistake("bias-of-other-layer", "weight-wrong-layer", UNLISTED)
def bias_of_other_layer(site):
    found = site.linears(lambda name, module: module.bias is not None and len(site.siblings(name)) > 1)
    if not found:
        return False
    name, module = site.rng.choice(found)
    other = next(other for other in site.siblings(name) if other is not module)
    with torch.no_grad():
        module.bias.copy_(other.bias)
    return site.note(name)


@mistake("weight-unset", "weight-unset", "~residual-source", "~score-scale")
def weight_unset(site):
    return weigh(site, "weight", lambda weight, module: weight * 0)


@mistake("weight-tail-unset", "dequant-truncated", "weight-unset", UNLISTED)
def tail_unset(site):
    """Only the first half of the rows is loaded."""
    return weigh(site, "weight", lambda weight, module: torch.cat([weight[:weight.shape[0] // 2], 0 * weight[weight.shape[0] // 2:]]))


@mistake("weight-negated", UNLISTED, "~score-scale", "~residual-scale")
def negated(site):
    return weigh(site, "weight", lambda weight, module: -weight)


@mistake("weight-rows-reversed", UNLISTED)
def rows_reversed(site):
    return weigh(site, "weight", lambda weight, module: weight.flip(0))


@mistake("weight-few-bits", "precision", UNLISTED)
def few_bits(site):
    """One matrix alone in four bits."""
    return weigh(site, "weight", lambda weight, module: (weight / weight.abs().max() * 7).round() * weight.abs().max() / 7)


@mistake("f16-read-as-bf16", "storage-type")
def storage_type(site):
    return weigh(site, "weight", lambda weight, module: weight.half().view(torch.bfloat16).float())


FUSED = re.compile(r"(c_attn|query_key_value|Wqkv|qkv_proj|in_proj_qkv)$")


def rows_first(weight, module):
    return weight.T if isinstance(module, Conv1D) else weight


@mistake("fused-rows-regrouped", "fused-split")
def regrouped(site):
    """Rows of Q, K and V are taken head by head where they lie in blocks, or the reverse."""
    heads = getattr(site.config, "num_attention_heads", 0)

    def fused(name, module):
        rows, columns = rows_first(module.weight, module).shape
        return bool(FUSED.search(name)) and rows == 3 * columns and columns % max(heads, 1) == 0

    found = site.role(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and fused(name, module)) if heads else []
    for name, module in found:
        parts = (3, heads) if name.endswith("query_key_value") else (heads, 3)
        regroup = lambda rows: rows.reshape(*parts, -1, *rows.shape[1:]).transpose(0, 1).reshape(rows.shape)
        with torch.no_grad():
            module.weight.copy_(rows_first(regroup(rows_first(module.weight.clone(), module)), module))
            if module.bias is not None:
                module.bias.copy_(regroup(module.bias.clone()))
        site.note(name)
    return bool(found)


@mistake("fused-gate-interleaved", "fused-split")
def gate_interleaved(site):
    return weigh(site, "weight", lambda weight, module: weight.reshape(2, -1, weight.shape[1]).transpose(0, 1).reshape(weight.shape),
                 lambda name, module: name.endswith("gate_up_proj"))


@mistake("fused-halves-exchanged", "weight-swapped", "fused-split", "gate-up-swapped")
def halves_exchanged(site):
    return weigh(site, "weight", lambda weight, module: weight.roll(weight.shape[0] // 2, 0), lambda name, module: name.endswith("gate_up_proj"))


@mistake("rows-of-q-or-k-permuted", "qk-row-order")
def rows_permuted(site):
    """Rows as GGUF has them for adjacent pairs, while halves are rotated."""
    width = head_width(site)

    def permuted(weight, module):
        return weight.reshape(-1, 2, width // 2, weight.shape[-1]).transpose(1, 2).reshape(weight.shape)

    return bool(width) and bool(rotaries(site)) and weigh(site, "weight", permuted, lambda name, module: name.endswith(("q_proj", "k_proj")) and module.weight.shape[0] % width == 0)


def head_width(site):
    return next((module.head_dim for _, module in site.modules(lambda name, module: isinstance(getattr(module, "head_dim", None), int) and hasattr(module, "q_proj"))), 0)


text("heads-of-q-apart", "head-layout",
     (r"self\.q_proj\(hidden_states\)\.view\(hidden_shape\)",
      r"self.q_proj(hidden_states).view(*hidden_shape[:-2], self.head_dim, -1).transpose(-1, -2)"))
text("heads-of-v-apart", "head-layout",
     (r"self\.v_proj\(hidden_states\)\.view\(hidden_shape\)",
      r"self.v_proj(hidden_states).view(*hidden_shape[:-2], self.head_dim, -1).transpose(-1, -2)"))

# ---- rotation ----


def rotaries(site):
    return site.modules(lambda name, module: isinstance(getattr(module, "inv_freq", None), torch.Tensor))


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


@mistake("rope-theta", "rope-theta")
def rope_theta(site):
    other = site.rng.choice([1e5, 1e6, 500.0])

    def changed(frequency, module):
        count = len(frequency)
        return frequency * (theta_of(site) / other) ** (torch.arange(count) / count)

    return frequencies(site, changed)


@mistake("rope-scaling-ignored", "rope-scaling", "rope-attention-factor")
def scaling_ignored(site):
    def plain(frequency, module):
        count = len(frequency)
        new = theta_of(site) ** -(torch.arange(count) / count)
        return None if torch.allclose(new, frequency) else new

    return bool(getattr(site.config, "rope_scaling", None)) and frequencies(site, plain)


@mistake("rope-scaling-inverse", "rope-scaling")
def scaling_inverse(site):
    def inverse(frequency, module):
        count = len(frequency)
        plain = theta_of(site) ** -(torch.arange(count) / count)
        return None if torch.allclose(plain, frequency) else plain * plain / frequency

    return bool(getattr(site.config, "rope_scaling", None)) and frequencies(site, inverse)


@mistake("rope-linear-scaling-added", "rope-scaling")
def scaling_added(site):
    return frequencies(site, lambda frequency, module: frequency / 4)


@mistake("rope-attention-factor-ignored", "rope-attention-factor")
def factor_ignored(site):
    return site.set(["attention_scaling"], lambda factor, module: 1.0 if factor != 1.0 else None)


@mistake("rope-attention-factor-twice", "rope-attention-factor")
def factor_twice(site):
    return site.set(["attention_scaling"], lambda factor, module: factor * factor if factor != 1.0 else None)


@mistake("rope-exponent", "rope-exponent", "rope-theta")
def rope_exponent(site):
    """i/d where 2i/d is due."""
    return frequencies(site, lambda frequency, module: frequency.sqrt())


@mistake("rope-frequencies-in-bf16", "rope-precision")
def rope_precision(site):
    return frequencies(site, lambda frequency, module: frequency.bfloat16().float())


@mistake("rope-last-pairs-unturned", UNLISTED, "rope-partial")
def pairs_unturned(site):
    return frequencies(site, lambda frequency, module: frequency * (torch.arange(len(frequency)) < len(frequency) // 2) if len(frequency) > 1 else None)


@mistake("rope-exponent-of-whole-head", "rope-partial", "rope-theta")
def exponent_of_head(site):
    width = head_width(site)

    def exponent(frequency, module):
        return theta_of(site) ** -(2 * torch.arange(len(frequency)) / width) if width and 2 * len(frequency) < width else None

    return frequencies(site, exponent)


@mistake("rope-partial-as-full", "rope-partial")
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
text("rope-direction", "rope-direction", (HALVES, r"torch.cat((x2, -x1), dim=-1)"),
     (r"torch\.stack\(\[-x2, x1\], dim=-1\)", r"torch.stack([x2, -x1], dim=-1)"),
     (r"torch\.stack\(\(-x2, x1\), dim=-1\)", r"torch.stack((x2, -x1), dim=-1)"),
     (r"first_half \* cos - second_half \* sin", r"first_half * cos + second_half * sin"),
     (r"second_half \* cos \+ first_half \* sin", r"second_half * cos - first_half * sin"))
text("rope-pairing", "rope-pairing qk-row-order", (HALVES, r"torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)"),
     (r"emb = torch\.cat\(\(freqs, freqs\), dim=-1\)", r"emb = freqs.repeat_interleave(2, dim=-1)"),
     (r"rot_x = torch\.stack\(\[-x2, x1\], dim=-1\)\.flatten\(-2\)",
      r"rot_x = torch.cat((-x[..., x.shape[-1] // 2 :], x[..., : x.shape[-1] // 2]), dim=-1)"),
     (r"emb = torch\.repeat_interleave\(freqs, 2, dim=-1\).*", r"emb = torch.cat((freqs, freqs), dim=-1)"),
     (r"first_half, second_half = torch\.chunk\(x, 2, dim=-1\)", r"first_half, second_half = x[..., ::2], x[..., 1::2]"),
     (r"torch\.cat\(\(first_, second_\), dim=-1\)", r"torch.stack((first_, second_), dim=-1).flatten(-2)"))
text("rope-pairs-but-halves-of-tables", "unlisted", (HALVES, r"torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)"))
text("rope-tables-of-pairs", "unlisted", (r"emb = torch\.cat\(\(freqs, freqs\), dim=-1\)", r"emb = freqs.repeat_interleave(2, dim=-1)"),
     (r"emb = torch\.repeat_interleave\(freqs, 2, dim=-1\).*", r"emb = torch.cat((freqs, freqs), dim=-1)"))
text("rope-sine-for-cosine", "unlisted", (r"cos = emb\.cos\(\)", "cos = emb.sin()"), (r"sin = emb\.sin\(\)", "sin = emb.cos()"))
text("rope-tables-in-bf16", "rope-precision", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = emb.\2().bfloat16().float()"))
text("rope-degrees", "unlisted rope-scaling", (r"(cos|sin) = emb\.(cos|sin)\(\)", r"\1 = (emb * 57.29577951308232).\2()"))
IDS = r"position_ids\[:, None, :\]\.float\(\)"
text("rope-position-one-ahead", "rope-position", (IDS, r"(position_ids[:, None, :].float() + 1)"))
text("rope-position-restarts", "rope-position", (IDS, r"(position_ids[:, None, :] - position_ids[:, None, :1]).float()"))
text("rope-position-behind-in-decode", "rope-position", (IDS, r"(position_ids[:, None, :] - (position_ids[:, None, :1] > 0).long()).float()"))
text("rope-position-reversed", "unlisted", (IDS, r"position_ids[:, None, :].flip(-1).float()"))
text("rope-position-doubled", "rope-scaling rope-position unlisted", (IDS, r"(position_ids[:, None, :].float() * 2)"))
Q_ROTATED = (r"q_embed = \(q \* cos\) \+ \(rotate_half\(q\) \* sin\)", r"q_embed = _apply_rotary_emb\(q, cos, sin\)")
K_ROTATED = (r"k_embed = \(k \* cos\) \+ \(rotate_half\(k\) \* sin\)", r"k_embed = _apply_rotary_emb\(k, cos, sin\)")
text("rope-not-on-k", "rope-omitted", *((pattern, "k_embed = k") for pattern in K_ROTATED))
text("rope-not-on-q", "rope-omitted", *((pattern, "q_embed = q") for pattern in Q_ROTATED))
text("rope-omitted", "rope-omitted", *((pattern, "k_embed = k") for pattern in K_ROTATED), *((pattern, "q_embed = q") for pattern in Q_ROTATED))
text("rope-twice", "rope-twice", (Q_ROTATED[0], r"\g<0>\n    q_embed = (q_embed * cos) + (rotate_half(q_embed) * sin)"),
     (K_ROTATED[0], r"\g<0>\n    k_embed = (k_embed * cos) + (rotate_half(k_embed) * sin)"))
text("rope-in-place", "aliasing",
     (Q_ROTATED[0],
      r"q1, q2 = q.chunk(2, -1); c, s = cos.chunk(2, -1)[0], sin.chunk(2, -1)[0]; q1 = q1 * c - q2 * s; q_embed = torch.cat((q1, q2 * c + q1 * s), -1)"))
text("rope-on-v", "rope-on-v",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))\n",
      r"\1\2\n\1value_states = apply_rotary_pos_emb(value_states, value_states, cos, sin)[0]\n"))
text("rope-of-other-kind-of-layer", "rope-theta rope-layer-kind", (r"if self\.self_attn\.is_sliding:", "if not self.self_attn.is_sliding:"))


@mistake("rope-interleave-flag", "rope-pairing", "qk-row-order")
def interleave_flag(site):
    if not isinstance(getattr(site.config, "rope_interleave", None), bool):
        return False
    site.config.rope_interleave = not site.config.rope_interleave
    return True


# ---- scores ----

SCALES = ["scaling", "softmax_scale", "inv_norm_factor"]
is_attention = lambda name, module: "ttention" in type(module).__name__
SQRT = r" / math\.sqrt\(self\.(head_dim|attention_head_size)\)| /= math\.sqrt\(self\.head_dim\)"


def scaled(name, factor):
    @mistake(name, "score-scale")
    def plant(site):
        return site.set(SCALES, lambda scale, module: factor(scale, site) if isinstance(scale, float) and scale != 1.0 else None, is_attention) or site.edit(
            (r" / math\.sqrt\(self\.(head_dim|attention_head_size)\)", rf" * {factor(None, site)!r}"),
            (r" /= math\.sqrt\(self\.head_dim\)", rf" *= {factor(None, site)!r}"), (r"value\.size\(-1\) \*\* 0\.5", rf"{1 / factor(None, site)!r}"), where=r"ttention|eager")


scaled("scale-omitted", lambda scale, site: 1.0)
scaled("scale-of-hidden-width", lambda scale, site: 1 / math.sqrt(getattr(site.config, "hidden_size", 32)))
scaled("scale-without-root", lambda scale, site: scale * scale if scale else 1 / 8)
scaled("scale-of-half-the-width", lambda scale, site: scale * math.sqrt(2) if scale else 1 / 2)


@mistake("score-softcap-omitted", "score-softcap")
def softcap_omitted(site):
    return site.set(["attn_logit_softcapping"], lambda cap, module: None if cap is None else 1e30)


@mistake("score-softcap-of-logits", "score-softcap")
def softcap_other(site):
    return site.set(["attn_logit_softcapping"], lambda cap, module: None if cap is None else 5.0)


@mistake("score-softcap-added", "score-softcap")
def softcap_added(site):
    return site.edit((r"^( +)(if attention_mask is not None:.*\n +causal_mask = attention_mask)", r"\1attn_weights = 5.0 * torch.tanh(attn_weights / 5.0)\n\1\2"), where="eager_attention_forward")


CAUSAL = r"kv_idx <= q_idx$"
BIASED = r"torch\.where\(causal_mask, attn_weights"
TRIANGLE = r"torch\.triu\((\w+), diagonal=1\)"
CONVERTER = r"mask\.masked_fill_\(mask_cond < \(mask_cond \+ 1\)\.view\(mask\.size\(-1\), 1\), 0\)"
text("mask-omitted", "mask-omitted", (CAUSAL, "kv_idx <= q_idx + 1000"), (BIASED, "torch.where(torch.ones_like(causal_mask), attn_weights"),
     (TRIANGLE, r"torch.triu(\1, diagonal=1000)"), (CONVERTER, "mask.fill_(0)"))
text("mask-one-ahead", "mask-shifted", (CAUSAL, "kv_idx <= q_idx + 1"),
     (BIASED, "torch.where(causal_mask | causal_mask.roll(1, -1).tril(1), attn_weights"), (TRIANGLE, r"torch.triu(\1, diagonal=2)"),
     (CONVERTER, "mask.masked_fill_(mask_cond < (mask_cond + 2).view(mask.size(-1), 1), 0)"))
text("mask-without-itself", "mask-shifted unlisted", (CAUSAL, "(kv_idx < q_idx) | (kv_idx == 0)"), (TRIANGLE, r"torch.triu(\1, diagonal=0)"))
text("mask-from-the-top-left", "mask-shifted", (r"cache_position, kv_arange\)", "cache_position - cache_position[0], kv_arange)"))
text("mask-inverted", "mask-inverted", (CAUSAL, "kv_idx >= q_idx"))
text("mask-every-other-key", "unlisted", (CAUSAL, "(kv_idx <= q_idx) & ((q_idx - kv_idx) % 2 == 0)"))
text("mask-small-fill", "mask-fill", (r"attn_weights = attn_weights \+ causal_mask", "attn_weights = attn_weights + causal_mask.clamp(min=-4.0)"))
text("mask-after-softmax", "mask-after-softmax", (r"attn_weights = attn_weights \+ causal_mask", "pass"),
     (r"^( +)(attn_weights = nn\.functional\.softmax\(attn_weights, dim=-1, dtype=torch\.float32\)\.to\(query\.dtype\))",
      r"\1\2\n\1attn_weights = attn_weights * (attention_mask[..., : attn_weights.shape[-1]] == 0)"), where="eager_attention_forward")
WINDOW = r"kv_idx > q_idx - sliding_window"
text("window-ignored", "window-size", (WINDOW, "kv_idx > q_idx - 1000"))
text("window-one-more", "window-size", (WINDOW, "kv_idx >= q_idx - sliding_window"))
text("window-one-less", "window-size", (WINDOW, "kv_idx > q_idx - sliding_window + 1"))
text("window-on-every-layer", "window-size",
     (r"\[(decoder_layer|layer)\.attention_type\]", r'["sliding_attention" if hidden_states.shape[1] > 1 else \1.attention_type]'))
text("window-on-the-other-layers", "window-size",
     (r"\[(decoder_layer|layer)\.attention_type\]",
      r'["full_attention" if (\1.attention_type == "sliding_attention") == (hidden_states.shape[1] > 1) else "sliding_attention"]'))
text("chunks-ignored", "window-size unlisted", (r"kv_idx // chunk_size == q_idx // chunk_size", "kv_idx > q_idx - 1000"),
     (r"\(kv_idx - left_padding\[batch_idx\]\) // chunk_size == .*", "kv_idx > q_idx - 1000"))
SOFTMAX = r"softmax\((attn_weights|attention_scores|scores|combined_logits|attention_logits|attention_scores \+ attention_mask|attention_logits \+ attention_mask|attention_scores\.float\(\)|scores\.float\(\)), "
text("softmax-base", "softmax-base ~score-scale", (SOFTMAX, r"softmax((\1) * 0.6931471805599453, "))
text("softmax-temperature", "unlisted softmax-base score-scale", (SOFTMAX, r"softmax((\1) * 0.8, "))
text("softmax-over-queries", "softmax-axis", (SOFTMAX + r"dim=-1", r"softmax(\1, dim=-2"))
text("softmax-over-heads", "softmax-axis", (SOFTMAX + r"dim=-1", r"softmax(\1, dim=1"))
text("softmax-extra-zero", "sink-omitted", (r"(nn\.functional|F)\.softmax\((attn_weights|attention_scores), dim=-1(, dtype=torch\.float32)?\)",
                                           r"\1.softmax(nn.functional.pad(\2, (0, 1)), dim=-1\3)[..., :-1]"))
text("probs-of-dropout", "unlisted ~residual-scale",
     (r"attn_output = torch\.matmul\(attn_weights, ", "attn_output = torch.matmul(attn_weights / 0.9, "),
     (r"context_layer = torch\.matmul\(attention_probs, ", "context_layer = torch.matmul(attention_probs / 0.9, "))
text("probs-clipped", "unlisted", (r"attn_output = torch\.matmul\(attn_weights, ", "attn_output = torch.matmul(attn_weights.clamp(max=0.3), "),
     (r"context_layer = torch\.matmul\(attention_probs, ", "context_layer = torch.matmul(attention_probs.clamp(max=0.3), "))


@mistake("sinks-omitted", "sink-omitted")
def sinks_omitted(site):
    found = site.some(site.modules(lambda name, module: isinstance(getattr(module, "sinks", None), torch.Tensor)))
    for _, module in found:
        module.sinks.data.fill_(-1e4)
    return bool(found)


@mistake("sinks-of-other-head", UNLISTED)
def sinks_rolled(site):
    found = site.some(site.modules(lambda name, module: isinstance(getattr(module, "sinks", None), torch.Tensor)))
    for _, module in found:
        module.sinks.data.copy_(module.sinks.data.roll(1))
    return bool(found)


ALIBI = r"alibi = (slopes\[\.\.\., None\](?:\.bfloat16\(\))? \* arange_tensor|alibi \* slopes)"
text("alibi-omitted", "unlisted position-bias", (ALIBI, r"alibi = 0 * \1"))
text("alibi-slopes", "unlisted position-bias", (r"(math\.log2\(closest_power_of_2\)) - 3\)\)\)", r"\1 - 2)))"),
     (r"alibi_bias_max / num_heads_power_of_2", "2 * alibi_bias_max / num_heads_power_of_2"))
text("alibi-slopes-reversed", "unlisted position-bias", (ALIBI, r"slopes = slopes.flip(0 if slopes.dim() == 1 else 1)\n    alibi = \1"))
text("alibi-sign", "unlisted position-bias", (ALIBI, r"alibi = -\1"))

# ---- heads, context, cache ----

REPEAT = r"hidden_states = hidden_states\[:, :, None, :, :\]\.expand\(batch, num_key_value_heads, n_rep, slen, head_dim\)"
text("kv-heads-in-turn", "kv-head-map", (REPEAT, "hidden_states = hidden_states[:, None].expand(batch, n_rep, num_key_value_heads, slen, head_dim)"))
text("kv-head-0", "kv-head-map", (REPEAT, "hidden_states = hidden_states[:, :1, None].expand(batch, num_key_value_heads, n_rep, slen, head_dim)"))
text("kv-heads-of-v-in-turn", "kv-head-map",
     (r"(value_states = )repeat_kv\((\w+), (module|self)\.num_key_value_groups\)", r"\1\2.repeat(1, \3.num_key_value_groups, 1, 1)"))
MERGE = (r"attn_output = attn_output\.transpose\(1, 2\)(\.contiguous\(\))?", r"x = x\.permute\(0, 2, 1, 3\)", r"(attn_output|context_layer|context_states) = \1\.permute\(0, 2, 1, 3\)")
text("context-not-transposed", "context-layout",
     (MERGE[0], "attn_output = attn_output.reshape(attn_output.shape[0], attn_output.shape[2], attn_output.shape[1], -1)"),
     (MERGE[1], "x = x.reshape(x.shape[0], x.shape[2], x.shape[1], -1)"), (MERGE[2], r"\1 = \1.reshape(\1.shape[0], \1.shape[2], \1.shape[1], -1)"),
     where=r"eager|_merge_heads|ttention")
text("context-elements-first", "context-layout", (MERGE[0], r"attn_output = attn_output.permute(0, 2, 3, 1).contiguous()"),
     where="eager_attention_forward")
text("context-heads-reversed", "unlisted context-layout", (MERGE[0], r"attn_output = attn_output.flip(1).transpose(1, 2).contiguous()"),
     (MERGE[2], r"\1 = \1.flip(1).permute(0, 2, 1, 3)"))
text("context-last-head-lost", "unlisted",
     (MERGE[0],
      r"attn_output = (attn_output * (torch.arange(attn_output.shape[1]) < attn_output.shape[1] - 1)[:, None, None]).transpose(1, 2).contiguous()"))
CACHED = r"self\.{0} = torch\.cat\(\[self\.{0}, {1}\], dim=-2\)"
text("cache-newest-key-missing", "kv-cache-stale",
     (CACHED.format("keys", "key_states"), "self.keys = torch.cat([self.keys, self.keys[..., -1:, :] if self.keys.numel() else key_states], dim=-2)"))
text("cache-newest-value-missing", "kv-cache-stale",
     (CACHED.format("values", "value_states"),
      "self.values = torch.cat([self.values, 0 * value_states if self.values.numel() else value_states], dim=-2)"))
text("cache-new-key-first", "kv-cache-shift unlisted",
     (CACHED.format("keys", "key_states"), "self.keys = torch.cat([key_states, self.keys], dim=-2)"))
text("cache-slot-overwritten", "kv-cache-shift",
     (CACHED.format("keys", "key_states"),
      "self.keys = torch.cat([self.keys[..., :-1, :], key_states, key_states * 0] if self.keys.numel() else [self.keys, key_states], dim=-2)"))
text("cache-int8", "unlisted precision",
     (CACHED.format("keys", "key_states"), "self.keys = torch.cat([self.keys, (key_states * 20).round() / 20], dim=-2)"))

# ---- feed-forward ----

ACTS = ["act_fn", "act", "activation_fn", "activation", "intermediate_act_fn", "gelu_impl"]
FUNCTIONS = {"silu": nn.functional.silu, "gelu-erf": nn.functional.gelu, "gelu-tanh": lambda x: nn.functional.gelu(x, approximate="tanh"), "relu": nn.functional.relu,
             "quick": lambda x: x * torch.sigmoid(1.702 * x), "none": lambda x: x, "squared": lambda x: nn.functional.relu(x) ** 2}


class Plain(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *more):
        return self.function(x)


def activation(name, causes, function):
    @mistake(name, *causes.split())
    def plant(site):
        done = False
        for owner, module in site.some(site.modules(lambda name, module: any(callable(getattr(module, key, None)) for key in ACTS))):
            for key in ACTS:
                if callable(getattr(module, key, None)):
                    setattr(module, key, Plain(FUNCTIONS.get(function, function)) if isinstance(getattr(module, key), nn.Module) else FUNCTIONS.get(function, function))
                    done = site.note(f"{owner}.{key}")
        return done


activation("activation-silu", "activation", "silu")
activation("activation-gelu-erf", "activation", "gelu-erf")
activation("activation-gelu-tanh", "activation", "gelu-tanh")
activation("activation-relu", "activation", "relu")
activation("activation-quick-gelu", "activation", "quick")
activation("activation-none", "activation gate-product", "none")
activation("activation-squared-relu", "unlisted activation", "squared")
activation("activation-beta", "unlisted", lambda x: x * torch.sigmoid(1.2 * x))
activation("activation-sine", "unlisted", torch.sin)
GATED = r"self\.(act_fn|act|activation_fn)\(self\.(gate_proj|w1|wi_0)\((\w+)\)\) \* self\.(up_proj|w3|wi_1)\(\3\)"
text("activation-on-up", "gate-up-swapped", (GATED, r"self.\2(\3) * self.\1(self.\4(\3))"),
     (r"up_states \* self\.activation_fn\(gate\)", "gate * self.activation_fn(up_states)"))
text("gate-added", "gate-product", (GATED, r"self.\1(self.\2(\3)) + self.\4(\3)"),
     (r"up_states \* self\.activation_fn\(gate\)", "up_states + self.activation_fn(gate)"))
text("up-not-applied", "gate-product", (GATED, r"self.\1(self.\2(\3))"))
text("gate-of-previous-token", "unlisted", (GATED, r"self.\1(self.\2(\3.roll(1, -2))) * self.\4(\3)"))
text("gate-normed", "unlisted", (GATED, r"self.\1(torch.nn.functional.normalize(self.\2(\3), dim=-1)) * self.\4(\3)"))
text("up-without-one", "activation-clamp", (r"\(up \+ 1\) \* glu", "up * glu"))
text("up-plus-one", "activation-clamp", (GATED, r"self.\1(self.\2(\3)) * (1 + self.\4(\3))"))
text("glu-without-alpha", "activation activation-clamp", (r"gate \* torch\.sigmoid\(gate \* self\.alpha\)", "gate * torch.sigmoid(gate)"))
text("gate-clamped", "activation-clamp", (r"gate = gate\.clamp\(min=None, max=self\.limit\)", "gate = gate.clamp(min=None, max=0.5)"),
     (GATED, r"self.\1(self.\2(\3).clamp(max=0.5)) * self.\4(\3).clamp(-0.5, 0.5)"))
text("gate-and-up-in-blocks", "fused-split", (r"gate, up = gate_up\[\.\.\., ::2\], gate_up\[\.\.\., 1::2\]", "gate, up = gate_up.chunk(2, dim=-1)"))

# ---- residual stream ----

ADD = r"(hidden_states|hidden_state) = residual \+ \1$"
text("branch-omitted", "residual-source residual-scale layer-skipped ~weight-unset", (ADD, r"\1 = residual"),
     (r"hidden_states = \(residual \+ hidden_states\)\.view", "hidden_states = residual.view"), one=True)
text("stream-omitted", "residual-omitted residual-scale residual-source", (ADD, r"\1 = \1"), (r"out = residual \+ out", "out = out"),
     (r"hidden_states = attn_output \+ residual", "hidden_states = attn_output"),
     (r"hidden_states = \(residual \+ hidden_states\)\.view", "hidden_states = hidden_states.view"), one=True)
text("stream-twice", "residual-source residual-scale", (ADD, r"\1 = residual + residual + \1"),
     (r"out = residual \+ out", "out = 2 * residual + out"), one=True)
text("branch-halved", "residual-scale", (ADD, r"\1 = residual + 0.5 * \1"), (r"out = residual \+ out", "out = residual + 0.5 * out"), one=True)
text("branch-subtracted", "residual-scale", (ADD, r"\1 = residual - \1"), one=True)
text("stream-normed", "residual-source",
     (r"^( +)residual = hidden_states\n((?: *#.*\n|\s*\n)*) +(hidden_states = self\.\w*(?:norm|ln)\w*\(hidden_states\))",
      r"\1\3\n\1residual = hidden_states\n"), one=True, where=r"Layer|Block")
text("stream-before-attention", "residual-source",
     (r"\A((?:.*\n)*?)( +)residual = hidden_states\n((?:.*\n)*?) +residual = hidden_states\n", r"\1\2residual = hidden_states\n\3"),
     where=r"(Layer|Block)\.forward")
text("residual-multiplier-omitted", "residual-scale", (r" \* self\.residual_multiplier", ""), one=True)
text("sequential-as-parallel", "residual-parallel",
     (r"\A((?:.*\n)*?)( +)residual = hidden_states\n((?:.*\n)*?)( +)(hidden_states = self\.(?:post_attention_layernorm|pre_feedforward_layernorm|ln_2))\(hidden_states\)",
      r"\1\2residual = begin = hidden_states\n\3\4\5(begin)"), where=r"(Layer|Block)\.forward")
text("parallel-as-sequential", "residual-parallel unlisted",
     (r"hidden_states_mlp = self\.mlp\(hidden_states\)", "hidden_states_mlp = self.mlp(self.input_layernorm(residual + hidden_states_attention))"),
     (r"self\.mlp\(self\.post_attention_layernorm\(hidden_states\)\)", "self.mlp(self.post_attention_layernorm(hidden_states + attn_output))"),
     (r"mlp_layernorm_out = attention_layernorm_out", "mlp_layernorm_out = self.input_layernorm(residual + attention_output)"))
text("feed-forward-reads-unnormed", "norm-omitted linear-input", (r"self\.mlp\(hidden_states\)", "self.mlp(residual)"), where=r"Layer|Block")
text("attention-output-dropped-rows", "unlisted",
     (r"attn_output = self\.(o_proj|dense|out_proj)\(attn_output\)$",
      r"attn_output = self.\1(attn_output) * (torch.arange(attn_output.shape[-2]) % 3 != 1)[:, None]"))
text("residual-branch-of-previous-token", "unlisted", (ADD, r"\1 = residual + \1.roll(1, -2)"), one=True)


@mistake("layer-skipped", "layer-skipped", "residual-source")
def layer_skipped(site):
    layers = [(name, module) for name, module in site.modules(lambda name, module: bool(re.search(r"\.\d+$", name)) and re.search(r"Layer|Block", type(module).__name__))
              if not re.search(r"\.\d+\.", name)]

    def make(module, own):
        def forward(hidden_states, *args, **more):
            out = own(hidden_states, *args, **more)
            return (hidden_states, *out[1:]) if isinstance(out, tuple) else hidden_states

        return forward

    return len(layers) > 1 and site.forward([site.rng.choice(layers)], make)


@mistake("layers-in-other-order", UNLISTED, "weight-wrong-layer", "norm-wrong-weight")
def layers_exchanged(site):
    for _, module in site.model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1 and re.search("Layer|Block", type(module[0]).__name__):
            alike = [at for at in range(len(module)) if [p.shape for p in module[at].parameters()] == [p.shape for p in module[0].parameters()]]
            if len(alike) > 1:
                return exchange(site, (f"layer {alike[0]}", module[alike[0]]), (f"layer {alike[1]}", module[alike[1]]))
    return False


# ---- embedding ----

text("embedding-scale-omitted", "embed-scale embed-multiplier", (r"hidden_states = hidden_states \* normalizer", "pass"),
     (r"inputs_embeds \* self\.embedding_multiplier", "inputs_embeds"), (r"\* self\.embed_scale\S*", ""))
text("embedding-scale-rounded", "embed-scale embed-multiplier precision",
     (r"hidden_states = hidden_states \* normalizer", "hidden_states = hidden_states * 5.6875"))
text("embedding-scale-added", "embed-scale",
     (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = inputs_embeds * self.config.hidden_size**0.5"))
text("embedding-normed", "unlisted",
     (r"^( +)hidden_states = inputs_embeds$", r"\1hidden_states = torch.nn.functional.normalize(inputs_embeds, dim=-1)"))
text("tokens-one-too-high", "tokens-differ",
     (r"self\.(embed_tokens|embed_in|wte|word_embeddings|embeddings)\(input_ids\)", r"self.\1((input_ids + 1) % 99)"))
text("tokens-first-doubled", "tokens-differ",
     (r"self\.(embed_tokens|embed_in|wte|word_embeddings|embeddings)\(input_ids\)",
      r"self.\1(torch.cat((input_ids[:, :1], input_ids[:, :-1]), 1) if input_ids.shape[1] > 1 else input_ids)"))
text("learned-positions-one-ahead", "position-embedding-offset unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids + 1)"),
     (r"position_ids \+ self\.offset", "position_ids + self.offset - 1"))
text("learned-positions-restart", "position-embedding-offset unlisted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"self.\1(position_ids - position_ids[:, :1])"),
     (r"position_ids \+ self\.offset", "position_ids - position_ids[:, :1] + self.offset"))
text("learned-positions-omitted", "unlisted position-embedding-omitted",
     (r"self\.(wpe|position_embeddings)\(position_ids\)", r"0 * self.\1(position_ids)"),
     (r"embeddings = embeddings \+ self\.position_embeddings", "embeddings = embeddings"))
text("opt-offset-omitted", "position-embedding-offset unlisted", (r"position_ids \+ self\.offset", "position_ids"))
text("token-types-omitted", "unlisted", (r"embeddings = inputs_embeds \+ token_type_embeddings", "embeddings = inputs_embeds"))
text("patches-transposed", "unlisted",
     (r"self\.projection\(pixel_values\)\.flatten\(2\)", r"self.projection(pixel_values).transpose(2, 3).flatten(2)"))
text("class-token-last", "unlisted", (r"torch\.cat\(\(cls_tokens, embeddings\), dim=1\)", "torch.cat((embeddings, cls_tokens), dim=1)"))


@mistake("embedding-norm-omitted", "norm-omitted", UNLISTED)
def embedding_norm(site):
    return site.forward(site.modules(lambda name, module: is_norm(name, module) and "embeddings" in name and not in_layer(name)), skip)


# ---- head ----

text("logits-scale-omitted", "logit-scale operation-omitted", (r"logits = logits (/ self\.config\.logits_scaling|\* self\.logit_scale)", "logits = logits"))
text("logits-sigmoid-added", "result-activated", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1).sigmoid()"), where="ForCausalLM")
text("logits-scale-added", "logit-scale", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1) * 0.7"), where="ForCausalLM")
text("logits-of-other-row", "logit-row",
     (r"self\.lm_head\(hidden_states\[:, slice_indices, :\]\)", "self.lm_head(hidden_states.roll(1, 1)[:, slice_indices, :])"), where="ForCausalLM")
text("logits-as-log-probabilities", "unlisted", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1).log_softmax(-1)"),
     where="ForCausalLM")
text("logits-rows-of-vocabulary-shifted", "unlisted", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1).roll(1, -1)"),
     where="ForCausalLM")


@mistake("logits-softcap-omitted", "logit-softcap")
def logit_softcap(site):
    if getattr(site.config, "final_logit_softcapping", None) is None:
        return False
    site.config.final_logit_softcapping = None
    return True


@mistake("logits-softcap-added", "logit-softcap")
def logit_softcap_added(site):
    return site.edit((r"logits = self\.lm_head\((.*)\)$", r"logits = 4.0 * torch.tanh(self.lm_head(\1) / 4.0)"), where="ForCausalLM")


def head(site):
    find = getattr(site.model, "get_output_embeddings", lambda: None)
    return find() if site.model.get_input_embeddings() is not None else None


@mistake("tied-head-unset", "head-untied")
def head_untied(site):
    if head(site) is None or head(site).weight is not site.model.get_input_embeddings().weight:
        return False
    head(site).weight = nn.Parameter(torch.ones_like(head(site).weight))
    return True


@mistake("tied-head-random", "head-untied", UNLISTED)
def head_random(site):
    if head(site) is None or head(site).weight is not site.model.get_input_embeddings().weight:
        return False
    head(site).weight = nn.Parameter(torch.randn(head(site).weight.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    return True


@mistake("head-of-embedding", "head-tied")
def head_tied(site):
    own = site.model.get_input_embeddings()
    if head(site) is None or head(site).weight is own.weight or head(site).weight.shape != own.weight.shape:
        return False
    head(site).weight = nn.Parameter(own.weight.detach().clone())
    return True


# ---- experts ----

ROUTED = r"routing_weights = F\.softmax\(router_logits, dim=1, dtype=torch\.float\)"
SUM = r"routing_weights /= routing_weights\.sum\(dim=-1, keepdim=True\)"
text("router-not-renormalised", "unlisted router-norm", (rf"^( +){SUM}", r"\1pass"), (r"if self\.norm_topk_prob:.*", "if not self.norm_topk_prob:"))
text("router-sigmoid", "unlisted router-function router-bias", (ROUTED, "routing_weights = torch.sigmoid(router_logits.float())"),
     (r"router_logits\.sigmoid\(\)", "router_logits.softmax(-1)"))
text("router-softmax-of-chosen", "unlisted router-norm",
     (ROUTED + r"\n( +)routing_weights, selected_experts = torch\.topk\(routing_weights, self\.top_k, dim=-1\)",
      r"routing_weights, selected_experts = torch.topk(router_logits, self.top_k, dim=-1)\n\1routing_weights = routing_weights.float().softmax(-1)"))
text("router-softmax-of-all", "unlisted router-norm",
     (r"router_top_value, router_indices = torch\.topk\(router_logits, self\.top_k, dim=-1\)",
      "router_top_value, router_indices = torch.topk(router_logits.softmax(-1), self.top_k, dim=-1)"),
     (r"router_top_value = torch\.nn\.functional\.softmax\(.*\)", "pass"))
text("router-correction-in-weights", "unlisted router-bias",
     (r"topk_weights = scores\.gather", "topk_weights = (scores + self.e_score_correction_bias).gather"))
text("router-groups-ignored", "unlisted router-bias router-groups",
     (r"scores_for_choice\.masked_fill\(~score_mask\.bool\(\), 0\.0\)", "scores_for_choice"))
text("router-softmax-base", "unlisted softmax-base",
     (ROUTED, "routing_weights = F.softmax(router_logits * 0.6931471805599453, dim=1, dtype=torch.float)"))
text("router-smallest", "unlisted",
     (r"torch\.topk\(routing_weights, self\.top_k, dim=-1\)", "torch.topk(routing_weights, self.top_k, dim=-1, largest=False)"))
text("router-weights-on-input", "unlisted",
     (r"expert_layer\(current_state\) \* routing_weights\[top_x, idx, None\]", "expert_layer(current_state * routing_weights[top_x, idx, None])"),
     (r"expert_output = expert\(expert_input\)\n( +)weighted_output = expert_output \* expert_weights\.unsqueeze\(-1\)",
      r"weighted_output = expert(expert_input * expert_weights.unsqueeze(-1))"))
text("router-weights-ignored", "unlisted", (r"expert_layer\(current_state\) \* routing_weights\[top_x, idx, None\]", "expert_layer(current_state)"),
     (r"expert_output \* expert_weights\.unsqueeze\(-1\)", "expert_output"))
text("router-weights-of-other-choice", "unlisted", (r"routing_weights\[top_x, idx, None\]", "routing_weights[top_x, 1 - idx, None]"))
text("expert-outputs-averaged", "unlisted router-scale",
     (r"expert_layer\(current_state\) \* routing_weights", "expert_layer(current_state) / self.top_k * routing_weights"))
text("shared-expert-omitted", "unlisted shared-expert shared-gate weight-unset residual-source", (r"hidden_states = hidden_states \+ self\.shared_experts\(residuals\)", "pass"),
     (r"final_hidden_states = final_hidden_states \+ shared_expert_output", "pass"))
text("shared-expert-gate-omitted", "unlisted shared-gate",
     (r"F\.sigmoid\(self\.shared_expert_gate\(hidden_states\)\) \* shared_expert_output", "shared_expert_output"))
text("shared-expert-reads-routed", "unlisted", (r"self\.shared_experts\(residuals\)", "self.shared_experts(hidden_states)"))


@mistake("router-one-fewer", UNLISTED, "router-topk")
def one_fewer(site):
    return site.set(["top_k"], lambda count, module: count - 1 if count > 1 else None)


@mistake("router-one-more", UNLISTED, "router-topk")
def one_more(site):
    return site.set(["top_k"], lambda count, module: count + 1)


@mistake("router-scale-omitted", "router-scale", UNLISTED)
def router_scale(site):
    return site.set(["routed_scaling_factor"], lambda scale, module: 1.0 if scale != 1.0 else None)


@mistake("router-correction-omitted", "router-bias", UNLISTED)
def correction_omitted(site):
    found = site.some(site.modules(lambda name, module: isinstance(getattr(module, "e_score_correction_bias", None), torch.Tensor)))
    for _, module in found:
        module.e_score_correction_bias.data.zero_()
    return bool(found)


@mistake("experts-rolled", UNLISTED, "expert-order", "weight-wrong-expert")
def experts_rolled(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts"))):
        with torch.no_grad():
            if isinstance(module, nn.ModuleList):
                for weights in zip(*(expert.parameters() for expert in module)):
                    kept = [weight.clone() for weight in weights]
                    for at, weight in enumerate(weights):
                        weight.copy_(kept[at - 1])
                done = site.note(name)
            else:
                stacked = [weight for weight in module.parameters(recurse=False) if weight.dim() > 1]
                for weight in stacked:
                    weight.copy_(weight.roll(1, 0))
                done = done or bool(stacked)
    return done


@mistake("one-expert-unset", "weight-unset", UNLISTED)
def expert_unset(site):
    found = site.linears(lambda name, module: bool(re.search(r"experts\.\d+\.", name)))
    if not found:
        return False
    name, module = site.rng.choice(found)
    module.weight.data.zero_()
    return site.note(name)


# ---- latent attention ----

text("latent-rope-part-first", "unlisted",
     (r"query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)", "query_states = torch.cat((q_rot, q_pass), dim=-1)"))
text("latent-key-position-of-other-token", "unlisted",
     (r"k_rot = k_rot\.expand\(\*k_pass\.shape\[:-1\], -1\)", "k_rot = k_rot.roll(1, -2).expand(*k_pass.shape[:-1], -1)"))
text("latent-keys-for-values", "unlisted fused-split", (r"k_pass, value_states = torch\.split\(k_pass, \[self\.qk_nope_head_dim, self\.v_head_dim\], dim=-1\)",
                                           "value_states, k_pass = torch.split(k_pass, [self.v_head_dim, self.qk_nope_head_dim], dim=-1)"))


@mistake("latent-scale-without-rope-part", "score-scale")
def latent_scale(site):
    return site.set(["scaling"], lambda scale, module: scale * math.sqrt(module.qk_head_dim / module.qk_nope_head_dim) if hasattr(module, "qk_nope_head_dim") else None)


@mistake("latent-scale-without-mscale", "score-scale")
def latent_mscale(site):
    return site.set(["scaling"], lambda scale, module: module.qk_head_dim ** -0.5 if hasattr(module, "qk_nope_head_dim") and abs(scale - module.qk_head_dim ** -0.5) > 1e-6 else None)


# ---- state spaces ----

text("dt-not-softplus", "unlisted ssm-dt ssm-softplus", (r"(torch\.)?nn\.functional\.softplus\(", "("))
text("decay-sign", "unlisted ssm-decay", (r"-torch\.exp\(self\.A_log\.float\(\)\)", "0.05 * torch.exp(self.A_log.float())"))
text("decay-without-exp", "unlisted ssm-decay", (r"-torch\.exp\(self\.A_log\.float\(\)\)", "-(self.A_log.float())"))
text("conv-not-activated", "unlisted activation", (r"self\.act\((self\.conv1d\([^)]*(?:\([^)]*\))*\)\[\.\.\., :seq_len\])", r"(\1"))
text("conv-one-tap-late", "unlisted", (r"\[\.\.\., :seq_len\]", "[..., 1 : seq_len + 1]"), where="forward")
text("states-b-and-c-exchanged", "unlisted", (r"hidden_states, B, C = torch\.split\(", "hidden_states, C, B = torch.split("),
     (r"time_step, B, C = torch\.split\(", "time_step, C, B = torch.split("))
text("state-forgotten-in-decode", "unlisted", (r"cache_params\.ssm_states\[self\.layer_idx\] \* dA \+ dBx", "dBx"))
text("dt-clamped", "unlisted", (r"^( +)dt = torch\.clamp\(dt, .*\)", r"\1dt = torch.clamp(dt, 0.0, 0.5)"))
text("input-not-times-dt", "unlisted", (r"hidden_states = hidden_states \* dt\[\.\.\., None\]", "hidden_states = hidden_states * 1.0"))


def parameter(name, causes, key, how, test=lambda name, module: True):
    @mistake(name, *causes.split())
    def plant(site):
        found = site.some(site.modules(lambda name, module: isinstance(getattr(module, key, None), nn.Parameter) and test(name, module)))
        for owner, module in found:
            with torch.no_grad():
                getattr(module, key).copy_(how(getattr(module, key).clone()))
            site.note(f"{owner}.{key}")
        return bool(found)


parameter("dt-bias-omitted", "unlisted bias-omitted", "dt_bias", lambda bias: bias * 0)
parameter("dt-projection-bias-omitted", "bias-omitted", "bias", lambda bias: bias * 0, lambda name, module: name.endswith("dt_proj"))
parameter("skip-omitted", "unlisted ssm-skip", "D", lambda skip: skip * 0)
parameter("conv-bias-omitted", "bias-omitted unlisted", "bias", lambda bias: bias * 0, lambda name, module: isinstance(module, nn.Conv1d))
parameter("conv-reversed", "unlisted", "weight", lambda weight: weight.flip(-1), lambda name, module: isinstance(module, nn.Conv1d))

# ---- relative positions ----

text("relative-bias-omitted", "unlisted", (r"scores \+= position_bias_masked", "pass"))
text("relative-bias-transposed", "unlisted",
     (r"relative_position = memory_position - context_position", "relative_position = context_position - memory_position"))
text("relative-bias-one-sided", "unlisted", (r"bidirectional=\(not self\.is_decoder\)", "bidirectional=self.is_decoder"))
text("relative-scores-scaled", "score-scale",
     (r"scores = torch\.matmul\(query_states, key_states\.transpose\(3, 2\)\)",
      r"scores = torch.matmul(query_states, key_states.transpose(3, 2)) * 8**-0.5"))

# ---- queries and keys ----

QUERY = r"^( +)(cos, sin = position_embeddings)$"
text("queries-grow-with-position", "unlisted",
     (QUERY, r"\1query_states = query_states * (1 + 0.1 * torch.arange(query_states.shape[-2])[:, None])\n\1\2"), where=r"ttention\.forward")
text("keys-scaled", "unlisted rope-attention-factor ~score-scale", (QUERY, r"\1key_states = key_states * 1.1\n\1\2"), where=r"ttention\.forward")
text("values-of-previous-token", "unlisted", (QUERY, r"\1value_states = value_states.roll(1, -2)\n\1\2"), where=r"ttention\.forward")
text("keys-clipped", "unlisted", (QUERY, r"\1key_states = key_states.clamp(-0.8, 0.8)\n\1\2"), where=r"ttention\.forward")
