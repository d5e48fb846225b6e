//! What does `--json` say? The report in the keys that other programs rely on.

use firstdiff_compare::{Anatomy, Status, TapReport, Warning};
use firstdiff_trace::Dump;
use serde_json::{Value, json};

use crate::session::Judged;
use crate::session::arithmetic::Loosened;
use crate::session::cause::Why;

/// The report of `command` as JSON, schema 1. Numbers that are not finite, or were not measured, are null.
pub fn report(command: &str, judged: &Judged) -> Value {
    let Judged { session, report, .. } = judged;
    let first = report.first.as_ref().map(|first| {
        let tap = &report.taps[first.index];
        let mut entry = measures(tap);
        entry["tap"] = tap.place.tap.to_string().into();
        entry["step"] = tap.place.step.into();
        if let Some(laid) = &report.laid {
            entry["position"] = laid.cells.get(tap.place.step as usize).map(|cell| cell.start).into();
            entry["place"] = report.name(tap.place).into();
            entry["when"] =
                crate::render::laid::when(laid, report, tap.place.step, judged.session.options.only.is_some()).into();
        }
        entry["layer"] = tap.place.tap.layer.into();
        entry["op"] = tap.op.clone().into();
        entry["after"] = first.after.map(|p| p.tap.to_string()).into();
        entry["unrecorded_layers"] = (first.unrecorded_layers.iter())
            .map(|missing| json!({"after": missing.after, "before": missing.before}))
            .collect();
        entry["unchecked_between"] = first.unchecked_between.iter().map(|p| p.tap.to_string()).collect();
        entry["harmless_from"] = first.harmless_from.map(|p| p.tap.to_string()).into();
        entry["unseen_keys"] = first.unseen_keys.into();
        entry["reason"] = tap.why().into();
        entry["anatomy"] = anatomy(&first.anatomy);
        if let Some(Why::Cause { json, .. }) = &judged.why {
            entry["why"] = json.clone();
        }
        entry
    });
    let also: Vec<String> =
        report.taps.iter().filter(|t| t.status == Status::Diverged).map(|t| t.place.tap.to_string()).collect();
    let [reference, candidate] = session.recorded();
    let mut value = json!({
        "schema": 1,
        "command": command,
        "verdict": report.verdict.name(),
        "reason": match &report.verdict { firstdiff_compare::Verdict::Incomparable(why) => Some(why), _ => None },
        "profile": report.profile.name(),
        "profile_loosened": Loosened::json(session.loosened),
        "cache": report.cache.name(),
        "cache_is_assumed": session.cache_is_assumed(),
        "noise": session.noise.as_ref().map(crate::session::noise::Second::json),
        "reference": provenance(reference),
        "candidate": provenance(candidate),
        "first_divergence": first,
        "diverged": also,
        "taps": report.taps.iter().map(tap).collect::<Vec<_>>(),
        "unnamed": report.unnamed,
        "warnings": report.warnings.iter().map(Warning::to_string).collect::<Vec<_>>(),
    });
    if let Some(laid) = &report.laid {
        value["laid"] = crate::render::laid::json(laid, report);
    }
    value
}

fn measures(tap: &TapReport) -> Value {
    let metrics = tap.metrics;
    let peak = metrics.and_then(|m| m.max_abs_diff());
    json!({
        "nmse": metrics.and_then(|m| m.nmse()),
        "balanced_nmse": tap.balanced,
        "rmse": metrics.and_then(|m| m.rmse()),
        "correlation": metrics.and_then(|m| m.correlation()),
        "cosine": metrics.and_then(|m| m.cosine()),
        "mean_abs_diff": metrics.and_then(|m| m.mean_abs_diff()),
        "max_abs_diff": peak.map(|p| p.abs_diff),
        "max_at": tap.max_at(),
        "max_reference": peak.map(|p| p.reference),
        "max_candidate": peak.map(|p| p.candidate),
        "allowed_nmse": tap.allowed,
        "noise_nmse": tap.noise,
        "error_over_noise": tap.noise.and_then(|noise| Some(tap.size()? / noise)),
    })
}

pub(crate) fn tap(tap: &TapReport) -> Value {
    let mut entry = measures(tap);
    entry["tap"] = tap.place.tap.to_string().into();
    entry["step"] = tap.place.step.into();
    entry["op"] = tap.op.clone().into();
    entry["status"] = tap.status.name().into();
    entry["reason"] = tap.why().into();
    if tap.is_last {
        entry["rows"] = "last".into();
    }
    entry
}

fn anatomy(anatomy: &Anatomy) -> Value {
    json!({
        "positions": anatomy.positions,
        "heads": anatomy.heads,
        "channels": anatomy.channels,
        "factor": anatomy.factor.map(|(factor, remaining)| json!({"factor": factor, "remaining_nmse": remaining})),
        "ranks": anatomy.ranks.iter().map(|r| json!({"rank": r.name, "part": r.part, "nmse": r.nmse, "right": r.right})).collect::<Vec<_>>(),
        "undone_by": anatomy.undone_by.iter().map(|u| json!({
            "change": u.change.to_string(), "residual_nmse": u.residual_nmse,
        })).collect::<Vec<_>>(),
    })
}

pub(crate) fn provenance(dump: &Dump) -> Value {
    let meta = dump.meta();
    json!({
        "path": dump.path().to_string_lossy(),
        "producer": meta.producer.name(),
        "model": meta.model,
        "precision": meta.precision,
        "cache": meta.cache,
        "tokens": meta.tokens,
        "decode_tokens": meta.decode_tokens,
        "complete": !meta.is_incomplete(),
    })
}
