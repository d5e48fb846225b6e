//! What does the program in a dump say of that dump? Its operations are carried out on the dump's own tensors; those that read weights are not.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use firstdiff_compare::{Finding, InReferenceOrder, Inspection, Place, Status, Sureness, number};
use firstdiff_explain::program::{Candidate, Recording, replay};
use firstdiff_explain::replay::{Reason, Replayed};
use firstdiff_model::Cache;
use firstdiff_program::{Operand, Program, ProgramTap, Slice, Tensor, WeightError, Weights};
use firstdiff_trace::{Rows, Tap};

use crate::session::Session;
use crate::session::given::arithmetic;
use crate::session::reading::{ReadingArgs, TokenArgs};
use crate::words::{shorten, taps_in_words};

/// What the program makes of the dump's own tensors.
pub(crate) struct OwnProgram {
    program: Program,
    replayed: BTreeMap<Place, Replayed>,
}

/// No weight can be read: what needs one is not carried out.
struct NoWeights;

impl Weights for NoWeights {
    fn read(&self, name: &str) -> Result<Tensor<'static>, WeightError> {
        Err(WeightError { name: name.into(), reason: "no weights are read".into() })
    }
}

impl OwnProgram {
    /// Carries the program of the dump in `folder` out.
    ///
    /// # Errors
    /// When something cannot be read.
    pub(crate) fn of(folder: &Path, rows: Option<Rows>, reading: &ReadingArgs, told: &TokenArgs) -> Result<OwnProgram> {
        let program = Program::open(folder).with_context(|| folder.display().to_string())?;
        program.check_memory(&NoWeights).with_context(|| folder.display().to_string())?;
        let judged = Session::open_with(folder, folder, None, rows, reading, told)?.run()?;
        let Session { reference, candidate, graph, options, .. } = &judged.session;
        let values = InReferenceOrder::new(reference, candidate, graph, options);
        let profile = arithmetic(options.profile, Cache::F32);
        let candidate = Candidate { dump: candidate, values: &values, taps: &judged.report.taps, profile };
        let recording = Recording { program: &program, weights: &NoWeights };
        let taps = replay(&recording, &candidate, &mut |_, _| {})?.taps;
        let mut own = OwnProgram { replayed: taps.into_iter().map(|tap| (tap.report.place, tap)).collect(), program };
        let of_weights: Vec<Place> = own.taps_of_weights().collect();
        own.replayed.retain(|place, _| !of_weights.contains(place));
        Ok(own)
    }

    /// Taps that the dump holds, and that take weights to be made from those before them.
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

    /// Tells of what the program does not make, and takes back what it does itself.
    pub(crate) fn settle(&self, inspection: &mut Inspection) {
        for finding in inspection.findings.iter_mut().filter(|finding| self.is_meant(finding)) {
            finding.sure = Sureness::Note;
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

    /// Whether the program makes what was seen, so that it is no fault of the recording. NaN and the like stay what they are, whatever they were made of.
    fn is_meant(&self, finding: &Finding) -> bool {
        const OF_NUMBERS: [&str; 3] = ["not-finite", "absurd-values", "empty"];
        let right = |tap: &Replayed| is_judged(tap) && tap.report.status.agrees() && !tap.from.is_empty();
        let is_one = || {
            let all = std::iter::once(finding.place.tap).chain(finding.others.iter().copied());
            let views: Option<Vec<&ProgramTap>> = all.map(|tap| self.find(tap, finding.place.step)).collect();
            views.is_some_and(|taps| taps.len() > 1 && taps.iter().all(|tap| tap.op == taps[0].op))
        };
        finding.sure != Sureness::Note
            && !OF_NUMBERS.contains(&finding.what)
            && (self.replayed.get(&finding.place).is_some_and(right) || is_one())
    }

    fn find(&self, tap: Tap, step: u32) -> Option<&ProgramTap> {
        self.program.taps().iter().find(|found| found.step as u32 == step && Tap::named(&found.tap) == tap)
    }
}

fn is_held(tap: &Replayed) -> bool {
    !matches!(tap.reason, Some(Reason::NotRecorded | Reason::OtherExtent))
}

fn is_judged(tap: &Replayed) -> bool {
    tap.report.status != Status::Unchecked
}

fn not_its_program(tap: &Replayed) -> Option<Finding> {
    let report = &tap.report;
    (report.status == Status::Diverged).then(|| {
        let from: Vec<String> = tap.from.iter().map(ToString::to_string).collect();
        let nmse = report.metrics.and_then(|metrics| metrics.nmse());
        let size = nmse.map_or_else(String::new, |nmse| format!(" (NMSE {})", number(nmse)));
        Finding {
            sure: Sureness::Likely,
            what: "not-its-program",
            place: report.place,
            others: tap.from.clone(),
            detail: format!("is not what {} makes of {}{size}", report.op, shorten(&from, 4)),
            points_to: "changed after it was made and before it was recorded, or of another run (aliasing)",
            numbers: Vec::new(),
        }
    })
}
