//! Where the ranks of a group live: what symmetric memory is allocated in.

use crate::{Device, Error, Peers, Reach, Result, Sharing, SymmetricHeap, sharing};
use std::fmt::Display;
use std::ops::Range;
use std::sync::Arc;

/// The ranks among which memory is symmetric: all of this process, or one here and each of its peers in a process of its own.
/// Not all of them need be able to address each other's ([`Reach`]).
/// Cloning gives another handle to the same space.
#[derive(Clone, Debug)]
pub struct SymmetricSpace {
    kind: Kind,
    reach: Arc<Reach>,
}

#[derive(Clone, Debug)]
enum Kind {
    Here(Arc<[Device]>),
    AmongProcesses(Arc<OneRank>),
}

/// This process's rank, among processes.
#[derive(Clone, Debug)]
pub(crate) struct OneRank {
    pub(crate) peers: Arc<Peers>,
    pub(crate) device: Device,
    /// Never [`Sharing::Auto`].
    pub(crate) sharing: Sharing,
    /// What device memory is allocated from, in place of the driver.
    pub(crate) heap: Option<Arc<dyn SymmetricHeap>>,
}

impl SymmetricSpace {
    /// All ranks live in this process, rank r on `devices[r]`. Several may share a device. Devices must be able to address one
    /// another's memory ([`Device::enable_peer_access`]) unless it is pinned host memory.
    pub fn here(devices: &[Device]) -> Self {
        Self { kind: Kind::Here(devices.into()), reach: Arc::new(Reach::one_node(devices.len())) }
    }

    /// The same ranks, of which only those that `reach` says address each other's memory.
    #[must_use]
    pub fn with_reach(self, reach: Reach) -> Self {
        Self { reach: Arc::new(reach), ..self }
    }

    /// Who can address whose memory.
    pub const fn reach(&self) -> &Arc<Reach> {
        &self.reach
    }

    /// This process is one rank, on `device`, among `peers`, of which those on one machine address each other's memory.
    /// Collective, as is every allocation in it: all ranks make the same ones, in the same order.
    pub fn among(peers: &Arc<Peers>, device: &Device, sharing: Sharing) -> Result<Self> {
        let sharing = sharing::agree(peers, device, sharing)?;
        if device.as_cuda().is_some() {
            tracing::debug!(%sharing, "how processes share GPU memory");
        }
        let one = OneRank { peers: Arc::clone(peers), device: device.clone(), sharing, heap: None };
        let reach = Reach::of(peers.machines().to_vec());
        Ok(Self { kind: Kind::AmongProcesses(Arc::new(one)), reach: Arc::new(reach) })
    }

    /// The same ranks, whose device memory comes from `heap`: only among processes. All ranks do so, or none.
    #[must_use]
    pub fn with_heap(self, heap: Arc<dyn SymmetricHeap>) -> Self {
        let kind = match self.kind {
            Kind::AmongProcesses(one) => {
                Kind::AmongProcesses(Arc::new(OneRank { heap: Some(heap), ..OneRank::clone(&one) }))
            }
            here @ Kind::Here(_) => here,
        };
        Self { kind, ..self }
    }

    /// The same ranks, with memory of the host that only their CPUs use: those of each node address each other's, whatever
    /// their devices can do.
    pub fn on_host(&self) -> Self {
        let kind = match &self.kind {
            Kind::Here(devices) => Kind::Here(devices.iter().map(|_| Device::host()).collect()),
            Kind::AmongProcesses(one) => Kind::AmongProcesses(Arc::new(OneRank {
                device: Device::host(),
                heap: None,
                ..OneRank::clone(one)
            })),
        };
        Self { kind, reach: Arc::new(self.reach.within_nodes()) }
    }

    /// Ranks in all.
    pub fn world_size(&self) -> usize {
        match &self.kind {
            Kind::Here(devices) => devices.len(),
            Kind::AmongProcesses(one) => one.peers.world_size(),
        }
    }

    /// The ranks that live in this process.
    pub fn local_ranks(&self) -> Range<usize> {
        match &self.kind {
            Kind::Here(devices) => 0..devices.len(),
            Kind::AmongProcesses(one) => one.peers.rank()..one.peers.rank() + 1,
        }
    }

    /// The other processes, if there are any to take steps with.
    pub fn peers(&self) -> Option<&Arc<Peers>> {
        match &self.kind {
            Kind::Here(_) => None,
            Kind::AmongProcesses(one) => Some(&one.peers),
        }
    }

    /// As [`Peers::together`]; where all ranks live in this process, simply `work`.
    pub fn together<T, E: From<Error> + Display>(
        &self,
        terms: &str,
        work: impl FnOnce() -> Result<T, E>,
    ) -> Result<T, E> {
        match self.peers() {
            None => work(),
            Some(peers) => peers.together(terms, work),
        }
    }

    /// All devices, or this process's place.
    pub(crate) fn ranks(&self) -> Ranks<'_> {
        match &self.kind {
            Kind::Here(devices) => Ranks::Here(devices),
            Kind::AmongProcesses(one) => Ranks::AmongProcesses(one, &self.reach),
        }
    }
}

/// A look into a space.
pub(crate) enum Ranks<'a> {
    Here(&'a [Device]),
    AmongProcesses(&'a Arc<OneRank>, &'a Reach),
}

impl From<&SymmetricSpace> for SymmetricSpace {
    fn from(space: &SymmetricSpace) -> Self {
        space.clone()
    }
}

impl From<&[Device]> for SymmetricSpace {
    fn from(devices: &[Device]) -> Self {
        Self::here(devices)
    }
}

impl From<&Vec<Device>> for SymmetricSpace {
    fn from(devices: &Vec<Device>) -> Self {
        Self::here(devices)
    }
}

impl<const N: usize> From<&[Device; N]> for SymmetricSpace {
    fn from(devices: &[Device; N]) -> Self {
        Self::here(devices)
    }
}
