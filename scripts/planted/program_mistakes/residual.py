"""The residual stream: which branch is added, to what, and the order of layers."""

import re

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import exchange, IN_8_BITS, layers_of
from scripts.planted.program_mistakes.sets import first, fourth, mistake, second, text, third, UNLISTED

ADD = r"(hidden_states|hidden_state) = residual \+ \1$"
text(first, 150, "branch-omitted", "residual-source residual-scale layer-skipped ~weight-unset", (ADD, r"\1 = residual"),
     (r"hidden_states = \(residual \+ hidden_states\)\.view", "hidden_states = residual.view"), one=True)
text(first, 151, "stream-omitted", "residual-omitted residual-scale residual-source", (ADD, r"\1 = \1"), (r"out = residual \+ out", "out = out"),
     (r"hidden_states = attn_output \+ residual", "hidden_states = attn_output"),
     (r"hidden_states = \(residual \+ hidden_states\)\.view", "hidden_states = hidden_states.view"), one=True)
text(first, 152, "stream-twice", "residual-source residual-scale", (ADD, r"\1 = residual + residual + \1"),
     (r"out = residual \+ out", "out = 2 * residual + out"), one=True)
text(first, 153, "branch-halved", "residual-scale", (ADD, r"\1 = residual + 0.5 * \1"), (r"out = residual \+ out", "out = residual + 0.5 * out"), one=True)
text(first, 154, "branch-subtracted", "residual-scale", (ADD, r"\1 = residual - \1"), one=True)
text(first, 155, "stream-normed", "residual-source",
     (r"^( +)residual = hidden_states\n((?: *#.*\n|\s*\n)*) +(hidden_states = self\.\w*(?:norm|ln)\w*\(hidden_states\))",
      r"\1\3\n\1residual = hidden_states\n"), one=True, where=r"Layer|Block")
text(first, 156, "stream-before-attention", "residual-source",
     (r"\A((?:.*\n)*?)( +)residual = hidden_states\n((?:.*\n)*?) +residual = hidden_states\n", r"\1\2residual = hidden_states\n\3"),
     where=r"(Layer|Block)\.forward")
text(first, 157, "residual-multiplier-omitted", "residual-scale", (r" \* self\.residual_multiplier", ""), one=True)
text(first, 158, "sequential-as-parallel", "residual-parallel",
     (r"\A((?:.*\n)*?)( +)residual = hidden_states\n((?:.*\n)*?)( +)(hidden_states = self\.(?:post_attention_layernorm|pre_feedforward_layernorm|ln_2))\(hidden_states\)",
      r"\1\2residual = begin = hidden_states\n\3\4\5(begin)"), where=r"(Layer|Block)\.forward")
text(first, 159, "parallel-as-sequential", "residual-parallel unlisted",
     (r"hidden_states_mlp = self\.mlp\(hidden_states\)", "hidden_states_mlp = self.mlp(self.input_layernorm(residual + hidden_states_attention))"),
     (r"self\.mlp\(self\.post_attention_layernorm\(hidden_states\)\)", "self.mlp(self.post_attention_layernorm(hidden_states + attn_output))"),
     (r"mlp_layernorm_out = attention_layernorm_out", "mlp_layernorm_out = self.input_layernorm(residual + attention_output)"))
text(first, 160, "feed-forward-reads-unnormed", "norm-omitted linear-input", (r"self\.mlp\(hidden_states\)", "self.mlp(residual)"), where=r"Layer|Block")
text(first, 161, "attention-output-dropped-rows", "unlisted",
     (r"attn_output = self\.(o_proj|dense|out_proj)\(attn_output\)$",
      r"attn_output = self.\1(attn_output) * (torch.arange(attn_output.shape[-2]) % 3 != 1)[:, None]"))
text(first, 162, "residual-branch-of-previous-token", "unlisted", (ADD, r"\1 = residual + \1.roll(1, -2)"), one=True)


@mistake(first, 163, "layer-skipped", "layer-skipped", "residual-source")
def layer_skipped(site):
    layers = [(name, module) for name, module in site.modules(lambda name, module: bool(re.search(r"\.\d+$", name)) and re.search(r"Layer|Block", type(module).__name__))
              if not re.search(r"\.\d+\.", name)]

    def make(module, own):
        def forward(hidden_states, *args, **more):
            out = own(hidden_states, *args, **more)
            return (hidden_states, *out[1:]) if isinstance(out, tuple) else hidden_states

        return forward

    return len(layers) > 1 and site.forward([site.rng.choice(layers)], make)


@mistake(first, 164, "layers-in-other-order", UNLISTED, "weight-wrong-layer", "norm-wrong-weight")
def layers_exchanged(site):
    for _, module in site.model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1 and re.search("Layer|Block", type(module[0]).__name__):
            alike = [at for at in range(len(module)) if [p.shape for p in module[at].parameters()] == [p.shape for p in module[0].parameters()]]
            if len(alike) > 1:
                return exchange(site, (f"layer {alike[0]}", module[alike[0]]), (f"layer {alike[1]}", module[alike[1]]))
    return False


text(second, 215, "stream-halved", "residual-scale", (ADD, r"\1 = 0.5 * residual + \1"), (r"out = residual \+ out", "out = 0.5 * residual + out"), one=True)
text(second, 216, "stream-in-bf16", "precision unlisted", (ADD, r"\1 = (residual + \1).bfloat16().type_as(\1)"))
text(second, 217, "residual-multiplier-on-sum", "residual-scale result-scaled", (r"hidden_states = residual \+ hidden_states \* self\.residual_multiplier",
                                                                  "hidden_states = (residual + hidden_states) * self.residual_multiplier"), one=True)
text(second, 218, "residual-multiplier-of-stream", "residual-scale", (r"hidden_states = residual \+ hidden_states \* self\.residual_multiplier",
                                                         "hidden_states = residual * self.residual_multiplier + hidden_states"), one=True)
text(second, 219, "layer-input-added-again", "residual-source residual-scale unlisted",
     (r"\A((?:.*\n)*?)( +)residual = hidden_states\n((?:.*\n)*)( +)hidden_states = residual \+ hidden_states\n",
      r"\1\2residual = begin = hidden_states\n\3\4hidden_states = residual + hidden_states + begin\n"), where=r"(Layer|Block)\.forward")
text(second, 220, "stream-of-previous-token", "unlisted", (ADD, r"\1 = residual.roll(1, -2) + \1"), (r"out = residual \+ out", "out = residual.roll(1, -2) + out"),
     one=True)
text(second, 221, "parallel-branch-dropped", "operation-omitted residual-source",
     (r"attn_outputs \+ (feed_forward_hidden_states \+ residual)", r"\1"), (r"mlp_output \+ attn_output \+ (hidden_states)", r"mlp_output + \1"),
     (r"residual \+ hidden_states_attention \+ (hidden_states_mlp)", r"residual + \1"))
text(second, 222, "parallel-stream-counted-twice", "residual-source residual-scale unlisted",
     (r"attn_outputs \+ feed_forward_hidden_states \+ residual", "attn_outputs + feed_forward_hidden_states + 2 * residual"),
     (r"mlp_output \+ attn_output \+ hidden_states", "mlp_output + attn_output + 2 * hidden_states"),
     (r"residual \+ (hidden_states_attention \+ hidden_states_mlp)", r"2 * residual + \1"))


@mistake(second, 223, "layer-run-twice", UNLISTED)
def layer_twice(site):
    layer = lambda name, module: re.search(r"\.\d+$", name) and re.search(r"Layer$|Block$", type(module).__name__) and not re.search(r"\.\d+\.", name)
    layers = site.modules(layer)

    def make(module, own):
        def forward(hidden_states, *args, **more):
            out = own(hidden_states, *args, **more)
            return own(out[0] if isinstance(out, tuple) else out, *args, **more)

        return forward

    return bool(layers) and not site.model.can_generate() and site.forward([site.rng.choice(layers)], make)


SUMS = [(r"self\.LayerNorm\(hidden_states \+ (input_tensor)\)", "self.LayerNorm({0} hidden_states + {1} input_tensor)"),
        (r"hidden_states = hidden_states \+ input_tensor$", "hidden_states = {0} hidden_states + {1} input_tensor"),
        (r"hidden_states = attention_output \+ hidden_states$", "hidden_states = {0} attention_output + {1} hidden_states"),
        (r"self\.drop_path\((self_attention_output|layer_output)\) \+ hidden_states", r"{0} \1 + {1} hidden_states"),
        (r"hidden_states \+ self\.dropout\((forwarded_states|attention_output\[0\])\)", r"{1} hidden_states + {0} \1"),
        (r"hidden_states = hidden_states \+ (attn_outputs\[0\]|mlp_output)$", r"hidden_states = {1} hidden_states + {0} \1"),
        (r"hidden = hidden \+ (attention|feed_forward)$", r"hidden = {1} hidden + {0} \1")]
summed = lambda branch, stream: [(pattern, to.format(branch, stream)) for pattern, to in SUMS]
text(third, 187, "stream-omitted-in-encoder", "residual-omitted residual-source residual-scale", *summed("1 *", "0 *"), one=True)
text(third, 188, "branch-doubled-in-encoder", "residual-scale", *summed("2 *", "1 *"), one=True)
text(third, 189, "stream-subtracted", "residual-scale sign-flipped", (ADD, r"\1 = \1 - residual"), *summed("1 *", "-1 *"), one=True)
text(third, 190, "branch-added-to-itself", "residual-source residual-scale", (ADD, r"\1 = \1 + \1"), one=True)
text(third, 191, "stream-clamped", "unlisted", (ADD, r"\1 = (residual + \1).clamp(-1.5, 1.5)"), one=True)
text(third, 192, "branch-normed-before-sum", "unlisted", (ADD, r"\1 = residual + torch.nn.functional.normalize(\1, dim=-1)"), one=True)
text(third, 193, "stream-averaged-with-branch", "residual-scale result-scaled", (ADD, r"\1 = (residual + \1) / 2"), one=True)
text(third, 194, "attention-branch-added-for-feed-forward", "residual-source",
     (r"\A((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n((?:.*\n)*)( +)hidden_states = residual \+ hidden_states\n",
      r"\1\2branch = hidden_states\n\2hidden_states = residual + hidden_states\n\3\4hidden_states = residual + branch\n"), where=r"(Layer|Block)\.forward")
text(third, 195, "residual-multiplier-inverse", "residual-scale", (r" \* self\.residual_multiplier", " / self.residual_multiplier"), one=True)
text(third, 196, "stream-kept-before-norm", "residual-source", (r"(hidden_states = self\.(?:input|post_attention)_layernorm\(hidden_states\))\n( +)residual = hidden_states$",
     r"residual = hidden_states\n\2\1"), one=True, where=r"DecoderLayer\.forward")
text(third, 197, "parallel-branch-doubled", "residual-scale unlisted", (r"(residual \+ hidden_states_attention \+) hidden_states_mlp", r"\1 2 * hidden_states_mlp"),
     (r"mlp_output \+ attn_output \+ hidden_states", "2 * mlp_output + attn_output + hidden_states"),
     (r"attn_outputs \+ feed_forward_hidden_states \+ residual", "2 * attn_outputs + feed_forward_hidden_states + residual"))
text(third, 198, "parallel-branch-of-normed-stream", "residual-source unlisted",
     (r"residual \+ hidden_states_attention \+ hidden_states_mlp", "self.input_layernorm(residual) + hidden_states_attention + hidden_states_mlp"),
     (r"attn_outputs \+ feed_forward_hidden_states \+ residual",
     "attn_outputs + feed_forward_hidden_states + (self.ln_1 if hasattr(self, 'ln_1') else self.input_layernorm)(residual)"))


@mistake(third, 199, "layers-one-behind", "norm-wrong-weight weight-wrong-layer")
def layers_behind(site):
    """Layer i holds what layer i - 1 has, the first its own."""
    for _, module in site.model.named_modules():
        if isinstance(module, nn.ModuleList) and len(module) > 1 and re.search("Layer|Block", type(module[0]).__name__):
            kept = [[weight.detach().clone() for weight in layer.parameters()] for layer in module]
            if len({tuple(weight.shape for weight in weights) for weights in kept}) == 1:
                with torch.no_grad():
                    for at in range(1, len(module)):
                        for weight, other in zip(module[at].parameters(), kept[at - 1]):
                            weight.copy_(other)
                return site.note(f"{len(module)} layers")
    return False


text(fourth, 140, "attention-output-added-again-at-the-end", "residual-source unlisted",
     (r"\A((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n((?:.*\n)*)( +)hidden_states = residual \+ hidden_states\n",
      r"\1\2branch = hidden_states\n\2hidden_states = residual + hidden_states\n\3\4hidden_states = residual + hidden_states + branch\n"),
      where=r"(Layer|Block)\.forward")
text(fourth, 141, "branch-clamped", "unlisted", (ADD, r"\1 = residual + \1.clamp(-0.5, 0.5)"), one=True)
text(fourth, 142, "branch-of-first-half-of-elements", "unlisted", (ADD, r"\1 = residual + \1 * (torch.arange(\1.shape[-1]) < \1.shape[-1] // 2)"), one=True)
text(fourth, 143, "stream-in-8-bits", "precision unlisted", (ADD, r"\1 = residual + \1; \1 = " + IN_8_BITS.format(r"\1")))
text(fourth, 144, "stream-of-last-row-alone-in-sum", "unlisted", (ADD, r"\1 = residual[:, -1:] + \1"), one=True)


@mistake(fourth, 145, "stream-of-layer-before", "residual-source unlisted")
def stream_before(site):
    """The buffer that a layer adds to still holds what the layer before it was given."""
    layers, kept = layers_of(site), {}

    def make(module, own):
        def forward(hidden_states, *args, **more):
            out = own(hidden_states, *args, **more)
            before, kept["x"] = kept.get("x"), hidden_states
            if module is layers[0][1] or before is None or before.shape != hidden_states.shape:
                return out
            first = (out[0] if isinstance(out, tuple) else out) - hidden_states + before
            return (first, *out[1:]) if isinstance(out, tuple) else first

        return forward

    return len(layers) > 1 and site.forward(layers, make)


@mistake(fourth, 146, "layer-reads-stream-of-row-before", UNLISTED)
def rows_shifted(site):
    layers = layers_of(site)
    shifted = lambda module, own: lambda hidden_states, *args, **more: own(hidden_states.roll(1, 1), *args, **more)
    return len(layers) > 1 and site.forward([site.rng.choice(layers[1:])], shifted)
