//! Parses the notation of axes that describes how the ranks of a sharded run share a tap: `T D[tp]`, `H[tp] T S`, `T D partial`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use crate::tap::{Site, Tap};

/// The axes of a tap in the order of a rank's tensor, and how the ranks share it.
///
/// ```
/// use firstdiff_trace::{AxisNotation, Share};
/// let dims: AxisNotation = "H[tp] T S".parse()?;
/// assert_eq!((dims.axes(), dims.share()), (&['H', 'T', 'S'][..], Share::Sliced(0)));
/// assert_eq!("T D".parse::<AxisNotation>()?.share(), Share::Replicated);
/// assert_eq!("T D partial".parse::<AxisNotation>()?.share(), Share::Partial);
/// # Ok::<(), firstdiff_trace::DimsError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AxisNotation {
    axes: Vec<char>,
    share: Share,
}

/// What each rank holds of a tap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// The whole tap: the same on every rank.
    Replicated,
    /// A slice along this axis: concatenated in the order of the ranks, the slices make the whole.
    Sliced(usize),
    /// A summand: the sum over the ranks is the whole.
    Partial,
}

/// Why a text is not a notation of axes.
#[derive(Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "dims '{text}': {reason} (write 'T D[tp]' for an axis cut over ranks, 'T D' for replicas, 'T D partial' for sums)"
)]
pub struct DimsError {
    text: String,
    reason: String,
}

impl AxisNotation {
    /// The axes in the order of a rank's shape, in the vocabulary's letters. The axis C of the vocabulary (merged heads) may be written `C` or `D`.
    pub fn axes(&self) -> &[char] {
        &self.axes
    }

    /// What each rank holds.
    pub fn share(&self) -> Share {
        self.share
    }

    /// For each axis of `site`, its index in this notation, if both have the same axes. `H` may stand for K, and `D` for C.
    pub(crate) fn order(&self, site: Site) -> Option<Vec<usize>> {
        let same = |ours: char, theirs: char| {
            ours == theirs || matches!((ours, theirs), ('K', 'H') | ('H', 'K') | ('C', 'D') | ('E', 'D'))
        };
        let find = |&axis: &char| self.axes.iter().position(|&a| same(axis, a));
        let order: Vec<usize> = site.axes().iter().map(find).collect::<Option<_>>()?;
        let mut sorted = order.clone();
        sorted.sort_unstable();
        (sorted.iter().copied().eq(0..self.axes.len())).then_some(order)
    }
}

impl FromStr for AxisNotation {
    type Err = DimsError;

    fn from_str(text: &str) -> Result<AxisNotation, DimsError> {
        let err = |reason: String| DimsError { text: text.escape_debug().to_string(), reason };
        let (mut axes, mut share) = (Vec::new(), Share::Replicated);
        for word in text.split_whitespace() {
            if word == "partial" {
                if share != Share::Replicated {
                    return Err(err("cut and partial at once".into()));
                }
                share = Share::Partial;
                continue;
            }
            let (name, group) = match word.split_once('[') {
                Some((name, rest)) => (name, rest.strip_suffix(']').filter(|g| !g.is_empty() && !g.contains('['))),
                None => (word, None),
            };
            let mut letters = name.chars();
            let (Some(axis), None, true) = (letters.next(), letters.next(), word.contains('[') == group.is_some())
            else {
                return Err(err(format!("'{}' is no axis", word.escape_debug())));
            };
            if !"TSDHKdCFVE".contains(axis) {
                return Err(err(format!("'{axis}' is none of T S D H K d C F V E")));
            }
            if axes.contains(&axis) {
                return Err(err(format!("axis {axis} twice")));
            }
            if group.is_some() {
                if share != Share::Replicated {
                    return Err(err("more than one axis cut, or cut and partial at once".into()));
                }
                share = Share::Sliced(axes.len());
            }
            axes.push(axis);
        }
        if axes.is_empty() { Err(err("no axes".into())) } else { Ok(AxisNotation { axes, share }) }
    }
}

impl fmt::Display for AxisNotation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, axis) in self.axes.iter().enumerate() {
            let (gap, cut) = (if i == 0 { "" } else { " " }, if self.share == Share::Sliced(i) { "[tp]" } else { "" });
            write!(f, "{gap}{axis}{cut}")?;
        }
        if self.share == Share::Partial { f.write_str(" partial") } else { Ok(()) }
    }
}

/// Finds the notation of `tap` in a table of taps or tap patterns: first its own name, then the longest matching pattern.
pub(crate) fn find_notation(table: &BTreeMap<String, String>, tap: Tap) -> Option<&str> {
    let own = table.get(&tap.to_string());
    let by_pattern =
        || table.iter().filter(|(pattern, _)| tap.matches(pattern)).max_by_key(|(pattern, _)| pattern.len());
    own.or_else(|| by_pattern().map(|(_, notation)| notation)).map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notations_survive_display_and_parse() {
        for text in ["T D", "T D[tp]", "H[tp] T S", "T H[tp] d", "T D partial"] {
            assert_eq!(text.parse::<AxisNotation>().unwrap().to_string(), text);
        }
        for bad in
            ["", "partial", "T X", "TD", "T D[", "T D[]", "T[a] D[b]", "T D[tp] partial", "T T", "T D]", "T [tp]"]
        {
            assert!(bad.parse::<AxisNotation>().is_err(), "{bad}");
        }
    }

    #[test]
    fn axes_are_matched_with_the_vocabulary() {
        let order = |text: &str, site| text.parse::<AxisNotation>().unwrap().order(site);
        assert_eq!(order("H[tp] T d", Site::Q), Some(vec![1, 0, 2]));
        assert_eq!(order("H[tp] T d", Site::K), Some(vec![1, 0, 2]));
        assert_eq!(order("T D[tp]", Site::Context), Some(vec![0, 1]));
        assert_eq!(order("T D", Site::Q), None);
    }

    #[test]
    fn the_longest_pattern_wins() {
        let table = [("*", "T D"), ("layers.*.q", "T H[tp] d"), ("layers.1.q", "H[tp] T d")];
        let table = table.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
        let of = |tap: &str| find_notation(&table, tap.parse().unwrap());
        assert_eq!((of("layers.1.q"), of("layers.0.q"), of("h0")), (Some("H[tp] T d"), Some("T H[tp] d"), Some("T D")));
    }
}
