//! A recorded dump with changes in it, explained.

use firstdiff_explain::explain::{Effort, Explanation, Options};
use firstdiff_explain::model::explain;
use firstdiff_model::load;
use firstdiff_trace::{Dump, Meta, NamedRows, Recorder, Rows, Tap};
use tempfile::TempDir;

use crate::common::{fixtures, precision};

/// What is recorded in place of a tap's values in a step; nothing where it is left out.
pub(crate) type Change<'c> = &'c dyn Fn(&Dump, Tap, u32, Vec<f32>) -> Option<Vec<f32>>;

/// A dump recorded again with changes, explained.
#[allow(dead_code)]
pub(crate) fn changed(model: &str, dump: &str, change: Change<'_>) -> Explanation {
    described(model, dump, |_| {}, change)
}

/// The same, and something else said of it.
#[allow(dead_code)]
pub(crate) fn described(model: &str, dump: &str, say: impl Fn(&mut Meta), change: Change<'_>) -> Explanation {
    again(model, dump, say, change, false, &|_, shape| shape.to_vec(), &Effort::default())
}

/// What is found with this effort of some taps of a dump.
#[allow(dead_code)]
pub(crate) fn with_effort(model: &str, dump: &str, change: Change<'_>, effort: &Effort) -> Explanation {
    again(model, dump, |_| {}, change, false, &|_, shape| shape.to_vec(), effort)
}

/// The same, recorded under other shapes.
#[allow(dead_code)]
pub(crate) fn reshaped(
    model: &str,
    dump: &str,
    change: Change<'_>,
    shape: &dyn Fn(Tap, &[usize]) -> Vec<usize>,
) -> Explanation {
    again(model, dump, |_| {}, change, false, shape, &Effort::default())
}

/// The last position alone of the prefill.
#[allow(dead_code)]
pub(crate) fn last_rows(model: &str, dump: &str, say: impl Fn(&mut Meta), change: Change<'_>) -> Explanation {
    again(model, dump, say, change, true, &|_, shape| shape.to_vec(), &Effort::default())
}

pub(crate) fn again(
    model: &str,
    dump: &str,
    say: impl Fn(&mut Meta),
    change: Change<'_>,
    last: bool,
    shaped: &dyn Fn(Tap, &[usize]) -> Vec<usize>,
    effort: &Effort,
) -> Explanation {
    let (_folder, dump) = recorded(dump, say, change, last, shaped);
    let mut options = Options::declared(&dump, precision(&dump)).unwrap();
    options.rows = last.then_some(Rows::Named(NamedRows::Last));
    explain(&load(fixtures().join("models").join(model)).unwrap(), &dump, &options, effort, &|_, _, _| {}).unwrap()
}

/// A dump recorded again with changes, in a folder that lives as long as the first.
pub(crate) fn recorded(
    dump: &str,
    say: impl Fn(&mut Meta),
    change: Change<'_>,
    last: bool,
    shaped: &dyn Fn(Tap, &[usize]) -> Vec<usize>,
) -> (TempDir, Dump) {
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
            if let Some(mut values) = change(&dump, entry.tap, step, values(&dump, entry.tap, step)) {
                let mut shape = entry.shape.clone();
                if last {
                    values = last_row(&values, &mut shape, entry.tap.site.position_axis());
                }
                recorder.record(entry.tap, &shaped(entry.tap, &shape), &values).unwrap();
            }
        }
        if let Some(token) = decoded.get(step as usize) {
            recorder.next_step(*token);
        }
    }
    recorder.finish().unwrap();
    let dump = Dump::open(&path).unwrap();
    (folder, dump)
}

/// What a tensor holds at the last place of an axis.
fn last_row(values: &[f32], shape: &mut [usize], axis: usize) -> Vec<f32> {
    let inner: usize = shape[axis + 1..].iter().product();
    let rows = std::mem::replace(&mut shape[axis], 1);
    values.chunks(rows * inner).flat_map(|outer| outer[(rows - 1) * inner..].to_vec()).collect()
}

/// A tap's values in a step.
pub(crate) fn values(dump: &Dump, tap: Tap, step: u32) -> Vec<f32> {
    let values = dump.read(dump.find(tap, step).unwrap()).unwrap().values().to_f64();
    values.into_iter().map(|x| x as f32).collect()
}
