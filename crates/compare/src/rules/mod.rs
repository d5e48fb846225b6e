//! What is taken back, or explained away, once every tap is judged? Each rule by itself.

mod evidence;
pub(crate) mod first_position;
pub(crate) mod layouts;
pub(crate) mod masked;
pub(crate) mod replicas;
pub(crate) mod unmapped;
pub(crate) mod unproven;

use firstdiff_trace::DumpError;

use crate::report::log::Stage;
use crate::taps::context::{Found, Run};

/// What a rule has to say beside what it changed.
pub(crate) type Ruled = Result<Option<String>, DumpError>;

/// A rule reads what was found of all taps, and changes what it can say better of some.
pub(crate) type Rule = for<'a> fn(&Run<'a>, &mut [Found]) -> Ruled;

/// Every rule, in the order in which they are applied: a later one sees what an earlier one said.
pub(crate) const RULES: [(Stage, Rule); 7] = [
    (Stage::Layout, |run, found| run.resolve_layouts(found)),
    (Stage::Positions, |run, found| run.doubt_positions(found)),
    (Stage::Continuation, |run, found| run.doubt_continuations(found)),
    (Stage::Masked, |run, found| run.forgive_hidden(found)),
    (Stage::FirstPosition, |run, found| run.doubt_rotations(found)),
    (Stage::AxisOrder, |run, found| run.doubt_orders(found)),
    (Stage::Replicas, |run, found| run.check_replicas(found)),
];
