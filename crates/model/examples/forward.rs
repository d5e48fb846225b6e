//! Measures the time of a forward pass: `cargo run --release -p firstdiff-model --example forward -- MODEL PROFILE [T ..]`
//!
//! All logits, 2 threads. Prints the seconds of one run for each T, a line each. Without T it reads sizes from standard input, so that its runs can
//! alternate with those of other programs.

use std::error::Error;
use std::io::{BufRead, Write};
use std::time::Instant;

use firstdiff_model::{Cache, Profile, Prompt, load, run};
use firstdiff_trace::Site;

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, profile, sizes @ ..] = &args[..] else { return Err("MODEL PROFILE [T ..]".into()) };
    let profile = match profile.as_str() {
        "exact" => Profile::Exact,
        "f32" => Profile::F32,
        "ggml" => Profile::Ggml { cache: Cache::F16 },
        _ => return Err("profiles: exact, f32, ggml".into()),
    };
    let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build()?;
    let model = load(model)?;
    let once = |size: &str| -> Result<f64, Box<dyn Error>> {
        let count: u32 = size.trim().parse()?;
        let tokens: Vec<u32> = (1..=count).collect();
        let prompt = Prompt { tokens: &tokens, decode_tokens: &[] };
        let logits = |tap: firstdiff_trace::Tap| tap.site == Site::Logits;
        let start = Instant::now();
        pool.install(|| {
            run(&model.plan, &model.weights, prompt, profile, logits, |_, _, _| {
                Ok::<(), firstdiff_model::ModelError>(())
            })
        })?;
        Ok(start.elapsed().as_secs_f64())
    };
    let answer = |size: &str| -> Result<(), Box<dyn Error>> {
        let seconds = once(size)?;
        let mut out = std::io::stdout().lock();
        writeln!(out, "{seconds:.6}")?;
        Ok(out.flush()?)
    };
    match sizes {
        [] => std::io::stdin().lock().lines().try_for_each(|size| answer(&size?)),
        sizes => sizes.iter().try_for_each(|size| answer(size)),
    }
}
