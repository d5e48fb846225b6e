//! In which form does the candidate hold its rows? The one that leaves far less of the reference's than every other of the rows that the two read differently.

use std::rc::Rc;

use firstdiff_trace::{Dump, DumpError};

use crate::experts::choice::Choices;
use crate::experts::form::{Piece, Reading};
use crate::experts::source::{Block, Held, Wanted};
use crate::tolerance::experts::{ROW_IS_SAME, ROW_TELLS};

/// What a reading takes for a row of the reference, and how far off that is, 1 at the most.
type Row = Option<(usize, f64)>;

/// The reading of the candidate's rows that is far better than all others; `None` where there is none.
///
/// # Errors
/// When a tensor cannot be read.
pub(super) fn likely<'r>(
    dumps: [&Dump; 2],
    wanted: &Wanted,
    held: &Held,
    choices: &Choices,
    readings: &'r [Reading],
) -> Result<Option<&'r Reading>, DumpError> {
    let mut off: Vec<Vec<Row>> = readings.iter().map(|_| Vec::new()).collect();
    for block in held.blocks() {
        of_block(dumps, wanted, held, choices, block, readings, &mut off)?;
    }
    let is_better = |one: usize, other: usize| {
        if readings[one].reads_as(&readings[other]) {
            return true;
        }
        let pairs = off[one].iter().zip(&off[other]).filter_map(|(one, other)| Some(((*one)?, (*other)?)));
        let differ = pairs.filter(|(one, other)| one.0 != other.0 && one.1.max(other.1) > ROW_IS_SAME);
        let (own, others) = differ.fold((0.0, 0.0), |sum, (one, other)| (sum.0 + one.1, sum.1 + other.1));
        others > 0.0 && own <= ROW_TELLS * others
    };
    let is_best = |&one: &usize| (0..readings.len()).filter(|&other| other != one).all(|other| is_better(one, other));
    Ok((0..readings.len()).find(is_best).map(|best| &readings[best]))
}

/// What each reading takes for the reference's rows of one block.
fn of_block(
    [reference, candidate]: [&Dump; 2],
    wanted: &Wanted,
    held: &Held,
    choices: &Choices,
    block: &Block,
    readings: &[Reading],
    off: &mut [Vec<Row>],
) -> Result<(), DumpError> {
    let (width, Some(experts)) = (wanted.width(), wanted.blocks.get(block)) else { return Ok(()) };
    let mut all = None;
    for (&expert, entry) in experts {
        let Some(source) = held.source(block, expert) else { continue };
        let read = || Ok::<_, DumpError>(Rc::new(candidate.read(source)?.values().to_f64()));
        let ours = match (&all, held) {
            (Some(all), Held::Together(_)) => Rc::clone(all),
            _ => Rc::clone(all.insert(read()?)),
        };
        let theirs = reference.read(entry)?.values().to_f64();
        for (reading, off) in readings.iter().zip(&mut *off) {
            let piece = reading.pieces.get(block).and_then(|pieces| pieces.get(&expert));
            let piece =
                piece.filter(|piece| is_of_the_same_tokens(piece, reading, choices, block, expert, entry.shape[0]));
            for at in 0..entry.shape[0] {
                let taken = piece.and_then(|piece| match reading.order {
                    Some(_) => piece.rows.get(at),
                    None => piece.rows.get(piece.tokens.iter().position(|&token| token == at)?),
                });
                off.push(taken.and_then(|&taken| {
                    let (due, own) = (theirs.chunks_exact(width).nth(at)?, ours.chunks_exact(width).nth(taken)?);
                    Some((taken, distance(own, due)))
                }));
            }
        }
    }
    Ok(())
}

/// Whether the reference has rows of the same tokens, as far as anybody says.
fn is_of_the_same_tokens(
    piece: &Piece,
    reading: &Reading,
    choices: &Choices,
    block: &Block,
    expert: usize,
    rows: usize,
) -> bool {
    match (reading.order, choices.reference.get(block)) {
        (None, _) => piece.tokens.iter().all(|&token| token < rows),
        (Some(_), None) => piece.rows.len() == rows,
        (Some(order), Some(choice)) => {
            piece.rows.len() == rows
                && choice.rows_of(expert, order).iter().map(|row| row.0).eq(piece.tokens.iter().copied())
        }
    }
}

/// The squared distance of two rows as a share of what is due, 1 at the most.
fn distance(own: &[f64], due: &[f64]) -> f64 {
    let apart: f64 = own.iter().zip(due).map(|(own, due)| (own - due) * (own - due)).sum();
    let size: f64 = due.iter().map(|due| due * due).sum();
    match apart > 0.0 || apart.is_nan() {
        true => Some(apart / size).filter(|share| share.is_finite()).map_or(1.0, |share| share.min(1.0)),
        false => 0.0,
    }
}
