//! Describes which slice stands at each place.

use std::cell::RefCell;
use std::collections::HashSet;

use crate::case::Axis;
use crate::describe::choice;
use crate::describe::set::{Set, describe as describe_set};

/// A table of sources, in words.
#[derive(Clone, Debug)]
pub(crate) struct Source {
    pub(crate) words: String,
    pub(crate) bits: f64,
    /// For each place the slice that stands there, where that is not known included.
    pub(crate) from: Vec<usize>,
    /// Whether each stands at its own place.
    pub(crate) is_itself: bool,
    /// Where that is said of some places alone, which, in words.
    pub(crate) part: Option<String>,
}

impl Source {
    fn of(words: String, bits: f64, count: usize, last: usize, of: &dyn Fn(usize) -> usize) -> Source {
        let from: Vec<usize> = (0..count).map(|i| of(i).min(last)).collect();
        let is_itself = from.iter().enumerate().all(|(i, from)| i == *from);
        Source { words, bits, from, is_itself, part: None }
    }

    /// Where one slice of `n` stands at all of several places, that is said: a rule that leads there says more than is known.
    fn plainly(self, name: &str, n: usize) -> Source {
        match self.from[..] {
            [one, ref rest @ ..] if rest.len() > 1 && rest.iter().all(|from| *from == one) => {
                Source { words: format!("always {name} {one}"), bits: 4.0 + choice(n), ..self }
            }
            _ => self,
        }
    }
}

/// Slices of a block up to which runs in it are put in other orders.
const MOST_RUNS: usize = 256;

/// The cheapest law of `from`, of which `None` is not known: which of `n` slices stands at each place.
pub(crate) fn describe(from: &[Option<usize>], n: usize, axis: Axis) -> Source {
    described(from, n, axis, true)
}

fn described(from: &[Option<usize>], n: usize, axis: Axis, on_parts: bool) -> Source {
    let (count, name) = (from.len(), axis.name());
    let last = n.saturating_sub(1);
    let best: RefCell<Option<Source>> = RefCell::new(None);
    let offer = |words: &dyn Fn() -> String, bits: f64, of: &dyn Fn(usize) -> usize| {
        if best.borrow().as_ref().is_some_and(|best| best.bits <= bits) {
            return false;
        }
        let holds = from.iter().enumerate().all(|(i, from)| from.is_none_or(|from| from == of(i)));
        if holds {
            best.replace(Some(Source::of(words(), bits, count, last, of).plainly(name, n)));
        }
        holds
    };
    let on_part = |part: Option<String>| {
        if let Some(best) = best.borrow_mut().as_mut() {
            best.part = part;
        }
    };
    rules(count, n, name, &|i| from[i].is_some(), &offer);
    if let Some(always) = from.iter().flatten().next().copied() {
        offer(&|| format!("always {name} {always}"), 4.0 + choice(n), &|_| always);
    }
    let moved: Vec<usize> = (0..count).filter(|&i| from[i].is_some_and(|from| from != i)).collect();
    let known = from.iter().flatten().count();
    if (1..=2).contains(&moved.len()) {
        let listed =
            || moved.iter().map(|&i| format!("{name} {} for {name} {i}", from[i].unwrap_or(i))).collect::<Vec<_>>();
        let bits = if moved.len() == 1 { 3.0 + 1.4 * choice(n) } else { 4.0 + 2.0 * moved.len() as f64 * choice(n) };
        if offer(&|| format!("itself, but {}", listed().join(", ")), bits, &|i| from[i].unwrap_or(i)) {
            let is_moved: Vec<Option<bool>> = (0..count).map(|i| Some(moved.contains(&i))).collect();
            on_part(describe_set(&is_moved, axis, None).words);
        }
    }
    if let (Some(&a), width) = (moved.first(), moved.len() / 2)
        && moved.len() >= 4
        && moved.len().is_multiple_of(2)
    {
        let b = moved[width];
        let of = |i: usize| exchanged(i, a, b, width);
        let words = || format!("{name} i, {name}s {a} to {} and {b} to {} exchanged", a + width - 1, b + width - 1);
        offer(&words, 6.0 + 3.0 * choice(n), &of);
    }
    if best.borrow().is_none() && on_parts && !moved.is_empty() && moved.len() < known {
        let is_moved: Vec<Option<bool>> = from.iter().enumerate().map(|(i, from)| from.map(|from| from != i)).collect();
        let set = describe_set(&is_moved, axis, None);
        let part: Vec<Option<usize>> = from.iter().zip(&set.has).map(|(from, has)| from.filter(|_| *has)).collect();
        let inner = described(&part, n, axis, false);
        if let Some(on) = &set.words {
            let words = format!("{} for {on}", inner.words);
            let bits = inner.bits + set.bits + 2.0;
            if offer(&|| words.clone(), bits, &|i| if set.has[i] { inner.from[i] } else { i }) {
                on_part(Some(on.clone()));
            }
        }
    }
    let listed = || {
        // Of a part those that are of it, one for each.
        let these = from.iter().filter(|from| on_parts || from.is_some());
        let words = these.map(|from| from.map_or_else(|| "?".into(), |from| from.to_string())).collect::<Vec<_>>();
        format!("{name}s {}{}", words[..words.len().min(16)].join(", "), if words.len() > 16 { ", .." } else { "" })
    };
    offer(&listed, 20.0 + known as f64 * choice(n), &|i| from[i].unwrap_or(i));
    best.into_inner().unwrap_or(Source {
        words: listed(),
        bits: f64::INFINITY,
        from: (0..count).collect(),
        is_itself: true,
        part: None,
    })
}

/// For each of `count` places which of `n` slices alone may stand there, `None` where several may; nothing where a place has none.
pub(crate) fn only(count: usize, n: usize, may: &dyn Fn(usize, usize) -> bool) -> Option<Vec<Option<usize>>> {
    let of = |place: usize| {
        let mut all = (0..n).filter(|&slice| may(place, slice));
        let one = all.next()?;
        Some(Some(one).filter(|_| all.next().is_none()))
    };
    (0..count).map(of).collect()
}

/// A part of some places, and which slices of one of several tensors stand there.
pub(crate) struct Piece {
    /// Which tensor.
    pub(crate) of: usize,
    pub(crate) on: Set,
    pub(crate) source: Source,
}

/// The parts of places of which it was found which slice of which tensor each has; `counts` is how many slices each tensor has.
pub(crate) fn pieces(found: &[Option<(usize, usize)>], counts: &[usize], axis: Axis) -> Vec<Piece> {
    let piece = |(of, count): (usize, &usize)| {
        let meant: Vec<Option<bool>> = found.iter().map(|at| at.map(|(which, _)| which == of)).collect();
        meant.contains(&Some(true)).then(|| {
            let here = |at: &Option<(usize, usize)>| at.filter(|(which, _)| *which == of).map(|(_, slice)| slice);
            let from: Vec<Option<usize>> = found.iter().map(here).collect();
            let source = describe(&from, (*count).max(found.len()), axis);
            Piece { of, on: describe_set(&meant, Axis::Channel, None), source }
        })
    };
    counts.iter().enumerate().filter_map(piece).collect()
}

/// All orders of `n` slices that a rule gives for so many bits at most, each once and none the right one.
pub(crate) fn orders(n: usize, name: &str, most: f64) -> Vec<Source> {
    let out: RefCell<Vec<Source>> = RefCell::default();
    let known: RefCell<HashSet<Vec<usize>>> = RefCell::default();
    let offer = |words: &dyn Fn() -> String, bits: f64, of: &dyn Fn(usize) -> usize| {
        if bits <= most {
            let source = Source::of(words(), bits, n, n.saturating_sub(1), of).plainly(name, n);
            if !source.is_itself && known.borrow_mut().insert(source.from.clone()) {
                out.borrow_mut().push(source);
            }
        }
        false
    };
    rules(n, n, name, &|_| true, &offer);
    out.into_inner()
}

/// The cheapest rule by which each place has a slice that it may have: `may` says for each place which. From the first place on that may not have its own.
pub(crate) fn describe_one_of(may: &[Vec<bool>], axis: Axis) -> Option<Source> {
    let (count, n, name) = (may.len(), may.first()?.len(), axis.name());
    let best: RefCell<Option<Source>> = RefCell::new(None);
    let first = (0..count.min(n)).find(|&i| !may[i][i])?;
    for begin in [0, first] {
        let price = if begin == 0 { 0.0 } else { 2.0 + choice(count) };
        let offer = |words: &dyn Fn() -> String, bits: f64, of: &dyn Fn(usize) -> usize| {
            if best.borrow().as_ref().is_some_and(|best| best.bits <= bits + price) {
                return false;
            }
            let holds = (begin..count).all(|i| may[i].get(of(i)).is_some_and(|may| *may));
            if holds {
                let words = if begin == 0 { words() } else { format!("{} for {name}s from {begin} on", words()) };
                let of = |i: usize| if i < begin { i } else { of(i) };
                best.replace(Some(Source::of(words, bits + price, count, n - 1, &of)));
            }
            holds
        };
        rules(count, n, name, &|i| i >= begin, &offer);
        for always in 0..n {
            offer(&|| format!("always {name} {always}"), 4.0 + choice(n), &|_| always);
        }
    }
    best.into_inner().filter(|best| !best.is_itself)
}

/// What is offered of a rule: its words, its price, and which slice it has stand at a place. Whether it was taken up.
type Offer<'a> = &'a dyn Fn(&dyn Fn() -> String, f64, &dyn Fn(usize) -> usize) -> bool;

/// Rules that say which of `n` slices stands at each of `count` places; of those that are not known nothing is said.
fn rules(count: usize, n: usize, name: &str, is_known: &dyn Fn(usize) -> bool, offer: Offer<'_>) {
    let last = n.saturating_sub(1);
    offer(&|| "itself".into(), 0.0, &|i| i);
    offer(&|| format!("the {name}s in reverse"), 5.0, &|i| last.saturating_sub(i));
    offer(&|| format!("neighbouring {name}s exchanged"), 5.0, &|i| if (i ^ 1) < n { i ^ 1 } else { i });
    for by in 1..n {
        let signed = if 2 * by <= n { format!("+{by}") } else { format!("-{}", n - by) };
        let size = by.min(n - by);
        // Where none that is known lies over the end, it is not said.
        let further = |i: usize| if 2 * by <= n { i + by < n } else { i >= n - by };
        let is_inside = (0..count).all(|i| !is_known(i) || further(i));
        let end = if is_inside { "" } else { ", around the end" };
        offer(&|| format!("{name} i{signed}{end}"), 6.0 + choice(size), &|i| (i + by) % n);
    }
    for by in 1..n.min(65) {
        let bits = 7.0 + choice(by);
        offer(&|| format!("{name} i-{by} (before the first: itself)"), bits, &|i| if i >= by { i - by } else { i });
        offer(&|| format!("{name} i-{by} (never before the first)"), bits, &|i| i.saturating_sub(by));
        offer(&|| format!("{name} i+{by} (never behind the last)"), bits, &|i| (i + by).min(last));
        offer(&|| format!("{name} i+{by} (behind the last: itself)"), bits + 1.0, &|i| {
            if i + by <= last { i + by } else { i }
        });
    }
    for by in 2..=count.max(n) {
        let bits = 6.0 + choice(by);
        for of in [by + 1, by + 2, 2 * by] {
            offer(&|| format!("the first {by} of every {of} {name}s"), bits + 3.0, &|i| i / by * of + i % by);
            offer(&|| format!("the last {by} of every {of} {name}s"), bits + 3.0, &|i| i / by * of + of - by + i % by);
        }
        offer(&|| format!("{name} i mod {by}"), bits, &|i| i % by);
        offer(&|| format!("{name} i div {by}"), bits, &|i| i / by);
        offer(&|| format!("the first of its {by} {name}s"), bits, &|i| i / by * by);
        offer(&|| format!("the last of its {by} {name}s"), bits, &|i| (i / by * by + by - 1).min(last));
        offer(&|| format!("{name} {by} i (never behind the last)"), bits + 1.0, &|i| (i * by).min(last));
        offer(&|| format!("{name} i, at most {by}"), bits, &|i| i.min(by));
        offer(&|| format!("{name} i, at least {by}"), bits, &|i| i.max(by));
        offer(&|| format!("the {name}s in reverse within blocks of {by}"), bits, &|i| {
            (i / by * by + by - 1 - i % by).min(last)
        });
        // Runs within a block, or within all, as a transposed matrix of them.
        for run in (1..=by / 4).filter(|run| by.is_multiple_of(*run) && n.is_multiple_of(by) && by <= MOST_RUNS) {
            for rows in (2..by / run).filter(|rows| (by / run).is_multiple_of(*rows)) {
                let columns = by / run / rows;
                let words = || {
                    let runs = if run == 1 { name.to_owned() + "s" } else { format!("runs of {run} {name}s") };
                    format!("the {runs} of each {by} interleaved, as a transposed [{rows}, {columns}]")
                };
                offer(&words, bits + 3.0 + choice(by), &|i| {
                    let (block, number) = (i / by * by, i % by / run);
                    block + (number % rows * columns + number / rows) * run + i % run
                });
            }
        }
        if by < n && n.is_multiple_of(by) {
            let rows = n / by;
            let transposed = |i: usize| i % rows * by + i / rows;
            let begin = (0..4.min(n)).map(|i| transposed(i).to_string()).collect::<Vec<_>>().join(", ");
            offer(&|| format!("the {name}s as a transposed [{by}, {rows}] ({begin}, ..)"), bits, &transposed);
            offer(&|| format!("blocks of {by} {name}s in reverse"), bits, &|i| {
                (rows - 1).saturating_sub(i / by) * by + i % by
            });
            for shift in 1..by.min(65) {
                let bits = 8.0 + choice(by) + choice(shift);
                offer(&|| format!("{name} i+{shift} around its block of {by}"), bits, &|i| {
                    i / by * by + (i % by + shift) % by
                });
            }
            for shift in 1..rows.min(17) {
                offer(
                    &|| format!("the block of {by} {name}s {shift} further, around the end"),
                    8.0 + choice(by) + choice(shift),
                    &|i| (i / by + shift) % rows * by + i % by,
                );
            }
            if n.is_multiple_of(2 * by) {
                offer(&|| format!("neighbouring blocks of {by} {name}s exchanged"), bits, &|i| {
                    ((i / by) ^ 1) * by + i % by
                });
                offer(&|| format!("the halves of each {} {name}s interleaved", 2 * by), bits + 1.0, &|i| {
                    i / (2 * by) * 2 * by + i % (2 * by) / 2 + i % 2 * by
                });
                offer(&|| format!("each {} {name}s taken apart by even and odd", 2 * by), bits + 1.0, &|i| {
                    let (block, inner) = (i / (2 * by) * 2 * by, i % (2 * by));
                    block + if inner < by { 2 * inner } else { 2 * (inner - by) + 1 }
                });
            }
        }
    }
}

/// Where an index stands when two ranges of this width, from `a` on and from `b` on, are exchanged.
pub(crate) fn exchanged(i: usize, a: usize, b: usize, width: usize) -> usize {
    match i {
        _ if (a..a + width).contains(&i) => i - a + b,
        _ if (b..b + width).contains(&i) => i - b + a,
        _ => i,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(n: usize, of: impl Fn(usize) -> usize) -> String {
        describe(&(0..n).map(|i| Some(of(i))).collect::<Vec<_>>(), n, Axis::Head).words
    }

    #[test]
    fn sources_are_said_as_what_they_are() {
        assert_eq!(words(8, |i| i), "itself");
        assert_eq!(words(8, |i| (i + 1) % 8), "head i+1, around the end");
        assert_eq!(words(8, |i| 7 - i), "the heads in reverse");
        assert_eq!(words(8, |i| i / 2), "head i div 2");
        assert_eq!(words(12, |i| i % 4 * 3 + i / 4), "the heads as a transposed [3, 4] (0, 3, 6, 9, ..)");
        assert_eq!(
            words(8, |i| if i == 3 {
                5
            } else if i == 5 {
                3
            } else {
                i
            }),
            "itself, but head 5 for head 3, head 3 for head 5"
        );
        let exchanged = |i: usize| match i {
            2..=4 => i + 6,
            8..=10 => i - 6,
            _ => i,
        };
        assert_eq!(words(12, exchanged), "head i, heads 2 to 4 and 8 to 10 exchanged");
    }

    #[test]
    fn random_sources_have_no_law() {
        let from: Vec<Option<usize>> = [3, 0, 7, 5, 1, 6, 2, 4].map(Some).to_vec();
        assert!(describe(&from, 8, Axis::Head).bits > 40.0);
    }
}
