//! Small programs of two layers, each with a planted fault of a class that was told otherwise, and what is said of a right run beside it.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::common::{firstdiff, json, keep_taps};
use crate::program::{npy, numbers, tensors};

const TOKENS: usize = 9;
const WIDTH: usize = 8;
const WIDE: usize = 16;
const VOCAB: usize = 24;

/// Layers of a norm, a product that stands for attention, and a feed-forward part; the embedding is the head.
#[derive(Clone, Copy)]
struct Blocks {
    /// Both branches read one norm, and are added up in one line: the stream first, or last.
    parallel: Option<Stream>,
    /// A factor on each branch.
    multiplier: f64,
    /// Epsilon of the norms in the layers, and of the last.
    eps: [f64; 2],
    /// A branch that is not added, and the first layer of which it is not.
    lost: Option<(&'static str, usize)>,
    /// A head of ones.
    ones: bool,
    /// The product in front of the activation holds a gate and what it lets through: how they stand in it.
    cut: Option<Cut>,
}

/// How the two parts of a product stand in it.
#[derive(Clone, Copy, PartialEq)]
enum Cut {
    /// The gate first.
    Blocks,
    /// The gate last.
    Exchanged,
    /// In turn for each group.
    Groups,
    /// The gate first, and the activation behind the product of both.
    Late,
}

impl Cut {
    /// The views of both parts, each of two groups.
    fn views(self, wide: usize) -> [Value; 2] {
        let (group, starts) = match self {
            Cut::Blocks | Cut::Late => (WIDTH / 2, [0, WIDTH]),
            Cut::Exchanged => (WIDTH / 2, [WIDTH, 0]),
            Cut::Groups => (WIDTH, [0, WIDTH / 2]),
        };
        starts.map(|start| json!({"v": [wide, [TOKENS, 2, WIDTH / 2], [WIDE, group, 1], start]}))
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Stream {
    First,
    Last,
}

/// A program that grows by an operation at a time.
#[derive(Default)]
struct Program {
    values: Vec<Value>,
    ops: Vec<Value>,
    taps: Vec<Value>,
}

impl Program {
    fn add(&mut self, name: &str, inputs: Value, width: usize, line: usize) -> usize {
        self.add_shaped(name, inputs, &[TOKENS, width], line)
    }

    fn add_shaped(&mut self, name: &str, inputs: Value, shape: &[usize], line: usize) -> usize {
        self.values.push(json!(["f32", shape]));
        let made = self.values.len() - 1;
        self.ops.push(json!({"o": name, "i": inputs, "y": [made], "s": 0, "l": line}));
        made
    }

    fn tap(&mut self, name: &str, buffer: usize) -> usize {
        let op = self.ops.iter().position(|op| op["y"][0] == buffer).unwrap();
        self.taps.push(json!({"tap": name, "step": 0, "op": op, "v": buffer}));
        buffer
    }
}

/// The buffers of ids, embedding, gain and ones; behind them stand three weights for each layer.
const IDS: usize = 0;
const EMBED: usize = 1;
const GAIN: usize = 2;
const ONES: usize = 3;

impl Blocks {
    const RIGHT: Blocks =
        Blocks { parallel: None, multiplier: 1.0, eps: [1e-12; 2], lost: None, ones: false, cut: None };

    fn weights() -> Vec<(String, [usize; 2], Vec<f32>)> {
        let layer = |layer: usize| {
            let seed = 10 * layer as u64;
            let of = |name: &str, shape: [usize; 2], seed| {
                (format!("layers.{layer}.{name}.weight"), shape, numbers(shape[0] * shape[1], seed))
            };
            [of("attn", [WIDTH; 2], seed + 4), of("up", [WIDE, WIDTH], seed + 5), of("down", [WIDTH, WIDE], seed + 6)]
        };
        let gain = numbers(WIDTH, 2).into_iter().map(|x| 1.0 + 0.3 * x).collect();
        let outside = [
            ("embed.weight".to_owned(), [VOCAB, WIDTH], numbers(VOCAB * WIDTH, 1)),
            ("norm.weight".to_owned(), [1, WIDTH], gain),
            ("ones.weight".to_owned(), [VOCAB, WIDTH], vec![1.0; VOCAB * WIDTH]),
        ];
        outside.into_iter().chain([0, 1].into_iter().flat_map(layer)).collect()
    }

    fn program(self) -> Value {
        let mut program = Program { values: vec![json!(["i64", [1, TOKENS]])], ..Program::default() };
        let shape = |shape: &[usize; 2]| if shape[0] == 1 { json!([WIDTH]) } else { json!(shape) };
        program.values.extend(Blocks::weights().iter().map(|(_, dims, _)| json!(["f32", shape(dims)])));
        let norm = |program: &mut Program, x: usize, eps: f64, line| {
            program.add("layer_norm", json!([x, [{"c": WIDTH}], GAIN, null, {"c": eps}]), WIDTH, line)
        };
        let ids = json!({"v": [IDS, [TOKENS], [1]]});
        let mut x = program.add("embedding", json!([EMBED, ids]), WIDTH, 1);
        program.tap("h0", x);
        for layer in 0..2 {
            let name = |tap: &str| format!("layers.{layer}.{tap}");
            let [attn, up, down] = [4, 5, 6].map(|at| at + 3 * layer);
            let is_lost = |branch: &str| self.lost.is_some_and(|(lost, from)| lost == branch && layer >= from);
            // A branch times its factor, or nothing.
            let weighed = |program: &mut Program, branch: &str, made: usize, line: usize| {
                program.tap(&format!("layers.{layer}.{branch}"), made);
                match (is_lost(branch), self.multiplier) {
                    (true, _) => program.add("mul.Tensor", json!([made, {"c": 0.0}]), WIDTH, line),
                    (_, 1.0) if self.parallel.is_some() => made,
                    (_, by) => program.add("mul.Tensor", json!([made, {"c": by}]), WIDTH, line),
                }
            };
            let normed = norm(&mut program, x, self.eps[0], 2);
            program.tap(&name("attn_norm"), normed);
            let attended = program.add("linear", json!([normed, attn]), WIDTH, 3);
            let attended = weighed(&mut program, "attn_out", attended, 4);
            let (mut stream, mut read) = (x, normed);
            if self.parallel.is_none() {
                stream = program.add("add.Tensor", json!([x, attended]), WIDTH, 5);
                program.tap(&name("h_attn"), stream);
                read = norm(&mut program, stream, self.eps[0], 6);
                program.tap(&name("ffn_norm"), read);
            }
            let wide = program.add("linear", json!([read, up]), WIDE, 7);
            let active = match self.cut.map(|cut| cut.views(wide)) {
                None => program.add("gelu", json!([wide]), WIDE, 8),
                Some([gate, passes]) => {
                    program.tap(&name("ffn_up"), wide);
                    let part = [TOKENS, 2, WIDTH / 2];
                    let flat = |buffer: usize| json!({"v": [buffer, [TOKENS, WIDTH], [WIDTH, 1]]});
                    let (beside, gated) = if self.cut == Some(Cut::Late) {
                        let product = program.add_shaped("mul.Tensor", json!([gate, passes]), &part, 8);
                        let first = json!({"v": [wide, [TOKENS, WIDTH], [WIDE, 1]]});
                        (first, program.add_shaped("gelu", json!([product]), &part, 8))
                    } else {
                        let act = program.add_shaped("gelu", json!([gate]), &part, 8);
                        (flat(act), program.add_shaped("mul.Tensor", json!([act, passes]), &part, 8))
                    };
                    program.add("cat", json!([[flat(gated), beside], {"c": -1}]), WIDE, 8)
                }
            };
            let fed = program.add("linear", json!([active, down]), WIDTH, 9);
            let fed = weighed(&mut program, "ffn_out", fed, 10);
            // Two adds in one line.
            let pair = match self.parallel {
                None => [stream, fed],
                Some(Stream::First) => [program.add("add.Tensor", json!([x, attended]), WIDTH, 11), fed],
                Some(Stream::Last) => [program.add("add.Tensor", json!([attended, fed]), WIDTH, 11), x],
            };
            x = program.add("add.Tensor", json!(pair), WIDTH, 11);
            program.tap(&name("h"), x);
        }
        let last = norm(&mut program, x, self.eps[1], 12);
        program.tap("final_norm", last);
        let head = if self.ones { ONES } else { EMBED };
        let logits = program.add("linear", json!([last, head]), VOCAB, 13);
        program.tap("logits", logits);
        let names =
            Blocks::weights().into_iter().enumerate().map(|(at, (name, ..))| ((at + 1).to_string(), name.into()));
        json!({"version": 1, "model": "Odd", "constants": [], "inputs": {"0": "input_ids"},
            "weights": names.collect::<serde_json::Map<_, Value>>(), "files": ["odd.py"], "scopes": [["", [], 0]],
            "values": program.values, "ops": program.ops, "taps": program.taps,
            "steps": [{"ops": [0, program.ops.len()], "tokens": TOKENS, "output": logits}]})
    }

    /// Runs it, and leaves the taps that are to be kept in the run.
    fn run(self, folder: &Path, name: &str, keep: &dyn Fn(&str) -> bool) -> PathBuf {
        let [source, out] = [format!("{name} as a program"), name.to_owned()].map(|name| folder.join(name));
        std::fs::create_dir(&source).unwrap();
        std::fs::write(source.join("program.json"), self.program().to_string()).unwrap();
        let ids = (0..TOKENS as i64).map(|at| at * 5 % VOCAB as i64);
        // A dump holds a tap at least.
        npy(&source.join("h0.npy"), &[TOKENS, WIDTH], &[0.0; TOKENS * WIDTH]);
        let tap = json!({"tap": "h0", "step": 0, "file": "h0.npy", "shape": [TOKENS, WIDTH], "dtype": "f32"});
        let tokens: Vec<i64> = ids.clone().collect();
        let dump = json!({"format": 1, "complete": true, "model": "Odd", "tokens": tokens, "taps": [tap]});
        std::fs::write(source.join("dump.json"), dump.to_string()).unwrap();
        let bytes: Vec<u8> = ids.clone().flat_map(i64::to_le_bytes).collect();
        tensors(&source.join("program.safetensors"), &[("0", "I64", vec![1, TOKENS], bytes)]);
        let weights = Blocks::weights();
        let stored = |(name, shape, values): &(String, [usize; 2], Vec<f32>)| {
            let shape = if shape[0] == 1 { vec![WIDTH] } else { shape.to_vec() };
            (name.clone(), shape, values.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>())
        };
        let stored: Vec<_> = weights.iter().map(stored).collect();
        let named: Vec<_> =
            stored.iter().map(|(name, shape, x)| (name.as_str(), "F32", shape.clone(), x.clone())).collect();
        tensors(&source.join("model.safetensors"), &named);
        let paths = [&source, &out, &source.join("model.safetensors")].map(|path| path.to_string_lossy().into_owned());
        let ids = ids.map(|id| id.to_string()).collect::<Vec<_>>().join(",");
        let args = ["dump", &paths[0], "-o", &paths[1], "--tokens", &ids, "--weights", &paths[2], "--profile", "f32"];
        let made = firstdiff(&args);
        assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
        keep_taps(&out, keep);
        out
    }

    /// What is found of another run of which these taps were recorded.
    fn findings(self, own: Blocks, keep: &dyn Fn(&str) -> bool) -> Vec<Value> {
        let folder = tempfile::tempdir().unwrap();
        let golden = self.run(folder.path(), "golden", &|_| true);
        let source = folder.path().join("golden as a program");
        for file in ["program.json", "program.safetensors"] {
            std::fs::copy(source.join(file), golden.join(file)).unwrap();
        }
        let own = own.run(folder.path(), "own", keep);
        let weights = source.join("model.safetensors");
        let [golden, own, weights] = [golden, own, weights].map(|path| path.to_string_lossy().into_owned());
        let report = json(&["explain", &golden, &own, "--weights", &weights, "--seconds", "30"]);
        report["findings"].as_array().expect("findings").clone()
    }

    /// The only finding.
    #[track_caller]
    fn finding(self, own: Blocks, keep: &dyn Fn(&str) -> bool) -> Value {
        let findings = self.findings(own, keep);
        let [finding] = &findings[..] else { panic!("{findings:#?}") };
        finding.clone()
    }
}

/// The cause of a finding and all that are as good.
fn causes(finding: &Value) -> Vec<&str> {
    let others = finding["alternatives"].as_array().expect("alternatives");
    [&finding["cause"]].into_iter().chain(others).filter_map(Value::as_str).collect()
}

const LOGITS: &dyn Fn(&str) -> bool = &|tap| tap == "logits";
const ALL: &dyn Fn(&str) -> bool = &|_| true;

#[test]
fn a_right_run_is_right() {
    for parallel in [None, Some(Stream::First), Some(Stream::Last)] {
        let right = Blocks { parallel, multiplier: 0.3, ..Blocks::RIGHT };
        assert!(right.findings(right, ALL).is_empty() && right.findings(right, LOGITS).is_empty());
    }
}

/// Ones give the same number in all channels, and behind LayerNorm nothing, as a branch does that is not added.
#[test]
fn a_head_of_ones_is_named_of_the_head_alone() {
    for parallel in [Some(Stream::First), Some(Stream::Last)] {
        for branch in ["attn_out", "ffn_out"] {
            let right = Blocks { parallel, ..Blocks::RIGHT };
            let finding = right.finding(Blocks { lost: Some((branch, 1)), ..right }, LOGITS);
            let causes = causes(&finding);
            assert!(!causes.is_empty() && !causes.contains(&"head-untied"), "{finding:#}");
            let finding = right.finding(Blocks { ones: true, ..right }, LOGITS);
            assert_eq!(finding["cause"], "head-untied", "{finding:#}");
        }
    }
}

#[test]
fn a_lost_branch_of_a_parallel_block_is_not_a_lost_stream() {
    for parallel in [Some(Stream::First), Some(Stream::Last)] {
        for branch in ["attn_out", "ffn_out"] {
            let right = Blocks { parallel, ..Blocks::RIGHT };
            let finding = right.finding(Blocks { lost: Some((branch, 1)), ..right }, ALL);
            let causes = causes(&finding);
            assert_eq!(finding["taps"], json!(["layers.1.h"]), "{finding:#}");
            assert!(!causes.is_empty() && !causes.contains(&"residual-omitted"), "{finding:#}");
            assert!(!causes.contains(&"residual-source"), "{finding:#}");
        }
    }
}

/// A factor on all branches and one on the embedding are the same but for epsilon: both are listed.
#[test]
fn what_scales_all_branches_is_listed_beside_what_scales_the_embedding() {
    let right = Blocks { multiplier: 0.3, ..Blocks::RIGHT };
    for multiplier in [1.0, 0.6] {
        let finding = right.finding(Blocks { multiplier, ..right }, LOGITS);
        let causes = causes(&finding);
        assert!(["number-differs", "embed-multiplier"].iter().all(|id| causes.contains(id)), "{finding:#}");
        assert_eq!((&finding["cause"], &finding["params"]["value"]), (&"number-differs".into(), &multiplier.into()));
        let both = "mul (odd.py:4), mul (odd.py:10)";
        assert_eq!(finding["params"]["operation"], both, "{finding:#}");
    }
}

#[test]
fn another_epsilon_is_named_whatever_it_is() {
    for (eps, keep) in
        [([1e-12, 0.03], "layers.1.h logits"), ([0.02, 0.02], "logits"), ([1e-12, 2e-4], "layers.1.h logits")]
    {
        let keep = |tap: &str| keep.split(' ').any(|kept| kept == tap);
        let finding = Blocks::RIGHT.finding(Blocks { eps, ..Blocks::RIGHT }, &keep);
        assert_eq!((&finding["cause"], &finding["params"]["eps"]), (&"norm-eps".into(), &eps[1].into()), "{finding:#}");
    }
}

#[test]
fn parts_of_one_product_that_are_cut_otherwise_are_said() {
    let cut = |cut| Blocks { cut: Some(cut), ..Blocks::RIGHT };
    for (own, said) in [(Cut::Exchanged, "its parts in the order 2, 1"), (Cut::Groups, "its parts by group")] {
        let finding = cut(Cut::Blocks).finding(cut(own), ALL);
        let of_layers = ["layers.0.ffn_out", "layers.1.ffn_out"];
        let found = (&finding["cause"], &finding["params"]["reads"], &finding["taps"]);
        assert_eq!(found, (&"operation-input".into(), &said.into(), &json!(of_layers)), "{finding:#}");
    }
}

#[test]
fn an_activation_behind_a_product_is_one_that_was_moved() {
    let cut = |cut| Blocks { cut: Some(cut), ..Blocks::RIGHT };
    let finding = cut(Cut::Blocks).finding(cut(Cut::Late), ALL);
    let found = (&finding["cause"], &finding["params"]["operation"], &finding["params"]["of"]);
    let due = ("operation-moved".into(), "gelu (odd.py:8)".into(), "what mul (odd.py:8) gives".into());
    assert_eq!(found, (&due.0, &due.1, &due.2), "{finding:#}");
}
