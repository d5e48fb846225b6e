//! Checks properties of the operations on random inputs: same bits for one row or many, for any layout and thread count; softmax sums; RoPE.

use approx::assert_relative_eq;
use firstdiff_core::{self as core, Float, Mask, RopePairing, RopeScaling};
use ndarray::{Array2, Array3, Axis, s};
use proptest::prelude::*;

fn matrix(rows: usize, columns: usize) -> impl Strategy<Value = Array2<f64>> {
    proptest::collection::vec(-8.0..8.0, rows * columns)
        .prop_map(move |values| Array2::from_shape_vec((rows, columns), values).unwrap())
}

/// x \[T,n\] and w \[N,n\] of any sizes, also those smaller than a kernel's block.
fn product() -> impl Strategy<Value = (Array2<f64>, Array2<f64>)> {
    (1..16usize, 1..40usize, 1..70usize).prop_flat_map(|(t, n, k)| (matrix(t, k), matrix(n, k)))
}

fn row_alone<F: Float>(x: &Array2<f64>, w: &Array2<f64>) {
    let (x, w) = (x.mapv(F::from_f64), w.mapv(F::from_f64));
    let all = core::linear(x.view(), w.view(), None).unwrap();
    for (t, expected) in all.rows().into_iter().enumerate() {
        let one = core::linear(x.slice(s![t..t + 1, ..]), w.view(), None).unwrap();
        assert_eq!(one.row(0), expected, "row {t}");
    }
}

fn in_pool<T: Send>(threads: usize, run: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap().install(run)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_row_alone_has_the_bits_of_the_row_in_a_batch((x, w) in product()) {
        row_alone::<f32>(&x, &w);
        row_alone::<f64>(&x, &w);
    }

    #[test]
    fn linear_is_the_sum_of_products((x, w) in product()) {
        let y = core::linear(x.view(), w.view(), None).unwrap();
        y.iter().zip(&x.dot(&w.t())).for_each(|(y, sum)| assert_relative_eq!(y, sum, max_relative = 1e-12, epsilon = 1e-11));
    }

    #[test]
    fn layout_in_memory_changes_no_bit((x, w) in product()) {
        let expected = core::linear(x.view(), w.view(), None).unwrap();
        let (columns_first, backwards) = (x.t().as_standard_layout().into_owned(), w.slice(s![..;-1, ..;-1]).to_owned());
        let actual = core::linear(columns_first.t(), backwards.slice(s![..;-1, ..;-1]), None).unwrap();
        prop_assert_eq!(actual, expected);
    }

    #[test]
    fn rows_of_softmax_sum_to_one(x in matrix(9, 37), size in 0.0..300.0) {
        let probs = core::softmax(x.mapv(|x| x * size).view().into_dyn());
        prop_assert!(probs.iter().all(|p| (0.0..=1.0).contains(p)));
        for row in probs.rows() {
            assert_relative_eq!(row.sum(), 1.0, max_relative = 1e-14);
        }
    }

    #[test]
    fn softmax_does_not_see_a_constant(x in matrix(3, 21), constant in -50.0..50.0) {
        let (one, other) = (core::softmax(x.view().into_dyn()), core::softmax(x.mapv(|x| x + constant).view().into_dyn()));
        one.iter().zip(&other).for_each(|(one, other)| assert_relative_eq!(one, other, max_relative = 1e-12));
    }

    #[test]
    fn rope_keeps_the_length_of_each_pair(x in matrix(9, 42), start in 0..100_000u32) {
        let x = x.into_shape_with_order((9, 3, 14)).unwrap();
        let positions: Vec<u32> = (start..start + 9).collect();
        let (angles, factor) = core::rope_inv_freq(12, 1e4, &RopeScaling::None);
        for (pairing, pair) in [(RopePairing::Half, [1, 6]), (RopePairing::Adjacent, [2, 1])] {
            let y = core::rope(x.view(), &positions, &angles, factor, pairing).unwrap();
            for (before, after) in x.lanes(Axis(2)).into_iter().zip(y.lanes(Axis(2))) {
                for i in 0..6 {
                    let (first, second) = (i * pair[0], i * pair[0] + pair[1]);
                    let length = |head: ndarray::ArrayView1<'_, f64>| head[first].hypot(head[second]);
                    assert_relative_eq!(length(before), length(after), max_relative = 1e-14, epsilon = 1e-300);
                }
                prop_assert_eq!(before.slice(s![12..]), after.slice(s![12..]), "what is not rotated stays");
            }
        }
    }

    #[test]
    fn rope_is_relative(x in matrix(2, 14), position in 0..500u32, shift in 0..500u32) {
        let x = x.into_shape_with_order((2, 1, 14)).unwrap();
        let (angles, factor) = core::rope_inv_freq(14, 1e4, &RopeScaling::None);
        let product = |positions: [u32; 2]| {
            let y = core::rope(x.view(), &positions, &angles, factor, RopePairing::Half).unwrap();
            core::dot(y.slice(s![0, 0, ..]).as_slice().unwrap(), y.slice(s![1, 0, ..]).as_slice().unwrap())
        };
        let (here, there) = (product([0, position]), product([shift, shift + position]));
        assert_relative_eq!(here, there, max_relative = 1e-10, epsilon = 1e-9);
    }

    #[test]
    fn grouped_heads_are_repeated_heads(q in matrix(9, 24), k in matrix(13, 8), v in matrix(13, 8)) {
        let q = q.into_shape_with_order((9, 6, 4)).unwrap();
        let [k, v] = [k, v].map(|x| x.into_shape_with_order((13, 2, 4)).unwrap());
        let repeat = |x: &Array3<f64>| Array3::from_shape_fn((13, 6, 4), |(s, h, i)| x[[s, h / 3, i]]);
        let products = core::qk(q.view(), k.view()).unwrap();
        prop_assert_eq!(&products, &core::qk(q.view(), repeat(&k).view()).unwrap());
        let context = core::context(products.view(), v.view()).unwrap();
        prop_assert_eq!(context, core::context(products.view(), repeat(&v).view()).unwrap());
    }

    /// A decode step computes for a token what the prefill computed.
    #[test]
    fn keys_that_are_hidden_change_no_bit(x in matrix(41, 41), v in matrix(41, 4), seen in 1..41usize) {
        let (qk, v) = (x.insert_axis(Axis(0)), v.insert_axis(Axis(1)));
        let causal = Mask { causal: true, ..Mask::default() };
        let of = |rows: std::ops::Range<usize>| {
            let scores = core::scores(qk.slice(s![.., rows.clone(), ..rows.end]), 0.3, None, causal).unwrap();
            let probs = core::softmax(scores.view().into_dyn()).into_dimensionality().unwrap();
            core::context(probs.view(), v.slice(s![..rows.end, .., ..])).unwrap()
        };
        let (prefill, decoded) = (of(0..41), of(seen - 1..seen));
        prop_assert_eq!(prefill.row(seen - 1), decoded.row(0));
    }
}

#[test]
fn threads_change_no_bit() {
    // Large enough that the work is split between threads.
    let noise = |i: usize, j: usize| ((i * 7919 + j * 104_729) % 2003) as f32 / 1001.0 - 1.0;
    let (x, w) = (
        Array2::from_shape_fn((13, 517), |(i, j)| noise(i, j)),
        Array2::from_shape_fn((301, 517), |(i, j)| noise(j, i)),
    );
    let run = || core::linear(x.view(), w.view(), None).unwrap();
    let (one, two) = (in_pool(1, run), in_pool(2, run));
    assert_eq!(one, two);
    let (q, k) = (
        Array3::from_shape_fn((29, 6, 70), |(t, h, i)| noise(t, h * 70 + i)),
        Array3::from_shape_fn((83, 2, 70), |(t, h, i)| noise(h * 70 + i, t)),
    );
    let run = || {
        let products = core::qk(q.view(), k.view()).unwrap();
        (core::context(products.view(), k.view()).unwrap(), products)
    };
    assert_eq!(in_pool(1, run), in_pool(2, run));
}

#[test]
fn nothing_times_nothing_is_no_panic() {
    for (t, n, k) in [(0, 3, 4), (2, 0, 4), (2, 3, 0)] {
        let y = core::linear(Array2::<f32>::ones((t, k)).view(), Array2::ones((n, k)).view(), None).unwrap();
        assert_eq!(y, Array2::zeros((t, n)));
        let y = core::rms_norm(Array2::<f32>::ones((t, k)).view(), ndarray::Array1::ones(k).view(), 1e-5).unwrap();
        assert_eq!(y.dim(), (t, k));
        let heads = Array3::<f64>::ones((t, 6, k));
        let products = core::qk(heads.view(), Array3::ones((n, 2, k)).view()).unwrap();
        assert_eq!(products, Array3::from_elem((6, t, n), k as f64));
        assert_eq!(core::context(products.view(), Array3::ones((n, 2, k)).view()).unwrap().dim(), (t, 6 * k));
        assert_eq!(core::softmax(products.view().into_dyn()).shape(), products.shape());
    }
}
