//! What was measured, as a table and as JSON. `docs/bench.md` describes the JSON field by field.

use super::arguments::{Against, BenchOp, ScalesArgument};
use super::machine::Machine;
use super::measure::{Clock, Protocol};
use super::shapes::Shape;
use comfy_table::Table;
use flux::{DType, Delivery, Direction, Group, Order, Push, Summation};
use serde_json::{Value, json};

/// Raised when a field changes its meaning or goes.
const SCHEMA: u32 = 1;

/// What a contender is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Gemm,
    Cublas,
    Communication,
    Unfused,
    Chunked,
    Fused,
    Nccl,
}

impl Role {
    pub(crate) const ALL: [Role; 7] = [
        Role::Gemm,
        Role::Cublas,
        Role::Communication,
        Role::Unfused,
        Role::Chunked,
        Role::Fused,
        Role::Nccl,
    ];

    pub(crate) const fn name(self) -> &'static str {
        match self {
            Role::Gemm => "gemm",
            Role::Cublas => "cublas",
            Role::Communication => "communication",
            Role::Unfused => "unfused",
            Role::Chunked => "chunked",
            Role::Fused => "fused",
            Role::Nccl => "nccl",
        }
    }
}

/// One contender's figures.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Measured {
    /// The median time of a call, in microseconds.
    pub(crate) us: f64,
    /// The distance of the quartiles over the median.
    pub(crate) spread: f64,
    /// Calls in a sample.
    pub(crate) calls: usize,
    /// The median time that enqueueing a call of all ranks takes, in microseconds.
    pub(crate) host_us: f64,
    /// How far the result was off; `None` if there is none to check.
    pub(crate) error: Option<f64>,
    /// How tiles got to the ranks that sum them, if they went by themselves.
    pub(crate) delivery: Option<Delivery>,
    /// Where these ranks summed them.
    pub(crate) summation: Option<Summation>,
}

/// One shape's figures.
#[derive(Clone, Debug)]
pub(crate) struct Row {
    /// A rank's GEMM.
    pub(crate) shape: Shape,
    /// The GEMM that was timed: of all ranks of a device.
    pub(crate) gemm: Shape,
    /// The whole problem.
    pub(crate) whole: Shape,
    pub(crate) measured: Vec<(Role, Measured)>,
}

impl Row {
    pub(crate) fn get(&self, role: Role) -> Option<&Measured> {
        self.measured.iter().find(|(other, _)| *other == role).map(|(_, measured)| measured)
    }

    pub(crate) fn us(&self, role: Role) -> Option<f64> {
        self.get(role).map(|measured| measured.us)
    }

    /// Of [`Role::Gemm`] or [`Role::Cublas`].
    pub(crate) fn tflops(&self, role: Role) -> Option<f64> {
        self.us(role).map(|us| self.gemm.flop() / us / 1e6)
    }

    /// How many times as fast as cuBLAS the plain GEMM is.
    pub(crate) fn over_cublas(&self) -> Option<f64> {
        Some(self.us(Role::Cublas)? / self.us(Role::Gemm)?)
    }

    /// No overlap can be faster than the longer of the two.
    pub(crate) fn floor_us(&self) -> Option<f64> {
        Some(self.us(Role::Gemm)?.max(self.us(Role::Communication)?))
    }

    /// The effective communication time of a way.
    pub(crate) fn ect_us(&self, role: Role) -> Option<f64> {
        Some(self.us(role)? - self.us(Role::Gemm)?)
    }

    /// The overlap efficiency of a way; none where unfused communication takes no time that could be hidden.
    pub(crate) fn efficiency(&self, role: Role) -> Option<f64> {
        let unfused = self.ect_us(Role::Unfused).filter(|&ect| ect > 0.0)?;
        Some(1.0 - self.ect_us(role)? / unfused)
    }

    /// How many times as fast as unfused a way is.
    pub(crate) fn over_unfused(&self, role: Role) -> Option<f64> {
        Some(self.us(Role::Unfused)? / self.us(role)?)
    }

    /// How many times as fast as a GEMM and NCCL's own collective the fused way is.
    pub(crate) fn over_nccl(&self) -> Option<f64> {
        Some(self.us(Role::Nccl)? / self.us(Role::Fused)?)
    }

    /// How the fused call's tiles got to the ranks that sum them.
    fn delivery(&self) -> Option<String> {
        self.get(Role::Fused)?.delivery.map(|delivery| delivery.to_string())
    }

    /// Where they were summed.
    fn summation(&self) -> Option<String> {
        self.get(Role::Fused)?.summation.map(|summation| summation.to_string())
    }

    fn json(&self) -> Value {
        let shape = |Shape { m, n, k }| json!({ "m": m, "n": n, "k": k });
        let mut row = json!({
            "m": self.shape.m, "n": self.shape.n, "k": self.shape.k,
            "gemm_shape": shape(self.gemm), "whole_shape": shape(self.whole),
            "gemm_tflops": self.tflops(Role::Gemm),
            "cublas_tflops": self.tflops(Role::Cublas),
            "speedup_over_cublas": self.over_cublas(),
            "floor_us": self.floor_us(),
            "ect_us": self.ect_us(Role::Fused), "efficiency": self.efficiency(Role::Fused),
            "speedup_over_unfused": self.over_unfused(Role::Fused),
            "speedup_over_nccl": self.over_nccl(),
            "chunked_ect_us": self.ect_us(Role::Chunked),
            "chunked_efficiency": self.efficiency(Role::Chunked),
            "chunked_speedup_over_unfused": self.over_unfused(Role::Chunked),
            "delivery": self.delivery(),
            "sum": self.summation(),
        });
        for role in Role::ALL {
            row[role.name()] = self.get(role).map_or(Value::Null, |measured| {
                let Measured { us, spread, calls, host_us, error, .. } = measured;
                json!({ "us": us, "spread": spread, "calls": calls, "host_us": host_us, "error": error })
            });
        }
        row
    }
}

/// All that was measured, and how.
pub(crate) struct Report {
    pub(crate) op: BenchOp,
    pub(crate) dtype: DType,
    /// What A and B are scaled by, if elements are scaled.
    pub(crate) scales: Option<ScalesArgument>,
    pub(crate) group: Group,
    pub(crate) direction: Direction,
    /// As asked.
    pub(crate) delivery: Delivery,
    /// As asked.
    pub(crate) summation: Summation,
    /// As asked.
    pub(crate) push: Push,
    /// As asked.
    pub(crate) order: Order,
    pub(crate) chunk_rows: Option<usize>,
    pub(crate) against: Against,
    pub(crate) cublas_version: Option<usize>,
    pub(crate) nccl_version: Option<String>,
    /// Why nothing was measured beside NCCL's collectives.
    pub(crate) nccl_missing: Option<String>,
    pub(crate) protocol: Protocol,
    pub(crate) machine: Machine,
    pub(crate) command: String,
    pub(crate) rows: Vec<Row>,
}

impl Report {
    /// What was measured where, in a line.
    pub(crate) fn title(&self) -> String {
        let ranks = match self.group.world_size() {
            1 => "1 rank".into(),
            ranks => format!("{ranks} ranks"),
        };
        let devices = match &self.machine.gpu {
            Some(gpu) => format!("{} x {gpu}", self.group.devices()),
            None => self.machine.devices.join(", "),
        };
        let scales = match self.scales {
            Some(ScalesArgument::Rows) => ", a scale for each row",
            _ => "",
        };
        format!("{}, {}{scales}, {ranks} on {devices}", self.op.name(), self.dtype)
    }

    pub(crate) fn json(&self) -> Value {
        let Machine { devices, gpu, driver, date } = &self.machine;
        json!({
            "schema": SCHEMA, "flux": env!("CARGO_PKG_VERSION"), "command": self.command, "date": date,
            "op": self.op.name(), "dtype": self.dtype.to_string(),
            "scales": self.scales.map(ScalesArgument::name), "ranks": self.group.world_size(),
            "backend": self.group.backend().to_string(),
            "devices": devices, "gpu": gpu, "driver": driver,
            "peer_memory": self.group.config().peer_memory.to_string(),
            "transfer": self.direction.to_string(), "delivery": self.delivery.to_string(),
            "sum": self.summation.to_string(),
            "push": self.push.to_string(),
            "order": self.order.to_string(),
            "chunk_rows": self.chunk_rows,
            "against": self.against.name(), "cublas_version": self.cublas_version,
            "nccl_version": self.nccl_version, "nccl_missing": self.nccl_missing,
            "samples": self.protocol.samples, "rest_ms": self.protocol.rest.as_secs_f64() * 1e3,
            "clock": self.protocol.clock.name(),
            "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
        })
    }

    pub(crate) fn table(&self) -> String {
        let ranks = self.group.world_size() as f64;
        let time = |us: Option<f64>| us.map_or("-".into(), |us| format!("{us:.1}"));
        let ratio = |value: Option<f64>| value.map_or("-".into(), |value| format!("{value:.3}"));
        let rate = |value: Option<f64>| match value {
            None => "-".into(),
            Some(value) if value < 10.0 => format!("{value:.3}"),
            Some(value) => format!("{value:.0}"),
        };
        let mut table = Table::new();
        table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
        let mut header = vec!["m", "n", "k", "gemm us", "TFLOP/s", "x cuBLAS"];
        header.extend(if self.op.communicates() {
            &[
                "comm us",
                "nccl us",
                "unfused us",
                "chunked us",
                "fused us",
                "floor us",
                "ECT us",
                "E",
                "host us",
            ][..]
        } else {
            &["cuBLAS us", "TFLOP/s", "host us"]
        });
        let delivers = self.rows.iter().any(|row| row.delivery().is_some());
        header.extend(if delivers { &["delivery", "sum"][..] } else { &[] });
        table.set_header(header);
        for row in &self.rows {
            let Shape { m, n, k } = row.shape;
            let host = |role| time(row.get(role).map(|measured| measured.host_us / ranks));
            let mut cells = vec![m.to_string(), n.to_string(), k.to_string()];
            cells.extend([time(row.us(Role::Gemm)), rate(row.tflops(Role::Gemm)), ratio(row.over_cublas())]);
            if self.op.communicates() {
                let ways = [Role::Communication, Role::Nccl, Role::Unfused, Role::Chunked, Role::Fused];
                cells.extend(ways.map(|role| time(row.us(role))));
                cells.extend([time(row.floor_us()), time(row.ect_us(Role::Fused))]);
                cells.extend([ratio(row.efficiency(Role::Fused)), host(Role::Fused)]);
            } else {
                cells.extend([time(row.us(Role::Cublas)), rate(row.tflops(Role::Cublas)), host(Role::Gemm)]);
            }
            if delivers {
                cells.extend([row.delivery(), row.summation()].map(|way| way.unwrap_or("-".into())));
            }
            table.add_row(cells);
        }
        for column in table.column_iter_mut() {
            column.set_cell_alignment(comfy_table::CellAlignment::Right);
        }
        let clock = match self.protocol.clock {
            Clock::Device => "the device's clock",
            Clock::Host => "the host's clock, over calls back to back",
        };
        let spreads =
            self.rows.iter().flat_map(|row| row.measured.iter().map(move |(role, m)| (row, role, m)));
        let widest = spreads.max_by(|(_, _, a), (_, _, b)| a.spread.total_cmp(&b.spread));
        let widest = widest.map_or(String::new(), |(row, role, measured)| {
            format!("; largest spread {:.1} % ({}, {})", 100.0 * measured.spread, role.name(), row.shape)
        });
        let (title, samples, absent) = (self.title(), self.protocol.samples, self.without_nccl());
        format!("{title}\n{table}\nmedians of {samples} samples by {clock}{widest}{absent}")
    }

    /// Why a shape has no figure of NCCL's, in a line.
    fn without_nccl(&self) -> String {
        let lacks = |row: &Row| row.get(Role::Nccl).is_none();
        match &self.nccl_missing {
            Some(reason) => format!("\nno nccl: {reason}"),
            None if self.op.communicates() && self.rows.iter().any(lacks) => {
                "\nno nccl where m is no multiple of the ranks: its collectives take equal shards".into()
            }
            None => String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(times: &[(Role, f64)]) -> Row {
        let shape = Shape { m: 100, n: 100, k: 100 };
        let measured = |us| Measured {
            us,
            spread: 0.0,
            calls: 1,
            host_us: 1.0,
            error: None,
            delivery: None,
            summation: None,
        };
        let measured = times.iter().map(|&(role, us)| (role, measured(us))).collect();
        Row { shape, gemm: shape, whole: shape, measured }
    }

    #[test]
    fn figures_follow_from_times() {
        let row = row(&[
            (Role::Gemm, 100.0),
            (Role::Cublas, 110.0),
            (Role::Communication, 60.0),
            (Role::Unfused, 160.0),
            (Role::Chunked, 140.0),
            (Role::Fused, 106.0),
        ]);
        assert_eq!(row.floor_us(), Some(100.0));
        assert_eq!(row.ect_us(Role::Fused), Some(6.0));
        assert_eq!(row.efficiency(Role::Fused), Some(0.9));
        assert_eq!(row.over_unfused(Role::Unfused), Some(1.0));
        assert_eq!(row.over_cublas(), Some(1.1));
        assert_eq!(row.tflops(Role::Gemm), Some(0.02));
    }

    #[test]
    fn nothing_is_hidden_where_nothing_could_be() {
        let row = row(&[(Role::Gemm, 100.0), (Role::Unfused, 99.0), (Role::Fused, 98.0)]);
        assert_eq!((row.efficiency(Role::Fused), row.floor_us(), row.over_cublas()), (None, None, None));
        assert!(row.json()["efficiency"].is_null() && row.json()["cublas"].is_null());
    }
}
