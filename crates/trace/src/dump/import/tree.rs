//! Parses JSON into a compact tree: a list of numbers takes eight bytes a number, because tensor files hold little else.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::file::{json_memory, memory_limit};

/// A value of a JSON document.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Number(f64),
    /// Text, except the words for numbers that JSON cannot express.
    Text(String),
    /// A list of numbers and nulls: see [`is_null`].
    Numbers(Vec<f64>),
    List(Vec<Json>),
    Object(Fields),
}

/// The fields of an object by their keys.
pub(super) type Fields = BTreeMap<String, Json>;

/// The NaN that represents null in a list of numbers.
const NULL: u64 = 0x7ff8_6e75_6c6c_0001;

/// Whether an element of [`Json::Numbers`] is null.
pub(super) fn is_null(x: f64) -> bool {
    x.to_bits() == NULL
}

impl Json {
    pub(super) fn get(&self, key: &str) -> Option<&Json> {
        self.as_object()?.get(key)
    }

    pub(super) fn as_object(&self) -> Option<&Fields> {
        if let Json::Object(fields) = self { Some(fields) } else { None }
    }

    /// The values of a list that is not a list of numbers; none for an empty list.
    pub(super) fn as_list(&self) -> Option<&[Json]> {
        match self {
            Json::List(list) => Some(list),
            Json::Numbers(list) if list.is_empty() => Some(&[]),
            _ => None,
        }
    }

    pub(super) fn as_text(&self) -> Option<&str> {
        if let Json::Text(text) = self { Some(text) } else { None }
    }

    pub(super) fn as_count(&self) -> Option<usize> {
        if let Json::Number(x) = self { whole(*x) } else { None }
    }

    /// The value as an element of a number list: [`NULL`] for null; `None` if it is neither.
    fn element(&self) -> Option<f64> {
        match self {
            Json::Number(x) => Some(*x),
            Json::Null => Some(f64::from_bits(NULL)),
            _ => None,
        }
    }
}

/// An integer that f64 represents exactly.
pub(super) fn whole(x: f64) -> Option<usize> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    ((0.0..EXACT).contains(&x) && x.fract() == 0.0).then_some(x as usize)
}

/// Whether the tree of a document, from a file of `size` bytes, fits in the memory limit for reading that file.
pub(super) fn fits(text: &str, size: usize) -> bool {
    /// Bytes for a number in a list that doubles as it grows; and for a list, an object, or a field with its key.
    const NUMBER: u64 = 16;
    const NODE: u64 = 128;
    let size = size as u64;
    text.len() as u64 + json_memory(text.as_bytes(), NODE, NUMBER) <= memory_limit(size)
}

impl<'de> Deserialize<'de> for Json {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Json, D::Error> {
        deserializer.deserialize_any(Build)
    }
}

struct Build;

impl<'de> Visitor<'de> for Build {
    type Value = Json;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Json, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Json, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Json, E> {
        Ok(Json::Number(value as f64))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Json, E> {
        Ok(Json::Number(value))
    }

    fn visit_str<E>(self, text: &str) -> Result<Json, E> {
        let number = if text.len() <= 9 { super::bracket::number(text).filter(|x| !x.is_finite()) } else { None };
        Ok(number.map_or_else(|| Json::Text(text.to_owned()), Json::Number))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Json, A::Error> {
        let mut numbers = Vec::new();
        while let Some(value) = seq.next_element::<Json>()? {
            let Some(x) = value.element() else {
                let null = |x: f64| if is_null(x) { Json::Null } else { Json::Number(x) };
                let mut list: Vec<Json> = numbers.into_iter().map(null).collect();
                list.push(value);
                while let Some(value) = seq.next_element()? {
                    list.push(value);
                }
                return Ok(Json::List(list));
            };
            numbers.push(x);
        }
        Ok(Json::Numbers(numbers))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Json, A::Error> {
        let mut fields = Fields::new();
        while let Some((key, value)) = map.next_entry::<String, Json>()? {
            match fields.entry(key) {
                Entry::Vacant(place) => drop(place.insert(value)),
                Entry::Occupied(place) => {
                    let key: String = place.key().chars().take(80).collect();
                    return Err(A::Error::custom(format!("the key '{}' is there twice", key.escape_debug())));
                }
            }
        }
        Ok(Json::Object(fields))
    }
}
