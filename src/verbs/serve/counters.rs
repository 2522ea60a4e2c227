//! Counters of groups, kept between rounds so that none falls while the server runs.
//!
//! Prometheus takes a counter that has fallen for a new one, and counts its whole value once more.
//! The figures of a ledger can fall: the last seconds of a killed process are not billed, because
//! the kernel does not say when it died. Only a group that was made anew begins at 0.

use super::pressure::Waits;
use gpulimit_base::device::DeviceId;
use gpulimit_ledger::EventKind;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The number of events of each kind.
pub type Events = [u64; EventKind::ALL.len()];

/// The highest figures of all groups so far, by name and root. Paths take longer to compare than
/// names.
#[derive(Default)]
pub struct Counters(BTreeMap<(String, PathBuf), OfGroup>);

/// The highest figures of a group so far.
#[derive(Default)]
pub struct OfGroup {
    /// The device and inode number of the ledger.
    ledger: (u64, u64),
    events: Events,
    /// The GPUs that the last round has shown, or this round so far.
    gpus: BTreeMap<DeviceId, OfGpu>,
    is_seen: bool,
}

/// The highest figures of a group on a GPU so far.
#[derive(Default)]
pub struct OfGpu {
    /// The refusals, the waits and the milliseconds of waiting.
    counts: [u64; 3],
    /// The byte-seconds of each user whom the last round has shown. `None` stands for all users
    /// whom the ledger does not tell.
    users: BTreeMap<Option<u32>, f64>,
    /// The highest sum of the byte-seconds of all users so far.
    byte_seconds: f64,
    /// The milliseconds in which at least one request waited, since the server first saw the group.
    pressure_ms: u64,
    /// The time up to which waits have been added to `pressure_ms`.
    until: u64,
}

impl Counters {
    /// Returns the counters of a group with this ledger. Call for each group in each round.
    pub fn of(&mut self, root: &Path, group: &str, ledger: (u64, u64)) -> &mut OfGroup {
        let key = (group.to_owned(), root.to_owned());
        let new = || OfGroup {
            ledger,
            ..OfGroup::default()
        };
        let kept = self.0.entry(key).or_insert_with(new);
        if kept.ledger != ledger {
            *kept = new();
        }
        kept.is_seen = true;
        kept
    }

    /// Keeps the counters of a group that cannot be read in this round.
    pub fn keep(&mut self, root: &Path, group: &str) {
        if let Some(kept) = self.0.get_mut(&(group.to_owned(), root.to_owned())) {
            kept.is_seen = true;
        }
    }

    /// Forgets the groups that were neither read nor kept since the last call.
    pub fn end_round(&mut self) {
        self.0.retain(|_, kept| std::mem::take(&mut kept.is_seen));
    }
}

impl OfGroup {
    /// Raises the numbers of events to the highest ones so far.
    pub fn raise_events(&mut self, events: &mut Events) {
        raise(&mut self.events, events.each_mut());
    }

    /// Forgets all GPUs but these. Members can put any GPU into a ledger.
    pub fn keep_gpus(&mut self, gpus: &[DeviceId]) {
        self.gpus.retain(|id, _| gpus.contains(id));
    }

    /// Returns the counters of a GPU at the time `now`, in milliseconds.
    pub fn gpu(&mut self, id: DeviceId, now: u64) -> &mut OfGpu {
        let new = || OfGpu {
            until: now,
            ..OfGpu::default()
        };
        self.gpus.entry(id).or_insert_with(new)
    }
}

impl OfGpu {
    /// Raises the numbers of refusals and waits, and the waiting time, to the highest ones so far.
    pub fn raise(&mut self, counts: [&mut u64; 3]) {
        raise(&mut self.counts, counts);
    }

    /// Raises the byte-seconds of users to the highest ones so far, and returns the highest sum so
    /// far. Forgets all other users: members can put any user into a ledger.
    pub fn raise_users(&mut self, bills: &mut [(Option<u32>, f64)]) -> f64 {
        for (uid, used) in &mut *bills {
            *used = used.max(self.users.get(uid).copied().unwrap_or(0.0));
        }
        self.users = bills.iter().copied().collect();
        self.byte_seconds = self.byte_seconds.max(self.users.values().sum());
        self.byte_seconds
    }

    /// Adds the waits since the last round. Returns the milliseconds so far in which at least one
    /// request waited.
    pub fn add_waits(&mut self, waits: &mut Waits, now: u64) -> u64 {
        self.pressure_ms += waits.covered(self.until, now);
        // A clock that was set back must not make a time count twice, nor stop the count for long.
        self.until = now;
        self.pressure_ms
    }
}

fn raise<const N: usize>(highest: &mut [u64; N], figures: [&mut u64; N]) {
    for (highest, figure) in highest.iter_mut().zip(figures) {
        *highest = (*highest).max(*figure);
        *figure = *highest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: u64 = 1_800_000_000_000;
    const GPU: DeviceId = DeviceId::gpu([7; 16]);

    #[test]
    fn figures_never_fall_while_their_ledger_stays() {
        let mut counters = Counters::default();
        let root = Path::new("/root");
        let mut figures = |inode: u64, figure: u64, users: &[(Option<u32>, f64)]| {
            let kept = counters.of(root, "lab", (1, inode));
            let mut events = Events::default();
            events[0] = figure;
            kept.raise_events(&mut events);
            let gpu = kept.gpu(GPU, NOW);
            let [mut refusals, mut waits, mut waited] = [figure, figure + 1, figure + 2];
            gpu.raise([&mut refusals, &mut waits, &mut waited]);
            let mut users = users.to_vec();
            let sum = gpu.raise_users(&mut users);
            assert_eq!(gpu.users.len(), users.len(), "no other user is kept");
            counters.end_round();
            ([events[0], refusals, waits, waited], users, sum)
        };
        let (alice, others) = (Some(1_000), None);
        let first = figures(5, 9, &[(alice, 2.5)]);
        assert_eq!(first, ([9, 9, 10, 11], vec![(alice, 2.5)], 2.5));
        let second = figures(5, 8, &[(others, 1.0), (alice, 2.0)]);
        let both = vec![(others, 1.0), (alice, 2.5)];
        assert_eq!(second, ([9, 9, 10, 11], both, 3.5));
        let third = figures(5, 20, &[(alice, 3.0)]);
        assert_eq!((third.1, third.2), (vec![(alice, 3.0)], 3.5));
        assert_eq!(figures(5, 20, &[]).2, 3.5);
        let anew = figures(6, 1, &[(others, 0.5)]);
        assert_eq!(anew, ([1, 1, 2, 3], vec![(others, 0.5)], 0.5));
    }

    #[test]
    fn gpus_that_are_not_shown_are_forgotten() {
        let mut counters = Counters::default();
        let kept = counters.of(Path::new("/root"), "lab", (1, 2));
        for number in 0..200 {
            let id = DeviceId::gpu([number; 16]);
            kept.keep_gpus(&[id]);
            kept.gpu(id, NOW);
        }
        assert_eq!(kept.gpus.len(), 1);
    }

    #[test]
    fn only_groups_that_are_gone_are_forgotten() {
        let mut counters = Counters::default();
        let root = Path::new("/root");
        for group in ["read", "kept", "gone"] {
            counters.of(root, group, (1, 2));
        }
        counters.end_round();
        counters.of(root, "read", (1, 2));
        counters.keep(root, "kept");
        counters.keep(root, "unknown");
        counters.end_round();
        let names: Vec<&str> = counters.0.keys().map(|(group, _)| &**group).collect();
        assert_eq!(names, ["kept", "read"]);
        counters.end_round();
        assert!(counters.0.is_empty());
    }

    #[test]
    fn waits_are_added_once() {
        let mut counters = Counters::default();
        let mut add = |seconds: u64, now: u64| {
            let mut waits = Waits::default();
            waits.add_present(Duration::from_secs(seconds), now);
            let kept = counters.of(Path::new("/root"), "lab", (1, 2));
            kept.gpu(GPU, now).add_waits(&mut waits, now)
        };
        assert_eq!(add(50, NOW), 0, "older waits do not count");
        assert_eq!(add(55, NOW + 5_000), 5_000);
        assert_eq!(add(1, NOW + 9_000), 6_000);
        // The clock was set back by an hour.
        assert_eq!(add(4_000, NOW - 3_600_000), 6_000);
        assert_eq!(add(2, NOW - 3_598_000), 8_000);
    }
}
