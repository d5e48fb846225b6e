//! Checks what CI shows: taps that had to be compared, annotations, test cases, and the page of a run.

use std::fs;
use std::process::{Command, Output};

use crate::common::{firstdiff, fixtures, in_one_line, json, refused, screen};

const GOLDEN: &str = "golden/llama-torch";
const FAULTY: &str = "faulty/llama-rope-pairing";
const RIGHT: &str = "right/llama-numpy.npz";

fn code(args: &[&str]) -> Option<i32> {
    firstdiff(args).status.code()
}

#[test]
fn what_had_to_be_compared_and_was_not_fails() {
    // Only the last row is compared, of a candidate that lacks the inner taps of attention.
    let part = ["compare", GOLDEN, "right/llama-torch-sdpa.npz"];
    let with = |more: &[&'static str]| [&part[..], more].concat();
    assert_eq!(code(&part), Some(0));
    assert_eq!(code(&["compare", GOLDEN, GOLDEN, "--require", "layers.*.probs, h0"]), Some(0));
    assert_eq!(code(&with(&["--require", "layers.*.probs"])), Some(1));
    assert_eq!(code(&with(&["--fail-on-unchecked"])), Some(1));
    assert_eq!(code(&["compare", GOLDEN, GOLDEN, "--fail-on-unchecked"]), Some(0));
    refused(&firstdiff(&with(&["--require", "layers.*.prbos"])), &["--require layers.*.prbos", "none of the taps"]);
    let said = in_one_line(&screen(&with(&["--require", "layers.*.probs"])));
    assert!(said.contains("failed:") && said.contains("required, but unchecked (layers.0.probs"), "{said}");
    let report = json(&with(&["--require", "layers.*.probs"]));
    assert_eq!(report["verdict"], "parity");
    let unmet = report["required_unchecked"].as_array().unwrap();
    assert!(unmet.iter().all(|tap| tap["tap"].as_str().unwrap().ends_with(".probs")) && unmet.len() >= 2);
}

#[test]
fn a_gate_is_not_passed_where_what_is_required_is_unchecked() {
    let folder = tempfile::tempdir().unwrap();
    let baseline = folder.path().join("parity.baseline");
    let baseline = baseline.to_str().unwrap();
    let gate = ["gate", GOLDEN, "right/llama-torch-sdpa.npz", "--baseline", baseline];
    let with = |more: &[&'static str]| [&gate[..], more].concat();
    refused(&firstdiff(&with(&["--update", "--fail-on-unchecked"])), &["not written", "unchecked"]);
    assert_eq!(code(&with(&["--update"])), Some(0));
    assert_eq!(code(&gate), Some(0));
    assert_eq!(code(&with(&["--fail-on-unchecked"])), Some(1));
    let report = json(&with(&["--fail-on-unchecked"]));
    assert_eq!((&report["passed"], &report["regressions"]), (&false.into(), &serde_json::json!([])));
    let said = screen(&with(&["--require", "layers.0.probs"]));
    assert!(said.contains("gate: FAILED, ") && !said.contains("0 taps"), "{said}");
}

/// Runs the command as GitHub's runner does.
fn in_job(args: &[&str], summary: &std::path::Path) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    command.env("GITHUB_STEP_SUMMARY", summary).args(args).current_dir(fixtures()).output().unwrap()
}

#[test]
fn a_job_on_github_is_annotated_and_has_a_summary() {
    let folder = tempfile::tempdir().unwrap();
    let summary = folder.path().join("summary.md");
    fs::write(&summary, "before\n").unwrap();
    let run = in_job(&["compare", GOLDEN, FAULTY, "--format", "github"], &summary);
    assert_eq!(run.status.code(), Some(1));
    let commands = String::from_utf8(run.stderr).unwrap();
    let first = commands.lines().next().unwrap();
    assert!(first.starts_with("::error title=firstdiff%3A diverged%3A layers.0.q_rope::rope: NMSE"), "{commands}");
    let written = fs::read_to_string(&summary).unwrap();
    assert!(written.starts_with("before\n### firstdiff: diverged\n"), "{written}");
    assert!(written.contains("first divergence: layers.0.q_rope (rope)"), "{written}");
    // Names in the screen are foreign: the runner is told not to look for commands there.
    let shown = String::from_utf8(run.stdout).unwrap();
    let word = shown.lines().next().unwrap().strip_prefix("::stop-commands::").unwrap();
    assert_eq!(shown.lines().last().unwrap(), format!("::{word}::"));
    // Standard output holds only JSON.
    let run = in_job(&["compare", GOLDEN, FAULTY, "--format", "github", "--json", "-"], &summary);
    assert!(serde_json::from_slice::<serde_json::Value>(&run.stdout).is_ok());
    // There are no annotations where nothing failed.
    let run = in_job(&["compare", GOLDEN, RIGHT, "--format", "github"], &summary);
    assert_eq!((run.status.code(), run.stderr), (Some(0), Vec::new()));
}

#[test]
fn every_tap_is_a_test_case_and_none_that_is_unchecked_passes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("junit.xml");
    let cases = |args: &[&str]| {
        let run = firstdiff(&[args, &["--junit", file.to_str().unwrap()]].concat());
        assert!(run.stderr.is_empty(), "{}", String::from_utf8_lossy(&run.stderr));
        fs::read_to_string(&file).unwrap()
    };
    let counts = &json(&["compare", GOLDEN, FAULTY])["counts"];
    let count = |name: &str| counts[name].as_u64().unwrap() as usize;
    let text = cases(&["compare", GOLDEN, FAULTY]);
    assert_eq!(text.matches("<failure ").count(), count("diverged") + count("downstream"));
    assert_eq!(text.matches("<skipped ").count(), count("unchecked"));
    assert!(
        text.contains(r#"<testcase classname="prefill" name="layers.0.q_rope"><failure type="diverged""#),
        "{text}"
    );
    assert!(text.contains(r#"<testcase classname="prefill" name="h0"></testcase>"#), "{text}");
    let text = cases(&["compare", GOLDEN, FAULTY, "--fail-on-unchecked"]);
    assert_eq!(
        (text.matches("<skipped ").count(), text.matches("type=\"unchecked\"").count()),
        (0, count("unchecked"))
    );
}

#[test]
fn an_accepted_divergence_is_no_failure_of_a_job() {
    let folder = tempfile::tempdir().unwrap();
    let (baseline, file) = (folder.path().join("own.baseline"), folder.path().join("junit.xml"));
    let (baseline, file) = (baseline.to_str().unwrap(), file.to_str().unwrap());
    let gate = ["gate", GOLDEN, FAULTY, "--baseline", baseline];
    assert_eq!(code(&[&gate[..], &["--update", "--accept-diverged"]].concat()), Some(0));
    let run = firstdiff(&[&gate[..], &["--junit", file, "--format", "github"]].concat());
    assert_eq!((run.status.code(), run.stderr), (Some(0), Vec::new()));
    let text = fs::read_to_string(file).unwrap();
    assert!(!text.contains("<failure ") && text.contains("as its baseline allows"), "{text}");
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    assert_eq!(code(&[&gate[..], &["--html", page]].concat()), Some(0));
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains(">gate passed<") && text.contains("Not parity: held to its own baseline"));
}

#[test]
fn a_page_and_test_cases_fail_where_the_command_does() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    let (page, file, baseline) = (at("page.html"), at("taps.xml"), at("parity.baseline"));
    let outputs = ["--html", &page, "--junit", &file];
    let run = |args: &[&str]| {
        let code = code(&[args, &outputs].concat());
        (code, fs::read_to_string(&page).unwrap(), fs::read_to_string(&file).unwrap())
    };
    let (code_of, text, cases) = run(&["compare", GOLDEN, "right/llama-torch-sdpa.npz", "--require", "layers.0.probs"]);
    assert!(code_of == Some(1) && text.contains(">failed<") && text.contains("required, but unchecked"));
    assert!(cases.contains(r#"name="layers.0.probs"><failure type="unchecked""#), "{cases}");
    assert_eq!(code(&["gate", GOLDEN, RIGHT, "--baseline", &baseline, "--update"]), Some(0));
    // Taps that the baseline has and the candidate lacks.
    let (code_of, text, cases) = run(&["gate", GOLDEN, "right/llama-torch-sdpa.npz", "--baseline", &baseline]);
    assert!(code_of == Some(1) && text.contains(">gate failed<") && text.contains("gate: FAILED"));
    assert!(cases.contains("<failure type=\"regression\""), "{cases}");
    // Nothing can be concluded from a recording that was not finished.
    let torn = at("torn");
    fs::create_dir(&torn).unwrap();
    npy(&folder.path().join("torn/h0.npy"), 4);
    fs::write(folder.path().join("torn/dump.json"), r#"{"format": 1, "complete": false, "tokens": [1, 2, 3, 4]}"#)
        .unwrap();
    let (code_of, _, cases) = run(&["compare", &torn, &torn]);
    assert!(code_of == Some(2) && cases.contains("<error type=\"incomparable\""), "{cases}");
    refused(&firstdiff(&["compare", GOLDEN, RIGHT, "--html", &page, "--junit", &page]), &["two outputs"]);
    refused(&firstdiff(&["compare", GOLDEN, RIGHT, "--html", "-", "--json", "-"]), &["two outputs"]);
}

/// The last `rows` of four positions of eight channels.
fn npy(path: &std::path::Path, rows: usize) {
    let mut header = format!("{{'descr': '<f4', 'fortran_order': False, 'shape': ({rows}, 8), }}");
    header += &" ".repeat(64 - (10 + header.len() + 1) % 64);
    header.push('\n');
    let mut bytes = b"\x93NUMPY\x01\x00".to_vec();
    bytes.extend((header.len() as u16).to_le_bytes());
    bytes.extend(header.as_bytes());
    bytes.extend(((4 - rows) * 8..32).flat_map(|value| (value as f32 + 1.0).to_le_bytes()));
    fs::write(path, bytes).unwrap();
}

#[test]
fn a_tap_of_one_dump_alone_is_not_checked_and_one_held_in_part_neither() {
    let folder = tempfile::tempdir().unwrap();
    let dump = |name: &str, more: bool, in_part: bool| {
        let path = folder.path().join(name);
        fs::create_dir(&path).unwrap();
        let entry = |tap: &str, rows: usize, of: &str| {
            let file = format!("{tap}.npy");
            npy(&path.join(&file), rows);
            format!(r#"{{"tap": "{tap}", "step": 0, "file": "{file}", "shape": [{rows}, 8], "dtype": "f32"{of}}}"#)
        };
        let (rows, of) = if in_part { (1, r#", "rows": [3]"#) } else { (4, "") };
        let mut taps = vec![entry("h0", 4, ""), entry("logits", rows, of)];
        taps.extend(more.then(|| entry("layers.0.extra", 4, "")));
        let taps = taps.join(", ");
        let meta = format!(r#"{{"format": 1, "precision": "f32", "tokens": [1, 2, 3, 4], "taps": [{taps}]}}"#);
        fs::write(path.join("dump.json"), meta).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (plain, more, part) = (dump("plain", false, false), dump("more", true, false), dump("part", false, true));
    assert_eq!(code(&["compare", &plain, &plain, "--fail-on-unchecked"]), Some(0));
    for pair in [[&more, &plain], [&plain, &more]] {
        assert_eq!(code(&["compare", pair[0], pair[1]]), Some(0));
        assert_eq!(code(&["compare", pair[0], pair[1], "--require", "layers.0.extra"]), Some(1));
    }
    assert_eq!(code(&["compare", &more, &plain, "--fail-on-unchecked"]), Some(1));
    assert_eq!(code(&["compare", &plain, &part]), Some(0));
    assert_eq!(code(&["compare", &plain, &part, "--require", "logits"]), Some(1));
    assert_eq!(code(&["compare", &plain, &part, "--require", "logits", "--rows", "3"]), Some(0), "no more was asked");
}

#[test]
fn a_page_is_written_beside_the_screen_and_never_over_an_input() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    for args in [
        vec!["compare", GOLDEN, FAULTY, "--html", page],
        vec!["replay", "models/llama", FAULTY, "--html", page],
        vec!["explain", "models/llama", FAULTY, "--html", page],
        vec!["report", GOLDEN, FAULTY, "-o", page],
    ] {
        let run = firstdiff(&args);
        assert_eq!(run.status.code(), Some(1), "{args:?}");
        assert!(!run.stdout.is_empty());
        let text = fs::read_to_string(page).unwrap();
        assert!(text.starts_with("<!DOCTYPE html>") && text.contains("q_rope"), "{args:?}");
        assert!(!text.contains("http-equiv=\"refresh\"") && !text.contains("src="), "nothing is loaded");
    }
    let on_standard_output = firstdiff(&["compare", GOLDEN, FAULTY, "--html", "-"]);
    assert!(
        on_standard_output.stdout.starts_with(b"<!DOCTYPE html>") && on_standard_output.stdout.ends_with(b"</html>")
    );
    let copy = folder.path().join("candidate.npz");
    fs::copy(fixtures().join(RIGHT), &copy).unwrap();
    let copy = copy.to_str().unwrap();
    refused(&firstdiff(&["compare", GOLDEN, copy, "--html", copy]), &["is read by this command"]);
    refused(&firstdiff(&["report", GOLDEN, copy, "-o", copy]), &["is read by this command"]);
    refused(&firstdiff(&["compare", GOLDEN, copy, "--junit", copy]), &["is read by this command"]);
}

#[test]
fn a_report_that_cannot_seek_the_cause_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    let page = page.to_str().unwrap();
    refused(&firstdiff(&["report", GOLDEN, FAULTY, "-o", page, "--seconds=-1"]), &["--seconds -1"]);
    assert!(!std::path::Path::new(page).exists());
    // Its program is there, but does not say where its weights are.
    let of = "programs/forgetting";
    let (reference, wrong, weights) =
        (format!("{of}/golden"), format!("{of}/wrong.npz"), format!("{of}/model.safetensors"));
    let report = ["report", &reference, &wrong, "-o", page];
    assert_eq!(code(&report), Some(1));
    let text = fs::read_to_string(page).unwrap();
    assert!(!text.contains("class=\"cause\"") && text.contains("no cause was sought"));
    assert_eq!(code(&[&report[..], &["--weights", &weights]].concat()), Some(1));
    let text = fs::read_to_string(page).unwrap();
    assert!(text.contains("class=\"cause\"") && !text.contains("no cause was sought"));
    assert!(text.contains("new_architecture.py:49"), "the line of the reference");
}
