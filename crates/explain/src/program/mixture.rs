//! What each expert of a recorded mixture gives for every token: the program with all tokens sent to it.

use std::cell::RefCell;
use std::collections::HashMap;

use firstdiff_compare::Place;
use firstdiff_laws::{Inner, Taken};
use firstdiff_program::{Arithmetic, Bench, Kind, Program, Slice, Tensor, Values};
use ndarray::{Array2, ArrayD, Axis, concatenate};

use crate::other_weights::Experts;
use crate::program::Recording;
use crate::program::arrays::floats;

/// Numbers that all experts' parts of a place may have.
const MOST_NUMBERS: usize = 1 << 24;

/// The experts of the places where a mixture is wrong.
pub(super) struct Mixture<'r> {
    recording: &'r Recording<'r>,
    places: Vec<Place>,
    /// What the experts of each place read, `[T,D]`, and the tap that has it.
    inputs: Vec<(String, ArrayD<f64>)>,
    /// Experts that are chosen for a token.
    chosen: usize,
    /// The program with all tokens sent to these experts, by layer and the first of them.
    programs: RefCell<HashMap<(u32, usize), Option<Program>>>,
    parts: RefCell<Parts>,
}

/// Parts that were computed, by the place.
type Parts = HashMap<(usize, Inner), Option<Array2<f64>>>;
/// A tap's values where it is said what they are.
type Known<'k> = HashMap<String, &'k ArrayD<f64>>;

impl<'r> Mixture<'r> {
    /// Of the places of a tap with these inputs: what is read by name, and as many weights as experts are chosen.
    pub(super) fn of(
        recording: &'r Recording<'r>,
        places: Vec<Place>,
        inputs: Vec<(String, ArrayD<f64>)>,
        chosen: usize,
    ) -> Mixture<'r> {
        Mixture { recording, places, inputs, chosen, programs: RefCell::default(), parts: RefCell::default() }
    }

    fn layer(&self, place: usize) -> Option<u32> {
        self.places.get(place)?.tap.layer
    }

    fn tap(&self, program: &Program, name: &str) -> Option<usize> {
        program.taps().iter().position(|tap| tap.tap == name && tap.step == 0)
    }
}

impl Experts for Mixture<'_> {
    fn count(&self, place: usize) -> usize {
        let Some(layer) = self.layer(place) else { return 0 };
        // The router scores all of them, those that no token is sent to included.
        let logits = self.tap(self.recording.program, &format!("layers.{layer}.router_logits"));
        let count = logits.and_then(|tap| self.recording.program.taps()[tap].view.shape.last().copied()).unwrap_or(0);
        let tokens = self.inputs.get(place).map_or(0, |(_, x)| x.len());
        if count.saturating_mul(tokens) > MOST_NUMBERS { 0 } else { count }
    }

    fn part(&self, place: usize, inner: Inner) -> Option<Array2<f64>> {
        if let Some(known) = self.parts.borrow().get(&(place, inner)) {
            return known.clone();
        }
        let made = self.computed(place, inner, &self.inputs.get(place)?.1);
        self.parts.borrow_mut().insert((place, inner), made.clone());
        made
    }

    fn part_of(&self, place: usize, inner: Inner, x: &Array2<f64>) -> Option<Array2<f64>> {
        let due = self.inputs.get(place)?.1.raw_dim();
        self.computed(place, inner, &x.to_shape(due).ok()?.into_owned())
    }

    fn hidden(&self, place: usize) -> Option<usize> {
        let (layer, (tap, x)) = (self.layer(place)?, self.inputs.get(place)?);
        let read = Known::from([(tap.clone(), x)]);
        self.value(layer, 0, &format!("layers.{layer}.experts.0.ffn_gate"), &read)?.shape().get(1).copied()
    }
}

impl Mixture<'_> {
    fn computed(&self, place: usize, inner: Inner, x: &ArrayD<f64>) -> Option<Array2<f64>> {
        let (own, (tap, _)) = (self.layer(place)?, self.inputs.get(place)?);
        let layer = u32::try_from(i64::from(own) + i64::from(inner.layer)).ok()?;
        let input = tap.replacen(&format!("layers.{own}."), &format!("layers.{layer}."), 1);
        let name = |expert: usize, of: &str| format!("layers.{layer}.experts.{expert}.{of}");
        let of = |expert: usize, of: &str, known: &Known<'_>| self.value(layer, expert, &name(expert, of), known);
        let read = Known::from([(input, x)]);
        if inner.gate == inner.up && inner.up == inner.down && inner.taken == Taken::Right && inner.hidden.is_none() {
            return of(inner.down, "ffn_out", &read)?.into_dimensionality().ok();
        }
        let (gate, up) = (of(inner.gate, "ffn_gate", &read)?, of(inner.up, "ffn_up", &read)?);
        let joined = concatenate(Axis(1), &[gate.view(), up.view()]).ok()?;
        let f = gate.shape()[1];
        let taken = |which: usize| -> ArrayD<f64> {
            joined.select(Axis(1), &(0..f).map(|i| inner.taken.from(which, i, f)).collect::<Vec<_>>())
        };
        let (gate, up) = (taken(0), taken(1));
        let both = Known::from([(name(inner.gate, "ffn_gate"), &gate), (name(inner.gate, "ffn_up"), &up)]);
        let mut act = of(inner.gate, "ffn_act", &both)?;
        for at in inner.hidden.unwrap_or(f)..act.len_of(Axis(1)) {
            act.index_axis_mut(Axis(1), at).fill(0.0);
        }
        of(inner.down, "ffn_out", &Known::from([(name(inner.down, "ffn_act"), &act)]))?.into_dimensionality().ok()
    }

    /// A tap of an expert that all tokens are sent to, of what is known.
    fn value(&self, layer: u32, expert: usize, name: &str, known: &Known<'_>) -> Option<ArrayD<f64>> {
        let first = expert / self.chosen.max(1) * self.chosen.max(1);
        let choice = format!("layers.{layer}.router_topk");
        let mut programs = self.programs.borrow_mut();
        let program = programs.entry((layer, first)).or_insert_with(|| self.sent_to(&choice, first)).as_ref()?;
        let target = self.tap(program, name)?;
        let taps = program.taps();
        let is_known =
            |tap: usize| taps[tap].step == 0 && (known.contains_key(&taps[tap].tap) || taps[tap].tap == choice);
        let slice = Slice::of(program, target, is_known);
        let mut bench = Bench::new(program, Arithmetic::Wide, self.recording.weights);
        bench.load(&slice).ok()?;
        let value = |tap: usize| -> Option<Tensor<'static>> {
            let view = &taps[tap].view;
            match known.get(&taps[tap].tap) {
                Some(x) => floats(x.to_shape(view.shape.as_slice()).ok()?.into_owned()),
                None => self.all_sent(program, tap, first),
            }
        };
        let made = slice.evaluate(&bench, &value, &[]).ok()?;
        let width = *made.shape().last()?;
        ArrayD::from_shape_vec(vec![made.len() / width.max(1), width], made.to_floats().into_owned()).ok()
    }

    /// The program in which all tokens of a layer are sent to these experts.
    fn sent_to(&self, choice: &str, first: usize) -> Option<Program> {
        let program = self.recording.program;
        let tap = self.tap(program, choice)?;
        let chosen = HashMap::from([(tap, self.all_sent(program, tap, first)?)]);
        Some(program.with_choices(&chosen).unwrap_or_else(|| program.clone()))
    }

    fn all_sent(&self, program: &Program, tap: usize, first: usize) -> Option<Tensor<'static>> {
        let view = &program.taps()[tap].view;
        if view.dtype.kind() != Kind::Int || self.chosen == 0 {
            return None;
        }
        let count: usize = view.shape.iter().product();
        let experts = (0..count).map(|at| (first + at % self.chosen) as i64).collect::<Vec<i64>>();
        Tensor::new(view.dtype, view.shape.clone(), Values::from(experts))
    }
}
