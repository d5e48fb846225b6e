//! What does a file of JSON lines tell? One tensor a line, mostly its first values only.

use std::path::Path;

use serde_json::{Map, Value};

use super::{Item, Part, Read, json, read_text};
use crate::dump::{DumpError, not_a_dump};
use crate::tensor::element_count;

/// Beyond this a number stands for an infinity, which JSON cannot write.
const STANDS_FOR_INFINITY: f64 = 1e300;

/// Reads a .jsonl.
///
/// # Errors
/// When a line is no JSON.
pub(super) fn read(path: &Path) -> Result<Read, DumpError> {
    let mut read = Read::default();
    let mut infinities = 0;
    for (number, line) in read_text(path)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value = json::parse(line).map_err(|e| not_a_dump(path, &format!("line {}: not JSON: {e}", number + 1)))?;
        let Some(fields) = value.as_object() else { continue };
        read.items.extend(item(fields, &mut infinities));
    }
    json::one_position(&mut read.items);
    if infinities > 0 {
        read.notes
            .push(format!("{infinities} values beyond 1e300 are taken for infinities; a NaN may stand there as 0"));
    }
    Ok(read)
}

fn item(fields: &Map<String, Value>, infinities: &mut usize) -> Option<Item> {
    let of = |keys: &[&str]| keys.iter().find_map(|key| fields.get(*key));
    let count = |keys: &[&str]| of(keys).and_then(Value::as_u64).and_then(|n| usize::try_from(n).ok());
    let name = of(&["name", "tap", "tensor", "checkpoint", "label", "op"])?.as_str()?;
    let name = match count(&["layer", "layer_id", "layer_idx", "layer_index"]) {
        Some(layer) if !name.contains(|c: char| c.is_ascii_digit()) => format!("layers.{layer}.{name}"),
        _ => name.to_owned(),
    };
    let told = of(&["values", "first", "first_values", "data", "sample", "head", "v"]).and_then(json::array);
    let (own, mut values) = told.or_else(|| {
        fields.iter().filter(|(key, _)| *key != "shape" && *key != "dims").find_map(|(_, v)| json::array(v))
    })?;
    for value in values.iter_mut().filter(|x| x.is_finite() && x.abs() >= STANDS_FOR_INFINITY) {
        *value = f64::INFINITY.copysign(*value);
        *infinities += 1;
    }
    let shape = of(&["shape", "dims"]).and_then(json::extents);
    let total =
        shape.as_deref().and_then(element_count).or_else(|| count(&["count", "numel", "n", "len", "size", "total"]));
    let step =
        count(&["token_idx", "token_index", "token", "position", "pos", "step"]).and_then(|n| u32::try_from(n).ok());
    let item = match total {
        Some(total) if total == values.len() => Item::printed(&name, shape.unwrap_or(own), values),
        Some(total) if total < values.len() => None,
        _ => Item::part(
            &name,
            Part { elements: (0..values.len()).collect(), shape: shape.or(total.map(|n| vec![n])), sum: None },
            values,
        ),
    };
    item.map(|item| item.stepped(step.unwrap_or(0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_values_are_a_part() {
        let line = r#"{"name": "h", "layer": 2, "token_idx": 4, "count": 64, "values": [1.5, 1e308, 0.25]}"#;
        let mut infinities = 0;
        let item = item(json::parse(line).unwrap().as_object().unwrap(), &mut infinities).unwrap();
        assert_eq!((item.name.as_str(), item.step, infinities), ("layers.2.h", 4, 1));
        let part = item.part.unwrap();
        assert_eq!((part.elements, part.shape), (vec![0, 1, 2], Some(vec![64])));
    }
}
