//! Writes a report as one self-contained page: first what is concluded, why, and what was not checked; then a map of all taps, the growth of the error, and,
//! for a selected tap, where in it the error is.

mod details;
mod findings;
mod grid;
mod growth;
mod pictures;
mod plot;

use std::path::Path;

use anyhow::Result;
use askama::Template;

use crate::output::{Inputs, write};
use crate::render::compare::{agreement, beside_noise, metadata_in_brackets};
use crate::render::divergence::{CAUSE, Divergence};
use crate::render::html::details::Details;
use crate::render::html::findings::Card;
use crate::render::html::grid::{Grid, MapEntry, PageTaps};
use crate::render::html::pictures::Picture;
use crate::render::html::plot::Plot;
use crate::report::{Compare, Conclusion, Explain, JudgedIn, Provenance, Replay, ReplayInputs, Verdict};
use crate::session::Comparison;
use crate::session::arithmetic::as_it_asks;
use crate::words::safe;

/// The contents of a page: reports of one candidate.
#[derive(Default)]
pub(crate) struct Page<'a> {
    /// Where it diverges from a reference.
    pub(crate) compared: Option<(&'a Comparison, &'a Compare)>,
    /// Which of its operations are wrong by themselves.
    pub(crate) replayed: Option<&'a Replay>,
    /// Why.
    pub(crate) explained: Option<&'a Explain>,
    /// For a gate, whether it passes.
    pub(crate) passed: Option<bool>,
    /// Why the command fails beside the verdict, or what a baseline allows.
    pub(crate) failed: Vec<String>,
}

/// The values of the page's template.
#[derive(Template)]
#[template(path = "page.html")]
struct PageTemplate {
    title: String,
    /// The word in the verdict's mark, and its style.
    verdict: String,
    class: &'static str,
    failed: Vec<String>,
    is_divergence: bool,
    headline: String,
    notes: Vec<String>,
    lines: Vec<Line>,
    facts: Vec<Line>,
    cards: Vec<Card>,
    next: Option<String>,
    not_checked: Vec<String>,
    warnings: Vec<String>,
    /// What the cells of the maps are measured against, and the meaning of the marked one.
    measured_against: &'static str,
    first_is: &'static str,
    has_details: bool,
    grids: Vec<Grid>,
    nothing_compared: Vec<String>,
    growth: Vec<Plot>,
    left_out: usize,
    data: String,
    style: &'static str,
    script: &'static str,
    version: &'static str,
}

/// A name and its text.
struct Line {
    name: String,
    text: String,
}

impl Line {
    fn new(name: &str, text: impl Into<String>) -> Line {
        Line { name: name.to_owned(), text: text.into() }
    }
}

impl Page<'_> {
    /// Writes the page to a file, if one is requested, that must not be one of `inputs`; or to standard output for `-`.
    ///
    /// # Errors
    /// When a dump cannot be read again, or the file not written.
    pub(crate) fn to_file(&self, path: Option<&Path>, inputs: &Inputs) -> Result<()> {
        path.map_or(Ok(()), |path| write(path, &self.text()?, inputs))
    }

    fn text(&self) -> Result<String> {
        let listed = self.list_taps();
        let first = self.first(&listed);
        let mut shown = PageTaps::default();
        let (grids, nothing_compared) = grid::grids(&listed, first.as_ref(), &mut shown);
        let details = self.details(&listed, &shown)?;
        let Conclusion { verdict, reason } = self.conclusion();
        let divergence = self.compared.and_then(|(judged, report)| Divergence::describe(judged, report));
        let is_divergence = divergence.is_some();
        let (headline, notes, lines) = match divergence {
            Some(Divergence { headline, notes, lines, .. }) => (headline, notes, lines),
            None => (reason.clone().map_or_else(|| self.in_short(), |reason| safe(&reason)), Vec::new(), Vec::new()),
        };
        // A cause that the model gave is among the findings.
        let without_cause = lines.into_iter().take_while(|(name, _)| *name != CAUSE);
        let cards = findings::cards(self);
        let verdict_word = match verdict {
            Verdict::Parity => "parity",
            Verdict::Diverged => "diverged",
            Verdict::Incomparable => "incomparable",
        };
        let candidate = self.provenance().1;
        let (shown, class) = match self.passed {
            Some(true) => ("gate passed".to_owned(), "parity"),
            Some(false) => ("gate failed".to_owned(), "diverged"),
            None if !self.failed.is_empty() && verdict == Verdict::Parity => ("failed".to_owned(), "diverged"),
            None => (verdict_word.to_owned() + &self.coarser_profile_note(), verdict_word),
        };
        let filled = PageTemplate {
            title: format!("{shown}: {}", candidate.path),
            verdict: shown,
            class,
            failed: self.failed.clone(),
            is_divergence,
            headline,
            notes,
            lines: without_cause.map(|(name, text)| Line::new(name, text)).collect(),
            facts: self.facts(),
            next: self.next().filter(|next| !cards.iter().any(|card| card.has_line(next))),
            cards,
            not_checked: self.not_checked(),
            warnings: self.warnings(),
            measured_against: match self.compared {
                Some(_) => "the reference",
                None => "what comes out of the candidate's own inputs",
            },
            first_is: if self.compared.is_some() { "first divergence" } else { "first wrong one" },
            has_details: self.compared.is_some(),
            nothing_compared,
            growth: self.compared.map(|_| growth::plots(&listed)).unwrap_or_default(),
            left_out: details.left_out,
            data: details.json()?,
            grids,
            style: include_str!("../../../templates/page.css"),
            script: include_str!("../../../templates/page.js"),
            version: env!("CARGO_PKG_VERSION"),
        };
        Ok(filled.render()?)
    }

    /// Every tap, with where in the run it is.
    fn list_taps(&self) -> Vec<MapEntry<'_>> {
        let alignment = self.compared.and_then(|(judged, _)| judged.report.alignment.as_deref());
        match self.compared {
            Some((_, report)) => report.taps.iter().map(|entry| MapEntry::new(entry, alignment)).collect(),
            None => {
                let taps = self.judged().into_iter().flat_map(|judged| &judged.taps);
                taps.map(|tap| MapEntry::new(&tap.entry, alignment)).collect()
            }
        }
    }

    /// What explain judged, else what replay did.
    fn judged(&self) -> Option<&ReplayInputs> {
        self.explained.map(|report| &report.judged).or_else(|| self.replayed.map(|report| &report.judged))
    }

    /// The tap to look at first, and its step.
    fn first(&self, listed: &[MapEntry<'_>]) -> Option<(String, u32)> {
        if let Some((_, report)) = self.compared {
            return report.first_divergence.as_ref().map(|first| (first.tap.clone(), first.step));
        }
        let differs = |place: &MapEntry<'_>| place.entry.status.differs();
        listed.iter().find(|place| differs(place)).map(|place| (place.entry.tap.clone(), place.entry.step))
    }

    fn details(&self, listed: &[MapEntry<'_>], shown: &PageTaps) -> Result<Details> {
        let Some((judged, _)) = self.compared else { return Ok(Details::without_tensors(listed, shown)) };
        let session = &judged.session;
        let order = session.in_reference_order();
        Details::read(&order, &judged.report, listed, shown)
    }

    fn conclusion(&self) -> Conclusion {
        let of_comparison = self.compared.map(|(_, report)| &report.conclusion);
        let of_explanation = || self.explained.map(|report| &report.conclusion);
        let of_replay = || self.replayed.map(|report| &report.conclusion);
        let conclusion = of_comparison.or_else(of_explanation).or_else(of_replay);
        conclusion.cloned().unwrap_or(Conclusion { verdict: Verdict::Incomparable, reason: None })
    }

    /// The reference or the model, and the candidate.
    fn provenance(&self) -> (Option<&Provenance>, &Provenance) {
        match (self.compared, self.judged()) {
            (Some((_, report)), _) => (Some(&report.reference), &report.candidate),
            (None, Some(judged)) => (None, &judged.candidate),
            (None, None) => unreachable!("a page is of some report"),
        }
    }

    fn facts(&self) -> Vec<Line> {
        let (reference, candidate) = self.provenance();
        let mut facts: Vec<Line> = Vec::new();
        let described = |dump: &Provenance| format!("{} {}", dump.path, metadata_in_brackets(dump));
        facts.extend(reference.map(|reference| Line::new("reference", described(reference))));
        let judged = self.judged();
        if let Some(judged) = judged {
            let of = &judged.architecture;
            let text = format!("{} ({}, {} layers, {} wide)", judged.model, of.family, of.layers, of.hidden);
            facts.push(Line::new("model", text));
        }
        facts.push(Line::new("candidate", described(candidate)));
        let judged_in = self.compared.map(|(_, report)| &report.judged_in).or(judged.map(|judged| &judged.judged_in));
        if let Some(JudgedIn { profile, profile_reason, cache, .. }) = judged_in {
            let cache = match (*cache, judged_in.is_some_and(|judged| judged.cache_is_assumed)) {
                ("f32", _) => String::new(),
                (cache, false) => format!(", K/V cache in {cache}"),
                (cache, true) => {
                    format!(", K/V cache in {cache} (assumed: nobody says so, and what was recorded shows it)")
                }
            };
            facts.push(Line::new("judged as", format!("{profile} ({profile_reason}){cache}")));
        }
        if let Some((_, report)) = self.compared {
            facts.extend(report.noise.iter().map(|noise| Line::new("noise", beside_noise(noise))));
            let alignment = report.alignment.iter().map(crate::render::alignment::heading);
            facts.extend(alignment.map(|text| Line::new("alignment", text)));
        }
        facts
    }

    /// A note that only the candidate's own metadata asks for so coarse a profile.
    fn coarser_profile_note(&self) -> String {
        self.compared.map_or_else(String::new, |(judged, _)| as_it_asks(judged.session.coarser_profile))
    }

    /// The conclusion, where there is no first divergence.
    fn in_short(&self) -> String {
        if let Some((judged, report)) = self.compared
            && report.conclusion.verdict == Verdict::Parity
        {
            return agreement(judged, report);
        }
        let counts = self.compared.map(|(_, report)| report.counts).or(self.judged().map(|judged| judged.counts));
        let counts = counts.unwrap_or_default();
        let (agree, all) = (counts.agree(), counts.all());
        let how = if self.compared.is_some() { "agree" } else { "come out right from what they read" };
        match counts.differ() {
            0 => format!("{agree} of {all} taps {how}, {} of them exactly", counts.exact),
            _ => format!("{} of {all} taps are wrong; {agree} {how}", counts.diverged),
        }
    }

    fn next(&self) -> Option<String> {
        let fix = self.explained.and_then(|report| {
            let first = report.findings.first()?;
            first.diagnosis.fix.clone().or_else(|| first.next.clone())
        });
        let of_replay = || self.replayed.and_then(|report| report.next.clone());
        fix.or_else(|| self.compared.and_then(|(_, report)| report.next.clone())).or_else(of_replay)
    }

    fn not_checked(&self) -> Vec<String> {
        let compared = self.compared.map(|(_, report)| &report.not_checked);
        let judged = self.judged().map(|judged| &judged.not_checked);
        let mut lines = compared.or(judged).cloned().unwrap_or_default();
        let untestable = self.explained.map(|report| report.not_testable.join(", ")).filter(|ids| !ids.is_empty());
        lines.extend(untestable.map(|ids| format!("mistakes that this dump could not have shown: {ids}")));
        lines
    }

    fn warnings(&self) -> Vec<String> {
        let compared = self.compared.into_iter().flat_map(|(_, report)| &report.warnings);
        let judged = self.judged().into_iter().flat_map(|judged| &judged.warnings);
        let mut lines: Vec<String> = Vec::new();
        for line in compared.chain(judged) {
            if !lines.contains(line) {
                lines.push(line.clone());
            }
        }
        lines
    }
}
