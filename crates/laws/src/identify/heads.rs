//! Heads that meet otherwise: which head of the one operand, and which key head of the other, each head is made of.

use crate::case::Axis;
use crate::describe::source::{Source, describe as describe_source};
use crate::describe::table::{Table, describe as describe_table};
use crate::number::Measured;

/// What each head is made of, where that is not what is due.
pub(super) struct Heads {
    pub(super) words: String,
    pub(super) bits: f64,
    /// The key heads in words.
    pub(super) said: String,
    pub(super) of: Vec<usize>,
    pub(super) key_heads: Vec<usize>,
    pub(super) by: Vec<f64>,
}

/// What a head is beside a better one: of two that are as near, the right one.
const BESIDE: f64 = 1e-9;

/// For each head the pair that gives it. `left` says of a head, another one and a key head what they leave and by which factor, `near` what they may leave, `due`
/// which key head is right. `said` has the words before the key heads, before the other heads and before a factor.
pub(super) fn paired(
    due: &[usize],
    key_heads: usize,
    is_wrong: &dyn Fn(usize) -> bool,
    near: f64,
    said: [&str; 3],
    left: &dyn Fn(usize, usize, usize) -> (f64, Measured),
) -> Option<Heads> {
    let heads = due.len();
    let best = |head: usize| -> Option<(usize, usize, Measured)> {
        if !is_wrong(head) {
            return Some((head, due[head], Measured::UNKNOWN));
        }
        let pairs = (0..heads).flat_map(|other| (0..key_heads).map(move |key| (other, key)));
        let all = pairs.map(|(other, key)| {
            let (left, by) = left(head, other, key);
            let beside = f64::from(u8::from(other != head) + u8::from(key != due[head]));
            (left + BESIDE * beside, (other, key, by))
        });
        let (left, found) = all.filter(|(left, _)| !left.is_nan()).min_by(|a, b| a.0.total_cmp(&b.0))?;
        (left <= near).then_some(found)
    };
    let all: Vec<(usize, usize, Measured)> = (0..heads).map(best).collect::<Option<_>>()?;
    if all.iter().zip(due).enumerate().all(|(head, ((other, key, _), due))| *other == head && key == due) {
        return None;
    }
    let by: Vec<Measured> = all.iter().map(|(.., by)| *by).collect();
    let Table { words: times, bits: price, values, .. } = describe_table(&by, Axis::Head, Some(1.0), None)?;
    let others: Vec<Option<usize>> = all.iter().map(|(other, ..)| Some(*other)).collect();
    let of: Source = describe_source(&others, heads, Axis::Head);
    let keys: Vec<usize> = all.iter().map(|(_, key, _)| *key).collect();
    let (key_words, bits) = key_heads_in_words(&keys, heads, key_heads);
    let mut words = format!("{} {key_words}", said[0]);
    if !of.is_itself {
        words = format!("{words}; {} {}", said[1], of.words);
    }
    if times != "1" {
        words = format!("{words}; {} {times}", said[2]);
    }
    let bits = of.bits + bits + if times == "1" { 0.0 } else { price };
    Some(Heads { words, bits, said: key_words, of: of.from, key_heads: keys, by: values })
}

/// Which key head answers, in words.
fn key_heads_in_words(answers: &[usize], heads: usize, keys: usize) -> (String, f64) {
    let group = heads.div_ceil(keys);
    let is = |f: &dyn Fn(usize) -> usize| answers.iter().enumerate().all(|(h, a)| *a == f(h));
    if is(&|h| h / group) {
        return (format!("h div {group}"), 0.0);
    }
    if is(&|h| h % keys) {
        return (format!("h mod {keys} (right: h div {group})"), 5.0);
    }
    if is(&|h| keys - 1 - h / group) {
        return (format!("{} - h div {group} (right: h div {group})", keys - 1), 6.0);
    }
    if let Some(by) = (1..keys).find(|by| is(&|h| (h / group + by) % keys)) {
        return (format!("(h div {group} + {by}) mod {keys} (right: h div {group})"), 8.0);
    }
    let source = describe_source(&answers.iter().map(|a| Some(*a)).collect::<Vec<_>>(), keys.max(heads), Axis::Head);
    let words = source.words.trim_start_matches("head ").replace("i ", "h ");
    (format!("{words} (right: h div {group})"), source.bits)
}
