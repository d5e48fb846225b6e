//! Which numbers does a text hold? `v`, `i v`, `i: v`, `[i] = v`, or rows of values.

use std::path::Path;

use super::{Item, Part, Read};

/// One line's meaning.
enum Line {
    Indexed(usize, f64),
    Values(Vec<f64>),
}

/// Reads the numbers of `text` as one tensor. Text that is none gives no tensor, and a note that says which line is no number.
pub(super) fn read(text: &str, name: &str, path: &Path) -> Read {
    let lines = text.lines().map(str::trim).enumerate();
    let lines = lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#') && !line.starts_with("//"));
    let mut parsed = Vec::new();
    for (number, line) in lines {
        match parse(line) {
            Some(line) => parsed.push(line),
            None => return nothing(path, &format!("line {} is not a number", number + 1)),
        }
    }
    match item(name, parsed) {
        Some(item) => Read { items: vec![item], ..Read::default() },
        None => nothing(path, "no numbers in it, or lines of different kinds"),
    }
}

fn nothing(path: &Path, why: &str) -> Read {
    let file = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    Read { notes: vec![format!("{file}: not read: {why}")], ..Read::default() }
}

fn parse(line: &str) -> Option<Line> {
    if let Some((index, value)) = line.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        let value = value.trim().trim_start_matches(['=', ':']).trim();
        if let (Ok(index), Some(value)) = (index.trim().parse(), number(value)) {
            return Some(Line::Indexed(index, value));
        }
    }
    for mark in [": ", ":", " = ", "="] {
        if let Some((index, value)) = line.split_once(mark) {
            return Some(Line::Indexed(index.trim().parse().ok()?, number(value.trim())?));
        }
    }
    let bare = line.trim_matches(['[', ']', '(', ')', ',']);
    let values: Option<Vec<f64>> = bare.split([' ', ',', ';', '\t']).filter(|p| !p.is_empty()).map(number).collect();
    values.filter(|v| !v.is_empty()).map(Line::Values)
}

/// A number as C, Python, Rust and JavaScript print it.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.strip_suffix(['f', 'F']).filter(|t| !t.ends_with(['n', 'N', 'i', 'I'])).unwrap_or(text);
    match text.to_ascii_lowercase().as_str() {
        "infinity" | "+infinity" | "1.#inf" => Some(f64::INFINITY),
        "-infinity" | "-1.#inf" => Some(f64::NEG_INFINITY),
        "-nan" | "1.#qnan" | "-1.#ind" | "nan(ind)" | "-nan(ind)" => Some(f64::NAN),
        _ => text.parse().ok(),
    }
}

fn item(name: &str, lines: Vec<Line>) -> Option<Item> {
    if lines.is_empty() {
        return None;
    }
    let mut indexed = Vec::new();
    let mut rows = Vec::new();
    for line in lines {
        match line {
            Line::Indexed(index, value) => indexed.push((index, value)),
            Line::Values(values) => rows.push(values),
        }
    }
    if rows.is_empty() {
        return from_indexed(name, indexed);
    }
    if !indexed.is_empty() {
        return None;
    }
    // Two columns of which the first counts: `i v`.
    if rows.len() > 1 && rows.iter().enumerate().all(|(i, row)| row.len() == 2 && row[0] == (i as f64) + rows[0][0]) {
        let pairs = rows.iter().map(|row| (row[0] >= 0.0).then_some((row[0] as usize, row[1])));
        return from_indexed(name, pairs.collect::<Option<_>>()?);
    }
    let (count, width) = (rows.len(), rows[0].len());
    let shape = match (rows.iter().all(|row| row.len() == width), count, width) {
        (true, count, 1) => vec![count],
        (true, 1, width) => vec![width],
        (true, count, width) => vec![count, width],
        // Lines that are broken where the page ends.
        (false, ..) => vec![rows.iter().map(Vec::len).sum()],
    };
    Item::printed(name, shape, rows.concat())
}

fn from_indexed(name: &str, pairs: Vec<(usize, f64)>) -> Option<Item> {
    let counts = pairs.iter().enumerate().all(|(i, (index, _))| i == *index);
    // An index that begins again in every row.
    let width = pairs.iter().skip(1).position(|(index, _)| *index == 0).map_or(pairs.len(), |at| at + 1);
    let in_rows =
        pairs.iter().enumerate().all(|(i, (index, _))| i % width == *index) && pairs.len().is_multiple_of(width);
    if in_rows && !counts {
        return Item::printed(
            name,
            vec![pairs.len() / width, width],
            pairs.into_iter().map(|(_, value)| value).collect(),
        );
    }
    let distinct: std::collections::HashSet<usize> = pairs.iter().map(|(index, _)| *index).collect();
    if distinct.len() < pairs.len() {
        return None;
    }
    let (elements, values): (Vec<usize>, Vec<f64>) = pairs.into_iter().unzip();
    match counts {
        true => Item::printed(name, vec![values.len()], values),
        false => Item::part(name, Part { elements, shape: None, sum: None }, values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> Item {
        read(text, "x", Path::new("x.txt")).items.remove(0)
    }

    #[test]
    fn forms_of_lines() {
        for text in [
            "1.5\n-2\nnan\n",
            "0 1.5\n1 -2\n2 nan",
            "0: 1.5\n1: -2\n2: NaN",
            "[0] = 1.5\n[1] = -2\n[2] = nan",
            "1.5, -2, nan",
        ] {
            let item = one(text);
            assert_eq!(item.tensor.shape(), [3], "{text}");
            let values = item.tensor.values().to_f64();
            assert!(values[0] == 1.5 && values[1] == -2.0 && values[2].is_nan(), "{text}");
        }
        assert_eq!(one("1 2 3\n4 5 6\n").tensor.shape(), [2, 3]);
        assert_eq!(one("0 5\n1 6\n").tensor.values().to_f64(), [5.0, 6.0]);
        assert_eq!(one("1.5f\n-inf\n").tensor.values().to_f64(), [1.5, f64::NEG_INFINITY]);
    }

    #[test]
    fn indices_with_gaps_are_a_part() {
        assert_eq!(one("[0] = 1\n[1] = 2\n[0] = 3\n[1] = 4").tensor.shape(), [2, 2]);
        assert!(read("[0] = 1\n[0] = 3\n[1] = 4", "x", Path::new("x.txt")).items.is_empty());
        assert_eq!(one("[3] = 1.5\n[7] = 2.5").part.unwrap().elements, [3, 7]);
    }

    #[test]
    fn prose_is_no_tensor() {
        let read = read("loading model\n1.5\n", "x", Path::new("x.txt"));
        assert!(read.items.is_empty() && read.notes[0].contains("line 1"));
    }
}
