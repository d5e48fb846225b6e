//! The weights of the experts that a router has chosen: what each score is divided by, and which function of the scores they are.

use std::sync::Arc;

use ndarray::Array2;

use crate::case::Case;
use crate::describe::choice;
use crate::identify::after::{Offers, by_row, softmax};
use crate::identify::subject::two;
use crate::law::{Form, Law};

/// Scores `[T,E]` made positive.
type Score = fn(&Array2<f64>) -> Array2<f64>;
/// What the weight of a token's slot is divided by: of the scores, of what is chosen `[T,k]`, of the token and of the slot.
type Divisor = Arc<dyn Fn(&Array2<f64>, &Array2<usize>, usize, usize) -> f64 + Send + Sync>;

/// The tap that has the choice.
const CHOICE: &str = "router_topk";

fn over_all(x: &Array2<f64>) -> Array2<f64> {
    two(&by_row(&x.clone().into_dyn(), softmax)).unwrap_or_else(|| x.clone())
}

const SCORES: [(&str, Score); 5] = [
    ("the softmax over all experts", over_all),
    ("the sigmoid of each score", |x| x.mapv(|x| 1.0 / (1.0 + (-x).exp()))),
    ("the scores themselves", Array2::clone),
    ("the root of the softplus of each score", |x| x.mapv(|x| x.max(0.0) + (-x.abs()).exp().ln_1p()).mapv(f64::sqrt)),
    ("the square of the softmax", |x| over_all(x).mapv(|p| p * p)),
];

/// What weights may be divided by, in words.
fn divisors(experts: usize, tokens: usize) -> Vec<(String, f64, Divisor)> {
    let chosen = |p: &Array2<f64>, c: &Array2<usize>, t: usize| c.row(t).iter().map(|e| p[[t, *e]]).sum::<f64>();
    let mut all: Vec<(String, f64, Divisor)> = vec![
        ("nothing".into(), 3.0, Arc::new(|_, _, _, _| 1.0)),
        ("the sum of the chosen".into(), 3.0, Arc::new(move |p, c, t, _| chosen(p, c, t))),
        ("the sum of the chosen, twice".into(), 6.0, Arc::new(move |p, c, t, _| chosen(p, c, t).powi(2))),
        ("the sum of all experts".into(), 5.0, Arc::new(|p, _, t, _| p.row(t).sum())),
        ("the largest of all experts".into(), 5.0, Arc::new(|p, _, t, _| p.row(t).iter().copied().fold(0.0, f64::max))),
        (
            "the length of the chosen".into(),
            6.0,
            Arc::new(|p, c, t, _| c.row(t).iter().map(|e| p[[t, *e]].powi(2)).sum::<f64>().sqrt()),
        ),
        (
            "the sum of each slot over all positions".into(),
            6.0,
            Arc::new(|p, c, _, s| (0..c.nrows()).map(|t| p[[t, c[[t, s]]]]).sum()),
        ),
        (
            "the sum of the chosen over all positions".into(),
            6.0,
            Arc::new(move |p, c, _, _| (0..c.nrows()).map(|t| chosen(p, c, t)).sum()),
        ),
        ("the sum of each expert over all positions".into(), 6.0, Arc::new(|p, c, t, s| p.column(c[[t, s]]).sum())),
    ];
    all.push((
        "the sum of the chosen, taken anew for each slot from weights of which those before are divided already".into(),
        7.0,
        Arc::new(|p, c, t, s| {
            let mut of: Vec<f64> = c.row(t).iter().map(|e| p[[t, *e]]).collect();
            (0..s).for_each(|slot| of[slot] /= of.iter().sum::<f64>());
            of.iter().sum()
        }),
    ));
    all.push((
        "the sum of the chosen up to its own slot".into(),
        7.0,
        Arc::new(|p, c, t, s| c.row(t).iter().take(s + 1).map(|e| p[[t, *e]]).sum()),
    ));
    for (whose, by) in [("the position before", -1isize), ("the next position", 1)] {
        let other = move |t: usize| t.saturating_add_signed(by).min(tokens.saturating_sub(1));
        all.push((
            format!("the sum of those chosen at {whose}"),
            7.0,
            Arc::new(move |p, c, t, _| chosen(p, c, other(t))),
        ));
    }
    for (whose, at) in [("the first", 0), ("the last", tokens.saturating_sub(1))] {
        all.push((
            format!("the sum of those chosen at {whose} position"),
            7.0,
            Arc::new(move |p, c, _, _| chosen(p, c, at)),
        ));
    }
    for count in 1..=experts.min(64) {
        let largest = move |p: &Array2<f64>, t: usize| {
            let mut row = p.row(t).to_vec();
            row.sort_by(|a, b| b.total_cmp(a));
            row.iter().take(count).sum::<f64>()
        };
        let words = format!("the sum of the {count} largest");
        all.push((words, 5.0 + choice(experts), Arc::new(move |p, _, t, _| largest(p, t))));
    }
    for width in (2..experts).filter(|width| experts.is_multiple_of(*width)) {
        let of_group = move |p: &Array2<f64>, t: usize, e: usize| {
            (e / width * width..(e / width + 1) * width).map(|other| p[[t, other]]).sum::<f64>()
        };
        let words = format!("the sum of the {width} experts of its own group");
        all.push((words, 7.0, Arc::new(move |p, c, t, s| of_group(p, t, c[[t, s]]))));
        let of_first = move |p: &Array2<f64>, c: &Array2<usize>, t: usize| of_group(p, t, c[[t, 0]]);
        let words = format!("the sum of the {width} experts of the first one's group");
        all.push((words, 8.0, Arc::new(move |p, c, t, _| of_first(p, c, t))));
    }
    all
}

/// The scores of a place, and the experts that the candidate has chosen there.
fn read(case: &Case<'_>, at: usize) -> Option<(Array2<f64>, Array2<usize>)> {
    let place = &case.places[at];
    let scores = two(place.inputs.first()?)?;
    let chosen = two(&place.around.iter().find(|(name, _)| name == CHOICE)?.1)?;
    let is_one = |e: &f64| e.fract() == 0.0 && (0.0..scores.ncols() as f64).contains(e);
    (chosen.nrows() == scores.nrows() && chosen.iter().all(is_one)).then_some(())?;
    Some((scores, chosen.mapv(|e| e as usize)))
}

/// The laws of a router's weights.
pub(super) fn laws(case: &Case<'_>) -> Vec<Law> {
    let Some((scores, _)) = read(case, case.fitted) else { return Vec::new() };
    let mut offers = Offers::of(case);
    for (what, score) in SCORES {
        for (by, bits, divisor) in divisors(scores.ncols(), scores.nrows()) {
            let made = move |case: &Case<'_>, at: usize| {
                let (scores, chosen) = read(case, at)?;
                let p = score(&scores);
                let weight = |(t, s): (usize, usize)| p[[t, chosen[[t, s]]]] / divisor(&p, &chosen, t, s);
                let out = Array2::from_shape_fn(chosen.dim(), weight).into_dyn();
                out.to_shape(case.places[at].right.raw_dim()).ok().map(|out| out.into_owned())
            };
            let words = format!("each weight is {what}, divided by {by}");
            offers.offer(Form::Denominator, words, bits + 3.0, made);
        }
    }
    // The weights stand in the order of the experts' numbers, the experts in that of their scores.
    for (words, is_falling) in [("rising", false), ("falling", true)] {
        let made = move |case: &Case<'_>, at: usize| {
            let (_, chosen) = read(case, at)?;
            let right = two(&case.places[at].right)?;
            (right.dim() == chosen.dim()).then_some(())?;
            let mut out = right.clone();
            for (mut to, (from, experts)) in out.rows_mut().into_iter().zip(right.rows().into_iter().zip(chosen.rows()))
            {
                let mut order: Vec<usize> = (0..from.len()).collect();
                order.sort_by_key(|&slot| experts[slot]);
                if is_falling {
                    order.reverse();
                }
                to.iter_mut().zip(order).for_each(|(to, slot)| *to = from[slot]);
            }
            Some(out.into_dyn())
        };
        let words =
            format!("the weights stand in the order of their experts' numbers ({words}), and not in that of the slots");
        offers.offer(Form::Denominator, words, 5.0, made);
    }
    offers.laws
}
