use firstdiff_laws::{Axis, Kind};
use ndarray::{ArrayD, Axis as Dimension};

use crate::plant::{Numbers, Rounded, law_of, said};

const AXES: [Axis; 3] = [Axis::Token, Axis::Head, Axis::Dim];
const SHAPE: [usize; 3] = [12, 6, 8];

fn right(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    x[0].mapv(|x| x + 0.1 * x * x)
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of(Kind::Other, &AXES, &[&SHAPE], right, wrong, Rounded::F32))
}

#[test]
fn any_output_may_be_scaled_moved_or_rounded() {
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &str| {
        let law = law(wrong);
        assert!(law.contains(words), "{law} instead of {words}");
    };
    is(|l, x| right(l, x) * 1.02, "1.02 times the right one");
    is(|l, x| right(l, x).select(Dimension(1), &[1, 2, 3, 4, 5, 0]), "head i+1, around the end");
    is(|l, x| right(l, x).select(Dimension(0), &[0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10]), "position i-1");
    is(|l, x| right(l, x).mapv(|y| y.clamp(-1.0, 1.0)), "held between -1 and 1");
    is(
        |l, x| {
            let mut y = right(l, x);
            y.index_axis_mut(Dimension(1), 3).mapv_inplace(|y| 2.0 * y);
            y
        },
        "2 times the right one (head 3)",
    );
    is(
        |l, x| {
            let y = right(l, x);
            y.permuted_axes(vec![0, 2, 1]).as_standard_layout().to_shape(SHAPE.to_vec()).unwrap().into_owned()
        },
        "written in the order [position, dimension, head]",
    );
    is(|l, x| right(l, x).mapv(|y| (y * 64.0).round_ties_even() / 64.0), "rounded to multiples of 1/64");
}

#[test]
fn noise_has_no_law() {
    let noise = law(|l, x| {
        let mut numbers = Numbers::new(l as u64 + 3);
        right(l, x).mapv(|y| y * (1.0 + 0.1 * numbers.next()))
    });
    assert_eq!(noise, "none");
}

/// Four values, each sixteen times in every row, and the same rows for all tokens.
fn expanded(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    ArrayD::from_shape_fn(x[0].shape().to_vec(), |at| x[0][[0, at[1] % 4]] * (1.0 + 1e-9 * at[0] as f64))
}

#[test]
fn a_tap_of_four_values_proves_no_law() {
    // Numbers of no meaning for each of the four: much gives four numbers.
    let axes = [Axis::Token, Axis::Channel];
    let wrong = |layer: usize, x: &[ArrayD<f64>]| expanded(layer, x).mapv(|x| (12.9 * f64::from(x as f32)).sin());
    let found = law_of(Kind::Other, &axes, &[&[6, 64]], expanded, wrong, Rounded::Bf16);
    let words = found.map(|(law, proof)| (law.words, law.bits, proof.gained));
    assert!(words.is_none(), "{words:?}");
}
