//! What does the candidate hold of the program's taps?

use std::collections::HashMap;

use firstdiff_compare::{Place, TapReport};
use firstdiff_program::{DType, Kind, ProgramTap, Tensor, Values};
use firstdiff_trace::{Site, Tap};
use ndarray::{ArrayD, IxDyn};

use crate::program::{Candidate, Recording};
use crate::replay::right::jittered;
use crate::replay::{ReplayError, can_be_read};

/// The values of the taps that a candidate recorded whole, in the program's axes, by the tap's index in the program.
pub(crate) struct Held {
    values: HashMap<usize, Own>,
    places: Vec<Place>,
}

/// The values of one tap, and whether what comes behind it can be computed from them.
struct Own {
    values: Tensor<'static>,
    is_readable: bool,
}

impl Held {
    /// Reads all of them.
    pub(crate) fn of(recording: &Recording<'_>, candidate: &Candidate<'_>) -> Result<Held, ReplayError> {
        let reports: HashMap<Place, &TapReport> = candidate.taps.iter().map(|tap| (tap.place, tap)).collect();
        let taps = recording.program.taps();
        let mut values = HashMap::new();
        for (number, tap) in taps.iter().enumerate() {
            let report = reports.get(&place_of(tap)).filter(|report| report.positions.is_none());
            let own = report.map(|report| candidate.values.values(report)).transpose()?.flatten();
            if let Some(own) = own.and_then(|own| tensor(tap, own)) {
                let is_readable = can_be_read(site_of(place_of(tap).tap), &array(&own));
                values.insert(number, Own { values: own, is_readable });
            }
        }
        Ok(Held { values, places: taps.iter().map(place_of).collect() })
    }

    /// The tap and its step, by its index in the program.
    pub(crate) fn place(&self, tap: usize) -> Place {
        self.places[tap]
    }

    pub(crate) fn get(&self, tap: usize) -> Option<&Tensor<'static>> {
        self.values.get(&tap).map(|own| &own.values)
    }

    /// What the candidate holds at a tap, where what comes behind it can be computed from that.
    pub(crate) fn readable(&self, tap: usize) -> Option<&Tensor<'static>> {
        self.values.get(&tap).filter(|own| own.is_readable).map(|own| &own.values)
    }
}

/// What a tap is, whichever stack it is of.
pub(crate) fn site_of(own: Tap) -> Site {
    let name = own.to_string();
    let last = name.rsplit('.').next().unwrap_or_default();
    let known = [format!("layers.0.{last}"), last.to_owned()].map(|name| Tap::named(&name));
    known.into_iter().find(|tap| own.is_open() && !tap.is_open()).map_or(own.site, |tap| tap.site)
}

/// The place of a program's tap.
pub(crate) fn place_of(tap: &ProgramTap) -> Place {
    Place { tap: Tap::named(&tap.tap), step: tap.step as u32 }
}

/// Values as the program takes them; `None` where they are not as many.
fn tensor(tap: &ProgramTap, values: Vec<f64>) -> Option<Tensor<'static>> {
    let (dtype, values) = match tap.view.dtype.kind() {
        Kind::Int => (tap.view.dtype, Values::from(values.into_iter().map(|x| x as i64).collect::<Vec<_>>())),
        Kind::Float | Kind::Complex => (DType::F64, Values::from(values)),
    };
    Tensor::new(dtype, tap.view.shape.clone(), values)
}

/// Values as the judge takes them.
pub(crate) fn array(tensor: &Tensor<'_>) -> ArrayD<f64> {
    let values = tensor.to_floats().into_owned();
    ArrayD::from_shape_vec(IxDyn(tensor.shape()), values).unwrap_or_default()
}

/// Another right recording of the same values, which were rounded by `unit`.
pub(crate) fn moved(own: &Tensor<'_>, unit: f64, site: Site) -> Tensor<'static> {
    let other = match own.values() {
        // The fill of masked scores is no number that is rounded.
        Values::Float(_) if site != Site::Scores => {
            let moved = jittered(&array(own), unit).into_iter().collect::<Vec<_>>();
            Tensor::new(own.dtype(), own.shape().to_vec(), Values::from(moved))
        }
        _ => None,
    };
    other.unwrap_or_else(|| own.clone().into_owned())
}
