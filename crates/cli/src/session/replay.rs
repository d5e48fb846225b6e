//! Concludes a replay: the candidate and its model, every operation judged, the causes that were found, and the verdict.

use std::collections::BTreeSet;

use firstdiff_compare::{Place, Report, ShownCache, Status, Verdict, Warning, shown_cache};
use firstdiff_explain::OtherArithmetic;
use firstdiff_explain::explain::Finding;
use firstdiff_explain::replay::{Reason, Replay, Replayed};
use firstdiff_trace::{Cache, Site};

use crate::session::cause::causes_at;
use crate::session::input::ReplayInput;
use crate::words::{shorten, steps_in_words, taps_in_words};

/// The note on tensors that are in a file and cannot be used in computations.
pub(crate) const COARSE: &str = "but only in part or with too few digits to compute with: print whole tensors with six significant digits (%g, %.6e) or more";

/// A replay and its inputs.
pub(crate) struct ReplaySession {
    pub(crate) input: ReplayInput,
    pub(crate) replay: Replay,
    /// The causes, as far as they were requested.
    pub(crate) findings: Vec<Finding>,
}

/// Why a tap is wrong, or unchecked, in words.
pub(crate) fn why(tap: &Replayed) -> String {
    tap.reason.as_ref().map(Reason::to_string).unwrap_or_default()
}

impl ReplaySession {
    /// The verdict on the candidate; for a recording that was not finished, parity only if that was requested.
    pub(crate) fn verdict(&self) -> Verdict {
        self.input.incomplete(Some(self.replay.taps.len())).verdict(self.of_what_is_there(), self.input.partial)
    }

    /// In which decode steps places are wrong, up to the last step in which anything was judged; those of `untold` may be wrong too.
    pub(crate) fn steps_in_words(&self, wrong: &[Place], untold: &[Place]) -> Option<String> {
        let judged = self.replay.taps.iter().filter(|t| t.report.status != Status::Unchecked).map(|t| &t.report);
        let last = judged.clone().map(|t| t.place.step).max().unwrap_or(0);
        let of_them = |step: u32| {
            let shows =
                |place: &Place| judged.clone().any(|t| t.place == Place { step, ..*place } && t.status.agrees());
            let shows = |place: &Place| shows(place) && !untold.contains(&Place { step, ..*place });
            wrong.iter().all(shows)
        };
        steps_in_words(wrong.iter().map(|place| place.step), last, of_them)
    }

    fn of_what_is_there(&self) -> Verdict {
        let (wrong, right) = (self.replay.count(|s| s == Status::Diverged), self.replay.count(Status::agrees));
        // A right embedding shows only that a table was looked up.
        let mut judged = self.replay.taps.iter().filter(|t| t.report.status.agrees());
        let only_table = judged.all(|t| t.report.place.tap.site == Site::H0);
        let unclear: Vec<&Replayed> = self.replay.taps.iter().filter(|t| t.is_for(Reason::is_unclear)).collect();
        let open = |t: &&Replayed| t.is_for(Reason::is_not_computed);
        let first_of = |is: &dyn Fn(&&Replayed) -> bool| {
            let first = self.replay.taps.iter().find(is);
            first.map_or(String::new(), |t| format!("{}: {}", t.report.place, why(t)))
        };
        match (wrong, right) {
            (0, _) if !unclear.is_empty() => Verdict::Incomparable(format!(
                "{} are off by no more than {} rounding costs, but are not its numbers (first {}): right or wrong cannot be told; {right} are right",
                taps_in_words(unclear.len()),
                self.input.named,
                unclear[0].report.place
            )),
            (0, 0) => Verdict::Incomparable(self.why_nothing_judged()),
            (0, _) if let Some(reason) = self.never_judged().or_else(|| self.not_read_notes()) => {
                Verdict::Incomparable(reason)
            }
            (0, _) if self.replay.taps.iter().any(|t| open(&t)) => Verdict::Incomparable(format!(
                "{} can neither be computed nor held against the reference's own values ({}); what could be judged is right",
                taps_in_words(self.replay.taps.iter().filter(open).count()),
                first_of(&open)
            )),
            // As in compare: that everything agrees so does not by itself show a cache.
            (0, _) if self.replay.cache_is_assumed && !self.shows_its_cache() => Verdict::Incomparable(format!(
                "all that could be judged is right if keys and values are kept in {cache}, which neither the dump says nor recorded keys and values show: say --cache {cache}",
                cache = self.replay.cache
            )),
            (0, _) if let Some(reason) = self.input.source.not_at_parity(&self.replay.taps) => {
                Verdict::Incomparable(reason)
            }
            (0, _) if only_table => Verdict::Incomparable("nothing but the embedding could be judged".into()),
            (0, _) => Verdict::Parity,
            _ => Verdict::Diverged,
        }
    }

    /// Whether the run's own values show the type of its cache.
    fn shows_its_cache(&self) -> bool {
        let dump = &self.input.dump;
        shown_cache(dump, dump).is_ok_and(|shown| shown == ShownCache::Is(self.replay.cache))
    }

    /// What was recorded in the prefill, or in decode steps, and could be judged at none of its places: nothing is known about it.
    fn never_judged(&self) -> Option<String> {
        let dump = self.input.source.judged();
        let recorded = |t: &&Replayed| {
            let place = t.report.place;
            let is_due = !t.is_for(Reason::is_beside_the_reference);
            place.tap.site != Site::H0 && is_due && dump.find(place.tap, place.step).is_some()
        };
        let kind = |t: &Replayed| (t.report.place.tap.site, t.report.place.step > 0);
        let recorded: Vec<&Replayed> = self.replay.taps.iter().filter(recorded).collect();
        let judged: BTreeSet<_> = recorded.iter().filter(|t| t.report.metrics.is_some()).map(|t| kind(t)).collect();
        let open: Vec<&&Replayed> = recorded.iter().filter(|t| !judged.contains(&kind(t))).collect();
        let first = open.first()?;
        let sites: BTreeSet<Site> = open.iter().map(|t| t.report.place.tap.site).collect();
        let names: Vec<String> = sites.into_iter().map(|site| site.name().to_owned()).collect();
        Some(format!(
            "{}{} could not be judged ({}: {}); what could be is right",
            shorten(&names, 5),
            match () {
                () if first.report.place.step > 0 => " of the decode steps",
                () if self.replay.taps.iter().any(|t| t.report.place.step > 0) => " of the prefill",
                // One pass: the candidate's own, or its steps joined.
                () => "",
            },
            first.report.place,
            first.reason.as_ref().map_or("unchecked".into(), Reason::to_string)
        ))
    }

    /// What was recorded and could not be read, and what must not pass whatever was judged.
    fn not_read_notes(&self) -> Option<String> {
        let dump = &self.input.dump;
        let not_joined = dump.ranks().and_then(|ranks| {
            let (step, tap) = ranks.not_joined().next()?;
            Some((Place { step, tap }, ranks.why_not_joined(tap, step)?))
        });
        let doubted = || dump.doubts().first_key_value();
        let doubted = || doubted().map(|(&(step, tap), what)| (Place { step, tap }, what.as_str()));
        let (place, what) = not_joined.or_else(doubted)?;
        Some(format!("{place}: {what}; what could be judged is right"))
    }

    /// Why nothing could be judged: the reason of most taps.
    fn why_nothing_judged(&self) -> String {
        let mut reasons: Vec<(usize, &Reason)> = Vec::new();
        let recorded = self.replay.taps.iter().filter(|t| !t.is_for(Reason::is_absent));
        for reason in recorded.filter_map(|t| t.reason.as_ref()) {
            match reasons.iter_mut().find(|(_, known)| *known == reason) {
                Some((count, _)) => *count += 1,
                None => reasons.push((1, reason)),
            }
        }
        let dump = &self.input.dump;
        let coarse = dump.parts().iter().filter(|part| dump.find(part.tap, part.step).is_none()).count();
        let otherwise = match coarse {
            0 => "nothing of the model was recorded".to_owned(),
            count => format!("{} are in the file, {COARSE}", taps_in_words(count)),
        };
        let most = reasons.iter().max_by_key(|(count, _)| *count).map_or(otherwise, |r| r.1.to_string());
        format!("no operation could be judged: {most}")
    }

    /// Whether a place is known, but not precisely enough to compute with.
    pub(crate) fn is_coarse(&self, place: Place) -> bool {
        let dump = &self.input.dump;
        dump.find_part(place.tap, place.step).is_some() && dump.find(place.tap, place.step).is_none()
    }

    /// In the form that compare's own screen needs.
    pub(crate) fn report(&self, verdict: &Verdict) -> Report {
        let recorded = |t: &&Replayed| !t.is_for(Reason::is_absent);
        let judged = self.replay.taps.iter().filter(|t| t.report.status != Status::Unchecked);
        let judged: BTreeSet<String> = judged.map(|t| t.report.place.tap.to_string()).collect();
        let is_judged = |name: &str| judged.contains(name);
        Report {
            verdict: verdict.clone(),
            profile: self.input.named,
            cache: self.replay.cache,
            prompt: 0,
            first: None,
            is_of_experts_alone: false,
            taps: self.replay.taps.iter().filter(recorded).map(Replayed::listed).collect(),
            warnings: self.replay.warnings.iter().cloned().map(Warning::Note).collect(),
            one_sided: self.input.source.one_sided().iter().filter(|name| !is_judged(name)).cloned().collect(),
            unmapped: self.input.source.unmapped().to_vec(),
            alignment: None,
        }
    }

    /// The type of the K/V cache, where it is not that of the arithmetic.
    pub(crate) fn cache_in_words(&self) -> String {
        match self.replay.cache {
            Cache::F32 => String::new(),
            cache if self.replay.cache_is_assumed => {
                let only = if self.is_attention_right() { "only then its taps" } else { "then more of its taps" };
                format!(" and, as {only} come out right, with a K/V cache in {cache}")
            }
            cache => format!(" with a K/V cache in {cache}"),
        }
    }

    /// What a verdict must mention about a cache that is not declared.
    pub(crate) fn assumed_cache(&self) -> String {
        let so_that = match self.is_attention_right() {
            true => "with it attention is right, without it not",
            false => "with it more is right than without",
        };
        match self.replay.cache_is_assumed {
            true => format!("; that takes a K/V cache in {}, which is not stated: {so_that}", self.replay.cache),
            false => String::new(),
        }
    }

    /// Whether no product of attention is wrong.
    fn is_attention_right(&self) -> bool {
        let is_product =
            |t: &&Replayed| matches!(t.report.place.tap.last_site(), Site::Qk | Site::Scores | Site::Context);
        !self.replay.taps.iter().filter(is_product).any(Replayed::is_at_fault)
    }

    /// Where all products with weights are in another arithmetic.
    pub(crate) fn other_arithmetic(&self) -> Option<&OtherArithmetic> {
        self.findings.iter().find_map(|f| f.arithmetic.as_ref())
    }

    /// What is rounded differently without a mistake.
    pub(crate) fn taps_rounded_otherwise(&self) -> impl Iterator<Item = &Finding> {
        self.findings.iter().filter(|finding| finding.is_another_arithmetic())
    }

    /// Wrong operations, the same one of several layers together, where one cause is wrong in all of them.
    pub(crate) fn all_wrong_operations(&self) -> Vec<Vec<&Replayed>> {
        let causes = |tap: &Replayed| {
            causes_at(&self.findings, tap.report.place).map(|(it, _)| std::ptr::from_ref(it)).collect::<Vec<_>>()
        };
        let mut groups: Vec<Vec<&Replayed>> = Vec::new();
        for group in self.replay.wrong() {
            let first = groups.len();
            for tap in group {
                match groups[first..].iter_mut().find(|known| causes(known[0]) == causes(tap)) {
                    Some(known) => known.push(tap),
                    None => groups.push(vec![tap]),
                }
            }
        }
        groups
    }

    /// Wrong operations, the same one of several layers together, except products in another arithmetic.
    pub(crate) fn wrong_operations(&self) -> Vec<Vec<&Replayed>> {
        let in_it = |t: &Replayed| self.taps_rounded_otherwise().any(|other| other.shown_at.contains(&t.report.place));
        let mut groups = self.all_wrong_operations();
        groups.iter_mut().for_each(|group| group.retain(|t| !in_it(t)));
        groups.retain(|group| !group.is_empty());
        groups
    }
}
