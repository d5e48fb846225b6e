//! Recognises packed weights by the names, types and shapes of their tensors, and puts one tensor in the place of its parts; names those that are not read.

use std::cell::RefCell;
use std::path::Path;

use serde_json::{Map, Value};

use crate::entry::Entry;
use crate::error::ModelError;
use crate::packed::{AWQ_ORDER, Codes, Groups, HIGH_FIRST, Layout, Nested, Numbers, Packed, Scaling, Zero, number_in};
use crate::storage::{Levels, Packing, Storage, e4m3, e5m2};
use crate::weights::Weights;

/// Endings of tensor names that belong to a packing, and the packing's name: for those that are not read.
const SUFFIXES: [(&str, &str); 9] = [
    (".qweight", "AWQ or GPTQ"),
    (".weight_packed", "compressed-tensors"),
    (".weight_scale_2", "NVFP4"),
    (".weight_scale_inv", "FP8"),
    (".weight_scale", "FP8 or INT8"),
    (".W_q", "HQQ"),
    (".SCB", "bitsandbytes"),
    (".absmax", "bitsandbytes"),
    ("_blocks", "MXFP4"),
];

/// How a packed tensor is read, by how the name of its codes ends: what is in its place, and the parts that it is made of.
type Read = fn(&Parts<'_>, &Entry) -> Result<Option<Packed>, String>;

/// Every packing that is read: the ending of the codes' name, what stands in its place, the reader.
const READERS: [(&str, &str, Read); 7] = [
    (".qweight", ".weight", gptq),
    (".qweight", ".weight", awq),
    (".weight_packed", ".weight", compressed),
    ("_blocks", "", mxfp4),
    (".weight", ".weight", nf4),
    (".weight", ".weight", nvfp4),
    ("", "", scaled),
];

/// Levels of a float of four bits: a sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 16] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];
/// The tensors beside a tensor of codes.
struct Parts<'a> {
    weights: &'a Weights,
    config: Option<&'a Map<String, Value>>,
    /// The name of the codes' tensor without its ending.
    stem: &'a str,
    /// What was asked for and is there: the packed tensor is made of it.
    used: RefCell<Vec<String>>,
}

impl<'a> Parts<'a> {
    /// The tensor whose name goes on so.
    fn part(&self, ending: &str) -> Option<&'a Entry> {
        self.named(format!("{}{ending}", self.stem))
    }

    fn named(&self, name: String) -> Option<&'a Entry> {
        let entry = self.weights.entry(&name).filter(|entry| !entry.shape.contains(&0))?;
        self.used.borrow_mut().push(name);
        Some(entry)
    }

    fn needed(&self, ending: &str) -> Result<&'a Entry, String> {
        self.part(ending).ok_or_else(|| format!("has no {}{ending} beside it", self.stem))
    }

    /// The only number of a tensor.
    fn single(&self, entry: &Entry) -> f32 {
        number_in(self.weights.files(), entry, 0)
    }

    /// A whole number of quantization_config.
    fn count(&self, key: &str) -> Option<usize> {
        usize::try_from(self.config?.get(key)?.as_u64()?).ok()
    }

    fn text(&self, key: &str) -> Option<&'a str> {
        self.config?.get(key)?.as_str()
    }
}

/// Puts packed tensors in the place of their parts.
///
/// # Errors
/// When the parts of one do not fit together.
pub(super) fn unpack(path: &Path, mut weights: Weights) -> Result<Weights, ModelError> {
    let config = quantization_config(path);
    let mut names: Vec<String> = weights.names().map(str::to_owned).collect();
    names.sort();
    for name in names {
        let Some(entry) = weights.entry(&name) else { continue };
        if !is_code(entry) || entry.shape.contains(&0) {
            continue;
        }
        let fail = |reason: String| ModelError::Tensor { file: path.into(), tensor: name.clone(), reason };
        for (ending, becomes, read) in READERS {
            let Some(stem) = name.strip_suffix(ending) else { continue };
            let parts = Parts { weights: &weights, config: config.as_ref(), stem, used: RefCell::default() };
            if let Some(packed) = read(&parts, entry).map_err(fail)? {
                check(&packed).map_err(fail)?;
                let becomes = format!("{stem}{becomes}");
                let used = [parts.used.into_inner(), vec![name.clone()]].concat();
                weights.pack(becomes, packed, &used);
                break;
            }
        }
    }
    Ok(weights)
}

/// Whether a tensor may hold codes: integers, and floats of 8 bits.
fn is_code(entry: &Entry) -> bool {
    use Storage::{E4M3, E5M2, I8, I32, U8};
    matches!(entry.storage, Ok(E4M3 | E5M2 | U8 | I8 | I32))
}

/// Checks that each part holds what the shape asks of it.
fn check(packed: &Packed) -> Result<(), String> {
    let elements = |shape: &[usize]| shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d));
    let [rows, columns] = extents(packed).ok_or("has a shape that is too large")?;
    let codes = &packed.codes;
    let (along, other) = if packed.packed_rows { (rows, columns) } else { (columns, rows) };
    let words = along.checked_mul(codes.bits).ok_or("has a shape that is too large")?.div_ceil(8 * codes.word);
    let last = words.saturating_sub(1) * codes.strides[0] + other.saturating_sub(1) * codes.strides[1];
    let held = codes.words.bytes.len() / codes.word;
    if elements(&packed.shape).is_none() || rows > 0 && columns > 0 && last >= held {
        return Err(format!("holds {held} words, too few for a tensor of shape {:?}", packed.shape));
    }
    let groups = match &packed.groups {
        Groups::Of(size) => columns.div_ceil((*size).max(1)),
        Groups::Listed(entry) if elements(&entry.shape) != Some(columns) => {
            return Err(format!("has groups for {:?} columns of {columns}", entry.shape));
        }
        Groups::Listed(_) => 1,
    };
    let blocks = rows / packed.rows[1] * packed.rows[1].div_ceil(packed.rows[0]);
    let last =
        blocks.saturating_sub(1) * packed.scales.strides[0] + groups.saturating_sub(1) * packed.scales.strides[1];
    match elements(&packed.scales.values.shape) {
        Some(count) if last < count => Ok(()),
        _ => Err(format!("has scales of shape {:?}, which do not fit {:?}", packed.scales.values.shape, packed.shape)),
    }
}

/// Rows and columns of the codes.
fn extents(packed: &Packed) -> Option<[usize; 2]> {
    let all = packed.shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d))?;
    let columns = match packed.layout {
        Layout::Flat => all,
        Layout::Rows => packed.shape.last().copied()?,
        Layout::Transposed => *packed.shape.get(1)?,
    };
    Some([all.checked_div(columns).unwrap_or(0), columns])
}

/// One number for each element, row by row.
fn plain_codes(words: &Entry, bits: usize, word: usize, columns: usize) -> Codes {
    let strides = [1, (columns * bits).div_ceil(8 * word)];
    Codes { words: words.clone(), bits, word, strides, order: &[] }
}

fn numbers(values: &Entry, strides: [usize; 2]) -> Numbers {
    Numbers { values: values.clone(), strides, nested: None }
}

/// A matrix of its own rows; what differs from that is filled in.
fn matrix(packing: Packing, shape: Vec<usize>, codes: Codes, levels: Vec<f32>, scales: Numbers) -> Packed {
    let rows = [1, shape.iter().rev().skip(1).product::<usize>().max(1)];
    let groups = Groups::Of(packing.group.max(1));
    let (layout, zero) = (Layout::Rows, Zero::None);
    Packed {
        packing,
        shape,
        layout,
        codes,
        packed_rows: false,
        levels,
        scales,
        scaling: Scaling::Times,
        zero,
        groups,
        rows,
        factor: 1.0,
    }
}

/// Whole numbers from 0, less an offset.
fn counted(bits: usize, offset: f32) -> Vec<f32> {
    (0..1u32 << bits).map(|code| code as f32 - offset).collect()
}

/// Rows and columns of a matrix.
fn extents_of(entry: &Entry) -> Result<[usize; 2], String> {
    <[usize; 2]>::try_from(&entry.shape[..]).map_err(|_| format!("has shape {:?}, where a matrix is due", entry.shape))
}

/// GPTQ: codes \[in*bits/32,out\] packed along the columns of the weight, scales \[groups,out\], zero points \[groups,out*bits/32\], stored one less in the
/// first version of the format; groups listed in g_idx where the order of activations was used.
///
/// Source: AutoGPTQ's and GPTQModel's QuantLinear.
fn gptq(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let (scales, zeros) = (parts.needed(".scales")?, parts.needed(".qzeros")?);
    let ([packed, out], [count, columns]) = (extents_of(words)?, extents_of(scales)?);
    if columns != out || parts.text("quant_method") == Some("awq") {
        return Ok(None);
    }
    let listed = parts.part(".g_idx").filter(|entry| entry.shape.len() == 1);
    let bits_of = |width: usize| (packed * 32).checked_div(width).unwrap_or(0);
    let bits = parts.count("bits").or(listed.map(|entry| bits_of(entry.shape[0]))).unwrap_or(4);
    if !matches!(bits, 2 | 3 | 4 | 8) {
        return Err(format!("has codes of {bits} bits, which GPTQ has not"));
    }
    let input = packed * 32 / bits;
    let group = input.div_ceil(count.max(1));
    let packing = Packing { name: "GPTQ", levels: Levels::Between(1 << bits), group };
    let zero_words = extents_of(zeros)?[1];
    let zero = Codes { words: zeros.clone(), bits, word: 4, strides: [1, zero_words], order: &[] };
    let codes = Codes { words: words.clone(), bits, word: 4, strides: [out, 1], order: &[] };
    let less = if parts.text("checkpoint_format") == Some("gptq_v2") { 0.0 } else { 1.0 };
    let scales = numbers(scales, [1, out]);
    let is_whole = zeros.bytes.len() / 4 >= count * (out * bits).div_ceil(32);
    let zero = if is_whole { Zero::Codes(zero, less) } else { return Err("has too few zero points".into()) };
    let groups =
        listed.filter(|entry| entry.shape[0] == input).map_or(Groups::Of(group), |entry| Groups::Listed(entry.clone()));
    Ok(Some(Packed { zero, groups, ..matrix(packing, vec![out, input], codes, counted(bits, 0.0), scales) }))
}

/// AWQ's order gemm: codes \[in,out/8\] of four bits, eight outputs in a word in an order of their own; scales \[groups,out\], zero points \[groups,out/8\].
///
/// Source: AutoAWQ's WQLinear_GEMM.
fn awq(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let (scales, zeros) = (parts.needed(".scales")?, parts.needed(".qzeros")?);
    let ([input, packed], [count, out]) = (extents_of(words)?, extents_of(scales)?);
    if packed * 8 != out || parts.text("version").is_some_and(|version| version != "gemm") {
        return Ok(None);
    }
    let group = input.div_ceil(count.max(1));
    let packing = Packing { name: "AWQ", levels: Levels::Between(16), group };
    let codes =
        |words: &Entry| Codes { words: words.clone(), bits: 4, word: 4, strides: [1, packed], order: &AWQ_ORDER };
    if zeros.bytes.len() / 4 < count * packed {
        return Err("has too few zero points".into());
    }
    let made = matrix(packing, vec![out, input], codes(words), counted(4, 0.0), numbers(scales, [1, out]));
    Ok(Some(Packed { packed_rows: true, zero: Zero::Codes(codes(zeros), 0.0), ..made }))
}

/// compressed-tensors: whole numbers in words of 32 bits along the columns, from the least on; or NVFP4 and MXFP4, two codes in a byte.
///
/// Source: compressed-tensors' pack_to_int32 and pack_fp4_to_uint8.
fn compressed(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let scales = parts.needed(".weight_scale")?;
    let [out, packed] = extents_of(words)?;
    let count = scales.shape.get(1).copied().unwrap_or(1).max(1);
    if words.storage == Ok(Storage::U8) {
        let (input, global) = (2 * packed, parts.part(".weight_global_scale"));
        let name =
            if scales.storage == Ok(Storage::U8) || scales.storage == Ok(Storage::E8M0) { "MXFP4" } else { "NVFP4" };
        let packing = Packing { name, levels: Levels::Listed(15), group: input.div_ceil(count) };
        let scales = Entry {
            storage: if name == "MXFP4" { Ok(Storage::E8M0) } else { scales.storage.clone() },
            ..scales.clone()
        };
        let codes = plain_codes(words, 4, 1, input);
        let made = matrix(packing, vec![out, input], codes, E2M1.to_vec(), numbers(&scales, [count, 1]));
        return Ok(Some(Packed { factor: global.map_or(1.0, |global| 1.0 / parts.single(global)), ..made }));
    }
    let shape = parts.needed(".weight_shape")?;
    let [rows, input] = [0, 1].map(|at| number_in(parts.weights.files(), shape, at) as usize);
    let bits = [8, 4, 2].into_iter().find(|bits| input.div_ceil(32 / bits) == packed);
    let Some(bits) = bits.filter(|_| rows == out) else { return Ok(None) };
    let group = if count > 1 { input.div_ceil(count) } else { input };
    let zeros = parts.part(".weight_zero_point");
    let levels = if zeros.is_some() { Levels::Between(1 << bits) } else { Levels::Even(1 << bits) };
    let packing = Packing { name: "compressed-tensors", levels, group };
    let offset = 2f32.powi(bits as i32 - 1);
    let scale = numbers(scales, [if scales.shape.first() == Some(&1) { 0 } else { count }, usize::from(count > 1)]);
    let made = matrix(packing, vec![out, input], plain_codes(words, bits, 4, input), counted(bits, offset), scale);
    // Zero points are packed along the rows.
    let zero = zeros.map(|words| {
        Zero::Codes(Codes { words: words.clone(), bits, word: 4, strides: [count, 1], order: &[] }, -offset)
    });
    let listed = parts.part(".weight_g_idx").filter(|entry| entry.shape == [input] && parts.single(entry) >= 0.0);
    let groups = listed.map_or(made.groups.clone(), |entry| Groups::Listed(entry.clone()));
    Ok(Some(Packed { zero: zero.unwrap_or(Zero::None), groups, ..made }))
}

/// gpt-oss: blocks \[E,out,in/32,16\] of two codes in a byte, scales \[E,out,in/32\]; the tensor is \[E,in,out\].
///
/// Source: transformers' convert_moe_packed_tensors.
fn mxfp4(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let scales = parts.needed("_scales")?;
    let &[experts, out, blocks, bytes] = &words.shape[..] else { return Ok(None) };
    let input = 2 * blocks * bytes;
    let packing = Packing { name: "MXFP4", levels: Levels::Listed(15), group: 2 * bytes };
    let scales = Entry { storage: Ok(Storage::E8M0), ..scales.clone() };
    let codes = plain_codes(words, 4, 1, input);
    let made = matrix(packing, vec![experts, input, out], codes, E2M1.to_vec(), numbers(&scales, [blocks, 1]));
    Ok(Some(Packed { layout: Layout::Transposed, rows: [1, out.max(1)], ..made }))
}

/// bitsandbytes' NF4 and FP4: all elements in one row, the first of two in the high half of its byte; blocks with a largest size each, which may be codes
/// themselves.
///
/// Source: bitsandbytes' QuantState and dequantize_4bit.
fn nf4(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let state = ["nf4", "fp4"]
        .iter()
        .find_map(|kind| Some((*kind, parts.part(&format!(".weight.quant_state.bitsandbytes__{kind}"))?)));
    let Some((kind, state)) = state else { return Ok(None) };
    let (table, largest) = (parts.needed(".weight.quant_map")?, parts.needed(".weight.absmax")?);
    let bytes = &parts.weights.files()[state.file].1.as_ref().as_ref()[state.bytes.clone()];
    let state: Map<String, Value> = super::parse_json(bytes)?;
    let count = |key: &str| state.get(key)?.as_u64().and_then(|n| usize::try_from(n).ok()).filter(|n| *n > 0);
    let shape: Option<Vec<usize>> = state
        .get("shape")
        .and_then(Value::as_array)
        .and_then(|shape| shape.iter().map(|n| usize::try_from(n.as_u64()?).ok()).collect());
    let shape = shape.filter(|shape| !shape.is_empty()).ok_or("has no shape in its quant_state")?;
    let block = count("blocksize").ok_or("has no blocksize in its quant_state")?;
    let nested = match (parts.part(".weight.nested_absmax"), parts.part(".weight.nested_quant_map")) {
        (Some(scales), Some(table)) => Some(Nested {
            table: table.clone(),
            scales: scales.clone(),
            block: count("nested_blocksize").unwrap_or(256),
            offset: state.get("nested_offset").and_then(Value::as_f64).unwrap_or(0.0) as f32,
        }),
        _ => None,
    };
    let levels = (0..16).map(|at| number_in(parts.weights.files(), table, at)).collect();
    let packing = Packing { name: if kind == "nf4" { "NF4" } else { "FP4" }, levels: Levels::Listed(16), group: block };
    let codes = Codes { order: &HIGH_FIRST, strides: [1, 0], ..plain_codes(words, 4, 1, 0) };
    let scales = Numbers { nested, ..numbers(largest, [0, 1]) };
    Ok(Some(Packed { layout: Layout::Flat, rows: [1, 1], ..matrix(packing, shape, codes, levels, scales) }))
}

/// ModelOpt's NVFP4: two codes in a byte, a scale of 8 bits for each 16 columns, and one for all.
fn nvfp4(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let (Some(scales), Some(global)) = (parts.part(".weight_scale"), parts.part(".weight_scale_2")) else {
        return Ok(None);
    };
    if words.storage != Ok(Storage::U8) {
        return Ok(None);
    }
    let ([out, packed], [_, count]) = (extents_of(words)?, extents_of(scales)?);
    let packing = Packing { name: "NVFP4", levels: Levels::Listed(15), group: (2 * packed).div_ceil(count.max(1)) };
    let made = matrix(
        packing,
        vec![out, 2 * packed],
        plain_codes(words, 4, 1, 2 * packed),
        E2M1.to_vec(),
        numbers(scales, [count, 1]),
    );
    Ok(Some(Packed { factor: parts.single(global), ..made }))
}

/// A number of 8 bits for each element, times a scale: one for all, for each row, for groups of columns, or for blocks of rows and columns.
fn scaled(parts: &Parts<'_>, words: &Entry) -> Result<Option<Packed>, String> {
    let stem = parts.stem.strip_suffix(".weight");
    let largest = stem.and_then(|stem| {
        // Says how codes are laid out in memory: in files they are as they are.
        parts.named(format!("{stem}.weight_format"));
        parts.named(format!("{stem}.SCB"))
    });
    let Some(scales) = parts.part("_scale_inv").or(parts.part("_scale")).or(largest) else { return Ok(None) };
    let (name, kind, levels): (&str, Levels, Vec<f32>) = match words.storage {
        Ok(Storage::E4M3) => ("FP8 (e4m3)", Levels::Float(3), (0..=255).map(e4m3).collect()),
        Ok(Storage::E5M2) => ("FP8 (e5m2)", Levels::Float(2), (0..=255).map(e5m2).collect()),
        Ok(Storage::I8) => ("INT8", Levels::Even(255), (0..=255u8).map(|x| f32::from(x as i8)).collect()),
        _ => return Ok(None),
    };
    let (Some(&columns), shape) = (words.shape.last(), words.shape.clone()) else { return Ok(None) };
    let experts: usize = shape.iter().rev().skip(2).product();
    let rows = shape.iter().rev().nth(1).copied().unwrap_or(1).max(1);
    // Of [..,rows,columns] the extents of the scales; a scale of one axis is of the rows.
    let given: Vec<usize> =
        if scales.shape.len() == 1 && scales.shape[0] > 1 { vec![scales.shape[0], 1] } else { scales.shape.clone() };
    let last = |at: usize| given.iter().rev().nth(at).copied().unwrap_or(1).max(1);
    let [blocks, groups] = [last(1), last(0)];
    let of_config = parts.config.and_then(|config| config.get("weight_block_size")).and_then(Value::as_array);
    let of_config = |at: usize| of_config.and_then(|sizes| usize::try_from(sizes.get(at)?.as_u64()?).ok());
    // Of a whole number of blocks, or of the size that the config tells, else of 128.
    let size = |extent: usize, count: usize, at: usize| -> Result<usize, String> {
        let told = [of_config(at), Some(128), Some(64)]
            .into_iter()
            .flatten()
            .find(|size| *size > 0 && extent.div_ceil(*size) == count);
        let even = if extent.is_multiple_of(count) { Some(extent / count) } else { None };
        let found = if count == 1 {
            Some(extent)
        } else if count == extent {
            Some(1)
        } else {
            told.or(even)
        };
        found.ok_or_else(|| format!("has scales of shape {:?}, which do not divide {:?}", scales.shape, words.shape))
    };
    let (share, group) = (size(rows, blocks, 0)?, size(columns, groups, 1)?);
    let per_expert = given.iter().rev().skip(2).product::<usize>();
    if experts > 1 && per_expert != experts {
        return Err(format!("has scales of shape {:?}, where each of its experts has its own", scales.shape));
    }
    let packing = Packing { name, levels: kind, group };
    let strides = [if blocks == 1 && experts <= 1 { 0 } else { groups }, usize::from(groups > 1)];
    let made = matrix(packing, shape, plain_codes(words, 8, 1, columns), levels, numbers(scales, strides));
    let zero = parts.part("_zero_point").map(|zeros| Zero::Numbers(numbers(zeros, strides)));
    // Of bitsandbytes a scale is the largest size of its row.
    let factor = if largest.is_some() { 1.0 / 127.0 } else { 1.0 };
    Ok(Some(Packed { rows: [share, rows], zero: zero.unwrap_or(Zero::None), factor, ..made }))
}

/// The name of the packing of what is still no plain number; `None` where all are.
pub(super) fn detect_packing(path: &Path, weights: &Weights) -> Option<String> {
    // Integer tensors are not weights by themselves.
    let is_number = |name: &str| {
        let view = weights.tensor(name).ok().flatten();
        let is_whole = |storage| matches!(storage, Storage::U8 | Storage::I8 | Storage::I16 | Storage::I32);
        view.is_some_and(|view| !is_whole(view.storage()))
    };
    let sign =
        |(end, packing): (&str, &str)| weights.names().any(|name| name.ends_with(end)).then(|| packing.to_owned());
    let named = || quantization_config(path).map(|config| summary(&config));
    (!weights.names().all(is_number)).then(|| named().or_else(|| SUFFIXES.into_iter().find_map(sign)))?
}

/// `quantization_config` of config.json.
fn quantization_config(folder: &Path) -> Option<Map<String, Value>> {
    let file = folder.join("config.json");
    let mut config = super::parse_config(&file, &super::config_bytes(&file).ok()?).ok()?;
    match config.remove("quantization_config")? {
        Value::Object(found) => Some(found),
        _ => None,
    }
}

/// Summarises `quantization_config`: `AWQ (4 bits, groups of 16, gemm)`.
fn summary(found: &Map<String, Value>) -> String {
    let text =
        |key: &str| Some(found.get(key)?.as_str()?.chars().filter(|c| !c.is_control()).take(40).collect::<String>());
    let number = |key: &str, words: fn(u64) -> String| found.get(key)?.as_u64().map(words);
    let numbers = [number("bits", |n| format!("{n} bits")), number("group_size", |n| format!("groups of {n}"))];
    let kinds = ["version", "format", "quant_algo", "bnb_4bit_quant_type", "fmt"].iter().filter_map(|key| text(key));
    let details = numbers.into_iter().flatten().chain(kinds).collect::<Vec<_>>().join(", ");
    let name = text("quant_method").unwrap_or_else(|| "an unnamed method".into());
    let name = if name.len() < 6 { name.to_uppercase() } else { name };
    if details.is_empty() { name } else { format!("{name} ({details})") }
}
