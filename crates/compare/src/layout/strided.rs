//! Lists the other orders and paddings in which the candidate's memory may hold the same tensor; they are tried by content.
//!
//! Each is a strided view of the candidate's memory: the vocabulary's axes in another order, some longer than the reference's (padding; repeated key/value
//! heads), the elements of a head in the other RoPE order. Agreement in a view that moves values proves nothing by itself: `resolve.rs` looks for
//! confirmation.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use firstdiff_trace::{QkRows, Site};

use crate::layout::elements::{IndexMap, TensorRef};
use crate::layout::rows::squeezed;
use crate::tolerance::judge::MASKED;

/// Memory in an order that its content shows.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StridedLayout {
    /// The axes, the slowest first.
    axes: Vec<Axis>,
    /// Whether that is the vocabulary's order.
    in_order: bool,
    /// Whether its shape allows only this order of these axes.
    shown: bool,
    /// Whether its shape lists the same number of axes in another order.
    against_shape: bool,
    /// The RoPE order of its rows of Q and K, where it is not the reference's.
    rows: Option<QkRows>,
}

/// One axis of the candidate's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
struct Axis {
    name: char,
    /// Its extent in the candidate.
    held: usize,
    /// Its extent in the reference.
    wanted: usize,
    /// Where the reference's part of it begins.
    from: usize,
    /// How many times each element is repeated.
    copies: usize,
}

impl StridedLayout {
    /// Whether values are in other places than in the vocabulary's order.
    pub(crate) fn moves(&self) -> bool {
        !self.in_order || self.rows.is_some()
    }

    /// Whether the shape lists the axes in another order than memory holds them.
    pub(crate) fn against_shape(&self) -> bool {
        self.against_shape
    }

    /// Whether the axes are in the vocabulary's order.
    pub(crate) fn in_order(&self) -> bool {
        self.in_order
    }

    /// Whether the shape allows no other layout.
    pub(crate) fn is_only_layout(&self) -> bool {
        self.shown
    }

    pub(crate) fn rows(&self) -> Option<QkRows> {
        self.rows
    }

    /// How many token positions are held and how many the reference has, where it has fewer.
    pub(crate) fn padding(&self) -> Option<(usize, usize)> {
        self.axis('T').filter(|t| t.held > t.wanted).map(|t| (t.held, t.wanted))
    }

    /// Whether the token positions are in the same places as in the other.
    pub(crate) fn same_positions(&self, other: &StridedLayout) -> bool {
        let at = |stored: &StridedLayout| stored.axis('T').map(|t| (t.held, t.wanted, t.from));
        at(self) == at(other)
    }

    /// The order of the axes by name, with one name for query and key/value heads: what taps of one convention share.
    pub(crate) fn order(&self) -> String {
        self.axes.iter().map(|a| if a.name == 'K' { 'H' } else { a.name }).collect()
    }

    fn axis(&self, name: char) -> Option<&Axis> {
        self.axes.iter().find(|a| a.name == name)
    }

    /// The extents and strides of the reference's axes in this memory, and an offset.
    fn view(&self, fine: &[(char, usize)]) -> (Vec<(usize, usize)>, usize) {
        let stride = |name: char| -> usize {
            let at = self.axes.iter().position(|a| a.name == name).unwrap_or(0);
            self.axes[at + 1..].iter().map(|a| a.held).product()
        };
        let mut view = Vec::new();
        let mut offset = 0;
        for &(name, extent) in fine {
            let Some(axis) = self.axis(name) else { continue };
            offset += axis.from * stride(name);
            match self.rows.filter(|_| name == 'd') {
                // The reference's element s*d/2 + i is the candidate's 2i + s, or the reverse.
                Some(QkRows::Adjacent) => view.extend([(2, stride(name)), (extent / 2, 2 * stride(name))]),
                Some(QkRows::Half) => view.extend([(extent / 2, stride(name)), (2, extent / 2 * stride(name))]),
                None => view.push((extent, axis.copies * stride(name))),
            }
        }
        (view, offset)
    }

    /// What the candidate holds beyond the reference's part that can be neither padding nor a copy.
    pub(crate) fn padding_error(&self, site: Site, candidate: &TensorRef<'_>) -> Option<String> {
        let value = |index: &[usize]| {
            let at = self.axes.iter().zip(index).fold(0, |at, (axis, i)| at * axis.held + i);
            candidate.values.get(at)
        };
        let mut largest: BTreeMap<usize, f64> = BTreeMap::new();
        for axis in self.axes.iter().filter(|a| a.held > a.wanted) {
            let (at, part) = (self.place(axis.name), axis.from..axis.from + axis.wanted);
            let is_copied = axis.copies > 1;
            let beyond: Vec<usize> = (0..axis.held).filter(|i| is_copied || !part.contains(i)).collect();
            for mut index in self.indices_along(axis.name, &beyond) {
                let (x, here) = (value(&index), index[at]);
                if is_copied {
                    index[at] -= here % axis.copies;
                    if x.to_bits() != value(&index).to_bits() {
                        let (copies, head) = (axis.copies, here / axis.copies);
                        return Some(format!("the {copies} copies of key/value head {head} are not equal"));
                    }
                    continue;
                }
                let mut top = || {
                    let row = part.clone().map(|id| value(&[&index[..at], &[id], &index[at + 1..]].concat()));
                    let top = || row.fold(f64::NEG_INFINITY, f64::max);
                    *largest.entry(index[self.place('T')]).or_insert_with(top)
                };
                // Written so that a NaN is not padding.
                let (one, many, is_right, what) = match (axis.name, site) {
                    ('S', Site::Probs) => ("key", "keys", x == 0.0, "not 0"),
                    ('S', Site::Scores) => ("key", "keys", x <= MASKED, "not masked"),
                    ('K', _) => ("head", "key/value heads", x == 0.0, "not 0"),
                    ('V', _) => ("id", "token ids", x <= top(), "larger than all that there are"),
                    ('d', _) => ("lane", "lanes a head", x == 0.0, "not 0"),
                    _ => ("position", "token positions", !x.is_nan(), "no number"),
                };
                if !is_right {
                    let more = axis.held - axis.wanted;
                    return Some(format!(
                        "of {} {many} {more} are padding, and {one} {here} is {what}: {x}",
                        axis.held
                    ));
                }
            }
        }
        None
    }

    fn place(&self, name: char) -> usize {
        self.axes.iter().position(|a| a.name == name).unwrap_or(0)
    }

    /// Every index in the candidate with these values along `name`, and the reference's part of the other axes.
    fn indices_along<'i>(&'i self, name: char, these: &'i [usize]) -> impl Iterator<Item = Vec<usize>> + use<'i> {
        let extent = move |a: &Axis| if a.name == name { these.len() } else { a.wanted };
        let count: usize = self.axes.iter().map(extent).product();
        (0..count).map(move |mut i| {
            let mut index = vec![0; self.axes.len()];
            for (at, axis) in index.iter_mut().zip(&self.axes).rev() {
                let here = i % extent(axis);
                *at = if axis.name == name { these[here] } else { axis.from + here };
                i /= extent(axis);
            }
            index
        })
    }
}

impl StridedLayout {
    /// In words; `witness` is the name of the other side.
    pub(crate) fn words(&self, witness: &str) -> String {
        let mut parts = Vec::new();
        if !self.in_order {
            let names: Vec<String> = self.axes.iter().map(|a| a.name.to_string()).collect();
            parts.push(format!("its memory is [{}]", names.join(",")));
        }
        for Axis { name, held, wanted, from, copies } in self.axes.iter().copied().filter(|a| a.held > a.wanted) {
            let side = match from {
                0 => String::new(),
                _ if from == held - wanted => " before them".to_owned(),
                _ => format!(", {from} of these before them"),
            };
            parts.push(match name {
                'K' if copies > 1 => format!("each of {wanted} key/value heads stands there {copies} times"),
                'K' => format!("{held} key/value heads, {} more than the {witness} has", held - wanted),
                'S' => format!("{held} keys, {} more than the {witness} has{side}", held - wanted),
                'd' => format!("{held} lanes a head, {} more than the {witness} has, not compared", held - wanted),
                'V' => format!("{held} token ids for {wanted}, the rest not compared"),
                _ => format!("{held} token positions, of which {} are padding{side}, not compared", held - wanted),
            });
        }
        parts.extend(self.rows.map(|rows| rows_in_words(rows, witness)));
        if parts.is_empty() {
            parts.push("its shape lists the axes in another order than its memory holds them".into());
        }
        parts.join("; ")
    }
}

impl fmt::Display for StridedLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.words("reference"))
    }
}

/// Every layout in which `candidate`'s memory may be the tensor of `reference`, and where in that memory each element is. `heads` is the number of heads merged
/// in a context.
pub(crate) fn layouts(
    site: Site,
    reference: &TensorRef<'_>,
    candidate: &TensorRef<'_>,
    heads: Option<usize>,
) -> Vec<(StridedLayout, IndexMap)> {
    let partial = |o: &TensorRef<'_>| o.rows.is_some_and(|r| !r.is_all());
    let shape = squeezed(site, reference.shape);
    let count = candidate.values.len();
    if shape.len() != site.axes().len() || shape.contains(&0) || count == 0 || partial(reference) || partial(candidate)
    {
        return Vec::new();
    }
    let fine = axes_with_heads(site, &shape, heads);
    let has_rope_row_order = site.has_rope_rows() && fine.last().is_some_and(|(_, d)| *d >= 4 && d % 2 == 0);
    let rows = if has_rope_row_order { &[None, Some(QkRows::Adjacent), Some(QkRows::Half)][..] } else { &[None][..] };
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for order in orders(fine.len()) {
        for (axes, shown) in extents(&fine, &order, candidate.shape, count) {
            for (axes, rows) in
                sides(&axes).into_iter().flat_map(|axes| rows.iter().map(move |&rows| (axes.clone(), rows)))
            {
                let in_order = ordered(&axes, &fine);
                let extents: Vec<usize> = axes.iter().map(|a| a.held).collect();
                let listed = without_ones(candidate.shape, extents.len());
                let against_shape = listed.len() == extents.len() && listed != extents;
                // Axes of the same length can be exchanged without changing the shape.
                let own = fine.iter().filter_map(|(name, _)| axes.iter().find(|a| a.name == *name)).map(|a| a.held);
                let shown = shown && (in_order || !own.eq(listed.iter().copied()));
                let stored = StridedLayout { axes, in_order, shown, against_shape, rows };
                // Lanes that hold values are no padding: the tensor is another.
                let has_more_lanes = stored.axis('d').is_some_and(|lanes| lanes.held > lanes.wanted);
                if has_more_lanes && stored.padding_error(site, candidate).is_some() {
                    continue;
                }
                let (view, offset) = stored.view(&fine);
                if seen.insert((view.iter().copied().filter(|v| v.0 > 1).collect::<Vec<_>>(), offset)) {
                    found.push((stored, strided(view, offset)));
                }
            }
        }
    }
    found
}

/// The axes of a site with their extents; a context's heads get an axis of their own.
fn axes_with_heads(site: Site, shape: &[usize], heads: Option<usize>) -> Vec<(char, usize)> {
    match (site, heads) {
        (Site::Context, Some(h)) if h > 0 && shape[1].is_multiple_of(h) => {
            vec![('T', shape[0]), ('H', h), ('d', shape[1] / h)]
        }
        _ => site.axes().iter().copied().zip(shape.iter().copied()).collect(),
    }
}

/// All orders of two or three axes, the vocabulary's own first.
fn orders(axes: usize) -> Vec<Vec<usize>> {
    match axes {
        2 => vec![vec![0, 1], vec![1, 0]],
        3 => vec![vec![0, 1, 2], vec![1, 0, 2], vec![2, 1, 0], vec![0, 2, 1], vec![1, 2, 0], vec![2, 0, 1]],
        _ => Vec::new(),
    }
}

/// Whether the axes longer than 1 are in the vocabulary's order.
fn ordered(axes: &[Axis], fine: &[(char, usize)]) -> bool {
    let names = axes.iter().filter(|a| a.wanted > 1).map(|a| a.name);
    names.eq(fine.iter().filter(|(_, n)| *n > 1).map(|(name, _)| *name))
}

/// The possible extents of memory of `count` elements with the axes in `order`, and whether `shape` shows them.
fn extents(fine: &[(char, usize)], order: &[usize], shape: &[usize], count: usize) -> Vec<(Vec<Axis>, bool)> {
    let axes: Vec<Axis> = order
        .iter()
        .map(|&a| Axis { name: fine[a].0, held: fine[a].1, wanted: fine[a].1, from: 0, copies: 1 })
        .collect();
    let held =
        |extents: &[usize]| -> Vec<Axis> { axes.iter().zip(extents).map(|(a, &held)| Axis { held, ..*a }).collect() };
    let reference_extents: Vec<usize> = axes.iter().map(|a| a.wanted).collect();
    let shape = without_ones(shape, reference_extents.len());
    let backwards: Vec<usize> = shape.iter().rev().copied().collect();
    let mut options: Vec<(Vec<usize>, bool)> =
        vec![(reference_extents.clone(), shape == reference_extents), (shape.clone(), true), (backwards, false)];
    let total: usize = reference_extents.iter().product();
    for (i, extent) in reference_extents.iter().enumerate() {
        let mut longer = reference_extents.clone();
        longer[i] = count / (total / extent);
        options.push((longer, false));
    }
    if let [Some(t), Some(s)] = ['T', 'S'].map(|name| axes.iter().position(|a| a.name == name)) {
        let mut square = reference_extents.clone();
        let both = (count / (total / (reference_extents[t] * reference_extents[s]))).isqrt();
        (square[t], square[s]) = (both, both);
        options.push((square, false));
    }
    let fits = |axis: &Axis, shown: bool| {
        axis.held == axis.wanted
            || (axis.held > axis.wanted && matches!(axis.name, 'T' | 'S' | 'V'))
            // Extra elements behind each head could also be a wrong copy of the head, unless the shape shows them.
            || (axis.held > axis.wanted && axis.name == 'd' && shown)
            || (axis.held > axis.wanted && axis.name == 'K' && (shown || axis.held.is_multiple_of(axis.wanted)))
    };
    let product = |axes: &[Axis]| axes.iter().try_fold(1usize, |n, a| n.checked_mul(a.held));
    let same_length = |(extents, _): &(Vec<usize>, bool)| extents.len() == reference_extents.len();
    let alignment = options.into_iter().filter(same_length).map(|(extents, shown)| (held(&extents), shown));
    alignment.filter(|(axes, shown)| axes.iter().all(|a| fits(a, *shown)) && product(axes) == Some(count)).collect()
}

/// A shape with axes of length 1 removed, while it has more than `axes` axes.
fn without_ones(shape: &[usize], axes: usize) -> Vec<usize> {
    let mut shape = shape.to_vec();
    while let Some(one) = shape.iter().position(|d| *d == 1).filter(|_| shape.len() > axes) {
        shape.remove(one);
    }
    shape
}

/// Variants: key/value heads repeated, or padding behind them; padding behind or before the positions and keys.
fn sides(axes: &[Axis]) -> Vec<Vec<Axis>> {
    let heads = axes.iter().position(|a| a.name == 'K' && a.held > a.wanted);
    let repeated = heads.filter(|&at| axes[at].held.is_multiple_of(axes[at].wanted)).map(|at| {
        let mut axes = axes.to_vec();
        axes[at].copies = axes[at].held / axes[at].wanted;
        axes
    });
    let moves = |a: &Axis| matches!(a.name, 'T' | 'S') && a.held > a.wanted;
    let before = |a: &Axis| Axis { from: if moves(a) { a.held - a.wanted } else { 0 }, ..*a };
    let mut sides: Vec<Vec<Axis>> = repeated.into_iter().chain([axes.to_vec()]).collect();
    // Positions and keys that begin behind the same padding, with further keys behind them.
    let padding = axes.iter().find(|a| a.name == 'T').map_or(0, |t| t.held - t.wanted);
    let between = |a: &Axis| match a.name {
        'S' if a.held > a.wanted + padding => Axis { from: padding, ..*a },
        _ => before(a),
    };
    let moved = |side: &dyn Fn(&Axis) -> Axis| sides.iter().map(|axes| axes.iter().map(side).collect()).collect();
    let (before, between): (Vec<Vec<Axis>>, Vec<Vec<Axis>>) = (moved(&before), moved(&between));
    if axes.iter().any(moves) {
        sides.extend(before);
        sides.extend(between.into_iter().filter(|_| padding > 0));
    }
    sides
}

/// Where element `at` of row-major axes lies in memory with these strides.
fn strided(view: Vec<(usize, usize)>, offset: usize) -> IndexMap {
    Arc::new(move |mut at| {
        let mut place = offset;
        for &(extent, stride) in view.iter().rev() {
            place += (at % extent) * stride;
            at /= extent;
        }
        place
    })
}

/// The order of the rows of each head, where it is not the other side's.
pub(crate) fn rows_in_words(rows: QkRows, witness: &str) -> String {
    match rows {
        QkRows::Adjacent => {
            format!("rows of each head are in GGUF's order (adjacent RoPE pairs), the {witness}'s in Hugging Face's")
        }
        QkRows::Half => {
            format!("rows of each head are in Hugging Face's order (RoPE halves), the {witness}'s in GGUF's")
        }
    }
}
