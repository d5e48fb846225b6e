#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch==2.9.1", "transformers==4.57.1", "safetensors>=0.6", "numpy>=1.26"]
# ///
"""`python -m firstdiff.dump torch` of this tree, under the name that it had before the package."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "crates/trace/python"))
from firstdiff.dump.pytorch import main

if __name__ == "__main__":
    sys.exit(main())
