//! Checks every public operation against PyTorch: goldens of scripts/goldens/op_goldens.py, in f32 and in f64.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::{Path, PathBuf};

use firstdiff_core::{self as core, Activation, Float, Mask, OpError, RopePairing, RopeScaling};
use ndarray::{Array, Array1, Array2, Array3, ArrayD, Dimension};
use ndarray_npy::{ReadableElement, read_npy};

/// Allowed NMSE against PyTorch in the same arithmetic: the square of a few rounding errors of 6e-8, or 1e-16.
const F32: f64 = 1e-13;
const F64: f64 = 1e-30;
/// RoPE in f64: at position 4095 a relative error of 1e-16 in the frequency changes the angle by 4e-13.
const F64_ANGLES: f64 = 1e-26;
/// Cases whose values differ much in size, so that each value is checked relative to itself.
const FREQUENCIES: &str = "rope_inv_freq_";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/ops")
}

/// A float with the name of its golden output.
trait Golden: Float + ReadableElement + Into<f64> {
    const OUT: &str;
    const BOUND: f64;
    const ROPE: f64;
}

impl Golden for f32 {
    const OUT: &str = "out.f32.npy";
    const BOUND: f64 = F32;
    const ROPE: f64 = F32;
}

impl Golden for f64 {
    const OUT: &str = "out.f64.npy";
    const BOUND: f64 = F64;
    const ROPE: f64 = F64_ANGLES;
}

/// The inputs of a case.
struct Case(&'static str);

impl Case {
    fn read<T: ReadableElement>(&self, name: &str) -> ArrayD<T> {
        let path = folder().join(self.0).join(name);
        read_npy(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
    }

    /// An input, stored as f32, widened to F.
    fn get<F: Float, D: Dimension>(&self, name: &str) -> Array<F, D> {
        let values: ArrayD<f32> = self.read(&format!("{name}.npy"));
        values.mapv(|x| F::from_f64(f64::from(x))).into_dimensionality().unwrap()
    }

    fn one<F: Float>(&self, name: &str) -> Array1<F> {
        self.get(name)
    }

    fn two<F: Float>(&self, name: &str) -> Array2<F> {
        self.get(name)
    }

    fn three<F: Float>(&self, name: &str) -> Array3<F> {
        self.get(name)
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        self.read::<i64>(&format!("{name}.npy")).iter().map(|&i| i as u32).collect()
    }
}

#[track_caller]
fn assert_golden<F: Golden>(case: &Case, actual: ArrayD<F>, bound: f64) {
    let expected: ArrayD<F> = case.read(F::OUT);
    assert_eq!(actual.shape(), expected.shape(), "{}", case.0);
    let (mut error, mut energy) = (0.0, 0.0);
    for (&e, &a) in expected.iter().zip(&actual) {
        let (e, a): (f64, f64) = (e.into(), a.into());
        if e.is_infinite() {
            assert_eq!(e, a, "{}", case.0);
            continue;
        }
        error += (a - e) * (a - e);
        energy += e * e;
    }
    let nmse = error / energy;
    println!("{:<20} {} NMSE {nmse:.1e}", case.0, F::OUT);
    assert!(nmse <= bound, "{} {}: NMSE {nmse:.1e}", case.0, F::OUT);
}

/// Checks that every value is within a few rounding errors of its own size.
#[track_caller]
fn assert_each<F: Golden>(case: &Case, actual: &ArrayD<F>) {
    let expected: ArrayD<F> = case.read(F::OUT);
    assert_eq!(actual.shape(), expected.shape(), "{}", case.0);
    for (i, (&e, &a)) in expected.iter().zip(actual).enumerate() {
        let off = (a.as_f64() / e.as_f64() - 1.0).abs() / F::epsilon().as_f64();
        assert!(off <= 4.0, "{} {} [{i}]: {off:.1} epsilon", case.0, F::OUT);
    }
}

/// Runs the operation of a case on its inputs. `None`: no such case.
fn run<F: Golden>(name: &'static str) -> Option<Result<ArrayD<F>, OpError>> {
    let case = Case(name);
    let scores = |scale: f64, cap: Option<f64>, mask: Mask<'_>| {
        core::scores(case.three::<F>("x").view(), F::from_f64(scale), cap.map(F::from_f64), mask).map(Array::into_dyn)
    };
    let causal = Mask { causal: true, ..Mask::default() };
    let of = |activation: Activation| Ok(case.two::<F>("x").mapv(|x| activation.of(x)).into_dyn());
    Some(match name {
        "embedding" => core::embedding(case.two("table").view(), &case.ids("tokens")).map(Array::into_dyn),
        "rms_norm" | "rms_norm_small" => {
            let eps = if name == "rms_norm" { 1e-5 } else { 1e-6 };
            core::rms_norm(case.two("x").view(), case.one("weight").view(), F::from_f64(eps)).map(Array::into_dyn)
        }
        "rms_norm_heads" => {
            let x = case.three::<F>("x");
            let (shape, width) = (x.raw_dim(), x.dim().2);
            let rows = x.into_shape_with_order((11 * 6, width)).unwrap();
            let out = core::rms_norm(rows.view(), case.one("weight").view(), F::from_f64(1e-6));
            out.map(|y| y.into_shape_with_order(shape).unwrap().into_dyn())
        }
        "layer_norm" => {
            let (x, weight, bias) = (case.two("x"), case.one("weight"), case.one("bias"));
            core::layer_norm(x.view(), weight.view(), Some(bias.view()), F::from_f64(1e-5)).map(Array::into_dyn)
        }
        "layer_norm_no_bias" => {
            core::layer_norm(case.two("x").view(), case.one("weight").view(), None, F::from_f64(1e-5))
                .map(Array::into_dyn)
        }
        "linear" => core::linear(case.two("x").view(), case.two("weight").view(), None).map(Array::into_dyn),
        "linear_bias" => {
            let (x, weight, bias) = (case.two("x"), case.two("weight"), case.one("bias"));
            core::linear(x.view(), weight.view(), Some(bias.view())).map(Array::into_dyn)
        }
        "head" => core::head(case.two("x").view(), case.two("weight").view()).map(Array::into_dyn),
        "qk" | "qk_mqa" | "qk_mha" => core::qk(case.three("q").view(), case.three("k").view()).map(Array::into_dyn),
        "scores_causal" => scores(14f64.powf(-0.5), None, causal),
        "scores_window" => scores(14f64.powf(-0.5), None, Mask { window: Some(5), ..causal }),
        "scores_padding" => {
            let padding: Vec<u8> = case.read::<u8>("padding.npy").iter().copied().collect();
            scores(0.25, None, Mask { padding: Some(&padding), ..causal })
        }
        "scores_softcap" => scores(0.5, Some(3.0), causal),
        "softcap" => Ok(case.two::<F>("x").mapv(|x| core::softcap(x, F::from_f64(30.0))).into_dyn()),
        "softmax" => scores(1.0, None, causal).map(|x| core::softmax(x.view())),
        "context" => core::context(case.three("probs").view(), case.three("v").view()).map(Array::into_dyn),
        "silu" => of(Activation::Silu),
        "gelu_erf" => of(Activation::GeluErf),
        "gelu_tanh" => of(Activation::GeluTanh),
        "relu" => of(Activation::Relu),
        "gated" => core::gated(case.two("gate").into_dyn().view(), case.two("up").into_dyn().view(), Activation::Silu),
        "residual" => {
            core::residual(case.two("x").into_dyn().view(), case.two("branch").into_dyn().view(), F::from_f64(0.22))
        }
        _ => return rope(&case).or_else(|| frequencies(&case).map(Ok)),
    })
}

fn rope<F: Golden>(case: &Case) -> Option<Result<ArrayD<F>, OpError>> {
    let yarn = |beta_fast, beta_slow, mscale, mscale_all_dim, truncate| RopeScaling::Yarn {
        factor: 4.0,
        beta_fast,
        beta_slow,
        original_max_position: 64.0,
        attention_factor: None,
        mscale,
        mscale_all_dim,
        truncate,
    };
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 64.0 };
    let (dim, theta, scaling, pairing) = match case.0 {
        "rope_half" => (14, 1e4, RopeScaling::None, RopePairing::Half),
        "rope_adjacent" => (14, 1e4, RopeScaling::None, RopePairing::Adjacent),
        "rope_partial" => (8, 5e5, RopeScaling::None, RopePairing::Half),
        "rope_linear" => (14, 1e4, RopeScaling::Linear { factor: 4.0 }, RopePairing::Half),
        "rope_llama3" => (14, 5e5, llama3, RopePairing::Half),
        "rope_yarn" => (14, 1e4, yarn(32.0, 1.0, None, None, true), RopePairing::Half),
        "rope_yarn_full" => (14, 1e4, yarn(16.0, 2.0, Some(0.7), Some(0.4), false), RopePairing::Half),
        _ => return None,
    };
    let (angles, factor) = core::rope_inv_freq(dim, theta, &scaling);
    let out = core::rope(case.three("x").view(), &case.ids("positions"), &angles, factor, pairing);
    Some(out.map(Array::into_dyn))
}

/// Frequencies, then the factor.
fn frequencies<F: Golden>(case: &Case) -> Option<ArrayD<F>> {
    let llama3 =
        RopeScaling::Llama3 { factor: 8.0, low_freq_factor: 1.0, high_freq_factor: 4.0, original_max_position: 8192.0 };
    let yarn = |factor, beta: [f64; 2], original_max_position, attention_factor, truncate| RopeScaling::Yarn {
        factor,
        beta_fast: beta[0],
        beta_slow: beta[1],
        original_max_position,
        attention_factor,
        mscale: None,
        mscale_all_dim: None,
        truncate,
    };
    let (dim, theta, scaling) = match case.0.strip_prefix(FREQUENCIES)? {
        "default" => (64, 1e6, RopeScaling::None),
        "linear" => (64, 1e4, RopeScaling::Linear { factor: 8.0 }),
        "llama3" => (128, 5e5, llama3),
        "yarn" => (128, 1e6, yarn(4.0, [32.0, 1.0], 32768.0, None, true)),
        "yarn_given" => (22, 1e4, yarn(4.0, [32.0, 1.0], 64.0, Some(1.37), true)),
        "yarn_shrunk" => (22, 1e4, yarn(0.5, [32.0, 1.0], 64.0, None, true)),
        "yarn_clamped" => (16, 10.0, yarn(4.0, [2000.0, 1.0], 4096.0, None, true)),
        "yarn_vertical" => (22, 1e4, yarn(4.0, [4.0, 4.0], 640.0, None, false)),
        _ => return None,
    };
    let (mut all, factor) = core::rope_inv_freq(dim, theta, &scaling);
    all.push(F::from_f64(factor));
    Some(Array1::from(all).into_dyn())
}

fn cases() -> Vec<&'static str> {
    let entries = std::fs::read_dir(folder()).unwrap();
    let names = entries.map(|e| e.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<&'static str> = names.map(|n| &*n.leak()).collect();
    names.sort_unstable();
    names
}

fn check_all<F: Golden + Debug>() {
    for name in cases() {
        let actual = run::<F>(name).unwrap_or_else(|| panic!("{name}: no operation for this golden")).unwrap();
        if name.starts_with(FREQUENCIES) {
            assert_each(&Case(name), &actual);
        } else {
            assert_golden(&Case(name), actual, if name.starts_with("rope_") { F::ROPE } else { F::BOUND });
        }
    }
}

#[test]
fn every_operation_in_f32() {
    check_all::<f32>();
}

#[test]
fn every_operation_in_f64() {
    check_all::<f64>();
}

#[test]
fn every_public_operation_has_a_golden() {
    // The names that lib.rs exports; helpers that are no operations are listed by name.
    let source = include_str!("../../src/lib.rs");
    // Covered elsewhere: `quantise` by llama.cpp's values (tests/quantise.rs), also as `quantise_to_ints` widened; `linear_rows` is `linear` on rows in place;
    // `multiply_adds` measures speed (the kernels' own tests).
    let helpers = [
        "dot",
        "sum",
        "tree_sum",
        "quantise",
        "quantise_to_ints",
        "linear_rows",
        "multiply_adds",
        "balanced_ranges",
        "interleave_rows",
    ];
    let exported = source.lines().filter_map(|l| l.strip_prefix("pub use ")).flat_map(|l| {
        let list = l.rsplit_once("::").map_or(l, |(_, list)| list).trim_matches(['{', '}', ';']);
        list.split(", ").map(|name| name.trim_matches(['{', '}', ';']).to_owned()).collect::<Vec<_>>()
    });
    let operations = exported.filter(|n| n.starts_with(char::is_lowercase) && !helpers.contains(&n.as_str()));
    let goldens: BTreeSet<&str> = cases().into_iter().collect();
    for operation in operations {
        let covered = goldens.iter().any(|g| *g == operation || g.starts_with(&format!("{operation}_")));
        assert!(covered, "{operation} has no golden");
    }
}

#[test]
fn the_mask_is_pytorchs_rule_by_rule() {
    let mask = Mask { causal: true, window: Some(3), padding: Some(&[0, 1, 1, 1, 1]) };
    let seen = |query| (0..9).filter(|&key| mask.visible(query, key)).collect::<Vec<_>>();
    assert_eq!((seen(0), seen(2), seen(4)), (vec![], vec![1, 2], vec![2, 3, 4]));
    assert_eq!(seen(5), [3, 4], "transformers' prepare_padding_mask: what a padding mask does not reach is padding");
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let (a, b) = (Array2::<f32>::zeros((9, 4)), Array2::<f32>::zeros((7, 5)));
    assert!(matches!(core::linear(a.view(), b.view(), None), Err(OpError::Shape { op: "linear", .. })));
    assert!(core::rms_norm(a.view(), Array1::zeros(5).view(), 0.0).is_err());
    assert!(core::gated(a.view().into_dyn(), b.view().into_dyn(), Activation::Silu).is_err());
    assert!(core::residual(a.view().into_dyn(), b.view().into_dyn(), 1.0).is_err());
    let (q, k) = (Array3::<f32>::zeros((9, 6, 4)), Array3::<f32>::zeros((9, 4, 4)));
    assert!(core::qk(q.view(), k.view()).is_err(), "4 kv heads do not divide 6");
    assert!(core::rope(q.view(), &[0; 8], &[1.0], 1.0, RopePairing::Half).is_err());
    assert!(core::rope(q.view(), &[0; 9], &[1.0; 3], 1.0, RopePairing::Half).is_err());
    assert!(core::scores(q.view(), 1.0, None, Mask::default()).is_err(), "6 queries, 4 keys");
    for padding in [&[1; 8], &[1; 10][..]] {
        let mask = Mask { padding: Some(padding), ..Mask::default() };
        assert!(core::scores(Array3::<f32>::zeros((6, 9, 9)).view(), 1.0, None, mask).is_err(), "9 keys");
    }
    let outside = core::embedding(a.view(), &[0, 9]);
    assert_eq!(outside, Err(OpError::Token { token: 9, position: 1, vocab: 9 }));
}

#[test]
fn softmax_of_rows_without_keys_and_with_nan() {
    let rows = ndarray::arr2(&[[f32::NEG_INFINITY; 3], [1.0, f32::NEG_INFINITY, 1.0], [f32::NAN, 1.0, 2.0]]);
    let probs = core::softmax(rows.view().into_dyn());
    assert_eq!(probs.as_slice().unwrap()[..6], [0.0, 0.0, 0.0, 0.5, 0.0, 0.5]);
    assert!(probs.as_slice().unwrap()[6..].iter().all(|p| p.is_nan()));
}
