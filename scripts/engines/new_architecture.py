#!/usr/bin/env python3
"""A model that nobody has seen, its reference run in PyTorch, and an engine of it in NumPy: what docs/guide/engines/new_architecture.md walks through.

    python scripts/engines/new_architecture.py FOLDER

Writes FOLDER/golden (the reference's dump with its program), FOLDER/model.safetensors (its weights), and two dumps of the engine: FOLDER/engine, which leaves the
softplus out of the decay, and FOLDER/right. The engine uses NumPy alone.
"""

import argparse
import sys
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
import scripts  # its firstdiff is the tree's
import firstdiff

WIDTH, INNER, LAYERS, WORDS = 24, 40, 3, 50
TOKENS = [7, 3, 19, 42, 8, 8, 31, 2, 25, 11]


def reference(folder):
    """The model in PyTorch: a cubic norm, a mixer that forgets at a learned rate, a squared gate, and capped logits."""
    import torch
    from safetensors.torch import save_file
    from torch import nn

    class CubicNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.randn(WIDTH) * 0.2 + 1)

        def forward(self, x):
            size = x.abs().pow(3).mean(-1, keepdim=True) + 1e-4
            return x / size.pow(1 / 3) * self.gain

    class Forgetting(nn.Module):
        def __init__(self):
            super().__init__()
            self.value, self.out = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
            self.rate = nn.Parameter(torch.randn(WIDTH) * 0.5 + 1)

        def forward(self, x):
            rate = nn.functional.softplus(self.rate)
            at = torch.arange(x.shape[1])
            age = (at[:, None] - at[None, :]).clamp(min=0)
            kept = torch.exp(-rate[:, None, None] * age) * (at[:, None] >= at[None, :])
            return self.out(torch.einsum("dts,bsd->btd", kept, self.value(x)))

    class Gate(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate, self.up, self.down = nn.Linear(WIDTH, INNER), nn.Linear(WIDTH, INNER), nn.Linear(INNER, WIDTH)

        def forward(self, x):
            return self.down(torch.relu(self.gate(x)).square() * self.up(x))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm1, self.mix, self.norm2, self.ffn = CubicNorm(), Forgetting(), CubicNorm(), Gate()

        def forward(self, x):
            x = x + 0.5 * self.mix(self.norm1(x))
            return x + self.ffn(self.norm2(x))

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.norm = nn.Embedding(WORDS, WIDTH), CubicNorm()
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            self.head = nn.Linear(WIDTH, WORDS, bias=False)

        def forward(self, ids):
            x = self.embed(ids)
            for block in self.blocks:
                x = block(x)
            return 15 * torch.tanh(self.head(self.norm(x)) / 15)

    torch.manual_seed(1)
    model = Odd().eval()
    with firstdiff.record(model, folder / "golden", program=True):
        model(torch.tensor([TOKENS]))
    save_file(model.state_dict(), folder / "model.safetensors")


def engine(weights, folder, is_right):
    """The same by NumPy, every tap under the name that the reference's dump has for it."""
    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", np.float32(0))

    def norm(x, name):
        return x / (np.mean(np.abs(x) ** 3, -1, keepdims=True) + 1e-4) ** (1 / 3) * weights[f"{name}.gain"]

    def mix(x, name):
        rate = weights[f"{name}.rate"]
        rate = np.logaddexp(0, rate) if is_right else rate
        at = np.arange(len(x))
        kept = np.exp(-rate[:, None, None] * np.maximum(at[:, None] - at, 0)) * (at[:, None] >= at)
        return linear(np.einsum("dts,sd->td", kept, linear(x, f"{name}.value")), f"{name}.out")

    taps = {"h0": (x := weights["embed.weight"][TOKENS])}
    for layer in range(LAYERS):
        name = f"blocks.{layer}"
        normed = taps[f"layers.{layer}.attn_norm"] = norm(x, f"{name}.norm1")
        branch = taps[f"layers.{layer}.mixer_out"] = mix(normed, f"{name}.mix")
        x = taps[f"layers.{layer}.h_attn"] = x + np.float32(0.5) * branch
        normed = taps[f"layers.{layer}.ffn_norm"] = norm(x, f"{name}.norm2")
        gate, up = taps[f"layers.{layer}.ffn_gate"], taps[f"layers.{layer}.ffn_up"] = linear(normed, f"{name}.ffn.gate"), linear(normed, f"{name}.ffn.up")
        branch = taps[f"layers.{layer}.ffn_out"] = linear(np.maximum(gate, 0) ** 2 * up, f"{name}.ffn.down")
        x = taps[f"layers.{layer}.h"] = x + branch
    taps["final_norm"] = norm(x, "norm")
    taps["logits"] = 15 * np.tanh(linear(taps["final_norm"], "head") / 15)
    folder.mkdir(parents=True, exist_ok=True)
    np.savez(folder / "dump.npz", **{name: value.astype(np.float32) for name, value in taps.items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    reference(folder)
    from safetensors.numpy import load_file

    weights = load_file(folder / "model.safetensors")
    engine(weights, folder / "engine", is_right=False)
    engine(weights, folder / "right", is_right=True)


if __name__ == "__main__":
    main()
