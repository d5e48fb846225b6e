//! Positions that differ between pairs or between heads: sections of a rotation for several axes, rows of heads taken for rows of positions.

use std::sync::Arc;

use ndarray::{Array2, Array3, ArrayD};
use num_complex::Complex;

use super::positions::position;
use super::turns::{angles, wrap};
use super::{How, Right, frequencies, operands, positions, predicted};
use crate::case::{Axis, Case, Place};
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::describe::table::describe as describe_table;
use crate::fit::{ROOM, least_squares};
use crate::law::{Form, Law};
use crate::number::{Measured, Number, SURE};

/// Different position sequences of a rotation's pairs, at most.
const MOST_SECTIONS: usize = 4;

/// Positions that an axis of an image or a clock may count, with their words and prices.
fn sequences(n: usize) -> Vec<(String, f64, Vec<f64>)> {
    let of = |f: &dyn Fn(usize) -> usize| (0..n).map(|t| f(t) as f64).collect::<Vec<f64>>();
    let mut all = vec![
        ("the position".to_owned(), 0.0, of(&|t| t)),
        ("position 0".to_owned(), 2.0, of(&|_| 0)),
        ("the position in reverse".to_owned(), 5.0, of(&|t| n - 1 - t)),
    ];
    for by in 2..n {
        let bits = 4.0 + choice(by);
        all.push((format!("position div {by}"), bits, of(&|t| t / by)));
        all.push((format!("position mod {by}"), bits, of(&|t| t % by)));
        all.push((format!("position - {by}, at least 0"), bits + 1.0, of(&|t| t.saturating_sub(by))));
        all.push((format!("position, at most {by}"), bits + 1.0, of(&|t| t.min(by))));
        all.push((format!("{by} times the position"), bits, of(&|t| t * by)));
    }
    for by in 1..n.min(64) {
        all.push((format!("position + {by}"), 4.0 + choice(by), of(&|t| t + by)));
    }
    all
}

impl How<'_> {
    /// Each pair at positions of its own, at the right frequencies.
    pub(super) fn sections(&self, right: &[f64]) -> Option<Law> {
        let (n, pairs) = self.turns.z.dim();
        let angle = angles(self.turns);
        let all = sequences(n);
        let holds = |pair: usize, sequence: &[f64]| {
            (0..n).all(|t| {
                let own = angle[[t, pair]];
                !own.is_finite()
                    || wrap(own - sequence[t] * right[pair]).abs() <= 2.0 * SURE * self.turns.error[[t, pair]] + 1e-7
            })
        };
        // Of each pair every sequence that fits: slow ones cannot tell them apart.
        let fits: Vec<Vec<usize>> =
            (0..pairs).map(|pair| (0..all.len()).filter(|&at| holds(pair, &all[at].2)).collect()).collect();
        if fits.iter().any(Vec::is_empty) {
            return None;
        }
        let mut chosen: Vec<usize> = Vec::new();
        let mut open: Vec<usize> = (0..pairs).collect();
        while !open.is_empty() {
            // What gives most of those that are left, the plainest of them.
            let count = |at: usize| open.iter().filter(|&&pair| fits[pair].contains(&at)).count();
            let best = (0..all.len()).max_by(|&a, &b| count(a).cmp(&count(b)).then(all[b].1.total_cmp(&all[a].1)))?;
            open.retain(|&pair| !fits[pair].contains(&best));
            chosen.push(best);
        }
        if chosen.len() < 2 || chosen.len() > MOST_SECTIONS {
            return None;
        }
        let (mut words, mut bits, mut of) = (Vec::new(), 6.0, vec![None; pairs]);
        for &at in &chosen {
            let told = |pair: usize| match (
                fits[pair].contains(&at),
                chosen.iter().filter(|c| fits[pair].contains(c)).count(),
            ) {
                (true, 1) => Some(true),
                (true, _) => None,
                (false, _) => Some(false),
            };
            let set = describe_set(&(0..pairs).map(told).collect::<Vec<_>>(), Axis::Pair, None);
            bits += set.bits + all[at].1;
            for (of, _) in of.iter_mut().zip(&set.has).filter(|(of, has)| of.is_none() && **has) {
                *of = Some(at);
            }
            words.push(format!("{} for {}", all[at].0, set.words.unwrap_or_else(|| "all pairs".to_owned())));
        }
        let of: Vec<usize> = of.into_iter().collect::<Option<_>>()?;
        (0..pairs).all(|pair| fits[pair].contains(&of[pair])).then_some(())?;
        let listed: Vec<Vec<f64>> = of.iter().map(|&at| all[at].2.clone()).collect();
        let made = move |right: &Right| {
            (right.magnitude.dim() == (n, listed.len())).then(|| {
                Array2::from_shape_fn((n, listed.len()), |(t, pair)| {
                    let angle = listed[pair][t] * right.frequencies[pair].value;
                    Complex::from_polar(right.magnitude[[t, pair]], angle)
                })
            })
        };
        let words = format!("pairs are rotated at positions of their own: {}", words.join("; "));
        Some(self.law(Form::RotationPosition, words, bits, Arc::new(made)))
    }
}

/// The turns of one head: a complex number for each position and pair.
type Turn = Array2<Complex<f64>>;

/// Makes the turns of each head of what is right.
pub(super) type ByHead = Arc<dyn Fn(&Right, usize) -> Option<Turn> + Send + Sync>;

/// Each head by angles of its own: other positions, or other frequencies.
pub(super) fn by_head(case: &Case<'_>, right: &Right) -> Vec<Law> {
    let first = case.first();
    let Some((x, own)) = operands(first, &first.own) else { return Vec::new() };
    let (n, heads) = (x.shape()[0], x.shape()[1]);
    if heads < 2 {
        return Vec::new();
    }
    let turns: Vec<_> = (0..heads).map(|h| right.pairing.turns(&x, &own, &[h], first.noise())).collect();
    // One pair of one head is always turned by something: lengths tell that it is a rotation.
    let is_turn = turns.iter().all(|turns| {
        turns.z.indexed_iter().all(|(at, z)| {
            !z.re.is_finite() || (z.norm() / right.magnitude[at] - 1.0).abs() <= ROOM * turns.error[at] + 1e-6
        })
    });
    if !is_turn {
        return Vec::new();
    }
    let due: Vec<f64> = right.frequencies.iter().map(|m| m.value).collect();
    let mut laws = Vec::new();
    laws.extend(positions_by_head(
        &turns.iter().map(|turns| (angles(turns), turns.error.clone())).collect::<Vec<_>>(),
        &due,
        n,
    ));
    let measured: Option<Vec<Vec<Measured>>> =
        turns.iter().map(|turns| frequencies(turns, &positions(n)).map(|(all, _)| all)).collect();
    laws.extend(measured.and_then(|measured| frequencies_by_head(&measured, &due)));
    laws
}

fn law(words: String, bits: f64, form: Form, made: ByHead) -> Law {
    Law::new(form, words, bits, move |case, at| turned_by_head(&case.places[at], &made))
}

/// Each head of a place turned by angles of its own.
pub(super) fn turned_by_head(place: &Place, made: &ByHead) -> Option<ArrayD<f64>> {
    let right = Right::of(place)?;
    let (x, _) = operands(place, &place.right)?;
    let heads = x.shape()[1];
    let mut out: Option<Array3<f64>> = None;
    for head in 0..heads {
        let alone: Vec<bool> = (0..heads).map(|other| other == head).collect();
        let turned = predicted(place, &right.pairing, &alone, &made(&right, head)?)?;
        let turned = turned.into_dimensionality::<ndarray::Ix3>().ok()?;
        let out = out.get_or_insert_with(|| turned.clone());
        out.index_axis_mut(ndarray::Axis(1), head).assign(&turned.index_axis(ndarray::Axis(1), head));
    }
    Some(out?.into_dyn())
}

/// Positions that depend on the head: a t + b h + c.
fn positions_by_head(turns: &[(Array2<f64>, Array2<f64>)], due: &[f64], n: usize) -> Option<Law> {
    let mut all: Vec<(f64, f64, Measured)> = Vec::new();
    for (head, (angle, error)) in turns.iter().enumerate() {
        for t in 0..n {
            all.push((t as f64, head as f64, position(angle, error, t, due)?));
        }
    }
    let column = |f: fn(&(f64, f64, Measured)) -> f64| all.iter().map(f).collect::<Vec<f64>>();
    let (by_t, by_h, wanted) = (column(|x| x.0), column(|x| x.1), column(|x| x.2.value));
    let ones = vec![1.0; all.len()];
    let fit = least_squares(&[&by_t, &by_h, &ones], &wanted, 1e-6)?;
    let numbers: Vec<Number> =
        fit.coefficients.iter().map(|m| Measured::new(m.value, m.error.max(1e-4)).number()).collect();
    let [a, b, c] = [numbers[0].value, numbers[1].value, numbers[2].value];
    if b == 0.0 || !all.iter().all(|(t, h, m)| (m.value - a * t - b * h - c).abs() <= SURE * m.error + 1e-3) {
        return None;
    }
    let terms = numbers.iter().zip(["t", "h", ""]).filter(|(n, _)| n.value != 0.0).map(|(n, what)| match what {
        "" => n.words.clone(),
        _ if n.value == 1.0 => what.to_owned(),
        _ => format!("{} {what}", n.words),
    });
    let words = format!("head h at position t is rotated as position {}", terms.collect::<Vec<_>>().join(" + "));
    let bits = 8.0 + numbers.iter().map(|n| n.bits).sum::<f64>();
    let made = move |right: &Right, head: usize| {
        let at = |t: usize| a * t as f64 + b * head as f64 + c;
        Some(right.angles(at, |pair| right.frequencies[pair].value))
    };
    Some(law(words, bits, Form::RotationPosition, Arc::new(made)))
}

/// Frequencies that have a factor for each head.
fn frequencies_by_head(measured: &[Vec<Measured>], due: &[f64]) -> Option<Law> {
    let of = |own: &Vec<Measured>| {
        let ratios = own.iter().zip(due).map(|(m, due)| Measured::new(m.value / due, m.error / due.abs()));
        let ratios: Vec<Measured> = ratios.collect();
        let one = Measured::mean(ratios.iter().copied());
        ratios.iter().all(|m| m.may_be(one.value)).then_some(one)
    };
    let factors: Vec<Measured> = measured.iter().map(of).collect::<Option<_>>()?;
    let table = describe_table(&factors, Axis::Head, Some(1.0), None)?;
    let values = table.values;
    let words = format!("frequencies are {} times the right ones", table.words);
    let made = move |right: &Right, head: usize| {
        let by = values.get(head)?;
        Some(right.angles(|t| t as f64, |pair| right.frequencies[pair].value * by))
    };
    Some(law(words, table.bits + 4.0, Form::RotationFrequency, Arc::new(made)))
}
