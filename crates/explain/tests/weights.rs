//! Are right conversions found right, and spoilt ones wrong? GGUF files of the fixture models, made by scripts/hf_to_gguf.py.
//!
//! What each kind of mistake is called is tried by scripts/weight_zoo.py, on files that no code of ours has made.

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
