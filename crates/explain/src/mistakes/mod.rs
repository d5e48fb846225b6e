//! Which mistakes do people make? Each is another way to carry out one step of the Plan.
//!
//! A group of operations is a file: first its entries of the catalogue, then how a step is carried out with each. `listed` gives the
//! mistakes that are known without looking at any number; `fitted` those whose parameter is read off what the candidate recorded.

pub(crate) mod attention;
pub(crate) mod by_law;
mod catalogue;
mod context;
pub(crate) mod embedding;
pub(crate) mod feed_forward;
pub(crate) mod head;
pub(crate) mod linear;
pub(crate) mod norm;
mod param;
pub(crate) mod precision;
pub(crate) mod recorded;
pub(crate) mod residual;
pub(crate) mod rope;
pub(crate) mod rounding;
pub(crate) mod scores;
pub(crate) mod stored;
pub(crate) mod unpack;

use std::sync::Arc;

use firstdiff_model::{Chunk, Half, Model, Op, Profile, Role, Rope, Scores, Step, WeightRef};
use firstdiff_trace::{Site, Tap};
use ndarray::{Array2, ArrayD, ArrayView2, Axis, Ix2};
use serde_json::Value;

pub(crate) use catalogue::{BeginsLater, StandsBehind};
pub use catalogue::{Mistake, advice, catalogue, find, ids, what};
pub(crate) use context::StepContext;
pub use param::{Param, Values};
pub(crate) use scores::{filled_as_shown, hidden_cells};

use crate::mistakes::precision::PRECISION;
use crate::mistakes::rounding::Rounding;

/// What a mistake gives for a step; `None` where it does not apply.
pub(crate) type Out = Option<ArrayD<f64>>;

/// Values of a mistake's parameters, by name.
pub type Params = Vec<(&'static str, Value)>;

/// One step done otherwise.
#[derive(Clone)]
pub(crate) struct Edit {
    pub(crate) mistake: &'static Mistake,
    pub(crate) params: Params,
    /// The step.
    pub(crate) tap: Tap,
    /// What it reads when it is done so.
    pub(crate) reads: Vec<Tap>,
    wrong: Arc<dyn Fn(&StepContext<'_>) -> Out + Send + Sync>,
    /// The parameter that may have any value, where there is one.
    tune: Option<Tune>,
    /// Where in a run it begins to be made, if not where decoding does.
    pub(crate) onset: Option<Onset>,
    /// Whether the operation is done later: what reads the step is wrong as well.
    pub(crate) is_done_later: bool,
}

/// A decode step that a mistake begins with, and its first position.
#[derive(Clone, Copy)]
pub(crate) struct Onset {
    pub(crate) step: u32,
    pub(crate) position: usize,
}

/// A parameter of an edit that may have any value.
#[derive(Clone)]
struct Tune {
    name: &'static str,
    value: f64,
    scale: Scale,
    wrong: Tunable,
}

/// From one place of a scan to the next: six are a factor of 8.
pub(crate) const STEP: f64 = 0.346_573_590_279_972_6;

/// What a parameter that may have any value is, and how it is looked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Scale {
    /// A number: by its logarithm.
    Number,
    /// How many there are of something: by its logarithm.
    Whole,
    /// A part of so many pieces: by the logarithm of its ratio to the rest, for it may be nearly none and nearly all.
    Part { pieces: usize },
}

impl Scale {
    /// Where `value` is on the scale.
    pub(crate) fn place(self, value: f64) -> f64 {
        match self {
            Scale::Number | Scale::Whole => value.ln(),
            Scale::Part { .. } => (value / (1.0 - value)).ln(),
        }
    }

    /// The value at a place of the scale.
    pub(crate) fn value(self, place: f64) -> f64 {
        match self {
            Scale::Number | Scale::Whole => place.exp(),
            Scale::Part { .. } => 1.0 / (1.0 + (-place).exp()),
        }
    }

    /// The places that are looked at first: a factor of 64 either way, and each whole number of the first.
    pub(crate) fn scan(self, begin: f64) -> Vec<f64> {
        let mut places: Vec<f64> = (-12..=12).map(|i| begin + f64::from(i) * STEP).collect();
        if self == Scale::Whole {
            const EACH: u32 = 16;
            places.retain(|place| place.exp() > f64::from(EACH) + 1.0);
            places.splice(0..0, (1..=EACH).map(|whole| f64::from(whole).ln()));
        }
        places
    }

    /// The places that are looked at around the best of the first, and how far they are apart, where the error has more than one valley between two of
    /// those: what is read of a matrix ends in one head or another.
    pub(crate) fn closer_scan(self, rough: f64) -> Option<(Vec<f64>, f64)> {
        const EACH: i32 = 12;
        let width = STEP / f64::from(EACH);
        let places = (-EACH..=EACH).map(|i| rough + f64::from(i) * width).collect();
        matches!(self, Scale::Part { .. }).then_some((places, width))
    }

    /// The plain values near one that was fitted, and it itself; the plainest first.
    pub(crate) fn near(self, fine: f64) -> Vec<f64> {
        match self {
            Scale::Number => {
                vec![snapped(fine, 1e-3), snapped(fine, 1e-5), format!("{fine:.5e}").parse().unwrap_or(fine), fine]
            }
            Scale::Whole => [0.0, -1.0, 1.0].iter().map(|by| fine.round() + by).filter(|&x| x >= 1.0).collect(),
            // Whole pieces, and what it may be where other matrices have other numbers of them.
            Scale::Part { pieces } => {
                let (all, read) = (pieces as f64, (fine * pieces as f64).floor());
                let whole = [0.0, 1.0, -1.0, 2.0, -2.0].map(|by| (read + by) / all);
                let plain = [snapped(fine, 1e-3), snapped(fine, 1e-5)];
                whole.into_iter().chain(plain).filter(|x| (0.0..1.0).contains(x)).chain([fine]).collect()
            }
        }
    }

    fn said(self, value: f64) -> Value {
        match self {
            Scale::Whole => serde_json::json!(value.round() as i64),
            Scale::Number | Scale::Part { .. } => serde_json::json!(value),
        }
    }
}

/// The wrong way to carry out a step, by the value of a parameter.
type Tunable = Arc<dyn Fn(f64, &StepContext<'_>) -> Out + Send + Sync>;

impl Edit {
    /// A step done right, and then changed by what no engine is to blame for.
    pub(crate) fn harmless(step: &Step, change: impl Fn(ArrayD<f64>) -> ArrayD<f64> + Send + Sync + 'static) -> Edit {
        let wrong = Arc::new(move |at: &StepContext<'_>| at.right().map(&change));
        let (tap, reads) = (step.tap, step.reads.clone());
        Edit { mistake: &PRECISION, params: vec![], tap, reads, wrong, tune: None, onset: None, is_done_later: false }
    }

    /// The same mistake, made from a later decode step on.
    pub(crate) fn beginning(&self, onset: Onset) -> Edit {
        Edit { onset: Some(onset), ..self.clone() }
    }

    /// The value of the parameter that may have any, and its scale.
    pub(crate) fn tunable(&self) -> Option<(f64, Scale)> {
        self.tune.as_ref().map(|tune| (tune.value, tune.scale))
    }

    /// The same mistake with another value of that parameter.
    pub(crate) fn tuned(&self, value: f64) -> Edit {
        let Some(tune) = self.tune.clone() else { return self.clone() };
        let params = self
            .params
            .iter()
            .map(|(name, old)| (*name, if *name == tune.name { tune.scale.said(value) } else { old.clone() }));
        let wrong = tune.wrong.clone();
        Edit {
            params: params.collect(),
            wrong: Arc::new(move |at| wrong(value, at)),
            tune: Some(Tune { value, ..tune }),
            ..self.clone()
        }
    }

    /// The step's value on `at.inputs`, one for each of `reads`.
    pub(crate) fn value(&self, at: &StepContext<'_>) -> Out {
        let prefill = self.onset.map_or(at.prefill, |onset| onset.position);
        (self.wrong)(&StepContext { prefill, ..*at })
    }

    /// Whether it is the same way to carry out a step, and not only one of the same name.
    pub(crate) fn is(&self, other: &Edit) -> bool {
        Arc::ptr_eq(&self.wrong, &other.wrong)
    }

    /// What tells this mistake from others, wherever it is made.
    pub(crate) fn key(&self) -> String {
        self.named_by(|name, value| format!("{name}={value}"))
    }

    /// The same with no more than the sign of the parameter that may have any value.
    pub(crate) fn form(&self) -> String {
        self.named_by(|name, value| match &self.tune {
            Some(tune) if tune.name == name => format!("{name} {}", tune.value < 0.0),
            _ => format!("{name}={value}"),
        })
    }

    fn named_by(&self, said: impl Fn(&'static str, &Value) -> String) -> String {
        let params = self.params.iter().filter(|(name, _)| !self.mistake.follows_from_shape(name));
        let params: Vec<String> = params.map(|(name, value)| said(name, value)).collect();
        format!("{} {}", self.mistake.id, params.join(","))
    }

    /// Whether it takes something from a layer of a certain number: no mistake that several layers share.
    pub(crate) fn names_a_layer(&self) -> bool {
        let is_layer = |name: &str| self.mistake.param(name).is_some_and(|param| param.values == Values::Layer);
        self.params.iter().any(|(name, value)| value.is_number() && is_layer(name))
    }

    /// Whether it is the same mistake, made in the same step.
    pub(crate) fn is_made_as(&self, other: &Edit) -> bool {
        self.tap == other.tap && self.key() == other.key()
    }
}

/// Rows and columns of a step's matrix.
fn matrix_shape(model: &Model, step: &Step) -> Option<[usize; 2]> {
    model.weights.shape(*step.weights.first()?)?.try_into().ok()
}

/// What the profile rounds every result to.
fn half(profile: Profile) -> Option<Half> {
    match profile {
        Profile::F16 => Some(Half::F16),
        Profile::Bf16 => Some(Half::BF16),
        _ => None,
    }
}

/// All axes but the first merged.
fn flat(x: &ArrayD<f64>) -> Option<ArrayView2<'_, f64>> {
    let rows = x.shape().first().copied()?;
    x.view().into_shape_with_order((rows, x.len() / rows.max(1))).ok()
}

/// What the mistakes of a step are gathered in.
pub(crate) struct List<'a> {
    pub(crate) model: &'a Model,
    pub(crate) step: &'a Step,
    edits: Vec<Edit>,
}

impl List<'_> {
    fn add(
        &mut self,
        mistake: &'static Mistake,
        params: Params,
        wrong: impl Fn(&StepContext<'_>) -> Out + Send + Sync + 'static,
    ) -> &mut Edit {
        let (tap, reads) = (self.step.tap, self.step.reads.clone());
        debug_assert!(mistake.at.contains(&tap.site), "{} at {tap}", mistake.id);
        let (wrong, is_done_later) = (Arc::new(wrong), false);
        self.edits.push(Edit { mistake, params, tap, reads, wrong, tune: None, onset: None, is_done_later });
        self.edits.last_mut().expect("just pushed")
    }

    /// A mistake with a parameter `name` that may have any value.
    fn tunable(
        &mut self,
        mistake: &'static Mistake,
        name: &'static str,
        value: f64,
        wrong: impl Fn(f64, &StepContext<'_>) -> Out + Send + Sync + 'static,
    ) -> &mut Edit {
        self.tunable_by(Scale::Number, mistake, name, value, wrong)
    }

    /// The same on a scale of its own.
    fn tunable_by(
        &mut self,
        scale: Scale,
        mistake: &'static Mistake,
        name: &'static str,
        value: f64,
        wrong: impl Fn(f64, &StepContext<'_>) -> Out + Send + Sync + 'static,
    ) -> &mut Edit {
        let wrong = Arc::new(wrong);
        let of = wrong.clone();
        let edit = self.add(mistake, vec![(name, scale.said(value))], move |at| of(value, at));
        edit.tune = Some(Tune { name, value, scale, wrong });
        edit
    }

    /// Another operation in the step's place, with a parameter `name` that may have any value.
    fn op_with(
        &mut self,
        mistake: &'static Mistake,
        name: &'static str,
        value: f64,
        op: impl Fn(f64) -> Op + Send + Sync + 'static,
    ) {
        let right = self.step.op.clone();
        self.tunable(mistake, name, value, move |x, at| at.doing(changed(&right, &op(x), &at.step.op)));
    }

    /// Another operation in the step's place.
    fn op(&mut self, mistake: &'static Mistake, params: Params, op: Op) -> &mut Edit {
        let right = self.step.op.clone();
        self.add(mistake, params, move |at| at.doing(changed(&right, &op, &at.step.op)))
    }

    /// The same operation on another tap.
    fn read(&mut self, mistake: &'static Mistake, params: Params, reads: &[Tap]) -> &mut Edit {
        let edit = self.add(mistake, params, |at| at.right());
        edit.reads = reads.to_vec();
        edit
    }

    /// The same operation with other weights.
    fn weights(&mut self, mistake: &'static Mistake, params: Params, weights: Vec<WeightRef>) {
        self.add(mistake, params, move |at| at.run(&Step { weights: weights.clone(), ..at.step.clone() }, at.inputs));
    }

    fn site(&self) -> Site {
        self.step.tap.site
    }

    /// A tap of the same layer, where the model has it.
    fn sibling(&self, site: Site) -> Option<Tap> {
        let tap = Tap::layer(self.step.tap.layer?, site);
        self.model.plan.step(tap).map(|step| step.tap)
    }

    /// The residual stream before the step's layer.
    fn stream(&self) -> Option<Tap> {
        match self.step.tap.layer? {
            0 => Some(Tap { layer: None, site: Site::H0 }),
            layer => Some(Tap::layer(layer - 1, Site::H)),
        }
    }

    /// The layers but `own`, and what each is called from there: the next and the previous, around the ends, then the rest by number.
    fn other_layers(&self, own: u32) -> Vec<(u32, Value)> {
        let layers = self.model.plan.dims.layers;
        let (next, previous) = ((own + 1) % layers, (own + layers - 1) % layers);
        let rest = (0..layers).filter(|l| ![own, next, previous].contains(l)).map(|l| (l, l.into()));
        [(next, "next".into()), (previous, "previous".into())]
            .into_iter()
            .chain(rest)
            .filter(|(l, _)| *l != own)
            .collect()
    }

    /// A weight of the same layer.
    fn weight(&self, role: Role) -> WeightRef {
        WeightRef { layer: self.step.tap.layer, role }
    }
}

/// The mistakes that can be made in `step`, the most evidenced first.
pub(crate) fn listed(model: &Model, step: &Step, tokens: &[Vec<u32>]) -> Vec<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    match &step.op {
        Op::Embedding { .. } => embedding::listed(&mut list, tokens),
        Op::RmsNorm { eps } => norm::listed(&mut list, *eps),
        Op::Linear { .. } | Op::Head => linear::listed(&mut list),
        Op::Rope(rope) => rope::listed(&mut list, rope),
        Op::Qk => attention::products(&mut list),
        Op::Scores(scores) => scores::listed(&mut list, scores),
        Op::Softmax => attention::softmax(&mut list),
        Op::Context => attention::context(&mut list),
        Op::Gated { activation } => feed_forward::listed(&mut list, *activation),
        Op::Residual { .. } => residual::listed(&mut list),
    }
    stored::listed(&mut list);
    precision::listed(&mut list);
    list.edits
}

/// The step with weights and activations rounded to few bits, where it has weights that are.
pub(crate) fn rounded(model: &Model, step: &Step, rounding: Rounding) -> Option<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    precision::rounded(&mut list, rounding);
    list.edits.pop()
}

/// What a step read and what the candidate made of it.
pub(crate) struct Seen<'a> {
    pub(crate) inputs: &'a [ArrayD<f64>],
    /// The candidate's value.
    pub(crate) own: &'a ArrayD<f64>,
    /// The right one.
    pub(crate) right: &'a ArrayD<f64>,
    pub(crate) chunk: Chunk<'a>,
}

/// Mistakes of `step` whose parameter is read off the numbers.
pub(crate) fn fitted(model: &Model, step: &Step, seen: &Seen<'_>) -> Vec<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    match &step.op {
        Op::Embedding { .. } => embedding::fitted(&mut list, seen),
        Op::Linear { .. } if list.site() == Site::V => rope::fitted_values(&mut list),
        Op::Softmax => scores::fitted_softmax(&mut list, seen),
        Op::Scores(scores) => scores::fitted(&mut list, scores, seen),
        _ => {}
    }
    list.edits
}

/// Fills of the mask of `step`, the scores', as probabilities made of them show; `open` are the scores without a mask.
pub(crate) fn fitted_fills(model: &Model, step: &Step, probs: &ArrayD<f64>, open: &ArrayD<f64>) -> Vec<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    if let Op::Scores(right) = &step.op {
        scores::fitted_fills(&mut list, right, probs, open);
    }
    list.edits
}

/// The scores of `step` without a mask.
pub(crate) fn without_mask(model: &Model, step: &Step) -> Option<Edit> {
    let mut list = List { model, step, edits: Vec::new() };
    if let Op::Scores(right) = &step.op {
        scores::omitted(&mut list, right);
    }
    list.edits.pop()
}

/// `now` with what tells `wrong` from `right`.
fn changed(right: &Op, wrong: &Op, now: &Op) -> Op {
    fn pick<T: PartialEq + Clone>(right: &T, wrong: &T, now: &T) -> T {
        if right == wrong { now.clone() } else { wrong.clone() }
    }
    match (right, wrong, now) {
        (Op::Rope(r), Op::Rope(w), Op::Rope(n)) => Op::Rope(Rope {
            pairing: pick(&r.pairing, &w.pairing, &n.pairing),
            rotary_dim: pick(&r.rotary_dim, &w.rotary_dim, &n.rotary_dim),
            theta: pick(&r.theta, &w.theta, &n.theta),
            scaling: pick(&r.scaling, &w.scaling, &n.scaling),
        }),
        (Op::Scores(r), Op::Scores(w), Op::Scores(n)) => Op::Scores(Scores {
            scale: pick(&r.scale, &w.scale, &n.scale),
            softcap: pick(&r.softcap, &w.softcap, &n.softcap),
            causal: pick(&r.causal, &w.causal, &n.causal),
            window: pick(&r.window, &w.window, &n.window),
        }),
        _ => wrong.clone(),
    }
}

/// c of own = c · right over what is finite in both.
fn factor(own: &ArrayD<f64>, right: &ArrayD<f64>) -> Option<f64> {
    let finite = own.iter().zip(right).filter(|(o, r)| o.is_finite() && r.is_finite());
    let (dot, energy) = finite.fold((0.0, 0.0), |(d, e), (o, r)| (d + o * r, e + r * r));
    (energy > 0.0 && (dot / energy).is_finite()).then(|| dot / energy)
}

/// A number as few digits as it has to be known by: the nearest of one, two or three digits if it is within `slack` of it.
pub(crate) fn snapped(x: f64, slack: f64) -> f64 {
    for digits in 1..=6 {
        let near: f64 = format!("{x:.*e}", digits - 1).parse().unwrap_or(x);
        if (near - x).abs() <= slack * x.abs() {
            return near;
        }
    }
    x
}

/// `x` with its last axis handled row by row.
fn by_row(x: &ArrayD<f64>, mut change: impl FnMut(&mut [f64])) -> ArrayD<f64> {
    let mut out = x.as_standard_layout().into_owned();
    let width = out.shape().last().copied().unwrap_or(1).max(1);
    if let Some(all) = out.as_slice_mut() {
        all.chunks_mut(width).for_each(&mut change);
    }
    out
}

/// Rows of the first axis in another order, or copies of them.
fn rows(x: &ArrayD<f64>, order: &[usize]) -> ArrayD<f64> {
    x.select(Axis(0), order)
}

/// \[T,H,d\] as \[T,H·d\], or what has two axes already.
fn merged(x: ArrayD<f64>) -> Option<Array2<f64>> {
    let rows = x.shape().first().copied()?;
    let columns = x.len() / rows.max(1);
    x.as_standard_layout().into_owned().into_shape_with_order((rows, columns)).ok()?.into_dimensionality::<Ix2>().ok()
}
