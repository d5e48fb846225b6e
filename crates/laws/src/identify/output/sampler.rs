//! Logits that a sampler has changed in place: what it takes off tokens that stand in the text already, and all but the likeliest that it drops.

use std::collections::BTreeMap;

use ndarray::Array2;

use crate::case::{Axis, Case};
use crate::fit::{ROOM, factor, least_squares};
use crate::identify::further_off;
use crate::identify::subject::{Subject, two};
use crate::law::{Form, Law};
use crate::number::{Measured, between};

/// Which tokens of the text count for a position.
#[derive(Clone, Copy)]
enum Which {
    UpTo,
    Before,
    Own,
    All,
}

impl Which {
    const ALL: [(Which, &'static str); 4] = [
        (Which::UpTo, "of tokens that stand in the text up to the position"),
        (Which::Before, "of tokens that stand in the text before the position"),
        (Which::Own, "of the position's own token"),
        (Which::All, "of tokens that stand anywhere in the text"),
    ];

    /// How often each token counts at a position.
    fn counts(self, tokens: &[u32], t: usize) -> BTreeMap<usize, f64> {
        let of = match self {
            Which::UpTo => &tokens[..=t],
            Which::Before => &tokens[..t],
            Which::Own => &tokens[t..=t],
            Which::All => tokens,
        };
        let mut all = BTreeMap::new();
        of.iter().for_each(|token| *all.entry(*token as usize).or_insert(0.0) += 1.0);
        all
    }
}

/// What is made of a logit, by how often its token counts.
#[derive(Clone, Copy)]
enum Made {
    Line {
        by: f64,
        plus: f64,
        each: f64,
    },
    /// Divided where it is positive, multiplied where it is negative.
    Repetition(f64),
}

impl Made {
    fn of(self, right: f64, count: f64) -> f64 {
        match self {
            Made::Line { by, plus, each } => by * right + plus + each * count,
            Made::Repetition(by) if right > 0.0 => right / by,
            Made::Repetition(by) => right * by,
        }
    }
}

/// Logits that tell a law.
const LEAST: usize = 4;

/// The laws of logits that a sampler has changed.
pub(super) fn laws(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let mut laws = seen(subject, case);
    laws.extend(kept(subject));
    laws
}

/// Which logits of a row a sampler keeps.
#[derive(Clone, Copy)]
enum Keeps {
    /// So many of the largest.
    Largest(usize),
    /// Those of so much below the largest at most.
    Near(f64),
}

impl Keeps {
    fn least(self, row: &[f64]) -> f64 {
        match self {
            Keeps::Largest(count) => {
                let mut sorted = row.to_vec();
                sorted.sort_by(|a, b| b.total_cmp(a));
                sorted.get(count.saturating_sub(1)).copied().unwrap_or(f64::NEG_INFINITY)
            }
            Keeps::Near(below) => row.iter().copied().fold(f64::NEG_INFINITY, f64::max) - below,
        }
    }
}

/// All but the largest of each row are one number.
fn kept(subject: &Subject) -> Vec<Law> {
    let (Some(right), Some(own)) = (two(&subject.right), two(&subject.own)) else { return Vec::new() };
    if subject.axes != [Axis::Token, Axis::Row] {
        return Vec::new();
    }
    let wrong = further_off(&subject.right, &subject.own, subject.noise);
    let dropped: Vec<f64> = wrong.iter().zip(&own).filter(|(is, _)| **is).map(|(_, own)| *own).collect();
    let Some(to) = dropped.first().copied().filter(|to| dropped.iter().all(|x| x == to)) else { return Vec::new() };
    let rows = || right.rows().into_iter().zip(own.rows());
    let counts: Vec<usize> = rows().map(|(_, own)| own.iter().filter(|x| **x != to).count()).collect();
    let mut ways: Vec<(String, f64, Keeps)> = Vec::new();
    if let Some(&count) = counts.first().filter(|count| counts.iter().all(|other| other == *count)) {
        ways.push((format!("all but the {count} largest of each row are {to}"), 8.0, Keeps::Largest(count)));
    }
    // How far below the largest lie those that are kept, and those that are not?
    let (mut near, mut far) = (0.0f64, f64::INFINITY);
    for (right, own) in rows() {
        let most = right.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        for (right, own) in right.iter().zip(own) {
            if *own == to { far = far.min(most - right) } else { near = near.max(most - right) }
        }
    }
    if near < far && far.is_finite() {
        let below = between(near, far);
        ways.push((
            format!("logits of more than {below} below the largest of their row are {to}"),
            20.0,
            Keeps::Near(below),
        ));
    }
    ways.into_iter()
        .map(|(words, bits, keeps)| {
            subject.law(Form::OutputFunction, words, bits + 6.0, move |right| {
                let mut out: Array2<f64> = right.clone().into_dimensionality().ok()?;
                for mut row in out.rows_mut() {
                    let least = keeps.least(&row.to_vec());
                    row.mapv_inplace(|x| if x >= least { x } else { to });
                }
                Some(out.into_dyn())
            })
        })
        .collect()
}

/// The laws of logits of tokens that were seen.
fn seen(subject: &Subject, case: &Case<'_>) -> Vec<Law> {
    let Some(tokens) = case.tokens_of(Axis::Token).filter(|_| subject.axes == [Axis::Token, Axis::Row]) else {
        return Vec::new();
    };
    if subject.right.shape().first() != Some(&tokens.len()) {
        return Vec::new();
    }
    let wrong = further_off(&subject.right, &subject.own, subject.noise);
    for (which, said) in Which::ALL {
        let counts: Vec<BTreeMap<usize, f64>> = (0..tokens.len()).map(|t| which.counts(tokens, t)).collect();
        if wrong.indexed_iter().any(|(at, is)| *is && !counts[at[0]].contains_key(&at[1])) {
            continue;
        }
        // Every logit that counts: right, own, and how often.
        let at = |t: usize, v: usize, count: f64| {
            let at = [t, v];
            Some([*subject.right.get(at.as_slice())?, *subject.own.get(at.as_slice())?, count])
        };
        let of = |(t, counts): (usize, &BTreeMap<usize, f64>)| {
            counts.iter().filter_map(|(v, count)| at(t, *v, *count)).collect::<Vec<_>>()
        };
        let all: Vec<[f64; 3]> = counts.iter().enumerate().flat_map(of).collect();
        if all.len() < LEAST {
            continue;
        }
        let laws: Vec<Law> = ways(&all, subject.noise)
            .into_iter()
            .map(|(words, bits, made)| {
                let words = format!("{words} {said}");
                subject.law_of_place(Form::OutputFunction, words, bits + 6.0, move |case, _, right| {
                    let tokens = case.tokens_of(Axis::Token)?;
                    let mut out = right.clone();
                    for t in 0..tokens.len() {
                        for (v, count) in which.counts(tokens, t) {
                            let y = out.get_mut([t, v].as_slice())?;
                            *y = made.of(*y, count);
                        }
                    }
                    Some(out)
                })
            })
            .collect();
        if !laws.is_empty() {
            return laws;
        }
    }
    Vec::new()
}

/// What may have been made of these logits, in words that a token's place is put behind.
fn ways(all: &[[f64; 3]], noise: f64) -> Vec<(String, f64, Made)> {
    let column = |at: usize| all.iter().map(|row| row[at]).collect::<Vec<f64>>();
    let (right, own, count) = (column(0), column(1), column(2));
    let size = |x: &[f64]| (x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64).sqrt();
    let off: Vec<f64> = own.iter().zip(&right).map(|(own, right)| own - right).collect();
    // What rounding leaves of a logit, as a share of the difference.
    let each = noise * size(&own) / size(&off).max(f64::MIN_POSITIVE);
    let ones = vec![1.0; all.len()];
    let taken = |m: &Measured| {
        let number = Measured::new(m.value.abs(), m.error).number();
        (number.value.copysign(m.value), number)
    };
    let way = |value: f64| if value < 0.0 { "taken off" } else { "added to" };
    let mut laws = Vec::new();
    for (column, is_each) in [(&ones, false), (&count, true)] {
        if let Some(fit) = least_squares(&[column], &off, each).filter(|fit| fit.left <= ROOM * each) {
            let (value, number) = taken(&fit.coefficients[0]);
            let times = if is_each { ", for each time that they do," } else { "" };
            let words = format!("{}{times} is {} the logits", number.words, way(value));
            let made = if is_each {
                Made::Line { by: 1.0, plus: 0.0, each: value }
            } else {
                Made::Line { by: 1.0, plus: value, each: 0.0 }
            };
            laws.push((words, number.bits, made));
        }
    }
    if laws.is_empty()
        && let Some(fit) = least_squares(&[&ones, &count], &off, each).filter(|fit| fit.left <= ROOM * each)
    {
        let ((plus, a), (by_count, b)) = (taken(&fit.coefficients[0]), taken(&fit.coefficients[1]));
        let words = format!(
            "{} is {} and {} for each time that they do {} the logits",
            a.words,
            way(plus),
            b.words,
            way(by_count)
        );
        laws.push((words, a.bits + b.bits, Made::Line { by: 1.0, plus, each: by_count }));
    }
    // A factor, the same for both signs or one over it for the negative ones.
    let over = |is_repetition: bool| {
        let of: Vec<f64> =
            all.iter().map(|[right, own, _]| if is_repetition && *right > 0.0 { *own } else { *right }).collect();
        let to: Vec<f64> =
            all.iter().map(|[right, own, _]| if is_repetition && *right > 0.0 { *right } else { *own }).collect();
        let fit = factor(&of, &to, noise);
        (fit.left <= ROOM * noise).then(|| fit.coefficients[0].number())
    };
    if let Some(number) = over(false) {
        let words = format!("{} times the right ones are the logits", number.words);
        laws.push((words, number.bits, Made::Line { by: number.value, plus: 0.0, each: 0.0 }));
    } else if let Some(number) = over(true) {
        let words = format!(
            "positive ones divided by {n}, negative ones multiplied by {n} (a repetition penalty) are the logits",
            n = number.words
        );
        laws.push((words, number.bits + 2.0, Made::Repetition(number.value)));
    }
    laws
}
