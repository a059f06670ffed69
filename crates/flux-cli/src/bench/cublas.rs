//! cuBLASLt, to compare with: the fastest of the algorithms that it suggests. Of 8-bit elements, with fast accumulation, as ours.
//!
//! cudarc panics when it is called without the library, so the library is looked for here first.

use super::shapes::Shape;
use crate::error::Error;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use flux::{Address, Buffer, DType, Device, OperandParts, Placement, Scale, Scales, Stream, Timer};
use std::ffi::c_void;
use std::path::PathBuf;
use std::time::Duration;

/// As the library's own documentation recommends for Hopper.
const WORKSPACE_BYTES: usize = 32 << 20;

/// How many algorithms the heuristic is asked for, and calls after which the fastest is known.
const ALGORITHMS: usize = 8;
const TRIALS: usize = 3;

/// `CUBLASLT_MATMUL_DESC_A_SCALE_MODE` and `..._B_SCALE_MODE`, and `CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F`, of cuBLAS 12.9 and up.
const A_SCALE_MODE: u32 = 31;
const B_SCALE_MODE: u32 = 32;
const ONE_FOR_EACH_ROW: i32 = 3;

/// Where the library lies that this process has loaded.
fn loaded_library() -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let path = maps
        .lines()
        .find_map(|line| Some(&line[line.find('/')?..]).filter(|path| path.contains("libcublasLt.")))?;
    Some(PathBuf::from(path))
}

/// The library, opened for one GPU.
pub(crate) struct Cublas {
    handle: sys::cublasLtHandle_t,
    device: Device,
}

impl Cublas {
    pub(crate) fn open(device: &Device) -> Result<Self, Error> {
        let Some(gpu) = device.as_cuda() else { return Err(Error::CublasOnHost) };
        // SAFETY: loading the library runs only its own initialisers.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::NoCublas);
        }
        gpu.bind().map_err(flux::Error::from)?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(Self { handle, device: device.clone() })
    }

    /// The library's version, as it writes it: 130100 is 13.1.
    pub(crate) fn version() -> usize {
        // SAFETY: takes nothing, and a `Cublas` is open.
        unsafe { sys::cublasLtGetVersion() }
    }
}

impl Drop for Cublas {
    fn drop(&mut self) {
        // SAFETY: made by `open`, destroyed once. A failure changes nothing any more.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

/// C = A·Bᵀ of one shape, row-major without gaps, accumulated in fp32.
pub(crate) struct Multiplication<'cublas> {
    cublas: &'cublas Cublas,
    description: Description,
    workspace: Buffer,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl<'cublas> Multiplication<'cublas> {
    /// Tries what the heuristic suggests on operands of `shape`, and keeps the fastest; `None` if it suggests nothing.
    pub(crate) fn fastest(
        cublas: &'cublas Cublas,
        shape: Shape,
        dtype: DType,
        operands: &OperandParts,
        stream: &Stream,
    ) -> Result<Option<Self>, Error> {
        let memory = |error| Error::from(flux::Error::Memory(error));
        let mut description = Description::new(shape, dtype, operands.scales)?;
        let mut workspace =
            Buffer::allocate(&cublas.device, WORKSPACE_BYTES, Placement::Device).map_err(memory)?;
        let timer = Timer::new(&cublas.device).map_err(memory)?;
        let mut fastest = None;
        for algorithm in heuristic(cublas, &description)? {
            let candidate = Self { cublas, description, workspace, algorithm };
            let run = || -> Result<Duration, Error> {
                candidate.enqueue(operands, stream)?;
                timer.begin(stream).map_err(memory)?;
                (0..TRIALS).try_for_each(|_| candidate.enqueue(operands, stream))?;
                timer.end(stream).map_err(memory)?;
                timer.elapsed().map_err(memory)
            };
            // An algorithm that does not run after all is none.
            if let Ok(time) = run() {
                fastest = fastest.into_iter().chain([(time, algorithm)]).min_by_key(|&(time, _)| time);
            }
            Self { description, workspace, .. } = candidate;
        }
        Ok(fastest.map(|(_, algorithm)| Self { cublas, description, workspace, algorithm }))
    }

    /// Enqueues a multiplication of operands of its shape, with the scales of the first.
    pub(crate) fn enqueue(&self, operands: &OperandParts, stream: &Stream) -> Result<(), Error> {
        let Stream::Cuda(stream) = stream else { return Err(Error::CublasOnHost) };
        stream.device().bind().map_err(flux::Error::from)?;
        let OperandParts { a, b, c, .. } = operands;
        let (alpha, beta) = (1.0_f32, 0.0_f32);
        let description = &self.description;
        // SAFETY: the operands have the extents of the description, and live until the stream has passed this; so do the
        // workspace and the handle.
        let enqueued = unsafe {
            result::matmul(
                self.cublas.handle,
                description.operation,
                (&raw const alpha).cast(),
                (&raw const beta).cast(),
                b.address.as_ptr::<c_void>(),
                description.b,
                a.address.as_ptr::<c_void>(),
                description.a,
                c.address.as_ptr::<c_void>(),
                description.c,
                c.address.as_ptr(),
                description.c,
                &raw const self.algorithm,
                self.workspace.address().as_ptr(),
                WORKSPACE_BYTES,
                stream.raw().cast(),
            )
        };
        enqueued.map_err(failed("cublasLtMatmul"))
    }
}

/// What is to be computed. For cuBLAS, which counts columns first, row-major C = A·Bᵀ is Cᵀ = B·Aᵀ.
struct Description {
    operation: sys::cublasLtMatmulDesc_t,
    a: sys::cublasLtMatrixLayout_t,
    b: sys::cublasLtMatrixLayout_t,
    c: sys::cublasLtMatrixLayout_t,
}

impl Description {
    fn new(shape: Shape, dtype: DType, scales: Scales) -> Result<Self, Error> {
        let element = |dtype| match dtype {
            DType::Bf16 => sys::cudaDataType::CUDA_R_16BF,
            DType::F16 => sys::cudaDataType::CUDA_R_16F,
            DType::E4m3 => sys::cudaDataType::CUDA_R_8F_E4M3,
        };
        let layout = |dtype: DType, columns: usize, rows: usize| {
            let pitch = i64::try_from(columns).unwrap_or(i64::MAX);
            result::create_matrix_layout(element(dtype), columns as u64, rows as u64, pitch)
                .map_err(failed("cublasLtMatrixLayoutCreate"))
        };
        let operation = result::create_matmul_desc(
            sys::cublasComputeType_t::CUBLAS_COMPUTE_32F,
            sys::cudaDataType::CUDA_R_32F,
        )
        .map_err(failed("cublasLtMatmulDescCreate"))?;
        let Shape { m, n, k } = shape;
        let [a, b, c] = [(dtype, k, m), (dtype, k, n), (dtype.result(), n, m)]
            .map(|(dtype, columns, rows)| layout(dtype, columns, rows));
        let this = Self { operation, a: a?, b: b?, c: c? };
        let transpose: i32 = 1; // CUBLAS_OP_T
        this.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA, &transpose)?;
        if dtype.is_scaled() {
            let fast: i8 = 1;
            this.set(sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_FAST_ACCUM, &fast)?;
        }
        // Ours of A is theirs of B.
        for (attribute, mode, scale) in [
            (
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                A_SCALE_MODE,
                scales.b,
            ),
            (
                sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                B_SCALE_MODE,
                scales.a,
            ),
        ] {
            if let Some(Scale::Tensor(Address(pointer)) | Scale::Rows(Address(pointer))) = scale {
                this.set(attribute, &pointer)?;
            }
            if matches!(scale, Some(Scale::Rows(_))) {
                this.set_scale_mode(mode, ONE_FOR_EACH_ROW)?;
            }
        }
        Ok(this)
    }

    /// Says how many scales a matrix has. Bindings of older versions do not know these attributes, so the library that they loaded is
    /// asked by name.
    fn set_scale_mode(&self, attribute: u32, mode: i32) -> Result<(), Error> {
        type Set =
            unsafe extern "C" fn(sys::cublasLtMatmulDesc_t, u32, *const c_void, usize) -> sys::cublasStatus_t;
        let path = loaded_library().ok_or(Error::NoCublas)?;
        // SAFETY: it is loaded already, so nothing runs; the function has had this signature in all versions, and copies the value. The
        // bindings keep the library open.
        let status = unsafe {
            let library = libloading::Library::new(path).map_err(|_| Error::NoCublas)?;
            let set = library.get::<Set>(b"cublasLtMatmulDescSetAttribute").map_err(|_| Error::NoCublas)?;
            set(self.operation, attribute, (&raw const mode).cast(), size_of::<i32>())
        };
        status.result().map_err(failed("cublasLtMatmulDescSetAttribute, for a scale of each row"))
    }

    /// Sets an attribute, whose type this is.
    fn set<T>(&self, attribute: sys::cublasLtMatmulDescAttributes_t, value: &T) -> Result<(), Error> {
        // SAFETY: the description was made by `new`; the library copies the value.
        let set = unsafe {
            result::set_matmul_desc_attribute(
                self.operation,
                attribute,
                std::ptr::from_ref(value).cast(),
                size_of::<T>(),
            )
        };
        set.map_err(failed("cublasLtMatmulDescSetAttribute"))
    }
}

impl Drop for Description {
    fn drop(&mut self) {
        // SAFETY: made by `new`, destroyed once. A failure changes nothing any more.
        unsafe {
            let _ = [self.a, self.b, self.c].map(|layout| result::destroy_matrix_layout(layout).ok());
            let _ = result::destroy_matmul_desc(self.operation);
        }
    }
}

/// The algorithms that the heuristic suggests, the best first.
fn heuristic(cublas: &Cublas, description: &Description) -> Result<Vec<sys::cublasLtMatmulAlgo_t>, Error> {
    let preference = result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
    let empty = std::mem::MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
    // SAFETY: numbers, and a status whose 0 is success.
    let mut results = [unsafe { empty.assume_init() }; ALGORITHMS];
    let mut count = 0;
    let workspace_bytes = WORKSPACE_BYTES as u64;
    // SAFETY: all descriptors are alive; the attribute has this type, and the results have room for as many as are asked
    // for.
    let suggested = unsafe {
        let set = result::set_matmul_pref_attribute(
            preference,
            sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
            (&raw const workspace_bytes).cast(),
            size_of_val(&workspace_bytes),
        );
        let suggested = set.and_then(|()| {
            sys::cublasLtMatmulAlgoGetHeuristic(
                cublas.handle,
                description.operation,
                description.b,
                description.a,
                description.c,
                description.c,
                preference,
                i32::try_from(ALGORITHMS).unwrap_or(1),
                results.as_mut_ptr(),
                &raw mut count,
            )
            .result()
        });
        let _ = result::destroy_matmul_pref(preference);
        suggested
    };
    match suggested {
        Err(CublasError(sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED)) => return Ok(Vec::new()),
        other => other.map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?,
    }
    let count = usize::try_from(count).unwrap_or(0).min(ALGORITHMS);
    let works = |result: &&sys::cublasLtMatmulHeuristicResult_t| result.state.result().is_ok();
    Ok(results[..count].iter().filter(works).map(|result| result.algo).collect())
}

fn failed(call: &'static str) -> impl Fn(CublasError) -> Error {
    move |error| Error::Cublas { call, status: error.to_string() }
}
