"""The fixture `assert_parity`: a test that fails where an engine departs from its reference, with the command's screen and, of a reference that
holds its model or program, the cause, and keeps the page.

    def test_engine(assert_parity):
        assert_parity("tests/golden/llama", my_engine.run(tokens), require="layers.*.h,logits")

`pytest --firstdiff-report DIR` keeps the pages in DIR, best an empty one for each run; else they lie in pytest's own temporary folder. The page's path is in the
failure and in the JUnit file (properties of the test: `firstdiff_report`, and `firstdiff`, which says diverged, unchecked, incomparable or refused), and the page
itself in the report of pytest-html.
"""

import hashlib
import os
import re
from pathlib import Path

import pytest

from . import CompareError, compare

SHOWN = pytest.StashKey[list]()  # the results of a test that were not parity, for pytest-html


def pytest_addoption(parser):
    parser.getgroup("firstdiff").addoption("--firstdiff-report", metavar="DIR", help="a folder for the pages of comparisons that fail")


@pytest.fixture
def assert_parity(request, tmp_path_factory):
    """assert_parity(reference, candidate, *, require=None, fail_on_unchecked=None, ..): the arguments of `firstdiff.compare`. Gives its result.

    It fails where the two differ, where nothing could be compared, and where a tap was not compared: any, or one that `require` names.
    """
    node, calls = request.node, 0

    def assert_parity(reference, candidate, **options):
        __tracebackhide__ = True
        nonlocal calls
        calls += 1
        try:
            result, why = compare(reference, candidate, **options), ""
            if result.passed:
                return result
        except CompareError as refused:
            result, why = refused.result, str(refused)
        node.user_properties.append(("firstdiff", "refused" if result is None else "unchecked" if result.parity else result.verdict))
        if result is None:
            pytest.fail(f"firstdiff: {why}")
        page = result.save(folder(request.config, tmp_path_factory) / page_name(node, calls))
        node.user_properties.append(("firstdiff_report", str(page)))
        node.add_report_section("call", "firstdiff", f"the page: {page}")
        node.stash.setdefault(SHOWN, []).append(result)
        pytest.fail("\n".join(filter(None, [f"firstdiff: {why or result.headline}", result.causes, str(result)])))

    return assert_parity


def folder(config, tmp_path_factory):
    given = config.getoption("firstdiff_report")
    if given is None:
        return tmp_path_factory.mktemp("firstdiff")
    path = Path(config.invocation_params.dir, given)
    path.mkdir(parents=True, exist_ok=True)
    return path


def page_name(test, call):
    """A name that no other test has, nor the same one in another worker of pytest-xdist."""
    plain = re.sub(r"[^A-Za-z0-9_.-]+", "-", test.name)[:80].strip("-.")
    digest = hashlib.sha256(test.nodeid.encode(errors="surrogatepass")).hexdigest()[:8]
    return "-".join(filter(None, [plain, digest, os.environ.get("PYTEST_XDIST_WORKER"), str(call)])) + ".html"


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    """Gives pytest-html, where it is there, the pages of a test that failed."""
    report = (yield).get_result()
    if call.when == "call" and SHOWN in item.stash and item.config.pluginmanager.hasplugin("html"):
        from pytest_html import extras

        report.extras = [*getattr(report, "extras", []), *(extras.html(result._repr_html_()) for result in item.stash[SHOWN])]
