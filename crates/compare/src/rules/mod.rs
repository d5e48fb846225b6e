//! Revises judgements once every tap is judged. Each rule reads all taps and returns those that it judges differently.

mod draft;
mod evidence;
pub(crate) mod first_position;
pub(crate) mod layouts;
pub(crate) mod masked;
pub(crate) mod replicas;
pub(crate) mod routing;
pub(crate) mod unmapped;
pub(crate) mod unproven;

use std::collections::BTreeMap;

use firstdiff_trace::DumpError;

use crate::report::log::{LogEntry, Stage};
use crate::taps::JudgedTaps;
use crate::taps::context::{ComparisonContext, TapJudgement};

/// The taps that a rule judges differently, by their index in the graph, and its notes.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) taps: BTreeMap<usize, TapJudgement>,
    pub(crate) note: Option<String>,
}

impl Changes {
    /// The same judgement for several taps.
    fn all(taps: impl Iterator<Item = usize>, judged: &TapJudgement) -> Changes {
        Changes { taps: taps.map(|index| (index, judged.clone())).collect(), note: None }
    }
}

pub(crate) type RuleResult = Result<Changes, DumpError>;

/// A rule reads the judgements of all taps, and returns better ones for some.
type Rule = for<'a> fn(&ComparisonContext<'a>, &[TapJudgement]) -> RuleResult;

/// Every rule, in the order in which they are applied: a later one sees the results of an earlier one.
const RULES: [(Stage, Rule); 8] = [
    (Stage::Layout, |run, taps| run.resolve_layouts(taps)),
    (Stage::Positions, |run, taps| run.doubt_positions(taps)),
    (Stage::Continuation, |run, taps| run.doubt_continuations(taps)),
    (Stage::BehindChoices, |run, taps| run.judge_behind_choices(taps)),
    (Stage::Masked, |run, taps| run.forgive_masked_scores(taps)),
    (Stage::FirstPosition, |run, taps| run.doubt_rotations(taps)),
    (Stage::AxisOrder, |run, taps| run.doubt_orders(taps)),
    (Stage::Replicas, |run, taps| run.check_replicas(taps)),
];

/// The final judgement of every tap, with a log of what each stage decided.
pub(crate) struct Attributed {
    pub(crate) taps: Vec<TapJudgement>,
    pub(crate) log: Vec<Vec<LogEntry>>,
    /// The notes of the rules.
    pub(crate) notes: Vec<String>,
}

/// Applies every rule.
pub(crate) fn attribute(context: &ComparisonContext<'_>, judged: JudgedTaps) -> Result<Attributed, DumpError> {
    let mut attributed = Attributed { taps: judged.taps, log: judged.log, notes: Vec::new() };
    for (stage, rule) in RULES {
        let changes = rule(context, &attributed.taps)?;
        attributed.notes.extend(changes.note);
        for (index, judged) in changes.taps {
            let news = judged.changed_entry(stage, attributed.log[index].last());
            attributed.log[index].extend(news);
            attributed.taps[index] = judged;
        }
    }
    Ok(attributed)
}
