//! Judges whether two files hold the same weights. Tensors are paired by what their names mean, read a tile of rows at a time, and judged against
//! what their element types must cost.

mod blocks;
mod changes;
mod diagnose;
mod folded;
mod general;
mod measure;
mod noise;
mod paid;
mod parts;
mod relaid;
mod relations;
mod rows;
mod side;
mod values;

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_model::{ModelError, Role, Storage, WeightRef, hugging_face_name, meaning};

use crate::tolerance::weights::{NOTHING_IN_COMMON, OTHER_MATRIX, OTHER_ORDER, SAME_VALUE, SMALL_VALUE};

pub use side::Side;

use diagnose::{Diagnosis, Pair};
use measure::{Measured, Same, measure};
use parts::{Name, Named};
use side::Tensor;

use crate::mistakes::Mistake;
use crate::mistakes::head::{HEAD_TIED, HEAD_UNTIED};
use crate::mistakes::linear::{BIAS_OMITTED, WEIGHT_TRANSPOSED};

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
    /// Cosine of the angle between B and A.
    pub cosine: Option<f64>,
}

impl Compared {
    fn measured(&mut self, of: &Measured) {
        (self.nmse, self.allowed, self.cosine) = (of.nmse(), Some(of.allowed()), of.cosine());
    }
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
    /// Tensors of A of which nothing was found in B: whether B should have them nothing says.
    pub unfound: Vec<String>,
    /// What else should be known.
    pub warnings: Vec<Note>,
}

impl Comparison {
    /// How many tensors are in a state for which `is` holds.
    pub fn count(&self, is: impl Fn(&State) -> bool) -> usize {
        self.tensors.iter().filter(|t| is(&t.state)).count()
    }
}

/// How many of two files' matrices have nothing in common.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unlike {
    /// Of another shape, or as far apart as any two matrices.
    pub unlike: usize,
    /// All that were compared.
    pub of: usize,
}

impl Comparison {
    /// Where nearly all matrices are unlike, and no known mistake explains them: that of another model.
    pub fn another_model(&self) -> Option<Unlike> {
        const FEWEST: usize = 4;
        // A law makes one of the other, as a known mistake does.
        let is_explained = |f: &&Finding| f.cause.is_some() || f.residual_nmse.is_some();
        let explained = |name: &String| self.findings.iter().filter(is_explained).any(|f| f.tensors.contains(name));
        // What one side lacks was not compared.
        let of_both = |t: &&Compared| t.names.iter().all(Option::is_some) && !matches!(t.state, State::Unchecked(_));
        let matrices: Vec<&Compared> = self.tensors.iter().filter(|t| t.shape.len() == 2 && of_both(t)).collect();
        let apart = |t: &Compared| {
            t.nmse.is_none_or(|nmse| nmse > OTHER_MATRIX) && t.cosine.is_none_or(|c| c.abs() < NOTHING_IN_COMMON)
        };
        let is_unlike = |t: &&&Compared| t.state == State::Wrong && apart(t) && !explained(&t.name);
        let unlike = matrices.iter().filter(is_unlike).count();
        (unlike >= FEWEST && unlike * 10 >= matrices.len() * 9).then_some(Unlike { unlike, of: matrices.len() })
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
    // Of a known family names mean a weight; of any other equal names are one, and what the others are is to be found.
    let is_general = a.is_of_no_family();
    let shared = |key: &Key| {
        !is_general || a.tensor(key).zip(b.tensor(key)).is_some_and(|(left, right)| left.name() == right.name())
    };
    let alone = [a.alone(b), b.alone(a)];
    let parts = match is_general {
        true => BTreeSet::new(),
        false => general::parts([a, b], alone.clone(), options, progress, &mut out),
    };
    let parts: BTreeSet<Key> = parts.iter().map(|name| Key::of(name)).collect();
    let keys: BTreeSet<Key> = a.keys().chain(b.keys()).filter(|key| shared(key) && !parts.contains(key)).collect();
    let total = keys.len();
    let mut judged = Vec::new();
    for (done, key) in keys.into_iter().enumerate() {
        progress(done, total);
        match (a.tensor(&key), b.tensor(&key)) {
            (Some(left), Some(right)) => judged.extend(both(key, [a, b], [left, right], options, &mut out)),
            (Some(left), None) => missing(&key, [a, b], left, &alone[1], &mut out)?,
            (None, Some(right)) => extra(&key, [a, b], right, &alone[0], &mut out)?,
            (None, None) => {}
        }
    }
    // A loader that copies one quantised tensor copies all: in none of them is anything to be lost.
    let copies = judged.iter().any(|j| j.copy);
    for judged in &mut judged {
        if copies && judged.dequantised && judged.same == Some(Same::Noise) {
            // No order of rows is the right one where the values are not.
            (judged.same, judged.order) = (None, None);
        }
    }
    one_row_order(&mut judged, [a, b], &mut out);
    for judged in judged.iter().filter(|j| j.same.is_none()) {
        blame(judged, [a, b], copies, &mut out);
    }
    if is_general {
        general::compare([a, b], options, progress, &mut out);
    }
    folded::folded(&judged, [a, b], &mut out);
    progress(total, total);
    if out.another_model().is_some() {
        // Of another model nothing is a mistake but what was reproduced.
        out.findings.iter_mut().filter(|f| f.residual_nmse.is_none()).for_each(|f| f.cause = None);
    }
    fold(&mut out);
    notes(&judged, [a, b], options, &mut out);
    Ok(out)
}

/// What else should be known, of a tensor or of all.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The tensor, where it is of one.
    pub tensor: Option<String>,
    /// What is to be said.
    pub text: String,
}

impl Note {
    fn of_all(text: impl ToString) -> Note {
        Note { tensor: None, text: text.to_string() }
    }

    fn of(tensor: impl ToString, text: impl ToString) -> Note {
        Note { tensor: Some(tensor.to_string()), ..Note::of_all(text) }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.tensor {
            Some(tensor) => write!(f, "{tensor}: {}", self.text),
            None => f.write_str(&self.text),
        }
    }
}

/// What else should be known.
fn notes(judged: &[Judged], sides: [&Side; 2], options: Options, out: &mut Comparison) {
    if options.sample {
        out.warnings.push(Note::of_all("--sample: one tile of rows in 16 was looked at"));
    }
    for side in sides {
        out.warnings.extend(side.notes().iter().map(Note::of_all));
    }
    if let (Some(a), Some(b)) = (sides[0].heads(), sides[1].heads())
        && a != b
    {
        let words = |(queries, keys): (usize, usize)| format!("{queries} heads of queries and {keys} of keys");
        let [left, right] = sides.map(Side::label);
        out.warnings.push(Note::of_all(format!("{left} says it has {}, {right} that it has {}", words(a), words(b))));
    }
    let cut: Vec<&Judged> = judged.iter().filter(|j| j.same == Some(Same::Rounded { cut: true })).collect();
    out.warnings.extend(cut.iter().map(|j| Note::of(j.key.name(), "its values were cut to bf16, not rounded")));
    let turned: usize =
        out.findings.iter().filter(|f| f.cause == Some(WEIGHT_TRANSPOSED.id)).map(|f| f.tensors.len()).sum();
    let matrices = out.tensors.iter().filter(|t| t.shape.len() == 2 && !matches!(t.state, State::Unchecked(_))).count();
    // The embedding is a table, whichever way the matrices lie.
    if turned >= 4 && turned + 2 >= matrices {
        let [a, b] = sides.map(Side::label);
        let text = format!(
            "all matrices of the layers of {b} lie transposed to those of {a}: no mistake if it multiplies with them so"
        );
        out.warnings.push(Note::of_all(text));
    }
}

/// A pair of tensors that was measured.
struct Judged {
    key: Key,
    /// Where it stands in the comparison's tensors.
    index: usize,
    same: Option<Same>,
    /// Which of the orders its rows may stand in was the right one, where no other is.
    order: Option<usize>,
    copy: bool,
    dequantised: bool,
}

/// Q and K in orders of rows that no RoPE pairing makes right together: those that are in the other order than most are wrong; of as many,
/// those that are not in A's.
fn one_row_order(judged: &mut [Judged], [a, b]: [&Side; 2], out: &mut Comparison) {
    let count = |order| judged.iter().filter(|j| j.same.is_some() && j.order == Some(order)).count();
    let (as_a, other) = (count(0), count(1));
    let wrong = match (as_a, other) {
        (_, 0) => return,
        (0, _) => None,
        _ if other > as_a => Some(0),
        _ => Some(1),
    };
    for judged in judged.iter_mut().filter(|j| j.same.is_some() && j.order.is_some()) {
        if judged.order == wrong {
            judged.same = None;
            out.tensors[judged.index].state = State::Wrong;
        } else if judged.order == Some(1) {
            let text = format!(
                "rows in the other RoPE order than {}'s, which {} does not say; right if it rotates the other pairs",
                a.label(),
                b.label()
            );
            out.warnings.push(Note::of(judged.key.name(), text));
        }
    }
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

/// A tensor that both sides hold, measured; `None` where it cannot be.
fn both(
    key: Key,
    sides: [&Side; 2],
    [left, right]: [Tensor<'_>; 2],
    options: Options,
    out: &mut Comparison,
) -> Option<Judged> {
    let mut compared = entry(&key, [Some(&left), Some(&right)]);
    let guess = right.is_guess() && right.len() != left.len();
    let size = || format!("{} holds {} values where the weight has {}", right.name(), right.len(), left.len());
    let nothing = || (left.len() == 0 && right.len() == 0).then(|| "it has no elements".to_owned());
    if let Some(reason) = left.unreadable().or(right.unreadable()).or_else(|| guess.then(size)).or_else(nothing) {
        compared.state = State::Unchecked(reason);
        out.tensors.push(compared);
        return None;
    }
    let right = right.shaped_like(&left);
    let pair = Pair { key: &key, sides, left: &left, right: &right, copy: false };
    let (mut same, mut order, mut copy, mut dequantised) = (None, None, false, false);
    if left.shape() == right.shape() {
        let orders = pair.row_orders();
        let measured: Vec<_> = orders.iter().map(|&order| measure(&left, &right.in_order(order), options)).collect();
        let right_orders: Vec<usize> = (0..orders.len()).filter(|&i| measured[i].same().is_some()).collect();
        let best = &measured[right_orders.first().copied().unwrap_or(0)];
        compared.measured(best);
        (same, copy, dequantised) = (best.same(), best.is_copy(), best.is_dequantised());
        order = match right_orders.as_slice() {
            [one] if orders.len() > 1 => Some(*one),
            _ => None,
        };
    }
    compared.state = same.map_or(State::Wrong, Same::state);
    out.tensors.push(compared);
    Some(Judged { key, index: out.tensors.len() - 1, same, order, copy, dequantised })
}

/// Says why a pair is not the same. `copies`: B's are copies of A's blocks, in which no error is due.
fn blame(judged: &Judged, sides: [&Side; 2], copies: bool, out: &mut Comparison) {
    let [Some(left), Some(right)] = sides.map(|side| side.tensor(&judged.key)) else { return };
    let right = right.shaped_like(&left);
    let pair = Pair { key: &judged.key, sides, left: &left, right: &right, copy: copies && judged.dequantised };
    let compared = &mut out.tensors[judged.index];
    compared.state = State::Wrong;
    if pair.copy {
        compared.allowed = Some(OTHER_ORDER);
    }
    let Diagnosis { cause, note, residual, .. } = match judged.order {
        Some(order) => diagnose::mixed_order(&pair, order),
        None => diagnose::diagnose(&pair, compared.nmse, compared.allowed),
    };
    out.findings.push(finding(cause, &judged.key, note, residual));
}

/// What is wrong with one tensor.
fn finding(cause: Option<&'static Mistake>, key: &Key, note: String, residual_nmse: Option<f64>) -> Finding {
    let cause = cause.map(|mistake| mistake.id);
    Finding { cause, tensors: vec![key.name().into()], note, residual_nmse }
}

/// Why a tensor was not looked at that a side holds under no name of its own: it may be a part of what that side alone has, or that a part of it.
fn joined(tensor: &Tensor<'_>, side: &Side, alone: &[Name]) -> Option<String> {
    let named = Named::of(tensor.name());
    let (name, _) = alone.iter().find(|(_, other)| other.may_be_joined(&named))?;
    Some(format!("{} may hold it with {name}, in no way known here", side.label()))
}

/// A tensor that B does not hold. `alone`: those that only B has.
fn missing(
    key: &Key,
    [a, b]: [&Side; 2],
    left: Tensor<'_>,
    alone: &[Name],
    out: &mut Comparison,
) -> Result<(), ModelError> {
    let mut compared = entry(key, [Some(&left), None]);
    let role = key.weight().map(|w| w.role);
    let finding = |cause, note: String| finding(cause, key, note, None);
    if b.holds_some(a) {
        compared.state = State::Unchecked("not dumped".into());
    } else if let Some(other) = tied_with(role).filter(|other| b.tensor(other).is_some()) {
        // B takes its embedding for its head, or the reverse: right where A's two are the same.
        let same = [a, b].iter().any(|side| side.tensor(&other).is_some_and(|other| is_same(&left, &other)));
        let takes = format!("{} has none and takes {} for it", b.label(), other.name());
        if same {
            compared.state = State::Tied;
        } else {
            compared.state = State::Wrong;
            // In A the two may be one matrix after all, which one of them holds in another order.
            let how = a.tensor(&other).and_then(|other| {
                let pair = Pair { key, sides: [a, b], left: &other, right: &left, copy: false };
                relaid::relaid(&pair, &left.values())
            });
            let embedding_is_right = both_hold_the_same([a, b], &other);
            out.findings.push(match how {
                _ if !embedding_is_right => finding(None, format!("{takes}, which is not {}'s either", a.label())),
                Some((how, _)) => {
                    finding(None, format!("{takes}; in {} it is that matrix in another order: {how}", a.label()))
                }
                None => finding(Some(&HEAD_TIED), format!("{takes}, which is another matrix in {}", a.label())),
            });
        }
    } else if is_derived(key.name()) {
        compared.state = State::Unchecked("a table that is computed, not learnt".into());
    } else if is_bias(role) && left.values().iter().all(|x| *x == 0.0) {
        compared.state = State::Unchecked(format!("{} does not hold it, and it is zero", b.label()));
    } else if let Some(name) = elsewhere([a, b], &left) {
        compared.state = State::Unchecked(format!("{} holds its values under the name {name}", b.label()));
    } else if let Some(reason) = joined(&left, b, alone) {
        compared.state = State::Unchecked(reason);
    } else {
        compared.state = State::Wrong;
        out.findings.push(finding(is_bias(role).then_some(&BIAS_OMITTED), format!("{} does not hold it", b.label())));
    }
    out.tensors.push(compared);
    Ok(())
}

/// A tensor that only B holds. `alone`: those that only A has.
fn extra(
    key: &Key,
    [a, b]: [&Side; 2],
    right: Tensor<'_>,
    alone: &[Name],
    out: &mut Comparison,
) -> Result<(), ModelError> {
    let mut compared = entry(key, [None, Some(&right)]);
    let role = key.weight().map(|w| w.role);
    if let Some(found) = by_content(a, &right) {
        compared.state = State::Rounded;
        out.warnings.push(Note::of(right.name(), format!("its {} values are the first of {}", right.len(), found)));
    } else if let Some(other) = tied_with(role) {
        let same = b.tensor(&other).is_some_and(|other| is_same(&other, &right));
        match (a.tensor(&other).is_some(), same) {
            (true, true) => compared.state = State::Tied,
            (true, false) => untied(key, [a, b], &other, &right, &mut compared, out),
            _ => compared.state = State::Unchecked(format!("{} does not hold it", a.label())),
        }
    } else if is_derived(key.name()) || b.is_dump() || role.is_none() {
        compared.state = State::Unchecked(format!("{} does not hold it", a.label()));
    } else if is_bias(role) && right.values().iter().all(|x| *x == 0.0) {
        compared.state = State::Unchecked(format!("{} does not hold it, and it is zero", a.label()));
    } else if let Some(reason) = joined(&right, a, alone) {
        compared.state = State::Unchecked(reason);
    } else {
        compared.state = State::Wrong;
        let note = format!("{} does not hold it", a.label());
        out.findings.push(finding(None, key, note, None));
    }
    out.tensors.push(compared);
    Ok(())
}

/// B has a head of its own where A ties it. That it is another matrix is said only where it is the tied one in no order and under no known mistake.
fn untied(
    key: &Key,
    sides: [&Side; 2],
    other: &Key,
    right: &Tensor<'_>,
    compared: &mut Compared,
    out: &mut Comparison,
) {
    let [a, b] = sides;
    let Some(left) = a.tensor(other) else { return };
    let right = right.shaped_like(&left);
    let measured = (left.shape() == right.shape())
        .then(|| measure(&left, &right, Options::default()))
        .filter(|m| m.nmse().is_some());
    if measured.as_ref().is_some_and(|measured| measured.same().is_some()) {
        compared.state = State::Tied;
        return;
    }
    compared.state = State::Wrong;
    let (nmse, allowed) = (measured.as_ref().and_then(|m| m.nmse()), measured.as_ref().map(|m| m.allowed()));
    let pair = Pair { key, sides, left: &left, right: &right, copy: false };
    let Diagnosis { cause, note, residual, .. } = diagnose::diagnose(&pair, nmse, allowed);
    let like_it = nmse.is_some_and(|nmse| nmse < OTHER_MATRIX);
    let ties = format!("{} ties it to {}", a.label(), other.name());
    let (cause, note) = match cause.is_some() || residual.is_some() || like_it || right.len() != left.len() {
        true => (cause, format!("{ties}; against that: {note}")),
        false if !both_hold_the_same(sides, other) => {
            (None, format!("{ties}, which is another matrix in {} too", b.label()))
        }
        false => (Some(&HEAD_UNTIED), format!("{ties}, and {} has another matrix for it", b.label())),
    };
    out.findings.push(finding(cause, key, note, residual));
}

/// Whether `right` holds the values of `left`.
fn is_same(left: &Tensor<'_>, right: &Tensor<'_>) -> bool {
    let right = right.shaped_like(left);
    left.shape() == right.shape() && measure(left, &right, Options::default()).same().is_some()
}

/// Whether both sides have that tensor, and it is the same.
fn both_hold_the_same([a, b]: [&Side; 2], key: &Key) -> bool {
    match (a.tensor(key), b.tensor(key)) {
        (Some(left), Some(right)) => is_same(&left, &right),
        _ => false,
    }
}

/// The name under which B holds the values of a tensor of A's, if it is no name of A's.
fn elsewhere([a, b]: [&Side; 2], left: &Tensor<'_>) -> Option<String> {
    let alone = b.all().filter(|(key, tensor)| a.tensor(key).is_none() && tensor.len() == left.len());
    let same = |tensor: &Tensor<'_>| measure(left, &tensor.shaped_like(left), Options::default()).same().is_some();
    let telling = left.sample().windows(2).any(|pair| pair[0] != pair[1]);
    let mut alone =
        alone.filter(|(_, tensor)| telling && tensor.shaped_like(left).shape() == left.shape() && same(tensor));
    alone.next().map(|(_, tensor)| tensor.name().to_owned())
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

fn is_bias(role: Option<Role>) -> bool {
    use Role::{AttnOutBias, DownBias, GateBias, KBias, QBias, UpBias, VBias};
    matches!(role, Some(QBias | KBias | VBias | AttnOutBias | GateBias | UpBias | DownBias))
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
            && first.iter().zip(&values).all(|(x, y)| (x - y).abs() <= SAME_VALUE * x.abs().max(SMALL_VALUE));
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
        cosine: None,
    }
}

/// Findings of the same kind in several layers become one.
fn fold(out: &mut Comparison) {
    let mut folded: Vec<Finding> = Vec::new();
    let mut at: BTreeMap<(Option<&str>, String, bool), usize> = BTreeMap::new();
    // Notes whose numbers are not those of every tensor.
    let mut differing: BTreeSet<usize> = BTreeSet::new();
    for finding in out.findings.drain(..) {
        // Numbers apart, the same words.
        let words: String = finding.note.chars().filter(|c| !c.is_ascii_digit() && *c != '.' && *c != ',').collect();
        let kind = (finding.cause, words, finding.residual_nmse.is_some());
        match at.get(&kind) {
            Some(&index) => {
                let first = &mut folded[index];
                first.tensors.extend(finding.tensors);
                let residuals = first.residual_nmse.zip(finding.residual_nmse);
                first.residual_nmse = residuals.map(|(one, other)| one.max(other));
                if first.note != finding.note {
                    differing.insert(index);
                }
            }
            None => {
                at.insert(kind, folded.len());
                folded.push(finding);
            }
        }
    }
    for index in differing {
        let Finding { note, tensors, .. } = &mut folded[index];
        *note += &format!(" (numbers of {}; those of the others differ)", tensors[0]);
    }
    out.findings = folded;
}
