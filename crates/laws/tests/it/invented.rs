//! What an answer must not invent: rules of few numbers, steps that do nothing, parts in which a rule merely shows.

use firstdiff_laws::{Axis, Case, Kind, Law, Operation, Place, Status, measured};
use ndarray::ArrayD;

use crate::plant::{Numbers, Rounded, law_of, said};

const AXES: [Axis; 2] = [Axis::Token, Axis::Channel];

fn right(_: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    x[0].mapv(|x| x + 0.1 * x * x)
}

/// Each row of each layer times a number of its own.
fn by_row(layer: usize, x: &[ArrayD<f64>]) -> ArrayD<f64> {
    let mut numbers = Numbers::new(50 + layer as u64);
    let mut y = right(layer, x);
    y.outer_iter_mut().for_each(|mut row| {
        let by = 1.0 + 0.1 * numbers.next();
        row.mapv_inplace(|y| by * y);
    });
    y
}

/// Each number of what is right, made of it and of the largest size in its row.
fn by_largest(layer: usize, x: &[ArrayD<f64>], of: fn(f64, f64) -> f64) -> ArrayD<f64> {
    let mut y = right(layer, x);
    y.outer_iter_mut().for_each(|mut row| {
        let most = row.iter().fold(0.0, |most: f64, x| most.max(x.abs()));
        row.mapv_inplace(|y| of(y, most));
    });
    y
}

#[test]
fn as_many_numbers_as_rows_are_no_law() {
    for rows in [2, 3] {
        let law = law_of(Kind::Other, &AXES, &[&[rows, 48]], right, by_row, Rounded::F32);
        assert!(law.as_ref().is_none_or(|(law, _)| law.status == Status::Table), "{}", said(&law));
    }
}

#[test]
fn a_step_that_does_nothing_is_not_said() {
    let wrong = |l: usize, x: &[ArrayD<f64>]| right(l, x).mapv(|y| y.clamp(-0.5, 1.5) * 1.03);
    let law = said(&law_of(Kind::Other, &AXES, &[&[16, 48]], right, wrong, Rounded::F32));
    assert!(law.starts_with("the output is the right one, then times 1.03, then held between"), "{law}");
}

#[test]
fn what_holds_within_a_part_is_said_in_a_bracket() {
    let wrong = |l: usize, x: &[ArrayD<f64>]| {
        let mut y = right(l, x);
        y.outer_iter_mut().enumerate().filter(|(t, _)| t % 2 == 1).for_each(|(t, mut row)| {
            let by = if t < 8 { 0.9 } else { 1.2 };
            row.mapv_inplace(|y| by * y);
        });
        y
    };
    let law = said(&law_of(Kind::Other, &AXES, &[&[16, 48]], right, wrong, Rounded::F32));
    assert!(
        law.contains("(0.9 for the first half of the positions (0 to 7), else 6/5) for odd positions, else 1"),
        "{law}"
    );
}

#[test]
fn the_largest_of_a_row_is_no_bound() {
    // As f32 has it: the largest comes out exact.
    let wrong = |l: usize, x: &[ArrayD<f64>]| by_largest(l, x, |y, most| f64::from((y / most) as f32 * 1.3f32));
    let law = law_of(Kind::Other, &AXES, &[&[16, 48]], right, wrong, Rounded::F32);
    assert!(!said(&law).contains("held"), "{}", said(&law));
    assert!(said(&law).contains("over the largest size in its row, then times 1.3"), "{}", said(&law));
}

#[test]
fn an_epsilon_beside_a_size_is_no_digit_of_a_factor() {
    let wrong = |l: usize, x: &[ArrayD<f64>]| by_largest(l, x, |y, most| 2.0 * y / (most + 1e-3));
    let law = said(&law_of(Kind::Other, &AXES, &[&[16, 48]], right, wrong, Rounded::F32));
    assert!(law.contains("over the largest size of its row plus 0.001, times 2"), "{law}");
}

#[test]
fn places_with_a_part_each_have_it_in_their_support() {
    let wrong = |l: usize, x: &[ArrayD<f64>]| {
        let mut y = right(l, x);
        y.index_axis_mut(ndarray::Axis(0), 2 + 3 * l).mapv_inplace(|y| 0.5 * y);
        y
    };
    let (law, _) = law_of(Kind::Other, &AXES, &[&[16, 48]], right, wrong, Rounded::F32).unwrap();
    let positions = law.support.positions.as_deref();
    assert_eq!(positions, Some("layer 0: position 2; layer 1: position 5; layer 2: position 8"), "{law:?}");
}

#[test]
fn a_slice_of_another_place_is_in_the_support() {
    let wrong = |l: usize, x: &[ArrayD<f64>]| {
        let mut order: Vec<usize> = (0..16).collect();
        order[7] = 3;
        right(l, x).select(ndarray::Axis(0), &order)
    };
    let (law, _) = law_of(Kind::Other, &AXES, &[&[16, 48]], right, wrong, Rounded::F32).unwrap();
    assert_eq!(law.support.positions.as_deref(), Some("position 7"), "{law:?}");
}

/// Rows of a table.
struct Embedding(ArrayD<f64>);

impl Operation for Embedding {
    fn apply(&self, _: usize, inputs: &[ArrayD<f64>]) -> Option<ArrayD<f64>> {
        let ids: Option<Vec<usize>> =
            inputs[0].iter().map(|id| (*id >= 0.0 && *id < ROWS as f64).then_some(*id as usize)).collect();
        Some(self.0.select(ndarray::Axis(0), &ids?))
    }

    fn agrees(&self, _: usize, _: &ArrayD<f64>) -> bool {
        false
    }
}

const ROWS: usize = 300;

/// The law of an embedding that reads these rows in place of those that are due.
fn embedding(due: &[u32], read: &[u32]) -> Law {
    let operation = Embedding(Numbers::new(3).tensor(&[ROWS, 24]));
    let ids = |ids: &[u32]| ArrayD::from_shape_vec(vec![ids.len()], ids.iter().map(|id| f64::from(*id)).collect());
    let (due_ids, read_ids) = (ids(due).unwrap(), ids(read).unwrap());
    let (right, own) =
        (operation.apply(0, std::slice::from_ref(&due_ids)).unwrap(), operation.apply(0, &[read_ids]).unwrap());
    let place = Place { layer: None, step: 0, inputs: vec![due_ids], right, own, tolerance: 1e-12, around: Vec::new() };
    let mut case = Case::new(Kind::Embedding, AXES.to_vec(), vec![place], Some(due.to_vec()), &operation);
    measured(&mut case).unwrap().0
}

#[test]
fn rows_of_a_table_have_no_rule_of_one_or_two() {
    let due = [1, 90, 17, 203, 55, 148, 71, 230, 9, 120];
    let put = |at: &[(usize, u32)]| {
        let mut read = due;
        at.iter().for_each(|(at, id)| read[*at] = *id);
        embedding(&due, &read)
    };
    let two = put(&[(1, 114), (3, 14)]);
    assert!(two.status == Status::Table && !two.words.contains("ids up to"), "{two:?}");
    let one = put(&[(5, 141)]);
    let all = [std::slice::from_ref(&one.words), &one.equivalent].concat().join("; ");
    assert!(all.contains("token 141 in place of 148") && all.contains("token id - 7"), "{all}");
    // Two rows for all ids, by a bound, is a rule.
    let read = due.map(|id| if id < 100 { 7 } else { 8 });
    assert!(embedding(&due, &read).words.contains("token 7 for ids up to"), "{:?}", embedding(&due, &read));
}
