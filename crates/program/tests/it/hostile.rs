//! Checks that no number in a program file leads to a panic, or to memory that the file's size does not justify.

use std::fs;

use firstdiff_program::{Arithmetic, Evaluator, Fault, Limits, Program, ProgramError, kernel_names};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Held, open};
use crate::goldens::{cases, program_of, write_case};

fn good() -> Value {
    json!({"version": 1, "source": "s", "model": "m", "weights": {"1": "w"}, "constants": [0],
        "values": [["f32", [2, 2]], ["f32", [2, 2]], ["f32", [2, 2], [2, 1], 0], ["i64", [2]], ["f32", [2]]],
        "files": ["a.py"], "scopes": [["m", ["f"], 0]],
        "ops": [
            {"o": "linear", "i": [0, 1], "y": [2], "s": 0, "l": 7},
            {"o": "argmax", "i": [2, {"c": -1}], "y": [3]},
            {"o": "index.Tensor", "i": [2, [null, 3]], "y": [{"v": [2, [2, 2], [1, 2]]}]},
            {"o": "add_.Tensor", "i": [2, {"c": 1}], "a": {"alpha": {"c": 2}}, "y": [2], "w": [0]},
            {"o": "softmax.int", "i": [{"v": [2, [2], [1], 2]}, {"c": 0}, {"t": "f32"}], "y": [4]},
            {"o": "item", "i": [{"v": [3, [], [], 1]}], "y": [], "x": 1}],
        "steps": [{"ops": [0, 2], "tokens": 2, "output": 2}, {"ops": [3, 6], "tokens": 1, "output": null}],
        "taps": [{"tap": "q", "step": 0, "op": 0, "v": 2}, {"tap": "q", "step": 1, "op": 4, "v": 4}]})
}

fn constants() -> Vec<(usize, Vec<usize>, Vec<f64>)> {
    vec![(0, vec![2, 2], vec![1.0, 2.0, -3.0, 4.0])]
}

/// The fault of a program that differs from the valid one at a JSON pointer.
fn fault(pointer: &str, value: Value) -> Fault {
    let mut program = good();
    *program.pointer_mut(pointer).unwrap() = value;
    match open(&program, &constants()) {
        Err(error @ ProgramError::At { .. }) => {
            assert_eq!(error.to_string().lines().count(), 1, "{error}");
            let ProgramError::At { fault, .. } = error else { unreachable!() };
            fault
        }
        other => panic!("{pointer}: {other:?}"),
    }
}

#[test]
fn the_good_one_is_read() {
    let program = open(&good(), &constants()).unwrap();
    assert_eq!((program.source(), program.model(), program.ops().len(), program.taps().len()), ("s", "m", 6, 2));
    assert_eq!(
        (program.scopes()[0].module.as_str(), program.files(), program.weights()[&1].as_str()),
        ("m", &["a.py".to_owned()][..], "w")
    );
    assert!(program.unsupported().is_empty() && program.inputs().is_empty() && program.buffers().len() == 5);
}

#[test]
fn each_fault_is_named() {
    use Fault::*;
    assert!(matches!(fault("/values/0/0", json!("f31")), DType(name) if name == "f31"));
    assert!(matches!(fault("/values/0/1", json!([2, -2])), Negative(-2)));
    assert!(matches!(fault("/values/0/1", json!([2.5])), Not { .. }));
    assert!(matches!(fault("/values/0", json!(["f32"])), Not { .. }));
    assert!(matches!(fault("/values/0/1", json!([1u64 << 40, 1u64 << 40])), Overflow));
    assert!(matches!(fault("/values/0/1", json!([1u64 << 33])), Elements { limit: 0x1_0000_0000, .. }));
    assert!(matches!(fault("/values/2/2", json!([2])), Strides { axes: 2, strides: 1 }));
    assert!(matches!(fault("/values/2/2", json!([i64::MAX, i64::MAX])), Elements { .. }));
    assert!(matches!(fault("/values/2/3", json!(-1)), Negative(-1)));
    assert!(matches!(fault("/weights", json!({"9": "w"})), Buffer { number: 9, count: 5 }));
    assert!(matches!(fault("/weights", json!({"x": "w"})), Not { .. }));
    assert!(matches!(fault("/weights", json!({"1": ""})), EmptyName));
    assert!(matches!(fault("/weights", json!({"1": "a", "01": "b"})), GivenTwice(1)));
    assert!(matches!(fault("/constants", json!([0, 1])), GivenTwice(1)));
    assert!(matches!(fault("/constants", json!([0, -1])), Buffer { number: -1, .. }));
    assert!(matches!(fault("/constants", json!([0, 4])), Missing));
    assert!(matches!(fault("/constants", json!([])), Unwritten(0)));
    assert!(matches!(fault("/values/0/1", json!([4])), StoredShape { .. }));
    assert!(matches!(fault("/values/0/0", json!("i64")), StoredAs { .. }));
    assert!(matches!(fault("/ops/0/i/0", json!(7)), Buffer { number: 7, .. }));
    assert!(matches!(fault("/ops/0/i/0", json!(4)), Unwritten(4)));
    assert!(matches!(fault("/ops/0/i/0", json!({"z": 1})), Not { .. }));
    assert!(matches!(fault("/ops/0/i/0", json!({"c": []})), Not { .. }));
    assert!(matches!(fault("/ops/0/i/0", json!({"t": "x"})), DType(_)));
    assert!(matches!(fault("/ops/0/i/0", json!("text")), Not { .. }));
    assert!(matches!(fault("/ops/0/i/0", json!({"v": [0, [2], [1], 0, "i64"]})), Reinterpreted { .. }));
    assert!(matches!(fault("/ops/0/i/0", json!({"v": [0, [1u64 << 33], [0]]})), Elements { .. }));
    assert!(matches!(fault("/ops/0/i/0", json!({"v": [0, [2], [-1]]})), Negative(-1)));
    assert!(matches!(fault("/ops/0/i/0", json!({"v": [0]})), Not { .. }));
    let large = json!({"v": [0, [1u64 << 31], [0]]});
    assert!(matches!(fault("/ops/0/i", json!([large, large, large])), Elements { .. }));
    assert!(matches!(fault("/ops/0/s", json!(1)), Index { what: "scope", .. }));
    assert!(matches!(fault("/ops/0/l", json!(-1)), Negative(-1)));
    assert!(matches!(fault("/ops/0/o", json!("")), EmptyName));
    assert!(matches!(fault("/ops/3/w", json!([2])), Index { what: "operand", .. }));
    assert!(matches!(fault("/ops/3/w", json!([1])), Not { .. }));
    assert!(matches!(fault("/ops/3/w", json!([0, 0])), Outputs { .. }));
    assert!(matches!(fault("/ops/5/y", json!([4])), ScalarAndOutputs));
    assert!(matches!(fault("/ops/5/x", json!({})), Not { .. }));
    assert!(matches!(fault("/scopes/0/2", json!(1)), Index { what: "file", .. }));
    assert!(matches!(fault("/steps/0/ops", json!([0, 7])), Range { .. }));
    assert!(matches!(fault("/steps/1/ops", json!([1, 6])), Range { .. }));
    assert!(matches!(fault("/steps/1/ops", json!([5, 4])), Range { .. }));
    assert!(matches!(fault("/steps/0/tokens", json!(-3)), Negative(-3)));
    assert!(matches!(fault("/steps/0/output", json!(4)), Unwritten(4)));
    assert!(matches!(fault("/steps/0/output", json!({"c": 1})), Not { .. }));
    assert!(matches!(fault("/taps/0/tap", json!("")), EmptyName));
    assert!(matches!(fault("/taps/0/step", json!(2)), Index { what: "step", .. }));
    assert!(matches!(fault("/taps/0/op", json!(2)), OutsideStep { .. }));
    assert!(matches!(fault("/taps/0/v", json!(3)), Unwritten(3)));
    assert!(matches!(fault("/taps/0/v", json!(null)), Not { .. }));
    let twice = json!([{"tap": "q", "step": 0, "op": 0, "v": 2}, {"tap": "q", "step": 0, "op": 1, "v": 2}]);
    assert!(matches!(fault("/taps", twice), Duplicate { .. }));
}

#[test]
fn versions_and_documents() {
    let mut program = good();
    program["version"] = json!(2);
    assert!(matches!(open(&program, &constants()), Err(ProgramError::Version { found: 2 })));
    program["version"] = json!("1");
    assert!(matches!(open(&program, &constants()), Err(ProgramError::Json { .. })));
    let many: Vec<usize> = vec![2; 1 << 18];
    program = good();
    program["ops"][0]["i"] = json!(many);
    assert!(
        matches!(open(&program, &constants()), Err(ProgramError::Json { reason, .. }) if reason.contains("operands"))
    );
    let folder = TempDir::new().unwrap();
    assert!(matches!(Program::open(folder.path()), Err(ProgramError::File(_))));
    fs::write(folder.path().join("program.json"), "[".repeat(100_000)).unwrap();
    assert!(matches!(Program::open(folder.path()), Err(ProgramError::Json { .. })));
    fs::write(folder.path().join("program.json"), good().to_string()).unwrap();
    assert!(matches!(Program::open(folder.path()), Err(ProgramError::File(_))));
    fs::write(folder.path().join("program.safetensors"), b"no tensors").unwrap();
    assert!(matches!(Program::open(folder.path()), Err(ProgramError::Safetensors { .. })));
}

#[test]
fn all_buffers_together_are_limited() {
    let folder = TempDir::new().unwrap();
    let many: Vec<Value> = (0..10).map(|_| json!(["f32", [100]])).collect();
    let ops: Vec<Value> = (0..10).map(|b| json!({"o": "zeros", "i": [[{"c": 100}]], "y": [b]})).collect();
    let last = json!({"o": "cat", "i": [(0..10).collect::<Vec<_>>()], "y": [{"v": [0, [100], [1]]}]});
    let ops = [ops, vec![last]].concat();
    let program = json!({"version": 1, "values": many, "ops": ops, "steps": [{"ops": [0, 11]}]});
    fs::write(folder.path().join("program.json"), program.to_string()).unwrap();
    let open = |elements| Program::open_within(folder.path(), Limits { elements });
    assert!(open(1000).is_ok());
    assert!(matches!(open(999), Err(ProgramError::At { fault: Fault::Elements { needed: 1000, limit: 999 }, .. })));
}

/// What a few kilobytes ask for is limited by the size of the files beside them.
#[test]
fn memory_is_bounded_by_what_the_files_hold() {
    let folder = TempDir::new().unwrap();
    let weights = Held::default();
    let refused = |values: Value, ops: Value, given: &[(usize, crate::common::Stored)]| {
        let program = json!({"version": 1, "values": values, "weights": {"0": "w"}, "ops": ops, "steps": [{"ops": [0, 1]}],
            "taps": [{"tap": "q", "step": 0, "op": 0, "v": 1}]});
        crate::common::write(folder.path(), &program, given);
        match Program::open(folder.path()).unwrap().check_memory(&weights) {
            Ok(()) => None,
            Err(ProgramError::At { fault: Fault::Elements { needed, .. }, .. }) => Some(needed),
            Err(other) => panic!("{other}"),
        }
    };
    let large = 1u64 << 29;
    let ones = json!([{"o": "zeros", "i": [[{"c": large}]], "y": [1]}]);
    assert_eq!(refused(json!([["f32", [2]], ["f32", [large]]]), ones, &[]), Some(large));
    // A view that reaches far beyond its weight, and one that repeats the same number.
    let read = |view: Value| json!([{"o": "sum", "i": [{"v": view}], "y": [1]}]);
    let values = json!([["f32", [2]], ["f32", []]]);
    assert_eq!(refused(values.clone(), read(json!([0, [2], [1], large])), &[]), Some(large + 1));
    assert_eq!(refused(values.clone(), read(json!([0, [large], [0]])), &[]), Some(large + 1));
    assert_eq!(refused(values, read(json!([0, [2], [1]])), &[]), None);
    // Logits of a long recorded prompt.
    let ones = json!([{"o": "zeros", "i": [[{"c": large}]], "y": [1]}]);
    let values = json!([["f32", [2]], ["f32", [large]]]);
    let logits = fs::File::create(folder.path().join("logits.npy")).unwrap();
    logits.set_len(4 * large).unwrap();
    assert_eq!(refused(values, ones, &[]), None);
}

/// A few kilobytes that would keep a machine busy are refused before evaluation; the same work for large inputs is allowed.
#[test]
fn work_is_bounded_by_what_the_files_hold() {
    let folder = TempDir::new().unwrap();
    let weights = Held::default();
    let n = 1u64 << 13;
    let refused = |values: Value, ops: Vec<Value>, given: &[(usize, crate::common::Stored)]| {
        let count = ops.len();
        let program = json!({"version": 1, "values": values, "weights": {"0": "w"}, "ops": ops, "steps": [{"ops": [0, count]}],
            "taps": [{"tap": "q", "step": 0, "op": count - 1, "v": 1}]});
        crate::common::write(folder.path(), &program, given);
        match Program::open(folder.path()).unwrap().check_work(&weights) {
            Ok(()) => None,
            Err(ProgramError::At { fault: Fault::Work { needed, .. }, .. }) => Some(needed),
            Err(other) => panic!("{other}"),
        }
    };
    let same = json!({"v": [1, [n, n], [0, 0]]});
    let one = json!({"o": "zeros", "i": [[]], "y": [1]});
    let repeated = |op: Value, times: usize| [vec![one.clone()], vec![op; times]].concat();
    let values = json!([["f32", [2]], ["f32", []]]);
    // Sums of one number that is repeated.
    let sum = json!({"o": "sum", "i": [same], "y": [1]});
    assert_eq!(refused(values.clone(), repeated(sum.clone(), 16), &[]), None);
    assert_eq!(refused(values.clone(), repeated(sum.clone(), 64), &[]), Some(1 + 64 * (n * n + 1)));
    // A product whose recorded result is a single number.
    let product = json!({"o": "mm", "i": [same, same], "y": [1]});
    assert_eq!(refused(values.clone(), repeated(product, 1), &[]), Some(1 + 2 * n * n + 1 + n * n * n));
    // Without its weights an operation is not evaluated, nor is one that depends on it.
    let missing = json!([{"o": "sum", "i": [0], "y": [1]}]);
    let behind = [missing.as_array().unwrap().clone(), vec![sum; 64]].concat();
    let held_back = json!([["f32", [2]], ["f32", []]]);
    assert_eq!(refused(held_back, behind, &[]), None);
}

/// Replaces every value of a valid program by each of a list: it is read or refused, evaluated or refused, without a panic.
#[test]
fn no_change_of_one_value_leads_to_a_panic() {
    let others = [
        json!(null),
        json!(-1),
        json!(0),
        json!(1),
        json!(3),
        json!(70),
        json!(i64::MAX),
        json!(i64::MIN),
        json!(1.5),
        json!("inf"),
        json!("x"),
        json!([]),
        json!([1]),
        json!([[1]]),
        json!({}),
        json!({"c": 0}),
        json!({"c": -5}),
        json!({"c": "nan"}),
        json!({"t": "c64"}),
        json!({"v": [2, [0], [1]]}),
        json!({"v": [2, [3, 1], [0, 9]]}),
        json!({"v": [2, [], []]}),
        json!({"v": [3, [2, 2], [0, 0]]}),
    ];
    let limits = Limits { elements: 1 << 12 };
    let folder = TempDir::new().unwrap();
    let mut weights = Held::default();
    weights.0.insert("w".into(), (vec![2, 2], vec![1.0, 2.0, 3.0, 4.0]));
    let (mut read, mut refused) = (0, 0);
    open(&good(), &constants()).unwrap();
    crate::common::write(
        folder.path(),
        &good(),
        &[(0, crate::common::stored("f32", &[2, 2], &[json!(1.0), json!(2.0), json!(-3.0), json!(4.0)]))],
    );
    let mut attempt = |program: &Value| {
        fs::write(folder.path().join("program.json"), program.to_string()).unwrap();
        let Ok(program) = Program::open_within(folder.path(), limits) else {
            refused += 1;
            return;
        };
        read += 1;
        let mut evaluator = Evaluator::new(&program, Arithmetic::F32, &weights);
        for step in 0..program.steps().len() {
            if evaluator.run_step(step, &mut |tap| drop(tap.value.to_floats())).is_err() {
                break;
            }
        }
    };
    for pointer in pointers(&good(), String::new()) {
        for other in &others {
            let mut program = good();
            *program.pointer_mut(&pointer).unwrap() = other.clone();
            attempt(&program);
        }
    }
    // Tries these values in every kernel, one operand after the other. All of them were tried once, in two minutes; here every n-th, so that each kernel
    // gets a few.
    const EVERY: usize = 29;
    let operand = json!({"v": [2, [2, 2], [2, 1]]});
    let mut number = 0;
    for name in kernel_names() {
        for (i, other) in (0..4).flat_map(|i| others.iter().map(move |other| (i, other))) {
            number += 1;
            if number % EVERY != 0 {
                continue;
            }
            for count in [i + 1, 4] {
                let mut operands = vec![operand.clone(), json!(3), json!(3), operand.clone()];
                operands[i] = other.clone();
                operands.truncate(count);
                let mut program = good();
                program["ops"][2] = json!({"o": name, "i": operands, "y": [{"v": [2, [2, 2], [1, 2]]}]});
                attempt(&program);
            }
        }
    }
    assert!(read > 500 && refused > 1000, "{read} read, {refused} refused");
}

/// Replaces operands and parameters of ggml's operations one after the other; only the kernels themselves check these.
#[test]
fn no_operand_of_ggml_leads_to_a_panic() {
    // All of them were tried once.
    const EVERY: usize = 23;
    let numbers = [0, 1, 2, 3, 7, 1 << 11, -1, i64::MAX, i64::MIN];
    let others: Vec<Value> = numbers.iter().map(|&x| json!(x)).chain([json!(0.5), json!("nan"), json!(null)]).collect();
    let folder = TempDir::new().unwrap();
    let weights = Held::default();
    let (mut number, mut evaluated) = (0, 0);
    for case in cases().into_iter().filter(|case| case["o"].as_str().unwrap().starts_with("ggml.")) {
        write_case(folder.path(), &case);
        let good = program_of(&case);
        for pointer in
            pointers(&good["ops"][0], "/ops/0".into()).into_iter().chain(pointers(&good["values"], "/values".into()))
        {
            for other in &others {
                number += 1;
                if number % EVERY != 0 {
                    continue;
                }
                let mut program = good.clone();
                *program.pointer_mut(&pointer).unwrap() = other.clone();
                fs::write(folder.path().join("program.json"), program.to_string()).unwrap();
                let Ok(program) = Program::open_within(folder.path(), Limits { elements: 1 << 16 }) else { continue };
                let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &weights);
                evaluated += usize::from(evaluator.run_step(0, &mut |tap| drop(tap.value.to_floats())).is_ok());
            }
        }
    }
    assert!(evaluated > 100, "{evaluated}");
}

/// Pointers to every value of a document.
fn pointers(value: &Value, here: String) -> Vec<String> {
    let mut out = vec![here.clone()];
    match value {
        Value::Array(list) => list.iter().enumerate().for_each(|(i, x)| out.extend(pointers(x, format!("{here}/{i}")))),
        Value::Object(map) => map.iter().for_each(|(key, x)| out.extend(pointers(x, format!("{here}/{key}")))),
        _ => {}
    }
    out
}
