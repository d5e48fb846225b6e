//! Rotations that are none: a sine or cosine with a factor of its own, halves of a head by angles of different pairs, angles that are rounded or wrapped.

mod dimensions;

use std::f64::consts::PI;
use std::sync::Arc;

use ndarray::ArrayD;

use crate::case::Case;
use crate::describe::function::{Function, Of, fitting};
use crate::fit::{ROOM, least_squares, nmse};
use crate::identify::after::Offers;
use crate::identify::output::roundings::digits;
use crate::identify::rotation::{Matrix, Right, combined, combined_of, offer_pairs, operands};
use crate::law::{Form, Law};
use crate::number::{Measured, Number};

/// The laws of rotations whose pairs are not turned by one angle, or by another function of the right one.
pub(crate) fn laws(case: &Case<'_>) -> Vec<Law> {
    let first = case.first();
    let Some(right) = Right::of(first) else { return Vec::new() };
    let mut offers = Offers::of(case);
    if let Some((law, value)) = of_coefficients(case, &right) {
        let law = offers.behind(&value, law);
        offers.laws.extend(law);
    }
    functions_of_angles(case, &right, &mut offers);
    series(&mut offers);
    // An id is large: no turns are counted up to it.
    offers.offer(Form::RotationPosition, "the token's id stands for its position", 6.0, |case, at| {
        let tokens = case.tokens.as_ref()?;
        combined(&case.places[at], &|right, t, j| {
            turned(right, t, j, [f64::from(*tokens.get(t)?) * right.frequencies[j].value; 2])
        })
    });
    // A bias that is added behind, and not turned with what it belongs to.
    let width = case.first().right.shape().iter().skip(1).product();
    for (name, _) in case.operation.vectors(case.fitted, width) {
        let said = format!("{name} is not rotated, but added behind the rotation");
        offers.offer(Form::OutputBias, said, 8.0, move |case, at| {
            let place = &case.places[at];
            let x = place.inputs.first()?;
            let vector = case.operation.vector(at, width, &name)?;
            let rows = vector.iter().copied().cycle().take(x.len()).collect();
            let added = ArrayD::from_shape_vec(x.raw_dim(), rows).ok()?;
            Some(case.operation.apply(at, &[x - &added])? + added.to_shape(place.right.raw_dim()).ok()?)
        });
    }
    for (words, sine, cosine) in TABLES {
        of_table(&mut offers, (*words).to_owned(), 6.0, Arc::new(sine), Arc::new(cosine));
    }
    dimensions::by_dimension(case, &right, &mut offers);
    dimensions::one_after_the_other(&mut offers);
    dimensions::whole_rows(&mut offers);
    layouts(&mut offers);
    for (words, bits, round) in rounded() {
        let other = round.clone();
        let (sine, cosine) = (move |x: f64| round(x.sin()), move |x: f64| other(x.cos()));
        of_table(&mut offers, format!("sine and cosine are {words}"), bits, Arc::new(sine), Arc::new(cosine));
    }
    let pairs = right.frequencies.len();
    type PairMap = fn(usize, usize) -> usize;
    let maps: [(&str, PairMap); 5] = [
        ("its own", |i, _| i),
        ("the next", |i, n| (i + 1).min(n - 1)),
        ("the next, around the end", |i, n| (i + 1) % n),
        ("the one before", |i, _| i.saturating_sub(1)),
        ("the first", |_, _| 0),
    ];
    for (a, (one, of_first)) in maps.into_iter().enumerate() {
        for (b, (other, of_second)) in maps.into_iter().enumerate().filter(|(b, _)| *b != a) {
            let said = format!(
                "the first of each pair is turned by the angle of pair: {one}; the second by that of pair: {other}"
            );
            let bits = 6.0 + 2.0 * ((a > 0) as u8 + (b > 0) as u8) as f64;
            offer_pairs(&mut offers, Form::RotationMatrix, said, bits, move |right, t, j| {
                let angle = |pair: usize| Some(t as f64 * right.frequencies.get(pair)?.value);
                turned(right, t, j, [angle(of_first(j, pairs))?, angle(of_second(j, pairs))?])
            });
        }
    }
    offers.laws
}

/// Tables of sines and cosines that are others.
type Table = fn(f64) -> f64;
const TABLES: &[(&str, Table, Table)] = &[
    ("the absolute value of the sine is taken", |x| x.sin().abs(), f64::cos),
    ("the absolute value of the cosine is taken", f64::sin, |x| x.cos().abs()),
    ("the tangent is taken for the sine", f64::tan, f64::cos),
    ("the sine is the root of 1 - cos^2", |x| other_leg(x.cos()), f64::cos),
    ("the cosine is the root of 1 - sin^2", f64::sin, |x| other_leg(x.sin())),
    ("sine and cosine are squared", |x| x.sin().powi(2), |x| x.cos().powi(2)),
    ("the sine is its first term: the angle", |x| x, f64::cos),
    ("sine and cosine are their first terms: x and 1 - x^2/2", |x| x, |x| 1.0 - x * x / 2.0),
    ("the sine is x - x^3/6", |x| x - x.powi(3) / 6.0, f64::cos),
];

/// The root of 1 - x^2, as 32 bits give it: near one, little is left of x.
fn other_leg(x: f64) -> f64 {
    let x = x as f32;
    f64::from((1.0 - x * x).max(0.0).sqrt())
}

/// Another sine and another cosine of the right angles.
fn of_table(offers: &mut Offers<'_>, words: String, bits: f64, sine: Of, cosine: Of) {
    offer_pairs(offers, Form::RotationMatrix, words, bits, move |right, t, j| {
        let angle = right.angle(t, j);
        Some(right.by_sine(t, j, sine(angle), cosine(angle)))
    });
}

/// Tables of a position that lie otherwise than they are read: of a pair, and of how many there are, where its cosine and its sine are found, counting the
/// cosines first and then the sines.
fn layouts(offers: &mut Offers<'_>) {
    type At = fn(usize, usize) -> usize;
    let layouts: [(&str, At, At); 2] = [
        ("cosines and then sines of all pairs, and is read as cosine and sine in turn", |j, _| 2 * j, |j, _| 2 * j + 1),
        (
            "cosine and sine in turn, and is read as the cosines and then the sines",
            |j, n| j % 2 * n + j / 2,
            |j, n| (n + j) % 2 * n + (n + j) / 2,
        ),
    ];
    // The memory of a table read some numbers off, or with its extents exchanged: where a position and a pair are found, by how many positions there are.
    type Moved = fn(usize, usize, usize, usize) -> usize;
    let moved: [(&str, Moved); 4] = [
        ("one element late in its memory", |t, j, _, n| t * n + j + 1),
        ("one element early in its memory", |t, j, _, n| (t * n + j).saturating_sub(1)),
        ("as memory of pairs by positions", |t, j, rows, n| (t * n + j) % rows * n + (t * n + j) / rows),
        ("as pairs by positions, and that memory as positions by pairs", |t, j, rows, _| j * rows + t),
    ];
    for (words, at_memory) in moved {
        for (what, of_sine, of_cosine) in
            [("the sine", true, false), ("the cosine", false, true), ("the angle", true, true)]
        {
            offer_pairs(offers, Form::RotationMatrix, format!("{what} is read {words}"), 8.0, move |right, t, j| {
                let (rows, n) = right.magnitude.dim();
                let (own, there) = (right.angle(t, j), at_memory(t, j, rows, n));
                let other = right.angle(there / n, there % n);
                let (sine, cosine) = (if of_sine { other } else { own }, if of_cosine { other } else { own });
                Some(right.by_sine(t, j, sine.sin(), cosine.cos()))
            });
        }
    }
    for (words, cosine, sine) in layouts {
        let said = format!("each position's table has {words}");
        offer_pairs(offers, Form::RotationMatrix, said, 7.0, move |right, t, j| {
            let n = right.frequencies.len();
            let held = |at: usize| if at < n { right.angle(t, at).cos() } else { right.angle(t, at - n).sin() };
            Some(right.by_sine(t, j, held(sine(j, n)), held(cosine(j, n))))
        });
    }
}

/// How sines and cosines may be rounded.
fn rounded() -> Vec<(String, f64, Of)> {
    let mut all: Vec<(String, f64, Of)> = digits();
    for parts in [127.0, 128.0, 255.0, 256.0, 1024.0, 32767.0, 32768.0, 64.0, 100.0, 1000.0] {
        let words = format!("rounded to multiples of 1/{parts}");
        all.push((words, 10.0, Arc::new(move |x: f64| (x * parts).round_ties_even() / parts)));
    }
    all
}

/// Angles that are a function of the right ones.
fn functions_of_angles(case: &Case<'_>, right: &Right, offers: &mut Offers<'_>) {
    let first = case.first();
    let angle = right.all_angles();
    let values: Vec<f64> = angle.iter().copied().collect();
    let before = nmse(&first.right, &first.own);
    let near = offers.near;
    let left = |f: &dyn Fn(f64) -> f64| {
        let value = combined_of(first, right, &|t, j| turned(right, t, j, [f(angle[[t, j]]); 2]));
        value.map_or(f64::INFINITY, |value| nmse(&value, &first.own))
    };
    let mut all = fitting(&values, before, near, &|| case.has_time(), &left);
    let mut of_a_turn: Vec<(String, f64, Of)> = vec![("{} taken for degrees".into(), 6.0, Arc::new(f64::to_radians))];
    for (words, turn) in [("pi", PI), ("pi/2", PI / 2.0), ("1", 1.0)] {
        of_a_turn.push((format!("{{}} modulo {words}"), 7.0, Arc::new(move |x: f64| x.rem_euclid(turn))));
    }
    for parts in [8u32, 16, 32, 64, 128, 256, 360, 512, 1024, 2048, 4096, 65536] {
        let step = 2.0 * PI / f64::from(parts);
        let said = |words: &str| format!("{{}}, {words} to 1/{parts} of a turn");
        of_a_turn.push((said("rounded"), 9.0, Arc::new(move |x: f64| (x / step).round_ties_even() * step)));
        of_a_turn.push((said("rounded down"), 9.0, Arc::new(move |x: f64| (x / step).floor() * step)));
    }
    all.extend(of_a_turn.into_iter().map(|(words, bits, f)| Function::new(words, bits, f)));
    for function in all {
        let (said, f) = (format!("angles are {}", function.of("the right ones")), function.f);
        offer_pairs(offers, Form::RotationFrequency, said, function.bits, move |right, t, j| {
            turned(right, t, j, [f(right.angle(t, j)); 2])
        });
    }
}

/// Sines and cosines by the first terms of their series, of the angle as it is or brought near 0.
fn series(offers: &mut Offers<'_>) {
    let to_a_turn = |x: f64| x - 2.0 * PI * (x / (2.0 * PI)).round();
    type Brought = (&'static str, fn(f64) -> f64);
    let brought: [Brought; 3] = [
        ("the angle", |x| x),
        ("the angle brought to -pi .. pi", to_a_turn),
        ("the angle modulo 2 pi", |x| x.rem_euclid(2.0 * PI)),
    ];
    const SINE: [&str; 4] = ["a", "a - a^3/6", "a - a^3/6 + a^5/120", "a - a^3/6 + a^5/120 - a^7/5040"];
    const COSINE: [&str; 4] = ["1", "1 - a^2/2", "1 - a^2/2 + a^4/24", "1 - a^2/2 + a^4/24 - a^6/720"];
    /// Terms of the series that begins with this one, each over the next two numbers times the square.
    fn summed(begin: f64, from: usize, x: f64, terms: usize) -> f64 {
        let (mut term, mut sum) = (begin, 0.0);
        for n in 0..terms {
            sum += term;
            let at = (from + 2 * n) as f64;
            term *= -x * x / ((at + 1.0) * (at + 2.0));
        }
        sum
    }
    for (of, bring) in brought {
        for (sines, sine) in SINE.iter().enumerate() {
            for (cosines, cosine) in COSINE.iter().enumerate().filter(|(cosines, _)| cosines.abs_diff(sines) <= 1) {
                let said = format!("sine is {sine} and cosine {cosine}, a being {of}");
                offer_pairs(offers, Form::RotationMatrix, said, 10.0, move |right, t, j| {
                    let a = bring(right.angle(t, j));
                    Some(right.by_sine(t, j, summed(a, 1, a, sines + 1), summed(1.0, 0, a, cosines + 1)))
                });
            }
        }
    }
}

/// A pair turned: the first of it by one angle, the second by another.
fn turned(right: &Right, t: usize, j: usize, [one, other]: [f64; 2]) -> Option<Matrix> {
    let by = right.magnitude[[t, j]];
    let ((s1, c1), (s2, c2)) = (one.sin_cos(), other.sin_cos());
    Some([by * c1, -by * s1, by * s2, by * c2])
}

/// Coefficients of sines and cosines, the same everywhere: y1 = (a cos + b sin) x1 + (c cos + d sin) x2, and so for y2.
fn of_coefficients(case: &Case<'_>, right: &Right) -> Option<(Law, ArrayD<f64>)> {
    let first = case.first();
    if right.pairing.is_reflected {
        return None;
    }
    let (x, own) = operands(first, &first.own)?;
    let angle = right.all_angles();
    let mut columns: [Vec<f64>; 4] = Default::default();
    let mut wanted: [Vec<f64>; 2] = Default::default();
    for t in 0..x.shape()[0] {
        for (j, (&a, &b)) in right.pairing.first.iter().zip(&right.pairing.second).enumerate() {
            let (sin, cos) = angle[[t, j]].sin_cos();
            let by = right.magnitude[[t, j]];
            for h in 0..x.shape()[1] {
                let (x1, x2) = (by * x[[t, h, a]], by * x[[t, h, b]]);
                columns.iter_mut().zip([x1 * cos, x1 * sin, x2 * cos, x2 * sin]).for_each(|(c, v)| c.push(v));
                wanted[0].push(own[[t, h, a]]);
                wanted[1].push(own[[t, h, b]]);
            }
        }
    }
    let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
    let mut numbers: Vec<Number> = Vec::new();
    for wanted in &wanted {
        let fit = least_squares(&views, wanted, first.noise()).filter(|fit| fit.left <= ROOM * first.noise())?;
        numbers.extend(fit.coefficients.iter().map(Measured::number));
    }
    let said = |numbers: &[Number]| {
        let terms = ["x1 cos", "x1 sin", "x2 cos", "x2 sin"];
        let parts: Vec<String> = numbers
            .iter()
            .zip(terms)
            .filter(|(n, _)| n.value != 0.0)
            .map(|(n, term)| match n.value {
                1.0 => term.to_owned(),
                -1.0 => format!("-{term}"),
                _ => format!("{} {term}", n.words),
            })
            .collect();
        if parts.is_empty() { "0".to_owned() } else { parts.join(" + ").replace("+ -", "- ") }
    };
    let values: Vec<f64> = numbers.iter().map(|n| n.value).collect();
    if values == [1.0, 0.0, 0.0, -1.0, 0.0, 1.0, 1.0, 0.0] {
        return None;
    }
    let words = format!(
        "of each pair (x1, x2) the first is {}, the second {} (right: x1 cos - x2 sin, x1 sin + x2 cos)",
        said(&numbers[..4]),
        said(&numbers[4..])
    );
    let bits = 6.0 + numbers.iter().filter(|n| n.value != 0.0).map(|n| n.bits).sum::<f64>();
    let listed = values.clone();
    let law = Law::new(Form::RotationMatrix, words, bits, move |case, at| {
        combined(&case.places[at], &|right, t, j| {
            let ((sin, cos), by) = (right.angle(t, j).sin_cos(), right.magnitude[[t, j]]);
            let of = |at: usize| by * (values[at] * cos + values[at + 1] * sin);
            Some([of(0), of(2), of(4), of(6)])
        })
    });
    let law = law.with("coefficients", listed);
    let value = law.predicted(case, case.fitted)?;
    Some((law, value))
}
