//! Finds the token position of a single row of a tap.

use firstdiff_trace::{Dump, Entry, NamedRows, Rows};

use crate::graph::Place;
use crate::layout::rows::{are_all, squeezed};
use crate::run::last::is_single;
use crate::run::misaligned::is_without_tokens;
use crate::run::positions::position_axis_of_one;
use crate::taps::context::ComparisonContext;

impl ComparisonContext<'_> {
    /// Both sides of a place with the positions of their rows, where these are known: the last of a known number, and a single row of a step that has more on
    /// the same side, which is its last.
    pub(crate) fn with_last_rows(
        &self,
        mut left: Option<Entry>,
        mut right: Option<Entry>,
    ) -> (Option<Entry>, Option<Entry>) {
        let (Some(ours), Some(theirs)) = (&mut left, &mut right) else { return (left, right) };
        let is_pooled = || [is_single(ours, theirs), is_single(theirs, ours)] == [true; 2];
        if self.alignment().is_some() || (is_without_tokens([self.reference, self.candidate]) && is_pooled()) {
            return (left, right);
        }
        let step = ours.step;
        let own = self.plan.lengths.each_ref().map(|lengths| lengths.get(&step).copied());
        let known = own[0].or(own[1]);
        let singles = [is_single(ours, theirs), is_single(theirs, ours)];
        // More rows than the step has tokens: which of them is the last is unknown.
        if let (Some(length), true) = (own[0].into_iter().chain(own[1]).min(), singles[0] != singles[1]) {
            let several = if singles[0] { &*theirs } else { &*ours };
            let shape = squeezed(several.tap.site, &several.shape);
            if are_all(&several.rows) && shape.get(several.tap.site.position_axis()).is_some_and(|rows| *rows > length)
            {
                (ours.rows, theirs.rows) = (None, None);
                return (left, right);
            }
        }
        for (entry, own, single) in [(&mut *ours, own[0], singles[0]), (&mut *theirs, own[1], singles[1])] {
            let Some(length) = own.or(known) else { continue };
            let undeclared = entry.rows.is_none() && single && length > 1 && (own.is_some() || singles == [true, true]);
            if undeclared || entry.rows == Some(Rows::Named(NamedRows::Last)) {
                entry.rows = Some(Rows::List(vec![length - 1]));
                if let Some(shape) = position_axis_of_one(entry.tap.site, &entry.shape).filter(|_| single) {
                    entry.shape = shape;
                }
            }
        }
        (left, right)
    }

    /// A note on rows that were assumed to be the last ones without a declaration.
    pub(crate) fn taken_for_last(&self) -> Option<String> {
        let undeclared = |place| {
            let before = self.candidate.find(place, 0)?;
            let (_, right) = self.both(Place { step: 0, tap: place });
            (before.rows.is_none() && right?.rows.is_some()).then_some(place)
        };
        let mut taps = self.candidate.entries().iter().filter(|e| e.step == 0).filter_map(|e| undeclared(e.tap));
        let (first, more) = (taps.next()?, taps.count());
        let which = if more == 0 { format!("{first} holds") } else { format!("{first} and {more} more hold") };
        Some(format!("{which} one row of several token positions: taken for the last one"))
    }

    /// Whether the token position of a place's single row is unknown: in a run recorded in one step, with an unknown number of tokens.
    pub(crate) fn is_of_unknown_position(&self, place: Place) -> bool {
        let dumps = [self.reference, self.candidate];
        let known = self.plan.lengths.iter().any(|lengths| lengths.contains_key(&place.step));
        let later = |dump: &Dump| dump.entries().last().is_some_and(|entry| entry.step > 0);
        let named = |dump: &Dump| {
            let listed = |entry: &Entry| matches!(entry.rows, Some(Rows::List(_)));
            known || dump.find(place.tap, place.step).is_some_and(listed)
        };
        let has_row_list = matches!(self.options.rows, Some(Rows::List(_)));
        self.alignment().is_none() && !has_row_list && !dumps.into_iter().any(|dump| later(dump) || named(dump))
    }

    /// Whether a dump declares that the single rows of the first step are the last ones.
    pub(crate) fn last_is_declared(&self) -> bool {
        let last = |rows: &Option<Rows>| *rows == Some(Rows::Named(NamedRows::Last));
        let dumps = [self.reference, self.candidate];
        last(&self.options.rows) || dumps.into_iter().flat_map(Dump::entries).any(|entry| last(&entry.rows))
    }
}
