//! Is a candidate at parity with its golden dump? For `cargo test` in other people's repositories.

use std::path::Path;

use firstdiff_compare::Verdict;

use crate::session::Session;

/// Why a candidate is not at parity. Its text is the command's screen.
#[derive(Debug)]
pub struct NoParity(String);

impl std::fmt::Display for NoParity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NoParity {}

/// Compares `candidate` with `golden`; see [`assert_parity!`](crate::assert_parity).
///
/// # Errors
/// When they differ, cannot be compared, or cannot be read.
pub fn check_parity(
    candidate: impl AsRef<Path>,
    golden: impl AsRef<Path>,
    profile: Option<&str>,
) -> Result<(), NoParity> {
    let failed = |error: anyhow::Error| NoParity(format!("firstdiff: {}", crate::output::one_line(&error)));
    let profile = profile.map(str::parse).transpose().map_err(|e: String| NoParity(format!("firstdiff: {e}")))?;
    let judged =
        Session::open(golden.as_ref(), candidate.as_ref(), profile, None).and_then(Session::run).map_err(failed)?;
    match judged.report.verdict {
        Verdict::Parity => Ok(()),
        _ => Err(NoParity(format!(
            "no parity\n\n{}",
            crate::render::screen::render(&judged, crate::render::screen::Detail::Folded).to_plain()
        ))),
    }
}
