//! Checks every kernel against PyTorch or ggml: goldens of scripts/goldens/op_program_goldens.py and scripts/goldens/ggml_program_goldens.py.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use firstdiff_program::{Arithmetic, Evaluator, Program, Values, kernel_names};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::common::{Held, number, stored, write};

/// Operations whose results PyTorch leaves open, and aliases of operations that have goldens.
const WITHOUT: &[&str] = &[
    "divide",
    "empty",
    "empty_like",
    "empty_strided",
    "expand",
    "new_empty",
    "new_empty_strided",
    "squeeze",
    "subtract",
    "to",
    "tolist",
    "true_divide",
    "unflatten",
    "unsqueeze",
    "view",
    "_unsafe_view",
    "_fused_rms_norm",
    "__ior__",
    "conj",
];

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/goldens")
}

pub(crate) fn cases() -> Vec<Value> {
    let mut files: Vec<PathBuf> = fs::read_dir(folder()).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    let read = |file: PathBuf| serde_json::from_slice::<Vec<Value>>(&fs::read(file).unwrap()).unwrap();
    files.into_iter().flat_map(read).collect()
}

/// The program of a case: a single operation, whose operands are constants.
pub(crate) fn program_of(case: &Value) -> Value {
    let mut values = case["values"].as_array().unwrap().clone();
    let given = values.len();
    let mut op = json!({"o": case["o"], "i": case["i"], "y": []});
    for key in ["a", "w", "x"] {
        if let Some(value) = case.get(key) {
            op[key] = value.clone();
        }
    }
    let expected: Vec<&Value> = case["y"].as_array().into_iter().flatten().collect();
    let (mut outputs, mut taps) = (Vec::new(), Vec::new());
    for (number, y) in expected.iter().enumerate() {
        let written = case.get("w").map(|w| case["i"][w[number].as_u64().unwrap() as usize].clone());
        let place = written.unwrap_or_else(|| {
            if y.is_null() {
                return Value::Null;
            }
            values.push(json!([y[0], y[1]]));
            json!(values.len() - 1)
        });
        if !y.is_null() {
            taps.push(json!({"tap": number.to_string(), "step": 0, "op": 0, "v": place}));
        }
        outputs.push(place);
    }
    op["y"] = json!(outputs);
    let constants: Vec<usize> = (0..given).collect();
    json!({"version": 1, "values": values, "constants": constants, "ops": [op], "steps": [{"ops": [0, 1]}], "taps": taps})
}

fn sizes(x: &Value) -> Vec<usize> {
    x.as_array().unwrap().iter().map(|n| n.as_u64().unwrap() as usize).collect()
}

/// Writes the program of a case into a folder.
pub(crate) fn write_case(folder: &Path, case: &Value) {
    let values = case["values"].as_array().unwrap().iter().zip(case["data"].as_array().unwrap()).enumerate();
    let stored = |(value, data): (&Value, &Value)| {
        stored(value[0].as_str().unwrap(), &sizes(&value[1]), data.as_array().unwrap())
    };
    let buffers: Vec<_> = values.map(|(b, value)| (b, stored(value))).collect();
    write(folder, &program_of(case), &buffers);
}

/// Runs a case; the error says what is wrong.
fn check(case: &Value) -> Result<(), String> {
    let expected: Vec<&Value> = case["y"].as_array().into_iter().flatten().collect();
    let folder = TempDir::new().unwrap();
    write_case(folder.path(), case);
    let program = Program::open(folder.path()).map_err(|e| e.to_string())?;
    let weights = Held::default();
    let mut evaluator = Evaluator::new(&program, Arithmetic::F64, &weights);
    let mut wrong = None;
    let mut found = 0;
    let result = evaluator.run_step(0, &mut |tap| {
        found += 1;
        let y = expected[tap.tap.parse::<usize>().unwrap()];
        if sizes(&y[1]) != tap.value.shape() {
            wrong = Some(format!("shape {:?}, not {}", tap.value.shape(), y[1]));
        } else if let Some(at) = differs(tap.value.values(), y, case["within"].as_f64()) {
            wrong = Some(format!("{:?} at {at}, not {}", tap.value.values(), y[2]));
        }
    });
    result.map_err(|e| e.to_string())?;
    let due = expected.iter().filter(|y| !y.is_null()).count();
    if found != due { Err(format!("{found} of {due} outputs")) } else { wrong.map_or(Ok(()), Err) }
}

/// The index of the first value that differs from the expected one; `within` is the allowed relative error, if the case gives it.
fn differs(values: &Values<'_>, y: &Value, within: Option<f64>) -> Option<usize> {
    let expected = y[2].as_array().unwrap();
    let tolerance = within.unwrap_or(match y[0].as_str().unwrap() {
        "f32" | "c64" => 1e-6,
        "f16" | "bf16" => 0.0,
        _ => 1e-11,
    });
    let near = |x: f64, y: f64| x == y || x.is_nan() && y.is_nan() || (x - y).abs() <= tolerance * (1.0 + y.abs());
    let count = expected.len();
    match values {
        Values::Int(x) if x.len() == count => {
            (0..count).find(|&i| x[i] != expected[i].as_bool().map_or_else(|| expected[i].as_i64().unwrap(), i64::from))
        }
        Values::Float(x) if x.len() == count => (0..count).find(|&i| !near(x[i], number(&expected[i]))),
        Values::Complex(x) if 2 * x.len() == count => {
            (0..count).find(|&i| !near(x.as_flattened()[i], number(&expected[i])))
        }
        _ => Some(usize::MAX),
    }
}

#[test]
fn every_golden() {
    let cases = cases();
    assert!(cases.len() > 400, "{}", cases.len());
    let wrong: Vec<String> = cases
        .iter()
        .filter_map(|case| Some(format!("{} {} {}: {}", case["o"], case["i"], case["values"], check(case).err()?)))
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), cases.len(), wrong.join("\n"));
}

#[test]
fn every_kernel_has_a_golden() {
    // Names of other libraries than aten have no overload.
    let base = |case: &Value| {
        let name = case["o"].as_str().unwrap();
        if name.starts_with("ggml.") || name.starts_with("transformers.") {
            name
        } else {
            name.split('.').next().unwrap()
        }
        .to_owned()
    };
    let tested: BTreeSet<String> = cases().iter().map(base).collect();
    let is_tested =
        |name: &str| tested.contains(name) || tested.contains(&format!("{name}_")) || WITHOUT.contains(&name);
    let lacking: Vec<&str> = kernel_names().filter(|name| !is_tested(name)).collect();
    assert!(lacking.is_empty(), "{lacking:?}");
    let names: BTreeSet<&str> = kernel_names().collect();
    assert_eq!(names.len(), kernel_names().count(), "a name is there twice");
}
