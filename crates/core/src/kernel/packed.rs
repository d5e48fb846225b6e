//! How do rows lie that are read together? Side by side, 16 elements of each at a time.
//!
//! Rows that lie a power of two apart fight for the same lines of the cache: with 2048 f32 a row, a third of the speed is lost to that.

use crate::kernel::dot::LANES;
use crate::kernel::float::Float;

/// Rows that are packed together.
pub(crate) const STRIP: usize = 6;

/// 16 elements of each row of a strip, where lines of the cache begin.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line<F>(pub(crate) [[F; LANES]; STRIP]);

/// The lines of a strip, and its rows.
pub(crate) type Strip<'s, 'a, F> = (&'s [Line<F>], &'s [&'a [F]]);

/// Rows of one length, as they are and packed.
pub struct Packed<'a, F> {
    rows: Vec<&'a [F]>,
    lines: Vec<Line<F>>,
    len: usize,
}

impl<'a, F: Float> Packed<'a, F> {
    /// Packs `rows`, cut to the length of the shortest.
    pub fn new(mut rows: Vec<&'a [F]>) -> Packed<'a, F> {
        let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        rows.iter_mut().for_each(|row| *row = &row[..len]);
        let mut lines = Vec::with_capacity(rows.len().div_ceil(STRIP) * (len / LANES));
        for strip in rows.chunks(STRIP) {
            for k in 0..len / LANES {
                let mut line = Line([[F::zero(); LANES]; STRIP]);
                for (to, row) in line.0.iter_mut().zip(strip) {
                    to.copy_from_slice(&row[k * LANES..(k + 1) * LANES]);
                }
                lines.push(line);
            }
        }
        Packed { rows, lines, len }
    }

    /// The rows as they are.
    pub fn rows(&self) -> &[&'a [F]] {
        &self.rows
    }

    /// Elements of a row.
    pub fn width(&self) -> usize {
        self.len
    }

    /// The strips: their lines and their rows.
    pub(crate) fn strips(&self) -> impl Iterator<Item = Strip<'_, 'a, F>> {
        let lines = self.len / LANES;
        self.rows.chunks(STRIP).enumerate().map(move |(i, rows)| (&self.lines[i * lines..(i + 1) * lines], rows))
    }
}
