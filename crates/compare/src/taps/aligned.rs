//! Finds the two sides of a tap, or why they cannot be compared, by metadata alone: no value is read.

use firstdiff_trace::{Dump, Entry, Partial};

use crate::graph::Place;
use crate::report::reason::Reason;
use crate::run::side::Side;
use crate::taps::context::{ComparisonContext, TapJudgement};

/// The two sides of a tap, or why they cannot be compared.
pub(crate) enum AlignedTap<'a> {
    /// There is nothing to compare, and why.
    Settled(TapJudgement),
    /// Both are whole.
    Whole { left: Entry, right: Entry },
    /// Both are flat, with an unknown number of positions.
    Flat { left: Entry, right: Entry },
    /// The one on `side` is known in part.
    OnePart { whole: Entry, part: &'a Partial, side: Side },
    /// Both are known in part.
    TwoParts { left: &'a Partial, right: &'a Partial },
    /// It is outside the vocabulary.
    Open { left: Entry, right: Entry },
}

impl ComparisonContext<'_> {
    /// The two sides of a place.
    pub(crate) fn aligned(&self, place: Place) -> AlignedTap<'_> {
        let settled = AlignedTap::Settled;
        if self.options.only.as_ref().is_some_and(|only| !only.contains(&place)) {
            return settled(TapJudgement::NotRecorded);
        }
        if let Some(parts) = self.aligned_parts(place) {
            return parts;
        }
        if place.tap.is_open() {
            return self.aligned_open(place);
        }
        if let Some(reason) = self.lacks_a_rank(place) {
            return settled(TapJudgement::NotComparable(reason));
        }
        let (left, right) = match self.both(place) {
            (Some(left), Some(right)) => (left, right),
            (left, right) => {
                let not_joined = self.not_joined_reason(place).map(TapJudgement::NotComparable);
                return settled(not_joined.unwrap_or_else(|| recorded_once(left.is_some(), right.is_some())));
            }
        };
        if let Some(reason) = self.unaligned(place).or_else(|| self.misaligned()) {
            return settled(TapJudgement::NotComparable(reason));
        }
        if self.are_flat(&left, &right) {
            return AlignedTap::Flat { left, right };
        }
        match self.drowned(place) {
            Some(reason) => settled(TapJudgement::NotComparable(reason)),
            None => AlignedTap::Whole { left, right },
        }
    }

    /// The two sides of a place where one side is known in part; `None` where both are whole.
    fn aligned_parts(&self, place: Place) -> Option<AlignedTap<'_>> {
        let parts = [self.reference, self.candidate].map(|dump| dump.find_part(place.tap, place.step));
        if parts.iter().all(Option::is_none) {
            return None;
        }
        if let Some(reason) = self.unaligned(place) {
            return Some(AlignedTap::Settled(TapJudgement::NotComparable(reason)));
        }
        let (left, right) = self.both(place);
        let aligned = match (left, right, parts) {
            (_, _, [Some(left), Some(right)]) => AlignedTap::TwoParts { left, right },
            (Some(whole), _, [None, Some(part)]) => AlignedTap::OnePart { whole, part, side: Side::Candidate },
            (_, Some(whole), [Some(part), None]) => AlignedTap::OnePart { whole, part, side: Side::Reference },
            (left, right, [ours, theirs]) => {
                let recorded = recorded_once(left.is_some() || ours.is_some(), right.is_some() || theirs.is_some());
                return Some(AlignedTap::Settled(recorded));
            }
        };
        let misaligned = self.misaligned().map(|reason| AlignedTap::Settled(TapJudgement::NotComparable(reason)));
        Some(misaligned.unwrap_or(aligned))
    }

    /// The two sides of a tap outside the vocabulary. A tensor that no dump declares as a tap is never blamed.
    fn aligned_open(&self, place: Place) -> AlignedTap<'_> {
        if let Some(reason) = self.unaligned(place) {
            return AlignedTap::Settled(TapJudgement::Unchecked(reason));
        }
        let (left, right) = match self.both_open(place) {
            (Some(left), Some(right)) => (left, right),
            (left, right) => {
                let why = self.not_joined_reason(place).or_else(|| self.unreadable(place));
                let unread = why.map(|reason| self.as_declared(place, TapJudgement::NotComparable(reason)));
                let settled = unread.unwrap_or_else(|| recorded_once(left.is_some(), right.is_some()));
                return AlignedTap::Settled(settled);
            }
        };
        let rows_asked = self.options.rows.as_ref().is_some_and(|rows| !rows.is_all());
        if rows_asked && !self.is_by_token(place, &left) {
            return AlignedTap::Settled(TapJudgement::Unchecked(Reason::AxesUnknown));
        }
        match self.misaligned().or_else(|| self.drowned(place)) {
            Some(reason) => AlignedTap::Settled(self.as_declared(place, TapJudgement::NotComparable(reason))),
            None => AlignedTap::Open { left, right },
        }
    }

    /// Why a side's tensor under the name of a place cannot be read, where its dump lists it.
    fn unreadable(&self, place: Place) -> Option<Reason> {
        let why = |dump: &Dump| dump.unreadable(place.tap, place.step).map(Reason::Other);
        [self.candidate, self.reference].into_iter().filter(|_| self.plan.open.is_listed(place.tap)).find_map(why)
    }

    /// Why the positions of a place could not be aligned.
    fn unaligned(&self, place: Place) -> Option<Reason> {
        self.alignment()?.unchecked.get(&place).cloned().map(Reason::Unaligned)
    }

    /// Why no place of the two runs can be compared.
    fn misaligned(&self) -> Option<Reason> {
        self.plan.misaligned.is_some().then_some(Reason::OtherTokens)
    }

    /// Why a place is not judged where a second right run is itself far off.
    fn drowned(&self, place: Place) -> Option<Reason> {
        let noise = self.noise(place).filter(|noise| noise.is_too_far())?;
        Some(Reason::Drowned { nmse: noise.nmse })
    }
}

/// The judgement of a tap that at most one side recorded.
fn recorded_once(reference: bool, candidate: bool) -> TapJudgement {
    match (reference, candidate) {
        (true, _) => TapJudgement::Unchecked(Reason::NotIn(Side::Candidate)),
        (false, true) => TapJudgement::Unchecked(Reason::NotIn(Side::Reference)),
        (false, false) => TapJudgement::NotRecorded,
    }
}
