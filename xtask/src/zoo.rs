//! Checks that `explain` names planted mistakes, on the candidates of scripts/planted/zoo.py, and writes docs/measured/zoo.md: `cargo xtask zoo`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use firstdiff_compare::Status;
use firstdiff_explain::explain::{Cause, Effort, Explanation, Finding, Match, Options};
use firstdiff_explain::model::explain;
use firstdiff_model::{Profile, load};
use firstdiff_trace::Dump;
use rayon::prelude::*;
use serde_json::{Value, json};

/// Seconds for the combinations of a stretch: half of the least that the command allows, because there are thousands of candidates.
const SECONDS: f64 = 20.0;

/// The result for one planted mistake.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Outcome {
    /// It is named.
    Named,
    /// Another id is named, with this one among its alternatives.
    Among,
    /// No cause is stated.
    Unknown,
    /// Nothing in the recording shows it.
    Invisible,
    /// Something else is named instead.
    Missed,
}

/// The result for one candidate.
struct CandidateResult {
    row: Value,
    fates: Vec<Outcome>,
    /// Causes that were stated although they were not planted.
    wrong: Vec<String>,
    /// Whether the first wrong tap is reported as the first.
    first: bool,
    seconds: f64,
}

/// Builds the candidates in `folder`, or in a temporary one, unless they exist; judges them; writes docs/measured/zoo.md, or prints it.
///
/// # Errors
/// When Python cannot build them, or a candidate cannot be read.
pub(crate) fn run(folder: Option<PathBuf>, every: usize, check: bool) -> Result<u8> {
    let temporary = tempfile::tempdir()?;
    let folder = folder.unwrap_or_else(|| temporary.path().join("zoo"));
    if !folder.join("index.json").exists() {
        let script = crate::root()?.join("scripts/planted/zoo.py");
        let (pairs, triples, free) = (150 / every, 100 / every, 280 / every);
        let status = Command::new(crate::python())
            .arg(script)
            .arg(&folder)
            .args(["--every", &every.to_string(), "--pairs", &pairs.to_string(), "--triples", &triples.to_string()])
            .args(["--free", &free.to_string()])
            .status()?;
        ensure!(status.success(), "scripts/planted/zoo.py failed");
    }
    let index: Vec<Value> = serde_json::from_str(&fs::read_to_string(folder.join("index.json"))?)?;
    let models = crate::root()?.join("fixtures/models");
    let (done, total) = (AtomicUsize::new(0), index.len());
    let judged: Vec<CandidateResult> = index
        .into_par_iter()
        .map(|row| {
            let judged = judge(&folder, &models, row);
            let at = done.fetch_add(1, Ordering::Relaxed) + 1;
            if at.is_multiple_of(200) {
                eprintln!("{at} of {total}");
            }
            judged
        })
        .collect::<Result<_>>()?;
    for case in judged.iter().filter(|case| !case.wrong.is_empty() || !case.first) {
        println!("WRONG {} {:?} first {}", case.row["file"], case.wrong, case.first);
    }
    if let Ok(path) = std::env::var("FIRSTDIFF_ZOO_LOG") {
        let lines = judged.iter().map(|j| json!({"file": j.row["file"], "kind": j.row["kind"], "group": j.row["group"], "planted": j.row["planted"],
            "fates": j.fates.iter().map(|f| format!("{f:?}")).collect::<Vec<_>>(), "wrong": j.wrong, "first": j.first, "seconds": j.seconds}).to_string());
        fs::write(path, lines.collect::<Vec<_>>().join("\n"))?;
    }
    let text = table(&judged, every);
    if check {
        println!("{text}");
    } else {
        crate::docs::write(&crate::root()?.join("docs/measured/zoo.md"), &text)?;
    }
    Ok(u8::from(judged.iter().any(|case| !case.wrong.is_empty())))
}

fn judge(folder: &Path, models: &Path, row: Value) -> Result<CandidateResult> {
    let word = |key: &str| row[key].as_str().context("index.json").map(str::to_owned);
    let model = load(models.join(word("model")?))?;
    let dump = Dump::open(folder.join(word("file")?))?;
    let options = Options::declared(&dump, Profile::F32).context("token ids")?;
    let effort = Effort { seconds: SECONDS, ..Effort::default() };
    let begun = Instant::now();
    let explanation = explain(&model, &dump, &options, &effort, &|_, _, _| {})?;
    let seconds = begun.elapsed().as_secs_f64();
    let planted: Vec<&Value> = row["planted"].as_array().context("planted")?.iter().collect();
    let proved: Vec<&Finding> = explanation.findings.iter().filter(|f| f.matched == Match::Reproduced).collect();
    let open = explanation.findings.len() > proved.len();
    let fates = planted.iter().map(|planted| fate(planted, &proved, open)).collect();
    let fits = |f: &&Finding| planted.iter().any(|planted| names(f, planted) || among(f, planted));
    let wrong: Vec<String> = proved
        .iter()
        .filter(|f| !fits(f))
        .map(|f| f.cause.as_ref().map_or(String::new(), |c| format!("{} {:?}", c.id, c.params)))
        .collect();
    let first = word("kind")? != "full" || first_is(&explanation, &word("first")?);
    drop(proved);
    Ok(CandidateResult { fates, wrong, first, seconds, row })
}

/// Whether `tap` is replay's first wrong operation.
fn first_is(explanation: &Explanation, tap: &str) -> bool {
    let wrong = explanation.replay.taps.iter().find(|t| t.report.status == Status::Diverged);
    wrong.is_some_and(|t| t.report.place.tap.to_string() == tap)
}

fn fate(planted: &Value, proved: &[&Finding], open: bool) -> Outcome {
    if proved.iter().any(|f| names(f, planted)) {
        Outcome::Named
    } else if proved.iter().any(|f| among(f, planted)) {
        Outcome::Among
    } else if planted["shows"] == false {
        Outcome::Invisible
    } else if open || proved.is_empty() {
        Outcome::Unknown
    } else {
        Outcome::Missed
    }
}

fn names(finding: &Finding, planted: &Value) -> bool {
    finding.cause.as_ref().is_some_and(|cause| is_planted_cause(finding, cause, planted))
}

fn among(finding: &Finding, planted: &Value) -> bool {
    finding.alternatives.iter().any(|cause| is_planted_cause(finding, cause, planted))
}

/// Whether the id is the same, and every number that both give under the same name.
fn is_planted_cause(finding: &Finding, cause: &Cause, planted: &Value) -> bool {
    // Scores depend only on differences of positions: if neither queries nor keys were recorded, a shift of the queries equals the opposite shift of the
    // keys.
    let sites: BTreeSet<&str> = finding.taps.iter().map(|tap| tap.site.name()).collect();
    let at: BTreeSet<&str> = planted["at"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let is_recorded = finding.shown_at.iter().any(|place| finding.taps.contains(&place.tap));
    let is_of_the_other =
        cause.id == "rope-position" && !is_recorded && sites.len() == 1 && at.len() == 1 && sites != at;
    let number = |name: &str| planted["params"][name].as_f64().map(|x| if is_of_the_other { -x } else { x });
    let agrees = |(name, value): &(&str, Value)| match (number(name), value.as_f64()) {
        (Some(due), Some(found)) => (due - found).abs() <= 1e-3 * due.abs().max(1e-9),
        _ => true,
    };
    planted["id"] == cause.id && cause.params.iter().all(agrees)
}

fn table(judged: &[CandidateResult], every: usize) -> String {
    let mut text = "# Planted mistakes\n\nHow often does `firstdiff explain` name a mistake that was planted? A NumPy engine that shares no code with firstdiff makes the \
                    candidates (scripts/planted/zoo.py). It makes every mistake of scripts/engines/engine_mistakes.py with several parameters and in several places, in \
                    all layers and in one, on llama, mistral, qwen2, qwen3, minimind and 16-bit checkpoints.\n\n*planted*: one mistake (single), two \
                    (pair), three (triple), or one whose parameter is drawn at random (free). *recorded*: every tap (full); h0, layer outputs, final \
                    norm and logits (streams); the same of the last token alone (last); all logits; the last token's logits (last-logits). *first tap*: \
                    how often the first wrong operation is the right one.\n\nWhat `explain` says of the mistakes: *named*, the planted one with its \
                    parameter; *among*, another one, and the planted one beside it as giving the same numbers; *unknown*, no cause; *missed*, a cause \
                    of another mistake alone; *wrong*, a cause that was not planted, as were none of those beside it. *invisible*: nothing that was recorded shows the \
                    mistake.\n\nWritten by `cargo xtask zooEVERY`.\n\n| planted | recorded | candidates | first tap | mistakes | named | among | \
                    unknown | missed | invisible | wrong | median s | worst s |\n|---|---|---|---|---|---|---|---|---|---|---|---|---|\n"
        .replace("EVERY", &if every > 1 { format!(" --every {every}") } else { String::new() });
    let word = |j: &CandidateResult, key: &str| j.row[key].as_str().unwrap_or_default().to_owned();
    let mut groups: BTreeMap<(String, usize), Vec<&CandidateResult>> = BTreeMap::new();
    const KINDS: [&str; 5] = ["full", "streams", "last", "logits", "last-logits"];
    for case in judged {
        let kind = KINDS.iter().position(|k| *k == word(case, "kind")).unwrap_or(0);
        groups.entry((word(case, "group"), kind)).or_default().push(case);
    }
    for group in ["single", "free", "pair", "triple"] {
        for (kind, name) in KINDS.iter().enumerate() {
            if let Some(cases) = groups.get(&(group.to_owned(), kind)) {
                text += &line(group, name, cases);
            }
        }
    }
    let ids: BTreeSet<String> = judged
        .iter()
        .flat_map(|j| j.row["planted"].as_array().into_iter().flatten())
        .filter_map(|p| p["id"].as_str().map(str::to_owned))
        .collect();
    let (mut always, mut rows) = (Vec::new(), String::new());
    for id in ids {
        let found = KINDS.map(|kind| {
            let of = judged.iter().filter(|j| {
                word(j, "group") == "single"
                    && word(j, "kind") == kind
                    && j.row["planted"][0]["id"] == id.as_str()
                    && j.fates[0] != Outcome::Invisible
            });
            let fates: Vec<Outcome> = of.map(|j| j.fates[0]).collect();
            (fates.iter().filter(|f| matches!(f, Outcome::Named | Outcome::Among)).count(), fates.len())
        });
        let all: usize = found.iter().map(|(_, all)| all).sum();
        if found.iter().all(|(hit, all)| hit == all) && all > 0 {
            always.push(format!("{id} ({all})"));
        } else {
            let cell =
                |(hit, all): (usize, usize)| if all == 0 { " - |".to_owned() } else { format!(" {hit}/{all} |") };
            rows += &format!("| {id} |{}\n", found.map(cell).concat());
        }
    }
    text += &format!(
        "\n## By mistake\n\nSingle mistakes, where what was recorded shows them. Named or among in every candidate, whatever was recorded: {}.\n\nOthers, by what was \
         recorded (-: no candidate):\n\n| mistake | {} |\n|---|---|---|---|---|---|\n{rows}",
        always.join(", "),
        KINDS.join(" | ")
    );
    text + &unknown(judged)
}

/// The mistakes that stay unknown, and why.
fn unknown(judged: &[CandidateResult]) -> String {
    let mut counts: BTreeMap<(String, String, String), usize> = BTreeMap::new();
    for case in judged {
        let planted = case.row["planted"].as_array().into_iter().flatten();
        for (planted, _) in planted.zip(&case.fates).filter(|(_, f)| matches!(f, Outcome::Unknown | Outcome::Missed)) {
            let word = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            let what = (word(&planted["id"]), word(&case.row["group"]), word(&case.row["kind"]));
            *counts.entry(what).or_default() += 1;
        }
    }
    let mut rows: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for ((id, group, kind), count) in counts {
        let why = WHY.iter().find(|(known, _)| *known == id).map_or(OTHERWISE, |(_, why)| why);
        let times = if count > 1 { format!(" {count} times") } else { String::new() };
        rows.entry(why).or_default().push(format!("{id} ({group}, {kind}){times}"));
    }
    let mut text = "\n## Still unknown\n\nNo cause is stated for these.\n\n| why | mistakes |\n|---|---|\n".to_owned();
    for (why, mistakes) in rows {
        text += &format!("| {why} | {} |\n", mistakes.join(", "));
    }
    text + TAIL
}

const TAIL: &str = "\nNot planted, as no family here shows them: mistakes of experts (router-norm, router-bias, router-scale, shared-gate), of learned positions \
                    (position-embedding-offset), of LayerNorm (norm-not-centered), of layers with several rotations (rope-layer-kind), of batches \
                    (mask-padding); head-dim and storage-shape, where the shapes do not fit; overflow, where what is recorded is NaN or infinite.\n";

/// Why a mistake is not always named.
const WHY: &[(&str, &str)] = &[
    ("mask-shifted", "a query without any key gives NaN, which tells nothing; with the layer outputs it is named"),
    ("rope-theta", "a base that is off by 0.01 % moves the last token's outputs by a few times rounding only"),
    ("norm-eps", "the change is a few hundred times rounding only, and a cause must explain nearly all of it"),
];
const OTHERWISE: &str =
    "beside other mistakes it alone explains too little for the search to go on from it, or time ran out";

fn line(group: &str, kind: &str, cases: &[&CandidateResult]) -> String {
    let fates: Vec<Outcome> = cases.iter().flat_map(|j| j.fates.iter().copied()).collect();
    let count = |fate: Outcome| fates.iter().filter(|f| **f == fate).count();
    let mut seconds: Vec<f64> = cases.iter().map(|j| j.seconds).collect();
    seconds.sort_by(f64::total_cmp);
    let first = if kind == "full" {
        format!("{} %", percent(cases.iter().filter(|j| j.first).count(), cases.len()))
    } else {
        "-".into()
    };
    let visible = fates.len() - count(Outcome::Invisible);
    format!(
        "| {group} | {kind} | {} | {first} | {} | {} % | {} % | {} | {} | {} | {} | {:.2} | {:.1} |\n",
        cases.len(),
        fates.len(),
        percent(count(Outcome::Named), visible),
        percent(count(Outcome::Among), visible),
        count(Outcome::Unknown),
        count(Outcome::Missed),
        count(Outcome::Invisible),
        cases.iter().filter(|j| !j.wrong.is_empty()).count(),
        seconds[seconds.len() / 2],
        seconds.last().copied().unwrap_or(0.0),
    )
}

fn percent(part: usize, whole: usize) -> String {
    format!("{:.1}", 100.0 * part as f64 / whole.max(1) as f64)
}
