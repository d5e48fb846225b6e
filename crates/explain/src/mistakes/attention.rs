//! Imitates mistakes from the products of queries and keys to the mixed values.

use firstdiff_trace::Site;

use super::mistake::{BeginsLater, Mistake};
use super::param::Param;

/// A mistake of the cache of keys and values.
const CACHE: Mistake =
    Mistake { at: &[Site::Qk, Site::Context], begins_later: BeginsLater::WithTokens, ..Mistake::ORDINARY };

/// The mistakes of this file.
pub(super) static MISTAKES: &[&Mistake] =
    &[&SOFTMAX_AXIS, &SOFTMAX_BASE, &SINK_OMITTED, &KV_HEAD_MAP, &KV_CACHE_SHIFT, &KV_CACHE_STALE, &CONTEXT_LAYOUT];

pub(crate) static SOFTMAX_AXIS: Mistake = Mistake {
    id: "softmax-axis",
    what: "the softmax runs over another axis",
    fix: "over the keys, for each query and head",
    at: &[Site::Probs],
    params: &[Param::words("kind", &["heads"])],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static SOFTMAX_BASE: Mistake = Mistake {
    id: "softmax-base",
    what: "powers of 2 are taken for powers of e",
    fix: "e^x, or 2^(x / ln 2)",
    at: &[Site::Probs],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static SINK_OMITTED: Mistake = Mistake {
    id: "sink-omitted",
    what: "the denominator holds a term too many or too few",
    fix: "look at attention sinks",
    at: &[Site::Probs],
    params: &[Param::words("kind", &["extra zero"])],
    ..Mistake::ORDINARY
};
pub(crate) static KV_HEAD_MAP: Mistake = Mistake {
    id: "kv-head-map",
    what: "query heads read other key/value heads",
    fix: "query head h reads head h / (H/K)",
    at: &[Site::Qk, Site::Context],
    params: &[Param::words("map", &["h % K", "0", "h / K", "min(h, K-1)"])],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
pub(crate) static KV_CACHE_SHIFT: Mistake = Mistake {
    id: "kv-cache-shift",
    what: "keys or values are written to another slot of the cache",
    fix: "position p goes to slot p",
    params: &[Param::words("kind", &["early", "late", "newest first", "prompt late"])],
    ..CACHE
};
pub(crate) static KV_CACHE_STALE: Mistake = Mistake {
    id: "kv-cache-stale",
    what: "the newest token's key or value is not in the cache when it is read",
    fix: "write the cache before the products",
    params: &[Param::words(
        "kind",
        &["last-one's", "newest missing", "decoded never written", "earlier decoded missing"],
    )],
    ..CACHE
};

/// Whether a mistake is one of the cache of keys and values.
pub(crate) fn is_of_a_cache(id: &str) -> bool {
    [&KV_CACHE_STALE, &KV_CACHE_SHIFT].iter().any(|mistake| mistake.id == id)
}

pub(crate) static CONTEXT_LAYOUT: Mistake = Mistake {
    id: "context-layout",
    what: "heads are merged without the transpose",
    fix: "[H,T,d] becomes [T,H,d] before it is flattened",
    at: &[Site::Context],
    params: &[Param::words("kind", &["d-first"])],
    begins_later: BeginsLater::InOneOperation,
    ..Mistake::ORDINARY
};
