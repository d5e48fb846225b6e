//! Finds the law by which B's tensor is made of A's: a factor or a number of its own for each part, another order of rows or columns, a difference of low rank.
//! What it costs, its own numbers and places, is weighed in `paid.rs`.

use firstdiff_evidence::choice;
use firstdiff_laws::{Axis, order_in_words};

use super::diagnose::{Diagnosis, Pair, close, first_few};
use super::noise;
use super::paid::Cost;
use super::relations::exchanged;
use super::rows::Pool;
use crate::tolerance::weights::{
    LEAST_ALLOWED, MOST_ELEMENTS, MOST_ORDERED, MOST_RANK, OTHER_ORDER, PART_SIZES, QUANTISING_ROOM, SAME_ROW,
    SAME_STEP, SAME_VALUE, WINDOW,
};

/// Two matrices of one shape; a vector is one row.
pub(super) struct Both<'a> {
    pub(super) pair: &'a Pair<'a>,
    pub(super) a: &'a [f32],
    pub(super) b: &'a [f32],
    /// Rows and columns.
    shape: [usize; 2],
    /// What rounding may leave, element by element.
    due: Vec<f32>,
}

/// The law of two tensors whose values a law may be of.
pub(super) fn law(pair: &Pair<'_>, find: impl Fn(&Both<'_>) -> Option<Diagnosis>) -> Option<Diagnosis> {
    let right = pair.right.in_order(pair.expected_order());
    if pair.left.shape() != right.shape() || !(1..=MOST_ELEMENTS).contains(&right.len()) {
        return None;
    }
    let (a, b) = (pair.left.values(), right.values());
    let both = Both::of(pair, &a, &b);
    let is_finite = a.iter().chain(&b).all(|x| x.is_finite());
    is_finite.then(|| find(&both))?
}

/// A number for each part that is not right: what is added to it, or a factor less 1.
struct Fit {
    /// Rows and columns of a part.
    part: [usize; 2],
    is_factor: bool,
    values: Vec<Option<f64>>,
    cost: Cost,
}

impl<'a> Both<'a> {
    pub(super) fn of(pair: &'a Pair<'a>, a: &'a [f32], b: &'a [f32]) -> Both<'a> {
        let width = pair.left.row_len().max(1);
        let storages = [pair.left.storage(), pair.right.storage()];
        let noise = if pair.copy { vec![0.0; a.len()] } else { noise::between([a, b], storages) };
        let room = |(x, due): (&f32, f32)| 2.0 * QUANTISING_ROOM as f32 * due + OTHER_ORDER as f32 * x * x;
        Both { pair, a, b, shape: [a.len() / width, width], due: a.iter().zip(noise).map(room).collect() }
    }

    fn difference(&self, at: usize) -> f64 {
        f64::from(self.b[at]) - f64::from(self.a[at])
    }

    /// In which part an element is.
    fn number(&self, [r, c]: [usize; 2], at: usize) -> usize {
        let width = self.shape[1];
        at / width / r * (width / c) + at % width / c
    }

    /// For each part Σ d, d², x·d, x² and what is due, where x is A's and d the difference.
    fn sums(&self, part: [usize; 2]) -> Vec<[f64; 5]> {
        let mut sums = vec![[0.0; 5]; self.a.len() / (part[0] * part[1])];
        for (at, due) in self.due.iter().enumerate() {
            let (x, d) = (f64::from(self.a[at]), self.difference(at));
            let to = &mut sums[self.number(part, at)];
            to.iter_mut().zip([d, d * d, x * d, x * x, f64::from(*due)]).for_each(|(to, add)| *to += add);
        }
        sums
    }

    /// The rows that are not right, and the columns; and the share of the error that stands in them.
    pub(super) fn wrong(&self) -> [(Vec<usize>, f64); 2] {
        let [rows, width] = self.shape;
        [[1, width], [rows, 1]].map(|part| {
            let sums = self.sums(part);
            let some: Vec<usize> = (0..sums.len()).filter(|&i| sums[i][1] > sums[i][4]).collect();
            let held: f64 = some.iter().map(|&i| sums[i][1]).sum();
            (some, held / sums.iter().map(|sum| sum[1]).sum::<f64>())
        })
    }

    /// Rows, columns, and groups of the sizes that quantisation uses.
    fn parts(&self) -> Vec<[usize; 2]> {
        let [rows, width] = self.shape;
        let sizes = |of: usize| PART_SIZES.into_iter().filter(move |size| *size < of && of.is_multiple_of(*size));
        let mut parts = vec![[1, width], [rows, 1]];
        parts.extend(sizes(width).map(|size| [1, size]));
        parts.extend(sizes(rows).flat_map(|size| [[size, 1], [size, width]]));
        parts.extend(sizes(width).filter(|&size| sizes(rows).any(|other| other == size)).map(|size| [size, size]));
        parts.retain(|[r, c]| (2..rows * width).contains(&(r * c)));
        parts
    }

    /// The fits of a part that leave rounding.
    fn fits(&self, part: [usize; 2]) -> Vec<Fit> {
        let (sums, size) = (self.sums(part), part[0] * part[1]);
        let wrong: Vec<&[f64; 5]> = sums.iter().filter(|[_, dd, .., due]| dd > due).collect();
        let fit = |is_factor: bool| {
            let over = |[d, _, xd, xx, _]: &[f64; 5]| if is_factor { (*xd, *xx) } else { (*d, size as f64) };
            let value = |sum: &[f64; 5]| over(sum).0 / over(sum).1;
            let (mut left, mut room) = (0.0, 0.0);
            for sum in &wrong {
                let [_, dd, xd, xx, own] = **sum;
                left += dd - value(sum) * over(sum).0;
                room += own + LEAST_ALLOWED * (xx + 2.0 * xd + dd);
            }
            let numbers: Vec<f64> = wrong.iter().map(|sum| value(sum)).collect();
            let free = if is_one(&numbers) { 1 } else { numbers.len() };
            let places = if numbers.len() == sums.len() { 0.0 } else { numbers.len() as f64 * choice(sums.len()) };
            let values = || sums.iter().map(|sum| (sum[1] > sum[4]).then(|| value(sum))).collect();
            let cost = Cost { numbers: free, places };
            (left <= room).then(|| Fit { part, is_factor, values: values(), cost })
        };
        [true, false].into_iter().filter_map(fit).collect()
    }

    /// One factor on all values, or one number that is added.
    pub(super) fn throughout(&self) -> Option<Diagnosis> {
        self.of_parts(vec![self.shape])
    }

    /// A factor or a number of its own for each part.
    pub(super) fn by_parts(&self) -> Option<Diagnosis> {
        self.of_parts(self.parts())
    }

    /// A factor, or a number that is added, of each part that is wrong. What holds of all holds of some rows, the first wrong one among them.
    fn of_parts(&self, mut parts: Vec<[usize; 2]>) -> Option<Diagnosis> {
        let [rows, width] = self.shape;
        if rows > 4 * WINDOW {
            let wrong = (0..self.a.len()).position(|at| self.difference(at).powi(2) > f64::from(self.due[at]))?;
            let first = (wrong / width / WINDOW * WINDOW).min(rows - 2 * WINDOW);
            let cut = first * width..(first + 2 * WINDOW) * width;
            let due = self.due[cut.clone()].to_vec();
            let some = Both { a: &self.a[cut.clone()], b: &self.b[cut], shape: [2 * WINDOW, width], due, ..*self };
            parts.retain(|&[r, c]| !some.fits([r.min(2 * WINDOW), c]).is_empty());
        }
        let fits = parts.into_iter().flat_map(|part| self.fits(part));
        let Fit { part, is_factor, values, cost } =
            fits.min_by(|one, other| one.cost.bits(1.0).total_cmp(&other.cost.bits(1.0)))?;
        let change = |(at, x): (usize, &f32)| match values[self.number(part, at)] {
            Some(value) if is_factor => (f64::from(*x) * (1.0 + value)) as f32,
            Some(value) => (f64::from(*x) + value) as f32,
            None => *x,
        };
        let made: Vec<f32> = self.a.iter().enumerate().map(change).collect();
        let residual = close(&made, self.b, self.pair)?;
        let some: Vec<usize> = (0..values.len()).filter(|&i| values[i].is_some()).collect();
        let named = |what: &str| match values.len() {
            all if some.len() == all => format!("all {all} {what}"),
            all => format!("{what} {} of {all}", first_few(&some)),
        };
        let whose = match part {
            whole if whole == self.shape => "throughout".to_owned(),
            [r, 1] if r == rows => named("columns"),
            [1, c] if c == width => named("rows"),
            [r, c] => format!("{} of {} groups of {r} by {c} (rows by columns)", some.len(), values.len()),
        };
        let numbers: Vec<f64> = values.iter().flatten().map(|v| if is_factor { 1.0 + v } else { *v }).collect();
        let (low, high) = numbers.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
        let what = match (is_factor, is_one(&numbers)) {
            (true, true) => {
                // As many digits as are known of it.
                let count = (some.len() * part[0] * part[1]) as f64;
                let digits = -(2.0 * (residual / count).sqrt()).log10();
                let within = if part == self.shape { "" } else { "in " };
                format!("{low:.0$} times the right values {within}{whose}", digits.clamp(2.0, 6.0) as usize)
            }
            (true, false) => format!("times a factor of its own, {low:.4} to {high:.4}, in each of {whose}"),
            (false, true) if part == self.shape => format!("{low:.4e} is added to every element"),
            (false, true) => format!("{low:.4e} is added in {whose}"),
            (false, false) => format!("a number of its own is added, {low:.4e} to {high:.4e}, in each of {whose}"),
        };
        let steps = if is_factor { None } else { self.steps(part, &values) };
        let steps =
            steps.map_or(String::new(), |n| format!(": {n} steps between A's levels there, as of a zero point"));
        let others = if some.len() < values.len() { "; the others are right" } else { "" };
        Some(Diagnosis::law(format!("{what}{steps}{others}"), residual, cost))
    }

    /// The one whole number of steps that is added to every part, where A's values stand on levels.
    fn steps(&self, part: [usize; 2], values: &[Option<f64>]) -> Option<f64> {
        let mut members: Vec<Vec<f64>> = vec![Vec::new(); values.len()];
        self.a.iter().enumerate().for_each(|(at, x)| members[self.number(part, at)].push(f64::from(*x)));
        let whole = |x: f64| (x - x.round()).abs() < 10.0 * SAME_STEP && (1.0..256.0).contains(&x.round().abs());
        let ratio = |(value, mut of): (&Option<f64>, Vec<f64>)| {
            let value = (*value)?;
            of.sort_by(f64::total_cmp);
            let gaps = || of.windows(2).map(|pair| pair[1] - pair[0]).filter(|gap| *gap > SAME_STEP * value.abs());
            let step = gaps().fold(f64::INFINITY, f64::min);
            Some(if gaps().all(|gap| whole(gap / step)) { value / step } else { f64::NAN })
        };
        let ratios: Vec<f64> = values.iter().zip(members).filter_map(ratio).collect();
        // Where no two levels are neighbours the step is some times that of the others.
        let most = ratios.iter().copied().max_by(|x, y| x.abs().total_cmp(&y.abs()))?;
        (whole(most) && ratios.iter().all(|ratio| ratio * most > 0.0 && whole(most / ratio))).then(|| most.round())
    }

    /// Every row of B is a row of A, or every column a column.
    pub(super) fn reordered(&self) -> Option<Diagnosis> {
        let [rows, width] = self.shape;
        let sum = |of: &dyn Fn(usize) -> f64| (0..self.a.len()).map(of).sum::<f64>();
        let (energy, due) =
            (sum(&|at| f64::from(self.a[at]).powi(2)), self.due.iter().map(|due| f64::from(*due)).sum::<f64>());
        let same = (2.0 * due / energy).clamp(LEAST_ALLOWED, SAME_ROW);
        [(Axis::Row, "rows", [rows, width]), (Axis::Channel, "columns", [width, rows])].into_iter().find_map(
            |(axis, name, [count, length])| {
                let turned =
                    |values: &[f32], shape| if axis == Axis::Row { values.to_vec() } else { exchanged(values, shape) };
                if !(2..=MOST_ORDERED).contains(&count) {
                    return None;
                }
                let a = turned(self.a, &self.shape);
                let from = Pool::within(length, vec![a.clone()], same).order(&turned(self.b, &self.shape))?;
                let made: Vec<f32> = from.iter().flat_map(|&i| a[i * length..][..length].iter().copied()).collect();
                let moved = from.iter().enumerate().filter(|(i, from)| i != *from).count();
                if moved == 0 {
                    return None;
                }
                let lost = count - from.iter().collect::<std::collections::BTreeSet<_>>().len();
                let what = match lost {
                    0 => "A's in another order".into(),
                    _ => format!("A's, but {lost} of A's are lost and others stand twice"),
                };
                let how = order_in_words(&from, count, axis);
                let note = format!("its {name} are {what}, {moved} of {count} at another place: {how}");
                let cost = Cost { numbers: 0, places: moved as f64 * choice(count) };
                let residual = close(&turned(&made, &[count, length]), self.b, self.pair)?;
                Some(Diagnosis::law(note, residual, cost))
            },
        )
    }

    /// The difference as a sum of few products of a column and a row, as an adapter that is merged adds.
    pub(super) fn low_rank(&self) -> Option<Diagnosis> {
        let [rows, width] = self.shape;
        let energy = |of: &[f64]| of.iter().map(|x| x * x).sum::<f64>();
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let mut rest: Vec<f64> = (0..self.a.len()).map(|at| self.difference(at)).collect();
        let right: f64 = self.a.iter().map(|x| f64::from(*x).powi(2)).sum();
        let (whole, room) =
            (energy(&rest), self.due.iter().map(|due| f64::from(*due)).sum::<f64>().max(LEAST_ALLOWED * right));
        // What stands in few rows or columns is of no higher rank than they are many.
        let most = MOST_RANK.min(self.wrong().map(|(some, _)| some.len()).into_iter().min()? / 4);
        let (mut before, mut rank) = (whole, 0);
        while rank < most {
            rank += 1;
            let mut along = rest.chunks(width).max_by(|x, y| energy(x).total_cmp(&energy(y)))?.to_vec();
            // Twice Rᵀ R: what is left that is largest.
            for _ in 0..2 {
                let mut next = vec![0.0; width];
                for row in rest.chunks(width) {
                    let by = dot(row, &along);
                    next.iter_mut().zip(row).for_each(|(to, x)| *to += by * x);
                }
                let length = energy(&next).sqrt();
                along = next.into_iter().map(|x| x / length).collect();
            }
            for row in rest.chunks_mut(width) {
                let by = dot(row, &along);
                row.iter_mut().zip(&along).for_each(|(x, y)| *x -= by * y);
            }
            let left = energy(&rest);
            if left <= room {
                let note = format!("the difference has rank {rank}, as of an adapter (LoRA) that was merged");
                let cost = Cost { numbers: rank * (rows + width - rank), places: 0.0 };
                return Some(Diagnosis::law(note, left / right, cost));
            }
            // Each takes no less than those that come after it; a NaN takes nothing.
            let takes_its_share = (before - left) * (most - rank + 1) as f64 > 0.5 * before;
            if !takes_its_share {
                return None;
            }
            before = left;
        }
        None
    }
}

/// Whether numbers are one.
fn is_one(numbers: &[f64]) -> bool {
    let first = numbers.first().copied().unwrap_or(0.0);
    numbers.iter().all(|x| (x - first).abs() <= f64::from(SAME_VALUE) * first.abs())
}
