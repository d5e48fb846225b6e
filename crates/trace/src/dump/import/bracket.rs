//! Parses tensors printed as nested brackets, in which `...` may replace elements: the output of ggml's debug prints and of PyTorch's repr.

use super::{Item, KnownElements};
use crate::element::element_count;

/// Parses a tensor that NumPy or PyTorch printed: `[[..] ..]`, `tensor([..], dtype=..)`, `array([..])`. If dots replace values and the extents `shape` are
/// not known, only the first values are kept.
pub(super) fn parse_printed(text: &str, name: &str, shape: Option<&[usize]>) -> Option<Item> {
    let text = text.trim();
    let inside = ["tensor(", "array("].into_iter().find_map(|word| text.strip_prefix(word));
    let (own, gap, rest) = extents(inside.unwrap_or(text))?;
    let behind = rest.trim();
    if (inside.is_none() && !behind.is_empty()) || (inside.is_some() && !behind.starts_with([',', ')'])) {
        return None;
    }
    let body = inside.unwrap_or(text);
    let body = &body[..body.len() - rest.len()];
    if !gap {
        let values = elements(body, &own)?.into_iter().map(|(_, value)| value).collect();
        return Item::printed(
            name,
            shape.filter(|shape| element_count(shape) == element_count(&own)).map_or(own.clone(), <[usize]>::to_vec),
            values,
        );
    }
    let found = shape.and_then(|shape| elements(body, shape)).or_else(|| {
        let mut tokens = Tokens(body.trim_start_matches(|c: char| c == '[' || c.is_whitespace()));
        let first: Vec<f64> = std::iter::from_fn(|| tokens.next().and_then(number)).collect();
        (!first.is_empty()).then(|| first.into_iter().enumerate().collect())
    })?;
    let (elements, values): (Vec<usize>, Vec<f64>) = found.into_iter().unzip();
    Item::part(name, KnownElements { elements, shape: shape.map(<[usize]>::to_vec), sum: None }, values)
}

/// The deepest nesting that is read: more axes than any tensor has.
const MAX_DEPTH: usize = 8;

/// The extents of the brackets at the beginning of `text`, from the first list of each depth; whether elements are left out; and the text after it.
fn extents(text: &str) -> Option<(Vec<usize>, bool, &str)> {
    let mut tokens = Tokens(text);
    let (mut shape, mut closed, mut depth, mut gap) = (Vec::new(), Vec::new(), 0usize, false);
    loop {
        let token = tokens.next()?;
        if token == "]" {
            depth = depth.checked_sub(1)?;
            closed[depth] = true;
            if depth == 0 {
                return Some((shape, gap, tokens.0));
            }
            continue;
        }
        gap |= token == "...";
        if token != "..." && depth > 0 && !closed[depth - 1] {
            shape[depth - 1] += 1;
        }
        match token {
            "[" => depth += 1,
            _ if depth == 0 => return None,
            _ => {}
        }
        if depth > shape.len() {
            if depth > MAX_DEPTH {
                return None;
            }
            shape.push(0);
            closed.push(false);
        }
    }
}

/// The elements of a printed tensor of `shape`, as row-major index and value. `None` where the text does not fit the shape.
pub(super) fn elements(text: &str, shape: &[usize]) -> Option<Vec<(usize, f64)>> {
    let mut tokens = Tokens(text);
    let mut out = Vec::new();
    if shape.len() > MAX_DEPTH {
        return None;
    }
    if shape.is_empty() {
        return Some(vec![(0, number(text.trim())?)]);
    }
    tokens.list(shape, 0, &mut out)?;
    Some(out)
}

/// The text that is not parsed yet.
struct Tokens<'a>(&'a str);

impl<'a> Tokens<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let text = self.0.trim_start_matches(|c: char| c.is_whitespace() || c == ',');
        let first = text.chars().next()?;
        let length = match first {
            '[' | ']' => 1,
            _ if text.starts_with("...") => 3,
            _ => text.find(|c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']')).unwrap_or(text.len()),
        };
        let (token, rest) = text.split_at(length);
        self.0 = rest;
        Some(token)
    }

    /// Parses a list of `shape[0]` children, of which those in the middle may be left out.
    fn list(&mut self, shape: &[usize], base: usize, out: &mut Vec<(usize, f64)>) -> Option<()> {
        if self.next()? != "[" {
            return None;
        }
        self.rest(shape, base, out)
    }

    fn rest(&mut self, shape: &[usize], base: usize, out: &mut Vec<(usize, f64)>) -> Option<()> {
        let (&extent, inner) = shape.split_first()?;
        let stride = element_count(inner)?;
        // The index of children after the dots is known only once all are counted; until then they are numbered as if none were left out.
        let (mut count, mut gap) = (0usize, None);
        loop {
            let at = base.checked_add(count.checked_mul(stride)?)?;
            match self.next()? {
                "]" => break,
                "..." if gap.is_none() => {
                    gap = Some(out.len());
                    continue;
                }
                "[" if !inner.is_empty() => self.rest(inner, at, out)?,
                token if inner.is_empty() => out.push((at, number(token)?)),
                _ => return None,
            }
            count += 1;
        }
        let left_out = extent.checked_sub(count).filter(|left_out| gap.is_some() || *left_out == 0)?;
        let by = left_out.checked_mul(stride)?;
        let behind = gap.unwrap_or(out.len());
        out[behind..].iter_mut().try_for_each(|(place, _)| {
            *place = place.checked_add(by)?;
            Some(())
        })
    }
}

/// Parses a number as C, Python, Rust or JavaScript print it.
pub(super) fn number(text: &str) -> Option<f64> {
    let text = text.strip_suffix(['f', 'F']).filter(|t| !t.ends_with(['n', 'N', 'i', 'I'])).unwrap_or(text);
    match text.to_ascii_lowercase().as_str() {
        "infinity" | "+infinity" | "1.#inf" => Some(f64::INFINITY),
        "-infinity" | "-1.#inf" => Some(f64::NEG_INFINITY),
        "-nan" | "1.#qnan" | "-1.#ind" | "nan(ind)" | "-nan(ind)" => Some(f64::NAN),
        _ => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_out_is_known() {
        let text = "[ [ 1.0, 2.0, ..., 8.0 ],\n ...,\n [ 3.0, 4.0, ..., 9.0 ], ]";
        let found = elements(text, &[5, 8]).unwrap();
        assert_eq!(found, [(0, 1.0), (1, 2.0), (7, 8.0), (32, 3.0), (33, 4.0), (39, 9.0)]);
        assert_eq!(elements("[1, 2, ...]", &[9]).unwrap(), [(0, 1.0), (1, 2.0)]);
    }

    #[test]
    fn other_shapes_are_refused() {
        for (text, shape) in [
            ("[1, 2]", vec![3]),
            ("[[1], [2]]", vec![2]),
            ("[1, 2, ..., 3]", vec![2]),
            ("[1, 2", vec![2]),
            ("", vec![1]),
        ] {
            assert_eq!(elements(text, &shape), None, "{text}");
        }
        assert_eq!(elements(&"[".repeat(100_000), &[1, 1]), None);
    }
}
