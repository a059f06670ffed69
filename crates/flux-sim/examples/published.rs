//! The comparison with published results, as a table, and as a plot where a file is named:
//! `cargo run --release -p flux-sim --example published -- published.svg`.

#[path = "../tests/published/mod.rs"]
mod published;

fn main() -> std::io::Result<()> {
    use std::io::Write;
    let mut out = std::io::stdout().lock();
    writeln!(out, "| what | published E, % | simulated E, % | off by |\n|---|---|---|---|")?;
    let rows = published::compared();
    for compared in &rows {
        let (of_them, simulated) = (compared.published, compared.simulated);
        writeln!(out, "| {} | {of_them:.0} | {simulated:.0} | {:+.0} |", compared.row.name, compared.off_by())?;
        if std::env::var("DETAIL").is_ok() {
            for ((problem, _), c) in compared.row.of.iter().zip(&compared.comparisons) {
                writeln!(out, "    {} m={} n={} k={}: gemm {:.0} comm {:.0} unfused {:.0} fused {:.0} ect {:.0} E {:.0}", problem.op.name(), problem.m, problem.n, problem.k, c.gemm_us, c.communication_us, c.unfused_us, c.fused.total_us, c.ect_us(), 100.0*c.efficiency())?;
            }
        }
    }
    let near = rows.iter().filter(|compared| compared.off_by().abs() <= 12.0).count();
    writeln!(out, "\n{near} of {} within 12 points", rows.len())?;
    Ok(())
}
