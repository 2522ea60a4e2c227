//! The storm: processes of all kinds at one limit, killed, stopped and forked at random, while
//! their limits change.

use std::collections::VecDeque;
use std::fs::File;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use gpulimit_ledger::{EventKind, NoWitness};
use gpulimit_programs::world::{self, BLOCK, MIB, Session, World, eventually};

use crate::crowd::{Ended, Nursery, signal};
use crate::judge::{Judge, Verdict};
use crate::program::{self, Climate};
use gpulimit_support::{Random, patience, seed};

/// Bytes of a context, so small that many fit below a limit.
const CONTEXT: &str = "10485760";
/// The number of last actions that are printed after a failure.
const REMEMBERED: usize = 40;

/// Returns a number from the environment.
pub fn setting(name: &str, otherwise: u64) -> u64 {
    let text = std::env::var(format!("GPULIMIT_STORM_{name}")).ok();
    text.map_or(otherwise, |text| {
        text.parse()
            .unwrap_or_else(|_| panic!("GPULIMIT_STORM_{name}={text}: not a number"))
    })
}

/// Returns one of these.
pub fn one_of<T: Copy>(random: &mut Random, choices: &[T]) -> T {
    choices[random.usize(..choices.len())]
}

/// The figures of a storm.
#[derive(Default)]
struct Tally {
    processes: u64,
    killed: u64,
    /// Killed processes that had a context.
    killed_on_gpu: u64,
    stopped: u64,
    exits: u64,
    commands: u64,
    limits: u64,
    /// Requests of the world's group that have asked for memory.
    asked: u64,
    epochs: u64,
    verdict: Verdict,
    longest: Duration,
}

/// An epoch: a world, a limit that is never passed, and everything that happens in it.
struct Storm {
    numbers: Random,
    climate: Climate,
    world: World,
    cap: u64,
    nurseries: Vec<Nursery>,
    judge: Judge,
    /// Programs that live through the epoch, with their memory beside contexts.
    survivors: Vec<Session>,
    stopped: Vec<i32>,
    controller: Option<(String, Child, Instant)>,
    last: VecDeque<String>,
    tally: Tally,
}

/// The groups of an epoch below the world's, with their settings.
const GROUPS: &[(&str, &[&str])] = &[
    ("narrow", &["max=700M", "pressure_timeout=30ms"]),
    ("kept", &["min=300M", "low=400M"]),
    (
        "patient",
        &["on_limit=wait", "wait_timeout=300ms", "high=500M"],
    ),
];

impl Storm {
    fn begin(seed: u64, climate: Climate) -> Storm {
        let mut numbers = Random::with_seed(seed);
        let cap = (1500 + 500 * numbers.usize(..8) as u64) * MIB;
        let lag = one_of(&mut numbers, &["0", "5", "30", "120"]);
        let knobs = [
            ("GPULIMIT_SIM_CONTEXT_BYTES", CONTEXT),
            ("GPULIMIT_SIM_KILL_LAG_MS", lag),
        ];
        let world = World::with(cap, &knobs);
        world.settings(&["pressure_timeout=20ms"]);
        let groups: Vec<String> = GROUPS
            .iter()
            .map(|(name, settings)| world.below(name, settings).name().to_owned())
            .chain([world::GROUP.to_owned()])
            .collect();
        let survivors: Vec<Session> = (0..2)
            .map(|_| {
                let mut program = world.on_gpu();
                program.expect(&[("alloc a 20M", "0"), ("create b 10M 0", "0")]);
                program
            })
            .collect();
        let nurseries = groups.iter().map(|group| Nursery::open(&world, group));
        let nurseries: Vec<Nursery> = nurseries.collect();
        program::prepare(&world.file(""));
        Storm {
            judge: Judge::watch(&world, cap, 100),
            numbers,
            climate,
            cap,
            nurseries,
            survivors,
            stopped: Vec::new(),
            controller: None,
            last: VecDeque::new(),
            tally: Tally::default(),
            world,
        }
    }

    fn note(&mut self, action: String) {
        if self.last.len() == REMEMBERED {
            self.last.pop_front();
        }
        self.last.push_back(action);
    }

    /// Returns the pid of a random live process.
    fn any(&mut self) -> Option<i32> {
        let living: Vec<i32> = self.nurseries.iter().flat_map(Nursery::living).collect();
        (!living.is_empty()).then(|| living[self.numbers.usize(..living.len())])
    }

    fn act(&mut self, processes: usize) -> Result<(), String> {
        if self.numbers.usize(..8) == 0 {
            self.reap()?;
        }
        let living: usize = self.nurseries.iter().map(|one| one.living().len()).sum();
        if living < processes {
            let seed = self.numbers.u64(..);
            let script = program::script(seed, self.climate, &self.world.file(""));
            let which = self.numbers.usize(..self.nurseries.len());
            let pid = self.nurseries[which].spawn(&script);
            self.tally.processes += 1;
            self.note(format!("spawn {pid}, seed {seed}, in nursery {which}"));
            return Ok(());
        }
        match self.numbers.usize(..1000) {
            0..800 => self.kill(),
            800..870 => self.stop(),
            870..940 => self.resume(),
            940..970 => self.survive()?,
            970..985 => self.control()?,
            985..993 => self.limit(),
            _ => self.slow_down(),
        }
        Ok(())
    }

    fn kill(&mut self) {
        if let Some(pid) = self.any() {
            signal(pid, libc::SIGKILL);
            self.note(format!("kill {pid}"));
        }
    }

    fn stop(&mut self) {
        // Some processes keep running, so that their progress shows.
        if self.stopped.len() < 12
            && let Some(pid) = self.any()
        {
            signal(pid, libc::SIGSTOP);
            self.stopped.push(pid);
            self.tally.stopped += 1;
            self.note(format!("stop {pid}"));
        }
    }

    fn resume(&mut self) {
        if !self.stopped.is_empty() {
            let which = self.numbers.usize(..self.stopped.len());
            let pid = self.stopped.swap_remove(which);
            if self.nurseries.iter().any(|nursery| nursery.has(pid)) {
                signal(pid, libc::SIGCONT);
                self.note(format!("continue {pid}"));
            }
        }
    }

    /// A survivor allocates and frees: dead or stopped processes never keep it from that.
    fn survive(&mut self) -> Result<(), String> {
        let which = self.numbers.usize(..self.survivors.len());
        let began = Instant::now();
        let survivor = &mut self.survivors[which];
        for (take, give) in [
            ("alloc c 5M", "free c"),
            ("async d 1M", "free-async d;sync"),
        ] {
            // There may be no room.
            let answer = survivor.say(take);
            if answer == "0" {
                for line in give.split(';') {
                    let answer = survivor.say(line);
                    if answer != "0" {
                        return Err(format!("a survivor's {line}: {answer}"));
                    }
                }
            } else if answer != "2" {
                return Err(format!("a survivor's {take}: {answer}"));
            }
        }
        self.tally.longest = self.tally.longest.max(began.elapsed());
        Ok(())
    }

    /// Runs a command of the controller, beside all other processes.
    fn control(&mut self) -> Result<(), String> {
        self.controlled(false)?;
        if self.controller.is_some() {
            return Ok(());
        }
        let commands = [
            "ps",
            "show --names",
            "show --tree",
            "show",
            "events",
            "gc",
            "get world max",
            "kill --signal KILL world/narrow",
            "kill --signal TERM world/patient",
            "show --json",
            "ps world/kept",
            "kill --signal CONT world",
        ];
        let mut line = one_of(&mut self.numbers, &commands).to_owned();
        if self.numbers.u8(..100) < 30 {
            let max = self.cap / 4 * (1 + self.numbers.usize(..4) as u64);
            line = format!("set world max={max}");
            self.tally.limits += 1;
        }
        let errors = File::create(self.world.file("errors")).expect("a file");
        let child = self
            .world
            .bare(&world::controller())
            .args(line.split(' '))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("the controller starts");
        self.tally.commands += 1;
        self.note(format!("gpulimit {line}"));
        self.controller = Some((line, child, Instant::now()));
        Ok(())
    }

    /// Checks the result of the last command, once it has ended.
    fn controlled(&mut self, to_the_end: bool) -> Result<(), String> {
        let Some((line, child, began)) = &mut self.controller else {
            return Ok(());
        };
        let mut ended = None;
        let mut has_ended = || {
            ended = child.try_wait().expect("a child");
            ended.is_some()
        };
        let hangs = match to_the_end {
            true => !eventually(has_ended),
            false => !has_ended() && began.elapsed() > patience(),
        };
        if hangs {
            return Err(format!("gpulimit {line} hangs"));
        }
        let Some(status) = ended else {
            return Ok(());
        };
        let errors = std::fs::read_to_string(self.world.file("errors"));
        let line = std::mem::take(line);
        self.controller = None;
        // The process to be signalled may be gone.
        if !status.success() && !line.starts_with("kill") {
            return Err(format!("gpulimit {line}: {status}: {errors:?}"));
        }
        Ok(())
    }

    /// Sets another limit, but none above that of the epoch.
    fn limit(&mut self) {
        let cap = self.cap / 8 * (1 + self.numbers.usize(..8) as u64);
        self.world.set(cap);
        self.tally.limits += 1;
        self.note(format!("limit {cap}"));
    }

    /// Makes the driver slow, or fast again.
    fn slow_down(&mut self) {
        let latency = one_of(
            &mut self.numbers,
            &[
                "0",
                "0",
                "cuMemAlloc_v2:300000,cuMemFree_v2:100000",
                "cuMemCreate:50000,cuMemRelease:50000,cuMemUnmap:100000",
                "3000",
            ],
        );
        self.world.machine().knob("latency", latency);
        self.note(format!("latency {latency}"));
    }

    fn reap(&mut self) -> Result<(), String> {
        if let Some(objection) = self.judge.objection() {
            return Err(format!("the judge: {objection}"));
        }
        for which in 0..self.nurseries.len() {
            for ended in self.nurseries[which].reap() {
                self.stopped.retain(|pid| *pid != ended.pid);
                self.count(&ended)?;
            }
        }
        Ok(())
    }

    fn count(&mut self, ended: &Ended) -> Result<(), String> {
        let (script, log) = ended.files.clone().unwrap_or_default();
        // The process was refused its stream and gave up. Processes that it left behind write to
        // the same log.
        let gave_up = ended.files.is_none() || log.contains("gpu-script: no work\n");
        let expected = match ended.code {
            code if code == 0 || code == 7 || (code == 2 && gave_up) => {
                self.tally.exits += 1;
                true
            }
            killed if killed == -libc::SIGKILL || killed == -libc::SIGTERM => {
                self.tally.killed += 1;
                self.tally.killed_on_gpu += u64::from(log.contains("start = 0 0"));
                true
            }
            _ => false,
        };
        if expected && !log.contains("panicked") {
            return Ok(());
        }
        Err(format!(
            "{} ended with {}\nits program:\n{script}\nits answers:\n{log}",
            ended.pid, ended.code
        ))
    }

    /// Kills every process except the survivors. Then the usage must be theirs alone, and zero once
    /// they have ended.
    fn end(mut self) -> Result<Tally, String> {
        self.controlled(true)?;
        let (mut living, mut reaped) = (Vec::new(), Ok(()));
        let dead = eventually(|| {
            living = self.nurseries.iter().flat_map(Nursery::living).collect();
            for pid in &living {
                signal(*pid, libc::SIGKILL);
            }
            reaped = self.reap();
            living.is_empty() || reaped.is_err()
        });
        reaped?;
        if !dead {
            return Err(format!("not dead: {living:?}"));
        }
        self.world.set(self.cap);
        let alone = || {
            let gpu = self.world.machine().gpu(0);
            let own = |pid| self.survivors.iter().any(|program| program.pid() == pid);
            gpu.holders.iter().all(|holder| own(holder.pid))
        };
        if !eventually(alone) {
            return Err(format!(
                "others still have memory: {:?}",
                self.world.machine().gpus()
            ));
        }
        // A process that needs all the memory gets it, except the memory kept for a group, and the
        // reserves of processes and pools.
        let room = self.cap - self.world.machine().used() - (300 + 80) * MIB;
        for _ in 0..2 {
            for survivor in &mut self.survivors {
                let answers = [format!("alloc all {room}"), "free all".to_owned()]
                    .map(|line| survivor.say(&line));
                if answers != ["0", "0"] {
                    return Err(format!(
                        "{room} bytes are free, but not for a survivor: {answers:?}: {:#?}",
                        self.world.ledger().processes(&NoWitness)
                    ));
                }
            }
        }
        self.world.bury();
        let gpu = self.world.machine().gpu(0);
        let (used, counted) = (gpu.used, self.world.counted(0));
        // A little shared memory that NVML attributes to no process may be left out
        // (docs/internals/bounds.md).
        let owned: u64 = gpu.holders.iter().map(|holder| holder.bytes).sum();
        if !(owned.saturating_sub(BLOCK)..=used + BLOCK).contains(&counted) {
            return Err(format!(
                "the driver holds {used}, the ledger counts {counted}: {gpu:?} {:#?}",
                self.world.ledger().processes(&NoWitness)
            ));
        }
        self.tally.verdict = self
            .judge
            .end()
            .map_err(|objection| format!("the judge: {objection}"))?;
        self.nurseries.clear();
        self.tally.asked = self.world.ledger().event_count(EventKind::Asked);
        for survivor in self.survivors.drain(..) {
            survivor.end();
        }
        // Memory that has left its exporter is charged late: the judge's looks decide then, not the
        // machine's peak.
        let peak = if self.climate.sharing {
            u64::MAX
        } else {
            self.cap
        };
        self.world.judge_end(peak);
        Ok(self.tally)
    }
}

/// Runs storms for this time, each with a world of its own.
fn blow(name: &str, climate: Climate, seconds: u64, processes: usize) {
    let seed = seed();
    let epoch = Duration::from_secs(setting("EPOCH", 20).min(seconds));
    // The controller is built before a process needs it.
    world::controller();
    println!("{name}: seed {seed}, {seconds} s, {processes} processes");
    let (began, mut all) = (Instant::now(), Tally::default());
    while began.elapsed() < Duration::from_secs(seconds) {
        let own = seed + all.epochs;
        let mut storm = Storm::begin(own, climate);
        let (start, mut failed) = (Instant::now(), None);
        while start.elapsed() < epoch && failed.is_none() {
            failed = storm.act(processes).err();
        }
        if let Some(why) = failed {
            let last: Vec<String> = storm.last.drain(..).collect();
            panic!(
                "{name}: GPULIMIT_TEST_SEED={own}: {why}\nbefore that:\n  {}",
                last.join("\n  ")
            );
        }
        let tally = storm
            .end()
            .unwrap_or_else(|why| panic!("{name}: GPULIMIT_TEST_SEED={own}, at the end: {why}"));
        all.epochs += 1;
        all.processes += tally.processes;
        all.killed += tally.killed;
        all.killed_on_gpu += tally.killed_on_gpu;
        all.stopped += tally.stopped;
        all.exits += tally.exits;
        all.commands += tally.commands;
        all.limits += tally.limits;
        all.asked += tally.asked;
        all.longest = all.longest.max(tally.longest);
        let (sum, more) = (&mut all.verdict, tally.verdict);
        sum.least = if all.epochs == 1 {
            more.least
        } else {
            sum.least.min(more.least)
        };
        sum.looks += more.looks;
        sum.compared += more.compared;
    }
    let Tally {
        processes: born,
        killed,
        killed_on_gpu,
        stopped,
        exits,
        commands,
        limits,
        asked,
        epochs,
        verdict,
        longest,
    } = all;
    println!(
        "{name}: {} s, {epochs} worlds, {processes} at a time, {born} processes, {killed} killed \
            ({killed_on_gpu} with a context), {stopped} stopped, {exits} exits, \
         {commands} commands of the controller, {limits} changes of limits, \
         {asked} requests asked others; {} looks of the judge, \
         {} of them exact, ledger ahead by at least {} bytes; \
         a survivor's four calls took {longest:?} at most",
        began.elapsed().as_secs(),
        verdict.looks,
        verdict.compared,
        verdict.least
    );
    assert!(killed > 0 && verdict.compared > 0);
}

#[test]
fn a_storm_of_processes_keeps_to_the_limit() {
    let (seconds, processes) = (setting("SECONDS", 8), setting("PROCESSES", 16));
    blow(
        "storm",
        Climate { sharing: false },
        seconds,
        processes as usize,
    );
}

#[test]
fn a_storm_with_shared_memory_keeps_to_the_limit() {
    let (seconds, processes) = (setting("SECONDS", 5), setting("PROCESSES", 12));
    blow(
        "shared",
        Climate { sharing: true },
        seconds,
        processes as usize,
    );
}
