//! A ReduceScatter's sum gives the same bits wherever it is computed, on any backend.

use crate::data::{Fill, matrix, product, relative_error};
use crate::epilogues::finish;
use crate::run::{self, Buffers, Given};
use crate::table::{Case, bound};
use flux::{
    Activation, Backend, Delivery, E4m3, Element, GemmAr, GemmRs, Group, OpSpec, PathPreference, Summation,
};
use half::{bf16, f16};

/// Checks that sums that are folded into the GEMM have the bits of separate ones, with and without a bias, of tiles that are
/// delivered directly and relayed, whole and in panels, of GEMM+ReduceScatter and of GEMM+AllReduce in two steps, call after call; and that they
/// were folded where `can_fold`, which on GPUs takes rows of A and B that begin at multiples of 16 bytes. `group` makes a group of
/// that many ranks.
pub fn check(case: Case, can_fold: bool, group: &dyn Fn(usize) -> Group) {
    let group = group(case.world_size);
    let on_gpus = group.backend() == Backend::Cuda;
    let aligned = |element_bytes: usize| (case.k / case.world_size * element_bytes).is_multiple_of(16);
    let can_fold = |element_bytes: usize| can_fold && (aligned(element_bytes) || !on_gpus);
    check_dtype::<bf16>(case, can_fold(2), &group);
    check_dtype::<f16>(case, can_fold(2), &group);
    check_dtype::<E4m3>(case, can_fold(1), &group);
}

fn check_dtype<E: Element>(case: Case, can_fold: bool, group: &Group) {
    let Case { m, n, k, .. } = case;
    let (a, b) = (matrix::<E>(m * k, Fill::Normal, 1), matrix::<E>(n * k, Fill::Normal, 2));
    let bias = matrix::<E::Result>(n, Fill::Normal, 3);
    let plain = product(&a, &b, m, n, k);
    for bias in [None, Some(&bias[..])] {
        let reference = finish(&plain, n, bias, Activation::None);
        let mut bits = Vec::new();
        for summation in [Summation::Separate, Summation::Folded] {
            let ways = [(Delivery::Direct, 1), (Delivery::Relayed, 1), (Delivery::Relayed, 3)];
            // Narrower results are one panel.
            for (delivery, panels) in ways.into_iter().filter(|&(_, panels)| panels == 1 || n >= 512) {
                let mut spec = OpSpec::new(n, k, m, E::DTYPE);
                spec.panels = Some(panels);
                (spec.path, spec.delivery, spec.summation) = (PathPreference::Fused, delivery, summation);
                spec.one_shot_rows = Some(0);
                let what = format!(
                    "{case:?} {} {delivery} {summation}, bias {}, {panels} panels",
                    E::DTYPE,
                    bias.is_some()
                );
                let used = if can_fold { summation } else { Summation::Separate };
                let mut check = |c: Vec<E::Result>| {
                    let error = relative_error(&c, &reference);
                    assert!(error < bound(E::DTYPE), "{what}: error {error:e}");
                    let c = bytemuck::cast_slice::<E::Result, u8>(&c).to_vec();
                    if bits.is_empty() {
                        bits.clone_from(&c);
                    }
                    assert!(bits == c, "{what}: other bits than a separate sum");
                };
                calls(
                    group,
                    &GemmRs::new(group, spec.clone()).unwrap(),
                    case,
                    used,
                    (&a, &b, bias),
                    &mut check,
                );
                calls(group, &GemmAr::new(group, spec).unwrap(), case, used, (&a, &b, bias), &mut check);
            }
        }
    }
}

/// Checks that sums of nothing but −0, which partial sums too small for f16 are rounded to, are +0 wherever they are computed.
pub fn check_of_negative_zeros(world_size: usize, group: &dyn Fn(usize) -> Group) {
    let group = group(world_size);
    let (m, n, k) = (300, 520, 64 * world_size);
    // Each rank's sum is −64 · 2⁻²⁰ · 2⁻¹⁴; half of the smallest f16 is 2⁻²⁵.
    let [small, negative] = [0x0010, 0x8400].map(f16::from_bits);
    let (a, b) = (vec![small; m * k], vec![negative; n * k]);
    for summation in [Summation::Separate, Summation::Folded] {
        let mut spec = OpSpec::new(n, k, m, f16::DTYPE);
        (spec.path, spec.summation) = (PathPreference::Fused, summation);
        let op = GemmRs::new(&group, spec).unwrap();
        let outcome = run::any(&group, &op, m, (&a[..], &b[..], None)).unwrap();
        assert_eq!(outcome.choice.summation, Some(summation));
        assert!(outcome.c.iter().all(|c| c.to_bits() == 0), "{world_size} ranks, {summation}");
    }
}

/// Two calls, with one of fewer rows in between.
fn calls<E: Element, Op: Buffers>(
    group: &Group,
    op: &Op,
    Case { m, k, .. }: Case,
    used: Summation,
    (a, b, bias): Given<'_, E>,
    check: &mut dyn FnMut(Vec<E::Result>),
) {
    for rows in [m, m * 2 / 3, m] {
        let outcome = run::any(group, op, rows, (&a[..rows * k], b, bias)).unwrap();
        if rows == m {
            assert_eq!(outcome.choice.summation, Some(used), "m = {m}: {:?}", outcome.choice);
            check(outcome.c);
        }
    }
}
