//! Has a tap become worse than it was? The baseline file: one line a tap, made to be read in a diff.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firstdiff_compare::{Place, Report, Status, TapReport};

use crate::session::Judged;

/// A tap is worse than its baseline when its NMSE is this many times what it was: other processors round otherwise.
pub const ROOM: f64 = 4.0;
/// Ends the line of a tap that was compared at some of its positions only.
const PART: &str = " part";
/// Below this share of what the profile allows, no change is worth a word.
const NEGLIGIBLE: f64 = 0.01;

/// What a baseline says of each tap.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    taps: BTreeMap<Place, Was>,
    profile: String,
    /// Token positions of each step, where the two runs took the tokens in other chunks: a step's number means these.
    cells: Option<Vec<usize>>,
}

/// What a tap was.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Was {
    nmse: f64,
    /// Whether it was compared at some of its positions only.
    part: bool,
}

/// A tap that is not what its baseline promises.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// The tap.
    pub place: Place,
    /// NMSE by the baseline.
    pub was: Option<f64>,
    /// NMSE now, where it could be compared.
    pub now: Option<f64>,
    /// What is wrong.
    pub reason: String,
}

impl Baseline {
    /// The baseline of a comparison in which everything that was compared agrees.
    pub fn of(report: &Report) -> Baseline {
        let agreed = report.taps.iter().filter(|t| t.status.agrees());
        let was = |t: &TapReport| Some(Was { nmse: t.metrics?.nmse()?, part: t.positions.is_some() });
        let taps = agreed.filter_map(|t| Some((t.place, was(t)?))).collect();
        Baseline { taps, profile: report.profile.name().into(), cells: cells(report) }
    }

    /// The file's text.
    pub fn to_text(&self, judged: &Judged) -> String {
        let mut text =
            String::from("# firstdiff baseline 1: NMSE of every tap; written by `firstdiff gate --update`\n");
        let meta = judged.session.reference.meta();
        let name = |value: Option<&str>| value.unwrap_or("unknown").replace(|c: char| c.is_control(), " ");
        let _ = writeln!(text, "# reference: {}, model {}", name(meta.producer.name()), name(meta.model.as_deref()));
        let _ = writeln!(text, "profile {}", self.profile);
        if let Some(cells) = &self.cells {
            let lengths: Vec<String> = cells.iter().map(usize::to_string).collect();
            let _ = writeln!(text, "cells {}", lengths.join(","));
        }
        for (place, Was { nmse, part }) in &self.taps {
            let name = firstdiff_trace::stored_name(&place.tap.to_string(), place.step);
            let part = if *part { PART } else { "" };
            let _ = writeln!(text, "{name:<32} {nmse:.1e}{part}");
        }
        text
    }

    /// Reads a baseline file.
    ///
    /// # Errors
    /// When there is none, or a line of it is no baseline's; the error names file and line.
    pub fn read(path: &Path) -> Result<Baseline> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("{}: no baseline; make it with --update", path.display()))?;
        Baseline::parse(&text).with_context(|| format!("{}: not a baseline", path.display()))
    }

    fn parse(text: &str) -> Result<Baseline> {
        let mut baseline = Baseline::default();
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || format!("line {}: '{}'", number + 1, line.escape_debug());
            let (name, value) = line.split_once(char::is_whitespace).with_context(bad)?;
            if name == "profile" {
                baseline.profile = value.trim().into();
                continue;
            }
            if name == "cells" {
                let lengths = value.trim().split(',').map(str::parse).collect::<Result<_, _>>();
                baseline.cells = Some(lengths.with_context(bad)?);
                continue;
            }
            let (tap, step) = match name.rsplit_once(".step") {
                Some((tap, step)) => (tap, step.parse().with_context(bad)?),
                None => (name, 0),
            };
            let (value, part) = match value.trim().strip_suffix(PART) {
                Some(value) => (value, true),
                None => (value.trim(), false),
            };
            let nmse: f64 = value.parse().with_context(bad)?;
            if !(nmse >= 0.0 && nmse.is_finite()) {
                bail!("{}: an NMSE is 0 or more", bad());
            }
            let place = Place { step, tap: tap.parse().with_context(bad)? };
            if baseline.taps.insert(place, Was { nmse, part }).is_some() {
                bail!("{}: twice", bad());
            }
        }
        if baseline.taps.is_empty() || baseline.profile.is_empty() {
            bail!("it has no taps or no profile");
        }
        Ok(baseline)
    }

    /// Every tap that is worse than it was, missing, or diverged.
    pub fn regressions(&self, report: &Report) -> Vec<Regression> {
        let mut found = Vec::new();
        if let (Some(reason), Some(tap)) = (self.of_other_steps(report), report.taps.first()) {
            return vec![Regression { place: tap.place, was: None, now: None, reason }];
        }
        for (&place, &was) in &self.taps {
            let now = report.tap(place.tap, place.step);
            let nmse = now.and_then(|t| t.metrics?.nmse());
            let reason = match now {
                None => Some("in neither dump any more".to_owned()),
                Some(tap) => worse(tap, was, nmse),
            };
            found.extend(reason.map(|reason| Regression { place, was: Some(was.nmse), now: nmse, reason }));
        }
        for tap in report.taps.iter().filter(|t| t.status.differs() && !self.taps.contains_key(&t.place)) {
            let now = tap.metrics.and_then(|m| m.nmse());
            let reason = format!("{}, and not in the baseline", tap.status.name());
            found.push(Regression { place: tap.place, was: None, now, reason });
        }
        if self.profile != report.profile.name()
            && let Some(tap) = report.taps.first()
        {
            let reason = format!("the baseline is of profile {}, this comparison of {}", self.profile, report.profile);
            found.push(Regression { place: tap.place, was: None, now: None, reason });
        }
        found
    }

    /// Why its steps stand for other token positions than the report's, where they do.
    fn of_other_steps(&self, report: &Report) -> Option<String> {
        let cells = cells(report);
        let as_in_the_reference =
            report.laid.as_ref().is_none_or(|laid| cells.as_ref() == Some(&laid.reference.lengths));
        let fits = self.cells == cells || (self.cells.is_none() && as_in_the_reference);
        (!fits).then(|| {
            "the baseline's steps are of other token positions: the candidate, or the reference, took its tokens in other chunks then; make a baseline of \
             this run (--update)"
                .to_owned()
        })
    }

    /// Number of taps.
    pub fn len(&self) -> usize {
        self.taps.len()
    }

    /// Whether it says nothing.
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }
}

/// Token positions of each of the report's steps, where the two runs took the tokens in other chunks.
fn cells(report: &Report) -> Option<Vec<usize>> {
    report.laid.as_ref().map(|laid| laid.cells.iter().map(ExactSizeIterator::len).collect())
}

/// Why `tap` is worse than its baseline, if it is. Written so that what is not known to be as good is worse.
fn worse(tap: &TapReport, was: Was, now: Option<f64>) -> Option<String> {
    if tap.status == Status::Unchecked {
        return Some(format!("unchecked: {}", tap.reason.as_deref().unwrap_or("unknown")));
    }
    let negligible = tap.allowed.unwrap_or(0.0) * NEGLIGIBLE;
    let as_good = now.is_some_and(|now| now <= (ROOM * was.nmse).max(negligible));
    match (tap.status.agrees(), as_good) {
        (true, true) if tap.positions.is_some() && !was.part => {
            Some("compared at some token positions only, where its baseline is of all".into())
        }
        (true, true) => None,
        (true, false) => Some("worse than its baseline".into()),
        (false, _) => Some(tap.status.name().into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bad_baselines_are_refused() {
        for bad in [
            "",
            "profile f32",
            "h0 1e-3",
            "profile f32\nh0 NaN",
            "profile f32\nh0 -1",
            "profile f32\nnot.a.tap 0",
            "profile f32\nh0 0\nh0 0",
            "profile f32\nh0.stepx 0",
            "h0",
            "profile f32\ncells 9,x\nh0 0",
        ] {
            assert!(Baseline::parse(bad).is_err(), "{bad}");
        }
        let good = Baseline::parse("# c\nprofile f32\nh0 0\nlayers.0.q.step2 1.5e-14\n").unwrap();
        assert_eq!(good.len(), 2);
        let part = Baseline::parse("profile f32\nh0 0 part\n").unwrap();
        assert!(part.taps.values().all(|was| was.part) && good.taps.values().all(|was| !was.part));
    }
}
