use firstdiff_laws::{Axis, Kind};
use ndarray::{Array2, ArrayD, Axis as Dimension, Ix2};

use crate::plant::{Numbers, Rounded, law_of, said};

const AXES: [Axis; 2] = [Axis::Token, Axis::Channel];
const SHAPE: [usize; 2] = [12, 32];
const ROWS: usize = 48;

fn weight(layer: usize) -> Array2<f64> {
    let mut numbers = Numbers::new(900 + layer as u64);
    Array2::from_shape_fn((ROWS, SHAPE[1]), |_| 0.2 * numbers.next())
}

fn read_up_to(layer: usize, numbers: usize) -> Array2<f64> {
    let mut weight = weight(layer);
    weight.iter_mut().skip(numbers).for_each(|w| *w = 0.0);
    weight
}

fn product(x: &ArrayD<f64>, w: &Array2<f64>) -> ArrayD<f64> {
    x.view().into_dimensionality::<Ix2>().unwrap().dot(&w.t()).into_dyn()
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of(Kind::Linear, &AXES, &[&SHAPE], |layer, x| product(&x[0], &weight(layer)), wrong, Rounded::F32))
}

#[test]
fn rows_columns_inputs_and_values() {
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &str| {
        let law = law(wrong);
        assert!(law.contains(words), "{law} instead of {words}");
    };
    is(
        |l, x| product(&x[0], &weight(l).select(Dimension(0), &(0..ROWS).map(|i| (i + 1) % ROWS).collect::<Vec<_>>())),
        "channel i+1, around the end",
    );
    is(
        |l, x| {
            let mut x = x[0].clone();
            x.index_axis_mut(Dimension(1), 31).fill(0.0);
            product(&x, &weight(l))
        },
        "0 for the last channel",
    );
    is(
        |l, x| product(&x[0].select(Dimension(1), &(0..32).rev().collect::<Vec<_>>()), &weight(l)),
        "channels in reverse",
    );
    is(
        |l, x| {
            let from: Vec<usize> = (0..12usize).map(|t| t.saturating_sub(1)).collect();
            product(&x[0].select(Dimension(0), &from), &weight(l))
        },
        "position i-1",
    );
    // Of 1536 numbers a quarter, and up to the middle of a row.
    is(|l, x| product(&x[0], &read_up_to(l, 384)), "only the first 384 numbers of the weight");
    is(|l, x| product(&x[0], &read_up_to(l, 500)), "only the first 500 numbers of the weight");
    // Whole rows are no share of bytes: they may as well be outputs that are not computed.
    is(|l, x| product(&x[0], &read_up_to(l, 40 * 32)), "rows 40-47 of the weight are 0");
    is(|l, x| product(&x[0].mapv(|x| x.clamp(-1.0, 1.0)), &weight(l)), "held within 1");
}

#[test]
fn blocks_of_the_weight_and_of_the_input() {
    const BLOCK: usize = 16;
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &[&str]| {
        let law = law(wrong);
        assert!(words.iter().all(|words| law.contains(words)), "{law} instead of {words:?}");
    };
    fn changed(layer: usize, f: impl Fn(&[f64], usize, f64) -> f64) -> Array2<f64> {
        let mut weight = weight(layer);
        for mut row in weight.rows_mut() {
            let of = |block: usize| row.iter().skip(block * BLOCK).take(BLOCK).fold(0.0, |m: f64, w| m.max(w.abs()));
            let sizes = [of(0), of(1)];
            row.iter_mut().enumerate().for_each(|(i, w)| *w = f(&sizes, i / BLOCK, *w));
        }
        weight
    }
    is(
        |l, x| product(&x[0], &changed(l, |sizes, block, w| w * sizes[1 - block] / sizes[block])),
        &["each block of 16 weights", "the scale of the"],
    );
    is(
        |l, x| product(&x[0], &changed(l, |sizes, block, w| w + sizes[block] / 8.0)),
        &["1/8 times its largest size is added to each weight of a block of 16"],
    );
    is(
        |l, x| {
            let from: Vec<usize> = (0..32).map(|i| if (8..16).contains(&i) { i + 16 } else { i }).collect();
            product(&x[0].select(Dimension(1), &from), &weight(l))
        },
        &["channels 8 to 15 of the input are read as channels 24 to 31"],
    );
    is(
        |l, x| {
            let mut out = product(&x[0], &weight(l));
            for t in (0..12).filter(|t| t % 4 != 0) {
                let before = out.index_axis(Dimension(0), t - 1).to_owned();
                let mut row = out.index_axis_mut(Dimension(0), t);
                row += &before;
            }
            out
        },
        &["the sum is not cleared", "block of 4"],
    );
}

#[test]
fn a_number_is_on_the_weight_alone() {
    fn bias(y: ArrayD<f64>) -> ArrayD<f64> {
        y + Array2::from_shape_fn((1, ROWS), |(_, i)| 0.5 - (i * 7 % 11) as f64 / 10.0).into_dyn()
    }
    let right = |layer: usize, x: &[ArrayD<f64>]| bias(product(&x[0], &weight(layer)));
    let wrong = |layer: usize, x: &[ArrayD<f64>]| bias(0.25 * product(&x[0], &weight(layer)));
    let law = said(&law_of(Kind::Linear, &AXES, &[&SHAPE], right, wrong, Rounded::F32));
    assert!(law.starts_with("the weight (or the input) is 1/4 times the right one, and the bias is not"), "{law}");
}
