//! Matrices on the ranks' devices, several copies of each, and what their product must be.

use super::arguments::ScalesArgument;
use crate::bench::shapes::Shape;
use crate::data::{normal, widen};
use crate::error::Error;
use flux::{
    Buffer, Device, Element, Group, Matrix, OperandParts, Operation, Part, PathChoice, Placement, Scale,
    Scales, Stream,
};
use rayon::prelude::*;
use std::ops::Range;
use std::time::Duration;

/// How many different numbers a matrix has at most. A prime, so that no two rows are alike: longer ones repeat them.
const DISTINCT: usize = 16_777_259;

/// Elements that are uploaded at a time.
const BLOCK: usize = 1 << 22;

/// How many entries of a result are checked.
const ENTRIES: usize = 2000;

/// The scales of A and B, where elements have any; of rows, that of the first.
const SCALES: [f32; 2] = [0.5, 0.25];

/// What a row of A (0) or B (1) is scaled by.
fn scale_of(matrix: usize, row: usize, scales: ScalesArgument) -> f32 {
    let differs = match scales {
        ScalesArgument::Tensor => 0.0,
        ScalesArgument::Rows => u8::try_from(row % 11).map_or(0.0, f32::from),
    };
    SCALES[matrix] * (1.0 + differs / 8.0)
}

/// A row-major matrix of standard normal numbers, made for as many elements as are needed.
pub(crate) struct Values<E>(Vec<E>);

impl<E: Element> Values<E> {
    pub(crate) fn new(elements: usize, seed: u64) -> Self {
        Self(normal(elements.clamp(1, DISTINCT), 1.0, seed))
    }

    /// Elements from `first` on, counted through all rows.
    fn copy_to(&self, first: usize, mut to: &mut [E]) {
        let mut from = first % self.0.len();
        while !to.is_empty() {
            let count = to.len().min(self.0.len() - from);
            let (now, rest) = to.split_at_mut(count);
            now.copy_from_slice(&self.0[from..from + count]);
            (to, from) = (rest, 0);
        }
    }

    fn row(&self, row: usize, columns: usize) -> Vec<f32> {
        let mut values = vec![E::zeroed(); columns];
        self.copy_to(row * columns, &mut values);
        widen(&values)
    }
}

/// Random entries of C, computed in double precision.
pub(crate) struct Expected(Vec<(usize, usize, f64)>);

impl Expected {
    pub(crate) fn new<E: Element>(
        a: &Values<E>,
        b: &Values<E>,
        shape: Shape,
        scales: ScalesArgument,
    ) -> Self {
        let mut state = 0x2545_f491_4f6c_dd1d_u64;
        let mut below = |bound: usize| {
            // xorshift64
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            usize::try_from(state % bound as u64).unwrap_or(0)
        };
        let corners = [(0, 0), (shape.m - 1, shape.n - 1)];
        let random: Vec<_> = (0..ENTRIES).map(|_| (below(shape.m), below(shape.n))).collect();
        let compute = |(row, column)| {
            let scale = match E::DTYPE.is_scaled() {
                true => f64::from(scale_of(0, row, scales)) * f64::from(scale_of(1, column, scales)),
                false => 1.0,
            };
            let (a, b) = (a.row(row, shape.k), b.row(column, shape.k));
            let sum: f64 = a.iter().zip(&b).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            (row, column, scale * sum)
        };
        Self([&corners[..], &random].concat().into_par_iter().map(compute).collect())
    }
}

/// A and B of a whole problem, cut up for the ranks of a group and copied several times, and room for C.
pub(crate) struct Operands<E> {
    group: Group,
    m: usize,
    /// Each rank's parts of A, B and C, of the ranks of this process; so are the following.
    parts: Vec<[Part; 3]>,
    copies: Vec<Vec<[Buffer; 3]>>,
    /// Each rank's scales of its parts of A and B, if elements have any.
    scales: Vec<[Buffer; 2]>,
    scaled_by: ScalesArgument,
    streams: Vec<Stream>,
    element: std::marker::PhantomData<E>,
}

impl<E: Element> Operands<E> {
    /// Cut up as `op` wants them; copied until the copies that lie on one device have `cold_bytes` bytes together, but at
    /// most `max_copies` times.
    pub(crate) fn place(
        group: &Group,
        op: &dyn Operation,
        (a, b, shape): (&Values<E>, &Values<E>, Shape),
        scaled_by: ScalesArgument,
        cold_bytes: usize,
        max_copies: usize,
    ) -> Result<Self, Error> {
        let parts: Vec<_> = group.local_ranks().map(|rank| op.parts(rank, shape.m)).collect();
        let streams = group.local_ranks().map(|rank| group.stream(rank)).collect::<Result<_, _>>()?;
        let bytes = parts.iter().flat_map(part_bytes::<E>).fold(0, usize::saturating_add);
        let bytes_per_device = bytes / devices(group)?;
        let copies = cold_bytes.div_ceil(bytes_per_device.max(1)).clamp(1, max_copies);
        let mut this = Self {
            group: group.clone(),
            m: shape.m,
            parts,
            copies: Vec::new(),
            scales: Vec::new(),
            scaled_by,
            streams,
            element: std::marker::PhantomData,
        };
        let ranks = group.local_ranks();
        for (index, rank) in ranks.clone().enumerate().filter(|_| E::DTYPE.is_scaled()) {
            let scales = |matrix: usize| -> Result<Buffer, flux::Error> {
                let rows = match scaled_by {
                    ScalesArgument::Tensor => 0..1,
                    ScalesArgument::Rows => this.parts[index][matrix].rows.clone(),
                };
                let values: Vec<_> = rows.map(|row| scale_of(matrix, row, scaled_by)).collect();
                let bytes = bytemuck::cast_slice(&values);
                let buffer = Buffer::allocate(group.device(rank)?, bytes.len(), Placement::Device)?;
                buffer.upload(&this.streams[index], 0, bytes)?;
                Ok(buffer)
            };
            let both = [scales(0)?, scales(1)?];
            this.scales.push(both);
        }
        for _ in 0..copies {
            let place = |rank: usize| {
                let device = group.device(rank)?;
                let allocate = |bytes| Buffer::allocate(device, bytes, Placement::Device);
                let (parts, stream) = (&this.parts[rank - ranks.start], &this.streams[rank - ranks.start]);
                let [a_part, b_part, _] = parts;
                let [a_bytes, b_bytes, c_bytes] = part_bytes::<E>(parts);
                let buffers = [allocate(a_bytes)?, allocate(b_bytes)?, allocate(c_bytes)?];
                upload(&buffers[0], stream, a_part, |row, columns, to| {
                    a.copy_to(row * shape.k + columns.start, to);
                })?;
                upload(&buffers[1], stream, b_part, |row, columns, to| {
                    b.copy_to(row * shape.k + columns.start, to);
                })?;
                Ok(buffers)
            };
            let copy = ranks.clone().map(place).collect::<Result<_, flux::Error>>()?;
            this.copies.push(copy);
        }
        Ok(this)
    }

    pub(crate) const fn group(&self) -> &Group {
        &self.group
    }

    pub(crate) const fn copies(&self) -> usize {
        self.copies.len()
    }

    /// The device of the first rank of this process.
    pub(crate) fn first_device(&self) -> Result<&Device, Error> {
        Ok(self.group.device(self.group.local_ranks().start)?)
    }

    /// The longest of what the group's processes bring.
    pub(crate) fn slowest(&self, own: Duration) -> Result<Duration, Error> {
        let most = self.most(u64::try_from(own.as_nanos()).unwrap_or(u64::MAX))?;
        Ok(Duration::from_nanos(most))
    }

    /// The most of what the group's processes bring.
    pub(crate) fn most(&self, own: u64) -> Result<u64, Error> {
        let all = self.group.all_gather(&own.to_le_bytes())?;
        let all = all.iter().filter_map(|bytes| Some(u64::from_le_bytes(bytes.as_slice().try_into().ok()?)));
        Ok(all.fold(own, u64::max))
    }

    /// The stream of the first rank of this process.
    pub(crate) fn first_stream(&self) -> &Stream {
        &self.streams[0]
    }

    /// Each rank's operands of a copy.
    pub(crate) fn operands(&self, copy: usize) -> Vec<OperandParts> {
        let matrix = |buffer: &Buffer, part: &Part| Matrix::contiguous(buffer.address(), part.columns.len());
        let of_rank = |(rank, (buffers, parts)): (usize, (&[Buffer; 3], &[Part; 3]))| {
            let matrices = std::array::from_fn(|index| matrix(&buffers[index], &parts[index]));
            let scale = |index: usize| {
                let address = self.scales.get(rank)?[index].address();
                Some(match self.scaled_by {
                    ScalesArgument::Tensor => Scale::Tensor(address),
                    ScalesArgument::Rows => Scale::Rows(address),
                })
            };
            OperandParts { scales: Scales { a: scale(0), b: scale(1) }, ..OperandParts::new(matrices) }
        };
        self.copies[copy].iter().zip(&self.parts).enumerate().map(of_rank).collect()
    }

    /// Enqueues a call of `op`, one that these operands were, or could have been, cut up for.
    pub(crate) fn enqueue(
        &self,
        op: &dyn Operation,
        operands: &[OperandParts],
        streams: &[&Stream],
    ) -> Result<PathChoice, Error> {
        // SAFETY: the matrices have the extents of their parts, and live until this is dropped, which waits.
        Ok(unsafe { op.enqueue_parts(self.m, operands, streams) }?)
    }

    pub(crate) fn streams(&self) -> Vec<&Stream> {
        self.streams.iter().collect()
    }

    /// Waits for all ranks, and reports the first wait that expired.
    pub(crate) fn synchronize(&self) -> Result<(), Error> {
        for stream in &self.streams {
            stream.synchronize().map_err(flux::Error::from)?;
        }
        Ok(self.group.check()?)
    }

    /// Fills C of the first copy with NaN.
    pub(crate) fn poison(&self) -> Result<(), Error> {
        for ((buffers, parts), stream) in self.copies[0].iter().zip(&self.parts).zip(&self.streams) {
            upload(&buffers[2], stream, &parts[2], |_, _, to: &mut [E::Result]| {
                to.fill(E::Result::round(f32::NAN));
            })?;
        }
        Ok(())
    }

    /// ‖C − expected‖ / ‖expected‖ over the expected entries of the first copy, on every rank that holds them.
    pub(crate) fn deviation(&self, expected: &Expected) -> Result<f64, Error> {
        self.synchronize()?;
        // Both, and behind them whether each entry was found.
        let mut found = vec![0.0; 2 + expected.0.len()];
        for (entry, &(row, column, reference)) in expected.0.iter().enumerate() {
            let holds = |part: &Part| part.rows.contains(&row) && part.columns.contains(&column);
            for (rank, [_, _, part]) in self.parts.iter().enumerate().filter(|(_, [_, _, part])| holds(part))
            {
                let index = (row - part.rows.start) * part.columns.len() + column - part.columns.start;
                let mut value = [<E::Result as bytemuck::Zeroable>::zeroed()];
                let (buffer, bytes) = (&self.copies[0][rank][2], bytemuck::cast_slice_mut(&mut value));
                let read = buffer.download(&self.streams[rank], index * size_of::<E::Result>(), bytes);
                read.map_err(flux::Error::from)?;
                found[0] += (f64::from(widen::<E::Result>(&value)[0]) - reference).powi(2);
                found[1] += reference * reference;
                found[2 + entry] = 1.0;
            }
        }
        // Of all ranks, wherever they live.
        let all = self.group.all_gather(bytemuck::cast_slice(&found))?;
        let mut sums = vec![0.0; found.len()];
        for bytes in all {
            let theirs = bytes.chunks_exact(size_of::<f64>()).filter_map(|bytes| bytes.try_into().ok());
            sums.iter_mut().zip(theirs.map(f64::from_ne_bytes)).for_each(|(sum, value)| *sum += value);
        }
        if sums[2..].contains(&0.0) {
            return Ok(f64::NAN);
        }
        Ok((sums[0] / sums[1].max(f64::MIN_POSITIVE)).sqrt())
    }
}

impl<E> Drop for Operands<E> {
    fn drop(&mut self) {
        // The buffers may be freed only when no stream uses them any more; errors were or will be reported elsewhere.
        for stream in &self.streams {
            let _ = stream.synchronize();
        }
    }
}

/// What a rank's A, B and C take.
fn part_bytes<E: Element>([a, b, c]: &[Part; 3]) -> [usize; 3] {
    let bytes = |part: &Part, each| part.rows.len().saturating_mul(part.columns.len()).saturating_mul(each);
    [bytes(a, size_of::<E>()), bytes(b, size_of::<E>()), bytes(c, size_of::<E::Result>())]
}

/// How many different devices a group's ranks are on.
pub(crate) fn devices(group: &Group) -> Result<usize, Error> {
    let mut ordinals = std::collections::BTreeSet::new();
    for rank in group.local_ranks() {
        ordinals.insert(group.device(rank)?.as_cuda().map(|gpu| gpu.ordinal()));
    }
    Ok(ordinals.len().max(1))
}

/// Uploads the rows of a part, each given by `fill` for its columns.
fn upload<E: Element>(
    buffer: &Buffer,
    stream: &Stream,
    part: &Part,
    fill: impl Fn(usize, Range<usize>, &mut [E]),
) -> Result<(), flux::Error> {
    let width = part.columns.len();
    let rows_at_once = (BLOCK / width.max(1)).clamp(1, part.rows.len().max(1));
    let mut block = vec![E::zeroed(); rows_at_once.saturating_mul(width)];
    for first in part.rows.clone().step_by(rows_at_once) {
        let rows = first..(first + rows_at_once).min(part.rows.end);
        let block = &mut block[..rows.len() * width];
        for (row, to) in rows.zip(block.chunks_exact_mut(width.max(1))) {
            fill(row, part.columns.clone(), to);
        }
        let offset = (first - part.rows.start) * width * size_of::<E>();
        buffer.upload(stream, offset, bytemuck::cast_slice(block))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use half::bf16;

    #[test]
    fn values_go_around() {
        let values = Values::<bf16>((0_u8..10).map(bf16::from).collect());
        assert_eq!(values.row(3, 4), [2.0, 3.0, 4.0, 5.0]);
        assert_eq!(values.row(1, 9), [9.0, 0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]);
    }

    #[test]
    fn expected_entries_are_products() {
        let shape = Shape { m: 3, n: 2, k: 40 };
        let (a, b) = (Values::<bf16>::new(120, 1), Values::<bf16>::new(80, 2));
        let expected = Expected::new(&a, &b, shape, ScalesArgument::Tensor);
        assert_eq!(expected.0.len(), ENTRIES + 2);
        for (row, column, value) in expected.0 {
            let dot: f32 = a.row(row, 40).iter().zip(b.row(column, 40)).map(|(a, b)| a * b).sum();
            assert!((value - f64::from(dot)).abs() < 1e-3);
        }
    }
}
