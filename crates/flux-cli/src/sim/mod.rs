//! `flux sim`: what an operation would take on a machine that is not at hand.

mod arguments;
mod chrome;
mod timeline;

pub(crate) use arguments::SimArguments;

use crate::error::Error;
use crate::files;
use crate::machine::Described;
use crate::output::print;
use crate::topo;
use arguments::SimFormat;
use comfy_table::{CellAlignment, Table};
use flux::{Pattern, SimMachine};
use flux_sim::{Comparison, Machine, Op, Outcome, Path, Plan, Problem, compare, simulate};
use serde_json::{Value, json};
use std::ffi::OsStr;

pub(crate) fn run(arguments: &SimArguments) -> Result<(), Error> {
    if arguments.preset.as_deref() == Some("list") {
        return topo::list_all();
    }
    let described = Described::new(arguments.preset.as_deref(), arguments.file.as_deref())?;
    let described = described.ok_or_else(|| Error::NoMachine { name: String::new() })?; // one of both is required
    let SimMachine { machine, orders, knows_gpu, .. } =
        described.times(arguments.nodes, arguments.gpu.clone())?;
    let order = arguments.order.given(machine.gpus())?.or(orders.into_iter().next());
    let order = order.unwrap_or_else(|| machine.pattern());
    let drawing = match &arguments.timeline {
        None => None,
        Some(file) => {
            files::check_writable(file)?;
            Some((file, Drawing::of(file).ok_or_else(|| Error::NeitherSvgNorJson { path: file.clone() })?))
        }
    };
    let pattern = Some(order.clone());
    let (chunk_rows, sweeps) = (arguments.chunk_rows, arguments.shard_sweeps);
    let plan = Plan { chunk_rows, pattern, sweeps, ..Plan::new(Path::Fused) };
    let ms: Vec<usize> = match (arguments.sweep, arguments.m) {
        (Some(sweep), _) => sweep.values().collect(),
        (None, m) => m.into_iter().collect(),
    };
    let op = Op::from(arguments.op);
    let problem = |m: usize| Problem { op, m, n: arguments.n, k: arguments.k, element_bytes: 2 };
    let mut rows = Vec::new();
    for problem in ms.iter().map(|&m| problem(m)) {
        rows.push((problem, compare(&machine, &problem, &plan)?));
    }
    let title = format!(
        "flux sim {}: n {}, k {} per rank, bf16, {} GPUs ({} x {})",
        op.name(),
        arguments.n,
        arguments.k,
        machine.gpus(),
        machine.nodes(),
        machine.name()
    );
    match arguments.format {
        SimFormat::Table => {
            print(&title)?;
            print(format_args!("order {order}"))?;
            if !knows_gpu {
                let gpu = machine.node().gpu.name;
                print(format_args!(
                    "nothing is known of these GPUs: they are taken for {gpu}; --gpu NAME says which they are"
                ))?;
            }
            print(table(&rows))?;
            if rows.iter().any(|(_, comparison)| comparison.fused.rounded) {
                print(
                    "ranks do not divide the rows; shards of all nodes were taken for as large as the first node's",
                )?;
            }
            if let [(_, comparison)] = &rows[..] {
                print(links(comparison))?;
            }
        }
        SimFormat::Json => print(report((&machine, knows_gpu, &order), op, &rows))?,
    }
    if let (Some((file, drawing)), [(problem, _)]) = (drawing, &rows[..]) {
        let path = Path::from(arguments.path);
        let outcome = simulate(&machine, problem, &Plan { path, timeline: true, ..plan })?;
        let title = format!("{title}, m {}, {} way", problem.m, path_name(path));
        let text = match drawing {
            Drawing::Svg => timeline::draw(&title, &outcome, machine.gpus()),
            Drawing::Json => format!("{}\n", chrome::trace(&title, &outcome, machine.gpus())),
        };
        files::replace(file, text.as_bytes())?;
    }
    Ok(())
}

fn path_name(path: Path) -> &'static str {
    match path {
        Path::Fused => "fused",
        Path::Chunked => "chunked",
        Path::Unfused => "unfused",
    }
}

#[derive(Clone, Copy)]
enum Drawing {
    Svg,
    Json,
}

impl Drawing {
    fn of(file: &std::path::Path) -> Option<Self> {
        match file.extension().and_then(OsStr::to_str) {
            Some("svg") => Some(Drawing::Svg),
            Some("json") => Some(Drawing::Json),
            _ => None,
        }
    }
}

fn table(rows: &[(Problem, Comparison)]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    let names = ["m", "GEMM", "communication", "unfused", "chunked", "fused", "ECT", "E", "unfused / fused"];
    table.set_header(names);
    for (problem, row) in rows {
        let us = [
            row.gemm_us,
            row.communication_us,
            row.unfused_us,
            row.chunked_us,
            row.fused.total_us,
            row.ect_us(),
        ];
        let mut cells = vec![problem.m.to_string()];
        cells.extend(us.map(|us| format!("{us:.1} µs")));
        cells.push(format!("{:.3}", row.efficiency()));
        cells.push(format!("{:.3}", row.unfused_us / row.fused.total_us));
        table.add_row(cells);
    }
    table.column_iter_mut().for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

/// The links that are busiest in the fused way.
fn links(comparison: &Comparison) -> String {
    const MOST: usize = 6;
    let Outcome { links, .. } = &comparison.fused;
    let mut busiest: Vec<_> = links.iter().collect();
    busiest.sort_by(|a, b| b.bytes.total_cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
    let lines = busiest.iter().take(MOST).map(|link| format!("  {}: {:.1} MB", link.name, link.bytes / 1e6));
    let more =
        if links.len() > MOST { format!("\n  and {} more", links.len() - MOST) } else { String::new() };
    let lines: Vec<String> = lines.collect();
    if lines.is_empty() {
        "no link carries anything".into()
    } else {
        format!("links:\n{}{more}", lines.join("\n"))
    }
}

fn report(
    (machine, knows_gpu, order): (&Machine, bool, &Pattern),
    op: Op,
    rows: &[(Problem, Comparison)],
) -> Value {
    let row = |(problem, row): &(Problem, Comparison)| {
        let links: serde_json::Map<String, Value> =
            row.fused.links.iter().map(|link| (link.name.clone(), link.bytes.into())).collect();
        json!({
            "m": problem.m, "n": problem.n, "k": problem.k,
            "t_gemm_us": row.gemm_us, "t_comm_us": row.communication_us, "t_unfused_us": row.unfused_us,
            "t_chunked_us": row.chunked_us, "t_fused_us": row.fused.total_us,
            "sweeps": row.fused.sweeps.to_string(), "ect_us": row.ect_us(), "e": row.efficiency(), "rounded": row.fused.rounded, "link_bytes": links,
        })
    };
    json!({
        "flux": env!("CARGO_PKG_VERSION"), "op": op.name(), "preset": machine.name(), "nodes": machine.nodes(),
        "gpus": machine.gpus(), "gpu": machine.node().gpu.name, "gpu_is_assumed": !knows_gpu, "order": order.to_string(), "dtype": "bf16", "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
