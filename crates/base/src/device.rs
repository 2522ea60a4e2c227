//! The identities of GPUs and MIG instances: their UUIDs, in the form that NVML prints.
//!
//! CUDA, NVML and containers number devices differently, but agree on the UUIDs.

use std::error::Error;
use std::fmt;
use std::str::FromStr;

/// The kind of GPU device that a [`DeviceId`] names: a whole GPU or a MIG instance.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub enum DeviceKind {
    /// A whole GPU.
    Gpu,
    /// A MIG instance of a GPU.
    Mig,
}

impl DeviceKind {
    /// Returns the text that NVML puts before the UUID of such a device: `GPU-` or `MIG-`.
    pub const fn prefix(self) -> &'static str {
        match self {
            Self::Gpu => "GPU-",
            Self::Mig => "MIG-",
        }
    }
}

/// The identity of a GPU or MIG instance.
#[derive(Copy, Clone, Eq, PartialEq, Hash, Ord, PartialOrd)]
pub struct DeviceId {
    /// The sixteen bytes of the UUID, in the order in which the UUID is written.
    pub uuid: [u8; 16],
    /// Whether the device is a whole GPU or a MIG instance.
    pub kind: DeviceKind,
}

impl DeviceId {
    /// Returns the identity of a whole GPU with this UUID.
    pub const fn gpu(uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            kind: DeviceKind::Gpu,
        }
    }

    /// Returns the identity of a MIG instance with this UUID.
    pub const fn mig(uuid: [u8; 16]) -> Self {
        Self {
            uuid,
            kind: DeviceKind::Mig,
        }
    }

    /// Returns the short form of the UUID for messages: `GPU-1a2b…`. Does not allocate.
    pub const fn short(self) -> Short {
        Short(self)
    }

    /// Returns whether the device's UUID begins with `prefix`, ignoring case. The prefix may lack
    /// the kind. An empty prefix matches no device.
    pub fn matches(&self, prefix: &str) -> bool {
        let written = self.written();
        let prefix = prefix.as_bytes();
        let begins = |text: &[u8]| {
            text.len() >= prefix.len() && text[..prefix.len()].eq_ignore_ascii_case(prefix)
        };
        !prefix.is_empty() && (begins(&written) || begins(&written[4..]))
    }

    /// Returns the full form of the UUID as ASCII bytes.
    fn written(&self) -> [u8; LEN] {
        const HEX: &[u8; 16] = b"0123456789abcdef";
        let mut out = [b'-'; LEN];
        out[..4].copy_from_slice(self.kind.prefix().as_bytes());
        let mut at = 4;
        for (i, byte) in self.uuid.iter().enumerate() {
            if matches!(i, 4 | 6 | 8 | 10) {
                at += 1;
            }
            out[at] = HEX[usize::from(byte >> 4)];
            out[at + 1] = HEX[usize::from(byte & 15)];
            at += 2;
        }
        out
    }
}

/// Length of a written UUID in bytes: `GPU-` and 36 more characters.
const LEN: usize = 40;

impl fmt::Display for DeviceId {
    /// Writes the full form of the UUID: `GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(std::str::from_utf8(&self.written()).unwrap_or_default())
    }
}

impl fmt::Debug for DeviceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The short form of a device's UUID, for display: see [`DeviceId::short`].
#[derive(Copy, Clone)]
pub struct Short(DeviceId);

impl fmt::Display for Short {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, ..] = self.0.uuid;
        write!(f, "{}{a:02x}{b:02x}…", self.0.kind.prefix())
    }
}

impl FromStr for DeviceId {
    type Err = DeviceError;

    /// Parses the full form of a UUID, ignoring case. [`DeviceId::matches`] also accepts a prefix
    /// of it.
    fn from_str(text: &str) -> Result<Self, DeviceError> {
        let read = || {
            let mut digits = text.get(4..)?.chars().filter_map(|c| c.to_digit(16));
            let mut uuid = [0; 16];
            for byte in &mut uuid {
                *byte = (digits.next()? << 4 | digits.next()?) as u8;
            }
            // The parser skips characters other than hexadecimal digits. Comparing the formatted
            // UUID with the text rejects missing prefixes and misplaced hyphens.
            let mut both = [Self::gpu(uuid), Self::mig(uuid)].into_iter();
            both.find(|id| id.written().eq_ignore_ascii_case(text.as_bytes()))
        };
        read().ok_or_else(|| DeviceError { text: text.into() })
    }
}

/// The error for a text that is not the UUID of a GPU or MIG instance.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct DeviceError {
    text: Box<str>,
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "invalid GPU UUID '{}': expected GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx as \
             `nvidia-smi -L` prints it, or MIG-… for a MIG instance",
            self.text.escape_debug()
        )
    }
}

impl Error for DeviceError {}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "GPU-00112233-4455-6677-8899-aabbccddeeff";

    fn id() -> DeviceId {
        TEXT.parse().expect("a full UUID")
    }

    #[test]
    fn full_form_reads_back() {
        assert_eq!(id().to_string(), TEXT);
        let mig = "MIG-ff112233-4455-6677-8899-aabbccddee00";
        let parsed: DeviceId = mig.parse().expect("a full UUID");
        assert_eq!(parsed.kind, DeviceKind::Mig);
        assert_eq!(parsed.to_string(), mig);
        assert_eq!(TEXT.to_uppercase().parse(), Ok(id()));
    }

    #[test]
    fn other_text_is_an_error_that_shows_the_text() {
        for text in [
            "",
            "0",
            "GPU-",
            "GPU-00112233445566778899aabbccddeeff",
            "GPU-00112233-4455-6677-8899-aabbccddeef",
            "GPU-00112233-4455-6677-8899-aabbccddeeff0",
            "GPU-0011223g-4455-6677-8899-aabbccddeeff",
            "XPU-00112233-4455-6677-8899-aabbccddeeff",
            "GPU-0011223é-4455-6677-8899-aabbccddeef",
        ] {
            let error = text.parse::<DeviceId>().expect_err(text);
            assert!(error.to_string().contains(text), "{error}");
        }
    }

    #[test]
    fn prefixes() {
        for yes in ["G", "GPU-0011", "gpu-0011", "0011", "00112233-44", TEXT] {
            assert!(id().matches(yes), "{yes}");
        }
        for no in [
            "",
            "MIG-0011",
            "0012",
            "GPU-00112233-4455-6677-8899-aabbccddeeff0",
        ] {
            assert!(!id().matches(no), "{no}");
        }
    }

    #[test]
    fn short_form() {
        assert_eq!(id().short().to_string(), "GPU-0011…");
    }
}
