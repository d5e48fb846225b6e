//! Words for what was measured, each with its price in bits: numbers, sets, tables of numbers, tables of sources.

pub(crate) mod function;
pub(crate) mod mask;
pub(crate) mod set;
pub(crate) mod source;
pub(crate) mod table;

pub(crate) use firstdiff_evidence::choice;

/// 2nd, 3rd, 4th.
pub(crate) fn nth(n: usize) -> String {
    let end = match (n % 10, n % 100) {
        (_, 11..=13) => "th",
        (1, _) => "st",
        (2, _) => "nd",
        (3, _) => "rd",
        _ => "th",
    };
    format!("{n}{end}")
}
