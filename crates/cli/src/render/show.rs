//! Shows a dump without a comparison: a line for each kind of tensor, a line for each tensor, or one tensor with its map.

use firstdiff_compare::number;

use crate::render::compare::described;
use crate::render::screen::{BOLD, DIM, Screen, WARN, paint};
use crate::report::{Map, Show, TensorSummary};
use crate::words::{layers_in_short, safe, shorten};

/// The most lines of tensors, unless all are requested.
const LINES: usize = 40;
/// The most characters of a list of layers.
const LAYERS: usize = 20;
/// Characters for the size of a value, from zero up to the largest.
const SHADES: [char; 9] = ['.', ':', '-', '=', '+', '*', '#', '%', '@'];
const NOTHING: char = ' ';
const NOT_FINITE: char = '!';

/// The screen. `each`: whether every tensor has a line; `others`: at how many other steps the shown tensor exists too.
pub(crate) fn screen(report: &Show, each: bool, verbose: bool, others: usize) -> Screen {
    let mut screen = Screen::default();
    screen.line(&format!("dump  {}", described(&report.dump)));
    if let Some(tokens) = &report.dump.tokens {
        let ids: Vec<String> = tokens.iter().map(ToString::to_string).collect();
        screen.line(&paint(DIM, &format!("tokens  {}", shorten(&ids, 16))));
    }
    screen.line("");
    match (&report.taps[..], each) {
        ([one], true) => whole(&mut screen, one, report.map.as_ref(), others),
        (taps, true) => {
            let most = if verbose { taps.len() } else { LINES };
            taps.iter().take(most).for_each(|tap| screen.line(&line(&name(tap), std::slice::from_ref(&tap))));
            if taps.len() > most {
                screen.line(&format!("  ... and {} more (-v shows all)", taps.len() - most));
            }
        }
        (taps, false) => kinds(&mut screen, taps),
    }
    if !report.unreadable.is_empty() {
        let names: Vec<String> = report.unreadable.iter().map(|name| safe(name)).collect();
        screen.line(&format!("{} no tensors of floats: {}", paint(WARN, "not shown:"), shorten(&names, 6)));
    }
    if !report.dump.complete {
        screen.line(&format!("{} its recording was not finished: tensors may be missing", paint(WARN, "note:")));
    }
    report.warnings.iter().for_each(|text| screen.line(&format!("{} {}", paint(WARN, "note:"), safe(text))));
    screen
}

fn name(tap: &TensorSummary) -> String {
    let step = if tap.step == 0 { String::new() } else { format!(" (decode step {})", tap.step) };
    format!("{}{step}", safe(&tap.tap))
}

/// A line for the tensors of one name in several layers with the same shape and type; all decode steps together.
fn kinds(screen: &mut Screen, taps: &[TensorSummary]) {
    let mut groups: Vec<(TensorGroup<'_>, Vec<&TensorSummary>)> = Vec::new();
    let first = taps.iter().map(|tap| tap.step).min().unwrap_or(0);
    if first > 0 {
        screen.line(&paint(BOLD, &format!("decode step {first}")));
    }
    for tap in taps.iter().filter(|tap| tap.step == first) {
        let kind = TensorGroup::from_tensor(tap);
        match groups.iter_mut().find(|(other, _)| *other == kind) {
            Some((_, group)) => group.push(tap),
            None => groups.push((kind, vec![tap])),
        }
    }
    for (kind, group) in &groups {
        let layers = layers_in_short(group.iter().filter_map(|tap| split(&tap.tap).1));
        let few = layers.len() <= LAYERS;
        let layers = if few { layers } else { format!("* ({} layers)", group.len()) };
        let name =
            if layers.is_empty() { kind.before.to_owned() } else { format!("{}{layers}{}", kind.before, kind.after) };
        screen.line(&line(&safe(&name), group));
    }
    let later: Vec<&TensorSummary> = taps.iter().filter(|tap| tap.step > first).collect();
    if let Some(last) = later.iter().map(|tap| tap.step).max() {
        let largest = later.iter().filter_map(|tap| tap.peak()).fold(0.0, f64::max);
        let text = format!("  decode steps up to {last}: {} tensors, largest {}", later.len(), number(largest));
        screen.line(&format!("{text}{}", anomalies(&later)));
    }
}

/// What tensors on one line have in common.
#[derive(PartialEq)]
struct TensorGroup<'a> {
    before: &'a str,
    after: &'a str,
    shape: &'a [usize],
    dtype: &'static str,
}

impl TensorGroup<'_> {
    fn from_tensor(tap: &TensorSummary) -> TensorGroup<'_> {
        let (before, _, after) = split(&tap.tap);
        TensorGroup { before, after, shape: &tap.shape, dtype: tap.dtype }
    }
}

/// The text before a layer's number, the number, and the text behind it.
fn split(name: &str) -> (&str, Option<u32>, &str) {
    let of_layers = |at: usize| {
        let from = at + "layers.".len();
        let digits = name[from..].find('.').unwrap_or(name.len() - from);
        Some((&name[..from], name[from..from + digits].parse().ok()?, &name[from + digits..]))
    };
    match name.find("layers.").and_then(of_layers) {
        Some((before, layer, after)) => (before, Some(layer), after),
        None => (name, None, ""),
    }
}

fn line(name: &str, group: &[&TensorSummary]) -> String {
    let first = group[0];
    let range = |value: &dyn Fn(&TensorSummary) -> Option<f64>| {
        let values: Vec<f64> = group.iter().filter_map(|tap| value(tap)).collect();
        let (least, most) = values.iter().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(*v), b.max(*v)));
        match values.len() {
            0 => "-".to_owned(),
            _ if least == most => number(least),
            _ => format!("{} to {}", number(least), number(most)),
        }
    };
    let largest = group.iter().filter_map(|tap| tap.peak()).fold(0.0, f64::max);
    let what = paint(DIM, &format!("{:?} {}", first.shape, first.dtype));
    format!("  {name:<24} {what}  RMS {}, largest {}{}", range(&|tap| tap.rms), number(largest), anomalies(group))
}

/// Anything unusual about some of the tensors.
fn anomalies(group: &[&TensorSummary]) -> String {
    let Some((tap, odd)) = group.iter().find_map(|tap| Some((tap, tap.anomaly()?))) else { return String::new() };
    let others = group.iter().filter(|tap| tap.anomaly().is_some()).count() - 1;
    let others = if others == 0 { String::new() } else { format!(", and {others} others are odd") };
    let where_ = if group.len() == 1 { String::new() } else { format!(" in {}{others}", name(tap)) };
    format!("  {}", paint(WARN, &format!("{odd}{where_}")))
}

fn whole(screen: &mut Screen, tap: &TensorSummary, map: Option<&Map>, others: usize) {
    screen.line(&format!("{}  {}", paint(BOLD, &name(tap)), paint(DIM, &format!("{:?} {}", tap.shape, tap.dtype))));
    let text = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let percent =
        |count: usize| format!("{count} of {} ({:.1} %)", tap.count, 100.0 * count as f64 / tap.count.max(1) as f64);
    let mut line = |label: &str, text: String| screen.line(&format!("  {label:<10} {text}"));
    line("range", format!("{} to {}; mean {}, RMS {}", text(tap.min), text(tap.max), text(tap.mean), text(tap.rms)));
    if let Some(at) = &tap.peak_at {
        line("largest", format!("{} at {at:?}", text(tap.peak())));
    }
    line("zeros", percent(tap.zeros));
    if tap.not_finite > 0 {
        line("not finite", paint(WARN, &percent(tap.not_finite)));
    }
    let dots = if tap.first.len() < tap.count { " .." } else { "" };
    line("first", tap.first.iter().map(|value| number(*value)).collect::<Vec<_>>().join("  ") + dots);
    if others > 0 {
        line("also", format!("at {others} other steps (--step N)"));
    }
    match map {
        Some(map) => {
            screen.line("");
            draw(screen, map);
        }
        None if tap.shape.len() > 3 => {
            line("no map", "more axes than the tap has: of a batch, --sequence N".to_owned())
        }
        None => {}
    }
}

fn draw(screen: &mut Screen, map: &Map) {
    let top = map.rms.iter().flatten().flatten().copied().fold(0.0, f64::max);
    map.head.iter().for_each(|head| screen.line(&paint(DIM, &format!("         head {head}"))));
    for (row, cells) in map.rms.iter().enumerate() {
        let cells: String = cells.iter().map(|cell| shade_character(*cell, top)).collect();
        screen.line(&format!("  {:>6} |{cells}|", row * map.positions_each));
    }
    let several = |count: usize| if count == 1 { String::new() } else { format!(", {count} together") };
    screen.line(&paint(
        DIM,
        &format!(
            "         positions of this step downwards{}; {} to the right{}; '{}' is RMS {}, blank zero",
            several(map.positions_each),
            map.across,
            several(map.columns_each),
            SHADES[SHADES.len() - 1],
            number(top),
        ),
    ));
}

fn shade_character(rms: Option<f64>, top: f64) -> char {
    match rms {
        None => NOT_FINITE,
        Some(0.0) => NOTHING,
        Some(rms) => SHADES[((rms / top * SHADES.len() as f64) as usize).min(SHADES.len() - 1)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layer_is_found_wherever_it_stands_in_a_name() {
        assert_eq!(split("layers.12.q"), ("layers.", Some(12), ".q"));
        assert_eq!(split("vision.layers.0.h"), ("vision.layers.", Some(0), ".h"));
        assert_eq!(split("logits"), ("logits", None, ""));
        assert_eq!(split("layers.x.q"), ("layers.x.q", None, ""));
    }

    #[test]
    fn shades_tell_zero_small_large_and_not_finite_apart() {
        assert_eq!(
            [Some(0.0), Some(1e-9), Some(5.0), Some(9.0), None].map(|v| shade_character(v, 9.0)),
            [' ', '.', '*', '@', '!']
        );
    }
}
