//! Runs a case in another process, in three ways: without the library, with the library preloaded,
//! and with the library and a limit.

use crate::case::{Axis, Case, Point, START};
use gpulimit_base::units::Size;
use gpulimit_group::Root;
use gpulimit_limits::{Key, LimitSet, Selector};
use gpulimit_support::Scratch;
use std::cell::Cell;
use std::error::Error;
use std::ffi::OsString;
use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

/// A way to run the measured program: with or without the library, with or without a limit.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Way {
    /// Without the library.
    Bare,
    /// With the library preloaded, but without a limit.
    Preloaded,
    /// With the library preloaded and a limit that is never reached.
    Limited,
}

impl Way {
    /// Returns the ways to measure at `point`. The axes make no difference without a limit, so the
    /// way without a limit is measured only at usual points.
    pub fn for_point(point: Point) -> &'static [Way] {
        if point.is_usual() {
            &[Way::Bare, Way::Preloaded, Way::Limited]
        } else {
            &[Way::Bare, Way::Limited]
        }
    }
}

/// The results of one run of a worker, in nanoseconds.
#[derive(Clone, Copy)]
pub struct Time {
    /// Processor time of one iteration of the operation.
    pub processor: f64,
    /// Elapsed time divided by the number of iterations of all threads.
    pub interval: f64,
}

/// The resident memory of one worker process, in bytes.
#[derive(Clone, Copy)]
pub struct Resident {
    pub all: u64,
    /// Private memory of the process: neither pages of files nor shared memory.
    pub own: u64,
    /// Memory of the driver's NVML library, which gpulimit loads when it needs figures from the
    /// driver.
    pub nvml: u64,
}

/// The number of times that a program is started to measure its start; the shortest time counts.
const STARTS: u32 = 20;
/// The number of iterations for which callgrind counts instructions.
const COUNTED: u32 = 500;
/// The limit of the measured processes in bytes, which they never reach.
const LIMIT: u64 = 64 << 30;
/// The memory that is protected for each group beside that of the measured process, in bytes.
const PROTECTED: u64 = 16 << 20;
/// The names of the groups nested in the outermost group.
const BELOW: [&str; 7] = ["b", "c", "d", "e", "f", "g", "h"];

/// The files and folders that all measurements need.
pub struct Setup {
    library: PathBuf,
    worker: PathBuf,
    root: Scratch,
    callgrind: bool,
    /// The number of top-level groups made so far. Each measurement gets a new top-level group.
    trees: Cell<u32>,
}

impl Setup {
    /// Prepares measurements of the preloaded library `library`. Counts instructions only if
    /// `callgrind` is true and valgrind is installed.
    pub fn new(library: PathBuf, callgrind: bool) -> Result<Self, Box<dyn Error>> {
        let has_valgrind = || {
            let version = Command::new("valgrind").arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        };
        if callgrind && !has_valgrind() {
            eprintln!(
                "valgrind is missing: instructions are not counted (Debian: apt install valgrind)"
            );
        }
        let root = Scratch::in_memory();
        fs::set_permissions(&*root, Permissions::from_mode(0o700))?;
        Ok(Setup {
            library: library.canonicalize()?,
            worker: std::env::current_exe()?,
            root,
            callgrind: callgrind && has_valgrind(),
            trees: Cell::new(0),
        })
    }

    /// Makes the group for measurements at `point`, and starts the group's idle members.
    pub fn place(&self, point: Point) -> Result<Place<'_>, Box<dyn Error>> {
        let shares = [Axis::Members, Axis::Rivals, Axis::Depth, Axis::Protected];
        if !point.axis.is_some_and(|axis| shares.contains(&axis)) {
            return Ok(Place {
                setup: self,
                point,
                group: None,
                crowd: None,
            });
        }
        let root = Root::at(&*self.root)?;
        // Each measurement gets a new top-level group, so that the group's ledger has no slots of
        // processes from an earlier measurement.
        let top = format!("tree-{}", self.trees.replace(self.trees.get() + 1));
        let mut group = String::new();
        let depth = match point.axis {
            Some(Axis::Protected) => 2,
            _ => point.at(Axis::Depth) as usize,
        };
        for name in [&*top].into_iter().chain(BELOW).take(depth) {
            let above = if group.is_empty() { "" } else { "/" };
            group = format!("{group}{above}{name}");
            root.create(&group, &LimitSet::all(Size::Bytes(LIMIT)))?;
        }
        for number in 0..point.at(Axis::Protected) {
            let mut limits = LimitSet::default();
            limits.set(Selector::All, Key::Min, Size::Bytes(PROTECTED));
            root.create(&format!("{top}/protected-{number}"), &limits)?;
        }
        let mut place = Place {
            setup: self,
            point,
            group: Some(group),
            crowd: None,
        };
        if point.at(Axis::Members) > 1 {
            place.crowd = Some(place.crowd(point.at(Axis::Members) - 1)?);
        }
        Ok(place)
    }
}

/// A group for measurements, and its idle members. Dropping this value ends the idle members.
pub struct Place<'a> {
    setup: &'a Setup,
    point: Point,
    /// The group's name. With `None`, every program with a limit gets a new group for itself.
    group: Option<String>,
    crowd: Option<Companion>,
}

impl Place<'_> {
    /// Measures a case several times. Returns the shortest time of an iteration or a program start.
    pub fn time(&self, case: &Case, way: Way) -> Result<Time, Box<dyn Error>> {
        if case.is_whole_program() {
            return self.start(case, way);
        }
        let rivals = (0..self.point.at(Axis::Rivals))
            .map(|_| Companion::start(self.worker(way, "rival", case)))
            .collect::<Result<Vec<_>, _>>()?;
        let (said, _) = text(&mut self.worker(way, "time", case))?;
        drop(rivals);
        let mut figures = said.split_whitespace().map(str::parse);
        let mut next = || {
            figures
                .next()
                .ok_or("the benchmark worker printed too few numbers")
        };
        Ok(Time {
            processor: next()??,
            interval: next()??,
        })
    }

    fn start(&self, case: &Case, way: Way) -> Result<Time, Box<dyn Error>> {
        let words = self.program(case);
        let mut best = f64::INFINITY;
        for _ in 0..STARTS {
            let mut program = self.prepared(Command::new(&words[0]), way);
            program.args(&words[1..]);
            let started = Instant::now();
            let status = program.status()?;
            best = best.min(started.elapsed().as_nanos() as f64);
            if !status.success() {
                return Err(format!("{program:?}: {status}").into());
            }
        }
        Ok(Time {
            processor: best,
            interval: best,
        })
    }

    /// Returns the number of instructions of one iteration, or of one program start; `None` if they
    /// are not counted. They are not counted with several threads or processes, because the number
    /// varies between runs.
    pub fn instructions(&self, case: &Case, way: Way) -> Result<Option<f64>, Box<dyn Error>> {
        let several = self.point.at(Axis::Threads) > 1 || self.point.at(Axis::Rivals) > 0;
        if !self.setup.callgrind || several {
            return Ok(None);
        }
        let mut valgrind = self.prepared(Command::new("valgrind"), way);
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        let times = if case.is_whole_program() {
            valgrind.args(self.program(case));
            1
        } else {
            // Callgrind only counts instructions inside the worker's function `measured`.
            valgrind.arg("--toggle-collect=measured");
            valgrind.arg(&self.setup.worker);
            valgrind.args(self.arguments("count", case));
            valgrind.arg(COUNTED.to_string());
            COUNTED
        };
        let (_, report) = text(&mut valgrind)?;
        // A child of the library reports as well; it counts nothing.
        let counts = report.lines().filter_map(|line| {
            let (_, count) = line.split_once("Collected :")?;
            count.trim().parse::<u64>().ok()
        });
        let collected = (counts.max().filter(|count| *count > 0))
            .ok_or_else(|| format!("callgrind counted no instructions: {report}"))?;
        Ok(Some(collected as f64 / f64::from(times)))
    }

    /// Returns the resident memory of a worker process while it holds all its allocations.
    pub fn resident(&self, case: &Case, way: Way) -> Result<Resident, Box<dyn Error>> {
        let (said, _) = text(&mut self.worker(way, "memory", case))?;
        let mut figures = said.split_whitespace().map(str::parse);
        let mut next = || {
            figures
                .next()
                .ok_or("the benchmark worker printed too few numbers")
        };
        Ok(Resident {
            all: next()??,
            own: next()??,
            nvml: next()??,
        })
    }

    /// Returns the command line of the program that a case starts and ends.
    fn program(&self, case: &Case) -> Vec<OsString> {
        if case.name == START {
            return vec!["/bin/true".into()];
        }
        let arguments = self.arguments("first", case).map(OsString::from);
        [self.setup.worker.clone().into()]
            .into_iter()
            .chain(arguments)
            .collect()
    }

    fn worker(&self, way: Way, how: &str, case: &Case) -> Command {
        let mut worker = self.prepared(Command::new(&self.setup.worker), way);
        worker.args(self.arguments(how, case));
        worker
    }

    fn arguments(&self, how: &str, case: &Case) -> [String; 5] {
        let count = |axis| self.point.at(axis).to_string();
        let words = ["worker", how, case.name].map(String::from);
        let [worker, how, case] = words;
        [worker, how, case, count(Axis::Live), count(Axis::Threads)]
    }

    fn crowd(&self, count: u32) -> Result<Companion, Box<dyn Error>> {
        let mut crowd = self.prepared(Command::new(&self.setup.worker), Way::Bare);
        crowd.arg("crowd").arg(&*self.setup.root);
        crowd.args([
            self.group.as_deref().unwrap_or_default(),
            &count.to_string(),
        ]);
        Companion::start(crowd)
    }

    /// Returns `command` with the environment variables for this way of running. Valgrind passes
    /// them on to the program that it runs.
    fn prepared(&self, mut command: Command, way: Way) -> Command {
        let foreign =
            |name: &str| name.starts_with("GPULIMIT_") && !name.starts_with("GPULIMIT_SIM");
        for (name, _) in std::env::vars().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        command
            .env("GPULIMIT_ROOT", &*self.setup.root)
            .env_remove("LD_PRELOAD");
        if way != Way::Bare {
            command.env("LD_PRELOAD", &self.setup.library);
        }
        if way == Way::Limited {
            match &self.group {
                Some(group) => command.env("GPULIMIT_GROUP", group),
                None => {
                    // The program would look at all processes before it removes the group of the
                    // program before it.
                    let root = Root::at(&*self.setup.root);
                    let _ = root.map(|root| root.collect_garbage());
                    command.env("GPULIMIT_MAX", LIMIT.to_string())
                }
            };
        }
        command
    }
}

/// A process that runs during a measurement, beside the measured process. It prints `ready` when it
/// is at work. Dropping this value ends the process.
struct Companion(Child);

impl Companion {
    fn start(mut command: Command) -> Result<Self, Box<dyn Error>> {
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()?;
        let said = child.stdout.take().ok_or("no output")?;
        let companion = Self(child);
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        if line.trim() != "ready" {
            return Err(format!("{command:?} printed {line:?} instead of 'ready'").into());
        }
        Ok(companion)
    }
}

impl Drop for Companion {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs a program and returns its standard output and its standard error.
fn text(command: &mut Command) -> Result<(String, String), Box<dyn Error>> {
    let output = command.stdin(Stdio::null()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{command:?}: {}: {errors}", output.status).into());
    }
    Ok((String::from_utf8(output.stdout)?, errors))
}
