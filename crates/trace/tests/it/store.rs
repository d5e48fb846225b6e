//! Checks that a dump in a store is read as the same files on disk: every tensor, every error.

use std::collections::BTreeMap;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use firstdiff_trace::{Dump, OpenOptions, Piece, Recorder, Store};

/// Files in memory.
#[derive(Debug, Default)]
struct Held {
    files: BTreeMap<String, Vec<u8>>,
    tells_names: bool,
    /// How many bytes are missing at the end of each range.
    short: usize,
    read: AtomicU64,
}

impl Held {
    fn of(folder: &Path) -> Held {
        let paths = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let files = paths
            .filter(|path| path.is_file())
            .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), std::fs::read(path).unwrap()));
        Held { files: files.collect(), tells_names: true, ..Held::default() }
    }
}

impl Store for Held {
    fn names(&self) -> io::Result<Option<Vec<String>>> {
        Ok(self.tells_names.then(|| self.files.keys().cloned().collect()))
    }

    fn read(&self, wanted: &[(String, Range<u64>)]) -> Vec<io::Result<Piece>> {
        let one = |(name, range): &(String, Range<u64>)| {
            let bytes = self.files.get(name).ok_or(io::ErrorKind::NotFound)?;
            let size = bytes.len() as u64;
            let range = range.start as usize..range.end.min(size) as usize;
            let bytes = &bytes[range];
            let bytes = bytes[..bytes.len() - self.short.min(bytes.len())].to_vec();
            self.read.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            Ok(Piece { bytes, size })
        };
        wanted.iter().map(one).collect()
    }
}

fn open(store: &Arc<Held>, file: Option<&str>) -> Result<Dump, String> {
    let store: Arc<dyn Store> = store.clone();
    Dump::open_store(Path::new("s3://bucket/run"), file, &store, &OpenOptions::default()).map_err(|e| e.to_string())
}

/// A run of several taps, one of them outside the vocabulary, with a decode step.
fn recorded() -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    let rec = Recorder::create(folder.path()).unwrap();
    rec.tokens(&[1, 2, 3]);
    let values: Vec<f32> = (0..12_000).map(|i| (i as f32).sin()).collect();
    rec.record("h0", &[3, 4000], &values).unwrap();
    rec.record("layers.0.h", &[3, 4], &values[..12]).unwrap();
    rec.record("layers.0.own/name", &[3, 2], &values[..6]).unwrap();
    rec.finish().unwrap();
    folder
}

fn same(one: &Dump, other: &Dump) {
    assert_eq!(one.entries().len(), other.entries().len());
    for entry in one.all_entries() {
        let there = other.entry(entry.tap, entry.step).unwrap();
        assert_eq!((&entry.shape, entry.dtype), (&there.shape, there.dtype));
        let [one, other] = [one.read(&entry).unwrap(), other.read(&there).unwrap()];
        assert_eq!(one.values().to_f64(), other.values().to_f64());
    }
    assert_eq!((one.meta(), one.unmapped()), (other.meta(), other.unmapped()));
}

#[test]
fn a_folder_with_names_and_without() {
    let folder = recorded();
    let here = Dump::open(folder.path()).unwrap();
    let mut held = Held::of(folder.path());
    for tells_names in [true, false] {
        held.tells_names = tells_names;
        let store = Arc::new(std::mem::take(&mut held));
        let there = open(&store, None).unwrap();
        assert!(store.read.load(Ordering::Relaxed) < 10_000, "headers alone are read when a dump is opened");
        same(&here, &there);
        held = Held { read: AtomicU64::new(0), files: store.files.clone(), ..Held::default() };
    }
    held.files.remove("dump.json");
    let error = open(&Arc::new(held), None).unwrap_err();
    assert!(error.contains("does not tell which files it has"), "{error}");
}

#[test]
fn archives_and_single_files() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures");
    let path = fixtures.join("faulty/minimind-mask-omitted.npz");
    let store = Arc::new(Held::of(path.parent().unwrap()));
    same(&Dump::open(&path).unwrap(), &open(&store, path.file_name().unwrap().to_str()).unwrap());
    let folder = tempfile::tempdir().unwrap();
    let bytes: Vec<u8> = (0..6).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let view = || safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 3], &bytes).unwrap();
    let path = folder.path().join("run.safetensors");
    safetensors::serialize_to_file([("h0", view()), ("layers.0.h", view())], None, &path).unwrap();
    let mut held = Held::of(folder.path());
    let store = Arc::new(std::mem::take(&mut held));
    // By its name, and as the only file of the folder.
    same(&Dump::open(&path).unwrap(), &open(&store, Some("run.safetensors")).unwrap());
    same(&Dump::open(&path).unwrap(), &open(&store, None).unwrap());
    let mut cut = Held { files: store.files.clone(), ..Held::default() };
    cut.files.get_mut("run.safetensors").unwrap().pop();
    assert!(open(&Arc::new(cut), Some("run.safetensors")).unwrap_err().contains("asks for 48 bytes of data"));
    let error = open(&store, Some("run.txt")).unwrap_err();
    assert!(error.contains("end its address with /"), "{error}");
    let recorded = recorded();
    let store = Arc::new(Held::of(recorded.path()));
    assert_eq!(open(&store, Some("h0.npy")).unwrap().entries()[0].shape, [3, 4000]);
    assert!(open(&store, Some("none.npy")).unwrap_err().contains("s3://bucket/run/none.npy"));
}

#[test]
fn a_table_of_names_beside_the_files() {
    let folder = recorded();
    std::fs::rename(folder.path().join("h0.npy"), folder.path().join("mine.npy")).unwrap();
    std::fs::remove_file(folder.path().join("dump.json")).unwrap();
    std::fs::write(folder.path().join("firstdiff.toml"), "\"mine\" = \"h0\"").unwrap();
    let there = open(&Arc::new(Held::of(folder.path())), None).unwrap();
    assert_eq!(there.entries()[0].tap.to_string(), "h0");
}

#[test]
fn what_the_store_does_not_give_is_an_error() {
    let folder = recorded();
    let whole = Held::of(folder.path());
    // A file listed in dump.json is missing, or cut.
    let mut missing = Held { files: whole.files.clone(), tells_names: true, ..Held::default() };
    missing.files.remove("h0.npy");
    assert!(open(&Arc::new(missing), None).unwrap_err().contains("h0.npy"));
    let mut cut = Held { files: whole.files.clone(), tells_names: true, ..Held::default() };
    cut.files.get_mut("h0.npy").unwrap().truncate(5000);
    assert!(open(&Arc::new(cut), None).unwrap_err().contains("needs 48000 bytes of data"));
    // A connection that ends early.
    let short = Held { files: whole.files.clone(), tells_names: true, short: 1, ..Held::default() };
    assert!(open(&Arc::new(short), None).is_err());
    // A file that changes before it is read.
    let store = Arc::new(whole);
    let there = open(&store, None).unwrap();
    let entry = there.entries()[0].clone();
    drop(there);
    let mut other = Held { files: store.files.clone(), tells_names: true, ..Held::default() };
    let changed = other.files.get("layers.0.h.npy").unwrap().clone();
    other.files.insert("h0.npy".into(), changed);
    assert!(open(&Arc::new(other), None).is_err(), "shape by dump.json is another");
    assert_eq!(entry.shape, [3, 4000]);
}
