//! Softmaxes over blocks of keys that are put together wrongly.

use std::sync::Arc;

use super::OfRow;
use crate::identify::statistics::{over_sum, powers};

/// The sums of a softmax that runs over blocks of keys one after the other.
struct Running {
    /// Of each seen key the largest score up to the end of its block.
    most: Vec<f64>,
    /// The largest of all.
    last: f64,
    /// Of each seen key the first that is behind its block.
    ends: Vec<usize>,
}

impl Running {
    fn of(seen: &[usize], scores: &[f64], block: usize) -> Running {
        let ends: Vec<usize> =
            seen.iter().map(|s| seen.iter().take_while(|other| **other / block <= s / block).count()).collect();
        let so_far = |end: &usize| scores[..*end].iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let most: Vec<f64> = ends.iter().map(so_far).collect();
        Running { last: so_far(&scores.len()), most, ends }
    }
}

/// A softmax over blocks of keys of which a step is wrong.
type Step = (&'static str, fn(&Running, &[f64]) -> Vec<f64>);
const STEPS: [Step; 6] = [
    (
        "what was summed before is multiplied by the growth of the largest score's exponential, and not divided by it",
        |run, scores| {
            // Each block's sum is scaled by all growths behind it, the wrong way round: values and denominator alike.
            let of = scores.iter().zip(&run.most).map(|(s, most)| (s - most).exp() * (run.last - most).exp());
            over_sum(of.collect())
        },
    ),
    ("what was summed before is not rescaled when the largest score changes", |run, scores| {
        over_sum(scores.iter().zip(&run.most).map(|(s, most)| (s - most).exp()).collect())
    }),
    (
        "values that were summed before are not rescaled when the largest score changes, their denominator is",
        |run, scores| {
            let sum: f64 = scores.iter().map(|s| (s - run.last).exp()).sum();
            scores.iter().zip(&run.most).map(|(s, most)| (s - most).exp() / sum).collect()
        },
    ),
    ("the denominator is not rescaled when the largest score changes, values are", |run, scores| {
        let sum: f64 = scores.iter().zip(&run.most).map(|(s, most)| (s - most).exp()).sum();
        scores.iter().map(|s| (s - run.last).exp() / sum).collect()
    }),
    ("the sum is divided by the denominator so far after every block", |run, scores| {
        let of = powers(scores, run.last);
        let sums = |end: usize| of[..end].iter().sum::<f64>();
        let mut steps = run.ends.clone();
        steps.dedup();
        let by = |end: usize| steps.iter().filter(|step| **step >= end).map(|step| sums(*step)).product::<f64>();
        of.iter().zip(&run.ends).map(|(x, end)| x / by(*end)).collect()
    }),
    ("the denominator is that of the last block alone", |run, scores| {
        let of = powers(scores, run.last);
        let begin = run.ends.iter().copied().filter(|end| *end < scores.len()).max().unwrap_or(0);
        let sum: f64 = of[begin..].iter().sum();
        of.into_iter().map(|x| x / sum).collect()
    }),
];

/// Blocks of keys that are tried: every small size, and the usual ones.
fn sizes() -> Vec<usize> {
    (1..=12).chain([16, 24, 32, 48, 64]).collect()
}

/// Ways to take a softmax over blocks of keys that are wrong, with their prices.
pub(in crate::identify) fn over_blocks(keys: usize) -> Vec<(String, f64, OfRow)> {
    let mut all: Vec<(String, f64, OfRow)> = Vec::new();
    let mut blocks = sizes();
    // The keys in two, three or four splits.
    blocks.extend([2, 3, 4].map(|splits| keys.div_ceil(splits)));
    blocks.sort_unstable();
    blocks.dedup();
    for block in blocks.into_iter().filter(|block| *block > 1 && *block < keys) {
        for (way, by_blocks) in [("each by itself, divided by how many there are", true), ("each by itself", false)] {
            let of: OfRow = Arc::new(move |_, seen, scores| {
                let mut out = vec![0.0; scores.len()];
                let blocks: std::collections::BTreeSet<usize> = seen.iter().map(|s| s / block).collect();
                for which in &blocks {
                    let of: Vec<usize> = (0..seen.len()).filter(|&i| seen[i] / block == *which).collect();
                    let sum: f64 = of.iter().map(|&i| scores[i].exp()).sum();
                    let over = if by_blocks { blocks.len() as f64 } else { 1.0 };
                    of.iter().for_each(|&i| out[i] = scores[i].exp() / sum / over);
                }
                out
            });
            all.push((format!("the softmax runs in blocks of {block} keys, {way}"), 9.0, of));
        }
        for is_divided in [true, false] {
            let end = if is_divided { ", then divided by their sum" } else { "" };
            let of: OfRow = Arc::new(move |_, seen, scores| {
                let most = |which: usize| {
                    let of = seen.iter().zip(scores).filter(|(s, _)| **s / block == which);
                    of.map(|(_, x)| *x).fold(f64::NEG_INFINITY, f64::max)
                };
                let of: Vec<f64> = seen.iter().zip(scores).map(|(s, x)| (x - most(s / block)).exp()).collect();
                let by = if is_divided { of.iter().sum() } else { 1.0 };
                of.into_iter().map(|x| x / by).collect()
            });
            all.push((
                format!("in each block of {block} keys the block's own largest score is taken off{end}"),
                9.0,
                of,
            ));
        }
        // Two splits, the first of so many keys, the second of the rest.
        let of: OfRow = Arc::new(move |_, seen, scores| {
            let is_first = |at: usize| seen[at] < block;
            let sum = |first: bool| -> f64 {
                (0..seen.len()).filter(|&at| is_first(at) == first).map(|at| scores[at].exp()).sum()
            };
            let sums = [sum(false), sum(true)];
            let parts = sums.iter().filter(|sum| **sum > 0.0).count() as f64;
            (0..seen.len()).map(|at| scores[at].exp() / sums[usize::from(is_first(at))] / parts).collect()
        });
        let words = format!(
            "the softmax runs over keys below {block} and over those from {block} on, each by itself, and the mean of the two is taken"
        );
        all.push((words, 9.0, of));
    }
    // In one block there is no step.
    for block in sizes().into_iter().filter(|block| *block < keys) {
        for (words, of) in STEPS {
            let said = format!("the softmax runs over blocks of {block} keys, and {words}");
            all.push((said, 10.0, Arc::new(move |_, seen, scores| of(&Running::of(seen, scores, block), scores))));
        }
    }
    all
}
