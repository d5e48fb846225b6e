"""Heads, their context, the cache of keys and values, and attention to an encoder."""

from scripts.planted.program_mistakes.parts import IN_8_BITS
from scripts.planted.program_mistakes.sets import first, fourth, held, second, text, third

REPEAT = r"hidden_states = hidden_states\[:, :, None, :, :\]\.expand\(batch, num_key_value_heads, n_rep, slen, head_dim\)"
text(first, 119, "kv-heads-in-turn", "kv-head-map", (REPEAT, "hidden_states = hidden_states[:, None].expand(batch, n_rep, num_key_value_heads, slen, head_dim)"))
text(first, 120, "kv-head-0", "kv-head-map", (REPEAT, "hidden_states = hidden_states[:, :1, None].expand(batch, num_key_value_heads, n_rep, slen, head_dim)"))
text(first, 121, "kv-heads-of-v-in-turn", "kv-head-map",
     (r"(value_states = )repeat_kv\((\w+), (module|self)\.num_key_value_groups\)", r"\1\2.repeat(1, \3.num_key_value_groups, 1, 1)"))
MERGE = (r"attn_output = attn_output\.transpose\(1, 2\)(\.contiguous\(\))?", r"x = x\.permute\(0, 2, 1, 3\)", r"(attn_output|context_layer|context_states) = \1\.permute\(0, 2, 1, 3\)")
text(first, 122, "context-not-transposed", "context-layout",
     (MERGE[0], "attn_output = attn_output.reshape(attn_output.shape[0], attn_output.shape[2], attn_output.shape[1], -1)"),
     (MERGE[1], "x = x.reshape(x.shape[0], x.shape[2], x.shape[1], -1)"), (MERGE[2], r"\1 = \1.reshape(\1.shape[0], \1.shape[2], \1.shape[1], -1)"),
     where=r"eager|_merge_heads|ttention")
text(first, 123, "context-elements-first", "context-layout", (MERGE[0], r"attn_output = attn_output.permute(0, 2, 3, 1).contiguous()"),
     where="eager_attention_forward")
text(first, 124, "context-heads-reversed", "unlisted context-layout", (MERGE[0], r"attn_output = attn_output.flip(1).transpose(1, 2).contiguous()"),
     (MERGE[2], r"\1 = \1.flip(1).permute(0, 2, 1, 3)"))
text(first, 125, "context-last-head-lost", "unlisted",
     (MERGE[0],
      r"attn_output = (attn_output * (torch.arange(attn_output.shape[1]) < attn_output.shape[1] - 1)[:, None, None]).transpose(1, 2).contiguous()"))
CACHED = r"self\.{0} = torch\.cat\(\[self\.{0}, {1}\], dim=-2\)"
text(first, 126, "cache-newest-key-missing", "kv-cache-stale",
     (CACHED.format("keys", "key_states"), "self.keys = torch.cat([self.keys, self.keys[..., -1:, :] if self.keys.numel() else key_states], dim=-2)"))
text(first, 127, "cache-newest-value-missing", "kv-cache-stale",
     (CACHED.format("values", "value_states"),
      "self.values = torch.cat([self.values, 0 * value_states if self.values.numel() else value_states], dim=-2)"))
text(first, 128, "cache-new-key-first", "kv-cache-shift unlisted",
     (CACHED.format("keys", "key_states"), "self.keys = torch.cat([key_states, self.keys], dim=-2)"))
text(first, 129, "cache-slot-overwritten", "kv-cache-shift",
     (CACHED.format("keys", "key_states"),
      "self.keys = torch.cat([self.keys[..., :-1, :], key_states, key_states * 0] if self.keys.numel() else [self.keys, key_states], dim=-2)"))
text(first, 130, "cache-int8", "unlisted precision",
     (CACHED.format("keys", "key_states"), "self.keys = torch.cat([self.keys, (key_states * 20).round() / 20], dim=-2)"))
text(second, 178, "queries-heads-first", "head-layout",
     (r"self\.q_proj\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
      "self.q_proj(hidden_states).view(input_shape[0], -1, input_shape[1], self.head_dim)"),
     (r"self\.query\(hidden_states\)\.view\(\*new_shape\)\.transpose\(1, 2\)",
      "self.query(hidden_states).view(batch_size, self.num_attention_heads, -1, self.attention_head_size)"))
text(second, 179, "keys-heads-first", "head-layout",
     (r"self\.k_proj\(hidden_states\)\.view\(hidden_shape\)\.transpose\(1, 2\)",
      "self.k_proj(hidden_states).view(input_shape[0], -1, input_shape[1], self.head_dim)"),
     (r"self\.key\(hidden_states\)\.view\(\*new_shape\)\.transpose\(1, 2\)",
      "self.key(hidden_states).view(batch_size, self.num_attention_heads, -1, self.attention_head_size)"))
text(second, 180, "keys-heads-apart", "head-layout",
     (r"self\.k_proj\(hidden_states\)\.view\(hidden_shape\)",
      "self.k_proj(hidden_states).view(*hidden_shape[:-2], self.head_dim, -1).transpose(-1, -2)"))
text(second, 181, "kv-heads-reversed", "unlisted kv-head-map",
     (REPEAT, "hidden_states = hidden_states.flip(1)[:, :, None].expand(batch, num_key_value_heads, n_rep, slen, head_dim)"))
text(second, 182, "kv-heads-beyond-last-clamped", "kv-head-map",
     (REPEAT, "hidden_states = torch.stack([hidden_states[:, min(h, num_key_value_heads - 1)] for h in range(num_key_value_heads * n_rep)], 1)"))
text(second, 183, "kv-heads-averaged", "unlisted",
     (REPEAT, "hidden_states = hidden_states.mean(1, keepdim=True)[:, :, None].expand(batch, num_key_value_heads, n_rep, slen, head_dim)"))
text(second, 184, "kv-heads-of-k-in-turn", "kv-head-map",
     (r"(key_states = )repeat_kv\((\w+), (module|self)\.num_key_value_groups\)", r"\1\2.repeat(1, \3.num_key_value_groups, 1, 1)"))
text(second, 185, "queries-of-next-head", "unlisted",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))$", r"\1\2\n\1query_states = query_states.roll(1, 1)"))
text(second, 186, "values-reversed-in-a-head", "unlisted", (r"torch\.matmul\((attn_weights|attention_probs), (\w+)\)", r"torch.matmul(\1, \2.flip(-1))"))
KEYS, VALUES = CACHED.format("keys", "key_states"), CACHED.format("values", "value_states")


def stored(tag, number, name, causes, key="", value=""):
    """What a decode step finds in the cache; written with OLD and NEW."""
    pairs = []
    for what, kind, new, pattern in ((key, "keys", "key_states", KEYS), (value, "values", "value_states", VALUES)):
        what = what.replace("OLD", f"self.{kind}").replace("NEW", new)
        pairs += [(pattern, f"self.{kind} = torch.cat([{what}] if self.{kind}.numel() else [self.{kind}, {new}], dim=-2)")] if what else []
    text(tag, number, name, causes, *pairs)


stored(second, 187, "cache-value-slot-overwritten", "kv-cache-shift", value="OLD[..., :-1, :], NEW, NEW * 0")
stored(second, 188, "cache-oldest-key-lost", "unlisted", "OLD * (torch.arange(OLD.shape[-2]) > 0)[:, None], NEW")
stored(second, 189, "cache-values-for-keys", "unlisted", "self.values, NEW")
stored(second, 190, "cache-heads-and-slots-exchanged", "unlisted head-layout", "OLD.transpose(1, 2).reshape(OLD.shape), NEW")
stored(second, 191, "cache-decoded-key-never-written", "kv-cache-stale", "OLD * (torch.arange(OLD.shape[-2]) < 12)[:, None], NEW")
stored(second, 192, "cache-decoded-value-never-written", "kv-cache-stale", value="OLD * (torch.arange(OLD.shape[-2]) < 12)[:, None], NEW")
stored(second, 193, "cache-prompt-one-slot-late", "kv-cache-shift", "OLD[..., :1, :], OLD[..., :-1, :], NEW")
text(second, 194, "cache-values-in-bf16", "precision unlisted",
     (CACHED.format("values", "value_states"), "self.values = torch.cat([self.values, value_states.bfloat16().type_as(value_states)], dim=-2)"))
text(second, 195, "cache-of-first-layer", "unlisted",
     (r"^( +)(key_states, value_states = past_key_values\.update\(key_states, value_states, self\.layer_idx, cache_kwargs\))$",
      r"\1\2\n\1if key_states.shape[-2] > hidden_states.shape[1]:\n"
      r"\1    key_states = torch.cat([past_key_values.layers[0].keys[..., :-1, :], key_states[..., -1:, :]], -2)"))
text(second, 196, "cache-scaled-when-read", "unlisted score-scale",
     (r"^( +)(key_states, value_states = past_key_values\.update\(key_states, value_states, self\.layer_idx, cache_kwargs\))$",
      r"\1\2\n\1if key_states.shape[-2] > hidden_states.shape[1]:\n\1    key_states = key_states * 1.25"))
text(second, 197, "query-of-latest-position-alone", "unlisted",
     (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))$", r"\1\2\n\1query_states = query_states[..., -1:, :].expand_as(query_states)"))
text(third, 155, "linear-key-heads-in-turn", "kv-head-map unlisted", (r"(query|key)\.repeat_interleave\(self\.num_v_heads // self\.num_k_heads, dim=2\)",
     r"\1.repeat(1, 1, self.num_v_heads // self.num_k_heads, 1)"))
text(third, 156, "context-of-merged-heads-rolled", "unlisted", (r"attn_output = attn_output\.reshape\(\*input_shape, -1\)\.contiguous\(\)",
     "attn_output = attn_output.reshape(*input_shape, -1).roll(1, -1)"))
text(third, 157, "kv-heads-of-v-reversed", "unlisted kv-head-map", (r"(value_states = )(repeat_kv\((\w+), (?:module|self)\.num_key_value_groups\))", r"\1\2.flip(1)"))
text(third, 158, "query-of-each-pair-of-heads-exchanged", "unlisted", (r"^( +)(query_states, key_states = apply_rotary_pos_emb\(.*\))$",
     r"\1\2\n\1query_states = query_states.unflatten(1, (-1, 2)).flip(2).flatten(1, 2)"))
stored(third, 159, "cache-new-value-first", "kv-cache-shift", value="NEW, OLD")
stored(third, 160, "cache-prompt-values-one-slot-early", "kv-cache-shift operation-input", value="OLD[..., 1:, :], OLD[..., -1:, :], NEW")
stored(third, 161, "cache-newest-value-is-last-one", "kv-cache-stale", value="OLD, OLD[..., -1:, :]")
stored(third, 162, "cache-newest-key-is-zero", "kv-cache-stale", "OLD, NEW * 0")
stored(third, 163, "cache-of-other-key-head", "unlisted", "OLD.roll(1, 1), NEW")
stored(third, 164, "cache-keys-averaged", "unlisted", "0.5 * (OLD + OLD.roll(1, -2)), NEW")
stored(third, 165, "cache-values-scaled-when-read", "unlisted", value="OLD * 0.8, NEW")
stored(third, 166, "cache-written-at-half-the-slot", "unlisted", value="OLD[..., :6, :], OLD[..., 7:, :], OLD[..., 6:7, :], NEW")
stored(third, 167, "cache-keys-in-f8", "precision unlisted", "OLD.to(torch.float8_e4m3fn).type_as(OLD), NEW")
text(third, 168, "cache-values-in-8-bits-by-token", "precision", (CACHED.format("values", "value_states"),
     "self.values = torch.cat([self.values, (lambda x, step: (x / step).round() * step)(value_states, value_states.abs().amax(-1, keepdim=True).clamp(min=1e-9) / 127)], dim=-2)"))
text(fourth, 109, "kv-heads-beyond-last-zero", "unlisted kv-head-map", (REPEAT,
     "hidden_states = torch.cat((hidden_states, hidden_states.new_zeros(batch, num_key_value_heads * (n_rep - 1), "
     "slen, head_dim)), 1)"))
text(fourth, 110, "kv-heads-of-each-group-in-turn-of-position", "unlisted kv-head-map",
     (REPEAT, "hidden_states = torch.stack([hidden_states.roll(r, 1) for r in range(n_rep)], 2)"))
OUT = r"self\.(o_proj|out_proj|dense)\(attn_output\)"
text(fourth, 111, "context-normed", "unlisted", (OUT, r"self.\1(torch.nn.functional.rms_norm(attn_output, attn_output.shape[-1:]))"))
text(fourth, 112, "context-of-row-before", "unlisted", (OUT, r"self.\1(attn_output.roll(1, -2))"))
text(fourth, 113, "context-in-8-bits", "precision unlisted", (OUT, r"self.\1(" + IN_8_BITS.format("attn_output") + ")"))
text(fourth, 114, "context-of-even-elements-first", "unlisted context-layout", (OUT, r"self.\1(torch.cat((attn_output[..., ::2], attn_output[..., 1::2]), -1))"))
stored(fourth, 115, "cache-newest-twice-and-oldest-lost", "kv-cache-shift unlisted", "OLD[..., 1:, :], NEW, NEW", "OLD[..., 1:, :], NEW, NEW")
stored(fourth, 116, "cache-prompt-forgotten", "unlisted", "OLD * 0, NEW", "OLD * 0, NEW")
stored(fourth, 117, "cache-values-elements-and-slots-exchanged", "unlisted", value="OLD.transpose(-1, -2).reshape(OLD.shape), NEW")
stored(fourth, 118, "cache-reversed", "unlisted", "OLD.flip(-2), NEW")
stored(fourth, 119, "cache-values-of-other-head", "unlisted kv-head-map", value="OLD.roll(1, 1), NEW")
stored(fourth, 120, "cache-added-to-slot", "unlisted", "OLD, NEW + OLD[..., :1, :]", "OLD, NEW + OLD[..., :1, :]")
text(fourth, 121, "cache-keys-and-values-exchanged", "unlisted", (KEYS, "old = self.keys; self.keys = torch.cat([self.values if old.numel() else old, key_states], dim=-2)"),
     (VALUES, "self.values = torch.cat([old if old.numel() else self.values, value_states], dim=-2)"))
text(fourth, 122, "cross-attention-to-first-row-alone", "unlisted",
     (r"(current_states = key_value_states) if (key_value_states is not None|is_cross_attention) else hidden_states",
     r"\1[:, :1].expand_as(key_value_states) if \2 else hidden_states"))
text(fourth, 123, "cross-values-of-keys", "weight-swapped", (r"value_states = self\.(v_proj|v)\(current_states\)",
     r"value_states = (self.k_proj if hasattr(self, 'k_proj') else self.k)"
     r"(current_states) if is_cross_attention else self.\1(current_states)"))
text(fourth, 124, "cross-queries-not-projected", "unlisted linear-input operation-omitted", (r"query_states = self\.(q_proj|q)\(hidden_states\)",
     r"query_states = (hidden_states if key_value_states is not None else self.\1(hidden_states))"), only=lambda site: getattr(site.config, "is_encoder_decoder", False))
text(fourth, 125, "relative-buckets-without-log", "unlisted", (r"relative_position_if_large = max_exact \+ \((?:.*\n)*?.*\)\.to\(torch\.long\)\n",
     "relative_position_if_large = relative_position\n"))
held(fourth, 126, "relative-bias-of-heads-averaged", "unlisted", r"relative_attention_bias\.weight$", lambda table: table.mean(1, keepdim=True).expand_as(table).contiguous())
text(fourth, 127, "alibi-of-half-the-heads", "unlisted position-bias", (r"alibi = slopes\[", "slopes = slopes * (torch.arange(len(slopes)) % 2)\n    alibi = slopes["),
     (r"alibi = alibi \* slopes", "alibi = alibi * slopes * (torch.arange(slopes.shape[1]) % 2)[None, :, None, None]"))
