"""Lists the runs of the engine trial and the expected result of each. The truth is known: a run is right, or has the one planted mistake."""

from typing import NamedTuple

# engine -> its module in this folder, and what must be importable for it to be checked.
ENGINES = {
    "MLX": ("mlx_engine", "mlx.core"), "JAX": ("jax_engine", "jax"), "Flax": ("jax_engine", "flax"), "ONNX Runtime": ("onnx_engine", "onnxruntime"),
    "OpenVINO": ("onnx_engine", "openvino"), "CTranslate2": ("ctranslate2_engine", "ctranslate2"), "tinygrad": ("tinygrad_engine", "tinygrad"),
    "torch": ("torch_engine", "torch"),
}
LOGITS_ALONE = {"CTranslate2"}
PREFILL_ALONE = {"CTranslate2", "ONNX Runtime", "OpenVINO", "Flax"}
# Engines that write a dump.json with the token ids; the others are told on the command line.
SAYS_TOKENS = {"tinygrad", "torch"}


class Right(NamedTuple):
    """A run with nothing wrong. `arithmetic`: it rounds more than any profile does, and must be named as that, never as a mistake."""
    engine: str
    model: str
    variant: str
    profile: str = None
    arithmetic: str = None  # "weights": the dequantised model gives parity; "activations": nothing does
    without: str = None     # a file of the run that is taken away, as an engine that does not write it

    @property
    def name(self):
        return f"{self.engine} {self.model} {self.variant}" + (f" without {self.without}" if self.without else "")


class Planted(NamedTuple):
    """A run with one mistake: the taps at which it may be found first, and the causes that are true of it (None is always honest)."""
    engine: str
    model: str
    variant: str
    mistake: str
    taps: tuple
    causes: tuple = ()
    profile: str = None
    noise: bool = False  # quantised: held against the engine's own right run

    @property
    def name(self):
        return f"{self.engine} {self.model} {self.variant} {self.mistake}"


RIGHT = [
    *(Right("MLX", model, "f32") for model in ("llama", "qwen2", "qwen3", "wide")), Right("MLX", "llama", "fused"), Right("MLX", "llama", "bf16", "bf16"),
    Right("MLX", "wide", "bf16", "bf16"), Right("MLX", "wide", "q8", arithmetic="weights"), Right("MLX", "wide", "q4", arithmetic="weights"),
    *(Right("JAX", model, "f32") for model in ("llama", "qwen2", "qwen3")), Right("JAX", "llama", "bf16", "bf16"), Right("JAX", "qwen3", "bf16", "bf16"),
    *(Right("Flax", model, "flax") for model in ("llama", "qwen3")), Right("Flax", "qwen2", "flax-bf16", "bf16"),
    *(Right("ONNX Runtime", model, "ort") for model in ("llama", "qwen2", "qwen3")), Right("ONNX Runtime", "wide", "ort-int8", arithmetic="activations"),
    *(Right("OpenVINO", model, "openvino") for model in ("llama", "qwen2", "qwen3")), Right("OpenVINO", "llama", "openvino-bf16", "bf16"),
    Right("OpenVINO", "llama", "openvino-f16", "f16"),
    *(Right("CTranslate2", model, "f32") for model in ("wide", "qwen2")), Right("CTranslate2", "wide", "int16", arithmetic="activations"),
    Right("CTranslate2", "wide", "int8", arithmetic="activations"),
    *(Right("tinygrad", model, "f32") for model in ("llama", "qwen2")), *(Right("tinygrad", model, "f16-cache") for model in ("llama", "qwen3")),
    Right("tinygrad", "llama", "f16-cache", without="dump.json"),
    Right("torch", "wide", "dynamic-int8", arithmetic="activations"), Right("torch", "wide", "int8-rows", arithmetic="activations"),
    Right("torch", "wide", "int8-weights", arithmetic="weights"), Right("torch", "wide", "int4-weights", arithmetic="weights"),
    Right("torch", "llama", "sdpa-bf16", "bf16"), Right("torch", "llama", "sdpa-f16", "f16"),
]

# The same fault under two names, or at two places of one operation.
ROTATED = ("layers.0.q_rope", "layers.0.k_rope")
HEADS = ("kv-head-map",)
DOWN = ("layers.1.ffn_out",)
PLANTED = [
    Planted("MLX", "llama", "f32", "rope-pairing", ROTATED, ("rope-pairing", "qk-row-order")),
    Planted("MLX", "llama", "f32", "norm-eps", ("layers.0.attn_norm",), ("norm-eps",)),
    Planted("MLX", "llama", "f32", "kv-head-map", ("layers.0.scores", "layers.0.qk"), HEADS),
    Planted("MLX", "qwen2", "f32", "rope-position", ROTATED, ("rope-position",)),
    Planted("MLX", "llama", "bf16", "residual-omitted", ("layers.1.h",), ("residual-omitted",), "bf16"),
    Planted("MLX", "wide", "q8", "gate-up-swapped", ("layers.0.ffn_act",), ("gate-up-swapped",), noise=True),
    Planted("MLX", "wide", "q4", "scaled-matrix", DOWN, ("weight-scale", "dequant-scale", "weight-factor"), noise=True),
    Planted("MLX", "wide", "q4", "rope-pairing", ROTATED, ("rope-pairing", "qk-row-order"), noise=True),
    Planted("JAX", "llama", "f32", "mask-omitted", ("layers.0.scores", "layers.0.probs"), ("mask-omitted",)),
    Planted("JAX", "qwen2", "f32", "score-scale", ("layers.0.scores",), ("score-scale",)),
    Planted("JAX", "llama", "bf16", "score-scale", ("layers.0.scores",), ("score-scale",), "bf16"),
    Planted("JAX", "llama", "f32", "rope-position", ROTATED, ("rope-position",)),
    Planted("JAX", "wide", "f32", "weight-transposed", ("layers.0.q",), ("weight-transposed",)),
    Planted("JAX", "qwen3", "f32", "residual-source", ("layers.0.h_attn",), ("residual-source",)),
    Planted("JAX", "qwen3", "f32", "qk-norm-order", (*ROTATED, "layers.0.q_norm", "layers.0.k_norm"), ("qk-norm-order",)),
    Planted("Flax", "llama", "flax", "norm-wrong-weight", ("layers.0.ffn_norm",), ("norm-wrong-weight",)),
    Planted("Flax", "llama", "flax", "activation", ("layers.0.ffn_act",), ("activation",)),
    Planted("ONNX Runtime", "llama", "ort", "head-tied", ("logits",), ("head-tied",)),
    Planted("ONNX Runtime", "qwen2", "ort", "bias-omitted", ("layers.0.k",), ("bias-omitted",)),
    Planted("ONNX Runtime", "qwen2", "ort", "rope-theta", ROTATED, ("rope-theta",)),
    Planted("ONNX Runtime", "wide", "ort-int8", "scaled-matrix", DOWN, ("weight-scale", "dequant-scale", "weight-factor"), noise=True),
    Planted("ONNX Runtime", "wide", "ort-int8", "kv-head-map", ("layers.0.qk",), HEADS, noise=True),
    Planted("OpenVINO", "llama", "openvino", "weight-wrong-layer", ("layers.0.v",), ("weight-wrong-layer",)),
    Planted("OpenVINO", "llama", "openvino", "final-norm-omitted", ("final_norm", "logits"), ("final-norm-omitted",)),
    Planted("OpenVINO", "llama", "openvino-bf16", "mask-shifted", ("layers.0.scores", "layers.0.probs"), ("mask-shifted",), "bf16"),
    Planted("OpenVINO", "qwen3", "openvino", "rope-direction", ROTATED, ("rope-direction",)),
    Planted("CTranslate2", "wide", "f32", "rope-pairing", ("logits",), ("rope-pairing", "qk-row-order")),
    Planted("CTranslate2", "qwen2", "f32", "rope-theta", ("logits",), ("rope-theta",)),
    Planted("CTranslate2", "wide", "f32", "head-tied", ("logits",), ("head-tied",)),
    Planted("CTranslate2", "wide", "f32", "norm-eps", ("logits",), ("norm-eps",)),
    Planted("CTranslate2", "wide", "int8", "gate-up-swapped", ("logits",), ("gate-up-swapped",), noise=True),
    Planted("tinygrad", "llama", "f32", "kv-cache-stale", ("layers.0.qk",), ("kv-cache-stale", "kv-cache-shift")),
    # The new key is written over the newest old one and behind it as well: a slot too early, and a copy of what stands before it.
    Planted("tinygrad", "llama", "f32", "kv-cache-shift", ("layers.0.qk",), ("kv-cache-shift", "kv-cache-stale")),
    Planted("tinygrad", "llama", "f16-cache", "rope-position", ROTATED, ("rope-position",)),
    Planted("tinygrad", "llama", "f16-cache", "score-scale", ("layers.0.scores",), ("score-scale",)),
    Planted("tinygrad", "qwen2", "f32", "rope-omitted", ("layers.0.k_rope",), ("rope-omitted",)),
    Planted("tinygrad", "qwen2", "f32", "residual-omitted", ("layers.0.h",), ("residual-omitted",)),
    Planted("tinygrad", "llama", "f32", "norm-omitted", ("layers.1.ffn_norm",), ("norm-omitted",)),
    Planted("torch", "wide", "dynamic-int8", "scaled-matrix", DOWN, ("weight-scale", "dequant-scale", "weight-factor"), noise=True),
    Planted("torch", "wide", "dynamic-int8", "qk-row-order", ("layers.0.q", "layers.0.k"), ("qk-row-order", "rope-pairing"), noise=True),
    Planted("torch", "wide", "int8-rows", "mask-omitted", ("layers.0.scores", "layers.0.probs"), ("mask-omitted",), noise=True),
    Planted("torch", "wide", "int8-rows", "norm-eps", ("layers.0.ffn_norm",), ("norm-eps",), noise=True),
    Planted("torch", "wide", "int8-weights", "weight-transposed", ("layers.0.attn_out",), ("weight-transposed",), noise=True),
    Planted("torch", "wide", "int4-weights", "rope-theta", ROTATED, ("rope-theta",), noise=True),
]
