//! `flux tune`: measures which way calls go best, and keeps it; or says how good the plans are that nothing was measured for.

mod arguments;

pub(crate) use arguments::TuneArguments;

use crate::bench::{DEFAULT_RANKS, FormatArgument, Shape};
use crate::error::Error;
use crate::files;
use crate::output::{print, speaks};
use arguments::bench_op;
use comfy_table::Table;
use flux::{Backend, Group, Loss, Measured, OpKind, OpSpec, TuneConfig, TuneOutcome, tune};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};

/// A layer, and what was found for its calls.
struct Row {
    shape: Shape,
    outcome: TuneOutcome,
}

pub(crate) fn run(arguments: &TuneArguments) -> Result<(), Error> {
    let cache = arguments.group.cache().filter(|_| !arguments.check);
    if let Some(cache) = &cache {
        let folder = cache.parent().filter(|folder| !folder.as_os_str().is_empty());
        let unwritable = |source| Error::File { action: "write", path: cache.clone(), source };
        folder.map_or(Ok(()), std::fs::create_dir_all).map_err(unwritable)?;
        files::check_writable(cache)?;
    }
    let group = arguments.group.group(arguments.ranks, || arguments.group.gpus().max(DEFAULT_RANKS))?;
    let rows = measure(arguments, &group)?;
    if !speaks(&group) {
        return Ok(());
    }
    match arguments.format {
        FormatArgument::Table => {
            print(format_args!("{}", table(arguments, &rows)))?;
            if let Some(cache) = &cache {
                print(format_args!("kept in {}", cache.display()))?;
            }
        }
        FormatArgument::Json => print(format_args!("{:#}", report(arguments, &group, &rows)))?,
    }
    let slower = rows.iter().filter(|row| loses(row, arguments.tolerance)).count();
    match arguments.check && slower > 0 {
        true => Err(Error::Slower { slower, all: rows.len(), percent: 100.0 * arguments.tolerance }),
        false => Ok(()),
    }
}

fn measure(arguments: &TuneArguments, group: &Group) -> Result<Vec<Row>, Error> {
    let op = OpKind::from(arguments.op);
    let on_host = group.backend() == Backend::Host;
    let shapes = arguments.shapes(on_host);
    let bar = if speaks(group) { ProgressBar::new(0) } else { ProgressBar::hidden() };
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}");
    bar.set_style(style.unwrap_or(ProgressStyle::default_bar()));
    let mut rows = Vec::new();
    let count = shapes.len() as u64;
    for (index, shape) in (0_u64..).zip(shapes) {
        let whole = bench_op(arguments.op).whole(shape, group.world_size());
        let mut config = TuneConfig::new(&[shape.m]);
        config.force = arguments.force || arguments.check;
        config.keep = !arguments.check;
        config.candidates = if arguments.check { usize::MAX } else { arguments.candidates };
        config.samples = arguments.samples.unwrap_or(config.samples);
        let mut spec = OpSpec::new(whole.n, whole.k, whole.m, arguments.dtype.into());
        arguments.group.apply_to(&mut spec);
        bar.set_message(format!("{op}: {shape}"));
        let outcomes = tune(group, op, &spec, &config, |progress| {
            let (done, all) = (progress.done as u64, progress.all.max(1) as u64);
            bar.set_length(count * all);
            bar.set_position(index * all + done.min(all));
        })?;
        rows.extend(outcomes.into_iter().map(|outcome| Row { shape, outcome }));
    }
    bar.finish_and_clear();
    Ok(rows)
}

/// Whether what is taken without measuring is surely slower than the fastest by more than that.
fn loses(row: &Row, tolerance: f64) -> bool {
    row.outcome
        .planned
        .as_ref()
        .is_some_and(|(_, Loss { by, uncertainty })| by - 2.0 * uncertainty > tolerance)
}

fn words(of: &Measured) -> String {
    let one_shot = if of.one_shot { ", one-shot" } else { "" };
    let delivery = of.delivery.as_ref().map(|delivery| format!(", {delivery}")).unwrap_or_default();
    let chunks =
        if of.chunks_per_shard > 1 { format!(", {} chunks", of.chunks_per_shard) } else { String::new() };
    let tile = of.tile.as_ref().map(|tile| format!(", tile {tile}")).unwrap_or_default();
    format!("{}{one_shot}{delivery}, {}{chunks}, {}{tile}", of.path, of.direction, of.order)
}

fn table(arguments: &TuneArguments, rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(comfy_table::presets::UTF8_BORDERS_ONLY);
    let us = |of: &Measured| format!("{:.1}", of.us);
    if arguments.check {
        table.set_header(["m", "n", "k", "planned", "us", "fastest", "us", "loss", "slowest", "us"]);
    } else {
        table.set_header(["m", "n", "k", "kept", "us", "spread", "before", "us", "candidates"]);
    }
    for row in rows {
        let Row { shape, outcome } = row;
        let shape = [outcome.entry.key().m, shape.n, shape.k].map(|extent| extent.to_string());
        let plans: Vec<&Measured> = outcome.entry.plans().collect();
        let by_time = |a: &&&Measured, b: &&&Measured| a.us.total_cmp(&b.us);
        let (Some(best), Some(planned)) =
            (plans.first(), outcome.planned.as_ref().map(|planned| &planned.0).or(plans.first().copied()))
        else {
            continue;
        };
        let cells = if arguments.check {
            let fastest = plans.iter().min_by(by_time).unwrap_or(best);
            let slowest = plans.iter().max_by(by_time).unwrap_or(best);
            let loss = outcome.planned.as_ref().map_or_else(String::new, |(_, Loss { by, uncertainty })| {
                format!("{:.1} ± {:.1} %", 100.0 * by, 100.0 * uncertainty)
            });
            vec![words(planned), us(planned), words(fastest), us(fastest), loss, words(slowest), us(slowest)]
        } else {
            let before = match &outcome.planned {
                Some((planned, _)) => [words(planned), us(planned)],
                None => ["measured already".to_owned(), String::new()],
            };
            let [before, before_us] = before;
            let spread = format!("{:.1} %", 100.0 * best.spread);
            vec![words(best), us(best), spread, before, before_us, plans.len().to_string()]
        };
        table.add_row(shape.into_iter().chain(cells));
    }
    table
}

fn report(arguments: &TuneArguments, group: &Group, rows: &[Row]) -> Value {
    let row = |row: &Row| {
        let planned = row.outcome.planned.as_ref();
        json!({
            "m": row.outcome.entry.key().m, "n": row.shape.n, "k": row.shape.k,
            "planned": planned.map(|planned| &planned.0), "loss": planned.map(|planned| planned.1.by),
            "loss_uncertainty": planned.map(|planned| planned.1.uncertainty), "entry": row.outcome.entry,
        })
    };
    json!({
        "flux": env!("CARGO_PKG_VERSION"), "op": OpKind::from(arguments.op).name(), "ranks": group.world_size(),
        "backend": group.backend().to_string(), "check": arguments.check, "rows": rows.iter().map(row).collect::<Vec<_>>(),
    })
}
