//! Products with a weight: which weight, which input, which of its columns, and what was done to their values.

pub(super) mod accumulated;
mod blocks;
mod bytes;
mod columns;

mod features;
mod inputs;
mod outer;
pub(super) mod recovered;
mod rows;
mod running;
mod stored;
mod values;

use ndarray::{Array2, ArrayD, Axis as Dimension};

use self::inputs::{bias, inputs};
use crate::case::Case;
use crate::fit::{ROOM, factor, least_squares};
use crate::identify::OnPart;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// Output rows that laws are looked for on.
const ROWS: usize = 160;
/// Input columns up to which each has a coefficient of its own.
const MOST_COLUMNS: usize = 768;

/// Numbers of a block in which weights are stored.
const BLOCKS: [usize; 3] = [32, 64, 256];
/// Numbers of a block that may be scaled, rounded or moved together.
const WIDTHS: [usize; 6] = [8, 16, 32, 64, 128, 256];

/// Numbers of a weight that is made anew as a whole.
const MOST_WHOLE: usize = 1 << 18;
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
    /// How many rows the weight has in all, and whether all from the first wrong one on are wrong.
    weight_rows: usize,
    is_wrong_to_the_end: bool,
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
        laws.extend(outer::outer(case));
    }
    if laws.is_empty() {
        laws.extend(sample.orders());
        laws.extend(sample.blocks(case));
        laws.extend(sample.rounded(case));
        laws.extend(sample.accumulated());
    }
    if laws.is_empty() {
        laws.extend(sample.other_rows(case));
        laws.extend(sample.read_otherwise(case));
        laws.extend(sample.stored_otherwise(case));
    }
    if laws.is_empty() {
        laws.extend(running::running(case));
    }
    laws.extend(on_wrong_outputs(case, &laws));
    laws
}

/// Laws that were fitted on the wrong outputs, where those are a part: the others are as they should be.
fn on_wrong_outputs(case: &Case<'_>, laws: &[Law]) -> Vec<Law> {
    let output = Subject::output(case);
    // Which positions are wrong by chance says nothing of the weight.
    let Some((on, _)) = OnPart::along(case, |axis| axis > 0) else { return Vec::new() };
    let near = |law: &Law| output.is_near_by(law, case);
    let of_all = laws.iter().filter(|law| law.is_everywhere() && !near(law));
    of_all.map(|law| on.put(law.clone())).filter(near).collect()
}

/// Functions of the weight's values, and numbers in few bits, where nothing plainer holds.
pub(crate) fn functions(case: &Case<'_>) -> Vec<Law> {
    Sample::of(case).map_or_else(Vec::new, |sample| {
        let mut laws = sample.functions(case);
        if laws.is_empty() {
            // Steps of other rows are told by the whole weight.
            let weight = weight_of(case, case.fitted).filter(|weight| weight.len() <= MOST_WHOLE);
            laws.extend(sample.kept_as(case, &bytes::ways(), weight.as_ref()).into_iter().map(|(.., law)| law));
        }
        laws
    })
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
            is_wrong_to_the_end: all.first().is_some_and(|first| first + all.len() == weight.nrows()),
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
        for weight in case.operation.other_weights(case.fitted) {
            let (Some(other), name) = (case.operation.other_weight(case.fitted, &weight), weight.to_string()) else {
                continue;
            };
            if other.ncols() != self.x.ncols() || self.rows.iter().any(|row| *row >= other.nrows()) {
                continue;
            }
            if self.is_near(&self.x.dot(&other.select(Dimension(0), &self.rows).t())) {
                let known = weight.clone();
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
                weight.clone(),
                format!("the weight is {} times the right one plus {} times that of {name}", a.words, b.words),
            );
            let law = of_weight(words, 8.0 + a.bits + b.bits, move |case, at| {
                let own = weight_of(case, at)?;
                let other = case.operation.other_weight(at, &known).filter(|other| other.dim() == own.dim())?;
                Some(own * a.value + other * b.value)
            });
            laws.push(law.with("weight", name));
        }
        laws.extend(self.without_the_bias());
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
}

impl Sample {
    /// The weight times a number, and the bias as it is; without a bias that is a number on the output.
    fn without_the_bias(&self) -> Option<Law> {
        let product = self.x.dot(&self.weight.t());
        let bias = &self.right - &product;
        let flat = |x: &Array2<f64>| x.iter().copied().collect::<Vec<f64>>();
        let fit = factor(&flat(&product), &flat(&(&self.own - &bias)), self.noise);
        let by = *fit.coefficients.first()?;
        if fit.left > ROOM * self.noise
            || by.may_be(1.0)
            || self.is_near(&(&product * by.value - &bias * (1.0 - by.value)))
        {
            return None;
        }
        let by = by.number();
        let words = format!("the weight (or the input) is {} times the right one, and the bias is not", by.words);
        let law = of_weight(words, 5.0 + by.bits, move |case, at| Some(weight_of(case, at)? * by.value));
        Some(law.with("by", by.value))
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

/// A law of another product of the same input and weight: what is added to it stays.
fn of_product(
    words: String,
    bits: f64,
    made: impl Fn(&Array2<f64>, &Array2<f64>) -> Array2<f64> + Send + Sync + 'static,
) -> Law {
    Law::new(Form::LinearValues, words, bits, move |case, at| {
        let place = &case.places[at];
        let (x, weight, right) = (flat(place.inputs.first()?)?, weight_of(case, at)?, flat(&place.right)?);
        let out = right + made(&x, &weight) - x.dot(&weight.t());
        out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
    })
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
