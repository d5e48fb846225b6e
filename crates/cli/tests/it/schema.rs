//! Checks the commands' `--json` output against docs/reference/schema/report.json. Runs each command; every report that another test reads is checked too
//! ([`conforms`]).

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::common::{firstdiff, json, parsed};

const GOLDEN: &str = "golden/llama-torch";
const FAULTY: &str = "faulty/llama-rope-pairing";
const MODEL: &str = "models/llama";

// ---- as much of JSON Schema (draft 2020-12) as that file uses; any other keyword is refused ----

fn schema() -> Value {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/schema/report.json");
    serde_json::from_slice(&fs::read(path).unwrap()).unwrap()
}

/// Fails unless a report has the form of its command's definition, and no other key.
#[track_caller]
pub(crate) fn conforms(report: &Value) {
    let root = schema();
    let command = report["command"].as_str().unwrap_or_default();
    let definition = &root["$defs"][command];
    assert!(definition.is_object(), "no definition of the command '{command}'");
    let mut errors = Vec::new();
    check(&root, definition, report, command, &mut errors);
    assert!(errors.is_empty(), "{}", errors.join("\n"));
}

/// What contradicts `rule`; returns the keys of `value` that the rule knows.
fn check(root: &Value, rule: &Value, value: &Value, at: &str, errors: &mut Vec<String>) -> BTreeSet<String> {
    let mut known = BTreeSet::new();
    let keys = || value.as_object().into_iter().flatten();
    for (keyword, says) in rule.as_object().unwrap_or_else(|| panic!("{at}: no schema: {rule}")) {
        match keyword.as_str() {
            "description" | "unevaluatedProperties" => {}
            "$ref" => {
                let name = says.as_str().and_then(|path| path.strip_prefix("#/$defs/")).unwrap();
                known.extend(check(root, &root["$defs"][name], value, at, errors));
            }
            "allOf" => {
                for part in says.as_array().unwrap() {
                    known.extend(check(root, part, value, at, errors));
                }
            }
            "anyOf" | "oneOf" => {
                let mut tried = Vec::new();
                let fits = says.as_array().unwrap().iter().find_map(|part| {
                    let before = tried.len();
                    let found = check(root, part, value, at, &mut tried);
                    (tried.len() == before).then_some(found)
                });
                match fits {
                    Some(found) => known.extend(found),
                    None => errors.extend(tried),
                }
            }
            "type" => {
                let is = |name: &Value| match name.as_str().unwrap() {
                    "object" => value.is_object(),
                    "array" => value.is_array(),
                    "string" => value.is_string(),
                    "boolean" => value.is_boolean(),
                    "null" => value.is_null(),
                    "integer" => value.is_u64() || value.is_i64(),
                    "number" => value.is_number(),
                    other => panic!("type {other}"),
                };
                if !says.as_array().map_or_else(|| is(says), |types| types.iter().any(is)) {
                    errors.push(format!("{at}: {value} is not of type {says}"));
                }
            }
            "properties" => {
                for (name, rule) in says.as_object().unwrap() {
                    if let Some(value) = value.get(name) {
                        check(root, rule, value, &format!("{at}.{name}"), errors);
                        known.insert(name.clone());
                    }
                }
            }
            // For a value that is no object, nothing is required.
            "required" if !value.is_object() => {}
            "required" => {
                let missing =
                    says.as_array().unwrap().iter().filter(|name| value.get(name.as_str().unwrap()).is_none());
                errors.extend(missing.map(|name| format!("{at}: {name} is missing")));
            }
            "additionalProperties" => {
                let others: Vec<_> =
                    keys().filter(|(name, _)| rule["properties"].get(name.as_str()).is_none()).collect();
                for (name, value) in others {
                    match says {
                        Value::Bool(false) => errors.push(format!("{at}.{name} is not documented")),
                        says => drop(check(root, says, value, &format!("{at}.{name}"), errors)),
                    }
                }
            }
            "items" => {
                for (index, value) in value.as_array().into_iter().flatten().enumerate() {
                    check(root, says, value, &format!("{at}[{index}]"), errors);
                }
            }
            "maxItems" if value.as_array().is_some_and(|list| list.len() as u64 > says.as_u64().unwrap()) => {
                errors.push(format!("{at}: more than {says}"));
            }
            "minItems" if value.as_array().is_some_and(|list| (list.len() as u64) < says.as_u64().unwrap()) => {
                errors.push(format!("{at}: fewer than {says}"));
            }
            "minItems" | "maxItems" => {}
            "enum" if !says.as_array().unwrap().contains(value) => {
                errors.push(format!("{at}: {value} is none of {says}"))
            }
            "const" if says != value => errors.push(format!("{at}: {value} is not {says}")),
            "enum" | "const" => {}
            other => panic!("{at}: the keyword '{other}' is not checked here"),
        }
    }
    if rule.get("unevaluatedProperties") == Some(&Value::Bool(false)) {
        errors.extend(
            keys().filter(|(name, _)| !known.contains(*name)).map(|(name, _)| format!("{at}.{name} is not documented")),
        );
    }
    known
}

/// Every schema within a schema, by its path.
fn walk<'v>(value: &'v Value, names: &mut BTreeSet<&'v str>) {
    match value {
        Value::Object(map) => {
            names.extend(map.get("$ref").and_then(Value::as_str).and_then(|path| path.strip_prefix("#/$defs/")));
            map.values().for_each(|value| walk(value, names));
        }
        Value::Array(list) => list.iter().for_each(|value| walk(value, names)),
        _ => {}
    }
}

#[test]
fn every_definition_is_used_and_no_other_is_named() {
    let root = schema();
    let mut named = BTreeSet::new();
    walk(&root, &mut named);
    let defined: BTreeSet<&str> = root["$defs"].as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(named, defined);
}

#[test]
fn a_key_too_many_or_a_wrong_type_is_seen() {
    let root = schema();
    let wrong = |report: &Value| {
        let mut errors = Vec::new();
        check(&root, &root["$defs"]["compare"], report, "compare", &mut errors);
        errors
    };
    let right = json(&["compare", GOLDEN, FAULTY]);
    assert!(wrong(&right).is_empty());
    for (path, value) in [
        ("/mend", Value::from("a key of schema 1")),
        ("/first_divergence/more", 1.into()),
        ("/taps/0/more", Value::Null),
        ("/verdict", "passed".into()),
        ("/taps/0/step", "0".into()),
        ("/schema", 1.into()),
        ("/reference/path", Value::Null),
    ] {
        let mut report = right.clone();
        let (parent, key) = path.rsplit_once('/').unwrap();
        report.pointer_mut(parent).unwrap()[key] = value;
        assert!(!wrong(&report).is_empty(), "{path}");
    }
    let mut report = right.clone();
    report.as_object_mut().unwrap().remove("reason");
    assert!(!wrong(&report).is_empty());
}

// ---- every command ----

#[test]
fn compare_at_parity_diverged_incomparable() {
    for (args, verdict) in [
        (&[GOLDEN, "right/llama-numpy.npz"][..], "parity"),
        (&[GOLDEN, FAULTY, "--why", "layers.0.*", "--model", MODEL], "diverged"),
        (&[GOLDEN, "faulty/llama-kv-cache-shift.npz", "--model", MODEL], "diverged"),
        (&["golden/minimind-torch.npz", "faulty/minimind-layer-skipped-layer1.npz"], "diverged"),
        (
            &["golden/minimind-torch.npz", "faulty/minimind-mask-omitted.npz", "--noise", "right/minimind-numpy.npz"],
            "diverged",
        ),
        (&[GOLDEN, GOLDEN, "--taps", "h0"], "incomparable"),
    ] {
        let report = json(&[&["compare"], args].concat());
        assert_eq!(report["verdict"], verdict, "{args:?}: {}", report["reason"]);
        assert_eq!(report["next"].is_string(), verdict == "diverged", "{args:?}");
    }
    let first = &json(&["compare", GOLDEN, FAULTY, "--model", MODEL])["first_divergence"];
    let cause = &first["why"];
    assert_eq!((&cause["cause"], &cause["match"]), (&"rope-pairing".into(), &"reproduced".into()));
    for key in ["summary", "proof", "fix"] {
        assert!(cause[key].as_str().is_some_and(|text| !text.is_empty()), "{key}: {cause}");
    }
    assert!(first["where"].as_array().is_some_and(|regions| !regions.is_empty()), "{first}");
}

#[test]
fn every_mistake_planted_in_one_family() {
    let faulty = fs::read_dir(crate::common::fixtures().join("faulty")).unwrap();
    let names = faulty.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    for name in names.filter(|name| name.starts_with("qwen3-")) {
        let path = format!("faulty/{name}");
        json(&["compare", "golden/qwen3-torch.safetensors", &path]);
        json(&["inspect", &path]);
        json(&["replay", "models/qwen3", &path]);
    }
}

#[test]
fn replay_and_explain() {
    let explain = ["explain", MODEL, FAULTY, "--ref", GOLDEN];
    for args in [&["replay", MODEL, GOLDEN][..], &["replay", MODEL, FAULTY], &["explain", MODEL, GOLDEN], &explain] {
        let report = json(args);
        let wrong = args[2] == FAULTY;
        assert_eq!(report["verdict"], if wrong { "diverged" } else { "parity" }, "{args:?}");
        assert_eq!(report["findings"].as_array().map(Vec::is_empty), Some(!wrong), "{args:?}");
        for finding in report["findings"].as_array().unwrap() {
            assert!(finding["measured"].is_null() && finding["fix"].is_string(), "{finding}");
        }
    }
}

#[test]
fn weights_the_same_and_other_ones() {
    for (a, b, verdict) in [
        (MODEL, "gguf/llama-f16.gguf", "parity"),
        (MODEL, "models/mistral", "diverged"),
        (MODEL, "models/qwen3", "diverged"),
        (MODEL, FAULTY, "incomparable"),
    ] {
        let output = firstdiff(&["weights", a, b, "--json", "-"]);
        if verdict != "incomparable" || !output.stdout.is_empty() {
            assert_eq!(parsed(&output)["verdict"], verdict, "{a} {b}");
        }
    }
}

#[test]
fn gate_align_dump_and_import() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name).to_string_lossy().into_owned();
    let baseline = at("parity.baseline");
    let right = "right/llama-numpy.npz";
    assert_eq!(json(&["gate", GOLDEN, right, "--baseline", &baseline, "--update"])["verdict"], "parity");
    assert_eq!(json(&["gate", GOLDEN, right, "--baseline", &baseline])["passed"], true);
    let worse = json(&["gate", GOLDEN, FAULTY, "--baseline", &baseline]);
    assert!(worse["regressions"].as_array().is_some_and(|list| !list.is_empty()));
    assert_eq!(json(&["dump", MODEL, "-o", &at("dump"), "--tokens", "1,17,42"])["taps"], 39);
    for (candidate, found) in [(FAULTY, Some("rope-pairing")), (right, None)] {
        let page = at("page.html");
        let report = json(&["report", GOLDEN, candidate, "--model", MODEL, "-o", &page]);
        assert_eq!(report["explained"]["findings"][0]["cause"].as_str(), found);
    }
    for args in [&["show", GOLDEN][..], &["show", GOLDEN, "layers.*.h"], &["show", GOLDEN, "layers.0.scores"]] {
        let shown = json(args);
        assert_eq!(shown["map"].is_object(), args.last() == Some(&"layers.0.scores"), "{args:?}");
    }
    let imported = json(&["import", "golden/llama-llama-cpp.npz", "-o", &at("imported")]);
    assert!(imported["taps"].as_array().is_some_and(|taps| !taps.is_empty()));
    // Tensors of unknown names.
    let unknown = folder.path().join("unknown");
    fs::create_dir(&unknown).unwrap();
    for entry in fs::read_dir(at("dump")).unwrap() {
        let file = entry.unwrap();
        let name = file.file_name().into_string().unwrap();
        if let Some(stem) = name.strip_suffix(".npy") {
            fs::copy(file.path(), unknown.join(format!("my_{}.npy", stem.replace('.', "_")))).unwrap();
        }
    }
    fs::write(unknown.join("my_own.npy"), fs::read(folder.path().join("dump/h0.npy")).unwrap()).unwrap();
    let aligned = json(&["align", &at("dump"), &unknown.to_string_lossy()]);
    let by = |by: &str| aligned["names"].as_array().unwrap().iter().filter(|name| name["by"] == by).count();
    assert!(by("content") > 0, "{aligned}");
    assert!(!json(&["compare", &at("dump"), &unknown.to_string_lossy()])["unmapped"].as_array().unwrap().is_empty());
}

/// The end of a bisection is checked by the tests of `bisect`; here, one without an answer.
#[test]
fn bisect_without_an_answer() {
    let folder = tempfile::tempdir().unwrap();
    let work = folder.path().join("work").to_string_lossy().into_owned();
    let report = json(&["bisect", GOLDEN, "--run", "exit 3", "--work", &work]);
    assert_eq!((&report["verdict"], report["runs"].as_array().map(Vec::len)), (&"incomparable".into(), Some(0)));
}
