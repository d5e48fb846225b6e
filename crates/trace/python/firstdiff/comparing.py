"""Compares two runs: `compare` takes each as a dump, a dict of arrays or a PyTorch model, and calls the command."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import firstdiff

from . import is_model
from .command import REFUSED, CompareError, run
from .result import Result

SCHEMA = 2  # of the command's reports


def compare(reference, candidate, *, inputs=None, profile=None, cache=None, noise=None, model=None, weights=None, tokens=None, decode_tokens=None, rows=None,
            taps=None, map=None, dtype=None, sequence=None, partial=False, require=None, fail_on_unchecked=None, seconds=20.0):
    """Compares a candidate with its reference, and gives a `Result`. What cannot be compared raises `CompareError`.

    Each of `reference`, `candidate` and `noise` is one of

    - a path: a dump, or any file or pattern that the command reads;
    - a dict of names and arrays (NumPy's or torch's), in the order in which they are computed; a key may be (name, step), step 0 being the prompt;
    - a PyTorch model, which is run once on `inputs`, in eval mode and without gradients, and left as it was. `inputs` are token ids, any tensor that is its
      first argument, or a dict of keyword arguments. Every operation is recorded, so a difference is explained from the model itself.

    `profile` (exact, f32, f16, bf16, ggml), `cache`, `model`, `weights`, `tokens`, `decode_tokens`, `rows`, `taps`, `map`, `dtype`, `sequence` and `partial`
    are the command's options (`firstdiff compare --help`). Lists of numbers and of patterns may be lists.

    `require`: patterns of the taps that must have been compared, else the result has not passed. Without it that is every tap, unless `fail_on_unchecked` is
    False. `seconds`: how long each kind of search for the cause may take, where a model or a recorded program is at hand; 0 seeks none.

    Arrays and recordings are written into a temporary folder (TMPDIR says where), and removed.
    """
    if inputs is not None and not any(is_model(side) for side in (reference, candidate, noise)):
        raise TypeError("inputs are for a PyTorch model, and no side is one")
    reading = {"profile": profile, "cache": cache, "tokens": tokens, "decode-tokens": decode_tokens, "rows": rows, "map": map, "dtype": dtype,
               "sequence": sequence, "partial": partial}
    with tempfile.TemporaryDirectory(prefix="firstdiff-") as temporary:
        work = Path(temporary)
        paths = [path_of(side, work / name, inputs) for name, side in (("reference", reference), ("candidate", candidate))]
        pair = {**reading, "model": model, "noise": None if noise is None else path_of(noise, work / "noise", inputs)}
        strict = require is None if fail_on_unchecked is None else fail_on_unchecked
        found = ask("compare", paths, work, {**pair, "taps": taps, "require": require, "fail-on-unchecked": strict})
        found.strict = strict
        source = model if model is not None else paths[0] if has_program(paths[0]) else None
        if found.verdict == "diverged" and seconds > 0 and source is not None:
            if weights is None and is_model(reference) and source == paths[0]:
                weights = reference
            explain(found, source, paths, work, {**reading, "seconds": seconds}, None if taps else {**pair, "seconds": seconds}, weights)
    return found


def ask(command, paths, work, options):
    """Carries out a command that writes a report and a page."""
    report, page = work / f"{command}.json", work / f"{command}.html"
    code, screen, error = run(command, *switches({**options, "json": report, "html": page}), "--", *paths)
    result = None
    if report.exists():
        found = json.loads(report.read_text(encoding="utf-8"))
        if found.get("schema") != SCHEMA:
            raise CompareError(f"the command writes reports of schema {found.get('schema')}, and this package reads {SCHEMA}: they are of different versions")
        result = Result(code, found, screen, page.read_text(encoding="utf-8") if page.exists() else "")
    if code == REFUSED or result is None:
        raise CompareError(error or f"firstdiff {command} wrote no report", result)
    return result


def explain(found, source, paths, work, reading, pair, weights):
    """Adds the cause to a result, and to its page, where that is of all taps (`pair`). A cause that cannot be sought leaves the result as it is, and `no_cause`
    says why."""
    try:
        if is_model(weights):
            weights = save_weights(weights, work / "weights.safetensors")
        if pair is None:
            found.explanation = ask("explain", [source, paths[1]], work, {**reading, "weights": weights}).report
            return
        page, report = work / "report.html", work / "report.json"
        code, _, error = run("report", *switches({**pair, "weights": weights, "output": page, "json": report}), "--", *paths)
        if code == REFUSED:
            raise CompareError(error)
        told = json.loads(report.read_text(encoding="utf-8"))
        found.explanation, found.no_cause = told["explained"], told["no_cause"]
        found.html = page.read_text(encoding="utf-8")
    except CompareError as error:
        found.no_cause = str(error)


def switches(options):
    """Options as the command takes them. A value stands in one word with its name: no value is ever taken for an option."""
    for name, value in options.items():
        if value is True:
            yield f"--{name}"
        elif value is not None and value is not False:
            yield f"--{name}={text_of(value)}"


def text_of(value):
    """A path, a number, a text, or a list of them."""
    if isinstance(value, (str, os.PathLike)):
        return os.fspath(value)
    value = value.tolist() if hasattr(value, "tolist") else value
    return ",".join(map(str, value)) if isinstance(value, (list, tuple, range)) else str(value)


def has_program(path):
    return (Path(path) / "program.json").is_file()


# ---- what stands on a side ----


def path_of(side, folder, inputs):
    """Where the dump of a side is; it is written into `folder` where the side is none."""
    if isinstance(side, (str, os.PathLike)):
        return os.fspath(side)
    if isinstance(side, Mapping):
        write_arrays(side, folder)
    elif is_model(side):
        run_model(side, folder, inputs)
    else:
        raise TypeError(f"{type(side).__name__}: a side is a path, a dict of names and arrays, or a PyTorch model"
                        + ("; the tensors of a port of plain functions are given as a dict" if callable(side) else ""))
    return os.fspath(folder)


def write_arrays(arrays, folder):
    recording = firstdiff.Recording(folder, asked={})
    recording.told_rows = True  # of these arrays nobody counts the tokens of a step
    for key, array in arrays.items():
        tap, recording.step = key if isinstance(key, tuple) else (key, 0)
        if not isinstance(tap, str) or not isinstance(recording.step, int):
            raise TypeError(f"{key!r}: a key is a name, or a name and the number of a step")
        try:
            recording.write(tap, array)
        except ValueError as error:
            raise CompareError(str(error)) from None
    recording.finish()


def run_model(model, folder, inputs):
    if inputs is None:
        raise TypeError("a PyTorch model needs inputs: token ids, or a dict of keyword arguments")
    import torch

    from .model import Watching

    device = next((parameter.device for parameter in model.parameters()), "cpu")
    placed = lambda value: value.to(device) if isinstance(value, torch.Tensor) else value
    args, kwargs = [], {}
    if isinstance(inputs, Mapping):
        kwargs = {name: placed(value) for name, value in inputs.items()}
    else:
        ids = torch.as_tensor(inputs)
        args = [placed(ids[None] if ids.dim() == 1 and not ids.is_floating_point() else ids)]
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        with torch.no_grad(), Watching(model, folder, "", True, asked={}):
            model(*args, **kwargs)
    finally:
        for module in training:
            module.training = True


def save_weights(model, path):
    """The weights that a model has now, under the names that its program has for them."""
    try:
        from safetensors.torch import save_file
    except ModuleNotFoundError:
        raise CompareError("to explain a model in memory its weights must be written down: pip install safetensors") from None
    save_file({name: tensor.detach().cpu().clone(memory_format=sys.modules["torch"].contiguous_format) for name, tensor in model.state_dict().items()}, path)
    return path
