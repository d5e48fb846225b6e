//! Infers from a run's values in which type it caches keys and values.

use firstdiff_trace::{Cache, Dump, DumpError, Site, Tap};

use crate::judge::cached::is_rounded;
use crate::layout::candidates::LayoutCandidates;
use crate::layout::elements::TensorRef;
use crate::layout::pair::Pair;
use crate::layout::rows::{are_all, squeezed};
use crate::metrics::{Metrics, Squares};
use crate::tolerance::run::{CACHE_TELLS, ENOUGH_ROUNDED, PRODUCTS_COME_OUT, SAME_TOKENS};

/// What a run's values show about the type of its K/V cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShownCache {
    /// It is this type, coarser than f32.
    Is(Cache),
    /// Keys, values and products are known, and show no such type.
    None,
    /// Too little was recorded.
    Unknown,
}

/// The type of cache that a run's values show: its keys and values are numbers of that type while the rest is not; or its products are those of keys and
/// values rounded to it, and not of those recorded. One wrong operation does not hide it. `like` is a run of the same tokens, whose values show the layout of
/// tensors that are not in the vocabulary's.
///
/// # Errors
/// When a file cannot be read.
pub fn shown_cache(dump: &Dump, like: &Dump) -> Result<ShownCache, DumpError> {
    let run = RecordedTaps { dump, like };
    let evidence = [run.values_show()?, run.products_show()?];
    let shows = |i: usize| evidence.iter().flatten().any(|shown| shown[i]);
    // Numbers of a coarser type may also be numbers of a finer one (in f16's range all of bf16 but the smallest): the coarsest that fits counts.
    Ok(match ((0..TYPES.len()).rev().find(|i| shows(*i)), evidence[1]) {
        (Some(coarsest), _) => ShownCache::Is(TYPES[coarsest]),
        (None, Some(_)) => ShownCache::None,
        (None, None) => ShownCache::Unknown,
    })
}

/// The cache types coarser than f32, the finest first.
const TYPES: [Cache; 4] = [Cache::F16, Cache::Bf16, Cache::Q8_0, Cache::E4m3];

/// For how many rows of queries, from the last, products are computed.
const ROWS: usize = 64;

/// What a run recorded, each tap in the vocabulary's order of axes.
struct RecordedTaps<'a> {
    dump: &'a Dump,
    like: &'a Dump,
}

/// A tap's elements in the vocabulary's order of axes.
struct Ordered {
    shape: Vec<usize>,
    values: Vec<f64>,
}

impl RecordedTaps<'_> {
    /// The whole of a tap in a step; `None` where its order of axes is unknown.
    fn read(&self, tap: Tap, step: u32) -> Result<Option<Ordered>, DumpError> {
        let Some(entry) = self.dump.find(tap, step).filter(|entry| are_all(&entry.rows)) else { return Ok(None) };
        let (own, tensor) = (squeezed(tap.site, &entry.shape), self.dump.read(entry)?);
        // A run with other chunks is no witness.
        let size = |shape: &[usize]| shape.iter().product::<usize>();
        let like = self.like.find(tap, step).filter(|like| are_all(&like.rows) && size(&like.shape) == size(&own));
        let witness = like.map(|like| (squeezed(tap.site, &like.shape), like));
        let Some((shape, like)) = witness.filter(|(shape, _)| shape.len() == tap.site.axes().len()) else {
            let whole = own.len() == tap.site.axes().len();
            return Ok(whole.then(|| Ordered { shape: own, values: tensor.values().to_f64() }));
        };
        let (values, due) = (tensor.values(), self.like.read(like)?);
        let due = due.values();
        let left = TensorRef { values: &due, shape: &shape, rows: None };
        let right = TensorRef { values: &values, shape: &own, rows: None };
        let layouts = LayoutCandidates::new(tap.site, left, right, None, None);
        let as_it_stands = layouts.as_it_stands().ok().cloned();
        let near =
            |pair: &Pair<'_>| Metrics::merge_all(&pair.row_metrics()).nmse().is_some_and(|nmse| nmse <= SAME_TOKENS);
        // Another order is searched only where the tap is not right as it stands; a masked tap has no NMSE and is accepted by its shape.
        let found = match as_it_stands.filter(|pair| own == shape || near(pair)) {
            Some(pair) => Some(pair),
            None => layouts.others().into_iter().find(near),
        };
        let values = found.map(|pair| (0..pair.len()).map(|i| pair.candidate(i)).collect());
        Ok(values.map(|values| Ordered { shape, values }))
    }

    /// Keys or values of all positions up to the end of a step.
    fn cached_until(&self, tap: Tap, step: u32) -> Result<Option<Ordered>, DumpError> {
        let mut all: Option<Ordered> = None;
        for number in 0..=step {
            let Some(next) = self.read(tap, number)? else { return Ok(None) };
            all = match all {
                None => Some(next),
                Some(mut all) if all.shape.len() == 3 && all.shape[1..] == next.shape[1..] => {
                    all.shape[0] += next.shape[0];
                    all.values.extend(next.values);
                    Some(all)
                }
                Some(_) => return Ok(None),
            };
        }
        Ok(all)
    }

    /// The step with the most products of a query and a key: the first or the last.
    fn largest_step(&self) -> Option<u32> {
        let products = |step: u32| {
            let of_step = self.dump.entries().iter().filter(|e| e.step == step);
            let attention_taps = of_step.filter(|e| matches!(e.tap.site, Site::Qk | Site::Probs));
            attention_taps.map(|e| e.shape.iter().product::<usize>()).max().unwrap_or(0)
        };
        let last = self.dump.entries().iter().map(|e| e.step).max()?;
        [0, last].into_iter().rev().max_by_key(|&step| products(step))
    }

    fn taps(&self, site: Site) -> Vec<Tap> {
        self.dump.entries().iter().filter(|e| e.step == 0 && e.tap.site == site).map(|e| e.tap).collect()
    }

    /// To which types a tap's values are rounded; `None` for a type that needs an order of axes which is unknown.
    fn rounded_to(&self, tap: Tap) -> Result<[Option<bool>; TYPES.len()], DumpError> {
        let mut all = Vec::new();
        for entry in self.dump.entries().iter().filter(|entry| entry.tap == tap) {
            all.extend(self.dump.read(entry)?.values().to_f64());
        }
        let ordered = self.read(tap, 0)?;
        Ok(TYPES.map(|cache| match (cache, &ordered) {
            (Cache::Q8_0, Some(Ordered { shape, values })) => {
                (values.len() >= ENOUGH_ROUNDED).then(|| is_rounded(cache, values, shape.last().copied().unwrap_or(1)))
            }
            (Cache::Q8_0, None) => None,
            // Each value by itself.
            _ => (all.len() >= ENOUGH_ROUNDED).then(|| is_rounded(cache, &all, all.len())),
        }))
    }

    /// Of which types most keys and values are numbers, one vote a tap, and nothing else is; `None` where none were recorded.
    fn values_show(&self) -> Result<Option<[bool; TYPES.len()]>, DumpError> {
        let stored = [Site::KRope, Site::V].map(|site| self.taps(site));
        if stored.iter().any(Vec::is_empty) {
            return Ok(None);
        }
        let mut votes = TypeVotes::default();
        for tap in stored.into_iter().flatten() {
            votes.add(self.rounded_to(tap)?);
        }
        let mut shown = votes.majority();
        // An engine whose results are all such numbers works in that type: that is another profile.
        for tap in [Site::QRope, Site::H].into_iter().flat_map(|site| self.taps(site)) {
            if !shown.contains(&true) {
                break;
            }
            let others = self.rounded_to(tap)?;
            shown.iter_mut().zip(others).for_each(|(shown, other)| *shown &= other != Some(true));
        }
        Ok(Some(shown))
    }

    /// To which types keys and values must be rounded so that most contexts, and products of queries, match that do not match without; `None` where too
    /// little was recorded.
    fn products_show(&self) -> Result<Option<[bool; TYPES.len()]>, DumpError> {
        let mut votes = TypeVotes::default();
        let Some(step) = self.largest_step() else { return Ok(None) };
        for layer in self.taps(Site::V).into_iter().filter_map(|tap| tap.layer) {
            for parts in [[Site::Probs, Site::V, Site::Context], [Site::QRope, Site::KRope, Site::Qk]] {
                let [factor, cached, result] = parts.map(|site| Tap::layer(layer, site));
                let (cached, factor, result) =
                    (self.cached_until(cached, step)?, self.read(factor, step)?, self.read(result, step)?);
                let (Some(factor), Some(cached), Some(result)) = (factor, cached, result) else { continue };
                let product = parts[2] == Site::Qk;
                let nmse_with = |cache| nmse_with_rounded_cache(cache, product, &factor, &cached, &result);
                let Some(without) = nmse_with(Cache::F32) else { continue };
                // Written so that a NaN is evidence against it.
                let comes_out = |nmse: f64| nmse <= PRODUCTS_COME_OUT && CACHE_TELLS * nmse <= without;
                // Keys or values recorded as the cache holds them show nothing about products.
                let width = cached.shape.last().copied().unwrap_or(1);
                let is_cached_as = |cache: &Cache| !is_rounded(*cache, &cached.values, width);
                let vote = |cache: Cache| Some(cache).filter(is_cached_as).map(|c| nmse_with(c).is_some_and(comes_out));
                votes.add(TYPES.map(vote));
            }
        }
        Ok(votes.of_type.iter().any(|(_, all)| *all > 0).then(|| votes.majority()))
    }
}

/// How many votes are for each type, of all that decide.
#[derive(Default)]
struct TypeVotes {
    of_type: [(usize, usize); TYPES.len()],
}

impl TypeVotes {
    fn add(&mut self, shown: [Option<bool>; TYPES.len()]) {
        for ((yes, all), shown) in self.of_type.iter_mut().zip(shown) {
            *yes += usize::from(shown == Some(true));
            *all += usize::from(shown.is_some());
        }
    }

    fn majority(&self) -> [bool; TYPES.len()] {
        self.of_type.map(|(yes, all)| 2 * yes > all)
    }
}

/// NMSE of the recorded `result` against the product of `factor` and the `cached` tensor rounded to a type. `product`: of queries and keys, else of
/// probabilities and values.
fn nmse_with_rounded_cache(
    cache: Cache,
    product: bool,
    factor: &Ordered,
    cached: &Ordered,
    result: &Ordered,
) -> Option<f64> {
    let [keys, groups, width] = cached.shape[..] else { return None };
    let (heads, rows) = match (product, &factor.shape[..]) {
        (true, &[rows, heads, d]) if d == width && rows <= keys => (heads, rows),
        (false, &[heads, rows, columns]) if columns == keys && rows <= keys => (heads, rows),
        _ => return None,
    };
    let whole = if product { vec![heads, rows, keys] } else { vec![rows, heads * width] };
    if groups == 0 || heads % groups != 0 || result.shape != whole {
        return None;
    }
    let (factor, result) = (&factor.values, &result.values);
    let mut rounded = cached.values.clone();
    cache.round(&mut rounded, width);
    let mut squares = Squares::default();
    let mut add = |recorded: f64, computed: f64| {
        squares.add(recorded, computed);
    };
    for t in rows.saturating_sub(ROWS)..rows {
        // The rows are those of the last positions.
        let position = keys - rows + t;
        for h in 0..heads {
            let group = h / (heads / groups);
            let row = |s: usize| &rounded[(s * groups + group) * width..][..width];
            if product {
                let q = &factor[(t * heads + h) * width..][..width];
                (0..=position).for_each(|s| {
                    add(result[(h * rows + t) * keys + s], q.iter().zip(row(s)).map(|(q, k)| q * k).sum());
                });
            } else {
                let probs = &factor[(h * rows + t) * keys..][..keys];
                (0..width).for_each(|i| {
                    let computed = probs.iter().enumerate().map(|(s, p)| p * row(s)[i]).sum();
                    add(result[(t * heads + h) * width + i], computed);
                });
            }
        }
    }
    Some(squares.ratio())
}
