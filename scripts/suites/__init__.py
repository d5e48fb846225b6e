"""The slow checks: `python -m scripts.suites --list` shows them, and runs them."""
