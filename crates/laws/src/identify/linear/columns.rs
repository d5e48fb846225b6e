//! How often each channel of the input is counted, and how far the weight was read.

use ndarray::{Array2, Axis as Dimension};

use super::{BLOCKS, MOST_COLUMNS, ROOM, Sample, flat, of_input, of_weight, weight_of};
use crate::case::Axis;
use crate::describe::function::describe as describe_function;
use crate::describe::set;
use crate::describe::source::orders;
use crate::describe::table::describe as describe_table;
use crate::identify::statistics::{SIZES, Statistic};
use crate::law::{Form, Law};
use crate::number::Measured;
use crate::solve::Cholesky;

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

/// What an order of the input's channels may cost.
const MOST_OF_AN_ORDER: f64 = 16.0;

/// Whether each of so many stands at one place.
fn is_order(from: &[usize]) -> bool {
    let mut seen = vec![false; from.len()];
    from.iter().all(|&at| !std::mem::replace(&mut seen[at], true))
}

impl Sample {
    /// How often each column of the input is counted.
    pub(super) fn columns(&self) -> Vec<Law> {
        if !self.tells_columns() {
            return self.few_columns();
        }
        let Some(shares) = self.shares_of_columns(&self.weight) else { return Vec::new() };
        let table: Vec<Measured> = shares.into_iter().map(|share| share.plus(1.0)).collect();
        let of_size = self.by_size_of_column(&table);
        if !of_size.is_empty() {
            return of_size;
        }
        let Some(described) = describe_table(&table, Axis::Channel, Some(1.0), None) else { return Vec::new() };
        let values = described.values;
        let words = format!("each channel of the input is multiplied by {}", described.words);
        vec![scaled_columns(words, described.bits + 5.0, values).with("factor", described.words)]
    }

    /// Whether there are enough outputs to tell a number for each column.
    fn tells_columns(&self) -> bool {
        let (tokens, k) = self.x.dim();
        k <= MOST_COLUMNS && tokens * self.rows.len() >= k + k / 2
    }

    /// How much of a change of the weight each column has, where that explains the error.
    pub(super) fn shares_of_columns(&self, change: &Array2<f64>) -> Option<Vec<Measured>> {
        if !self.tells_columns() {
            return None;
        }
        let error = &self.own - &self.right;
        let gram = change.t().dot(change) * self.x.t().dot(&self.x);
        let cross = (self.x.t().dot(&error) * change.t()).sum_axis(Dimension(1));
        let factored = Cholesky::decompose(&gram)?;
        let fitted = factored.solve(&cross.to_vec());
        let mut x = self.x.clone();
        x.columns_mut().into_iter().zip(fitted.iter()).for_each(|(mut column, by)| column.mapv_inplace(|x| x * by));
        let left = self.left(&(self.x.dot(&self.weight.t()) + x.dot(&change.t())));
        if left > ROOM * self.noise {
            return None;
        }
        let size = (self.own.iter().map(|y| y * y).sum::<f64>() / self.own.len() as f64).sqrt();
        let (each, inverse) = (left.max(self.noise) * size, factored.inverse());
        let share = |(a, by): (usize, &f64)| Measured::new(*by, each * inverse[[a, a]].max(0.0).sqrt());
        Some(fitted.iter().enumerate().map(share).collect())
    }

    /// Columns that are multiplied with a function of their own size over the positions.
    fn by_size_of_column(&self, factors: &[Measured]) -> Vec<Law> {
        let of = |(words, size): Statistic| {
            let sizes: Vec<f64> = self.x.columns().into_iter().map(|column| size(&column.to_vec())).collect();
            let function = describe_function(&sizes, factors)?;
            let said = format!(
                "each channel of the input is multiplied by {} (s: its {words} over the positions)",
                function.of("s")
            );
            let f = function.f;
            Some(of_input(Form::LinearColumns, said, function.bits + 6.0, move |case, at| {
                let mut x = flat(case.places[at].inputs.first()?)?;
                for mut column in x.columns_mut() {
                    let by = f(size(&column.to_vec()));
                    column.mapv_inplace(|x| x * by);
                }
                Some(x.into_dyn())
            }))
        };
        SIZES.into_iter().filter_map(of).collect()
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
    pub(super) fn orders(&self) -> Vec<Law> {
        let k = self.x.ncols();
        let few: Vec<usize> = (0..self.x.nrows()).step_by((self.x.nrows() / 4).max(1)).collect();
        let (x, own) = (self.x.select(Dimension(0), &few), self.own.select(Dimension(0), &few));
        let bias = (&self.right - &self.x.dot(&self.weight.t())).select(Dimension(0), &few);
        let size = own.iter().map(|y| y * y).sum::<f64>().sqrt();
        let mut laws = Vec::new();
        for source in orders(k, Axis::Channel.name(), MOST_OF_AN_ORDER).into_iter().filter(|of| is_order(&of.from)) {
            let from = source.from;
            let made = x.select(Dimension(1), &from).dot(&self.weight.t()) + &bias;
            let left = made.iter().zip(&own).map(|(a, b)| (a - b).powi(2)).sum::<f64>().sqrt();
            if left <= ROOM * self.noise * size {
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
    pub(super) fn read_in_part(&self) -> Vec<Law> {
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
        if let Some(&first) =
            self.rows.first().filter(|_| self.is_wrong_to_the_end && (1..self.rows.len()).all(is_nothing))
        {
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
                let is_share = from * 2 == total || from * 4 == total;
                // Whole rows are not what a size counted wrongly leaves.
                let are_rows = count == 0 && !is_share;
                let words = match are_rows {
                    true => format!(
                        "rows {first}-{} of the weight are 0, or not multiplied with; the others right",
                        self.weight_rows - 1
                    ),
                    false => format!("only the first {from} numbers of the weight are read, the rest are 0"),
                };
                let bits = if is_share { 3.0 } else { 10.0 };
                let law = of_weight(words, bits, move |case, at| {
                    let mut weight = weight_of(case, at)?;
                    weight.iter_mut().skip(from).for_each(|w| *w = 0.0);
                    Some(weight)
                });
                laws.push(if are_rows { law.with("rows_from", first) } else { law.with("zero_from", from) });
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
}
