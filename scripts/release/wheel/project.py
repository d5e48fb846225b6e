"""A project that tests its engine with the fixture. test_wheel.py copies it as test_engine.py, and runs pytest on it."""

import os

import numpy as np
import pytest

random = np.random.default_rng(0)
RIGHT = {"h0": random.normal(size=(5, 8)), "layers.0.h": random.normal(size=(5, 8)), "</script>\"<b>": random.normal(size=(5, 8)), "logits": random.normal(size=(5, 30))}
PART = {name: array for name, array in RIGHT.items() if name != "layers.0.h"}


def test_right(assert_parity):
    assert assert_parity(RIGHT, RIGHT).parity


def test_in_part(assert_parity):
    assert_parity(RIGHT, PART, require="h0,logits")
    assert_parity(RIGHT, PART, fail_on_unchecked=False)


@pytest.mark.parametrize("by", [1.0, np.nan, "a/b"])
def test_wrong(assert_parity, by):
    assert_parity(RIGHT, RIGHT | {"logits": RIGHT["logits"] * (2 if by == "a/b" else by) + 1})


def test_unchecked(assert_parity):
    assert_parity(RIGHT, PART)


def test_shape(assert_parity):
    assert_parity(RIGHT, RIGHT | {"logits": RIGHT["logits"][:, :9]})


def test_cause(assert_parity):
    fixtures = os.environ["FIXTURES"]
    assert_parity(f"{fixtures}/golden/llama-torch", f"{fixtures}/faulty/llama-rope-pairing", model=f"{fixtures}/models/llama", fail_on_unchecked=False)


def test_nowhere(assert_parity):
    assert_parity(RIGHT, "nowhere")
