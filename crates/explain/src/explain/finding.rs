//! Defines what is said of a mistake: its cause, how sure that is, and all places where it was found.

use std::collections::BTreeMap;

use firstdiff_compare::{Place, SeenPadding, TokenEdits};
use firstdiff_evidence::Account;
use firstdiff_laws::Status;
use firstdiff_model::Profile;
use firstdiff_trace::{Site, Tap};
use serde_json::json;

use crate::laws::Measured;
use crate::mistakes::by_law::named;
use crate::mistakes::embedding::TOKENS_DIFFER;
use crate::mistakes::recorded::ROUTER_TOPK;
use crate::mistakes::rounding::Rounding;
use crate::mistakes::scores::MASK_OMITTED;
use crate::mistakes::{Mistake, Param, Params, Values, find};
use crate::replay::{Reason, Replay};
use crate::tolerance::laws::ROOM_FOR_A_LAW;
use crate::tolerance::search::F32_LEAVES;

/// How sure a cause is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Match {
    /// The imitated mistake leaves no more than rounding.
    Reproduced,
    /// No mistake has it, but a law that was measured gives all of its numbers.
    Measured,
    /// Something takes part of the error away, but is not it.
    Closest,
    /// Nothing in the catalogue does.
    #[default]
    Unknown,
}

impl Match {
    /// The word in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Match::Reproduced => "reproduced",
            Match::Measured => "measured",
            Match::Closest => "closest",
            Match::Unknown => "unknown",
        }
    }
}

/// A mistake of the catalogue, with its parameters.
#[derive(Clone, Debug, PartialEq)]
pub struct Cause {
    /// The id.
    pub id: &'static str,
    /// The parameters.
    pub params: Params,
}

/// What a mistake leaves of the error at one place.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Remainder {
    /// The tap that shows it, and the step.
    pub place: Place,
    /// NMSE without the mistake imitated.
    pub base_nmse: f64,
    /// NMSE that it leaves there.
    pub residual_nmse: f64,
}

/// Of what a finding's NMSE are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Counted {
    /// Of all numbers of a tap.
    #[default]
    All,
    /// Of the probabilities of masked keys alone.
    MaskedKeys,
    /// Of the numbers of both sides; to these is added which share of the cells has one on one side alone.
    OneSided,
    /// Of the probabilities that scores make.
    OfProbabilities,
}

/// One mistake, in all places where it was found.
#[derive(Clone, Debug, Default)]
pub struct Finding {
    /// The taps whose operation is wrong, in the order of the Plan.
    pub taps: Vec<Tap>,
    /// The recorded taps that show it: the same, where all was recorded.
    pub shown_at: Vec<Place>,
    /// Other places where the same may be done: they are right with it as they are without.
    pub untold: Vec<Place>,
    /// The operation of the first tap.
    pub op: String,
    /// The cause; of `Closest`, what came nearest.
    pub cause: Option<Cause>,
    /// What is due in its place, where the reference says it: a number, or a line of its code.
    pub due: Option<String>,
    /// How sure it is.
    pub matched: Match,
    /// NMSE that the imitated mistake leaves, the worst of all places.
    pub residual_nmse: f64,
    /// NMSE without it, the worst of all places.
    pub base_nmse: f64,
    /// Of what these are.
    pub counted: Counted,
    /// What it leaves at each place; of `Closest`, what came nearest.
    pub remainders: Vec<Remainder>,
    /// Causes that are made with it, where only all of them together give the numbers.
    pub together: Vec<Cause>,
    /// NMSE that it leaves without them, the worst of all places.
    pub alone_nmse: f64,
    /// Other causes that reproduce it as well.
    pub alternatives: Vec<Cause>,
    /// Taps between the recorded ones: the fault may be in any of them. Where there is a cause, those at which it gives the same numbers.
    pub through: Vec<Tap>,
    /// The best residual of every id that was tried.
    pub tried: BTreeMap<&'static str, f64>,
    /// Mistakes and sets of them whose turn did not come in the time given.
    pub untried: usize,
    /// What it has in common with the same in other layers, where a parameter names a tensor of each.
    pub(crate) kin: Option<String>,
    /// What else is to be known.
    pub note: Option<String>,
    /// Of what gives all numbers, and is not proved by them: what they carry. Nothing else is measured of them then.
    pub(crate) unpaid: Option<Account>,
    /// Of taps that are only recorded wrongly, what comes out of the value that is due there.
    pub misrecorded: Vec<Place>,
    /// Of taps whose error is taken back, what takes it back.
    pub taken_back: Vec<Place>,
    /// Where this is no mistake, but all products with weights in another arithmetic.
    pub arithmetic: Option<OtherArithmetic>,
    /// What the operation computes instead, where that was measured.
    pub measured: Option<Measured>,
}

impl Cause {
    /// Its entry in the catalogue.
    pub fn mistake(&self) -> Option<&'static Mistake> {
        find(self.id)
    }

    /// What is known of one of its parameters.
    pub(crate) fn param(&self, name: &str) -> Option<&'static Param> {
        self.mistake()?.param(name)
    }

    /// Whether one of its parameters may be any number.
    pub(crate) fn is_free(&self, name: &str) -> bool {
        self.param(name).is_some_and(|param| param.values == Values::Free)
    }
}

impl Finding {
    /// Nothing found yet.
    pub(crate) fn without_cause(matched: Match) -> Finding {
        Finding { matched, ..Finding::default() }
    }

    /// Whether it has a cause, and its entry in the catalogue says so.
    pub(crate) fn has_cause(&self, says: impl Fn(&Mistake) -> bool) -> bool {
        self.cause.as_ref().and_then(Cause::mistake).is_some_and(says)
    }

    /// Where least is left of the error, and where most.
    pub fn least_and_most_left(&self) -> Option<(Remainder, Remainder)> {
        let by_rest = |a: &&Remainder, b: &&Remainder| a.residual_nmse.total_cmp(&b.residual_nmse);
        Some((*self.remainders.iter().min_by(by_rest)?, *self.remainders.iter().max_by(by_rest)?))
    }

    /// Whether its operation is wrong: its taps are not just recorded wrongly, and nothing takes back what is off.
    pub fn is_blamed(&self) -> bool {
        self.misrecorded.is_empty() && self.taken_back.is_empty()
    }

    /// Whether it is no mistake, but another arithmetic.
    pub fn is_another_arithmetic(&self) -> bool {
        let is_proved = self.matched == Match::Reproduced;
        self.arithmetic.is_some() || is_proved && self.has_cause(|mistake| mistake.is_another_arithmetic)
    }

    /// Whether an operation is wrong, and no mistake of the catalogue explains it, and no law.
    pub(crate) fn is_open(&self) -> bool {
        self.is_blamed() && matches!(self.matched, Match::Unknown | Match::Closest)
    }

    /// Whether a law is to be measured: nothing gives its numbers, or a mistake that only lists them.
    pub(crate) fn asks_for_a_law(&self) -> bool {
        self.is_open() && self.unpaid.is_none() && self.arithmetic.is_none()
            || self.has_cause(|mistake| mistake.is_a_list)
    }

    /// Whether it shows in decode steps alone.
    pub(crate) fn is_decoded(&self) -> bool {
        self.shown_at.iter().all(|place| place.step != 0)
    }

    /// Takes the decode steps of another finding, in which its law holds too and leaves so much.
    pub(crate) fn go_on_in(&mut self, decoded: Finding, left: f64) {
        if let Some(measured) = &mut self.measured {
            let before = measured.places.len();
            measured.places.extend(&decoded.shown_at);
            measured.proof.held_out.extend(before..measured.places.len());
            measured.proof.residual_nmse = measured.proof.residual_nmse.max(left);
        }
        if self.matched == Match::Reproduced {
            self.residual_nmse = self.residual_nmse.max(left);
        }
        let remainder = |&place: &Place| Remainder { place, base_nmse: decoded.base_nmse, residual_nmse: left };
        self.remainders.extend(decoded.shown_at.iter().map(remainder));
        self.shown_at.extend(decoded.shown_at);
    }

    /// Takes the places of another finding that says the same; of a place that both have, what is known of it here.
    pub(crate) fn take_in(&mut self, other: Finding) {
        let known = self.shown_at.clone();
        let is_new = |place: &Place| !known.contains(place);
        self.taps.extend(other.taps);
        self.shown_at.extend(other.shown_at.into_iter().filter(is_new));
        self.remainders.extend(other.remainders.into_iter().filter(|rest| is_new(&rest.place)));
        self.untold.extend(other.untold);
        self.untold.retain(|place| !self.shown_at.contains(place));
        let causes: Vec<Cause> =
            other.alternatives.into_iter().filter(|cause| !self.alternatives.contains(cause)).collect();
        self.alternatives.extend(causes);
        let between: Vec<Tap> = other.through.into_iter().filter(|tap| !self.through.contains(tap)).collect();
        self.through.extend(between);
        self.untried = self.untried.max(other.untried);
        self.residual_nmse = self.residual_nmse.max(other.residual_nmse);
        self.base_nmse = self.base_nmse.max(other.base_nmse);
        self.counted = self.counted.max(other.counted);
        self.note = self.note.take().or(other.note);
        self.unpaid = self.unpaid.or(other.unpaid);
        for (id, left) in other.tried {
            let best = self.tried.entry(id).or_insert(left);
            *best = best.min(left);
        }
        match (&mut self.measured, other.measured) {
            (Some(law), Some(same)) if law.law.words == same.law.words => law.take_in(same),
            (known @ None, law) => *known = law,
            _ => {}
        }
    }

    /// Whether its cause has a number that was tuned, and leaves more than rounding in f32 does: a law may be nearer.
    pub(crate) fn is_coarse(&self, profile: Profile) -> bool {
        let tuned = self.cause.as_ref().is_some_and(|cause| cause.params.iter().any(|(name, _)| cause.is_free(name)));
        let is_alone = self.measured.is_none() && self.arithmetic.is_none() && self.is_blamed();
        let is_reproduced = self.matched == Match::Reproduced && is_alone && profile == Profile::F32;
        is_reproduced && tuned && self.residual_nmse > ROOM_FOR_A_LAW * F32_LEAVES
    }

    /// Takes up a law that was measured: where one was asked for, or in the place of a cause that is coarse.
    /// `may_be` says which mistakes may be named.
    pub(crate) fn take_law(&mut self, measured: Option<Measured>, may_be: &dyn Fn(&Mistake) -> bool) {
        match self.asks_for_a_law() {
            true => self.take_up(measured, may_be),
            false => self.take_nearer(measured, may_be),
        }
    }

    /// Takes up a law in the place of its cause, where it leaves far less everywhere.
    fn take_nearer(&mut self, measured: Option<Measured>, may_be: &dyn Fn(&Mistake) -> bool) {
        let is_nearer = |found: &Measured| {
            let everywhere = self.shown_at.iter().all(|place| found.places.contains(place));
            let left = found.proof.residual_nmse;
            everywhere && found.law.status == Status::Measured && left * ROOM_FOR_A_LAW < self.residual_nmse
        };
        if let Some(found) = measured.as_ref().filter(|found| is_nearer(found)) {
            self.residual_nmse = found.proof.residual_nmse;
            self.alternatives.clear();
            self.remainders.clear();
            self.cause = None;
            self.take_up(measured, may_be);
        }
    }

    /// Takes up a law; where a mistake of the catalogue is this law, that is the cause. Beside a cause that is known a table says nothing new.
    fn take_up(&mut self, measured: Option<Measured>, may_be: &dyn Fn(&Mistake) -> bool) {
        let measured = measured.map(|mut found| {
            // Of values that are all 0 a law has no share: the replay says how far off they are.
            if !found.proof.before_nmse.is_finite() {
                found.proof.before_nmse = self.base_nmse;
            }
            found
        });
        let Some(found) = &measured else { return };
        if self.cause.is_some() {
            self.measured = measured.filter(|found| found.law.status == Status::Measured);
            return;
        }
        self.matched = Match::Measured;
        let site = self.shown_at.first().map(|place| place.tap.last_site());
        // What was taken back for a reason is no cause by another way either.
        let name = site.filter(|_| self.note.is_none()).and_then(|site| named(&found.law, site));
        let is_proved = |(mistake, params): &(&Mistake, Params)| may_be(mistake) && found.proves(mistake, params);
        if let Some((mistake, params)) = name.filter(is_proved) {
            let (residual_nmse, base_nmse) = (found.proof.residual_nmse, found.proof.before_nmse);
            self.matched = Match::Reproduced;
            self.cause = Some(Cause { id: mistake.id, params });
            self.alternatives.clear();
            // It is measured at the tap: at others on the way nobody tried it.
            self.through.clear();
            self.residual_nmse = residual_nmse;
            if site == Some(Site::Scores) {
                (self.base_nmse, self.counted) = (base_nmse, Counted::OfProbabilities);
            }
            self.remainders = found.places.iter().map(|&place| Remainder { place, base_nmse, residual_nmse }).collect();
        }
        self.measured = measured;
    }
}

/// What is said of a candidate that was fed other tokens, as a place shows that is so far off.
pub fn other_tokens(edits: &TokenEdits, place: Place, base_nmse: f64) -> (Cause, Finding) {
    let words = ("change", json!(edits.to_string()));
    let params = std::iter::once(words).chain(edits.ids.as_ref().map(|ids| ("tokens", json!(ids)))).collect();
    let of = Cause { id: TOKENS_DIFFER.id, params };
    let cause = Some(of.clone());
    let (taps, shown_at, op) = (vec![place.tap], vec![place], "embedding".to_owned());
    let residual_nmse = edits.largest_nmse;
    (of, Finding { taps, shown_at, op, cause, residual_nmse, base_nmse, ..Finding::without_cause(Match::Reproduced) })
}

/// What is said of choices of another number of experts.
pub(crate) fn other_counts(replay: &Replay) -> Vec<Finding> {
    let mut found: Vec<Finding> = Vec::new();
    for tap in &replay.taps {
        let Some(Reason::OtherCount { own, due }) = tap.reason else { continue };
        let (place, op) = (tap.report.place, tap.report.op.clone());
        let cause = Some(Cause { id: ROUTER_TOPK.id, params: vec![("experts", json!(own))] });
        match found.iter_mut().find(|finding| finding.cause == cause) {
            Some(known) => {
                known.shown_at.push(place);
                known.taps.extend((!known.taps.contains(&place.tap)).then_some(place.tap));
            }
            None => {
                let (taps, shown_at, due) = (vec![place.tap], vec![place], Some(due.to_string()));
                found.push(Finding { taps, shown_at, op, cause, due, ..Finding::without_cause(Match::Reproduced) });
            }
        }
    }
    found
}

/// What is said of scores that leave keys of padding unmasked.
pub(crate) fn unmasked_padding(all: &[SeenPadding]) -> Option<Finding> {
    let all: Vec<&SeenPadding> = all.iter().filter(|seen| seen.is_of_scores).collect();
    let worst = |nmse: fn(&SeenPadding) -> f64| all.iter().map(|seen| nmse(seen)).fold(0.0, f64::max);
    let (residual_nmse, base_nmse) = (worst(|seen| seen.residual_nmse), worst(|seen| seen.base_nmse));
    let note = "keys of padding are seen: the probabilities, at which this is measured, are the softmax of these scores with them";
    (!all.is_empty()).then(|| Finding {
        taps: all.iter().map(|seen| seen.scores.tap).collect(),
        shown_at: all.iter().map(|seen| seen.scores).collect(),
        op: "scores".to_owned(),
        cause: Some(Cause { id: MASK_OMITTED.id, params: Vec::new() }),
        residual_nmse,
        base_nmse,
        note: Some(note.to_owned()),
        ..Finding::without_cause(Match::Reproduced)
    })
}

/// Another arithmetic of the products with weights, and how it was imitated.
#[derive(Clone, Debug)]
pub struct OtherArithmetic {
    /// The products that are off alike.
    pub places: Vec<Place>,
    /// How many products could be judged.
    pub judged: usize,
    /// Whether every other operation that could be judged is right.
    pub alone: bool,
    /// The least and the largest NMSE of those that are off.
    pub nmse: [f64; 2],
    /// The rounding that comes nearest, where it takes a good part of the error away.
    pub nearest: Option<Rounding>,
    /// What it leaves of the error: NMSE, the worst of all places, and the median share.
    pub residual_nmse: f64,
    /// The median, over all places, of what it leaves of their own error.
    pub share: f64,
}
