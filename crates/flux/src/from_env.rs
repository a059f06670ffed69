//! Groups of the processes that a launcher has started. The only place in flux's libraries where the environment is read.

use crate::{Error, Group, GroupConfig, Result, Transport};
use flux_topology::Topology;
use flux_transport::{LaunchEnvironment, TcpBootstrap};
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

/// How long ranks wait for each other where they take a step together: one may load its weights for long before it builds the
/// next operation. A rank whose process has ended is not waited for.
const STEP_TIMEOUT: Duration = Duration::from_secs(600);

impl Group {
    /// This process as one rank of those that torchrun, Open MPI, Slurm or `flux launch` has started, as their environment
    /// variables say ([`launch_environment`]); an error without any. Ranks find each other over TCP.
    pub fn from_env() -> Result<Self> {
        Self::from_env_with(GroupConfig::default())
    }

    /// As [`Group::from_env`], with a say in everything. Every rank calls it with the same configuration. What the environment says
    /// goes before: `FLUX_TRANSPORT` (auto, p2p, nccl, sockets, nvshmem), `FLUX_FAKE_NODES` (a number) and `FLUX_TOPOLOGY` (a file
    /// that `flux topo --file` takes).
    pub fn from_env_with(config: GroupConfig) -> Result<Self> {
        let config = config.overridden()?;
        let found = launch_environment()?.ok_or(Error::NotLaunched)?;
        tracing::info!("forming a group by {found}");
        let mut spec = found.rendezvous(format!("flux {}", env!("CARGO_PKG_VERSION")));
        spec.collective_timeout = STEP_TIMEOUT;
        Self::with_bootstrap(Arc::new(TcpBootstrap::form(&spec)?), config)
    }
}

impl GroupConfig {
    /// This, but for what the environment says: `FLUX_TRANSPORT`, `FLUX_FAKE_NODES` and `FLUX_TOPOLOGY`. [`Group::from_env`] asks for it;
    /// [`Group::local_with`] does not by itself.
    pub fn overridden(mut self) -> Result<Self> {
        let set = |name| std::env::var(name).ok().filter(|value: &String| !value.is_empty());
        if let Some(name) = set("FLUX_TRANSPORT") {
            self.transport = name.parse::<Transport>()?;
        }
        if let Some(nodes) = set("FLUX_FAKE_NODES") {
            let bad = |_| Error::BadNodes { reason: format!("`{nodes}` is not such a number") };
            self.fake_nodes = Some(nodes.parse::<NonZeroUsize>().map_err(bad)?);
        }
        if let Some(path) = set("FLUX_TOPOLOGY") {
            let bad = |source| Error::BadTopology { path: path.clone(), source: Box::new(source) };
            self.topology = Some(Arc::new(Topology::read(path.as_ref()).map_err(bad)?));
        }
        Ok(self)
    }
}

/// What the launcher that has started this process says; nothing if none has.
pub fn launch_environment() -> Result<Option<LaunchEnvironment>> {
    Ok(LaunchEnvironment::detect(|name| std::env::var(name).ok())?)
}
