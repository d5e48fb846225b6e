//! Does the recorder record what the environment asks for, and nothing else?

use std::path::Path;
use std::process::Command;

use firstdiff_trace::{Dump, NamedRows, Recorder, Rows};

/// Prompt and decode step of a tiny engine, whose every value says where it stands.
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

/// Run by the tests below, with an environment of its own.
#[test]
fn child() {
    if std::env::var_os("RECORDER_CHILD").is_none() {
        return;
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

fn run(environment: &[(&str, &str)]) -> String {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "child", "--nocapture"]).env("RECORDER_CHILD", "1");
    for name in ["DIR", "TAPS", "STEPS", "ROWS"] {
        command.env_remove(format!("FIRSTDIFF_{name}"));
    }
    command.envs(environment.iter().copied());
    String::from_utf8(command.output().unwrap().stdout).unwrap()
}

/// Tap, step, values of what was recorded, and the rows it says it holds.
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
