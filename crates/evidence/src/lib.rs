//! Weighs evidence for a claim: the bits of information in the recorded numbers above rounding, against the bits that stating the cause, law or factor
//! costs.
//!
//! A wrong number that the claim reproduces counts the bits by which its error shrinks, at most those of its storage type. A repeated number counts once,
//! even if the right value beside it was computed again with other rounding. The claim costs its own numbers, to the digits in which they are stated, and
//! the choice of one among all claims that were tried.

use std::fmt;

/// The relative rounding error of f32.
pub const F32: f64 = 1.0 / (1u64 << 24) as f64;
/// The relative rounding error of f16.
pub const F16: f64 = 1.0 / (1u64 << 11) as f64;
/// The relative rounding error of bf16.
pub const BF16: f64 = 1.0 / (1u64 << 8) as f64;

/// Bits that a claim must explain beyond its cost: chance reproduces numbers this well once in a million.
const SIGNIFICANCE_BITS: f64 = 20.0;
/// The cost of a number's sign and power of ten.
const SIGN_AND_POWER: f64 = 4.0;
/// The relative change of a right value when it is computed again in f32, in another order.
const COMPUTED_AGAIN: f64 = 4.0 * F32;
/// How many numbers are sampled at most: more would add almost nothing.
const MAX_SAMPLES: usize = 1 << 18;

/// The information in recorded numbers that supports a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// How many distinct numbers are wrong by more than rounding.
    pub numbers: usize,
    /// The bits that the claim explains.
    pub bits: f64,
    /// The recorded number, where it is one and the same at all wrong places.
    pub only: Option<f64>,
}

impl Evidence {
    /// Computes the evidence of numbers, each as `[recorded, right, claimed]`, with relative rounding error `unit`. Where one is infinite or NaN, it agrees
    /// only if the other is the same.
    pub fn of(numbers: impl Iterator<Item = [f64; 3]>, unit: f64) -> Evidence {
        let most = -unit.log2();
        let every = numbers.size_hint().1.unwrap_or(0) / MAX_SAMPLES + 1;
        // Not every n-th number: they could all be from one column.
        let is_taken =
            |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 <= u64::from(u32::MAX) / every as u64;
        let mut off: Vec<([u64; 2], f64, bool)> = Vec::new();
        for (_, [own, right, claimed]) in numbers.enumerate().filter(|(at, _)| is_taken(*at)) {
            let least = unit * own.abs().max(right.abs()).max(claimed.abs());
            let distance =
                |other: f64| if own == other || own.is_nan() && other.is_nan() { 0.0 } else { (own - other).abs() };
            let (before, left) = (distance(right), distance(claimed));
            let (bits, is_off) = match (before.is_finite(), left.is_finite()) {
                (true, true) if before <= least && left <= least => continue,
                (true, true) => ((before.max(least) / left.max(least)).log2().clamp(-most, most), before > least),
                (false, true) => (most, true),
                (true, false) => (-most, false),
                (false, false) => (0.0, true),
            };
            off.push(([own.to_bits(), right.to_bits()], bits, is_off));
        }
        let right = |one: &([u64; 2], f64, bool)| f64::from_bits(one.0[1]);
        off.sort_unstable_by(|a, b| a.0[0].cmp(&b.0[0]).then(right(a).total_cmp(&right(b))).then(a.1.total_cmp(&b.1)));
        // An infinite or NaN value is evidence at each place where it occurs: there a mask should be, or should not be.
        let is_not_finite = |again: &[u64; 2]| again.iter().any(|bits| !f64::from_bits(*bits).is_finite());
        off.dedup_by(|again, first| {
            let [was, is] = [first, &*again].map(|one| f64::from_bits(one.0[1]));
            let is_again = again.0 == first.0
                || again.0[0] == first.0[0] && (is - was).abs() <= COMPUTED_AGAIN * is.abs().max(was.abs());
            first.1 += f64::from(u8::from(is_again && first.1 > 0.0 && is_not_finite(&again.0)));
            is_again
        });
        let numbers = off.iter().filter(|(.., is_off)| *is_off).count();
        let bits: f64 = off.iter().map(|(_, bits, _)| bits).sum();
        let is_one = off.windows(2).all(|two| two[0].0[0] == two[1].0[0] && !two.iter().any(|x| is_not_finite(&x.0)));
        match is_one && off.len() > 1 {
            // One value at many places counts as one number; a tensor of zeros counts one bit for each place.
            true if off[0].0[0] == 0 => Evidence { numbers, bits: bits.min(most.max(numbers as f64)), only: None },
            true => Evidence { numbers: numbers.min(1), bits: bits.min(most), only: Some(f64::from_bits(off[0].0[0])) },
            false => Evidence { numbers, bits, only: None },
        }
    }

    /// Limits the bits to what the NMSE before the claim, and with it, shows.
    pub fn leaving(self, before: f64, left: f64) -> Evidence {
        let each = 0.5 * (before / left.max(f64::MIN_POSITIVE)).log2().max(0.0);
        Evidence { bits: self.bits.min(each * self.numbers as f64), ..self }
    }

    /// Limits the evidence to that of this many numbers of any value.
    pub fn at_most(self, numbers: usize, unit: f64) -> Evidence {
        Evidence { numbers: self.numbers.min(numbers), bits: self.bits.min(-unit.log2() * numbers as f64), ..self }
    }

    /// Adds the evidence of other numbers; one number that all places hold stays one number.
    pub fn and(self, other: Evidence) -> Evidence {
        let (numbers, bits) = match self.only.is_some() && self.only == other.only {
            true => (self.numbers.max(other.numbers), self.bits.max(other.bits)),
            false => (self.numbers + other.numbers, self.bits + other.bits),
        };
        let only = if self == Evidence::default() { other.only } else { self.only.filter(|_| self.only == other.only) };
        Evidence { numbers, bits, only }
    }

    /// Compares this evidence with the cost of a claim.
    pub fn against(self, price: f64) -> Account {
        Account { evidence: self, needed: price + SIGNIFICANCE_BITS }
    }
}

/// The evidence for a claim, and how much it needs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Account {
    /// The evidence of the numbers.
    pub evidence: Evidence,
    /// The bits that are needed.
    pub needed: f64,
}

impl Account {
    /// Whether the numbers prove the claim. False if the bits are NaN.
    pub fn is_paid(&self) -> bool {
        self.evidence.bits >= self.needed
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { numbers, bits, .. } = self.evidence;
        let carry = if numbers == 1 { "number carries" } else { "numbers carry" };
        write!(f, "{numbers} {carry} {:.0} bits, {:.0} are needed", bits.max(0.0), self.needed)
    }
}

/// The cost of stating a number, in bits: its digits.
pub fn number(value: f64) -> f64 {
    let digits =
        format!("{value:e}").split('e').next().map_or(0, |digits| digits.matches(|c: char| c.is_ascii_digit()).count());
    SIGN_AND_POWER + digits as f64 * std::f64::consts::LOG2_10
}

/// The cost of `n` fitted numbers, each as precise as this rounding error allows.
pub fn fitted(n: usize, unit: f64) -> f64 {
    n as f64 * (SIGN_AND_POWER - unit.log2())
}

/// The cost of choosing one of `n`.
pub fn choice(n: usize) -> f64 {
    (n.max(2) as f64).log2()
}
