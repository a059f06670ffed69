//! How ranks get at each other: which nodes there are, who addresses whose memory, and what goes between the others.

use crate::{Error, GroupConfig, Result};
use flux_memory::{
    Backend, Device, FaultLog, Peers, PerRank, Placement, Reach, SymmetricBuffer, SymmetricSpace,
};
use flux_transport::{Exchange, NcclExchange, Nvshmem, PutExchange, SocketExchange};
use std::num::NonZeroUsize;
use std::ops::Range;
use std::sync::Arc;

/// What goes between two ranks goes how. `docs/transports.md` says what each costs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Transport {
    /// [`Transport::P2p`] within a node; between nodes [`Transport::Nccl`] on GPUs, [`Transport::Sockets`] on the host.
    #[default]
    Auto,
    /// Ranks write to each other's memory. Only on one node.
    P2p,
    /// NCCL's send and receive, also within a node. Only on GPUs.
    Nccl,
    /// Sockets, also within a node. Only on the host backend.
    Sockets,
    /// NVSHMEM: its memory, and its puts where it gives no address of a peer's, which between nodes is never asked for. Only on GPUs,
    /// one rank per process.
    Nvshmem,
}

impl std::fmt::Display for Transport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Transport::Auto => "auto",
            Transport::P2p => "p2p",
            Transport::Nccl => "nccl",
            Transport::Sockets => "sockets",
            Transport::Nvshmem => "nvshmem",
        })
    }
}

impl std::str::FromStr for Transport {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let all = [Transport::Auto, Transport::P2p, Transport::Nccl, Transport::Sockets, Transport::Nvshmem];
        let found = all.into_iter().find(|transport| transport.to_string() == name);
        found.ok_or_else(|| Error::NoSuchTransport { name: name.to_owned() })
    }
}

/// Who addresses whose memory in a group whose ranks live on `machines`.
pub(crate) fn reach(machines: &[Range<usize>], config: &GroupConfig, backend: Backend) -> Result<Reach> {
    let world_size = machines.last().map_or(0, |machine| machine.end);
    let reach = match config.fake_nodes.map(NonZeroUsize::get) {
        None if machines.len() < 2 => Reach::one_node(world_size),
        None => Reach::of(machines.to_vec()),
        Some(nodes) if nodes > world_size => {
            return Err(Error::BadNodes {
                reason: format!("{nodes} nodes are more than {world_size} ranks"),
            });
        }
        Some(_) if machines.len() > 1 => {
            let reason = format!("the ranks run on {} machines already", machines.len());
            return Err(Error::BadNodes { reason });
        }
        Some(nodes) => Reach::split(world_size, nodes),
    };
    let transport = config.transport;
    let unfit = |reason: &str| Err(Error::UnfitTransport { transport, reason: reason.to_owned() });
    match (transport, backend) {
        (Transport::Auto, _) => Ok(reach),
        (Transport::P2p, _) if reach.nodes().len() > 1 => {
            unfit("ranks of different nodes cannot address each other's memory")
        }
        (Transport::P2p, _) => Ok(reach),
        (Transport::Nccl, Backend::Cuda) | (Transport::Sockets, Backend::Host) => {
            Ok(reach.without_addresses())
        }
        (Transport::Nccl, Backend::Host) => unfit("NCCL connects GPUs, and this group runs on the host"),
        (Transport::Sockets, Backend::Cuda) => unfit("sockets connect ranks of the host backend only"),
        (Transport::Nvshmem, Backend::Cuda) if config.peer_memory == Placement::PinnedHost => {
            unfit("NVSHMEM's memory is the GPUs' own, and peers were to write to pinned host memory")
        }
        (Transport::Nvshmem, Backend::Cuda) => Ok(reach),
        (Transport::Nvshmem, Backend::Host) => {
            unfit("NVSHMEM connects GPUs, and this group runs on the host")
        }
    }
}

/// What ranks that live in this process, on `devices`, exchange with those out of reach by.
pub(crate) fn exchanges_here(
    transport: Transport,
    devices: &PerRank<Device>,
    reach: &Reach,
    faults: &PerRank<Arc<FaultLog>>,
) -> Result<PerRank<Option<Arc<dyn Exchange>>>> {
    if transport == Transport::Nvshmem {
        let reason =
            "NVSHMEM knows one rank in each process; start them with `flux launch`, torchrun or mpirun"
                .to_owned();
        return Err(Error::UnfitTransport { transport, reason });
    }
    if reach.is_complete() {
        return Ok(PerRank::new(devices.ranks(), |_| None));
    }
    let on_gpus = devices.iter().any(|device| device.as_cuda().is_some());
    let exchanges: Vec<Option<Arc<dyn Exchange>>> = if on_gpus {
        NcclExchange::here(devices, faults, reach)?.into_iter().map(some).collect()
    } else {
        SocketExchange::here(reach)?.into_iter().map(some).collect()
    };
    Ok(exchanges.into())
}

/// The same of this process's rank among `peers`, on `device`.
pub(crate) fn exchange_among(
    peers: &Peers,
    device: &Device,
    reach: &Reach,
    faults: &Arc<FaultLog>,
    nvshmem: Option<(&Arc<Nvshmem>, SymmetricBuffer)>,
) -> Result<Option<Arc<dyn Exchange>>> {
    let place = (peers.rank(), peers.world_size());
    Ok(match (device, nvshmem) {
        _ if reach.is_complete() => None,
        (_, Some((nvshmem, words))) => {
            some(PutExchange::new(Arc::<Nvshmem>::clone(nvshmem), device, place, words, faults)?)
        }
        (Device::Host(_), None) => some(SocketExchange::among(peers, reach)?),
        (Device::Cuda(_), None) => some(NcclExchange::among(peers, device, faults, reach)?),
    })
}

fn some(exchange: impl Exchange + 'static) -> Option<Arc<dyn Exchange>> {
    Some(Arc::new(exchange))
}

/// Makes this process a PE of NVSHMEM, if that is the transport. Then memory of `space` comes from there, and ranks of a node
/// address each other's if it gives them addresses; and there are words for a [`PutExchange`].
pub(crate) fn join_nvshmem(
    space: SymmetricSpace,
    peers: &Peers,
    device: &Device,
    config: &GroupConfig,
) -> Result<(SymmetricSpace, Option<(Membership, SymmetricBuffer)>)> {
    if config.transport != Transport::Nvshmem {
        return Ok((space, None));
    }
    let nvshmem = Arc::new(Nvshmem::join(peers, device)?);
    let (heap, reach) = (Arc::<Nvshmem>::clone(&nvshmem), Reach::clone(space.reach()));
    let space = space.with_heap(heap);
    let unaddressed = space.clone().with_reach(reach.clone().without_addresses());
    let bytes = PutExchange::bytes(peers.world_size());
    let words = SymmetricBuffer::allocate(unaddressed, bytes, Placement::Device)?;
    let reach = nvshmem.reach(peers, reach, &words)?;
    Ok((space.with_reach(reach), Some((Membership { nvshmem, together: false }, words))))
}

/// This process as a PE of NVSHMEM, which ends with this if all ranks leave together.
#[derive(Debug)]
pub(crate) struct Membership {
    pub(crate) nvshmem: Arc<Nvshmem>,
    pub(crate) together: bool,
}

impl Drop for Membership {
    fn drop(&mut self) {
        if self.together
            && let Err(error) = self.nvshmem.leave()
        {
            tracing::warn!(%error, "NVSHMEM has not ended");
        }
    }
}

/// Lets GPUs that are to address each other's memory do so.
pub(crate) fn enable_peer_access(devices: &[Device], reach: &Reach, config: &GroupConfig) -> Result<()> {
    if config.peer_memory == Placement::Device {
        for node in reach.nodes() {
            let of_node = &devices[node.clone()];
            if reach.of_rank(node.start).len() > 1 {
                Device::enable_peer_access(of_node)?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_addresses_whom_follows_from_nodes_and_transport() {
        let config = |transport, fake_nodes| GroupConfig {
            transport,
            fake_nodes: NonZeroUsize::new(fake_nodes),
            ..GroupConfig::default()
        };
        let of = |machines: &[Range<usize>], transport, fake_nodes, backend| {
            reach(machines, &config(transport, fake_nodes), backend)
        };
        let machine = 0..4;
        let (one, two) = (std::slice::from_ref(&machine), [0..2, 2..4]);
        for (machines, transport, fake_nodes, backend, expected) in [
            (one, Transport::Auto, 0, Backend::Host, Some((1, true))),
            (one, Transport::Auto, 2, Backend::Host, Some((2, true))),
            (&two[..], Transport::Auto, 0, Backend::Cuda, Some((2, true))),
            (&two, Transport::P2p, 0, Backend::Cuda, None),
            (one, Transport::P2p, 2, Backend::Cuda, None),
            (one, Transport::P2p, 0, Backend::Cuda, Some((1, true))),
            (one, Transport::Nccl, 0, Backend::Cuda, Some((1, false))),
            (one, Transport::Nccl, 0, Backend::Host, None),
            (one, Transport::Sockets, 2, Backend::Host, Some((2, false))),
            (one, Transport::Sockets, 0, Backend::Cuda, None),
            (one, Transport::Nvshmem, 0, Backend::Cuda, Some((1, true))),
            (one, Transport::Nvshmem, 4, Backend::Cuda, Some((4, false))),
            (&two, Transport::Nvshmem, 0, Backend::Cuda, Some((2, true))),
            (one, Transport::Nvshmem, 0, Backend::Host, None),
            (one, Transport::Auto, 5, Backend::Host, None),
            (&two, Transport::Auto, 2, Backend::Host, None),
        ] {
            let found = of(machines, transport, fake_nodes, backend);
            let found = found.map(|reach| (reach.nodes().len(), reach.has(0, 1))).ok();
            assert_eq!(found, expected, "{machines:?} {transport} {fake_nodes} {backend}");
        }
        for name in ["auto", "p2p", "nccl", "sockets", "nvshmem"] {
            assert_eq!(name.parse::<Transport>().unwrap().to_string(), name);
        }
        assert!("tcp".parse::<Transport>().unwrap_err().to_string().contains("nccl"));
    }
}
