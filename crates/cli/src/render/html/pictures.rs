//! Draws a measured law: its angles, its curve, its mask or its gain, beside those of the model.

use serde_json::Value;

use firstdiff_compare::number;

use crate::render::html::plot::{Plot, Series};

/// The most queries and keys of a mask that are drawn.
const MASK: usize = 48;

/// A picture of a law.
pub(crate) enum Picture {
    /// Lines.
    Chart(Plot),
    /// Which query sees which key.
    Mask(Mask),
}

/// Which key each query of a head sees.
pub(crate) struct Mask {
    pub(crate) rows: Vec<Vec<bool>>,
    pub(crate) summary: String,
}

impl Picture {
    /// The picture of a law's data; `None` where there is no picture for it.
    pub(crate) fn from_data(data: &Value) -> Option<Picture> {
        let numbers =
            |key: &str| -> Option<Vec<f64>> { data.get(key)?.as_array()?.iter().map(Value::as_f64).collect() };
        match data.get("kind")?.as_str()? {
            "angles" => ratio_chart(
                "Angles over the model's, by pair of channels",
                "pair",
                numbers("right")?,
                numbers("measured")?,
            ),
            "gain" => {
                ratio_chart("Gains over the model's, by channel", "channel", numbers("right")?, numbers("measured")?)
            }
            "curve" => {
                let points: Vec<(f64, f64)> = numbers("x")?.into_iter().zip(numbers("y")?).collect();
                let (first, last) = (points.first()?, points.last()?);
                let summary = format!(
                    "from {} at {} to {} at {}",
                    number(first.1),
                    number(first.0),
                    number(last.1),
                    number(last.0)
                );
                let points = points.iter().map(|(x, y)| (*x, *y, format!("f({}) = {}", number(*x), number(*y))));
                let series = vec![Series { name: "measured", class: "error", points: points.collect() }];
                let text: &dyn Fn(f64) -> String = &|v| format!("{v:.1}");
                Plot::new("The function that is applied".into(), summary, "input", series, [text, text])
                    .map(Picture::Chart)
            }
            "mask" => Mask::from_data(data).map(Picture::Mask),
            _ => None,
        }
    }
}

/// Measured numbers divided by the model's: a ratio of 1 is right. Widely spread ratios are drawn by their logarithm.
fn ratio_chart(title: &str, along: &'static str, right: Vec<f64>, measured: Vec<f64>) -> Option<Picture> {
    let of_both = || right.iter().zip(&measured);
    let ratios: Vec<f64> = of_both().map(|(right, measured)| measured / right).collect();
    let finite = || ratios.iter().copied().filter(|ratio| ratio.is_finite());
    let (least, most) = (finite().fold(f64::INFINITY, f64::min), finite().fold(f64::NEG_INFINITY, f64::max));
    let by_logarithm = least > 0.0 && most > FAR * least;
    let height = |ratio: f64| if by_logarithm { ratio.log10() } else { ratio };
    let text = |(right, measured): (&f64, &f64)| format!("{}, the model's {}", number(*measured), number(*right));
    let measured = of_both().zip(&ratios).enumerate();
    let measured =
        measured.map(|(at, (both, ratio))| (at as f64, height(*ratio), format!("{along} {at}: {}", text(both))));
    let due = [0, ratios.len().saturating_sub(1)].map(|at| (at as f64, height(1.0), "right: 1".to_owned()));
    let unequal = finite().filter(|ratio| (ratio - 1.0).abs() > 1e-3).count();
    let summary = format!(
        "{unequal} of {} differ by more than a thousandth, from {} to {} times",
        ratios.len(),
        number(least),
        number(most)
    );
    let series = vec![
        Series { name: "right", class: "allowed", points: due.to_vec() },
        Series { name: "measured", class: "error", points: measured.collect() },
    ];
    let y_text = |y: f64| number(if by_logarithm { 10f64.powf(y) } else { y });
    Plot::new(title.into(), summary, along, series, [&|x| format!("{x:.0}"), &y_text]).map(Picture::Chart)
}

/// Ratios as far apart as this are drawn by their logarithm.
const FAR: f64 = 20.0;

impl Mask {
    /// How many keys its widest row has.
    pub(crate) fn columns(&self) -> usize {
        self.rows.iter().map(Vec::len).max().unwrap_or(0)
    }

    fn from_data(data: &Value) -> Option<Mask> {
        let rows = |head: &Value| -> Option<Vec<String>> {
            head.as_array()?.iter().map(|row| row.as_str().map(str::to_owned)).collect()
        };
        let heads: Vec<Vec<String>> = data.get("sees")?.as_array()?.iter().map(rows).collect::<Option<_>>()?;
        let causal = |row: usize, key: usize, keys: usize, queries: usize| key + queries <= row + keys;
        // The head that is furthest from a causal mask.
        let odd = |head: &[String]| {
            let queries = head.len();
            let of_row = |(at, row): (usize, &String)| {
                let keys = row.len();
                row.bytes().enumerate().filter(|(key, sees)| (*sees == b'1') != causal(at, *key, keys, queries)).count()
            };
            head.iter().enumerate().map(of_row).sum::<usize>()
        };
        let head = (0..heads.len()).rev().max_by_key(|&head| odd(&heads[head]))?;
        let rows_of_head = &heads[head];
        let summary = format!("Head {head}: which key (column) each query (row) sees");
        let rows = rows_of_head.iter().take(MASK).map(|row| row.bytes().take(MASK).map(|sees| sees == b'1').collect());
        Some(Mask { rows: rows.collect(), summary })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_mask_is_of_the_head_that_is_least_causal() {
        let data = json!({"kind": "mask", "sees": [["100", "110", "111"], ["100", "110", "011"]]});
        let Some(Picture::Mask(mask)) = Picture::from_data(&data) else { panic!("no mask") };
        assert_eq!((mask.summary.starts_with("Head 1:"), &mask.rows[2]), (true, &vec![false, true, true]));
    }

    #[test]
    fn what_is_not_known_is_not_drawn() {
        for data in [
            json!(null),
            json!({"kind": "other"}),
            json!({"kind": "gain", "right": [1, "x"]}),
            json!({"kind": "curve"}),
        ] {
            assert!(Picture::from_data(&data).is_none(), "{data}");
        }
    }
}
