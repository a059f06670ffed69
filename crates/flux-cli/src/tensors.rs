//! The matrices in and out of files.

use crate::error::Error;
use crate::files;
use flux::{DType, Element};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use std::collections::BTreeMap;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

/// `a` [m, k] and `b` [n, k] of a file, as bytes of the same element type.
pub(crate) struct Operands {
    pub(crate) dtype: DType,
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
    a: Vec<u8>,
    b: Vec<u8>,
}

impl Operands {
    pub(crate) fn read(path: &Path) -> Result<Self, Error> {
        let file = |source| Error::File { action: "read", path: path.into(), source };
        let kind = std::fs::metadata(path).map_err(file)?.file_type();
        if kind.is_char_device() || kind.is_block_device() {
            return Err(file(std::io::Error::other("it is a device, without an end")));
        }
        let bytes = std::fs::read(path).map_err(file)?;
        let tensors = SafeTensors::deserialize(&bytes)
            .map_err(|error| Error::NotSafetensors { path: path.into(), reason: error.to_string() })?;
        let tensor = |name| matrix(&tensors, path, name);
        let ((a, a_shape, a_dtype), (b, b_shape, b_dtype)) = (tensor("a")?, tensor("b")?);
        if a_dtype != b_dtype {
            return Err(Error::DifferentDTypes { a: name_of(a_dtype), b: name_of(b_dtype) });
        }
        let ([m, k], [n, depth]) = (a_shape, b_shape);
        if k != depth {
            return Err(Error::DifferentDepths { a: a_shape, b: b_shape });
        }
        Ok(Self { dtype: a_dtype, m, n, k, a: a.to_vec(), b: b.to_vec() })
    }

    /// `a` and `b` as elements.
    pub(crate) fn elements<E: Element>(&self) -> (Vec<E>, Vec<E>) {
        // Read element by element: bytes of a file are aligned to nothing.
        let read =
            |bytes: &[u8]| bytes.chunks_exact(size_of::<E>()).map(bytemuck::pod_read_unaligned).collect();
        (read(&self.a), read(&self.b))
    }
}

type Matrix<'data> = (&'data [u8], [usize; 2], DType);

fn matrix<'data>(
    tensors: &SafeTensors<'data>,
    path: &Path,
    name: &'static str,
) -> Result<Matrix<'data>, Error> {
    let tensor = tensors.tensor(name).map_err(|_| {
        let mut names = tensors.names();
        names.sort_unstable();
        let shown: Vec<_> = names.iter().take(8).map(|name| format!("`{}`", name.escape_debug())).collect();
        let found = match names.len().saturating_sub(shown.len()) {
            0 if shown.is_empty() => "none".into(),
            0 => shown.join(", "),
            more => format!("{} and {more} more", shown.join(", ")),
        };
        Error::NoTensor { path: path.into(), name, found }
    })?;
    let dtype = match tensor.dtype() {
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        other => return Err(Error::WrongDType { name, dtype: format!("{other:?}") }),
    };
    let shape = <[usize; 2]>::try_from(tensor.shape())
        .map_err(|_| Error::NotAMatrix { name, shape: tensor.shape().to_vec() })?;
    Ok((tensor.data(), shape, dtype))
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
