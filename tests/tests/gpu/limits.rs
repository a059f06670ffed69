//! What cannot be done on a GPU is an error that says why, and loses nothing: the next call is right.

use cudarc::driver::CudaSlice;
use cudarc::driver::sys::CUgraphInstantiate_flags as Flags;
use cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED;
use flux::{AgGemm, CudarcScales, DType, Error, GemmAr, GemmRs, OpSpec, Placement};
use flux_tests::data::{Fill, matrix, product, relative_error};
use flux_tests::groups::on_gpus;
use flux_tests::run;
use half::bf16;

/// 256 GiB of gathered rows, slots or results: more than any GPU has.
#[test]
fn too_little_memory_is_an_error_and_the_group_goes_on() {
    let group = on_gpus(Placement::Device)(2);
    let (n, k, rows) = (1024, 1024, 1 << 27);
    let spec = OpSpec::new(n, k, rows, DType::Bf16);
    for (name, error) in [
        ("AgGemm", AgGemm::new(&group, spec.clone()).err()),
        ("GemmRs", GemmRs::new(&group, spec.clone()).err()),
        ("GemmAr", GemmAr::new(&group, spec).err()),
    ] {
        let error = error.map(|error| error.to_string()).unwrap_or_default();
        assert!(error.starts_with("out of memory: ") && error.contains("smaller"), "{name}: {error:?}");
    }
    let (m, n, k) = (300, 264, 128);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 7), matrix::<bf16>(n * k, Fill::Normal, 8));
    let (reference, spec) = (product(&a, &b, m, n, k), OpSpec::new(n, k, m, DType::Bf16));
    let gathered = run::ag_gemm(&group, &AgGemm::new(&group, spec.clone()).unwrap(), m, &a, &b).unwrap();
    let scattered = run::gemm_rs(&group, &GemmRs::new(&group, spec).unwrap(), m, &a, &b).unwrap();
    for result in [gathered.c, scattered.c] {
        assert!(relative_error(&result, &reference) < 0.01);
    }
}

#[test]
fn captured_calls_are_refused() {
    // One rank per GPU: ranks that share one are called together.
    let group = on_gpus(Placement::Device)(1);
    let (m, n, k) = (300, 264, 128);
    let (a, b) = (matrix::<bf16>(m * k, Fill::Normal, 7), matrix::<bf16>(n * k, Fill::Normal, 8));
    let gather = AgGemm::new(&group, OpSpec::new(n, k, m, DType::Bf16)).unwrap();
    let context = group.device(0).unwrap().as_cuda().unwrap().context().clone();
    // SAFETY: everything happens on one stream. (cudarc's own events would be captured.)
    unsafe { context.disable_event_tracking() };
    let stream = context.new_stream().unwrap();
    let (a_rows, b_rows) = (stream.clone_htod(&a).unwrap(), stream.clone_htod(&b).unwrap());
    let mut c: CudaSlice<bf16> = stream.clone_htod(&vec![bf16::NAN; m * n]).unwrap();
    let mut call = || {
        let none = CudarcScales::default();
        gather.enqueue_cudarc(0, m, &a_rows, &b_rows, none, None, &mut c, &stream).map(|_| ())
    };
    call().unwrap();
    stream.begin_capture(RELAXED).unwrap();
    let captured = call();
    let graph = stream.end_capture(Flags::CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH);
    assert!(matches!(captured, Err(Error::Captured { rank: 0 })), "{captured:?}");
    assert!(graph.is_ok(), "the capture goes on without the call");
    call().unwrap();
    let c = stream.clone_dtoh(&c).unwrap();
    assert!(relative_error(&c, &product(&a, &b, m, n, k)) < 0.01);
}
