"""From one file of weights to another: GGUF, llama2.c, safetensors. Users run these too."""
