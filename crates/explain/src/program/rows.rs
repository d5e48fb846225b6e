//! Finds the order of rows that were sorted by their expert. PyTorch's sort keeps no order of equal numbers, and engines group tokens as they like: any
//! order of one expert's rows is right, where all of them are, and all taps have it.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use firstdiff_compare::row_order;
use firstdiff_program::{Kind, Operand, Operation, Program};
use ndarray::ArrayD;

use crate::program::slices::reached;

/// What stands in the order of sorts of whole numbers, and in which order the candidate has it.
pub(crate) struct Sorted {
    /// All whose rows stand in such an order, up to where they are put back, with the sort that made it.
    ops: BTreeMap<usize, usize>,
    /// The sorts.
    sorts: BTreeSet<usize>,
    /// The numbers that each sort gives, as far as they were seen.
    keys: HashMap<usize, Vec<i64>>,
    /// The order among the rows of one number of a sort: in taps of an expert's own rows, and in those of all rows. One may be written in another form than the other.
    known: HashMap<Block, Known>,
}

/// A sort, a number of it, and whether its rows are a tap of their own.
type Block = (usize, i64, bool);

/// An order of rows.
struct Known {
    /// For each row that is due which of the candidate's it is.
    order: Vec<usize>,
    /// The taps that show it, as they are counted in the replay.
    by: Vec<usize>,
    /// Whether taps were seen in several orders, so that none is known.
    is_open: bool,
}

impl Known {
    fn of(order: Vec<usize>) -> Known {
        Known { order, by: Vec::new(), is_open: false }
    }

    fn is_much(&self) -> bool {
        !self.is_open && (is_same(&self.order) || self.by.len() > 1)
    }
}

/// What speaks against an order of rows.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Against {
    /// No other tap.
    Nothing,
    /// The order of the program itself, or that of several taps.
    Much,
    /// One tap each of some experts, in an order of its own as well: which of them is so recorded nobody knows.
    Little(Vec<usize>),
}

/// Rows of one number of a sort: of a tap, and of the sort.
struct Group {
    key: i64,
    rows: Range<usize>,
}

impl Sorted {
    /// The operations whose rows stand in an order that a sort of whole numbers made.
    pub(crate) fn of(program: &Program) -> Sorted {
        let base = |op: usize| program.ops()[op].base().trim_end_matches('_');
        let of_numbers =
            |op: &Operation| matches!(op.operands.first(), Some(Operand::View(x)) if x.dtype.kind() == Kind::Int);
        let sorts = |&op: &usize| matches!(base(op), "sort" | "argsort") && of_numbers(&program.ops()[op]);
        let sorts: BTreeSet<usize> = (0..program.ops().len()).filter(sorts).collect();
        let mut ops = BTreeMap::new();
        // What several sorts lead to stands in the order of the last.
        for &sort in &sorts {
            let goes_on =
                |op: &usize| !matches!(base(*op), "index_add" | "index_put" | "index_copy" | "scatter" | "scatter_add");
            let all = reached([sort], |op| program.readers(op).iter().copied().filter(goes_on));
            ops.extend(all.into_iter().map(|op| (op, sort)));
        }
        Sorted { ops, sorts, keys: HashMap::new(), known: HashMap::new() }
    }

    /// Whether an operation's rows stand in such an order.
    pub(crate) fn holds(&self, op: usize) -> bool {
        self.ops.contains_key(&op)
    }

    /// Whether an operation makes such an order.
    pub(crate) fn begins_at(&self, op: usize) -> bool {
        self.sorts.contains(&op)
    }

    /// The sort whose numbers are not known, that an operation's rows stand in the order of.
    pub(crate) fn open(&self, op: usize) -> Option<usize> {
        self.ops.get(&op).copied().filter(|sort| !self.keys.contains_key(sort))
    }

    /// Notes what a sort sorts.
    pub(crate) fn saw(&mut self, program: &Program, sort: usize, among: &ArrayD<f64>) {
        let mut keys: Vec<i64> = among.iter().map(|&key| key as i64).collect();
        keys.sort_unstable();
        let is_turned = |(name, operand): &(String, Operand)| {
            name == "descending" && !matches!(operand, Operand::Scalar(firstdiff_program::Scalar::Bool(false)))
        };
        let op = &program.ops()[sort];
        // Its second or third operand may say so too: then nothing is known of its order.
        let has_flag =
            op.operands.iter().any(|operand| matches!(operand, Operand::Scalar(firstdiff_program::Scalar::Bool(true))));
        if among.ndim() == 1 && !has_flag && !op.keywords.iter().any(is_turned) {
            self.keys.insert(sort, keys);
        }
    }

    /// The rows of each number, of a tap of all rows or of the expert `expert`'s; `None` where nothing says which they are.
    fn groups(&self, op: usize, rows: usize, expert: Option<usize>) -> Option<(usize, Vec<Group>)> {
        let sort = *self.ops.get(&op)?;
        let keys = self.keys.get(&sort)?;
        if let Some(key) = expert {
            let count = keys.iter().filter(|other| **other == key as i64).count();
            return (count == rows).then(|| (sort, vec![Group { key: key as i64, rows: 0..rows }]));
        }
        let begins = |key: i64| keys.partition_point(|other| *other < key);
        let all: BTreeSet<i64> = keys.iter().copied().collect();
        let groups = all.into_iter().map(|key| Group { key, rows: begins(key)..begins(key + 1) });
        (keys.len() == rows).then(|| (sort, groups.collect()))
    }

    /// Whether it is known which rows are one expert's, so that these may stand in any order.
    pub(crate) fn is_tied(&self, op: usize, rows: usize, expert: Option<usize>) -> bool {
        self.groups(op, rows, expert).is_some()
    }

    /// Whether other taps showed in which order all rows of a tap stand, or cannot.
    pub(crate) fn knows(&self, op: usize, rows: usize, expert: Option<usize>) -> bool {
        let is_known = |(sort, groups): (usize, Vec<Group>)| {
            groups.iter().all(|group| self.known.contains_key(&(sort, group.key, expert.is_some())))
        };
        self.groups(op, rows, expert).is_none_or(is_known)
    }

    /// Takes the order of the reference's rows for the candidate's until a tap of the candidate's shows its own.
    pub(crate) fn suppose(&mut self, op: usize, expert: Option<usize>, order: &[usize]) {
        for Group { key, rows } in self.groups(op, order.len(), expert).map_or_else(Vec::new, |(_, groups)| groups) {
            let Some(sort) = self.ops.get(&op).copied() else { return };
            self.known.entry((sort, key, expert.is_some())).or_insert_with(|| Known::of(local(&rows, order)));
        }
    }

    /// For each row that is due which of the candidate's it is, as far as other taps showed it.
    pub(crate) fn settled(&self, op: usize, rows: usize, expert: Option<usize>) -> Option<Vec<usize>> {
        let (sort, groups) = self.groups(op, rows, expert)?;
        let of = |Group { key, rows }: &Group| -> Vec<usize> {
            let known = self.known.get(&(sort, *key, expert.is_some())).filter(|known| !known.is_open);
            let known = known.map(|known| &known.order).filter(|known| known.len() == rows.len());
            rows.clone().map(|row| known.map_or(row, |known| rows.start + known[row - rows.start])).collect()
        };
        Some(groups.iter().flat_map(of).collect())
    }

    /// The nearest order in which each expert's rows stand among themselves.
    pub(crate) fn order(
        &self,
        op: usize,
        expert: Option<usize>,
        own: &ArrayD<f64>,
        due: &ArrayD<f64>,
    ) -> Option<Vec<usize>> {
        let (rows, width) = rows_of(own, due)?;
        let (_, groups) = self.groups(op, rows, expert)?;
        let (own, due) = (own.as_slice()?, due.as_slice()?);
        let mut order = Vec::with_capacity(rows);
        for Group { rows, .. } in groups {
            let values = rows.start * width..rows.end * width;
            let nearest = row_order(&own[values.clone()], &due[values], width)?;
            order.extend(nearest.into_iter().map(|at| rows.start + at));
        }
        Some(order)
    }

    /// What speaks against an order of a tap's rows, which all of them had to have. Where it is little, none is known from then on.
    pub(crate) fn against(&mut self, op: usize, expert: Option<usize>, order: &[usize]) -> Against {
        let Some((sort, groups)) = self.groups(op, order.len(), expert) else { return Against::Nothing };
        let (mut taps, mut others) = (Vec::new(), Vec::new());
        for Group { key, rows } in groups {
            let (block, local) = ((sort, key, expert.is_some()), local(&rows, order));
            let differs = |known: &&Known| match known.is_open {
                true => !is_same(&local),
                false => known.order != local && !known.by.is_empty(),
            };
            let Some(known) = self.known.get(&block).filter(differs) else { continue };
            if known.is_much() {
                return Against::Much;
            }
            taps.extend(known.by.iter().copied());
            others.push(block);
        }
        for block in &others {
            self.known.insert(*block, Known { is_open: true, ..Known::of(Vec::new()) });
        }
        if others.is_empty() { Against::Nothing } else { Against::Little(taps) }
    }

    /// Takes the order of a tap's rows for that of all others of its sort. Rows that are equal show none.
    pub(crate) fn learn(&mut self, op: usize, expert: Option<usize>, order: &[usize], due: &ArrayD<f64>, tap: usize) {
        let Some((rows, width)) = rows_of(due, due).filter(|(rows, _)| *rows == order.len()) else { return };
        let (Some((sort, groups)), Some(due)) = (self.groups(op, rows, expert), due.as_slice()) else { return };
        for Group { key, rows } in groups {
            let bits = |row: usize| due[row * width..][..width].iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let all: BTreeSet<Vec<u64>> = rows.clone().map(bits).collect();
            if all.len() == rows.len() {
                let known = self.known.entry((sort, key, expert.is_some()));
                let known = known.or_insert_with(|| Known::of(local(&rows, order)));
                if known.by.is_empty() && !known.is_open {
                    known.order = local(&rows, order);
                }
                // What is right as it stands needs no other to say so.
                known.by.extend((!known.is_open).then_some(tap));
            }
        }
    }
}

/// The order of some rows among themselves.
fn local(rows: &Range<usize>, order: &[usize]) -> Vec<usize> {
    rows.clone().map(|row| order[row] - rows.start).collect()
}

/// Whether rows stand as they are due.
pub(crate) fn is_same(order: &[usize]) -> bool {
    order.iter().enumerate().all(|(to, &from)| to == from)
}

/// How many rows two tensors of one shape have, and how wide these are.
fn rows_of(own: &ArrayD<f64>, due: &ArrayD<f64>) -> Option<(usize, usize)> {
    let rows = *own.shape().first()?;
    (own.shape() == due.shape()).then_some((rows, own.len().checked_div(rows)?))
}

/// For each row that is due, which of the candidate's it is, of whichever expert; `None` where they are no such rows.
pub(crate) fn order(own: &ArrayD<f64>, due: &ArrayD<f64>) -> Option<Vec<usize>> {
    let (_, width) = rows_of(own, due)?;
    row_order(own.as_slice()?, due.as_slice()?, width)
}

#[cfg(test)]
mod tests {
    use ndarray::array;

    use super::*;

    /// Five rows of a sort: two of expert 1, and three of expert 4.
    fn five() -> (Sorted, ArrayD<f64>) {
        let (ops, sorts) = (BTreeMap::from([(7, 3)]), BTreeSet::from([3]));
        let keys = HashMap::from([(3, vec![1, 1, 4, 4, 4])]);
        let due = array![[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0], [9.0, 10.0]].into_dyn();
        (Sorted { ops, sorts, keys, known: HashMap::new() }, due)
    }

    fn of(due: &ArrayD<f64>, rows: &[usize]) -> ArrayD<f64> {
        due.select(ndarray::Axis(0), rows)
    }

    #[test]
    fn rows_stand_in_another_order_within_their_expert_alone() {
        let (sorted, due) = five();
        let own = of(&due, &[1, 0, 4, 2, 3]);
        let order = sorted.order(7, None, &own, &due).unwrap();
        assert_eq!(order, [1, 0, 3, 4, 2]);
        assert_eq!(of(&own, &order), due);
        // All rows turned about: no order of each expert's gives them.
        let own = of(&due, &[4, 3, 2, 1, 0]);
        assert_ne!(of(&own, &sorted.order(7, None, &own, &due).unwrap()), due);
        // Of one expert's rows by themselves.
        assert_eq!(sorted.order(7, Some(1), &of(&due, &[1, 0]), &of(&due, &[0, 1])), Some(vec![1, 0]));
        assert!(!sorted.is_tied(7, 2, Some(4)) && !sorted.is_tied(7, 4, None) && !sorted.is_tied(8, 5, None));
    }

    #[test]
    fn all_taps_of_a_sort_have_one_order() {
        let (mut sorted, due) = five();
        let learn = |sorted: &mut Sorted, rows: &[usize], tap| sorted.learn(7, Some(1), rows, &of(&due, &[0, 1]), tap);
        learn(&mut sorted, &[1, 0], 10);
        assert_eq!(sorted.settled(7, 2, Some(1)), Some(vec![1, 0]));
        // A tap of all rows may be written in another form.
        assert_eq!(sorted.settled(7, 5, None), Some(vec![0, 1, 2, 3, 4]));
        assert_eq!(sorted.against(7, Some(1), &[1, 0]), Against::Nothing);
        learn(&mut sorted, &[1, 0], 11);
        assert_eq!(sorted.against(7, Some(1), &[0, 1]), Against::Much);
        // As in the program.
        sorted.learn(7, None, &[0, 1, 2, 3, 4], &due, 12);
        assert_eq!(sorted.against(7, None, &[0, 1, 2, 4, 3]), Against::Much);
    }

    #[test]
    fn where_one_tap_stands_against_another_no_order_is_known() {
        let (mut sorted, due) = five();
        sorted.learn(7, None, &[1, 0, 2, 3, 4], &due, 10);
        assert_eq!(sorted.against(7, None, &[0, 1, 2, 3, 4]), Against::Little(vec![10]));
        assert_eq!(sorted.settled(7, 5, None), Some(vec![0, 1, 2, 3, 4]));
        assert_eq!(sorted.against(7, None, &[0, 1, 2, 3, 4]), Against::Nothing);
        assert_eq!(sorted.against(7, None, &[1, 0, 2, 3, 4]), Against::Little(Vec::new()));
    }

    #[test]
    fn equal_rows_show_no_order() {
        let (mut sorted, due) = five();
        let due = of(&due, &[0, 0, 2, 3, 4]);
        sorted.learn(7, None, &[0, 1, 2, 3, 4], &due, 10);
        assert_eq!(sorted.against(7, None, &[1, 0, 2, 3, 4]), Against::Nothing);
        assert_eq!(sorted.against(7, None, &[0, 1, 3, 2, 4]), Against::Much);
    }
}
