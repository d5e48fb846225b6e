"""Runs a Llama in CTranslate2, converted by its own TransformersConverter, and records the logits, its only output.

Variants: f32; int8: 8-bit weights per row, activations per row at run time; int16. Prefill only, as raw .npy [1,T,V].
Its converter takes head_dim to be D/H: no model where it is not.
Requirements: ../requirements/engines.txt, torch and transformers
"""

import json
import os
import shutil
import tempfile
from pathlib import Path

import numpy as np

from .model import Model, arguments

MISTAKES = ["rope-pairing", "rope-theta", "head-tied", "norm-eps", "gate-up-swapped"]
KINDS = {"f32": "float32", "int8": "int8", "int16": "int16"}


def with_tokenizer(m, folder):
    """A copy with a tokenizer of words t0, t1, ..: the converter asks for one."""
    from tokenizers import Tokenizer, models

    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(m.folder / name, folder / name)
    words = {f"t{i}": i for i in range(m.V)}
    Tokenizer(models.WordLevel(words, unk_token="t0")).save(str(folder / "tokenizer.json"))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "t1", "eos_token": "t2", "unk_token": "t0"}
    (folder / "tokenizer_config.json").write_text(json.dumps(kind))


def spoil(m, folder, mistake):
    """The mistakes that a wrong file makes."""
    from safetensors.numpy import save_file

    config, weights = dict(m.config), dict(m.weights)
    if mistake == "rope-theta":
        config["rope_theta"] = 10000.0
    if mistake == "norm-eps":
        config["rms_norm_eps"] = 1e-2
    if mistake == "head-tied":
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].copy()
    if mistake == "gate-up-swapped":
        for n in range(m.layers):
            gate, up = (f"model.layers.{n}.mlp.{name}_proj.weight" for name in ("gate", "up"))
            weights[gate], weights[up] = weights[up], weights[gate]
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def main(argv=None):
    # Intel's products on any x86: those it chooses else add pairs in 16 bits where the processor has no VNNI, and saturate, which is another result.
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", CT2_USE_MKL="1")
    args = arguments(__doc__, list(KINDS), MISTAKES, argv)
    import ctranslate2
    from ctranslate2.converters import TransformersConverter

    class Converter(TransformersConverter):
        def _load(self):
            spec = super()._load()
            if args.mistake == "rope-pairing":
                for layer in spec.decoder.layer:
                    layer.self_attention.rotary_interleave = True
            return spec

    m = Model(args.model)
    with tempfile.TemporaryDirectory() as scratch:
        source, target = Path(scratch) / "hf", Path(scratch) / "ct2"
        source.mkdir()
        with_tokenizer(m, source)
        if args.mistake:
            spoil(m, source, args.mistake)
        Converter(str(source)).convert(str(target), quantization=KINDS[args.variant])
        generator = ctranslate2.Generator(str(target), device="cpu", compute_type=KINDS[args.variant], intra_threads=2)
        logits = np.array(generator.forward_batch([args.tokens], return_log_probs=False)).astype(np.float32)
    args.out.mkdir(parents=True)
    np.save(args.out / "logits.npy", logits)


if __name__ == "__main__":
    main()
