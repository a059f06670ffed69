//! Plans among ranks: all go the same way, whatever each has measured, and every way that may be planned is right.

use flux::{
    AgGemm, BackendChoice, DType, GemmAr, GemmRs, Group, GroupConfig, OpKind, OpSpec, Operation, PlanSource,
    TuneConfig, Whole, tune,
};
use flux_tests::data::{Fill, matrix, product};
use flux_tests::meeting::on_threads;
use half::bf16;
use std::path::{Path, PathBuf};

const N: usize = 48;
const K: usize = 40;
const ROWS: usize = 64;

fn config(tuning: Option<PathBuf>) -> GroupConfig {
    let mut config = GroupConfig::default();
    (config.backend, config.tuning) = (BackendChoice::Host, tuning);
    config
}

fn spec() -> OpSpec {
    OpSpec::new(N, K, ROWS, DType::Bf16)
}

/// What each rank's plan for some calls is, with its source. The calls are made, and checked.
fn plans<Op: Operation>(group: &Group, op: &Op) -> Vec<(String, PlanSource)> {
    let (a, b) = (matrix::<bf16>(ROWS * K, Fill::Integers, 1), matrix::<bf16>(N * K, Fill::Integers, 2));
    let plan = |m: usize| {
        let whole = Whole::place(group, op, &a[..m * K], &b, m).unwrap();
        let choice = whole.enqueue().unwrap();
        let c = whole.result().unwrap();
        let right = c.iter().zip(&product(&a[..m * K], &b, m, N, K)).all(|(c, r)| f64::from(*c) == *r);
        let explain = op.explain(m).unwrap();
        assert!(right && choice.path == explain.chosen.path && choice.source == explain.source, "{explain}");
        assert!(explain.chosen.one_shot || &explain.order == op.pattern(), "{explain}");
        (format!("{} {}", explain.chosen, explain.order), explain.source)
    };
    [64, 3, 50].map(plan).into()
}

/// Of three processes, the one whose rank is `who` has measured something. What all of them do.
fn with_cache_at(who: usize, file: &Path) -> Vec<Vec<(String, PlanSource)>> {
    on_threads(3, |end| {
        let mine = (flux::Bootstrap::rank(&*end) == who).then(|| file.to_owned());
        let group = Group::with_bootstrap(end, config(mine)).unwrap();
        let of_ops = [
            plans(&group, &AgGemm::new(&group, spec()).unwrap()),
            plans(&group, &GemmRs::new(&group, spec()).unwrap()),
            plans(&group, &GemmAr::new(&group, spec()).unwrap()),
        ];
        of_ops.concat()
    })
}

#[test]
fn processes_agree_on_what_rank_0_has_measured() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("tuning.json");
    on_threads(3, |end| {
        let group = Group::with_bootstrap(end, config(Some(file.clone()))).unwrap();
        for op in [OpKind::AgGemm, OpKind::GemmRs, OpKind::GemmAr] {
            let mut config = TuneConfig::new(&[ROWS, 4]);
            config.samples = 2;
            let outcomes = tune(&group, op, &spec(), &config, |_| {}).unwrap();
            assert!(outcomes.iter().all(|of| of.planned.is_some()) && outcomes.len() == 2);
        }
    });
    let of_first = with_cache_at(0, &file);
    assert!(of_first.iter().all(|of| *of == of_first[0]), "{of_first:?}");
    assert!(of_first[0].iter().all(|(_, source)| *source == PlanSource::Tuned), "{of_first:?}");
    // What another rank knows counts for nothing, on none.
    let of_other = with_cache_at(1, &file);
    assert!(of_other.iter().flatten().all(|(_, source)| *source == PlanSource::Model), "{of_other:?}");
    assert!(of_other.iter().all(|of| *of == of_other[0]), "{of_other:?}");
}
