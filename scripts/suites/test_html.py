#!/usr/bin/env python3
"""Tests the HTML pages that firstdiff writes, used as a person would.

    python scripts/suites/test_html.py [--command PATH] [--screenshots DIR]

Pages of shipped dumps, of a run with names that hold markup, and of 100 layers are opened from file:// in a headless Chromium: what stands on
the first screen, clicks and keys, light and dark, narrow and printed, no message on the console, nothing asked of the network, and no
violation of axe-core's rules. Exit code 1 where anything fails. Requirements: requirements/browser.txt, and chromium on the PATH.
"""

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from scripts import FIXTURES, ROOT
from scripts.engines.engine_mistakes import Chosen, mistake
from scripts.engines.engine_numpy import dump_members, run, silu, write_dump

CHROMIUM = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync"]
HOSTILE = "layers.0.<img src=x onerror=alert(1)></script><script>document.title='taken'</script>"


def report(command, page, *args, codes=(0, 1)):
    done = subprocess.run([command, *map(str, args)], capture_output=True, text=True)
    assert done.returncode in codes, f"{args}: exit code {done.returncode}: {done.stderr}"
    assert page.exists(), f"{args}: no page was written"
    return page


def dump(folder, taps, **meta):
    """A dump in the format of docs/reference/format.md, written by NumPy."""
    folder.mkdir(parents=True)
    listed = []
    for number, (tap, values) in enumerate(taps.items()):
        np.save(folder / f"t{number}.npy", values)
        listed.append({"tap": tap, "step": 0, "file": f"t{number}.npy", "shape": list(values.shape), "dtype": "f32"})
    (folder / "dump.json").write_text(json.dumps({"format": 1, "taps": listed, "precision": "f32", **meta}))
    return folder


def hostile(folder):
    """Two dumps whose names and producers are markup; they part at the tap of that name."""
    rng = np.random.default_rng(1)
    taps = {"h0": rng.normal(size=(4, 8)).astype(np.float32), HOSTILE: rng.normal(size=(4, 8)).astype(np.float32),
            "logits": rng.normal(size=(4, 16)).astype(np.float32)}
    wrong = {**taps, HOSTILE: taps[HOSTILE] * 2}
    meta = {"producer": "<b onmouseover=alert(2)>engine</b>", "model": "</title><script>alert(3)</script>", "tokens": [1, 2, 3, 4]}
    return dump(folder / "ref", taps, **meta), dump(folder / "cand", wrong, **meta)


def large(folder, layers=100, tokens=12, width=64):
    """100 layers of 20 taps that part in layer 60."""
    rng = np.random.default_rng(2)
    sites = {"attn_norm": 1, "q": 1, "k": 1, "v": 1, "q_rope": 1, "k_rope": 1, "qk": 2, "scores": 2, "probs": 2, "context": 1, "attn_out": 1,
             "h_attn": 1, "ffn_norm": 1, "ffn_gate": 1, "ffn_up": 1, "ffn_act": 1, "ffn_out": 1, "h": 1, "q_norm": 1, "k_norm": 1}
    heads = {"q", "k", "v", "q_norm", "k_norm", "q_rope", "k_rope"}

    def values(site):
        if sites[site] == 2:
            return rng.random(size=(4, tokens, tokens)).astype(np.float32)
        return rng.normal(size=(tokens, 4, width // 4) if site in heads else (tokens, width)).astype(np.float32)
    taps = {"h0": rng.normal(size=(tokens, width)).astype(np.float32)}
    taps |= {f"layers.{layer}.{site}": values(site) for layer in range(layers) for site in sites}
    taps |= {"final_norm": rng.normal(size=(tokens, width)).astype(np.float32), "logits": rng.normal(size=(tokens, 128)).astype(np.float32)}
    noise = {tap: v * (1 + 1e-7 * rng.normal(size=v.shape)).astype(np.float32) for tap, v in taps.items()}
    for tap in noise:
        if not tap.startswith("layers.") or int(tap.split(".")[1]) >= 60:
            noise[tap] = noise[tap] + rng.normal(size=noise[tap].shape).astype(np.float32) * np.float32(0.01)
    noise["h0"] = taps["h0"]
    meta = {"tokens": list(range(tokens))}
    return dump(folder / "ref", taps, **meta), dump(folder / "cand", noise, **meta)


# Mistakes that no list has, each with a picture.
@mistake("angles/page", "frequencies", "q_rope k_rope", "every third angle 1.1 times too large")
def _(e, right, value, l, tap):
    f, factor = right(l, tap)
    return f * np.where(np.arange(f.shape[-1]) % 3 == 0, np.float32(1.1), np.float32(1)), factor


@mistake("gain/page", "gain", "ffn_norm", "1.5 of the gain, and 0.25 more")
def _(e, right, value, l, tap):
    return np.float32(1.5) * right(l, tap) + np.float32(0.25)


@mistake("curve/page", "activation", "ffn_act", "silu of 1.35 x")
def _(e, right, value, l, tap, x):
    return silu(x * np.float32(1.35)) / np.float32(1.35)


@mistake("mask/page", "allowed", "scores", "keys from t - 4 on, and every query sees the first")
def _(e, right, value, l, tap, T, S):
    allowed = right(l, tap, T, S)
    ago = (np.arange(S - T, S)[:, None] - np.arange(S)[None])
    return allowed & ((ago < 5) | (np.arange(S)[None] == 0))


class Checks:
    """What is asked of a page, and what failed."""

    def __init__(self, browser, screenshots):
        self.browser, self.screenshots, self.failed, self.asked = browser, screenshots, [], 0

    def that(self, name, holds, more=""):
        self.asked += 1
        if not holds:
            self.failed.append(f"{name} {more}")
            print(f"FAIL {name} {more}", flush=True)

    def page(self, name, file, steps=lambda page, that: None, cells=True):
        for scheme in ("light", "dark"):
            context = self.browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
            page = context.new_page()
            said, asked = [], []
            page.on("console", lambda message: said.append(message.text))
            page.on("pageerror", lambda error: said.append(str(error)))
            page.on("dialog", lambda dialog: (said.append(f"dialog: {dialog.message}"), dialog.dismiss()))
            page.on("request", lambda request: asked.append(request.url))
            start = time.perf_counter()
            page.goto(file.as_uri())
            seconds = time.perf_counter() - start
            here = f"{name} ({scheme}):"
            self.that(f"{here} a title and one heading", page.title() and page.locator("h1").count() == 1)
            self.that(f"{here} the verdict is on the first screen", page.locator(".verdict").bounding_box()["y"] < 200)
            if cells:
                self.that(f"{here} cells", page.locator("button.cell").count() > 0)
            steps(page, lambda what, holds, more="": self.that(f"{here} {what}", holds, more))
            violations = Axe().run(page).response["violations"]
            self.that(f"{here} axe-core", not violations,
                      "; ".join(f"{v['id']} x{len(v['nodes'])}: {v['nodes'][0]['html'][:120]}" for v in violations))
            self.that(f"{here} nothing but the file is asked for", asked == [file.as_uri()], asked)
            self.that(f"{here} nothing on the console", not said, said)
            if self.screenshots:
                page.screenshot(path=self.screenshots / f"{name}-{scheme}.png")
                page.screenshot(path=self.screenshots / f"{name}-{scheme}-whole.png", full_page=True)
            if scheme == "light":
                page.set_viewport_size({"width": 390, "height": 800})
                wide = page.evaluate("document.documentElement.scrollWidth")
                self.that(f"{here} a narrow screen needs no scrolling to the side", wide <= 390, wide)
                pdf = page.pdf()
                self.that(f"{here} prints", len(pdf) > 1000)
            context.close()
        print(f"{name}: {file.stat().st_size / 1e6:.2f} MB, opens in {seconds:.2f} s", flush=True)


def first_divergence(page, that):
    that("the headline", page.locator(".headline").inner_text().startswith("layers.0.q_rope (rope), after layers.0.q"),
         page.locator(".headline").inner_text())
    that("what is to be done is on the first screen", page.locator(".next").bounding_box()["y"] < 900)
    that("the first divergence is open", page.locator("#tap h2").inner_text() == "layers.0.q_rope")
    that("its charts", page.locator("#tap figure").count() >= 3, page.locator("#tap figure").count())
    that("its worst values side by side", page.locator("#tap tbody tr").count() == 5)
    page.locator("button.cell[aria-label^='layers.0.probs:']").click()
    that("a click opens another tap", page.locator("#tap h2").inner_text() == "layers.0.probs")
    that("probabilities of both sides", page.locator("#tap svg[aria-label^='Probabilities']").count() == 2)
    that("one cell is marked as open", page.locator("button.cell[aria-pressed=true]").count() == 1)
    page.keyboard.press("ArrowLeft")
    that("an arrow moves", page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("layers.0.scores:"))
    page.keyboard.press("ArrowDown")
    that("another arrow moves down a layer", page.evaluate("document.activeElement.getAttribute('aria-label')").startswith("layers.1.scores:"))
    page.keyboard.press("Enter")
    that("enter opens it", page.locator("#tap h2").inner_text() == "layers.1.scores")
    that("one cell alone is reached by the tabulator", page.locator("button.cell[tabindex='0']").count() == 1)


def explained(page, that):
    that("the cause is on the first screen", page.locator(".cause").first.bounding_box()["y"] < 900)
    that("the cause is said", "rope-pairing" in page.locator(".card").first.inner_text(), page.locator(".card").first.inner_text())


def law(picture):
    def steps(page, that):
        that("a picture of the law", page.locator(f".card figure:has-text('{picture}')").count() >= 1, page.locator(".card").first.inner_text())
        that("no number of it is lost", "NaN" not in page.locator(".card").first.inner_html())
    return steps


def decode(page, that):
    page.locator("button.cell[aria-label^='layers.1.h, decode step']").click()
    that("a decode step opens", "decode step" in page.locator("#tap h2").inner_text(), page.locator("#tap h2").inner_text())
    at = page.locator("#tap tbody tr td").first.inner_text()
    that("its positions are those of the whole run", "position 11" in at or "position 12" in at or "position 13" in at, at)


def markup(page, that):
    that("markup in names is text", page.title() != "taken" and page.locator("img").count() == 0 and page.locator("b[onmouseover]").count() == 0)
    that("the name stands as it is", "<img src=x" in page.locator("#tap h2").inner_text())


def lost(folder):
    """Two dumps of four layers, of which the candidate's third is NaN and its fourth infinite."""
    rng = np.random.default_rng(3)
    taps = {"h0": rng.normal(size=(6, 8)).astype(np.float32)} | {f"layers.{n}.h": rng.normal(size=(6, 8)).astype(np.float32) for n in range(4)}
    wrong = {**taps, "layers.2.h": taps["layers.2.h"] * np.float32("nan"), "layers.3.h": taps["layers.3.h"] * np.float32("inf")}
    return dump(folder / "ref", taps, tokens=list(range(6))), dump(folder / "cand", wrong, tokens=list(range(6)))


def not_finite(page, that):
    texts = page.locator("button.cell").all_inner_texts()
    that("what is not finite is shown so", texts.count("\u221e") == 2, texts)
    heights = [float(y) for y in page.locator(".error circle").evaluate_all("all => all.map(one => one.getAttribute('cy'))")[:5]]
    that("and stands at the upper edge of the growth", len(heights) == 5 and heights[3] == heights[4] == min(heights) and heights[3] < heights[2], heights)
    that("its bars say so", "not finite" in page.locator("#tap").inner_text())


def many(page, that):
    that("a row a layer", page.locator(".map tbody tr").count() >= 100)
    page.locator("button.cell[aria-label^='layers.99.h:']").click()
    that("the last layer opens", page.locator("#tap h2").inner_text() == "layers.99.h")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--command", default=str(ROOT / "target" / "release" / "firstdiff"))
    p.add_argument("--screenshots", type=Path, help="leave pictures of the pages in this folder")
    a = p.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not chromium:
        sys.exit("no chromium on the PATH")
    if a.screenshots:
        a.screenshots.mkdir(parents=True, exist_ok=True)
    golden, faulty = FIXTURES / "golden" / "llama-torch", FIXTURES / "faulty" / "llama-rope-pairing"
    model = FIXTURES / "models" / "llama"
    with tempfile.TemporaryDirectory() as temporary, sync_playwright() as playwright:
        folder = Path(temporary)
        browser = playwright.chromium.launch(executable_path=chromium, args=CHROMIUM[1:], headless=True)
        checks = Checks(browser, a.screenshots)

        def written(name, *args):
            file = folder / f"{name}.html"
            return report(a.command, file, *args, file)
        checks.page("compare", written("compare", "compare", golden, faulty, "--html"), first_divergence)
        checks.page("parity", written("parity", "compare", golden, golden, "--html"))
        checks.page("replay", written("replay", "replay", model, faulty, "--html"))
        checks.page("explain", written("explain", "explain", model, faulty, "--html"), explained)
        checks.page("report", written("report", "report", golden, faulty, "--model", model, "-o"), explained)
        checks.page("noise", written("noise", "compare", golden, faulty, "--noise", FIXTURES / "golden" / "llama-bf16-torch.npz", "--html"))
        def engine(name, *mistakes):
            """A run of the NumPy engine, which shares no code with firstdiff."""
            taps, about = run(model, [1, 17, 42, 9, 63, 28, 5, 77, 31, 12, 90], [8, 15, 44], [Chosen.parse(m) for m in mistakes])
            write_dump(folder / name, dump_members(taps, about))
            return folder / name
        right = engine("right")
        for name, title in (("angles", "Angles over"), ("gain", "Gains over"), ("curve", "function"), ("mask", "Head")):
            checks.page(name, written(name, "explain", model, engine(f"{name}-engine", f"{name}/page"), "--html"), law(title))
        checks.page("decode", written("decode", "compare", right, engine("wrong", "angles/page"), "--html"), decode)
        one, other = hostile(folder / "hostile")
        checks.page("hostile", written("hostile-page", "compare", one, other, "--html"), markup)
        one, other = lost(folder / "lost")
        checks.page("lost", written("lost-page", "compare", one, other, "--html"), not_finite)
        one, other = large(folder / "large")
        file = written("large-page", "compare", one, other, "--html")
        checks.that("large: under 5 MB", file.stat().st_size < 5e6, file.stat().st_size)
        checks.page("large", file, many)
        browser.close()
    print(f"{checks.asked} asked, {len(checks.failed)} failed")
    sys.exit(1 if checks.failed else 0)


if __name__ == "__main__":
    main()
