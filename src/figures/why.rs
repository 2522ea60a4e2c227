//! The last refusal of a program, as its record tells, and how full its groups and GPU are now.

pub mod advice;
pub mod pytorch;

use super::event::Line;
use super::fields::{self, fields, path, right};
use super::outside::{self, Outside};
use super::processes::{Commands, Process, processes};
use super::waiting::Waiters;
use crate::groups::above::Above;
use crate::groups::sizes::bytes;
use crate::groups::{self, Purpose, Seen, Selection, View};
use crate::machine::obstacles;
use crate::machine::{look, nvml::Driver};
use crate::words::environment::env;
use advice::Advice;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_group::{Group, Kind, effective_user, upwards};
use gpulimit_ledger::{Cause, EventKind, ProcessUsage};
use gpulimit_limits::{Key, LimitSet, OnLimit, Selector};
use gpulimit_policy as policy;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::fmt;
use std::time::Duration;

/// How full the groups and the GPU of a refused request are now, and who uses them.
pub struct Now {
    /// NVML's index of the GPU, or its UUID.
    pub gpu: String,
    /// The memory of the GPU, and what no process uses of it, in bytes.
    pub total: Option<u64>,
    pub free: Option<u64>,
    /// Whether the program has ended, and so has to start again.
    pub has_ended: bool,
    /// The bytes that the program needs to go on: the request, and `beside`.
    pub need: u64,
    /// The part of that which cannot be smaller: what an ended program held when it was refused,
    /// the steps in which a pool grows, and a request that has a size of its own.
    pub beside: u64,
    /// The group that refused or that of the process, and the groups above it.
    pub levels: Vec<Level>,
    /// The other processes that use the GPU.
    pub holders: Vec<Holder>,
    /// The number and the bytes of the requests that wait in these groups.
    pub line: Option<(usize, u64)>,
    /// For a request that only the driver refused: what the host lacks.
    pub host: Option<Vec<String>>,
    /// What PyTorch noted at the refusal.
    pub pytorch: Option<pytorch::Note>,
    /// What a command begins with that must not be a part of the caller's own job.
    pub outside: String,
}

/// What a process has in reserve at least, and what a pool has: the step of its growth, twice.
const RESERVE: u64 = 4 << 20;
const POOL: u64 = 64 << 20;

/// A group that must grant the request; sizes in bytes.
#[derive(Default)]
pub struct Level {
    pub name: String,
    pub max: Option<u64>,
    /// What the group can still grant; `None` without a limit, or if the caller may not know it.
    pub left: Option<u64>,
    /// Whether the group was a job's and is gone: the program gets a new one.
    pub is_gone: bool,
    /// Whether the limit is for this GPU alone.
    pub by_gpu: bool,
    /// What the group keeps free on the GPU, whether for this GPU alone.
    pub keep_free: (u64, bool),
    /// Whether the caller may change the limit.
    pub may_set: bool,
    /// How long requests wait in the group; `None` if they do not.
    pub wait: Option<Duration>,
}

fields! { pub LEVELS(it: Level):
    "group": Text, path("GROUP") => &*it.name;
    "max": Bytes, right("MAX") => it.max;
    "left": Bytes, right("LEFT") => it.left;
    "keep_free": Bytes, right("KEEP FREE").sparse() => Some(it.keep_free.0).filter(|keep| *keep > 0);
    /// Whether the job's group is gone.
    "gone": Flag => it.is_gone;
    /// Whether you may change the limit.
    "may_set": Flag => it.may_set;
    "wait_ms": Ms => it.wait.and_then(|time| u64::try_from(time.as_millis()).ok());
}

/// A process that uses memory of the GPU.
#[derive(Clone)]
pub struct Holder {
    pub pid: Option<u32>,
    pub user: String,
    pub command: String,
    /// The process's group; `None` for one in none of the groups that the caller can see.
    pub group: Option<String>,
    pub in_use: u64,
    /// Whether the process is one of the caller's own.
    pub is_own: bool,
    /// Whether the caller can suspend the process.
    pub may_suspend: bool,
}

/// Formats the process: `process 4711 (python)`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.pid {
            Some(pid) => write!(f, "process {pid} ({})", self.command),
            None => write!(f, "a process ({}) of another pid namespace", self.command),
        }
    }
}

/// Returns whether the process of a refusal has got as much within a second: nothing has failed.
pub fn has_recovered(refusal: &Line, lines: &[Line]) -> bool {
    let process = |line: &Line| {
        let Identity { pid, pid_ns, .. } = line.event.what.process;
        (pid, pid_ns, line.device)
    };
    lines.iter().any(|line| {
        line.event.what.kind == EventKind::Recovered
            && process(line) == process(refusal)
            && line.last_us() >= refusal.last_us()
    })
}

impl Now {
    /// Reads how full the groups and the GPU of a refusal are. `may_suspend` tells whether the
    /// caller can suspend a process of a group, by its pid.
    pub fn read(
        line: &Line,
        id: DeviceId,
        (selection, views): (&Selection, Vec<View>),
        driver: Option<&Driver>,
        may_suspend: impl Fn(&Group, u32) -> bool,
    ) -> Self {
        let what = &line.event.what;
        let near = views.iter().filter(|view| view.group.root() == line.root);
        let near: Vec<&View> = near.collect();
        let is_it = |one: &ProcessUsage| {
            let (one, it) = (&one.identity, &what.process);
            (one.pid, one.pid_ns) == (it.pid, it.pid_ns)
        };
        let mut members = near.iter().flat_map(|view| &view.processes);
        let has_ended = !members.any(|one| one.alive && is_it(one));
        let held = match has_ended {
            true => line.held().saturating_add(RESERVE),
            false => 0,
        };
        let function = line.function();
        let is_pool = function.is_some_and(|name| name.contains("Async"));
        let pool = if is_pool { POOL } else { 0 };
        // Contexts and code have the size that they have.
        let varies = ["cuMem", "cuArray", "cuMipmapped"];
        let is_fixed = function.is_some_and(|name| !varies.iter().any(|it| name.starts_with(it)));
        let fixed = if is_fixed { what.bytes } else { 0 };
        let beside = held.saturating_add(pool).saturating_add(fixed);
        let need = what.bytes.saturating_add(beside - fixed);
        let memory = driver.and_then(|driver| driver.memory_of(&id));
        let index = groups::index(id, driver);
        let is_host = line.cause() == Some(Cause::Host);
        let levels = levels(line, id, &near, driver);
        let waits = near
            .iter()
            .filter(|view| levels.iter().any(|level| level.name == view.group.name()))
            .flat_map(|view| {
                let device = view.devices.iter().find(|device| device.id == id);
                let waits = view.processes.iter().filter_map(|process| process.waits);
                waits.filter(move |one| device.is_some_and(|it| it.index == one.device))
            });
        let (count, bytes) = waits.fold((0, 0_u64), |(count, bytes), one| {
            (count + 1, bytes.saturating_add(one.bytes))
        });
        let mut now = Self {
            gpu: index.map_or_else(|| id.to_string(), |index| index.to_string()),
            total: memory.as_ref().map(|memory| memory.total),
            free: memory.as_ref().map(|memory| memory.free),
            has_ended,
            need: need.checked_next_multiple_of(advice::BLOCK).unwrap_or(need),
            beside,
            levels,
            holders: Vec::new(),
            line: (count > 0).then_some((count, bytes)),
            host: is_host.then(|| host(what.process.pid, what.bytes)),
            pytorch: pytorch::Note::of(line, selection),
            outside: outside_of(),
        };
        now.holders = holders(line, id, (selection, views), driver);
        // Looks at a few processes only: each look starts a process.
        const LOOKS: usize = 8;
        if !now.fits(&[]) {
            for at in 0..now.holders.len().min(LOOKS) {
                let holder = &now.holders[at];
                let is_its = |group: &&Group| {
                    holder.group.as_deref() == Some(group.name()) && group.root() == line.root
                };
                let group = selection.groups.iter().find(is_its);
                if let (Some(group), Some(pid), true) = (group, holder.pid, now.fits(&[holder])) {
                    now.holders[at].may_suspend = may_suspend(group, pid);
                }
            }
        }
        now
    }

    /// Returns the figures as JSON.
    pub fn json(&self, advice: &[Advice]) -> Value {
        json!({
            "needed": self.need,
            "beside": self.beside,
            "ended": self.has_ended,
            "gpu": { "index": self.gpu, "total": self.total, "free": self.free },
            "groups": fields::list(LEVELS, &self.levels),
            "pytorch": self.pytorch.as_ref().map(|it| fields::json(pytorch::FIELDS, it, None)),
            "advice": fields::list(advice::FIELDS, advice),
        })
    }
}

/// Returns the words in front of a command that must not be a part of the caller's own job.
fn outside_of() -> String {
    let set = [policy::GROUP, policy::MAX]
        .into_iter()
        .filter(|name| env(name).is_some());
    let unset: String = set.map(|name| format!(" -u {name}")).collect();
    match unset.is_empty() {
        true => String::new(),
        false => format!("env{unset} "),
    }
}

/// Returns the groups from that of the process upwards. A job's group that has refused and is gone
/// is the first, with its limit.
fn levels(line: &Line, id: DeviceId, near: &[&View], driver: Option<&Driver>) -> Vec<Level> {
    // A job's group without living processes is about to go.
    let is_left = |view: &&&View| {
        Kind::of(view.group.name()) == Kind::Named || view.processes.iter().any(|one| one.alive)
    };
    let view = |name: &str| {
        let found = near.iter().find(|view| view.group.name() == name);
        found.filter(is_left)
    };
    let home = line.home();
    let leaf = if view(&home).is_some() {
        &home
    } else {
        &line.group
    };
    let nearest = upwards(leaf).find_map(view);
    let mut levels = Vec::new();
    if nearest.is_none_or(|view| view.group.name() != leaf) {
        let max = Some(line.event.what.max).filter(|max| *max != u64::MAX);
        levels.push(Level {
            name: leaf.to_owned(),
            max,
            left: max,
            is_gone: true,
            may_set: true,
            ..Level::default()
        });
    }
    let Some(view) = nearest else {
        return levels;
    };
    let entry = view.devices.iter().find(|device| device.id == id);
    let known = entry.map(|entry| entry.capacity).filter(|bytes| *bytes > 0);
    let capacity = known.or_else(|| groups::gpu(id, driver)?.capacity);
    // Memory of dead processes comes back by itself, at the next request at the latest.
    let dying = |group: &Group| {
        let view = near.iter().find(|view| view.group == *group)?;
        let device = view.devices.iter().find(|device| device.id == id)?;
        let dead = view.processes.iter().filter(|one| !one.alive);
        let dead = dead.filter(|one| !view.drained.contains(&one.slot));
        Some(dead.map(|one| one.on(device.index).charged).sum::<u64>())
    };
    let level = |group: &Group, rules: &LimitSet, taken: Option<u64>| {
        let taken = taken.map(|bytes| bytes.saturating_sub(dying(group).unwrap_or(0)));
        let max = bytes(rules.for_device(id, Key::Max), capacity);
        let waits = rules.options.on_limit == OnLimit::Wait;
        Level {
            name: group.name().to_owned(),
            max,
            left: max.zip(taken).map(|(max, taken)| max.saturating_sub(taken)),
            is_gone: false,
            by_gpu: rules.get(Selector::Device(id), Key::Max).is_some(),
            keep_free: (
                bytes(rules.for_device(id, Key::KeepFree), capacity).unwrap_or(0),
                rules.get(Selector::Device(id), Key::KeepFree).is_some(),
            ),
            may_set: may_set(group),
            wait: waits.then_some(rules.options.wait_timeout),
        }
    };
    let own = Above::of(&view.group, &view.drained);
    let own = own.and_then(|own| own.taken(leaf, &[], id, capacity.unwrap_or(0)));
    levels.push(level(&view.group, &view.rules, own));
    levels.extend(view.above.iter().map(|above| {
        let taken = above.taken(view.group.name(), &[], id, capacity.unwrap_or(0));
        level(&above.group, &above.rules, taken)
    }));
    levels
}

/// Returns whether the caller may change the group's limits, by the name that `set` gets.
fn may_set(group: &Group) -> bool {
    let is_meant = groups::meant(group.name(), Purpose::Change)
        .is_ok_and(|(root, name)| root.path() == group.root() && name == group.name());
    let path = group.limits_path();
    is_meant && accessat(CWD, &path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Returns the processes that use the GPU, without that of the refusal, the largest first.
fn holders(
    line: &Line,
    id: DeviceId,
    (selection, views): (&Selection, Vec<View>),
    driver: Option<&Driver>,
) -> Vec<Holder> {
    let me = effective_user();
    let seen: Vec<Seen> = views.into_iter().filter_map(View::into_seen).collect();
    let mut commands = Commands::new(look::patience());
    let members = processes(selection, &seen, &Waiters::default(), &mut commands);
    let of_it = |process: &Process| {
        let (_, parts) = process.gpu.as_ref().filter(|(gpu, _)| *gpu == id)?;
        let is_near = process.root == line.root;
        Some(Holder {
            pid: process.pid,
            user: process.user.clone(),
            command: process.command.clone().unwrap_or_default(),
            group: is_near.then(|| process.group.clone()),
            in_use: parts.total,
            is_own: process.uid == me,
            may_suspend: false,
        })
    };
    // The record has the pid that the process sees itself.
    let refused = line.event.what.process.pid;
    let others = members
        .iter()
        .filter(|one| one.alive && one.own_pid != refused);
    let mut holders: Vec<Holder> = others.filter_map(of_it).collect();
    let outside = driver.and_then(|driver| outside::outside(driver).ok());
    let is_there = |one: &Outside| one.gpu == id && one.uid.is_some();
    let outside = outside.into_iter().flatten().filter(is_there);
    holders.extend(outside.map(|one| Holder {
        pid: Some(one.pid),
        user: one.user().unwrap_or_else(|| "an unknown user".to_owned()),
        command: one.command,
        group: None,
        in_use: one.bytes.unwrap_or(0),
        is_own: one.uid == Some(me),
        may_suspend: false,
    }));
    holders.retain(|holder| holder.in_use > 0);
    holders.sort_by_key(|holder| Reverse(holder.in_use));
    holders
}

/// Returns what the host lacks for a request that only the driver refused.
fn host(pid: u32, bytes: u64) -> Vec<String> {
    let found = obstacles::of_memory(&[(pid, bytes)]).into_iter();
    found.map(|it| format!("{it}: {}", it.remedy)).collect()
}
