"""Calls the dumper that the command line names: `python -m firstdiff.dump torch ..`, `.. llama_cpp ..` or `.. onnx ..`."""

import importlib
import sys

DUMPERS = {"torch": "pytorch", "llama_cpp": "llamacpp", "onnx": "ort"}
USAGE = """usage: python -m firstdiff.dump torch MODEL -o DIR --tokens 1,403,407      (a local Hugging Face folder, by PyTorch)
       python -m firstdiff.dump llama_cpp MODEL.gguf -o DIR --tokens 1,403  (a local GGUF, by llama-cpp-python)
       python -m firstdiff.dump onnx MODEL.onnx -o DIR --tokens 1,403       (a local ONNX file, by ONNX Runtime)
Each tells its options with --help."""


def main():
    if sys.argv[1:2] in (["-h"], ["--help"]):
        print(USAGE)
        return 0
    engine = sys.argv[1] if len(sys.argv) > 1 else None
    if engine not in DUMPERS:
        print(USAGE if engine is None else f"firstdiff.dump: error: no dumper is called {engine!r}\n{USAGE}", file=sys.stderr)
        return 2
    sys.argv[:2] = [f"firstdiff.dump {engine}"]
    return importlib.import_module(f"firstdiff.dump.{DUMPERS[engine]}").main()


if __name__ == "__main__":
    sys.exit(main())
