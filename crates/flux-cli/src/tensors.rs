//! The matrices in and out of files.

use crate::error::Error;
use crate::files;
use flux::{DType, Element};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// `a` [m, k] and `b` [n, k] of a file, and a bias `[n]` if one is wanted, as bytes of the same element type.
pub(crate) struct Operands {
    pub(crate) dtype: DType,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    a: Vec<u8>,
    b: Vec<u8>,
    bias: Option<Vec<u8>>,
}

impl Operands {
    /// `bias` is the name of its tensor.
    pub(crate) fn read(path: &Path, bias: Option<&str>) -> Result<Self, Error> {
        let file = |source| Error::File { action: "read", path: path.into(), source };
        let kind = std::fs::metadata(path).map_err(file)?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(file(std::io::Error::other("it is a device, without an end")));
        }
        let bytes = std::fs::read(path).map_err(file)?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| Error::NotSafetensors { path: path.into(), reason: error.to_string() })?;
        let (a, a_shape, a_dtype) = matrix(&tensors, path, "a")?;
        let check_dtype = |name: &str, dtype| {
            let (a, name) = (name_of(a_dtype), name.escape_debug().to_string());
            if a_dtype == dtype {
                Ok(())
            } else {
                Err(Error::DifferentDTypes { a, name, dtype: name_of(dtype) })
            }
        };
        let (b, b_shape, b_dtype) = matrix(&tensors, path, "b")?;
        check_dtype("b", b_dtype)?;
        let ([m, k], [n, depth]) = (a_shape, b_shape);
        if k != depth {
            return Err(Error::DifferentDepths { a: a_shape, b: b_shape });
        }
        let bias = match bias {
            None => None,
            Some(name) => {
                let (bias, shape, dtype) = find(&tensors, path, name)?;
                check_dtype(name, dtype)?;
                if shape != [n] {
                    let (name, shape) = (name.escape_debug().to_string(), shape.to_vec());
                    return Err(Error::NotABias { name, shape, n });
                }
                Some(bias.to_vec())
            }
        };
        Ok(Self { dtype: a_dtype, m, n, k, a: a.to_vec(), b: b.to_vec(), bias })
    }

    /// `a`, `b` and the bias as elements.
    pub(crate) fn elements<E: Element>(&self) -> (Vec<E>, Vec<E>, Option<Vec<E>>) {
        // Read element by element: bytes of a file are aligned to nothing.
        let read =
            |bytes: &Vec<u8>| bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect();
        (read(&self.a), read(&self.b), self.bias.as_ref().map(read))
    }
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
    let shown_name = name.escape_debug().to_string();
    let tensor = tensors.tensor(name).map_err(|_| {
        let mut names = tensors.names();
        names.sort_unstable();
        let shown: Vec<_> = names.iter().take(8).map(|name| format!("`{}`", name.escape_debug())).collect();
        let found = match names.len().saturating_sub(shown.len()) {
            0 if shown.is_empty() => "none".into(),
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        };
        Error::NoTensor { path: path.into(), name: shown_name.clone(), found }
    })?;
    let dtype = match tensor.dtype() {
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        other => return Err(Error::WrongDType { name: shown_name, dtype: format!("{other:?}") }),
    };
    Ok((tensor.data(), tensor.shape().to_vec(), dtype))
}

fn name_of(dtype: DType) -> &'static str {
    match dtype {
        DType::Bf16 => "BF16",
        DType::F16 => "F16",
    }
}

/// Writes `c` [m, n]; the file is complete or not there at all.
pub(crate) fn write<E: Element>(path: &Path, c: &[E], m: usize, n: usize) -> Result<(), Error> {
    let file = |source| Error::File { action: "write", path: path.into(), source };
    let dtype = match E::DTYPE {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
    };
    let invalid = |error: safetensors::SafeTensorError| file(std::io::Error::other(error.to_string()));
    let view = TensorView::new(dtype, vec![m, n], bytemuck::cast_slice(c)).map_err(invalid)?;
    let bytes = safetensors::serialize(BTreeMap::from([("c", view)]), None).map_err(invalid)?;
    files::replace(path, &bytes)
}
