#!/usr/bin/env python3
# /// script
# requires-python = ">=3.10"
# dependencies = ["torch>=2.2", "safetensors>=0.4", "numpy>=1.26"]
# ///
"""Converts a PyTorch checkpoint to one .safetensors file that firstdiff reads.

    python scripts/convert/torch_to_safetensors.py pytorch_model.bin model.safetensors
    firstdiff weights model.safetensors model.gguf

Weights only: the file is loaded with weights_only=True, so nothing in it is run. A checkpoint that nests its weights (`state_dict`, `model`,
`module`) is unwrapped; tensors that share memory are written once each. The file is complete in itself: copy it anywhere.
"""

import argparse
import os
import sys
from pathlib import Path

NAME = "torch_to_safetensors.py"


class Refused(Exception):
    """What the user is told in one line, exit 2."""


def tensors(checkpoint):
    import torch

    for key in ("state_dict", "model", "module", "model_state_dict"):
        if isinstance(checkpoint, dict) and isinstance(checkpoint.get(key), dict):
            checkpoint = checkpoint[key]
    if not isinstance(checkpoint, dict):
        raise Refused(f"holds a {type(checkpoint).__name__}, not a dictionary of tensors")
    found = {str(name): value for name, value in checkpoint.items() if isinstance(value, torch.Tensor)}
    if not found:
        raise Refused("holds no tensors")
    # Shared memory is copied: safetensors keeps every tensor by itself.
    return {name: value.detach().cpu().contiguous().clone() for name, value in found.items()}


def convert(source, target):
    import torch
    from safetensors.torch import save_file

    try:
        checkpoint = torch.load(source, map_location="cpu", weights_only=True)
    except Exception as error:  # pickle, zip and torch errors of many kinds
        raise Refused(f"{source}: not a checkpoint that can be loaded safely: {str(error).splitlines()[0]}") from None
    partial = target.with_name(f".{target.name}.{os.getpid()}.partial")
    try:
        found = tensors(checkpoint)
        save_file(found, partial)
        os.replace(partial, target)
    finally:
        partial.unlink(missing_ok=True)
    print(f"{target}: {len(found)} tensors")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, help="a .bin, .pt or .pth")
    parser.add_argument("target", type=Path, help="the .safetensors to write (replaced if it exists)")
    args = parser.parse_args()
    try:
        convert(args.source, args.target)
    except ModuleNotFoundError as error:
        print(f"{NAME}: error: needs the Python package {error.name}: pip install torch safetensors numpy, or uv run {NAME}", file=sys.stderr)
        return 2
    except (Refused, OSError) as error:
        print(f"{NAME}: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
