//! Provides valid recorded programs for the fuzzer: one of a small model with a candidate, and some with every operation of the goldens.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::input::{Fragment, Input, InputFile, Target};
use super::seeds::{bytes, floats, folder, npy, plain_file, text};

/// Goldens of PyTorch and ggml, one operation a case.
const GOLDENS: [&str; 14] = [
    include_str!("../../../crates/program/tests/goldens/attention.json"),
    include_str!("../../../crates/program/tests/goldens/binary.json"),
    include_str!("../../../crates/program/tests/goldens/compare.json"),
    include_str!("../../../crates/program/tests/goldens/convolution.json"),
    include_str!("../../../crates/program/tests/goldens/create.json"),
    include_str!("../../../crates/program/tests/goldens/ggml.json"),
    include_str!("../../../crates/program/tests/goldens/index.json"),
    include_str!("../../../crates/program/tests/goldens/matmul.json"),
    include_str!("../../../crates/program/tests/goldens/norm.json"),
    include_str!("../../../crates/program/tests/goldens/order.json"),
    include_str!("../../../crates/program/tests/goldens/reduce.json"),
    include_str!("../../../crates/program/tests/goldens/scan.json"),
    include_str!("../../../crates/program/tests/goldens/shape.json"),
    include_str!("../../../crates/program/tests/goldens/unary.json"),
];
/// Number of operations in a program: few, so that a change often hits each of them.
const OPERATIONS: usize = 16;

pub(super) fn all() -> Vec<Input> {
    let mut seen = BTreeSet::new();
    let cases: Vec<Value> = GOLDENS
        .iter()
        .flat_map(|file| serde_json::from_str::<Vec<Value>>(file).unwrap_or_default())
        .filter(|case| seen.insert(case["o"].to_string()))
        .collect();
    let mut out: Vec<Input> = cases.chunks(OPERATIONS).map(operations_program).collect();
    out.push(model_program());
    out
}

/// A .safetensors of tensors in f32, f64 and i64: name, type, shape, bytes.
fn stored(tensors: Vec<(String, &str, Vec<usize>, Vec<u8>)>) -> Vec<Fragment> {
    let (mut entries, mut data) = (Vec::new(), Vec::new());
    for (name, dtype, shape, bytes) in tensors {
        let end = data.len() + bytes.len();
        entries
            .push(format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{},{end}]}}"#, data.len()));
        data.extend(bytes);
    }
    vec![Fragment::Counted(8, format!("{{{}}}", entries.join(","))), bytes(data)]
}

/// A program with the operations of several goldens in order, each with its own constants.
fn operations_program(cases: &[Value]) -> Input {
    let (mut values, mut constants, mut ops, mut taps, mut data) = (vec![], vec![], vec![], vec![], vec![]);
    for (number, case) in cases.iter().enumerate() {
        let from = values.len();
        for (value, given) in list(&case["values"]).iter().zip(list(&case["data"])) {
            constants.push(values.len());
            data.push(constant(values.len(), value, given));
            values.push(value.clone());
        }
        let operands: Vec<Value> = list(&case["i"]).iter().map(|operand| moved(operand, from)).collect();
        let mut op = json!({"o": case["o"], "s": 0, "l": number});
        if let Some(named) = case["a"].as_object() {
            op["a"] = named.iter().map(|(key, operand)| (key.clone(), moved(operand, from))).collect();
        }
        ["w", "x"].into_iter().filter(|key| case.get(key).is_some()).for_each(|key| op[key] = case[key].clone());
        let written = |at: usize| operands.get(case["w"].get(at)?.as_u64()? as usize).cloned();
        let outputs: Vec<Value> = list(&case["y"])
            .iter()
            .enumerate()
            .map(|(at, y)| {
                let place = written(at).unwrap_or_else(|| {
                    if y.is_null() {
                        return Value::Null;
                    }
                    values.push(json!([y[0], y[1]]));
                    json!(values.len() - 1)
                });
                if !place.is_null() {
                    taps.push(json!({"tap": format!("op{number}.{at}"), "step": 0, "op": number, "v": place}));
                }
                place
            })
            .collect();
        (op["i"], op["y"]) = (json!(operands), json!(outputs));
        ops.push(op);
    }
    let program = json!({"version": 1, "source": "goldens", "model": "m", "values": values, "constants": constants, "files": ["a.py"],
        "scopes": [["m", ["f"], 0]], "ops": ops, "steps": [{"ops": [0, cases.len()], "tokens": 3}], "taps": taps});
    let parts = vec![
        plain_file("program.json", vec![Fragment::Json(program)]),
        plain_file("program.safetensors", stored(data)),
    ];
    folder("program of operations", Target::Program, parts)
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// An operand with its buffer numbers shifted by `by`.
fn moved(operand: &Value, by: usize) -> Value {
    let number = |x: &Value| json!(x.as_u64().unwrap_or_default() as usize + by);
    match operand {
        Value::Number(_) => number(operand),
        Value::Array(list) => list.iter().map(|x| moved(x, by)).collect(),
        Value::Object(object) if object.contains_key("v") => {
            let mut view = operand.clone();
            view["v"][0] = number(&operand["v"][0]);
            view
        }
        _ => operand.clone(),
    }
}

fn constant(buffer: usize, value: &Value, data: &Value) -> (String, &'static str, Vec<usize>, Vec<u8>) {
    let dtype = value[0].as_str().unwrap_or_default();
    let mut shape: Vec<usize> = list(&value[1]).iter().map(|n| n.as_u64().unwrap_or_default() as usize).collect();
    if dtype.starts_with('c') {
        shape.push(2);
    }
    let float = |x: &Value| match x.as_str() {
        Some("inf") => f64::INFINITY,
        Some("-inf") => f64::NEG_INFINITY,
        _ => x.as_f64().unwrap_or(f64::NAN),
    };
    let int = |x: &Value| x.as_bool().map_or_else(|| x.as_i64().unwrap_or_default(), i64::from);
    let (stored, bytes) = if dtype.starts_with(['f', 'c']) || dtype == "bf16" {
        ("F64", list(data).iter().flat_map(|x| float(x).to_le_bytes()).collect())
    } else {
        ("I64", list(data).iter().flat_map(|x| int(x).to_le_bytes()).collect())
    };
    (buffer.to_string(), stored, shape, bytes)
}

/// Attention in one layer, over three tokens and then one more; with a candidate whose numbers all differ.
fn model_program() -> Input {
    let program = json!({"version": 1, "source": "s", "model": "m", "folder": "/nowhere",
        "weights": {"1": "embed", "2": "norm", "3": "q", "4": "k", "5": "v", "6": "o", "7": "head"},
        "constants": [8], "inputs": {"0": "input_ids", "9": "input_ids@1"},
        "values": [["i64", [1, 3]], ["f32", [5, 4]], ["f32", [4]], ["f32", [4, 4]], ["f32", [4, 4]], ["f32", [4, 4]], ["f32", [4, 4]], ["f32", [5, 4]],
            ["f32", [1, 1, 3, 3]], ["i64", [1, 1]],
            ["f32", [1, 3, 4]], ["f32", [1, 3, 4]], ["f32", [1, 3, 1]], ["f32", [1, 3, 1]], ["f32", [1, 3, 1]], ["f32", [1, 3, 4]], ["f32", [1, 3, 4]],
            ["f32", [1, 3, 4]], ["f32", [1, 3, 4]], ["f32", [1, 3, 4]],
            ["f32", [1, 2, 3, 3]], ["f32", [1, 2, 3, 3]], ["f32", [1, 2, 3, 3]], ["f32", [1, 2, 3, 3]],
            ["f32", [1, 2, 3, 2]], ["f32", [1, 3, 4]], ["f32", [1, 3, 4]], ["f32", [1, 3, 5]], ["i64", [1, 3]],
            ["f32", [1, 1, 4]], ["f32", [1, 1, 4]], ["f32", [1, 4, 4]], ["f32", [1, 1, 5]]],
        "files": ["a.py"], "scopes": [["m", [], 0], ["m.layers.0", ["f", "g"], 0]],
        "ops": [
            {"o": "embedding", "i": [1, 0], "y": [10], "s": 0, "l": 1},
            {"o": "pow.Tensor_Scalar", "i": [10, {"c": 2}], "y": [11], "s": 1, "l": 2},
            {"o": "mean.dim", "i": [11, [{"c": -1}], {"c": true}], "y": [12], "s": 1, "l": 3},
            {"o": "add.Tensor", "i": [12, {"c": 1e-6}], "y": [13], "s": 1, "l": 3},
            {"o": "rsqrt", "i": [13], "y": [14], "s": 1, "l": 3},
            {"o": "mul.Tensor", "i": [10, 14], "y": [15], "s": 1, "l": 4},
            {"o": "mul.Tensor", "i": [2, 15], "y": [16], "s": 1, "l": 5},
            {"o": "linear", "i": [16, 3], "y": [17], "s": 1, "l": 6},
            {"o": "linear", "i": [16, 4], "y": [18], "s": 1, "l": 7},
            {"o": "linear", "i": [16, 5], "y": [19], "s": 1, "l": 8},
            {"o": "matmul", "i": [{"v": [17, [1, 2, 3, 2], [12, 2, 4, 1]]}, {"v": [18, [1, 2, 2, 3], [12, 2, 1, 4]]}], "y": [20], "s": 1, "l": 9},
            {"o": "mul.Tensor", "i": [20, {"c": 0.5}], "y": [21], "s": 1, "l": 10},
            {"o": "add.Tensor", "i": [21, 8], "y": [22], "s": 1, "l": 11},
            {"o": "softmax.int", "i": [22, {"c": -1}, {"t": "f32"}], "y": [23], "s": 1, "l": 12},
            {"o": "matmul", "i": [23, {"v": [19, [1, 2, 3, 2], [12, 2, 4, 1]]}], "y": [24], "s": 1, "l": 13},
            {"o": "linear", "i": [{"v": [24, [1, 3, 4], [12, 2, 6]]}, 6], "y": [25], "s": 1, "l": 14},
            {"o": "add.Tensor", "i": [10, 25], "a": {"alpha": {"c": 1}}, "y": [26], "s": 1, "l": 15},
            {"o": "linear", "i": [26, 7], "y": [27], "s": 0, "l": 16},
            {"o": "argmax", "i": [27, {"c": -1}], "y": [28], "s": 0, "l": 17},
            {"o": "embedding", "i": [1, 9], "y": [29], "s": 0, "l": 1},
            {"o": "gelu", "i": [29], "a": {"approximate": {"c": "tanh"}}, "y": [30], "s": 1, "l": 18},
            {"o": "cat", "i": [[18, 30], {"c": 1}], "y": [31], "s": 1, "l": 19},
            {"o": "add_.Tensor", "i": [31, {"c": 1}], "y": [31], "w": [0], "s": 1, "l": 20},
            {"o": "linear", "i": [{"v": [31, [1, 1, 4], [16, 4, 1], 12]}, 7], "y": [32], "s": 0, "l": 16}],
        "steps": [{"ops": [0, 19], "tokens": 3, "output": 27}, {"ops": [19, 24], "tokens": 1, "output": 32}],
        "taps": [{"tap": "h0", "step": 0, "op": 0, "v": {"v": [10, [3, 4], [4, 1]]}}, {"tap": "layers.0.attn_norm", "step": 0, "op": 6, "v": {"v": [16, [3, 4], [4, 1]]}},
            {"tap": "layers.0.q", "step": 0, "op": 7, "v": {"v": [17, [3, 2, 2], [4, 2, 1]]}}, {"tap": "layers.0.scores", "step": 0, "op": 12, "v": {"v": [22, [2, 3, 3], [9, 3, 1]]}},
            {"tap": "layers.0.probs", "step": 0, "op": 13, "v": {"v": [23, [2, 3, 3], [9, 3, 1]]}}, {"tap": "layers.0.h", "step": 0, "op": 16, "v": {"v": [26, [3, 4], [4, 1]]}},
            {"tap": "logits", "step": 0, "op": 17, "v": {"v": [27, [3, 5], [5, 1]]}}, {"tap": "layers.0.act/x", "step": 1, "op": 20, "v": {"v": [30, [1, 4], [4, 1]]}},
            {"tap": "logits", "step": 1, "op": 23, "v": {"v": [32, [1, 5], [5, 1]]}}]});
    let ints = |ids: &[i64]| ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>();
    let mask: Vec<u8> = (0..9).flat_map(|at| if at % 3 > at / 3 { f32::MIN } else { 0.0 }.to_le_bytes()).collect();
    let values = vec![
        ("0".into(), "I64", vec![1, 3], ints(&[1, 2, 4])),
        ("8".into(), "F32", vec![1, 1, 3, 3], mask),
        ("9".into(), "I64", vec![1, 1], ints(&[3])),
    ];
    let weight = |name: &str, shape: &[usize]| (name.to_owned(), "F32", shape.to_vec(), floats(shape.iter().product()));
    let square = ["q", "k", "v", "o"].map(|name| weight(name, &[4, 4]));
    let weights = [weight("embed", &[5, 4]), weight("norm", &[4]), weight("head", &[5, 4])].into_iter().chain(square);
    let dump = r#"{"format": 1, "producer": {"name": "x", "version": "1"}, "tokens": [1, 2, 4], "decode_tokens": [3], "precision": "f32"}"#;
    let run = |folder: &str, by: usize| -> Vec<InputFile> {
        let part = |name: &str, shape: &str, count: usize| {
            plain_file(
                &format!("{folder}{name}.npy"),
                npy(1, "<f4", "False", shape, floats(count + by)[4 * by..].to_vec()),
            )
        };
        vec![
            plain_file(&format!("{folder}dump.json"), vec![text(dump)]),
            part("h0", "(3, 4)", 12),
            part("layers.0.attn_norm", "(3, 4)", 12),
            part("layers.0.q", "(3, 2, 2)", 12),
            part("layers.0.scores", "(2, 3, 3)", 18),
            part("layers.0.probs", "(2, 3, 3)", 18),
            part("layers.0.h", "(3, 4)", 12),
            part("logits", "(3, 5)", 15),
            part("logits.step1", "(1, 5)", 5),
        ]
    };
    let own = [
        plain_file("program.json", vec![Fragment::Json(program)]),
        plain_file("program.safetensors", stored(values)),
        plain_file("model.safetensors", stored(weights.collect())),
    ];
    let parts = own.into_iter().chain(run("", 0)).chain(run("candidate/", 3)).collect();
    folder("program", Target::Recording, parts)
}
