//! Checks that damaged or hostile dumps end in an error: truncations and byte mutations of every form, under a counting allocator.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use allocation_counter::measure;
use firstdiff_trace::{AttentionMask, Dump, DumpError, Recorder};
use proptest::prelude::*;
use safetensors::tensor::{Dtype, TensorView};

/// Memory for error texts, decoder state and buffers of fixed size.
const SLACK: usize = 128 * 1024;

fn record(folder: &Path) {
    let rec = Recorder::create(folder).unwrap();
    rec.tokens(&[1, 2, 3]);
    let values: Vec<f32> = (0..24).map(|i| i as f32 * 0.5 - 3.0).collect();
    rec.record("layers.0.q", &[3, 2, 4], &values).unwrap();
    rec.record("h0", &[3, 4], &values[..12]).unwrap();
    rec.next_step(9);
    rec.record("h0", &[1, 4], &values[..4]).unwrap();
    rec.finish().unwrap();
}

fn npz(folder: &Path, compression: zip::CompressionMethod) -> PathBuf {
    let source = folder.join("source");
    record(&source);
    let path = folder.join("dump.npz");
    let mut out = zip::ZipWriter::new(fs::File::create(&path).unwrap());
    let options = zip::write::SimpleFileOptions::default().compression_method(compression);
    for entry in fs::read_dir(&source).unwrap() {
        let entry = entry.unwrap();
        out.start_file(entry.file_name().into_string().unwrap(), options).unwrap();
        out.write_all(&fs::read(entry.path()).unwrap()).unwrap();
    }
    out.finish().unwrap();
    fs::remove_dir_all(source).unwrap();
    path
}

fn safetensors(folder: &Path) -> PathBuf {
    let bytes: Vec<u8> = (0..24).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let tensors = [
        ("h0", TensorView::new(Dtype::F32, vec![3, 4], &bytes[..48]).unwrap()),
        ("layers.0.q", TensorView::new(Dtype::F32, vec![3, 2, 4], &bytes).unwrap()),
    ];
    let path = folder.join("dump.safetensors");
    let meta = [("dump".to_owned(), r#"{"format": 1, "tokens": [1, 2, 3]}"#.to_owned())].into();
    fs::write(&path, safetensors::serialize(tensors, Some(meta)).unwrap()).unwrap();
    path
}

fn read_all(path: &Path) -> Result<usize, DumpError> {
    let dump = Dump::open(path)?;
    let mut elements = 0;
    for entry in dump.entries() {
        elements += dump.read(entry)?.values().to_f64().len();
    }
    Ok(elements)
}

/// Reads `path` with `file` in it replaced by `bytes`, and checks that no more memory is used than the files' size allows.
fn read_damaged(path: &Path, file: &Path, bytes: &[u8]) -> Result<usize, DumpError> {
    fs::write(file, bytes).unwrap();
    let mut result = Ok(0);
    let most = measure(|| result = read_all(path)).bytes_max as usize;
    // A compressed member may hold more than the archive is long; widening f16 to f64 takes four times the bytes.
    assert!(most <= SLACK + 4 * bytes.len(), "held {most} bytes for a file of {}", bytes.len());
    result
}

/// (the dump to open, the file in it to damage)
fn forms(folder: &Path) -> Vec<(PathBuf, PathBuf)> {
    let dump = folder.join("folder");
    record(&dump);
    let (stored, packed) = (folder.join("stored"), folder.join("packed"));
    fs::create_dir_all(&stored).unwrap();
    fs::create_dir_all(&packed).unwrap();
    let stored = npz(&stored, zip::CompressionMethod::Stored);
    let packed = npz(&packed, zip::CompressionMethod::Deflated);
    let tensors = safetensors(folder);
    vec![
        (dump.clone(), dump.join("layers.0.q.npy")),
        (dump.clone(), dump.join("dump.json")),
        (folder.join("folder/*.npy"), dump.join("h0.npy")),
        (stored.clone(), stored),
        (packed.clone(), packed),
        (tensors.clone(), tensors),
    ]
}

#[test]
fn whole_dumps_read_alike_in_every_form() {
    let folder = tempfile::tempdir().unwrap();
    for (dump, _) in forms(folder.path()) {
        assert!(read_all(&dump).unwrap() >= 36, "{}", dump.display());
    }
}

#[test]
fn every_truncation_is_an_error_that_names_the_file() {
    let folder = tempfile::tempdir().unwrap();
    for (dump, file) in forms(folder.path()) {
        let whole = fs::read(&file).unwrap();
        for end in 0..whole.len() {
            // Trailing white space of dump.json has no meaning.
            if whole[end..].iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let error =
                read_damaged(&dump, &file, &whole[..end]).expect_err(&format!("{} cut to {end}", file.display()));
            let text = error.to_string();
            assert!(text.contains(folder.path().to_str().unwrap()), "{text}");
            assert!(!text.contains('\n'), "{text}");
        }
        fs::write(&file, &whole).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn mutated_bytes_never_panic(form in 0usize..6, places in prop::collection::vec((any::<u32>(), any::<u8>()), 1..6)) {
        let folder = tempfile::tempdir().unwrap();
        let (dump, file) = forms(folder.path()).swap_remove(form);
        let mut bytes = fs::read(&file).unwrap();
        for (place, byte) in places {
            let at = place as usize % bytes.len();
            bytes[at] = byte;
        }
        let _ = read_damaged(&dump, &file, &bytes);
    }
}

fn open_json(json: &str) -> String {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("dump");
    record(&dump);
    fs::write(dump.join("dump.json"), json).unwrap();
    Dump::open(&dump).expect_err(json).to_string()
}

#[test]
fn names_that_climb_out_are_refused() {
    for file in ["../h0.npy", "/etc/passwd", "a/b.npy", "..", ".", "", "a\\\\b.npy", "c:h0.npy"] {
        let error = open_json(&format!(r#"{{"taps": [{{"tap": "h0", "file": "{file}"}}]}}"#));
        assert!(error.contains("plain name"), "{file}: {error}");
    }
}

#[test]
fn what_dump_json_says_is_held_against_the_files() {
    assert!(open_json(r#"{"taps": [{"tap": "h0", "shape": [4, 3]}]}"#).contains("shape"));
    assert!(open_json(r#"{"taps": [{"tap": "h0", "dtype": "f16"}]}"#).contains("f16"));
    assert!(open_json(r#"{"taps": [{"tap": "h0"}, {"tap": "h0"}]}"#).contains("twice"));
    assert!(open_json(r#"{"taps": [{"tap": "logits"}]}"#).contains("logits.npy"));
    assert!(open_json(r#"{"format": 2}"#).contains("format 2"));
    assert!(open_json("[1, 2").contains("dump.json"));
}

#[test]
fn other_things_are_no_dumps() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    fs::create_dir(at("empty")).unwrap();
    fs::create_dir(at("model")).unwrap();
    fs::write(at("model/config.json"), "{}").unwrap();
    fs::write(at("one.npy"), "x").unwrap();
    fs::create_dir_all(at("folders/h0.npy")).unwrap();
    fs::write(at("raw.bin"), "x").unwrap();
    fs::write(at("note.md"), "x").unwrap();
    for (name, word) in [
        ("nowhere", "No such file"),
        ("folders", "not a file"),
        ("empty", "no .npy"),
        ("model", "firstdiff dump"),
        ("one.npy", "whole number"),
        ("raw.bin", "whole number"),
        ("note.md", "neither"),
        ("empty/*.npy", "no file matches"),
        ("empty/*_*.npy", "one '*'"),
    ] {
        let error = Dump::open(at(name)).expect_err(name).to_string();
        assert!(error.contains(word) && error.contains(name), "{error}");
    }
}

#[test]
fn a_small_archive_of_very_many_zeros_is_not_unpacked() {
    let folder = tempfile::tempdir().unwrap();
    let rows = 4200;
    for (name, start) in [("h0.npy", npy_start(rows)), ("dump.json", br#"{"format": 1}"#.to_vec())] {
        let path = folder.path().join("zeros.npz");
        let mut out = zip::ZipWriter::new(fs::File::create(&path).unwrap());
        out.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
        out.write_all(&start).unwrap();
        (0..rows).for_each(|_| out.write_all(&[b'0'; 1 << 16]).unwrap());
        out.finish().unwrap();
        let mut error = String::new();
        let most = measure(|| error = read_all(&path).unwrap_err().to_string()).bytes_max as usize;
        assert!(error.contains("unpack to") && error.contains(name), "{error}");
        assert!(most <= 4 * SLACK, "held {most} bytes");
    }
}

/// The start of a .npy of `rows` rows of 64 KiB.
fn npy_start(rows: usize) -> Vec<u8> {
    let header =
        format!("{:<117}\n", format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 16384), }}"));
    [b"\x93NUMPY\x01\x00".as_slice(), &118u16.to_le_bytes(), header.as_bytes()].concat()
}

#[test]
fn a_mask_of_zeros_and_ones_beside_the_taps_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("dump.npz");
    let array = |descr: &str, shape: &str, bytes: Vec<u8>| {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': ({shape}), }}");
        [b"\x93NUMPY\x01\x00".as_slice(), &118u16.to_le_bytes(), format!("{header:<117}\n").as_bytes(), &bytes].concat()
    };
    let h0 = || array("<f4", "2, 3, 4", (0..24).flat_map(|i| (i as f32).to_le_bytes()).collect());
    let read = |mask: &[u8]| {
        let mut out = zip::ZipWriter::new(fs::File::create(&path).unwrap());
        for (name, file) in [("h0.npy", &h0()[..]), ("attention_mask.npy", mask)] {
            out.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            out.write_all(file).unwrap();
        }
        out.finish().unwrap();
        let dump = Dump::open(&path).unwrap();
        let is_left = dump.unmapped().len() == 1;
        assert_eq!(is_left, dump.meta().attention_mask.is_none());
        dump.meta().attention_mask.clone()
    };
    let due = Some(AttentionMask::Each(vec![vec![0, 1, 1], vec![1, 1, 1]]));
    let bits = [0u8, 1, 1, 1, 1, 1];
    let wide =
        |one: &[u8]| bits.iter().flat_map(|&bit| if bit == 1 { one.to_vec() } else { vec![0; one.len()] }).collect();
    assert_eq!(read(&array("|b1", "2, 3", bits.to_vec())), due);
    assert_eq!(read(&array("<i8", "2, 3", wide(&1i64.to_le_bytes()))), due);
    assert_eq!(read(&array(">i4", "2, 3", wide(&1i32.to_be_bytes()))), due);
    assert_eq!(read(&array("<f4", "2, 3", wide(&1f32.to_le_bytes()))), due);
    assert_eq!(read(&array("|u1", "3,", bits[..3].to_vec())), Some(AttentionMask::One(vec![0, 1, 1])));
    // Masks with other numbers, of other lengths, or with elements beyond the sequences' axis are not used.
    assert_eq!(read(&array("|u1", "2, 3", vec![0, 1, 2, 1, 1, 1])), None);
    assert_eq!(read(&array("|u1", "2, 3", bits[..5].to_vec())), None);
    assert_eq!(read(&array("|u1", "6,", bits.to_vec())), None);
    assert_eq!(read(&array("|u1", "1, 2, 3", bits.to_vec())), None);
}

#[test]
fn a_member_that_is_there_twice_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    // 82 is é in the code page of DOS: those two names are one where they are decoded.
    let cases = [(["h0.npy", "h1.npy"], b"h0.npy", "h0.npy"), (["é0.npy", "e0.npy"], b"\x820.npy", "?")];
    for (names, renamed, twice) in cases {
        let mut out = zip::ZipWriter::new(std::io::Cursor::new(Vec::new()));
        for name in names {
            out.start_file(name, zip::write::SimpleFileOptions::default()).unwrap();
            out.write_all(&npy_start(0)).unwrap();
        }
        let mut bytes = out.finish().unwrap().into_inner();
        while let Some(at) = bytes.windows(6).position(|window| window == names[1].as_bytes()) {
            bytes[at..at + 6].copy_from_slice(renamed);
        }
        for name in ["twice.npz", "twice.pt"] {
            let path = folder.path().join(name);
            fs::write(&path, &bytes).unwrap();
            let error = Dump::open(&path).unwrap_err().to_string();
            assert!(error.contains(&format!("member '{twice}' is there twice")), "{error}");
        }
    }
}
