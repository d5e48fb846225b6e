#!/usr/bin/env python3
"""Tests that the rows of experts are read in each layout that engines use.
Small mixtures of transformers are recorded, and runs of the same model, right and wrong, are written in each form: an expert's rows in the order of the tokens
or of the places of the choice, of all tokens, [E,T,F], [T,E,F], [E,capacity,F] with padding, [T,k,F] and [k,T,F] by place, and [T*k,F] sorted by expert.

    python scripts/suites/test_expert_forms.py --command target/release/firstdiff [ARCH ..] [--keep DIR] [--without explain]

- `right`: compare and replay must be at parity, and judge experts.
- `wrong`: one matrix of an expert is another. compare must name what it makes first, replay nothing else, and explain must find it.
- `moved`: two rows of different experts and tokens have changed places. No command may be at parity.
- `swapped`: two rows of one expert have, in one of its taps. compare must name it, and it may pass in no command, but for replay of a program that sorts rows by their expert.
- `blind`: right, without router_topk. Nothing may be blamed, and no row of an expert be judged where its place follows from the choice.
- `above`: the first block's attention (or what stands in its place) is another, so that no row of an expert is near the reference's and tokens go elsewhere.
  Nothing but its output may be blamed.
- `both`: the same, and one matrix of an expert is another. Beside that output what the matrix makes must be blamed, and nothing else. Where a note says that its
  rows were not read, what is made of them may be blamed in its place. So where a note says that the reference would have taken another path (a loop whose
  lengths left PyTorch one by one): then nothing is said of its experts.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts.suites.test_program_experts import Golden, arguments, build, record, recorded

EXPERT = re.compile(r"(layers\.\d+)\.experts\.(\d+)\.(\w+)")


class Run:
    """A recorded run: its taps by name and step."""

    def __init__(self, folder):
        self.meta = json.loads((folder / "dump.json").read_text())
        self.taps = {(tap["tap"], tap["step"]): np.load(folder / tap["file"]) for tap in self.meta["taps"]}

    def write(self, taps, folder):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        meta = {key: value for key, value in self.meta.items() if key not in ("graph", "taps")}
        meta["taps"] = []
        for (name, step), values in taps.items():
            file = f"{name.replace('/', '%2F')}{f'.step{step}' if step else ''}.npy"
            np.save(folder / file, np.ascontiguousarray(values, dtype=np.float32))
            meta["taps"].append(dict(tap=name, step=step, file=file, shape=list(values.shape), dtype="f32"))
        (folder / "dump.json").write_text(json.dumps(meta))


class Experts:
    """The rows of each site's experts by layer, step, expert, token and place."""

    def __init__(self, run, orders):
        self.run, self.rows, self.choice = run, {}, {}
        for (name, step), values in run.taps.items():
            found = re.fullmatch(r"(layers\.\d+)\.router_topk", name)
            if found:
                self.choice[found[1], step] = values.reshape(values.shape[0], -1).astype(int)
        for (name, step), values in run.taps.items():
            found = EXPERT.fullmatch(name)
            if found and (found[1], step) in self.choice:
                layer, expert, site = found[1], int(found[2]), found[3]
                chosen = self.places(layer, step, expert, orders)
                dense = values.shape[0] != len(chosen)
                for at, (token, place) in enumerate(chosen):
                    self.rows[layer, step, site, expert, token, place] = values[token if dense else at]

    def places(self, layer, step, expert, by_place):
        chosen = np.argwhere(self.choice[layer, step] == expert)
        found = [(int(token), int(place)) for token, place in chosen]
        return sorted(found, key=lambda at: at[::-1]) if by_place else found

    def others(self):
        return {key: values for key, values in self.run.taps.items() if not EXPERT.fullmatch(key[0])}

    def count(self):
        return 1 + max(key[3] for key in self.rows)

    def sites(self):
        return sorted({key[:3] for key in self.rows})

    def form(self, form, generator):
        """All taps with those of experts in a form."""
        taps = self.others()
        for layer, step, site in self.sites():
            choice = self.choice[layer, step]
            tokens, k = choice.shape
            count = max(self.count(), 1 + choice.max())
            rows = {key[3:]: row for key, row in self.rows.items() if key[:3] == (layer, step, site)}
            width = next(iter(rows.values())).shape
            noise = lambda *shape: generator.standard_normal((*shape, *width)).astype(np.float32)
            name = f"{layer}.experts.{site}"
            if form in ("own-token", "own-place", "own-all", "own-padded"):
                for expert in range(count):
                    at = self.places(layer, step, expert, form == "own-place")
                    if form == "own-all":
                        # Where the reference has rows of all tokens, so has a right run.
                        own = self.run.taps.get((f"{layer}.experts.{expert}.{site}", step))
                        values = own.copy() if own is not None and len(own) == tokens else noise(tokens)
                        for token, place in at:
                            values[token] = rows[expert, token, place]
                    else:
                        values = np.array([rows[expert, *here] for here in at]).reshape(len(at), *width)
                    if form == "own-padded" and len(at):
                        values = np.concatenate([values, 0 * noise(tokens + 1 - len(at))])
                    if len(values):
                        taps[f"{layer}.experts.{expert}.{site}", step] = values
                continue
            flat = {}
            if form == "all":
                values = noise(count, tokens)
                flat = {key: key[:2] for key in rows}
            elif form == "tokens-first":
                values = noise(tokens, count)
                flat = {key: (key[1], key[0]) for key in rows}
            elif form in ("padded-token", "padded-place"):
                values = 0 * noise(count, tokens + 2)
                for expert in range(count):
                    for at, here in enumerate(self.places(layer, step, expert, form == "padded-place")):
                        flat[expert, *here] = expert, at
            elif form in ("by-place", "by-place-flat"):
                values = noise(tokens, k)
                flat = {key: key[1:] for key in rows}
            elif form == "places-first":
                values = noise(k, tokens)
                flat = {key: (key[2], key[1]) for key in rows}
            elif form in ("sorted-token", "sorted-place"):
                values = noise(tokens * k)
                order = [(expert, *here) for expert in range(count) for here in self.places(layer, step, expert, form == "sorted-place")]
                flat = {key: (at,) for at, key in enumerate(order) if key in rows}
            for key, at in flat.items():
                values[at] = rows[key]
            taps[name, step] = values.reshape(tokens * k, *width) if form == "by-place-flat" else values
        return taps


CASES = "right wrong moved swapped blind above both".split()
FORMS = ("own-token own-place own-all own-padded all tokens-first padded-token padded-place by-place by-place-flat places-first sorted-token sorted-place").split()


def reference_order(golden, model, run):
    """Whether the reference's rows of an expert stand by place of the choice, by what its weights make of the block's input. None where that does not show it."""
    votes = {False: 0, True: 0}
    both = {by_place: Experts(run, by_place) for by_place in votes}
    for layer, step, site in both[False].sites():
        if site != "ffn_gate" or (f"{layer}.ffn_norm", step) not in run.taps:
            continue
        x = run.taps[f"{layer}.ffn_norm", step].astype(np.float64)
        for expert in range(both[False].count()):
            key = (f"{layer}.experts.{expert}.{site}", step)
            if key not in run.taps or (tokens := both[False].places(layer, step, expert, False)) == both[True].places(layer, step, expert, True):
                continue
            rows = run.taps[key].astype(np.float64)
            if len(rows) != len(tokens):
                return False  # of all tokens
            weight = model.get_parameter(golden.matrix(key)).detach().double().numpy()
            weight = weight[expert] if weight.ndim == 3 else weight
            made = [matrix for matrix in (weight, weight.T) if matrix.shape[1] == x.shape[1]]
            for by_place in votes:
                at = [token for token, _ in both[False].places(layer, step, expert, by_place)]
                near = [np.abs(x[at] @ part.T - rows).max() for matrix in made for part in parts(matrix, rows.shape[1])]
                votes[by_place] += bool(near) and min(near) < 1e-4
    return None if votes[False] == votes[True] else votes[True] > votes[False]


def parts(matrix, width):
    yield from (matrix[begin:begin + width] for begin in range(0, len(matrix) - width + 1, width))
    if len(matrix) == 2 * width:
        yield from (matrix[::2], matrix[1::2])


def spoil_above(model, golden):
    """Moves the columns of the matrix that the first block's attention, or what stands in its place, ends with; the taps that it makes. Where it ends with
    none, those of the next product that the attention makes."""
    ends = ("layers.0.attn_out", "layers.0.mixer_out", "layers.0.v", "layers.0.k")
    key = next((tap, 0) for tap in ends if (tap, 0) in golden.taps)
    name = golden.matrix(key)
    with torch.no_grad():
        weight = model.get_parameter(name)
        weight.copy_(weight.roll(3, -1) * 2)
    # One matrix may make keys and values.
    return {tap for tap in ends if (tap, 0) in golden.taps and golden.matrix((tap, 0)) == name}


def most_rows(experts, golden, site):
    """Layer and number of the expert with the most rows of a site in the prefill, among those of the reference."""
    counts = {}
    for layer, step, own, expert, *_ in experts.rows:
        if step == 0 and own == site and (f"{layer}.experts.{expert}.{site}", 0) in golden.taps:
            counts[layer, expert] = counts.get((layer, expert), 0) + 1
    return max(sorted(counts), key=counts.get)


def made_by(golden, matrix, layer, expert):
    """The taps of an expert that a matrix makes: gate and up may be of one."""
    taps = [f"{layer}.experts.{expert}.{other}" for other in ("ffn_gate", "ffn_up", "ffn_out")]
    return {tap for tap in taps if (tap, 0) in golden.taps and golden.matrix((tap, 0)) == matrix}


def spoil(model, golden, layer, expert, site):
    """Changes a third of an expert's matrix; its name."""
    key = (f"{layer}.experts.{expert}.{site}", 0)
    name = golden.matrix(key)
    with torch.no_grad():
        weight = model.get_parameter(name)
        if weight.dim() > 2:
            weight[expert] *= 1.25
        elif f".experts.{expert}." in name:
            weight[: weight.shape[0] // 3] *= 1.25
        else:
            rows = weight.shape[0] // 4
            weight[expert * rows:expert * rows + rows // 3] *= 1.25
    return name


def moved(experts, case):
    """The same with two rows of different tokens in each other's place: of different experts, or of one."""
    layer, step, site = experts.sites()[0]
    keys = [key for key in experts.rows if key[:3] == (layer, step, site)]
    pairs = ((one, other) for one in keys for other in keys[::-1] if (other[3] == one[3]) == (case == "swapped") and other[4] != one[4])
    one, other = next(pairs)
    experts.rows[one], experts.rows[other] = experts.rows[other], experts.rows[one]
    return experts, f"{layer}.experts.{one[3]}.{site}", step


def ask(command, what, *args):
    done = subprocess.run([command, what, *map(str, args), "--json", "-"], capture_output=True, text=True)
    if not done.stdout.startswith("{"):
        return {"verdict": "ERROR " + (done.stderr.strip().splitlines() or ["nothing said"])[-1], "taps": [], "findings": [], "warnings": []}
    return json.loads(done.stdout)


def count_experts(report):
    taps = [tap for tap in report["taps"] if EXPERT.fullmatch(tap["tap"])]
    return sum(tap["status"] in ("exact", "rounding", "diverged", "downstream") for tap in taps), len(taps)


def wrong_taps(report):
    return [tap["tap"] for tap in report["taps"] if tap["status"] == "diverged"]


def judge(case, due, beside, reports, where, sorts):
    """What is not as it should be."""
    bad = []
    for what, report in reports.items():
        verdict, (judged, _) = report["verdict"], count_experts(report)
        if verdict.startswith("ERROR"):
            bad.append(f"{what}: {verdict}")
        elif case == "right" and (verdict != "parity" or not judged and what != "explain"):
            bad.append(f"{what}: {verdict}, {judged} experts judged, wrong {wrong_taps(report)[:2]}")
        elif case == "wrong" and what == "compare" and (report["first_divergence"] or {}).get("tap") not in due:
            bad.append(f"compare: first {(report['first_divergence'] or {}).get('tap')}")
        elif case == "wrong" and what == "replay" and set(wrong_taps(report)) != due:
            bad.append(f"replay: wrong {wrong_taps(report)[:3]}")
        elif case == "wrong" and what == "explain" and (not report["findings"] or not {finding["tap"] for finding in report["findings"]} <= due):
            bad.append(f"explain: {[finding['tap'] for finding in report['findings']][:3]}")
        elif case in ("above", "both") and what == "compare" and (report["first_divergence"] or {}).get("tap") not in due:
            bad.append(f"compare: first {(report['first_divergence'] or {}).get('tap')}")
        elif case in ("above", "both") and what != "compare":
            blamed = set(wrong_taps(report)) if what == "replay" else {tap for finding in report["findings"] for tap in finding["taps"]}
            # A module's output may be of all experts, and hold the same rows.
            blamed -= beside
            unread = any(re.match("not read: |op .* its path is another one", warning) for warning in report["warnings"])
            may = due | {tap.split(".experts.")[0] + ".ffn_out" for tap in due if ".experts." in tap} if unread else due
            if not blamed <= may or not blamed >= (due if not unread else {tap for tap in due if ".experts." not in tap}):
                bad.append(f"{what}: {sorted(blamed)[:4]}{', some not read' if unread else ''}")
        elif case == "moved" and verdict == "parity":
            bad.append(f"{what}: parity")
        elif case == "swapped" and what == "compare" and not any((tap["tap"], tap["step"]) == where and tap["status"] == "diverged" for tap in report["taps"]):
            bad.append(f"compare: {where[0]} not found")
        elif case == "swapped" and not (what == "replay" and sorts) and any(
                (tap["tap"], tap["step"]) == where and tap["status"] in ("exact", "rounding") for tap in report["taps"]):
            bad.append(f"{what}: {where[0]} passed")
        elif case == "blind" and wrong_taps(report):
            bad.append(f"{what}: wrong {wrong_taps(report)[:2]}")
    return bad


def main():
    parser = arguments(__doc__)
    parser.add_argument("--forms", nargs="*", default=FORMS, choices=FORMS)
    parser.add_argument("--cases", nargs="*", default=CASES, choices=CASES)
    parser.add_argument("--without", nargs="*", default=[], choices=["replay", "explain"], help="commands that are not asked")
    args = parser.parse_args()
    torch.set_num_threads(1)
    total = bad = 0
    with tempfile.TemporaryDirectory() as made:
        for name, folder, model in recorded(args, made):
            golden, run = Golden(folder / "golden"), Run(folder / "golden")
            if not any(EXPERT.fullmatch(key[0]) for key in run.taps) or not any(key[0].endswith(".router_topk") for key in run.taps):
                print(f"{name:18} has no taps of experts, or no router_topk", flush=True)
                continue
            by_place = reference_order(golden, model, run)
            right = Experts(run, bool(by_place))
            sorts = any(op["o"].split(".")[0] in ("sort", "argsort") for op in golden.program["ops"])
            site = "ffn_gate" if any(key[2] == "ffn_gate" for key in right.rows) else right.sites()[0][2]
            layer, _, _, expert = next(key[:4] for key in sorted(right.rows) if key[2] == site and key[1] == 0)
            model = build(name)
            matrix = spoil(model, golden, layer, expert, site)
            record(model, name, folder / "spoilt")
            due = {"wrong": made_by(golden, matrix, layer, expert)}
            runs = {"wrong": Run(folder / "spoilt")}
            model = build(name)
            due["above"] = spoil_above(model, golden)
            record(model, name, folder / "above")
            runs["above"] = Run(folder / "above")
            layer, expert = most_rows(Experts(runs["above"], bool(by_place)), golden, site)
            matrix = spoil(model, golden, layer, expert, site)
            record(model, name, folder / "both")
            runs["both"] = Run(folder / "both")
            due["both"] = due["above"] | made_by(golden, matrix, layer, expert)
            beside = {tap for tap, _ in golden.taps if tap.startswith(layer) and "/" in tap and ".experts." not in tap and golden.reads(tap, matrix)}
            print(f"{name:18} rows of an expert {'by place' if by_place else 'by token' if by_place is False else 'in an order that nothing shows'}; "
                  f"wrong: {', '.join(sorted(due['wrong']))}; both: {', '.join(sorted(due['both']))}", flush=True)
            for form in args.forms:
                words = []
                for case in args.cases:
                    generator = np.random.default_rng(5)
                    experts = Experts(runs.get(case, run), bool(by_place))
                    where = None
                    if case in ("moved", "swapped"):
                        experts, *where = moved(experts, case)
                        where = tuple(where)
                    taps = experts.form(form, generator)
                    if case == "blind":
                        taps = {key: values for key, values in taps.items() if not key[0].endswith("router_topk")}
                    candidate = folder / f"{form}-{case}"
                    run.write(taps, candidate)
                    reports = {"compare": ask(args.command, "compare", folder / "golden", candidate)}
                    for what in ("replay", "explain"):
                        if what not in args.without and not (what == "explain" and case not in due):
                            reports[what] = ask(args.command, what, folder / "golden", candidate, "--weights", folder / "model")
                    wrong = judge(case, due.get(case), beside, reports, where, sorts)
                    total += 1
                    bad += bool(wrong)
                    judged = "/".join(str(count_experts(report)[0]) for report in reports.values())
                    words.append(f"{case} {'BAD ' + '; '.join(wrong) if wrong else 'ok'} ({judged})")
                print(f"{name:18} {form:14} {', '.join(words)}", flush=True)
    print(f"{total} runs, {bad} bad")
    sys.exit(1 if bad else 0)


if __name__ == "__main__":
    main()
