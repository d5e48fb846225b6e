//! Where is a function of one number least?

/// Evaluations after which a search for the least value ends in any case.
const MOST_STEPS: usize = 60;

/// Where a function of one valley is least, to `width`: parabolas through the three best points, golden sections where they lead nowhere (Brent,
/// Algorithms for Minimization without Derivatives, 1973, chapter 5).
pub(crate) fn least(f: impl Fn(f64) -> f64, low: f64, high: f64, width: f64) -> f64 {
    let mut search = Least::new(low, high, width);
    while let Some(at) = search.next() {
        search.tell(f(at));
    }
    search.best().0
}

/// The same search, one evaluation at a time, so that several are made side by side: what [`Least::next`] asks for is told with [`Least::tell`].
pub(crate) struct Least {
    low: f64,
    high: f64,
    tolerance: f64,
    /// The best point, the second, the one before, each with its value; the first is not there before it was told.
    points: Option<[(f64, f64); 3]>,
    /// How far the last two steps went.
    step: f64,
    before: f64,
    asked: f64,
    count: usize,
}

const GOLDEN: f64 = 0.381_966_011_250_105;

impl Least {
    pub(crate) fn new(low: f64, high: f64, width: f64) -> Least {
        let asked = low + GOLDEN * (high - low);
        Least { low, high, tolerance: 0.25 * width, points: None, step: 0.0, before: 0.0, asked, count: 0 }
    }

    /// Where the function is to be evaluated next; `None` where the search has ended.
    pub(crate) fn next(&mut self) -> Option<f64> {
        let Some([(x, fx), (w, fw), (v, fv)]) = self.points else { return Some(self.asked) };
        let middle = 0.5 * (self.low + self.high);
        let is_narrow = (x - middle).abs() <= 2.0 * self.tolerance - 0.5 * (self.high - self.low);
        if is_narrow || self.count >= MOST_STEPS {
            return None;
        }
        self.count += 1;
        let (r, q) = ((x - w) * (fx - fv), (x - v) * (fx - fw));
        let (over, under) = ((x - v) * q - (x - w) * r, 2.0 * (q - r));
        let parabola = -over / under;
        let inside = x + parabola > self.low && x + parabola < self.high;
        if self.before.abs() > self.tolerance && inside && parabola.abs() < 0.5 * self.before.abs() {
            (self.before, self.step) = (self.step, parabola);
            let near_an_end = (x + self.step - self.low).min(self.high - x - self.step) < 2.0 * self.tolerance;
            self.step = if near_an_end { self.tolerance.copysign(middle - x) } else { self.step };
        } else {
            self.before = if x < middle { self.high - x } else { self.low - x };
            self.step = GOLDEN * self.before;
        }
        self.asked = x + if self.step.abs() >= self.tolerance { self.step } else { self.tolerance.copysign(self.step) };
        Some(self.asked)
    }

    /// The function's value where it was asked for.
    pub(crate) fn tell(&mut self, value: f64) {
        let (u, fu) = (self.asked, value);
        let Some([(x, fx), (w, fw), (v, fv)]) = self.points else {
            self.points = Some([(u, fu); 3]);
            return;
        };
        if fu <= fx {
            (self.low, self.high) = if u < x { (self.low, x) } else { (x, self.high) };
            self.points = Some([(u, fu), (x, fx), (w, fw)]);
            return;
        }
        (self.low, self.high) = if u < x { (u, self.high) } else { (self.low, u) };
        if fu <= fw || w == x {
            self.points = Some([(x, fx), (u, fu), (w, fw)]);
        } else if fu <= fv || v == x || v == w {
            self.points = Some([(x, fx), (w, fw), (u, fu)]);
        }
    }

    /// The best point so far and its value.
    pub(crate) fn best(&self) -> (f64, f64) {
        self.points.map_or((self.asked, f64::NAN), |[best, ..]| best)
    }
}
