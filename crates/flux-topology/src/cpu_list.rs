//! The CPUs that are near a GPU.

use std::fmt;

/// A set of CPUs, written as Linux and `nvidia-smi` do: `0-23,48-71`.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CpuList {
    /// First and last of each run; ascending, apart from each other.
    runs: Vec<(u32, u32)>,
}

impl CpuList {
    /// No machine has as many: a number beyond is not one.
    const MOST: u32 = 1 << 20;

    /// Reads `0-23,48-71` or `6,14,22,30`; `None` for anything else.
    pub fn parse(text: &str) -> Option<CpuList> {
        let mut runs = Vec::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last || last >= Self::MOST {
                return None;
            }
            runs.push((first, last));
        }
        (!runs.is_empty()).then(|| CpuList::of(runs))
    }

    /// Reads NCCL's mask: words of up to 32 bits in hexadecimal, the highest first, as in `0000,0fffff00`.
    pub fn parse_mask(text: &str) -> Option<CpuList> {
        let words: Vec<&str> = text.split(',').map(str::trim).collect();
        if words.len() > Self::MOST as usize / 32 {
            return None;
        }
        let mut runs = Vec::new();
        for (word, first) in words.iter().rev().zip((0u32..).step_by(32)) {
            if !word.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            let bits = u32::from_str_radix(word, 16).ok()?;
            runs.extend((0..32).filter(|bit| bits >> bit & 1 == 1).map(|bit| (first + bit, first + bit)));
        }
        (!runs.is_empty()).then(|| CpuList::of(runs))
    }

    fn of(mut runs: Vec<(u32, u32)>) -> CpuList {
        runs.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::new();
        for (first, last) in runs {
            match joined.last_mut() {
                Some(run) if first <= run.1.saturating_add(1) => run.1 = run.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        CpuList { runs: joined }
    }

    /// First and last of each run of CPUs, ascending.
    pub fn runs(&self) -> &[(u32, u32)] {
        &self.runs
    }

    /// As NCCL's topology files write it.
    pub(crate) fn mask(&self) -> String {
        let highest = self.runs.last().map_or(0, |run| run.1);
        let mut words = vec![0u32; highest as usize / 32 + 1];
        for cpu in self.runs.iter().flat_map(|&(first, last)| first..=last) {
            if let Some(word) = words.get_mut(cpu as usize / 32) {
                *word |= 1 << (cpu % 32);
            }
        }
        words.iter().rev().map(|word| format!("{word:08x}")).collect::<Vec<_>>().join(",")
    }
}

fn number(text: &str) -> Option<u32> {
    // `parse` alone would accept a sign.
    let text = text.trim();
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (first, last)) in self.runs.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let table = [
            ("0-23,48-71", Some("0-23,48-71")),
            ("6,14,22,30", Some("6,14,22,30")),
            ("0-0,8-8,16-16", Some("0,8,16")),
            ("4-7, 0-3", Some("0-7")),
            ("N/A", None),
            ("", None),
            ("7-3", None),
            ("-1", None),
            ("0-4294967295", None),
            ("99999999999", None),
        ];
        for (text, want) in table {
            assert_eq!(CpuList::parse(text).map(|list| list.to_string()).as_deref(), want, "{text:?}");
        }
    }

    #[test]
    fn masks() {
        let table = [
            ("0000,0fffff00,000fffff", Some("0-19,40-59")),
            ("00ff00ff", Some("0-7,16-23")),
            ("0", None),
            ("", None),
            ("xyz", None),
            ("1,00000000", Some("32")),
        ];
        for (text, want) in table {
            let list = CpuList::parse_mask(text);
            assert_eq!(list.as_ref().map(CpuList::to_string).as_deref(), want, "{text:?}");
            if let Some(list) = list {
                assert_eq!(CpuList::parse_mask(&list.mask()), Some(list));
            }
        }
    }
}
