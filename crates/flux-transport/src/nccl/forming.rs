//! How ranks come to a communicator: which NCCL all have, whether they share GPUs, and the id that they meet by.

use super::nccl_error;
use crate::{Error, Result};
use flux_memory::{Device, Peers, PerRank};
use nccl_sys::{Library, Version, ncclUniqueId};

/// The first version that puts several ranks on one GPU.
const SHARES_GPUS: Version = Version::new(2, 30, 0);

/// NCCL; `why` says what needs it, should it not be found.
pub(super) fn library(why: &'static str) -> Result<&'static Library> {
    Library::load().map_err(|error| Error::Nccl { what: why, reason: error.to_string() })
}

pub(super) fn unique_id(nccl: &Library) -> Result<ncclUniqueId> {
    let mut id = ncclUniqueId { internal: [0; 128] };
    // SAFETY: a place for the result.
    let made = nccl.check(unsafe { (nccl.ncclGetUniqueId)(&raw mut id) });
    made.map(|()| id).map_err(|error| nccl_error("make a unique id", error))
}

/// Whether all of `devices` are GPUs, each another one.
pub(super) fn have_own_gpus(devices: &PerRank<Device>) -> bool {
    let ordinals: Vec<_> =
        devices.iter().filter_map(|device| device.as_cuda().map(|gpu| gpu.ordinal())).collect();
    let doubled = ordinals.iter().enumerate().any(|(rank, gpu)| ordinals[..rank].contains(gpu));
    !doubled && ordinals.len() == devices.ranks().len()
}

/// What `start` makes for each rank of this process: each on a thread of its own, for its communicator waits for the others'.
pub(super) fn on_threads<T: Send>(
    devices: &PerRank<Device>,
    start: impl Fn(usize, &Device) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let start = &start;
    std::thread::scope(|scope| {
        let of_rank = |(rank, device)| {
            std::thread::Builder::new()
                .name("flux-nccl-init".into())
                .spawn_scoped(scope, move || start(rank, device))
                .map_err(|error| flux_memory::Error::NoThread { reason: error.to_string() })
        };
        let threads: Vec<_> = devices.pairs().map(of_rank).collect::<Result<_, _>>()?;
        let panicked = || Error::Nccl { what: "make a communicator", reason: "its thread panicked".into() };
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(panicked()))).collect()
    })
}

/// What all processes have in common before they join a communicator.
pub(super) struct Agreed {
    pub(super) nccl: &'static Library,
    pub(super) id: ncclUniqueId,
    /// Whether some of them share a GPU.
    pub(super) shares: bool,
}

/// Finds out whether all processes have the same NCCL, which can do what they want of it, and gives them an id to meet by. Fails
/// on all ranks if it fails on one.
pub(super) fn agree(peers: &Peers, device: &Device, why: &'static str) -> Result<Agreed> {
    let own = library(why).and_then(|nccl| {
        let gpu = device.as_cuda().map(|gpu| gpu.uuid()).transpose()?.unwrap_or_default();
        Ok((nccl, gpu))
    });
    let said = own.as_ref().map(|(nccl, gpu)| [&gpu[..], nccl.version().to_string().as_bytes()].concat());
    let all = peers.exchange("say which NCCL they have", said.map_err(failed))?;
    let (nccl, gpu) = own?;
    let version = nccl.version();
    let theirs =
        |bytes: &[u8]| String::from_utf8_lossy(bytes.get(gpu.len()..).unwrap_or_default()).into_owned();
    if let Some(other) = all.iter().position(|said| theirs(said) != version.to_string()) {
        let reason = format!(
            "rank {other} has NCCL {}, this rank {version} ({}); install the same on all nodes",
            theirs(&all[other]),
            nccl.path().display()
        );
        return Err(Error::Nccl { what: "ranks have different versions", reason });
    }
    let shares = all
        .iter()
        .enumerate()
        .any(|(rank, said)| all[..rank].iter().any(|other| other.get(..gpu.len()) == said.get(..gpu.len())));
    if shares && version < SHARES_GPUS {
        let reason =
            format!("that takes NCCL {SHARES_GPUS} or newer, this is {version}; give each rank its own GPU");
        return Err(Error::Nccl { what: "ranks share a GPU", reason });
    }
    let id = if peers.rank() == 0 { Some(unique_id(nccl)) } else { None };
    let said = match &id {
        Some(Ok(id)) => Ok(id.internal.map(|byte| byte.cast_unsigned()).to_vec()),
        Some(Err(error)) => Err(failed(error)),
        None => Ok(Vec::new()),
    };
    let bytes = peers.exchange("agree on a communicator", said)?.swap_remove(0);
    let bytes: [u8; 128] = bytes.try_into().map_err(|_| flux_memory::Error::BadPeer {
        rank: 0,
        reason: "it told no id of a communicator".into(),
    })?;
    let id = ncclUniqueId { internal: bytes.map(|byte| byte.cast_signed()) };
    Ok(Agreed { nccl, id, shares })
}

/// An error as what all processes are told.
pub(super) fn failed(error: &Error) -> flux_memory::Error {
    flux_memory::Error::Failed { what: "use NCCL".into(), reason: error.to_string() }
}

/// Says what NCCL may have lacked, where ranks share a GPU.
pub(super) fn hint(error: Error, shares: bool) -> Error {
    match error {
        Error::Nccl { what, reason } if shares => {
            let hint =
                "several ranks on one GPU take NCCL_MULTI_RANK_GPU_ENABLE=1 in the environment of each";
            Error::Nccl { what, reason: format!("{reason}; {hint}") }
        }
        other => other,
    }
}
