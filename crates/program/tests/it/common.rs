//! Builds small programs in temporary folders, for the tests.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use firstdiff_program::{DType, Program, ProgramError, Tensor, Values, WeightError, Weights};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use tempfile::TempDir;

/// Weights in memory: name, shape, values.
#[derive(Default)]
pub(crate) struct Held(pub(crate) HashMap<String, (Vec<usize>, Vec<f64>)>);

impl Weights for Held {
    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        let fail = |reason: &str| WeightError { name: name.into(), reason: reason.into() };
        let (shape, values) = self.0.get(name).ok_or_else(|| fail("absent"))?;
        Tensor::new(DType::F64, shape.clone(), Values::Float(values.clone().into())).ok_or_else(|| fail("shape"))
    }
}

/// A number in a document; infinities are texts.
pub(crate) fn number(x: &Value) -> f64 {
    match x {
        Value::Bool(x) => f64::from(u8::from(*x)),
        Value::String(x) if x == "inf" => f64::INFINITY,
        Value::String(x) if x == "-inf" => f64::NEG_INFINITY,
        Value::String(_) => f64::NAN,
        x => x.as_f64().unwrap(),
    }
}

/// Type, shape and bytes of a tensor.
pub(crate) type Stored = (Dtype, Vec<usize>, Vec<u8>);

/// Elements of a buffer as in program.safetensors: i64 and f64 (complex with an axis of 2).
pub(crate) fn stored(dtype: &str, shape: &[usize], data: &[Value]) -> Stored {
    let mut shape = shape.to_vec();
    if dtype.starts_with('c') {
        shape.push(2);
    }
    if dtype.starts_with(['f', 'c']) || dtype == "bf16" {
        let bytes = data.iter().flat_map(|x| number(x).to_le_bytes()).collect();
        return (Dtype::F64, shape, bytes);
    }
    let int = |x: &Value| x.as_bool().map_or_else(|| x.as_i64().unwrap(), i64::from);
    (Dtype::I64, shape, data.iter().flat_map(|x| int(x).to_le_bytes()).collect())
}

/// Writes program.json, and program.safetensors with these buffers.
pub(crate) fn write(folder: &Path, program: &Value, buffers: &[(usize, Stored)]) {
    fs::write(folder.join("program.json"), program.to_string()).unwrap();
    let tensors: Vec<(String, TensorView<'_>)> = buffers
        .iter()
        .map(|(buffer, (dtype, shape, bytes))| {
            (buffer.to_string(), TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        })
        .collect();
    fs::write(folder.join("program.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
}

/// Opens a program of f64 constants.
pub(crate) fn open(program: &Value, constants: &[(usize, Vec<usize>, Vec<f64>)]) -> Result<Program, ProgramError> {
    let folder = TempDir::new().unwrap();
    let buffers = constants.iter().map(|(buffer, shape, values)| {
        (*buffer, (Dtype::F64, shape.clone(), values.iter().flat_map(|x| x.to_le_bytes()).collect()))
    });
    write(folder.path(), program, &buffers.collect::<Vec<_>>());
    Program::open(folder.path())
}
