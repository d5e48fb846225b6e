//! Reads numbers from text: `v`, `i v`, `i: v`, `[i] = v`, or rows of values.

use super::bracket::{self, number};
use super::{Item, KnownElements};
use crate::element::element_count;

/// The meaning of a line.
pub(super) enum Line {
    Indexed(usize, f64),
    Values(Vec<f64>),
}

/// The lines with content, and their line numbers.
pub(super) fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let lines = text.lines().map(str::trim).enumerate();
    lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#') && !line.starts_with("//"))
}

/// Reads `text` as one tensor, with extents known from elsewhere.
///
/// # Errors
/// Says which line is not a number.
pub(super) fn tensor(text: &str, name: &str, shape: Option<&[usize]>) -> Result<Item, String> {
    if let Some(item) = bracket::parse_printed(text, name, shape) {
        return Ok(item);
    }
    let mut table = Table::default();
    for (number, line) in lines(text) {
        table.add(parse(line).ok_or_else(|| format!("line {} is not a number", number + 1))?);
    }
    let item = item(name, table).ok_or("no numbers in it, or lines of different kinds")?;
    match shape.filter(|shape| item.part.is_none() && element_count(shape) == Some(item.tensor.values().len())) {
        Some(shape) => {
            Item::printed(name, shape.to_vec(), item.tensor.values().to_f64()).ok_or_else(|| "not of its shape".into())
        }
        None => Ok(item),
    }
}

pub(super) fn parse(line: &str) -> Option<Line> {
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

/// The numbers of a text in order, and their layout in lines.
#[derive(Default)]
struct Table {
    indexed: Vec<(usize, f64)>,
    values: Vec<f64>,
    /// Line widths: each width, and how many lines in a row have it.
    widths: Vec<(usize, usize)>,
}

impl Table {
    fn add(&mut self, line: Line) {
        match line {
            Line::Indexed(index, value) => self.indexed.push((index, value)),
            Line::Values(values) => {
                match self.widths.last_mut() {
                    Some((width, count)) if *width == values.len() => *count += 1,
                    _ => self.widths.push((values.len(), 1)),
                }
                self.values.extend(values);
            }
        }
    }
}

fn item(name: &str, table: Table) -> Option<Item> {
    let Table { indexed, values, widths } = table;
    if values.is_empty() {
        return if indexed.is_empty() { None } else { from_indexed(name, indexed) };
    }
    if !indexed.is_empty() {
        return None;
    }
    let first = widths[0].0;
    if let Some(shape) = extents(&values[..first], values.len() - first) {
        return Item::printed(name, shape, values[first..].to_vec());
    }
    // Two columns, the first of which counts: `i v`.
    if let [(2, count)] = widths[..]
        && count > 1
        && values.chunks(2).enumerate().all(|(i, row)| row[0] == (i as f64) + values[0])
    {
        let pairs = values.chunks(2).map(|row| (row[0] >= 0.0).then_some((row[0] as usize, row[1])));
        return from_indexed(name, pairs.collect::<Option<_>>()?);
    }
    let shape = match widths[..] {
        [(1, count)] => vec![count],
        [(width, 1)] => vec![width],
        [(width, count)] => vec![count, width],
        // Lines that are wrapped at the page width.
        _ => vec![values.len()],
    };
    Item::printed(name, shape, values)
}

/// The extents in the first line, if their product is the number of values that follow.
fn extents(first: &[f64], held: usize) -> Option<Vec<usize>> {
    let shape: Option<Vec<usize>> =
        first.iter().map(|&x| (x >= 1.0 && x.fract() == 0.0 && x < 1e9).then_some(x as usize)).collect();
    shape.filter(|shape| held >= 16 && element_count(shape) == Some(held))
}

fn from_indexed(name: &str, pairs: Vec<(usize, f64)>) -> Option<Item> {
    let counts = pairs.iter().enumerate().all(|(i, (index, _))| i == *index);
    // An index that starts again in every row.
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
        false => Item::part(name, KnownElements { elements, shape: None, sum: None }, values),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::headed::read;
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
    fn extents_may_stand_first() {
        let values: String = (0..18).map(|i| format!("{i}.5\n")).collect();
        assert_eq!(one(&format!("2 3 3\n{values}")).tensor.shape(), [2, 3, 3]);
        assert_eq!(one(&format!("2 3 4\n{values}")).tensor.shape(), [21]);
        assert_eq!(one("[[1 2]\n [3 4]]").tensor.shape(), [2, 2]);
        assert_eq!(one("[[1, 2, ..., 9],\n ...,\n [3, 4, ..., 9]]").part.unwrap().elements, [0, 1]);
        assert_eq!(one("[1, 2]\n[3, 4]").tensor.shape(), [2, 2]);
    }

    #[test]
    fn prose_is_no_tensor() {
        let read = read("1.5\nloading model\n1.5\n", "x", Path::new("x.txt"));
        assert!(read.items.is_empty() && read.notes[0].contains("line 2"));
    }
}
