//! How long the driver takes to load each kernel: compiling it the first time, and from its cache afterwards. Compiling is
//! cached by the user's driver for all processes, so this runs itself with caches of its own: twice with an empty one, of which the
//! faster counts, for whatever else the machine does only makes it slower, and once more with a full one.
#![allow(clippy::print_stdout)] // the figures are the point

use cudarc::driver::sys;
use flux_memory::Device;
use flux_memory::cuda::check;
use std::collections::BTreeMap;
use std::ffi::CString;
use std::process::Command;
use std::time::{Duration, Instant};

const COLD: Duration = Duration::from_millis(500);
const CACHED: Duration = Duration::from_millis(1);

/// Tells the test below that it runs in a process that it has started itself.
const IN_CHILD: &str = "FLUX_TEST_LOADS_ALL";

/// Prints for every kernel that this GPU can run how many microseconds it takes to load.
fn load_all() {
    let device = Device::cuda(0).expect("this test needs a GPU");
    device.as_cuda().unwrap().bind().unwrap();
    for kernel in flux_launch::catalogue().unwrap().values() {
        let mut module = std::ptr::null_mut();
        let begin = Instant::now();
        let ptx = CString::new(kernel.ptx().unwrap()).unwrap();
        // SAFETY: the PTX is zero-terminated, the result has a valid place, and the module is unloaded once.
        let loaded = unsafe { sys::cuModuleLoadData(&raw mut module, ptx.as_ptr().cast()) };
        let elapsed = begin.elapsed();
        if check("cuModuleLoadData", loaded).is_ok() {
            println!("loaded {} {}", kernel.name, elapsed.as_micros());
            // SAFETY: as above.
            check("cuModuleUnload", unsafe { sys::cuModuleUnload(module) }).unwrap();
        }
    }
}

/// The kernels' times in µs, in a process whose driver keeps what it compiles in `cache`.
fn times(cache: &std::path::Path) -> BTreeMap<String, u64> {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "load::kernels_load_in_time", "--nocapture"])
        .env(IN_CHILD, "1")
        .env("CUDA_CACHE_PATH", cache)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    let time = |line: &str| {
        let (_, rest) = line.split_once("loaded ")?;
        let (name, us) = rest.split_once(' ')?;
        Some((name.to_owned(), us.parse().ok()?))
    };
    text.lines().filter_map(time).collect()
}

#[test]
fn kernels_load_in_time() {
    if std::env::var_os(IN_CHILD).is_some() {
        return load_all();
    }
    let [cache, other] = ["", "-other"]
        .map(|name| std::env::temp_dir().join(format!("flux-load-{}{name}", std::process::id())));
    [&cache, &other].into_iter().for_each(|cache| std::fs::create_dir_all(cache).unwrap());
    let (mut cold, again, cached) = (times(&cache), times(&other), times(&cache));
    [cache, other].into_iter().for_each(|cache| std::fs::remove_dir_all(cache).unwrap());
    cold.iter_mut().for_each(|(name, us)| *us = (*us).min(again[name]));
    assert!(!cold.is_empty() && cold.len() == cached.len());
    println!("kernel                                cold ms  cached ms");
    for (name, us) in &cold {
        println!("{name:<36} {:>8.1} {:>10.3}", *us as f64 / 1e3, cached[name] as f64 / 1e3);
    }
    let bytes = flux_launch::embedded_bytes();
    println!("{} kernels, {bytes} bytes of PTX embedded", cold.len());
    for (times, limit) in [(cold, COLD), (cached, CACHED)] {
        let slow: Vec<_> = times.iter().filter(|&(_, us)| Duration::from_micros(*us) > limit).collect();
        assert!(slow.is_empty(), "longer than {limit:?}: {slow:?}");
    }
}
