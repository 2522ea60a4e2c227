//! What a command took: the summary of `run --stat`.

use crate::cli::clock::span;
use crate::cli::figures::Gpu;
use crate::cli::groups::{self, View};
use crate::cli::nvml::Driver;
use crate::cli::signals::End;
use crate::cli::{output, signal};
use gpulimit::group::Group;
use gpulimit::ledger::{DeviceIndex, Event, EventKind, Ledger, Usage};
use gpulimit::units::gib;
use std::time::{Duration, Instant};

/// The group as it was when the command began.
pub struct Stat {
    group: Group,
    start: Instant,
    before: Vec<(DeviceIndex, Usage)>,
    /// The number of the first event that is the command's.
    events: u64,
}

/// How often requests waited, and for how long together.
#[derive(Debug, Default, Eq, PartialEq)]
struct Waits {
    count: u64,
    time: Duration,
}

impl Stat {
    /// Looks at the group before the command begins.
    pub fn begin(group: &Group) -> Self {
        let ledger = group.ledger().ok();
        let usage = |ledger: &Ledger| {
            let devices = ledger.devices().into_iter();
            devices
                .map(|device| (device.index, ledger.usage(device.index)))
                .collect()
        };
        let last = ledger.as_ref().and_then(|ledger| ledger.events(0).pop());
        Self {
            group: group.clone(),
            start: Instant::now(),
            before: ledger.as_ref().map(usage).unwrap_or_default(),
            events: last.map_or(0, |event| event.number + 1),
        }
    }

    /// Says on stderr what became of the command and what it took.
    pub fn report(&self, end: End, driver: Option<&Driver>) {
        let how = match end {
            End::Exit(status) => format!("exit status {status}"),
            End::Signal(signal) => format!("ended by {}", signal::name(signal)),
        };
        let name = self.group.name();
        output::note(&format!(
            "{name}: {} elapsed, {how}",
            span(self.start.elapsed())
        ));
        let Ok(view) = View::open(self.group.clone(), name.into(), driver) else {
            return;
        };
        let Some(ledger) = &view.ledger else {
            return;
        };
        if view.devices.is_empty() {
            output::note(&format!("{name}: no GPU was used"));
        }
        let events = ledger.events(self.events);
        for device in &view.devices {
            let gpu = Gpu::of(&view, device.id, driver);
            let limit = match &gpu.effective {
                Some((max, by)) if by != name => format!("max {} (of {by})", gib(*max)),
                Some((max, _)) => format!("max {}", gib(*max)),
                None => "no limit".into(),
            };
            let usage = ledger.usage(device.index);
            let before = self.before.iter().find(|(index, _)| *index == device.index);
            let refusals = usage
                .refusals
                .saturating_sub(before.map_or(0, |(_, before)| before.refusals));
            let waits = Waits::of(&events, device.index);
            let waited = match waits.count {
                0 => String::new(),
                count => format!(", waited {count} times, {} in all", span(waits.time)),
            };
            output::note(&format!(
                "{name}: GPU {}: {limit}, peak {}, refused {refusals}{waited}",
                groups::label(device.id, driver),
                gib(usage.peak)
            ));
        }
    }
}

impl Waits {
    /// A process waits from its event until the next one that ends it.
    fn of(events: &[Event], device: DeviceIndex) -> Self {
        let mut waits = Self::default();
        let mut open: Vec<&Event> = Vec::new();
        let here = events
            .iter()
            .filter(|event| event.what.device == Some(device));
        for event in here {
            let same = |other: &&Event| {
                let (one, other) = (&event.what.process, &other.what.process);
                (one.pid, one.pid_ns) == (other.pid, other.pid_ns)
            };
            match event.what.kind {
                EventKind::Wait => {
                    waits.count += 1;
                    open.push(event);
                }
                EventKind::Granted | EventKind::Refusal => {
                    if let Some(at) = open.iter().position(same) {
                        let began = open.remove(at).time_ms;
                        waits.time += Duration::from_millis(event.time_ms.saturating_sub(began));
                    }
                }
                _ => {}
            }
        }
        waits
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit::device::DeviceId;
    use gpulimit::ledger::{Happening, Identity};

    #[test]
    fn a_wait_ends_with_what_its_process_gets() {
        let path = std::env::temp_dir().join(format!("gpulimit-stat-{}", std::process::id()));
        Ledger::create(&path, 0o600).expect("created");
        let ledger = Ledger::open(&path).expect("opened");
        let here = ledger
            .device(DeviceId::gpu([1; 16]), 1 << 30)
            .expect("room");
        let there = ledger
            .device(DeviceId::gpu([2; 16]), 1 << 30)
            .expect("room");
        for (kind, device, pid) in [
            (EventKind::Refusal, here, 1),
            (EventKind::Wait, here, 1),
            (EventKind::Wait, here, 2),
            (EventKind::Wait, there, 1),
            (EventKind::Granted, here, 1),
            (EventKind::Refusal, here, 2),
            (EventKind::Wait, here, 1),
        ] {
            let process = Identity {
                pid,
                ..Identity::of_self()
            };
            ledger.record(&Happening {
                kind,
                device: Some(device),
                process,
                bytes: 1,
                charged: 0,
                max: 1,
            });
        }
        let mut events = ledger.events(0);
        std::fs::remove_file(&path).expect("removed");
        for (time, event) in events.iter_mut().enumerate() {
            event.time_ms = 1000 * time as u64;
        }
        let waits = |count, seconds| Waits {
            count,
            time: Duration::from_secs(seconds),
        };
        // From 1 to 4 and from 2 to 5, and one that is not over.
        assert_eq!(Waits::of(&events, here), waits(3, 6));
        assert_eq!(Waits::of(&events, there), waits(1, 0));
        assert_eq!(Waits::of(&events[..1], here), waits(0, 0));
    }
}
