//! Checks that permuted rows are found by their values.

use firstdiff_compare::row_order;

fn value(at: usize) -> f64 {
    let x = (at as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((x ^ (x >> 31)).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 11) as f64 / (1u64 << 53) as f64 - 0.5
}

#[test]
fn rows_are_found_through_rounding() {
    const WIDTH: usize = 70;
    let due: Vec<f64> = (0..40 * WIDTH).map(value).collect();
    let order: Vec<usize> = (0..40).map(|at| at * 7 % 40).collect();
    let mut own = vec![0.0; due.len()];
    for (from, &to) in order.iter().enumerate() {
        for i in 0..WIDTH {
            own[to * WIDTH + i] = due[from * WIDTH + i] * (1.0 + 1e-3 * value(5 * i + from));
        }
    }
    assert_eq!(row_order(&own, &due, WIDTH), Some(order));
    assert_eq!(row_order(&due, &due, WIDTH), Some((0..40).collect()));
}

#[test]
fn each_row_is_taken_once_and_equal_ones_stay() {
    let due = [1.0, 2.0, 5.0, 6.0, 1.0, 2.0, 1.0, 2.0];
    assert_eq!(row_order(&due, &due, 2), Some(vec![0, 1, 2, 3]));
    let own = [5.0, 6.0, 1.0, 2.0, 1.0, 2.0, 1.0, 2.0];
    let order = row_order(&own, &due, 2).unwrap();
    assert_eq!(order[1], 0);
    assert_eq!(order.iter().copied().collect::<std::collections::BTreeSet<_>>().len(), 4);
}

#[test]
fn what_are_no_such_rows_has_no_order() {
    assert_eq!(row_order(&[1.0, 2.0], &[1.0, 2.0, 3.0], 1), None);
    assert_eq!(row_order(&[1.0, 2.0, 3.0], &[1.0, 2.0, 3.0], 2), None);
    assert_eq!(row_order(&[1.0, f64::NAN], &[1.0, f64::NAN], 1), None);
    assert_eq!(row_order(&[], &[], 0), None);
}

#[test]
fn many_rows_in_another_order_are_found_in_time() {
    const ROWS: usize = 6000;
    const WIDTH: usize = 256;
    let due: Vec<f64> = (0..ROWS * WIDTH).map(value).collect();
    let own: Vec<f64> = due.chunks(WIDTH).rev().flatten().map(|x| x * (1.0 + 1e-3)).collect();
    assert_eq!(row_order(&own, &due, WIDTH), Some((0..ROWS).rev().collect()));
}
