//! What would come out if a mistake were made? Steps run as a set of edits says, on what the candidate recorded, or from the tokens.

use std::sync::{Arc, Mutex};

use firstdiff_compare::Place;
use firstdiff_model::{Chunk, Op, Profile, Step, keep};
use firstdiff_trace::{Site, Tap};
use foldhash::{HashMap, HashMapExt, HashSet, HashSetExt};
use ndarray::ArrayD;

use crate::mistakes::{Edit, StepContext};
use crate::replay::recorded::Recorded;
use crate::replay::{can_be_read, joined};

/// A value, shared.
type Value = Arc<ArrayD<f64>>;

/// Values that no edit touches, in each arithmetic: whether in f64.
pub(crate) type Shared = Mutex<HashMap<(Place, bool), Option<Value>>>;

/// The run under a set of edits.
pub(crate) struct Simulation<'r, 'a> {
    recorded: &'r Recorded<'a>,
    profile: Profile,
    shared: &'r Shared,
    edits: HashMap<Tap, Vec<&'r Edit>>,
    /// What is never read as recorded, though it was.
    target: Place,
    /// How many of the tokens are run.
    cut: Option<usize>,
    /// The first step in which mistakes are made, and the last.
    from: u32,
    until: u32,
    memo: HashMap<Place, Option<Value>>,
    touched: HashMap<Place, bool>,
    /// What is being computed.
    busy: HashSet<Place>,
}

impl<'r, 'a> Simulation<'r, 'a> {
    pub(crate) fn new(
        recorded: &'r Recorded<'a>,
        profile: Profile,
        shared: &'r Shared,
        edits: impl IntoIterator<Item = &'r Edit>,
        target: Place,
        cut: Option<usize>,
    ) -> Simulation<'r, 'a> {
        let mut by_tap: HashMap<Tap, Vec<&Edit>> = HashMap::new();
        for edit in edits {
            by_tap.entry(edit.tap).or_default().push(edit);
        }
        Simulation {
            recorded,
            profile,
            shared,
            edits: by_tap,
            target,
            cut,
            from: 0,
            until: u32::MAX,
            memo: HashMap::new(),
            touched: HashMap::new(),
            busy: HashSet::new(),
        }
    }

    /// The same with its mistakes made from a decode step on.
    pub(crate) fn beginning(self, from: u32) -> Simulation<'r, 'a> {
        Simulation { from, ..self }
    }

    /// The same with its mistakes made up to a step.
    pub(crate) fn ending(self, until: u32) -> Simulation<'r, 'a> {
        Simulation { until, ..self }
    }

    /// The target's value; `None` where it cannot be computed.
    pub(crate) fn run(mut self) -> Option<ArrayD<f64>> {
        self.value(self.target).map(Arc::unwrap_or_clone)
    }

    /// What a step reads here, as the candidate recorded it or as computed.
    pub(crate) fn inputs(&mut self, step: &Step, number: u32) -> Option<Vec<ArrayD<f64>>> {
        let reads = self.reads(step, number);
        self.read(step, &reads, number)
    }

    fn read(&mut self, step: &Step, reads: &[Tap], number: u32) -> Option<Vec<ArrayD<f64>>> {
        let cached = matches!(step.op, Op::Qk | Op::Context);
        let mut inputs = Vec::new();
        for (at, &tap) in reads.iter().enumerate() {
            if cached && at == 1 {
                let parts: Option<Vec<ArrayD<f64>>> =
                    (0..=number).map(|step| self.value(Place { step, tap }).map(Arc::unwrap_or_clone)).collect();
                let mut whole = joined(&parts?).ok()?;
                keep(self.recorded.cache, &mut whole);
                inputs.push(whole);
            } else {
                inputs.push(self.value(Place { step: number, tap }).map(Arc::unwrap_or_clone)?);
            }
        }
        Some(inputs)
    }

    /// A value, as the candidate recorded it or as computed; the target's is always computed.
    pub(crate) fn value(&mut self, place: Place) -> Option<Value> {
        if let Some(known) = self.memo.get(&place) {
            return known.clone();
        }
        let touched = self.is_touched(place);
        let exact = self.profile == Profile::Exact;
        if !touched
            && place != self.target
            && let Some(known) = self.shared.lock().ok()?.get(&(place, exact))
        {
            return known.clone();
        }
        // A mistake may read a tap that is made of its own output: that cannot be computed.
        if !self.busy.insert(place) {
            return None;
        }
        let value = if place != self.target && self.recorded.is_whole(place) {
            self.recorded.read(place).ok().filter(|x| can_be_read(place.tap.site, x)).map(Arc::new)
        } else {
            self.computed(place).map(Arc::new)
        };
        self.busy.remove(&place);
        if touched || place == self.target {
            self.take_up(place, value.clone());
        } else {
            self.shared.lock().ok()?.insert((place, exact), value.clone());
        }
        if matches!(place.tap.site, Site::Context) {
            // Squares of the number of tokens, for each head: read by nobody else.
            self.memo.retain(|p, _| !matches!(p.tap.site, Site::Qk | Site::Scores | Site::Probs));
        }
        value
    }

    fn computed(&mut self, place: Place) -> Option<ArrayD<f64>> {
        let recorded = self.recorded;
        let step = recorded.model.plan.step(place.tap)?;
        let inputs = self.inputs(step, place.step)?;
        self.carried_out(step, &inputs, place.step, &self.chain(place), 1)
    }

    /// What a step gives on these inputs with these mistakes made in it; the inputs may hold the rows of several runs.
    pub(crate) fn carried_out(
        &self,
        step: &Step,
        inputs: &[ArrayD<f64>],
        number: u32,
        chain: &[&Edit],
        runs: usize,
    ) -> Option<ArrayD<f64>> {
        let recorded = self.recorded;
        let tokens = recorded.tokens.get(number as usize)?;
        let tokens = &tokens[..self.cut.unwrap_or(tokens.len()).min(tokens.len())];
        if tokens.is_empty() {
            return None;
        }
        let at = StepContext {
            step,
            inputs,
            chunk: Chunk { tokens: &tokens.repeat(runs), start: recorded.start(number) },
            prefill: recorded.tokens.first().map_or(0, Vec::len),
            model: recorded.model,
            profile: self.profile,
            inner: &[],
            unread_from: None,
        };
        at.with(chain)
    }

    /// What a step reads here: a mistake may read other taps.
    fn reads(&self, step: &Step, number: u32) -> Vec<Tap> {
        let chain = self.chain(Place { tap: step.tap, step: number });
        chain.iter().map(|e| &e.reads).find(|reads| **reads != step.reads).unwrap_or(&step.reads).clone()
    }

    /// The mistakes made in a step.
    pub(crate) fn chain(&self, place: Place) -> Vec<&'r Edit> {
        let made = |e: &&'r Edit| place.step >= e.onset.map_or(self.from, |onset| onset.step.max(self.from));
        let all = self.edits.get(&place.tap).filter(|_| place.step <= self.until);
        all.into_iter().flatten().copied().filter(made).collect()
    }

    /// Whether a value is to be computed, and is not as in the run without mistakes.
    pub(crate) fn is_computed(&mut self, place: Place) -> bool {
        (place == self.target || !self.recorded.is_whole(place)) && self.is_touched(place)
    }

    /// Takes over a value that was computed elsewhere.
    pub(crate) fn put(&mut self, place: Place, value: ArrayD<f64>) {
        self.take_up(place, Some(Arc::new(value)));
    }

    /// Takes up a value. One that came out as without mistakes, as a rotation's at position 0 does, leaves what is made of it as it is.
    fn take_up(&mut self, place: Place, value: Option<Value>) {
        let exact = self.profile == Profile::Exact;
        let known = self.shared.lock().ok().and_then(|shared| shared.get(&(place, exact)).cloned()).flatten();
        if place != self.target && known.is_some() && known == value {
            self.touched.insert(place, false);
        }
        self.memo.insert(place, value);
    }

    /// Drops what none of the steps to come reads.
    pub(crate) fn forget(&mut self, to_come: &[&Step]) {
        let read: HashSet<Tap> = to_come.iter().flat_map(|step| self.reads(step, self.target.step)).collect();
        let target = self.target;
        self.memo.retain(|place, _| *place == target || place.step != target.step || read.contains(&place.tap));
    }

    /// Whether an edit can change a value; of what was computed, whether one did.
    pub(crate) fn is_touched(&mut self, place: Place) -> bool {
        if let Some(&known) = self.touched.get(&place) {
            return known;
        }
        let touched = self.touches(place);
        self.touched.insert(place, touched);
        touched
    }

    fn touches(&mut self, place: Place) -> bool {
        if self.edits.is_empty() {
            return false;
        }
        if place != self.target && self.recorded.is_whole(place) {
            return false;
        }
        if !self.chain(place).is_empty() {
            return true;
        }
        let Some(step) = self.recorded.model.plan.step(place.tap) else { return false };
        let cached = step.cached();
        step.reads.iter().any(|&tap| {
            let first = if cached == Some(tap) { 0 } else { place.step };
            (first..=place.step).any(|step| self.is_touched(Place { step, tap }))
        })
    }
}

/// The steps that a target is computed by, from the nearest taps that were recorded whole: the target's own last.
pub(crate) fn segment<'a>(recorded: &Recorded<'a>, target: Place) -> Vec<&'a Step> {
    let plan = &recorded.model.plan;
    // From which decode step on each is needed: keys and values from the first.
    let mut needed: HashMap<Tap, u32> = [(target.tap, target.step)].into_iter().collect();
    let mut steps = Vec::new();
    for step in plan.steps.iter().rev() {
        let Some(&first) = needed.get(&step.tap) else { continue };
        steps.push(step);
        for &tap in &step.reads {
            let first = if step.cached() == Some(tap) { 0 } else { first };
            let missing = |number: &u32| !recorded.is_whole(Place { step: *number, tap });
            if let Some(first) = (first..=target.step).find(missing) {
                let known = needed.entry(tap).or_insert(first);
                *known = first.min(*known);
            }
        }
    }
    steps.reverse();
    steps
}
