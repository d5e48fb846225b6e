//! Rows of the weight that are rows of another weight, or of another place in this one: a fused matrix that was taken apart otherwise.

use ndarray::{Array1, Array2, ArrayView1};

use super::inputs::bias_of;
use super::{ROOM, Sample, flat, weight_of};
use crate::case::{Axis, Case, OtherWeight};
use crate::describe::{choice, source};
use crate::identify::subject::Subject;
use crate::law::{Form, Law};

/// Rows of one matrix that some outputs have.
#[derive(Clone)]
struct Piece {
    /// `None`: the right one.
    name: Option<OtherWeight>,
    /// Which outputs.
    has: Vec<bool>,
    /// For each of them the row.
    from: Vec<usize>,
}

/// Matrices of which an output may have rows, at most.
const MOST_PIECES: usize = 4;
/// Products that are computed of other rows, at most.
const MOST_ROWS: usize = 1 << 15;
/// Positions from which a row is told by what it gives.
const FEWEST: usize = 4;

/// What each row of a weight gives, less its mean over the positions: a bias is not told from it.
struct Given {
    name: Option<OtherWeight>,
    /// `[T,R]`
    of: Array2<f64>,
    rows: usize,
}

fn centred(x: &Array2<f64>) -> Array2<f64> {
    let mean = x.mean_axis(ndarray::Axis(0)).unwrap_or_else(|| Array1::zeros(x.ncols()));
    x - &mean
}

impl Sample {
    /// Outputs that have rows of several weights, or of other places.
    pub(super) fn other_rows(&self, case: &Case<'_>) -> Option<Law> {
        let due = weight_of(case, case.fitted)?;
        if self.x.nrows() < FEWEST || due.nrows() > MOST_ROWS {
            return None;
        }
        let mut all = vec![Given { name: None, of: centred(&self.x.dot(&due.t())), rows: due.nrows() }];
        for name in case.operation.other_weights(case.fitted) {
            let Some(other) = case.operation.other_weight(case.fitted, &name) else { continue };
            if other.ncols() == self.x.ncols() && other.nrows() <= MOST_ROWS {
                let rows = other.nrows();
                all.push(Given { name: Some(name), of: centred(&self.x.dot(&other.t())), rows });
            }
        }
        let own = centred(&flat(&case.first().own)?);
        let outputs = own.ncols();
        let size = (own.iter().map(|y| y * y).sum::<f64>() / outputs.max(1) as f64).sqrt();
        // Those that were looked at, and those that are right.
        let mut found: Vec<Option<(usize, usize)>> = vec![None; outputs];
        let is_row = |y: ArrayView1<'_, f64>, wanted: ArrayView1<'_, f64>| {
            let off: f64 = y.iter().zip(wanted).map(|(a, b)| (a - b).powi(2)).sum();
            off.sqrt() <= ROOM * self.noise * size
        };
        for (output, found) in found.iter_mut().enumerate() {
            let wanted = own.column(output);
            if is_row(all[0].of.column(output), wanted) {
                *found = Some((0, output));
            }
        }
        let right = found.iter().flatten().count();
        if self.rows.is_empty() || right + self.rows.len() < 2 {
            return None;
        }
        for &output in &self.rows {
            if !case.has_time() {
                return None;
            }
            let wanted = own.column(output);
            let mut fits = all
                .iter()
                .enumerate()
                .flat_map(|(of, given)| (0..given.rows).map(move |row| (of, row)))
                .filter(|&(of, row)| is_row(all[of].of.column(row), wanted));
            let one = fits.next()?;
            // The same in two places cannot be told apart, and is left open.
            found[output] = fits.next().is_none().then_some(one);
        }
        let (pieces, words, bits) = described(&all, &found, outputs)?;
        let law = |is_biased: bool| {
            let pieces = pieces.clone();
            Law::new(Form::LinearWeight, words.clone(), bits + if is_biased { 2.0 } else { 0.0 }, move |case, at| {
                let place = &case.places[at];
                let (x, due) = (flat(place.inputs.first()?)?, weight_of(case, at)?);
                let mut out = flat(&place.right)?;
                let own_bias = bias_by_name(case, at, None, due.nrows())?;
                for piece in &pieces {
                    let other = match &piece.name {
                        None => due.clone(),
                        Some(name) => case.operation.other_weight(at, name)?,
                    };
                    let bias = match is_biased {
                        false => None,
                        true => Some(bias_by_name(case, at, piece.name.as_ref(), other.nrows())?),
                    };
                    (piece.has.len() == due.nrows() && other.ncols() == due.ncols()).then_some(())?;
                    for output in (0..due.nrows()).filter(|&output| piece.has[output]) {
                        let from = piece.from[output];
                        (from < other.nrows()).then_some(())?;
                        let change = x.dot(&(&other.row(from) - &due.row(output)));
                        let mut column = out.column_mut(output);
                        column += &change;
                        if let Some(bias) = &bias {
                            column += bias[from] - own_bias[output];
                        }
                    }
                }
                out.to_shape(place.right.raw_dim()).ok().map(|out| out.into_owned())
            })
        };
        // With the bias that stands there, or with that of the row.
        let subject = Subject::output(case);
        [false, true].into_iter().map(law).find(|law| subject.is_near_by(law, case))
    }
}

/// What the product of a weight adds to its outputs; the right one where it has no name.
fn bias_by_name(case: &Case<'_>, at: usize, name: Option<&OtherWeight>, rows: usize) -> Option<Vec<f64>> {
    let Some(name) = name else { return Some(bias_of(case, at)?.row(0).to_vec()) };
    case.operation.vector(at, rows, &format!("the bias of {name}"))
}

/// The matrices that outputs have rows of, and from where.
fn described(all: &[Given], found: &[Option<(usize, usize)>], outputs: usize) -> Option<(Vec<Piece>, String, f64)> {
    let counts: Vec<usize> = all.iter().map(|given| given.rows.max(outputs)).collect();
    let (mut others, mut words, mut bits) = (Vec::new(), Vec::new(), 4.0);
    for source::Piece { of, on, source } in source::pieces(found, &counts, Axis::Row) {
        let is_right = of == 0 && source.is_itself;
        let name = all[of].name.clone();
        let whose = name.as_ref().map_or_else(|| "the right weight".to_owned(), OtherWeight::to_string);
        let said = on.words.map_or_else(|| "all outputs".to_owned(), |words| words.replace("channel", "output"));
        bits += on.bits + if is_right { 0.0 } else { source.bits + choice(all.len()) };
        if !is_right {
            words.push(format!("{said} have rows of {whose}, output i {}", source.words));
            others.push(Piece { name, has: on.has, from: source.from });
        }
    }
    (!others.is_empty() && others.len() <= MOST_PIECES).then(|| (others, words.join("; "), bits))
}
