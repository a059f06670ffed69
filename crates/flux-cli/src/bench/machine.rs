//! What was measured on, and when.

use crate::error::Error;
use flux::Group;
use flux_topology::{Source, Topology};
use std::time::{SystemTime, UNIX_EPOCH};

/// What was measured on, and when.
pub(crate) struct Machine {
    /// The devices of the ranks, each once.
    pub(crate) devices: Vec<String>,
    /// The name of the first GPU among them.
    pub(crate) gpu: Option<String>,
    /// The version of the NVIDIA driver.
    pub(crate) driver: Option<String>,
    /// UTC.
    pub(crate) date: String,
}

impl Machine {
    pub(crate) fn of(group: &Group) -> Result<Self, Error> {
        let (mut devices, mut gpu) = (Vec::new(), None);
        for rank in group.local_ranks() {
            let device = group.device(rank)?;
            gpu = gpu.or_else(|| device.as_cuda().map(|gpu| gpu.name().to_owned()));
            let name = device.to_string();
            if !devices.contains(&name) {
                devices.push(name);
            }
        }
        let driver = gpu.as_ref().and_then(|_| match Topology::discover().ok()?.source() {
            Source::Discovered { driver, .. } => driver.clone(),
            _ => None,
        });
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Ok(Self { devices, gpu, driver, date: utc(since_epoch.as_secs()) })
    }
}

/// Seconds since 1970 as a date and time.
fn utc(seconds: u64) -> String {
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Counted from 1 March of the year 0, so that a leap day ends its year; 400 years have 146,097 days.
    let days = days + 719_468;
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153; // from March
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (era * 400 + year + month / 10, (month + 2) % 12 + 1);
    let (hour, minute, second) = (time / 3600, time / 60 % 60, time % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_right_around_leap_days() {
        for (seconds, date) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(seconds), date);
        }
    }
}
