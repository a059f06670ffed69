//! GEMM+AllReduce on matrices with gaps between their rows: nobody reads or writes there.

use crate::data::{Fill, matrix, product};
use flux::{
    Buffer, DType, Delivery, Direction, GemmAr, GemmArCall, Group, Matrix, OpSpec, PathPreference, Placement,
    Stream,
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
}

/// Checks both forms, every way, push and pull, relayed and direct, with rows of C on and off 16-byte lines.
pub fn check_gemm_ar(group: &Group) {
    let (m, k) = (77, 50);
    for (n, gap) in [(136, 8), (136, 3), (131, 2)] {
        let ways = [PathPreference::Fused, PathPreference::Unfused, PathPreference::Chunked];
        for (one_shot_rows, path) in ways.into_iter().flat_map(|path| [(m, path), (0, path)]) {
            for direction in [Direction::Push, Direction::Pull] {
                let mut spec = OpSpec::new(n, k, m, DType::Bf16);
                (spec.path, spec.direction, spec.one_shot_rows) = (path, direction, Some(one_shot_rows));
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
        calls.push(GemmArCall { m, a: a.matrix, b: b.matrix, c: c.matrix });
        ranks.push((stream, c, [a, b]));
    }
    let streams: Vec<_> = ranks.iter().map(|(stream, ..)| stream).collect();
    // SAFETY: the buffers are as large as the calls say, and outlive the downloads.
    unsafe { op.enqueue_all(&calls, &streams).unwrap() };
    for (rank, (stream, c, _)) in ranks.iter().enumerate() {
        let values = c.download(stream);
        for (index, value) in values.iter().enumerate() {
            let (row, column) =
                (index.wrapping_sub(GUARD) / (n + gap), index.wrapping_sub(GUARD) % (n + gap));
            let what = format!("{:?}: row {row}, column {column} of rank {rank}", op.spec());
            if row < m && column < n {
                assert_eq!(f64::from(*value), reference[row * n + column], "{what}");
            } else {
                assert!(value.is_nan(), "{what} was written to");
            }
        }
    }
    group.check().unwrap();
}
