//! Checks the numbers of one tensor: NaN, zeros, extreme sizes, constants, rows that never change.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::Site;

use super::finding::{Certainty, InspectFinding};
use super::seen::{InspectedDump, TensorRows};
use super::tally::{Summary, ValueCounts, embeddings_of_step};
use crate::graph::Place;
use crate::tolerance::inspect::{ABSURD, BY_CHANCE, SAME_LOGITS, SAME_ROW};
use crate::words::number;

const NOT_FINITE: &str = "not-finite";
const UNREAD: &str = "behind the query, where engines that skip masked keys write nothing";

pub(super) fn check(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
    known: &[Summary],
) -> Vec<InspectFinding> {
    if let Some(findings) = check_empty_or_zero(run, tensor, tally) {
        return findings;
    }
    let of_values = [not_finite(tensor, tally), check_magnitudes(tensor, tally), check_vanishing(run, tensor, tally)];
    let of_rows = [
        zero_rows(run, tensor, tally, known),
        zero_tail(run, tensor, tally),
        check_broken_row(tensor, tally),
        constant(run, tensor, tally),
    ];
    let of_positions = [
        check_equal_rows(run, tensor, tally, known).or_else(|| check_copied_rows(run, tensor, tally, known)),
        check_one_winner(run, tensor, tally),
    ];
    of_values.into_iter().chain(of_rows).chain(of_positions).flatten().collect()
}

/// Checks of a tap outside the vocabulary: none that needs its rows, or the range of its operation.
pub(super) fn check_unknown_axes(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
) -> Vec<InspectFinding> {
    let findings = check_empty_or_zero(run, tensor, tally).unwrap_or_else(|| {
        let constant = tally.constant.then(|| constant(run, tensor, tally)).flatten();
        let of_values =
            [not_finite(tensor, tally), check_magnitudes(tensor, tally), check_vanishing(run, tensor, tally)];
        of_values.into_iter().flatten().chain(constant).collect()
    });
    let at_most_likely = |finding: InspectFinding| {
        let is_nan = finding.what == NOT_FINITE && tally.nan > 0;
        let sure = if is_nan || finding.sure == Certainty::Note { finding.sure } else { Certainty::Likely };
        InspectFinding { sure, ..finding }
    };
    findings.into_iter().map(at_most_likely).collect()
}

/// The findings of a tensor that has no element, or only zeros; `None` for any other.
fn check_empty_or_zero(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
) -> Option<Vec<InspectFinding>> {
    match tally.count {
        0 => Some(vec![InspectFinding::new(Certainty::Likely, "empty", tensor.place, "holds no element")]),
        _ => tally.all_zero().then(|| all_zero(run, tensor, tally).into_iter().collect()),
    }
}

/// Keeps the first tap that is not finite, and counts the taps behind it that it spoilt.
pub(super) fn only_first_not_finite(findings: &mut Vec<InspectFinding>) {
    let is = |f: &InspectFinding| f.what == NOT_FINITE && f.sure == Certainty::Certain;
    let after: BTreeSet<Place> = findings.iter().filter(|f| is(f)).skip(1).map(|f| f.place).collect();
    findings.retain(|f| !is(f) || !after.contains(&f.place));
    if let Some(first) = findings.iter_mut().find(|f| is(f)).filter(|_| !after.is_empty()) {
        first.detail += &format!("; so do {} after it", after.len());
        first.others = after.iter().map(|p| p.tap).collect();
    }
}

/// Sites whose rows are often zero or constant, in right runs too.
fn is_sparse(tensor: &TensorRows<'_>) -> bool {
    tensor.over_keys() || matches!(tensor.site(), Site::RouterLogits | Site::RouterProbs | Site::FfnAct)
}

/// Whether a tap may hold -inf, or a number that stands for it: masked scores, tokens that may not be chosen, experts outside the chosen groups.
fn may_be_masked(tensor: &TensorRows<'_>) -> bool {
    use Site::{Logits, Open, Qk, RouterLogits, RouterProbs, Scores};
    matches!(tensor.site(), Scores | Qk | Logits | RouterLogits | RouterProbs | Open(_))
}

/// How sure a finding is of values that no computation leaves. Many engines do not compute scores behind the query, and nothing reads what is there.
fn certainty_of_bad_values(tensor: &TensorRows<'_>, is_wrong: impl Fn(f64) -> bool) -> Certainty {
    let unread = |row: usize| {
        let first = tensor.position(row).map_or(usize::MAX, |position| position + 1);
        tensor.row(row).take(first).all(|x| !is_wrong(x))
    };
    let scores = matches!(tensor.site(), Site::Scores | Site::Qk) && tensor.keys_are_positions();
    if scores && (0..tensor.rows).all(unread) { Certainty::Note } else { Certainty::Certain }
}

fn not_finite(tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    let masked = may_be_masked(tensor);
    let wrong = tally.nan + tally.positive_inf + if masked { 0 } else { tally.negative_inf };
    if wrong == 0 {
        return (tally.negative_inf > 0 && tensor.site() != Site::Scores).then(|| {
            let text = format!("{} of {} are -inf", tally.negative_inf, tally.count);
            InspectFinding::new(Certainty::Note, NOT_FINITE, tensor.place, text)
                .to("masked, or tokens that may not be chosen")
        });
    }
    let at = tally.first_nan.or(tally.first_inf).unwrap_or(0);
    let infinite = tally.positive_inf + tally.negative_inf;
    let text = format!(
        "holds {} NaN and {infinite} inf of {} (first at {})",
        tally.nan,
        tally.count,
        tensor.index_in_words(at)
    );
    let points = match tally.nan {
        0 => "overflow (f16 ends at 65504), a division by zero, or memory that nobody wrote (overflow, storage-type)",
        _ => {
            "0/0 or inf-inf here, a weight read in the wrong type, or memory that nobody wrote (storage-type, mask-fill)"
        }
    };
    let sure = certainty_of_bad_values(tensor, |x| x.is_nan() || x == f64::INFINITY || (!masked && x.is_infinite()));
    let points = if sure == Certainty::Note { UNREAD } else { points };
    let finding = InspectFinding::new(sure, NOT_FINITE, tensor.place, text).to(points);
    Some(finding.number("nan", tally.nan as f64).number("inf", infinite as f64))
}

fn check_magnitudes(tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    let masked = may_be_masked(tensor);
    let count = tally.positive_absurd + if masked { 0 } else { tally.negative_absurd };
    let at = tally.first_absurd.filter(|_| count > 0)?;
    let text = format!(
        "{count} of {} are beyond {}, the first {} at {}",
        tally.count,
        number(ABSURD),
        number(tensor.values.get(at)),
        tensor.index_in_words(at)
    );
    let sure = certainty_of_bad_values(tensor, |x| x.is_finite() && if masked { x > ABSURD } else { x.abs() > ABSURD });
    let finding = InspectFinding::new(sure, "absurd-values", tensor.place, text).number("count", count as f64);
    Some(finding.to(match sure {
        Certainty::Note => UNREAD,
        _ => "memory that nobody wrote, or bytes read in the wrong type or byte order (storage-type)",
    }))
}

fn check_vanishing(run: &InspectedDump<'_>, tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    // Probabilities and gated activations may be arbitrarily small.
    let small = matches!(tensor.site(), Site::Probs | Site::RouterProbs | Site::FfnAct);
    let share = tally.vanishing as f64 / (tally.count - tally.zeros).max(1) as f64;
    (!small && tally.vanishing >= BY_CHANCE / 2 && share > 0.1).then(|| {
        let text = format!("{:.0} % of what is not 0 is smaller than 1e-36", 100.0 * share);
        let finding = InspectFinding::new(run.law(), "denormals", tensor.place, text).number("share", share);
        finding.to("integers or uninitialised memory read as floats (storage-type)")
    })
}

fn all_zero(run: &InspectedDump<'_>, tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    // A projection whose weights are 0 in the checkpoint leaves a branch at 0: some models start training so.
    let branch = matches!(
        tensor.site(),
        Site::AttnOut
            | Site::AttnPostNorm
            | Site::FfnOut
            | Site::FfnPostNorm
            | Site::FfnAct
            | Site::Logits
            | Site::RouterLogits
    );
    // With one token there is one key, and that is no finding.
    let sure = if branch || tensor.over_keys() { Certainty::Likely } else { run.law() };
    (tally.count > 1).then(|| {
        InspectFinding::new(sure, "all-zero", tensor.place, format!("all {} elements are exactly 0", tally.count))
            .to("a weight that was never loaded, or a kernel that never ran (weight-unset)")
    })
}

fn zero_rows(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
    known: &[Summary],
) -> Option<InspectFinding> {
    let rows: Vec<usize> = (0..tensor.rows).filter(|&r| tally.filled[r] == 0).collect();
    if rows.is_empty() || is_sparse(tensor) || tensor.width < 2 {
        return None;
    }
    let embedded = embeddings_of_step(known, tensor.place.step);
    let padding = |row: &usize| embedded.is_some_and(|h0| h0.zero_rows.binary_search(row).is_ok());
    if tensor.site() != Site::H0 && rows.iter().all(padding) {
        return None;
    }
    let ids = run.tokens(tensor.place.step).filter(|t| t.len() == tensor.rows);
    let several = ids.is_some_and(|ids| rows.iter().any(|&r| ids[r] != ids[rows[0]]));
    // The row of a padding token is often 0, and padding is at either end.
    let at_an_end = rows[0] == 0 || rows[rows.len() - 1] + 1 == tensor.rows;
    let sure = match tensor.site() {
        // Several tokens that were never trained may share a row of zeros, also in published models.
        Site::H0 if several => Certainty::Likely,
        Site::H0 if ids.is_some() => Certainty::Note,
        _ if embedded.is_none() && at_an_end => Certainty::Note,
        _ => Certainty::Likely,
    };
    let text = format!("{} of {} rows are exactly 0, the first at position {}", rows.len(), tensor.rows, rows[0]);
    let finding = InspectFinding::new(sure, "zero-rows", tensor.place, text).number("rows", rows.len() as f64);
    Some(finding.to("a kernel or a copy that stopped early, or a truncated weight (dequant-truncated); padding else"))
}

fn zero_tail(run: &InspectedDump<'_>, tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    let tail = tensor.width - tally.filled.iter().copied().max()?;
    let elsewhere = tally.zeros.saturating_sub(tail * tensor.rows);
    let dense = elsewhere * 100 <= (tensor.width - tail) * tensor.rows;
    if is_sparse(tensor) && tensor.site() != Site::FfnAct || !dense || tensor.width < BY_CHANCE || tail < 4 {
        return None;
    }
    let (large, short) = (4 * tail >= tensor.width, tail < tensor.width / 32);
    // Vocabularies and feed-forward widths are padded in some files.
    let padded = matches!(tensor.site(), Site::Logits | Site::FfnGate | Site::FfnUp | Site::FfnAct);
    let sure = match (padded, large) {
        (true, false) => Certainty::Note,
        // A model may have a few dead channels.
        _ if short => Certainty::Note,
        (false, true) if tensor.rows > 1 => run.law(),
        _ => Certainty::Likely,
    };
    let text = format!("the last {tail} of {} of every row are exactly 0", tensor.width);
    let finding = InspectFinding::new(sure, "zero-tail", tensor.place, text).number("tail", tail as f64);
    Some(finding.to("a weight of which only the first part was read, or a kernel that stopped (dequant-truncated)"))
}

/// A last row with values that breaks off.
fn check_broken_row(tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    let last = (0..tensor.rows).rev().find(|&r| tally.filled[r] > 0)?;
    let tail = tensor.width - tally.filled[last];
    let whole = last > 0 && tally.filled[..last].iter().all(|&n| n + 1 >= tensor.width);
    (!is_sparse(tensor) && whole && tail >= (tensor.width / 8).max(4)).then(|| {
        let text = format!("row {last} is exactly 0 from element {} of {} on", tally.filled[last], tensor.width);
        let finding =
            InspectFinding::new(Certainty::Likely, "zero-tail", tensor.place, text).number("tail", tail as f64);
        finding.to("a kernel or a copy that stopped in the middle of a row")
    })
}

fn constant(run: &InspectedDump<'_>, tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    if is_sparse(tensor) || tensor.width < BY_CHANCE / 2 {
        return None;
    }
    let points = "a placeholder, a broadcast, or a reduction along the wrong axis";
    if tally.constant && tally.count >= BY_CHANCE {
        let text = format!("all {} elements are {}", tally.count, number(tally.first));
        return Some(InspectFinding::new(run.law(), "constant", tensor.place, text).to(points));
    }
    let rows: Vec<usize> = tally.constant_rows.iter().copied().filter(|&r| tally.filled[r] > 0).collect();
    let first = *rows.first()?;
    let text = format!("{} of {} rows hold one number alone, the first at position {first}", rows.len(), tensor.rows);
    let finding = InspectFinding::new(Certainty::Likely, "constant-rows", tensor.place, text).to(points);
    Some(finding.number("rows", rows.len() as f64))
}

/// Whether all tokens of the tensor's step are known to be the same.
fn one_token(run: &InspectedDump<'_>, tensor: &TensorRows<'_>) -> Option<bool> {
    let ids = run.tokens(tensor.place.step).filter(|ids| ids.len() == tensor.rows)?;
    Some(ids.iter().all(|id| *id == ids[0]))
}

fn check_equal_rows(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
    known: &[Summary],
) -> Option<InspectFinding> {
    if is_sparse(tensor) || tensor.rows < 2 || tally.constant || !tally.finite() || tensor.positions.is_none() {
        return None;
    }
    let logits = tensor.site() == Site::Logits;
    if tally.spread >= SAME_ROW {
        return (logits && tally.spread < SAME_LOGITS && one_token(run, tensor) != Some(true)).then(|| {
            let text = format!("hardly change with position (at most {} of their energy)", number(tally.spread));
            let finding = InspectFinding::new(Certainty::Note, "positions-nearly-alike", tensor.place, text);
            finding.to("a stream in which the tokens drown").number("spread", tally.spread)
        });
    }
    let embedded = embeddings_of_step(known, tensor.place.step);
    let attended = matches!(tensor.site(), Site::Context | Site::AttnOut | Site::AttnPostNorm);
    let sure = match (one_token(run, tensor), embedded.map(|h0| h0.alike)) {
        // Equal rows follow where all tokens are, or may be, the same.
        (Some(true), _) | (None, Some(true)) => return None,
        (None, _) if tensor.site() == Site::H0 => Certainty::Note,
        _ if attended => Certainty::Likely,
        (Some(false), _) | (None, Some(false)) => run.law(),
        (None, _) => Certainty::Likely,
    };
    let text = format!("all {} rows are the same row", tensor.rows);
    let finding = InspectFinding::new(sure, "positions-alike", tensor.place, text).number("spread", tally.spread);
    Some(finding.to(match tensor.site() {
        Site::H0 => "one token looked up for all positions (tokens-differ), unless all tokens are the same",
        Site::Logits => "the logits of one position taken for all (logit-row)",
        _ => "one row computed or copied for all, or a batch stride of 0",
    }))
}

/// Rows that are bit for bit equal to that of an earlier position with another token.
fn check_copied_rows(
    run: &InspectedDump<'_>,
    tensor: &TensorRows<'_>,
    tally: &ValueCounts,
    known: &[Summary],
) -> Option<InspectFinding> {
    if is_sparse(tensor) || tensor.width < BY_CHANCE || tally.spread < SAME_ROW || tensor.positions.is_none() {
        return None;
    }
    // Tokens that were never trained may share a row of the embedding.
    let embedded =
        embeddings_of_step(known, tensor.place.step).filter(|h0| h0.rows == tensor.rows).map(|h0| &h0.row_hashes);
    let ids = run.tokens(tensor.place.step).filter(|ids| ids.len() == tensor.rows);
    let differ = |a: usize, b: usize| match (embedded, ids) {
        (Some(rows), _) => rows[a] != rows[b],
        (None, ids) => ids.is_some_and(|ids| ids[a] != ids[b]),
    };
    let mut first = BTreeMap::new();
    let first_equal = |row: usize| Some((row, *first.entry(tally.hashes[row]).or_insert(row)));
    let filled = (0..tensor.rows).filter(|row| !tally.constant_rows.contains(row));
    let copies: Vec<(usize, usize)> = filled.filter_map(first_equal).filter(|&(row, from)| differ(row, from)).collect();
    let &(row, from) = copies.first()?;
    let text = format!(
        "{} of {} rows are copies of another token's, the first at position {row} of position {from}",
        copies.len(),
        tensor.rows
    );
    let finding =
        InspectFinding::new(Certainty::Likely, "rows-copied", tensor.place, text).number("rows", copies.len() as f64);
    Some(finding.to("one row computed or copied for several, or a kernel that stopped early"))
}

fn check_one_winner(run: &InspectedDump<'_>, tensor: &TensorRows<'_>, tally: &ValueCounts) -> Option<InspectFinding> {
    let winner = *tally.winners.first()?;
    let same = tally.winners.len() >= 4 && tally.constant_rows.is_empty() && tally.winners.iter().all(|w| *w == winner);
    (tensor.site() == Site::Logits && same && tally.spread >= SAME_ROW && one_token(run, tensor) != Some(true)).then(
        || {
            let text = format!("token {winner} wins at all {} positions", tensor.rows);
            let finding =
                InspectFinding::new(Certainty::Note, "one-winner", tensor.place, text).number("token", winner as f64);
            finding.to("greedy decoding that loops; a stream in which the tokens drown")
        },
    )
}
