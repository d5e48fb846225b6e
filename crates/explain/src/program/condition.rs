//! Computes how far off the order of a sum leaves a value: as far as its terms are large, however little they add up to. What nearly cancels is
//! less exact than its own size says.

use std::sync::Arc;

use firstdiff_compare::metrics::Squares;
use firstdiff_program::{At, Bench, Change, Edit, Instead, Operand, Operation, Scalar, Slice, Tensor, View, apply};
use firstdiff_trace::Site;
use ndarray::{ArrayD, Axis};

use crate::program::arrays::{array, floats};
use crate::replay::right::{Coin, distance};
use crate::tolerance::replay::LEAST_ALLOWED;

/// What adds products of its operands up.
pub(crate) const PRODUCTS: [&str; 8] = ["linear", "addmm", "mm", "bmm", "matmul", "baddbmm", "addbmm", "ggml.MUL_MAT"];

/// What a slice makes, and what it makes where each of its sums of products is off by a share of the energy of its terms.
pub(crate) struct Condition {
    exact: ArrayD<f64>,
    moved: ArrayD<f64>,
}

impl Condition {
    /// How many times as far off as its sums the whole is.
    pub(crate) fn times(&self, site: Site) -> Option<f64> {
        Some(distance(site, &self.exact, &self.moved) / LEAST_ALLOWED).filter(|times| times.is_finite())
    }

    /// The rows that are further off than what they nearly cancel of leaves them, where a sum may be off by `allowed`.
    pub(crate) fn rows_beyond(&self, own: &ArrayD<f64>, due: &ArrayD<f64>, allowed: f64) -> Vec<usize> {
        let count = due.shape().first().copied().unwrap_or(0);
        if own.shape() != due.shape() || self.exact.shape() != due.shape() || self.moved.shape() != due.shape() {
            return (0..count).collect();
        }
        let off = |one: &ArrayD<f64>, other: &ArrayD<f64>, row: usize| {
            let (one, other) = (one.index_axis(Axis(0), row), other.index_axis(Axis(0), row));
            Squares::sum(one.iter().copied().zip(other.iter().copied())).nmse()
        };
        let is_within = |&row: &usize| {
            let times = off(&self.exact, &self.moved, row) / LEAST_ALLOWED;
            times > 1.0 && off(due, own, row) <= times * allowed
        };
        (0..count).filter(|row| !is_within(row)).collect()
    }
}

/// By how much the sums of a slice make it inexact; `None` where it has no sum of products.
pub(crate) fn condition<'v>(
    slice: &Slice<'_>,
    ops: &[Operation],
    bench: &Bench<'_>,
    value: &dyn Fn(usize) -> Option<Tensor<'v>>,
) -> Option<Condition> {
    let edits: Vec<Edit> =
        slice.ops().filter_map(|op| Some(Edit { at: At::Op(op), change: moved(&ops[op], op)? })).collect();
    if edits.is_empty() {
        return None;
    }
    let of = |edits: &[Edit]| slice.evaluate(bench, value, edits).ok().map(|value| array(&value));
    Some(Condition { exact: of(&[])?, moved: of(&edits)? })
}

/// An operation whose sums are each off by a share of their terms, up or down as chance has it.
fn moved(op: &Operation, seed: usize) -> Option<Change> {
    let name = op.name.clone();
    if !PRODUCTS.contains(&op.base()) || op.outputs.len() != 1 {
        return None;
    }
    let view = |operand: &Operand| match operand {
        Operand::View(view) => Some(Some(view.clone())),
        Operand::None => Some(None),
        _ => None,
    };
    let views: Vec<View> = op.operands.iter().map(view).collect::<Option<Vec<_>>>()?.into_iter().flatten().collect();
    let keyword = |(key, operand): &(String, Operand)| match operand {
        Operand::Scalar(scalar) => Some((key.clone(), scalar.clone())),
        _ => None,
    };
    let keywords: Vec<(String, Scalar)> = op.keywords.iter().map(keyword).collect::<Option<_>>()?;
    let instead: Instead = Arc::new(move |read| {
        let sums = called(&name, read, &keywords, |x| x)?;
        let terms = called(&name, read, &keywords, |x| x * x)?;
        let (mut sums, mut coin) = (array(&sums), Coin::new(seed as u64 + 1));
        sums.zip_mut_with(&array(&terms), |sum, terms| *sum += coin.sign() * (LEAST_ALLOWED * terms).sqrt());
        Some(vec![floats(sums)?])
    });
    Some(Change::Values(views, instead))
}

/// What an operation gives of its operands and numbers, each of them `of` itself: of their squares it adds up the squares of its terms.
fn called(
    name: &str,
    read: &[Tensor<'_>],
    keywords: &[(String, Scalar)],
    of: fn(f64) -> f64,
) -> Option<Tensor<'static>> {
    let operand = |tensor: &Tensor<'_>| floats(array(tensor).mapv(of));
    let number = |(key, scalar): &(String, Scalar)| {
        let scalar = match scalar {
            Scalar::Float(x) => Scalar::Float(of(*x)),
            Scalar::Int(x) => Scalar::Float(of(*x as f64)),
            other => other.clone(),
        };
        (key.clone(), scalar)
    };
    let operands: Vec<Tensor<'static>> = read.iter().map(operand).collect::<Option<_>>()?;
    let keywords: Vec<(String, Scalar)> = keywords.iter().map(number).collect();
    let keywords: Vec<(&str, Scalar)> = keywords.iter().map(|(key, scalar)| (key.as_str(), scalar.clone())).collect();
    apply(name, &operands.iter().collect::<Vec<_>>(), &keywords)?.into_iter().next()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use firstdiff_program::{Arithmetic, DType, Program, Values, WeightError, Weights};
    use firstdiff_trace::Tap;
    use ndarray::array;
    use safetensors::tensor::{Dtype, TensorView};

    use super::*;

    struct Row(Vec<f64>);

    impl Weights for Row {
        fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
            let refused = || WeightError { name: name.into(), reason: "shape".into() };
            Tensor::new(DType::F64, vec![1, self.0.len()], Values::from(self.0.clone())).ok_or_else(refused)
        }
    }

    /// The condition of the product of (1, 1, 1) with a row of weights.
    fn of(row: [f64; 3]) -> f64 {
        let program = serde_json::json!({
            "version": 1, "source": "torch", "model": "M", "constants": [0], "inputs": {}, "weights": {"1": "w"},
            "values": [["f32", [1, 3]], ["f32", [1, 3]], ["f32", [1, 1]]],
            "files": ["m.py"], "scopes": [["m", [], 0]],
            "ops": [{"o": "linear", "i": [0, 1], "y": [2], "s": 0, "l": 1}],
            "steps": [{"ops": [0, 1], "tokens": 1, "output": 2}],
            "taps": [{"tap": "gate", "step": 0, "op": 0, "v": 2}]
        });
        let folder = tempfile::tempdir().unwrap();
        let ones: Vec<u8> = [1f64; 3].iter().flat_map(|x| x.to_le_bytes()).collect();
        let ones = TensorView::new(Dtype::F64, vec![1, 3], &ones).unwrap();
        fs::write(folder.path().join("program.json"), program.to_string()).unwrap();
        safetensors::serialize_to_file([("0", ones)], None, &folder.path().join("program.safetensors")).unwrap();
        let (program, weights) = (Program::open(folder.path()).unwrap(), Row(row.to_vec()));
        let (slice, bench) = (Slice::of(&program, 0, |_| false), Bench::new(&program, Arithmetic::F64, &weights));
        condition(&slice, program.ops(), &bench, &|_| None).unwrap().times(Tap::named("gate").site).unwrap()
    }

    #[test]
    fn a_row_that_nearly_cancels_has_room_of_its_own() {
        let condition = Condition {
            exact: array![[1.0], [0.001]].into_dyn(),
            moved: array![[1.0 + 1e-6], [0.001 + 1e-6]].into_dyn(),
        };
        let due = array![[1.0], [0.001]].into_dyn();
        let beyond =
            |off: [f64; 2]| condition.rows_beyond(&array![[1.0 + off[0]], [0.001 + off[1]]].into_dyn(), &due, 1e-12);
        assert_eq!(beyond([0.0, 5e-7]), [0]);
        assert_eq!(beyond([0.0, 5e-6]), [0, 1]);
    }

    #[test]
    fn a_sum_is_as_inexact_as_its_terms_are_large() {
        assert!((of([3.0, 0.0, 0.0]) - 1.0).abs() < 1e-6);
        // Terms of 2, and a sum of a hundredth.
        let condition = of([1.0, -1.0, 0.01]);
        assert!((condition / 2.0001e4 - 1.0).abs() < 1e-6, "{condition}");
    }
}
