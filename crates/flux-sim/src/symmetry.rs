//! Nodes that all do the same, so that one of them stands for all.
//!
//! Let each node be numbered on by one: a machine looks the same then, for its nodes are alike. Where what is sent looks the same, too,
//! what happens on one node happens on all, at the same time; and a link into the first node carries what its like into another
//! node would. So only what the first node sends is simulated, as if what leaves it for other nodes came back from these. With
//! as many nodes as there are, that many times fewer transfers are looked at.

use crate::Machine;
use crate::collective::Milestones;
use flux_swizzle::{Schedule, Transfer};

/// The ranks that are simulated: those of the first node, where it stands for all, or else all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Simulated {
    pub(crate) ranks: usize,
    all: usize,
}

impl Simulated {
    pub(crate) fn new(
        machine: &Machine,
        schedule: &Schedule,
        bytes: &dyn Fn(usize, usize) -> f64,
        milestones: &[Milestones],
    ) -> Self {
        let (ranks, all) = (machine.node().gpus, machine.gpus());
        let first = Self { ranks, all };
        let sent = |rank: usize| schedule.sends(rank).len();
        let begins: Vec<usize> =
            (0..all).scan(0, |next, rank| Some(std::mem::replace(next, *next + sent(rank)))).collect();
        let is_same = |rank: usize| {
            let (model, by) = (rank % ranks, rank - rank % ranks);
            let on = |rank: usize| (rank + by) % all;
            let (own, models) = (schedule.sends(rank), schedule.sends(model));
            let sends_same = own.len() == models.len()
                && own.iter().zip(models).all(|(own, model_transfer)| {
                    let moved_on = Transfer {
                        source: rank,
                        destination: on(model_transfer.destination),
                        shard: on(model_transfer.shard),
                        after: model_transfer.after.map(|after| after - begins[model] + begins[rank]),
                        ..*model_transfer
                    };
                    *own == moved_on && bytes(own.shard, own.chunk) == bytes(model_transfer.shard, own.chunk)
                });
            let of = |rank: usize| milestones.get(rank).map_or(&[][..], Vec::as_slice);
            sends_same
                && of(rank).len() == of(model).len()
                && of(rank).iter().zip(of(model)).all(|(own, model)| *own == (model.0, on(model.1), model.2))
        };
        if (ranks..all).all(is_same) { first } else { Self { ranks: all, all } }
    }

    /// A rank, and a shard as seen from it: the simulated rank that does the same, and the shard as seen from that.
    pub(crate) fn like(&self, rank: usize, shard: usize) -> (usize, usize) {
        let model = rank % self.ranks;
        (model, (shard + self.all - (rank - model)) % self.all)
    }

    /// The simulated link that carries as much as this one.
    pub(crate) fn link(&self, machine: &Machine, link: usize) -> usize {
        if self.ranks == self.all { link } else { machine.in_first_node(link) }
    }

    /// How often what was simulated happens.
    pub(crate) fn times(&self) -> usize {
        self.all / self.ranks.max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Costs, run};
    use flux_swizzle::{Collective, Pattern};

    /// The same transfers, and then with a byte's billionth more in one of them: that is not the same on all nodes.
    #[test]
    fn one_node_is_simulated_as_all_would_be() {
        let costs = Costs {
            setup_us: 2.0,
            signal_us: 1.0,
            sum_us_per_byte: 1e-6,
            sum_us: 3.0,
            reads_source: true,
            not_before_us: 0.0,
            first_us: 20.0,
        };
        for name in ["hgx-h200", "8xa100-pcie", "dgx-1-v100", "4xa100-nvlink-pairs"] {
            let machine = Machine::preset(name, 3).unwrap();
            let all = machine.gpus();
            for pattern in [machine.pattern(), Pattern::full_mesh(all), Pattern::ring(all)] {
                for collective in [Collective::AllGather, Collective::ReduceScatter, Collective::Scatter] {
                    let schedule = Schedule::new(collective, &pattern, |_| 2).unwrap();
                    let computed = |rank: usize| {
                        let shards = schedule.shard_order(rank).into_iter().enumerate();
                        let chunks =
                            |(place, shard)| (0..2).map(move |chunk| ((10 * place) as f64, shard, chunk));
                        shards.flat_map(chunks).collect()
                    };
                    let milestones: Vec<Milestones> = match collective {
                        Collective::AllGather => Vec::new(),
                        _ => (0..all).map(computed).collect(),
                    };
                    let [one, each] = [0.0, 1e-9].map(|more| {
                        let bytes = |shard: usize, _: usize| if shard == 0 { 1e6 + more } else { 1e6 };
                        let simulated = Simulated::new(&machine, &schedule, &bytes, &milestones);
                        assert_eq!(simulated.times(), if more > 0.0 { 1 } else { 3 });
                        run(&machine, &schedule, costs, &bytes, 5.0, &milestones)
                    });
                    let near = |a: f64, b: f64| (a - b).abs() <= 1e-4 * a.abs().max(1.0);
                    assert_eq!(one.spans.len(), each.spans.len());
                    for (a, b) in one.spans.iter().zip(&each.spans) {
                        assert!(
                            near(a.0, b.0) && near(a.1, b.1),
                            "{name} {collective:?} {pattern:?}: {a:?} {b:?}"
                        );
                    }
                    assert!(one.carried.iter().zip(&each.carried).all(|(&a, &b)| near(a, b)));
                    for rank in 0..all {
                        let work = |of: &crate::collective::Moved| of.clock(rank).work_at(1e6);
                        assert!(near(work(&one), work(&each)));
                    }
                }
            }
        }
    }

    #[test]
    fn one_node_stands_for_all_where_all_do_the_same() {
        for name in ["hgx-h200", "8xa100-pcie", "dgx-1-v100", "4xa100-nvlink-pairs"] {
            let machine = Machine::preset(name, 4).unwrap();
            let (each, all) = (machine.node().gpus, machine.gpus());
            let even = |_, _| 1.0;
            let simulated = |pattern: &Pattern, chunks: &dyn Fn(usize) -> usize| {
                [Collective::AllGather, Collective::ReduceScatter, Collective::Scatter].map(|collective| {
                    let schedule = Schedule::new(collective, pattern, chunks).unwrap();
                    Simulated::new(&machine, &schedule, &even, &[]).ranks
                })
            };
            for pattern in [machine.pattern(), Pattern::full_mesh(all), Pattern::ring(all)] {
                assert_eq!(simulated(&pattern, &|_| 2), [each; 3], "{name} {pattern:?}");
                assert_eq!(simulated(&pattern, &|shard| 1 + usize::from(shard < 3)), [all; 3], "{name}");
            }
            let schedule = Schedule::new(Collective::AllGather, &machine.pattern(), |_| 1).unwrap();
            let uneven = |shard: usize, _: usize| shard as f64;
            assert_eq!(Simulated::new(&machine, &schedule, &uneven, &[]).ranks, all);
            let reached: Vec<Milestones> = (0..all).map(|rank| vec![(rank as f64, rank, 0)]).collect();
            assert_eq!(Simulated::new(&machine, &schedule, &even, &reached).ranks, all);
            let reached: Vec<Milestones> = (0..all).map(|rank| vec![(1.0, rank, 0)]).collect();
            assert_eq!(Simulated::new(&machine, &schedule, &even, &reached).ranks, each);
        }
    }
}
