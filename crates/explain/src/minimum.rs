//! Searches where a function of one number is least.

/// Evaluations after which a search for the least value ends in any case.
const MOST_STEPS: usize = 60;

const GOLDEN: f64 = 0.381_966_011_250_105;

/// Where a function of one valley is least, to `width`: parabolas through the three best points, golden sections where they lead nowhere (Brent,
/// Algorithms for Minimization without Derivatives, 1973, chapter 5).
pub(crate) fn least(f: impl Fn(f64) -> f64, mut low: f64, mut high: f64, width: f64) -> f64 {
    let tolerance = 0.25 * width;
    let first = low + GOLDEN * (high - low);
    // The best point, the second, the one before, each with its value.
    let mut points = [(first, f(first)); 3];
    // How far the last two steps went.
    let (mut step, mut before) = (0.0f64, 0.0f64);
    for _ in 0..MOST_STEPS {
        let [(x, fx), (w, fw), (v, fv)] = points;
        let middle = 0.5 * (low + high);
        if (x - middle).abs() <= 2.0 * tolerance - 0.5 * (high - low) {
            break;
        }
        let (r, q) = ((x - w) * (fx - fv), (x - v) * (fx - fw));
        let (over, under) = ((x - v) * q - (x - w) * r, 2.0 * (q - r));
        let parabola = -over / under;
        let inside = x + parabola > low && x + parabola < high;
        if before.abs() > tolerance && inside && parabola.abs() < 0.5 * before.abs() {
            (before, step) = (step, parabola);
            let near_an_end = (x + step - low).min(high - x - step) < 2.0 * tolerance;
            step = if near_an_end { tolerance.copysign(middle - x) } else { step };
        } else {
            before = if x < middle { high - x } else { low - x };
            step = GOLDEN * before;
        }
        let u = x + if step.abs() >= tolerance { step } else { tolerance.copysign(step) };
        let fu = f(u);
        if fu <= fx {
            (low, high) = if u < x { (low, x) } else { (x, high) };
            points = [(u, fu), (x, fx), (w, fw)];
            continue;
        }
        (low, high) = if u < x { (u, high) } else { (low, u) };
        if fu <= fw || w == x {
            points = [(x, fx), (u, fu), (w, fw)];
        } else if fu <= fv || v == x || v == w {
            points = [(x, fx), (w, fw), (u, fu)];
        }
    }
    points[0].0
}
