//! Symmetric memory among processes: each allocates its own and hands it out, and maps what its peers hand out.

use crate::cuda::shared::{Exported, Form, IpcMemory, PinnedMapping, VmmMemory};
use crate::host::shared::{Mapping, MemoryFile};
use crate::space::OneRank;
use crate::{Address, Buffer, Device, Error, Peers, Placement, Reach, Result, Sharing, SymmetricHeap, cuda};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

/// The pieces of all ranks that this process can reach.
#[derive(Debug)]
pub(crate) struct SharedPieces {
    own: Option<Piece>,
    /// With their ranks, in rank order.
    of_peers: Vec<(usize, Piece)>,
    peers: Arc<Peers>,
}

/// One rank's memory in this process; gone on drop.
#[derive(Debug)]
enum Piece {
    Host(Mapping),
    Pinned(PinnedMapping),
    Vmm(VmmMemory),
    /// This rank's own; the peers have it open by its handle.
    Ipc(Buffer),
    IpcOfPeer(IpcMemory),
    /// This rank's own, of a heap; the peers know by themselves where it is.
    Heap(Arc<dyn SymmetricHeap>, Address),
    HeapOfPeer(Address),
}

impl Piece {
    fn address(&self) -> Address {
        match self {
            Piece::Host(mapping) => mapping.address(),
            Piece::Pinned(mapping) => mapping.address(),
            Piece::Vmm(memory) => memory.address(),
            Piece::Ipc(buffer) => buffer.address(),
            Piece::IpcOfPeer(memory) => memory.address(),
            Piece::Heap(_, address) | Piece::HeapOfPeer(address) => *address,
        }
    }
}

/// What a rank hands out, for its peers to map its memory by.
enum Handle {
    File(OwnedFd),
    Bytes(Vec<u8>),
}

impl SharedPieces {
    pub(crate) fn allocate(one: &OneRank, reach: &Reach, bytes: usize, placement: Placement) -> Result<Self> {
        let (peers, rank) = (&one.peers, one.peers.rank());
        let is_reached = |peer: usize| peer != rank && reach.has(rank, peer);
        let step = format!("allocate {bytes} bytes of {placement} memory");
        if let (Some(heap), Placement::Device) = (&one.heap, placement) {
            peers.exchange(&step, Ok(Vec::new()))?; // the heap's own step is not taken before all are here
            let allocated = heap.allocate(bytes).and_then(|own| {
                let piece = Piece::Heap(Arc::clone(heap), own);
                // SAFETY: the range was just allocated.
                unsafe {
                    match &one.device {
                        Device::Cuda(gpu) => cuda::memory::zero(gpu, own, bytes)?,
                        Device::Host(_) => own.as_ptr::<u8>().write_bytes(0, bytes),
                    }
                }
                let at = |peer| match heap.address(own, peer) {
                    Address::NULL => {
                        Err(Error::BadPeer { rank: peer, reason: "its memory has no address".into() })
                    }
                    address => Ok((peer, Piece::HeapOfPeer(address))),
                };
                let of_peers = (0..peers.world_size()).filter(|&peer| is_reached(peer)).map(at);
                Ok((piece, of_peers.collect::<Result<_>>()?))
            });
            let (own, of_peers) = peers.share("map each other's memory", allocated)?;
            return Ok(Self { own: Some(own), of_peers, peers: Arc::clone(peers) });
        }
        let (own, handle) = match create(one, bytes, placement) {
            Ok((own, handle)) => (own, handle),
            Err(error) => return peers.share(&step, Err(error)),
        };
        let said = match &handle {
            Handle::File(_) => Vec::new(),
            Handle::Bytes(bytes) => bytes.clone(),
        };
        let said = peers.exchange(&step, Ok(said))?;
        let mut handles: Vec<Option<Handle>> = match &handle {
            Handle::File(file) => peers
                .exchange_files(file.as_fd(), is_reached)?
                .into_iter()
                .map(|file| file.map(Handle::File))
                .collect(),
            Handle::Bytes(_) => said.into_iter().map(|bytes| Some(Handle::Bytes(bytes))).collect(),
        };
        handles.resize_with(peers.world_size(), || None);
        let mut shared = Self { own: Some(own), of_peers: Vec::new(), peers: Arc::clone(peers) };
        let opened = handles.into_iter().enumerate().filter(|&(peer, _)| is_reached(peer)).try_for_each(
            |(peer, handle)| {
                let missing = || Error::BadPeer { rank: peer, reason: "it handed out no memory".into() };
                shared.of_peers.push((peer, open(one, handle.ok_or_else(missing)?, bytes, placement)?));
                Ok(())
            },
        );
        peers.share("map each other's memory", opened)?; // if it fails on one rank, all drop what they have
        Ok(shared)
    }

    /// By rank; null where a rank is out of reach.
    pub(crate) fn addresses(&self) -> Vec<Address> {
        let mut addresses = vec![Address::NULL; self.peers.world_size()];
        for (peer, piece) in &self.of_peers {
            addresses[*peer] = piece.address();
        }
        addresses[self.peers.rank()] = self.own.as_ref().map_or(Address::NULL, Piece::address);
        addresses
    }
}

impl Drop for SharedPieces {
    fn drop(&mut self) {
        self.of_peers.clear();
        // Files and VMM allocations live as long as anybody maps them. What CUDA IPC has handed out does not, nor what a heap
        // has: the peers close it first.
        let own = self.own.take();
        if !matches!(own, Some(Piece::Ipc(_) | Piece::Heap(..))) {
            return;
        }
        // A rank that panics takes no more steps; and after a failure the ranks need not be at the same one.
        let closed = match std::thread::panicking() || self.peers.has_failed() {
            true => Err("this rank, or another one, has failed".to_owned()),
            false => {
                self.peers.exchange("close each other's memory", Ok(Vec::new())).map_err(|e| e.to_string())
            }
        };
        let freed = closed.and_then(|_| match &own {
            // SAFETY: all ranks are at this step, behind their last use.
            Some(Piece::Heap(heap, own)) => unsafe { heap.free(*own) }.map_err(|error| error.to_string()),
            _ => Ok(()),
        });
        if let Err(reason) = freed {
            tracing::warn!(reason, "memory that peers may still use is kept until this process ends");
            std::mem::forget(own);
        }
    }
}

/// This rank's memory, zeroed, and how its peers get at it.
fn create(one: &OneRank, bytes: usize, placement: Placement) -> Result<(Piece, Handle)> {
    let none_left = || none_left(one, bytes, placement);
    Ok(match (&one.device, placement, one.sharing) {
        (Device::Host(_), ..) | (Device::Cuda(_), Placement::PinnedHost, _) => {
            let file = MemoryFile::create(bytes)?.ok_or_else(none_left)?;
            (map(one, &file, bytes, placement)?, Handle::File(file.into_file()))
        }
        (Device::Cuda(gpu), Placement::Device, Sharing::Auto | Sharing::Vmm | Sharing::Fabric) => {
            let form = if one.sharing == Sharing::Fabric { Form::Fabric } else { Form::File };
            let (memory, exported) = VmmMemory::create(gpu, bytes, form)?.ok_or_else(none_left)?;
            let handle = match exported {
                Exported::File(file) => Handle::File(file),
                Exported::Fabric(bytes) => Handle::Bytes(bytes.to_vec()),
            };
            (Piece::Vmm(memory), handle)
        }
        (Device::Cuda(_), Placement::Device, Sharing::Ipc) => {
            let bytes = IpcMemory::round_up(bytes).ok_or_else(none_left)?;
            let buffer = Buffer::allocate(&one.device, bytes, placement)?;
            let handle = IpcMemory::handle(buffer.address())?;
            (Piece::Ipc(buffer), Handle::Bytes(handle))
        }
    })
}

/// A peer's memory.
fn open(one: &OneRank, handle: Handle, bytes: usize, placement: Placement) -> Result<Piece> {
    Ok(match (&one.device, placement, handle) {
        (Device::Host(_), _, Handle::File(file)) | (_, Placement::PinnedHost, Handle::File(file)) => {
            map(one, &MemoryFile::open(file, bytes)?, bytes, placement)?
        }
        (Device::Cuda(gpu), _, Handle::File(file)) => {
            Piece::Vmm(VmmMemory::open(gpu, Exported::File(file), bytes)?)
        }
        (Device::Cuda(gpu), _, Handle::Bytes(handle)) if one.sharing == Sharing::Fabric => {
            Piece::Vmm(VmmMemory::open(gpu, Exported::fabric(&handle)?, bytes)?)
        }
        (Device::Cuda(gpu), _, Handle::Bytes(handle)) => Piece::IpcOfPeer(IpcMemory::open(gpu, &handle)?),
        (Device::Host(_), _, Handle::Bytes(_)) => {
            return Err(Error::BackendMismatch { what: "a peer's memory" });
        }
    })
}

/// A memory file, for this rank's device.
fn map(one: &OneRank, file: &MemoryFile, bytes: usize, placement: Placement) -> Result<Piece> {
    let mapping = file.map()?.ok_or_else(|| none_left(one, bytes, placement))?;
    Ok(match &one.device {
        Device::Host(_) => Piece::Host(mapping),
        Device::Cuda(gpu) => Piece::Pinned(PinnedMapping::new(gpu, mapping)?),
    })
}

fn none_left(one: &OneRank, bytes: usize, placement: Placement) -> Error {
    Error::OutOfMemory { bytes, placement, device: one.device.to_string() }
}
