//! Reads the keys of config.json one at a time, so that an error can name the key.

use std::path::Path;

use serde_json::{Map, Value};

use crate::error::ModelError;

/// A JSON object of config.json.
#[derive(Clone, Copy)]
pub(crate) struct Keys<'a> {
    file: &'a Path,
    map: &'a Map<String, Value>,
    /// The key of this object, with a dot.
    prefix: &'static str,
}

type Read<T> = Result<T, ModelError>;

impl<'a> Keys<'a> {
    pub(crate) fn new(file: &'a Path, map: &'a Map<String, Value>) -> Keys<'a> {
        Keys { file, map, prefix: "" }
    }

    pub(crate) fn error(&self, key: &str, reason: impl Into<String>) -> ModelError {
        ModelError::Config { file: self.file.into(), key: format!("{}{key}", self.prefix), reason: reason.into() }
    }

    /// Whether the key is present, even as null.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// The value, unless it is null or absent.
    fn get<T>(&self, key: &str, what: &str, read: impl Fn(&'a Value) -> Option<T>) -> Read<Option<T>> {
        match self.map.get(key) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => match read(value) {
                Some(value) => Ok(Some(value)),
                None => Err(self.error(key, format!("{} is not {what}", truncated(value)))),
            },
        }
    }

    /// A whole number above 0.
    pub(crate) fn count(&self, key: &str) -> Read<Option<usize>> {
        let positive = |v: &Value| v.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|&n| n > 0);
        self.get(key, "a whole number above 0", positive)
    }

    /// A whole number, 0 included.
    pub(crate) fn index(&self, key: &str) -> Read<Option<usize>> {
        self.get(key, "a whole number", |v| v.as_u64().and_then(|n| usize::try_from(n).ok()))
    }

    /// A finite number above 0.
    pub(crate) fn positive(&self, key: &str) -> Read<Option<f64>> {
        self.get(key, "a number above 0", |v| v.as_f64().filter(|x| x.is_finite() && *x > 0.0))
    }

    /// A finite number, 0 or above.
    pub(crate) fn non_negative(&self, key: &str) -> Read<Option<f64>> {
        self.get(key, "a number of at least 0", |v| v.as_f64().filter(|x| x.is_finite() && *x >= 0.0))
    }

    pub(crate) fn flag(&self, key: &str) -> Read<Option<bool>> {
        self.get(key, "true or false", Value::as_bool)
    }

    pub(crate) fn text(&self, key: &str) -> Read<Option<&'a str>> {
        self.get(key, "a string", Value::as_str)
    }

    /// An array of strings.
    pub(crate) fn texts(&self, key: &str) -> Read<Option<Vec<&'a str>>> {
        self.get(key, "a list of strings", |v| v.as_array()?.iter().map(Value::as_str).collect())
    }

    pub(crate) fn object(&self, key: &'static str, prefix: &'static str) -> Read<Option<Keys<'a>>> {
        let map = self.get(key, "an object", Value::as_object)?;
        Ok(map.map(|map| Keys { file: self.file, map, prefix }))
    }

    /// A value that must be present.
    pub(crate) fn required<T>(&self, key: &str, value: Option<T>) -> Read<T> {
        value.ok_or_else(|| self.error(key, "is absent"))
    }
}

/// A value from the file, cut to fit on a line.
fn truncated(value: &Value) -> String {
    const WIDTH: usize = 40;
    match value {
        Value::Array(_) => "a list".into(),
        Value::Object(_) => "an object".into(),
        Value::String(text) if text.chars().count() > WIDTH => {
            format!("{:?}...", text.chars().take(WIDTH).collect::<String>())
        }
        other => other.to_string(),
    }
}
