//! Tensor maps: how the tensor copy engine of Hopper GPUs sees a matrix.

use crate::{DType, Result};
use bytemuck::{Pod, Zeroable};
use cudarc::driver::sys::{
    self, CUtensorMap, CUtensorMapDataType, CUtensorMapFloatOOBfill, CUtensorMapInterleave,
    CUtensorMapL2promotion, CUtensorMapSwizzle,
};
use flux_memory::Address;
use flux_memory::cuda::check;

/// A tensor map, as the driver encodes it.
#[derive(Clone, Copy, Debug, Pod, Zeroable)]
#[repr(C, align(64))]
pub(crate) struct TensorMap([u64; 16]);

/// A matrix whose rows begin at multiples of 16 bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MapOf {
    pub(crate) address: Address,
    pub(crate) rows: u64,
    pub(crate) columns: u64,
    /// Elements from one row to the next.
    pub(crate) pitch: u64,
    /// What one instruction moves: rows, and columns of 128, 64, 32 or 16 bytes.
    pub(crate) box_rows: u32,
    pub(crate) box_columns: u32,
}

/// Matrices that lie behind each other, all of which a box takes its part of.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Layers {
    pub(crate) count: u32,
    /// Elements from one to the next.
    pub(crate) pitch: u64,
}

impl MapOf {
    /// Elements outside the matrix are read as zeros and not written.
    pub(crate) fn encode(&self, dtype: DType) -> Result<TensorMap> {
        self.encode_rank(2, dtype, Layers { count: 1, pitch: 0 })
    }

    /// The same of this matrix and those behind it.
    pub(crate) fn encode_layers(&self, dtype: DType, layers: Layers) -> Result<TensorMap> {
        self.encode_rank(3, dtype, layers)
    }

    fn encode_rank(&self, rank: u32, dtype: DType, layers: Layers) -> Result<TensorMap> {
        let mut map = CUtensorMap { opaque: [0; 16] };
        let bytes = dtype.bytes() as u64;
        let data_type = match dtype {
            DType::Bf16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            DType::F16 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            DType::E4m3 => CUtensorMapDataType::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        };
        let swizzle = match u64::from(self.box_columns) * bytes {
            16 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_NONE,
            32 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_32B,
            64 => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_64B,
            _ => CUtensorMapSwizzle::CU_TENSOR_MAP_SWIZZLE_128B,
        };
        let extents = [self.columns, self.rows, u64::from(layers.count)];
        let pitch_bytes = [self.pitch, layers.pitch].map(|pitch| pitch.saturating_mul(bytes)); // what is too large is refused
        let boxes = [self.box_columns, self.box_rows, layers.count];
        // SAFETY: of rank 3 at most: three extents, boxes and element strides, two pitches; the driver only encodes, and refuses
        // what it cannot.
        check("cuTensorMapEncodeTiled", unsafe {
            sys::cuTensorMapEncodeTiled(
                &raw mut map,
                data_type,
                rank,
                self.address.0 as *mut std::ffi::c_void,
                extents.as_ptr(),
                pitch_bytes.as_ptr(),
                boxes.as_ptr(),
                [1, 1, 1].as_ptr(),
                CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
                swizzle,
                CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        })?;
        Ok(TensorMap(map.opaque))
    }
}
