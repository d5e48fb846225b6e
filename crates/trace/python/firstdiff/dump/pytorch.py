"""Writes a firstdiff dump of a local Hugging Face folder: every tap that PyTorch computes.

    python -m firstdiff.dump torch MODEL -o DIR --tokens 1,403,407 --decode 3
    firstdiff compare DIR my_engine_dump/

MODEL is a folder with config.json and weights, of any architecture that transformers has; without a program of family llama,
mistral, qwen2, qwen3 or minimind. Nothing is ever fetched from a network. Needs torch 2.9.1 and transformers 4.57.1,
and runs with torch 2.15 and transformers 5.23.

What is written: DIR/dump.json and one .npy a tap: h0, layers.N.{attn_norm, q, k, v, q_norm, k_norm, q_rope, k_rope, qk,
scores, probs, context, attn_out, h_attn, ffn_norm, ffn_gate, ffn_up, ffn_act, ffn_out, h}, final_norm, logits. q, k, v are
[T, heads, d] after their bias; qk, scores and probs are [H, T, S]. Step 0 is the prefill; every decode step holds its one
new row (and [H, 1, S] over all S keys so far), in files with `.stepN`.

Where the values come from without a program:
  * Forward hooks on the model's own modules, and a wrap around its attention function. q_rope, k_rope, probs and context
    are what the model itself computed. qk and scores exist inside that function only: they are computed once more from
    the recorded q and k, with the operations of the eager code (same bits), the model's scale and the model's mask.
  * Masked scores are written as -inf, whatever large negative number the model adds.
  * --attn sdpa: PyTorch's fused attention keeps qk, scores and probs to itself. They are not recorded, and dump.json says so.
  * Each decoded token is told its place, as `generate` does. With a program and in f32, the logits of the decode steps are held
    against one pass over the same tokens: where they differ dump.json says so (`decode_differs`), and every command repeats it.
  * The KV cache keeps every key. transformers would crop the cache of a sliding-window layer to the window; here the
    window is in the mask alone, so that scores are over all S keys. The attention is the same.
  * --dtype f64 is the exact run: transformers computes RMSNorm, RoPE's angles and softmax in float32 whatever the dtype,
    and these are replaced by the same formulas in float64.
  * --dtype bf16 and f16 run as transformers does, and store what each module gave: bf16 as '<V2' (NumPy has no bfloat16).

Beside the taps it writes program.json: every operation that the model executed, from which the taps are named, whatever the
architecture; dump.json then says which operation makes each tap, by its source line, and what it reads (docs/design/programs.md).
`firstdiff explain DIR my_engine_dump/` works by it. --no-program leaves it out: what follows is about such a run.

MiniMind (model_type "minimind") is not in transformers: as MiniMind's own scripts/convert_model.py does, it is built as a
LlamaForCausalLM with the mapped config, or as Qwen3ForCausalLM where the weights hold q_norm (minimind-3, 2026).
inference_rope_scaling becomes its YaRN (factor 16 over 2048, attention factor 1). Difference: MiniMind multiplies the norm's
weight before rounding to bf16/f16, transformers after.
"""

import argparse
import inspect
import json
import math
import os
import sys
from pathlib import Path

from .files import Folder, Refused, count, exit_code, ids, say

NAME = "dump_torch.py"
VERSION = "0.1.0"
FAMILIES = {"llama": "Llama", "mistral": "Mistral", "qwen2": "Qwen2", "qwen3": "Qwen3"}
HIDDEN_BY_SDPA = ["qk", "scores", "probs"]


# ---- the dump on disk (format 1 of firstdiff's docs/reference/format.md) ----


class Dump(Folder):
    def __init__(self, out, patterns, force):
        super().__init__(out, patterns, force)
        self.entries = []

    def write(self, tap, step, shape, dtype, data):
        """`data`: little-endian bytes of a row-major array."""
        from numpy.lib import format as npy

        file = f"{tap}.npy" if step == 0 else f"{tap}.step{step}.npy"
        descr = {"f64": "<f8", "f32": "<f4", "f16": "<f2", "bf16": "<V2"}[dtype]
        with open(self.folder / file, "wb") as out:
            npy.write_array_header_1_0(out, {"descr": descr, "fortran_order": False, "shape": tuple(shape)})
            out.write(data)
        self.entries.append({"tap": tap, "step": step, "file": file, "shape": list(shape), "dtype": dtype})

    def finish(self, note):
        if not self.entries:
            raise Refused("no tap matches --taps: nothing to write")
        self.tell_whole(note, self.entries)
        self.place()


# ---- the model ----


def is_known(config):
    """Whether a config is of a family whose modules have hooks here."""
    return isinstance(config, dict) and config.get("model_type") in (*FAMILIES, "minimind")


def read_config(folder, any_family=False):
    path = folder / "config.json"
    if not folder.is_dir():
        raise Refused(f"{folder}: no such folder (models are local folders; nothing is downloaded)")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise Refused(f"{path}: not a readable config: {error}") from None
    family = config.get("model_type") if isinstance(config, dict) else None
    if not any_family and not is_known(config):
        raise Refused(f"{path}: model_type {family!r}; known are {', '.join(FAMILIES)}, minimind; a recorded program (f32, bf16 or f16, eager) takes any")
    if config.get("quantization_config"):
        raise Refused(f"{path}: a quantised checkpoint; give the floating-point one")
    if config.get("use_moe"):
        raise Refused(f"{path}: MiniMind with experts (use_moe) is not supported")
    return config


def minimind_config(config, path):
    """MiniMind's keys as Llama's. Keys whose defaults changed between its releases must be stated."""
    needed = ["hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "rms_norm_eps", "vocab_size"]
    missing = [key for key in needed if key not in config]
    if missing:
        raise Refused(f"{path}: MiniMind config without {', '.join(missing)}")
    mapped = {key: config[key] for key in needed}
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    mapped["num_key_value_heads"] = config["num_key_value_heads"] or heads
    mapped["intermediate_size"] = config.get("intermediate_size") or 64 * ((int(hidden * 8 / 3) + 63) // 64)
    mapped["head_dim"] = config.get("head_dim") or hidden // heads
    mapped["max_position_embeddings"] = config.get("max_position_embeddings", 32768)
    mapped["rope_theta"] = float(config.get("rope_theta", 1e6))
    mapped["hidden_act"] = config.get("hidden_act", "silu")
    mapped["tie_word_embeddings"] = config.get("tie_word_embeddings", True)
    if config.get("inference_rope_scaling") and mapped["max_position_embeddings"] > 2048:
        written = config.get("rope_scaling") or {}
        if written.get("beta_fast", 32) != 32 or written.get("factor", 16) != 16:
            raise Refused(f"{path}: rope_scaling of a MiniMind before December 2025, whose YaRN was another formula")
        slow = mapped["head_dim"] * math.log(2048 / (2 * math.pi)) / (2 * math.log(mapped["rope_theta"]))
        if math.ceil(slow) > mapped["head_dim"] // 2 - 1:
            raise Refused(f"{path}: rope_theta so small that MiniMind's YaRN and transformers' differ in their last pairs")
        mapped["rope_scaling"] = {
            "rope_type": "yarn", "factor": 16.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "original_max_position_embeddings": 2048, "attention_factor": 1.0,
        }
    return mapped


def refuse_missing(folder, info):
    if missing := sorted(info["missing_keys"]):
        raise Refused(f"{folder}: {len(missing)} weights are missing, first {missing[0]}")


def load(folder, dtype, attn):
    """The model, in evaluation mode; every weight found or refused."""
    import transformers

    config = read_config(folder)
    family = config["model_type"]

    def build(class_name, overrides=None):
        config_class = getattr(transformers, f"{class_name}Config")
        settings = config_class(**overrides) if overrides else config_class.from_pretrained(folder, local_files_only=True)
        model_class = getattr(transformers, f"{class_name}ForCausalLM")
        try:
            return model_class.from_pretrained(
                folder, config=settings, dtype=dtype, attn_implementation=attn, local_files_only=True,
                trust_remote_code=False, output_loading_info=True)
        except (OSError, RuntimeError, ValueError, KeyError) as error:
            raise Refused(f"{folder}: weights do not load: {' '.join(str(error).split())[:300]}") from None

    if family == "minimind":
        mapped = minimind_config(config, folder / "config.json")
        model, info = build("Llama", mapped)
        if any(".q_norm." in key for key in info["unexpected_keys"]):
            say("MiniMind with QK-norm (minimind-3): built as Qwen3ForCausalLM")
            model, info = build("Qwen3", mapped)
        else:
            say("MiniMind: built as LlamaForCausalLM")
    else:
        model, info = build(FAMILIES[family])
    refuse_missing(folder, info)
    unused = sorted(key for key in info["unexpected_keys"] if not key.endswith("inv_freq"))
    if unused:
        say(f"warning: {len(unused)} weights in the files are not used by the model, first {unused[0]}")
    return model.eval()


def frequencies(config):
    """RoPE's angle a position for each pair, in f64, and the factor on cos and sin. Formulas: RoPE (arXiv 2104.09864),
    YaRN (arXiv 2309.00071), Llama 3.1's as published with its weights."""
    import torch

    scaling = getattr(config, "rope_scaling", None) or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    pairs = torch.arange(d // 2, dtype=torch.float64)
    plain = config.rope_theta ** (-2 * pairs / d)
    factor = float(scaling.get("factor", 1.0))
    context = scaling.get("original_max_position_embeddings") or config.max_position_embeddings
    if kind == "default":
        return plain, 1.0
    if kind == "linear":
        return plain / factor, 1.0
    if kind == "llama3":
        low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
        smooth = ((context * plain / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
        return plain * ((1 - smooth) / factor + smooth), 1.0
    if kind == "yarn" and not scaling.get("mscale") and scaling.get("truncate", True):

        def pair_of(turns):
            return d * math.log(context / (turns * 2 * math.pi)) / (2 * math.log(config.rope_theta))

        first = max(math.floor(pair_of(scaling.get("beta_fast") or 32)), 0)
        last = min(math.ceil(pair_of(scaling.get("beta_slow") or 1)), d - 1)
        ramp = ((pairs - first) / (last - first or 0.001)).clamp(0, 1)
        attention = scaling.get("attention_factor")
        return plain * (1 - ramp + ramp / factor), 0.1 * math.log(factor) + 1 if attention is None else attention
    raise Refused(f"--dtype f64 with RoPE scaling {kind!r} (or its options) is not supported; use f32")


def make_exact(model):
    """Replaces what transformers computes in float32 by the same formulas in float64. Softmax: see `attention`."""
    import torch

    rotary = model.model.rotary_emb
    angles, factor = frequencies(model.config)
    if not torch.allclose(angles.float(), rotary.inv_freq.float(), rtol=1e-4) or abs(factor - rotary.attention_scaling) > 1e-6:
        raise Refused("RoPE frequencies in float64 do not agree with transformers' own: another version?")

    def rope(x, position_ids):
        turned = position_ids[:, :, None].double() * angles
        turned = torch.cat((turned, turned), dim=-1)
        return turned.cos() * factor, turned.sin() * factor

    def rms_norm(module):
        def forward(x):
            return module.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + module.variance_epsilon))

        return forward

    rotary.forward = rope
    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = rms_norm(module)


# ---- recording ----


class Recorder:
    """Writes each tap as it comes by; `step` is set by the run."""

    def __init__(self, dump, dtype):
        self.dump, self.dtype, self.step = dump, dtype, 0

    def __call__(self, tap, tensor):
        """`tensor` without its batch axis."""
        import torch

        if not self.dump.wants(tap):
            return
        tensor = tensor.detach().contiguous()
        raw = tensor.view(torch.int16) if self.dtype == "bf16" else tensor
        self.dump.write(tap, self.step, tensor.shape, self.dtype, raw.numpy().tobytes())


def hook(model, record):
    """Every tap that is the input or the output of a module. Outputs are [1, T, ...]."""

    def output(module, tap, d=None):
        def take(_, __, value):
            value = value[0] if isinstance(value, tuple) else value
            record(tap, value[0].reshape(value.shape[1], -1, d) if d else value[0])

        module.register_forward_hook(take)

    def source(module, tap):
        module.register_forward_pre_hook(lambda _, args: record(tap, args[0][0]))

    output(model.model.embed_tokens, "h0")
    for n, layer in enumerate(model.model.layers):
        at, d = f"layers.{n}", layer.self_attn.head_dim
        output(layer.input_layernorm, f"{at}.attn_norm")
        for name in ("q", "k", "v"):
            output(getattr(layer.self_attn, f"{name}_proj"), f"{at}.{name}", d)
        for name in ("q_norm", "k_norm"):
            if hasattr(layer.self_attn, name):
                output(getattr(layer.self_attn, name), f"{at}.{name}", d)
        output(layer.self_attn.o_proj, f"{at}.attn_out")
        source(layer.post_attention_layernorm, f"{at}.h_attn")
        output(layer.post_attention_layernorm, f"{at}.ffn_norm")
        output(layer.mlp.gate_proj, f"{at}.ffn_gate")
        output(layer.mlp.up_proj, f"{at}.ffn_up")
        source(layer.mlp.down_proj, f"{at}.ffn_act")
        output(layer.mlp.down_proj, f"{at}.ffn_out")
        output(layer, f"{at}.h")
    output(model.model.norm, "final_norm")
    output(model.lm_head, "logits")


def wrap_attention(model, record, attn, exact):
    """Puts a recording function where the model looks up its attention."""
    import torch
    from transformers import AttentionInterface
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    modeling = sys.modules[type(model).__module__]
    own = modeling.eager_attention_forward if attn == "eager" else ALL_ATTENTION_FUNCTIONS["sdpa"]

    def attention(module, query, key, value, mask, scaling, **options):
        """query [1,H,T,d] and key [1,K,S,d] after RoPE, value [1,K,S,d], mask [1,1,T,>=S] or None."""
        at, T, S = f"layers.{module.layer_idx}", query.shape[2], key.shape[2]
        record(f"{at}.q_rope", query[0].transpose(0, 1))
        record(f"{at}.k_rope", key[0, :, S - T :].transpose(0, 1))
        if attn == "eager":
            group = module.num_key_value_groups
            qk = torch.matmul(query, key.repeat_interleave(group, dim=1).transpose(2, 3))
            scores = qk * scaling
            if mask is not None:
                scores = scores.masked_fill(mask[..., :S] != 0, -math.inf)
            record(f"{at}.qk", qk[0])
            record(f"{at}.scores", scores[0])
        if exact:
            weights = torch.softmax(scores, dim=-1)
            out = torch.matmul(weights, value.repeat_interleave(group, dim=1)).transpose(1, 2).contiguous()
        else:
            out, weights = own(module, query, key, value, mask, scaling=scaling, **options)
        if attn == "eager":
            record(f"{at}.probs", weights[0])
        record(f"{at}.context", out[0].reshape(T, -1))
        return out, weights

    if attn == "eager":
        modeling.eager_attention_forward = attention
    else:
        AttentionInterface.register("sdpa", attention)


def run(model, record, tokens, steps, fixed):
    """Prefill, then `steps` decode steps: on the tokens of `fixed`, or greedily. Returns the decoded ids."""
    import torch
    from transformers import DynamicCache

    cache = DynamicCache()  # without the config: no layer is cropped to its window
    feed, decoded = list(tokens), []
    for step in range(steps + 1):
        record.step = step
        with torch.no_grad():
            at = places(model, len(tokens) + step - 1, 1) if step else {}
            logits = model(input_ids=torch.tensor([feed]), past_key_values=cache, use_cache=True, **at).logits
        say(f"step {step} of {steps}: {len(feed)} token{'s' * (len(feed) > 1)}")
        if step < steps:
            feed = [fixed[step] if fixed else int(logits[0, -1].argmax())]
            decoded += feed
    return decoded


def places(model, first, count):
    """Where tokens stand, told to a model that takes it: as `generate` does. Some models ask the cache of layer 0, which may keep no keys."""
    import torch

    known = inspect.signature(model.forward).parameters
    at = torch.arange(first, first + count)
    if "cache_position" in known:
        return {"cache_position": at}
    return {"position_ids": at[None]} if "position_ids" in known else {}


SAME_DECODE = 1e-6  # NMSE of f32's logits, decoded and in one pass: right ones are below 1e-10


def check_decode(model, tokens, decoded, logits, folder):
    """Whether the decode steps give the logits of one pass over all tokens; if not, dump.json says so."""
    import torch

    with torch.inference_mode():
        whole = model(torch.tensor([[*tokens, *decoded]])).logits[0, len(tokens) :].double()
    for step, (found, due) in enumerate(zip(logits, whole), 1):
        found = found.double()
        nmse = float(((found - due) ** 2).sum() / (due**2).sum().clamp_min(1e-300))
        if not nmse <= SAME_DECODE:
            say(f"decode step {step} gives other logits than one pass over the same tokens (NMSE {nmse:.1e}): this model's own decode may be wrong")
            path = folder / "dump.json"
            differs = json.dumps({"step": step, "nmse": nmse if math.isfinite(nmse) else 1.0})
            path.write_text(path.read_text().replace("{\n", '{\n  "decode_differs": ' + differs + ",\n", 1))
            return


# ---- the command ----


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, metavar="MODEL", help="a local Hugging Face folder")
    parser.add_argument("-o", "--out", required=True, metavar="DIR", help="the dump to write")
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--tokens", type=ids, metavar="1,403,..", help="ids of the prompt. Use 8 or more: position 0 hides RoPE, mask and GQA mistakes")
    what.add_argument("--text", help="a prompt, where the folder has a tokenizer")
    more = parser.add_mutually_exclusive_group()
    more.add_argument("--decode", type=count, default=0, metavar="N", help="then N greedy steps with the KV cache")
    more.add_argument("--decode-tokens", type=ids, metavar="5,9,..", help="then one step for each of these ids, as the engine under test was fed")
    parser.add_argument("--taps", metavar="GLOB[,GLOB]", help="only these, e.g. 'layers.0.*,logits'. Default: all")
    parser.add_argument("--dtype", choices=["f32", "f64", "bf16", "f16"], default="f32", help="arithmetic and stored type; f64 is the exact run (default f32)")
    parser.add_argument("--attn", choices=["eager", "sdpa"], default="eager", help="sdpa hides qk, scores and probs (default eager)")
    parser.add_argument("--program", action=argparse.BooleanOptionalAction, help="record every operation, and name the taps by them (any architecture); "
                        "--no-program: hooks on the modules of the families above. Default: --program, but for f64 and sdpa")
    parser.add_argument("--threads", type=count, default=0, metavar="N", help="PyTorch threads. Default: PyTorch's choice")
    parser.add_argument("--force", action="store_true", help="replace DIR if it holds a dump")
    parser.add_argument("--version", action="version", version=f"{NAME} {VERSION}")
    return parser.parse_args()


def tokenize(folder, text):
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except Exception as error:  # the kinds are many: missing files, foreign formats, missing packages
        raise Refused(f"{folder}: no usable tokenizer ({str(error).splitlines()[0][:120]}); give --tokens") from None
    tokens = tokenizer(text)["input_ids"]
    if not tokens:
        raise Refused("--text is no token at all")
    return tokens


def load_any(folder, config, dtype, attn):
    """A model of whatever architecture its config names."""
    import transformers

    named = [getattr(transformers, name, None) for name in config.get("architectures") or []]
    kinds = [kind for kind in named if kind] or [transformers.AutoModelForCausalLM, transformers.AutoModel]
    # transformers 5 carries all experts out in one operation, unless told not to.
    experts = {"experts_implementation": "eager"} if hasattr(transformers.PretrainedConfig, "_experts_implementation") else {}
    for at, kind in enumerate(kinds):
        try:
            model, info = kind.from_pretrained(
                folder, dtype=dtype, attn_implementation=attn, local_files_only=True, trust_remote_code=False, output_loading_info=True, **experts,
            )
            break
        except Exception as error:  # the kinds are many
            if at + 1 == len(kinds):
                raise Refused(f"{folder}: transformers cannot load it: {str(error).splitlines()[0][:160]}") from None
    refuse_missing(folder, info)
    return model.eval()


def prepare(threads):
    """PyTorch and transformers, quiet."""
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    if threads:
        torch.set_num_threads(threads)
    return torch, transformers


def refuse_strange(tokens, vocab):
    for token in tokens:
        if not 0 <= token < vocab:
            raise Refused(f"token {token} is outside the vocabulary of {vocab}")


def say_done(out, count, decoded):
    say(f"{out.out}: {count} tensors" + (f", decoded {','.join(map(str, decoded))}" if decoded else ""))


def dump_program(args):
    """A run of any model, with every operation that it executes."""
    if args.dtype == "f64":
        raise Refused("--program records what runs, and transformers computes norms and softmax in f32 whatever the dtype: f64 is no exact run here")
    import firstdiff

    with Dump(args.out, [], args.force) as out:
        config = read_config(args.model, any_family=True)
        torch, _ = prepare(args.threads)
        tokens, fixed = args.tokens or tokenize(args.model, args.text), args.decode_tokens or []
        say(f"loading {args.model} in {args.dtype}")
        dtype = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}[args.dtype]
        model = load(args.model, dtype, args.attn) if is_known(config) else load_any(args.model, config, dtype, args.attn)
        vocab = getattr(getattr(model.config, "text_config", model.config), "vocab_size", math.inf)
        refuse_strange(tokens + fixed, vocab)
        (out.folder / "dump.json").unlink()
        os.environ["FIRSTDIFF_TAPS"] = args.taps or "*"
        decoded, logits, steps = [], [], len(fixed) or args.decode
        try:
            with torch.inference_mode(), firstdiff.record(model, out.folder, program=True) as recording:
                firstdiff.note(model=args.model.resolve().name, architecture=model.config.model_type)
                result = model(torch.tensor([tokens]))
                for step in range(steps):
                    cache = getattr(result, "past_key_values", None)
                    if cache is None:
                        raise Refused("this model gives no cache: only the prompt can be recorded (no --decode)")
                    decoded.append(fixed[step] if fixed else int(result.logits[0, -1].argmax()))
                    at = places(model, len(tokens) + step, 1)
                    result = model(torch.tensor([decoded[-1:]]), past_key_values=cache, **at)
                    logits.append(result.logits[0, -1])
                count = len(recording.entries)
                if not count:
                    raise Refused("no tap matches --taps: nothing to write")
        except ValueError as error:
            raise Refused(str(error)) from None
        if decoded and args.dtype == "f32":
            check_decode(model, tokens, decoded, logits, out.folder)
        out.place()
        say_done(out, count, decoded)


def dump(args):
    is_plain = args.dtype != "f64" and args.attn == "eager"
    if is_plain if args.program is None else args.program:
        return dump_program(args)
    if args.dtype == "f64" and args.attn == "sdpa":
        raise Refused("--dtype f64 is the exact run and needs --attn eager")
    patterns = [glob for glob in (args.taps or "").split(",") if glob]
    with Dump(args.out, patterns, args.force) as out:
        config = read_config(args.model)
        torch, transformers = prepare(args.threads)
        tokens = args.tokens or tokenize(args.model, args.text)
        fixed = args.decode_tokens or []
        refuse_strange(tokens + fixed, config.get("vocab_size", math.inf))
        say(f"loading {args.model} in {args.dtype}")
        dtypes = {"f32": torch.float32, "f64": torch.float64, "bf16": torch.bfloat16, "f16": torch.float16}
        model = load(args.model, dtypes[args.dtype], args.attn)
        record = Recorder(out, args.dtype)
        exact = args.dtype == "f64"
        if exact:
            make_exact(model)
        hook(model, record)
        wrap_attention(model, record, args.attn, exact)
        hidden = HIDDEN_BY_SDPA if args.attn == "sdpa" else []
        if hidden:
            say("attention is sdpa, which does not show qk, scores and probs: not recorded (use --attn eager)")
        decoded = run(model, record, tokens, len(fixed) or args.decode, fixed)
        note = {
            "producer": {"name": NAME, "version": VERSION, "torch": torch.__version__, "transformers": transformers.__version__},
            "model": args.model.resolve().name, "architecture": model.config.model_type, "tokens": tokens, "decode_tokens": decoded,
            "precision": "exact" if exact else args.dtype, "qk_rows": "half", "attention": args.attn,
        }
        if hidden:
            note["not_recorded"] = {"taps": hidden, "reason": "attention implementation sdpa does not show them"}
        out.finish(note)
        say_done(out, len(out.entries), decoded)


def main():
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_OFFLINE="1", HF_HUB_DISABLE_TELEMETRY="1")
    return exit_code(lambda: dump(arguments()), "torch==2.9.1 transformers==4.57.1")
