//! Reads what the candidate holds of the program's taps.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use firstdiff_compare::{Layout, Place, TapReport, is_of_expert};
use firstdiff_model::{Cache, keep};
use firstdiff_program::{At, Bench, Edit, Kind, Program, ProgramTap, Slice, Tensor, Values};
use firstdiff_trace::{Rows, Site, Tap};
use ndarray::{ArrayD, Axis, IxDyn};

use crate::program::arrays::{array, floats, tensor};
use crate::program::change::computed;
use crate::program::slices::on_the_way;
use crate::program::{Candidate, Recording};
use crate::replay::right::{both_count, jittered};
use crate::replay::{ReplayError, can_be_read};
use crate::tolerance::replay::NEAR_AN_EDGE;

/// The values of the taps that a candidate recorded whole, in the program's axes, by the tap's index in the program.
pub(crate) struct Held {
    values: HashMap<usize, Own>,
    /// Rows of experts that take all tokens, of which the candidate holds those alone that are sent to them; and of other taps the positions that it holds.
    parts: HashMap<usize, Part>,
    /// Taps that mix positions of others of which the candidate holds some, and those wrong: nobody knows what else these read.
    mixing: HashMap<usize, BTreeSet<usize>>,
    /// Those whose rows may be of one token or another.
    unread: HashSet<usize>,
    /// What is wrong beyond the program's part, where a tap is longer.
    beyond: HashMap<usize, String>,
    places: Vec<Place>,
    /// Keys and values that are read back from a cache, where its type rounds them.
    kept: BTreeSet<usize>,
    cache: Cache,
}

/// The rows of an expert.
#[derive(Clone)]
pub(crate) enum ExpertRowsFound {
    /// All of a tap.
    All(Tensor<'static>),
    /// Those of the tokens that are sent to it, where the program has rows of all.
    Some(Part),
}

/// Some rows of a tap.
#[derive(Clone)]
pub(crate) struct Part {
    /// The axis of the program's view that they are rows of.
    pub(crate) axis: Axis,
    pub(crate) rows: Vec<usize>,
    pub(crate) values: ArrayD<f64>,
    /// Whether nobody reads the other rows, as of an expert; else what reads them cannot be computed from these.
    pub(crate) is_enough: bool,
}

impl Part {
    /// The rows of an expert.
    pub(crate) fn of_expert(rows: Vec<usize>, values: ArrayD<f64>) -> Part {
        Part { axis: Axis(0), rows, values, is_enough: true }
    }

    /// The token positions that a candidate holds of a tap, where its values were compared at these alone.
    fn of_positions(tap: &ProgramTap, report: &TapReport, values: Vec<f64>) -> Option<Part> {
        let (rows, mut shape) = (report.positions.clone()?, tap.view.shape.clone());
        let before = shape.len().checked_sub(report.shape.len())?;
        let axis = before + report.place.tap.last_site().position_axis();
        let count = *shape.get(axis).filter(|_| shape[..before].iter().all(|&extent| extent == 1))?;
        shape[axis] = rows.len();
        let is_there = rows.iter().all(|&row| row < count) && tap.view.dtype.kind() == Kind::Float;
        let values = ArrayD::from_shape_vec(shape, values).ok().filter(|_| is_there)?;
        Some(Part { axis: Axis(axis), rows, values, is_enough: false })
    }

    /// The same rows of another tensor.
    pub(crate) fn rows_of(&self, all: &ArrayD<f64>) -> ArrayD<f64> {
        all.select(self.axis, &self.rows)
    }

    /// Another tensor with these rows in it.
    pub(crate) fn within(&self, all: &ArrayD<f64>) -> ArrayD<f64> {
        let mut whole = all.clone();
        for (own, &row) in self.values.axis_iter(self.axis).zip(&self.rows) {
            whole.index_axis_mut(self.axis, row).assign(&own);
        }
        whole
    }
}

/// The values of one tap, and whether what comes behind it can be computed from them.
struct Own {
    values: Tensor<'static>,
    /// What is read in its place, where that is not the same.
    read_back: Option<Tensor<'static>>,
    is_readable: bool,
    /// Whether the candidate recorded them, and they do not just follow from what it recorded.
    is_recorded: bool,
    /// Whether its rows are those of the reference in another order.
    is_in_own_order: bool,
}

impl Own {
    fn of(values: Tensor<'static>) -> Own {
        Own { values, read_back: None, is_readable: true, is_recorded: true, is_in_own_order: false }
    }
}

impl Held {
    /// Reads all of them. Where experts take other rows than in the program of the reference, that is `before`.
    pub(crate) fn of(
        recording: &Recording<'_>,
        candidate: &Candidate<'_>,
        before: Option<&Program>,
    ) -> Result<Held, ReplayError> {
        let reports: HashMap<Place, &TapReport> = candidate.taps.iter().map(|tap| (tap.place, tap)).collect();
        let taps = recording.program.taps();
        let before = before.map(|program| program.taps().iter().map(extents).collect::<HashSet<_>>());
        let layouts = layouts(candidate.taps);
        let (mut values, mut beyond, mut parts) = (HashMap::new(), HashMap::new(), HashMap::new());
        for (number, tap) in taps.iter().enumerate() {
            let report = reports.get(&place_of(tap)).copied();
            let own = report.map(|report| values_of(candidate, report, &layouts)).transpose()?.flatten();
            // The program itself may have these positions alone.
            let is_whole = own.as_ref().is_some_and(|own| own.len() == tap.view.elements());
            if let Some(report) = report.filter(|report| report.positions.is_some() && !is_whole) {
                parts.extend(own.and_then(|own| Some((number, Part::of_positions(tap, report, own)?))));
                continue;
            }
            let own = match own.and_then(|own| tensor(tap, own)) {
                None if before.as_ref().is_some_and(|before| !before.contains(&extents(tap))) => {
                    rerouted(tap, candidate)?
                }
                own => own,
            };
            if let Some(own) = own {
                let error = report.map(|report| candidate.values.padding_error(report)).transpose()?.flatten();
                // Nothing is made of scores of which the probabilities are right.
                let place = place_of(tap);
                let probs = reports.get(&Place { tap: place.tap.sibling(Site::Probs), ..place });
                let is_hidden = place.tap.last_site() == Site::Scores && probs.is_some_and(|p| p.status.agrees());
                beyond.extend(error.filter(|_| !is_hidden).map(|error| (number, error)));
                let is_readable = is_of_its_kind(tap, &own)
                    && can_be_read(place_of(tap).tap.last_site(), &array(&own))
                    && !report.is_some_and(TapReport::is_in_an_unknown_order);
                let is_in_own_order = report.is_some_and(TapReport::is_in_own_order);
                values.insert(number, Own { is_readable, is_in_own_order, ..Own::of(own) });
            }
        }
        for number in (0..taps.len()).filter(|number| !values.contains_key(number)) {
            parts.extend(part(&taps[number], candidate)?.map(|part| (number, part)));
        }
        let places = taps.iter().map(place_of).collect();
        let cache = candidate.cache.0;
        let kept = kept(taps, cache);
        let mut held =
            Held { values, parts, mixing: HashMap::new(), unread: HashSet::new(), beyond, places, kept, cache };
        held.kept.clone().into_iter().for_each(|tap| held.read_back_if_kept(tap));
        Ok(held)
    }

    /// What is wrong with what the candidate holds of a tap beyond the program's part.
    pub(crate) fn beyond(&self, tap: usize) -> Option<&String> {
        self.beyond.get(&tap)
    }

    /// What the candidate holds of a tap of which it holds some rows.
    pub(crate) fn part(&self, tap: usize) -> Option<&Part> {
        self.parts.get(&tap)
    }

    /// What the candidate holds of a tap of which it holds some positions, and no more is known.
    pub(crate) fn positions(&self, tap: usize) -> Option<&Part> {
        self.parts.get(&tap).filter(|part| !part.is_enough)
    }

    /// Whether the candidate recorded a tap, or some of its positions.
    pub(crate) fn is_recorded(&self, tap: usize) -> bool {
        self.get(tap).is_some() || self.positions(tap).is_some()
    }

    /// What the candidate recorded of a tap: all of it, or the positions that it holds.
    pub(crate) fn recorded(&self, tap: usize) -> Option<ArrayD<f64>> {
        self.get(tap).map(array).or_else(|| self.positions(tap).map(|part| part.values.clone()))
    }

    /// Takes what is due for the rows of a tap that the candidate does not hold.
    pub(crate) fn complete(&mut self, tap: usize, due: &ArrayD<f64>) {
        let Some(part) = self.parts.get(&tap) else { return };
        let (whole, is_recorded) = (part.within(due), part.is_enough);
        self.take(tap, floats(whole), |own| Own { is_recorded, ..own });
    }

    /// What makes a tap of what is read as the candidate holds it.
    pub(crate) fn slice<'p>(&self, program: &'p Program, tap: usize) -> Slice<'p> {
        self.slice_without(program, tap, &BTreeSet::new())
    }

    /// The same without some taps.
    pub(crate) fn slice_without<'p>(&self, program: &'p Program, tap: usize, without: &BTreeSet<usize>) -> Slice<'p> {
        Slice::of(program, tap, |other| self.is_read_by(other, tap) && !without.contains(&other))
    }

    /// Whether another tap is computed from what the candidate holds of one.
    pub(crate) fn is_read_by(&self, tap: usize, other: usize) -> bool {
        let is_mixed = || self.mixing.get(&other).is_some_and(|mixed| mixed.contains(&tap));
        self.readable(tap).is_some() && !is_mixed()
    }

    /// Computes a tap without others of which it mixes positions that nobody knows.
    pub(crate) fn mixes(&mut self, tap: usize, others: BTreeSet<usize>) {
        self.mixing.insert(tap, others);
    }

    /// A tap of which some positions are held, with other values at the rest.
    pub(crate) fn with_other_rows(&self, tap: usize) -> Option<Tensor<'static>> {
        let (part, own) = self.positions(tap).zip(self.readable(tap))?;
        floats(part.within(&array(own).mapv(|x| 0.5 - 2.0 * x)))
    }

    /// Whether some tap is held in part, or read otherwise than it was recorded.
    pub(crate) fn is_in_part(&self) -> bool {
        !self.parts.is_empty() || !self.unread.is_empty() || !self.beyond.is_empty()
    }

    /// The tap and its step, by its index in the program.
    pub(crate) fn place(&self, tap: usize) -> Place {
        self.places[tap]
    }

    /// The places of all of the program's taps.
    pub(crate) fn places(&self) -> HashSet<Place> {
        self.places.iter().copied().collect()
    }

    pub(crate) fn get(&self, tap: usize) -> Option<&Tensor<'static>> {
        self.values.get(&tap).filter(|own| own.is_recorded).map(|own| &own.values)
    }

    /// Takes rows of an expert as they were found among what the candidate recorded: all of a tap, or those of some of its rows.
    pub(crate) fn put(&mut self, number: usize, tap: &ProgramTap, rows: ExpertRowsFound) {
        let before = self.values.remove(&number);
        let is_in_own_order = before.is_some_and(|own| own.is_in_own_order);
        self.parts.remove(&number);
        match rows {
            ExpertRowsFound::All(values) => {
                let is_readable = can_be_read(self.places[number].tap.last_site(), &array(&values));
                self.values.insert(number, Own { is_readable, is_in_own_order, ..Own::of(values) });
            }
            ExpertRowsFound::Some(part) if tap.view.dtype.kind() == Kind::Float => {
                drop(self.parts.insert(number, part))
            }
            ExpertRowsFound::Some(_) => {}
        }
    }

    /// Takes a tap's values in another layout than the comparison read them in.
    pub(crate) fn read_as(&mut self, tap: usize, values: ArrayD<f64>) {
        let Some(values) = floats(values) else { return };
        self.beyond.remove(&tap);
        self.take(tap, Some(values), |own| own);
    }

    /// Takes values of a tap, as they can be read, and what else is known of them.
    fn take(&mut self, tap: usize, values: Option<Tensor<'static>>, known: impl Fn(Own) -> Own) {
        let Some(values) = values else { return };
        let is_readable = can_be_read(self.places[tap].tap.last_site(), &array(&values));
        self.values.insert(tap, known(Own { is_readable, ..Own::of(values) }));
        self.read_back_if_kept(tap);
    }

    /// Takes nothing for the candidate's values of a tap: nothing shows whose its rows are.
    pub(crate) fn unread(&mut self, number: usize) {
        self.values.remove(&number);
        self.parts.remove(&number);
        self.unread.insert(number);
    }

    /// Whether nothing shows whose the rows of a tap are.
    pub(crate) fn is_unread(&self, number: usize) -> bool {
        self.unread.contains(&number)
    }

    /// Takes for the candidate's what follows from its own values.
    pub(crate) fn suppose(&mut self, tap: usize, values: Tensor<'static>) {
        self.values.insert(tap, Own { is_recorded: false, ..Own::of(values) });
    }

    /// Whether any rows of an expert are those of the reference in an order of the candidate's own.
    pub(crate) fn has_own_orders(&self) -> bool {
        self.values.values().any(|own| own.is_in_own_order)
    }

    /// Whether the rows of a tap are those of the reference in an order of the candidate's own.
    pub(crate) fn is_in_own_order(&self, tap: usize) -> bool {
        self.values.get(&tap).is_some_and(|own| own.is_in_own_order)
    }

    /// Leaves a tap out of what others are computed from.
    pub(crate) fn close(&mut self, tap: usize) {
        if let Some(own) = self.values.get_mut(&tap) {
            own.is_readable = false;
        }
    }

    /// Brings what stands by the first axes of a tap into another order: for each of their elements, in rows, which of the candidate's it is.
    pub(crate) fn rearrange(&mut self, tap: usize, order: &[usize]) {
        let Some(own) = self.values.get_mut(&tap) else { return };
        let (tensor, width) = (&own.values, own.values.len() / order.len().max(1));
        if width * order.len() != tensor.len() {
            return;
        }
        let from = |at: usize| order[at / width] * width + at % width;
        let all = 0..tensor.len();
        let values = match tensor.values() {
            Values::Int(values) => Values::from(all.map(|at| values[from(at)]).collect::<Vec<_>>()),
            Values::Float(values) => Values::from(all.map(|at| values[from(at)]).collect::<Vec<_>>()),
            Values::Complex(_) => return,
        };
        if let Some(ordered) = Tensor::new(tensor.dtype(), tensor.shape().to_vec(), values) {
            own.values = ordered;
        }
    }

    /// What the candidate holds at a tap, where what comes behind it can be computed from that.
    pub(crate) fn readable(&self, tap: usize) -> Option<&Tensor<'static>> {
        self.values.get(&tap).filter(|own| own.is_readable).map(|own| own.read_back.as_ref().unwrap_or(&own.values))
    }

    /// The same, as a slice reads it.
    pub(crate) fn value(&self, tap: usize) -> Option<Tensor<'_>> {
        self.readable(tap).map(Tensor::view)
    }

    /// What a slice makes of what the candidate holds, with some operations carried out otherwise.
    pub(crate) fn made(&self, bench: &Bench<'_>, slice: &Slice<'_>, edits: &[Edit]) -> Option<ArrayD<f64>> {
        slice.evaluate(bench, &|tap| self.value(tap), edits).ok().map(|made| array(&made))
    }

    /// The same, with the keys and values that it computes as they are read back from the cache.
    pub(crate) fn made_with_cache(
        &self,
        (bench, program): (&Bench<'_>, &Program),
        slice: &Slice<'_>,
        edits: &[Edit],
    ) -> Option<ArrayD<f64>> {
        self.made(bench, slice, &[&self.keeping(program, slice, rounded_to_type)[..], edits].concat())
    }

    /// The positions of a tap that the candidate holds.
    pub(crate) fn at_its_positions(&self, tap: usize, all: ArrayD<f64>) -> ArrayD<f64> {
        self.positions(tap).map(|part| part.rows_of(&all)).unwrap_or(all)
    }

    /// Whether what comes behind a tap is computed from what the candidate recorded of it.
    pub(crate) fn goes_on_with(&self, tap: usize) -> bool {
        self.get(tap).and(self.readable(tap)).is_some()
    }

    /// Whether a tap is read back from a cache whose type rounds it.
    pub(crate) fn is_kept(&self, tap: usize) -> bool {
        self.kept.contains(&tap)
    }

    /// The type that it takes keys and values to be kept in.
    pub(crate) fn cache(&self) -> Cache {
        self.cache
    }

    /// Takes them to be kept in another type.
    pub(crate) fn keeps_in(&mut self, program: &Program, cache: Cache) {
        self.values.values_mut().for_each(|own| own.read_back = None);
        (self.kept, self.cache) = (kept(program.taps(), cache), cache);
        self.kept.clone().into_iter().for_each(|tap| self.read_back_if_kept(tap));
    }

    /// Takes what the cache makes of a tap's values, where it is kept.
    fn read_back_if_kept(&mut self, tap: usize) {
        let cache = self.cache;
        if let Some(own) = self.values.get_mut(&tap).filter(|_| self.kept.contains(&tap)) {
            own.read_back = floats(rounded_to_type(cache, &array(&own.values)));
        }
    }

    /// What a slice makes of the keys and values that it computes: they are read back from the cache.
    pub(crate) fn keeping(&self, program: &Program, slice: &Slice<'_>, read_back: ReadBack) -> Vec<Edit> {
        if self.kept.is_empty() {
            return Vec::new();
        }
        let made = on_the_way(program, slice).into_iter();
        let cache = self.cache;
        let edit = |tap: usize| {
            let change = computed(&[&program.taps()[tap].view], move |x| Some(read_back(cache, &x[0])));
            Edit { at: At::Tap(tap), change }
        };
        made.filter(|&tap| self.is_kept(tap) && !self.is_read_by(tap, slice.target())).map(edit).collect()
    }

    /// Keys or values as they are read back from the cache.
    pub(crate) fn read_back(&self, value: &Tensor<'_>, read_back: ReadBack) -> Tensor<'static> {
        floats(read_back(self.cache, &array(value))).unwrap_or_else(|| value.clone().into_owned())
    }
}

/// What becomes of keys or values in a cache.
pub(crate) type ReadBack = fn(Cache, &ArrayD<f64>) -> ArrayD<f64>;

/// As they are read back.
pub(crate) fn rounded_to_type(cache: Cache, heads: &ArrayD<f64>) -> ArrayD<f64> {
    let mut heads = heads.clone();
    keep(cache, &mut heads);
    heads
}

/// As they are read back where what lies so near the edge of a step that rounding before may take it over falls to its other side.
pub(crate) fn beside_an_edge(cache: Cache, heads: &ArrayD<f64>) -> ArrayD<f64> {
    let moved = |times: f64| rounded_to_type(cache, &(heads * times));
    let (mut own, below, above) = (moved(1.0), moved(1.0 - NEAR_AN_EDGE), moved(1.0 + NEAR_AN_EDGE));
    ndarray::Zip::from(&mut own).and(&below).and(&above).for_each(|own, &below, &above| {
        *own = if above == *own { below } else { above };
    });
    own
}

/// What a type of cache rounds.
fn kept(taps: &[ProgramTap], cache: Cache) -> BTreeSet<usize> {
    if cache == Cache::F32 { BTreeSet::new() } else { keys_and_values(taps) }
}

/// The keys and values of a decoder's layers as they are kept: keys after what is done to them last.
pub(crate) fn keys_and_values(taps: &[ProgramTap]) -> BTreeSet<usize> {
    const KEYS: [Site; 3] = [Site::K, Site::KNorm, Site::KRope];
    let mut last: BTreeMap<_, (Option<usize>, usize)> = BTreeMap::new();
    for (number, place) in taps.iter().map(place_of).enumerate() {
        let (site, key) = (place.tap.site, KEYS.iter().position(|site| *site == place.tap.site));
        if key.is_some() || site == Site::V {
            let one = last.entry((place.tap.layer, place.step, key.is_some())).or_insert((key, number));
            *one = (*one).max((key, number));
        }
    }
    last.into_values().map(|(_, number)| number).collect()
}

/// The place of a program's tap.
pub(crate) fn place_of(tap: &ProgramTap) -> Place {
    Place { tap: Tap::named(&tap.tap), step: tap.step as u32 }
}

/// In which layouts the taps of each name were compared, in whichever layer and of whichever expert, and in which steps.
type Layouts<'a> = HashMap<String, Vec<(u32, &'a Layout)>>;

fn layouts<'a>(taps: &'a [TapReport]) -> Layouts<'a> {
    let mut layouts: Layouts<'a> = HashMap::new();
    if taps.iter().any(is_read_alike) {
        for tap in taps {
            let layout = tap.layout.as_ref().map(|layout| (tap.place.step, layout));
            layouts.entry(without_numbers(tap.place)).or_default().extend(layout);
        }
    }
    layouts
}

/// Whether a tap that was not compared is read in the layout of others of its name: it is of other experts, its rows stand in an order of their own, or what
/// it reads may explain its error, or no order of its axes is the reference's.
fn is_read_alike(report: &TapReport) -> bool {
    report.is_of_other_experts()
        || report.is_in_own_order()
        || report.is_in_an_unknown_order()
        || report.layout.is_none() && report.is_inconclusive()
}

/// The candidate's values of a tap. What was not compared because of other experts stands as others of its name do.
fn values_of(
    candidate: &Candidate<'_>,
    report: &TapReport,
    layouts: &Layouts<'_>,
) -> Result<Option<Vec<f64>>, ReplayError> {
    if !is_read_alike(report) {
        return Ok(candidate.values.values(report)?);
    }
    let alike = layouts.get(&without_numbers(report.place)).map_or(&[][..], Vec::as_slice);
    let of_the_step = alike.iter().filter(|(step, _)| *step == report.place.step);
    let mut nearest: Vec<&Layout> = of_the_step.map(|(_, layout)| *layout).collect();
    if nearest.is_empty() {
        nearest.extend(alike.iter().map(|(_, layout)| *layout));
    }
    let layout = match nearest.split_first() {
        None if report.is_in_an_unknown_order() => &Layout::Reshaped,
        None => &Layout::Same,
        Some((first, others)) if others.iter().all(|other| other == first) => first,
        Some(_) => return Ok(None),
    };
    Ok(candidate.values.values_in(report.place, layout)?)
}

/// A tap's name in whichever layer, and of whichever expert.
fn without_numbers(place: Place) -> String {
    place.tap.to_string().split('.').filter(|part| part.parse::<usize>().is_err()).collect::<Vec<_>>().join(".")
}

/// A tap, its step and its extents.
fn extents(tap: &ProgramTap) -> (&str, usize, &[usize]) {
    (&tap.tap, tap.step, &tap.view.shape)
}

/// What the candidate holds of an expert to which it sent other tokens than the reference: no comparison with the reference has read it. Its rows are
/// taken in the order of the tokens, as those of other experts are.
fn rerouted(tap: &ProgramTap, candidate: &Candidate<'_>) -> Result<Option<Tensor<'static>>, ReplayError> {
    let Place { tap: name, step } = place_of(tap);
    let entry = candidate.dump.entry(name, step);
    let Some(entry) = entry.filter(|entry| entry.shape == tap.view.shape && entry.rows.is_none()) else {
        return Ok(None);
    };
    Ok(tensor(tap, candidate.dump.read(&entry)?.values().to_f64()))
}

/// The rows of an expert that the candidate holds, where the program's expert takes all tokens.
fn part(tap: &ProgramTap, candidate: &Candidate<'_>) -> Result<Option<Part>, ReplayError> {
    let Place { tap: name, step } = place_of(tap);
    let Some(entry) = candidate.dump.entry(name, step).filter(|_| is_of_expert(name)) else { return Ok(None) };
    let Some(Rows::List(rows)) = entry.rows.clone() else { return Ok(None) };
    let is_there = rows.iter().all(|&row| tap.view.shape.first().is_some_and(|&count| row < count));
    let is_alike = entry.shape.get(1..) == tap.view.shape.get(1..) && entry.shape.first() == Some(&rows.len());
    if !is_there || !is_alike || tap.view.dtype.kind() != Kind::Float {
        return Ok(None);
    }
    let values = ArrayD::from_shape_vec(IxDyn(&entry.shape), candidate.dump.read(&entry)?.values().to_f64());
    Ok(values.ok().map(|values| Part::of_expert(rows, values)))
}

/// Whether values are of the kind that the program has there: no fractions where it has whole numbers.
fn is_of_its_kind(tap: &ProgramTap, values: &Tensor<'_>) -> bool {
    (tap.view.dtype.kind() == Kind::Int) == (values.dtype().kind() == Kind::Int)
}

/// Another right recording of the same values, which were rounded by `unit`.
pub(crate) fn moved(own: &Tensor<'_>, unit: f64, site: Site) -> Tensor<'static> {
    let other = match own.values() {
        Values::Float(_) => {
            let (own, mut other) = (array(own), jittered(&array(own), unit, 1));
            // The fill of masked scores is no number that is rounded.
            other.zip_mut_with(&own, |other, &own| *other = if both_count(site, own, own) { *other } else { own });
            floats(other)
        }
        _ => None,
    };
    other.unwrap_or_else(|| own.clone().into_owned())
}

impl Held {
    /// The taps of these indices, each once.
    pub(crate) fn taps_of(&self, taps: impl Iterator<Item = usize>) -> Vec<Tap> {
        taps.map(|tap| self.place(tap).tap).collect::<BTreeSet<_>>().into_iter().collect()
    }

    /// The taps that a slice makes on the way, and that are not read as the candidate holds them.
    pub(crate) fn between(&self, program: &Program, slice: &Slice<'_>) -> Vec<Tap> {
        self.taps_of(on_the_way(program, slice).into_iter().filter(|&tap| !self.is_read_by(tap, slice.target())))
    }

    /// Whether two taps are made by the same line of the reference, in whichever layer and step.
    pub(crate) fn are_of_one_operation(&self, program: &Program, a: usize, b: usize) -> bool {
        let class = |tap: usize| program.class(program.taps()[tap].op);
        class(a) == class(b) && self.place(a).tap.site == self.place(b).tap.site
    }
}
