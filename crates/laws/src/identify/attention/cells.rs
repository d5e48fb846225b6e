//! Rows of the keys' cache: whose row each is, told by the scores that it gives with all queries.

use std::sync::Arc;

use ndarray::{Array2, Array3, s};

use super::field::Field;
use super::scores::scaled;
use super::{Draft, How, LOG_ROOM, Made};
use crate::identify::cells::{Cell, Cells};
use crate::law::Form;

/// Positions times key heads up to which rows are looked for.
const MOST: usize = 1 << 10;
/// Cells of a column that are enough to tell one from another.
const SAMPLE: usize = 64;

impl How<'_> {
    /// Keys of which some are other rows of the cache.
    pub(super) fn rows_of_keys(&mut self, field: &Field) {
        let Some(found) = self.cells_of_keys(field) else { return };
        let Some(cells) = Cells::of(&found) else { return };
        let words = match &cells.positions {
            Some(words) => format!("keys of position i are those of {words}"),
            None => format!("the keys of each position and key head are {}", cells.words),
        };
        let bits = 5.0 + cells.bits;
        let made: Made = Arc::new(move |_, _, right| scaled(&right.q, &cells.rows(&right.k)?, right));
        self.offer(Draft::new(Form::ScoreSource, words, bits), made, None, true);
    }

    /// Whose key each is. The constant of each row is told by the key that is seen most often: of each row of the cache it is tried whether it is that one, its own
    /// first.
    fn cells_of_keys(&self, field: &Field) -> Option<Array2<Option<Option<Cell>>>> {
        let right = self.right;
        let (keys, key_heads, _) = right.k.dim();
        let (heads, rows, _) = self.own.dim();
        if keys * key_heads > MOST {
            return None;
        }
        let near = LOG_ROOM * field.each();
        // What every row of the cache gives with every query.
        let cells: Vec<Cell> = (0..keys).flat_map(|key| (0..key_heads).map(move |head| (key, head))).collect();
        let score = |h: usize, t: usize, (key, head): Cell| {
            right.scale[h] * right.q.slice(s![t, h, ..]).dot(&right.k.slice(s![key, head, ..]))
        };
        let scores = Array3::from_shape_fn((heads, rows, cells.len()), |(h, t, at)| score(h, t, cells[at]));
        let given = |h: usize, t: usize, cell: Option<Cell>| {
            cell.map_or(0.0, |(key, head)| scores[[h, t, key * key_heads + head]])
        };
        let mut found = Array2::from_elem((keys, key_heads), None);
        for head in 0..key_heads {
            let of: Vec<(usize, usize)> = (0..heads)
                .filter(|h| right.key_head[*h] == head)
                .flat_map(|h| (0..rows).map(move |t| (h, t)))
                .collect();
            let counts = |key: usize| of.iter().filter(|(h, t)| field.counted[[*h, *t, key]]).count();
            let base = (0..keys).max_by_key(|&key| (counts(key), keys - key))?;
            let samples: Vec<Vec<(usize, usize)>> = (0..keys)
                .map(|key| {
                    let both = |(h, t): &&(usize, usize)| field.counted[[*h, *t, key]] && field.counted[[*h, *t, base]];
                    let all: Vec<(usize, usize)> = of.iter().filter(both).copied().collect();
                    let step = all.len().div_ceil(SAMPLE).max(1);
                    all.into_iter().step_by(step).collect()
                })
                .collect();
            let others = |own: Cell| {
                let cells = cells.iter().filter(move |cell| **cell != own).map(|cell| Some(*cell));
                [Some(own), None].into_iter().chain(cells)
            };
            let with_base = |base_is: Option<Cell>| -> Option<Vec<Option<Option<Cell>>>> {
                let of_key = |key: usize| {
                    let is = |cell: &Option<Cell>| {
                        samples[key].iter().all(|&(h, t)| {
                            let own = field.logs[[h, t, key]] - field.logs[[h, t, base]];
                            (own - given(h, t, *cell) + given(h, t, base_is)).abs() <= near
                        })
                    };
                    if samples[key].is_empty() { Some(None) } else { others((key, head)).find(is).map(Some) }
                };
                (0..keys).map(of_key).collect()
            };
            let all = others((base, head)).filter(|_| self.case.has_time()).find_map(with_base)?;
            all.into_iter().enumerate().for_each(|(key, cell)| found[[key, head]] = cell);
        }
        Some(found)
    }
}
