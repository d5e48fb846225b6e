//! Does docs/MISTAKES.md say what the catalogue says? Writes it anew, or compares.

use anyhow::{Result, bail};
use firstdiff_explain::mistakes::{Mistake, Param, Values, catalogue};
use firstdiff_trace::Site;

const HEAD: &str = "# The catalogue of mistakes

What `explain` imitates, and `weights` sees in a file. *Where*: the taps whose operation can be done so ([TUTORIAL.md](TUTORIAL.md) says what each is). *Said \
beside it*: the forms of a mistake, and its numbers. How often each is named, and named rightly, is in [ZOO.md](ZOO.md).

Written by `cargo xtask mistakes` from the entries in crates/explain/src/mistakes/.

| id | what is done wrong | what to change | where | said beside it |
|---|---|---|---|---|
";

/// Writes docs/MISTAKES.md, or fails if it is not what the catalogue says.
pub(crate) fn run(check: bool) -> Result<u8> {
    let path = crate::root()?.join("docs/MISTAKES.md");
    let text = HEAD.to_owned() + &catalogue().map(row).collect::<String>();
    if !check {
        crate::docs::write(&path, &text)?;
    } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
        bail!("docs/MISTAKES.md does not say what the catalogue says; run `cargo xtask mistakes`");
    }
    Ok(0)
}

fn row(mistake: &Mistake) -> String {
    let mut sites = mistake.at.to_vec();
    sites.sort_unstable();
    let names: Vec<&str> = sites.iter().map(|site| site.name()).collect();
    let place = match sites.len() {
        0 if mistake.in_programs => "operations of recorded programs".to_owned(),
        0 => "files of weights alone".to_owned(),
        all if all == Site::ALL.len() => "every tap".to_owned(),
        _ => names.join(", "),
    };
    let params: Vec<String> = mistake.params.iter().map(said).collect();
    let cells = [format!("`{}`", mistake.id), mistake.what.into(), mistake.fix.into(), place, params.join("; ")];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

/// `kind`: `omitted`, `twice`.
fn said(param: &Param) -> String {
    let words = param.words.iter().map(|word| format!("`{word}`"));
    let other = match param.values {
        Values::Words => None,
        Values::Number => Some("a number"),
        Values::Free => Some("any number"),
        Values::Layer => Some("a layer's number"),
        Values::Flag => Some("`true`"),
        Values::Other(says) => Some(says),
    };
    let all: Vec<String> = words.chain(other.map(str::to_owned)).collect();
    format!("{}: {}", param.name, all.join(", "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_says_what_the_catalogue_says() {
        super::run(true).unwrap();
    }
}
