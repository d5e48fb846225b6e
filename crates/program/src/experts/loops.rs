//! Finds the loops over the experts of a layer in a program. Each turn runs the same operations for one expert, with its weights; turns differ only in the
//! expert's number, and in the row of the list of experts that are hit.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use crate::experts::part::Resized;
use crate::program::{Operation, Program, check};
use crate::value::dtype::Kind;
use crate::value::view::View;

/// A loop over experts.
#[derive(Debug)]
pub(crate) struct Loop {
    /// Its turns, in order.
    pub(crate) turns: Vec<Turn>,
    /// Index of its body in [`Loops::bodies`].
    pub(crate) body: usize,
    /// The first operation after it.
    pub(crate) end: usize,
}

/// The operations for one expert.
#[derive(Clone, Debug)]
pub(crate) struct Turn {
    pub(crate) ops: Range<usize>,
    pub(crate) expert: usize,
    /// Number of rows it takes.
    pub(crate) rows: usize,
    /// Whether it runs to the end of the body.
    pub(crate) is_whole: bool,
}

/// What all turns have in common.
#[derive(Debug, Default)]
pub(crate) struct Body {
    /// The views whose start differs from turn to turn, by operation of the turn and index of the view; for each axis, what its start index depends on.
    pub(crate) begins: HashMap<(usize, usize), Vec<Index>>,
    /// The view that reads the list of experts that are hit; `None` where every expert has a turn.
    pub(crate) list: Option<(usize, usize)>,
    /// Which numbers in names are the expert's number.
    pub(crate) names: HashMap<Name, Vec<bool>>,
    /// The names that count the turns.
    pub(crate) counted: HashSet<Name>,
}

/// Something in a turn that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Name {
    /// The weight that a view of an operation belongs to: operation, view.
    Weight(usize, usize),
    /// A tap after an operation: operation, index of the tap.
    Tap(usize, usize),
    /// The module in which an operation is called.
    Module(usize),
}

/// What a start index depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Index {
    Fixed,
    /// This many times the expert's number.
    Expert(usize),
    Turn,
}

/// All loops over experts, by their first operation.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    pub(crate) by_start: BTreeMap<usize, Loop>,
    pub(crate) bodies: Vec<Body>,
}

/// A line of code, the same in every layer.
type CodeLine<'a> = (String, &'a [String], Option<usize>, &'a str);

/// A loop whose operations repeat, before its experts are known.
struct LoopCandidate {
    turns: Vec<Range<usize>>,
    /// Number of operations in a whole turn.
    length: usize,
}

impl Loops {
    /// Finds the loops after each choice of experts.
    pub(crate) fn find(program: &Program) -> Loops {
        let lines: Vec<CodeLine<'_>> = program.ops.iter().map(|op| line(program, op)).collect();
        let ranges = behind_choices(program);
        let mut stretches: Vec<LoopCandidate> =
            ranges.iter().filter_map(|range| recurring(program, &lines, range.clone())).collect();
        // A loop with a single turn does not repeat: its lines are known from loops with several turns.
        let whole: HashMap<&CodeLine<'_>, Range<usize>> =
            stretches.iter().map(|found| (&lines[found.turns[0].start], found.longest())).collect();
        let single = |range: &Range<usize>| {
            let (at, whole) = range.clone().find_map(|at| Some((at, whole.get(&lines[at])?)))?;
            let turn = at..at + whole.len();
            same_lines(&lines, turn.clone(), whole.clone())
                .then(|| LoopCandidate { length: turn.len(), turns: vec![turn] })
        };
        let is_new = |range: &&Range<usize>| !stretches.iter().any(|found| range.contains(&found.turns[0].start));
        let single: Vec<LoopCandidate> = ranges.iter().filter(is_new).filter_map(single).collect();
        stretches.extend(single);
        let mut groups: Vec<(CodeLine<'_>, usize, Vec<LoopCandidate>)> = Vec::new();
        for found in stretches {
            let (first, length) = (&lines[found.turns[0].start], found.length);
            match groups.iter_mut().find(|(line, own, _)| line == first && *own == length) {
                Some((.., group)) => group.push(found),
                None => groups.push((first.clone(), length, vec![found])),
            }
        }
        let mut loops = Loops::default();
        for (_, length, group) in groups {
            loops.add(program, length, &group);
        }
        loops
    }

    fn add(&mut self, program: &Program, length: usize, group: &[LoopCandidate]) {
        let Some(experts) = experts(program, length, group) else { return };
        let whole: Vec<(usize, usize, usize)> = experts
            .iter()
            .enumerate()
            .flat_map(|(number, turns)| turns.iter().enumerate().map(move |(turn, expert)| (number, turn, *expert)))
            .filter(|&(number, turn, _)| group[number].turns[turn].len() == length)
            .map(|(number, turn, expert)| (group[number].turns[turn].start, turn, expert))
            .collect();
        let Some(body) = common_body(program, length, &whole) else { return };
        for (found, experts) in group.iter().zip(&experts) {
            let turns = found.turns.iter().zip(experts);
            let turns: Vec<Turn> = turns
                .map(|(ops, &expert)| Turn {
                    ops: ops.clone(),
                    expert,
                    rows: rows(program, ops.clone()).unwrap_or(0),
                    is_whole: ops.len() == length,
                })
                .collect();
            // Where every expert has a turn, turn and expert must have the same number.
            if body.list.is_none() && turns.iter().enumerate().any(|(at, turn)| turn.expert != at) {
                continue;
            }
            let end = found.turns.last().map_or(0, |last| last.end);
            self.by_start.insert(found.turns[0].start, Loop { turns, body: self.bodies.len(), end });
        }
        self.bodies.push(body);
    }
}

impl LoopCandidate {
    fn longest(&self) -> Range<usize> {
        self.turns.iter().find(|turn| turn.len() == self.length).cloned().unwrap_or_default()
    }
}

fn line<'a>(program: &'a Program, op: &'a Operation) -> CodeLine<'a> {
    let scope = op.scope.map(|scope| &program.scopes[scope]);
    let module = scope.map_or_else(String::new, |scope| split_numbers(&scope.module).0.join("*"));
    (module, scope.map_or(&[], |scope| scope.functions.as_slice()), op.line, &op.name)
}

/// The operations after each integer tap, up to the next one or the end of the step.
fn behind_choices(program: &Program) -> Vec<Range<usize>> {
    let mut chosen: Vec<usize> = program.choices().map(|tap| program.taps[tap].op).collect();
    chosen.sort_unstable();
    chosen.dedup();
    let end = |at: usize| program.steps.iter().find(|step| step.ops.contains(&at)).map_or(at, |step| step.ops.end);
    let next = |i: usize| chosen.get(i + 1).copied().unwrap_or(usize::MAX);
    chosen.iter().enumerate().map(|(i, &at)| at + 1..end(at).min(next(i))).collect()
}

/// Finds the first operation that one line of code executes several times in a range, with the same operations in between each time.
fn recurring(program: &Program, lines: &[CodeLine<'_>], range: Range<usize>) -> Option<LoopCandidate> {
    type Called<'a> = (Option<usize>, Option<usize>, &'a str);
    let mut places: HashMap<Called<'_>, Vec<usize>> = HashMap::new();
    let key = |at: usize| (program.ops[at].scope, program.ops[at].line, program.ops[at].name.as_str());
    range.clone().for_each(|at| places.entry(key(at)).or_default().push(at));
    let mut seen = HashSet::new();
    range.clone().filter(|&at| seen.insert(key(at)) && places[&key(at)].len() > 1).find_map(|at| {
        let starts = &places[&key(at)];
        let mut turns: Vec<Range<usize>> = starts.windows(2).map(|pair| pair[0]..pair[1]).collect();
        let whole = turns.iter().max_by_key(|turn| turn.len())?.clone();
        let last = *starts.last()?;
        let alike = whole.clone().zip(last..range.end).take_while(|&(a, b)| lines[a] == lines[b]).count();
        turns.push(last..last + alike);
        let reads_weights = whole.clone().any(|op| weights(program, op).next().is_some());
        let fits = |turn: &Range<usize>| {
            let short = whole.start..whole.start + turn.len();
            same_lines(lines, turn.clone(), short) && (turn.len() == whole.len() || gives_nothing(program, turn))
        };
        (reads_weights && turns.iter().all(fits)).then_some(LoopCandidate { turns, length: whole.len() })
    })
}

fn same_lines(lines: &[CodeLine<'_>], a: Range<usize>, b: Range<usize>) -> bool {
    a.end <= lines.len() && b.end <= lines.len() && lines[a] == lines[b]
}

/// Whether a turn ended because no row is routed to its expert.
fn gives_nothing(program: &Program, turn: &Range<usize>) -> bool {
    let last = turn.clone().last().map(|op| &program.ops[op]);
    last.is_some_and(|op| op.outputs.iter().flatten().all(|view| view.elements() == 0) && !op.outputs.is_empty())
}

/// Number of rows of the first operation in a turn whose row count depends on values.
fn rows(program: &Program, mut turn: Range<usize>) -> Option<usize> {
    let op = turn.find(|&op| program.ops[op].has_open_shape())?;
    program.ops[op].outputs.first()?.as_ref()?.shape.first().copied()
}

/// The weights among an operation's views, each with the index of the view.
fn weights(program: &Program, op: usize) -> impl Iterator<Item = (usize, &View)> {
    check::operands(&program.ops[op]).enumerate().filter(|(_, view)| program.weights.contains_key(&view.buffer))
}

/// The numbers in a weight's name, and the index of the slice that a view shows: along the first axis if there are more than two, else in blocks of its size.
fn name_numbers(program: &Program, view: &View) -> Vec<usize> {
    let mut numbers = split_numbers(&program.weights[&view.buffer]).1;
    let whole = &program.buffers[view.buffer];
    let begins = Resized::unchanged(whole).ok().and_then(|part| part.begins(view));
    let slice = match whole.shape.len() {
        0..=2 => view.offset.checked_div(view.elements()),
        _ => begins.and_then(|begins| begins.first().copied()),
    };
    numbers.extend(slice);
    numbers
}

/// The expert of each turn: the only number that differs between turns, in the names of the weights or their slices.
fn experts(program: &Program, length: usize, group: &[LoopCandidate]) -> Option<Vec<Vec<usize>>> {
    let whole = |found: &LoopCandidate| -> Vec<usize> {
        found.turns.iter().filter(|turn| turn.len() == length).map(|turn| turn.start).collect()
    };
    let numbers = |start: usize| -> Vec<Vec<usize>> {
        (0..length).flat_map(|op| weights(program, start + op)).map(|(_, view)| name_numbers(program, view)).collect()
    };
    let all: Vec<Vec<Vec<Vec<usize>>>> =
        group.iter().map(|found| whole(found).into_iter().map(numbers).collect()).collect();
    let first = all.iter().flatten().next()?;
    let same_form =
        |turn: &Vec<Vec<usize>>| turn.len() == first.len() && turn.iter().zip(first).all(|(a, b)| a.len() == b.len());
    if !all.iter().flatten().all(same_form) {
        return None;
    }
    let places = || first.iter().enumerate().flat_map(|(slot, numbers)| (0..numbers.len()).map(move |at| (slot, at)));
    let is_other = |&(slot, at): &(usize, usize)| {
        all.iter().any(|turns| turns.iter().any(|turn| turn[slot][at] != turns[0][slot][at]))
    };
    let moving: Vec<(usize, usize)> = places().filter(is_other).collect();
    let &(slot, at) = moving.first()?;
    let number = |turn: &Vec<Vec<usize>>| turn[slot][at];
    let agrees = |turn: &Vec<Vec<usize>>| moving.iter().all(|&(slot, at)| turn[slot][at] == number(turn));
    let differ = |turns: &Vec<Vec<Vec<usize>>>| turns.iter().map(number).collect::<HashSet<_>>().len() == turns.len();
    if !all.iter().flatten().all(agrees) || !all.iter().all(differ) {
        return None;
    }
    let experts_of_loop = |(found, turns): (&LoopCandidate, &Vec<Vec<Vec<usize>>>)| {
        let mut known = turns.iter().map(number);
        let own = found.turns.iter().enumerate();
        own.map(|(at, turn)| if turn.len() == length { known.next().unwrap_or(at) } else { at }).collect()
    };
    Some(group.iter().zip(&all).map(experts_of_loop).collect())
}

/// What all whole turns have in common; `None` if a turn reads what another writes, or something differs that is neither expert nor turn. `whole` has the
/// first operation, the turn and the expert of each.
fn common_body(program: &Program, length: usize, whole: &[(usize, usize, usize)]) -> Option<Body> {
    let mut body = Body::default();
    let &(first, ..) = whole.first()?;
    if whole.iter().any(|&(start, ..)| !is_closed(program, start..start + length)) {
        return None;
    }
    for op in 0..length {
        let (own, views) = (&program.ops[first + op], check::operands(&program.ops[first + op]).count());
        let alike = |&(start, ..): &(usize, usize, usize)| is_same_operation(own, &program.ops[start + op]);
        if !whole.iter().all(alike) {
            return None;
        }
        body.find_expert_numbers(program, whole, op, views);
        for slot in 0..views {
            let view = |start: usize| check::operands(&program.ops[start + op]).nth(slot);
            let writer_in_turn = |start: usize| -> Option<Option<usize>> {
                let buffer = view(start)?.buffer;
                let maker = program
                    .writer(start + op, buffer)
                    .filter(|maker| program.ops[*maker].created_buffers().any(|made| made == buffer));
                Some(maker.and_then(|maker| maker.checked_sub(start)))
            };
            // What a turn computes itself follows from what it reads.
            let inside = writer_in_turn(first)?;
            if !whole.iter().all(|&(start, ..)| writer_in_turn(start) == Some(inside)) {
                return None;
            }
            if inside.is_some() {
                continue;
            }
            let is_list = view(first).is_some_and(|view| is_list(program, first + op, view));
            let indices = indices(program, whole, is_list, view)?;
            if indices.iter().any(|index| *index != Index::Fixed) {
                body.begins.insert((op, slot), indices);
            }
            if is_list {
                body.list = body.list.or(Some((op, slot)));
            }
        }
    }
    Some(body)
}

impl Body {
    /// Finds which numbers in the names of an operation are the expert's number.
    fn find_expert_numbers(&mut self, program: &Program, whole: &[(usize, usize, usize)], op: usize, views: usize) {
        // A turn without rows may have no tap.
        let mut add = |name: Name, name_of: &dyn Fn(usize) -> Option<String>| {
            let all: Vec<(String, usize)> =
                whole.iter().filter_map(|&(start, _, expert)| Some((name_of(start + op)?, expert))).collect();
            self.names.extend(expert_numbers(&all).map(|numbers| (name, numbers)));
            let mut named = whole.iter().filter_map(|&(start, turn, _)| Some((turn, name_of(start + op)?)));
            // The first turn of another layer may have another number.
            let starts = named.next().and_then(|(turn, name)| Some((turn, split_counter(&name)?.1)));
            let counts = |(turn, name): (usize, String), (first, from): (usize, usize)| {
                split_counter(&name).is_some_and(|(_, count)| count + first == from + turn)
            };
            if starts.is_some_and(|starts| whole.len() > 1 && named.all(|here| counts(here, starts))) {
                self.counted.insert(name);
            }
        };
        for slot in 0..views {
            add(Name::Weight(op, slot), &|op| {
                let view = check::operands(&program.ops[op]).nth(slot)?;
                program.weights.get(&view.buffer).cloned()
            });
        }
        let taps = whole.iter().map(|&(start, ..)| program.taps_after[start + op].len()).max().unwrap_or(0);
        for number in 0..taps {
            add(Name::Tap(op, number), &|op| {
                let tap = *program.taps_after[op].get(number).filter(|_| program.taps_after[op].len() == taps)?;
                Some(program.taps[tap].tap.clone())
            });
        }
        add(Name::Module(op), &|op| Some(program.scopes[program.ops[op].scope?].module.clone()));
    }
}

/// Which numbers in the names are the expert's number, if the names of several experts differ in numbers only.
fn expert_numbers(names: &[(String, usize)]) -> Option<Vec<bool>> {
    let all: Vec<(Vec<&str>, Vec<usize>)> = names.iter().map(|(name, _)| split_numbers(name)).collect();
    let (texts, first) = all.first()?;
    names.iter().any(|(_, expert)| *expert != names[0].1).then_some(())?;
    let is_own = |at: usize| all.iter().zip(names).all(|((_, numbers), (_, expert))| numbers[at] == *expert);
    all.iter().all(|(own, _)| own == texts).then(|| (0..first.len()).map(is_own).collect())
}

/// Whether nothing outside a turn reads what it computes.
fn is_closed(program: &Program, turn: Range<usize>) -> bool {
    let makers = turn.clone().filter(|&op| program.ops[op].written.is_empty());
    makers.flat_map(|op| program.readers(op)).all(|reader| turn.contains(reader))
}

/// Whether a view reads the list of experts that are hit.
fn is_list(program: &Program, op: usize, view: &View) -> bool {
    program.writer(op, view.buffer).is_some_and(|maker| program.ops[maker].has_open_shape())
}

/// Whether two operations are equal except for the buffers that they access.
fn is_same_operation(a: &Operation, b: &Operation) -> bool {
    let bare = |op: &Operation| {
        let operands = op.operands.iter().map(crate::value::operand::Operand::without_views).collect::<Vec<_>>();
        let keywords = op.keywords.iter().map(|(key, x)| (key.clone(), x.without_views())).collect::<Vec<_>>();
        (operands, keywords, op.outputs.len(), op.written.clone())
    };
    bare(a) == bare(b)
}

/// What the start index of each axis of a view depends on.
fn indices<'p>(
    program: &'p Program,
    whole: &[(usize, usize, usize)],
    is_list: bool,
    view: impl Fn(usize) -> Option<&'p View>,
) -> Option<Vec<Index>> {
    let begins = |start: usize| {
        let view = view(start)?;
        Resized::unchanged(&program.buffers[view.buffer]).ok()?.begins(view)
    };
    let first = view(whole.first()?.0)?;
    if whole.iter().all(|&(start, ..)| view(start).is_some_and(|other| other.offset == first.offset)) && !is_list {
        return Some(Vec::new());
    }
    let all: Vec<(Vec<usize>, usize, usize)> =
        whole.iter().map(|&(start, turn, expert)| Some((begins(start)?, turn, expert))).collect::<Option<_>>()?;
    let rank = all.first()?.0.len();
    let index = |axis: usize| {
        let holds = |is: &dyn Fn(usize, usize, usize) -> bool| {
            all.iter().all(|(begins, turn, expert)| begins.len() == rank && is(begins[axis], *turn, *expert))
        };
        let fixed = all[0].0.get(axis).copied();
        if is_list && axis == 0 {
            return holds(&|at, turn, _| at == turn).then_some(Index::Turn);
        }
        if holds(&|at, _, _| Some(at) == fixed) {
            return Some(Index::Fixed);
        }
        let times = all.iter().find(|(.., expert)| *expert > 0).map(|(begins, _, expert)| begins[axis] / expert)?;
        holds(&|at, _, expert| at == times * expert).then_some(Index::Expert(times))
    };
    (0..rank).map(index).collect()
}

/// A tap's name without the counter of calls that a recorder appends (`act`, `act#2`, `act#3`), and that counter.
pub(crate) fn split_counter(name: &str) -> Option<(&str, usize)> {
    match name.split_once('#') {
        Some((base, count)) => Some((base, count.parse().ok().filter(|count| *count > 1)?)),
        None => Some((name, 1)),
    }
}

/// Splits a name into its numbers and the texts between them.
pub(crate) fn split_numbers(name: &str) -> (Vec<&str>, Vec<usize>) {
    let (mut texts, mut numbers) = (Vec::new(), Vec::new());
    let mut rest = name;
    while let Some(begin) = rest.find(|c: char| c.is_ascii_digit()) {
        let digits = rest[begin..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |count| begin + count);
        let Ok(number) = rest[begin..digits].parse() else { break };
        texts.push(&rest[..begin]);
        numbers.push(number);
        rest = &rest[digits..];
    }
    texts.push(rest);
    (texts, numbers)
}

impl Program {
    /// The integer taps, which hold the choices.
    pub fn choices(&self) -> impl Iterator<Item = usize> {
        (0..self.taps.len()).filter(|&tap| self.taps[tap].view.dtype.kind() == Kind::Int)
    }
}
