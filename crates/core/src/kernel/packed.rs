//! How do rows lie that are read together? Side by side, 16 elements of each at a time.
//!
//! Rows that lie a power of two apart fight for the same lines of the cache: with 2048 f32 a row, a third of the speed is lost to that.

use std::sync::OnceLock;

use firstdiff_simd::Level;

use crate::kernel::dot::LANES;
use crate::kernel::float::Float;
use crate::kernel::in_place;
use crate::kernel::panel::{self, Strips};

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
    lines: OnceLock<Vec<Line<F>>>,
    /// Of many rows.
    by_lane: Option<Strips>,
    len: usize,
    level: Level,
}

/// 16 elements, where lines of the cache begin.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct CacheLine<F>(pub(crate) [F; LANES]);

/// The elements one after the other.
pub(crate) fn flat<F>(lines: &[CacheLine<F>]) -> &[F] {
    const { assert!(size_of::<CacheLine<F>>() == LANES * size_of::<F>()) };
    // SAFETY: a `CacheLine` is its array and no more (above).
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
}

/// The same to be written to.
pub(crate) fn flat_mut<F>(lines: &mut [CacheLine<F>]) -> &mut [F] {
    const { assert!(size_of::<CacheLine<F>>() == LANES * size_of::<F>()) };
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

impl<'a, F: Float> Packed<'a, F> {
    /// Of `rows`, cut to the length of the shortest.
    pub fn new(rows: Vec<&'a [F]>) -> Packed<'a, F> {
        Packed::at(Level::best(), rows)
    }

    /// The same for the instructions of a level.
    pub(crate) fn at(level: Level, mut rows: Vec<&'a [F]>) -> Packed<'a, F> {
        let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        rows.iter_mut().for_each(|row| *row = &row[..len]);
        Packed { by_lane: F::strips(level, &rows), rows, lines: OnceLock::new(), len, level }
    }

    /// Rows of w, of which a whole number should be multiplied with these at a time: as many as a kernel takes together.
    pub fn block(&self) -> usize {
        if self.by_lane.is_some() { panel::COLUMNS } else { in_place::COLUMNS }
    }

    /// With which instructions they are multiplied.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// Many rows by lane.
    pub(crate) fn by_lane(&self) -> Option<&Strips> {
        self.by_lane.as_ref()
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
        let count = self.len / LANES;
        let lines = self.lines.get_or_init(|| {
            let mut lines = Vec::with_capacity(self.rows.len().div_ceil(STRIP) * count);
            for strip in self.rows.chunks(STRIP) {
                for k in 0..count {
                    let mut line = Line([[F::zero(); LANES]; STRIP]);
                    for (to, row) in line.0.iter_mut().zip(strip) {
                        to.copy_from_slice(&row[k * LANES..(k + 1) * LANES]);
                    }
                    lines.push(line);
                }
            }
            lines
        });
        self.rows.chunks(STRIP).enumerate().map(move |(i, rows)| (&lines[i * count..(i + 1) * count], rows))
    }
}
