//! Checks the screen of every kind of outcome, at 80 and 120 columns, without colours where no terminal shows them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Output, Stdio};

use clap::CommandFactory;

use crate::common::{fixtures, in_one_line, json, screen};

const GOLDEN: &str = "golden/llama-torch";
const FAULTY: &str = "faulty/llama-rope-pairing";
const RIGHT: &str = "right/llama-numpy.npz";
const MODEL: &str = "models/llama";
const WIDTHS: [usize; 2] = [80, 120];

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_firstdiff"));
    command.args(args).current_dir(fixtures()).env_remove("NO_COLOR").env_remove("CLICOLOR_FORCE");
    command
}

/// Both outputs and the exit code at both widths.
fn screens_in(folder: &Path, args: &[&str]) -> String {
    let one = |width: usize| {
        let run = command(args).env("COLUMNS", width.to_string()).current_dir(folder).output().unwrap();
        let text = String::from_utf8(run.stdout).unwrap() + &String::from_utf8(run.stderr).unwrap();
        assert!(!text.contains('\u{1b}'), "colours in a pipe: {args:?}");
        // An error is one line, however long.
        let lines = text.lines().filter(|line| !line.starts_with("firstdiff: error"));
        let too_long = |line: &&str| line.chars().count() > width && line.split_whitespace().count() > 2;
        assert_eq!(lines.clone().find(too_long), None, "{args:?}");
        format!("{width} columns, exit code {}\n{text}", run.status.code().unwrap())
    };
    WIDTHS.map(one).join("\n")
}

#[test]
fn of_every_kind_of_outcome() {
    let noise = "right/llama-torch-bf16.npz";
    for (name, args) in [
        ("parity", &["compare", GOLDEN, RIGHT][..]),
        ("diverged", &["compare", GOLDEN, FAULTY]),
        ("three_way", &["compare", GOLDEN, "right/llama-torch-f16.npz", "--noise", noise, "--profile", "f32"]),
        ("three_way_diverged", &["compare", GOLDEN, FAULTY, "--noise", noise]),
        ("other_model", &["compare", GOLDEN, "golden/qwen3-torch.safetensors"]),
        ("other_tokens", &["compare", GOLDEN, "faulty/llama-tokens-differ-bos.npz"]),
        ("incomparable", &["compare", GOLDEN, GOLDEN, "--taps", "h0"]),
        ("required", &["compare", GOLDEN, RIGHT, "--require", "*"]),
        ("why_a_tap", &["compare", GOLDEN, FAULTY, "--taps", "layers.0.q*", "--why", "layers.0.q_rope"]),
        ("replay_diverged", &["replay", MODEL, FAULTY]),
        ("replay_parity", &["replay", MODEL, RIGHT]),
        ("explain_cause", &["explain", MODEL, FAULTY]),
        ("explain_parity", &["explain", MODEL, RIGHT]),
        ("weights_parity", &["weights", MODEL, "gguf/llama-f16.gguf"]),
        ("weights_diverged", &["weights", MODEL, "models/mistral"]),
        ("inspect_nothing", &["inspect", RIGHT]),
        ("inspect_certain", &["inspect", "faulty/minimind-mask-omitted.npz"]),
        ("align", &["align", GOLDEN, FAULTY]),
        ("show_kinds", &["show", GOLDEN]),
        ("show_taps", &["show", GOLDEN, "layers.*.h"]),
        ("show_one", &["show", GOLDEN, "layers.0.probs", "--head", "2"]),
        ("why_cause", &["why", "rope-pairing"]),
        ("why_law", &["why", "mask.fill"]),
        ("no_such_file", &["compare", GOLDEN, "nowhere"]),
        ("no_such_tap", &["show", GOLDEN, "layers.9.h"]),
    ] {
        insta::assert_snapshot!(name, screens_in(&fixtures(), args));
    }
}

/// In a folder of its own with the fixtures in it: the screen names the baseline, and a long name is wrapped.
#[cfg(unix)]
#[test]
fn of_a_gate() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["golden", "right", "faulty"] {
        std::os::unix::fs::symlink(fixtures().join(name).canonicalize().unwrap(), folder.path().join(name)).unwrap();
    }
    let reason = "keys are paired otherwise until issue 7 is done";
    let accepted = ["--update", "--accept-diverged", "--by", "ann", "--reason", reason];
    let gate = |candidate: &'static str, baseline: &'static str, more: &[&str]| {
        screens_in(folder.path(), &[&["gate", GOLDEN, candidate, "--baseline", baseline][..], more].concat())
    };
    let (parity, held) = ("parity.baseline", "held.baseline");
    insta::assert_snapshot!("gate_missing", gate(RIGHT, parity, &[]));
    insta::assert_snapshot!("gate_update", gate(RIGHT, parity, &["--update"]));
    insta::assert_snapshot!("gate_passed", gate(RIGHT, parity, &[]));
    insta::assert_snapshot!("gate_failed", gate(FAULTY, parity, &[]));
    insta::assert_snapshot!("gate_refused", gate(FAULTY, held, &["--update"]));
    insta::assert_snapshot!("gate_accepted", gate(FAULTY, held, &accepted));
    insta::assert_snapshot!("gate_held", gate(FAULTY, held, &[]));
    insta::assert_snapshot!("gate_outgrown", gate(RIGHT, held, &[]));
}

#[test]
fn colours_are_shown_where_they_are_asked_for_alone() {
    let text = |run: Output| String::from_utf8(run.stdout).unwrap();
    let args = ["compare", GOLDEN, FAULTY];
    let plain = text(command(&args).output().unwrap());
    let forced = text(command(&args).env("CLICOLOR_FORCE", "1").output().unwrap());
    assert!(!plain.contains('\u{1b}') && forced.contains('\u{1b}'));
    assert_eq!(anstream::adapter::strip_str(&forced).to_string(), plain);
    let refused = text(command(&args).env("CLICOLOR_FORCE", "1").env("NO_COLOR", "1").output().unwrap());
    assert_eq!(refused, plain);
}

#[test]
fn a_reader_that_goes_away_changes_no_exit_code() {
    let mut run = command(&["compare", GOLDEN, FAULTY]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    drop(run.stdout.take());
    let ended = run.wait_with_output().unwrap();
    assert_eq!((ended.status.code(), String::from_utf8(ended.stderr).unwrap()), (Some(1), String::new()));
}

#[test]
fn completions_have_every_command_and_nothing_hidden() {
    for shell in ["bash", "zsh", "fish", "powershell", "elvish"] {
        let script = String::from_utf8(command(&["completions", shell]).output().unwrap().stdout).unwrap();
        for name in ["compare", "explain", "show", "noise"] {
            assert!(script.contains(name), "{shell}: {name}");
        }
        assert!(!script.contains("keep-engine"), "{shell}");
    }
}

#[test]
fn every_command_has_a_man_page() {
    let folder = tempfile::tempdir().unwrap();
    clap_mangen::generate_to(firstdiff::commands::Cli::command(), folder.path()).unwrap();
    for name in ["firstdiff", "firstdiff-compare", "firstdiff-explain", "firstdiff-show"] {
        let page = std::fs::read_to_string(folder.path().join(format!("{name}.1"))).unwrap();
        assert!(page.contains("firstdiff"), "{name}: {page}");
    }
}

/// The words behind `before` in a text, up to a space, a quotation mark or the like.
fn numbers_behind<'t>(text: &'t str, before: &str) -> Vec<&'t str> {
    text.split(before).skip(1).filter_map(|rest| rest.split([' ', '"', ';', ',', ')', '\n']).next()).collect()
}

#[test]
fn what_is_allowed_is_one_number_on_every_screen() {
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("page.html");
    for (golden, faulty) in [
        (GOLDEN, FAULTY),
        (GOLDEN, "faulty/llama-qk-row-order.npz"),
        (GOLDEN, "faulty/llama-weight-stride-ffn_out-layer1.npz"),
        (GOLDEN, "faulty/llama-logit-scale.npz"),
        ("golden/qwen2-torch.npz", "faulty/qwen2-kv-cache-stale-layer1.npz"),
        ("golden/qwen3-torch.safetensors", "faulty/qwen3-qk-norm-order.npz"),
    ] {
        let args = ["compare", golden, faulty, "--html", page.to_str().unwrap()];
        let report = json(&args);
        let mut allowed: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
        let mut said = 0;
        for tap in report["taps"].as_array().unwrap() {
            let (name, reason) = (tap["tap"].as_str().unwrap(), tap["reason"].as_str().unwrap_or_default());
            let Some(number) = tap["allowed_nmse"].as_f64().map(firstdiff_compare::number) else { continue };
            for words in numbers_behind(reason, "allowed ") {
                assert_eq!(words, number, "{faulty}: {name}: {reason}");
                said += 1;
            }
            allowed.entry(name).or_default().insert(number);
        }
        assert!(said > 0, "{faulty}: no reason says what is allowed");
        let screen = in_one_line(&screen(&["compare", golden, faulty, "--verbose"]));
        let first = report["first_divergence"]["tap"].as_str().unwrap();
        for words in
            numbers_behind(&screen, "why NMSE ").iter().zip(numbers_behind(&screen, ", allowed ")).map(|(_, n)| n)
        {
            assert!(allowed[first].contains(words), "{faulty}: {first}: {words} on the screen");
        }
        let text = std::fs::read_to_string(&page).unwrap();
        let data = text.split("id=\"data\">").nth(1).unwrap().split("</script>").next().unwrap();
        for tap in serde_json::from_str::<serde_json::Value>(data).unwrap().as_array().unwrap() {
            let (name, facts) = (tap["tap"].as_str().unwrap(), tap["facts"].as_array().unwrap());
            let facts = facts.iter().filter(|fact| fact[0] == "allowed");
            facts.for_each(|fact| {
                assert!(allowed[name].contains(fact[1].as_str().unwrap()), "{faulty}: {name}: {fact}")
            });
        }
        let labels = text.split("aria-label=\"").skip(1).filter_map(|rest| rest.split('"').next());
        for label in labels.filter(|label| label.contains(" allowed")) {
            let name = label.split([':', ',']).next().unwrap();
            let words = label.split(" allowed").next().unwrap().rsplit(' ').next().unwrap();
            assert!(allowed[name].contains(words), "{faulty}: {label}");
        }
    }
}
