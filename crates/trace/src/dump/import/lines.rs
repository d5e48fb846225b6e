//! Reads JSON lines: one tensor a line, mostly with its first values only.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::tree::{Fields, Json};
use super::{Imported, Item, KnownElements, json, read_text};
use crate::dump::{DumpError, not_a_dump};
use crate::element::element_count;

/// Larger numbers stand for infinity, which JSON cannot express.
const STANDS_FOR_INFINITY: f64 = 1e300;

/// The keys for the position or step of a line.
const POSITION: [&str; 10] =
    ["token_idx", "token_index", "token_pos", "token", "position", "position_id", "pos", "row", "t", "step"];

/// Reads a .jsonl.
///
/// # Errors
/// When a line is not JSON.
pub(super) fn read(path: &Path) -> Result<Imported, DumpError> {
    let mut read = Imported::default();
    let (mut infinities, mut layers, mut nulls) = (0, Vec::new(), 0);
    for (number, line) in read_text(path)?.lines().enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let value = json::parse(line).map_err(|e| not_a_dump(path, &format!("line {}: not JSON: {e}", number + 1)))?;
        let Some(fields) = value.as_object() else { continue };
        if let Some(item) = item(fields, &mut infinities) {
            read.items.push(item);
            nulls += json::nulls(&value);
            layers.push(count(fields, &["layer", "layer_id", "layer_idx", "layer_index"]));
        }
    }
    name_layers(&mut read.items, &layers);
    json::one_position(&mut read.items);
    read.notes.extend(json::null_note(nulls));
    if infinities > 0 {
        read.notes
            .push(format!("{infinities} values beyond 1e300 are taken for infinities; a NaN may stand there as 0"));
    }
    Ok(read)
}

/// Adds the layer to names that lack it: names that occur in several layers, and names without a number that could be the layer.
fn name_layers(items: &mut [Item], layers: &[Option<usize>]) {
    let mut sharing: BTreeMap<String, BTreeSet<usize>> = BTreeMap::new();
    for (item, layer) in items.iter().zip(layers) {
        sharing.entry(item.name.clone()).or_default().extend(layer);
    }
    for (item, layer) in items.iter_mut().zip(layers) {
        let Some(layer) = *layer else { continue };
        let numbers = || item.name.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok());
        let shared = sharing.get(&item.name).is_some_and(|layers| layers.len() > 1);
        // A name may count layers from 1.
        if shared || !numbers().any(|number: usize| number == layer || Some(number) == layer.checked_add(1)) {
            item.name = format!("layers.{layer}.{}", item.name);
        }
    }
}

fn count(fields: &Fields, keys: &[&str]) -> Option<usize> {
    keys.iter().find_map(|key| fields.get(*key)).and_then(Json::as_count)
}

fn item(fields: &Fields, infinities: &mut usize) -> Option<Item> {
    let field = |keys: &[&str]| keys.iter().find_map(|key| fields.get(*key));
    let count = |keys: &[&str]| count(fields, keys);
    let name = field(&["name", "tap", "tensor", "checkpoint", "label", "op"])?.as_text()?;
    let told = field(&["values", "first", "first_values", "data", "sample", "head", "v"]).and_then(json::array);
    let (own, mut values) = told.or_else(|| {
        fields.iter().filter(|(key, _)| *key != "shape" && *key != "dims").find_map(|(_, v)| json::array(v))
    })?;
    for value in values.iter_mut().filter(|x| x.is_finite() && x.abs() >= STANDS_FOR_INFINITY) {
        *value = f64::INFINITY.copysign(*value);
        *infinities += 1;
    }
    let shape = field(&["shape", "dims"]).and_then(json::extents);
    let total =
        shape.as_deref().and_then(element_count).or_else(|| count(&["count", "numel", "n", "len", "size", "total"]));
    let step = count(&POSITION).and_then(|n| u32::try_from(n).ok());
    let item = match total {
        Some(total) if total == values.len() => Item::printed(name, shape.unwrap_or(own), values),
        Some(total) if total < values.len() => None,
        _ => Item::part(
            name,
            KnownElements { elements: (0..values.len()).collect(), shape: shape.or(total.map(|n| vec![n])), sum: None },
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
        assert_eq!((item.name.as_str(), item.step, infinities), ("h", 4, 1));
        let part = item.part.unwrap();
        assert_eq!((part.elements, part.shape), (vec![0, 1, 2], Some(vec![64])));
    }

    #[test]
    fn a_digit_in_a_name_is_not_its_layer() {
        let named = |lines: &[(&str, usize)]| {
            let item = |name: &str| Item::printed(name, vec![1], vec![1.0]).unwrap();
            let mut items: Vec<Item> = lines.iter().map(|(name, _)| item(name)).collect();
            name_layers(&mut items, &lines.iter().map(|(_, layer)| Some(*layer)).collect::<Vec<_>>());
            items.into_iter().map(|item| item.name).collect::<Vec<_>>()
        };
        assert_eq!(named(&[("res2", 1), ("res2", 2)]), ["layers.1.res2", "layers.2.res2"]);
        assert_eq!(named(&[("res2", 0), ("q", 0)]), ["layers.0.res2", "layers.0.q"]);
        let own = ["layers.1.h", "Qcur-2", "layer3_out"];
        assert_eq!(named(&[(own[0], 1), (own[1], 2), (own[2], 2)]), own);
    }
}
