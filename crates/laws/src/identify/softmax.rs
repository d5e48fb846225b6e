//! Probabilities that are no softmax: another function of the scores, another divisor, a mixture with something else.

mod blocks;
mod kept;
mod uneven;

use std::sync::Arc;

use ndarray::{Array3, ArrayD, s};

pub(super) use self::blocks::over_blocks;
use self::uneven::uneven;

use crate::case::Case;
use crate::fit::{nmse, search};
use crate::identify::after::Offers;
use crate::identify::attention::{Right, cube};
use crate::identify::statistics::{largest, over_sum, powers};
use crate::identify::subject::Subject;
use crate::identify::sums::sparse;
use crate::law::{Form, Law};
use crate::number::Measured;

/// What a row's scores are made into before they are divided.
type OfScores = (&'static str, fn(&[f64]) -> Vec<f64>);
const FUNCTIONS: [OfScores; 15] = [
    ("exp(s)", |s| powers(s, 0.0)),
    ("exp(s - largest)", |s| powers(s, largest(s))),
    ("sigmoid(s)", |s| s.iter().map(|s| 1.0 / (1.0 + (-s).exp())).collect()),
    ("relu(s)", |s| s.iter().map(|s| s.max(0.0)).collect()),
    ("relu(s)^2", |s| s.iter().map(|s| s.max(0.0).powi(2)).collect()),
    ("s^2", |s| s.iter().map(|s| s * s).collect()),
    ("|s|", |s| s.iter().map(|s| s.abs()).collect()),
    ("s", <[f64]>::to_vec),
    ("log(1 + exp(s))", |s| s.iter().map(|s| s.exp().ln_1p()).collect()),
    ("1 + elu(s)", |s| s.iter().map(|s| if *s < 0.0 { s.exp() } else { 1.0 + s }).collect()),
    ("exp(s) of the positive part", |s| s.iter().map(|s| s.max(0.0).exp()).collect()),
    ("2^floor(x) (1 + x - floor(x)) of x = (s - largest)/ln 2 (a line between powers of 2)", |s| {
        let most = largest(s);
        s.iter().map(|s| between_powers((s - most) / std::f64::consts::LN_2)).collect()
    }),
    ("2^floor(x) (1 + x - floor(x)) of x = s/ln 2 (a line between powers of 2)", |s| {
        s.iter().map(|s| between_powers(s / std::f64::consts::LN_2)).collect()
    }),
    ("(1 + s/256)^256", |s| s.iter().map(|s| (1.0 + s / 256.0).powi(256)).collect()),
    ("(1 + s/1024)^1024", |s| s.iter().map(|s| (1.0 + s / 1024.0).powi(1024)).collect()),
];

/// 2^x where x is whole, and a line between.
fn between_powers(x: f64) -> f64 {
    x.floor().exp2() * (1.0 + x - x.floor())
}

/// What they are divided by; the second number is where the query's own key stands among those that are seen, if it does.
type Divisor = (&'static str, fn(&[f64], Option<usize>) -> f64);
const DIVISORS: [Divisor; 11] = [
    ("not divided", |_, _| 1.0),
    ("divided by their sum", |x, _| x.iter().sum()),
    ("divided by their number", |x, _| x.len() as f64),
    ("divided by the root of their number", |x, _| (x.len() as f64).sqrt()),
    ("divided by the root of the sum of their squares", |x, _| x.iter().map(|x| x * x).sum::<f64>().sqrt()),
    ("divided by the largest", |x, _| x.iter().copied().fold(0.0, f64::max)),
    ("divided by their sum without the query's own", |x, own| {
        let all: f64 = x.iter().sum();
        if x.len() < 2 { all } else { all - own.map_or(0.0, |own| x[own]) }
    }),
    ("divided by their sum in which the first key is counted twice", |x, _| x.iter().sum::<f64>() + x[0]),
    ("divided by their sum in which the query's own key is counted twice", |x, own| {
        x.iter().sum::<f64>() + own.map_or(0.0, |own| x[own])
    }),
    ("divided by their sum in which the largest is counted twice", |x, _| {
        x.iter().sum::<f64>() + x.iter().copied().fold(0.0, f64::max)
    }),
    ("divided by their sum without the first key", |x, _| {
        let all: f64 = x.iter().sum();
        if x.len() < 2 { all } else { all - x[0] }
    }),
];

/// The laws of another softmax, and of mixtures.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    if Right::of(first).is_none() {
        return Vec::new();
    }
    let mut offers = Offers::of(case);
    for (a, (function, f)) in FUNCTIONS.iter().enumerate() {
        for (b, (divisor, by)) in DIVISORS.iter().enumerate() {
            if a < 2 && b == 1 {
                continue;
            }
            let (f, by) = (*f, *by);
            let words = format!("probabilities are {function}, {divisor} (right: exp(s), divided by their sum)");
            let form = if a < 2 { Form::Denominator } else { Form::ScoreFunction };
            offer_rows(&mut offers, form, words, 7.0 + a.min(4) as f64, move |row, seen, scores| {
                let values = f(scores);
                let by = by(&values, seen.iter().position(|s| *s == row));
                values.into_iter().map(|x| x / by).collect()
            });
        }
    }
    by_bits(case, &mut offers);
    kept::kept(case, &mut offers);
    type Undivided = fn(usize, usize) -> bool;
    let undivided: [(&str, Undivided); 3] = [
        ("the query's own key", |row, key| row == key),
        ("the first key", |_, key| key == 0),
        ("all keys but the query's own", |row, key| row != key),
    ];
    for (whose, is_undivided) in undivided {
        for (is_less_most, called) in [(true, "exp(s - largest)"), (false, "exp(s)")] {
            let words = format!("the weight of {whose} is not divided by the sum: it is {called}");
            offer_rows(&mut offers, Form::Denominator, words, 9.0, move |row, seen, scores| {
                let of = powers(scores, if is_less_most { largest(scores) } else { 0.0 });
                let sum: f64 = of.iter().sum();
                let each = |(x, key): (f64, &usize)| if is_undivided(row, *key) { x } else { x / sum };
                of.into_iter().zip(seen).map(each).collect()
            });
        }
    }
    let keys = case.first().own.shape().last().copied().unwrap_or(0);
    for (words, bits, of) in over_blocks(keys).into_iter().chain(uneven(keys)) {
        offer_rows(&mut offers, Form::Denominator, words, bits, move |row, seen, scores| of(row, seen, scores));
    }
    let mut laws = offers.laws;
    if laws.is_empty() {
        let mixed = sparse(&Subject::output(case), case, "each row of probabilities", 2, &mixtures);
        laws.extend(mixed.into_iter().map(|law| Law { form: Form::ProbsMix, ..law }));
    }
    laws
}

/// An exponential made of a float's bits: a line between powers of 2, moved by a constant that spreads the error.
fn by_bits(case: &Case<'_>, offers: &mut Offers<'_>) {
    let made = |right: &Right, moved: f64, is_less_most: bool| {
        of_rows(right, |_, _, scores| {
            let most = largest(scores);
            let less = if is_less_most { most } else { 0.0 };
            let each = |s: &f64| between_powers((s - less) / std::f64::consts::LN_2 + moved);
            over_sum(scores.iter().map(each).collect())
        })
    };
    let first = case.first();
    let Some(right) = Right::of(first) else { return };
    for (is_less_most, called) in [(true, "(s - largest)"), (false, "s")] {
        let off = |moved: f64| nmse(&made(&right, moved, is_less_most), &first.own);
        let (moved, left) = search(-0.12, 0.12, 49, false, off);
        if left > WORTH_A_LOOK * nmse(&first.right, &first.own) {
            continue;
        }
        for number in [Measured::new(moved, 1e-5).number(), Measured::new(moved, 0.0).plain()] {
            let by = number.value;
            let words = format!(
                "exp(s) is made by bits: 2^floor(x) (1 + x - floor(x)) of x = {called}/ln 2 {} {} (a line between powers of 2)",
                if by < 0.0 { '-' } else { '+' },
                number.words.trim_start_matches('-')
            );
            let law = offers.offer(Form::ScoreFunction, words, 9.0 + number.bits, move |case, at| {
                Some(made(&Right::of(&case.places[at])?, by, is_less_most))
            });
            if law.is_some() {
                break;
            }
        }
    }
}

/// The share of the error that a function's first look may leave.
const WORTH_A_LOOK: f64 = 1e-3;

/// Probabilities of a row: of its number, the keys that are seen, and their scores.
pub(super) type OfRow = Arc<dyn Fn(usize, &[usize], &[f64]) -> Vec<f64> + Send + Sync>;

/// Takes up a law by which each row is made of the keys that are seen and their scores, where it is one.
fn offer_rows(
    offers: &mut Offers<'_>,
    form: Form,
    words: String,
    bits: f64,
    of: impl Fn(usize, &[usize], &[f64]) -> Vec<f64> + Send + Sync + 'static,
) {
    offers.offer(form, words, bits, move |case, at| Some(of_rows(&Right::of(&case.places[at])?, &of)));
}

/// Probabilities of each row, made of the keys that are seen and their scores.
fn of_rows(right: &Right, f: impl Fn(usize, &[usize], &[f64]) -> Vec<f64>) -> ArrayD<f64> {
    let (heads, rows, keys) = right.scores.dim();
    let mut out = Array3::zeros((heads, rows, keys));
    for head in 0..heads {
        for row in 0..rows {
            let seen: Vec<usize> = (0..keys).filter(|&s| right.sees[[head, row, s]]).collect();
            let scores: Vec<f64> = seen.iter().map(|&s| right.scores[[head, row, s]]).collect();
            if !seen.is_empty() {
                let made = f(row, &seen, &scores);
                seen.iter().zip(made).for_each(|(&s, p)| out[[head, row, s]] = p);
            }
        }
    }
    out.into_dyn()
}

/// What probabilities may be mixed with.
fn mixtures(case: &Case<'_>, at: usize) -> Vec<(String, ArrayD<f64>)> {
    let place = &case.places[at];
    let (Some(right), Some(probs)) = (Right::of(place), cube(&place.right)) else { return Vec::new() };
    let (heads, rows, keys) = probs.dim();
    let each = |f: &dyn Fn(usize, &[usize]) -> Vec<f64>| of_rows(&right, |row, seen, _| f(row, seen));
    let mean = probs.mean_axis(ndarray::Axis(0)).unwrap_or_default();
    let spread = |of: ndarray::ArrayView2<'_, f64>| {
        Array3::from_shape_fn((heads, rows, keys), |(_, t, s)| of[[t, s]]).into_dyn()
    };
    let moved = |f: &dyn Fn(usize) -> usize| {
        Array3::from_shape_fn((heads, rows, keys), |(h, t, s)| probs[[h, f(t), s]]).into_dyn()
    };
    vec![
        ("the right probabilities".into(), place.right.clone()),
        (
            "the same for each key that is seen (their sum 1)".into(),
            each(&|_, seen| vec![1.0 / seen.len() as f64; seen.len()]),
        ),
        ("the same for each key (their sum 1)".into(), ArrayD::from_elem(probs.shape(), 1.0 / keys as f64)),
        (
            "1 for the query's own key".into(),
            each(&|row, seen| seen.iter().map(|s| f64::from(u8::from(*s == row))).collect()),
        ),
        ("1 for the first key".into(), each(&|_, seen| seen.iter().map(|s| f64::from(u8::from(*s == 0))).collect())),
        ("1 for each key that is seen".into(), each(&|_, seen| vec![1.0; seen.len()])),
        ("the squares of the right ones".into(), probs.mapv(|p| p * p).into_dyn()),
        ("the mean of all heads".into(), spread(mean.view())),
        ("those of head 0".into(), spread(probs.slice(s![0, .., ..]))),
        ("those of the query before".into(), moved(&|t| t.saturating_sub(1))),
        ("those of the next query".into(), moved(&|t| (t + 1).min(rows - 1))),
    ]
}
