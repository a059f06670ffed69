//! The plain GEMM beside cuBLASLt, and fused ways beside unfused ones, in one process, interleaved, with equal rests, on
//! normal data.
#![allow(clippy::print_stdout)] // the figures are the point

use cudarc::cublaslt::{Activation as Theirs, CudaBlasLT, Matmul, MatmulConfig};
use cudarc::driver::{CudaSlice, CudaStream, DevicePtr};
use flux::{
    Activation, AgGemm, BackendChoice, CudarcScales, DType, GemmAr, GemmRs, Group, GroupConfig, OpSpec,
    Operation, PathPreference, Whole,
};
use flux_tests::data::{Fill, matrix};
use half::bf16;
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: usize = 15;

/// Calls between two events: the first of them pays for the launch.
const CALLS: usize = 4;

/// What the plain GEMM is to reach of cuBLASLt's speed at 4096³ on a Hopper GPU, and elsewhere, with the portable kernel.
const GOALS: (f64, f64) = (0.95, 0.40);

fn median(mut times: Vec<f64>) -> (f64, f64) {
    times.sort_by(f64::total_cmp);
    let spread = (times[times.len() * 3 / 4] - times[times.len() / 4]) / times[times.len() / 2];
    (times[times.len() / 2], spread)
}

/// Row-major C = A·Bᵀ is column-major Cᵀ = B·Aᵀ.
fn row_major(m: usize, n: usize, k: usize) -> MatmulConfig {
    MatmulConfig {
        transa: true,
        transb: false,
        transc: false,
        m: n as u64,
        n: m as u64,
        k: k as u64,
        alpha: 1.0,
        lda: k as i64,
        ldb: k as i64,
        beta: 0.0,
        ldc: n as i64,
        stride_a: None,
        stride_b: None,
        stride_c: None,
        stride_bias: None,
        batch_size: None,
    }
}

fn one_gpu() -> (Group, Arc<CudaStream>, CudaBlasLT) {
    let mut config = GroupConfig::default();
    config.backend = BackendChoice::Cuda;
    let group = Group::local_with(1, config).expect("this test needs a GPU");
    let stream = group.device(0).unwrap().as_cuda().unwrap().context().new_stream().unwrap();
    let cublas = CudaBlasLT::new(stream.clone()).unwrap();
    (group, stream, cublas)
}

/// Milliseconds of a call, after a rest.
fn time(stream: &CudaStream, rest_ms: u64, mut call: impl FnMut()) -> f64 {
    std::thread::sleep(Duration::from_millis(rest_ms));
    let timed = Some(cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT);
    let begin = stream.record_event(timed).unwrap();
    (0..CALLS).for_each(|_| call());
    let end = stream.record_event(timed).unwrap();
    f64::from(begin.elapsed_ms(&end).unwrap()) / CALLS as f64
}

#[test]
fn plain_gemm_beside_cublas() {
    let (group, stream, cublas) = one_gpu();
    println!("    m     n     k |  flux ms  TFLOP/s | cublas ms  TFLOP/s | ratio | spreads");
    let mut at_4096 = 0.0;
    for (m, n, k) in [(4096, 4096, 4096), (8192, 8192, 8192), (8192, 6144, 4096), (1024, 7168, 8192)] {
        let op = AgGemm::new(&group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
        let a = stream.clone_htod(&matrix::<bf16>(m * k, Fill::Normal, 1)).unwrap();
        let b = stream.clone_htod(&matrix::<bf16>(n * k, Fill::Normal, 2)).unwrap();
        let mut ours: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; m * n]).unwrap();
        let mut theirs: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; m * n]).unwrap();
        let (mut flux_ms, mut cublas_ms) = (Vec::new(), Vec::new());
        for round in 0..ROUNDS + 2 {
            let flux = time(&stream, 60, || {
                op.enqueue_cudarc(0, m, &a, &b, CudarcScales::default(), None, &mut ours, &stream).unwrap();
            });
            let peer = time(&stream, 60, || {
                // SAFETY: the shape is the tensors'.
                unsafe { cublas.matmul(row_major(m, n, k), &b, &a, &mut theirs, None, None).unwrap() };
            });
            if round >= 2 {
                flux_ms.push(flux);
                cublas_ms.push(peer);
            }
        }
        let (ours, theirs) = (stream.clone_dtoh(&ours).unwrap(), stream.clone_dtoh(&theirs).unwrap());
        let theirs: Vec<f64> = theirs.iter().map(|value| value.to_f64()).collect();
        let difference = flux_tests::data::relative_error(&ours, &theirs);
        assert!(difference < 4e-3, "the results differ by {difference:e}");
        let flop = 2.0 * m as f64 * n as f64 * k as f64;
        let ((flux, flux_spread), (peer, peer_spread)) = (median(flux_ms), median(cublas_ms));
        let ratio = peer / flux;
        println!(
            "{m:>5} {n:>5} {k:>5} | {flux:>8.3} {:>8.0} | {peer:>9.3} {:>8.0} | {ratio:>5.3} | {:.1} % {:.1} %",
            flop / flux / 1e9,
            flop / peer / 1e9,
            100.0 * flux_spread,
            100.0 * peer_spread
        );
        if m == 4096 {
            at_4096 = ratio;
        }
    }
    let is_hopper = stream.context().compute_capability().unwrap() == (9, 0);
    let goal = if is_hopper { GOALS.0 } else { GOALS.1 };
    assert!(at_4096 >= goal, "4096³ runs at {at_4096:.3} of cuBLASLt, less than {goal}");
}

/// What a GEMM with a bias or an activation may take of a plain one's time.
const EPILOGUE_BOUND: f64 = 1.10;

#[test]
fn epilogues_beside_none() {
    let (group, stream, cublas) = one_gpu();
    // Activations, and whether there is a bias. The last three are cuBLASLt's.
    let kinds = [
        (Activation::None, false),
        (Activation::None, true),
        (Activation::Gelu, true),
        (Activation::Silu, true),
        (Activation::SwiGlu, false),
        (Activation::None, false),
        (Activation::None, true),
        (Activation::Gelu, true),
    ];
    let ours = kinds.len() - 3;
    println!("    m     n     k |  flux ms   bias   GELU   SiLU SwiGLU | cublas ms   bias   GELU");
    let mut worst = 0.0_f64;
    for (m, n, k) in [(4096, 7168, 4096), (8192, 8192, 3584), (2048, 7168, 8192), (512, 8192, 3584)] {
        let a = stream.clone_htod(&matrix::<bf16>(m * k, Fill::Normal, 1)).unwrap();
        let b = stream.clone_htod(&matrix::<bf16>(n * k, Fill::Normal, 2)).unwrap();
        let bias = stream.clone_htod(&matrix::<bf16>(n, Fill::Normal, 3)).unwrap();
        let ops = kinds.map(|(activation, _)| {
            let mut spec = OpSpec::new(n, k, m, DType::Bf16);
            spec.activation = activation;
            AgGemm::new(&group, spec).unwrap()
        });
        let mut c = kinds.map(|(activation, _)| {
            let columns = if activation == Activation::SwiGlu { n / 2 } else { n };
            stream.clone_htod(&vec![bf16::NAN; m * columns]).unwrap()
        });
        let mut times = kinds.map(|_| Vec::new());
        for round in 0..ROUNDS + 2 {
            for (index, (activation, has_bias)) in kinds.into_iter().enumerate() {
                let c = &mut c[index];
                let time = time(&stream, 20, || {
                    if index < ours {
                        let bias = has_bias.then_some(&bias as &dyn DevicePtr<bf16>);
                        let scales = CudarcScales::default();
                        ops[index].enqueue_cudarc(0, m, &a, &b, scales, bias, c, &stream).unwrap();
                    } else {
                        let activation = (activation == Activation::Gelu).then_some(&Theirs::Gelu);
                        let bias = has_bias.then_some(&bias);
                        // SAFETY: the shape is the tensors'.
                        unsafe { cublas.matmul(row_major(m, n, k), &b, &a, c, bias, activation).unwrap() };
                    }
                });
                if round >= 2 {
                    times[index].push(time);
                }
            }
        }
        let medians = times.map(|times| median(times).0);
        let (flux, peer) = medians.split_at(ours);
        let ratios = |medians: &[f64]| -> Vec<f64> { medians.iter().map(|time| time / medians[0]).collect() };
        let print = |medians: &[f64]| {
            let ratios = ratios(medians).into_iter().skip(1).map(|ratio| format!(" {ratio:>6.3}"));
            format!("{:>8.4}{}", medians[0], ratios.collect::<String>())
        };
        println!("{m:>5} {n:>5} {k:>5} | {} | {}", print(flux), print(peer));
        worst = ratios(flux).into_iter().fold(worst, f64::max);
    }
    assert!(worst < EPILOGUE_BOUND, "an epilogue takes {worst:.3} times as long as none");
}

/// Fused beside unfused, on all GPUs there are, interleaved. The host's clock: a call takes milliseconds.
fn fused_beside_unfused<Op: Operation>(
    name: &str,
    (m, n, k): (usize, usize, usize),
    group: &Group,
    build: impl Fn(OpSpec) -> Op,
) -> f64 {
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 1), matrix::<bf16>(n * k, Fill::Normal, 2));
    let ops = [PathPreference::Fused, PathPreference::Unfused].map(|path| {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        spec.path = path;
        build(spec)
    });
    let calls: Vec<_> = ops.iter().map(|op| Whole::place(group, op, &a, &b, m).unwrap()).collect();
    let mut times = [Vec::new(), Vec::new()];
    for round in 0..ROUNDS + 2 {
        for (call, times) in calls.iter().zip(&mut times) {
            std::thread::sleep(Duration::from_millis(60));
            let begin = Instant::now();
            call.enqueue().unwrap();
            call.synchronize().unwrap();
            if round >= 2 {
                times.push(begin.elapsed().as_secs_f64() * 1e3);
            }
        }
    }
    let [(fused, fused_spread), (unfused, unfused_spread)] = times.map(median);
    println!(
        "{name:<14} {m:>5} {n:>5} {k:>5} | {:>2} | {fused:>8.3} {unfused:>8.3} | {:.3} | {:.1} % {:.1} %",
        group.world_size(),
        fused / unfused,
        100.0 * fused_spread,
        100.0 * unfused_spread
    );
    fused / unfused
}

#[test]
fn fused_is_not_slower_than_unfused() {
    println!("op                 m     n     k |  W | fused ms  unfused | ratio | spreads");
    for world_size in [2, 4, 8] {
        let mut config = GroupConfig::default();
        config.backend = BackendChoice::Cuda;
        let group = Group::local_with(world_size, config).expect("this test needs a GPU");
        let gather = fused_beside_unfused("AllGather+GEMM", (8192, 14336, 4096), &group, |spec| {
            AgGemm::new(&group, spec).unwrap()
        });
        let scatter = fused_beside_unfused("GEMM+RedScatter", (8192, 4096, 14336), &group, |spec| {
            GemmRs::new(&group, spec).unwrap()
        });
        let reduce = |m| {
            fused_beside_unfused("GEMM+AllReduce", (m, 4096, 14336), &group, |spec| {
                GemmAr::new(&group, spec).unwrap()
            })
        };
        let many = reduce(8192);
        reduce(64); // one-shot: some tens of microseconds, of which the host's clock sees mostly the submission
        assert!(gather < 1.05 && scatter < 1.05 && many < 1.05, "fused is slower than unfused");
    }
}
