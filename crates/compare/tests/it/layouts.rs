//! Checks that a right operation is not blamed for its dump's layout, and that a mistake in the layout is not taken for the dump's own.
//!
//! Synthetic runs in which Q and K are really rotated; every layout of fixtures/faulty is in scripts/suites/test_puzzles.py.

use crate::synthetic::{LAYERS, Run, T, judged_as, noisy, run, tap};
use firstdiff_compare::{Layout, Profile, Report, Status};
use firstdiff_trace::Tap;

const HEADS: usize = 6;
const WIDTH: usize = 16;

/// \[T,H,d\] with the halves of each head rotated.
fn turned(values: &[f32], heads: usize, base: f64) -> Vec<f32> {
    let mut out = values.to_vec();
    for (row, head) in out.chunks_mut(WIDTH).enumerate() {
        for i in 0..WIDTH / 2 {
            let angle = (row / heads) as f64 / base.powf(i as f64 * 2.0 / WIDTH as f64);
            let (x, y) = (f64::from(head[i]), f64::from(head[i + WIDTH / 2]));
            head[i] = (x * angle.cos() - y * angle.sin()) as f32;
            head[i + WIDTH / 2] = (x * angle.sin() + y * angle.cos()) as f32;
        }
    }
    out
}

/// A run whose Q and K after RoPE are really rotated.
fn rotated() -> Run {
    let mut run = run();
    for layer in 0..LAYERS {
        for (from, to, heads) in [("q", "q_rope", HEADS), ("k", "k_rope", 2)] {
            let values = turned(&run[&tap(&format!("layers.{layer}.{from}"))].1, heads, 1e4);
            run.get_mut(&tap(&format!("layers.{layer}.{to}"))).unwrap().1 = values;
        }
    }
    run
}

fn set(run: &mut Run, at: &str, shape: &[usize], values: Vec<f32>) {
    *run.get_mut(&tap(at)).unwrap() = (shape.to_vec(), values);
}

fn get(run: &Run, at: &str) -> Vec<f32> {
    run[&tap(at)].1.clone()
}

/// \[T,H,d\] as \[H,T,d\].
fn heads_first(values: &[f32], heads: usize) -> Vec<f32> {
    (0..heads)
        .flat_map(|h| (0..T).map(move |t| (t * heads + h) * WIDTH))
        .flat_map(|at| values[at..at + WIDTH].to_vec())
        .collect()
}

/// \[H,T,d\] as \[T,H,d\].
fn heads_second(values: &[f32], heads: usize) -> Vec<f32> {
    (0..T)
        .flat_map(|t| (0..heads).map(move |h| (h * T + t) * WIDTH))
        .flat_map(|at| values[at..at + WIDTH].to_vec())
        .collect()
}

/// Rows of each head as a GGUF has them.
fn adjacent(values: &[f32]) -> Vec<f32> {
    values.chunks(WIDTH).flat_map(|head| (0..WIDTH).map(|j| head[j % 2 * (WIDTH / 2) + j / 2])).collect()
}

#[track_caller]
fn blamed(report: &Report, at: &str) {
    let first = report.first.as_ref().map(|first| report.taps[first.index].place.tap.to_string());
    assert_eq!(first.as_deref(), Some(at), "{:?}", report.warnings);
}

#[test]
fn a_wrong_rotation_in_a_ggufs_rows_is_the_rotations_fault() {
    let reference = rotated();
    let mut candidate = noisy(&reference, 1e-14);
    for layer in 0..LAYERS {
        for (from, to, heads) in [("q", "q_rope", HEADS), ("k", "k_rope", 2)] {
            let (from, to) = (format!("layers.{layer}.{from}"), format!("layers.{layer}.{to}"));
            let values = get(&candidate, &from);
            set(&mut candidate, &to, &[T, heads, WIDTH], adjacent(&turned(&values, heads, 3e4)));
            set(&mut candidate, &from, &[T, heads, WIDTH], adjacent(&values));
        }
    }
    let report = judged_as(Profile::F32, &reference, &candidate);
    blamed(&report, "layers.0.q_rope");
    assert!(report.tap(tap("layers.0.q"), 0).unwrap().status.agrees());
    // Rotated in the reference's pairs, either may be the mistake.
    for (from, to, heads) in [("q", "q_rope", HEADS), ("k", "k_rope", 2)] {
        let values = turned(&get(&candidate, &format!("layers.0.{from}")), heads, 1e4);
        set(&mut candidate, &format!("layers.0.{to}"), &[T, heads, WIDTH], values);
        for layer in 1..LAYERS {
            for site in [from, to] {
                candidate.remove(&tap(&format!("layers.{layer}.{site}")));
            }
        }
    }
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert_eq!(report.tap(tap("layers.0.q"), 0).unwrap().status, Status::Unchecked);
    blamed(&report, "layers.0.q_rope");
}

#[test]
fn heads_that_are_split_wrong_are_no_layout_where_the_rotation_takes_them_as_they_stand() {
    let reference = rotated();
    let mut candidate = noisy(&reference, 1e-14);
    let q = get(&candidate, "layers.0.q");
    let split: Vec<f32> = (0..q.len()).map(|i| q[i / 96 * 96 + i % HEADS * WIDTH + i % 96 / HEADS]).collect();
    set(&mut candidate, "layers.0.q_rope", &[T, HEADS, WIDTH], turned(&split, HEADS, 1e4));
    set(&mut candidate, "layers.0.q", &[T, HEADS, WIDTH], split);
    blamed(&judged_as(Profile::F32, &reference, &candidate), "layers.0.q");
}

#[test]
fn memory_that_is_not_what_its_shape_says_is_the_mistake_where_the_rotation_takes_the_shape_at_its_word() {
    let reference = rotated();
    let mut candidate = noisy(&reference, 1e-14);
    for (from, to, heads) in [("q", "q_rope", HEADS), ("k", "k_rope", 2)] {
        let values = get(&candidate, &format!("layers.0.{from}"));
        let wrong = heads_first(&turned(&heads_second(&values, heads), heads, 1e4), heads);
        set(&mut candidate, &format!("layers.0.{from}"), &[heads, T, WIDTH], values);
        set(&mut candidate, &format!("layers.0.{to}"), &[heads, T, WIDTH], wrong);
    }
    blamed(&judged_as(Profile::F32, &reference, &candidate), "layers.0.q");
}

#[test]
fn an_order_that_shapes_show_is_the_dumps_own_with_repeated_heads_and_rows_too() {
    let reference = rotated();
    let mut candidate = noisy(&reference, 1e-14);
    for (site, heads) in [("q_rope", HEADS), ("k_rope", 2)] {
        let at = format!("layers.0.{site}");
        let heads_apart = heads_first(&get(&candidate, &at), heads);
        let copies = HEADS / heads;
        let repeated = heads_apart.chunks(T * WIDTH).flat_map(|head| head.repeat(copies)).collect();
        set(&mut candidate, &at, &[HEADS, T, WIDTH], repeated);
    }
    candidate.get_mut(&tap("layers.0.qk")).unwrap().1.iter_mut().for_each(|x| *x *= 2.0);
    blamed(&judged_as(Profile::F32, &reference, &candidate), "layers.0.qk");
}

#[test]
fn an_embedding_that_its_shape_shows_transposed_is_not_blamed_for_the_norm() {
    let reference = run();
    let mut candidate = noisy(&reference, 1e-13);
    let h0 = get(&candidate, "h0");
    set(&mut candidate, "h0", &[48, T], (0..h0.len()).map(|i| h0[i % T * 48 + i / T]).collect());
    for (at, (_, values)) in &mut candidate {
        if *at != tap("h0") {
            values.iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + (i % 7) as f32);
        }
    }
    blamed(&judged_as(Profile::F32, &reference, &candidate), "layers.0.attn_norm");
}

#[test]
fn lanes_that_a_shape_shows_behind_a_heads_own_are_padding_and_what_stands_before_them_is_judged() {
    let reference = rotated();
    let padded = |theta: f64, beside: f32| {
        let mut candidate = noisy(&reference, 1e-14);
        for layer in 0..LAYERS {
            for (from, to, heads) in [("q", "q_rope", HEADS), ("k", "k_rope", 2)] {
                let (from, to) = (format!("layers.{layer}.{from}"), format!("layers.{layer}.{to}"));
                let values = get(&candidate, &from);
                for (at, values) in [(from, values.clone()), (to, turned(&values, heads, theta))] {
                    let lanes = values.chunks(WIDTH).flat_map(|head| [head, &[beside; WIDTH]].concat()).collect();
                    set(&mut candidate, &at, &[T, heads, 2 * WIDTH], lanes);
                }
            }
        }
        judged_as(Profile::F32, &reference, &candidate)
    };
    let right = padded(1e4, 0.0);
    assert!(right.first.is_none(), "{:?}", right.warnings);
    assert!(right.tap(tap("layers.0.k"), 0).unwrap().status.agrees());
    blamed(&padded(3e4, 0.0), "layers.0.q_rope");
    // A kernel that reads the padding lanes adds them up.
    assert!(!padded(1e4, 7.0).tap(tap("layers.0.k"), 0).unwrap().status.agrees());
}

#[test]
fn key_and_value_heads_of_zeros_behind_the_models_own_are_padding() {
    let reference = rotated();
    let padded = |heads: usize, fill: f32| {
        let mut candidate = noisy(&reference, 1e-14);
        for at in (0..LAYERS).flat_map(|layer| ["k", "k_rope", "v"].map(|name| format!("layers.{layer}.{name}"))) {
            let values = get(&candidate, &at);
            let more = vec![fill; (heads - 2) * WIDTH];
            let rows = values.chunks(2 * WIDTH).flat_map(|row| [row, &more].concat()).collect();
            set(&mut candidate, &at, &[T, heads, WIDTH], rows);
        }
        judged_as(Profile::F32, &reference, &candidate)
    };
    for heads in [3, 4, 8] {
        let right = padded(heads, 0.0);
        assert!(right.first.is_none(), "{heads}: {:?}", right.warnings);
        assert!(right.tap(tap("layers.0.k"), 0).unwrap().status.agrees(), "{heads}");
        assert!(!padded(heads, 0.5).tap(tap("layers.0.k"), 0).unwrap().status.agrees(), "{heads}");
    }
}

#[test]
fn heads_merged_in_a_batch_of_one_are_no_last_row() {
    let (reference, mut candidate) = (rotated(), rotated());
    for layer in 0..LAYERS {
        for (site, heads) in [("q", HEADS), ("k", 2), ("v", 2), ("q_rope", HEADS), ("k_rope", 2)] {
            let at = format!("layers.{layer}.{site}");
            let values = get(&candidate, &at);
            set(&mut candidate, &at, &[1, T, heads * WIDTH], values);
        }
    }
    let report = crate::synthetic::judged_in_memory(Profile::F32, &reference, &candidate);
    let unchecked: Vec<_> = report.taps.iter().filter(|t| t.status == Status::Unchecked).collect();
    assert!(report.first.is_none() && unchecked.is_empty(), "{unchecked:?}");
}

#[test]
fn copies_of_heads_that_no_shape_shows_are_none() {
    // A list of twice the values: repeated heads that are not equal, or a cache with free room; undecidable.
    let (reference, mut candidate) = (rotated(), rotated());
    let k = get(&candidate, "layers.0.k");
    let mut next = crate::synthetic::noise(3);
    let rest: Vec<f32> = (0..k.len()).map(|_| next() as f32).collect();
    let twice = |of: &[f32]| of.chunks(WIDTH).zip(rest.chunks(WIDTH)).flat_map(|(a, b)| [a, b].concat()).collect();
    let values: Vec<f32> = twice(&k);
    set(&mut candidate, "layers.0.k", &[values.len()], values.clone());
    let report = crate::synthetic::judged_in_memory(Profile::F32, &reference, &candidate);
    assert_eq!(report.tap(tap("layers.0.k"), 0).unwrap().status, Status::Unchecked);
    // Where the shape shows them, they are wrong.
    set(&mut candidate, "layers.0.k", &[T, 4, WIDTH], values);
    blamed(&crate::synthetic::judged_in_memory(Profile::F32, &reference, &candidate), "layers.0.k");
}

#[test]
fn padding_before_the_positions_and_room_for_keys_behind_them() {
    const BEFORE: usize = 3;
    const KEYS: usize = 20;
    let (reference, mut candidate) = (rotated(), noisy(&rotated(), 1e-14));
    for (at, (shape, values)) in &mut candidate {
        if at.site.position_axis() == 1 {
            let fill = if at.site == firstdiff_trace::Site::Scores { f32::NEG_INFINITY } else { 0.0 };
            let mut longer = vec![fill; shape[0] * (T + BEFORE) * KEYS];
            for (i, x) in values.iter().enumerate() {
                let (head, t, s) = (i / T / T, i / T % T, i % T);
                longer[(head * (T + BEFORE) + t + BEFORE) * KEYS + s + BEFORE] = *x;
            }
            *shape = vec![shape[0], T + BEFORE, KEYS];
            *values = longer;
        } else {
            let width: usize = shape[1..].iter().product();
            *values = [&vec![0.5; BEFORE * width][..], values].concat();
            shape[0] += BEFORE;
        }
    }
    let report = crate::synthetic::judged_in_memory(Profile::F32, &reference, &candidate);
    let wrong: Vec<_> =
        report.taps.iter().filter(|t| !t.status.agrees()).map(|t| (t.place, t.reason.clone())).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn what_is_far_off_in_another_shape_is_no_fault_where_all_that_follows_agrees() {
    // The reference does not show its number of heads, and neither shape shows the order.
    let (reference, mut candidate) = (rotated(), noisy(&rotated(), 1e-14));
    let context = get(&candidate, "layers.1.context");
    let shuffled: Vec<f32> = (0..context.len()).map(|i| context[i * 7 % context.len()]).collect();
    set(&mut candidate, "layers.1.context", &[8, 12, T], shuffled.clone());
    let report = judged_as(Profile::F32, &reference, &candidate);
    assert!(report.first.is_none(), "{:?}", report.first);
    assert_eq!(report.tap(tap("layers.1.context"), 0).unwrap().status, Status::Unchecked);
    // In the reference's own shape there is no doubt; nor where its reader is off as well.
    let mut wrong = candidate.clone();
    set(&mut wrong, "layers.1.context", &[T, 96], shuffled);
    blamed(&judged_as(Profile::F32, &reference, &wrong), "layers.1.context");
    // Other numbers are not the reference's in any order.
    let mut next = crate::synthetic::noise(5);
    let others: Vec<f32> = (0..2 * context.len()).map(|_| next() as f32).collect();
    let mut wrong = candidate.clone();
    set(&mut wrong, "layers.1.q", &[T, 96], others[..T * 96].to_vec());
    blamed(&judged_as(Profile::F32, &reference, &wrong), "layers.1.q");
}

#[test]
fn a_mask_that_leaks_is_found_beside_padding_whatever_follows() {
    use firstdiff_trace::Site;
    let mut reference = rotated();
    let future = |i: usize| i % T > i / T % T;
    for (at, (_, values)) in &mut reference {
        let fill = match at.site {
            Site::Scores => f32::NEG_INFINITY,
            Site::Probs => 0.0,
            _ => continue,
        };
        (0..values.len()).filter(|&i| future(i)).for_each(|i| values[i] = fill);
    }
    // The same number of padding positions behind the prompt, in rows and keys; a fill of -18 leaves probabilities of 1e-8.
    const PADDED: usize = T + 2;
    let mut candidate = noisy(&reference, 1e-14);
    for (at, (shape, values)) in &mut candidate {
        let width: usize = shape[1..].iter().product();
        if at.site.position_axis() == 0 {
            values.extend(vec![0.5; 2 * width]);
            shape[0] = PADDED;
            continue;
        }
        let empty = if at.site == Site::Scores { f32::NEG_INFINITY } else { 0.0 };
        let mut longer = vec![empty; shape[0] * PADDED * PADDED];
        for (i, x) in values.iter().enumerate() {
            let leaks = *at == tap("layers.1.scores") || *at == tap("layers.1.probs");
            let leak = if at.site == Site::Scores { -18.0 } else { 1e-8 };
            longer[(i / T / T * PADDED + i / T % T) * PADDED + i % T] = if leaks && future(i) { leak } else { *x };
        }
        *shape = vec![shape[0], PADDED, PADDED];
        *values = longer;
    }
    blamed(&crate::synthetic::judged_in_memory(Profile::F32, &reference, &candidate), "layers.1.scores");
}

#[test]
fn products_of_exchanged_queries_and_keys_are_no_layout() {
    // Attention that is not causal: with Q and K exchanged, the products are the transposed ones.
    let transposed = |values: &[f32]| -> Vec<f32> {
        values.chunks(T * T).flat_map(|head| (0..T * T).map(|i| head[i % T * T + i / T])).collect()
    };
    let reference = rotated();
    let mut candidate = noisy(&reference, 1e-14);
    let mut next = crate::synthetic::noise(9);
    for (at, (_, values)) in candidate.iter_mut().filter(|(at, _)| at.layer == Some(1)) {
        match at.site.name() {
            "qk" | "scores" => *values = transposed(&reference[at].1),
            "v" | "attn_norm" => {}
            _ => values.iter_mut().for_each(|x| *x = next() as f32),
        }
    }
    for stack in ["", "encoder."] {
        let in_stack = |at: &Tap| Tap::named(&format!("{stack}{at}"));
        let named = |run: &Run| -> Run {
            let kept = run.iter().filter(|(at, _)| stack.is_empty() || at.layer.is_some());
            kept.map(|(at, held)| (in_stack(at), held.clone())).collect()
        };
        let report = judged_as(Profile::F32, &named(&reference), &named(&candidate));
        for site in ["qk", "scores"] {
            let here = report.tap(in_stack(&tap(&format!("layers.1.{site}"))), 0).unwrap();
            assert_eq!((here.status, here.layout.clone()), (Status::Downstream, Some(Layout::Same)), "{stack}{site}");
        }
    }
}
