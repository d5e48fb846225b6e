"""Lists the mistakes in the faulty fixtures: in which model and layers, and what the engine recorded.

A line: model, mistake (as engine_numpy's --mistake), layers that are wrong (- for all), what is recorded, and `decode` where it needs decoded tokens.
    all      every tap
    streams  h0, the residual stream after each layer, final_norm and logits
    proj, rope, attn, out, ffn  h0, the residual stream after each layer, and one section of the first wrong layer (SECTIONS)
    logits   nothing else
"""

FAULTS = [line.split() for line in """
    llama      tokens-differ=bos                      -    streams
    llama      tokens-differ=shift                    -    streams
    llama      norm-eps=1e-6                          -    proj
    llama      norm-weight-twice@attn_norm            0    proj
    llama      norm-axis                              -    proj
    llama      weight-transposed                      -    proj
    llama      weight-stride@ffn_out                  1    ffn
    llama      weight-wrong-layer                     0    proj
    llama      qk-row-order                           -    proj
    llama      head-layout=d-first                    -    proj
    llama      rope-pairing                           -    all
    llama      rope-theta                             -    rope
    llama      rope-scaling=absent                    -    rope
    llama      score-scale=per-model                  -    attn
    llama      score-scale=per-model                  -    logits
    llama      mask-shifted=future                    1    attn
    llama      mask-shifted=past                      -    attn
    llama      kv-head-map=mod                        -    attn
    llama      kv-cache-shift                         -    attn  decode
    llama      activation=gelu-tanh                   -    ffn
    llama      residual-source=doubled                0    out
    llama      head-tied                              -    streams
    mistral    window-size=ignored                    -    attn
    mistral    window-size=wide                       -    attn
    mistral    rope-scaling=inverse                   -    rope
    mistral    rope-partial                           -    rope
    mistral    rope-direction                         -    rope
    mistral    norm-centered                          -    proj
    mistral    norm-omitted                           1    ffn
    mistral    mask-fill                              -    attn
    mistral    mask-after-softmax                     -    attn
    mistral    context-layout                         -    attn
    mistral    gate-product=added                     -    ffn
    mistral    logit-row                              -    streams
    qwen2      embed-scale                            -    streams
    qwen2      bias-omitted                           -    all
    qwen2      bias-twice@k                           1    proj
    qwen2      weight-swapped                         -    proj
    qwen2      weight-transposed=transpose@attn_out   1    out
    qwen2      linear-input                       -    proj
    qwen2      score-scale=absent                     -    attn
    qwen2      softmax-base                           -    attn
    qwen2      rope-precision                         -    rope
    qwen2      rope-position=decode-zero              -    rope  decode
    qwen2      kv-cache-stale                         1    attn  decode
    qwen2      gate-up-swapped                        -    ffn
    qwen2      residual-source=input@h                -    ffn
    qwen2-f16  storage-type                           -    streams
    qwen3      qk-norm-order                          -    all
    qwen3      norm-weight-omitted@q_norm,k_norm      -    rope
    qwen3      norm-omitted@k_norm                    1    rope
    qwen3      norm-plus-one@final_norm               -    streams
    qwen3      rope-attention-factor=ignored          -    rope
    qwen3      rope-scaling=linear                    -    rope
    qwen3      rope-omitted                           -    rope
    qwen3      rope-on-v                              -    attn
    qwen3      kv-head-map=zero                       1    attn
    qwen3      softmax-axis                           -    attn
    qwen3      weight-unset                           1    out
    qwen3      residual-omitted                       0    out
    qwen3      final-norm-omitted=omitted             -    streams
    qwen2      embed-multiplier                       -    streams
    qwen2      aliasing                               -    rope
    llama      score-softcap                          -    attn
    mistral    sink-omitted                           -    attn
    qwen3      activation-clamp                       -    ffn
    mistral    logit-softcap                          -    streams
    llama      norm-width@final_norm                  -    streams
    llama      logit-scale                            -    streams
    minimind   mask-inverted                          -    attn
    minimind   norm-eps-outside                       -    proj
    minimind   norm-wrong-weight                      2    proj
    minimind   norm-sum                               -    proj
    minimind   fused-split                            -    proj
    minimind   rope-exponent                          -    rope
    minimind   rope-twice@k_rope                      -    rope
    minimind   mask-omitted                           -    all
    minimind   weight-swapped@ffn_gate,ffn_up         1    ffn
    minimind   activation=relu                        -    ffn
    minimind   residual-source=normed@h               1    ffn
    minimind   residual-parallel                      -    ffn
    minimind   residual-scale                         -    out
    minimind   layer-skipped                          1    ffn
    minimind   head-untied                            -    streams
    llama      rope-position=decode-stuck             -    streams  decode
    llama      rope-omitted                           1    logits
    qwen3      rope-position=decode-ahead             -    streams  decode
    qwen3      kv-cache-stale                         -    streams  decode
    qwen2      norm-width=first-left-out              -    streams
""".strip().splitlines()]

SECTIONS = {
    "proj": "attn_norm q k v",
    "rope": "q k q_norm k_norm q_rope k_rope",
    "attn": "q_rope k_rope v qk scores probs context",
    "out": "context attn_out h_attn",
    "ffn": "h_attn ffn_norm ffn_gate ffn_up ffn_act ffn_out",
}
FOLDERS = {"llama-rope-pairing"}  # shown in the README: a folder, where the others are .npz


def name(model, mistake, layers, record, *_):
    """llama-norm-weight-twice-attn_norm-layer0"""
    text = f"{model}-{mistake}".replace("=", "-").replace("@", "-").replace(",", "+")
    return text + (f"-layer{layers}" if layers != "-" else "") + (f"-{record}" if record == "logits" else "")


def globs(record, layer):
    """The taps of a record, `layer` the first that is wrong."""
    stream = ["h0", "layers.*.h"]
    if record in SECTIONS:
        return stream + [f"layers.{layer}.{tap}" for tap in SECTIONS[record].split()]
    return {"all": ["*"], "streams": [*stream, "final_norm", "logits"], "logits": ["logits"]}[record]
