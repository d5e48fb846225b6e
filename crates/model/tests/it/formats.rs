//! Checks weight files of other formats: they run as their Hugging Face folder does, and damaged ones give an error of one line, never a panic.

use std::path::Path;

use crate::common::fixtures;
use firstdiff_model::{Profile, Prompt, TapValues, check_gguf, check_llama2c, check_minimind, load, run};
use firstdiff_trace::{QkRows, Site};
use proptest::prelude::*;

fn logits(model: &Path) -> Vec<f64> {
    let model = load(model).unwrap();
    let (tokens, mut out) = ([3, 1, 4, 1, 5, 9, 2, 6], Vec::new());
    let prompt = Prompt { tokens: &tokens, decode_tokens: &[5] };
    run(
        &model.plan,
        &model.weights,
        prompt,
        Profile::Exact,
        |tap| tap.site == Site::Logits,
        |_, _, values| {
            if let TapValues::F64(values) = values {
                out.extend(values.iter().copied());
            }
            Ok::<(), firstdiff_model::ModelError>(())
        },
    )
    .unwrap();
    out
}

#[test]
fn a_gguf_runs_as_its_folder_does() {
    for (model, file, off) in
        [("llama", "llama-f16", 1e-5), ("qwen2", "qwen2-f32", 1e-14), ("qwen3", "qwen3-f16", 1e-5)]
    {
        let (a, b) =
            (logits(&fixtures().join("models").join(model)), logits(&fixtures().join(format!("gguf/{file}.gguf"))));
        let error: f64 = a.iter().zip(&b).map(|(x, y)| (x - y).powi(2)).sum();
        let nmse = error / a.iter().map(|x| x * x).sum::<f64>();
        assert!(a.len() == b.len() && nmse < off, "{file}: NMSE {nmse:e}");
    }
}

#[test]
fn a_gguf_says_the_order_of_its_rows() {
    let rows = |file: &str| load(fixtures().join("gguf").join(file)).unwrap().qk_rows;
    assert_eq!(rows("llama-f16.gguf"), QkRows::Adjacent);
    assert_eq!(rows("qwen2-f32.gguf"), QkRows::Half);
}

fn gguf() -> Vec<u8> {
    std::fs::read(fixtures().join("gguf/llama-f16.gguf")).unwrap()
}

#[test]
fn a_gguf_cut_anywhere_is_refused() {
    let bytes = gguf();
    assert!(check_gguf(&bytes).unwrap() > 10);
    for end in (0..4096).chain((4096..bytes.len()).step_by(997)) {
        assert!(check_gguf(&bytes[..end]).is_err(), "{end} bytes");
    }
}

/// A GGUF with one tensor, as the arguments say.
fn one_tensor(kv: &[u8], keys: u64, dims: &[u64], kind: u32, offset: u64, data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF".to_vec();
    bytes.extend(3u32.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend(keys.to_le_bytes());
    bytes.extend(kv);
    bytes.extend(1u64.to_le_bytes());
    bytes.push(b't');
    bytes.extend((dims.len() as u32).to_le_bytes());
    dims.iter().for_each(|d| bytes.extend(d.to_le_bytes()));
    bytes.extend(kind.to_le_bytes());
    bytes.extend(offset.to_le_bytes());
    bytes.resize(bytes.len().next_multiple_of(32) + data, 0);
    bytes
}

#[test]
fn tables_that_lie() {
    let refused = |bytes: &[u8], reason: &str| {
        let message = check_gguf(bytes).unwrap_err();
        assert!(message.contains(reason), "{message}");
    };
    let plain = |dims: &[u64], kind, offset| one_tensor(&[], 0, dims, kind, offset, 128);
    assert_eq!(check_gguf(&plain(&[8, 4], 0, 0)), Ok(1));
    refused(&plain(&[0, 4], 0, 0), "an axis of 0");
    refused(&plain(&[1 << 63], 0, 0), "an axis of 9223372036854775808");
    refused(&plain(&[1 << 40, 1 << 40], 0, 0), "shape");
    refused(&plain(&[1; 5], 0, 0), "5 axes");
    refused(&plain(&[], 0, 0), "0 axes");
    refused(&plain(&[8, 5], 0, 0), "are not in the file");
    refused(&plain(&[8, 4], 0, 32), "are not in the file");
    refused(&plain(&[8, 4], 0, u64::MAX - 31), "are not in the file");
    refused(&plain(&[8, 4], 0, 4), "no multiple of the alignment");
    refused(&plain(&[8, 4], 2, 0), "no whole blocks of Q4_0");
    // An unknown type is an error of that tensor only.
    assert_eq!(check_gguf(&plain(&[8, 4], 4, 0)), Ok(1));
    let key = |name: &str, kind: u32, value: &[u8]| {
        [&(name.len() as u64).to_le_bytes()[..], name.as_bytes(), &kind.to_le_bytes(), value].concat()
    };
    let with = |kv: Vec<u8>, keys| one_tensor(&kv, keys, &[8, 4], 0, 0, 128);
    refused(&with(key("general.alignment", 4, &0u32.to_le_bytes()), 1), "not a power of 2");
    refused(&with(key("general.alignment", 4, &48u32.to_le_bytes()), 1), "not a power of 2");
    let twice = key("a", 4, &[0; 4]).repeat(2);
    refused(&with(twice, 2), "is there twice");
    refused(&with(key("a", 13, &[0; 4]), 1), "value type 13 is none");
    let list = |kind: u32, count: u64| [&kind.to_le_bytes()[..], &count.to_le_bytes()].concat();
    refused(&with(key("a", 9, &list(8, 1 << 60)), 1), "is announced where");
    refused(&with(key("a", 9, &list(4, 1 << 62)), 1), "a list of 4611686018427387904 numbers");
    refused(&with(key("a", 9, &list(9, 1).repeat(8)), 1), "lists within lists");
    let mut huge = plain(&[8, 4], 0, 0);
    huge[8..16].copy_from_slice(&u64::MAX.to_le_bytes());
    refused(&huge, "tensors and 0 keys are announced");
    let mut one = plain(&[8, 4], 0, 0);
    one[4] = 1;
    refused(&one, "GGUF version 1 is not read");
}

#[test]
fn checkpoints_and_json_that_lie() {
    let header = |sizes: [i32; 7]| sizes.iter().flat_map(|n| n.to_le_bytes()).collect::<Vec<u8>>();
    for sizes in [[0; 7], [-1; 7], [i32::MAX; 7], [64, 172, 5, 7, 4, 512, 512], [64, 172, i32::MAX, 8, 4, 512, 512]] {
        assert!(check_llama2c(&header(sizes)).is_err(), "{sizes:?}");
    }
    assert!(check_llama2c(&[]).is_err() && check_llama2c(b"24ka\x09\0\0\0").is_err());
    let tensor = |shape: &str, dtype: &str, data: &str| {
        let text = format!(
            r#"{{"config": {{}}, "weights": {{"final_rms": {{"shape": {shape}, "dtype": "{dtype}", "encoding": "base64", "data": "{data}"}}}}}}"#
        );
        check_minimind(text.as_bytes())
    };
    assert_eq!(tensor("[1]", "float32", "AACAPw=="), Ok(1));
    for (shape, dtype, data, reason) in [
        ("[1]", "float32", "AACAPw=", "no base64"),
        ("[2]", "float32", "AACAPw==", "4 bytes of data for the shape [2]"),
        ("[18446744073709551615, 2]", "float32", "AACAPw==", "4 bytes of data"),
        ("[-1]", "float32", "AACAPw==", "no MiniMind JSON"),
        ("[1]", "int4", "AACAPw==", "dtype 'int4'"),
    ] {
        let message = tensor(shape, dtype, data).unwrap_err();
        assert!(message.contains(reason), "{message}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// With a few header bytes changed, the reader returns, with any result.
    #[test]
    fn a_spoilt_gguf_never_panics(changes in prop::collection::vec((0usize..3000, any::<u8>()), 1..6)) {
        let mut bytes = gguf();
        for (at, byte) in changes {
            bytes[at] = byte;
        }
        let _ = check_gguf(&bytes);
    }

    #[test]
    fn any_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
        let _ = (check_gguf(&bytes), check_llama2c(&bytes), check_minimind(&bytes));
        let gguf = [b"GGUF\x03\0\0\0", &bytes[..]].concat();
        let llama2c = [b"24ka\x02\0\0\0", &bytes[..]].concat();
        let _ = (check_gguf(&gguf), check_llama2c(&llama2c));
    }

    #[test]
    fn any_json_never_panics(text in r#"\{"config": \{[^}]{0,20}\}, "weights": \{"(wq|a)": \{"shape": \[[0-9,]{0,20}\], "dtype": "[a-z0-9]{0,9}", "encoding": "base64", "data": "[A-Za-z0-9+/=]{0,40}"\}\}\}"#) {
        let _ = check_minimind(text.as_bytes());
    }
}
