#!/usr/bin/env python3
"""goldens/make_fixtures.py, under the name that it had before."""

import runpy
from pathlib import Path

runpy.run_path(str(Path(__file__).resolve().parent / "goldens" / "make_fixtures.py"), run_name="__main__")
