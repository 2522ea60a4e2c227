//! Reads the events of groups from their ledgers: from the ring of each group, and from trails.

use super::Line;
use crate::groups::budget::{Budget, LINE, Purse, VERB};
use crate::groups::{self, Selection};
use crate::words::{failure::Failure, notes::Notes};
use gpulimit_group::{Kind, Root, SYSTEM, check_name, is_within, upwards};
use gpulimit_ledger::{Event, EventKind, Ledger, TrailEvent};
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

/// The group that the caller named.
#[derive(Clone)]
pub struct Scope {
    pub root: Root,
    pub name: String,
}

impl Scope {
    pub fn of((root, name): (Root, String)) -> Self {
        Self { root, name }
    }
}

/// Identifies an event: its time, root, group, and number in the ring of the group. In the order of
/// time.
type Key = (u64, PathBuf, String, u64);

/// The most events that are remembered as printed, in each of two parts.
const PRINTED: usize = 1 << 15;

/// The bytes of a user's budget that an open ledger takes, and an event.
const LEDGER: usize = 4 * LINE;
const EVENT: usize = 8;

/// The ledgers whose events are printed.
#[derive(Default)]
pub struct Watch {
    scope: Option<Scope>,
    follows: bool,
    sources: Vec<Source>,
    /// The files that could not be opened. Each is reported only once, and tried again each round.
    failed: BTreeSet<PathBuf>,
    /// The users of whom groups were left out. Each is reported only once.
    cut: BTreeSet<u32>,
    printed: Printed,
    /// The lines of the last round that stand for several events. The rings may give some of these
    /// events only now.
    several: Vec<Line>,
    /// Whether a round has read the events of the past.
    has_read: bool,
    /// Notes for the caller, which takes them out after each round.
    pub notes: Notes,
}

impl Watch {
    pub fn new(scope: Option<Scope>, follows: bool) -> Self {
        Self {
            scope,
            follows,
            ..Self::default()
        }
    }

    /// Returns the events since the last round in the order of their time. Also returns which
    /// sources were gone before this round, which has still read their last events.
    pub fn round(&mut self, selection: &Selection) -> Result<(Vec<Line>, Vec<bool>), Failure> {
        let gone: Vec<bool> = self.sources.iter().map(Source::is_gone).collect();
        let mut events = Budget::new(VERB);
        self.add(selection, &mut events)?;
        let mut lines = BTreeMap::<Key, Line>::new();
        // All rings are read before all trails. A process writes an event to the trail first, so an
        // event of a ring is in its trail by now.
        for source in &mut self.sources {
            if !source.purse.opens() {
                continue;
            }
            let purse = Rc::clone(&source.purse);
            let events = purse.timed(|| source.ring());
            source.purse.spend(events.len() * EVENT);
            for event in events {
                let group = source.group.clone().unwrap_or_default();
                let line = source.line(group, event, None, selection);
                lines.insert(key(&line), line);
            }
        }
        for source in &mut self.sources {
            if !source.purse.is_open() {
                continue;
            }
            let trail = (source.purse).timed(|| source.ledger.trail(source.trail.next));
            let trail = source.trail.take(trail, |one| one.number);
            source.purse.spend(trail.len() * EVENT);
            let mut roots = selection.roots().iter();
            let is_selected = source.group.is_some() || roots.any(|it| it.path() == source.root);
            let about = source.ledger.metadata().ok();
            let owner = about
                .filter(|_| source.group.is_none())
                .map(|about| about.uid());
            for traced in trail {
                // A user's own trail has copies of their refusals in the system root, whose trail
                // they cannot write.
                let is_copy = traced.owner.is_some();
                let is_own = owner == Some(traced.event.what.process.uid);
                if !(if is_copy { is_own } else { is_selected }) {
                    continue;
                }
                let Some(group) = source.place_of(&traced) else {
                    continue;
                };
                let scope = self.scope.as_ref();
                if scope.is_some_and(|scope| !is_within(&group, &scope.name)) {
                    continue;
                }
                let mut line = source.line(group, traced.event, Some(traced), selection);
                if is_copy {
                    line.root = selection.system().unwrap_or(SYSTEM.as_ref()).into();
                }
                // Other users may write the trail of a common group. The group's own ring counts
                // more.
                match lines.get_mut(&key(&line)) {
                    Some(known) => {
                        known.trail = line.trail;
                        // The ring gives the later ones to a reader who follows.
                        if self.has_read {
                            known.forget_repeats();
                        }
                    }
                    None => _ = lines.insert(key(&line), line),
                }
            }
        }
        self.tell_cut(&events);
        drop_included(&mut lines, &self.several);
        self.has_read = true;
        lines.retain(|key, _| !self.printed.has(key));
        if self.follows {
            let several = lines.values().filter(|line| line.count() > 1);
            self.several = several.cloned().collect();
            self.printed.add(lines.keys().cloned());
        }
        Ok((lines.into_values().collect(), gone))
    }

    /// Forgets the sources that were gone before the last round.
    pub fn drop_gone(&mut self, gone: &[bool]) {
        let mut gone = gone.iter();
        self.sources.retain(|_| gone.next() != Some(&true));
    }

    /// Returns whether a selected group is left.
    pub fn has_groups(&self) -> bool {
        self.sources.iter().any(|source| source.ring.is_some())
    }

    /// Opens the selected groups that are not open yet, and the trails where the events of their
    /// jobs go.
    fn add(&mut self, selection: &Selection, events: &mut Budget) -> Result<(), Failure> {
        let mut unreadable = Vec::new();
        let mut ledgers = Budget::new(VERB);
        for group in &selection.groups {
            let ledger = ledgers.of(group);
            if !ledger.opens() {
                continue;
            }
            ledger.spend(LEDGER);
            let purse = events.of(group);
            let (path, name) = (group.ledger_path(), Some(group.name()));
            if let Some(source) = self.find(group.root(), name) {
                source.purse = purse;
                continue;
            }
            match groups::readable(group) {
                Ok(Some(ledger)) => {
                    self.failed.remove(&path);
                    self.open(group.root().into(), name, ledger, Some(purse));
                }
                Ok(None) if selection.named && selection.groups.first() == Some(group) => {
                    return Err(groups::unreadable(path));
                }
                Ok(None) => _ = self.failed.insert(path),
                // The group was removed before it could be opened.
                Err(_) if !group.limits_path().exists() => {}
                Err(error) => {
                    if self.failed.insert(path) {
                        unreadable.push(error.to_string());
                    }
                }
            }
        }
        let users = selection.system().map(|_| Root::of_users());
        for root in selection.roots().iter().chain(users.iter().flatten()) {
            let path = root.path().to_owned();
            if self.find(&path, None).is_some() {
                continue;
            }
            match root.trail() {
                Ok(Some(ledger)) => {
                    self.failed.remove(&path);
                    self.open(path, None, ledger, None);
                }
                Ok(None) => {}
                Err(error) => {
                    if self.failed.insert(path) {
                        unreadable.push(error.to_string());
                    }
                }
            }
        }
        // The events of a job that is gone are in the trail of a group above it.
        let scope = self.scope.clone();
        let above = scope.iter().flat_map(|scope| upwards(&scope.name).skip(1));
        for name in above {
            let root = &selection.roots()[0];
            if self.find(root.path(), Some(name)).is_none()
                && let Ok(group) = root.group(name)
                && let Ok(ledger) = group.ledger()
            {
                self.open(root.path().into(), Some(name), ledger, None);
            }
        }
        self.notes.add_unopened(unreadable);
        self.tell_cut(&ledgers);
        Ok(())
    }

    /// Notes the users of whom groups were left out.
    fn tell_cut(&mut self, budget: &Budget) {
        for (uid, text) in budget.cut() {
            if self.cut.insert(uid) {
                self.notes.add(text);
            }
        }
    }

    fn find(&mut self, root: &Path, group: Option<&str>) -> Option<&mut Source> {
        let is_it = |source: &&mut Source| {
            (&*source.root, source.group.as_deref()) == (root, group) && !source.is_gone()
        };
        self.sources.iter_mut().find(is_it)
    }

    /// Adds a ledger. Its ring is read if there is a purse of the group's owner.
    fn open(
        &mut self,
        root: PathBuf,
        group: Option<&str>,
        ledger: Ledger,
        purse: Option<Rc<Purse>>,
    ) {
        let cursor = || Cursor::new(self.follows);
        self.sources.push(Source {
            root,
            group: group.map(str::to_owned),
            ring: purse.is_some().then(cursor),
            purse: purse.unwrap_or_default(),
            trail: cursor(),
            ledger,
        });
    }
}

/// The last events that were printed. An event is mostly both in a ring and in a trail. The older
/// half is forgotten as a whole: by time, forged events of the future would stay for ever.
#[derive(Default)]
struct Printed {
    newer: BTreeSet<Key>,
    older: BTreeSet<Key>,
}

impl Printed {
    fn has(&self, key: &Key) -> bool {
        self.newer.contains(key) || self.older.contains(key)
    }

    fn add(&mut self, keys: impl Iterator<Item = Key>) {
        if self.newer.len() >= PRINTED {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.extend(keys);
    }
}

/// Drops the lines of rings whose events share an entry of a trail, of this round or the last one.
fn drop_included(lines: &mut BTreeMap<Key, Line>, last: &[Line]) {
    let several = lines.values().filter(|line| line.count() > 1);
    let several: Vec<&Line> = several.chain(last).collect();
    let is_included = |line: &Line| several.iter().any(|other| other.includes(line));
    let included: Vec<Key> = lines
        .iter()
        .filter(|(_, line)| is_included(line))
        .map(|(key, _)| key.clone())
        .collect();
    for key in &included {
        lines.remove(key);
    }
}

fn key(line: &Line) -> Key {
    let Line { event, .. } = line;
    (
        event.time_us,
        line.root.clone(),
        line.group.clone(),
        event.number,
    )
}

/// An open ledger whose events are printed.
struct Source {
    root: PathBuf,
    /// The group of the ledger; `None` for the trail of the root.
    group: Option<String>,
    ledger: Ledger,
    /// The budget of the group's owner for the events of this round.
    purse: Rc<Purse>,
    /// `None` if only the trail is read.
    ring: Option<Cursor>,
    trail: Cursor,
}

impl Source {
    fn is_gone(&self) -> bool {
        self.ledger.is_unlinked()
    }

    fn ring(&mut self) -> Vec<Event> {
        let ledger = &self.ledger;
        let take = |ring: &mut Cursor| ring.take(ledger.events(ring.next), |event| event.number);
        self.ring.as_mut().map(take).unwrap_or_default()
    }

    /// Returns the name of the group where an event of the trail happened; `None` if the event is
    /// forged. Below a group, only jobs have no trail of their own. A process outside has no group.
    fn place_of(&self, traced: &TrailEvent) -> Option<String> {
        let below = &*traced.group;
        let (cut, whole) = match below.strip_prefix(TrailEvent::CUT) {
            Some(rest) => ("…", rest.split_once('/')?.1),
            None => ("", below),
        };
        let jobs = || whole.split('/').all(|part| Kind::of(part) == Kind::Job);
        match (&self.group, below) {
            (Some(group), "") => Some(group.clone()),
            (Some(group), _) if jobs() => {
                let name = format!("{group}/{whole}");
                check_name(&name).ok()?;
                Some(format!("{group}/{cut}{whole}"))
            }
            (Some(_), _) => None,
            (None, "") if traced.event.what.kind == EventKind::Outside => Some(String::new()),
            (None, _) => {
                check_name(whole).ok()?;
                Some(format!("{cut}{whole}"))
            }
        }
    }

    fn line(
        &self,
        group: String,
        event: Event,
        trail: Option<TrailEvent>,
        selection: &Selection,
    ) -> Line {
        let entry = event
            .what
            .device
            .and_then(|index| self.ledger.device_entry(index));
        Line {
            title: selection.title_of(&group, &self.root),
            group,
            root: self.root.clone(),
            device: entry.map(|entry| entry.id),
            event,
            trail,
        }
    }
}

/// The place in a numbered sequence of events up to which they were printed.
struct Cursor {
    /// The number of the next event to print.
    next: u64,
    /// The end of the events that the last call saw. Events that it could not read were still being
    /// written then, or their writer died. They get no third try.
    seen: u64,
}

impl Cursor {
    fn new(follows: bool) -> Self {
        Self {
            next: 0,
            seen: if follows { 0 } else { u64::MAX },
        }
    }

    /// Returns the events up to the first that is still being written.
    fn take<T>(&mut self, mut events: Vec<T>, number: impl Fn(&T) -> u64) -> Vec<T> {
        let mut next = match (self.next, events.first()) {
            (0, Some(first)) => number(first),
            (next, _) => next,
        };
        let end = events
            .last()
            .map_or(next, |last| number(last).saturating_add(1));
        let whole = events.iter().take_while(|event| {
            let at = number(event);
            let known = at == next || next < self.seen;
            next = if known { at.saturating_add(1) } else { next };
            known
        });
        let whole = whole.count();
        events.truncate(whole);
        self.next = next;
        self.seen = self.seen.max(end);
        events
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_of_the_future_take_no_memory_from_later_ones() {
        let mut printed = Printed::default();
        let key = |time, number| (time, PathBuf::new(), String::new(), number);
        for number in 0..4 * PRINTED as u64 {
            printed.add([key(u64::MAX, number)].into_iter());
        }
        let now = key(0, 0);
        printed.add([now.clone()].into_iter());
        printed.add([].into_iter());
        let last = key(u64::MAX, 4 * PRINTED as u64 - 1);
        assert!(printed.has(&now) && printed.has(&last));
        assert!(printed.newer.len() + printed.older.len() <= 2 * PRINTED);
    }

    #[test]
    fn a_gap_delays_later_events_once() {
        let mut cursor = Cursor::new(true);
        let mut take = |events: &[u64]| cursor.take(events.to_vec(), |number| *number);
        assert_eq!(take(&[5, 6]), [5, 6], "older ones are no longer there");
        assert_eq!(take(&[7, 9, 11]), [7], "8 and 10 are being written");
        assert_eq!(take(&[8, 9, 11, 13]), [8, 9, 11], "12 came later");
        assert_eq!(take(&[13]), [13]);
        assert_eq!(take(&[]), [0; 0]);
        let mut cursor = Cursor::new(false);
        assert_eq!(
            cursor.take(vec![1, 3, u64::MAX], |one| *one),
            [1, 3, u64::MAX]
        );
    }
}
