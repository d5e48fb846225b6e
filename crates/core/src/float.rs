//! In which floats can an operation be carried out? f32 and f64.

/// f32 or f64.
pub trait Float:
    num_traits::Float + num_traits::NumAssign + ndarray::ScalarOperand + Send + Sync + std::fmt::Debug + 'static
{
    /// The nearest value to `x`.
    fn of(x: f64) -> Self;

    /// The Gauss error function, 2/√π ∫₀ˣ e^(-t²) dt.
    fn erf(self) -> Self;
}

impl Float for f32 {
    fn of(x: f64) -> f32 {
        x as f32
    }

    fn erf(self) -> f32 {
        libm::erff(self)
    }
}

impl Float for f64 {
    fn of(x: f64) -> f64 {
        x
    }

    fn erf(self) -> f64 {
        libm::erf(self)
    }
}
