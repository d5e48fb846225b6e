//! Defines what a parameter of a mistake may be: words that name its forms, and numbers.

use serde_json::Value;

/// A parameter of a mistake.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its name in reports.
    pub name: &'static str,
    /// The words that it may be; "A or B" where two are the same in a small model.
    pub words: &'static [&'static str],
    /// What it may be beside them.
    pub values: Values,
    /// Whether it follows from the shape of a matrix: it does not tell one mistake from another.
    pub(crate) follows_from_shape: bool,
    /// Whether it is known only where it is known which tokens these are, and where they stand.
    pub(crate) needs_positions: bool,
}

/// What a parameter may be beside its words.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Values {
    /// Nothing else.
    Words,
    /// A number, of a few.
    Number,
    /// Any number, and one in all of an engine: where two places need different ones, the mistake is another.
    Free,
    /// The number of a layer, `next` or `previous`.
    Layer,
    /// `true`.
    Flag,
    /// Something else, and what it says.
    Other(&'static str),
}

impl Param {
    /// One of these words.
    pub(super) const fn words(name: &'static str, words: &'static [&'static str]) -> Param {
        Param { name, words, values: Values::Words, follows_from_shape: false, needs_positions: false }
    }

    /// A number, of a few.
    pub(super) const fn number(name: &'static str) -> Param {
        Param { values: Values::Number, ..Param::words(name, &[]) }
    }

    /// Any number, one in all of an engine.
    pub(super) const fn free(name: &'static str) -> Param {
        Param { values: Values::Free, ..Param::words(name, &[]) }
    }

    /// A layer, by its number or from the one it stands in for.
    pub(super) const fn layer(name: &'static str) -> Param {
        Param { values: Values::Layer, ..Param::words(name, &["next", "previous"]) }
    }

    /// `true`, where it is said.
    pub(super) const fn flag(name: &'static str) -> Param {
        Param { values: Values::Flag, ..Param::words(name, &[]) }
    }

    /// Anything else, and what it says.
    pub(super) const fn other(name: &'static str, says: &'static str) -> Param {
        Param { values: Values::Other(says), ..Param::words(name, &[]) }
    }

    /// The same, or one of these words.
    pub(super) const fn or(self, words: &'static [&'static str]) -> Param {
        Param { words, ..self }
    }

    /// The same, following from the shape of a matrix.
    pub(super) const fn of_shape(self) -> Param {
        Param { follows_from_shape: true, ..self }
    }

    /// The same, known only where the places of the tokens are.
    pub(super) const fn of_positions(self) -> Param {
        Param { needs_positions: true, ..self }
    }

    /// What it may be: its words, each between two of `quote`, and what else.
    pub fn in_words(&self, quote: &str) -> String {
        let words = self.words.iter().map(|word| format!("{quote}{word}{quote}"));
        let other = match self.values {
            Values::Words => None,
            Values::Number => Some("a number".to_owned()),
            Values::Free => Some("any number".to_owned()),
            Values::Layer => Some("a layer's number".to_owned()),
            Values::Flag => Some(format!("{quote}true{quote}")),
            Values::Other(says) => Some(says.to_owned()),
        };
        let all: Vec<String> = words.chain(other).collect();
        format!("{}: {}", self.name, all.join(", "))
    }

    /// Whether it may have this value.
    pub fn allows(&self, value: &Value) -> bool {
        let known =
            |text: &str| self.words.contains(&text) || text.split(" or ").all(|word| self.words.contains(&word));
        match (self.values, value) {
            (Values::Other(_), _) => true,
            (_, Value::String(text)) => known(text),
            (Values::Number | Values::Free | Values::Layer, Value::Number(_)) => true,
            (Values::Flag, Value::Bool(_)) => true,
            _ => false,
        }
    }
}
