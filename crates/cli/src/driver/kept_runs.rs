//! Decides whether runs of an earlier start may be used: only if one of them, made again, is the same bit for bit. The engine may have been rebuilt, on the
//! PATH, by `cargo run`, or as a module.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use firstdiff_compare::Place;
use firstdiff_trace::Dump;

use crate::driver::engine::KeptRun;
use crate::driver::evidence::same_bits;

/// What is known about the runs of an earlier start.
#[derive(Debug)]
pub(crate) struct KeptRuns {
    count: usize,
    from: SystemTime,
    to: SystemTime,
    pub(crate) trust: KeptRunsCheck,
}

/// Whether they come from the engine as it is now.
#[derive(Debug)]
pub(crate) enum KeptRunsCheck {
    /// The last one, made again, is the same.
    Same,
    /// It differs, first at this place.
    Differs(Place),
    /// It writes other taps, or other metadata.
    Otherwise,
}

impl KeptRuns {
    /// The kept `runs`, oldest first; one of them was repeated.
    pub(crate) fn new(runs: &[KeptRun], trust: KeptRunsCheck) -> Option<KeptRuns> {
        let (first, last) = (runs.first()?, runs.last()?);
        Some(KeptRuns { count: runs.len(), from: first.made, to: last.made, trust })
    }

    pub(crate) fn in_words(&self) -> String {
        let runs = if self.count == 1 { "1 run".to_owned() } else { format!("{} runs", self.count) };
        let when = match utc(self.from) == utc(self.to) {
            true => utc(self.from),
            false => format!("{} to {}", utc(self.from), utc(self.to)),
        };
        let runs_text = format!("{runs} of an earlier start ({when}, {})", age(self.to));
        match &self.trust {
            KeptRunsCheck::Same => {
                format!("{runs_text} used again: the last was repeated, and is the same bit for bit")
            }
            KeptRunsCheck::Differs(place) => format!(
                "{runs_text} discarded: the last, repeated, is not the same at {place}: the engine has changed, or is not deterministic"
            ),
            KeptRunsCheck::Otherwise => format!(
                "{runs_text} discarded: the last, repeated, holds other taps or says other things of itself: the engine has changed"
            ),
        }
    }

    /// The same as data.
    pub(crate) fn report(&self) -> crate::report::KeptRuns {
        let differs_at = match &self.trust {
            KeptRunsCheck::Differs(place) => Some(place.to_string()),
            _ => None,
        };
        crate::report::KeptRuns {
            runs: self.count,
            from: utc(self.from),
            to: utc(self.to),
            used: matches!(self.trust, KeptRunsCheck::Same),
            differs_at,
        }
    }
}

/// Whether a run made again equals the kept one, bit for bit.
///
/// # Errors
/// When a tensor cannot be read.
pub(crate) fn compared(kept: &Dump, again: &Dump) -> Result<KeptRunsCheck> {
    let declarations = |dump: &Dump| {
        let meta = dump.meta();
        (meta.tokens.clone(), meta.decode_tokens.clone(), meta.precision.clone(), meta.cache.clone(), meta.qk_rows)
    };
    let tensors = |dump: &Dump| -> Vec<_> {
        dump.all_entries().iter().map(|e| (e.step, e.tap, e.shape.clone(), e.dtype, e.rows.clone())).collect()
    };
    if declarations(kept) != declarations(again) || tensors(kept) != tensors(again) {
        return Ok(KeptRunsCheck::Otherwise);
    }
    for (entry, other) in kept.all_entries().iter().zip(&again.all_entries()) {
        if !same_bits(&kept.read(entry)?.values().to_f64(), &again.read(other)?.values().to_f64()) {
            return Ok(KeptRunsCheck::Differs(Place { step: entry.step, tap: entry.tap }));
        }
    }
    Ok(KeptRunsCheck::Same)
}

/// `2026-11-22 12:03:10 UTC`.
fn utc(time: SystemTime) -> String {
    let seconds = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Years of 365.2425 days that begin in March, so that the leap day is the last.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let year = era * 400 + year + u64::from(month <= 2);
    format!("{year}-{month:02}-{day:02} {:02}:{:02}:{:02} UTC", second / 3600, second / 60 % 60, second % 60)
}

/// `3 minutes ago`.
fn age(time: SystemTime) -> String {
    let seconds = SystemTime::now().duration_since(time).unwrap_or(Duration::ZERO).as_secs();
    let (count, unit) = match seconds {
        0..120 => (seconds, "second"),
        120..7200 => (seconds / 60, "minute"),
        7200..172_800 => (seconds / 3600, "hour"),
        _ => (seconds / 86_400, "day"),
    };
    format!("{count} {unit}{} ago", if count == 1 { "" } else { "s" })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_dates() {
        for (seconds, due) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_795_349_077, "2026-11-22 12:04:37 UTC"),
            (4_107_542_400, "2100-03-01 00:00:00 UTC"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(seconds)), due);
        }
    }
}
