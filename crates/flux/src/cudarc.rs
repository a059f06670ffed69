//! The same calls with cudarc's tensors: anything that implements its `DevicePtr` and `DevicePtrMut`.

use crate::{
    Address, AgGemm, AgGemmCall, Element, Error, GemmAr, GemmArCall, GemmRs, GemmRsCall, Group, Matrix,
    PathChoice, Result,
};
use ::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice};
use flux_launch::DType;
use flux_memory::Stream;

impl AgGemm {
    /// [`AgGemm::enqueue`] for tensors without gaps: `a` `[m_r, K]`, `b` `[N_r, K]`, `c` as many columns as
    /// [`AgGemm::columns`]; `bias`, if any, `[N_r]`; on `stream`.
    #[allow(clippy::too_many_arguments)]
    pub fn enqueue_cudarc<T: Element>(
        &self,
        rank: usize,
        m: usize,
        a: &impl DevicePtr<T>,
        b: &impl DevicePtr<T>,
        bias: Option<&dyn DevicePtr<T>>,
        c: &mut impl DevicePtrMut<T>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let (k, weight_rows) = (self.spec().k, self.weight_rows(rank).len());
        let shapes = [[self.rows(rank, m).len(), k], [weight_rows, k], [m, self.columns(rank).len()]];
        with_tensors(
            (self.group(), self.spec().dtype),
            rank,
            (a, b, bias, c),
            shapes,
            stream,
            |[a, b, c], bias, stream| {
                // SAFETY: the lengths were checked; cudarc orders later uses of the tensors after this stream's work.
                unsafe { self.enqueue(rank, &AgGemmCall { m, a: a.address, b, bias, c }, stream) }
            },
        )
    }
}

impl GemmRs {
    /// [`GemmRs::enqueue`] for tensors without gaps: `a` `[m, K_r]`, `b` `[N, K_r]`, `c` `[m_r, N]`; `bias`, if
    /// any, `[N]`; on `stream`.
    #[allow(clippy::too_many_arguments)]
    pub fn enqueue_cudarc<T: Element>(
        &self,
        rank: usize,
        m: usize,
        a: &impl DevicePtr<T>,
        b: &impl DevicePtr<T>,
        bias: Option<&dyn DevicePtr<T>>,
        c: &mut impl DevicePtrMut<T>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let (n, depth) = (self.spec().n, self.depth(rank).len());
        let shapes = [[m, depth], [n, depth], [self.rows(rank, m).len(), n]];
        with_tensors(
            (self.group(), self.spec().dtype),
            rank,
            (a, b, bias, c),
            shapes,
            stream,
            |[a, b, c], bias, stream| {
                // SAFETY: as above.
                unsafe { self.enqueue(rank, &GemmRsCall { m, a, b, bias, c }, stream) }
            },
        )
    }
}

impl GemmAr {
    /// [`GemmAr::enqueue`] for tensors without gaps: `a` `[m, K_r]`, `b` `[N, K_r]`, `c` `[m, N]`; `bias`, if any,
    /// `[N]`; on `stream`.
    #[allow(clippy::too_many_arguments)]
    pub fn enqueue_cudarc<T: Element>(
        &self,
        rank: usize,
        m: usize,
        a: &impl DevicePtr<T>,
        b: &impl DevicePtr<T>,
        bias: Option<&dyn DevicePtr<T>>,
        c: &mut impl DevicePtrMut<T>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let (n, depth) = (self.spec().n, self.depth(rank).len());
        let shapes = [[m, depth], [n, depth], [m, n]];
        with_tensors(
            (self.group(), self.spec().dtype),
            rank,
            (a, b, bias, c),
            shapes,
            stream,
            |[a, b, c], bias, stream| {
                // SAFETY: as above.
                unsafe { self.enqueue(rank, &GemmArCall { m, a, b, bias, c }, stream) }
            },
        )
    }
}

/// A, B, the bias and C.
type Tensors<'a, T, A, B, C> = (&'a A, &'a B, Option<&'a dyn DevicePtr<T>>, &'a mut C);

/// Checks the tensors of a call of `rank` against the rows and columns in `shapes`, and hands them to `enqueue`. A bias
/// has an element for each row of B.
fn with_tensors<T: Element>(
    (group, dtype): (&Group, DType),
    rank: usize,
    (a, b, bias, c): Tensors<'_, T, impl DevicePtr<T>, impl DevicePtr<T>, impl DevicePtrMut<T>>,
    shapes: [[usize; 2]; 3],
    stream: &CudaStream,
    enqueue: impl FnOnce([Matrix; 3], Option<Address>, &Stream) -> Result<PathChoice>,
) -> Result<PathChoice> {
    let borrowed = borrow::<T>(group, rank, dtype, stream)?;
    check_len("A", a, shapes[0])?;
    check_len("B", b, shapes[1])?;
    check_len("C", c, shapes[2])?;
    if let Some(bias) = bias.filter(|bias| bias.len() < shapes[1][0]) {
        let reason = format!("it has {} elements, but there are {} rows", bias.len(), shapes[1][0]);
        return Err(Error::BadBias { reason });
    }
    let ((a, _reads_a), (b, _reads_b)) = (a.device_ptr(stream), b.device_ptr(stream));
    let bias = bias.map(|bias| bias.device_ptr(stream));
    let (c, _writes_c) = c.device_ptr_mut(stream);
    let [a, b, c] = [(a, 0), (b, 1), (c, 2)]
        .map(|(address, index)| Matrix::contiguous(Address(address), shapes[index][1]));
    enqueue([a, b, c], bias.as_ref().map(|(bias, _read)| Address(*bias)), &borrowed)
}

fn borrow<T: Element>(group: &Group, rank: usize, dtype: DType, stream: &CudaStream) -> Result<Stream> {
    let device = group.device(rank)?;
    if T::DTYPE != dtype {
        return Err(Error::WrongDType { built: dtype, given: T::DTYPE });
    }
    let Some(gpu) = device.as_cuda() else { return Err(Error::NotCuda { backend: group.backend() }) };
    let ordinal = stream.context().ordinal();
    if ordinal != gpu.ordinal() || stream.context().cu_ctx() != gpu.context().cu_ctx() {
        let stream = format!("GPU {ordinal}");
        return Err(Error::WrongStream { stream, rank, device: device.to_string() });
    }
    // SAFETY: a stream of this device's primary context, which outlives the call.
    Ok(unsafe { Stream::borrow_cuda(device, stream.cu_stream()) }?)
}

fn check_len<T>(name: &'static str, tensor: &impl DeviceSlice<T>, [rows, columns]: [usize; 2]) -> Result<()> {
    let (len, needed) = (tensor.len(), rows.saturating_mul(columns));
    if len < needed {
        let reason = format!("it has {len} elements, but {rows} rows of {columns} need {needed}");
        return Err(Error::BadMatrix { name, reason });
    }
    Ok(())
}
