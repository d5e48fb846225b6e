//! Products with a weight: which weight, which input, which of its columns, and what was done to their values.

mod blocks;

use std::sync::Arc;

use nalgebra::{DMatrix, DVector};
use ndarray::{Array2, ArrayD, Axis as Dimension};

use crate::case::{Axis, Case};
use crate::describe::function::{self, describe as describe_function, fitting};
use crate::describe::source::describe as describe_source;
use crate::describe::table::describe as describe_table;
use crate::describe::{choice, set};
use crate::fit::{factor, least_squares};
use crate::identify::after::by_row;
use crate::identify::operands::over_root_mean_square;
use crate::identify::output::{Whole, roundings_of};
use crate::identify::subject::Subject;
use crate::identify::sums::moved;
use crate::law::{Form, Law};
use crate::number::Measured;

/// Output rows that laws are looked for on.
const ROWS: usize = 160;
/// Input columns up to which each has a coefficient of its own.
const MOST_COLUMNS: usize = 768;
/// Errors of rounding's size that a product may be left with before the proof.
const ROOM: f64 = 5.0;

/// Multiplications of a product that constants are searched for with.
const SEARCHED: usize = 1 << 18;

/// Numbers of a block in which weights are stored.
const BLOCKS: [usize; 3] = [32, 64, 256];

/// Elements up to which a weight is asked of the operation, and channels of its input.
const MOST_ELEMENTS: usize = 1 << 22;

/// The weight of a product `[F,K]`: what it gives for one channel after the other, less what it gives for nothing. `None` where it is too large.
fn weight_of(case: &Case<'_>, at: usize) -> Option<Array2<f64>> {
    let input = case.places[at].inputs.first()?;
    let x = flat(input)?;
    let (rows, channels) = x.dim();
    let outputs = case.places[at].right.len() / rows.max(1);
    if channels * outputs > MOST_ELEMENTS {
        return None;
    }
    let of = |x: Array2<f64>| flat(&case.operation.apply(at, &[x.to_shape(input.raw_dim()).ok()?.into_owned()])?);
    let nothing = of(Array2::zeros((rows, channels)))?;
    let mut weight = Array2::zeros((outputs, channels));
    for start in (0..channels).step_by(rows) {
        let some = rows.min(channels - start);
        let mut ones = Array2::zeros((rows, channels));
        (0..some).for_each(|row| ones[[row, start + row]] = 1.0);
        let made = of(ones)? - &nothing;
        for row in 0..some {
            weight.column_mut(start + row).assign(&made.row(row));
        }
    }
    Some(weight)
}

/// Rows of a tensor as `[T,K]`.
fn flat(x: &ArrayD<f64>) -> Option<Array2<f64>> {
    let rows = *x.shape().first()?;
    x.to_shape((rows, x.len() / rows.max(1))).ok().map(|x| x.into_owned())
}

/// The product on some of its output rows.
struct Sample {
    x: Array2<f64>,
    /// `[R,K]`
    weight: Array2<f64>,
    /// `[T,R]`
    own: Array2<f64>,
    right: Array2<f64>,
    rows: Vec<usize>,
    /// How many rows the weight has in all.
    weight_rows: usize,
    noise: f64,
}

/// The laws of a product.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let mut laws = inputs(case);
    laws.extend(bias(case));
    let Some(sample) = Sample::of(case) else { return laws };
    laws.extend(sample.weights(case));
    laws.extend(sample.read_in_part());
    laws.extend(sample.columns());
    if laws.is_empty() {
        laws.extend(sample.orders());
        laws.extend(sample.blocks(case));
        laws.extend(sample.rounded());
    }
    laws
}

/// Functions of the weight's values, where nothing plainer holds.
pub(crate) fn functions(case: &Case<'_>) -> Vec<Law> {
    Sample::of(case).map_or_else(Vec::new, |sample| sample.functions(case))
}

/// What a product adds by itself, `[T,F]`.
fn bias_of(case: &Case<'_>, at: usize) -> Option<Array2<f64>> {
    flat(&case.operation.apply(at, &[ArrayD::zeros(case.places[at].inputs.first()?.raw_dim())])?)
}

/// Another bias, made of the right one.
fn bias(case: &Case<'_>) -> Option<Law> {
    let first = case.first();
    let (due, right, own) = (bias_of(case, case.fitted)?, flat(&first.right)?, flat(&first.own)?);
    if due.dim() != right.dim() || due.iter().all(|b| *b == 0.0) {
        return None;
    }
    let rows = right.nrows() as f64;
    let size = (own.iter().map(|y| y * y).sum::<f64>() / own.len() as f64).sqrt();
    let each = first.noise() * size;
    let mut measured = Vec::new();
    for ((right, own), due) in right.columns().into_iter().zip(own.columns()).zip(due.row(0)) {
        let off = (&own - &right).sum() / rows;
        // The same at each position, or it is no bias.
        if right
            .iter()
            .zip(own)
            .any(|(right, own)| (own - right - off).abs() > ROOM * (each + first.noise() * own.abs()))
        {
            return None;
        }
        measured.push(Measured::new(due + off, each / rows.sqrt()));
    }
    let due = due.row(0).to_vec();
    let is_none = measured.iter().all(|m| m.may_be(0.0));
    let every = vec![true; due.len()];
    let (words, bits, f, has) = match is_none {
        true => ("the bias is left out".to_owned(), 3.0, Arc::new(|_: f64| 0.0) as function::Of, every),
        false => match (describe_function(&due, &measured), function::on_a_part(&due, &measured, Axis::Channel)) {
            (Some(function), _) => {
                (format!("the bias is {} (b: the right bias)", function.of("b")), function.bits, function.f, every)
            }
            (None, Some((function, set))) => {
                let on = set.words.clone()?;
                let words = format!("the bias is {} for {on}, else b (b: the right bias)", function.of("b"));
                (words, function.bits + set.bits, function.f, set.has)
            }
            (None, None) => return None,
        },
    };
    Some(Law::new(Form::LinearBias, words, bits + 3.0, move |case, at| {
        let place = &case.places[at];
        let (due, right) = (bias_of(case, at)?, flat(&place.right)?);
        let mut out = right;
        (out.ncols() == has.len()).then_some(())?;
        for ((t, c), y) in out.indexed_iter_mut().filter(|((_, c), _)| has[*c]) {
            *y += f(due[[t, c]]) - due[[t, c]];
        }
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    }))
}

/// A law of another input.
fn of_input(
    form: Form,
    words: String,
    bits: f64,
    made: impl Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync + 'static,
) -> Law {
    Law::new(form, words, bits, move |case, at| {
        let place = &case.places[at];
        let input = made(case, at)?;
        let shape = place.inputs.first()?.raw_dim();
        case.operation.apply(at, &[input.to_shape(shape).ok()?.into_owned()])
    })
}

/// Other inputs, by what they are called.
fn library(case: &Case<'_>, at: usize) -> Vec<(String, ArrayD<f64>)> {
    let place = &case.places[at];
    let Some(x) = place.inputs.first() else { return Vec::new() };
    let mut all: Vec<(String, ArrayD<f64>)> = vec![("the input".into(), x.clone())];
    for (name, tensor) in &place.around {
        if tensor.len() == x.len() && tensor.shape().first() == x.shape().first() {
            all.extend(tensor.to_shape(x.raw_dim()).ok().map(|x| (name.clone(), x.into_owned())));
        }
    }
    all.extend(moved("the input", x));
    all.push(("the size of the input".into(), x.mapv(f64::abs)));
    let normed = by_row(x, over_root_mean_square);
    all.push(("the input over the root mean square of its row".into(), normed.clone()));
    all.push(("the positive part of the input".into(), x.mapv(|x| x.max(0.0))));
    if let &[_, width] = x.shape() {
        for (name, vector) in case.operation.vectors(at, width) {
            let vector = ndarray::Array1::from(vector);
            all.push((format!("the input times {name}"), x * &vector));
            all.push((format!("the input over {name}"), x / &vector));
            all.push((format!("the input normed, times {name}"), &normed * &vector));
        }
    }
    all.retain(|(_, x)| x.iter().all(|x| x.is_finite()));
    all
}

/// Laws of what is read: another tensor, or a sum of two.
fn inputs(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let all = library(case, case.fitted);
    let of = |x: &ArrayD<f64>| case.operation.apply(case.fitted, std::slice::from_ref(x));
    let subject = Subject::output(case);
    let nothing = first.inputs.first().and_then(|x| of(&ArrayD::zeros(x.raw_dim())));
    // What the product adds by itself (a bias) is not scaled with its input.
    let Some(bias) = nothing else { return Vec::new() };
    let made: Vec<(String, Vec<f64>)> = all
        .iter()
        .take_while(|_| case.has_time())
        .filter_map(|(name, x)| Some((name.clone(), of(x)?.iter().zip(&bias).map(|(y, b)| y - b).collect())))
        .collect();
    let wanted: Vec<f64> = first.own.iter().zip(&bias).map(|(y, b)| y - b).collect();
    let mut laws = Vec::new();
    let law = |terms: Vec<(String, Measured)>| {
        let numbers: Vec<_> = terms.iter().map(|(_, m)| m.number()).collect();
        let said: Vec<String> = terms
            .iter()
            .zip(&numbers)
            .map(|((name, _), n)| if n.value == 1.0 { name.clone() } else { format!("{} times {name}", n.words) })
            .collect();
        let bits = 4.0 + numbers.iter().map(|n| n.bits + choice(all.len())).sum::<f64>();
        let terms: Vec<(String, f64)> = terms.into_iter().zip(&numbers).map(|((name, _), n)| (name, n.value)).collect();
        let parameter = said.join(" + ");
        of_input(Form::LinearInput, format!("the product reads {parameter}"), bits, move |case, at| {
            let library = library(case, at);
            let mut sum: ArrayD<f64> = ArrayD::zeros(case.places[at].inputs.first()?.raw_dim());
            for (name, by) in &terms {
                sum.scaled_add(*by, &library.iter().find(|(known, _)| known == name)?.1);
            }
            Some(sum)
        })
        .with("input", parameter)
    };
    let noise = subject.noise;
    for (name, column) in made.iter().skip(1) {
        let fit = factor(column, &wanted, noise);
        if fit.left <= ROOM * noise && fit.coefficients[0].is_known() {
            laws.push(law(vec![(name.clone(), fit.coefficients[0])]));
        }
    }
    if laws.is_empty() {
        for (a, (first, x)) in made.iter().enumerate().take_while(|_| case.has_time()) {
            for (second, y) in &made[a + 1..] {
                let Some(fit) = least_squares(&[x, y], &wanted, noise).filter(|fit| fit.left <= ROOM * noise) else {
                    continue;
                };
                if fit.coefficients.iter().all(|c| !c.may_be(0.0)) {
                    laws.push(law(vec![(first.clone(), fit.coefficients[0]), (second.clone(), fit.coefficients[1])]));
                }
            }
        }
    }
    laws
}

impl Sample {
    fn of(case: &Case<'_>) -> Option<Sample> {
        let first = case.first();
        let weight = weight_of(case, case.fitted)?;
        let (x, own, right) = (flat(first.inputs.first()?)?, flat(&first.own)?, flat(&first.right)?);
        if weight.ncols() != x.ncols() || weight.nrows() != own.ncols() {
            return None;
        }
        let wrong = crate::identify::further_off(&right.clone().into_dyn(), &own.clone().into_dyn(), first.noise());
        let all: Vec<usize> = (0..own.ncols()).filter(|&row| (0..own.nrows()).any(|t| wrong[[t, row]])).collect();
        let rows: Vec<usize> = all.iter().copied().step_by(all.len().div_ceil(ROWS).max(1)).collect();
        let pick = |x: &Array2<f64>| x.select(Dimension(1), &rows);
        Some(Sample {
            weight: weight.select(Dimension(0), &rows),
            own: pick(&own),
            right: pick(&right),
            weight_rows: weight.nrows(),
            x,
            rows,
            noise: first.noise(),
        })
    }

    fn is_near(&self, made: &Array2<f64>) -> bool {
        self.left(made) <= ROOM * self.noise
    }

    /// What is left, as a share.
    fn left(&self, made: &Array2<f64>) -> f64 {
        if made.dim() != self.own.dim() {
            return f64::INFINITY;
        }
        // A bias is as it was.
        let bias = &self.right - &self.x.dot(&self.weight.t());
        let (mut rest, mut all) = (0.0, 0.0);
        ndarray::Zip::from(made).and(&bias).and(&self.own).for_each(|made, bias, own| {
            rest += (made + bias - own).powi(2);
            all += own * own;
        });
        (rest / f64::max(all, f64::MIN_POSITIVE)).sqrt()
    }

    /// Other weights of the model, and the weight read otherwise.
    fn weights(&self, case: &Case<'_>) -> Vec<Law> {
        let mut laws = Vec::new();
        for name in case.operation.other_weights(case.fitted) {
            let Some(other) = case.operation.other_weight(case.fitted, &name) else { continue };
            if other.ncols() != self.x.ncols() || self.rows.iter().any(|row| *row >= other.nrows()) {
                continue;
            }
            if self.is_near(&self.x.dot(&other.select(Dimension(0), &self.rows).t())) {
                let known = name.clone();
                let law = of_weight(format!("the weight is that of {name}"), 8.0, move |case, at| {
                    case.operation.other_weight(at, &known)
                });
                laws.push(law.with("weight", name));
                continue;
            }
            if other.nrows() != self.weight_rows {
                continue;
            }
            // Some of this weight, some of that.
            let flat = |x: Array2<f64>| x.iter().copied().collect::<Vec<f64>>();
            let (own, added) =
                (flat(self.x.dot(&self.weight.t())), self.x.dot(&other.select(Dimension(0), &self.rows).t()));
            let bias = &self.right - &self.x.dot(&self.weight.t());
            let (added, wanted) = (flat(added), flat(&self.own - &bias));
            let Some(fit) =
                least_squares(&[&own, &added], &wanted, self.noise).filter(|fit| fit.left <= ROOM * self.noise)
            else {
                continue;
            };
            if fit.coefficients.iter().any(|c| c.may_be(0.0)) {
                continue;
            }
            let [a, b] = [fit.coefficients[0].number(), fit.coefficients[1].number()];
            let (known, words) = (
                name.clone(),
                format!("the weight is {} times the right one plus {} times that of {name}", a.words, b.words),
            );
            let law = of_weight(words, 8.0 + a.bits + b.bits, move |case, at| {
                let own = weight_of(case, at)?;
                let other = case.operation.other_weight(at, &known).filter(|other| other.dim() == own.dim())?;
                Some(own * a.value + other * b.value)
            });
            laws.push(law.with("weight", name));
        }
        let square = |w: &Array2<f64>| (w.nrows() == w.ncols()).then(|| w.t().to_owned());
        let swapped = |w: &Array2<f64>| {
            let (rows, columns) = w.dim();
            let values: Vec<f64> = w.t().iter().copied().collect();
            Array2::from_shape_vec((rows, columns), values).ok()
        };
        let read = |w: &Array2<f64>| {
            let (rows, columns) = w.dim();
            let other = w.to_shape((columns, rows)).ok()?.t().to_owned();
            (other.dim() == w.dim() || rows != columns).then_some(other).filter(|other| other.dim() == w.dim())
        };
        type Reading = fn(&Array2<f64>) -> Option<Array2<f64>>;
        let readings: [(&str, Reading); 3] = [
            ("transposed", square),
            ("stored with its extents exchanged, and read as if it were not", swapped),
            ("read with its extents exchanged", read),
        ];
        if let Some(weight) = weight_of(case, case.fitted) {
            for (words, reading) in readings {
                let other = reading(&weight).filter(|other| other.dim() == weight.dim());
                if other.is_some_and(|other| self.is_near(&self.x.dot(&other.select(Dimension(0), &self.rows).t()))) {
                    laws.push(
                        of_weight(format!("the weight is {words}"), 6.0, move |case, at| {
                            reading(&weight_of(case, at)?)
                        })
                        .with("weight", words),
                    );
                }
            }
        }
        laws
    }

    /// How often each column of the input is counted.
    fn columns(&self) -> Vec<Law> {
        let (tokens, k) = self.x.dim();
        if k > MOST_COLUMNS || tokens * self.rows.len() < k + k / 2 {
            return self.few_columns();
        }
        let error = &self.own - &self.right;
        let gram = self.weight.t().dot(&self.weight) * self.x.t().dot(&self.x);
        let cross = (self.x.t().dot(&error) * self.weight.t()).sum_axis(Dimension(1));
        let matrix = DMatrix::from_fn(k, k, |a, b| gram[[a, b]]);
        let Some(factored) = matrix.cholesky() else { return Vec::new() };
        let fitted = factored.solve(&DVector::from_fn(k, |a, _| cross[a]));
        let by: Vec<f64> = fitted.iter().map(|a| 1.0 + a).collect();
        let made = |by: &[f64]| {
            let mut x = self.x.clone();
            x.columns_mut().into_iter().zip(by).for_each(|(mut column, by)| column.mapv_inplace(|x| x * by));
            x.dot(&self.weight.t())
        };
        let left = self.left(&made(&by));
        if left > ROOM * self.noise {
            return Vec::new();
        }
        let size = (self.own.iter().map(|y| y * y).sum::<f64>() / self.own.len() as f64).sqrt();
        let each = left.max(self.noise) * size;
        let inverse = factored.inverse();
        let table: Vec<Measured> =
            by.iter().enumerate().map(|(a, by)| Measured::new(*by, each * inverse[(a, a)].max(0.0).sqrt())).collect();
        let Some(described) = describe_table(&table, Axis::Channel, Some(1.0), None) else { return Vec::new() };
        let values = described.values;
        let words = format!("each channel of the input is multiplied by {}", described.words);
        vec![scaled_columns(words, described.bits + 5.0, values).with("factor", described.words)]
    }

    /// Where columns are many: those from one on, or up to one, are left out.
    fn few_columns(&self) -> Vec<Law> {
        let k = self.x.ncols();
        let bias = &self.right - &self.x.dot(&self.weight.t());
        let wanted = &self.own - &bias;
        let size = wanted.iter().map(|y| y * y).sum::<f64>().sqrt();
        let mut laws = Vec::new();
        for is_first in [true, false] {
            let mut rest = wanted.clone();
            for step in 0..k {
                let at = if is_first { step } else { k - 1 - step };
                let left = rest.iter().map(|x| x * x).sum::<f64>().sqrt();
                if step > 0 && left <= ROOM * self.noise * size {
                    let counted: Vec<Option<bool>> =
                        (0..k).map(|c| Some(if is_first { c < at } else { c > at })).collect();
                    let on = set::describe(&counted, Axis::Channel, None);
                    let values: Vec<f64> = on.has.iter().map(|has| if *has { 1.0 } else { 0.0 }).collect();
                    let words = format!(
                        "only {} of the input are counted",
                        on.words.clone().unwrap_or_else(|| "all channels".into())
                    );
                    laws.push(scaled_columns(words, on.bits + 6.0, values));
                    break;
                }
                for (t, mut row) in rest.rows_mut().into_iter().enumerate() {
                    row.scaled_add(-self.x[[t, at]], &self.weight.column(at));
                }
            }
        }
        laws
    }

    /// Columns of the input in another order.
    fn orders(&self) -> Vec<Law> {
        let k = self.x.ncols();
        let few: Vec<usize> = (0..self.x.nrows()).step_by((self.x.nrows() / 4).max(1)).collect();
        let (x, own) = (self.x.select(Dimension(0), &few), self.own.select(Dimension(0), &few));
        let bias = (&self.right - &self.x.dot(&self.weight.t())).select(Dimension(0), &few);
        let size = own.iter().map(|y| y * y).sum::<f64>().sqrt();
        let mut laws = Vec::new();
        for from in orders_of(k) {
            let made = x.select(Dimension(1), &from).dot(&self.weight.t()) + &bias;
            let left = made.iter().zip(&own).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            if left <= ROOM * self.noise * size {
                let known: Vec<Option<usize>> = from.iter().map(|i| Some(*i)).collect();
                let source = describe_source(&known, k, Axis::Channel);
                let words = format!("channel i of the input is taken from {}", source.words);
                let law = of_input(Form::LinearColumns, words, source.bits + 2.0, move |case, at| {
                    let x = flat(case.places[at].inputs.first()?)?;
                    (x.ncols() == from.len()).then(|| x.select(Dimension(1), &from).into_dyn())
                });
                laws.push(law.with("source", source.words));
                break;
            }
        }
        laws
    }

    /// The weight as far as it was read: up to one of its numbers in their order, or to a column.
    fn read_in_part(&self) -> Vec<Law> {
        let mut laws = Vec::new();
        let columns = self.weight.ncols();
        let whole = self.x.dot(&self.weight.t());
        let wanted = &self.own - &(&self.right - &whole);
        // What is left is held against what is due: what was read may be nothing.
        let square = |x: &Array2<f64>| x.iter().map(|x| x * x).sum::<f64>();
        let reads = |weight: &Array2<f64>| {
            square(&(self.x.dot(&weight.t()) - &wanted)) <= (ROOM * self.noise).powi(2) * square(&whole)
        };
        let size = whole.iter().fold(0.0f64, |most, x| most.max(x.abs()));
        let is_nothing = |row: usize| wanted.column(row).iter().all(|x| x.abs() <= ROOM * self.noise * size);
        // Those that are wrong are sampled, the first among them: in it reading may end.
        if let Some(&first) = self.rows.first().filter(|_| (1..self.rows.len()).all(is_nothing)) {
            let left = |count: usize| {
                let part: ndarray::Array1<f64> =
                    self.x.slice(ndarray::s![.., ..count]).dot(&self.weight.slice(ndarray::s![0, ..count]));
                part.iter().zip(wanted.column(0)).map(|(a, b)| (a - b).powi(2)).sum::<f64>()
            };
            let count =
                (1..columns).min_by(|&a, &b| left(a).total_cmp(&left(b))).filter(|_| !is_nothing(0)).unwrap_or(0);
            let mut weight = Array2::zeros(self.weight.dim());
            let read = ndarray::s![0, ..count];
            weight.slice_mut(read).assign(&self.weight.slice(read));
            let (from, total) = (first * columns + count, self.weight_rows * columns);
            if from > 0 && reads(&weight) {
                let words = format!("only the first {from} numbers of the weight are read, the rest are 0");
                let bits = if from * 2 == total || from * 4 == total { 3.0 } else { 10.0 };
                let law = of_weight(words, bits, move |case, at| {
                    let mut weight = weight_of(case, at)?;
                    weight.iter_mut().skip(from).for_each(|w| *w = 0.0);
                    Some(weight)
                });
                laws.push(law.with("zero_from", from));
            }
        }
        for from in BLOCKS.into_iter().filter(|from| *from < columns) {
            let kept = move |mut weight: Array2<f64>| {
                weight.slice_mut(ndarray::s![.., from..]).fill(0.0);
                weight
            };
            if reads(&kept(self.weight.clone())) {
                let words = format!("only the first {from} columns of the weight are read, the rest are 0");
                let law = of_weight(words, 6.0, move |case, at| weight_of(case, at).map(kept));
                laws.push(law.with("columns_read", from));
            }
        }
        laws
    }

    /// The sample on so few of its rows that a product has no more than so many multiplications, but some.
    fn few(&self, most: usize) -> Sample {
        let count = (most / (self.x.len()).max(1)).clamp(4, self.rows.len().max(4));
        let rows: Vec<usize> = (0..self.rows.len()).step_by(self.rows.len().div_ceil(count).max(1)).collect();
        let pick = |x: &Array2<f64>| x.select(Dimension(1), &rows);
        Sample {
            x: self.x.clone(),
            weight: self.weight.select(Dimension(0), &rows),
            own: pick(&self.own),
            right: pick(&self.right),
            rows: rows.iter().map(|row| self.rows[*row]).collect(),
            weight_rows: self.weight_rows,
            noise: self.noise,
        }
    }

    /// A law of the input's values, or of the weight's.
    fn law_of_values(is_input: bool, words: String, bits: f64, f: Whole) -> Law {
        match is_input {
            true => of_input(Form::LinearValues, words, bits, move |case, at| f(case.places[at].inputs.first()?)),
            false => {
                of_weight(words, bits, move |case, at| f(&weight_of(case, at)?.into_dyn())?.into_dimensionality().ok())
            }
        }
    }

    /// Values of the input or the weight that are rounded.
    fn rounded(&self) -> Vec<Law> {
        let mut laws = Vec::new();
        let before = self.left(&self.x.dot(&self.weight.t()));
        for is_input in [true, false] {
            let called = if is_input { "input" } else { "weight" };
            let made = |f: &dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>>| -> Option<Array2<f64>> {
                let two = |x: ArrayD<f64>| x.into_dimensionality().ok();
                match is_input {
                    true => Some(two(f(&self.x.clone().into_dyn())?).map(|x: Array2<f64>| x.dot(&self.weight.t()))?),
                    false => two(f(&self.weight.clone().into_dyn())?).map(|w: Array2<f64>| self.x.dot(&w.t())),
                }
            };
            for (words, bits, f) in roundings_of() {
                if made(&|x| f(x)).is_some_and(|made| self.left(&made) <= (0.1 * before).max(ROOM * self.noise)) {
                    let name = if is_input { "input_rounded" } else { "rounded" };
                    let said = format!("the {called} is {words}");
                    laws.push(Self::law_of_values(is_input, said, bits + 2.0, f.clone()).with(name, words));
                }
            }
        }
        laws
    }

    /// Values of the input or the weight that are a function of the right ones. Constants are searched for on few rows.
    fn functions(&self, case: &Case<'_>) -> Vec<Law> {
        let mut laws = Vec::new();
        let few = self.few(SEARCHED);
        let bias = &few.right - &few.x.dot(&few.weight.t());
        let wanted = &few.own - &bias;
        let size = few.own.iter().map(|y| y * y).sum::<f64>().max(f64::MIN_POSITIVE);
        let share = |made: Array2<f64>| {
            let left: f64 = made.iter().zip(&wanted).map(|(made, wanted)| (made - wanted).powi(2)).sum();
            (left / size).sqrt()
        };
        let before = share(few.x.dot(&few.weight.t()));
        for is_input in [true, false] {
            let called = if is_input { "input" } else { "weight" };
            let base = if is_input { &self.x } else { &self.weight };
            let base: Vec<f64> = base.iter().copied().collect();
            let left = |f: &dyn Fn(f64) -> f64| match is_input {
                true => share(few.x.mapv(f).dot(&few.weight.t())),
                false => share(few.x.dot(&few.weight.mapv(f).t())),
            };
            for function in fitting(&base, before, ROOM * self.noise, &|| case.has_time(), &left) {
                let said = format!("the {called} is read as {}", function.of("x"));
                let f = function.f;
                let whole: Whole = Arc::new(move |x: &ArrayD<f64>| Some(x.mapv(|x| f(x))));
                laws.push(Self::law_of_values(is_input, said, function.bits, whole));
            }
        }
        laws
    }
}

/// A law of another weight: what the product adds by itself stays.
fn of_weight(
    words: String,
    bits: f64,
    made: impl Fn(&Case<'_>, usize) -> Option<Array2<f64>> + Send + Sync + 'static,
) -> Law {
    Law::new(Form::LinearWeight, words, bits, move |case, at| {
        let place = &case.places[at];
        let (x, weight, right) = (flat(place.inputs.first()?)?, weight_of(case, at)?, flat(&place.right)?);
        let other =
            made(case, at).filter(|other| other.ncols() == weight.ncols() && other.nrows() >= weight.nrows())?;
        let other = other.slice(ndarray::s![..weight.nrows(), ..]).to_owned();
        let out = right + x.dot(&(other - weight).t());
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    })
}

fn scaled_columns(words: String, bits: f64, values: Vec<f64>) -> Law {
    of_input(Form::LinearColumns, words, bits, move |case, at| {
        let mut x = flat(case.places[at].inputs.first()?)?;
        if x.ncols() != values.len() {
            return None;
        }
        x.columns_mut().into_iter().zip(&values).for_each(|(mut column, by)| column.mapv_inplace(|x| x * by));
        Some(x.into_dyn())
    })
}

/// Orders that columns may be in.
fn orders_of(n: usize) -> Vec<Vec<usize>> {
    let of = |f: &dyn Fn(usize) -> usize| (0..n).map(f).collect::<Vec<_>>();
    let mut all = vec![of(&|i| n - 1 - i), of(&|i| if i ^ 1 < n { i ^ 1 } else { i })];
    for by in (1..n).filter(|by| *by <= 64 || n - by <= 64 || n.is_multiple_of(*by)) {
        all.push(of(&|i| (i + by) % n));
    }
    for block in (2..n).filter(|block| n.is_multiple_of(*block)) {
        let rows = n / block;
        all.push(of(&|i| i % rows * block + i / rows));
        all.push(of(&|i| i / block * block + block - 1 - i % block));
        all.push(of(&|i| (rows - 1 - i / block) * block + i % block));
        for shift in 1..block.min(9) {
            all.push(of(&|i| i / block * block + (i % block + shift) % block));
        }
        for shift in 1..rows.min(9) {
            all.push(of(&|i| (i / block + shift) % rows * block + i % block));
        }
        if n.is_multiple_of(2 * block) {
            all.push(of(&|i| ((i / block) ^ 1) * block + i % block));
            all.push(of(&|i| i / (2 * block) * 2 * block + i % (2 * block) / 2 + i % 2 * block));
            all.push(of(&|i| {
                let (start, inner) = (i / (2 * block) * 2 * block, i % (2 * block));
                start + if inner < block { 2 * inner } else { 2 * (inner - block) + 1 }
            }));
        }
    }
    all
}
