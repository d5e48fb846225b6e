//! Measures where and how two tensors differ, and decides whether that is rounding.

use std::fmt;

use firstdiff_trace::{Cache, Site};

use crate::judge::inherited::Inherited;
use crate::judge::leak;
use crate::judge::leak::{Leak, LeakedProbability};
use crate::layout::pair::Pair;
use crate::metrics::{Metrics, NonFinite, Squares};
use crate::tolerance::Profile;
use crate::tolerance::judge::{
    BALANCED_ROOM, CACHE_GROWS, CHANNEL_INHERITS, CHANNEL_OUTLIER, CHANNEL_ROOM, ENOUGH_POSITIONS, FACTOR_GROWS,
    FACTOR_LEAVES, FACTOR_SHARE, FACTOR_SIGMAS, FEW_FACTOR_VALUES, FEW_POSITIONS, FEW_STAND_OUT, FRESH_ROOM,
    HEAD_STANDS_OUT, LEAST_ENERGY_SHARE, PRODUCTS_STAND_OUT, ROW_OUTLIER, ROW_ROOM, SECOND_RUN_LIMIT,
    VALUES_A_POSITION, WHOLE_STANDS_OUT, inherits_most, is_masked,
};
use crate::words::number;

/// The result of comparing two tensors.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Outcome {
    /// Bit for bit equal, once widened to one type.
    Exact,
    /// Different within rounding.
    Rounding,
    /// Different beyond rounding, and why.
    Differs(Difference),
    /// Beyond rounding, but errors of the inputs could explain it or not: neither a pass nor a blame.
    Inconclusive,
}

impl Outcome {
    /// Exact, or no more than rounding.
    pub fn agrees(&self) -> bool {
        matches!(self, Outcome::Exact | Outcome::Rounding)
    }

    /// Whether it differs by its size alone, and shows no structure.
    pub fn differs_by_size(&self) -> bool {
        matches!(self, Outcome::Differs(Difference::Nmse { .. } | Difference::Balanced { .. }))
    }
}

/// Why two tensors differ.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub enum Difference {
    /// A NaN, an infinity, or a mask that the other side does not have.
    NonFinite {
        /// What was found, where, and how often.
        found: NotFinite,
    },
    /// A mask that leaks: probability, or scores that give some, where the reference has none.
    Leak(Leak),
    /// No probability where the reference has some: a mask that hides too much.
    Hidden(Leak),
    /// The reference is all zeros and the candidate is not.
    ZeroReference,
    /// The NMSE is beyond what is allowed.
    Nmse {
        /// NMSE found.
        nmse: f64,
        /// NMSE allowed.
        allowed: f64,
    },
    /// One large position dominates the NMSE of the whole: the balanced NMSE, in which no position counts for more than the median one, is beyond what is
    /// allowed.
    Balanced {
        /// Balanced NMSE found.
        nmse: f64,
        /// NMSE allowed for the whole.
        allowed: f64,
        /// The position that has most of the energy.
        heaviest: usize,
    },
    /// A token is sent to other experts than its scores select.
    Choice {
        /// The first such token.
        position: usize,
        /// The reference's experts.
        reference: Vec<usize>,
        /// The candidate's experts.
        candidate: Vec<usize>,
    },
    /// A row of probabilities does not add up to 1.
    Unnormalised {
        /// The head it is of.
        head: usize,
        /// The token position of the query.
        position: usize,
        /// What it adds up to.
        sum: f64,
    },
    /// As small as rounding, but a single constant factor, which rounding never gives.
    Factor {
        /// The candidate is this many times the reference.
        factor: f64,
        /// Whether that explains nearly all of the error.
        alone: bool,
    },
    /// As small as rounding, but one head is the reference's times a constant.
    Head {
        /// The head that is furthest off.
        head: usize,
        /// It is this many times the reference's.
        factor: f64,
    },
    /// Small as a whole, but one position is wrong.
    Row {
        /// The worst position.
        position: usize,
        /// Its own NMSE.
        nmse: f64,
    },
    /// Small as a whole, but one channel is wrong.
    Channel {
        /// The worst channel.
        channel: usize,
        /// Its own NMSE.
        nmse: f64,
    },
    /// Small as a whole, but the products with one key are wrong.
    Key {
        /// The worst key.
        key: usize,
        /// Their own NMSE.
        nmse: f64,
    },
    /// The same values in other places, and no later tap confirms that only the dump's layout differs.
    Layout {
        /// In which places.
        what: String,
    },
    /// The known parts of both agree, but the sums over all elements do not.
    Sum {
        /// The reference's sum.
        reference: f64,
        /// The candidate's sum.
        candidate: f64,
    },
    /// Right where the reference has values, and wrong in the candidate's padding.
    Padding {
        /// What is wrong.
        what: String,
    },
    /// One rank's replica differs.
    Replica {
        /// Which, and how far.
        what: String,
    },
    /// A measure overflowed: values near the limit of the range of f64.
    Overflow,
}

fn relative_error_text(axis: &str, place: usize, nmse: f64) -> String {
    format!("{axis} {place} is off by NMSE {} of its own energy", number(nmse))
}

impl Difference {
    /// In words; `witness` is the name of the other side: "the reference".
    pub fn words(&self, witness: &str) -> String {
        match self {
            Difference::NonFinite { found } => found.words(witness),
            Difference::Leak(leak) => format!("gives probability where {witness} gives none: {leak}"),
            Difference::Hidden(hidden) => format!("gives no probability where {witness} gives some: {hidden}"),
            Difference::ZeroReference => format!("{witness} is all zeros, the candidate is not"),
            Difference::Nmse { nmse, allowed } => format!("NMSE {}, allowed {}", number(*nmse), number(*allowed)),
            Difference::Balanced { nmse, allowed, heaviest } => format!(
                "NMSE {} where no position counts for more than the median one, more than {BALANCED_ROOM} times what is allowed of the whole, {} (position {heaviest} is so much larger that the NMSE of the whole is its own)",
                number(*nmse),
                number(*allowed)
            ),
            Difference::Choice { position, reference, candidate } => {
                let listed = |experts: &[usize]| experts.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
                format!("token {position} goes to experts {}, {witness}'s to {}", listed(candidate), listed(reference))
            }
            Difference::Unnormalised { head, position, sum } => {
                format!("the probabilities of head {head}, position {position} add up to {sum:.6}, not to 1")
            }
            Difference::Factor { factor, alone: true } => {
                format!("{factor:.6} times {witness}: a constant factor, though as small as rounding")
            }
            Difference::Factor { factor, alone: false } => {
                format!("{factor:.6} times {witness} on the whole, though as small as rounding")
            }
            Difference::Head { head, factor } => {
                format!("head {head} is {factor:.6} times {witness}'s: a constant factor, though as small as rounding")
            }
            Difference::Row { position: place, nmse } => relative_error_text("position", *place, *nmse),
            Difference::Channel { channel: place, nmse } => relative_error_text("channel", *place, *nmse),
            Difference::Key { key: place, nmse } => relative_error_text("key", *place, *nmse),
            Difference::Layout { what } => format!("{witness}'s values in other places: {what}"),
            Difference::Sum { reference, candidate } => format!(
                "the values that are known agree, but the sum of all is {candidate:.6} where {witness}'s is {reference:.6}"
            ),
            Difference::Padding { what } => format!("right where {witness} has values, but {what}"),
            Difference::Replica { what } => format!("replicas differ: {what}"),
            Difference::Overflow => "values too large to be measured".into(),
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words("the reference"))
    }
}

/// What is not finite in a pair of tensors, or masked on one side only.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct NotFinite {
    /// Each kind that occurs, how often, and where first.
    pub kinds: Vec<(NotFiniteKind, usize, Option<String>)>,
    /// How many values the tensor has.
    pub total: usize,
    /// Whether infinities are masks.
    pub masks: bool,
}

/// A value that is not finite where the other side's is finite, or is another infinity.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum NotFiniteKind {
    /// NaN in the candidate.
    NanInCandidate,
    /// NaN in the reference.
    NanInReference,
    /// Infinite, or masked, in the candidate only.
    InfiniteInCandidate,
    /// Infinite, or masked, in the reference only.
    InfiniteInReference,
    /// Infinite with the other sign.
    OtherSign,
}

impl NotFinite {
    fn in_pair(non_finite: &NonFinite, pair: &Pair<'_>) -> NotFinite {
        use NotFiniteKind::{InfiniteInCandidate, InfiniteInReference, NanInCandidate, NanInReference, OtherSign};
        let tallies = [
            (NanInCandidate, &non_finite.nan_candidate),
            (NanInReference, &non_finite.nan_reference),
            (InfiniteInCandidate, &non_finite.inf_candidate),
            (InfiniteInReference, &non_finite.inf_reference),
            (OtherSign, &non_finite.inf_sign),
        ];
        let met = tallies.into_iter().filter(|(_, tally)| tally.count > 0);
        let kinds = met.map(|(kind, tally)| (kind, tally.count, tally.first.map(|i| pair.place_in_words(i))));
        NotFinite { kinds: kinds.collect(), total: pair.len(), masks: pair.site() == Site::Scores }
    }

    fn words(&self, witness: &str) -> String {
        let infinite = if self.masks { "masked (or infinite)" } else { "infinite" };
        let part = |(kind, count, first): &(NotFiniteKind, usize, Option<String>)| {
            let what = match kind {
                NotFiniteKind::NanInCandidate => "NaN in the candidate".to_owned(),
                NotFiniteKind::NanInReference => format!("NaN in {witness}"),
                NotFiniteKind::InfiniteInCandidate => format!("{infinite} in the candidate only"),
                NotFiniteKind::InfiniteInReference => format!("{infinite} in {witness} only"),
                NotFiniteKind::OtherSign => "infinite with the other sign".to_owned(),
            };
            let at = first.as_ref().map(|at| format!(", first at {at}")).unwrap_or_default();
            format!("{what}: {count} of {} values{at}", self.total)
        };
        self.kinds.iter().map(part).collect::<Vec<_>>().join("; ")
    }
}

/// A tap's verdict with the numbers it is based on.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub struct PairJudgement {
    /// The verdict.
    pub outcome: Outcome,
    /// Over the whole tensor.
    pub metrics: Metrics,
    /// NMSE in which no position counts for more than the median one; `None` where one is not finite.
    pub balanced: Option<f64>,
    /// NMSE of the position that is furthest off.
    pub worst_position: f64,
    /// The NMSE that was allowed.
    pub allowed: f64,
    /// The part of it that is for rounding alone, without what is inherited.
    pub own: f64,
}

/// How far off a tensor is as a whole: its NMSE, or its balanced NMSE with some room, whichever is larger. Otherwise one large position (the first token of
/// many models is some 1000 times the others) would determine the NMSE of the whole.
pub(crate) fn size(nmse: f64, balanced: Option<f64>) -> f64 {
    balanced.map_or(nmse, |balanced| nmse.max(balanced / BALANCED_ROOM))
}

/// How far off a tensor is as a whole, from the error and the energy of each position.
pub fn size_of(positions: &[Squares]) -> f64 {
    let whole = positions.iter().fold(Squares::default(), |sum, part| sum + *part);
    size(whole.nmse(), balanced(positions))
}

/// The NMSE in which no position counts for more than the median one, from the error and the energy of each.
fn balanced(positions: &[Squares]) -> Option<f64> {
    let limit = median(positions.iter().map(|part| part.energy).filter(|energy| *energy > 0.0))?;
    let weight = |energy: f64| if energy > limit { limit / energy } else { 1.0 };
    let weighed = |&Squares { error, energy }: &Squares| Squares {
        error: weight(energy) * error,
        energy: weight(energy) * energy,
    };
    Some(positions.iter().map(weighed).fold(Squares::default(), |sum, part| sum + part).ratio())
}

/// The upper median; `None` of nothing.
pub(crate) fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    let middle = values.len() / 2;
    (!values.is_empty()).then(|| *values.select_nth_unstable_by(middle, f64::total_cmp).1)
}

/// The mean square of the reference.
pub(crate) fn mean_square(metrics: &Metrics) -> f64 {
    metrics.reference_rms().unwrap_or(0.0).powi(2)
}

/// The mean square of the error; 0 where everything is masked in the same way on both sides.
pub(crate) fn square_error(metrics: &Metrics) -> f64 {
    metrics.rmse().unwrap_or(if metrics.is_equal() { 0.0 } else { f64::INFINITY }).powi(2)
}

/// The same for measured positions; `None` where one is not finite.
pub(crate) fn balanced_nmse(positions: &[Metrics]) -> Option<f64> {
    let squares = |row: &Metrics| {
        let values = row.compared() as f64;
        Some(Squares { error: row.rmse()?.powi(2) * values, energy: row.reference_rms()?.powi(2) * values })
    };
    balanced(&positions.iter().filter(|row| row.compared() > 0).map(squares).collect::<Option<Vec<_>>>()?)
}

impl PairJudgement {
    /// How far off it is as a whole: its NMSE, or its balanced NMSE with room for how positions scatter, whichever is larger.
    pub fn size(&self) -> Option<f64> {
        Some(size(self.metrics.nmse()?, self.balanced))
    }

    /// Whether its NMSE is its only error, and is no more than this.
    pub(crate) fn is_far_by_no_more(&self, limit: f64) -> bool {
        self.outcome.differs_by_size() && self.size().is_some_and(|size| size <= limit)
    }

    /// Whether it agrees only because its inputs are off too.
    pub(crate) fn is_inherited(&self) -> bool {
        self.outcome.agrees() && self.size().is_some_and(|size| size > self.own)
    }
}

/// How far off a tap may be.
#[derive(Clone, Debug)]
pub struct Tolerance {
    /// NMSE of right rounding in the profile's arithmetic, including that of earlier operations.
    pub cumulative: f64,
    /// NMSE of this operation's own rounding, where all its inputs were compared.
    pub single_op: Option<f64>,
    /// What the operation may have passed on.
    pub inherited: Inherited,
    /// The type that the tap's values may have been rounded to when stored: that of the K/V cache, for keys and values.
    pub cache_type: Cache,
    /// NMSE that a K/V cache adds to keys and values, where the profile has no room for it.
    pub cache: f64,
    /// How far from 1 a constant factor may be, beyond the profile's own.
    pub factor: f64,
    /// Whether noise could hide a head or a channel that is wrong, though the profile's rounding could not.
    pub is_noisy: bool,
    /// How far off a single position may be, where a second run gives that; else infinite.
    pub row: f64,
}

impl Default for Tolerance {
    fn default() -> Tolerance {
        Tolerance {
            cumulative: 0.0,
            single_op: None,
            inherited: Inherited::default(),
            cache_type: Cache::F32,
            cache: 0.0,
            factor: 0.0,
            is_noisy: false,
            row: f64::INFINITY,
        }
    }
}

impl Tolerance {
    /// Rounding alone.
    pub fn rounding_only(cumulative: f64) -> Tolerance {
        Tolerance { cumulative, ..Tolerance::default() }
    }

    /// NMSE up to which the whole agrees: inherited errors pass while they are small beside the signal, and below a multiple of the profile's own.
    pub fn whole(&self, profile: Profile) -> f64 {
        let limit = inherits_most(profile) * self.cumulative + CACHE_GROWS * self.cache;
        let most = limit.min((SECOND_RUN_LIMIT - self.cumulative).max(0.0));
        let whole = (self.cumulative + self.inherited.expected.min(most)).min(self.differs_from());
        self.inherited.limit.map_or(whole, |within| whole.min(within))
    }

    /// NMSE from which on the whole differs, whatever was inherited.
    pub fn differs_from(&self) -> f64 {
        match self.single_op {
            Some(fresh) => FRESH_ROOM * fresh + self.inherited.max,
            None => self.cumulative + self.inherited.max,
        }
    }

    /// NMSE allowed for one position, relative to its own energy, which may be small.
    fn position(&self, position: usize) -> f64 {
        self.row.min(ROW_ROOM * self.cumulative) + self.inherited.positions.get(position).copied().unwrap_or(0.0)
    }

    /// Whether a factor exceeds what the inputs explain, `times` over: structure in the inputs is inherited. Where the factors of the inputs are known to add
    /// up, it need only be larger than theirs.
    fn stands_out(&self, factor: f64, times: f64, floor: f64) -> bool {
        let off = (factor - 1.0).abs();
        let beyond = |read: f64| off > floor + FACTOR_GROWS * read;
        off.powi(2) > times * self.inherited.read || self.inherited.factor.is_some_and(beyond)
    }

    /// The position that exceeds its inputs' error by many times more than the others do: a right operation treats all positions alike.
    fn outlying_position(&self, nmse: &[f64]) -> Option<usize> {
        let (fresh, most, usual) = (self.single_op?, &self.inherited.positions, &self.inherited.expected_positions);
        if most.len() != nmse.len() || usual.len() != nmse.len() || nmse.len() < ENOUGH_POSITIONS {
            return None;
        }
        let beside =
            |read: &[f64]| -> Vec<f64> { nmse.iter().zip(read).map(|(nmse, read)| nmse / (fresh + read)).collect() };
        let (beside, median) = (beside(most), median(beside(usual).into_iter())?);
        let far = |&p: &usize| nmse[p] > ROW_ROOM * fresh && median > 0.0 && beside[p] > ROW_OUTLIER * median;
        (0..nmse.len()).filter(far).max_by(|&a, &b| beside[a].total_cmp(&beside[b]))
    }
}

/// A constant factor on all values, or on one head.
pub(crate) fn structure(
    pair: &Pair<'_>,
    metrics: &Metrics,
    profile: Profile,
    allowed: &Tolerance,
) -> Option<Difference> {
    constant_factor(metrics, (pair.rows().0, pair.len()), profile, allowed)
        .or_else(|| wrong_head(pair, profile, allowed))
}

/// Judges a pair by its metrics: of the whole, of each position, and balanced.
pub(crate) fn outcome_of(
    pair: &Pair<'_>,
    (positions, balanced): (&[Metrics], Option<f64>),
    metrics: &Metrics,
    profile: Profile,
    allowed: &Tolerance,
) -> Outcome {
    if metrics.is_identical() {
        return Outcome::Exact;
    }
    if metrics.is_equal() {
        return Outcome::Rounding;
    }
    if !metrics.is_finite() {
        let leak = unmasked(pair, metrics.non_finite(), profile).map(Difference::Leak);
        let not_finite = || Difference::NonFinite { found: NotFinite::in_pair(metrics.non_finite(), pair) };
        return Outcome::Differs(leak.unwrap_or_else(not_finite));
    }
    let Some(nmse) = metrics.nmse() else {
        let zero = metrics.reference_rms() == Some(0.0);
        return Outcome::Differs(if zero { Difference::ZeroReference } else { Difference::Overflow });
    };
    let wrong_mask = leak::leaked(pair, profile)
        .map(Difference::Leak)
        .or_else(|| leak::missing_probability(pair, profile).map(Difference::Hidden));
    if let Some(difference) = wrong_mask {
        return Outcome::Differs(difference);
    }
    // Written so that a NaN cannot pass.
    let size = size(nmse, balanced);
    let (within, without) = (size <= allowed.whole(profile), size <= allowed.differs_from());
    if !without {
        // The limit reported is the one that passes, as in the judgement; what differs is beyond it in any case.
        let (beyond, allowed) = (allowed.differs_from(), allowed.whole(profile));
        return Outcome::Differs(match balanced {
            Some(balanced) if nmse <= beyond => {
                Difference::Balanced { nmse: balanced, allowed, heaviest: largest_position(pair, positions) }
            }
            _ => Difference::Nmse { nmse, allowed },
        });
    }
    // Before anything is inconclusive: an error with structure at this size has it at any larger size.
    let structure = constant_factor(metrics, (pair.rows().0, pair.len()), profile, allowed)
        .or_else(|| {
            let (head, position, sum) = leak::unnormalised(pair, profile, allowed.cumulative)?;
            Some(Difference::Unnormalised { head, position, sum })
        })
        .or_else(|| wrong_row(pair, positions, profile, allowed))
        .or_else(|| wrong_head(pair, profile, allowed))
        .or_else(|| wrong_channel(pair, profile, allowed))
        .or_else(|| wrong_key(pair, profile, allowed));
    match structure {
        Some(difference) => Outcome::Differs(difference),
        None if within => Outcome::Rounding,
        None => Outcome::Inconclusive,
    }
}

/// The probability that leaks through scores masked in the reference, where that is all that is not finite.
fn unmasked(pair: &Pair<'_>, non_finite: &NonFinite, profile: Profile) -> Option<Leak> {
    if pair.site() != Site::Scores || non_finite.disagreeing() != non_finite.inf_reference.count {
        return None;
    }
    LeakedProbability::from_scores(pair, |i| is_masked(pair.site(), pair.reference(i))).leak(pair, profile)
}

fn constant_factor(
    metrics: &Metrics,
    (positions, len): (usize, usize),
    profile: Profile,
    allowed: &Tolerance,
) -> Option<Difference> {
    let (nmse, best) = (metrics.nmse()?, metrics.best_factor()?);
    // Any number is a multiple of any other.
    if len < 2 {
        return None;
    }
    let found = is_factor(best.factor, best.remaining_nmse, nmse, independent(positions, len), profile)
        && (best.factor - 1.0).abs() > allowed.factor;
    let times = if positions < FEW_POSITIONS { FEW_STAND_OUT } else { WHOLE_STANDS_OUT };
    let found = found && allowed.stands_out(best.factor, times, profile.factor_floor());
    found.then_some(Difference::Factor { factor: best.factor, alone: best.remaining_nmse < FACTOR_LEAVES * nmse })
}

/// How many independent errors these values hold: those of one position come from few sources, so they count as few.
fn independent(positions: usize, len: usize) -> f64 {
    (VALUES_A_POSITION * positions as f64).min(len as f64)
}

/// Whether a factor that leaves `remaining` of an error of `nmse` is more than chance and rounding give for this many independent `values`.
fn is_factor(factor: f64, remaining: f64, nmse: f64, values: f64, profile: Profile) -> bool {
    let off = (factor - 1.0).abs();
    let sigma = (remaining / values).sqrt();
    // With few values the spread itself is poorly known, as in Student's distribution.
    let sigmas = FACTOR_SIGMAS * (1.0 + FEW_FACTOR_VALUES / values);
    off > profile.factor_floor() && 1.0 - remaining / nmse > FACTOR_SHARE && off > sigmas * sigma
}

/// Whether noise could hide a head, a channel or a key that is wrong.
fn is_noisy(profile: Profile, allowed: &Tolerance) -> bool {
    profile > Profile::F32 || allowed.is_noisy
}

/// Only where noise could hide it.
fn wrong_head(pair: &Pair<'_>, profile: Profile, allowed: &Tolerance) -> Option<Difference> {
    let (positions, _) = pair.rows();
    let heads = pair.heads().filter(|_| is_noisy(profile, allowed) && positions >= FEW_POSITIONS)?;
    let mut sums = vec![(0.0, 0.0, 0.0); heads];
    for i in 0..pair.len() {
        let (r, c) = (pair.reference(i), pair.candidate(i));
        if is_masked(pair.site(), r) || is_masked(pair.site(), c) {
            continue;
        }
        let (rr, cr, dd) = &mut sums[pair.head_of(i, heads)];
        *rr += r * r;
        *cr += c * r;
        *dd += (c - r) * (c - r);
    }
    let products = matches!(pair.site(), Site::Qk | Site::Scores);
    let times = if products { PRODUCTS_STAND_OUT } else { HEAD_STANDS_OUT };
    let factors = sums.iter().enumerate().filter(|(_, (rr, _, _))| *rr > 0.0).map(|(head, (rr, cr, dd))| {
        let (factor, nmse) = (cr / rr, dd / rr);
        (head, factor, (nmse - (factor - 1.0).powi(2)).max(0.0), nmse)
    });
    factors
        .filter(|&(_, factor, _, _)| allowed.stands_out(factor, times, f64::INFINITY))
        .filter(|&(_, factor, remaining, nmse)| {
            is_factor(factor, remaining, nmse, independent(positions, pair.len() / heads), profile)
        })
        .max_by(|a, b| (a.1 - 1.0).abs().total_cmp(&(b.1 - 1.0).abs()))
        .map(|(head, factor, _, _)| Difference::Head { head, factor })
}

/// The position that has most of the reference's energy.
fn largest_position(pair: &Pair<'_>, positions: &[Metrics]) -> usize {
    let energy = |row: usize| positions[row].reference_rms().unwrap_or(0.0);
    pair.token_position((0..positions.len()).max_by(|&a, &b| energy(a).total_cmp(&energy(b))).unwrap_or(0))
}

/// The usual mean square of a position.
pub(super) fn usual_energy(positions: &[Metrics]) -> f64 {
    median(positions.iter().map(mean_square)).unwrap_or(0.0)
}

/// The error relative to the position's own energy, or to `least` where that is larger.
pub(super) fn relative_error(row: &Metrics, least: f64) -> f64 {
    match mean_square(row) {
        // Only infinities, the same on both sides: no error.
        _ if row.compared() == 0 => 0.0,
        // A row of zeros has no energy of its own: its error is infinite.
        0.0 if !row.is_equal() => f64::INFINITY,
        energy => square_error(row) / energy.max(least).max(f64::MIN_POSITIVE),
    }
}

fn wrong_row(pair: &Pair<'_>, by_position: &[Metrics], profile: Profile, allowed: &Tolerance) -> Option<Difference> {
    let usual = usual_energy(by_position);
    let relative_nmse = |row: &Metrics, share: f64| relative_error(row, share * usual);
    // Over several operations in 16 bits, the error of a small position may become as large as that of the others.
    let over_several = allowed.single_op.is_none() && !allowed.inherited.positions.is_empty();
    let share = if profile > Profile::F32 && over_several { 1.0 } else { LEAST_ENERGY_SHARE };
    let worst = by_position
        .iter()
        .enumerate()
        .map(|(position, row)| (position, relative_nmse(row, share)))
        .filter(|&(position, nmse)| nmse > allowed.position(position))
        .max_by(|a, b| a.1.total_cmp(&b.1))
        .map(|(position, _)| position);
    // e^x turns an error of a score into a relative one: a position of large scores is further off.
    let has_equal_rounding = !matches!(pair.site(), Site::Probs | Site::RouterProbs);
    let position = worst.or_else(|| {
        // A position of little energy (a sum of both signs) must not stand out by that alone.
        let nmse: Vec<f64> = by_position.iter().map(|row| relative_nmse(row, 1.0)).collect();
        allowed.outlying_position(&nmse).filter(|_| has_equal_rounding)
    })?;
    Some(Difference::Row { position: pair.token_position(position), nmse: relative_nmse(&by_position[position], 0.0) })
}

/// Only where noise could hide it.
fn wrong_channel(pair: &Pair<'_>, profile: Profile, allowed: &Tolerance) -> Option<Difference> {
    let (positions, _) = pair.rows();
    if !is_noisy(profile, allowed) || positions < FEW_POSITIONS || pair.site().position_axis() != 0 {
        return None;
    }
    let inherited = (CHANNEL_INHERITS * allowed.inherited.read).max(allowed.inherited.cache);
    let (channel, nmse) = outlier(pair, |_| CHANNEL_ROOM * allowed.cumulative.max(inherited))?;
    Some(Difference::Channel { channel, nmse })
}

/// Only where noise could hide it, and inherited errors are known key by key.
fn wrong_key(pair: &Pair<'_>, profile: Profile, allowed: &Tolerance) -> Option<Difference> {
    let (_, keys) = pair.rows();
    let products = matches!(pair.site(), Site::Qk | Site::Scores) && pair.len() / keys.max(1) >= FEW_POSITIONS;
    let by_key = &allowed.inherited.keys;
    if !is_noisy(profile, allowed) || !products || (allowed.inherited.read > 0.0 && by_key.len() != keys) {
        return None;
    }
    let inherited = |key: usize| by_key.get(key).copied().unwrap_or(0.0_f64).max(allowed.inherited.cache);
    let (key, nmse) = outlier(pair, |key| CHANNEL_ROOM * allowed.cumulative.max(inherited(key)))?;
    Some(Difference::Key { key, nmse })
}

/// The index behind the position axis that is furthest off, if it is beyond its `limit` and stands out.
fn outlier(pair: &Pair<'_>, limit: impl Fn(usize) -> f64) -> Option<(usize, f64)> {
    let (_, places) = pair.rows();
    let (mut error, mut energy) = (vec![0.0; places], vec![0.0; places]);
    for i in 0..pair.len() {
        let (r, c) = (pair.reference(i), pair.candidate(i));
        if is_masked(pair.site(), r) || is_masked(pair.site(), c) {
            continue;
        }
        error[i % places] += (c - r) * (c - r);
        energy[i % places] += r * r;
    }
    let mean = energy.iter().sum::<f64>() / places as f64;
    let nmse: Vec<f64> = error.iter().zip(&energy).map(|(e, r)| e / r.max(mean)).collect();
    let median = median(nmse.iter().copied())?;
    let far = |&place: &usize| nmse[place] > limit(place) && nmse[place] > CHANNEL_OUTLIER * median;
    let worst = (0..places).filter(far).max_by(|&a, &b| nmse[a].total_cmp(&nmse[b]))?;
    Some((worst, error[worst] / energy[worst]))
}
