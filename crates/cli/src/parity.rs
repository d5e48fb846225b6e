//! Is a candidate at parity with its reference? For `cargo test` in other people's repositories.

use std::path::{Path, PathBuf};

use anyhow::Result;
use firstdiff_compare::Verdict;

use crate::output::Inputs;
use crate::render::html::Page;
use crate::render::screen::{Detail, render};
use crate::report::Compare;
use crate::session::{Judged, Session};

/// Names the folder in which [`assert_parity!`](crate::assert_parity) leaves a page of a comparison that failed.
pub const REPORTS: &str = "FIRSTDIFF_REPORTS";

/// The two dumps of a comparison, by name: neither is ever taken for the other.
#[derive(Clone, Copy, Debug)]
pub struct Sides<R, C> {
    /// The golden dump, which is held to be right.
    pub reference: R,
    /// The dump that is judged by it.
    pub candidate: C,
}

firstdiff_trace::debug_is_display!(NoParity);

/// Why a candidate is not at parity. Its text is the command's screen.
pub struct NoParity {
    text: String,
    judged: Option<Box<Judged>>,
}

impl NoParity {
    fn without_report(text: String) -> NoParity {
        NoParity { text: format!("firstdiff: {text}"), judged: None }
    }

    /// What was compared, tap by tap, as `firstdiff compare --json` writes it; nothing where a dump could not be read.
    pub fn report(&self) -> Option<Compare> {
        self.judged.as_ref().map(|judged| Compare::of("compare", judged))
    }

    /// Writes the page of `firstdiff compare --html`. `false` where there is nothing to show, as a dump could not be read.
    ///
    /// # Errors
    /// When it cannot be written, or a dump cannot be read any more.
    pub fn write_html(&self, path: &Path) -> Result<bool> {
        let (Some(judged), Some(report)) = (&self.judged, self.report()) else { return Ok(false) };
        let inputs = Inputs::of([judged.session.reference.path(), judged.session.candidate.path()]);
        Page { compared: Some((judged, &report)), ..Page::default() }.to_file(Some(path), &inputs)?;
        Ok(true)
    }

    /// What a test says that fails: the screen, and where the page is, if one is asked for by [`REPORTS`].
    #[doc(hidden)]
    pub fn told(&self, test: &str) -> String {
        let Some(folder) = std::env::var_os(REPORTS) else { return self.text.clone() };
        let name: String = test.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let path = PathBuf::from(folder).join(format!("{name}.html"));
        let made = path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(Into::into);
        match made.and_then(|()| self.write_html(&path)) {
            Ok(true) => format!("{}\nas a page: {}", self.text, path.display()),
            Ok(false) => self.text.clone(),
            Err(error) => format!("{}\nno page: {}", self.text, crate::output::one_line(&error)),
        }
    }
}

impl std::fmt::Display for NoParity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for NoParity {}

/// Compares the candidate with the reference and gives the report; see [`assert_parity!`](crate::assert_parity).
///
/// # Errors
/// When they differ, cannot be compared, or cannot be read.
pub fn check_parity(
    sides: Sides<impl AsRef<Path>, impl AsRef<Path>>,
    profile: Option<&str>,
) -> Result<Compare, NoParity> {
    let failed = |error: anyhow::Error| NoParity::without_report(crate::output::one_line(&error));
    let profile = profile.map(str::parse).transpose().map_err(NoParity::without_report)?;
    let opened = Session::open(sides.reference.as_ref(), sides.candidate.as_ref(), profile, None);
    let judged = opened.and_then(Session::run).map_err(failed)?;
    match judged.report.verdict {
        Verdict::Parity => Ok(Compare::of("compare", &judged)),
        _ => {
            let text = format!("no parity\n\n{}", render(&judged, Detail::Folded).to_plain());
            Err(NoParity { text, judged: Some(Box::new(judged)) })
        }
    }
}
