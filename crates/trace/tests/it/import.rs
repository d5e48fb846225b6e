//! Checks that damaged files of other programs end in an error or fewer tensors, never in a panic, and do not use much more memory than their size.

use std::fs;
use std::path::Path;

use allocation_counter::measure;
use firstdiff_trace::{DType, Dump, OpenOptions};
use proptest::prelude::*;

/// How much memory a few bytes may take: a JSON value is 32 bytes, and a list doubles as it grows.
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

/// The peak memory while everything in a file is read, one tensor at a time; and the error if it is refused.
fn peak(path: &Path) -> (usize, Option<String>) {
    let mut error = None;
    let held = measure(|| match Dump::open(path) {
        Err(refused) => error = Some(refused.to_string()),
        Ok(dump) => {
            dump.entries().iter().for_each(|entry| drop(dump.read(entry).map(|tensor| tensor.values().len())));
            dump.unmapped().iter().for_each(|name| drop(dump.read_unmapped(name).map(|tensor| tensor.values().len())));
        }
    });
    (held.bytes_max as usize, error)
}

/// A .pt with a storage of 9000 floats and `views` views of it, each of `rows` rows that are all the first.
fn views(views: usize, rows: i32) -> Vec<u8> {
    let text = |text: &str| [b"X".as_slice(), &(text.len() as u32).to_le_bytes(), text.as_bytes()].concat();
    let number = |n: i32| [b"J".as_slice(), &n.to_le_bytes()].concat();
    let mut code = b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x000ctorch\nFloatStorage\nq\x020}(".to_vec();
    for view in 0..views {
        code.extend([text(&format!("w{view}")), b"h\x00((".to_vec(), text("storage"), b"h\x02".to_vec()].concat());
        code.extend([text("0"), text("cpu"), number(9000), b"tQ".to_vec(), number(0)].concat());
        code.extend([number(rows), number(1000), b"\x86K\x00K\x01\x86\x89".to_vec()].concat());
        code.extend_from_slice(b"ccollections\nOrderedDict\n)RtR");
    }
    code.extend_from_slice(b"u.");
    let floats: Vec<u8> = (0..9000).flat_map(|i| (i as f32 * 0.001).to_le_bytes()).collect();
    stored(&[("x/data.pkl", &code), ("x/data/0", &floats)])
}

fn stored(members: &[(&str, &[u8])]) -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
    let stored = zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, bytes) in members {
        zip.start_file(*name, stored).unwrap();
        std::io::Write::write_all(&mut zip, bytes).unwrap();
    }
    zip.finish().unwrap().into_inner()
}

#[test]
fn views_of_a_pickle_stay_views_until_one_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("views.pt");
    let bytes = views(60, 576);
    fs::write(&path, &bytes).unwrap();
    let (peak, error) = peak(&path);
    // A view is 2.3 MB when it is read: all of them at once would be 138 MB.
    assert!(peak < 4 * bytes.len() + (8 << 20) && error.is_none(), "{peak} bytes, {error:?}");
    let dump = Dump::open(&path).unwrap();
    let view = dump.read_unmapped("w7").unwrap();
    assert_eq!(view.shape(), [576, 1000]);
    let values = view.values().to_f64();
    assert!((0..576_000).all(|i| values[i] == f64::from((i % 1000) as f32 * 0.001)));
    fs::write(&path, views(1, 1 << 20)).unwrap();
    assert!(Dump::open(&path).unwrap_err().to_string().contains("save it contiguous"));
}

#[test]
fn a_small_file_of_many_values_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.npz");
    let npy = [
        b"\x93NUMPY\x01\x00".as_slice(),
        &58u16.to_le_bytes(),
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n\0\0\0\0",
    ]
    .concat();
    for (start, value, end) in [("{\"tokens\": [", "0,", "0]}"), ("{\"producer\": ", "[[],", "0")] {
        let json = format!("{start}{}{end}", value.repeat(24 << 20));
        let mut zip = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for (name, bytes) in [("h0.npy", npy.as_slice()), ("dump.json", json.as_bytes())] {
            zip.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            std::io::Write::write_all(&mut zip, bytes).unwrap();
        }
        let bytes = zip.finish().unwrap().into_inner();
        fs::write(&path, &bytes).unwrap();
        drop(json);
        let (peak, error) = peak(&path);
        assert!(error.is_some_and(|error| error.contains("dump.json") || error.contains("values")), "{start}");
        assert!(peak <= 4 * bytes.len() + (64 << 20), "{peak} bytes for a file of {}", bytes.len());
    }
}

#[test]
fn what_is_there_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |name: &str, bytes: &[u8], words: &[&str]| {
        fs::write(folder.path().join(name), bytes).unwrap();
        let error = Dump::open(folder.path().join(name)).unwrap_err().to_string();
        assert!(words.iter().all(|word| error.contains(word)), "{name}: {error}");
    };
    // The writer refuses duplicate names, so the duplicate is made from a name of the same length.
    let twice = |members: &[(&str, &[u8])], from: &str, to: &str| {
        let mut bytes = stored(members);
        while let Some(at) = bytes.windows(from.len()).position(|window| window == from.as_bytes()) {
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
        }
        bytes
    };
    let npy = [
        b"\x93NUMPY\x01\x00".as_slice(),
        &58u16.to_le_bytes(),
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }\n\0\0\0\0",
    ]
    .concat();
    refused("a.npz", &twice(&[("h0.npy", &npy), ("h1.npy", &npy)], "h1.npy", "h0.npy"), &["'h0.npy'", "twice"]);
    refused(
        "a.npz",
        &twice(&[("h0.npy", &npy), ("dump.json", b"{}"), ("dump.JSON", b"{}")], "dump.JSON", "dump.json"),
        &["'dump.json'", "twice"],
    );
    let floats = [0u8; 16];
    refused(
        "a.pt",
        &twice(&[("x/data.pkl", b"\x80\x02N."), ("x/data/0", &floats), ("x/data/1", &floats)], "x/data/1", "x/data/0"),
        &["'x/data/0'", "twice"],
    );
    let header = r#"{"h0":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"h0":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    refused(
        "a.safetensors",
        &[&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 4]].concat(),
        &["'h0'", "twice"],
    );
    refused("a.json", br#"{"h0": [1, 2], "h0": [3, 4]}"#, &["'h0'", "twice"]);
}

fn read(folder: &Path, name: &str, bytes: &[u8]) -> Option<usize> {
    let path = folder.join(name);
    fs::write(&path, bytes).unwrap();
    let mut elements = None;
    let held = measure(|| {
        elements = Dump::open(&path).ok().map(|dump| {
            let read = |entry| Some(dump.read(entry).ok()?.values().to_f64().len());
            let whole: usize = dump.entries().iter().filter_map(read).sum();
            whole + dump.parts().iter().map(|part| part.values.len()).sum::<usize>()
        });
    });
    let most = held.bytes_max as usize;
    assert!(most <= SLACK + GROWTH * bytes.len(), "{name}: held {most} bytes for a file of {}", bytes.len());
    elements
}

#[test]
fn whole_files_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let elements: Vec<Option<usize>> = forms().iter().map(|(name, bytes)| read(folder.path(), name, bytes)).collect();
    // x.pt holds a tensor whose name is not a tap.
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

/// An archive with these names, each a tensor of four values that begin with its index.
fn archive(path: &Path, names: &[&str]) {
    let bytes: Vec<Vec<u8>> =
        (0..names.len()).map(|n| [n as f32, 0.5, 1.5, -2.0].map(f32::to_le_bytes).concat()).collect();
    let views = names.iter().zip(&bytes).map(|(name, bytes)| {
        (*name, safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2, 2], bytes).unwrap())
    });
    safetensors::serialize_to_file(views, None, path).unwrap();
}

/// The taps of a dump with the index of each tensor, and the names that are not taps.
fn taps(dump: &Dump) -> (Vec<(String, f64)>, Vec<String>) {
    let entry = |e: &firstdiff_trace::Entry| (e.tap.to_string(), dump.read(e).unwrap().values().get(0));
    (dump.entries().iter().map(entry).collect(), dump.unmapped().to_vec())
}

#[test]
fn the_last_of_the_hidden_states_may_have_passed_the_final_norm() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let streams = ["hidden_states.0", "hidden_states.1", "hidden_states.2"];
    archive(&path, &streams);
    let open = || Dump::open(&path).unwrap();
    let named =
        |taps: &[(&str, f64)]| -> Vec<(String, f64)> { taps.iter().map(|(n, x)| ((*n).to_owned(), *x)).collect() };
    let known = [("h0", 0.0), ("layers.0.h", 1.0)];
    assert_eq!(taps(&open()), (named(&known), vec!["hidden_states.2".to_owned()]));
    assert_eq!(open().last_hidden_state(), Some(2));
    let told = |normed| taps(&open().resolve_last_hidden_state(normed).unwrap());
    assert_eq!(told(true), (named(&[("h0", 0.0), ("layers.0.h", 1.0), ("final_norm", 2.0)]), Vec::new()));
    assert_eq!(told(false), (named(&[("h0", 0.0), ("layers.0.h", 1.0), ("layers.1.h", 2.0)]), Vec::new()));
    // Another name belongs to the layer after it, so the model goes on.
    archive(&path, &[&streams[..], &["model.layers.2.self_attn.q_proj"]].concat());
    let (found, unmapped) = taps(&open());
    assert!(found.contains(&("layers.1.h".into(), 2.0)) && unmapped.is_empty(), "{found:?} {unmapped:?}");
}

#[test]
fn a_table_of_names_beside_a_file_counts() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    archive(&path, &["mine", "twin", "logits"]);
    let table = |text: &str| fs::write(folder.path().join("firstdiff.toml"), text).unwrap();
    assert_eq!(taps(&Dump::open(&path).unwrap()).1, ["mine", "twin"]);
    table("\"mine\" = \"h0\"");
    assert_eq!(taps(&Dump::open(&path).unwrap()).1, ["twin"]);
    // Two names for one tap: if the values differ, it is an error; if they are equal, the second is a copy.
    table("\"mine\" = \"h0\"\n\"twin\" = \"h0\"");
    assert!(Dump::open(&path).unwrap_err().to_string().contains("twice"));
    let bytes = [1f32, 2.0].map(f32::to_le_bytes).concat();
    for name in ["mine.f32", "twin.f32"] {
        fs::write(folder.path().join(name), &bytes).unwrap();
    }
    fs::remove_file(&path).unwrap();
    let dump = Dump::open(folder.path()).unwrap();
    assert!(dump.notes().iter().any(|note| note.contains("'twin' is the same as 'mine'")), "{:?}", dump.notes());
    assert_eq!(dump.entries().len(), 1);
}

#[test]
fn logits_of_the_check_of_a_converted_model() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, bytes: &[u8]| fs::write(folder.path().join(name), bytes).unwrap();
    let logits: Vec<u8> = (0..40u8).flat_map(|i| f32::from(i).sin().to_le_bytes()).collect();
    let path = folder.path().join("pytorch-a-model.bin");
    file("pytorch-a-model.bin", &logits);
    let refused = Dump::open(&path).unwrap_err().to_string();
    assert!(refused.contains("pytorch-a-model"), "alone it is a file of any floats: {refused}");
    file("pytorch-a-model.txt", b"0: 0.000000\n1: 0.841471\n");
    let dump = Dump::open(&path).unwrap();
    assert_eq!((dump.entries()[0].tap.to_string().as_str(), &dump.entries()[0].shape[..]), ("logits", &[1, 40][..]));
    assert_eq!((dump.entries()[0].rows.is_some(), &dump.meta().tokens), (true, &None));
    file("pytorch-a-model-tokens.bin", &[1i32, 403, 7].map(i32::to_le_bytes).concat());
    assert_eq!(Dump::open(&path).unwrap().meta().tokens, Some(vec![1, 403, 7]));
    file("pytorch-a-model-tokens.bin", &[1, 2, 3]);
    assert!(Dump::open(&path).unwrap_err().to_string().contains("int32"));
}

#[test]
fn numpy_bfloat16_is_read_where_somebody_says_that_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let header = format!("{:<117}\n", "{'descr': '<V2', 'fortran_order': False, 'shape': (1, 2), }");
    let mut file = [b"\x93NUMPY\x01\x00".as_slice(), &118u16.to_le_bytes(), header.as_bytes()].concat();
    file.extend([0x80, 0x3f, 0x00, 0xc0]);
    fs::write(folder.path().join("h0.npy"), &file).unwrap();
    let untold = Dump::open(folder.path()).unwrap_err().to_string();
    assert!(untold.contains("--dtype bf16"), "{untold}");
    let told = OpenOptions { dtype: Some(DType::BF16), ..OpenOptions::default() };
    let dump = Dump::open_with(folder.path(), &told).unwrap();
    assert_eq!(dump.read(&dump.entries()[0]).unwrap().values().to_f64()[..], [1.0, -2.0]);
    // A type in the header takes precedence.
    let wrong = OpenOptions { dtype: Some(DType::F16), ..OpenOptions::default() };
    assert!(Dump::open_with(folder.path(), &wrong).is_err());
}
