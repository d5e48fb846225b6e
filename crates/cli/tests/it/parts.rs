//! Checks that a comparison in parts equals that of one run, to the byte, and that incomplete parts are refused.

use std::fs;

use crate::command::{FAULTY, GOLDEN};
use crate::common::{firstdiff, fixtures, refused};

/// Writes a comparison in `of` parts into `folder`, and returns their paths.
fn parts(folder: &tempfile::TempDir, of: usize, asked: &[&str]) -> Vec<String> {
    let write = |number: usize| {
        let path = folder.path().join(format!("{number}-of-{of}.part")).to_string_lossy().into_owned();
        let share = format!("{number}/{of}");
        let out = firstdiff(&[&["compare"], asked, &["--part", &share, "-o", &path]].concat());
        assert_eq!(out.status.code(), Some(0), "{}", String::from_utf8_lossy(&out.stderr));
        path
    };
    (1..=of).map(write).collect()
}

#[test]
fn the_whole_is_that_of_one_run() {
    let folder = tempfile::tempdir().unwrap();
    for asked in [
        &[GOLDEN, FAULTY][..],
        &[GOLDEN, GOLDEN],
        &[GOLDEN, "golden/llama-llama-cpp.npz"],
        &[GOLDEN, "faulty/llama-kv-cache-shift.npz"],
        &["golden/minimind-torch.npz", "faulty/minimind-mask-omitted.npz", "--profile", "bf16"],
        &[GOLDEN, FAULTY, "--taps", "layers.0.*", "--rows", "0,1"],
        &[GOLDEN, FAULTY, "--model=models/llama"],
    ] {
        let one = firstdiff(&[&["compare"], asked, &["--json", "-"]].concat());
        for of in [1, 3, 7] {
            let parts = parts(&folder, of, asked);
            let names: Vec<&str> = parts.iter().rev().map(String::as_str).collect();
            let joined = firstdiff(&[&["join"], &names[..], &["--json", "-"]].concat());
            let error = String::from_utf8_lossy(&joined.stderr);
            assert_eq!(joined.status.code(), one.status.code(), "{asked:?} in {of}: {error}");
            assert_eq!(joined.stdout, one.stdout, "{asked:?} in {of}: {error}");
        }
    }
}

#[test]
fn what_is_no_whole_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let all = parts(&folder, 3, &[GOLDEN, FAULTY]);
    let other = parts(&folder, 2, &[GOLDEN, GOLDEN]);
    refused(&firstdiff(&["join", &all[0], &all[2]]), &["part 2/3 is missing"]);
    refused(&firstdiff(&["join", &all[0], &all[1], &all[1], &all[2]]), &["twice"]);
    refused(&firstdiff(&["join", &all[0], &other[1]]), &["2-of-2.part", "not of one comparison"]);
    refused(&firstdiff(&["join", &all[2], &all[0], &other[0]]), &["1-of-2.part", "not of one comparison"]);
    refused(&firstdiff(&["join", "golden/llama-torch/h0.npy"]), &["h0.npy", "compare --part"]);
    let whole = fs::read(&all[0]).unwrap();
    for cut in [1, whole.len() / 2, whole.len() - 1] {
        fs::write(&all[0], &whole[..cut]).unwrap();
        refused(&firstdiff(&["join", &all[0], &all[1], &all[2]]), &["1-of-3.part"]);
    }
    let out = |args: &[&str]| firstdiff(&[&["compare", GOLDEN, FAULTY], args].concat()).status.code();
    assert_eq!(out(&["--part", "4/3", "-o", &all[1]]), Some(2));
    assert_eq!(out(&["--part", "1/3"]), Some(2));
    assert_eq!(out(&["-o", &all[1]]), Some(2));
    assert_eq!(out(&["--part", "1/3", "-o", &all[1], "--json", "-"]), Some(2));
}

#[test]
fn parts_of_a_run_that_was_recorded_again_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let dump = folder.path().join("candidate");
    fs::create_dir(&dump).unwrap();
    for file in fs::read_dir(fixtures().join(GOLDEN)).unwrap().map(Result::unwrap) {
        fs::copy(file.path(), dump.join(file.file_name())).unwrap();
    }
    let candidate = dump.to_string_lossy().into_owned();
    let all = parts(&folder, 2, &[GOLDEN, &candidate]);
    let join = || firstdiff(&["join", &all[0], &all[1]]);
    assert_eq!(join().status.code(), Some(0));
    let logits = dump.join("logits.npy");
    let right = fs::read(&logits).unwrap();
    let mut wrong = right.clone();
    *wrong.last_mut().unwrap() ^= 0x40;
    fs::write(&logits, &wrong).unwrap();
    refused(&join(), &["candidate", "logits", "judge all parts again"]);
    fs::write(&logits, &right).unwrap();
    assert_eq!(join().status.code(), Some(0));
    // Damage by a disk or a network.
    let mut part = fs::read(&all[1]).unwrap();
    *part.last_mut().unwrap() ^= 1;
    fs::write(&all[1], part).unwrap();
    refused(&join(), &["2-of-2.part", "changed since it was written"]);
}
