//! Reads .pt files of `torch.save`: a zip with a pickle, of which only tensors, numbers, text and containers are read.
//!
//! Nothing is executed: a call of anything but PyTorch's own tensor constructors gives a value that is no tensor.

use std::collections::HashMap;
use std::io::{Cursor, Read as _};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::Mmap;
use zip::{CompressionMethod, ZipArchive};

use super::{Imported, Item, path_below, stem, whole_item};
use crate::dump::archive::duplicate_member;
use crate::dump::{DumpError, map_file, not_a_dump};
use crate::element::{DType, byte_len};
use crate::file::memory_limit;
use crate::tensor::{Bytes, ElementLayout, Strided, Tensor};

/// Reads a .pt: a tensor, or containers of tensors, named by their keys. SGLang's dumper puts name, layer, step and rank into the file name:
/// `name=q___layer_id=0___step=1.pt`.
///
/// # Errors
/// When it was not written by `torch.save`, or a tensor exceeds its storage.
pub(super) fn read(path: &Path) -> Result<Imported, DumpError> {
    let bad = |reason: String| not_a_dump(path, &reason);
    let map = map_file(path)?;
    let mut zip =
        ZipArchive::new(Cursor::new(&map[..])).map_err(|_| bad("not a .pt of PyTorch 1.6 or later (no zip)".into()))?;
    if let Some(twice) = duplicate_member(&map, &zip) {
        return Err(bad(format!("member '{}' is there twice", twice.escape_debug())));
    }
    let names: Vec<String> = zip.file_names().map(str::to_owned).collect();
    let main = names.iter().find(|name| name.ends_with("data.pkl")).ok_or_else(|| bad("no data.pkl in it".into()))?;
    let root = main.trim_end_matches("data.pkl").to_owned();
    let pickle = member(&mut zip, main).map_err(bad)?;
    let value = Machine::run(&map[pickle], map.len())
        .ok_or_else(|| bad("its pickle is damaged, or of a kind that torch.save does not write".into()))?;
    let mut items = Vec::new();
    let mut storages = Storages { map: &map, zip, root, known: HashMap::new() };
    collect(&value, "", &mut storages, &mut items).map_err(bad)?;
    let label = Label::parse(&stem(path));
    let value_alone = items.len() == 1 && matches!(items[0].name.as_str(), "" | "value");
    for item in &mut items {
        item.name = match value_alone {
            true => label.name.clone(),
            false => item.name.trim_start_matches("value.").to_owned(),
        };
        item.step = label.step;
    }
    let items = if label.rank == 0 { items } else { Vec::new() };
    let notes = (label.rank > 0)
        .then(|| format!("rank {} is not joined: put each rank's files into a folder rank{0}", label.rank));
    Ok(Imported { items, notes: notes.into_iter().collect(), ..Imported::default() })
}

/// The fields in a file name.
struct Label {
    name: String,
    step: u32,
    rank: u32,
}

impl Label {
    fn parse(stem: &str) -> Label {
        let fields: HashMap<&str, &str> = stem.split("___").filter_map(|field| field.split_once('=')).collect();
        let number = |keys: &[&str]| keys.iter().find_map(|key| fields.get(key)?.parse::<u32>().ok());
        let Some(name) = fields.get("name") else { return Label { name: stem.into(), step: 0, rank: 0 } };
        let name = match number(&["layer_id", "layer"]) {
            Some(layer) => format!("layers.{layer}.{name}"),
            None => (*name).to_owned(),
        };
        Label { name, step: number(&["step", "forward_pass_id"]).unwrap_or(0), rank: number(&["rank"]).unwrap_or(0) }
    }
}

/// The byte range of a member in the file. torch.save stores members uncompressed; reading one once checks size and CRC.
fn member(zip: &mut ZipArchive<Cursor<&[u8]>>, name: &str) -> Result<Range<usize>, String> {
    let wrong = |reason: String| format!("member '{}': {reason}", name.escape_debug());
    let mut member = zip.by_name(name).map_err(|_| format!("no member '{}'", name.escape_debug()))?;
    if member.compression() != CompressionMethod::Stored {
        return Err(wrong("it is compressed; torch.save stores its members as they are".into()));
    }
    let start = usize::try_from(member.data_start()).map_err(|_| wrong("its place is not known".into()))?;
    let held = std::io::copy(&mut member.by_ref(), &mut std::io::sink()).map_err(|e| wrong(e.to_string()))?;
    let end = usize::try_from(held).ok().and_then(|held| start.checked_add(held));
    end.map(|end| start..end).ok_or_else(|| wrong("its size overflows".into()))
}

/// The storages of a file; each is checked once.
struct Storages<'a> {
    map: &'a Arc<Mmap>,
    zip: ZipArchive<Cursor<&'a [u8]>>,
    root: String,
    known: HashMap<String, Range<usize>>,
}

impl Storages<'_> {
    fn range(&mut self, key: &str) -> Result<Range<usize>, String> {
        if let Some(range) = self.known.get(key) {
            return Ok(range.clone());
        }
        let range = member(&mut self.zip, &format!("{}data/{key}", self.root))?;
        self.known.insert(key.to_owned(), range.clone());
        Ok(range)
    }
}

/// A value of a pickle. Everything not supported is `Other`.
#[derive(Clone, Debug)]
enum Pickled {
    Mark,
    Int(i64),
    Text(String),
    Global(String),
    Sequence(Vec<Pickled>),
    Pairs(Vec<(Pickled, Pickled)>),
    Storage { dtype: Option<DType>, key: String },
    Tensor(Box<TensorView>),
    Other,
}

/// A tensor as a view of a storage.
#[derive(Clone, Debug)]
struct TensorView {
    dtype: Option<DType>,
    key: String,
    offset: usize,
    shape: Vec<usize>,
    strides: Vec<usize>,
}

/// A virtual machine for the opcodes that torch.save writes.
struct Machine<'a> {
    code: &'a [u8],
    at: usize,
    stack: Vec<Pickled>,
    memo: HashMap<u32, Pickled>,
    /// How many more values may be created: a pickle of a few bytes must not grow without limit.
    left: usize,
}

/// The most memory for a value, in a vector that doubles as it grows, or with its key in the memo.
const VALUE: u64 = 128;

impl Machine<'_> {
    /// Runs the code from a file of `size` bytes.
    fn run(code: &[u8], size: usize) -> Option<Pickled> {
        let left = usize::try_from(memory_limit(size as u64) / VALUE).unwrap_or(usize::MAX);
        let mut machine = Machine { code, at: 0, stack: Vec::new(), memo: HashMap::new(), left };
        loop {
            let op = machine.byte()?;
            if op == b'.' {
                return machine.stack.pop();
            }
            machine.step(op)?;
        }
    }

    fn byte(&mut self) -> Option<u8> {
        self.read_bytes(1).map(|b| b[0])
    }

    fn read_bytes(&mut self, count: usize) -> Option<&[u8]> {
        let end = self.at.checked_add(count)?;
        let bytes = self.code.get(self.at..end)?;
        self.at = end;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.read_bytes(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
    }

    fn line(&mut self) -> Option<String> {
        let rest = self.code.get(self.at..)?;
        let length = rest.iter().position(|&b| b == b'\n')?;
        self.at += length + 1;
        Some(String::from_utf8_lossy(&rest[..length]).into_owned())
    }

    fn text(&mut self, length: usize) -> Option<Pickled> {
        self.read_bytes(length).map(|bytes| Pickled::Text(String::from_utf8_lossy(bytes).into_owned()))
    }

    /// The values pushed since the last mark.
    fn since_mark(&mut self) -> Option<Vec<Pickled>> {
        let mark = self.stack.iter().rposition(|value| matches!(value, Pickled::Mark))?;
        let values = self.stack.split_off(mark + 1);
        self.stack.pop();
        Some(values)
    }

    fn memoize(&mut self, key: u32) -> Option<()> {
        let top = self.stack.last()?;
        self.left = self.left.checked_sub(size(top))?;
        self.memo.insert(key, top.clone());
        Some(())
    }

    fn recall(&mut self, key: u32) -> Option<Pickled> {
        let value = self.memo.get(&key)?;
        self.left = self.left.checked_sub(size(value))?;
        Some(value.clone())
    }

    /// Executes one opcode, named as in CPython's pickletools.
    fn step(&mut self, op: u8) -> Option<()> {
        let value = match op {
            0x80 => return self.byte().map(|_| ()),
            0x95 => return self.read_bytes(8).map(|_| ()),
            b'(' => Pickled::Mark,
            b'}' => Pickled::Pairs(Vec::new()),
            b']' | b')' | 0x8f => Pickled::Sequence(Vec::new()),
            b'N' => Pickled::Other,
            0x88 => Pickled::Int(1),
            0x89 => Pickled::Int(0),
            b'K' => Pickled::Int(self.byte()?.into()),
            b'M' => Pickled::Int(self.read_bytes(2).map(|b| i64::from(u16::from_le_bytes([b[0], b[1]])))?),
            b'J' => Pickled::Int(i64::from(self.u32()? as i32)),
            0x8a => {
                let length = usize::from(self.byte()?);
                Pickled::Int(long(self.read_bytes(length)?)?)
            }
            b'G' => self.read_bytes(8).map(|_| Pickled::Other)?,
            b'X' | b'T' | b'B' => {
                let length = self.u32()? as usize;
                self.text(length)?
            }
            0x8c | b'U' | b'C' => {
                let length = usize::from(self.byte()?);
                self.text(length)?
            }
            b'c' => Pickled::Global(format!("{}.{}", self.line()?, self.line()?)),
            0x93 => {
                let (Pickled::Text(name), Pickled::Text(module)) = (self.stack.pop()?, self.stack.pop()?) else {
                    return None;
                };
                Pickled::Global(format!("{module}.{name}"))
            }
            b'q' => {
                let key = self.byte()?.into();
                return self.memoize(key);
            }
            b'r' => {
                let key = self.u32()?;
                return self.memoize(key);
            }
            0x94 => return self.memoize(u32::try_from(self.memo.len()).ok()?),
            b'h' => {
                let key = self.byte()?.into();
                self.recall(key)?
            }
            b'j' => {
                let key = self.u32()?;
                self.recall(key)?
            }
            b't' | b'l' => Pickled::Sequence(self.since_mark()?),
            b'd' => Pickled::Pairs(pairs(self.since_mark()?)),
            0x85..=0x87 => {
                let at = self.stack.len().checked_sub(usize::from(op - 0x84))?;
                Pickled::Sequence(self.stack.split_off(at))
            }
            b'a' | b'e' | 0x90 => {
                let more = if op == b'a' { vec![self.stack.pop()?] } else { self.since_mark()? };
                let deepest = more.iter().map(depth).max().unwrap_or(0);
                if let Pickled::Sequence(list) = self.stack.last_mut()? {
                    list.extend(more);
                }
                return (deepest < DEEPEST).then_some(());
            }
            b's' | b'u' => {
                let more = match op {
                    b's' => {
                        let value = self.stack.pop()?;
                        vec![self.stack.pop()?, value]
                    }
                    _ => self.since_mark()?,
                };
                let deepest = more.iter().map(depth).max().unwrap_or(0);
                if let Pickled::Pairs(list) = self.stack.last_mut()? {
                    list.extend(pairs(more));
                }
                return (deepest < DEEPEST).then_some(());
            }
            b'Q' => storage(self.stack.pop()?),
            b'R' | 0x81 => {
                let (arguments, callee) = (self.stack.pop()?, self.stack.pop()?);
                call(&callee, arguments)
            }
            b'b' => return self.stack.pop().map(|_| ()),
            b'0' => return self.stack.pop().map(|_| ()),
            _ => return None,
        };
        if depth(&value) > DEEPEST {
            return None;
        }
        self.left = self.left.checked_sub(1)?;
        self.stack.push(value);
        Some(())
    }
}

/// The deepest nesting of containers; saved files are not nested deeper.
const DEEPEST: usize = 32;

/// The nesting depth of a value. No value on the stack is deeper than [`DEEPEST`], so the recursion ends.
fn depth(value: &Pickled) -> usize {
    match value {
        Pickled::Sequence(list) => 1 + list.iter().map(depth).max().unwrap_or(0),
        Pickled::Pairs(list) => 1 + list.iter().map(|(k, v)| depth(k).max(depth(v))).max().unwrap_or(0),
        _ => 0,
    }
}

fn size(value: &Pickled) -> usize {
    match value {
        Pickled::Sequence(list) => 1 + list.iter().map(size).sum::<usize>(),
        Pickled::Pairs(list) => 1 + list.iter().map(|(k, v)| size(k) + size(v)).sum::<usize>(),
        Pickled::Text(text) => 1 + text.len() / 16,
        _ => 1,
    }
}

fn pairs(values: Vec<Pickled>) -> Vec<(Pickled, Pickled)> {
    let mut values = values.into_iter();
    std::iter::from_fn(|| Some((values.next()?, values.next()?))).collect()
}

/// A little-endian integer of any length; eight bytes are enough here.
fn long(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last().is_some_and(|b| b & 0x80 != 0);
    let mut raw = if negative { [0xff; 8] } else { [0; 8] };
    raw.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(raw))
}

/// `('storage', torch.FloatStorage, key, location, count)`.
fn storage(id: Pickled) -> Pickled {
    let Pickled::Sequence(fields) = id else { return Pickled::Other };
    let [_, Pickled::Global(kind), Pickled::Text(key), ..] = fields.as_slice() else { return Pickled::Other };
    let dtype = match kind.as_str() {
        "torch.DoubleStorage" => Some(DType::F64),
        "torch.FloatStorage" => Some(DType::F32),
        "torch.HalfStorage" => Some(DType::F16),
        "torch.BFloat16Storage" => Some(DType::BF16),
        _ => None,
    };
    Pickled::Storage { dtype, key: key.clone() }
}

fn call(callee: &Pickled, arguments: Pickled) -> Pickled {
    let (Pickled::Global(name), Pickled::Sequence(arguments)) = (callee, arguments) else { return Pickled::Other };
    match name.as_str() {
        "torch._utils._rebuild_tensor_v2" | "torch._utils._rebuild_tensor" => {
            tensor_view(&arguments).unwrap_or(Pickled::Other)
        }
        "torch._utils._rebuild_parameter" => arguments.into_iter().next().unwrap_or(Pickled::Other),
        "collections.OrderedDict" => Pickled::Pairs(Vec::new()),
        _ => Pickled::Other,
    }
}

fn tensor_view(arguments: &[Pickled]) -> Option<Pickled> {
    let sizes = |value: &Pickled| match value {
        Pickled::Sequence(list) => {
            list.iter().map(|n| if let Pickled::Int(n) = n { usize::try_from(*n).ok() } else { None }).collect()
        }
        _ => None,
    };
    let [Pickled::Storage { dtype, key }, Pickled::Int(offset), shape, strides, ..] = arguments else { return None };
    let (shape, strides): (Vec<usize>, Vec<usize>) = (sizes(shape)?, sizes(strides)?);
    let offset = usize::try_from(*offset).ok()?;
    (shape.len() == strides.len())
        .then(|| Pickled::Tensor(Box::new(TensorView { dtype: *dtype, key: key.clone(), offset, shape, strides })))
}

fn collect(value: &Pickled, name: &str, storages: &mut Storages<'_>, items: &mut Vec<Item>) -> Result<(), String> {
    let below = |key: &str| path_below(name, key);
    match value {
        Pickled::Tensor(tensor) => {
            // Token ids and masks are not floats.
            if let Some(dtype) = tensor.dtype {
                items.push(whole_item(name, viewed(tensor, dtype, storages)?));
            }
            Ok(())
        }
        Pickled::Sequence(list) => {
            list.iter().enumerate().try_for_each(|(i, v)| collect(v, &below(&i.to_string()), storages, items))
        }
        Pickled::Pairs(list) => list.iter().try_for_each(|(key, v)| match key {
            Pickled::Text(key) => collect(v, &below(key), storages, items),
            Pickled::Int(key) => collect(v, &below(&key.to_string()), storages, items),
            _ => Ok(()),
        }),
        _ => Ok(()),
    }
}

/// A view of a storage, which is not copied until it is read.
fn viewed(tensor: &TensorView, dtype: DType, storages: &mut Storages<'_>) -> Result<Tensor, String> {
    let TensorView { key, offset, shape, strides, .. } = tensor;
    let range = storages.range(key)?;
    let held = range.len() / dtype.size();
    let outside = || format!("a tensor of shape {shape:?} lies outside of its storage of {} bytes", range.len());
    let total = byte_len(shape, dtype).ok_or_else(outside)?;
    Strided::reach(shape, *offset, strides).filter(|&reach| reach <= held).ok_or_else(outside)?;
    // An expanded tensor is larger than its storage: key/value heads may be repeated about eight times.
    if total as u64 > memory_limit(storages.map.len() as u64) / 2 {
        let size = range.len();
        return Err(format!("a tensor of shape {shape:?} is an expanded view of {size} bytes: save it contiguous"));
    }
    let layout = ElementLayout { dtype, fortran: false, big_endian: false };
    let memory = |range| Bytes::Mapped(Arc::clone(storages.map), range);
    let bytes = match is_contiguous(shape, strides) {
        true if total > 0 => {
            let start = range.start + offset * dtype.size();
            memory(start..start + total)
        }
        true => memory(range.start..range.start),
        false => Bytes::Strided(Arc::new(Strided { memory: memory(range), offset: *offset, strides: strides.clone() })),
    };
    Ok(Tensor::new(shape.clone(), layout, bytes))
}

/// Whether the elements are contiguous in row-major order; the stride of an axis of length 1 does not matter.
fn is_contiguous(shape: &[usize], strides: &[usize]) -> bool {
    let mut due = 1usize;
    let mut axes = shape.iter().zip(strides).rev();
    shape.contains(&0)
        || axes.all(|(extent, stride)| {
            let fits = *extent == 1 || *stride == due;
            due = due.saturating_mul(*extent);
            fits
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_truncation_is_refused_and_nothing_grows() {
        let code = b"\x80\x02}q\x00(X\x01\x00\x00\x00aK\x01X\x01\x00\x00\x00bK\x02u.";
        assert!(matches!(Machine::run(code, code.len()), Some(Pickled::Pairs(pairs)) if pairs.len() == 2));
        for end in 0..code.len() {
            assert!(Machine::run(&code[..end], end).is_none(), "{end}");
        }
        // Each line doubles the value that the line before left in the memo.
        let mut bomb = b"\x80\x02]q\x00".to_vec();
        for _ in 0..64 {
            bomb.extend_from_slice(b"h\x00h\x00\x86q\x00");
        }
        bomb.push(b'.');
        assert!(Machine::run(&bomb, bomb.len()).is_none());
    }

    #[test]
    fn names_of_sglang() {
        let label = Label::parse("step=1___rank=0___dump_index=7___name=q_rope___layer_id=3");
        assert_eq!((label.name.as_str(), label.step), ("layers.3.q_rope", 1));
        assert_eq!(Label::parse("layers.0.q").name, "layers.0.q");
    }
}
