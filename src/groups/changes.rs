//! The changes that `set`, `create` and `run` make to a group's limits: `--max 8G --device 1`.

use super::above::{Above, Shared};
use super::sizes::{self, bytes, is_above};
use super::{gpu, warnings};
use crate::groups::{self, Purpose, View};
use crate::machine::{child, nvml::Driver};
use crate::words::notes::{Done, Notes};
use crate::words::{environment::env, failure::Failure};
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_base::units::{Extent, Size, gib};
use gpulimit_group::{Group, GroupError};
use gpulimit_ledger::{Details, DeviceEntry, EventKind, Happening, Ledger};
use gpulimit_limits::{Capacity, ExtentError, Key, LimitSet, LimitsError, Selector, Setting};
use std::io::ErrorKind;
use std::rc::Rc;

/// Settings for a group, and the GPUs to which their sizes apply. Each key occurs at most once.
pub struct Changes {
    settings: Vec<Setting>,
    /// The GPUs that --device names; `Selector::All` without --device.
    pub targets: Vec<Selector>,
    /// The memory of each GPU; empty if no setting needs it.
    gpus: Vec<Capacity>,
}

impl Changes {
    /// Combines the settings with the GPUs of --device. Computes sizes such as -2G from each GPU's
    /// memory. Without --device, leaves out GPUs that are too small for such a size and that are
    /// hidden from the caller.
    pub fn new(
        settings: Vec<Setting>,
        devices: &[String],
        driver: Option<&Driver>,
    ) -> Result<Self, Failure> {
        let mut gpus = gpus(&settings, driver);
        if devices.is_empty() {
            leave_out_hidden(&mut gpus, &settings);
        }
        let targets = gpu::selectors(devices, driver)?;
        if !devices.is_empty()
            && let Some(setting) = settings
                .iter()
                .find(|setting| matches!(setting, Setting::Option(..)))
        {
            return Err(Failure::usage(format_args!(
                "{} applies to the whole group, not to one GPU: set it without --device",
                setting.name()
            )));
        }
        let changes = Self {
            settings,
            targets,
            gpus,
        };
        changes.apply(&mut LimitSet::default())?;
        Ok(changes)
    }

    /// Applies the changes to a group's `rules`. Cannot fail, because [`Changes::new`] has tried
    /// all changes.
    pub fn apply(&self, rules: &mut LimitSet) -> Result<(), ExtentError> {
        for change in &self.settings {
            match change {
                Setting::Size(key, extent) => {
                    for target in &self.targets {
                        rules.set_extent(*target, *key, *extent, &self.gpus, false)?;
                    }
                }
                // Parsing the [`Setting`] has already checked the value.
                Setting::Option(key, value) => drop(rules.options.set(*key, value)),
            }
        }
        Ok(())
    }

    /// Returns whether the changes contain a size.
    pub fn has_sizes(&self) -> bool {
        let is_size = |setting: &Setting| matches!(setting, Setting::Size(..));
        self.settings.iter().any(is_size)
    }

    /// Returns whether the changes contain the key `max`.
    pub fn has_max(&self) -> bool {
        let is_max = |setting: &Setting| matches!(setting, Setting::Size(Key::Max, _));
        self.settings.iter().any(is_max)
    }

    /// Returns a warning about `max=0`.
    pub fn warning(&self) -> Option<String> {
        let nothing = Setting::Size(Key::Max, Extent::Size(Size::Bytes(0)));
        let is_nothing = self.settings.contains(&nothing);
        is_nothing.then(|| "warning: max=0 refuses all GPU memory; max=max is no limit".into())
    }

    /// Describes the changes for people, in one line each.
    pub fn lines(&self, now: &LimitSet, driver: Option<&Driver>) -> Vec<String> {
        let mut lines = Vec::new();
        for change in &self.settings {
            let Setting::Size(key, extent) = change else {
                lines.push(format!("{change} applied"));
                continue;
            };
            let label = |id| groups::label(id, driver);
            let is_worked_out = matches!(extent, Extent::AllBut(_));
            // Sizes such as -2G (all but 2 GiB) differ between GPUs, so show each GPU's size.
            let size = |id| {
                let size = now.for_device(id, *key).filter(|_| is_worked_out);
                size.map_or(String::new(), |size| format!(": {}", sizes::size(size)))
            };
            let mut done: Vec<DeviceId> = Vec::new();
            for target in &self.targets {
                match target {
                    Selector::All if is_worked_out => {
                        done.extend(self.gpus.iter().map(|(id, _)| *id))
                    }
                    Selector::All => lines.push(format!("{change} applied to all GPUs")),
                    Selector::Device(id) => done.push(*id),
                }
            }
            for id in &done {
                lines.push(format!(
                    "{change} applied to GPU {gpu}{size}",
                    gpu = label(*id),
                    size = size(*id)
                ));
            }
            if !self.targets.contains(&Selector::All) {
                continue;
            }
            for (selector, own) in &now.rules {
                if let (Selector::Device(id), Some(size)) = (selector, own.get(*key))
                    && !done.contains(id)
                {
                    lines.push(format!(
                        "GPU {gpu} keeps its own {key}={size}; change it with --device",
                        gpu = label(*id)
                    ));
                }
            }
        }
        lines
    }

    /// Returns a warning for each group above this one that has a smaller `max` than the new `max`.
    pub fn outranked(
        &self,
        now: &LimitSet,
        above: &[Rc<Above>],
        ledger: Option<&Ledger>,
        driver: Option<&Driver>,
    ) -> Vec<String> {
        if !self.has_max() {
            return Vec::new();
        }
        let seen = ledger.map(Ledger::devices).unwrap_or_default();
        let capacity = |id: DeviceId| {
            let there = seen.iter().find(|device| device.id == id);
            there
                .map(|device| device.capacity)
                .or_else(|| groups::gpu(id, driver)?.capacity)
        };
        let gpus = self.targets.iter().flat_map(|target| match target {
            Selector::Device(id) => vec![Some(*id)],
            Selector::All if seen.is_empty() => vec![None],
            Selector::All => seen.iter().map(|device| Some(device.id)).collect(),
        });
        let gpus = gpus.map(|id| id.map(|id| (id, capacity(id))));
        let above = above.iter().map(|above| (above.group.name(), &above.rules));
        outranked(now, &Vec::from_iter(above), &Vec::from_iter(gpus))
    }
}

/// Returns a warning for each GPU on which a group `above` has a smaller `max`. The GPUs have their
/// memory. `None` is a GPU of unknown size: bytes are compared only with bytes, percentages only
/// with percentages.
pub fn outranked(
    own: &LimitSet,
    above: &[(&str, &LimitSet)],
    gpus: &[Option<(DeviceId, Option<u64>)>],
) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for gpu in gpus {
        let max = |limits: &LimitSet| match gpu {
            Some((id, _)) => limits.for_device(*id, Key::Max),
            None => limits.get(Selector::All, Key::Max),
        };
        let Some(own) = max(own) else { continue };
        let capacity = gpu.and_then(|(_, capacity)| capacity);
        let theirs = above
            .iter()
            .filter_map(|(name, limits)| Some((name, max(limits)?)));
        let smaller = theirs.filter(|(_, theirs)| is_above(own, *theirs, capacity));
        let least = smaller.min_by_key(|(_, theirs)| bytes(Some(*theirs), capacity));
        let line = least.map(|(name, theirs)| {
            format!("max={own} is above max={theirs} of group {name}: the lower limit applies")
        });
        lines.extend(line.filter(|line| !lines.contains(line)));
    }
    lines
}

/// Returns the memory of each GPU; empty if no setting needs it.
fn gpus(settings: &[Setting], driver: Option<&Driver>) -> Vec<Capacity> {
    match settings.iter().any(depends_on_gpus) {
        true => driver.map(Driver::capacities).unwrap_or_default(),
        false => Vec::new(),
    }
}

/// Drops hidden GPUs that are too small for a size such as -2G. Asks CUDA, which can number GPUs
/// differently.
fn leave_out_hidden(gpus: &mut Vec<Capacity>, settings: &[Setting]) {
    let less = settings.iter().filter_map(|setting| match setting {
        Setting::Size(_, Extent::AllBut(less)) => Some(*less),
        _ => None,
    });
    let most = less.max().unwrap_or(0);
    let fits = |gpu: &Capacity| gpu.1.is_some_and(|bytes| bytes > most);
    if gpus.iter().all(fits) || env("CUDA_VISIBLE_DEVICES").is_none() {
        return;
    }
    let visible = child::visible_gpus();
    if !visible.is_empty() {
        gpus.retain(|gpu| fits(gpu) || visible.contains(&gpu.0.uuid));
    }
}

/// Returns whether a setting is a size that must be computed from the GPU's memory, such as -2G.
pub fn depends_on_gpus(setting: &Setting) -> bool {
    matches!(setting, Setting::Size(_, Extent::AllBut(_)))
}

/// Changes the limits of the group that the caller means by `name`.
pub fn set(name: &str, settings: Vec<Setting>, devices: &[String]) -> Result<Done, Failure> {
    let driver = Driver::load().ok();
    let driver = driver.as_ref();
    let changes = Changes::new(settings, devices, driver)?;
    let group = groups::find(name, Purpose::Change)?;
    let now = group
        .past_leases(groups::end_of_leases(), || {
            // Cannot fail: [`Changes::new`] has already tried to apply the changes.
            group.write_limits(|rules| drop(changes.apply(rules)))
        })
        .map_err(|error| refused(&group, error))?;
    let name = group.name().to_owned();
    let mut lines = changes.lines(&now, driver);
    let mut notes = Notes::default();
    notes.lines.extend(changes.warning());
    if let Ok(ledger) = groups::readable(&group) {
        // The ledger is `None` if the caller is allowed to change the group's limits, but not to
        // read its ledger.
        if let Some(ledger) = &ledger {
            record(&group, ledger, &changes, &now);
        }
        let view = View::of(&mut Shared::default(), group, now, ledger, driver);
        lines.extend(changes.outranked(&view.rules, &view.above, view.ledger.as_ref(), driver));
        lines.extend(above_max(&view, driver));
        if changes.has_sizes() {
            let gpus = warnings::capacities(driver, view.ledger.as_ref());
            let lines = warnings::of(&view.rules, &gpus, driver);
            notes.lines.extend(warnings::named(&name, lines));
        }
    }
    let changes = lines.into_iter().map(|line| (name.clone(), line)).collect();
    Ok(Done { changes, notes })
}

fn refused(group: &Group, error: GroupError) -> Failure {
    match error {
        GroupError::Limits(LimitsError::Io { ref error, .. })
            if error.kind() == ErrorKind::PermissionDenied =>
        {
            Failure::new(format_args!(
                "you may not change the limits of group '{}': only the owner of {} may do that",
                group.name(),
                group.limits_path().display()
            ))
        }
        error => error.into(),
    }
}

/// Records the changes as an event in the ledger, if the caller may write the ledger. If the
/// changes are for one GPU, the event contains the figures of that GPU.
fn record(group: &Group, ledger: &Ledger, changes: &Changes, now: &LimitSet) {
    let (device, max) = match changes.targets[..] {
        [Selector::Device(id)] => (ledger.find_device(&id), now.for_device(id, Key::Max)),
        _ => (None, now.get(Selector::All, Key::Max)),
    };
    let entry = device.and_then(|device| ledger.device_entry(device));
    // In an event, the largest number stands for "no limit" or "unknown".
    let max = max.filter(|_| changes.has_max());
    let max = bytes(max, entry.map(|entry| entry.capacity)).unwrap_or(u64::MAX);
    let happening = Happening {
        kind: EventKind::Limits,
        device,
        process: Identity::of_self(),
        bytes: max,
        charged: device.map_or(0, |device| ledger.charged(device)),
        max,
    };
    group.record(ledger, &happening, Details::default());
    // `count_context` decides whether members charge their contexts: they look at it when called.
    ledger.call_members();
}

/// Returns a warning for each GPU on which the usage is above the new limit.
fn above_max(view: &View, driver: Option<&Driver>) -> Vec<String> {
    let Some(ledger) = &view.ledger else {
        return Vec::new();
    };
    let line = |device: &DeviceEntry| {
        let max = view.rules.for_device(device.id, Key::Max)?;
        let max = max.resolve(device.capacity);
        let usage = ledger.usage(device.index).in_use();
        (usage > max).then(|| {
            format!(
                "applied; usage {usage} of GPU {gpu} is {more} above the new max {max}: growth is \
                 refused until the usage falls",
                usage = gib(usage),
                gpu = groups::label(device.id, driver),
                more = gib(usage - max),
                max = gib(max)
            )
        })
    };
    view.devices.iter().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_of_the_same_kind_are_compared() {
        let (four, eight, half) = (Size::Bytes(4), Size::Bytes(8), Size::Percent(5000));
        assert!(is_above(eight, four, None) && !is_above(four, eight, None));
        assert!(is_above(Size::Max, four, None) && !is_above(Size::Max, Size::Max, None));
        assert!(!is_above(eight, half, None) && !is_above(half, four, None));
        assert!(is_above(eight, half, Some(10)) && is_above(half, four, Some(10)));
        assert!(!is_above(half, four, Some(8)));
    }
}
