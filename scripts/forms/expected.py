"""Checks whether an answer describes what a mistake does.

An expectation is a list of alternatives, of which one must be found in the words of the answer. An alternative is parts joined by ` & `, in any order: a regular
expression (case ignored), or `#0.5`, a number within 1 % of it (`1/2`, `50 %` and `sqrt(1/4)` are read as that too).
"""

import math
import re

NUMBER = re.compile(r"(?<![\w.])[-+\u2212]?\d+(?:\.\d+)?(?:e[-+]?\d+)?")


def numbers(text):
    """Every number in the text, as it may be read: a quotient, a root, a percentage."""
    text = text.replace("\u2212", "-")
    found = [float(m.group()) for m in NUMBER.finditer(text)]
    found += [float(m) for m in re.findall(r"(\d+(?:\.\d+)?)", text)]
    found += [float(a) / float(b) for a, b in re.findall(r"(-?\d+(?:\.\d+)?) ?/ ?(\d+(?:\.\d+)?)", text) if float(b)]
    found += [math.sqrt(float(a)) for a in re.findall(r"sqrt\((\d+(?:\.\d+)?)\)", text)]
    found += [float(a) / 100 for a in re.findall(r"(\d+(?:\.\d+)?) ?%", text)]
    return found


def split(expression, by):
    """At `by`, but not inside parentheses."""
    parts, depth, start, i = [], 0, 0, 0
    while i < len(expression):
        if expression[i] == "\\":
            i += 2
            continue
        depth += (expression[i] == "(") - (expression[i] == ")")
        if depth == 0 and expression.startswith(by, i):
            parts.append(expression[start:i])
            i += len(by)
            start = i
            continue
        i += 1
    return parts + [expression[start:]]


def is_said(expected, text):
    return any(holds(alternative, text) for alternative in expected)


def holds(expression, text):
    parts = split(expression, " & ")
    if len(parts) > 1:
        return all(holds(part, text) for part in parts)
    expression = expression.strip()
    if "#" not in expression:
        return re.search(expression, text, re.IGNORECASE) is not None
    parts = split(expression, "|")
    if len(parts) > 1:
        return any(holds(part, text) for part in parts)
    if expression.startswith("("):
        return holds(expression[1:-1], text)
    wanted = float(expression[1:])
    return any(abs(x - wanted) <= 0.01 * abs(wanted) for x in numbers(text))
