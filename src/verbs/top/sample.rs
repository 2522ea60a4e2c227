//! Rounds for tests, made by hand.

use super::frame::{Scene, draw};
use super::look::Look;
use super::plain;
use super::round::{Name, Round};
use super::rows::Item;
use super::view::{Seen, View};
use crate::figures::processes::{Parts, Process};
use crate::figures::shares::Share;
use crate::figures::snapshot::GpuMemory;
use crate::figures::trend::Trend;
use crate::figures::waiting::Waiter;
use crate::figures::{Figures, Gpu};
use crate::machine::nvml::Activity;
use crate::words::clock::Moment;
use gpulimit_base::device::DeviceId;
use gpulimit_base::units::Size;
use gpulimit_ledger::Category;
use gpulimit_limits::{Key, LimitSet, Selector, Values};
use jiff::Timestamp;
use jiff::tz::TimeZone;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use std::time::Duration;

pub const GIB: u64 = 1 << 30;
const TOTAL: u64 = 80 * GIB;

pub fn id(index: u8) -> DeviceId {
    DeviceId::gpu([index + 1; 16])
}

pub fn name(name: &str) -> Name {
    Name {
        root: "/run/gpulimit".into(),
        name: name.into(),
    }
}

pub fn gpu(index: u8, parts: &[(&str, u64)], outside: u64, limits: Option<u64>) -> GpuMemory {
    let grouped: u64 = parts.iter().map(|(_, usage)| usage * GIB).sum();
    let used = grouped + outside * GIB;
    GpuMemory {
        machine: String::new(),
        id: id(index),
        index: Some(index.into()),
        name: "NVIDIA H100 80GB HBM3".into(),
        bus: String::new(),
        total: Some(TOTAL),
        used: Some(used),
        grouped,
        parts: (parts.iter())
            .map(|(title, usage)| ((*title).into(), usage * GIB))
            .collect(),
        managed: 0,
        limits: limits.map(|limits| limits * GIB),
        outside: Some((usize::from(outside > 0), outside * GIB)),
        unsure: 0,
        activity: Activity {
            busy: Some(97 - u32::from(index)),
            temperature: Some(64),
            power: Some(512),
            power_limit: Some(700),
            clock: Some(1_980),
            memory_clock: Some(2_619),
        },
    }
}

/// A group's figures on a GPU: usage and `max` in GiB.
pub fn usage(index: u8, usage: u64, max: Option<u64>) -> Gpu {
    let max = max.map(|max| max * GIB);
    let mut rule = Values::default();
    rule.set(Key::Max, max.map(Size::Bytes));
    Gpu {
        id: id(index),
        label: format!("{index} (GPU)"),
        index: Some(index.into()),
        rule,
        capacity: Some(TOTAL),
        max,
        effective: max.map(|max| (max, "lab".into())),
        usage: Some(usage * GIB),
        peak: Some((usage + 1) * GIB),
        free: max.map(|max| max.saturating_sub(usage * GIB)),
        refusals: Some(3),
        waits: Some(0),
        waited_ms: Some(0),
        processes: Some(2),
        trend: None,
        recent: (0..60)
            .map(|part| (part > 20).then_some(usage * GIB * part / 60))
            .collect(),
        refused_lately: 0,
        draining: Some(0),
        waiting: Some(0),
        longest_wait: None,
        by: None,
        suspended: Some(0),
        uncovered: None,
    }
}

pub fn group(full: &str, mut gpus: Vec<Gpu>) -> Figures {
    for (limit, by) in gpus.iter_mut().filter_map(|gpu| gpu.effective.as_mut()) {
        if *limit < 60 * GIB {
            *by = full.into();
        }
    }
    let mut rules = LimitSet::default();
    rules.set(Selector::All, Key::Max, Size::Bytes(20 * GIB));
    let mut group = Figures {
        machine: String::new(),
        name: full.into(),
        title: full.into(),
        root: "/run/gpulimit".into(),
        rules,
        processes: Some(2),
        above_all: None,
        others: None,
        gpus,
        sum: None,
    };
    group.add_up();
    group
}

pub fn process(full: &str, pid: u32, user: &str, command: &str) -> Process {
    let mut split = [0; Category::COUNT];
    split[Category::Linear as usize] = 3 * GIB;
    split[Category::Driver as usize] = GIB / 2;
    let parts = Parts {
        gpu: id(0),
        total: 7 * GIB / 2,
        split: Some(split),
        suspended: 0,
    };
    let mut process = Process::example(full, pid, user, command);
    process.on = Some(parts);
    process.host = Some(9 * GIB / 4);
    // The middle of a minute, so that the screen is the same some seconds later.
    let minutes_ago =
        |minutes: u64| Moment::from(Timestamp::now()).unix_ms - minutes * 60_000 - 30_000;
    process.started_ms = Some(minutes_ago(300));
    process.share = Some(Share {
        percent: pid % 2 * 48,
        used_ms: Some(minutes_ago(40 - u64::from(pid % 2 * 40))),
    });
    process
}

fn wait() -> Option<Waiter> {
    let waited = Duration::from_secs(40);
    Some(Waiter::example("lab/bob", id(0), 2 * GIB, waited))
}

/// Two GPUs, some groups in each state, and processes of three users.
pub fn round() -> Round {
    let mut lab = usage(0, 30, Some(60));
    lab.longest_wait = wait();
    let mut alice = usage(0, 9, Some(20));
    alice.rule.set(Key::High, Some(Size::Bytes(8 * GIB)));
    let mut bob = usage(0, 21, None);
    bob.effective = Some((60 * GIB, "lab".into()));
    bob.longest_wait = wait();
    bob.trend = Some(Trend {
        time: Duration::from_secs(3_600),
        rate: 1e6,
        process: None,
    });
    let mut job = usage(0, 9, Some(10));
    job.recent = Vec::new();
    job.refused_lately = 2;
    let mut night = usage(1, 4, Some(10));
    night.draining = Some(1);
    let mut waits = process("lab/bob", 4713, "bob", "python train.py --epochs 90");
    waits.waits = wait();
    let mut contained = process(
        "lab/bob",
        4714,
        "bob",
        "tritonserver --model-repository /models",
    );
    contained.place = "4f2a0c6d8e1b".into();
    contained.state = "suspended";
    contained.charged_ms = contained.share.and_then(|share| share.used_ms);
    contained.charged_ms = contained.charged_ms.map(|used| used + 40 * 60_000);
    contained.on.as_mut().expect("a GPU").suspended = 2 * GIB;
    let mut refused = process("lab/alice/run-4711-88", 4711, "alice", "python eval.py");
    refused.refused = Some(Duration::from_secs(12));
    let mut draining = process("night", 4715, "carol", "a.out");
    draining.state = "draining";
    (draining.share, draining.host) = (None, None);
    draining.on.as_mut().expect("a GPU").gpu = id(1);
    let mut young = process("lab", 4716, "alice", "nvidia-smi");
    (young.on, young.share) = (None, None);
    Round {
        time: Timestamp::from_second(1_790_000_000).expect("a time"),
        gpus: vec![
            gpu(0, &[("lab", 30)], 6, Some(84)),
            gpu(1, &[("lab", 12), ("night", 4)], 0, Some(70)),
        ],
        groups: vec![
            group("lab", vec![lab, usage(1, 12, Some(60))]),
            group("lab/alice", vec![alice]),
            group("lab/alice/run-4711-88", vec![job]),
            group("lab/bob", vec![bob]),
            group("night", vec![night]),
        ],
        processes: vec![young, refused, waits, contained, draining],
        ..Round::default()
    }
}

/// Eight GPUs and many groups.
pub fn crowded() -> Round {
    let mut round = Round {
        time: Timestamp::from_second(1_790_000_000).expect("a time"),
        ..Round::default()
    };
    for index in 0..8 {
        let parts = [("group00", 10), ("group01", 20 + u64::from(index))];
        round.gpus.push(gpu(index, &parts, 3, Some(60)));
    }
    for at in 0..40 {
        let full = format!("group{at:02}");
        let usages = vec![usage(at % 8, u64::from(at), Some(50))];
        round.groups.push(group(&full, usages));
        round
            .processes
            .push(process(&full, 1000 + u32::from(at), "dave", "python"));
    }
    round
}

pub fn view() -> View {
    View {
        interval: Duration::from_secs(1),
        ..View::default()
    }
}

pub fn scene<'a>(round: &'a Round, view: &'a View) -> Scene<'a> {
    static ZONE: TimeZone = TimeZone::UTC;
    Scene {
        round,
        view,
        stuck: None,
        zone: &ZONE,
        look: Look {
            unicode: true,
            colours: false,
        },
    }
}

/// The row of a group on the first GPU.
pub fn item(group: &str) -> Item {
    Item {
        group: name(group),
        gpu: Some(id(0)),
        process: None,
    }
}

/// Draws a screen of this size.
pub fn drawn(scene: &Scene<'_>, size: (u16, u16), unicode: bool, colours: bool) -> (Buffer, Seen) {
    let mut buffer = Buffer::empty(Rect::new(0, 0, size.0, size.1));
    let look = Look { unicode, colours };
    let seen = draw(&Scene { look, ..*scene }, &mut buffer);
    (buffer, seen)
}

/// Returns the lines of a buffer.
pub fn lines(buffer: &Buffer) -> Vec<String> {
    (0..buffer.area.height)
        .map(|y| plain::line(buffer, y))
        .collect()
}
