"""Small random models of many architectures of transformers: what their configs need beside the sizes that all share."""

import inspect
import math
import re
import warnings

import torch
import transformers
from transformers import CONFIG_MAPPING, AutoConfig, AutoModel, AutoModelForCausalLM
from transformers.modeling_outputs import BaseModelOutput, MoEModelOutput
from transformers.models.auto import modeling_auto

transformers.utils.logging.set_verbosity_error()
warnings.filterwarnings("ignore")

SIZES = dict(hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8, vocab_size=99,
             max_position_embeddings=64)
TOKENS = dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, num_local_experts=4)
LATENT = dict(q_lora_rank=16, kv_lora_rank=16, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8, n_routed_experts=4, num_experts_per_tok=2, n_shared_experts=1,
              moe_intermediate_size=24, first_k_dense_replace=1, num_key_value_heads=4, n_group=2, topk_group=1, head_dim=4)
# Of state-space layers: all names under which their sizes go.
MAMBA = dict(mamba_d_state=8, mamba_d_conv=4, mamba_expand=2)
HEADED_MAMBA = dict(MAMBA, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1, mamba_chunk_size=8)
IMAGES = dict(image_size=16, patch_size=4)
GPT = dict(n_embd=32, n_layer=2, n_head=4, n_positions=64)

DECODERS = {
    **{name: {} for name in ("llama qwen2 qwen3 gemma olmo olmo2 phi3 ernie4_5 hunyuan_v1_dense nemotron arcee helium persimmon seed_oss apertus doge "
                             "gpt_neox").split()},
    **{name: EXPERTS for name in "mixtral qwen3_moe olmoe phimoe granitemoe flex_olmo".split()},
    "mistral": dict(sliding_window=6), "starcoder2": dict(sliding_window=6),
    "gemma2": dict(sliding_window=6, query_pre_attn_scalar=8), "gemma3_text": dict(num_hidden_layers=6, sliding_window=6, query_pre_attn_scalar=8),
    "gemma3n_text": dict(num_hidden_layers=5, intermediate_size=[48] * 5, sliding_window=6, vocab_size_per_layer_input=99, hidden_size_per_layer_input=8, laurel_rank=8,
                         altup_num_inputs=2, num_kv_shared_layers=0, activation_sparsity_pattern=[0.5, 0.5, 0.0, 0.0, 0.0]),
    "cohere": dict(use_qk_norm=True), "cohere2": dict(sliding_window=6, num_hidden_layers=4),
    "exaone4": dict(num_hidden_layers=4, sliding_window=6, sliding_window_pattern=4), "olmo3": dict(num_hidden_layers=4, sliding_window=6),
    "smollm3": dict(num_hidden_layers=4, no_rope_layer_interval=2),
    "phi": dict(num_key_value_heads=4, partial_rotary_factor=0.5), "stablelm": dict(partial_rotary_factor=0.5), "glm": dict(partial_rotary_factor=0.5),
    "glm4": dict(partial_rotary_factor=0.5),
    "granite": dict(embedding_multiplier=3.0, logits_scaling=2.0, residual_multiplier=0.5, attention_multiplier=0.3),
    "qwen2_moe": dict(EXPERTS, shared_expert_intermediate_size=40), "granitemoeshared": dict(EXPERTS, shared_intermediate_size=40),
    "gpt_oss": dict(EXPERTS, sliding_window=6, rope_scaling=None), "hunyuan_v1_moe": dict(EXPERTS, moe_topk=[2, 2]),
    "ernie4_5_moe": dict(EXPERTS, moe_num_experts=4, moe_k=2, moe_num_shared_experts=1, moe_layer_start_index=1),
    "glm4_moe": dict(EXPERTS, n_routed_experts=4, n_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1, partial_rotary_factor=0.5, use_qk_norm=True),
    "llama4_text": dict(num_hidden_layers=4, num_local_experts=4, num_experts_per_tok=1, interleave_moe_layer_step=2, intermediate_size_mlp=48, attention_chunk_size=6,
                        no_rope_layer_interval=2),
    "deepseek_v2": LATENT, "deepseek_v3": LATENT, "dots1": dict(LATENT, num_key_value_heads=2, head_dim=8),
    "minimax": dict(EXPERTS, layer_types=["linear_attention", "full_attention"], block_size=8),
    "qwen3_next": dict(EXPERTS, num_hidden_layers=4, shared_expert_intermediate_size=24, linear_key_head_dim=8, linear_value_head_dim=8, linear_num_key_heads=2,
                       linear_num_value_heads=4, linear_conv_kernel_dim=4),
    "lfm2": dict(num_hidden_layers=3, layer_types=["conv", "full_attention", "conv"], block_auto_adjust_ff_dim=False),
    "recurrent_gemma": dict(num_hidden_layers=3, lru_width=32, attention_window_size=6, num_key_value_heads=1),
    "granitemoehybrid": dict(EXPERTS, **HEADED_MAMBA, shared_intermediate_size=40, layers_block_type=["mamba", "attention"],
                             layer_types=["mamba", "attention"]),
    "falcon_h1": dict(HEADED_MAMBA, mamba_d_ssm=64), "bamba": dict(HEADED_MAMBA, attn_layer_indices=[1]),
    "jamba": dict(EXPERTS, **MAMBA, num_hidden_layers=4, attn_layer_period=2, attn_layer_offset=1, expert_layer_period=2, expert_layer_offset=1, mamba_dt_rank=4,
                  use_mamba_kernels=False),
    "zamba2": dict(attention_head_dim=16, mamba_d_state=8, mamba_headdim=8, n_mamba_heads=8, mamba_ngroups=1, chunk_size=8, num_hidden_layers=4,
                   layers_block_type=["mamba", "hybrid", "mamba", "hybrid"], num_mem_blocks=1, use_mem_rope=True, adapter_rank=4, num_key_value_heads=4, kv_channels=8),
}
# Whose configs name the sizes otherwise: nothing of SIZES.
OWN_NAMES = {
    "gpt2": dict(GPT, n_inner=48), "gptj": dict(GPT, rotary_dim=4), "codegen": dict(GPT, n_ctx=64, rotary_dim=4), "gpt_bigcode": GPT,
    "gpt_neo": dict(hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global", "local"], 1]], window_size=6),
    "bloom": dict(hidden_size=32, n_layer=2, n_head=4), "mpt": dict(d_model=32, n_heads=4, n_layers=2, max_seq_len=64),
    "falcon": dict(hidden_size=32, num_attention_heads=4, num_hidden_layers=2, new_decoder_architecture=False, multi_query=True, parallel_attn=True, alibi=False),
    **{name: dict(hidden_size=32, num_hidden_layers=2, state_size=8, conv_kernel=4, expand=2) for name in ("mamba", "falcon_mamba")},
    "mamba2": dict(hidden_size=32, num_hidden_layers=2, state_size=8, conv_kernel=4, expand=2, num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
    "rwkv": dict(hidden_size=32, num_hidden_layers=2, attention_hidden_size=32, intermediate_size=48, context_length=64),
}
OPT = {"opt": dict(ffn_dim=48, word_embed_proj_dim=32)}
ENCODERS = {
    "bert": {}, "roberta": {}, "modernbert": dict(local_attention=4, global_attn_every_n_layers=2, reference_compile=False), "clip_text_model": {},
    "deberta-v2": dict(relative_attention=True, pos_att_type=["c2p", "p2c"], max_relative_positions=16),
}
OWN_ENCODERS = {
    "distilbert": dict(dim=32, n_layers=2, n_heads=4, hidden_dim=48, max_position_embeddings=64),
    "t5": dict(d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, num_decoder_layers=2),
    "whisper": dict(d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48,
                    max_source_positions=30, num_mel_bins=16),
}
VISION = {name: IMAGES for name in "vit dinov2 siglip_vision_model clip_vision_model".split()}
PARTS = {"t5": "T5EncoderModel", "clip_text_model": "CLIPTextModel", "clip_vision_model": "CLIPVisionModel", "siglip_vision_model": "SiglipVisionModel"}
# Of these the default config is taken, and each size made small by the name of its field.
SHRUNK = ("aimv2_vision_model albert aya_vision bart bert-generation biogpt bitnet blenderbot blenderbot-small camembert code_llama cohere2_vision "
          "ctrl data2vec-text data2vec-vision deberta deepseek_vl deepseek_vl_hybrid deit diffllama electra ernie flaubert fuyu gemma3 git got_ocr2 "
          "gpt-sw3 gpt_neox_japanese granite_speech ibert idefics2 idefics3 ijepa imagegpt internvl jetmoe kosmos-2.5 layoutlm led lfm2_vl llava "
          "llava_next llava_next_video llava_onevision longformer m2m_100 marian mbart megatron-bert mistral3 mlcd mobilebert modernbert-decoder "
          "moshi mpnet mra mt5 mvp nezha nllb-moe nystromformer openai-gpt ovis2 paligemma pegasus pegasus_x plbart poolformer qwen2_audio rembert "
          "roberta-prelayernorm roc_bert roformer seamless_m4t seamless_m4t_v2 shieldgemma2 smolvlm squeezebert swiftformer t5gemma trocr umt5 van "
          "vaultgemma vipllava vit_mae vit_msn voxtral xglm xlm xlm-roberta xlm-roberta-xl").split()
FIELDS = [
    (r"num_hidden_layers|n_layers?|num_layers|(num_)?(encoder|decoder)_layers|depth|n_block|num_blocks", 2),
    (r"num_attention_heads|n_heads?|num_heads|(num_)?(encoder|decoder)_attention_heads", 4),
    (r"num_key_value_heads|n_kv_heads|num_kv_heads|(encoder|decoder)_num_key_value_heads", 2),
    (r"hidden_size|d_model|n_embd?|n_embed|embed_dim|dim|embedding_size|emb_dim|word_embed_proj_dim|projection_dim|out_hidden_size|text_hidden_size", 32),
    (r"intermediate_size(_mlp)?|(encoder_|decoder_)?ffn_dim|d_ff|ffn_hidden_size|n_inner|hidden_dim|dim_ff|mlp_dim|shared(_expert)?_intermediate_size", 48),
    (r"moe_intermediate_size", 24), (r"head_dim|d_kv|attention_head_dim|qk_head_dim|qk_nope_head_dim|v_head_dim", 8), (r"qk_rope_head_dim", 4), (r"vocab_size(_per_layer_input)?", 99), (r"hidden_size_per_layer_input", 8),
    (r"max_position_embeddings|n_positions|max_seq_len|n_ctx|max_sequence_length|seq_length|max_(source|target)_positions", 64),
    (r"d_head", 8), (r"num_frames", 4), (r"image_size|input_size", 16), (r"patch_size", 4), (r"mm_tokens_per_image", 4),
    (r"num_mel_bins|q_lora_rank|kv_lora_rank", 16), (r"num_experts|num_local_experts|n_routed_experts|moe_num_experts", 4),
    (r"num_experts_per_tok(en)?|moe_k|moe_topk", 2), (r"n_shared_experts|n_group|topk_group|first_k_dense_replace", 1), (r"sliding_window|local_attention", 6),
]
# Of these an image is given too, beside the tokens that stand for it: `llava+image`.
SEEING = "aya_vision cohere2_vision deepseek_vl gemma3 llava ovis2 paligemma".split()
# transformers 5 carries all experts of a layer out in one operation, on rows in the order of their experts (`+grouped`), or on a copy of the weights for
# each row (`+batched`); rows without either are recorded with a loop over experts, as attention is recorded in its parts.
EXPERTS_AT_ONCE = {"grouped": "grouped_mm", "batched": "batched_mm"}
AT_ONCE = [f"{name}+{how}" for name in "mixtral qwen3_moe gpt_oss deepseek_v3 granitemoe".split() for how in EXPERTS_AT_ONCE]
HAS_EXPERTS_AT_ONCE = hasattr(transformers.PretrainedConfig, "_experts_implementation")
# Who return no cache that they were not given: `generate` makes theirs, and each of its forward calls is a step.
GENERATED = set("granitemoehybrid falcon_h1 bamba jamba recurrent_gemma mamba falcon_mamba mamba2 rwkv mpt".split())
KINDS = [("AutoModelForSeq2SeqLM", "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM"), ("AutoModelForCausalLM", "MODEL_FOR_CAUSAL_LM"),
         ("AutoModelForMaskedLM", "MODEL_FOR_MASKED_LM"), ("AutoModelForImageTextToText", "MODEL_FOR_IMAGE_TEXT_TO_TEXT"), ("AutoModel", "MODEL_FOR_IMAGE"),
         ("AutoModel", "MODEL_FOR_TEXT_ENCODING")]
# Those with a config of their own here, and those made small from their default one.
CONFIGURED = [*DECODERS, *OWN_NAMES, *OPT, *ENCODERS, *OWN_ENCODERS, *VISION]
ALL = [*CONFIGURED, *(name for name in SHRUNK if name in CONFIG_MAPPING), *(f"{name}+image" for name in SEEING), *(AT_ONCE if HAS_EXPERTS_AT_ONCE else [])]


def others():
    """The types of transformers with a language model or an encoder that are not recorded."""
    return sorted({name for _, kind in KINDS for name in getattr(modeling_auto, f"{kind}_MAPPING_NAMES")} - set(ALL))


def small(given):
    """A config's fields with small sizes."""
    found, kept = {}, layers_kept(given)
    stages = any(isinstance(given.get(key), (list, tuple)) for key in ("depths", "hidden_sizes", "patch_sizes"))  # each halves the image
    latent = given.get("kv_lora_rank") or given.get("qk_rope_head_dim")
    for key, value in given.items():
        if isinstance(value, dict) and key.startswith("rope_"):
            found[key] = {name: sections(item) if name == "mrope_section" else item for name, item in value.items()}
        elif isinstance(value, dict) and value and all(isinstance(layer, int) or layer.isdigit() for layer in value):
            found[key] = {kept.index(int(layer)): small(item) if isinstance(item, dict) else item for layer, item in value.items() if int(layer) in kept}
        elif isinstance(value, dict) and key != "id2label":
            found[key] = small(value)
        elif key in ("out_features", "out_indices", "stage_names", "_out_features", "_out_indices"):
            continue  # what follows from the number of layers
        elif kept and is_per_layer(value, given):
            found[key] = [value[layer] for layer in kept]
        elif key == "layer_types" and isinstance(value, list):
            kinds = list(dict.fromkeys(value))
            found[key] = kinds if len(kinds) > 1 else kinds * 2
        elif key.endswith("_token_id") and isinstance(value, (int, list)):
            found[key] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}.get(key, 98)
        elif key == "head_dim" and (value is None or latent):
            found[key] = 4 if latent else 8  # of latent attention: what is rotated
        elif key == "image_size" and stages:
            found[key] = 64
        elif key == "num_key_value_heads" and latent:
            found[key] = 4
        else:
            sized = isinstance(value, int) and not isinstance(value, bool) and value
            found[key] = next((size for field, size in FIELDS if sized and re.fullmatch(field, key)), value)
    if isinstance(found.get("layer_types"), list):
        found["num_hidden_layers"] = len(found["layer_types"])
    elif kept:
        found["num_hidden_layers"] = len(kept)
    return found


def is_per_layer(value, given):
    """Whether a list has one entry for each layer."""
    count = given.get("num_hidden_layers")
    return isinstance(value, (list, tuple)) and isinstance(count, int) and count > 4 and len(value) == count


def layers_kept(given):
    """Of a config with lists of one entry for each layer: the first two layers, and the first of each other kind."""
    lists = [value for value in given.values() if is_per_layer(value, given)]
    own = [value for value in given.values() if isinstance(value, dict) and value and all(str(layer).isdigit() for layer in value)]
    if not lists and not own:
        return []
    count = given.get("num_hidden_layers") or 0
    kinds = {}
    for layer in range(count):
        kind = *(str(value[layer]) for value in lists), *(str(value.get(layer, value.get(str(layer)))) for value in own)
        kinds.setdefault(kind, layer)
    return sorted({0, 1, *list(kinds.values())[:4]})


def sections(given):
    """The parts of a head's pairs that rotate by each position, of a head of 8."""
    return [2, 1, 1] if len(given) == 3 else given


def shrunk(name):
    """A small model of a type from its default config."""
    found = small(CONFIG_MAPPING[name]().to_dict())
    text = found.get("text_config") if "vision_config" in found else None
    if isinstance(text, dict) and isinstance(rope := text.get("rope_parameters"), dict) and "mrope_section" not in rope:
        pairs = 4 * rope.get("partial_rotary_factor", 1)
        rope["mrope_section"] = [2, 1, 1] if pairs >= 4 else [1, 1, 0]  # where positions of images have three axes
    made = CONFIG_MAPPING[name].from_dict(found)
    in_parts(made)
    auto = next(getattr(transformers, auto) for auto, kind in KINDS if name in getattr(modeling_auto, f"{kind}_MAPPING_NAMES"))
    with torch.device("meta"):
        count = sum(weight.numel() for weight in auto.from_config(made).parameters())
    if count > 3e7:
        raise ValueError(f"{count / 1e6:.0f} M parameters with small sizes")
    return auto.from_config(made)


def in_parts(config):
    """Attention and experts in the operations that they are made of."""
    config._attn_implementation = "eager"
    if HAS_EXPERTS_AT_ONCE:
        config._experts_implementation = "eager"


def config(name):
    plain = {key: value for key, value in SIZES.items() if key not in ("head_dim", "num_key_value_heads")}
    for table, sizes in ((DECODERS, SIZES | TOKENS), (OWN_NAMES, {"vocab_size": 99} | TOKENS), (OPT, plain | TOKENS), (ENCODERS, plain | TOKENS),
                         (OWN_ENCODERS, {"vocab_size": 99} | TOKENS), (VISION, {key: value for key, value in plain.items() if key != "vocab_size"})):
        if name in table:
            made = AutoConfig.for_model(name, **{**sizes, **table[name]})
            in_parts(made)
            return made
    return None


def build(name):
    """A model with weights that leave no operation without effect, in eval mode."""
    name, _, how = name.partition("+")
    seeing = how == "image"
    torch.manual_seed(7)
    made = config(name)
    if made is None:
        model = shrunk(name)
    elif name in PARTS:
        model = getattr(transformers, PARTS[name])(made)
    elif name in ENCODERS or name in OWN_ENCODERS or name in VISION:
        model = AutoModel.from_config(made)
        model = model.encoder if name == "whisper" else model
    else:
        model = AutoModelForCausalLM.from_config(made, attn_implementation="eager")
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if any(word in key for word in ("A_log", "dt_bias", "rg_lru", "time_")) or key.endswith(".D"):
                continue
            if weight.dim() < 2:
                weight.add_(torch.randn(weight.shape, generator=generator) * 0.1)
            else:
                inputs = weight[0].numel() if weight.dim() == 4 else weight.shape[-1] if weight.dim() == 2 else weight.shape[-2]
                weight.normal_(0, 1.3 / math.sqrt(inputs), generator=generator)
        for key, value in model.named_buffers():
            if "e_score_correction_bias" in key:
                value.normal_(0, 0.1, generator=generator)
    if seeing and hasattr(model.config, "image_token_index"):
        model.config.image_token_index = 98  # of a small vocabulary
    if how in EXPERTS_AT_ONCE:
        model.set_experts_implementation(EXPERTS_AT_ONCE[how])
    return model.eval()


def inputs(name, model):
    generator = torch.Generator().manual_seed(5)
    if model.main_input_name == "pixel_values":
        seen = next((part for key in ("vision_config", "encoder") if (part := getattr(model.config, key, None)) is not None), model.config)
        size = getattr(model.config, "image_size", getattr(seen, "image_size", None))
        frames = [model.config.num_frames] if hasattr(model.config, "num_frames") else []
        size = size if isinstance(size, int) else 16 if hasattr(model.config, "patch_size") else 64
        return dict(pixel_values=torch.randn(1, *frames, getattr(model.config, "num_channels", 3), size, size, generator=generator))
    if name == "whisper":
        return dict(input_features=torch.randn(1, 16, 60, generator=generator))
    ids = dict(input_ids=torch.tensor([[5, 17, 42, 8, 91, 33, 60, 12, 77, 25, 3, 50]]))
    if name.endswith("+image"):
        return with_image(model, ids["input_ids"], torch.randn(1, 3, 16, 16, generator=generator))
    return ids | dict(decoder_input_ids=torch.tensor([[2, 9, 31, 4, 8]])) if is_translator(model) else ids


def with_image(model, ids, pixels):
    """An image and tokens: as many of them stand for it as the model makes of it."""
    with torch.no_grad():
        features = model.model.get_image_features(pixel_values=pixels)
    features = getattr(features, "pooler_output", features)  # of transformers 5
    features = features if isinstance(features, torch.Tensor) else features[0]
    place = getattr(model.config, "image_token_id", None) or model.config.image_token_index
    image = torch.full((1, features.numel() // features.shape[-1]), place)
    return dict(pixel_values=pixels, input_ids=torch.cat([ids[:, :2], image, ids[:, 2:]], 1))


def is_translator(model):
    """Whether it decodes what another stack has read."""
    return getattr(model.config, "is_encoder_decoder", False) and model.can_generate()


def place(model, at):
    """The place of a token, told to a model that takes it, as `generate` does: some ask the cache of layer 0, which may keep no keys."""
    return {"cache_position": torch.tensor([at])} if "cache_position" in inspect.signature(model.forward).parameters else {}


def run(model, name, decoded=(7, 19)):
    """A prefill, and decode steps where the model gives a cache."""
    given = {key: value.to(model.dtype) if value.is_floating_point() else value for key, value in inputs(name, model).items()}
    if name.partition("+")[0] in GENERATED:
        length = given["input_ids"].shape[1]
        # The same tokens whatever the weights are; the last one is fed to nobody.
        model.generate(**given, max_new_tokens=len(decoded) + 1, min_new_tokens=len(decoded) + 1, do_sample=False, use_cache=True,
                       prefix_allowed_tokens_fn=lambda _, ids: [[*decoded, 5][len(ids) - length]])
        return
    with torch.no_grad():
        out = model(**given)
        for at, token in enumerate(decoded):
            cache = getattr(out, "past_key_values", None)
            if cache is None:
                return
            ids = torch.tensor([[token]])
            if is_translator(model):
                read = MoEModelOutput(out.encoder_last_hidden_state) if hasattr(out, "encoder_router_logits") else BaseModelOutput(out.encoder_last_hidden_state)
                out = model(decoder_input_ids=ids, encoder_outputs=read, past_key_values=cache)
            else:
                out = model(input_ids=ids, past_key_values=cache, **place(model, given["input_ids"].shape[1] + at))
