//! Checks that the recorder records exactly what the environment variables select.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use firstdiff_trace::{Dump, NamedRows, RecordError, Recorder, Rows, Tap};
use half::bf16;

/// Prompt and decode step of a tiny engine; every value encodes its position.
fn engine(rec: &Recorder) {
    rec.tokens(&[7, 8, 9]);
    step(rec, 3, 0.0);
    rec.next_step(4);
    step(rec, 1, 100.0);
}

fn step(rec: &Recorder, tokens: usize, base: f32) {
    let values = |n: usize| (0..n).map(|i| base + i as f32).collect::<Vec<f32>>();
    rec.record("layers.0.h", &[tokens, 2], &values(2 * tokens)).unwrap();
    rec.record("layers.0.q", &[tokens, 2, 4], &values(8 * tokens)).unwrap();
    rec.record("layers.0.probs", &[2, tokens, 3], &values(6 * tokens)).unwrap();
    rec.record("layers.0.k", &[8 * tokens], &values(8 * tokens)).unwrap();
}

#[test]
fn a_prompt_in_chunks() {
    let folder = tempfile::tempdir().unwrap();
    let rec = Recorder::create(folder.path().join("out")).unwrap();
    rec.tokens(&[7, 8]);
    step(&rec, 2, 0.0);
    rec.next_chunk(&[9, 4]);
    step(&rec, 2, 100.0);
    rec.next_step(5);
    step(&rec, 1, 200.0);
    rec.finish().unwrap();
    let dump = Dump::open(folder.path().join("out")).unwrap();
    assert_eq!(dump.meta().tokens, Some(vec![7, 8]));
    assert_eq!(dump.meta().decode_tokens, Some(vec![9, 4, 5]));
    let steps: Vec<(u32, usize)> =
        dump.entries().iter().filter(|e| e.tap.to_string() == "layers.0.h").map(|e| (e.step, e.shape[0])).collect();
    assert_eq!(steps, [(0, 2), (1, 2), (2, 1)]);
}

#[test]
fn any_tap_is_found_by_its_name_and_step() {
    let folder = tempfile::tempdir().unwrap();
    let rec = Recorder::create(folder.path()).unwrap();
    rec.tokens(&[7, 8]);
    rec.record("h0", &[2, 2], &[0.0; 4]).unwrap();
    rec.next_step(9);
    rec.record("layers.0.mixer_in", &[1, 3], &[1.0; 3]).unwrap();
    rec.finish().unwrap();
    let dump = Dump::open(folder.path()).unwrap();
    let shape = |name, step| dump.entry(Tap::named(name), step).map(|entry| (entry.tap, entry.step, entry.shape));
    assert_eq!(shape("h0", 0), Some((Tap::named("h0"), 0, vec![2, 2])));
    assert_eq!(shape("layers.0.mixer_in", 1), Some((Tap::named("layers.0.mixer_in"), 1, vec![1, 3])));
    assert_eq!([shape("h0", 1), shape("layers.0.mixer_in", 0), shape("layers.0.q", 0)], [None, None, None]);
}

/// Run by the tests below, in a process with an environment of its own.
#[test]
fn child() {
    let Some(how) = std::env::var_os("RECORDER_CHILD") else { return };
    if how != "1" {
        return ended(&how.to_string_lossy());
    }
    match Recorder::from_env() {
        Ok(rec) => {
            println!("on: {}", rec.is_on());
            engine(&rec);
            if let Err(e) = rec.finish() {
                println!("refused: {e}");
            }
        }
        Err(e) => println!("refused: {e}"),
    }
}

/// A recording of two taps that ends in the given way.
fn ended(how: &str) {
    let rec = Recorder::from_env().unwrap();
    rec.tokens(&[7, 8]);
    rec.record("layers.0.h", &[2, 2], &[1f32, 2., 3., 4.]).unwrap();
    rec.record("layers.0.q", &[2, 1], &[bf16::ONE, bf16::ZERO]).unwrap();
    match how {
        "finished" => rec.finish().unwrap(),
        "killed" => {
            println!("ready");
            std::thread::sleep(Duration::from_secs(60));
        }
        "aborted" => std::process::abort(),
        "exited" => std::process::exit(0),
        "panicked" => panic!("as asked"),
        "dropped" => drop(rec),
        "twice" => {
            assert!(matches!(rec.record("layers.0.q", &[1], &[1f32]), Err(RecordError::Twice(_))));
            assert!(matches!(rec.finish(), Err(RecordError::Lost { count: 1, .. })));
        }
        "unwritable" => {
            // A folder has the name of the file.
            std::fs::create_dir(Path::new(&std::env::var("FIRSTDIFF_DIR").unwrap()).join("layers.0.k.npy")).unwrap();
            assert!(matches!(rec.record("layers.0.k", &[1], &[1f32]), Err(RecordError::Io { .. })));
            assert!(rec.finish().unwrap_err().to_string().starts_with("1 could not be recorded, the first: "));
        }
        other => unreachable!("{other}"),
    }
}

#[test]
fn only_what_was_finished_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    for (how, complete, by_itself) in [
        ("finished", true, None),
        ("killed", false, None),
        ("aborted", false, None),
        ("exited", false, None),
        ("panicked", false, None),
        ("dropped", false, Some(true)),
        ("twice", false, None),
        ("unwritable", false, None),
    ] {
        let out = folder.path().join(how);
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "recorder::child", "--nocapture"])
            .env("RECORDER_CHILD", how)
            .env("FIRSTDIFF_DIR", &out);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        if how == "killed" {
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            assert!(lines.any(|line| line.unwrap().contains("ready")));
            child.kill().unwrap();
        }
        child.wait_with_output().unwrap();
        let _ = std::fs::remove_dir(out.join("layers.0.k.npy"));
        let dump = Dump::open(&out).unwrap();
        assert_eq!((dump.meta().complete, dump.meta().ended_by_itself), (Some(complete), by_itself), "{how}");
        assert_eq!(dump.meta().tokens, Some(vec![7, 8]), "{how}: what was told before the first tap is known");
        let there: Vec<_> = dump.entries().iter().map(|e| dump.read(e).unwrap().values().to_f64()).collect();
        assert_eq!(there, [vec![1., 0.], vec![1., 2., 3., 4.]], "{how}: whole taps, of bf16 too");
    }
}

#[test]
fn names_that_are_no_taps_are_recorded_as_they_are() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("d");
    let rec = Recorder::create(&out).unwrap();
    let names = ["my.block.0.Wq", "Qcur-0 (view)", "../../up", "h.step1", "h1"];
    for (at, name) in (0..).zip(names) {
        rec.record(name, &[1, 2], &[at as f32, 0.5]).unwrap();
    }
    rec.next_step(3);
    rec.record("Qcur-0 (view)", &[1], &[9f32]).unwrap();
    assert!(matches!(rec.record("x".repeat(201), &[1], &[9f32]), Err(RecordError::Name(_))));
    assert!(matches!(rec.record("", &[1], &[9f32]), Err(RecordError::Name(_))));
    assert!(matches!(rec.finish(), Err(RecordError::Lost { count: 2, .. })));
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "no name leads out of the folder");
    let dump = Dump::open(&out).unwrap();
    let unmapped: Vec<&str> = dump.unmapped().iter().map(String::as_str).collect();
    assert_eq!(unmapped, ["../../up", "Qcur-0 (view)", "Qcur-0 (view).step1", "h.step1", "h1", "my.block.0.Wq"]);
    assert_eq!(dump.read_unmapped("Qcur-0 (view).step1").unwrap().values().to_f64(), [9.]);
    // If the recording was not finished, the file names give the taps.
    std::fs::write(out.join("dump.json"), r#"{"format": 1, "complete": false}"#).unwrap();
    let torn = Dump::open(&out).unwrap();
    assert_eq!(torn.unmapped(), dump.unmapped());
}

fn run(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "recorder::child", "--nocapture"]).env("RECORDER_CHILD", "1");
    for name in ["DIR", "TAPS", "STEPS", "ROWS"] {
        command.env_remove(format!("FIRSTDIFF_{name}"));
    }
    command.envs(environment.iter().copied());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Tap, step and values of what was recorded, and the rows that dump.json gives.
fn recorded(folder: &Path) -> Vec<(String, u32, Vec<f64>, Option<Rows>)> {
    let dump = Dump::open(folder).unwrap();
    dump.entries()
        .iter()
        .map(|e| (e.tap.to_string(), e.step, dump.read(e).unwrap().values().to_f64(), e.rows.clone()))
        .collect()
}

#[test]
fn an_empty_folder_name_is_none() {
    assert!(run(&[("FIRSTDIFF_DIR", "")]).contains("on: false"));
    assert!(run(&[]).contains("on: false"));
}

#[test]
fn steps_are_obeyed() {
    let folder = tempfile::tempdir().unwrap();
    for (steps, due) in [("0", vec![0]), ("1", vec![1]), ("0-5", vec![0, 1]), ("", vec![0, 1])] {
        let out = folder.path().join(format!("steps{steps}"));
        run(&[("FIRSTDIFF_DIR", out.to_str().unwrap()), ("FIRSTDIFF_STEPS", steps), ("FIRSTDIFF_TAPS", "*.h")]);
        assert_eq!(recorded(&out).iter().map(|r| r.1).collect::<Vec<_>>(), due, "{steps}");
        assert_eq!(Dump::open(&out).unwrap().meta().decode_tokens, Some(vec![4]), "the run had that step all the same");
    }
}

#[test]
fn rows_are_cut_and_said() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("last");
    run(&[("FIRSTDIFF_DIR", out.to_str().unwrap()), ("FIRSTDIFF_ROWS", "last")]);
    let rows = || Some(Rows::List(vec![2]));
    let due = [
        ("layers.0.q", 0, (16..24).map(f64::from).collect::<Vec<f64>>(), rows()),
        ("layers.0.k", 0, (0..24).map(f64::from).collect(), None),
        ("layers.0.probs", 0, vec![6., 7., 8., 15., 16., 17.], rows()),
        ("layers.0.h", 0, vec![4., 5.], rows()),
        ("layers.0.q", 1, (100..108).map(f64::from).collect(), None),
        ("layers.0.k", 1, (100..108).map(f64::from).collect(), None),
        ("layers.0.probs", 1, (100..106).map(f64::from).collect(), None),
        ("layers.0.h", 1, vec![100., 101.], None),
    ];
    assert_eq!(recorded(&out), due.map(|(tap, step, values, rows)| (tap.to_owned(), step, values, rows)));
    let out = folder.path().join("list");
    run(&[("FIRSTDIFF_DIR", out.to_str().unwrap()), ("FIRSTDIFF_ROWS", "2,1"), ("FIRSTDIFF_TAPS", "*.h")]);
    let due = [("layers.0.h".to_owned(), 0, vec![2., 3., 4., 5.], Some(Rows::List(vec![1, 2])))];
    assert_eq!(recorded(&out), due, "a decode step has no such row");
}

#[test]
fn what_cannot_be_asked_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let out = folder.path().join("out");
    let dir = ("FIRSTDIFF_DIR", out.to_str().unwrap());
    assert!(run(&[dir, ("FIRSTDIFF_STEPS", "3-")]).contains("refused: FIRSTDIFF_STEPS: '3-' is no list of steps"));
    assert!(run(&[dir, ("FIRSTDIFF_ROWS", "first")]).contains("refused: FIRSTDIFF_ROWS: 'first' is no position"));
    assert!(!out.exists());
    assert!(
        run(&[dir, ("FIRSTDIFF_STEPS", "9")])
            .contains("refused: nothing recorded matches FIRSTDIFF_TAPS='*' FIRSTDIFF_STEPS='9'")
    );
}

#[test]
fn a_tap_may_hold_its_last_row_only() {
    let folder = tempfile::tempdir().unwrap();
    let rec = Recorder::create(folder.path().join("d")).unwrap();
    rec.record_rows("logits", Rows::Named(NamedRows::Last), &[1, 3], &[1f32, 2., 3.]).unwrap();
    rec.finish().unwrap();
    assert_eq!(recorded(&folder.path().join("d"))[0].3, Some(Rows::Named(NamedRows::Last)));
}

#[test]
fn an_error_that_main_returns_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("h0.npy"), b"").unwrap();
    let occupied = Recorder::create(folder.path()).unwrap_err();
    let due = format!("{}: already holds a dump; remove it, or record into another folder", folder.path().display());
    assert_eq!([format!("{occupied:?}"), occupied.to_string()], [due.clone(), due]);
    let unread = Dump::open(folder.path().join("nowhere")).unwrap_err();
    assert_eq!(format!("{unread:?}"), unread.to_string());
}
