//! Decides which keys a query sees: causal, sliding-window and padding masks.

use std::ops::Range;

/// Which keys a query sees.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Mask<'a> {
    /// Whether keys after the query are hidden.
    pub causal: bool,
    /// How many keys a query sees at most, its own position included.
    pub window: Option<usize>,
    /// For each key, 1 for a token and 0 for padding; keys beyond the slice count as padding.
    pub padding: Option<&'a [u8]>,
}

impl Mask<'_> {
    /// Whether the query at position `query` sees the key at position `key`, both counted from the first key.
    ///
    /// Source: transformers 4.57, masking_utils.
    ///
    /// ```
    /// use firstdiff_core::Mask;
    /// let mask = Mask { causal: true, window: Some(3), padding: None };
    /// let seen: Vec<usize> = (0..9).filter(|&key| mask.visible(5, key)).collect();
    /// assert_eq!(seen, [3, 4, 5]);
    /// ```
    pub fn visible(&self, query: usize, key: usize) -> bool {
        let token = self.padding.is_none_or(|padding| padding.get(key).is_some_and(|&real| real != 0));
        token && self.visible_range(query).contains(&key)
    }

    /// The keys that the query at position `query` sees where nothing is padding.
    pub(crate) fn visible_range(&self, query: usize) -> Range<usize> {
        // As transformers' sliding_window_overlay: key > query - window.
        let first = self.window.map_or(0, |window| (query + 1).saturating_sub(window));
        first..if self.causal { query + 1 } else { usize::MAX }
    }
}
