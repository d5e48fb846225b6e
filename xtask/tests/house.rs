//! Checks rules of the code base that no compiler checks: no decision depends on the words of a message or the id of a mistake, the folders of a crate do
//! not import each other in a circle, tolerances are only in the tolerance files of their crate, and no crate is built twice, for the command and for the
//! tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use firstdiff_explain::mistakes::catalogue;

/// Ways to test what a text contains.
const QUESTIONS: [&str; 9] = [
    ".starts_with(\"",
    ".ends_with(\"",
    ".contains(\"",
    ".strip_prefix(\"",
    ".strip_suffix(\"",
    ".replace(\"",
    ".split_once(\"",
    "== \"",
    "== Some(\"",
];
/// Files that parse texts of other programs.
const FOREIGN_TEXT: [&str; 2] = ["trace/src/dump/import/", "trace/src/npy.rs"];

/// The only folder in which ids of mistakes may be used. xtask plants mistakes by their ids.
const CATALOGUE: &str = "explain/src/mistakes/";
/// `compare` cannot use the catalogue: `inspect` describes what a broken sum looks like.
const SUGGESTED: [(&str, &str); 1] = [("compare/src/inspect/stream.rs", "residual-source")];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the workspace").to_path_buf()
}

/// The source files of a folder, by relative path.
fn sources(folder: &Path) -> BTreeMap<PathBuf, String> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(at) = open.pop() {
        for entry in fs::read_dir(&at).expect("a folder") {
            let path = entry.expect("an entry").path();
            match path.extension() {
                _ if path.is_dir() => open.push(path),
                Some(ending) if ending == "rs" => {
                    let inside = path.strip_prefix(folder).expect("inside").to_path_buf();
                    found.insert(inside, fs::read_to_string(&path).expect("UTF-8"));
                }
                _ => {}
            }
        }
    }
    found
}

/// The code of all crates without tests and comments: file, line number and text of each line.
fn lines_of_code() -> Vec<(String, usize, String)> {
    let mut all = Vec::new();
    for folder in crates() {
        for (path, text) in sources(&folder) {
            let name = folder.join(&path).strip_prefix(root().join("crates")).unwrap_or(&path).display().to_string();
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            let lines = code.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with("//"));
            all.extend(lines.map(|(number, line)| (name.clone(), number + 1, line.trim().to_owned())));
        }
    }
    all
}

/// The src/ of every crate.
fn crates() -> Vec<PathBuf> {
    let members = fs::read_dir(root().join("crates")).expect("crates");
    let mut all: Vec<PathBuf> = members.map(|entry| entry.expect("an entry").path().join("src")).collect();
    all.push(root().join("xtask/src"));
    all.sort();
    all
}

/// Whether a text has two words: then it is prose, not a name.
fn is_prose(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.windows(3).any(|w| w[0].is_ascii_alphabetic() && w[1] == b' ' && w[2].is_ascii_alphabetic())
}

#[test]
fn nothing_is_decided_by_what_a_message_says() {
    let mut found = Vec::new();
    for (name, number, line) in lines_of_code() {
        let literals = QUESTIONS.iter().flat_map(|question| line.split(question).skip(1));
        let prose = literals.filter_map(|rest| rest.split('"').next()).any(is_prose);
        if prose && !FOREIGN_TEXT.iter().any(|foreign| name.starts_with(foreign)) {
            found.push(format!("{name}:{number}: {line}"));
        }
    }
    assert!(found.is_empty(), "decided by the words of a message:\n{}", found.join("\n"));
}

#[test]
fn no_id_of_a_mistake_stands_outside_the_catalogue() {
    let mut ids = BTreeSet::new();
    for id in catalogue().map(|mistake| mistake.id) {
        ids.insert(id);
        // Prefixes of ids: `norm-`, `norm-weight`.
        for (at, _) in id.match_indices('-') {
            ids.insert(&id[..=at]);
            ids.extend(Some(&id[..at]).filter(|start| start.contains('-')));
        }
    }
    let mut found = Vec::new();
    for (name, number, line) in lines_of_code() {
        // An id of a single word may also be an ordinary word elsewhere.
        let is_id = |text: &str| ids.contains(text) && (text.contains('-') || name.starts_with("explain/"));
        let is_known = |text: &str| SUGGESTED.contains(&(name.as_str(), text));
        let by_name = name.starts_with(CATALOGUE) || !name.contains("/src/");
        if !by_name && line.split('"').any(|text| is_id(text) && !is_known(text)) {
            found.push(format!("{name}:{number}: {line}"));
        }
    }
    assert!(found.is_empty(), "asks for the id of a mistake; make it a field of its entry:\n{}", found.join("\n"));
}

/// The folder or file of a crate with which a module path begins.
fn first_module(path: &str) -> &str {
    path.split(|c: char| !(c.is_alphanumeric() || c == '_')).next().unwrap_or_default()
}

/// The folders that each folder of a crate imports. Files beside the folders count as folders.
fn imports(folder: &Path) -> BTreeMap<String, BTreeSet<String>> {
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let files = sources(folder);
    let node = |path: &Path| {
        let first = path.iter().next().and_then(|part| part.to_str()).unwrap_or_default();
        first.trim_end_matches(".rs").to_owned()
    };
    let nodes: BTreeSet<String> = files.keys().map(|path| node(path)).collect();
    for (path, text) in &files {
        let own = node(path);
        let code = text.split("#[cfg(test)]").next().unwrap_or_default();
        for rest in code.split("crate::").skip(1) {
            let grouped = rest.strip_prefix('{').and_then(|rest| rest.split('}').next());
            let named: Vec<&str> = match grouped {
                Some(list) => list.split(',').map(|part| first_module(part.trim())).collect(),
                None => vec![first_module(rest)],
            };
            for name in named.into_iter().filter(|name| nodes.contains(*name) && *name != own) {
                graph.entry(own.clone()).or_default().insert(name.to_owned());
            }
        }
    }
    graph
}

/// All folders reachable from one.
fn reached(graph: &BTreeMap<String, BTreeSet<String>>, from: &str) -> BTreeSet<String> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from.to_owned()]);
    while let Some(at) = open.pop() {
        for next in graph.get(&at).into_iter().flatten() {
            if seen.insert(next.clone()) {
                open.push(next.clone());
            }
        }
    }
    seen
}

#[test]
fn no_folder_imports_in_a_circle() {
    let mut circles = Vec::new();
    for folder in crates() {
        let graph = imports(&folder);
        let in_circle: Vec<String> = graph.keys().filter(|at| reached(&graph, at).contains(*at)).cloned().collect();
        if !in_circle.is_empty() {
            circles.push(format!("{}: {}", folder.display(), in_circle.join(", ")));
        }
    }
    assert!(circles.is_empty(), "import circles:\n{}", circles.join("\n"));
}

/// The crates that judge, with constants that are not tolerances: of a number format, of a method, of a known engine.
const NO_TOLERANCES: [&str; 5] = [
    // Above this size an f64 has no fractional part.
    "explain/src/mistakes/rounding.rs: const WHOLE",
    // The golden section.
    "explain/src/minimum.rs: const GOLDEN",
    // PyTorch's default.
    "explain/src/program/forms/norm.rs: const DEFAULT_EPS",
    // The limit at which gpt-oss clamps.
    "explain/src/mistakes/feed_forward.rs: const LIMIT",
    // The value of a masked score.
    "explain/src/program/forms/attention.rs: const HIDDEN",
];

/// Whether a line of code compares with a small number literal.
fn compares_with_a_literal(line: &str) -> bool {
    let compares = [" < ", " <= ", " > ", " >= "].iter().any(|operator| line.contains(operator));
    let is_small = |(at, _): (usize, &str)| {
        let before = line[..at].chars().next_back().is_some_and(|c| c.is_ascii_digit());
        before && line[at + 2..].starts_with(|c: char| c.is_ascii_digit())
    };
    compares && !line.contains('"') && line.match_indices("e-").any(is_small)
}

#[test]
fn all_that_is_allowed_stands_in_the_tolerances_of_its_crate() {
    let mut found = Vec::new();
    for name in ["compare", "explain"] {
        for (path, text) in sources(&root().join("crates").join(name).join("src")) {
            if path.starts_with("tolerance") {
                continue;
            }
            let place = format!("{name}/src/{}", path.display());
            let code = text.split("#[cfg(test)]").next().unwrap_or_default();
            for line in code.lines().map(str::trim).filter(|line| !line.starts_with("//")) {
                let constant = line.split_once("const ").and_then(|(_, rest)| rest.split_once(": f64 ="));
                let refused = constant.map(|(constant, _)| format!("{place}: const {constant}"));
                let refused = refused.or_else(|| compares_with_a_literal(line).then(|| format!("{place}: {line}")));
                found.extend(refused.filter(|refused| !NO_TOLERANCES.contains(&refused.as_str())));
            }
        }
    }
    assert!(found.is_empty(), "tolerances outside of tolerance/:\n{}", found.join("\n"));
}

/// Each crate with its features, as Cargo builds it for these arguments.
fn built(arguments: &[&str]) -> BTreeSet<String> {
    let shown = ["tree", "--locked", "--prefix", "none", "--format", "{p} {f}"];
    let tree = Command::new(env!("CARGO")).args(shown).args(arguments).current_dir(root()).output().expect("cargo");
    assert!(tree.status.success(), "{}", String::from_utf8_lossy(&tree.stderr));
    String::from_utf8(tree.stdout)
        .expect("UTF-8")
        .lines()
        .map(|line| line.trim_end_matches(" (*)").trim_end().to_string())
        .collect()
}

#[test]
fn the_command_and_the_tests_share_one_build() {
    let (command, tests) = (
        built(&["--package", "firstdiff", "--edges", "normal,build"]),
        built(&["--workspace", "--edges", "normal,build,dev"]),
    );
    let twice: Vec<_> = command.difference(&tests).collect();
    assert!(
        twice.is_empty(),
        "the tests ask other features of these, so that all above them is built twice: {twice:?}"
    );
}
