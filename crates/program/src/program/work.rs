//! Estimates the work of a program, and refuses more than its files justify. Work counts numbers that are read and written, and products that are summed.

use std::collections::BTreeMap;

use crate::program::check::{operands, within_work};
use crate::program::{Operation, Program};
use crate::value::error::ProgramError;
use crate::value::operand::Operand;
use crate::value::scalar::Scalar;
use crate::value::view::View;
use crate::weights::Weights;

/// The work that any program may do: a few seconds.
const BASE_LIMIT: u64 = 1 << 31;

/// Work for each pair of a weight element and a number of the inputs and constants: every token is multiplied with every weight, and a model may use a
/// weight in each of its layers.
const PER_WEIGHT_AND_NUMBER: u64 = 32;

/// Work for each byte of the recording.
const PER_BYTE: u64 = 64;

/// Gives the number of products that an operation sums.
type Terms = fn(&Operation) -> u64;

/// Operations that sum products, and the number of these. It is computed from operands, because a recorded output may be smaller than what is computed.
const PRODUCTS: &[(&str, Terms)] = &[
    ("linear", terms_linear),
    ("matmul", terms_matmul),
    ("bmm", terms_matmul),
    ("mm", terms_matmul),
    ("addmm", terms_addmm),
    ("baddbmm", terms_addmm),
    ("_grouped_mm", terms_matmul),
    ("transformers.grouped_mm_fallback", terms_matmul),
    ("linalg_solve_triangular", terms_matmul),
    ("conv1d", terms_conv),
    ("conv2d", terms_conv),
    ("avg_pool2d", terms_pool),
    ("max_pool2d", terms_pool),
    ("max_pool2d_with_indices", terms_pool),
    ("fft_fft", terms_fft),
    ("fft_ifft", terms_fft),
    ("fft_fftn", terms_fft),
    ("fft_rfft", terms_fft),
    ("fft_irfft", terms_fft),
    ("scaled_dot_product_attention", terms_attention),
    ("_scaled_dot_product_flash_attention_for_cpu", terms_attention),
    ("ggml.MUL_MAT", terms_mul_mat),
    ("ggml.MUL_MAT_ID", terms_mul_mat),
    ("ggml.SOLVE_TRI", terms_matmul),
];

impl Program {
    /// Refuses a program whose work is far more than the size of its recording and of its weights justifies: a file of a few kilobytes could keep a machine
    /// busy for days. Operations that depend on missing weights are not evaluated, up to the next tap, and do not count.
    ///
    /// # Errors
    /// When it is.
    pub fn check_work(&self, weights: &dyn Weights) -> Result<(), ProgramError> {
        let held = |name: &String| weights.view(name).map(|view| view.shape().iter().product::<usize>() as u64);
        let of_weights: BTreeMap<usize, u64> =
            self.weights.iter().filter_map(|(&buffer, name)| Some((buffer, held(name)?))).collect();
        let mut names: BTreeMap<&String, u64> = BTreeMap::new();
        names.extend(of_weights.iter().map(|(buffer, size)| (&self.weights[buffer], *size)));
        let elements = names.values().copied().fold(0, u64::saturating_add);
        let given = self.given.values().map(|tensor| tensor.len() as u64).fold(0, u64::saturating_add);
        let of_files = self.recorded.saturating_mul(PER_BYTE);
        let limit = BASE_LIMIT
            .saturating_add(elements.saturating_mul(given).saturating_mul(PER_WEIGHT_AND_NUMBER))
            .saturating_add(of_files);
        within_work(self.work(|buffer| of_weights.contains_key(&buffer)), limit)
    }

    /// The work of all operations that can be evaluated with the weights for which `has_weight` holds.
    fn work(&self, has_weight: impl Fn(usize) -> bool) -> u64 {
        let is_missing = |buffer: &usize| self.weights.contains_key(buffer) && !has_weight(*buffer);
        let mut unknown: Vec<bool> = (0..self.buffers.len()).map(|buffer| is_missing(&buffer)).collect();
        let mut all = 0u64;
        for (number, op) in self.ops.iter().enumerate() {
            let is_behind = operands(op).any(|view| unknown[view.buffer]);
            if !is_behind {
                all = all.saturating_add(work(op));
            }
            op.outputs.iter().flatten().for_each(|view| unknown[view.buffer] = is_behind);
            self.taps_after[number].iter().for_each(|&tap| unknown[self.taps[tap].view.buffer] = false);
        }
        all
    }
}

/// The work of an operation.
fn work(op: &Operation) -> u64 {
    let moved = operands(op).chain(op.outputs.iter().flatten()).map(numbers).fold(0, u64::saturating_add);
    let products = PRODUCTS.iter().find(|(known, _)| *known == op.base() || *known == op.name);
    moved.saturating_add(products.map_or(0, |(_, products)| products(op)))
}

fn numbers(view: &View) -> u64 {
    (view.elements() as u64).saturating_mul(view.dtype.units() as u64)
}

fn view(op: &Operation, at: usize) -> Option<&View> {
    op.operands.get(at).and_then(|operand| operand.views().into_iter().next())
}

/// The extent of an operand's axis, counted from the last; 1 if it does not exist.
fn extent(op: &Operation, at: usize, from_last: usize) -> u64 {
    view(op, at).and_then(|view| view.shape.iter().rev().nth(from_last).copied()).unwrap_or(1) as u64
}

fn operand_numbers(op: &Operation, at: usize) -> u64 {
    view(op, at).map_or(0, numbers)
}

fn terms_linear(op: &Operation) -> u64 {
    operand_numbers(op, 0).saturating_mul(extent(op, 1, 1))
}

fn columns(op: &Operation, first: usize) -> u64 {
    // Either may be broadcast over the other's batch.
    let by_columns = operand_numbers(op, first).saturating_mul(extent(op, first + 1, 0));
    by_columns.max(operand_numbers(op, first + 1).saturating_mul(extent(op, first, 1)))
}

fn terms_matmul(op: &Operation) -> u64 {
    columns(op, 0)
}

fn terms_addmm(op: &Operation) -> u64 {
    columns(op, 1)
}

/// In ggml the weights come first; in a mixture of experts each row is multiplied with one of them.
fn terms_mul_mat(op: &Operation) -> u64 {
    operand_numbers(op, 1).saturating_mul(extent(op, 0, 1))
}

/// Each output element of a channel sums over the whole kernel of that channel.
fn terms_conv(op: &Operation) -> u64 {
    let kernel = view(op, 1).map_or(&[][..], |kernel| &kernel.shape);
    let each = kernel.iter().skip(1).map(|&extent| extent as u64).fold(1, u64::saturating_mul);
    op.outputs.iter().flatten().map(numbers).fold(0, u64::saturating_add).saturating_mul(each)
}

/// The extents of the window are numbers among the operands.
fn terms_pool(op: &Operation) -> u64 {
    fn extents(operand: &Operand) -> u64 {
        match operand {
            Operand::Scalar(Scalar::Int(extent)) => extent.unsigned_abs().max(1),
            Operand::List(list) => list.iter().map(extents).fold(1, u64::saturating_mul),
            _ => 1,
        }
    }
    let given = op.outputs.iter().flatten().map(numbers).fold(0, u64::saturating_add);
    given.saturating_mul(op.operands.get(1).map_or(1, extents))
}

fn terms_fft(op: &Operation) -> u64 {
    operand_numbers(op, 0).saturating_mul(extent(op, 0, 0))
}

/// Each query is multiplied with each key, and each result sums over each value.
fn terms_attention(op: &Operation) -> u64 {
    operand_numbers(op, 0).saturating_mul(extent(op, 1, 1)).saturating_mul(2)
}
