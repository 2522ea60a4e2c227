//! The sizes of limits: on the command line (`--max 4G`, or `max=4G`), compared, and as text.

use crate::words::failure::Failure;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::{Extent, Size, gib};
use gpulimit_limits::{Key, LimitSet, OptionKey, Options, Setting, Values, names};

/// The command line options for the sizes of a group's limits, and for the GPUs that they are for.
#[derive(clap::Args, Clone, Debug, Default)]
#[group(skip)]
pub struct Sizes {
    /// Hard limit on each GPU: 4G, 512M, 50%, -2G (all but 2 GiB), or max (no limit)
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub max: Option<Extent>,

    /// Above this usage, processes must give unused memory back to the driver before they get more
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub high: Option<Extent>,

    /// Memory kept for this group: other groups get it only when no other memory is left
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub low: Option<Extent>,

    /// Memory reserved for this group: groups with the same parent group never get it
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub min: Option<Extent>,

    /// Memory to leave free on the GPU, whoever uses the rest: 8G, 10% or 0. Programs that size
    /// themselves by the total, as JAX and vLLM do, need --max as well
    #[arg(long, value_name = "SIZE", allow_hyphen_values = true)]
    pub keep_free: Option<Extent>,

    /// The GPU or MIG instance to limit: index, UUID, start of the UUID, PCI bus id, or all. Repeat
    /// for more
    #[arg(long = "device", value_name = "GPU")]
    pub devices: Vec<String>,
}

impl Sizes {
    /// Returns the given options as settings.
    pub fn settings(&self) -> impl Iterator<Item = Setting> {
        let all = [
            (Key::Max, self.max),
            (Key::High, self.high),
            (Key::Low, self.low),
            (Key::Min, self.min),
            (Key::KeepFree, self.keep_free),
        ];
        all.into_iter()
            .filter_map(|(key, extent)| Some(Setting::Size(key, extent?)))
    }
}

/// Returns the words that are values of a key, if it has no other ones, and what `set --help` says
/// of the key beside its default.
pub const fn about(key: OptionKey) -> (&'static [&'static str], &'static str) {
    match key {
        OptionKey::OnLimit => (
            &["fail", "wait"],
            "or wait, until other processes give memory back",
        ),
        OptionKey::WaitTimeout => (&[], "how long a request waits, such as 30s or 10m"),
        OptionKey::PressureTimeout => (
            &[],
            "how long a request waits for processes that were asked to\n\
             give memory back; 0 asks none",
        ),
        OptionKey::Oom => (
            &["none", "kill-largest", "kill-group"],
            "kill-largest or kill-group before a request is refused",
        ),
        OptionKey::CountContext => (
            &["yes", "no"],
            "whether the memory of CUDA contexts counts, yes or no",
        ),
        OptionKey::SuspendedMax => (
            &[],
            "the most memory of suspended processes that may be on\n\
             the host, such as 64G, or max (no limit of the group);\n\
             contexts count as for --max; the default is what the\n\
             host has available, less a tenth",
        ),
    }
}

/// Returns the keys that are no options of the command line, with their defaults, for help.
pub fn table() -> String {
    const INDENT: usize = 22;
    let entry = |key: OptionKey| {
        let mut line = format!("  {key}={}", Options::default().get(key));
        for (at, text) in about(key).1.lines().enumerate() {
            if at > 0 || line.len() >= INDENT {
                line += "\n";
            }
            let column = line.len() - line.rfind('\n').map_or(0, |end| end + 1);
            line += &" ".repeat(INDENT - column);
            line += text;
        }
        line + "\n"
    };
    OptionKey::ALL.into_iter().map(entry).collect()
}

/// Returns whether a word has the form `KEY=VALUE` with a known key.
pub fn is_setting(word: &str) -> bool {
    word.split_once('=')
        .is_some_and(|(key, _)| names().any(|name| name == key))
}

/// Returns all settings, from options and from `KEY=VALUE` words. Fails if a key is given twice.
pub fn together(options: &Sizes, words: &[String]) -> Result<Vec<Setting>, Failure> {
    let mut settings: Vec<Setting> = Vec::new();
    let words = words
        .iter()
        .map(|word| word.parse::<Setting>().map_err(Failure::usage));
    for setting in options.settings().map(Ok).chain(words) {
        let setting = setting?;
        if settings.iter().any(|there| there.name() == setting.name()) {
            return Err(Failure::usage(format_args!(
                "{} is given twice",
                setting.name()
            )));
        }
        settings.push(setting);
    }
    Ok(settings)
}

/// Returns whether `size` is larger than `other`; false if they cannot be compared. `capacity` is
/// the GPU's memory.
pub fn is_above(size: Size, other: Size, capacity: Option<u64>) -> bool {
    match (size, other, capacity) {
        (size, other, Some(capacity)) => size.resolve(capacity) > other.resolve(capacity),
        (Size::Bytes(size), Size::Bytes(other), None) => size > other,
        (Size::Percent(size), Size::Percent(other), None) => size > other,
        (Size::Max, other, None) => other != Size::Max,
        _ => false,
    }
}

/// Returns the limits in `rules` that apply to a GPU.
pub fn rule(rules: &LimitSet, id: DeviceId) -> Values {
    let mut values = Values::default();
    for key in Key::ALL {
        values.set(key, rules.for_device(id, key));
    }
    values
}

/// Returns a size in bytes; `None` for "no limit", and for a percentage of unknown `capacity` (the
/// GPU's memory).
pub fn bytes(size: Option<Size>, capacity: Option<u64>) -> Option<u64> {
    match (size?, capacity) {
        (Size::Max, _) | (Size::Percent(_), None) => None,
        (size, capacity) => Some(size.resolve(capacity.unwrap_or(0))),
    }
}

/// Formats bytes, and the limit that they count against: `1.0 of 4.0 GiB`.
pub fn of_max(bytes: u64, max: Option<u64>) -> String {
    match max {
        Some(max) => format!("{} of {}", gib(bytes).in_unit_of(max), gib(max)),
        None => gib(bytes).to_string(),
    }
}

/// Formats a size for a table.
pub fn size(size: Size) -> String {
    match size {
        Size::Bytes(bytes) => gib(bytes).to_string(),
        Size::Percent(_) | Size::Max => size.to_string(),
    }
}
