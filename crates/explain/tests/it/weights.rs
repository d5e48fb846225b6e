//! Are right conversions found right, and spoilt ones wrong? GGUF files of the fixture models, made by scripts/convert/hf_to_gguf.py.
//!
//! What each kind of mistake is called is tried by scripts/planted/weight_zoo.py, on files that no code of ours has made.

use std::path::{Path, PathBuf};

use firstdiff_explain::weights::{Comparison, Options, Side, State, compare};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn run(a: &Path, b: &Path) -> Comparison {
    compare(&Side::open(a).unwrap(), &Side::open(b).unwrap(), Options::default(), &mut |_, _| {}).unwrap()
}

#[test]
fn conversions_are_the_same_weights() {
    for (model, file) in [("llama", "llama-f16"), ("qwen2", "qwen2-f32"), ("qwen3", "qwen3-f16")] {
        let (a, b) = (fixtures().join("models").join(model), fixtures().join("gguf").join(format!("{file}.gguf")));
        for (a, b) in [(&a, &b), (&b, &a)] {
            let comparison = run(a, b);
            assert!(comparison.findings.is_empty(), "{file}: {:?}", comparison.findings);
            assert!(comparison.count(|s| matches!(s, State::Identical | State::Rounded)) > 20, "{file}");
        }
    }
}

#[test]
fn one_flipped_bit_of_any_tensor_is_seen() {
    let (model, path) = (fixtures().join("models/qwen2"), fixtures().join("gguf/qwen2-f32.gguf"));
    let bytes = std::fs::read(&path).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let spoilt = folder.path().join("spoilt.gguf");
    // The tensors are the end of the file; a bit of an exponent here and there.
    for at in (bytes.len() / 2..bytes.len() - 64).step_by(9973).map(|at| at / 4 * 4 + 3) {
        let mut bytes = bytes.clone();
        bytes[at] ^= 0x10;
        std::fs::write(&spoilt, bytes).unwrap();
        let comparison = run(&model, &spoilt);
        assert_eq!(comparison.findings.len(), 1, "byte {at}");
        assert_eq!(comparison.count(|s| *s == State::Wrong), 1, "byte {at}");
    }
}

#[test]
fn another_model_is_not_the_same() {
    let comparison = run(&fixtures().join("models/llama"), &fixtures().join("gguf/qwen2-f32.gguf"));
    assert!(comparison.count(|s| *s == State::Wrong) > 10);
}

const VOCAB: usize = 24;
const WIDTH: usize = 16;

/// Numbers without a pattern.
fn numbers(seed: u32, count: usize) -> Vec<f32> {
    (0..count as u32).map(|i| (((i + 1000 * seed) as f32 * 12.9898).sin() * 43758.547).fract()).collect()
}

/// A file of these tensors: name, shape and values.
fn write(path: &Path, tensors: &[(&str, Vec<usize>, Vec<f32>)]) -> PathBuf {
    let bytes: Vec<Vec<u8>> =
        tensors.iter().map(|(.., values)| values.iter().flat_map(|x| x.to_le_bytes()).collect()).collect();
    let views = tensors.iter().zip(&bytes).map(|((name, shape, _), bytes)| {
        (*name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, shape.clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
    path.to_owned()
}

/// The cause that is stated of a head of `head`, in a file beside one whose head is its embedding; and what is said.
fn of_tied_head(shape: [usize; 2], head: Vec<f32>) -> (Option<&'static str>, String) {
    let folder = tempfile::tempdir().unwrap();
    let own = || {
        vec![
            ("model.embed_tokens.weight", vec![VOCAB, WIDTH], numbers(1, VOCAB * WIDTH)),
            ("model.norm.weight", vec![WIDTH], numbers(2, WIDTH)),
            ("model.layers.0.mlp.up_proj.weight", vec![VOCAB, WIDTH], numbers(3, VOCAB * WIDTH)),
        ]
    };
    let tied = write(&folder.path().join("tied.safetensors"), &own());
    let tensors: Vec<_> = own().into_iter().chain([("lm_head.weight", shape.to_vec(), head)]).collect();
    let comparison = run(&tied, &write(&folder.path().join("own.safetensors"), &tensors));
    let [finding] = comparison.findings.as_slice() else {
        assert!(comparison.findings.is_empty(), "{:?}", comparison.findings);
        return (None, "tied".into());
    };
    (finding.cause, finding.note.clone())
}

#[test]
fn a_head_of_its_own_is_another_matrix_only_if_it_is_the_tied_one_in_no_order() {
    let embedding = numbers(1, VOCAB * WIDTH);
    // What w.reshape(columns, rows).T holds, row by row.
    let turned = |values: &[f32], columns: usize| -> Vec<f32> {
        let rows = values.len() / columns;
        (0..columns).flat_map(|c| (0..rows).map(move |r| values[r * columns + c])).collect()
    };
    let of = |head: Vec<f32>| of_tied_head([VOCAB, WIDTH], head).0;
    assert_eq!(of_tied_head([VOCAB, WIDTH], embedding.clone()), (None, "tied".into()));
    assert_eq!(of(numbers(7, VOCAB * WIDTH)), Some("head-untied"));
    assert_eq!(of(turned(&embedding, VOCAB)), Some("weight-transposed"));
    assert_eq!(of(turned(&embedding, WIDTH)), Some("weight-transposed"));
    assert_eq!(of_tied_head([WIDTH, VOCAB], turned(&embedding, WIDTH)).0, Some("weight-transposed"));
    assert_eq!(of_tied_head([WIDTH, VOCAB], embedding.clone()).0, Some("storage-shape"));
    assert_eq!(of(vec![0.0; VOCAB * WIDTH]), Some("weight-unset"));
    // Another matrix of A, as it stands and in another order.
    let up = numbers(3, VOCAB * WIDTH);
    assert_eq!(of(up.clone()), Some("weight-swapped"));
    assert_eq!(of(turned(&up, VOCAB)), Some("weight-swapped"));
    // A factor is no other matrix, and no known mistake.
    let (cause, note) = of_tied_head([VOCAB, WIDTH], embedding.iter().map(|x| 1.5 * x).collect());
    assert!(cause.is_none() && note.contains("1.5000"), "{note}");
}

#[test]
fn a_head_that_is_missing_may_be_the_embedding_in_another_order() {
    let folder = tempfile::tempdir().unwrap();
    let embedding = numbers(1, VOCAB * WIDTH);
    let turned: Vec<f32> = (0..VOCAB * WIDTH).map(|i| embedding[i % VOCAB * WIDTH + i / VOCAB]).collect();
    let check = |head: Vec<f32>| {
        let [table, head] = [("model.embed_tokens.weight", embedding.clone()), ("lm_head.weight", head)]
            .map(|(name, values)| (name, vec![VOCAB, WIDTH], values));
        let a = write(&folder.path().join("a.safetensors"), &[table.clone(), head]);
        let b = write(&folder.path().join("b.safetensors"), &[table]);
        run(&a, &b).findings.first().map(|finding| finding.cause)
    };
    assert_eq!(check(embedding.clone()), None);
    assert_eq!(check(numbers(7, VOCAB * WIDTH)), Some(Some("head-tied")));
    assert_eq!(check(turned), Some(None));
}

#[test]
fn a_bias_under_another_name_is_not_left_out() {
    let folder = tempfile::tempdir().unwrap();
    let matrix = ("model.layers.0.self_attn.q_proj.weight", vec![WIDTH, WIDTH], numbers(4, WIDTH * WIDTH));
    let bias = |name: &'static str, values: Vec<f32>| (name, vec![WIDTH], values);
    let check = |values: Vec<f32>, others: &[(&'static str, Vec<f32>)]| {
        let a = write(
            &folder.path().join("a.safetensors"),
            &[matrix.clone(), bias("model.layers.0.self_attn.q_proj.bias", values)],
        );
        let others = others.iter().map(|(name, values)| bias(name, values.clone()));
        let b = write(
            &folder.path().join("b.safetensors"),
            &vec![matrix.clone()].into_iter().chain(others).collect::<Vec<_>>(),
        );
        run(&a, &b).findings.first().and_then(|finding| finding.cause)
    };
    assert_eq!(check(numbers(5, WIDTH), &[]), Some("bias-omitted"));
    assert_eq!(check(numbers(5, WIDTH), &[("strange", numbers(6, WIDTH))]), Some("bias-omitted"));
    assert_eq!(check(numbers(5, WIDTH), &[("strange", numbers(5, WIDTH))]), None);
    assert_eq!(check(vec![0.0; WIDTH], &[]), None);
}

#[test]
fn another_embedding_makes_no_cause_of_the_head() {
    let folder = tempfile::tempdir().unwrap();
    let table = |name: &'static str, seed: u32| (name, vec![VOCAB, WIDTH], numbers(seed, VOCAB * WIDTH));
    let causes =
        |a: &[(&str, Vec<usize>, Vec<f32>)], b: &[(&str, Vec<usize>, Vec<f32>)]| -> Vec<Option<&'static str>> {
            let a = write(&folder.path().join("a.safetensors"), a);
            let b = write(&folder.path().join("b.safetensors"), b);
            run(&a, &b).findings.iter().map(|finding| finding.cause).collect()
        };
    let (embedding, head) = ("model.embed_tokens.weight", "lm_head.weight");
    // Tied on both sides, and the one matrix is another: that is said of the embedding.
    assert_eq!(causes(&[table(embedding, 1)], &[table(embedding, 2), table(head, 2)]), [None]);
    assert_eq!(causes(&[table(embedding, 1)], &[table(embedding, 2), table(head, 3)]), [None, None]);
    assert_eq!(causes(&[table(embedding, 1), table(head, 3)], &[table(embedding, 2)]), [None, None]);
    // What B takes for the head is A's head.
    assert_eq!(causes(&[table(embedding, 1), table(head, 3)], &[table(embedding, 3)]), [Some("head-untied")]);
}

#[test]
fn another_model_is_said_to_be_one() {
    let another = run(&fixtures().join("models/llama"), &fixtures().join("gguf/qwen2-f32.gguf"));
    assert!(another.another_model().is_some());
    assert!(another.findings.iter().all(|finding| finding.cause.is_none() || finding.residual_nmse.is_some()));
    let same = run(&fixtures().join("models/qwen2"), &fixtures().join("gguf/qwen2-f32.gguf"));
    assert_eq!(same.another_model(), None);
}

/// A llama2.c checkpoint of these sizes: hidden, feed-forward, layers, heads, key heads, vocabulary.
fn llama2c(path: &Path, sizes: [usize; 6]) {
    let [hidden, ffn, layers, heads, keys, vocab] = sizes;
    let head = hidden / heads;
    let layer = 2 * hidden + 2 * hidden * hidden + 2 * keys * head * hidden + 3 * ffn * hidden;
    let count = vocab * hidden + layers * layer + hidden + 4 * head;
    let mut bytes: Vec<u8> = sizes.iter().chain([&4]).flat_map(|n| (*n as i32).to_le_bytes()).collect();
    bytes.extend((0..count).flat_map(|i| ((i as f32 * 0.37).sin() + 0.01).to_le_bytes()));
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn models_of_any_other_size_are_compared() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("m.bin");
    for sizes in [
        [8, 12, 1, 2, 1, 10],
        [12, 12, 1, 2, 1, 10],
        [20, 12, 1, 2, 2, 10],
        [24, 40, 2, 4, 2, 50],
        [48, 80, 2, 6, 3, 151],
        [50, 7, 3, 5, 1, 3],
    ] {
        llama2c(&path, sizes);
        for model in ["models/llama", "models/minimind", "gguf/llama-f16.gguf", "gguf/qwen2-f32.gguf"]
            .map(|m| fixtures().join(m))
        {
            for (a, b) in [(&model, &path), (&path, &model)] {
                let comparison = run(a, b);
                assert!(comparison.count(|s| *s == State::Wrong) > 4, "{sizes:?} against {}", model.display());
            }
        }
    }
}

/// What is said of B's up matrix of 48 rows and 32 columns, whose right values are A's.
fn of_matrix(change: impl Fn(&[f32]) -> Vec<f32>) -> (Option<&'static str>, String, Option<f64>) {
    let folder = tempfile::tempdir().unwrap();
    let tensors = |up: Vec<f32>| {
        vec![
            ("model.layers.0.mlp.up_proj.weight", vec![48, 32], up),
            ("model.layers.1.mlp.up_proj.weight", vec![48, 32], normal(5, 48 * 32)),
            ("model.norm.weight", vec![32], numbers(2, 32)),
        ]
    };
    let right = normal(3, 48 * 32);
    let a = write(&folder.path().join("a.safetensors"), &tensors(right.clone()));
    let comparison = run(&a, &write(&folder.path().join("b.safetensors"), &tensors(change(&right))));
    assert_eq!(comparison.another_model(), None);
    let [finding] = comparison.findings.as_slice() else {
        assert!(comparison.findings.is_empty(), "{:?}", comparison.findings);
        return (None, "the same".into(), None);
    };
    (finding.cause, finding.note.clone(), finding.residual_nmse)
}

/// Numbers about 0 without a pattern.
fn normal(seed: u32, count: usize) -> Vec<f32> {
    let parts: Vec<Vec<f32>> = (0..6).map(|part| numbers(31 * seed + 7 * part + 1, count)).collect();
    (0..count).map(|i| parts.iter().map(|part| part[i]).sum::<f32>() * 0.1).collect()
}

const ROWS: usize = 48;
const COLUMNS: usize = 32;

/// The values that stand at (row, column).
fn matrix(of: impl Fn(usize, usize) -> f32) -> Vec<f32> {
    (0..ROWS * COLUMNS).map(|i| of(i / COLUMNS, i % COLUMNS)).collect()
}

#[track_caller]
fn is_law(change: impl Fn(&[f32]) -> Vec<f32>, words: &[&str]) {
    let (cause, note, residual) = of_matrix(change);
    assert!(cause.is_none(), "{cause:?}: {note}");
    assert!(residual.is_some_and(|left| left < 1e-9), "{note}: {residual:?}");
    words.iter().for_each(|word| assert!(note.contains(word), "'{word}' is not in: {note}"));
}

#[test]
fn a_law_of_the_difference_is_said_where_it_leaves_rounding() {
    let at = |x: &[f32], row: usize, column: usize| x[row * COLUMNS + column];
    assert_eq!(of_matrix(<[f32]>::to_vec).1, "the same");
    // Rows and columns.
    is_law(
        |x| matrix(|r, c| at(x, ROWS - 1 - r, c)),
        &["its rows are A's in another order, 48 of 48 at another place", "the rows in reverse"],
    );
    is_law(|x| matrix(|r, c| at(x, (r + 5) % ROWS, c)), &["its rows are A's in another order"]);
    is_law(|x| matrix(|r, c| at(x, r * 29 % ROWS, c)), &["its rows are A's in another order"]);
    is_law(|x| matrix(|r, c| at(x, r, c * 13 % COLUMNS)), &["its columns are A's in another order"]);
    let swapped = |r| {
        if r == 3 {
            9
        } else if r == 9 {
            3
        } else {
            r
        }
    };
    is_law(|x| matrix(|r, c| at(x, swapped(r), c)), &["2 of 48 at another place", "row 9 for row 3"]);
    is_law(|x| matrix(|r, c| at(x, r / 2, c)), &["its rows are A's, but 24 of A's are lost"]);
    // Numbers of rows, columns and groups.
    let own = |n: usize| 0.5 + (n * 7 % 13) as f32 / 10.0;
    is_law(
        |x| matrix(|r, c| at(x, r, c) * own(r)),
        &["times a factor of its own, 0.5000 to 1.7000, in each of rows 0-9, 11-22"],
    );
    is_law(
        |x| matrix(|r, c| at(x, r, c) * own(c)),
        &["times a factor of its own, 0.5000 to 1.7000, in each of columns 0-9"],
    );
    let sign = |r: usize| if r < 12 { -1.0 } else { 1.0 };
    is_law(
        |x| matrix(|r, c| at(x, r, c) * sign(r)),
        &["-1.000000 times the right values in rows 0-11 of 48; the others are right"],
    );
    is_law(|x| matrix(|r, c| at(x, r, c) + 0.01 * c as f32), &["columns", "a number of its own is added"]);
    let group = |r: usize, c: usize| if (2 * r + c / 16).is_multiple_of(7) { 0.3 + 0.01 * r as f32 } else { 0.0 };
    is_law(|x| matrix(|r, c| at(x, r, c) + group(r, c)), &["is added", "14 of 96 groups of 1 by 16"]);
    // Low rank.
    let rank = |n: usize| -> Vec<f32> {
        let (left, right) = (normal(11, ROWS * n), normal(12, n * COLUMNS));
        matrix(|r, c| (0..n).map(|i| left[r * n + i] * right[i * COLUMNS + c]).sum())
    };
    for n in [1, 3, 6] {
        let added = rank(n);
        is_law(|x| x.iter().zip(&added).map(|(x, y)| x + y).collect(), &[&format!("the difference has rank {n},")]);
    }
}

#[test]
fn rows_that_go_on_around_the_end_are_no_offset() {
    let at = |x: &[f32], row: usize, column: usize| x[row * COLUMNS + column];
    for rows in [1, 3] {
        let words = format!("its rows are A's, {rows} late, around the end: row i is row i-{rows}");
        is_law(|x| matrix(|r, c| at(x, (r + ROWS - rows) % ROWS, c)), &[&words]);
    }
    is_law(|x| matrix(|r, c| at(x, (r + 1) % ROWS, c)), &["its rows are A's, 1 early, around the end"]);
    is_law(|x| [&x[7..], &x[..7]].concat(), &["7 elements early, around the end"]);
    // What is cut off is lost, and other numbers come.
    let (cause, note, _) = of_matrix(|x| [&[0.3, 0.1, 0.7], &x[..x.len() - 3]].concat());
    assert_eq!(cause, Some("storage-shape"), "{note}");
}

#[test]
fn rows_of_zeros_are_no_blocks_counted_wrongly() {
    let zero_from = |at: usize| move |x: &[f32]| [&x[..at], &vec![0.0; x.len() - at]].concat();
    is_law(zero_from(40 * COLUMNS), &["rows 40-47 of 48 are zero, and the others right"]);
    is_law(|x| matrix(|r, c| if c < 24 { x[r * COLUMNS + c] } else { 0.0 }), &["columns 24-31 of 32"]);
    // A size that was counted by another type, or reading that ended in the middle of a row.
    for from in [24 * COLUMNS, 40 * COLUMNS + 5] {
        let (cause, note, _) = of_matrix(zero_from(from));
        assert_eq!(cause, Some("dequant-truncated"), "{note}");
    }
}

#[test]
fn a_law_may_be_of_the_matrix_in_another_order_of_elements() {
    // The memory of [in,out], as an array that was indexed is often written, with its columns in another order or times a number.
    let memory = |x: &[f32], column: &dyn Fn(usize) -> usize| -> Vec<f32> {
        (0..ROWS * COLUMNS).map(|i| x[i % ROWS * COLUMNS + column(i / ROWS)]).collect()
    };
    let words = ["the memory of [in,out]", "its columns are A's in another order"];
    is_law(|x| memory(x, &|c| c * 13 % COLUMNS), &words);
    is_law(|x| memory(x, &|c| c).iter().map(|x| 0.5 * x).collect(), &["the memory of [in,out]", "0.500000 times"]);
}

#[test]
fn gains_in_the_columns_of_what_reads_them_are_not_unset() {
    let folder = tempfile::tempdir().unwrap();
    let gains = normal(8, COLUMNS);
    let names = ["q", "k", "v"].map(|of| format!("model.layers.0.self_attn.{of}_proj.weight"));
    let norm = "model.layers.0.input_layernorm.weight";
    let file = |name: &str, gain: Vec<f32>, folded: &dyn Fn(usize) -> bool| {
        let matrix = |n: usize| -> Vec<f32> {
            let gains = gains.iter().cycle();
            normal(n as u32, ROWS * COLUMNS)
                .iter()
                .zip(gains)
                .map(|(x, gain)| if folded(n) { x * gain } else { *x })
                .collect()
        };
        let matrices = names.iter().enumerate().map(|(n, name)| (name.as_str(), vec![ROWS, COLUMNS], matrix(n)));
        let tensors: Vec<_> = matrices.chain([(norm, vec![COLUMNS], gain)]).collect();
        write(&folder.path().join(name), &tensors)
    };
    let (a, one) = (file("a.safetensors", gains.clone(), &|_| false), vec![1.0; COLUMNS]);
    let b = file("b.safetensors", one.clone(), &|_| true);
    for (a, b) in [(&a, &b), (&b, &a)] {
        let comparison = run(a, b);
        let [finding] = comparison.findings.as_slice() else { panic!("{:?}", comparison.findings) };
        assert!(finding.cause.is_none() && finding.note.contains("compute the same"), "{finding:?}");
        assert_eq!(finding.tensors.len(), 4);
    }
    // In two of the three alone: the norm is of no known cause, and not of the same function.
    let comparison = run(&a, &file("two.safetensors", one.clone(), &|n| n < 2));
    assert!(comparison.findings.iter().all(|f| !f.note.contains("compute the same")), "{:?}", comparison.findings);
    // In none of them it was not loaded.
    let unset = run(&a, &file("unset.safetensors", one, &|_| false));
    assert_eq!(unset.findings.iter().map(|f| f.cause).collect::<Vec<_>>(), [Some("weight-unset")]);
}

#[test]
fn levels_moved_by_whole_steps_are_a_zero_point() {
    let grid = |x: f32, row: usize| (x * 8.0).round() * 0.01 * (1 + row % 5) as f32;
    let folder = tempfile::tempdir().unwrap();
    let values = normal(3, ROWS * COLUMNS);
    let right = matrix(|r, c| grid(values[r * COLUMNS + c] * 8.0, r));
    let moved = |r: usize, c: usize| if (r + c / 16).is_multiple_of(6) { 0.15 * (1 + r % 5) as f32 } else { 0.0 };
    let wrong = matrix(|r, c| right[r * COLUMNS + c] - moved(r, c));
    let file = |name: &str, up: &[f32]| {
        write(&folder.path().join(name), &[("model.layers.0.mlp.up_proj.weight", vec![ROWS, COLUMNS], up.to_vec())])
    };
    let comparison = run(&file("a.safetensors", &right), &file("b.safetensors", &wrong));
    let note = &comparison.findings[0].note;
    assert!(note.contains("16 of 96 groups of 1 by 16") && note.contains("-15 steps"), "{note}");
}

#[test]
fn what_is_no_law_gets_none() {
    let noise = normal(17, ROWS * COLUMNS);
    let with = |size: f32, times: f32| {
        let noise = &noise;
        move |x: &[f32]| x.iter().zip(noise).map(|(x, n)| times * x + size * n).collect::<Vec<f32>>()
    };
    for (change, words) in [(with(1e-3, 1.0), "off by"), (with(0.4, 0.56), "off by"), (with(1.0, 1.0), "off by")] {
        let (cause, note, residual) = of_matrix(change);
        assert!(cause.is_none() && residual.is_none() && note.starts_with(words), "{note}");
        assert!(!note.contains("times") && !note.contains("rank"), "{note}");
    }
    let (_, note, residual) = of_matrix(|_| noise.clone());
    assert!(residual.is_none() && note.ends_with("no correlation with A's values"), "{note}");
}

#[test]
fn a_factor_makes_no_other_model() {
    let folder = tempfile::tempdir().unwrap();
    let names: Vec<String> = (0..6).map(|n| format!("model.layers.{n}.mlp.up_proj.weight")).collect();
    let file = |name: &str, times: f32| {
        let of = |n: usize| normal(n as u32, ROWS * COLUMNS).iter().map(|x| times * x).collect();
        let tensors: Vec<_> = (0..6).map(|n| (names[n].as_str(), vec![ROWS, COLUMNS], of(n))).collect();
        write(&folder.path().join(name), &tensors)
    };
    let comparison = run(&file("a.safetensors", 1.0), &file("b.safetensors", 2.0));
    assert_eq!(comparison.another_model(), None);
    assert!(comparison.findings[0].note.starts_with("2.000000 times"), "{:?}", comparison.findings);
    // What one side lacks is no other model's either.
    let few = write(
        &folder.path().join("few.safetensors"),
        &[(names[0].as_str(), vec![ROWS, COLUMNS], normal(0, ROWS * COLUMNS))],
    );
    assert_eq!(run(&file("a.safetensors", 1.0), &few).another_model(), None);
}

#[test]
fn numbers_of_one_tensor_are_not_said_of_others() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, times: [f32; 2]| {
        let of = |n: usize| normal(n as u32, ROWS * COLUMNS).iter().map(|x| times[n] * x).collect();
        let tensors = [("model.layers.0.mlp.up_proj.weight", 0), ("model.layers.1.mlp.up_proj.weight", 1)];
        write(&folder.path().join(name), &tensors.map(|(name, n)| (name, vec![ROWS, COLUMNS], of(n))))
    };
    let comparison = run(&file("a.safetensors", [1.0; 2]), &file("b.safetensors", [2.0, 3.0]));
    let [finding] = comparison.findings.as_slice() else { panic!("{:?}", comparison.findings) };
    assert!(finding.note.contains("numbers of model.layers.0.mlp.up_proj.weight"), "{}", finding.note);
}

/// What is said of the gains of one layer, B's against A's.
fn of_numbers(shape: &[usize], right: &[f32], change: impl Fn(f32) -> f32) -> (Option<&'static str>, String, bool) {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, values: Vec<f32>| {
        let tensors = [
            ("model.layers.0.mlp.up_proj.weight", shape.to_vec(), values),
            ("model.layers.1.mlp.up_proj.weight", vec![48, 32], normal(5, 48 * 32)),
        ];
        write(&folder.path().join(name), &tensors)
    };
    let wrong = right.iter().map(|x| change(*x)).collect();
    let comparison = run(&file("a.safetensors", right.to_vec()), &file("b.safetensors", wrong));
    let [finding] = comparison.findings.as_slice() else { panic!("{:?}", comparison.findings) };
    (finding.cause, finding.note.clone(), finding.residual_nmse.is_some())
}

#[test]
fn values_that_are_nan_in_both_are_of_no_cause() {
    let (cause, note, is_law) = of_numbers(&[8, 8], &[f32::NAN; 64], |x| x);
    assert!(cause.is_none() && !is_law && !note.contains("read as"), "{note}");
    assert!(note.contains("64 values that are not finite in both"), "{note}");
}

#[test]
fn a_law_of_few_numbers_is_allowed_and_not_proved() {
    let few: Vec<f32> = (0..64).map(|i| if i % 4 < 2 { 0.7 } else { 1.3 }).collect();
    type Change = fn(f32) -> f32;
    let changes: [(&str, Change); 2] = [("times", |x| 1.5 * x), ("added", |x| x + 0.25)];
    for (word, change) in changes {
        for (shape, right) in [(vec![1, 2], &few[1..3]), (vec![64], &few[..]), (vec![16, 4], &few[..])] {
            let (cause, note, is_law) = of_numbers(&shape, right, change);
            assert!(cause.is_none() && !is_law, "{shape:?}: {note}");
            assert!(note.starts_with("off by") && note.contains("not proved") && note.contains(word), "{note}");
        }
        // Eight numbers are enough for one; so are rows of three values, no two of which are one.
        let ternary: Vec<f32> = normal(9, 48 * 32).iter().map(|x| (x * 8.0).round().clamp(-1.0, 1.0)).collect();
        for (shape, right) in
            [(vec![8], &normal(9, 8)), (vec![48, 32], &ternary), (vec![1024, 512], &normal(9, 1 << 19))]
        {
            let (_, note, is_law) = of_numbers(&shape, right, change);
            assert!(is_law && note.contains(word), "{shape:?}: {note}");
        }
    }
}

/// Numbers of bf16, and what they may have been rounded from.
#[test]
fn what_is_a_bit_for_bit_but_for_some_numbers_is_no_finer_original() {
    let folder = tempfile::tempdir().unwrap();
    let coarse = |values: &[f32]| values.iter().map(|x| half::bf16::from_f32(*x).to_f32()).collect::<Vec<_>>();
    let file = |name: &str, matrix: &[f32], gain: &[f32]| {
        let tensors = [
            ("model.layers.0.mlp.up_proj.weight", vec![48, 64], matrix.to_vec()),
            ("model.layers.0.input_layernorm.weight", vec![256], gain.to_vec()),
        ];
        write(&folder.path().join(name), &tensors)
    };
    let (matrix, gain) = (normal(5, 48 * 64), normal(6, 256).iter().map(|x| 1.0 + 2.0 * x).collect::<Vec<_>>());
    let (m, g) = (coarse(&matrix), coarse(&gain));
    let a = file("a.safetensors", &m, &g);
    let wrong = |matrix: &[f32], gain: &[f32]| {
        run(&a, &file("b.safetensors", matrix, gain)).count(|state| *state == State::Wrong)
    };
    assert_eq!([wrong(&matrix, &gain), wrong(&matrix, &g)], [0; 2]);
    let scaled = |values: &[f32], factor: fn(usize) -> f32| -> Vec<f32> {
        values.iter().enumerate().map(|(i, x)| x * factor(i / 64)).collect()
    };
    assert_eq!(wrong(&scaled(&m, |row| if row == 5 { 1.0015 } else { 1.0 }), &g), 1);
    assert_eq!(wrong(&scaled(&m, |row| if row % 2 == 0 { 1.0015 } else { 0.9985 }), &g), 1);
    assert_eq!(wrong(&m, &scaled(&g, |_| 1.0018)), 1);
    assert_eq!(wrong(&m, &scaled(&g, |_| 1.0001)), 1);
}
