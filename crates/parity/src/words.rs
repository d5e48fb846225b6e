//! Formats many numbers in few words: groups, ranges, lists and counts.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_compare::{ChunkAlignment, FirstDivergence, Place, UnrecordedLayers, number, ranges};
use firstdiff_trace::{Site, Tap};

/// `1 tap`, `7 taps`.
pub fn taps_in_words(count: usize) -> String {
    format!("{count} tap{}", if count == 1 { "" } else { "s" })
}

/// The taps that were not checked on the way to a divergence at `step`, each once.
pub fn between(first: &FirstDivergence, step: u32) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let mut layers = first.unrecorded_layers.iter().peekable();
    let mut add = |name: String| {
        if !names.contains(&name) {
            names.push(name);
        }
    };
    for place in &first.unchecked_between {
        while let Some(missing) = layers.next_if(|missing| missing.reader <= *place) {
            add(layers_in_words(missing));
        }
        let name = if place.step == step { place.tap.to_string() } else { format!("{} of earlier steps", place.tap) };
        add(name);
    }
    layers.for_each(|missing| add(layers_in_words(missing)));
    names
}

/// `layers 1-4 (not recorded)`; without a model, the number of layers behind the last one is unknown.
fn layers_in_words(missing: &UnrecordedLayers) -> String {
    match (missing.after, missing.before) {
        (None, None) => "the layers (none recorded)".into(),
        (Some(after), None) => format!("any layers after {after} (none recorded)"),
        (after, Some(before)) => match after.map_or(0, |after| after + 1) {
            from if from + 1 == before => format!("layer {from} (not recorded)"),
            from => format!("layers {from}-{} (not recorded)", before - 1),
        },
    }
}

/// `layers.0.q_rope, layers.0.q_rope (decode steps 1-40)`: places by tap, neighbouring decode steps together.
pub fn places(places: &[Place]) -> Vec<String> {
    let mut runs: Vec<(Tap, u32, u32)> = Vec::new();
    for place in places {
        let (tap, step) = (place.tap, place.step);
        match runs.iter_mut().find(|(of, from, to)| *of == tap && *from > 0 && to.checked_add(1) == Some(step)) {
            Some((.., to)) => *to = step,
            None => runs.push((tap, step, step)),
        }
    }
    let describe = |(tap, from, to): (Tap, u32, u32)| match (from, to) {
        (0, _) => tap.to_string(),
        (from, to) if from == to => format!("{tap} (decode step {from})"),
        (from, to) => format!("{tap} (decode steps {from}-{to})"),
    };
    runs.into_iter().map(describe).collect()
}

/// Where in a run a step is: `decode step 3`, `positions 5-7`; `None` for the prefill.
pub fn step_in_words(alignment: Option<&ChunkAlignment>, step: u32) -> Option<String> {
    match (alignment, step) {
        (Some(alignment), cell) => Some(alignment.positions(cell..cell + 1)),
        (None, 0) => None,
        (None, step) => Some(format!("decode step {step}")),
    }
}

/// Whether a character is not text: it moves the cursor, or changes the direction of the text around it.
fn is_control(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Text of foreign origin, without control characters.
pub fn safe(text: &str) -> String {
    text.chars().flat_map(|c| if is_control(c) { c.escape_default().collect::<Vec<_>>() } else { vec![c] }).collect()
}

/// The length in bytes of the colour code at the start of a text, if there is one: digits and semicolons up to an m.
fn colour(text: &str) -> Option<usize> {
    const COLOUR: &str = "\x1b[";
    let after = text.strip_prefix(COLOUR)?;
    let end = after.find(|c: char| !c.is_ascii_digit() && c != ';')?;
    after[end..].starts_with('m').then_some(COLOUR.len() + end + 1)
}

/// Text without its colour codes.
pub fn without_colours(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let painted = colour(rest);
        out.extend(painted.is_none().then_some(c));
        rest = &rest[painted.unwrap_or(c.len_utf8())..];
    }
    out
}

/// Text with its colour codes, and no other control characters.
pub fn without_controls(text: &str) -> std::borrow::Cow<'_, str> {
    if !text.contains(is_control) {
        return text.into();
    }
    let mut out = String::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let painted = colour(rest);
        let taken = painted.unwrap_or(c.len_utf8());
        match painted {
            Some(_) => out.push_str(&rest[..taken]),
            None if is_control(c) => out.extend(c.escape_default()),
            None => out.push(c),
        }
        rest = &rest[taken..];
    }
    out.into()
}

/// Which of the groups are right, and how far off the others are; `wrong` is the word for these. `label` gives the number of a group.
pub fn group(nmse: &[f64], allowed: f64, name: &str, wrong: &str, label: impl Fn(usize) -> usize) -> String {
    let (right, far): (Vec<usize>, Vec<usize>) = (0..nmse.len()).partition(|&i| nmse[i] <= allowed);
    let worst = far.iter().copied().max_by(|&a, &b| nmse[a].total_cmp(&nmse[b]));
    let Some(worst) = worst else { return "each by itself within tolerance".into() };
    let least = far.iter().map(|&i| nmse[i]).fold(f64::INFINITY, f64::min);
    let spread = match (least.is_finite(), nmse[worst].is_finite()) {
        (false, _) => String::new(),
        (true, false) => format!(": NMSE {} and more, worst at {name} {}", number(least), label(worst)),
        (true, true) if number(least) == number(nmse[worst]) => format!(": NMSE {}", number(least)),
        (true, true) if nmse[worst] <= 4.0 * least => {
            format!(", similar error (NMSE {} to {})", number(least), number(nmse[worst]))
        }
        _ => format!(": NMSE {} to {}, worst at {name} {}", number(least), number(nmse[worst]), label(worst)),
    };
    if right.is_empty() {
        return format!("all {} {wrong}{spread}", nmse.len());
    }
    let named = |indices: &[usize]| ranges_if_short(&indices.iter().map(|&i| label(i)).collect::<Vec<_>>());
    match (named(&right), named(&far)) {
        (Some(right), Some(far)) => format!("{right} right, {far} {wrong}{spread}"),
        _ => format!("{} of {} right, {} {wrong}{spread}", right.len(), nmse.len(), far.len()),
    }
}

/// `0, 3-7`; `None` where that would be too long.
fn ranges_if_short(sorted: &[usize]) -> Option<String> {
    let parts = ranges(sorted);
    (parts.len() <= 8).then(|| parts.join(", "))
}

/// `0-9,11`, whatever their number.
pub fn layers_in_short(layers: impl IntoIterator<Item = u32>) -> String {
    let layers: BTreeSet<usize> = layers.into_iter().map(|layer| layer as usize).collect();
    ranges(&layers.into_iter().collect::<Vec<_>>()).join(",")
}

/// The layers of some taps, by stack: `layers 0-2`, `layer 0 and encoder layers 1,3`; empty where they have none.
pub fn layers_of(taps: impl IntoIterator<Item = Tap>) -> String {
    let describe = |(stack, layers): (&str, BTreeSet<u32>)| {
        let (gap, s) = (if stack.is_empty() { "" } else { " " }, if layers.len() == 1 { "" } else { "s" });
        format!("{stack}{gap}layer{s} {}", layers_in_short(layers))
    };
    by_stack(taps).into_iter().map(describe).collect::<Vec<_>>().join(" and ")
}

/// The numbers of the layers of each stack.
pub fn by_stack(taps: impl IntoIterator<Item = Tap>) -> BTreeMap<&'static str, BTreeSet<u32>> {
    let mut stacks = BTreeMap::<_, BTreeSet<u32>>::new();
    for (stack, layer) in taps.into_iter().filter_map(|tap| tap.block()) {
        stacks.entry(stack).or_default().insert(layer);
    }
    stacks
}

/// The decode steps up to `last` in which something shows; `None` where the prefill shows it too. `is_right`: whether it was judged in a step, and is right
/// there.
pub fn steps_in_words(
    wrong: impl IntoIterator<Item = u32>,
    last: u32,
    is_right: impl Fn(u32) -> bool,
) -> Option<String> {
    let wrong: BTreeSet<u32> = wrong.into_iter().collect();
    let first = wrong.first().copied().filter(|&first| first > 0)?;
    Some(match wrong.len() {
        _ if (first..=last).all(|step| wrong.contains(&step)) => format!("from decode step {first} on"),
        1 if (0..=last).all(|step| step == first || is_right(step)) => format!("in decode step {first} alone"),
        1 => format!("in decode step {first}"),
        _ => format!("in decode steps {}", layers_in_short(wrong)),
    })
}

/// Describes where the error is, if few channels hold most of it or some are right. With few numbers and little energy, rounding alone may exceed the
/// tolerance of the whole: such channels are not called wrong. `name`: what one is called, as the last axis may also be that of keys.
pub fn by_channel(share: &[f64], nmse: &[f64], allowed: f64, name: &str) -> Option<String> {
    if share.len() < 4 {
        return None;
    }
    let mut order: Vec<usize> = (0..share.len()).collect();
    order.sort_by(|&a, &b| share[b].total_cmp(&share[a]));
    let mut top = order[..share.len().div_ceil(16)].to_vec();
    top.retain(|&i| share[i] > 0.01);
    top.sort_unstable();
    let held: f64 = top.iter().map(|&i| share[i]).sum();
    let far = nmse.len() - nmse.iter().filter(|nmse| **nmse <= allowed).count();
    // A few channels are right by chance where all are wrong.
    let is_in_part = far > 0 && 10 * (nmse.len() - far) >= nmse.len();
    let by_itself = || group(nmse, allowed, name, "beyond tolerance", |channel| channel);
    if held <= 0.9 {
        return is_in_part.then(by_itself);
    }
    let which = ranges_if_short(&top).unwrap_or_else(|| format!("{} of {}", top.len(), share.len()));
    let most = if held > 0.995 && far > top.len() { "more than 99".into() } else { format!("{:.0}", 100.0 * held) };
    let rest = if is_in_part { format!("; {}", by_itself()) } else { String::new() };
    let hold = if top.len() == 1 { "holds" } else { "hold" };
    Some(format!("{which} {hold} {most} % of the error{rest}"))
}

/// The first few of a list, its last, and the number of all.
pub fn shorten(parts: &[String], most: usize) -> String {
    if parts.len() <= most {
        return parts.join(", ");
    }
    format!("{} ... {} ({} in all)", parts[..most - 1].join(", "), parts[parts.len() - 1], parts.len())
}

/// `1.2 MB`.
pub fn in_bytes(bytes: u64) -> String {
    match bytes {
        0..1_000 => format!("{bytes} B"),
        1_000..1_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", bytes as f64 / 1e6),
        _ => format!("{:.1} GB", bytes as f64 / 1e9),
    }
}

/// A name that is no tap, and the tap that was probably meant: `layers.0.qrope (layers.0.q_rope?)`.
pub fn with_suggestion(name: &str) -> String {
    let (before, last) = name.rsplit_once('.').map_or((None, name), |(before, last)| (Some(before), last));
    let near = |site: &&Site| strsim::damerau_levenshtein(site.name(), last) <= last.len() / 4;
    let closest = Site::ALL.iter().filter(near).min_by_key(|site| strsim::damerau_levenshtein(site.name(), last));
    let meant = closest.map(|site| before.map_or(site.name().to_owned(), |before| format!("{before}.{}", site.name())));
    match meant.filter(|meant| meant.parse::<Tap>().is_ok()) {
        Some(meant) => format!("{} ({meant}?)", safe(name)),
        None => safe(name),
    }
}

/// The chain of causes, each once: the text of many errors already contains their source.
pub fn one_line(error: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if text.is_empty() {
            text = cause;
        } else if !text.contains(&cause) {
            text += &format!(": {cause}");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_foreign_name_moves_no_cursor_and_ends_no_line() {
        let painted = crate::render::screen::paint(crate::render::screen::BAD, "x");
        assert_eq!((without_controls(&painted).as_ref(), without_colours(&painted).as_str()), (&*painted, "x"));
        assert_eq!(without_controls("a\nb\u{1b}]0;t\u{7}\u{1b}[2J"), "a\\nb\\u{1b}]0;t\\u{7}\\u{1b}[2J");
        assert_eq!(without_controls("\u{1b}[31"), "\\u{1b}[31");
        assert_eq!((safe("a\u{202e}b"), without_controls("\u{2066}a").as_ref()), ("a\\u{202e}b".into(), "\\u{2066}a"));
    }

    #[test]
    fn layers_are_those_of_their_stack() {
        let words = |names: &[&str]| layers_of(names.iter().map(|name| Tap::named(name)));
        assert_eq!(words(&["layers.0.h", "layers.1.q", "logits"]), "layers 0-1");
        assert_eq!(
            words(&["encoder.layers.1.h", "layers.0.h", "encoder.layers.3.h"]),
            "layer 0 and encoder layers 1,3"
        );
        assert_eq!(words(&["h0"]), "");
    }

    #[test]
    fn a_slip_of_the_pen_is_recognised() {
        assert_eq!(with_suggestion("layers.3.qrope"), "layers.3.qrope (layers.3.q_rope?)");
        assert_eq!(with_suggestion("layers.3.attn_nrom"), "layers.3.attn_nrom (layers.3.attn_norm?)");
        assert_eq!(with_suggestion("logit"), "logit (logits?)");
        for other in ["blk.3.attn_q", "layers.3.x", "layers.x.qrope", "layers.3.logit"] {
            assert_eq!(with_suggestion(other), other);
        }
    }
}
