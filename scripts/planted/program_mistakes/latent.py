"""Latent attention."""

import math

from scripts.planted.program_mistakes.parts import heads_of, rows
from scripts.planted.program_mistakes.sets import first, fourth, mistake, second, text, third

text(first, 211, "latent-rope-part-first", "unlisted",
     (r"query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)", "query_states = torch.cat((q_rot, q_pass), dim=-1)"))
text(first, 212, "latent-key-position-of-other-token", "unlisted",
     (r"k_rot = k_rot\.expand\(\*k_pass\.shape\[:-1\], -1\)", "k_rot = k_rot.roll(1, -2).expand(*k_pass.shape[:-1], -1)"))
text(first, 213, "latent-keys-for-values", "unlisted fused-split", (r"k_pass, value_states = torch\.split\(k_pass, \[self\.qk_nope_head_dim, self\.v_head_dim\], dim=-1\)",
                                           "value_states, k_pass = torch.split(k_pass, [self.v_head_dim, self.qk_nope_head_dim], dim=-1)"))


@mistake(first, 214, "latent-scale-without-rope-part", "score-scale")
def latent_scale(site):
    return site.set(["scaling"], lambda scale, module: scale * math.sqrt(module.qk_head_dim / module.qk_nope_head_dim) if hasattr(module, "qk_nope_head_dim") else None)


@mistake(first, 215, "latent-scale-without-mscale", "score-scale")
def latent_mscale(site):
    return site.set(["scaling"], lambda scale, module: module.qk_head_dim ** -0.5 if hasattr(module, "qk_nope_head_dim") and abs(scale - module.qk_head_dim ** -0.5) > 1e-6 else None)


text(second, 243, "latent-split-rope-first", "fused-split unlisted",
     (r"k_pass, k_rot = torch\.split\(compressed_kv, \[self\.kv_lora_rank, self\.qk_rope_head_dim\]",
                                                        "k_rot, k_pass = torch.split(compressed_kv, [self.qk_rope_head_dim, self.kv_lora_rank]"))
text(second, 244, "latent-query-split-rope-first", "fused-split unlisted",
     (r"q_pass, q_rot = torch\.split\(q_states, \[self\.qk_nope_head_dim, self\.qk_rope_head_dim\]",
                                                              "q_rot, q_pass = torch.split(q_states, [self.qk_rope_head_dim, self.qk_nope_head_dim]"))
text(second, 245, "latent-rope-of-key-left-out", "rope-omitted unlisted", (r"q_rot, k_rot = (apply_rotary_pos_emb\w*\(q_rot, k_rot, .*\))$", r"q_rot = \1[0]"))
text(second, 246, "latent-scaled-twice", "unlisted",
     (r"self\.kv_b_proj\(self\.kv_a_layernorm\(k_pass\)\)", "self.kv_b_proj(self.kv_a_layernorm(k_pass) * k_pass.shape[-1] ** -0.5)"))


@mistake(second, 247, "latent-rows-in-blocks", "fused-split")
def latent_rows(site):
    """Keys and values of all heads in blocks, where they lie head by head."""
    heads = heads_of(site)[0]
    return heads > 0 and rows(site, lambda name, module: name.endswith("kv_b_proj"),
                              lambda rows: rows.unflatten(0, (2, heads, -1)).transpose(0, 1).flatten(0, 2))


@mistake(second, 248, "latent-mscale-once", "score-scale")
def latent_scale_once(site):
    def once(scale, module):
        plain = module.qk_head_dim ** -0.5 if hasattr(module, "qk_nope_head_dim") else scale
        return (scale * plain) ** 0.5 if abs(scale - plain) > 1e-6 else None

    return site.set(["scaling"], once)


text(third, 233, "latent-key-not-brought-into-halves", "rope-pairing qk-row-order unlisted",
     (r"    k = k\.view\(b, h, s, d // 2, 2\)\.transpose\(4, 3\)\.reshape\(b, h, s, d\)\n", ""), where="apply_rotary_pos_emb_interleave")
text(third, 234, "latent-rotated-part-of-next-head", "unlisted", (r"query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)",
     "query_states = torch.cat((q_pass, q_rot.roll(1, 1)), dim=-1)"))
text(third, 235, "latent-rotated-part-left-out", "unlisted", (r"key_states = torch\.cat\(\(k_pass, k_rot\), dim=-1\)", "key_states = torch.cat((k_pass, 0 * k_rot), dim=-1)"))
text(third, 236, "latent-norm-on-rotated-part-too", "unlisted", (r"k_rot = k_rot\.view\(batch_size, 1, seq_length, self\.qk_rope_head_dim\)",
     "k_rot = torch.nn.functional.rms_norm(k_rot, k_rot.shape[-1:]).view(batch_size, 1, seq_length, self.qk_rope_head_dim)"))
text(third, 237, "latent-query-norm-for-keys", "norm-wrong-weight", (r"self\.kv_a_layernorm\(k_pass\)", "self.q_a_layernorm(k_pass)"))
text(third, 238, "latent-rotated-part-of-q-reversed", "unlisted", (r"query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)",
     "query_states = torch.cat((q_pass, q_rot.flip(-1)), dim=-1)"))
text(fourth, 168, "latent-norm-over-rotated-part-too", "norm-width unlisted", (r"self\.kv_a_layernorm\(k_pass\)",
     "(self.kv_a_layernorm.weight * (k_pass * torch.rsqrt(compressed_kv.pow(2).mean(-1, keepdim=True) + 1e-6)))"))
text(fourth, 169, "latent-values-of-next-head", "unlisted", (r"(k_pass, value_states = torch\.split\(.*\))$", r"\1; value_states = value_states.roll(1, 1)"))
text(fourth, 170, "latent-unrotated-part-rotated-too", "rope-partial unlisted", (r"^( +)query_states = torch\.cat\(\(q_pass, q_rot\), dim=-1\)",
     r"\1q_pass, k_pass = [torch.cat((turned, part[..., turned.shape[-1] :]), -1) for turned, part in zip(apply_rotary_pos_emb(q_pass[..., : q_rot.shape[-1]], "
     r"k_pass[..., : q_rot.shape[-1]], cos, sin), (q_pass, k_pass))]\n"
     r"\1query_states = torch.cat((q_pass, q_rot), dim=-1)"))
text(fourth, 171, "latent-norm-behind-projection", "unlisted norm-omitted linear-input", (r"self\.kv_b_proj\(self\.kv_a_layernorm\(k_pass\)\)",
     "torch.nn.functional.rms_norm(self.kv_b_proj(k_pass), (self.kv_b_proj.out_features,))"))
