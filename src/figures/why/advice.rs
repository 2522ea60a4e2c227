//! What gives a refused request room now: pure functions from figures to advice.

use super::{Holder, Level, Now};
use crate::figures::fields::fields;
use crate::words::clock::rough_span;
use gpulimit_base::units::gib;
use gpulimit_group::is_within;

/// The driver gives memory by blocks of so many bytes.
pub const BLOCK: u64 = 2 << 20;

/// A thing to do, after which the refused request is granted.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct Advice {
    /// `again`, `host`, `expand`, `raise`, `lower`, `suspend`, `end`, `wait` or `smaller`.
    pub what: &'static str,
    /// The name and the bytes of the figure that makes the advice true.
    pub figure: (&'static str, u64),
    pub text: String,
    pub command: Option<String>,
    /// The processes that the advice names.
    pub pids: Vec<u32>,
}

fields! { pub FIELDS(it: Advice):
    /// `again`, `expand`, `raise`, `lower`, `suspend`, `end`, `wait`, `smaller` or `host`.
    "advice": Text => it.what;
    /// What makes the advice true.
    "figure": Text => it.figure.0;
    "bytes": Bytes => it.figure.1;
    "text": Text => &*it.text;
    "command": Text => it.command.as_deref();
    "pids": Many("pid") => it.pids.clone();
}

impl Level {
    /// Returns the bytes that the group can still grant. A group whose ledger the caller cannot
    /// read is taken for full.
    fn room(&self) -> u64 {
        match (self.max, self.left) {
            (None, _) => u64::MAX,
            (_, left) => left.unwrap_or(0),
        }
    }

    fn holds(&self, holder: &Holder) -> bool {
        let group = holder.group.as_deref();
        group.is_some_and(|group| is_within(group, &self.name))
    }
}

impl Now {
    /// Returns the groups that lack room once these processes hold nothing, and whether the GPU
    /// lacks room too.
    fn lacking(&self, without: &[&Holder]) -> (Vec<&Level>, bool) {
        let sum = |counts: &dyn Fn(&Holder) -> bool| {
            let all = without.iter().filter(|holder| counts(holder));
            all.fold(0_u64, |sum, holder| sum.saturating_add(holder.in_use))
        };
        let lacks = |level: &&Level| {
            let freed = sum(&|holder| level.holds(holder));
            level.room().saturating_add(freed) < self.need
        };
        let free = self.unkept().unwrap_or(u64::MAX);
        let free = free.saturating_add(sum(&|_| true));
        (self.levels.iter().filter(lacks).collect(), free < self.need)
    }

    /// Returns the group that keeps the most memory of the GPU free.
    pub fn keeper(&self) -> Option<&Level> {
        let keepers = self.levels.iter().filter(|level| level.keep_free.0 > 0);
        keepers.max_by_key(|level| level.keep_free.0)
    }

    /// Returns the free memory of the GPU that no `keep_free` keeps.
    fn unkept(&self) -> Option<u64> {
        let keep = self.keeper().map_or(0, |level| level.keep_free.0);
        Some(self.free?.saturating_sub(keep))
    }

    pub fn fits(&self, without: &[&Holder]) -> bool {
        let (levels, gpu) = self.lacking(without);
        levels.is_empty() && !gpu
    }

    /// Returns the smallest of these processes whose memory suffices, or else the fewest of them.
    fn enough(&self, may: impl Fn(&Holder) -> bool) -> Option<Vec<&Holder>> {
        let mut found: Vec<&Holder> = self.holders.iter().filter(|one| may(one)).collect();
        found.sort_by_key(|holder| std::cmp::Reverse(holder.in_use));
        if let Some(one) = found.iter().rev().find(|one| self.fits(&[one])) {
            return Some(vec![one]);
        }
        // A process that frees nothing where room is lacking is left out.
        let (levels, gpu) = self.lacking(&[]);
        found.retain(|one| gpu || levels.iter().any(|level| level.holds(one)));
        let count = (2..=found.len()).find(|count| self.fits(&found[..*count]))?;
        found.truncate(count);
        Some(found)
    }

    /// Returns what each place lacks: `lab` lacks 48.0 MiB, GPU 0 lacks 2.0 GiB.
    pub fn shortages(&self) -> String {
        let (levels, gpu) = self.lacking(&[]);
        let of =
            |name: &str, room: u64| format!("{name} lacks {}", gib(self.need.saturating_sub(room)));
        let levels = levels.into_iter();
        let groups = levels.map(|level| of(&format!("`{}`", level.name), level.room()));
        let gpu = gpu.then(|| of(&format!("GPU {}", self.gpu), self.free.unwrap_or(0)));
        groups.chain(gpu).collect::<Vec<_>>().join(", ")
    }

    /// Returns where room is lacking, for texts.
    fn place(&self) -> String {
        let (levels, _) = self.lacking(&[]);
        let gpu = || format!("GPU {}", self.gpu);
        levels
            .first()
            .map_or_else(gpu, |level| format!("`{}`", level.name))
    }
}

/// Returns what to do, the best first; empty if nothing that the caller can do or wait for makes
/// room.
pub fn advice(now: &Now) -> Vec<Advice> {
    match &now.host {
        Some(lacks) if now.fits(&[]) && !lacks.is_empty() => {
            return lacks.iter().map(|text| host(now.need, text)).collect();
        }
        _ if now.fits(&[]) => return vec![again(now)],
        _ => {}
    }
    let all = [
        expand(now),
        raise(now),
        lower(now),
        suspend(now),
        end(now),
        wait(now),
        smaller(now),
    ];
    all.into_iter().flatten().collect()
}

fn host(need: u64, text: &str) -> Advice {
    Advice {
        what: "host",
        figure: ("needed", need),
        text: text.to_owned(),
        ..Advice::default()
    }
}

/// PyTorch has enough memory, in blocks that are too small.
fn expand(now: &Now) -> Option<Advice> {
    let note = now.pytorch.as_ref().filter(|note| note.is_fragmented())?;
    Some(Advice {
        what: "expand",
        figure: ("unused", note.unused()),
        text: format!(
            "let PyTorch use all that it reserves: {} of that was free, in blocks of at most {}",
            gib(note.unused()),
            gib(note.largest_free)
        ),
        command: Some("PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True COMMAND".into()),
        ..Advice::default()
    })
}

fn again(now: &Now) -> Advice {
    let rooms = now.levels.iter().map(Level::room);
    let left = rooms.chain(now.unkept()).min().unwrap_or(u64::MAX);
    Advice {
        what: "again",
        figure: ("left", left),
        text: format!(
            "{}: {} is needed, and {} is left now",
            match now.has_ended {
                true => "start the program again",
                false => "repeat the request",
            },
            gib(now.need),
            gib(left)
        ),
        ..Advice::default()
    }
}

fn raise(now: &Now) -> Option<Advice> {
    let ([level], false) = (&*now.lacking(&[]).0, now.lacking(&[]).1) else {
        return None;
    };
    let (max, left) = (level.max?, level.left?);
    let lacking = now.need.saturating_sub(left);
    let size = above(max.checked_add(lacking)?);
    let device = match level.by_gpu {
        true => format!(" --device {}", now.gpu),
        false => String::new(),
    };
    let name = &level.name;
    let (max_text, lacking) = (gib(max), gib(lacking));
    let (text, command) = match level.is_gone {
        true => (
            format!(
                "start the program with {size}: its limit was {max_text}, and it lacked {lacking}"
            ),
            match name.rsplit_once('/') {
                Some((above, _)) => {
                    format!("gpulimit run --group {above} --max {size}{device} -- COMMAND")
                }
                None => {
                    let outside = &now.outside;
                    format!("{outside}gpulimit run --max {size}{device} -- COMMAND")
                }
            },
        ),
        false => (
            format!(
                "raise `{name}` to {size}: {} of its {max_text} is left, {lacking} too little{}",
                gib(left),
                if now.has_ended { " to start again" } else { "" }
            ),
            format!("gpulimit set {name} --max {size}{device}"),
        ),
    };
    level.may_set.then(|| Advice {
        what: "raise",
        figure: ("max", max),
        text,
        command: Some(command),
        ..Advice::default()
    })
}

/// Only `keep_free` keeps from the request what the GPU has.
fn lower(now: &Now) -> Option<Advice> {
    let level = now.keeper().filter(|level| level.may_set)?;
    let rest = now.free?.checked_sub(now.need)?;
    let (keep, by_gpu) = level.keep_free;
    let size = match below(rest) {
        0 => "0".to_owned(),
        bytes => format!("{}M", bytes >> 20),
    };
    let device = match by_gpu {
        true => format!(" --device {}", now.gpu),
        false => String::new(),
    };
    let name = &level.name;
    now.lacking(&[]).0.is_empty().then(|| Advice {
        what: "lower",
        figure: ("keep_free", keep),
        text: format!(
            "lower keep_free of `{name}` to {size}: it keeps {} of the GPU free, and {} is needed",
            gib(keep),
            gib(now.need)
        ),
        command: Some(format!("gpulimit set {name} --keep-free {size}{device}")),
        pids: Vec::new(),
    })
}

fn suspend(now: &Now) -> Option<Advice> {
    let found = now.enough(|one| one.may_suspend)?;
    // The room on the host was compared with the memory of one process.
    let [one] = found[..] else {
        return None;
    };
    let pid = one.pid?;
    Some(Advice {
        what: "suspend",
        figure: ("in_use", one.in_use),
        text: format!(
            "move {one} to the host until `gpulimit resume --pid {pid}`: it uses {} of {}",
            gib(one.in_use),
            now.place()
        ),
        command: Some(format!("gpulimit suspend --pid {pid}")),
        pids: vec![pid],
    })
}

fn end(now: &Now) -> Option<Advice> {
    let found = now.enough(|one| one.is_own && one.pid.is_some())?;
    let advice = named(now, "end", &found, "end what you no longer need:");
    let pids: Vec<String> = advice.pids.iter().map(u32::to_string).collect();
    Some(Advice {
        command: Some(format!("kill {}", pids.join(" "))),
        ..advice
    })
}

fn wait(now: &Now) -> Option<Advice> {
    let others = now.enough(|one| !one.is_own);
    let some = |all: &Vec<&Holder>| all.len() > 1 && all.iter().any(|one| !one.is_own);
    let found = others.or_else(|| now.enough(|_| true).filter(some))?;
    let mut advice = named(now, "wait", &found, "wait for the end of");
    let refuser = now.lacking(&[]).0.first().copied();
    if let Some(level) = refuser {
        if let Some(time) = level.wait {
            let time = rough_span(time);
            advice.text += &format!("; a request waits in `{}` for at most {time}", level.name);
        }
        if let Some((count, bytes)) = now.line {
            advice.text += &format!(
                "; before you {count} request{} for {} wait{}",
                if count == 1 { "" } else { "s" },
                gib(bytes),
                if count == 1 { "s" } else { "" },
            );
        }
    }
    Some(advice)
}

/// Returns advice that names processes with what they use.
fn named(now: &Now, what: &'static str, found: &[&Holder], begin: &str) -> Advice {
    let one = |one: &&Holder| {
        let user = match one.is_own {
            true => String::new(),
            false => format!(" of {}", one.user),
        };
        let place = if one.group.is_none() {
            ", outside of the groups"
        } else {
            ""
        };
        format!("{one}{user}, which uses {}{place}", gib(one.in_use))
    };
    let bytes = found.iter().map(|one| one.in_use).sum();
    let names = match found {
        [] | [_] | [_, _] | [_, _, _] => found.iter().map(one).collect::<Vec<_>>().join(" and "),
        [first, rest @ ..] => {
            let count = rest.len();
            format!(
                "{first} and {count} others, which use {} in all",
                gib(bytes)
            )
        }
    };
    Advice {
        what,
        figure: ("in_use", bytes),
        text: format!("{begin} {names}; {} lacks room", now.place()),
        pids: found.iter().filter_map(|one| one.pid).collect(),
        ..Advice::default()
    }
}

fn smaller(now: &Now) -> Option<Advice> {
    let rooms = now.levels.iter().map(Level::room);
    let left = rooms.chain(now.unkept()).chain(now.total).min()?;
    let bytes = below(left.checked_sub(now.beside)?);
    (bytes > 0).then(|| Advice {
        what: "smaller",
        figure: ("left", bytes),
        text: format!(
            "ask for less: up to {} fits{}{}",
            gib(bytes),
            match now.pytorch.as_ref().and_then(|note| note.batch(bytes)) {
                Some(batch) => format!("; a batch of {batch} does, by what `find_batch` measured"),
                None => String::new(),
            },
            match now.total.filter(|total| *total < now.need) {
                Some(total) => format!("; the GPU has {} in all", gib(total)),
                None => String::new(),
            }
        ),
        ..Advice::default()
    })
}

/// Returns whether a size is said in tenths of a GiB.
const fn is_large(bytes: u64) -> bool {
    bytes >= 1 << 30
}

/// Returns the largest size of whole units that is at most `bytes` and printed exactly.
fn below(bytes: u64) -> u64 {
    let bytes = bytes / BLOCK * BLOCK;
    match is_large(bytes) {
        true => tenths((u128::from(bytes) * 10) >> 30),
        false => bytes,
    }
}

/// Returns the smallest size for the command line that is at least `bytes`.
fn above(bytes: u64) -> String {
    if !is_large(bytes) {
        return format!("{}M", bytes.div_ceil(1 << 20));
    }
    let mut count = (u128::from(bytes) * 10) >> 30;
    while tenths(count) < bytes {
        count += 1;
    }
    format!("{}.{}G", count / 10, count % 10)
}

/// Returns tenths of a GiB in bytes, rounded down.
fn tenths(count: u128) -> u64 {
    u64::try_from((count << 30) / 10).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const MIB: u64 = 1 << 20;

    fn level(name: &str, max: u64, left: u64) -> Level {
        Level {
            name: name.into(),
            max: Some(max * MIB),
            left: Some(left * MIB),
            is_gone: false,
            by_gpu: false,
            keep_free: (0, false),
            may_set: true,
            wait: None,
        }
    }

    fn holder(pid: u32, group: Option<&str>, in_use: u64) -> Holder {
        Holder {
            pid: Some(pid),
            user: "bob".into(),
            command: "python".into(),
            group: group.map(str::to_owned),
            in_use: in_use * MIB,
            is_own: false,
            may_suspend: false,
        }
    }

    fn now(need: u64, levels: Vec<Level>, holders: Vec<Holder>) -> Now {
        Now {
            gpu: "0".into(),
            total: Some(80_000 * MIB),
            free: Some(40_000 * MIB),
            need: need * MIB,
            has_ended: false,
            beside: 0,
            levels,
            holders,
            line: None,
            host: None,
            pytorch: None,
            outside: String::new(),
        }
    }

    fn words(now: &Now) -> Vec<&'static str> {
        advice(now).iter().map(|advice| advice.what).collect()
    }

    fn first(now: &Now) -> Advice {
        advice(now).swap_remove(0)
    }

    #[test]
    fn one_mebibyte_decides_between_again_and_raise() {
        let lab = |left| now(1000, vec![level("lab", 3000, left)], vec![]);
        assert_eq!(words(&lab(1000)), ["again"]);
        assert_eq!(words(&lab(999)), ["raise", "smaller"]);
    }

    #[test]
    fn a_limit_is_raised_by_what_is_lacking() {
        let raised = first(&now(1024, vec![level("lab", 3072, 976)], vec![]));
        let command = raised.command.as_deref();
        assert_eq!(command, Some("gpulimit set lab --max 3.1G"));
        assert_eq!(raised.figure, ("max", 3072 * MIB));
        let text = "raise `lab` to 3.1G: 976.0 MiB of its 3.0 GiB is left, 48.0 MiB too little";
        assert_eq!(raised.text, text);
        let by_gpu = Level {
            by_gpu: true,
            ..level("lab", 500, 0)
        };
        let command = first(&now(100, vec![by_gpu], vec![])).command;
        assert_eq!(
            command.as_deref(),
            Some("gpulimit set lab --max 600M --device 0")
        );
        let gone = Level {
            is_gone: true,
            ..level("run-1", 500, 500)
        };
        let command = first(&now(600, vec![gone], vec![])).command;
        assert_eq!(
            command.as_deref(),
            Some("gpulimit run --max 600M -- COMMAND")
        );
    }

    #[test]
    fn a_limit_is_raised_only_if_nothing_else_lacks_room() {
        let mut lab = now(
            1000,
            vec![level("lab/a", 3000, 900), level("lab", 4000, 1000)],
            vec![],
        );
        assert_eq!(words(&lab), ["raise", "smaller"]);
        lab.free = Some(999 * MIB);
        assert_eq!(words(&lab), ["smaller"]);
        lab.free = None;
        lab.levels[1].left = Some(999 * MIB);
        assert_eq!(words(&lab), ["smaller"]);
        lab.levels[1] = Level {
            max: None,
            left: None,
            ..level("lab", 0, 0)
        };
        assert_eq!(words(&lab), ["raise", "smaller"]);
        lab.levels[0].may_set = false;
        assert_eq!(words(&lab), ["smaller"]);
    }

    #[test]
    fn nothing_is_advised_where_the_room_is_unknown() {
        let unknown = Level {
            left: None,
            ..level("lab", 3000, 0)
        };
        assert!(advice(&now(1000, vec![unknown], vec![])).is_empty());
    }

    #[test]
    fn the_smallest_process_that_suffices_is_awaited() {
        let lab = || Level {
            may_set: false,
            ..level("lab", 3000, 100)
        };
        let holders = [
            (1, "lab/a", 2000),
            (2, "lab", 900),
            (3, "other", 900),
            (4, "lab", 800),
        ];
        let holders = holders.map(|(pid, group, bytes)| holder(pid, Some(group), bytes));
        let waited = |need, holders: &[Holder]| first(&now(need, vec![lab()], holders.into()));
        let advice = waited(1000, &holders);
        assert_eq!((advice.what, &*advice.pids), ("wait", &[2][..]));
        let text = "wait for the end of process 2 (python) of bob, which uses 900.0 MiB; `lab` \
                    lacks room";
        assert_eq!(advice.text, text);
        assert_eq!(waited(1001, &holders).pids, [1]);
        let advice = waited(1800, &holders[1..]);
        assert_eq!((&*advice.pids, advice.figure.1), (&[2, 4][..], 1700 * MIB));
        assert_eq!(waited(1801, &holders[1..]).what, "smaller");
    }

    #[test]
    fn many_processes_are_counted() {
        let lab = Level {
            may_set: false,
            ..level("lab", 3000, 0)
        };
        let holders = (1..=9).map(|pid| Holder {
            is_own: true,
            ..holder(pid, Some("lab"), 100)
        });
        let lab = now(400, vec![lab], holders.collect());
        assert_eq!(words(&lab), ["end"], "nobody waits for own processes");
        let said = "process 1 (python) and 3 others, which use 400.0 MiB in all; `lab` lacks room";
        let advice = first(&lab);
        assert!(advice.text.ends_with(said), "{}", advice.text);
        assert_eq!(advice.command.as_deref(), Some("kill 1 2 3 4"));
    }

    #[test]
    fn a_wait_names_its_end_and_who_is_before() {
        let lab = Level {
            may_set: false,
            ..level("lab", 3000, 0)
        };
        let mut full = now(100, vec![lab], vec![holder(1, Some("lab"), 900)]);
        full.levels[0].wait = Some(Duration::from_secs(60));
        full.line = Some((2, 300 * MIB));
        let text = first(&full).text;
        let end = "; a request waits in `lab` for at most 1 min; before you 2 requests for 300.0 \
                   MiB wait";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn own_processes_are_suspended_or_ended() {
        let lab = Level {
            may_set: false,
            ..level("lab", 3000, 0)
        };
        let own = Holder {
            is_own: true,
            may_suspend: true,
            ..holder(1, Some("lab"), 900)
        };
        let mut full = now(100, vec![lab], vec![own]);
        let commands = |now: &Now| {
            let all = advice(now).into_iter().filter_map(|advice| advice.command);
            all.collect::<Vec<_>>()
        };
        assert_eq!(commands(&full), ["gpulimit suspend --pid 1", "kill 1"]);
        full.holders[0].may_suspend = false;
        assert_eq!(commands(&full), ["kill 1"]);
    }

    #[test]
    fn a_full_gpu_is_freed_by_processes_outside() {
        let outside = holder(7, None, 3000);
        let mut full = now(1000, vec![level("lab", 3000, 2000)], vec![outside]);
        full.free = Some(500 * MIB);
        let text = first(&full).text;
        let said = "process 7 (python) of bob, which uses 2.9 GiB, outside of the groups; GPU 0";
        assert!(text.contains(said), "{text}");
    }

    #[test]
    fn what_fits_is_said_exactly() {
        let less = |left: u64, held: u64| {
            let lab = Level {
                may_set: false,
                ..level("lab", 90_000, 0)
            };
            let mut lab = now(70_000, vec![lab], vec![]);
            lab.levels[0].left = Some(left);
            lab.beside = held;
            let found = advice(&lab);
            found.first().map(|advice| (advice.what, advice.figure.1))
        };
        assert_eq!(less(977 * MIB, 0), Some(("smaller", 976 * MIB)));
        assert_eq!(less(977 * MIB, 900 * MIB), Some(("smaller", 76 * MIB)));
        assert_eq!(less(1600 * MIB, 0), Some(("smaller", (15 << 30) / 10)));
        assert_eq!(less(1 << 20, 0), None);
        assert_eq!(less(100 * MIB, 200 * MIB), None);
    }

    #[test]
    fn a_request_larger_than_the_gpu_is_made_smaller() {
        let lab = Level {
            max: None,
            left: None,
            ..level("lab", 0, 0)
        };
        let advice = first(&now(90_000, vec![lab], vec![]));
        assert_eq!(advice.what, "smaller");
        assert!(
            advice.text.ends_with("the GPU has 78.1 GiB in all"),
            "{}",
            advice.text
        );
    }

    #[test]
    fn pytorchs_own_memory_comes_first_if_it_would_suffice() {
        let mut lab = now(1000, vec![level("lab", 3000, 0)], vec![]);
        let note = |reserved: u64, allocated: u64, expandable: bool| {
            let text = serde_json::json!({
                "pid": 1, "time_ms": 1, "asked": 1000 * MIB, "reserved": reserved * MIB,
                "allocated": allocated * MIB, "largest_free": 90 * MIB, "expandable": expandable,
            });
            serde_json::from_value(text).ok()
        };
        lab.pytorch = note(2500, 1500, false);
        assert_eq!(words(&lab), ["expand", "raise"]);
        assert!(first(&lab).text.ends_with("in blocks of at most 90.0 MiB"));
        for other in [
            note(2400, 1500, false),
            note(9000, 8000, false),
            note(2500, 1500, true),
        ] {
            lab.pytorch = other;
            assert_eq!(words(&lab), ["raise"]);
        }
    }

    #[test]
    fn a_batch_is_named_if_one_was_measured() {
        let lab = Level {
            may_set: false,
            ..level("lab", 3000, 400)
        };
        let mut lab = now(1000, vec![lab], vec![]);
        let said = |lab: &mut Now, reserved: u64, batch: Option<[u64; 3]>| {
            let text = serde_json::json!({
                "pid": 1, "time_ms": 1, "asked": 1000 * MIB, "reserved": reserved * MIB,
                "allocated": reserved * MIB, "largest_free": 0, "expandable": false,
                "batch": batch.map(|[count, took, each]| [count, took * MIB, each * MIB]),
            });
            lab.pytorch = serde_json::from_value(text).ok();
            assert!(lab.pytorch.is_some());
            first(lab).text
        };
        let fits = "ask for less: up to 400.0 MiB fits";
        let batch =
            |count| format!("{fits}; a batch of {count} does, by what `find_batch` measured");
        // 92 % of 2,000 MiB, of which a batch of 32 takes 1,600.
        assert_eq!(said(&mut lab, 1600, Some([32, 1600, 40])), batch(38));
        assert_eq!(said(&mut lab, 1600, Some([32, 2000, 40])), batch(28));
        for unknown in [None, Some([32, 3200, 40]), Some([32, 1600, 0])] {
            assert_eq!(said(&mut lab, 1600, unknown), fits);
        }
    }

    #[test]
    fn a_full_host_is_named_only_if_the_group_has_room() {
        let mut lab = now(1000, vec![level("lab", 3000, 1000)], vec![]);
        lab.host = Some(vec!["the host leaves 5 B".into()]);
        assert_eq!(first(&lab).what, "host");
        lab.host = Some(vec![]);
        assert_eq!(words(&lab), ["again"]);
        lab.levels[0].left = Some(0);
        assert_eq!(words(&lab), ["raise"]);
    }

    #[test]
    fn sizes_on_the_command_line_are_large_enough() {
        assert_eq!(above(500 * MIB + 1), "501M");
        assert_eq!(above(1 << 30), "1.0G");
        assert_eq!(above((1 << 30) + 1), "1.1G");
        assert_eq!(above(9 * (1 << 30) + 200 * MIB), "9.2G");
    }
}
