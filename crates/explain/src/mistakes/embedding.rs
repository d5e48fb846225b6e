//! Imitates mistakes with tokens and their embedding. Right: row `token` of the matrix, times the family's factor.

use firstdiff_trace::Site;

use super::mistake::Mistake;
use super::param::Param;

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
    shows_one_number_a_row: true,
    what: "the embedding is multiplied by a factor",
    fix: "look for an embedding multiplier that this config has not, or has otherwise",
    params: &[Param::free("factor")],
    ..EMBEDDING
};

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
