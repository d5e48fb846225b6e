"""The feed-forward part: activations, gate and up."""

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import file_of, IN_8_BITS
from scripts.planted.program_mistakes.sets import first, fourth, mistake, second, text, third

ACTS = ["act_fn", "act", "activation_fn", "activation", "intermediate_act_fn", "gelu_impl"]
FUNCTIONS = {"silu": nn.functional.silu, "gelu-erf": nn.functional.gelu, "gelu-tanh": lambda x: nn.functional.gelu(x, approximate="tanh"), "relu": nn.functional.relu,
             "quick": lambda x: x * torch.sigmoid(1.702 * x), "none": lambda x: x, "squared": lambda x: nn.functional.relu(x) ** 2}


class Plain(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, *more):
        return self.function(x)


def activation(tag, number, name, causes, make):
    """Another activation; `make` has the right one."""
    @mistake(tag, number, name, causes)
    def plant(site):
        done = False
        for owner, module in site.some(site.modules(lambda name, module: any(callable(getattr(module, key, None)) for key in ACTS))):
            for key in (key for key in ACTS if callable(getattr(module, key, None))):
                old = getattr(module, key)
                setattr(module, key, Plain(make(old)) if isinstance(old, nn.Module) else make(old))
                done = site.note(f"{owner}.{key}")
        return done


activation(first, 131, "activation-silu", "activation", lambda old: FUNCTIONS["silu"])
activation(first, 132, "activation-gelu-erf", "activation", lambda old: FUNCTIONS["gelu-erf"])
activation(first, 133, "activation-gelu-tanh", "activation", lambda old: FUNCTIONS["gelu-tanh"])
activation(first, 134, "activation-relu", "activation", lambda old: FUNCTIONS["relu"])
activation(first, 135, "activation-quick-gelu", "activation", lambda old: FUNCTIONS["quick"])
activation(first, 136, "activation-none", "activation gate-product", lambda old: FUNCTIONS["none"])
activation(first, 137, "activation-squared-relu", "unlisted activation", lambda old: FUNCTIONS["squared"])
activation(first, 138, "activation-beta", "unlisted", lambda old: lambda x: x * torch.sigmoid(1.2 * x))
activation(first, 139, "activation-sine", "unlisted", lambda old: torch.sin)
GATED = r"self\.(act_fn|act|activation_fn)\(self\.(gate_proj|w1|wi_0)\((\w+)\)\) \* self\.(up_proj|w3|wi_1)\(\3\)"
text(first, 140, "activation-on-up", "gate-up-swapped", (GATED, r"self.\2(\3) * self.\1(self.\4(\3))"),
     (r"up_states \* self\.activation_fn\(gate\)", "gate * self.activation_fn(up_states)"))
text(first, 141, "gate-added", "gate-product", (GATED, r"self.\1(self.\2(\3)) + self.\4(\3)"),
     (r"up_states \* self\.activation_fn\(gate\)", "up_states + self.activation_fn(gate)"))
text(first, 142, "up-not-applied", "gate-product", (GATED, r"self.\1(self.\2(\3))"))
text(first, 143, "gate-of-previous-token", "unlisted", (GATED, r"self.\1(self.\2(\3.roll(1, -2))) * self.\4(\3)"))
text(first, 144, "gate-normed", "unlisted", (GATED, r"self.\1(torch.nn.functional.normalize(self.\2(\3), dim=-1)) * self.\4(\3)"))
text(first, 145, "up-without-one", "activation-clamp", (r"\(up \+ 1\) \* glu", "up * glu"))
text(first, 146, "up-plus-one", "activation-clamp", (GATED, r"self.\1(self.\2(\3)) * (1 + self.\4(\3))"))
text(first, 147, "glu-without-alpha", "activation activation-clamp", (r"gate \* torch\.sigmoid\(gate \* self\.alpha\)", "gate * torch.sigmoid(gate)"))
text(first, 148, "gate-clamped", "activation-clamp", (r"gate = gate\.clamp\(min=None, max=self\.limit\)", "gate = gate.clamp(min=None, max=0.5)"),
     (GATED, r"self.\1(self.\2(\3).clamp(max=0.5)) * self.\4(\3).clamp(-0.5, 0.5)"))
text(first, 149, "gate-and-up-in-blocks", "fused-split", (r"gate, up = gate_up\[\.\.\., ::2\], gate_up\[\.\.\., 1::2\]", "gate, up = gate_up.chunk(2, dim=-1)"))
activation(second, 198, "activation-sigmoid", "activation", lambda old: torch.sigmoid)
activation(second, 199, "activation-hard-swish", "unlisted", lambda old: nn.functional.hardswish)
activation(second, 200, "activation-mish", "activation", lambda old: nn.functional.mish)
activation(second, 201, "activation-tanh", "activation", lambda old: torch.tanh)
activation(second, 202, "activation-leaky-relu", "activation", lambda old: nn.functional.leaky_relu)
activation(second, 203, "activation-gelu-of-3-digits", "activation precision unlisted", lambda old: lambda x: 0.5 * x * (1 + torch.tanh(0.8 * x * (1 + 0.045 * x * x))))
text(second, 204, "gate-activated-after-product", "unlisted", (GATED, r"self.\1(self.\2(\3) * self.\4(\3))"))
text(second, 205, "gate-activated-in-bf16", "precision unlisted", (GATED, r"self.\1(self.\2(\3).bfloat16()).type_as(\3) * self.\4(\3)"))
text(second, 206, "gate-clipped-below", "unlisted activation-clamp", (GATED, r"self.\1(self.\2(\3).clamp(min=-0.5)) * self.\4(\3)"))
text(second, 207, "up-reads-gate-of-next-token", "unlisted", (GATED, r"self.\1(self.\2(\3)) * self.\4(\3).roll(-1, -2)"))
text(second, 208, "gate-read-twice", "weight-swapped operation-input", (GATED, r"self.\1(self.\2(\3)) * self.\2(\3)"))
HALVED = r"(input, gate|gate, up_states|gate, up) = (self\.Wi\(hidden_states\)|up_states|gate_up)\.chunk\(2, dim=-1\)"
text(second, 209, "gate-and-up-read-in-turn", "fused-split", (HALVED, r"\1 = [part.squeeze(-1) for part in \2.unflatten(-1, (-1, 2)).chunk(2, dim=-1)]"))
text(second, 210, "gate-and-up-halves-exchanged", "gate-up-swapped weight-swapped fused-split", (HALVED, r"\1 = \2.chunk(2, dim=-1)[::-1]"))
text(second, 211, "ffn-norm-reads-branch", "operation-input",
     (r"\A((?:.*\n)*?)( +)hidden_states = residual \+ hidden_states\n((?:.*\n)*?)"
      r"( +hidden_states = self\.(?:post_attention_layernorm|pre_feedforward_layernorm|ln_2)\()hidden_states\)",
      r"\1\2branch = hidden_states\n\2hidden_states = residual + hidden_states\n\3\4branch)"), where=r"(Layer|Block)\.forward")
text(second, 212, "squares-left-out", "operation-omitted activation", (r"torch\.square\(torch\.relu\((self\.key\(key\))\)\)", r"torch.relu(\1)"))
text(second, 213, "receptance-not-activated", "operation-omitted", (r"torch\.sigmoid\((self\.receptance\(receptance\))\)", r"\1"))


@mistake(second, 214, "activation-sparsity-ignored", "operation-omitted unlisted")
def sparsity(site):
    return site.set(["activation_sparsity"], lambda old, module: 0.0 if old else None)


activation(third, 169, "activation-elu", "activation", lambda old: nn.functional.elu)
activation(third, 170, "activation-softplus", "activation", lambda old: nn.functional.softplus)
activation(third, 171, "activation-softsign", "unlisted", lambda old: nn.functional.softsign)
activation(third, 172, "activation-clipped-at-half", "unlisted activation-clamp", lambda old: lambda x: nn.functional.silu(x).clamp(max=0.5))
activation(third, 173, "activation-in-steps", "unlisted precision", lambda old: lambda x: (nn.functional.silu(x) * 16).round() / 16)
text(third, 174, "gate-not-applied", "gate-product", (GATED, r"self.\4(\3)"))
text(third, 175, "up-activated-and-no-gate", "gate-product", (GATED, r"self.\1(self.\4(\3))"))
text(third, 176, "gate-and-up-both-activated", "unlisted", (GATED, r"self.\1(self.\2(\3)) * self.\1(self.\4(\3))"))
text(third, 177, "up-clamped", "activation-clamp", (GATED, r"self.\1(self.\2(\3)) * self.\4(\3).clamp(-0.5, 0.5)"))
text(third, 178, "gate-divides", "unlisted", (GATED, r"self.\4(\3) / (1 + self.\1(self.\2(\3)).abs())"))
text(third, 179, "product-of-first-half-alone", "unlisted", (GATED, r"(lambda y: y * (torch.arange(y.shape[-1]) < y.shape[-1] // 2))(self.\1(self.\2(\3)) * self.\4(\3))"))
text(third, 180, "squares-without-relu", "operation-omitted activation", (r"torch\.square\(torch\.relu\((self\.key\(key\))\)\)", r"torch.square(\1)"))
text(third, 181, "sparsity-without-mean", "operation-omitted", (r"cutoff_x = inputs_mean \+ inputs_std \* std_multiplier", "cutoff_x = inputs_std * std_multiplier"))
text(third, 182, "low-rank-branch-without-stream", "operation-omitted residual-omitted", (r"hidden_states \+ normed_laurel_hidden_states", "normed_laurel_hidden_states"))
text(third, 183, "low-rank-branch-not-divided", "operation-omitted result-scaled number-differs residual-scale",
     (r"\(attn_gated \+ laurel_output\) / math\.sqrt\(2\)", "(attn_gated + laurel_output)"))
text(third, 184, "streams-not-corrected", "operation-omitted unlisted", (r"corrected \+= predictions  # add the original input", "pass"))
text(third, 185, "stream-router-not-scaled", "operation-omitted result-scaled", (r"self\.router_norm\(x\) \* self\.router_input_scale", "self.router_norm(x)"))
text(third, 186, "correction-without-one", "operation-omitted number-differs", (r"self\.correction_coefs\(modalities\) \+ 1\.0", "self.correction_coefs(modalities)"))
activation(fourth, 128, "activation-selu", "unlisted", lambda old: nn.functional.selu)
activation(fourth, 129, "activation-gelu-not-halved", "unlisted result-scaled activation", lambda old: lambda x: x * (1 + torch.erf(x * 0.7071067811865476)))
activation(fourth, 130, "activation-tanh-without-cube", "unlisted activation", lambda old: lambda x: 0.5 * x * (1 + torch.tanh(0.7978845608028654 * x)))
activation(fourth, 131, "activation-twice", "unlisted activation", lambda old: lambda x: old(old(x)))
activation(fourth, 132, "activation-absolute", "unlisted", lambda old: torch.abs)
activation(fourth, 133, "activation-square", "unlisted activation", lambda old: lambda x: old(x) ** 2)
activation(fourth, 134, "activation-on-half-of-elements", "unlisted", lambda old: lambda x: torch.cat((old(x[..., : x.shape[-1] // 2]), x[..., x.shape[-1] // 2:]), -1))
text(fourth, 135, "gate-one-element-late", "unlisted", (GATED, r"self.\1(self.\2(\3)).roll(1, -1) * self.\4(\3)"))
text(fourth, 136, "gate-plus-one", "unlisted activation-clamp", (GATED, r"(1 + self.\1(self.\2(\3))) * self.\4(\3)"))
text(fourth, 137, "product-clamped", "unlisted activation-clamp", (GATED, r"(self.\1(self.\2(\3)) * self.\4(\3)).clamp(-0.4, 0.4)"))
text(fourth, 138, "product-in-8-bits", "precision unlisted", (GATED, r"(lambda y: " + IN_8_BITS.format("y") + r")(self.\1(self.\2(\3)) * self.\4(\3))"))
text(fourth, 139, "feed-forward-reads-input-of-attention", "linear-input residual-parallel unlisted operation-input",
     (r"\A((?:.*\n)*?)( +)(hidden_states = self\.(?:input_layernorm|ln_1|pre_attention_layernorm)\(hidden_states\))\n((?:.*\n)*?.*)self\.mlp\(hidden_states\)",
      r"\1\2\3\n\2first = hidden_states\n\4self.mlp(first)"), where=r"(Layer|Block)\.forward", only=lambda site: "hidden_states_mlp" not in file_of(site))
