//! Checks programs that are rewritten for other choices of experts: other rows, other experts, and what cannot be followed.

use std::collections::HashMap;

use firstdiff_program::{Arithmetic, DType, Evaluator, Program, Tensor, Values};
use serde_json::{Value, json};

use crate::common::{Held, open};

/// Three tokens of two numbers and three experts, two of which are hit: tokens 0 and 1 by expert 0, token 2 by expert 1.
fn mixture() -> Value {
    let turn = |at: usize, expert: usize, count: usize| {
        let first = 12 + 3 * at;
        let (places, rows, out) = (first, first + 1, first + 2);
        let tokens = json!({"v": [places, [count], [1], count]});
        json!([
            {"o": "item", "i": [{"v": [11, [], [], at]}], "y": [], "x": expert, "s": 0, "l": 4},
            {"o": "where", "i": [{"v": [7, [1, 3], [3, 3], expert]}], "y": [places, tokens], "s": 0, "l": 5},
            {"o": "index.Tensor", "i": [0, [tokens]], "y": [rows], "s": 0, "l": 6},
            {"o": "linear", "i": [rows, 1 + expert], "y": [out], "s": 1 + expert, "l": 9},
            {"o": "index_add_", "i": [8, {"c": 0}, tokens, out], "y": [8], "w": [0], "s": 0, "l": 7}
        ])
    };
    let turns = [turn(0, 0, 2), turn(1, 1, 1)];
    let ops = json!([
        {"o": "topk", "i": [5, {"c": 1}], "y": [6, 4], "s": 0, "l": 1},
        {"o": "one_hot", "i": [4, {"c": 3}], "y": [7], "s": 0, "l": 2},
        {"o": "zeros", "i": [[{"c": 3}, {"c": 2}]], "y": [8], "s": 0, "l": 2},
        {"o": "sum.dim_IntList", "i": [7, [{"c": 0}, {"c": 1}]], "y": [9], "s": 0, "l": 3},
        {"o": "greater.Scalar", "i": [9, {"c": 0}], "y": [10], "s": 0, "l": 3},
        {"o": "nonzero", "i": [10], "y": [11], "s": 0, "l": 3}
    ]);
    let all: Vec<&Value> = [&ops, &turns[0], &turns[1]].into_iter().flat_map(|list| list.as_array().unwrap()).collect();
    json!({
        "version": 1, "source": "torch", "model": "M", "constants": [0, 5], "inputs": {},
        "weights": {"1": "layers.0.experts.0.w", "2": "layers.0.experts.1.w", "3": "layers.0.experts.2.w"},
        "values": [
            ["f64", [3, 2]], ["f64", [2, 2]], ["f64", [2, 2]], ["f64", [2, 2]], ["i64", [3, 1]], ["f64", [3, 3]],
            ["f64", [3, 1]], ["i64", [3, 1, 3]], ["f64", [3, 2]], ["i64", [3]], ["bool", [3]], ["i64", [2, 1], [1, 2]],
            ["i64", [2]], ["f64", [2, 2]], ["f64", [2, 2]], ["i64", [1]], ["f64", [1, 2]], ["f64", [1, 2]]
        ],
        "files": ["m.py"],
        "scopes": [["layers.0", [], 0], ["layers.0.experts.0", [], 0], ["layers.0.experts.1", [], 0]],
        "ops": all,
        "steps": [{"ops": [0, 16], "tokens": 3, "output": 8}],
        "taps": [
            {"tap": "layers.0.router_topk", "step": 0, "op": 0, "v": 4},
            {"tap": "layers.0.experts.0.ffn_out", "step": 0, "op": 9, "v": 14},
            {"tap": "layers.0.experts.1.ffn_out", "step": 0, "op": 14, "v": 17},
            {"tap": "layers.0.ffn_out", "step": 0, "op": 15, "v": 8}
        ]
    })
}

fn opened(document: &Value) -> Program {
    let x = (0, vec![3, 2], vec![1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let scores = (5, vec![3, 3], vec![3.0, 1.0, 2.0, 3.0, 1.0, 2.0, 1.0, 3.0, 2.0]);
    open(document, &[x, scores]).unwrap()
}

/// Expert e multiplies by 10^e.
fn weights() -> Held {
    let weight = |expert: usize| {
        let by = 10f64.powi(expert as i32);
        (format!("layers.0.experts.{expert}.w"), (vec![2, 2], vec![by, 0.0, 0.0, by]))
    };
    Held((0..3).map(weight).collect())
}

fn chosen(experts: [i64; 3]) -> HashMap<usize, Tensor<'static>> {
    HashMap::from([(0, Tensor::new(DType::I64, vec![3, 1], Values::Int(experts.to_vec().into())).unwrap())])
}

/// Name and values of every tap, with these choices set.
fn taps(program: &Program, experts: [i64; 3]) -> Vec<(String, Vec<f64>)> {
    let weights = weights();
    let mut evaluator = Evaluator::new(program, Arithmetic::F64, &weights);
    let mut found = Vec::new();
    while let Some(tap) = evaluator.next_tap() {
        let name = program.taps()[tap].tap.clone();
        if name.ends_with("router_topk") {
            evaluator.hold(tap, chosen(experts)[&0].clone()).unwrap();
        }
        found.extend(evaluator.value(tap).unwrap().map(|value| (name, value.to_floats().into_owned())));
    }
    found
}

fn named(name: &str, values: &[f64]) -> (String, Vec<f64>) {
    (format!("layers.0.{name}"), values.to_vec())
}

#[test]
fn an_expert_that_was_not_hit_is_another_one_with_other_weights() {
    let recorded = opened(&mixture());
    let program = recorded.with_choices(&chosen([2, 0, 2])).unwrap();
    let due = [
        named("router_topk", &[2.0, 0.0, 2.0]),
        named("experts.0.ffn_out", &[3.0, 4.0]),
        named("experts.2.ffn_out", &[100.0, 200.0, 500.0, 600.0]),
        named("ffn_out", &[100.0, 200.0, 3.0, 4.0, 500.0, 600.0]),
    ];
    assert_eq!(taps(&program, [2, 0, 2]), due);
    let program = recorded.with_choices(&chosen([1, 1, 1])).unwrap();
    let due = [
        named("router_topk", &[1.0, 1.0, 1.0]),
        named("experts.1.ffn_out", &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
        named("ffn_out", &[10.0, 20.0, 30.0, 40.0, 50.0, 60.0]),
    ];
    assert_eq!(taps(&program, [1, 1, 1]), due);
}

#[test]
fn the_same_choices_are_the_same_program() {
    let recorded = opened(&mixture());
    assert!(recorded.with_choices(&chosen([0, 0, 1])).is_none());
    assert!(recorded.with_choices(&HashMap::new()).is_none());
}

#[test]
fn the_recorded_program_gives_no_value_for_other_choices() {
    // One row is not mistaken for the two of the recording.
    let found = taps(&opened(&mixture()), [0, 1, 1]);
    assert_eq!(found, [named("router_topk", &[0.0, 1.0, 1.0])]);
}

#[test]
fn experts_that_do_different_things_are_no_template() {
    let mut document = mixture();
    document["ops"][14]["o"] = json!("matmul");
    let program = opened(&document);
    let program = program.with_choices(&chosen([2, 0, 2])).unwrap_or(program);
    let known = [named("router_topk", &[2.0, 0.0, 2.0]), named("experts.0.ffn_out", &[3.0, 4.0])];
    assert_eq!(taps(&program, [2, 0, 2]), known);
}
