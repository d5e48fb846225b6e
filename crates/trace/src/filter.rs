//! Selects what is recorded: the taps, steps and token positions of `FIRSTDIFF_TAPS`, `_STEPS` and `_ROWS`.

use std::ops::RangeInclusive;

use crate::meta::{NamedRows, Rows};
use crate::tap::{Site, matches};

/// The selection; by default everything.
#[derive(Debug)]
pub(crate) struct Filter {
    pub(crate) taps: String,
    steps: Vec<RangeInclusive<u64>>,
    rows: Rows,
    /// The lists as given, for the error when nothing was recorded.
    given: String,
}

impl Default for Filter {
    fn default() -> Filter {
        Filter { taps: "*".into(), steps: Vec::new(), rows: Rows::Named(NamedRows::All), given: String::new() }
    }
}

impl Filter {
    /// Selects steps: numbers and ranges, `0,2-5`; an empty text selects all.
    pub(crate) fn only_steps(&mut self, text: &str) -> Result<(), String> {
        self.steps = if text.is_empty() { Vec::new() } else { steps(text)? };
        self.note("FIRSTDIFF_STEPS", text);
        Ok(())
    }

    /// Selects token positions in every step: `all`, `last`, or a list; an empty text selects all.
    pub(crate) fn only_rows(&mut self, text: &str) -> Result<(), String> {
        self.rows = if text.is_empty() { Rows::Named(NamedRows::All) } else { Rows::in_any_order(text)? };
        self.note("FIRSTDIFF_ROWS", text);
        Ok(())
    }

    fn note(&mut self, name: &str, text: &str) {
        if !text.is_empty() {
            self.given += &format!(" {name}='{text}'");
        }
    }

    pub(crate) fn selects(&self, name: &str, step: u32) -> bool {
        (self.steps.is_empty() || self.steps.iter().any(|range| range.contains(&u64::from(step))))
            && matches(name, &self.taps)
    }

    /// The axis and the positions to keep, of a tensor with `tokens` positions. `None` keeps the whole tensor: if all positions are selected, or the
    /// position axis is uncertain. It is uncertain if the shape is not the vocabulary's, if the first two axes have the same length, or if there are three
    /// axes (heads may be first) and `tokens` is not known.
    pub(crate) fn positions(&self, site: Site, shape: &[usize], tokens: Option<usize>) -> Option<(usize, Vec<usize>)> {
        let axis = site.position_axis();
        let in_order =
            shape.len() == site.axes().len() && shape[0] != shape[1] && (shape.len() < 3 || tokens.is_some());
        let extent = *shape.get(axis).filter(|_| in_order)?;
        let mut kept = match &self.rows {
            Rows::Named(NamedRows::All) => return None,
            Rows::Named(NamedRows::Last) => vec![extent.checked_sub(1)?],
            Rows::List(list) => list.iter().copied().filter(|&row| row < extent).collect(),
        };
        kept.sort_unstable();
        kept.dedup();
        (tokens.is_none_or(|tokens| tokens == extent) && kept.len() < extent).then_some((axis, kept))
    }

    /// The selection in words, unless it is everything.
    pub(crate) fn description(&self) -> Option<String> {
        let less = self.taps != "*" || !self.given.is_empty();
        less.then(|| format!("FIRSTDIFF_TAPS='{}'{}", self.taps, self.given))
    }
}

fn steps(text: &str) -> Result<Vec<RangeInclusive<u64>>, String> {
    let number = |digits: &str| {
        let plain = !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit());
        // A number too large for any step selects none.
        plain.then(|| digits.parse().unwrap_or(u64::MAX))
    };
    let range = |part: &str| {
        let part = part.trim_start_matches(' ');
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (number(first)?, number(last)?);
        (first <= last).then_some(first..=last)
    };
    let all: Option<Vec<_>> = text.split(',').map(range).collect();
    all.ok_or_else(|| format!("'{text}' is no list of steps such as 0,2-5"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_steps() {
        let mut filter = Filter::default();
        let has = |filter: &Filter| (0..8).filter(|&step| filter.selects("h0", step)).collect::<Vec<u32>>();
        assert_eq!(has(&filter).len(), 8);
        for (text, due) in
            [("0", &[0][..]), ("0,2-3", &[0, 2, 3]), (" 1, 6-99999999999999999999", &[1, 6, 7]), ("007", &[7])]
        {
            filter.only_steps(text).unwrap();
            assert_eq!(has(&filter), due, "{text}");
        }
        for bad in ["3-", "-1", "x", "0,", ",0", "3-2", "0 ", "0;1", "1-2-3", "+1", " "] {
            assert!(filter.only_steps(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn positions_are_cut_only_where_their_axis_is_known() {
        let mut filter = Filter::default();
        assert_eq!(filter.positions(Site::H, &[5, 8], None), None);
        filter.only_rows("last").unwrap();
        assert_eq!(filter.positions(Site::H, &[5, 8], None), Some((0, vec![4])));
        assert_eq!(filter.positions(Site::Probs, &[2, 5, 5], Some(5)), Some((1, vec![4])));
        for (site, shape) in
            [(Site::H, &[1, 5, 8][..]), (Site::Q, &[5, 16]), (Site::Q, &[5, 5, 8]), (Site::H, &[8]), (Site::H, &[1, 8])]
        {
            assert_eq!(filter.positions(site, shape, None), None, "{shape:?}");
        }
        assert_eq!(filter.positions(Site::Q, &[2, 5, 8], Some(5)), None, "two tokens are not the prompt");
        assert_eq!(filter.positions(Site::Q, &[5, 2, 8], None), None, "heads may stand first");
        assert_eq!(filter.positions(Site::Q, &[5, 2, 8], Some(5)), Some((0, vec![4])));
        filter.only_rows("4,0,9").unwrap();
        assert_eq!(filter.positions(Site::H, &[5, 8], Some(5)), Some((0, vec![0, 4])));
        filter.only_rows("9").unwrap();
        assert_eq!(filter.positions(Site::H, &[5, 8], Some(5)), Some((0, vec![])));
        assert!(filter.only_rows("first").is_err() && filter.only_rows("1,").is_err());
    }
}
