//! Renders what is known about a cause of the catalogue, or about a form of measured law.

use firstdiff_explain::mistakes::Mistake;
use firstdiff_laws::Form;

use crate::render::screen::{BOLD, DIM, Screen, paint};

/// The address of the pages about names.
const PAGES: &str = concat!(env!("CARGO_PKG_REPOSITORY"), "/blob/main/docs/reference/why");

/// A line for each.
pub(crate) fn names(screen: &mut Screen, mistakes: &[&Mistake], forms: &[Form]) {
    let name = |name: &str| paint(BOLD, &format!("{name:<24}"));
    mistakes.iter().for_each(|mistake| screen.line(&format!("{} {}", name(mistake.id), mistake.what)));
    forms.iter().for_each(|form| screen.line(&format!("{} {}", name(form.name()), form.formula().trim())));
}

/// All about a cause.
pub(crate) fn whole(screen: &mut Screen, mistake: &Mistake) {
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

/// The formula of a form.
pub(crate) fn formula(screen: &mut Screen, form: Form) {
    screen.line(&format!("{}  {}", paint(BOLD, form.name()), paint(DIM, "a form of measured laws")));
    screen.line(&format!("  {:<12} {}", "formula", form.formula().trim()));
    screen.line(&format!("  {:<12} {PAGES}/{}.md", "page", form.name()));
}
