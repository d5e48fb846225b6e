//! Dumps a recorded program: executes its operations on the tokens that it was recorded with.

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use firstdiff_compare::Profile;
use firstdiff_explain::program::arithmetic;
use firstdiff_program::{Arithmetic, Evaluator, ModelFolder, Program, Tensor, Values};
use firstdiff_trace::{Cache, Dump, Meta, Producer, Recorder, Tap};
use serde_json::Value;

use crate::commands::ci::matching_none;
use crate::commands::dump::DumpArgs;
use crate::session::arithmetic::precision;
use crate::session::source::program_weights;
use crate::words::taps_in_words;

/// Executes the program and writes the dump, completely or not at all. Returns the number of taps.
pub(super) fn dump(args: &DumpArgs) -> Result<usize> {
    let golden = args.model.as_path();
    let path_text = || golden.display().to_string();
    let program = Program::open(golden).with_context(path_text)?;
    let reference = Dump::open(golden)?;
    refuse_other_tokens(args, reference.meta())?;
    if args.cache != Cache::F32 {
        bail!("--cache {}: {} is a recorded program, which has its own caches", args.cache.name(), path_text());
    }
    let taps: Vec<Tap> = program.taps().iter().map(|tap| Tap::named(&tap.tap)).collect();
    if let Some(pattern) = matching_none(&args.taps, &taps) {
        bail!("--taps {pattern}: no tap of this program matches");
    }
    let path = program_weights(golden, args.weights.as_deref(), &program)?;
    let weights =
        ModelFolder::open(&path).with_context(|| format!("the weights of {}: {}", path_text(), path.display()))?;
    program.check_memory(&weights).with_context(path_text)?;
    program.check_work(&weights).with_context(path_text)?;
    let profile = match args.profile {
        Some(profile) => profile,
        None => precision(&reference)?.unwrap_or(Profile::F32),
    };
    let own = arithmetic(firstdiff_explain::program::profile(profile, Cache::F32)).unwrap_or(Arithmetic::F64);
    let evaluator = Evaluator::new(&program, own, &weights);
    crate::output::write_folder(&args.output, |folder| {
        let recorder = Recorder::create(folder)?.only(&args.taps);
        recorder.describe(|meta| {
            let own = reference.meta().clone();
            let Meta { model, architecture, cache, qk_rows, dims, graph, .. } = own;
            *meta = Meta { model, architecture, cache, qk_rows, dims, graph, ..meta.clone() };
            meta.producer = Producer::new("firstdiff", env!("CARGO_PKG_VERSION"));
            meta.precision = Some(profile.name().into());
        });
        let count = carry_out(&program, evaluator, profile, recorder)?;
        copy_tokens(golden, folder)?;
        Ok(count)
    })
}

/// Another prompt would lead to other shapes and masks, and to other branches in the reference's code.
fn refuse_other_tokens(args: &DumpArgs, meta: &Meta) -> Result<()> {
    for (option, given, recorded) in
        [("tokens", &args.tokens, &meta.tokens), ("decode-tokens", &args.decode_tokens, &meta.decode_tokens)]
    {
        let same = recorded.as_ref().is_some_and(|ids| ids.iter().copied().eq(given.iter().map(|&id| i64::from(id))));
        if !given.is_empty() && !same {
            bail!(
                "--{option}: {} is a recorded program, which holds for the tokens that it was recorded with: its shapes, masks and branches are \
                 theirs. Leave --{option} out, or record the reference again with these",
                args.model.display()
            );
        }
    }
    Ok(())
}

/// Writes the value of each known tap.
fn carry_out(program: &Program, mut evaluator: Evaluator<'_>, profile: Profile, recorder: Recorder) -> Result<usize> {
    let (mut count, mut at, mut unknown) = (0, 0, 0);
    while let Some(number) = evaluator.next_tap() {
        let tap = &program.taps()[number];
        while at < tap.step {
            recorder.next_chunk(&[]);
            at += 1;
        }
        match evaluator.value(number)? {
            Some(value) => {
                record(&recorder, &tap.tap, &value, profile)?;
                count += 1;
            }
            None => unknown += 1,
        }
    }
    if let Some(first) = evaluator.gaps().first() {
        if count == 0 {
            bail!("no tap of the program can be computed: {first}");
        }
        recorder.describe(|meta| meta.complete = Some(false));
        let what = taps_in_words(unknown);
        let _ = writeln!(
            anstream::stderr(),
            "firstdiff: note: {what} left out, and the dump says that it is not complete: {first}"
        );
    }
    recorder.finish()?;
    Ok(count)
}

fn record(recorder: &Recorder, tap: &str, value: &Tensor<'_>, profile: Profile) -> Result<()> {
    let mut shape = value.shape().to_vec();
    let values = match value.values() {
        Values::Complex(pairs) => {
            shape.push(2);
            pairs.as_flattened().into()
        }
        _ => value.to_floats(),
    };
    match profile {
        Profile::Exact => recorder.record(tap, &shape, &values)?,
        _ => recorder.record(tap, &shape, &values.iter().map(|&x| x as f32).collect::<Vec<_>>())?,
    }
    Ok(())
}

/// The tokens as in the reference's dump.json: for a batch they are lists, which no recorder writes.
fn copy_tokens(golden: &Path, folder: &Path) -> Result<()> {
    let read = |folder: &Path| -> Result<Value> { Ok(serde_json::from_slice(&fs::read(folder.join("dump.json"))?)?) };
    let (reference, mut own) = (read(golden)?, read(folder)?);
    for key in ["tokens", "decode_tokens"] {
        match (reference.get(key), own.as_object_mut()) {
            (Some(tokens), Some(own)) => drop(own.insert(key.into(), tokens.clone())),
            (None, Some(own)) => drop(own.remove(key)),
            (_, None) => {}
        }
    }
    fs::write(folder.join("dump.json"), serde_json::to_string_pretty(&own)? + "\n")?;
    Ok(())
}
