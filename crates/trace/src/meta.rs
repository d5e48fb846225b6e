//! Where does a dump come from? `dump.json`: producer, model, tokens, precision, and the list of taps.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::element::DType;

/// The version of the dump format this crate writes, and the highest it reads.
pub const FORMAT: u32 = 1;

/// What `dump.json` says of a run. Every field may be absent; unknown keys are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Format version; 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<u32>,
    /// Who wrote it: `name`, `version`, and the versions of the libraries it stands on.
    #[serde(default, skip_serializing_if = "Producer::is_unknown")]
    pub producer: Producer,
    /// The model's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// Token ids of the prefill (step 0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<i64>>,
    /// One token id for each decode step (step 1, 2 ...).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens: Option<Vec<i64>>,
    /// The arithmetic of the run: exact, f32, f16, bf16 or ggml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// The type keys and values were kept in, where it is not that of the run: f32 or f16.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// For which RoPE pairing the rows of Q and K are ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qk_rows: Option<QkRows>,
    /// Token positions recorded in every tap, where fewer than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
    /// Where this is the dump of one rank of several: what each tap's axes are, and which is cut over ranks. From taps, or patterns of
    /// taps, to notations (see `Dims`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dims: Option<BTreeMap<String, String>>,
    /// The taps, where listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taps: Option<Vec<TapMeta>>,
}

/// Who wrote a dump. A bare string is read as a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Producer {
    /// A name alone.
    Name(String),
    /// `name`, `version`, and more.
    Fields(BTreeMap<String, serde_json::Value>),
}

impl Default for Producer {
    fn default() -> Self {
        Producer::Fields(BTreeMap::new())
    }
}

impl Producer {
    /// A producer of this name and version.
    pub fn new(name: &str, version: &str) -> Producer {
        let fields = [("name", name), ("version", version)];
        Producer::Fields(fields.into_iter().map(|(k, v)| (k.to_owned(), v.into())).collect())
    }

    /// The producer's name, where told.
    pub fn name(&self) -> Option<&str> {
        match self {
            Producer::Name(name) => Some(name),
            Producer::Fields(fields) => fields.get("name")?.as_str(),
        }
    }

    fn is_unknown(&self) -> bool {
        *self == Producer::default()
    }
}

/// The order of the rows of Q and K within a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum QkRows {
    /// For pairs (i, i + d/2): Hugging Face checkpoints.
    Half,
    /// For pairs (2i, 2i + 1): GGUF files of NORM-type families, original Llama checkpoints.
    Adjacent,
}

impl QkRows {
    /// The one that it is not.
    pub fn other(self) -> QkRows {
        match self {
            QkRows::Half => QkRows::Adjacent,
            QkRows::Adjacent => QkRows::Half,
        }
    }
}

/// Which token positions a tap holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Rows {
    /// `"all"` or `"last"`.
    Named(NamedRows),
    /// Positions, counted from 0 within the step.
    List(Vec<usize>),
}

/// Rows that have a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamedRows {
    /// Every position.
    All,
    /// The last position only.
    Last,
}

impl Rows {
    /// Whether no position is left out.
    pub fn is_all(&self) -> bool {
        *self == Rows::Named(NamedRows::All)
    }
}

impl std::str::FromStr for Rows {
    type Err = String;

    /// `all`, `last`, or positions separated by commas.
    fn from_str(text: &str) -> Result<Rows, String> {
        match text {
            "all" => Ok(Rows::Named(NamedRows::All)),
            "last" => Ok(Rows::Named(NamedRows::Last)),
            _ => text
                .split(',')
                .map(|part| part.trim().parse().map_err(|_| format!("'{part}' is no position; all, last, or 0,3,7")))
                .collect::<Result<_, _>>()
                .map(Rows::List),
        }
    }
}

/// One tap of `dump.json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TapMeta {
    /// The tap's name.
    pub tap: String,
    /// 0 for the prefill, n for the n-th decode step.
    #[serde(default)]
    pub step: u32,
    /// The file in the dump's folder, or the member or tensor of an archive; by default made from tap and step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Extent of every axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<usize>>,
    /// Element type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    /// Token positions recorded, where fewer than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
    /// Its axes, and which is cut over ranks, where this is the dump of one rank of several (see `Dims`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dims: Option<String>,
}

/// The name under which a tap of a step is stored, without an ending: `layers.0.q`, `layers.0.q.step3`.
pub fn stored_name(tap: &str, step: u32) -> String {
    if step == 0 { tap.to_owned() } else { format!("{tap}.step{step}") }
}

/// The tap's name and step in a stored name; the reverse of [`stored_name`].
#[cfg(feature = "read")]
pub fn split_stored_name(name: &str) -> (&str, u32) {
    let parts = name.rsplit_once(".step").and_then(|(tap, step)| {
        let canonical = step.bytes().all(|b| b.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
        Some((tap, step.parse().ok().filter(|_| canonical)?))
    });
    parts.unwrap_or((name, 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(feature = "read")]
    fn stored_names_round_trip() {
        for (tap, step) in [("layers.0.q", 0), ("layers.0.q", 12), ("h0", 1)] {
            assert_eq!(split_stored_name(&stored_name(tap, step)), (tap, step));
        }
        assert_eq!(split_stored_name("h0.step"), ("h0.step", 0));
        assert_eq!(split_stored_name("h0.step0"), ("h0", 0), "others count the prefill too");
        assert_eq!(split_stored_name("h0.step01"), ("h0.step01", 0));
    }

    #[test]
    fn the_shortest_dump_json_is_enough() {
        let meta: Meta = serde_json::from_str(r#"{"tokens": [1, 2], "rows": "last", "other": 3}"#).unwrap();
        assert_eq!(meta.tokens, Some(vec![1, 2]));
        assert_eq!(meta.rows, Some(Rows::Named(NamedRows::Last)));
        let meta: Meta = serde_json::from_str(r#"{"producer": "me", "taps": [{"tap": "h0", "rows": [3]}]}"#).unwrap();
        assert_eq!(meta.producer.name(), Some("me"));
        assert_eq!(meta.taps.unwrap()[0].rows, Some(Rows::List(vec![3])));
    }
}
