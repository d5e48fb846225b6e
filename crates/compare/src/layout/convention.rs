//! Compares the layouts of two sites: whether a dump that stores one site in its layout would store another in this one.

use firstdiff_trace::{QkRows, Site, Tap};

use crate::layout::types::Layout;

/// The site of the vocabulary whose axes a tap has: its own, or that of the products of attention in or to another stack.
pub(crate) fn attention_site(tap: Tap) -> Site {
    match tap.last_site() {
        attends @ (Site::Qk | Site::Scores | Site::Probs) if tap.is_open() && tap.layer.is_some() => attends,
        _ => tap.site,
    }
}

/// The order of a site's axes, and of the rows of Q and K, in the candidate.
#[derive(Clone, Debug)]
pub struct LayoutConvention {
    site: Site,
    /// The axes by name, slowest first, with the same name for query and key/value heads.
    order: String,
    /// Whether that is the vocabulary's order.
    own_order: bool,
    /// Whether its shape lists the axes in another order.
    against_shape: bool,
    /// Whether its shape allows only that order.
    shown: bool,
    rows: Option<QkRows>,
}

impl LayoutConvention {
    /// The convention that a layout of a site follows.
    pub fn new(site: Site, layout: &Layout) -> LayoutConvention {
        let own: String = site.axes().iter().map(|&a| shared_axis_name(a)).collect();
        let (order, own_order, against_shape, shown) = match layout {
            Layout::Stored(stored) => {
                (stored.order(), stored.in_order(), stored.against_shape(), stored.is_only_layout())
            }
            Layout::Permuted(places) | Layout::Rows { axes: Some(places), .. } => {
                let mut axes: Vec<(usize, char)> = places.iter().copied().zip(own.chars()).collect();
                axes.sort_unstable();
                (axes.into_iter().map(|(_, name)| name).collect(), false, false, true)
            }
            _ => (own, true, false, *layout == Layout::Same),
        };
        LayoutConvention { site, order, own_order, against_shape, shown, rows: layout.rows() }
    }

    /// The convention that a layout of a tap follows, also of attention in or to another stack.
    pub(crate) fn from_tap(tap: Tap, layout: &Layout) -> LayoutConvention {
        LayoutConvention::new(attention_site(tap), layout)
    }

    /// Whether its own shape shows the order of its axes, which is not the vocabulary's.
    pub fn is_shown(&self) -> bool {
        self.shown && !self.own_order
    }

    /// Whether two sites show the same order of axes.
    pub fn shows_the_same(&self, other: &LayoutConvention) -> bool {
        self.is_shown() && other.is_shown() && self.order == other.order && self.site != other.site
    }

    /// Whether only the order of the rows of Q and K differs.
    pub fn is_of_rows_alone(&self) -> bool {
        self.own_order && !self.against_shape && self.rows.is_some()
    }

    /// Whether its shape lists the axes in another order than memory holds them.
    pub(crate) fn is_against_its_shape(&self) -> bool {
        self.against_shape
    }

    /// Whether memory has the vocabulary's order, and only the shape lists other extents.
    pub(crate) fn is_of_the_shape_alone(&self) -> bool {
        self.own_order && self.against_shape && self.rows.is_none()
    }

    /// Whether both have the same order of axes and the same order of rows.
    pub fn is_same_order(&self, other: &LayoutConvention) -> bool {
        self.order == other.order && self.rows == other.rows
    }

    /// Whether a dump that stores `other` in its layout is likely to store this one in this layout.
    pub fn follows_from(&self, other: &LayoutConvention) -> bool {
        if self.rows.is_some() && self.rows != other.rows {
            return false;
        }
        match (self.own_order, other.own_order) {
            (true, true) if self.against_shape || other.against_shape => self.against_shape == other.against_shape,
            // Heads are merged in a context: there an order by heads is the mistake, unless others of its kind show that it is not.
            _ => {
                let kind = self.site == other.site || (self.site != Site::Context && self.is_of_a_kind(other));
                (kind && self.order == other.order) || (self.is_reversed() && other.is_reversed())
            }
        }
    }

    /// Whether the layout of `other` contradicts that this one is the dump's own.
    pub(crate) fn speaks_against(&self, other: &LayoutConvention) -> bool {
        let differs = match other.against_shape {
            true => self.shown,
            false => self.own_order && !self.against_shape && !other.own_order,
        };
        differs && self.is_of_a_kind(other)
    }

    /// Whether both are of heads, both of keys, or both of two axes.
    fn is_of_a_kind(&self, other: &LayoutConvention) -> bool {
        let axes = |convention: &LayoutConvention| convention.site.axes().len();
        axes(self) == axes(other) && self.is_of_heads() == other.is_of_heads()
    }

    /// Whether its axes are positions, heads, and elements of a head.
    pub(crate) fn is_of_heads(&self) -> bool {
        matches!(self.site.axes(), ['T', 'H' | 'K', 'd'])
    }

    /// Whether queries stand in the place of keys. With Q and K exchanged, their products are the transposed ones.
    pub(crate) fn exchanges_queries_and_keys(&self) -> bool {
        let at = |axis: char| self.order.find(axis);
        matches!(self.site.axes(), [.., 'T', 'S']) && at('S') < at('T')
    }

    /// Whether all axes are reversed, fastest first; the heads of a context count as one axis or two.
    fn is_reversed(&self) -> bool {
        match self.site {
            Site::Context => matches!(self.order.as_str(), "HdT" | "dHT" | "CT"),
            _ => self.order.chars().rev().eq(self.site.axes().iter().map(|&a| shared_axis_name(a))),
        }
    }
}

fn shared_axis_name(axis: char) -> char {
    if axis == 'K' { 'H' } else { axis }
}
