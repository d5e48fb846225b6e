//! Weights or inputs in 8 or 4 bits with a step for each row or block, of which numbers or steps are read otherwise.

use ndarray::{Array2, ArrayD};

use crate::identify::output::roundings::Whole;

/// How numbers are kept: bits of each, the block that has one step (`None`: a row), and which part of its largest size a step is.
#[derive(Clone, Copy)]
struct Kept {
    bits: u32,
    block: Option<usize>,
    /// The largest number: a block's largest size is so many steps.
    most: f64,
}

/// What is made of a number q and its step, of the steps of all blocks.
#[derive(Clone, Copy)]
enum Read {
    /// As they are.
    Right,
    /// Negative ones without their sign bit.
    Unsigned,
    /// Cut towards zero, and not rounded.
    Cut,
    /// Rounded down.
    Down,
    /// Held one short of the largest negative or positive number.
    Clipped,
    /// With the step of another row or block.
    StepOf(isize),
    StepOfFirst,
}

impl Read {
    const ALL: [(Read, f64); 8] = [
        (Read::Right, 1.0),
        (Read::Unsigned, 3.0),
        (Read::Cut, 2.0),
        (Read::Down, 3.0),
        (Read::Clipped, 3.0),
        (Read::StepOf(-1), 3.0),
        (Read::StepOf(1), 3.0),
        (Read::StepOfFirst, 3.0),
    ];

    fn words(self, kept: Kept) -> String {
        let of = if kept.block.is_some() { "block" } else { "row" };
        match self {
            Read::Right => "and read as they are".into(),
            Read::Unsigned => format!("and read as unsigned: negative ones have {} steps added", 1u32 << kept.bits),
            Read::Cut => "cut towards zero, and not rounded".into(),
            Read::Down => "rounded down".into(),
            Read::Clipped => format!("and the largest is held to {}", kept.most - 1.0),
            Read::StepOf(by) if by < 0 => format!("each {of} with the step of the {of} before"),
            Read::StepOf(_) => format!("each {of} with the step of the next {of}"),
            Read::StepOfFirst => format!("each {of} with the step of the first {of}"),
        }
    }

    fn number(self, kept: Kept, x: f64) -> f64 {
        let rounded = x.round_ties_even();
        match self {
            Read::Unsigned if rounded < 0.0 => rounded + f64::from(1u32 << kept.bits),
            Read::Cut => x.trunc(),
            Read::Down => x.floor(),
            Read::Clipped => rounded.clamp(1.0 - kept.most, kept.most - 1.0),
            _ => rounded,
        }
    }

    fn step(self, at: usize, count: usize) -> usize {
        match self {
            // The first has its own, and so has the last.
            Read::StepOf(by) => at.checked_add_signed(by).filter(|at| *at < count).unwrap_or(at),
            Read::StepOfFirst => 0,
            _ => at,
        }
    }
}

impl Kept {
    fn all() -> Vec<Kept> {
        let mut all = Vec::new();
        for (bits, most) in [(8, 127.0), (8, 128.0), (4, 7.0), (4, 8.0)] {
            all.extend([None, Some(32), Some(64), Some(128)].map(|block| Kept { bits, block, most }));
        }
        all
    }

    fn words(self) -> String {
        let of = match self.block {
            None => "row".to_owned(),
            Some(block) => format!("block of {block}"),
        };
        format!("in {} bits with a step for each {of}, its largest size by {}", self.bits, self.most)
    }

    fn made(self, x: &Array2<f64>, read: Read) -> Option<Array2<f64>> {
        let width = self.block.unwrap_or(x.ncols());
        (width > 0 && x.ncols().is_multiple_of(width)).then_some(())?;
        let values: Vec<f64> = x.iter().copied().collect();
        // In 32 bits, as an engine does: what a block's largest size is divided by decides whether it is cut to one less.
        let step = |block: &[f64]| block.iter().fold(0.0f32, |most, x| most.max(x.abs() as f32)) / self.most as f32;
        let steps: Vec<f32> = values.chunks(width).map(step).collect();
        let each = |(at, x): (usize, &f64)| {
            let (own, other) = (steps[at / width], steps[read.step(at / width, steps.len())]);
            if own == 0.0 { 0.0 } else { read.number(self, f64::from(*x as f32 / own)) * f64::from(other) }
        };
        let made = values.iter().enumerate().map(each).collect();
        Array2::from_shape_vec(x.dim(), made).ok()
    }
}

/// Ways to keep numbers in few bits, with a mistake in how they are kept or read.
pub(super) fn ways() -> Vec<(String, f64, Whole)> {
    let pairs = Kept::all().into_iter().flat_map(|kept| Read::ALL.map(|(read, bits)| (kept, read, bits)));
    let way = |(kept, read, bits): (Kept, Read, f64)| -> (String, f64, Whole) {
        let made = move |x: &ArrayD<f64>| {
            let flat = super::flat(x)?;
            kept.made(&flat, read)?.into_dyn().to_shape(x.raw_dim()).ok().map(|made| made.into_owned())
        };
        (format!("{}, {}", kept.words(), read.words(kept)), 7.0 + bits, std::sync::Arc::new(made))
    };
    pairs.map(way).collect()
}
