//! Frequencies as a candidate has them, read off what it turned; and which scaling gives such frequencies.

use std::sync::Arc;

use ndarray::ArrayD;
use serde_json::json;

use crate::mistakes::rope::ROPE_SCALING;
use crate::program::arrays::array;
use crate::program::context::Context;
use crate::program::form::Form;
use crate::program::form::rounded_to;
use crate::program::forms::turn::{Rotation, Turn, base_of, bases_of};
use crate::tolerance::search::SAME_STEP;

/// Positions that show whether angles grow with them alone.
const LEAST_POSITIONS: usize = 3;
/// Digits that are said of a factor that was read off.
const DIGITS: i32 = 3;
/// A frequency with no more digits behind the point was cut, and not scaled.
const CUT_TO: std::ops::RangeInclusive<i32> = 2..=5;

/// The frequencies that were seen, and the largest position.
struct Seen {
    frequencies: Vec<f64>,
    reach: f64,
}

/// What gives each pair its frequency.
struct Scaled {
    kind: String,
    factor: Option<f64>,
}

/// The scaling by which the candidate turned, where its angles grow with the position and one is known that gives them.
pub(super) fn forms(context: &Context<'_>, rotation: &Rotation) -> Option<Form> {
    let right = rotation.steps.clone()?;
    let seen = seen(context, rotation).or_else(|| of_prompt(context, rotation))?;
    let Scaled { kind, factor } = seen.scaled(&right)?;
    let frequencies = Arc::new(seen.frequencies);
    let change = rotation.change(move |turn| turn.turned_with(&frequencies));
    let mut params = vec![("kind", json!(kind))];
    params.extend(factor.map(|factor| ("factor", json!(rounded_to(factor, DIGITS)))));
    Some(Form::one(&ROPE_SCALING, params, rotation.op, change))
}

/// What the rotation that ends at the target turned by.
fn seen(context: &Context<'_>, rotation: &Rotation) -> Option<Seen> {
    let own = context.own_as(context.out(rotation.op)?)?;
    let read = context.read(rotation.op, &rotation.views.each_ref())?;
    let turned = Turn::of(&read, rotation)?;
    let (frequencies, reach) = turned.frequencies(&own, LEAST_POSITIONS)?;
    Some(Seen { frequencies, reach })
}

/// Of a step of few tokens: what the same tap of the prompt was turned by.
fn of_prompt(context: &Context<'_>, rotation: &Rotation) -> Option<Seen> {
    let (program, held) = (context.program, context.held);
    let target = context.slice.target();
    let tap = (0..target).find(|&tap| {
        let step = program.taps()[tap].step;
        held.place(tap).tap == held.place(target).tap && program.steps()[step].tokens >= LEAST_POSITIONS
    })?;
    let own: ArrayD<f64> = array(held.get(tap)?);
    let slice = held.slice(program, tap);
    let there = context.at(&slice, own);
    let same = |op: &usize| program.class(*op) == program.class(rotation.op);
    let op = there.ops().find(same)?;
    seen(&there, &Rotation::of(&there, op)?)
}

impl Seen {
    /// Whether two frequencies turn alike as far as is seen.
    fn alike(&self, a: f64, b: f64) -> bool {
        (a - b).abs() * self.reach <= SAME_STEP
    }

    /// Whether all follow one base, or are cut to a few digits: then none of these is what they are.
    fn is_no_scaling(&self, right: &[f64]) -> bool {
        let (all, count) = (&self.frequencies, self.frequencies.len() as f64);
        let of_one_base = (1..all.len()).any(|k| {
            let base = (all[k] / all[0]).powf(-count / k as f64);
            all.iter().enumerate().all(|(i, w)| self.alike(*w, all[0] * base.powf(-(i as f64) / count)))
        });
        let is_cut = |digits: i32| {
            let unit = 10f64.powi(-digits);
            all.iter()
                .zip(right)
                .all(|(w, right)| self.alike(*w, (w / unit).round() * unit) && (w - right).abs() < unit)
        };
        let is_right = all.iter().zip(right).all(|(w, right)| self.alike(*w, *right));
        of_one_base || is_right || CUT_TO.into_iter().any(is_cut)
    }

    fn scaled(&self, right: &[f64]) -> Option<Scaled> {
        if right.len() != self.frequencies.len() || right.len() < 3 || self.is_no_scaling(right) {
            return None;
        }
        match base_of(right) {
            // Of a model without a scaling its parts must be plain to see.
            Some((base, _)) => self.by_bands(base, 2),
            None => {
                let bases = bases_of(right);
                let by_bands = bases.iter().find_map(|&base| self.by_bands(base, 1));
                by_bands.or_else(|| bases.iter().find_map(|&base| self.by_a_table(base)))
            }
        }
    }

    /// Fast pairs as they are, slow ones divided by a factor, and those between by a share of it.
    fn by_bands(&self, base: f64, least: usize) -> Option<Scaled> {
        let count = self.frequencies.len();
        let plain: Vec<f64> = (0..count).map(|i| base.powf(-(i as f64) / count as f64)).collect();
        // Where a slow pair hardly turns, its factor is not known.
        let slowest = (0..count).rev().find(|&i| plain[i] * self.reach >= SAME_STEP.sqrt())?;
        let factor = plain[slowest] / self.frequencies[slowest];
        let divided = |i: usize| self.alike(self.frequencies[i], plain[i] / factor);
        let left = (0..count).take_while(|&i| self.alike(self.frequencies[i], plain[i])).count();
        let below = (0..count).rev().take_while(|&i| divided(i)).count();
        if !factor.is_finite() || factor <= 1.0 || left < least || below < least || left + below > count {
            return None;
        }
        let between: Vec<usize> = (left..count - below).collect();
        let share = |i: usize| (self.frequencies[i] / plain[i] - 1.0 / factor) / (1.0 - 1.0 / factor);
        if between.iter().any(|&i| !(0.0..=1.0).contains(&share(i))) {
            return None;
        }
        let follows = |of: &dyn Fn(usize) -> f64| {
            let Some((slope, at_zero)) = line(&between, of, &share) else { return false };
            let due = |i: usize| (slope * of(i) + at_zero).clamp(0.0, 1.0);
            (0..count).all(|i| self.alike(self.frequencies[i], plain[i] * (due(i) + (1.0 - due(i)) / factor)))
        };
        let kinds = [("llama3", follows(&|i| plain[i])), ("yarn", follows(&|i| i as f64))];
        let named: Vec<&str> = kinds.into_iter().filter(|(_, follows)| *follows).map(|(kind, _)| kind).collect();
        let kind = match named.as_slice() {
            [] if between.is_empty() => "by bands".to_owned(),
            [] if least > 1 => return None,
            // Of pairs that follow no line nobody knows which of them have the whole factor.
            [] => return Some(Scaled { kind: "a table".to_owned(), factor: None }),
            some => some.join(" or "),
        };
        Some(Scaled { kind, factor: Some(factor) })
    }

    /// Each pair divided by its own factor, slower ones by no smaller ones.
    fn by_a_table(&self, base: f64) -> Option<Scaled> {
        let count = self.frequencies.len() as f64;
        let ratios = self.frequencies.iter().enumerate().map(|(i, w)| w / base.powf(-(i as f64) / count));
        let ratios: Vec<f64> = ratios.collect();
        let falls = ratios.windows(2).all(|pair| pair[1] <= pair[0] + SAME_STEP);
        let within = ratios.iter().all(|ratio| *ratio > SAME_STEP && *ratio <= 1.0 + SAME_STEP);
        (falls && within).then(|| Scaled { kind: "a table".to_owned(), factor: None })
    }
}

/// The line through some points, by least squares; `None` of fewer than two.
fn line(at: &[usize], x: &dyn Fn(usize) -> f64, y: &dyn Fn(usize) -> f64) -> Option<(f64, f64)> {
    let count = at.len() as f64;
    let mean = |of: &dyn Fn(usize) -> f64| at.iter().map(|&i| of(i)).sum::<f64>() / count;
    let (middle, height) = (mean(x), mean(y));
    let across: f64 = at.iter().map(|&i| (x(i) - middle).powi(2)).sum();
    let rise: f64 = at.iter().map(|&i| (x(i) - middle) * (y(i) - height)).sum();
    (at.len() > 1 && across > 0.0).then(|| (rise / across, height - rise / across * middle))
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAIRS: usize = 16;

    fn plain() -> Vec<f64> {
        (0..PAIRS).map(|i| 1e4f64.powf(-(i as f64) / PAIRS as f64)).collect()
    }

    fn kind(frequencies: Vec<f64>) -> Option<(String, Option<f64>)> {
        let seen = Seen { frequencies, reach: 40.0 };
        seen.scaled(&plain()).map(|scaled| (scaled.kind, scaled.factor.map(|factor| rounded_to(factor, DIGITS))))
    }

    fn blended(share: impl Fn(usize) -> f64) -> Vec<f64> {
        plain().iter().enumerate().map(|(i, w)| w * (share(i) + (1.0 - share(i)) / 8.0)).collect()
    }

    #[test]
    fn a_scaling_is_known_by_its_ramp() {
        // Smooth in the frequency, and in the number of the pair.
        let llama3 = blended(|i| (12.0 * plain()[i] - 0.3).clamp(0.0, 1.0));
        assert_eq!(kind(llama3), Some(("llama3".into(), Some(8.0))));
        let yarn = blended(|i| (1.0 - (i as f64 - 3.0) / 8.0).clamp(0.0, 1.0));
        assert_eq!(kind(yarn), Some(("yarn".into(), Some(8.0))));
        assert_eq!(kind(blended(|i| f64::from(u8::from(i < 5)))), Some(("by bands".into(), Some(8.0))));
    }

    #[test]
    fn other_frequencies_are_no_scaling() {
        assert_eq!(kind(plain()), None);
        // Another base, another order, numbers of few digits, and no rule.
        assert_eq!(kind((0..PAIRS).map(|i| 5e5f64.powf(-(i as f64) / PAIRS as f64)).collect()), None);
        assert_eq!(kind(plain().into_iter().rev().collect()), None);
        assert_eq!(kind(plain().into_iter().map(|w| (w * 1e3).floor() / 1e3).collect()), None);
        assert_eq!(kind(plain().into_iter().enumerate().map(|(i, w)| w / (1.0 + (i % 3) as f64)).collect()), None);
    }
}
