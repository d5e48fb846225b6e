//! Aligns the tokens of two runs, by their ids or by their rows of h0: which were inserted, lost or exchanged.

use std::fmt;

use firstdiff_trace::{Dump, DumpError, Entry, Site, Tap};

use crate::graph::Place;
use crate::metrics::Metrics;
use crate::run::embeddings::{Prompt, is_made_of_taps, rows_of, token};
use crate::tolerance::run::{MOST_PAIRS, OTHER_TOKEN};

/// Whether each side has the token, and its position on each side (where it is missing, that of the next token); an edit also has the ids.
type TokenChange = ([bool; 2], [usize; 2]);
pub(crate) type EditWithIds = ([bool; 2], [usize; 2], [Option<i64>; 2]);

/// How the candidate's tokens differ from the reference's.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenEdits {
    pub(crate) edits: Vec<EditWithIds>,
    equal_count: usize,
    /// How many tokens either side has.
    pub counts: [usize; 2],
    /// The candidate's ids, where all are known.
    pub ids: Option<Vec<i64>>,
    /// The largest NMSE between two rows taken for the same token's; 0 where ids decide it.
    pub largest_nmse: f64,
    /// Whether nothing else explains it: neither padding, nor a wrong row of the right token.
    pub is_proved: bool,
    /// Whether it is that, or an exchange of rows between similar tokens: nothing there is padding.
    pub is_no_padding: bool,
}

impl TokenEdits {
    /// Whether one side has more tokens at its front, and nothing else is changed: that may be padding.
    pub fn are_in_front(&self) -> bool {
        self.edits.iter().all(|(_, at, _)| at.contains(&0)) && self.equal_count == self.counts[0].min(self.counts[1])
    }

    /// The changes between two lists of ids, where most are equal and not only their ends differ.
    pub fn compare_ids(reference: &[i64], candidate: &[i64]) -> Option<TokenEdits> {
        let distance = |ours: usize, theirs: usize| (reference[ours] == candidate[theirs]).then_some(0.0);
        TokenEdits::align([reference.len(), candidate.len()], [Some(reference), Some(candidate)], &distance)
    }

    /// Aligns two sequences. `distance` gives that of a token of one from a token of the other, where they are the same token.
    fn align(
        [n, m]: [usize; 2],
        ids: [Option<&[i64]>; 2],
        distance: &dyn Fn(usize, usize) -> Option<f64>,
    ) -> Option<TokenEdits> {
        let (pairs, changes) = aligned([n, m], &|a, b| distance(a, b).is_some())?;
        let (first, last) = pairs.first().zip(pairs.last())?;
        (2 * pairs.len() >= n.min(m).max(4)).then_some(())?;
        let id_of = |side: usize, at: usize| ids[side].and_then(|ids| ids.get(at).copied());
        // The ids that the candidate declares count only if they agree for the tokens that are the reference's.
        let is_told = pairs.iter().all(|&[a, b]| id_of(0, a).is_none_or(|id| id_of(1, b) == Some(id)));
        // Nor where the reference has a row of that token, which is another.
        let is_of = |id: i64, at: usize| (0..n).all(|a| id_of(0, a) != Some(id) || distance(a, at).is_some());
        let known = |at: usize| {
            let pair = pairs.iter().find(|pair| pair[1] == at).map(|pair| pair[0]);
            let like = pair.or_else(|| (0..n).find(|&a| distance(a, at).is_some()));
            like.and_then(|a| id_of(0, a)).or_else(|| id_of(1, at).filter(|&id| is_told && is_of(id, at)))
        };
        let edit = |(has, at): TokenChange| {
            (has, at, [has[0].then(|| id_of(0, at[0])).flatten(), has[1].then(|| known(at[1])).flatten()])
        };
        let edits: Vec<EditWithIds> = changes.into_iter().map(edit).collect();
        let ids: Option<Vec<i64>> = (0..m).map(known).collect();
        // At either end, or beside an equal token there, it may be padding, or more of the same text.
        let is_like_ends = |has: &[bool; 2], [a, b]: [usize; 2]| match has {
            [false, _] => (0..=b).all(|b| distance(0, b).is_some()) || (b..m).all(|b| distance(n - 1, b).is_some()),
            [_, false] => (0..=a).all(|a| distance(a, 0).is_some()) || (a..n).all(|a| distance(a, m - 1).is_some()),
            _ => false,
        };
        let is_within = |(has, at, _): &EditWithIds| {
            first[0] < at[0] && (last[0] > at[0] || last[1] > at[1]) && !is_like_ends(has, *at)
        };
        let is_other = |(has, _, ids): &EditWithIds| has.contains(&false) || (ids[1].is_some() && ids[0] != ids[1]);
        let largest_nmse = pairs.iter().filter_map(|&[a, b]| distance(a, b)).fold(0.0, f64::max);
        let is_proved =
            largest_nmse <= OTHER_TOKEN / 100.0 && edits.iter().any(|edit| is_within(edit) && is_other(edit));
        let is_no_padding = is_proved || (n == m && edits.iter().all(is_within));
        Some(TokenEdits {
            edits,
            equal_count: pairs.len(),
            counts: [n, m],
            ids,
            largest_nmse,
            is_no_padding,
            is_proved,
        })
    }
}

/// How the candidate's prompt differs from the reference's, by their rows of h0 or else by the ids that both record; `None` where most of it differs, or
/// where one only continues.
///
/// # Errors
/// When a tensor cannot be read.
pub fn token_edits(reference: &Dump, candidate: &Dump) -> Result<Option<TokenEdits>, DumpError> {
    if is_made_of_taps(reference) || is_made_of_taps(candidate) {
        return Ok(None);
    }
    let h0 = Place { tap: Tap { layer: None, site: Site::H0 }, step: 0 };
    let ids = [reference, candidate].map(|dump| dump.meta().tokens.as_deref());
    let (Some(ours), Some(theirs)) = (rows_of(reference, h0)?, rows_of(candidate, h0)?) else {
        return Ok(ids[0].zip(ids[1]).and_then(|(ours, theirs)| TokenEdits::compare_ids(ours, theirs)));
    };
    if theirs.iter().any(|row| row.len() != ours[0].len() || row.iter().all(|x| *x == 0.0 || !x.is_finite())) {
        return Ok(None);
    }
    let distance = |a: usize, b: usize| {
        let is_same = token(&ours[a], &theirs[b]) == Some(Prompt::Same);
        is_same.then(|| Metrics::measure_f64(&ours[a], &theirs[b]).nmse().unwrap_or(f64::INFINITY))
    };
    let counts = [ours.len(), theirs.len()];
    let ids = [0, 1].map(|side| ids[side].filter(|ids| ids.len() == counts[side]));
    let Some(mut edits) = TokenEdits::align(counts, ids, &distance) else { return Ok(None) };
    // One more token at the front is not padding if later positions saw it.
    if edits.are_in_front() && counts[0].abs_diff(counts[1]) == 1 && edits.largest_nmse <= OTHER_TOKEN / 100.0 {
        edits.is_proved = (counts[0] > counts[1] || distance(0, 0).is_some()) && is_seen(reference, candidate, counts)?;
        edits.is_no_padding = edits.is_proved;
    }
    Ok(Some(edits))
}

/// Whether every recorded result of attention differs behind the tokens that the other side lacks at its front, by more than the first position, which sees
/// only itself.
fn is_seen(reference: &Dump, candidate: &Dump, [n, m]: [usize; 2]) -> Result<bool, DumpError> {
    let mixes = [Site::Context, Site::AttnOut, Site::HAttn, Site::H, Site::FinalNorm, Site::Logits];
    let mut some = false;
    for Entry { tap, .. } in candidate.entries().iter().filter(|e| e.step == 0 && mixes.contains(&e.tap.site)) {
        let at = Place { tap: *tap, step: 0 };
        let (ours, theirs) = (rows_of(reference, at)?, rows_of(candidate, at)?);
        let Some((ours, theirs)) = ours.zip(theirs).filter(|(ours, theirs)| [ours.len(), theirs.len()] == [n, m])
        else {
            continue;
        };
        let off = |a: &[Vec<f64>], b: &[Vec<f64>]| Metrics::measure_f64(&a.concat(), &b.concat()).nmse();
        let behind = off(&ours[n.saturating_sub(m)..], &theirs[m.saturating_sub(n)..]);
        let alone = if m > n { off(&ours[..1], &theirs[..1]) } else { Some(0.0) };
        let Some((behind, alone)) = behind.zip(alone) else { return Ok(false) };
        if behind < OTHER_TOKEN / 100.0 || behind < 100.0 * alone {
            return Ok(false);
        }
        some = true;
    }
    Ok(some)
}

/// The matching pairs of positions, and the changes between them, by the fewest changes from one sequence to the other; `None` where one is the beginning of
/// the other, or they are too long to be aligned.
fn aligned([n, m]: [usize; 2], same: &dyn Fn(usize, usize) -> bool) -> Option<(Vec<[usize; 2]>, Vec<TokenChange>)> {
    (0..n.min(m)).any(|at| !same(at, at)).then_some(())?;
    let back = (1..=n.min(m)).take_while(|&at| same(n - at, m - at)).count();
    let front = (0..n.min(m) - back).take_while(|&at| same(at, at)).count();
    let (rows, columns) = (n - front - back, m - front - back);
    ((rows + 1).saturating_mul(columns + 1) <= MOST_PAIRS).then_some(())?;
    let at = |a: usize, b: usize| a * (columns + 1) + b;
    let is_pair = |a: usize, b: usize| a < rows && b < columns && same(front + a, front + b);
    // How many changes the rest takes, from each pair of positions on.
    let mut cost = vec![0u32; (rows + 1) * (columns + 1)];
    for (a, b) in (0..=rows).rev().flat_map(|a| (0..=columns).rev().map(move |b| (a, b))) {
        cost[at(a, b)] = match (a == rows, b == columns) {
            (true, _) => (columns - b) as u32,
            (_, true) => (rows - a) as u32,
            _ if is_pair(a, b) => cost[at(a + 1, b + 1)],
            _ => 1 + cost[at(a + 1, b + 1)].min(cost[at(a + 1, b)]).min(cost[at(a, b + 1)]),
        };
    }
    let mut pairs: Vec<[usize; 2]> = (0..front).map(|at| [at, at]).collect();
    let (mut changes, mut a, mut b) = (Vec::new(), 0, 0);
    while a < rows || b < columns {
        let here = [front + a, front + b];
        if is_pair(a, b) {
            pairs.push(here);
            (a, b) = (a + 1, b + 1);
            continue;
        }
        let rest = cost[at(a, b)] - 1;
        let has = match (a < rows, b < columns) {
            (true, true) if cost[at(a + 1, b + 1)] == rest => [true, true],
            (_, true) if a == rows || cost[at(a, b + 1)] == rest => [false, true],
            _ => [true, false],
        };
        changes.push((has, here));
        (a, b) = (a + usize::from(has[0]), b + usize::from(has[1]));
    }
    pairs.extend((1..=back).rev().map(|at| [n - at, m - at]));
    Some((pairs, changes))
}

/// `id 1 more at position 0, id 29 at position 5 in place of id 3`.
impl fmt::Display for TokenEdits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (has, [ours, theirs], ids)) in self.edits.iter().take(6).enumerate() {
            f.write_str(if i > 0 { ", " } else { "" })?;
            let [due, own] = ids.map(|id| id.map(|id| format!("id {id}")));
            let own = own.as_deref().unwrap_or("a token that is not the reference's");
            let due = due.as_deref().unwrap_or("token");
            match has {
                [false, _] => write!(f, "{own} more at position {theirs}")?,
                [_, true] => write!(f, "{own} at position {theirs} in place of {due}")?,
                _ => write!(f, "no {due} (the reference's position {ours})")?,
            }
        }
        self.edits.get(6).map_or(Ok(()), |_| write!(f, " ... ({} in all)", self.edits.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_that_is_told_is_none_where_the_row_is_another_tokens() {
        let told = [1, 17, 42, 99, 77, 64];
        // The candidate's row at position 4 is no row of the reference's.
        let distance = |a: usize, b: usize| (a == b && b != 4).then_some(0.0);
        let edits = TokenEdits::align([6, 6], [Some(&told), Some(&told)], &distance).unwrap();
        assert_eq!(edits.to_string(), "a token that is not the reference's at position 4 in place of id 77");
        assert_eq!(edits.ids, None);
    }
}
