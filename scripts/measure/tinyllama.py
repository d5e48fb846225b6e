"""A Llama of TinyLlama's shape (1.1 B weights in 22 layers), for benchmarks."""

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.modeling_utils import no_init_weights


def model(layers, fill):
    """`fill` writes each weight's values: no others are drawn."""
    config = LlamaConfig(hidden_size=2048, intermediate_size=5632, num_hidden_layers=layers, num_attention_heads=32, num_key_value_heads=4,
                         vocab_size=32000, attn_implementation="eager")
    with no_init_weights():
        made = LlamaForCausalLM(config)
    with torch.no_grad():
        for weight in made.parameters():
            fill(weight)
    return made.eval()
