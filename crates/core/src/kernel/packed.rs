//! Packs rows that are read together: 16 elements of each row side by side.
//!
//! Rows at a distance of a power of two compete for the same cache lines: with 2048 f32 a row this costs a third of the speed.

use std::sync::OnceLock;

use firstdiff_simd::Level;

use crate::kernel::dot::LANES;
use crate::kernel::float::Float;
use crate::kernel::in_place;
use crate::kernel::panel::{self, Strips};

/// Rows that are packed together.
pub(crate) const STRIP: usize = 6;

/// 16 elements of each row of a strip, aligned to cache lines.
#[derive(Clone, Copy)]
#[repr(align(64))]
pub(crate) struct Line<F>(pub(crate) [[F; LANES]; STRIP]);

/// The packed lines of a strip, and its rows.
pub(crate) type Strip<'s, 'a, F> = (&'s [Line<F>], &'s [&'a [F]]);

/// Rows of equal length, both as they are and packed.
pub struct Packed<'a, F> {
    rows: Vec<&'a [F]>,
    lines: OnceLock<Vec<Line<F>>>,
    /// Packed by lane, where there are many rows.
    by_lane: Option<Strips>,
    len: usize,
    level: Level,
}

/// 16 elements, aligned to a cache line.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct CacheLine<F>(pub(crate) [F; LANES]);

/// The elements as one slice.
pub(crate) fn flat<F>(lines: &[CacheLine<F>]) -> &[F] {
    const { assert!(size_of::<CacheLine<F>>() == LANES * size_of::<F>()) };
    // SAFETY: a `CacheLine` is its array and no more (above).
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
}

/// The same, mutable.
pub(crate) fn flat_mut<F>(lines: &mut [CacheLine<F>]) -> &mut [F] {
    const { assert!(size_of::<CacheLine<F>>() == LANES * size_of::<F>()) };
    // SAFETY: as above.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

impl<'a, F: Float> Packed<'a, F> {
    /// Packs `rows`, cut to the length of the shortest.
    pub fn new(rows: Vec<&'a [F]>) -> Packed<'a, F> {
        Packed::for_level(Level::best(), rows)
    }

    /// The same for a given level.
    pub(crate) fn for_level(level: Level, mut rows: Vec<&'a [F]>) -> Packed<'a, F> {
        let len = rows.iter().map(|row| row.len()).min().unwrap_or(0);
        rows.iter_mut().for_each(|row| *row = &row[..len]);
        Packed { by_lane: F::strips(level, &rows), rows, lines: OnceLock::new(), len, level }
    }

    /// How many rows of w a kernel takes together: w is best multiplied in multiples of this.
    pub fn block(&self) -> usize {
        if self.by_lane.is_some() { panel::COLUMNS } else { in_place::COLUMNS }
    }

    /// The instructions that multiply them.
    pub(crate) fn level(&self) -> Level {
        self.level
    }

    /// The rows packed by lane, where there are many.
    pub(crate) fn by_lane(&self) -> Option<&Strips> {
        self.by_lane.as_ref()
    }

    /// The rows, not packed.
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
