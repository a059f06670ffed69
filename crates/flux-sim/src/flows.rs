//! Data that flows over links, which those that use a link at the same time share fairly.
//!
//! *Fairly* is max-min: the most congested link is split evenly among its flows, what these leave elsewhere is split among the
//! others, and so on. Only flows that share links with what began or ended, directly or through others, are looked at anew.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

/// A time in µs, ordered.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Time(pub(crate) f64);

impl Eq for Time {}

impl Ord for Time {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

impl PartialOrd for Time {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Times closer than this are the same: what is symmetric ends together, whatever the rounding.
pub(crate) const SAME_US: f64 = 1e-6;

#[derive(Clone, Debug)]
struct Flow {
    route: Vec<usize>,
    bytes_left: f64,
    /// Bytes per µs.
    rate: f64,
    /// When `bytes_left` was so many.
    since_us: f64,
    /// Which prediction of its end counts.
    version: u64,
    id: usize,
}

/// All that flows at a time.
pub(crate) struct Flows {
    /// Bytes per µs.
    capacities: Vec<f64>,
    flows: Vec<Option<Flow>>,
    free: Vec<usize>,
    /// By link: the flows on it.
    on_link: Vec<Vec<usize>>,
    changed: Vec<usize>,
    ends: BinaryHeap<Reverse<(Time, usize, u64)>>,
    /// Of the latest prediction; 0 is none.
    version: u64,
    /// Scratch: by link, the capacity and the flows that are not yet given a rate; by flow whether it was looked at.
    left: Vec<(f64, usize)>,
    link_seen: Vec<bool>,
    flow_seen: Vec<bool>,
    carried: Vec<f64>,
}

impl Flows {
    /// Links that carry so many GB/s each.
    pub(crate) fn new(gb_per_s: impl Iterator<Item = f64>) -> Self {
        let capacities: Vec<f64> = gb_per_s.map(|rate| rate * 1e3).collect();
        let links = capacities.len();
        Self {
            capacities,
            flows: Vec::new(),
            free: Vec::new(),
            on_link: vec![Vec::new(); links],
            changed: Vec::new(),
            ends: BinaryHeap::new(),
            version: 0,
            left: vec![(0.0, 0); links],
            link_seen: vec![false; links],
            flow_seen: Vec::new(),
            carried: vec![0.0; links],
        }
    }

    /// Begins a flow; what is over no link is done at once.
    pub(crate) fn begin(&mut self, id: usize, route: Vec<usize>, bytes: f64, now_us: f64) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.flows.push(None);
            self.flow_seen.push(false);
            self.flows.len() - 1
        });
        for &link in &route {
            self.on_link[link].push(slot);
            self.carried[link] += bytes;
        }
        let mut version = 0;
        if route.is_empty() {
            self.version += 1;
            version = self.version;
            self.ends.push(Reverse((Time(now_us), slot, version)));
        }
        self.changed.extend_from_slice(&route);
        self.flows[slot] = Some(Flow { route, bytes_left: bytes, rate: 0.0, since_us: now_us, version, id });
    }

    /// When the next flow ends, if rates stay as they are. Call [`share`](Self::share) first if flows have begun or ended.
    pub(crate) fn next_end_us(&mut self) -> Option<f64> {
        while let Some(&Reverse((time, slot, version))) = self.ends.peek() {
            if self.flows[slot].as_ref().is_some_and(|flow| flow.version == version) {
                return Some(time.0);
            }
            self.ends.pop();
        }
        None
    }

    /// Takes away a flow that has ended by now, and says which, and how many GB/s it had.
    pub(crate) fn end(&mut self, now_us: f64) -> Option<(usize, f64)> {
        if self.next_end_us()? > now_us + SAME_US {
            return None;
        }
        let Reverse((_, slot, _)) = self.ends.pop()?;
        let flow = self.flows[slot].take()?;
        for &link in &flow.route {
            self.on_link[link].retain(|&other| other != slot);
        }
        self.changed.extend_from_slice(&flow.route);
        self.free.push(slot);
        Some((flow.id, flow.rate / 1e3))
    }

    /// Gives all that is touched by what has begun or ended its share, and tells of each flow whose rate is new: its number and
    /// by how many GB/s the rate has risen.
    pub(crate) fn share(&mut self, now_us: f64, mut risen: impl FnMut(usize, f64)) {
        let (mut links, mut slots) = (std::mem::take(&mut self.changed), Vec::new());
        links.retain(|&link| !std::mem::replace(&mut self.link_seen[link], true));
        let mut next = 0;
        while let Some(&link) = links.get(next) {
            next += 1;
            for index in 0..self.on_link[link].len() {
                let slot = self.on_link[link][index];
                if std::mem::replace(&mut self.flow_seen[slot], true) {
                    continue;
                }
                slots.push(slot);
                let Some(flow) = &self.flows[slot] else { continue };
                for &other in &flow.route {
                    if !std::mem::replace(&mut self.link_seen[other], true) {
                        links.push(other);
                    }
                }
            }
        }
        for &link in &links {
            self.left[link] = (self.capacities[link], self.on_link[link].len());
        }
        // The tightest links in turn; all that are equally tight at once.
        let mut waiting = slots.len();
        while waiting > 0 {
            let fair = |&(capacity, flows): &(f64, usize)| capacity / flows as f64;
            let tight = links.iter().map(|&link| &self.left[link]).filter(|left| left.1 > 0).map(fair);
            let rate = tight.fold(f64::INFINITY, f64::min).max(0.0);
            let before = waiting;
            for &link in &links {
                if self.left[link].1 == 0 || fair(&self.left[link]) > rate * (1.0 + 1e-12) {
                    continue;
                }
                for index in 0..self.on_link[link].len() {
                    let slot = self.on_link[link][index];
                    if !std::mem::replace(&mut self.flow_seen[slot], false) {
                        continue;
                    }
                    waiting -= 1;
                    let Some(flow) = &mut self.flows[slot] else { continue };
                    for &other in &flow.route {
                        let (capacity, flows) = self.left[other];
                        self.left[other] = ((capacity - rate).max(0.0), flows - 1);
                    }
                    if rate != flow.rate {
                        flow.bytes_left -= flow.rate * (now_us - flow.since_us);
                        flow.since_us = now_us;
                        self.version += 1;
                        flow.version = self.version;
                        risen(flow.id, (rate - flow.rate) / 1e3);
                        flow.rate = rate;
                        let end = now_us + flow.bytes_left.max(0.0) / rate;
                        self.ends.push(Reverse((Time(end), slot, flow.version)));
                    }
                }
            }
            if waiting == before {
                break;
            }
        }
        links.iter().for_each(|&link| self.link_seen[link] = false);
        slots.iter().for_each(|&slot| self.flow_seen[slot] = false);
    }

    /// The bytes that each link has carried, or will have when all that flows has ended.
    pub(crate) fn carried(self) -> Vec<f64> {
        self.carried
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(capacities: &[f64], flows: &[(&[usize], f64)]) -> Vec<f64> {
        let mut network = Flows::new(capacities.iter().copied());
        for (id, (route, bytes)) in flows.iter().enumerate() {
            network.begin(id, route.to_vec(), *bytes, 0.0);
        }
        let mut ends = vec![f64::NAN; flows.len()];
        network.share(0.0, |_, _| {});
        while let Some(now) = network.next_end_us() {
            while let Some((id, _)) = network.end(now) {
                ends[id] = now;
            }
            network.share(now, |_, _| {});
        }
        ends
    }

    #[test]
    fn flows_share_what_they_have_in_common() {
        // 1 GB/s is 1000 bytes per µs.
        assert_eq!(ends(&[1.0], &[(&[0], 1000.0)]), [1.0]);
        // Two on one link; when the shorter one ends, the other has it all.
        assert_eq!(ends(&[1.0], &[(&[0], 1000.0), (&[0], 3000.0)]), [2.0, 4.0]);
        // One of two is held up elsewhere: the other gets what it leaves.
        assert_eq!(ends(&[1.0, 0.25], &[(&[0, 1], 250.0), (&[0], 750.0)]), [1.0, 1.0]);
        // Max-min of three flows over two links.
        assert_eq!(ends(&[1.0, 2.0], &[(&[0], 500.0), (&[0, 1], 500.0), (&[1], 1500.0)]), [1.0, 1.0, 1.0]);
        assert_eq!(ends(&[], &[(&[], 500.0)]), [0.0]);
        assert_eq!(ends(&[1.0], &[(&[0], 0.0)]), [0.0]);
    }
}
