//! How a GEMM gets on while its GPU's memory is busy with what is exchanged.

/// What of a GEMM's time is lost while copies use the memory for a part of its rate, as a share of that part.
///
/// Measured between two H200s beside GEMMs that never waited: 18 µs of 607 while 34 MB went each way (a share of 1.1), 36 of
/// 1522 for 50 MB (1.5) with one kernel; with a later one 3 of 2415 for 67 MB (0.1). Beside 55 GB/s of PCIe 0.1 to 0.7 % (0.1 to 0.5).
const INTERFERENCE: f64 = 0.6;

/// Converts between the time that passes and the time that a GEMM would have needed, had it been alone.
#[derive(Clone, Debug)]
pub(crate) struct Clock {
    /// Time, work done by then, and the rate at which it is done from then on.
    points: Vec<(f64, f64, f64)>,
    /// GB/s that go in and out.
    traffic_gb_per_s: f64,
    memory_gb_per_s: f64,
}

impl Clock {
    pub(crate) fn new(memory_gb_per_s: f64) -> Self {
        Self { points: vec![(0.0, 0.0, 1.0)], traffic_gb_per_s: 0.0, memory_gb_per_s }
    }

    /// From now on there is so much more traffic.
    pub(crate) fn traffic_rises(&mut self, now_us: f64, by_gb_per_s: f64) {
        self.traffic_gb_per_s += by_gb_per_s;
        let busy = (self.traffic_gb_per_s / self.memory_gb_per_s).clamp(0.0, 1.0);
        let rate = 1.0 - INTERFERENCE * busy;
        let work = self.work_at(now_us);
        match self.points.last_mut() {
            Some(last) if last.0 >= now_us => *last = (last.0, last.1, rate),
            _ => self.points.push((now_us, work, rate)),
        }
    }

    /// The work that could have been done until then.
    pub(crate) fn work_at(&self, time_us: f64) -> f64 {
        // Mostly it is now that is asked for.
        let is_now = self.points.last().is_some_and(|last| last.0 <= time_us);
        let search = || self.points.partition_point(|point| point.0 <= time_us);
        let after = if is_now { self.points.len() } else { search() };
        let (time, work, rate) = self.points[after.saturating_sub(1)];
        work + (time_us - time).max(0.0) * rate
    }

    /// When so much work can have been done.
    pub(crate) fn time_of(&self, work_us: f64) -> f64 {
        let is_now = self.points.last().is_some_and(|last| last.1 <= work_us);
        let search = || self.points.partition_point(|point| point.1 <= work_us);
        let after = if is_now { self.points.len() } else { search() };
        let (time, work, rate) = self.points[after.saturating_sub(1)];
        time + (work_us - work).max(0.0) / rate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_slower_beside_traffic() {
        let mut clock = Clock::new(100.0);
        clock.traffic_rises(10.0, 50.0);
        clock.traffic_rises(20.0, -50.0);
        let slow = 1.0 - INTERFERENCE / 2.0;
        assert_eq!(clock.work_at(5.0), 5.0);
        assert!((clock.work_at(15.0) - (10.0 + 5.0 * slow)).abs() < 1e-9);
        assert!((clock.work_at(30.0) - (20.0 + 10.0 * slow)).abs() < 1e-9);
        for time in [0.0, 7.0, 13.0, 20.0, 99.0] {
            assert!((clock.time_of(clock.work_at(time)) - time).abs() < 1e-9);
        }
    }
}
