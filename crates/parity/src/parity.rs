//! Compares a candidate with its reference, for `cargo test` in other repositories.

use std::path::{Path, PathBuf};

use anyhow::Result;
use firstdiff_compare::{Profile, Verdict};

use crate::installed;
use crate::render::compare::render;
use crate::render::screen::Detail;
use crate::report::Compare;
use crate::session::Tools;
use crate::session::pair::PairArgs;
use crate::session::reading::{ReadingArgs, TokenArgs};
use crate::session::{Comparison, is_recorded};
use crate::words::one_line;

/// Names the folder in which [`assert_parity!`](crate::assert_parity) leaves the page of a comparison that failed.
pub const REPORTS: &str = "FIRSTDIFF_REPORTS";

/// The two dumps of a comparison, by name, so that they cannot be confused.
#[derive(Clone, Copy, Debug)]
pub struct Sides<R, C> {
    /// The golden dump, which counts as right.
    pub reference: R,
    /// The dump that is judged.
    pub candidate: C,
}

firstdiff_trace::debug_is_display!(NoParity);

/// Why a candidate is not at parity. Its text is the command's screen.
pub struct NoParity {
    text: String,
    judged: Option<Box<Comparison>>,
}

impl NoParity {
    fn without_report(text: String) -> NoParity {
        NoParity { text: format!("firstdiff: {text}"), judged: None }
    }

    /// What was compared, tap by tap, as `firstdiff compare --json` writes it; `None` where a dump could not be read.
    pub fn report(&self) -> Option<Compare> {
        self.judged.as_ref().map(|judged| Compare::new("compare", judged))
    }

    /// Writes the page of `firstdiff report`, by that command. `false` where there is nothing to show, as a dump could not be read.
    ///
    /// # Errors
    /// When the command is not installed, or the page cannot be written.
    pub fn write_html(&self, path: &Path) -> Result<bool> {
        let Some(judged) = &self.judged else { return Ok(false) };
        installed::report(&judged.session, path)?;
        Ok(true)
    }

    /// The message of a test that fails: the screen and, where the command is installed, the causes (of a golden dump that holds its program) and the page,
    /// if [`REPORTS`] asks for one.
    #[doc(hidden)]
    pub fn in_a_test(&self, test: &str) -> String {
        let Some(judged) = &self.judged else { return self.text.clone() };
        let name: String = test.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
        let page = std::env::var_os(REPORTS).map(|folder| PathBuf::from(folder).join(format!("{name}.html")));
        let has_program = is_recorded(judged.session.recorded()[0].path());
        if page.is_none() && !has_program {
            return self.text.clone();
        }
        let created = page.as_ref().and_then(|page| page.parent()).map_or(Ok(()), std::fs::create_dir_all);
        let found = created.map_err(Into::into).and_then(|()| match &page {
            Some(page) => installed::report(&judged.session, page),
            None => installed::causes(&judged.session),
        });
        match (found, page) {
            (Ok(causes), Some(page)) => format!("{}{causes}\nas a page: {}", self.text, page.display()),
            (Ok(causes), None) => format!("{}{causes}", self.text),
            (Err(error), Some(_)) => format!("{}\nno page: {}", self.text, one_line(&error)),
            (Err(error), None) => format!("{}\nno cause was sought: {}", self.text, one_line(&error)),
        }
    }
}

impl std::fmt::Display for NoParity {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.text)
    }
}

impl std::error::Error for NoParity {}

/// Compares the candidate with the reference and gives the report; see [`assert_parity!`](crate::assert_parity). Of a batch every sequence is compared.
///
/// # Errors
/// When they differ, cannot be compared, or cannot be read.
pub fn check_parity(
    sides: Sides<impl AsRef<Path>, impl AsRef<Path>>,
    profile: Option<&str>,
) -> Result<Compare, NoParity> {
    let pair = PairArgs {
        reference: sides.reference.as_ref().to_owned(),
        candidate: sides.candidate.as_ref().to_owned(),
        profile: profile.map(str::parse::<Profile>).transpose().map_err(NoParity::without_report)?,
        cache: None,
        noise: None,
        model: None,
        rows: None,
        reading: ReadingArgs::default(),
        tokens: TokenArgs::default(),
    };
    let judged = pair.judged(&Tools::NONE).map_err(|error| NoParity::without_report(one_line(&error)))?;
    match judged.report.verdict {
        Verdict::Parity => Ok(Compare::new("compare", &judged)),
        _ => {
            let text = format!("no parity\n\n{}", render(&judged, Detail::Folded).to_plain());
            Err(NoParity { text, judged: Some(Box::new(judged)) })
        }
    }
}
