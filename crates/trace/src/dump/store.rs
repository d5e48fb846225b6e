//! Reads byte ranges of files in an object store or on a web server.

use std::fmt::Debug;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use crate::dump::{DumpError, changed, io_error, not_a_dump};
use crate::element::DType;
use crate::npy::{HEADER_LIMIT, Header, NpyError, read_header};
use crate::tensor::Bytes;

/// A folder of files in an object store, or on a web server.
pub trait Store: Debug + Send + Sync {
    /// The names of the files in it, without folders; `None` where the store cannot list them.
    ///
    /// # Errors
    /// When it cannot be reached, or refuses.
    fn names(&self) -> io::Result<Option<Vec<String>>>;

    /// Reads byte ranges of files, in parallel where the store can. A range beyond the end of its file is cut; one that starts there is an error.
    ///
    /// # Errors
    /// For each range: when there is no such file ([`io::ErrorKind::NotFound`]), or the store cannot be reached or refuses.
    fn read(&self, wanted: &[(String, Range<u64>)]) -> Vec<io::Result<Piece>>;
}

/// A range of a file's bytes.
#[derive(Clone, Debug)]
pub struct Piece {
    /// The bytes.
    pub bytes: Vec<u8>,
    /// Size of the whole file in bytes.
    pub size: u64,
}

/// One file of a store.
#[derive(Clone, Debug)]
pub(crate) struct StoredFile {
    store: Arc<dyn Store>,
    pub(super) name: String,
    /// The path for messages.
    path: PathBuf,
    /// Its first bytes, once read.
    pub(super) start: Arc<OnceLock<Piece>>,
}

/// How many bytes of a .npy are read to get its header; 128 are usual.
pub(super) const START: u64 = 1024;

impl StoredFile {
    pub(super) fn new(store: &Arc<dyn Store>, folder: &Path, name: &str) -> StoredFile {
        StoredFile { store: Arc::clone(store), name: name.to_owned(), path: folder.join(name), start: Arc::default() }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// A range of its bytes, and its size.
    pub(crate) fn piece(&self, range: Range<u64>) -> Result<Piece, DumpError> {
        let wanted = range.end.saturating_sub(range.start);
        let mut read = self.store.read(&[(self.name.clone(), range.clone())]);
        let piece = read.pop().unwrap_or_else(|| Err(io::ErrorKind::UnexpectedEof.into()));
        let piece = piece.map_err(|source| io_error(&self.path, source))?;
        match piece.bytes.len() as u64 == wanted.min(piece.size.saturating_sub(range.start)) {
            true => Ok(piece),
            false => Err(io_error(&self.path, io::ErrorKind::UnexpectedEof.into())),
        }
    }

    /// All bytes, if at most `limit`.
    pub(crate) fn whole(&self, limit: u64) -> Result<Vec<u8>, DumpError> {
        let piece = self.piece(0..limit)?;
        match piece.size > limit {
            true => Err(not_a_dump(
                &self.path,
                &format!("{} bytes, and {limit} are the most that are read of such a file", piece.size),
            )),
            false => Ok(piece.bytes),
        }
    }

    /// The same for a file that may be absent.
    pub(super) fn whole_if_there(&self, limit: u64) -> Result<Option<Vec<u8>>, DumpError> {
        match self.whole(limit) {
            Err(DumpError::Io { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
            read => read.map(Some),
        }
    }

    /// The header of the .npy.
    pub(crate) fn header(&self, dtype: Option<DType>) -> Result<Header, DumpError> {
        let start = match self.start.get() {
            Some(start) => start.clone(),
            None => self.piece(0..START)?,
        };
        let read = |start: &Piece| {
            let total =
                usize::try_from(start.size).map_err(|_| not_a_dump(&self.path, "too large for this machine"))?;
            read_header(&start.bytes, total, dtype).map_err(|source| DumpError::Npy { path: self.path.clone(), source })
        };
        let longer = |e: &DumpError| matches!(e, DumpError::Npy { source: NpyError::Header(_), .. });
        match read(&start) {
            Err(e) if longer(&e) && start.size > START => read(&self.piece(0..HEADER_LIMIT as u64)?),
            header => header,
        }
    }

    /// The data of the .npy, whose header `known` was read before.
    pub(crate) fn npy(&self, known: &Header) -> Result<Bytes, DumpError> {
        let piece = self.piece(0..u64::MAX)?;
        let header = read_header(&piece.bytes, piece.bytes.len(), Some(known.layout.dtype));
        if header.map_err(|source| DumpError::Npy { path: self.path.clone(), source })? != *known {
            return Err(changed(&self.path));
        }
        let end = piece.bytes.len();
        Ok(Bytes::Owned(piece.bytes.into(), known.data..end))
    }
}
