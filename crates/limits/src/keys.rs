//! The keys of a group's limits (`max`, `on_limit` and others), their defaults, and their form as
//! text.

use gpulimit_base::units::{Extent, Size, SizeError};
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A key whose value is a size for each GPU. The names and meanings are those of the kernel's
/// memory cgroup, which has no `keep_free`.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
#[repr(u32)]
pub enum Key {
    /// The hard limit: the group's usage never exceeds this size. Default: no limit.
    Max,
    /// The soft limit. Above this size, members give back unused memory before they charge more.
    /// Default: no limit.
    High,
    /// Soft protection. Up to this size, a group keeps its unused memory. Other groups get all
    /// other memory first. Default: 0.
    Low,
    /// Hard protection. Other groups that share an ancestor with this group can never charge this
    /// memory. Default: 0.
    Min,
    /// What requests for new memory leave free on the GPU, whoever uses the rest. Default: 0.
    KeepFree,
}

impl Key {
    /// The number of keys whose value is a size.
    pub const COUNT: usize = 5;
    /// All keys whose value is a size.
    pub const ALL: [Self; Self::COUNT] =
        [Self::Max, Self::High, Self::Low, Self::Min, Self::KeepFree];

    /// Returns the key as text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::High => "high",
            Self::Low => "low",
            Self::Min => "min",
            Self::KeepFree => "keep_free",
        }
    }

    /// Returns the value of the key in a group that does not set it.
    pub const fn default(self) -> Size {
        match self {
            Self::Max | Self::High => Size::Max,
            Self::Low | Self::Min | Self::KeepFree => Size::Bytes(0),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The sizes in one rule, by key. A GPU's rule inherits missing sizes from the rule for all GPUs.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Values([Option<Size>; Key::COUNT]);

impl Values {
    /// Returns the size that the rule sets for a key.
    pub fn get(&self, key: Key) -> Option<Size> {
        self.0[key as usize]
    }

    /// Sets the rule's size for a key; `None` removes the key from the rule.
    pub fn set(&mut self, key: Key, size: Option<Size>) {
        self.0[key as usize] = size;
    }

    /// Iterates over the keys that the rule sets, with their sizes.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Size)> {
        Key::ALL
            .into_iter()
            .filter_map(|key| Some((key, self.get(key)?)))
    }

    /// Returns these sizes, completed by the sizes in `other` for keys that are not set.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|key| self.0[key].or(other.0[key])))
    }

    /// Returns the sizes in bytes for a GPU of `capacity` bytes. Missing sizes get defaults.
    pub fn resolve(&self, capacity: u64) -> Bounds {
        let bytes = |key: Key| {
            let size = self.get(key).unwrap_or(key.default());
            size.resolve(capacity)
        };
        Bounds {
            max: bytes(Key::Max),
            high: bytes(Key::High),
            low: bytes(Key::Low).min(capacity),
            min: bytes(Key::Min).min(capacity),
            keep_free: self
                .get(Key::KeepFree)
                .map(|size| size.resolve(capacity).min(capacity)),
        }
    }
}

/// The limits and the protection of a group on one GPU, in bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// The hard limit; `u64::MAX` means no limit.
    pub max: u64,
    /// The soft limit; `u64::MAX` means no limit.
    pub high: u64,
    /// The soft protection; 0 means no protection.
    pub low: u64,
    /// The hard protection; 0 means no protection.
    pub min: u64,
    /// What requests leave free on the GPU; `None` if the group does not set it.
    pub keep_free: Option<u64>,
}

impl Bounds {
    /// No limit and no protection.
    pub const NONE: Self = Self {
        max: u64::MAX,
        high: u64::MAX,
        low: 0,
        min: 0,
        keep_free: None,
    };
    /// A limit of 0 bytes, which allows no memory.
    pub(super) const NOTHING: Self = Self {
        max: 0,
        ..Self::NONE
    };
}

/// A key whose value holds for the group as a whole.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum OptionKey {
    /// The action of a group at its limit; see [`Options::on_limit`].
    OnLimit,
    /// The longest wait of a request; see [`Options::wait_timeout`].
    WaitTimeout,
    /// The longest wait for processes that were asked; see [`Options::pressure_timeout`].
    PressureTimeout,
    /// See [`Options::oom`].
    Oom,
    /// Whether the memory of CUDA contexts is charged; see [`Options::count_context`].
    CountContext,
    /// The most memory that the group may have on the host; see [`Options::suspended_max`].
    SuspendedMax,
}

impl OptionKey {
    /// All keys that hold for the group as a whole.
    pub const ALL: [Self; 6] = [
        Self::OnLimit,
        Self::WaitTimeout,
        Self::PressureTimeout,
        Self::Oom,
        Self::CountContext,
        Self::SuspendedMax,
    ];

    /// Returns the key as text.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnLimit => "on_limit",
            Self::WaitTimeout => "wait_timeout",
            Self::PressureTimeout => "pressure_timeout",
            Self::Oom => "oom",
            Self::CountContext => "count_context",
            Self::SuspendedMax => "suspended.max",
        }
    }
}

impl fmt::Display for OptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The value of `on_limit`: how a group treats a memory request that would exceed its limit.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum OnLimit {
    /// The group refuses the request: the program gets an out-of-memory error.
    #[default]
    Fail,
    /// The request waits until other members give memory back.
    Wait,
}

/// The processes that a group kills before it refuses a memory request.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Oom {
    /// The group does not kill any process; it refuses the request.
    #[default]
    None,
    /// The process of the group that uses the most memory.
    KillLargest,
    /// All processes of the group.
    KillGroup,
}

impl Oom {
    /// Returns the action as the text that users write.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::KillLargest => "kill-largest",
            Self::KillGroup => "kill-group",
        }
    }
}

/// The options of a group: how the group treats requests at its limit.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Options {
    /// What happens to a request at the limit: `fail` (default) or `wait`.
    pub on_limit: OnLimit,
    /// The longest time that a memory request waits for room in the group. Default: 10 minutes.
    pub wait_timeout: Duration,
    /// The longest time that a request waits for memory that it has asked other processes to give
    /// back; 0: it does not ask. Default: 2 seconds.
    pub pressure_timeout: Duration,
    /// What is killed before a request fails: `none` (default), `kill-largest` or `kill-group`.
    pub oom: Oom,
    /// Whether CUDA contexts are charged, so that the limit covers all memory in `nvidia-smi`.
    /// Default: yes.
    pub count_context: bool,
    /// The most bytes of suspended processes of the group and of the groups below it, on all GPUs
    /// together, contexts only if they are charged; `u64::MAX` means no limit. Default: `None`,
    /// what the host has available.
    pub suspended_max: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            on_limit: OnLimit::Fail,
            wait_timeout: Duration::from_secs(600),
            pressure_timeout: Duration::from_secs(2),
            oom: Oom::None,
            count_context: true,
            suspended_max: None,
        }
    }
}

impl Options {
    /// Returns the value of an option as text.
    pub fn get(&self, key: OptionKey) -> String {
        match key {
            OptionKey::OnLimit => match self.on_limit {
                OnLimit::Fail => "fail",
                OnLimit::Wait => "wait",
            }
            .into(),
            OptionKey::WaitTimeout => duration_text(self.wait_timeout),
            OptionKey::PressureTimeout => duration_text(self.pressure_timeout),
            OptionKey::Oom => self.oom.name().into(),
            OptionKey::CountContext => if self.count_context { "yes" } else { "no" }.into(),
            OptionKey::SuspendedMax => match self.suspended_max {
                None => "default".into(),
                Some(u64::MAX) => Size::Max.to_string(),
                Some(bytes) => Size::Bytes(bytes).to_string(),
            },
        }
    }

    /// Sets an option to a value given as text.
    pub fn set(&mut self, key: OptionKey, text: &str) -> Result<(), KeyError> {
        let wrong = |expected| KeyError::Value {
            key,
            text: text.into(),
            expected,
        };
        match key {
            OptionKey::OnLimit => {
                self.on_limit = match text {
                    "fail" => OnLimit::Fail,
                    "wait" => OnLimit::Wait,
                    _ => return Err(wrong("fail or wait")),
                }
            }
            OptionKey::WaitTimeout => {
                self.wait_timeout = parse_duration(text)
                    .ok_or_else(|| wrong("a time such as 30s, 10m or 2h, at most 1000h"))?;
            }
            OptionKey::PressureTimeout => {
                self.pressure_timeout = parse_duration(text)
                    .ok_or_else(|| wrong("a time such as 500ms or 2s, at most 1000h, or 0"))?;
            }
            OptionKey::Oom => {
                self.oom = match text {
                    "none" => Oom::None,
                    "kill-largest" => Oom::KillLargest,
                    "kill-group" => Oom::KillGroup,
                    _ => return Err(wrong("none, kill-largest or kill-group")),
                }
            }
            OptionKey::CountContext => {
                self.count_context = match text {
                    "yes" | "true" => true,
                    "no" | "false" => false,
                    _ => return Err(wrong("yes or no")),
                }
            }
            OptionKey::SuspendedMax => {
                self.suspended_max = match (text, text.parse()) {
                    ("default", _) => None,
                    (_, Ok(Size::Bytes(bytes))) => Some(bytes),
                    (_, Ok(Size::Max)) => Some(u64::MAX),
                    // The memory is the host's, so a part of a GPU's memory has no meaning.
                    _ => return Err(wrong("a size of host memory such as 64G, max or default")),
                }
            }
        }
        Ok(())
    }

    /// Iterates over all options with their values as text.
    pub fn iter(&self) -> impl Iterator<Item = (OptionKey, String)> {
        OptionKey::ALL.into_iter().map(|key| (key, self.get(key)))
    }
}

const HOUR_MS: u64 = 3_600_000;
const TIMES: [(&str, u64); 4] = [("h", HOUR_MS), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads a time such as `500ms`, `30s`, `10m` or `2h`; a number alone is in seconds.
pub fn parse_duration(text: &str) -> Option<Duration> {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    let number: u64 = text.get(..digits)?.parse().ok()?;
    let unit = match text.get(digits..)?.trim() {
        "" => 1_000,
        unit => TIMES.iter().find(|(name, _)| *name == unit)?.1,
    };
    let millis = number.checked_mul(unit)?;
    (millis <= 1_000 * HOUR_MS).then(|| Duration::from_millis(millis))
}

/// Formats a time in its shortest exact form, which [`parse_duration`] reads back.
fn duration_text(time: Duration) -> String {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    let exact = |(_, unit): &&(&str, u64)| millis.is_multiple_of(*unit);
    match TIMES.iter().find(exact) {
        Some((name, unit)) if millis != 0 => format!("{}{name}", millis / unit),
        _ => "0s".into(),
    }
}

/// A key and a value as a user writes them: `max=4G`, `on_limit=wait`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Setting {
    /// A size for all GPUs, or for some GPUs.
    Size(Key, Extent),
    /// An option with its value as text; the value has been checked.
    Option(OptionKey, String),
}

impl Setting {
    /// Returns the key as text.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Size(key, _) => key.name(),
            Self::Option(key, _) => key.name(),
        }
    }
}

impl fmt::Display for Setting {
    /// Formats the setting as KEY=VALUE, which parses as the same setting.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(key, size) => write!(f, "{key}={size}"),
            Self::Option(key, value) => write!(f, "{key}={value}"),
        }
    }
}

/// The reason why a text is not a valid setting of a group.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeyError {
    /// The text is not of the form KEY=VALUE.
    Form(String),
    /// The text names an unknown key.
    Unknown {
        /// The unknown key.
        key: String,
        /// The known key that the user probably meant.
        near: Option<&'static str>,
    },
    /// The value of an option is invalid.
    Value {
        /// The key of the option.
        key: OptionKey,
        /// The invalid value.
        text: String,
        /// The values that the option accepts.
        expected: &'static str,
    },
    /// The value of a size is invalid.
    Size(SizeError),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => write!(
                f,
                "expected KEY=VALUE, such as max=8G, got '{}'",
                text.escape_debug()
            ),
            Self::Unknown { key, near } => {
                write!(f, "unknown key '{}'", key.escape_debug())?;
                if let Some(near) = near {
                    write!(f, ", did you mean {near}?")?;
                }
                write!(f, " (keys: {})", names().collect::<Vec<_>>().join(", "))
            }
            Self::Value {
                key,
                text,
                expected,
            } => write!(
                f,
                "invalid value '{}' of {key}: expected {expected}",
                text.escape_debug()
            ),
            Self::Size(error) => error.fmt(f),
        }
    }
}

impl Error for KeyError {}

/// Iterates over the names of all keys.
pub fn names() -> impl Iterator<Item = &'static str> {
    let sizes = Key::ALL.into_iter().map(Key::name);
    sizes.chain(OptionKey::ALL.into_iter().map(OptionKey::name))
}

impl FromStr for Setting {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let (key, value) = text
            .split_once('=')
            .ok_or_else(|| KeyError::Form(text.into()))?;
        if let Some(key) = Key::ALL.into_iter().find(|known| known.name() == key) {
            return value
                .parse()
                .map(|size| Self::Size(key, size))
                .map_err(KeyError::Size);
        }
        if let Some(key) = OptionKey::ALL.into_iter().find(|known| known.name() == key) {
            Options::default().set(key, value)?;
            return Ok(Self::Option(key, value.into()));
        }
        Err(KeyError::Unknown {
            key: key.into(),
            // `suspend.max` also ends with `max`.
            near: names()
                .filter(|known| is_near(key, known))
                .min_by_key(|known| !known.contains('.')),
        })
    }
}

/// Returns whether `text` is probably a misspelling of `known`: at most two letters differ, or
/// `text` ends with `known`.
pub fn is_near(text: &str, known: &str) -> bool {
    let text: Vec<char> = text.to_ascii_lowercase().chars().take(32).collect();
    if text.ends_with(&known.chars().collect::<Vec<_>>()) {
        return true;
    }
    let known: Vec<char> = known.chars().collect();
    // Compute the edit distance of the two texts row by row.
    let mut row: Vec<usize> = (0..=known.len()).collect();
    for (i, letter) in text.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, other) in known.iter().enumerate() {
            let replaced = diagonal + usize::from(letter != other);
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[known.len()] <= 2 && text.first() == known.first()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_are_read() {
        let read = |text: &str| text.parse::<Setting>().expect(text);
        assert_eq!(
            read("max=4G"),
            Setting::Size(Key::Max, Size::Bytes(4 << 30).into())
        );
        assert_eq!(
            read("high=50%"),
            Setting::Size(Key::High, Size::Percent(5000).into())
        );
        assert_eq!(
            read("on_limit=wait"),
            Setting::Option(OptionKey::OnLimit, "wait".into())
        );
    }

    #[test]
    fn mistakes_say_what_is_accepted() {
        for (text, expected) in [
            ("max", "expected KEY=VALUE"),
            ("4G", "expected KEY=VALUE"),
            ("max=", "empty size"),
            ("max=4Q", "invalid size '4Q'"),
            ("mx=4G", "did you mean max?"),
            ("MAX=4G", "did you mean max?"),
            ("memory.max=4G", "did you mean max?"),
            ("hihg=4G", "did you mean high?"),
            ("onlimit=wait", "did you mean on_limit?"),
            ("on_limit=stop", "expected fail or wait"),
            ("pressure_timeout=yes", "a time such as 500ms"),
            ("oom=yes", "expected none, kill-largest or kill-group"),
            ("wait_timeout=soon", "a time such as 30s"),
            ("count_context=maybe", "expected yes or no"),
            (
                "suspended.max=50%",
                "invalid value '50%' of suspended.max: expected a size of host memory such as 64G",
            ),
            ("suspended.max=-2G", "expected a size of host memory"),
            ("suspended.max=", "expected a size of host memory"),
            ("suspend.max=4G", "did you mean suspended.max?"),
            (
                "colour=red",
                "unknown key 'colour' (keys: max, high, low, min, keep_free, on_limit, \
                 wait_timeout, pressure_timeout, oom, count_context, suspended.max)",
            ),
        ] {
            let error = text.parse::<Setting>().expect_err(text).to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }

    #[test]
    fn options_read_back_as_written() {
        let mut options = Options::default();
        for (key, value) in [
            (OptionKey::OnLimit, "wait"),
            (OptionKey::WaitTimeout, "90s"),
            (OptionKey::PressureTimeout, "0s"),
            (OptionKey::Oom, "kill-group"),
            (OptionKey::CountContext, "no"),
            (OptionKey::SuspendedMax, "64GiB"),
            (OptionKey::SuspendedMax, "0"),
            (OptionKey::SuspendedMax, "max"),
            (OptionKey::SuspendedMax, "default"),
        ] {
            assert_ne!(options.get(key), value);
            options.set(key, value).expect(value);
            assert_eq!(options.get(key), value);
        }
    }

    #[test]
    fn durations_are_read_and_written() {
        for (text, millis) in [
            ("0", 0),
            ("500ms", 500),
            ("30", 30_000),
            ("30s", 30_000),
            ("10m", 600_000),
            ("2h", 7_200_000),
            ("1000h", 3_600_000_000),
        ] {
            let time = parse_duration(text).expect(text);
            assert_eq!(time, Duration::from_millis(millis), "{text}");
            let again = parse_duration(&duration_text(time)).expect(text);
            assert_eq!(again, time, "{text}");
        }
        for text in [
            "",
            "s",
            "-1s",
            "1.5s",
            "1d",
            "1001h",
            "99999999999999999999s",
        ] {
            assert_eq!(parse_duration(text), None, "{text}");
        }
    }

    #[test]
    fn a_rule_without_a_key_has_the_value_of_the_rule_for_all() {
        let mut own = Values::default();
        own.set(Key::High, Some(Size::Bytes(5)));
        let mut all = Values::default();
        all.set(Key::Max, Some(Size::Percent(5000)));
        all.set(Key::High, Some(Size::Bytes(9)));
        let bounds = own.or(all).resolve(100);
        assert_eq!((bounds.max, bounds.high), (50, 5));
        assert_eq!((bounds.low, bounds.min), (0, 0));
        assert_eq!(Values::default().resolve(100), Bounds::NONE);
    }
}
