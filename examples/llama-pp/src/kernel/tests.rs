use super::*;

fn weights<W: Weight>(count: usize) -> Vec<W> {
    (0..count).map(|i| W::narrow(((i * 7919) % 97) as f32 / 64.0 - 0.75)).collect()
}

fn vectors(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 104_729) % 89) as f32 / 32.0 - 1.4).collect()
}

fn check<W: Weight>(isa: Isa) {
    for (rows, cols, batch) in [(1, 1, 1), (4, 16, 4), (5, 33, 1), (9, 40, 6), (3, 576, 3), (8, 8, 9)] {
        let (w, x) = (weights::<W>(rows * cols), vectors(batch * cols));
        let mut out = vec![f32::NAN; rows * batch];
        isa.products(&w, cols, &x, batch, &mut out);
        for row in 0..rows {
            for vector in 0..batch {
                let exact: f64 =
                    (0..cols).map(|c| f64::from(w[row * cols + c].wide()) * f64::from(x[vector * cols + c])).sum();
                let got = f64::from(out[row * batch + vector]);
                assert!((got - exact).abs() < 1e-4 * cols as f64, "{isa:?} {rows}x{cols}: {got} {exact}");
            }
        }
    }
}

#[test]
fn products_are_right_for_every_type_and_processor() {
    for isa in Isa::all() {
        check::<f32>(isa);
        check::<bf16>(isa);
        check::<f16>(isa);
    }
}

#[test]
fn a_sum_does_not_depend_on_its_neighbours() {
    let (rows, cols, batch) = (7, 83, 7);
    let (w, x) = (weights::<bf16>(rows * cols), vectors(batch * cols));
    for isa in Isa::all() {
        let mut all = vec![0f32; rows * batch];
        isa.products(&w, cols, &x, batch, &mut all);
        for row in 0..rows {
            for vector in 0..batch {
                let mut one = [0f32];
                isa.products(&w[row * cols..][..cols], cols, &x[vector * cols..][..cols], 1, &mut one);
                assert_eq!(one[0].to_bits(), all[row * batch + vector].to_bits(), "{isa:?} {row} {vector}");
            }
        }
    }
}

#[test]
fn scaled_vectors_add_up() {
    for isa in Isa::all() {
        let mut sum = vec![1f32; 37];
        isa.add_scaled(0.5, &vectors(37), &mut sum);
        assert!(sum.iter().zip(vectors(37)).all(|(sum, x)| *sum == 1.0 + 0.5 * x), "{isa:?}");
    }
}
