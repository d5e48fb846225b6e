//! A router's choice: which of its scores are taken for each token, by their rank, among which experts, and what is added before.
//!
//! Where a token has the experts that are due, they stand in the order that is due: that order is nobody's fault, and a case does not have it.

use std::sync::Arc;

use ndarray::{Array2, ArrayView1};

use crate::case::{Axis, Case};
use crate::describe::choice;
use crate::describe::set::describe as describe_set;
use crate::describe::source::describe_one_of;
use crate::identify::subject::two;
use crate::law::{Form, Law};
use crate::number::between;

/// Chooses of scores `[T,E]`: `[T,k]`.
type Choose = Arc<dyn Fn(&Array2<f64>, usize) -> Option<Array2<f64>> + Send + Sync>;
/// Changes scores before they are compared.
type Change = fn(&Array2<f64>) -> Array2<f64>;

/// Scores and what is chosen of them.
struct Scores {
    scores: Array2<f64>,
    own: Array2<f64>,
    due: Array2<f64>,
}

impl Scores {
    fn of(case: &Case<'_>, at: usize) -> Option<Scores> {
        let place = &case.places[at];
        let [scores] = &place.inputs[..] else { return None };
        let (scores, own, due) = (two(scores)?, two(&place.own)?, two(&place.right)?);
        let is_one = |e: &f64| e.fract() == 0.0 && (0.0..scores.ncols() as f64).contains(e);
        (scores.nrows() == own.nrows() && own.ncols() <= scores.ncols() && own.iter().all(is_one)).then_some(())?;
        (due.dim() == own.dim()).then_some(Scores { scores, own, due })
    }

    /// A choice as the case has it.
    fn held(&self, mut chosen: Array2<f64>) -> Array2<f64> {
        for (mut row, due) in chosen.rows_mut().into_iter().zip(self.due.rows()) {
            if is_same_set(row.view(), due) {
                row.assign(&due);
            }
        }
        chosen
    }
}

fn is_same_set(one: ArrayView1<'_, f64>, other: ArrayView1<'_, f64>) -> bool {
    let sorted = |row: ArrayView1<'_, f64>| {
        let mut row = row.to_vec();
        row.sort_by(f64::total_cmp);
        row
    };
    let one = sorted(one);
    one == sorted(other) && one.windows(2).all(|pair| pair[0] != pair[1])
}

/// Experts of a row, the largest score first.
fn ranked(row: ArrayView1<'_, f64>) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    order.sort_by(|&a, &b| row[b].total_cmp(&row[a]));
    order
}

/// The best of each row, as many as are taken.
fn best(scores: &Array2<f64>, taken: usize) -> Option<Array2<f64>> {
    by_rank(scores, &(0..taken).collect::<Vec<_>>())
}

fn by_rank(scores: &Array2<f64>, ranks: &[usize]) -> Option<Array2<f64>> {
    ranks.iter().all(|rank| *rank < scores.ncols()).then_some(())?;
    let mut out = Array2::zeros((scores.nrows(), ranks.len()));
    for (mut to, row) in out.rows_mut().into_iter().zip(scores.rows()) {
        let order = ranked(row);
        to.iter_mut().zip(ranks).for_each(|(to, rank)| *to = order[*rank] as f64);
    }
    Some(out)
}

/// Groups of neighbouring experts, of which those with the largest score of one of them are kept.
fn in_groups(scores: &Array2<f64>, width: usize, kept: usize) -> Array2<f64> {
    let mut out = scores.clone();
    for mut row in out.rows_mut() {
        let most =
            |group: usize| (group * width..(group + 1) * width).map(|e| row[e]).fold(f64::NEG_INFINITY, f64::max);
        let of = ndarray::Array1::from_shape_fn(row.len() / width, most);
        let order = ranked(of.view());
        for group in order.into_iter().skip(kept) {
            (group * width..(group + 1) * width).for_each(|e| row[e] = f64::NEG_INFINITY);
        }
    }
    out
}

/// The best of each group of neighbouring experts, as many of each, the largest score first.
fn of_each_group(scores: &Array2<f64>, width: usize, taken: usize) -> Option<Array2<f64>> {
    let groups = scores.ncols() / width.max(1);
    (groups > 1 && scores.ncols().is_multiple_of(width) && taken.is_multiple_of(groups)).then_some(())?;
    let each = taken / groups;
    (1..width).contains(&each).then_some(())?;
    let mut kept = Array2::from_elem(scores.dim(), f64::NEG_INFINITY);
    for (mut to, row) in kept.rows_mut().into_iter().zip(scores.rows()) {
        for group in 0..groups {
            let of = row.slice(ndarray::s![group * width..(group + 1) * width]);
            ranked(of).into_iter().take(each).for_each(|at| to[group * width + at] = of[at]);
        }
    }
    best(&kept, taken)
}

/// Each column less the logarithm of the sum of its exponentials: a softmax over the positions.
fn over_positions(scores: &Array2<f64>) -> Array2<f64> {
    let mut out = scores.clone();
    for mut column in out.columns_mut() {
        let most = column.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let all = most + column.iter().map(|x| (x - most).exp()).sum::<f64>().ln();
        column.mapv_inplace(|x| x - all);
    }
    out
}

/// Positions whose choice may be that of others, at most.
const MOST_POSITIONS: usize = 256;

/// Each token has the choice of another position.
fn of_other_positions(of: &Scores) -> Option<(String, f64, Choose)> {
    let positions = of.own.nrows();
    let due = best(&of.scores, of.own.ncols()).filter(|_| (2..=MOST_POSITIONS).contains(&positions))?;
    let may_be = |own: ArrayView1<'_, f64>, here: ArrayView1<'_, f64>, due: &Array2<f64>| -> Vec<bool> {
        let is_held = is_same_set(own, here);
        due.rows().into_iter().map(|due| if is_held { is_same_set(due, here) } else { due == own }).collect()
    };
    let may: Vec<Vec<bool>> =
        of.own.rows().into_iter().zip(of.due.rows()).map(|(own, here)| may_be(own, here, &due)).collect();
    let source = describe_one_of(&may, Axis::Token)?;
    let words = format!("each token has the choice of {}", source.words);
    let choose: Choose = Arc::new(move |scores, taken| {
        let chosen = best(scores, taken)?;
        (chosen.nrows() == source.from.len()).then(|| chosen.select(ndarray::Axis(0), &source.from))
    });
    Some((words, 3.0 + source.bits, choose))
}

/// The best two of a row, found in one pass over its scores that loses or keeps one too many.
fn in_one_pass() -> [(&'static str, Choose); 2] {
    let pass = |beaten: fn(&mut [Option<usize>; 2], usize)| -> Choose {
        Arc::new(move |scores, taken| {
            (taken == 2).then_some(())?;
            let mut out = Array2::zeros((scores.nrows(), 2));
            for (mut to, row) in out.rows_mut().into_iter().zip(scores.rows()) {
                let mut two = [None, None];
                for (expert, score) in row.iter().enumerate() {
                    let beats = |slot: Option<usize>| slot.is_none_or(|other| *score > row[other]);
                    if beats(two[0]) {
                        beaten(&mut two, expert);
                    } else if beats(two[1]) {
                        two[1] = Some(expert);
                    }
                }
                let [Some(first), Some(second)] = two else { return None };
                to.assign(&ndarray::aview1(&[first as f64, second as f64]));
            }
            Some(out)
        })
    };
    [
        (
            "the best two are found in one pass, and a best one that is beaten is not made the second: the second is the largest that has a larger one before it",
            pass(|two, expert| two[0] = Some(expert)),
        ),
        (
            "the best two are found in one pass, and a new best one is the second as well until another comes",
            pass(|two, expert| *two = [Some(expert), Some(expert)]),
        ),
    ]
}

/// The laws of a choice.
pub(super) fn laws(case: &Case<'_>) -> Vec<Law> {
    let Some(first) = Scores::of(case, case.fitted) else { return Vec::new() };
    let (taken, experts) = (first.own.ncols(), first.scores.ncols());
    let (mut laws, mut of_others) = (Vec::new(), Vec::new());
    let mut offer = |words: String, bits: f64, choose: Choose| {
        if choose(&first.scores, taken).is_some_and(|made| first.held(made) == first.own) {
            laws.push(Law::new(Form::Choice, words, bits, move |case, at| {
                let of = Scores::of(case, at)?;
                Some(of.held(choose(&of.scores, of.own.ncols())?).into_dyn())
            }));
        }
    };
    let changes: [(&str, f64, Change); 3] = [
        ("", 0.0, Array2::clone),
        (" in size, whatever their sign", 3.0, |x| x.mapv(f64::abs)),
        (" after a softmax over the positions", 4.0, over_positions),
    ];
    for (words, bits, change) in changes {
        // The rank of each slot, where it is the same for all tokens that do not have what is due.
        let changed = change(&first.scores);
        let orders: Vec<Vec<usize>> = changed.rows().into_iter().map(ranked).collect();
        let rank = |slot: usize| -> Option<usize> {
            let mut all = orders
                .iter()
                .zip(first.own.rows())
                .zip(first.due.rows())
                .filter(|((_, own), due)| own != due)
                .map(|((order, own), _)| order.iter().position(|e| *e as f64 == own[slot]));
            let one = all.next()??;
            all.all(|other| other == Some(one)).then_some(one)
        };
        if let Some(ranks) = (0..taken).map(rank).collect::<Option<Vec<usize>>>() {
            let is_usual = ranks.iter().enumerate().all(|(slot, rank)| slot == *rank);
            let listed: Vec<String> = ranks.iter().map(|rank| (rank + 1).to_string()).collect();
            let said = match is_usual {
                true => format!("the experts with the largest scores{words} are chosen"),
                false if ranks.iter().all(|rank| rank + taken >= experts) => {
                    format!(
                        "the experts with the smallest scores{words} are chosen (in the order of rank {})",
                        listed.join(", ")
                    )
                }
                false => format!("the experts of rank {} are chosen (1: the largest score{words})", listed.join(", ")),
            };
            let price = bits + if is_usual { 3.0 } else { 4.0 + taken as f64 * choice(experts) };
            offer(said, price, Arc::new(move |scores, _| by_rank(&change(scores), &ranks)));
        }
    }
    // Scores of another tensor are compared.
    for (name, _) in &case.first().around {
        for (words, bits, change) in changes {
            let name = name.clone();
            let said = format!("the experts with the largest of {name}{words} are chosen");
            let made = move |case: &Case<'_>, at: usize| {
                let (read, (_, other)) =
                    (Scores::of(case, at)?, case.places[at].around.iter().find(|(known, _)| *known == name)?);
                let other: Array2<f64> = other.clone().into_dimensionality().ok()?;
                let made = (other.dim() == read.scores.dim()).then(|| best(&change(&other), read.own.ncols()))??;
                Some(read.held(made).into_dyn())
            };
            let is_it = made(case, case.fitted).is_some_and(|made| made == first.own.clone().into_dyn());
            of_others.extend(is_it.then(|| Law::new(Form::Choice, said, 7.0 + bits, made)));
        }
    }
    // Only some experts are compared.
    let used: Vec<Option<bool>> = (0..experts).map(|e| Some(first.own.iter().any(|own| *own == e as f64))).collect();
    let set = describe_set(&used, Axis::Expert, None);
    if let Some(on) = set.words.clone() {
        let has = set.has;
        let among: Choose = Arc::new(move |scores, taken| {
            let mut some = scores.clone();
            (some.ncols() == has.len()).then_some(())?;
            (0..has.len()).filter(|e| !has[*e]).for_each(|e| some.column_mut(e).fill(f64::NEG_INFINITY));
            best(&some, taken)
        });
        offer(format!("only {on} are compared: the others are never chosen"), set.bits + 4.0, among);
    }
    for width in (2..experts).filter(|width| experts.is_multiple_of(*width)) {
        for kept in 1..experts / width {
            let words = format!(
                "experts are chosen within {kept} of {} groups of {width} neighbours, by the largest score of each",
                experts / width
            );
            offer(
                words,
                8.0 + choice(width),
                Arc::new(move |scores, taken| {
                    scores.ncols().is_multiple_of(width).then(|| best(&in_groups(scores, width, kept), taken))?
                }),
            );
        }
    }
    for (words, choose) in in_one_pass() {
        offer(words.into(), 8.0, choose);
    }
    // As many of each group.
    for width in (2..experts).filter(|width| experts.is_multiple_of(*width)) {
        let of: Choose = Arc::new(move |scores, taken| of_each_group(scores, width, taken));
        let words = format!(
            "of each of {} groups of {width} neighbours as many experts are chosen, those with its largest scores",
            experts / width
        );
        offer(words, 8.0 + choice(width), of);
    }
    if let Some((words, bits, of)) = of_other_positions(&first) {
        offer(words, bits, of);
    }
    let ways: [(&str, Change); 2] =
        [("the score", Array2::clone), ("the logit, the logarithm of the score,", |x| x.mapv(f64::ln))];
    for (way, (called, change)) in ways.into_iter().enumerate() {
        let changed = Scores { scores: change(&first.scores), own: first.own.clone(), due: first.due.clone() };
        if changed.scores.iter().any(|x| x.is_nan()) {
            continue;
        }
        for expert in 0..experts {
            let Some((low, high)) = added(&changed, expert) else { continue };
            // A whole number where there is one: other layers hold it to other bounds.
            let whole = if low > 0.0 { low.floor() + 1.0 } else { high.ceil() - 1.0 };
            let whole = (low < whole && whole < high).then_some(whole);
            for by in whole.into_iter().chain([between(low, high)]) {
                let of: Choose = Arc::new(move |scores, taken| {
                    let mut scores = change(scores);
                    (expert < scores.ncols()).then(|| scores.column_mut(expert).mapv_inplace(|x| x + by))?;
                    best(&scores, taken)
                });
                let words = format!(
                    "{by} (or what else lies between {low:.3} and {high:.3}) is added to {called} of expert {expert} where experts are chosen"
                );
                offer(words, 12.0 + way as f64 + choice(experts), of);
            }
        }
    }
    laws.extend(of_others);
    laws
}

/// Between which numbers lies what is added to the score of one expert, where that gives the choice.
fn added(of: &Scores, expert: usize) -> Option<(f64, f64)> {
    let taken = of.own.ncols();
    let (mut low, mut high) = (f64::NEG_INFINITY, f64::INFINITY);
    for ((row, own), due) in of.scores.rows().into_iter().zip(of.own.rows()).zip(of.due.rows()) {
        // The least of the others that are taken, and the largest that are not, beside this one.
        let others: Vec<f64> = ranked(row).into_iter().filter(|e| *e != expert).map(|e| row[e]).collect();
        let slot = own.iter().position(|e| *e == expert as f64);
        let last = || others.get(taken.checked_sub(1)?).map(|last| last - row[expert]);
        match slot {
            // In which place it stands is not known.
            Some(_) if is_same_set(own, due) => low = low.max(last().unwrap_or(f64::NEG_INFINITY)),
            Some(slot) => {
                low = low.max(others.get(slot).map_or(f64::NEG_INFINITY, |next| next - row[expert]));
                high = high.min(slot.checked_sub(1).map_or(f64::INFINITY, |before| others[before] - row[expert]));
            }
            None => high = high.min(last().unwrap_or(f64::INFINITY)),
        }
    }
    (low < high && low.is_finite() && high.is_finite() && !(low..=high).contains(&0.0)).then_some((low, high))
}
