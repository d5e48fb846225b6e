//! Layouts of a tensor's memory, and what is read where a tensor is written in one and read in another: pages, tiles, heads first, rows with room behind them.

use crate::describe::choice;
use crate::identify::memory::{Gather, Names, Places};

/// A digit of a number's place: of which axis, how far apart its values are on it, and how many there are.
type Digit = (usize, usize, usize);

/// In which order the digits of a number's place stand in memory, the slowest first.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Layout {
    digits: Vec<Digit>,
    bits: f64,
    /// What pairs of layouts have in common.
    kin: usize,
}

/// Layouts by so many dimensions of each in turn have this and more in common, and orders of whole axes are no dearer than this.
const SPLIT: usize = 1 << 32;
const PLAIN: f64 = 2.0;
/// Numbers of a page or a tile.
const TILES: [usize; 6] = [2, 4, 8, 16, 32, 64];
/// Room that an axis may have in memory.
const ROOMS: [usize; 4] = [8, 16, 32, 64];

impl Layout {
    fn new(mut digits: Vec<Digit>, bits: f64, kin: usize) -> Layout {
        digits.retain(|(.., count)| *count > 1);
        Layout { digits, bits, kin }
    }

    /// Where a number stands.
    fn address(&self, at: &[usize]) -> usize {
        self.digits.iter().fold(0, |address, &(axis, apart, count)| address * count + at[axis] / apart % count)
    }

    /// Which number stands there; `None` where there is none.
    fn number(&self, mut address: usize, shape: &[usize]) -> Option<usize> {
        let mut at = [0; 4];
        for &(axis, apart, count) in self.digits.iter().rev() {
            at[axis] += address % count * apart;
            address /= count;
        }
        let is_there = address == 0 && at.iter().zip(shape).all(|(at, extent)| at < extent);
        is_there.then(|| shape.iter().zip(at).fold(0, |number, (extent, at)| number * extent + at))
    }

    /// In words: its digits from the slowest to the fastest. `names`: what three axes are called.
    fn words(&self, shape: &[usize], names: Names) -> String {
        let names: &[&str] = if shape.len() == 3 { &names } else { &["rows", "columns"] };
        let said = |(number, &(axis, apart, count)): (usize, &Digit)| {
            let is_split = self.digits.iter().enumerate().any(|(other, digit)| other != number && digit.0 == axis);
            let name = names[axis];
            match (apart > 1, is_split) {
                (true, _) => format!("blocks of {apart} {name}"),
                (false, true) => format!("{count} {name}"),
                (false, false) if count > shape[axis] => format!("{name} (room for {count})"),
                (false, false) => name.to_owned(),
            }
        };
        self.digits.iter().enumerate().map(said).collect::<Vec<_>>().join(" by ")
    }
}

/// What a tensor is read as that is written in one layout and read in another.
#[derive(Debug)]
pub(super) struct Between {
    written: Layout,
    read: Layout,
    shape: Vec<usize>,
}

impl Between {
    /// Which number is read at a place of so many.
    pub(super) fn from(&self, mut at: usize) -> Option<usize> {
        let mut place = [0; 4];
        for (axis, extent) in self.shape.iter().enumerate().rev() {
            place[axis] = at % extent;
            at /= extent;
        }
        self.written.number(self.read.address(&place), &self.shape)
    }
}

/// Layouts of a matrix: by rows or columns, by tiles of them, by rows of which some numbers each lie in turn.
fn of_matrix(rows: usize, columns: usize, all: &mut Vec<Layout>) {
    let tiles =
        |of: usize| std::iter::once(1).chain(TILES.into_iter().filter(move |n| *n < of && of.is_multiple_of(*n)));
    all.push(Layout::new(vec![(0, 1, rows), (1, 1, columns)], 0.0, 0));
    all.push(Layout::new(vec![(1, 1, columns), (0, 1, rows)], 2.0, 0));
    for a in tiles(rows) {
        for b in tiles(columns).chain([columns]).filter(|b| a > 1 || *b < columns) {
            let kin = a * (columns + 1) + b;
            let (outer, across) = ((0, a, rows / a), (1, b, columns / b));
            let (inner, along) = ((0, 1, a), (1, 1, b));
            let bits = 3.0 + if a > 1 { 3.0 } else { 0.0 } + if b > 1 && b < columns { 3.0 } else { 0.0 };
            let orders = [
                [outer, across, inner, along],
                [outer, across, along, inner],
                [across, outer, inner, along],
                [across, outer, along, inner],
            ];
            all.extend(orders.map(|digits| Layout::new(digits.to_vec(), bits, kin)));
            for e in [1, 2, 4, 8, 16].into_iter().filter(|e| a > 1 && b > 1 && *e < b && b.is_multiple_of(*e)) {
                let digits = vec![outer, across, (1, e, b / e), inner, (1, 1, e)];
                all.push(Layout::new(digits, bits + 3.0, kin));
                all.push(Layout::new(vec![outer, across, inner, (1, 1, e), (1, e, b / e)], bits + 4.0, kin));
            }
        }
    }
}

/// Layouts of positions by heads by dimensions: in any order, by pages of positions, by some dimensions of each in turn.
fn of_heads(shape: &[usize; 3], all: &mut Vec<Layout>) {
    let [t, h, d] = *shape;
    let whole = [(0, 1, t), (1, 1, h), (2, 1, d)];
    for order in [[0, 1, 2], [1, 0, 2], [0, 2, 1], [1, 2, 0], [2, 1, 0], [2, 0, 1]] {
        all.push(Layout::new(order.map(|axis| whole[axis]).to_vec(), if order == [0, 1, 2] { 0.0 } else { 2.0 }, 0));
    }
    for e in [1, 2, 4, 8, 16, 32].into_iter().filter(|e| *e < d && d.is_multiple_of(*e)) {
        let (parts, each) = ((2, e, d / e), (2, 1, e));
        for digits in [
            vec![whole[0], parts, whole[1], each],
            vec![whole[1], parts, whole[0], each],
            vec![parts, whole[0], whole[1], each],
            vec![parts, whole[1], whole[0], each],
            vec![whole[0], whole[1], each, parts],
        ] {
            all.push(Layout::new(digits, 5.0, SPLIT + e));
        }
    }
    for page in TILES.into_iter().filter(|page| *page < t && t.is_multiple_of(*page)) {
        let (pages, slots) = ((0, page, t / page), (0, 1, page));
        for order in [[1, 0, 2], [1, 2, 0], [0, 2, 1], [2, 0, 1], [2, 1, 0], [0, 1, 2]] {
            let inner = [slots, whole[1], whole[2]];
            all.push(Layout::new([vec![pages], order.map(|axis| inner[axis]).to_vec()].concat(), 6.0, page));
        }
        for e in [2, 4, 8, 16].into_iter().filter(|e| *e < d && d.is_multiple_of(*e)) {
            let (parts, each) = ((2, e, d / e), (2, 1, e));
            all.push(Layout::new(vec![pages, whole[1], parts, slots, each], 8.0, page));
            all.push(Layout::new(vec![pages, parts, whole[1], slots, each], 9.0, page));
            all.push(Layout::new(vec![pages, parts, slots, whole[1], each], 9.0, page));
        }
    }
}

/// The layout with room behind an axis that stands in it whole.
fn with_room(layout: &Layout, shape: &[usize]) -> Vec<Layout> {
    let mut all = Vec::new();
    for (number, &(axis, apart, count)) in layout.digits.iter().enumerate() {
        // Behind the slowest there is room anyhow.
        if apart > 1 || number == 0 || count < shape[axis].min(4) {
            continue;
        }
        let mut rooms: Vec<usize> = ROOMS.iter().map(|to| count.next_multiple_of(*to)).collect();
        rooms.extend([count + 1, 2 * count, count.next_power_of_two(), 128, 256]);
        rooms.sort_unstable();
        rooms.dedup();
        for room in rooms.into_iter().filter(|room| *room > count) {
            let mut digits = layout.digits.clone();
            digits[number].2 = room;
            all.push(Layout::new(digits, layout.bits + 5.0, layout.kin));
        }
    }
    all
}

/// What is read where a tensor of this shape is written in one layout and read in another.
pub(super) fn between(shape: &[usize], names: Names) -> Vec<Gather> {
    let mut layouts = Vec::new();
    match *shape {
        [rows, columns] => of_matrix(rows, columns, &mut layouts),
        [t, h, d] => of_heads(&[t, h, d], &mut layouts),
        _ => return Vec::new(),
    }
    let mut all = Vec::new();
    let mut add = |written: &Layout, read: &Layout, bits: f64| {
        let words =
            format!("as in memory it is {}, and is read as {}", written.words(shape, names), read.words(shape, names));
        let bits = 4.0 + choice(layouts.len()) + written.bits + read.bits + bits;
        let between = Between { written: written.clone(), read: read.clone(), shape: shape.to_vec() };
        all.push(Gather { words, bits, places: Places::Between(between.into()) });
    };
    let plain = |layout: &Layout| layout.kin == 0;
    for (at, one) in layouts.iter().enumerate() {
        for other in &layouts[at + 1..] {
            // Two layouts that are each no plain one have the same pages or tiles.
            if plain(one) || plain(other) || one.kin == other.kin {
                add(one, other, 0.0);
                add(other, one, 0.0);
            }
        }
        // Blocks of columns with room behind each are rows of heads.
        let is_of_heads = shape.len() == 2 && one.digits.len() == 3 && one.digits[0] == (0, 1, shape[0]);
        if (plain(one) && one.bits <= PLAIN) || is_of_heads {
            for padded in with_room(one, shape) {
                add(&padded, one, 0.0);
                add(one, &padded, 0.0);
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::identify::memory::OF_HEADS;

    fn found(shape: &[usize], read: impl Fn(usize) -> Option<usize>) -> Option<String> {
        let count: usize = shape.iter().product();
        let mut all = between(shape, OF_HEADS);
        all.sort_by(|a, b| a.bits.total_cmp(&b.bits));
        all.into_iter().find(|gather| (0..count).all(|at| gather.from(at) == read(at))).map(|gather| gather.words)
    }

    #[test]
    fn what_is_written_in_one_layout_is_read_in_another() {
        // Heads of 32 slots each, read as if they had 20.
        let slots = found(&[20, 2, 16], |at| {
            let (t, h, e) = (at / 32, at / 16 % 2, at % 16);
            let slot = h * 20 + t;
            (slot % 32 < 20).then_some((slot % 32 * 2 + slot / 32) * 16 + e)
        });
        assert_eq!(
            slots.as_deref(),
            Some(
                "as in memory it is heads by positions (room for 32) by dimensions, and is read as heads by positions by dimensions"
            )
        );
        // Pages of 4 positions that hold 8 dimensions of each in turn, read position by position.
        let pages = found(&[8, 2, 16], |at| {
            let (page, slot, h, e) = (at / 128, at / 32 % 4, at / 16 % 2, at % 16);
            let within = slot * 16 + e;
            Some((page * 4 + within / 8 % 4) * 32 + h * 16 + within / 32 * 8 + within % 8)
        });
        assert!(pages.is_some_and(|words| words.starts_with("as in memory it is blocks of 4 positions by ")));
    }
}
