#!/usr/bin/env python3
"""Tests that recorded programs compute what PyTorch computed.
Architectures of transformers are recorded; then the files alone, without the model's code, are carried out by PyTorch's operations, and every tap must come out
bit for bit; and by Rust in f64, where every tap must be within f32's rounding.

    python scripts/suites/test_programs.py [NAME ..] [--evaluate BINARY] [--double] [--keep FOLDER] [--table FILE]
    python scripts/suites/test_programs.py [NAME ..] --dtypes

--double records the models in f64, and what they cast to f32 by themselves is f64 too: what Rust evaluates must then be within f64's rounding.
--dtypes records each in f32, bf16 and f16 instead: the names must be the same, with the same values but for rounding; and a decode step may have no name
that the prefill has not.
--table tries every other type of transformers too, and writes what was found of each, in f32 and in f64, to docs/measured/architectures.md: into the column of the version
of transformers that runs it.

The replay shares no code with the recorder: it reads program.json, program.safetensors and the weights.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.overrides import TorchFunctionMode

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites import program_escapes
from scripts.suites.architectures import ALL, build, others, run
import firstdiff

# What f64 and PyTorch's f32 may differ by in the deepest of these models, twenty times over.
F32_ROUNDING = 2e-9
# Of a tap that is one number: it may be the small rest of large terms. --double judges it.
ONE_NUMBER = 1e-7
# Of models in f64: what is left is the order of sums.
F64_ROUNDING = 1e-20
# Of one tap in 16 bits and in f32, in most rows: another value is further off.
SAME = 1e-2
# Which experts run, and which rows they have, is for rounding to choose.
CHOSEN = re.compile(r"\bexperts\.\d+\b")
# What evaluate prints of a tap: step, name, shape, NMSE.
TAP = re.compile(r"^(\d+) (\S+) +\[([\d, ]*)\].*? (\S+)$", re.MULTILINE)
DTYPES = {"f64": torch.float64, "f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16, "i64": torch.int64, "i32": torch.int32, "i16": torch.int16,
          "i8": torch.int8, "u8": torch.uint8, "bool": torch.bool, "c64": torch.complex64, "c128": torch.complex128}


class Replay:
    """The operations of a program.json, from its weights, constants and inputs."""

    def __init__(self, folder, weights):
        self.program = json.loads((folder / "program.json").read_text())
        self.memory, stored = {}, load_file(folder / "program.safetensors")
        self.sizes = {}
        for number, value in enumerate(self.program["values"]):
            self.reach(number, value[0], value[1], value[2] if len(value) > 2 else contiguous(value[1]), value[3] if len(value) > 2 else 0)
        self.walk(self.program["ops"])
        for number, name in self.program["weights"].items():
            self.put(int(number), weights[name])
        for number in [*self.program["constants"], *map(int, self.program["inputs"])]:
            self.put(number, stored[str(number)])

    def walk(self, item):
        """The extent of every buffer: as far as any view of it reaches."""
        if isinstance(item, dict) and "v" in item:
            number, shape, strides, *more = item["v"]
            dtype = more[1] if len(more) > 1 else self.program["values"][number][0]
            self.reach(number, dtype, shape, strides, more[0] if more else 0)
        elif isinstance(item, (dict, list)):
            for inner in item.values() if isinstance(item, dict) else item:
                self.walk(inner)

    def reach(self, number, dtype, shape, strides, offset):
        if 0 not in shape:
            end = offset + sum((extent - 1) * stride for extent, stride in zip(shape, strides)) + 1
            self.sizes[number] = max(self.sizes.get(number, 0), end * DTYPES[dtype].itemsize)

    def put(self, number, value):
        dtype, shape, *_ = self.program["values"][number]
        value = torch.view_as_complex(value) if DTYPES[dtype].is_complex else value
        self.view(number).copy_(value.reshape(shape))

    def view(self, operand):
        number, shape, strides, *more = operand["v"] if isinstance(operand, dict) else [operand, *self.canonical(operand)]
        dtype = DTYPES[more[1] if len(more) > 1 else self.program["values"][number][0]]
        if number not in self.memory:
            self.memory[number] = torch.UntypedStorage(self.sizes.get(number, 0))
        return torch.empty(0, dtype=dtype).set_(self.memory[number], more[0] if more else 0, shape, strides)

    def canonical(self, number):
        _, shape, *how = self.program["values"][number]
        return [shape, *(how or [contiguous(shape), 0])]

    def argument(self, item):
        if item is None or isinstance(item, list):
            return item and [self.argument(inner) for inner in item]
        if isinstance(item, dict) and "c" in item:
            return float(item["c"]) if item["c"] in ("inf", "-inf", "nan") else item["c"]
        if isinstance(item, dict) and "t" in item:
            return DTYPES[item["t"]]
        tensor = self.view(item)
        # As a parameter of a model: PyTorch takes another way through `matmul` for one.
        return tensor.requires_grad_() if str(item) in self.program["weights"] and tensor.is_floating_point() else tensor

    def carry_out(self, op):
        if op["o"] == "tolist":
            assert self.view(op["i"][0]).tolist() == op["x"]
            return
        function = torch.ops.aten if hasattr(torch.ops.aten, op["o"].partition(".")[0]) else torch.ops
        name = op["o"] if "." in op["o"] else op["o"] + ".default"
        for part in name.split("."):
            function = getattr(function, part)
        given = [self.argument(item) for item in op["i"]]
        result = function(*given, **{key: self.argument(item) for key, item in op.get("a", {}).items()})
        if "x" in op:
            assert result == op["x"], f"{op['o']} gave {result}, and {op['x']} as recorded"
        elif not op.get("w"):
            for operand, value in zip(op["y"], result if isinstance(result, (tuple, list)) else [result]):
                if operand is not None:
                    self.view(operand).copy_(value)

    def taps(self):
        """Every tap, right after its operation."""
        at = 0
        for tap in sorted(self.program["taps"], key=lambda tap: tap["op"]):
            for op in self.program["ops"][at:tap["op"] + 1]:
                self.carry_out(op)
            at = max(at, tap["op"] + 1)
            yield tap, self.view(tap["v"])


def contiguous(shape):
    strides, due = [], 1
    for extent in reversed(shape):
        strides.append(due)
        due *= max(extent, 1)
    return strides[::-1]


def evaluated(binary, folder, double):
    """The worst NMSE of any tap as Rust evaluates the program, and of how many taps the rows stand in another order. In f64."""
    allowed = F64_ROUNDING if double else F32_ROUNDING
    done = subprocess.run([binary, folder / "golden", folder / "model"], capture_output=True, text=True)
    found = re.search(r"(\d+) taps, worst NMSE (\S+), (\d+) with rows in another order, 0 not in the dump", done.stdout)
    if done.returncode or not found:
        raise AssertionError(f"evaluate: {(done.stderr or done.stdout).strip().splitlines()[-1]}")
    taps = [(tap.group(1, 2), float(tap[4]), set(tap[3].split(", ")) <= {"1", ""}) for tap in TAP.finditer(done.stdout)]
    first = next((tap for tap in taps if not tap[1] <= (max(allowed, ONE_NUMBER) if tap[2] and not double else allowed)), None)
    if first is not None or (len(taps) != int(found[1]) and not float(found[2]) <= allowed):
        where = f"; first {first[0][1]} in step {first[0][0]} by {first[1]}" if first else ""
        raise AssertionError(f"evaluated a tap is off by NMSE {found[2]}{where}")
    return found[2], found[3]


class AsDouble(TorchFunctionMode):
    """f64 wherever a model asks for f32, or for nothing."""

    def __enter__(self):
        torch.set_default_dtype(torch.float64)
        return super().__enter__()

    def __exit__(self, *error):
        torch.set_default_dtype(torch.float32)
        return super().__exit__(*error)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        function = torch.Tensor.double if function is torch.Tensor.float else function
        return function(*self.doubled(args), **self.doubled(kwargs or {}))

    def doubled(self, value):
        if isinstance(value, dict):
            return {key: self.doubled(item) for key, item in value.items()}
        if type(value) in (list, tuple):
            return type(value)(self.doubled(item) for item in value)
        return torch.float64 if value is torch.float32 else value


def runs_in_double(name):
    """Whether PyTorch runs the model in f64: it has some operations in fewer bits alone."""
    try:
        with AsDouble():
            run(build(name).double(), name)
    except RuntimeError as error:
        print(f"  left out {name}: PyTorch does not run it in f64: {str(error).splitlines()[0]}", flush=True)
        return False
    return True


def check(name, folder, binary, double, row):
    """Records, replays and evaluates one architecture; `row` takes what is found, as far as it goes."""
    torch.set_num_threads(1)
    if double and not runs_in_double(name):
        return
    model = build(name).double() if double else build(name)
    # A run writes into some of a model's buffers.
    weights = {key: value.detach().clone().contiguous() for key, value in model.state_dict(keep_vars=False).items()}
    (folder / "model").mkdir(parents=True)
    save_file(weights, folder / "model" / "model.safetensors")
    start = time.monotonic()
    with firstdiff.record(model, folder / "golden", program=True), AsDouble() if double else nullcontext():
        run(model, name)
    seconds = time.monotonic() - start
    replay = Replay(folder / "golden", weights)
    files = {(entry["tap"], entry["step"]): entry["file"] for entry in json.loads((folder / "golden" / "dump.json").read_text())["taps"]}
    size = (folder / "golden" / "program.json").stat().st_size / 1024
    row.update(operations=len(replay.program["ops"]), steps=len(replay.program["steps"]), size=size, taps={tap for tap, step in files if step == 0})
    with torch.inference_mode(), AsDouble() if double else nullcontext():  # what is made without a type has the same again
        for tap, value in replay.taps():
            recorded = np.load(folder / "golden" / files[tap["tap"], tap["step"]])
            value = value if value.is_floating_point() else value.to(torch.float64 if recorded.dtype == np.float64 else torch.float32)
            if not np.array_equal(recorded.view(np.uint8), value.contiguous().numpy().view(np.uint8)):
                raise AssertionError(f"{tap['tap']} step {tap['step']} is not what was recorded")
    row["replayed"] = True
    said = ""
    if binary:
        worst, reordered = evaluated(binary, folder, double)
        row["worst"] = worst
        said = f"; in Rust worst NMSE {worst}" + (f", {reordered} with rows in another order" if reordered != "0" else "")
    print(f"  ok   {name:20} {row['operations']:5} operations, {row['steps']} steps, {len(files):4} taps bit for bit; {size:.0f} kB, {seconds:.1f} s{said}",
          flush=True)


# ---- types ----


def recorded(name, dtype, folder):
    """Of each tap and step of an architecture in a type: the place in the model's text, and the value."""
    torch.set_num_threads(1)
    model = build(name).to(DTYPES[dtype])
    with firstdiff.record(model, folder, program=True):
        run(model, name)
    program, dump = (json.loads((folder / file).read_text()) for file in ("program.json", "dump.json"))
    entries, found = {(entry["tap"], entry["step"]): entry for entry in dump["taps"]}, {}
    for tap in program["taps"]:
        op, key = program["ops"][tap["op"]], (tap["tap"], tap["step"])
        value = np.load(folder / entries[key]["file"])
        if entries[key]["dtype"] == "bf16":
            value = (value.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        found[key] = (op["s"], op["l"]), value.astype(np.float64)
    return found


def distance(value, reference):
    """How far off the middle row is, as NMSE: where rounding turns a choice, that is of some rows. What masks is left out."""
    masked = ~(np.isfinite(value) & np.isfinite(reference) & (np.abs(value) < 3e4) & (np.abs(reference) < 3e4))
    rows = [np.where(masked, 0, side).reshape(len(side), -1) for side in (value, reference)]
    squares = (rows[1] ** 2).sum(1)
    return np.median(((rows[0] - rows[1]) ** 2).sum(1)[squares > 0] / squares[squares > 0]) if squares.any() else 0.0


def check_types(name, folder, row):
    """Whether f32, f16 and bf16 give the same names to the same values, and decode steps no others than the prefill."""
    try:
        found = {dtype: recorded(name, dtype, folder / dtype) for dtype in ("f32", "f16", "bf16")}
    except RuntimeError as error:
        if "dtype" not in str(error) and "scalar type" not in str(error):
            raise
        print(f"  left out {name}: PyTorch does not run it in 16 bits: {str(error).splitlines()[0]}", flush=True)
        return
    wrong, plain = [], found["f32"]
    for dtype, taps in found.items():
        own = {key for key in taps.keys() ^ plain.keys() if not CHOSEN.search(key[0])}
        wrong += [f"{tap} step {step} is {'only' if (tap, step) in taps else 'not'} in {dtype}" for tap, step in sorted(own)]
        later = {key for key in taps if (key[0], 0) not in taps and not CHOSEN.search(key[0])}
        wrong += [f"{tap} is in step {step} and not in the prefill, in {dtype}" for tap, step in sorted(later)]
        for key in sorted(taps.keys() & plain.keys()):
            place, value = taps[key]
            _, reference = plain[key]
            if CHOSEN.search(key[0]) and value.shape != reference.shape:
                continue
            apart = distance(value, reference) if value.shape == reference.shape else np.inf
            # bf16 rounds 8 times as coarsely as f16 does, and turns more choices: where it is too far off, both must come from one place.
            if not apart <= SAME and not (dtype == "bf16" and place == found["f16"].get(key, [None])[0]):
                wrong.append(f"{key[0]} step {key[1]} is another value in {dtype}: NMSE {apart:.1e}")
    if wrong:
        raise AssertionError(f"{len(wrong)} names: {'; '.join(wrong[:6])}")
    row["alike"] = True
    print(f"  ok   {name:20} {len(plain):4} taps alike in f32, f16 and bf16", flush=True)


# ---- the table ----

ATTENTION, SCORES, FEED_FORWARD = ["q", "k", "v", "context", "attn_out"], ["qk", "scores", "probs"], ["ffn_up", "ffn_act", "ffn_out"]


def lacking(taps):
    """Taps of the vocabulary that a layer could have, and no rule found, each with the number of layers; and why, where the other taps tell."""
    layers, lack = defaultdict(set), Counter()
    for tap in taps:
        if found := re.fullmatch(r"((?:.*\.)?layers\.\d+)\.(.*)", tap):
            layers[found[1]].add(found[2])
    if not layers:
        return "all: no list of layers that run one after the other"
    for found in layers.values():
        attends, mixes = "attn_out" in found or "q" in found, "mixer_out" in found
        due = [*(ATTENTION if attends or not mixes else []), "h"]
        fed = found.intersection(FEED_FORWARD) or "router_logits" in found
        due += ["ffn_out"] if "router_logits" in found else FEED_FORWARD if fed or not mixes else []
        due += [*SCORES, "attn_norm"] if attends else []
        due += ["h_attn", "ffn_norm"] if fed and (attends or mixes) else []
        lost = [tap for tap in due if tap not in found]
        if not found.isdisjoint(["context"]) and set(SCORES) <= set(lost):
            lost = [tap for tap in lost if tap not in SCORES] + ["qk, scores, probs (attention is one operation)"]
        if {"h_attn", "ffn_norm"} <= set(lost) and "attn_norm" not in lost:
            lost = [tap for tap in lost if tap not in ("h_attn", "ffn_norm")] + ["h_attn, ffn_norm (attention and feed-forward beside each other)"]
        if {"attn_norm", "ffn_norm"} <= set(lost) and ("h_attn" in found or "attn_post_norm" in found):
            lost = [tap for tap in lost if tap not in ("attn_norm", "ffn_norm")] + ["attn_norm, ffn_norm (norms stand behind)"]
        lack.update(lost)
    return "; ".join(f"{tap} in {count} of {len(layers)}" if count < len(layers) else tap for tap, count in lack.items())


TITLES = VERSIONS, LISTED, STOPPED = ["Versions", "Tried", "Not in the list"]
ABOUT = {
    VERSIONS: """*types*: how many were recorded, carried out again bit for bit by PyTorch's operations, and evaluated in Rust in f64; of how many that have a language model or an encoder.
*rows*: how many rows the table below has, and how many of them are within 1e-11 of the same model recorded in f64. *worst NMSE*: of the evaluation in Rust, against PyTorch's f32.
*kB*: the size of a program for each layer and forward call (median).""",
    LISTED: """*39+2*: the rules name 39 taps, and 2 more have the names of their modules. `*`: not within 1e-11 in f64, or not run in f64.

A row `type+image` has an image beside its tokens. Other types that take images or sounds get tokens alone: their rows are of the text layers. `type+grouped` and
`type+batched` carry all experts out in one operation, as transformers 5 does by default; other rows in a loop.

*without*: taps of the vocabulary that the layers do not have, in the newest version that runs. N: attn_norm and ffn_norm, as the norms stand behind. P: h_attn and ffn_norm, as attention
and feed-forward stand beside each other.""",
    STOPPED: """A small model could not be made of these by shrinking the default config, or it does not run so far. *evaluate*: recorded and carried out again, but not evaluated in
Rust.""",
}
# Reasons that many types have.
SHORT = {"attn_norm, ffn_norm (norms stand behind)": "N", "h_attn, ffn_norm (attention and feed-forward beside each other)": "P"}


def read_page(text):
    """The tables of docs/measured/architectures.md: by title, the rows by their first cell."""
    found = {}
    for title in TITLES:
        part = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
        lines = [[cell.strip() for cell in line.strip("|").split("|")] for line in part.splitlines() if line.startswith("| ")]
        found[title] = {first: rest for first, *rest in lines[1:]}
    return found


def write_page(found):
    versions = list(found[VERSIONS])
    heads = {VERSIONS: ["transformers", "PyTorch", "types", "rows", "worst NMSE", "kB"], LISTED: ["architecture", *versions, "without"], STOPPED: ["transformers", "types"]}
    text = """# Architectures

Does firstdiff follow the model that you port? Small random models of every type of transformers were recorded in f32 as [programs](../design/programs.md), a column for
each version of transformers. An empty cell: that version does not have the type, or the type is not in its list.

Written by `scripts/suites/test_programs.py --evaluate BINARY --table docs/measured/architectures.md`, which writes the column of the version that runs it.
"""
    for title in TITLES:
        head = heads[title]
        rows = "".join(f"| {' | '.join([first, *rest])} |\n" for first, rest in found[title].items())
        text += f"\n## {title}\n\n{ABOUT[title]}\n\n| {' | '.join(head)} |\n|{'---|' * len(head)}\n{rows}"
    return text


def table(rows, page):
    """The page with what this version of transformers gives; what it says of others stays."""
    found, version = read_page(page), transformers.__version__
    major = lambda name: int(name.split(".")[0])
    earlier = list(found[VERSIONS])
    versions = sorted({*(name for name in earlier if major(name) != major(version)), version}, key=major)
    place = {name: next((i for i, other in enumerate(earlier) if major(other) == major(name)), None) for name in versions}
    listed = {name: ["" if place[each] is None else cells[place[each]] for each in versions] for name, cells in found[LISTED].items()}
    without = {name: cells[-1] for name, cells in found[LISTED].items()}
    good, sizes, column = {name: row for name, row in rows.items() if "worst" in row}, [], versions.index(version)
    for cells in listed.values():
        cells[column] = ""
    for name, row in good.items():
        layers = len({layer[0] for tap in row["taps"] if (layer := re.match(r"(.*\.)?layers\.\d+", tap))})
        by_module = sum("/" in tap for tap in row["taps"])
        sizes.append(row["size"] / row["steps"] / max(layers, 1))
        exact = "double" in row and float(row["double"]) <= 1e-11
        cells = listed.setdefault(name, [""] * len(versions))
        cells[column] = f"{len(row['taps']) - by_module}+{by_module}{'' if exact else '*'}"
        if not any(cells[column + 1 :]):
            without[name] = lacking(row["taps"])
            for reason, letter in SHORT.items():
                without[name] = without[name].replace(reason, letter)
    types = [sum("+" not in name for name in names) for names in (good, rows)]
    exact = sum("*" not in listed[name][column] for name in good)
    known = {name: found[VERSIONS][earlier[place[name]]] for name in versions if name != version}
    worst = max((float(row["worst"]) for row in good.values()), default=0)
    known[version] = [torch.__version__, f"{types[0]} of {types[1]}", f"{len(good)}, {exact}", f"{worst:.1e}", f"{sorted(sizes)[len(sizes) // 2]:.1f}" if sizes else ""]
    stopped = {name: found[STOPPED].get(earlier[place[name]], [""]) for name in known if name != version}
    stopped[version] = [", ".join(f"{name} (evaluate)" if "replayed" in row else name for name, row in rows.items() if "worst" not in row)]
    return write_page({
        VERSIONS: {name: known[name] for name in versions},
        LISTED: {name: [*cells, without.get(name, "")] for name, cells in listed.items() if any(cells)},
        STOPPED: {name: stopped[name] for name in versions},
    })


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"architectures; all where none is named: {', '.join(ALL)}")
    parser.add_argument("--evaluate", metavar="BINARY", help="the example evaluate of crates/program: evaluates each program in Rust as well")
    parser.add_argument("--double", action="store_true", help="models in f64")
    parser.add_argument("--dtypes", action="store_true", help="compare names between types and steps instead")
    parser.add_argument("--keep", metavar="FOLDER", help="keep the models and dumps here")
    parser.add_argument("--table", metavar="FILE", help="write docs/measured/architectures.md; needs --evaluate")
    args = parser.parse_args()
    wrong, rows, names = [], {}, args.names or ALL
    with tempfile.TemporaryDirectory() as temporary:
        if not args.dtypes and not args.table:
            print(f"  ok   {program_escapes.check(Path(temporary) / 'escapes', Replay)} small models that do what no recorder sees, or only as one operation", flush=True)
        for name in [*names, *(others() if args.table else [])]:
            rows[name] = {}
            try:
                folder = Path(args.keep or temporary) / name
                if args.dtypes:
                    check_types(name, folder, rows[name])
                else:
                    check(name, folder, args.evaluate, args.double, rows[name])
                if args.table:
                    in_double = {}
                    with suppress(Exception):  # its row tells of what f32 showed
                        check(name, folder / "double", args.evaluate, True, in_double)
                    rows[name].update({"double": in_double["worst"]} if "worst" in in_double else {})
            except Exception as error:
                reason = str(error).strip().partition("\n")[0][:900 if args.dtypes else 160]
                rows[name]["reason"] = f"{type(error).__name__}: {reason}"
                if name not in names:
                    print(f"  -    {name:20} {rows[name]['reason']}", flush=True)
                else:
                    wrong.append(name)
                    print(f"FAIL   {name:20} {rows[name]['reason']}", flush=True)
    if args.table:
        page = Path(args.table)
        page.write_text(table(rows, page.read_text() if page.exists() else ""))
    done = sum("alike" in rows[name] or "replayed" in rows[name] for name in names if name not in wrong)
    found = "have the same names in f32, f16 and bf16" if args.dtypes else "recorded and carried out again bit for bit"
    print(f"{done} of {len(names)} architectures {found}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
