use firstdiff_laws::{Axis, Kind};
use ndarray::ArrayD;

use crate::plant::{Rounded, law_of, said};

const AXES: [Axis; 3] = [Axis::Head, Axis::Query, Axis::Key];
const T: usize = 14;
const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 8;

fn score(x: &[ArrayD<f64>], h: usize, t: usize, s: usize, key_head: usize) -> f64 {
    (0..WIDTH).map(|d| x[0][[t, h, d]] * x[1][[s, key_head, d]]).sum::<f64>() / (WIDTH as f64).sqrt()
}

fn softmax(
    sees: impl Fn(usize, usize, usize) -> bool,
    score: impl Fn(usize, usize, usize) -> f64,
    beside: f64,
) -> ArrayD<f64> {
    let mut out = ArrayD::zeros(vec![HEADS, T, T]);
    for h in 0..HEADS {
        for t in 0..T {
            let all: Vec<f64> = (0..T).map(|s| if sees(h, t, s) { score(h, t, s).exp() } else { 0.0 }).collect();
            let sum: f64 = all.iter().sum::<f64>() + beside;
            (0..T).for_each(|s| out[[h, t, s]] = if sum > 0.0 { all[s] / sum } else { 0.0 });
        }
    }
    out
}

fn right(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, s, h / 2), 0.0)
}

fn law(wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>) -> String {
    said(&law_of(Kind::Probs, &AXES, &[&[T, HEADS, WIDTH], &[T, KEY_HEADS, WIDTH]], right, wrong, Rounded::F32))
}

#[test]
fn masks_are_recovered() {
    let window = law(|_, x| softmax(|_, t, s| s <= t && t - s < 5, |h, t, s| score(x, h, t, s, h / 2), 0.0));
    assert!(window.contains("t-4 to t (window of 5)"), "{window}");
    let open = law(|_, x| softmax(|_, _, _| true, |h, t, s| score(x, h, t, s, h / 2), 0.0));
    assert!(open.contains("each query sees all keys"), "{open}");
    let without =
        law(|_, x| softmax(|h, t, s| s <= t && (h != 1 || s != 0 || t == 0), |h, t, s| score(x, h, t, s, h / 2), 0.0));
    assert!(without.contains("head 1"), "{without}");
}

/// Keys that are left out behind the softmax in some heads are said of these, and a key that no query tells of is not named.
#[test]
fn a_mask_behind_the_softmax_is_of_its_heads() {
    let found = law_of(
        Kind::Probs,
        &AXES,
        &[&[T, HEADS, WIDTH], &[T, KEY_HEADS, WIDTH]],
        right,
        |layer, x| {
            let mut out = right(layer, x);
            for t in 3..T {
                out[[0, t, 2]] = 0.0;
                out[[2, t, 2]] = 0.0;
            }
            out
        },
        Rounded::F32,
    );
    let (law, _) = found.expect("a law");
    let of_masks = std::iter::once(&law.words).chain(&law.equivalent);
    for words in of_masks {
        assert!(words.contains("even heads") && !words.contains("keys 2"), "{words}");
    }
}

#[test]
fn scores_are_recovered() {
    let scale = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| 1.5 * score(x, h, t, s, h / 2), 0.0));
    assert!(
        scale.starts_with("scores are 3/2 times the right ones") || scale.starts_with("scores are 1.5 times"),
        "{scale}"
    );
    let head =
        law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| if h == 2 { 0.5 } else { 1.0 } * score(x, h, t, s, h / 2), 0.0));
    assert!(head.contains("1/2") && head.contains("head 2"), "{head}");
    let alibi = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, s, h / 2) - 0.1 * (t - s) as f64, 0.0));
    assert!(alibi.contains("-0.1 * distance"), "{alibi}");
    let cap = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| 3.0 * (score(x, h, t, s, h / 2) / 3.0).tanh(), 0.0));
    assert!(cap.contains("3 tanh(s/3)"), "{cap}");
    let heads = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, s, h % 2), 0.0));
    assert!(heads.contains("h mod 2"), "{heads}");
}

#[test]
fn denominators_are_recovered() {
    let one = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, s, h / 2), 1.0));
    assert!(one.contains("sum of exp(score) plus 1"), "{one}");
    let half = law(|layer, x| right(layer, x).mapv(|p| 0.9 * p));
    assert!(half.contains("0.9") || half.contains("9/10"), "{half}");
    let fill = law(|_, x| softmax(|_, _, _| true, |h, t, s| if s <= t { score(x, h, t, s, h / 2) } else { -5.0 }, 0.0));
    assert!(fill.contains("masked scores are -5"), "{fill}");
}

#[test]
fn another_divisor_than_the_sum() {
    let law = law(|_, x| {
        let mut out = ArrayD::zeros(vec![HEADS, T, T]);
        for h in 0..HEADS {
            for t in 0..T {
                (0..=t).for_each(|s| out[[h, t, s]] = score(x, h, t, s, h / 2).exp() / (t + 1) as f64);
            }
        }
        out
    });
    assert!(law.contains("exp(s), divided by their number"), "{law}");
}

#[test]
fn keys_and_queries_of_other_positions() {
    fn pages(i: usize) -> usize {
        match i {
            2..=4 => i + 4,
            6..=8 => i - 4,
            _ => i,
        }
    }
    let found = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, pages(s), h / 2), 0.0));
    assert!(found.contains("keys of position i are those of key i, keys 2 to 4 and 6 to 8 exchanged"), "{found}");
    let stale =
        law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, if s >= 10 { s - 4 } else { s }, h / 2), 0.0));
    assert!(stale.contains("key i-4") && stale.contains("from 10 on"), "{stale}");
    let memory = law(|_, x| {
        let flat: Vec<f64> = x[1].iter().copied().collect();
        let key = |s: usize, kv: usize, d: usize| flat[(kv * T + s) * WIDTH + d];
        let score = |h: usize, t: usize, s: usize| {
            (0..WIDTH).map(|d| x[0][[t, h, d]] * key(s, h / 2, d)).sum::<f64>() / (WIDTH as f64).sqrt()
        };
        softmax(|_, t, s| s <= t, score, 0.0)
    });
    assert!(memory.contains("memory of the keys") && memory.contains("heads by positions"), "{memory}");
}

/// The right probabilities with each row changed, of its scores that are seen.
fn by_row(x: &[ArrayD<f64>], f: impl Fn(&[f64]) -> Vec<f64>) -> ArrayD<f64> {
    let mut out = ArrayD::zeros(vec![HEADS, T, T]);
    for h in 0..HEADS {
        for t in 0..T {
            let scores: Vec<f64> = (0..=t).map(|s| score(x, h, t, s, h / 2)).collect();
            f(&scores).into_iter().enumerate().for_each(|(s, p)| out[[h, t, s]] = p);
        }
    }
    out
}

fn over_sum(x: Vec<f64>) -> Vec<f64> {
    let sum: f64 = x.iter().sum();
    x.into_iter().map(|x| x / sum).collect()
}

fn most(x: &[f64]) -> f64 {
    x.iter().copied().fold(f64::NEG_INFINITY, f64::max)
}

#[test]
fn other_functions_of_a_row() {
    let is = |wrong: fn(usize, &[ArrayD<f64>]) -> ArrayD<f64>, words: &str| {
        let law = law(wrong);
        assert!(law.contains(words), "{law} instead of {words}");
    };
    is(
        |_, x| by_row(x, |s| over_sum(over_sum(s.iter().map(|s| s.exp()).collect()).iter().map(|p| p.exp()).collect())),
        "the softmax is applied twice",
    );
    is(|_, x| by_row(x, |s| over_sum(s.iter().map(|x| (x - most(s)).max(-1.5).exp()).collect())), "at least -1.5");
    is(
        |_, x| by_row(x, |s| over_sum(s.iter().map(|x| 1.0 + x + x * x / 2.0).map(f64::abs).collect())),
        "the first 3 terms of its series",
    );
    is(
        |_, x| {
            by_row(x, |s| {
                let sum: f64 = s.iter().take(4).map(|x| x.exp()).sum();
                s.iter().map(|x| x.exp() / sum).collect()
            })
        },
        "the sum over the first 4 keys",
    );
    is(
        |_, x| {
            by_row(x, |s| {
                let sum: f64 = s.iter().map(|x| (x - most(s)).exp()).sum();
                s.iter().map(|x| (x - most(s)).exp() / sum.min(3.0)).collect()
            })
        },
        "at most 3",
    );
}

#[test]
fn keys_that_the_softmax_does_not_reach_keep_their_scores() {
    let law = law(|_, x| {
        let mut out = softmax(|_, t, s| s < t, |h, t, s| score(x, h, t, s, h / 2), 0.0);
        for h in 0..HEADS {
            (0..T).for_each(|t| out[[h, t, t]] = score(x, h, t, t, h / 2));
        }
        out
    });
    assert!(law.contains("the softmax does not reach keys") && law.contains("keep their scores as they are"), "{law}");
}

#[test]
fn a_bound_that_few_heads_reach_is_said_of_all() {
    let bound = law(|_, x| softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, s, h / 2).min(1.6), 0.0));
    assert!(bound.starts_with("scores are s, at most 8/5 (s: the right ones) ["), "{bound}");
}

#[test]
fn another_softmax_on_one_path_of_the_code_is_said_of_it() {
    let decode = law(|_, x| {
        let mut out = softmax(|_, t, s| s <= t, |h, t, s| score(x, h, t, s, h / 2), 0.0);
        for (h, t) in (0..HEADS).flat_map(|h| (9..T).map(move |t| (h, t))) {
            // Chunks of four keys, each with a sum of its own, and their mean.
            let chunks = t / 4 + 1;
            for chunk in 0..chunks {
                let keys = chunk * 4..(chunk * 4 + 4).min(t + 1);
                let sum: f64 = keys.clone().map(|s| score(x, h, t, s, h / 2).exp()).sum();
                keys.for_each(|s| out[[h, t, s]] = score(x, h, t, s, h / 2).exp() / sum / chunks as f64);
            }
        }
        out
    });
    let words =
        "the softmax runs in blocks of 4 keys, each by itself, divided by how many there are (queries from 9 on)";
    assert!(decode.starts_with(words), "{decode}");
}
