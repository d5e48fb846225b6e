//! Defines the layouts in which a tensor's memory is read to match another's, and their names.

use std::fmt;

use firstdiff_trace::QkRows;

use crate::layout::strided::{StridedLayout, rows_in_words};

/// How the candidate's memory was read to match the reference.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub enum Layout {
    /// As it stands.
    Same,
    /// Axes merged, split, or of length 1 added: the same memory under another shape.
    Reshaped,
    /// Axes in another order, as its own shape shows: axis i of the reference is axis `.0[i]` of the candidate.
    Permuted(Vec<usize>),
    /// In another order, or padded, as only its content shows.
    Stored(StridedLayout),
    /// Q or K with rows of each head in the other RoPE order than the reference's.
    Rows {
        /// The candidate's order.
        rows: QkRows,
        /// Its axes as in [`Layout::Permuted`], where its own shape shows them in another order.
        axes: Option<Vec<usize>>,
    },
}

impl Layout {
    /// The RoPE order of the candidate's rows of Q and K, where it is not the reference's.
    pub fn rows(&self) -> Option<QkRows> {
        match self {
            Layout::Rows { rows, .. } => Some(*rows),
            Layout::Stored(stored) => stored.rows(),
            Layout::Same | Layout::Reshaped | Layout::Permuted(_) => None,
        }
    }

    /// Whether the tensor's own shape lists other extents than its memory has.
    pub fn contradicts_shape(&self) -> bool {
        matches!(self, Layout::Stored(stored) if stored.against_shape())
    }

    /// Whether values are in other places than the witness's, or the shape lists other extents than memory has: only the content shows such a layout.
    pub fn needs_confirming(&self) -> bool {
        match self {
            Layout::Same | Layout::Reshaped => false,
            Layout::Permuted(_) | Layout::Rows { .. } => true,
            Layout::Stored(stored) => stored.moves() || stored.against_shape(),
        }
    }

    /// How many token positions are held and how many are compared, where fewer are.
    pub(crate) fn padding(&self) -> Option<(usize, usize)> {
        if let Layout::Stored(stored) = self { stored.padding() } else { None }
    }

    /// Whether the tensor's own shape allows this layout only.
    pub fn is_shown(&self) -> bool {
        match self {
            Layout::Same | Layout::Permuted(_) => true,
            Layout::Stored(stored) => stored.is_only_layout() && stored.rows().is_none() && self.padding().is_none(),
            Layout::Reshaped | Layout::Rows { .. } => false,
        }
    }

    /// Whether the tensor's own shape lists the extents that are read.
    pub(crate) fn is_of_its_shape(&self) -> bool {
        !matches!(self, Layout::Stored(stored) if !stored.is_only_layout())
    }

    /// In words; `witness` is the name of the other side.
    pub fn words(&self, witness: &str) -> String {
        match self {
            Layout::Same => "same layout".into(),
            Layout::Reshaped => "same memory under another shape".into(),
            Layout::Permuted(order) => format!("its axes are permuted: the {witness}'s are its {order:?}"),
            Layout::Stored(stored) => stored.words(witness),
            Layout::Rows { rows, axes: None } => rows_in_words(*rows, witness),
            Layout::Rows { rows, axes: Some(order) } => {
                format!("{}; {}", Layout::Permuted(order.clone()).words(witness), rows_in_words(*rows, witness))
            }
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words("reference"))
    }
}

/// A line for each other layout in which tensors were read; `witness` is the name of what they were compared with.
pub fn layout_notes(layouts: &[&Layout], witness: &str) -> Vec<String> {
    let mut counts: Vec<(String, usize)> = Vec::new();
    for layout in layouts {
        let words = layout.words(witness);
        let line = match layout {
            Layout::Same | Layout::Reshaped => continue,
            Layout::Rows { .. } => format!("Q and K: {words}; undone in"),
            Layout::Stored(stored) if !stored.moves() => format!("{words}; read so in"),
            _ => format!("{words}; undone, as what follows agrees, in"),
        };
        match counts.iter_mut().find(|(known, _)| *known == line) {
            Some((_, count)) => *count += 1,
            None => counts.push((line, 1)),
        }
    }
    let line = |(line, count): &(String, usize)| format!("{line} {count} tap{}", if *count == 1 { "" } else { "s" });
    const MOST: usize = 4;
    let more = counts.len().saturating_sub(MOST);
    let lines = counts.iter().take(MOST).map(line);
    lines.chain((more > 0).then(|| format!("{more} other layouts were undone too"))).collect()
}
