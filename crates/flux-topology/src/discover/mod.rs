//! How a machine is asked, and how the answers are put together.
//!
//! Asking and combining are apart: the CUDA driver, NVML and `/sys` are each read into plain facts, and
//! [`combine`] makes a topology of the three without touching the machine. So every machine can be
//! played through in a test, or replayed from a report.

mod combine;
mod disagree;
pub(crate) mod driver;
mod facts;
#[cfg(feature = "nvml")]
pub(crate) mod nvml;
pub(crate) mod sysfs;

pub use combine::combine;
pub use facts::{
    DriverDevice, DriverFacts, DriverPair, NvLinkEnd, NvmlDevice, NvmlFacts, NvmlPair, SysfsDevice,
    SysfsFacts, SysfsNic,
};

/// Stands in for NVML where it is not compiled in.
#[cfg(not(feature = "nvml"))]
pub(crate) mod nvml {
    use super::NvmlFacts;
    use crate::ProbeFailure;

    pub(crate) fn probe() -> Result<NvmlFacts, ProbeFailure> {
        Err(ProbeFailure {
            what: "NVML",
            tried: Vec::new(),
            reason: "not asked, flux-topology is built without its feature `nvml`".to_owned(),
        })
    }
}
