//! Reads .npz and .safetensors archives without unpacking them to disk.

use std::collections::{BTreeMap, HashSet};
use std::io::{self, Cursor, Read};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use memmap2::Mmap;
use safetensors::Dtype;
use safetensors::tensor::Metadata;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, Visitor};
use zip::ZipArchive;
use zip::result::ZipError;

use crate::dump::store::StoredFile;
use crate::dump::{DumpError, changed, map_file};
use crate::element::DType;
use crate::file::{JSON_LIMIT, json_fits, memory_limit};
use crate::meta::AttentionMask;
use crate::npy::{HEADER_LIMIT, Header, MASK_LIMIT, NpyError, read_header, read_mask};
use crate::tensor::{Bytes, ElementLayout};

/// One file that holds many tensors.
#[derive(Debug)]
pub(crate) struct Archive {
    path: PathBuf,
    size: u64,
    kind: ArchiveKind,
}

#[derive(Debug)]
enum ArchiveKind {
    /// A zip of .npy members; reading a member needs exclusive access to the zip reader.
    Npz { zip: Mutex<ZipArchive<Cursor<FileBytes>>>, names: Vec<String> },
    Safetensors {
        source: ByteSource,
        tensors: BTreeMap<String, (Dtype, Vec<usize>, Range<usize>)>,
        json: Option<String>,
    },
}

/// The bytes of a whole file, mapped or in memory.
#[derive(Clone, Debug)]
enum FileBytes {
    Mapped(Arc<Mmap>),
    Read(Arc<[u8]>),
}

impl AsRef<[u8]> for FileBytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            FileBytes::Mapped(map) => map,
            FileBytes::Read(bytes) => bytes,
        }
    }
}

/// Where the bytes of the tensors come from.
#[derive(Debug)]
enum ByteSource {
    Mapped(Arc<Mmap>),
    Stored(StoredFile),
}

/// The unpacked size that is allowed for all members of a .npz together, whatever the size of the file.
const UNPACKED_LIMIT: u64 = 256 << 20;
/// Above that, the largest ratio of unpacked to packed size: numbers never come near it, zeros reach 1000.
const UNPACKED_FOLD: u64 = 200;

/// The .npz member, and the key in .safetensors metadata, with the content of dump.json.
const META_MEMBER: &str = "dump.json";
const META_KEY: &str = "dump";

const NO_HEADER: &str = "not a .safetensors: it ends inside its header";

impl Archive {
    pub(crate) fn open_npz(path: &Path) -> Result<Archive, DumpError> {
        Archive::npz(path, FileBytes::Mapped(map_archive(path)?))
    }

    /// A .npz whose bytes are in memory.
    pub(crate) fn npz_from_bytes(path: &Path, bytes: Vec<u8>) -> Result<Archive, DumpError> {
        Archive::npz(path, FileBytes::Read(bytes.into()))
    }

    fn npz(path: &Path, held: FileBytes) -> Result<Archive, DumpError> {
        let bytes = held.as_ref();
        let size = bytes.len() as u64;
        let zip = ZipArchive::new(Cursor::new(held.clone())).map_err(|e| damaged(path, zip_reason(e)))?;
        if let Some(twice) = duplicate_member(bytes, &zip) {
            return Err(damaged(path, format!("member '{}' is there twice", twice.escape_debug())));
        }
        let names = zip.file_names().map(str::to_owned).collect();
        let unpacked = members(bytes, &zip).fold(0u64, |sum, (_, size)| sum.saturating_add(size));
        if unpacked > UNPACKED_LIMIT.saturating_add(size.saturating_mul(UNPACKED_FOLD)) {
            return Err(damaged(
                path,
                format!("{size} bytes that unpack to {unpacked}: no numbers are packed like that"),
            ));
        }
        Ok(Archive { path: path.into(), size, kind: ArchiveKind::Npz { zip: Mutex::new(zip), names } })
    }

    pub(crate) fn open_safetensors(path: &Path) -> Result<Archive, DumpError> {
        let map = map_archive(path)?;
        let (length, rest) = map.split_first_chunk::<8>().ok_or_else(|| damaged(path, NO_HEADER.into()))?;
        let length = usize::try_from(u64::from_le_bytes(*length)).unwrap_or(usize::MAX);
        let header = rest.get(..length).ok_or_else(|| damaged(path, NO_HEADER.into()))?;
        Archive::safetensors(path, header, map.len() as u64, ByteSource::Mapped(Arc::clone(&map)))
    }

    /// A .safetensors in a store: its header is read now, each tensor when it is asked for.
    pub(crate) fn of_stored_safetensors(file: StoredFile) -> Result<Archive, DumpError> {
        let path = file.path().to_owned();
        let length = file.piece(0..8)?;
        let size = length.size;
        let length = length.bytes.first_chunk().map(|length| u64::from_le_bytes(*length));
        let fits = |length: &u64| length.checked_add(8).is_some_and(|end| end <= size);
        let length = length.filter(fits).ok_or_else(|| damaged(&path, NO_HEADER.into()))?;
        let header = file.piece(8..8 + length)?.bytes;
        Archive::safetensors(&path, &header, size, ByteSource::Stored(file))
    }

    /// A .safetensors by its header, in a file of `size` bytes.
    fn safetensors(path: &Path, header: &[u8], size: u64, source: ByteSource) -> Result<Archive, DumpError> {
        let err = |reason: String| damaged(path, format!("not a .safetensors: {reason}"));
        check_header(header, size).map_err(err)?;
        let metadata: Metadata = serde_json::from_slice(header).map_err(|e| err(e.to_string()))?;
        let (start, found) = (8 + header.len(), metadata.tensors());
        let end = found.values().map(|t| t.data_offsets.1).max().unwrap_or(0);
        let needed = start.checked_add(end);
        if needed.map(|needed| needed as u64) != Some(size) {
            return Err(err(format!(
                "its header asks for {end} bytes of data, the file holds {}",
                size - start as u64
            )));
        }
        let tensors = found
            .into_iter()
            .map(|(name, t)| {
                let range = start + t.data_offsets.0..start + t.data_offsets.1;
                (name, (t.dtype, t.shape.clone(), range))
            })
            .collect();
        let json = metadata.metadata().as_ref().and_then(|m| m.get(META_KEY)).cloned();
        Ok(Archive { path: path.into(), size, kind: ArchiveKind::Safetensors { source, tensors, json } })
    }

    /// Size of the file in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Names of the members, except `dump.json`.
    pub(crate) fn names(&self) -> Box<dyn Iterator<Item = &str> + '_> {
        match &self.kind {
            ArchiveKind::Npz { names, .. } => Box::new(names.iter().map(String::as_str).filter(|n| *n != META_MEMBER)),
            ArchiveKind::Safetensors { tensors, .. } => Box::new(tensors.keys().map(String::as_str)),
        }
    }

    pub(crate) fn meta_json(&self) -> Result<Option<Vec<u8>>, DumpError> {
        match &self.kind {
            ArchiveKind::Npz { names, .. } if names.iter().any(|n| n == META_MEMBER) => {
                let (bytes, total) = self.unpack(META_MEMBER, JSON_LIMIT.min(memory_limit(self.size) / 4) as usize)?;
                match total > bytes.len() {
                    true => Err(self.member_error(
                        META_MEMBER,
                        format!("bytes that unpack to {total}: no dump.json is that large"),
                    )),
                    false => Ok(Some(bytes)),
                }
            }
            ArchiveKind::Npz { .. } => Ok(None),
            ArchiveKind::Safetensors { json, .. } => Ok(json.clone().map(String::into_bytes)),
        }
    }

    pub(crate) fn header(&self, name: &str, declared: Option<DType>) -> Result<Header, DumpError> {
        match &self.kind {
            ArchiveKind::Npz { .. } => {
                let (start, total) = self.unpack(name, HEADER_LIMIT)?;
                read_header(&start, total, declared).map_err(|source| self.npy_error(name, source))
            }
            ArchiveKind::Safetensors { tensors, .. } => {
                let (dtype, shape, range) = tensors.get(name).ok_or_else(|| self.absent(name))?;
                let dtype = match dtype {
                    Dtype::F64 => DType::F64,
                    Dtype::F32 => DType::F32,
                    Dtype::F16 => DType::F16,
                    Dtype::BF16 => DType::BF16,
                    other => return Err(self.npy_error(name, NpyError::DType(format!("{other:?}")))),
                };
                if let Some(declared) = declared.filter(|&d| d != dtype) {
                    return Err(self.npy_error(name, NpyError::OtherDType { header: dtype, declared }));
                }
                let layout = ElementLayout { dtype, fortran: false, big_endian: false };
                Ok(Header { shape: shape.clone(), layout, data: range.start })
            }
        }
    }

    /// Reads a member as a mask, if it is one.
    pub(crate) fn mask(&self, name: &str) -> Option<AttentionMask> {
        let ArchiveKind::Safetensors { tensors, .. } = &self.kind else {
            return read_mask(&self.unpack(name, MASK_LIMIT as usize).ok()?.0);
        };
        let (dtype, shape, range) = tensors.get(name)?;
        let (size, one) = match dtype {
            Dtype::BOOL | Dtype::U8 | Dtype::I8 => (1, 1),
            Dtype::I32 | Dtype::U32 => (4, 1),
            Dtype::I64 | Dtype::U64 => (8, 1),
            Dtype::F32 => (4, u64::from(1f32.to_bits())),
            _ => return None,
        };
        let layout = ElementLayout { dtype: DType::F32, fortran: false, big_endian: false };
        let bytes = self.bytes(name, &Header { shape: shape.clone(), layout, data: range.start }).ok()?;
        AttentionMask::parse_bytes(shape, bytes.get(), size, one)
    }

    pub(crate) fn bytes(&self, name: &str, header: &Header) -> Result<Bytes, DumpError> {
        match &self.kind {
            ArchiveKind::Npz { .. } => {
                let (bytes, total) = self.unpack(name, usize::MAX)?;
                let again = read_header(&bytes, total, Some(header.layout.dtype));
                if again.map_err(|source| self.npy_error(name, source))? != *header {
                    return Err(damaged(&self.path, format!("{name} changed while it was read")));
                }
                let end = bytes.len();
                Ok(Bytes::Owned(bytes.into(), header.data..end))
            }
            ArchiveKind::Safetensors { source, tensors, .. } => {
                let (_, _, range) = tensors.get(name).ok_or_else(|| self.absent(name))?;
                match source {
                    ByteSource::Mapped(map) => Ok(Bytes::Mapped(Arc::clone(map), range.clone())),
                    ByteSource::Stored(_) if range.is_empty() => Ok(Bytes::Owned([].into(), 0..0)),
                    ByteSource::Stored(file) => {
                        let piece = file.piece(range.start as u64..range.end as u64)?;
                        let as_before = piece.size == self.size && piece.bytes.len() == range.len();
                        as_before
                            .then(|| Bytes::Owned(piece.bytes.into(), 0..range.len()))
                            .ok_or_else(|| changed(&self.path))
                    }
                }
            }
        }
    }

    /// The first `limit` bytes of a .npz member, and its whole size. Reading to the end checks size and CRC.
    fn unpack(&self, name: &str, limit: usize) -> Result<(Vec<u8>, usize), DumpError> {
        let ArchiveKind::Npz { zip, .. } = &self.kind else { return Err(self.absent(name)) };
        let mut zip = zip.lock().unwrap_or_else(PoisonError::into_inner);
        let member = zip.by_name(name).map_err(|e| self.member_error(name, zip_reason(e)))?;
        let total = usize::try_from(member.size()).map_err(|_| self.member_error(name, "too large".into()))?;
        // A growing buffer is in memory twice for a moment.
        if member.size() > memory_limit(self.size) / 2 {
            let packed = member.compressed_size();
            let reason = format!("{packed} bytes that unpack to {total}: no numbers are packed like that");
            return Err(self.member_error(name, reason));
        }
        // The declared size cannot be trusted: no more is reserved than the size of the file.
        let mut bytes = Vec::with_capacity(limit.min(total).min(self.size as usize));
        // One byte more than declared, to detect a member that holds more.
        let take = (limit as u64).min((total as u64).saturating_add(1));
        member.take(take).read_to_end(&mut bytes).map_err(|e| self.member_error(name, e.to_string()))?;
        if limit > total && bytes.len() != total {
            let reason = format!("{total} bytes promised, {} held", bytes.len());
            return Err(self.member_error(name, reason));
        }
        Ok((bytes, total))
    }

    fn absent(&self, name: &str) -> DumpError {
        damaged(&self.path, format!("no member '{}', though dump.json lists it", name.escape_debug()))
    }

    fn member_error(&self, name: &str, reason: String) -> DumpError {
        damaged(&self.path, format!("member '{}': {reason}", name.escape_debug()))
    }

    fn npy_error(&self, name: &str, source: NpyError) -> DumpError {
        DumpError::Npy { path: self.path.join(name), source }
    }
}

/// The first member of a zip whose name occurs twice; the table of members keeps only the last of them.
pub(crate) fn duplicate_member<R: Read + io::Seek>(bytes: &[u8], zip: &ZipArchive<R>) -> Option<String> {
    let mut seen = HashSet::new();
    match members(bytes, zip).find(|(name, _)| !seen.insert(*name)) {
        Some((name, _)) => Some(String::from_utf8_lossy(name).into_owned()),
        // Two names that are one only when decoded.
        None => (seen.len() != zip.len()).then(|| "?".to_owned()),
    }
}

/// Name and unpacked size of every record in a zip's central directory, duplicate names included.
fn members<'a, R: Read + io::Seek>(bytes: &'a [u8], zip: &ZipArchive<R>) -> impl Iterator<Item = (&'a [u8], u64)> {
    const RECORD: usize = 46;
    let start = usize::try_from(zip.central_directory_start()).ok();
    let mut rest = start.and_then(|start| bytes.get(start..)).unwrap_or_default();
    std::iter::from_fn(move || {
        let record = rest.get(..RECORD).filter(|record| record.starts_with(b"PK\x01\x02"))?;
        let length = |at: usize| usize::from(u16::from_le_bytes([record[at], record[at + 1]]));
        let size = u32::from_le_bytes([record[24], record[25], record[26], record[27]]);
        let name = rest.get(RECORD..RECORD + length(28))?;
        rest = rest.get(RECORD + length(28) + length(30) + length(32)..)?;
        Some((name, u64::from(size)))
    })
}

/// Checks the header of a .safetensors of `size` bytes before it is parsed: its size, and that no name occurs twice, of which the parser would keep one.
fn check_header(header: &[u8], size: u64) -> Result<(), String> {
    if !json_fits(header, size) {
        return Err("its header holds far more values than that of any run".into());
    }
    let Ok(OrderedKeys(names)) = serde_json::from_slice(header) else { return Ok(()) };
    let mut seen = HashSet::new();
    match names.iter().find(|name| !seen.insert(name.as_str())) {
        Some(twice) => Err(format!("tensor '{}' is there twice", twice.escape_debug())),
        None => Ok(()),
    }
}

/// The keys of a JSON object in order, duplicates included.
struct OrderedKeys(Vec<String>);

impl<'de> Deserialize<'de> for OrderedKeys {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<OrderedKeys, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = OrderedKeys;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<OrderedKeys, A::Error> {
                let mut keys = Vec::new();
                while let Some((key, IgnoredAny)) = map.next_entry()? {
                    keys.push(key);
                }
                Ok(OrderedKeys(keys))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

fn map_archive(path: &Path) -> Result<Arc<Mmap>, DumpError> {
    let length = std::fs::metadata(path).map_err(|source| DumpError::Io { path: path.into(), source })?.len();
    if length == 0 {
        return Err(damaged(path, "the file is empty".into()));
    }
    map_file(path)
}

fn damaged(path: &Path, reason: String) -> DumpError {
    DumpError::Archive { path: path.into(), reason }
}

fn zip_reason(error: ZipError) -> String {
    match error {
        ZipError::Io(e) if e.kind() == io::ErrorKind::UnexpectedEof => "truncated: not a whole .npz".into(),
        ZipError::FileNotFound => "not there, though dump.json lists it".into(),
        other => format!("not a whole .npz: {other}"),
    }
}
