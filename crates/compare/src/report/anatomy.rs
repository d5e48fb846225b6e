//! Describes the error of one tap: by position, head and channel, and which simple change explains it.

use std::fmt;

use firstdiff_evidence::{Account, BF16, Evidence, F32, choice, fitted};
use firstdiff_trace::{Dump, Entry};

use crate::layout::elements::TensorRef;
use crate::layout::pair::Pair;
use crate::layout::shapes::permuted_index;
use crate::layout::types::Layout;
use crate::metrics::Squares;
use crate::tolerance::layout::{CHANGE_LEAVES, CHANGED_POSITION_ROOM, SAMPLE_LEAVES, SIGN_FLIPPED};
use crate::words::number;

/// The error of one tap, taken apart.
#[derive(Clone, Debug, Default)]
pub struct Anatomy {
    /// NMSE of each position, relative to its own energy; infinite where that is zero or a value is not finite.
    pub positions: Vec<f64>,
    /// NMSE of each head, for sites that have heads.
    pub heads: Vec<f64>,
    /// Share of the whole error in each channel (each key, for scores).
    pub channels: Vec<f64>,
    /// NMSE of each channel (each key), relative to its own energy.
    pub channel_nmse: Vec<f64>,
    /// The best constant factor, and the NMSE that remains once it is divided out.
    pub factor: Option<(f64, f64)>,
    /// The error of each rank's part, where the candidate was joined from ranks.
    pub ranks: Vec<RankError>,
    /// Simple changes that leave no more than rounding, those with the fewest free numbers first.
    pub explained_by: Vec<Transform>,
    /// A factor that leaves no more than rounding, but of so few numbers that chance gives one as well.
    pub by_chance: Option<(f64, Account)>,
    /// The most that the wrong numbers can prove, and the relative size of rounding in one of them.
    evidence: Option<(Evidence, f64)>,
}

impl Anatomy {
    /// Adds a change at index `at`, if the wrong numbers carry enough evidence to claim it; `nmse` is their error.
    pub(crate) fn add_change(&mut self, at: usize, undone: Transform, nmse: f64) {
        if self.account(&undone, nmse).is_none_or(|account| account.is_paid()) {
            self.explained_by.insert(at, undone);
        }
    }

    /// Removes what is given by channel: a tensor of more axes was compared as one row, whose elements are not channels.
    pub(crate) fn forget_channels(&mut self) {
        self.channels.clear();
        self.channel_nmse.clear();
        self.explained_by.retain(|undone| !matches!(undone.change, Change::ZeroTail(_)));
    }

    /// The evidence that a change explains, and its cost. Zeros are visible, and cost nothing.
    fn account(&self, undone: &Transform, nmse: f64) -> Option<Account> {
        let (evidence, unit) = self.evidence?;
        let free = match undone.change {
            Change::Zeros | Change::ZeroTail(_) | Change::ZeroKeys(_) => return None,
            Change::Factor(_) => 1,
            Change::FactorByPosition => self.positions.len(),
            Change::FactorByChannel | Change::OffsetByChannel => self.channels.len() * self.heads.len().max(1),
            _ => 0,
        };
        Some(evidence.leaving(nmse, undone.residual_nmse).against(fitted(free, unit) + choice(CHANGES)))
    }

    /// Which rank is wrong, in words: `rank1 (heads 4-7) wrong (NMSE 0.7); rank0 (heads 0-3) right`.
    pub fn ranks_in_words(&self) -> Option<String> {
        in_words(&self.ranks)
    }
}

/// A simple change that turns the reference into the candidate, to rounding.
#[derive(Clone, Debug, PartialEq)]
pub struct Transform {
    /// What the change is.
    pub change: Change,
    /// The NMSE that remains.
    pub residual_nmse: f64,
}

/// A change that shows in one tensor by itself. It describes the numbers; it is not yet a cause.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// candidate = f * reference.
    Factor(f64),
    /// Every position has a factor of its own.
    FactorByPosition,
    /// Every channel has a factor of its own, the same at all positions.
    FactorByChannel,
    /// The same vector is added at every position.
    OffsetByChannel,
    /// Row t holds the reference's row t - k.
    ShiftedRows(i64),
    /// The same values with axes permuted under the same shape.
    AxesPermuted(Vec<usize>),
    /// Q or K rows in the other RoPE order.
    RowOrder(Layout),
    /// The candidate holds another tap of the reference.
    OtherTap(String),
    /// The candidate's row is the reference's of this token position.
    OtherPosition(usize),
    /// The products from a key on belong to the reference's keys this many slots away, or are zeros.
    MovedKeys {
        /// The first key that is wrong.
        from: usize,
        /// By how many slots the reference's keys are moved.
        by: i64,
    },
    /// The candidate is all zeros.
    Zeros,
    /// The candidate is zero from this channel on and right before it.
    ZeroTail(usize),
    /// The candidate is zero from this key on and right before it.
    ZeroKeys(usize),
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Change::Factor(factor) if (factor + 1.0).abs() < SIGN_FLIPPED => {
                f.write_str("the reference with its sign flipped")
            }
            Change::Factor(factor) => write!(f, "{factor:.6} times the reference"),
            Change::FactorByPosition => f.write_str("the reference times a factor of its own at each position"),
            Change::FactorByChannel => f.write_str("the reference times a factor of its own in each channel"),
            Change::OffsetByChannel => f.write_str("the reference plus one vector, the same at every position"),
            Change::ShiftedRows(k) if *k > 0 => write!(f, "the reference's rows, {k} later"),
            Change::ShiftedRows(k) => write!(f, "the reference's rows, {} earlier", -k),
            Change::AxesPermuted(order) => {
                write!(f, "the reference with its axes in the order {order:?} under the same shape")
            }
            Change::RowOrder(layout) => write!(f, "the reference once row order is undone: {layout}"),
            Change::OtherTap(tap) => write!(f, "the reference's {tap}"),
            Change::OtherPosition(position) => write!(f, "the reference's of position {position}"),
            Change::MovedKeys { from, by } => {
                let (slots, way) = (by.unsigned_abs(), if *by < 0 { "early" } else { "late" });
                let slots = if slots == 1 { "one slot".to_owned() } else { format!("{slots} slots") };
                match from {
                    0 => write!(f, "the reference's keys, {slots} {way}"),
                    from => write!(f, "the reference's before key {from}, and from there on its keys {slots} {way}"),
                }
            }
            Change::Zeros => f.write_str("zeros throughout"),
            Change::ZeroTail(at) => write!(f, "right before channel {at}, and zeros from there on"),
            Change::ZeroKeys(at) => write!(f, "right before key {at}, and zeros from there on"),
        }
    }
}

/// Sums of a group of pairs.
#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    n: f64,
    rr: f64,
    cr: f64,
    cc: f64,
    d: f64,
    dd: f64,
}

impl Sums {
    fn add(&mut self, r: f64, c: f64) {
        let d = c - r;
        self.n += 1.0;
        self.rr += r * r;
        self.cr += c * r;
        self.cc += c * c;
        self.d += d;
        self.dd += d * d;
    }

    fn squares(&self) -> Squares {
        Squares { error: self.dd, energy: self.rr }
    }

    fn nmse(&self) -> f64 {
        self.squares().relative()
    }

    /// Σ(c - f r)² for the best f.
    fn beside_factor(&self) -> f64 {
        if self.rr > 0.0 { (self.cc - self.cr * self.cr / self.rr).max(0.0) } else { self.cc }
    }
}

struct GroupSums {
    whole: Sums,
    positions: Vec<Sums>,
    heads: Vec<Sums>,
    /// Whether every counted value is finite.
    finite: bool,
    /// The sums of every element behind the position axis.
    channels: Vec<Sums>,
    /// Length of the last axis.
    width: usize,
    /// First channel from which on the candidate is zero at every position.
    zero_from: usize,
}

impl GroupSums {
    /// For each index of the last axis (within a head, where there are heads): its share of the whole error, and its NMSE.
    fn by_channel(&self) -> (Vec<f64>, Vec<f64>) {
        let mut sums = vec![Squares::default(); self.width];
        for (i, channel) in self.channels.iter().enumerate() {
            sums[i % self.width] = sums[i % self.width] + channel.squares();
        }
        let share = |sum: &Squares| if self.whole.dd > 0.0 { sum.error / self.whole.dd } else { 0.0 };
        (sums.iter().map(share).collect(), sums.iter().map(|sum| sum.relative()).collect())
    }
}

fn tally(pair: &Pair<'_>) -> GroupSums {
    let (positions, row) = pair.rows();
    let shape = pair.shape();
    let heads = pair.heads().unwrap_or(0);
    let mut sums = GroupSums {
        finite: true,
        whole: Sums::default(),
        positions: vec![Sums::default(); positions],
        heads: vec![Sums::default(); heads],
        channels: vec![Sums::default(); row],
        width: shape.last().copied().unwrap_or(1),
        zero_from: 0,
    };
    for i in 0..pair.len() {
        let (r, c) = pair.unmasked(i);
        if pair.is_masked(r, c) {
            continue;
        }
        sums.finite &= r.is_finite() && c.is_finite();
        sums.whole.add(r, c);
        sums.positions[(i / row) % positions].add(r, c);
        sums.channels[i % row].add(r, c);
        if heads > 0 {
            sums.heads[pair.head_of(i, heads)].add(r, c);
        }
        if c != 0.0 {
            sums.zero_from = sums.zero_from.max(i % row + 1);
        }
    }
    sums
}

/// Takes the error of `pair` apart; a change explains it if it leaves no more than `allowed`.
pub fn anatomy(pair: &Pair<'_>, allowed: f64) -> Anatomy {
    if pair.is_empty() {
        return Anatomy::default();
    }
    let sums = tally(pair);
    let factor = (sums.whole.rr > 0.0 && sums.whole.cr.is_finite()).then(|| sums.whole.cr / sums.whole.rr);
    let remains = |f: f64| sums.whole.beside_factor() / (f * f * sums.whole.rr);
    let factor = factor.filter(|f| *f != 0.0).map(|f| (f, remains(f)));
    let unit = allowed.sqrt().clamp(F32, BF16);
    let shown = |i: usize| (pair.reference(i), pair.candidate(i));
    let off = (0..pair.len()).map(|i| Some(shown(i)).filter(|(r, c)| !pair.is_masked(*r, *c)).unwrap_or_default());
    let evidence = Evidence::of(off.map(|(r, c)| [c, r, c]), unit);
    let nmse = sums.whole.nmse();
    let mut explained_by: Vec<Transform> = in_place(pair, &sums, factor)
        .into_iter()
        .chain(moving_changes(pair))
        .filter(|undone| undone.residual_nmse <= allowed && undone.residual_nmse < CHANGE_LEAVES * nmse)
        // No change of this kind explains values that are not finite.
        .filter(|_| sums.finite)
        .collect();
    explained_by.sort_by_key(|undone| rank(&undone.change));
    let (channels, channel_nmse) = sums.by_channel();
    let mut anatomy = Anatomy {
        positions: sums.positions.iter().map(Sums::nmse).collect(),
        heads: sums.heads.iter().map(Sums::nmse).collect(),
        channels,
        channel_nmse,
        factor,
        evidence: Some((evidence, unit)),
        ..Anatomy::default()
    };
    // A single number always has a factor, which shows nothing.
    if let Some((by, residual_nmse)) = factor {
        let account = anatomy.account(&Transform { change: Change::Factor(by), residual_nmse }, nmse);
        if let Some(account) = account.filter(|account| !account.is_paid()) {
            anatomy.factor = None;
            let gives_it = sums.finite && residual_nmse <= allowed && residual_nmse < CHANGE_LEAVES * nmse;
            anatomy.by_chance = Some((by, account)).filter(|_| gives_it);
        }
    }
    for undone in explained_by {
        anatomy.add_change(anatomy.explained_by.len(), undone, nmse);
    }
    anatomy
}

/// About how many changes are tried per tensor.
const CHANGES: usize = 16;

/// Ranks a change: the fewer free numbers it has, the more it shows.
fn rank(change: &Change) -> usize {
    match change {
        Change::Zeros | Change::RowOrder(_) | Change::OtherTap(_) | Change::OtherPosition(_) => 0,
        Change::Factor(_) | Change::ShiftedRows(_) | Change::AxesPermuted(_) => 1,
        Change::ZeroTail(_) | Change::ZeroKeys(_) | Change::MovedKeys { .. } => 1,
        Change::FactorByPosition | Change::FactorByChannel | Change::OffsetByChannel => 2,
    }
}

/// Changes that leave every element in its place.
fn in_place(pair: &Pair<'_>, sums: &GroupSums, factor: Option<(f64, f64)>) -> Vec<Transform> {
    let mut found = Vec::new();
    let mut add = |change, residual_nmse: f64| found.push(Transform { change, residual_nmse });
    let (positions, row) = pair.rows();
    if sums.whole.cc == 0.0 && sums.whole.rr > 0.0 {
        add(Change::Zeros, 0.0);
        return found;
    }
    if let Some((factor, remains)) = factor {
        add(Change::Factor(factor), remains);
    }
    // One factor per group is a finding only where a group has several values to agree on.
    let by_group = |groups: &[Sums]| groups.iter().map(Sums::beside_factor).sum::<f64>() / sums.whole.cc;
    if row >= 4 && positions > 1 {
        add(Change::FactorByPosition, by_group(&sums.positions));
    }
    if positions >= 4 && pair.site().position_axis() == 0 {
        add(Change::FactorByChannel, by_group(&sums.channels));
        let scatter: f64 = sums.channels.iter().map(|s| (s.dd - s.d * s.d / s.n).max(0.0)).sum();
        add(Change::OffsetByChannel, scatter / sums.whole.rr);
    }
    if (1..row).contains(&sums.zero_from) {
        let before: (f64, f64) =
            sums.channels[..sums.zero_from].iter().fold((0.0, 0.0), |a, s| (a.0 + s.dd, a.1 + s.rr));
        let real = sums.channels[sums.zero_from..].iter().any(|s| s.rr > 0.0);
        if real {
            let tail = if pair.site().position_axis() == 1 { Change::ZeroKeys } else { Change::ZeroTail };
            add(tail(sums.zero_from), before.0 / before.1);
        }
    }
    found
}

/// Changes that move elements.
fn moving_changes(pair: &Pair<'_>) -> Vec<Transform> {
    let stride = (pair.len() / SAMPLE).max(1);
    let mut found = Vec::new();
    let mut attempt = |change, reading: &Pair<'_>| {
        // Most readings are far off, which a sample is enough to show.
        if reading.sampled_nmse(stride) < SAMPLE_LEAVES {
            found.push(Transform { change, residual_nmse: reading.sampled_nmse(1) });
        }
    };
    for reading in pair.other_row_orders() {
        attempt(Change::RowOrder(reading.layout().clone()), &reading);
    }
    for order in orders(pair.shape().len()) {
        let map = permuted_index(pair.shape(), &order);
        let reading = pair.candidate_at(Layout::Permuted(order.clone()), move |at| map(at));
        attempt(Change::AxesPermuted(order), &reading);
    }
    found.extend([1, -1, 2, -2].into_iter().filter_map(|shift| shifted(pair, shift)));
    found
}

const SAMPLE: usize = 4096;

/// Every order of two or three axes but the identity.
fn orders(axes: usize) -> Vec<Vec<usize>> {
    match axes {
        2 => vec![vec![1, 0]],
        3 => vec![vec![1, 0, 2], vec![0, 2, 1], vec![2, 1, 0], vec![1, 2, 0], vec![2, 0, 1]],
        _ => Vec::new(),
    }
}

fn shifted(pair: &Pair<'_>, shift: i64) -> Option<Transform> {
    let (positions, row) = pair.rows();
    let by = shift.unsigned_abs() as usize;
    if positions < by + 2 || pair.site().position_axis() == 1 {
        return None;
    }
    let (to, from) = if shift > 0 { (by * row, 0) } else { (0, by * row) };
    let overlap = (positions - by) * row;
    let residual = |stride: usize| {
        let mut sums = Sums::default();
        (0..overlap).step_by(stride).for_each(|i| sums.add(pair.reference(from + i), pair.candidate(to + i)));
        sums.nmse()
    };
    let close = residual((overlap / SAMPLE).max(1)) < SAMPLE_LEAVES;
    close.then(|| Transform { change: Change::ShiftedRows(shift), residual_nmse: residual(1) })
}

/// The other tap of the reference that the candidate holds, if any: the input, a sibling, another layer's. `nmse` is the error against its own tap.
pub(crate) fn other_tap(
    reference: &Dump,
    entry: &Entry,
    candidate: &TensorRef<'_>,
    allowed: f64,
    nmse: f64,
) -> Result<Option<Transform>, firstdiff_trace::DumpError> {
    let here = entry.tap;
    let near = |other: &Entry| {
        let neighbour = match (here.layer, other.tap.layer) {
            (Some(a), Some(b)) => a.abs_diff(b) <= 1,
            _ => true,
        };
        other.step == entry.step
            && other.tap != here
            && other.shape == entry.shape
            && (neighbour || other.tap.site == here.site)
    };
    let mut best: Option<Transform> = None;
    for other in reference.entries().iter().filter(|e| near(e)) {
        let tensor = reference.read(other)?;
        let values = tensor.values();
        let left = TensorRef { values: &values, shape: &other.shape, rows: other.rows.as_ref() };
        let Ok(pair) = Pair::new(here.site, &left, candidate, None) else { continue };
        if pair.sampled_nmse((pair.len() / SAMPLE).max(1)) >= SAMPLE_LEAVES {
            continue;
        }
        let residual_nmse = pair.sampled_nmse(1);
        let better = best.as_ref().is_none_or(|best| residual_nmse < best.residual_nmse);
        // One large position must not decide for the others.
        let mut positions = pair.nmse_by_position();
        positions.sort_by(f64::total_cmp);
        let most = positions.get(positions.len() * 9 / 10).copied().unwrap_or(0.0);
        if better && residual_nmse <= allowed.min(CHANGE_LEAVES * nmse) && most <= CHANGED_POSITION_ROOM * allowed {
            best = Some(Transform { change: Change::OtherTap(other.tap.to_string()), residual_nmse });
        }
    }
    Ok(best)
}

/// How far one rank's part of a tap is from the reference's.
#[derive(Clone, Debug, PartialEq)]
pub struct RankError {
    /// The rank's folder.
    pub name: String,
    /// The part of the tap that it holds: `heads 4-7`.
    pub part: String,
    /// NMSE of its part, relative to that part's energy; infinite where that is zero or a value is not finite.
    pub nmse: f64,
    /// Whether that is within what is allowed.
    pub right: bool,
}

impl fmt::Display for RankError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.right { "right".into() } else { format!("wrong (NMSE {})", number(self.nmse)) };
        write!(f, "{} ({}) {how}", self.name, self.part)
    }
}

/// `rank1 (heads 4-7) wrong (NMSE 0.7); rank0 (heads 0-3) right`: wrong ranks first; `None` where no rank stands out.
pub(crate) fn in_words(errors: &[RankError]) -> Option<String> {
    let (right, wrong): (Vec<&RankError>, Vec<&RankError>) = errors.iter().partition(|e| e.right);
    if wrong.is_empty() {
        return None;
    }
    let texts: Vec<String> = wrong.into_iter().chain(right).map(RankError::to_string).collect();
    Some(texts.join("; "))
}
