//! Finds which rows of a run's tensors belong to each expert: for every site the readings that its shapes allow, and the one that was taken.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{Dump, DumpError, Entry};

use crate::experts::choice::{ExpertChoices, TokenOrder};
use crate::experts::evidence::RowEvidence;
use crate::experts::form::{RowForm, RowReading};
use crate::experts::source::{Block, CandidateSite, ReferenceSite, expert_tap};
use crate::experts::votes::{RightReading, RowVotes};
use crate::graph::Place;

/// The possible forms of all rows of experts, and the form in which they were read.
#[derive(Debug, Default)]
pub struct ExpertRows {
    pub(super) sites: Vec<SiteRows>,
    pub(super) notes: Vec<String>,
}

/// The same for one site of all layers and steps.
#[derive(Debug)]
pub struct SiteRows {
    pub(super) reference_site: ReferenceSite,
    pub(super) candidate_site: CandidateSite,
    pub(super) readings: Vec<RowReading>,
    /// For each reading, the first one that takes the same rows.
    first_equal: Vec<usize>,
    pub(super) knows_choices: bool,
    group: usize,
    pub(super) taken: Option<usize>,
}

/// The rows of one expert under a reading.
#[derive(Clone, Copy, Debug)]
pub struct ExpertPiece<'a> {
    /// The tap that the rows make up.
    pub place: Place,
    source: &'a Entry,
    /// Their indices in the tensor, in the reference's order.
    pub rows: &'a [usize],
    /// Their tokens, where the reference has a row for every token and these are fewer.
    pub positions: Option<&'a [usize]>,
    width: usize,
}

impl ExpertPiece<'_> {
    /// Their values, from the dump in which the rows were found.
    ///
    /// # Errors
    /// When the tensor cannot be read.
    pub fn values(&self, candidate: &Dump) -> Result<Vec<f64>, DumpError> {
        let all = candidate.read(self.source)?.values().to_f64();
        let row = |&row: &usize| all.get(row * self.width..(row + 1) * self.width).unwrap_or_default().to_vec();
        Ok(self.rows.iter().flat_map(row).collect())
    }
}

impl ExpertRows {
    /// Each site.
    pub fn sites(&self) -> &[SiteRows] {
        &self.sites
    }

    /// Notes on how they were read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The taps whose rows could not be assigned.
    pub fn undecided(&self) -> BTreeSet<Place> {
        self.sites.iter().filter(|site| site.taken.is_none()).flat_map(SiteRows::differing).collect()
    }

    /// Finds the readings of all sites, and takes those that the reference's rows confirm.
    pub(super) fn find(reference: &Dump, candidate: &Dump) -> Result<ExpertRows, DumpError> {
        let (mut sites, mut all_votes) = (Vec::<SiteRows>::new(), Vec::<RowVotes>::new());
        for reference_site in ReferenceSite::all(reference) {
            let Some(candidate_site) = CandidateSite::find(reference, &reference_site, candidate) else { continue };
            let choices = ExpertChoices::read(reference, candidate, &reference_site)?;
            let readings = RowReading::all(&reference_site, &candidate_site, &choices);
            let first_equal = first_equal(readings.len(), |one, other| readings[one].takes_same_rows(&readings[other]));
            let knows_choices = choices.has_all(candidate_site.blocks().into_iter());
            let site = SiteRows {
                reference_site,
                candidate_site,
                readings,
                first_equal,
                knows_choices,
                group: 0,
                taken: None,
            };
            let SiteRows { reference_site, candidate_site, readings, .. } = &site;
            let evidence =
                RowEvidence { reference, candidate, reference_site, candidate_site, choices: &choices, readings };
            all_votes.push(evidence.votes(site.first_equal.clone())?);
            sites.push(site);
        }
        for at in 0..sites.len() {
            sites[at].group = (0..at).find(|&other| sites[at].may_stand_as(&sites[other])).unwrap_or(at);
        }
        let groups: Vec<usize> = sites.iter().map(|site| site.group).collect();
        for (site, right) in sites.iter_mut().zip(right_readings(&groups, &all_votes)) {
            site.taken = right;
        }
        Ok(ExpertRows { sites, notes: Vec::new() })
    }
}

/// For each of `count` items, the first one like it.
fn first_equal(count: usize, are_alike: impl Fn(usize, usize) -> bool) -> Vec<usize> {
    (0..count).map(|one| (0..one).find(|&other| are_alike(one, other)).unwrap_or(one)).collect()
}

/// The right reading of each site: by its own rows where several experts confirm it, else by the rows of all sites of its group; the two must not contradict
/// each other.
pub fn right_readings(groups: &[usize], votes: &[RowVotes]) -> Vec<Option<usize>> {
    let of_group = |group: usize| {
        let mut members = (0..groups.len()).filter(|&at| groups[at] == group).peekable();
        let mut all = votes[*members.peek()?].without_rows();
        members.for_each(|at| all.extend(at << 32, &votes[at]));
        all.right_reading()
    };
    let by_group: BTreeMap<usize, Option<RightReading>> =
        groups.iter().map(|&group| (group, of_group(group))).collect();
    let right = |(at, votes): (usize, &RowVotes)| match (votes.right_reading(), by_group[&groups[at]]) {
        (Some(own), _) if own.experts > 1 => Some(own.reading),
        (Some(own), Some(all)) => votes.take_same_rows(own.reading, all.reading).then_some(all.reading),
        (own, all) => own.or(all).map(|right| right.reading),
    };
    votes.iter().enumerate().map(right).collect()
}

impl SiteRows {
    /// The group of a site, as the number of its first member. Sites that allow the same forms are taken to have the same form, unless something contradicts
    /// it.
    pub fn group(&self) -> usize {
        self.group
    }

    /// For each reading, the first one that takes the same rows.
    pub fn first_equal(&self) -> &[usize] {
        &self.first_equal
    }

    /// For each reading, the first one that takes the same rows for each expert, in any order.
    pub fn alike_in_any_order(&self) -> Vec<usize> {
        let rows = |reading: &RowReading| -> Vec<BTreeSet<usize>> {
            reading
                .pieces
                .values()
                .flat_map(BTreeMap::values)
                .map(|piece| piece.rows.iter().copied().collect())
                .collect()
        };
        let all: Vec<_> = self.readings.iter().map(rows).collect();
        first_equal(all.len(), |one, other| all[one] == all[other])
    }

    /// The reading that was taken; `None` where each tensor was left as it is.
    pub fn reading_taken(&self) -> Option<usize> {
        self.taken
    }

    /// Each expert's rows under a reading.
    pub fn pieces(&self, reading: usize) -> Vec<ExpertPiece<'_>> {
        let mut found = Vec::new();
        for (block, pieces) in &self.readings[reading].pieces {
            for (&expert, piece) in pieces {
                let Some(source) = self.candidate_site.source(block, expert).filter(|_| !piece.rows.is_empty()) else {
                    continue;
                };
                let place = Place { tap: expert_tap(block, expert, &self.reference_site.site), step: block.step };
                let positions = piece.positions.as_deref();
                found.push(ExpertPiece {
                    place,
                    source,
                    rows: &piece.rows,
                    positions,
                    width: self.reference_site.width(),
                });
            }
        }
        found
    }

    /// The taps whose rows differ between readings; all taps where no reading is known.
    pub fn differing(&self) -> Vec<Place> {
        if self.readings.is_empty() {
            let all = self
                .reference_site
                .blocks
                .iter()
                .flat_map(|(block, experts)| experts.keys().map(move |&at| (block, at)));
            let place = |(block, expert): (&Block, usize)| Place {
                tap: expert_tap(block, expert, &self.reference_site.site),
                step: block.step,
            };
            return all.map(place).collect();
        }
        let mut rows: BTreeMap<Place, BTreeSet<Vec<usize>>> = BTreeMap::new();
        for piece in (0..self.readings.len()).flat_map(|reading| self.pieces(reading)) {
            rows.entry(piece.place).or_default().insert(piece.rows.to_vec());
        }
        rows.into_iter().filter(|(_, rows)| rows.len() > 1).map(|(place, _)| place).collect()
    }

    /// A note on what a reading did; `None` where all rows are already as in the reference.
    pub fn note(&self, reading: usize) -> Option<String> {
        let reading = &self.readings[reading];
        if reading.is_as_it_stands {
            return None;
        }
        let (first, form) = (self.candidate_site.first_name(&self.reference_site), reading.form.words());
        Some(match &self.candidate_site {
            CandidateSite::Together(all) => {
                let hold = if all.len() > 1 { format!("and {} more hold", all.len() - 1) } else { "holds".to_owned() };
                format!("{first} {hold} the rows of all experts, {form}: those of each were taken by router_topk")
            }
            CandidateSite::ByExpert(_) => {
                format!(
                    "{first} and others hold {form}, and the reference does not: its rows were taken by router_topk"
                )
            }
        })
    }

    /// Whether one of its tensors holds rows of all experts.
    pub fn is_of_all_experts(&self) -> bool {
        matches!(self.candidate_site, CandidateSite::Together(_))
    }

    /// What to report where no reading is taken.
    pub fn unread_notes(&self) -> String {
        let why = match (self.readings.is_empty(), self.knows_choices) {
            (_, false) => "router_topk of its layer and step, which says whose rows are whose, was not recorded",
            (true, true) => "its shape is none that router_topk of its layer and step gives it",
            (false, true) => "nothing shows in which of several orders its rows stand",
        };
        let (first, what) = (
            self.candidate_site.first_name(&self.reference_site),
            if self.is_of_all_experts() { "all experts" } else { "an expert" },
        );
        format!("not read: {first}, which holds rows of {what}: {why}")
    }

    fn may_stand_as(&self, other: &SiteRows) -> bool {
        let forms = |site: &SiteRows| -> Vec<(RowForm, Option<TokenOrder>)> {
            site.readings.iter().map(|reading| (reading.form, reading.order)).collect()
        };
        self.is_of_all_experts() == other.is_of_all_experts()
            && forms(self) == forms(other)
            && self.first_equal == other.first_equal
    }
}
