"""`firstdiff.compare` on PyTorch models. Run by test_wheel.py where there is a Python with torch and transformers: use_torch.py FIXTURES"""

import copy
import sys
from pathlib import Path

import torch
import transformers
from checks import check, end, raises

import firstdiff

FIXTURES = Path(sys.argv[1])
ids = [1, 17, 42, 99, 3, 150, 77, 17, 128, 64, 5]
model = transformers.AutoModelForCausalLM.from_pretrained(FIXTURES / "models/llama", dtype=torch.float32, attn_implementation="eager").train()
twin = copy.deepcopy(model)
result = firstdiff.compare(model, twin, inputs=ids)
check("a model with its copy", result.passed and len(result.taps) > 30, str(result))
check("left in the mode that it was in", model.training and all(module.training for module in twin.modules()))
check("keyword arguments", firstdiff.compare(model, twin, inputs={"input_ids": torch.tensor([ids])}).passed)
result = firstdiff.compare(FIXTURES / "golden/llama-torch", model, inputs=ids, require="layers.*.h_attn,logits", taps="*", fail_on_unchecked=False)
check("a golden dump, with a model", result.parity, str(result))
result = firstdiff.compare(model, FIXTURES / "faulty/llama-rope-pairing", inputs=ids)
check("a model, with an engine's dump: where and why", result.first_divergence["tap"] == "layers.0.q_rope" and [f["cause"] for f in result.findings] == ["rope-pairing"],
      f"{result}{result.no_cause}")
wrong = copy.deepcopy(model)
wrong.model.layers[1].mlp.act_fn = torch.nn.GELU()
result = firstdiff.compare(model, wrong, inputs=ids)
check("another activation: the cause from the model in memory", [f["cause"] for f in result.findings] == ["activation"] and "activation" in result.html,
      f"{result}{result.no_cause}")
wrong = copy.deepcopy(model)
wrong.model.layers[0].self_attn.q_proj.weight.data.mul_(2)
result = firstdiff.compare(model, wrong, inputs=ids)
check("weights that were changed in memory", result.first_divergence["tap"] == "layers.0.q" and result.explanation["verdict"] == "diverged",
      f"{result}{result.no_cause}")
check("its copy in bf16, held to bf16", firstdiff.compare(model, copy.deepcopy(model).to(torch.bfloat16), inputs=ids).passed)
net = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh(), torch.nn.Linear(8, 4))
other = copy.deepcopy(net)
other[2].bias.data[1] = float("nan")
x = torch.randn(5, 8, generator=torch.Generator().manual_seed(0))
check("no transformer", firstdiff.compare(net, copy.deepcopy(net), inputs=x).passed)
result = firstdiff.compare(net, other, inputs=x)
check("NaN in a weight", result.verdict == "diverged" and not result.passed and "NaN" in str(result), str(result))
with torch.no_grad():
    made = {"h0": net[0](x), "layers.0.h": net[1](net[0](x)).bfloat16()}
check("dicts of tensors, bf16 too", firstdiff.compare(made, {name: tensor.clone() for name, tensor in made.items()}).passed)
check("a model without inputs", raises(TypeError, "inputs", lambda: firstdiff.compare(model, twin)))
end()
