//! The address that the CUDA driver and NVML both give a GPU, each in its own spelling.

use std::fmt;
use std::str::FromStr;

use crate::Error;

/// Where a device sits on PCI: the key that joins what the CUDA driver says with what NVML says.
///
/// The two write it differently (`0000:4e:00.0` and `00000000:4E:00.0`), so it is compared as numbers.
///
/// ```
/// # use flux_topology::PciAddress;
/// let by_driver: PciAddress = "0000:4e:00.0".parse()?;
/// let by_nvml: PciAddress = "00000000:4E:00.0".parse()?;
/// assert_eq!(by_driver, by_nvml);
/// # Ok::<(), flux_topology::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciAddress {
    /// PCI domain; NVML writes it with eight digits.
    pub domain: u32,
    /// Bus within the domain.
    pub bus: u8,
    /// Device on the bus, below 32.
    pub device: u8,
    /// Function of the device, below 8.
    pub function: u8,
}

impl fmt::Display for PciAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}:{:02x}.{:x}", self.domain, self.bus, self.device, self.function)
    }
}

impl FromStr for PciAddress {
    type Err = Error;

    /// Reads `[domain:]bus:device[.function]`, hexadecimal in either case; what is left out is 0.
    fn from_str(text: &str) -> Result<Self, Error> {
        parse(text.trim()).ok_or_else(|| Error::BadPciAddress { text: text.to_owned() })
    }
}

fn parse(text: &str) -> Option<PciAddress> {
    let (rest, function) = match text.split_once('.') {
        Some((rest, function)) => (rest, number(function)?),
        None => (text, 0),
    };
    let mut parts = rest.rsplit(':');
    let device = number(parts.next()?)?;
    let bus = number(parts.next()?)?;
    let domain = parts.next().map_or(Some(0), number)?;
    if parts.next().is_some() || device >= 32 || function >= 8 {
        return None;
    }
    Some(PciAddress {
        domain,
        bus: bus.try_into().ok()?,
        device: device.try_into().ok()?,
        function: function.try_into().ok()?,
    })
}

fn number(digits: &str) -> Option<u32> {
    // from_str_radix alone would accept a sign.
    let all_hex = digits.bytes().all(|b| b.is_ascii_hexdigit());
    all_hex.then(|| u32::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn texts() {
        let ok = |domain, bus, device, function| Some(PciAddress { domain, bus, device, function });
        let table = [
            ("0000:4e:00.0", ok(0, 0x4e, 0, 0)),
            ("00000000:4E:00.0", ok(0, 0x4e, 0, 0)),
            ("10de0001:00:1f.7", ok(0x10de_0001, 0, 31, 7)),
            ("4e:00", ok(0, 0x4e, 0, 0)),
            (" 0000:00:05.0 ", ok(0, 0, 5, 0)),
            ("", None),
            ("0000:4e", None),
            ("0:0:0:0.0", None),
            ("0000:100:00.0", None),
            ("0000:00:20.0", None),
            ("0000:00:00.8", None),
            ("0000:+1:00.0", None),
            ("0000:é:00.0", None),
            ("fffffffff:00:00.0", None),
        ];
        for (text, want) in table {
            assert_eq!(text.parse::<PciAddress>().ok(), want, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn prints_what_it_reads(domain: u32, bus: u8, device in 0u8..32, function in 0u8..8) {
            let address = PciAddress { domain, bus, device, function };
            prop_assert_eq!(address.to_string().parse::<PciAddress>(), Ok(address));
        }

        #[test]
        fn never_panics(text: String) {
            let _ = text.parse::<PciAddress>();
        }
    }
}
