//! Other parts of a longer tensor in the place of one: what a projection gives for several readers is cut at other places, in blocks or by groups.

use std::collections::BTreeSet;

use firstdiff_program::{Operand, Program, View};

/// Parts of a row by which others are counted; of more the sums are too many.
const MOST_PARTS: usize = 7;
/// Parts of which every order is tried.
const MOST_ORDERED: usize = 5;
/// So many elements a row may have beside a part of it, for each place of the part to be tried.
const FEW: usize = 16;

/// Which elements of each row of a buffer a view shows: `width` of each of `groups` groups, from `start` on. In one group they may stand by heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    row: usize,
    groups: usize,
    heads: usize,
    start: usize,
    width: usize,
}

impl Part {
    fn from_view(program: &Program, view: &View) -> Option<Part> {
        let whole = &program.buffers()[view.buffer];
        let row = *whole.shape.last().filter(|_| whole.is_contiguous() && whole.dtype == view.dtype)?;
        let start = view.offset % row.max(1);
        let mut inner: Vec<(usize, usize)> = axes(view).filter(|(_, stride)| *stride < row).collect();
        inner.sort_by_key(|(_, stride)| *stride);
        let (mut width, mut heads) = (1, 1);
        while inner.first().is_some_and(|(_, stride)| *stride == width) {
            heads = if width > 1 { inner[0].0 } else { 1 };
            width *= inner.remove(0).0;
        }
        let part = Part { row, groups: 1, heads, start, width };
        match inner[..] {
            [] => Some(part),
            [(groups, stride)] if groups * stride == row => Some(Part { groups, heads: 1, ..part }),
            _ => None,
        }
        .filter(|part| part.fits() && part.groups * part.width < part.row)
    }

    /// The same elements where the parts stand one after the other in place of by group, or the reverse.
    fn regrouped(&self) -> Option<Part> {
        if self.groups > 1 {
            let (heads, width) = (self.groups, self.groups * self.width);
            return Some(Part { groups: 1, heads, start: heads * self.start, width, ..*self });
        }
        let is_even = self.heads > 1 && self.row.is_multiple_of(self.heads) && self.start.is_multiple_of(self.heads);
        let (groups, width) = (self.heads, self.width / self.heads);
        is_even.then_some(Part { groups, heads: 1, start: self.start / groups, width, ..*self })
    }

    fn fits(&self) -> bool {
        self.start + self.width <= self.row / self.groups
    }

    fn words(&self, whole: &str) -> String {
        let end = self.start + self.width - 1;
        let groups = if self.groups > 1 { format!(" of each of {} groups", self.groups) } else { String::new() };
        format!("elements {} to {end}{groups} of {whole}", self.start)
    }

    /// The view that shows this part where `view` shows `own`.
    fn shown(&self, own: &Part, view: &View) -> View {
        let offset = view.offset - view.offset % own.row + self.start;
        // The axis of groups or heads.
        let outer = if own.groups > 1 { own.row / own.groups } else { own.width / own.heads };
        let other = if self.groups > 1 { self.row / self.groups } else { self.width / self.heads };
        let moved = |(&extent, &stride): (&usize, &usize)| match extent > 1 && stride == outer && stride < own.row {
            true => other,
            false => stride,
        };
        View { offset, strides: view.shape.iter().zip(&view.strides).map(moved).collect(), ..view.clone() }
    }
}

/// The axes of a view that have more than one element, with their strides.
fn axes(view: &View) -> impl Iterator<Item = (usize, usize)> + '_ {
    view.shape.iter().copied().zip(view.strides.iter().copied()).filter(|(extent, _)| *extent > 1)
}

/// The parts of the tensor that a view shows a part of, as all that reads it cuts it, in their order.
fn parts_beside(program: &Program, view: &View, groups: usize, maker: Option<usize>) -> Vec<Part> {
    let readers = maker.map_or(&[][..], |maker| program.readers(maker));
    let read = readers.iter().flat_map(|&op| program.ops()[op].operands.iter()).flat_map(Operand::views);
    let views = read.chain(program.taps().iter().map(|tap| &tap.view)).filter(|other| other.buffer == view.buffer);
    let mut beside: Vec<Part> = Vec::new();
    for part in views.filter_map(|view| Part::from_view(program, view)).filter(|part| part.groups == groups) {
        let is_apart = |known: &Part| part.start >= known.start + known.width || known.start >= part.start + part.width;
        if beside.iter().all(is_apart) {
            beside.push(part);
        }
    }
    beside.sort_by_key(|part| part.start);
    beside
}

/// Other parts of the tensor that a view shows a part of, each in words.
pub(super) fn others(program: &Program, view: &View, maker: Option<usize>, whole: &str) -> Vec<(String, View)> {
    let Some(own) = Part::from_view(program, view) else { return Vec::new() };
    // Parts in any order begin behind any of the others.
    let mut starts = BTreeSet::from([0]);
    for part in parts_beside(program, view, own.groups, maker).iter().take(MOST_PARTS) {
        starts.extend(starts.clone().into_iter().map(|start| start + part.width));
    }
    let room = own.row / own.groups - own.width;
    if room <= FEW {
        starts.extend(0..=room);
    }
    let moved: Vec<Part> = starts.iter().map(|&start| Part { start, ..own }).collect();
    let regrouped: Vec<Part> = moved.iter().filter_map(Part::regrouped).collect();
    let found = moved.into_iter().chain(regrouped).filter(|part| *part != own && part.fits());
    found.map(|part| (part.words(whole), part.shown(&own, view))).collect()
}

/// Other cuts of a tensor of which several parts are read: for each the words, and what each view shows then.
pub(super) fn cuts(program: &Program, views: &[&View], maker: Option<usize>) -> Vec<(String, Vec<View>)> {
    let Some(own) = views.iter().map(|view| Part::from_view(program, view)).collect::<Option<Vec<Part>>>() else {
        return Vec::new();
    };
    let Some(groups) = own.first().map(|part| part.groups) else { return Vec::new() };
    let beside = parts_beside(program, views[0], groups, maker);
    let shown =
        |parts: Vec<Part>| parts.iter().zip(&own).zip(views).map(|((part, own), v)| part.shown(own, v)).collect();
    let mut found: Vec<(String, Vec<View>)> = Vec::new();
    if let Some(parts) = own.iter().map(Part::regrouped).collect::<Option<Vec<Part>>>() {
        let words = if groups > 1 { "its parts one after the other" } else { "its parts by group" };
        found.push((words.to_owned(), shown(parts)));
    }
    for order in orders(beside.len()).into_iter().skip(1) {
        let moved = |part: &Part| {
            let at = beside.iter().position(|b| b.start <= part.start && part.start < b.start + b.width)?;
            let before: usize = order.iter().take_while(|&&other| other != at).map(|&other| beside[other].width).sum();
            Some(Part { start: beside[0].start + before + part.start - beside[at].start, ..*part })
        };
        if let Some(parts) = own.iter().map(moved).collect::<Option<Vec<Part>>>() {
            let order = order.iter().map(|at| (at + 1).to_string()).collect::<Vec<_>>().join(", ");
            found.push((format!("its parts in the order {order}"), shown(parts)));
        }
    }
    found
}

/// Every order of so many parts, their own first; none of too many.
pub(in crate::program) fn orders(count: usize) -> Vec<Vec<usize>> {
    if count > MOST_ORDERED {
        return Vec::new();
    }
    let longer = |orders: Vec<Vec<usize>>| {
        let each = |order: Vec<usize>| {
            let rest: Vec<usize> = (0..count).filter(|at| !order.contains(at)).collect();
            rest.into_iter()
                .map(move |at| order.iter().copied().chain([at]).collect::<Vec<usize>>())
                .collect::<Vec<_>>()
        };
        orders.into_iter().flat_map(each).collect()
    };
    (0..count).fold(vec![Vec::new()], |orders, _| longer(orders))
}
