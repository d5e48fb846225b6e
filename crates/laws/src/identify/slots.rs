//! Slots of a cache as each query finds them: rings, rows that are written elsewhere, rows that are not there yet.

use std::sync::Arc;

use crate::describe::choice;

/// Whose row stands in a slot when a query reads it; `None` for nothing.
pub(super) type Slot = Arc<dyn Fn(usize, usize) -> Option<usize> + Send + Sync>;

/// A cache in words, with its price.
pub(super) type Cache = (String, f64, Slot);

/// Caches in which query `first` is the first that finds something else than it should; `n` positions in all.
pub(super) fn caches(first: usize, n: usize) -> Vec<Cache> {
    let mut all: Vec<Cache> = Vec::new();
    if first == 0 || first >= n {
        return all;
    }
    let price = choice(n);
    let mut add = |words: String, bits: f64, slot: Slot| all.push((words, bits + price, slot));
    // The first that is written over is read by the query whose own row did it.
    add(
        format!(
            "lie in {first} slots around: that of position s is written over by that of s+{first}, and read as its own"
        ),
        8.0,
        Arc::new(move |t, s| Some(if s < t { s + (t - s) / first * first } else { s })),
    );
    add(
        format!(
            "of positions from {first} on are written from slot 0 on again, where older ones are written over; slots from {first} on hold nothing"
        ),
        9.0,
        Arc::new(move |t, s| match t {
            _ if t < first => Some(s),
            _ if s <= t - first => Some(first + s),
            _ if s < first => Some(s),
            _ => None,
        }),
    );
    let chunk = first;
    for is_empty in [true, false] {
        let rest = if is_empty { "which hold nothing" } else { "which hold their own" };
        add(
            format!(
                "of positions {chunk} to {} are written over those of 0 to {}, and not to their own slots, {rest}",
                2 * chunk - 1,
                chunk - 1
            ),
            10.0,
            Arc::new(move |t, s| match s {
                _ if t < chunk => Some(s),
                _ if s < chunk => Some(chunk + s).filter(|at| *at < n),
                _ if s < 2 * chunk && is_empty => None,
                _ => Some(s),
            }),
        );
    }
    add(
        format!(
            "of positions from {} on are all written to slot {}, and the slots behind it hold nothing",
            first - 1,
            first - 1
        ),
        10.0,
        Arc::new(move |t, s| match s {
            _ if t < first || s < first - 1 => Some(s),
            _ if s == first - 1 => Some(t),
            _ => None,
        }),
    );
    add(
        format!("of positions from {first} on are written one slot early, and the query's own slot holds nothing"),
        10.0,
        Arc::new(move |t, s| match s {
            _ if t < first || s + 1 < first => Some(s),
            _ if s < t => Some(s + 1),
            _ => None,
        }),
    );
    add(
        format!("of positions from {first} on are written one slot late, and slot {first} holds nothing"),
        10.0,
        Arc::new(move |_, s| if s < first { Some(s) } else { Some(s - 1).filter(|at| *at >= first) }),
    );
    for newest in 1..=2usize {
        let which = if newest == 1 {
            "the query's own slot holds nothing yet"
        } else {
            "the two newest slots hold nothing yet"
        };
        add(
            format!("are written behind the product at positions from {first} on: {which}"),
            8.0 + newest as f64,
            Arc::new(move |t, s| if t >= first && s + newest > t { None } else { Some(s) }),
        );
    }
    all
}
