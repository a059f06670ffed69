//! What of a report is drawn: how the ways compare, over the number of rows, a colour for each layer.

use super::report::{Report, Role, Row};
use super::svg::{Chart, Page, Series};

/// Efficiencies below this are drawn at it: at few rows, where there is little to hide, they can be anything.
const LEAST_EFFICIENCY: f64 = -1.0;

const ANY: (f64, f64) = (f64::MIN, f64::MAX);

/// Draws a report.
pub(crate) fn draw(report: &Report) -> String {
    let mut layers: Vec<(usize, usize)> = Vec::new();
    for row in &report.rows {
        let layer = (row.shape.n, row.shape.k);
        if !layers.contains(&layer) {
            layers.push(layer);
        }
    }
    let lines = |dashed: bool, value: &dyn Fn(&Row) -> Option<f64>| -> Vec<Series> {
        let line = |(group, &(n, k)): (usize, &(usize, usize))| {
            let rows = report.rows.iter().filter(|row| (row.shape.n, row.shape.k) == (n, k));
            let mut points: Vec<_> = rows.filter_map(|row| Some((row.shape.m as f64, value(row)?))).collect();
            points.sort_by(|(a, _), (b, _)| a.total_cmp(b));
            Series { group, dashed, points }
        };
        layers.iter().enumerate().map(line).filter(|series| !series.points.is_empty()).collect()
    };
    let both = |solid: &dyn Fn(&Row) -> Option<f64>, dashed: &dyn Fn(&Row) -> Option<f64>| {
        lines(true, dashed).into_iter().chain(lines(false, solid)).collect()
    };
    let (charts, styles) = if report.op.communicates() {
        let faster = Chart {
            title: "How many times as fast as unfused",
            y_label: "time(unfused) / time",
            include: vec![1.0],
            limits: ANY,
            reference: Some(1.0),
            series: both(&|row| row.over_unfused(Role::Fused), &|row| row.over_unfused(Role::Chunked)),
        };
        let hidden = Chart {
            title: "E: how much of the communication is hidden",
            y_label: "E = 1 - ECT / ECT(unfused)",
            include: vec![0.0, 1.0],
            limits: (LEAST_EFFICIENCY, f64::MAX),
            reference: Some(1.0),
            series: both(&|row| row.efficiency(Role::Fused), &|row| row.efficiency(Role::Chunked)),
        };
        (vec![faster, hidden], vec![("fused", false), ("chunked", true)])
    } else {
        let speed = Chart {
            title: "Speed",
            y_label: "TFLOP/s",
            include: vec![0.0],
            limits: ANY,
            reference: None,
            series: both(&|row| row.tflops(Role::Gemm), &|row| row.tflops(Role::Cublas)),
        };
        let mut charts = vec![speed];
        let mut styles = vec![("flux", false)];
        if report.cublas_version.is_some() {
            styles.push(("cuBLASLt", true));
            charts.push(Chart {
                title: "How many times as fast as cuBLASLt",
                y_label: "time(cuBLASLt) / time(flux)",
                include: vec![1.0],
                limits: ANY,
                reference: Some(1.0),
                series: lines(false, &Row::over_cublas),
            });
        }
        (charts, styles)
    };
    let driver = report.machine.driver.as_ref().map_or(String::new(), |driver| format!(", driver {driver}"));
    Page {
        title: format!("flux bench {}", report.title()),
        subtitle: format!("medians of {} samples, {}{driver}", report.protocol.samples, report.machine.date),
        x_label: "m (rows of A)",
        charts,
        groups: layers.iter().map(|(n, k)| format!("n {n}, k {k}")).collect(),
        styles,
    }
    .to_string()
}
