//! What can go wrong when asking what a machine consists of.

use std::fmt;
use std::path::PathBuf;

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
    /// A file cannot be read.
    #[error("cannot read {path:?}: {reason}; check the path and who may read there")]
    CannotRead {
        /// Its path.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A file is of no known format.
    #[error(
        "this is neither a topology file of NCCL nor the text of `nvidia-smi topo -m`: {reason}; write one of the \
         two, with NCCL_TOPO_DUMP_FILE=topology.xml or with `nvidia-smi topo -m > topology.txt`"
    )]
    UnknownFormat {
        /// What it looks like.
        reason: String,
    },
    /// A file is cut off.
    #[error(
        "line {line}, column {column}: the file ends early{}; copy it again, whole",
        inside.as_ref().map_or_else(String::new, |inside| format!(", inside of {inside}"))
    )]
    EndsEarly {
        /// The line of its end, from 1.
        line: usize,
        /// The column of its end, from 1, in characters.
        column: usize,
        /// What is not finished.
        inside: Option<String>,
    },
    /// A file is no XML, or not such as NCCL writes.
    #[error("line {line}, column {column}: {reason}")]
    BadXml {
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        /// What is wrong, and where it can be said, what would be right.
        reason: String,
    },
    /// The XML is something else.
    #[error(
        "this is not a topology file: it holds <{found}>{}, and a topology file holds <system>; it is written with \
         NCCL_TOPO_DUMP_FILE=topology.xml",
        if found == "graphs" { ", the graphs that NCCL_GRAPH_DUMP_FILE writes" } else { "" }
    )]
    NotATopology {
        /// The name of the outermost element.
        found: String,
    },
    /// A text of `nvidia-smi topo -m` is damaged.
    #[error("line {line}, column {column}: {reason}")]
    BadMatrix {
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
        /// What is wrong, and what to do.
        reason: String,
    },
    /// A text of `nvidia-smi topo -m` lacks the rows of some devices.
    #[error(
        "line {line}, column {column}: rows missing for {}; copy the whole output, to the end of its legend",
        missing.join(", ")
    )]
    RowsMissing {
        /// The line where the rows end, from 1.
        line: usize,
        /// The column where they end, from 1, in characters.
        column: usize,
        /// The devices; runs of them as one, as in `GPU5..GPU15`.
        missing: Vec<String>,
    },
    /// A file describes no GPU.
    #[error("the file describes no GPU; write it on a machine with GPUs that this process may see")]
    NoGpuInFile,
    /// A cluster of no machines.
    #[error("a cluster has at least one machine")]
    NoMachines,
    /// A cluster of too many machines.
    #[error("{gpus} GPUs are more than the {most} that a topology may have; describe fewer machines")]
    TooManyGpus {
        /// How many there would be.
        gpus: usize,
        /// How many there may be.
        most: usize,
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
