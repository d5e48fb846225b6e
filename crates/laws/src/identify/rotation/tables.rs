//! Cosines and sines of other entries of their table, angles that are rounded, positions counted over rows of heads.

use std::sync::Arc;

use super::sections::{ByHead, turned_by_head};
use super::{Right, offer_pairs, operands};
use crate::case::Case;
use crate::identify::after::Offers;
use crate::identify::output::roundings::digits;
use crate::law::{Form, Law};

/// The angles whose cosine and whose sine a pair has at a position: of position, pair, and what is right.
type Angles = Arc<dyn Fn(&Right, usize, usize) -> (f64, f64) + Send + Sync>;

/// Positions up to which a table is tried to stop.
const MOST_STOPS: usize = 64;
/// Positions that tables are made for.
const LENGTHS: [usize; 10] = [32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 32768];

/// Rotations by other entries of right tables.
pub(super) fn of_tables(case: &Case<'_>, right: &Right) -> Vec<Law> {
    let (positions, pairs) = right.magnitude.dim();
    let mut offers = Offers::of(case);
    let mut all: Vec<(Form, String, f64, Angles)> = Vec::new();
    all.extend(halves(positions));
    all.extend(transposed(positions, pairs));
    all.extend(rounded());
    for (form, words, bits, angles) in all {
        offer_pairs(&mut offers, form, words, bits, move |right, t, pair| {
            let (cosine, sine) = angles(right, t, pair);
            Some(right.by_sine(t, pair, sine.sin(), cosine.cos()))
        });
    }
    over_heads(case, &mut offers);
    offers.laws
}

/// One of the two is that of another position.
fn halves(positions: usize) -> Vec<(Form, String, f64, Angles)> {
    type Other = Arc<dyn Fn(usize) -> usize + Send + Sync>;
    let mut others: Vec<(String, f64, Other)> = vec![
        ("the position before (the first: its own)".into(), 6.0, Arc::new(|t| t.saturating_sub(1))),
        ("the next position".into(), 6.0, Arc::new(|t| t + 1)),
        ("twice the position".into(), 7.0, Arc::new(|t| 2 * t)),
    ];
    for last in 0..positions.saturating_sub(1).min(MOST_STOPS) {
        let words = match last {
            0 => "position 0".to_owned(),
            _ => format!("the position, at most {last}: from position {} on it is that of position {last}", last + 1),
        };
        others.push((words, 8.0, Arc::new(move |t| t.min(last))));
    }
    let mut all: Vec<(Form, String, f64, Angles)> = Vec::new();
    for (whose, bits, other) in others {
        let (of_sine, of_cosine) = (other.clone(), other);
        let sine = format!("the cosine is that of the position, the sine is that of {whose}");
        all.push((
            Form::RotationPosition,
            sine,
            bits,
            Arc::new(move |r, t, p| (r.angle(t, p), r.angle(of_sine(t), p))),
        ));
        let cosine = format!("the sine is that of the position, the cosine is that of {whose}");
        all.push((
            Form::RotationPosition,
            cosine,
            bits,
            Arc::new(move |r, t, p| (r.angle(of_cosine(t), p), r.angle(t, p))),
        ));
    }
    all
}

/// Tables that are made with their axes the other way round than they are read.
fn transposed(positions: usize, pairs: usize) -> Vec<(Form, String, f64, Angles)> {
    let lengths = std::iter::once(positions).chain(LENGTHS.into_iter().filter(|length| *length > positions));
    let mut seen = false;
    let mut all: Vec<(Form, String, f64, Angles)> = Vec::new();
    for length in lengths {
        let of_one_pair = positions * pairs <= length;
        // Where all that is read lies in the first row, longer tables are no other.
        if of_one_pair && std::mem::replace(&mut seen, true) {
            continue;
        }
        let words = match of_one_pair {
            true => format!(
                "tables of cosines and sines are made [{pairs},n] and read [n,{pairs}]: at position t pair i has the angle of pair 0 at position {pairs} t + i"
            ),
            false => format!(
                "tables of cosines and sines are made [{pairs},{length}] and read [{length},{pairs}]: at position t pair i has entry {pairs} t + i of them"
            ),
        };
        let angles: Angles = Arc::new(move |right, t, pair| {
            let entry = t * pairs + pair;
            let angle = (entry % length) as f64 * right.frequencies[entry / length % pairs].value;
            (angle, angle)
        });
        all.push((Form::RotationPosition, words, 8.0, angles));
    }
    all
}

/// Angles, frequencies, or cosines and sines that are rounded on the way.
fn rounded() -> Vec<(Form, String, f64, Angles)> {
    let mut all: Vec<(Form, String, f64, Angles)> = Vec::new();
    type Whole = fn(f64) -> f64;
    let whole: [(&str, Whole); 2] = [("cut", f64::floor), ("rounded", f64::round)];
    let mut add = |form: Form, words: String, bits: f64, angles: Angles| all.push((form, words, bits, angles));
    let both = |angle: f64| (angle, angle);
    for (words, f) in whole {
        let angles: Angles = Arc::new(move |right, t, pair| both(f(near_whole(right.angle(t, pair)))));
        add(Form::RotationFrequency, format!("angles are {words} to whole radians"), 8.0, angles);
    }
    for (words, bits, f) in digits() {
        let (of_angle, of_frequency) = (f.clone(), f.clone());
        let angles: Angles = Arc::new(move |right, t, pair| both(of_angle(right.angle(t, pair))));
        add(Form::RotationFrequency, format!("angles are {words}"), bits + 2.0, angles);
        let angles: Angles = Arc::new(move |right, t, pair| both(t as f64 * of_frequency(right.angle(1, pair))));
        add(Form::RotationFrequency, format!("frequencies are {words}"), bits + 2.0, angles);
        // An angle whose cosine and sine are these is as good as they are.
        let angles: Angles = Arc::new(move |right, t, pair| {
            let (sin, cos) = right.angle(t, pair).sin_cos();
            (f(cos).clamp(-1.0, 1.0).acos(), f(sin).clamp(-1.0, 1.0).asin())
        });
        add(Form::RotationMagnitude, format!("cosines and sines are {words}"), bits + 2.0, angles);
    }
    all
}

/// A measured number, or the whole number that it may be.
fn near_whole(x: f64) -> f64 {
    if (x - x.round()).abs() <= NEAR_WHOLE * (1.0 + x.abs()) { x.round() } else { x }
}

/// By what share a measured angle may be off.
const NEAR_WHOLE: f64 = 1e-6;

/// Positions that are counted over rows of heads: (a t + h) div c, or mod c.
fn over_heads(case: &Case<'_>, offers: &mut Offers<'_>) {
    let Some(heads) = operands(case.first(), &case.first().right).map(|(x, _)| x.shape()[1]) else { return };
    if heads < 2 {
        return;
    }
    type Of = fn(usize, usize) -> usize;
    let ways: [(&str, Of); 2] = [("div", |n, by| n / by), ("mod", |n, by| n % by)];
    for by in 2..=(2 * heads).max(8) {
        for (word, of) in ways {
            let words = format!("head h at position t is rotated as position ({heads} t + h) {word} {by}");
            let made: ByHead = Arc::new(move |right, head| {
                Some(right.angles(|t| of(t * heads + head, by) as f64, |pair| right.frequencies[pair].value))
            });
            offers.offer(Form::RotationPosition, words, 8.0, move |case, at| turned_by_head(&case.places[at], &made));
        }
    }
}
