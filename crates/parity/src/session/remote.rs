//! Reads dumps at an address: in S3, in Google Cloud Storage, or on a web server. Reads ranges of their files, and copies no file.

use std::path::Path;

use anyhow::Result;
use firstdiff_trace::{Dump, OpenOptions};

/// The beginnings of addresses.
const SCHEMES: [&str; 4] = ["s3://", "gs://", "http://", "https://"];

/// Whether it is an address, not a path on this machine.
pub fn is_address(path: &Path) -> bool {
    path.to_str().is_some_and(|text| SCHEMES.iter().any(|scheme| text.starts_with(scheme)))
}

/// Opens the dump at an address.
///
/// # Errors
/// When this command was built without the feature that reads from stores.
#[cfg(not(feature = "remote"))]
pub fn open(address: &Path, _: &OpenOptions) -> Result<Dump> {
    anyhow::bail!(
        "{}: this firstdiff reads files of this machine alone; copy the dump here, or install it with `cargo install firstdiff --features remote`",
        address.display()
    )
}

#[cfg(feature = "remote")]
pub use objects::open;

#[cfg(feature = "remote")]
mod objects {
    use std::ops::Range;
    use std::sync::Arc;
    use std::{fmt, io};

    use anyhow::{Context, bail};
    use firstdiff_trace::{Piece, Store};
    use futures_util::{StreamExt, TryStreamExt, stream};
    use object_store::aws::AmazonS3Builder;
    use object_store::gcp::GoogleCloudStorageBuilder;
    use object_store::http::HttpBuilder;
    use object_store::path::Path as Key;
    use object_store::{
        ClientOptions, Error, GetOptions, GetRange, GetResult, ObjectStore, ObjectStoreExt, RetryConfig,
    };
    use tokio::runtime::Runtime;
    use url::{Position, Url};

    use super::{Dump, OpenOptions, Path, Result};

    /// How many bytes one request asks for: large files are read by several requests at a time.
    const REQUEST: u64 = 8 << 20;
    /// How many requests run at a time.
    const AT_A_TIME: usize = 16;
    /// How often a request that failed is sent again.
    const RETRIES: usize = 3;

    /// A folder of a store.
    struct Objects {
        store: Arc<dyn ObjectStore>,
        folder: Key,
        /// Whether it is a web server, which may neither list its files nor support ranges.
        is_web: bool,
        runtime: Runtime,
    }

    impl fmt::Debug for Objects {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{}/{}", self.store, self.folder)
        }
    }

    /// Opens the dump at an address: a folder, or a .npz, a .safetensors or a .npy. Credentials come from the environment, as object_store reads it (AWS_*,
    /// GOOGLE_*).
    ///
    /// # Errors
    /// When it is no address, the store refuses or cannot be reached, or there is no dump.
    pub fn open(address: &Path, reading: &OpenOptions) -> Result<Dump> {
        let text = address.to_string_lossy();
        let url = Url::parse(&text).with_context(|| text.clone().into_owned())?;
        if url.query().is_some() || url.fragment().is_some() {
            bail!("{text}: an address with '?' or '#'; of a signed one copy the file here");
        }
        let all = Key::from_url_path(url.path()).with_context(|| text.clone().into_owned())?;
        let parts: Vec<_> = all.parts().collect();
        let is_file = ["npz", "safetensors", "npy"].map(Some).contains(&all.extension()) && !text.ends_with('/');
        let (folder, file) = match parts.split_last() {
            Some((last, folder)) if is_file => (folder.iter().cloned().collect(), Some(last.as_ref().to_owned())),
            _ => (all.clone(), None),
        };
        let shown = match &file {
            Some(_) => text.rsplit_once('/').map_or(&*text, |(folder, _)| folder),
            None => text.trim_end_matches('/'),
        };
        let retry = RetryConfig { max_retries: RETRIES, ..RetryConfig::default() };
        let (store, is_web): (Arc<dyn ObjectStore>, bool) = match url.scheme() {
            "s3" => (Arc::new(AmazonS3Builder::from_env().with_url(&*text).with_retry(retry).build()?), false),
            "gs" => {
                (Arc::new(GoogleCloudStorageBuilder::from_env().with_url(&*text).with_retry(retry).build()?), false)
            }
            _ => {
                let options = ClientOptions::new().with_allow_http(true);
                let server = &url[..Position::BeforePath];
                let server = HttpBuilder::new().with_url(server).with_client_options(options).with_retry(retry);
                (Arc::new(server.build()?), true)
            }
        };
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
        let store: Arc<dyn Store> = Arc::new(Objects { store, folder, is_web, runtime });
        Ok(Dump::open_store(Path::new(shown), file.as_deref(), &store, reading)?)
    }

    impl Store for Objects {
        fn names(&self) -> io::Result<Option<Vec<String>>> {
            let folder = Some(&self.folder).filter(|folder| !folder.as_ref().is_empty());
            match self.runtime.block_on(self.store.list_with_delimiter(folder)) {
                Ok(found) => {
                    let names = found.objects.iter().filter_map(|object| object.location.filename());
                    let mut names: Vec<String> = names.map(str::to_owned).collect();
                    names.sort();
                    Ok(Some(names))
                }
                Err(_) if self.is_web => Ok(None),
                Err(error) => Err(io_error(error)),
            }
        }

        fn read(&self, requested: &[(String, Range<u64>)]) -> Vec<io::Result<Piece>> {
            let all = stream::iter(requested.iter().cloned()).map(|(name, range)| self.piece(name, range));
            self.runtime.block_on(all.buffered(AT_A_TIME).collect())
        }
    }

    impl Objects {
        /// The first request gives the number of bytes; the others run in parallel, on the same version of the file where the store can ensure that.
        async fn piece(&self, name: String, range: Range<u64>) -> io::Result<Piece> {
            let key = Key::parse(match self.folder.as_ref() {
                "" => name,
                folder => format!("{folder}/{name}"),
            });
            let key = key.map_err(|e| io_error(e.into()))?;
            let first = range.start..range.end.min(range.start.saturating_add(REQUEST));
            let got = match self.get(&key, first.clone(), None).await {
                Err(error) if self.is_web && !matches!(error, Error::NotFound { .. }) => {
                    return self.without_ranges(&key, range).await.map_err(|_| io_error(error));
                }
                got => got.map_err(io_error)?,
            };
            let (size, tag) = (got.meta.size, got.meta.e_tag.clone());
            let mut bytes = got.bytes().await.map_err(io_error)?.to_vec();
            let end = range.end.min(size);
            let starts = (first.end..end).step_by(REQUEST as usize);
            let mut rest = stream::iter(starts)
                .map(|start| {
                    let (key, tag) = (&key, tag.clone());
                    async move { self.get(key, start..end.min(start + REQUEST), tag).await?.bytes().await }
                })
                .buffered(AT_A_TIME);
            while let Some(more) = rest.try_next().await.map_err(io_error)? {
                bytes.extend_from_slice(&more);
            }
            Ok(Piece { bytes, size })
        }

        async fn get(&self, key: &Key, range: Range<u64>, tag: Option<String>) -> Result<GetResult, Error> {
            let options = GetOptions { range: Some(GetRange::Bounded(range)), if_match: tag, ..GetOptions::default() };
            self.store.get_opts(key, options).await
        }

        /// Reads from a server that sends whole files only; stops once enough has arrived.
        async fn without_ranges(&self, key: &Key, range: Range<u64>) -> Result<Piece, Error> {
            let got = self.store.get(key).await?;
            let size = got.meta.size;
            let wanted = range.end.min(size).saturating_sub(range.start);
            let (mut come, mut bytes) = (got.into_stream(), Vec::new());
            let mut at = 0u64;
            while (bytes.len() as u64) < wanted
                && let Some(some) = come.try_next().await?
            {
                let (from, to) = (range.start.saturating_sub(at), range.end.saturating_sub(at));
                let length = some.len() as u64;
                bytes.extend_from_slice(&some[from.min(length) as usize..to.min(length) as usize]);
                at += length;
            }
            Ok(Piece { bytes, size })
        }
    }

    fn io_error(error: Error) -> io::Error {
        match error {
            Error::NotFound { .. } => io::Error::new(io::ErrorKind::NotFound, "no such file there"),
            other => io::Error::other(other),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_paths() {
        for address in ["s3://bucket/run", "gs://bucket/run/x.npz", "http://127.0.0.1:8000/run/"] {
            assert!(is_address(Path::new(address)), "{address}");
        }
        for path in ["s3/run", "out/*.npy", "C:\\run", "./http:"] {
            assert!(!is_address(Path::new(path)), "{path}");
        }
    }
}
