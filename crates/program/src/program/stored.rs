//! Reads the values of constants and inputs from program.safetensors.

use std::collections::HashMap;
use std::path::Path;

use firstdiff_trace::read_regular;
use half::{bf16, f16};
use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};

use crate::program::Program;
use crate::value::dtype::{DType, Kind};
use crate::value::error::{Fault, JsonPlace, ProgramError, at_place};
use crate::value::tensor::{Tensor, Values};

/// The largest program.safetensors, in bytes.
const LARGEST: u64 = 4 << 30;

/// A placeholder for a value that is not read yet.
pub(crate) fn none() -> Tensor<'static> {
    Tensor::of(vec![0], Vec::<f64>::new())
}

/// Reads the values of the buffers in `program.given`.
pub(crate) fn read(folder: &Path, program: &Program) -> Result<HashMap<usize, Tensor<'static>>, ProgramError> {
    let mut out = HashMap::new();
    if program.given.is_empty() {
        return Ok(out);
    }
    let file = folder.join("program.safetensors");
    let bytes = read_regular(&file, LARGEST)?;
    let tensors = SafeTensors::deserialize(&bytes)
        .map_err(|error| ProgramError::Safetensors { file: file.clone(), reason: error.to_string() })?;
    let mut buffers: Vec<usize> = program.given.keys().copied().collect();
    buffers.sort_unstable();
    for buffer in buffers {
        let at = |fault| at_place(JsonPlace::Value(buffer))(fault);
        let stored = tensors.tensor(&buffer.to_string()).map_err(|_| at(Fault::Missing))?;
        let view = &program.buffers[buffer];
        out.insert(buffer, tensor(&stored, view.dtype, &view.shape).map_err(at)?);
    }
    Ok(out)
}

fn tensor(stored: &TensorView<'_>, dtype: DType, shape: &[usize]) -> Result<Tensor<'static>, Fault> {
    let kind = dtype.kind();
    let mut due = shape.to_vec();
    if kind == Kind::Complex {
        due.push(2);
    }
    if stored.shape() != due {
        return Err(Fault::StoredShape { expected: due, found: stored.shape().to_vec() });
    }
    let values = match (decode(stored), kind) {
        (Some(Values::Int(x)), Kind::Int) => Values::Int(x),
        (Some(Values::Float(x)), Kind::Float) => Values::Float(x),
        (Some(Values::Float(x)), Kind::Complex) => Values::Complex(x.as_chunks::<2>().0.to_vec().into()),
        _ => return Err(Fault::StoredAs { expected: dtype, found: format!("{:?}", stored.dtype()) }),
    };
    Ok(Tensor { dtype, shape: shape.to_vec(), values })
}

/// Decodes elements of a type that programs use.
fn decode(stored: &TensorView<'_>) -> Option<Values<'static>> {
    let bytes = stored.data();
    fn each<const N: usize, T>(bytes: &[u8], read: impl Fn([u8; N]) -> T) -> Vec<T> {
        bytes.as_chunks::<N>().0.iter().map(|b| read(*b)).collect()
    }
    Some(match stored.dtype() {
        Dtype::F64 => each(bytes, f64::from_le_bytes).into(),
        Dtype::F32 => each(bytes, |b| f64::from(f32::from_le_bytes(b))).into(),
        Dtype::F16 => each(bytes, |b| f16::from_le_bytes(b).to_f64()).into(),
        Dtype::BF16 => each(bytes, |b| bf16::from_le_bytes(b).to_f64()).into(),
        Dtype::I64 => each(bytes, i64::from_le_bytes).into(),
        Dtype::I32 => each(bytes, |b| i64::from(i32::from_le_bytes(b))).into(),
        Dtype::I16 => each(bytes, |b| i64::from(i16::from_le_bytes(b))).into(),
        Dtype::I8 => each(bytes, |b| i64::from(i8::from_le_bytes(b))).into(),
        Dtype::U8 => each(bytes, |b| i64::from(u8::from_le_bytes(b))).into(),
        Dtype::BOOL => each(bytes, |b: [u8; 1]| i64::from(b[0] != 0)).into(),
        _ => return None,
    })
}
