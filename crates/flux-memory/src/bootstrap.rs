//! What a group of processes needs from whoever started them.

use std::error::Error;
use std::net::IpAddr;

/// A channel among the processes of a group, one rank each. It is used while a group is formed and while an operation is
/// built or dropped, never by a call.
///
/// [`Bootstrap::all_gather`] and [`Bootstrap::barrier`] are collective: all ranks make the same sequence of these calls. Each
/// ends, with an error if a rank does not come in time: how long that is, the channel decides.
pub trait Bootstrap: Send + Sync + std::fmt::Debug {
    /// This process's rank.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world_size(&self) -> usize;

    /// Every rank's `bytes`, in rank order. They are few (addresses, ids, names), and need not be as many on each rank.
    fn all_gather(&self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, BootstrapError>;

    /// Returns when all ranks have called it.
    fn barrier(&self) -> Result<(), BootstrapError> {
        self.all_gather(&[]).map(drop)
    }

    /// A rank whose process is known to have ended, or to be out of reach. Looked at every few milliseconds while something
    /// waits for peers: it does not block. A channel that cannot know says `None`, and a lost rank is found out by
    /// expired waits.
    fn lost_rank(&self) -> Option<usize> {
        None
    }

    /// An address of this process's machine at which ranks of other machines can reach it. Asked for once, while a group is
    /// formed whose ranks connect with each other by sockets. If the channel does not know, the machine's name is used.
    fn address(&self) -> Option<IpAddr> {
        None
    }
}

/// Why a channel failed, in its own words.
pub type BootstrapError = Box<dyn Error + Send + Sync>;
