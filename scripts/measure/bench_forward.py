#!/usr/bin/env python3
"""Measures a forward pass of a TinyLlama shape in PyTorch and llama.cpp, for `cargo xtask bench forward`.

    python scripts/measure/bench_forward.py make FOLDER                 random weights of 1.1 B parameters as f32, f16, bf16 and four quantised GGUFs (13 GB)
    python scripts/measure/bench_forward.py torch                       the seconds of one pass for each number of tokens that standard input names, a line each:
    python scripts/measure/bench_forward.py llama.cpp FILE              all logits, 2 threads, PyTorch in f32
    python scripts/measure/bench_forward.py product ROWS COLUMNS        the same of one product of that many tokens with a matrix, for `cargo xtask bench kernels`
    python scripts/measure/bench_forward.py weights A B                 seconds of a NumPy script that compares two .gguf of f16 tensor by tensor
"""

import json
import os
import sys
import time
from functools import cache
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

THREADS = 2
D, F, V, H, K, LAYERS = 2048, 5632, 32000, 32, 4, 22


def make(folder):
    import gguf
    import numpy as np

    from scripts.suites.test_quantised import quantise

    folder.mkdir(parents=True, exist_ok=True)
    source = folder / "f32.gguf"
    if not source.exists():
        rng = np.random.default_rng(1)
        partial = folder / "f32.gguf.partial"
        writer = gguf.GGUFWriter(partial, "llama", use_temp_file=False)
        writer.add_context_length(2048)
        writer.add_embedding_length(D)
        writer.add_block_count(LAYERS)
        writer.add_feed_forward_length(F)
        writer.add_head_count(H)
        writer.add_head_count_kv(K)
        writer.add_rope_dimension_count(D // H)
        writer.add_rope_freq_base(10000.0)
        writer.add_layer_norm_rms_eps(1e-5)
        writer.add_vocab_size(V)
        writer.add_tokenizer_model("no_vocab")
        shapes = {"token_embd": (V, D), "output": (V, D), "output_norm": (D,)}
        for n in range(LAYERS):
            shapes |= {f"blk.{n}.attn_q": (D, D), f"blk.{n}.attn_k": (D // H * K, D), f"blk.{n}.attn_v": (D // H * K, D),
                       f"blk.{n}.attn_output": (D, D), f"blk.{n}.ffn_gate": (F, D), f"blk.{n}.ffn_up": (F, D), f"blk.{n}.ffn_down": (D, F),
                       f"blk.{n}.attn_norm": (D,), f"blk.{n}.ffn_norm": (D,)}
        for name, shape in shapes.items():
            writer.add_tensor_info(f"{name}.weight", shape, np.dtype(np.float32), int(np.prod(shape)) * 4)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for shape in shapes.values():  # one at a time: the whole does not fit beside itself
            values = rng.standard_normal(shape, np.float32)
            values *= np.float32(1 / np.sqrt(shape[-1]))
            writer.write_tensor_data(values + np.float32(1) if len(shape) == 1 else values)
        writer.close()
        os.replace(partial, source)
    for name, kind in (("f16", "F16"), ("bf16", "BF16"), ("q4_k_m", "Q4_K_M"), ("q6_k", "Q6_K"), ("q8_0", "Q8_0"), ("q4_0", "Q4_0")):
        target = folder / f"{name}.gguf"
        if not target.exists():
            quantise(source, folder / "partial", kind)
            os.replace(folder / "partial", target)


def torch_answers():
    """Answers with the seconds of a forward pass: f32, all logits."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(THREADS)
    config = LlamaConfig(hidden_size=D, intermediate_size=F, num_hidden_layers=LAYERS, num_attention_heads=H, num_key_value_heads=K, vocab_size=V,
                         torch_dtype="float32")
    torch.set_default_dtype(torch.float32)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    model = model.to_empty(device="cpu").eval()
    with torch.inference_mode():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)
        model.model.rotary_emb.inv_freq.copy_(1 / 10000 ** (torch.arange(0, D // H, 2) / (D // H)))

    def once(size):
        with torch.inference_mode():
            model(torch.arange(1, size + 1)[None], use_cache=False)

    answer(once)


def llama_answers(file):
    """The same in llama.cpp."""
    from llama_cpp import llama_cpp as api

    api.llama_backend_init()
    quiet = api.llama_log_callback(lambda *_: None)
    api.llama_log_set(quiet, None)
    params = api.llama_model_default_params()
    params.use_extra_bufts = os.environ.get("FIRSTDIFF_EXTRA_BUFTS", "1") == "1"
    model = api.llama_model_load_from_file(str(file).encode(), params)

    @cache
    def prepared(size):
        params = api.llama_context_default_params()
        params.n_ctx = params.n_batch = params.n_ubatch = max(size, 16)
        params.n_threads = params.n_threads_batch = THREADS
        context = api.llama_init_from_model(model, params)
        batch = api.llama_batch_init(size, 0, 1)
        batch.n_tokens = size
        for i in range(size):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = i + 1, i, 1, 1
            batch.seq_id[i][0] = 0
        return context, batch

    def once(size):
        context, batch = prepared(size)
        api.llama_memory_clear(api.llama_get_memory(context), True)
        if api.llama_decode(context, batch):
            sys.exit("llama_decode failed")

    answer(once)


def product_answers(rows, columns):
    """Answers with the seconds of x [T,columns] with a matrix [rows,columns] in f32."""
    import torch

    torch.set_num_threads(THREADS)
    matrix = torch.rand(rows, columns) - 0.5

    @cache
    def prepared(count):
        return torch.rand(count, columns) - 0.5, torch.empty(count, rows)

    def once(count):
        x, out = prepared(count)
        torch.matmul(x, matrix.t(), out=out)

    answer(once)


def answer(once):
    """The seconds of one run for each number of tokens that standard input asks for; the first of each number prepares, too."""
    for line in sys.stdin:
        start = time.perf_counter()
        once(int(line))
        print(f"{time.perf_counter() - start:.6f}", flush=True)


def numpy_weights(a, b):
    """What people write: load both, subtract, print."""
    import gguf
    import numpy as np

    start = time.perf_counter()
    left, right = gguf.GGUFReader(a), gguf.GGUFReader(b)
    other = {t.name: t for t in right.tensors}
    for tensor in left.tensors:
        x, y = (gguf.quants.dequantize(t.data, t.tensor_type).astype(np.float32) for t in (tensor, other[tensor.name]))
        difference = x - y
        np.sqrt((difference ** 2).mean()), np.corrcoef(x.reshape(-1), y.reshape(-1))[0, 1], np.abs(difference).max()
    return time.perf_counter() - start


def main():
    match sys.argv[1:]:
        case ["make", folder]:
            make(Path(folder))
        case ["torch"]:
            torch_answers()
        case ["llama.cpp", file]:
            llama_answers(file)
        case ["product", rows, columns]:
            product_answers(int(rows), int(columns))
        case ["weights", a, b]:
            print(json.dumps(numpy_weights(a, b)))
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
