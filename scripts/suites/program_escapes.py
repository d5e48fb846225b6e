"""Tests tiny models with code that an operation recorder cannot see, or sees as one operation: each must be noticed, never taken as a constant."""

import ctypes
import json

import torch

import firstdiff


class Block(torch.nn.Module):
    """A projection, and something done to it."""

    def __init__(self, do):
        super().__init__()
        self.projection, self.do = torch.nn.Linear(8, 8), do

    def forward(self, x):
        return self.do(self.projection(x)) + 1


def library(x):
    """An operation of a person's own library, which looks into its operand."""
    return torch.ops.escapes.scaled(x)


def foreign_kernel(x):
    """A kernel that writes into memory by its address, as one of Triton or C does."""
    out = torch.empty_like(x)
    ctypes.memmove(out.data_ptr(), x.data_ptr(), x.numel() * x.element_size())
    return out


def partly_written(x):
    """Memory that operations write piece by piece."""
    out = x.new_empty(*x.shape)
    out[..., :4].copy_(x[..., 4:])
    out[..., 4:].copy_(x[..., :4])
    return out


def into_out(x):
    """An operation that is told where to put its result."""
    out = torch.empty_like(x)
    torch.add(x, x, alpha=2, out=out)
    torch.mul(out[..., :4], 3, out=out[..., 4:])
    return out


def branch(x):
    return torch.cond(x.sum() > 0, lambda x: x * 2, lambda x: x * 3, (x,))


def random_in_place(x):
    return x * torch.empty(8).uniform_(1, 2)


@torch.compile
def compiled(x):
    return torch.sin(x) * 2


def item(x):
    return x * x[0, 0, 0].item()


# What each must have as an operation, what must be said of the program, and whether it can be carried out again.
CASES = [(library, "escapes.scaled", None, True), (foreign_kernel, "unseen_kernel", "unseen", False), (partly_written, "copy_", None, True),
         (into_out, "add.Tensor", None, True), (branch, "higher_order.cond", None, False), (random_in_place, "copy_", "randoms", True),
         (compiled, "sin", None, True), (item, "item", None, True), (lambda x: torch.from_numpy(x.numpy() * 2), "linear", "escapes", True),
         (lambda x: torch.utils.dlpack.from_dlpack(x.__dlpack__()) * 2, "mul.Tensor", "escapes", True)]


def check(folder, replay):
    """Records each case; what can be is carried out again by `replay` (a folder and weights), bit for bit."""
    if not hasattr(torch.ops.escapes, "scaled"):
        torch.library.custom_op("escapes::scaled", lambda x: x * sum(x.flatten().tolist()), mutates_args=(), schema="(Tensor x) -> Tensor")
    for number, (do, operation, said, again) in enumerate(CASES):
        torch.manual_seed(number)
        name, model, x = getattr(do, "__name__", str(do)), Block(do).eval(), torch.randn(1, 4, 8)
        weights = {key: value.detach().clone() for key, value in model.state_dict().items()}
        with firstdiff.record(model, folder / str(number), program=True), torch.no_grad():
            result = model(x)
        program = json.loads((folder / str(number) / "program.json").read_text())
        made = [op["o"] for op in program["ops"]]
        assert operation in made, f"{name}: no operation {operation} in {made}"
        assert said != "escapes" or program.get("escapes"), f"{name}: nothing is said of it"
        if again:
            found = replay(folder / str(number), weights)
            with torch.inference_mode():
                for op in found.program["ops"]:
                    found.carry_out(op)
                value = found.view(program["steps"][0]["output"])
            assert torch.equal(value, result), f"{name}: carried out again it is another result"
    return len(CASES)
