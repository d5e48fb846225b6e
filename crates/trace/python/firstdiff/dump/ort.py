"""Writes a firstdiff dump of a local ONNX file: every value that ONNX Runtime computes.

    python -m firstdiff.dump onnx MODEL.onnx -o DIR --tokens 1,403,407
    firstdiff compare DIR my_engine_dump/

MODEL.onnx is a language model that takes token ids, with its weights in it or beside it. Nothing is ever fetched from a network. Needs the packages onnx and
onnxruntime; torch is not needed.

What is written: DIR/dump.json and one .npy for every value of floats that the graph computes from its inputs, without its batch axis. The graph runs as it is
in the file: ONNX Runtime's own rewriting, which takes values away, is off. Step 0 is the prompt; --decode needs inputs and outputs for past keys and values.

How a value is called: where exporters left the path of the module that made it (torch.onnx in `pkg.torch.onnx.name_scopes`, older ones in the node's name,
`/model/layers.0/mlp/up_proj/MatMul`), and the module has a name of Hugging Face's, what that module alone gives is the tap: `layers.0.ffn_up`. The logits are
called so where an output is. Every other value keeps its own name; `firstdiff align` proposes which taps these are, from their values. --names as-given: all.

The inputs that are known: input_ids, attention_mask (ones), position_ids, cache_position, token_type_ids (zeros), past keys and values (empty at first),
use_cache_branch. A model that wants others is refused, and so are values inside of If, Loop and Scan: they are not seen, and a line says so.
"""

import argparse
import ast
import os
import re
from pathlib import Path

from .files import Folder, Refused, count, exit_code, ids, say

NAME, VERSION = "firstdiff.dump onnx", "0.1.0"
SCOPES = "pkg.torch.onnx.name_scopes"
BESIDE = {"attention_mask", "position_ids", "cache_position"}  # inputs that are no values of tokens
COUNTS = {"Shape", "Size", "ConstantOfShape"}
SAME = {"Cast", "Identity", "Dropout"}
INNER = {"If", "Loop", "Scan"}
QUANTISED = {"DequantizeLinear", "MatMulInteger", "MatMulNBits", "DynamicQuantizeLinear", "QLinearMatMul", "GatherBlockQuantized"}
FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)"}
NUMPY = {"tensor(float)": "float32", "tensor(float16)": "float16", "tensor(double)": "float64", "tensor(int64)": "int64", "tensor(int32)": "int32", "tensor(bool)": "bool"}
KNOWN = "input_ids, attention_mask, position_ids, cache_position, token_type_ids, use_cache_branch and past keys and values"


# ---- the graph: which values are worth a look, and what are they called? ----


def path_of(node):
    """The module that a node is part of, as the exporter says, or None."""
    about = {prop.key: prop.value for prop in node.metadata_props}
    try:
        scopes = ast.literal_eval(about.get(SCOPES, "None"))
    except (ValueError, SyntaxError):
        scopes = None
    if isinstance(scopes, list) and len(scopes) > 1:
        return str(scopes[-2])  # the last is the operation
    return node.name.strip("/").rpartition("/")[0].replace("/", ".") if node.name.startswith("/") else None


def computed_values(graph):
    """The values that follow from the graph's inputs, in order."""
    stored = {tensor.name for tensor in graph.initializer}
    known, found = {value.name for value in graph.input} - stored, []
    for node in graph.node:
        if known.isdisjoint(node.input) and node.op_type not in INNER:
            continue
        names = [name for name in node.output if name]
        known.update(names)
        found += names
    return found


def stream_of(graph):
    """The values that follow from the values of tokens: not from their number, nor from masks and positions."""
    found = {value.name for value in graph.input} - BESIDE
    for node in graph.node:
        if node.op_type not in COUNTS and not found.isdisjoint(node.input):
            found.update(node.output)
    return found


def module_taps(graph, floats, outputs):
    """The taps that modules of Hugging Face's names give and read: by the value's name. A module that hands on several values, or none, gives none.
    `floats`: values of floats. `outputs`: the graph's own, without keys and values."""
    from firstdiff.model import ATTENTION, Watching

    paths, makers, readers, floats = [path_of(node) for node in graph.node], {}, {}, stream_of(graph) & floats
    for at, node in enumerate(graph.node):
        makers.update(dict.fromkeys((name for name in node.output if name), at))
        for name in node.input:
            readers.setdefault(name, []).append(at)
    for at in reversed(range(len(paths))):  # what an exporter adds on the way has no path: it is a part of what alone reads it
        around = {paths[reader] for name in graph.node[at].output for reader in readers.get(name, ())}
        if paths[at] is None and len(around) == 1:
            paths[at] = around.pop()
    inside = {}
    for at, path in enumerate(paths):
        parts = path.split(".") if path else []
        for end in range(1, len(parts) + 1):
            inside.setdefault(".".join(parts[:end]), set()).add(at)
    named, taps = dict.fromkeys(inside), {}
    for path, nodes in inside.items():
        read, gave = Watching.taps_of(None, path, named)
        given = {name for at in nodes for name in graph.node[at].input if name in floats and makers.get(name) not in nodes}
        made = {name for at in nodes for name in graph.node[at].output
                if name in floats and (name in outputs or any(reader not in nodes for reader in readers.get(name, ())))}
        for tap, values in [*((tap, given) for tap in read), (gave, made)]:
            if tap and len(values) == 1:
                taps.setdefault(tap, set()).update(values)
    for at, node in enumerate(graph.node):  # the softmax of a layer whose output a product reads as it is
        attention = ATTENTION.fullmatch(paths[at] or "") if node.op_type == "Softmax" and floats.issuperset(node.input) else None
        after = readers.get(node.output[0], [])
        while len(after) == 1 and graph.node[after[0]].op_type in SAME:
            after = readers.get(graph.node[after[0]].output[0], [])
        if attention and len(after) == 1 and graph.node[after[0]].op_type == "MatMul":
            taps.setdefault(f"{attention[1]}.scores", set()).add(node.input[0])
            taps.setdefault(f"{attention[1]}.probs", set()).add(node.output[0])
    named = {}
    for tap, values in taps.items():
        if len(values) == 1:
            named.setdefault(next(iter(values)), []).append(tap)
    return named


def precision_of(graph):
    """What the weights are stored as; None of quantised ones."""
    if any(node.op_type in QUANTISED for node in graph.node):
        return None
    size = {1: 0, 10: 0, 16: 0}  # elements in f32, f16 and bf16
    for tensor in graph.initializer:
        if tensor.data_type in size:
            elements = 1
            for extent in tensor.dims:
                elements *= extent
            size[tensor.data_type] += elements
    return {1: "f32", 10: "f16", 16: "bf16"}[max(size, key=size.get)] if any(size.values()) else None


# ---- the run ----


class Model:
    """A session in which every value is an output."""

    def __init__(self, path, threads):
        import onnx
        import onnxruntime

        if not path.is_file():
            raise Refused(f"{path}: no such file (models are local files; nothing is downloaded)")
        try:
            model = onnx.load(path, load_external_data=False)
        except Exception as error:  # of protobuf's, in all its kinds
            raise Refused(f"{path}: no ONNX file ({first_line(error)})") from None
        graph = self.graph = model.graph
        if not graph.node:
            raise Refused(f"{path}: no ONNX file, or one without a node")
        if hidden := sorted({node.op_type for node in graph.node if node.op_type in INNER}):
            say(f"warning: values inside of {', '.join(hidden)} are not seen")
        self.precision, self.own = precision_of(graph), [value.name for value in graph.output]
        taken = set(self.own)
        graph.output.extend(onnx.ValueInfoProto(name=name) for name in computed_values(graph) if name not in taken)
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        options.intra_op_num_threads = threads
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.resolve().parent))
        try:
            self.session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # of ONNX Runtime's own, one class a status
            raise Refused(f"{path}: ONNX Runtime does not load it: {first_line(error)}") from None
        self.inputs = {value.name: value for value in self.session.get_inputs()}
        types = {value.name: value.type for value in self.session.get_outputs()}
        self.floats = [name for name, kind in types.items() if kind in FLOATS]
        self.unseen = [name for name, kind in types.items() if kind == "tensor(bfloat16)"]
        self.past = [name for name in self.inputs if re.match(r"past|cache_(?!position)", name)]
        self.present = [name for name in self.own if re.match(r"present|new_cache|out_cache", name)]
        self.kept = None

    def feed(self, tokens, before):
        """The inputs of a step: `before` positions are in the cache."""
        import numpy as np

        count, feed = len(tokens), {}
        plain = {
            "input_ids": lambda: np.array([tokens]), "attention_mask": lambda: np.ones((1, before + count)), "position_ids": lambda: np.arange(before, before + count)[None],
            "token_type_ids": lambda: np.zeros((1, count)), "cache_position": lambda: np.arange(before, before + count),
            "use_cache_branch": lambda: np.array([before > 0]),
        }
        if strange := [name for name in self.inputs if name not in plain and name not in self.past]:
            raise Refused(f"the model wants {', '.join(strange)}; what can be given is {KNOWN}")
        if "input_ids" not in self.inputs:
            raise Refused(f"the model has no input called input_ids (it has {', '.join(self.inputs) or 'none'})")
        for name, value in self.inputs.items():
            array = self.kept[name] if self.kept and name in self.past else self.empty(value) if name in self.past else plain[name]().astype(NUMPY.get(value.type))
            if len(value.shape) != array.ndim:
                raise Refused(f"the model's input {name} has the axes {value.shape}; axes {list(array.shape)} can be given")
            if name not in self.past and any(isinstance(due, int) and due != extent for due, extent in zip(value.shape, array.shape)):
                raise Refused(f"the model's input {name} has the fixed shape {value.shape}, and {list(array.shape)} is to be given: give as many tokens, or export it with "
                              "dynamic axes")
            feed[name] = array
        return feed

    def empty(self, value):
        """Past keys or values before there are any: their axis of positions is the last one but one that is not fixed."""
        import numpy as np

        shape = [extent if isinstance(extent, int) else None for extent in value.shape]
        if len(shape) != 4 or any(extent is None for extent in (shape[1], shape[3])) or shape[2] is not None:
            raise Refused(f"the model's input {value.name} has the axes {value.shape}; empty keys and values can be given as [batch, heads, positions, width] "
                          "with fixed heads and width")
        return np.zeros((1, shape[1], 0, shape[3]), NUMPY.get(value.type, "float32"))

    def run(self, tokens, before):
        """Every value of floats of one step."""
        wanted = list(dict.fromkeys([*self.floats, *self.present]))
        try:
            values = dict(zip(wanted, self.session.run(wanted, self.feed(tokens, before))))
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"ONNX Runtime failed: {first_line(error)}") from None
        if self.past and len(self.past) == len(self.present):
            self.kept = dict(zip(self.past, (values[name] for name in self.present)))
        return {name: values[name] for name in self.floats}


def first_line(error):
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def logits_name(model):
    """The output that is the logits: the one of that name, or the only one."""
    own = [name for name in model.own if name in model.floats and name not in model.present]
    return "logits" if "logits" in own else own[0] if len(own) == 1 else None


# ---- the command ----


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL.onnx", help="a local ONNX file")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="the dump to write")
    parser.add_argument("--tokens", type=ids, required=True, metavar="1,403,..", help="ids of the prompt. Use 8 or more: position 0 hides RoPE, mask and GQA mistakes")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--decode", type=count, default=0, metavar="N", help="then N greedy steps with the KV cache")
    more.add_argument("--decode-tokens", type=ids, metavar="5,9,..", help="then one step for each of these ids, as the engine under test was fed")
    parser.add_argument("--names", choices=["taps", "as-given"], default="taps", help="as-given: every value under its own name (default: taps, where modules say them)")
    parser.add_argument("--taps", metavar="GLOB[,GLOB]", help="only these, e.g. 'layers.0.*,logits'. Default: all")
    parser.add_argument("--threads", type=count, default=os.cpu_count() or 1, metavar="N", help="threads. Default: all cores")
    parser.add_argument("--force", action="store_true", help="replace DIR if it holds a dump")
    parser.add_argument("--version", action="version", version=f"{NAME} {VERSION}")
    return parser.parse_args()


def dump(args):
    with Folder(args.out, [], args.force) as out:
        import onnxruntime

        import firstdiff

        model = Model(args.model, args.threads)
        steps, fixed = len(args.decode_tokens or []) or args.decode, args.decode_tokens or []
        if steps and (not model.past or len(model.past) != len(model.present)):
            raise Refused(f"the model has {len(model.past)} inputs for past keys and values and {len(model.present)} outputs of them: it has no decode steps")
        logits = logits_name(model)
        names = {}
        if args.names == "taps":
            names = module_taps(model.graph, set(model.floats), set(model.own) - set(model.present))
            names |= {logits: ["logits"]} if logits is not None else {}
        (out.folder / "dump.json").unlink()
        recording = firstdiff.Recording(out.folder, asked={"FIRSTDIFF_TAPS": args.taps or "*"})
        about = {"producer": {"name": NAME, "version": VERSION, "onnxruntime": onnxruntime.__version__}, "model": args.model.name, "tokens": args.tokens,
                 "precision": model.precision}
        recording.meta.update({key: value for key, value in about.items() if value})
        if model.unseen:
            say(f"warning: {len(model.unseen)} values in bf16, which ONNX Runtime does not give to Python: not recorded")
        now, before, decoded = args.tokens, 0, []
        for step in range(steps + 1):
            values = model.run(now, before)
            say(f"step {step} of {steps}: {len(now)} token{'s' * (len(now) > 1)}")
            recording.step, recording.fed = step, len(now)
            for name, value in values.items():
                if value.ndim and value.size and name not in model.present:
                    for tap in names.get(name, [name]):
                        write(recording, tap, value, len(now))
            before += len(now)
            if step < steps:
                if not fixed and logits is None:
                    raise Refused("no output is called logits, so nothing can be decoded: give --decode-tokens")
                now = [fixed[step] if fixed else int(values[logits][0, -1].argmax())]
                decoded += now
                recording.meta["decode_tokens"] = decoded
        if not recording.entries:
            raise Refused("no tap matches --taps: nothing to write")
        recording.finish()
        out.place()
        taps = len({tap for tap, _ in recording.entries if firstdiff.TAP.fullmatch(tap)})
        say(f"{out.out}: {len(recording.entries)} tensors, {taps} names of taps" + (f", decoded {','.join(map(str, decoded))}" if decoded else ""))


def write(recording, name, value, tokens):
    """One value, without its batch axis."""
    value = value[0] if value.ndim > 2 and value.shape[0] == 1 else value
    last = name == "logits" and value.shape[0] == 1 and tokens > 1
    recording.write(name, value, rows="last" if last else None)


def main():
    return exit_code(lambda: dump(arguments()), "onnx onnxruntime")
