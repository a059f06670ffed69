//! Groups of the processes that a launcher has started. The only place in flux's libraries where the environment is read.

use crate::{Error, Group, GroupConfig, Result};
use flux_transport::{LaunchEnvironment, TcpBootstrap};
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

    /// As [`Group::from_env`], with a say in everything. Every rank calls it with the same configuration.
    pub fn from_env_with(config: GroupConfig) -> Result<Self> {
        let found = launch_environment()?.ok_or(Error::NotLaunched)?;
        tracing::info!("forming a group by {found}");
        let mut spec = found.rendezvous(format!("flux {}", env!("CARGO_PKG_VERSION")));
        spec.collective_timeout = STEP_TIMEOUT;
        Self::with_bootstrap(Arc::new(TcpBootstrap::form(&spec)?), config)
    }
}

/// What the launcher that has started this process says; nothing if none has.
pub fn launch_environment() -> Result<Option<LaunchEnvironment>> {
    Ok(LaunchEnvironment::detect(|name| std::env::var(name).ok())?)
}
