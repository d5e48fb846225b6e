//! Weights with something added that is made of them: a sign that is lost, a scale or a minimum of another block, a group of columns that stands elsewhere.

use std::sync::Arc;

use ndarray::{Array2, Axis as Dimension};

use super::blocks::sizes;
use super::{ROOM, Sample, WIDTHS, of_weight, weight_of};
use crate::case::{Axis, Case};
use crate::describe::choice;
use crate::describe::function::{bf16_as_f16, f16_as_bf16};
use crate::describe::source::exchanged;
use crate::describe::table::describe as describe_table;
use crate::fit::factor;
use crate::identify::statistics::{largest, largest_size, smallest};
use crate::law::Law;
use crate::number::Measured;

/// What the weight is read as, of the right one.
type Read = Arc<dyn Fn(&Array2<f64>) -> Option<Array2<f64>> + Send + Sync>;

/// A weight made of its blocks of so many columns, each by itself.
fn by_block(width: usize, f: impl Fn(&mut [f64]) + Send + Sync + 'static) -> Read {
    Arc::new(move |weight| {
        let mut out = weight.as_standard_layout().into_owned();
        for mut row in out.rows_mut() {
            for block in row.as_slice_mut()?.chunks_mut(width) {
                f(block);
            }
        }
        Some(out)
    })
}

/// The weight with its rows (0) or columns (1) in another order, of how many there are.
fn in_order(axis: usize, of: impl Fn(usize, usize) -> usize + Send + Sync + 'static) -> Read {
    Arc::new(move |weight| {
        let count = weight.len_of(Dimension(axis));
        Some(weight.select(Dimension(axis), &(0..count).map(|i| of(i, count)).collect::<Vec<usize>>()))
    })
}

/// Each block of a row, times the largest size of another row's over its own.
fn scales_of_row(width: usize, other: fn(usize, usize) -> usize) -> Read {
    Arc::new(move |weight| {
        let rows = weight.nrows();
        let mut out = weight.clone();
        for (row, mut own) in out.rows_mut().into_iter().enumerate() {
            let (scales, others) = (sizes(weight.row(row), width), sizes(weight.row(other(row, rows)), width));
            let blocks = own.axis_chunks_iter_mut(Dimension(0), width).zip(scales.iter().zip(&others));
            for (mut block, (scale, by)) in blocks.filter(|(_, (scale, _))| **scale > 0.0) {
                block.mapv_inplace(|w| w / scale * by);
            }
        }
        Some(out)
    })
}

/// Each number by itself, where all come out as numbers.
fn of_bits(f: fn(f64) -> f64) -> Read {
    Arc::new(move |weight| Some(weight.mapv(f)).filter(|read| read.iter().all(|w| w.is_finite())))
}

fn each(block: &mut [f64], f: impl Fn(f64) -> f64) {
    block.iter_mut().for_each(|w| *w = f(*w));
}

/// What a weight of so many columns may be read as.
fn readings(columns: usize) -> Vec<(String, f64, Read)> {
    let mut all: Vec<(String, f64, Read)> = Vec::new();
    let mut add = |words: String, bits: f64, read: Read| all.push((words, bits, read));
    add("its size, without its sign".into(), 5.0, Arc::new(|w| Some(w.mapv(f64::abs))));
    add("its size, with the other sign".into(), 6.0, Arc::new(|w| Some(w.mapv(|w| -w.abs()))));
    add("its positive part".into(), 6.0, Arc::new(|w| Some(w.mapv(|w| w.max(0.0)))));
    add("f16, of which its bits are bf16".into(), 6.0, of_bits(bf16_as_f16));
    add("bf16, of which its bits are f16".into(), 6.0, of_bits(f16_as_bf16));
    add("that of the next row, around the end".into(), 7.0, in_order(0, |row, rows| (row + 1) % rows));
    add("that of the row before, around the end".into(), 7.0, in_order(0, |row, rows| (row + rows - 1) % rows));
    for parts in [2usize, 4, 8].into_iter().filter(|parts| columns.is_multiple_of(*parts)) {
        let diagonal: Read = Arc::new(move |weight| {
            let (rows, columns) = weight.dim();
            let is_own = |row: usize, column: usize| row * parts / rows == column * parts / columns;
            Some(Array2::from_shape_fn((rows, columns), |(r, c)| if is_own(r, c) { weight[[r, c]] } else { 0.0 }))
        });
        add(
            format!("that of {parts} ranks apart: each part of the outputs reads its own part of the inputs alone"),
            8.0,
            diagonal,
        );
    }
    for tile in [8usize, 16, 32, 64, 128] {
        for (which, is_second) in [("first", false), ("second", true)] {
            let read: Read = Arc::new(move |weight| {
                let (rows, columns) = weight.dim();
                let is_there = |column: usize| (column >= columns / 2) == is_second;
                let other = |row: usize| {
                    Some(exchanged(row % (2 * tile), 0, tile, tile) + row / (2 * tile) * 2 * tile)
                        .filter(|row| *row < rows)
                };
                let at = |r: usize, c: usize| {
                    if is_there(c) { other(r).map_or(0.0, |r| weight[[r, c]]) } else { weight[[r, c]] }
                };
                Some(Array2::from_shape_fn((rows, columns), |(r, c)| at(r, c)))
            });
            let words = format!(
                "itself, but neighbouring {tile} outputs have each other's weights of the {which} half of the inputs"
            );
            add(words, 11.0, read);
        }
    }
    for width in WIDTHS.into_iter().filter(|width| *width <= columns && columns.is_multiple_of(*width)) {
        let bits = 10.0;
        let whole = width == columns;
        let where_of = if whole { "row".to_owned() } else { format!("block of {width}") };
        let of = |what: &str| format!("{what} of its {where_of}");
        type Number = fn(&[f64]) -> f64;
        let taken_off: [(&str, Number); 4] = [
            ("least", smallest),
            ("largest", largest),
            ("mean", |b| b.iter().sum::<f64>() / b.len() as f64),
            ("middle between the least and the largest", |b| 0.5 * (smallest(b) + largest(b))),
        ];
        for (what, number) in taken_off {
            let less = by_block(width, move |b| {
                let by = number(b);
                each(b, |w| w - by);
            });
            add(of(&format!("itself less the {what}")), bits, less);
        }
        add(
            format!(
                "{} where it is not negative, else plus that (bits without their sign read as two's complement)",
                of("itself less the largest size")
            ),
            bits + 2.0,
            by_block(width, |b| {
                let by = largest_size(b);
                each(b, |w| if w < 0.0 { w + by } else { w - by });
            }),
        );
        type Off = fn(f64, f64) -> f64;
        let bits_lost: [(&str, Off); 2] = [
            ("less the largest size where it is not negative", |w, by| if w < 0.0 { w } else { w - by }),
            ("plus the largest size where it is negative", |w, by| if w < 0.0 { w + by } else { w }),
        ];
        for (what, f) in bits_lost {
            let read = by_block(width, move |b| {
                let by = largest_size(b);
                each(b, |w| f(w, by));
            });
            add(of(&format!("itself {what}")), bits + 1.0, read);
        }
        let bare = by_block(width, |b| {
            let by = largest_size(b);
            each(b, |w| if by > 0.0 { w / by } else { w });
        });
        add(of("itself without its scale: over the largest size"), bits, bare);
        // The number of a group is counted along the wrong way.
        let groups = columns / width;
        if groups > 1 {
            let turned: Read = Arc::new(move |weight| {
                let mut out = weight.clone();
                for (row, mut own) in out.rows_mut().into_iter().enumerate() {
                    let scales = sizes(weight.row(row), width);
                    own.iter_mut().enumerate().filter(|(c, _)| scales[c / width] > 0.0).for_each(|(c, w)| {
                        *w *= scales[c % groups] / scales[c / width];
                    });
                }
                Some(out)
            });
            let words = format!("itself with scales of {width} columns, column i with that of group i modulo {groups}");
            add(words, bits + 1.0, turned);
        }
        add(
            of("the largest size, with its own sign"),
            bits,
            by_block(width, |b| {
                let by = largest_size(b);
                each(b, |w| by * w.signum());
            }),
        );
        type Other = fn(usize, usize) -> usize;
        let others: [(&str, Other); 4] = [
            ("the row before (the first keeps its own)", |row, _| row.saturating_sub(1)),
            ("the row before, around the end", |row, rows| (row + rows - 1) % rows),
            ("the next row (the last keeps its own)", |row, rows| (row + 1).min(rows - 1)),
            ("the first row", |_, _| 0),
        ];
        for (said, other) in others {
            let blocks = if whole { String::new() } else { format!(", by blocks of {width}") };
            add(format!("itself with the scale of {said}{blocks}"), bits, scales_of_row(width, other));
        }
        type Power = fn(f64) -> f64;
        let powers: [(&str, Power); 2] = [("rounded down", f64::floor), ("rounded", f64::round_ties_even)];
        for (way, f) in powers {
            let words = of(&format!("itself with its scale, the largest size, {way} to a power of 2,"));
            let read = by_block(width, move |b| {
                let own = largest_size(b);
                if own > 0.0 {
                    let scale = f(own.log2()).exp2();
                    each(b, |w| w / own * scale);
                }
            });
            add(words, bits, read);
        }
        // Two groups of columns that stand for each other.
        let count = columns / width;
        for (one, other) in (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b))).filter(|_| count <= 16) {
            let (a, b) = (one * width, other * width);
            let read = in_order(1, move |c, _| exchanged(c, a, b, width));
            let words = format!("itself with columns {a} to {} and {b} to {} exchanged", a + width - 1, b + width - 1);
            add(words, 10.0 + 2.0 * choice(count), read);
        }
        // A group of columns that stands where another is due.
        for by in (1..columns / width).filter(|_| columns / width <= 16) {
            let read = in_order(1, move |c, columns| (c + by * width) % columns);
            let words = format!("that of {} columns further, around the end", by * width);
            add(words, 8.0, read);
        }
    }
    all
}

impl Sample {
    /// What the weight is read as: everywhere, or in some columns.
    pub(super) fn read_otherwise(&self, case: &Case<'_>) -> Vec<Law> {
        let Some(due) = weight_of(case, case.fitted) else { return Vec::new() };
        let mut laws = Vec::new();
        let error = &self.own - &self.right;
        let flat = |x: &Array2<f64>| x.iter().copied().collect::<Vec<f64>>();
        let (wanted, size) = (flat(&error), self.own.iter().map(|y| y * y).sum::<f64>().sqrt());
        let off = wanted.iter().map(|y| y * y).sum::<f64>().sqrt();
        let noise = self.noise * size / off.max(f64::MIN_POSITIVE);
        for (words, bits, read) in readings(due.ncols()) {
            if !case.has_time() {
                break;
            }
            let Some(other) = read(&due).filter(|other| other.dim() == due.dim()) else { continue };
            let change = (other - &due).select(Dimension(0), &self.rows);
            let made = flat(&self.x.dot(&change.t()));
            let fit = factor(&made, &wanted, noise);
            if fit.left <= ROOM * noise && fit.coefficients[0].is_known() {
                laws.push(in_share(&words, bits, read, fit.coefficients[0]));
                continue;
            }
            laws.extend(self.in_columns(&change, &words, bits, &read));
        }
        laws
    }

    /// In some columns, or in each in a share of its own.
    fn in_columns(&self, change: &Array2<f64>, words: &str, bits: f64, read: &Read) -> Option<Law> {
        let shares = self.shares_of_columns(change)?;
        let table = describe_table(&shares, Axis::Channel, Some(0.0), None)?;
        let read = read.clone();
        let values = table.values;
        let said = |words: &str| words.replace("channel", "column");
        let on = match (&table.part, &table.number) {
            (Some(part), Some(number)) if number.value == 1.0 => {
                format!("the weight is read as {words}, in {}", said(part))
            }
            _ => format!("of the change to {words} each column of the weight has {}", said(&table.words)),
        };
        Some(of_weight(on, bits + table.bits + 3.0, move |case, at| {
            let due = weight_of(case, at)?;
            (due.ncols() == values.len()).then_some(())?;
            let change = (read(&due)? - &due) * ndarray::ArrayView1::from(&values);
            Some(due + change)
        }))
    }
}

/// A law of the change in one share: whole, or in part.
fn in_share(words: &str, bits: f64, read: Read, share: Measured) -> Law {
    let number = share.number();
    let by = number.value;
    let said = match by == 1.0 {
        true => format!("the weight is read as {words}"),
        false => format!("{} times the difference is added to the weight between it and {words}", number.words),
    };
    of_weight(said, bits + number.bits, move |case, at| {
        let due = weight_of(case, at)?;
        let change = read(&due)? - &due;
        Some(due + change * by)
    })
}
