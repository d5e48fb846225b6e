//! Checks how much memory a model takes: no more than a tile of each matrix, and never what a file merely claims.

#[path = "it/common.rs"]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use firstdiff_model::{ModelError, Profile, Prompt, load, run};
use safetensors::tensor::{Dtype, TensorView};
use tempfile::TempDir;

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);
static LARGEST: AtomicUsize = AtomicUsize::new(0);
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

// SAFETY: every call is passed unchanged to the system's allocator; the counters are atomics.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Relaxed) + layout.size();
        PEAK.fetch_max(live, Relaxed);
        LARGEST.fetch_max(layout.size(), Relaxed);
        // SAFETY: guaranteed by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Peak of the bytes allocated during `work`, beyond those before it, and its largest single allocation.
fn watch<T>(work: impl FnOnce() -> T) -> (T, usize, usize) {
    let before = LIVE.load(Relaxed);
    PEAK.store(before, Relaxed);
    LARGEST.store(0, Relaxed);
    let out = work();
    (out, PEAK.load(Relaxed) - before, LARGEST.load(Relaxed))
}

/// A llama of one layer whose embedding and head are large: V 20000, D 64.
fn tall_model(folder: &Path) {
    let shapes: &[(&str, &[usize])] = &[
        ("model.embed_tokens.weight", &[20000, 64]),
        ("model.layers.0.input_layernorm.weight", &[64]),
        ("model.layers.0.self_attn.q_proj.weight", &[64, 64]),
        ("model.layers.0.self_attn.k_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.v_proj.weight", &[32, 64]),
        ("model.layers.0.self_attn.o_proj.weight", &[64, 64]),
        ("model.layers.0.post_attention_layernorm.weight", &[64]),
        ("model.layers.0.mlp.gate_proj.weight", &[20000, 64]),
        ("model.layers.0.mlp.up_proj.weight", &[20000, 64]),
        ("model.layers.0.mlp.down_proj.weight", &[64, 20000]),
        ("model.norm.weight", &[64]),
        ("lm_head.weight", &[20000, 64]),
    ];
    let zeros = vec![0u8; 20000 * 64 * 2];
    let tensors: HashMap<_, _> = shapes
        .iter()
        .map(|&(name, shape)| {
            let bytes = shape.iter().product::<usize>() * 2;
            (name, TensorView::new(Dtype::BF16, shape.to_vec(), &zeros[..bytes]).unwrap())
        })
        .collect();
    fs::write(folder.join("model.safetensors"), safetensors::serialize(tensors, None).unwrap()).unwrap();
    let config = r#"{"model_type": "llama", "vocab_size": 20000, "hidden_size": 64, "intermediate_size": 20000,
        "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 1}"#;
    fs::write(folder.join("config.json"), config).unwrap();
}

#[test]
fn a_run_widens_tiles_only() {
    let _alone = ONE_AT_A_TIME.lock();
    let folder = TempDir::new().unwrap();
    tall_model(folder.path());
    let (model, peak, _) = watch(|| load(folder.path()).unwrap());
    assert!(peak < 100_000, "loading took {peak} bytes");
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
    let prompt = Prompt { tokens: &[1, 2, 3], decode_tokens: &[] };
    let outcome = || {
        pool.install(|| {
            run::<ModelError>(&model.plan, &model.weights, prompt, Profile::Exact, |_| true, |_, _, _| Ok(()))
        })
    };
    let (outcome, peak, _) = watch(outcome);
    outcome.unwrap();
    // A matrix in f64 is 10 MB. Allowed are a tile of a megabyte for each thread, and three taps of [3, 20000].
    let (tiles, taps) = (2 << 20, 3 * 3 * 20000 * 8);
    assert!(peak < tiles + taps + 500_000, "running took {peak} bytes");
}

#[test]
fn what_a_file_claims_is_not_allocated() {
    let _alone = ONE_AT_A_TIME.lock();
    for (key, value) in [
        ("num_hidden_layers", "1000000000"),
        ("vocab_size", "1000000000000"),
        ("hidden_size", "6000000000"),
        ("intermediate_size", "99999999999"),
        ("num_attention_heads", "6000000"),
        ("head_dim", "6000000000"),
    ] {
        let folder = common::with_config("llama", |config| drop(config.insert(key.into(), value.parse().unwrap())));
        let (outcome, peak, _) = watch(|| load(folder.path()).map(drop));
        assert!(outcome.is_err());
        assert!(peak < 250_000, "{key} {value}: {peak} bytes");
    }
    // Headers of a length that the file does not have.
    for length in [1u64 << 20, 1 << 40, u64::MAX] {
        let folder = common::copy("llama");
        let path = folder.path().join("model.safetensors");
        let mut bytes = fs::read(&path).unwrap();
        bytes[..8].copy_from_slice(&length.to_le_bytes());
        fs::write(&path, &bytes).unwrap();
        let (outcome, _, largest) = watch(|| load(folder.path()).map(drop));
        assert!(outcome.is_err());
        assert!(largest < bytes.len(), "{largest} bytes at once");
    }
}
