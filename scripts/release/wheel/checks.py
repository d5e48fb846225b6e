"""One line for each thing that is asked, and an exit code that says whether all hold."""

import sys

failed = 0


def check(what, holds, more=""):
    global failed
    failed += not holds
    print(f"  {'ok  ' if holds else 'FAIL'} {what} {'' if holds else more}", flush=True)


def raises(kind, says, call):
    """Whether a call raises an error of this kind that says this."""
    try:
        given = call()
    except kind as error:
        return says in str(error)
    print(f"  raised nothing, and gave {given!r}")
    return False


def end():
    sys.exit(1 if failed else 0)
