//! Reads the values of weights.

use std::path::Path;

use firstdiff_model::{ModelError, Opened, Storage, WeightView, open_weights};

use crate::value::dtype::DType;
use crate::value::error::WeightError;
use crate::value::tensor::{Tensor, Values};

/// A source of weights, by their names in the program.
pub trait Weights: Sync {
    /// Shape and values of a tensor.
    ///
    /// # Errors
    /// When there is no tensor of that name, or it cannot be read.
    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError>;

    /// The tensor of that name as stored, if the source has it in that form.
    fn view(&self, _name: &str) -> Option<WeightView<'_>> {
        None
    }
}

/// The weights of a model folder (model.safetensors, or shards with their index); the files stay mapped, and values are read when they are needed.
#[derive(Debug)]
pub struct ModelFolder {
    opened: Opened,
}

impl ModelFolder {
    /// Maps the files of `folder`; any other weight format that firstdiff reads works too, if it has the program's names.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn open(folder: &Path) -> Result<ModelFolder, ModelError> {
        Ok(ModelFolder { opened: open_weights(folder)? })
    }
}

impl Weights for ModelFolder {
    fn view(&self, name: &str) -> Option<WeightView<'_>> {
        Weights::view(&self.opened.weights, name)
    }

    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        self.opened.weights.read(name)
    }
}

impl Weights for firstdiff_model::Weights {
    fn view(&self, name: &str) -> Option<WeightView<'_>> {
        self.tensor(name).ok()?
    }

    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        let fail = |reason: String| WeightError { name: name.into(), reason };
        let view = self.tensor(name).map_err(|e| fail(e.to_string()))?;
        let view = view.ok_or_else(|| fail("is not in the model's files".into()))?;
        let is_int = matches!(view.storage(), Storage::I8 | Storage::I16 | Storage::I32 | Storage::I64);
        let (dtype, values) = match (view.storage(), view.is_plain()) {
            // As f64 the largest integers would lose digits.
            (Storage::I64, true) => {
                let ints = view.bytes().as_chunks::<8>().0.iter().map(|b| i64::from_le_bytes(*b));
                (DType::I64, Values::Int(ints.collect()))
            }
            _ if is_int => {
                let ints = view.vector::<f64>().into_iter().map(|x| x as i64);
                (DType::I64, Values::Int(ints.collect()))
            }
            _ => (DType::F64, Values::Float(floats(&view).into())),
        };
        Tensor::new(dtype, view.shape().to_vec(), values)
            .ok_or_else(|| fail(format!("does not fill its shape {:?}", view.shape())))
    }
}

/// All values; a matrix a tile of rows at a time, on several threads.
fn floats(view: &WeightView<'_>) -> Vec<f64> {
    use rayon::prelude::*;
    const TILE: usize = 1 << 16;
    let &[rows, columns] = view.shape() else { return view.vector::<f64>().to_vec() };
    if rows * columns < TILE {
        return view.rows::<f64>(0..rows).into_raw_vec_and_offset().0;
    }
    let height = (TILE / columns).max(1);
    let mut out = vec![0.0; rows * columns];
    out.par_chunks_mut(height * columns).enumerate().for_each(|(tile, out)| {
        let rows = view.rows::<f64>(tile * height..(tile * height + height).min(rows));
        out.iter_mut().zip(rows.iter()).for_each(|(y, x)| *y = *x);
    });
    out
}
