//! Does docs/MISTAKES.md say what the catalogue says? Writes it anew, or compares.

use anyhow::{Result, bail};
use firstdiff_explain::mistakes::{Mistake, catalogue};

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
    let params: Vec<String> = mistake.params.iter().map(|param| param.in_words("`")).collect();
    let id = format!("`{}`", mistake.id);
    let cells = [id, mistake.what.into(), mistake.fix.into(), mistake.places(), params.join("; ")];
    format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_page_says_what_the_catalogue_says() {
        super::run(true).unwrap();
    }
}
