//! An operand that is read otherwise: from another position, in another order of its channels, or by another function of its values. Any operation.

use std::sync::Arc;

use ndarray::{ArrayD, Axis as Dimension};

use crate::case::{Axis, Case, Kind};
use crate::describe::choice;
use crate::describe::function::fitting;
use crate::fit::search;
use crate::identify::after::{Offers, by_row, softmax};
use crate::identify::aliased::aliased;
use crate::identify::first_along;
use crate::identify::output::roundings::{digits, roundings_of};
use crate::identify::scales::{self, Reading};
use crate::identify::statistics::{SIZES, Statistic, largest, largest_size, mean, root_mean_square};
use crate::identify::subject::by_slice;
use crate::law::{Form, Law};
use crate::number::Measured;

/// Ways to read a tensor of this shape, with their words and prices.
pub(crate) fn readings(shape: &[usize]) -> Vec<(String, f64, Reading)> {
    let mut all: Vec<(String, f64, Reading)> =
        beside(shape).into_iter().map(|(words, reading)| (words, 5.0, reading)).collect();
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
    of_rows("over the length of its row", |row| over(row, |row| row.iter().map(|x| x * x).sum::<f64>().sqrt()));
    of_rows("over the largest size in its row", |row| {
        over(row, largest_size);
    });
    of_rows("over the sum of its row", |row| over(row, |row| row.iter().sum()));
    of_rows("less the largest of its row", |row| {
        let most = largest(row);
        row.iter_mut().for_each(|x| *x -= most);
    });
    of_rows("held within plus and minus the largest of its row (with its sign)", |row| {
        let most = row.iter().copied().fold(0.0, f64::max);
        row.iter_mut().for_each(|x| *x = x.clamp(-most, most));
    });
    of_rows("held within plus and minus the size of the smallest of its row (with its sign)", |row| {
        let most = -row.iter().copied().fold(0.0, f64::min);
        row.iter_mut().for_each(|x| *x = x.clamp(-most, most));
    });
    of_rows("through a log softmax of its row", |row| {
        let most = largest(row);
        let all = most + row.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
        row.iter_mut().for_each(|x| *x -= all);
    });
    of_rows("through a softmax of its row", softmax);
    let rank = shape.len();
    for (axis, &n) in shape.iter().enumerate() {
        let name = name_of(axis, rank);
        if n < 2 {
            continue;
        }
        let mut order = |words: String, of: Vec<Option<usize>>| {
            all.push((words, 5.0, Arc::new(move |x: &ArrayD<f64>| picked(x, axis, &of))));
        };
        let some = |f: &dyn Fn(usize) -> usize| (0..n).map(|i| Some(f(i))).collect::<Vec<_>>();
        for block in [2, 4, 8, 16] {
            if block < n {
                order(format!("of the first of each {block} {name}s"), some(&|i| i / block * block));
                order(
                    format!("of the first {block} {name}s again and again: of {name} i mod {block}"),
                    some(&|i| i % block),
                );
            }
            // The last block is an old one.
            if axis == 0 && n > block {
                let begin = (n - 1) / block * block;
                order(
                    format!("of position i-{block} from position {begin} on"),
                    some(&|i| if i >= begin { i - block } else { i }),
                );
                order(
                    format!("of position i-{begin} from position {begin} on"),
                    some(&|i| if i >= begin { i - begin } else { i }),
                );
            }
        }
        if axis > 0 {
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

/// What one of an axis of an operand is called.
fn name_of(axis: usize, rank: usize) -> &'static str {
    match (axis, rank) {
        (0, _) => "position",
        (1, 3) => "head",
        _ => "channel",
    }
}

/// Readings that may also be added to a tensor of this shape: of what stands beside each number, and of its row.
pub(crate) fn beside(shape: &[usize]) -> Vec<(String, Reading)> {
    let mut all: Vec<(String, Reading)> = Vec::new();
    let statistics: [Statistic; 3] = [
        ("averaged over its row", mean),
        ("as the root mean square of its row", root_mean_square),
        ("as the largest of its row", largest),
    ];
    for (words, f) in statistics {
        let made = move |x: &ArrayD<f64>| Some(by_row(x, |row| row.fill(f(row))));
        all.push((words.into(), Arc::new(made)));
    }
    all.push(("over the root mean square of its row".into(), Arc::new(|x| Some(by_row(x, over_root_mean_square)))));
    for (axis, &n) in shape.iter().enumerate().filter(|(_, n)| **n > 1) {
        let name = name_of(axis, shape.len());
        let mut order = |words: String, of: &dyn Fn(usize) -> Option<usize>| {
            let from: Vec<Option<usize>> = (0..n).map(of).collect();
            all.push((words, Arc::new(move |x: &ArrayD<f64>| picked(x, axis, &from))));
        };
        order(format!("with its {name}s in reverse"), &|i| Some(n - 1 - i));
        order(format!("of {name} i-1, around the end"), &|i| Some((i + n - 1) % n));
        order(format!("of {name} i+1, around the end"), &|i| Some((i + 1) % n));
        if axis == 0 {
            order("of the position before (the first: itself)".into(), &|i| Some(i.saturating_sub(1)));
            order("of the position before (nothing before the first)".into(), &|i| i.checked_sub(1));
            order("of the next position (the last: itself)".into(), &|i| Some((i + 1).min(n - 1)));
            order("of the next position (nothing behind the last)".into(), &|i| (i + 1 < n).then_some(i + 1));
            order("of the first position".into(), &|_| Some(0));
        }
    }
    if shape.first().is_some_and(|n| *n > 1) {
        type Share = fn(usize) -> f64;
        let sums: [(&str, Share); 2] = [("summed", |_| 1.0), ("averaged", |count| 1.0 / count as f64)];
        for (done, share) in sums {
            let made = move |x: &ArrayD<f64>| {
                let mut sum = x.clone();
                sum.accumulate_axis_inplace(Dimension(0), |before, here| *here += before);
                let shares: Vec<f64> = (1..=x.shape()[0]).map(share).collect();
                by_slice(&sum, 0, &shares, |x, by| x * by)
            };
            all.push((format!("{done} over the positions so far"), Arc::new(made)));
        }
        let mean = |x: &ArrayD<f64>| Some(x.mean_axis(Dimension(0))?.broadcast(x.raw_dim())?.to_owned());
        all.push(("averaged over all positions".into(), Arc::new(mean)));
    }
    all
}

/// Ways to read the rows of positions from the first that is wrong on: those of a first chunk again, or one that stays.
fn later_readings(case: &Case<'_>, shape: &[usize]) -> Vec<(String, f64, Reading)> {
    let Some(at) = case.axes.iter().position(|axis| matches!(axis, Axis::Token | Axis::Query)) else {
        return Vec::new();
    };
    let first = first_along(&crate::identify::wrong(case.first()), at);
    let rows = shape.first().copied().unwrap_or(0);
    if first == 0 || first >= rows {
        return Vec::new();
    }
    type Of = fn(usize, usize) -> Option<usize>;
    let ways: [(&str, Of); 5] = [
        ("of position i-{}", |i, first| Some(i - first)),
        ("of the last position before", |_, first| Some(first - 1)),
        ("of position 0", |_, _| Some(0)),
        ("of position i-1", |i, _| Some(i - 1)),
        ("as nothing", |_, _| None),
    ];
    let way = |(words, of): (&str, Of)| -> (String, f64, Reading) {
        let from: Vec<Option<usize>> = (0..rows).map(|i| if i < first { Some(i) } else { of(i, first) }).collect();
        let words = format!("{} from position {first} on", words.replace("{}", &first.to_string()));
        (words, 6.0 + choice(rows), Arc::new(move |x: &ArrayD<f64>| picked(x, 0, &from)))
    };
    ways.into_iter().map(way).collect()
}

/// A row over its root mean square.
pub(crate) fn over_root_mean_square(row: &mut [f64]) {
    over(row, root_mean_square);
}

fn over(row: &mut [f64], f: impl Fn(&[f64]) -> f64) {
    let by = f(row);
    row.iter_mut().for_each(|x| *x /= by);
}

/// Slices of an axis by their indices; nothing where there is none.
pub(crate) fn picked(x: &ArrayD<f64>, axis: usize, of: &[Option<usize>]) -> Option<ArrayD<f64>> {
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
    if offers.offer_behind_right() {
        return offers.laws;
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
        let later = later_readings(case, input.shape());
        let all = readings(input.shape()).into_iter().chain(scales::readings(input.shape())).chain(later);
        for (words, bits, reading) in all {
            let made = with(operand, reading);
            let law = offers.offer(Form::OperationInput, format!("{name} read {words}"), bits, made);
            if let Some(law) = law {
                law.parameters.push(("operand", name.into()));
                law.parameters.push(("reading", words.into()));
            }
        }
        // Norms and products know what else they may read.
        if !matches!(case.kind, Kind::Norm | Kind::Linear) {
            recorded(case, &mut offers, operand, name);
            together(case, &mut offers, operand, name, &scaled());
            if input.len() <= SEARCHED && offers.laws.is_empty() {
                rounded(&mut offers, operand, name);
            }
        }
        if input.len() <= SEARCHED && offers.laws.is_empty() {
            functions(case, &mut offers, operand, name);
        }
        if offers.laws.is_empty() {
            together(case, &mut offers, operand, name, &in_part());
        }
    }
    if case.kind == Kind::Gate && count == 2 && offers.laws.is_empty() {
        activated(&mut offers);
        if case.first().own.len() <= SEARCHED {
            both_held(case, &mut offers);
        }
    }
    if !matches!(case.kind, Kind::Norm | Kind::Linear) && offers.laws.is_empty() {
        both_recorded(case, &mut offers);
    }
    offers.laws
}

/// What may stand in an operand's place, by what it is called: another operand, or another recorded tensor.
fn instead<'a>(case: &'a Case<'_>, place: usize, operand: usize) -> impl Iterator<Item = (String, ArrayD<f64>)> + 'a {
    let here = &case.places[place];
    let count = here.inputs.len();
    let others = here.inputs.iter().enumerate().filter(move |(other, _)| *other != operand);
    let others = others.map(move |(other, x)| (called(case.kind, count, other).to_owned(), x));
    let all = others.chain(here.around.iter().map(|(name, x)| (name.clone(), x)));
    let due = here.inputs[operand].shape();
    all.filter(move |(_, x)| x.len() == due.iter().product::<usize>() && x.shape().first() == due.first())
        .filter_map(move |(name, x)| Some((name, x.to_shape(due).ok()?.into_owned())))
        .chain(aliased(here, &here.inputs[operand]))
}

/// The operation with these operands read from elsewhere.
fn offer_instead(offers: &mut Offers<'_>, bits: f64, read: Vec<(usize, &'static str, String)>) -> bool {
    let said: Vec<String> = read.iter().map(|(_, name, other)| format!("{name} read from {other}")).collect();
    let known: Vec<(usize, String)> = read.iter().map(|(operand, _, other)| (*operand, other.clone())).collect();
    let law = offers.offer(Form::OperationInput, said.join(" and "), bits, move |case, place| {
        let mut inputs = case.places[place].inputs.clone();
        for (operand, other) in &known {
            inputs[*operand] = instead(case, place, *operand).find(|(name, _)| name == other)?.1;
        }
        case.operation.apply(place, &inputs)
    });
    law.map(|law| {
        for (_, name, other) in read {
            law.parameters.push(("operand", name.into()));
            law.parameters.push(("reading", other.into()));
        }
    })
    .is_some()
}

/// Another tensor in an operand's place.
fn recorded(case: &Case<'_>, offers: &mut Offers<'_>, operand: usize, name: &'static str) {
    let others: Vec<String> = instead(case, case.fitted, operand).map(|(other, _)| other).collect();
    for other in others {
        offer_instead(offers, 8.0, vec![(operand, name, other)]);
    }
}

/// What an operand and another tensor of its extents are read as together, in words before and behind the other's name.
type Together = ([String; 2], f64, Arc<dyn Fn(&ArrayD<f64>, &ArrayD<f64>) -> Option<ArrayD<f64>> + Send + Sync>);

/// An operand that is read together with another tensor: in one of these ways.
fn together(case: &Case<'_>, offers: &mut Offers<'_>, operand: usize, name: &'static str, ways: &[Together]) {
    let others: Vec<String> = instead(case, case.fitted, operand).map(|(other, _)| other).collect();
    for (other, ([before, behind], bits, made)) in
        others.iter().flat_map(|other| ways.iter().map(move |way| (other, way)))
    {
        let (known, made) = (other.clone(), made.clone());
        let made = move |case: &Case<'_>, place: usize| {
            let mut inputs = case.places[place].inputs.clone();
            let (_, of) = instead(case, place, operand).find(|(name, _)| *name == known)?;
            inputs[operand] = made(&inputs[operand], &of)?;
            case.operation.apply(place, &inputs)
        };
        offers.offer(Form::OperationInput, format!("{name} read {before} {other}{behind}"), *bits, made);
    }
}

/// Each row with the scale of another tensor's.
fn scaled() -> Vec<Together> {
    let way = |(called, size): Statistic| -> Together {
        let behind = format!(": each row times the {called} of that one's over its own");
        (["with the scales of".into(), behind], 11.0, Arc::new(move |x, of| scales::of_another(x, of, size)))
    };
    SIZES.into_iter().map(way).collect()
}

/// Another tensor in a part of the channels: a buffer that is not yet written to its end.
fn in_part() -> Vec<Together> {
    type Part = fn(usize, usize) -> bool;
    let parts: [(&str, Part); 4] = [
        ("the first half of its channels", |c, n| c < n / 2),
        ("the second half of its channels", |c, n| c >= n / 2),
        ("even channels", |c, _| c % 2 == 0),
        ("odd channels", |c, _| c % 2 == 1),
    ];
    let way = |(on, is_on): (&str, Part)| -> Together {
        let made = move |x: &ArrayD<f64>, of: &ArrayD<f64>| {
            let (mut out, last) = (x.clone(), Dimension(x.ndim().checked_sub(1)?));
            let width = x.len_of(last);
            for channel in (0..width).filter(|channel| width > 1 && is_on(*channel, width)) {
                out.index_axis_mut(last, channel).assign(&of.index_axis(last, channel));
            }
            Some(out)
        };
        (["from".into(), format!(" in {on}")], 10.0, Arc::new(made))
    };
    parts.into_iter().map(way).collect()
}

/// Tensors that are tried in the place of each of two operands.
const MOST_INSTEAD: usize = 12;

/// Other tensors in the places of two operands.
fn both_recorded(case: &Case<'_>, offers: &mut Offers<'_>) {
    let count = case.first().inputs.len();
    let others = |operand: usize| -> Vec<String> {
        instead(case, case.fitted, operand).map(|(other, _)| other).take(MOST_INSTEAD).collect()
    };
    for (one, other) in (0..count).flat_map(|one| (one + 1..count).map(move |other| (one, other))) {
        let [of_one, of_other] = [one, other].map(|operand| called(case.kind, count, operand));
        let second = others(other);
        for first in others(one) {
            for second in &second {
                let read = vec![(one, of_one, first.clone()), (other, of_other, second.clone())];
                if offer_instead(offers, 14.0, read) {
                    return;
                }
            }
        }
    }
}

/// An operand's values rounded.
fn rounded(offers: &mut Offers<'_>, operand: usize, name: &'static str) {
    for (words, bits, f) in roundings_of() {
        offers.offer(Form::OperationInput, format!("{name} {words}"), bits + 2.0, with(operand, f));
    }
}

/// The activation of a gate rounded before it is multiplied.
fn activated(offers: &mut Offers<'_>) {
    for (words, bits, f) in digits() {
        let said = format!("the activation of the gate is {words} before it is multiplied with up");
        offers.offer(Form::OperationInput, said, bits + 2.0, move |case, place| {
            let [gate, up] = &case.places[place].inputs[..] else { return None };
            let alone = case.operation.apply(place, &[gate.clone(), ArrayD::ones(up.raw_dim())])?;
            (alone.shape() == up.shape()).then(|| alone.mapv(|x| f(x)) * up)
        });
    }
}

/// Ways to hold gate and up within one limit, as some models have it.
type Held = (&'static str, fn(f64, f64) -> f64, &'static str, fn(f64, f64) -> f64);
const HELD: [Held; 3] = [
    ("of at most", f64::min, "held within", |x, limit| x.clamp(-limit, limit)),
    ("held within", |x, limit| x.clamp(-limit, limit), "held within", |x, limit| x.clamp(-limit, limit)),
    ("of at most", f64::min, "of at most", f64::min),
];

/// Gate and up held within one limit before they are read.
fn both_held(case: &Case<'_>, offers: &mut Offers<'_>) {
    let first = case.first();
    let before = crate::fit::nmse(&first.right, &first.own);
    let most = first.inputs.iter().flatten().fold(0.0f64, |most, x| most.max(x.abs()));
    if !(most > 0.0 && most.is_finite()) {
        return;
    }
    for (of_gate, on_gate, of_up, on_up) in HELD {
        let made = move |case: &Case<'_>, place: usize, limit: f64| {
            let [gate, up] = &case.places[place].inputs[..] else { return None };
            case.operation.apply(place, &[gate.mapv(|x| on_gate(x, limit)), up.mapv(|x| on_up(x, limit))])
        };
        let left = |limit: f64| match made(case, case.fitted, limit).filter(|_| case.has_time()) {
            Some(value) => crate::fit::nmse(&value, &first.own),
            None => f64::INFINITY,
        };
        let (at, rest) = search(1e-3 * most, most, LIMITS, true, left);
        if rest.is_nan() || rest > FIRST * before {
            continue;
        }
        for number in Measured::searched(at) {
            let said = format!("gate read as x {of_gate} {0}, up as x {of_up} {0}", number.words);
            let bits = 10.0 + number.bits;
            let limit = number.value;
            if let Some(law) =
                offers.offer(Form::OperationInput, said, bits, move |case, place| made(case, place, limit))
            {
                law.parameters.push(("operand", "gate and up".into()));
                law.parameters.push(("limit", limit.into()));
                break;
            }
        }
    }
}

/// The operation with an operand read otherwise.
pub(crate) fn with(
    operand: usize,
    reading: Reading,
) -> impl Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync + 'static {
    move |case, place| {
        let mut inputs = case.places[place].inputs.clone();
        let input = inputs.get_mut(operand)?;
        *input = reading(input)?;
        case.operation.apply(place, &inputs)
    }
}

/// Functions of an operand's values that have a constant, and terms that are added to it in some share.
fn functions(case: &Case<'_>, offers: &mut Offers<'_>, operand: usize, name: &'static str) {
    let first = case.first();
    let before = crate::fit::nmse(&first.right, &first.own);
    let values: Vec<f64> = first.inputs[operand].iter().copied().collect();
    let left_by = |reading: Reading| {
        with(operand, reading)(case, case.fitted).map_or(f64::INFINITY, |value| crate::fit::nmse(&value, &first.own))
    };
    // The function is lent: what is computed of it is at hand before it goes.
    let left = |f: &dyn Fn(f64) -> f64| {
        let mut inputs = first.inputs.clone();
        inputs[operand].mapv_inplace(f);
        let value = case.operation.apply(case.fitted, &inputs);
        value.map_or(f64::INFINITY, |value| crate::fit::nmse(&value, &first.own))
    };
    // Of a product's input they are cheaper to try on a few of its rows.
    let has_time = || case.kind != Kind::Linear && case.has_time();
    for function in fitting(&values, before, offers.near, &has_time, &left) {
        let (said, f) = (format!("{name} read as {}", function.of("x")), function.f);
        let reading: Reading = Arc::new(move |x: &ArrayD<f64>| Some(x.mapv(|x| f(x))));
        offers.offer(Form::OperationInput, said, function.bits, with(operand, reading));
    }
    let one: (String, Reading) = ("one".into(), Arc::new(|x| Some(ArrayD::ones(x.raw_dim()))));
    let terms = beside(first.inputs[operand].shape()).into_iter().map(|(words, of)| (format!("itself {words}"), of));
    for (words, of) in std::iter::once(one).chain(terms) {
        let plus = |c: f64| -> Reading {
            let of = of.clone();
            Arc::new(move |x: &ArrayD<f64>| Some(x + &(of(x)? * c)))
        };
        let share = |c: f64| if case.has_time() { left_by(plus(c)) } else { f64::INFINITY };
        let tries = [search(1e-3, MOST_SHARE, 25, true, share), search(1e-3, MOST_SHARE, 25, true, |c| share(-c))];
        let [up, down] = tries;
        let (at, rest) = if up.1 <= down.1 { up } else { (-down.0, down.1) };
        // What a factor on all of it gives as well is no term: of one row, its own values stand for those of the first.
        let is_factor = || left_by(Arc::new(move |x: &ArrayD<f64>| Some(x * (1.0 + at)))) <= FIRST * before;
        if rest > FIRST * before || is_factor() {
            continue;
        }
        for number in Measured::searched(at) {
            let said = format!("{name} read plus {} times {words}", number.words);
            if offers.offer(Form::OperationInput, said, 9.0 + number.bits, with(operand, plus(number.value))).is_some()
            {
                break;
            }
        }
    }
}

/// Limits that are looked at first.
const LIMITS: usize = 41;
/// The largest share of a term.
const MOST_SHARE: f64 = 4.0;
/// Of the error a term may leave after a first look.
const FIRST: f64 = 1e-3;
