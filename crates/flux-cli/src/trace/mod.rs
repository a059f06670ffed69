//! `flux trace`: what happens when, in one call: tile by tile, and chunk by chunk.

mod arguments;
mod chrome;
mod rows;
mod summary;
mod timeline;

pub(crate) use arguments::TraceArguments;

use crate::args::PathArgument;
use crate::bench::{BenchOp, DEFAULT_RANKS, Operands, ScalesArgument, Shape, Values};
use crate::error::Error;
use crate::files;
use crate::output::print;
use flux::{Backend, CallTrace, DType, Direction, Group, OpSpec, PathChoice, PathPreference, Placement};
use half::bf16;
use serde_json::{Value, json};

pub(crate) fn run(arguments: &TraceArguments) -> Result<(), Error> {
    let op = arguments.op;
    let ranks = match (op.communicates(), arguments.ranks) {
        (true, Some(ranks)) => ranks,
        (true, None) => arguments.group.gpus().max(DEFAULT_RANKS),
        (false, None | Some(1)) => 1,
        (false, Some(ranks)) => return Err(Error::OneRankOnly { op: op.name(), ranks }),
    };
    if !op.communicates() && !matches!(arguments.path, PathArgument::Auto) {
        return Err(Error::OneWayOnly { op: op.name() });
    }
    if let (Some(json), true) = (&arguments.json, arguments.json == arguments.svg) {
        return Err(Error::SameFile { path: json.clone() });
    }
    [&arguments.json, &arguments.svg]
        .into_iter()
        .flatten()
        .try_for_each(|file| files::check_writable(file))?;

    if flux::launch_environment()?.is_some() {
        return Err(Error::OneProcessOnly);
    }
    let mut config = arguments.group.config();
    config.trace = true;
    let group = Group::local_with(ranks, config)?;
    let traced = Traced::call(arguments, group)?;
    for line in traced.description() {
        print(line)?;
    }
    print(summary::table(&traced.calls))?;
    if let Some(waits) = summary::longest_waits(&traced.calls) {
        print(waits)?;
    }
    if let Some(file) = &arguments.json {
        files::replace(file, format!("{}\n", chrome::trace(&traced)).as_bytes())?;
    }
    if let Some(file) = &arguments.svg {
        files::replace(file, timeline::draw(&traced).as_bytes())?;
    }
    Ok(())
}

/// A call that was looked at.
struct Traced {
    op: BenchOp,
    shape: Shape,
    group: Group,
    direction: Direction,
    choice: PathChoice,
    calls: Vec<CallTrace>,
}

impl Traced {
    fn call(arguments: &TraceArguments, group: Group) -> Result<Self, Error> {
        let (op, shape) = (arguments.op, arguments.shape);
        let whole = op.whole(shape, group.world_size());
        let through_host = group.config().peer_memory == Placement::PinnedHost;
        let default_direction = if through_host { Direction::Pull } else { Direction::Push };
        let mut spec = OpSpec::new(whole.n, whole.k, whole.m, DType::Bf16);
        spec.path = PathPreference::from(arguments.path);
        let direction = arguments.transfer.map_or(default_direction, Direction::from);
        spec.direction = Some(direction);
        spec.chunk_rows = arguments.chunk_rows;
        arguments.group.apply_to(&mut spec);
        spec.one_shot_rows = arguments.one_shot_rows;
        let built = op.build(&group, spec)?;
        let a = Values::<bf16>::new(whole.m.saturating_mul(whole.k), 1);
        let b = Values::<bf16>::new(whole.n.saturating_mul(whole.k), 2);
        let operands = Operands::place(&group, &*built, (&a, &b, whole), ScalesArgument::Tensor, 0, 1)?;
        let (parts, streams) = (operands.operands(0), operands.streams());
        for _ in 0..arguments.warm_up {
            operands.enqueue(&*built, &parts, &streams)?;
        }
        operands.synchronize()?; // the call that is shown begins on an idle machine
        let choice = operands.enqueue(&*built, &parts, &streams)?;
        operands.synchronize()?;
        let calls = built.traces()?;
        drop(operands);
        Ok(Self { op, shape, group, direction, choice, calls })
    }

    fn description(&self) -> [String; 2] {
        let (ranks, backend, PathChoice { path, why, .. }) =
            (self.group.world_size(), self.group.backend(), self.choice);
        let (direction, memory) = (self.direction, self.group.config().peer_memory);
        [
            format!(
                "flux trace {}: {} per rank, bf16, {ranks} ranks on the {backend} backend",
                self.op.name(),
                self.shape
            ),
            format!("path {path} ({why}); {direction}, peers' buffers in {memory} memory"),
        ]
    }

    fn json(&self) -> Value {
        let PathChoice { path, why, .. } = self.choice;
        json!({
            "flux": env!("CARGO_PKG_VERSION"), "op": self.op.name(), "dtype": "bf16",
            "m": self.shape.m, "n": self.shape.n, "k": self.shape.k,
            "ranks": self.group.world_size(), "backend": self.group.backend().to_string(),
            "path": path.to_string(), "why": why, "transfer": self.direction.to_string(),
            "peer_memory": self.group.config().peer_memory.to_string(),
        })
    }

    /// What a block runs on.
    fn place_name(&self) -> &'static str {
        match self.group.backend() {
            Backend::Host => "thread",
            Backend::Cuda => "SM",
        }
    }

    /// When the first of it begins, and the last ends, in nanoseconds.
    fn span_ns(&self) -> (u64, u64) {
        let spans = self.calls.iter().filter_map(CallTrace::span_ns);
        spans.reduce(|(begin, end), (b, e)| (begin.min(b), end.max(e))).unwrap_or((0, 0))
    }
}
