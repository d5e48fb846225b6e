//! Describes which keys each query sees.

use ndarray::{Array2, s};
use serde_json::Value;

use crate::case::Axis;
use crate::describe::set::describe as describe_set;
use crate::describe::source::describe as describe_source;
use crate::describe::{choice, nth};

/// A mask in words.
#[derive(Clone, Debug)]
pub(crate) struct Mask {
    pub(crate) words: String,
    pub(crate) bits: f64,
    /// `[T,S]`: whether the query sees the key.
    pub(crate) sees: Array2<bool>,
    /// Its numbers by name.
    pub(crate) parameters: Vec<(&'static str, Value)>,
}

/// A condition on a query and a key.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Atom {
    /// key <= query + k
    UpTo(i64),
    /// key > query - w
    Window(i64),
    /// distance below w, both ways
    Near(i64),
    /// key < n
    KeyBelow(i64),
    KeyFrom(i64),
    QueryBelow(i64),
    QueryFrom(i64),
    /// one distance
    Distance(i64),
    /// distance = r mod n
    DistanceEvery(i64, i64),
    /// key = r mod n
    KeyEvery(i64, i64),
    SameBlock(i64),
    /// the key's block is before the query's
    EarlierBlock(i64),
    /// the key's block is not behind the query's
    UpToBlock(i64),
    /// the same block or the one before
    NearBlock(i64),
    /// the number of the key's block of the first extent is at most that of the query's of the second
    BlockNumbers(i64, i64),
    /// the key mirrored within its block is not behind the query
    Mirrored(i64),
}

impl Atom {
    fn holds(self, t: i64, s: i64) -> bool {
        match self {
            Atom::UpTo(k) => s <= t + k,
            Atom::Window(w) => s > t - w,
            Atom::Near(w) => (t - s).abs() < w,
            Atom::KeyBelow(n) => s < n,
            Atom::KeyFrom(n) => s >= n,
            Atom::QueryBelow(n) => t < n,
            Atom::QueryFrom(n) => t >= n,
            Atom::Distance(n) => t - s == n,
            Atom::DistanceEvery(n, r) => (t - s).rem_euclid(n) == r,
            Atom::KeyEvery(n, r) => s.rem_euclid(n) == r,
            Atom::SameBlock(n) => t / n == s / n,
            Atom::EarlierBlock(n) => s / n < t / n,
            Atom::UpToBlock(n) => s / n <= t / n,
            Atom::NearBlock(n) => s / n <= t / n && t / n - s / n <= 1,
            Atom::BlockNumbers(a, b) => s / a <= t / b,
            Atom::Mirrored(n) => s / n * n + n - 1 - s % n <= t,
        }
    }

    fn words(self) -> String {
        match self {
            Atom::UpTo(0) => "up to the query's own".into(),
            Atom::UpTo(k) if k > 0 => format!("up to {k} behind the query's own"),
            Atom::UpTo(k) => format!("{} or more before the query", -k),
            Atom::Window(1) => "from the query's own on".into(),
            Atom::Window(0) => "behind the query's own".into(),
            Atom::Window(w) if w < 0 => format!("more than {} behind the query's own", -w),
            Atom::Window(w) => format!("t-{} to t (window of {w})", w - 1),
            Atom::Near(w) => format!("less than {w} away"),
            Atom::KeyBelow(1) => "the first key".into(),
            Atom::KeyBelow(n) => format!("before position {n}"),
            Atom::KeyFrom(n) => format!("from position {n} on"),
            Atom::QueryBelow(n) => format!("for queries before {n}"),
            Atom::QueryFrom(n) => format!("for queries from {n} on"),
            Atom::Distance(0) => "the query's own".into(),
            Atom::Distance(n) => format!("{n} before the query"),
            Atom::DistanceEvery(n, 0) => format!("at distances that are multiples of {n}"),
            Atom::DistanceEvery(n, r) => format!("at every {} distance from {r} on", nth(n as usize)),
            Atom::KeyEvery(n, r) => format!("every {} from position {r} on", nth(n as usize)),
            Atom::SameBlock(n) => format!("in the query's block of {n}"),
            Atom::EarlierBlock(n) => format!("in blocks of {n} before the query's"),
            Atom::UpToBlock(n) => format!("in blocks of {n} up to the query's"),
            Atom::NearBlock(n) => format!("in the query's block of {n} and the one before"),
            Atom::BlockNumbers(a, 1) => format!("up to key {a} t + {} (t: the query)", a - 1),
            Atom::BlockNumbers(a, b) => {
                format!("whose block of {a} has at most the number of the query's block of {b}")
            }
            Atom::Mirrored(n) => {
                format!("that, mirrored within their block of {n} (in reverse order), are up to the query's own")
            }
        }
    }

    fn bits(self) -> f64 {
        let of = |n: i64| choice(n.unsigned_abs() as usize);
        match self {
            Atom::UpTo(0) => 0.0,
            Atom::UpTo(k) => 3.0 + of(k),
            Atom::Window(n) | Atom::KeyBelow(n) | Atom::KeyFrom(n) => 4.0 + of(n),
            Atom::Distance(n) => 4.0 + of(n),
            Atom::Near(n) | Atom::QueryBelow(n) | Atom::QueryFrom(n) => 5.0 + of(n),
            Atom::DistanceEvery(n, 0) | Atom::SameBlock(n) => 5.0 + of(n),
            Atom::DistanceEvery(n, _) => 6.0 + 2.0 * of(n),
            Atom::UpToBlock(n) | Atom::EarlierBlock(n) | Atom::NearBlock(n) => 6.0 + of(n),
            Atom::KeyEvery(n, _) => 6.0 + 2.0 * of(n),
            Atom::Mirrored(n) => 7.0 + of(n),
            Atom::BlockNumbers(a, b) => 7.0 + of(a) + of(b),
        }
    }

    /// Whether it is a bound, of which three together make a region.
    fn is_bound(self) -> bool {
        use Atom::{KeyBelow, KeyFrom, Near, QueryBelow, QueryFrom, UpTo, Window};
        matches!(self, UpTo(_) | Window(_) | Near(_) | KeyBelow(_) | KeyFrom(_) | QueryBelow(_) | QueryFrom(_))
    }

    fn parameter(self) -> Option<(&'static str, usize)> {
        let at = |name, n: i64| usize::try_from(n).ok().map(|n| (name, n));
        match self {
            Atom::Window(n) => at("window", n),
            Atom::Near(n) => at("near", n),
            Atom::UpTo(n) if n != 0 => at("ahead", n),
            Atom::KeyBelow(n) => at("keys_before", n),
            Atom::KeyFrom(n) => at("keys_from", n),
            Atom::BlockNumbers(n, _) | Atom::Mirrored(n) => at("block", n),
            Atom::SameBlock(n) | Atom::UpToBlock(n) | Atom::EarlierBlock(n) | Atom::NearBlock(n) => at("block", n),
            Atom::DistanceEvery(n, _) | Atom::KeyEvery(n, _) => at("every", n),
            Atom::Distance(n) => at("distance", n),
            _ => None,
        }
    }
}

/// The tightest conditions that all these pairs meet.
fn around(pairs: &[(i64, i64)], n: i64) -> Vec<Atom> {
    let least = |f: &dyn Fn(i64, i64) -> i64| pairs.iter().map(|&(t, s)| f(t, s)).min().unwrap_or(0);
    let most = |f: &dyn Fn(i64, i64) -> i64| pairs.iter().map(|&(t, s)| f(t, s)).max().unwrap_or(0);
    let mut all = vec![
        Atom::UpTo(most(&|t, s| s - t)),
        Atom::Window(most(&|t, s| t - s) + 1),
        Atom::Near(most(&|t, s| (t - s).abs()) + 1),
        Atom::KeyBelow(most(&|_, s| s) + 1),
        Atom::KeyFrom(least(&|_, s| s)),
        Atom::QueryBelow(most(&|t, _| t) + 1),
        Atom::QueryFrom(least(&|t, _| t)),
    ];
    let (near, far) = (least(&|t, s| t - s), most(&|t, s| t - s));
    if near == far {
        all.push(Atom::Distance(near));
    }
    let (query, first) = pairs[0];
    for by in 2..n.min(MOST_BLOCK) {
        all.push(Atom::DistanceEvery(by, (query - first).rem_euclid(by)));
        all.push(Atom::KeyEvery(by, first.rem_euclid(by)));
        all.push(Atom::Mirrored(by));
        all.extend([by * 2, by * 4].map(|other| Atom::BlockNumbers(by, other)));
        all.extend((by % 2 == 0).then_some(Atom::BlockNumbers(by, by / 2)));
        all.extend([Atom::SameBlock(by), Atom::EarlierBlock(by), Atom::UpToBlock(by), Atom::NearBlock(by)]);
    }
    all.retain(|atom| pairs.iter().all(|&(t, s)| atom.holds(t, s)));
    all
}

/// Blocks above this size are not looked for.
const MOST_BLOCK: i64 = 257;
/// Conditions that pairs are made of.
const PAIRED: usize = 48;

/// The cheapest mask that agrees with what is seen, as far as that can be told: causal or not, with one or two conditions, or all but those that meet them.
/// Of fewer queries than keys the last query stands at the last key: those of a decode step are behind what the cache holds.
pub(crate) fn describe(sees: &Array2<Option<bool>>, tokens: Option<&[u32]>) -> Option<Mask> {
    let (queries, keys) = sees.dim();
    let Some(before) = keys.checked_sub(queries).filter(|&before| before > 0) else {
        return of_all_queries(sees, tokens);
    };
    let mut all = Array2::from_elem((keys, keys), None);
    all.slice_mut(s![before.., ..]).assign(sees);
    let mask = of_all_queries(&all, tokens)?;
    Some(Mask { sees: mask.sees.slice(s![before.., ..]).to_owned(), ..mask })
}

/// The same where each position has its query.
fn of_all_queries(sees: &Array2<Option<bool>>, tokens: Option<&[u32]>) -> Option<Mask> {
    let known: Vec<((i64, i64), bool)> =
        sees.indexed_iter().filter_map(|((t, s), is)| Some(((t as i64, s as i64), (*is)?))).collect();
    let seen: Vec<(i64, i64)> = known.iter().filter(|(_, is)| *is).map(|(at, _)| *at).collect();
    if seen.is_empty() {
        return None;
    }
    let n = sees.nrows().max(sees.ncols()) as i64;
    let mut best: Option<Mask> = None;
    for (is_causal, base_bits) in [(true, 0.0), (false, 2.0)] {
        let base = |t: i64, s: i64| !is_causal || s <= t;
        if !seen.iter().all(|&(t, s)| base(t, s)) {
            continue;
        }
        let within: Vec<((i64, i64), bool)> = known.iter().filter(|((t, s), _)| base(*t, *s)).copied().collect();
        let hidden: Vec<(i64, i64)> = within.iter().filter(|(_, is)| !is).map(|(at, _)| *at).collect();
        let mut offer = |atoms: &[Atom], is_without: bool, bits: f64| {
            let bits = bits + base_bits + atoms.iter().map(|atom| atom.bits()).sum::<f64>();
            if best.as_ref().is_some_and(|best| best.bits <= bits) {
                return;
            }
            let is = |t: i64, s: i64| base(t, s) && (atoms.iter().all(|atom| atom.holds(t, s)) != is_without);
            if within.iter().all(|&((t, s), sees)| is(t, s) == sees) {
                let sees = Array2::from_shape_fn(sees.dim(), |(t, s)| is(t as i64, s as i64));
                let mut parameters: Vec<(&'static str, Value)> =
                    atoms.iter().filter_map(|atom| atom.parameter()).map(|(name, n)| (name, n.into())).collect();
                parameters.push(("causal", is_causal.into()));
                parameters.push(("conditions", atoms.len().into()));
                parameters.push(("hidden", is_without.into()));
                best = Some(Mask { words: said(is_causal, atoms, is_without), bits, sees, parameters });
            }
        };
        offer(&[], false, 0.0);
        for (pairs, is_without, bits) in [(&seen, false, 0.0), (&hidden, true, 2.0)] {
            if pairs.is_empty() {
                continue;
            }
            let mut atoms = around(pairs, n);
            atoms.sort_by(|a, b| a.bits().total_cmp(&b.bits()));
            atoms.truncate(PAIRED);
            for (at, a) in atoms.iter().enumerate() {
                offer(&[*a], is_without, bits);
                for (of, b) in atoms.iter().enumerate().skip(at + 1) {
                    offer(&[*a, *b], is_without, bits + 2.0);
                    let bounds = [a, b].iter().all(|atom| atom.is_bound());
                    for c in atoms[of + 1..].iter().filter(|c| bounds && c.is_bound()) {
                        offer(&[*a, *b, *c], is_without, bits + 4.0);
                    }
                }
            }
        }
    }
    if best.as_ref().is_some_and(|best| best.bits <= TILES) {
        return best;
    }
    let others =
        [of_tiles(sees, &known, n), of_keys(sees, &known, tokens), of_bounds(sees), of_whole_blocks(sees, &known, n)];
    best.into_iter().chain(others.into_iter().flatten()).min_by(|a, b| a.bits.total_cmp(&b.bits))
}

/// A causal mask that hides some keys, from all queries or from all but their own.
fn of_keys(sees: &Array2<Option<bool>>, known: &[((i64, i64), bool)], tokens: Option<&[u32]>) -> Option<Mask> {
    for (of_own, whom) in [(true, ""), (false, " for later queries")] {
        let counts = |t: i64, s: i64| s < t || of_own && s == t;
        let hidden = |key: usize| {
            let mut of = known.iter().filter(|((t, s), _)| *s == key as i64 && counts(*t, *s)).map(|(_, is)| !is);
            let first = of.next()?;
            of.all(|is| is == first).then_some(first)
        };
        let meant: Vec<Option<bool>> = (0..sees.ncols()).map(hidden).collect();
        if !meant.contains(&Some(true)) {
            continue;
        }
        // A key that no query tells of is not said to be hidden.
        let meant: Vec<Option<bool>> = meant.into_iter().map(|is| is.or(Some(false))).collect();
        let set = describe_set(&meant, Axis::Key, tokens);
        let is = |t: i64, s: i64| s <= t && !(counts(t, s) && set.has.get(s as usize) == Some(&true));
        if known.iter().all(|&((t, s), sees)| is(t, s) == sees) {
            let on = set.words.clone().unwrap_or_else(|| "all keys".into());
            return Some(Mask {
                words: format!("keys up to its own, without {on}{whom}"),
                bits: 4.0 + set.bits + if of_own { 0.0 } else { 1.0 },
                sees: Array2::from_shape_fn(sees.dim(), |(t, s)| is(t as i64, s as i64)),
                parameters: vec![("hidden", on.into())],
            });
        }
    }
    None
}

/// A mask in which each query sees all keys from one on up to another, which are laws of its number.
fn of_bounds(sees: &Array2<Option<bool>>) -> Option<Mask> {
    let n = sees.ncols();
    let (mut firsts, mut lasts) = (Vec::new(), Vec::new());
    for row in sees.rows() {
        let seen: Vec<usize> = (0..n).filter(|&s| row[s] == Some(true)).collect();
        let bounds = seen.first().copied().zip(seen.last().copied());
        let is_between = |s: usize| bounds.is_some_and(|(first, last)| (first..=last).contains(&s));
        if (0..n).any(|s| row[s].is_some_and(|is| is != is_between(s))) {
            return None;
        }
        // A bound is told where the next key beyond it is hidden, or there is none.
        let is_hidden = |s: Option<usize>| s.is_none_or(|s| s >= n || row[s] == Some(false));
        firsts.push(bounds.map(|(first, _)| first).filter(|first| is_hidden(first.checked_sub(1))));
        lasts.push(bounds.map(|(_, last)| last).filter(|last| is_hidden(last.checked_add(1))));
    }
    let (first, last) = (describe_source(&firsts, n, Axis::Key), describe_source(&lasts, n, Axis::Key));
    let is = |t: usize, s: usize| first.from.get(t).zip(last.from.get(t)).is_some_and(|(a, b)| (*a..=*b).contains(&s));
    let fits = sees.indexed_iter().all(|((t, s), known)| known.is_none_or(|known| known == is(t, s)));
    let (said_first, said_last) = (in_query(&first.words), in_query(&last.words));
    fits.then(|| {
        let from = if first.from.iter().all(|first| *first == 0) { "the first".to_owned() } else { said_first };
        Mask {
            words: format!("keys from {from} to {said_last} (i: the query)"),
            bits: 4.0 + first.bits + last.bits,
            sees: Array2::from_shape_fn(sees.dim(), |(t, s)| is(t, s)),
            parameters: vec![("last", last.words.into())],
        }
    })
}

/// A causal mask of as many keys as fill whole blocks, counted from the first or back from the query's own: a loop without its tail.
fn of_whole_blocks(sees: &Array2<Option<bool>>, known: &[((i64, i64), bool)], n: i64) -> Option<Mask> {
    for block in 2..n.min(MOST_BLOCK) {
        for (is_from_first, has_least) in [(true, false), (true, true), (false, false), (false, true)] {
            let is = |t: i64, s: i64| {
                let rest = if has_least && t + 1 < block { 0 } else { (t + 1) % block };
                s <= t && if is_from_first { s <= t - rest } else { s >= rest }
            };
            if known.iter().all(|&((t, s), sees)| is(t, s) == sees) {
                let which = if is_from_first { "last" } else { "first" };
                return Some(Mask {
                    words: format!(
                        "keys up to its own, as many as fill whole blocks of {block}: the {which} (t+1) mod {block} are left out{}",
                        if has_least { " where that leaves any" } else { "" }
                    ),
                    bits: 8.0 + if has_least { 1.0 } else { 0.0 } + choice(block.unsigned_abs() as usize),
                    sees: Array2::from_shape_fn(sees.dim(), |(t, s)| is(t as i64, s as i64)),
                    parameters: vec![("block", block.into())],
                });
            }
        }
    }
    None
}

/// A key that is told by the query's number, in words.
fn in_query(words: &str) -> String {
    if words == "itself" { "its own".to_owned() } else { words.to_owned() }
}

/// What a mask of tiles costs at least.
const TILES: f64 = 12.0;

/// What a query sees of its own tile.
type OfTile = (&'static str, fn(i64, i64) -> bool);
const OF_TILE: [OfTile; 7] = [
    ("nothing", |_, _| false),
    ("all", |_, _| true),
    ("itself and what is before", |t, s| s <= t),
    ("itself and what is behind", |t, s| s >= t),
    ("what is before", |t, s| s < t),
    ("what is behind", |t, s| s > t),
    ("itself", |t, s| s == t),
];

/// A mask of tiles: of the query's own some keys are seen, of earlier and of later ones all or none.
fn of_tiles(sees: &Array2<Option<bool>>, known: &[((i64, i64), bool)], n: i64) -> Option<Mask> {
    for tile in 2..n.min(MOST_BLOCK) {
        for (own, is_seen) in OF_TILE {
            for (earlier, later) in [(true, false), (true, true), (false, false), (false, true)] {
                let is = |t: i64, s: i64| match (s / tile).cmp(&(t / tile)) {
                    std::cmp::Ordering::Less => earlier,
                    std::cmp::Ordering::Equal => is_seen(t, s),
                    std::cmp::Ordering::Greater => later,
                };
                if !known.iter().all(|&((t, s), sees)| is(t, s) == sees) {
                    continue;
                }
                let of = |all: bool| if all { "all" } else { "none" };
                let (earlier, later) = (of(earlier), of(later));
                return Some(Mask {
                    words: format!(
                        "keys by tiles of {tile}: of its own {own}, of earlier ones {earlier}, of later ones {later}"
                    ),
                    bits: TILES + choice(tile.unsigned_abs() as usize),
                    sees: Array2::from_shape_fn(sees.dim(), |(t, s)| is(t as i64, s as i64)),
                    parameters: vec![("block", tile.into())],
                });
            }
        }
    }
    None
}

fn said(is_causal: bool, atoms: &[Atom], is_without: bool) -> String {
    let list = atoms.iter().map(|atom| atom.words()).collect::<Vec<_>>().join(", ");
    match (is_causal, atoms.is_empty(), is_without) {
        (true, true, _) => "keys up to its own".into(),
        (false, true, _) => "all keys".into(),
        (true, _, false) => format!("keys up to its own, {list}"),
        (false, _, false) => format!("keys {list}"),
        (true, _, true) => format!("keys up to its own, but not those {list}"),
        (false, _, true) => format!("all keys but those {list}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(of: impl Fn(i64, i64) -> bool) -> String {
        let sees = Array2::from_shape_fn((16, 16), |(t, s)| Some(of(t as i64, s as i64)));
        describe(&sees, None).map_or_else(|| "none".into(), |mask| mask.words)
    }

    #[test]
    fn masks_are_said_as_what_they_are() {
        assert_eq!(words(|t, s| s <= t), "keys up to its own");
        assert_eq!(words(|_, _| true), "all keys");
        assert_eq!(words(|t, s| s <= t && t - s < 5), "keys up to its own, t-4 to t (window of 5)");
        assert_eq!(
            words(|t, s| s < t || (t == 0 && s == 0)),
            "keys up to its own, but not those from the query's own on, from position 1 on"
        );
        assert_eq!(words(|t, s| s <= t + 1), "keys up to 1 behind the query's own");
        assert_eq!(words(|t, s| s <= t && s / 4 == t / 4), "keys up to its own, in the query's block of 4");
        assert_eq!(
            words(|t, s| s <= t && (t - s < 4 || s < 1)),
            "keys up to its own, but not those 4 or more before the query, from position 1 on"
        );
    }

    #[test]
    fn the_query_of_a_decode_step_stands_behind_what_the_cache_holds() {
        let of = |is: fn(usize) -> bool| {
            let sees = Array2::from_shape_fn((1, 14), |(_, s)| Some(is(s)));
            describe(&sees, None).unwrap()
        };
        assert_eq!(of(|_| true).words, "keys up to its own");
        assert_eq!(of(|s| s >= 3).words, "keys up to its own, from position 3 on");
        let one = of(|s| s != 5);
        assert_eq!(one.words, "keys up to its own, but not those 8 before the query");
        assert_eq!(one.sees.dim(), (1, 14));
    }

    #[test]
    fn keys_that_are_hidden_and_bounds_that_are_a_law_of_the_query() {
        assert_eq!(
            words(|t, s| s <= t && (s == t || ![4, 9].contains(&s))),
            "keys up to its own, without keys 4, 9 for later queries"
        );
        assert_eq!(words(|t, s| s <= t / 4 * 4), "keys from the first to the first of its 4 keys (i: the query)");
    }

    #[test]
    fn keys_that_are_hidden_for_their_token() {
        let tokens: Vec<u32> = (0..16).map(|i| if [3, 8, 15].contains(&i) { 17 } else { 40 + i }).collect();
        let sees = Array2::from_shape_fn((16, 16), |(t, s)| Some(s <= t && tokens[s] != 17));
        let words = describe(&sees, Some(&tokens)).map(|mask| mask.words);
        assert_eq!(words.as_deref(), Some("keys up to its own, without token id 17"));
    }

    #[test]
    fn no_mask_is_made_up_for_noise() {
        assert_eq!(words(|t, s| s <= t && (t * t * 7 + s * 31 + s * s * t) % 5 != 0), "none");
    }
}
