//! Scales of 8-bit elements that every backend must get right, in every operation and every way of going about it.

use crate::data::{Fill, matrix, product, relative_error};
use crate::epilogues::finish;
use crate::run::{self, Buffers};
use crate::table::{Case, WAYS, bound};
use flux::{
    Activation, AgGemm, Buffer, DType, Delivery, Direction, E4m3, End, GemmAr, GemmRs, Group, Matrix, OpSpec,
    OperandParts, Operation, Path, PathPreference, Placement, Push, Scale, Scales, Summation, Taper,
};
use half::bf16;

/// Tails in every extent, rows on and off 16-byte lines, ranks without rows, no depth, no rows.
pub const CASES: [Case; 8] = [
    Case { m: 257, n: 384, k: 512, world_size: 4 },
    Case { m: 300, n: 200, k: 144, world_size: 2 },
    Case { m: 1, n: 64, k: 64, world_size: 8 },
    Case { m: 130, n: 131, k: 21, world_size: 3 },
    Case { m: 101, n: 46, k: 24, world_size: 5 },
    Case { m: 65, n: 322, k: 40, world_size: 1 },
    Case { m: 9, n: 16, k: 0, world_size: 2 },
    Case { m: 0, n: 16, k: 16, world_size: 3 },
];

/// Scales for `rows`: powers of 2, with which small integers stay exact.
fn powers(rows: usize, seed: usize) -> Vec<f32> {
    (0..rows).map(|row| [0.5, 2.0, 1.0, 0.25, 4.0][(row * 7 + row / 5 + seed) % 5]).collect()
}

/// Checks `case` with none, one, and one scale for each row, of A and of B: AllGather+GEMM also with a bias and an activation,
/// the others with a bias; every way, push and (few rows) pull. `group` makes a group of that many ranks.
pub fn check(case: Case, group: &dyn Fn(usize) -> Group) {
    let Case { m, n, k, world_size } = case;
    let group = &group(world_size);
    let local =
        (world_size == 1).then_some((PathPreference::Auto, Delivery::Auto, Summation::Auto, Path::Local));
    let [a_rows, b_rows] = [powers(m, 1), powers(n, 3)];
    for (seed, fill) in [(1, Fill::Normal), (2, Fill::Integers)] {
        let [a, b] = [(m * k, 0), (n * k, 10)].map(|(len, of)| matrix::<E4m3>(len, fill, seed + of));
        let bias = matrix::<bf16>(n, fill, seed + 20);
        let sums = product(&a, &b, m, n, k);
        for scales in [[&[0.5][..], &[4.0]], [&a_rows, &b_rows], [&a_rows, &[]], [&[], &b_rows]] {
            let at = |scales: &[f32], index: usize| match scales {
                [] => 1.0,
                [one] => f64::from(*one),
                each => f64::from(each[index]),
            };
            let place = |index: usize| at(scales[0], index / n) * at(scales[1], index % n);
            let scaled: Vec<_> = sums.iter().enumerate().map(|(index, sum)| sum * place(index)).collect();
            let data = Data { m, a: &a, b: &b, bias: &bias, scales, fill };
            let plain = finish(&scaled, n, Some(&bias), Activation::None);
            for (path, delivery, summation, taken) in WAYS.into_iter().chain(local) {
                let directions = [Direction::Push, Direction::Pull];
                for direction in directions.into_iter().take(if m < 500 { 2 } else { 1 }) {
                    let mut spec = OpSpec::new(n, k, m, DType::E4m3);
                    (spec.path, spec.delivery, spec.direction) = (path, delivery, Some(direction));
                    spec.summation = summation;
                    spec.chunk_rows = Some(37);
                    data.check(group, &AgGemm::new(group, spec.clone()).unwrap(), taken, &plain);
                    let scattered =
                        data.check(group, &GemmRs::new(group, spec.clone()).unwrap(), taken, &plain);
                    spec.one_shot_rows = Some(0);
                    let unshared = m == 0 && taken == Path::Chunked;
                    let summed = if unshared { Path::Unfused } else { taken };
                    let reduced =
                        data.check(group, &GemmAr::new(group, spec.clone()).unwrap(), summed, &plain);
                    assert_eq!(scattered, reduced, "{case:?}: gemm-ar has other bits than gemm-rs");
                    spec.activation = Activation::Silu;
                    let activated = finish(&scaled, n, Some(&bias), spec.activation);
                    data.check(group, &AgGemm::new(group, spec).unwrap(), taken, &activated);
                }
            }
        }
    }
}

struct Data<'a> {
    m: usize,
    a: &'a [E4m3],
    b: &'a [E4m3],
    bias: &'a [bf16],
    scales: [&'a [f32]; 2],
    fill: Fill,
}

impl Data<'_> {
    fn check<Op: Buffers>(&self, group: &Group, op: &Op, taken: Path, expected: &[f64]) -> Vec<bf16> {
        let Data { m, a, b, bias, scales, fill } = *self;
        let what = format!(
            "{} {:?} {fill:?}, {:?} scales",
            std::any::type_name::<Op>(),
            op.spec(),
            scales.map(<[f32]>::len)
        );
        let outcome = run::scaled(group, op, m, (a, b, Some(bias)), scales);
        let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(outcome.choice.path, taken, "{what}");
        let error = relative_error(&outcome.c, expected);
        assert!(error < bound(DType::E4m3), "{what}: error {error:e}");
        if fill == Fill::Integers && op.spec().activation == Activation::None && exact(expected) {
            #[allow(clippy::cast_possible_truncation)] // few bits
            let exact = expected.iter().map(|&value| bf16::from_f64(value));
            assert!(outcome.c.iter().copied().eq(exact), "{what}: integers are not exact");
        }
        outcome.c
    }
}

/// Whether bf16 can hold all of it: a bias may be too small beside a scaled sum.
fn exact(values: &[f64]) -> bool {
    values.iter().all(|&value| f64::from(bf16::from_f64(value)) == value)
}

/// Checks that scales of rows arrive with their rows however shards are pushed, call after call, also of fewer rows: rows that the
/// push kernel can take, ones that it cannot, and chunks that are finer at one end.
pub fn check_pushes(world_size: usize, group: &dyn Fn(usize) -> Group) {
    let group = &group(world_size);
    let finer = Taper::towards(End::Last, [3, 2, 1], 8);
    for (n, k, max_m, chunk_rows, taper) in [
        (24, 16, 41, Some(1), None),
        (16, 80, 333, Some(10), None),
        (40, 20, 70, Some(3), None),
        (64, 528, 700, None, None),
        (16, 80, 333, Some(64), Some(finer)),
    ] {
        let [a, b] =
            [(max_m * k, 1), (n * k, 2)].map(|(len, seed)| matrix::<E4m3>(len, Fill::Integers, seed));
        let sums = product(&a, &b, max_m, n, k);
        for path in [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked] {
            for push in [Push::Copies, Push::Kernel] {
                let mut spec = OpSpec::new(n, k, max_m, DType::E4m3);
                (spec.path, spec.push, spec.chunk_rows, spec.taper) = (path, push, chunk_rows, taper);
                let op = AgGemm::new(group, spec).unwrap();
                for (call, m) in [max_m, max_m / 3, 1, 0, max_m - 1, max_m].into_iter().enumerate() {
                    let scales = powers(m, call);
                    let outcome = run::scaled(group, &op, m, (&a[..m * k], &b, None), [&scales, &[]]);
                    let c = outcome.unwrap().c;
                    let expected = sums.iter().enumerate().take(m * n);
                    let expected = expected.map(|(index, sum)| sum * f64::from(scales[index / n]));
                    assert!(
                        c.iter().copied().eq(expected.map(bf16::from_f64)),
                        "{world_size} ranks, m {m} of {max_m}, n {n}, k {k}, {path:?}, {push}"
                    );
                }
            }
        }
    }
}

/// Checks that every rank's partial sum is scaled by the rank's own scales, which differ from rank to rank.
pub fn check_that_ranks_have_their_own(world_size: usize, group: &dyn Fn(usize) -> Group) {
    let group = &group(world_size);
    let (m, n, k) = (70, 40, 16 * world_size);
    let [a, b] = [(m * k, 1), (n * k, 2)].map(|(len, seed)| matrix::<E4m3>(len, Fill::Integers, seed));
    for (path, delivery, summation, _) in WAYS {
        let mut spec = OpSpec::new(n, k, m, DType::E4m3);
        (spec.path, spec.delivery, spec.summation) = (path, delivery, summation);
        let op = GemmRs::new(group, spec).unwrap();
        let (mut parts, mut buffers, mut streams) = (Vec::new(), Vec::new(), Vec::new());
        let mut expected = vec![0.0; m * n];
        for rank in group.local_ranks() {
            let (stream, depth) = (group.stream(rank).unwrap(), op.depth(rank));
            let mut place = |bytes: &[u8]| {
                let buffer = Buffer::allocate(group.device(rank).unwrap(), bytes.len(), Placement::Device);
                let buffer = buffer.unwrap();
                buffer.upload(&stream, 0, bytes).unwrap();
                let address = buffer.address();
                buffers.push(buffer);
                address
            };
            let cut = |whole: &[E4m3]| -> Vec<E4m3> {
                whole.chunks(k).flat_map(|row| row[depth.clone()].to_vec()).collect()
            };
            let (own_a, own_b) = (cut(&a), cut(&b));
            let (a_scale, b_scale) = (powers(m, rank), [0.5_f32 + rank as f32]);
            for (index, sum) in product(&own_a, &own_b, m, n, depth.len()).into_iter().enumerate() {
                expected[index] += sum * f64::from(a_scale[index / n] * b_scale[0]);
            }
            let rows = op.rows(rank, m).len();
            let matrices = [
                Matrix::contiguous(place(bytemuck::cast_slice(&own_a)), depth.len()),
                Matrix::contiguous(place(bytemuck::cast_slice(&own_b)), depth.len()),
                Matrix::contiguous(place(&vec![0xff; 2 * rows * n]), n),
            ];
            let scales = Scales {
                a: Some(Scale::Rows(place(bytemuck::cast_slice(&a_scale)))),
                b: Some(Scale::Tensor(place(bytemuck::cast_slice(&b_scale)))),
            };
            parts.push(OperandParts { scales, ..OperandParts::new(matrices) });
            streams.push(stream);
        }
        // SAFETY: the buffers are as large as the parts say, and outlive the downloads.
        unsafe { op.enqueue_parts(m, &parts, &streams.iter().collect::<Vec<_>>()).unwrap() };
        let mut c = Vec::new();
        for (rank, (part, stream)) in parts.iter().zip(&streams).enumerate() {
            let mut rows = vec![bf16::ZERO; op.rows(rank, m).len() * n];
            stream.synchronize().unwrap();
            let buffer = buffers.iter().find(|buffer| buffer.address() == part.c.address).unwrap();
            buffer.download(stream, 0, bytemuck::cast_slice_mut(&mut rows)).unwrap();
            c.extend(rows);
        }
        group.check().unwrap();
        let error = relative_error(&c, &expected);
        assert!(error < bound(DType::E4m3), "{path:?} {delivery}, {world_size} ranks: error {error:e}");
    }
}

/// Checks that a NaN in A or B comes out where it should, and nowhere else.
pub fn check_that_nan_spreads(group: &Group) {
    let (m, n) = (40, 24);
    for k in [64, 21] {
        let mut a = vec![E4m3::ONE; m * k];
        let mut b = vec![E4m3::ONE; n * k];
        a[7 * k + 20] = E4m3::NAN;
        b[5 * k + 2] = E4m3::from_bits(0xff);
        let op = AgGemm::new(group, OpSpec::new(n, k, m, DType::E4m3)).unwrap();
        let c = run::ag_gemm(group, &op, m, &a, &b).unwrap().c;
        for (index, value) in c.iter().enumerate() {
            assert_eq!(value.is_nan(), index / n == 7 || index % n == 5, "k = {k}: {value} at {index}");
        }
    }
}

/// Checks that every pair of numbers is multiplied exactly.
pub fn check_all_products(group: &Group) {
    // All numbers but NaN in A, one to a row and a rest of zeros, and likewise in B.
    let numbers: Vec<_> = (0..=u8::MAX).map(E4m3::from_bits).filter(|value| !value.is_nan()).collect();
    let count = numbers.len();
    for k in [32, 17] {
        let column = k - 1;
        let spread = || -> Vec<E4m3> {
            let row = |&value: &E4m3| (0..k).map(move |x| if x == column { value } else { E4m3::ZERO });
            numbers.iter().flat_map(row).collect()
        };
        let op = AgGemm::new(group, OpSpec::new(count, k, count, DType::E4m3)).unwrap();
        let c = run::ag_gemm(group, &op, count, &spread(), &spread()).unwrap().c;
        for (index, value) in c.iter().enumerate() {
            let exact = numbers[index / count].to_f32() * numbers[index % count].to_f32();
            assert_eq!(
                f32::from(*value),
                exact,
                "k = {k}: {} * {}",
                numbers[index / count],
                numbers[index % count]
            );
        }
    }
}
