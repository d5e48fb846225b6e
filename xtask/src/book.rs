//! Rewrites links for mdBook (a preprocessor in book.toml): links to repository files that are not in the book go to the repository, and links to a
//! README.md to the page that the book makes of it.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::markdown::{is_elsewhere, links, resolved};

const REPOSITORY: &str = env!("CARGO_PKG_REPOSITORY");

/// Reads mdBook's context and book from standard input and writes the book. To the question whether a renderer is supported, it answers yes.
pub(crate) fn run(asked: &[String]) -> Result<u8> {
    if !asked.is_empty() {
        return Ok(0);
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text)?;
    let mut given: Vec<Value> = serde_json::from_str(&text).context("not what mdBook writes to a preprocessor")?;
    let mut book = given.pop().context("no book")?;
    chapters(&mut book, &crate::root()?)?;
    println!("{book}");
    Ok(0)
}

/// Visits every chapter: any object with content and a path, wherever this version of mdBook has it.
fn chapters(value: &mut Value, root: &Path) -> Result<()> {
    match value {
        Value::Array(all) => all.iter_mut().try_for_each(|value| chapters(value, root)),
        Value::Object(fields) => {
            if let (Some(Value::String(text)), Some(Value::String(path))) = (fields.get("content"), fields.get("path"))
            {
                let written = with_links_for_the_book(text, path, root);
                fields.insert("content".into(), Value::String(written));
            }
            fields.values_mut().try_for_each(|value| chapters(value, root))
        }
        _ => Ok(()),
    }
}

fn with_links_for_the_book(text: &str, path: &str, root: &Path) -> String {
    let page = Path::new("docs").join(path);
    let folder = page.parent().unwrap_or(Path::new(""));
    let mut places = links(text);
    places.sort_by_key(|place| std::cmp::Reverse(place.start));
    let mut written = text.to_owned();
    for place in places {
        let target = &text[place.clone()];
        let (file, anchor) = target.split_at(target.find('#').unwrap_or(target.len()));
        let of_ours = (!file.is_empty() && !is_elsewhere(target)).then(|| resolved(folder, file)).flatten();
        let Some(found) = of_ours else { continue };
        if !found.starts_with("docs") {
            let kind = if root.join(&found).is_dir() { "tree" } else { "blob" };
            written.replace_range(place, &format!("{REPOSITORY}/{kind}/main/{}{anchor}", found.display()));
        } else if let Some(in_folder) = file.strip_suffix("README.md") {
            written.replace_range(place, &format!("{in_folder}index.html{anchor}"));
        }
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_lead_to_pages_of_the_book_or_to_the_repository() {
        let text = "[a](../../../scripts/planted/zoo.py) [b](../../reference/format.md#taps) [c](#x) [d](../../../docs/reference/laws.md) [e](../../../crates#f) [g](https://h.org) [i](../../reference/why/README.md#causes)";
        let book = serde_json::json!({"items": [{"Chapter": {"content": text, "path": "guide/engines/rust.md", "sub_items": []}}]});
        let mut given = book.clone();
        chapters(&mut given, &crate::root().unwrap()).unwrap();
        let expected = text
            .replace("../../../scripts", &format!("{REPOSITORY}/blob/main/scripts"))
            .replace("../../../crates", &format!("{REPOSITORY}/tree/main/crates"))
            .replace("README.md", "index.html");
        assert_eq!(given["items"][0]["Chapter"]["content"], expected);
    }
}
