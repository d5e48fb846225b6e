//! Reproduces which of several equal values PyTorch's topk takes on CPU: those that libstdc++'s `std::nth_element` and `std::sort` put first. A router that
//! masks experts with 0 has equal values, and the choice decides which expert a token goes to.

/// The indices of the first `k` values of a row in PyTorch's order; `before(a, b)` says whether a comes before b.
///
/// As torch 2.9 with libstdc++ 4.6 to 15, if k · 64 is more than the length of the row; otherwise, and on other platforms, equals may be ordered otherwise.
pub(super) fn top_indices<T: Copy>(row: &[T], k: usize, is_sorted: bool, before: impl Fn(T, T) -> bool) -> Vec<usize> {
    let mut queue: Vec<usize> = (0..row.len()).collect();
    let less = |a: usize, b: usize| before(row[a], row[b]);
    if k == 0 {
        return Vec::new();
    }
    if k.saturating_mul(64) <= row.len() || !nth_element(&mut queue, k - 1, &less) {
        queue.sort_unstable();
        queue.sort_by(|&a, &b| less(b, a).cmp(&less(a, b)));
    } else if is_sorted {
        sort(&mut queue[..k - 1], &less);
    }
    queue.truncate(k);
    queue
}

/// `std::nth_element`; returns whether it ended within its depth limit.
fn nth_element(queue: &mut [usize], nth: usize, less: &impl Fn(usize, usize) -> bool) -> bool {
    let (mut first, mut last) = (0, queue.len());
    let mut depth = 2 * queue.len().max(1).ilog2();
    while last - first > 3 {
        if depth == 0 {
            return false;
        }
        depth -= 1;
        let cut = first + partition(&mut queue[first..last], less);
        if cut <= nth { first = cut } else { last = cut }
    }
    insertion_sort(&mut queue[first..last], less);
    true
}

/// `std::sort`; rows that exceed its depth limit do not occur here.
fn sort(queue: &mut [usize], less: &impl Fn(usize, usize) -> bool) {
    fn split(queue: &mut [usize], less: &impl Fn(usize, usize) -> bool) {
        let mut last = queue.len();
        while last > 16 {
            let cut = partition(&mut queue[..last], less);
            split(&mut queue[cut..last], less);
            last = cut;
        }
    }
    split(queue, less);
    insertion_sort(queue, less);
}

/// `__unguarded_partition_pivot`: moves the median of three to the front, then partitions the rest around it.
fn partition(queue: &mut [usize], less: &impl Fn(usize, usize) -> bool) -> usize {
    let (a, b, c) = (1, queue.len() / 2, queue.len() - 1);
    let (x, y, z) = (queue[a], queue[b], queue[c]);
    let median = if less(x, y) {
        if less(y, z) {
            b
        } else if less(x, z) {
            c
        } else {
            a
        }
    } else if less(x, z) {
        a
    } else if less(y, z) {
        c
    } else {
        b
    };
    queue.swap(0, median);
    let (pivot, mut first, mut last) = (queue[0], 1, queue.len());
    loop {
        // The pivot is a median of three, so on each side an element ends the loop.
        while first < queue.len() && less(queue[first], pivot) {
            first += 1;
        }
        last -= 1;
        while last > 0 && less(pivot, queue[last]) {
            last -= 1;
        }
        if first >= last {
            return first;
        }
        queue.swap(first, last);
        first += 1;
    }
}

fn insertion_sort(queue: &mut [usize], less: &impl Fn(usize, usize) -> bool) {
    for i in 1..queue.len() {
        let mut at = i;
        while at > 0 && less(queue[at], queue[at - 1]) {
            queue.swap(at, at - 1);
            at -= 1;
        }
    }
}
