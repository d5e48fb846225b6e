"""Holds the result of a comparison: its report as data, as the command's screen, as an HTML page, as a table."""

import html
import json
import os
from pathlib import Path


class Result:
    """What `firstdiff.compare` gives. `str(result)` is the command's screen; a notebook shows the page.

    It has no truth value: `parity` is the command's verdict alone, `passed` asks also whether all was compared that had to be.
    """

    def __init__(self, exit_code, report, screen, page, strict=True):
        self.exit_code = exit_code  # 0: passed; 1: diverged, or a tap that had to be compared was not; 2: nothing could be
        self.report = report  # docs/reference/schema/report.json, `compare`
        self.screen = screen
        self.html = page  # a whole page, that asks the network for nothing
        self.strict = strict  # whether every name had to be compared
        self.explanation = None  # the same schema's `explain`, where the model was at hand and the two differ
        self.no_cause = None  # why no cause could be sought, or None

    @property
    def verdict(self):
        """`parity`, `diverged` or `incomparable`."""
        return self.report["verdict"]

    @property
    def parity(self):
        """True exactly where the verdict is parity: all that was compared agrees. What was not compared is in `unchecked`."""
        return self.verdict == "parity"

    @property
    def passed(self):
        """True exactly where the verdict is parity and all was compared that had to be: every name, or those that `require` names."""
        return self.parity and self.exit_code == 0 and not (self.strict and self.unchecked)

    @property
    def first_divergence(self):
        """The first tap that differs though all it reads agrees, as a dict with `tap`, `op`, `why`, `where`, ..; or None."""
        return self.report["first_divergence"]

    @property
    def taps(self):
        """Every tap of either dump, as dicts with `tap`, `step`, `status`, `nmse`, `allowed_nmse`, .."""
        return self.report["taps"]

    @property
    def findings(self):
        """The causes that were found, each with its proof and what to change; none where the model was not at hand (`no_cause`)."""
        if self.explanation:
            return self.explanation["findings"]
        why = (self.first_divergence or {}).get("why")
        return [why] if why else []

    @property
    def causes(self):
        """Each fault that was found, in lines: where, what is computed instead, its proof, what to change, or what to record next. Where none could be sought, why."""
        lines = [f"no cause was sought: {self.no_cause}"] if self.no_cause else []
        for found in self.explanation["findings"] if self.explanation else ():
            law = found["measured"] or {}
            lines.append(f"cause: {found['place']}: {found['summary'] or law.get('words') or 'unknown'}")
            lines += [f"  {key}: {found[key]}" for key in ("proof", "fix", "note", "next") if found.get(key)]
        return "\n".join(printable(line) for line in lines)

    @property
    def unchecked(self):
        """The names of all that was not compared, or in part: unchecked taps, names of one dump alone, names that are no taps. `not_checked` of the report
        has the reasons in words."""
        taps = [tap["tap"] for tap in self.taps if tap["status"] == "unchecked"]
        in_part = [tap["tap"] for tap in self.report.get("required_unchecked", [])]
        return list(dict.fromkeys([*taps, *in_part, *self.report["one_sided"], *self.report["unmapped"]]))

    def __str__(self):
        return self.screen

    def __repr__(self):
        return f"<firstdiff.Result: {self.headline}>"

    @property
    def headline(self):
        """The verdict in a line: `diverged at layers.0.q_rope, 39 names not compared`."""
        at = f" at {self.first_divergence['place']}" if self.first_divergence else ""
        names = len(self.unchecked)
        unchecked = f"{names} {'name' if names == 1 else 'names'} not compared" if names else ""
        if self.parity and not self.passed:
            text = f"not passed: {unchecked}, parity in the rest"
        else:
            text = ", ".join(filter(None, [f"{self.verdict}{at}", unchecked]))
        return printable(text)

    def __bool__(self):
        raise TypeError("a comparison has no truth value: ask `.passed` (parity, and all was compared) or `.parity` (all that was compared agrees)")

    def _repr_html_(self):
        """The page in a frame of its own origin: nothing in it can reach the notebook. A line above it says the verdict where frames are not shown."""
        frame = (f'<iframe sandbox="allow-scripts" referrerpolicy="no-referrer" title="firstdiff" style="width:100%;height:44rem;border:1px solid #8886" '
                 f'srcdoc="{html.escape(self.html, quote=True)}"></iframe>')
        return f"<p><code>{html.escape(self.headline, quote=True)}</code></p>{frame}"

    def to_dataframe(self):
        """A pandas table, one line a tap."""
        try:
            import pandas
        except ModuleNotFoundError:
            raise ModuleNotFoundError("to_dataframe needs pandas: pip install 'firstdiff[pandas]'", name="pandas") from None
        first = ["tap", "step", "status", "op", "nmse", "allowed_nmse", "reason"]
        table = pandas.DataFrame(self.taps)
        return table.reindex(columns=[*first, *(column for column in table.columns if column not in first)])

    def save(self, path):
        """Writes the page, or, of a name that ends in .json, the report, or in .txt the screen; whole, or not at all."""
        path = Path(path)
        kinds = {".html": lambda: self.html, ".json": lambda: json.dumps(self.report, indent=2) + "\n", ".txt": lambda: self.screen}
        if path.suffix not in kinds:
            raise ValueError(f"{path}: a name that ends in {', '.join(kinds)} is needed")
        replace(path, kinds[path.suffix]())
        return path


def printable(text):
    """One line: names are foreign."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def replace(path, text):
    """Writes a file under a temporary name and renames it."""
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
