//! Makes synthetic runs: every tap of three layers, filled with numbers that look random. Judging numbers needs no model.

#![allow(dead_code)] // each test file uses some of it

use std::collections::BTreeMap;
use std::path::Path;

use firstdiff_compare::{Options, Profile, Report, compare, graph_of};
use firstdiff_trace::{Dump, Meta, Recorder, Site, Tap, Tensor, Values};

pub(crate) const T: usize = 11;
pub(crate) const LAYERS: u32 = 3;

/// Taps by name, each with its shape and values.
pub(crate) type Run = BTreeMap<Tap, (Vec<usize>, Vec<f32>)>;

/// Numbers in -1 .. 1 that look random, the same everywhere.
pub(crate) fn noise(seed: u64) -> impl FnMut() -> f64 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as f64 / (1u64 << 52) as f64 - 1.0
    }
}

fn extent(axis: char) -> usize {
    match axis {
        'T' | 'S' => T,
        'D' => 48,
        'H' => 6,
        'K' => 2,
        'd' => 16,
        'C' => 96,
        'F' => 80,
        _ => 151,
    }
}

fn taps() -> Vec<Tap> {
    let optional =
        [Site::QNorm, Site::KNorm, Site::AttnPostNorm, Site::FfnPostNorm, Site::RouterLogits, Site::RouterProbs];
    let inner = Site::ALL.iter().filter(|s| s.in_layer() && !optional.contains(s));
    let layers = (0..LAYERS).flat_map(|layer| inner.clone().map(move |&site| Tap::layer(layer, site)));
    let outer = [Site::H0, Site::FinalNorm, Site::Logits].map(|site| Tap { layer: None, site });
    outer.into_iter().chain(layers).collect()
}

/// A run in which every tap holds other values.
pub(crate) fn run() -> Run {
    let mut run = Run::new();
    for (seed, tap) in taps().into_iter().enumerate() {
        let shape: Vec<usize> = tap.site.axes().iter().map(|&a| extent(a)).collect();
        let mut next = noise(seed as u64 + 1);
        let values = (0..shape.iter().product()).map(|_| next() as f32).collect();
        run.insert(tap, (shape, values));
    }
    run
}

/// The run with noise of this NMSE at every tap.
pub(crate) fn noisy(run: &Run, nmse: f64) -> Run {
    let mut next = noise(77);
    let mut noisy = run.clone();
    for (_, values) in noisy.values_mut() {
        for v in values {
            *v = (f64::from(*v) * (1.0 + nmse.sqrt() * 1.7 * next())) as f32;
        }
    }
    noisy
}

/// Q and K, before and after the rotation, with the rows of each head as a GGUF has them.
pub(crate) fn in_gguf_rows(run: &Run) -> Run {
    let mut run = run.clone();
    for (tap, (_, values)) in &mut run {
        if matches!(tap.site, Site::Q | Site::K | Site::QRope | Site::KRope) {
            to_adjacent(values);
        }
    }
    run
}

/// GGUF row 2i+s of a head is Hugging Face row s*d/2+i.
pub(crate) fn to_adjacent(values: &mut [f32]) {
    for head in values.chunks_mut(16) {
        let old = head.to_vec();
        for i in 0..8 {
            (head[2 * i], head[2 * i + 1]) = (old[i], old[i + 8]);
        }
    }
}

fn write(run: &Run, folder: &Path) {
    let recorder = Recorder::create(folder).unwrap();
    for (tap, (shape, values)) in run {
        recorder.record(tap, shape, values).unwrap();
    }
    recorder.finish().unwrap();
}

pub(crate) fn judged_as(profile: Profile, reference: &Run, candidate: &Run) -> Report {
    judged_with(&Options::new(profile), reference, candidate)
}

pub(crate) fn judged_with(options: &Options, reference: &Run, candidate: &Run) -> Report {
    let folder = tempfile::tempdir().unwrap();
    let (left, right) = (folder.path().join("ref"), folder.path().join("cand"));
    write(reference, &left);
    write(candidate, &right);
    let (left, right) = (Dump::open(left).unwrap(), Dump::open(right).unwrap());
    compare(&left, &right, &graph_of(&left, &right), options, &mut |_, _| {}).unwrap()
}

/// The same without a file: for thousands of runs.
pub(crate) fn judged_in_memory(profile: Profile, reference: &Run, candidate: &Run) -> Report {
    let dump = |run: &Run| {
        let mut dump = Dump::assembled(Path::new("memory"), Meta::default(), Vec::new()).unwrap();
        for (&tap, (shape, values)) in run {
            dump.put(tap, 0, Tensor::held(shape.clone(), Values::F32(values.clone().into())).unwrap());
        }
        dump
    };
    let (left, right) = (dump(reference), dump(candidate));
    compare(&left, &right, &graph_of(&left, &right), &Options::new(profile), &mut |_, _| {}).unwrap()
}

pub(crate) fn tap(name: &str) -> Tap {
    name.parse().unwrap()
}
