//! Identifies embeddings: which row is read for which token, and of which table.

mod of_whole_table;

use ndarray::{Array1, ArrayD};

use crate::case::{Axis, Case, OtherWeight};
use crate::describe::set::{Set, describe as describe_set};
use crate::describe::{choice, source};
use crate::fit::factor;
use crate::identify::after::Offers;
use crate::identify::any_along;
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// The ids of a place.
fn ids(case: &Case<'_>, place: usize) -> Option<Vec<i64>> {
    Some(case.places[place].inputs.first()?.iter().map(|x| *x as i64).collect())
}

/// Other ids than those that are due.
type Ids = std::sync::Arc<dyn Fn(&[i64]) -> Vec<i64> + Send + Sync>;

/// The rows of other ids at a place.
fn made(of: Ids) -> impl Fn(&Case<'_>, usize) -> Option<ArrayD<f64>> + Send + Sync + 'static {
    move |case, place| {
        let other = Array1::from(of(&ids(case, place)?)).mapv(|id| id as f64);
        let shape = case.places[place].inputs.first()?.raw_dim();
        case.operation.apply(place, &[other.to_shape(shape).ok()?.into_owned()])
    }
}

fn law(words: String, bits: f64, of: Ids) -> Law {
    Law::new(Form::EmbeddingRow, words, bits, made(of))
}

/// Arithmetic of ids that is tried.
fn families() -> Vec<(String, f64, Ids)> {
    let mut all: Vec<(String, f64, Ids)> = Vec::new();
    let mut each = |words: String, bits: f64, f: Box<dyn Fn(i64) -> i64 + Send + Sync>| {
        all.push((words, bits, std::sync::Arc::new(move |ids: &[i64]| ids.iter().map(|id| f(*id)).collect())));
    };
    for by in 1..=9i64 {
        each(format!("token id + {by}"), 8.0, Box::new(move |id| id + by));
        each(format!("token id - {by}"), 8.0, Box::new(move |id| (id - by).max(0)));
    }
    for bit in 0..16 {
        each(format!("token id with bit {bit} flipped"), 9.0, Box::new(move |id| id ^ (1 << bit)));
    }
    for bits in [7, 8, 12, 14, 15, 16] {
        each(format!("token id mod {}", 1i64 << bits), 9.0, Box::new(move |id| id % (1 << bits)));
    }
    for by in 2..=8i64 {
        each(format!("token id div {by}"), 9.0, Box::new(move |id| id / by));
    }
    for by in [2, 4, 8, 16, 32, 64i64] {
        each(format!("token id cut to a multiple of {by}"), 9.0, Box::new(move |id| id / by * by));
    }
    for by in 2..=8i64 {
        each(format!("{by} times the token id"), 9.0, Box::new(move |id| id * by));
    }
    for bits in [8u32, 16] {
        let mask = (1i64 << bits) - 1;
        let reversed = move |id: i64| (id & !mask) | ((id as u64).reverse_bits() >> (64 - bits)) as i64;
        each(format!("token id with its lowest {bits} bits in reverse"), 9.0, Box::new(reversed));
        let half = bits / 2;
        let swapped = move |id: i64| (id & !mask) | (id & mask) >> half | (id << half) & mask;
        each(format!("token id with the halves of its lowest {bits} bits exchanged"), 9.0, Box::new(swapped));
        each(
            format!("token id, its lowest {bits} bits without a sign read as with one, negative ones as their size"),
            10.0,
            Box::new(move |id| {
                let low = id & mask;
                if low > mask / 2 { mask + 1 - low } else { low }
            }),
        );
        let inverted = move |id: i64| id ^ mask;
        each(format!("{mask} less the lowest {bits} bits of the token id"), 9.0, Box::new(inverted));
    }
    type OfAll = fn(&[i64]) -> Vec<i64>;
    let of_all: [(&str, OfAll); 4] = [
        ("the tokens sorted, in rising order", |ids| {
            let mut ids = ids.to_vec();
            ids.sort_unstable();
            ids
        }),
        ("the tokens sorted, in falling order", |ids| {
            let mut ids = ids.to_vec();
            ids.sort_unstable_by(|a, b| b.cmp(a));
            ids
        }),
        ("the number of the token in the list of different tokens, in the order of their first places", |ids| {
            let first = |id: &i64| ids.iter().position(|other| other == id).unwrap_or(0);
            ids.iter().map(|id| (0..first(id)).filter(|&i| first(&ids[i]) == i).count() as i64).collect()
        }),
        ("the number of the token in the sorted list of different tokens", |ids| {
            let mut all = ids.to_vec();
            all.sort_unstable();
            all.dedup();
            ids.iter().map(|id| all.iter().filter(|other| *other < id).count() as i64).collect()
        }),
    ];
    all.extend(of_all.map(|(words, f)| (words.to_owned(), 7.0, std::sync::Arc::new(f) as Ids)));
    all.push(("the position".into(), 6.0, std::sync::Arc::new(|ids| (0..ids.len() as i64).collect())));
    all.push((
        "the token of the position before (the first: its own)".into(),
        6.0,
        std::sync::Arc::new(|ids| (0..ids.len()).map(|i| ids[i.saturating_sub(1)]).collect()),
    ));
    all.push((
        "the token of the next position (the last: its own)".into(),
        6.0,
        std::sync::Arc::new(|ids| (0..ids.len()).map(|i| ids[(i + 1).min(ids.len() - 1)]).collect()),
    ));
    all.push(("the tokens in reverse".into(), 6.0, std::sync::Arc::new(|ids| ids.iter().rev().copied().collect())));
    all
}

/// The laws of an embedding.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let (Some(due), subject) = (ids(case, case.fitted), Subject::output(case)) else { return Vec::new() };
    let meant = any_along(&crate::identify::wrong(case.first()), 0);
    let wrong: Vec<bool> = meant.iter().map(|is| *is == Some(true)).collect();
    if wrong.len() != due.len() {
        return Vec::new();
    }
    let (mut laws, mut rules): (Vec<Law>, Vec<Ids>) = (Vec::new(), Vec::new());
    let part = describe_set(&meant, Axis::Token, case.tokens_of(Axis::Token));
    let mut offers = Offers::of(case);
    for (words, bits, of) in families().into_iter().chain(bounds(&due, &wrong)) {
        let (made, said) = (made(of.clone()), format!("the row read is that of {words}"));
        if offers.offer(Form::EmbeddingRow, said, bits, made).is_some() {
            rules.push(of);
        }
    }
    laws.extend(offers.laws);
    if let Some((law, of)) = positions(&due, &subject) {
        laws.push(law);
        rules.push(of);
    }
    laws.extend(rules.first().and_then(|of| of_one_token(&due, &part, of)).filter(|law| subject.is_near_by(law, case)));
    if laws.is_empty() {
        laws.extend(rows_apart(case, &due, &subject));
    }
    if laws.is_empty() {
        laws.extend(of_another_table(case, &subject));
    }
    if laws.is_empty() {
        laws.extend(of_whole_table::laws(case, &due, &subject));
    }
    laws
}

/// Where one token alone has another's row, which: any rule of its id or its place is a guess beside that.
fn of_one_token(due: &[i64], wrong: &Set, of: &Ids) -> Option<Law> {
    let other = of(due);
    let mut moved = (0..due.len()).filter(|&at| wrong.has[at]).map(|at| (due[at], other[at]));
    let (id, to) = moved.next().filter(|first| moved.all(|next| next == *first))?;
    let is_everywhere = due.iter().zip(&wrong.has).all(|(of, is)| *is == (*of == id));
    let has = wrong.has.clone();
    let of: Ids = std::sync::Arc::new(move |ids| {
        let is = |at: usize| is_everywhere || has.get(at) == Some(&true);
        ids.iter().enumerate().map(|(at, of)| if *of == id && is(at) { to } else { *of }).collect()
    });
    let support = Subject::support(Axis::Token, wrong.words.clone().filter(|_| !is_everywhere));
    let words = format!("the row read is that of token {to} in place of {id}{}", support.said());
    Some(law(words, ONE_TOKEN, of).on(support))
}

/// What it costs to say two ids.
const ONE_TOKEN: f64 = 14.0;

/// Rows of the tokens in another matrix of the model, as they are or times a number.
fn of_another_table(case: &Case<'_>, subject: &Subject) -> Option<Law> {
    let read = |case: &Case<'_>, at: usize, weight: &OtherWeight| -> Option<ArrayD<f64>> {
        let table = case.operation.other_weight(at, weight)?;
        let ids: Option<Vec<usize>> = ids(case, at)?.into_iter().map(|id| usize::try_from(id).ok()).collect();
        let ids = ids.filter(|ids| ids.iter().all(|id| *id < table.nrows()))?;
        let rows = table.select(ndarray::Axis(0), &ids).into_dyn();
        rows.to_shape(case.places[at].right.raw_dim()).ok().map(|rows| rows.into_owned())
    };
    case.operation.other_weights(case.fitted).into_iter().filter(|_| case.has_time()).find_map(|weight| {
        let rows = read(case, case.fitted, &weight)?;
        let flat = |x: &ArrayD<f64>| x.iter().copied().collect::<Vec<f64>>();
        let fit = factor(&flat(&rows), &flat(&case.first().own), subject.noise);
        let by = fit.coefficients.first()?.number();
        subject.is_near(&(rows * by.value)).then_some(())?;
        let times = if by.value == 1.0 { String::new() } else { format!(", times {}", by.words) };
        let words = format!("the row read for a token is that of the matrix that makes {weight}{times}");
        let law = Law::new(Form::EmbeddingRow, words, 7.0 + by.bits, {
            let weight = weight.clone();
            move |case, at| Some(read(case, at, &weight)? * by.value)
        });
        Some(law.with("weight", weight.to_string()))
    })
}

/// Distances of rows that are tried, in rows of the right table.
const FURTHEST: usize = 2;

/// What is read of a table whose rows lie so many numbers apart, and not as many as one has, or that begins so many numbers late: parts of two rows.
fn read_apart(case: &Case<'_>, place: usize, stride: usize, late: isize) -> Option<ArrayD<f64>> {
    let ids = ids(case, place)?;
    let input = &case.places[place].inputs[0];
    let width = *case.places[place].right.shape().last()?;
    let begin = |id: &i64| usize::try_from(*id).ok()?.checked_mul(stride)?.checked_add_signed(late);
    let begins: Vec<usize> = ids.iter().map(begin).collect::<Option<_>>()?;
    let rows = |further: usize| {
        let of = |begin: &usize| (begin / width + further) as f64;
        let other = ArrayD::from_shape_vec(input.raw_dim(), begins.iter().map(of).collect()).ok()?;
        case.operation.apply(place, &[other])
    };
    let (mut out, next) = (rows(0)?, rows(1)?);
    let first = out.clone();
    for (row, begin) in begins.iter().enumerate() {
        for column in 0..width {
            let at = begin % width + column;
            let of = if at < width { &first } else { &next };
            *out.get_mut([row, column])? = *of.get([row, at % width])?;
        }
    }
    Some(out)
}

/// Rows that lie another number of elements apart than they are long.
fn rows_apart(case: &Case<'_>, due: &[i64], subject: &Subject) -> Option<Law> {
    let width = *subject.right.shape().last().filter(|_| subject.right.ndim() == 2)?;
    let is_inside = |stride: usize| due.iter().all(|id| *id >= 0 && (*id as usize).checked_mul(stride).is_some());
    let is_it = |stride: usize, late: isize| {
        case.has_time() && read_apart(case, case.fitted, stride, late).is_some_and(|value| subject.is_near(&value))
    };
    let moved = |size: usize| [size as isize, -(size as isize)];
    if let Some(late) = (1..width).flat_map(moved).find(|late| is_it(width, *late)) {
        let way = if late > 0 { "late" } else { "early" };
        let by = late.unsigned_abs();
        let words = format!(
            "the table is read {by} numbers {way}: channel i is that of i{late:+}, over its end that of the row {}",
            if late > 0 { "behind" } else { "before" }
        );
        let law =
            Law::new(Form::EmbeddingRow, words, 8.0 + choice(width), move |case, at| read_apart(case, at, width, late));
        return Some(law.with("late", late));
    }
    let apart = |stride: &usize| *stride != width && is_inside(*stride);
    let stride = (1..=FURTHEST * width).filter(apart).find(|&stride| is_it(stride, 0))?;
    let words = format!("rows of the table are read {stride} numbers apart, not {width}");
    let law = Law::new(Form::EmbeddingRow, words, 8.0 + choice(FURTHEST * width), move |case, at| {
        read_apart(case, at, stride, 0)
    });
    Some(law.with("apart", stride))
}

/// Ids that are held to a bound, or exchanged for one: read off the tokens that are wrong.
fn bounds(due: &[i64], wrong: &[bool]) -> Vec<(String, f64, Ids)> {
    let of = |which: bool| due.iter().zip(wrong).filter(move |(_, is)| **is == which).map(|(id, _)| *id);
    let (Some(low), Some(high)) = (of(true).min(), of(true).max()) else { return Vec::new() };
    let mut all: Vec<(String, f64, Ids)> = Vec::new();
    for to in [0i64, 1, 2, 3] {
        let ids: Vec<i64> = of(true).collect();
        let said = ids.iter().take(4).map(i64::to_string).collect::<Vec<_>>().join(", ");
        let bits = 12.0 + choice(ids.len());
        let held = move |all: &[i64]| all.iter().map(|id| if ids.contains(id) { to } else { *id }).collect();
        all.push((format!("token {to} in place of {said}"), bits, std::sync::Arc::new(held)));
    }
    if of(false).max().is_none_or(|right| right < low) {
        for bound in [of(false).max().unwrap_or(0), low - 1, high] {
            let held = move |all: &[i64]| all.iter().map(|id| (*id).min(bound)).collect();
            all.push((format!("token id, at most {bound}"), 14.0, std::sync::Arc::new(held)));
        }
    }
    all
}

/// Rows of other positions of the same text.
fn positions(due: &[i64], subject: &Subject) -> Option<(Law, Ids)> {
    let rows =
        |x: &ArrayD<f64>| x.outer_iter().map(|row| row.iter().copied().collect::<Vec<f64>>()).collect::<Vec<_>>();
    let (right, own) = (rows(&subject.right), rows(&subject.own));
    let from = |t: usize| {
        let fits = |s: &usize| {
            let fit = factor(&right[*s], &own[t], subject.noise);
            fit.left <= 5.0 * subject.noise && (fit.coefficients[0].value - 1.0).abs() < 1e-2
        };
        std::iter::once(t).chain(0..right.len()).find(fits)
    };
    let found: Vec<Option<usize>> = (0..own.len()).map(from).collect();
    if found.iter().any(Option::is_none) {
        return None;
    }
    let source = source::describe(&found, due.len(), Axis::Token);
    if source.is_itself {
        return None;
    }
    let from = source.from.clone();
    let of: Ids =
        std::sync::Arc::new(move |ids: &[i64]| from.iter().map(|&s| ids.get(s).copied().unwrap_or(0)).collect());
    let words = format!("the row read is that of the token of {}", source.words);
    Some((law(words, source.bits + 3.0, of.clone()).within(Axis::Token, source.part), of))
}
