//! The matrices in and out of files.

use crate::error::Error;
use crate::files;
use flux::{DType, Element};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// The names of tensors that a call need not have.
#[derive(Clone, Copy)]
pub(crate) struct Names<'a> {
    pub(crate) bias: Option<&'a str>,
    /// Of `a` and `b`.
    pub(crate) scales: [Option<&'a str>; 2],
}

/// `a` [m, k] and `b` [n, k] of a file, as bytes of the same element type; a bias `[n]` of the result's type, and scales, if
/// they are wanted.
pub(crate) struct Operands {
    pub(crate) dtype: DType,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    a: Vec<u8>,
    b: Vec<u8>,
    bias: Option<Vec<u8>>,
    /// Of `a` and `b`: one number, or one for each row; empty if none are wanted.
    pub(crate) scales: [Vec<f32>; 2],
}

impl Operands {
    pub(crate) fn read(path: &Path, names: Names<'_>) -> Result<Self, Error> {
        let file = |source| Error::File { action: "read", path: path.into(), source };
        let kind = std::fs::metadata(path).map_err(file)?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(file(std::io::Error::other("it is a device, without an end")));
        }
        let bytes = std::fs::read(path).map_err(file)?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| Error::NotSafetensors { path: path.into(), reason: error.to_string() })?;
        let (a, a_shape, a_dtype) = matrix(&tensors, path, "a")?;
        let check_dtype = |name: &str, dtype, wanted| {
            let (a, name) = (name_of(a_dtype), name.escape_debug().to_string());
            if wanted == dtype {
                Ok(())
            } else {
                Err(Error::DifferentDTypes { a, name, wanted: name_of(wanted), dtype: name_of(dtype) })
            }
        };
        let (b, b_shape, b_dtype) = matrix(&tensors, path, "b")?;
        check_dtype("b", b_dtype, a_dtype)?;
        let ([m, k], [n, depth]) = (a_shape, b_shape);
        if k != depth {
            return Err(Error::DifferentDepths { a: a_shape, b: b_shape });
        }
        let bias = match names.bias {
            None => None,
            Some(name) => {
                let (bias, shape, dtype) = find(&tensors, path, name)?;
                check_dtype(name, dtype, a_dtype.result())?;
                if shape != [n] {
                    let (name, shape) = (name.escape_debug().to_string(), shape.to_vec());
                    return Err(Error::NotABias { name, shape, n });
                }
                Some(bias.to_vec())
            }
        };
        let [a_scale, b_scale] = names.scales;
        let scales = [scale(&tensors, path, a_scale, m)?, scale(&tensors, path, b_scale, n)?];
        Ok(Self { dtype: a_dtype, m, n, k, a: a.to_vec(), b: b.to_vec(), bias, scales })
    }

    /// `a`, `b` and the bias as elements.
    pub(crate) fn elements<E: Element>(&self) -> (Vec<E>, Vec<E>, Option<Vec<E::Result>>) {
        (read(&self.a), read(&self.b), self.bias.as_ref().map(|bias| read(bias)))
    }
}

/// Element by element: bytes of a file are aligned to nothing.
fn read<T: bytemuck::Pod>(bytes: &[u8]) -> Vec<T> {
    bytes.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect()
}

/// The scales called `name`, if any, of a matrix of so many rows.
fn scale(tensors: &SafeTensors<'_>, path: &Path, name: Option<&str>, rows: usize) -> Result<Vec<f32>, Error> {
    let Some(name) = name else { return Ok(Vec::new()) };
    let (tensor, shown_name) = (find_any(tensors, path, name)?, name.escape_debug().to_string());
    if tensor.dtype() != Dtype::F32 {
        let dtype = format!("{:?}", tensor.dtype());
        return Err(Error::WrongDType { name: shown_name, dtype, wanted: "F32" });
    }
    let scales = read(tensor.data());
    if scales.len() != 1 && scales.len() != rows {
        return Err(Error::NotAScale { name: shown_name, shape: tensor.shape().to_vec(), rows });
    }
    Ok(scales)
}

/// A tensor's bytes, shape and element type.
type Tensor<'data, Shape> = (&'data [u8], Shape, DType);

fn matrix<'data>(
    tensors: &SafeTensors<'data>,
    path: &Path,
    name: &str,
) -> Result<Tensor<'data, [usize; 2]>, Error> {
    let (data, shape, dtype) = find(tensors, path, name)?;
    let shape = shape.try_into().map_err(|shape| Error::NotAMatrix { name: name.into(), shape })?;
    Ok((data, shape, dtype))
}

fn find<'data>(
    tensors: &SafeTensors<'data>,
    path: &Path,
    name: &str,
) -> Result<Tensor<'data, Vec<usize>>, Error> {
    let tensor = find_any(tensors, path, name)?;
    let dtype = match tensor.dtype() {
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        Dtype::F8_E4M3 => DType::E4m3,
        other => {
            let (name, dtype) = (name.escape_debug().to_string(), format!("{other:?}"));
            return Err(Error::WrongDType { name, dtype, wanted: "BF16, F16 or F8_E4M3" });
        }
    };
    Ok((tensor.data(), tensor.shape().to_vec(), dtype))
}

fn find_any<'data>(
    tensors: &SafeTensors<'data>,
    path: &Path,
    name: &str,
) -> Result<TensorView<'data>, Error> {
    let shown_name = name.escape_debug().to_string();
    tensors.tensor(name).map_err(|_| {
        let mut names = tensors.names();
        names.sort_unstable();
        let shown: Vec<_> = names.iter().take(8).map(|name| format!("`{}`", name.escape_debug())).collect();
        let found = match names.len().saturating_sub(shown.len()) {
            0 if shown.is_empty() => "none".into(),
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        };
        Error::NoTensor { path: path.into(), name: shown_name.clone(), found }
    })
}

fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "BF16",
        DType::F16 => "F16",
        DType::E4m3 => "F8_E4M3",
    }
}

/// Writes `c` [m, n]; the file is complete or not there at all.
pub(crate) fn write<E: Element>(path: &Path, c: &[E], m: usize, n: usize) -> Result<(), Error> {
    let file = |source| Error::File { action: "write", path: path.into(), source };
    let dtype = match E::DTYPE {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        DType::E4m3 => Dtype::F8_E4M3,
    };
    let invalid = |error: safetensors::SafeTensorError| file(std::io::Error::other(error.to_string()));
    let view = TensorView::new(dtype, vec![m, n], bytemuck::cast_slice(c)).map_err(invalid)?;
    let bytes = safetensors::serialize(BTreeMap::from([("c", view)]), None).map_err(invalid)?;
    files::replace(path, &bytes)
}
