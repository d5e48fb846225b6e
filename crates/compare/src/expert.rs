//! Reads from a tap's name to which expert it belongs.

use firstdiff_trace::Tap;

/// The text before the number of an expert.
pub(crate) const EXPERTS: &str = ".experts.";

/// The text before an expert's number, the number, and the text behind it.
pub(crate) fn expert_of(name: &str) -> Option<(&str, usize, &str)> {
    let (left, inner) = name.split_once(EXPERTS)?;
    let end = inner.find(['.', '/'])?;
    Some((left, inner[..end].parse().ok()?, &inner[end..]))
}

/// Whether a tap belongs to an expert.
pub fn is_of_expert(tap: Tap) -> bool {
    tap.is_open() && expert_of(&tap.to_string()).is_some()
}

/// Whether two taps belong to the same expert. The output of a module may be named after the module that the block is.
pub(crate) fn are_of_one_expert(one: Tap, other: Tap) -> bool {
    let (one, other) = (one.to_string(), other.to_string());
    let (Some(one), Some(other)) = (expert_of(&one), expert_of(&other)) else { return false };
    let is_inside = |outer: &str, inner: &str| {
        inner.strip_prefix(outer).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    one.1 == other.1 && (is_inside(one.0, other.0) || is_inside(other.0, one.0))
}
