//! In which layout did the candidate record? The order of Q's and K's rows, and of axes, where neither the dump nor a shape says.

use firstdiff_model::Step;
use firstdiff_trace::{QkRows, Site};

use crate::recorded::turned;
use crate::replay::{Done, Run};

impl Run<'_> {
    /// Finds the order of the rows of Q and K where the dump does not say, and the order of axes where the shape does not: those in which
    /// more of the first layers' taps come out. Gives what was not as the model has it.
    pub(crate) fn settle_layout(&mut self, declared: Option<QkRows>) -> Done<Vec<String>> {
        let (own, dims) = (self.recorded.model.qk_rows, self.recorded.model.plan.dims);
        let tokens = self.recorded.tokens.first().map_or(0, Vec::len);
        let square = tokens > 1 && (tokens == dims.heads || tokens == dims.kv_heads);
        let orders = declared.map_or(vec![own, own.other()], |order| vec![order]);
        let ways = orders.iter().flat_map(|&order| [(order, false), (order, true)]).filter(|way| square || !way.1);
        // A rotation alone cannot tell: the other pairing looks like the other order. What is made by a matrix can.
        let made = |s: &&Step| turned(s.tap.site) || s.tap.site == Site::V;
        let by_matrix = |s: &&Step| made(s) && !self.stretch(s, 0).0.iter().any(|tap| turned(tap.site));
        let steps: Vec<&Step> = self.recorded.model.plan.steps.iter().filter(by_matrix).take(6).collect();
        let mut best = (None, (orders[0], false));
        for way in ways {
            (self.recorded.qk_rows, self.recorded.heads_first) = way;
            let mut right = 0;
            for step in &steps {
                right += usize::from(self.judge(step, 0)?.report.status.agrees());
            }
            if best.0.is_none_or(|most| right > most) {
                best = (Some(right), way);
            }
        }
        (self.recorded.qk_rows, self.recorded.heads_first) = best.1;
        self.memo.clear();
        self.wide.clear();
        let order = (declared.is_none() && best.1.0 != own).then_some(
            "the rows of Q and K come in the other RoPE order than in the weights: it was undone; say 'qk_rows' in dump.json",
        );
        let axes = best.1.1.then_some("q, k and v come heads first, as [H,T,d]: read so");
        Ok(order.into_iter().chain(axes).map(str::to_owned).collect())
    }
}
