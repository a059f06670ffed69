//! Biases and activations that every backend must get right, in every operation and every way of going about it.

use crate::data::{Fill, matrix, product, relative_error};
use crate::run::{self, Buffers};
use crate::table::{Case, WAYS, bound};
use flux::{
    Activation, AgGemm, Backend, DType, Delivery, E4m3, Element, Error, GemmAr, GemmRs, Group, OpSpec, Path,
    PathPreference, Summation,
};
use half::{bf16, f16};

/// Tails, odd columns, pairs that divide evenly over no ranks, ranks without columns, no depth, no rows.
pub const CASES: [Case; 9] = [
    Case { m: 257, n: 384, k: 512, world_size: 4 },
    Case { m: 1, n: 64, k: 64, world_size: 8 },
    Case { m: 130, n: 131, k: 21, world_size: 3 },
    Case { m: 101, n: 46, k: 24, world_size: 5 },
    Case { m: 7, n: 8, k: 8, world_size: 5 },
    Case { m: 65, n: 322, k: 40, world_size: 1 },
    Case { m: 60, n: 1, k: 5, world_size: 1 },
    Case { m: 9, n: 16, k: 0, world_size: 2 },
    Case { m: 0, n: 16, k: 16, world_size: 3 },
];

const ACTIVATIONS: [Activation; 4] =
    [Activation::None, Activation::Gelu, Activation::Silu, Activation::SwiGlu];

/// What `sums` `[_, n]` and `bias` become, in double precision.
pub fn finish<E: Element>(sums: &[f64], n: usize, bias: Option<&[E]>, activation: Activation) -> Vec<f64> {
    let mut wide = vec![0.0_f32; n];
    if let Some(bias) = bias {
        E::widen(bias, &mut wide);
    }
    let silu = |x: f64| x / (1.0 + (-x).exp());
    let gelu =
        |x: f64| 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3))).tanh());
    let biased = sums.iter().enumerate().map(|(index, sum)| sum + f64::from(wide[index % n]));
    match activation {
        Activation::Gelu => biased.map(gelu).collect(),
        Activation::Silu => biased.map(silu).collect(),
        Activation::SwiGlu => {
            biased.collect::<Vec<_>>().chunks_exact(2).map(|pair| silu(pair[0]) * pair[1]).collect()
        }
        _ => biased.collect(),
    }
}

/// Checks `case` with both 16-bit element types, normal data and integers, with and without a bias: AllGather+GEMM with every
/// activation, the others with none, every way. `group` makes a group of that many ranks.
pub fn check(case: Case, group: &dyn Fn(usize) -> Group) {
    check_dtype::<bf16>(case, group);
    check_dtype::<f16>(case, group);
}

/// [`check`] with 8-bit elements, without scales.
pub fn check_e4m3(case: Case, group: &dyn Fn(usize) -> Group) {
    check_dtype::<E4m3>(case, group);
}

fn check_dtype<E: Element>(case: Case, group: &dyn Fn(usize) -> Group) {
    let Case { m, n, k, world_size } = case;
    let group = group(world_size);
    let local =
        (world_size == 1).then_some((PathPreference::Auto, Delivery::Auto, Summation::Auto, Path::Local));
    for (seed, fill) in [(1, Fill::Normal), (2, Fill::Integers)] {
        let [a, b] = [(m * k, 0), (n * k, 10)].map(|(len, of)| matrix::<E>(len, fill, seed + of));
        let bias = matrix::<E::Result>(n, fill, seed + 20);
        let sums = product(&a, &b, m, n, k);
        for with_bias in [false, true] {
            let data = Data { m, a: &a, b: &b, bias: with_bias.then_some(&bias[..]), fill };
            for activation in ACTIVATIONS {
                let expected = finish(&sums, n, data.bias, activation);
                let mut first = None;
                for (path, delivery, summation, taken) in WAYS.into_iter().chain(local) {
                    let mut spec = OpSpec::new(n, k, m, E::DTYPE);
                    (spec.path, spec.delivery, spec.summation) = (path, delivery, summation);
                    (spec.activation, spec.chunk_rows) = (activation, Some(37));
                    if activation == Activation::SwiGlu && n % 2 == 1 {
                        let refused = AgGemm::new(&group, spec).map(drop);
                        assert!(matches!(refused, Err(Error::UnpairedRows { .. })), "{case:?}: {refused:?}");
                        continue;
                    }
                    let gathered = AgGemm::new(&group, spec.clone()).unwrap();
                    let c = data.check(&group, &gathered, taken, &expected);
                    // Ways may cut K differently on GPUs, which integers do not show.
                    if fill == Fill::Integers || group.backend() == Backend::Host {
                        let first = first.get_or_insert_with(|| c.clone());
                        let same =
                            bytemuck::cast_slice::<E::Result, u8>(first) == bytemuck::cast_slice::<_, u8>(&c);
                        assert!(same, "{case:?} {activation} {path:?}: other bits than another way");
                    }
                    if activation == Activation::None {
                        check_sums(&group, &spec, &data, taken, &expected);
                    }
                }
            }
        }
    }
}

/// The operations that sum over ranks.
fn check_sums<E: Element>(group: &Group, spec: &OpSpec, data: &Data<'_, E>, taken: Path, expected: &[f64]) {
    let scattered = data.check(group, &GemmRs::new(group, spec.clone()).unwrap(), taken, expected);
    for rows in [data.m, 0] {
        let mut spec = spec.clone();
        spec.one_shot_rows = Some(rows);
        let one_shot = data.m <= rows;
        let taken = if one_shot && taken == Path::Chunked { Path::Unfused } else { taken };
        let c = data.check(group, &GemmAr::new(group, spec).unwrap(), taken, expected);
        let same = bytemuck::cast_slice::<E::Result, u8>(&scattered) == bytemuck::cast_slice::<_, u8>(&c);
        assert!(same, "{taken}, one-shot: {one_shot}: gemm-ar has other bits than gemm-rs");
    }
}

struct Data<'a, E: Element> {
    m: usize,
    a: &'a [E],
    b: &'a [E],
    bias: Option<&'a [E::Result]>,
    fill: Fill,
}

impl<E: Element> Data<'_, E> {
    fn check<Op: Buffers>(&self, group: &Group, op: &Op, taken: Path, expected: &[f64]) -> Vec<E::Result> {
        let bias = self.bias;
        let what = format!(
            "{} {:?} {:?}, bias: {}",
            std::any::type_name::<Op>(),
            op.spec(),
            self.fill,
            bias.is_some()
        );
        let outcome = run::any(group, op, self.m, (self.a, self.b, bias));
        let outcome = outcome.unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(outcome.choice.path, taken, "{what}");
        assert_eq!(outcome.c.len(), expected.len(), "{what}");
        let error = relative_error(&outcome.c, expected);
        assert!(error < bound(E::DTYPE), "{what}: error {error:e}");
        if self.fill == Fill::Integers && op.spec().activation == Activation::None {
            #[allow(clippy::cast_possible_truncation)] // small integers
            let exact = expected.iter().map(|&value| E::Result::round(value as f32));
            assert!(outcome.c.iter().copied().eq(exact), "{what}: integers are not exact");
        }
        outcome.c
    }
}

/// Checks that nothing but a bias of 1 gives 1 everywhere, in every operation and every way: it is added once, and not
/// once by every rank.
pub fn check_that_a_bias_is_added_once(world_size: usize, group: &dyn Fn(usize) -> Group) {
    let group = group(world_size);
    let (m, n, k) = (150, 72, 16);
    let (a, b, bias) = (vec![bf16::ZERO; m * k], vec![bf16::ZERO; n * k], vec![bf16::ONE; n]);
    let data = Data { m, a: &a, b: &b, bias: Some(&bias), fill: Fill::Integers };
    let ones = vec![1.0; m * n];
    let local =
        (world_size == 1).then_some((PathPreference::Auto, Delivery::Auto, Summation::Auto, Path::Local));
    for (path, delivery, summation, taken) in WAYS.into_iter().chain(local) {
        let mut spec = OpSpec::new(n, k, m, DType::Bf16);
        (spec.path, spec.delivery, spec.summation) = (path, delivery, summation);
        data.check(&group, &AgGemm::new(&group, spec.clone()).unwrap(), taken, &ones);
        check_sums(&group, &spec, &data, taken, &ones);
    }
}
