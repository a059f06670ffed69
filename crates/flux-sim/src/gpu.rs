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
/// load as much for half the work; 64×256 was measured with shards of 64 rows (`tests/sweeps.rs`).
const HOPPER_TILES: &[TileRate] = &[
    tile(128, 256, 1.0),
    tile(256, 128, 1.0),
    tile(128, 192, 0.95),
    tile(128, 128, 0.82),
    tile(64, 256, 0.72),
    tile(64, 128, 0.6),
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
    /// Data sheet: 142 SMs, 864 GB/s, 362 TFLOP/s, of which 0.75 is assumed to be sustained; calls as on L20.
    pub const L40S: Gpu = Gpu { name: "L40S", sms: 142, tflops: 271.0, memory_gb_per_s: 864.0, ..Gpu::A100 };
    /// Data sheet: 78 SMs, 4.0 TB/s, 148 TFLOP/s, which are so few that 0.95 is assumed to be sustained; calls as on H200.
    pub const H20: Gpu = Gpu { name: "H20", sms: 78, tflops: 140.0, memory_gb_per_s: 4000.0, ..Gpu::H200 };
    /// Data sheet: 82 SMs, 936 GB/s, 71 TFLOP/s with fp32 accumulation, of which 0.95 is assumed to be sustained, as of RTX 4090.
    pub const RTX3090: Gpu =
        Gpu { name: "RTX 3090", sms: 82, tflops: 67.0, memory_gb_per_s: 936.0, ..Gpu::A100 };
    /// Data sheet: 80 SMs, 900 GB/s, 125 TFLOP/s, of which 0.8 is assumed to be sustained.
    pub const V100: Gpu = Gpu { name: "V100", sms: 80, tflops: 100.0, memory_gb_per_s: 900.0, ..Gpu::A100 };
    /// Data sheet: 148 SMs, 8 TB/s, 2250 TFLOP/s, of which 0.75 is assumed to be sustained; calls as on H200.
    pub const B200: Gpu =
        Gpu { name: "B200", sms: 148, tflops: 1700.0, memory_gb_per_s: 7500.0, ..Gpu::H200 };

    /// All that something is known of.
    const KNOWN: [(&str, Gpu); 13] = [
        ("H200", Gpu::H200),
        ("H100 500W", Gpu::H100_500W),
        ("H100", Gpu::H100),
        ("H800", Gpu::H800),
        ("H20", Gpu::H20),
        ("B200", Gpu::B200),
        ("A100", Gpu::A100),
        ("A800", Gpu { name: "A800", ..Gpu::A100 }),
        ("L20", Gpu::L20),
        ("L40S", Gpu::L40S),
        ("4090", Gpu::RTX4090),
        ("3090", Gpu::RTX3090),
        ("V100", Gpu::V100),
    ];

    /// The GPU that a driver or a person calls so, like `NVIDIA A100-SXM4-80GB` or `h200`; none where nothing is known of it.
    pub fn named(name: &str) -> Option<Gpu> {
        let name = name.to_uppercase();
        let is_digit = |near: Option<char>| near.is_some_and(|near| near.is_ascii_digit());
        // An H200 is no H20.
        let says = |known: &str| {
            name.match_indices(known).any(|(at, _)| {
                !is_digit(name[..at].chars().next_back())
                    && !is_digit(name[at + known.len()..].chars().next())
            })
        };
        Self::KNOWN.into_iter().find(|(known, _)| says(known)).map(|(_, gpu)| gpu)
    }

    /// Names that [`named`](Self::named) knows.
    pub fn names() -> impl Iterator<Item = &'static str> {
        Self::KNOWN.into_iter().map(|(name, _)| name)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpus_are_known_by_what_drivers_and_people_call_them() {
        for (name, known) in [
            ("NVIDIA H200", Some("H200")),
            ("NVIDIA H20", Some("H20")),
            ("NVIDIA H100 80GB HBM3", Some("H100")),
            ("H100 500W", Some("H100 500 W")),
            ("NVIDIA A100-SXM4-80GB", Some("A100")),
            ("a800", Some("A800")),
            ("NVIDIA GeForce RTX 4090", Some("RTX 4090")),
            ("rtx4090", Some("RTX 4090")),
            ("NVIDIA GB200", Some("B200")),
            ("Tesla V100-SXM2-32GB", Some("V100")),
            ("NVIDIA L20", Some("L20")),
            ("NVIDIA L2", None),
            ("NVIDIA A1000", None),
            ("GPU", None),
            ("", None),
        ] {
            assert_eq!(Gpu::named(name).map(|gpu| gpu.name), known, "{name}");
        }
        assert!(Gpu::names().all(|name| Gpu::named(name).is_some_and(|gpu| gpu.is_valid())));
    }
}
