//! How long does a forward pass take? `cargo run --release -p firstdiff-model --example forward -- MODEL PROFILE T [T ..]`
//!
//! All logits, 2 threads, best of some runs; JSON, as scripts/bench_forward.py prints it.

use std::error::Error;
use std::time::Instant;

use firstdiff_model::{Cache, Profile, Prompt, load, run};
use firstdiff_trace::Site;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, profile, sizes @ ..] = &args[..] else { return Err("MODEL PROFILE T [T ..]".into()) };
    let profile = match profile.as_str() {
        "exact" => Profile::Exact,
        "f32" => Profile::F32,
        "ggml" => Profile::Ggml { cache: Cache::F16 },
        _ => return Err("profiles: exact, f32, ggml".into()),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let model = load(model)?;
    let mut parts = Vec::new();
    for size in sizes {
        let count: u32 = size.parse()?;
        let tokens: Vec<u32> = (1..=count).collect();
        let once = || -> Result<f64, Box<dyn Error + Send + Sync>> {
            let start = Instant::now();
            let prompt = Prompt { tokens: &tokens, decode_tokens: &[] };
            run(
                &model.plan,
                &model.weights,
                prompt,
                profile,
                |tap| tap.site == Site::Logits,
                |_, _, _| Ok::<(), firstdiff_model::ModelError>(()),
            )?;
            Ok(start.elapsed().as_secs_f64())
        };
        let runs = |n| (0..n).map(|_| pool.install(once)).collect::<Result<Vec<f64>, _>>();
        let first = runs(1).map_err(|e| e.to_string())?[0];
        let more = (2.0 / first).clamp(2.0, 20.0) as usize;
        let best = runs(more).map_err(|e| e.to_string())?.into_iter().fold(f64::INFINITY, f64::min);
        parts.push(format!("\"{size}\": {best:.4}"));
    }
    println!("{{{}}}", parts.join(", "));
    Ok(())
}
