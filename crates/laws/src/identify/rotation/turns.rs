//! Which dimensions are rotated together, and by what.

use std::collections::BTreeSet;
use std::f64::consts::PI;

use ndarray::{Array2, Array3};
use num_complex::Complex;

/// Which dimensions of a head are rotated together.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::identify) struct Pairing {
    pub(in crate::identify) words: &'static str,
    pub(in crate::identify) bits: f64,
    pub(in crate::identify) first: Vec<usize>,
    pub(in crate::identify) second: Vec<usize>,
    /// Whether the second is taken with the other sign.
    pub(in crate::identify) is_reflected: bool,
}

/// Pairings of the first `d` dimensions, and of all.
pub(in crate::identify) fn pairings(d: usize) -> Vec<Pairing> {
    let half = d / 2;
    if half == 0 || !d.is_multiple_of(2) {
        return Vec::new();
    }
    let range = |f: &dyn Fn(usize) -> usize| (0..half).map(f).collect::<Vec<_>>();
    let mut all = vec![
        ("i and i + d/2", 0.0, range(&|i| i), range(&|i| i + half)),
        ("2i and 2i + 1", 2.0, range(&|i| 2 * i), range(&|i| 2 * i + 1)),
        ("i and d - 1 - i", 4.0, range(&|i| i), range(&|i| d - 1 - i)),
    ];
    if half.is_multiple_of(2) {
        let quarter = half / 2;
        let at = |i: usize| if i < quarter { i } else { i - quarter + half };
        all.push(("i and i + d/4 within each half", 4.0, range(&at), range(&|i| at(i) + quarter)));
    }
    let with = |(words, bits, first, second): (&'static str, f64, Vec<usize>, Vec<usize>)| {
        [false, true].map(|is_reflected| {
            let bits = bits + if is_reflected { 2.0 } else { 0.0 };
            Pairing { words, bits, first: first.clone(), second: second.clone(), is_reflected }
        })
    };
    all.into_iter().flat_map(with).collect()
}

/// What each pair is multiplied by at each position: a complex number, its angle's standard error, and what that leaves of all.
#[derive(Clone, Debug)]
pub(super) struct Turns {
    pub(super) z: Array2<Complex<f64>>,
    pub(super) error: Array2<f64>,
    pub(super) left: f64,
}

impl Pairing {
    /// In words, where these of its pairs are turned: those of a part of a head are named as the part's.
    pub(super) fn said(&self, is_turned: impl Fn(usize) -> bool) -> String {
        let pairs = |of: &Pairing, from: usize, is: &dyn Fn(usize) -> bool| -> BTreeSet<(usize, usize)> {
            (0..of.first.len()).filter(|&at| is(at)).map(|at| (of.first[at] + from, of.second[at] + from)).collect()
        };
        let (turned, words) = (pairs(self, 0, &is_turned), self.words);
        let Some(&(from, to)) = turned.first().filter(|_| turned.len() < self.first.len()) else { return words.into() };
        let d = 2 * turned.len();
        match pairings(d).into_iter().find(|part| pairs(part, from, &|_| true) == turned) {
            _ if d == 2 => format!("{from} and {to} alone"),
            Some(part) => format!("{} of dimensions {from} to {} alone, d = {d}", part.words, from + d - 1),
            None => format!("{words}, {} of these pairs alone,", turned.len()),
        }
    }

    fn complex(&self, x: &Array3<f64>, at: (usize, usize), pair: usize) -> Complex<f64> {
        let (t, h) = at;
        let second = x[[t, h, self.second[pair]]];
        Complex::new(x[[t, h, self.first[pair]]], if self.is_reflected { -second } else { second })
    }

    /// Measured over these heads.
    pub(super) fn turns(&self, x: &Array3<f64>, y: &Array3<f64>, heads: &[usize], noise: f64) -> Turns {
        let (t, pairs) = (x.shape()[0], self.first.len());
        let (mut z, mut error) = (Array2::zeros((t, pairs)), Array2::zeros((t, pairs)));
        let (mut rest, mut all) = (0.0, 0.0);
        // y is not reflected: what comes out stands as it does.
        let out = Pairing { is_reflected: false, ..self.clone() };
        let size = (y.iter().map(|y| y * y).sum::<f64>() / y.len().max(1) as f64).sqrt();
        for at in 0..t {
            for pair in 0..pairs {
                let (mut cross, mut square) = (Complex::new(0.0, 0.0), 0.0);
                for &h in heads {
                    let (x, y) = (self.complex(x, (at, h), pair), out.complex(y, (at, h), pair));
                    cross += y * x.conj();
                    square += x.norm_sqr();
                }
                let turn = if square > 0.0 { cross / square } else { Complex::new(f64::NAN, f64::NAN) };
                let mut left = 0.0;
                for &h in heads {
                    let (x, y) = (self.complex(x, (at, h), pair), out.complex(y, (at, h), pair));
                    left += (y - turn * x).norm_sqr();
                    all += y.norm_sqr();
                }
                rest += left;
                let each = (left / heads.len().max(2) as f64).sqrt().max(noise * size);
                z[[at, pair]] = turn;
                error[[at, pair]] = each / square.max(f64::MIN_POSITIVE).sqrt() / turn.norm().max(1e-9);
            }
        }
        Turns { z, error, left: (rest / all.max(f64::MIN_POSITIVE)).sqrt() }
    }

    /// The heads of `x` with their pairs multiplied.
    pub(super) fn turned(
        &self,
        x: &Array3<f64>,
        right: &Array3<f64>,
        heads: &[usize],
        z: &Array2<Complex<f64>>,
    ) -> Option<Array3<f64>> {
        let mut out = right.clone();
        if z.dim() != (x.shape()[0], self.first.len()) || x.shape() != right.shape() {
            return None;
        }
        for t in 0..x.shape()[0] {
            for &h in heads.iter().filter(|h| **h < x.shape()[1]) {
                for pair in 0..self.first.len() {
                    let y = self.complex(x, (t, h), pair) * z[[t, pair]];
                    out[[t, h, self.first[pair]]] = y.re;
                    out[[t, h, self.second[pair]]] = y.im;
                }
            }
        }
        Some(out)
    }
}

/// The angle in -pi..pi.
pub(super) fn wrap(angle: f64) -> f64 {
    (angle + PI).rem_euclid(2.0 * PI) - PI
}

pub(super) fn angles(turns: &Turns) -> Array2<f64> {
    turns.z.mapv(|z| z.arg())
}
