//! Laws that any tensor may follow against the right one: a factor or a term for each slice, slices of other places, a function of each value, rounding.

use std::sync::Arc;

use ndarray::{Array2, ArrayD, Axis as Dimension};
use serde_json::json;

use crate::case::{Axis, Case};
use crate::describe::function::describe as describe_function;
use crate::describe::set::{Set, describe as describe_set};
use crate::describe::source::describe as describe_source;
use crate::describe::table::{bits_of, describe as describe_table};
use crate::fit::{dot, factor, least_squares, search};
use crate::identify::further_off;
use crate::identify::subject::{Subject, by_slice, from_rows, rows};
use crate::law::{Form, Law, Support};
use crate::number::{Measured, between};

/// The laws of a subject.
pub(crate) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    if subject.right.shape() != subject.own.shape() {
        return Vec::new();
    }
    let mut laws = of_view(subject, case);
    // Heads and their dimensions, as one axis of channels.
    if let [first, Axis::Head, Axis::Dim] = subject.axes[..]
        && let Some(joined) = joined(subject, first)
    {
        laws.extend(of_view(&joined, case));
    }
    if case.has_time() {
        laws.extend(orders(subject));
        laws.extend(roundings(subject));
        laws.extend(on_parts(subject, case));
    }
    laws
}

fn of_view(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = functions(subject, case);
    for axis in (0..subject.axes.len()).take_while(|_| case.has_time()) {
        laws.extend(scales(subject, case, axis));
        laws.extend(biases(subject, case, axis));
        laws.extend(sources(subject, case, axis));
        laws.extend(mixtures(subject, axis));
        laws.extend(not_cleared(subject, axis));
    }
    laws
}

/// Heads and dimensions as channels.
fn joined(subject: &Subject, first: Axis) -> Option<Subject> {
    let flat = |x: &ArrayD<f64>| {
        let rows = *x.shape().first()?;
        x.to_shape(vec![rows, x.len() / rows.max(1)]).ok().map(|x| x.into_owned())
    };
    let (right_at, output) = (subject.right_at.clone(), subject.output.clone());
    let shape_of = subject.right_at.clone();
    Some(Subject {
        axes: vec![first, Axis::Channel],
        right: flat(&subject.right)?,
        own: flat(&subject.own)?,
        right_at: Arc::new(move |case, place| flat(&right_at(case, place)?)),
        output: Arc::new(move |case, place, value| {
            let shape = shape_of(case, place)?.raw_dim();
            output(case, place, value.to_shape(shape).ok()?.into_owned())
        }),
        ..subject.clone()
    })
}

/// The parts of each axis on which the subject is wrong, where that is told by its slices.
pub(crate) fn wrong_parts(subject: &Subject, case: &Case<'_>) -> Vec<Set> {
    let wrong = further_off(&subject.right, &subject.own, subject.noise);
    let part = |(at, axis): (usize, &Axis)| {
        let meant: Vec<Option<bool>> =
            wrong.axis_iter(Dimension(at)).map(|slice| Some(slice.iter().any(|wrong| *wrong))).collect();
        describe_set(&meant, *axis, case.tokens_of(*axis))
    };
    subject.axes.iter().enumerate().map(part).collect()
}

/// Which elements lie in all parts.
pub(crate) fn inside(shape: &[usize], parts: &[Set]) -> ArrayD<bool> {
    ArrayD::from_shape_fn(shape, |at| parts.iter().enumerate().all(|(axis, part)| part.has[at[axis]]))
}

pub(crate) fn support_of(axes: &[Axis], parts: &[Set]) -> (Support, f64) {
    let (mut support, mut bits) = (Support::default(), 0.0);
    for (axis, part) in axes.iter().zip(parts) {
        support.add(*axis, part.words.clone());
        bits += part.bits;
    }
    (support, bits)
}

/// A function of each value.
#[derive(Clone)]
struct Function {
    words: String,
    bits: f64,
    parameters: Vec<(&'static str, f64)>,
    f: Arc<dyn Fn(f64) -> f64 + Send + Sync>,
}

fn functions(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let parts = wrong_parts(subject, case);
    let whole: Vec<Set> =
        parts.iter().map(|part| Set { words: None, bits: 0.0, has: vec![true; part.has.len()] }).collect();
    let mut laws = Vec::new();
    let is_whole = parts.iter().all(Set::is_all);
    for parts in std::iter::once(&whole).chain((!is_whole).then_some(&parts)) {
        let mask = inside(subject.right.shape(), parts);
        let of = |x: &ArrayD<f64>| x.iter().zip(&mask).filter(|(_, is)| **is).map(|(x, _)| *x).collect::<Vec<f64>>();
        let (right, own) = (of(&subject.right), of(&subject.own));
        let (support, bits) = support_of(&subject.axes, parts);
        for function in functions_of(&right, &own, subject.noise) {
            let words = format!("{} is {}{}", subject.label, function.words, support.said());
            let (f, mask) = (function.f.clone(), mask.clone());
            let is_everywhere = mask.iter().all(|is| *is);
            let made = move |right: &ArrayD<f64>| {
                // Of all values it is one of other steps too.
                if is_everywhere {
                    return Some(right.mapv(|x| f(x)));
                }
                let mut out = right.clone();
                if mask.shape() != right.shape() {
                    return None;
                }
                out.iter_mut().zip(&mask).filter(|(_, is)| **is).for_each(|(x, _)| *x = f(*x));
                Some(out)
            };
            if made(&subject.right).is_some_and(|value| subject.is_near(&value)) {
                let mut law = subject.law(Form::OutputFunction, words, function.bits + bits, made).on(support.clone());
                for (name, value) in function.parameters {
                    law = law.with(name, value);
                }
                laws.push(law);
            }
        }
    }
    laws
}

/// Functions that bring one list of values to another.
fn functions_of(right: &[f64], own: &[f64], noise: f64) -> Vec<Function> {
    let n = right.len();
    if n < 3 {
        return Vec::new();
    }
    let mut all = Vec::new();
    let mut offer =
        |words: String, bits: f64, parameters: &[(&'static str, f64)], f: Arc<dyn Fn(f64) -> f64 + Send + Sync>| {
            all.push(Function { words, bits, parameters: parameters.to_vec(), f })
        };
    offer("zero".into(), 3.0, &[("scale", 0.0)], Arc::new(|_| 0.0));
    offer("the size of the right one".into(), 4.0, &[], Arc::new(f64::abs));
    offer("the right one where that is positive, else zero".into(), 4.0, &[], Arc::new(|x| x.max(0.0)));
    let scale = factor(right, own, noise);
    if let [by] = scale.coefficients[..]
        && by.is_known()
    {
        for number in [by.number(), by.plain()] {
            let value = number.value;
            let words = if value == -1.0 {
                "the right one with the other sign".into()
            } else {
                format!("{} times the right one", number.words)
            };
            offer(words, number.bits, &[("scale", value)], Arc::new(move |x| value * x));
        }
    }
    let ones = vec![1.0; n];
    if let Some(line) = least_squares(&[right, &ones], own, noise)
        && let [a, b] = line.coefficients[..]
        && !b.may_be(0.0)
    {
        for (a, b) in [(a.number(), b.number()), (a.plain(), b.plain())] {
            let (by, plus) = (a.value, b.value);
            let words = match by == 1.0 {
                true => format!("the right one plus {}", b.words),
                false => format!("{} times the right one, plus {}", a.words, b.words),
            };
            offer(words, a.bits + b.bits, &[("scale", by), ("offset", plus)], Arc::new(move |x| by * x + plus));
        }
    }
    let extreme = |f: fn(f64, f64) -> f64, from: f64| own.iter().copied().fold(from, f);
    let (low, high) = (extreme(f64::min, f64::INFINITY), extreme(f64::max, f64::NEG_INFINITY));
    let bound = |x: f64| Measured::new(x, noise * x.abs()).number();
    let (least, most) = (bound(low), bound(high));
    let (l, h) = (least.value, most.value);
    offer(
        format!("the right one, at most {}", most.words),
        most.bits + 3.0,
        &[("max", h)],
        Arc::new(move |x| x.min(h)),
    );
    offer(
        format!("the right one, at least {}", least.words),
        least.bits + 3.0,
        &[("min", l)],
        Arc::new(move |x| x.max(l)),
    );
    let words = format!("the right one, held between {} and {}", least.words, most.words);
    offer(words, least.bits + most.bits + 3.0, &[("min", l), ("max", h)], Arc::new(move |x| x.max(l).min(h)));
    let size = right.iter().fold(0.0f64, |most, x| most.max(x.abs()));
    if size > 0.0 {
        let left = |f: &dyn Fn(f64) -> f64| right.iter().zip(own).map(|(r, o)| (f(*r) - o).powi(2)).sum::<f64>();
        let (cap, _) = search(0.05 * size, 100.0 * size, 61, true, |c| left(&|x| c * (x / c).tanh()));
        for number in [Measured::new(cap, 10.0 * noise * cap).number(), Measured::new(cap, 0.0).plain()] {
            let c = number.value;
            let words = format!("{c} tanh(x/{c}) of the right one", c = number.words);
            offer(words, number.bits + 4.0, &[("cap", c)], Arc::new(move |x| c * (x / c).tanh()));
        }
        let (power, _) = search(0.2, 4.0, 61, true, |p| {
            let by = right.iter().map(|r| r.signum() * r.abs().powf(p)).collect::<Vec<_>>();
            factor(&by, own, noise).left
        });
        let powers: Vec<f64> = right.iter().map(|r| r.signum() * r.abs().powf(power)).collect();
        let by = factor(&powers, own, noise).coefficients[0];
        if (power - 1.0).abs() > 1e-3 && by.is_known() {
            let (p, c) = (Measured::new(power, 30.0 * noise).number(), by.number());
            let (e, by) = (p.value, c.value);
            let words = format!("{} sign(x) |x|^{} of the right one", c.words, p.words);
            offer(
                words,
                p.bits + c.bits + 4.0,
                &[("power", e), ("scale", by)],
                Arc::new(move |x| by * x.signum() * x.abs().powf(e)),
            );
        }
    }
    let zero: Vec<f64> =
        right.iter().zip(own).filter(|(r, o)| **o == 0.0 && **r != 0.0).map(|(r, _)| r.abs()).collect();
    let kept = || right.iter().zip(own).filter(|(_, o)| **o != 0.0).map(|(r, _)| r.abs());
    if !zero.is_empty() && kept().next().is_some() {
        let (top, low) = (zero.iter().copied().fold(0.0, f64::max), kept().fold(f64::INFINITY, f64::min));
        if top < low {
            let t = between(top, low);
            offer(
                format!("the right one, zero where that is below {t} in size"),
                26.0,
                &[("threshold", t)],
                Arc::new(move |x| if x.abs() < t { 0.0 } else { x }),
            );
        }
        let (low, top) = (zero.iter().copied().fold(f64::INFINITY, f64::min), kept().fold(0.0, f64::max));
        if top < low {
            let t = between(top, low);
            offer(
                format!("the right one, zero where that is above {t} in size"),
                26.0,
                &[("threshold", t)],
                Arc::new(move |x| if x.abs() > t { 0.0 } else { x }),
            );
        }
    }
    let step = n.div_ceil(SAMPLED).max(1);
    let sample = |x: &[f64]| x.iter().copied().step_by(step).collect::<Vec<f64>>();
    let (of, wanted) = (sample(right), sample(own));
    let spread = (dot(&wanted, &wanted) / wanted.len().max(1) as f64).sqrt();
    let measured: Vec<Measured> = wanted.iter().map(|o| Measured::new(*o, noise * (o.abs() + spread))).collect();
    if let Some(function) = describe_function(&of, &measured) {
        offer(format!("{} (x: the right one)", function.of("x")), function.bits + 3.0, &[], function.f);
    }
    all
}

/// Values of a list that functions are looked for on.
const SAMPLED: usize = 2048;

/// What a slice is to the same slice of the right tensor.
struct Factors {
    numbers: Vec<Measured>,
    /// What is left in each slice, as a share of the tensor's mean slice.
    left: Vec<f64>,
}

fn factors(subject: &Subject, right: &Array2<f64>, own: &Array2<f64>) -> Factors {
    let size = (own.iter().map(|x| x * x).sum::<f64>() / own.nrows().max(1) as f64).sqrt().max(f64::MIN_POSITIVE);
    let (mut numbers, mut left) = (Vec::new(), Vec::new());
    for (right, own) in right.rows().into_iter().zip(own.rows()) {
        let (right, own) = (right.to_vec(), own.to_vec());
        let fit = factor(&right, &own, subject.noise);
        let own_size = dot(&own, &own).sqrt();
        left.push(fit.left * own_size / size);
        numbers.push(fit.coefficients[0]);
    }
    Factors { numbers, left }
}

impl Subject {
    /// Whether what is left in slices is rounding.
    fn is_rounding(&self, left: &[f64]) -> bool {
        let mean = left.iter().map(|x| x * x).sum::<f64>() / left.len().max(1) as f64;
        mean.sqrt() <= SLICE_ROOM * self.noise
    }
}

/// Errors of rounding's size that slices may be left with before the proof.
const SLICE_ROOM: f64 = 5.0;

/// Factors that are a vector of the model, or one over it.
fn by_vector(subject: &Subject, case: &Case<'_>, axis: usize, factors: &[Measured]) -> Option<Law> {
    let all = case.operation.vectors(case.fitted, factors.len());
    type Way = (&'static str, f64, fn(f64) -> f64);
    let ways: [Way; 3] = [("times ", 8.0, |v| v), ("times 1 plus ", 10.0, |v| 1.0 + v), ("over ", 10.0, |v| 1.0 / v)];
    for (known, vector) in all {
        for (words, bits, f) in ways {
            if !factors.iter().zip(&vector).all(|(m, v)| m.may_be(f(*v))) {
                continue;
            }
            let said = format!("{} is the right one {words}{known}", subject.label);
            let name = known.clone();
            let law = subject.law_of_place(Form::OutputScale, said, bits, move |case, at, right| {
                let all = case.operation.vectors(at, right.shape().get(axis).copied()?);
                let (_, vector) = all.into_iter().find(|(other, _)| *other == name)?;
                by_slice(right, axis, &vector, |x, by| x * f(by))
            });
            return Some(law.with("by", known));
        }
    }
    None
}

/// A factor for each slice.
fn scales(subject: &Subject, case: &Case<'_>, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    if right.ncols() < 3 {
        return Vec::new();
    }
    let of = factors(subject, &right, &own);
    if !subject.is_rounding(&of.left) {
        return Vec::new();
    }
    let made = move |numbers: Vec<f64>| move |right: &ArrayD<f64>| by_slice(right, axis, &numbers, |x, by| x * by);
    match describe_table(&of.numbers, name, Some(1.0), case.tokens_of(name)) {
        Some(table) => {
            let words = format!("{} is the right one times {}", subject.label, table.words);
            let law = subject.law(Form::OutputScale, words, table.bits + 4.0, made(table.values));
            vec![law.with("factor", table.words).with("by", name.name()).on(Subject::support(name, table.part))]
        }
        None if bits_of(&of.numbers) < 2.0 * own.len() as f64 => {
            if let Some(law) = by_vector(subject, case, axis, &of.numbers) {
                return vec![law];
            }
            let words = format!("{} is the right one times a factor for each {}", subject.label, name.name());
            let listed: Vec<f64> = of.numbers.iter().map(|m| m.value).collect();
            let values = of.numbers.iter().map(|m| if m.is_known() { m.value } else { 1.0 }).collect();
            let law = subject.law(Form::OutputScale, words, bits_of(&of.numbers), made(values)).table();
            vec![law.with("by", name.name()).with("factors", json!(listed))]
        }
        None => Vec::new(),
    }
}

/// A statistic of a row, and what it is called.
pub(crate) type OfRow = (&'static str, fn(&[f64]) -> f64);

/// Statistics of a row that may be added to it.
const STATISTICS: [OfRow; 7] = [
    ("mean", |row| row.iter().sum::<f64>() / row.len() as f64),
    ("mean size", |row| row.iter().map(|x| x.abs()).sum::<f64>() / row.len() as f64),
    ("root mean square", |row| (dot(row, row) / row.len() as f64).sqrt()),
    ("largest value", |row| row.iter().copied().fold(f64::NEG_INFINITY, f64::max)),
    ("smallest value", |row| row.iter().copied().fold(f64::INFINITY, f64::min)),
    ("first value", |row| row[0]),
    ("last value", |row| row[row.len() - 1]),
];

/// A term for each slice.
fn biases(subject: &Subject, case: &Case<'_>, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    let width = right.ncols();
    if width < 3 {
        return Vec::new();
    }
    let size = (own.iter().map(|x| x * x).sum::<f64>() / own.len() as f64).sqrt();
    let (mut numbers, mut left) = (Vec::new(), Vec::new());
    for (right, own) in right.rows().into_iter().zip(own.rows()) {
        let off: Vec<f64> = own.iter().zip(right).map(|(own, right)| own - right).collect();
        let mean = off.iter().sum::<f64>() / width as f64;
        let rest = (off.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64).sqrt();
        numbers.push(Measured::new(mean, rest.max(subject.noise * size) / (width as f64).sqrt()));
        left.push(rest / size.max(f64::MIN_POSITIVE));
    }
    if !subject.is_rounding(&left) || numbers.iter().all(|m| m.may_be(0.0)) {
        return Vec::new();
    }
    let mut laws = Vec::new();
    let means: Vec<f64> = numbers.iter().map(|m| m.value).collect();
    for (statistic, f) in STATISTICS {
        let of: Vec<f64> = right.rows().into_iter().map(|row| f(&row.to_vec())).collect();
        let by = factor(&of, &means, subject.noise).coefficients[0];
        let number = by.number();
        let holds =
            numbers.iter().zip(&of).all(|(m, of)| m.may_be(number.value * of) || m.plus(-by.value * of).may_be(0.0));
        if by.is_known() && !by.may_be(0.0) && holds {
            let words = format!(
                "{} is the right one plus {} times the {statistic} of its {}",
                subject.label,
                number.words,
                name.name()
            );
            let by = number.value;
            let made = move |right: &ArrayD<f64>| {
                let numbers: Vec<f64> = rows(right, axis).rows().into_iter().map(|row| by * f(&row.to_vec())).collect();
                by_slice(right, axis, &numbers, |x, plus| x + plus)
            };
            laws.push(
                subject
                    .law(Form::OutputBias, words, 8.0 + number.bits, made)
                    .with("statistic", statistic)
                    .with("scale", by),
            );
        }
    }
    if matches!(name, Axis::Channel | Axis::Dim) {
        laws.extend(known_biases(subject, case, axis, &numbers));
    }
    let made = move |numbers: Vec<f64>| move |right: &ArrayD<f64>| by_slice(right, axis, &numbers, |x, plus| x + plus);
    match describe_table(&numbers, name, Some(0.0), case.tokens_of(name)) {
        Some(table) => {
            let words = format!("{} is the right one plus {}", subject.label, table.words);
            let law = subject.law(Form::OutputBias, words, table.bits + 5.0, made(table.values));
            laws.push(law.with("bias", table.words).with("by", name.name()).on(Subject::support(name, table.part)));
        }
        None if bits_of(&numbers) < 2.0 * own.len() as f64 => {
            let words = format!("{} is the right one plus a number for each {}", subject.label, name.name());
            let law = subject.law(Form::OutputBias, words, bits_of(&numbers), made(means.clone())).table();
            laws.push(law.with("by", name.name()).with("biases", json!(means)));
        }
        None => {}
    }
    laws
}

/// Vectors of the model, added.
fn known_biases(subject: &Subject, case: &Case<'_>, axis: usize, numbers: &[Measured]) -> Vec<Law> {
    let means: Vec<f64> = numbers.iter().map(|m| m.value).collect();
    let mut laws = Vec::new();
    for (called, vector) in case.operation.vectors(case.fitted, numbers.len()) {
        let by = factor(&vector, &means, subject.noise).coefficients[0];
        let number = by.number();
        if !by.is_known() || !numbers.iter().zip(&vector).all(|(m, v)| m.may_be(number.value * v)) {
            continue;
        }
        let times = if number.value == 1.0 { String::new() } else { format!("{} times ", number.words) };
        let words = format!("{} is the right one plus {times}{called}", subject.label);
        let (by, name) = (number.value, called.clone());
        let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
            let all = case.operation.vectors(place, right.shape()[axis]);
            let (_, vector) = all.into_iter().find(|(other, _)| *other == name)?;
            by_slice(right, axis, &vector, |x, plus| x + by * plus)
        };
        laws.push(
            subject
                .law_of_place(Form::OutputBias, words, 10.0 + number.bits, made)
                .with("bias", called)
                .with("scale", by),
        );
    }
    laws.extend(read_biases(subject, case, axis, numbers));
    laws
}

/// A vector of the model that is added as it is, but read otherwise: in another order, or its first part repeated.
fn read_biases(subject: &Subject, case: &Case<'_>, axis: usize, numbers: &[Measured]) -> Vec<Law> {
    let n = numbers.len();
    let mut ways: Vec<(String, Vec<usize>)> = vec![
        ("read from its end".into(), (0..n).rev().collect()),
        ("read one further on, around the end".into(), (0..n).map(|i| (i + 1) % n).collect()),
        ("read one before, around the end".into(), (0..n).map(|i| (i + n - 1) % n).collect()),
        ("its neighbours exchanged".into(), (0..n).map(|i| if (i ^ 1) < n { i ^ 1 } else { i }).collect()),
    ];
    for part in (1..n).filter(|part| n.is_multiple_of(*part) && n / part <= 128) {
        ways.push((
            format!("its first {part} repeated (that of head 0, of {part} channels)"),
            (0..n).map(|i| i % part).collect(),
        ));
        ways.push((
            format!("its parts of {part} in reverse order"),
            (0..n).map(|i| (n / part - 1 - i / part) * part + i % part).collect(),
        ));
    }
    let mut laws = Vec::new();
    for (called, vector) in case.operation.vectors(case.fitted, n) {
        for (words, from) in &ways {
            // What is added in all is what the vector is, read so.
            let fits = numbers.iter().enumerate().all(|(i, m)| m.plus(vector[i]).may_be(vector[from[i]]));
            if !fits || from.iter().enumerate().all(|(i, from)| vector[i] == vector[*from]) {
                continue;
            }
            let (name, from) = (called.clone(), from.clone());
            let made = move |case: &Case<'_>, place: usize, right: &ArrayD<f64>| {
                let all = case.operation.vectors(place, right.shape()[axis]);
                let (_, vector) = all.into_iter().find(|(other, _)| *other == name)?;
                let off: Vec<f64> = vector.iter().zip(&from).map(|(v, from)| vector[*from] - v).collect();
                by_slice(right, axis, &off, |x, plus| x + plus)
            };
            let said = format!("{} has {called} {words}", subject.label);
            laws.push(subject.law_of_place(Form::OutputBias, said, 12.0, made).with("bias", called.clone()));
        }
    }
    laws
}

/// Slices that are looked for among all others, at most.
const SOUGHT: usize = 512;
/// Slices of which all are looked for.
const ALL_SOUGHT: usize = 1024;

/// Slices that stand elsewhere.
fn sources(subject: &Subject, case: &Case<'_>, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    let (n, width) = right.dim();
    if width < 3 || n < 2 {
        return Vec::new();
    }
    let of = factors(subject, &right, &own);
    let lengths = |x: &Array2<f64>| x.rows().into_iter().map(|row| row.dot(&row).sqrt()).collect::<Vec<_>>();
    let (length, own_length) = (lengths(&right), lengths(&own));
    let mean = (own_length.iter().map(|x| x * x).sum::<f64>() / n as f64).sqrt();
    let is_own = |i: usize| of.left[i] <= SLICE_ROOM * subject.noise;
    let nothing = |i: usize| own_length[i] <= 1e-9 * mean;
    let mut from: Vec<Option<usize>> = (0..n).map(|i| (is_own(i) && !nothing(i)).then_some(i)).collect();
    let mut by: Vec<Measured> =
        (0..n).map(|i| if nothing(i) { Measured::new(0.0, 0.0) } else { of.numbers[i] }).collect();
    let moved: Vec<usize> = (0..n).filter(|&i| !is_own(i) && !nothing(i)).collect();
    if moved.is_empty() {
        return Vec::new();
    }
    let step = if n > ALL_SOUGHT { moved.len().div_ceil(SOUGHT) } else { 1 };
    let mut rest = 0.0;
    let sought: Vec<usize> = moved.iter().copied().step_by(step).collect();
    for i in &moved {
        by[*i] = Measured::UNKNOWN;
    }
    for &i in &sought {
        let own = own.row(i);
        let share = |j: usize| if length[j] > 0.0 { (right.row(j).dot(&own) / length[j]).abs() } else { 0.0 };
        let Some(best) = (0..n).max_by(|&a, &b| share(a).total_cmp(&share(b))) else { continue };
        let fit = factor(&right.row(best).to_vec(), &own.to_vec(), subject.noise);
        let left = fit.left * own_length[i] / mean;
        if left > 10.0 * SLICE_ROOM * subject.noise {
            return Vec::new();
        }
        rest += left * left;
        (from[i], by[i]) = (Some(best), fit.coefficients[0]);
    }
    if (rest / sought.len().max(1) as f64).sqrt() > SLICE_ROOM * subject.noise {
        return Vec::new();
    }
    let source = describe_source(&from, n, name);
    let Some(table) = describe_table(&by, name, Some(1.0), case.tokens_of(name)) else { return Vec::new() };
    if source.is_itself {
        return Vec::new();
    }
    let times = if table.words == "1" { String::new() } else { format!(", times {}", table.words) };
    let words = format!("{} of each {} i is that of {}{times}", subject.label, name.name(), source.words);
    let bits = source.bits + if table.words == "1" { 0.0 } else { table.bits };
    let (from, values) = (source.from, table.values);
    let made = move |right: &ArrayD<f64>| {
        if right.shape().get(axis) != Some(&from.len()) {
            return None;
        }
        by_slice(&right.select(Dimension(axis), &from), axis, &values, |x, by| x * by)
    };
    vec![subject.law(Form::OutputSource, words, bits, made).with("source", source.words).with("by", name.name())]
}

/// Each slice mixed with its neighbours.
fn mixtures(subject: &Subject, axis: usize) -> Vec<Law> {
    let name = subject.axes[axis];
    let (right, own) = (rows(&subject.right, axis), rows(&subject.own, axis));
    let (n, width) = right.dim();
    if n < 4 || n * width > 1 << 22 {
        return Vec::new();
    }
    let mut laws = Vec::new();
    for (offsets, called) in
        [(&[0i64, -1][..], "the one before"), (&[0, 1], "the next"), (&[0, -1, 1], "both neighbours")]
    {
        let inner: Vec<usize> = (1..n - 1).collect();
        let column = |by: i64| -> Vec<f64> {
            inner.iter().flat_map(|&i| right.row((i as i64 + by) as usize).to_vec()).collect()
        };
        let columns: Vec<Vec<f64>> = offsets.iter().map(|by| column(*by)).collect();
        let wanted: Vec<f64> = inner.iter().flat_map(|&i| own.row(i).to_vec()).collect();
        let columns: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let Some(fit) = least_squares(&columns, &wanted, subject.noise) else { continue };
        if fit.left > SLICE_ROOM * subject.noise || fit.coefficients.iter().any(|c| c.may_be(0.0)) {
            continue;
        }
        let numbers: Vec<_> = fit.coefficients.iter().map(Measured::number).collect();
        let bits: f64 = 8.0 + numbers.iter().map(|number| number.bits).sum::<f64>();
        for (edge, at_edge) in
            ["the end slice again", "nothing", "the other end", "the right one"].into_iter().enumerate()
        {
            let terms: Vec<(f64, i64)> = numbers.iter().zip(offsets).map(|(number, by)| (number.value, *by)).collect();
            let said: Vec<String> = numbers
                .iter()
                .zip(offsets)
                .map(|(number, by)| {
                    format!("{} times [i{}]", number.words, if *by == 0 { String::new() } else { format!("{by:+}") })
                })
                .collect();
            let words = format!(
                "{} of each {} i is mixed with {called}: {} (beyond the ends: {at_edge})",
                subject.label,
                name.name(),
                said.join(" + ")
            );
            let made = move |right: &ArrayD<f64>| {
                let all = rows(right, axis);
                let n = all.nrows() as i64;
                let mut out = Array2::zeros(all.dim());
                for i in 0..n {
                    let beyond = terms.iter().any(|(_, by)| !(0..n).contains(&(i + by)));
                    if edge == 3 && beyond {
                        out.row_mut(i as usize).assign(&all.row(i as usize));
                        continue;
                    }
                    for (c, by) in &terms {
                        let at = i + by;
                        let from = match (0..n).contains(&at) {
                            true => at,
                            false if edge == 1 => continue,
                            false if edge == 2 => at.rem_euclid(n),
                            false => at.clamp(0, n - 1),
                        };
                        out.row_mut(i as usize).scaled_add(*c, &all.row(from as usize));
                    }
                }
                from_rows(out, right.shape(), axis)
            };
            if made(&subject.right).is_some_and(|value| subject.is_near(&value)) {
                let coefficients: Vec<f64> = numbers.iter().map(|number| number.value).collect();
                let law = subject.law(Form::OutputMix, words, bits, made);
                laws.push(
                    law.with("coefficients", json!(coefficients))
                        .with("offsets", json!(offsets))
                        .with("by", name.name()),
                );
            }
        }
    }
    laws
}

/// Each slice with those before it in its block: a sum that is not cleared in between.
fn not_cleared(subject: &Subject, axis: usize) -> Option<Law> {
    let name = subject.axes[axis].name();
    let n = subject.right.shape()[axis];
    let blocks = (1..=10).map(|power| 1 << power).filter(|block| *block < n).chain([n]);
    let sums = move |right: &ArrayD<f64>, block: usize| -> Option<ArrayD<f64>> {
        let mut all = rows(right, axis);
        for i in (0..all.nrows()).filter(|i| i % block != 0) {
            let before = all.row(i - 1).to_owned();
            all.row_mut(i).scaled_add(1.0, &before);
        }
        from_rows(all, right.shape(), axis)
    };
    let is_it = |block: &usize| sums(&subject.right, *block).is_some_and(|value| subject.is_near(&value));
    let block = blocks.into_iter().filter(|_| n > 1).find(is_it)?;
    let of = if block == n { format!("all {name}s") } else { format!("the {name}s of its block of {block}") };
    let words = format!("{} of each {name} has those of {of} before it added: the sum is not cleared", subject.label);
    let law = subject.law(Form::OutputMix, words, 9.0, move |right| sums(right, block));
    Some(law.with("block", block).with("by", name))
}

/// The same numbers in another order of axes.
fn orders(subject: &Subject) -> Vec<Law> {
    let rank = subject.axes.len();
    let all: &[&[usize]] = match rank {
        2 => &[&[1, 0]],
        3 => &[&[0, 2, 1], &[1, 0, 2], &[1, 2, 0], &[2, 0, 1], &[2, 1, 0]],
        _ => &[],
    };
    let mut laws = Vec::new();
    for &order in all {
        let said = order.iter().map(|&at| subject.axes[at].name()).collect::<Vec<_>>().join(", ");
        for is_read in [false, true] {
            let made = move |right: &ArrayD<f64>| -> Option<ArrayD<f64>> {
                let shape = right.shape().to_vec();
                if is_read {
                    let swapped: Vec<usize> = order.iter().map(|&at| shape[at]).collect();
                    let mut back = vec![0; order.len()];
                    order.iter().enumerate().for_each(|(to, &at)| back[at] = to);
                    let read = right.to_shape(swapped).ok()?.into_owned();
                    return Some(read.permuted_axes(back).as_standard_layout().into_owned());
                }
                let written = right.clone().permuted_axes(order.to_vec()).as_standard_layout().into_owned();
                written.to_shape(shape).ok().map(|x| x.into_owned())
            };
            if !made(&subject.right).is_some_and(|value| subject.is_near(&value)) {
                continue;
            }
            let words = match is_read {
                false => format!("{} is written in the order [{said}], and read as if it were not", subject.label),
                true => format!("{} is read in the order [{said}]", subject.label),
            };
            laws.push(subject.law(Form::OutputAxes, words, 8.0, made).with("order", said.clone()));
        }
    }
    laws
}

/// The right value, rounded.
fn roundings(subject: &Subject) -> Vec<Law> {
    let mut laws = Vec::new();
    let mut offer = |words: String, bits: f64, f: Whole| {
        if f(&subject.right).is_some_and(|value| nearer(subject, &value)) {
            let made = move |right: &ArrayD<f64>| f(right);
            laws.push(subject.law(Form::OutputRounding, format!("{} is {words}", subject.label), bits, made));
        }
    };
    for (words, bits, f) in roundings_of() {
        offer(words, bits, f);
    }
    laws
}

/// Rounding is proved at its own size: what it leaves must be much less than what it takes away.
fn nearer(subject: &Subject, value: &ArrayD<f64>) -> bool {
    let (left, before) = (crate::fit::nmse(value, &subject.own), crate::fit::nmse(&subject.right, &subject.own));
    left <= (1e-2 * before).max(30.0 * subject.noise * subject.noise) && before > 30.0 * subject.noise * subject.noise
}

/// A function of a whole tensor.
pub(crate) type Whole = Arc<dyn Fn(&ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>;

/// Ways to round a tensor, with their words and prices.
pub(crate) fn roundings_of() -> Vec<(String, f64, Whole)> {
    let mut all: Vec<(String, f64, Whole)> = Vec::new();
    for digits in 3..=17i32 {
        for cut in [false, true] {
            let words = format!("{} to {digits} binary digits", if cut { "cut" } else { "rounded" });
            let f = move |x: f64| {
                if x == 0.0 || !x.is_finite() {
                    return x;
                }
                let scale = 2f64.powi(digits - 1 - x.abs().log2().floor() as i32);
                (if cut { (x * scale).trunc() } else { (x * scale).round_ties_even() }) / scale
            };
            all.push((words, 9.0, Arc::new(move |x| Some(x.mapv(f)))));
        }
    }
    for block in [None, Some(16), Some(32), Some(64), Some(128), Some(256)] {
        for levels in [127.0, 128.0, 7.0, 8.0, 15.0, 31.0, 63.0] {
            let of = block.map_or_else(|| "its row".to_owned(), |block: usize| format!("its block of {block}"));
            let words = format!("rounded to whole steps of 1/{levels} of the largest size in {of}");
            all.push((words, 11.0, Arc::new(move |x| in_blocks(x, block, levels))));
        }
    }
    all
}

fn in_blocks(x: &ArrayD<f64>, block: Option<usize>, levels: f64) -> Option<ArrayD<f64>> {
    let row = *x.shape().last()?;
    let block = block.unwrap_or(row);
    if block == 0 || !row.is_multiple_of(block) {
        return None;
    }
    let mut values: Vec<f64> = x.iter().copied().collect();
    for block in values.chunks_mut(block) {
        let step = block.iter().fold(0.0f64, |most, x| most.max(x.abs())) / levels;
        if step > 0.0 {
            block.iter_mut().for_each(|x| *x = (*x / step).round_ties_even() * step);
        }
    }
    ArrayD::from_shape_vec(x.raw_dim(), values).ok()
}

/// Sources and orders within the wrong slices of one axis.
fn on_parts(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = Vec::new();
    for (at, part) in wrong_parts(subject, case).into_iter().enumerate() {
        let inside: Vec<usize> = (0..part.has.len()).filter(|&i| part.has[i]).collect();
        if part.is_all() || inside.len() < 2 || part.bits > MOST_OF_A_PART {
            continue;
        }
        let axis = Dimension(at);
        let (indices, right_at, output) = (inside.clone(), subject.right_at.clone(), subject.output.clone());
        let (whole_at, put_at) = (subject.right_at.clone(), inside.clone());
        let inner = Subject {
            bits: subject.bits + part.bits + 2.0,
            right: subject.right.select(axis, &inside),
            own: subject.own.select(axis, &inside),
            right_at: Arc::new(move |case, place| {
                let right = right_at(case, place)?;
                indices.iter().all(|&i| i < right.shape()[at]).then(|| right.select(axis, &indices))
            }),
            output: Arc::new(move |case, place, value| {
                let mut whole = whole_at(case, place)?;
                for (from, &to) in put_at.iter().enumerate() {
                    whole.index_axis_mut(axis, to).assign(&value.index_axis(axis, from));
                }
                output(case, place, whole)
            }),
            ..subject.clone()
        };
        let others = (0..subject.axes.len()).filter(|&other| other != at);
        let found = others.flat_map(|other| [sources(&inner, case, other), mixtures(&inner, other)].concat());
        let support = Subject::support(subject.axes[at], part.words.clone());
        let added: Vec<Law> = (0..subject.axes.len())
            .filter(|&other| other != at)
            .flat_map(|other| biases(&inner, case, other))
            .collect();
        laws.extend(found.chain(orders(&inner)).chain(added).map(|law| {
            let words = format!("{}{}", law.words, support.said());
            Law { words, ..law }.on(support.clone())
        }));
    }
    laws
}

/// A part that is dearer to say is no part.
const MOST_OF_A_PART: f64 = 40.0;
