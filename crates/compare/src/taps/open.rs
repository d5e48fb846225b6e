//! Judges taps outside the vocabulary: compared as they stand, as their axes are unknown.

use firstdiff_trace::{Dump, Entry, Site, Tap};

use crate::graph::Place;
use crate::layout::convention::attention_site;
use crate::layout::shapes::match_shapes;
use crate::report::reason::Reason;
use crate::taps::context::{ComparisonContext, TapJudgement};

/// A row with fewer values than this is not judged by itself.
const LEAST_ROW: usize = 8;

/// The site of the vocabulary by which a tap is judged: attention of another stack, and attention to one, has the same axes and masks as the decoder's own.
pub(crate) fn judged_as(tap: Tap, shape: &[usize]) -> Site {
    // A batch of one is in front of the heads.
    let axes = shape.len() - usize::from(shape.len() == 4 && shape[0] == 1);
    if axes == 3 { attention_site(tap) } else { tap.site }
}

impl ComparisonContext<'_> {
    /// The judgement of a tap outside the vocabulary. A tensor that no dump declares as a tap is never blamed.
    pub(crate) fn as_declared(&self, place: Place, judged: TapJudgement) -> TapJudgement {
        match judged {
            judged if self.plan.open.is_declared(place.tap) || judged.agrees() => judged,
            TapJudgement::NotRecorded | TapJudgement::Unchecked(_) => judged,
            _ => TapJudgement::Unchecked(Reason::Undeclared),
        }
    }

    /// Both sides of a tap outside the vocabulary, where their shapes fit: by token where the first axis of both has the step's number of tokens, else as one
    /// row, as its rows are unknown.
    pub(crate) fn both_open(&self, place: Place) -> (Option<Entry>, Option<Entry>) {
        let held = |dump: &Dump| dump.entry(place.tap, place.step);
        let (Some(mut left), Some(mut right)) = (held(self.reference), held(self.candidate)) else {
            return (held(self.reference), held(self.candidate));
        };
        let is_known = |entry: &Entry| self.is_by_token(place, entry) || !judged_as(place.tap, &entry.shape).is_open();
        if !(is_known(&left) && is_known(&right)) && match_shapes(place.tap.site, &left.shape, &right.shape).is_some() {
            for entry in [&mut left, &mut right] {
                (entry.shape, entry.rows) = (vec![1, entry.shape.iter().product()], None);
            }
        }
        (Some(left), Some(right))
    }

    /// The reference's own shape of a tap outside the vocabulary that was compared as one row and has more than one axis.
    pub(crate) fn own_shape(&self, place: Place, compared: &[usize]) -> Option<Vec<usize>> {
        let shape = self.reference.entry(place.tap, place.step).filter(|_| place.tap.is_open())?.shape;
        let several = shape.iter().filter(|extent| **extent > 1).count() > 1;
        (several && matches!(compared, [1, all] if *all == shape.iter().product::<usize>())).then_some(shape)
    }

    /// Whether the first axis of a tensor is that of its step's tokens, by its extent.
    pub(crate) fn is_by_token(&self, place: Place, entry: &Entry) -> bool {
        let tokens = self.plan.lengths.iter().find_map(|lengths| lengths.get(&place.step)).copied();
        let row: usize = entry.shape.iter().skip(1).product();
        entry.shape.len() > 1 && row >= LEAST_ROW && tokens.is_some() && entry.shape.first().copied() == tokens
    }
}
