"""State spaces, linear attention, and other mixers that keep a state."""

import inspect
import re
import sys
import textwrap

import torch
from torch import nn

from scripts.planted.program_mistakes.parts import other_text
from scripts.planted.program_mistakes.sets import first, fourth, held, mistake, second, text, third, UNLISTED
from scripts.planted.program_mistakes.site import Unit

text(first, 216, "dt-not-softplus", "unlisted ssm-dt ssm-softplus", (r"(torch\.)?nn\.functional\.softplus\(", "("))
text(first, 217, "decay-sign", "unlisted ssm-decay", (r"-torch\.exp\(self\.A_log\.float\(\)\)", "0.05 * torch.exp(self.A_log.float())"))
text(first, 218, "decay-without-exp", "unlisted ssm-decay", (r"-torch\.exp\(self\.A_log\.float\(\)\)", "-(self.A_log.float())"))
text(first, 219, "conv-not-activated", "unlisted activation", (r"self\.act\((self\.conv1d\([^)]*(?:\([^)]*\))*\)\[\.\.\., :seq_len\])", r"(\1"))
text(first, 220, "conv-one-tap-late", "unlisted", (r"\[\.\.\., :seq_len\]", "[..., 1 : seq_len + 1]"), where="forward")
text(first, 221, "states-b-and-c-exchanged", "unlisted", (r"hidden_states, B, C = torch\.split\(", "hidden_states, C, B = torch.split("),
     (r"time_step, B, C = torch\.split\(", "time_step, C, B = torch.split("))
text(first, 222, "state-forgotten-in-decode", "unlisted", (r"cache_params\.ssm_states\[self\.layer_idx\] \* dA \+ dBx", "dBx"))
text(first, 223, "dt-clamped", "unlisted", (r"^( +)dt = torch\.clamp\(dt, .*\)", r"\1dt = torch.clamp(dt, 0.0, 0.5)"))
text(first, 224, "input-not-times-dt", "unlisted", (r"hidden_states = hidden_states \* dt\[\.\.\., None\]", "hidden_states = hidden_states * 1.0"))


def parameter(tag, number, name, causes, key, how, test=lambda name, module: True):
    @mistake(tag, number, name, causes)
    def plant(site):
        found = site.some(site.modules(lambda name, module: isinstance(getattr(module, key, None), nn.Parameter) and test(name, module)))
        for owner, module in found:
            with torch.no_grad():
                getattr(module, key).copy_(how(getattr(module, key).clone()))
            site.note(f"{owner}.{key}")
        return bool(found)


parameter(first, 225, "dt-bias-omitted", "unlisted bias-omitted", "dt_bias", lambda bias: bias * 0)
parameter(first, 226, "dt-projection-bias-omitted", "bias-omitted", "bias", lambda bias: bias * 0, lambda name, module: name.endswith("dt_proj"))
parameter(first, 227, "skip-omitted", "unlisted ssm-skip", "D", lambda skip: skip * 0)
parameter(first, 228, "conv-bias-omitted", "bias-omitted unlisted", "bias", lambda bias: bias * 0, lambda name, module: isinstance(module, nn.Conv1d))
parameter(first, 229, "conv-reversed", "unlisted", "weight", lambda weight: weight.flip(-1), lambda name, module: isinstance(module, nn.Conv1d))
text(second, 249, "dt-bias-after-softplus", "unlisted", (r"softplus\(dt \+ self\.dt_bias\)", "softplus(dt) + self.dt_bias"),
     (r"F\.softplus\(a\.float\(\) \+ self\.dt_bias\)", "(F.softplus(a.float()) + self.dt_bias)"))
text(second, 250, "dt-by-exp", "unlisted", (r"(?:torch\.)?nn\.functional\.softplus\(", "torch.exp("), (r"F\.softplus\(", "torch.exp("))
text(second, 251, "decay-without-dt", "operation-omitted unlisted",
     (r"torch\.exp\(A\[None, :, None, :\] \* discrete_time_step\[:, :, :, None\]\)",
      "torch.exp(A[None, :, None, :]).expand(*discrete_time_step.shape, -1)"))
text(second, 252, "input-held-as-zero-order", "unlisted", (r"discrete_B = discrete_time_step\[:, :, :, None\] \* B\[:, None, :, :\]\.float\(\)",
                                             "discrete_B = (discrete_A - 1) / A[None, :, None, :] * B[:, None, :, :].float()"))
text(second, 253, "scan-reads-state-before-update", "unlisted",
     (r"^( +)(ssm_state = discrete_A\[:, :, i, :\].*)\n( +scan_output = torch\.matmul\(ssm_state\.to\(dtype\).*)", r"\3\n\1\2"))
text(second, 254, "gate-before-skip", "unlisted",
     (r"scan_output = scan_output \+ \(hidden_states \* self\.D\[None, :, None\]\)", "scan_output = scan_output * self.act(gate)"),
     (r"scan_output = \(scan_output \* self\.act\(gate\)\)", "scan_output = scan_output + hidden_states * self.D[None, :, None]"))
text(second, 255, "gate-half-first", "fused-split weight-swapped unlisted",
     (r"hidden_states, gate = projected_states\.chunk\(2, dim=1\)", "gate, hidden_states = projected_states.chunk(2, dim=1)"))
text(second, 256, "conv-kernel-reversed-in-decode", "unlisted", (r"self\.conv1d\.weight\[:, 0, :\]", "self.conv1d.weight[:, 0, :].flip(-1)"),
     (r"self\.conv1d\.weight\.squeeze\(1\)", "self.conv1d.weight.squeeze(1).flip(-1)"),
     (r"self\.conv\.weight\[:, 0, :\]", "self.conv.weight[:, 0, :].flip(-1)"))
text(second, 257, "conv-bias-omitted-in-decode", "bias-omitted operation-omitted unlisted", (r"if self\.use_conv_bias:", "if False:"))
text(second, 258, "conv-not-activated-in-decode", "operation-omitted activation unlisted",
     (r"hidden_states = self\.act\(hidden_states\)\.to\(dtype\)\.unsqueeze\(-1\)", "hidden_states = hidden_states.to(dtype).unsqueeze(-1)"))
text(second, 259, "scan-state-forgotten", "unlisted",
     (r"cache_params\.ssm_states\[self\.layer_idx\]\.clone\(\)", "torch.zeros_like(cache_params.ssm_states[self.layer_idx])"))
text(second, 260, "decay-of-own-position-twice", "number-differs unlisted", (r"diagonal=-1\)", "diagonal=0)"), where="segment_sum")
text(second, 261, "chunks-without-carried-state", "operation-omitted unlisted", (r"y = Y_diag \+ Y_off", "y = Y_diag"))
text(second, 262, "carried-state-not-decayed", "operation-omitted unlisted",
     (r"state_decay_out = torch\.exp\(A_cumsum\)", "state_decay_out = torch.ones_like(A_cumsum)"))
text(second, 263, "skip-on-input-before-conv", "unlisted", (r"D_residual = self\.D\[\.\.\., None\] \* pad_tensor_by_size\(hidden_states, pad_size\)",
                                              "D_residual = self.D[..., None] * pad_tensor_by_size(hidden_states * dt[..., None], pad_size)"))
text(second, 264, "linear-keys-not-normed", "operation-omitted norm-omitted unlisted", (r"use_qk_l2norm_in_kernel=True", "use_qk_l2norm_in_kernel=False"),
     where=r"\.forward")
text(second, 265, "linear-keys-normed-by-mean", "unlisted", (r"\(x \* x\)\.sum\(dim=dim, keepdim=True\)", "(x * x).mean(dim=dim, keepdim=True)"))
text(second, 266, "linear-beta-not-activated", "operation-omitted", (r"beta = b\.sigmoid\(\)", "beta = b"))
text(second, 267, "linear-beta-and-decay-exchanged", "fused-split weight-swapped unlisted", (r"b, a = torch\.split\(mixed_ba", "a, b = torch.split(mixed_ba"))
text(second, 268, "short-conv-gates-exchanged", "fused-split weight-swapped unlisted", (r"B, C, x = BCx\.chunk\(3, dim=-2\)", "C, B, x = BCx.chunk(3, dim=-2)"))
text(second, 269, "short-conv-one-late", "unlisted", (r"self\.conv\(Bx\)\[\.\.\., :seqlen\]", "self.conv(Bx)[..., 1 : seqlen + 1]"))
text(second, 270, "recurrence-input-not-scaled", "operation-omitted unlisted", (r"multiplier = SqrtBoundDerivative\.apply\(1 - a_square\)", "multiplier = 1.0"))
text(second, 271, "recurrence-decay-constant", "number-differs", (r"-8\.0 \* recurrent_gate", "-4.0 * recurrent_gate"))
text(second, 272, "recurrence-gates-exchanged", "operation-input unlisted",
     (r"gated_inputs = activations \* input_gate", "gated_inputs = activations * recurrent_gate"))
held(second, 273, "token-mix-reversed", "unlisted", r"time_mix_(key|value|receptance)$", lambda mix: 1 - mix)
held(second, 274, "first-token-bonus-omitted", "unlisted", r"time_first$", torch.zeros_like)
text(second, 275, "token-shift-of-two", "unlisted", (r"shifted = self\.time_shift\(hidden\)", "shifted = self.time_shift(self.time_shift(hidden))"))


@mistake(second, 276, "conv-state-not-shifted", UNLISTED)
def conv_state(site):
    """The newest input of a convolution takes the last one's place in its state."""
    pattern = r"(conv_states?)\.roll\(shifts=-1, dims=-1\)|torch\.roll\((conv_states?), shifts=-1, dims=-1\)|"
    pattern += r"(self\.conv_states\[layer_idx\])\.roll\(shifts=-1, dims=-1\)"
    done = site.edit((pattern, r"(\1\2\3).clone()"))
    file = sys.modules[type(site.model).__module__]
    for kind in [kind for name, kind in vars(file).items() if inspect.isclass(kind) and name.endswith("Cache") and kind.__module__ == file.__name__]:
        method = vars(kind).get("update_conv_state")
        source = textwrap.dedent(inspect.getsource(method)) if method else ""
        if re.search(pattern, source):
            unit = Unit(kind, "update_conv_state", method, source)
            site.replace(unit, unit.compiled(re.sub(pattern, lambda match: f"({match[1] or match[2] or match[3]}).clone()", source)), False)
            done = True
    return done


held(third, 239, "decay-of-next-head", "unlisted", r"A_log$", lambda decay: decay.roll(1, -1))
held(third, 240, "skip-doubled", "unlisted result-scaled residual-scale", r"\.D$", lambda skip: 2 * skip)
held(third, 241, "conv-kernel-of-next-channel", "unlisted", r"conv1?d?\.weight$", lambda kernel: kernel.roll(1, 0), lambda name,
     module: isinstance(module, nn.Conv1d) and module.groups > 1)
held(third, 242, "dt-bias-of-other-sign", "unlisted sign-flipped", r"(dt_bias|dt_proj\.bias)$", lambda bias: -bias)
text(third, 243, "scan-with-c-of-previous-token", "unlisted", (r"C\[:, i, :\]\.unsqueeze\(-1\)", "C[:, i - 1, :].unsqueeze(-1)"), where="slow_forward")
text(third, 244, "scan-input-decayed-too", "unlisted", (r"discrete_A\[:, :, i, :\] \* ssm_state \+ deltaB_u\[:, :, i, :\]",
     "discrete_A[:, :, i, :] * (ssm_state + deltaB_u[:, :, i, :])"))
text(third, 245, "scan-state-in-bf16", "precision unlisted", (r"(ssm_state = discrete_A\[:, :, i, :\] \* ssm_state \+ deltaB_u\[:, :, i, :\])",
     r"\1; ssm_state = ssm_state.bfloat16().to(deltaB_u.dtype)"))
text(third, 246, "gate-of-state-by-sigmoid", "activation unlisted", (r"scan_output \* self\.act\(gate\)", "scan_output * torch.sigmoid(gate)"))
text(third, 247, "state-kept-half-in-decode", "unlisted residual-scale",
     (r"cache_params\.ssm_states\[self\.layer_idx\]\.clone\(\)", "(0.5 * cache_params.ssm_states[self.layer_idx])"),
     (r"cache_params\.ssm_states\[self\.layer_idx\] \* dA \+ dBx", "0.5 * cache_params.ssm_states[self.layer_idx] * dA + dBx"))
text(third, 248, "chunk-state-without-own-decay", "operation-omitted unlisted", (r"B_decay = B \* decay_states\.permute\(0, -2, -1, 1\)\[\.\.\., None\]", "B_decay = B"))
text(third, 249, "token-shift-omitted", "operation-omitted", (r"shifted = self\.time_shift\(hidden\)", "shifted = hidden"))
text(third, 250, "receptance-by-tanh", "activation unlisted", (r"torch\.sigmoid\((self\.receptance\(receptance\))\)", r"torch.tanh(\1)"))
text(third, 251, "token-mix-without-rest", "operation-omitted unlisted", (r" \+ shifted \* \(1 - self\.time_mix_key\)", ""))
held(third, 252, "time-decay-of-other-sign", "sign-flipped unlisted", r"time_decay$", lambda decay: -decay)
text(third, 253, "recurrence-reset-ignored", "operation-omitted unlisted", (r"multiplier = reset \+ ~reset \* multiplier", "pass"))
text(third, 254, "recurrence-decay-not-squared", "number-differs operation-omitted",
     (r"a_square = torch\.exp\(2 \* log_recurrent_gate\)", "a_square = torch.exp(1 * log_recurrent_gate)"))
text(third, 255, "recurrence-branch-gate-added", "unlisted", (r"hidden_states = x_branch \* y_branch", "hidden_states = x_branch + y_branch"))
text(third, 256, "lightning-output-gate-omitted", "operation-omitted", (r"F\.sigmoid\(self\.output_gate\(hidden_states\)\) \* attn_output", "attn_output"))
text(third, 257, "lightning-state-not-decayed", "operation-omitted", (r"attn_weights_inter = attn_weights_inter \* block_decay \+ next",
     "attn_weights_inter = attn_weights_inter + next"))
text(third, 258, "lightning-input-not-activated", "operation-omitted activation",
     (r"qkv_states = self\.act_fn\(self\.qkv_proj\(hidden_states\)\)", "qkv_states = self.qkv_proj(hidden_states)"))
text(third, 259, "lightning-decay-of-queries-omitted", "operation-omitted",
     (r"torch\.matmul\(current_query_states \* current_query_decay, attn_weights_inter\)", "torch.matmul(current_query_states, attn_weights_inter)"))


def rule(tag, number, name, causes, *pair):
    """The rule of linear attention, which each layer holds as a function."""
    @mistake(tag, number, name, causes)
    def plant(site):
        done = False
        for owner, module in site.some(site.modules(lambda name, module: hasattr(module, "chunk_gated_delta_rule"))):
            for key in ("chunk_gated_delta_rule", "recurrent_gated_delta_rule"):
                changed = other_text(site, getattr(module, key), *pair)
                if changed is not None:
                    setattr(module, key, changed)
                    done = site.note(f"{owner}.{key}")
        return done


rule(third, 260, "linear-queries-not-scaled", "operation-omitted result-scaled", r"^( +)query = query \* scale$", r"\1pass")
rule(third, 261, "linear-rule-without-delta", "unlisted", r"delta = \(v_t - kv_mem\) \* beta_t", "delta = v_t * beta_t")
rule(third, 262, "linear-state-read-before-written", "unlisted", r"core_attn_out\[:, :, i\] = \(last_recurrent_state \* q_t",
     "core_attn_out[:, :, i] = ((last_recurrent_state - k_t.unsqueeze(-1) * delta.unsqueeze(-2)) * q_t")
text(third, 263, "linear-decay-without-exponent-of-a", "operation-omitted unlisted", (r"g = -self\.A_log\.float\(\)\.exp\(\) \*", "g = -self.A_log.float() *"))
text(third, 264, "linear-conv-not-activated", "operation-omitted activation",
     (r"F\.silu\(self\.conv1d\(mixed_qkv\)\[:, :, :seq_len\]\)", "self.conv1d(mixed_qkv)[:, :, :seq_len]"))
text(third, 265, "short-conv-input-gate-omitted", "operation-omitted", (r"Bx = B \* x$", "Bx = x"), where="slow_forward")
text(third, 266, "short-conv-output-gate-omitted", "operation-omitted", (r"y = C \* conv_out$", "y = conv_out"), where="slow_forward")
text(fourth, 172, "scan-with-b-of-token-before", "unlisted", (r"discrete_time_step\[:, :, :, None\] \* B\[:, None, :, :\]\.float\(\)",
     "discrete_time_step[:, :, :, None] * B.roll(1, 1)[:, None, :, :].float()"), (r"^( +)B = B\.reshape\(batch_size, seq_len, -1, self\.ssm_state_size\)\.float\(\)",
     r"\1B = B.roll(1, 1).reshape(batch_size, seq_len, -1, self.ssm_state_size).float()"))
text(fourth, 173, "dt-of-token-before", "unlisted", (r"softplus\(discrete_time_step\)", "softplus(discrete_time_step.roll(1, 1))"),
     (r"nn\.functional\.softplus\(dt \+ self\.dt_bias\)", "nn.functional.softplus(dt.roll(1, 1) + self.dt_bias)"))
text(fourth, 174, "dt-by-relu", "unlisted activation", (r"(?:torch\.)?nn\.functional\.softplus\(", "torch.relu("))
text(fourth, 175, "decay-as-power-of-two", "unlisted softmax-base number-differs", (r"-torch\.exp\(self\.A_log\.float\(\)\)", "-torch.exp2(self.A_log.float())"))
text(fourth, 176, "state-gate-omitted", "operation-omitted gate-product unlisted", (r"scan_output \* self\.act\(gate\)", "scan_output"), (r"if gate is not None:", "if False:"),
     where=r"slow_forward|Gated")
text(fourth, 177, "conv-activated-before", "unlisted", (r"self\.act\(self\.conv1d\((hidden_states)\)\[\.\.\., :seq_len\]\)", r"self.conv1d(self.act(\1))[..., :seq_len]"),
     (r"self\.act\(self\.conv1d\((hidden_states_B_C\.transpose\(1, 2\))\)\[\.\.\., :seq_len\]\.transpose\(1, 2\)\)",
     r"self.conv1d(self.act(\1))[..., :seq_len].transpose(1, 2)"))
text(fourth, 178, "conv-state-empty-in-decode", "unlisted", (r"conv_state \* self\.conv1d\.weight\[:, 0, :\]",
     "conv_state * (torch.arange(conv_state.shape[-1]) > 2) * self.conv1d.weight[:, 0, :]"), (r"conv_states \* self\.conv1d\.weight\.squeeze\(1\)",
     "conv_states * (torch.arange(conv_states.shape[-1]) > 2) * self.conv1d.weight.squeeze(1)"))
is_conv = lambda name, module: isinstance(module, nn.Conv1d) and module.groups > 1
held(fourth, 179, "conv-oldest-tap-unread", "unlisted", r"weight$", lambda kernel: kernel * (torch.arange(kernel.shape[-1]) > 0), is_conv)
held(fourth, 180, "conv-kernel-bytes-transposed", "unlisted weight-transposed storage-shape", r"weight$",
     lambda kernel: kernel.reshape(kernel.shape[2], kernel.shape[0]).T.reshape(kernel.shape), is_conv)
held(fourth, 181, "skip-of-other-sign", "sign-flipped unlisted", r"\.D$", lambda skip: -skip)
held(fourth, 182, "decay-in-f8", "precision unlisted", r"A_log$", lambda decay: decay.to(torch.float8_e4m3fn).float())
held(fourth, 183, "skip-of-half-the-channels-unset", "weight-unset unlisted", r"\.D$", lambda skip: skip * (torch.arange(len(skip)) < len(skip) // 2))
text(fourth, 184, "state-update-without-decay-in-decode", "unlisted operation-omitted", (r"cache_params\.ssm_states\[self\.layer_idx\] \* dA \+ dBx",
     "cache_params.ssm_states[self.layer_idx] + dBx"), (r"discrete_A\[:, :, i, :\] \* ssm_state \+ deltaB_u",
     "(discrete_A[:, :, i, :] if seq_len > 1 else 1.0) * ssm_state + deltaB_u"))
