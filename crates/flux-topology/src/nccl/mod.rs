//! NCCL's topology files: what `NCCL_TOPO_FILE` takes and `NCCL_TOPO_DUMP_FILE` writes.

mod classify;
mod element;
mod place;
mod read;
mod write;

pub(crate) use element::Element;
pub(crate) use read::read;
