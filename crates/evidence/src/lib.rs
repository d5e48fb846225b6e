//! Says whether a claim is paid for: the bits that recorded numbers carry above rounding, against the bits that stating a cause, a law or a factor costs.
//!
//! A number that was off, and that a claim gives, carries the bits by which its error becomes smaller, at most those of the type that it is stored in.
//! One that occurs again carries nothing new, also where the right value beside it was computed once more. The claim costs the numbers of its own, to the digit that they are stated to, and the choice of one among
//! all that were tried.

use std::fmt;

/// The share of itself by which rounding to f32 moves a number.
pub const F32: f64 = 1.0 / (1u64 << 24) as f64;
/// The same of f16.
pub const F16: f64 = 1.0 / (1u64 << 11) as f64;
/// The same of bf16.
pub const BF16: f64 = 1.0 / (1u64 << 8) as f64;

/// Bits that a claim must explain beyond its price: what gives numbers by chance does so once in a million.
const BEYOND: f64 = 20.0;
/// What the sign and the power of ten of a number cost.
const SIGN_AND_POWER: f64 = 4.0;
/// The share by which a right value moves where it is computed again in f32, in another order.
const COMPUTED_AGAIN: f64 = 4.0 * F32;
/// Numbers that are looked at: more of them carry as good as all.
const ENOUGH: usize = 1 << 18;

/// What recorded numbers carry for a claim.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Evidence {
    /// How many numbers are off by more than rounding, no two of them the same.
    pub numbers: usize,
    /// The bits of them that the claim explains.
    pub bits: f64,
}

impl Evidence {
    /// The evidence of numbers, each as `[recorded, right, claimed]`, where rounding moves a number by this share of itself. What is infinite or NaN is
    /// as it should be where the other is the same.
    pub fn of(numbers: impl Iterator<Item = [f64; 3]>, unit: f64) -> Evidence {
        let most = -unit.log2();
        let every = numbers.size_hint().1.unwrap_or(0) / ENOUGH + 1;
        // Not every n-th: that might be one column.
        let is_taken =
            |at: usize| (at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32 <= u64::from(u32::MAX) / every as u64;
        let mut off: Vec<([u64; 2], f64, bool)> = Vec::new();
        for (_, [own, right, claimed]) in numbers.enumerate().filter(|(at, _)| is_taken(*at)) {
            let least = unit * own.abs().max(right.abs()).max(claimed.abs());
            let apart =
                |other: f64| if own == other || own.is_nan() && other.is_nan() { 0.0 } else { (own - other).abs() };
            let (before, left) = (apart(right), apart(claimed));
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
        // That a value is there at all, where none is due, is of each place.
        let of_each = |again: &[u64; 2]| again.iter().any(|bits| !f64::from_bits(*bits).is_finite());
        off.dedup_by(|again, first| {
            let [was, is] = [first, &*again].map(|one| f64::from_bits(one.0[1]));
            let is_again = again.0 == first.0
                || again.0[0] == first.0[0] && (is - was).abs() <= COMPUTED_AGAIN * is.abs().max(was.abs());
            first.1 += f64::from(u8::from(is_again && first.1 > 0.0 && of_each(&again.0)));
            is_again
        });
        let numbers = off.iter().filter(|(.., is_off)| *is_off).count();
        let bits: f64 = off.iter().map(|(_, bits, _)| bits).sum();
        let is_one = off.windows(2).all(|two| two[0].0[0] == two[1].0[0] && !two.iter().any(|one| of_each(&one.0)));
        match is_one && off.len() > 1 {
            // Of many places one number is one; that none of them holds anything is a bit of each.
            true if off[0].0[0] == 0 => Evidence { numbers, bits: bits.min(most.max(numbers as f64)) },
            true => Evidence { numbers: numbers.min(1), bits: bits.min(most) },
            false => Evidence { numbers, bits },
        }
    }

    /// What is explained of these bits where a claim is known by the NMSE before it and by what it leaves alone.
    pub fn leaving(self, before: f64, left: f64) -> Evidence {
        let each = 0.5 * (before / left.max(f64::MIN_POSITIVE)).log2().max(0.0);
        Evidence { bits: self.bits.min(each * self.numbers as f64), ..self }
    }

    /// What of it is left where it is no more than so many numbers of any value.
    pub fn at_most(self, numbers: usize, unit: f64) -> Evidence {
        Evidence { numbers: self.numbers.min(numbers), bits: self.bits.min(-unit.log2() * numbers as f64) }
    }

    /// With the evidence of other numbers.
    pub fn and(self, other: Evidence) -> Evidence {
        Evidence { numbers: self.numbers + other.numbers, bits: self.bits + other.bits }
    }

    /// This evidence against the price of a claim.
    pub fn against(self, price: f64) -> Account {
        Account { evidence: self, needed: price + BEYOND }
    }
}

/// What a claim explains, and what it must.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Account {
    /// What the numbers carry for it.
    pub evidence: Evidence,
    /// The bits that they must carry.
    pub needed: f64,
}

impl Account {
    /// Whether the numbers prove it. What is not known does not.
    pub fn is_paid(&self) -> bool {
        self.evidence.bits >= self.needed
    }
}

impl fmt::Display for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Evidence { numbers, bits } = self.evidence;
        let carry = if numbers == 1 { "number carries" } else { "numbers carry" };
        write!(f, "{numbers} {carry} {:.0} bits, {:.0} are needed", bits.max(0.0), self.needed)
    }
}

/// What a number costs: its digits.
pub fn number(value: f64) -> f64 {
    let digits =
        format!("{value:e}").split('e').next().map_or(0, |digits| digits.matches(|c: char| c.is_ascii_digit()).count());
    SIGN_AND_POWER + digits as f64 * std::f64::consts::LOG2_10
}

/// What `n` numbers cost that are fitted as finely as rounding of this share lets them be.
pub fn fitted(n: usize, unit: f64) -> f64 {
    n as f64 * (SIGN_AND_POWER - unit.log2())
}

/// What one of `n` costs.
pub fn choice(n: usize) -> f64 {
    (n.max(2) as f64).log2()
}
