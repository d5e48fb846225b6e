//! In which layout did the candidate record? The order of Q's and K's rows, and of axes, where neither the dump nor a shape says.

use firstdiff_compare::{Place, Status, TapReport};
use firstdiff_model::{Op, Profile, Step};
use firstdiff_trace::{Entry, QkRows, Site};

use crate::explain::{HUGE, elements, own};
use crate::imitate::Shared;
use crate::proof::Target;
use crate::recorded::{Recorded, is_backwards, leaves_context_open, leaves_heads_open, turned};
use crate::replay::{Done, Run};
use crate::search::{Effort, Search};

/// Mistakes that another order of the rows of Q and K looks like.
pub(crate) const OF_ORDER: [&str; 2] = ["qk-row-order", "rope-pairing"];

/// Mistakes at once that are looked for in either order.
const MOST_FAULTS: usize = 2;

/// By how much the squared correlation with the right value must differ between two orders, to tell which is meant.
const NEARER: f64 = 0.2;

impl Run<'_> {
    /// Finds the order of the rows of Q and K where the dump does not say, and the order of axes where the shape does not: those in which
    /// more of the first layers' taps come out. Gives what was not as the model has it.
    pub(crate) fn settle_layout(&mut self, declared: Option<QkRows>) -> Done<Vec<String>> {
        let own = self.recorded.model.qk_rows;
        let shape = |e: &&Entry| self.recorded.shape(Place { tap: e.tap, step: 0 });
        let prefill = || self.recorded.dump.entries().iter().filter(|e| e.step == 0);
        let open = prefill().any(|e| leaves_heads_open(e, &shape(&e)));
        let listed_backwards = prefill().any(|e| is_backwards(e, &shape(&e)));
        let orders = declared.map_or(vec![own, own.other()], |order| vec![order]);
        let firsts = if open { vec![false, true] } else { vec![false] };
        let directions = if listed_backwards { vec![false, true] } else { vec![false] };
        let ways = directions.iter().flat_map(|&backwards| {
            let firsts = firsts.clone();
            orders.iter().flat_map(move |&order| firsts.clone().into_iter().map(move |first| (order, first, backwards)))
        });
        // A rotation alone cannot tell: the other pairing looks like the other order. What is made by a matrix can.
        let made = |s: &&Step| {
            turned(s.tap.site) || s.tap.site == Site::V || (listed_backwards && s.tap.site.axes().len() == 2)
        };
        let by_matrix = |s: &&Step| made(s) && !self.stretch(s, 0).0.iter().any(|tap| turned(tap.site));
        let steps: Vec<&Step> = self.recorded.model.plan.steps.iter().filter(by_matrix).take(6).collect();
        let ways: Vec<(QkRows, bool, bool)> = ways.collect();
        let (order, first, backwards) = self.best_of(&ways, &steps, |recorded, way| {
            (recorded.qk_rows, recorded.heads_first, recorded.backwards) = way;
        })?;
        let order = if declared.is_none() { self.order_of_faulty(order, &steps)? } else { order };
        let context = self.settle_context()?;
        let other_order = (declared.is_none() && order != own).then_some(
            "the rows of Q and K come in the other RoPE order than in the weights: it was undone; say 'qk_rows' in dump.json",
        );
        let axes = first.then_some("q, k and v come heads first, as [H,T,d]: read so");
        let listed = backwards.then_some("shapes list the axes fastest first, as ggml does: read so");
        let undecided = self.order_is_open.then_some(
            "the rows of Q and K may come in either RoPE order: what is recorded of them is wrong in both; say 'qk_rows' in dump.json",
        );
        Ok(other_order
            .into_iter()
            .chain(undecided)
            .chain(axes)
            .chain(listed)
            .chain(context)
            .map(str::to_owned)
            .collect())
    }

    /// The order of the rows of Q and K where none that a matrix made comes out in either: that in which they are nearer, else that in which one
    /// mistake gives them, or two. Where neither tells, `order_is_open`, and it is the order that the rotation speaks for.
    fn order_of_faulty(&mut self, order: QkRows, steps: &[&Step]) -> Done<QkRows> {
        let recorded = |s: &&Step| turned(s.tap.site) && self.recorded.holds(Place { tap: s.tap, step: 0 });
        let steps: Vec<&Step> = steps.iter().copied().filter(recorded).collect();
        let take = |recorded: &mut Recorded<'_>, order| recorded.qk_rows = order;
        let mut near = [0.0, 0.0];
        let ways = [order, order.other()];
        for (near, way) in near.iter_mut().zip(ways) {
            self.read_as(take, way);
            for step in &steps {
                let report = match self.judge(step, 0)?.report {
                    report if report.status == Status::Unchecked => {
                        self.judged_from_the_tokens(step)?.unwrap_or(report)
                    }
                    report => report,
                };
                if report.status.agrees() {
                    return Ok(way);
                }
                *near += report.metrics.and_then(|m| m.correlation()).map_or(0.0, |c| c * c) / steps.len() as f64;
            }
        }
        let mut found = (near[0] - near[1]).abs() >= NEARER;
        let mut best = ways[usize::from(near[1] > near[0])];
        for faults in 1..=MOST_FAULTS {
            if found {
                break;
            }
            let mut known = [0, 0];
            for (known, way) in known.iter_mut().zip(ways) {
                self.read_as(take, way);
                for step in &steps {
                    *known += usize::from(self.has_cause(step, faults)?);
                }
            }
            found = known[0] != known[1];
            best = ways[usize::from(known[1] > known[0])];
        }
        if !found && !steps.is_empty() {
            self.order_is_open = true;
            let plan = &self.recorded.model.plan;
            let rotations: Vec<&Step> = plan.steps.iter().filter(|s| matches!(s.op, Op::Rope(_))).take(2).collect();
            best = self.best_of(&ways, &rotations, take)?;
        }
        self.read_as(take, best);
        Ok(best)
    }

    /// What was recorded of a step in some positions, against what the right engine gives; nothing where that cannot be said.
    fn judged_from_the_tokens(&mut self, step: &Step) -> Done<Option<TapReport>> {
        let place = Place { step: 0, tap: step.tap };
        let Some(step) = self.recorded.model.plan.step(step.tap) else { return Ok(None) };
        let Some((own, Some(positions))) = own(self, place)? else { return Ok(None) };
        let (shared, effort) = (Shared::default(), Effort::quick());
        let target = Target::new(self, step, place, own, Some(positions), None);
        let search = Search { run: self, shared: &shared, effort: &effort, accepted: &[] };
        let values = [self.profile, Profile::Exact].map(|p| search.value(&target, &[], p));
        let [Some(right), Some(exact)] = values else { return Ok(None) };
        let fits = right.shape() == target.own.shape();
        Ok(fits
            .then(|| self.judge_stretch(step, place, &target.own, &right, &exact, target.positions.as_deref()).report))
    }

    /// Whether so many mistakes, none of the order of rows or of pairs, give what was recorded of a step of the prefill.
    fn has_cause(&self, step: &Step, faults: usize) -> Done<bool> {
        let place = Place { tap: step.tap, step: 0 };
        let Some(step) = self.recorded.model.plan.step(step.tap) else { return Ok(false) };
        if elements(self.recorded.model, step) > HUGE {
            return Ok(false);
        }
        let Some((own, None)) = own(self, place)? else { return Ok(false) };
        let (shared, effort) = (Shared::default(), Effort { faults, seconds: 60.0, ..Effort::quick() });
        let search = Search { run: self, shared: &shared, effort: &effort, accepted: &[] };
        let target = Target::new(self, step, place, own, None, None);
        if target.is_stretch() {
            return Ok(false);
        }
        let candidates = search.candidates(&target).into_iter().filter(|c| !OF_ORDER.contains(&c.id())).collect();
        Ok(!search.run(&target, candidates, &|_, _, _| {}).reproduced.is_empty())
    }

    /// Whether contexts hold their heads first: where more of them, and of what is made of them, comes out so.
    fn settle_context(&mut self) -> Done<Option<&'static str>> {
        let heads = self.recorded.model.plan.dims.heads;
        if !self.recorded.dump.entries().iter().any(|e| leaves_context_open(e, heads)) {
            return Ok(None);
        }
        let around = |s: &&Step| matches!(s.tap.site, Site::Context | Site::AttnOut);
        let steps: Vec<&Step> = self.recorded.model.plan.steps.iter().filter(around).take(4).collect();
        let first = self.best_of(&[false, true], &steps, |recorded, first| recorded.context_first = first)?;
        Ok(first.then_some("contexts come heads first, as [H,T,d]: read so"))
    }

    /// Takes the way to read in which most of `steps` come out; of several the first.
    fn best_of<W: Copy>(&mut self, ways: &[W], steps: &[&Step], take: impl Fn(&mut Recorded<'_>, W)) -> Done<W> {
        let mut best = (0, ways[0]);
        for &way in ways {
            self.read_as(&take, way);
            let mut right = 0;
            for step in steps {
                right += usize::from(self.judge(step, 0)?.report.status.agrees());
            }
            if right > best.0 {
                best = (right, way);
            }
        }
        self.read_as(&take, best.1);
        Ok(best.1)
    }

    /// What was computed of another reading is forgotten.
    fn read_as<W>(&mut self, take: impl Fn(&mut Recorded<'_>, W), way: W) {
        take(&mut self.recorded, way);
        self.memo.clear();
        self.wide.clear();
    }
}
