//! The same calls with cudarc's tensors: anything that implements its `DevicePtr` and `DevicePtrMut`.

use crate::{
    Address, AgGemm, AgGemmCall, Element, Error, GemmRs, GemmRsCall, Group, Matrix, PathChoice, Result,
};
use ::cudarc::driver::{CudaStream, DevicePtr, DevicePtrMut, DeviceSlice, SyncOnDrop};
use flux_launch::DType;
use flux_memory::Stream;

impl AgGemm {
    /// [`AgGemm::enqueue`] for tensors without gaps: `a` `[m_r, K]`, `b` `[N_r, K]`, `c` `[m, N_r]`, on `stream`.
    pub fn enqueue_cudarc<T: Element>(
        &self,
        rank: usize,
        m: usize,
        a: &impl DevicePtr<T>,
        b: &impl DevicePtr<T>,
        c: &mut impl DevicePtrMut<T>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let group = self.group();
        let (k, columns) = (self.spec().k, self.columns(rank).len());
        let borrowed = borrow::<T>(group, rank, self.spec().dtype, stream)?;
        check_len("A", a, self.rows(rank, m).len(), k)?;
        check_len("B", b, columns, k)?;
        check_len("C", c, m, columns)?;
        let ((a, _reads_a), (b, _reads_b)) = (enter(a, stream), enter(b, stream));
        let (c, _writes_c) = c.device_ptr_mut(stream);
        let call =
            AgGemmCall { m, a, b: Matrix::contiguous(b, k), c: Matrix::contiguous(Address(c), columns) };
        // SAFETY: the lengths were checked; cudarc orders later uses of the tensors after this stream's work.
        unsafe { self.enqueue(rank, &call, &borrowed) }
    }
}

impl GemmRs {
    /// [`GemmRs::enqueue`] for tensors without gaps: `a` `[m, K_r]`, `b` `[N, K_r]`, `c` `[m_r, N]`, on `stream`.
    pub fn enqueue_cudarc<T: Element>(
        &self,
        rank: usize,
        m: usize,
        a: &impl DevicePtr<T>,
        b: &impl DevicePtr<T>,
        c: &mut impl DevicePtrMut<T>,
        stream: &CudaStream,
    ) -> Result<PathChoice> {
        let group = self.group();
        let (n, depth) = (self.spec().n, self.depth(rank).len());
        let borrowed = borrow::<T>(group, rank, self.spec().dtype, stream)?;
        check_len("A", a, m, depth)?;
        check_len("B", b, n, depth)?;
        check_len("C", c, self.rows(rank, m).len(), n)?;
        let ((a, _reads_a), (b, _reads_b)) = (enter(a, stream), enter(b, stream));
        let (c, _writes_c) = c.device_ptr_mut(stream);
        let call = GemmRsCall {
            m,
            a: Matrix::contiguous(a, depth),
            b: Matrix::contiguous(b, depth),
            c: Matrix::contiguous(Address(c), n),
        };
        // SAFETY: as above.
        unsafe { self.enqueue(rank, &call, &borrowed) }
    }
}

fn enter<'a, T>(tensor: &'a impl DevicePtr<T>, stream: &'a CudaStream) -> (Address, SyncOnDrop<'a>) {
    let (address, sync) = tensor.device_ptr(stream);
    (Address(address), sync)
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

fn check_len<T>(name: &'static str, tensor: &impl DeviceSlice<T>, rows: usize, columns: usize) -> Result<()> {
    let (len, needed) = (tensor.len(), rows.saturating_mul(columns));
    if len < needed {
        let reason = format!("it has {len} elements, but {rows} rows of {columns} need {needed}");
        return Err(Error::BadMatrix { name, reason });
    }
    Ok(())
}
