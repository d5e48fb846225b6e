//! Finds the permutation between two tensors with the same rows in different orders.

/// Steps after which the search is given up. Rows that are only permuted take far fewer: the right one is found at once.
const MOST: usize = 1 << 32;

/// How many values are added before the sum is compared with the smallest so far.
const PIECE: usize = 64;

/// For each row of `reference`, the index of the nearest row of `candidate` that no earlier row took; of equally near rows, the one in the same place. `None` where the
/// two have different numbers of rows of `width` values, or are so different that the search would take too long.
pub fn row_order(candidate: &[f64], reference: &[f64], width: usize) -> Option<Vec<usize>> {
    let is_finite = candidate.iter().chain(reference).all(|x| x.is_finite());
    if width == 0 || candidate.len() != reference.len() || !candidate.len().is_multiple_of(width) || !is_finite {
        return None;
    }
    let mut sorted: Vec<(f64, usize)> =
        candidate.chunks_exact(width).enumerate().map(|(at, row)| (along(row), at)).collect();
    sorted.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut taken = vec![false; sorted.len()];
    let mut order = Vec::with_capacity(sorted.len());
    let mut steps = 0;
    for (here, due) in reference.chunks_exact(width).enumerate() {
        let row = |at: usize| &candidate[at * width..(at + 1) * width];
        let mut nearest = if taken[here] { None } else { distance(row(here), due, f64::INFINITY, &mut steps) };
        let mut found = here;
        let place = along(due);
        let (below, above) = sorted.split_at(sorted.partition_point(|(other, _)| *other < place));
        let (mut below, mut above) = (below.iter().rev().peekable(), above.iter().peekable());
        let off = |next: Option<&&(f64, usize)>| next.map_or(f64::INFINITY, |(other, _)| (other - place).abs());
        loop {
            let (down, up) = (off(below.peek()), off(above.peek()));
            let Some(&(other, at)) = (if down < up { below.next() } else { above.next() }) else { break };
            // The distance of two rows along the direction, divided by its length, is a lower bound of their distance: no row further outwards is nearer.
            if nearest.is_some_and(|nearest| (other - place) * (other - place) > nearest * width as f64) {
                break;
            }
            steps += 1;
            if taken[at] || at == here {
                continue;
            }
            if let Some(nearer) = distance(row(at), due, nearest.unwrap_or(f64::INFINITY), &mut steps) {
                (nearest, found) = (Some(nearer), at);
            }
        }
        if nearest.is_none() || steps > MOST {
            return None;
        }
        taken[found] = true;
        order.push(found);
    }
    Some(order)
}

/// The squared distance of two rows, if it is below `most`.
fn distance(own: &[f64], due: &[f64], most: f64, steps: &mut usize) -> Option<f64> {
    let mut sum = 0.0;
    for (own, due) in own.chunks(PIECE).zip(due.chunks(PIECE)) {
        sum += own.iter().zip(due).map(|(own, due)| (own - due) * (own - due)).sum::<f64>();
        *steps += own.len();
        if sum >= most {
            return None;
        }
    }
    Some(sum)
}

/// The projection of a row on a direction whose length is the square root of the width.
fn along(row: &[f64]) -> f64 {
    row.iter().enumerate().map(|(i, x)| if is_reversed(i) { -x } else { *x }).sum()
}

/// Signs without a period, by the number of ones in the index: structured rows differ along this direction too.
fn is_reversed(i: usize) -> bool {
    i.count_ones() % 2 == 1
}
