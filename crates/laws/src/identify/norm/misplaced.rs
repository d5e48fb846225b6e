//! Norms whose divisors are another row's for some elements, whose sums are of other numbers, or that are carried out again and again on one head.

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use super::{Right, matrix, output_of};
use crate::case::{Case, Place};
use crate::identify::after::Offers;
use crate::identify::output::roundings::{OfValue, digits};
use crate::identify::statistics::mean_square;
use crate::law::{Form, Law};

/// Rows and channels of a norm, and its rows at one position: heads.
#[derive(Clone, Copy)]
struct Extents {
    rows: usize,
    width: usize,
    inside: usize,
}

/// Whose divisor an element has: of a row and a channel the row.
type Whose = Arc<dyn Fn(Extents, usize, usize) -> usize + Send + Sync>;

/// The laws of such norms.
pub(super) fn misplaced(case: &Case<'_>) -> Vec<Law> {
    let mut offers = Offers::of(case);
    let Some(extents) = extents(case.first()) else { return Vec::new() };
    for (words, bits, whose) in others(extents) {
        offers.offer(Form::NormDivisor, words, bits, move |case, at| {
            made(case, at, |right, x, extents| {
                let due = right.divisor(x);
                Some(Array2::from_shape_fn(x.dim(), |(r, c)| due[whose(extents, r, c).min(extents.rows - 1)]))
            })
        });
    }
    for (words, bits, f) in square_functions() {
        offers.offer(Form::NormDivisor, words, bits, move |case, at| {
            made(case, at, |right, x, _| {
                let root = |r: usize| {
                    let squares = x.row(r).iter().map(|x| f(x * x)).sum::<f64>();
                    (squares / x.ncols() as f64 + right.epsilon).max(0.0).sqrt()
                };
                Some(by_row(x, &(0..x.nrows()).map(root).collect::<Vec<_>>()))
            })
        });
    }
    for blocks in [2usize, 4, 8, 16, 32].into_iter().filter(|n| extents.width.is_multiple_of(*n)) {
        for (what, of) in ROOTS {
            let words = format!(
                "each of {blocks} blocks of {} channels takes its own root mean square, and the row is divided by the {what} of these",
                extents.width / blocks
            );
            offers.offer(Form::NormDivisor, words, 9.0, move |case, at| {
                made(case, at, |right, x, _| {
                    let roots = |row: &[f64]| -> Vec<f64> {
                        row.chunks(row.len() / blocks)
                            .map(|block| (mean_square(block) + right.epsilon).sqrt())
                            .collect()
                    };
                    let due: Vec<f64> = x.rows().into_iter().map(|row| of(&roots(&row.to_vec()))).collect();
                    Some(by_row(x, &due))
                })
            });
        }
    }
    again(&mut offers, extents);
    offers.laws
}

/// What is made of the roots of several blocks.
type OfRoots = fn(&[f64]) -> f64;
const ROOTS: [(&str, OfRoots); 3] = [
    ("mean", |roots| roots.iter().sum::<f64>() / roots.len() as f64),
    ("sum", |roots| roots.iter().sum()),
    ("largest", |roots| roots.iter().copied().fold(0.0, f64::max)),
];

fn extents(place: &Place) -> Option<Extents> {
    let (rows, width) = matrix(place.inputs.first()?)?.dim();
    let positions = *place.right.shape().first()?;
    (rows.is_multiple_of(positions.max(1)) && positions > 0).then(|| Extents { rows, width, inside: rows / positions })
}

fn by_row(x: &Array2<f64>, due: &[f64]) -> Array2<f64> {
    Array2::from_shape_fn(x.dim(), |(r, _)| due[r])
}

/// A place's norm with a divisor for each element.
fn made(
    case: &Case<'_>,
    at: usize,
    divisors: impl Fn(&Right, &Array2<f64>, Extents) -> Option<Array2<f64>>,
) -> Option<ArrayD<f64>> {
    let extents = extents(case.places.get(at)?)?;
    output_of(case, at, |right, x| {
        let x = right.inner(&x);
        let by = divisors(right, &x, extents)?;
        let ones = vec![1.0; x.nrows()];
        Some(right.applied(x / by, &ones, &right.gain, true))
    })
}

/// The rows that elements may have the divisors of, with words and prices.
fn others(e: Extents) -> Vec<(String, f64, Whose)> {
    let mut all: Vec<(String, f64, Whose)> = vec![
        (
            format!(
                "divisors are repeated along the other axis: element n of the whole tensor is divided by the divisor of row n mod {}",
                e.rows
            ),
            8.0,
            Arc::new(|e, r, c| (r * e.width + c) % e.rows),
        ),
        (
            format!(
                "divisors are taken by channel: channel c of every row is divided by the divisor of row c mod {}",
                e.rows
            ),
            8.0,
            Arc::new(|e, _, c| c % e.rows),
        ),
    ];
    if e.inside > 1 {
        let positions = e.rows / e.inside;
        all.push((
            format!("divisors of heads are written [T,H] and read [H,T]: head h of position t has number {positions} h + t of them"),
            8.0,
            Arc::new(|e, r, _| r % e.inside * (e.rows / e.inside) + r / e.inside),
        ));
        all.push((
            format!(
                "divisors of heads are written [H,T] and read [T,H]: head h of position t has number {} t + h of them",
                e.inside
            ),
            8.0,
            Arc::new(|e, r, _| r % (e.rows / e.inside) * e.inside + r / (e.rows / e.inside)),
        ));
    }
    type Neighbour = fn(Extents, usize) -> usize;
    let neighbours: [(&str, Neighbour); 4] = [
        ("the row before", |e, r| if r < e.inside { r } else { r - e.inside }),
        ("the next row", |e, r| if r + e.inside < e.rows { r + e.inside } else { r }),
        ("the first row", |e, r| r % e.inside),
        ("the last row", |e, r| e.rows - e.inside + r % e.inside),
    ];
    for parts in [2usize, 4, 8].into_iter().filter(|parts| e.width.is_multiple_of(*parts)) {
        for at in (1..parts).filter(|at| parts == 2 || at % 2 == 1) {
            let cut = at * e.width / parts;
            for (whose, of) in neighbours {
                for is_behind in [true, false] {
                    let (from, to) = if is_behind { (cut, e.width - 1) } else { (0, cut - 1) };
                    let words = format!("channels {from} to {to} are divided by the divisor of {whose}");
                    all.push((words, 9.0, Arc::new(move |e, r, c| if (c >= cut) == is_behind { of(e, r) } else { r })));
                }
            }
        }
    }
    all
}

/// What squares may become before they are added up, with words and prices.
fn square_functions() -> Vec<(String, f64, OfValue)> {
    let mut all: Vec<(String, f64, OfValue)> = vec![
        ("cut to a whole number".to_owned(), 7.0, Arc::new(f64::floor)),
        ("rounded to a whole number".to_owned(), 7.0, Arc::new(f64::round)),
    ];
    all.extend(digits());
    all.into_iter()
        .map(|(words, bits, f)| (format!("each square is {words} before the mean is taken"), bits + 2.0, f))
        .collect()
}

/// Norms of norms: of all rows, or of one head as often as there are heads, where the others are left as they are.
fn again(offers: &mut Offers<'_>, of: Extents) {
    let normed = |x: Array2<f64>, right: &Right, times: usize| {
        (0..times).fold(x, |x, _| {
            let x = right.inner(&x);
            let due = right.divisor(&x);
            right.applied(x, &due, &right.gain, true)
        })
    };
    for times in 2..=4usize {
        let words = format!("rows are normed {times} times, one time after the other, with the gain each time");
        offers.offer(Form::NormInput, words, 8.0, move |case, at| {
            output_of(case, at, |right, x| Some(normed(x, right, times)))
        });
    }
    for head in (0..of.inside).filter(|_| of.inside > 1) {
        let words = format!(
            "head {head} is normed {} times, one time after the other with the gain each time, and the other heads are left as they are",
            of.inside
        );
        offers.offer(Form::NormInput, words, 9.0, move |case, at| {
            let inside = extents(&case.places[at])?.inside;
            output_of(case, at, |right, x| {
                let all = normed(x.clone(), right, inside);
                let is = |r: usize| r % inside == head;
                Some(Array2::from_shape_fn(x.dim(), |at| if is(at.0) { all[at] } else { x[at] }))
            })
        });
    }
}
