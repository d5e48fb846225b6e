//! Sums that are kept in few digits: each product is added to a sum that is rounded at once.

use ndarray::Array2;

use super::{ROOM, Sample, of_product};
use crate::identify::output::roundings::to_digits;
use crate::law::Law;

/// How a sum of products is kept.
#[derive(Clone, Copy)]
pub(in crate::identify) struct Kept {
    /// Binary digits of the sum.
    pub(in crate::identify) digits: i32,
    /// Products that are added before the sum is rounded.
    pub(in crate::identify) at_once: usize,
    /// Whether each product is rounded before it is added.
    pub(in crate::identify) rounds_products: bool,
    /// Whether products and sums are made in f32, and rounded from there.
    pub(in crate::identify) through_f32: bool,
}

impl Kept {
    /// The ways that are tried, of up to so many products at once.
    pub(in crate::identify) fn ways(most: usize) -> impl Iterator<Item = Kept> {
        let rounds = [(false, false), (false, true), (true, false), (true, true)];
        [F16, BF16].into_iter().flat_map(move |digits| {
            let at_once = [1, 2, 4, 8, 16, 32, 64].into_iter().filter(move |at_once| *at_once <= most);
            at_once.flat_map(move |at_once| {
                rounds.map(|(rounds_products, through_f32)| Kept { digits, at_once, rounds_products, through_f32 })
            })
        })
    }

    pub(in crate::identify) fn sum(self, x: ndarray::ArrayView1<'_, f64>, weight: ndarray::ArrayView1<'_, f64>) -> f64 {
        let narrow = |x: f64| if self.through_f32 { f64::from(x as f32) } else { x };
        let round = |x: f64| to_digits(narrow(x), self.digits, false);
        let mut sum = 0.0;
        let (mut some, mut count) = (0.0, 0);
        for (x, w) in x.iter().zip(weight) {
            let product = x * w;
            some = narrow(some + if self.rounds_products { round(product) } else { narrow(product) });
            count += 1;
            if count == self.at_once {
                sum = round(sum + some);
                (some, count) = (0.0, 0);
            }
        }
        if count > 0 { round(sum + some) } else { sum }
    }

    pub(in crate::identify) fn words(self) -> String {
        let kind = match self.digits {
            F16 => " (f16's)",
            BF16 => " (bf16's)",
            _ => "",
        };
        let after = match self.at_once {
            1 => "after each product".to_owned(),
            n => format!("after each {n} products"),
        };
        let products = if self.rounds_products { ", and each product before" } else { "" };
        format!("the sum of products is rounded to {} binary digits{kind} {after}{products}", self.digits)
    }
}

const F16: i32 = 11;
const BF16: i32 = 8;
/// Output rows that ways are told apart on.
const TRIED: usize = 8;
/// The least error, as a share, that a sum in few digits makes.
pub(in crate::identify) const LEAST: f64 = 1e-5;

impl Sample {
    /// Sums that are rounded after each product, or each few of them.
    pub(super) fn accumulated(&self) -> Vec<Law> {
        let before = self.left(&self.x.dot(&self.weight.t()));
        if before < LEAST {
            return Vec::new();
        }
        let few: Vec<usize> = (0..self.rows.len().min(TRIED)).collect();
        let bias = &self.right - &self.x.dot(&self.weight.t());
        let mut laws = Vec::new();
        for kept in Kept::ways(64) {
            let (mut off, mut size) = (0.0, 0.0);
            for &row in &few {
                for (t, x) in self.x.rows().into_iter().enumerate() {
                    let made = kept.sum(x, self.weight.row(row)) + bias[[t, row]];
                    off += (made - self.own[[t, row]]).powi(2);
                    size += self.own[[t, row]].powi(2);
                }
            }
            // A value on the edge between two steps may be either of them.
            if (off / f64::max(size, f64::MIN_POSITIVE)).sqrt() <= (0.1 * before).max(ROOM * self.noise) {
                laws.push(law(kept));
            }
        }
        laws
    }
}

fn law(kept: Kept) -> Law {
    let law = of_product(kept.words(), 12.0, move |x, weight| {
        Array2::from_shape_fn((x.nrows(), weight.nrows()), |(t, row)| kept.sum(x.row(t), weight.row(row)))
    });
    law.with("digits", kept.digits).with("at_once", kept.at_once)
}
