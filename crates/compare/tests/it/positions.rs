//! Is a verdict only given where it is known which values are of which token position, and is it then the right one?
//!
//! Synthetic runs in the forms that engines write: flat, one position without its axis, padded, first values only, a rank that is missing.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::sync::Arc;

use crate::synthetic::{Run, T, noisy, run, tap};
use firstdiff_compare::{
    Aligned, CellsOf, Options, Profile, Report, Status, Verdict, align, compare, graph_of, own_rows,
};
use firstdiff_trace::{DType, Dump, Entry, Meta, Rows, Site, Tap, Tensor, Values, join};

fn held(tap: Tap, step: u32, shape: Vec<usize>, values: Vec<f32>) -> Entry {
    let (extents, values) = (shape.clone(), Arc::new(values));
    Entry::computed(tap, step, shape, DType::F32, None, move || {
        Ok(Tensor::held(extents.clone(), Values::F32(values.to_vec().into())).unwrap())
    })
}

fn held_rows(rows: Option<Rows>, tap: Tap, shape: Vec<usize>, values: Vec<f32>) -> Entry {
    let mut entry = held(tap, 0, shape, values);
    entry.rows = rows;
    entry
}

fn dump(entries: Vec<Entry>, ids: Option<usize>) -> Dump {
    let tokens = ids.map(|count| (0..count as i64).collect());
    Dump::assembled(Path::new("held"), Meta { tokens, ..Meta::default() }, entries).unwrap()
}

fn judged(reference: Dump, candidate: Dump) -> Report {
    let Aligned { reference, candidate, alignment } = align(CellsOf::Both, reference, candidate, None).unwrap();
    let graph = graph_of(&reference, &candidate);
    let options = Options { alignment, ..Options::new(Profile::F32) };
    compare(&reference, &candidate, &graph, &options, &mut |_, _| {}).unwrap()
}

/// The taps that have no axis of keys.
fn without_keys(mut run: Run) -> Run {
    run.retain(|tap, _| !matches!(tap.site, Site::Qk | Site::Scores | Site::Probs));
    run
}

fn whole(run: &Run, ids: Option<usize>) -> Dump {
    dump(run.iter().map(|(&tap, (shape, values))| held(tap, 0, shape.clone(), values.clone())).collect(), ids)
}

fn flat(run: &Run, ids: Option<usize>) -> Dump {
    dump(run.iter().map(|(&tap, (_, values))| held(tap, 0, vec![values.len()], values.clone())).collect(), ids)
}

/// Token by token, each tensor without the axis of its one position.
fn squeezed(run: &Run) -> Dump {
    let entry = |(&tap, (shape, values)): (&Tap, &(Vec<usize>, Vec<f32>)), t: usize| {
        let width: usize = shape[1..].iter().product();
        held(tap, t as u32, shape[1..].to_vec(), values[t * width..(t + 1) * width].to_vec())
    };
    dump((0..T).flat_map(|t| run.iter().map(move |tap| entry(tap, t))).collect(), None)
}

/// The run with one value of one position of a tap off.
fn with_fault(run: &Run, name: &str, position: usize) -> Run {
    let mut run = run.clone();
    let (shape, values) = run.get_mut(&tap(name)).unwrap();
    let width: usize = shape[1..].iter().product();
    values[position * width + 2] += 0.1;
    run
}

#[test]
fn flat_tensors_are_judged_by_position_or_not_at_all() {
    let right = without_keys(run());
    let candidate = noisy(&right, 1e-13);
    let report = judged(flat(&right, None), flat(&candidate, None));
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("--tokens")), "{:?}", report.verdict);
    assert!(report.taps.iter().all(|t| t.status == Status::Unchecked));
    let wrong = judged(flat(&right, None), flat(&with_fault(&candidate, "layers.1.ffn_up", 4), None));
    assert!(matches!(wrong.verdict, Verdict::Incomparable(_)));
    assert_eq!(judged(flat(&right, None), flat(&right, None)).verdict, Verdict::Parity, "the same bits are the same");
    for (ours, theirs) in [(Some(T), None), (None, Some(T)), (Some(T), Some(T))] {
        let report = judged(flat(&right, ours), flat(&candidate, theirs));
        assert_eq!((report.verdict, report.first.is_none()), (Verdict::Parity, true));
        let report = judged(flat(&right, ours), flat(&with_fault(&candidate, "layers.1.ffn_up", 4), theirs));
        let first = report.first.as_ref().unwrap();
        assert_eq!(report.taps[first.index].place.tap, tap("layers.1.ffn_up"));
        assert_eq!(report.taps[first.index].max_at(), Some(vec![4, 2]));
    }
}

#[test]
fn a_flat_reference_takes_the_candidates_axes() {
    let right = without_keys(run());
    assert_eq!(judged(flat(&right, None), whole(&noisy(&right, 1e-13), None)).verdict, Verdict::Parity);
    let report = judged(flat(&right, None), whole(&with_fault(&right, "layers.0.h", 7), None));
    let first = report.first.as_ref().unwrap();
    assert_eq!(report.taps[first.index].max_at(), Some(vec![7, 2]));
}

#[test]
fn one_position_without_its_axis() {
    let right = without_keys(run());
    let candidate = noisy(&right, 1e-13);
    for (reference, steps) in [(whole(&right, Some(T)), "one pass"), (squeezed(&right), "steps")] {
        let report = judged(reference, squeezed(&candidate));
        assert_eq!(report.verdict, Verdict::Parity, "{steps}: {:?}", report.warnings);
        assert_eq!(report.count(|s| s == Status::Unchecked), 0, "{steps}");
    }
    let report = judged(whole(&right, Some(T)), squeezed(&with_fault(&candidate, "layers.1.k", 6)));
    let first = &report.taps[report.first.as_ref().unwrap().index];
    assert_eq!((first.place.tap, first.place.step), (tap("layers.1.k"), 6));
}

/// The run as a prefill of 8 and a step for each position after it.
fn in_steps(run: &Run) -> Dump {
    let cut = |(&tap, (shape, values)): (&Tap, &(Vec<usize>, Vec<f32>)), from: usize, to: usize, step: u32| {
        let width: usize = shape[1..].iter().product();
        held(tap, step, [&[to - from], &shape[1..]].concat(), values[from * width..to * width].to_vec())
    };
    let prefill = run.iter().map(|tap| cut(tap, 0, 8, 0));
    let steps = (8..T).flat_map(|t| run.iter().map(move |tap| cut(tap, t, t + 1, (t - 7) as u32)));
    dump(prefill.chain(steps).collect(), None)
}

/// The first so many positions of a run, those that it has not as the last one.
fn of_length(run: &Run, positions: usize) -> Run {
    let mut run = run.clone();
    for (shape, values) in run.values_mut() {
        let width: usize = shape[1..].iter().product();
        let last = values[values.len() - width..].to_vec();
        values.truncate(positions * width);
        while values.len() < positions * width {
            values.extend(&last);
        }
        shape[0] = positions;
    }
    run
}

/// Rows appended to one flat file a tap, of nobody knows which positions, against a prefill of 8 and steps.
#[test]
fn rows_beyond_the_prefill_are_not_taken_for_padding() {
    let mut right = without_keys(run());
    right.retain(|tap, _| tap.site.axes().len() == 2); // of flat heads nobody can tell the positions
    let candidate = noisy(&right, 1e-13);
    let report = judged(in_steps(&right), flat(&candidate, None));
    assert_eq!((report.verdict.clone(), report.count(|s| s == Status::Unchecked)), (Verdict::Parity, 0));
    let report = judged(in_steps(&right), flat(&with_fault(&candidate, "layers.1.ffn_up", 9), None));
    let first = &report.taps[report.first.as_ref().unwrap().index];
    assert_eq!((first.place.tap, first.place.step), (tap("layers.1.ffn_up"), 2));
    for positions in [9, T - 1, T + 1, T + 5] {
        for shaped in [false, true] {
            let more = of_length(&candidate, positions);
            let report = judged(in_steps(&right), if shaped { whole(&more, None) } else { flat(&more, None) });
            let undecided = matches!(&report.verdict, Verdict::Incomparable(_));
            assert!(undecided && report.first.is_none(), "{positions} {shaped}: {:?}", report.verdict);
        }
    }
    // Told the prompt alone, the rest is still not known to be padding.
    let report = judged(in_steps(&right), flat(&of_length(&candidate, T + 5), Some(8)));
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("--tokens")), "{:?}", report.verdict);
    let prefill = judged(in_steps(&right), flat(&of_length(&candidate, 8), Some(8)));
    assert_eq!(prefill.verdict, Verdict::Parity, "the prompt alone, and nothing of the steps");
}

/// A prompt of 8 that was padded to all positions, against one of 8 and steps: padding is no decode step.
#[test]
fn padding_is_not_taken_for_decode_steps() {
    let right = without_keys(run());
    let mut padded = right.clone();
    for (shape, values) in padded.values_mut() {
        let width: usize = shape[1..].iter().product();
        values[8 * width..].fill(0.0);
    }
    let report = judged(in_steps(&right), whole(&padded, None));
    assert!(
        matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("position 8")),
        "{:?}",
        report.verdict
    );
    assert!(report.first.is_none());
    let wrong = with_fault(&padded, "layers.0.h", 3);
    let report = judged(in_steps(&right), whole(&wrong, None));
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("layers.0.h"));
}

#[test]
fn what_is_right_at_position_0_alone_does_not_clear_a_rotation() {
    let right = run();
    let folder = tempfile::tempdir().unwrap();
    let mut lines = String::new();
    for name in ["h0", "layers.0.q", "layers.0.q_rope", "layers.0.k_rope", "layers.0.scores"] {
        let (shape, values) = &right[&tap(name)];
        let mut first = values[..16].to_vec();
        if name == "layers.0.scores" {
            // Of the second position, whose query was turned otherwise.
            first[T] += 0.05;
        }
        writeln!(lines, r#"{{"name": "{name}", "shape": {shape:?}, "values": {first:?}}}"#).unwrap();
    }
    let file = folder.path().join("first.jsonl");
    std::fs::write(&file, lines).unwrap();
    let report = judged(whole(&right, None), Dump::open(&file).unwrap());
    let first = report.first.as_ref().unwrap();
    assert_eq!(report.taps[first.index].place.tap, tap("layers.0.scores"));
    let between: Vec<Tap> = first.unchecked_between.iter().map(|p| p.tap).collect();
    assert!(between.contains(&tap("layers.0.q_rope")) && between.contains(&tap("layers.0.k_rope")), "{between:?}");
}

/// JSON lines without a shape: of each step, of each tap the first so many values of its position.
fn lines(run: &Run, steps: usize, longest: usize) -> Dump {
    let mut lines = String::new();
    for t in 0..steps {
        for (tap, (shape, values)) in run {
            let width: usize = shape[1..].iter().product();
            let data = &values[t * width..][..width.min(longest)];
            writeln!(lines, r#"{{"step": {t}, "tensor": "{tap}", "data": {data:?}}}"#).unwrap();
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("trace.jsonl");
    std::fs::write(&file, lines).unwrap();
    Dump::open(&file).unwrap()
}

#[test]
fn a_line_a_token_is_laid_at_its_position() {
    let right = without_keys(run());
    let candidate = noisy(&right, 1e-13);
    let wrong = with_fault(&candidate, "layers.1.k", 6);
    for reference in [|run: &Run| whole(run, Some(T)), |run: &Run| whole(run, None), in_steps] {
        let report = judged(reference(&right), lines(&candidate, T, usize::MAX));
        assert_eq!((report.verdict.clone(), report.count(|s| s == Status::Unchecked)), (Verdict::Parity, 0));
        // All values, or the first of each position.
        for longest in [usize::MAX, 8] {
            let report = judged(reference(&right), lines(&wrong, T, longest));
            let first = report.taps[report.first.as_ref().unwrap().index].place;
            let position = report.alignment.as_ref().unwrap().cells[first.step as usize].start;
            assert_eq!((first.tap, position), (tap("layers.1.k"), 6), "{longest}");
        }
    }
}

#[test]
fn position_0_alone_is_no_parity_where_the_reference_has_more() {
    let right = without_keys(run());
    for reference in [whole(&right, Some(T)), in_steps(&right)] {
        let report = judged(reference, lines(&right, 1, 8));
        let undecided = matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("only position 0"));
        assert!(undecided && report.first.is_none(), "{:?}", report.verdict);
    }
}

/// Tensor parallel over three ranks, of which only some dumps are there.
#[test]
fn a_rank_that_is_missing_is_no_fault() {
    let right = without_keys(run());
    let rank = |number: usize| {
        let (shape, up) = &right[&tap("layers.0.ffn_act")];
        let width = shape[1] / 4;
        let pieces = if number == 2 { 2 } else { 1 };
        let from = number * width;
        let cut = (0..T).flat_map(|t| up[t * shape[1] + from..][..pieces * width].to_vec()).collect();
        let (sum_shape, sum) = &right[&tap("layers.0.ffn_out")];
        let part = sum.iter().map(|x| x * [0.5, 0.25, 0.25][number]).collect();
        let entries = vec![
            held(tap("layers.0.ffn_act"), 0, vec![T, pieces * width], cut),
            held(tap("layers.0.ffn_out"), 0, sum_shape.clone(), part),
            held(tap("layers.0.h"), 0, right[&tap("layers.0.h")].0.clone(), right[&tap("layers.0.h")].1.clone()),
        ];
        (format!("rank{number}"), dump(entries, None))
    };
    let dims: BTreeMap<String, String> = [("*.ffn_act", "T F[tp]"), ("*.ffn_out", "T D partial"), ("*", "T D")]
        .map(|(a, b)| (a.into(), b.into()))
        .into();
    let of = |ranks: usize| join(Path::new("ranks"), (0..ranks).map(rank).collect(), &dims).unwrap();
    assert_eq!(judged(whole(&right, None), of(3)).verdict, Verdict::Parity);
    for ranks in [1, 2] {
        let report = judged(whole(&right, None), of(ranks));
        assert_ne!(report.verdict, Verdict::Diverged, "{ranks}");
        for name in ["layers.0.ffn_act", "layers.0.ffn_out"] {
            let here = report.tap(tap(name), 0).unwrap();
            let reason = here.why().unwrap_or_default();
            assert!(here.status == Status::Unchecked && reason.contains("missing"), "{ranks} {name}: {reason}");
        }
    }
}

/// The first position of every tap, of the forms in which an engine may have written it.
fn first_positions(run: &Run) -> Vec<(&'static str, Dump)> {
    let first = |width: usize, values: &[f32]| values[..width].to_vec();
    let of = |rows: Option<Rows>, axis: bool, ids: Option<usize>| {
        let entries = run.iter().map(|(&tap, (shape, values))| {
            let width: usize = shape[1..].iter().product();
            let one = if axis { [&[1], &shape[1..]].concat() } else { vec![width] };
            held_rows(rows.clone(), tap, one, first(width, values))
        });
        dump(entries.collect(), ids)
    };
    vec![
        ("one row", of(None, true, None)),
        ("one token", of(None, true, Some(1))),
        ("row 0", of(Some(Rows::List(vec![0])), true, Some(T))),
        ("without the axis", of(None, false, None)),
    ]
}

#[test]
fn whole_tensors_of_position_0_alone_are_no_parity() {
    let right = without_keys(run());
    let squeezed_reference = || squeezed(&right);
    let references: [&dyn Fn() -> Dump; 4] =
        [&|| whole(&right, Some(T)), &|| whole(&right, None), &|| in_steps(&right), &squeezed_reference];
    for (number, reference) in references.iter().enumerate() {
        for (form, candidate) in first_positions(&noisy(&right, 1e-13)) {
            let report = judged(reference(), candidate);
            assert!(
                matches!(report.verdict, Verdict::Incomparable(_)),
                "{form} against {number}: {:?}",
                report.verdict
            );
        }
    }
    // Against a reference of that one position there is nothing more to see.
    let one = of_length(&right, 1);
    assert_eq!(judged(whole(&one, Some(1)), whole(&noisy(&one, 1e-13), Some(1))).verdict, Verdict::Parity);
}

/// Embeddings of all positions, and all that attention goes into of the first alone.
#[test]
fn embeddings_of_all_positions_do_not_clear_what_is_known_of_position_0_alone() {
    let right = without_keys(run());
    let early =
        |tap: &Tap| tap.site == Site::H0 || (tap.layer == Some(0) && matches!(tap.site, Site::AttnNorm | Site::Q));
    let entries = |from: usize| {
        let entry = move |(&tap, (shape, values)): (&Tap, &(Vec<usize>, Vec<f32>))| {
            let width: usize = shape[1..].iter().product();
            let row = from * width..(from + 1) * width;
            match early(&tap) {
                true => held(tap, 0, shape.clone(), values.clone()),
                false => {
                    let only = Some(Rows::List(vec![from]));
                    held_rows(only, tap, [&[1], &shape[1..]].concat(), values[row].to_vec())
                }
            }
        };
        right.iter().map(entry).collect::<Vec<Entry>>()
    };
    let report = judged(whole(&right, Some(T)), dump(entries(0), None));
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("rotations")), "{:?}", report.verdict);
    assert_eq!(judged(whole(&right, Some(T)), dump(entries(5), None)).verdict, Verdict::Parity, "of another position");
}

/// The run as a prefill of 8 and steps, its keys and values as the whole cache so far in so many slots, along the first axis or the last. `wrong`: a step in
/// which a slot of layer 0's values holds its neighbour's.
fn cached(run: &Run, slots: Option<usize>, slots_last: bool, wrong: Option<(usize, usize)>) -> Dump {
    let mut dump = in_steps(run);
    for (&tap, (shape, values)) in run.iter().filter(|(tap, _)| matches!(tap.site, Site::KRope | Site::V)) {
        let width: usize = shape[1..].iter().product();
        for step in 0..=T - 8 {
            let mut cache = values[..(8 + step) * width].to_vec();
            if let Some((_, slot)) = wrong.filter(|(at, _)| *at == step && tap == self::tap("layers.0.v")) {
                cache.copy_within((slot + 1) * width..(slot + 2) * width, slot * width);
            }
            let count = slots.unwrap_or(8 + step);
            cache.resize(count * width, 0.0);
            let turned = || (0..width * count).map(|at| cache[at % count * width + at / count]).collect();
            let (extents, cache) = match slots_last {
                true => ([&shape[1..], &[count]].concat(), turned()),
                false => ([&[count], &shape[1..]].concat(), cache.clone()),
            };
            dump.put(tap, step as u32, Tensor::held(extents, Values::F32(cache.into())).unwrap());
        }
    }
    own_rows(&mut dump).unwrap();
    dump
}

#[test]
fn earlier_rows_of_a_cache_are_held_against_what_was_written() {
    let right = without_keys(run());
    let candidate = noisy(&right, 1e-13);
    for (slots, last) in [(None, false), (Some(32), false), (None, true), (Some(32), true)] {
        let report = judged(in_steps(&right), cached(&candidate, slots, last, None));
        assert_eq!((report.verdict, report.first.is_none()), (Verdict::Parity, true), "{slots:?} {last}");
        let report = judged(in_steps(&right), cached(&candidate, slots, last, Some((1, 2))));
        let said = matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("layers.0.v") && why.contains("position 2"));
        assert!(said && report.first.is_none(), "{slots:?} {last}: {:?}", report.verdict);
        // Its own row is found as before.
        let wrong = with_fault(&candidate, "layers.1.v", 9);
        let report = judged(in_steps(&right), cached(&wrong, slots, last, None));
        let first = report.taps[report.first.as_ref().unwrap().index].place;
        assert_eq!((first.tap, first.step), (tap("layers.1.v"), 2), "{slots:?} {last}");
    }
}

/// A token that is fed twice has the same keys and values in layer 0, and a head may have more channels than the run has positions.
#[test]
fn equal_rows_of_two_steps_are_no_cache() {
    let mut right = run();
    for name in ["layers.0.k", "layers.0.v"] {
        let (shape, values) = right.get_mut(&tap(name)).unwrap();
        let (heads, lanes) = (shape[1], 2 * T);
        let row: Vec<f32> = (0..heads * lanes).map(|at| (at as f32 * 0.7).sin()).collect();
        *values = row.repeat(T);
        shape[2] = lanes;
    }
    let right = without_keys(right);
    let mut candidate = in_steps(&right);
    own_rows(&mut candidate).unwrap();
    let report = judged(in_steps(&right), candidate);
    assert_eq!((report.verdict, report.first.is_none()), (Verdict::Parity, true));
}

/// Caches of two steps of one run, which share no row that could show them to be caches.
#[test]
fn more_rows_than_a_steps_own_are_not_taken_for_padding() {
    let right = without_keys(run());
    let mut candidate = in_steps(&noisy(&right, 1e-13));
    let (shape, values) = &right[&tap("layers.0.v")];
    let width: usize = shape[1..].iter().product();
    let mut cache = vec![0.25f32; 9 * width];
    cache[8 * width..].copy_from_slice(&values[8 * width..9 * width]);
    let held = Tensor::held([&[9], &shape[1..]].concat(), Values::F32(cache.into())).unwrap();
    candidate.put(tap("layers.0.v"), 1, held);
    own_rows(&mut candidate).unwrap();
    let report = judged(in_steps(&right), candidate);
    assert!(
        matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("layers.0.v")),
        "{:?}",
        report.verdict
    );
}

/// The summand of the only rank that is there, of which nothing says what it is.
#[test]
fn what_may_be_one_ranks_summand_is_not_blamed() {
    let right = without_keys(run());
    let alone = |factor: f32| {
        let entries = right.iter().map(|(&tap, (shape, values))| {
            let own = if tap.site == Site::FfnOut { factor } else { 1.0 };
            held(tap, 0, shape.clone(), values.iter().map(|x| x * own).collect())
        });
        join(Path::new("ranks"), vec![("rank0".into(), dump(entries.collect(), None))], &BTreeMap::new()).unwrap()
    };
    assert_eq!(judged(whole(&right, None), alone(1.0)).verdict, Verdict::Parity);
    let report = judged(whole(&right, None), alone(0.7));
    assert!(matches!(&report.verdict, Verdict::Incomparable(why) if why.contains("one rank")), "{:?}", report.verdict);
    assert!(report.first.is_none());
}

/// The prompt of 8 with so many other rows before it, or behind.
fn padded_with(run: &Run, before: usize, behind: usize) -> Run {
    let mut next = crate::synthetic::noise(5);
    let mut run = run.clone();
    for (shape, values) in run.values_mut() {
        let width: usize = shape[1..].iter().product();
        let mut fill = |rows: usize| (0..rows * width).map(|_| next() as f32).collect::<Vec<f32>>();
        *values = [fill(before), values[..8 * width].to_vec(), fill(behind)].concat();
        shape[0] = before + 8 + behind;
    }
    run
}

#[test]
fn a_padded_prompt_is_no_fault() {
    let right = without_keys(run());
    let prompt = of_length(&right, 8);
    let references: [&dyn Fn() -> Dump; 3] =
        [&|| whole(&prompt, Some(8)), &|| whole(&right, Some(T)), &|| in_steps(&right)];
    for (number, reference) in references.iter().enumerate() {
        for (before, behind) in [(2, 0), (T - 8, 0), (5, 0), (0, T - 8)] {
            let report = judged(reference(), whole(&padded_with(&prompt, before, behind), None));
            assert_ne!(report.verdict, Verdict::Diverged, "{before} {behind} against {number}");
            assert!(report.first.is_none(), "{before} {behind} against {number}");
        }
    }
    // An embedding that is wrong in a run of the same length is.
    let mut wrong = noisy(&right, 1e-13);
    wrong.get_mut(&tap("h0")).unwrap().1.iter_mut().for_each(|x| *x = -*x);
    let report = judged(whole(&right, None), whole(&wrong, None));
    assert_eq!(report.taps[report.first.as_ref().unwrap().index].place.tap, tap("h0"));
}

#[test]
fn fewer_lines_than_tokens_are_laid_at_their_positions() {
    let right = without_keys(run());
    let candidate = noisy(&right, 1e-13);
    let report = judged(in_steps(&right), lines(&candidate, 8, usize::MAX));
    assert_eq!(report.verdict, Verdict::Parity);
    let report = judged(in_steps(&right), lines(&with_fault(&candidate, "layers.1.k", 6), 8, usize::MAX));
    let first = report.taps[report.first.as_ref().unwrap().index].place;
    let position = report.alignment.as_ref().unwrap().cells[first.step as usize].start;
    assert_eq!((first.tap, position), (tap("layers.1.k"), 6));
}
