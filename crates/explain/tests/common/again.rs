//! A recorded dump with changes in it, explained.

use firstdiff_explain::explain::{Effort, Explanation, Options, explain};
use firstdiff_model::load;
use firstdiff_trace::{Dump, Meta, Recorder, Tap};

use crate::common::{fixtures, precision};

/// What is recorded in place of a tap's values in a step; nothing where it is left out.
pub(crate) type Change<'c> = &'c dyn Fn(&Dump, Tap, u32, Vec<f32>) -> Option<Vec<f32>>;

/// A dump recorded again with changes, explained.
pub(crate) fn changed(model: &str, dump: &str, change: Change<'_>) -> Explanation {
    described(model, dump, |_| {}, change)
}

/// The same, and something else said of it.
pub(crate) fn described(model: &str, dump: &str, say: impl Fn(&mut Meta), change: Change<'_>) -> Explanation {
    let dump = Dump::open(fixtures().join(dump)).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("d");
    let recorder = Recorder::create(&path).unwrap();
    recorder.describe(|meta| {
        *meta = Meta { taps: None, ..dump.meta().clone() };
        say(meta);
    });
    let decoded = dump.meta().decode_tokens.clone().unwrap_or_default();
    for step in 0..=dump.entries().iter().map(|e| e.step).max().unwrap() {
        for entry in dump.entries().iter().filter(|e| e.step == step) {
            if let Some(values) = change(&dump, entry.tap, step, values(&dump, entry.tap, step)) {
                recorder.record(entry.tap, &entry.shape, &values).unwrap();
            }
        }
        if let Some(token) = decoded.get(step as usize) {
            recorder.next_step(*token);
        }
    }
    recorder.finish().unwrap();
    let dump = Dump::open(&path).unwrap();
    let options = Options::declared(&dump, precision(&dump)).unwrap();
    explain(&load(fixtures().join("models").join(model)).unwrap(), &dump, &options, &Effort::default(), &|_, _, _| {})
        .unwrap()
}

/// A tap's values in a step.
pub(crate) fn values(dump: &Dump, tap: Tap, step: u32) -> Vec<f32> {
    let values = dump.read(dump.find(tap, step).unwrap()).unwrap().values().to_f64();
    values.into_iter().map(|x| x as f32).collect()
}
