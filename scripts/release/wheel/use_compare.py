"""`firstdiff.compare` on folders, dicts and files, and what its result gives. Run by test_wheel.py: use_compare.py FIXTURES pandas|plain"""

import html
import json
import os
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from unittest import mock

import numpy as np
from checks import check, end, raises

import firstdiff

FIXTURES, has_pandas = Path(sys.argv[1]), sys.argv[2] == "pandas"
GOLDEN, FAULTY, RIGHT = FIXTURES / "golden/llama-torch", FIXTURES / "faulty/llama-rope-pairing", FIXTURES / "right/llama-numpy.npz"
FOREIGN = "\x1b[31m'\"></iframe><script>alert(1)</script>&quot;\u202e"


class Outside(HTMLParser):
    """The tags that a browser sees outside the frame, and the attributes of the frame."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.frame = [], {}
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        if tag == "iframe":
            self.frame = dict(attributes)


def folders():
    result = firstdiff.compare(GOLDEN, FAULTY)
    check("a wrong dump", result.verdict == "diverged" and not result.parity and not result.passed and result.exit_code == 1, repr(result))
    check("where it begins", result.first_divergence["tap"] == "layers.0.q_rope" and "first divergence: layers.0.q_rope" in str(result), str(result))
    check("no cause without the model", result.findings == [] and result.explanation is None)
    result = firstdiff.compare(GOLDEN, str(FAULTY), model=FIXTURES / "models/llama")
    check("with the model the cause, in the page too", [f["cause"] for f in result.findings] == ["rope-pairing"] and "rope-pairing" in result.html, result.no_cause)
    result = firstdiff.compare(GOLDEN, FAULTY, model=FIXTURES / "models/llama", seconds=0)
    check("no cause is sought in 0 seconds", result.explanation is None)
    result = firstdiff.compare(GOLDEN, FAULTY, model=FIXTURES / "models/llama", taps=["h0", "layers.0.q*"])
    check("of some taps the page is of these", "layers.0.k_rope" not in result.html and result.findings[0]["cause"] == "rope-pairing", repr(result))
    result = firstdiff.compare(GOLDEN, GOLDEN)
    check("a dump with itself", result.passed and result.parity and result.first_divergence is None and result.unchecked == [], repr(result))
    result = firstdiff.compare(GOLDEN, RIGHT, noise=GOLDEN)
    check("options are given on", result.report["noise"] is not None, result.report["noise"])
    return firstdiff.compare(GOLDEN, FAULTY)


def dicts():
    dump = json.loads((GOLDEN / "dump.json").read_text())
    whole = {(tap["tap"], tap["step"]): np.load(GOLDEN / tap["file"]) for tap in dump["taps"]}
    asked = {"tokens": dump["tokens"], "decode_tokens": np.array(dump["decode_tokens"])}
    right = {tap: array for (tap, step), array in whole.items() if step == 0}
    changed = lambda name, array: {**right, name: array}
    result = firstdiff.compare(GOLDEN, whole, **asked)
    check("a dict of names and steps, with its folder", result.passed, str(result))
    result = firstdiff.compare(right, right)
    check("a dict with itself", result.passed and result.parity, str(result))
    logits = right["logits"].copy()
    logits[3, 7] += 1
    result = firstdiff.compare(right, changed("logits", logits))
    check("one wrong value", result.verdict == "diverged" and result.first_divergence["tap"] == "logits" and not result.passed, str(result))
    logits[3, 7] = np.nan
    for what, pair in {"NaN": (right, changed("logits", logits)), "NaN on both sides": (changed("logits", logits), changed("logits", logits))}.items():
        result = firstdiff.compare(*pair)
        check(what, result.verdict == "diverged" and not result.passed and "NaN" in str(result), str(result))
    missing = {name: array for name, array in right.items() if name != "layers.1.q"}
    result = firstdiff.compare(right, missing)
    check("a missing name is not passed", not result.passed and result.parity and result.unchecked == ["layers.1.q"] and result.exit_code == 1
          and repr(result) == "<firstdiff.Result: not passed: 1 name not compared, parity in the rest>", repr(result))
    check("nor where it is required", not firstdiff.compare(right, missing, require="layers.1.q").passed)
    check("it is, where others are", firstdiff.compare(right, missing, require=["layers.*.h", "logits"]).passed)
    check("and where nothing is", firstdiff.compare(right, missing, fail_on_unchecked=False).passed)
    result = firstdiff.compare(right, changed("logits", right["logits"][-1:]))
    check("compared in part is not passed", not result.passed and result.unchecked == ["logits"], repr(result))
    check("another shape", raises(firstdiff.CompareError, "shape [11, 9]", lambda: firstdiff.compare(right, changed("logits", right["logits"][:, :9]))))
    check("nothing in common", raises(firstdiff.CompareError, "share no tap", lambda: firstdiff.compare(right, {"other": right["logits"]})))
    check("nothing at all", raises(firstdiff.CompareError, "", lambda: firstdiff.compare({}, {})))
    check("numbers that are no floats", raises(firstdiff.CompareError, "int64", lambda: firstdiff.compare(right, changed("logits", np.arange(9)))))
    with mock.patch.dict(os.environ, FIRSTDIFF_TAPS="h0", FIRSTDIFF_DIR="nowhere"):  # what an engine's recorder is told is not for these
        result = firstdiff.compare(right, changed("layers.0.q", right["layers.0.q"] * 2))
    check("the environment hides nothing", result.first_divergence["tap"] == "layers.0.q", repr(result))


def refused():
    for what, side, says in (("no such folder", "nowhere", "No such file"), ("a path like an option", "--help", "No such file")):
        check(what, raises(firstdiff.CompareError, says, lambda: firstdiff.compare(GOLDEN, side)))
    check("an option's value like an option", raises(firstdiff.CompareError, "--json=x", lambda: firstdiff.compare(GOLDEN, GOLDEN, profile="--json=x")))
    check("a pattern of nothing", raises(firstdiff.CompareError, "none of the taps", lambda: firstdiff.compare(GOLDEN, GOLDEN, require="mistyped")))
    check("an empty list of patterns", raises(firstdiff.CompareError, "", lambda: firstdiff.compare(GOLDEN, GOLDEN, require=[])))
    check("a side of another kind", raises(TypeError, "a side is", lambda: firstdiff.compare(GOLDEN, 3)))
    check("inputs without a model", raises(TypeError, "inputs", lambda: firstdiff.compare(GOLDEN, GOLDEN, inputs=[1])))
    with mock.patch.dict(os.environ, FIRSTDIFF_COMMAND="/nowhere/firstdiff"):
        check("a command that is not there", raises(firstdiff.CompareError, "FIRSTDIFF_COMMAND", lambda: firstdiff.compare(GOLDEN, GOLDEN)))


def shown(result):
    for what, result in {"fixtures": result, "foreign names": foreign()}.items():
        outside = Outside(result._repr_html_())
        check(f"{what}: nothing but text and the frame", outside.tags == ["p", "code", "iframe"], outside.tags)
        check(f"{what}: the frame is of its own origin, and the page whole in it",
              outside.frame["sandbox"] == "allow-scripts" and outside.frame["srcdoc"] == result.html and "Content-Security-Policy" in result.html)
        check(f"{what}: no tag of a name in the page", "<script>alert" not in result.html and "</iframe>" not in result.html)
        check(f"{what}: no control character in text", all(c.isprintable() or c == "\n" for c in f"{result!r}{result}".replace("\u202e", "")), repr(f"{result!r}{result}"))
        check(f"{what}: the line of it", html.unescape(result._repr_html_()).startswith(f"<p><code>{result.headline}"))
    check("no truth value", raises(TypeError, ".passed", lambda: bool(result)))
    with tempfile.TemporaryDirectory() as folder:
        saved = [result.save(Path(folder, name)) for name in ("a.html", "a.json", "a.txt")]
        check("save", [len(path.read_text()) > 100 for path in saved] == [True] * 3 and len(list(Path(folder).iterdir())) == 3)
        check("save, of another kind", raises(ValueError, ".html", lambda: result.save(Path(folder, "a.png"))))
    if has_pandas:
        table = result.to_dataframe()
        check("a table", len(table) == len(result.taps) and list(table.columns[:3]) == ["tap", "step", "status"] and str(table.nmse.dtype) == "float64", table.dtypes)
    else:
        check("no table without pandas", raises(ModuleNotFoundError, "pip install 'firstdiff[pandas]'", result.to_dataframe))


def foreign():
    random = np.random.default_rng(0)
    right = {"h0": random.normal(size=(5, 8)), f"layers.0.{FOREIGN}": random.normal(size=(5, 8)), "logits": random.normal(size=(5, 30))}
    return firstdiff.compare(right, {name: array + (name != "h0") for name, array in right.items()})


result = folders()
dicts()
refused()
shown(result)
end()
