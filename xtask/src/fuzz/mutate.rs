//! Mutates inputs: changes numbers, names, lengths, order and ends in place, a few at a time.

use serde_json::{Value, json};

use super::input::{FileContent, Fragment, Input, Member};
use super::random::Random;

/// Numbers that readers often get wrong.
const NUMBERS: [&str; 26] = [
    "0",
    "1",
    "-1",
    "2",
    "3",
    "7",
    "64",
    "255",
    "65536",
    "2147483647",
    "-2147483648",
    "4294967295",
    "4294967296",
    "9007199254740993",
    "4611686018427387905",
    "9223372036854775807",
    "18446744073709551615",
    "99999999999999999999",
    "1e308",
    "-1e999",
    "1e-400",
    "0.5",
    "NaN",
    "-Infinity",
    "null",
    "true",
];
const INTEGERS: [u64; 16] =
    [0, 1, 2, 3, 8, 31, 32, 33, 255, 1 << 16, 1 << 20, 1 << 31, u32::MAX as u64, 1 << 40, 1 << 63, u64::MAX];
/// Names and symbols that have a meaning in some format.
const WORDS: [&str; 44] = [
    "h0",
    "layers.0.q",
    "layers.0.k_rope",
    "layers.1.h",
    "logits",
    "final_norm",
    "layers.4294967295.h",
    "h0.step1",
    ".step4294967295",
    "data",
    "shape",
    "dtype",
    "float32",
    "bfloat16",
    "F64",
    "BF16",
    "tokens",
    "rows",
    "last",
    "half",
    "adjacent",
    "T D[tp]",
    "{N}",
    "{N+1}{S}",
    "[",
    "]",
    "{",
    "}",
    "(",
    ")",
    ",",
    ":",
    "...",
    "\"",
    "\\",
    "\n",
    "=",
    " ",
    "\u{e9}",
    "\0",
    "../",
    "/",
    "tensor([",
    "*",
];

/// Changes `input` in a few places; `others` are inputs from which pieces are taken.
pub(super) fn mutate(input: &mut Input, others: &[Input], random: &mut Random) {
    for _ in 0..1 + random.below(4) {
        // A JSON document describes everything else, so it is changed most often.
        let document = input.parts.iter().position(|part| is_document(&part.body)).filter(|_| !random.one_in(8));
        let part = document.unwrap_or_else(|| random.below(input.parts.len()));
        if random.one_in(60) {
            change_parts(input, random);
            continue;
        }
        let piece = match &mut input.parts[part].body {
            FileContent::Zip(members) if members.is_empty() => continue,
            FileContent::Zip(members) if random.one_in(5) => {
                change_members(members, random);
                continue;
            }
            FileContent::Zip(members) => {
                let member = random.below(members.len());
                &mut members[member].pieces
            }
            FileContent::Plain(pieces) => pieces,
        };
        change_pieces(piece, others, random);
    }
}

fn is_document(body: &FileContent) -> bool {
    matches!(body, FileContent::Plain(pieces) if matches!(pieces[..], [Fragment::Json(_)]))
}

fn change_parts(input: &mut Input, random: &mut Random) {
    let (one, other) = (random.below(input.parts.len()), random.below(input.parts.len()));
    match random.below(3) {
        0 if input.parts.len() > 1 => drop(input.parts.remove(one)),
        1 => {
            let body = input.parts[one].body.clone();
            input.parts[other].body = body;
        }
        _ if input.parts.len() > 1 => {
            let name = input.parts[one].name.clone();
            input.parts[one].name = input.parts[other].name.clone();
            input.parts[other].name = name;
        }
        _ => {}
    }
}

fn change_members(members: &mut Vec<Member>, random: &mut Random) {
    let (one, other) = (random.below(members.len()), random.below(members.len()));
    match random.below(6) {
        0 => drop(members.remove(one)),
        1 => {
            let twice = members[one].clone();
            members.insert(other, twice);
        }
        2 => {
            let twice = members[one].clone();
            members.push(Member { name: format!("{}.npy", WORDS[random.below(WORDS.len())]), ..twice });
        }
        3 => members.swap(one, other),
        4 => members[one].packed ^= true,
        _ => {
            let pieces = members[one].pieces.clone();
            members[other].pieces = pieces;
        }
    }
}

fn change_pieces(pieces: &mut Vec<Fragment>, others: &[Input], random: &mut Random) {
    if pieces.is_empty() {
        return;
    }
    let at = random.below(pieces.len());
    match random.below(40) {
        0 => drop(pieces.remove(at)),
        1 => {
            let twice = pieces[at].clone();
            pieces.insert(random.below(pieces.len() + 1), twice);
        }
        2 => {
            let other = random.below(pieces.len());
            pieces.swap(at, other);
        }
        3 => {
            // A length that does not match the text after it.
            if let Fragment::Counted(width, text) = &pieces[at] {
                let wrong = random.pick(&INTEGERS).to_le_bytes()[..*width].to_vec();
                pieces[at] = Fragment::Bytes([wrong, text.clone().into_bytes()].concat());
            }
        }
        4 => {
            let other = random.pick(others);
            let body = &other.parts[random.below(other.parts.len())].body;
            if let FileContent::Plain(foreign) = body {
                pieces[at] = random.pick(foreign).clone();
            }
        }
        _ => match &mut pieces[at] {
            Fragment::Bytes(bytes) => change_bytes(bytes, random),
            Fragment::Text(text) | Fragment::Counted(_, text) => change_text(text, random),
            Fragment::Json(document) if random.one_in(20) => {
                let mut text = document.to_string();
                change_text(&mut text, random);
                pieces[at] = Fragment::Text(text);
            }
            Fragment::Json(document) => change_document(document, random),
        },
    }
}

/// Replaces one value in a document, mostly by one of the same kind.
fn change_document(document: &mut Value, random: &mut Random) {
    let count = values_in(document);
    let at = random.below(count);
    let Some(kind) = nth(document, &mut at.clone()).map(|value| std::mem::discriminant(value)) else { return };
    let others: Vec<Value> = (0..8).filter_map(|_| nth(document, &mut random.below(count)).cloned()).collect();
    let alike = others.iter().find(|other| std::mem::discriminant(*other) == kind);
    let donor = alike.filter(|_| !random.one_in(16)).or(others.first()).cloned().unwrap_or_default();
    let Some(place) = nth(document, &mut at.clone()) else { return };
    match (place, random.below(6)) {
        (Value::Array(list), 0) if !list.is_empty() => drop(list.remove(random.below(list.len()))),
        (Value::Array(list), 1) if !list.is_empty() => {
            let twice = list[random.below(list.len())].clone();
            list.insert(random.below(list.len() + 1), twice);
        }
        (Value::Array(list), 2) if !list.is_empty() => {
            let (one, other) = (random.below(list.len()), random.below(list.len()));
            list.swap(one, other);
        }
        (place @ Value::Number(_), 0..=2) => {
            let by = *random.pick(&[-1, 1, 2, 3, 8]);
            *place = json!(place.as_i64().unwrap_or_default().wrapping_add(by));
        }
        (place @ Value::Number(_), 3) => {
            *place = serde_json::from_str(NUMBERS[random.below(NUMBERS.len())]).unwrap_or_default();
        }
        (place, _) => *place = donor,
    }
}

fn values_in(value: &Value) -> usize {
    1 + match value {
        Value::Array(list) => list.iter().map(values_in).sum(),
        Value::Object(map) => map.values().map(values_in).sum(),
        _ => 0,
    }
}

/// The value with this number in a document.
fn nth<'v>(value: &'v mut Value, number: &mut usize) -> Option<&'v mut Value> {
    if *number == 0 {
        return Some(value);
    }
    *number -= 1;
    match value {
        Value::Array(list) => list.iter_mut().find_map(|value| nth(value, number)),
        Value::Object(map) => map.values_mut().find_map(|value| nth(value, number)),
        _ => None,
    }
}

/// A range of at most `most` within `length`.
fn range(length: usize, most: usize, random: &mut Random) -> std::ops::Range<usize> {
    let start = random.below(length + 1);
    start..(start + random.below(most + 1)).min(length)
}

pub(super) fn change_bytes(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        bytes.push(random.next() as u8);
        return;
    }
    let at = random.below(bytes.len());
    match random.below(9) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = *random.pick(&[0, 1, 0x7f, 0x80, 0xff, b'\n', b'[', b'"']),
        2 => bytes[at] = random.next() as u8,
        3 => {
            let number = random.pick(&INTEGERS).to_le_bytes();
            let width = *random.pick(&[2usize, 4, 8]);
            let end = (at + width).min(bytes.len());
            bytes[at..end].copy_from_slice(&number[..end - at]);
        }
        4 => {
            // A little more or less.
            let end = (at + 8).min(bytes.len());
            let by = *random.pick(&[1i8, -1, 2, -2, 32]);
            if end - at >= 1 {
                bytes[at] = bytes[at].wrapping_add_signed(by);
            }
        }
        5 => bytes.truncate(at),
        6 => drop(bytes.drain(range(bytes.len(), 16, random))),
        7 => {
            let slice = bytes[range(bytes.len(), 64, random)].to_vec();
            bytes.splice(at..at, slice);
        }
        _ => {
            let slice = bytes[range(bytes.len(), 16, random)].to_vec();
            let end = (at + slice.len()).min(bytes.len());
            bytes[at..end].copy_from_slice(&slice[..end - at]);
        }
    }
}

fn change_text(text: &mut String, random: &mut Random) {
    let tokens = tokens(text);
    if tokens.is_empty() || random.one_in(12) {
        let mut bytes = std::mem::take(text).into_bytes();
        change_bytes(&mut bytes, random);
        *text = String::from_utf8_lossy(&bytes).into_owned();
        return;
    }
    let one = tokens[random.below(tokens.len())].clone();
    let other = tokens[random.below(tokens.len())].clone();
    match random.below(9) {
        0 | 1 => {
            text.replace_range(number_in(text, &tokens, random).unwrap_or(one), NUMBERS[random.below(NUMBERS.len())])
        }
        2 => text.replace_range(one, WORDS[random.below(WORDS.len())]),
        3 => text.replace_range(one, ""),
        4 => {
            let word = text[other].to_owned();
            text.replace_range(one, &word);
        }
        5 => {
            let (start, end) = (one.start.min(other.start), one.end.max(other.end));
            let slice = text[start..end].to_owned();
            text.insert_str(one.start, &slice);
        }
        6 => text.truncate(one.start),
        7 => {
            let (start, end) = (one.start.min(other.start), one.end.max(other.end));
            if end - start < 200 {
                text.replace_range(start..end, "");
            }
        }
        _ => {
            let word = random.pick(&["[", "{\"a\":", "(", "9", "\"x\",", "1,", "\n"]).repeat(1 << random.below(9));
            text.insert_str(one.start, &word);
        }
    }
}

/// Picks a number in the text.
fn number_in(text: &str, tokens: &[std::ops::Range<usize>], random: &mut Random) -> Option<std::ops::Range<usize>> {
    let numbers: Vec<_> =
        tokens.iter().filter(|t| text[(*t).clone()].starts_with(|c: char| c.is_ascii_digit())).collect();
    (!numbers.is_empty()).then(|| (*random.pick(&numbers)).clone())
}

/// Words, numbers and symbols; in a long text those of a part.
fn tokens(text: &str) -> Vec<std::ops::Range<usize>> {
    let mut tokens: Vec<std::ops::Range<usize>> = Vec::new();
    let mut inside = false;
    for (at, c) in text.char_indices() {
        let of_word = c.is_alphanumeric() || matches!(c, '_' | '.' | '-' | '+');
        match tokens.last_mut().filter(|_| of_word && inside) {
            Some(last) => last.end = at + c.len_utf8(),
            None => tokens.push(at..at + c.len_utf8()),
        }
        inside = of_word;
    }
    tokens
}

/// Repeats one piece many times: a small weakness in a small file can be a large one in a large file.
pub(super) fn inflate(input: &mut Input, random: &mut Random) {
    const LARGE: usize = 2 << 20;
    let part = random.below(input.parts.len());
    let pieces = match &mut input.parts[part].body {
        FileContent::Plain(pieces) => pieces,
        FileContent::Zip(members) => {
            let member = random.below(members.len());
            &mut members[member].pieces
        }
    };
    if pieces.is_empty() {
        return;
    }
    let at = random.below(pieces.len());
    match &mut pieces[at] {
        Fragment::Text(text) | Fragment::Counted(_, text) => {
            let tokens = tokens(text);
            if tokens.is_empty() {
                return;
            }
            let (one, other) = (tokens[random.below(tokens.len())].clone(), tokens[random.below(tokens.len())].clone());
            let slice = text[one.start.min(other.start)..one.end.max(other.end)].to_owned();
            text.insert_str(one.start, &slice.repeat(LARGE / slice.len()));
        }
        Fragment::Bytes(bytes) if !bytes.is_empty() => {
            let whole = range(bytes.len(), 64, random);
            let slice = if whole.is_empty() { bytes.clone() } else { bytes[whole.clone()].to_vec() };
            bytes.splice(whole.start..whole.start, slice.repeat(LARGE / slice.len()));
        }
        Fragment::Json(document) => {
            let count = values_in(document);
            let slice = nth(document, &mut random.below(count)).cloned().unwrap_or_default();
            if let Some(Value::Array(list)) = nth(document, &mut random.below(count)) {
                let size = slice.to_string().len();
                list.extend(std::iter::repeat_n(slice, LARGE / size));
            }
        }
        Fragment::Bytes(_) => {}
    }
}
