//! What is done wrong with tokens and their embedding? Right: row `token` of the matrix, times the family's factor.

use firstdiff_model::{Chunk, Model, Step};
use firstdiff_trace::Site;
use ndarray::{ArrayView1, ArrayView2};
use serde_json::json;

use super::catalogue::Mistake;
use super::param::Param;
use super::{List, Out, Seen, StepContext, factor, snapped};
use crate::tolerance::mistakes::{PLAIN_FACTOR, SAME_PARAMETER, TOKEN_ROW, TOKEN_ROW_ZERO};

/// A mistake of the embedding.
const EMBEDDING: Mistake = Mistake { at: &[Site::H0], ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] = &[&TOKENS_DIFFER, &EMBED_SCALE, &EMBED_MULTIPLIER];

pub(crate) static TOKENS_DIFFER: Mistake = Mistake {
    id: "tokens-differ",
    what: "other token ids were embedded",
    fix: "feed the same ids: look at BOS, at the prompt's end, at an offset of one",
    params: &[
        Param::words(
            "kind",
            &["first-doubled", "bos-added", "bos-0-added", "first-lost", "ids-one-too-high", "ids-one-too-low"],
        ),
        Param::other("change", "which ids are there more, fewer or in place of others"),
        Param::other("tokens", "the ids that were embedded"),
    ],
    mixes_tokens: true,
    is_a_list: true,
    ..EMBEDDING
};
pub(crate) static EMBED_SCALE: Mistake = Mistake {
    id: "embed-scale",
    what: "the embedding is scaled by sqrt(D), or was divided by it",
    fix: "scale the embedding exactly where the reference does, with its factor",
    params: &[Param::words("factor", &["sqrt(D)", "1/sqrt(D)"])],
    ..EMBEDDING
};
pub(crate) static EMBED_MULTIPLIER: Mistake = Mistake {
    id: "embed-multiplier",
    what: "the embedding is multiplied by a factor",
    fix: "look for an embedding multiplier that this config has not, or has otherwise",
    params: &[Param::free("factor")],
    is_a_factor: true,
    shows_one_number_a_row: true,
    ..EMBEDDING
};

pub(super) fn listed(list: &mut List<'_>, tokens: &[Vec<u32>]) {
    let prompt = tokens.first().cloned().unwrap_or_default();
    // One more BOS in front, the last token lost; the first token lost.
    for (kind, shifted) in others(&prompt) {
        list.add(&TOKENS_DIFFER, vec![("kind", json!(kind))], move |at| of_tokens(at, &shifted));
    }
    list.add(&TOKENS_DIFFER, vec![("kind", json!("ids-one-too-high"))], |at| moved(at, 1));
    list.add(&TOKENS_DIFFER, vec![("kind", json!("ids-one-too-low"))], |at| moved(at, -1));
    let root = (list.model.plan.dims.hidden as f64).sqrt();
    // √D · row, where this family has no such factor.
    list.add(&EMBED_SCALE, vec![("factor", json!("sqrt(D)"))], move |at| times(at, root));
    list.add(&EMBED_SCALE, vec![("factor", json!("1/sqrt(D)"))], move |at| times(at, 1.0 / root));
    for c in [12.0, 0.5, 2.0] {
        list.tunable(&EMBED_MULTIPLIER, "factor", c, |c, at| times(at, c));
    }
    super::linear::misread(list);
}

/// Prompts of the same length that a tokenizer gives instead.
pub(crate) fn others(prompt: &[u32]) -> Vec<(&'static str, Vec<u32>)> {
    let Some((&first, rest)) = prompt.split_first() else { return Vec::new() };
    let front = |id: u32| std::iter::once(id).chain(prompt[..prompt.len() - 1].iter().copied()).collect();
    let mut all = vec![("first-doubled", front(first))];
    if first != 1 {
        all.push(("bos-added", front(1)));
    }
    all.push(("bos-0-added", front(0)));
    let mut lost = rest.to_vec();
    lost.extend(rest.last());
    all.push(("first-lost", lost));
    all
}

fn of_tokens(at: &StepContext<'_>, tokens: &[u32]) -> Out {
    if at.chunk.start > 0 || tokens.len() != at.chunk.tokens.len() {
        return at.right();
    }
    StepContext { chunk: Chunk { tokens, start: 0 }, step: at.step, ..*at }.right()
}

fn moved(at: &StepContext<'_>, by: i64) -> Out {
    let vocab = at.model.plan.dims.vocab as i64;
    let tokens: Vec<u32> = at.chunk.tokens.iter().map(|&t| (i64::from(t) + by).rem_euclid(vocab) as u32).collect();
    StepContext { chunk: Chunk { tokens: &tokens, start: at.chunk.start }, step: at.step, ..*at }.right()
}

fn times(at: &StepContext<'_>, c: f64) -> Out {
    Some(at.kept(at.right()?.mapv(|x| x * c)))
}

/// The ids whose rows these are, and the factor on them.
pub(super) fn fitted(list: &mut List<'_>, seen: &Seen<'_>) {
    let c = factor(seen.own, seen.right).map(|c| snapped(c, PLAIN_FACTOR));
    if let Some(c) = c.filter(|c| (c - 1.0).abs() > SAME_PARAMETER) {
        list.tunable(&EMBED_MULTIPLIER, "factor", c, |c, at| times(at, c));
    }
    let own = super::flat(seen.own);
    let own = own.and_then(|own| ids(list.model, list.step, own.view(), seen.chunk.tokens));
    if let Some(tokens) = own.filter(|ids| ids != seen.chunk.tokens) {
        list.add(&TOKENS_DIFFER, vec![("tokens", json!(tokens))], move |at| {
            StepContext { chunk: Chunk { tokens: &tokens, start: at.chunk.start }, step: at.step, ..*at }.right()
        });
    }
}

/// Which row of the table each of these is, whatever factor is on it; that of the token that is told there, where several are the same. Nothing where a row is
/// none, or may be several.
pub(crate) fn ids(model: &Model, step: &Step, own: ArrayView2<'_, f64>, told: &[u32]) -> Option<Vec<u32>> {
    let view = model.weights.view(*step.weights.first()?).ok()?;
    let [vocab, width] = *view.shape() else { return None };
    (width == own.ncols()).then_some(())?;
    let largest = |row: ArrayView1<'_, f64>| (0..width).max_by(|&a, &b| row[a].abs().total_cmp(&row[b].abs()));
    let peaks: Vec<usize> = own.rows().into_iter().map(largest).collect::<Option<_>>()?;
    let mut found: Vec<Vec<u32>> = vec![Vec::new(); own.nrows()];
    const TILE: usize = 256;
    for first in (0..vocab).step_by(TILE) {
        let tile = view.rows::<f32>(first..(first + TILE).min(vocab));
        for ((row, &peak), found) in own.rows().into_iter().zip(&peaks).zip(&mut found) {
            let near = |id: &usize| {
                let factor = row[peak] / f64::from(tile[[*id, peak]]);
                let is_near = |i: usize| {
                    (f64::from(tile[[*id, i]]) * factor - row[i]).abs() <= TOKEN_ROW * row[i].abs() + TOKEN_ROW_ZERO
                };
                factor.is_finite() && factor > 0.0 && (0..width).all(is_near)
            };
            found.extend((0..tile.nrows()).filter(near).map(|id| (first + id) as u32));
        }
    }
    let one = |(at, ids): (usize, Vec<u32>)| match &ids[..] {
        &[id] => Some(id),
        several => told.get(at).copied().filter(|id| several.contains(id)),
    };
    found.into_iter().enumerate().map(one).collect()
}
