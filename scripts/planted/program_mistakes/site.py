"""A model in which a mistake is planted: its functions are rewritten by their text, attributes of its modules set, weights exchanged."""

import inspect
import re
import sys
import textwrap
import types
from contextlib import ExitStack

import transformers.cache_utils
import transformers.masking_utils
import transformers.modeling_attn_mask_utils
from torch import nn
from transformers.pytorch_utils import Conv1D

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
