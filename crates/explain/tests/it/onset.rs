//! Is a mistake named that begins at a later token, and nothing else?

use firstdiff_explain::explain::{Explanation, Match};
use firstdiff_trace::{Dump, Site, Tap};

use crate::again::{changed, values};

const TORCH: &str = "golden/llama-torch";
/// Query heads, key and value heads, elements of one, tokens of the prefill.
const SHAPE: [usize; 4] = [6, 2, 16, 11];

/// Each cause with its kind, those that are as good, and the first step it shows in.
fn causes(explanation: &Explanation) -> Vec<(String, Vec<&'static str>, u32)> {
    let one = |f: &firstdiff_explain::explain::Finding| {
        let cause = f.cause.as_ref().unwrap();
        let kind = cause.params.first().map_or(String::new(), |(_, value)| value.to_string().replace('"', ""));
        let first = f.shown_at.iter().map(|place| place.step).min().unwrap();
        (format!("{} {kind}", cause.id), f.alternatives.iter().map(|c| c.id).collect(), first)
    };
    assert!(explanation.findings.iter().all(|f| f.matched == Match::Reproduced), "{:?}", explanation.findings);
    explanation.findings.iter().map(one).collect()
}

/// The context of a decode step of layer 0, its values read from the slots that `held` names by the rows they hold.
fn context(dump: &Dump, step: u32, held: impl Fn(usize) -> Option<usize>) -> Vec<f32> {
    let [heads, kv_heads, width, prefill] = SHAPE;
    let rows: Vec<f32> = (0..=step).flat_map(|step| values(dump, Tap::layer(0, Site::V), step)).collect();
    let probs = values(dump, Tap::layer(0, Site::Probs), step);
    let keys = prefill + step as usize;
    let at = |head: usize, i: usize| -> f32 {
        let value =
            |slot: usize| held(slot).map_or(0.0, |row| rows[(row * kv_heads + head / (heads / kv_heads)) * width + i]);
        (0..keys).map(|slot| probs[head * keys + slot] * value(slot)).sum()
    };
    (0..heads).flat_map(|head| (0..width).map(move |i| (head, i))).map(|(head, i)| at(head, i)).collect()
}

/// Layer 0 up to its context, which is wrong from a step on; `scores` says whether scores and probabilities are recorded.
fn values_late(from: u32, scores: bool) -> Explanation {
    changed("llama", TORCH, &|dump, tap, step, x| {
        let first = SHAPE[3] + from as usize - 1;
        let late = |slot: usize| if slot < first { Some(slot) } else { (slot > first).then(|| slot - 1) };
        match tap.site {
            _ if tap.layer.is_some_and(|layer| layer > 0) => None,
            Site::Context if step >= from => Some(context(dump, step, late)),
            Site::Scores | Site::Probs if !scores => None,
            Site::AttnOut | Site::HAttn | Site::FfnNorm | Site::FfnGate | Site::FfnUp => None,
            Site::FfnAct | Site::FfnOut | Site::H | Site::FinalNorm | Site::Logits => None,
            _ => Some(x),
        }
    })
}

#[test]
fn values_written_a_slot_late_from_a_later_token_on_are_named() {
    for scores in [true, false] {
        for from in [1, 2] {
            let explanation = values_late(from, scores);
            assert_eq!(causes(&explanation), [("kv-cache-shift late".to_owned(), vec![], from)], "{scores} {from}");
        }
    }
}

#[test]
fn decoded_values_that_never_reach_the_cache_are_named() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| match tap.site {
        _ if tap.layer.is_some_and(|layer| layer > 0) => None,
        Site::Context if step > 0 => Some(context(dump, step, |slot| (slot < SHAPE[3]).then_some(slot))),
        Site::AttnOut | Site::HAttn | Site::FfnNorm | Site::FfnGate | Site::FfnUp => None,
        Site::FfnAct | Site::FfnOut | Site::H | Site::FinalNorm | Site::Logits => None,
        _ => Some(x),
    });
    assert_eq!(causes(&explanation), [("kv-cache-stale decoded never written".to_owned(), vec![], 1)]);
}

/// Another path of the code for later tokens: every input of the one operation is known.
#[test]
fn gate_and_up_that_change_places_at_a_later_token_are_named() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| match tap.site {
        _ if tap.layer.is_some_and(|layer| layer > 0) => None,
        Site::FfnAct if step >= 2 => {
            let [gate, up] = [Site::FfnGate, Site::FfnUp].map(|site| values(dump, Tap { site, ..tap }, step));
            Some(gate.iter().zip(&up).map(|(gate, up)| gate * up / (1.0 + (-up).exp())).collect())
        }
        Site::FfnOut | Site::H | Site::FinalNorm | Site::Logits => None,
        _ => Some(x),
    });
    assert_eq!(causes(&explanation), [("gate-up-swapped ".to_owned(), vec![], 2)]);
}

#[test]
fn positions_that_go_wrong_at_a_later_token_are_named() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| {
        let plain = |site| Some(values(dump, Tap { site, ..tap }, step));
        match tap.site {
            _ if tap.layer.is_some_and(|layer| layer > 0) => None,
            Site::QRope if step >= 2 => plain(Site::Q),
            Site::KRope if step >= 2 => plain(Site::K),
            Site::H0 | Site::AttnNorm | Site::Q | Site::K | Site::QRope | Site::KRope
                if tap.layer.unwrap_or(0) == 0 =>
            {
                Some(x)
            }
            _ => None,
        }
    });
    // Of position 0, and not turned at all: the same numbers.
    assert_eq!(causes(&explanation), [("rope-position decode-zero".to_owned(), vec!["rope-omitted"], 2)]);
}

/// No weight is lost between two tokens: that the numbers are those of one that is all zeros proves nothing.
#[test]
fn what_cannot_begin_at_a_later_token_is_not_named_there() {
    let explanation = changed("llama", TORCH, &|_, tap, step, x| {
        let known = matches!(tap.site, Site::H0 | Site::AttnNorm | Site::V) && tap.layer.unwrap_or(0) == 0;
        known.then(|| if tap.site == Site::V && step >= 2 { vec![0.0; x.len()] } else { x })
    });
    assert!(!explanation.findings.is_empty());
    assert!(explanation.findings.iter().all(|f| f.matched != Match::Reproduced), "{:?}", explanation.findings);
}

/// The same from the first decoded token on, where the prefill is right: what would have shown there is made in decoding alone.
#[test]
fn what_is_as_good_in_decoding_alone_is_named_too() {
    let explanation = changed("llama", TORCH, &|dump, tap, step, x| match tap.site {
        _ if tap.layer.is_some_and(|layer| layer > 0) => None,
        Site::KRope if step >= 1 => Some(values(dump, Tap { site: Site::K, ..tap }, step)),
        Site::H0 | Site::AttnNorm | Site::Q | Site::K | Site::QRope | Site::KRope => Some(x),
        _ => None,
    });
    assert_eq!(causes(&explanation), [("rope-position decode-zero".to_owned(), vec!["rope-omitted"], 1)]);
}

/// A mistake of every decoded token is named from the logits alone, though those of a later step were made with the keys of an earlier one.
#[test]
fn mistakes_of_decoded_tokens_are_named_from_the_logits() {
    for (model, dump, cause) in [
        ("llama", "faulty/llama-rope-position-decode-stuck.npz", ("rope-position decode-stuck", 2)),
        ("qwen3", "faulty/qwen3-rope-position-decode-ahead.npz", ("rope-position 1", 1)),
        ("qwen3", "faulty/qwen3-kv-cache-stale.npz", ("kv-cache-stale last-one's", 1)),
    ] {
        let explanation = changed(model, dump, &|_, tap, _, x| (tap.site == Site::Logits).then_some(x));
        let found = causes(&explanation);
        let found: Vec<(&str, u32)> = found.iter().map(|(cause, _, step)| (cause.as_str(), *step)).collect();
        assert_eq!(found, [cause], "{dump}");
    }
}
