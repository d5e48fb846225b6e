//! What a law is about: the output of the operation, or something that its output was computed from.

use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayD, Axis as Dimension};

use crate::case::{Axis, Case};
use crate::law::{Form, Law, Support};

/// What is right at a place; `None` where it cannot be computed.
pub(crate) type At = Arc<dyn Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync>;
/// The operation's output at a place, for another value of the subject.
pub(crate) type Output = Arc<dyn Fn(&Case<'_>, usize, ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// A subject's value, made of the right one.
type Made = Arc<dyn Fn(&Case<'_>, usize, &ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// A tensor with what is right for it and what the candidate has. Most often the operation's output; also an operand that was recovered from it.
#[derive(Clone)]
pub(crate) struct Subject {
    /// What it is called in a sentence.
    pub(crate) label: &'static str,
    /// The form of its laws, where that is not one of an output.
    pub(crate) form: Option<Form>,
    /// What it costs to say that the law is about this.
    pub(crate) bits: f64,
    pub(crate) axes: Vec<Axis>,
    /// Whether it is a part of a tensor alone.
    pub(crate) is_part: bool,
    /// In the first place.
    pub(crate) right: ArrayD<f64>,
    pub(crate) own: ArrayD<f64>,
    /// The size of an error that rounding may make of it, as a share.
    pub(crate) noise: f64,
    pub(crate) right_at: At,
    pub(crate) output: Output,
}

impl Subject {
    /// The operation's own output.
    pub(crate) fn output(case: &Case<'_>) -> Subject {
        let first = case.first();
        Subject {
            label: "the output",
            form: None,
            bits: 0.0,
            axes: case.axes.clone(),
            is_part: false,
            right: first.right.clone(),
            own: first.own.clone(),
            noise: first.noise(),
            right_at: Arc::new(|case, place| Some(case.places[place].right.clone())),
            output: Arc::new(|_, _, value| Some(value)),
        }
    }

    /// The subject as a matrix with these axes, of as many rows as `rows` says of its shape.
    pub(crate) fn as_matrix(&self, axes: Vec<Axis>, rows: fn(&[usize]) -> Option<usize>) -> Option<Subject> {
        let flat = move |x: &ArrayD<f64>| {
            let rows = rows(x.shape())?;
            x.to_shape(vec![rows, x.len() / rows.max(1)]).ok().map(|x| x.into_owned())
        };
        let (right_at, shape_at, output) = (self.right_at.clone(), self.right_at.clone(), self.output.clone());
        Some(Subject {
            axes,
            right: flat(&self.right)?,
            own: flat(&self.own)?,
            right_at: Arc::new(move |case, place| flat(&right_at(case, place)?)),
            output: Arc::new(move |case, place, value| {
                let shape = shape_at(case, place)?.raw_dim();
                output(case, place, value.to_shape(shape).ok()?.into_owned())
            }),
            ..self.clone()
        })
    }

    /// The subject as a matrix that has a row for each slice along an axis, and all else of the slice in it.
    pub(crate) fn by_slices(&self, axis: usize) -> Subject {
        let (right_at, shape_at, output) = (self.right_at.clone(), self.right_at.clone(), self.output.clone());
        let flat = move |x: &ArrayD<f64>| rows(x, axis).into_dyn();
        Subject {
            axes: vec![self.axes[axis], Axis::Channel],
            right: flat(&self.right),
            own: flat(&self.own),
            right_at: Arc::new(move |case, place| Some(flat(&right_at(case, place)?))),
            output: Arc::new(move |case, place, value| {
                let rows = value.into_dimensionality::<ndarray::Ix2>().ok()?;
                output(case, place, from_rows(rows, shape_at(case, place)?.shape(), axis)?)
            }),
            ..self.clone()
        }
    }

    /// Whether it is the operation's output itself.
    pub(crate) fn is_output(&self) -> bool {
        self.form.is_none()
    }

    /// A law that makes the subject's value of the right one.
    pub(crate) fn law(
        &self,
        form: Form,
        words: String,
        bits: f64,
        made: impl Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync + 'static,
    ) -> Law {
        self.law_of_place(form, words, bits, move |_, _, right| made(right))
    }

    /// The same, of other things at the place too.
    pub(crate) fn law_of_place(
        &self,
        form: Form,
        words: String,
        bits: f64,
        made: impl Fn(&Case<'_>, usize, &ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync + 'static,
    ) -> Law {
        self.law_made(form, words, bits, Arc::new(made))
    }

    fn law_made(&self, form: Form, words: String, bits: f64, made: Made) -> Law {
        let (right_at, output) = (self.right_at.clone(), self.output.clone());
        let predict =
            move |case: &Case<'_>, place: usize| output(case, place, made(case, place, &right_at(case, place)?)?);
        Law::new(self.form.unwrap_or(form), words, bits + self.bits, predict)
    }

    /// Whether a value is near enough to what the candidate has to be worth a proof: rounding, or nearly all of the error explained.
    pub(crate) fn is_near(&self, value: &ArrayD<f64>) -> bool {
        if value.shape() != self.own.shape() {
            return false;
        }
        let left = crate::fit::nmse(value, &self.own);
        left <= (NEAR * self.noise * self.noise).max(SHARE * crate::fit::nmse(&self.right, &self.own))
    }

    /// Whether a law gives a value that is near enough at the place of a case that laws are fitted on.
    pub(crate) fn is_near_by(&self, law: &Law, case: &Case<'_>) -> bool {
        law.predicted(case, case.fitted).is_some_and(|value| self.is_near(&value))
    }

    /// The support of a law along one axis.
    pub(crate) fn support(axis: Axis, words: Option<String>) -> Support {
        let mut support = Support::default();
        support.add(axis, words);
        support
    }
}

/// How many times the tolerance a law may leave before its proof, and which share of the error.
const NEAR: f64 = 30.0;
const SHARE: f64 = 1e-5;

impl Support {
    /// Says on which part of an axis.
    pub(crate) fn add(&mut self, axis: Axis, words: Option<String>) {
        let part = match axis {
            Axis::Head => &mut self.heads,
            Axis::Token | Axis::Query | Axis::Key | Axis::Distance => &mut self.positions,
            Axis::Layer => &mut self.layers,
            Axis::Dim | Axis::Channel | Axis::Pair | Axis::Row | Axis::Expert => &mut self.channels,
        };
        if let Some(words) = words {
            match part {
                Some(before) => *before = format!("{before}, {words}"),
                None => *part = Some(words),
            }
        }
    }

    /// The parts in words, behind a law; nothing where it is everywhere.
    pub(crate) fn said(&self) -> String {
        let parts: Vec<&str> =
            [&self.heads, &self.positions, &self.channels].into_iter().flatten().map(String::as_str).collect();
        if parts.is_empty() { String::new() } else { format!(" ({})", parts.join("; ")) }
    }
}

/// A tensor as a matrix; `None` where it is none.
pub(crate) fn two(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    x.clone().into_dimensionality().ok()
}

/// A tensor of three axes; `None` where it has others.
pub(crate) fn cube(x: &ArrayD<f64>) -> Option<Array3<f64>> {
    x.clone().into_dimensionality().ok()
}

/// The slices of a tensor along an axis, each as a row.
pub(crate) fn rows(tensor: &ArrayD<f64>, axis: usize) -> Array2<f64> {
    let n = tensor.shape()[axis];
    let mut moved = tensor.view();
    moved.swap_axes(0, axis);
    // Whichever order the other axes come in, it is the same for all tensors of a shape.
    let values: Vec<f64> = moved.iter().copied().collect();
    let width = tensor.len() / n.max(1);
    Array2::from_shape_vec((n, width), values).unwrap_or_default()
}

/// A tensor of this shape from its slices along an axis.
pub(crate) fn from_rows(rows: Array2<f64>, shape: &[usize], axis: usize) -> Option<ArrayD<f64>> {
    let mut swapped = shape.to_vec();
    swapped.swap(0, axis);
    let (values, _) = rows.as_standard_layout().into_owned().into_raw_vec_and_offset();
    let mut tensor = ArrayD::from_shape_vec(swapped, values).ok()?;
    tensor.swap_axes(0, axis);
    Some(tensor.as_standard_layout().into_owned())
}

/// A number for each slice along an axis, put to each of its values.
pub(crate) fn by_slice(
    tensor: &ArrayD<f64>,
    axis: usize,
    numbers: &[f64],
    f: impl Fn(f64, f64) -> f64,
) -> Option<ArrayD<f64>> {
    if tensor.shape().get(axis) != Some(&numbers.len()) {
        return None;
    }
    let mut out = tensor.clone();
    for (mut slice, number) in out.axis_iter_mut(Dimension(axis)).zip(numbers) {
        slice.mapv_inplace(|x| f(x, *number));
    }
    Some(out)
}
