//! What does the command do to files that it should not read, or not write? Pipes and devices, links, and the dumps that it compares.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{GOLDEN, refuses};
use crate::common::{firstdiff, fixtures, json};

fn pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Exit code 2 and one line that holds the word, soon: nothing waits for a writer, and nothing is read until memory ends.
#[track_caller]
fn refuses_soon(args: &[&str], word: &str) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    command.args(args).current_dir(fixtures()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if began.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
            panic!("{args:?} hangs");
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let output = child.wait_with_output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{args:?}: {error}");
    assert!(error.contains(word) && error.trim_end().lines().count() == 1, "{args:?}: {error}");
}

/// Every argument that is a path, of every command, with a file at its place.
fn path_arguments<'a>(path: &'a str, work: &'a str) -> Vec<Vec<&'a str>> {
    let model = "models/llama";
    vec![
        vec!["compare", path, GOLDEN],
        vec!["compare", GOLDEN, path],
        vec!["compare", GOLDEN, GOLDEN, "--map", path],
        vec!["compare", GOLDEN, GOLDEN, "--model", path],
        vec!["gate", path, GOLDEN, "--update", "--baseline", work],
        vec!["gate", GOLDEN, GOLDEN, "--baseline", path],
        vec!["dump", path, "-o", work, "--tokens", "1"],
        vec!["replay", path, GOLDEN],
        vec!["replay", model, path],
        vec!["explain", path, GOLDEN],
        vec!["explain", model, path],
        vec!["explain", model, GOLDEN, "--ref", path],
        vec!["explain", model, GOLDEN, "--map", path],
        vec!["weights", path, model],
        vec!["weights", model, path],
        vec!["inspect", path],
        vec!["inspect", GOLDEN, "--map", path],
        vec!["import", path, "-o", work],
        vec!["import", GOLDEN, "-o", work, "--like", path],
        vec!["import", GOLDEN, "-o", work, "--map", path],
        vec!["align", path, GOLDEN],
        vec!["align", GOLDEN, path],
        vec!["align", GOLDEN, GOLDEN, "--map", path],
        vec!["bisect", path, "--run", "true", "--work", work],
    ]
}

#[test]
fn no_argument_is_read_of_a_pipe_or_a_device() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let work = at("work");
    let names = ["pipe", "pipe.npz", "pipe.toml", "pipe.gguf", "pipe.json"];
    names.iter().for_each(|name| pipe(&at(name)));
    symlink("/dev/zero", at("zero.npy")).unwrap();
    for (number, args) in path_arguments("", "").iter().enumerate() {
        // A pipe by several names in turn, and a device that never ends.
        let paths = [at(names[number % names.len()]), "/dev/zero".to_owned(), at("zero.npy")];
        for path in &paths {
            let args = path_arguments(path, &work).swap_remove(number);
            let name = Path::new(path).file_name().unwrap().to_str().unwrap();
            refuses_soon(&args, name);
        }
        assert!(!args.is_empty());
    }
}

#[test]
fn no_file_of_a_folder_is_read_of_a_pipe() {
    let dump = |file: &str| {
        let folder = tempfile::tempdir().unwrap();
        fs::copy(fixtures().join(GOLDEN).join("logits.npy"), folder.path().join("logits.npy")).unwrap();
        let _ = fs::remove_file(folder.path().join(file));
        pipe(&folder.path().join(file).to_string_lossy());
        folder
    };
    for file in ["dump.json", "firstdiff.toml", "logits.npy"] {
        let folder = dump(file);
        let path = folder.path().to_string_lossy();
        refuses_soon(&["compare", GOLDEN, &path], file);
        refuses_soon(&["inspect", &path], file);
        refuses_soon(&["replay", "models/llama", &path], file);
    }
    for file in ["config.json", "model.safetensors", "model.safetensors.index.json"] {
        let folder = tempfile::tempdir().unwrap();
        for name in ["config.json", "model.safetensors"].iter().filter(|name| **name != file) {
            if file != "model.safetensors.index.json" || *name == "config.json" {
                fs::copy(fixtures().join("models/llama").join(name), folder.path().join(name)).unwrap();
            }
        }
        pipe(&folder.path().join(file).to_string_lossy());
        let path = folder.path().to_string_lossy();
        refuses_soon(&["weights", "models/llama", &path], file);
        refuses_soon(&["replay", &path, GOLDEN], file);
    }
}

fn is_report(text: &[u8]) -> bool {
    serde_json::from_slice::<Value>(text).is_ok_and(|report| report["command"] == "compare")
}

#[test]
fn a_report_goes_through_links_pipes_and_devices() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let compare = |json: &str| firstdiff(&["compare", GOLDEN, GOLDEN, "--taps", "layers.0.*", "--json", json]);
    fs::write(at("real.json"), "old").unwrap();
    symlink("real.json", at("link.json")).unwrap();
    symlink("new.json", at("dangling.json")).unwrap();
    for (link, real) in [("link.json", "real.json"), ("dangling.json", "new.json")] {
        assert_eq!(compare(&at(link)).status.code(), Some(0));
        assert!(fs::symlink_metadata(at(link)).unwrap().is_symlink(), "{link}");
        assert!(is_report(&fs::read(at(real)).unwrap()), "{real}");
    }
    pipe(&at("pipe"));
    let reader = std::thread::spawn({
        let pipe = at("pipe");
        move || fs::read(pipe).unwrap()
    });
    assert_eq!(compare(&at("pipe")).status.code(), Some(0));
    assert!(is_report(&reader.join().unwrap()));
    assert!(fs::metadata(at("pipe")).unwrap().file_type().is_fifo());
    let before = fs::metadata("/dev/null").unwrap();
    assert_eq!(compare("/dev/null").status.code(), Some(0));
    let after = fs::metadata("/dev/null").unwrap();
    assert!(after.file_type().is_char_device() && before.ino() == after.ino());
    let output = compare("/dev/stdout");
    assert!(String::from_utf8_lossy(&output.stdout).starts_with("{\n"), "{output:?}");
    // What standard output goes to is written on, not replaced.
    let out = fs::File::create(at("out.txt")).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    command.args(["compare", GOLDEN, GOLDEN, "--taps", "layers.0.*", "--json", "/dev/stdout"]).current_dir(fixtures());
    assert!(command.stdout(out).status().unwrap().success());
    let text = fs::read_to_string(at("out.txt")).unwrap();
    assert!(text.starts_with("{\n") && text.contains("parity"), "{text}");
    let left =
        fs::read_dir(folder.path()).unwrap().filter(|e| e.as_ref().unwrap().path().to_string_lossy().ends_with("tmp"));
    assert_eq!(left.count(), 0);
}

#[test]
fn what_is_read_is_not_written_over() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    fs::create_dir(at("dump")).unwrap();
    for name in ["h0.npy", "logits.npy"] {
        fs::copy(fixtures().join(GOLDEN).join(name), at(&format!("dump/{name}"))).unwrap();
    }
    fs::write(at("dump/dump.json"), r#"{"tokens": [3, 1, 4], "taps": [{"tap": "h0"}, {"tap": "logits"}]}"#).unwrap();
    fs::write(at("dump/notes.txt"), "mine").unwrap();
    fs::hard_link(at("dump/h0.npy"), at("other.npy")).unwrap();
    symlink(at("dump/dump.json"), at("link.json")).unwrap();
    fs::write(at("map.toml"), "\"a\" = \"h0\"\n").unwrap();
    fs::write(at("base"), "profile f32\nh0 0\n").unwrap();
    let bytes = |name: &str| fs::read(at(name)).unwrap();
    let files = ["dump/dump.json", "dump/h0.npy", "map.toml", "base", "other.npy"];
    let before: Vec<Vec<u8>> = files.iter().map(|name| bytes(name)).collect();
    let refused = |args: &[&str], output: &str| {
        refuses(&[args, &["--json", output]].concat(), &[output, "is read by this command"])
    };
    let (dump, model) = (at("dump"), "models/llama");
    for output in ["dump/dump.json", "dump/h0.npy", "other.npy", "link.json"] {
        refused(&["compare", &dump, GOLDEN], &at(output));
        refused(&["compare", GOLDEN, &dump], &at(output));
    }
    refused(&["compare", GOLDEN, GOLDEN, "--map", &at("map.toml")], &at("map.toml"));
    refused(&["gate", GOLDEN, GOLDEN, "--baseline", &at("base")], &at("base"));
    refuses(&["gate", GOLDEN, &dump, "--update", "--baseline", &at("dump/dump.json")], &["is read by this command"]);
    refused(&["inspect", &dump], &at("dump/h0.npy"));
    refused(&["inspect", &at("other.npy")], &at("dump/h0.npy"));
    refused(&["replay", model, &dump], &at("link.json"));
    refused(&["explain", model, GOLDEN, "--ref", &dump], &at("link.json"));
    refused(&["weights", model, &at("other.npy")], &at("dump/h0.npy"));
    refused(&["align", GOLDEN, &dump], &at("link.json"));
    refused(&["import", &dump, "-o", &at("new")], &at("link.json"));
    refused(&["bisect", &dump, "--run", "true", "--work", &at("work")], &at("link.json"));
    refuses(&["compare", GOLDEN, GOLDEN, "--json", &dump], &[&dump, "is a folder"]);
    assert_eq!(files.iter().map(|name| bytes(name)).collect::<Vec<_>>(), before);
    // What stands beside the dump and is not read may be written.
    let output = firstdiff(&["inspect", &dump, "--json", &at("dump/notes.txt")]);
    assert_ne!(output.status.code(), Some(2), "{output:?}");
    assert!(bytes("dump/notes.txt").starts_with(b"{"));
}

#[test]
fn arguments_that_match_nothing_are_refused() {
    refuses(&["compare", GOLDEN, GOLDEN, "--taps", "h0,nonsense"], &["--taps nonsense", "matches"]);
    refuses(
        &["dump", "models/llama", "-o", "none", "--tokens", "1", "--taps", "h0,layers.9.*"],
        &["--taps layers.9.*"],
    );
    for command in [
        &["compare", GOLDEN, GOLDEN][..],
        &["gate", GOLDEN, GOLDEN, "--baseline", "none", "--update"],
        &["inspect", GOLDEN],
        &["replay", "models/llama", GOLDEN],
        &["explain", "models/llama", GOLDEN],
    ] {
        refuses(&[command, &["--rows", "0,99"]].concat(), &["--rows 99", "the last at position"]);
        refuses(&[command, &["--sequence", "7"]].concat(), &["--sequence 7", "of a batch"]);
        let output = firstdiff(&[command, &["--tokens", "Hello"]].concat());
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && error.contains("token ids are wanted"), "{command:?}: {error}");
    }
    assert!(!fixtures().join("none").exists());
}

#[test]
fn align_says_in_json_that_there_is_nothing_to_align() {
    let report = json(&["align", GOLDEN, GOLDEN]);
    assert_eq!((&report["command"], report["names"].as_array().map(Vec::len)), (&"align".into(), Some(0)));
}

#[test]
fn files_of_one_tensor_are_compared_whatever_it_is_called() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let values: Vec<f64> = (0..48).map(|i| (f64::from(i) * 0.7).sin()).collect();
    let off: Vec<f64> = values.iter().map(|x| x + 0.1).collect();
    let embeddings =
        |values: &[f64]| serde_json::json!({"object": "list", "data": [{"index": 0, "embedding": values}]}).to_string();
    for (name, values) in [("a.json", &values), ("b.json", &values), ("c.json", &off)] {
        fs::write(at(name), embeddings(values)).unwrap();
    }
    let [golden, logits] = ["final_norm", "logits"].map(|tap| fixtures().join(format!("{GOLDEN}/{tap}.npy")));
    for (name, from) in [("mine.npy", &golden), ("theirs.npy", &golden), ("other.npy", &logits)] {
        fs::copy(from, at(name)).unwrap();
    }
    let golden = golden.to_string_lossy().into_owned();
    for (reference, candidate, due) in
        [("a.json", "b.json", 0), ("a.json", "c.json", 1), ("mine.npy", "theirs.npy", 0), ("mine.npy", "other.npy", 2)]
    {
        let output = firstdiff(&["compare", &at(reference), &at(candidate)]);
        assert_eq!(
            output.status.code(),
            Some(due),
            "{reference} {candidate}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // The name that one has is the other's; two names are two taps.
    assert_eq!(firstdiff(&["compare", &golden, &at("mine.npy")]).status.code(), Some(0));
    assert_eq!(firstdiff(&["compare", &at("mine.npy"), &golden]).status.code(), Some(0));
    assert_eq!(firstdiff(&["compare", &golden, &logits.to_string_lossy()]).status.code(), Some(2));
}
