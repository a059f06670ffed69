//! Topologies from files: which format it is, is seen from what is in it.

use std::fmt;
use std::io::Read as _;
use std::path::Path;

use crate::{Error, Result, Topology, nccl, smi};

/// A format of files that describe a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FileFormat {
    /// What `NCCL_TOPO_FILE` takes and `NCCL_TOPO_DUMP_FILE` writes.
    NcclXml,
    /// What `nvidia-smi topo -m` prints.
    NvidiaSmi,
}

impl fmt::Display for FileFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FileFormat::NcclXml => "a topology file of NCCL",
            FileFormat::NvidiaSmi => "the text of nvidia-smi topo -m",
        })
    }
}

/// No topology file is nearly as large.
const MOST_BYTES: u64 = 16 << 20;

impl Topology {
    /// Reads a file: NCCL's topology XML or the text of `nvidia-smi topo -m`.
    ///
    /// # Errors
    /// [`Error::CannotRead`], and those of [`parse`](Topology::parse).
    pub fn read(path: &Path) -> Result<Topology> {
        let cannot = |reason: String| Error::CannotRead { path: path.to_owned(), reason };
        let file = std::fs::File::open(path).map_err(|error| cannot(error.to_string()))?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| cannot(error.to_string()))?;
        Topology::parse(&bytes)
    }

    /// Reads NCCL's topology XML or the text of `nvidia-smi topo -m`, whichever it is; in UTF-8, or in UTF-16 as
    /// PowerShell's `>` writes it.
    ///
    /// # Errors
    /// [`Error::UnknownFormat`] where it is neither, [`Error::EndsEarly`] and [`Error::RowsMissing`] where it is
    /// cut off, [`Error::BadXml`], [`Error::NotATopology`], [`Error::BadMatrix`], [`Error::NoGpuInFile`] and
    /// [`Error::TooManyGpus`] for what is wrong with it. All say what to do, and where the fault is.
    pub fn parse(bytes: &[u8]) -> Result<Topology> {
        if bytes.len() as u64 > MOST_BYTES {
            return Err(unknown("it has more than 16 MiB"));
        }
        let text = decode(bytes)?;
        match text.trim_start().chars().next() {
            None => Err(unknown("it is empty")),
            Some('<') => nccl::read(&text),
            Some('{' | '[') => Err(unknown("it looks like JSON")),
            Some(_) => smi::read(&text),
        }
    }
}

pub(crate) fn unknown(reason: &str) -> Error {
    Error::UnknownFormat { reason: reason.to_owned() }
}

fn decode(bytes: &[u8]) -> Result<String> {
    let utf16 = |bytes: &[u8], unit: fn([u8; 2]) -> u16| {
        let units: Vec<u16> = bytes.as_chunks().0.iter().map(|&pair| unit(pair)).collect();
        String::from_utf16(&units).map_err(|_| unknown("it begins like UTF-16 and is not"))
    };
    let text = match bytes {
        [0xff, 0xfe, rest @ ..] => utf16(rest, u16::from_le_bytes)?,
        [0xfe, 0xff, rest @ ..] => utf16(rest, u16::from_be_bytes)?,
        [0xef, 0xbb, 0xbf, rest @ ..] => utf8(rest)?,
        _ => utf8(bytes)?,
    };
    if text.contains('\0') {
        return Err(unknown("it is not text, but has zero bytes"));
    }
    // Lines of old Macintoshes and of some serial consoles end so.
    if text.contains('\r') && !text.contains('\n') {
        return Ok(text.replace('\r', "\n"));
    }
    Ok(text)
}

fn utf8(bytes: &[u8]) -> Result<String> {
    let text = std::str::from_utf8(bytes).map_err(|error| {
        let line = bytes.iter().take(error.valid_up_to()).filter(|&&byte| byte == b'\n').count() + 1;
        unknown(&format!("line {line} is not text in UTF-8"))
    })?;
    Ok(text.to_owned())
}
