//! Checks evaluation: steps, views, rounding to types, weights, and data-dependent paths.

use std::path::Path;

use firstdiff_program::{
    Arithmetic, DType, EvaluateError, Evaluator, Half, KernelError, ModelFolder, Scalar, Tensor, Values,
};
use firstdiff_trace::Cache;
use serde_json::{Value, json};

use crate::common::{Held, open};

fn floats(values: &Values<'_>) -> Vec<f64> {
    match values {
        Values::Float(x) => x.to_vec(),
        other => panic!("{other:?}"),
    }
}

/// Runs all steps of a program of constants; returns the taps in order, or the first error.
fn taps(
    program: &Value,
    constants: &[(usize, Vec<usize>, Vec<f64>)],
    arithmetic: Arithmetic,
) -> Result<Vec<Vec<f64>>, EvaluateError> {
    let program = open(program, constants).unwrap();
    let mut weights = Held::default();
    weights.0.insert("w".into(), (vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]));
    let mut evaluator = Evaluator::new(&program, arithmetic, &weights);
    let mut out = Vec::new();
    for step in 0..program.steps().len() {
        evaluator.run_step(step, &mut |tap| out.push(floats(tap.value.values())))?;
    }
    Ok(out)
}

/// A buffer is written in place twice, and its tap read in between; a later step reads what an earlier one wrote.
#[test]
fn taps_are_read_right_after_their_operation_and_steps_share_buffers() {
    let program = json!({"version": 1, "constants": [0], "weights": {"1": "w"},
        "values": [["f32", [2]], ["f32", [2, 2]], ["f32", [2]], ["f32", [2, 2]]],
        "ops": [
            {"o": "linear", "i": [0, 1], "y": [2]},
            {"o": "add_.Tensor", "i": [{"v": [2, [1], [1], 1]}, {"c": 10}], "y": [{"v": [2, [1], [1], 1]}], "w": [0]},
            {"o": "cat", "i": [[2, 2]], "y": [{"v": [3, [4], [1]]}]},
            {"o": "mul.Tensor", "i": [{"v": [3, [2, 2], [1, 2]]}, {"v": [0, [2, 2], [0, 1]]}], "y": [3]}],
        "steps": [{"ops": [0, 2], "tokens": 1, "output": 2}, {"ops": [2, 4], "tokens": 1, "output": 3}],
        "taps": [{"tap": "a", "step": 0, "op": 0, "v": 2}, {"tap": "b", "step": 0, "op": 1, "v": 2},
            {"tap": "c", "step": 1, "op": 3, "v": 3}]});
    let found = taps(&program, &[(0, vec![2], vec![1.0, 0.5])], Arithmetic::F64).unwrap();
    assert_eq!(found, [vec![2.0, 5.0], vec![2.0, 15.0], vec![2.0, 1.0, 15.0, 7.5]]);
}

#[test]
fn values_are_rounded_to_the_type_of_their_buffer() {
    let program = |dtype: &str| {
        json!({"version": 1, "constants": [0], "values": [["f64", [1]], [dtype, [1]]],
            "ops": [{"o": "mul.Tensor", "i": [0, {"c": 1.0}], "y": [1]}], "steps": [{"ops": [0, 1]}],
            "taps": [{"tap": "a", "step": 0, "op": 0, "v": 1}]})
    };
    let x = 1.0 + 2f64.powi(-9) + 2f64.powi(-30);
    let run = |dtype, arithmetic| taps(&program(dtype), &[(0, vec![1], vec![x])], arithmetic).unwrap()[0][0];
    assert_eq!(run("f64", Arithmetic::F32), x);
    assert_eq!(run("f32", Arithmetic::F64), x);
    assert_eq!(run("f32", Arithmetic::F32), 1.0 + 2f64.powi(-9));
    assert_eq!(run("f16", Arithmetic::F64), 1.0 + 2f64.powi(-9));
    assert_eq!(run("bf16", Arithmetic::F64), 1.0);
    let overflow = taps(&program("f32"), &[(0, vec![1], vec![-7e38])], Arithmetic::F64).unwrap();
    assert_eq!(overflow[0][0], f64::NEG_INFINITY);
}

/// A matrix in f16 is multiplied with rows rounded to f16, one in f32 with unrounded rows.
#[test]
fn activations_are_rounded_as_ggml_does() {
    let program = |dtype: &str, op: &str| {
        json!({"version": 1, "constants": [0, 1], "values": [[dtype, [1, 2]], ["f32", [1, 2]], ["f32", [1, 1]]],
            "ops": [{"o": op, "i": [0, 1], "y": [2]}], "steps": [{"ops": [0, 1]}],
            "taps": [{"tap": "a", "step": 0, "op": 0, "v": 2}]})
    };
    let given = [(0, vec![1, 2], vec![1.0, 2.0]), (1, vec![1, 2], vec![1.0 + 2f64.powi(-12), 3.0])];
    let run = |dtype, op, arithmetic| taps(&program(dtype, op), &given, arithmetic).unwrap()[0][0];
    let exact = 7.0 + 2f64.powi(-12);
    assert_eq!(run("f16", "ggml.MUL_MAT", Arithmetic::Ggml { cache: Cache::F32 }), 7.0);
    assert_eq!(run("bf16", "ggml.MUL_MAT", Arithmetic::Ggml { cache: Cache::F32 }), 7.0);
    assert_eq!(run("f32", "ggml.MUL_MAT", Arithmetic::Ggml { cache: Cache::F32 }), exact);
    assert_eq!(run("f16", "ggml.MUL_MAT", Arithmetic::F32), exact);
    assert_eq!(run("f16", "linear", Arithmetic::Ggml { cache: Cache::F32 }), exact);
}

/// A GGUF file of one matrix \[2,64\] of Q4_1 blocks, called w.
fn gguf_of_q4_1(folder: &Path, blocks: &[u8]) -> ModelFolder {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let numbers = |numbers: &[u64]| numbers.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    let mut file = [b"GGUF".to_vec(), 3u32.to_le_bytes().to_vec(), numbers(&[1, 1])].concat();
    file.extend([text("general.architecture"), 8u32.to_le_bytes().to_vec(), text("llama")].concat());
    file.extend(
        [text("w"), 2u32.to_le_bytes().to_vec(), numbers(&[64, 2]), 3u32.to_le_bytes().to_vec(), numbers(&[0])]
            .concat(),
    );
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(blocks);
    let path = folder.join("w.gguf");
    std::fs::write(&path, file).unwrap();
    ModelFolder::open(&path).unwrap()
}

/// ggml multiplies the minimum of a block of Q4_1 with a sum that it has rounded to f16 apart from the values.
#[test]
fn minima_are_multiplied_with_the_rounded_sums_of_q8_1() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/quants");
    let folder = tempfile::tempdir().unwrap();
    let bytes = std::fs::read(fixtures.join("Q4_1.bin")).unwrap()[..80].to_vec();
    let values = std::fs::read(fixtures.join("Q4_1.f32")).unwrap();
    let values: Vec<f64> = values.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b).into()).collect();
    let weights = gguf_of_q4_1(folder.path(), &bytes);
    let x: Vec<f32> = (0..64).map(|i| ((i * 37) % 101) as f32 * 0.031 - 0.5).collect();
    let half = |x: f32| f64::from(half::f16::from_f32(x).to_f32());
    let row = |row: usize| -> f64 {
        let block = |b: usize| {
            let (x, minimum) =
                (&x[b % 2 * 32..][..32], half::f16::from_le_bytes([bytes[20 * b + 2], bytes[20 * b + 3]]));
            let top = x.iter().fold(0f32, |top, x| top.max(x.abs()));
            let quants: Vec<f32> = x.iter().map(|x| (x * (127.0 / top)).round_ties_even()).collect();
            let minimum = f64::from(minimum.to_f32());
            let scaled = |(q, w): (&f32, &f64)| f64::from(*q) * (w - minimum);
            quants.iter().zip(&values[32 * b..]).map(scaled).sum::<f64>() * half(top / 127.0)
                + minimum * half(top / 127.0 * quants.iter().sum::<f32>())
        };
        block(2 * row) + block(2 * row + 1)
    };
    for (op, operands) in [("linear", json!([0, 1])), ("ggml.MUL_MAT", json!([1, 0]))] {
        let program = json!({"version": 1, "constants": [0], "weights": {"1": "w"},
            "values": [["f32", [1, 64]], ["f32", [2, 64]], ["f32", [1, 2]]],
            "ops": [{"o": op, "i": operands, "y": [2]}], "steps": [{"ops": [0, 1]}],
            "taps": [{"tap": "a", "step": 0, "op": 0, "v": 2}]});
        let program = open(&program, &[(0, vec![1, 64], x.iter().map(|&x| x.into()).collect())]).unwrap();
        let mut evaluator = Evaluator::new(&program, Arithmetic::Ggml { cache: Cache::F32 }, &weights);
        let mut found = Vec::new();
        evaluator.run_step(0, &mut |tap| found = floats(tap.value.values())).unwrap();
        for (found, due) in found.iter().zip([row(0), row(1)]) {
            assert!((found - due).abs() <= 1e-6 * due.abs(), "{op}: {found}, {due} is due");
        }
    }
}

/// A product goes with its bias, also where another tap is read between the two; a norm that lacks a parameter, and factors that are no list, are refused.
#[test]
fn operations_of_ggml_are_read_as_those_of_pytorch() {
    let program = |ops: serde_json::Value, tap: usize| {
        json!({"version": 1, "constants": [0, 3, 5], "weights": {"1": "w", "4": "b"},
            "values": [["f32", [2]], ["f32", [2, 2]], ["f32", [2]], ["f32", [1]], ["f32", [2]], ["f32", []], ["f32", [2]]],
            "ops": ops, "steps": [{"ops": [0, 2]}],
            "taps": [{"tap": "a", "step": 0, "op": 0, "v": tap}, {"tap": "b", "step": 0, "op": 1, "v": 6}]})
    };
    let given = [(0, vec![2], vec![1.0, 0.5]), (3, vec![1], vec![2.0]), (5, vec![], vec![1.0])];
    let run = |ops, tap| {
        let program = open(&program(ops, tap), &given).unwrap();
        let mut weights = Held::default();
        weights.0.insert("w".into(), (vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]));
        weights.0.insert("b".into(), (vec![2], vec![10.0, 20.0]));
        let mut out = Vec::new();
        let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &weights);
        evaluator.run_step(0, &mut |tap| out.push(floats(tap.value.values())))?;
        Ok::<_, EvaluateError>(out)
    };
    let sum = json!([{"o": "ggml.MUL_MAT", "i": [1, 0], "y": [2]}, {"o": "ggml.ADD", "i": [2, 4], "y": [6]}]);
    assert_eq!(run(sum.clone(), 0).unwrap(), [vec![1.0, 0.5], vec![12.0, 25.0]]);
    assert_eq!(run(sum, 2).unwrap(), [vec![2.0, 5.0], vec![12.0, 25.0]]);
    let norm = json!([{"o": "ggml.RMS_NORM", "i": [0], "y": [2]}, {"o": "ggml.MUL", "i": [2, 4], "y": [6]}]);
    assert!(run(norm, 0).is_err());
    let (name, parameters) = (
        "ggml.ROPE",
        json!({"mode": {"c": 0}, "n_dims": {"c": 2}, "freq_base": {"c": 10.0}, "freq_scale": {"c": 1.0},
        "ext_factor": {"c": 0.0}, "attn_factor": {"c": 1.0}, "n_ctx_orig": {"c": 8}, "beta_fast": {"c": 32.0}, "beta_slow": {"c": 1.0}}),
    );
    let turn = |operands: serde_json::Value| json!([{"o": name, "i": operands, "y": [2], "a": parameters}, {"o": "ggml.ADD", "i": [2, 0], "y": [6]}]);
    let turned = run(turn(json!([0, 3])), 2).unwrap();
    let (sin, cos) = 2f64.sin_cos();
    assert_eq!(turned[0], [cos - 0.5 * sin, 0.5 * cos + sin]);
    let _ = run(turn(json!([0, 3, 5])), 2);
}

#[test]
fn complex_numbers_over_their_parts() {
    let program = json!({"version": 1, "constants": [0], "values": [["f32", [4]], ["c64", [2]]],
        "ops": [{"o": "mul.Tensor", "i": [{"v": [0, [2], [1], 0, "c64"]}, {"v": [0, [2], [0], 1, "c64"]}], "y": [1]}],
        "steps": [{"ops": [0, 1]}], "taps": [{"tap": "a", "step": 0, "op": 0, "v": {"v": [1, [4], [1], 0, "f32"]}}]});
    // (1 + 2i)(3 + 4i) and (3 + 4i)².
    let found = taps(&program, &[(0, vec![4], vec![1.0, 2.0, 3.0, 4.0])], Arithmetic::F64).unwrap();
    assert_eq!(found, [vec![-5.0, 10.0, -7.0, 24.0]]);
}

#[test]
fn another_path_and_an_operation_without_kernel_are_said() {
    let program = |op: Value| json!({"version": 1, "constants": [0], "values": [["f64", [2]], ["f64", [2]]], "ops": [op], "steps": [{"ops": [0, 1]}]});
    let run = |op: Value| taps(&program(op), &[(0, vec![2], vec![1.0, 2.5])], Arithmetic::F64);
    let item = |x: Value| json!({"o": "item", "i": [{"v": [0, [], [], 1]}], "y": [], "x": x});
    assert!(run(item(json!(2.500001))).is_ok());
    let error = run(item(json!(3.5))).unwrap_err();
    assert!(matches!(&error, EvaluateError::OtherPath { op: 0, recorded: Scalar::Float(_), .. }), "{error}");
    assert_eq!(error.to_string().lines().count(), 1);
    assert!(run(json!({"o": "tolist", "i": [0], "y": [], "x": [1.0, 2.5]})).is_ok());
    assert!(run(json!({"o": "tolist", "i": [0], "y": [], "x": [1.0]})).is_err());
    let error = run(json!({"o": "my_own", "i": [0], "y": [1]})).unwrap_err();
    assert!(matches!(&error, EvaluateError::Opaque { op: 0, name } if name == "my_own"), "{error}");
    let misfit = json!({"o": "matmul", "i": [0, {"v": [0, [1, 2], [1, 1]]}], "y": [1]});
    let error = run(misfit).unwrap_err();
    assert!(matches!(&error, EvaluateError::Kernel { op: 0, error: KernelError::Shape { .. }, .. }), "{error}");
}

#[test]
fn steps_go_in_order_and_weights_must_fit() {
    let program = json!({"version": 1, "weights": {"0": "w", "1": "none"}, "values": [["f32", [4]], ["f32", [1]], ["f32", [4]]],
        "ops": [{"o": "neg", "i": [0], "y": [2]}], "steps": [{"ops": [0, 1]}]});
    assert!(matches!(taps(&program, &[], Arithmetic::F64), Err(EvaluateError::WeightShape { .. })));
    let mut absent = program.clone();
    absent["ops"][0]["i"] = json!([1]);
    assert!(matches!(taps(&absent, &[], Arithmetic::F64), Err(EvaluateError::Weight(_))));
    let program = open(&program, &[]).unwrap();
    let weights = Held::default();
    let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &weights);
    let error = evaluator.run_step(1, &mut |_| {}).unwrap_err();
    assert!(matches!(error, EvaluateError::Step { step: 1, next: 0, count: 1 }));
}

/// Half of a product that cannot be computed is set under two names: the other half stays unknown.
#[test]
fn what_is_held_twice_is_no_more_than_what_is_held_once() {
    let half = |from: usize| json!({"v": [2, [1], [1], from]});
    let mut program = json!({"version": 1, "constants": [0], "weights": {"1": "none"},
        "values": [["f32", [2]], ["f32", [2, 2]], ["f32", [2]], ["f32", [1]]],
        "ops": [
            {"o": "linear", "i": [0, 1], "y": [2]},
            {"o": "mul.Tensor", "i": [half(0), half(1)], "y": [3]}],
        "steps": [{"ops": [0, 2], "tokens": 1, "output": 3}],
        "taps": [{"tap": "a", "step": 0, "op": 0, "v": half(0)}, {"tap": "b", "step": 0, "op": 0, "v": half(0)},
            {"tap": "c", "step": 0, "op": 1, "v": 3}]});
    let mut last = |second: usize| {
        program["taps"][1]["v"] = half(second);
        let program = open(&program, &[(0, vec![2], vec![1.0, 1.0])]).unwrap();
        let weights = Held::default();
        let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &weights);
        for held in [3.0, 5.0] {
            let tap = evaluator.next_tap().unwrap();
            let value = Tensor::new(DType::F32, vec![1], Values::Float(vec![held].into())).unwrap();
            evaluator.hold(tap, value).unwrap();
        }
        let tap = evaluator.next_tap().unwrap();
        evaluator.value(tap).unwrap().map(|value| floats(value.values()))
    };
    assert_eq!(last(0), None);
    assert_eq!(last(1), Some(vec![15.0]));
}

/// The mean of each row stays in f32, and so does what depends only on it; a product with a single column is rounded like others.
#[test]
fn a_single_column_is_rounded_unless_it_is_a_statistic() {
    let program = json!({"version": 1, "constants": [], "inputs": {"0": "pixels"}, "weights": {"1": "w"},
        "values": [["f32", [1, 1, 2]], ["f32", [2, 2]], ["f32", [1, 1, 1]], ["f32", [1, 1, 1]], ["f32", [1, 1, 1]],
            ["f32", [1, 1, 1]]],
        "ops": [
            {"o": "mean.dim", "i": [0, [{"c": -1}], {"c": true}], "y": [2]},
            {"o": "add.Tensor", "i": [2, {"c": 0.001}], "y": [3]},
            {"o": "linear", "i": [0, {"v": [1, [1, 2], [2, 1]]}], "y": [4]},
            {"o": "add.Tensor", "i": [4, {"c": 0.001}], "y": [5]}],
        "steps": [{"ops": [0, 4], "tokens": 1, "output": 5}],
        "taps": [{"tap": "mean", "step": 0, "op": 0, "v": 2}, {"tap": "more", "step": 0, "op": 1, "v": 3},
            {"tap": "gate", "step": 0, "op": 2, "v": 4}, {"tap": "of", "step": 0, "op": 3, "v": 5}]});
    let found = taps(&program, &[(0, vec![1, 1, 2], vec![1.0, 1.015625])], Arithmetic::Half(Half::BF16)).unwrap();
    let single = |x: f64| vec![f64::from(x as f32)];
    assert_eq!(found, [single(1.0078125), single(1.0078125 + 0.001), vec![3.03125], vec![3.03125]]);
}
