//! Biases and activations on the host backend.

use flux::{
    Activation, Address, AgGemm, AgGemmCall, Buffer, DType, Error, GemmAr, GemmArCall, GemmRs, GemmRsCall,
    Matrix, OpSpec, Placement, Scales, Whole,
};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::epilogues::{CASES, check, check_that_a_bias_is_added_once, finish};
use flux_tests::groups::on_host as group;
use flux_tests::pitched;
use flux_tests::table::Case;
use half::bf16;

#[test]
fn the_table_is_right_in_every_way() {
    CASES.into_iter().for_each(|case| check(case, &group));
}

#[test]
fn every_world_size_is_right() {
    for world_size in 1..=8 {
        check(Case { m: 70, n: 38, k: 24, world_size }, &group);
        check_that_a_bias_is_added_once(world_size, &group);
    }
}

#[test]
fn gaps_between_rows_stay_as_they_are() {
    for world_size in [1, 3, 4] {
        pitched::check_ag_gemm(&group(world_size));
    }
}

/// Pairs that do not divide evenly stay together, and each rank's columns are what its pairs make.
#[test]
fn pairs_stay_on_one_rank() {
    let group = group(4);
    let mut spec = OpSpec::new(12, 8, 16, DType::Bf16);
    spec.activation = Activation::SwiGlu;
    let op = AgGemm::new(&group, spec).unwrap();
    let weight_rows = [0, 1, 2, 3].map(|rank| op.weight_rows(rank));
    assert_eq!(weight_rows, [0..4, 4..8, 8..10, 10..12]);
    assert_eq!([0, 1, 2, 3].map(|rank| op.columns(rank)), [0..2, 2..4, 4..5, 5..6]);
}

/// A gated MLP: what SwiGLU leaves on a rank is what the next operation sums over there.
#[test]
fn a_gated_mlp_goes_through() {
    let group = group(3);
    let (m, hidden, inner) = (100, 24, 40);
    let mut spec = OpSpec::new(2 * inner, hidden, m, DType::Bf16);
    spec.activation = Activation::SwiGlu;
    let gather = AgGemm::new(&group, spec).unwrap();
    let scatter = GemmRs::new(&group, OpSpec::new(hidden, inner, m, DType::Bf16)).unwrap();
    let [x, gate_up, down, bias] =
        [(m * hidden, 1), (2 * inner * hidden, 2), (hidden * inner, 3), (hidden, 4)]
            .map(|(len, seed)| matrix::<bf16>(len, Fill::Normal, seed));
    let first = Whole::place(&group, &gather, &x, &gate_up, m).unwrap();
    let second = Whole::after(&group, &scatter, &first, &down).unwrap().with_bias(&bias).unwrap();
    for _ in 0..5 {
        first.enqueue().unwrap();
        second.enqueue().unwrap();
    }
    let between = first.result().unwrap();
    let sums = product(&x, &gate_up, m, 2 * inner, hidden);
    let expected = finish::<bf16>(&sums, 2 * inner, None, Activation::SwiGlu);
    assert!(relative_error(&between, &expected) < 4e-3);
    let expected = finish(&product(&between, &down, m, hidden, inner), hidden, Some(&bias), Activation::None);
    assert!(relative_error(&second.result().unwrap(), &expected) < 4e-3);
}

#[test]
fn what_a_caller_can_get_wrong_is_an_error() {
    let group = group(2);
    let mut spec = OpSpec::new(8, 8, 16, DType::Bf16);
    for activation in [Activation::Gelu, Activation::Silu, Activation::SwiGlu] {
        spec.activation = activation;
        for refused in
            [GemmRs::new(&group, spec.clone()).map(drop), GemmAr::new(&group, spec.clone()).map(drop)]
        {
            let text = refused.unwrap_err().to_string();
            assert!(text.contains(&activation.to_string()) && text.contains("AgGemm"), "{text}");
        }
    }
    spec.n = 7;
    assert!(matches!(AgGemm::new(&group, spec).map(drop), Err(Error::UnpairedRows { n: 7 })));

    let spec = || OpSpec::new(8, 8, 16, DType::Bf16);
    let gather = AgGemm::new(&group, spec()).unwrap();
    let scatter = GemmRs::new(&group, spec()).unwrap();
    let reduce = GemmAr::new(&group, spec()).unwrap();
    let stream = group.stream(0).unwrap();
    let buffer = Buffer::allocate(group.device(0).unwrap(), 1024, Placement::Device).unwrap();
    let (a, fine) = (buffer.address(), Matrix::contiguous(buffer.address(), 8));
    for bias in [Address::NULL, buffer.address().add(1)] {
        let bias = Some(bias);
        // SAFETY: every call is refused before anything is enqueued.
        let refused = unsafe {
            [
                gather.enqueue(
                    0,
                    &AgGemmCall { m: 4, a, b: fine, scales: Scales::NONE, bias, c: fine },
                    &stream,
                ),
                scatter.enqueue(
                    0,
                    &GemmRsCall { m: 4, a: fine, b: fine, scales: Scales::NONE, bias, c: fine },
                    &stream,
                ),
                reduce.enqueue(
                    0,
                    &GemmArCall { m: 4, a: fine, b: fine, scales: Scales::NONE, bias, c: fine },
                    &stream,
                ),
            ]
        };
        for refused in refused {
            assert!(matches!(refused, Err(Error::BadBias { .. })), "{refused:?}");
        }
    }
    let ones = [bf16::ONE; 64];
    let whole = Whole::place(&group, &gather, &ones[..32], &ones, 4).unwrap();
    assert!(matches!(whole.with_bias(&ones[..7]).map(drop), Err(Error::BadBias { .. })));
}
