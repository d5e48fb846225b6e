//! Divides one comparison among several processes: each judges a share of the taps, every tap by itself, which takes most of the time.
//!
//! A share holds the judgements of taps by their two tensors, as the stage `taps` gives them; rules over all taps run once, on all shares. A tap that is in
//! no share is judged then: the result is that of one run, to the bit.

use std::sync::Arc;

use firstdiff_trace::{Dump, DumpError, Entry, Tap, Tensor, stored_name};
use serde::{Deserialize, Serialize};

use crate::graph::{Graph, Place};
use crate::taps::by_themselves;
use crate::taps::context::{Compared, ComparisonContext, JudgedBefore, Options, StoredJudgement, TapJudgement};

/// The share of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Share {
    /// Its number, from 1 on.
    pub number: usize,
    /// How many shares there are.
    pub of: usize,
}

/// The taps of a share, as they were judged by themselves.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct JudgedShare(Vec<StoredJudgement>);

impl Share {
    /// The places of the share; all shares have about the same number of bytes.
    fn places<'p>(&self, context: &ComparisonContext<'_>, places: &'p [Place]) -> &'p [Place] {
        let size = |place: &Place| -> u64 {
            let bytes = |dump: &Dump| {
                let entry = dump.find(place.tap, place.step);
                entry.map_or(0, |entry| entry.shape.iter().product::<usize>() as u64)
            };
            // A tap that only one side has takes almost no time, but some.
            1 + bytes(context.reference) + bytes(context.candidate)
        };
        let mut ends: Vec<u64> = Vec::with_capacity(places.len());
        for place in places {
            ends.push(ends.last().unwrap_or(&0) + size(place));
        }
        let all = ends.last().copied().unwrap_or(0);
        let cut = |number: usize| ends.partition_point(|end| end * self.of as u64 <= all * number as u64);
        &places[cut(self.number - 1)..if self.number == self.of { places.len() } else { cut(self.number) }]
    }
}

/// Judges the taps of a share by themselves. `progress` gets the number of taps done, and of all.
///
/// # Errors
/// When a file cannot be read.
///
/// # Panics
/// When the share's number is not from 1 to `of`.
pub fn judge_share(
    reference: &Dump,
    candidate: &Dump,
    graph: &Graph,
    options: &Options,
    share: Share,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<JudgedShare, DumpError> {
    assert!((1..=share.of).contains(&share.number), "share {} of {}", share.number, share.of);
    let run = ComparisonContext::new(reference, candidate, graph, options);
    let places = share.places(&run, graph.places());
    let mut stored = Vec::new();
    for (done, (place, judged)) in places.iter().zip(by_themselves(&run, places)).enumerate() {
        progress(done, places.len());
        if let TapJudgement::Compared(compared) = judged? {
            stored.extend(StoredJudgement::new(*place, &compared, run.checksums(*place)?));
        }
    }
    Ok(JudgedShare(stored))
}

impl StoredJudgement {
    /// `None` for what is judged again as quickly: a part of a tensor, or a tap whose name does not identify it.
    fn new(place: Place, compared: &Compared, seen: [Option<u32>; 2]) -> Option<StoredJudgement> {
        let Compared { judgement, shape, positions, layout, as_stored, part } = compared.clone();
        let tap = place.tap.to_string();
        let is_known = Tap::named(&tap) == place.tap;
        (part.is_none() && is_known).then_some(StoredJudgement {
            step: place.step,
            tap,
            judgement,
            shape,
            positions,
            layout,
            plain: as_stored,
            seen,
        })
    }

    fn place(&self) -> Place {
        Place { step: self.step, tap: Tap::named(&self.tap) }
    }
}

impl FromIterator<JudgedShare> for JudgedBefore {
    fn from_iter<I: IntoIterator<Item = JudgedShare>>(shares: I) -> JudgedBefore {
        let taps = shares.into_iter().flat_map(|share| share.0);
        JudgedBefore(taps.map(|kept| (kept.place(), kept)).collect())
    }
}

impl JudgedBefore {
    /// How a tap was judged by itself, where a share holds it.
    ///
    /// # Errors
    /// When a side of it has changed since then, or cannot be read.
    pub(crate) fn judged(
        &self,
        context: &ComparisonContext<'_>,
        place: Place,
    ) -> Result<Option<TapJudgement>, DumpError> {
        let Some(stored) = self.0.get(&place) else { return Ok(None) };
        let sides = [context.reference, context.candidate].into_iter().zip(context.checksums(place)?).zip(stored.seen);
        if let Some(((dump, _), _)) = sides.into_iter().find(|((_, now), then)| now != then) {
            let (path, tap) = (dump.path().to_owned(), stored_name(&stored.tap, stored.step));
            return Err(DumpError::Stale { path, tap });
        }
        let StoredJudgement { judgement, shape, positions, layout, plain: as_stored, .. } = stored.clone();
        Ok(Some(TapJudgement::Compared(Arc::new(Compared {
            judgement,
            shape,
            positions,
            layout,
            as_stored,
            part: None,
        }))))
    }
}

impl ComparisonContext<'_> {
    /// The checksums of both sides of a place, as they are now; `None` for what a server would have to send whole.
    fn checksums(&self, place: Place) -> Result<[Option<u32>; 2], DumpError> {
        let (left, right) = self.both(place);
        let checksum = |dump: &Dump, entry: Option<Entry>| {
            let here = entry.filter(|entry| !entry.is_remote());
            here.map(|entry| Ok(sample(&dump.read(&entry)?))).transpose()
        };
        Ok([checksum(self.reference, left)?, checksum(self.candidate, right)?])
    }
}

/// A checksum of a tensor's type, its extents and some of its bytes, including the first and the last: another run differs everywhere, and shares of
/// different runs must not be joined.
fn sample(tensor: &Tensor) -> u32 {
    const PIECES: usize = 16;
    const PIECE: usize = 512;
    let (bytes, mut hash) = (tensor.bytes(), crc32fast::Hasher::new());
    hash.update(tensor.dtype().to_string().as_bytes());
    tensor.shape().iter().for_each(|&extent| hash.update(&(extent as u64).to_le_bytes()));
    let last = bytes.len().saturating_sub(PIECE);
    for piece in 0..PIECES {
        let begin = (last as u128 * piece as u128 / (PIECES as u128 - 1)) as usize;
        hash.update(&bytes[begin..bytes.len().min(begin + PIECE)]);
    }
    hash.finalize()
}
