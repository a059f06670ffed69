//! GPUs as the simulation sees them: how fast they multiply, and what calls cost. Every number has its source.

/// A GPU.
#[derive(Clone, Debug, PartialEq)]
pub struct Gpu {
    /// Its name.
    pub name: &'static str,
    /// Streaming multiprocessors.
    pub sms: usize,
    /// What all SMs together multiply in 16-bit floats while none is idle, in 10¹² operations per second: sustained, not the
    /// data sheet's.
    pub tflops: f64,
    /// What its memory delivers, in GB/s.
    pub memory_gb_per_s: f64,
    /// The tiles that its kernels have.
    pub tiles: &'static [TileRate],
    /// Whether SMs, with one block each, finish their tiles together (seen on H200); several blocks per SM drift apart.
    pub in_step: bool,
    /// From the launch of a kernel to its first instruction, behind another kernel, in µs.
    pub launch_us: f64,
    /// What a copy to a peer takes beyond its bytes, in µs.
    pub copy_us: f64,
    /// What a copy from a peer takes beyond one to it, in µs.
    pub pull_us: f64,
    /// What the signal after a copy takes, in µs.
    pub signal_us: f64,
}

/// A tile, and which part of the GPU's rate is reached with it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TileRate {
    /// Rows of C.
    pub rows: usize,
    /// Columns of C.
    pub columns: usize,
    /// Part of [`Gpu::tflops`].
    pub efficiency: f64,
}

const fn tile(rows: usize, columns: usize, efficiency: f64) -> TileRate {
    TileRate { rows, columns, efficiency }
}

/// Measured on an H200 with one kernel of each width at 8192³: 128×128 626, 128×192 722, 128×256 761 TFLOP/s. Those of 64 rows
/// load as much for half the work.
const HOPPER_TILES: &[TileRate] = &[
    tile(128, 256, 1.0),
    tile(256, 128, 1.0),
    tile(128, 192, 0.95),
    tile(128, 128, 0.82),
    tile(64, 256, 0.82),
    tile(64, 128, 0.65),
];

/// By bytes loaded for each multiplication; several blocks per SM make up for more of it than on Hopper.
const AMPERE_TILES: &[TileRate] = &[
    tile(128, 256, 1.0),
    tile(256, 128, 1.0),
    tile(128, 128, 0.95),
    tile(64, 256, 0.95),
    tile(64, 128, 0.85),
    tile(64, 64, 0.7),
];

impl Gpu {
    /// 800 TFLOP/s: 8192 × 14336 × 8192 in 2415 µs. Memory: 4.2 TB/s. Copies: 1 MiB in 4.85 µs, 256 MiB at 395 GB/s, back to back; one
    /// from the peer takes 9 µs longer. A stream's write of a signal behind a copy: 2.3 µs. All measured.
    pub const H200: Gpu = Gpu {
        name: "H200",
        sms: 132,
        tflops: 800.0,
        memory_gb_per_s: 4200.0,
        tiles: HOPPER_TILES,
        in_step: true,
        launch_us: 2.0,
        copy_us: 2.2,
        pull_us: 9.0,
        signal_us: 2.3,
    };
    /// Data sheet: 3.35 TB/s. Sustained: 755 TFLOP/s for 32768 × 32768 × 8192, published with ParallelKittens. Calls as measured on H200.
    pub const H100: Gpu = Gpu { name: "H100", tflops: 755.0, memory_gb_per_s: 3350.0, ..Gpu::H200 };
    /// As H100. Sustained: 4096 × 6144 × 12288 in 0.814 ms is 760 TFLOP/s in 5.8 waves of tiles, which take as long as 6.
    pub const H800: Gpu = Gpu { name: "H800", tflops: 784.0, ..Gpu::H100 };
    /// An H100 with HBM2e, limited to 500 W: 8192 × 3584 × 8192 in 828 µs is 581 TFLOP/s, 8192 × 6656 × 16384 in 2879 µs 621.
    pub const H100_500W: Gpu =
        Gpu { name: "H100 500 W", tflops: 625.0, memory_gb_per_s: 2000.0, ..Gpu::H100 };
    /// Data sheet: 108 SMs, 2.0 TB/s. Sustained: 4096 × 6144 × 12288 in 2.378 ms on an A800 is 260 TFLOP/s. Calls as on H200, but for reading from peers, which is documented as the faster way there.
    pub const A100: Gpu = Gpu {
        name: "A100",
        sms: 108,
        tflops: 263.0,
        memory_gb_per_s: 2000.0,
        tiles: AMPERE_TILES,
        in_step: false,
        launch_us: 2.0,
        copy_us: 2.2,
        pull_us: 0.0,
        signal_us: 2.3,
    };
    /// Data sheet: 92 SMs, 864 GB/s, 119.5 TFLOP/s, of which 4096 × 6144 × 12288 in 5.316 ms reaches 116.
    pub const L20: Gpu = Gpu { name: "L20", sms: 92, tflops: 119.5, memory_gb_per_s: 864.0, ..Gpu::A100 };
    /// Data sheet: 128 SMs, 1008 GB/s, 165 TFLOP/s with fp32 accumulation; as L20 otherwise.
    pub const RTX4090: Gpu =
        Gpu { name: "RTX 4090", sms: 128, tflops: 160.0, memory_gb_per_s: 1008.0, ..Gpu::A100 };
    /// Data sheet: 80 SMs, 900 GB/s, 125 TFLOP/s, of which 0.8 is assumed to be sustained.
    pub const V100: Gpu = Gpu { name: "V100", sms: 80, tflops: 100.0, memory_gb_per_s: 900.0, ..Gpu::A100 };
    /// Data sheet: 148 SMs, 8 TB/s, 2250 TFLOP/s, of which 0.75 is assumed to be sustained; calls as on H200.
    pub const B200: Gpu =
        Gpu { name: "B200", sms: 148, tflops: 1700.0, memory_gb_per_s: 7500.0, ..Gpu::H200 };

    /// Whether all its numbers can be reckoned with.
    pub(crate) fn is_valid(&self) -> bool {
        /// More at once than any GPU has.
        const MOST_SMS: usize = 1 << 16;
        let costs = [self.launch_us, self.copy_us, self.pull_us, self.signal_us];
        let rates = [self.tflops, self.memory_gb_per_s];
        (1..=MOST_SMS).contains(&self.sms)
            && costs.iter().all(|cost| cost.is_finite() && *cost >= 0.0)
            && rates.iter().all(|rate| rate.is_finite() && *rate > 0.0)
            && self.tiles.iter().all(TileRate::is_valid)
    }
}

impl TileRate {
    pub(crate) fn is_valid(&self) -> bool {
        self.rows > 0 && self.columns > 0 && self.efficiency.is_finite() && self.efficiency > 0.0
    }
}
