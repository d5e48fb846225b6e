//! Names the positions by which q and k are turned where both are off alike: their products depend on the distance of two positions alone, and come out right.

use firstdiff_compare::{Place, Status};
use firstdiff_trace::Site;

use crate::explain::{Effort, Finding};
use crate::mistakes::rope::ROPE_POSITION;
use crate::replay::Replay;

/// What is said of them.
const HARMLESS: &str = "harmless behind the rotation: q and k are moved alike, and their products depend on the distance of two positions alone";

/// All that is looked for.
pub(crate) fn moves(effort: &Effort) -> Effort {
    Effort { only: vec![ROPE_POSITION.id.to_owned()], ..effort.clone() }
}

/// Rotated q, and k, that are off where what is made of both is right.
pub(crate) fn places(replay: &Replay) -> Vec<Place> {
    let of = |site: Site| -> Vec<Place> {
        let wrong = replay.taps.iter().filter(|t| t.report.status == Status::Diverged && !t.is_blamed());
        wrong.map(|t| t.report.place).filter(|place| place.tap.last_site() == site).collect()
    };
    let (q, k) = (of(Site::QRope), of(Site::KRope));
    if q.is_empty() || k.is_empty() { Vec::new() } else { [q, k].concat() }
}

/// Takes up the one cause of theirs in the place of what is said of wrong taps that nobody is to blame for.
pub(crate) fn take_up(mut named: Vec<Finding>, not_blamed: &mut Vec<Finding>) {
    let Some(mut one) = named.pop().filter(|one| one.cause.is_some() && named.is_empty()) else { return };
    let is_of_it = |other: &Finding| other.shown_at.iter().all(|place| one.shown_at.contains(place));
    let (of_it, rest): (Vec<Finding>, Vec<Finding>) = not_blamed.drain(..).partition(is_of_it);
    one.note = Some(HARMLESS.to_owned());
    one.taken_back = of_it.into_iter().flat_map(|other| [other.taken_back, other.misrecorded].concat()).collect();
    not_blamed.extend(rest);
    not_blamed.push(one);
}
