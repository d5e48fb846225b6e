//! Holds the taps while a rule changes them, for rules whose later steps depend on their earlier ones.

use std::collections::BTreeSet;
use std::ops::Deref;

use crate::rules::Changes;
use crate::taps::context::TapJudgement;

/// All taps, with the changes of one rule so far.
pub(super) struct RuleDraft {
    taps: Vec<TapJudgement>,
    changed: BTreeSet<usize>,
}

impl RuleDraft {
    /// No changes yet.
    pub(super) fn new(taps: &[TapJudgement]) -> RuleDraft {
        RuleDraft { taps: taps.to_vec(), changed: BTreeSet::new() }
    }

    /// Replaces the judgement of one tap.
    pub(super) fn set(&mut self, index: usize, judged: TapJudgement) {
        self.taps[index] = judged;
        self.changed.insert(index);
    }

    /// The changes made.
    pub(super) fn into_changes(self) -> Changes {
        let changed = self.taps.into_iter().enumerate().filter(|(index, _)| self.changed.contains(index));
        Changes { taps: changed.collect(), note: None }
    }
}

impl Deref for RuleDraft {
    type Target = [TapJudgement];

    fn deref(&self) -> &[TapJudgement] {
        &self.taps
    }
}
