"""Records every operation that a PyTorch model executes within a `with` block, with its operands as strided views of buffers.

What is recorded is a straight line: views (transpose, slice, expand) are no operations but ways to look at a buffer, and what writes in place writes
into a view. docs/design/programs.md has the file.
"""

import inspect
import json
import sys
from collections import Counter
from contextlib import ExitStack
from functools import cache
from itertools import accumulate
from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from . import RecordError
from .naming import Graph, name_outputs, name_taps
from .outputs import in_numbers, outputs_of


class Dtypes(dict):
    """Names of types; of others it is said that they cannot be recorded."""

    def __missing__(self, dtype):
        raise RecordError(f"tensors of {dtype} cannot be recorded: keep what has them out of the recorded run, or convert them before")


DTYPES = Dtypes({torch.float64: "f64", torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16", torch.int64: "i64", torch.int32: "i32", torch.int16: "i16",
                 torch.int8: "i8", torch.uint8: "u8", torch.bool: "bool", torch.complex64: "c64", torch.complex128: "c128",
                 torch.float8_e4m3fn: "f8_e4m3", torch.float8_e5m2: "f8_e5m2"})
SIZES = {name: dtype.itemsize for dtype, name in DTYPES.items()}
# safetensors has no complex numbers: they are written as pairs.
SAFETENSORS = {"f64": "F64", "f32": "F32", "f16": "F16", "bf16": "BF16", "i64": "I64", "i32": "I32", "i16": "I16", "i8": "I8", "u8": "U8", "bool": "BOOL"}
# Operations made of others, of which the parts are recorded: what attention computes on the way is worth a look.
IN_PARTS = {"aten::einsum"}
# Where a tensor becomes Python values without an operation: what follows from these is fixed in the program.
ESCAPES = ("tolist", "numpy", "__array__", "__dlpack__")
# What says or changes something of a tensor, and nothing of its values.
NO_VALUES = {"aten::detach_", "aten::_has_compatible_shallow_copy_type"}
# What asks for gradients, in `torch.autograd`.
GRADIENTS = ("backward", "grad")
# Memory that holds nothing before an operation writes into it.
EMPTY = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
UNCOMPILED = "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG"
# What stands for a kernel that PyTorch's dispatcher did not see.
UNSEEN = "unseen_kernel"
# Frames of PyTorch that are nobody's model.
TORCH = str(Path(torch.__file__).parent)


class Buffer:
    """Memory that operations read and write; its canonical view is the first tensor that was seen of it."""

    def __init__(self, tensor):
        self.dtype, self.shape = DTYPES[tensor.dtype], list(tensor.shape)
        self.strides, self.offset = list(tensor.stride()), tensor.storage_offset()
        self.weak = StorageWeakRef(tensor.untyped_storage())  # so that its key is not given to another

    def is_contiguous(self):
        return self.offset == 0 and is_contiguous(self.shape, self.strides)


def is_contiguous(shape, strides):
    due = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != due:
            return False
        due *= extent
    return True


class View:
    """A strided view of a buffer."""

    __slots__ = ("buffer", "dtype", "offset", "shape", "strides")

    def __init__(self, buffer, dtype, shape, strides, offset):
        self.buffer, self.dtype, self.shape, self.strides, self.offset = buffer, dtype, tuple(shape), tuple(strides), offset

    @classmethod
    def of(cls, buffer, tensor):
        """How a tensor looks at a buffer."""
        return cls(buffer, DTYPES[tensor.dtype], tensor.shape, tensor.stride(), tensor.storage_offset())

    def is_contiguous(self):
        return is_contiguous(self.shape, self.strides)

    def extent(self):
        """The first byte that it shows, and the one behind the last."""
        size, last = SIZES[self.dtype], self.offset + sum((extent - 1) * stride for extent, stride in zip(self.shape, self.strides))
        return self.offset * size, (last + 1) * size

    def with_axes(self, shape, strides, offset=None):
        """The same buffer in other axes."""
        return View(self.buffer, self.dtype, shape, strides, self.offset if offset is None else offset)


class Operation:
    """One operation that ran."""

    __slots__ = ("function", "given", "line", "named", "outputs", "scalar", "scope", "written")

    def __init__(self, function, given, named, written, scope, line):
        self.function, self.given, self.named, self.written = function, given, named, written
        self.outputs, self.scalar, self.scope, self.line = [], None, scope, line

    @property
    def kind(self):
        """`add` of add.Tensor and of add_.Tensor."""
        first, *rest = self.function.split(".")
        name = first if not rest or is_aten(first) else rest[0]
        return name[:-1] if self.written and name.endswith("_") else name

    def views(self):
        """Every view that it reads, in order."""
        return list(views_in([self.given, list(self.named.values())]))


@cache
def is_aten(name):
    """Whether an operation of PyTorch's own has that name: others stand behind the name of their library."""
    return hasattr(torch.ops.aten, name)


def views_in(value):
    if isinstance(value, View):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from views_in(item)


class Call:
    """One call of a module: the operations between its begin and its end, and the tensors that it was given and gave."""

    __slots__ = ("begin", "end", "gave", "given", "path", "step")

    def __init__(self, path, step, begin, given):
        self.path, self.step, self.begin, self.given = path, step, begin, given
        self.end, self.gave = begin, []


class Program:
    """The operations of a run, as they are recorded."""

    def __init__(self):
        self.buffers, self.weights, self.constants, self.inputs = [], {}, {}, {}
        self.fed = set()  # inputs that may be tokens or pixels: of two axes or more, as the model is given them
        self.operations, self.steps, self.calls, self.taps = [], [], [], []
        self.scopes, self.files = {}, {}
        self.escapes, self.randoms, self.unseen = Counter(), Counter(), Counter()

    def files_of(self, about):
        """program.json and program.safetensors, as bytes by name. `about`: what else is to be said of the model."""
        def operand(value):
            if isinstance(value, View):
                own = self.buffers[value.buffer]
                if (list(value.shape), list(value.strides), value.offset, value.dtype) == (own.shape, own.strides, own.offset, own.dtype):
                    return value.buffer
                view = [value.buffer, list(value.shape), list(value.strides)]
                if value.dtype != own.dtype:
                    view += [value.offset, value.dtype]
                elif value.offset:
                    view += [value.offset]
                return {"v": view}
            if isinstance(value, (list, tuple)):
                return [operand(item) for item in value]
            return value if value is None or isinstance(value, dict) else scalar(value)

        def row(operation):
            entry = {"o": operation.function, "i": [operand(value) for value in operation.given]}
            if operation.named:
                entry["a"] = {key: operand(value) for key, value in operation.named.items()}
            entry["y"] = [operand(value) for value in operation.outputs]
            if operation.written:
                entry["w"] = operation.written
            if operation.scalar is not None:
                entry["x"] = operation.scalar
            return {**entry, "s": operation.scope, "l": operation.line}

        def value(buffer):
            plain = [buffer.dtype, buffer.shape]
            return plain if buffer.is_contiguous() else [*plain, buffer.strides, buffer.offset]

        head = {"version": 1, **about, "weights": {str(b): name for b, name in self.weights.items()}, "constants": sorted(self.constants),
                "inputs": {str(b): name for b, (name, _) in self.inputs.items()}, "files": list(self.files),
                "scopes": [[path, list(functions), file] for path, functions, file in self.scopes],
                "steps": [{**step, "output": operand(step["output"])} for step in self.steps],
                "taps": [{**tap, "v": operand(tap["v"])} for tap in self.taps]}
        if self.escapes:
            head["escapes"] = dict(self.escapes)
        lines = [f"  {json.dumps(key)}: {json.dumps(item, separators=(',', ':'))}" for key, item in head.items()]
        for key, items in {"values": map(value, self.buffers), "ops": map(row, self.operations)}.items():
            rows = ",\n    ".join(json.dumps(item, separators=(",", ":")) for item in items)
            lines.append(f'  "{key}": [\n    {rows}\n  ]')
        stored = {**self.constants, **{b: tensor for b, (_, tensor) in self.inputs.items()}}
        return {"program.json": [("{\n" + ",\n".join(lines) + "\n}\n").encode()], "program.safetensors": safetensors(stored)}


def scalar(value):
    """A number, a text or a truth, in JSON, which has no infinity."""
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return {"c": "nan" if value != value else "inf" if value > 0 else "-inf"}
    return {"c": value}


def safetensors(tensors):
    """The file of a few tensors, by number."""
    head, data, at = {}, [], 0
    for number, tensor in sorted(tensors.items()):
        tensor = torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor
        tensor = tensor.float() if DTYPES[tensor.dtype].startswith("f8") else tensor  # each is a number of f32
        raw = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        head[str(number)] = {"dtype": SAFETENSORS[DTYPES[tensor.dtype]], "shape": list(tensor.shape), "data_offsets": [at, at + len(raw)]}
        data.append(raw)
        at += len(raw)
    text = json.dumps(head, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return [len(text).to_bytes(8, "little"), text, *data]


def draws(name, args, kwargs):
    """Whether an operation that can draw random numbers does: dropout that is off does not."""
    if "attention" in name:
        return bool(args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0))
    return "dropout" not in name


def is_written(argument):
    return argument.alias_info is not None and argument.alias_info.is_write


def name_of(function):
    """`add.Tensor`; of another library than aten with its name before."""
    if not hasattr(function, "_schema"):
        return f"higher_order.{function}"
    return str(function).removeprefix("aten.").removesuffix(".default")


def without_out(function):
    """The name of the same operation without `out=`, or None."""
    def rest(schema):
        return [(argument.name, str(argument.type)) for argument in schema.arguments if not is_written(argument)]

    packet = function.overloadpacket
    others = (getattr(packet, overload) for overload in packet.overloads())
    same = (other for other in others if not any(is_written(argument) for argument in other._schema.arguments))
    return next((name_of(other) for other in same if rest(other._schema) == rest(function._schema)), None)


class Tracer(TorchDispatchMode):
    """Records every operation that runs while it is on. Values are kept until `forget`, for the taps of a step."""

    supports_higher_order_operators = True  # flex_attention, cond: each is one operation

    def __init__(self, program, model):
        super().__init__()
        self.program, self.paths = program, {}
        self.by_storage, self.kept, self.by_buffer = {}, {}, {}
        self.empty = set()  # buffers that no operation has written yet
        self.given = list  # gives what the module that runs was given
        self.inside = False  # of an operation: what it does there is its own business
        for path, module in model.named_modules():
            self.paths.setdefault(id(module), path)
        tied = set(getattr(model, "_tied_weights_keys", None) or [])
        persistent = set(model.state_dict(keep_vars=True))
        with torch.no_grad():
            for name, tensor in [*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)]:
                if not tensor.numel():
                    continue
                known = tensor.untyped_storage()._cdata in self.by_storage
                buffer = self.buffer_of(tensor)
                if name not in persistent:
                    program.constants.setdefault(buffer, tensor.detach().clone())
                elif not known or (program.weights.get(buffer) in tied and name not in tied):
                    program.weights[buffer] = name

    # -- operands --

    def buffer_of(self, tensor):
        """The number of the buffer that a tensor looks at; a new one where nobody has seen it."""
        key = tensor.untyped_storage()._cdata
        if key not in self.by_storage:
            self.by_storage[key] = len(self.program.buffers)
            self.program.buffers.append(Buffer(tensor))
        return self.by_storage[key]

    def view(self, tensor):
        """A tensor as an operand. What nobody made comes from outside: its value is kept as a constant."""
        if tensor.is_conj() or tensor.is_neg():
            tensor = tensor.resolve_conj().resolve_neg()
        known = tensor.untyped_storage()._cdata in self.by_storage
        view = View.of(self.buffer_of(tensor), tensor)
        if not known:
            self.program.constants[view.buffer] = self.whole(tensor, self.program.buffers[view.buffer])
        return view

    @staticmethod
    def whole(tensor, buffer):
        """The value of a tensor from outside; the whole of its memory, where it shows a part."""
        storage = tensor.untyped_storage()
        count = storage.nbytes() // tensor.element_size()
        if count != tensor.numel():
            tensor = torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
            buffer.shape, buffer.strides, buffer.offset = [count], [1], 0
        return tensor.detach().clone()

    def operand(self, value):
        if isinstance(value, torch.Tensor):
            return self.view(value)
        if isinstance(value, (list, tuple)):
            return [self.operand(item) for item in value]
        if isinstance(value, torch.dtype):
            return {"t": DTYPES.get(value, str(value))}
        if isinstance(value, torch.device):
            return "cpu"  # where it was computed is nobody's business
        if isinstance(value, (torch.layout, torch.memory_format)):
            return None
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        return getattr(value, "__name__", None) or str(value)  # a function, a complex number: no kernel takes it

    # -- where in the program's text --

    def place(self):
        """The number of the scope that runs, and the line in it: the module, and functions inside of its forward."""
        frame, functions, file, line = sys._getframe(2), [], None, 0
        path = ""
        while frame is not None:
            code = frame.f_code
            if not code.co_filename.startswith(TORCH) and code.co_filename != __file__:
                owner = frame.f_locals.get("self") if code.co_varnames[:1] == ("self",) else None
                if file is None:
                    file, line = code.co_filename, frame.f_lineno
                if id(owner) in self.paths:
                    path = self.paths[id(owner)]
                    break
                functions.append(code.co_name)
            frame = frame.f_back
        if frame is None:  # outside of the model
            functions = functions[:1]
        files, scopes = self.program.files, self.program.scopes
        number = files.setdefault(short(file or "?"), len(files))
        return scopes.setdefault((path, tuple(reversed(functions)), number), len(scopes)), line

    # -- operations --

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs, schema = kwargs or {}, getattr(function, "_schema", None)
        if schema is not None and schema.name in IN_PARTS:
            with self:
                parts = function.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        given = [self.operand(value) for value in args]
        named = {key: self.operand(value) for key, value in kwargs.items()}
        arguments = schema.arguments if schema is not None else []
        written = [at for at, argument in enumerate(arguments[:len(args)]) if is_written(argument)]
        into = [argument.name for argument in arguments if argument.name in kwargs and is_written(argument)]
        for view in views_in([given[at] for at in written] + [named[key] for key in into]):
            self.save(view.buffer)
            self.empty.discard(view.buffer)
        result = self.carry_out(function, args, kwargs)
        results = list(result) if isinstance(result, (tuple, list)) else [result]
        if schema is None:
            results = list(tensors_in(results))
        tensors = [item for item in results if isinstance(item, torch.Tensor)]
        if not written and not into and tensors and all(item.untyped_storage()._cdata in self.by_storage for item in tensors):
            return result  # another look at memory that is known
        is_number = isinstance(results[0] if results else None, (bool, int, float))
        if (schema is not None and schema.name in NO_VALUES) or not (tensors or is_number or written or into):
            return result  # a mark for a profiler, a check: no value
        if not tensors and not is_number:  # it gives nothing, and what it wrote is its result
            tensors = results = list(tensors_in([*(args[at] for at in written), *(kwargs[key] for key in into)]))
            lists = [item if at in written and isinstance(item, list) else [item] for at, item in enumerate(given)]
            ends = [*accumulate(map(len, lists), initial=0)]  # of a list each tensor is an operand of its own
            given, written = sum(lists, []), [at for own in written for at in range(ends[own], ends[own + 1])]
        self.find_unseen([value for at, value in enumerate(given) if at not in written], [value for key, value in named.items() if key not in into])
        name = name_of(function)
        if into:
            name = without_out(function) or name
            named = {key: value for key, value in named.items() if key not in into}
        if torch.Tag.nondeterministic_seeded in getattr(function, "tags", ()) and draws(name, args, kwargs):
            self.program.randoms[name] += 1
            read = [value for at, value in enumerate(given) if at not in written]
            if not any(True for _ in views_in([read, list(named.values())])):  # numbers made of nothing: a constant of this run
                if not written:
                    return result
                name, given, named, written = "copy_", [given[0], self.view(results[0].detach().clone())], {}, [0]
        named = {key: value for key, value in named.items() if value is not None and key not in ("device", "pin_memory")}
        operation = Operation(name, given, named, written, *self.place())
        index = len(self.program.operations)
        operation.outputs = [View.of(self.buffer_of(item), item) if isinstance(item, torch.Tensor) else None for item in results]
        if not tensors:
            operation.outputs, operation.scalar = [], results[0]
        if operation.kind in EMPTY:
            self.empty.update(view.buffer for view in operation.outputs)
        self.program.operations.append(operation)
        self.keep(index, operation, results)
        return result

    def carry_out(self, function, args, kwargs):
        outer, self.inside = self.inside, True
        try:
            return function(*args, **kwargs)
        finally:
            self.inside = outer

    def keep(self, index, operation, results):
        """The values that an operation gave, for the taps of the step."""
        for view, item in zip(operation.outputs, results):
            if view is not None:
                self.kept[index, view.buffer] = item.detach()
                self.by_buffer.setdefault(view.buffer, []).append(index)

    def find_unseen(self, *read):
        """Memory that is read though nothing has written into it: a kernel has, that did not come through PyTorch's dispatcher. It becomes an operation
        on what its module was given, which nobody can evaluate."""
        for view in views_in(read) if self.empty else ():
            if view.buffer not in self.empty or 0 in view.shape:
                continue
            self.empty.discard(view.buffer)
            made = self.by_buffer.get(view.buffer)
            if not made:
                continue
            tensor = self.kept[made[-1], view.buffer]
            whole = View.of(view.buffer, tensor)
            operation = Operation(UNSEEN, [whole, *self.given()], {}, [0], *self.place())
            operation.outputs = [whole]
            number, line = operation.scope, operation.line
            path, _, file = next(scope for scope, at in self.program.scopes.items() if at == number)
            self.program.unseen[f"{path or list(self.program.files)[file]}:{line}"] += 1
            self.program.operations.append(operation)
            self.keep(len(self.program.operations) - 1, operation, [tensor])

    def save(self, buffer):
        """Keeps what a buffer held, as it is about to be written again."""
        for index in self.by_buffer.pop(buffer, []):
            tensor = self.kept[index, buffer]
            storage = tensor.untyped_storage()
            copy = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
            self.kept[index, buffer] = copy.set_(storage.clone(), tensor.storage_offset(), tensor.shape, tensor.stride())

    def value(self, index, view):
        """What a view of an operation's output held just after it."""
        tensor = self.kept[index, view.buffer]
        dtype = next(kind for kind, name in DTYPES.items() if name == view.dtype)
        return torch.empty(0, dtype=dtype, device=tensor.device).set_(tensor.untyped_storage(), view.offset, view.shape, view.strides)

    def forget(self):
        """Lets go of the values of the step."""
        self.kept.clear()
        self.by_buffer.clear()


def short(file):
    """The path of a source file from its package on."""
    parts = Path(file).parts
    if "site-packages" in parts:
        return "/".join(parts[len(parts) - parts[::-1].index("site-packages"):])
    return parts[-1]


class Following:
    """A `with`: every forward call of `model` is one step of a program, and of the dump that `write` takes the taps of."""

    def __init__(self, model, write):
        self.model, self.write = model, write
        self.program = Program()
        self.tracer = Tracer(self.program, model)
        self.graph, self.open, self.stack, self.depth = Graph(self.program), [], ExitStack(), 0
        self.tracing = ExitStack()  # of the forward call under way
        self.tracer.given = lambda: [view for view in self.open[-1].given if view.buffer is not None] if self.open else []

    def __enter__(self):
        for name in GRADIENTS:
            self.stack.callback(setattr, torch.autograd, name, getattr(torch.autograd, name))
            setattr(torch.autograd, name, no_gradients)
        if any(isinstance(module, torch.jit.ScriptModule) or type(module).__name__ == "OptimizedModule" for module in self.model.modules()):
            raise ValueError("a compiled model shows no operations: record the model that torch.compile or torch.jit was given")
        hooks = torch.nn.modules.module
        self.stack.enter_context(torch.inference_mode())
        for handle in (hooks.register_module_forward_pre_hook(self.begin), hooks.register_module_forward_hook(self.end),
                       self.model.register_forward_pre_hook(self.inputs, with_kwargs=True)):
            self.stack.callback(handle.remove)
        for name in ESCAPES:
            self.stack.callback(setattr, torch.Tensor, name, getattr(torch.Tensor, name))
            setattr(torch.Tensor, name, self.escape(name, getattr(torch.Tensor, name)))
        # flex_attention compiles itself, and refuses to under a recorder, unless told not to.
        flex = sys.modules.get("torch.nn.attention.flex_attention")
        if (own := getattr(flex, UNCOMPILED, None)) is not None:
            self.stack.callback(setattr, flex, UNCOMPILED, own)
            setattr(flex, UNCOMPILED, True)
        return self

    def __exit__(self, *_):
        self.tracing.close()  # a forward call that raised did not end
        self.stack.close()

    def escape(self, name, own):
        """Tells of a tensor that Python takes the values of, by another way than an operation."""
        def take(tensor, *args, **kwargs):
            if self.depth and not self.tracer.inside:
                (path, functions, file), line = self.scope()
                self.program.escapes[f"{name} in {path or self.file(file)}:{line}"] += 1
                if name == "tolist":
                    operation = Operation("tolist", [self.tracer.view(tensor)], {}, [], *self.tracer.place())
                    operation.scalar = own(tensor)
                    self.program.operations.append(operation)
                    return operation.scalar
            return own(tensor, *args, **kwargs)

        return take

    def scope(self):
        number, line = self.tracer.place()
        return next(scope for scope, at in self.program.scopes.items() if at == number), line

    def file(self, number):
        return list(self.program.files)[number].rsplit("/", 1)[-1]

    # -- modules --

    def inputs(self, _, args, kwargs):
        """What the model is given: an input by its name, or by its place."""
        if self.depth != 1:
            return
        self.start = len(self.program.operations)
        names = [*inspect.signature(self.model.forward).parameters][:len(args)]
        given = {**dict(zip(names, args)), **kwargs}
        step = len(self.program.steps)
        for name, value in given.items():
            if isinstance(value, torch.Tensor) and value.untyped_storage()._cdata not in self.tracer.by_storage:
                buffer = self.tracer.buffer_of(value)
                held = Tracer.whole(value, self.program.buffers[buffer])
                self.program.inputs[buffer] = (name if step == 0 else f"{name}@{step}", held)
                if value.dim() >= 2:
                    self.program.fed.add(buffer)
        self.tracing.enter_context(self.tracer)

    def begin(self, module, args):
        path = self.tracer.paths.get(id(module))
        if path is None:
            return
        if module is self.model:
            self.depth += 1
        if not self.depth:  # a part, called by itself
            return
        given = [self.known(tensor) for tensor in tensors_in(args) if has_memory(tensor)]
        self.open.append(Call(path, len(self.program.steps), len(self.program.operations), given))

    def known(self, tensor):
        """The view of a tensor that some operation made, or of an input."""
        return View.of(self.tracer.by_storage.get(tensor.untyped_storage()._cdata), tensor)

    def end(self, module, _, result):
        if id(module) not in self.tracer.paths or not self.open:
            return
        call = self.open.pop()
        call.end, call.gave = len(self.program.operations), [self.known(tensor) for tensor in tensors_in(result) if has_memory(tensor)]
        self.program.calls.append(call)
        if module is self.model:
            self.depth -= 1
            if self.depth == 0:
                self.tracing.close()
                self.finish_step(result)

    def finish_step(self, result):
        """One forward call is over: its taps are named by the graph, and written."""
        step = len(self.program.steps)
        logits = next(iter(tensors_in(getattr(result, "logits", None))), None)
        main = logits if logits is not None else next(iter(tensors_in(result)), None)
        output = self.known(main) if main is not None else None
        lengths = [value.shape[-1] for _, value in inputs_of(self.program, step) if value.dim() == 2 and not value.is_floating_point()]
        rows = main.shape[-2] if main is not None and main.dim() > 1 else 1
        tokens = rows if rows in lengths or not lengths else lengths[0]
        self.program.steps.append({"ops": [self.start, len(self.program.operations)], "tokens": tokens, "output": output})
        self.graph.read_step(step)
        named = name_taps(self.graph, step, logits is not None)
        returned = [tensor for tensor in outputs_of(result) if has_memory(tensor)]
        outputs = name_outputs(self.graph, [self.known(tensor) for tensor in returned], output, named)
        for tap in sorted(named + [tap for tap, _ in outputs if tap.operation is not None], key=lambda tap: tap.operation):
            tensor = self.tracer.value(tap.operation, tap.view)
            self.program.taps.append({"tap": tap.name, "step": step, "op": tap.operation, "v": tap.view})
            self.write(tap.name, tensor if tensor.is_floating_point() else tensor.float())
        for tap, number in outputs:
            if tap.operation is None:
                self.write(tap.name, in_numbers(returned[number]))
        self.tracer.forget()


def no_gradients(*_, **__):
    raise RecordError("a backward of a recorded forward: a model is recorded in inference mode, in which no gradients are kept. Record a forward by itself, and train "
                      "on another one outside of the `with`; or let hooks record (program=False), which leave gradients as they are")


def has_memory(tensor):
    """Whether a tensor lies in memory: what vmap gives does not."""
    try:
        return tensor.untyped_storage() is not None
    except (NotImplementedError, RuntimeError):
        return False


def inputs_of(program, step):
    """The inputs of a step: name and value."""
    for name, value in program.inputs.values():
        plain, _, at = name.partition("@")
        if int(at or 0) == step:
            yield plain, value


def tensors_in(value):
    """Every tensor in what a module is given or gives."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_in(item)
