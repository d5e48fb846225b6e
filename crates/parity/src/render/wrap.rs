//! Wraps lines at the width of the terminal, but no wider than is easily read; the rest is indented below, broken between words.

use std::sync::LazyLock;

use crate::words::without_colours;

/// The width where no terminal gives one.
const USUAL: usize = 80;
/// Longer lines are hard to read, however wide the terminal.
#[cfg(feature = "command")]
const WIDEST: usize = 100;
/// A narrower screen cannot hold a table of taps.
const NARROWEST: usize = 40;
/// A wrapped line continues below its own text, if that begins no further right than this.
const DEEPEST: usize = 26;

/// The width of lines: that of COLUMNS, else of the terminal, else 80.
pub fn width() -> usize {
    static WIDTH: LazyLock<usize> = LazyLock::new(|| {
        let from_environment =
            std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok()).filter(|width| *width > 0);
        #[cfg(feature = "command")]
        let terminal = || Some(usize::from(terminal_size::terminal_size_of(std::io::stdout())?.0.0).min(WIDEST));
        #[cfg(not(feature = "command"))]
        let terminal = || None::<usize>;
        from_environment.or_else(terminal).map_or(USUAL, |width| width.max(NARROWEST))
    });
    *WIDTH
}

/// `line` as lines of at most `width` columns, if its words allow it. Colours take no room.
pub fn wrapped(line: &str, width: usize) -> String {
    let plain = without_colours(line);
    if columns(&plain) <= width {
        return line.to_owned();
    }
    let indent = indent(&plain);
    let (mut out, mut column, mut first) = (String::new(), 0, true);
    for (spaces, word) in words(line) {
        let length = columns(&without_colours(word));
        if !first && length > 0 && column + spaces.len() + length > width && column > indent {
            out.push('\n');
            out.push_str(&" ".repeat(indent));
            column = indent;
        } else {
            out.push_str(spaces);
            column += spaces.len();
        }
        out.push_str(word);
        column += length;
        first &= length == 0;
    }
    out
}

/// The words of a line, each with the spaces before it.
fn words(line: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut rest = line;
    std::iter::from_fn(move || {
        let start = rest.find(|c| c != ' ').filter(|_| !rest.is_empty())?;
        let (spaces, behind) = rest.split_at(start);
        let (word, after) = behind.split_at(behind.find(' ').unwrap_or(behind.len()));
        rest = after;
        Some((spaces, word))
    })
}

/// The column at which a wrapped line continues: below its text, which follows a label and two or more spaces; else a little further in than it began.
fn indent(plain: &str) -> usize {
    let start = plain.len() - plain.trim_start().len();
    let label = plain[start..].find("  ").map(|gap| start + gap);
    let text = label.map(|gap| columns(&plain[..gap]) + plain[gap..].len() - plain[gap..].trim_start().len());
    text.filter(|column| *column <= DEEPEST).unwrap_or(start + 2)
}

fn columns(plain: &str) -> usize {
    plain.chars().count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(line: &str, due: &str) {
        assert_eq!(wrapped(line, 20), due);
    }

    #[test]
    fn lines_are_broken_between_words() {
        check("short", "short");
        check("a line of more words than fit", "a line of more words\n  than fit");
        check("  how far  one two three four", "  how far  one two\n           three\n           four");
        check("/a/path/that/is/longer/than/a/line", "/a/path/that/is/longer/than/a/line");
        check("\u{1b}[1mbold words take\u{1b}[0m no room", "\u{1b}[1mbold words take\u{1b}[0m no\n  room");
    }
}
