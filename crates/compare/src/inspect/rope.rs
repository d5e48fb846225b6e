//! Checks that queries and keys were rotated: position 0 stays unchanged, every other one turns, and every head keeps its length.

use std::collections::{BTreeMap, BTreeSet};

use firstdiff_trace::{DumpError, Site, Tap, Values};

use super::finding::{Certainty, InspectFinding};
use super::seen::{InspectedDump, TensorRows};
use crate::graph::Place;
use crate::tolerance::inspect::{KEPT_LENGTH, KEPT_LENGTH_COARSE, NO_TURN, TURNED_AT_ZERO};
use crate::words::number;

const NOT_ROTATED: &str = "not-rotated";
const NO_ROTATION: &str = "rotation missing (rope-omitted), or a layer without one (NoPE) if the model has such";

/// How a rotation changed its input.
struct RotationChange {
    /// Rows other than position 0, and whether any of them changed.
    beyond: usize,
    turned: bool,
    /// The smallest and largest factor by which heads became longer.
    least: f64,
    most: f64,
    /// How far position 0 moved, as a share of its energy.
    at_zero: f64,
}

pub(super) fn check(run: &InspectedDump<'_>, seen: &TensorRows<'_>) -> Result<Vec<InspectFinding>, DumpError> {
    let sources = sources(seen.site());
    let mut found = Vec::new();
    let mut turns = Vec::new();
    for source in sources {
        let Some(entry) = run.find(source, seen.place) else { continue };
        let tensor = run.dump.read(entry)?;
        if tensor.values().len() == seen.values.len() && seen.positions.is_some() {
            turns.push((source, measure_turn(seen, &tensor.values())));
        }
    }
    // A rotation of zeros cannot be seen.
    turns.retain(|(_, turn)| turn.least.is_finite());
    // The input of the rotation is the tap whose lengths it keeps: some models norm before it, some after.
    if let Some((source, turn)) = turns.iter().find(|(_, t)| t.beyond > 0 && !t.turned) {
        let text = format!("equals {} beyond position 0", source.name());
        let finding = InspectFinding::new(Certainty::Likely, NOT_ROTATED, seen.place, text);
        let finding = finding.with_others([Tap { site: *source, ..seen.place.tap }]);
        found.push(finding.to("rotation missing (rope-omitted)").number("positions", turn.beyond as f64));
    } else if !turns.is_empty() && seen.heads.is_some() {
        let tolerance = if run.coarse { KEPT_LENGTH_COARSE } else { KEPT_LENGTH };
        match turns.iter().find(|(_, t)| t.most - t.least <= tolerance * t.most) {
            Some((source, turn)) => found.extend(check_lengths(seen, *source, turn, tolerance)),
            None => found.push(stretched_lengths(seen, &turns)),
        }
    }
    Ok(found)
}

/// What a rotation may have read.
fn sources(site: Site) -> [Site; 2] {
    if site == Site::QRope { [Site::QNorm, Site::Q] } else { [Site::KNorm, Site::K] }
}

fn measure_turn(tensor: &TensorRows<'_>, source: &Values<'_>) -> RotationChange {
    let mut turn = RotationChange { beyond: 0, turned: false, least: f64::INFINITY, most: 0.0, at_zero: 0.0 };
    let span = (tensor.width / tensor.heads.unwrap_or(1).max(1)).max(1);
    for row in 0..tensor.rows {
        let (mut moved, mut whole) = (0.0, 0.0);
        for head in 0..tensor.width / span {
            let (mut before, mut after) = (0.0, 0.0);
            for at in (row * tensor.width + head * span..).take(span) {
                let (x, y) = (source.get(at), tensor.values.get(at));
                (before, after, moved) = (before + x * x, after + y * y, moved + (x - y) * (x - y));
            }
            whole += before;
            if before > 0.0 {
                let factor = (after / before).sqrt();
                (turn.least, turn.most) = (turn.least.min(factor), turn.most.max(factor));
            }
        }
        let share = if moved == 0.0 { 0.0 } else { moved / whole };
        match tensor.position(row) {
            Some(0) => turn.at_zero = share,
            _ if whole == 0.0 && moved == 0.0 => {}
            _ => (turn.beyond, turn.turned) = (turn.beyond + 1, turn.turned || share.is_nan() || share > NO_TURN),
        }
    }
    turn
}

/// Whether lengths were kept, or changed by one common factor.
fn check_lengths(
    tensor: &TensorRows<'_>,
    source: Site,
    turn: &RotationChange,
    tolerance: f64,
) -> Option<InspectFinding> {
    let factor = turn.most;
    if (factor - 1.0).abs() > tolerance {
        let text = format!("is {} times as long as {} everywhere", number(factor), source.name());
        let finding =
            InspectFinding::new(Certainty::Note, "rotation-scales", tensor.place, text).number("factor", factor);
        return Some(finding.to("YaRN's attention factor, if the model has one (rope-attention-factor)"));
    }
    (turn.at_zero > TURNED_AT_ZERO).then(|| {
        let text = format!("differs from {} at position 0, where nothing turns", source.name());
        let finding = InspectFinding::new(Certainty::Note, "position-0-turned", tensor.place, text);
        finding.to("positions that start elsewhere (rope-position), or channels reordered with the rotation")
    })
}

fn stretched_lengths(tensor: &TensorRows<'_>, turns: &[(Site, RotationChange)]) -> InspectFinding {
    let (source, turn) = &turns[0];
    // Without the norm's own tap it is unknown whether the model has one in between.
    let sure = if turns.len() > 1 { Certainty::Likely } else { Certainty::Note };
    let text = format!(
        "heads are {} to {} times as long as in {}: a rotation keeps lengths",
        number(turn.least),
        number(turn.most),
        source.name()
    );
    // Too small a change for a norm in between.
    let slight = turn.least > 0.99 && turn.most < 1.01;
    let (sure, points) = match slight {
        true => (Certainty::Note, "cos and sin rounded to 16 bits (rope-precision)"),
        false => (sure, "cos and sin of different angles; or a QK-norm in between that was not recorded"),
    };
    let finding = InspectFinding::new(sure, "rotation-stretches", tensor.place, text).to(points);
    finding.number("least", turn.least).number("most", turn.most)
}

type RotationCounts<K> = BTreeMap<K, usize>;

/// Sets how sure a missing rotation is: models leave it out in some layers or in all, or share keys that are rotated already; nothing is certain from decode
/// steps alone.
pub(super) fn set_certainty(findings: &mut [InspectFinding], run: &InspectedDump<'_>) {
    let still: BTreeSet<Place> = findings.iter().filter(|f| f.what == NOT_ROTATED).map(|f| f.place).collect();
    let has = |place: Place, site: Site| {
        sources(site).iter().any(|s| run.find(*s, place).is_some()) && run.find(site, place).is_some()
    };
    // For each step and site, the layers that do not turn, and all layers; for each tap, the decode steps in which it does not turn, and all.
    let (mut layers_still, mut layers_all) = (BTreeMap::new(), BTreeMap::new());
    let (mut steps_still, mut steps_all) = (BTreeMap::new(), BTreeMap::new());
    let recorded = run.dump.entries().iter().map(super::place_of);
    let recorded = recorded.filter(|p| matches!(p.tap.site, Site::QRope | Site::KRope) && has(*p, p.tap.site));
    let count = |places: &mut dyn Iterator<Item = Place>,
                 layers: &mut RotationCounts<(u32, Site)>,
                 steps: &mut RotationCounts<Tap>| {
        for place in places {
            *layers.entry((place.step, place.tap.site)).or_default() += 1;
            *steps.entry(place.tap).or_default() += usize::from(place.step > 0);
        }
    };
    count(&mut still.iter().copied(), &mut layers_still, &mut steps_still);
    count(&mut recorded.into_iter(), &mut layers_all, &mut steps_all);
    for finding in findings.iter_mut().filter(|f| f.what == NOT_ROTATED) {
        let (place, site) = (finding.place, finding.place.tap.site);
        let of_step = |site: Site| layers_still.get(&(place.step, site)).copied().unwrap_or(0);
        let layers = layers_all.get(&(place.step, site)).copied().unwrap_or(0);
        let other = if site == Site::QRope { Site::KRope } else { Site::QRope };
        let other_place = Place { tap: Tap { site: other, ..place.tap }, ..place };
        let other_turns = has(place, other) && !still.contains(&other_place);
        let prefill_turns = place.step > 0
            && run.count(0).is_some_and(|n| n > 1)
            && run.dump.find(place.tap, 0).is_some_and(|e| has(super::place_of(e), site))
            && !still.contains(&Place { step: 0, ..place });
        finding.sure = match of_step(site) == layers {
            _ if prefill_turns => Certainty::Certain,
            // Where layers share keys, those from the cache are rotated already.
            _ if other_turns => run.law(),
            // Some models rotate in no layer.
            true if layers > 1 => run.law(),
            true => Certainty::Likely,
            false => Certainty::Note,
        };
        if prefill_turns {
            let steps = |of: &BTreeMap<Tap, usize>| of.get(&place.tap).copied().unwrap_or(0);
            let here = steps(&steps_still);
            finding.points_to = match (here == steps(&steps_all), here) {
                (true, 1) => "the decoded token at position 0 (rope-position)",
                (true, _) => "every decoded token at position 0 (rope-position)",
                (false, 1) => "the token of this step at position 0, those of other steps not (rope-position)",
                (false, _) => "the tokens of these steps at position 0, those of other steps not (rope-position)",
            };
        } else if finding.sure != Certainty::Certain {
            finding.points_to = NO_ROTATION;
        }
    }
}
