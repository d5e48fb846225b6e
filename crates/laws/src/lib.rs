//! Measures what a wrong operation computes instead. A law is measured from the recorded inputs and outputs of the operation, and from what is due there.
//!
//! The operation is known in many places (layers), and is wrong in the same way in all of them. A law is fitted in the first place and proved in the others.
//! It is accepted where its own prediction leaves no more than rounding, and where it says much less than it explains: its parameters are paid for in bits.
//!
//! Nothing here knows a model, a tap or a catalogue of mistakes: what is asked of the right operation goes through [`Operation`].
//!
//! An operation that squares, and an engine that gives 1.5 times as much, in two layers:
//!
//! ```
//! use firstdiff_laws::{Axis, Case, Form, Kind, Operation, Place, measured};
//! use ndarray::ArrayD;
//!
//! struct Square;
//!
//! impl Operation for Square {
//!     fn apply(&self, _: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
//!         Some(inputs[0].mapv(|x| x * x))
//!     }
//!
//!     fn agrees(&self, place: usize, predicted: &ArrayD<f64>) -> bool {
//!         (predicted - &own(place)).iter().all(|d| d.abs() < 1e-9)
//!     }
//! }
//!
//! fn input(layer: usize) -> ArrayD<f64> {
//!     ArrayD::from_shape_fn(vec![8, 16], |at| ((at[0] * 31 + at[1] * 17 + layer * 7) % 97) as f64 / 40.0 - 1.2)
//! }
//!
//! fn own(layer: usize) -> ArrayD<f64> {
//!     input(layer).mapv(|x| 1.5 * (x * x))
//! }
//!
//! let place = |layer: usize| Place {
//!     layer: Some(layer),
//!     step: 0,
//!     inputs: vec![input(layer)],
//!     right: input(layer).mapv(|x| x * x),
//!     own: own(layer),
//!     tolerance: 1e-14,
//!     around: Vec::new(),
//! };
//! let places = vec![place(0), place(1)];
//! let mut case = Case::new(Kind::Other, vec![Axis::Token, Axis::Channel], places, None, &Square);
//! let (law, proof) = measured(&mut case).expect("a law");
//! assert_eq!(law.form, Form::OutputFunction);
//! assert_eq!(law.words, "the output is 3/2 times the right one");
//! assert_eq!((proof.fitted, proof.held_out), (vec![0], vec![1]));
//! ```

mod case;
mod describe;
mod fit;
mod identify;
mod law;
mod number;
mod proof;
mod solve;

pub use case::{Axis, Case, Inner, Kind, Operation, OtherWeight, Place, Taken};
pub use law::{Form, Law, Parameters, Proof, Status, Support};
pub use proof::{holds, measured};

/// Which of `n` slices stands at each place, in words: the cheapest rule that gives `from`, or the list.
pub fn order_in_words(from: &[usize], n: usize, axis: Axis) -> String {
    describe::source::describe(&from.iter().copied().map(Some).collect::<Vec<_>>(), n, axis).words
}

/// A word of a table: what it says, its price in bits, and what it stands for.
#[derive(Clone, Debug)]
pub struct Word<T> {
    /// The words; `{}` stands for what a function is taken of.
    pub words: String,
    /// The price.
    pub bits: f64,
    /// What they stand for.
    pub value: T,
}

/// A function of one number.
pub type Function = std::sync::Arc<dyn Fn(f64) -> f64 + Send + Sync>;

/// The functions of one number, without a constant, that laws know, for so many bits at most.
pub fn functions(most_bits: f64) -> Vec<Word<Function>> {
    let all = describe::function::plain().into_iter().filter(|f| f.bits <= most_bits);
    all.map(|f| Word { words: f.words, bits: f.bits, value: f.f }).collect()
}

/// The orders of `n` slices, each called `name`, that laws know, for so many bits at most: for each place the slice that stands there.
pub fn orders(n: usize, name: &str, most_bits: f64) -> Vec<Word<Vec<usize>>> {
    let word = |source: describe::source::Source| Word { words: source.words, bits: source.bits, value: source.from };
    describe::source::orders(n, name, most_bits).into_iter().map(word).collect()
}
