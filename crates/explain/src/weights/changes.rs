//! Finds the law by which B's tensor is made of A's: a factor or a number of its own for each part, another order of rows or columns, a difference of low rank.
//! Each is paid for: what it explains takes more bits than its own numbers and places.

use firstdiff_laws::{Axis, order_in_words};

use super::diagnose::{Diagnosis, Pair, close, ranges, transpose};
use super::noise;
use super::rows::Pool;
use crate::tolerance::weights::{
    FEWEST_OF_PART, LEAST_ALLOWED, MOST_ELEMENTS, MOST_ORDERED, MOST_RANK, NUMBER_BITS, OTHER_ORDER, PART_SIZES,
    QUANTISING_ROOM, SAME_ROW, SAME_STEP, SAME_VALUE, SURE_BITS, WINDOW,
};

/// Two matrices of one shape; a vector is one row.
pub(super) struct Both<'a> {
    pair: &'a Pair<'a>,
    a: &'a [f32],
    b: &'a [f32],
    /// Rows and columns.
    shape: [usize; 2],
    /// What rounding may leave, element by element.
    due: Vec<f32>,
}

/// The law, where there is one.
pub(super) fn changes(pair: &Pair<'_>) -> Option<Diagnosis> {
    let right = pair.right.in_order(pair.expected_order());
    if pair.left.shape() != right.shape() || !(1..=MOST_ELEMENTS).contains(&right.len()) {
        return None;
    }
    let (a, b) = (pair.left.values(), right.values());
    let both = Both::of(pair, &a, &b);
    let is_finite = a.iter().chain(&b).all(|x| x.is_finite());
    is_finite.then(|| both.by_parts().or_else(|| both.reordered()).or_else(|| both.low_rank()))?
}

/// A number for each part that is not right: what is added to it, or a factor less 1.
struct Fit {
    /// Rows and columns of a part.
    part: [usize; 2],
    is_factor: bool,
    values: Vec<Option<f64>>,
    price: f64,
}

/// Bits that `count` numbers carry of an error, above what is left of it.
fn gained(count: usize, error: f64, left: f64) -> f64 {
    0.5 * count as f64 * (error / left.max(f64::MIN_POSITIVE)).log2()
}

impl<'a> Both<'a> {
    pub(super) fn of(pair: &'a Pair<'a>, a: &'a [f32], b: &'a [f32]) -> Both<'a> {
        let width = pair.left.row_len().max(1);
        let storages = [pair.left.storage(), pair.right.storage()];
        let noise = if pair.copy { vec![0.0; a.len()] } else { noise::between([a, b], storages) };
        let room = |(x, due): (&f32, f32)| 2.0 * QUANTISING_ROOM as f32 * due + OTHER_ORDER as f32 * x * x;
        Both { pair, a, b, shape: [a.len() / width, width], due: a.iter().zip(noise).map(room).collect() }
    }

    fn law(&self, note: String, made: &[f32]) -> Option<Diagnosis> {
        Some(Diagnosis { cause: None, note, residual: Some(close(made, self.b, self.pair)?) })
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

    /// The rows that are not right, and the columns.
    pub(super) fn wrong(&self) -> [Vec<usize>; 2] {
        let [rows, width] = self.shape;
        [[1, width], [rows, 1]].map(|part| {
            let sums = self.sums(part);
            (0..sums.len()).filter(|&i| sums[i][1] > sums[i][4]).collect()
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
        parts.retain(|[r, c]| (FEWEST_OF_PART..rows * width).contains(&(r * c)));
        parts
    }

    /// The fits of a part that leave rounding and pay.
    fn fits(&self, part: [usize; 2]) -> Vec<Fit> {
        let (sums, size) = (self.sums(part), part[0] * part[1]);
        let wrong: Vec<&[f64; 5]> = sums.iter().filter(|[_, dd, .., due]| dd > due).collect();
        let fit = |is_factor: bool| {
            let over = |[d, _, xd, xx, _]: &[f64; 5]| if is_factor { (*xd, *xx) } else { (*d, size as f64) };
            let value = |sum: &[f64; 5]| over(sum).0 / over(sum).1;
            let (mut error, mut left, mut due, mut room) = (0.0, 0.0, 0.0, 0.0);
            for sum in &wrong {
                let [_, dd, xd, xx, own] = **sum;
                (error, due, left) = (error + dd, due + own, left + dd - value(sum) * over(sum).0);
                room += own + LEAST_ALLOWED * (xx + 2.0 * xd + dd);
            }
            let numbers: Vec<f64> = wrong.iter().map(|sum| value(sum)).collect();
            let free = if is_one(&numbers) { 1 } else { numbers.len() } as f64;
            let price = NUMBER_BITS * free + numbers.len() as f64 * (sums.len() as f64).log2() + SURE_BITS;
            let pays = gained(wrong.len() * size, error, left.max(due)) > 2.0 * price;
            let values = || sums.iter().map(|sum| (sum[1] > sum[4]).then(|| value(sum))).collect();
            (left <= room && pays).then(|| Fit { part, is_factor, values: values(), price })
        };
        [true, false].into_iter().filter_map(fit).collect()
    }

    /// A factor, or a number that is added, of each part that is wrong. What holds of all holds of some rows, the first wrong one among them.
    fn by_parts(&self) -> Option<Diagnosis> {
        let [rows, width] = self.shape;
        let mut parts = self.parts();
        if rows > 4 * WINDOW {
            let wrong = (0..self.a.len()).position(|at| self.difference(at).powi(2) > f64::from(self.due[at]))?;
            let first = (wrong / width / WINDOW * WINDOW).min(rows - 2 * WINDOW);
            let cut = first * width..(first + 2 * WINDOW) * width;
            let due = self.due[cut.clone()].to_vec();
            let some = Both { a: &self.a[cut.clone()], b: &self.b[cut], shape: [2 * WINDOW, width], due, ..*self };
            parts.retain(|&[r, c]| !some.fits([r.min(2 * WINDOW), c]).is_empty());
        }
        let fits = parts.into_iter().flat_map(|part| self.fits(part));
        let Fit { part, is_factor, values, .. } = fits.min_by(|one, other| one.price.total_cmp(&other.price))?;
        let change = |(at, x): (usize, &f32)| match values[self.number(part, at)] {
            Some(value) if is_factor => (f64::from(*x) * (1.0 + value)) as f32,
            Some(value) => (f64::from(*x) + value) as f32,
            None => *x,
        };
        let made: Vec<f32> = self.a.iter().enumerate().map(change).collect();
        let some: Vec<usize> = (0..values.len()).filter(|&i| values[i].is_some()).collect();
        let named = |what: &str| match values.len() {
            all if some.len() == all => format!("all {all} {what}"),
            all => format!("{what} {} of {all}", ranges(&some)),
        };
        let whose = match part {
            [r, 1] if r == rows => named("columns"),
            [1, c] if c == width => named("rows"),
            [r, c] => format!("{} of {} groups of {r} by {c} (rows by columns)", some.len(), values.len()),
        };
        let numbers: Vec<f64> = values.iter().flatten().map(|v| if is_factor { 1.0 + v } else { *v }).collect();
        let (low, high) = numbers.iter().fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
        let what = match (is_factor, is_one(&numbers)) {
            (true, true) => format!("{low:.6} times the right values in {whose}"),
            (true, false) => format!("times a factor of its own, {low:.4} to {high:.4}, in each of {whose}"),
            (false, true) => format!("{low:.4e} is added in {whose}"),
            (false, false) => format!("a number of its own is added, {low:.4e} to {high:.4e}, in each of {whose}"),
        };
        let steps = if is_factor { None } else { self.steps(part, &values) };
        let steps =
            steps.map_or(String::new(), |n| format!(": {n} steps between A's levels there, as of a zero point"));
        let others = if some.len() < values.len() { "; the others are right" } else { "" };
        self.law(format!("{what}{steps}{others}"), &made)
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
    fn reordered(&self) -> Option<Diagnosis> {
        let [rows, width] = self.shape;
        let sum = |of: &dyn Fn(usize) -> f64| (0..self.a.len()).map(of).sum::<f64>();
        let (energy, due) =
            (sum(&|at| f64::from(self.a[at]).powi(2)), self.due.iter().map(|due| f64::from(*due)).sum::<f64>());
        let (error, same) =
            (sum(&|at| self.difference(at).powi(2)), (2.0 * due / energy).clamp(LEAST_ALLOWED, SAME_ROW));
        [(Axis::Row, "rows", [rows, width]), (Axis::Channel, "columns", [width, rows])].into_iter().find_map(
            |(axis, name, [count, length])| {
                let turned =
                    |values: &[f32], shape| if axis == Axis::Row { values.to_vec() } else { transpose(values, shape) };
                if !(2..=MOST_ORDERED).contains(&count) {
                    return None;
                }
                let a = turned(self.a, &self.shape);
                let from = Pool::within(length, vec![a.clone()], same).order(&turned(self.b, &self.shape))?;
                let made: Vec<f32> = from.iter().flat_map(|&i| a[i * length..][..length].iter().copied()).collect();
                let moved = from.iter().enumerate().filter(|(i, from)| i != *from).count();
                let price = moved as f64 * (count as f64).log2() + SURE_BITS;
                if moved == 0 || gained(moved * length, error, due) <= 2.0 * price {
                    return None;
                }
                let lost = count - from.iter().collect::<std::collections::BTreeSet<_>>().len();
                let what = match lost {
                    0 => "A's in another order".into(),
                    _ => format!("A's, but {lost} of A's are lost and others stand twice"),
                };
                let how = order_in_words(&from, count, axis);
                let note = format!("its {name} are {what}, {moved} of {count} at another place: {how}");
                self.law(note, &turned(&made, &[count, length]))
            },
        )
    }

    /// The difference as a sum of few products of a column and a row, as an adapter that is merged adds.
    fn low_rank(&self) -> Option<Diagnosis> {
        let [rows, width] = self.shape;
        let energy = |of: &[f64]| of.iter().map(|x| x * x).sum::<f64>();
        let dot = |x: &[f64], y: &[f64]| x.iter().zip(y).map(|(x, y)| x * y).sum::<f64>();
        let mut rest: Vec<f64> = (0..self.a.len()).map(|at| self.difference(at)).collect();
        let right: f64 = self.a.iter().map(|x| f64::from(*x).powi(2)).sum();
        let (whole, room) =
            (energy(&rest), self.due.iter().map(|due| f64::from(*due)).sum::<f64>().max(LEAST_ALLOWED * right));
        // What stands in few rows or columns is of no higher rank than they are many.
        let most = MOST_RANK.min(self.wrong().map(|some| some.len()).into_iter().min()? / 4);
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
            let price = NUMBER_BITS * (rank * (rows + width - rank)) as f64 + SURE_BITS;
            if left <= room && gained(self.a.len(), whole, left) > 1.25 * price {
                let note = format!("the difference has rank {rank}, as of an adapter (LoRA) that was merged");
                return Some(Diagnosis { cause: None, note, residual: Some(left / right) });
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
