//! A rank's units, sorted by where they were computed: a row for each block that an SM runs at a time.

use flux::{CallTrace, UnitTrace};
use std::collections::{BTreeMap, BTreeSet};

/// What one block at a time did on an SM, in the order of time.
pub(crate) struct Row<'a> {
    pub(crate) sm: u32,
    pub(crate) units: Vec<&'a UnitTrace>,
}

/// What a stretch of a row's time went to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Wait,
    Multiply,
    HandOver,
    Store,
}

/// A stretch of time of a unit. Stretches of a kind do not overlap within a row.
pub(crate) struct Stretch<'a> {
    pub(crate) kind: Kind,
    pub(crate) unit: &'a UnitTrace,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
}

/// The rows of a call, by SM.
pub(crate) fn rows(call: &CallTrace) -> Vec<Row<'_>> {
    // An SM may run several blocks of a launch at once, and other blocks of the next launch.
    let mut blocks: BTreeMap<(usize, u32), BTreeSet<u32>> = BTreeMap::new();
    for unit in &call.units {
        blocks.entry((unit.launch, unit.sm)).or_default().insert(unit.block);
    }
    let mut rows: BTreeMap<(u32, usize), Vec<&UnitTrace>> = BTreeMap::new();
    for unit in &call.units {
        let place = blocks[&(unit.launch, unit.sm)].iter().position(|&block| block == unit.block);
        rows.entry((unit.sm, place.unwrap_or(0))).or_default().push(unit);
    }
    rows.into_iter().map(|((sm, _), units)| Row::new(sm, units)).collect()
}

impl<'a> Row<'a> {
    fn new(sm: u32, mut units: Vec<&'a UnitTrace>) -> Self {
        units.sort_by_key(|unit| unit.multiply_begin_ns);
        Self { sm, units }
    }

    /// When its first unit begins, and its last ends.
    pub(crate) fn span_ns(&self) -> (u64, u64) {
        let begins = self.units.iter().map(|unit| unit.gate_begin_ns.min(unit.multiply_begin_ns));
        let ends = self.units.iter().map(|unit| unit.handed_over_ns.max(unit.stored_ns));
        (begins.min().unwrap_or(0), ends.max().unwrap_or(0))
    }

    /// What its time went to; only gates that there are count as waited for.
    pub(crate) fn stretches(&self) -> Vec<Stretch<'a>> {
        let (mut stretches, mut stored_ns) = (Vec::new(), 0);
        for (index, &unit) in self.units.iter().enumerate() {
            let mut push = |kind, begin_ns, end_ns| {
                if begin_ns < end_ns {
                    stretches.push(Stretch { kind, unit, begin_ns, end_ns });
                }
            };
            if !unit.gate.is_empty() {
                push(Kind::Wait, unit.gate_begin_ns, unit.gate_end_ns);
            }
            // Of two warpgroups one may begin the next unit before the other has ended this one.
            let next = self.units.get(index + 1).map_or(u64::MAX, |next| next.multiply_begin_ns);
            let multiplied = unit.multiply_end_ns.min(next);
            push(Kind::Multiply, unit.multiply_begin_ns, multiplied);
            push(Kind::HandOver, multiplied, unit.handed_over_ns.min(next));
            let open = if unit.scatters { unit.gate_end_ns } else { 0 };
            push(Kind::Store, unit.multiply_end_ns.max(open).max(stored_ns), unit.stored_ns);
            stored_ns = unit.stored_ns.max(stored_ns);
        }
        stretches
    }
}
