//! How processes get at each other's GPU memory, and how they agree on it.

use crate::cuda::shared::{Exported, Form, VmmMemory};
use crate::{Device, Error, Peers, Result};
use std::fmt::Display;

/// How processes get at each other's GPU memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Sharing {
    /// [`Sharing::Fabric`] where it has been tried on all ranks, with success; else [`Sharing::Vmm`] where all GPUs can, else
    /// [`Sharing::Ipc`].
    #[default]
    Auto,
    /// The driver's virtual memory management: allocations are handed over as fabric handles, which are bytes. Takes GPUs and a driver
    /// that know them (CUDA 12.3, Hopper with NVSwitch and newer), and an IMEX channel that the processes may open. A peer's mapping
    /// keeps memory alive.
    Fabric,
    /// The same, but allocations are handed over as open files.
    Vmm,
    /// CUDA IPC handles. Memory may be freed only when no peer has it open: dropping symmetric memory waits for the peers to
    /// drop theirs.
    Ipc,
}

impl Display for Sharing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Sharing::Auto => "auto",
            Sharing::Fabric => "fabric",
            Sharing::Vmm => "vmm",
            Sharing::Ipc => "ipc",
        })
    }
}

/// What one rank can do.
#[derive(Debug, PartialEq, Eq)]
struct Offer {
    /// Hand out memory as files.
    files: bool,
    /// A fabric handle of a little memory, or why there is none.
    fabric: Result<Vec<u8>, String>,
}

/// The way that all ranks go, never [`Sharing::Auto`]. Collective.
///
/// Whether a GPU knows fabric handles says nothing of whether a process may use them: without an IMEX channel, `cuMemCreate` refuses.
/// So each rank hands out a little memory, and maps what those of its machine have handed out.
pub(crate) fn agree(peers: &Peers, device: &Device, asked: Sharing) -> Result<Sharing> {
    // Kept until all have tried.
    let probe = match asked {
        Sharing::Auto | Sharing::Fabric => probe(device),
        Sharing::Vmm | Sharing::Ipc => Err("nobody has asked for them".into()),
    };
    let own = Offer {
        files: device.as_cuda().is_none_or(|gpu| gpu.shares_by_file()),
        fabric: probe.as_ref().map(|(_, handle)| handle.to_vec()).map_err(String::clone),
    };
    let all = peers.exchange("say how memory can be shared", Ok(own.bytes()))?;
    let (files, mut fabric): (Vec<_>, Vec<_>) =
        all.iter().map(|bytes| Offer::read(bytes)).map(|offer| (offer.files, offer.fabric)).unzip();
    if fabric.iter().all(Result::is_ok) {
        let outcome = open_all(peers, device, &fabric).err().unwrap_or_default();
        let outcomes = peers.exchange("try each other's fabric handles", Ok(outcome.into_bytes()))?;
        for (offer, outcome) in fabric.iter_mut().zip(&outcomes).filter(|(_, outcome)| !outcome.is_empty()) {
            *offer = Err(String::from_utf8_lossy(outcome).into_owned());
        }
    }
    choose(asked, &files, &fabric)
}

/// A little memory of `device`, and its fabric handle.
fn probe(device: &Device) -> Result<(VmmMemory, [u8; 64]), String> {
    let Some(gpu) = device.as_cuda() else { return Err("it runs on the host".into()) };
    if !gpu.knows_fabric_handles() {
        return Err("its GPU or its driver knows none".into());
    }
    match VmmMemory::create(gpu, 1, Form::Fabric) {
        Ok(Some((memory, Exported::Fabric(handle)))) => Ok((memory, handle)),
        Ok(_) => Err("its GPU has no memory left".into()),
        Err(error) => Err(format!("{error}: is there an IMEX channel for it?")),
    }
}

/// Maps what the ranks of this machine have handed out, for a moment.
fn open_all(peers: &Peers, device: &Device, handles: &[Result<Vec<u8>, String>]) -> Result<(), String> {
    let rank = peers.rank();
    let machine = peers.machines().iter().find(|ranks| ranks.contains(&rank)).cloned().unwrap_or_default();
    let Some(gpu) = device.as_cuda() else { return Err("it runs on the host".into()) };
    for peer in machine.filter(|&peer| peer != rank) {
        let Some(Ok(handle)) = handles.get(peer) else { continue };
        let opened = Exported::fabric(handle).and_then(|handle| VmmMemory::open(gpu, handle, 1));
        opened.map_err(|error| format!("it cannot map memory of rank {peer}: {error}"))?;
    }
    Ok(())
}

/// What `asked` comes to where rank r can hand out files if `files[r]`, and use fabric handles unless `fabric[r]` says why not.
fn choose<T>(asked: Sharing, files: &[bool], fabric: &[Result<T, String>]) -> Result<Sharing> {
    let no_files = files.iter().position(|can| !can);
    let refusal = |(rank, offer): (usize, &Result<T, String>)| Some((rank, offer.as_ref().err()?.clone()));
    let no_fabric = fabric.iter().enumerate().find_map(refusal);
    match (asked, no_fabric, no_files) {
        (Sharing::Fabric, Some((rank, reason)), _) => Err(Error::NoFabric { rank, reason }),
        (Sharing::Vmm, _, Some(rank)) => Err(Error::NoVmm { rank }),
        (Sharing::Auto | Sharing::Fabric, None, _) => Ok(Sharing::Fabric),
        (Sharing::Auto | Sharing::Vmm, _, None) => Ok(Sharing::Vmm),
        (Sharing::Auto, Some((rank, reason)), Some(_)) => {
            tracing::debug!(rank, reason, "no fabric handles, and no files");
            Ok(Sharing::Ipc)
        }
        (Sharing::Ipc, ..) => Ok(Sharing::Ipc),
    }
}

impl Offer {
    fn bytes(&self) -> Vec<u8> {
        let fabric = match &self.fabric {
            Ok(handle) => handle.as_slice(),
            Err(reason) => reason.as_bytes(),
        };
        [&[u8::from(self.files), u8::from(self.fabric.is_ok())], fabric].concat()
    }

    /// Whatever was said is read as something: noise as an offer of nothing.
    fn read(bytes: &[u8]) -> Self {
        let (head, rest) = bytes.split_at(bytes.len().min(2));
        let fabric = match head {
            [_, 1] => Ok(rest.to_vec()),
            _ => Err(String::from_utf8_lossy(rest).into_owned()),
        };
        Self { files: head.first() == Some(&1), fabric }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_ranks_go_the_best_way_that_all_can() {
        let (fabric, none): (Result<(), String>, _) = (Ok(()), Err("not permitted".to_owned()));
        for (asked, files, offers, expected) in [
            (Sharing::Auto, [true, true], [&fabric, &fabric], Some(Sharing::Fabric)),
            (Sharing::Auto, [false, true], [&fabric, &fabric], Some(Sharing::Fabric)),
            (Sharing::Auto, [true, true], [&fabric, &none], Some(Sharing::Vmm)),
            (Sharing::Auto, [true, true], [&none, &none], Some(Sharing::Vmm)),
            (Sharing::Auto, [true, false], [&none, &fabric], Some(Sharing::Ipc)),
            (Sharing::Fabric, [false, false], [&fabric, &fabric], Some(Sharing::Fabric)),
            (Sharing::Fabric, [true, true], [&fabric, &none], None),
            (Sharing::Vmm, [true, true], [&fabric, &fabric], Some(Sharing::Vmm)),
            (Sharing::Vmm, [true, false], [&fabric, &fabric], None),
            (Sharing::Ipc, [false, false], [&none, &none], Some(Sharing::Ipc)),
        ] {
            let chosen = choose(asked, &files, &offers.map(Clone::clone));
            match (&chosen, asked) {
                (Err(Error::NoFabric { rank: 1, reason }), Sharing::Fabric) => {
                    assert_eq!(reason, "not permitted");
                }
                (Err(Error::NoVmm { rank: 1 }), Sharing::Vmm) | (Ok(_), _) => {}
                (Err(error), _) => panic!("{asked} {files:?} {offers:?}: {error}"),
            }
            assert_eq!(chosen.ok(), expected, "{asked} {files:?} {offers:?}");
        }
    }

    #[test]
    fn offers_are_understood() {
        for offer in [
            Offer { files: true, fabric: Ok(vec![7; 64]) },
            Offer { files: false, fabric: Err("no channel".into()) },
            Offer { files: true, fabric: Err(String::new()) },
        ] {
            assert_eq!(Offer::read(&offer.bytes()), offer);
        }
        for noise in [&[][..], &[9], &[0, 255, 255]] {
            let read = Offer::read(noise);
            assert!(!read.files && read.fabric.is_err(), "{noise:?}");
        }
    }
}
