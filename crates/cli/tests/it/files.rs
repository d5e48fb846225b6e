//! Checks what the command does with files that it should not read or not write: pipes and devices, links, and the dumps that it compares.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::command::{GOLDEN, refuses};
use crate::common::{firstdiff, fixtures, in_one_line, json, refused, screen};

fn pipe(path: &str) {
    assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
}

/// Exit code 2 and one line with the word, soon: the command neither waits for a writer nor reads until memory is full.
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

/// Every path argument of every command, with a file in its place.
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
        // A pipe under several names in turn, and a device that never ends.
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
    // The target of standard output is written on, not replaced.
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
    // A file beside the dump that is not read may be written.
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

/// A folder with the config of the fixture llama, this `quantization_config`, and tensors of zeros: name, type, bytes per element.
fn packed_folder(folder: &Path, quantisation: &str, tensors: &[(&str, &str, usize)]) -> String {
    let config = fs::read_to_string(fixtures().join("models/llama/config.json")).unwrap();
    let config = config.trim_end().strip_suffix('}').unwrap().to_owned() + quantisation + "}";
    fs::write(folder.join("config.json"), config).unwrap();
    let (mut header, mut at) = (Vec::new(), 0);
    for (name, kind, bytes) in tensors {
        header
            .push(format!(r#""{name}":{{"dtype":"{kind}","shape":[8,8],"data_offsets":[{at},{}]}}"#, at + 64 * bytes));
        at += 64 * bytes;
    }
    let header = format!("{{{}}}", header.join(","));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.as_bytes());
    file.resize(file.len() + at, 0);
    fs::write(folder.join("model.safetensors"), file).unwrap();
    folder.to_str().unwrap().to_owned()
}

#[test]
fn a_packing_that_is_not_read_is_refused_by_its_name() {
    const UP: &str = "model.layers.0.mlp.up_proj";
    let of = |method: &str| format!(r#","quantization_config":{{{method}}}"#);
    type Tensors<'a> = &'a [(&'a str, &'a str, usize)];
    let awq: Tensors<'_> = &[
        (&format!("{UP}.qweight"), "I32", 4),
        (&format!("{UP}.qzeros"), "I32", 4),
        (&format!("{UP}.scales"), "F16", 2),
    ];
    let bytes: Tensors<'_> = &[(&format!("{UP}.weight"), "U8", 1), (&format!("{UP}.weight.absmax"), "F32", 4)];
    let blocks: Tensors<'_> = &[(&format!("{UP}_blocks"), "U8", 1), (&format!("{UP}_scales"), "U8", 1)];
    let hqq: Tensors<'_> = &[(&format!("{UP}.W_q"), "U8", 1)];
    let int8: Tensors<'_> = &[(&format!("{UP}.weight"), "I8", 1)];
    let cases: [(String, Tensors<'_>, &[&str]); 7] = [
        (
            of(r#""quant_method":"awq","bits":4,"group_size":16,"version":"gemv""#),
            awq,
            &["AWQ (4 bits, groups of 16, gemv)"],
        ),
        (
            of(r#""quant_method":"bitsandbytes","load_in_4bit":true,"bnb_4bit_quant_type":"nf4""#),
            bytes,
            &["bitsandbytes (nf4)"],
        ),
        (
            of(r#""quant_method":"compressed-tensors","format":"nvfp4-pack-quantized""#),
            int8,
            &["compressed-tensors (nvfp4-pack-quantized)"],
        ),
        (of(r#""quant_method":"torchao""#), int8, &["torchao"]),
        (of(r#""quant_method":"mxfp4""#), blocks, &["MXFP4"]),
        (String::new(), blocks, &["MXFP4"]),
        (String::new(), hqq, &["HQQ"]),
    ];
    for (config, tensors, words) in cases {
        let folder = tempfile::tempdir().unwrap();
        let packed = packed_folder(folder.path(), &config, tensors);
        let out = folder.path().join("out");
        let out = out.to_str().unwrap();
        let words = [&["packed by", "not read"], words].concat();
        refused(&firstdiff(&["weights", &packed, "models/llama"]), &words);
        refused(&firstdiff(&["weights", "models/llama", &packed]), &words);
        refused(&firstdiff(&["dump", &packed, "--tokens", "1,2", "-o", out]), &words);
        refused(&firstdiff(&["explain", &packed, "right/llama-numpy.npz"]), &words);
        refused(&firstdiff(&["replay", &packed, "right/llama-numpy.npz"]), &words);
    }
    // The same config over plain numbers: the weights were dequantised, and are read.
    let folder = tempfile::tempdir().unwrap();
    let plain = packed_folder(folder.path(), &of(r#""quant_method":"awq""#), &[(&format!("{UP}.weight"), "F32", 4)]);
    let run = firstdiff(&["weights", &plain, &plain]);
    assert_eq!(run.status.code(), Some(0), "{}", String::from_utf8_lossy(&run.stderr));
}

/// A .safetensors of these tensors.
fn archive(path: &str, tensors: &[(&str, &[usize], &[f32])]) {
    let (mut header, mut data) = (serde_json::Map::new(), Vec::new());
    for (name, shape, values) in tensors {
        let from = data.len();
        data.extend(values.iter().flat_map(|x| x.to_le_bytes()));
        let tensor = serde_json::json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]});
        header.insert((*name).to_owned(), tensor);
    }
    let header = Value::from(header).to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), &data].concat()).unwrap();
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
    // Numbers as a reranker's client prints them, in full and to four decimals; and archives.
    let scores = [0.5351283, 0.8023218, 0.8443967, 0.7896631];
    let wrong = scores.map(|x: f64| 1.0 / (1.0 + (-x).exp()));
    let text = |values: &[f64], digits: usize| {
        let line = |(at, value): (usize, &f64)| format!("{at} {value:.digits$}\n");
        values.iter().enumerate().map(line).collect::<String>()
    };
    for (name, values, digits) in [("ref.txt", scores, 7), ("short.txt", scores, 4), ("cand.txt", wrong, 7)] {
        fs::write(at(name), text(&values, digits)).unwrap();
    }
    for (file, name, values) in
        [("a.safetensors", "alpha", scores), ("b.safetensors", "beta", scores), ("c.safetensors", "arr_0", wrong)]
    {
        archive(&at(file), &[(name, &[4], &values.map(|x| x as f32))]);
    }
    archive(&at("two.safetensors"), &[("alpha", &[4], &[1.0; 4]), ("beta", &[4], &[2.0; 4])]);
    let golden = golden.to_string_lossy().into_owned();
    for (reference, candidate, due) in [
        ("a.json", "b.json", 0),
        ("a.json", "c.json", 1),
        ("mine.npy", "theirs.npy", 0),
        ("mine.npy", "other.npy", 2),
        ("ref.txt", "ref.txt", 0),
        ("ref.txt", "short.txt", 0),
        ("ref.txt", "cand.txt", 1),
        ("short.txt", "cand.txt", 1),
        ("ref.txt", "a.safetensors", 0),
        ("c.safetensors", "short.txt", 1),
        ("a.safetensors", "b.safetensors", 0),
        ("a.safetensors", "c.safetensors", 1),
        ("a.safetensors", "a.json", 2),
        ("two.safetensors", "c.safetensors", 2),
        ("two.safetensors", "ref.txt", 2),
    ] {
        let output = firstdiff(&["compare", &at(reference), &at(candidate)]);
        assert_eq!(
            output.status.code(),
            Some(due),
            "{reference} {candidate}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    // The name of one file is used for the other; two names are two taps.
    assert_eq!(firstdiff(&["compare", &golden, &at("mine.npy")]).status.code(), Some(0));
    assert_eq!(firstdiff(&["compare", &at("mine.npy"), &golden]).status.code(), Some(0));
    assert_eq!(firstdiff(&["compare", &golden, &logits.to_string_lossy()]).status.code(), Some(2));
}

#[test]
fn a_grid_that_nothing_calls_a_batch_is_compared_as_one() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let values = |seed: f32| (0..6 * 6 * 16).map(|i| (i as f32 * 0.7 + seed).sin()).collect::<Vec<f32>>();
    let (h0, h) = (values(0.0), values(2.0));
    let mut off = h.clone();
    // The elements of row 3.
    off[3 * 96..4 * 96].iter_mut().for_each(|x| *x += 0.1);
    let shape = &[6, 6, 16][..];
    for (name, h, shape) in [("ref", &h, shape), ("same", &h, &[36, 16][..]), ("off", &off, shape)] {
        archive(&at(&format!("{name}.safetensors")), &[("h0", shape, &h0), ("layers.0.h", shape, h)]);
    }
    let compared = |name: &str, more: &[&str]| {
        json(&[&["compare", &at("ref.safetensors"), &at(&format!("{name}.safetensors"))], more].concat())
    };
    assert_eq!(compared("ref", &[])["verdict"], "parity");
    assert_eq!(compared("same", &[])["verdict"], "parity");
    let wrong = compared("off", &[]);
    assert_eq!((&wrong["verdict"], wrong["batch"].as_u64()), (&"diverged".into(), None), "{wrong:#}");
    let said = in_one_line(&screen(&["compare", &at("ref.safetensors"), &at("off.safetensors")]));
    assert!(said.contains("18-23 wrong"), "{said}");
    // --sequence declares a batch; so do tokens.
    assert_eq!(compared("off", &["--sequence", "0"])["verdict"], "parity");
    assert_eq!(compared("off", &["--sequence", "3"])["verdict"], "diverged");
    let told = screen(&["compare", &at("ref.safetensors"), &at("off.safetensors"), "--tokens", "1,2,3,4,5,6"]);
    assert!(told.contains("a batch of 6 sequences"), "{told}");
}
