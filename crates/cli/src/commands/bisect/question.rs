//! Chooses the next question to the engine: the fewest taps and rows that show more than is known.

use std::collections::{BTreeSet, HashMap};

use firstdiff_compare::{Graph, Place, Reason, Report, Status, is_of_expert};
use firstdiff_trace::{NamedRows, Rows, Site, Tap};

use crate::commands::bisect::cells::StepAlignment;
use crate::commands::bisect::reference::BisectReference;
use crate::driver::engine::{ANY_STEP, Question};
use crate::driver::evidence::CollectedTaps;

/// The most runs: halving the layers takes its logarithm, and three are for the ends.
pub(crate) fn most_runs(layers: u32) -> usize {
    (layers.max(1).next_power_of_two().ilog2() as usize + 3).max(6)
}

/// The shares of a full dump's bytes that one run of a search, and all runs together, should stay below, in a model of 22 layers or more. In a model of few
/// layers a run costs as much, while a full dump is small.
const ONE_RUN: f64 = 0.0035;
const ALL_RUNS: f64 = 0.0095;
/// The same for a run that checks one decode step, on the way to the prefill.
const ONE_STEP: f64 = 0.001;
const MANY_LAYERS: f64 = 22.0;

/// What is known, and what can be asked.
pub(crate) struct SearchState<'a> {
    pub(crate) reference: &'a BisectReference,
    pub(crate) evidence: &'a CollectedTaps,
    pub(crate) graph: &'a Graph,
    pub(crate) report: &'a Report,
    /// Taps that were requested and not written.
    pub(crate) absent: &'a BTreeSet<Tap>,
    /// Taps whose neighbours were checked in all rows.
    pub(crate) confirmed: &'a mut BTreeSet<Place>,
    pub(crate) layers: u32,
    pub(crate) tokens: usize,
    /// The cells that steps stand for, where the engine's chunks differ from the reference's.
    pub(crate) cells: Option<&'a StepAlignment>,
    pub(crate) last_step: u32,
    /// Bytes of a full dump.
    pub(crate) full: f64,
    pub(crate) runs_left: usize,
}

const ALL: Rows = Rows::Named(NamedRows::All);
const LAST: Rows = Rows::Named(NamedRows::Last);

/// The first question: whether anything is wrong at the end, in any step.
pub(crate) fn first(reference: &BisectReference, layers: u32, last_step: Option<u32>) -> Question {
    let there = |tap: &Tap| reference.has(Place { step: 0, tap: *tap });
    let mut taps: Vec<Tap> = head_and_last_layer(layers).into_iter().filter(there).collect();
    if taps.is_empty() {
        taps.push(Tap { layer: None, site: Site::Logits });
    }
    taps.sort();
    // For a model it is not yet known how many steps the engine makes.
    Question { taps, steps: (0, last_step.unwrap_or(ANY_STEP)), rows: LAST }
}

/// The input of the head, and what that is computed from.
fn head_and_last_layer(layers: u32) -> [Tap; 2] {
    [Tap { layer: None, site: Site::FinalNorm }, Tap::layer(layers.saturating_sub(1), Site::H)]
}

impl SearchState<'_> {
    /// The next question, and its purpose; `None` where nothing is left to ask.
    pub(crate) fn next(&mut self) -> Option<(Question, &'static str)> {
        let (question, why) = match self.first_suspect() {
            Some(suspect) => self.by_decode_step(suspect).or_else(|| self.narrow_down(suspect)),
            None => self.confirm_parity(),
        }?;
        // Only the engine knows which axis of another tap is that of the tokens: such a tap is requested whole.
        let is_open = question.taps.iter().any(Tap::is_open);
        let rows = if is_open { ALL } else { question.rows };
        Some((Question { rows, ..question }, why))
    }

    /// The place that differs, requested again, where only one run wrote it: before it is reported, it must be the same twice.
    pub(crate) fn repetition(&self) -> Option<(Place, Question)> {
        let wrong = self.first_wrong()?;
        if self.repeated(wrong) {
            return None;
        }
        let place = self.use_other_step(wrong).unwrap_or(wrong);
        let (taps, steps) = (vec![place.tap], (place.step, place.step));
        let rows = if place.tap.is_open() { ALL } else { self.rows(place, false) };
        Some((wrong, Question { taps, steps, rows }))
    }

    /// Whether the first wrong tap can be requested again at low cost.
    pub(crate) fn repeats_cheaply(&self, question: &Question) -> bool {
        let cost = |tap: &Tap| self.bytes_of_rows(Place { step: question.steps.0, tap: *tap }, &question.rows);
        question.taps.iter().map(cost).sum::<f64>() <= ALL_RUNS * self.share_base()
    }

    /// With an engine that writes all rows, a decode step in which the same tap is wrong too is used instead of the prefill.
    fn use_other_step(&self, place: Place) -> Option<Place> {
        if place.step > 0 || !self.evidence.rows_ignored || self.cells.is_some() {
            return None;
        }
        let differs = |p: &Place| self.report.tap(p.tap, p.step).is_some_and(|t| t.status.differs());
        (1..=self.last_step).map(|step| Place { step, ..place }).find(differs)
    }

    /// The first place that differs.
    fn first_wrong(&self) -> Option<Place> {
        self.report.first.as_ref().map(|first| self.report.taps[first.index].place)
    }

    /// Whether two runs wrote the wrong part of a place, or of a stream computed from it, which would vary with it.
    fn repeated(&self, place: Place) -> bool {
        let rows = if place.step == 0 || self.cells.is_some() { self.wrong_rows(place) } else { Vec::new() };
        let twice = |place: Place, rows: &[usize]| match self.cells {
            Some(cells) => cells.repeated(self.evidence, place.step, place.tap, rows),
            None => self.evidence.repeats_of(place, rows),
        };
        let stream = |p: &&Place| matches!(p.tap.site, Site::HAttn | Site::H | Site::FinalNorm | Site::Logits);
        let behind = self.index(place).map_or(self.graph.places().len(), |at| at + 1);
        twice(place, &rows)
            || self.use_other_step(place).is_some_and(|p| twice(p, &[]))
            || self.graph.places()[behind..]
                .iter()
                .filter(|p| p.step == place.step)
                .filter(stream)
                .any(|p| twice(*p, &[]))
    }

    /// The index of a place in the order of production.
    fn index(&self, place: Place) -> Option<usize> {
        self.graph.places().iter().position(|p| *p == place)
    }

    /// The first place that differs, else the first that is undecided.
    fn first_suspect(&self) -> Option<usize> {
        if let Some(first) = self.first_wrong() {
            return self.index(first);
        }
        let unclear = |t: &&firstdiff_compare::TapReport| t.reason == Some(Reason::Inconclusive);
        self.report.taps.iter().find(unclear).and_then(|t| self.index(t.place))
    }

    fn is_collected(&self, place: Place, row: Option<usize>) -> bool {
        match self.cells {
            Some(cells) => cells.is_collected(self.evidence, place.step, place.tap, row),
            None => self.evidence.is_collected(place, row),
        }
    }

    fn any_row(&self, place: Place) -> Option<usize> {
        (place.step == 0).then(|| self.tokens.saturating_sub(1))
    }

    fn confirm_parity(&self) -> Option<(Question, &'static str)> {
        let steps = (0, self.last_step);
        let can = |tap: Tap| self.can_ask(Place { step: 0, tap });
        let ends: Vec<Tap> = head_and_last_layer(self.layers).into_iter().filter(|&tap| can(tap)).collect();
        let logits = Tap { layer: None, site: Site::Logits };
        let first = Place { step: 0, tap: logits };
        // Parity is claimed for what was seen: the head reads every position by itself, so that all of its output is checked.
        let mut taps = [ends, vec![logits].into_iter().filter(|&tap| can(tap)).collect()].concat();
        taps.sort();
        if can(logits) && !self.is_collected(first, self.any_row(first)) {
            // They are wide: only one step at first.
            let steps = if self.cells.is_some() { steps } else { (0, 0) };
            return Some((Question { taps, steps, rows: LAST }, "whether the head agrees too"));
        }
        if taps.iter().any(|&tap| !self.is_collected(Place { step: 0, tap }, None)) {
            return Some((Question { taps, steps, rows: ALL }, "whether all positions agree"));
        }
        None
    }

    /// Narrows down the place that differs, and then checks all of it.
    fn narrow_down(&mut self, suspect: usize) -> Option<(Question, &'static str)> {
        self.search(suspect).or_else(|| self.confirmation(suspect))
    }

    /// The unknown taps before the place that differs.
    fn search(&self, suspect: usize) -> Option<(Question, &'static str)> {
        let place = self.graph.places()[suspect];
        let status: HashMap<Place, Status> = self.report.taps.iter().map(|t| (t.place, t.status)).collect();
        let judged = |i: usize| status.get(&self.graph.places()[i]).is_some_and(|s| s.agrees() || s.differs());
        let askable = |p: &Place| p.step == place.step && self.can_ask(*p);
        let (before, passed) = self.graph.nearest_before(suspect, judged);
        let low = self.last_agreeing_values(&before, place);
        let within = |i: &usize| low.is_none_or(|low| *i >= low);
        let at = |i: usize| self.graph.places()[i];
        let layers_lie_between =
            passed.iter().filter(|i| within(i)).any(|&i| at(i).tap.site == Site::H && askable(&at(i)));
        let rows = self.rows(place, layers_lie_between);
        let missing = |place: Place| !self.covers(place, &rows);
        let open: Vec<Place> =
            passed.iter().filter(|i| within(i)).map(|&i| at(i)).filter(|p| askable(p) && missing(*p)).collect();
        // Agreement in other rows shows nothing about these.
        let elsewhere: Vec<Place> = before.iter().map(|&i| at(i)).filter(|p| askable(p) && missing(*p)).collect();
        let streams: Vec<Place> = open.iter().copied().filter(|p| p.tap.site == Site::H).collect();
        let (mut taps, why) = if !streams.is_empty() {
            (self.probes(&streams, place, &rows), "between which layers")
        } else if !open.is_empty() {
            (self.taps_of_layer(&open, &rows), "where in between")
        } else if !elsewhere.is_empty() {
            // For keys and values of a position: all that they are computed from there.
            let stream = self.stream_before(place).filter(|_| place.tap.site.is_attended());
            let since = stream.and_then(|stream| self.index(stream)).map_or(suspect..suspect, |at| at..suspect);
            let made_of = self.graph.places()[since].iter().filter(|p| askable(p) && missing(**p));
            (made_of.map(|p| p.tap).collect(), "whether what it reads agrees there")
        } else {
            return None;
        };
        taps.extend(elsewhere.iter().map(|p| p.tap));
        // The same again, in the rows of the search: an engine whose results vary must not be bisected.
        if !self.evidence.has_repeats() || missing(place) {
            taps.push(place.tap);
        }
        taps.sort();
        taps.dedup();
        Some((Question { taps, steps: (place.step, place.step), rows }, why))
    }

    /// With an engine that writes all rows, a decode step that is wrong as well shows in one row which tap of the prefill to ask for.
    fn by_decode_step(&mut self, suspect: usize) -> Option<(Question, &'static str)> {
        let place = self.graph.places()[suspect];
        if place.step > 0 || self.tokens < 3 || !self.evidence.rows_ignored || self.cells.is_some() {
            return None;
        }
        let differs = |p: &Place| self.report.tap(p.tap, p.step).is_some_and(|t| t.status.differs());
        let step = (1..=self.last_step).find(|&step| differs(&Place { step, ..place }))?;
        let wrong = self.graph.places().iter().position(|p| p.step == step && differs(p))?;
        if let Some(search) = self.search(wrong) {
            return Some(search);
        }
        let in_prefill = |i: usize| Place { step: 0, ..self.graph.places()[i] };
        let reads = self.graph.nearest_before(wrong, |i| self.can_ask(in_prefill(i))).0;
        let mut places: Vec<Place> =
            reads.into_iter().chain([wrong]).map(in_prefill).filter(|p| self.can_ask(*p)).collect();
        places.retain(|p| !self.is_collected(*p, None));
        let mut taps: Vec<Tap> = places.iter().map(|p| p.tap).collect();
        taps.sort();
        taps.dedup();
        (places.contains(&in_prefill(wrong)))
            .then_some((Question { taps, steps: (0, 0), rows: ALL }, "whether it begins there in the prefill"))
    }

    /// Whether the engine may be asked for a place.
    fn can_ask(&self, place: Place) -> bool {
        // In which order an engine stores the rows of an expert is unknown until it has written the choice of experts too.
        self.reference.has(place) && !self.absent.contains(&place.tap) && !is_of_expert(place.tap)
    }

    /// The rows in which the difference is followed: one that differs; while layers are searched, first the middle one and the last.
    fn rows(&self, place: Place, search: bool) -> Rows {
        if place.step > 0 || self.tokens < 3 || self.evidence.rows_ignored {
            return ALL;
        }
        let (middle, last) = (self.tokens / 2, self.tokens - 1);
        let wrong = self.wrong_rows(place);
        if (search && !self.seen_in_the_middle(middle)) || wrong.is_empty() {
            return Rows::List(vec![middle, last]);
        }
        Rows::List(vec![wrong[(wrong.len() - 1) / 2]])
    }

    /// The wrong rows of the first tap that differs.
    fn wrong_rows(&self, place: Place) -> Vec<usize> {
        let first = self.report.first.as_ref().filter(|first| self.report.taps[first.index].place == place);
        let Some(first) = first else { return Vec::new() };
        let tap = &self.report.taps[first.index];
        let allowed = tap.allowed.unwrap_or(0.0);
        let nmse = &first.anatomy.positions;
        let wrong = (0..nmse.len()).filter(|&row| nmse[row] > allowed || nmse[row].is_nan());
        wrong.map(|row| tap.position(row)).collect()
    }

    /// Whether any tap was checked in the middle yet: the last position alone hides errors that only earlier ones show.
    fn seen_in_the_middle(&self, middle: usize) -> bool {
        self.graph.places().iter().any(|&place| place.step == 0 && self.is_collected(place, Some(middle)))
    }

    fn covers(&self, place: Place, rows: &Rows) -> bool {
        match (rows, place.step) {
            (Rows::List(list), 0) => list.iter().all(|&row| self.is_collected(place, Some(row))),
            _ => self.is_collected(place, None),
        }
    }

    /// With an engine that writes all rows, values stand for the stream they are computed from: nothing before the last values that agree is checked.
    fn last_agreeing_values(&self, before: &[usize], place: Place) -> Option<usize> {
        let at = |i: usize| self.graph.places()[i];
        let last = before.iter().rev().map(|&i| at(i)).find(|p| p.step == place.step && p.tap.site == Site::V)?;
        let stream = match last.tap.layer?.checked_sub(1) {
            Some(layer) => Tap::layer(layer, Site::H),
            None => Tap { layer: None, site: Site::H0 },
        };
        self.graph.places().iter().position(|p| *p == Place { tap: stream, ..last })
    }

    /// The number of bytes that counts as a whole run when shares are computed.
    fn share_base(&self) -> f64 {
        self.full * (MANY_LAYERS / f64::from(self.layers.max(1))).max(1.0)
    }

    fn bytes_of_rows(&self, place: Place, rows: &Rows) -> f64 {
        let bytes = (self.reference.elements(place, self.tokens) * self.evidence.dtype().size()) as f64;
        match (rows, place.step) {
            (Rows::List(list), 0) => bytes * list.len() as f64 / self.tokens.max(1) as f64,
            _ => bytes,
        }
    }

    /// Some of the streams, evenly spaced: as many as few bytes allow, and as the remaining runs require.
    fn probes(&self, streams: &[Place], suspect: Place, rows: &Rows) -> Vec<Tap> {
        let stand_in = |stream: &Place| {
            let values = Place { tap: Tap::layer(stream.tap.layer.unwrap_or(0) + 1, Site::V), ..*stream };
            let narrow = 2.0 * self.bytes_of_rows(values, rows) <= self.bytes_of_rows(*stream, rows);
            let is_before = || self.index(values) < self.index(suspect);
            let usable = self.reference.has(values) && !self.absent.contains(&values.tap) && is_before();
            (self.evidence.rows_ignored && narrow && usable && !self.covers(values, rows)).then_some(values)
        };
        let values: Vec<Place> = streams.iter().filter_map(stand_in).collect();
        let from = if values.is_empty() { streams } else { &values[..] };
        let dearest = from.iter().map(|p| self.bytes_of_rows(*p, rows)).fold(1.0, f64::max);
        let cheap = (ONE_RUN * self.share_base() / dearest) as usize;
        let even = (f64::from(self.layers).sqrt().ceil() as usize).saturating_sub(1).max(1);
        let left = self.runs_left.saturating_sub(3).max(1) as f64;
        let due = ((streams.len() as f64 + 1.0).powf(1.0 / left).ceil() as usize).saturating_sub(1);
        let count = cheap.clamp(1, even).max(due).min(from.len());
        (1..=count).map(|n| from[(n * (from.len() + 1) / (count + 1)).clamp(1, from.len()) - 1].tap).collect()
    }

    /// The taps of a layer: the narrow ones first, the wide ones only where no others are left.
    fn taps_of_layer(&self, open: &[Place], rows: &Rows) -> Vec<Tap> {
        let width = |p: &Place| self.reference.elements(*p, self.tokens);
        let stream = Place { tap: Tap::layer(0, Site::H), ..open[0] };
        let narrow: Vec<Place> = open.iter().copied().filter(|p| width(p) <= 2 * width(&stream)).collect();
        let mut from = if narrow.is_empty() || self.runs_left <= 2 { open.to_vec() } else { narrow };
        if !self.evidence.rows_ignored {
            return from.iter().map(|p| p.tap).collect();
        }
        // The stream after attention divides the layer in two; then the cheapest taps.
        from.sort_by_key(|p| (p.tap.site != Site::HAttn, width(p)));
        let (mut taps, mut bytes) = (Vec::new(), 0.0);
        for place in from {
            bytes += self.bytes_of_rows(place, rows);
            let most = if place.step > 0 { ONE_STEP } else { ONE_RUN };
            if !taps.is_empty() && bytes > most * self.share_base() && self.runs_left > 2 {
                break;
            }
            taps.push(place.tap);
        }
        taps
    }

    /// All rows of the taps around the first wrong one: agreement in one row is not agreement in all.
    fn confirmation(&mut self, suspect: usize) -> Option<(Question, &'static str)> {
        let place = self.graph.places()[suspect];
        if self.confirmed.contains(&place) {
            return None;
        }
        let at = |i: usize| self.graph.places()[i];
        let mut list = Vec::new();
        // Where it reads taps that the engine does not write: what those are computed from.
        let written = |i: usize| self.can_ask(at(i));
        let reads: Vec<Place> = self.graph.nearest_before(suspect, written).0.into_iter().map(at).collect();
        list.extend(reads.iter().copied().filter(|p| p.tap.site.is_attended() && p.tap != place.tap));
        // Keys and values of other positions are narrow, and where they are wrong the rest need not be checked.
        let unseen: Vec<Tap> =
            list.iter().filter(|p| p.step == place.step && !self.is_collected(**p, None)).map(|p| p.tap).collect();
        if place.step == 0 && self.cells.is_none() && !unseen.is_empty() && self.runs_left > 2 {
            return Some((
                Question { taps: unseen, steps: (0, 0), rows: ALL },
                "whether what it reads of other positions agrees",
            ));
        }
        if !self.confirmed.insert(place) {
            return None;
        }
        list.extend(self.stream_before(place));
        // A state that it reads from an earlier step.
        list.extend(reads.iter().copied().filter(|p| p.step < place.step && !p.tap.site.is_attended()));
        // With other chunks, the first question saw only the last position of each.
        let few = self.cells.is_some() && place.step > 0;
        let vital = if few { usize::MAX } else { list.len() };
        list.extend(reads.iter().copied().filter(|p| !p.tap.site.is_attended()));
        list.push(place);
        // The steps before must agree; one more step distinguishes causes that give the same result in the first.
        let steps = if place.step > 0 { 0..=(place.step + 1).min(self.last_step) } else { 0..=0 };
        let open = |tap: Tap| steps.clone().any(|step| !self.is_collected(Place { step, tap }, None));
        // A wrong tap must be seen twice: asked for together with others, that costs no extra run.
        let again = |tap: Tap| tap == place.tap && !self.repeated(place);
        // The cost of a run that only repeats is reserved.
        let repetition = if self.repeated(place) { 0.0 } else { self.bytes_of_rows(place, &self.rows(place, false)) };
        let (mut taps, mut bytes) = (Vec::new(), self.evidence.bytes as f64 + repetition);
        for (at, p) in list.into_iter().enumerate() {
            if taps.contains(&p.tap) || self.absent.contains(&p.tap) || !self.reference.has(p) {
                continue;
            }
            if !open(p.tap) && !again(p.tap) {
                continue;
            }
            let cost: f64 = steps.clone().map(|step| self.bytes_of_rows(Place { step, tap: p.tap }, &ALL)).sum();
            let last = self.runs_left < 2 && again(p.tap);
            if at < vital || last || bytes + cost <= ALL_RUNS * self.share_base() {
                bytes += cost;
                taps.push(p.tap);
            }
        }
        taps.sort();
        taps.iter().any(|&tap| open(tap)).then_some((
            Question { taps, steps: (*steps.start(), *steps.end()), rows: ALL },
            "whether that holds in all positions",
        ))
    }

    /// The residual stream that all before `place` was added to.
    fn stream_before(&self, place: Place) -> Option<Place> {
        let is_stream = |p: &&Place| p.step == place.step && matches!(p.tap.site, Site::H0 | Site::H | Site::HAttn);
        let known = |p: &&Place| self.reference.has(**p) && !self.absent.contains(&p.tap);
        self.graph.places()[..self.index(place)?].iter().rev().filter(is_stream).find(known).copied()
    }
}
