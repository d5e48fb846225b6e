//! In which form does the candidate hold its rows, by those of the reference? Where a fault lies above, no row is near any of the reference's, and these say nothing.

use std::rc::Rc;

use firstdiff_trace::{Dump, DumpError};

use crate::experts::choice::Choices;
use crate::experts::form::{Piece, Reading};
use crate::experts::source::{Block, Held, Wanted};
use crate::experts::votes::{RowVotes, row_distance};

/// What the reference's rows say of each reading.
///
/// # Errors
/// When a tensor cannot be read.
pub(super) fn votes(
    dumps: [&Dump; 2],
    wanted: &Wanted,
    held: &Held,
    choices: &Choices,
    readings: &[Reading],
    alike: Vec<usize>,
) -> Result<RowVotes, DumpError> {
    let mut votes = RowVotes::new(alike);
    let mut number = 0;
    for block in held.blocks().into_iter().filter(|_| readings.len() > 1) {
        of_block(dumps, wanted, held, choices, block, readings, &mut number, &mut votes)?;
    }
    Ok(votes)
}

/// What those of one block say. `number` is that of the next expert.
#[expect(clippy::too_many_arguments)]
fn of_block(
    [reference, candidate]: [&Dump; 2],
    wanted: &Wanted,
    held: &Held,
    choices: &Choices,
    block: &Block,
    readings: &[Reading],
    number: &mut usize,
    votes: &mut RowVotes,
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
        let piece = |reading: &Reading| {
            let piece = reading.pieces.get(block).and_then(|pieces| pieces.get(&expert));
            piece
                .filter(|piece| is_of_the_same_tokens(piece, reading, choices, block, expert, entry.shape[0]))
                .is_some()
        };
        let fits: Vec<bool> = readings.iter().map(piece).collect();
        for at in 0..entry.shape[0] {
            let off = |(reading, fits): (&Reading, &bool)| {
                let piece = fits.then(|| reading.pieces.get(block)?.get(&expert)).flatten()?;
                let sends = |choice: &crate::experts::choice::Choice| choice.sends(at, expert);
                let taken = match reading.order {
                    Some(_) => piece.rows.get(at),
                    // What a token is that only one side sends there says nothing.
                    None if !choices.reference.get(block).is_none_or(sends) => None,
                    None => piece.rows.get(piece.tokens.iter().position(|&token| token == at)?),
                };
                let (due, own) = (theirs.chunks_exact(width).nth(at)?, ours.chunks_exact(width).nth(*taken?)?);
                row_distance(own, due)
            };
            votes.add(*number, readings.iter().zip(&fits).map(off).collect());
        }
        *number += 1;
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
