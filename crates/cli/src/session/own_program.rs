//! Checks a dump with its own recorded program: runs its operations on the dump's own tensors, except those that read weights.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::Path;

use anyhow::{Context, Result};
use firstdiff_compare::{CellsOf, Certainty, FUTURE_ATTENDED, InspectFinding, Inspection, Place, Status, number};
use firstdiff_explain::program::{CacheSaidBy, Candidate, Recording, replay};
use firstdiff_explain::replay::{Reason, Replayed};
use firstdiff_program::{DType, Kind, Operand, Program, ProgramTap, Slice, Tensor, Values, View, WeightError, Weights};
use firstdiff_trace::{Rows, Tap};

use crate::session::Session;
use crate::session::reading::{ReadingArgs, TokenArgs};
use crate::words::{shorten, taps_in_words};

/// The results of the program on the dump's own tensors.
pub(crate) struct OwnProgram {
    program: Program,
    replayed: BTreeMap<Place, Replayed>,
    /// Taps that the program computes from earlier ones whatever the weights are: zeros from zeros.
    whatever_weights: BTreeSet<Place>,
}

/// No weight can be read: operations that need one are not run.
struct NoWeights;

impl Weights for NoWeights {
    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        Err(WeightError { name: name.into(), reason: "no weights are read".into() })
    }
}

/// Arbitrary weights, of no model.
struct AnyWeights<'a> {
    views: HashMap<&'a str, &'a View>,
}

impl AnyWeights<'_> {
    fn new(program: &Program) -> AnyWeights<'_> {
        let weights = program.weights().iter();
        AnyWeights { views: weights.map(|(&buffer, name)| (name.as_str(), &program.buffers()[buffer])).collect() }
    }
}

impl Weights for AnyWeights<'_> {
    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        let fail = |reason: &str| WeightError { name: name.into(), reason: reason.into() };
        let view = self.views.get(name).ok_or_else(|| fail("is no weight of the program"))?;
        if view.dtype.kind() != Kind::Float {
            return Err(fail("holds no real numbers"));
        }
        let count = view.shape.iter().product::<usize>();
        let values: Vec<f64> = (1..=count).map(|i| (i as f64 * 12.9898).sin()).collect();
        Tensor::new(DType::F64, view.shape.clone(), Values::from(values)).ok_or_else(|| fail("has no such shape"))
    }
}

impl OwnProgram {
    /// Runs the program of the dump in `folder`; once more with arbitrary weights where a finding needs it.
    ///
    /// # Errors
    /// When something cannot be read.
    pub(crate) fn run(
        folder: &Path,
        rows: Option<Rows>,
        reading: &ReadingArgs,
        token_args: &TokenArgs,
        inspection: &Inspection,
    ) -> Result<OwnProgram> {
        let program = Program::open(folder).with_context(|| folder.display().to_string())?;
        program.check_memory(&NoWeights).with_context(|| folder.display().to_string())?;
        program.check_work(&NoWeights).with_context(|| folder.display().to_string())?;
        let session = Session::open_with(folder, folder, None, rows, reading, token_args, CellsOf::Both)?;
        let judged = crate::session::run(session)?;
        let values = judged.session.in_reference_order();
        let candidate = firstdiff_explain::program::Candidate::of(&judged.session, &values, &judged.report.taps);
        let candidate = Candidate { cache: (candidate.cache.0, CacheSaidBy::Word), ..candidate };
        let recording = Recording { program: &program, weights: &NoWeights };
        let taps = replay(&recording, &candidate, &mut |_, _| {})?.taps;
        let replayed = taps.into_iter().map(|tap| (tap.report.place, tap)).collect();
        let mut own = OwnProgram { replayed, whatever_weights: BTreeSet::new(), program };
        let of_weights: BTreeSet<Place> = own.taps_of_weights().collect();
        own.replayed.retain(|place, _| !of_weights.contains(place));
        let is_open =
            |finding: &InspectFinding| of_weights.contains(&finding.place) && !own.is_computed_by_program(finding);
        if inspection.findings.iter().any(|finding| may_be_meant(finding) && is_open(finding)) {
            let recording = Recording { program: &own.program, weights: &AnyWeights::new(&own.program) };
            let taps = replay(&recording, &candidate, &mut |_, _| {})?.taps;
            let right = taps.iter().filter(|tap| is_right(tap)).map(|tap| tap.report.place);
            own.whatever_weights = right.filter(|place| of_weights.contains(place)).collect();
        }
        Ok(own)
    }

    /// Taps that the dump holds, and that need weights to be computed from earlier ones.
    fn taps_of_weights(&self) -> impl Iterator<Item = Place> {
        let taps = self.program.taps();
        let place = |tap: usize| Place { step: taps[tap].step as u32, tap: Tap::named(&taps[tap].tap) };
        let is_held = move |tap: usize| self.replayed.get(&place(tap)).is_some_and(is_held);
        let reads_weights = |op: usize| {
            let mut views = self.program.ops()[op].operands.iter().flat_map(Operand::views);
            views.any(|view| self.program.weights().contains_key(&view.buffer))
        };
        let takes_weights = move |&tap: &usize| Slice::of(&self.program, tap, is_held).ops().any(reads_weights);
        (0..taps.len()).filter(takes_weights).map(place)
    }

    /// Adds a finding for each tap that the program does not compute, and removes findings about values that the program computes itself.
    pub(crate) fn apply_to(&self, inspection: &mut Inspection) {
        // Whether queries see later keys is defined by the program.
        inspection.findings.retain(|finding| finding.what != FUTURE_ATTENDED || !self.is_computed_by_program(finding));
        for finding in inspection.findings.iter_mut().filter(|finding| self.is_computed_by_program(finding)) {
            finding.sure = Certainty::Note;
            finding.points_to = "the program in this dump does so itself";
        }
        inspection.findings.extend(self.replayed.values().filter_map(not_its_program));
        inspection.findings.sort_by_key(|finding| finding.place);
        let (all, judged) = (self.program.taps().len(), self.replayed.values().filter(|tap| is_judged(tap)).count());
        if judged < all {
            inspection.unseen.push(format!(
                "whether {} of {} come out of those before them, as that takes weights: `firstdiff replay` on this dump itself does",
                all - judged,
                taps_in_words(all)
            ));
        }
    }

    /// Whether the program computes what was found, so that it is no fault of the recording.
    fn is_computed_by_program(&self, finding: &InspectFinding) -> bool {
        let is_one = || {
            let all = std::iter::once(finding.place.tap).chain(finding.others.iter().copied());
            let views: Option<Vec<&ProgramTap>> = all.map(|tap| self.find(tap, finding.place.step)).collect();
            views.is_some_and(|taps| taps.len() > 1 && taps.iter().all(|tap| tap.op == taps[0].op))
        };
        let is_made = || self.replayed.get(&finding.place).is_some_and(is_right);
        may_be_meant(finding) && (is_made() || self.whatever_weights.contains(&finding.place) || is_one())
    }

    fn find(&self, tap: Tap, step: u32) -> Option<&ProgramTap> {
        self.program.taps().iter().find(|found| found.step as u32 == step && Tap::named(&found.tap) == tap)
    }
}

/// NaN and the like remain findings, however they were computed.
fn may_be_meant(finding: &InspectFinding) -> bool {
    const OF_NUMBERS: [&str; 3] = ["not-finite", "absurd-values", "empty"];
    finding.sure != Certainty::Note && !OF_NUMBERS.contains(&finding.what)
}

/// Whether it is what the program computes from other taps of the dump.
fn is_right(tap: &Replayed) -> bool {
    is_judged(tap) && tap.report.status.agrees() && !tap.from.is_empty()
}

fn is_held(tap: &Replayed) -> bool {
    !matches!(tap.reason, Some(Reason::NotRecorded | Reason::OtherExtent))
}

fn is_judged(tap: &Replayed) -> bool {
    tap.report.status != Status::Unchecked
}

fn not_its_program(tap: &Replayed) -> Option<InspectFinding> {
    let report = &tap.report;
    (report.status == Status::Diverged).then(|| {
        let from: Vec<String> = tap.from.iter().map(ToString::to_string).collect();
        let nmse = report.metrics.and_then(|metrics| metrics.nmse());
        let size = nmse.map_or_else(String::new, |nmse| format!(" (NMSE {})", number(nmse)));
        InspectFinding {
            sure: Certainty::Likely,
            what: "not-its-program",
            place: report.place,
            others: tap.from.clone(),
            detail: format!("is not what {} makes of {}{size}", report.op, shorten(&from, 4)),
            points_to: "changed after it was made and before it was recorded, or of another run (aliasing)",
            numbers: Vec::new(),
        }
    })
}
