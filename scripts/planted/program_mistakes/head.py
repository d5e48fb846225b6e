"""The last norm's result to logits."""

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import bf16, bytes_exchanged, bytes_turned, cut_to_bf16, head, strided
from scripts.planted.program_mistakes.sets import first, fourth, mistake, second, text, third, UNLISTED
from scripts.planted.program_mistakes.site import in_layer, is_layer_norm

text(first, 179, "logits-scale-omitted", "logit-scale operation-omitted", (r"logits = logits (/ self\.config\.logits_scaling|\* self\.logit_scale)", "logits = logits"))
text(first, 180, "logits-sigmoid-added", "result-activated", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1).sigmoid()"), where="ForCausalLM")
text(first, 181, "logits-scale-added", "logit-scale", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1) * 0.7"), where="ForCausalLM")
text(first, 182, "logits-of-other-row", "logit-row",
     (r"self\.lm_head\(hidden_states\[:, slice_indices, :\]\)", "self.lm_head(hidden_states.roll(1, 1)[:, slice_indices, :])"), where="ForCausalLM")
text(first, 183, "logits-as-log-probabilities", "unlisted", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1).log_softmax(-1)"),
     where="ForCausalLM")
text(first, 184, "logits-rows-of-vocabulary-shifted", "unlisted", (r"logits = self\.lm_head\((.*)\)$", r"logits = self.lm_head(\1).roll(1, -1)"),
     where="ForCausalLM")


@mistake(first, 185, "logits-softcap-omitted", "logit-softcap")
def logit_softcap(site):
    if getattr(site.config, "final_logit_softcapping", None) is None:
        return False
    site.config.final_logit_softcapping = None
    return True


@mistake(first, 186, "logits-softcap-added", "logit-softcap")
def logit_softcap_added(site):
    return site.edit((r"logits = self\.lm_head\((.*)\)$", r"logits = 4.0 * torch.tanh(self.lm_head(\1) / 4.0)"), where="ForCausalLM")


@mistake(first, 187, "tied-head-unset", "head-untied")
def head_untied(site):
    if head(site) is None or head(site).weight is not site.model.get_input_embeddings().weight:
        return False
    head(site).weight = nn.Parameter(torch.ones_like(head(site).weight))
    return True


@mistake(first, 188, "tied-head-random", "head-untied", UNLISTED)
def head_random(site):
    if head(site) is None or head(site).weight is not site.model.get_input_embeddings().weight:
        return False
    head(site).weight = nn.Parameter(torch.randn(head(site).weight.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    return True


@mistake(first, 189, "head-of-embedding", "head-tied")
def head_tied(site):
    own = site.model.get_input_embeddings()
    if head(site) is None or head(site).weight is own.weight or head(site).weight.shape != own.weight.shape:
        return False
    head(site).weight = nn.Parameter(own.weight.detach().clone())
    return True


def of_head(tag, number, name, causes, how, test=lambda site: True):
    @mistake(tag, number, name, causes)
    def plant(site):
        if head(site) is None or not isinstance(getattr(head(site), "weight", None), torch.Tensor) or head(site).weight.dim() != 2 or not test(site):
            return False
        head(site).weight = nn.Parameter(how(head(site).weight.detach().clone()))
        return True


of_head(second, 60, "head-bytes-transposed", "weight-transposed weight-stride", bytes_turned)
of_head(second, 61, "head-leading-dimension", "weight-stride", strided)
of_head(second, 62, "head-f16-as-bf16", "storage-type", lambda weight: weight.half().view(torch.bfloat16).float())
of_head(second, 63, "head-tail-unset", "dequant-truncated unlisted", lambda weight: weight * (torch.arange(len(weight)) < len(weight) // 2)[:, None])
of_head(second, 64, "head-in-bf16", "precision unlisted", bf16)
text(second, 65, "logits-scale-inverse", "logit-scale", (r"logits / self\.config\.logits_scaling", "logits * self.config.logits_scaling"),
     (r"logits \* self\.logit_scale", "logits / self.logit_scale"))
text(second, 66, "logits-of-first-position", "logit-row unlisted", (r"self\.lm_head\(hidden_states\[:, slice_indices, :\]\)",
                                                       "self.lm_head(hidden_states[:, slice_indices, :][:, :1].expand_as(hidden_states))"),
     where="ForCausalLM")
CAPPED = lambda site: getattr(site.config, "final_logit_softcapping", None) is not None
text(second, 67, "logits-cap-not-multiplied-back", "operation-omitted result-scaled logit-scale",
     (r"logits = logits \* self\.config\.final_logit_softcapping", "pass"), only=CAPPED)


@mistake(third, 200, "logits-softcap-of-scores", "logit-softcap")
def logits_cap(site):
    if getattr(site.config, "final_logit_softcapping", None) is None:
        return False
    site.config.final_logit_softcapping = 2.0
    return True


text(third, 201, "logits-of-row-behind", "logit-row", (r"self\.lm_head\(hidden_states\[:, slice_indices, :\]\)", "self.lm_head(hidden_states.roll(-1, 1)[:, slice_indices, :])"),
     where="ForCausalLM")
text(third, 202, "logits-of-tied-head-not-scaled", "logit-scale operation-omitted result-scaled", (r"sequence_output = sequence_output \* \(self\.model_dim\*\*-0\.5\)", "pass"))
text(third, 203, "logits-without-mean", "unlisted", (r"logits = self\.lm_head\((.*)\)$", r"logits = (lambda y: y - y.mean(-1, keepdim=True))(self.lm_head(\1))"),
     where="ForCausalLM")
text(third, 204, "logits-of-special-tokens-hidden", "unlisted", (r"logits = self\.lm_head\((.*)\)$",
     r"logits = (lambda y: y * (torch.arange(y.shape[-1]) > 2))(self.lm_head(\1))"), where="ForCausalLM")


@mistake(third, 205, "bias-of-head-twice", "bias-twice unlisted")
def head_bias(site):
    if head(site) is None or getattr(head(site), "bias", None) is None:
        return False
    head(site).bias.data.mul_(2)
    return True


of_head(third, 206, "head-rows-behind-a-special-token", "unlisted", lambda weight: torch.cat((weight[:50], weight[49:-1])))
of_head(third, 207, "head-unset", "weight-unset head-untied", torch.zeros_like)
of_head(third, 208, "head-in-8-bits-by-row", "precision", lambda weight: (lambda scale: (weight / scale).round() * scale)(weight.abs().amax(1, keepdim=True) / 127))
of_head(third, 209, "head-columns-reversed", "unlisted", lambda weight: weight.flip(1))


@mistake(third, 210, "final-norm-bias-omitted", "bias-omitted unlisted")
def final_norm_bias(site):
    found = [module for name, module in site.modules(lambda name, module: is_layer_norm(name, module) and module.bias is not None) if not in_layer(name)]
    if not found:
        return False
    found[-1].bias.data.zero_()
    return True


HEAD = r"logits = self\.lm_head\((.*)\)$"
text(fourth, 147, "logits-as-probabilities", "result-activated", (HEAD, r"logits = self.lm_head(\1).softmax(-1)"), where="ForCausalLM")
text(fourth, 148, "logits-clamped", "unlisted logit-softcap", (HEAD, r"logits = self.lm_head(\1).clamp(-1, 1)"), where="ForCausalLM")
text(fourth, 149, "logits-of-two-shards-in-turn", "unlisted", (HEAD, r"logits = (lambda y: torch.cat((y[..., ::2], y[..., 1::2]), -1))(self.lm_head(\1))"), where="ForCausalLM")
text(fourth, 150, "logits-of-normalised-stream", "unlisted", (HEAD, r"logits = self.lm_head(torch.nn.functional.normalize(\1, dim=-1))"), where="ForCausalLM")
of_head(fourth, 151, "head-rows-scaled-to-one", "unlisted", lambda weight: weight / weight.norm(dim=1, keepdim=True))
of_head(fourth, 152, "head-bytes-of-each-value-exchanged", "storage-type unlisted", bytes_exchanged)
of_head(fourth, 153, "head-cut-to-bf16", "precision unlisted", cut_to_bf16)
of_head(fourth, 154, "head-left-random", "weight-unset head-untied unlisted", lambda weight: torch.randn(weight.shape, generator=torch.Generator().manual_seed(12)) * 0.02,
        lambda site: head(site).weight is not site.model.get_input_embeddings().weight)
of_head(fourth, 155, "head-shards-exchanged", "unlisted", lambda weight: weight.roll(len(weight) // 2, 0))
