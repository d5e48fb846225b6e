//! Which tensors does a JSON file hold? Arrays, named arrays, base64 tensors, a manifest of binaries, transformers' debug trees.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Map, Value};

use super::{Item, Part, Read, bracket, raw, read_text};
use crate::dump::{Dump, DumpError, not_a_dump};
use crate::element::DType;
use crate::meta::{NamedRows, Rows};
use crate::tensor::{Bytes, Layout, Tensor, byte_len};

/// Reads a .json.
///
/// # Errors
/// When it is no JSON, or a file that it names is missing or damaged.
pub(super) fn read(path: &Path, name: &str) -> Result<Read, DumpError> {
    let value = parse(&read_text(path)?).map_err(|e| not_a_dump(path, &format!("not JSON: {e}")))?;
    if let Some(list) = value.get("checkpoints").and_then(Value::as_array) {
        return Ok(Read { tokens: token_ids(&value), ..manifest(path, list)? });
    }
    let mut read = Read { tokens: token_ids(&value), ..Read::default() };
    read.notes.extend(of_nulls(nulls(&value)));
    match value.get("module_path").is_some() && value.get("children").is_some() {
        true => debug_tree(path, &value, &mut read)?,
        false => collect(&value, name, true, &mut read.items),
    }
    Ok(read)
}

/// The arrays in `text`, where that is JSON under another name.
pub(super) fn within(text: &str, name: &str) -> Option<Read> {
    let value = parse(text).ok()?;
    let mut read = Read { tokens: token_ids(&value), ..Read::default() };
    collect(&value, name, true, &mut read.items);
    (!read.items.is_empty()).then_some(read)
}

/// JSON as Python writes it: with NaN and Infinity, which the standard does not know.
pub(super) fn parse(text: &str) -> Result<Value, serde_json::Error> {
    serde_json::from_str(text).or_else(|error| {
        let quoted = quote_non_finite(text);
        serde_json::from_str(&quoted).map_err(|_| error)
    })
}

/// NaN, Infinity and -Infinity outside of strings, put in quotes.
fn quote_non_finite(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut inside = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let word =
            ["-Infinity", "Infinity", "NaN", "-inf", "inf", "nan"].into_iter().find(|w| !inside && rest.starts_with(w));
        if let Some(word) = word {
            out.push_str(&format!("\"{word}\""));
            rest = &rest[word.len()..];
            continue;
        }
        let length =
            if inside && c == '\\' { 1 + rest[1..].chars().next().map_or(0, char::len_utf8) } else { c.len_utf8() };
        inside ^= c == '"';
        out.push_str(&rest[..length]);
        rest = &rest[length..];
    }
    out
}

/// A number, or the words that stand for one that JSON cannot write.
pub(super) fn number(value: &Value) -> Option<f64> {
    match value {
        Value::Number(n) => n.as_f64(),
        Value::String(word) if word.len() <= 9 => super::text::number(word).filter(|x| !x.is_finite()),
        Value::Null => Some(f64::NAN),
        _ => None,
    }
}

/// How many elements of arrays are null, which stands for whatever JSON cannot write.
pub(super) fn nulls(value: &Value) -> usize {
    match value {
        Value::Array(list) => list.iter().map(|v| if v.is_null() { 1 } else { nulls(v) }).sum(),
        Value::Object(fields) => fields.values().map(nulls).sum(),
        _ => 0,
    }
}

/// What is to be said of them.
pub(super) fn of_nulls(count: usize) -> Option<String> {
    (count > 0)
        .then(|| format!("{count} values are null, taken for -inf among numbers: a NaN or inf may have stood there"))
}

/// Nested arrays of numbers, all of one shape. A null among numbers is what most masks are, and no number in any case.
pub(super) fn array(value: &Value) -> Option<(Vec<usize>, Vec<f64>)> {
    let (shape, mut values) = shaped(value)?;
    if values.iter().any(|x| x.is_some_and(f64::is_finite)) {
        values.iter_mut().for_each(|x| *x = x.or(Some(f64::NEG_INFINITY)));
    }
    Some((shape, values.into_iter().map(|x| x.unwrap_or(f64::NAN)).collect()))
}

/// The same, without a number for a null.
fn shaped(value: &Value) -> Option<(Vec<usize>, Vec<Option<f64>>)> {
    fn walk(value: &Value, depth: usize, shape: &mut Vec<usize>, out: &mut Vec<Option<f64>>) -> Option<()> {
        let Some(list) = value.as_array() else {
            out.push(if value.is_null() { None } else { Some(number(value)?) });
            return (depth == shape.len()).then_some(());
        };
        match shape.get(depth) {
            Some(&extent) if extent != list.len() => return None,
            Some(_) => {}
            None if out.is_empty() => shape.push(list.len()),
            None => return None,
        }
        list.iter().try_for_each(|child| walk(child, depth + 1, shape, out))
    }
    let (mut shape, mut out) = (Vec::new(), Vec::new());
    value.as_array().filter(|list| !list.is_empty())?;
    walk(value, 0, &mut shape, &mut out)?;
    Some((shape, out))
}

/// Every tensor in `value`; those of arrays and objects by their path. A list of a few plain numbers in an object is a setting.
fn collect(value: &Value, name: &str, top: bool, items: &mut Vec<Item>) {
    if let Some((shape, values)) = array(value) {
        items.extend(Item::printed(name, shape, values));
        return;
    }
    let below = |key: &str| if top { key.to_owned() } else { format!("{name}.{key}") };
    match value {
        Value::Object(fields) => match tensor(fields, name) {
            Some(item) => items.push(item),
            None => {
                let others =
                    fields.iter().filter(|(key, _)| !matches!(key.as_str(), "tokens" | "input_ids" | "attention_mask"));
                others.for_each(|(key, child)| collect(child, &below(key), false, items));
            }
        },
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, child)| collect(child, &below(&i.to_string()), false, items));
        }
        _ => {}
    }
}

/// `{name, shape, dtype, encoding: base64, data}`, or `{shape, data: [..]}`.
fn tensor(fields: &Map<String, Value>, path: &str) -> Option<Item> {
    let name = fields.get("name").and_then(Value::as_str).unwrap_or(path);
    let data = ["data", "values", "value"].iter().find_map(|key| fields.get(*key))?;
    let shape: Option<Vec<usize>> = fields.get("shape").and_then(extents);
    if let Some((own, values)) = array(data) {
        let fits = shape.filter(|s| byte_len(s, DType::F64) == byte_len(&own, DType::F64));
        return Item::printed(name, fits.unwrap_or(own), values);
    }
    let dtype = dtype(fields.get("dtype")?.as_str()?)?;
    let bytes = BASE64.decode(data.as_str()?).ok()?;
    let shape = shape.unwrap_or_else(|| vec![bytes.len() / dtype.size()]);
    if byte_len(&shape, dtype) != Some(bytes.len()) {
        return None;
    }
    let range = 0..bytes.len();
    let layout = Layout { dtype, fortran: false, big_endian: false };
    Some(super::plain(name, Tensor::new(shape, layout, Bytes::Owned(bytes.into(), range))))
}

pub(super) fn extents(value: &Value) -> Option<Vec<usize>> {
    value.as_array()?.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect()
}

/// float32, torch.float32, f32, F32, fp32 ...
pub(super) fn dtype(name: &str) -> Option<DType> {
    match name.trim_start_matches("torch.").to_ascii_lowercase().as_str() {
        "f64" | "fp64" | "float64" | "double" => Some(DType::F64),
        "f32" | "fp32" | "float32" | "float" => Some(DType::F32),
        "f16" | "fp16" | "float16" | "half" => Some(DType::F16),
        "bf16" | "bfloat16" => Some(DType::BF16),
        _ => None,
    }
}

/// `inputs.input_ids` of a MiniMind file, or `tokens`: one list a sequence.
fn token_ids(value: &Value) -> Option<Vec<Vec<i64>>> {
    let ids = value.get("inputs").and_then(|inputs| inputs.get("input_ids")).or_else(|| value.get("input_ids"));
    let ids = ids.or_else(|| value.get("tokens"))?;
    let Some(fields) = ids.as_object() else {
        let (shape, values) = array(ids)?;
        let width = *shape.last()?;
        return Some(values.chunks(width.max(1)).map(|row| row.iter().map(|&x| x as i64).collect()).collect());
    };
    let bytes = BASE64.decode(fields.get("data")?.as_str()?).ok()?;
    let width = fields.get("shape").and_then(extents)?.last().copied().filter(|&w| w > 0)?;
    let ids: Vec<i64> = match fields.get("dtype")?.as_str()? {
        "int32" => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
        "int64" => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => return None,
    };
    Some(ids.chunks(width).map(<[i64]>::to_vec).collect())
}

/// A manifest of binaries: `checkpoints[]{name, token_idx, count, dtype, file}`.
fn manifest(path: &Path, list: &[Value]) -> Result<Read, DumpError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut read = Read::default();
    for point in list {
        let text = |key: &str| point.get(key).and_then(Value::as_str);
        let (Some(name), Some(file)) = (text("name"), text("file")) else {
            return Err(not_a_dump(path, "a checkpoint without name or file"));
        };
        let plain = Path::new(file).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !plain {
            return Err(not_a_dump(path, &format!("{name}: file '{}' lies outside the folder", file.escape_debug())));
        }
        let dtype = text("dtype").map_or(Some(DType::F32), dtype);
        let Some(dtype) = dtype else { continue };
        let mut items = raw::open(&folder.join(file), Some(dtype))?.items;
        for mut item in items.drain(..) {
            let held = item.tensor.shape().iter().product::<usize>();
            if let Some(count) = point.get("count").and_then(Value::as_u64).filter(|&count| count != held as u64) {
                let reason = format!("{name}: {count} values by the manifest, {held} in {}", file.escape_debug());
                return Err(not_a_dump(path, &reason));
            }
            item.name = name.to_owned();
            item.step = point.get("token_idx").and_then(Value::as_u64).and_then(|t| u32::try_from(t).ok()).unwrap_or(0);
            read.items.push(item);
        }
        read.files.push(file.to_owned());
    }
    one_position(&mut read.items);
    Ok(read)
}

/// Items that are all of one token are rows of a prefill; else each token is a step of its own.
pub(super) fn one_position(items: &mut [Item]) {
    let first = items.first().map_or(0, |item| item.step);
    if first > 0 && items.iter().all(|item| item.step == first) {
        for item in items {
            (item.step, item.rows) = (0, Some(Rows::List(vec![first as usize])));
        }
    }
}

/// What transformers' `model_addition_debugger_context` writes: a tree of modules with their inputs and outputs, as repr or as .safetensors.
fn debug_tree(path: &Path, tree: &Value, read: &mut Read) -> Result<(), DumpError> {
    let mut seen = BTreeMap::new();
    let mut stack = vec![tree];
    let mut found = Vec::new();
    while let Some(node) = stack.pop() {
        let module = node.get("module_path").and_then(Value::as_str).unwrap_or_default();
        let module = module.split_once('.').map_or(module, |(_, inside)| inside);
        let inputs = node.get("inputs").map(|i| (format!("{module}:in"), first_tensor(i)));
        let outputs = node.get("outputs").map(|o| (format!("{module}:out"), first_tensor(o)));
        found.extend([inputs, outputs].into_iter().flatten().filter_map(|(name, value)| Some((name, value?))));
        stack.extend(node.get("children").and_then(Value::as_array).into_iter().flatten().rev());
    }
    for (name, fields) in found {
        // A module that runs again belongs to the next forward pass.
        let step = seen.entry(name.clone()).and_modify(|n| *n += 1).or_insert(0u32);
        if let Some(item) = of_tree(path, &name, fields)? {
            read.items.push(item.stepped(*step));
        }
    }
    Ok(())
}

/// The first tensor in what a module was given or gave: the hidden states, by every module's custom.
fn first_tensor(value: &Value) -> Option<&Map<String, Value>> {
    match value {
        Value::Object(fields) if fields.contains_key("dtype") && fields.contains_key("shape") => Some(fields),
        Value::Object(fields) => {
            let hidden = fields.get("kwargs").and_then(|k| k.get("hidden_states"));
            let args = fields.get("args").and_then(first_tensor);
            args.or_else(|| hidden.and_then(first_tensor)).or_else(|| fields.values().find_map(first_tensor))
        }
        Value::Array(list) => list.first().and_then(first_tensor),
        _ => None,
    }
}

fn of_tree(path: &Path, name: &str, fields: &Map<String, Value>) -> Result<Option<Item>, DumpError> {
    let text = |key: &str| fields.get(key).and_then(Value::as_str);
    let Some(value) = fields.get("value") else { return Ok(None) };
    if text("dtype").and_then(dtype).is_none() {
        return Ok(None);
    }
    if let Some(file) = value.as_str().filter(|f| f.ends_with(".safetensors")) {
        let plain = Path::new(file).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !plain {
            return Err(not_a_dump(path, &format!("{name}: file '{}' lies outside the folder", file.escape_debug())));
        }
        let stored = Dump::open(path.parent().unwrap_or(Path::new(".")).join(file))?;
        return Ok(Some(super::plain(name, stored.read_unnamed("data")?)));
    }
    let shape: Option<Vec<usize>> = text("shape").map(|s| {
        let digits = |c: char| !c.is_ascii_digit();
        s.split(digits).filter_map(|n| n.parse().ok()).collect()
    });
    let lines: Vec<&str> = value.as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let repr = lines.join("\n");
    let inside = repr.trim().strip_prefix("tensor(").unwrap_or(&repr);
    let end = inside.rfind(']').map_or(inside.len(), |at| at + 1);
    let Some((shape, found)) = shape.and_then(|s| Some((s.clone(), bracket::elements(&inside[..end], &s)?))) else {
        return Ok(None);
    };
    let (elements, values): (Vec<usize>, Vec<f64>) = found.into_iter().unzip();
    Ok(match elements.len() == shape.iter().product::<usize>() {
        true => Item::printed(name, shape, values),
        false => Item::part(name, Part { elements, shape: Some(shape), sum: None }, values),
    })
}

/// The last row of a longer prompt.
pub(super) fn last_row() -> Option<Rows> {
    Some(Rows::Named(NamedRows::Last))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_null_among_numbers_is_no_number() {
        let (_, values) = array(&parse("[[0.5, null], [-1.5, 2]]").unwrap()).unwrap();
        assert_eq!(values, [0.5, f64::NEG_INFINITY, -1.5, 2.0]);
        let (_, values) = array(&parse("[null, null]").unwrap()).unwrap();
        assert!(values.iter().all(|x| x.is_nan()));
        assert_eq!(nulls(&parse(r#"{"a": [1, null], "b": null, "c": [[null]]}"#).unwrap()), 2);
    }

    #[test]
    fn arrays_and_what_python_writes_for_nan() {
        let value = parse(r#"{"a": [[1, NaN], [-Infinity, 2.5]], "s": "NaN is a word", "n": 3}"#).unwrap();
        let mut items = Vec::new();
        collect(&value, "x", true, &mut items);
        assert_eq!(items.len(), 1);
        let values = items[0].tensor.values().to_f64();
        assert!(items[0].name == "a" && values[1].is_nan() && values[2] == f64::NEG_INFINITY);
        assert_eq!(array(&parse("[[1,2],[3]]").unwrap()), None);
        assert_eq!(array(&parse("[1,[2]]").unwrap()), None);
    }

    #[test]
    fn a_tensor_in_base64() {
        let text =
            r#"{"w": {"name": "h0", "shape": [2], "dtype": "float32", "encoding": "base64", "data": "AACAPwAAAEA="}}"#;
        let mut items = Vec::new();
        collect(&parse(text).unwrap(), "x", true, &mut items);
        assert_eq!(items[0].name, "h0");
        assert_eq!(items[0].tensor.values().to_f64(), [1.0, 2.0]);
    }
}
