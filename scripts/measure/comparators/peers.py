"""Runs each comparator on each pair of dumps. Called by compared.py in their environment: `python -m compared.peers PEER FOLDER RESULT`.

A peer is prepared (its own files are written, which is not timed) and then asked (reading and comparing, which is timed). It gives what it says in one form:
verdict pass, fail or error; the tap that it names first; whether it says that something was not compared. Each setting is its default, or stands in
a sentence of its documents, which SETTINGS of compared.py quotes.
"""

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
import time
import types
from pathlib import Path

import numpy as np
import torch

from scripts.measure.comparators.pairs import READS, label

AXES = {"h0": "t d", "q": "t h d", "k": "t h d", "v": "t h d", "q_norm": "t h d", "k_norm": "t h d", "q_rope": "t h d", "k_rope": "t h d",
        "qk": "h t n", "scores": "h t n", "probs": "h t n"}


def site(name):
    return name.partition("@")[0].rsplit(".", 1)[-1]


def entries(folder):
    return json.loads((folder / "dump.json").read_text())["taps"]


def tensor(folder, entry):
    x = np.load(folder / entry["file"])
    x = torch.from_numpy(x.view(np.uint16)).view(torch.bfloat16) if entry["dtype"] == "bf16" else torch.from_numpy(x)
    return x.long() if entry["tap"] == "picked" else x  # ids


def read(folder):
    """{tap or tap@step: tensor} in the order in which dump.json lists them."""
    return {label(e["tap"], e["step"]): tensor(folder, e) for e in entries(folder)}


def saved(folder, entry, path, wrap=lambda x: x):
    """Saves a tap as torch does. A file that was cut off in the dump is cut off here. The tensor, as it should have been."""
    try:
        x, whole = tensor(folder, entry), True
    except ValueError:
        x, whole = torch.zeros(entry["shape"]), False
    torch.save(wrap(x), path)
    if not whole:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return x


def says(verdict, first=None, left=False, note=""):
    return {"verdict": verdict, "first": first, "left": left, "note": note}


class Peer:
    def __init__(self, case):
        self.case, self.sides = case, (case["folder"] / "reference", case["folder"] / "candidate")

    def prepare(self):
        pass

    def sides_read(self):
        return tuple(read(side) for side in self.sides)


class AssertClose(Peer):
    """torch.testing.assert_close of two mappings. It sorts the names, so that each begins with its place in the reference."""
    how = {}

    def ask(self):
        expected, actual = self.sides_read()
        place = {name: i for i, name in enumerate([*expected, *(n for n in actual if n not in expected)])}
        named = lambda taps: {f"{place[name]:04} {name}": x for name, x in taps.items()}
        try:
            torch.testing.assert_close(named(actual), named(expected), **self.how)
        except AssertionError as e:
            said = str(e)
            if "The keys of the mappings do not match" in said:
                return says("refused", None, True, "other names")
            return says("fail", re.search(r"item \['\d+ (.*?)'\]", said)[1])
        return says("pass")


class AssertCloseAnyType(AssertClose):
    how = {"check_dtype": False}


class Loop(Peer):
    """A loop of ours over the names that both have, which ends at the first that is wrong and says which are missing."""

    def ask(self):
        expected, actual = self.sides_read()
        left = bool(expected.keys() - actual.keys())
        for name, x in expected.items():
            if name in actual and not self.agree(x, actual[name], site(name)):
                return says("fail", name, left)
        return says("pass", None, left)


class AssertAllclose(Loop):
    def agree(self, expected, actual, _):
        try:
            np.testing.assert_allclose(*(x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy() for x in (actual, expected)))
        except AssertionError:
            return False
        return True


class Transformers(Loop):
    def agree(self, expected, actual, _):
        return expected.shape == actual.shape and torch.allclose(expected, actual, atol=1e-3)


class Nmse(Loop):
    """The facts of test-backend-ops: NaN on either side fails; of infinities both must have the sign; then the NMSE, in the order that `>` gives."""
    products = 1e-7

    def agree(self, expected, actual, tap):
        if expected.numel() != actual.numel():
            return False  # it never sees two sizes: both come from one graph
        a, b = (x.float().numpy().ravel() for x in (expected, actual))
        if np.isnan(a).any() or np.isnan(b).any():
            return False
        infinite = np.isinf(a) | np.isinf(b)
        if (infinite & (a != b)).any():
            return False
        with np.errstate(all="ignore"):
            error = np.float64(np.square(a - b, dtype=np.float64).sum()) / np.square(a, dtype=np.float64).sum()
        product = tap in ("q", "k", "v", "qk", "context", "attn_out", "ffn_gate", "ffn_up", "ffn_out", "logits")
        return not error > (self.products if product else 1e-7)


class NmseByOp(Nmse):
    products = 5e-4


class Polygraphy(Peer):
    how = {}

    def ask(self):
        from polygraphy.comparator import Comparator, IterationResult, RunResults, SimpleCompareFunc
        from polygraphy.logger import G_LOGGER

        G_LOGGER.module_severity = G_LOGGER.CRITICAL
        warned, own = [], G_LOGGER.warning
        G_LOGGER.warning = lambda message, *a, **k: warned.append(str(message() if callable(message) else message))
        reference, candidate = self.sides_read()
        if all(x.dtype != torch.bfloat16 for taps in (reference, candidate) for x in taps.values()):  # NumPy arrays are its own form
            reference, candidate = ({name: x.numpy() for name, x in taps.items()} for taps in (reference, candidate))
        runs = RunResults([(name, [IterationResult(taps, runner_name=name)]) for name, taps in (("reference", reference), ("candidate", candidate))])
        try:
            result = Comparator.compare_accuracy(runs, compare_func=SimpleCompareFunc(**self.how))
        finally:
            G_LOGGER.warning = own
        left = any("skipping corresponding output" in w for w in warned)
        wrong = [name for outputs in next(iter(result[0].values())) for name, good in outputs.items() if not good]
        return says("fail", wrong[0], left) if wrong else says("pass", None, left)


class PolygraphyInfinities(Polygraphy):
    how = {"infinities_compare_equal": True}


class Sglang(Peer):
    """The comparator's own command line, in this process. Of sglang itself, which needs a GPU's packages, two modules that it only passes by are empty."""

    @staticmethod
    def load():
        base = next(Path(p) / "sglang" for p in sys.path if (Path(p) / "sglang").is_dir())
        for name, path in (("sglang", base), ("sglang.srt", base / "srt"), ("sglang.srt.managers", None)):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].__path__ = [str(path)] if path else []
        sys.modules["sglang.srt.managers.io_struct"] = empty = types.ModuleType("io_struct")
        empty.sock_recv = empty.sock_send = empty.wrap_as_pickle = None  # the dumper's server, which a comparison never starts
        from sglang.srt.debug_utils.comparator import entrypoint

        return entrypoint

    def dims(self, name, axes, candidate):
        told = dict(item.split("=") for item in self.case["dims"].split(",")) if candidate and self.case["dims"] else {}
        said = told.get(site(name)) or AXES.get(site(name), "t d" if axes in (2, 3) else None)
        return f"1 {said}" if "*" in told and said else said

    def prepare(self):
        self.own = self.case["folder"] / "sglang"
        shutil.rmtree(self.own, ignore_errors=True)
        for which, side in enumerate(self.sides):
            (self.own / side.name).mkdir(parents=True)
            for i, e in enumerate(entries(side)):
                tags = {"step": e["step"], "rank": 0, "dump_index": i + 1, "name": e["tap"]}
                path = self.own / side.name / ("___".join(f"{k}={v}" for k, v in tags.items()) + ".pt")
                dims = self.dims(e["tap"], len(e["shape"]), which)
                saved(side, e, path, lambda x: {"value": x, "meta": tags | ({"dims": dims} if dims else {})})

    def ask(self):
        report = self.own / "report.jsonl"
        arguments = ["--baseline-path", self.own / "reference", "--target-path", self.own / "candidate", "--report-path", report, *self.case["sglang"]]
        code = self.entry.run(self.entry.parse_args([str(a) for a in arguments]))
        records = [json.loads(line) for line in report.read_text().splitlines()]
        compared = [r for r in records if r["type"].startswith("comparison")]
        wrong = [r for r in compared if r["type"] in ("comparison_error",) or (r["type"] == "comparison_tensor" and not (r["diff"] or {}).get("passed"))]
        wrong += [r for r in compared if r not in wrong and r["errors"]]
        left = any(r["type"] == "comparison_skip" for r in compared)
        name = lambda r: label(r["name"], r["location"]["step"] or 0)
        if wrong and wrong[0]["type"] != "comparison_tensor":  # what it could not compare, by name
            return says("refused", None, True, name(wrong[0]))
        return says("fail" if code else "pass", name(wrong[0]) if wrong else None, left)


class Msprobe(Peer):
    """`msprobe compare` of two dump.json as its dumper writes them: every tap a module with what it reads and what it gives."""

    @staticmethod
    def load():
        os.environ.setdefault("MPLBACKEND", "Agg")
        import msprobe.msprobe as entry

        return entry

    def prepare(self):
        self.own = self.case["folder"] / "msprobe"
        shutil.rmtree(self.own, ignore_errors=True)
        for side in self.sides:
            data, out, stream, known = {}, self.own / side.name / "dump_tensor_data", None, {}
            out.mkdir(parents=True)
            for e in entries(side):
                stem, _, kind = e["tap"].rpartition(".")
                reads = [(f"{stem}.{r}" if stem else r, e["step"]) for r in READS.get(kind, [])] + [stream] * (kind in ("attn_norm", "h_attn", "final_norm"))
                op = f"Module.{e['tap']}.Tap.forward.{e['step']}"
                known[e["tap"], e["step"]] = item(saved(side, e, out / f"{op}.output.0.pt"), f"{op}.output.0.pt")
                reads = [known[r] for r in reads if r in known]
                for i, r in enumerate(reads):
                    os.link(out / r["data_name"], out / f"{op}.input.{i}.pt")
                data[op] = {"input_args": [r | {"data_name": f"{op}.input.{i}.pt"} for i, r in enumerate(reads)], "input_kwargs": {}, "output": [known[e["tap"], e["step"]]]}
                stream = (e["tap"], e["step"]) if kind in ("h", "h0") else stream
            (self.own / side.name / "dump.json").write_text(json.dumps(
                {"task": "tensor", "level": "L0", "framework": "pytorch", "dump_data_dir": str(out), "data": data}))

    def ask(self):
        out = self.own / "out"
        sys.argv = ["msprobe", "compare", "-tp", str(self.own / "candidate/dump.json"), "-gp", str(self.own / "reference/dump.json"), "-o", str(out)]
        self.entry.main()
        rows = list(csv.DictReader(open(next(out.glob("*.csv")), encoding="utf-8-sig")))
        words = lambda r: (r["NPU Name"] if r["NPU Name"] != "N/A" else r["Bench Name"]).split(".forward.")
        name = lambda r: label(words(r)[0].removeprefix("Module.").removesuffix(".Tap"), int(words(r)[1].split(".")[0]))
        left = any("N/A" in (r["NPU Name"], r["Bench Name"]) or r["Cosine"] == "unsupported" for r in rows)
        wrong = [r for r in rows if r["Result"] in ("error", "warning")]
        return says("fail", name(wrong[0]), left, wrong[0]["Err_message"]) if wrong else says("pass", None, left)


def item(x, file):
    """What msProbe's dumper says of a tensor."""
    f = x.float()
    return {"type": "torch.Tensor", "dtype": str(x.dtype), "shape": list(x.shape), "Max": f.max().item(), "Min": f.min().item(), "Mean": f.mean().item(),
            "Norm": f.norm().item(), "requires_grad": False, "data_name": file}


PEERS = {"polygraphy": Polygraphy, "polygraphy-inf": PolygraphyInfinities, "assert_close": AssertClose, "assert_close-any": AssertCloseAnyType,
         "assert_allclose": AssertAllclose, "transformers": Transformers, "nmse": Nmse, "nmse-op": NmseByOp, "sglang": Sglang, "msprobe": Msprobe}


def main():
    began = float(os.environ.get("COMPARED_BEGAN", time.time()))
    name, folder, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    kind = PEERS[name]
    if hasattr(kind, "load"):
        kind.entry = kind.load()
    elif name.startswith("polygraphy"):
        import polygraphy.comparator  # noqa: F401
    torch.set_num_threads(1)
    result = {"start": time.time() - began, "said": []}
    for case in json.loads((folder / f"{name}.json").read_text()):
        peer, noise = kind(case | {"folder": folder / case["folder"]}), io.StringIO()
        with contextlib.redirect_stdout(noise), contextlib.redirect_stderr(noise):
            try:
                peer.prepare()
                start = time.perf_counter()
                said = peer.ask()
            except (Exception, SystemExit) as e:  # what a comparator breaks on is its answer
                start = locals().get("start", time.perf_counter())
                said = says("error", None, False, f"{type(e).__name__}: {e}".splitlines()[0][:160])
        result["said"].append(said | {"seconds": time.perf_counter() - start})
    out.write_text(json.dumps(result))


if __name__ == "__main__":
    main()
