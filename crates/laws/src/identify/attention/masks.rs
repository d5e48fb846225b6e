//! Which keys are seen: by what was recorded, by the size of their probability; masked scores that are filled.

use std::sync::Arc;

use ndarray::{Array2, Array3, Axis as Dimension, s};

use super::{After, Draft, How, Masks, Right, TINY, UNDERFLOW, right_scores, rows_of, softmax};
use crate::case::Axis;
use crate::describe::mask;
use crate::describe::set::describe as describe_set;
use crate::law::Form;
use crate::number::{Measured, SURE, between};

/// Which keys are kept by their probabilities.
type Keep = Arc<dyn Fn(&Array3<f64>) -> Array3<bool> + Send + Sync>;

/// A mask to be drawn: of each head, a row of 0 and 1 for each query.
pub(super) fn drawn(sees: &Array3<bool>) -> serde_json::Value {
    let row = |row: ndarray::ArrayView1<'_, bool>| row.iter().map(|s| if *s { '1' } else { '0' }).collect::<String>();
    let heads: Vec<Vec<String>> =
        sees.outer_iter().map(|head| head.rows().into_iter().map(row).collect::<Vec<_>>()).collect();
    serde_json::json!({"kind": "mask", "sees": heads})
}

impl How<'_> {
    /// Which keys the candidate's heads see.
    pub(super) fn masks_of_own(&mut self) {
        let (heads, rows, keys) = self.own.dim();
        let mut seen: Vec<Array2<Option<bool>>> = Vec::new();
        for head in 0..heads {
            let due = |row: usize, key: usize| {
                let scores = self.right.scores.slice(s![head, row, ..]);
                let most = (0..keys)
                    .filter(|&s| self.own[[head, row, s]] > 0.0)
                    .map(|s| scores[s])
                    .fold(f64::NEG_INFINITY, f64::max);
                (scores[key] - most).exp()
            };
            seen.push(Array2::from_shape_fn((rows, keys), |(row, key)| {
                let p = self.own[[head, row, key]];
                if !self.queries.has[row] {
                    None
                } else if p > TINY {
                    Some(true)
                } else {
                    // Next to nothing: hidden, unless so little was due.
                    (due(row, key) > UNDERFLOW).then_some(false)
                }
            }));
        }
        let is_right = |head: usize| {
            seen[head]
                .indexed_iter()
                .all(|((row, key), is)| is.is_none_or(|is| is == self.right.sees[[head, row, key]]))
        };
        let other: Vec<usize> = self.wrong_heads().into_iter().filter(|&head| !is_right(head)).collect();
        if other.is_empty() {
            return;
        }
        let mut groups: Vec<(Vec<usize>, mask::Mask)> = Vec::new();
        for head in other {
            let fits = |mask: &mask::Mask| {
                mask.sees.indexed_iter().all(|(at, is)| seen[head][at].is_none_or(|sees| sees == *is))
            };
            match groups.iter_mut().find(|(_, mask)| fits(mask)) {
                Some((of, _)) => of.push(head),
                None => match mask::describe(&seen[head], self.case.tokens_of(Axis::Key)) {
                    Some(mask) => groups.push((vec![head], mask)),
                    None => return self.masks_of_size(),
                },
            }
        }
        let right = mask::describe(&self.right.sees.index_axis(Dimension(0), groups[0].0[0]).mapv(Some), None);
        let model = right.map_or_else(String::new, |right| format!(" (right: {})", right.words));
        let (mut words, mut masks) = (Vec::new(), Masks::of(self.right));
        // Heads that are wrong otherwise do not have the mask.
        let one = groups.len() == 1 && self.wrong_heads() == groups[0].0;
        for (of, mask) in &groups {
            let meant: Vec<Option<bool>> = (0..heads).map(|h| Some(of.contains(&h))).collect();
            let set = describe_set(&meant, Axis::Head, None);
            masks.bits += mask.bits + if one { 0.0 } else { set.bits };
            words.push(match set.words.filter(|_| !one) {
                Some(on) => format!("{} for {on}", mask.words),
                None => mask.words.clone(),
            });
            masks.parameters.extend(mask.parameters.iter().cloned());
            for &head in of {
                masks.sees.index_axis_mut(Dimension(0), head).assign(&mask.sees);
            }
        }
        masks.words = Some(format!("each query sees {}{model}", words.join("; ")));
        self.masks = masks;
    }

    /// Keys that are dropped because their probability is small.
    fn masks_of_size(&mut self) {
        let (heads, rows, keys) = self.own.dim();
        let right = softmax(&self.right.scores, &self.right.sees, &self.right.beside);
        let wrong = self.wrong_heads();
        let kept = |head: usize, row: usize| (0..keys).filter(|&s| self.own[[head, row, s]] > TINY).count();
        let most =
            wrong.iter().flat_map(|&h| (0..rows).map(move |t| (h, t))).map(|(h, t)| kept(h, t)).max().unwrap_or(0);
        let largest = move |probs: &Array3<f64>, most: usize| {
            let mut sees = Array3::from_elem(probs.dim(), false);
            for (head, row) in rows_of(probs) {
                let mut order: Vec<usize> = (0..probs.shape()[2]).filter(|&s| probs[[head, row, s]] > 0.0).collect();
                order.sort_by(|&a, &b| probs[[head, row, b]].total_cmp(&probs[[head, row, a]]));
                order.iter().take(most).for_each(|&s| sees[[head, row, s]] = true);
            }
            sees
        };
        let top = largest(&right, most);
        let agrees = |sees: &Array3<bool>| {
            wrong.iter().all(|&h| (0..rows).all(|t| (0..keys).all(|s| (self.own[[h, t, s]] > TINY) == sees[[h, t, s]])))
        };
        if agrees(&top) && heads > 0 {
            let keeps = format!("each query keeps its {most} likeliest keys");
            self.kept(&keeps, 10.0, ("top_k", most.into()), Arc::new(move |probs| largest(probs, most)));
            return;
        }
        // Or those that are likely enough, of their own or beside the likeliest.
        for is_relative in [false, true] {
            let beside = move |probs: &Array3<f64>, head: usize, row: usize| {
                if is_relative { probs.slice(s![head, row, ..]).iter().copied().fold(0.0, f64::max) } else { 1.0 }
            };
            let (mut dropped, mut kept) = (0.0f64, f64::INFINITY);
            for &head in &wrong {
                for row in 0..rows {
                    let by = beside(&right, head, row);
                    for key in (0..keys).filter(|&key| right[[head, row, key]] > 0.0) {
                        let share = right[[head, row, key]] / by;
                        match self.own[[head, row, key]] > TINY {
                            true => kept = kept.min(share),
                            false => dropped = dropped.max(share),
                        }
                    }
                }
            }
            if dropped <= 0.0 || dropped >= kept {
                continue;
            }
            let least = between(dropped, kept);
            let of = if is_relative { " of the likeliest key's" } else { "" };
            let keeps = format!("each query keeps keys of a probability of at least {least}{of}");
            let keep: Keep = Arc::new(move |probs| {
                let mut sees = Array3::from_elem(probs.dim(), false);
                for (head, row) in rows_of(probs) {
                    let by = beside(probs, head, row);
                    (0..probs.shape()[2]).for_each(|s| sees[[head, row, s]] = probs[[head, row, s]] >= least * by);
                }
                sees
            });
            self.kept(&keeps, 26.0, ("threshold", least.into()), keep);
        }
    }

    /// Laws of keys that are kept by their probability, which is divided by the sum again or not.
    fn kept(&mut self, keeps: &str, bits: f64, parameter: (&'static str, serde_json::Value), keep: Keep) {
        for is_divided in [true, false] {
            let keep = keep.clone();
            let after: After = Arc::new(move |_, probs| {
                let sees = keep(&probs);
                let mut out = ndarray::Zip::from(&probs).and(&sees).map_collect(|p, sees| if *sees { *p } else { 0.0 });
                for (head, row) in rows_of(&out).filter(|_| is_divided) {
                    let sum: f64 = out.slice(s![head, row, ..]).sum();
                    out.slice_mut(s![head, row, ..]).mapv_inplace(|p| if sum > 0.0 { p / sum } else { p });
                }
                Some(out)
            });
            let end = if is_divided { "" } else { ", without dividing by their sum again" };
            let draft = Draft::new(Form::Mask, format!("{keeps}{end}"), bits).with(parameter.0, parameter.1.clone());
            self.offer(draft, right_scores(), Some(after), false);
        }
    }

    /// A cap that is put to the scores behind the mask: what is hidden has the cap's own size, and is seen.
    fn capped_behind_the_mask(&mut self) {
        let probs = |right: &Right, cap: f64| {
            let scores = ndarray::Zip::from(&right.scores)
                .and(&right.sees)
                .map_collect(|s, sees| if *sees { cap * (s / cap).tanh() } else { -cap });
            softmax(&scores, &Array3::from_elem(scores.dim(), true), &right.beside)
        };
        let off = |cap: f64| (probs(self.right, cap) - self.own).iter().map(|x| x * x).sum::<f64>();
        let size = self.right.scores.iter().fold(0.0f64, |most, s| most.max(s.abs())).max(1e-3);
        let (cap, _) = crate::fit::search(0.05 * size, 100.0 * size, 41, true, off);
        for number in Measured::searched(cap) {
            let c = number.value;
            let after: After = Arc::new(move |right, _| Some(probs(right, c)));
            let words = format!(
                "scores are {c} tanh(s/{c}) behind the mask: masked ones are -{c}, not minus infinity",
                c = number.words
            );
            let draft = Draft::new(Form::MaskFill, words, 8.0 + number.bits).with("fill", -c).with("cap", c);
            if self.offer(draft, right_scores(), Some(after), false) {
                break;
            }
        }
    }

    /// Masked scores that are not hidden, but filled with a number.
    pub(super) fn of_fills(&mut self) {
        if self.own.iter().zip(&self.right.sees).filter(|(own, sees)| !**sees && **own > UNDERFLOW).count() > 1 {
            self.capped_behind_the_mask();
        }
        let mut all: Vec<Measured> = Vec::new();
        for (head, row) in rows_of(self.own).filter(|(head, row)| self.heads.has[*head] && self.queries.has[*row]) {
            let keys = 0..self.own.shape()[2];
            let (seen, hidden): (Vec<usize>, Vec<usize>) = keys.partition(|&s| self.right.sees[[head, row, s]]);
            let log = |s: usize| self.own[[head, row, s]].ln();
            let known: Vec<usize> = seen.into_iter().filter(|&s| self.own[[head, row, s]] > TINY).collect();
            if known.is_empty() {
                continue;
            }
            let zero =
                known.iter().map(|&s| log(s) - self.right.scores[[head, row, s]]).sum::<f64>() / known.len() as f64;
            all.extend(
                hidden
                    .into_iter()
                    .filter(|&s| self.own[[head, row, s]] > 1e-300)
                    .map(|s| Measured::new(log(s) - zero, 4.0 * self.noise())),
            );
        }
        let fill = Measured::mean(all.iter().copied());
        if all.len() < 2
            || !all
                .iter()
                .all(|m| (m.value - fill.value).abs() <= SURE * (m.error + fill.error) * fill.value.abs().max(1.0))
        {
            return;
        }
        let number = fill.number();
        let c = number.value;
        let after: After = Arc::new(move |right, _| {
            let scores =
                ndarray::Zip::from(&right.scores).and(&right.sees).map_collect(|s, sees| if *sees { *s } else { c });
            Some(softmax(&scores, &Array3::from_elem(scores.dim(), true), &right.beside))
        });
        let words = format!("masked scores are {}, not minus infinity", number.words);
        self.offer(
            Draft::new(Form::MaskFill, words, 4.0 + number.bits).with("fill", c),
            right_scores(),
            Some(after),
            false,
        );
    }
}
