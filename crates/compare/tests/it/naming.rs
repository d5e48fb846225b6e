//! Checks that a proposal finds its tap in a batch, behind padded keys and in one tensor per token, and never another tap.

use std::fs;
use std::path::Path;

use firstdiff_compare::{Naming, Profile, ProposalBasis, propose};
use firstdiff_trace::{Dump, Recorder};

const TOKENS: usize = 8;
const LAYERS: usize = 3;
/// The engine's own name, the tap, the extents behind the positions', and whether heads come first.
const TAPS: [(&str, &str, [usize; 2], bool); 4] = [
    ("x", "h", [1, 24], false),
    ("qr", "q_rope", [4, 6], false),
    ("aw", "scores", [4, 1], true),
    ("mid", "h_attn", [1, 24], false),
];

/// A linear congruential generator: numbers that no two taps share.
fn numbers(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 40) as f32 / 4096.0 - 2048.0
    };
    (0..count).map(|_| next()).collect()
}

fn values(layer: usize, which: usize) -> Vec<f32> {
    let (_, _, [a, b], scores) = TAPS[which];
    let mut all = numbers((layer * 10 + which + 1) as u64, a * b * TOKENS * if scores { TOKENS } else { 1 });
    if scores {
        for (i, x) in all.iter_mut().enumerate().filter(|(i, _)| i % TOKENS > i / TOKENS % TOKENS) {
            *x = if i % 2 == 0 { f32::NEG_INFINITY } else { -1e30 };
        }
    }
    all
}

fn reference(folder: &Path) -> Dump {
    let rec = Recorder::create(folder).unwrap();
    rec.tokens(&[1; TOKENS]);
    for layer in 0..LAYERS {
        for (which, (_, tap, [a, b], scores)) in TAPS.into_iter().enumerate() {
            let shape = match (scores, a) {
                (true, heads) => vec![heads, TOKENS, TOKENS],
                (false, 1) => vec![TOKENS, b],
                (false, heads) => vec![TOKENS, heads, b],
            };
            rec.record(format_args!("layers.{layer}.{tap}"), &shape, &values(layer, which)).unwrap();
        }
    }
    rec.finish().unwrap();
    Dump::open(folder).unwrap()
}

/// The names proposed for taps, where `held` gives the endings of names and the values under them, for each tap's values.
fn proposed(
    sequence: usize,
    held: impl Fn(usize, Vec<f32>) -> Vec<(String, Vec<f32>)>,
) -> (Vec<(String, String)>, Naming) {
    let folder = tempfile::tempdir().unwrap();
    let golden = reference(&folder.path().join("golden"));
    let out = folder.path().join("out");
    fs::create_dir(&out).unwrap();
    for layer in 0..LAYERS {
        for (which, (name, ..)) in TAPS.into_iter().enumerate() {
            for (before, values) in held(which, values(layer, which)) {
                let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                fs::write(out.join(format!("{before}{name}_{layer}.f32")), bytes).unwrap();
            }
        }
    }
    let naming = propose(&golden, &Dump::open(&out).unwrap(), Profile::F32, sequence, &mut |_, _| {}).unwrap();
    let sure = naming.proposals.iter().filter(|p| matches!(p.evidence, ProposalBasis::Content { .. }));
    (sure.map(|p| (p.name.clone(), p.tap.clone())).collect(), naming)
}

fn due(before: &str) -> Vec<(String, String)> {
    let mut due: Vec<(String, String)> =
        TAPS.iter().map(|(name, tap, ..)| (format!("{before}{name}_{{N}}"), format!("layers.{{N}}.{tap}"))).collect();
    due.sort();
    due
}

fn sorted(mut names: Vec<(String, String)>) -> Vec<(String, String)> {
    names.sort();
    names
}

#[test]
fn one_sequence_of_a_batch() {
    for sequence in 0..2 {
        let (names, naming) = proposed(sequence, |which, x| {
            let other = numbers(99 + which as u64, x.len());
            vec![(String::new(), if sequence == 0 { [x, other].concat() } else { [other, x].concat() })]
        });
        assert_eq!(sorted(names), due(""));
        assert!(naming.notes[0].contains("a batch of 2") && naming.unknown.is_empty());
    }
}

#[test]
fn a_tensor_for_each_token() {
    let (names, naming) = proposed(0, |which, x| {
        let (_, _, [heads, width], scores) = TAPS[which];
        let row = |t: usize| match scores {
            true => (0..heads).flat_map(|h| x[(h * TOKENS + t) * TOKENS..][..=t].to_vec()).collect(),
            false => x[t * heads * width..][..heads * width].to_vec(),
        };
        (0..TOKENS).map(|t| (format!("tok{t:02}_"), row(t))).collect()
    });
    // Scores of four heads have too few numbers in the first rows.
    let all: Vec<_> = due("tok{S}_")
        .into_iter()
        .filter(|(name, _)| !name.contains("aw") || names.iter().any(|(n, _)| n == name))
        .collect();
    assert_eq!(sorted(names), all);
    assert!(all.len() >= 3 && naming.notes.iter().any(|note| note.contains("{S}")));
}

#[test]
fn values_of_another_run_are_no_names() {
    let (names, naming) = proposed(0, |which, x| {
        vec![(String::new(), numbers(500 + which as u64 + u64::from(x[0].to_bits()), 2 * x.len()))]
    });
    assert!(names.is_empty(), "{names:?}");
    assert_eq!(naming.unknown.len() + naming.proposals.len(), LAYERS * TAPS.len(), "{naming:?}");
}

/// The positions of a tap that a step has, of all its `values` without axes of keys.
fn cut(values: &[f32], [a, b]: [usize; 2], positions: std::ops::Range<usize>) -> Vec<f32> {
    values[positions.start * a * b..positions.end * a * b].to_vec()
}

/// The names proposed where the reference has a prefill of five tokens and three steps, and the candidate's files, without extents, are those of `held`:
/// name, step and values.
fn proposed_of_steps(held: impl Fn(&str, [usize; 2], Vec<f32>) -> Vec<(String, Vec<f32>)>) -> Naming {
    let folder = tempfile::tempdir().unwrap();
    let (golden, out) = (folder.path().join("golden"), folder.path().join("out"));
    fs::create_dir(&out).unwrap();
    let taps = [0, 1, 3].map(|which| (which, TAPS[which]));
    let of_layers = (0..LAYERS).flat_map(|layer| taps.map(|(which, tap)| (layer, which, tap)));
    let rec = Recorder::create(&golden).unwrap();
    rec.tokens(&[1; 5]);
    for positions in [0..5, 5..6, 6..7, 7..8] {
        if positions.start > 0 {
            rec.next_step(1);
        }
        rec.record("h0", &[positions.len(), 24], &cut(&numbers(77, 24 * TOKENS), [1, 24], positions.clone())).unwrap();
        for (layer, which, (_, tap, extents, _)) in of_layers.clone() {
            let part = cut(&values(layer, which), extents, positions.clone());
            rec.record(format_args!("layers.{layer}.{tap}"), &[positions.len(), extents[0], extents[1]], &part)
                .unwrap();
        }
    }
    rec.finish().unwrap();
    let own = of_layers
        .map(|(layer, which, (name, _, extents, _))| held(&format!("{name}_{layer}"), extents, values(layer, which)));
    for (name, values) in own.flatten().chain(held("emb", [1, 24], numbers(77, 24 * TOKENS))) {
        let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        fs::write(out.join(format!("{name}.f32")), bytes).unwrap();
    }
    let (golden, out) = (Dump::open(&golden).unwrap(), Dump::open(&out).unwrap());
    propose(&golden, &out, Profile::F32, 0, &mut |_, _| {}).unwrap()
}

/// Files of steps that begin at these positions.
fn in_steps(name: &str, extents: [usize; 2], values: &[f32], starts: &[usize]) -> Vec<(String, Vec<f32>)> {
    let end = |step: usize| starts.get(step + 1).copied().unwrap_or(TOKENS);
    let stored = |step| if step == 0 { name.to_owned() } else { format!("{name}.step{step}") };
    (0..starts.len()).map(|step| (stored(step), cut(values, extents, starts[step]..end(step)))).collect()
}

#[test]
fn a_name_that_every_step_has_is_proposed_once() {
    for starts in [&[0, 5, 6, 7][..], &[0, 1, 2, 3, 4, 5, 6, 7], &[0, 3, 5, 6, 7], &[0]] {
        let naming = proposed_of_steps(|name, extents, x| in_steps(name, extents, &x, starts));
        let names = naming.proposals.iter().map(|p| (p.name.clone(), p.tap.clone())).collect();
        let mut due = due("");
        due.retain(|(name, _)| !name.contains("aw"));
        due.insert(0, ("emb".into(), "h0".into()));
        assert_eq!(sorted(names), due, "{starts:?}");
        assert!(naming.unknown.is_empty(), "{starts:?}: {:?}", naming.unknown);
        let count = |p: &firstdiff_compare::Proposal| match p.evidence {
            ProposalBasis::Content { matched, of, .. } => (matched, of),
            _ => (0, 0),
        };
        let layers = |p: &firstdiff_compare::Proposal| if p.name.contains("{N}") { LAYERS } else { 1 };
        assert!(naming.proposals.iter().all(|p| count(p).1 == layers(p) * starts.len()), "{starts:?}");
    }
}

#[test]
fn a_name_of_two_taps_is_not_proposed() {
    let naming = proposed_of_steps(|name, extents, x| {
        let mut files = in_steps(name, extents, &x, &[0, 5, 6, 7]);
        if name == "emb" {
            files[2].1 = cut(&values(0, 3), extents, 6..7);
        }
        files.retain(|(stored, _)| stored != "mid_0.step2");
        files
    });
    let meant = |what: &str| naming.proposals.iter().any(|p| p.name == what);
    assert!(!meant("emb") && naming.unknown.iter().any(|name| name == "emb"), "{naming:?}");
}

#[test]
fn one_of_several_names_of_equal_values_is_proposed() {
    let (names, naming) = proposed(0, |_, x| vec![(String::new(), x.clone()), ("copy_".to_owned(), x)]);
    assert_eq!(sorted(names), due(""));
    assert!(naming.unknown.is_empty(), "{:?}", naming.unknown);
    let aliases: Vec<(&str, &str)> =
        naming.aliases.iter().map(|alias| (alias.name.as_str(), alias.same_as.as_str())).collect();
    assert_eq!(aliases.len(), LAYERS * TAPS.len());
    assert!(aliases.iter().all(|(name, same_as)| *name == format!("copy_{same_as}")), "{aliases:?}");
}

#[test]
fn names_near_one_tap_and_not_equal_are_left_alone() {
    let (names, naming) = proposed(0, |which, x| {
        let mut near = x.clone();
        near[5] += near[5].abs() * 1e-6;
        if which == 0 { vec![(String::new(), x), ("copy_".to_owned(), near)] } else { vec![(String::new(), x)] }
    });
    let due: Vec<(String, String)> = due("").into_iter().filter(|(name, _)| name != "x_{N}").collect();
    assert_eq!(sorted(names), due);
    assert!(naming.aliases.is_empty());
}

#[test]
fn what_no_content_names_is_guessed_by_its_words() {
    let (names, naming) =
        proposed(0, |which, x| vec![(String::new(), numbers(500 + which as u64 + u64::from(x[0].to_bits()), x.len()))]);
    assert!(names.is_empty());
    let guessed: Vec<(&str, &str)> = naming
        .proposals
        .iter()
        .filter(|p| matches!(p.evidence, ProposalBasis::Words))
        .map(|p| (p.name.as_str(), p.tap.as_str()))
        .collect();
    assert_eq!(guessed, [("mid_{N}", "layers.{N}.h_attn"), ("x_{N}", "layers.{N}.h")]);
    assert!(naming.unknown.iter().all(|name| name.starts_with("qr") || name.starts_with("aw")), "{:?}", naming.unknown);
}

/// Of many taps no more is compared than shows which is nearest, and which is next: the same as of all.
#[test]
fn the_next_of_many_is_the_nearest_of_all_others() {
    const MANY: u64 = 60;
    let of = |layer: u64| numbers(layer + 1, 24 * TOKENS);
    let folder = tempfile::tempdir().unwrap();
    let run = |name: &str, tap: &dyn Fn(u64) -> String, times: f32| {
        let recorder = Recorder::create(folder.path().join(name)).unwrap();
        recorder.tokens(&[1; TOKENS]);
        for layer in 0..MANY {
            let values: Vec<f32> = of(layer).into_iter().map(|x| times * x).collect();
            recorder.record(tap(layer), &[TOKENS, 24], &values).unwrap();
        }
        recorder.finish().unwrap();
        Dump::open(folder.path().join(name)).unwrap()
    };
    let reference = run("reference", &|layer| format!("layers.{layer}.h"), 1.0);
    let candidate = run("candidate", &|layer| format!("z{layer}"), 1.0000001);
    let naming = propose(&reference, &candidate, Profile::F32, 0, &mut |_, _| {}).unwrap();
    let [proposal] = &naming.proposals[..] else { panic!("{naming:?}") };
    assert_eq!((proposal.name.as_str(), proposal.tap.as_str()), ("z{N}", "layers.{N}.h"));
    let ProposalBasis::Content { next: Some(next), matched: 60, .. } = &proposal.evidence else {
        panic!("{proposal:?}")
    };
    let sorted = |layer: u64| {
        let mut values: Vec<f64> = of(layer).into_iter().map(f64::from).collect();
        values.sort_unstable_by(f64::total_cmp);
        values
    };
    let apart = |one: u64, other: u64| {
        let (one, other) = (sorted(one), sorted(other));
        let error: f64 = one.iter().zip(&other).map(|(a, b)| (a - b).powi(2)).sum();
        error / one.iter().map(|x| x * x).sum::<f64>()
    };
    let pairs = (0..MANY).flat_map(|one| (0..MANY).filter(move |other| *other != one).map(move |other| (one, other)));
    let least = pairs.map(|(one, other)| apart(one, other)).fold(f64::INFINITY, f64::min);
    assert!((next.nmse / least - 1.0).abs() < 1e-3, "{} of {least}", next.nmse);
}
