//! Checks that every tap of every family agrees with PyTorch's: prefill and decode, in both profiles, against the goldens.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use firstdiff_model::{ModelError, Profile, Prompt, TapValues, load, run};
use firstdiff_trace::{Dump, Tap};

/// The NMSE allowed for our forward pass against PyTorch f32.
const ALLOWED_NMSE: f64 = 1e-11;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/golden").join(name)
}

/// Σ(c−r)²/Σr² over the finite reference values; infinities must be in the same places.
fn nmse(reference: &[f64], candidate: &[f64]) -> f64 {
    assert_eq!(reference.len(), candidate.len());
    let (mut error, mut energy) = (0.0, 0.0);
    for (&r, &c) in reference.iter().zip(candidate) {
        if r.is_infinite() {
            assert_eq!(r, c);
            continue;
        }
        error += (c - r) * (c - r);
        energy += r * r;
    }
    if error == 0.0 { 0.0 } else { error / energy }
}

/// Runs a fixture model over its golden's tokens and compares every tap at every step.
fn check(model: &str, reference: &str, profile: Profile) {
    let model = load(crate::common::fixture(model)).unwrap();
    let dump = Dump::open(golden(reference)).unwrap();
    let meta = dump.meta();
    let ids = |tokens: &Option<Vec<i64>>| -> Vec<u32> {
        tokens.iter().flatten().map(|&token| u32::try_from(token).unwrap()).collect()
    };
    let (tokens, decode_tokens) = (ids(&meta.tokens), ids(&meta.decode_tokens));
    assert!(tokens.len() >= 9, "too short to show a mistake");
    let prompt = Prompt { tokens: &tokens, decode_tokens: &decode_tokens };
    let mut seen = HashSet::new();
    let mut worst: (f64, Option<(Tap, u32)>) = (0.0, None);
    run::<ModelError>(
        &model.plan,
        &model.weights,
        prompt,
        profile,
        |_| true,
        |tap, step, values| {
            let entry = dump.find(tap, step).unwrap_or_else(|| panic!("the golden lacks {tap} of step {step}"));
            let (shape, candidate): (_, Vec<f64>) = match &values {
                TapValues::F64(v) => (v.shape(), v.iter().copied().collect()),
                TapValues::F32(v) => (v.shape(), v.iter().map(|&x| f64::from(x)).collect()),
            };
            let expected = dump.read(entry).unwrap();
            assert_eq!(expected.shape(), shape, "{tap} of step {step}");
            let nmse = nmse(&expected.values().to_f64(), &candidate);
            assert!(nmse <= ALLOWED_NMSE, "{tap} of step {step}: NMSE {nmse:.1e}");
            if nmse >= worst.0 {
                worst = (nmse, Some((tap, step)));
            }
            seen.insert((tap, step));
            Ok(())
        },
    )
    .unwrap();
    assert_eq!(seen.len(), dump.entries().len(), "taps of the golden that were not produced");
    let (nmse, at) = worst;
    let (tap, step) = at.unwrap();
    println!("{reference} {}: {} taps, worst NMSE {nmse:.2e} at {tap} of step {step}", profile.name(), seen.len());
}

#[track_caller]
fn parity(model: &str, reference: &str) {
    for profile in [Profile::Exact, Profile::F32] {
        check(model, reference, profile);
    }
}

#[test]
fn llama() {
    parity("llama", "llama-torch");
}

#[test]
fn mistral() {
    parity("mistral", "mistral-torch.npz");
}

#[test]
fn qwen2() {
    parity("qwen2", "qwen2-torch.npz");
}

#[test]
fn qwen3() {
    parity("qwen3", "qwen3-torch.safetensors");
}

#[test]
fn minimind() {
    parity("minimind", "minimind-torch.npz");
}

#[test]
fn a_checkpoint_of_bf16() {
    parity("llama-bf16", "llama-bf16-torch.npz");
}

#[test]
fn a_checkpoint_of_f16() {
    parity("qwen2-f16", "qwen2-f16-torch.npz");
}
