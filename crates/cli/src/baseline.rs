//! Reads and writes the baseline file, one line a tap, and finds taps that have become worse than it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::io::ErrorKind;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firstdiff_compare::metrics::Metrics;
use firstdiff_compare::{Place, Reason, Report, Status, TapReport};
use firstdiff_trace::{FileError, Tap, read_regular};
use serde::Serialize;

use crate::session::Comparison;

/// A tap is worse than its baseline when its NMSE is this many times what it was: other processors round differently.
pub const ROOM: f64 = 4.0;
/// The constant factor of a tap that was accepted though it differs may not change by more than this.
const FACTOR_ROOM: f64 = 0.02;
/// The same number as in compare's test of a factor.
const FACTOR_SIGMAS: f64 = 6.0;
const VALUES_A_POSITION: f64 = 4.0;
/// The beginning of a baseline; the version follows.
const HEADER: &str = "# firstdiff baseline";
const VERSION: u32 = 1;
/// The text before the constant factor of a tap that differed.
const DIFFERED: &str = " differs, factor ";
/// The end of a line for a tap that was compared at some of its positions only.
const PART: &str = " part";
/// The mark of a baseline whose taps were judged by the noise of a second run.
const NOISE: &str = "noise";
/// The text before who accepted the differences, and why.
const ACCEPTED_BY: &str = "accepted-by";
const ACCEPTED_BECAUSE: &str = "accepted-because";
/// Changes below this share of what the profile allows are not reported.
const NEGLIGIBLE: f64 = 0.01;

/// The contents of a baseline.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Baseline {
    taps: BTreeMap<Place, BaselineEntry>,
    profile: String,
    /// Token positions of each step, where the two runs have different chunks: a step's number then means these.
    cells: Option<Vec<usize>>,
    /// Whether taps were judged by the noise of a second run.
    noise: bool,
    /// Who accepted the differences, and why.
    accepted: Accepted,
}

/// Who allows taps to differ, and why. A baseline of parity needs neither.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Accepted {
    /// Who.
    pub by: Option<String>,
    /// Why.
    pub because: Option<String>,
}

impl Accepted {
    /// From the user's words, each made one line.
    pub fn new(by: Option<&str>, because: Option<&str>) -> Accepted {
        let line = |text: &str| Some(on_a_line(text)).filter(|text| !text.is_empty());
        Accepted { by: by.and_then(line), because: because.and_then(line) }
    }

    /// `accepted by ann: keys in int8`; what was not given is called unknown.
    pub fn in_words(&self) -> String {
        let by = self.by.as_deref().unwrap_or("nobody knows whom");
        let because =
            self.because.as_deref().unwrap_or("no reason is given (--update --accept-diverged --reason TEXT)");
        format!("accepted by {by}: {because}")
    }
}

/// Text without line breaks and other control characters.
fn on_a_line(text: &str) -> String {
    text.replace(|c: char| c.is_control(), " ").trim().to_owned()
}

/// A tap as the baseline has it.
#[derive(Clone, Copy, Debug, PartialEq)]
struct BaselineEntry {
    nmse: f64,
    /// Whether it was compared at some of its positions only.
    part: bool,
    /// For a tap that differed and was accepted: its best constant factor.
    differed: Option<f64>,
}

/// A tap that is worse than its baseline, or no longer needs to be accepted.
#[derive(Clone, Debug, PartialEq)]
pub struct Regression {
    /// The tap.
    pub place: Place,
    /// NMSE by the baseline.
    pub baseline_nmse: Option<f64>,
    /// NMSE now, where it could be compared.
    pub now: Option<f64>,
    /// What is wrong.
    pub reason: String,
    /// Whether it is better than what was accepted, so that the baseline allows more than is needed.
    pub outgrown: bool,
}

impl Regression {
    /// The name of this kind of failure in a report.
    pub fn kind(&self) -> &'static str {
        if self.outgrown { "outgrown" } else { "regression" }
    }
}

impl Baseline {
    /// The baseline of a comparison. Taps that differ in it must later stay as they are.
    ///
    /// # Errors
    /// When a tap that differs is not finite: no later run could be compared with that.
    pub fn from_report(report: &Report, accepted: Accepted) -> Result<Baseline> {
        let mut taps = BTreeMap::new();
        for tap in report.taps.iter().filter(|t| t.status.agrees() || t.status.differs()) {
            let nmse = tap.size().filter(|nmse| nmse.is_finite());
            let part = tap.positions.is_some();
            match (nmse, tap.status.differs()) {
                (Some(nmse), false) => {
                    taps.insert(tap.place, BaselineEntry { nmse, part, differed: None });
                }
                (Some(nmse), true) => {
                    taps.insert(tap.place, BaselineEntry { nmse, part, differed: Some(factor(tap)) });
                }
                (None, true) => {
                    let why = tap.why().unwrap_or("no NMSE".into());
                    bail!("{}: {why}: nothing can be held to that", tap.place)
                }
                (None, false) => {}
            }
        }
        let (profile, cells, noise) = (report.profile.name().into(), cells(report), has_noise(report));
        Ok(Baseline { taps, profile, cells, noise, accepted })
    }

    /// Who accepted the differences, and why; `None` where nothing differed.
    pub fn accepted(&self) -> Option<&Accepted> {
        (self.differing() > 0).then_some(&self.accepted)
    }

    /// How many taps differed when it was made; 0 for a baseline of parity.
    pub fn differing(&self) -> usize {
        self.taps.values().filter(|was| was.differed.is_some()).count()
    }

    /// The file's text.
    pub fn to_text(&self, judged: &Comparison) -> String {
        let mut text = format!("{HEADER} {VERSION}: NMSE of every tap; written by `firstdiff gate --update`\n");
        let meta = judged.session.reference.meta();
        let name = |value: Option<&str>| on_a_line(value.unwrap_or("unknown"));
        let _ = writeln!(text, "# reference: {}, model {}", name(meta.producer.name()), name(meta.model.as_deref()));
        if self.differing() > 0 {
            let (count, all) = (self.differing(), self.taps.len());
            let _ =
                writeln!(text, "# NOT PARITY: {count} of {all} taps differ; accepted as they were (--accept-diverged)");
            let Accepted { by, because } = &self.accepted;
            for (key, value) in [(ACCEPTED_BY, by), (ACCEPTED_BECAUSE, because)] {
                let _ = value.as_ref().map(|value| writeln!(text, "{key} {value}"));
            }
        }
        let _ = writeln!(text, "profile {}", self.profile);
        if self.noise {
            let _ = writeln!(text, "{NOISE} yes");
        }
        if let Some(cells) = &self.cells {
            let lengths: Vec<String> = cells.iter().map(usize::to_string).collect();
            let _ = writeln!(text, "cells {}", lengths.join(","));
        }
        for (place, BaselineEntry { nmse, part, differed }) in &self.taps {
            // A name may hold any text; escaped it holds no space.
            let name = firstdiff_trace::escaped_name(&place.tap.to_string(), place.step);
            let part = if *part { PART } else { "" };
            let differs = differed.map_or(String::new(), |factor| format!("{DIFFERED}{factor:.4}"));
            let _ = writeln!(text, "{name:<32} {nmse:.1e}{differs}{part}");
        }
        text
    }

    /// Reads a baseline file.
    ///
    /// # Errors
    /// When there is none, or a line of it is invalid; the error gives file and line.
    pub fn read(path: &Path) -> Result<Baseline> {
        /// About forty bytes a tap: eight thousand layers are six megabytes.
        const LIMIT: u64 = 16 << 20;
        let bytes = match read_regular(path, LIMIT) {
            Err(FileError::Io { source, .. }) if source.kind() == ErrorKind::NotFound => {
                bail!("{}: no baseline; make it with --update", path.display())
            }
            other => other?,
        };
        let text = String::from_utf8(bytes).with_context(|| format!("{}: not a baseline", path.display()))?;
        Baseline::parse(&text).with_context(|| format!("{}: not a baseline", path.display()))
    }

    fn parse(text: &str) -> Result<Baseline> {
        let mut baseline = Baseline::default();
        if let Some(version) = text.strip_prefix(HEADER)
            && version.trim_start().split(':').next() != Some(&VERSION.to_string())
        {
            bail!("it is of another version than {VERSION}");
        }
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let bad = || format!("line {}: '{}'", number + 1, line.escape_debug());
            let (name, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = value.trim();
            match name {
                "profile" => {
                    baseline.profile = value.into();
                    continue;
                }
                "cells" => {
                    let lengths = value.split(',').map(str::parse).collect::<Result<_, _>>();
                    baseline.cells = Some(lengths.with_context(bad)?);
                    continue;
                }
                NOISE => {
                    baseline.noise = true;
                    continue;
                }
                ACCEPTED_BY => {
                    baseline.accepted.by = Accepted::new(Some(value), None).by;
                    continue;
                }
                ACCEPTED_BECAUSE => {
                    baseline.accepted.because = Accepted::new(None, Some(value)).because;
                    continue;
                }
                _ => {}
            }
            let (tap, step) = match name.rsplit_once(".step") {
                Some((tap, step)) => (tap, step.parse().with_context(bad)?),
                None => (name, 0),
            };
            let (value, part) = match value.strip_suffix(PART) {
                Some(value) => (value, true),
                None => (value, false),
            };
            let (value, differed) = match value.split_once(DIFFERED) {
                Some((value, factor)) => (value, Some(factor.parse::<f64>().with_context(bad)?)),
                None => (value, None),
            };
            if differed.is_some_and(|factor| !factor.is_finite()) {
                bail!("{}: a factor is a number", bad());
            }
            let nmse: f64 = value.parse().with_context(bad)?;
            if !(nmse >= 0.0 && nmse.is_finite()) {
                bail!("{}: an NMSE is 0 or more", bad());
            }
            let place = Place { step, tap: Tap::named(&firstdiff_trace::name_in_file(tap)) };
            if baseline.taps.insert(place, BaselineEntry { nmse, part, differed }).is_some() {
                bail!("{}: twice", bad());
            }
        }
        if baseline.taps.is_empty() || baseline.profile.is_empty() {
            bail!("it has no taps or no profile");
        }
        Ok(baseline)
    }

    /// Every tap that is worse than it was, missing, or diverged; and every tap so much better than what was accepted that it no longer needs to be accepted.
    pub fn regressions(&self, report: &Report) -> Vec<Regression> {
        let mut found = Vec::new();
        if let (Some(reason), Some(tap)) = (self.of_other_steps(report), report.taps.first()) {
            return vec![Regression { place: tap.place, baseline_nmse: None, now: None, reason, outgrown: false }];
        }
        for (&place, &was) in &self.taps {
            let now = report.tap(place.tap, place.step);
            let nmse = now.and_then(TapReport::size);
            let outgrown = now.is_some_and(|tap| is_outgrown(tap, was));
            let reason = match now {
                None => Some("in neither dump any more".to_owned()),
                Some(_) if outgrown => Some("agrees now".to_owned()),
                Some(tap) if self.differing() > 0 => worse_than_held(tap, was, nmse),
                Some(tap) => worse(tap, was, nmse),
            };
            found.extend(reason.map(|reason| Regression {
                place,
                baseline_nmse: Some(was.nmse),
                now: nmse,
                reason,
                outgrown,
            }));
        }
        for tap in report.taps.iter().filter(|t| t.status.differs() && !self.taps.contains_key(&t.place)) {
            let now = tap.size();
            let reason = format!("{}, and not in the baseline", tap.status.name());
            found.push(Regression { place: tap.place, baseline_nmse: None, now, reason, outgrown: false });
        }
        let otherwise = [
            (self.profile != report.profile.name())
                .then(|| format!("the baseline is of profile {}, this comparison of {}", self.profile, report.profile)),
            (self.noise != has_noise(report)).then(|| match self.noise {
                true => "the baseline was made with --noise, this comparison without".to_owned(),
                false => "the baseline was made without --noise, this comparison with it".to_owned(),
            }),
        ];
        let first = report.taps.first().map(|tap| tap.place);
        found.extend(otherwise.into_iter().flatten().filter_map(|reason| {
            Some(Regression { place: first?, baseline_nmse: None, now: None, reason, outgrown: false })
        }));
        found
    }

    /// Why its steps hold other token positions than the report's, where they do.
    fn of_other_steps(&self, report: &Report) -> Option<String> {
        let cells = cells(report);
        let as_in_the_reference =
            report.alignment.as_ref().is_none_or(|alignment| cells.as_ref() == Some(&alignment.reference.lengths));
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

    /// Whether it has no taps.
    pub fn is_empty(&self) -> bool {
        self.taps.is_empty()
    }
}

/// Whether a second run set the tolerance of a tap.
fn has_noise(report: &Report) -> bool {
    report.taps.iter().any(|tap| tap.noise.is_some())
}

/// Token positions of each of the report's steps, where the two runs have different chunks.
fn cells(report: &Report) -> Option<Vec<usize>> {
    report.alignment.as_ref().map(|alignment| alignment.cells.iter().map(ExactSizeIterator::len).collect())
}

/// Whether a tap that was accepted now agrees, and not only because it was near the tolerance.
fn is_outgrown(tap: &TapReport, entry: BaselineEntry) -> bool {
    let beyond_the_edge = tap.allowed.is_none_or(|allowed| entry.nmse > ROOM * allowed);
    entry.differed.is_some() && tap.status.agrees() && tap.positions.is_some() == entry.part && beyond_the_edge
}

/// Why `tap` is worse than its baseline, if it is. Written so that anything not known to be as good is worse.
fn worse(tap: &TapReport, entry: BaselineEntry, now: Option<f64>) -> Option<String> {
    if tap.status == Status::Unchecked {
        return Some(format!("unchecked: {}", tap.why().unwrap_or("unknown".into())));
    }
    let negligible = tap.allowed.unwrap_or(0.0) * NEGLIGIBLE;
    let as_good = now.is_some_and(|now| now <= (ROOM * entry.nmse).max(negligible));
    match (tap.status.agrees(), as_good) {
        (true, true) if tap.positions.is_some() && !entry.part => {
            Some("compared at some token positions only, where its baseline is of all".into())
        }
        (true, true) => None,
        (true, false) => Some("worse than its baseline".into()),
        (false, _) => Some(tap.status.name().into()),
    }
}

/// The same where the baseline is of an engine that was not at parity: its taps then are the standard.
fn worse_than_held(tap: &TapReport, entry: BaselineEntry, now: Option<f64>) -> Option<String> {
    if !tap.status.differs() && entry.differed.is_none() {
        return worse(tap, entry, now);
    }
    if tap.status == Status::Unchecked {
        return Some(format!("unchecked: {}", tap.why().unwrap_or("unknown".into())));
    }
    if tap.positions.is_some() && !entry.part {
        return Some("compared at some token positions only, where its baseline is of all".into());
    }
    // A tap that was not accepted may be as far off as it was, up to rounding; but its operation may not be wrong, and it may differ only by size.
    let by_its_size = tap.reason.as_ref().is_some_and(Reason::names_the_nmse);
    if entry.differed.is_none() && (tap.status == Status::Diverged || !by_its_size) {
        return Some(tap.status.name().into());
    }
    // A tap that agreed then is still compared with its reference: its factor was 1.
    let (is, before) = (factor(tap), entry.differed.unwrap_or(1.0));
    // The values of one position inherit their errors from few sources, so they count as few: a factor scatters accordingly.
    let axis = tap.place.tap.site.position_axis();
    let positions = tap.shape.get(axis).copied().unwrap_or(1).max(1) as f64;
    // The part of the error that the factor itself explains does not scatter.
    let rest = (entry.nmse - (before - 1.0).powi(2)).max(0.0);
    let scatter = FACTOR_SIGMAS * (rest / (VALUES_A_POSITION * positions)).sqrt();
    match now.is_some_and(|now| now <= ROOM * entry.nmse) {
        false => Some("worse than its baseline".into()),
        true if (is - before).abs() <= scatter.max(FACTOR_ROOM) => None,
        true => Some(format!("{is:.4} times the reference, where it was {before:.4} times")),
    }
}

/// The constant factor on the reference that comes nearest to a tap; 0 for a tap of only zeros.
fn factor(tap: &TapReport) -> f64 {
    let best = |metrics: Metrics| metrics.best_factor().map(|best| best.factor);
    let is_zero = |metrics: Metrics| metrics.cosine().is_none() && metrics.nmse() == Some(1.0);
    tap.metrics.map_or(1.0, |metrics| best(metrics).unwrap_or(if is_zero(metrics) { 0.0 } else { 1.0 }))
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
            "profile f32\nh0 0\nh0 0",
            "profile f32\nh0.stepx 0",
            "h0",
            "profile f32\ncells 9,x\nh0 0",
            "profile f32\nh0 1e-3 differs, factor NaN",
            "profile f32\nh0 1e-3 differs, factor",
            "# firstdiff baseline 2: of a later version\nprofile f32\nh0 0",
            "profile f32\nh0",
        ] {
            assert!(Baseline::parse(bad).is_err(), "{bad}");
        }
        let good = Baseline::parse("# c\nprofile f32\nh0 0\nlayers.0.q.step2 1.5e-14\n").unwrap();
        assert_eq!(good.len(), 2);
        let open = Baseline::parse("profile f32\nmy%20scan.step2 0\n").unwrap();
        assert!(open.taps.contains_key(&Place { step: 2, tap: Tap::named("my scan") }));
        let accepted =
            Baseline::parse("profile f32\naccepted-by ann\naccepted-because keys in int8\nh0 1 differs, factor 1\n");
        assert_eq!(accepted.unwrap().accepted().unwrap().in_words(), "accepted by ann: keys in int8");
        let part = Baseline::parse("profile f32\nh0 0 part\n").unwrap();
        let held = Baseline::parse("profile f32\nh0 1e-3 differs, factor 1.0300 part\nlogits 0\n").unwrap();
        assert_eq!((held.differing(), good.differing()), (1, 0));
        assert!(part.taps.values().all(|was| was.part) && good.taps.values().all(|was| !was.part));
    }
}
