//! How a candidate was judged: what it holds in the reference's program, and what is said of each of its taps.

use std::collections::HashMap;

use firstdiff_compare::{Place, Status};
use firstdiff_model::{Cache, Profile};
use firstdiff_program::Program;

use crate::program::held::Held;
use crate::program::slices::reads_large;
use crate::replay::operation::Operation;
use crate::replay::{Replay, Replayed};

/// A candidate's values in the reference's program, with the experts that it chose, and how each of its taps is judged.
pub(crate) struct ProgramReplay {
    /// `None` where the recorded one serves.
    pub(super) program: Option<Program>,
    pub(crate) held: Held,
    pub(crate) replays: Replays,
    /// The type of cache that it was judged by.
    pub(crate) cache: Cache,
}

/// A replay, and by what its taps were judged.
pub(crate) struct Replays {
    pub(crate) replay: Replay,
    /// For each tap of the replay its index in the program.
    pub(crate) taps: Vec<usize>,
    /// What recording costs a place, and by how much right runs differ there.
    pub(super) noise: HashMap<Place, Costs>,
}

impl Replays {
    /// How a tap was judged.
    pub(crate) fn operation<'t>(&self, tap: &'t Replayed, profile: Profile) -> Operation<'t> {
        let noise = self.noise.get(&tap.report.place).copied().unwrap_or_default();
        operation(tap.report.place, &tap.report.op, profile, !tap.through.is_empty(), noise)
    }

    /// The program's taps that are wrong by themselves, in their order.
    pub(super) fn wrong(&self) -> impl Iterator<Item = usize> {
        let wrong = self.replay.taps.iter().zip(&self.taps).filter(|(t, _)| t.report.status == Status::Diverged);
        wrong.map(|(_, tap)| *tap)
    }

    /// For each operation the taps that are right, and made of it by what was recorded.
    pub(super) fn readers(&self, program: &Program, held: &Held) -> HashMap<usize, Vec<usize>> {
        let mut readers: HashMap<usize, Vec<usize>> = HashMap::new();
        let right = self.replay.taps.iter().zip(&self.taps).filter(|(t, _)| t.report.status.agrees() && t.is_blamed());
        for &tap in right.map(|(_, tap)| tap).filter(|&&tap| held.goes_on_with(tap)) {
            let slice = held.slice(program, tap);
            if !reads_large(program, &slice) {
                slice.ops().for_each(|op| readers.entry(op).or_default().push(tap));
            }
        }
        readers
    }

    pub(super) fn of(&self, place: Place) -> Option<&Replayed> {
        self.replay.taps.iter().find(|t| t.report.place == place)
    }

    fn of_mut(&mut self, place: Place) -> Option<&mut Replayed> {
        self.replay.taps.iter_mut().find(|t| t.report.place == place)
    }

    /// Takes up how a tap is judged.
    pub(super) fn put(&mut self, place: Place, judged: Replayed) {
        if let Some(replayed) = self.of_mut(place) {
            *replayed = judged;
        }
    }

    /// Notes of a tap where what is off there is so no more.
    pub(super) fn is_right_again_at(&mut self, place: Place, reader: Place, is_taken_back: bool) {
        if let Some(replayed) = self.of_mut(place) {
            replayed.is_right_again_at(reader, is_taken_back);
        }
    }
}

/// What recording a place costs, by how much right runs differ there, and what rounding costs where that was measured.
pub(super) type Costs = (f64, f64, Option<f64>);

/// How a tap is judged, by what recording it costs and by how much right runs of it differ.
pub(super) fn operation(
    place: Place,
    name: &str,
    profile: Profile,
    is_span: bool,
    (stored, spread, noise): Costs,
) -> Operation<'_> {
    Operation { place, name, profile, is_span, noise, noise_before: 0.0, stored, spread, condition: 1.0 }
}
