"""Runs one engine many times in one process, for the import is what takes long: python -m scripts.engines MODULE < a JSON list of arguments a line."""

import importlib
import json
import sys
import traceback


def main():
    engine = importlib.import_module(f"scripts.engines.{sys.argv[1]}")
    for line in sys.stdin:
        argv = json.loads(line)
        try:
            engine.main(argv)
            failed = None
        except Exception as error:  # told to the caller, who fails the run
            traceback.print_exc()
            failed = f"{type(error).__name__}: {error}"
        print(json.dumps({"out": argv[2], "failed": failed}), flush=True)


if __name__ == "__main__":
    main()
