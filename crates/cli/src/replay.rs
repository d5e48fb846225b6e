//! `firstdiff replay MODEL CAND`: which operations are wrong in themselves? Arguments, screen and JSON.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use clap::Args;
use firstdiff_compare::{Profile as Named, Report, Status, Verdict, number};
use firstdiff_explain::replay::{Options, Replay, Replayed, UNCLEAR, replay};
use firstdiff_model::{Cache, Model, Profile};
use firstdiff_trace::{Dump, Rows, Site, Tap};
use serde_json::{Value, json};

use crate::progress::Bar;
use crate::screen::{BAD, BOLD, DIM, Detail, GOOD, Screen, WARN, described, paint, taps, unchecked};
use crate::words::{safe, shorten, taps_in_words};

pub(crate) const HELP: &str = "Examples:
  firstdiff replay models/TinyLlama out/dump
  firstdiff replay TinyLlama-Q4_K_M.gguf out/dump                    the profile is ggml where dump.json says so
  firstdiff replay model.gguf last.npz --rows last --tokens 1,403,407

Every operation is run on the candidate's own recorded inputs, so one run names every wrong one, whatever came before it. What was not
recorded is computed from the nearest recorded taps before it; the fault then lies in that stretch. No reference run is needed.";

/// A model, a candidate, and how to judge it.
#[derive(Debug, Args)]
pub(crate) struct ReplayArgs {
    /// A Hugging Face folder, a .gguf, a llama2.c .bin or a MiniMind .json
    pub(crate) model: PathBuf,
    /// The candidate's dump
    #[arg(value_name = "CAND")]
    pub(crate) candidate: PathBuf,
    /// In what arithmetic a right candidate works: exact, f32, f16, bf16, ggml [default: what the dump says, else f32]
    #[arg(long)]
    pub(crate) profile: Option<Named>,
    /// The type the candidate keeps keys and values in, for --profile ggml: f32 or f16 [default: what the dump says, else f32]
    #[arg(long, value_parser = cache)]
    pub(crate) cache: Option<Cache>,
    /// Token ids the candidate was fed, where dump.json does not say
    #[arg(long, value_delimiter = ',')]
    pub(crate) tokens: Option<Vec<u32>>,
    /// Token positions the candidate holds: all, last, or 0,3,7
    #[arg(long)]
    pub(crate) rows: Option<Rows>,
    /// Show every tap on a line of its own
    #[arg(long, short)]
    pub(crate) verbose: bool,
    /// Write the result as JSON to this file (- for standard output, instead of the screen)
    #[arg(long, value_name = "FILE")]
    pub(crate) json: Option<PathBuf>,
}

/// `f32` or `f16`.
pub(crate) fn cache(text: &str) -> Result<Cache, String> {
    match text {
        "f32" => Ok(Cache::F32),
        "f16" => Ok(Cache::F16),
        other => Err(format!("'{other}' is not one of f32, f16")),
    }
}

/// The model's profile of that name.
pub(crate) fn arithmetic(named: Named, cache: Cache) -> Profile {
    match named {
        Named::Exact => Profile::Exact,
        Named::F32 => Profile::F32,
        Named::F16 => Profile::F16,
        Named::Bf16 => Profile::Bf16,
        Named::Ggml => Profile::Ggml { cache },
    }
}

/// A replay and what it was of.
struct Session {
    args: ReplayArgs,
    model: Model,
    dump: Dump,
    named: Named,
    why: String,
    replay: Replay,
}

/// Replays, prints, and gives the exit code.
///
/// # Errors
/// When something cannot be read, or nothing can be judged.
pub(crate) fn run(args: ReplayArgs) -> Result<u8> {
    let session = Session::new(args)?;
    let verdict = session.verdict();
    let json = session.args.json.clone();
    if let Some(path) = &json {
        crate::json::write(path, &session.json(&verdict))?;
    }
    if json.as_deref() != Some(Path::new("-")) {
        crate::command::print(session.screen(&verdict).as_str())?;
    }
    if let Verdict::Incomparable(reason) = &verdict {
        bail!("incomparable: {}: {reason}", session.dump.path().display());
    }
    Ok(crate::command::exit_code(&verdict))
}

impl Session {
    fn new(args: ReplayArgs) -> Result<Session> {
        let model = firstdiff_model::load(&args.model)?;
        let dump = Dump::open(&args.candidate)?;
        let (named, why) = match args.profile {
            Some(profile) => (profile, "as asked".to_owned()),
            None => declared(&model, &dump)?,
        };
        let cache = match (args.cache, &dump.meta().cache) {
            (Some(cache), _) => cache,
            (None, Some(told)) => self::cache(told).unwrap_or_default(),
            (None, None) => Cache::default(),
        };
        let told = args
            .tokens
            .clone()
            .map(Ok)
            .or_else(|| dump.meta().tokens.as_deref().map(crate::session::ids))
            .transpose()?;
        let (tokens, tokens_are_known) = match told {
            Some(tokens) => (tokens, true),
            None => (vec![0; positions(&dump, &model)?], false),
        };
        let decode_tokens = crate::session::ids(dump.meta().decode_tokens.as_deref().unwrap_or_default())?;
        let profile = arithmetic(named, cache);
        let rows = args.rows.clone();
        let options = Options { profile, tokens, tokens_are_known, decode_tokens, rows };
        let mut bar = Bar::new(&dump);
        let replay = replay(&model, &dump, &options, &mut |done, total| bar.step(done, total))?;
        bar.finish();
        Ok(Session { args, model, dump, named, why, replay })
    }

    fn verdict(&self) -> Verdict {
        let (wrong, right) = (self.replay.count(|s| s == Status::Diverged), self.replay.count(Status::agrees));
        // That the embedding is a table says nothing of an engine.
        let only_table = right == 1
            && self.replay.taps.iter().any(|t| t.report.place.tap.site == Site::H0 && t.report.status.agrees());
        let said = |t: &&Replayed| t.report.reason.as_deref().is_some_and(|r| r.starts_with(UNCLEAR));
        let unclear: Vec<&Replayed> = self.replay.taps.iter().filter(said).collect();
        match (wrong, right) {
            (0, _) if !unclear.is_empty() => Verdict::Incomparable(format!(
                "{} are off by no more than {} rounding costs, but are not its numbers (first {}): nobody can tell; {right} are right",
                taps_in_words(unclear.len()),
                self.named,
                unclear[0].report.place
            )),
            (0, 0) => Verdict::Incomparable("no operation could be judged: what each reads was not recorded".into()),
            (0, _) if only_table => Verdict::Incomparable("nothing but the embedding could be judged".into()),
            (0, _) => Verdict::Parity,
            _ => Verdict::Diverged,
        }
    }

    /// In the form that compare's own screen takes.
    fn report(&self, verdict: &Verdict) -> Report {
        let recorded = |t: &&Replayed| t.report.reason.as_deref() != Some("not recorded");
        Report {
            verdict: verdict.clone(),
            profile: self.named,
            prompt: 0,
            first: None,
            taps: self.replay.taps.iter().filter(recorded).map(|t| t.report.clone()).collect(),
            warnings: self.replay.warnings.clone(),
            unnamed: self.dump.unnamed().to_vec(),
        }
    }

    fn screen(&self, verdict: &Verdict) -> Screen {
        let mut screen = Screen::default();
        let dims = &self.model.plan.dims;
        let path = safe(&self.args.model.to_string_lossy());
        let what = format!("({}, {} layers, {} wide)", self.model.plan.family, dims.layers, dims.hidden);
        screen.line(&format!("model      {path}  {}", paint(DIM, &what)));
        screen.line(&format!("candidate  {}", described(&self.dump)));
        screen.line(&paint(
            DIM,
            &format!("judged as  {} ({}), each operation on the candidate's own inputs", self.named, self.why),
        ));
        screen.line("");
        let report = self.report(verdict);
        taps(&mut screen, &report, if self.args.verbose { Detail::Every } else { Detail::Folded });
        screen.line("");
        self.conclusion(&mut screen, verdict, &report);
        unchecked(&mut screen, &report);
        let absent = self.replay.taps.len() - report.taps.len();
        if absent > 0 {
            let text = format!("{} of the model were not recorded", taps_in_words(absent));
            screen.line(&format!("{} {text}", paint(WARN, "not checked:")));
        }
        for warning in &self.replay.warnings {
            screen.line(&format!("{} {}", paint(WARN, "note:"), safe(warning)));
        }
        screen
    }

    fn conclusion(&self, screen: &mut Screen, verdict: &Verdict, report: &Report) {
        let right = report.count(Status::agrees);
        match verdict {
            Verdict::Parity => {
                let text =
                    format!("{right} of {} come out right from what they read", taps_in_words(report.taps.len()));
                screen.line(&format!("{} {text}", paint(GOOD, "parity:")));
            }
            Verdict::Incomparable(reason) => screen.line(&format!("{} {reason}", paint(WARN, "incomparable:"))),
            Verdict::Diverged => {
                let groups = self.replay.wrong();
                let count = if groups.len() == 1 {
                    "one operation is wrong".into()
                } else {
                    format!("{} operations are wrong", groups.len())
                };
                screen.line(
                    &format!("{} {count} in itself; {} right", paint(BAD, "diverged:"), taps_in_words(right))
                        .replace("in itself; ", if groups.len() == 1 { "in itself; " } else { "in themselves; " }),
                );
                for group in &groups {
                    self.finding(screen, group);
                }
                screen.line(&format!(
                    "next: mend {} first, and replay again",
                    groups.first().map_or(String::new(), |g| format!(
                        "the operation '{}' that makes {}",
                        g[0].report.op,
                        where_of(g)
                    ))
                ));
            }
        }
    }

    fn finding(&self, screen: &mut Screen, group: &[&Replayed]) {
        let worst = group.iter().filter_map(|t| t.report.metrics?.nmse()).reduce(f64::max);
        let one = group[0];
        let reads = one.from.iter().map(ToString::to_string).collect::<Vec<_>>();
        let inputs =
            if reads.is_empty() { "the tokens".into() } else { format!("the candidate's own {}", shorten(&reads, 4)) };
        let of = if group.len() > 1 { " and so on" } else { "" };
        screen.line(&format!("  {}  {}", paint(BOLD, &where_of(group)), one.report.op));
        let off = match worst {
            Some(nmse) => format!("NMSE {}", number(nmse)),
            None => one.report.reason.clone().unwrap_or_default(),
        };
        screen.line(&format!(
            "    {} against what comes out of {inputs}{of} ({} allowed)",
            safe(&off),
            one.report.allowed.map_or("-".into(), number)
        ));
        if !one.through.is_empty() {
            let names = one.through.iter().map(ToString::to_string).collect::<Vec<_>>();
            let text = format!("not recorded between: {}; the fault may be in any of them", shorten(&names, 5));
            screen.line(&format!("    {text}"));
        }
        if let (Some(fit), [stream, branch]) = (&one.fit, &self.reads(one.report.place.tap)[..]) {
            let norm = if one.report.place.tap.site == Site::HAttn { Site::AttnNorm } else { Site::FfnNorm };
            let norm = Tap { site: norm, ..one.report.place.tap }.to_string();
            let text = fit.in_words(&stream.to_string(), &branch.to_string(), &norm);
            let word =
                if fit.residual_nmse < EXPLAINS * worst.unwrap_or(f64::INFINITY) { "it is" } else { "at best it is" };
            screen.line(&format!("    {word} {text} (leaves NMSE {})", number(fit.residual_nmse)));
        }
    }

    fn reads(&self, tap: Tap) -> Vec<Tap> {
        self.model.plan.step(tap).map(|step| step.reads.clone()).unwrap_or_default()
    }

    fn json(&self, verdict: &Verdict) -> Value {
        let taps = self.replay.taps.iter().map(|t| {
            let mut entry = crate::json::tap(&t.report);
            entry["exact_nmse"] = t.exact_nmse.into();
            entry["from"] = t.from.iter().map(ToString::to_string).collect();
            entry["through"] = t.through.iter().map(ToString::to_string).collect();
            entry["fit"] = fit_json(t);
            entry
        });
        json!({
            "schema": 1,
            "command": "replay",
            "verdict": verdict.name(),
            "reason": match verdict { Verdict::Incomparable(why) => Some(why), _ => None },
            "profile": self.named.name(),
            "model": self.args.model.to_string_lossy(),
            "candidate": crate::json::provenance(&self.dump),
            "findings": self.replay.wrong().iter().map(|g| finding_json(g)).collect::<Vec<_>>(),
            "taps": taps.collect::<Vec<_>>(),
            "unnamed": self.dump.unnamed(),
            "warnings": self.replay.warnings,
        })
    }
}

/// A fit that leaves less than this share of the error explains it.
const EXPLAINS: f64 = 0.01;

/// `layers.0.h_attn`, or `layers.0-2.h_attn` for a group.
fn where_of(group: &[&Replayed]) -> String {
    let tap = group[0].report.place.tap;
    let mut layers: Vec<u32> = group.iter().filter_map(|t| t.report.place.tap.layer).collect();
    layers.sort_unstable();
    layers.dedup();
    let steps = if group.iter().all(|t| t.report.place.step > 0) {
        format!(" (from decode step {} on)", group[0].report.place.step)
    } else {
        String::new()
    };
    match (layers.first(), layers.last()) {
        (Some(first), Some(last)) if first != last => {
            let all = (*last - *first) as usize + 1 == layers.len();
            let list = if all {
                format!("{first}-{last}")
            } else {
                layers.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
            };
            format!("layers.{list}.{}{steps}", tap.site.name())
        }
        _ => format!("{tap}{steps}"),
    }
}

fn fit_json(t: &Replayed) -> Value {
    t.fit.as_ref().map_or(
        Value::Null,
        |fit| json!({"x": fit.stream, "branch": fit.branch, "norm": fit.norm, "residual_nmse": fit.residual_nmse}),
    )
}

fn finding_json(group: &[&Replayed]) -> Value {
    let one = group[0];
    let layers: std::collections::BTreeSet<u32> = group.iter().filter_map(|t| t.report.place.tap.layer).collect();
    json!({
        "tap": one.report.place.tap.to_string(),
        "op": one.report.op,
        "layers": layers,
        "cause": null,
        "params": {},
        "match": "unknown",
        "residual_nmse": one.report.metrics.and_then(|m| m.nmse()),
        "alternatives": [],
        "from": one.from.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "through": one.through.iter().map(ToString::to_string).collect::<Vec<_>>(),
        "fit": fit_json(one),
        "note": one.report.reason,
    })
}

/// How many positions the prefill has, by the tap that holds most.
fn positions(dump: &Dump, model: &Model) -> Result<usize> {
    let dims = &model.plan.dims;
    let width = |site: Site| {
        site.axes()
            .iter()
            .map(|axis| match axis {
                'D' => dims.hidden,
                'H' => dims.heads,
                'K' => dims.kv_heads,
                'd' => dims.head_dim,
                'C' => dims.heads * dims.head_dim,
                'F' => dims.ffn,
                'V' => dims.vocab,
                _ => 1,
            })
            .product::<usize>()
    };
    let flat = dump.entries().iter().filter(|e| e.step == 0 && !e.tap.site.axes().contains(&'S'));
    let most = flat.map(|e| e.shape.iter().product::<usize>() / width(e.tap.site).max(1)).max();
    most.filter(|&n| n > 0).context("it cannot be said how many tokens the dump is of: say --tokens")
}

/// What the dump says, else f32. Whatever ran a GGUF through llama.cpp rounded activations as each weight type asks.
fn declared(model: &Model, dump: &Dump) -> Result<(Named, String)> {
    let said = crate::session::precision(dump)?;
    let llama_cpp =
        dump.meta().producer.name().is_some_and(|name| name.contains("llama_cpp") || name.contains("llama.cpp"));
    let coarse = matches!(said, Some(Named::F16 | Named::Bf16 | Named::Ggml));
    if llama_cpp && coarse && model.format == "GGUF" {
        return Ok((Named::Ggml, "llama.cpp's own arithmetic".into()));
    }
    Ok(match said {
        Some(profile) => (profile, "the candidate's dump.json".into()),
        None => (Named::F32, "the default; no dump.json says".into()),
    })
}
