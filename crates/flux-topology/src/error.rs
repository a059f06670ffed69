//! What can go wrong when asking what a machine consists of.

use std::fmt;

/// What can go wrong when asking what a machine consists of, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Neither the CUDA driver nor NVML answered.
    #[error(
        "no NVIDIA driver answers on this machine: {driver}; {nvml}; \
         install the NVIDIA driver (in a container: start it with the GPUs), or use the host backend"
    )]
    NoDriver {
        /// Why the CUDA driver could not be asked.
        driver: Box<ProbeFailure>,
        /// Why NVML could not be asked.
        nvml: Box<ProbeFailure>,
    },
    /// The driver answers, and shows no GPU to this process.
    #[error(
        "the driver shows no GPU to this process (GPUs in the machine as NVML sees it: {}); \
         check CUDA_VISIBLE_DEVICES and the container's GPU settings, or use the host backend",
        in_machine.map_or_else(|| "unknown".to_owned(), |n| n.to_string())
    )]
    NoDevice {
        /// How many GPUs NVML counts, where it answers.
        in_machine: Option<usize>,
    },
    /// There is no preset of this name.
    #[error("there is no topology named {name:?}; the presets are {}", known.join(", "))]
    UnknownPreset {
        /// The name that was asked for.
        name: String,
        /// Every name there is.
        known: Vec<&'static str>,
    },
    /// A text is no PCI address.
    #[error(
        "{text:?} is no PCI address; write domain:bus:device.function in hexadecimal, as in 0000:4e:00.0"
    )]
    BadPciAddress {
        /// The text.
        text: String,
    },
}

impl Error {
    /// Whether the error says that there is no GPU to use, so that the host backend is the answer.
    pub fn is_no_gpu(&self) -> bool {
        matches!(self, Error::NoDriver { .. } | Error::NoDevice { .. })
    }
}

/// Why one of the two libraries could not be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProbeFailure {
    /// What was to be asked: "CUDA driver" or "NVML".
    pub what: &'static str,
    /// The names under which the library was looked for; empty where it was found, or not looked for at all.
    pub tried: Vec<String>,
    /// What went wrong.
    pub reason: String,
}

impl fmt::Display for ProbeFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.what, self.reason)?;
        if !self.tried.is_empty() {
            write!(f, " (tried {})", self.tried.join(", "))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_driver_lists_what_was_tried_and_says_what_to_do() {
        let error = Error::NoDriver {
            driver: Box::new(ProbeFailure {
                what: "CUDA driver",
                tried: vec!["libcuda.so.1".into(), "libcuda.so".into()],
                reason: "cannot open".into(),
            }),
            nvml: Box::new(ProbeFailure { what: "NVML", tried: vec![], reason: "not compiled in".into() }),
        };
        assert!(error.is_no_gpu());
        assert_eq!(
            error.to_string(),
            "no NVIDIA driver answers on this machine: CUDA driver: cannot open \
             (tried libcuda.so.1, libcuda.so); NVML: not compiled in; install the NVIDIA driver \
             (in a container: start it with the GPUs), or use the host backend"
        );
    }

    #[test]
    fn no_device_says_how_many_are_hidden() {
        let text = Error::NoDevice { in_machine: Some(8) }.to_string();
        assert!(text.contains("NVML sees it: 8"), "{text}");
        let text = Error::NoDevice { in_machine: None }.to_string();
        assert!(text.contains("NVML sees it: unknown"), "{text}");
        assert!(!Error::UnknownPreset { name: "x".into(), known: vec![] }.is_no_gpu());
    }
}
