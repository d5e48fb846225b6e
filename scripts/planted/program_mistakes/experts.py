"""Mixtures of experts: router, order, shared experts."""

import re

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import exchange
from scripts.planted.program_mistakes.sets import first, fourth, held, mistake, second, text, third, UNLISTED

ROUTED = r"routing_weights = F\.softmax\(router_logits, dim=1, dtype=torch\.float\)"
SUM = r"routing_weights /= routing_weights\.sum\(dim=-1, keepdim=True\)"
text(first, 190, "router-not-renormalised", "unlisted router-norm", (rf"^( +){SUM}", r"\1pass"), (r"if self\.norm_topk_prob:.*", "if not self.norm_topk_prob:"))
text(first, 191, "router-sigmoid", "unlisted router-function router-bias", (ROUTED, "routing_weights = torch.sigmoid(router_logits.float())"),
     (r"router_logits\.sigmoid\(\)", "router_logits.softmax(-1)"))
text(first, 192, "router-softmax-of-chosen", "unlisted router-norm",
     (ROUTED + r"\n( +)routing_weights, selected_experts = torch\.topk\(routing_weights, self\.top_k, dim=-1\)",
      r"routing_weights, selected_experts = torch.topk(router_logits, self.top_k, dim=-1)\n\1routing_weights = routing_weights.float().softmax(-1)"))
text(first, 193, "router-softmax-of-all", "unlisted router-norm",
     (r"router_top_value, router_indices = torch\.topk\(router_logits, self\.top_k, dim=-1\)",
      "router_top_value, router_indices = torch.topk(router_logits.softmax(-1), self.top_k, dim=-1)"),
     (r"router_top_value = torch\.nn\.functional\.softmax\(.*\)", "pass"))
text(first, 194, "router-correction-in-weights", "unlisted router-bias",
     (r"topk_weights = scores\.gather", "topk_weights = (scores + self.e_score_correction_bias).gather"))
text(first, 195, "router-groups-ignored", "unlisted router-bias router-groups",
     (r"scores_for_choice\.masked_fill\(~score_mask\.bool\(\), 0\.0\)", "scores_for_choice"))
text(first, 196, "router-softmax-base", "unlisted softmax-base",
     (ROUTED, "routing_weights = F.softmax(router_logits * 0.6931471805599453, dim=1, dtype=torch.float)"))
text(first, 197, "router-smallest", "unlisted",
     (r"torch\.topk\(routing_weights, self\.top_k, dim=-1\)", "torch.topk(routing_weights, self.top_k, dim=-1, largest=False)"))
text(first, 198, "router-weights-on-input", "unlisted",
     (r"expert_layer\(current_state\) \* routing_weights\[top_x, idx, None\]", "expert_layer(current_state * routing_weights[top_x, idx, None])"),
     (r"expert_output = expert\(expert_input\)\n( +)weighted_output = expert_output \* expert_weights\.unsqueeze\(-1\)",
      r"weighted_output = expert(expert_input * expert_weights.unsqueeze(-1))"))
text(first, 199, "router-weights-ignored", "unlisted", (r"expert_layer\(current_state\) \* routing_weights\[top_x, idx, None\]", "expert_layer(current_state)"),
     (r"expert_output \* expert_weights\.unsqueeze\(-1\)", "expert_output"))
text(first, 200, "router-weights-of-other-choice", "unlisted", (r"routing_weights\[top_x, idx, None\]", "routing_weights[top_x, 1 - idx, None]"))
text(first, 201, "expert-outputs-averaged", "unlisted router-scale",
     (r"expert_layer\(current_state\) \* routing_weights", "expert_layer(current_state) / self.top_k * routing_weights"))
text(first, 202, "shared-expert-omitted", "unlisted shared-expert shared-gate weight-unset residual-source",
     (r"hidden_states = hidden_states \+ self\.shared_experts\(residuals\)", "pass"),
     (r"final_hidden_states = final_hidden_states \+ shared_expert_output", "pass"))
text(first, 203, "shared-expert-gate-omitted", "unlisted shared-gate",
     (r"F\.sigmoid\(self\.shared_expert_gate\(hidden_states\)\) \* shared_expert_output", "shared_expert_output"))
text(first, 204, "shared-expert-reads-routed", "unlisted", (r"self\.shared_experts\(residuals\)", "self.shared_experts(hidden_states)"))


@mistake(first, 205, "router-one-fewer", UNLISTED, "router-topk")
def one_fewer(site):
    return site.set(["top_k"], lambda count, module: count - 1 if count > 1 else None)


@mistake(first, 206, "router-one-more", UNLISTED, "router-topk")
def one_more(site):
    return site.set(["top_k"], lambda count, module: count + 1)


@mistake(first, 207, "router-scale-omitted", "router-scale", UNLISTED)
def router_scale(site):
    return site.set(["routed_scaling_factor"], lambda scale, module: 1.0 if scale != 1.0 else None)


@mistake(first, 208, "router-correction-omitted", "router-bias", UNLISTED)
def correction_omitted(site):
    found = site.some(site.modules(lambda name, module: isinstance(getattr(module, "e_score_correction_bias", None), torch.Tensor)))
    for _, module in found:
        module.e_score_correction_bias.data.zero_()
    return bool(found)


@mistake(first, 209, "experts-rolled", UNLISTED, "expert-order", "weight-wrong-expert")
def experts_rolled(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts"))):
        with torch.no_grad():
            if isinstance(module, nn.ModuleList):
                for weights in zip(*(expert.parameters() for expert in module)):
                    kept = [weight.clone() for weight in weights]
                    for at, weight in enumerate(weights):
                        weight.copy_(kept[at - 1])
                done = site.note(name)
            else:
                stacked = [weight for weight in module.parameters(recurse=False) if weight.dim() > 1]
                for weight in stacked:
                    weight.copy_(weight.roll(1, 0))
                done = done or bool(stacked)
    return done


@mistake(first, 210, "one-expert-unset", "weight-unset", UNLISTED)
def expert_unset(site):
    found = site.linears(lambda name, module: bool(re.search(r"experts\.\d+\.", name)))
    if not found:
        return False
    name, module = site.rng.choice(found)
    module.weight.data.zero_()
    return site.note(name)


text(second, 224, "router-in-bf16", "precision unlisted",
     (r"router_logits = self\.gate\(hidden_states\)", "router_logits = self.gate(hidden_states).bfloat16().type_as(hidden_states)"),
     (r"scores = router_logits\.sigmoid\(\)", "scores = router_logits.bfloat16().float().sigmoid()"))
text(second, 225, "router-function-omitted", "operation-omitted router-bias", (ROUTED, "routing_weights = router_logits.float()"),
     (r"scores = router_logits\.sigmoid\(\)", "scores = router_logits"))
text(second, 226, "router-weights-by-their-largest", "unlisted", (SUM, "routing_weights /= routing_weights.amax(dim=-1, keepdim=True)"),
     (r"topk_weights\.sum\(dim=-1, keepdim=True\) \+ 1e-20", "topk_weights.amax(dim=-1, keepdim=True) + 1e-20"))
text(second, 227, "router-weights-by-sum-of-all", "router-norm unlisted",
     (r"topk_weights\.sum\(dim=-1, keepdim=True\) \+ 1e-20", "scores.sum(dim=-1, keepdim=True) + 1e-20"))
text(second, 228, "router-groups-by-best-expert", "unlisted", (r"\.topk\(2, dim=-1\)\[0\]\n", ".topk(1, dim=-1)[0]\n"))
text(second, 229, "router-choice-without-weights-order", "unlisted",
     (r"^( +)(routing_weights, selected_experts = torch\.topk\(routing_weights, self\.top_k, dim=-1\))$",
      r"\1\2\n\1selected_experts = selected_experts.sort(-1)[0]"))
text(second, 230, "router-weights-applied-twice", "unlisted",
     (r"expert_layer\(current_state\) \* routing_weights\[top_x, idx, None\]",
      "expert_layer(current_state) * routing_weights[top_x, idx, None] ** 2"),
     (r"expert_output \* expert_weights\.unsqueeze\(-1\)", "expert_output * expert_weights.unsqueeze(-1) ** 2"),
     (r"out \* routing_weights\[token_idx, expert_idx, None\]", "out * routing_weights[token_idx, expert_idx, None] ** 2"))
text(second, 231, "router-softmax-of-all-gathered", "router-norm",
     (r"torch\.softmax\(top_k_logits, dim=1\)", "torch.softmax(logits, dim=1).gather(1, top_k_indices)"))
text(second, 232, "router-sigmoid-after-softmax", "unlisted router-bias",
     (ROUTED, "routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float).sigmoid()"))
text(second, 233, "router-weights-on-output", "unlisted",
     (r"routed_in = routed_in \* router_scores\.transpose\(0, 1\)\.reshape\(-1, 1\)", "pass"),
     (r"routed_out = self\.experts\(routed_in\)", "routed_out = self.experts(routed_in) * router_scores.transpose(0, 1).reshape(-1, 1)"))
text(second, 234, "router-one-softmax-for-sigmoid", "router-bias unlisted",
     (r"torch\.nn\.functional\.sigmoid\(router_scores\.float\(\)\)", "torch.nn.functional.softmax(router_scores.float(), dim=-1)"))
TOKENS = r"index_add_\(0, (top_x|token_indices|token_idx), "
text(second, 235, "expert-rows-back-in-other-order", "unlisted", (TOKENS, r"index_add_(0, \1.flip(0), "))
text(second, 236, "expert-capacity-of-4-tokens", "unlisted", (TOKENS, r"index_add_(0, \1, (torch.arange(len(\1)) < 4)[:, None] * "))
text(second, 237, "expert-reads-next-token", "unlisted", (r"current_state = hidden_states\[None, top_x\]", "current_state = hidden_states[None, top_x - 1]"),
     (r"expert_input = hidden_states\[token_indices\]", "expert_input = hidden_states[token_indices - 1]"),
     (r"current_state = hidden_states\[token_idx\]", "current_state = hidden_states[token_idx - 1]"))
text(second, 238, "shared-expert-scaled-as-routed", "unlisted residual-scale",
     (r"hidden_states \+ self\.shared_experts\(residuals\)", "hidden_states + self.gate.routed_scaling_factor * self.shared_experts(residuals)"))
text(second, 239, "shared-expert-gate-without-sigmoid", "operation-omitted", (r"F\.sigmoid\((self\.shared_expert_gate\(hidden_states\))\)", r"\1"))
text(second, 240, "shared-expert-replaces-routed", "operation-omitted unlisted",
     (r"hidden_states = hidden_states \+ (self\.shared_experts\(residuals\))", r"hidden_states = \1"),
     (r"final_hidden_states = final_hidden_states \+ shared_expert_output", "final_hidden_states = shared_expert_output"))


@mistake(second, 241, "router-scale-twice", "router-scale")
def scale_twice(site):
    return site.set(["routed_scaling_factor"], lambda scale, module: scale * scale if scale != 1.0 else None)


@mistake(second, 242, "one-matrix-of-experts-rolled", "expert-order")
def matrix_rolled(site):
    """One kind of matrix is another expert's, the others are its own."""
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts"))):
        with torch.no_grad():
            if isinstance(module, nn.ModuleList) and len(module) > 1:
                key = site.rng.choice([key for key, _ in module[0].named_parameters()])
                weights = [dict(expert.named_parameters())[key] for expert in module]
                kept = [weight.clone() for weight in weights]
                for at, weight in enumerate(weights):
                    weight.copy_(kept[at - 1])
                done = site.note(f"{name} {key}")
            elif stacked := [(key, weight) for key, weight in module.named_parameters(recurse=False) if weight.dim() == 3]:
                key, weight = site.rng.choice(stacked)
                weight.copy_(weight.roll(1, 0))
                done = site.note(f"{name} {key}")
    return done


text(third, 211, "router-weights-divided-by-scale", "router-scale", (r"topk_weights \* self\.routed_scaling_factor", "topk_weights / self.routed_scaling_factor"),
     only=lambda site: getattr(site.config, "routed_scaling_factor", 1.0) != 1.0)
text(third, 212, "router-correction-subtracted", "sign-flipped router-bias",
     (r"\+ self\.e_score_correction_bias\.unsqueeze\(0\)", "- self.e_score_correction_bias.unsqueeze(0)"))
text(third, 213, "router-logits-scaled-as-scores", "result-scaled", (r"router_logits = self\.gate\(hidden_states\)",
     "router_logits = self.gate(hidden_states) * hidden_dim**-0.5"))
text(third, 214, "router-weights-of-all-tokens-sum-to-one", "unlisted", (SUM, "routing_weights /= routing_weights.sum(dim=0, keepdim=True)"))
text(third, 215, "router-weights-reversed", "unlisted", (rf"^( +){SUM}$", r"\g<0>\n\1routing_weights = routing_weights.flip(-1)"))
text(third, 216, "router-weights-normalised-by-root-of-squares", "unlisted", (SUM, "routing_weights /= routing_weights.pow(2).sum(dim=-1, keepdim=True).sqrt()"),
     (r"topk_weights\.sum\(dim=-1, keepdim=True\) \+ 1e-20", "topk_weights.pow(2).sum(dim=-1, keepdim=True).sqrt() + 1e-20"))
text(third, 217, "router-scores-squared", "unlisted", (r"topk_weights = scores\.gather", "topk_weights = scores.pow(2).gather"))
text(third, 218, "router-weights-of-first-choice-one", "unlisted", (ROUTED + r"\n( +)(routing_weights, selected_experts = .*)\n",
     r"routing_weights = F.softmax(router_logits, dim=1, dtype=torch.float)\n\1\2\n"
     r"\1routing_weights = torch.cat((torch.ones_like(routing_weights[:, :1]), routing_weights[:, 1:]), -1)\n"))
text(third, 219, "router-softmax-of-chosen-with-temperature", "unlisted result-scaled",
     (r"torch\.nn\.functional\.softmax\(router_top_value, dim=1", "torch.nn.functional.softmax(router_top_value / 2, dim=1"),
     (r"torch\.softmax\(top_k_logits, dim=1\)", "torch.softmax(top_k_logits / 2, dim=1)"))
text(third, 220, "experts-all-the-first", "unlisted expert-order", (r"expert_layer = self\.experts\[expert_idx\]", "expert_layer = self.experts[0]"),
     (r"expert = self\.experts\[expert_idx\]", "expert = self.experts[0]"))
text(third, 221, "expert-bias-not-weighted", "unlisted", (r"weighted_output = out \* routing_weights\[token_idx, expert_idx, None\]",
     "weighted_output = (out - self.down_proj_bias[expert_idx]) * routing_weights[token_idx, expert_idx, None] + self.down_proj_bias[expert_idx]"))
text(third, 222, "expert-bias-of-previous-expert", "expert-order unlisted", (r"self\.down_proj_bias\[expert_idx\]", "self.down_proj_bias[expert_idx - 1]"))
text(third, 223, "expert-up-plus-two", "number-differs", (r"gated_output = \(up \+ 1\) \* glu", "gated_output = (up + 2) * glu"))
text(third, 224, "expert-alpha-of-two", "number-differs activation result-scaled", (r"torch\.sigmoid\(gate \* self\.alpha\)", "torch.sigmoid(gate * 2.0)"))
text(third, 225, "shared-expert-twice", "unlisted residual-scale", (r"hidden_states \+ self\.shared_experts\(residuals\)", "hidden_states + 2 * self.shared_experts(residuals)"),
     (r"final_hidden_states \+ shared_expert_output", "final_hidden_states + 2 * shared_expert_output"))
text(third, 226, "shared-gate-by-softmax-of-one", "shared-gate", (r"F\.sigmoid\((self\.shared_expert_gate\(hidden_states\))\)", r"F.softmax(\1, dim=-1)"))
text(third, 227, "shared-gate-on-routed", "unlisted", (r"shared_expert_output = F\.sigmoid\(self\.shared_expert_gate\(hidden_states\)\) \* shared_expert_output",
     "final_hidden_states = F.sigmoid(self.shared_expert_gate(hidden_states)) * final_hidden_states"))
held(third, 228, "router-bytes-transposed", "weight-transposed weight-stride unlisted", r"(gate|router|layer)\.weight$",
     lambda weight: weight.reshape(weight.shape[1], weight.shape[0]).T.contiguous(),
     lambda name, module: re.search(r"(mlp|moe|router|feed_forward|gate)\.?\w*$", name) and getattr(module, "weight",
     torch.zeros(1)).dim() == 2 and module.weight.shape[0] == 4)
held(third, 229, "router-rows-rolled", "unlisted expert-order", r"(gate|router|layer)\.weight$", lambda weight: weight.roll(1, 0),
     lambda name, module: re.search(r"(mlp|moe|router|feed_forward|gate)\.?\w*$", name) and getattr(module, "weight",
     torch.zeros(1)).dim() == 2 and module.weight.shape[0] == 4)
held(third, 230, "stacked-experts-gate-and-up-exchanged", "weight-swapped fused-split gate-up-swapped unlisted", r"experts\.gate_up_proj$",
     lambda weight: weight.roll(weight.shape[-1] // 2, -1))


@mistake(third, 231, "experts-reversed", "expert-order unlisted")
def experts_reversed(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts") and isinstance(module, nn.ModuleList))):
        kept = [[weight.detach().clone() for weight in expert.parameters()] for expert in module]
        with torch.no_grad():
            for at, expert in enumerate(module):
                for weight, other in zip(expert.parameters(), kept[-1 - at]):
                    weight.copy_(other)
        done = site.note(name)
    return done


@mistake(third, 232, "expert-of-other-layer", "weight-wrong-layer unlisted")
def expert_of_layer(site):
    found = site.linears(lambda name, module: re.search(r"experts\.\d+\.", name))
    if not found:
        return False
    name, module = site.rng.choice(found)
    other = next((other for where, other in found if other is not module and re.sub(r"(layers|h)\.\d+\.", "", where) == re.sub(r"(layers|h)\.\d+\.", "", name)),
    None)
    if other is None or other.weight.shape != module.weight.shape:
        return False
    module.weight.data.copy_(other.weight)
    return site.note(name)


CHOSEN = r"^( +)(routing_weights, selected_experts = torch\.topk\(routing_weights, self\.top_k, dim=-1\))$"
text(fourth, 156, "router-weights-equal", "unlisted", (r"routing_weights = routing_weights\.to\(hidden_states\.dtype\)",
     "routing_weights = torch.full_like(routing_weights, 1 / self.top_k)"),
     (r"topk_weights = scores\.gather\(1, topk_indices\)", "topk_weights = torch.full_like(scores.gather(1, topk_indices), 1 / self.top_k)"),
     (r"torch\.nn\.functional\.softmax\(router_top_value, dim=1, dtype=router_top_value\.dtype\)", "torch.full_like(router_top_value, 1 / self.top_k)"))
text(fourth, 157, "router-by-largest-magnitude", "unlisted", (CHOSEN, r"\1selected_experts = torch.topk(router_logits.abs(), self.top_k, dim=-1)[1]\n"
     r"\1routing_weights = routing_weights.gather(1, selected_experts)"))
text(fourth, 158, "router-of-token-before", "unlisted operation-input", (r"router_logits = self\.(gate|router)\(hidden_states\)$",
     r"router_logits = self.\1(hidden_states.roll(1, 0))"),
     (r"router_logits = F\.linear\(hidden_states", "router_logits = F.linear(hidden_states.roll(1, 0)"))
text(fourth, 159, "router-softmax-over-tokens", "unlisted softmax-axis", (ROUTED, "routing_weights = F.softmax(router_logits, dim=0, dtype=torch.float)"))
text(fourth, 160, "router-second-choice-dropped", "unlisted router-topk router-scale", (r"routing_weights = routing_weights\.to\(hidden_states\.dtype\)",
     "routing_weights = routing_weights * (torch.arange(self.top_k) < 1)"),
     (r"topk_weights = topk_weights \* self\.routed_scaling_factor", "topk_weights = topk_weights * self.routed_scaling_factor * (torch.arange(self.top_k) < 1)"))
text(fourth, 161, "experts-overwrite-one-another", "unlisted", (r"(final_hidden_states|next_states)\.index_add_\(0, (\w+), (.*)\)$", r"\1[\2] = (\3).to(\1.dtype)"))
text(fourth, 162, "router-weights-softmaxed-again", "unlisted router-norm", (r"routing_weights = routing_weights\.to\(hidden_states\.dtype\)",
     "routing_weights = routing_weights.softmax(-1)"),
     (r"topk_weights = scores\.gather\(1, topk_indices\)", "topk_weights = scores.gather(1, topk_indices).softmax(-1)"),
     (r"torch\.nn\.functional\.softmax\(router_top_value, dim=1, dtype=router_top_value\.dtype\)", "router_top_value.softmax(1).softmax(1)"))
text(fourth, 163, "experts-of-first-token-for-all", "unlisted",
     (CHOSEN, r"\1selected_experts = torch.topk(routing_weights, self.top_k, dim=-1)[1][:1].expand(len(routing_weights), -1)\n"
     r"\1routing_weights = routing_weights.gather(1, selected_experts)"),
     (r"topk_indices = torch\.topk\(scores_for_choice, k=self\.top_k, dim=-1, sorted=False\)\[1\]",
      "topk_indices = torch.topk(scores_for_choice, k=self.top_k, dim=-1, sorted=False)[1][:1].repeat(len(scores_for_choice), 1)"))
text(fourth, 164, "shared-and-routed-averaged", "unlisted result-scaled residual-scale", (r"hidden_states = hidden_states \+ self\.shared_experts\(residuals\)",
     "hidden_states = (hidden_states + self.shared_experts(residuals)) / 2"),
     (r"final_hidden_states = final_hidden_states \+ shared_expert_output", "final_hidden_states = (final_hidden_states + shared_expert_output) / 2"))
held(fourth, 165, "expert-matrices-of-pairs-exchanged", "expert-order unlisted", r"experts\.(gate_up_proj|down_proj)$",
     lambda weight: weight.unflatten(0, (-1, 2)).flip(1).flatten(0, 1))


@mistake(fourth, 166, "experts-in-pairs-exchanged", "expert-order unlisted")
def experts_in_pairs(site):
    done = False
    for name, module in site.some(site.modules(lambda name, module: name.endswith("experts") and isinstance(module, nn.ModuleList) and len(module) > 1)):
        for at in range(0, len(module) - 1, 2):
            done = exchange(site, (f"{name}.{at}", module[at]), (f"{name}.{at + 1}", module[at + 1]))
    return done


@mistake(fourth, 167, "expert-answers-zero", UNLISTED)
def expert_lost(site):
    """One expert's device has sent nothing."""
    found = site.modules(lambda name, module: re.search(r"experts\.\d+$", name))
    return bool(found) and site.forward([site.rng.choice(found)], lambda module, own: lambda *args, **more: own(*args, **more) * 0)
