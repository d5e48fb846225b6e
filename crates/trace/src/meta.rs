//! Defines `dump.json`, the metadata of a dump: producer, model, tokens, precision, and the list of taps.

use std::collections::BTreeMap;
#[cfg(feature = "read")]
use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::element::DType;

/// The version of the dump format that this crate writes, and the highest it reads.
pub const FORMAT: u32 = 1;

/// The content of `dump.json`. Every field may be absent; unknown keys are ignored.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Format version; 1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub format: Option<u32>,
    /// Whether the recording was finished. Recorders write `false` before the first tap, and `true` at the end; if absent, the dump is taken as finished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub complete: Option<bool>,
    /// For a recording that was not finished: whether the program ended normally, and no tap is known to be missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ended_by_itself: Option<bool>,
    /// The program that wrote it: `name`, `version`, and the versions of its libraries.
    #[serde(default, skip_serializing_if = "Producer::is_unknown")]
    pub producer: Producer,
    /// The model's name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The model's architecture, as config.json's `model_type` or a GGUF's `general.architecture` names it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub architecture: Option<String>,
    /// Token ids of the prefill (step 0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<Vec<i64>>,
    /// One token id for each decode step (step 1, 2 ...).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_tokens: Option<Vec<i64>>,
    /// The tokens of each sequence of a batch, if `tokens` has a list for each.
    #[serde(skip)]
    pub sequences: Option<Vec<SequenceTokens>>,
    /// Which positions of the prefill are tokens (1) and which are padding (0).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_mask: Option<AttentionMask>,
    /// The side of the tokens on which padding is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub padding: Option<PaddingSide>,
    /// The arithmetic of the run: exact, f32, f16, bf16 or ggml.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<String>,
    /// The type of the K/V cache, if it differs from that of the run: f32, f16, bf16 or q8_0.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The RoPE pairing for which the rows of Q and K are ordered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub qk_rows: Option<QkRows>,
    /// Token positions recorded in every tap, if fewer than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
    /// For the dump of one rank: the axes of each tap, and which one is cut over the ranks. From taps, or tap patterns, to notations (see `AxisNotation`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dims: Option<BTreeMap<String, String>>,
    /// The operation that produces each tap, and the taps that it reads, in running order, if the run gives them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<Vec<GraphNode>>,
    /// The first decode step whose logits differ from those of one pass over the same tokens, if the recorder checked and found one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode_differs: Option<DecodeDiffers>,
    /// The taps, where listed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub taps: Option<Vec<TapMeta>>,
}

/// A decode step whose result differs from that of one pass over the same tokens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeDiffers {
    /// The step.
    pub step: u32,
    /// The NMSE of its logits.
    pub nmse: f64,
}

#[cfg(feature = "read")]
impl std::fmt::Display for DecodeDiffers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DecodeDiffers { step, nmse } = self;
        write!(
            f,
            "its recorder found that decode step {step} gives other logits than one pass over the same tokens (NMSE {nmse:.1e}): as a reference, its decode \
             steps may be wrong themselves"
        )
    }
}

/// One operation in the `graph` of `dump.json`, with the tap that it produces in every step.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GraphNode {
    /// The tap that it produces.
    pub tap: String,
    /// The name of the operation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub op: Option<String>,
    /// The taps that it reads, each produced by an earlier entry; empty for an input.
    #[serde(default)]
    pub reads: Vec<String>,
}

impl Meta {
    /// Whether the recording is marked as not finished: taps may be missing.
    pub fn is_incomplete(&self) -> bool {
        self.complete == Some(false)
    }

    /// Marks a run of several dumps as incomplete if one of them is.
    #[cfg(feature = "read")]
    pub(crate) fn incomplete_as<'m>(&mut self, mut parts: impl Iterator<Item = &'m Meta>) {
        if let Some(torn) = parts.find(|meta| meta.is_incomplete()) {
            (self.complete, self.ended_by_itself) = (torn.complete, torn.ended_by_itself);
        }
    }
}

/// Which positions are tokens: a list of 0 and 1, or such a list for each sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum AttentionMask {
    /// For a single sequence.
    One(Vec<u8>),
    /// For each sequence of a batch.
    Each(Vec<Vec<u8>>),
}

impl AttentionMask {
    /// Reads a mask of little-endian elements of `size` bytes, each 0 or `one`: a list, or a list for each sequence.
    #[cfg(feature = "read")]
    pub(crate) fn parse_bytes(shape: &[usize], bytes: &[u8], size: usize, one: u64) -> Option<AttentionMask> {
        let bit = |bytes: &[u8]| match bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)) {
            0 => Some(0),
            value => (value == one).then_some(1),
        };
        let mask = bytes.chunks(size).map(bit).collect::<Option<Vec<u8>>>()?;
        let count = shape.iter().try_fold(1usize, |count, extent| count.checked_mul(*extent))?;
        match shape {
            _ if mask.len() != count || mask.is_empty() => None,
            [_] | [1, _] => Some(AttentionMask::One(mask)),
            [_, length] => Some(AttentionMask::Each(mask.chunks(*length).map(<[u8]>::to_vec).collect())),
            _ => None,
        }
    }

    /// The mask of one sequence, counted from 0.
    pub fn sequence(&self, index: usize) -> Option<&[u8]> {
        match self {
            AttentionMask::One(mask) => Some(mask).filter(|_| index == 0),
            AttentionMask::Each(masks) => masks.get(index),
        }
        .map(Vec::as_slice)
    }
}

/// The side of the tokens on which padding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PaddingSide {
    /// Before the tokens.
    Left,
    /// After the tokens.
    Right,
}

/// The tokens of one sequence of a batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SequenceTokens {
    /// Token ids of its prefill, without padding.
    pub tokens: Vec<i64>,
    /// One token id for each decode step.
    pub decode_tokens: Option<Vec<i64>>,
}

#[cfg(feature = "read")]
impl Meta {
    /// Parses dump.json. `tokens` may have a list for each sequence of a batch; one such list means a single sequence.
    pub(crate) fn parse(json: &[u8]) -> Result<Meta, serde_json::Error> {
        #[derive(Deserialize)]
        struct BatchTokens {
            tokens: Vec<Vec<i64>>,
            decode_tokens: Option<Vec<Vec<i64>>>,
        }
        let error = match serde_json::from_slice(json) {
            Ok(meta) => return Ok(meta),
            Err(error) => error,
        };
        let Ok(BatchTokens { tokens, decode_tokens }) = serde_json::from_slice(json) else { return Err(error) };
        let mut rest: serde_json::Map<String, serde_json::Value> = serde_json::from_slice(json)?;
        rest.retain(|key, _| key != "tokens" && key != "decode_tokens");
        let mut meta: Meta = serde_json::from_value(rest.into())?;
        let decoded = |at: usize| decode_tokens.as_ref().and_then(|all| all.get(at).cloned());
        let sequence = |(at, tokens)| SequenceTokens { tokens, decode_tokens: decoded(at) };
        let mut fed: Vec<_> = tokens.into_iter().enumerate().map(sequence).collect();
        if fed.len() == 1 {
            let SequenceTokens { tokens, decode_tokens } = fed.remove(0);
            (meta.tokens, meta.decode_tokens) = (Some(tokens), decode_tokens);
        } else {
            meta.sequences = Some(fed);
        }
        Ok(meta)
    }

    /// A contradiction in the metadata, if there is one.
    pub(crate) fn contradiction(&self) -> Option<String> {
        // The positions of a single step are not known, but there are no more than in the run.
        let total = self.tokens.as_ref().map(|tokens| tokens.len() + self.decode_tokens.as_ref().map_or(0, Vec::len));
        let wrong = |rows: &Rows| {
            let Rows::List(list) = rows else { return None };
            let beyond = || list.iter().find(|row| total.is_some_and(|total| **row >= total));
            match rows.clone().in_order() {
                Err(reason) => Some(reason),
                Ok(_) => {
                    beyond().map(|row| format!("row {row} of {} tokens, counted from 0", total.unwrap_or_default()))
                }
            }
        };
        let of_taps = || {
            self.taps.iter().flatten().find_map(|tap| {
                let name = stored_name(&tap.tap, tap.step);
                tap.rows.as_ref().and_then(wrong).map(|reason| format!("'rows' of {}: {reason}", name.escape_debug()))
            })
        };
        let of_rows = self.rows.as_ref().and_then(wrong).map(|reason| format!("'rows': {reason}"));
        of_rows.or_else(of_taps).or_else(|| self.contradiction_of_graph())
    }

    /// An entry of the graph that reads a tap which no earlier entry produces, or produces one that another did.
    fn contradiction_of_graph(&self) -> Option<String> {
        let mut made = HashSet::new();
        for GraphNode { tap, reads, .. } in self.graph.iter().flatten() {
            if let Some(read) = reads.iter().find(|read| !made.contains(read.as_str())) {
                return Some(format!(
                    "'graph': {} reads '{}', which no entry before it makes (an input is an entry without 'reads')",
                    tap.escape_debug(),
                    read.escape_debug()
                ));
            }
            if !made.insert(tap.as_str()) {
                return Some(format!("'graph': {} is made twice", tap.escape_debug()));
            }
        }
        None
    }
}

/// The program that wrote a dump. A bare string is read as a name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Producer {
    /// The name only.
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

    /// The producer's name, if given.
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
    /// The opposite order.
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

/// Rows given by name.
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

    /// Parses a list as in `FIRSTDIFF_ROWS`: in any order, with repetitions.
    pub(crate) fn in_any_order(text: &str) -> Result<Rows, String> {
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

    /// The rows, if they are in ascending order, each position once, as a tensor holds them.
    ///
    /// # Errors
    /// When a position does not follow the one before it.
    pub fn in_order(self) -> Result<Rows, String> {
        let Rows::List(list) = &self else { return Ok(self) };
        match list.windows(2).find(|pair| pair[0] >= pair[1]) {
            Some(pair) => {
                Err(format!("row {} stands behind row {}: each position once, in ascending order", pair[1], pair[0]))
            }
            None => Ok(self),
        }
    }
}

impl std::str::FromStr for Rows {
    type Err = String;

    /// `all`, `last`, or positions separated by commas, in ascending order.
    fn from_str(text: &str) -> Result<Rows, String> {
        Rows::in_any_order(text)?.in_order()
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
    /// The file in the dump's folder, or the member or tensor of an archive; by default derived from tap and step.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// Extent of every axis.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shape: Option<Vec<usize>>,
    /// Element type.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dtype: Option<DType>,
    /// Token positions recorded, if fewer than all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<Rows>,
    /// Its axes, and which one is cut over the ranks, in the dump of one rank (see `AxisNotation`).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dims: Option<String>,
}

/// The name under which a tap of a step is stored, without an extension: `layers.0.q`, `layers.0.q.step3`.
pub fn stored_name(tap: &str, step: u32) -> String {
    if step == 0 { tap.to_owned() } else { format!("{tap}.step{step}") }
}

/// The longest file name of a tap, without extension and step.
const LONGEST: usize = 200;

/// The file name of a tap, without extension: [`escaped_name`]. `None` if the name is empty, or too long for a file.
pub(crate) fn file_name(tap: &str, step: u32) -> Option<String> {
    let name = escaped(tap);
    (1..=LONGEST).contains(&name.len()).then(|| stored_name(&name, step))
}

/// As [`stored_name`], with every byte except ASCII letters, digits, `_`, `-` and `.` written as `%` and two hexadecimal digits. A `.` at the start is
/// escaped too, and the last one of a name that itself ends like a step.
pub fn escaped_name(tap: &str, step: u32) -> String {
    stored_name(&escaped(tap), step)
}

fn escaped(tap: &str) -> String {
    let like_step = tap.rfind(".step").filter(|at| tap[at + 5..].bytes().all(|b| b.is_ascii_digit()));
    let mut name = String::new();
    for (at, byte) in tap.bytes().enumerate() {
        let plain = byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'.');
        match plain && !(byte == b'.' && (at == 0 || Some(at) == like_step)) {
            true => name.push(char::from(byte)),
            false => name += &format!("%{byte:02X}"),
        }
    }
    name
}

/// The tap's name from that of its file, without the step; the reverse of [`escaped_name`].
#[cfg(feature = "read")]
pub fn name_in_file(stem: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), stem.as_bytes());
    while let [first, more @ ..] = rest {
        let digits = more.get(..2).filter(|_| *first == b'%').and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = digits.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &more[2..] } else { more };
    }
    String::from_utf8(bytes).unwrap_or_else(|_| stem.to_owned())
}

/// The tap's name and step from a stored name; the reverse of [`stored_name`].
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
    #[cfg(feature = "read")]
    fn any_name_has_a_file_of_its_own() {
        for (name, due) in [
            ("layers.0.q", "layers.0.q"),
            ("Qcur-0 (view)", "Qcur-0%20%28view%29"),
            ("../etc/pass", "%2E.%2Fetc%2Fpass"),
            ("a\\b:c\0%41", "a%5Cb%3Ac%00%2541"),
            ("x.step3", "x%2Estep3"),
            ("schön", "sch%C3%B6n"),
        ] {
            assert_eq!(file_name(name, 0).as_deref(), Some(due));
            assert_eq!(name_in_file(due), name);
            assert_eq!(file_name(name, 2).unwrap(), format!("{due}.step2"));
        }
        assert_eq!((file_name("", 0), file_name(&"x".repeat(201), 0)), (None, None));
        assert_eq!(name_in_file("50%25 %zz%"), "50% %zz%");
    }

    #[test]
    fn the_shortest_dump_json_is_enough() {
        let meta: Meta = serde_json::from_str(r#"{"tokens": [1, 2], "rows": "last", "other": 3}"#).unwrap();
        assert_eq!(meta.tokens, Some(vec![1, 2]));
        assert_eq!(meta.rows, Some(Rows::Named(NamedRows::Last)));
        let meta: Meta = serde_json::from_str(r#"{"producer": "me", "taps": [{"tap": "h0", "rows": [3]}]}"#).unwrap();
        assert_eq!(meta.producer.name(), Some("me"));
        assert_eq!(meta.taps.unwrap()[0].rows, Some(Rows::List(vec![3])));
        let meta: Meta = serde_json::from_str(r#"{"decode_differs": {"step": 2, "nmse": 0.5}}"#).unwrap();
        assert_eq!(meta.decode_differs, Some(DecodeDiffers { step: 2, nmse: 0.5 }));
    }

    #[test]
    #[cfg(feature = "read")]
    fn tokens_of_a_batch() {
        let meta = Meta::parse(br#"{"tokens": [[1, 2], [3]], "decode_tokens": [[4], [5]], "rows": "last"}"#).unwrap();
        let fed = |tokens: &[i64], next| SequenceTokens { tokens: tokens.to_vec(), decode_tokens: Some(vec![next]) };
        assert_eq!((meta.sequences, meta.tokens), (Some(vec![fed(&[1, 2], 4), fed(&[3], 5)]), None));
        assert_eq!(meta.rows, Some(Rows::Named(NamedRows::Last)));
        assert_eq!(Meta::parse(br#"{"tokens": [[1, 2]]}"#).unwrap().tokens, Some(vec![1, 2]));
        assert!(Meta::parse(br#"{"tokens": [[1], 2]}"#).is_err());
    }

    #[test]
    fn rows_name_each_position_once_in_order() {
        assert_eq!("0,3,7".parse(), Ok(Rows::List(vec![0, 3, 7])));
        for bad in ["3,3,3", "7,3", "x", ""] {
            assert!(bad.parse::<Rows>().is_err(), "{bad}");
        }
    }
}
