//! Builds a [`Program`] from program.json, and checks every number in it.

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashSet};
use std::fs::{self, Metadata};
use std::path::Path;

use firstdiff_trace::{JSON_LIMIT, json_fits, read_regular};
use serde_json::Value;

use crate::program::check;
use crate::program::format::{Document, Header, OpRecord, StepRecord, TapRecord};
use crate::program::lower::lowered;
use crate::program::stored;
use crate::program::{Limits, Operation, Parts, Program, ProgramTap, Scope, Step};
use crate::value::dtype::DType;
use crate::value::error::{Fault, JsonPlace, ProgramError, at_place};
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::view::{View, contiguous_strides};

impl Program {
    /// Reads program.json of a dump folder, and program.safetensors beside it where the program has constants or inputs.
    ///
    /// # Errors
    /// When a file cannot be read, or its content is invalid.
    pub fn open(folder: &Path) -> Result<Program, ProgramError> {
        Program::open_within(folder, Limits::default())
    }

    /// [`Program::open`] with other limits.
    ///
    /// # Errors
    /// The same, and when the program exceeds the limits.
    pub fn open_within(folder: &Path, limits: Limits) -> Result<Program, ProgramError> {
        let file = folder.join("program.json");
        let text = read_regular(&file, JSON_LIMIT)?;
        let json = |reason: String| ProgramError::Json { file: file.clone(), reason };
        if !json_fits(&text, text.len() as u64) {
            return Err(json("holds far more values than any program".into()));
        }
        let header: Header = serde_json::from_slice(&text).map_err(|e| json(e.to_string()))?;
        if header.version != 1 {
            return Err(ProgramError::Version { found: header.version });
        }
        let document: Document = serde_json::from_slice(&text).map_err(|e| json(e.to_string()))?;
        if document.ops.iter().flat_map(|op| &op.i).map(operands_in).sum::<usize>()
            > FEW_OPERANDS + text.len() / OPERAND_BYTES
        {
            return Err(json("holds far more operands than any program".into()));
        }
        let checker = Checker::new(&document.values, limits)?;
        let mut program = checker.program(document)?;
        check::within(program.needed, limits.elements)?;
        program.recorded = bytes_in(folder);
        program.given = stored::read(folder, &program)?;
        Ok(program)
    }
}

/// The size of the files in a folder; files that cannot be read count as empty.
fn bytes_in(folder: &Path) -> u64 {
    let files = fs::read_dir(folder).into_iter().flatten().filter_map(|entry| entry.ok()?.metadata().ok());
    files.filter(Metadata::is_file).map(|file| file.len()).fold(0, u64::saturating_add)
}

/// Bytes of the file for each operand that is allowed, and how many are always allowed. An operand may take only three bytes in the file but hundreds in
/// memory; with the operation that computes it, a real one takes more than 16 in the file.
const OPERAND_BYTES: usize = 16;
const FEW_OPERANDS: usize = 1 << 14;

fn operands_in(value: &Value) -> usize {
    value.as_array().map_or(1, |list| list.iter().map(operands_in).sum())
}

/// The buffers and limits against which operands are checked.
struct Checker {
    limits: Limits,
    buffers: Vec<View>,
}

impl Checker {
    fn new(values: &[Vec<Value>], limits: Limits) -> Result<Checker, ProgramError> {
        let mut buffers = Vec::with_capacity(values.len());
        for (number, value) in values.iter().enumerate() {
            let view = canonical(number, value).map_err(at_place(JsonPlace::Value(number)))?;
            view.span(limits.elements).map_err(at_place(JsonPlace::Value(number)))?;
            buffers.push(view);
        }
        Ok(Checker { limits, buffers })
    }

    fn program(self, document: Document) -> Result<Program, ProgramError> {
        let (scopes, files) = (self.scopes(document.scopes, document.files.len())?, document.files);
        let weights = self.named_buffers("weights", &document.weights)?;
        let inputs = self.named_buffers("inputs", &document.inputs)?;
        let mut constants = Vec::new();
        for number in document.constants {
            let place = || JsonPlace::Given("constants", number.to_string());
            constants.push(self.number(number).map_err(at_place(place()))?);
        }
        let mut given = HashSet::new();
        for &buffer in weights.keys().chain(inputs.keys()).chain(&constants) {
            if !given.insert(buffer) {
                return Err(at_place(JsonPlace::Value(buffer))(Fault::GivenTwice(buffer)));
            }
        }
        let mut ops = Vec::with_capacity(document.ops.len());
        for (number, record) in document.ops.into_iter().enumerate() {
            ops.push(self.operation(number, record, scopes.len())?);
        }
        let mut steps = self.steps(document.steps, ops.len())?;
        let mut taps = self.taps(document.taps, &steps)?;
        check::order(&ops, &steps, &taps, given)?;
        let mut buffers = self.buffers;
        let ops = lowered(&mut buffers, ops, &weights, &mut steps, &mut taps);
        // The values of constants and inputs are read after everything else has been checked; until then their buffer numbers are used.
        let unread = constants.iter().chain(inputs.keys()).map(|&buffer| (buffer, stored::none()));
        let given = unread.collect();
        let parts = Parts {
            source: document.source,
            model: document.model,
            folder: document.folder,
            given,
            buffers,
            weights,
            inputs,
            ops,
            steps,
            taps,
            files,
            scopes,
        };
        Ok(parts.program())
    }

    fn named_buffers(
        &self,
        table: &'static str,
        names: &BTreeMap<String, String>,
    ) -> Result<BTreeMap<usize, String>, ProgramError> {
        let mut out = BTreeMap::new();
        for (key, name) in names {
            let place = || JsonPlace::Given(table, truncated(key));
            let number =
                key.parse().map_err(|_| unexpected("the number of a buffer", key)).map_err(at_place(place()))?;
            let buffer = self.number(number).map_err(at_place(place()))?;
            if name.is_empty() {
                return Err(at_place(place())(Fault::EmptyName));
            }
            if out.insert(buffer, name.clone()).is_some() {
                return Err(at_place(place())(Fault::GivenTwice(buffer)));
            }
        }
        Ok(out)
    }

    fn scopes(
        &self,
        records: Vec<(String, Vec<String>, Option<i64>)>,
        files: usize,
    ) -> Result<Vec<Scope>, ProgramError> {
        let mut out = Vec::with_capacity(records.len());
        for (number, (module, functions, file)) in records.into_iter().enumerate() {
            let file = file.map(|x| index("file", x, files)).transpose().map_err(at_place(JsonPlace::Scope(number)))?;
            out.push(Scope { module, functions, file });
        }
        Ok(out)
    }

    fn operation(&self, number: usize, record: OpRecord, scopes: usize) -> Result<Operation, ProgramError> {
        let name = record.o;
        let place = |part: String| JsonPlace::Op(number, truncated(&name), part);
        if name.is_empty() {
            return Err(at_place(place("name".into()))(Fault::EmptyName));
        }
        let mut operands = Vec::with_capacity(record.i.len());
        for (i, value) in record.i.iter().enumerate() {
            operands.push(self.operand(value).map_err(at_place(place(format!("operand {i}"))))?);
        }
        let mut keywords = Vec::with_capacity(record.a.len());
        for (key, value) in &record.a {
            let operand = self.operand(value).map_err(at_place(place(format!("keyword {}", truncated(key)))))?;
            keywords.push((key.clone(), operand));
        }
        // Copies of expanded views must not exceed the limit together.
        let views = operands.iter().chain(keywords.iter().map(|(_, operand)| operand)).flat_map(Operand::views);
        let needed = views.fold(0u64, |sum, view| sum.saturating_add((view.elements() * view.dtype.units()) as u64));
        if needed > self.limits.elements {
            let limit = self.limits.elements;
            return Err(at_place(place("all operands".into()))(Fault::Elements { needed, limit }));
        }
        let mut outputs = Vec::with_capacity(record.y.len());
        for (i, value) in record.y.iter().enumerate() {
            let view = self.view_or_none(value).map_err(at_place(place(format!("output {i}"))))?;
            outputs.push(view);
        }
        let mut written = Vec::new();
        for &i in &record.w {
            let i = index("operand", i, operands.len()).map_err(at_place(place("w".into())))?;
            if !matches!(operands[i], Operand::View(_)) {
                return Err(at_place(place("w".into()))(unexpected("a view", &format!("operand {i}"))));
            }
            written.push(i);
        }
        if !written.is_empty() && written.len() != outputs.len() {
            let fault = Fault::Outputs { written: written.len(), outputs: outputs.len() };
            return Err(at_place(place("w".into()))(fault));
        }
        let scalar = record.x.as_ref().map(scalars).transpose().map_err(at_place(place("x".into())))?;
        if scalar.is_some() && outputs.iter().any(Option::is_some) {
            return Err(at_place(place("x".into()))(Fault::ScalarAndOutputs));
        }
        let scope = record.s.map(|s| index("scope", s, scopes)).transpose().map_err(at_place(place("s".into())))?;
        let line = record.l.map(size).transpose().map_err(at_place(place("l".into())))?;
        let node = name.strip_prefix("ggml.").map(str::to_owned);
        Ok(Operation { name, operands, keywords, outputs, written, scalar, scope, line, node })
    }

    fn steps(&self, records: Vec<StepRecord>, count: usize) -> Result<Vec<Step>, ProgramError> {
        let (mut out, mut from) = (Vec::with_capacity(records.len()), 0);
        for (number, record) in records.into_iter().enumerate() {
            let at = |fault| at_place(JsonPlace::Step(number))(fault);
            let start = size(record.ops.0).map_err(at)?;
            let end = size(record.ops.1).map_err(at)?;
            if start < from || end < start || end > count {
                return Err(at(Fault::Range { start, end, from, count }));
            }
            let output = match &record.output {
                Some(value) => self.view_or_none(value).map_err(at)?,
                None => None,
            };
            out.push(Step { ops: start..end, tokens: size(record.tokens).map_err(at)?, output });
            from = end;
        }
        Ok(out)
    }

    fn taps(&self, records: Vec<TapRecord>, steps: &[Step]) -> Result<Vec<ProgramTap>, ProgramError> {
        let (mut out, mut seen) = (Vec::with_capacity(records.len()), HashSet::new());
        for (number, record) in records.into_iter().enumerate() {
            let at = |fault| at_place(JsonPlace::Tap(number))(fault);
            if record.tap.is_empty() {
                return Err(at(Fault::EmptyName));
            }
            let step = index("step", record.step, steps.len()).map_err(at)?;
            let op = size(record.op).map_err(at)?;
            let range = steps[step].ops.clone();
            if !range.contains(&op) {
                return Err(at(Fault::OutsideStep { op, step, start: range.start, end: range.end }));
            }
            if !seen.insert((record.tap.clone(), step)) {
                return Err(at(Fault::Duplicate { tap: truncated(&record.tap), step }));
            }
            let Some(view) = self.view_or_none(&record.v).map_err(at)? else {
                return Err(at(unexpected("a view", "null")));
            };
            out.push(ProgramTap { tap: record.tap, step, op, view });
        }
        // What an operation gives stands before the parts of it, which are read from it.
        let of_one = |a: &ProgramTap, b: &ProgramTap| a.op == b.op;
        out.chunk_by_mut(of_one).for_each(|taps| taps.sort_by_key(|tap| Reverse(tap.view.elements())));
        Ok(out)
    }

    fn number(&self, number: i64) -> Result<usize, Fault> {
        let count = self.buffers.len();
        let buffer = usize::try_from(number).ok().filter(|&buffer| buffer < count);
        buffer.ok_or(Fault::Buffer { number, count })
    }

    fn view_or_none(&self, value: &Value) -> Result<Option<View>, Fault> {
        match self.operand(value)? {
            Operand::View(view) => Ok(Some(view)),
            Operand::None => Ok(None),
            _ => Err(unexpected("a view or null", &value.to_string())),
        }
    }

    /// The JSON parser limits how deep lists are nested.
    fn operand(&self, value: &Value) -> Result<Operand, Fault> {
        match value {
            Value::Null => Ok(Operand::None),
            Value::Number(_) => Ok(Operand::View(self.buffers[self.number(int(value)?)?].clone())),
            Value::Array(list) => Ok(Operand::List(list.iter().map(|x| self.operand(x)).collect::<Result<_, _>>()?)),
            Value::Object(object) => match object.iter().next() {
                Some((key, view)) if key == "v" => self.view(view).map(Operand::View),
                Some((key, x)) if key == "c" => {
                    Ok(x.as_null().map_or_else(|| scalar(x).map(Operand::Scalar), |()| Ok(Operand::None))?)
                }
                Some((key, Value::String(name))) if key == "t" => dtype(name).map(Operand::DType),
                _ => Err(unexpected("an operand", &value.to_string())),
            },
            _ => Err(unexpected("an operand", &value.to_string())),
        }
    }

    /// \[buffer, shape, strides, offset, dtype\], the last two optional.
    fn view(&self, value: &Value) -> Result<View, Fault> {
        let parts = value.as_array().map(Vec::as_slice).unwrap_or_default();
        let (buffer, shape, strides) = match parts {
            [buffer, shape, strides, ..] if parts.len() <= 5 => (buffer, shape, strides),
            _ => return Err(unexpected("a view", &value.to_string())),
        };
        let buffer = self.number(int(buffer)?)?;
        let offset = parts.get(3).filter(|x| !x.is_null()).map(|x| size(int(x)?)).transpose()?.unwrap_or(0);
        let from = self.buffers[buffer].dtype;
        let to = match parts.get(4) {
            None | Some(Value::Null) => from,
            Some(Value::String(name)) => dtype(name)?,
            Some(other) => return Err(unexpected("a dtype", &other.to_string())),
        };
        if !from.can_be_viewed_as(to) {
            return Err(Fault::Reinterpreted { from, to });
        }
        let view = View { buffer, dtype: to, shape: sizes(shape)?, strides: sizes(strides)?, offset };
        checked(view, self.limits)
    }
}

fn checked(view: View, limits: Limits) -> Result<View, Fault> {
    if view.shape.len() != view.strides.len() {
        return Err(Fault::Strides { axes: view.shape.len(), strides: view.strides.len() });
    }
    view.span(limits.elements)?;
    Ok(view)
}

/// \[dtype, shape, strides, offset\], the last two optional.
fn canonical(buffer: usize, parts: &[Value]) -> Result<View, Fault> {
    let (name, shape) = match parts {
        [Value::String(name), shape, ..] if parts.len() <= 4 => (name, sizes(shape)?),
        _ => return Err(unexpected("[dtype, shape, strides, offset]", &Value::from(parts).to_string())),
    };
    let dtype = dtype(name)?;
    let strides = match parts.get(2).filter(|x| !x.is_null()) {
        Some(strides) => sizes(strides)?,
        None => contiguous_strides(&shape),
    };
    let offset = parts.get(3).filter(|x| !x.is_null()).map(|x| size(int(x)?)).transpose()?.unwrap_or(0);
    if shape.len() != strides.len() {
        return Err(Fault::Strides { axes: shape.len(), strides: strides.len() });
    }
    Ok(View { buffer, dtype, shape, strides, offset })
}

fn dtype(name: &str) -> Result<DType, Fault> {
    DType::from_name(name).ok_or_else(|| Fault::DType(truncated(name)))
}

/// A number, boolean or text; non-finite floats are texts.
fn scalar(value: &Value) -> Result<Scalar, Fault> {
    match value {
        Value::Bool(x) => Ok(Scalar::Bool(*x)),
        Value::Number(x) => match (x.as_i64(), x.as_f64()) {
            (Some(x), _) => Ok(Scalar::Int(x)),
            (None, Some(x)) => Ok(Scalar::Float(x)),
            (None, None) => Err(unexpected("a number", &x.to_string())),
        },
        Value::String(x) => Ok(match x.as_str() {
            "inf" => Scalar::Float(f64::INFINITY),
            "-inf" => Scalar::Float(f64::NEG_INFINITY),
            "nan" => Scalar::Float(f64::NAN),
            _ => Scalar::Text(x.clone()),
        }),
        _ => Err(unexpected("a scalar", &value.to_string())),
    }
}

/// A scalar, or all scalars of a nested list.
fn scalars(value: &Value) -> Result<Vec<Scalar>, Fault> {
    match value {
        Value::Array(list) => {
            let mut out = Vec::new();
            for x in list {
                out.extend(scalars(x)?);
            }
            Ok(out)
        }
        _ => Ok(vec![scalar(value)?]),
    }
}

fn sizes(value: &Value) -> Result<Vec<usize>, Fault> {
    let list = value.as_array().ok_or_else(|| unexpected("a list of whole numbers", &value.to_string()))?;
    list.iter().map(|x| size(int(x)?)).collect()
}

fn int(value: &Value) -> Result<i64, Fault> {
    value.as_i64().ok_or_else(|| unexpected("a whole number", &value.to_string()))
}

fn size(x: i64) -> Result<usize, Fault> {
    if x < 0 { Err(Fault::Negative(x)) } else { usize::try_from(x).map_err(|_| Fault::Overflow) }
}

fn index(what: &'static str, x: i64, count: usize) -> Result<usize, Fault> {
    let index = size(x)?;
    if index < count { Ok(index) } else { Err(Fault::Index { what, index, count }) }
}

fn unexpected(expected: &'static str, found: &str) -> Fault {
    Fault::Not { expected, found: truncated(found) }
}

/// The start of a text from the file, for a message.
fn truncated(text: &str) -> String {
    const LONGEST: usize = 60;
    let plain: String = text.chars().take(LONGEST).map(|c| if c.is_control() { ' ' } else { c }).collect();
    if text.chars().count() > LONGEST { plain + "..." } else { plain }
}
