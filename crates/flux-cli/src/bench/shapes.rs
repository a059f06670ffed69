//! Which GEMMs are measured.

use super::arguments::BenchOp;

/// A GEMM: C `[m, n]` = A `[m, k]` · B `[n, k]` transposed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    pub(crate) m: usize,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Shape {
    /// Reads `M,N,K`.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let extents: Result<Vec<usize>, _> = text.split(',').map(|part| part.trim().parse()).collect();
        match extents.as_deref() {
            Ok(&[m, n, k]) if m > 0 && n > 0 && k > 0 => Ok(Self { m, n, k }),
            _ => Err("a shape is M,N,K: three numbers from 1 on, such as 4096,7168,8192".into()),
        }
    }

    /// Multiplications and additions.
    pub(crate) fn flop(self) -> f64 {
        2.0 * self.m as f64 * self.n as f64 * self.k as f64
    }
}

impl std::fmt::Display for Shape {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} x {} x {}", self.m, self.n, self.k)
    }
}

/// Rows: from one token to a long prefill.
const ROWS: [usize; 9] = [1, 16, 64, 256, 512, 1024, 2048, 4096, 8192];

/// (n, k) of a rank's GEMM after an AllGather: GPT-3 175B, Llama 3 70B, and Qwen 2.5 72B on 8 ranks, Llama 3 8B on 4.
const COLUMN_PARALLEL: [(usize, usize); 4] = [(6144, 12_288), (7168, 8192), (7168, 4096), (7392, 8192)];

/// (n, k) of a rank's GEMM before a ReduceScatter or an AllReduce: of the same models.
const ROW_PARALLEL: [(usize, usize); 4] = [(12_288, 6144), (8192, 3584), (4096, 3584), (8192, 3696)];

/// On the host the layers are divided by this, and calls end at so many rows: the same proportions in seconds, not hours.
const HOST_SCALE: usize = 16;
const HOST_ROWS: usize = 512;

/// The default layers with the rows that were asked for, or all.
pub(crate) fn default(op: BenchOp, rows: &[usize], on_host: bool) -> Vec<Shape> {
    let layers = match op {
        BenchOp::Gemm => [COLUMN_PARALLEL, ROW_PARALLEL].concat(),
        BenchOp::AgGemm => COLUMN_PARALLEL.to_vec(),
        BenchOp::GemmRs | BenchOp::GemmAr => ROW_PARALLEL.to_vec(),
    };
    let (scale, last) = if on_host { (HOST_SCALE, HOST_ROWS) } else { (1, usize::MAX) };
    let rows = match rows {
        [] => ROWS.into_iter().filter(|&m| m <= last).collect(),
        some => some.to_vec(),
    };
    let with_rows = |(n, k)| rows.iter().map(move |&m| Shape { m, n: n / scale, k: k / scale });
    layers.into_iter().flat_map(with_rows).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_three_numbers_from_one_on() {
        assert_eq!(Shape::parse("1, 2,3"), Ok(Shape { m: 1, n: 2, k: 3 }));
        for bad in ["", "1", "1,2", "1,2,3,4", "0,1,1", "1,1,0", "a,1,1", "-1,1,1", "1.5,1,1"] {
            assert!(Shape::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn defaults_are_all_layers_with_all_rows() {
        assert_eq!(default(BenchOp::Gemm, &[], false).len(), 72);
        assert_eq!(default(BenchOp::AgGemm, &[], false)[8], Shape { m: 8192, n: 6144, k: 12_288 });
        assert_eq!(default(BenchOp::GemmAr, &[], false), default(BenchOp::GemmRs, &[], false));
        let some = default(BenchOp::GemmRs, &[7, 9], true);
        assert_eq!((some.len(), some[0]), (8, Shape { m: 7, n: 768, k: 384 }));
        assert!(default(BenchOp::AgGemm, &[], true).iter().all(|shape| shape.m <= HOST_ROWS));
    }
}
