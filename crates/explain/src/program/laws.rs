//! Laws of a recorded program's steps.

use std::cell::OnceCell;
use std::collections::BTreeSet;

use firstdiff_compare::{Place, is_masked};
use firstdiff_core::softmax;
use firstdiff_laws::{Form, Kind};
use firstdiff_model::Profile;
use firstdiff_program::{Arithmetic, At, Bench, DType, Edit, Operand, Program, Slice, Tensor, Values, View};
use firstdiff_trace::Site;
use ndarray::{ArrayD, Axis, concatenate};

use crate::explain::{Effort, Finding, Progress};
use crate::laws::{Faults, Measured, Wrong, allowed_at, called_from, kind_of};
use crate::mistakes::{BeginsLater, Mistake};
use crate::other_weights::{Experts, Known, OtherWeights};
use crate::program::arrays::array;
use crate::program::change::computed;
use crate::program::forms::embedding::picked;
use crate::program::held::Held;
use crate::program::mixture::Mixture;
use crate::program::routing::read_by;
use crate::program::{Candidate, Recording, arithmetic};
use crate::replay::right::distance;
use crate::replay::{Replay, leave_hidden_rows};

/// Measures the laws of the faults that no mistake of the catalogue explains.
pub(crate) fn measure(
    (recording, candidate, held): (&Recording<'_>, &Candidate<'_>, &Held),
    replay: &Replay,
    effort: &Effort,
    findings: &mut Vec<Finding>,
    progress: Progress<'_>,
) {
    let weights = OnceCell::new();
    let of = |findings: &mut [Finding], is: &dyn Fn(&Finding) -> bool| {
        let count = findings.len();
        for (done, finding) in findings.iter_mut().enumerate().filter(|(_, finding)| is(finding)) {
            if let Some(place) = finding.shown_at.first() {
                progress(&format!("{place}: measuring what it does instead"), done, count);
            }
            let known = weights.get_or_init(|| weights_of(recording, held));
            let measured = of_finding(recording, candidate, held, replay, known, finding);
            let begins_later = begins_later(finding, replay);
            // Scores that are right where they were recorded are no mistake of what makes them. Which are hidden may be settled behind them.
            let of_scores = |found: &Measured| matches!(found.law.form, Form::ScoreScale | Form::ScoreFunction);
            let is_behind = measured.as_ref().is_some_and(of_scores) && reads_right_scores(finding, replay);
            let may_be = |mistake: &Mistake| {
                effort.tries(mistake)
                    && !(begins_later && mistake.begins_later == BeginsLater::Never)
                    && !(is_behind && mistake.at == [Site::Scores])
            };
            finding.take_law(measured, &may_be);
            if is_behind && finding.cause.is_none() {
                finding.note.get_or_insert_with(|| READS_RIGHT_SCORES.to_owned());
            }
        }
    };
    of(findings, &|finding| finding.asks_for_a_law() && !finding.is_decoded());
    for at in (0..findings.len()).rev() {
        if !findings[at].is_open() || !findings[at].is_decoded() {
            continue;
        }
        let found = (0..at)
            .find_map(|law| Some((law, continued(recording, candidate, held, replay, &findings[law], &findings[at])?)));
        if let Some((law, left)) = found {
            let decoded = findings.remove(at);
            findings[law].go_on_in(decoded, left);
        }
    }
    of(findings, &|finding| finding.asks_for_a_law() && finding.is_decoded());
    of(findings, &|finding| finding.is_coarse(candidate.profile) && !finding.is_decoded());
}

/// What is said of a law of the scores where those that were recorded are right.
const READS_RIGHT_SCORES: &str = "the scores that were recorded are right: look at what is done with them here";

/// Whether it is shown at probabilities whose scores were recorded and are right.
fn reads_right_scores(finding: &Finding, replay: &Replay) -> bool {
    let is_of = |place: Place, at: Place| place.tap.last_site() == Site::Scores && place.tap.block() == at.tap.block();
    let is_right = |at: &Place| {
        let scores = replay.taps.iter().find(|t| t.report.place.step == at.step && is_of(t.report.place, *at));
        scores.is_some_and(|t| t.report.status.agrees() && t.is_blamed())
    };
    finding.shown_at.iter().all(|at| at.tap.last_site() == Site::Probs && is_right(at))
}

/// Whether it is shown behind a decode step of which the same tap is right.
fn begins_later(finding: &Finding, replay: &Replay) -> bool {
    let is_before =
        |place: Place| place.step > 0 && finding.shown_at.iter().any(|at| at.tap == place.tap && at.step > place.step);
    replay.taps.iter().any(|t| t.report.status.agrees() && t.is_blamed() && is_before(t.report.place))
}

/// What the law of one finding leaves in the decode steps of another, where it gives them.
fn continued(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &Held,
    replay: &Replay,
    known: &Finding,
    decoded: &Finding,
) -> Option<f64> {
    let Measured { law, axes, .. } = known.measured.as_ref()?;
    let sites = |finding: &Finding| -> BTreeSet<(Option<(&'static str, u32)>, &'static str)> {
        finding.shown_at.iter().map(|place| (place.tap.block(), place.tap.last_site().name())).collect()
    };
    if !sites(decoded).is_subset(&sites(known)) {
        return None;
    }
    let Wrongs { shown, kind, wrong, steps } =
        wrongs(recording, held, replay, candidate.profile, decoded.shown_at.iter().copied())?;
    // A law speaks of axes and operands: it is asked of the same ones.
    if wrong.iter().any(|wrong| wrong.axes() != *axes) {
        return None;
    }
    let apply = |at: usize, inputs: &[ArrayD<f64>]| {
        steps[at].value(held, recording.program, inputs).map(|value| shown.numbers(&value))
    };
    let (site, profile) = (shown.site(), candidate.profile);
    Faults { kind, site, wrong, tokens: None, profile, apply: &apply, weights: None }.left_by(law)
}

/// Places where one operation is wrong, and how it is carried out there.
struct Wrongs<'p> {
    shown: Shown,
    kind: Kind,
    wrong: Vec<Wrong>,
    steps: Vec<Step<'p>>,
}

/// A slice, with the taps that are its inputs in the order of its kind. Keys and values of several steps are one input, as the cache has them.
struct Step<'p> {
    slice: Slice<'p>,
    bench: Bench<'p>,
    inputs: Vec<Vec<usize>>,
    /// Where it reads no tap, the rows of tokens that it reads.
    rows: Option<Rows>,
}

/// An operation that reads the rows of tokens from a table.
struct Rows {
    op: usize,
    table: View,
    ids: View,
}

impl Rows {
    /// The one of a slice that reads no tap.
    fn of(program: &Program, slice: &Slice<'_>) -> Option<Rows> {
        let found = slice.ops().filter(|&op| program.ops()[op].base() == "embedding").find_map(|op| {
            let [Operand::View(table), Operand::View(ids), ..] = &program.ops()[op].operands[..] else { return None };
            program.is_token_input(ids.buffer).then(|| Rows { op, table: table.clone(), ids: ids.clone() })
        });
        found.filter(|_| slice.known().next().is_none())
    }

    /// The ids that the reference reads, by position.
    fn read(&self, slice: &Slice<'_>, bench: &Bench<'_>) -> Option<ArrayD<f64>> {
        let ids = read_by((slice, &[]), bench, self.op, &[&self.ids], &|_| None)?.pop()?;
        let count = ids.len();
        ids.into_shape_with_order(vec![count]).ok()
    }

    /// The rows of other ids in their place.
    fn with(&self, ids: &ArrayD<f64>) -> Edit {
        let ids: Vec<f64> = ids.iter().copied().collect();
        let change = computed(&[&self.table, &self.ids], move |x| {
            ids.iter().all(|id| id.fract() == 0.0).then_some(())?;
            picked(&x[0], &x[1], ids.iter().map(|id| *id as i64))
        });
        Edit { at: At::Op(self.op), change }
    }
}

impl Step<'_> {
    /// What it gives for these inputs.
    fn value(&self, held: &Held, program: &firstdiff_program::Program, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        let shape = |tap: usize| program.taps()[tap].view.shape.clone();
        let value = |tap: usize| -> Option<Tensor<'_>> {
            let Some(at) = self.inputs.iter().position(|input| input.contains(&tap)) else {
                return held.value(tap);
            };
            let before = self.inputs[at].iter().take_while(|&&other| other != tap);
            let from: usize = before.map(|&other| shape(other).iter().product::<usize>()).sum();
            let len: usize = shape(tap).iter().product();
            let values: Vec<f64> = inputs.get(at)?.iter().copied().skip(from).take(len).collect();
            Tensor::new(DType::F64, shape(tap), Values::from(values))
        };
        let edits: Vec<Edit> = self.rows.iter().zip(inputs.first()).map(|(rows, ids)| rows.with(ids)).collect();
        Some(array(&self.slice.evaluate(&self.bench, &value, &edits).ok()?))
    }
}

fn of_finding(
    recording: &Recording<'_>,
    candidate: &Candidate<'_>,
    held: &Held,
    replay: &Replay,
    (names, known): &(Vec<String>, Vec<Known>),
    finding: &Finding,
) -> Option<Measured> {
    let places = finding.shown_at.iter().copied().filter(|place| place.step == 0 || finding.is_decoded());
    let Wrongs { shown, kind, wrong, steps } = wrongs(recording, held, replay, candidate.profile, places)?;
    let tokens =
        candidate.dump.meta().tokens.as_ref().and_then(|ids| ids.iter().map(|id| u32::try_from(*id).ok()).collect());
    let apply = |at: usize, inputs: &[ArrayD<f64>]| {
        steps[at].value(held, recording.program, inputs).map(|value| shown.numbers(&value))
    };
    let places: Vec<Place> = wrong.iter().map(|wrong| wrong.place).collect();
    let mixture = if kind == Kind::Mixture { mixture(recording, &places, &wrong, &steps) } else { None };
    let values = |at: usize| Some(recording.weights.read(names.get(at)?).ok()?.to_floats().into_owned());
    let places = places.iter().map(|place| place.tap).collect();
    let weights = OtherWeights {
        known,
        values: &values,
        places,
        experts: mixture.as_ref().map(|mixture| mixture as &dyn Experts),
    };
    let (site, profile) = (shown.site(), candidate.profile);
    Faults { kind, site, wrong, tokens, profile, apply: &apply, weights: Some(&weights) }.law()
}

/// The weights of one and of two axes: each belongs to the first tap that is made with it.
fn weights_of(recording: &Recording<'_>, held: &Held) -> (Vec<String>, Vec<Known>) {
    let program = recording.program;
    let (mut names, mut known, mut seen) = (Vec::new(), Vec::new(), BTreeSet::new());
    for at in (0..program.taps().len()).filter(|&at| held.place(at).step == 0) {
        let tap = held.place(at).tap;
        let slice = Slice::of(program, at, |other| other != at);
        let operands = slice.ops().flat_map(|op| &program.ops()[op].operands);
        let views = operands.filter_map(|operand| match operand {
            Operand::View(view) => Some(view.buffer),
            _ => None,
        });
        for name in views.filter_map(|buffer| program.weights().get(&buffer).filter(|_| seen.insert(buffer))) {
            let shape = recording.weights.view(name).map(|weight| weight.shape().to_vec());
            if let Some(shape) = shape.filter(|shape| (1..=2).contains(&shape.len())) {
                known.push(Known { weight: names.len(), tap, is_bias: name.ends_with("bias"), shape });
                names.push(name.clone());
            }
        }
    }
    (names, known)
}

/// The experts of places where a mixture is wrong.
fn mixture<'r>(
    recording: &'r Recording<'r>,
    places: &[Place],
    wrong: &[Wrong],
    steps: &[Step<'_>],
) -> Option<Mixture<'r>> {
    let input = |(wrong, step): (&Wrong, &Step<'_>)| {
        let tap = *step.inputs.first()?.first()?;
        Some((recording.program.taps()[tap].tap.clone(), wrong.inputs.first()?.clone()))
    };
    let inputs = wrong.iter().zip(steps).map(input).collect::<Option<Vec<_>>>()?;
    let chosen = wrong.first()?.inputs.get(2)?.shape().last().copied()?;
    Some(Mixture::of(recording, places.to_vec(), inputs, chosen))
}

/// Of which numbers a law is.
#[derive(Clone, Copy)]
enum Shown {
    /// Of the tap's, without what fills masked places.
    Values(Site),
    /// Of probabilities in place of scores: other keys are masked, and a fill is no score of a key.
    Probabilities,
}

impl Shown {
    fn site(self) -> Site {
        match self {
            Shown::Values(site) => site,
            Shown::Probabilities => Site::Probs,
        }
    }

    fn numbers(self, values: &ArrayD<f64>) -> ArrayD<f64> {
        match self {
            Shown::Values(site) => values.mapv(|x| if is_masked(site, x) { 0.0 } else { x }),
            Shown::Probabilities => softmax(values.view()),
        }
    }
}

/// What was recorded of places where one operation is wrong; `None` where they are of several, or of none.
fn wrongs<'r>(
    recording: &Recording<'r>,
    held: &Held,
    replay: &Replay,
    profile: Profile,
    places: impl Iterator<Item = Place>,
) -> Option<Wrongs<'r>> {
    let program = recording.program;
    let half = arithmetic(profile).filter(|arithmetic| matches!(arithmetic, Arithmetic::Half(_)));
    let (mut wrong, mut steps) = (Vec::<Wrong>::new(), Vec::new());
    let mut common: Option<Site> = None;
    for place in places {
        let tap = (0..program.taps().len()).find(|&tap| held.place(tap) == place)?;
        let site = place.tap.last_site();
        if common.is_some_and(|common| common != site) {
            return None;
        }
        common = Some(site);
        // Scores and probabilities are measured from the queries and keys.
        let inner: &[Site] = match site {
            Site::Probs => &[Site::Scores, Site::Qk],
            Site::Scores => &[Site::Qk],
            _ => &[],
        };
        let is_input = |other: usize| {
            held.readable(other).is_some()
                && !(held.place(other).tap.layer == place.tap.layer
                    && inner.contains(&held.place(other).tap.last_site()))
        };
        let slice = Slice::of(program, tap, is_input);
        let mut bench = Bench::new(program, Arithmetic::Wide, recording.weights);
        bench.load(&slice).ok()?;
        let mut inputs: Vec<usize> = slice.known().collect();
        inputs.dedup();
        // Gate before up, queries before keys, probabilities before values.
        inputs.sort_by_key(|&tap| order_of(held.place(tap).tap.last_site()));
        let around = around(held, tap, &inputs, inner);
        let (taps, mut inputs) = of_steps(held, &inputs);
        let rows = Rows::of(program, &slice).filter(|_| site == Site::H0);
        inputs.extend(rows.iter().filter_map(|rows| rows.read(&slice, &bench)));
        let step = Step { slice, bench, inputs: taps, rows };
        let right = step.value(held, program, &inputs)?;
        // A law says what is due before anything is rounded: it may leave what the operation's own roundings make.
        let of_roundings = half.and_then(|half| {
            let bench = Bench::new(program, half, recording.weights);
            Some(distance(site, &right, &held.made(&bench, &step.slice, &[])?))
        });
        // A choice is the same, or it is another.
        let is_choice = program.taps()[tap].view.dtype.kind() == firstdiff_program::Kind::Int;
        let allowed = allowed_at(replay, place).or(is_choice.then_some(0.0))? + of_roundings.unwrap_or(0.0);
        let own = array(held.get(tap)?);
        wrong.push(Wrong { place, inputs, right, own, allowed, around });
        steps.push(step);
    }
    let first = wrong.first()?;
    let (site, kind) = (common?, kind_of(common?, &first.inputs, &first.right));
    let hides_others = |wrong: &Wrong| {
        wrong.own.iter().zip(&wrong.right).any(|(own, right)| is_masked(site, *own) != is_masked(site, *right))
    };
    let hides_others = kind == Kind::Probs && wrong.iter().any(hides_others);
    let of_scores = kind == Kind::Probs && site == Site::Scores;
    let shown = if hides_others || of_scores { Shown::Probabilities } else { Shown::Values(site) };
    for Wrong { own, right, .. } in &mut wrong {
        let scores = std::mem::take(own);
        (*own, *right) = (shown.numbers(&scores), shown.numbers(right));
        if hides_others || of_scores {
            leave_hidden_rows(own, right, &scores);
        }
    }
    Some(Wrongs { shown, kind, wrong, steps })
}

/// Inputs with their values: those of one tap in several steps follow each other by position, and are one.
fn of_steps(held: &Held, taps: &[usize]) -> (Vec<Vec<usize>>, Vec<ArrayD<f64>>) {
    let mut inputs: Vec<Vec<usize>> = Vec::new();
    for &tap in taps {
        let is_of = |of: &&mut Vec<usize>| of.iter().all(|&other| held.place(other).tap == held.place(tap).tap);
        match inputs.iter_mut().find(is_of) {
            Some(steps) => steps.push(tap),
            None => inputs.push(vec![tap]),
        }
    }
    inputs.iter_mut().for_each(|steps| steps.sort_by_key(|&tap| held.place(tap).step));
    let joined = |steps: &Vec<usize>| {
        let parts: Vec<ArrayD<f64>> = steps.iter().filter_map(|&tap| held.readable(tap).map(array)).collect();
        concatenate(Axis(0), &parts.iter().map(|part| part.view()).collect::<Vec<_>>()).ok()
    };
    match inputs.iter().map(joined).collect() {
        Some(values) => (inputs, values),
        None => {
            let alone: Vec<Vec<usize>> = taps.iter().map(|&tap| vec![tap]).collect();
            (alone, taps.iter().filter_map(|&tap| held.readable(tap).map(array)).collect())
        }
    }
}

/// Numbers of a tensor nearby above which it is left alone.
const MOST_AROUND: usize = 1 << 20;

/// What was recorded before a tap, in its layer, the one before and outside of layers, by what it is called from there.
fn around(held: &Held, tap: usize, inputs: &[usize], inner: &[Site]) -> Vec<(String, ArrayD<f64>)> {
    let own = held.place(tap).tap;
    // Behind the layers the last one is near.
    let layers = |taps: std::ops::Range<usize>| taps.filter_map(|other| held.place(other).tap.layer).max();
    let (nearest, last) = (layers(0..tap), layers(0..held.places().len()));
    let mut all = Vec::new();
    for other in (0..tap).filter(|other| !inputs.contains(other)) {
        let there = held.place(other).tap;
        let is_nearest = own.layer.is_none() && there.layer == nearest;
        let whole = || is_nearest.then(|| there.to_string());
        let Some(name) = called_from(own, there, last).or_else(whole) else { continue };
        let name = match held.place(tap).step.saturating_sub(held.place(other).step) {
            0 => name,
            1 => format!("{name} of the step before"),
            steps => format!("{name} {steps} steps before"),
        };
        let is_inner = own.layer == there.layer && inner.contains(&there.last_site());
        let Some(tensor) = held.readable(other).filter(|_| !is_inner) else { continue };
        let values = array(tensor);
        if values.len() <= MOST_AROUND {
            all.push((name, values));
        }
    }
    all
}

/// In which order a kind takes its operands.
fn order_of(site: Site) -> u8 {
    match site {
        Site::V | Site::FfnUp | Site::K | Site::KNorm | Site::KRope => 1,
        // Of a mixture: what it reads, the weights, the choice.
        site if site.name() == "router_weights" => 1,
        site if site.name() == "router_topk" => 2,
        _ => 0,
    }
}
