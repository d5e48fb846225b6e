//! Computes the tolerance of taps that are stored in the K/V cache or come after it, and the error that reading it adds to attention.

use firstdiff_trace::{Cache, Site, Tap};

use crate::graph::Place;
use crate::judge::cached::beyond_the_profile;
use crate::judge::tensor::Tolerance;
use crate::taps::context::ComparisonContext;
use crate::tolerance::cache_nmse;
use crate::tolerance::judge::growth;

impl ComparisonContext<'_> {
    /// The tolerance of a place that is stored in the cache, or comes after one; `own` is the part for rounding alone.
    pub(crate) fn allowance(&self, place: Place, own: f64) -> Tolerance {
        let cache = beyond_the_profile(self.options.profile, self.options.cache);
        let noise = self.noise(place);
        Tolerance {
            cache_type: if self.is_kept(place.tap) { cache } else { Cache::F32 },
            cache: cache_nmse(cache),
            factor: noise.map_or(0.0, |noise| noise.factor_off()),
            row: noise.map_or(f64::INFINITY, |noise| noise.position()),
            is_noisy: cache != Cache::F32 || noise.is_some_and(|noise| !noise.has_structure),
            ..Tolerance::rounding_only(own)
        }
    }

    /// Whether the cache holds this tap: values, and keys after all operations on them.
    fn is_kept(&self, tap: Tap) -> bool {
        let has = |site| self.reference.entries().iter().any(|entry| entry.tap == Tap { site, ..tap });
        match tap.site {
            Site::V | Site::KRope => true,
            Site::KNorm => !has(Site::KRope),
            Site::K => !has(Site::KRope) && !has(Site::KNorm),
            _ => false,
        }
    }

    /// NMSE that reading keys and values from the cache usually adds at place `index`, where `between` lie on the way and were not compared.
    pub(crate) fn cost_of_the_cache(&self, index: usize, between: &[usize]) -> f64 {
        let stored = cache_nmse(beyond_the_profile(self.options.profile, self.options.cache));
        // e^x turns an error in a score into one relative to 1.
        let sharpened = if self.graph.places()[index].tap.site == Site::Probs { 10.0 } else { 1.0 };
        sharpened * self.attention_on_the_way(index, between).map(|site| growth(site) * stored).sum::<f64>()
    }

    /// NMSE of the keys and values themselves that place `index` reads from the cache.
    pub(crate) fn stored_in_the_cache(&self, index: usize, between: &[usize]) -> f64 {
        let reads = self.attention_on_the_way(index, between).next().is_some();
        if reads { cache_nmse(beyond_the_profile(self.options.profile, self.options.cache)) } else { 0.0 }
    }

    /// The operations up to place `index` that read the cache.
    fn attention_on_the_way<'a>(&'a self, index: usize, between: &'a [usize]) -> impl Iterator<Item = Site> + 'a {
        let sites = between.iter().copied().chain([index]).map(|i| self.graph.places()[i].tap.site);
        sites.filter(|site| matches!(site, Site::Qk | Site::Context))
    }
}
