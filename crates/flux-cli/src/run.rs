//! `flux run`: one operation on matrices from a file.

use crate::args::{OpArgument, ReportArgument, RunArguments};
use crate::error::Error;
use crate::files;
use crate::output::{print, speaks};
use crate::tensors::{self, Names, Operands};
use flux::{
    Activation, AgGemm, DType, Direction, E4m3, Element, GemmAr, GemmRs, Group, Levels, OpSpec, Operation,
    PathChoice, Pattern, TileShape, Whole,
};
use half::{bf16, f16};
use std::time::{Duration, Instant};

pub(crate) fn run(arguments: &RunArguments) -> Result<(), Error> {
    let scales = [arguments.a_scale.as_deref(), arguments.b_scale.as_deref()];
    let operands = Operands::read(&arguments.input, Names { bias: arguments.bias.as_deref(), scales })?;
    files::check_writable(&arguments.output)?;
    if arguments.ranks.is_none() && flux::launch_environment()?.is_none() {
        return Err(Error::NoRanks);
    }
    let group = arguments.group.group(arguments.ranks, || 1)?;
    match operands.dtype {
        DType::Bf16 => multiply::<bf16>(arguments, &operands, &group),
        DType::F16 => multiply::<f16>(arguments, &operands, &group),
        DType::E4m3 => multiply::<E4m3>(arguments, &operands, &group),
    }
}

fn multiply<E: Element>(arguments: &RunArguments, operands: &Operands, group: &Group) -> Result<(), Error> {
    let mut spec = OpSpec::new(operands.n, operands.k, operands.m, E::DTYPE);
    spec.activation = arguments.activation.into();
    spec.path = arguments.path.into();
    spec.direction = arguments.transfer.map(Into::into);
    spec.delivery = arguments.delivery.into();
    spec.summation = arguments.sum.into();
    spec.push = arguments.push.into();
    arguments.group.apply_to(&mut spec);
    spec.chunk_rows = arguments.chunk_rows;
    spec.one_shot_rows = arguments.one_shot_rows;
    match arguments.op {
        OpArgument::AgGemm => {
            let op = AgGemm::new(group, spec)?;
            finish::<E, _>(arguments, operands, group, &op, op.tile(), op.chunk_rows())
        }
        OpArgument::GemmRs => {
            let op = GemmRs::new(group, spec)?;
            finish::<E, _>(arguments, operands, group, &op, op.tile(), op.chunk_rows())
        }
        OpArgument::GemmAr => {
            let op = GemmAr::new(group, spec)?;
            finish::<E, _>(arguments, operands, group, &op, op.tile(), op.chunk_rows())
        }
    }
}

fn finish<E: Element, Op: Operation>(
    arguments: &RunArguments,
    operands: &Operands,
    group: &Group,
    op: &Op,
    tile: TileShape,
    chunk_rows: usize,
) -> Result<(), Error> {
    let (a, b, bias) = operands.elements::<E>();
    let mut whole = Whole::place(group, op, &a, &b, operands.m)?;
    let [a_scale, b_scale] = &operands.scales;
    whole = whole.with_scales(a_scale, b_scale)?;
    if let Some(bias) = bias {
        whole = whole.with_bias(&bias)?;
    }
    let begin = Instant::now();
    let choice = whole.enqueue()?;
    whole.synchronize()?;
    let time = begin.elapsed();
    let columns = op.result_columns();
    let c = whole.result()?; // of all ranks: among processes, a step that all take together
    if !speaks(group) {
        return Ok(());
    }
    tensors::write(&arguments.output, &c, operands.m, columns)?;
    let chosen = op.explain(operands.m)?.chosen;
    let (transfer, tile) = (chosen.direction, chosen.tile.unwrap_or(tile));
    let order = (op.pattern(), op.levels());
    report(arguments, operands, group, (columns, transfer), (choice, tile, chunk_rows, time), order)
}

fn report(
    arguments: &RunArguments,
    operands: &Operands,
    group: &Group,
    (columns, transfer): (usize, Direction),
    (choice, tile, chunk_rows, time): (PathChoice, TileShape, usize, Duration),
    (pattern, levels): (&Pattern, Levels),
) -> Result<(), Error> {
    let op = arguments.op.name();
    let activation = Activation::from(arguments.activation);
    let Operands { m, n, k, dtype, .. } = operands;
    let PathChoice { path, delivery, summation, source, why, sweeps, .. } = choice;
    let (backend, ranks) = (group.backend(), group.world_size());
    let (ms, order) = (time.as_secs_f64() * 1e3, pattern.to_string());
    if arguments.report == ReportArgument::Json {
        print(format_args!(
            "{}",
            serde_json::json!({
                "op": op, "m": m, "n": n, "k": k, "dtype": dtype.to_string(), "ranks": ranks,
                "backend": backend.to_string(), "path": path.to_string(), "source": source.to_string(), "why": why,
                "delivery": delivery.map(|delivery| delivery.to_string()),
                "sum": summation.map(|summation| summation.to_string()),
                "tile": [tile.rows, tile.columns], "chunk_rows": chunk_rows, "transfer": transfer.to_string(),
                "sweeps": sweeps.to_string(), "order": order, "levels": levels.to_string(),
                "bias": arguments.bias.is_some(),
                "a_scale": arguments.a_scale.is_some(), "b_scale": arguments.b_scale.is_some(), "activation": activation.to_string(), "time_ms": ms,
            })
        ))?;
    } else {
        print(format_args!(
            "{op} [{m}, {k}] x [{n}, {k}]^T{}{}, {dtype}, {ranks} ranks on the {backend} backend",
            if arguments.bias.is_some() { " + bias" } else { "" },
            if activation == Activation::None { String::new() } else { format!(", {activation}") },
        ))?;
        print(format_args!(
            "path {path} ({why}), tile {}x{}, chunks of {chunk_rows} rows, {transfer}, order {order}{}",
            tile.rows,
            tile.columns,
            if levels == Levels::Two { ", summed in two levels" } else { "" },
        ))?;
        print(format_args!("{ms:.3} ms; c [{m}, {columns}] is in {}", arguments.output.display()))?;
    }
    Ok(())
}
