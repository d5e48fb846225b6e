//! Solves small systems of linear equations: symmetric ones by Cholesky's decomposition, others by elimination.

use ndarray::{Array2, ArrayView2};

/// The decomposition of a symmetric matrix \[n, n\] into a lower triangle and its transpose.
pub(crate) struct Cholesky {
    lower: Array2<f64>,
}

impl Cholesky {
    /// `None` where the matrix is not positive definite.
    pub(crate) fn decompose(matrix: &Array2<f64>) -> Option<Cholesky> {
        let n = matrix.nrows();
        let mut lower = Array2::<f64>::zeros((n, n));
        for i in 0..n {
            for j in 0..=i {
                let rest = matrix[[i, j]] - dot(lower.row(i).as_slice()?, lower.row(j).as_slice()?, j);
                lower[[i, j]] = match i == j {
                    true => Some(rest.sqrt()).filter(|root| *root > 0.0 && root.is_finite())?,
                    false => rest / lower[[j, j]],
                };
            }
        }
        Some(Cholesky { lower })
    }

    /// What the matrix takes to `right`.
    pub(crate) fn solve(&self, right: &[f64]) -> Vec<f64> {
        let n = self.lower.nrows();
        let mut x = right.to_vec();
        for i in 0..n {
            let row = self.lower.row(i);
            x[i] = (x[i] - row.iter().zip(&x[..i]).map(|(l, x)| l * x).sum::<f64>()) / row[i];
        }
        for i in (0..n).rev() {
            x[i] /= self.lower[[i, i]];
            let (done, by) = (self.lower.row(i), x[i]);
            x[..i].iter_mut().zip(done).for_each(|(x, l)| *x -= l * by);
        }
        x
    }

    /// The inverse of the matrix.
    pub(crate) fn inverse(&self) -> Array2<f64> {
        let n = self.lower.nrows();
        let unit = |at: usize| (0..n).map(|i| f64::from(u8::from(i == at))).collect::<Vec<f64>>();
        let columns: Vec<f64> = (0..n).flat_map(|at| self.solve(&unit(at))).collect();
        // The inverse of a symmetric matrix is symmetric.
        Array2::from_shape_fn((n, n), |(i, j)| columns[i * n + j])
    }
}

/// The inverse of a square matrix, by elimination with the largest pivot of each column; `None` where it has none.
pub(crate) fn inverse(matrix: ArrayView2<'_, f64>) -> Option<Array2<f64>> {
    let n = matrix.nrows();
    let (mut left, mut right) = (matrix.to_owned(), Array2::eye(n));
    for at in 0..n {
        let pivot = (at..n).max_by(|&a, &b| left[[a, at]].abs().total_cmp(&left[[b, at]].abs()))?;
        let by = left[[pivot, at]];
        if by == 0.0 || !by.is_finite() {
            return None;
        }
        for side in [&mut left, &mut right] {
            (0..n).for_each(|column| side.swap([at, column], [pivot, column]));
            side.row_mut(at).mapv_inplace(|x| x / by);
        }
        for row in (0..n).filter(|&row| row != at) {
            let by = left[[row, at]];
            for side in [&mut left, &mut right] {
                let from = side.row(at).to_owned();
                side.row_mut(row).scaled_add(-by, &from);
            }
        }
    }
    Some(right)
}

fn dot(a: &[f64], b: &[f64], count: usize) -> f64 {
    a[..count].iter().zip(&b[..count]).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn inverses_take_a_matrix_to_one() {
        let n = 7;
        let any = Array2::from_shape_fn((n, n), |(i, j)| ((i * 31 + j * 17) % 13) as f64 - 5.5);
        let symmetric = any.t().dot(&any) + Array2::<f64>::eye(n);
        let is_one = |product: Array2<f64>| (product - Array2::<f64>::eye(n)).iter().all(|x| x.abs() < 1e-9);
        let odd = &symmetric + &Array2::from_shape_fn((n, n), |(i, j)| if i < j { 3.0 } else { 0.0 });
        assert!(is_one(inverse(odd.view()).unwrap().dot(&odd)));
        let factored = Cholesky::decompose(&symmetric).unwrap();
        assert!(is_one(factored.inverse().dot(&symmetric)));
        let solved = factored.solve(&[1.0, -2.0, 3.0, 0.5, 0.0, 4.0, -1.0]);
        let back = symmetric.dot(&ndarray::Array1::from(solved));
        assert!((back[3] - 0.5).abs() < 1e-9 && (back[4]).abs() < 1e-9);
        // The first row is twice the second.
        let singular = Array2::from_shape_fn((2, 2), |(i, j)| (2 - i) as f64 * (j + 1) as f64);
        assert!(inverse(singular.view()).is_none());
        assert!(Cholesky::decompose(&Array2::from_diag_elem(2, -1.0)).is_none());
    }
}
