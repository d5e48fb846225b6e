//! `firstdiff why`: explains a word of an answer: an id of the catalogue, or a form of measured law.

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_explain::mistakes::{Mistake, catalogue};
use firstdiff_laws::Form;

use crate::output::{PARITY, print};
use crate::render::cause::{formula, names, whole};
use crate::render::screen::Screen;

pub(crate) const HELP: &str = "Examples:
  firstdiff why rope-pairing        a cause that explain named: what is done wrong, what to change, where
  firstdiff why mask.fill           a form of a measured law: its formula
  firstdiff why rope                all whose names begin so
  firstdiff why                     all of them, a line each

docs/reference/why has a page for each, and docs/reference/why/README.md all in one table.";

#[derive(Debug, Args)]
pub(crate) struct WhyArgs {
    /// An id of the catalogue, the name of a form, or what either begins with
    name: Option<String>,
}

/// Prints what is known about a name.
///
/// # Errors
/// When that name does not exist.
pub(crate) fn run(args: &WhyArgs) -> Result<u8> {
    let cause_name = args.name.as_deref().unwrap_or_default();
    let mistakes: Vec<&Mistake> = catalogue().filter(|mistake| mistake.id.starts_with(cause_name)).collect();
    let forms: Vec<Form> = Form::ALL.iter().copied().filter(|form| form.name().starts_with(cause_name)).collect();
    let mut screen = Screen::default();
    let exact = mistakes.iter().find(|mistake| mistake.id == cause_name);
    match (exact, forms.iter().find(|form| form.name() == cause_name)) {
        (Some(mistake), _) => whole(&mut screen, mistake),
        (None, Some(form)) => formula(&mut screen, *form),
        (None, None) if mistakes.is_empty() && forms.is_empty() => {
            let all = catalogue().map(|mistake| mistake.id).chain(Form::ALL.iter().map(|form| form.name()));
            let near = all.min_by_key(|name| strsim::damerau_levenshtein(name, cause_name)).unwrap_or_default();
            bail!("{cause_name}: no cause and no form of a law has that name ({near}?); `firstdiff why` lists all");
        }
        (None, None) => names(&mut screen, &mistakes, &forms),
    }
    print(screen.as_str())?;
    Ok(PARITY)
}
