//! The last refusal of a program, as its record tells, and how full its groups and GPU are now.

pub mod advice;
pub mod pytorch;

use super::event::Line;
use super::fields::{self, fields, path, right};
use super::outside;
use super::processes::{Commands, Process, processes};
use super::waiting::{Waiter, Waiters};
use crate::groups::above::Above;
use crate::groups::sizes::bytes;
use crate::groups::{self, Purpose, Seen, Selection, View};
use crate::machine::look;
use crate::machine::nvml::Driver;
use crate::machine::obstacles::{self, Obstacle};
use crate::words::environment::env;
use advice::Advice;
use gpulimit_base::device::DeviceId;
use gpulimit_base::identity::Identity;
use gpulimit_group::{Group, Kind, Root, effective_user, parent, upwards};
use gpulimit_ledger::{Cause, EventKind, ProcessUsage};
use gpulimit_limits::{Key, OnLimit, Selector};
use gpulimit_policy as policy;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde_json::{Value, json};
use std::cmp::Reverse;
use std::path::Path;
use std::rc::Rc;
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

/// A group, or the GPU, that must grant the request; sizes in bytes.
#[derive(Clone, Default)]
pub struct Level {
    pub name: String,
    pub is_gpu: bool,
    /// The limit, or the memory of the GPU.
    pub max: Option<u64>,
    /// The bytes that can still be granted. `None` if there is no limit, or if the caller may not
    /// read the group's usage.
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
#[derive(Clone, Default)]
pub struct Holder {
    pub pid: Option<u32>,
    pub user: String,
    pub command: String,
    /// The process's group; `None` for one in none of the groups that the caller can see.
    pub group: Option<String>,
    pub in_use: u64,
    /// Whether the process has ended and children that it has forked keep its memory.
    pub is_kept: bool,
    /// Whether the process is one of the caller's own, and can be ended.
    pub is_own: bool,
    /// Whether the caller can suspend the process.
    pub may_suspend: bool,
}

/// Returns whether the process of a refusal has got as much within a second: nothing has failed.
pub fn has_recovered(refusal: &Line, lines: &[Line]) -> bool {
    lines.iter().any(|line| {
        line.event.what.kind == EventKind::Recovered
            && is_of(&line.event.what.process, refusal)
            && line.device == refusal.device
            && line.last_us() >= refusal.last_us()
    })
}

/// Returns whether a process is the one that was refused.
fn is_of(process: &Identity, refusal: &Line) -> bool {
    let refused = &refusal.event.what.process;
    (process.pid, process.pid_ns) == (refused.pid, refused.pid_ns)
}

impl Now {
    /// Reads how full the groups and the GPU of a refusal are. `may_suspend` tells whether the
    /// caller can suspend a process of a group below the same root.
    pub fn read(
        line: &Line,
        id: DeviceId,
        (selection, views): (&Selection, Vec<View>),
        driver: Option<&Driver>,
        may_suspend: impl Fn(&Holder) -> Option<bool>,
    ) -> Self {
        let near = views.iter().filter(|view| view.group.root() == line.root);
        let near: Vec<&View> = near.collect();
        let mut members = near.iter().flat_map(|view| &view.processes);
        let has_ended = !members.any(|one| one.alive && is_of(&one.identity, line));
        let (need, beside) = needs(line, has_ended);
        let memory = driver.and_then(|driver| driver.memory_of(&id));
        let index = groups::index(id, driver);
        let (refused, is_host) = (&line.event.what, line.cause() == Some(Cause::Host));
        let levels = levels(line, id, &near, driver);
        let (holders, mut waits) = users(line, id, (selection, views), driver);
        waits.retain(|one| levels.iter().any(|level| level.name == one.line));
        let before = (waits.len(), sum(waits.iter().map(|one| one.bytes)));
        let lacks = || obstacles::of_memory(&[(refused.process.pid, refused.bytes)]);
        let remedy = |lack: Obstacle| format!("{lack}: {}", lack.remedy);
        let mut now = Self {
            gpu: index.map_or_else(|| id.to_string(), |index| index.to_string()),
            total: memory.as_ref().map(|memory| memory.total),
            free: memory.as_ref().map(|memory| memory.free),
            has_ended,
            need,
            beside,
            levels,
            holders,
            line: Some(before).filter(|(count, _)| *count > 0),
            host: is_host.then(|| lacks().into_iter().map(remedy).collect()),
            pytorch: pytorch::Note::of(line, selection),
            outside: outside_of(),
        };
        // Looks at a few processes only: each look starts a process.
        const LOOKS: usize = 8;
        let may =
            |one: &Holder| !now.fits(&[]) && now.fits(&[one]) && may_suspend(one).unwrap_or(false);
        let may: Vec<bool> = now.holders.iter().take(LOOKS).map(may).collect();
        for (holder, may) in now.holders.iter_mut().zip(may) {
            holder.may_suspend = may;
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
            "pytorch": self.pytorch,
            "advice": advice,
        })
    }
}

/// Returns the bytes that the program of a refusal needs to go on, in whole blocks, and the part of
/// them that cannot be smaller.
fn needs(line: &Line, has_ended: bool) -> (u64, u64) {
    let (bytes, function) = (line.event.what.bytes, line.function().unwrap_or("cuMem"));
    let held = line.held().saturating_add(RESERVE);
    let pool = if function.contains("Async") { POOL } else { 0 };
    let beside = pool.saturating_add(if has_ended { held } else { 0 });
    let need = bytes.saturating_add(beside);
    let need = need.checked_next_multiple_of(advice::BLOCK).unwrap_or(need);
    // Contexts and code have the size that they have.
    let mut varies = ["cuMem", "cuArray", "cuMipmapped"].iter();
    let varies = varies.any(|begin| function.starts_with(begin));
    (need, if varies { beside } else { need })
}

/// Returns the words in front of a command that must not be a part of the caller's own job.
fn outside_of() -> String {
    let set = [policy::GROUP, policy::MAX].map(|name| env(name).map(|_| format!(" -u {name}")));
    match set.into_iter().flatten().collect::<String>() {
        unset if unset.is_empty() => unset,
        unset => format!("env{unset} "),
    }
}

/// Returns the groups from that of the process upwards. A job's group that has refused and is gone
/// is the first, with its limit; so is one that the caller cannot look into.
fn levels(line: &Line, id: DeviceId, near: &[&View], driver: Option<&Driver>) -> Vec<Level> {
    let view = |name: &str| near.iter().find(|view| view.group.name() == name);
    // A job's group without living processes is about to go.
    let lasts = |view: &&&View| {
        view.group.kind() == Kind::Named || view.processes.iter().any(|one| one.alive)
    };
    let home = line.home();
    let is_home_left = view(&home).filter(lasts).is_some();
    let leaf = if is_home_left { &home } else { &line.group };
    let nearest = upwards(leaf).find_map(|name| view(name).filter(lasts));
    let mut levels = Vec::new();
    if nearest.is_none_or(|view| view.group.name() != leaf) {
        let above = line.root.join(parent(leaf).unwrap_or_default());
        let found = Root::at(&line.root).and_then(|root| root.group(leaf));
        let is_gone = found.map_or_else(|error| error.is_missing(), |_| true);
        levels.push(Level {
            name: leaf.to_owned(),
            max: line.max(),
            left: line.max().filter(|_| is_gone),
            is_gone,
            keep_free: (line.kept(true).unwrap_or(0), false),
            may_set: is_gone && (may_write(&above) || !above.exists()),
            ..Level::default()
        });
    }
    let Some(nearest) = nearest else {
        return levels;
    };
    let capacity = nearest.capacity(id, driver);
    let level = |above: &Rc<Above>| {
        let (group, rules) = (&above.group, &above.rules);
        let size = |key| {
            let is_by_gpu = rules.get(Selector::Device(id), key).is_some();
            (bytes(rules.for_device(id, key), capacity), is_by_gpu)
        };
        let ((max, by_gpu), (keep, keeps_by_gpu)) = (size(Key::Max), size(Key::KeepFree));
        // The next request waits for this memory of dead processes.
        let dead = view(group.name()).map_or(0, |view| {
            let index = view.devices.iter().find(|device| device.id == id);
            let dead = view.processes.iter().filter(|one| one.drains);
            sum(dead.filter_map(|one| Some(one.on(index?.index).charged)))
        });
        let left = above.taken(leaf, &[], id, capacity.unwrap_or(0));
        let left = left.map(|taken| max.unwrap_or(0).saturating_sub(taken.saturating_sub(dead)));
        Level {
            name: group.name().to_owned(),
            max,
            left: left.filter(|_| max.is_some()),
            by_gpu,
            keep_free: (keep.unwrap_or(0), keeps_by_gpu),
            may_set: may_set(group),
            wait: (rules.options.on_limit == OnLimit::Wait).then_some(rules.options.wait_timeout),
            ..Level::default()
        }
    };
    let own = Above::of(&nearest.group, &nearest.drained).map(Rc::new);
    levels.extend(own.iter().chain(&nearest.above).map(level));
    levels
}

/// Returns whether the caller may change the group's limits, by the name that `set` gets.
fn may_set(group: &Group) -> bool {
    let is_meant = groups::meant(group.name(), Purpose::Change)
        .is_ok_and(|(root, name)| root.path() == group.root() && name == group.name());
    is_meant && may_write(&group.limits_path())
}

fn may_write(path: &Path) -> bool {
    accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS).is_ok()
}

/// Returns the processes that use the GPU, without that of the refusal, the largest first, and the
/// requests that wait for its memory.
fn users(
    line: &Line,
    id: DeviceId,
    (selection, views): (&Selection, Vec<View>),
    driver: Option<&Driver>,
) -> (Vec<Holder>, Vec<Waiter>) {
    let me = effective_user();
    let waiters = Waiters::of(&views, driver);
    let mut seen: Vec<Seen> = views.into_iter().filter_map(View::into_seen).collect();
    for group in &mut seen {
        let is_refused = |one: &ProcessUsage| one.alive && is_of(&one.identity, line);
        group.processes.retain(|one| !is_refused(one));
    }
    let mut members = processes(
        selection,
        &seen,
        &waiters,
        &mut Commands::new(look::patience()),
    );
    let is_here = |one: &Process| one.gpu() == Some(id);
    members.retain(|one| (one.is_kept || one.alive) && is_here(one));
    let waits = members.iter().filter(|one| one.root == line.root);
    let waits = waits.filter_map(|one| one.waits.clone()).collect();
    let inside = members.into_iter().map(|one| Holder {
        in_use: one.total().unwrap_or(0),
        pid: one.pid,
        user: one.user,
        command: one.command.unwrap_or_default(),
        group: (one.root == line.root).then_some(one.group),
        is_own: one.alive && one.uid == me,
        is_kept: one.is_kept,
        ..Holder::default()
    });
    let outside = driver.and_then(|driver| outside::outside(driver).ok());
    let outside = outside.into_iter().flatten().filter(|one| one.gpu == id);
    let outside = outside.filter_map(|one| {
        Some(Holder {
            pid: Some(one.pid),
            user: one.user()?,
            command: one.command,
            in_use: one.bytes?,
            is_own: one.uid == Some(me),
            ..Holder::default()
        })
    });
    let mut holders: Vec<Holder> = inside.chain(outside).collect();
    holders.retain(|holder| holder.in_use > 0);
    holders.sort_by_key(|holder| Reverse(holder.in_use));
    (holders, waits)
}

/// Adds up figures, some of which other users can write.
fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}
