//! Reads tensors from text with headings: `layer 0 q: 0.1 0.2 ...`, or a heading followed by lines of values.

use std::path::Path;

use std::collections::HashMap;

use super::bracket::number;
use super::{Imported, Item, KnownElements, text};
use crate::names;

/// In bytes: longer text is never a name, and the search for one in lines of megabytes would take hours.
const LONGEST: usize = 200;

/// A heading and the text below it.
#[derive(Debug, Default)]
struct Section {
    label: String,
    body: String,
    /// Opening brackets that are not closed yet.
    open: usize,
}

/// Reads `text`: one tensor, or several under headings. Other text gives no tensor, and a note with the first line that is not a number.
pub(super) fn read(text: &str, name: &str, path: &Path) -> Imported {
    match text::tensor(text, name, None) {
        Ok(item) => Imported { items: vec![item], ..Imported::default() },
        Err(why) => read_sections(text, name).unwrap_or_else(|| nothing(path, &why)),
    }
}

fn nothing(path: &Path, why: &str) -> Imported {
    let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Imported { notes: vec![format!("{file}: not read: {why}")], ..Imported::default() }
}

/// Reads the tensors of `text` by their headings; `None` if numbers come before any heading, or there are no numbers. A single tensor takes the name of the
/// file, unless only its heading is the name of a tap.
fn read_sections(text: &str, stem: &str) -> Option<Imported> {
    let sections = sections(text)?;
    let alone = sections.len() == 1;
    let mut seen: HashMap<String, u32> = HashMap::new();
    let mut items = Vec::new();
    for section in &sections {
        let (label, shape) = shaped(&section.label);
        let (said, label) = split_step(label);
        let name = if alone && (is_tap_name(stem) || !is_tap_name(label)) { stem } else { label };
        let Some(item) = item(name, &section.body, shape.as_deref()) else { continue };
        // A repeated name is the next forward pass.
        let step = seen.entry(name.to_owned()).and_modify(|n| *n += 1).or_insert(0);
        items.push(item.stepped(said.unwrap_or(*step)));
    }
    let first = sections.first()?.label.escape_debug().to_string();
    let note = match alone {
        true => format!("its first line ('{first}') is taken for a heading"),
        false => format!("{} tensors, by the headings in it ('{first}' ...)", items.len()),
    };
    (!items.is_empty()).then(|| Imported { items, notes: vec![format!("{stem}: {note}")], ..Imported::default() })
}

fn is_tap_name(name: &str) -> bool {
    names::built_in(name).is_some()
}

/// The sections that are not empty.
fn sections(text: &str) -> Option<Vec<Section>> {
    let mut sections: Vec<Section> = Vec::new();
    let mut layer = "";
    for line in text::lines(text).map(|(_, line)| line) {
        if let Some(last) = sections.last_mut().filter(|last| last.open > 0) {
            last.push_line(line);
        } else if is_values(line) {
            sections.last_mut()?.push_line(line);
        } else {
            let (label, rest) = heading(line)?;
            if rest.is_empty() && names_a_layer(label) {
                layer = label;
            }
            let below = !layer.is_empty() && !label.contains(|c: char| c.is_ascii_digit()) && !is_tap_name(label);
            let label = if below { format!("{layer} {label}") } else { label.to_owned() };
            let mut section = Section { label, ..Section::default() };
            section.push_line(rest);
            sections.push(section);
        }
    }
    sections.retain(|section| !section.body.trim().is_empty());
    Some(sections)
}

impl Section {
    fn push_line(&mut self, line: &str) {
        self.body += line;
        self.body.push('\n');
        let count = |c: char| line.matches(c).count();
        self.open = (self.open + count('[')).saturating_sub(count(']'));
    }
}

/// Whether `line` holds numbers only, apart from dots for omitted values.
fn is_values(line: &str) -> bool {
    let (before, _) = before_dots(line);
    text::parse(before).is_some() || line.starts_with("[[") || opens_brackets(line)
}

fn opens_brackets(text: &str) -> bool {
    let inside = ["tensor(", "array("].into_iter().find_map(|word| text.strip_prefix(word)).unwrap_or(text);
    inside
        .trim_start_matches(['[', ' '])
        .starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.' | 'n' | 'i'))
        && inside.starts_with('[')
}

/// The text before the dots of omitted values, and whether there are any.
fn before_dots(text: &str) -> (&str, bool) {
    let dots = |mark| text.find(mark);
    // `1..` is no number either; `..` within a name does not count.
    match dots("...").or_else(|| dots("\u{2026}")).or_else(|| dots(" ..").map(|at| at + 1)) {
        Some(at) => (text[..at].trim_end().trim_end_matches(','), true),
        None => (text, false),
    }
}

/// The words that name a tensor, and the numbers after them on the line.
fn heading(line: &str) -> Option<(&str, &str)> {
    let marks = line.match_indices([':', '=']).take_while(|(at, _)| *at < LONGEST).map(|(at, _)| line.split_at(at));
    for (label, rest) in marks {
        let rest = rest[1..].trim();
        if has_a_word(label) && (rest.is_empty() || opens_brackets(rest) || are_values(rest)) {
            return Some((trimmed(label), rest));
        }
    }
    // `q 0.1 0.2 0.3`: the numbers after the last word.
    let words = || line.split_whitespace().map(|word| (word.as_ptr() as usize - line.as_ptr() as usize, word));
    let last = words().rfind(|(_, word)| number(word).is_none() && !word.contains(".."))?;
    let (label, rest) = line.split_at(last.0 + last.1.len());
    match (has_a_word(label), are_values(rest.trim())) {
        (true, true) => Some((trimmed(label), rest.trim())),
        (true, false) => Some((trimmed(line), "")),
        (false, _) => None,
    }
}

/// Whether these are values and not a count: several numbers, or one with a decimal point.
fn are_values(rest: &str) -> bool {
    let (before, _) = before_dots(rest);
    let mut numbers = before.split([' ', ',', ';', '\t']).filter(|part| !part.is_empty()).peekable();
    let first = numbers.peek().copied().unwrap_or_default();
    let all: Option<Vec<f64>> = numbers.map(number).collect();
    all.is_some_and(|all| all.len() > 1 || (all.len() == 1 && first.contains(['.', 'e', 'E'])))
}

fn has_a_word(label: &str) -> bool {
    label
        .split(|c: char| c.is_whitespace() || "=-*#[](){}<>|:".contains(c))
        .any(|word| word.starts_with(char::is_alphabetic))
}

fn trimmed(label: &str) -> &str {
    label.trim_matches(|c: char| c.is_whitespace() || "=-*#:|<>~,".contains(c))
}

fn names_a_layer(label: &str) -> bool {
    let rest = ["layers", "layer", "Layer", "LAYER", "block", "Block", "blk"]
        .into_iter()
        .find_map(|word| label.strip_prefix(word));
    let digits = rest.map(|rest| rest.trim_start_matches([' ', '.', '_', '-', '#', '[']).trim_end_matches(']'));
    digits.is_some_and(|digits| !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()))
}

/// Splits a label into its step and the name: `[step 3] h0`, `step 3: h0`.
fn split_step(label: &str) -> (Option<u32>, &str) {
    let parts = label.trim_start_matches('[').strip_prefix("step").and_then(|rest| {
        let rest = rest.trim_start_matches([' ', '=', ':']);
        let end = rest.find(|c: char| !c.is_ascii_digit())?;
        let name = rest[end..].trim_start_matches([']', ' ', ':', ',', '-', '|']);
        Some((rest[..end].parse().ok()?, Some(name).filter(|name| name.len() < rest.len() - end && has_a_word(name))?))
    });
    parts.map_or((None, label), |(step, name)| (Some(step), name))
}

/// Splits the extents off the end of a label: `q [12, 8, 8]`, `q shape=(12, 64)`, `q torch.Size([12, 64])`.
fn shaped(label: &str) -> (&str, Option<Vec<usize>>) {
    let inside = label.trim_end_matches([']', ')', '}']);
    let Some(at) = inside.rfind(['[', '(', '{']).filter(|_| inside.len() < label.len()) else { return (label, None) };
    let extents: Option<Vec<usize>> =
        inside[at + 1..].split([',', ' ', 'x']).filter(|part| !part.is_empty()).map(|part| part.parse().ok()).collect();
    match extents.filter(|extents| !extents.is_empty() && inside[at + 1..].contains([',', 'x', ' '])) {
        Some(extents) => {
            let name = trimmed(label[..at].trim_end_matches(['[', '(', '{']));
            let name = ["torch.Size", "shape", "size", "dims"]
                .into_iter()
                .find_map(|word| name.strip_suffix(word))
                .unwrap_or(name);
            (trimmed(name), Some(extents))
        }
        None => (label, None),
    }
}

fn item(name: &str, body: &str, shape: Option<&[usize]>) -> Option<Item> {
    if let Ok(item) = text::tensor(body, name, shape) {
        return Some(item);
    }
    let (before, true) = before_dots(body.trim()) else { return None };
    let first = text::tensor(before, name, None).ok()?;
    let values = first.tensor.values().to_f64();
    Item::part(
        name,
        KnownElements { elements: (0..values.len()).collect(), shape: shape.map(<[usize]>::to_vec), sum: None },
        values,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(String, u32, Vec<usize>, usize)> {
        let read = read_sections(text, "run").unwrap_or_default();
        let one = |i: Item| (i.name, i.step, i.tensor.shape().to_vec(), i.part.map_or(0, |p| p.elements.len()));
        read.items.into_iter().map(one).collect()
    }

    fn names(text: &str) -> Vec<String> {
        found(text).into_iter().map(|(name, ..)| name).collect()
    }

    #[test]
    fn a_step_before_the_name() {
        for (label, due) in [
            ("[step 0] h0", (Some(0), "h0")),
            ("step 12: layers.0.q", (Some(12), "layers.0.q")),
            ("[step=3] layer 1 k", (Some(3), "layer 1 k")),
            ("step3", (None, "step3")),
            ("steps 4", (None, "steps 4")),
            ("step2norm", (None, "step2norm")),
            ("h0", (None, "h0")),
        ] {
            assert_eq!(split_step(label), due, "{label}");
        }
        let read =
            read_sections("[step 0] h0: 0.5 0.25\n[step 0] logits: 1.5 2.5\n[step 2] h0: 0.75 1.25\n", "log").unwrap();
        let named: Vec<_> = read.items.iter().map(|item| (item.name.as_str(), item.step)).collect();
        assert_eq!(named, [("h0", 0), ("logits", 0), ("h0", 2)]);
    }

    #[test]
    fn first_values_of_many_taps_token_by_token() {
        let text = "=== pos 0 token 1\nembd: -0.12 0.5 ...\nlayer 0 q: 1.5 2 ..\n=== pos 1 token 403\nembd: 0.25 -1 ...\nlayer 0 q: 3.5 4.5 ...\n";
        let due = [("embd", 0), ("layer 0 q", 0), ("embd", 1), ("layer 0 q", 1)];
        let found = found(text);
        assert_eq!(found.len(), due.len());
        for ((name, step, _, part), (due, due_step)) in found.into_iter().zip(due) {
            assert_eq!((name.as_str(), step, part), (due, due_step, 2));
        }
    }

    #[test]
    fn a_heading_and_its_lines() {
        assert_eq!(found("layer 1 output:\n0.5\n-1.5\n2\n"), [("run".into(), 0, vec![3], 0)]);
        assert_eq!(found("layers.1.h\n0.5 1\n-1.5 2\n"), [("layers.1.h".into(), 0, vec![2, 2], 0)]);
        assert_eq!(names("h0\n0.5\n1\nlogits\n0.25\n3\n"), ["h0", "logits"]);
        assert_eq!(
            names("layer 0:\nq: 0.5 1\nk: 0.5 1\nlayer 1:\nq: 1.5 2\nlogits: 1 2\n"),
            ["layer 0 q", "layer 0 k", "layer 1 q", "logits"]
        );
        assert_eq!(names("layer 0 q 0.1 0.2\nlayer 0 k 0.5 0.25\nthreads 4\n"), ["layer 0 q", "layer 0 k"]);
    }

    #[test]
    fn printed_tensors_under_headings() {
        let text = "q = tensor([[0.1, 0.2],\n        [0.3, 0.4]], device='cuda:0')\nk [2, 9]: [[1, 2, 3, ..., 7, 8, 9],\n [1, 2, 3, ..., 7, 8, 9]]\n";
        assert_eq!(found(text), [("q".into(), 0, vec![2, 2], 0), ("k".into(), 0, vec![12], 12)]);
        assert_eq!(
            found("q (2, 3): 0.1 0.2 0.3 0.4 0.5 0.6\nk shape=(1, 2): 3 4\n"),
            [("q".into(), 0, vec![2, 3], 0), ("k".into(), 0, vec![1, 2], 0)]
        );
    }

    #[test]
    fn what_is_no_heading_is_refused() {
        for text in ["0.5\nloading\n1.5\n", "1.0000e-02 *\n0.5\n", "loading the model\nthreads: 4\n", "", "***\n1 2\n"]
        {
            assert!(read_sections(text, "run").is_none(), "{text}");
        }
    }
}
