//! Holds the lines of a screen, with their colours.

use anstyle::{AnsiColor, Style};

/// How much of the taps is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detail {
    /// Layers folded to a line while they are alike; the first wrong layer unfolded.
    Folded,
    /// Every tap on a line of its own.
    Every,
}

/// Text with colours, which [`Screen::to_plain`] removes.
#[derive(Clone, Debug, Default)]
pub struct Screen(String);

pub const GOOD: Style = AnsiColor::Green.on_default();
pub const BAD: Style = AnsiColor::Red.on_default().bold();
pub const DIM: Style = Style::new().dimmed();
pub const WARN: Style = AnsiColor::Yellow.on_default();
pub const BOLD: Style = Style::new().bold();

impl Screen {
    /// The text with its colours; print it through `anstream`, which drops them where there is no terminal.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The text alone.
    pub fn to_plain(&self) -> String {
        crate::words::without_colours(&self.0)
    }

    /// Appends the lines of another screen.
    pub fn append(&mut self, other: &Screen) {
        self.0.push_str(&other.0);
    }

    /// Appends a line. Foreign text in it can neither end it nor control the terminal: of control characters only colours are kept.
    pub fn line(&mut self, text: &str) {
        let text = crate::words::without_controls(text.trim_end());
        self.0.push_str(&crate::render::wrap::wrapped(&text, crate::render::wrap::width()));
        self.0.push('\n');
    }
}

pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{text}{style:#}")
}
