//! Operations on matrices with gaps between their rows: nobody reads or writes there.

use crate::data::{Fill, matrix, product};
use crate::epilogues::finish;
use flux::{
    Activation, AgGemm, AgGemmCall, Buffer, DType, Delivery, Direction, GemmAr, GemmArCall, Group, Matrix,
    OpSpec, PathPreference, Placement, Scales, Stream,
};
use half::bf16;

/// Elements in front of the first row and behind the last.
const GUARD: usize = 24;

/// A matrix in a buffer of its own, NaN everywhere else.
struct Pitched {
    buffer: Buffer,
    matrix: Matrix,
}

impl Pitched {
    fn new(group: &Group, rank: usize, stream: &Stream, rows: &[&[bf16]], pitch: usize) -> Self {
        let mut values = vec![bf16::NAN; rows.len() * pitch + 2 * GUARD];
        for (row, from) in rows.iter().enumerate() {
            values[GUARD + row * pitch..][..from.len()].copy_from_slice(from);
        }
        let bytes = size_of_val(&values[..]);
        let buffer = Buffer::allocate(group.device(rank).unwrap(), bytes, Placement::Device).unwrap();
        buffer.upload(stream, 0, bytemuck::cast_slice(&values)).unwrap();
        let matrix = Matrix { address: buffer.address().add(2 * GUARD), pitch };
        Self { buffer, matrix }
    }

    fn download(&self, stream: &Stream) -> Vec<bf16> {
        let mut values = vec![bf16::ZERO; self.buffer.bytes() / 2];
        self.buffer.download(stream, 0, bytemuck::cast_slice_mut(&mut values)).unwrap();
        values
    }

    /// Hands the elements of the `rows` and `columns` to `check`; all others must still be NaN.
    fn check(&self, stream: &Stream, rows: usize, columns: usize, check: impl Fn(usize, usize, f64)) {
        for (index, &value) in self.download(stream).iter().enumerate() {
            let place = index.wrapping_sub(GUARD);
            let (row, column) = (place / self.matrix.pitch, place % self.matrix.pitch);
            if row < rows && column < columns {
                check(row, column, f64::from(value));
            } else {
                assert!(value.is_nan(), "row {row}, column {column} of {rows}x{columns} was written to");
            }
        }
    }
}

/// Checks both forms, every way, push and pull, relayed and direct, with rows of C on and off 16-byte lines.
pub fn check_gemm_ar(group: &Group) {
    let (m, k) = (77, 50);
    for (n, gap) in [(136, 8), (136, 3), (131, 2)] {
        let ways = [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked];
        for (one_shot_rows, path) in ways.into_iter().flat_map(|path| [(m, path), (0, path)]) {
            for direction in [Direction::Push, Direction::Pull] {
                let mut spec = OpSpec::new(n, k, m, DType::Bf16);
                (spec.path, spec.direction, spec.one_shot_rows) =
                    (path, Some(direction), Some(one_shot_rows));
                // Tiles are pushed, whatever the direction.
                spec.delivery =
                    if direction == Direction::Push { Delivery::Direct } else { Delivery::Relayed };
                check_one(group, &GemmAr::new(group, spec).unwrap(), m, gap);
            }
        }
    }
}

fn check_one(group: &Group, op: &GemmAr, m: usize, gap: usize) {
    let (n, k) = (op.spec().n, op.spec().k);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Integers, 1), matrix::<bf16>(n * k, Fill::Integers, 2));
    let reference = product(&a, &b, m, n, k);
    let (mut calls, mut ranks) = (Vec::new(), Vec::new());
    for rank in group.local_ranks() {
        let (stream, depth) = (group.stream(rank).unwrap(), op.depth(rank));
        let cut = |whole: &[bf16]| -> Vec<Vec<bf16>> {
            whole.chunks(k).map(|row| row[depth.clone()].to_vec()).collect()
        };
        let place = |rows: &[Vec<bf16>], pitch| {
            let rows: Vec<_> = rows.iter().map(Vec::as_slice).collect();
            Pitched::new(group, rank, &stream, &rows, pitch)
        };
        let (a, b) = (place(&cut(&a), depth.len() + 3), place(&cut(&b), depth.len() + 1));
        let c = place(&vec![Vec::new(); m], n + gap);
        calls.push(GemmArCall { m, a: a.matrix, b: b.matrix, scales: Scales::NONE, bias: None, c: c.matrix });
        ranks.push((stream, c, [a, b]));
    }
    let streams: Vec<_> = ranks.iter().map(|(stream, ..)| stream).collect();
    // SAFETY: the buffers are as large as the calls say, and outlive the downloads.
    unsafe { op.enqueue_all(&calls, &streams).unwrap() };
    for (rank, (stream, c, _)) in ranks.iter().enumerate() {
        c.check(stream, m, n, |row, column, value| {
            let what = format!("{:?}: row {row}, column {column} of rank {rank}", op.spec());
            assert_eq!(value, reference[row * n + column], "{what}");
        });
    }
    group.check().unwrap();
}

/// Checks AllGather+GEMM with a bias at an odd place and every activation, every way, with rows of C on and off 16-byte
/// lines.
pub fn check_ag_gemm(group: &Group) {
    let (m, k) = (141, 24);
    for (n, gap) in [(384, 8), (384, 3), (262, 2)] {
        for path in
            [PathPreference::Auto, PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked]
        {
            for activation in [Activation::None, Activation::Gelu, Activation::Silu, Activation::SwiGlu] {
                let mut spec = OpSpec::new(n, k, m, DType::Bf16);
                (spec.path, spec.activation) = (path, activation);
                check_one_ag_gemm(group, &AgGemm::new(group, spec).unwrap(), m, gap);
            }
        }
    }
}

fn check_one_ag_gemm(group: &Group, op: &AgGemm, m: usize, gap: usize) {
    let OpSpec { n, k, activation, .. } = *op.spec();
    let [a, b, bias] = [(m * k, 1), (n * k, 2), (n, 3)].map(|(len, seed)| matrix(len, Fill::Integers, seed));
    let reference = finish(&product::<bf16>(&a, &b, m, n, k), n, Some(&bias), activation);
    let pitch_of_reference = n / activation.sums_per_column();
    let (mut calls, mut ranks) = (Vec::new(), Vec::new());
    for rank in group.local_ranks() {
        let stream = group.stream(rank).unwrap();
        let (columns, weight_rows) = (op.columns(rank), op.weight_rows(rank));
        let place = |rows: &[&[bf16]], pitch| Pitched::new(group, rank, &stream, rows, pitch);
        let rows = |whole: &[bf16], range: std::ops::Range<usize>, pitch| {
            place(&whole[range.start * k..range.end * k].chunks(k).collect::<Vec<_>>(), pitch)
        };
        let (a, b) = (rows(&a, op.rows(rank, m), k), rows(&b, weight_rows.clone(), k + 3));
        // One element in front of the bias takes it off every boundary but its own.
        let behind_nan = [&[bf16::NAN], &bias[weight_rows]].concat();
        let bias = place(&[&behind_nan], behind_nan.len());
        let c = place(&vec![&[][..]; m], columns.len() + gap);
        let address = bias.matrix.address.add(2);
        calls.push(AgGemmCall {
            m,
            a: a.matrix.address,
            b: b.matrix,
            scales: Scales::NONE,
            bias: Some(address),
            c: c.matrix,
        });
        ranks.push((stream, columns, c, [a, b, bias]));
    }
    let streams: Vec<_> = ranks.iter().map(|(stream, ..)| stream).collect();
    // SAFETY: the buffers are as large as the calls say, and outlive the downloads.
    unsafe { op.enqueue_all(&calls, &streams).unwrap() };
    for (rank, (stream, columns, c, _)) in ranks.iter().enumerate() {
        c.check(stream, m, columns.len(), |row, column, value| {
            let expected = reference[row * pitch_of_reference + columns.start + column];
            // An integer is exact; else half of the 8th bit, and what the activation is off by.
            let allowed = if activation == Activation::None { 0.0 } else { expected.abs() / 255.0 + 1e-6 };
            let right = (value - expected).abs() <= allowed;
            assert!(
                right,
                "{:?}: row {row}, column {column} of rank {rank}: {value}, not {expected}",
                op.spec()
            );
        });
    }
    group.check().unwrap();
}
