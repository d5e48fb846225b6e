//! What rows may be divided by.

use std::sync::Arc;

use ndarray::Array2;

use crate::describe::{choice, nth};
use crate::fit::dot;
use crate::identify::statistics::{DIVISORS, mean_square};

/// A statistic of each row.
type Statistic = Arc<dyn Fn(&Array2<f64>) -> Vec<f64> + Send + Sync>;

/// What rows may be divided by; so many of them, the heads, belong to a position.
pub(super) fn statistics(width: usize, inside: usize) -> Vec<(String, f64, Statistic)> {
    let mut all: Vec<(String, f64, Statistic)> = Vec::new();
    let one = ("one".to_owned(), 3.0, (|_| 1.0) as fn(&[f64]) -> f64);
    let sizes_of_rows = DIVISORS.map(|((words, f), bits)| (format!("the {words}"), bits, f));
    for (words, bits, f) in sizes_of_rows.into_iter().chain([one]) {
        all.push((words, bits, Arc::new(move |x| x.rows().into_iter().map(|row| f(&row.to_vec())).collect())));
    }
    let sizes = |x: &Array2<f64>| x.rows().into_iter().map(|row| mean_square(&row.to_vec())).collect::<Vec<f64>>();
    let mut of_all = |words: &str, bits: f64, f: fn(Vec<f64>) -> Vec<f64>| {
        all.push((words.to_owned(), bits, Arc::new(move |x| f(sizes(x)).into_iter().map(f64::sqrt).collect())));
    };
    of_all("the root mean square of the row before", 7.0, |s| (0..s.len()).map(|t| s[t.saturating_sub(1)]).collect());
    of_all("the root mean square of the next row", 7.0, |s| {
        (0..s.len()).map(|t| s[(t + 1).min(s.len() - 1)]).collect()
    });
    of_all("the root mean square of the first row", 7.0, |s| vec![s[0]; s.len()]);
    of_all("the root mean square of the last row", 7.0, |s| vec![s[s.len() - 1]; s.len()]);
    of_all("the root mean square of all rows", 7.0, |s| vec![s.iter().sum::<f64>() / s.len() as f64; s.len()]);
    of_all("the root mean square of the rows so far", 7.0, |s| {
        let mut sum = 0.0;
        s.iter()
            .enumerate()
            .map(|(t, s)| {
                sum += s;
                sum / (t + 1) as f64
            })
            .collect()
    });
    // Sums that are not cleared.
    let whose = if inside > 1 { "heads of its position" } else { "rows" };
    let blocks =
        [2usize, 4, 8, 16, 32].into_iter().map(|block| (format!("{whose} so far in its block of {block}"), block));
    let every = (format!("{whose} so far"), if inside > 1 { inside } else { usize::MAX });
    // Before its blocks: they are no different where there are as few.
    let blocks = std::iter::once(every).chain(blocks.filter(|(_, block)| *block != inside));
    for (whose, block) in blocks {
        for is_mean in [false, true] {
            let words = match is_mean {
                false => format!("the root of the sum of the mean squares of the {whose}, which is not cleared"),
                true => format!("the root mean square of the {whose}"),
            };
            let made = move |sizes: Vec<f64>| -> Vec<f64> {
                let mut sum = 0.0;
                let each = |(t, size): (usize, &f64)| {
                    sum = if t % block == 0 { *size } else { sum + size };
                    let count = (t % block + 1) as f64;
                    (if is_mean { sum / count } else { sum }).sqrt()
                };
                sizes.iter().enumerate().map(each).collect()
            };
            all.push((words, 9.0, Arc::new(move |x| made(sizes(x)))));
        }
    }
    if inside > 1 {
        let made = move |x: &Array2<f64>| {
            let each = |row: usize| {
                let joined = x.slice(ndarray::s![row / inside * inside..row / inside * inside + inside, ..]);
                let of = joined.iter().skip(row % inside).step_by(inside).copied().collect::<Vec<f64>>();
                mean_square(&of).sqrt()
            };
            (0..x.nrows() / inside * inside).map(each).collect()
        };
        let words = format!(
            "the root mean square of every {} element of the joined heads, from the head's number on",
            nth(inside)
        );
        all.push((words, 8.0, Arc::new(made)));
    }
    let its_block = |block: usize| match block == inside {
        true => "all heads of its position".to_owned(),
        false => format!("its block of {block} rows"),
    };
    for block in [2usize, 4, 8, 16, 32] {
        type Of = fn(usize, usize) -> usize;
        let others: [(String, Of); 2] = [
            (format!("the first of {}", its_block(block)), |t, block| t / block * block),
            (format!("the same of the first {block} rows"), |t, block| t % block),
        ];
        for (whose, of) in others {
            let made = move |sizes: Vec<f64>| {
                // One block of all rows is no part of them.
                let of = |t: usize| if block < sizes.len() { sizes[of(t, block)].sqrt() } else { f64::NAN };
                (0..sizes.len()).map(of).collect()
            };
            all.push((format!("the root mean square of {whose}"), 9.0, Arc::new(move |x| made(sizes(x)))));
        }
        let words = format!("the root mean square of {}", its_block(block));
        all.push((
            words,
            9.0,
            Arc::new(move |x| {
                let of: Vec<f64> = sizes(x)
                    .chunks(block)
                    .flat_map(|s| vec![s.iter().sum::<f64>() / s.len() as f64; s.len()])
                    .collect();
                of.into_iter().map(f64::sqrt).collect()
            }),
        ));
    }
    for stride in 2..=8usize {
        for rest in 0..stride {
            let words = format!("the root mean square of every {} channel from {rest} on", nth(stride));
            all.push((
                words,
                12.0,
                Arc::new(move |x| {
                    let of = |row: Vec<f64>| {
                        mean_square(&row.into_iter().skip(rest).step_by(stride).collect::<Vec<_>>()).sqrt()
                    };
                    x.rows().into_iter().map(|row| of(row.to_vec())).collect()
                }),
            ));
        }
    }
    // Of part of the channels: which part is read off the row.
    for at in 1..width {
        let bits = 6.0 + choice(width);
        let part = move |over: fn(usize, usize) -> f64, is_first: bool| -> Statistic {
            Arc::new(move |x: &Array2<f64>| {
                let of = |row: Vec<f64>| {
                    let part = if is_first { &row[..at.min(row.len())] } else { &row[row.len().saturating_sub(at)..] };
                    (dot(part, part) / over(part.len(), row.len())).sqrt()
                };
                x.rows().into_iter().map(|row| of(row.to_vec())).collect()
            })
        };
        if width <= FEW || is_round(at) || at + 8 > width {
            all.push((format!("the root mean square of the first {at} channels"), bits, part(|n, _| n as f64, true)));
            all.push((format!("the root mean square of the last {at} channels"), bits, part(|n, _| n as f64, false)));
            all.push((
                format!("the root of the sum of squares of the first {at} channels, divided by all {width}"),
                bits + 1.0,
                part(|_, n| n as f64, true),
            ));
            all.push((
                format!("the root of the sum of squares of the last {at} channels, divided by all {width}"),
                bits + 1.0,
                part(|_, n| n as f64, false),
            ));
        }
    }
    all
}

/// Widths up to which every part is tried; beyond only round ones, and those that leave out a few.
const FEW: usize = 256;

fn is_round(n: usize) -> bool {
    n.is_power_of_two() || n.is_multiple_of(64)
}
