//! An operand that is read otherwise: from another position, in another order of its channels, or by another function of its values. Any operation.

use std::sync::Arc;

use ndarray::{ArrayD, Axis as Dimension};

use crate::case::{Case, Kind};
use crate::fit::search;
use crate::identify::after::{Offers, by_row};
use crate::law::{Form, Law};
use crate::number::Measured;

/// A tensor read otherwise; `None` where its shape does not allow it.
pub(crate) type Reading = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// Ways to read a tensor of this shape, with their words and prices.
pub(crate) fn readings(shape: &[usize]) -> Vec<(String, f64, Reading)> {
    let mut all: Vec<(String, f64, Reading)> = Vec::new();
    let mut each = |words: &str, f: fn(f64) -> f64| {
        all.push((words.to_owned(), 5.0, Arc::new(move |x: &ArrayD<f64>| Some(x.mapv(f)))));
    };
    each("its size", f64::abs);
    each("its positive part", |x| x.max(0.0));
    each("with the other sign", |x| -x);
    each("squared", |x| x * x);
    each("its root", |x| if x < 0.0 { -(-x).sqrt() } else { x.sqrt() });
    each("through a sigmoid", |x| 1.0 / (1.0 + (-x).exp()));
    each("through silu", |x| x / (1.0 + (-x).exp()));
    each("through tanh", f64::tanh);
    let mut of_rows = |words: &str, f: fn(&mut [f64])| {
        all.push((words.to_owned(), 5.0, Arc::new(move |x: &ArrayD<f64>| Some(by_row(x, f)))));
    };
    of_rows("less the mean of its row", |row| {
        let mean = row.iter().sum::<f64>() / row.len() as f64;
        row.iter_mut().for_each(|x| *x -= mean);
    });
    of_rows("over the root mean square of its row", |row| {
        over(row, |row| (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64).sqrt())
    });
    of_rows("over the length of its row", |row| over(row, |row| row.iter().map(|x| x * x).sum::<f64>().sqrt()));
    of_rows("over the largest size in its row", |row| {
        over(row, |row| row.iter().fold(0.0, |most: f64, x| most.max(x.abs())));
    });
    of_rows("over the sum of its row", |row| over(row, |row| row.iter().sum()));
    of_rows("less the largest of its row", |row| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|x| *x -= most);
    });
    of_rows("through a log softmax of its row", |row| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let all = most + row.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
        row.iter_mut().for_each(|x| *x -= all);
    });
    of_rows("through a softmax of its row", |row| {
        let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        row.iter_mut().for_each(|x| *x = (*x - most).exp());
        over(row, |row| row.iter().sum());
    });
    let rank = shape.len();
    for (axis, &n) in shape.iter().enumerate() {
        let name = match (axis, rank) {
            (0, _) => "position",
            (1, 3) => "head",
            _ => "channel",
        };
        if n < 2 {
            continue;
        }
        let mut order = |words: String, of: Vec<Option<usize>>| {
            all.push((words, 5.0, Arc::new(move |x: &ArrayD<f64>| picked(x, axis, &of))));
        };
        let some = |f: &dyn Fn(usize) -> usize| (0..n).map(|i| Some(f(i))).collect::<Vec<_>>();
        order(format!("with its {name}s in reverse"), some(&|i| n - 1 - i));
        order(format!("of {name} i-1, around the end"), some(&|i| (i + n - 1) % n));
        order(format!("of {name} i+1, around the end"), some(&|i| (i + 1) % n));
        if axis == 0 {
            order("of the position before (the first: itself)".into(), some(&|i| i.saturating_sub(1)));
            order(
                "of the position before (nothing before the first)".into(),
                (0..n).map(|i| i.checked_sub(1)).collect(),
            );
            order("of the next position (the last: itself)".into(), some(&|i| (i + 1).min(n - 1)));
            order(
                "of the next position (nothing behind the last)".into(),
                (0..n).map(|i| (i + 1 < n).then_some(i + 1)).collect(),
            );
            order("of the first position".into(), some(&|_| 0));
        } else {
            order(format!("with neighbouring {name}s exchanged"), some(&|i| if (i ^ 1) < n { i ^ 1 } else { i }));
            order(format!("without its last {name}"), (0..n).map(|i| (i + 1 < n).then_some(i)).collect());
            order(format!("without its first {name}"), (0..n).map(|i| (i > 0).then_some(i)).collect());
            if n.is_multiple_of(2) {
                let half = n / 2;
                order(format!("with the halves of its {name}s exchanged"), some(&|i| (i + half) % n));
                order(
                    format!("without the second half of its {name}s ({half})"),
                    (0..n).map(|i| (i < half).then_some(i)).collect(),
                );
                order(
                    format!("without the first half of its {name}s ({half})"),
                    (0..n).map(|i| (i >= half).then_some(i)).collect(),
                );
                order(format!("with the halves of its {name}s interleaved"), some(&|i| i / 2 + i % 2 * half));
                order(
                    format!("with its {name}s taken apart by even and odd"),
                    some(&|i| if i < half { 2 * i } else { 2 * (i - half) + 1 }),
                );
            }
        }
    }
    for (a, b) in [(0usize, 1usize), (1, 2)] {
        if b < rank && (b + 1 == rank) && shape[a] == shape[b] {
            let swapped = move |x: &ArrayD<f64>| {
                let mut x = x.clone();
                x.swap_axes(a, b);
                Some(x.as_standard_layout().into_owned())
            };
            all.push(("transposed".into(), 4.0, Arc::new(swapped)));
        }
    }
    all
}

fn over(row: &mut [f64], f: impl Fn(&[f64]) -> f64) {
    let by = f(row);
    row.iter_mut().for_each(|x| *x /= by);
}

/// Slices of an axis by their indices; nothing where there is none.
fn picked(x: &ArrayD<f64>, axis: usize, of: &[Option<usize>]) -> Option<ArrayD<f64>> {
    if x.shape().get(axis) != Some(&of.len()) {
        return None;
    }
    let mut out = ArrayD::zeros(x.raw_dim());
    for (to, from) in of.iter().enumerate() {
        if let Some(from) = from {
            out.index_axis_mut(Dimension(axis), to).assign(&x.index_axis(Dimension(axis), *from));
        }
    }
    Some(out)
}

/// What an operand is called.
pub(crate) fn called(kind: Kind, count: usize, operand: usize) -> &'static str {
    match (kind, count, operand) {
        (Kind::Probs, _, 0) => "queries",
        (Kind::Probs, _, 1) => "keys",
        (Kind::Context, _, 0) => "probabilities",
        (Kind::Context, _, 1) => "values",
        (Kind::Gate, _, 0) => "gate",
        (Kind::Gate, _, 1) => "up",
        (_, 1, _) => "the input",
        (_, _, 0) => "the first operand",
        (_, _, 1) => "the second operand",
        _ => "a further operand",
    }
}

/// Numbers of an operand up to which constants are searched for.
const SEARCHED: usize = 1 << 16;

/// The laws of operands that are read otherwise.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    if case.kind == Kind::Embedding {
        return Vec::new();
    }
    for (words, bits, reading) in readings(case.first().right.shape()) {
        let said = format!("the output is the right one {words}");
        let law = offers.offer(Form::OutputFunction, said, bits, move |case, at| reading(&case.places[at].right));
        if let Some(law) = law {
            law.parameters.push(("reading", words.into()));
        }
    }
    let count = case.first().inputs.len();
    for operand in 0..count {
        let input = &case.first().inputs[operand];
        if input.ndim() < 2 {
            continue;
        }
        let name = called(case.kind, count, operand);
        for (words, bits, reading) in readings(input.shape()) {
            let made = with(operand, reading);
            let law = offers.offer(Form::OperationInput, format!("{name} read {words}"), bits, made);
            if let Some(law) = law {
                law.parameters.push(("operand", name.into()));
                law.parameters.push(("reading", words.into()));
            }
        }
        if input.len() <= SEARCHED && offers.laws.is_empty() {
            bounds(case, &mut offers, operand, name);
        }
    }
    offers.laws
}

/// The operation with an operand read otherwise.
fn with(operand: usize, reading: Reading) -> impl Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync + 'static {
    move |case, place| {
        let mut inputs = case.places[place].inputs.clone();
        inputs[operand] = reading(&inputs[operand])?;
        case.operation.apply(place, &inputs)
    }
}

/// Bounds of an operand's values, and steps that they are rounded to.
fn bounds(case: &Case<'_>, offers: &mut Offers<'_>, operand: usize, name: &'static str) {
    let first = case.first();
    let most = first.inputs[operand].iter().fold(0.0f64, |most, x| most.max(x.abs()));
    let before = crate::fit::nmse(&first.right, &first.own);
    type Bound = (&'static str, fn(f64, f64) -> f64);
    let bounds: [Bound; 5] = [
        ("held within {}", |x, c| x.max(-c).min(c)),
        ("of at most {}", |x, c| x.min(c)),
        ("of at least -{}", |x, c| x.max(-c)),
        ("zero where it is below {} in size", |x, c| if x.abs() < c { 0.0 } else { x }),
        ("zero where it is above {} in size", |x, c| if x.abs() > c { 0.0 } else { x }),
    ];
    for (words, f) in bounds {
        let of = |c: f64| with(operand, Arc::new(move |x: &ArrayD<f64>| Some(x.mapv(|x| f(x, c)))));
        let left = |c: f64| {
            if !case.has_time() {
                return f64::INFINITY;
            }
            of(c)(case, case.fitted).map_or(f64::INFINITY, |value| crate::fit::nmse(&value, &first.own))
        };
        let (at, rest) = search(1e-3 * most, most, 31, true, left);
        if rest > 1e-3 * before {
            continue;
        }
        for number in
            [Measured::new(at, 2e-3 * at).simple(), Some(Measured::new(at, 0.0).plain())].into_iter().flatten()
        {
            let said = format!("{name} read {}", words.replace("{}", &number.words));
            if offers.offer(Form::OperationInput, said, 8.0 + number.bits, of(number.value)).is_some() {
                break;
            }
        }
    }
    for power in 1..=12 {
        let step = 0.5f64.powi(power);
        let rounding = [("rounded", f64::round_ties_even as fn(f64) -> f64), ("rounded down", f64::floor)];
        for (words, f) in rounding {
            let reading: Reading = Arc::new(move |x: &ArrayD<f64>| Some(x.mapv(|x| f(x / step) * step)));
            let said = format!("{name} read {words} to multiples of 1/{}", 2u32.pow(power as u32));
            offers.offer(Form::OperationInput, said, 9.0, with(operand, reading));
        }
    }
}
