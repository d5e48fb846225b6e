//! `firstdiff why`: explains a word of an answer: an id of the catalogue, or a form of measured law.

use anyhow::{Result, bail};
use clap::Args;
use firstdiff_explain::mistakes::{Mistake, catalogue};
use firstdiff_laws::Form;

use crate::output::{PARITY, print};
use crate::render::screen::{BOLD, DIM, Screen, paint};

pub(crate) const HELP: &str = "Examples:
  firstdiff why rope-pairing        a cause that explain named: what is done wrong, what to change, where
  firstdiff why mask.fill           a form of a measured law: its formula
  firstdiff why rope                all whose names begin so
  firstdiff why                     all of them, a line each

docs/reference/why has a page for each, and docs/reference/why/README.md all in one table.";

/// The address of the pages about names.
const PAGES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/reference/why");

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
            let names = catalogue().map(|mistake| mistake.id).chain(Form::ALL.iter().map(|form| form.name()));
            let near = names.min_by_key(|name| strsim::damerau_levenshtein(name, cause_name)).unwrap_or_default();
            bail!("{cause_name}: no cause and no form of a law has that name ({near}?); `firstdiff why` lists all");
        }
        (None, None) => {
            let name = |name: &str| paint(BOLD, &format!("{name:<24}"));
            mistakes.iter().for_each(|mistake| screen.line(&format!("{} {}", name(mistake.id), mistake.what)));
            forms.iter().for_each(|form| screen.line(&format!("{} {}", name(form.name()), form.formula().trim())));
        }
    }
    print(screen.as_str())?;
    Ok(PARITY)
}

fn whole(screen: &mut Screen, mistake: &Mistake) {
    screen.line(&format!("{}  {}", paint(BOLD, mistake.id), paint(DIM, "a mistake of the catalogue")));
    let mut line = |name: &str, text: &str| screen.line(&format!("  {name:<12} {text}"));
    line("what", mistake.what);
    line("change", mistake.fix);
    line("where", &mistake.places());
    mistake.params.iter().for_each(|param| line("said with", &param.in_words("")));
    if let Some(file) = mistake.in_file {
        line("in a file", file);
    }
    line("page", &format!("{PAGES}/{}.md", mistake.id));
}

fn formula(screen: &mut Screen, form: Form) {
    screen.line(&format!("{}  {}", paint(BOLD, form.name()), paint(DIM, "a form of measured laws")));
    screen.line(&format!("  {:<12} {}", "formula", form.formula().trim()));
    screen.line(&format!("  {:<12} {PAGES}/{}.md", "page", form.name()));
}
