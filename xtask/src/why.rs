//! Generates docs/reference/why and the table of contents from the catalogue and the laws, or compares them: a page for each name of `firstdiff why`.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use firstdiff_explain::mistakes::{Mistake, catalogue};
use firstdiff_laws::Form;
use serde_json::Value;

const FOLDER: &str = "docs/reference/why";
const INDEX: &str = "docs/reference/why/README.md";
const SUMMARY: &str = "docs/SUMMARY.md";
/// The line of the table of contents above these pages.
const ABOVE: &str = "- [What the answer means](reference/why/README.md)\n";

/// Writes the pages, or with `check` fails if they differ.
pub(crate) fn run(check: bool) -> Result<u8> {
    let root = crate::root()?;
    let pages = pages(&root)?;
    let known = crate::markdown::documents(&root)?;
    let stale = known.iter().filter(|(path, _)| path.starts_with(FOLDER) && !pages.contains_key(path));
    let mut wrong: Vec<String> = stale.map(|(path, _)| format!("{}: no such name", path.display())).collect();
    for (path, text) in &pages {
        let earlier = fs::read_to_string(root.join(path)).unwrap_or_default();
        let text = crate::readme::keep_outputs(text, &earlier)?;
        if text != earlier && check {
            wrong.push(path.display().to_string());
        } else if text != earlier {
            fs::create_dir_all(root.join(FOLDER))?;
            crate::docs::write(&root.join(path), &text)?;
        }
    }
    if !wrong.is_empty() {
        bail!(
            "not what the catalogue says; run `cargo xtask mistakes`, then `cargo xtask readme`:\n{}",
            wrong.join("\n")
        );
    }
    Ok(0)
}

/// The page for a name of `firstdiff why`.
struct Page {
    name: &'static str,
    /// Its row in the index.
    row: String,
    text: String,
}

/// Every page by path, except the output of the command.
fn pages(root: &Path) -> Result<BTreeMap<PathBuf, String>> {
    let faulty = fs::read_to_string(root.join("fixtures/faulty/index.json"))?;
    let faulty: Vec<Value> = serde_json::from_str(&faulty)?;
    let laws = fs::read_to_string(root.join("docs/reference/laws.md"))?;
    let causes: Vec<Page> = catalogue().map(|mistake| cause(mistake, &faulty)).collect();
    let forms = Form::ALL.iter().map(|form| law(*form, &laws)).collect::<Result<Vec<Page>>>()?;
    let summary = fs::read_to_string(root.join(SUMMARY))?;
    let (before, rest) = summary.split_once(ABOVE).with_context(|| format!("{SUMMARY} has no place for the pages"))?;
    let after: String = rest.split_inclusive('\n').skip_while(|line| line.trim_start() != *line).collect();
    let item = |page: &Page| format!("  - [{0}](reference/why/{0}.md)\n", page.name);
    let items: String = causes.iter().chain(&forms).map(item).collect();
    let mut pages = BTreeMap::from([
        (INDEX.into(), index(&causes, &forms)),
        (SUMMARY.into(), format!("{before}{ABOVE}{items}{after}")),
    ]);
    let path_and_text = |page: Page| (PathBuf::from(format!("{FOLDER}/{}.md", page.name)), page.text);
    pages.extend(causes.into_iter().chain(forms).map(path_and_text));
    Ok(pages)
}

fn index(causes: &[Page], forms: &[Page]) -> String {
    let rows = |pages: &[Page]| pages.iter().map(|page| page.row.as_str()).collect::<String>();
    format!(
        "# What the answer means\n\nEach name that an answer may give has a page here. `firstdiff why NAME` prints it in the terminal; `firstdiff why rope` lists all \
         names that begin with rope.\n\nWritten by `cargo xtask mistakes` from crates/explain/src/mistakes and crates/laws/src/law.rs.\n\n## Causes\n\nThe catalogue: \
         mistakes that people make when they port a model, which `explain` tries and `weights` finds in a file. *Where* lists the taps that a mistake changes first \
         ([all taps](../../guide/tutorial.md#the-taps)). *Said with it* lists the parameters that an answer gives. How often each is found is \
         [measured](../../measured/zoo.md#by-mistake).\n\n| name | what is done wrong | what to change | where | said with it |\n|---|---|---|---|---|\n{}\n## Forms of \
         measured laws\n\nWhat an operation computes instead, where no known mistake gives its numbers. [Measured laws](../laws.md) says how it is \
         measured.\n\n| name | what |\n|---|---|\n{}",
        rows(causes),
        rows(forms)
    )
}

/// A row whose first cell links to the page.
fn index_row(name: &str, cells: &[String]) -> String {
    let cells: String = cells.iter().map(|cell| format!(" | {}", cell.replace('|', "\\|"))).collect();
    format!("| [{name}]({name}.md){cells} |\n")
}

fn row(name: &str, what: &str) -> String {
    format!("| {name} | {} |\n", what.replace('|', "\\|"))
}

fn cause(mistake: &Mistake, faulty: &[Value]) -> Page {
    let mut table = row("what to change", mistake.fix) + &row("where", &mistake.places());
    mistake.params.iter().for_each(|param| table += &row("said with it", &param.in_words("`")));
    mistake.in_file.iter().for_each(|file| table += &row("in a file", file));
    let mut text = format!(
        "# {}\n\nA cause that `firstdiff explain` names: {}.\n\n| | |\n|---|---|\n{table}\n[All causes and laws](README.md) · \
         [what each tap is](../../guide/tutorial.md#the-taps) · [how often it is found](../../measured/zoo.md#by-mistake)\n",
        mistake.id, mistake.what
    );
    let shipped = faulty.iter().find(|entry| entry["mistake"] == mistake.id);
    if let Some((model, file)) = shipped.and_then(|entry| Some((entry["model"].as_str()?, entry["file"].as_str()?))) {
        let run = crate::readme::unfilled(&format!("explain fixtures/{model} fixtures/{file}"));
        text += &format!("\n## An engine that does it\n\n{run}\n");
    }
    let params: Vec<String> = mistake.params.iter().map(|param| param.in_words("`")).collect();
    let cells = [mistake.what.to_owned(), mistake.fix.to_owned(), mistake.places(), params.join("; ")];
    Page { name: mistake.id, row: index_row(mistake.id, &cells), text }
}

/// More about a form is only in its row of docs/reference/laws.md.
fn law(form: Form, laws: &str) -> Result<Page> {
    let (name, what) = (form.name(), form.formula().trim());
    let begin = format!("| `{name}` | ");
    let line = laws.lines().find_map(|line| line.strip_prefix(begin.as_str()));
    let line = line.with_context(|| format!("docs/reference/laws.md has no {name}"))?;
    let cells = line.split('|').map(str::trim);
    let titles = ["formula", "measured from", "cannot tell"];
    let table: String =
        titles.iter().zip(cells).filter(|(_, cell)| !cell.is_empty()).map(|(title, cell)| row(title, cell)).collect();
    let text = format!(
        "# {name}\n\nA form of measured laws: what an operation computes instead, where no cause of the catalogue gives its numbers. {what}\n\n| | |\n|---|---|\n\
         {table}\n[All causes and laws](README.md) · [how a law is measured and proved](../laws.md#how-it-is-measured)\n"
    );
    Ok(Page { name, row: index_row(name, &[what.to_owned()]), text })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_pages_say_what_the_catalogue_says() {
        super::run(true).unwrap();
    }
}
