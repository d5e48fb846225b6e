//! Opens files safely: regular files only, with limits on size and on memory.

use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

/// The largest JSON file that is read whole: `dump.json`, a safetensors index.
pub const JSON_LIMIT: u64 = 64 << 20;
/// The largest `firstdiff.toml`.
pub const TABLE_LIMIT: u64 = 1 << 20;

/// Memory that reading any file may allocate, and how many times the file's size on top of it.
const MEMORY_BASE: u64 = 64 << 20;
const MEMORY_FACTOR: u64 = 4;
/// The most memory for a value of a parsed JSON document: 32 bytes, in a vector that doubles as it grows, or with its key in a tree.
const JSON_VALUE_BYTES: u64 = 64;

/// The error for a folder, a pipe or a device in the place of a file.
pub(crate) const NOT_A_FILE: &str = "not a file: a folder, a pipe or a device is not read";

/// Why a file is not read.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// The file system returned an error.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// A folder, a pipe, a device, a socket: reading may never end.
    #[error("{}: {NOT_A_FILE}", path.display())]
    NotRegular {
        /// The path.
        path: PathBuf,
    },
    /// The file is larger than the limit.
    #[error("{}: {size} bytes, and {limit} are the most that are read of such a file", path.display())]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size.
        size: u64,
        /// The most it may hold.
        limit: u64,
    },
}

/// Opens a regular file, and returns its size. The type is checked before opening: opening a pipe would wait for its writer.
///
/// # Errors
/// When it is not a regular file, or cannot be opened.
pub fn open_regular(path: &Path) -> Result<(File, u64), FileError> {
    let io = |source| FileError::Io { path: path.into(), source };
    if !fs::metadata(path).map_err(io)?.is_file() {
        return Err(FileError::NotRegular { path: path.into() });
    }
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    match meta.is_file() {
        true => Ok((file, meta.len())),
        false => Err(FileError::NotRegular { path: path.into() }),
    }
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// When it is not a regular file, cannot be read, or is larger.
pub fn read_regular(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    let (file, size) = open_regular(path)?;
    let mut bytes = Vec::with_capacity(usize::try_from(size.min(limit)).unwrap_or(0));
    // Some system files report no size.
    let read = file.take(limit.saturating_add(1)).read_to_end(&mut bytes);
    read.map_err(|source| FileError::Io { path: path.into(), source })?;
    match bytes.len() as u64 > limit {
        true => Err(FileError::TooLarge { path: path.into(), size: size.max(bytes.len() as u64), limit }),
        false => Ok(bytes),
    }
}

/// The memory that reading a file of `size` bytes may allocate.
pub fn memory_limit(size: u64) -> u64 {
    size.saturating_mul(MEMORY_FACTOR).saturating_add(MEMORY_BASE)
}

/// Whether the JSON document `text`, from a file of `size` bytes, can be parsed within [`memory_limit`]: a few bytes of JSON may take far more memory.
pub fn json_fits(text: &[u8], size: u64) -> bool {
    json_memory(text, JSON_VALUE_BYTES, JSON_VALUE_BYTES).saturating_add(text.len() as u64) <= memory_limit(size)
}

/// The memory of a JSON tree if each list, object and key takes `node` bytes, and each further value `value`.
pub(crate) fn json_memory(text: &[u8], node: u64, value: u64) -> u64 {
    let (mut nodes, mut values, mut inside, mut escaped) = (0u64, 1u64, false, false);
    for &byte in text {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if inside => escaped = true,
            b'"' => inside = !inside,
            b':' | b'[' | b'{' if !inside => nodes += 1,
            b',' if !inside => values += 1,
            _ => {}
        }
    }
    nodes.saturating_mul(node).saturating_add(values.saturating_mul(value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_regular_files_up_to_the_limit() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("a");
        fs::write(&file, "12345").unwrap();
        assert_eq!(read_regular(&file, 5).unwrap(), b"12345");
        assert!(matches!(read_regular(&file, 4), Err(FileError::TooLarge { size: 5, limit: 4, .. })));
        assert!(matches!(read_regular(folder.path(), 4), Err(FileError::NotRegular { .. })));
        assert!(matches!(read_regular(&folder.path().join("b"), 4), Err(FileError::Io { .. })));
        #[cfg(unix)]
        assert!(matches!(read_regular(Path::new("/dev/zero"), 4), Err(FileError::NotRegular { .. })));
    }

    #[test]
    fn values_of_json_are_counted_outside_of_texts() {
        assert_eq!(json_memory(br#"{"a": [1, 2], "b,[": "\",["}"#, 100, 1), 403);
        let small = "[".to_owned() + &"0,".repeat(1000) + "0]";
        assert!(json_fits(small.as_bytes(), small.len() as u64));
        let large = "[".to_owned() + &"0,".repeat(4 << 20) + "0]";
        assert!(!json_fits(large.as_bytes(), large.len() as u64));
    }
}
