"""Runs a Llama as an ONNX graph, in ONNX Runtime and in OpenVINO. Every intermediate tensor is a graph output.

The graph is written with onnx.helper under names of its own (`/layers.0/attn/q_proj/MatMul_output_0`), with the aliases that exporters leave behind.
Variants: ort; ort-int8: `quantize_dynamic`, 8-bit weights per tensor, activations per tensor, left by ONNX Runtime in its own nodes;
openvino; openvino-bf16 and -f16: its precision hints. OpenVINO writes raw floats and has no firstdiff.toml: --map. Prefill only.
Requirements: ../requirements/engines.txt
"""

import math

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from .model import Model, arguments

MISTAKES = ["head-tied", "bias-omitted", "rope-theta", "scaled-matrix", "weight-wrong-layer", "final-norm-omitted", "gate-up-swapped", "kv-head-map",
            "rope-direction", "mask-shifted"]
WRONG = None
MAP = """"h0_out" = "h0"
"/layers.{N}/norm1/Mul_1_output_0" = "layers.{N}.attn_norm"
"/layers.{N}/attn/q_out" = "layers.{N}.q"
"/layers.{N}/attn/k_out" = "layers.{N}.k"
"/layers.{N}/attn/v_out" = "layers.{N}.v"
"/layers.{N}/attn/q_norm/Mul_1_output_0" = "layers.{N}.q_norm"
"/layers.{N}/attn/k_norm/Mul_1_output_0" = "layers.{N}.k_norm"
"/layers.{N}/attn/q_rot/Add_output_0" = "layers.{N}.q_rope"
"/layers.{N}/attn/k_rot/Add_output_0" = "layers.{N}.k_rope"
"/layers.{N}/attn/MatMul_output_0" = "layers.{N}.qk"
"/layers.{N}/attn/Add_output_0" = "layers.{N}.scores"
"/layers.{N}/attn/Softmax_output_0" = "layers.{N}.probs"
"/layers.{N}/attn/Reshape_output_0" = "layers.{N}.context"
"/layers.{N}/attn/o_out" = "layers.{N}.attn_out"
"/layers.{N}/Add_output_0" = "layers.{N}.h_attn"
"/layers.{N}/norm2/Mul_1_output_0" = "layers.{N}.ffn_norm"
"/layers.{N}/mlp/gate_out" = "layers.{N}.ffn_gate"
"/layers.{N}/mlp/up_out" = "layers.{N}.ffn_up"
"/layers.{N}/mlp/Mul_1_output_0" = "layers.{N}.ffn_act"
"/layers.{N}/mlp/down_out" = "layers.{N}.ffn_out"
"/layers.{N}/Add_1_output_0" = "layers.{N}.h"
"/norm/Mul_1_output_0" = "final_norm"
"logits" = "logits"
"""


class Graph:
    """Nodes and initializers in the making; `op` returns the name of its first output."""

    def __init__(self):
        self.nodes, self.constants, self.known = [], [], set()

    def constant(self, name, array):
        if name not in self.known:
            self.known.add(name)
            self.constants.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        return name

    def ints(self, *values):
        return self.constant("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def floats(self, value):
        return self.constant(f"float_{value!r}", np.array(value, np.float32))

    def op(self, kind, inputs, out, **attributes):
        out = out if isinstance(out, list) else [out]
        self.nodes.append(helper.make_node(kind, inputs, out, name=f"node_{len(self.nodes)}", **attributes))
        return out[0]

    def norm(self, x, at, gain, eps):
        square = self.op("Pow", [x, self.floats(2.0)], f"{at}/Pow_output_0")
        mean = self.op("ReduceMean", [square, self.ints(-1)], f"{at}/ReduceMean_output_0")
        root = self.op("Sqrt", [self.op("Add", [mean, self.floats(eps)], f"{at}/Add_output_0")], f"{at}/Sqrt_output_0")
        scaled = self.op("Mul", [x, self.op("Reciprocal", [root], f"{at}/Reciprocal_output_0")], f"{at}/Mul_output_0")
        return self.op("Mul", [scaled, self.constant(f"{at}.weight", gain)], f"{at}/Mul_1_output_0")

    def linear(self, x, out, weight, bias=None):
        y = self.op("MatMul", [x, self.constant(f"{out}.weight", weight.T)], out if bias is None else f"{out}/MatMul_output_0")
        return y if bias is None else self.op("Add", [y, self.constant(f"{out}.bias", bias)], out)

    def rotate(self, x, at, cos, sin, d):
        a, b = f"{at}/Split_output_0", f"{at}/Split_output_1"
        self.op("Split", [x], [a, b], axis=-1, num_outputs=2)
        turned = self.op("Concat", [self.op("Neg", [b], f"{at}/Neg_output_0"), a], f"{at}/Concat_output_0", axis=-1)
        left = self.op("Mul", [x, cos], f"{at}/Mul_output_0")
        return self.op("Add", [left, self.op("Mul", [turned, sin], f"{at}/Mul_1_output_0")], f"{at}/Add_output_0")


def build(m, T):
    """The graph over [1,T] ids."""
    g = Graph()
    frequencies, factor = m.frequencies(10000.0 if WRONG == "rope-theta" else None)
    angle = np.arange(T, dtype=np.float32)[:, None] * np.concatenate([frequencies, frequencies])
    cos, sin = (np.cos(angle) * factor).astype(np.float32), (np.sin(angle) * factor).astype(np.float32)
    cos, sin = g.constant("cos", cos), g.constant("sin", -sin if WRONG == "rope-direction" else sin)
    open_until = 1 if WRONG == "mask-shifted" else 0
    mask = g.constant("mask", np.where(np.arange(T)[None] > np.arange(T)[:, None] + open_until, np.finfo(np.float32).min, 0).astype(np.float32))
    h = g.op("Gather", [g.constant("embed", m.weights["model.embed_tokens.weight"]), "input_ids"], "h0_out")
    for n in range(m.layers):
        at, attn, mlp = f"/layers.{n}", f"/layers.{n}/attn", f"/layers.{n}/mlp"
        x = g.norm(h, f"{at}/norm1", m.of_layer(n, "input_layernorm"), m.eps)
        heads = {}
        for name, count in (("q", m.H), ("k", m.K), ("v", m.K)):
            source = (n + 1) % m.layers if WRONG == "weight-wrong-layer" and name == "v" and n == 0 else n
            bias = m.of_layer(n, f"self_attn.{name}_proj", "bias")
            y = g.linear(x, f"{attn}/{name}_out", m.of_layer(source, f"self_attn.{name}_proj"), None if WRONG == "bias-omitted" and name == "k" else bias)
            y = g.op("Reshape", [y, g.ints(1, T, count, m.d)], f"{attn}/{name}_reshape")
            if m.qk_norm and name != "v":
                y = g.norm(y, f"{attn}/{name}_norm", m.of_layer(n, f"self_attn.{name}_norm"), m.eps)
            y = g.op("Transpose", [y], f"{attn}/{name}_transpose", perm=[0, 2, 1, 3])
            heads[name] = y if name == "v" else g.rotate(y, f"{attn}/{name}_rot", cos, sin, m.d)
        group = m.H // m.K
        for name in ("k", "v"):  # repeat_kv: unsqueeze, expand, reshape
            axis, shape = (1, (1, group, m.K, T, m.d)) if WRONG == "kv-head-map" else (2, (1, m.K, group, T, m.d))
            y = g.op("Unsqueeze", [heads[name], g.ints(axis)], f"{attn}/{name}_unsqueeze")
            y = g.op("Expand", [y, g.ints(*shape)], f"{attn}/{name}_expand")
            heads[name] = g.op("Reshape", [y, g.ints(1, m.H, T, m.d)], f"{attn}/{name}_heads")
        across = g.op("Transpose", [heads["k"]], f"{attn}/Transpose_output_0", perm=[0, 1, 3, 2])
        scores = g.op("Mul", [g.op("MatMul", [heads["q"], across], f"{attn}/MatMul_output_0"), g.floats(1 / math.sqrt(m.d))], f"{attn}/Mul_output_0")
        probs = g.op("Softmax", [g.op("Add", [scores, mask], f"{attn}/Add_output_0")], f"{attn}/Softmax_output_0", axis=-1)
        y = g.op("MatMul", [g.op("Identity", [probs], f"{attn}/Identity_output_0"), heads["v"]], f"{attn}/MatMul_1_output_0")
        y = g.op("Transpose", [y], f"{attn}/Transpose_1_output_0", perm=[0, 2, 1, 3])
        y = g.op("Reshape", [y, g.ints(1, T, m.H * m.d)], f"{attn}/Reshape_output_0")
        h = g.op("Add", [h, g.linear(y, f"{attn}/o_out", m.of_layer(n, "self_attn.o_proj"))], f"{at}/Add_output_0")
        x = g.norm(h, f"{at}/norm2", m.of_layer(n, "post_attention_layernorm"), m.eps)
        gate, up = (g.linear(x, f"{mlp}/{name}_out", m.of_layer(n, f"mlp.{name}_proj")) for name in ("gate", "up"))
        if WRONG == "gate-up-swapped":
            gate, up = up, gate
        act = g.op("Mul", [gate, g.op("Sigmoid", [gate], f"{mlp}/Sigmoid_output_0")], f"{mlp}/Mul_output_0")
        scale = 1.1 if WRONG == "scaled-matrix" and n == 1 else 1.0
        down = g.linear(g.op("Mul", [act, up], f"{mlp}/Mul_1_output_0"), f"{mlp}/down_out", m.of_layer(n, "mlp.down_proj") * np.float32(scale))
        h = g.op("Add", [h, down], f"{at}/Add_1_output_0")
    x = h if WRONG == "final-norm-omitted" else g.norm(h, "/norm", m.weights["model.norm.weight"], m.eps)
    head = "model.embed_tokens.weight" if WRONG == "head-tied" else m.head
    g.linear(x, "logits", m.weights[head])
    source = helper.make_tensor_value_info("input_ids", TensorProto.INT64, [1, T])
    graph = helper.make_graph(g.nodes, "llama", [source], [helper.make_tensor_value_info("logits", TensorProto.FLOAT, [1, T, m.V])], g.constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    return model


def show_all(model):
    """Every float tensor between nodes becomes an output."""
    named = {output.name for output in model.graph.output}
    model.graph.output.extend(helper.make_tensor_value_info(name, TensorProto.FLOAT, None)
                              for node in model.graph.node for name in node.output
                              if name not in named and node.op_type not in ("DynamicQuantizeLinear", "MatMulInteger"))
    return model


def run_ort(model, tokens, folder, quantised):
    import onnxruntime
    from onnxruntime.quantization import QuantType, quantize_dynamic

    path = folder / "model.onnx"
    if quantised:
        onnx.save(model, path)
        # Unsigned: with signed ones pairs of products are added in 16 bits where the processor has no VNNI, and saturate, which is another result.
        quantize_dynamic(path, path, weight_type=QuantType.QUInt8, op_types_to_quantize=["MatMul"])
        model = onnx.load(path)
    model = show_all(model)
    onnx.save(model, path)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    values = session.run(names, {"input_ids": np.array([tokens], np.int64)})
    np.savez(folder / "run.npz", **dict(zip(names, values)))
    path.unlink()


def run_openvino(model, tokens, folder, hint):
    import openvino

    path = folder / "model.onnx"
    model = show_all(model)
    onnx.save(model, path)
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(path), "CPU", {"INFERENCE_PRECISION_HINT": hint, "INFERENCE_NUM_THREADS": "2"})
    result = compiled([np.array([tokens], np.int64)])
    path.unlink()
    written = {}
    for output in compiled.outputs:  # OpenVINO folds what is one tensor into one output of several names
        for name in output.names:
            written[name] = np.asarray(result[output])
    np.savez(folder / "run.npz", **written)
    # A processor without arithmetic in f16 is given bf16: OpenVINO says what it chose.
    folder.with_name(f"{folder.name}.precision").write_text(compiled.get_property("INFERENCE_PRECISION_HINT").get_type_name())


def main(argv=None):
    global WRONG
    args = arguments(__doc__, ["ort", "ort-int8", "openvino", "openvino-bf16", "openvino-f16"], MISTAKES, argv)
    WRONG = args.mistake
    m = Model(args.model)
    args.out.mkdir(parents=True)
    model = build(m, len(args.tokens))
    if args.variant.startswith("ort"):
        run_ort(model, args.tokens, args.out, args.variant == "ort-int8")
    else:
        run_openvino(model, args.tokens, args.out, args.variant.partition("-")[2] or "f32")
    (args.out / "firstdiff.toml").write_text(MAP)


if __name__ == "__main__":
    main()
