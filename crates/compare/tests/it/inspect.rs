//! Checks that `inspect` finds a planted fault of every kind, and none in right runs: all fixtures.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use firstdiff_compare::{Certainty, InspectFinding, Inspection, inspect};
use firstdiff_trace::{Dump, Meta, NamedRows, Recorder, Rows, Tap};

use Certainty::{Certain, Likely, Note};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

fn fixture(name: &str) -> Inspection {
    inspect(&Dump::open(fixtures().join(name)).unwrap(), None, &mut |_, _| {}).unwrap()
}

/// Every dump in a folder of the fixtures.
fn dumps(folder: &str) -> Vec<String> {
    let entries = std::fs::read_dir(fixtures().join(folder)).unwrap();
    let names = entries.map(|e| format!("{folder}/{}", e.unwrap().file_name().to_string_lossy()));
    names.filter(|n| !n.ends_with(".json")).collect()
}

fn grave(findings: &[InspectFinding]) -> Vec<String> {
    let grave = findings.iter().filter(|f| f.sure != Note);
    grave.map(|f| format!("{} {}: {} {}", f.sure.name(), f.place, f.what, f.detail)).collect()
}

#[test]
fn no_false_alarm_on_right_dumps() {
    let (mut alarms, mut count) = (Vec::new(), 0);
    for name in dumps("golden").iter().chain(&dumps("right")) {
        alarms.extend(grave(&fixture(name).findings).into_iter().map(|alarm| format!("{name}: {alarm}")));
        count += 1;
    }
    assert!(count >= 25, "{count} dumps");
    assert!(alarms.is_empty(), "{}", alarms.join("\n"));
}

#[test]
fn faults_of_engines_that_show_by_themselves() {
    for (name, sure, what, tap) in [
        ("faulty/llama-mask-shifted-future-layer1.npz", Certain, "future-attended", "layers.1.probs"),
        ("faulty/llama-mask-shifted-past.npz", Certain, "not-finite", "layers.0.probs"),
        ("faulty/llama-residual-source-doubled-layer0.npz", Certain, "residual-sum", "layers.0.h_attn"),
        ("faulty/minimind-head-untied.npz", Likely, "constant-rows", "logits"),
        ("faulty/minimind-layer-skipped-layer1.npz", Likely, "same-buffer", "layers.1.h"),
        ("faulty/minimind-mask-inverted.npz", Certain, "not-finite", "layers.0.probs"),
        ("faulty/minimind-mask-omitted.npz", Certain, "future-attended", "layers.0.probs"),
        ("faulty/minimind-residual-source-normed-h-layer1.npz", Likely, "residual-sum", "layers.1.h"),
        ("faulty/mistral-mask-after-softmax.npz", Certain, "probs-sum", "layers.0.probs"),
        ("faulty/mistral-mask-fill.npz", Certain, "future-attended", "layers.0.probs"),
        ("faulty/mistral-norm-omitted-layer1.npz", Likely, "same-buffer", "layers.1.ffn_norm"),
        ("faulty/qwen2-residual-source-input-h.npz", Certain, "residual-sum", "layers.0.h"),
        ("faulty/qwen2-rope-position-decode-zero.npz", Certain, "not-rotated", "layers.0.q_rope"),
        ("faulty/qwen3-final-norm-omitted-omitted.npz", Likely, "same-buffer", "final_norm"),
        ("faulty/qwen3-norm-omitted-k_norm-layer1.npz", Likely, "same-buffer", "layers.1.k_norm"),
        ("faulty/qwen3-residual-omitted-layer0.npz", Certain, "residual-sum", "layers.0.h_attn"),
        ("faulty/qwen3-rope-omitted.npz", Likely, "not-rotated", "layers.0.q_rope"),
        ("faulty/qwen3-softmax-axis.npz", Certain, "probs-sum", "layers.0.probs"),
        ("faulty/qwen3-weight-unset-layer1.npz", Likely, "all-zero", "layers.1.attn_out"),
        ("field/celer_infer.npz", Certain, "residual-sum", "layers.0.h_attn"),
    ] {
        found(name, &fixture(name).findings, (sure, what, tap));
    }
}

#[track_caller]
fn found(name: &str, findings: &[InspectFinding], (sure, what, tap): (Certainty, &str, &str)) {
    let is = |f: &&InspectFinding| (f.sure, f.what, f.place.tap.to_string().as_str()) == (sure, what, tap);
    let all: Vec<String> =
        findings.iter().map(|f| format!("{} {} {}: {}", f.sure.name(), f.what, f.place, f.detail)).collect();
    assert!(findings.iter().any(|f| is(&f)), "{name}: no {sure:?} {what} at {tap} in:\n{}", all.join("\n"));
}

/// Taps by step and name, each with its shape and values, and the metadata of dump.json.
#[derive(Clone)]
struct Run {
    taps: BTreeMap<(u32, Tap), (Vec<usize>, Vec<f32>)>,
    meta: Meta,
}

impl Run {
    /// A right run of 11 tokens and 3 decode steps, every tap.
    fn right() -> Run {
        let dump = Dump::open(fixtures().join("golden/llama-torch")).unwrap();
        let read = |e: &firstdiff_trace::Entry| {
            let values = dump.read(e).unwrap().values().to_f64().iter().map(|x| *x as f32).collect();
            ((e.step, e.tap), (e.shape.clone(), values))
        };
        Run { taps: dump.entries().iter().map(read).collect(), meta: dump.meta().clone() }
    }

    fn at(&mut self, tap: &str) -> &mut Vec<f32> {
        self.at_step(0, tap)
    }

    fn at_step(&mut self, step: u32, tap: &str) -> &mut Vec<f32> {
        &mut self.taps.get_mut(&(step, tap.parse().unwrap())).unwrap().1
    }

    fn copy(&mut self, from: &str, to: &str) {
        *self.at(to) = self.at(from).clone();
    }

    /// Each row of probs (or scores) of every layer, with the query's position.
    fn each_row(&mut self, site: &str, edit: impl Fn(usize, &mut [f32])) {
        for ((_, tap), (shape, values)) in self.taps.iter_mut().filter(|((step, _), _)| *step == 0) {
            if tap.site.name() == site {
                let (queries, keys) = (shape[1], shape[2]);
                values.chunks_mut(keys).enumerate().for_each(|(row, values)| edit(row % queries, values));
            }
        }
    }

    /// Writes the run and inspects it; without dump.json where nothing is to be known about it.
    fn inspect(&self, told: bool, rows: Option<Rows>) -> Inspection {
        let folder = tempfile::tempdir().unwrap();
        let recorder = Recorder::create(folder.path()).unwrap();
        recorder.describe(|meta| *meta = Meta { taps: None, decode_tokens: None, ..self.meta.clone() });
        let mut at = 0;
        for ((step, tap), (shape, values)) in &self.taps {
            while at < *step {
                recorder.next_step(self.meta.decode_tokens.as_ref().unwrap()[at as usize]);
                at += 1;
            }
            recorder.record(tap, shape, values).unwrap();
        }
        recorder.finish().unwrap();
        if !told {
            std::fs::remove_file(folder.path().join("dump.json")).unwrap();
        }
        inspect(&Dump::open(folder.path()).unwrap(), rows.as_ref(), &mut |_, _| {}).unwrap()
    }
}

/// Plants a fault in a right run, and checks that it is found.
#[track_caller]
fn check(sure: Certainty, what: &str, tap: &str, plant: impl FnOnce(&mut Run)) {
    let mut run = Run::right();
    plant(&mut run);
    found("planted", &run.inspect(true, None).findings, (sure, what, tap));
}

#[test]
fn a_right_run_however_it_is_written() {
    let run = Run::right();
    for told in [true, false] {
        assert_eq!(grave(&run.inspect(told, None).findings), [""; 0], "dump.json: {told}");
    }
    let mut merged = run.clone();
    for ((_, tap), (shape, _)) in &mut merged.taps {
        match tap.site.name() {
            "q" | "k" | "v" | "q_rope" | "k_rope" => *shape = vec![shape[0], shape[1] * shape[2]],
            _ => shape.insert(0, 1),
        }
    }
    assert_eq!(grave(&merged.inspect(true, None).findings), [""; 0]);
    let mut last = run;
    last.taps.retain(|(step, _), _| *step == 0);
    last.meta.rows = None;
    for ((_, tap), (shape, values)) in &mut last.taps {
        let axis = tap.site.axes().iter().position(|a| *a == 'T').unwrap();
        let (count, inner): (usize, usize) = (shape[axis], shape[axis + 1..].iter().product());
        *values = values.chunks(count * inner).flat_map(|c| c[(count - 1) * inner..].to_vec()).collect();
        shape[axis] = 1;
    }
    let rows = Some(Rows::Named(NamedRows::Last));
    assert_eq!(grave(&last.inspect(true, rows.clone()).findings), [""; 0]);
    assert_eq!(grave(&last.inspect(false, rows).findings), [""; 0]);
    assert_eq!(grave(&last.inspect(true, None).findings), [""; 0]);
}

#[test]
fn numbers_that_no_computation_leaves() {
    check(Certain, "not-finite", "layers.0.q", |r| r.at("layers.0.q")[70] = f32::NAN);
    check(Certain, "not-finite", "layers.1.scores", |r| r.at("layers.1.scores")[0] = f32::INFINITY);
    check(Certain, "not-finite", "layers.0.h", |r| r.at("layers.0.h")[3] = f32::NEG_INFINITY);
    check(Note, "not-finite", "logits", |r| r.at("logits")[3] = f32::NEG_INFINITY);
    // Nothing reads what is behind the query: engines that skip masked keys leave the buffer's old content there.
    for unread in [f32::NAN, f32::INFINITY] {
        check(Note, "not-finite", "layers.1.qk", |r| r.at("layers.1.qk")[1] = unread);
    }
    check(Note, "absurd-values", "layers.1.qk", |r| r.at("layers.1.qk")[1] = 7e33);
    check(Certain, "absurd-values", "layers.1.qk", |r| r.at("layers.1.qk")[0] = 7e33);
    check(Certain, "absurd-values", "h0", |r| r.at("h0")[9] = -3e29);
    check(Certain, "denormals", "layers.0.ffn_up", |r| {
        let ints = r.at("layers.0.ffn_up");
        ints.iter_mut().enumerate().for_each(|(i, x)| *x = f32::from_bits(i as u32));
    });
}

#[test]
fn zeros_and_constants() {
    check(Certain, "all-zero", "layers.0.v", |r| r.at("layers.0.v").fill(0.0));
    check(Likely, "all-zero", "layers.1.ffn_out", |r| r.at("layers.1.ffn_out").fill(0.0));
    check(Certain, "zero-tail", "layers.1.ffn_norm", |r| {
        r.at("layers.1.ffn_norm").chunks_mut(48).for_each(|row| row[24..].fill(0.0));
    });
    check(Likely, "zero-tail", "layers.1.k", |r| {
        let k = r.at("layers.1.k");
        let len = k.len();
        k[len - 9..].fill(0.0);
    });
    // A vocabulary whose end is missing, however small that part is.
    for missing in [12, 60] {
        check(Note, "zero-tail", "logits", |r| {
            let logits: Vec<f32> = r.at("logits").iter().copied().cycle().take(11 * 512).collect();
            r.taps.insert((0, "logits".parse().unwrap()), (vec![11, 512], logits));
            r.at("logits").chunks_mut(512).for_each(|row| row[512 - missing..].fill(0.0));
        });
    }
    check(Likely, "zero-rows", "layers.1.h", |r| r.at("layers.1.h")[4 * 48..6 * 48].fill(0.0));
    // Tokens that were never trained have rows of zeros in published models (Llama 3's reserved ones): not certain, whatever their number.
    check(Likely, "zero-rows", "h0", |r| r.at("h0")[4 * 48..6 * 48].fill(0.0));
    check(Note, "zero-rows", "h0", |r| r.at("h0")[4 * 48..5 * 48].fill(0.0));
    check(Certain, "constant", "layers.0.attn_norm", |r| r.at("layers.0.attn_norm").fill(3.0));
    check(Likely, "constant-rows", "layers.0.attn_norm", |r| r.at("layers.0.attn_norm")[48..96].fill(2.0));
}

#[test]
fn attention_that_is_none() {
    let probs = "layers.0.probs";
    check(Certain, "negative-probs", probs, |r| r.at(probs)[0] = -0.1);
    check(Certain, "probs-sum", probs, |r| r.at(probs).iter_mut().for_each(|p| *p *= 2.0));
    check(Certain, "probs-sum", probs, |r| r.at(probs).iter_mut().for_each(|p| *p *= 0.5));
    let sink = |at: usize, row: &mut [f32]| row.iter_mut().for_each(|p| *p *= 0.9 - 0.05 * (at * 7 % 11) as f32);
    check(Note, "probs-sum", probs, |r| r.each_row("probs", sink));
    check(Likely, "one-key", probs, |r| {
        r.each_row("probs", |_, row| row.iter_mut().enumerate().for_each(|(k, p)| *p = f32::from(k == 0)))
    });
    let even = |at: usize, row: &mut [f32]| row[..=at].fill(1.0 / (at + 1) as f32);
    check(Likely, "uniform-attention", probs, |r| r.each_row("probs", even));
    check(Certain, "future-attended", probs, |r| {
        r.each_row("probs", |at, row| {
            if at < 10 {
                row.swap(at, at + 1)
            }
        })
    });
    check(Certain, "own-key-unseen", probs, |r| {
        r.each_row("probs", |at, row| {
            if at > 0 {
                row[0] += row[at];
                row[at] = 0.0;
            }
        });
    });
    check(Note, "unmasked-scores", "layers.0.scores", |r| {
        r.taps.retain(|(_, tap), _| tap.site.name() != "probs");
        r.each_row("scores", |at, row| row[at + 1..].fill(0.5));
    });
}

/// The finding about a tap.
fn said(run: &Run, what: &str, step: u32, tap: &str) -> InspectFinding {
    let at = |f: &InspectFinding| f.what == what && f.place.step == step && f.place.tap == tap.parse().unwrap();
    run.inspect(true, None).findings.into_iter().find(at).unwrap_or_else(|| panic!("no {what} at {tap}"))
}

#[test]
fn a_mask_that_is_too_weak_is_no_mask_left_out() {
    let right = Run::right();
    // Scores behind the query as computed, and after `mask`; the probabilities of all of them.
    let planted = |mask: &dyn Fn(f32) -> f32| {
        let mut run = right.clone();
        let products = run.at("layers.0.qk").clone();
        let head = (run.taps[&(0, "layers.0.q".parse().unwrap())].0[2] as f32).sqrt();
        let [queries, keys] = run.taps[&(0, "layers.0.scores".parse().unwrap())].0[1..] else { panic!() };
        for (row, qk) in products.chunks(keys).enumerate() {
            let hidden = |key: usize| key > row % queries;
            let score = |key: usize| if hidden(key) { mask(qk[key] / head) } else { qk[key] / head };
            let scores: Vec<f32> = (0..keys).map(score).collect();
            let sum: f32 = scores.iter().map(|x| x.exp()).sum();
            let at = row * keys..(row + 1) * keys;
            run.at("layers.0.probs")[at.clone()].iter_mut().zip(&scores).for_each(|(p, x)| *p = x.exp() / sum);
            run.at("layers.0.scores")[at].copy_from_slice(&scores);
        }
        run
    };
    for (fill, words) in [
        (-5.0, "all -5, and e to that is 0.0067"),
        (-10.0, "all -10"),
        (-16.0, "all -16"),
        (-50.0, "all -50"),
        (0.0, "all 0"),
    ] {
        let run = planted(&|_| fill);
        let finding = said(&run, "future-attended", 0, "layers.0.probs");
        assert!(finding.points_to.contains("mask-fill") && !finding.points_to.contains("mask-omitted"), "{finding:?}");
        assert!(finding.detail.contains(words), "{finding:?}");
        let mut alone = run;
        alone.taps.retain(|(_, tap), _| tap.site.name() != "probs");
        assert!(said(&alone, "unmasked-scores", 0, "layers.0.scores").detail.contains(words));
    }
    let added = said(&planted(&|x| x - 10.0), "future-attended", 0, "layers.0.probs");
    assert!(added.points_to.contains("mask-fill"), "{added:?}");
    let none = said(&planted(&|x| x), "future-attended", 0, "layers.0.probs");
    assert_eq!((none.sure, none.points_to), (Certain, "the scores were never masked (mask-omitted)"));
}

#[test]
fn decoded_tokens_at_position_0_are_those_of_the_steps_that_show_it() {
    for (steps, words) in [(&[1, 2, 3][..], "every decoded token"), (&[3], "of this step"), (&[1, 2], "of these steps")]
    {
        let mut run = Run::right();
        for &step in steps {
            for x in ["q", "k"] {
                let source = run.at_step(step, &format!("layers.0.{x}")).clone();
                *run.at_step(step, &format!("layers.0.{x}_rope")) = source;
            }
        }
        let finding = said(&run, "not-rotated", steps[0], "layers.0.q_rope");
        assert!(finding.points_to.contains(words), "{steps:?}: {finding:?}");
    }
}

#[test]
fn a_part_of_a_tap_that_no_right_run_has() {
    let probs = "layers.1.probs";
    // One head of six sees every key equally, though the scores are masked; one head has no mask.
    let finding = {
        let mut run = Run::right();
        run.at(probs)[2 * 121..3 * 121].fill(1.0 / 11.0);
        said(&run, "future-attended", 0, probs)
    };
    assert_eq!((finding.sure, finding.numbers[0]), (Certain, ("rows", 10.0)));
    let mut run = Run::right();
    let products = run.at("layers.1.qk")[2 * 121..3 * 121].to_vec();
    for (row, qk) in products.chunks(11).enumerate() {
        let scores: Vec<f32> = qk.iter().map(|x| x / 4.0).collect();
        let sum: f32 = scores.iter().map(|x| x.exp()).sum();
        let at = (2 * 11 + row) * 11;
        run.at("layers.1.scores")[at..at + 11].copy_from_slice(&scores);
        run.at(probs)[at..at + 11].iter_mut().zip(&scores).for_each(|(p, x)| *p = x.exp() / sum);
    }
    let finding = said(&run, "future-attended", 0, probs);
    assert!(finding.points_to.contains("mask-omitted") && !finding.points_to.contains("shifted"), "{finding:?}");
    // A query of padding that sees no key is uniform in all heads.
    let mut run = Run::right();
    run.each_row("probs", |at, row| {
        if at < 2 {
            row.fill(1.0 / 11.0)
        }
    });
    run.each_row("scores", |at, row| {
        if at < 2 {
            row.fill(f32::MIN)
        }
    });
    assert!(!run.inspect(true, None).findings.iter().any(|f| f.what == "future-attended"));

    let factor = |r: &mut Run, by: fn(f32) -> f32| r.at(probs)[121..242].iter_mut().for_each(|p| *p = by(*p));
    check(Likely, "probs-sum", probs, |r| factor(r, |p| p * 1.01));
    let mut run = Run::right();
    run.at(probs).iter_mut().for_each(|p| *p = f32::from_bits(p.to_bits() & 0xffff_0000));
    assert_eq!(grave(&run.inspect(true, None).findings), [""; 0], "sums of bf16 probabilities");

    let copy = |r: &mut Run| {
        let out = r.at("layers.1.attn_out");
        let row = out[5 * 48..6 * 48].to_vec();
        out[6 * 48..].chunks_mut(48).for_each(|to| to.copy_from_slice(&row));
    };
    check(Likely, "rows-copied", "layers.1.attn_out", copy);
    let mut run = Run::right();
    let mut ids = run.meta.tokens.clone().unwrap();
    let same = ids[5];
    ids[6..].fill(same);
    run.meta.tokens = Some(ids);
    for at in [6, 7, 8, 9, 10] {
        let row = run.at("h0")[5 * 48..6 * 48].to_vec();
        run.at("h0")[at * 48..(at + 1) * 48].copy_from_slice(&row);
    }
    copy(&mut run);
    let copied = run
        .inspect(true, None)
        .findings
        .into_iter()
        .find(|f| f.what == "rows-copied" && f.place.tap == "layers.1.attn_out".parse().unwrap());
    assert!(copied.is_none(), "one token, as of padding: {copied:?}");
}

#[test]
fn of_zeros_no_rotation_shows() {
    let mut run = Run::right();
    for tap in ["q", "q_rope"] {
        run.at_step(2, &format!("layers.1.{tap}")).fill(0.0);
    }
    let findings = run.inspect(true, None).findings;
    assert!(!findings.iter().any(|f| f.what.contains("rotat")), "{findings:?}");
    assert!(findings.iter().any(|f| f.what == "all-zero" && f.place.step == 2), "{findings:?}");
}

#[test]
fn what_is_not_looked_at_is_said_by_what_lacks() {
    let mut run = Run::right();
    for ((_, tap), (shape, _)) in &mut run.taps {
        if tap.site.name() == "q" {
            shape.swap(0, 1);
        }
    }
    let unseen = run.inspect(true, None).unseen;
    assert!(unseen.iter().any(|u| u.contains("other axes")), "{unseen:?}");
    assert!(!unseen.iter().any(|u| u.contains("tokens")), "{unseen:?}");
}

#[test]
fn rotations() {
    check(Certain, "not-rotated", "layers.1.q_rope", |r| r.copy("layers.1.q", "layers.1.q_rope"));
    let bare = |r: &mut Run, layer: u32| {
        for x in ["q", "k"] {
            r.copy(&format!("layers.{layer}.{x}"), &format!("layers.{layer}.{x}_rope"));
        }
    };
    check(Note, "not-rotated", "layers.1.q_rope", |r| bare(r, 1));
    check(Certain, "not-rotated", "layers.0.k_rope", |r| [0, 1].into_iter().for_each(|layer| bare(r, layer)));
    check(Note, "rotation-scales", "layers.0.q_rope", |r| {
        r.at("layers.0.q_rope").iter_mut().for_each(|x| *x *= 1.2);
    });
    check(Note, "rotation-stretches", "layers.0.k_rope", |r| {
        r.at("layers.0.k_rope").iter_mut().enumerate().for_each(|(i, x)| *x *= 1.0 + (i % 5) as f32);
    });
    check(Note, "position-0-turned", "layers.0.q_rope", |r| {
        r.at("layers.0.q_rope")[..16].iter_mut().for_each(|x| *x = -*x);
    });
}

#[test]
fn streams_and_positions() {
    let alike = |r: &mut Run, tap: &str| {
        let width = r.at(tap).len() / 11;
        let first = r.at(tap)[..width].to_vec();
        r.at(tap).chunks_mut(width).for_each(|row| row.copy_from_slice(&first));
    };
    check(Certain, "positions-alike", "layers.1.h", |r| alike(r, "layers.1.h"));
    check(Certain, "positions-alike", "logits", |r| alike(r, "logits"));
    check(Certain, "positions-alike", "h0", |r| alike(r, "h0"));
    check(Note, "positions-alike", "h0", |r| {
        r.meta.tokens = None;
        alike(r, "h0");
    });
    check(Note, "positions-nearly-alike", "logits", |r| r.at("logits").iter_mut().for_each(|x| *x = 1.0 + 1e-3 * *x));
    check(Note, "one-winner", "logits", |r| r.at("logits").chunks_mut(151).for_each(|row| row[7] += 1e3));
    check(Likely, "stream-level", "layers.1.h", |r| r.at("layers.1.h").iter_mut().for_each(|x| *x *= 1e6));
    check(Likely, "stream-level", "layers.1.h", |r| r.at("layers.1.h").iter_mut().for_each(|x| *x *= 1e-6));
    check(Note, "tiny-signal", "layers.0.attn_out", |r| {
        r.at("layers.0.attn_out").iter_mut().for_each(|x| *x *= 1e-9);
    });
    check(Certain, "residual-sum", "layers.1.h", |r| r.copy("layers.1.h_attn", "layers.1.h"));
    // The sum is right, but the stream before it was recorded after it was overwritten: that one is wrong.
    check(Certain, "residual-sum", "layers.1.h_attn", |r| r.copy("layers.1.h", "layers.1.h_attn"));
    check(Certain, "residual-sum", "layers.0.h", |r| r.copy("layers.1.h_attn", "layers.0.h"));
    let none_of_h = |plant: &dyn Fn(&mut Run)| {
        let mut run = Run::right();
        plant(&mut run);
        let findings = run.inspect(true, None).findings;
        assert!(
            findings.iter().all(|f| f.sure != Certain || f.place.tap.to_string() == "layers.1.h_attn"),
            "{findings:?}"
        );
    };
    none_of_h(&|r| r.copy("layers.1.h", "layers.1.h_attn"));
    // Nothing else that was recorded shows which of the two is right.
    check(Likely, "residual-sum", "layers.0.h_attn", |r| r.copy("layers.0.h_attn", "h0"));
    check(Likely, "residual-sum", "layers.1.h", |r| {
        r.taps.remove(&(0, "layers.1.attn_out".parse().unwrap()));
        r.copy("layers.1.h", "layers.1.h_attn");
    });
    check(Likely, "residual-sum", "layers.1.h", |r| r.copy("layers.1.h", "layers.1.ffn_out"));
    check(Certain, "residual-sum", "layers.1.h", |r| r.copy("layers.1.ffn_out", "layers.1.h"));
    check(Likely, "same-buffer", "layers.1.h_attn", |r| {
        r.taps.remove(&(0, "layers.1.attn_out".parse().unwrap()));
        r.copy("layers.0.h", "layers.1.h_attn");
    });
}

#[test]
fn one_buffer_under_two_names() {
    check(Certain, "same-buffer", "layers.0.ffn_out", |r| r.copy("layers.0.attn_out", "layers.0.ffn_out"));
    check(Certain, "same-buffer", "layers.1.ffn_up", |r| r.copy("layers.1.ffn_gate", "layers.1.ffn_up"));
    check(Certain, "same-buffer", "layers.1.q", |r| r.copy("layers.0.q", "layers.1.q"));
    check(Likely, "same-buffer", "layers.1.k", |r| r.copy("layers.0.k", "layers.1.k"));
    // The sums of both are recorded, and what was added is not 0.
    check(Likely, "same-buffer", "layers.1.h", |r| r.copy("layers.1.h", "layers.0.h"));
    check(Likely, "same-as-last-step", "logits", |r| *r.at_step(2, "logits") = r.at_step(1, "logits").clone());
    let mut run = Run::right();
    *run.at_step(2, "logits") = run.at_step(1, "logits").clone();
    run.meta.decode_tokens = Some(vec![3; 3]);
    assert_eq!(grave(&run.inspect(true, None).findings), [""; 0], "a token that fills a window changes nothing");
}

#[test]
fn probes_that_show_little() {
    check(Note, "tokens-alike", "h0", |r| r.meta.tokens = Some(vec![5; 11]));
    check(Note, "few-tokens", "h0", |r| {
        r.taps.retain(|(step, tap), _| *step == 0 && tap.to_string() == "h0");
        *r.taps.values_mut().next().unwrap() = (vec![1, 4], vec![0.1, -0.2, 0.3, 0.5]);
        r.meta.tokens = Some(vec![1]);
    });
    let mut run = Run::right();
    run.taps.retain(|(_, tap), _| tap.to_string() == "h0");
    let unseen = run.inspect(true, None).unseen;
    for word in ["probs", "q_rope", "logits"] {
        assert!(unseen.iter().any(|u| u.contains(word)), "{word}: {unseen:?}");
    }
}
