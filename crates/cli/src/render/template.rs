//! Fills the templates of a page and of JUnit's form.

use anyhow::Result;
use minijinja::value::Serde;
use minijinja::{AutoEscape, Environment};
use serde::Serialize;

const TEMPLATES: [(&str, &str); 4] = [
    ("page.html", include_str!("../../templates/page.html")),
    ("plot.html", include_str!("../../templates/plot.html")),
    ("mask.html", include_str!("../../templates/mask.html")),
    ("junit.xml", include_str!("../../templates/junit.xml")),
];

/// The text of a template, filled with the fields of `values`. What stands in them is escaped.
///
/// # Errors
/// When the template asks for what is not there.
pub(crate) fn fill(name: &str, values: &impl Serialize) -> Result<String> {
    let mut environment = Environment::new();
    environment.set_auto_escape_callback(|_| AutoEscape::Html);
    for (name, text) in TEMPLATES {
        environment.add_template(name, text)?;
    }
    Ok(environment.get_template(name)?.render(Serde(values))?)
}
