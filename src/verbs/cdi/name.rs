//! The names of CDI devices. Each name stands for a limit or a group.

use gpulimit_base::units::Extent;
use gpulimit_group::{GroupError, check_name};

/// A CDI device: its name, and the option that the device's hook passes to `gpulimit oci-hook
/// create`.
#[derive(Clone)]
pub struct Device {
    name: String,
    option: &'static str,
    value: String,
}

impl Device {
    /// Parses the value of `--cap`: a size, or a name and a size (`8g`, `half=50%`).
    pub fn cap(text: &str) -> Result<Self, String> {
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.to_owned(), value),
            None => (text.to_ascii_lowercase(), text),
        };
        let size: Result<Extent, _> = value.parse();
        size.map_err(|error| error.to_string())?;
        if !is_device(&name) {
            return Err(
                "name the cap with letters, digits, dots, dashes and underscores, as in half=50%"
                    .into(),
            );
        }
        Ok(Self {
            name,
            option: "--cap",
            value: value.to_owned(),
        })
    }

    /// Makes the device for a group. A device's name cannot have slashes, so the group `lab/alice`
    /// gets the device `lab.alice`.
    pub fn group(name: &str) -> Result<Self, GroupError> {
        check_name(name)?;
        Ok(Self {
            name: name.replace('/', "."),
            option: "--group",
            value: name.to_owned(),
        })
    }

    /// Returns the device's name, as users of containers write it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the option and value that the device's hook passes to `gpulimit oci-hook create`.
    pub fn asked(&self) -> (&'static str, &str) {
        (self.option, &self.value)
    }
}

/// Returns whether all container engines accept the text as the name of a device.
fn is_device(name: &str) -> bool {
    let ends = |c: Option<u8>| c.is_some_and(|c| c.is_ascii_alphanumeric());
    let inner = |c: u8| c.is_ascii_alphanumeric() || matches!(c, b'.' | b'_' | b'-');
    ends(name.bytes().next()) && ends(name.bytes().next_back()) && name.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn caps() {
        for (text, name, value) in [
            ("8G", "8g", "8G"),
            ("1.5g", "1.5g", "1.5g"),
            ("Half=50%", "Half", "50%"),
            ("desktop=-2G", "desktop", "-2G"),
        ] {
            let device = Device::cap(text).expect(text);
            assert_eq!((device.name(), device.asked().1), (name, value));
        }
        for text in ["", "lots", "a=", "=8g=", "a=b=8g"] {
            assert!(Device::cap(text).is_err(), "{text}");
        }
    }

    #[test]
    fn names() {
        for name in ["8g", "1.5g", "lab.alice", "a_b-c", "x"] {
            assert!(is_device(name), "{name}");
        }
        for name in ["", "50%", ".a", "a-", "lab/alice", "a b", "ä"] {
            assert!(!is_device(name), "{name}");
        }
    }
}
