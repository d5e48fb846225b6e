//! What is done behind a law: its value times a number, a number added, held within bounds, or otherwise at some positions.

use std::cell::OnceCell;
use std::sync::Arc;

use ndarray::{ArrayD, Axis as Dimension};

use crate::case::{Axis, Case};
use crate::describe::table::describe as describe_table;
use crate::fit::{ROOM, factor, least_squares, nmse};
use crate::identify::OnPart;
use crate::identify::subject::{by_slice, rows};
use crate::law::{Form, Law};
use crate::number::{Measured, Number};

/// A change of a tensor; nothing where it cannot be made of one.
type Change = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// A change of a law's value, in words behind the law.
#[derive(Clone)]
pub(crate) struct After {
    words: String,
    bits: f64,
    f: Change,
}

/// The parameter of a law that says what is done behind it.
const THEN: &str = "then";
/// How many times the tolerance a law may leave before its proof, and which share of the error.
const NEAR: f64 = 30.0;
const SHARE: f64 = 1e-5;
/// Values that stand at a bound, at least.
const HELD: usize = 4;
/// Elements that a value is looked at by first.
const SAMPLE: usize = 4096;

/// Laws of a case, of which each is taken up where its value, or a plain function of it, is the candidate's.
pub(crate) struct Offers<'c> {
    case: &'c Case<'c>,
    noise: f64,
    /// NMSE that is near enough to be worth a proof.
    pub(crate) near: f64,
    pub(crate) laws: Vec<Law>,
    /// The part on which the output is wrong, where that is not the whole.
    part: OnceCell<Option<OnPart>>,
}

impl<'c> Offers<'c> {
    pub(crate) fn of(case: &'c Case<'c>) -> Offers<'c> {
        let first = case.first();
        let near = (NEAR * first.tolerance).max(SHARE * nmse(&first.right, &first.own));
        Offers { case, noise: first.noise(), near, laws: Vec::new(), part: OnceCell::new() }
    }

    /// How many hidden elements an expert of the place has; 0 where it is no mixture.
    pub(crate) fn hidden(&self) -> usize {
        self.case.operation.hidden(self.case.fitted)
    }

    /// The extent of the last axis.
    pub(crate) fn width(&self) -> Option<usize> {
        self.case.first().right.shape().last().copied()
    }

    /// Takes up a law, where it is one.
    pub(crate) fn offer(
        &mut self,
        form: Form,
        words: impl Into<String>,
        bits: f64,
        made: impl Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync + 'static,
    ) -> Option<&mut Law> {
        self.take_up(Law::new(form, words, bits, made))
    }

    /// The same of a law as it is.
    pub(crate) fn take_up(&mut self, law: Law) -> Option<&mut Law> {
        if !self.case.has_time() {
            return None;
        }
        let value = law.predicted(self.case, self.case.fitted)?;
        let law = self.behind(&value, law.clone()).or_else(|| self.on_a_part(&value, law))?;
        self.laws.push(law);
        self.laws.last_mut()
    }

    /// The law on the wrong part alone, where that gives the candidate's numbers: one path of an engine's code, such as decoding.
    fn on_a_part(&self, value: &ArrayD<f64>, law: Law) -> Option<Law> {
        let first = self.case.first();
        let part = self.part.get_or_init(|| {
            // A path of the code is one of some positions or heads; of some channels a law says itself which.
            let is_of_a_path = |axis: &Axis| axis.is_position() || *axis == Axis::Head;
            OnPart::along(self.case, |axis| self.case.axes.get(axis).is_some_and(is_of_a_path)).map(|(on, _)| on)
        });
        let part = part.as_ref()?;
        let value = part.within(&first.right, value)?;
        let is_near = value.iter().all(|x| x.is_finite()) && nmse(&value, &first.own) <= self.near;
        is_near.then(|| part.put(law))
    }

    /// The law with what is done behind it, where that gives the candidate's numbers; `value` is what the law gives in the first place.
    pub(crate) fn behind(&self, value: &ArrayD<f64>, law: Law) -> Option<Law> {
        let own = &self.case.first().own;
        if value.shape() != own.shape() || value.iter().any(|x| !x.is_finite()) {
            return None;
        }
        if nmse(value, own) <= self.near {
            return Some(law);
        }
        let after = self.after(value, own, law.form)?;
        // Where the right output with something behind it gives this too, what stands before it is no step.
        if self.after(&self.case.first().right, own, Form::OutputFunction).is_some() {
            return None;
        }
        Some(self.then(law, after))
    }

    /// Takes up what is done behind the right output, where that gives the candidate's numbers.
    pub(crate) fn offer_behind_right(&mut self) -> bool {
        let first = self.case.first();
        let right = Law::new(Form::OutputFunction, "the output is the right one", 0.0, |case, at| {
            Some(case.places.get(at)?.right.clone())
        });
        let law = self.after(&first.right, &first.own, Form::OutputFunction).map(|after| self.then(right, after));
        let is_found = law.is_some();
        self.laws.extend(law);
        is_found
    }

    fn then(&self, law: Law, after: After) -> Law {
        let inner = law.predict.clone();
        // Behind an operand that is read otherwise it is the output that is meant.
        let words = match law.form {
            Form::OutputFunction => format!("{}, {}", law.words, after.words),
            _ => format!("{}; the output {}", law.words, after.words),
        };
        let f = after.f.clone();
        let predict = move |case: &Case<'_>, place: usize| f(&inner(case, place)?);
        Law { words, bits: law.bits + after.bits + 3.0, predict: Arc::new(predict), ..law }.with(THEN, after.words)
    }

    /// What makes `own` of what a law of this form gives.
    fn after(&self, value: &ArrayD<f64>, own: &ArrayD<f64>, form: Form) -> Option<After> {
        let (low, high) = bounds(own);
        let is_free = |x: f64| low.is_none_or(|low| x > low) && high.is_none_or(|high| x < high);
        let step = (own.len() / SAMPLE).max(1) | 1;
        let pairs: Vec<(f64, f64)> =
            value.iter().zip(own).step_by(step).filter(|(_, own)| is_free(**own)).map(|(v, o)| (*v, *o)).collect();
        if pairs.len() < 8 {
            return None;
        }
        let (of, wanted): (Vec<f64>, Vec<f64>) = pairs.into_iter().unzip();
        let bound = |x: f64| Measured::new(x, self.noise * x.abs()).number();
        let one = Number { value: 1.0, words: "1".into(), bits: 0.0 };
        let nothing = Number { value: 0.0, words: "0".into(), bits: 0.0 };
        let mut all: Vec<(Number, Number)> = vec![(one, nothing.clone())];
        let scale = factor(&of, &wanted, self.noise);
        if scale.left <= ROOM * self.noise && scale.coefficients[0].is_known() {
            let by = scale.coefficients[0];
            all.extend([by.number(), by.plain()].map(|by| (by, nothing.clone())));
        } else {
            let ones = vec![1.0; of.len()];
            if let Some(line) =
                least_squares(&[&of, &ones], &wanted, self.noise).filter(|l| l.left <= ROOM * self.noise)
            {
                let [a, b] = line.coefficients[..] else { return None };
                all.extend([(a.number(), b.number()), (a.plain(), b.plain())]);
            }
        }
        for (a, b) in all {
            let (by, plus) = (a.value, b.value);
            // A bound that nothing goes beyond but by rounding is what the values themselves have at the most.
            let beyond = |bound: Option<f64>, sign: f64| {
                bound.filter(|bound| {
                    let room = ROOM * self.noise * bound.abs();
                    let over = |(v, o): (&f64, &f64)| o == bound && sign * (by * v + plus - bound) > room;
                    value.iter().zip(own).any(over)
                })
            };
            let (low, high) = (beyond(low, -1.0), beyond(high, 1.0));
            let held = move |x: f64| match (low, high) {
                (Some(low), Some(high)) => x.max(low).min(high.max(low)),
                (Some(low), None) => x.max(low),
                (None, Some(high)) => x.min(high),
                (None, None) => x,
            };
            let f = move |x: &ArrayD<f64>| Some(x.mapv(|x| held(by * x + plus)));
            if by == 0.0 || nmse(&f(value)?, own) > self.near {
                continue;
            }
            let (held_words, held_bits) = match (low.map(bound), high.map(bound)) {
                (Some(low), Some(high)) => {
                    (Some(format!("then held between {} and {}", low.words, high.words)), low.bits + high.bits)
                }
                (Some(low), None) => (Some(format!("then at least {}", low.words)), low.bits),
                (None, Some(high)) => (Some(format!("then at most {}", high.words)), high.bits),
                (None, None) => (None, 0.0),
            };
            let mut words = Vec::new();
            words.extend((by != 1.0).then(|| format!("then times {}", a.words)));
            words.extend((plus != 0.0).then(|| format!("then plus {}", b.words)));
            words.extend(held_words);
            if words.is_empty() {
                continue;
            }
            let bits = a.bits + b.bits + held_bits;
            return Some(After { words: words.join(", "), bits, f: Arc::new(f) });
        }
        // A divisor of each row is a factor of each row itself: what another one would leave of it is no step behind.
        if form == Form::NormDivisor { None } else { self.by_position(value, own) }
    }

    /// A factor for each position.
    fn by_position(&self, value: &ArrayD<f64>, own: &ArrayD<f64>) -> Option<After> {
        let axis = self.case.axes.iter().position(|axis| axis.is_position())?;
        let (of, wanted) = (rows(value, axis), rows(own, axis));
        if of.nrows() < 4 || of.ncols() < 4 {
            return None;
        }
        let size = nmse_size(own);
        let mut all = Vec::new();
        for (of, wanted) in of.rows().into_iter().zip(wanted.rows()) {
            let (of, wanted) = (of.to_vec(), wanted.to_vec());
            let fit = factor(&of, &wanted, self.noise);
            let share = (wanted.iter().map(|x| x * x).sum::<f64>() / wanted.len() as f64).sqrt() / size;
            if fit.left * share > ROOM * self.noise {
                return None;
            }
            all.push(fit.coefficients[0]);
        }
        let name = self.case.axes[axis];
        let table = describe_table(&all, name, Some(1.0), self.case.tokens_of(name))?;
        let values = table.values;
        let f = move |x: &ArrayD<f64>| by_slice(x, axis, &values, |x, by| x * by);
        (nmse(&f(value)?, own) <= self.near).then(|| After {
            words: format!("then times {}", table.words),
            bits: table.bits + 3.0,
            f: Arc::new(f),
        })
    }
}

fn nmse_size(own: &ArrayD<f64>) -> f64 {
    (own.iter().map(|x| x * x).sum::<f64>() / own.len().max(1) as f64).sqrt().max(f64::MIN_POSITIVE)
}

/// The bounds that several values stand at exactly.
fn bounds(own: &ArrayD<f64>) -> (Option<f64>, Option<f64>) {
    let low = own.iter().copied().fold(f64::INFINITY, f64::min);
    let high = own.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let count = |bound: f64| own.iter().filter(|x| **x == bound).count();
    let is_held = |bound: f64| bound != 0.0 && count(bound) >= HELD;
    (is_held(low).then_some(low), is_held(high).then_some(high))
}

/// A row's shares of one, by its exponentials.
pub(crate) fn softmax(row: &mut [f64]) {
    let most = row.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    row.iter_mut().for_each(|x| *x = (*x - most).exp());
    let sum: f64 = row.iter().sum();
    row.iter_mut().for_each(|x| *x /= sum);
}

/// The tensor with its last axis handled row by row.
pub(crate) fn by_row(x: &ArrayD<f64>, f: impl Fn(&mut [f64])) -> ArrayD<f64> {
    let mut out = x.as_standard_layout().into_owned();
    let last = Dimension(out.ndim().saturating_sub(1));
    for mut row in out.lanes_mut(last) {
        let mut values = row.to_vec();
        f(&mut values);
        row.iter_mut().zip(values).for_each(|(x, value)| *x = value);
    }
    out
}
