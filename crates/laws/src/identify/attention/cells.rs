//! Rows of the keys' cache: whose row each is, told by the scores that it gives with all queries.

use std::sync::Arc;

use ndarray::{Array2, s};

use super::field::Field;
use super::scores::scaled;
use super::{Draft, How, LOG_ROOM, Made, cube};
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
        let words = format!("the keys of each position and key head are {}", cells.words);
        let bits = 5.0 + cells.bits;
        let made: Made = Arc::new(move |case, at, right| {
            let [q, k] = &case.places[at].inputs[..] else { return None };
            scaled(&cube(q)?, &cells.rows(&cube(k)?)?, right)
        });
        self.offer(Draft::new(Form::ScoreSource, words, bits), made, None, true);
    }

    /// Whose key each is: the constant of each row is told by the key that most of its heads have right.
    fn cells_of_keys(&self, field: &Field) -> Option<Array2<Option<Option<Cell>>>> {
        let first = self.case.first();
        let (q, k) = (cube(&first.inputs[0])?, cube(&first.inputs[1])?);
        let (keys, key_heads, _) = k.dim();
        let (heads, rows, _) = self.own.dim();
        if keys * key_heads > MOST {
            return None;
        }
        let near = LOG_ROOM * field.each();
        let mut found = Array2::from_elem((keys, key_heads), None);
        for head in 0..key_heads {
            let of: Vec<usize> = (0..heads).filter(|h| self.right.key_head[*h] == head).collect();
            // Pairs of keys that are both right have the right difference; the key of most such pairs is right.
            let is_right = |a: usize, b: usize| {
                let mut both = of
                    .iter()
                    .flat_map(|&h| (0..rows).map(move |t| (h, t)))
                    .filter(|&(h, t)| field.counted[[h, t, a]] && field.counted[[h, t, b]])
                    .peekable();
                both.peek()?;
                Some(both.all(|(h, t)| {
                    let own = field.logs[[h, t, a]] - field.logs[[h, t, b]];
                    let due = self.right.scores[[h, t, a]] - self.right.scores[[h, t, b]];
                    (own - due).abs() <= near
                }))
            };
            let count = |a: usize| (0..keys).filter(|&b| b != a && is_right(a, b) == Some(true)).count();
            let base = (0..keys).max_by_key(|&a| (count(a), keys - a)).filter(|&a| count(a) > 0)?;
            for key in 0..keys {
                let all: Vec<(usize, usize)> = of
                    .iter()
                    .flat_map(|&h| (0..rows).map(move |t| (h, t)))
                    .filter(|&(h, t)| field.counted[[h, t, key]] && field.counted[[h, t, base]])
                    .collect();
                let step = all.len().div_ceil(SAMPLE).max(1);
                let sample: Vec<(usize, usize)> = all.into_iter().step_by(step).collect();
                if sample.is_empty() {
                    continue;
                }
                let is = |score: &dyn Fn(usize, usize) -> f64| {
                    sample.iter().all(|&(h, t)| {
                        let own = field.logs[[h, t, key]] - field.logs[[h, t, base]] + self.right.scores[[h, t, base]];
                        (own - score(h, t)).abs() <= near
                    })
                };
                let of_cell = |(from, head): Cell| {
                    let row = k.slice(s![from, head, ..]);
                    is(&|h, t| self.right.scale[h] * q.slice(s![t, h, ..]).dot(&row))
                };
                let mut cells = (0..keys).flat_map(|key| (0..key_heads).map(move |head| (key, head)));
                found[[key, head]] = Some(if is(&|h, t| self.right.scores[[h, t, key]]) {
                    Some((key, head))
                } else if is(&|_, _| 0.0) {
                    None
                } else {
                    Some(cells.find(|&cell| of_cell(cell))?)
                });
            }
        }
        Some(found)
    }
}
