//! Does a damaged file of another form end in an error, or in fewer tensors, and never in a panic or in more memory than it holds?

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::fs;
use std::path::Path;

use firstdiff_trace::Dump;
use proptest::prelude::*;

struct Watched;

thread_local! {
    static LARGEST: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(layout.size())));
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let _ = LARGEST.try_with(|largest| largest.set(largest.get().max(size)));
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.realloc(at, layout, size) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps the allocator's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

/// What a few bytes may grow to: a value of JSON is 32 bytes of memory, a list of them doubles as it grows.
const SLACK: usize = 1 << 16;
const GROWTH: usize = 128;

const LOG: &str = "ggml_debug:  l_out-0 = (f32)  ADD(a{8, 2, 1, 1}, b{8, 2, 1, 1}}) = {8, 2, 1, 1}
 [
  [
   [ 0.1000, 0.2000, 0.3000, ..., 0.6000, 0.7000, 0.8000 ],
   [ 1.1000, 1.2000, 1.3000, ..., 1.6000, 1.7000, 1.8000 ],
  ],
 ]
 sum = 99.000000
";

fn forms() -> Vec<(&'static str, Vec<u8>)> {
    let floats: Vec<u8> = (0..64).flat_map(|i| (i as f32 * 0.37).sin().to_le_bytes()).collect();
    vec![
        ("h0.f32", floats.clone()),
        ("h0.npy", floats),
        ("h0.txt", (0..40).map(|i| format!("[{i}] = {}\n", f64::from(i).sin())).collect::<String>().into()),
        ("run.log", LOG.into()),
        ("x.json", br#"{"tokens": [1, 2], "h0": [[0.5, NaN], [1e3, -2]], "q": {"name": "layers.0.q", "shape": [2], "dtype": "float32", "encoding": "base64", "data": "AACAPwAAAEA="}}"#.into()),
        ("x.jsonl", br#"{"name": "h0", "shape": [4, 9], "values": [1.5, 2.5, 1e308]}"#.into()),
        ("run.txt", b"begin\nlayer 0 q [2, 2]: 1 2 3 4\nlogits (2, 9) = tensor([[1.5, ..., 2.5],\n [3, ..., 4]])\n".into()),
        ("x.pt", pickle()),
    ]
}

/// A .pt with one tensor, as torch.save writes it.
fn pickle() -> Vec<u8> {
    let code = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x00((X\x07\x00\x00\x00storageq\x01ctorch\nFloatStorage\nq\x02X\x01\x00\x00\x000q\x03X\x03\x00\x00\x00cpuq\x04K\x04tq\x05QK\x00K\x02K\x02\x86q\x06K\x02K\x01\x86q\x07\x89ccollections\nOrderedDict\nq\x08)Rq\ttq\nRq\x0b.";
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in
        [("x/data.pkl", &code[..]), ("x/data/0", &[0u8, 0, 128, 63, 0, 0, 0, 64, 0, 0, 64, 64, 0, 0, 128, 64][..])]
    {
        zip.start_file(name, stored).unwrap();
        std::io::Write::write_all(&mut zip, bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

fn read(folder: &Path, name: &str, bytes: &[u8]) -> Option<usize> {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    LARGEST.set(0);
    let dump = Dump::open(&path).ok();
    let elements = dump.as_ref().map(|dump| {
        let whole: usize = dump.entries().iter().filter_map(|e| Some(dump.read(e).ok()?.values().to_f64().len())).sum();
        whole + dump.parts().iter().map(|part| part.values.len()).sum::<usize>()
    });
    let largest = LARGEST.get();
    assert!(largest <= SLACK + GROWTH * bytes.len(), "{name}: allocated {largest} bytes for a file of {}", bytes.len());
    elements
}

#[test]
fn whole_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let elements: Vec<Option<usize>> = forms().iter().map(|(name, bytes)| read(folder.path(), name, bytes)).collect();
    // x.pt holds a tensor that is no tap by its name.
    assert_eq!(elements, [Some(64), Some(64), Some(40), Some(12), Some(6), Some(3), Some(8), None]);
    let pt = Dump::open(folder.path().join("x.pt")).unwrap_err().to_string();
    assert!(pt.contains("'x'"), "{pt}");
    fs::write(folder.path().join("logits.pt"), pickle()).unwrap();
    let dump = Dump::open(folder.path().join("logits.pt")).unwrap();
    assert_eq!(dump.read(&dump.entries()[0]).unwrap().values().to_f64(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(dump.entries()[0].shape, [2, 2]);
}

#[test]
fn truncations_never_panic() {
    let folder = tempfile::tempdir().unwrap();
    for (name, bytes) in forms() {
        for end in 0..bytes.len() {
            read(folder.path(), name, &bytes[..end]);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn mutations_never_panic(form in 0usize..7, places in prop::collection::vec((any::<u32>(), any::<u8>()), 1..8)) {
        let folder = tempfile::tempdir().unwrap();
        let (name, mut bytes) = forms().swap_remove(form);
        for (place, byte) in places {
            let at = place as usize % bytes.len();
            bytes[at] = byte;
        }
        read(folder.path(), name, &bytes);
    }
}

#[test]
fn a_probe_of_the_first_values_may_lie_beside_the_whole() {
    let folder = tempfile::tempdir().unwrap();
    let values: Vec<f32> = (0..64u8).map(|i| f32::from(i).sin()).collect();
    let whole: String = values.iter().map(|x| format!("{x}\n")).collect();
    let probe = |first: f32| -> String {
        let seen = values.iter().take(20).enumerate();
        seen.map(|(i, x)| format!("{i} {:.9}\n", if i == 0 { first } else { *x })).collect()
    };
    fs::write(folder.path().join("hidden_state_call_0.txt"), whole).unwrap();
    fs::write(folder.path().join("rustorch_hidden.txt"), probe(values[0])).unwrap();
    let dump = Dump::open(folder.path()).unwrap();
    assert_eq!(dump.entries()[0].shape, [64]);
    fs::write(folder.path().join("rustorch_hidden.txt"), probe(0.5)).unwrap();
    let told = Dump::open(folder.path()).unwrap_err().to_string();
    assert!(told.contains("rustorch_hidden") && told.contains("differ"), "{told}");
}
