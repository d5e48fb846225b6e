//! Formats numbers, indices and places as words, for all parts of the crate.

use firstdiff_trace::Site;

/// The index along every axis of flat index `at`.
pub fn unravel(mut at: usize, shape: &[usize]) -> Vec<usize> {
    let mut index = vec![0; shape.len()];
    for (place, &extent) in index.iter_mut().zip(shape).rev() {
        *place = at % extent.max(1);
        at /= extent.max(1);
    }
    index
}

/// `head 2, position 4, channel 1` for an index along the axes of `site`; the bare numbers where the axes are others.
pub fn index_in_words(site: Site, at: &[usize]) -> String {
    let name = |axis: char| match axis {
        'T' => "position",
        'S' => "key",
        'H' | 'K' => "head",
        'V' => "token id",
        _ => "channel",
    };
    if site.axes().len() != at.len() {
        return format!("{at:?}");
    }
    site.axes().iter().zip(at).map(|(axis, i)| format!("{} {i}", name(*axis))).collect::<Vec<_>>().join(", ")
}

/// A measure as a person reads it: `0.0135`, `3.2e-12`.
pub fn number(value: f64) -> String {
    if value == 0.0 {
        "0".into()
    } else if (1e-3..1e4).contains(&value.abs()) {
        format!("{value:.4}")
    } else {
        format!("{value:.1e}")
    }
}

/// `3` and `7-9`: numbers in order, neighbours joined.
pub fn ranges(sorted: &[usize]) -> Vec<String> {
    let word = |run: &[usize]| match run {
        [one] => one.to_string(),
        run => format!("{}-{}", run[0], run[run.len() - 1]),
    };
    sorted.chunk_by(|one, next| one + 1 == *next).map(word).collect()
}

/// "token 3", "tokens 3, 5 and 4 more".
pub(crate) fn tokens_in_words(tokens: &[usize]) -> String {
    let shown: Vec<String> = tokens.iter().take(4).map(usize::to_string).collect();
    let more = if tokens.len() > 4 { format!(" and {} more", tokens.len() - 4) } else { String::new() };
    format!("token{} {}{more}", if tokens.len() == 1 { "" } else { "s" }, shown.join(", "))
}
