//! Decides which of several readings of the same rows is right: the one that fits rows which every other reading leaves wrong, while the reverse hardly
//! occurs.

use std::collections::BTreeSet;

use crate::tolerance::experts::{ROW_IS_NEAR, ROW_IS_SAME, ROW_TELLS};

/// How far several readings leave each row from its expected value.
#[derive(Clone, Debug, Default)]
pub struct RowVotes {
    /// A number for each reading; readings with the same number take the same rows.
    groups: Vec<usize>,
    /// The expert of each row, and the row's distance under each reading, at most 1; `None` where a reading has no such row.
    rows: Vec<(usize, Vec<Option<f64>>)>,
}

/// The reading that is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RightReading {
    /// Its index.
    pub reading: usize,
    /// How many experts confirm it.
    pub experts: usize,
}

impl RowVotes {
    /// No rows yet. Readings with the same number in `groups` take the same rows.
    pub fn new(groups: Vec<usize>) -> RowVotes {
        RowVotes { groups, rows: Vec::new() }
    }

    /// The same readings, and no rows.
    pub(super) fn without_rows(&self) -> RowVotes {
        RowVotes::new(self.groups.clone())
    }

    /// Whether two readings take the same rows.
    pub(super) fn take_same_rows(&self, one: usize, other: usize) -> bool {
        self.groups[one] == self.groups[other]
    }

    /// Adds a row of an expert, which is named by any number.
    pub fn add(&mut self, expert: usize, off: Vec<Option<f64>>) {
        self.rows.push((expert, off));
    }

    /// Adds all rows of `others`, with their experts numbered from `begin` on.
    pub fn extend(&mut self, begin: usize, others: &RowVotes) {
        self.rows.extend(others.rows.iter().map(|(expert, off)| (begin + expert, off.clone())));
    }

    /// The reading that is right; `None` where the rows do not decide.
    pub fn right_reading(&self) -> Option<RightReading> {
        (0..self.groups.len()).find_map(|reading| Some(RightReading { reading, experts: self.experts_for(reading)? }))
    }

    /// How many experts confirm a reading, by rows that fit it and not the other; the fewest over all other readings.
    fn experts_for(&self, one: usize) -> Option<usize> {
        let others = (0..self.groups.len()).filter(|&other| self.groups[other] != self.groups[one]);
        let counts = others.map(|other| {
            let (mut of, mut against, mut experts) = (0, 0, BTreeSet::new());
            for (expert, off) in &self.rows {
                let (Some(mine), Some(theirs)) = (off[one], off[other]) else { continue };
                if mine.max(theirs) <= ROW_IS_SAME {
                    continue;
                }
                if mine <= ROW_IS_NEAR * theirs {
                    of += 1;
                    experts.insert(expert);
                } else if theirs <= ROW_IS_NEAR * mine {
                    against += 1;
                }
            }
            (of > 0 && f64::from(against) <= ROW_TELLS * f64::from(of)).then_some(experts.len())
        });
        counts.collect::<Option<Vec<_>>>().map(|counts| counts.into_iter().min().unwrap_or(usize::MAX))
    }
}

/// The squared distance of two rows as a share of the expected row's energy, at most 1; `None` where that row is zero.
pub fn row_distance(candidate: &[f64], reference: &[f64]) -> Option<f64> {
    let error: f64 = candidate.iter().zip(reference).map(|(own, due)| (own - due) * (own - due)).sum();
    let size: f64 = reference.iter().map(|due| due * due).sum();
    // A row of zeros would fit any other row of zeros.
    (size > 0.0).then(|| Some(error / size).filter(|share| share.is_finite()).map_or(1.0, |share| share.min(1.0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn votes(groups: &[usize], rows: &[(usize, [f64; 2])]) -> RowVotes {
        let mut votes = RowVotes::new(groups.to_vec());
        rows.iter().for_each(|(expert, off)| votes.add(*expert, off.iter().map(|off| Some(*off)).collect()));
        votes
    }

    #[test]
    fn rows_that_are_wrong_in_every_reading_say_nothing() {
        let wrong = [(0, [1.0, 0.9]), (0, [0.8, 1.0]), (1, [1.0, 1.0])];
        assert_eq!(votes(&[0, 1], &wrong).right_reading(), None);
        let with_right = [wrong.as_slice(), &[(2, [1.0, 1e-12])]].concat();
        assert_eq!(votes(&[0, 1], &with_right).right_reading(), Some(RightReading { reading: 1, experts: 1 }));
    }

    #[test]
    fn rows_that_contradict_each_other_decide_nothing() {
        assert_eq!(votes(&[0, 1], &[(0, [1.0, 0.0]), (1, [0.0, 1.0])]).right_reading(), None);
        let most = [(0, [1.0, 0.0]), (1, [1.0, 0.0]), (2, [0.0, 1.0])];
        assert_eq!(votes(&[0, 1], &most).right_reading(), Some(RightReading { reading: 1, experts: 2 }));
    }

    #[test]
    fn readings_that_are_alike_need_no_row() {
        assert_eq!(votes(&[0, 0], &[]).right_reading(), Some(RightReading { reading: 0, experts: usize::MAX }));
        assert_eq!(votes(&[0, 1], &[]).right_reading(), None);
    }

    #[test]
    fn zeros_tell_nothing() {
        assert_eq!(row_distance(&[0.0, 0.0], &[0.0, 0.0]), None);
        assert_eq!(row_distance(&[1.0, 1.0], &[1.0, 1.0]), Some(0.0));
        assert_eq!(row_distance(&[f64::NAN, 1.0], &[1.0, 1.0]), Some(1.0));
    }
}
