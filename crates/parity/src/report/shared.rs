//! Defines what several reports share: where a dump comes from, how far a tap is off, and in which arithmetic that was judged.

use firstdiff_compare::{NOISE_ROOM, Place, Profile, Report, Status, TapReport};
use firstdiff_trace::Dump;
use serde::Serialize;

use crate::report::names;
use crate::session::arithmetic;
use crate::session::noise::SecondRun;

/// Where a dump comes from, as its dump.json says.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Provenance {
    /// Where it was read.
    pub path: String,
    /// What wrote it.
    pub producer: Option<String>,
    /// The model's name.
    pub model: Option<String>,
    /// The arithmetic of the run.
    pub precision: Option<String>,
    /// The type of its K/V cache.
    pub cache: Option<String>,
    /// Token ids of the prompt.
    pub tokens: Option<Vec<i64>>,
    /// Token ids of the decode steps.
    pub decode_tokens: Option<Vec<i64>>,
    /// Whether it was recorded to its end.
    pub complete: bool,
}

impl Provenance {
    /// The provenance of a dump.
    pub fn new(dump: &Dump) -> Provenance {
        let meta = dump.meta();
        Provenance {
            path: dump.path().to_string_lossy().into_owned(),
            producer: meta.producer.name().map(str::to_owned),
            model: meta.model.clone(),
            precision: meta.precision.clone(),
            cache: meta.cache.clone(),
            tokens: meta.tokens.clone(),
            decode_tokens: meta.decode_tokens.clone(),
            complete: !meta.is_incomplete(),
        }
    }
}

/// How far a tap of the candidate is off. Null: not measured, or not finite.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Measures {
    /// Σ(c−r)²/Σr².
    pub nmse: Option<f64>,
    /// The same, with no position counting for more than the median one.
    pub balanced_nmse: Option<f64>,
    /// Root of the mean squared difference.
    pub rmse: Option<f64>,
    /// Pearson's.
    pub correlation: Option<f64>,
    /// Cosine of the angle between the two.
    pub cosine: Option<f64>,
    /// Mean of the absolute differences.
    pub mean_abs_diff: Option<f64>,
    /// The largest absolute difference.
    pub max_abs_diff: Option<f64>,
    /// Its index along every axis.
    pub max_at: Option<Vec<usize>>,
    /// The reference's value there.
    pub max_reference: Option<f64>,
    /// The candidate's value there.
    pub max_candidate: Option<f64>,
    /// The NMSE that is allowed.
    pub allowed_nmse: Option<f64>,
    /// NMSE of a second right run (`--noise`).
    pub noise_nmse: Option<f64>,
    /// The error as a multiple of that.
    pub error_over_noise: Option<f64>,
}

impl Measures {
    /// The measures of a tap.
    pub fn new(tap: &TapReport) -> Measures {
        let metrics = tap.metrics;
        let peak = metrics.and_then(|m| m.max_abs_diff());
        Measures {
            nmse: metrics.and_then(|m| m.nmse()),
            balanced_nmse: tap.balanced,
            rmse: metrics.and_then(|m| m.rmse()),
            correlation: metrics.and_then(|m| m.correlation()),
            cosine: metrics.and_then(|m| m.cosine()),
            mean_abs_diff: metrics.and_then(|m| m.mean_abs_diff()),
            max_abs_diff: peak.map(|p| p.abs_diff),
            max_at: tap.max_at(),
            max_reference: peak.map(|p| p.reference),
            max_candidate: peak.map(|p| p.candidate),
            allowed_nmse: tap.allowed,
            noise_nmse: tap.noise,
            error_over_noise: tap.over_noise(),
        }
    }
}

/// One tap.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "tap"))]
pub struct TapEntry {
    /// Its name.
    pub tap: String,
    /// 0 is the prefill, n the n-th decode step; in an alignment, the number of its cell.
    pub step: u32,
    /// The operation that makes it.
    pub op: String,
    /// Its status.
    pub status: Status,
    /// Why it differs, why it is unchecked, or in which other layout it was read.
    pub reason: Option<String>,
    /// How far off it is.
    #[serde(flatten)]
    pub measures: Measures,
    /// `last` where one row was compared, which is the last one.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(extend("const" = "last")))]
    pub rows: Option<&'static str>,
}

impl TapEntry {
    /// The entry of a tap.
    pub fn new(tap: &TapReport) -> TapEntry {
        TapEntry {
            tap: tap.place.tap.to_string(),
            step: tap.place.step,
            op: tap.op.clone(),
            status: tap.status,
            reason: tap.why(),
            measures: Measures::new(tap),
            rows: tap.is_last.then_some("last"),
        }
    }
}

/// How many taps have which status.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Counts {
    /// Bit for bit.
    pub exact: usize,
    /// Within what is allowed.
    pub rounding: usize,
    /// Differ, though all their compared inputs agree.
    pub diverged: usize,
    /// Differ, and so does one of their inputs.
    pub downstream: usize,
    /// Not compared.
    pub unchecked: usize,
}

impl Counts {
    /// The counts of some taps.
    pub fn count<'a>(taps: impl IntoIterator<Item = &'a TapReport>) -> Counts {
        let mut counts = Counts::default();
        for tap in taps {
            *match tap.status {
                Status::Exact => &mut counts.exact,
                Status::Rounding => &mut counts.rounding,
                Status::Diverged => &mut counts.diverged,
                Status::Downstream => &mut counts.downstream,
                Status::Unchecked => &mut counts.unchecked,
            } += 1;
        }
        counts
    }

    /// How many agree.
    pub fn agree(&self) -> usize {
        self.exact + self.rounding
    }

    /// How many differ.
    pub fn differ(&self) -> usize {
        self.diverged + self.downstream
    }

    /// All of them.
    pub fn all(&self) -> usize {
        self.agree() + self.differ() + self.unchecked
    }
}

/// The arithmetic in which a run was judged.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct JudgedIn {
    /// The profile: in whose arithmetic it was judged.
    #[cfg_attr(feature = "schema", schemars(extend("enum" = ["exact", "f32", "f16", "bf16", "ggml"])))]
    pub profile: &'static str,
    /// Where the profile comes from.
    pub profile_reason: String,
    /// Set where only the candidate's own metadata asks for one so coarse.
    pub profile_loosened: Option<CoarserProfileReport>,
    /// The type in which keys and values were assumed to be cached.
    pub cache: &'static str,
    /// Whether it is not declared, but shown by what was recorded.
    pub cache_is_assumed: bool,
}

/// A coarser arithmetic, which only the candidate's own metadata asks for.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "loosened"))]
pub struct CoarserProfileReport {
    /// What its dump.json declares.
    pub profile: &'static str,
    /// What its tensors show.
    pub tensors: &'static str,
    /// What the reference declares or shows.
    pub reference: Option<&'static str>,
    /// The profile that it would be judged in otherwise.
    pub without: &'static str,
}

impl CoarserProfileReport {
    /// From what a session found.
    pub fn new(loosened: Option<arithmetic::CoarserProfile>) -> Option<CoarserProfileReport> {
        loosened.map(|l| CoarserProfileReport {
            profile: l.declared.name(),
            tensors: l.tensors.name(),
            reference: l.reference.map(Profile::name),
            without: l.profile_without_candidate().name(),
        })
    }
}

/// A second right run (`--noise`), and where it shows nothing.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "noise"))]
pub struct NoiseRun {
    /// Where it was read.
    pub path: String,
    /// How many times its distance a tap may be off.
    pub room: f64,
    /// Taps that it lacks.
    pub lacking: Vec<String>,
    /// Taps at which it equals the reference.
    pub equal: Vec<String>,
    /// The error relative to it; null where it measured nothing.
    pub error_over_noise: Option<Ratios>,
}

/// Ratios of the error to the noise.
#[derive(Clone, Debug, Serialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub struct Ratios {
    /// The median.
    pub median: f64,
    /// The largest.
    pub worst: f64,
    /// Where the largest is.
    pub worst_at: String,
}

impl NoiseRun {
    /// From a second run and the comparison that it sets the tolerance of.
    pub fn new(second: &SecondRun, report: &Report) -> NoiseRun {
        NoiseRun {
            path: second.path.clone(),
            room: NOISE_ROOM,
            lacking: names(&second.lacking),
            equal: names(&second.equal),
            error_over_noise: Ratios::new(report),
        }
    }
}

impl Ratios {
    fn new(report: &Report) -> Option<Ratios> {
        let ratio = |tap: &TapReport| Some((tap.over_noise()?, tap.place));
        let mut ratios: Vec<(f64, Place)> =
            report.taps.iter().filter_map(ratio).filter(|(r, _)| r.is_finite()).collect();
        ratios.sort_by(|a, b| a.0.total_cmp(&b.0));
        let ((median, _), (worst, at)) = (ratios.get(ratios.len() / 2)?, ratios.last()?);
        Some(Ratios { median: *median, worst: *worst, worst_at: at.to_string() })
    }
}
