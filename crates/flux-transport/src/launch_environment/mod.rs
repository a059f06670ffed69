//! What a launcher of processes tells each of them through its environment.
//!
//! Nothing here reads the environment: the caller passes a function that does.

mod error;
mod launchers;
mod node_list;
#[cfg(test)]
mod tests;
mod variables;

pub use error::LaunchError;

use crate::rendezvous::RendezvousSpec;
use sha2::{Digest, Sha256};
use variables::Variables;

/// Who started the processes of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// torchrun, `flux launch`, or whoever else sets `RANK` and `WORLD_SIZE`.
    Torchrun,
    /// `mpirun` of Open MPI, or of a relative that sets `OMPI_COMM_WORLD_RANK`.
    OpenMpi,
    /// `srun`.
    Slurm,
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Launcher::Torchrun => "torchrun's variables (RANK, WORLD_SIZE)",
            Launcher::OpenMpi => "Open MPI's variables (OMPI_COMM_WORLD_RANK)",
            Launcher::Slurm => "Slurm's variables (SLURM_PROCID)",
        })
    }
}

/// Where rank 0 listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Master {
    /// A name, or an address.
    pub host: String,
    /// A TCP port.
    pub port: u16,
}

/// What a launcher has told this process.
///
/// # The token
///
/// `FLUX_TOKEN`, if it is set. Otherwise it is made from what the launcher calls the job. That guards against mistakes: two
/// jobs that meet at one port, a process of the run before, or a scanner. It does not guard against an attacker who knows the
/// job; where there may be one, set `FLUX_TOKEN` to a secret.
///
/// # The port
///
/// `FLUX_PORT`, if it is set; otherwise `MASTER_PORT`, unless torchrun says that its own store listens there
/// (`TORCHELASTIC_USE_AGENT_STORE`); otherwise one from 20000 to 29999 that follows from the job's name.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LaunchEnvironment {
    /// Whose variables these are.
    pub launcher: Launcher,
    /// This process's rank.
    pub rank: usize,
    /// How many ranks there are.
    pub world_size: usize,
    /// This process's place among those of its node, from 0.
    pub local_rank: usize,
    /// How many ranks this process's node has.
    pub local_world_size: usize,
    /// Where rank 0 listens.
    pub master: Master,
    /// What only the job's processes know.
    pub token: Vec<u8>,
}

impl LaunchEnvironment {
    /// Looks for a launcher's variables with `lookup`, which knows the value of each that is set: torchrun's first, then
    /// Open MPI's, then Slurm's, for a launcher is often started by another. `None` if there are none. A variable that is
    /// empty counts as not set.
    ///
    /// # Errors
    ///
    /// [`LaunchError`] if the variables contradict each other, are incomplete, or are not numbers.
    ///
    /// ```
    /// use flux_transport::{Launcher, LaunchEnvironment};
    ///
    /// let variables = [("RANK", "1"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];
    /// let lookup = |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
    /// let found = LaunchEnvironment::detect(lookup)?.expect("torchrun's variables");
    /// assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Torchrun, 1, 2));
    /// # Ok::<(), flux_transport::LaunchError>(())
    /// ```
    pub fn detect(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>, LaunchError> {
        let variables = Variables::new(&lookup);
        launchers::detect(&variables)
    }

    /// How many nodes the group has, if all have as many ranks as this one, and ranks count up node by node, as far as this
    /// process can tell.
    pub fn nodes(&self) -> Option<usize> {
        let is_regular = self.world_size.is_multiple_of(self.local_world_size)
            && self.rank % self.local_world_size == self.local_rank;
        is_regular.then(|| self.world_size / self.local_world_size)
    }

    /// The node of a rank, from 0; `None` as for [`Self::nodes`], and for a rank that there is not.
    pub fn node_of(&self, rank: usize) -> Option<usize> {
        self.nodes().filter(|_| rank < self.world_size).map(|_| rank / self.local_world_size)
    }

    /// What this process says when it comes to form the group, as `build` of the program (see [`RendezvousSpec::build`]).
    pub fn rendezvous(&self, build: impl Into<String>) -> RendezvousSpec {
        let Master { host, port } = &self.master;
        let mut spec = RendezvousSpec::new(self.rank, self.world_size, host, *port, self.token.clone());
        spec.several_nodes = self.local_world_size < self.world_size;
        spec.build = build.into();
        spec
    }
}

impl std::fmt::Debug for LaunchEnvironment {
    /// Everything but the token, which has no place in a log.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LaunchEnvironment")
            .field("launcher", &self.launcher)
            .field("rank", &self.rank)
            .field("world_size", &self.world_size)
            .field("local_rank", &self.local_rank)
            .field("local_world_size", &self.local_world_size)
            .field("master", &self.master)
            .finish_non_exhaustive()
    }
}

/// What was found, for a log.
impl std::fmt::Display for LaunchEnvironment {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Master { host, port } = &self.master;
        write!(
            f,
            "{}: rank {} of {}, {} of {} on its node; rank 0 at {host}, port {port}",
            self.launcher, self.rank, self.world_size, self.local_rank, self.local_world_size
        )
    }
}

/// A number that follows from what a job is called, the same in all of its processes.
fn digest(purpose: &str, job: &str) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in [purpose, job] {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
