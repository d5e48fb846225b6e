//! Blocks of a row of weights: a scale that is another block's, or counted twice, a term for all weights of a block, and a block of the input that is another's.

use std::sync::Arc;

use ndarray::{Array2, Axis as Dimension, s};

use super::{ROOM, Sample, WIDTHS, flat, of_input, of_weight, weight_of};
use crate::case::Case;
use crate::fit::least_squares;
use crate::law::{Form, Law};
use crate::number::Measured;

/// Output rows on which blocks of the input are tried.
const TRIED: usize = 8;
/// Pairs of blocks of the input that are tried at most.
const PAIRS: usize = 4096;

/// What each block of a row is multiplied with, made of the largest sizes of its blocks.
type Factor = Arc<dyn Fn(&[f64], usize) -> f64 + Send + Sync>;

fn factors() -> Vec<(&'static str, f64, Factor)> {
    let at = |s: &[f64], b: usize, other: usize| if s[b] > 0.0 { s[other.min(s.len() - 1)] / s[b] } else { 1.0 };
    vec![
        (
            "the scale of the block before it (the first keeps its own)",
            6.0,
            Arc::new(move |s, b| at(s, b, b.saturating_sub(1))),
        ),
        (
            "the scale of the block before it, around the end",
            6.0,
            Arc::new(move |s, b| at(s, b, (b + s.len() - 1) % s.len())),
        ),
        ("the scale of the next block (the last keeps its own)", 6.0, Arc::new(move |s, b| at(s, b, b + 1))),
        ("the scale of the next block, around the end", 6.0, Arc::new(move |s, b| at(s, b, (b + 1) % s.len()))),
        ("the scale of the first block", 6.0, Arc::new(move |s, b| at(s, b, 0))),
        ("the scale of the last block", 6.0, Arc::new(move |s, b| at(s, b, s.len() - 1))),
        ("the scale of the neighbouring block", 7.0, Arc::new(move |s, b| at(s, b, b ^ 1))),
        ("the scales in reverse", 7.0, Arc::new(move |s, b| at(s, b, s.len() - 1 - b))),
        (
            "the largest scale of the row",
            7.0,
            Arc::new(|s, b| if s[b] > 0.0 { s.iter().copied().fold(0.0, f64::max) / s[b] } else { 1.0 }),
        ),
    ]
}

/// The largest size in each block of a row.
pub(super) fn sizes(row: ndarray::ArrayView1<'_, f64>, width: usize) -> Vec<f64> {
    row.axis_chunks_iter(Dimension(0), width).map(|block| block.iter().fold(0.0, |m: f64, w| m.max(w.abs()))).collect()
}

/// Rows of which each block of so many numbers is multiplied.
fn by_blocks(mut rows: Array2<f64>, width: usize, factor: &Factor) -> Array2<f64> {
    for mut row in rows.rows_mut() {
        let sizes = sizes(row.view(), width);
        for (b, mut block) in row.axis_chunks_iter_mut(Dimension(0), width).enumerate() {
            let by = factor(&sizes, b);
            block.mapv_inplace(|x| x * by);
        }
    }
    rows
}

impl Sample {
    /// Laws of blocks of the weight, and of the input.
    pub(super) fn blocks(&self, case: &Case<'_>) -> Vec<Law> {
        let (tokens, columns) = self.x.dim();
        let mut laws = Vec::new();
        for width in WIDTHS.into_iter().filter(|width| columns.is_multiple_of(*width)) {
            let count = columns / width;
            if (2..=tokens / 2).contains(&count) && case.has_time() {
                laws.extend(self.scales_of(width));
                laws.extend(self.terms_of(width));
            }
            if !laws.is_empty() {
                break;
            }
            laws.extend(self.block_of_input(width));
            laws.extend(self.scales_of_input(width));
        }
        laws
    }

    /// Blocks of the input that have another block's scale.
    fn scales_of_input(&self, width: usize) -> Option<Law> {
        let near = |factor: &Factor| self.is_near(&by_blocks(self.x.clone(), width, factor).dot(&self.weight.t()));
        let (said, bits, factor) = factors().into_iter().find(|(.., factor)| near(factor))?;
        let words = format!("each block of {width} channels of the input has {said}");
        let law = of_input(Form::LinearColumns, words, bits + 4.0, move |case, at| {
            Some(by_blocks(flat(case.places[at].inputs.first()?)?, width, &factor).into_dyn())
        });
        Some(law.with("block", width))
    }

    /// What the product gives of each block alone, for an output row: `[B][T]`.
    fn of_blocks(&self, row: usize, width: usize) -> Vec<Vec<f64>> {
        let starts = (0..self.x.ncols()).step_by(width);
        let of = |start: usize| {
            let columns = s![.., start..start + width];
            self.x.slice(columns).dot(&self.weight.slice(s![row, start..start + width])).to_vec()
        };
        starts.map(of).collect()
    }

    /// What is due without the bias, for an output row.
    fn wanted(&self, row: usize) -> Vec<f64> {
        let due = self.x.dot(&self.weight.row(row));
        let off = &self.own.column(row) - &self.right.column(row);
        (due + off).to_vec()
    }

    /// The scale of each block is another.
    fn scales_of(&self, width: usize) -> Vec<Law> {
        let mut measured: Vec<(Vec<f64>, Vec<Measured>)> = Vec::new();
        for row in 0..self.rows.len() {
            let blocks = self.of_blocks(row, width);
            let views: Vec<&[f64]> = blocks.iter().map(Vec::as_slice).collect();
            let Some(fit) = least_squares(&views, &self.wanted(row), self.noise) else { return Vec::new() };
            if fit.left > ROOM * self.noise {
                return Vec::new();
            }
            measured.push((sizes(self.weight.row(row), width), fit.coefficients));
        }
        let holds = |factor: &Factor| {
            let is = |(sizes, fitted): &(Vec<f64>, Vec<Measured>)| {
                fitted.iter().enumerate().all(|(b, m)| m.may_be(factor(sizes, b)))
            };
            measured.iter().all(is)
        };
        let law = |words: String, bits: f64, factor: Factor| {
            let made = move |case: &Case<'_>, at: usize| Some(by_blocks(weight_of(case, at)?, width, &factor));
            of_weight(words, bits, made).with("block", width)
        };
        let of_list = factors().into_iter().find(|(.., factor)| holds(factor));
        let found = of_list.map(|(said, bits, factor)| {
            law(format!("each block of {width} weights of a row has {said}"), bits + 4.0, factor)
        });
        // A scale that is counted twice, or as its root: the factor is in proportion.
        let in_proportion = |power: f64| -> Option<(f64, String, f64)> {
            let each = measured.iter().flat_map(|(sizes, fitted)| sizes.iter().zip(fitted));
            let each = each.filter(|(size, m)| **size > 0.0 && m.is_known());
            let of: Vec<Measured> =
                each.map(|(size, m)| Measured::new(m.value / size.powf(power), m.error / size.powf(power))).collect();
            let one = Measured::mean(of.iter().copied());
            let number = one.number();
            (of.len() > 1 && of.iter().all(|m| m.may_be(one.value))).then_some((
                number.value,
                number.words,
                number.bits,
            ))
        };
        let by_power = |(power, words): (f64, &str)| {
            let (c, number, bits) = in_proportion(power)?;
            let factor: Factor = Arc::new(move |s, b| if s[b] > 0.0 { c * s[b].powf(power) } else { 1.0 });
            let words = format!("each block of {width} weights of a row is multiplied by {number} times {words}");
            Some(law(words, bits + 9.0, factor))
        };
        let powers = [
            (1.0, "its largest size (its scale is counted twice)"),
            (-1.0, "1 over its largest size (its scale is left out)"),
        ];
        found.or_else(|| powers.into_iter().find_map(by_power)).into_iter().collect()
    }

    /// A term is added to all weights of a block, in proportion to its largest size: the zero point is another.
    fn terms_of(&self, width: usize) -> Vec<Law> {
        let sums: Vec<Vec<f64>> = (0..self.x.ncols())
            .step_by(width)
            .map(|start| self.x.slice(s![.., start..start + width]).sum_axis(Dimension(1)).to_vec())
            .collect();
        let views: Vec<&[f64]> = sums.iter().map(Vec::as_slice).collect();
        let mut all: Vec<Measured> = Vec::new();
        for row in 0..self.rows.len() {
            let off: Vec<f64> =
                self.own.column(row).iter().zip(self.right.column(row)).map(|(own, right)| own - right).collect();
            let size = |x: &[f64]| x.iter().map(|x| x * x).sum::<f64>().sqrt();
            let own = self.own.column(row).to_vec();
            let noise = self.noise * size(&own) / size(&off).max(f64::MIN_POSITIVE);
            let Some(fit) = least_squares(&views, &off, noise).filter(|fit| fit.left <= ROOM * noise) else {
                return Vec::new();
            };
            let sizes = sizes(self.weight.row(row), width);
            let known = sizes.iter().zip(&fit.coefficients).filter(|(size, _)| **size > 0.0);
            all.extend(known.map(|(size, m)| Measured::new(m.value / size, m.error / size)));
        }
        let one = Measured::mean(all.iter().copied());
        if all.len() < 2 || one.may_be(0.0) || !all.iter().all(|m| m.may_be(one.value)) {
            return Vec::new();
        }
        let number = one.number();
        let c = number.value;
        let words = format!("{} times its largest size is added to each weight of a block of {width}", number.words);
        let law = of_weight(words, 9.0 + number.bits, move |case, at| {
            let mut weight = weight_of(case, at)?;
            for mut row in weight.rows_mut() {
                let sizes = sizes(row.view(), width);
                for (size, mut block) in sizes.into_iter().zip(row.axis_chunks_iter_mut(Dimension(0), width)) {
                    block.mapv_inplace(|w| w + c * size);
                }
            }
            Some(weight)
        });
        vec![law.with("block", width).with("term", c)]
    }

    /// A block of the input is another: a tile that was not loaded anew.
    fn block_of_input(&self, width: usize) -> Vec<Law> {
        let count = self.x.ncols() / width;
        if count < 2 || count * (count - 1) > PAIRS {
            return Vec::new();
        }
        let step = self.rows.len().div_ceil(TRIED).max(1);
        let rows: Vec<usize> = (0..self.rows.len()).step_by(step).collect();
        let off = (&self.own - &self.right).select(Dimension(1), &rows);
        let weight = self.weight.select(Dimension(0), &rows);
        let size = self.own.select(Dimension(1), &rows).iter().map(|y| y * y).sum::<f64>().sqrt();
        let block = |b: usize| self.x.slice(s![.., b * width..(b + 1) * width]);
        let left = |to: usize, from: usize| -> f64 {
            let change: Array2<f64> = &block(from) - &block(to);
            let made = change.dot(&weight.slice(s![.., to * width..(to + 1) * width]).t());
            (made - &off).iter().map(|x| x * x).sum::<f64>().sqrt()
        };
        let pairs = (0..count).flat_map(|to| (0..count).filter(move |from| *from != to).map(move |from| (to, from)));
        let Some((to, from)) = pairs.into_iter().find(|&(to, from)| left(to, from) <= ROOM * self.noise * size) else {
            return Vec::new();
        };
        let channels = |b: usize| format!("{} to {}", b * width, (b + 1) * width - 1);
        let words = format!("channels {} of the input are read as channels {}", channels(to), channels(from));
        let law = of_input(Form::LinearColumns, words, 14.0, move |case, at| {
            let mut x = flat(case.places[at].inputs.first()?)?;
            (x.ncols() >= (to.max(from) + 1) * width).then_some(())?;
            let other = x.slice(s![.., from * width..(from + 1) * width]).to_owned();
            x.slice_mut(s![.., to * width..(to + 1) * width]).assign(&other);
            Some(x.into_dyn())
        });
        vec![law.with("to", channels(to)).with("from", channels(from))]
    }
}
