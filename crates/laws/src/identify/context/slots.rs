//! Slots of a cache that have the values of others: pages exchanged or not written, slots from one on that are off by one.

use crate::describe::{choice, source};

/// Where the keys of one page stand for those of another.
pub(super) type Family = (String, f64, Vec<Option<usize>>);

/// Pages of the cache that are others, or have nothing: a table of pages with a wrong entry.
pub(super) fn pages(n: usize) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    for page in [2usize, 4, 8, 16, 32, 64].into_iter().filter(|page| *page < n) {
        let count = n.div_ceil(page);
        if count * count > MOST_PAGES {
            continue;
        }
        let bits = 8.0 + 2.0 * choice(count);
        for to in 0..count {
            let (begin, end) = (to * page, (to * page + page).min(n));
            let inside = |i: usize| (begin..end).contains(&i);
            let listed = format!("positions {begin} to {}", end - 1);
            let nothing = (0..n).map(|i| (!inside(i)).then_some(i)).collect();
            all.push((format!("itself, and nothing for {listed}"), bits, nothing));
            for from in (0..count).filter(|from| *from != to) {
                let other = |i: usize| if inside(i) { (i - begin + from * page).min(n - 1) } else { i };
                if from > to {
                    let begin_there = from * page;
                    let other = |i: usize| source::exchanged(i, begin, begin_there, page).min(n - 1);
                    let words = format!(
                        "itself, positions {begin} to {} and {begin_there} to {} exchanged",
                        end - 1,
                        (begin_there + page).min(n) - 1
                    );
                    all.push((words, bits, (0..n).map(|i| Some(other(i))).collect()));
                }
                let words = format!(
                    "itself, and for {listed} those of positions {} to {}",
                    from * page,
                    (from * page + page).min(n) - 1
                );
                all.push((words, bits, (0..n).map(|i| Some(other(i))).collect()));
            }
        }
    }
    all
}

/// Slots by which those of a cache are tried to be off.
const MOST_SLOTS: usize = 2;
/// Pairs of pages that are tried.
const MOST_PAGES: usize = 1024;

/// Slots from one on that were written too early or too late.
pub(super) fn moved(n: usize) -> Vec<Family> {
    let mut all: Vec<Family> = Vec::new();
    let last = n.saturating_sub(1);
    for (begin, by) in (1..n.min(65)).flat_map(|begin| (1..=MOST_SLOTS).map(move |by| (begin, by))) {
        let bits = 9.0 + choice(n) + by as f64;
        let mut add = |words: String, from: &dyn Fn(usize) -> Option<usize>| {
            all.push((words, bits, (0..n).map(|i| if i < begin { Some(i) } else { from(i) }).collect()));
        };
        let on = format!("for positions from {begin} on");
        let later = |i: usize| (i + by < n).then_some(i + by);
        add(format!("position i+{by} {on} (nothing behind the last)"), &later);
        add(format!("position i+{by} {on} (never behind the last)"), &|i| Some((i + by).min(last)));
        add(format!("position i+{by} {on} (behind the last: itself)"), &|i| later(i).or(Some(i)));
        add(format!("position i-{by} {on}"), &|i| i.checked_sub(by));
    }
    all
}
