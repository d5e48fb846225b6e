//! Are tensors of an architecture that is not known mapped, by names and by content, and is a wrong one named?

use std::collections::BTreeMap;
use std::path::Path;

use firstdiff_explain::weights::{Comparison, Options, Side, State, compare};
use tempfile::TempDir;

const WIDTH: usize = 32;
const INNER: usize = 24;
const EXPERTS: usize = 3;
const LAYERS: usize = 3;

type Tensors = BTreeMap<String, (Vec<usize>, Vec<f32>)>;

fn numbers(seed: &str, count: usize) -> Vec<f32> {
    let seed = seed.bytes().fold(7u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(u32::from(byte))) % 10_007;
    (0..count as u32).map(|i| (((i + 1 + seed) as f32 * 12.9898).sin() * 43758.547).fract() * 0.1).collect()
}

/// The model as it was trained, and as another program stores it.
fn model() -> (Tensors, Tensors) {
    let (mut a, mut b) = (Tensors::new(), Tensors::new());
    let mut own = |name: String, shape: &[usize]| -> Vec<f32> {
        let values = numbers(&name, shape.iter().product());
        a.insert(name, (shape.to_vec(), values.clone()));
        values
    };
    let mut stored = |name: String, shape: &[usize], values: Vec<f32>| b.insert(name, (shape.to_vec(), values));
    stored("token_embd.weight".into(), &[40, WIDTH], own("model.embed_tokens.weight".into(), &[40, WIDTH]));
    own("model.rotary.inv_freq".into(), &[4]);
    for layer in 0..LAYERS {
        let (here, there) =
            (|name: &str| format!("model.layers.{layer}.{name}"), |name: &str| format!("blk.{layer}.{name}"));
        let norm = own(here("input_layernorm.weight"), &[WIDTH]);
        stored(there("attn_norm.weight"), &[WIDTH], norm.iter().map(|x| x + 1.0).collect());
        let second = own(here("second_norm.weight"), &[WIDTH]);
        stored(there("ffn_norm.weight"), &[WIDTH], second.iter().map(|x| x + 1.0).collect());
        let [q, k, v] = ["q", "k", "v"].map(|of| own(here(&format!("self_attn.{of}_proj.weight")), &[WIDTH, WIDTH]));
        stored(there("attn_qkv.weight"), &[3 * WIDTH, WIDTH], [q, k, v].concat());
        // Conv1D's order of axes.
        let out = own(here("self_attn.o_proj.weight"), &[WIDTH, WIDTH]);
        stored(there("attn_output.weight"), &[WIDTH, WIDTH], turned(&out, WIDTH));
        let inner = own(here("mixer.conv.weight"), &[WIDTH, INNER]);
        stored(there("mixer_in.weight"), &[INNER, WIDTH], turned(&inner, INNER));
        let decay = own(here("mixer.A_log"), &[8]);
        stored(there("ssm_a"), &[8, 1], decay.iter().map(|x| -x.exp()).collect());
        for part in ["gate", "up"] {
            let experts: Vec<Vec<f32>> = (0..EXPERTS)
                .map(|e| own(here(&format!("mlp.experts.{e}.{part}_proj.weight")), &[INNER, WIDTH]))
                .collect();
            stored(there(&format!("ffn_{part}_exps.weight")), &[EXPERTS, INNER, WIDTH], experts.concat());
        }
        let fused = own(here("shared.in_proj.weight"), &[2 * INNER, WIDTH]);
        let (gate, up) = fused.split_at(INNER * WIDTH);
        stored(there("ssm_gate.weight"), &[INNER, WIDTH], gate.to_vec());
        stored(there("ssm_in.weight"), &[INNER, WIDTH], up.to_vec());
    }
    (a, b)
}

fn turned(values: &[f32], columns: usize) -> Vec<f32> {
    (0..columns).flat_map(|column| values.iter().skip(column).step_by(columns).copied()).collect()
}

fn write(path: &Path, tensors: &Tensors) {
    let bytes = |values: &[f32]| values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let stored: Vec<_> = tensors.iter().map(|(name, (shape, values))| (name, shape, bytes(values))).collect();
    let views = stored.iter().map(|(name, shape, bytes)| {
        (name.as_str(), safetensors::tensor::TensorView::new(safetensors::Dtype::F32, (*shape).clone(), bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

fn compared(a: &Tensors, b: &Tensors) -> Comparison {
    let folder = TempDir::new().unwrap();
    std::fs::write(folder.path().join("config.json"), r#"{"model_type": "odd"}"#).unwrap();
    write(&folder.path().join("model.safetensors"), a);
    let other = TempDir::new().unwrap();
    write(&other.path().join("b.safetensors"), b);
    let sides = [Side::open(folder.path()).unwrap(), Side::open(other.path().join("b.safetensors")).unwrap()];
    compare(&sides[0], &sides[1], Options::default(), &mut |_, _| {}).unwrap()
}

/// B's names of what is wrong.
fn wrong(comparison: &Comparison) -> Vec<&str> {
    let wrong = comparison.tensors.iter().filter(|tensor| tensor.state == State::Wrong);
    let mut names: Vec<&str> = wrong.filter_map(|tensor| tensor.names[1].as_deref()).collect();
    names.sort_unstable();
    names
}

#[test]
fn every_tensor_is_mapped_and_what_is_in_no_other_is_said() {
    let (a, b) = model();
    let comparison = compared(&a, &b);
    assert!(comparison.findings.is_empty(), "{:?}", comparison.findings);
    let of_b = comparison.tensors.iter().filter(|tensor| tensor.names[1].is_some());
    assert_eq!(of_b.filter(|tensor| matches!(tensor.state, State::Identical | State::Rounded)).count(), b.len());
    let open: Vec<&str> = comparison
        .tensors
        .iter()
        .filter(|tensor| matches!(tensor.state, State::Unchecked(_)))
        .map(|tensor| tensor.name.as_str())
        .collect();
    assert_eq!(open, ["model.rotary.inv_freq"]);
}

#[test]
fn equal_names_are_one_tensor_whatever_they_hold() {
    let (a, _) = model();
    let mut b = a.clone();
    let up = b["model.layers.0.mlp.experts.0.up_proj.weight"].clone();
    b.insert("model.layers.0.mlp.experts.0.gate_proj.weight".into(), up);
    assert_eq!(compared(&a, &a).findings, []);
    assert_eq!(wrong(&compared(&a, &b)), ["model.layers.0.mlp.experts.0.gate_proj.weight"]);
}

#[test]
fn a_wrong_tensor_is_named() {
    let (a, b) = model();
    let check = |due: &[&str], cause: Option<&str>, change: &dyn Fn(&mut Tensors)| {
        let mut b = b.clone();
        change(&mut b);
        let comparison = compared(&a, &b);
        assert_eq!(wrong(&comparison), due, "{:?}", comparison.findings);
        assert!(comparison.findings.iter().any(|finding| finding.cause == cause), "{:?}", comparison.findings);
    };
    let exchange = |b: &mut Tensors, one: &str, other: &str| {
        let (kept, taken) = (b[one].clone(), b[other].clone());
        b.extend([(one.to_owned(), taken), (other.to_owned(), kept)]);
    };
    let rows = |values: &mut Vec<f32>, width: usize, one: usize, other: usize| {
        (0..width).for_each(|at| values.swap(one * width + at, other * width + at));
    };
    let gate_up = ["blk.1.ffn_gate_exps.weight", "blk.1.ffn_up_exps.weight"];
    check(&gate_up, Some("weight-swapped"), &|b| exchange(b, gate_up[0], gate_up[1]));
    // In all layers, which only names can tell.
    let all: Vec<String> =
        (0..LAYERS).flat_map(|l| ["gate", "up"].map(|of| format!("blk.{l}.ffn_{of}_exps.weight"))).collect();
    let all: Vec<&str> = all.iter().map(String::as_str).collect();
    check(&all, Some("weight-swapped"), &|b| all.chunks(2).for_each(|pair| exchange(b, pair[0], pair[1])));
    let of_layers = ["blk.0.attn_qkv.weight", "blk.1.attn_qkv.weight"];
    check(&of_layers, Some("weight-wrong-layer"), &|b| exchange(b, of_layers[0], of_layers[1]));
    let qkv = "blk.2.attn_qkv.weight";
    check(&[qkv], None, &|b| rows(&mut b.get_mut(qkv).unwrap().1, WIDTH, 3, 40));
    // Rows of f32: no count of blocks leaves two thirds of them.
    check(&[qkv], None, &|b| b.get_mut(qkv).unwrap().1[64 * WIDTH..].fill(0.0));
    let experts = "blk.0.ffn_up_exps.weight";
    check(&[experts], None, &|b| rows(&mut b.get_mut(experts).unwrap().1, INNER * WIDTH, 1, 2));
    let norm = "blk.1.ffn_norm.weight";
    check(&[norm], Some("norm-plus-one"), &|b| b.get_mut(norm).unwrap().1.iter_mut().for_each(|x| *x -= 1.0));
    let square = "blk.2.attn_output.weight";
    check(&[square], Some("weight-transposed"), &|b| {
        let values = turned(&b[square].1, WIDTH);
        b.get_mut(square).unwrap().1 = values;
    });
    // A square matrix alone that is turned is wrong where no other is.
    let alone = |tensors: &Tensors, names: &[&str]| -> Tensors {
        tensors.iter().filter(|(name, _)| names.contains(&name.as_str())).map(|(n, t)| (n.clone(), t.clone())).collect()
    };
    let of_a = alone(&a, &["model.layers.0.self_attn.o_proj.weight"]);
    assert_eq!(wrong(&compared(&of_a, &alone(&b, &["blk.0.attn_output.weight"]))), ["blk.0.attn_output.weight"]);
    check(&["token_embd.weight"], Some("dequant-truncated"), &|b| {
        b.get_mut("token_embd.weight").unwrap().1[20 * WIDTH..].fill(0.0)
    });
    check(&["token_embd.weight"], None, &|b| rows(&mut b.get_mut("token_embd.weight").unwrap().1, WIDTH, 5, 6));
}

/// What of A is wrong because B does not have it.
fn missing(comparison: &Comparison) -> Vec<&str> {
    let wrong = comparison.tensors.iter().filter(|tensor| tensor.state == State::Wrong && tensor.names[1].is_none());
    let mut names: Vec<&str> = wrong.filter_map(|tensor| tensor.names[0].as_deref()).collect();
    names.sort_unstable();
    names
}

fn without(tensors: &Tensors, start: &str) -> Tensors {
    tensors.iter().filter(|(name, _)| !name.starts_with(start)).map(|(n, t)| (n.clone(), t.clone())).collect()
}

#[test]
fn a_layer_that_is_missing_is_missing_whichever_it_is() {
    let (a, b) = model();
    for layer in 0..LAYERS {
        let comparison = compared(&a, &without(&b, &format!("blk.{layer}.")));
        let of_it: Vec<&str> =
            a.keys().map(String::as_str).filter(|name| name.starts_with(&format!("model.layers.{layer}."))).collect();
        assert_eq!(missing(&comparison), of_it, "layer {layer}");
        // And the other way round.
        let comparison = compared(&without(&a, &format!("model.layers.{layer}.")), &b);
        let of_it: Vec<&str> =
            b.keys().map(String::as_str).filter(|name| name.starts_with(&format!("blk.{layer}."))).collect();
        assert_eq!(wrong(&comparison), of_it, "layer {layer}");
    }
    // Layers that predict further tokens have tensors of their own, and files leave them out.
    let mut more = a.clone();
    for (name, tensor) in a.iter().filter(|(name, _)| name.starts_with("model.layers.2.")) {
        more.insert(name.replace("layers.2", "layers.3"), (tensor.0.clone(), numbers(name, tensor.1.len())));
    }
    more.insert("model.layers.3.eh_proj.weight".into(), (vec![WIDTH, WIDTH], numbers("eh", WIDTH * WIDTH)));
    let comparison = compared(&more, &b);
    assert_eq!(comparison.findings, []);
    assert!(comparison.unfound.iter().any(|name| name == "model.layers.3.eh_proj.weight"), "{:?}", comparison.unfound);
}

#[test]
fn a_tensor_alone_of_its_kind_that_is_missing_does_not_pass() {
    let (mut a, mut b) = model();
    assert_eq!(compared(&a, &b).unfound, Vec::<String>::new());
    a.insert("model.norm.weight".into(), (vec![WIDTH], numbers("norm", WIDTH)));
    assert_eq!(compared(&a, &b).unfound, ["model.norm.weight"]);
    b.insert("output_norm.weight".into(), (vec![WIDTH], numbers("norm", WIDTH).iter().map(|x| x + 1.0).collect()));
    assert_eq!(compared(&a, &b).unfound, Vec::<String>::new());
}

#[test]
fn one_layer_that_is_stored_otherwise_than_the_others_is_wrong() {
    let (a, b) = model();
    for layer in 0..LAYERS {
        let changes: [(&str, &dyn Fn(f32) -> f32); 4] = [
            ("attn_norm.weight", &|x| x - 1.0),
            ("ffn_norm.weight", &|x| x + 1.0),
            ("ssm_a", &|x| (-x).ln()),
            ("ssm_a", &|x| -x),
        ];
        for (of, change) in changes {
            let (name, mut b) = (format!("blk.{layer}.{of}"), b.clone());
            b.get_mut(&name).unwrap().1.iter_mut().for_each(|x| *x = change(*x));
            assert_eq!(wrong(&compared(&a, &b)), [name]);
        }
    }
}

#[test]
fn queries_keys_and_values_in_another_order_do_not_pass() {
    let (a, b) = model();
    let size = WIDTH * WIDTH;
    let in_order = |values: &[f32], order: [usize; 3]| -> Vec<f32> {
        order.iter().flat_map(|&part| values[part * size..][..size].iter().copied()).collect()
    };
    for order in [[0, 2, 1], [1, 0, 2], [2, 1, 0], [1, 2, 0], [2, 0, 1]] {
        let mut other = b.clone();
        let mut names = Vec::new();
        for layer in 0..LAYERS {
            let name = format!("blk.{layer}.attn_qkv.weight");
            let values = in_order(&b[&name].1, order);
            other.get_mut(&name).unwrap().1 = values;
            names.push(name);
        }
        // Made of three tensors whose names say what they are.
        let comparison = compared(&a, &other);
        assert_eq!(wrong(&comparison), names, "{order:?}");
        assert!(comparison.findings[0].note.contains("in the order"), "{:?}", comparison.findings);
        // Of one tensor nothing says in which order it holds them.
        let mut fused = a.clone();
        for layer in 0..LAYERS {
            let name = |of: &str| format!("model.layers.{layer}.self_attn.{of}_proj.weight");
            let parts: Vec<f32> = ["q", "k", "v"].iter().flat_map(|of| fused.remove(&name(of)).unwrap().1).collect();
            fused.insert(name("qkv"), (vec![3 * WIDTH, WIDTH], parts));
        }
        assert_eq!(compared(&fused, &b).findings, []);
        let comparison = compared(&fused, &other);
        let open = comparison.tensors.iter().filter(|tensor| matches!(tensor.state, State::Unchecked(_)));
        let open: Vec<&str> = open.filter_map(|tensor| tensor.names[1].as_deref()).collect();
        assert_eq!((open, comparison.findings.len()), (names.iter().map(String::as_str).collect(), 0), "{order:?}");
    }
}

/// Layers of a known family, whose queries, keys and values, and gate and up, stand by themselves or together.
fn family(is_fused: bool) -> Tensors {
    let mut out = Tensors::new();
    let heads = [WIDTH, WIDTH / 2, WIDTH / 2];
    for layer in 0..LAYERS {
        let name = |of: &str| format!("model.layers.{layer}.{of}");
        let mut add = |group: &str, fused: &str, parts: &[(&str, usize)]| {
            for kind in ["weight", "bias"] {
                let width = if kind == "weight" { WIDTH } else { 1 };
                let shape = |rows: usize| if kind == "weight" { vec![rows, WIDTH] } else { vec![rows] };
                let of = |part: &str| name(&format!("{group}.{part}.{kind}"));
                let values = |(part, rows): &(&str, usize)| numbers(&of(part), rows * width);
                if is_fused {
                    let all: usize = parts.iter().map(|(_, rows)| rows).sum();
                    out.insert(of(fused), (shape(all), parts.iter().flat_map(values).collect()));
                } else {
                    out.extend(parts.iter().map(|part| (of(part.0), (shape(part.1), values(part)))));
                }
            }
        };
        add("self_attn", "qkv_proj", &[("q_proj", heads[0]), ("k_proj", heads[1]), ("v_proj", heads[2])]);
        add("mlp", "gate_up_proj", &[("gate_proj", INNER), ("up_proj", INNER)]);
        out.insert(name("input_layernorm.weight"), (vec![WIDTH], numbers(&name("norm"), WIDTH)));
    }
    out
}

fn of_files(a: &Tensors, b: &Tensors) -> Comparison {
    let folder = TempDir::new().unwrap();
    let side = |name: &str, tensors: &Tensors| {
        write(&folder.path().join(name), tensors);
        Side::open(folder.path().join(name)).unwrap()
    };
    compare(&side("a.safetensors", a), &side("b.safetensors", b), Options::default(), &mut |_, _| {}).unwrap()
}

#[test]
fn what_one_side_joins_is_not_missing() {
    let (apart, fused) = (family(false), family(true));
    for (a, b) in [(&apart, &fused), (&fused, &apart)] {
        let comparison = of_files(a, b);
        assert_eq!(comparison.findings, []);
        assert_eq!(comparison.count(|state| *state == State::Identical), b.len(), "{:?}", comparison.tensors);
        assert_eq!(comparison.tensors.len(), b.len());
    }
    let check = |a: &Tensors, b: &Tensors, due: &[&str], words: &str| {
        let comparison = of_files(a, b);
        let wrong: Vec<&str> = comparison
            .tensors
            .iter()
            .filter(|tensor| tensor.state == State::Wrong)
            .map(|tensor| tensor.names[1].as_deref().unwrap_or(&tensor.name))
            .collect();
        assert_eq!(wrong, due, "{:?}", comparison.findings);
        assert!(comparison.findings.iter().any(|f| f.note.contains(words)), "{words}: {:?}", comparison.findings);
        assert!(comparison.findings.iter().all(|f| f.cause != Some("bias-omitted")), "{:?}", comparison.findings);
    };
    // Up before gate in one layer.
    let mut other = fused.clone();
    let name = "model.layers.1.mlp.gate_up_proj.weight";
    other.get_mut(name).unwrap().1.rotate_left(INNER * WIDTH);
    check(&apart, &other, &[name], "in the order");
    // One row of keys, in the middle layer and in all.
    for layers in [1..2, 0..LAYERS] {
        let keys: Vec<String> = layers.map(|l| format!("model.layers.{l}.self_attn.k_proj.weight")).collect();
        let mut spoilt = apart.clone();
        keys.iter().for_each(|name| spoilt.get_mut(name).unwrap().1[..WIDTH].fill(0.5));
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        check(&fused, &spoilt, &keys, "rows 0");
    }
    let mut spoilt = fused.clone();
    let name = "model.layers.2.self_attn.qkv_proj.bias";
    spoilt.get_mut(name).unwrap().1[3] += 1.0;
    check(&apart, &spoilt, &[name], "");
    // Names exchanged in every layer: which part A's model reads where, no file says.
    for [one, other] in [["self_attn.k_proj", "self_attn.v_proj"], ["mlp.gate_proj", "mlp.up_proj"]] {
        let mut exchanged = apart.clone();
        for (layer, kind) in (0..LAYERS).flat_map(|layer| ["weight", "bias"].map(|kind| (layer, kind))) {
            let [one, other] = [one, other].map(|part| format!("model.layers.{layer}.{part}.{kind}"));
            let (first, second) = (exchanged[&one].clone(), exchanged[&other].clone());
            exchanged.extend([(one, second), (other, first)]);
        }
        let comparison = of_files(&fused, &exchanged);
        let open = comparison.count(|state| matches!(state, State::Unchecked(_)));
        assert_eq!((open, comparison.findings.len()), (4 * LAYERS, 0), "{one}: {:?}", comparison.tensors);
    }
    // A part that is in no tensor of B is missing, and a fused tensor of another size is not looked at.
    let mut without = apart.clone();
    without.remove("model.layers.0.self_attn.v_proj.weight");
    check(&fused, &without, &["model.layers.0.self_attn.qkv_proj"], "512 of its 2048 elements are in nothing");
    let cut = |layers: std::ops::Range<usize>| {
        let mut cut = fused.clone();
        for layer in layers {
            let name = format!("model.layers.{layer}.self_attn.qkv_proj.weight");
            let (shape, values) = cut.get_mut(&name).unwrap();
            shape[0] -= 1;
            values.truncate(values.len() - WIDTH);
            values.iter_mut().for_each(|x| *x = -*x);
        }
        cut
    };
    let name = "model.layers.0.self_attn.qkv_proj.weight";
    check(&apart, &cut(0..1), &[name], "shape [63, 32] against [64, 32]");
    let comparison = of_files(&apart, &cut(0..LAYERS));
    assert_eq!(comparison.findings, []);
    assert_eq!(comparison.count(|state| matches!(state, State::Unchecked(_))), 4 * LAYERS);
}
