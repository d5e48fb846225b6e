"""Dumpers of reference engines: `python -m firstdiff.dump torch MODEL -o golden --tokens 1,403,407`, or `.. llama_cpp MODEL.gguf ..`."""
