#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["llama-cpp-python==0.3.36", "numpy>=1.26"]
# ///
"""`python -m firstdiff.dump llama_cpp` of this tree, under the name that it had before the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "crates/trace/python"))
from firstdiff.dump.llamacpp import main

if __name__ == "__main__":
    sys.exit(main())
