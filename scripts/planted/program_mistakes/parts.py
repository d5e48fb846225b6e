"""What mistakes of several files need: patterns of code that many models share, and ways to change weights, modules and functions."""

import inspect
import re
import sys

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from scripts.planted.program_mistakes.site import in_layer, units


def skip(module, own):
    return lambda x, *args, **more: x


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


def weigh(site, key, how, test=lambda name, module: True):
    """Changes a weight of the linear layers of one role."""
    found = site.role(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and in_layer(name) and getattr(module, key, None) is not None and test(name, module))
    for name, module in found:
        with torch.no_grad():
            weight = getattr(module, key)
            weight.copy_(how(weight.clone(), module))
        site.note(f"{name}.{key}")
    return bool(found)


def rows_first(weight, module):
    return weight.T if isinstance(module, Conv1D) else weight


def head_width(site):
    return next((module.head_dim for _, module in site.modules(lambda name, module: isinstance(getattr(module, "head_dim", None), int) and hasattr(module, "q_proj"))), 0)


def rotaries(site):
    return site.modules(lambda name, module: isinstance(getattr(module, "inv_freq", None), torch.Tensor))


def head(site):
    find = getattr(site.model, "get_output_embeddings", lambda: None)
    return find() if site.model.get_input_embeddings() is not None else None


def rows(site, test, how, keys=("weight", "bias")):
    """The rows of the linear layers of one role, and what is added to them, stand otherwise."""
    found = site.role(lambda name, module: isinstance(module, (nn.Linear, Conv1D)) and in_layer(name) and test(name, module)
                      and ("weight" in keys or module.bias is not None))
    for name, module in found:
        with torch.no_grad():
            if "weight" in keys:
                module.weight.copy_(rows_first(how(rows_first(module.weight.clone(), module)), module))
            if "bias" in keys and module.bias is not None:
                module.bias.copy_(how(module.bias.clone()))
        site.note(name)
    return bool(found)


def heads_of(site):
    """How many heads queries have, and keys."""
    heads = getattr(site.config, "num_attention_heads", 0) or 0
    return heads, getattr(site.config, "num_key_value_heads", None) or heads


def bf16(weight):
    return weight.bfloat16().float()


def strided(weight):
    """Rows of [V,D] at a distance of D + 1."""
    flat = torch.cat((weight.reshape(-1), weight.new_zeros(len(weight))))
    return flat[torch.arange(weight.shape[0])[:, None] * (weight.shape[1] + 1) + torch.arange(weight.shape[1])]


bytes_turned = lambda weight: weight.reshape(weight.shape[1], weight.shape[0]).T
PATCHES = lambda name, module: isinstance(module, nn.Conv2d) and module.kernel_size == module.stride


def layers_of(site):
    """The layers of a model, in order."""
    return site.modules(lambda name, module: re.search(r"\.\d+$", name) and re.search(r"Layer$|Block$", type(module).__name__) and not re.search(r"\.\d+\.", name))


def other_text(site, function, pattern, replacement):
    """A function that is not called by its name, with another text; None where that has no such place."""
    unit = next((unit for unit in units(site.model) if unit.function is function), None)
    source = unit and re.sub(pattern, replacement, unit.source, flags=re.M)
    return unit.compiled(source) if unit and source != unit.source else None


def file_of(site):
    return inspect.getsource(sys.modules[type(site.model).__module__])


def stuck(site, test):
    """The modules of one role in all layers hold what the first layer's holds; None where there are fewer than three layers."""
    roles = {}
    for name, module in site.modules(lambda name, module: in_layer(name) and not re.search(r"experts?\.\d", name) and test(name, module)):
        roles.setdefault(re.sub(r"\d+", "#", name), []).append((name, module))
    found = [modules for modules in roles.values() if len(modules) > 2 and len({tuple(p.shape for p in module.parameters(recurse=False)) for _,
    module in modules}) == 1]
    if not found:
        return False
    modules = site.rng.choice(found)
    for _, module in modules[1:]:
        with torch.no_grad():
            for one, other in zip(module.parameters(recurse=False), modules[0][1].parameters(recurse=False)):
                one.copy_(other)
    return site.note(f"all are {modules[0][0]}")


generating = lambda site: site.model.can_generate()


def bytes_exchanged(weight):
    """Each f16 has its bytes in the other order."""
    turned = weight.detach().half().contiguous().view(torch.uint8).unflatten(-1, (-1, 2)).flip(-1).contiguous().flatten(-2).view(torch.float16).float()
    return torch.nan_to_num(turned, 0.0, 0.0, 0.0)


def cut_to_bf16(weight):
    """The lower bits are dropped, nothing is rounded."""
    return (weight.contiguous().view(torch.int32) & ~0xFFFF).view(torch.float32)


# A row in whole numbers of 8 bits, with a scale.
IN_8_BITS = "(lambda x, scale: (x / scale).round() * scale)({0}, {0}.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127)"
