//! Products whose loop runs over what it should not: outputs written over inputs that are still read, sums that go on into the next row.

use ndarray::{Array2, ArrayD};

use super::{flat, weight_of};
use crate::case::Case;
use crate::identify::after::Offers;
use crate::law::{Form, Law};

/// A product of inputs `[T,K]` with a weight `[F,K]`.
type Product = Box<dyn Fn(&Array2<f64>, &Array2<f64>) -> Array2<f64> + Send + Sync>;

/// Outputs that are written at once.
const AT_ONCE: [usize; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Inputs that a sum may go on by.
const BEYOND: [usize; 10] = [1, 2, 3, 4, 6, 8, 12, 16, 32, 64];

/// The laws of such products.
pub(super) fn running(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    let first = case.first();
    let (Some(x), Some(weight), Some(right), Some(own)) =
        (first.inputs.first().and_then(flat), weight_of(case, case.fitted), flat(&first.right), flat(&first.own))
    else {
        return Vec::new();
    };
    let due = x.dot(&weight.t());
    let size = own.iter().map(|y| y * y).sum::<f64>().max(f64::MIN_POSITIVE);
    for (words, product) in products(&weight) {
        // Before the weight is asked for once more.
        let made = &product(&x, &weight) + &right - &due;
        if made.dim() != own.dim() || (&made - &own).mapv(|d| d * d).sum() > offers.near * size {
            continue;
        }
        offers.offer(Form::LinearInput, words, 10.0, move |case, at| of_place(case, at, &product));
    }
    offers.laws
}

/// A place's product made otherwise, its bias as it is.
fn of_place(case: &Case<'_>, at: usize, product: &Product) -> Option<ArrayD<f64>> {
    let place = &case.places[at];
    let (x, weight, right) = (flat(place.inputs.first()?)?, weight_of(case, at)?, flat(&place.right)?);
    let made = product(&x, &weight) + &right - x.dot(&weight.t());
    made.to_shape(place.right.raw_dim()).ok().map(|made| made.into_owned())
}

fn products(weight: &Array2<f64>) -> Vec<(String, Product)> {
    let (outputs, inputs) = weight.dim();
    let mut all: Vec<(String, Product)> = Vec::new();
    for at_once in AT_ONCE.into_iter().filter(|n| *n < outputs && outputs <= inputs) {
        let when = if at_once == 1 { "one by one".to_owned() } else { format!("{at_once} at a time") };
        let words =
            format!("outputs are written over the inputs, {when}: later outputs read those that are there already");
        all.push((words, Box::new(move |x, w| in_place(x, w, at_once))));
    }
    for beyond in BEYOND.into_iter().filter(|n| *n < inputs) {
        for (of_both, whose) in [
            (true, "of the input and of the weight"),
            (false, "of the input, with the first elements of the weight's own row"),
        ] {
            let words =
                format!("the sum runs {beyond} elements too far, into the next row {whose} (nothing behind the last)");
            all.push((words, Box::new(move |x, w| overrun(x, w, beyond, of_both))));
        }
    }
    all
}

/// Outputs over inputs, so many at once.
fn in_place(x: &Array2<f64>, weight: &Array2<f64>, at_once: usize) -> Array2<f64> {
    let (rows, outputs) = (x.nrows(), weight.nrows());
    let mut buffer = x.clone();
    let mut out = Array2::zeros((rows, outputs));
    for from in (0..outputs).step_by(at_once) {
        let to = (from + at_once).min(outputs);
        let some = buffer.dot(&weight.slice(ndarray::s![from..to, ..]).t());
        out.slice_mut(ndarray::s![.., from..to]).assign(&some);
        buffer.slice_mut(ndarray::s![.., from..to]).assign(&some);
    }
    out
}

/// Sums that go on into the next row of the input, and of the weight.
fn overrun(x: &Array2<f64>, weight: &Array2<f64>, beyond: usize, of_both: bool) -> Array2<f64> {
    let mut out = x.dot(&weight.t());
    let (rows, outputs) = out.dim();
    for t in 0..rows.saturating_sub(1) {
        for o in 0..outputs {
            let row = if of_both { o + 1 } else { o };
            if row < outputs {
                out[[t, o]] += (0..beyond).map(|i| x[[t + 1, i]] * weight[[row, i]]).sum::<f64>();
            }
        }
    }
    out
}
