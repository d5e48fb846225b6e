//! Checks that our own forward pass is no worse than before: every fixture model against PyTorch's golden dump and its baseline.

use std::path::Path;

use anyhow::{Context, Result};
use firstdiff::baseline::Baseline;
use firstdiff::commands::dump::{DumpArgs, dump};
use firstdiff::compare::Profile;
use firstdiff::output::{PARITY, print};
use firstdiff::trace::Dump;
use firstdiff::{Comparison, Session};

pub(crate) fn run(update: bool) -> Result<u8> {
    let fixtures = crate::root()?.join("fixtures");
    let mut models: Vec<_> = std::fs::read_dir(fixtures.join("models"))?.collect::<std::io::Result<Vec<_>>>()?;
    models.sort_by_key(std::fs::DirEntry::file_name);
    let mut code = PARITY;
    for model in models {
        let name = model.file_name().to_string_lossy().into_owned();
        let Some(golden) = golden(&fixtures, &name) else { continue };
        for profile in [Profile::F32, Profile::Exact] {
            let judged = judge(&model.path(), &golden, profile)?;
            let baseline = fixtures.join("baselines").join(format!("{name}-{profile}.baseline"));
            code = code.max(settle(&judged, &baseline, update).with_context(|| format!("{name}, {profile}"))?);
        }
    }
    Ok(code)
}

/// PyTorch's f32 dump of a model, in whichever format it is stored.
fn golden(fixtures: &Path, name: &str) -> Option<std::path::PathBuf> {
    let forms =
        ["", ".npz", ".safetensors"].map(|ending| fixtures.join("golden").join(format!("{name}-torch{ending}")));
    forms.into_iter().find(|path| path.exists())
}

fn judge(model: &Path, golden: &Path, profile: Profile) -> Result<Comparison> {
    let meta = Dump::open(golden)?.meta().clone();
    let ids = |tokens: Option<Vec<i64>>| {
        tokens.unwrap_or_default().into_iter().filter_map(|t| u32::try_from(t).ok()).collect()
    };
    let folder = tempfile::tempdir()?;
    let output = folder.path().join("dump");
    let (tokens, decode_tokens) = (ids(meta.tokens), ids(meta.decode_tokens));
    dump(&DumpArgs {
        model: model.into(),
        output: output.clone(),
        tokens,
        decode_tokens,
        taps: "*".into(),
        profile: Some(profile),
        cache: Default::default(),
        weights: None,
        json: None,
    })?;
    // Judged as f32 whatever the profile of our run, because the golden run is f32.
    Session::open(golden, &output, Some(Profile::F32), None)?.run()
}

fn settle(judged: &Comparison, baseline: &Path, update: bool) -> Result<u8> {
    let name = baseline.file_stem().unwrap_or_default().to_string_lossy();
    let worst = judged.report.taps.iter().filter_map(|t| t.metrics?.nmse()).fold(0.0, f64::max);
    if update {
        std::fs::create_dir_all(baseline.parent().unwrap_or(Path::new(".")))?;
        std::fs::write(
            baseline,
            Baseline::from_report(&judged.report, firstdiff::baseline::Accepted::default())?.to_text(judged),
        )?;
    }
    let regressions = Baseline::read(baseline)?.regressions(&judged.report);
    let parity = judged.report.verdict == firstdiff::compare::Verdict::Parity;
    let passed = parity && regressions.is_empty();
    let word = if passed { "passed" } else { "FAILED" };
    print(&format!("{word}  {name:<22} {} taps, worst NMSE {worst:.1e}\n", judged.report.taps.len()))?;
    for r in &regressions {
        print(&format!("        {}: {}\n", r.place, r.reason))?;
    }
    Ok(u8::from(!passed))
}
