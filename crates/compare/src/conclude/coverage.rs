//! Warns about mistakes that this input could not have shown: short prompts and uniform attention hide some.

use firstdiff_trace::{DType, Dump, DumpError, Entry, Site, Tap, split_stored_name};

use crate::align::chunks::ChunkAlignment;
use crate::report::reason::Warning;
use crate::run::last::length;
use crate::tolerance::Profile;
use crate::tolerance::context::NEAR_UNIFORM;

/// The most elements of probs that are looked at.
const SAMPLE: usize = 1 << 18;

/// Warnings about the reference run.
pub(crate) fn not_testable_warnings(
    reference: &Dump,
    candidate: &Dump,
    profile: Profile,
    alignment: Option<&ChunkAlignment>,
) -> Result<Vec<Warning>, DumpError> {
    let mut warnings: Vec<Warning> = Vec::new();
    // How sharp attention is can be measured only where many positions were taken at once.
    let [reference, candidate] =
        alignment.map_or([reference, candidate], |alignment| alignment.runs.each_ref().map(|run| &**run));
    let entries = || reference.entries().iter().filter(|e| e.step == 0);
    let tokens = entries().filter_map(|e| e.shape.get(e.tap.site.position_axis()).copied()).max();
    let steps = reference.entries().iter().any(|e| e.step > 0);
    // A single row may be the last of many positions.
    let named = length(reference, 0).or(length(candidate, 0));
    match alignment.map(ChunkAlignment::common_positions).or(named).or(tokens.filter(|&rows| rows > 1)) {
        Some(1) if !steps || alignment.is_some() => warnings.push(Warning::Note(
            "one token: position 0 hides every mistake in RoPE, attention scale, masks, and most in head layout; use 9 or more"
                .into(),
        )),
        Some(n @ 2..=4) => {
            warnings.push(format!("{n} tokens: small rotations and windows hardly show; use 9 or more").into());
        }
        _ => {}
    }
    let parts = [reference, candidate]
        .iter()
        .flat_map(|d| d.entries())
        .filter(|e| matches!(&e.rows, Some(r) if !r.is_all()))
        .count();
    if parts > 0 {
        warnings.push(Warning::SomePositions { taps: parts });
    }
    if profile <= Profile::F32 {
        let coarse = |e: &Entry| matches!(e.dtype, DType::F16 | DType::BF16);
        let open = |dump: &Dump, name: &str| {
            let (plain, step) = split_stored_name(name);
            dump.entry(Tap::named(plain), step)
        };
        let of_dump = |dump: &Dump| {
            let outside = dump.unmapped().iter().filter_map(|name| open(dump, name));
            dump.entries().iter().cloned().chain(outside).filter(coarse).count()
        };
        let stored = of_dump(reference) + of_dump(candidate);
        if stored > 0 {
            warnings.push(
                format!(
                    "{stored} taps are stored in f16 or bf16: they are held to that type's rounding, not to {profile}'s"
                )
                .into(),
            );
        }
    }
    if let (Some(r), Some(c)) = (&reference.meta().model, &candidate.meta().model)
        && !r.eq_ignore_ascii_case(c)
    {
        warnings.push(format!("the dumps name different models, '{r}' and '{c}': is it the same checkpoint?").into());
    }
    if let Some(warning) = same_token(reference) {
        warnings.push(warning.into());
    }
    let mut sharpest: Option<f64> = None;
    for entry in entries().filter(|e| e.tap.site == Site::Probs && e.shape.len() == 3) {
        if let Some(peak) = peak_over_uniform(reference.read(entry)?.values(), &entry.shape) {
            sharpest = Some(sharpest.map_or(peak, |s: f64| s.max(peak)));
        }
    }
    if let Some(sharpest) = sharpest.filter(|s| *s < NEAR_UNIFORM) {
        warnings.push(format!(
            "attention is nearly uniform (largest probability {sharpest:.2} times the mean): mistakes in RoPE, scale and masks hardly show"
        ).into());
    }
    if let Some(alignment) = alignment {
        warnings.extend(different_tokens(alignment).map(Warning::Note));
        return Ok(warnings);
    }
    if let (Some(r), Some(c)) = (&reference.meta().tokens, &candidate.meta().tokens)
        && r != c
    {
        let at = r.iter().zip(c).position(|(r, c)| r != c);
        let parted = at.map_or("alike as far as both go".to_owned(), |at| format!("first different at {at}"));
        let (ours, theirs) = (r.len(), c.len());
        warnings.insert(
            0,
            format!("the two runs were fed different tokens ({ours} and {theirs} of them, {parted})").into(),
        );
    }
    if let (Some(r), Some(c)) = (&reference.meta().decode_tokens, &candidate.meta().decode_tokens)
        && let Some(at) = r.iter().zip(c).position(|(r, c)| r != c)
    {
        warnings.push(format!("the two runs were fed different tokens from decode step {} on", at + 1).into());
    }
    Ok(warnings)
}

/// What two runs aligned by position show about their tokens, in words.
fn different_tokens(alignment: &ChunkAlignment) -> Option<String> {
    let ids = [&alignment.reference, &alignment.candidate].map(|chunks| chunks.ids.as_ref().map_or(0, Vec::len));
    match alignment.parting() {
        Some(parting) => Some(format!("{parting}: what follows was not compared")),
        None if ids[0].min(ids[1]) < alignment.common_positions() => Some(
            "not both dumps say which tokens they were fed: they are taken for the same, position by position".into(),
        ),
        None => None,
    }
}

pub(crate) fn same_token(reference: &Dump) -> Option<String> {
    let tokens = reference.meta().tokens.as_ref()?;
    let same = tokens.len() > 1 && tokens.iter().all(|t| *t == tokens[0]);
    same.then(|| "every token is the same: attention and positions hardly show".into())
}

/// Mean over heads and positions of the largest probability times the number of keys that can be seen.
fn peak_over_uniform(probs: firstdiff_trace::Values<'_>, shape: &[usize]) -> Option<f64> {
    let (queries, keys) = (shape[1], shape[2]);
    if queries < 2 || keys == 0 {
        return None;
    }
    let rows = (probs.len() / keys).min((SAMPLE / keys).max(1));
    let (mut sum, mut count) = (0.0, 0.0);
    for row in (0..rows).filter(|row| row % queries > 0) {
        let values = (0..keys).map(|k| probs.get(row * keys + k));
        let (mut top, mut seen) = (0.0f64, 0.0);
        for value in values.filter(|v| *v > 0.0) {
            top = top.max(value);
            seen += 1.0;
        }
        sum += top * seen;
        count += 1.0;
    }
    (count > 0.0).then(|| sum / count)
}
