//! Running a case in another process, in three ways: on the bare driver, with the library preloaded, and with a limit on top.

use crate::case::{Case, START};
use std::error::Error;
use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

/// How the program is run.
#[derive(Clone, Copy)]
pub enum Way {
    /// Without us.
    Bare,
    /// Preloaded, no limit asked for.
    Preloaded,
    /// Preloaded, with a limit that is never reached.
    Limited,
}

impl Way {
    pub const ALL: [Way; 3] = [Way::Bare, Way::Preloaded, Way::Limited];
}

/// Starts of a program that make one time.
const STARTS: u32 = 20;
/// Iterations that callgrind counts.
const COUNTED: u32 = 500;

/// Where everything is that a run needs.
pub struct Setup {
    library: PathBuf,
    worker: PathBuf,
    root: PathBuf,
    callgrind: bool,
}

impl Setup {
    /// `library` is the one to preload. Without `callgrind`, or without valgrind, nothing is counted.
    pub fn new(library: PathBuf, callgrind: bool) -> Result<Self, Box<dyn Error>> {
        let has_valgrind = || {
            let version = Command::new("valgrind").arg("--version").output();
            version.is_ok_and(|output| output.status.success())
        };
        if callgrind && !has_valgrind() {
            eprintln!(
                "no valgrind here: instructions are not counted (Debian: apt install valgrind)"
            );
        }
        let root = PathBuf::from(format!("/dev/shm/gpulimit-bench-{}", std::process::id()));
        fs::DirBuilder::new().mode(0o700).create(&root)?;
        Ok(Setup {
            library: library.canonicalize()?,
            worker: std::env::current_exe()?,
            root,
            callgrind: callgrind && has_valgrind(),
        })
    }

    /// Nanoseconds of one iteration: the best of a process's batches, or of a number of starts.
    pub fn time(&self, case: &Case, live: u32, way: Way) -> Result<f64, Box<dyn Error>> {
        if case.name == START {
            return self.start(way);
        }
        let mut worker = self.prepared(Command::new(&self.worker), way);
        worker.args(["worker", "time", case.name, &live.to_string()]);
        Ok(text(&mut worker)?.0.trim().parse()?)
    }

    fn start(&self, way: Way) -> Result<f64, Box<dyn Error>> {
        let mut best = f64::INFINITY;
        for _ in 0..STARTS {
            let mut program = self.prepared(Command::new("/bin/true"), way);
            let started = Instant::now();
            let status = program.status()?;
            best = best.min(started.elapsed().as_nanos() as f64);
            if !status.success() {
                return Err(format!("/bin/true: {status}").into());
            }
        }
        Ok(best)
    }

    /// Instructions of one iteration, or of a whole start; `None` when they are not counted.
    pub fn instructions(
        &self,
        case: &Case,
        live: u32,
        way: Way,
    ) -> Result<Option<f64>, Box<dyn Error>> {
        if !self.callgrind {
            return Ok(None);
        }
        let mut valgrind = self.prepared(Command::new("valgrind"), way);
        valgrind.args(["--tool=callgrind", "--callgrind-out-file=/dev/null"]);
        let times = if case.name == START {
            valgrind.arg("/bin/true");
            1
        } else {
            // Only inside of this function of the worker.
            valgrind.arg("--toggle-collect=measured");
            valgrind
                .arg(&self.worker)
                .args(["worker", "count", case.name]);
            valgrind.args([live.to_string(), COUNTED.to_string()]);
            COUNTED
        };
        let (_, report) = text(&mut valgrind)?;
        let collected = report
            .lines()
            .find_map(|line| line.split_once("Collected :"))
            .and_then(|(_, count)| count.trim().parse::<f64>().ok())
            .ok_or_else(|| format!("callgrind counted nothing: {report}"))?;
        Ok(Some(collected / f64::from(times)))
    }

    /// `command` with the environment of `way`. The tool `valgrind` hands it on to the program that it runs.
    fn prepared(&self, mut command: Command, way: Way) -> Command {
        let foreign =
            |name: &str| name.starts_with("GPULIMIT_") && !name.starts_with("GPULIMIT_SIM");
        for (name, _) in std::env::vars().filter(|(name, _)| foreign(name)) {
            command.env_remove(name);
        }
        command
            .env("GPULIMIT_ROOT", &self.root)
            .env_remove("LD_PRELOAD");
        if !matches!(way, Way::Bare) {
            command.env("LD_PRELOAD", &self.library);
        }
        if matches!(way, Way::Limited) {
            command.env("GPULIMIT_MAX", "64G");
        }
        command
    }
}

impl Drop for Setup {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.root);
    }
}

/// What a program writes to its output and to its error output.
fn text(command: &mut Command) -> Result<(String, String), Box<dyn Error>> {
    let output = command.stdin(Stdio::null()).output()?;
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{command:?}: {}: {errors}", output.status).into());
    }
    Ok((String::from_utf8(output.stdout)?, errors))
}
