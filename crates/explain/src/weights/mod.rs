//! Do two files hold the same weights? Tensors are paired by what their names mean, read a tile of rows at a time, and judged against
//! what their element types must cost.

mod blocks;
mod diagnose;
mod noise;
mod side;

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::metrics::Metrics;
use firstdiff_model::{ModelError, Role, Storage, WeightRef, hugging_face_name, meaning};
use rayon::prelude::*;

pub use side::Side;

use diagnose::{Diagnosis, Pair};
use side::Tensor;

/// What is said of one tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum State {
    /// The same values.
    Identical,
    /// The same but for what its element type must cost; or the first values of it, where the other side holds no more.
    Rounded,
    /// One side has it, the other takes another tensor of its own for it, as the first does in fact.
    Tied,
    /// It is not the same, and belongs to a finding.
    Wrong,
    /// It was not looked at, and why.
    Unchecked(String),
}

/// One tensor of either side.
#[derive(Clone, Debug)]
pub struct Compared {
    /// Its name at Hugging Face, or its own where that is none of a known family.
    pub name: String,
    /// Its names in the two files.
    pub names: [Option<String>; 2],
    /// Its element types.
    pub types: [Option<&'static str>; 2],
    /// Its shape in the first file that has it.
    pub shape: Vec<usize>,
    /// What is said of it.
    pub state: State,
    /// NMSE of B against A.
    pub nmse: Option<f64>,
    /// NMSE that the element types may cost.
    pub allowed: Option<f64>,
}

/// Something wrong, with all tensors it is wrong in.
#[derive(Clone, Debug, PartialEq)]
pub struct Finding {
    /// The id of the mistake, where it was proved.
    pub cause: Option<&'static str>,
    /// Canonical names.
    pub tensors: Vec<String>,
    /// What was found, in words.
    pub note: String,
    /// NMSE that remains once the mistake is imitated.
    pub residual_nmse: Option<f64>,
}

/// Everything that is said of two files.
#[derive(Clone, Debug, Default)]
pub struct Comparison {
    /// Every tensor of both.
    pub tensors: Vec<Compared>,
    /// What is wrong.
    pub findings: Vec<Finding>,
    /// What else should be known.
    pub warnings: Vec<String>,
}

impl Comparison {
    /// How many tensors are in a state for which `is` holds.
    pub fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.tensors.iter().filter(|t| is(&t.state)).count()
    }
}

/// How to compare.
#[derive(Clone, Copy, Debug, Default)]
pub struct Options {
    /// Look at one tile of rows in 16, the first and the last among them.
    pub sample: bool,
}

/// Compares the weights of `b` with those of `a`, which are taken for right.
///
/// `progress` is told how many of how many tensors are done.
///
/// # Errors
/// When a tensor's bytes cannot be read.
pub fn compare(
    a: &Side,
    b: &Side,
    options: Options,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<Comparison, ModelError> {
    let mut out = Comparison::default();
    let keys: BTreeSet<Key> = a.keys().chain(b.keys()).collect();
    let total = keys.len();
    for (done, key) in keys.into_iter().enumerate() {
        progress(done, total);
        match (a.tensor(&key), b.tensor(&key)) {
            (Some(left), Some(right)) => both(&key, [a, b], [left, right], options, &mut out)?,
            (Some(left), None) => missing(&key, [a, b], left, &mut out)?,
            (None, Some(right)) => extra(&key, [a, b], right, &mut out)?,
            (None, None) => {}
        }
    }
    progress(total, total);
    fold(&mut out);
    if options.sample {
        out.warnings.push("--sample: one tile of rows in 16 was looked at".into());
    }
    Ok(out)
}

/// What tensors are paired by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Key {
    /// A weight of a known family: outer ones first, then layer by layer.
    Weight(Option<u32>, usize, String),
    /// Any other name.
    Other(String),
}

impl Key {
    pub(crate) fn of(name: &str) -> Key {
        match meaning(name) {
            Some(weight) => Key::Weight(weight.layer, weight.role as usize, hugging_face_name(weight)),
            // A dump leaves `.weight` out and sets `weights.` before.
            None => {
                let name = name.strip_prefix("weights.").unwrap_or(name);
                Key::Other(name.strip_suffix(".weight").unwrap_or(name).into())
            }
        }
    }

    pub(crate) fn name(&self) -> &str {
        match self {
            Key::Weight(_, _, name) | Key::Other(name) => name,
        }
    }

    pub(crate) fn weight(&self) -> Option<WeightRef> {
        match self {
            Key::Weight(_, _, name) => meaning(name),
            Key::Other(_) => None,
        }
    }
}

/// A tensor that both sides hold.
fn both(
    key: &Key,
    sides: [&Side; 2],
    tensors: [Tensor<'_>; 2],
    options: Options,
    out: &mut Comparison,
) -> Result<(), ModelError> {
    let [a, b] = sides;
    let [left, right] = tensors.clone();
    let mut compared = entry(key, [Some(&left), Some(&right)]);
    if let Some(reason) = left.unreadable().or(right.unreadable()) {
        compared.state = State::Unchecked(reason);
        out.tensors.push(compared);
        return Ok(());
    }
    if right.is_guess() && right.len() != left.len() {
        compared.state = State::Unchecked(format!(
            "{} holds {} values where the weight has {}",
            right.name(),
            right.len(),
            left.len()
        ));
        out.tensors.push(compared);
        return Ok(());
    }
    let right = right.shaped_like(&left);
    let pair = Pair { key, sides, left: &left, right: &right };
    if left.shape() == right.shape() {
        let orders = pair.row_orders();
        for (number, &order) in orders.iter().enumerate() {
            let measured = measure(&left, &right.in_order(order), options);
            if number == 0 {
                (compared.nmse, compared.allowed) = (measured.nmse(), Some(measured.allowed()));
            }
            if let Some(state) = measured.state() {
                (compared.nmse, compared.allowed) = (measured.nmse(), Some(measured.allowed()));
                if number > 0 {
                    out.warnings.push(format!(
                        "{}: rows in the other RoPE order than {}'s, which {} does not say",
                        key.name(),
                        a.label(),
                        b.label()
                    ));
                }
                compared.state = state;
                out.tensors.push(compared);
                return Ok(());
            }
        }
    }
    compared.state = State::Wrong;
    let Diagnosis { cause, note, residual } = diagnose::diagnose(&pair, compared.nmse, compared.allowed);
    out.findings.push(Finding { cause, tensors: vec![key.name().into()], note, residual_nmse: residual });
    out.tensors.push(compared);
    Ok(())
}

/// A tensor that B does not hold.
fn missing(key: &Key, [a, b]: [&Side; 2], left: Tensor<'_>, out: &mut Comparison) -> Result<(), ModelError> {
    let mut compared = entry(key, [Some(&left), None]);
    let role = key.weight().map(|w| w.role);
    let finding = |cause, note: String| Finding { cause, tensors: vec![key.name().into()], note, residual_nmse: None };
    if b.is_dump() {
        compared.state = State::Unchecked("not dumped".into());
    } else if let Some(other) = tied_with(role).filter(|other| b.tensor(other).is_some()) {
        // B takes its embedding for its head, or the reverse: right where A's two are the same.
        let same = a
            .tensor(&other)
            .is_some_and(|other| measure(&left, &other.shaped_like(&left), Options::default()).state().is_some());
        if same {
            compared.state = State::Tied;
        } else {
            compared.state = State::Wrong;
            out.findings.push(finding(
                Some("head-tied"),
                format!(
                    "{} has none and takes {} for it, which is another matrix in {}",
                    b.label(),
                    other.name(),
                    a.label()
                ),
            ));
        }
    } else if is_derived(key.name()) {
        compared.state = State::Unchecked("a table that is computed, not learnt".into());
    } else {
        let bias = matches!(
            role,
            Some(
                Role::QBias
                    | Role::KBias
                    | Role::VBias
                    | Role::AttnOutBias
                    | Role::GateBias
                    | Role::UpBias
                    | Role::DownBias
            )
        );
        compared.state = State::Wrong;
        out.findings.push(finding(bias.then_some("bias-omitted"), format!("{} does not hold it", b.label())));
    }
    out.tensors.push(compared);
    Ok(())
}

/// A tensor that only B holds.
fn extra(key: &Key, [a, b]: [&Side; 2], right: Tensor<'_>, out: &mut Comparison) -> Result<(), ModelError> {
    let mut compared = entry(key, [None, Some(&right)]);
    let role = key.weight().map(|w| w.role);
    if let Some(found) = by_content(a, &right) {
        compared.state = State::Rounded;
        out.warnings.push(format!("{}: its {} values are the first of {}", right.name(), right.len(), found));
    } else if let Some(other) = tied_with(role) {
        let same = b
            .tensor(&other)
            .is_some_and(|other| measure(&other, &right.shaped_like(&other), Options::default()).state().is_some());
        match (a.tensor(&other).is_some(), same) {
            (true, true) => compared.state = State::Tied,
            (true, false) => {
                compared.state = State::Wrong;
                let note =
                    format!("{} ties it to {}, and {} has another matrix for it", a.label(), other.name(), b.label());
                out.findings.push(Finding {
                    cause: Some("head-untied"),
                    tensors: vec![key.name().into()],
                    note,
                    residual_nmse: None,
                });
            }
            _ => compared.state = State::Unchecked(format!("{} does not hold it", a.label())),
        }
    } else if is_derived(key.name()) || b.is_dump() || role.is_none() {
        compared.state = State::Unchecked(format!("{} does not hold it", a.label()));
    } else {
        compared.state = State::Wrong;
        let note = format!("{} does not hold it", a.label());
        out.findings.push(Finding { cause: None, tensors: vec![key.name().into()], note, residual_nmse: None });
    }
    out.tensors.push(compared);
    Ok(())
}

/// The weight that may serve in the stead of the head, or of the embedding.
fn tied_with(role: Option<Role>) -> Option<Key> {
    let other = match role? {
        Role::Head => Role::Embedding,
        Role::Embedding => Role::Head,
        _ => return None,
    };
    Some(Key::of(&hugging_face_name(WeightRef { layer: None, role: other })))
}

/// Tables that some files carry and no engine has to read.
fn is_derived(name: &str) -> bool {
    ["rope_freqs", "inv_freq", "freqs_cos", "freqs_sin", "freqs_cis"].iter().any(|derived| name.contains(derived))
}

/// The tensor of `a` whose first values are those of `right`, a text or the like that says not what it is.
fn by_content(a: &Side, right: &Tensor<'_>) -> Option<String> {
    const FEWEST: usize = 8;
    let values = right.first_values(4096);
    if right.is_named() || values.len() < FEWEST || right.len() > values.len() || values.iter().all(|v| *v == values[0])
    {
        return None;
    }
    a.keys().find_map(|key| {
        let tensor = a.tensor(&key)?;
        let first = tensor.first_values(values.len());
        // Printed with six digits or more.
        let same = first.len() == values.len()
            && first.iter().zip(&values).all(|(x, y)| (x - y).abs() <= 1e-5 * x.abs().max(1e-3));
        same.then(|| key.name().to_owned())
    })
}

fn entry(key: &Key, tensors: [Option<&Tensor<'_>>; 2]) -> Compared {
    Compared {
        name: key.name().into(),
        names: tensors.map(|t| t.map(|t| t.name().to_owned())),
        types: tensors.map(|t| t.and_then(Tensor::storage).map(Storage::name)),
        shape: tensors.into_iter().flatten().next().map(|t| t.shape().to_vec()).unwrap_or_default(),
        state: State::Identical,
        nmse: None,
        allowed: None,
    }
}

/// A tensor measured tile by tile.
pub(crate) struct Measured {
    tiles: Vec<Tile>,
    identical: bool,
    /// Whether one side, and one alone, is in blocks of few levels.
    quantised: bool,
}

struct Tile {
    metrics: Metrics,
    /// Sum of the squares of the error that the element types must cost.
    expected: f64,
    /// Elements at its end that are zero in B, and not all in A.
    empty_tail: bool,
    /// Elements that are equal and not zero.
    equal: usize,
}

/// Other ways to quantise than to nearest cost up to this many times the error of the nearest level.
const ROOM: f64 = 3.0;
/// NMSE of f32 arithmetic: a product taken in another order.
const FLOAT: f64 = 1e-13;
/// One element in so many is equal by chance.
const COPY: usize = 20;

impl Measured {
    fn nmse(&self) -> Option<f64> {
        if self.identical {
            return Some(0.0);
        }
        Metrics::over(&self.tiles.iter().map(|t| t.metrics).collect::<Vec<_>>()).nmse()
    }

    fn allowed(&self) -> f64 {
        let energy: f64 = self.tiles.iter().map(|t| energy(&t.metrics)).sum();
        let expected: f64 = self.tiles.iter().map(|t| t.expected).sum();
        FLOAT + if energy > 0.0 { ROOM * expected / energy } else { 0.0 }
    }

    /// Identical or rounded; `None` where it is neither.
    pub(crate) fn state(&self) -> Option<State> {
        if self.identical || self.tiles.iter().all(|t| t.metrics.is_equal()) {
            return Some(State::Identical);
        }
        // What is partly the same bit for bit is a copy of quantised values, in which no error is due, and not what they were made of.
        let sum = |part: fn(&Tile) -> usize| self.tiles.iter().map(part).sum::<usize>();
        let copy = self.quantised && sum(|t| t.equal) > sum(|t| t.metrics.len()) / COPY;
        let fine = |tile: &Tile| {
            let metrics = &tile.metrics;
            let error = metrics.nmse().map_or(f64::INFINITY, |nmse| nmse * energy(metrics));
            let due = if copy { 0.0 } else { ROOM * tile.expected };
            metrics.is_equal() || metrics.is_finite() && !tile.empty_tail && error <= due + FLOAT * energy(metrics)
        };
        self.tiles.iter().all(fine).then_some(State::Rounded)
    }
}

fn energy(metrics: &Metrics) -> f64 {
    metrics.reference_rms().map_or(0.0, |rms| rms * rms * metrics.compared() as f64)
}

/// Measures two tensors of one shape.
pub(crate) fn measure(left: &Tensor<'_>, right: &Tensor<'_>, options: Options) -> Measured {
    if !options.sample && left.same_bytes(right) {
        return Measured { tiles: Vec::new(), identical: true, quantised: false };
    }
    let tiles = left.tiles(right);
    let count = tiles.len();
    let chosen = tiles.into_par_iter().enumerate().filter(|(i, _)| !options.sample || i % 16 == 0 || i + 1 == count);
    let tiles = chosen.map(|(_, range)| {
        let (a, b) = (left.read(range.clone()), right.read(range));
        let metrics = Metrics::of_f32(&a, &b);
        if metrics.is_equal() {
            return Tile { equal: metrics.len(), metrics, expected: 0.0, empty_tail: false };
        }
        let expected = noise::between([&a, &b], [left.storage(), right.storage()]);
        let equal = a.iter().zip(&b).filter(|(x, y)| x == y && **x != 0.0).count();
        Tile { metrics, expected, empty_tail: empty_tail(&a, &b), equal }
    });
    let few = |t: &Tensor<'_>| t.storage().is_some_and(Storage::is_quantised);
    Measured { tiles: tiles.collect(), identical: false, quantised: few(left) != few(right) }
}

/// Whether B ends in zeros that A has not: 32 at least.
fn empty_tail(a: &[f32], b: &[f32]) -> bool {
    let zeros = b.iter().rev().take_while(|x| **x == 0.0).count();
    zeros >= 32 && a[a.len() - zeros..].iter().filter(|x| **x != 0.0).count() > zeros / 2
}

/// Findings of the same kind in several layers become one.
fn fold(out: &mut Comparison) {
    let mut folded: Vec<Finding> = Vec::new();
    let mut at: BTreeMap<(Option<&str>, String), usize> = BTreeMap::new();
    for finding in out.findings.drain(..) {
        // Numbers apart, the same words.
        let words: String = finding.note.chars().filter(|c| !c.is_ascii_digit() && *c != '.' && *c != ',').collect();
        match at.get(&(finding.cause, words.clone())) {
            Some(&index) => folded[index].tensors.extend(finding.tensors),
            None => {
                at.insert((finding.cause, words), folded.len());
                folded.push(finding);
            }
        }
    }
    out.findings = folded;
}
