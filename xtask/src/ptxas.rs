//! What the assembler says of a kernel: registers, spills, and whether it had to serialise.

use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::Command;

/// The assembler's report on one kernel for one architecture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) registers: u32,
    pub(crate) spill_bytes: u32,
    pub(crate) static_smem_bytes: u32,
}

/// Assembles `ptx` for `arch`, by itself or for a linker; fails if ptxas reports a loss of performance (serialised wgmma) or any
/// warning.
pub(crate) fn assemble(ptxas: &Path, ptx: &Path, arch: &str, relocatable: bool) -> Result<Report> {
    let output = Command::new(ptxas)
        .args(["--verbose", "--gpu-name", arch, "--output-file", "/dev/null"])
        .args(relocatable.then_some("--compile-only"))
        .arg(ptx)
        .output()
        .with_context(|| format!("{} did not start", ptxas.display()))?;
    let text =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    ensure!(output.status.success(), "ptxas failed for {arch}:\n{text}");
    parse(&text)
}

fn parse(text: &str) -> Result<Report> {
    for line in text.lines() {
        let bad = line.contains("Potential Performance Loss") || line.contains("warning");
        ensure!(!bad, "ptxas says: {line}");
    }
    let number = |after: Option<&str>, before: &str| {
        let start = after.map_or(Some(0), |after| text.find(after).map(|at| at + after.len()))?;
        let end = start + text[start..].find(before)?;
        text[start..end].rsplit([' ', ',']).find(|word| !word.is_empty())?.parse().ok()
    };
    Ok(Report {
        registers: number(Some("Used"), " registers")
            .with_context(|| format!("no register count in\n{text}"))?,
        spill_bytes: number(Some("stack frame,"), " bytes spill stores").unwrap_or(0),
        static_smem_bytes: number(Some("registers,"), " bytes smem").unwrap_or(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "ptxas info    : 0 bytes gmem\nptxas info    : Compiling entry function 'k' for 'sm_90'\n\
                        ptxas info    : Function properties for k\n    24 bytes stack frame, 16 bytes spill stores, \
                        20 bytes spill loads\nptxas info    : Used 255 registers, 48 bytes smem, 464 bytes cmem[0]\n";

    #[test]
    fn registers_spills_and_shared_memory_are_read() {
        assert_eq!(parse(TEXT).unwrap(), Report { registers: 255, spill_bytes: 16, static_smem_bytes: 48 });
        let none = TEXT.replace("16 bytes spill", "0 bytes spill").replace(" 48 bytes smem,", "");
        assert_eq!(parse(&none).unwrap(), Report { registers: 255, spill_bytes: 0, static_smem_bytes: 0 });
    }

    #[test]
    fn a_serialised_wgmma_is_refused() {
        let text = format!(
            "{TEXT}ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized\n"
        );
        assert!(parse(&text).is_err());
        assert!(parse("ptxas info: nothing here").is_err());
    }
}
