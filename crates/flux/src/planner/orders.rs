//! The orders that calls may take.

use super::facts::{Facts, Place};
use super::kind::OpKind;
use crate::{Direction, Group, OpSpec, Order, Result};
use flux_swizzle::Pattern;

/// With more ranks only the best guess is tried, and shards travel whole: a simulation takes longer then.
pub(super) const MOST_RANKS: usize = 64;

/// The orders that calls may take; the first is the one that is taken where nothing speaks for another.
#[derive(Clone, Debug)]
pub(crate) struct Orders {
    pushed: Vec<Pattern>,
    pulled: Vec<Pattern>,
}

impl Orders {
    /// Those of the ranks of a group: what the caller has decided, or what fits what connects them.
    pub(super) fn of_group(group: &Group, op: OpKind, spec: &OpSpec, facts: &Facts) -> Result<Self> {
        let world_size = group.world_size();
        if let Some(given) = spec.order.given(world_size)? {
            return Ok(Self::only(given));
        }
        let by_nodes = Order::Auto.pattern(group, Direction::Push)?;
        let fitting = match &facts.machine {
            _ if !Order::passes_on(group, Direction::Push) => Vec::new(),
            // What it would be worth where the topology is from is not in the host's model.
            Place::Host { order: Some(order), .. } => match order.parse() {
                Ok(order) => return Ok(Self::only(order)),
                Err(_) => Vec::new(),
            },
            // What goes over sockets is not in the host's model.
            Place::Host { .. } if op == OpKind::GemmRs || world_size < 3 || group.nodes().len() > 1 => {
                Vec::new()
            }
            Place::Host { .. } => vec![by_nodes.clone(), Pattern::ring(world_size)],
            Place::Gpus(machine) => machine.orders(),
        };
        Ok(Self::new(world_size, fitting.into_iter().chain([by_nodes])))
    }

    /// Those of a machine that is not at hand.
    pub(super) fn of_machine(spec: &OpSpec, world_size: usize, fitting: &[Pattern]) -> Result<Self> {
        Ok(match spec.order.given(world_size)? {
            Some(given) => Self::only(given),
            None => Self::new(world_size, fitting.iter().cloned().chain([Pattern::full_mesh(world_size)])),
        })
    }

    fn only(order: Pattern) -> Self {
        Self { pushed: vec![order.clone()], pulled: vec![order] }
    }

    fn new(world_size: usize, fitting: impl Iterator<Item = Pattern>) -> Self {
        let mut pushed: Vec<Pattern> = Vec::new();
        for order in fitting.filter(|order| order.world_size() == Ok(world_size)) {
            if !pushed.contains(&order) && (pushed.is_empty() || world_size <= MOST_RANKS) {
                pushed.push(order);
            }
        }
        // What is pulled is not passed on unless somebody asks for it.
        Self { pushed, pulled: vec![Pattern::full_mesh(world_size)] }
    }

    /// Those of an operation whose ranks move data in that direction.
    pub(super) fn of(&self, op: OpKind, direction: Direction) -> &[Pattern] {
        // Nothing of a ReduceScatter is passed on: its order is that of the tiles.
        if op == OpKind::GemmRs || direction == Direction::Push { &self.pushed } else { &self.pulled }
    }

    /// The one that is taken where nothing speaks for another.
    pub(super) fn usual(&self, op: OpKind, direction: Direction) -> Pattern {
        let first = self.of(op, direction).first().or(self.pulled.first());
        first.cloned().unwrap_or(Pattern::Mesh(Vec::new()))
    }
}
