//! Checks attention in one dump: rows of probs sum to 1, no query sees later keys, and attention is spread over more than one key.

use firstdiff_trace::{DumpError, Site};

use super::finding::{Certainty, InspectFinding};
use super::seen::{InspectedDump, TensorRows, sixteen_bits};
use super::tally::ValueCounts;
use crate::tolerance::inspect::{
    ALL_PROBABILITY, ENOUGH_ROWS, EVEN_SUMS, SAME_PROBABILITY, SCORES_APART, SOME_PROBABILITY, SUM_ROOM, SUM_ROOM_EXACT,
};
use crate::tolerance::judge::{MASKED, UNDERFLOW};
use crate::words::number;

/// The name of the finding that queries see later keys.
pub const FUTURE_ATTENDED: &str = "future-attended";

const WEAK: &str = "masked scores were filled with a number that is too large: -inf is what leaves nothing (mask-fill)";

pub(super) fn check(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
) -> Result<Vec<InspectFinding>, DumpError> {
    if !tally.finite() || tally.all_zero() || tensor.heads.is_none() {
        return Ok(Vec::new());
    }
    let mut found: Vec<InspectFinding> = [negative(run, tensor), sums(run, tensor)?].into_iter().flatten().collect();
    if !tensor.keys_are_positions() {
        return Ok(found);
    }
    match check_future_keys(run, tensor)? {
        Some(finding) => found.push(finding),
        None => found.extend([check_own_key(run, tensor), one_key(tensor), uniform(run, tensor)].into_iter().flatten()),
    }
    Ok(found)
}

fn negative(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Option<InspectFinding> {
    let below = |row: usize| tensor.row(row).filter(|p| *p < -SOME_PROBABILITY).count();
    let count: usize = (0..tensor.rows).map(below).sum();
    (count > 0).then(|| {
        let text = format!("{count} probabilities are negative");
        let finding = InspectFinding::new(run.law(), "negative-probs", tensor.place, text);
        finding
            .to("no softmax was taken, or it was taken of something else; or attention that subtracts or mixes heads")
            .number("count", count as f64)
    })
}

fn sums(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Result<Option<InspectFinding>, DumpError> {
    let sums: Vec<f64> = (0..tensor.rows).map(|row| tensor.row(row).sum()).collect();
    // A row of padding sees no key, and sums to 0.
    let filled: Vec<f64> = sums.iter().copied().filter(|s| *s != 0.0).collect();
    // In 16 bits each probability is rounded, and their sum with them.
    let room = if run.coarse || sixteen_bits(|| (0..tensor.values.len()).map(|i| tensor.values.get(i))) {
        SUM_ROOM
    } else {
        SUM_ROOM_EXACT
    };
    let off = filled.iter().filter(|s| (**s - 1.0).abs() > room).count();
    if off == 0 {
        return Ok(None);
    }
    let (least, most) =
        filled.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(least, most), s| (least.min(*s), most.max(*s)));
    let slight = least >= 1.0 - SUM_ROOM && most <= 1.0 + SUM_ROOM;
    let (sure, points) = match (most > 1.0 + room, is_masked_after_softmax(run, tensor, &sums)?) {
        _ if slight => (Certainty::Likely, "a wrong sum in the softmax, a factor on its result, or probs in few bits"),
        (true, _) => (
            run.law(),
            "softmax over another axis, no softmax, or a lost division (softmax-axis); or attention without softmax",
        ),
        (_, true) => (run.law(), "the mask multiplied in after the softmax (mask-after-softmax)"),
        _ if most - least < EVEN_SUMS && filled.len() >= ENOUGH_ROWS => {
            (run.law(), "a sum over more keys than were written, or dropout's factor; or attention that subtracts")
        }
        _ => (Certainty::Note, "attention sinks in the denominator if the model has them (gpt-oss), else a wrong sum"),
    };
    let text =
        format!("{off} of {} rows do not sum to 1 (they sum to {} to {})", filled.len(), number(least), number(most));
    let finding = InspectFinding::new(sure, "probs-sum", tensor.place, text).to(points);
    Ok(Some(finding.number("rows", off as f64).number("least", least).number("most", most)))
}

/// Whether the mask came after the softmax: the recorded scores show it, or in every head only the last row sums to 1, where nothing is masked.
fn is_masked_after_softmax(run: &InspectedDump<'_>, tensor: &TensorRows<'_>, sums: &[f64]) -> Result<bool, DumpError> {
    if tensor.keys_are_positions() && read_later_scores(run, tensor)?.is_some_and(|b| b.softmaxed && b.masked == 0) {
        return Ok(true);
    }
    let queries = tensor.rows / tensor.heads.unwrap_or(1).max(1);
    let whole = |s: f64| (s - 1.0).abs() <= SUM_ROOM;
    let alone = |head: &[f64]| whole(head[queries - 1]) && head[..queries / 2].iter().all(|s| !whole(*s));
    Ok(queries >= 3 && sums.chunks(queries).all(alone))
}

/// What the recorded scores show about keys behind the query.
#[derive(Default)]
struct LaterKeyScores {
    all: usize,
    masked: usize,
    /// A row has both masked and unmasked keys behind the query.
    mixed: bool,
    /// The single value that all of them have.
    fill: Option<f64>,
    /// Whether they look like those of the keys that the query may see.
    alike: bool,
    /// Probs are the softmax of all scores of the row, including those behind the query.
    softmaxed: bool,
}

fn read_later_scores(run: &InspectedDump<'_>, seen: &TensorRows<'_>) -> Result<Option<LaterKeyScores>, DumpError> {
    let Some(entry) = run.find(Site::Scores, seen.place) else { return Ok(None) };
    let tensor = run.dump.read(entry)?;
    let values = tensor.values();
    let scores = TensorRows::new(run, entry, &values);
    if scores.shape != seen.shape {
        return Ok(None);
    }
    let mut behind = LaterKeyScores { softmaxed: true, fill: fill_value(&scores), ..LaterKeyScores::default() };
    let (mut seen_keys, mut hidden_keys) = (Moments::default(), Moments::default());
    for row in 0..scores.rows {
        let first = first_key_after(&scores, row);
        scores.row(row).take(first).for_each(|x| seen_keys.add(x));
        let (all, masked) = (behind.all, behind.masked);
        for x in scores.row(row).skip(first) {
            hidden_keys.add(x);
            behind.all += 1;
            behind.masked += usize::from(x <= MASKED);
        }
        behind.mixed |= masked < behind.masked && behind.masked - masked < behind.all - all;
        let top = scores.row(row).fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.row(row).map(|x| (x - top).exp()).sum();
        let right = |(p, x): (f64, f64)| p == 0.0 || (p - (x - top).exp() / sum).abs() <= SUM_ROOM * p;
        behind.softmaxed &= seen.row(row).zip(scores.row(row)).all(right);
    }
    behind.alike = (hidden_keys.mean() - seen_keys.mean()).abs() <= SCORES_APART * seen_keys.spread();
    Ok(Some(behind).filter(|b| b.all > 0))
}

/// The single value of all scores behind the query, where there are several.
fn fill_value(scores: &TensorRows<'_>) -> Option<f64> {
    let mut behind = (0..scores.rows).flat_map(|row| scores.row(row).skip(first_key_after(scores, row)));
    let first = behind.next()?;
    let more = behind.try_fold(0, |count, x| (x == first).then_some(count + 1))?;
    (more > 0).then_some(first)
}

/// `all -5, and e to that is 0.0067, not 0`.
fn leak_text(fill: f64) -> String {
    format!("all {fill}, and e to that is {}, not 0", number(fill.exp()))
}

/// Mean and spread of some scores.
#[derive(Default)]
struct Moments {
    count: f64,
    sum: f64,
    squares: f64,
}

impl Moments {
    fn add(&mut self, x: f64) {
        if x > MASKED {
            (self.count, self.sum, self.squares) = (self.count + 1.0, self.sum + x, self.squares + x * x);
        }
    }

    fn mean(&self) -> f64 {
        self.sum / self.count
    }

    fn spread(&self) -> f64 {
        (self.squares / self.count - self.mean().powi(2)).max(0.0).sqrt()
    }
}

/// The first key behind the query of a row.
fn first_key_after(tensor: &TensorRows<'_>, row: usize) -> usize {
    tensor.position(row).map_or(usize::MAX, |position| position + 1)
}

fn check_future_keys(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Result<Option<InspectFinding>, DumpError> {
    // In a padding query that sees no key, probs may be uniform over all keys, in every head.
    let even = |row: usize| tensor.row(row).all(|p| p == tensor.values.get(row * tensor.width));
    let queries = tensor.rows / tensor.heads.unwrap_or(1).max(1);
    let unseeing: Vec<bool> = (0..queries).map(|query| (query..tensor.rows).step_by(queries).all(even)).collect();
    let padding = !unseeing.iter().all(|u| *u);
    let mass = |row: usize| match padding && unseeing[row % queries] {
        true => 0.0,
        false => tensor.row(row).skip(first_key_after(tensor, row)).sum::<f64>(),
    };
    let mass: Vec<f64> = (0..tensor.rows).map(mass).collect();
    let Some(worst) = (0..mass.len()).max_by(|&a, &b| mass[a].total_cmp(&mass[b])).filter(|&r| mass[r] > UNDERFLOW)
    else {
        return Ok(None);
    };
    let rows = mass.iter().filter(|m| **m > UNDERFLOW).count();
    let behind = read_later_scores(run, tensor)?;
    let weak = behind.as_ref().and_then(|b| b.fill).filter(|fill| *fill > MASKED);
    let filled = weak.map_or(String::new(), |fill| format!("; their scores are {}", leak_text(fill)));
    let text = format!(
        "{rows} of {} rows attend to keys behind the query (up to {} of a row, at position {}){filled}",
        tensor.rows,
        number(mass[worst]),
        tensor.position(worst).unwrap_or(0)
    );
    // Equal scores behind every query are a fill value, and masked keys get no probability: no model computes such probs.
    let broken = weak.is_some() || behind.as_ref().is_some_and(|b| b.masked == b.all);
    let everywhere = (0..tensor.rows).all(|row| tensor.row(row).last().is_some_and(|p| p > SOME_PROBABILITY));
    let sure = match (broken, everywhere) {
        (true, _) => Certainty::Certain,
        (false, true) => run.causal_law(),
        (false, false) => run.law(),
    };
    let points = match behind {
        Some(b) if b.masked == 0 && b.alike && sure != Certainty::Certain => {
            "the scores were never masked (mask-omitted); right in a model that attends in both directions"
        }
        None if sure != Certainty::Certain => {
            "no causal mask, or one that is shifted or inverted (mask-omitted, mask-shifted, mask-inverted); right in a model that attends in both directions"
        }
        None => "no causal mask, or one that is shifted or inverted (mask-omitted, mask-shifted, mask-inverted)",
        Some(_) if weak.is_some() => WEAK,
        Some(b) if b.masked == 0 && !b.alike => {
            "scored otherwise than the keys before it, and not masked: something too weak was added (mask-fill), or nothing (mask-omitted)"
        }
        Some(b) if b.masked == 0 => "the scores were never masked (mask-omitted)",
        Some(b) if b.masked == b.all => "the scores are masked, but probs were not made of them (aliasing)",
        Some(b) if !b.mixed => {
            "some heads or queries have no mask at all, the scores of the others are masked (mask-omitted)"
        }
        Some(_) => "some keys behind are masked, others are not: shifted or inverted (mask-shifted, mask-inverted)",
    };
    let finding = InspectFinding::new(sure, FUTURE_ATTENDED, tensor.place, text).to(points);
    Ok(Some(finding.number("rows", rows as f64).number("mass", mass[worst])))
}

/// Rows that can see at least two keys and see at least one.
fn choosing<'a>(seen: &'a TensorRows<'_>) -> impl Iterator<Item = (usize, usize)> + 'a {
    let choice = |row| Some((row, seen.position(row)?));
    (0..seen.rows).filter_map(choice).filter(|&(row, at)| at > 0 && seen.row(row).any(|p| p != 0.0))
}

fn check_own_key(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Option<InspectFinding> {
    let (mut rows, mut own) = (0, 0.0);
    for (row, at) in choosing(tensor) {
        rows += 1;
        own += tensor.values.get(row * tensor.width + at);
    }
    (rows >= ENOUGH_ROWS && own == 0.0).then(|| {
        let text = format!("none of {rows} rows attends to the query's own key");
        let finding = InspectFinding::new(run.law(), "own-key-unseen", tensor.place, text);
        finding.to("a mask one off, or the newest key missing from the cache (mask-shifted, kv-cache-stale)")
    })
}

fn one_key(tensor: &TensorRows<'_>) -> Option<InspectFinding> {
    let (mut rows, mut diagonal, mut least) = (0, 0, 1.0f64);
    for (row, at) in choosing(tensor) {
        let top = tensor.row(row).fold(0.0, f64::max);
        if top < ALL_PROBABILITY {
            return None;
        }
        (rows, least) = (rows + 1, least.min(top));
        diagonal += usize::from(tensor.values.get(row * tensor.width + at) == top);
    }
    (rows >= 2).then(|| {
        let sure = if rows >= ENOUGH_ROWS { Certainty::Likely } else { Certainty::Note };
        let which = if diagonal == rows { "its own key" } else { "one key" };
        let text = format!("each of {rows} rows in all heads looks at {which} alone (at least {})", number(least));
        let finding = InspectFinding::new(sure, "one-key", tensor.place, text).number("rows", rows as f64);
        finding.to("scores too large: no 1/sqrt(d), or q and k far too large (score-scale); or a wrong mask")
    })
}

fn uniform(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Option<InspectFinding> {
    let mut rows = 0;
    for (row, _) in choosing(tensor) {
        let top = tensor.row(row).fold(0.0, f64::max);
        // Within a window only the keys in it count.
        if tensor.row(row).any(|p| p != 0.0 && (p - top).abs() > SAME_PROBABILITY * top) {
            return None;
        }
        rows += usize::from(top < ALL_PROBABILITY);
    }
    (rows >= ENOUGH_ROWS).then(|| {
        // In 16 bits the small differences of an untrained model are rounded away.
        let sure = if run.coarse { Certainty::Note } else { Certainty::Likely };
        let text = format!("each of {rows} rows gives all its keys the same");
        let finding = InspectFinding::new(sure, "uniform-attention", tensor.place, text).number("rows", rows as f64);
        finding.to("q or k is 0 or constant, or the scores were scaled away (weight-unset, score-scale)")
    })
}

/// Scores without a mask, where no probs were recorded to decide.
pub(super) fn unmasked_scores(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Option<InspectFinding> {
    if !tensor.keys_are_positions() || run.find(Site::Probs, tensor.place).is_some() {
        return None;
    }
    let open: usize = (0..tensor.rows)
        .map(|row| tensor.row(row).skip(first_key_after(tensor, row)).filter(|x| *x > MASKED).count())
        .sum();
    let filled = fill_value(tensor).map_or(String::new(), |fill| format!(": they are {}", leak_text(fill)));
    (open > 0).then(|| {
        let text = format!("{open} scores of keys behind the query are not masked{filled}");
        let finding = InspectFinding::new(Certainty::Note, "unmasked-scores", tensor.place, text);
        let points = match filled.is_empty() {
            true => "no mask, or scores recorded before it: record probs",
            false => "a fill that is too large (mask-fill), or places that nobody wrote: record probs",
        };
        finding.to(points).number("count", open as f64)
    })
}
