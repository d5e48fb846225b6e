"""Finds the tensors that a model returns, in order, and converts them to floats for recording. K/V caches are left out."""

import dataclasses
from collections.abc import Mapping

from . import is_model, is_torch

CACHES = {"past_key_values", "past_key_value", "cache_params", "mems", "state"}  # fields of transformers' own outputs
RETURNED = "/return"


def outputs_of(value):
    """Every tensor in what a model returns, in order: one by itself, or in tuples, lists, mappings, dataclasses and plain objects."""
    found = []
    collect(value, found, set(), False)
    return found


def collect(value, found, seen, inner):
    if is_torch(value):
        if id(value) not in seen:
            seen.add(id(value))
            found.append(value)
        return
    if value is None or isinstance(value, (str, bytes, int, float, complex, type)) or id(value) in seen:
        return
    seen.add(id(value))
    left_out = CACHES if type(value).__module__.startswith("transformers.") else ()
    if isinstance(value, Mapping):
        fields = [item for key, item in value.items() if key not in left_out]
    elif isinstance(value, (list, tuple)):
        fields = [] if inner and is_cache(value) else list(value)
    elif dataclasses.is_dataclass(value):
        fields = [getattr(value, field.name, None) for field in dataclasses.fields(value) if field.name not in left_out]
    elif hasattr(value, "get_seq_length") or left_out or is_model(value):  # a cache, by its method or by where it comes from, or a module
        fields = []
    else:
        slots = [getattr(value, name, None) for kind in type(value).__mro__ for name in [*getattr(kind, "__slots__", ())]]
        fields = [*getattr(value, "__dict__", {}).values(), *slots]
    for item in fields:
        collect(item, found, seen, True)


def is_cache(pair):
    """Whether a list is the keys and values of one layer, or holds those of several."""
    if all(isinstance(item, (list, tuple)) for item in pair):
        return len(pair) > 0 and all(is_cache(item) for item in pair)
    return len(pair) == 2 and all(is_torch(item) and item.dim() == 4 for item in pair) and pair[0].shape[:3] == pair[1].shape[:3]


def in_numbers(tensor):
    """A tensor as it is recorded: complex numbers as pairs, a truth as 0 or 1, an integer as its 64 bits (-1 or 1), so that another id is never small."""
    import torch

    tensor = tensor.detach()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    elif tensor.dtype == torch.bool:
        tensor = tensor.float()
    elif not tensor.is_floating_point():
        bits = torch.arange(64, device=tensor.device)
        tensor = ((tensor.long().unsqueeze(-1) >> bits) & 1).float() * 2 - 1
    return tensor if tensor.dim() else tensor.reshape(1)


def name_of_output(number):
    """`/return`, `/return#2`: in Python's own word, which no attribute of a module is called."""
    return RETURNED if number == 1 else f"{RETURNED}#{number}"


def is_output(tap):
    return tap.split("#")[0] == RETURNED
