//! What can be seen of a running process from outside: whether it has the library, why not, and where it belongs.

use super::elf::{self, Kind};
use super::{Finding, inside};
use crate::cli::{accounts, env as own_env, install, library};
use gpulimit::group::Root;
use gpulimit::ledger::{NoWitness, ProcessUsage, SeenProcess};
use gpulimit::policy::rules::{Assigned, Rules, Source};
use gpulimit::policy::{self, Assignment, Facts};
use gpulimit::units::gib;
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// A process by its pid here.
pub(super) struct Process {
    pid: u32,
    uid: u32,
    /// Its environment as it started; `None` where we may not see it.
    environment: Option<Vec<(OsString, OsString)>>,
    /// The files mapped into it; `None` where we may not see them.
    mapped: Option<Vec<String>>,
}

/// Everything about a process.
pub(super) fn checks(pid: u32) -> Vec<Finding> {
    const CHECK: &str = "process";
    let process = match Process::read(pid) {
        Ok(process) => process,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("there is no process {pid} here");
            let remedy = "name a pid as `ps` shows it in this pid namespace";
            return vec![Finding::error(CHECK, text, remedy)];
        }
        Err(error) => {
            let text = format!("cannot look at process {pid}: {error}");
            return vec![Finding::error(CHECK, text, "")];
        }
    };
    let mut findings = vec![process.itself()];
    if process.mapped.is_none() {
        findings.push(Finding::warning(
            CHECK,
            "its memory and environment are not to be seen: it is another user's",
            "run this as root, or as that user",
        ));
    }
    let (belongs, wanted) = process.belongs();
    findings.extend(process.library(wanted));
    findings.extend(process.preload());
    findings.extend(process.driver());
    findings.extend(belongs);
    findings
}

impl Process {
    fn read(pid: u32) -> io::Result<Self> {
        let about = fs::metadata(format!("/proc/{pid}"))?;
        let environment = fs::read(format!("/proc/{pid}/environ")).ok();
        let maps = fs::read(format!("/proc/{pid}/maps")).ok();
        Ok(Self {
            pid,
            uid: about.uid(),
            environment: environment.map(|bytes| variables(&bytes)),
            mapped: maps.map(|maps| mapped(&String::from_utf8_lossy(&maps))),
        })
    }

    fn path(&self, file: &str) -> PathBuf {
        format!("/proc/{}/{file}", self.pid).into()
    }

    /// A path as the process sees it, from here.
    fn seen(&self, path: &Path) -> PathBuf {
        let root = self.path("root");
        path.strip_prefix("/")
            .map_or_else(|_| path.into(), |rest| root.join(rest))
    }

    fn env(&self, name: &str) -> Option<OsString> {
        let all = self.environment.as_ref()?;
        let found = all.iter().find(|(there, _)| there == name);
        found.map(|(_, value)| value.clone())
    }

    /// Whether it has a root file system of its own.
    fn is_contained(&self) -> bool {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let there = of(&self.pid.to_string());
        there.is_some() && there != of("self")
    }

    fn itself(&self) -> Finding {
        let name = fs::read_to_string(self.path("comm")).unwrap_or_default();
        let place = if self.is_contained() {
            ", with a file system of its own (a container)"
        } else {
            ""
        };
        let user = accounts::user_name(self.uid);
        Finding::fine(
            "process",
            format!("{} {} of {user}{place}", self.pid, name.trim_end()),
        )
    }

    /// Whether the library is in it. `wanted`: a limit is meant for it.
    fn library(&self, wanted: bool) -> Vec<Finding> {
        const CHECK: &str = "library";
        let Some(mapped) = &self.mapped else {
            return Vec::new();
        };
        let deleted = |path: &str| path.strip_suffix(" (deleted)").map(str::to_owned);
        let is_ours = |path: &&String| {
            let path = deleted(path).unwrap_or_else(|| path.to_string());
            library::is_ours(Path::new(&path))
        };
        let mut ours: Vec<&String> = mapped.iter().filter(is_ours).collect();
        ours.dedup();
        let Some(path) = ours.first() else {
            let (why, remedy) = self.why_not();
            let text = format!("libgpulimit.so is not in it: {why}");
            return vec![if wanted {
                Finding::error(CHECK, text, remedy)
            } else {
                Finding::warning(CHECK, text, remedy)
            }];
        };
        if ours.len() > 1 {
            return vec![Finding::error(
                CHECK,
                format!("it has two copies of the library: {path}, {}", ours[1]),
                "name one of them only, in LD_PRELOAD or in /etc/ld.so.preload: both count",
            )];
        }
        if let Some(path) = deleted(path) {
            return vec![Finding::warning(
                CHECK,
                format!(
                    "{path} is in it, an older one: it was replaced or removed since the process started"
                ),
                "nothing, while the limit of its group is kept; it gets the new one when it starts anew",
            )];
        }
        vec![Finding::fine(CHECK, format!("{path} is in it"))]
    }

    /// Why the library is not in it, and what to do.
    fn why_not(&self) -> (String, String) {
        let put_in = "start it by `gpulimit run`, or put the library into every program: `gpulimit install`; in a container see docs/containers.md";
        match elf::kind(&self.path("exe")) {
            Ok(Kind::Static) => {
                return (
                    "its program is linked statically, and loads no library at all".into(),
                    "link it dynamically; CUDA programs are, as they load libcuda.so.1".into(),
                );
            }
            Ok(Kind::Other(what)) => {
                return (
                    format!("its program is of another kind ({what}) than the library"),
                    "limits hold for 64-bit programs of this machine's own kind".into(),
                );
            }
            Ok(Kind::Dynamic(linker)) if linker.contains("ld-musl") => {
                return (
                    format!("its program is linked to musl ({linker}), the library to glibc"),
                    "use an image with glibc; NVIDIA's driver libraries need it, too".into(),
                );
            }
            Ok(Kind::Dynamic(_)) | Err(_) => {}
        }
        let privileged = self.is_privileged();
        let file = self.seen(Path::new(install::FILE));
        let everywhere = install::Preload::read(&file).map(|preload| preload.state().ours);
        let named = everywhere.unwrap_or_default();
        let variable = self.env("LD_PRELOAD").unwrap_or_default();
        let by_variable = library::ours_in(&variable);
        for (path, by) in named
            .iter()
            .map(|path| (path, install::FILE))
            .chain(by_variable.iter().map(|path| (path, "its LD_PRELOAD")))
        {
            if !self.seen(path).exists() {
                return (
                    format!("{by} names {}, which it does not see", path.display()),
                    "put the library there (in a container: mount it), or name where it is".into(),
                );
            }
        }
        if let Some(path) = named.first() {
            let since = changed(&file).zip(started(self.pid));
            if since.is_some_and(|(changed, started)| changed > started) {
                return (
                    format!(
                        "it has been running since before {} named {}",
                        install::FILE,
                        path.display()
                    ),
                    "start it anew".into(),
                );
            }
            return (
                format!("{} names {}, and the loader passed it over", install::FILE, path.display()),
                "`gpulimit doctor` says whether the library loads; in a container, whether its glibc is of 2.17 or later".into(),
            );
        }
        if let Some(path) = by_variable.first() {
            let why = if privileged {
                "its LD_PRELOAD is ignored, as the program has more rights than who started it"
            } else {
                "its LD_PRELOAD names it, and the loader passed it over"
            };
            return (
                format!("{why} ({})", path.display()),
                "put the library into every program: `gpulimit install`".into(),
            );
        }
        (
            "nothing asks for it, neither LD_PRELOAD in its environment nor /etc/ld.so.preload"
                .into(),
            put_in.into(),
        )
    }

    /// Whether the kernel told the dynamic linker to ignore the environment (AT_SECURE).
    fn is_privileged(&self) -> bool {
        const WORD: usize = size_of::<u64>();
        let words = fs::read(self.path("auxv")).unwrap_or_default();
        let word = |bytes: &[u8]| bytes.try_into().map(u64::from_ne_bytes).unwrap_or(0);
        words.chunks_exact(2 * WORD).any(|pair| {
            let (kind, value) = pair.split_at(WORD);
            word(kind) == libc::AT_SECURE && word(value) != 0
        })
    }

    fn driver(&self) -> Option<Finding> {
        let mapped = self.mapped.as_ref()?;
        let found = mapped.iter().find(|path| path.contains("/libcuda.so"));
        Some(Finding::fine(
            "driver",
            match found {
                Some(path) => format!("it has {path}"),
                None => {
                    "it has not loaded the CUDA driver; programs do that when they first use a GPU"
                        .into()
                }
            },
        ))
    }

    /// Where it is, and where it would come by the rules and its environment. Also whether any of them means a limit for it.
    fn belongs(&self) -> (Vec<Finding>, bool) {
        const CHECK: &str = "group";
        let member = self.member_of();
        let mut findings = Vec::new();
        if let Some((group, bytes)) = &member {
            let bytes = gib(*bytes);
            findings.push(Finding::fine(
                CHECK,
                format!("it is a member of {group}, and uses {bytes}"),
            ));
        }
        let rule = match self.rule() {
            Ok(rule) => rule,
            Err(finding) => {
                findings.push(*finding);
                return (findings, true);
            }
        };
        if let Some(rule) = &rule {
            let text = format!(
                "rule {} of the administrator's policy assigns it to {}",
                rule.rule, rule.group
            );
            findings.push(Finding::fine("rules", text));
        }
        if self.environment.is_none() && rule.is_none() {
            return (findings, member.is_some());
        }
        let wanted = policy::assignment_by(rule, &|name| self.variable(name));
        let wanted = match wanted {
            Err(error) => {
                let remedy = "correct it: with the library in it the program gets no GPU memory";
                findings.push(Finding::error(CHECK, error.to_string(), remedy));
                return (findings, true);
            }
            Ok(wanted) => wanted,
        };
        let is_wanted = wanted.is_some() || member.is_some();
        findings.extend(place(
            wanted.as_ref(),
            member.map(|(group, _)| group).as_deref(),
        ));
        (findings, is_wanted)
    }

    /// A variable of its environment; where it says nothing of the root, that of its user.
    fn variable(&self, name: &str) -> Option<OsString> {
        let value = self.env(name);
        let own = fs::metadata("/proc/self").map(|about| about.uid()).ok();
        if name == "GPULIMIT_ROOT" && value.is_none() && own != Some(self.uid) {
            let theirs = format!("/dev/shm/gpulimit-{}", self.uid);
            return (self.uid != 0).then(|| theirs.into());
        }
        value
    }

    fn rule(&self) -> Result<Option<Assigned>, Box<Finding>> {
        let found = || {
            let Some(rules) = Rules::load(&Source::system())? else {
                return Ok(None);
            };
            rules.assigned(&Facts::of_process(self.pid, &rules)?)
        };
        found().map_err(|error: policy::rules::RulesError| {
            Box::new(Finding::error("rules", error.to_string(), ""))
        })
    }

    /// The group that has it, and the bytes that it uses there on all GPUs.
    fn member_of(&self) -> Option<(String, u64)> {
        let seen = SeenProcess::by_pid(self.pid);
        let mut roots = Root::locate_all(&own_env).unwrap_or_default();
        let theirs = self.variable("GPULIMIT_ROOT").map(PathBuf::from);
        roots.extend(theirs.and_then(|path| Root::at(self.seen(&path)).ok()));
        let is_it = |process: &ProcessUsage| process.alive && seen.is(&process.identity);
        for root in roots {
            for group in root.groups().unwrap_or_default() {
                // The ledger of a group has those of all below it.
                let Ok(ledger) = group.ledger() else {
                    continue;
                };
                let Some(process) = ledger.processes(&NoWitness).into_iter().find(is_it) else {
                    continue;
                };
                let bytes = process
                    .devices
                    .iter()
                    .map(|usage| usage.charged.saturating_sub(usage.idle))
                    .sum();
                let name = match process.below.as_str() {
                    "" => group.name().to_owned(),
                    below => format!("{}/{below}", group.name()),
                };
                return Some((name, bytes));
            }
        }
        None
    }

    /// Whether a program that starts where this process is gets the library: tried, where it has a file system of its own.
    fn preload(&self) -> Option<Finding> {
        const CHECK: &str = "preload";
        if !self.is_contained() {
            return None;
        }
        let variable = self.env("LD_PRELOAD").unwrap_or_default();
        Some(match inside::start(self.pid, &variable) {
            Ok(said) if said.is_empty() => Finding::fine(
                CHECK,
                "programs start there with what they are to have preloaded",
            ),
            Ok(said) => Finding::error(
                CHECK,
                format!("a program that is started there says: {}", said.trim()),
                "mount the library where the file or the variable names it, and read-only; its glibc must be of 2.17 or later",
            ),
            Err(error) => Finding::warning(
                CHECK,
                format!("whether programs start there with it was not tried: {error}"),
                "",
            ),
        })
    }
}

/// What the rules and the environment say of a process that is a member of this group.
fn place(wanted: Option<&Assignment>, member: Option<&str>) -> Option<Finding> {
    const CHECK: &str = "group";
    let Some(assignment) = wanted else {
        let text = "neither a rule nor its environment asks for a limit";
        return member.is_none().then(|| Finding::fine(CHECK, text));
    };
    let group = &assignment.group;
    match (&assignment.create, member) {
        (Some(_), Some(_)) => None,
        (Some(request), None) => Some(Finding::fine(
            CHECK,
            format!(
                "{} asks for a group of its own for the job",
                request.variable
            ),
        )),
        (None, Some(member)) if member == group => None,
        (None, Some(_)) => Some(Finding::warning(
            CHECK,
            format!("one that starts now with its environment is to be in {group}"),
            "the rules have changed since it started: start it anew",
        )),
        (None, None) => Some(match assignment.root.group(group) {
            Ok(_) => Finding::fine(
                CHECK,
                format!("it is to be in {group}, from its first use of a GPU on"),
            ),
            Err(error) => {
                Finding::error(CHECK, error.to_string(), "until then it gets no GPU memory")
            }
        }),
    }
}

/// `NAME=VALUE`, each ended by a zero.
fn variables(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let pair = |text: &[u8]| {
        let at = text.iter().position(|c| *c == b'=')?;
        let (name, value) = text.split_at(at);
        Some((
            OsStr::from_bytes(name).into(),
            OsStr::from_bytes(&value[1..]).into(),
        ))
    };
    bytes.split(|c| *c == 0).filter_map(pair).collect()
}

/// The paths of `/proc/PID/maps`, each once.
fn mapped(maps: &str) -> Vec<String> {
    let path = |line: &str| line.find('/').map(|at| line[at..].to_owned());
    let mut paths: Vec<String> = maps.lines().filter_map(path).collect();
    paths.dedup();
    paths
}

/// When a file was last changed.
fn changed(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}

/// When a process started. The times of its files in `/proc` are those of the first look at them.
fn started(pid: u32) -> Option<SystemTime> {
    /// Of `/proc`, on every machine.
    const TICKS_PER_SECOND: u64 = 100;
    let since_boot =
        Duration::from_millis(SeenProcess::by_pid(pid).start_time()? * 1000 / TICKS_PER_SECOND);
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime = uptime.split_whitespace().next()?.parse().ok()?;
    let age = Duration::try_from_secs_f64(uptime)
        .ok()?
        .saturating_sub(since_boot);
    SystemTime::now().checked_sub(age)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_is_read_as_the_kernel_shows_it() {
        let all = variables(b"A=1\0EMPTY=\0B=x=y\0broken\0");
        let expected = [("A", "1"), ("EMPTY", ""), ("B", "x=y")];
        let expected = expected.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(all, expected);
    }

    #[test]
    fn this_process_started_a_moment_ago() {
        let age = started(std::process::id()).expect("/proc").elapsed();
        // By the clock it may be in the future, by the length of a tick.
        assert!(age.unwrap_or_default() < Duration::from_secs(24 * 3600));
        let mut child = std::process::Command::new("cat");
        let mut child = child
            .stdin(std::process::Stdio::piped())
            .spawn()
            .expect("started");
        let later = started(child.id()).expect("/proc");
        assert!(later >= started(std::process::id()).expect("/proc") - Duration::from_secs(1));
        child.kill().expect("ended");
        child.wait().expect("ended");
    }

    #[test]
    fn mapped_files_are_listed_once() {
        let maps = "7f0-7f1 r--p 0 08:01 1 /a/libgpulimit.so\n7f1-7f2 r-xp 0 08:01 1 /a/libgpulimit.so\n\
                    7f3-7f4 rw-p 0 00:00 0\n7f5-7f6 r--p 0 08:01 2 /b/x y (deleted)\n";
        assert_eq!(mapped(maps), ["/a/libgpulimit.so", "/b/x y (deleted)"]);
    }
}
