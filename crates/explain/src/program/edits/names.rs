//! What a tensor of a slice is called, and which others have its shape.

use firstdiff_compare::MASKED;
use firstdiff_program::View;
use firstdiff_trace::Tap;

use crate::program::context::Context;
use crate::program::edits::slots::slots;

#[derive(Clone, Copy)]
pub(super) struct Names<'c, 'a> {
    context: &'c Context<'a>,
    layer: Option<u32>,
}

impl<'c, 'a> Names<'c, 'a> {
    pub(super) fn new(context: &'c Context<'a>) -> Names<'c, 'a> {
        let layer = context.held.place(context.slice.target()).tap.layer;
        Names { context, layer }
    }

    /// What `op` reads in a view: a weight, a tap, or what an operation gives.
    pub(super) fn describe(&self, op: usize, view: &View) -> String {
        if let Some(weight) = self.context.weight(view) {
            return relative(weight, self.layer);
        }
        let taps = self.context.program.taps();
        // Whether it was recorded or not: it is called so in every layer.
        let is_it = |tap: &usize| {
            let found = &taps[*tap];
            found.view.buffer == view.buffer && found.view.elements() == view.elements() && found.op < op
        };
        let is_last = |tap: &usize| self.context.maker(op, view).is_some_and(|maker| taps[*tap].op >= maker);
        if let Some(tap) = (0..taps.len()).rev().find(|tap| is_it(tap) && is_last(tap)) {
            return self.tap(&self.context.held.place(tap).tap.to_string());
        }
        // Heads that stand there once for each that reads them are those of the tap.
        let origin = self.context.origin(op, view);
        let is_all = |tap: &usize| Some(taps[*tap].op) == origin && taps[*tap].view.elements() < view.elements();
        if let Some(tap) = (0..taps.len()).find(is_all) {
            return self.tap(&self.context.held.place(tap).tap.to_string());
        }
        if let Some(table) = self.table(op, view) {
            return table.to_owned();
        }
        match self.context.maker(op, view) {
            Some(maker) if self.context.program.said(maker) == self.context.program.said(op) => {
                format!("an intermediate value of {}", self.context.program.said(op))
            }
            Some(maker) => {
                let outputs = &self.context.op(maker).outputs;
                let part =
                    outputs.iter().flatten().position(|out| out.buffer == view.buffer && out.offset == view.offset);
                let said = self.context.program.said(maker);
                match part {
                    Some(_) if outputs.len() == 1 => format!("what {said} gives"),
                    Some(part) => format!("part {} of what {said} gives", part + 1),
                    None => format!("a part of what {said} gives, from {} on", view.offset),
                }
            }
            None => "a constant".to_owned(),
        }
    }

    /// What a table is for that depends on no activation.
    fn table(&self, op: usize, view: &View) -> Option<&'static str> {
        let context = self.context;
        let makes_angles = |op: usize| matches!(context.base(op), "cos" | "sin" | "polar");
        let made_by = context.origin(op, view).map(|at| context.base(at));
        match made_by {
            _ if !context.is_table(view) => None,
            Some("cos") => Some("the cosines of the rotation"),
            Some("sin") => Some("the sines of the rotation"),
            _ if makes_angles(op) => Some("the angles of the rotation"),
            _ if context.leads_to(op, makes_angles) => Some("a table that the angles of the rotation are made of"),
            _ if context.leads_to_probs(op) => {
                let table = context.table(op, view)?;
                let hides = |x: f64| x <= MASKED;
                Some(match table.iter().all(|&x| x == 0.0 || x == 1.0 || hides(x)) {
                    true => "the mask",
                    false if table.iter().any(|&x| hides(x)) => "the mask, with what else is added by position",
                    false => "a table of positions that the scores are made with",
                })
            }
            _ => None,
        }
    }

    /// A tap's name without its layer's number, and whose layer's it is; whole where it is of another stack.
    pub(super) fn tap(&self, name: &str) -> String {
        let other = Tap::named(name);
        let own = self.context.held.place(self.context.slice.target()).tap;
        if own.block().zip(other.block()).is_some_and(|((own, _), (other, _))| own == other) {
            relative(name, self.layer)
        } else {
            name.to_owned()
        }
    }

    /// What a module, or one of its weights, is called.
    pub(super) fn weight(&self, name: &str) -> String {
        relative(name, self.layer)
    }

    /// The same beside another module: whole where it is of another stack.
    pub(super) fn weight_beside(&self, name: &str, own: &str) -> String {
        let stack =
            |name: &str| name.split('.').take_while(|part| part.parse::<u32>().is_err()).collect::<Vec<_>>().join(".");
        if stack(name) == stack(own) { self.weight(name) } else { name.to_owned() }
    }

    /// How many layers a module is away from this one; those outside of layers are the farthest.
    pub(super) fn apart(&self, name: &str) -> u32 {
        let number = name.split('.').find_map(|part| part.parse::<u32>().ok());
        number.zip(self.layer).map_or(u32::MAX, |(number, layer)| number.abs_diff(layer))
    }

    /// Others of the shape of a view that may be read for it: values of the slice that are there, each with its name.
    pub(super) fn others(&self, op: usize, view: &View) -> Vec<(String, View)> {
        let mut out: Vec<(String, View)> = Vec::new();
        let fits = |other: &View| {
            other != view
                && other.elements() == view.elements()
                && other.dtype.kind() == view.dtype.kind()
                && bare(other) == bare(view)
        };
        let mut offer = |name: String, other: &View| {
            if fits(other) && !out.iter().any(|(known, known_view)| *known == name || known_view == other) {
                out.push((name, other.clone()));
            }
        };
        // The nearest first.
        let before: Vec<usize> = self.context.ops().filter(|&at| at < op).collect();
        for slot in slots(self.context, op, 0.0) {
            offer(self.describe(op, slot.view), slot.view);
        }
        for &at in before.iter().rev().take(NEAR) {
            for made in self.context.op(at).outputs.iter().flatten() {
                let is_last = self.context.ops().filter(|&later| later > at && later < op).all(|later| {
                    self.context.op(later).outputs.iter().flatten().all(|other| other.buffer != made.buffer)
                });
                if is_last {
                    offer(format!("what {} gives", self.context.program.said(at)), made);
                }
            }
            for slot in slots(self.context, at, 0.0) {
                let is_made = self.context.maker(at, slot.view).is_some_and(|maker| self.context.has(maker));
                if !is_made {
                    offer(self.describe(at, slot.view), slot.view);
                }
            }
        }
        out
    }

    /// The tensor of this name beside another operation of the class.
    pub(super) fn same(&self, op: usize, place: (usize, Option<usize>), name: &str) -> Option<View> {
        let slot = slots(self.context, op, 0.0).into_iter().find(|slot| slot.place == place)?;
        self.others(op, slot.view).into_iter().find(|(other, _)| other == name).map(|(_, view)| view)
    }
}

/// So many operations before one are looked at for tensors that it may read.
const NEAR: usize = 64;

fn bare(view: &View) -> Vec<usize> {
    view.shape.iter().copied().filter(|&extent| extent != 1).collect()
}

/// A weight's name without its layer's number, and whose layer's it is.
fn relative(name: &str, layer: Option<u32>) -> String {
    let parts: Vec<&str> = name.split('.').collect();
    let number = parts.iter().enumerate().find_map(|(at, part)| Some((at, part.parse::<u32>().ok()?)));
    let (Some((at, number)), Some(layer)) = (number, layer) else { return name.to_owned() };
    format!("{} of {}", parts[at + 1..].join("."), which(number, layer))
}

fn which(number: u32, layer: u32) -> String {
    match i64::from(number) - i64::from(layer) {
        0 => "this layer".to_owned(),
        1 => "the next layer".to_owned(),
        -1 => "the layer before".to_owned(),
        by => format!("the layer {} {}", by.abs(), if by > 0 { "further" } else { "before" }),
    }
}
