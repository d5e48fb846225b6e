//! Checks the links in all documents: files and anchors always, external pages on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::markdown::{anchors, documents, files, is_elsewhere, links, resolved, without_code};

/// The folder of the book, and its table of contents.
const BOOK: &str = "docs";
const SUMMARY: &str = "docs/SUMMARY.md";
/// Documents of other projects whose paths look like ours.
const FOREIGN: [&str; 1] = ["docs/gguf.md"];

/// Prints broken links; with `online` also requests every external page.
pub(crate) fn run(online: bool) -> Result<u8> {
    let root = crate::root()?;
    let mut wrong = broken(&root)?;
    let pages = foreign(&documents(&root)?);
    for page in &pages {
        println!("{page}");
        if online && !answers(page)? {
            wrong.push(format!("{page}: no answer"));
        }
    }
    println!("{} pages elsewhere, {}", pages.len(), if online { "asked for" } else { "not asked for: --online does" });
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(0)
}

/// Whether an external page exists.
fn answers(page: &str) -> Result<bool> {
    let mut curl = Command::new("curl");
    let curl =
        curl.args(["--silent", "--fail", "--location", "--head", "--max-time", "20", "--output", "/dev/null", page]);
    Ok(curl.status().context("curl")?.success())
}

/// Every link target with a scheme.
fn foreign(documents: &[(PathBuf, String)]) -> BTreeSet<String> {
    let targets = documents.iter().flat_map(|(_, text)| links(text).into_iter().map(|at| text[at].to_owned()));
    targets.filter(|target| is_elsewhere(target)).collect()
}

/// Every broken link of the repository, one line each.
fn broken(root: &Path) -> Result<Vec<String>> {
    let documents: BTreeMap<PathBuf, String> = documents(root)?.into_iter().collect();
    let mut wrong = Vec::new();
    for (path, text) in &documents {
        let folder = path.parent().unwrap_or(Path::new(""));
        let mut say = |what: &str| wrong.push(format!("{}: {what}", path.display()));
        let text = included(text, folder, &documents).unwrap_or_else(|missing| {
            say(&missing);
            text.clone()
        });
        for at in links(&text) {
            let target = &text[at];
            if let Some(what) = fault(root, path, target, &documents).filter(|_| !is_elsewhere(target)) {
                say(&format!("{target}: {what}"));
            }
        }
    }
    for ending in ["md", "rs", "py"] {
        for (path, text) in files(root, ending)? {
            let text = text.split("#[cfg(test)]").next().unwrap_or_default();
            let missing = mentioned(text).into_iter().filter(|name| !root.join(name).exists());
            wrong.extend(missing.map(|name| format!("{}: {name} is not there", path.display())));
        }
    }
    wrong.extend(outside_of_the_book(&documents));
    Ok(wrong)
}

/// What is wrong with one target, if anything.
fn fault(root: &Path, from: &Path, target: &str, documents: &BTreeMap<PathBuf, String>) -> Option<&'static str> {
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let folder = from.parent().unwrap_or(Path::new(""));
    let path = if file.is_empty() { Some(from.to_path_buf()) } else { resolved(folder, file) };
    let Some(path) = path else { return Some("leaves the repository") };
    if !root.join(&path).exists() {
        return Some("is not there");
    }
    let anchor = anchor?;
    let has = documents.get(&path).is_some_and(|text| anchors(text).iter().any(|known| known == anchor));
    (!has).then_some("has no such anchor")
}

/// The text with mdBook's includes inserted: `{{#include ../README.md:start}}`.
fn included(text: &str, folder: &Path, documents: &BTreeMap<PathBuf, String>) -> Result<String, String> {
    let Some((before, rest)) = text.split_once("{{#include ") else { return Ok(text.to_owned()) };
    let (what, after) = rest.split_once("}}").ok_or("an include without an end")?;
    let (file, name) = what.split_once(':').ok_or_else(|| format!("{what} names no part"))?;
    let source = resolved(folder, file).and_then(|path| documents.get(&path)).ok_or_else(|| format!("no {file}"))?;
    let part = source.split_once(&format!("<!-- ANCHOR: {name} -->"));
    let part = part.and_then(|(_, part)| part.split_once(&format!("<!-- ANCHOR_END: {name} -->")));
    let (part, _) = part.ok_or_else(|| format!("{file} has no part {name}"))?;
    Ok(format!("{before}{part}{}", included(after, folder, documents)?))
}

/// Paths of our documents in a text: docs/reference/format.md.
fn mentioned(text: &str) -> BTreeSet<String> {
    let is_part = |c: char| c.is_alphanumeric() || matches!(c, '/' | '.' | '_' | '-' | '+');
    let words = text.split(|c: char| !is_part(c)).map(|word| word.trim_end_matches('.'));
    let ours = |word: &&str| word.starts_with("docs/") && word.ends_with(".md") && !FOREIGN.contains(word);
    words.filter(ours).map(str::to_owned).collect()
}

/// Pages that are missing from the book, or in it twice.
fn outside_of_the_book(documents: &BTreeMap<PathBuf, String>) -> Vec<String> {
    let Some(summary) = documents.get(Path::new(SUMMARY)) else { return vec![format!("{SUMMARY} is not there")] };
    let masked = without_code(summary);
    let mut listed: BTreeMap<PathBuf, usize> = BTreeMap::new();
    for at in links(&masked) {
        *listed.entry(Path::new(BOOK).join(&masked[at])).or_default() += 1;
    }
    let pages = documents.keys().filter(|path| path.starts_with(BOOK) && path.as_path() != Path::new(SUMMARY));
    pages
        .filter_map(|path| match listed.get(path) {
            Some(1) => None,
            Some(times) => Some(format!("{}: {times} times in {SUMMARY}", path.display())),
            None => Some(format!("{}: not in {SUMMARY}", path.display())),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_link_leads_somewhere() {
        let wrong = broken(&crate::root().unwrap()).unwrap();
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }

    #[test]
    fn what_leads_nowhere_is_seen() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join(BOOK)).unwrap();
        write(
            "README.md",
            "[a](docs/A.md#one) <!-- ANCHOR: x -->[b](B.md)<!-- ANCHOR_END: x -->\n[c](/etc) [d](../x)\n",
        );
        write("docs/A.md", "# One\n[e](#two)\n{{#include ../README.md:x}}\n{{#include ../README.md:y}}\n");
        write("docs/B.md", "docs/C.md\n[f](https://example.org)\n");
        write(SUMMARY, "[a](A.md)\n[a](A.md)\n");
        let wrong = broken(folder.path()).unwrap();
        let expected = [
            "README.md: B.md: is not there",
            "README.md: /etc: leaves the repository",
            "README.md: ../x: leaves the repository",
            "docs/A.md: ../README.md has no part y",
            "docs/A.md: #two: has no such anchor",
            "docs/B.md: docs/C.md is not there",
            "docs/A.md: 2 times in docs/SUMMARY.md",
            "docs/B.md: not in docs/SUMMARY.md",
        ];
        assert_eq!(wrong, expected);
        assert_eq!(foreign(&documents(folder.path()).unwrap()).len(), 1);
    }
}
