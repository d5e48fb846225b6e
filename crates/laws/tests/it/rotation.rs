use firstdiff_laws::{Axis, Kind};
use ndarray::ArrayD;

use crate::plant::{Rounded, law_of, said};

const AXES: [Axis; 3] = [Axis::Token, Axis::Head, Axis::Dim];
const SHAPE: [usize; 3] = [16, 4, 16];

/// Each pair of dimensions turned by an angle.
fn rotated(
    x: &ArrayD<f64>,
    pair: impl Fn(usize) -> (usize, usize),
    angle: impl Fn(usize, usize, usize) -> f64,
) -> ArrayD<f64> {
    let mut out = x.clone();
    for t in 0..SHAPE[0] {
        for h in 0..SHAPE[1] {
            for j in 0..SHAPE[2] / 2 {
                let ((a, b), angle) = (pair(j), angle(t, h, j));
                let (p, q) = (x[[t, h, a]], x[[t, h, b]]);
                out[[t, h, a]] = p * angle.cos() - q * angle.sin();
                out[[t, h, b]] = p * angle.sin() + q * angle.cos();
            }
        }
    }
    out
}

fn halves(j: usize) -> (usize, usize) {
    (j, j + SHAPE[2] / 2)
}

fn frequency(base: f64, j: usize) -> f64 {
    base.powf(-2.0 * j as f64 / SHAPE[2] as f64)
}

fn right(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    rotated(&x[0], halves, |t, _, j| t as f64 * frequency(10000.0, j))
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, rounded: Rounded) -> String {
    said(&law_of(Kind::Rotation, &AXES, &[&SHAPE], right, wrong, rounded))
}

#[test]
fn angles_of_another_scale_base_position_or_pairing() {
    assert_eq!(
        law(|_, x| rotated(&x[0], halves, |t, _, j| 1.02 * t as f64 * frequency(10000.0, j)), Rounded::F32),
        "angles are 1.02 times the right ones [rotation.frequency]"
    );
    assert_eq!(
        law(|_, x| rotated(&x[0], halves, |t, _, j| t as f64 * frequency(500000.0, j)), Rounded::F32),
        "frequencies are 500000^(-2j/16) for pair j (the model has 10000) [rotation.frequency]"
    );
    assert_eq!(
        law(|_, x| rotated(&x[0], halves, |t, _, j| (t as f64 + 1.0) * frequency(10000.0, j)), Rounded::F32),
        "positions are the right ones plus 1 [rotation.position]"
    );
    assert_eq!(
        law(|_, x| rotated(&x[0], halves, |t, _, j| (t / 2) as f64 * frequency(10000.0, j)), Rounded::F32),
        "each position i is rotated as position i div 2 [rotation.position]"
    );
    assert_eq!(
        law(|_, x| rotated(&x[0], |j| (2 * j, 2 * j + 1), |t, _, j| t as f64 * frequency(10000.0, j)), Rounded::F32),
        "dimensions 2i and 2i + 1 are rotated together (right: i and i + d/2); the angles are right [rotation.pairing]"
    );
    assert_eq!(
        law(|_, x| rotated(&x[0], halves, |t, _, j| -(t as f64) * frequency(10000.0, j)), Rounded::F32),
        "angles are -1 times the right ones [rotation.frequency]"
    );
}

#[test]
fn some_heads_or_pairs_alone() {
    assert_eq!(
        law(
            |_, x| rotated(&x[0], halves, |t, h, j| if h % 2 == 1 { 0.0 } else { t as f64 * frequency(10000.0, j) }),
            Rounded::F32
        ),
        "nothing is rotated (odd heads) [rotation.position]"
    );
    assert_eq!(
        law(
            |_, x| rotated(&x[0], halves, |t, _, j| if j >= 4 { 0.0 } else { t as f64 * frequency(10000.0, j) }),
            Rounded::F32
        ),
        "angles are 0 for the second half of the pairs (4 to 7), else 1 times the right ones [rotation.frequency]"
    );
}

#[test]
fn rounded_numbers_say_no_more_than_they_know() {
    let law = law(|_, x| rotated(&x[0], halves, |t, _, j| 1.1 * t as f64 * frequency(10000.0, j)), Rounded::Bf16);
    assert!(law.starts_with("angles are 1.1 times the right ones"), "{law}");
}

/// Of a part of a head that is turned the part is named: of one pair, of halves, of neighbours; and of all where all are.
#[test]
fn of_a_part_of_a_head_the_part_is_named() {
    type Rotation = fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>;
    fn part(x: &ArrayD<f64>, pairs: usize, pair: fn(usize, usize) -> (usize, usize)) -> ArrayD<f64> {
        let at = |j: usize| if j < pairs { pair(j, pairs) } else { (2 * j, 2 * j + 1) };
        rotated(x, at, |t, _, j| if j < pairs { t as f64 * 10000f64.powf(-(j as f64) / pairs as f64) } else { 0.0 })
    }
    let cases: [(Rotation, &str); 3] = [
        (|_, x| part(&x[0], 1, |j, n| (j, j + n)), "0 and 1 alone"),
        (|_, x| part(&x[0], 4, |j, n| (j, j + n)), "i and i + d/2 of dimensions 0 to 7 alone, d = 8"),
        (|_, x| part(&x[0], 4, |j, _| (2 * j, 2 * j + 1)), "2i and 2i + 1 of dimensions 0 to 7 alone, d = 8"),
    ];
    for (right, words) in cases {
        let said = said(&law_of(Kind::Rotation, &AXES, &[&SHAPE], right, self::right, Rounded::F32));
        let due = format!("dimensions i and i + d/2 are rotated together (right: {words}); ");
        assert!(said.starts_with(&due), "{said}");
    }
}
