//! Describes which indices of an axis are meant.

use crate::case::Axis;
use crate::describe::{choice, nth};

/// A set along an axis, in words.
#[derive(Clone, Debug)]
pub(crate) struct Set {
    /// `None` where it is all.
    pub(crate) words: Option<String>,
    pub(crate) bits: f64,
    /// Every index, those that could not be told included.
    pub(crate) has: Vec<bool>,
}

impl Set {
    /// Every one of so many.
    pub(crate) fn all(count: usize) -> Set {
        Set { words: None, bits: 0.0, has: vec![true; count] }
    }

    pub(crate) fn is_all(&self) -> bool {
        self.words.is_none()
    }
}

/// The cheapest predicate that agrees wherever it can be told which is meant. `None` means it cannot be told.
pub(crate) fn describe(meant: &[Option<bool>], axis: Axis, tokens: Option<&[u32]>) -> Set {
    let n = meant.len();
    let name = axis.name();
    let plural = if name == "query" { "queries".to_owned() } else { format!("{name}s") };
    let mut best: Option<Set> = None;
    let mut offer = |words: Option<String>, bits: f64, is: &dyn Fn(usize) -> bool| {
        if best.as_ref().is_some_and(|best| best.bits <= bits) {
            return;
        }
        if meant.iter().enumerate().all(|(i, meant)| meant.is_none_or(|meant| meant == is(i))) {
            best = Some(Set { words, bits, has: (0..n).map(is).collect() });
        }
    };
    offer(None, 0.0, &|_| true);
    let inside: Vec<usize> = (0..n).filter(|&i| meant[i] == Some(true)).collect();
    let outside: Vec<usize> = (0..n).filter(|&i| meant[i] == Some(false)).collect();
    let (Some(&first), Some(&last)) = (inside.first(), inside.last()) else {
        offer(Some(format!("no {name}")), 1.0, &|_| false);
        return best.unwrap_or_else(|| Set::all(n));
    };
    let range =
        |from: usize, to: usize| if to > from + 1 { format!("{from} to {to}") } else { format!("{from}, {to}") };
    let half = n.div_ceil(2);
    if n > 3 {
        offer(Some(format!("even {plural}")), 3.0, &|i| i % 2 == 0);
        offer(Some(format!("odd {plural}")), 3.0, &|i| i % 2 == 1);
        let words = format!("the first half of the {plural} ({})", range(0, half - 1));
        offer(Some(words), 3.0, &|i| 2 * i < n);
        let words = format!("the second half of the {plural} ({})", range(half, n - 1));
        offer(Some(words), 3.0, &|i| 2 * i >= n);
    }
    let first_words = match axis {
        Axis::Distance => "distance 0, the query's own key".to_owned(),
        _ => format!("the first {name}"),
    };
    offer(Some(first_words), 3.0, &|i| i == 0);
    offer(Some(format!("the last {name} ({})", n - 1)), 3.0, &|i| i + 1 == n);
    offer(Some(format!("all {plural} but the first")), 3.0, &|i| i > 0);
    offer(Some(format!("all {plural} but the last")), 3.0, &|i| i + 1 < n);
    if first == last {
        offer(Some(format!("{name} {first}")), 3.0 + choice(n), &|i| i == first);
    }
    if let [one] = outside[..] {
        offer(Some(format!("all {plural} but {one}")), 4.0 + choice(n), &|i| i != one);
    }
    offer(Some(format!("{plural} from {first} on")), 4.0 + choice(n), &|i| i >= first);
    offer(Some(format!("{plural} up to {last}")), 4.0 + choice(n), &|i| i <= last);
    offer(Some(format!("{plural} {first} to {last}")), 4.0 + 2.0 * choice(n), &|i| (first..=last).contains(&i));
    if let (Some(&first), Some(&last)) = (outside.first(), outside.last()) {
        offer(Some(format!("{plural} but {first} to {last}")), 5.0 + 2.0 * choice(n), &|i| {
            !(first..=last).contains(&i)
        });
    }
    for m in 3..=(n / 2).min(512) {
        let rest = first % m;
        offer(Some(format!("every {} {name} from {rest} on", nth(m))), 5.0 + 2.0 * choice(m), &|i| i % m == rest);
        if let Some(&first) = outside.first() {
            let rest = first % m;
            offer(Some(format!("all {plural} but every {} from {rest} on", nth(m))), 6.0 + 2.0 * choice(m), &|i| {
                i % m != rest
            });
        }
        if n.is_multiple_of(m) && m <= 256 {
            let rests: Vec<usize> = inside.iter().map(|i| i % m).collect();
            if let (Some(&low), Some(&high)) = (rests.iter().min(), rests.iter().max())
                && (low > 0 || high + 1 < m)
            {
                let words = format!("{low} to {high} of every {m} {plural}");
                offer(Some(words), 6.0 + 3.0 * choice(m), &|i| (low..=high).contains(&(i % m)));
            }
        }
    }
    for block in 2..=n / 2 {
        for odd in [0, 1] {
            let words = format!("every other block of {block} {plural}, from {}", odd * block);
            offer(Some(words), 6.0 + choice(block), &|i| (i / block) % 2 == odd);
        }
    }
    // One position is called by its number: one token shows nothing of others.
    let are_several = inside.len().min(outside.len()) > 1;
    if let Some(tokens) = tokens.filter(|tokens| are_several && tokens.len() == n) {
        of_tokens(meant, tokens, &mut offer);
    }
    let listed = inside.iter().take(20).map(usize::to_string).collect::<Vec<_>>().join(", ");
    let more = if inside.len() > 20 { ", .." } else { "" };
    let bits = 12.0 + inside.len().min(outside.len()) as f64 * choice(n);
    offer(Some(format!("{plural} {listed}{more}")), bits, &|i| meant[i] == Some(true));
    best.unwrap_or_else(|| Set::all(n))
}

/// Takes up a predicate with its words and price, where it is the cheapest that agrees.
type Offer<'o> = &'o mut dyn FnMut(Option<String>, f64, &dyn Fn(usize) -> bool);

/// Predicates of the token that stands at a position.
fn of_tokens(meant: &[Option<bool>], tokens: &[u32], offer: Offer<'_>) {
    offer(Some("tokens with an even id".into()), 6.0, &|i| tokens[i].is_multiple_of(2));
    offer(Some("tokens with an odd id".into()), 6.0, &|i| tokens[i] % 2 == 1);
    offer(Some("tokens that were there before".into()), 6.0, &|i| tokens[..i].contains(&tokens[i]));
    offer(Some("tokens that were not there before".into()), 6.0, &|i| !tokens[..i].contains(&tokens[i]));
    offer(Some("the token of the first position".into()), 6.0, &|i| tokens[i] == tokens[0]);
    let of = |which: bool| (0..tokens.len()).filter(move |&i| meant[i] == Some(which)).map(|i| tokens[i]);
    let range = |which: bool| of(which).min().zip(of(which).max());
    if let (Some((low, high)), Some((least, most))) = (range(true), range(false)) {
        if low == high {
            offer(Some(format!("token id {low}")), 16.0, &|i| tokens[i] == low);
        }
        if low > most {
            offer(Some(format!("tokens with an id from {low} on, but not up to {most}")), 16.0, &|i| tokens[i] > most);
        }
        if high < least {
            offer(Some(format!("tokens with an id up to {high}, but not from {least} on")), 16.0, &|i| {
                tokens[i] < least
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(meant: &[Option<bool>]) -> Option<String> {
        describe(meant, Axis::Token, None).words
    }

    #[test]
    fn the_cheapest_that_agrees_is_said() {
        let of = |is: fn(usize) -> bool| (0..16).map(|i| Some(is(i))).collect::<Vec<_>>();
        assert_eq!(words(&of(|_| true)), None);
        assert_eq!(words(&of(|i| i % 2 == 1)).as_deref(), Some("odd positions"));
        assert_eq!(words(&of(|i| i >= 5)).as_deref(), Some("positions from 5 on"));
        assert_eq!(words(&of(|i| i % 4 == 3)).as_deref(), Some("every 4th position from 3 on"));
        assert_eq!(words(&of(|i| i == 7)).as_deref(), Some("position 7"));
        assert_eq!(words(&of(|i| i % 8 < 3)).as_deref(), Some("0 to 2 of every 8 positions"));
    }

    #[test]
    fn one_position_is_called_by_its_number() {
        let meant: Vec<Option<bool>> = (0..8).map(|i| Some(i == 5)).collect();
        let tokens = [1, 17, 42, 99, 3, 17, 64, 5];
        assert_eq!(describe(&meant, Axis::Token, Some(&tokens)).words.as_deref(), Some("position 5"));
    }

    #[test]
    fn what_cannot_be_told_does_not_speak_against_a_predicate() {
        let mut meant: Vec<Option<bool>> = (0..16).map(|i| Some(i > 0)).collect();
        meant[0] = None;
        assert_eq!(words(&meant), None);
    }
}
