//! Maps the tensor names of engines to taps, by the tables of known producers and the user's firstdiff.toml.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::file::{FileError, TABLE_LIMIT, read_regular};
use crate::meta::split_stored_name;
use crate::tap::Tap;

/// A table of names: tensor names in files, and the taps they mean.
///
/// ```
/// use firstdiff_trace::Names;
/// let names = Names::parse(r#"
///     "h1_attn_l{N}" = "layers.{N}.h_attn"
///     "layer{N+1}_out_t{S}" = "layers.{N}.h"      # layers counted from 1, one file a decode step
///     "last_q" = "layers.0.q.step2"               # a step of its own
/// "#, "firstdiff.toml")?;
/// let (tap, step) = names.find("h1_attn_l7").unwrap();
/// assert_eq!((tap.to_string().as_str(), step), ("layers.7.h_attn", 0));
/// let (tap, step) = names.find("layer1_out_t3").unwrap();
/// assert_eq!((tap.to_string().as_str(), step), ("layers.0.h", 3));
/// # Ok::<(), firstdiff_trace::NamesError>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Names {
    origin: PathBuf,
    rules: Vec<Rule>,
    /// How taps held by several ranks are joined: tap pattern, and notation (`T D[tp]`).
    dims: BTreeMap<String, String>,
}

/// Why a table of names cannot be used.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum NamesError {
    /// Not TOML.
    #[error("{}: {reason}", path.display())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What is wrong, and where.
        reason: String,
    },
    /// A rule with an invalid tap, or a pattern that cannot be matched.
    #[error("{}: \"{name}\": {reason}", path.display())]
    Rule {
        /// The file.
        path: PathBuf,
        /// The name.
        name: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The file cannot be read.
    #[error(transparent)]
    File(FileError),
}

#[derive(Clone, Debug)]
struct Rule {
    pattern: Vec<PatternPart>,
    tap: String,
    /// The step in the ending of the tap.
    step: u32,
}

/// A part of a pattern.
#[derive(Clone, Debug, PartialEq)]
enum PatternPart {
    Text(String),
    /// The layer, and what is subtracted from the number in the name.
    Layer(u32),
    /// The decode step.
    Step,
}

impl Names {
    /// Parses a table: `"name" = "tap"`, with `{N}` for the layer, `{N+1}` where layers are counted from 1, and `{S}` for the decode step. A table `[dims]`
    /// says how the taps of several ranks are joined.
    ///
    /// # Errors
    /// When it is not TOML, or a tap is invalid.
    pub fn parse(text: &str, origin: impl Into<PathBuf>) -> Result<Names, NamesError> {
        let origin = origin.into();
        let bad = |reason: String| NamesError::Toml { path: origin.clone(), reason };
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| bad(e.to_string().replace('\n', " ")))?;
        let (mut rules, mut dims) = (Vec::new(), BTreeMap::new());
        for (name, value) in &table {
            match value {
                toml::Value::String(tap) => rules.push(rule(&origin, name, tap)?),
                toml::Value::Table(inner) if name == "dims" => {
                    for (tap, notation) in inner {
                        let notation = notation.as_str().ok_or_else(|| bad(format!("[dims] \"{tap}\": not text")))?;
                        dims.insert(tap.clone(), notation.to_owned());
                    }
                }
                toml::Value::Table(inner) if name == "names" => {
                    for (name, tap) in inner {
                        let tap = tap.as_str().ok_or_else(|| bad(format!("\"{name}\": not the name of a tap")))?;
                        rules.push(rule(&origin, name, tap)?);
                    }
                }
                _ => return Err(bad(format!("\"{name}\": neither the name of a tap, nor [names] or [dims]"))),
            }
        }
        Ok(Names { origin, rules, dims })
    }

    /// Reads a firstdiff.toml from disk.
    ///
    /// # Errors
    /// When it cannot be read, or as [`Names::parse`].
    pub fn open(path: &Path) -> Result<Names, NamesError> {
        let bytes = read_regular(path, TABLE_LIMIT).map_err(NamesError::File)?;
        let text = String::from_utf8(bytes);
        let text = text.map_err(|_| NamesError::Toml { path: path.into(), reason: "not UTF-8".into() })?;
        Names::parse(&text, path)
    }

    /// The file of the table.
    pub fn origin(&self) -> &Path {
        &self.origin
    }

    /// How the taps of several ranks are joined, by tap pattern.
    pub fn dims(&self) -> &BTreeMap<String, String> {
        &self.dims
    }

    /// The taps that the table has names for, with `{N}` for the layer.
    pub fn taps(&self) -> impl Iterator<Item = &str> {
        self.rules.iter().map(|rule| rule.tap.as_str())
    }

    /// The tap and decode step that `name` means; the tap may be outside the vocabulary.
    pub fn find(&self, name: &str) -> Option<(Tap, u32)> {
        self.rules.iter().find_map(|rule| rule.find(name, false))
    }

    /// The same with all separators (`.`, `/`, `-`, `_`) equal; also returns the index of the rule.
    fn find_ignoring_separators(&self, name: &str) -> Option<(Tap, u32, usize)> {
        let by = |loosely| self.rules.iter().enumerate().find_map(|(i, rule)| Some((rule.find(name, loosely)?, i)));
        by(false).or_else(|| by(true)).map(|((tap, step), i)| (tap, step, i))
    }
}

fn rule(origin: &Path, name: &str, tap: &str) -> Result<Rule, NamesError> {
    let wrong = |reason: &str| NamesError::Rule { path: origin.into(), name: name.into(), reason: reason.into() };
    let pattern = pieces(name).map_err(wrong)?;
    let (tap, step) = split_stored_name(tap);
    let parsed = Tap::named(&tap.replace("{N}", "0"));
    let layers = pattern.iter().filter(|p| matches!(p, PatternPart::Layer(_))).count();
    match (tap.contains("{N}"), layers) {
        _ if tap.is_empty() => Err(wrong("'' is not a tap name (h0, layers.N.q, logits ...)")),
        (true, 0) => Err(wrong("its tap has {N}, and the name has none")),
        (false, n) if n > 0 && parsed.layer.is_none() => Err(wrong("the name has {N}, and its tap is of no layer")),
        (_, n) if n > 1 => Err(wrong("{N} stands there twice")),
        _ => Ok(Rule { pattern, tap: tap.to_owned(), step }),
    }
}

fn pieces(name: &str) -> Result<Vec<PatternPart>, &'static str> {
    let mut pieces = Vec::new();
    let mut rest = name;
    while let Some((before, after)) = rest.split_once('{') {
        let (inside, after) = after.split_once('}').ok_or("a { without }")?;
        if !before.is_empty() {
            pieces.push(PatternPart::Text(before.into()));
        }
        pieces.push(match inside {
            "N" => PatternPart::Layer(0),
            "S" => PatternPart::Step,
            _ => PatternPart::Layer(
                inside.strip_prefix("N+").and_then(|n| n.parse().ok()).ok_or("{N}, {N+1} and {S} are known")?,
            ),
        });
        rest = after;
    }
    if !rest.is_empty() {
        pieces.push(PatternPart::Text(rest.into()));
    }
    let numbers = |pair: &[PatternPart]| pair.iter().all(|p| !matches!(p, PatternPart::Text(_)));
    if pieces.windows(2).any(numbers) {
        return Err("two numbers with nothing between them");
    }
    Ok(pieces)
}

impl Rule {
    fn find(&self, name: &str, loosely: bool) -> Option<(Tap, u32)> {
        let (name, stored_step) = split_stored_name(name);
        let (mut rest, mut layer, mut step) = (name, None, stored_step);
        for piece in &self.pattern {
            match piece {
                PatternPart::Text(text) => rest = strip(rest, text, loosely)?,
                number => {
                    let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
                    let value: u32 = rest[..digits].parse().ok()?;
                    rest = &rest[digits..];
                    match number {
                        PatternPart::Layer(base) => layer = Some(value.checked_sub(*base)?),
                        _ => step = value,
                    }
                }
            }
        }
        let tap = self.tap.replace("{N}", &layer.map_or(String::new(), |n| n.to_string()));
        rest.is_empty().then(|| Some((Tap::named(&tap), step.checked_add(self.step)?))).flatten()
    }
}

/// Removes `text` from the front of `name`.
fn strip<'a>(name: &'a str, text: &str, loosely: bool) -> Option<&'a str> {
    if !loosely {
        return name.strip_prefix(text);
    }
    let one = |b: u8| if matches!(b, b'.' | b'/' | b'-' | b'_' | b' ') { b'_' } else { b.to_ascii_lowercase() };
    let (head, tail) = name.split_at_checked(text.len())?;
    head.bytes().map(one).eq(text.bytes().map(one)).then_some(tail)
}

/// The rank of `hidden_states.N`: after every table.
pub(crate) const STREAMS_RANK: usize = 1_000_000;

/// The producer of the vocabulary's own names.
pub(crate) const OWN: &str = "firstdiff";

/// The built-in tables, and the producers that use these names.
const BUILT_IN: [(&str, &str); 9] = [
    (OWN, include_str!("own.toml")),
    ("Hugging Face", include_str!("huggingface.toml")),
    ("llama.cpp", include_str!("llama_cpp.toml")),
    ("GGUF", include_str!("gguf.toml")),
    ("TransformerLens", include_str!("transformer_lens.toml")),
    ("celer_infer", include_str!("celer_infer.toml")),
    ("RusTorch", include_str!("rustorch.toml")),
    ("llm.c", include_str!("llm_c.toml")),
    ("candle", include_str!("candle.toml")),
];

/// A match in a built-in table: tap, step, producer, and rank (lower is better).
pub(crate) struct TableMatch {
    pub(crate) tap: Tap,
    pub(crate) step: u32,
    pub(crate) whose: &'static str,
    pub(crate) rank: usize,
}

/// The tap that a built-in table gives for `name`. Endings that mark the side (`_cpp`, `_torch`) are ignored.
pub(crate) fn built_in(name: &str) -> Option<TableMatch> {
    static TABLES: std::sync::LazyLock<Vec<(&'static str, Names)>> = std::sync::LazyLock::new(|| {
        BUILT_IN.iter().map(|(whose, text)| (*whose, Names::parse(text, *whose).unwrap_or_default())).collect()
    });
    const SIDES: [&str; 12] =
        ["_cpp", "_torch", "_pytorch", "_rust", "_ref", "_hf", "_py", "_c", "_cuda", "_candle", "_ours", "_output"];
    let bare = SIDES.iter().find_map(|side| name.strip_suffix(side));
    let found = |name: &str| {
        TABLES.iter().enumerate().find_map(|(table, (whose, names))| {
            let (tap, step, rule) = names.find_ignoring_separators(name)?;
            Some(TableMatch { tap, step, whose, rank: table * 1000 + rule })
        })
    };
    found(name).or_else(|| bare.and_then(found))
}

/// The layer and the rest of `layer 3 q`, `Layer3.q`, `layer_3_q`: such names may count layers from 0 or 1.
pub(crate) fn split_layer(name: &str) -> Option<(u32, &str)> {
    const BETWEEN: [char; 6] = [' ', '.', '_', '-', '/', ':'];
    let rest = name
        .get(..5)
        .filter(|word| word.eq_ignore_ascii_case("layer"))
        .map(|_| name[5..].trim_start_matches(BETWEEN))?;
    let (digits, inner) = rest.split_at(rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len()));
    let bare = inner.trim_start_matches(BETWEEN);
    (bare.len() < inner.len()).then(|| Some((digits.parse().ok()?, bare))).flatten()
}

/// The N of `hidden_states.N` as transformers returns them: 0 is h0, and N the output of layer N-1, but the last one has passed the final norm. Names that
/// an engine's author invented, such as `hidden_states_3`, may count otherwise.
pub(crate) fn hidden_state_number(name: &str) -> Option<u32> {
    let (word, number) = name.rsplit_once(['.', '/', '['])?;
    let number = number.strip_suffix(']').unwrap_or(number);
    let plain = !number.is_empty() && number.len() < 8 && number.bytes().all(|b| b.is_ascii_digit());
    let word = word.to_ascii_lowercase();
    let named = ["hidden_states", "all_hidden_states"].contains(&word.as_str());
    number.parse().ok().filter(|_| plain && named)
}

/// Whether two nodes of llama.cpp's graph have the same name because one is computed from the other: a product, and its sum with a bias.
pub(crate) fn is_computed_from(one: &str, other: &str) -> bool {
    let node = |name: &str| name.split_once(' ').map(|(node, _)| node.to_owned());
    node(one).is_some() && node(one) == node(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_table_can_be_read() {
        for (whose, text) in BUILT_IN {
            assert!(
                Names::parse(text, whose).is_ok_and(|names| !names.rules.is_empty()),
                "{whose}: {:?}",
                Names::parse(text, whose)
            );
        }
    }

    #[test]
    fn names_of_many_engines() {
        for (name, tap) in [
            ("model.layers.3.self_attn.q_proj", "layers.3.q"),
            ("model_layers_3_self_attn_q_proj", "layers.3.q"),
            ("model.layers.3", "layers.3.h"),
            ("model.layers.3:in", "layers.2.h"),
            ("Qcur-2 ROPE", "layers.2.q_rope"),
            ("l_out-11", "layers.11.h"),
            ("result_output MUL_MAT", "logits"),
            ("blocks.4.attn.hook_rot_q", "layers.4.q_rope"),
            ("h1_attn_l0_cpp", "layers.0.h_attn"),
            ("h0_torch", "h0"),
            ("rustorch_layer_1", "layers.1.h"),
            ("layers_5_q_rope", "layers.5.q_rope"),
            ("blk.7.attn_q", "layers.7.q"),
            ("blk.7.ffn_down", "layers.7.ffn_out"),
            ("last_hidden_state", "final_norm"),
        ] {
            assert_eq!(built_in(name).map(|k| k.tap.to_string()).as_deref(), Some(tap), "{name}");
        }
        let none = "weight q rustorch_weights blk.0.attn_q.weight hidden_states.3 tok_embedding_cpp model.layers.x layers.0.q_rope.extra";
        for name in none.split(' ') {
            assert!(built_in(name).is_none(), "{name}");
        }
    }

    #[test]
    fn layers_in_words() {
        assert_eq!(split_layer("layer 3 q_rope"), Some((3, "q_rope")));
        assert_eq!(split_layer("Layer12.h"), Some((12, "h")));
        assert!(
            ["layers.0.q", "layer q", "layer 3", "my layer 3 q", "l\u{e4}yer 0 q"]
                .iter()
                .all(|name| split_layer(name).is_none())
        );
    }

    #[test]
    fn bad_tables_say_why() {
        let error = |text: &str| Names::parse(text, "t").unwrap_err().to_string();
        assert!(error("\"a\" = \"\"").contains("not a tap"));
        assert!(error("\"a{N}\" = \"other\"").contains("of no layer"));
        assert!(error("\"a\" = \"layers.{N}.h\"").contains("{N}"));
        assert!(error("\"a{N}{S}\" = \"layers.{N}.h\"").contains("nothing between"));
        assert!(error("\"a{Q}\" = \"h0\"").contains("known"));
        assert!(error("= 3").contains("t:"));
        assert!(error("a = 3").contains("neither"));
    }
}
