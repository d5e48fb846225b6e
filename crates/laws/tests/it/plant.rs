//! A right operation, a wrong one, and the case of both.

use firstdiff_laws::{Axis, Case, Kind, Law, Operation, Place, Proof, measured};
use ndarray::ArrayD;

/// Numbers that look random, and are the same in every run.
pub(crate) struct Numbers(u64);

impl Numbers {
    pub(crate) fn new(seed: u64) -> Numbers {
        Numbers(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// About normal, of mean nothing and size one.
    pub(crate) fn next(&mut self) -> f64 {
        let mut sum = 0.0;
        for _ in 0..12 {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            sum += (self.0 >> 11) as f64 / (1u64 << 53) as f64;
        }
        sum - 6.0
    }

    pub(crate) fn tensor(&mut self, shape: &[usize]) -> ArrayD<f64> {
        ArrayD::from_shape_fn(shape, |_| f64::from(self.next() as f32))
    }
}

/// An operation of its inputs in a layer.
pub(crate) type Of = fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>;

/// How values are rounded.
#[derive(Clone, Copy)]
pub(crate) enum Rounded {
    F32,
    Bf16,
}

impl Rounded {
    fn tolerance(self) -> f64 {
        match self {
            Rounded::F32 => 1e-12,
            Rounded::Bf16 => 2e-5,
        }
    }

    fn round(self, x: f64) -> f64 {
        match self {
            Rounded::F32 => f64::from(x as f32),
            Rounded::Bf16 => {
                let bits = (x as f32).to_bits();
                f64::from(f32::from_bits((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff_0000))
            }
        }
    }
}

struct Planted {
    right: Of,
    own: Vec<ArrayD<f64>>,
    tolerance: f64,
}

impl Operation for Planted {
    fn apply(&self, place: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        Some((self.right)(place, inputs))
    }

    fn agrees(&self, place: usize, predicted: &ArrayD<f64>) -> bool {
        let own = &self.own[place];
        let error: f64 = own.iter().zip(predicted).map(|(a, b)| (a - b).powi(2)).sum();
        error <= self.tolerance * own.iter().map(|x| x * x).sum::<f64>()
    }
}

/// The law of a wrong operation, planted in three layers.
pub(crate) fn law_of(
    kind: Kind,
    axes: &[Axis],
    shapes: &[&[usize]],
    right: Of,
    wrong: Of,
    rounded: Rounded,
) -> Option<(Law, Proof)> {
    let mut numbers = Numbers::new(7);
    let mut places = Vec::new();
    let mut all = Vec::new();
    for layer in 0..3 {
        let inputs: Vec<ArrayD<f64>> =
            shapes.iter().map(|shape| numbers.tensor(shape).mapv(|x| rounded.round(x))).collect();
        places.push(place(layer, inputs, right, wrong, rounded, &mut all));
    }
    case_of(kind, axes, places, all, right, rounded)
}

/// The same with inputs made by hand.
pub(crate) fn law_of_inputs(
    kind: Kind,
    axes: &[Axis],
    inputs: impl Fn(&mut Numbers) -> Vec<ArrayD<f64>>,
    right: Of,
    wrong: Of,
    rounded: Rounded,
) -> Option<(Law, Proof)> {
    let mut numbers = Numbers::new(11);
    let mut all = Vec::new();
    let places = (0..3)
        .map(|layer| {
            let inputs = inputs(&mut numbers).into_iter().map(|x| x.mapv(|x| rounded.round(x))).collect();
            place(layer, inputs, right, wrong, rounded, &mut all)
        })
        .collect();
    case_of(kind, axes, places, all, right, rounded)
}

fn place(
    layer: usize,
    inputs: Vec<ArrayD<f64>>,
    right: Of,
    wrong: Of,
    rounded: Rounded,
    all: &mut Vec<ArrayD<f64>>,
) -> Place {
    let due = right(layer, &inputs);
    let own = wrong(layer, &inputs).mapv(|x| rounded.round(x));
    all.push(own.clone());
    Place { layer: Some(layer), step: 0, inputs, right: due, own, tolerance: rounded.tolerance(), around: Vec::new() }
}

fn case_of(
    kind: Kind,
    axes: &[Axis],
    places: Vec<Place>,
    own: Vec<ArrayD<f64>>,
    right: Of,
    rounded: Rounded,
) -> Option<(Law, Proof)> {
    let operation = Planted { right, own, tolerance: rounded.tolerance() };
    let tokens = places[0].own.shape().first().map(|&n| (0..n as u32).map(|i| i * 37 % 101).collect());
    measured(&mut Case::new(kind, axes.to_vec(), places, tokens, &operation))
}

/// The words of a law, or none.
pub(crate) fn said(law: &Option<(Law, Proof)>) -> String {
    law.as_ref().map_or_else(|| "none".into(), |(law, _)| format!("{} [{}]", law.words, law.form.name()))
}
