//! Checks that `inspect` reports nothing as certain in right runs of public architectures, which do on purpose what is a mistake in others.

use firstdiff_compare::{Certainty, Inspection, inspect};
use firstdiff_trace::{Dump, Meta, Recorder};

const T: usize = 12;
const D: usize = 16;
const HEADS: usize = 2;
const HEAD: usize = 8;
const WIDTH: usize = 24;
const LAYERS: usize = 2;

type Matrix = Vec<Vec<f64>>;

/// How the scores of a row become the weights of values.
#[derive(Clone, Copy, PartialEq)]
enum Weigh {
    Softmax,
    /// Attention sinks, or a 1 in the denominator.
    Sink,
    Sigmoid,
    /// Differential attention: one softmax minus a share of another.
    Difference,
    /// Talking heads: heads mixed after the softmax.
    Mixed,
}

/// A plain decoder, and what an architecture does differently.
#[derive(Clone)]
struct Architecture {
    rope: bool,
    /// Keys that a query may see.
    sees: fn(usize, usize) -> bool,
    /// Added to a score: ALiBi.
    bias: fn(usize, usize) -> f64,
    weigh: Weigh,
    /// Attention and feed-forward read the same norm, and both are added.
    parallel: bool,
    /// A factor of every branch: LayerScale, residual multipliers.
    branch: f64,
    residual: bool,
    one_matrix_for_q_and_k: bool,
    /// Layers behind the first read the first one's rotated keys, and its values.
    shared_cache: bool,
    gated: bool,
    /// No value and output projections.
    bare: bool,
    gain: f64,
}

impl Default for Architecture {
    fn default() -> Self {
        Architecture {
            rope: true,
            sees: |query, key| key <= query,
            bias: |_, _| 0.0,
            weigh: Weigh::Softmax,
            parallel: false,
            branch: 1.0,
            residual: true,
            one_matrix_for_q_and_k: false,
            shared_cache: false,
            gated: true,
            bare: false,
            gain: 1.0,
        }
    }
}

/// Numbers without a pattern, the same in every run.
fn random(seed: u64, rows: usize, columns: usize, size: f64) -> Matrix {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        size * ((state >> 11) as f64 / (1u64 << 52) as f64 - 1.0)
    };
    (0..rows).map(|_| (0..columns).map(|_| next()).collect()).collect()
}

fn linear(x: &Matrix, seed: u64, width: usize) -> Matrix {
    let w = random(seed, width, x[0].len(), 0.5);
    x.iter().map(|row| w.iter().map(|w| w.iter().zip(row).map(|(w, x)| w * x).sum()).collect()).collect()
}

fn add(x: &Matrix, y: &Matrix, factor: f64) -> Matrix {
    x.iter().zip(y).map(|(x, y)| x.iter().zip(y).map(|(x, y)| x + factor * y).collect()).collect()
}

fn norm(x: &Matrix, gain: f64) -> Matrix {
    let rms = |row: &[f64]| (row.iter().map(|x| x * x).sum::<f64>() / row.len() as f64 + 1e-6).sqrt();
    x.iter().map(|row| row.iter().map(|x| gain * x / rms(row)).collect()).collect()
}

fn rotate(x: &Matrix) -> Matrix {
    let turned = |at: usize, row: &[f64]| -> Vec<f64> {
        let mut out = row.to_vec();
        for (i, pair) in out.chunks_mut(2).enumerate() {
            let angle = at as f64 * 100f64.powf(-((2 * i % HEAD) as f64) / HEAD as f64);
            let (a, b) = (pair[0], pair[1]);
            (pair[0], pair[1]) = (a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos());
        }
        out
    };
    x.iter().enumerate().map(|(at, row)| turned(at, row)).collect()
}

fn softmax(row: &[f64], sink: f64) -> Vec<f64> {
    let sum: f64 = row.iter().map(|x| x.exp()).sum::<f64>() + sink;
    row.iter().map(|x| x.exp() / sum).collect()
}

struct Writer(Recorder);

impl Writer {
    fn tap(&self, name: &str, shape: &[usize], values: &Matrix) {
        let flat: Vec<f32> = values.iter().flatten().map(|x| *x as f32).collect();
        self.0.record(name, shape, &flat).unwrap();
    }
}

impl Architecture {
    /// Runs it, and inspects its dump under the name of this architecture.
    fn inspect(&self, named: Option<&str>) -> Inspection {
        let folder = tempfile::tempdir().unwrap();
        let write = Writer(Recorder::create(folder.path()).unwrap());
        let tokens = Some((0..T as i64).collect());
        write.0.describe(|meta| *meta = Meta { tokens, architecture: named.map(str::to_owned), ..Meta::default() });
        let mut x = random(1, T, D, 1.0);
        write.tap("h0", &[T, D], &x);
        let mut cache = None;
        for layer in 0..LAYERS {
            x = self.layer(&write, layer, &x, &mut cache);
        }
        let normed = norm(&x, self.gain);
        write.tap("final_norm", &[T, D], &normed);
        write.tap("logits", &[T, 20], &linear(&normed, 99, 20));
        write.0.finish().unwrap();
        inspect(&Dump::open(folder.path()).unwrap(), None, &mut |_, _| {}).unwrap()
    }

    fn layer(&self, write: &Writer, layer: usize, x: &Matrix, cache: &mut Option<(Matrix, Matrix)>) -> Matrix {
        let tap = |site: &str, shape: &[usize], values: &Matrix| {
            write.tap(&format!("layers.{layer}.{site}"), shape, values);
        };
        let seed = 10 * (layer as u64 + 1);
        let heads = [T, HEADS, HEAD];
        let normed = norm(x, self.gain);
        tap("attn_norm", &[T, D], &normed);
        let q = linear(&normed, seed, D);
        let k = if self.one_matrix_for_q_and_k { q.clone() } else { linear(&normed, seed + 1, D) };
        let v = if self.bare { normed.clone() } else { linear(&normed, seed + 2, D) };
        let turn = |x: &Matrix| if self.rope { rotate(x) } else { x.clone() };
        let (q_rope, mut k_rope) = (turn(&q), turn(&k));
        let (mut k, mut v) = (k, v);
        if let Some((keys, values)) = cache.clone().filter(|_| self.shared_cache) {
            (k, k_rope, v) = (keys.clone(), keys, values);
        }
        *cache = Some((k_rope.clone(), v.clone()));
        for (site, values) in [("q", &q), ("k", &k), ("v", &v), ("q_rope", &q_rope), ("k_rope", &k_rope)] {
            tap(site, &heads, values);
        }
        let probs = self.probs(&q_rope, &k_rope);
        tap("probs", &[HEADS, T, T], &probs);
        let context: Matrix = (0..T)
            .map(|query| {
                let at = |c: usize| -> f64 { (0..T).map(|key| probs[c / HEAD * T + query][key] * v[key][c]).sum() };
                (0..D).map(at).collect()
            })
            .collect();
        tap("context", &[T, D], &context);
        let attention = if self.bare { context } else { linear(&context, seed + 3, D) };
        tap("attn_out", &[T, D], &attention);
        let base = if self.residual { x.clone() } else { vec![vec![0.0; D]; T] };
        let after = add(&base, &attention, self.branch);
        tap("h_attn", &[T, D], &after);
        let read = if self.parallel { normed } else { norm(&after, self.gain) };
        tap("ffn_norm", &[T, D], &read);
        let up = linear(&read, seed + 4, WIDTH);
        let gate = if self.gated { linear(&read, seed + 5, WIDTH) } else { up.clone() };
        tap("ffn_gate", &[T, WIDTH], &gate);
        tap("ffn_up", &[T, WIDTH], &up);
        let product = |(gate, up): (&Vec<f64>, &Vec<f64>)| gate.iter().zip(up).map(|(g, u)| g.max(0.0) * u).collect();
        let act: Matrix = gate.iter().zip(&up).map(product).collect();
        tap("ffn_act", &[T, WIDTH], &act);
        let out = linear(&act, seed + 6, D);
        tap("ffn_out", &[T, D], &out);
        let h = add(if self.residual { &after } else { &base }, &out, self.branch);
        tap("h", &[T, D], &h);
        h
    }

    fn probs(&self, q: &Matrix, k: &Matrix) -> Matrix {
        let row = |head: usize, query: usize, size: f64| -> Vec<f64> {
            let product = |key: usize| -> f64 {
                (head * HEAD..(head + 1) * HEAD).map(|c| q[query][c] * k[key][c]).sum::<f64>() * size
            };
            let score = |key: usize| {
                if (self.sees)(query, key) { product(key) + (self.bias)(query, key) } else { f64::NEG_INFINITY }
            };
            (0..T).map(score).collect()
        };
        let weights = |head: usize, query: usize| -> Vec<f64> {
            let scores = row(head, query, 0.35);
            match self.weigh {
                Weigh::Softmax | Weigh::Mixed => softmax(&scores, 0.0),
                Weigh::Sink => softmax(&scores, 1.5),
                Weigh::Sigmoid => scores.iter().map(|x| 1.0 / (1.0 + (-x).exp())).collect(),
                Weigh::Difference => {
                    let other = softmax(&row(head, query, -0.2), 0.0);
                    softmax(&scores, 0.0).iter().zip(other).map(|(a, b)| a - 0.8 * b).collect()
                }
            }
        };
        let one: Matrix = (0..HEADS * T).map(|row| weights(row / T, row % T)).collect();
        match self.weigh {
            Weigh::Mixed => (0..HEADS * T)
                .flat_map(|row| add(&one[row..=row].to_vec(), &vec![one[(row + T) % (HEADS * T)].clone()], -0.6))
                .collect(),
            _ => one,
        }
    }
}

/// A right run of another architecture: no finding is certain, though `what`, which is certain in a plain decoder, was checked.
#[track_caller]
fn check(what: Option<&str>, change: impl FnOnce(&mut Architecture)) {
    let mut architecture = Architecture::default();
    change(&mut architecture);
    for named in [None, Some("granitemoehybrid")] {
        let inspection = architecture.inspect(named);
        let certain: Vec<_> = inspection.findings.iter().filter(|f| f.sure == Certainty::Certain).collect();
        assert!(certain.is_empty(), "{named:?}: {certain:#?}");
    }
    let certain = architecture.inspect(Some("llama"));
    let mut certain = certain.findings.iter().filter(|f| f.sure == Certainty::Certain);
    match what {
        Some(what) => assert!(certain.any(|f| f.what == what), "no {what}"),
        None => assert_eq!(certain.count(), 0),
    }
}

#[test]
fn a_plain_decoder() {
    check(None, |_| {});
}

#[test]
fn no_rotation_in_any_layer() {
    check(Some("not-rotated"), |a| a.rope = false);
    check(Some("not-rotated"), |a| (a.rope, a.bias) = (false, |query, key| 0.1 * (key as f64 - query as f64)));
}

#[test]
fn attention_in_both_directions() {
    check(Some("future-attended"), |a| a.sees = |_, _| true);
    // A prefix, and an image in the middle.
    check(Some("future-attended"), |a| a.sees = |query, key| key <= query || key < 5);
    check(Some("future-attended"), |a| {
        a.sees = |query, key| key <= query || (4..8).contains(&key) && (4..8).contains(&query)
    });
    check(Some("future-attended"), |a| a.sees = |query, key| query.abs_diff(key) < 3);
}

#[test]
fn a_token_that_does_not_see_itself() {
    check(Some("own-key-unseen"), |a| a.sees = |query, key| key < query || query == 0 && key == 0);
}

#[test]
fn attention_that_is_no_softmax() {
    check(Some("probs-sum"), |a| a.weigh = Weigh::Sigmoid);
    check(Some("negative-probs"), |a| a.weigh = Weigh::Difference);
    check(Some("probs-sum"), |a| a.weigh = Weigh::Difference);
    check(Some("negative-probs"), |a| a.weigh = Weigh::Mixed);
    check(None, |a| a.weigh = Weigh::Sink);
}

#[test]
fn streams_with_factors_or_without_a_sum() {
    check(Some("residual-sum"), |a| a.branch = 1e-5);
    check(Some("residual-sum"), |a| a.residual = false);
    check(None, |a| a.gain = 0.25);
}

#[test]
fn one_buffer_for_what_is_one() {
    check(Some("same-buffer"), |a| a.parallel = true);
    check(Some("same-buffer"), |a| a.one_matrix_for_q_and_k = true);
    check(Some("same-buffer"), |a| a.gated = false);
    check(Some("same-buffer"), |a| a.bare = true);
    check(Some("not-rotated"), |a| a.shared_cache = true);
}
