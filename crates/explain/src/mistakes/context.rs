//! What does a mistake see of the step it is made in? What the step reads, where in the run it is, and the right way to carry it out, to be changed.

use firstdiff_core as core;
use firstdiff_model::{Chunk, Model, Op, Profile, Step, WeightView, eval_step, eval_step_in, ggml, ggml_activations};
use ndarray::{Array2, ArrayD, ArrayView2};
use rayon::prelude::*;

use super::{Edit, Out, flat, half, matrix_shape};

/// A step at the time it is carried out.
pub(crate) struct StepContext<'a> {
    /// As it should be.
    pub(crate) step: &'a Step,
    /// What it reads.
    pub(crate) inputs: &'a [ArrayD<f64>],
    pub(crate) chunk: Chunk<'a>,
    /// Tokens of the prefill: of all steps before the mistake is made.
    pub(crate) prefill: usize,
    pub(crate) model: &'a Model,
    /// In what arithmetic.
    pub(crate) profile: Profile,
    /// Further mistakes in the same step: what carries it out is wrong in turn.
    pub(crate) inner: &'a [&'a Edit],
    /// Of the stored elements of the step's matrix, the first that was not loaded and is 0.
    pub(crate) unread_from: Option<usize>,
}

impl StepContext<'_> {
    /// The step with mistakes made in it, the first around the others.
    pub(crate) fn with(&self, edits: &[&Edit]) -> Out {
        match edits.split_first() {
            None => self.right(),
            Some((first, inner)) => first.value(&StepContext { inner, ..*self }),
        }
    }

    /// The step as it should be.
    pub(crate) fn right(&self) -> Out {
        self.run(self.step, self.inputs)
    }

    /// Another step in the same place.
    pub(super) fn run(&self, step: &Step, inputs: &[ArrayD<f64>]) -> Out {
        self.run_as(self.profile, step, inputs)
    }

    pub(super) fn run_as(&self, profile: Profile, step: &Step, inputs: &[ArrayD<f64>]) -> Out {
        if let Some((edit, inner)) = self.inner.split_first().filter(|_| step.tap == self.step.tap) {
            return edit.value(&StepContext { step, inputs, profile, inner, ..*self });
        }
        if let (Op::Softmax, [scores]) = (&step.op, inputs)
            && scores.rows().into_iter().any(|row| row.iter().all(|x| *x == f64::NEG_INFINITY))
        {
            return self.keyless(profile, step, scores);
        }
        let weights = &self.model.weights;
        if profile == Profile::Exact {
            let views: Vec<_> = inputs.iter().map(|x| x.view()).collect();
            return eval_step(step, &views, self.chunk, weights).ok();
        }
        let narrow: Vec<ArrayD<f32>> = inputs.iter().map(|x| x.mapv(|x| x as f32)).collect();
        let views: Vec<_> = narrow.iter().map(|x| x.view()).collect();
        Some(eval_step_in(profile, step, &views, self.chunk, weights).ok()?.mapv(f64::from))
    }

    /// A softmax that has rows without a key: NaN, as 0/0 gives.
    pub(super) fn keyless(&self, profile: Profile, step: &Step, scores: &ArrayD<f64>) -> Out {
        let mut open = scores.clone();
        let hidden = |row: ndarray::ArrayView1<'_, f64>| row.iter().all(|x| *x == f64::NEG_INFINITY);
        open.rows_mut().into_iter().filter(|row| hidden(row.view())).for_each(|mut row| row.fill(0.0));
        let mut out = self.run_as(profile, step, &[open])?;
        let rows = out.rows_mut().into_iter().zip(scores.rows());
        rows.filter(|(_, row)| hidden(row.view())).for_each(|(mut to, _)| to.fill(f64::NAN));
        Some(out)
    }

    /// The step on other inputs.
    pub(super) fn on(&self, inputs: &[ArrayD<f64>]) -> Out {
        self.run(self.step, inputs)
    }

    /// The step with another operation.
    pub(super) fn doing(&self, op: Op) -> Out {
        self.run(&Step { op, ..self.step.clone() }, self.inputs)
    }

    pub(super) fn input(&self, at: usize) -> Option<&ArrayD<f64>> {
        self.inputs.get(at)
    }

    /// Values as the profile's arithmetic keeps them.
    pub(super) fn kept(&self, x: ArrayD<f64>) -> ArrayD<f64> {
        match half(self.profile) {
            Some(half) => x.mapv(|x| f64::from(half.round(x as f32))),
            None if self.profile == Profile::Exact => x,
            None => x.mapv(|x| f64::from(x as f32)),
        }
    }

    /// Weight `at` of the step, a vector.
    pub(super) fn vector(&self, at: usize) -> Option<Vec<f64>> {
        let view = self.model.weights.view(*self.step.weights.get(at)?).ok()?;
        let half = half(self.profile);
        let values = view.vector::<f64>();
        Some(values.iter().map(|&x| half.map_or(x, |half| f64::from(half.round(x as f32)))).collect())
    }

    /// The step with its stored elements from `first` on left at 0.
    pub(super) fn unread_from(&self, first: usize) -> Out {
        let at = StepContext { unread_from: Some(first), ..*self };
        match self.inner.split_first() {
            Some((edit, inner)) => edit.value(&StepContext { inner, ..at }),
            None => {
                let width = self.matrix_shape()?[1];
                at.remapped(|o, i| Some(o * width + i))
            }
        }
    }

    /// The product with the step's matrix \[out,in\] after its elements were taken from elsewhere: element (o, i) is number `index(o, i)` of the
    /// stored ones, or 0.
    pub(super) fn remapped(&self, index: impl Fn(usize, usize) -> Option<usize> + Sync) -> Out {
        let shape = self.matrix_shape()?;
        self.product(
            |flat, row, o| {
                row.iter_mut()
                    .enumerate()
                    .for_each(|(i, w)| *w = index(o, i).and_then(|at| flat.get(at)).copied().unwrap_or(0.0));
            },
            shape,
        )
    }

    /// x · W where the stored elements are taken as \[in,out\]; the matrix is read once, in a fixed number of parts.
    pub(super) fn reversed(&self) -> Out {
        const PARTS: usize = 16;
        let [out, inner] = self.matrix_shape()?;
        let view = self.model.weights.view(*self.step.weights.first()?).ok()?;
        let x = self.multiplied()?;
        let rows = out.div_ceil(PARTS);
        let part = |part: usize| -> Array2<f64> {
            let mut y = Array2::<f64>::zeros((x.nrows(), out));
            let mut first = part * rows;
            while first < ((part + 1) * rows).min(out) {
                let last = (first + 16).min((part + 1) * rows).min(out);
                let tile = view.rows::<f32>(first..last);
                let Some(mut tile) = tile.as_slice() else { return y };
                let mut at = first * inner;
                while !tile.is_empty() {
                    let (i, j) = (at / out, at % out);
                    let (run, rest) = tile.split_at(tile.len().min(out - j));
                    for (mut y, x) in y.rows_mut().into_iter().zip(x.column(i)) {
                        let Some(y) = y.as_slice_mut() else { continue };
                        y[j..j + run.len()].iter_mut().zip(run).for_each(|(y, &w)| *y += x * f64::from(w));
                    }
                    (at, tile) = (at + run.len(), rest);
                }
                first = last;
            }
            y
        };
        let parts: Vec<Array2<f64>> = (0..PARTS).into_par_iter().map(part).collect();
        self.biased(parts.into_iter().reduce(|a, b| a + b)?)
    }

    /// The product with the step's matrix after each of its blocks was rewritten.
    pub(super) fn unpacked(&self, kind: ggml::Type, rewrite: fn(ggml::Type, &mut [u8])) -> Out {
        let view = self.model.weights.view(*self.step.weights.first()?).ok()?;
        let mut bytes = view.bytes().to_vec();
        bytes.chunks_exact_mut(kind.block_bytes()).for_each(|block| rewrite(kind, block));
        let view = view.with_bytes(&bytes).filter(WeightView::is_plain)?;
        let read =
            |row: &mut [f32], o: usize| row.iter_mut().zip(&view.rows::<f32>(o..o + 1)).for_each(|(to, &x)| *to = x);
        self.product_by(read, self.matrix_shape()?)
    }

    /// The product with a matrix \[out,in\] whose rows are made from all stored elements, and the bias; of an embedding, its rows.
    pub(super) fn product(&self, row: impl Fn(&[f32], &mut [f32], usize) + Sync, shape: [usize; 2]) -> Out {
        let view = self.model.weights.view(*self.step.weights.first()?).ok()?;
        let mut flat = view.rows::<f32>(0..view.shape()[0]);
        if let Some(unread) = self.unread_from {
            flat.as_slice_mut()?.get_mut(unread..)?.fill(0.0);
        }
        let flat = flat.as_slice()?;
        self.product_by(|out, o| row(flat, out, o), shape)
    }

    /// The same, each row made by itself.
    pub(super) fn product_by(&self, row: impl Fn(&mut [f32], usize) + Sync, shape: [usize; 2]) -> Out {
        if let Op::Embedding { scale } = self.step.op {
            let mut out = Array2::<f32>::zeros((self.chunk.tokens.len(), shape[1]));
            for (&token, mut out) in self.chunk.tokens.iter().zip(out.rows_mut()) {
                row(out.as_slice_mut()?, token as usize);
            }
            return Some(self.kept(out.into_dyn().mapv(|x| f64::from(x) * scale)));
        }
        let mut matrix = Array2::<f32>::zeros((shape[0], shape[1]));
        let rows: Vec<_> = matrix.as_slice_mut()?.chunks_mut(shape[1].max(1)).enumerate().collect();
        rows.into_par_iter().for_each(|(o, out)| row(out, o));
        if let Some(half) = half(self.profile) {
            matrix.mapv_inplace(|x| half.round(x));
        }
        self.times(matrix.view())
    }

    /// The step's input times a matrix \[out,in\], and the step's own bias.
    pub(super) fn times(&self, matrix: ArrayView2<'_, f32>) -> Out {
        let x = self.multiplied()?;
        self.biased(if self.profile == Profile::Exact {
            core::linear(x.view(), matrix.mapv(f64::from).view(), None).ok()?
        } else {
            core::linear(x.mapv(|x| x as f32).view(), matrix, None).ok()?.mapv(f64::from)
        })
    }

    /// The step's input as the profile multiplies it with the step's matrix.
    pub(super) fn multiplied(&self) -> Option<Array2<f64>> {
        let x = flat(self.input(0)?)?;
        let Profile::Ggml { .. } = self.profile else { return Some(x.to_owned()) };
        let storage = self.model.weights.view(*self.step.weights.first()?).ok()?.storage();
        Some(ggml_activations(x.mapv(|x| x as f32).view(), storage).ok()?.mapv(f64::from))
    }

    /// A product \[T,out\] as the step leaves it: the bias added, rounded, split into heads.
    pub(super) fn biased(&self, mut out: Array2<f64>) -> Out {
        if let Some(bias) = self.vector(1) {
            out += &ndarray::Array1::from_vec(bias);
        }
        self.split(self.kept(out.into_dyn()))
    }

    /// \[T,H·d\] as \[T,H,d\] where the step has heads.
    pub(super) fn split(&self, out: ArrayD<f64>) -> Out {
        let Op::Linear { heads: Some(heads) } = self.step.op else { return Some(out) };
        let tokens = out.shape()[0];
        let width = out.len() / tokens.max(1) / heads.max(1);
        out.into_shape_with_order(vec![tokens, heads, width]).ok()
    }

    /// Rows and columns of the step's matrix.
    pub(super) fn matrix_shape(&self) -> Option<[usize; 2]> {
        matrix_shape(self.model, self.step)
    }
}
