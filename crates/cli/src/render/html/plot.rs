//! Lays out a chart: lines and points in a frame with a few ticks, and the same in words.

use std::fmt::Write;

/// Width and height of the frame, and the room for ticks to the left and below.
const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 200.0;
const LEFT: f64 = 56.0;
const TOP: f64 = 10.0;
/// The most ticks along an axis.
const TICKS: usize = 8;

/// The values of a chart's template.
pub(crate) struct Plot {
    pub(crate) title: String,
    /// What the chart shows, in words.
    pub(crate) summary: String,
    pub(crate) along: &'static str,
    pub(crate) curves: Vec<Curve>,
    pub(crate) ticks: Vec<Tick>,
    pub(crate) marks: Vec<Tick>,
}

/// A line of a chart.
pub(crate) struct Curve {
    pub(crate) name: &'static str,
    /// Its style: a class of the style sheet.
    pub(crate) class: &'static str,
    /// The path of an SVG.
    pub(crate) path: String,
    pub(crate) points: Vec<Point>,
}

/// A point with a label.
pub(crate) struct Point {
    pub(crate) x: String,
    pub(crate) y: String,
    pub(crate) text: String,
}

/// A mark beside an axis.
pub(crate) struct Tick {
    pub(crate) at: String,
    pub(crate) text: String,
}

/// A line's points before they are placed.
pub(crate) struct Series {
    pub(crate) name: &'static str,
    pub(crate) class: &'static str,
    /// x, y and the label of the point.
    pub(crate) points: Vec<(f64, f64, String)>,
}

impl Plot {
    /// A chart; `None` where nothing in it is finite. Infinite values are at the upper edge, NaNs are left out. `y_text` and `x_text` format a tick's number.
    pub(crate) fn new(
        title: String,
        summary: String,
        along: &'static str,
        series: Vec<Series>,
        [x_text, y_text]: [&dyn Fn(f64) -> String; 2],
    ) -> Option<Plot> {
        let all = || series.iter().flat_map(|s| &s.points).filter(|(x, y, _)| x.is_finite() && y.is_finite());
        let range = |of: &dyn Fn(&(f64, f64, String)) -> f64| {
            let (low, high) = all().map(of).fold((f64::INFINITY, f64::NEG_INFINITY), |(l, h), v| (l.min(v), h.max(v)));
            if low < high { (low, high) } else { (low - 0.5, high + 0.5) }
        };
        all().next()?;
        let (x, y) = (range(&|p| p.0), range(&|p| p.1));
        let place = |value: f64, (low, high): (f64, f64)| (value - low) / (high - low);
        let (across, up) = (
            |v: f64| format!("{:.1}", LEFT + place(v, x) * (WIDTH - LEFT - TOP)),
            |v: f64| format!("{:.1}", TOP + (1.0 - place(v, y)) * HEIGHT),
        );
        let curve = |Series { name, class, points }: Series| {
            let mut path = String::new();
            let mut placed = Vec::new();
            let is_drawn = |(x, y, _): &(f64, f64, String)| x.is_finite() && (y.is_finite() || *y == f64::INFINITY);
            for (x, height, text) in points.into_iter().filter(is_drawn) {
                let (x, y) = (across(x), up(height.min(y.1)));
                let _ = write!(path, "{}{x} {y}", if path.is_empty() { "M" } else { "L" });
                placed.push(Point { x, y, text });
            }
            Curve { name, class, path, points: placed }
        };
        Some(Plot {
            title,
            summary,
            along,
            ticks: ticks(y).map(|v| Tick { at: up(v), text: y_text(v) }).collect(),
            marks: ticks(x).map(|v| Tick { at: across(v), text: x_text(v) }).collect(),
            curves: series.into_iter().map(curve).collect(),
        })
    }
}

/// Round numbers within a range, a few of them.
fn ticks((low, high): (f64, f64)) -> impl Iterator<Item = f64> {
    let rough = (high - low) / TICKS as f64;
    let power = 10f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|n| n * power).into_iter().find(|step| *step >= rough).unwrap_or(10.0 * power);
    let first = (low / step).ceil();
    (0..=TICKS).map(move |n| (first + n as f64) * step).take_while(move |v| *v <= high + 1e-9 * step)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot(points: &[(f64, f64)]) -> Option<Plot> {
        let points = points.iter().map(|(x, y)| (*x, *y, String::new())).collect();
        let series = vec![Series { name: "a", class: "a", points }];
        Plot::new(String::new(), String::new(), "x", series, [&|x| format!("{x}"), &|y| format!("{y}")])
    }

    #[test]
    fn what_is_infinite_stands_at_the_edge_and_nothing_is_no_chart() {
        assert!(plot(&[(0.0, f64::INFINITY), (f64::NAN, 1.0)]).is_none());
        let plot = plot(&[(0.0, 1.0), (1.0, f64::INFINITY), (1.5, f64::NAN), (2.0, 3.0)]).unwrap();
        assert_eq!(plot.curves[0].points.len(), 3);
        assert_eq!(plot.curves[0].points[1].y, plot.curves[0].points[2].y, "no lower than what is finite");
        assert!(!plot.curves[0].path.contains("inf") && !plot.curves[0].path.contains("NaN"));
    }

    #[test]
    fn one_point_has_a_frame_around_it() {
        let plot = plot(&[(3.0, 7.0)]).unwrap();
        assert!(plot.curves[0].points[0].x.parse::<f64>().unwrap().is_finite());
        assert!(!plot.ticks.is_empty() && !plot.marks.is_empty());
    }

    #[test]
    fn ticks_are_round_and_within() {
        assert_eq!(ticks((0.0, 10.0)).collect::<Vec<_>>(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert!(ticks((-15.3, -2.1)).all(|t| (-15.3..=-2.1).contains(&t)));
    }
}
