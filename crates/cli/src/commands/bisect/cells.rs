//! Translates questions to an engine with other chunks than the reference: from cells of token positions, each within one step of either, to the engine's own
//! steps and rows.

use std::ops::Range;
use std::sync::Arc;

use firstdiff_compare::{ChunkAlignment, Place};
use firstdiff_trace::{Entry, NamedRows, Rows, Tap};

use crate::driver::engine::Question;
use crate::driver::evidence::CollectedTaps;

/// How an engine's steps are aligned with the reference's.
pub(crate) struct StepAlignment {
    pub(crate) alignment: Arc<ChunkAlignment>,
    /// The engine's step of each cell, and the rows of that step.
    list: Vec<(u32, Range<usize>)>,
}

impl StepAlignment {
    pub(crate) fn new(alignment: Arc<ChunkAlignment>) -> StepAlignment {
        let steps = alignment.candidate.ranges();
        let step_and_rows = |cell: &Range<usize>| {
            let step = alignment.candidate.step_of(cell.start)?;
            let start = steps.get(step as usize)?.start;
            Some((step, cell.start - start..cell.end - start))
        };
        let list = alignment.cells.iter().map_while(step_and_rows).collect();
        StepAlignment { alignment, list }
    }

    /// The last cell that both sides have and for which both were fed the same tokens, if there is one.
    pub(crate) fn last_common_cell(&self) -> Option<u32> {
        let together = self.alignment.common_positions();
        let count = self.alignment.cells.iter().take(self.list.len()).take_while(|cell| cell.end <= together).count();
        u32::try_from(count.checked_sub(1)?).ok()
    }

    /// The engine's step that a cell is in.
    pub(crate) fn step(&self, cell: u32) -> Option<u32> {
        self.list.get(cell as usize).map(|(step, _)| *step)
    }

    /// A question about cells, in the engine's own steps and rows.
    pub(crate) fn question(&self, question: &Question) -> Question {
        let end = (question.steps.1 as usize + 1).min(self.list.len());
        let cells = self.list.get(question.steps.0 as usize..end).unwrap_or_default();
        let (Some((first, from)), Some((last, to))) = (cells.first(), cells.last()) else { return question.clone() };
        let length = |step: u32| self.alignment.candidate.lengths.get(step as usize).copied().unwrap_or(0);
        let whole = |(step, rows): &(u32, Range<usize>)| rows.len() == length(*step);
        let rows = if cells.iter().all(whole) {
            question.rows.clone()
        } else if first == last {
            let of_cell = |(_, rows): &(u32, Range<usize>)| rows_in_step(&question.rows, rows.clone());
            Rows::List(cells.iter().flat_map(of_cell).collect())
        } else {
            Rows::Named(NamedRows::All)
        };
        let all = matches!(&rows, Rows::List(list) if list.len() == length(*first))
            && (from.start, to.end) == (0, length(*first));
        let rows = if all { Rows::Named(NamedRows::All) } else { rows };
        Question { taps: question.taps.clone(), steps: (*first, *last), rows }
    }

    /// The cells of which the engine wrote something.
    pub(crate) fn written_cells(&self, entry: &Entry) -> Vec<Place> {
        let has = |rows: &Range<usize>| match &entry.rows {
            Some(Rows::List(list)) => list.iter().any(|row| rows.contains(row)),
            Some(Rows::Named(NamedRows::Last)) => {
                self.alignment.candidate.lengths.get(entry.step as usize).is_some_and(|&length| rows.end == length)
            }
            _ => true,
        };
        let here = |(_, (step, rows)): &(u32, &(u32, Range<usize>))| *step == entry.step && has(rows);
        (0..).zip(&self.list).filter(here).map(|(cell, _)| Place { step: cell, tap: entry.tap }).collect()
    }

    /// Whether row `row` of a cell was seen; all of it where `None`.
    pub(crate) fn is_collected(&self, evidence: &CollectedTaps, cell: u32, tap: Tap, row: Option<usize>) -> bool {
        let Some((step, rows)) = self.list.get(cell as usize) else { return false };
        let mut rows = row.map_or(rows.clone(), |row| rows.start + row..rows.start + row + 1);
        rows.all(|row| evidence.is_collected(Place { step: *step, tap }, Some(row)))
    }

    /// Whether one of these rows of a cell was seen twice; any row where none is given.
    pub(crate) fn repeated(&self, evidence: &CollectedTaps, cell: u32, tap: Tap, rows: &[usize]) -> bool {
        let Some((step, own)) = self.list.get(cell as usize) else { return false };
        let named: Vec<usize> = rows.iter().map(|row| own.start + row).collect();
        let rows = if named.is_empty() { own.clone().collect() } else { named };
        evidence.repeats_of(Place { step: *step, tap }, &rows)
    }
}

/// Rows of a cell as rows of the engine's step.
fn rows_in_step(rows: &Rows, cell: Range<usize>) -> Vec<usize> {
    match rows {
        Rows::Named(NamedRows::All) => cell.collect(),
        Rows::Named(NamedRows::Last) => vec![cell.end - 1],
        Rows::List(list) => list.iter().map(|row| cell.start + row).filter(|row| cell.contains(row)).collect(),
    }
}
