//! Reads tensors from JSON files: arrays, named arrays, base64 tensors, manifests of binaries, transformers' debug trees.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use super::tree::{self, Fields, Json, is_null};
use super::{Imported, Item, KnownElements, bracket, path_below, raw, read_text};
use crate::base64::decode_base64;
use crate::dump::{Dump, DumpError, not_a_dump};
use crate::element::{DType, byte_len, element_count};
use crate::meta::{NamedRows, Rows};
use crate::tensor::{Bytes, ElementLayout, Tensor};

/// Reads a .json.
///
/// # Errors
/// When it is not JSON, or a file that it names is missing or damaged.
pub(super) fn read(path: &Path, name: &str) -> Result<Imported, DumpError> {
    let value = parse(&read_text(path)?).map_err(|e| not_a_dump(path, &format!("not JSON: {e}")))?;
    if let Some(list) = value.get("checkpoints").and_then(Json::as_list) {
        return Ok(Imported { tokens: token_ids(&value), ..manifest(path, list)? });
    }
    let mut read = Imported { tokens: token_ids(&value), ..Imported::default() };
    read.notes.extend(null_note(nulls(&value)));
    match value.get("module_path").is_some() && value.get("children").is_some() {
        true => debug_tree(path, &value, &mut read)?,
        false => collect(&value, name, true, &mut read.items),
    }
    Ok(read)
}

/// The arrays in `text`, if it is JSON in a file of another ending.
pub(super) fn parse_embedded(text: &str, name: &str) -> Option<Imported> {
    let value = parse(text).ok()?;
    let mut read = Imported { tokens: token_ids(&value), ..Imported::default() };
    collect(&value, name, true, &mut read.items);
    (!read.items.is_empty()).then_some(read)
}

/// Parses JSON as Python writes it, with NaN and Infinity, which are not in the standard.
pub(super) fn parse(text: &str) -> Result<Json, String> {
    if !tree::fits(text, text.len()) {
        return Err("far more lists and objects than numbers in them".into());
    }
    serde_json::from_str(text).or_else(|error| {
        let quoted = quote_non_finite(text);
        serde_json::from_str(&quoted).map_err(|_| error.to_string())
    })
}

/// Puts NaN, Infinity and -Infinity outside of strings in quotes.
fn quote_non_finite(text: &str) -> String {
    const WORDS: [&str; 6] = ["-Infinity", "Infinity", "NaN", "-inf", "inf", "nan"];
    let (mut out, mut inside) = (String::with_capacity(text.len()), false);
    let (mut at, mut copied) = (0, 0);
    while let Some(byte) = text.as_bytes().get(at) {
        match byte {
            b'\\' if inside => at += 1,
            b'"' => inside = !inside,
            b'-' | b'I' | b'N' | b'i' | b'n' if !inside => {
                if let Some(word) = WORDS.into_iter().find(|word| text[at..].starts_with(word)) {
                    out.extend([&text[copied..at], "\"", word, "\""]);
                    at += word.len();
                    copied = at;
                    continue;
                }
            }
            _ => {}
        }
        at += 1;
    }
    out.push_str(&text[copied..]);
    out
}

/// Counts array elements that are null, which writers use for values that JSON cannot express.
pub(super) fn nulls(value: &Json) -> usize {
    match value {
        Json::Numbers(list) => list.iter().filter(|x| is_null(**x)).count(),
        Json::List(list) => list.iter().map(|v| if *v == Json::Null { 1 } else { nulls(v) }).sum(),
        Json::Object(fields) => fields.values().map(nulls).sum(),
        _ => 0,
    }
}

/// The note about these nulls.
pub(super) fn null_note(count: usize) -> Option<String> {
    (count > 0)
        .then(|| format!("{count} values are null, taken for -inf among numbers: a NaN or inf may have stood there"))
}

/// Reads nested arrays of numbers with a regular shape. Arrays with nulls are refused: most are masks, and null is no number.
pub(super) fn array(value: &Json) -> Option<(Vec<usize>, Vec<f64>)> {
    let (shape, mut values) = shaped(value)?;
    let null = if values.iter().any(|x| x.is_finite()) { f64::NEG_INFINITY } else { f64::NAN };
    values.iter_mut().filter(|x| is_null(**x)).for_each(|x| *x = null);
    Some((shape, values))
}

/// The same with nulls kept.
fn shaped(value: &Json) -> Option<(Vec<usize>, Vec<f64>)> {
    fn walk(value: &Json, depth: usize, shape: &mut Vec<usize>, out: &mut Vec<f64>) -> Option<()> {
        let length = match value {
            Json::Numbers(list) => list.len(),
            Json::List(list) => list.len(),
            _ => return None,
        };
        match shape.get(depth) {
            Some(&extent) if extent != length => return None,
            Some(_) => {}
            None if out.is_empty() => shape.push(length),
            None => return None,
        }
        match value {
            Json::Numbers(list) => {
                out.extend(list);
                (list.is_empty() || depth + 1 == shape.len()).then_some(())
            }
            _ => value.as_list()?.iter().try_for_each(|child| walk(child, depth + 1, shape, out)),
        }
    }
    let (mut shape, mut out) = (Vec::new(), Vec::new());
    if matches!(value, Json::Numbers(list) if list.is_empty()) {
        return None;
    }
    walk(value, 0, &mut shape, &mut out)?;
    Some((shape, out))
}

/// Collects every tensor in `value`; inside arrays and objects it is named by its path. A short list of plain numbers in an object is a setting.
fn collect(value: &Json, name: &str, top: bool, items: &mut Vec<Item>) {
    if let Some((shape, values)) = array(value) {
        items.extend(Item::printed(name, shape, values));
        return;
    }
    let below = |key: &str| path_below(if top { "" } else { name }, key);
    match value {
        Json::Object(fields) => match tensor(fields, name) {
            Some(item) => items.push(item),
            None => {
                let others =
                    fields.iter().filter(|(key, _)| !matches!(key.as_str(), "tokens" | "input_ids" | "attention_mask"));
                others.for_each(|(key, child)| collect(child, &below(key), false, items));
            }
        },
        Json::List(list) => {
            list.iter().enumerate().for_each(|(i, child)| collect(child, &below(&i.to_string()), false, items));
        }
        _ => {}
    }
}

/// `{name, shape, dtype, encoding: base64, data}`, `{shape, data: [..]}`, or ONNX Runtime's `{dims, type, data}`.
fn tensor(fields: &Fields, path: &str) -> Option<Item> {
    let name = fields.get("name").and_then(Json::as_text).unwrap_or(path);
    let data = ["data", "values", "value", "cpuData"].iter().find_map(|key| fields.get(*key))?;
    let shape: Option<Vec<usize>> = fields.get("shape").or_else(|| fields.get("dims")).and_then(extents);
    if let Some((own, values)) = array(data).or_else(|| typed_array(data)) {
        let fits = shape.filter(|s| byte_len(s, DType::F64) == byte_len(&own, DType::F64));
        return Item::printed(name, fits.unwrap_or(own), values);
    }
    let dtype = dtype(fields.get("dtype")?.as_text()?)?;
    let bytes = decode_base64(data.as_text()?)?;
    let shape = shape.unwrap_or_else(|| vec![bytes.len() / dtype.size()]);
    if byte_len(&shape, dtype) != Some(bytes.len()) {
        return None;
    }
    let range = 0..bytes.len();
    let layout = ElementLayout { dtype, fortran: false, big_endian: false };
    Some(super::whole_item(name, Tensor::new(shape, layout, Bytes::Owned(bytes.into(), range))))
}

/// A JavaScript typed array as `JSON.stringify` writes it: `{"0": .., "1": ..}`, in order and without gaps.
fn typed_array(value: &Json) -> Option<(Vec<usize>, Vec<f64>)> {
    let fields = value.as_object().filter(|fields| !fields.is_empty())?;
    let at = |index: usize| if let Json::Number(x) = fields.get(&index.to_string())? { Some(*x) } else { None };
    array(&Json::Numbers((0..fields.len()).map(at).collect::<Option<_>>()?))
}

pub(super) fn extents(value: &Json) -> Option<Vec<usize>> {
    let Json::Numbers(list) = value else { return None };
    list.iter().map(|x| tree::whole(*x)).collect()
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

/// `inputs.input_ids` of a MiniMind file, or `tokens`: one list for each sequence.
fn token_ids(value: &Json) -> Option<Vec<Vec<i64>>> {
    let ids = value.get("inputs").and_then(|inputs| inputs.get("input_ids")).or_else(|| value.get("input_ids"));
    let ids = ids.or_else(|| value.get("tokens"))?;
    let Some(fields) = ids.as_object() else {
        let (shape, values) = array(ids)?;
        let width = *shape.last()?;
        return Some(values.chunks(width.max(1)).map(|row| row.iter().map(|&x| x as i64).collect()).collect());
    };
    let bytes = decode_base64(fields.get("data")?.as_text()?)?;
    let width = fields.get("shape").and_then(extents)?.last().copied().filter(|&w| w > 0)?;
    let ids: Vec<i64> = match fields.get("dtype")?.as_text()? {
        "int32" => bytes.as_chunks().0.iter().map(|b| i64::from(i32::from_le_bytes(*b))).collect(),
        "int64" => bytes.as_chunks().0.iter().map(|b| i64::from_le_bytes(*b)).collect(),
        _ => return None,
    };
    Some(ids.chunks(width).map(<[i64]>::to_vec).collect())
}

/// Reads a manifest of binaries: `checkpoints[]{name, token_idx, count, dtype, file}`.
fn manifest(path: &Path, list: &[Json]) -> Result<Imported, DumpError> {
    let folder = path.parent().unwrap_or(Path::new("."));
    let mut read = Imported::default();
    for point in list {
        let text = |key: &str| point.get(key).and_then(Json::as_text);
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
            if let Some(count) = point.get("count").and_then(Json::as_count).filter(|&count| count != held) {
                let reason = format!("{name}: {count} values by the manifest, {held} in {}", file.escape_debug());
                return Err(not_a_dump(path, &reason));
            }
            item.name = name.to_owned();
            let step = point.get("token_idx").and_then(Json::as_count);
            item.step = step.and_then(|t| u32::try_from(t).ok()).unwrap_or(0);
            read.items.push(item);
        }
        read.files.push(file.to_owned());
    }
    one_position(&mut read.items);
    Ok(read)
}

/// If all items are of one token, they are rows of a prefill; otherwise each token is a step.
pub(super) fn one_position(items: &mut [Item]) {
    let first = items.first().map_or(0, |item| item.step);
    if first > 0 && items.iter().all(|item| item.step == first) {
        for item in items {
            (item.step, item.rows) = (0, Some(Rows::List(vec![first as usize])));
        }
    }
}

/// Reads the output of transformers' `model_addition_debugger_context`: a tree of modules with inputs and outputs, as repr or as .safetensors.
fn debug_tree(path: &Path, tree: &Json, read: &mut Imported) -> Result<(), DumpError> {
    let mut seen = BTreeMap::new();
    let mut stack = vec![tree];
    let mut found = Vec::new();
    while let Some(node) = stack.pop() {
        let module = node.get("module_path").and_then(Json::as_text).unwrap_or_default();
        let module = module.split_once('.').map_or(module, |(_, inside)| inside);
        let inputs = node.get("inputs").map(|i| (format!("{module}:in"), first_tensor(i)));
        let outputs = node.get("outputs").map(|o| (format!("{module}:out"), first_tensor(o)));
        found.extend([inputs, outputs].into_iter().flatten().filter_map(|(name, value)| Some((name, value?))));
        stack.extend(node.get("children").and_then(Json::as_list).into_iter().flatten().rev());
    }
    for (name, fields) in found {
        // A repeated module is the next forward pass.
        let step = seen.entry(name.clone()).and_modify(|n| *n += 1).or_insert(0u32);
        if let Some(item) = tree_tensor(path, &name, fields)? {
            read.items.push(item.stepped(*step));
        }
    }
    Ok(())
}

/// The first tensor in a module's inputs or outputs: by convention the hidden states.
fn first_tensor(value: &Json) -> Option<&Fields> {
    match value {
        Json::Object(fields) if fields.contains_key("dtype") && fields.contains_key("shape") => Some(fields),
        Json::Object(fields) => {
            let hidden = fields.get("kwargs").and_then(|k| k.get("hidden_states"));
            let args = fields.get("args").and_then(first_tensor);
            args.or_else(|| hidden.and_then(first_tensor)).or_else(|| fields.values().find_map(first_tensor))
        }
        Json::List(list) => list.first().and_then(first_tensor),
        _ => None,
    }
}

fn tree_tensor(path: &Path, name: &str, fields: &Fields) -> Result<Option<Item>, DumpError> {
    let text = |key: &str| fields.get(key).and_then(Json::as_text);
    let Some(value) = fields.get("value") else { return Ok(None) };
    if text("dtype").and_then(dtype).is_none() {
        return Ok(None);
    }
    if let Some(file) = value.as_text().filter(|f| f.ends_with(".safetensors")) {
        let plain = Path::new(file).components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
        if !plain {
            return Err(not_a_dump(path, &format!("{name}: file '{}' lies outside the folder", file.escape_debug())));
        }
        let stored = Dump::open(path.parent().unwrap_or(Path::new(".")).join(file))?;
        return Ok(Some(super::whole_item(name, stored.read_unmapped("data")?)));
    }
    let shape: Option<Vec<usize>> = text("shape").map(|s| {
        let digits = |c: char| !c.is_ascii_digit();
        s.split(digits).filter_map(|n| n.parse().ok()).collect()
    });
    let lines: Vec<&str> = value.as_list().into_iter().flatten().filter_map(Json::as_text).collect();
    let repr = lines.join("\n");
    let inside = repr.trim().strip_prefix("tensor(").unwrap_or(&repr);
    let end = inside.rfind(']').map_or(inside.len(), |at| at + 1);
    let Some((shape, found)) = shape.and_then(|s| Some((s.clone(), bracket::elements(&inside[..end], &s)?))) else {
        return Ok(None);
    };
    let (elements, values): (Vec<usize>, Vec<f64>) = found.into_iter().unzip();
    Ok(match Some(elements.len()) == element_count(&shape) {
        true => Item::printed(name, shape, values),
        false => Item::part(name, KnownElements { elements, shape: Some(shape), sum: None }, values),
    })
}

/// Rows that mean the last position of a longer prompt.
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
    fn tensors_of_onnx_runtime_web() {
        for text in [
            r#"{"h0": {"dims": [1, 2], "type": "float32", "data": [1, 2]}}"#,
            r#"{"h0": {"cpuData": {"0": 1, "1": 2}, "dataLocation": "cpu", "type": "float32", "dims": [1, 2], "size": 2}}"#,
        ] {
            let mut items = Vec::new();
            collect(&parse(text).unwrap(), "x", true, &mut items);
            assert_eq!((items[0].name.as_str(), items[0].tensor.shape()), ("h0", &[1, 2][..]));
            assert_eq!(items[0].tensor.values().to_f64(), [1.0, 2.0]);
        }
        // Extents that do not match the number of values, and a gap in the indices.
        let wrong = typed_array(&parse(r#"{"0": 1, "2": 2}"#).unwrap());
        assert_eq!(wrong, None);
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
