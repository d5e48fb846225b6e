//! Keys of padding that queries see, and those that are masked.

use firstdiff_compare::seen_padding;
use firstdiff_trace::{AttentionMask, Dump, Meta, Recorder, Site, Tap};

/// Scores and probabilities of one head, four positions of which the first two are padding, whose scores are `fill`; `of_all`: the softmax is over them too.
fn seen(fill: f32, of_all: bool) -> usize {
    let folder = tempfile::tempdir().unwrap();
    let recorder = Recorder::create(folder.path()).unwrap();
    recorder
        .describe(|meta| *meta = Meta { attention_mask: Some(AttentionMask::One(vec![0, 0, 1, 1])), ..meta.clone() });
    let (count, shape) = (4, [1, 4, 4]);
    let mut scores = vec![f32::NEG_INFINITY; 16];
    let mut probs = vec![0.0; 16];
    for query in 0..count {
        (0..=query).for_each(|key| scores[query * count + key] = if key < 2 { fill } else { 0.3 * key as f32 });
        let sees = |key: &usize| (of_all || *key >= 2) && *key <= query;
        let sum: f32 = (0..count).filter(sees).map(|key| scores[query * count + key].exp()).sum();
        (0..count).filter(sees).for_each(|key| probs[query * count + key] = scores[query * count + key].exp() / sum);
    }
    recorder.record(Tap::layer(0, Site::Scores), &shape, &scores).unwrap();
    recorder.record(Tap::layer(0, Site::Probs), &shape, &probs).unwrap();
    recorder.finish().unwrap();
    seen_padding(&Dump::open(folder.path()).unwrap()).unwrap().len()
}

#[test]
fn keys_of_padding_that_take_part_are_seen() {
    assert_eq!(seen(0.5, true), 1);
    // Masked, by a fill or before the softmax alone, or divided up otherwise than its scores say.
    assert_eq!(seen(-1e9, true), 0);
    assert_eq!(seen(0.5, false), 0);
}
