//! Finds the links and anchors of Markdown files, as far as our own documents need it.

use std::fs;
use std::ops::Range;
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result};

/// Folders without documents.
const SKIPPED: [&str; 4] = ["target", ".git", ".venv", "book"];

/// Every Markdown file of the repository: its path and its text.
pub(crate) fn documents(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    files(root, "md")
}

/// Every file of the repository with this extension.
pub(crate) fn files(root: &Path, ending: &str) -> Result<Vec<(PathBuf, String)>> {
    let (mut found, mut open) = (Vec::new(), vec![root.to_path_buf()]);
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(&folder)? {
            let path = entry?.path();
            let is_skipped = path.file_name().is_some_and(|name| SKIPPED.iter().any(|skipped| name == *skipped));
            if path.is_dir() && !is_skipped {
                open.push(path);
            } else if path.is_file() && path.extension().is_some_and(|found| found == ending) {
                let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
                found.push((path.strip_prefix(root)?.to_path_buf(), text));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// The text with every byte of code replaced by a space, so that positions stay the same.
pub(crate) fn without_code(text: &str) -> String {
    let mut bytes = text.as_bytes().to_vec();
    let mut blank = |range: Range<usize>| bytes[range].iter_mut().filter(|b| **b != b'\n').for_each(|b| *b = b' ');
    let (mut at, mut fence, mut paragraph) = (0, None::<&str>, 0..0);
    let mut spans = Vec::new();
    for line in text.split_inclusive('\n') {
        let here = at..at + line.len();
        at = here.end;
        let begin = line.trim_start();
        let mark = ["```", "~~~"].into_iter().find(|mark| begin.starts_with(mark));
        let is_code = mark.is_some() || fence.is_some();
        fence = match fence {
            Some(open) if mark == Some(open) => None,
            None => mark,
            open => open,
        };
        if is_code {
            blank(here.clone());
        }
        if is_code || begin.is_empty() {
            spans.extend(code_spans(text, paragraph));
            paragraph = here.end..here.end;
        } else {
            paragraph.end = here.end;
        }
    }
    spans.extend(code_spans(text, paragraph));
    spans.into_iter().for_each(blank);
    String::from_utf8(bytes).expect("whole characters were replaced")
}

/// Code spans in a paragraph: from backticks to the same number of backticks.
fn code_spans(text: &str, paragraph: Range<usize>) -> Vec<Range<usize>> {
    let (mut spans, mut at) = (Vec::new(), paragraph.start);
    while let Some(begin) = text[at..paragraph.end].find('`').map(|found| at + found) {
        let rest = &text[begin..paragraph.end];
        let ticks = rest.len() - rest.trim_start_matches('`').len();
        at = begin + ticks;
        let mut from = at;
        while let Some(end) = text[from..paragraph.end].find('`').map(|found| from + found) {
            let rest = &text[end..paragraph.end];
            let closing = rest.len() - rest.trim_start_matches('`').len();
            from = end + closing;
            if closing == ticks {
                spans.push(begin..from);
                at = from;
                break;
            }
        }
    }
    spans
}

/// The ranges of all targets of links and images outside code.
pub(crate) fn links(text: &str) -> Vec<Range<usize>> {
    let masked = without_code(text);
    let mut found = Vec::new();
    for (at, mark) in
        masked.match_indices("](").chain(masked.match_indices("href=\"")).chain(masked.match_indices("src=\""))
    {
        let begin = at + mark.len();
        let closing = if mark == "](" { ')' } else { '"' };
        if let Some(end) = masked[begin..].find(closing) {
            found.push(begin..begin + end);
        }
    }
    for (at, _) in masked.match_indices("<https://") {
        found.extend(masked[at..].find('>').map(|end| at + 1..at + end));
    }
    found
}

/// The anchors for `#..` in links: of headings, as GitHub and mdBook make them, and of ids.
pub(crate) fn anchors(text: &str) -> Vec<String> {
    let mut found: Vec<String> = Vec::new();
    let masked = without_code(text);
    for (line, code) in text.lines().zip(masked.lines()) {
        let Some(heading) = code.starts_with('#').then(|| line.trim_start_matches('#').trim()) else { continue };
        let words = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
        let slug: String = heading.chars().filter(|c| words(*c)).collect();
        let slug = slug.to_lowercase().replace(' ', "-");
        let same = found.iter().filter(|known| **known == slug).count();
        found.push(if same == 0 { slug } else { format!("{slug}-{same}") });
    }
    found.extend(text.split(" id=\"").skip(1).filter_map(|rest| rest.split('"').next()).map(str::to_owned));
    found
}

/// Whether a target is external: it has a scheme.
pub(crate) fn is_elsewhere(target: &str) -> bool {
    target.contains("://") || target.starts_with("mailto:")
}

/// The repository path of a target in a file of `folder`; `None` outside of the repository.
pub(crate) fn resolved(folder: &Path, target: &str) -> Option<PathBuf> {
    let mut path = folder.to_path_buf();
    for part in Path::new(target).components() {
        match part {
            Component::ParentDir => path.pop().then_some(())?,
            Component::Normal(name) => path.push(name),
            Component::CurDir => {}
            Component::RootDir | Component::Prefix(_) => return None,
        }
    }
    Some(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_in_code_are_none() {
        let text = "[a](b.md) `[c](d)` ``` [e](f) ```\n`over\n[g](h)`\n\n```sh\n[i](j)\n```\n![k](l.png) <https://m.org/> ` [n](o)\n";
        let found: Vec<&str> = links(text).into_iter().map(|at| &text[at]).collect();
        assert_eq!(found, ["b.md", "l.png", "o", "https://m.org/"]);
    }

    #[test]
    fn anchors_are_those_of_headings() {
        let text = "# `explain`: Why, and where?\n## program.json, version 1\n```sh\n# no heading\n```\n## Limits\n## Limits\n";
        assert_eq!(anchors(text), ["explain-why-and-where", "programjson-version-1", "limits", "limits-1"]);
    }

    #[test]
    fn a_target_stays_in_the_repository() {
        let path = |target| resolved(Path::new("docs/guide"), target);
        assert_eq!(path("../../scripts/planted/zoo.py"), Some("scripts/planted/zoo.py".into()));
        assert_eq!((path("../../../x"), path("/x")), (None, None));
    }
}
