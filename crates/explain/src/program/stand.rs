//! Finds how the rows of experts stand. Where rows are the reference's under one reading alone, so. Below a fault none is near the reference's: then by what
//! the candidate's own values give. Of the readings that its choice of experts allows, it is the one under which its rows are what its own inputs make, and what
//! follows is what its rows make.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use firstdiff_compare::{ExpertPiece, Place, RowVotes, SiteRows, right_readings, row_distance};
use firstdiff_program::{Arithmetic, Bench, Slice, Tensor};
use ndarray::{ArrayD, Axis, IxDyn};

use crate::program::arrays::{array, tensor};
use crate::program::held::{ExpertRowsFound, Held, Part};
use crate::program::rows::{Sorted, order};
use crate::program::{Candidate, Recording};
use crate::replay::ReplayError;

/// Reads the rows of experts as the candidate's own values show that they stand, and says how. What nothing decides is not read.
///
/// # Errors
/// When a file or a weight cannot be read.
pub(crate) fn settle(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &mut Held,
) -> Result<Vec<String>, ReplayError> {
    let (program, sites) = (recording.program, candidate.experts.sites());
    let mut taken: Vec<Option<usize>> = sites.iter().map(SiteRows::reading_taken).collect();
    let taps: HashMap<_, usize> = (0..program.taps().len()).map(|tap| (held.place(tap), tap)).collect();
    let sorted = Sorted::of(program);
    let tap_of = |piece: &ExpertPiece<'_>| taps.get(&piece.place).copied();
    let is_in_order_of_sort = |tap: usize| sorted.holds(program.taps()[tap].op);
    let is_sorted = |site: &SiteRows| site.pieces(0).iter().any(|piece| tap_of(piece).is_some_and(is_in_order_of_sort));
    // Where a program sorts rows any order is right that all of an expert's have: `rows` sees to that.
    let is_free = |site: &SiteRows| !site.is_of_all_experts() && is_sorted(site);
    let alike = |site: &SiteRows| {
        if is_sorted(site) { site.alike_in_any_order() } else { site.first_equal().to_vec() }
    };
    let is_open = |site: &SiteRows| site.first_equal().iter().any(|&first| first > 0);
    let open: Vec<usize> = (0..sites.len()).filter(|&at| is_open(&sites[at])).collect();
    if !open.is_empty() {
        let of_experts: BTreeSet<usize> = sites
            .iter()
            .flat_map(|site| (0..site.first_equal().len()).flat_map(|reading| site.pieces(reading)))
            .filter_map(|piece| tap_of(&piece))
            .collect();
        let alike = open.iter().map(|&at| (at, alike(&sites[at]))).collect();
        let is_in_order_of_sort = &is_in_order_of_sort;
        let mut rows =
            OpenRows { recording, candidate, held, of_experts, found: HashMap::new(), alike, is_in_order_of_sort };
        for &at in &open {
            rows.read(at, &sites[at], &tap_of)?;
        }
        // Rows that are the reference's under one reading alone show how they stand: then nothing is computed.
        if open.iter().any(|&at| taken[at].is_none()) {
            let own = rows.decided(&open, sites);
            open.iter().zip(own).for_each(|(&at, own)| taken[at] = taken[at].or(own));
        }
        let OpenRows { found, alike, .. } = rows;
        // Of readings that are alike all sites have one, so that an expert's rows have one order.
        for &at in &open {
            let is_as_here = |&other: &usize| {
                let both = taken[at].zip(taken[other]);
                sites[other].group() == sites[at].group()
                    && both.is_some_and(|(own, first)| alike[&at][own] == alike[&at][first])
            };
            taken[at] = open.iter().copied().find(is_as_here).and_then(|first| taken[first]);
        }
        for &at in &open {
            let of_site = |reading: usize| found.get(&(at, reading)).into_iter().flatten();
            match taken[at] {
                Some(reading) => {
                    of_site(reading).for_each(|(tap, rows)| held.put(*tap, &program.taps()[*tap], rows.clone()))
                }
                None if is_free(&sites[at]) => {}
                None => {
                    sites[at].differing().iter().filter_map(|place| taps.get(place)).for_each(|&tap| held.unread(tap))
                }
            }
        }
    }
    let note = |(at, site): (usize, &SiteRows)| match taken[at] {
        Some(reading) => site.note(reading),
        None => (site.is_of_all_experts() || open.contains(&at) && !is_free(site)).then(|| site.unread_notes()),
    };
    Ok(sites.iter().enumerate().filter_map(note).collect())
}

/// The rows of sites that may stand in several forms.
struct OpenRows<'r, 'a> {
    recording: &'r Recording<'a>,
    candidate: &'r Candidate<'a>,
    held: &'r Held,
    /// The taps of all experts.
    of_experts: BTreeSet<usize>,
    /// The rows of each expert by site and reading: the tap that they are, and their values.
    found: HashMap<(usize, usize), Vec<(usize, ExpertRowsFound)>>,
    /// For each reading of a site the first that takes the same rows: in any order, where the program sorts them.
    alike: HashMap<usize, Vec<usize>>,
    is_in_order_of_sort: &'r dyn Fn(usize) -> bool,
}

impl OpenRows<'_, '_> {
    fn read(
        &mut self,
        at: usize,
        site: &SiteRows,
        tap_of: &dyn Fn(&ExpertPiece<'_>) -> Option<usize>,
    ) -> Result<(), ReplayError> {
        for reading in 0..site.first_equal().len() {
            let mut found = Vec::new();
            for piece in site.pieces(reading) {
                let Some(tap) = tap_of(&piece) else { continue };
                let record = &self.recording.program.taps()[tap];
                let values = piece.values(self.candidate.dump)?;
                let rows = match piece.positions {
                    None => tensor(record, values).map(ExpertRowsFound::All),
                    Some(positions) => {
                        let shape: Vec<usize> =
                            [positions.len()].into_iter().chain(record.view.shape.iter().skip(1).copied()).collect();
                        let is_there =
                            record.view.shape.first().is_some_and(|&rows| positions.iter().all(|&row| row < rows));
                        let values = ArrayD::from_shape_vec(IxDyn(&shape), values).ok().filter(|_| is_there);
                        values.map(|values| ExpertRowsFound::Some(Part::of_expert(positions.to_vec(), values)))
                    }
                };
                found.extend(rows.map(|rows| (tap, rows)));
            }
            self.found.insert((at, reading), found);
        }
        Ok(())
    }

    /// The right reading of each open site. First by what the values above the experts make of them; of the others, by what each reading makes of its own
    /// rows and of what follows.
    fn decided(&self, open: &[usize], sites: &[SiteRows]) -> Vec<Option<usize>> {
        let groups: Vec<usize> = open.iter().map(|&at| sites[at].group()).collect();
        let votes: Vec<RowVotes> = open.iter().map(|&at| self.by_what_is_above(at, &sites[at])).collect();
        let mut right = right_readings(&groups, &votes);
        let known = self.overlay(open.iter().copied().zip(right.iter().copied()));
        for group in groups.iter().collect::<BTreeSet<_>>() {
            let members: Vec<usize> =
                (0..open.len()).filter(|&at| groups[at] == *group && right[at].is_none()).collect();
            let Some(&first) = members.first() else { continue };
            let both: Vec<usize> = members.iter().map(|&at| open[at]).collect();
            let found = self.together(&both, &sites[open[first]], &known).right_reading().map(|right| right.reading);
            members.into_iter().for_each(|at| right[at] = found);
        }
        right
    }

    /// The values of expert taps under some readings.
    fn overlay(&self, taken: impl Iterator<Item = (usize, Option<usize>)>) -> HashMap<usize, &Tensor<'static>> {
        let mut overlay = HashMap::new();
        for (at, reading) in taken {
            let rows = reading.and_then(|reading| self.found.get(&(at, reading))).into_iter().flatten();
            overlay.extend(rows.filter_map(|(tap, rows)| match rows {
                ExpertRowsFound::All(values) => Some((*tap, values)),
                ExpertRowsFound::Some(_) => None,
            }));
        }
        overlay
    }

    /// What is due at a tap, computed from what the candidate holds above it; of the experts that is `known` alone.
    fn due(&self, tap: usize, known: &HashMap<usize, &Tensor<'static>>) -> Option<ArrayD<f64>> {
        let Recording { program, weights } = *self.recording;
        let value = |other: usize| match self.of_experts.contains(&other) {
            true => known.get(&other).copied(),
            false => self.held.readable(other),
        };
        let slice = Slice::of(program, tap, |other| value(other).is_some());
        let bench = Bench::new(program, Arithmetic::F64, weights);
        let due = slice.evaluate(&bench, &|other| value(other).map(Tensor::view), &[]).ok()?;
        Some(array(&due))
    }

    /// How far each reading of a site is from what the values above the experts make.
    fn by_what_is_above(&self, at: usize, site: &SiteRows) -> RowVotes {
        let mut votes = RowVotes::new(self.alike[&at].clone());
        let differing: BTreeSet<Place> = site.differing().into_iter().collect();
        let found = (0..site.first_equal().len()).flat_map(|reading| &self.found[&(at, reading)]).map(|(tap, _)| *tap);
        let taps: BTreeSet<usize> = found.filter(|&tap| differing.contains(&self.held.place(tap))).collect();
        // A run has one form: experts of all layers and steps, but not each of them.
        let every = taps.len().div_ceil(ENOUGH).max(1);
        for tap in taps.into_iter().step_by(every) {
            let Some(due) = self.due(tap, &HashMap::new()) else { continue };
            let off = |reading: usize| {
                let rows = self.found[&(at, reading)].iter().find(|(own, _)| *own == tap).map(|(_, rows)| rows);
                rows.map_or_else(Vec::new, |rows| self.distances(tap, rows, &due))
            };
            add(&mut votes, tap, (0..site.first_equal().len()).map(off).collect());
        }
        votes
    }

    /// How far each reading of sites that all stand in one form leaves their rows, and what is made of them.
    fn together(&self, sites: &[usize], first: &SiteRows, known: &HashMap<usize, &Tensor<'static>>) -> RowVotes {
        let (program, readings) = (self.recording.program, first.first_equal().len());
        let own: BTreeSet<usize> = sites.iter().flat_map(|&at| &self.found[&(at, 0)]).map(|(tap, _)| *tap).collect();
        let block = |tap: usize| (self.held.place(tap).step, self.held.place(tap).tap.layer);
        let blocks: BTreeSet<_> = own.iter().map(|&tap| block(tap)).collect();
        let near: Vec<usize> = (0..program.taps().len()).filter(|&tap| blocks.contains(&block(tap))).collect();
        let mut off: BTreeMap<usize, Vec<Vec<Option<f64>>>> = BTreeMap::new();
        for reading in 0..readings {
            let mut with = self.overlay(sites.iter().map(|&at| (at, Some(reading))));
            let of_sites: HashMap<usize, &ExpertRowsFound> =
                sites.iter().flat_map(|&at| &self.found[&(at, reading)]).map(|(tap, rows)| (*tap, rows)).collect();
            with.extend(known.iter().map(|(&tap, &values)| (tap, values)));
            for &tap in near.iter().filter(|&&tap| own.contains(&tap) || self.is_held(tap, &with)) {
                let reads_them = || {
                    let slice = Slice::of(program, tap, |other| self.is_held(other, &with));
                    slice.known().any(|other| own.contains(&other))
                };
                if !own.contains(&tap) && !reads_them() {
                    continue;
                }
                let Some(due) = self.due(tap, &with) else { continue };
                let here = match (of_sites.get(&tap), with.get(&tap)) {
                    (Some(rows), _) => self.distances(tap, rows, &due),
                    (None, Some(values)) => self.distances(tap, &ExpertRowsFound::All((*values).clone()), &due),
                    (None, None) => self.held.readable(tap).map_or_else(Vec::new, |values| {
                        self.distances(tap, &ExpertRowsFound::All(values.clone()), &due)
                    }),
                };
                off.entry(tap).or_insert_with(|| vec![Vec::new(); readings])[reading] = here;
            }
        }
        let mut votes = RowVotes::new(self.alike[&sites[0]].clone());
        off.into_iter().for_each(|(tap, off)| add(&mut votes, tap, off));
        votes
    }

    /// How far each row that is due is from the candidate's; `None` where it has none.
    fn distances(&self, tap: usize, rows: &ExpertRowsFound, due: &ArrayD<f64>) -> Vec<Option<f64>> {
        let row =
            |values: &ArrayD<f64>, at: usize| values.index_axis(Axis(0), at).iter().copied().collect::<Vec<f64>>();
        let count = due.shape().first().copied().unwrap_or(0);
        match rows {
            ExpertRowsFound::All(values) => {
                let values = array(values);
                let is_alike = values.shape() == due.shape();
                let order = if (self.is_in_order_of_sort)(tap) { order(&values, due) } else { None };
                let own = |at: usize| order.as_ref().map_or(at, |order| order[at]);
                (0..count).map(|at| is_alike.then(|| row_distance(&row(&values, own(at)), &row(due, at)))?).collect()
            }
            ExpertRowsFound::Some(part) => {
                let own = |at: usize| part.rows.iter().position(|&row| row == at);
                (0..count).map(|at| row_distance(&row(&part.values, own(at)?), &row(due, at))).collect()
            }
        }
    }

    fn is_held(&self, tap: usize, with: &HashMap<usize, &Tensor<'static>>) -> bool {
        if self.of_experts.contains(&tap) { with.contains_key(&tap) } else { self.held.readable(tap).is_some() }
    }
}

/// So many experts are asked in which form their rows stand.
const ENOUGH: usize = 32;

/// Adds the rows of a tap, of which each reading says how far off they are.
fn add(votes: &mut RowVotes, tap: usize, off: Vec<Vec<Option<f64>>>) {
    let count = off.iter().map(Vec::len).max().unwrap_or(0);
    for row in 0..count {
        votes.add(tap, off.iter().map(|rows| rows.get(row).copied().flatten()).collect());
    }
}
