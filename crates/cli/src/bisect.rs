//! Finds the layer in which two dumps diverge, reading as few taps as possible: by layer first, then within the layer.

use std::collections::{BTreeSet, HashMap};

use anyhow::Result;
use firstdiff_compare::{Options, Place, Report, Status};
use firstdiff_trace::{Dump, Site, Tap};

use crate::session::Session;

/// One comparison on the way.
#[derive(Clone, Debug)]
pub struct Probe {
    /// The residual stream that was compared.
    pub tap: Tap,
    /// Its status.
    pub status: Status,
}

/// The outcome of a bisection.
#[derive(Clone, Debug)]
pub struct Bisection {
    /// The layer outputs that were compared, in order.
    pub probes: Vec<Probe>,
    /// The comparison of the taps from the last layer output that agrees to the first that does not.
    pub report: Report,
}

/// Halves the layers by their outputs `layers.N.h`, of every stack, until the first difference is bracketed by two adjacent ones; then compares the taps
/// between them in the order of the graph. Where no layer output differs, everything is compared.
///
/// It assumes that a difference, once there, stays. [`Session::run`] does not.
///
/// # Errors
/// When a file cannot be read.
pub fn bisect(session: &Session) -> Result<Bisection> {
    let holds = |dump: &Dump, tap: Tap| dump.entry(tap, 0).is_some();
    let both = |tap: Tap| holds(&session.reference, tap) && holds(&session.candidate, tap);
    let mut order: HashMap<Tap, usize> = HashMap::new();
    for (at, place) in session.graph.places().iter().enumerate() {
        order.entry(place.tap).or_insert(at);
    }
    let is_output = |p: &&Place| p.step == 0 && p.tap.role() == Site::H && both(p.tap);
    let outputs: Vec<Tap> = session.graph.places().iter().filter(is_output).map(|p| p.tap).collect();
    let mut probes = Vec::new();
    // Below `low` everything agrees, from `high` on it differs.
    let (mut low, mut high) = (0, outputs.len());
    while low < high {
        let middle = low + (high - low) / 2;
        let status =
            compare_taps(session, |tap| tap == outputs[middle])?.taps.first().map_or(Status::Unchecked, |t| t.status);
        probes.push(Probe { tap: outputs[middle], status });
        if status.differs() { high = middle } else { low = middle + 1 }
    }
    let from = low.checked_sub(1).map(|i| outputs[i]);
    let report = match outputs.get(high) {
        Some(wrong) => {
            let (first, last) = (from.map_or(0, |from| order[&from]), order[wrong]);
            compare_taps(session, |tap| (first..=last).contains(&order[&tap]))?
        }
        None => compare_taps(session, |_| true)?,
    };
    Ok(Bisection { probes, report })
}

/// Compares the taps for which `is_wanted` holds; the rest are not read.
fn compare_taps(session: &Session, is_wanted: impl Fn(Tap) -> bool) -> Result<Report> {
    let places: BTreeSet<Place> = session.graph.places().iter().copied().filter(|p| is_wanted(p.tap)).collect();
    let options = Options { only: Some(places), ..session.options.clone() };
    session.compared(&options, &mut |_, _| {})
}
