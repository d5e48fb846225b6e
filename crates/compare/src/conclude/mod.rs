//! Builds the report from the judgement of every tap.

pub(crate) mod coverage;
pub(crate) mod divergence;
pub(crate) mod moved_positions;
pub(crate) mod verdict;

use std::collections::BTreeSet;

use firstdiff_trace::{DumpError, Tap, split_stored_name};

use crate::conclude::coverage::not_testable_warnings;
use crate::conclude::verdict::partial_agreement;
use crate::expert::is_of_expert;
use crate::graph::Place;
use crate::report::reason::Warning;
use crate::report::{Report, Status, TapReport, Verdict};
use crate::rules::Attributed;
use crate::rules::layouts::undone_orders;
use crate::taps::context::{ComparisonContext, TapJudgement};

impl ComparisonContext<'_> {
    /// The report of a comparison.
    pub(crate) fn conclude(&self, attributed: Attributed) -> Result<Report, DumpError> {
        let Attributed { taps: found, mut log, notes } = attributed;
        let status = self.statuses(&found);
        let mut warnings: Vec<Warning> = notes.into_iter().map(Warning::Note).collect();
        warnings.extend(not_testable_warnings(self.reference, self.candidate, self.options.profile, self.alignment())?);
        let unknown = |(here, place): (&TapJudgement, &Place)| {
            here.is_compared() && !place.tap.is_open() && self.is_of_unknown_position(*place)
        };
        if !self.last_is_declared() && found.iter().zip(self.graph.places()).any(unknown) {
            warnings.push(Warning::Note(
                "one row of each tap is known, the last, and nothing says of how many tokens (--tokens): of a prompt of one token, no mistake in RoPE, attention scale or \
                 masks can show"
                    .into(),
            ));
        }
        let first = (0..found.len()).find(|&i| status[i] == Some(Status::Diverged));
        let is_one_of_several = found.iter().filter(|here| here.is_compared()).nth(1).is_some();
        if first.is_some_and(|first| is_one_of_several && !self.plan.open.says_order(self.graph.places()[first].tap)) {
            warnings.push(Warning::OrderUnknown);
        }
        let places: Vec<usize> = (0..found.len()).filter(|&i| status[i].is_some()).collect();
        let with_log = |&i: &usize| {
            let log = std::mem::take(&mut log[i]);
            Some(TapReport { log, ..self.tap_report(i, &found[i], status[i]?) })
        };
        let mut taps: Vec<TapReport> = places.iter().filter_map(with_log).collect();
        let known: BTreeSet<Place> = self.graph.places().iter().copied().collect();
        if self.options.only.is_none() {
            taps.extend(self.taps_outside_graph(&known));
        }
        let (one_sided, unmapped) = self.names_not_reported(&taps);
        let verdict = self.verdict(&found, &taps, first.is_some());
        let other_experts = self.behind_other_experts(&found).filter(|_| verdict == Verdict::Parity);
        let is_of_experts_alone = other_experts.is_some();
        let verdict = other_experts.map_or(verdict, Verdict::Incomparable);
        let notes = self
            .amplified_rounding_note(&found)
            .into_iter()
            .chain(undone_orders(&found))
            .chain(partial_agreement(&taps));
        let notes = notes.chain(self.only_first_position(&found).map(|(words, _)| words)).chain(self.taken_for_last());
        warnings.extend(notes.map(Warning::Note));
        let first = match first {
            Some(index) => {
                let at = places.iter().position(|&i| i == index).unwrap_or_default();
                Some(self.first_divergence(&found, index, at)?)
            }
            None => None,
        };
        let (profile, prompt, cache) = (self.options.profile, self.plan.prompt, self.options.cache);
        let alignment = self.options.alignment.clone();
        Ok(Report {
            verdict,
            profile,
            cache,
            prompt,
            first,
            is_of_experts_alone,
            taps,
            warnings,
            one_sided,
            unmapped,
            alignment,
        })
    }

    /// The names of either side that are no tap of the report: those that a run lists as taps, and those that neither run lists.
    fn names_not_reported(&self, taps: &[TapReport]) -> (Vec<String>, Vec<String>) {
        let reported: BTreeSet<Place> = taps.iter().map(|tap| tap.place).collect();
        let is_told = |side: usize, tap: Tap, step: u32| match self.alignment() {
            Some(alignment) => alignment.cells_of(side, step).any(|step| reported.contains(&Place { step, tap })),
            None => reported.contains(&Place { step, tap }),
        };
        // A name of the reference is a tap of the model; a name that only the candidate has may be another name of one.
        let of_reference: BTreeSet<Tap> = match self.recorded().first() {
            Some(reference) => reference.unmapped().iter().map(|name| Tap::named(split_stored_name(name).0)).collect(),
            None => BTreeSet::new(),
        };
        let is_known =
            |tap: Tap| self.plan.open.is_in_graph(tap) || self.plan.open.is_listed(tap) && of_reference.contains(&tap);
        let (mut one_sided, mut unmapped) = (Vec::new(), Vec::new());
        for (side, run) in self.recorded().into_iter().enumerate() {
            for name in run.unmapped() {
                let (plain, step) = split_stored_name(name);
                let tap = Tap::named(plain);
                match is_told(side, tap, step) {
                    true => {}
                    false if is_known(tap) || is_of_expert(tap) => one_sided.push(name.clone()),
                    false => unmapped.push(name.clone()),
                }
            }
        }
        (one_sided, unmapped)
    }
}
