//! What gives a refused request room now: pure functions from figures to advice.

use super::{Holder, Level, Now, sum};
use crate::words::clock::rough_span;
use gpulimit_base::units::gib;
use gpulimit_group::is_within;
use serde::Serialize;

/// The driver gives memory by blocks of so many bytes.
pub const BLOCK: u64 = 2 << 20;

/// A thing to do, after which the refused request is granted.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Advice {
    /// `again`, `host`, `expand`, `raise`, `lower`, `suspend`, `end`, `wait` or `smaller`.
    #[serde(rename = "advice")]
    pub what: &'static str,
    /// The name of the figure that makes the advice true.
    pub figure: &'static str,
    /// That figure.
    pub bytes: u64,
    pub text: String,
    pub command: Option<String>,
    /// The processes that the advice names.
    pub pids: Vec<u32>,
}

impl Advice {
    fn new(what: &'static str, figure: &'static str, bytes: u64, text: String) -> Self {
        Self {
            what,
            figure,
            bytes,
            text,
            ..Self::default()
        }
    }

    /// Returns advice about processes, with what they use of the first full place.
    fn about(found: &[&Holder], full: &[Level], what: &'static str, begin: &str) -> Self {
        let bytes = sum(found.iter().map(|one| one.in_use));
        let names: Vec<String> = found.iter().map(|one| one.said()).collect();
        let names = match found {
            [first, _, _, _, ..] => {
                let (first, count, all) = (first.name(), found.len() - 1, gib(bytes));
                format!("{first} and {count} others, which use {all} in all")
            }
            _ => names.join(" and "),
        };
        let text = format!("{begin} {names}; {} lacks room", full[0].title());
        Self {
            pids: found.iter().filter_map(|one| one.pid).collect(),
            ..Self::new(what, "in_use", bytes, text)
        }
    }

    /// Adds the command that follows the advice.
    fn by(self, command: String) -> Self {
        let command = Some(command);
        Self { command, ..self }
    }
}

impl Level {
    /// Returns the bytes that can still be granted here. A group whose ledger the caller cannot
    /// read is taken for full.
    fn room(&self) -> u64 {
        self.max.map_or(u64::MAX, |_| self.left.unwrap_or(0))
    }

    /// Returns whether the memory of a process counts here.
    fn holds(&self, holder: &Holder) -> bool {
        let mut group = holder.group.iter();
        self.is_gpu || group.any(|group| is_within(group, &self.name))
    }

    fn title(&self) -> String {
        match self.is_gpu {
            true => self.name.clone(),
            false => format!("`{}`", self.name),
        }
    }
}

impl Holder {
    /// Names the process: `process 4711 (python)`.
    fn name(&self) -> String {
        match self.pid {
            Some(pid) if self.is_kept => {
                format!("the children of the ended process {pid} ({})", self.command)
            }
            Some(pid) => format!("process {pid} ({})", self.command),
            None => format!("a process ({}) of another pid namespace", self.command),
        }
    }

    /// Returns the process with its user and what it uses.
    fn said(&self) -> String {
        let user = (!self.is_own).then(|| format!(" of {}", self.user));
        let place = self.group.is_none().then_some(", outside of the groups");
        let (user, place) = (user.unwrap_or_default(), place.unwrap_or_default());
        let (name, bytes) = (self.name(), gib(self.in_use));
        format!("{name}{user}, which uses {bytes}{place}")
    }
}

impl Now {
    /// Returns all that must grant the request: the groups, and the GPU if its memory is known.
    pub fn places(&self) -> Vec<Level> {
        let keep = self.keeper().map_or(0, |level| level.keep_free.0);
        let gpu = self.free.map(|free| Level {
            name: format!("GPU {}", self.gpu),
            is_gpu: true,
            max: self.total,
            left: Some(free.saturating_sub(keep)),
            ..Level::default()
        });
        self.levels.iter().cloned().chain(gpu).collect()
    }

    /// Returns the places that lack room once these processes hold nothing.
    fn lacking(&self, without: &[&Holder]) -> Vec<Level> {
        let mut places = self.places();
        places.retain(|place| {
            let freed = without.iter().filter(|one| place.holds(one));
            place
                .room()
                .saturating_add(sum(freed.map(|one| one.in_use)))
                < self.need
        });
        places
    }

    pub fn fits(&self, without: &[&Holder]) -> bool {
        self.lacking(without).is_empty()
    }

    /// Returns the command line that starts an ended job again, with these options: in the lowest
    /// group above it that is left.
    fn run_again(&self, options: &str) -> String {
        let run = match self.levels.iter().find(|level| !level.is_gone) {
            Some(above) => format!("gpulimit run --group {}", above.name),
            None => format!("{}gpulimit run", self.outside),
        };
        format!("{run} {options} -- COMMAND")
    }

    /// Returns the group that keeps the most memory of the GPU free.
    fn keeper(&self) -> Option<&Level> {
        let keepers = self.levels.iter().filter(|level| level.keep_free.0 > 0);
        keepers.max_by_key(|level| level.keep_free.0)
    }

    /// Returns the smallest of these processes whose memory suffices, or else the fewest of them. A
    /// process that frees nothing where room is lacking is left out.
    fn enough(&self, may: impl Fn(&Holder) -> bool) -> Option<Vec<&Holder>> {
        let places = self.lacking(&[]);
        let frees = |one: &Holder| places.iter().any(|place| place.holds(one));
        let found = self.holders.iter().filter(|one| may(one) && frees(one));
        let found: Vec<&Holder> = found.collect();
        let one = found.iter().rev().map(std::slice::from_ref);
        let some = (2..=found.len()).map(|count| &found[..count]);
        one.chain(some)
            .find(|few| self.fits(few))
            .map(<[_]>::to_vec)
    }

    /// Returns what each place lacks, as far as the caller can read it: `lab` lacks 48.0 MiB, GPU 0
    /// lacks 2.0 GiB.
    pub fn shortages(&self) -> String {
        let lacks = |place: &Level| {
            let bytes = place.left.map(|left| gib(self.need.saturating_sub(left)));
            let bytes = bytes.map_or("an unknown amount".into(), |bytes| bytes.to_string());
            format!("{} lacks {bytes}", place.title())
        };
        let lacks: Vec<String> = self.lacking(&[]).iter().map(lacks).collect();
        lacks.join(", ")
    }

    /// Returns the least room of a place.
    fn left(&self) -> u64 {
        let rooms = self.places().iter().map(Level::room).min();
        rooms.unwrap_or(u64::MAX)
    }

    /// Returns the option for a setting that is for this GPU alone.
    fn device(&self, by_gpu: bool) -> String {
        let option = by_gpu.then(|| format!(" --device {}", self.gpu));
        option.unwrap_or_default()
    }
}

/// Returns what to do, the best first; empty if nothing that the caller can do or wait for makes
/// room.
pub fn advice(now: &Now) -> Vec<Advice> {
    let host = |text: &String| Advice::new("host", "needed", now.need, text.clone());
    let host: Vec<Advice> = now.host.iter().flatten().map(host).collect();
    let full = now.lacking(&[]);
    match full.is_empty() {
        true if host.is_empty() => vec![again(now)],
        true => host,
        false => {
            let all = [expand, raise, lower, suspend, end, wait, smaller];
            all.iter().filter_map(|advice| advice(now, &full)).collect()
        }
    }
}

fn again(now: &Now) -> Advice {
    let what = match now.has_ended {
        true => "start the program again",
        false => "repeat the request",
    };
    let (need, left) = (gib(now.need), now.left());
    let text = format!(
        "{what}: at least {need} is needed, and {} is left now",
        gib(left)
    );
    Advice::new("again", "left", left, text)
}

/// PyTorch has enough memory, in blocks that are too small.
fn expand(now: &Now, _: &[Level]) -> Option<Advice> {
    let note = now.pytorch.as_ref().filter(|note| note.is_fragmented())?;
    let (unused, largest) = (gib(note.unused()), gib(note.largest_free));
    let text = format!(
        "let PyTorch use all that it reserves: {unused} of that was free, in blocks of at most \
         {largest}"
    );
    let command = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True COMMAND";
    Some(Advice::new("expand", "unused", note.unused(), text).by(command.into()))
}

fn raise(now: &Now, full: &[Level]) -> Option<Advice> {
    let [level] = full else {
        return None;
    };
    let (name, max, left) = (&level.name, level.max?, level.left?);
    let lacking = now.need.saturating_sub(left);
    let size = above(max.checked_add(lacking)?);
    let set = format!("--max {size}{}", now.device(level.by_gpu));
    let (of, left, lacking) = (gib(max), gib(left), gib(lacking));
    let (text, command) = if level.is_gone {
        let why = format!("its limit was {of}, and this request lacked {lacking}");
        let text = format!("start the program with {size} or more: {why}");
        (text, now.run_again(&set))
    } else {
        let end = if now.has_ended { " to start again" } else { "" };
        let why = format!("{left} of its {of} is left, {lacking} too little{end}");
        let text = format!("raise `{name}` to {size}: {why}");
        (text, format!("gpulimit set {name} {set}"))
    };
    let advice = Advice::new("raise", "max", max, text).by(command);
    level.may_set.then_some(advice)
}

/// Only `keep_free` keeps from the request what the GPU has.
fn lower(now: &Now, full: &[Level]) -> Option<Advice> {
    let level = now.keeper().filter(|level| level.may_set)?;
    let rest = now.free?.checked_sub(now.need)?;
    let (name, (keep, by_gpu)) = (&level.name, level.keep_free);
    let size = format!("{}M", below(rest) >> 20);
    let (kept, need) = (gib(keep), gib(now.need));
    let why = format!("it keeps {kept} of the GPU free, and {need} is needed");
    let set = format!("--keep-free {size}{}", now.device(by_gpu));
    let (text, command) = match level.is_gone {
        true => (
            format!("start the program with a keep_free of {size}: {why}"),
            now.run_again(&set),
        ),
        false => (
            format!("lower keep_free of `{name}` to {size}: {why}"),
            format!("gpulimit set {name} {set}"),
        ),
    };
    let is_alone = full.iter().all(|place| place.is_gpu);
    is_alone.then(|| Advice::new("lower", "keep_free", keep, text).by(command))
}

fn suspend(now: &Now, full: &[Level]) -> Option<Advice> {
    // The room on the host was compared with the memory of one process.
    let found = now.enough(|one| one.may_suspend)?;
    let [one] = found[..] else {
        return None;
    };
    let pid = one.pid?;
    let begin = format!("move to the host, until `gpulimit resume --pid {pid}`:");
    let advice = Advice::about(&found, full, "suspend", &begin);
    Some(advice.by(format!("gpulimit suspend --pid {pid}")))
}

fn end(now: &Now, full: &[Level]) -> Option<Advice> {
    let found = now.enough(|one| one.is_own && one.pid.is_some())?;
    let advice = Advice::about(&found, full, "end", "end what you no longer need:");
    let pids: String = advice.pids.iter().map(|pid| format!(" {pid}")).collect();
    Some(advice.by(format!("kill{pids}")))
}

fn wait(now: &Now, full: &[Level]) -> Option<Advice> {
    let others = now.enough(|one| !one.is_own);
    let found = others.or_else(|| now.enough(|_| true))?;
    if found.iter().all(|one| one.is_own) {
        return None;
    }
    let mut advice = Advice::about(&found, full, "wait", "wait for the end of");
    let full = &full[0];
    if let Some(time) = full.wait.map(rough_span) {
        advice.text += &format!("; a request waits in `{}` for at most {time}", full.name);
    }
    if let Some((count, bytes)) = now.line.filter(|_| !full.is_gpu) {
        let some = |one, several| if count == 1 { one } else { several };
        let (requests, wait) = (some("request", "requests"), some("waits", "wait"));
        advice.text += &format!("; before you {count} {requests} for {} {wait}", gib(bytes));
    }
    Some(advice)
}

fn smaller(now: &Now, _: &[Level]) -> Option<Advice> {
    let bytes = below(now.left().checked_sub(now.beside)?);
    let mut text = format!("ask for less: up to {} fits", gib(bytes));
    if let Some(batch) = now.pytorch.as_ref().and_then(|note| note.batch(bytes)) {
        text += &format!("; a batch of {batch} does, by what `find_batch` measured");
    }
    if let Some(total) = now.total.filter(|total| *total < now.need) {
        text += &format!("; the GPU has {} in all", gib(total));
    }
    (bytes > 0).then(|| Advice::new("smaller", "left", bytes, text))
}

/// From this size on, sizes are said in tenths of a GiB.
const GIB: u64 = 1 << 30;

/// Returns the largest size of whole units that is at most `bytes` and printed exactly.
fn below(bytes: u64) -> u64 {
    match bytes / BLOCK * BLOCK {
        bytes @ ..GIB => bytes,
        bytes => (((u128::from(bytes) * 10) >> 30 << 30) / 10) as u64,
    }
}

/// Returns the smallest size for the command line that is at least `bytes`.
fn above(bytes: u64) -> String {
    if bytes < GIB {
        return format!("{}M", bytes.div_ceil(1 << 20));
    }
    let tenths = (u128::from(bytes) * 10).div_ceil(GIB.into());
    format!("{}.{}G", tenths / 10, tenths % 10)
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
            is_gpu: false,
        }
    }

    fn holder(pid: u32, group: Option<&str>, in_use: u64) -> Holder {
        Holder {
            pid: Some(pid),
            user: "bob".into(),
            command: "python".into(),
            group: group.map(str::to_owned),
            in_use: in_use * MIB,
            is_kept: false,
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
        assert_eq!((raised.figure, raised.bytes), ("max", 3072 * MIB));
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
        let gone = |name| Level {
            is_gone: true,
            ..level(name, 500, 500)
        };
        let command = first(&now(600, vec![gone("run-1")], vec![])).command;
        assert_eq!(
            command.as_deref(),
            Some("gpulimit run --max 600M -- COMMAND")
        );
        // The job around it has ended, too, and the group `lab` is still there.
        let levels = vec![gone("lab/run-1/run-2"), level("lab", 3000, 900)];
        let command = first(&now(600, levels, vec![])).command;
        assert_eq!(
            command.as_deref(),
            Some("gpulimit run --group lab --max 600M -- COMMAND")
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
        assert_eq!((&*advice.pids, advice.bytes), (&[2, 4][..], 1700 * MIB));
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
    fn what_a_group_lacks_is_said_if_the_caller_may_know_it() {
        let mut lab = now(1000, vec![level("lab", 3000, 400)], vec![]);
        assert_eq!(lab.shortages(), "`lab` lacks 600.0 MiB");
        lab.levels[0].left = None;
        assert_eq!(lab.shortages(), "`lab` lacks an unknown amount");
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
            found.first().map(|advice| (advice.what, advice.bytes))
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
