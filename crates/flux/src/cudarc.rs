//! The same calls with cudarc's tensors: anything that implements its `DevicePtr` and `DevicePtrMut`.

use crate::{
    Address, AgGemm, AgGemmCall, Element, Error, GemmAr, GemmArCall, GemmRs, GemmRsCall, Group, Matrix,
    PathChoice, Result, Scale, Scales,
};
use ::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice};
use flux_launch::DType;
use flux_memory::Stream;

/// A [`Scale`] as a tensor.
#[derive(Clone, Copy)]
pub enum CudarcScale<'a> {
    /// One number for the whole matrix.
    Tensor(&'a dyn DevicePtr<f32>),
    /// One for each of the rank's rows.
    Rows(&'a dyn DevicePtr<f32>),
}

/// [`Scales`] as tensors.
#[derive(Clone, Copy, Default)]
pub struct CudarcScales<'a> {
    /// A's; none is 1.
    pub a: Option<CudarcScale<'a>>,
    /// B's; none is 1.
    pub b: Option<CudarcScale<'a>>,
}

impl<'a> CudarcScale<'a> {
    const fn tensor(self) -> &'a dyn DevicePtr<f32> {
        match self {
            CudarcScale::Tensor(tensor) | CudarcScale::Rows(tensor) => tensor,
        }
    }

    fn check(self, name: &'static str, rows: usize) -> Result<()> {
        let (len, needed) = (self.tensor().len(), if matches!(self, Self::Tensor(_)) { 1 } else { rows });
        if len < needed {
            let reason = format!("it has {len} elements, but {needed} are needed");
            return Err(Error::BadScale { name, reason });
        }
        Ok(())
    }
}

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
        scales: CudarcScales<'_>,
        bias: Option<&dyn DevicePtr<T::Result>>,
        c: &mut impl DevicePtrMut<T::Result>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let (k, weight_rows) = (self.spec().k, self.weight_rows(rank).len());
        let shapes = [[self.rows(rank, m).len(), k], [weight_rows, k], [m, self.columns(rank).len()]];
        with_tensors(
            (self.group(), self.spec().dtype),
            rank,
            (a, b, scales, bias, c),
            shapes,
            stream,
            |[a, b, c], scales, bias, stream| {
                // SAFETY: the lengths were checked; cudarc orders later uses of the tensors after this stream's work.
                unsafe { self.enqueue(rank, &AgGemmCall { m, a: a.address, b, scales, bias, c }, stream) }
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
        scales: CudarcScales<'_>,
        bias: Option<&dyn DevicePtr<T::Result>>,
        c: &mut impl DevicePtrMut<T::Result>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let (n, depth) = (self.spec().n, self.depth(rank).len());
        let shapes = [[m, depth], [n, depth], [self.rows(rank, m).len(), n]];
        with_tensors(
            (self.group(), self.spec().dtype),
            rank,
            (a, b, scales, bias, c),
            shapes,
            stream,
            |[a, b, c], scales, bias, stream| {
                // SAFETY: as above.
                unsafe { self.enqueue(rank, &GemmRsCall { m, a, b, scales, bias, c }, stream) }
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
        scales: CudarcScales<'_>,
        bias: Option<&dyn DevicePtr<T::Result>>,
        c: &mut impl DevicePtrMut<T::Result>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let (n, depth) = (self.spec().n, self.depth(rank).len());
        let shapes = [[m, depth], [n, depth], [m, n]];
        with_tensors(
            (self.group(), self.spec().dtype),
            rank,
            (a, b, scales, bias, c),
            shapes,
            stream,
            |[a, b, c], scales, bias, stream| {
                // SAFETY: as above.
                unsafe { self.enqueue(rank, &GemmArCall { m, a, b, scales, bias, c }, stream) }
            },
        )
    }
}

/// A, B, their scales, the bias and C.
type Tensors<'a, T, A, B, C> =
    (&'a A, &'a B, CudarcScales<'a>, Option<&'a dyn DevicePtr<<T as Element>::Result>>, &'a mut C);

/// Checks the tensors of a call of `rank` against the rows and columns in `shapes`, and hands them to `enqueue`. A bias
/// has an element for each row of B.
fn with_tensors<T: Element>(
    (group, dtype): (&Group, DType),
    rank: usize,
    (a, b, scales, bias, c): Tensors<
        '_,
        T,
        impl DevicePtr<T>,
        impl DevicePtr<T>,
        impl DevicePtrMut<T::Result>,
    >,
    shapes: [[usize; 2]; 3],
    stream: &CudaStream,
    enqueue: impl FnOnce([Matrix; 3], Scales, Option<Address>, &Stream) -> Result<PathChoice>,
) -> Result<PathChoice> {
    let borrowed = borrow::<T>(group, rank, dtype, stream)?;
    check_len("A", a, shapes[0])?;
    check_len("B", b, shapes[1])?;
    check_len("C", c, shapes[2])?;
    if let Some(bias) = bias.filter(|bias| bias.len() < shapes[1][0]) {
        let reason = format!("it has {} elements, but there are {} rows", bias.len(), shapes[1][0]);
        return Err(Error::BadBias { reason });
    }
    for (name, scale, [rows, _]) in [("A", scales.a, shapes[0]), ("B", scales.b, shapes[1])] {
        scale.map_or(Ok(()), |scale| scale.check(name, rows))?;
    }
    let ((a, _reads_a), (b, _reads_b)) = (a.device_ptr(stream), b.device_ptr(stream));
    let scale_pointers =
        [scales.a, scales.b].map(|scale| scale.map(|scale| scale.tensor().device_ptr(stream)));
    let bias = bias.map(|bias| bias.device_ptr(stream));
    let (c, _writes_c) = c.device_ptr_mut(stream);
    let [a, b, c] = [(a, 0), (b, 1), (c, 2)]
        .map(|(address, index)| Matrix::contiguous(Address(address), shapes[index][1]));
    let scale = |scale: Option<CudarcScale<'_>>, index: usize| {
        let address = Address(scale_pointers[index].as_ref()?.0);
        Some(if matches!(scale?, CudarcScale::Rows(_)) {
            Scale::Rows(address)
        } else {
            Scale::Tensor(address)
        })
    };
    let scales = Scales { a: scale(scales.a, 0), b: scale(scales.b, 1) };
    enqueue([a, b, c], scales, bias.as_ref().map(|(bias, _read)| Address(*bias)), &borrowed)
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
