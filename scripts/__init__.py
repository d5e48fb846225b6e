"""Where things stand, for every script; and `import firstdiff` is the tree's package, not one that pip installed."""

import sys
from pathlib import Path

SCRIPTS = Path(__file__).resolve().parent
ROOT = SCRIPTS.parent
FIXTURES = ROOT / "fixtures"

sys.path.insert(0, str(ROOT / "crates" / "trace" / "python"))
