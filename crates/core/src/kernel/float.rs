//! Defines the float types of the operations, f32 and f64, and their kernels.

use firstdiff_simd::Level;
use half::{bf16, f16};
use ndarray::ArrayViewMut2;

use crate::kernel;
use crate::kernel::packed::Packed;
use crate::kernel::panel::Strips;

/// f32 or f64.
pub trait Float:
    num_traits::Float + num_traits::NumAssign + ndarray::ScalarOperand + Send + Sync + std::fmt::Debug + 'static
{
    /// The nearest value to `x`.
    fn from_f64(x: f64) -> Self;

    /// The same value in f64.
    fn as_f64(self) -> f64;

    /// The Gauss error function, 2/√π ∫₀ˣ e^(-t²) dt.
    fn erf(self) -> Self;

    /// The rows packed by lane, for the panel kernel; `None` where it does not apply.
    #[doc(hidden)]
    fn strips(level: Level, rows: &[&[Self]]) -> Option<Strips>
    where
        Self: Sized;

    /// out\[i,j\] = dot(x\[i\], w\[j\]), `out` \[x.len(), w.len()\], by the fastest instructions of the processor.
    #[doc(hidden)]
    fn products(x: &Packed<'_, Self>, w: &[&[Self]], out: ArrayViewMut2<'_, Self>)
    where
        Self: Sized;

    /// The same with rows of w in f16, as if they were widened first.
    #[doc(hidden)]
    fn products_f16(x: &Packed<'_, Self>, w: &[&[f16]], out: ArrayViewMut2<'_, Self>)
    where
        Self: Sized;

    /// The same with rows of w in bf16.
    #[doc(hidden)]
    fn products_bf16(x: &Packed<'_, Self>, w: &[&[bf16]], out: ArrayViewMut2<'_, Self>)
    where
        Self: Sized;
}

impl Float for f32 {
    fn from_f64(x: f64) -> f32 {
        x as f32
    }

    fn as_f64(self) -> f64 {
        f64::from(self)
    }

    fn erf(self) -> f32 {
        libm::erff(self)
    }

    fn strips(level: Level, rows: &[&[f32]]) -> Option<Strips> {
        Strips::new(level, rows)
    }

    fn products(x: &Packed<'_, f32>, w: &[&[f32]], out: ArrayViewMut2<'_, f32>) {
        kernel::products(x, w, out);
    }

    fn products_f16(x: &Packed<'_, f32>, w: &[&[f16]], out: ArrayViewMut2<'_, f32>) {
        kernel::products(x, w, out);
    }

    fn products_bf16(x: &Packed<'_, f32>, w: &[&[bf16]], out: ArrayViewMut2<'_, f32>) {
        kernel::products(x, w, out);
    }
}

impl Float for f64 {
    fn from_f64(x: f64) -> f64 {
        x
    }

    fn as_f64(self) -> f64 {
        self
    }

    fn erf(self) -> f64 {
        libm::erf(self)
    }

    fn strips(_: Level, _: &[&[f64]]) -> Option<Strips> {
        None
    }

    fn products(x: &Packed<'_, f64>, w: &[&[f64]], out: ArrayViewMut2<'_, f64>) {
        kernel::products(x, w, out);
    }

    fn products_f16(x: &Packed<'_, f64>, w: &[&[f16]], out: ArrayViewMut2<'_, f64>) {
        kernel::products(x, w, out);
    }

    fn products_bf16(x: &Packed<'_, f64>, w: &[&[bf16]], out: ArrayViewMut2<'_, f64>) {
        kernel::products(x, w, out);
    }
}
