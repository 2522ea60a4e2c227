//! Prints the summary of `run --stat`.

use crate::figures::{Gpu, past::second, spans::Span, spans::Window};
use crate::groups::{self, View};
use crate::machine::{nvml::Driver, signals::End};
use crate::shown::output;
use crate::words::{clock::span, signal};
use gpulimit_base::units::gib;
use gpulimit_group::Group;
use gpulimit_ledger::{DeviceIndex, Ledger, Usage};
use jiff::Timestamp;
use std::time::{Duration, Instant};

/// The state of the group when the command began, to compare with at the end.
pub struct Stat {
    group: Group,
    start: Instant,
    /// The same time in seconds since 1970.
    since: u64,
    before: Vec<(DeviceIndex, Usage)>,
}

impl Stat {
    /// Records the usage of the group before the command begins.
    pub fn begin(group: &Group) -> Self {
        let ledger = group.ledger().ok();
        let usage = |ledger: &Ledger| {
            let devices = ledger.devices().into_iter();
            devices
                .map(|device| (device.index, ledger.usage(device.index)))
                .collect()
        };
        Self {
            group: group.clone(),
            start: Instant::now(),
            since: second(Timestamp::now()),
            before: ledger.as_ref().map(usage).unwrap_or_default(),
        }
    }

    /// Prints on standard error how the command ended and how much GPU memory it used.
    pub fn report(&self, end: End, driver: Option<&Driver>) {
        let how = match end {
            End::Exit(status) => format!("exit status {status}"),
            End::Signal(signal) => format!("ended by {}", signal::name(signal)),
        };
        let name = self.group.name();
        output::note(&format!(
            "{name}: {time} elapsed, {how}",
            time = span(self.start.elapsed())
        ));
        let Ok(view) = View::cleaned(self.group.clone(), driver) else {
            return;
        };
        let Some(ledger) = &view.ledger else {
            return;
        };
        if view.devices.is_empty() {
            output::note(&format!("{name}: no GPU was used"));
        }
        let mut refused = 0;
        for device in &view.devices {
            let gpu = Gpu::of(&view, device.id, driver);
            let limit = match &gpu.effective {
                Some((max, by)) if by != name => format!("max {max} (of {by})", max = gib(*max)),
                Some((max, _)) => format!("max {}", gib(*max)),
                None => "no limit".into(),
            };
            let usage = ledger.usage(device.index);
            let before = self.before.iter().find(|(index, _)| *index == device.index);
            let before = before.map_or_else(Usage::default, |(_, before)| *before);
            let refusals = usage.refusals.saturating_sub(before.refusals);
            let waited = waited(
                usage.waits.saturating_sub(before.waits),
                Duration::from_millis(usage.waited_ms.saturating_sub(before.waited_ms)),
            );
            output::note(&format!(
                "{name}: GPU {gpu}: {limit}, peak {peak}, refused {refusals}{waited}",
                gpu = groups::label(device.id, driver),
                peak = match usage.peak.max(1) > before.peak {
                    true => gib(usage.peak).to_string(),
                    false => self.peak(ledger, device.index, &usage),
                }
            ));
            refused += refusals;
        }
        // A program that ends by itself has said so.
        if let (End::Signal(_), 1..) = (end, refused) {
            output::note(&format!(
                "{name}: `gpulimit why {name}` explains the refusals"
            ));
        }
    }

    /// Returns the highest usage of a GPU since the command began, where it was higher before, as
    /// the group's history says. The first period there may have begun before the command.
    fn peak(&self, ledger: &Ledger, at: DeviceIndex, usage: &Usage) -> String {
        let window = Window::new(self.since, second(Timestamp::now()), usage.in_use());
        let spans = window.spans(|resolution| ledger.history(at, resolution));
        let highest: Vec<_> = spans.iter().map(Span::highest).collect();
        let most = highest.iter().max().copied().flatten();
        let at_most = if most == highest[0] { "at most " } else { "" };
        format!("{at_most}{}", gib(most.unwrap_or(usage.peak)))
    }
}

/// Returns how often requests waited for memory, and how long in total; empty if no request waited.
fn waited(count: u64, time: Duration) -> String {
    let time = span(time);
    match count {
        0 => String::new(),
        1 => format!(", 1 request waited for memory, {time}"),
        _ => format!(", {count} requests waited for memory, {time} in total"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_counted_in_words() {
        let time = Duration::from_secs(2);
        assert_eq!(waited(0, time), "");
        assert_eq!(waited(1, time), ", 1 request waited for memory, 2.00 s");
        assert_eq!(
            waited(3, time),
            ", 3 requests waited for memory, 2.00 s in total"
        );
    }
}
