//! Maps a weight file into memory, after a check that it is a regular file that is not empty.

use std::fs::File;
use std::path::Path;

use memmap2::Mmap;

use crate::entry::Bytes;
use crate::error::ModelError;

/// Maps the regular file `file`, which must not be empty.
pub(crate) fn map(file: &Path) -> Result<Bytes, ModelError> {
    let io = |source| ModelError::Io { file: file.into(), source };
    // Checked before opening: opening a pipe would wait for its writer.
    let meta = std::fs::metadata(file).map_err(io)?;
    if !meta.is_file() {
        return Err(ModelError::Format { file: file.into(), reason: "is no regular file".into() });
    }
    if meta.len() == 0 {
        return Err(ModelError::Format { file: file.into(), reason: "is empty".into() });
    }
    let opened = File::open(file).map_err(io)?;
    // SAFETY: the map is read only. As with any mapped file, it must not be truncated while it is open.
    let map = unsafe { Mmap::map(&opened) }.map_err(io)?;
    Ok(Box::new(map))
}

/// A little-endian reader, which checks every length against the bytes that are left.
#[derive(Clone, Copy)]
pub(crate) struct Cursor<'a> {
    bytes: &'a [u8],
    /// The position of the next byte.
    pub(crate) at: usize,
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Cursor<'a> {
        Cursor { bytes, at: 0 }
    }

    /// Bytes not read yet.
    pub(crate) fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    /// The next `count` bytes.
    pub(crate) fn read_bytes(&mut self, count: u64) -> Result<&'a [u8], String> {
        match usize::try_from(count) {
            Ok(count) if count <= self.left() => {
                self.at += count;
                Ok(&self.bytes[self.at - count..self.at])
            }
            _ => Err(format!("{count} bytes are announced at byte {}, where {} are left", self.at, self.left())),
        }
    }

    /// The next N bytes.
    pub(crate) fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let mut out = [0; N];
        out.copy_from_slice(self.read_bytes(N as u64)?);
        Ok(out)
    }

    /// Skips `count` bytes.
    pub(crate) fn skip(&mut self, count: u64) -> Result<(), String> {
        self.read_bytes(count).map(drop)
    }
}
