//! What can be said of a group: its keys, their defaults, and how they are written.

use gpulimit_base::units::{Extent, Size, SizeError};
use std::error::Error;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A key with a size for each GPU. Names and meanings are the memory cgroup's.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
#[repr(u32)]
pub enum Key {
    /// The hard limit: no byte above it. Default: none.
    Max,
    /// Above it members give back what they hold unused before they grow, and an event says so.
    /// Default: none.
    High,
    /// Protection as far as others can do without: memory that is not asked back, and that the
    /// growth of others takes last. Default: 0.
    Low,
    /// Protection: memory that the growth of others below the same ancestor never takes. Default:
    /// 0.
    Min,
}

impl Key {
    /// The number of keys.
    pub const COUNT: usize = 4;
    /// All keys.
    pub const ALL: [Self; Self::COUNT] = [Self::Max, Self::High, Self::Low, Self::Min];

    /// As written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Max => "max",
            Self::High => "high",
            Self::Low => "low",
            Self::Min => "min",
        }
    }

    /// What a group has where nobody said anything.
    pub const fn default(self) -> Size {
        match self {
            Self::Max | Self::High => Size::Max,
            Self::Low | Self::Min => Size::Bytes(0),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What one rule says of its GPU; what it does not say is left to the rule for all.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Values([Option<Size>; Key::COUNT]);

impl Values {
    /// What is said under a key.
    pub fn get(&self, key: Key) -> Option<Size> {
        self.0[key as usize]
    }

    /// Says it, or no longer.
    pub fn set(&mut self, key: Key, size: Option<Size>) {
        self.0[key as usize] = size;
    }

    /// Everything that is said.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Size)> {
        Key::ALL
            .into_iter()
            .filter_map(|key| Some((key, self.get(key)?)))
    }

    /// What is said here, and elsewhere what is said there.
    pub fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|key| self.0[key].or(other.0[key])))
    }

    /// In bytes of a GPU of `capacity` bytes.
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
        }
    }
}

/// What holds for a group on one GPU, in bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Bounds {
    /// `u64::MAX`: no limit.
    pub max: u64,
    /// `u64::MAX`: none.
    pub high: u64,
    /// 0: no protection.
    pub low: u64,
    /// 0: no protection.
    pub min: u64,
}

impl Bounds {
    /// Nothing is said.
    pub const NONE: Self = Self {
        max: u64::MAX,
        high: u64::MAX,
        low: 0,
        min: 0,
    };
    /// Nothing is allowed.
    pub(super) const NOTHING: Self = Self {
        max: 0,
        ..Self::NONE
    };
}

/// A key of the group as a whole.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum OptionKey {
    /// See [`Options::on_limit`].
    OnLimit,
    /// See [`Options::wait_timeout`].
    WaitTimeout,
    /// See [`Options::oom`].
    Oom,
    /// See [`Options::count_context`].
    CountContext,
}

impl OptionKey {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::OnLimit,
        Self::WaitTimeout,
        Self::Oom,
        Self::CountContext,
    ];

    /// As written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::OnLimit => "on_limit",
            Self::WaitTimeout => "wait_timeout",
            Self::Oom => "oom",
            Self::CountContext => "count_context",
        }
    }
}

impl fmt::Display for OptionKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What a group does with a request that does not fit.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum OnLimit {
    /// Refuse it: out of memory.
    #[default]
    Fail,
    /// Wait until others give memory back.
    Wait,
}

/// Whom a group kills before it refuses.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Oom {
    /// Nobody.
    #[default]
    None,
    /// The process that uses most.
    KillLargest,
    /// All processes of the group.
    KillGroup,
}

impl Oom {
    /// As it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::KillLargest => "kill-largest",
            Self::KillGroup => "kill-group",
        }
    }
}

/// What a group does at its limit.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Options {
    /// `fail` (default) or `wait`.
    pub on_limit: OnLimit,
    /// How long a request waits. Default: 10 minutes.
    pub wait_timeout: Duration,
    /// `none` (default), `kill-largest` or `kill-group`.
    pub oom: Oom,
    /// Whether the memory of contexts counts. Default: yes; then a limit means what nvidia-smi
    /// shows.
    pub count_context: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            on_limit: OnLimit::Fail,
            wait_timeout: Duration::from_secs(600),
            oom: Oom::None,
            count_context: true,
        }
    }
}

impl Options {
    /// What a key says, as written.
    pub fn get(&self, key: OptionKey) -> String {
        match key {
            OptionKey::OnLimit => match self.on_limit {
                OnLimit::Fail => "fail",
                OnLimit::Wait => "wait",
            }
            .into(),
            OptionKey::WaitTimeout => duration_text(self.wait_timeout),
            OptionKey::Oom => self.oom.name().into(),
            OptionKey::CountContext => if self.count_context { "yes" } else { "no" }.into(),
        }
    }

    /// Sets a key from what is written.
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
        }
        Ok(())
    }

    /// Every key and what it says.
    pub fn iter(&self) -> impl Iterator<Item = (OptionKey, String)> {
        OptionKey::ALL.into_iter().map(|key| (key, self.get(key)))
    }
}

const HOUR_MS: u64 = 3_600_000;
const TIMES: [(&str, u64); 4] = [("h", HOUR_MS), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// Reads `500ms`, `30s`, `10m`, `2h`; a number alone is seconds.
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

/// The shortest exact form, which reads back as the same.
fn duration_text(time: Duration) -> String {
    let millis = time.as_millis();
    let exact = |(_, unit): &&(&str, u64)| millis.is_multiple_of(u128::from(*unit));
    match TIMES.iter().find(exact) {
        Some((name, unit)) if millis != 0 => format!("{}{name}", millis / u128::from(*unit)),
        _ => "0s".into(),
    }
}

/// A key and a value as a person writes them: `max=4G`, `on_limit=wait`.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Setting {
    /// Of each GPU, or of some.
    Size(Key, Extent),
    /// Of the group as a whole, checked.
    Option(OptionKey, String),
}

impl Setting {
    /// The key, as written.
    pub const fn name(&self) -> &'static str {
        match self {
            Self::Size(key, _) => key.name(),
            Self::Option(key, _) => key.name(),
        }
    }
}

impl fmt::Display for Setting {
    /// As read.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(key, size) => write!(f, "{key}={size}"),
            Self::Option(key, value) => write!(f, "{key}={value}"),
        }
    }
}

/// A key or a value that cannot be.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum KeyError {
    /// Not of the form KEY=VALUE.
    Form(String),
    /// No such key.
    Unknown {
        /// The key.
        key: String,
        /// The one that was probably meant.
        near: Option<&'static str>,
    },
    /// The value of an option.
    Value {
        /// The key.
        key: OptionKey,
        /// The value.
        text: String,
        /// What it could be.
        expected: &'static str,
    },
    /// The value of a size.
    Size(SizeError),
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Form(text) => write!(
                f,
                "'{}' is no change: expected KEY=VALUE, such as max=8G",
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
                "'{}' is no value of {key}: expected {expected}",
                text.escape_debug()
            ),
            Self::Size(error) => error.fmt(f),
        }
    }
}

impl Error for KeyError {}

/// Every key there is.
fn names() -> impl Iterator<Item = &'static str> {
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
            near: names().find(|known| is_near(key, known)),
        })
    }
}

/// Whether one is likely a slip of the other: up to two letters wrong, missing or too many, or the
/// cgroup's longer name.
pub fn is_near(text: &str, known: &str) -> bool {
    let text: Vec<char> = text.to_ascii_lowercase().chars().take(32).collect();
    if text.ends_with(&known.chars().collect::<Vec<_>>()) {
        return true;
    }
    let known: Vec<char> = known.chars().collect();
    // Edit distance, row by row.
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
            ("max=4Q", "'4Q' is no size"),
            ("mx=4G", "did you mean max?"),
            ("MAX=4G", "did you mean max?"),
            ("memory.max=4G", "did you mean max?"),
            ("hihg=4G", "did you mean high?"),
            ("onlimit=wait", "did you mean on_limit?"),
            ("on_limit=stop", "expected fail or wait"),
            ("oom=yes", "expected none, kill-largest or kill-group"),
            ("wait_timeout=soon", "a time such as 30s"),
            ("count_context=maybe", "expected yes or no"),
            (
                "colour=red",
                "unknown key 'colour' (keys: max, high, low, min, on_limit, wait_timeout, oom, count_context)",
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
            (OptionKey::Oom, "kill-group"),
            (OptionKey::CountContext, "no"),
        ] {
            assert_ne!(options.get(key), value);
            options.set(key, value).expect(value);
            assert_eq!(options.get(key), value);
        }
    }

    #[test]
    fn times() {
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
    fn a_rule_is_completed_key_by_key() {
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
