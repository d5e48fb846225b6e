//! Mixtures of experts: how often each expert's part is counted for each token, which expert it is, and what it is made of.

mod chained;
mod otherwise;
mod placed;
mod weighed;

use std::sync::Arc;

use ndarray::{Array2, ArrayD};

use crate::case::{Axis, Case, Inner};
use crate::describe::choice;
use crate::describe::function::describe as describe_function;
use crate::describe::set::Set;
use crate::describe::source::{describe as describe_source, only};
use crate::describe::table::describe as describe_table;
use crate::fit::{ROOM, least_squares};
use crate::identify::after::{Offers, by_row, softmax};
use crate::identify::output::roundings::OfValue;
use crate::identify::subject::{Subject, two};
use crate::identify::{OnPart, output};
use crate::law::{Form, Law};
use crate::number::{Measured, SURE};

/// What a mixture reads: the tokens' rows, the weights of what is chosen, and the choice.
pub(super) struct Routed {
    /// `[T,k]`
    weights: Array2<f64>,
    /// `[T,k]`
    chosen: Array2<usize>,
    experts: usize,
}

/// Experts up to which the part of each is counted.
const MOST_EXPERTS: usize = 256;
/// The last digits of f32, as a share.
const LAST_DIGITS: f64 = 1e-7;

impl Routed {
    fn of(case: &Case<'_>, at: usize) -> Option<Routed> {
        let [_, weights, chosen] = &case.places[at].inputs[..] else { return None };
        let (weights, chosen) = (two(weights)?, two(chosen)?);
        let experts = case.operation.experts(at);
        let is_one = |e: &f64| e.fract() == 0.0 && (0.0..experts as f64).contains(e);
        (weights.dim() == chosen.dim() && experts > 1 && chosen.iter().all(is_one)).then_some(())?;
        Some(Routed { weights, chosen: chosen.mapv(|e| e as usize), experts })
    }

    fn tokens(&self) -> usize {
        self.chosen.nrows()
    }

    fn slots(&self) -> usize {
        self.chosen.ncols()
    }

    fn all(&self) -> impl Iterator<Item = (usize, usize)> + use<> {
        let slots = self.slots();
        (0..self.tokens()).flat_map(move |t| (0..slots).map(move |s| (t, s)))
    }

    /// Tokens and slots in the order of their experts, as a grouped product takes them.
    fn sorted(&self) -> Vec<(usize, usize)> {
        let mut all: Vec<(usize, usize)> = self.all().collect();
        all.sort_by_key(|&at| self.chosen[at]);
        all
    }
}

/// Of each token and slot: which expert, of the input of which token, and how often.
struct Term {
    expert: usize,
    token: usize,
    weight: f64,
    /// What it is made with, where that depends on the slot.
    inner: Option<Inner>,
}

/// A token and one of its slots.
type Slot = (usize, usize);
/// The terms of a mixture, of what is chosen: each with the slot that it is added to.
type Terms = Arc<dyn Fn(&Routed) -> Vec<(Slot, Term)> + Send + Sync>;
/// What an expert's part is made of: of its number, and of how many there are.
type Made = Arc<dyn Fn(usize, usize) -> Inner + Send + Sync>;

fn mixed(case: &Case<'_>, at: usize, terms: &Terms, made: &Made, round: &OfValue) -> Option<ArrayD<f64>> {
    let routed = Routed::of(case, at)?;
    let mut out: Option<Array2<f64>> = None;
    for ((t, _), term) in terms(&routed) {
        let part = case.operation.part(at, term.inner.unwrap_or_else(|| made(term.expert, routed.experts)))?;
        let out = out.get_or_insert_with(|| Array2::zeros((routed.tokens(), part.ncols())));
        (term.token < part.nrows()).then_some(())?;
        out.row_mut(t).scaled_add(term.weight, &part.row(term.token).mapv(|x| round(x)));
    }
    out?.into_dyn().to_shape(case.places[at].right.raw_dim()).ok().map(|out| out.into_owned())
}

fn own() -> Made {
    Arc::new(|expert, _| Inner::of(expert))
}

fn as_it_is() -> OfValue {
    Arc::new(|x| x)
}

/// The term of each slot, of its own token; none where it is left out.
fn of_slots(of: impl Fn(&Routed, Slot) -> Option<(usize, f64)> + Send + Sync + 'static) -> Terms {
    Arc::new(move |routed| {
        let term =
            |at: Slot| of(routed, at).map(|(expert, weight)| (at, Term { expert, token: at.0, weight, inner: None }));
        routed.all().filter_map(term).collect()
    })
}

/// The usual terms in the list sorted by expert, each changed by its number in it; with each goes the slot that it is added to.
fn in_sorted(change: impl Fn(&Routed, usize, &mut (Slot, Term)) + Send + Sync + 'static) -> Terms {
    Arc::new(move |routed| {
        let term = |(number, at): (usize, Slot)| {
            let mut term =
                (at, Term { expert: routed.chosen[at], token: at.0, weight: routed.weights[at], inner: None });
            change(routed, number, &mut term);
            term
        };
        routed.sorted().into_iter().enumerate().map(term).collect()
    })
}

/// Each in the list sorted by expert is run by the expert of another in it, by the numbers of both and of how many there are.
fn run_by(other: impl Fn(usize, usize) -> usize + Send + Sync + 'static) -> Terms {
    Arc::new(move |routed| {
        let sorted = routed.sorted();
        let term = |(number, &at): (usize, &Slot)| {
            let expert = routed.chosen[sorted[other(number, sorted.len())]];
            (at, Term { expert, token: at.0, weight: routed.weights[at], inner: None })
        };
        sorted.iter().enumerate().map(term).collect()
    })
}

fn as_chosen() -> Terms {
    of_slots(|routed, at| Some((routed.chosen[at], routed.weights[at])))
}

/// What the expert in one slot of each token makes of other rows than those that are read; `None` where it cannot be computed.
fn made_of(case: &Case<'_>, at: usize, routed: &Routed, slots: &[usize], x: &Array2<f64>) -> Option<Array2<f64>> {
    let mut made: Option<Array2<f64>> = None;
    for expert in 0..routed.experts {
        let of: Vec<usize> = (0..routed.tokens()).filter(|&t| routed.chosen[[t, slots[t]]] == expert).collect();
        if of.is_empty() {
            continue;
        }
        let part = case.operation.part_of(at, Inner::of(expert), x)?;
        let made = made.get_or_insert_with(|| Array2::zeros(part.dim()));
        of.into_iter().for_each(|t| made.row_mut(t).assign(&part.row(t)));
    }
    made
}

/// The laws of a mixture.
pub(super) fn laws(case: &Case<'_>) -> Vec<Law> {
    let Some(routed) = Routed::of(case, case.fitted).filter(|routed| routed.experts <= MOST_EXPERTS) else {
        return Vec::new();
    };
    let subject = Subject::output(case);
    let wrong = output::wrong_parts(&subject, case);
    let [tokens, channels] = &wrong[..] else { return Vec::new() };
    let wrong_channels: Vec<usize> = (0..channels.has.len()).filter(|c| channels.has[*c]).collect();
    let found = coefficients(case, &routed, &wrong_channels);
    let counted = |tokens: Set| {
        let found = found.as_ref()?;
        Some(counted(case, &routed, found, &subject, &[tokens, channels.clone()]))
    };
    // Of all tokens, or of those alone that are wrong.
    let mut laws = counted(Set::all(tokens.has.len())).unwrap_or_default();
    if laws.is_empty() && !tokens.is_all() {
        laws = counted(tokens.clone()).unwrap_or_default();
    }
    if laws.is_empty() {
        let mut offers = Offers::of(case);
        placed::placed(&mut offers);
        otherwise::routed(&mut offers);
        otherwise::made(&mut offers);
        weighed::inputs(&mut offers);
        if offers.laws.is_empty() {
            chained::chained(&mut offers);
        }
        laws.extend(offers.laws);
    }
    laws
}

fn offer(offers: &mut Offers<'_>, words: String, bits: f64, terms: Terms, made: Made) {
    offers.offer(Form::Experts, words, bits, move |case, at| mixed(case, at, &terms, &made, &as_it_is()));
}

fn of_terms(words: String, bits: f64, terms: Terms) -> Law {
    let made = own();
    Law::new(Form::Experts, words, bits, move |case, at| mixed(case, at, &terms, &made, &as_it_is()))
}

/// How often each expert's part is counted for each token, `[T,E]`; on some channels alone where others are right.
fn coefficients(case: &Case<'_>, routed: &Routed, channels: &[usize]) -> Option<Array2<Measured>> {
    let first = case.first();
    let parts: Vec<Array2<f64>> =
        (0..routed.experts).map(|expert| case.operation.part(case.fitted, Inner::of(expert))).collect::<Option<_>>()?;
    let own = first.own.to_shape((routed.tokens(), first.own.len() / routed.tokens().max(1))).ok()?;
    if channels.len() < routed.experts + 2 || parts.iter().any(|part| part.dim() != own.dim()) {
        return None;
    }
    let size = (own.iter().map(|y| y * y).sum::<f64>() / own.len() as f64).sqrt();
    let mut all = Array2::from_elem((routed.tokens(), routed.experts), Measured::UNKNOWN);
    for t in 0..routed.tokens() {
        let row = |x: ndarray::ArrayView1<'_, f64>| channels.iter().map(|c| x[*c]).collect::<Vec<f64>>();
        let columns: Vec<Vec<f64>> = parts.iter().map(|part| row(part.row(t))).collect();
        let wanted = row(own.row(t));
        let length = (wanted.iter().map(|y| y * y).sum::<f64>() / wanted.len() as f64).sqrt();
        if length <= first.noise() * size {
            all.row_mut(t).fill(Measured::new(0.0, first.noise()));
            continue;
        }
        let views: Vec<&[f64]> = columns.iter().map(Vec::as_slice).collect();
        let noise = first.noise() * size.max(length) / length;
        let fit = least_squares(&views, &wanted, noise).filter(|fit| fit.left <= ROOM * noise)?;
        all.row_mut(t).iter_mut().zip(fit.coefficients).for_each(|(to, m)| *to = m);
    }
    Some(all)
}

/// Laws of how often parts are counted, on these tokens and channels.
fn counted(
    case: &Case<'_>,
    routed: &Routed,
    found: &Array2<Measured>,
    subject: &Subject,
    parts: &[Set; 2],
) -> Vec<Law> {
    let on = &parts[0].has;
    let slots = || routed.all().filter(|(t, _)| on[*t]);
    let mut laws = Vec::new();
    // Each chosen expert stands for another one.
    let stands_for = |expert: usize, other: usize| {
        slots().filter(|at| routed.chosen[*at] == expert).all(|(t, s)| found[[t, other]].may_be(routed.weights[[t, s]]))
    };
    let others = only(routed.experts, routed.experts, &stands_for);
    if let Some(from) = others {
        let source = describe_source(&from, routed.experts, Axis::Expert);
        if !source.is_itself {
            let words = format!("the part of each expert i is made by {}", source.words);
            let from = source.from;
            let terms = of_slots(move |routed, at| Some((*from.get(routed.chosen[at])?, routed.weights[at])));
            laws.push(of_terms(words, source.bits + 4.0, terms));
        }
    }
    // Each expert is counted as another tensor of all experts says.
    let counts = |x: &ArrayD<f64>, is_soft: bool| -> Option<Array2<f64>> {
        if is_soft { by_row(x, softmax) } else { x.clone() }.into_dimensionality().ok()
    };
    for (name, x) in case.first().around.iter().filter(|(_, x)| x.shape() == found.shape()) {
        for is_soft in [false, true] {
            let Some(of) = counts(x, is_soft) else { continue };
            if !found.indexed_iter().all(|(at, m)| !on[at.0] || m.may_be(of[at])) {
                continue;
            }
            let read = if is_soft { format!("the softmax of {name}") } else { name.clone() };
            let name = name.clone();
            let predict = move |case: &Case<'_>, at: usize| {
                let (_, x) = case.places[at].around.iter().find(|(other, _)| *other == name)?;
                let x = counts(x, is_soft)?;
                let mut out: Option<Array2<f64>> = None;
                for expert in 0..case.operation.experts(at) {
                    let part = case.operation.part(at, Inner::of(expert))?;
                    let out = out.get_or_insert_with(|| Array2::zeros(part.raw_dim()));
                    *out += &(&part * &x.column(expert).insert_axis(ndarray::Axis(1)));
                }
                out?.into_dyn().to_shape(case.places[at].right.raw_dim()).ok().map(|out| out.into_owned())
            };
            let words = format!("all experts are counted, each as {read} says");
            laws.push(Law::new(Form::Experts, words, 8.0, predict));
        }
    }
    let mut of_others: Vec<Law> = Vec::new();
    let mut say = |words: String, bits: f64, terms: Terms| laws.push(of_terms(words, bits, terms));
    // Whether the parts of these terms are counted as they were measured.
    let is_counted = |terms: &Terms| {
        let mut due = Array2::<f64>::zeros(found.raw_dim());
        terms(routed).iter().for_each(|((t, _), term)| due[[*t, term.expert]] += term.weight);
        found.indexed_iter().all(|((t, expert), m)| !on[t] || m.may_be(due[[t, expert]]))
    };
    // The slots of a token run the expert of another slot.
    type OfSlot = fn(usize, usize) -> usize;
    let other_slots: [(&str, OfSlot); 4] = [
        ("all slots of a token run the expert of its first (the likeliest)", |_, _| 0),
        ("all slots of a token run the expert of its last", |_, slots| slots - 1),
        ("each slot of a token runs the expert of the next, around the end", |s, slots| (s + 1) % slots),
        ("the slots of a token run its experts in reverse", |s, slots| slots - 1 - s),
    ];
    let mut ways: Vec<(String, f64, Terms)> = Vec::new();
    for (words, other) in other_slots {
        let terms = of_slots(move |routed, (t, s)| {
            Some((routed.chosen[[t, other(s, routed.slots())]], routed.weights[[t, s]]))
        });
        ways.push((format!("{words}, each with its own weight"), 6.0, terms));
    }
    if routed.slots() < routed.experts {
        let by_slot = of_slots(|routed, (t, s)| Some((s, routed.weights[[t, s]])));
        let words = "the number of the slot is taken for that of the expert: slot s runs expert s";
        ways.push((words.to_owned(), 6.0, by_slot));
    }
    // The experts of a token are brought into another order, and their weights stay.
    for (words, is_falling) in [("rising", false), ("falling", true)] {
        let terms = of_slots(move |routed, (t, s)| {
            let mut experts = routed.chosen.row(t).to_vec();
            experts.sort_unstable();
            let at = if is_falling { routed.slots() - 1 - s } else { s };
            Some((experts[at], routed.weights[[t, s]]))
        });
        let words = format!(
            "the chosen experts of each token are sorted by their numbers, {words}, and their weights are not sorted with them"
        );
        ways.push((words, 7.0, terms));
    }
    // Tiles of the tokens in the order of their experts.
    for tile in [2usize, 4, 8, 16, 32, 64, 128].into_iter().filter(|_| parts[0].is_all()) {
        for (which, is_last) in [("first", false), ("last", true)] {
            let terms = run_by(move |number, count| {
                let first = number / tile * tile;
                if is_last { (first + tile - 1).min(count - 1) } else { first }
            });
            let words = format!(
                "tokens sorted by expert are taken by tiles of {tile}, and each tile has the expert of its {which} token"
            );
            ways.push((words, 9.0 + choice(tile), terms));
        }
    }
    ways.into_iter().filter(|(.., terms)| is_counted(terms)).for_each(|(words, bits, terms)| say(words, bits, terms));
    // One expert is counted for every token besides.
    for expert in 0..routed.experts {
        let due = |t: usize| -> f64 {
            (0..routed.slots()).filter(|s| routed.chosen[[t, *s]] == expert).map(|s| routed.weights[[t, s]]).sum()
        };
        let extra = Measured::mean((0..routed.tokens()).filter(|t| on[*t]).map(|t| found[[t, expert]].plus(-due(t))));
        if !extra.is_known() || extra.may_be(0.0) {
            continue;
        }
        let number = extra.number();
        let by = number.value;
        let terms: Terms = Arc::new(move |routed| {
            let besides = (0..routed.tokens()).map(|t| ((t, 0), Term { expert, token: t, weight: by, inner: None }));
            as_chosen()(routed).into_iter().chain(besides).collect()
        });
        if is_counted(&terms) {
            let times = if by == 1.0 { String::new() } else { format!("{} times ", number.words) };
            say(
                format!(
                    "{times}the part of expert {expert} is added for every token besides those of the chosen experts"
                ),
                7.0 + choice(routed.experts) + number.bits,
                terms,
            );
            break;
        }
    }
    // What is not chosen is not counted, or it is another choice.
    let is_chosen = |t: usize, expert: usize| (0..routed.slots()).any(|s| routed.chosen[[t, s]] == expert);
    let is_of_choice = found.indexed_iter().all(|((t, expert), m)| !on[t] || is_chosen(t, expert) || m.may_be(0.0));
    if is_of_choice {
        let count = |at: (usize, usize)| found[[at.0, routed.chosen[at]]];
        let factor = |at: (usize, usize)| {
            let (m, w) = (count(at), routed.weights[at]);
            Measured::new(m.value / w, m.error / w.abs().max(f64::MIN_POSITIVE))
        };
        let mean = |is: &dyn Fn(Slot) -> bool| {
            Measured::mean(slots().filter(|at| is(*at)).map(factor).collect::<Vec<_>>().into_iter())
        };
        let fits = |by: &dyn Fn(Slot) -> f64| slots().all(|at| factor(at).may_be(by(at)));
        // By expert, by slot, by token.
        let by_expert: Vec<Measured> = (0..routed.experts).map(|e| mean(&|at| routed.chosen[at] == e)).collect();
        let by_slot: Vec<Measured> = (0..routed.slots()).map(|s| mean(&|at| at.1 == s)).collect();
        let by_token: Vec<Measured> = (0..routed.tokens()).map(|t| mean(&|at| at.0 == t)).collect();
        type Index = fn(&Routed, Slot) -> usize;
        let tables: [(&str, Axis, Vec<Measured>, Index); 3] = [
            ("the part of each expert is", Axis::Expert, by_expert, |routed, at| routed.chosen[at]),
            ("the part in each slot (a row; 0: the likeliest) is", Axis::Row, by_slot, |_, at| at.1),
            ("all parts are", Axis::Token, by_token, |_, at| at.0),
        ];
        for (whose, axis, measured, index) in tables {
            let Some(table) = describe_table(&measured, axis, Some(1.0), case.tokens_of(axis)) else { continue };
            let values = table.values;
            if !fits(&|at| values[index(routed, at)]) {
                continue;
            }
            let words = format!("{whose} counted {} times", table.words);
            let terms = of_slots(move |routed, at| {
                Some((routed.chosen[at], routed.weights[at] * values.get(index(routed, at))?))
            });
            say(words, table.bits + 4.0, terms);
        }
        // The sum of what another tensor says of the chosen, multiplied once more or divided by.
        for (name, x) in case.first().around.iter().filter(|(_, x)| x.shape() == found.shape()) {
            for (is_soft, is_divided) in [(false, true), (true, true), (false, false), (true, false)] {
                let Some(sums) = counts(x, is_soft).map(|of| sums_of_chosen(routed, &of)) else { continue };
                let by = move |sum: f64| if is_divided { 1.0 / sum } else { sum };
                if !fits(&|at| by(sums[at.0])) {
                    continue;
                }
                let read = if is_soft { format!("the softmax of {name}") } else { name.clone() };
                let done = if is_divided { "divided" } else { "multiplied" };
                let name = name.clone();
                let predict = move |case: &Case<'_>, at: usize| {
                    let routed = Routed::of(case, at)?;
                    let (_, x) = case.places[at].around.iter().find(|(other, _)| *other == name)?;
                    let sums = sums_of_chosen(&routed, &counts(x, is_soft)?);
                    let terms = of_slots(move |routed, at| {
                        Some((routed.chosen[at], routed.weights[at] * by(*sums.get(at.0)?)))
                    });
                    mixed(case, at, &terms, &own(), &as_it_is())
                };
                let words = format!("the parts of each token are {done} by the sum of what {read} says of its experts");
                of_others.push(Law::new(Form::Experts, words, 9.0, predict));
            }
        }
        // One number for all, or a function of the weight.
        let due: Vec<f64> = slots().map(|at| routed.weights[at]).collect();
        let measured: Vec<Measured> = slots().map(count).collect();
        let one = Measured::mean(measured.iter().copied());
        // The mean of all is surer than what f32 makes of each.
        let number = Measured::new(one.value, one.error.max(LAST_DIGITS * one.value.abs())).number();
        let is_one = |m: &Measured| (m.value - number.value).abs() <= SURE * m.error.max(LAST_DIGITS * m.value.abs());
        let is_own = due.iter().zip(&measured).all(|(w, m)| m.may_be(*w));
        if one.is_known() && number.value != 0.0 && !is_own && measured.iter().all(|m| !m.is_known() || is_one(m)) {
            let by = number.value;
            let terms = of_slots(move |routed, at| Some((routed.chosen[at], by)));
            let said = format!("each part is counted {} times in place of its weight", number.words);
            say(said, 5.0 + number.bits, terms);
        }
        if let Some(function) = describe_function(&due, &measured) {
            let f = function.f.clone();
            let terms = of_slots(move |routed, at| Some((routed.chosen[at], f(routed.weights[at]))));
            say(format!("each part is counted {} times (w: its weight)", function.of("w")), function.bits + 3.0, terms);
        }
        // Tokens that an expert leaves out: by their number in its list.
        for (words, bits, keeps) in lists(routed.tokens()) {
            let kept = kept(routed, keeps);
            if !fits(&|at| f64::from(u8::from(kept[at]))) {
                continue;
            }
            let terms: Terms = Arc::new(move |routed| {
                let kept = self::kept(routed, keeps);
                as_chosen()(routed).into_iter().filter(|(at, _)| kept[*at]).collect()
            });
            say(words, bits, terms);
            break;
        }
    }
    laws.extend(of_others);
    match OnPart::of(subject, parts) {
        Some(on) => laws.into_iter().map(|law| on.put(law)).collect(),
        None => laws,
    }
}

/// Of each token the sum over its experts of what is said of them `[T,E]`.
fn sums_of_chosen(routed: &Routed, of: &Array2<f64>) -> Vec<f64> {
    let row = |t: usize| routed.chosen.row(t).iter().filter_map(|e| of.get([t, *e])).sum();
    (0..routed.tokens()).map(row).collect()
}

/// Which of its tokens an expert takes: of the number in its list, and of how many there are.
#[derive(Clone, Copy)]
enum Keeps {
    WholeTiles(usize),
    First(usize),
    From(usize),
}

impl Keeps {
    fn has(self, number: usize, count: usize) -> bool {
        match self {
            Keeps::WholeTiles(tile) => number < count / tile * tile,
            Keeps::First(most) => number < most,
            Keeps::From(first) => number >= first,
        }
    }
}

fn lists(tokens: usize) -> Vec<(String, f64, Keeps)> {
    let mut all = Vec::new();
    for n in 1..tokens.min(257) {
        let bits = 8.0 + choice(n);
        if n > 1 {
            all.push((
                format!("each expert takes its tokens by whole tiles of {n}, and leaves out the rest"),
                bits,
                Keeps::WholeTiles(n),
            ));
        }
        all.push((format!("each expert takes no more than its first {n} tokens"), bits, Keeps::First(n)));
        all.push((format!("each expert leaves out its first {n} tokens"), bits, Keeps::From(n)));
    }
    all
}

fn kept(routed: &Routed, keeps: Keeps) -> Array2<bool> {
    let mut all = Array2::from_elem(routed.chosen.dim(), true);
    for expert in 0..routed.experts {
        let list: Vec<(usize, usize)> = routed.all().filter(|at| routed.chosen[*at] == expert).collect();
        for (number, at) in list.iter().enumerate() {
            all[*at] = keeps.has(number, list.len());
        }
    }
    all
}
