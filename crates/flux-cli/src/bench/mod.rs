//! `flux bench`: how long the plain GEMM, the communication, and the ways to put them together take, side by side.

mod arguments;
mod cublas;
mod machine;
mod measure;
mod nccl;
mod operands;
mod plot;
mod report;
mod shapes;
pub(crate) mod svg;

pub(crate) use arguments::{BenchArguments, BenchOp, DTypeArgument, FormatArgument, ScalesArgument};
pub(crate) use operands::{Operands, Values};
pub(crate) use shapes::{Shape, default as default_shapes};

use crate::error::Error;
use crate::files;
use crate::output::{print, speaks};
use arguments::Against;
use cublas::{Cublas, Multiplication};
use cudarc::driver::sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
use flux::{
    AgGemm, Backend, DType, Direction, E4m3, Element, Group, OpSpec, Operation, PathPreference, Placement,
};
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressStyle};
use machine::Machine;
use measure::{Clock, Contender, Protocol, interleaved};
use nccl::{Baseline, Nccl};
use operands::Expected;
use report::{Report, Role, Row};
use std::path::PathBuf;
use std::time::Duration;

/// As for `flux demo`.
pub(crate) const DEFAULT_RANKS: usize = 4;

/// The ways that are compared, and the communication that they hide.
const WAYS: [(Role, PathPreference); 4] = [
    (Role::Communication, PathPreference::CommunicationOnly),
    (Role::Unfused, PathPreference::Unfused),
    (Role::Chunked, PathPreference::Chunked),
    (Role::Fused, PathPreference::Fused),
];

/// Up to this depth, sums of products of 8-bit elements must be as exact as bf16 shows them.
const EXACT_DEPTH: f64 = 8192.0;

/// Copies of the operands come to twice the L2 cache, which is at least this large; but there are at most so many.
const LEAST_L2_BYTES: usize = 60_000_000;
const MAX_COPIES: usize = 8;

pub(crate) fn run(arguments: &BenchArguments) -> Result<(), Error> {
    let files = arguments.save.as_ref().map(|folder| [folder.join("bench.json"), folder.join("bench.svg")]);
    if let (Some(folder), Some(files)) = (&arguments.save, &files) {
        let unwritable = |source| Error::File { action: "write", path: folder.clone(), source };
        std::fs::create_dir_all(folder).map_err(unwritable)?;
        files.iter().try_for_each(|file| files::check_writable(file))?;
    }
    let report = match arguments.dtype {
        DTypeArgument::Bf16 => Bench::<bf16>::new(arguments)?.measure()?,
        DTypeArgument::F16 => Bench::<f16>::new(arguments)?.measure()?,
        DTypeArgument::E4m3 => Bench::<E4m3>::new(arguments)?.measure()?,
    };
    if !speaks(&report.group) {
        return Ok(());
    }
    match arguments.format {
        FormatArgument::Table => print(report.table())?,
        FormatArgument::Json => print(format_args!("{:#}", report.json()))?,
    }
    files.map_or(Ok(()), |files| save(&report, &files))
}

fn save(report: &Report, [json, svg]: &[PathBuf; 2]) -> Result<(), Error> {
    files::replace(json, format!("{:#}\n", report.json()).as_bytes())?;
    files::replace(svg, plot::draw(report).as_bytes())
}

/// Everything that stays the same from shape to shape.
struct Bench<'a, E> {
    arguments: &'a BenchArguments,
    op: BenchOp,
    group: Group,
    /// One rank, for the plain GEMM.
    solo: Group,
    /// Ranks that share a device, at most.
    sharing: usize,
    shapes: Vec<Shape>,
    direction: Direction,
    cublas: Option<Cublas>,
    /// Where there is anything to communicate.
    nccl: Option<Nccl>,
    protocol: Protocol,
    cold_bytes: usize,
    a: Values<E>,
    b: Values<E>,
    scales: ScalesArgument,
}

impl<'a, E: Element> Bench<'a, E> {
    fn new(arguments: &'a BenchArguments) -> Result<Self, Error> {
        let op = arguments.op;
        if arguments.scales.is_some() && !E::DTYPE.is_scaled() {
            return Err(Error::NotScaled { dtype: E::DTYPE });
        }
        let group = if op.communicates() {
            arguments.group.group(arguments.ranks, || arguments.group.gpus().max(DEFAULT_RANKS))?
        } else {
            let launched = flux::launch_environment()?.map(|launched| launched.world_size);
            let several = [arguments.ranks, launched].into_iter().flatten().find(|&ranks| ranks != 1);
            if let Some(ranks) = several {
                return Err(Error::OneRankOnly { op: op.name(), ranks });
            }
            Group::local_with(1, arguments.group.config())?
        };
        let ranks = group.world_size();
        let solo = if ranks == 1 {
            group.clone()
        } else {
            let mut config = arguments.group.config();
            config.gpu = group.device(group.local_ranks().start)?.as_cuda().map(|gpu| gpu.ordinal());
            Group::local_with(1, config)?
        };
        let on_gpus = solo.backend() == Backend::Cuda;
        let against = arguments.against.unwrap_or(if on_gpus { Against::Cublas } else { Against::None });
        let cublas = match against {
            Against::Cublas => Some(Cublas::open(solo.device(0)?)?),
            Against::None => None,
        };
        let nccl = op.communicates().then(|| Nccl::open(&group, &arguments.group.config())).transpose()?;
        let sharing = ranks.div_ceil(group.devices());
        let shapes = match &arguments.shapes[..] {
            [] => shapes::default(op, &arguments.m, !on_gpus),
            some => some.to_vec(),
        };
        let through_host = group.config().peer_memory == Placement::PinnedHost;
        let default_direction = if through_host { Direction::Pull } else { Direction::Push };
        let l2_bytes = |gpu: &flux::Device| {
            let bytes = gpu.as_cuda().and_then(|gpu| gpu.attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE).ok());
            bytes.and_then(|bytes| usize::try_from(bytes).ok()).unwrap_or(0).max(LEAST_L2_BYTES)
        };
        let several = ranks > 1;
        let protocol = Protocol {
            samples: arguments.samples.unwrap_or(if on_gpus { 15 } else { 5 }),
            rest: Duration::from_millis(arguments.rest_ms.unwrap_or(if on_gpus { 60 } else { 0 })),
            // Ranks wait for each other in every call: over several calls in a row, each takes as long as the first one.
            clock: if several && !on_gpus { Clock::Host } else { Clock::Device },
            warm_up: on_gpus,
            sample_time: Duration::from_millis(if several && on_gpus { 5 } else { 2 }),
            min_calls: if several && on_gpus { 4 } else { 1 },
        };
        let largest = |extents: fn(Shape) -> usize| {
            shapes.iter().map(|&shape| extents(op.whole(shape, ranks))).max().unwrap_or(0)
        };
        Ok(Self {
            arguments,
            op,
            sharing,
            direction: arguments.transfer.map_or(default_direction, Direction::from),
            cublas,
            nccl,
            protocol,
            cold_bytes: if on_gpus { 2 * l2_bytes(solo.device(0)?) } else { 0 },
            a: Values::new(largest(|Shape { m, k, .. }| m.saturating_mul(k)), 1),
            b: Values::new(largest(|Shape { n, k, .. }| n.saturating_mul(k)), 2),
            scales: arguments.scales.unwrap_or(ScalesArgument::Tensor),
            shapes,
            group,
            solo,
        })
    }

    fn measure(self) -> Result<Report, Error> {
        let has_nccl = self.nccl.as_ref().is_some_and(|nccl| nccl.version().is_some());
        let others = usize::from(self.cublas.is_some()) + usize::from(has_nccl);
        let contenders = 1 + others + if self.op.communicates() { WAYS.len() } else { 0 };
        let steps = (self.shapes.len() * contenders * self.protocol.samples) as u64;
        let bar = if speaks(&self.group) { ProgressBar::new(steps) } else { ProgressBar::hidden() };
        bar.set_style(
            ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}")
                .unwrap_or(ProgressStyle::default_bar()),
        );
        let mut rows = Vec::with_capacity(self.shapes.len());
        for (index, &shape) in self.shapes.iter().enumerate() {
            bar.set_message(format!("{}: {shape}", self.op.name()));
            rows.push(self.shape(shape, &bar)?);
            bar.set_position(((index + 1) * contenders * self.protocol.samples) as u64);
        }
        bar.finish_and_clear();
        Ok(Report {
            op: self.op,
            dtype: E::DTYPE,
            scales: E::DTYPE.is_scaled().then_some(self.scales),
            machine: Machine::of(&self.group)?,
            direction: self.direction,
            delivery: self.arguments.delivery.into(),
            summation: self.arguments.sum.into(),
            push: self.arguments.push.into(),
            order: self.arguments.group.order.clone(),
            chunk_rows: self.arguments.chunk_rows,
            against: if self.cublas.is_some() { Against::Cublas } else { Against::None },
            nccl_version: self.nccl.as_ref().and_then(Nccl::version),
            nccl_missing: self.nccl.as_ref().and_then(|nccl| nccl.missing().map(str::to_owned)),
            cublas_version: self.cublas.as_ref().map(|_| Cublas::version()),
            protocol: self.protocol,
            command: std::env::args_os()
                .skip(1)
                .fold("flux".into(), |line, word| line + " " + &word.to_string_lossy()),
            group: self.group,
            rows,
        })
    }

    /// All contenders of one shape: first verified, then timed.
    fn shape(&self, shape: Shape, bar: &ProgressBar) -> Result<Row, Error> {
        let gemm = self.op.whole(shape, self.sharing);
        let whole = self.op.whole(shape, self.group.world_size());
        let mut spec = OpSpec::new(gemm.n, gemm.k, gemm.m, E::DTYPE);
        if !self.op.communicates() {
            self.arguments.group.apply_to(&mut spec); // elsewhere it is what others are measured against
        }
        let solo_op = AgGemm::new(&self.solo, spec)?;
        let solo = self.place(&self.solo, &solo_op, gemm)?;
        let operands;
        let expected = self.expected(gemm);
        let ours = Contender::flux(Role::Gemm, Box::new(solo_op), &solo)?;
        let mut contenders = vec![verified(ours, &expected, gemm)?];
        if let Some(cublas) = &self.cublas {
            let (parts, stream) = (solo.operands(0), solo.first_stream());
            let theirs = Multiplication::fastest(cublas, gemm, E::DTYPE, &parts[0], stream)?;
            if let Some(theirs) = theirs {
                contenders.push(verified(Contender::cublas(theirs, &solo)?, &expected, gemm)?);
            }
        }
        if self.op.communicates() {
            let expected = if whole == gemm { expected } else { self.expected(whole) };
            let build = |path| {
                let mut spec = OpSpec::new(whole.n, whole.k, whole.m, E::DTYPE);
                (spec.path, spec.direction) = (path, Some(self.direction));
                spec.delivery = self.arguments.delivery.into();
                spec.summation = self.arguments.sum.into();
                spec.push = self.arguments.push.into();
                self.arguments.group.apply_to(&mut spec);
                spec.chunk_rows = self.arguments.chunk_rows;
                self.op.build(&self.group, spec)
            };
            operands = self.place(&self.group, &*build(PathPreference::Fused)?, whole)?;
            for (role, path) in WAYS {
                let way = Contender::flux(role, build(path)?, &operands)?;
                contenders.push(verified(way, &expected, whole)?);
            }
            let ranks = self.group.world_size();
            let baseline = match &self.nccl {
                Some(nccl) => Baseline::new(nccl, self.op, shape, E::DTYPE, ranks)?,
                None => None,
            };
            if let Some(baseline) = baseline {
                let bound = nccl::slack(self.op, ranks) * bound(E::DTYPE, whole.k);
                let contender = Contender::nccl(baseline, &operands)?;
                contenders.push(verified_within(bound, contender, &expected, whole)?);
            }
        }
        let measured = interleaved(&contenders, &self.protocol, bar)?;
        let measured = contenders.iter().map(|contender| contender.role).zip(measured).collect();
        Ok(Row { shape, gemm, whole, measured })
    }

    fn place(&self, group: &Group, op: &dyn Operation, shape: Shape) -> Result<Operands<E>, Error> {
        Operands::place(group, op, (&self.a, &self.b, shape), self.scales, self.cold_bytes, MAX_COPIES)
    }

    fn expected(&self, shape: Shape) -> Expected {
        Expected::new(&self.a, &self.b, shape, self.scales)
    }
}

/// How far a result may be off, over the norm of what is expected.
fn bound(dtype: DType, k: usize) -> f64 {
    match dtype {
        DType::Bf16 => 4e-3,
        DType::F16 => 6e-4,
        // The tensor core adds the products of 8-bit elements with some 14 bits: what it loses grows with K.
        DType::E4m3 => 4e-3 * (k as f64 / EXACT_DEPTH).max(1.0),
    }
}

/// Makes a contender's first call, and checks its result, if it has one.
fn verified<'a, E: Element>(
    contender: Contender<'a, E>,
    expected: &Expected,
    shape: Shape,
) -> Result<Contender<'a, E>, Error> {
    verified_within(bound(E::DTYPE, shape.k), contender, expected, shape)
}

fn verified_within<'a, E: Element>(
    bound: f64,
    mut contender: Contender<'a, E>,
    expected: &Expected,
    shape: Shape,
) -> Result<Contender<'a, E>, Error> {
    if contender.role == Role::Communication {
        return Ok(contender);
    }
    let error = contender.verify(expected)?;
    if error.is_nan() || error >= bound {
        let (contender, shape) = (contender.role.name(), shape.to_string());
        return Err(Error::WrongResult { contender, shape, error, bound });
    }
    Ok(contender)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flux::{BackendChoice, GroupConfig};

    /// A contender that writes no product passes for none, and the command ends with exit code 1.
    #[test]
    fn a_wrong_result_is_noticed() {
        notices_a_wrong_result::<bf16>(ScalesArgument::Tensor);
        notices_a_wrong_result::<E4m3>(ScalesArgument::Tensor);
        notices_a_wrong_result::<E4m3>(ScalesArgument::Rows);
    }

    fn notices_a_wrong_result<E: Element>(scales: ScalesArgument) {
        let mut config = GroupConfig::default();
        config.backend = BackendChoice::Host;
        let group = Group::local_with(2, config).unwrap();
        let shape = Shape { m: 20, n: 16, k: 8 };
        let (a, b) = (Values::<E>::new(160, 1), Values::new(128, 2));
        let expected = Expected::new(&a, &b, shape, scales);
        for (path, right) in [(PathPreference::Fused, true), (PathPreference::CommunicationOnly, false)] {
            for op in [BenchOp::AgGemm, BenchOp::GemmRs, BenchOp::GemmAr] {
                let mut spec = OpSpec::new(shape.n, shape.k, shape.m, E::DTYPE);
                spec.path = path;
                let op = op.build(&group, spec).unwrap();
                let operands = Operands::place(&group, &*op, (&a, &b, shape), scales, 0, 1).unwrap();
                let contender = Contender::flux(Role::Fused, op, &operands).unwrap();
                match verified(contender, &expected, shape) {
                    Ok(_) => assert!(right, "{path:?}"),
                    Err(error) => assert!(!right && error.exit_code() == 1, "{path:?}: {error}"),
                }
            }
        }
    }
}
