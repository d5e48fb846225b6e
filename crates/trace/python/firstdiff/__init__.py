"""Records dumps from Python, and compares two: one line for each tap, or one line for a PyTorch model; turned off, it costs one `if`.

    import firstdiff

    firstdiff.note(producer="my engine 1.2", precision="f32")   # also model, architecture, cache, qk_rows, rows
    firstdiff.tokens([1, 17, 42])                                # the prompt: step 0
    firstdiff.record(f"layers.{n}.q", q)                         # a NumPy array or a torch tensor, bf16 too; [T,H,d]
    firstdiff.next_step(23)                                      # before each decode step, with the token it is fed
    firstdiff.next_chunk([5, 6])                                 # before a step of several: a further chunk of the prompt
    firstdiff.finish()                                           # the dump is complete: dump.json says so from here on

    with firstdiff.record(model, "out"):                         # any PyTorch model: each forward call is a step; every operation
        model.generate(ids, max_new_tokens=4)                    # that it executes is recorded too; record() and note() work inside
    with firstdiff.record(model, "out", program=False):          # a PyTorch model of Hugging Face's names, by hooks alone
        model(ids)

    result = firstdiff.compare("golden", "out")                  # two dumps, dicts of arrays or PyTorch models (comparing.py)
    print(result), result.passed, result.first_divergence        # a notebook shows `result` as a page

FIRSTDIFF_DIR=out records into the folder out. Without it, and without a folder in the call, everything is off.
FIRSTDIFF_TAPS='layers.*.h,logits' records these taps only, FIRSTDIFF_STEPS=0,2-5 these steps only (0: the prompt), and
FIRSTDIFF_ROWS=last, or 0,3,7, these token positions of every step only (of taps in the vocabulary's shapes; others whole).
What cannot be recorded raises RecordError, a ValueError. Any thread may record.

Before the first tap a dump.json is written that says "complete": false; finish(), or the end of the `with`, replaces it. A process that is killed, or ends
without, an exception in the `with`, and a tap that could not be recorded leave false, and firstdiff never calls such a dump parity.
A name that is none of the vocabulary's is recorded as it is, and `firstdiff compare` takes a map of names. In the name of its file every byte but ASCII
letters, digits, '_', '-' and '.' is '%' and two hexadecimal digits; dump.json has the name itself.
"""

import atexit
import json
import os
import re
import sys
import threading
from pathlib import Path

__version__ = "0.1.0"
__all__ = ["CompareError", "RecordError", "Result", "compare", "finish", "is_on", "next_chunk", "next_step", "note", "record", "tokens"]

OUTER = "h0 final_norm logits".split()
INNER = ("attn_norm q k v q_norm k_norm q_rope k_rope qk scores probs context attn_out attn_post_norm h_attn ffn_norm ffn_gate "
         "ffn_up ffn_act router_logits router_probs ffn_out ffn_post_norm h").split()
SCORES, HEADED = {"qk", "scores", "probs"}, {"q", "k", "v", "q_norm", "k_norm", "q_rope", "k_rope"}  # [H,T,S] and [T,H,d]; else [T,D]
TAP = re.compile(rf"(?:{'|'.join(OUTER)}|layers\.(?:0|[1-9][0-9]{{0,8}})\.(?:{'|'.join(INNER)}))")
# What a note may be: keys and values that every reader of dump.json takes; None: any text, of `graph` a list of {tap, op, reads}.
NOTES = {"producer": None, "model": None, "architecture": None, "precision": {"exact", "f32", "f16", "bf16", "ggml"},
         "cache": {"f32", "f16"}, "qk_rows": {"half", "adjacent"}, "rows": {"all", "last"}, "graph": None}
DTYPES = {"float64": ("f64", "<f8"), "float32": ("f32", "<f4"), "float16": ("f16", "<f2"), "bfloat16": ("bf16", "<V2")}


class RecordError(ValueError):
    """Why a tap could not be recorded, in one line."""


class Recording:
    """A dump in the making. Every tap is whole under its final name, or not there."""

    def __init__(self, folder, asked=os.environ):
        self.folder = Path(folder)
        self.taps = asked.get("FIRSTDIFF_TAPS", "*")
        self.steps = asked.get("FIRSTDIFF_STEPS", "")
        self.wanted_step = step_list(self.steps)
        self.wanted_tap = tap_patterns(self.taps)
        self.rows = asked.get("FIRSTDIFF_ROWS", "")
        self.wanted_rows = row_list(self.rows)
        self.step, self.fed, self.entries, self.meta = 0, 1, {}, {}  # fed: tokens of the step, behind the prompt
        self.lock, self.pid, self.open, self.told_rows = threading.RLock(), os.getpid(), True, False
        self.complete, self.lost = None, []  # what dump.json says, once it is there; why taps could not be recorded
        self.folder.mkdir(parents=True, exist_ok=True)
        if any(f.name == "dump.json" or f.suffix == ".npy" for f in self.folder.iterdir()):
            raise RecordError(f"{self.folder}: already holds a dump; remove it, or record into another folder")

    def wants(self, tap):
        return self.open and bool(self.wanted_tap.fullmatch(tap)) and self.wanted_step(self.step)

    def write(self, tap, array, rows=None):
        """Records one tap. `rows`: "last" where it holds the last position only."""
        with self.lock:
            if not self.wants(tap):
                return
            try:
                self.put(tap, array, rows)
            except BaseException as error:  # whatever the engine does about it, a tap is missing
                self.lost.append(f"{error}" or type(error).__name__)
                raise

    def put(self, tap, array, rows):
        key, file = (tap, self.step), file_name(tap, self.step)
        if key in self.entries:
            raise RecordError(f"{tap}: recorded before in step {self.step}; call next_step between decode steps")
        if TAP.fullmatch(tap):
            if rows is None:
                array, rows = self.cut(tap, array)
                if rows == []:  # none of the positions asked for is in this step
                    return
            self.check_rows(tap, tuple(getattr(array, "shape", ())))
        shape, dtype, descr, data = plain(tap, array)
        if self.complete is not False:  # before the tap, so that there is none without
            self.tell(complete=False)
        self.replace(file, npy_header(shape, descr), data)
        entry = {"tap": tap, "step": self.step, "file": file, "shape": shape, "dtype": dtype}
        self.entries[key] = {**entry, "rows": rows} if rows else entry

    def tell(self, **how):
        """Writes dump.json, with what is known by now."""
        lines = ",\n    ".join(json.dumps(entry) for entry in self.entries.values())
        head = "".join(f"  {json.dumps(k)}: {json.dumps(v)},\n" for k, v in {"format": 1, **how, **self.meta}.items())
        self.replace("dump.json", f'{{\n{head}  "taps": [\n    {lines}\n  ]\n}}\n'.encode())
        self.complete = how["complete"]

    def positions(self):
        """How many tokens the step was fed, or 0: nobody said so, or a number for each sequence of a batch."""
        prompt = self.meta.get("tokens", [])
        return self.fed if self.step else 0 if is_batch(prompt) else len(prompt)

    def check_rows(self, tap, shape):
        """Tells, once, of a residual stream with more rows than the step has tokens. Fewer may be the rows that were kept."""
        tokens = self.positions()
        if self.told_rows or not tokens or tap.rsplit(".", 1)[-1] not in {"h0", "h", "h_attn"} or len(shape) != 2 or shape[0] <= tokens:
            return
        self.told_rows = True
        print(f"firstdiff: {tap}: {shape[0]} rows in step {self.step}, which was said to have {tokens} tokens; before a step of several "
              "call next_chunk(ids)", file=sys.stderr)

    def cut(self, tap, array):
        """The token positions that are asked for, and their list; the whole array and None where these are all, or cannot be told."""
        site, shape = tap.rsplit(".", 1)[-1], tuple(getattr(array, "shape", ()))
        axis = 1 if site in SCORES else 0
        tokens = self.positions()
        if len(shape) != (3 if site in SCORES | HEADED else 2) or shape[0] == shape[1] or (tokens and shape[axis] != tokens):
            return array, None
        if len(shape) == 3 and not tokens:  # heads may stand first
            return array, None
        kept = self.wanted_rows(shape[axis])
        if len(kept) == shape[axis]:
            return array, None
        return array[:, kept] if axis else array[kept], kept

    def replace(self, file, *parts):
        """Writes a file under a temporary name and renames it."""
        temporary = self.folder / f"{file}.{self.pid}.tmp"
        try:
            with open(temporary, "wb") as out:
                out.writelines(parts)
            os.replace(temporary, self.folder / file)
        finally:
            temporary.unlink(missing_ok=True)

    def pause(self):
        """What was recorded so far is all of it, as far as anybody knows; more may come."""
        with self.lock:
            if self.open and self.pid == os.getpid() and self.entries:
                self.tell(complete=not self.lost)

    def finish(self):
        with self.lock:
            if not self.open or self.pid != os.getpid():  # done, or a forked child
                return
            self.open = False
            self.tell(complete=not self.lost)
        if self.lost:
            raise RecordError(f"{len(self.lost)} could not be recorded, the first: {self.lost[0]}; dump.json says \"complete\": false")
        self.check_matched()

    def check_matched(self):
        if not self.entries and (self.taps != "*" or self.steps or self.rows):
            raise RecordError(f"nothing recorded matches FIRSTDIFF_TAPS='{self.taps}' FIRSTDIFF_STEPS='{self.steps}' "
                              f"FIRSTDIFF_ROWS='{self.rows}'")

    def abandon(self):
        """The recording ends, and nobody says that it is all: whether an exception ended the process early cannot be told in every case."""
        with self.lock:
            if not self.open or self.pid != os.getpid() or self.complete:
                return
            self.open = False
            if not self.entries:
                return self.check_matched()
            failed = self.lost or getattr(sys, "last_type", None) or sys.exc_info()[0]
            self.tell(complete=False, **({} if failed else {"ended_by_itself": True}))
        print(f"firstdiff: {self.folder}: not complete: it ended without finish()", file=sys.stderr)


# ---- names of files ----


def file_name(tap, step):
    """`layers.0.q.npy`, `layers.0.q.step3.npy`: bytes that may not be in a file's name are `%` and two hexadecimal digits, and so is a dot at the
    start, and the one of a name that itself ends like a step."""
    try:
        raw = tap.encode()
    except UnicodeEncodeError:
        raise RecordError(f"{tap!r}: a name that is not Unicode text") from None
    like_step = re.search(rb"\.step[0-9]*\Z", raw)
    dots = {0, like_step.start()} if like_step else {0}
    plain = lambda at, c: chr(c) if re.match(rb"[A-Za-z0-9_.-]", bytes([c])) and not (c == 0x2E and at in dots) else f"%{c:02X}"
    name = "".join(plain(at, c) for at, c in enumerate(raw))
    if not 0 < len(name) <= 200:
        raise RecordError(f"'{tap}': cannot be the name of a file, which needs 1 to 200 bytes")
    return f"{name}.step{step}.npy" if step else f"{name}.npy"


# ---- what the environment asks for ----


def tap_patterns(text):
    """Patterns separated by commas; `*` matches any run of characters, everything else itself."""
    globs = (".*".join(map(re.escape, pattern.strip().split("*"))) for pattern in text.split(","))
    return re.compile("|".join(f"(?:{glob})" for glob in globs), re.DOTALL)


def step_list(text):
    """`0,2-5` as a function of a step; no text: every step."""
    ranges = []
    for part in text.split(",") if text else ():
        found = re.fullmatch(r" *([0-9]+)(?:-([0-9]+))?", part)
        first, last = (int(found[1]), int(found[2] or found[1])) if found else (1, 0)
        if first > last:
            raise RecordError(f"FIRSTDIFF_STEPS='{text}' is no list of steps such as 0,2-5")
        ranges.append(range(first, last + 1))
    return lambda step: not ranges or any(step in r for r in ranges)


def row_list(text):
    """`last` or `0,3,7` as a function of a step's number of positions; no text, or `all`: every position."""
    if text in ("", "all"):
        return lambda positions: list(range(positions))
    if text == "last":
        return lambda positions: [positions - 1]
    if not re.fullmatch(r" *[0-9]+(?:, *[0-9]+)*", text):
        raise RecordError(f"FIRSTDIFF_ROWS='{text}' is neither last nor a list of positions such as 0,3,7")
    rows = sorted({int(row) for row in text.split(",")})
    return lambda positions: [row for row in rows if row < positions]


# ---- arrays ----


def is_torch(value):
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].Tensor)


def is_model(value):
    return "torch" in sys.modules and isinstance(value, sys.modules["torch"].nn.Module)


def plain(tap, array):
    """(shape, type in dump.json, type in the .npy, little-endian bytes) of a NumPy array or a torch tensor."""
    import numpy as np

    if is_torch(array):
        torch, array = sys.modules["torch"], array.detach().cpu().contiguous()
        name = str(array.dtype).removeprefix("torch.")
        array = (array.view(torch.int16) if name == "bfloat16" else array).numpy()
    else:
        array = np.ascontiguousarray(array) if np.ndim(array) else np.asarray(array)
        name = array.dtype.name
    if name not in DTYPES:
        raise RecordError(f"{tap}: elements of type {name}; float64, float32, float16 and bfloat16 can be recorded")
    if array.size == 0 or array.ndim == 0:
        raise RecordError(f"{tap}: {list(array.shape)} is no shape of a tensor")
    dtype, descr = DTYPES[name]
    little = array.view(np.int16) if dtype == "bf16" else array
    return list(array.shape), dtype, descr, little.astype(little.dtype.newbyteorder("<"), copy=False).data


def npy_header(shape, descr):
    from io import BytesIO
    from numpy.lib import format as npy

    out = BytesIO()
    npy.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": tuple(shape)})
    return out.getvalue()


# ---- the recording of this process ----

_recording = None  # of the innermost `with`, else of FIRSTDIFF_DIR
_finished = False  # whether an earlier one was


def _current():
    """The recording under way, or None. Where there is none the environment says whether one begins, also after `finish`: a notebook records anew."""
    global _recording
    if _recording is None and (folder := os.environ.get("FIRSTDIFF_DIR")):
        _recording = Recording(folder)
        atexit.register(_at_exit, _recording)
    return _recording


def _at_exit(recording):
    try:
        recording.abandon()
    except (OSError, RecordError) as error:  # what was written before the first tap still says that it is not complete
        print(f"firstdiff: {error}", file=sys.stderr)


def is_on():
    """Whether anything is recorded: for code that would have to compute a tensor first."""
    return _current() is not None


def tokens(ids):
    """Notes the token ids of the prompt; of a batch a list for each sequence, without its padding."""
    if on := _current():
        on.meta["tokens"] = id_lists(ids)


def next_step(token):
    """Begins the next decode step, which is fed `token`; of a batch one for each sequence."""
    next_chunk([[id] for id in token] if is_list(token) else [token])


def next_chunk(ids):
    """Begins the next step, which is fed several tokens: a further chunk of the prompt. Of a batch a list for each sequence."""
    if on := _current():
        with on.lock:
            ids, prompt = id_lists(ids), on.meta.get("tokens", [])
            count = len(prompt) if is_batch(prompt) else 0
            if count != (len(ids) if is_batch(ids) else 0):
                raise RecordError(f"the next step has ids of {len(ids) if is_batch(ids) else 1} sequences and the prompt of {count or 1}: of a batch `tokens` "
                                  "and every step name a list for each sequence")
            on.step, on.fed = on.step + 1, 0 if count else len(ids)
            before = on.meta.setdefault("decode_tokens", [[] for _ in range(count)])
            for own, more in zip(before, ids) if count else [(before, ids)]:
                own.extend(more)


def id_lists(ids):
    """Token ids as dump.json has them: numbers, or a list for each sequence of a batch."""
    ids = list(ids)
    if not all(is_list(one) == is_list(ids[0]) for one in ids):
        raise RecordError("token ids are those of one sequence, or of a batch a list for each sequence")
    ids = [[int(id) for id in one] if is_list(one) else int(one) for one in ids]
    return ids[0] if is_batch(ids) and len(ids) == 1 else ids


def is_list(ids):
    """Whether these are ids, and not one: a tensor of no axis is one."""
    return bool(getattr(ids, "ndim", hasattr(ids, "__len__")))


def is_batch(ids):
    return bool(ids) and isinstance(ids[0], list)


def note(**notes):
    """Notes what dump.json can hold: producer, model, architecture, precision, cache, qk_rows, rows; graph: which operation makes a tap and what it reads."""
    if on := _current():
        for key, value in notes.items():
            if key not in NOTES or (NOTES[key] and value not in NOTES[key]):
                raise RecordError(f"note {key}={value!r} is none that dump.json knows")
            on.meta[key] = value


def record(what, value=None, *, modules="", program=None):
    """record(name, array): one tap. record(model, folder=FIRSTDIFF_DIR): for a `with`, every tap of a PyTorch model.

    `program`: writes program.json too, every operation that the model executes, and names the taps by the shape of that graph: for a model of any
    architecture, decoder or not. False: hooks on modules of Hugging Face's names give the taps. Where it is not said, a program is written if
    the call names a folder and no `modules`.

    `modules`: patterns of names of other modules whose outputs are recorded too, by hooks, each under its module's name. Of a model of which no
    layer has a name of Hugging Face's they are all modules by themselves.
    """
    if not isinstance(what, str):
        if not is_model(what):
            raise RecordError(f"record() takes the name of a tap, or a PyTorch model (torch.nn.Module), and {type(what).__name__} is neither. A port of plain functions "
                              "has no modules to watch: record its tensors, firstdiff.record(\"layers.0.q\", q), one line each")
        from .model import Watching

        return Watching(what, value, modules, value is not None and not modules if program is None else program)
    if on := _current():
        on.write(what, value)


def finish():
    """Ends the recording: dump.json says that it is complete. What is recorded after it is another dump, and needs a folder of its own."""
    global _recording, _finished
    on, _recording, _finished = _recording if _finished else _current(), None, True
    if on:
        on.finish()


# Below all that they read here.
from .command import CompareError  # noqa: E402
from .comparing import compare  # noqa: E402
from .result import Result  # noqa: E402
