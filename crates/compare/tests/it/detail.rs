//! Checks the detail of one tap: where its error is, its worst elements, its histogram and maps.

use std::borrow::Cow;

use firstdiff_compare::{DifferenceHistogram, Pair, TapDetail, TensorRef, ValuePair};
use firstdiff_trace::{Site, Values};

fn detail(site: Site, shape: &[usize], reference: &[f64], candidate: &[f64]) -> TapDetail {
    let [r, c] = [reference, candidate].map(|v| Values::F64(Cow::Owned(v.to_vec())));
    let of = |values| TensorRef { values, shape, rows: None };
    TapDetail::measure(&Pair::new(site, &of(&r), &of(&c), None).unwrap())
}

#[test]
fn an_error_stands_at_its_position_head_and_channel() {
    let reference = [1.0; 2 * 2 * 4];
    let mut candidate = reference;
    // Position 1, head 0, channel 2.
    candidate[10] = 1.5;
    let detail = detail(Site::Q, &[2, 2, 4], &reference, &candidate);
    assert_eq!(detail.positions.nmse, [0.0, 0.25 / 8.0]);
    assert_eq!(detail.heads.nmse, [0.25 / 8.0, 0.0]);
    assert_eq!(detail.channels.nmse, [0.0, 0.0, 0.25 / 4.0, 0.0]);
    assert_eq!(detail.worst, [ValuePair { index: vec![1, 0, 2], reference: 1.0, candidate: 1.5 }]);
    assert_eq!(detail.spread, DifferenceHistogram { equal: 15, not_finite: 0, from: -1, counts: vec![1] });
    assert_eq!(detail.maps, None);
}

#[test]
fn what_is_not_finite_is_worst_and_no_bar_is_a_nan() {
    let detail = detail(Site::H0, &[2, 2], &[1.0, 1.0, 0.0, 1.0], &[1.0, 9.0, 0.0, f64::NAN]);
    assert_eq!(detail.worst.iter().map(|w| w.index.clone()).collect::<Vec<_>>(), [[1, 1], [0, 1]]);
    assert_eq!(detail.positions.nmse, [32.0, f64::INFINITY]);
    assert_eq!((detail.spread.equal, detail.spread.not_finite), (2, 1));
}

#[test]
fn infinities_that_are_equal_are_no_difference() {
    let detail = detail(Site::H0, &[1, 2], &[f64::INFINITY, 1.0], &[f64::INFINITY, 1.0]);
    assert_eq!((detail.spread.equal, detail.worst.len(), detail.positions.nmse[0]), (2, 0, 0.0));
}

#[test]
fn many_positions_stand_together() {
    let mut candidate = vec![1.0; 1000];
    candidate[999] = 2.0;
    let detail = detail(Site::H0, &[1000, 1], &vec![1.0; 1000], &candidate);
    assert_eq!((detail.positions.each, detail.positions.nmse.len(), detail.tokens[1]), (16, 63, [16, 31]));
    // The last group holds the remaining eight positions.
    assert_eq!(detail.tokens[62], [992, 999]);
    assert_eq!(detail.positions.nmse[62], 1.0 / 8.0);
}

#[test]
fn a_map_is_of_the_head_that_is_furthest_off() {
    let reference = [1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 0.5, 0.5];
    let candidate = [1.0, 0.0, 0.5, 0.5, 1.0, 0.0, 0.25, 0.75];
    let maps = detail(Site::Probs, &[2, 2, 2], &reference, &candidate).maps.unwrap();
    assert_eq!((maps.head, maps.size, maps.each), (1, [2, 2], [1, 1]));
    assert_eq!(maps.candidate, [1.0, 0.0, 0.25, 0.75]);
}
