//! Measures with the reference's rows in which form the candidate holds its rows of experts. After a fault no row is near any row of the reference, and
//! nothing is decided.

use std::rc::Rc;

use firstdiff_trace::{Dump, DumpError};

use crate::experts::choice::{ExpertChoice, ExpertChoices};
use crate::experts::form::{RowIndices, RowReading};
use crate::experts::source::{Block, CandidateSite, ReferenceSite};
use crate::experts::votes::{RowVotes, row_distance};

/// A site of both runs, and the possible readings of its rows.
pub(super) struct RowEvidence<'a> {
    pub(super) reference: &'a Dump,
    pub(super) candidate: &'a Dump,
    pub(super) reference_site: &'a ReferenceSite,
    pub(super) candidate_site: &'a CandidateSite,
    pub(super) choices: &'a ExpertChoices,
    pub(super) readings: &'a [RowReading],
}

impl RowEvidence<'_> {
    /// How well each reading fits the reference's rows. Readings with the same number in `groups` take the same rows.
    ///
    /// # Errors
    /// When a tensor cannot be read.
    pub(super) fn votes(&self, groups: Vec<usize>) -> Result<RowVotes, DumpError> {
        let mut votes = RowVotes::new(groups);
        let (mut number, is_open) = (0, self.readings.len() > 1);
        for (block, experts) in self.reference_site.blocks.iter().filter(|_| is_open) {
            let mut all: Option<Rc<Vec<f64>>> = None;
            for (&expert, entry) in experts {
                let Some(source) = self.candidate_site.source(block, expert) else { continue };
                let ours = match (&all, self.candidate_site) {
                    (Some(all), CandidateSite::Together(_)) => Rc::clone(all),
                    _ => Rc::clone(all.insert(Rc::new(self.candidate.read(source)?.values().to_f64()))),
                };
                let theirs = self.reference.read(entry)?.values().to_f64();
                let of_reading = |reading| self.distances(reading, block, expert, &ours, &theirs);
                let distances: Vec<Vec<Option<f64>>> = self.readings.iter().map(of_reading).collect();
                for row in 0..entry.shape[0] {
                    votes.add(number, distances.iter().map(|rows| rows.get(row).copied().flatten()).collect());
                }
                number += 1;
            }
        }
        Ok(votes)
    }

    /// The distance that a reading leaves for each of the reference's rows of an expert.
    fn distances(
        &self,
        reading: &RowReading,
        block: &Block,
        expert: usize,
        ours: &[f64],
        theirs: &[f64],
    ) -> Vec<Option<f64>> {
        let (width, choice) = (self.reference_site.width(), self.choices.reference.get(block));
        let rows = theirs.len() / width;
        let piece = reading.pieces.get(block).and_then(|pieces| pieces.get(&expert));
        let Some(piece) = piece.filter(|piece| is_of_the_same_tokens(piece, reading, choice, expert, rows)) else {
            return Vec::new();
        };
        let off = |(at, due): (usize, &[f64])| {
            let taken = match reading.order {
                Some(_) => piece.rows.get(at),
                // A token that only one side sends there decides nothing.
                None if !choice.is_none_or(|choice| choice.sends(at, expert)) => None,
                None => piece.rows.get(piece.tokens.iter().position(|&token| token == at)?),
            };
            row_distance(ours.chunks_exact(width).nth(*taken?)?, due)
        };
        theirs.chunks_exact(width).enumerate().map(off).collect()
    }
}

/// Whether the reference has rows of the same tokens, as far as that is recorded.
fn is_of_the_same_tokens(
    piece: &RowIndices,
    reading: &RowReading,
    choice: Option<&ExpertChoice>,
    expert: usize,
    rows: usize,
) -> bool {
    match (reading.order, choice) {
        (None, _) => piece.tokens.iter().all(|&token| token < rows),
        (Some(_), None) => piece.rows.len() == rows,
        (Some(order), Some(choice)) => {
            piece.rows.len() == rows
                && choice.rows_of(expert, order).iter().map(|row| row.0).eq(piece.tokens.iter().copied())
        }
    }
}
