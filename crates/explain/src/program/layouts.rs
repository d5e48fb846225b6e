//! Finds the layout in which a candidate recorded a tap that agrees with the reference in none. The comparison holds taps against the reference's values, and
//! behind a fault none of them agrees. What is right in itself comes out of what it reads, in its own layout. Of a tap that is wrong in itself what reads it
//! tells: it comes out of the one in which the tap was recorded. So it does of a tap that comes out in another order of its axes, where that order is the
//! mistake.

use std::collections::{BTreeMap, HashMap};
use std::convert::Infallible;

use firstdiff_compare::layout::{Claim, LayoutEvidence, ResolvedClaims, Witness, explains, resolve};
use firstdiff_compare::metrics::Metrics;
use firstdiff_compare::{Layout, LayoutCandidates, LayoutConvention, Pair, Place, Status, TapReport, layout_notes};
use firstdiff_trace::DumpError;
use ndarray::{ArrayD, IxDyn};

use crate::program::Candidate;
use crate::replay::Replayed;
use crate::replay::reason::Reason;
use crate::tolerance::layouts::NEAR_LAYOUT;

/// The layouts of taps that what reads them decided.
pub(crate) type Decided = HashMap<Place, Layout>;

/// What is known of the layouts of a candidate's taps.
pub(crate) struct Layouts<'a> {
    candidate: &'a Candidate<'a>,
    decided: &'a Decided,
    /// Those that agree with the reference in no layout, and the one in which it read them.
    open: HashMap<Place, Option<&'a Layout>>,
    /// Those that agree with it in another order of their axes.
    claimed: HashMap<Place, &'a Layout>,
    /// Those that were read in another one here.
    found: BTreeMap<Place, Layout>,
    /// Those of which what reads them may tell the layout, as they do not come out as they stand; and whether they do in another one.
    doubtful: HashMap<Place, bool>,
    /// What readers told.
    pub(crate) told: Decided,
}

/// A tap with what is due at it.
pub(crate) struct Reading<'r> {
    pub(crate) place: Place,
    pub(crate) due: &'r ArrayD<f64>,
    /// Its values as they were read, where they can be.
    pub(crate) own: Option<&'r ArrayD<f64>>,
    /// Whether that is wrong beyond the reference's part.
    pub(crate) is_wrong_beyond: bool,
    /// Judges its values.
    pub(crate) is_right: &'r dyn Fn(&ArrayD<f64>) -> bool,
}

/// A tap's values, and their layout.
struct Read {
    layout: Layout,
    values: ArrayD<f64>,
}

impl Read {
    fn of(pair: &Pair<'_>, shape: &[usize]) -> Option<Read> {
        let values = (0..pair.len()).map(|at| pair.candidate(at)).collect();
        let values = ArrayD::from_shape_vec(IxDyn(shape), values).ok()?;
        Some(Read { layout: pair.layout().clone(), values })
    }
}

impl<'a> Layouts<'a> {
    /// As the comparison read them, and as was decided.
    pub(crate) fn of(candidate: &'a Candidate<'a>, decided: &'a Decided) -> Layouts<'a> {
        let is_open = |tap: &&TapReport| {
            !tap.status.agrees()
                && tap.part.is_none()
                && tap.positions.is_none()
                && !tap.is_of_other_experts()
                && !tap.is_in_own_order()
        };
        // What agrees with the reference in another order of its axes may be made so.
        let is_claim = |tap: &&TapReport| {
            tap.status.agrees()
                && tap.layout.as_ref().is_some_and(|layout| layout.needs_confirming() && layout.rows().is_none())
        };
        let claims = candidate.taps.iter().filter(is_claim);
        Layouts {
            doubtful: claims.clone().map(|tap| (tap.place, true)).collect(),
            claimed: claims.filter_map(|tap| Some((tap.place, tap.layout.as_ref()?))).collect(),
            candidate,
            decided,
            open: candidate.taps.iter().filter(is_open).map(|tap| (tap.place, tap.layout.as_ref())).collect(),
            found: BTreeMap::new(),
            told: HashMap::new(),
        }
    }

    /// Whether a tap agrees with the reference in no layout.
    pub(crate) fn is_open(&self, place: Place) -> bool {
        self.open.contains_key(&place) || self.decided.contains_key(&place)
    }

    /// Whether what reads a tap may tell its layout.
    pub(crate) fn is_doubtful(&self, place: Place) -> bool {
        self.doubtful.contains_key(&place) && !self.told.contains_key(&place)
    }

    /// Whether a tap agrees with the reference in another order of its axes.
    pub(crate) fn is_claimed(&self, place: Place) -> bool {
        self.claimed.contains_key(&place)
    }

    /// In words, in which layouts taps were read here.
    pub(crate) fn notes(&self) -> Vec<String> {
        layout_notes(&self.found.values().collect::<Vec<_>>(), "model")
    }

    /// A tap's values in another layout than it was read in, where its own is another one; and whether it comes out.
    pub(crate) fn read(&mut self, tap: &Reading<'_>) -> Result<(bool, Option<ArrayD<f64>>), DumpError> {
        let place = tap.place;
        let decided = self.decided.get(&place);
        if decided.is_none() && tap.own.is_some_and(tap.is_right) && !tap.is_wrong_beyond {
            return Ok((true, None));
        }
        let Some(flat) = tap.due.as_slice() else { return Ok((false, None)) };
        let found = self.candidate.values.beside(place, flat, |layouts| match decided {
            Some(layout) => {
                let read = layouts.under(layout).and_then(|pair| Read::of(&pair, tap.due.shape()));
                (read.as_ref().is_some_and(|read| (tap.is_right)(&read.values)), read)
            }
            None => {
                let others = self.others(place, layouts);
                let found = coming_out(layouts, &others, tap);
                (found.is_some(), found.or_else(|| self.in_known_rows(layouts, tap)))
            }
        })?;
        let (comes_out, found) = found.unwrap_or_default();
        if decided.is_none() {
            self.doubtful.insert(place, comes_out);
        }
        let Some(Read { layout, values }) = found else { return Ok((comes_out, None)) };
        self.found.insert(place, layout);
        Ok((comes_out, Some(values)))
    }

    /// Doubts taps that come out in another order of axes alone, which may be the mistake: nothing that reads them comes out, and no similar tap has it.
    pub(crate) fn doubt_unconfirmed(&self, taps: &mut [Replayed]) {
        let claims = self.found.iter().filter(|(place, layout)| {
            layout.needs_confirming() && self.doubtful.get(place).is_some_and(|comes_out| *comes_out)
        });
        let claims = claims.map(|(place, layout)| Claim { place: *place, layout: layout.clone() }).collect();
        let Ok(resolved) = resolve(claims, &mut Readers { layouts: self, taps });
        let open: Vec<Place> = resolved.claims_with(LayoutEvidence::None).map(|claim| claim.place).collect();
        for tap in taps.iter_mut().filter(|tap| tap.report.status.agrees() && open.contains(&tap.report.place)) {
            tap.report.status = Status::Unchecked;
            tap.reason = Some(Reason::LayoutUnconfirmed(self.found[&tap.report.place].clone()));
        }
    }

    /// Whether a tap comes out, in whichever layout.
    pub(crate) fn comes_out(&self, tap: &Reading<'_>) -> Result<bool, DumpError> {
        let Some(flat) = tap.due.as_slice() else { return Ok(false) };
        let as_it_stands = tap.own.is_some_and(tap.is_right);
        let in_another =
            |layouts: &LayoutCandidates<'_>| coming_out(layouts, &self.others(tap.place, layouts), tap).is_some();
        Ok(as_it_stands || self.candidate.values.beside(tap.place, flat, in_another)?.unwrap_or(false))
    }

    /// The values of a doubtful tap in every order of its axes that it was not read in: as it stands alone, where it comes out in another one. Which order
    /// the rows of Q and K have no reader tells: one that pairs them otherwise comes out of the wrong one.
    pub(crate) fn alternatives(&self, place: Place, shape: &[usize]) -> Result<Vec<(Layout, ArrayD<f64>)>, DumpError> {
        let blank = vec![0.0; shape.iter().product()];
        let all = self.candidate.values.beside(place, &blank, |layouts| {
            let (comes_out, rows) = (self.doubtful.get(&place) == Some(&true), self.now(place).and_then(Layout::rows));
            let plain = layouts.as_it_stands().ok().map(|pair| pair.layout().clone());
            let may_be =
                |pair: &Pair<'_>| pair.layout().rows() == rows && (!comes_out || plain.as_ref() == Some(pair.layout()));
            let read = |pair: Pair<'_>| Read::of(&pair, shape).map(|read| (read.layout, read.values));
            self.others(place, layouts).into_iter().filter(may_be).filter_map(read).collect()
        })?;
        Ok(all.unwrap_or_default())
    }

    /// A tap that comes out in no order of its rows, in that of others: one engine has one.
    fn in_known_rows(&self, layouts: &LayoutCandidates<'_>, tap: &Reading<'_>) -> Option<Read> {
        let now = self.now(tap.place);
        let is_open = tap.place.tap.last_site().has_rope_rows() && now.and_then(Layout::rows).is_none();
        let rows = self.found.values().find_map(Layout::rows).filter(|_| is_open)?;
        let axes = match now {
            Some(Layout::Permuted(axes)) => Some(axes.clone()),
            _ => None,
        };
        layouts.under(&Layout::Rows { rows, axes }).and_then(|pair| Read::of(&pair, tap.due.shape()))
    }

    /// The layout in which a tap was read.
    fn now(&self, place: Place) -> Option<&Layout> {
        let read = || self.open.get(&place).copied().flatten().or_else(|| self.claimed.get(&place).copied());
        self.found.get(&place).or_else(read)
    }

    /// The layouts that a tap may have beside the one in which it was read: first as it stands.
    fn others<'c>(&self, place: Place, layouts: &LayoutCandidates<'c>) -> Vec<Pair<'c>> {
        let now = self.now(place);
        let is_another = |pair: &Pair<'_>| {
            self.candidate.values.permits(place, pair.layout()) && now.is_none_or(|now| now != pair.layout())
        };
        let plain = layouts.as_it_stands().ok().cloned();
        plain.into_iter().chain(layouts.others()).filter(is_another).collect()
    }
}

/// What reads a tap, as it was judged.
struct Readers<'r, 'a> {
    layouts: &'r Layouts<'a>,
    taps: &'r [Replayed],
}

impl Witness for Readers<'_, '_> {
    type Error = Infallible;

    const IS_OUTWEIGHED: bool = false;

    fn evidence(&mut self, claim: &Claim, resolved: &ResolvedClaims) -> Result<LayoutEvidence, Infallible> {
        let reads = |tap: &&Replayed| tap.report.status.agrees() && tap.from.contains(&claim.place.tap);
        let of_readers = self.taps.iter().filter(reads).map(|tap| {
            let reader = tap.report.place;
            resolved.of_reader(claim, reader, self.layouts.found.get(&reader).unwrap_or(&Layout::Same))
        });
        let mut alike = self.layouts.candidate.taps.iter().filter(|tap| tap.status.agrees());
        let is_its_like = |tap: &TapReport| {
            let theirs = tap.layout.as_ref().filter(|layout| layout.needs_confirming());
            let theirs = theirs.map(|layout| LayoutConvention::new(tap.place.tap.last_site(), layout));
            theirs.is_some_and(|theirs| claim.convention().follows_from(&theirs))
        };
        let of_its_like = if alike.any(is_its_like) { LayoutEvidence::For } else { LayoutEvidence::None };
        Ok(of_readers.chain([of_its_like]).max().unwrap_or(LayoutEvidence::None))
    }
}

/// A tap in the first of some layouts in which it comes out.
fn coming_out(layouts: &LayoutCandidates<'_>, others: &[Pair<'_>], tap: &Reading<'_>) -> Option<Read> {
    let flat = tap.due.as_slice()?;
    let measured = |own: &ArrayD<f64>| Some(Metrics::measure_f64(flat, own.as_slice()?));
    let was = tap.own.and_then(measured).and_then(|metrics| metrics.nmse());
    let is_near = |pair: &&Pair<'_>| pair.estimated_nmse() <= NEAR_LAYOUT && layouts.padding_error(pair).is_none();
    let near = others.iter().filter(is_near);
    let mut read = near.filter_map(|pair| Read::of(pair, tap.due.shape()));
    read.find(|read| measured(&read.values).is_some_and(|now| explains(&now, was)) && (tap.is_right)(&read.values))
}
