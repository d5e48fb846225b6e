//! Does docs/reference/mistakes.md say what the catalogue says? Writes it anew, or compares.

use anyhow::{Result, bail};
use firstdiff_explain::mistakes::{Mistake, catalogue};

const HEAD: &str = "# The catalogue of mistakes

The mistakes that `explain` tries, and those that `weights` finds in a file. *Where* lists the taps that a mistake changes first ([all taps](../guide/tutorial.md#the-taps)). \
*Said beside it* lists the parameters that an answer gives with the name. How often each mistake is found is in [Planted mistakes](../measured/zoo.md#by-mistake).

Written by `cargo xtask mistakes` from the entries in crates/explain/src/mistakes/.

| id | what is done wrong | what to change | where | said beside it |
|---|---|---|---|---|
";

/// Writes docs/reference/mistakes.md, or fails if it is not what the catalogue says.
pub(crate) fn run(check: bool) -> Result<u8> {
    let path = crate::root()?.join("docs/reference/mistakes.md");
    let text = HEAD.to_owned() + &catalogue().map(row).collect::<String>();
    if !check {
        crate::docs::write(&path, &text)?;
    } else if std::fs::read_to_string(&path).unwrap_or_default() != text {
        bail!("docs/reference/mistakes.md does not say what the catalogue says; run `cargo xtask mistakes`");
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
