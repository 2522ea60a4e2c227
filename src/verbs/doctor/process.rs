//! Checks a running process: whether it has loaded libgpulimit.so and which group it is in.

use super::finding::{Check, Finding, Level};
use super::suspension;
use crate::figures::outside::{self, Outside};
use crate::groups;
use crate::machine::child::What;
use crate::machine::files::{Files, LONGEST_LIBRARY};
use crate::machine::look::{self, Candidate};
use crate::machine::obstacles::{self, Obstacle};
use crate::machine::{accounts, elf, library, nvml::Driver, preload, program};
use crate::words::{environment::env as own_env, failure::Failure};
use gpulimit_base::identity::{Identity, SeenProcess};
use gpulimit_base::proc;
use gpulimit_base::units::gib;
use gpulimit_group::{Group, Root};
use gpulimit_ledger::{MappedFile, Mappings, NoWitness, ProcessUsage};
use gpulimit_policy::rules::{Assigned, Rules, RulesError, Source};
use gpulimit_policy::{self as policy, Assignment, Facts};
use std::ffi::{OsStr, OsString};
use std::io::{ErrorKind, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};
use std::{fs, io};

/// The maximum number of bytes to read of a process's environment or memory map.
const LONGEST: u64 = 16 << 20;
/// The maximum number of bytes to read of an `ld.so.preload` file.
const LONGEST_PRELOAD: u64 = 64 << 10;

/// Reasons why a process is outside that more than one cause has.
const NOT_LOADED: &str = "not loaded";
const CLEARED: &str = "environment cleared";

/// The end of the path of a mapped file that is gone.
const DELETED: &str = " (deleted)";

/// The facts about a process that the caller is allowed to read.
pub(super) struct Process {
    pid: u32,
    uid: u32,
    /// The files that the process sees; `None` if the caller cannot access them.
    files: Option<Files>,
    /// The environment with which the process started; `None` if the caller cannot read it.
    environment: Option<Vec<(OsString, OsString)>>,
    /// The paths of the files that the process has mapped; `None` if the caller cannot read the
    /// process's memory map.
    mapped: Option<Vec<String>>,
}

/// What a group's ledger says of a process.
pub(super) struct Membership {
    group: String,
    /// The group itself, if it is in a group root of the caller.
    pub home: Option<Group>,
    /// The bytes that the process uses on all GPUs together.
    bytes: u64,
    /// The obstacles to a suspension of the process that the ledger of its group lists.
    pub obstacles: Vec<Obstacle>,
}

/// Checks a process. Returns after a bounded time, even if the process's files cannot be read.
pub(super) fn checks(pid: u32) -> Vec<Finding> {
    let looked = look_in_child(pid).map(|found| [found, uncounted(Some(pid))].concat());
    let mut findings = looked.unwrap_or_else(|error| {
        let seconds = look::patience().as_secs();
        let (why, remedy) = match error.kind() {
            ErrorKind::TimedOut => (
                format!(
                    "reading the process's memory map or files took more than {seconds} seconds"
                ),
                "the process's user may delay such reads with a file system of their own; do not \
                 trust the process",
            ),
            _ => (error.to_string(), ""),
        };
        let text = format!("cannot look at process {pid}: {why}");
        vec![Check("process").error(text, remedy)]
    });
    suspension::add_missing(&mut findings);
    findings
}

/// Checks a process in a child process of gpulimit, because a read that blocks must not block
/// gpulimit itself.
fn look_in_child(pid: u32) -> io::Result<Vec<Finding>> {
    let mut text = String::new();
    let pid = pid.to_string();
    let question = (What::Process, Some(pid.as_ref()));
    look::in_child(question, String::new(), look::patience(), |line| {
        text.push_str(&line);
        true
    })?;
    serde_json::from_str(&text).map_err(|_| {
        io::Error::other("the child process that reads the process's files ended without an answer")
    })
}

/// Checks a process. Reading the process's files may block this function forever.
pub(super) fn look(pid: u32) -> Vec<Finding> {
    const CHECK: Check = Check("process");
    if let Some(process) = process_of_thread(pid) {
        let thread = CHECK.fine(format!("{pid} is a thread of process {process}"));
        return [vec![thread], look(process)].concat();
    }
    let process = match Process::read(pid) {
        Ok(process) => process,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let text = format!("no process {pid} in this pid namespace");
            let remedy = "give a pid that `ps` shows in this pid namespace";
            return vec![CHECK.error(text, remedy)];
        }
        Err(error) => {
            let text = format!("cannot look at process {pid}: {error}");
            return vec![CHECK.error(text, "")];
        }
    };
    let mut findings = vec![process.itself()];
    if process.mapped.is_none() {
        findings.push(CHECK.warning(
            "cannot read the process's memory map and environment: permission denied",
            "run `gpulimit doctor` as root outside of containers, or as the user of the process",
        ));
    }
    let member = process.member_of();
    let (belongs, wanted) = process.belongs(member.as_ref());
    findings.extend(process.library(wanted));
    findings.extend(process.preload());
    findings.extend(process.driver());
    if process.mapped.is_none() || process.drivers().next().is_some() {
        findings.extend(suspension::of_process(pid, member.as_ref()));
    }
    findings.extend(belongs);
    findings
}

/// Reports the GPU memory of processes outside of all groups that a rule or their environment puts
/// into a group: of one process, or of all.
pub(super) fn uncounted(only: Option<u32>) -> Vec<Finding> {
    let found = Driver::load().map_err(Failure::new);
    let found = found.and_then(|driver| outside::outside(&driver));
    let found = found
        .unwrap_or_default()
        .into_iter()
        .filter(|it| only.is_none_or(|pid| it.pid == pid));
    let found = found.filter(|it| it.is_to_join && it.bytes != Some(0));
    let finding = |it: Outside| {
        let bytes = it
            .bytes
            .map_or("some".to_owned(), |bytes| gib(bytes).to_string());
        let text = format!(
            "process {} has {bytes} of GPU memory that no group counts: {}",
            it.pid, it.says
        );
        Check("memory").warning(text, "`gpulimit ps --outside` lists such processes")
    };
    found.map(finding).collect()
}

/// Returns the facts that tell whether a process is in a group. Reading them may block forever.
pub fn candidate(pid: u32) -> Candidate {
    let own = Identity::of_self();
    let named = |command| Identity { command, ..own };
    let mut facts = Candidate {
        ledgers: None,
        is_to_join: false,
        why: outside::UNKNOWN.into(),
        says: "you may not read its memory map".into(),
        command: Identity::command_line(pid).map(|command| named(command).command().to_string()),
    };
    let Ok(process) = Process::read(pid) else {
        facts.says = "the process is not visible here".into();
        return facts;
    };
    let rule = process.rule();
    let is_ruled = !matches!(rule, Ok(None));
    let wanted = |rule| policy::assignment_by(rule, &|name| process.variable(name));
    facts.is_to_join = is_ruled || !matches!(rule.map(wanted), Ok(Ok(None)));
    match Mappings::of(pid).and_then(|maps| maps.ledgers()) {
        Ok(None) | Err(_) => {}
        // In a container NVML says the host's pids, which there are those of other processes.
        Ok(Some(_)) if !process.uses_gpu() => {
            facts.says = "NVML lists a process of another pid namespace: look on the host".into();
        }
        Ok(Some(ledgers)) => {
            let is_member = !ledgers.is_empty();
            let (why, says) = process.why_outside(facts.is_to_join, is_member);
            // A limit that a user has set themselves below a root of their own holds.
            facts.is_to_join &= is_ruled || !is_member;
            (facts.why, facts.says) = (why.into(), says);
            facts.ledgers = Some(ledgers.iter().map(MappedFile::to_string).collect());
        }
    }
    facts
}

impl Process {
    fn read(pid: u32) -> io::Result<Self> {
        let about = fs::metadata(format!("/proc/{pid}"))?;
        let directory = proc::directory(pid);
        let environment = start_of(&directory.join("environ")).ok();
        let maps = start_of(&directory.join("maps")).ok();
        Ok(Self {
            pid,
            uid: about.uid(),
            files: Files::of(pid).ok(),
            environment: environment.map(|bytes| variables(&bytes)),
            mapped: maps.map(|maps| mapped(&String::from_utf8_lossy(&maps))),
        })
    }

    fn path(&self, file: &str) -> PathBuf {
        proc::directory(self.pid).join(file)
    }

    /// Returns each path of libgpulimit.so in the /etc/ld.so.preload that the process sees, and
    /// then in its LD_PRELOAD, with the place that names it.
    fn named(&self) -> Vec<(PathBuf, &'static str)> {
        let read = |files: &Files| files.read(Path::new(preload::FILE), LONGEST_PRELOAD).ok();
        let text = self.files.as_ref().and_then(read).unwrap_or_default();
        let everywhere = preload::Preload::of(String::from_utf8_lossy(&text).into_owned());
        let everywhere = everywhere.state().copies.into_iter();
        let variable = self.env("LD_PRELOAD").unwrap_or_default();
        let by_variable = library::copies_in(&variable).into_iter();
        everywhere
            .map(|path| (path, preload::FILE))
            .chain(by_variable.map(|path| (path, "the process's LD_PRELOAD")))
            .collect()
    }

    fn env(&self, name: &str) -> Option<OsString> {
        let all = self.environment.as_ref()?;
        let found = all.iter().find(|(there, _)| there == name);
        found.map(|(_, value)| value.clone())
    }

    /// Returns whether the process is in another mount namespace than the caller.
    fn is_contained(&self) -> bool {
        let of = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
        let there = of(&self.pid.to_string());
        there.is_some() && there != of("self")
    }

    fn itself(&self) -> Finding {
        let name = proc::read(self.path("comm")).unwrap_or_default();
        let place = if self.is_contained() {
            ", which runs in its own mount namespace (in a container)"
        } else {
            ""
        };
        let user = accounts::user_name(self.uid);
        let (pid, name) = (self.pid, name.trim_end());
        Check("process").fine(format!("{pid} {name} of {user}{place}"))
    }

    /// Returns the paths of libgpulimit.so that the process has mapped.
    fn copies(&self) -> Option<Vec<&str>> {
        let is_library = |path: &&str| {
            library::is_library(Path::new(path.strip_suffix(DELETED).unwrap_or(path)))
        };
        let mapped = self.mapped.as_ref()?.iter().map(String::as_str);
        let mut copies: Vec<&str> = mapped.filter(is_library).collect();
        copies.dedup();
        Some(copies)
    }

    /// Reports whether the process has loaded libgpulimit.so. A missing library is an error if a
    /// limit is `wanted`.
    fn library(&self, wanted: bool) -> Option<Finding> {
        const CHECK: Check = Check("library");
        Some(match self.copies()?[..] {
            [] => {
                let (_, why, remedy) = self.why_not();
                let level = if wanted { Level::Error } else { Level::Warning };
                let text = format!("the process has not loaded libgpulimit.so: {why}");
                CHECK.found(level, text, remedy)
            }
            [path] => match path.strip_suffix(DELETED) {
                None => CHECK.fine(format!("the process has loaded {path}")),
                Some(path) => CHECK.warning(
                    format!(
                        "the process has loaded {path}, and the file was replaced or removed since \
                         then"
                    ),
                    "no action needed while the group's limit holds; restart the process to load \
                     the new library",
                ),
            },
            [path, another, ..] => CHECK.error(
                format!("the process has loaded two copies of the library: {path}, {another}"),
                "name only one copy of the library in LD_PRELOAD and /etc/ld.so.preload: each \
                 copy counts the same memory",
            ),
        })
    }

    /// Returns why the process is in no group, if it is not: in a word or two, and in a sentence.
    fn why_outside(&self, is_to_join: bool, is_member: bool) -> (&'static str, String) {
        let drivers: Vec<&str> = self.drivers().collect();
        if self.copies().is_none_or(|copies| copies.is_empty()) {
            let (why, says, _) = self.why_not();
            (why, says)
        } else if is_member {
            let root = self.variable("GPULIMIT_ROOT").unwrap_or_default();
            let says = format!("it is in a group below another root: {}", root.display());
            ("private root", says)
        } else if drivers.len() > 1 {
            let says = format!("it has loaded several CUDA drivers: {}", drivers.join(", "));
            ("another libcuda", says)
        } else if !is_to_join {
            (
                "no group",
                "neither a rule nor its environment puts it into a group".into(),
            )
        } else {
            let says = "its calls do not pass the library, as those of OpenCL, Vulkan, OpenGL and \
                        video, and of a driver that dlmopen has loaded";
            ("no door", says.into())
        }
    }

    /// Returns why the process has not loaded libgpulimit.so, in a word or two and in a sentence,
    /// and the remedy.
    fn why_not(&self) -> (&'static str, String, &'static str) {
        let file = self.files.as_ref().and_then(|files| files.program().ok());
        let kind = file.and_then(|file| elf::kind(&file).ok());
        // The dynamic linker has no linker of its own, and starts programs in bundles.
        let is_linker = kind == Some(elf::Kind::Static) && self.maps("/libc.so");
        let kind = kind.filter(|_| !is_linker);
        if let Some((why, remedy)) = kind.as_ref().and_then(program::unable) {
            let word = match kind {
                Some(elf::Kind::Static) => "static",
                Some(elf::Kind::Dynamic(_)) => "musl",
                _ => NOT_LOADED,
            };
            return (word, why, remedy);
        }
        let about = |path: &Path| self.files.as_ref()?.about(path).ok();
        let named = self.named();
        if let Some((path, by)) = named.iter().find(|(path, _)| about(path).is_none()) {
            let path = path.display();
            return (
                NOT_LOADED,
                format!("{by} names {path}, which does not exist in the process's file system"),
                "put the library at that path (in a container, mount the library), or correct the \
                 path",
            );
        }
        let Some((path, by)) = named.first() else {
            let remedy = "start the program with `gpulimit run`, or load the library into every \
                          program with `gpulimit install`; for containers see docs/containers.md";
            if let Some(by) = self.cleared() {
                let text = format!("{by}, and LD_PRELOAD of the process does not name the library");
                return (CLEARED, text, remedy);
            }
            let text = "neither LD_PRELOAD in the process's environment nor /etc/ld.so.preload \
                        names the library";
            return (NOT_LOADED, text.into(), remedy);
        };
        let path = path.display();
        if *by != preload::FILE {
            let (word, why) = match self.is_privileged() {
                true => (
                    CLEARED,
                    "the process's LD_PRELOAD is ignored, because the program has more rights than \
                     the user who started it",
                ),
                false => (
                    NOT_LOADED,
                    "the process's LD_PRELOAD names the library, but the dynamic linker did not \
                     load it",
                ),
            };
            let remedy = "load the library into every program with `gpulimit install`";
            return (word, format!("{why} ({path})"), remedy);
        }
        let changed = about(Path::new(by)).and_then(|about| about.modified().ok());
        let since = changed.zip(started(self.pid));
        if since.is_some_and(|(changed, started)| changed > started) {
            let why = format!("the process started before {path} was added to {by}");
            return ("started before", why, "restart the process");
        }
        (
            NOT_LOADED,
            format!("{by} names {path}, but the dynamic linker did not load the library"),
            "run `gpulimit doctor` to see whether the library loads; in a container, check that \
             the container's glibc is 2.17 or later",
        )
    }

    /// Returns what shows that the library was taken out of the process's environment.
    fn cleared(&self) -> Option<String> {
        /// The most processes above that are looked at.
        const MOST: usize = 32;
        // `run` sets the variable together with LD_PRELOAD.
        if self.env(policy::GROUP).is_some() {
            return Some(format!("{} is set", policy::GROUP));
        }
        let mut pid = self.pid;
        for _ in 0..MOST {
            let above = proc::field(&proc::status(pid).ok()?, "PPid")?.parse().ok();
            pid = above.filter(|pid| *pid > 0)?;
            let environment = start_of(&proc::directory(pid).join("environ")).ok()?;
            let has_library = |(name, value): &(OsString, OsString)| {
                name == "LD_PRELOAD" && !library::copies_in(value).is_empty()
            };
            if variables(&environment).iter().any(has_library) {
                return Some(format!("LD_PRELOAD of process {pid} names the library"));
            }
        }
        None
    }

    /// Returns whether the kernel told the process's dynamic linker to ignore the environment
    /// (AT_SECURE), as it does for setuid programs.
    fn is_privileged(&self) -> bool {
        let auxv = fs::read(self.path("auxv")).unwrap_or_default();
        let words = auxv.as_chunks().0.iter();
        let words: Vec<u64> = words.map(|word| u64::from_ne_bytes(*word)).collect();
        let is_set = |pair: &[u64]| pair[0] == libc::AT_SECURE && pair[1] != 0;
        words.chunks_exact(2).any(is_set)
    }

    /// Returns whether the process has mapped a file with this in its path.
    fn maps(&self, part: &str) -> bool {
        let mut mapped = self.mapped.iter().flatten();
        mapped.any(|path| path.contains(part))
    }

    /// Returns whether the process has mapped a device or a library of NVIDIA.
    fn uses_gpu(&self) -> bool {
        self.maps("nvidia") || self.maps("libcuda")
    }

    /// Returns the paths of the CUDA drivers that the process has loaded.
    fn drivers(&self) -> impl Iterator<Item = &str> {
        let mapped = self.mapped.iter().flatten().map(String::as_str);
        mapped.filter(|path| path.contains("/libcuda.so"))
    }

    fn driver(&self) -> Option<Finding> {
        self.mapped.as_ref()?;
        let loaded = |path| format!("the process has loaded {path}");
        let not_yet = "the process has not loaded the CUDA driver; programs load it when they \
                       first use a GPU";
        let text = self.drivers().next();
        let text = text.map_or_else(|| not_yet.into(), loaded);
        Some(Check("driver").fine(text))
    }

    /// Reports the process's group, and the group selected for it. Also returns whether the process
    /// should have a limit.
    fn belongs(&self, member: Option<&Membership>) -> (Vec<Finding>, bool) {
        const CHECK: Check = Check("group");
        let mut findings = Vec::new();
        if let Some(Membership { group, bytes, .. }) = member {
            let bytes = gib(*bytes);
            findings.push(CHECK.fine(format!("the process is in group {group} and uses {bytes}")));
        }
        let rule = match self.rule() {
            Ok(rule) => rule,
            Err(error) => {
                findings.push(Check("rules").error(error.to_string(), ""));
                return (findings, true);
            }
        };
        if let Some(Assigned { rule, group, .. }) = &rule {
            let text =
                format!("rule {rule} of the administrator's policy assigns the process to {group}");
            findings.push(Check("rules").fine(text));
        }
        if self.environment.is_none() && rule.is_none() {
            return (findings, member.is_some());
        }
        let wanted = policy::assignment_by(rule, &|name| self.variable(name));
        let wanted = match wanted {
            Err(error) => {
                let remedy = "correct the process's environment or the rules: until then, the \
                              program gets no GPU memory";
                findings.push(CHECK.error(error.to_string(), remedy));
                return (findings, true);
            }
            Ok(wanted) => wanted,
        };
        let is_wanted = wanted.is_some() || member.is_some();
        findings.extend(place(wanted.as_ref(), member.map(|member| &*member.group)));
        (findings, is_wanted)
    }

    /// Returns an environment variable of the process. A missing `GPULIMIT_ROOT` of another user
    /// gets that user's default.
    fn variable(&self, name: &str) -> Option<OsString> {
        let value = self.env(name);
        let own = fs::metadata("/proc/self").map(|about| about.uid()).ok();
        if name == "GPULIMIT_ROOT" && value.is_none() && own != Some(self.uid) {
            let default = format!("/dev/shm/gpulimit-{}", self.uid);
            return (self.uid != 0).then(|| default.into());
        }
        value
    }

    fn rule(&self) -> Result<Option<Assigned>, RulesError> {
        let Some(rules) = Rules::load(&Source::system())? else {
            return Ok(None);
        };
        rules.assigned(&Facts::of_process(self.pid, &rules)?)
    }

    /// Returns the process's membership, if the process is in a group.
    fn member_of(&self) -> Option<Membership> {
        let seen = SeenProcess::by_pid(self.pid);
        let roots = Root::locate_all(&own_env).unwrap_or_default();
        if let Some(found) = roots.iter().find_map(|root| member_in(root, &seen)) {
            return Some(found);
        }
        // The process's user may have made the directory in `GPULIMIT_ROOT`, so read this directory
        // with the rights of that user.
        let files = self.files.as_ref()?;
        let path = PathBuf::from(self.variable("GPULIMIT_ROOT")?);
        let _lowered = files.lower().ok()?;
        let root = Root::at(files.path(&path)).ok()?;
        let mut found = member_in(&root, &seen)?;
        found.home = None;
        Some(found)
    }

    /// Reports whether new programs in the process's container would load libgpulimit.so. Only
    /// reads files, and starts no program.
    fn preload(&self) -> Option<Finding> {
        const CHECK: Check = Check("preload");
        let files = self.files.as_ref().filter(|_| self.is_contained())?;
        let named = self.named();
        let Some((path, by)) = named.first() else {
            let text = "neither LD_PRELOAD nor /etc/ld.so.preload of the process names the library";
            return Some(CHECK.fine(text));
        };
        let mapped = self.mapped.as_deref().unwrap_or_default();
        let read = files.read(path, LONGEST_LIBRARY);
        let loads = read.map_err(|error| error.to_string());
        let loads = loads.and_then(|library| files.can_load(&library, mapped));
        let path = path.display();
        Some(match loads {
            Ok(()) => CHECK.fine(format!(
                "programs that start in the container load {path} ({by})"
            )),
            Err(why) => CHECK.error(
                format!("programs that start in the container cannot load {path} ({by}): {why}"),
                "mount the library read-only at that path; the container's glibc must be 2.17 or \
                 later",
            ),
        })
    }
}

/// Returns the process of a thread that is not the first one of its process.
fn process_of_thread(id: u32) -> Option<u32> {
    let status = proc::read(format!("/proc/{id}/status")).ok()?;
    let process = proc::field(&status, "Tgid")?.parse().ok()?;
    (process != id).then_some(process)
}

/// Returns a process's membership in a group of the directory `root`.
fn member_in(root: &Root, seen: &SeenProcess) -> Option<Membership> {
    let is_it = |process: &ProcessUsage| process.alive && seen.is(&process.identity);
    let mut above = None;
    for group in root.groups().unwrap_or_default() {
        let Ok(ledger) = group.ledger() else {
            continue;
        };
        let Some(process) = ledger.processes(&NoWitness).into_iter().find(is_it) else {
            continue;
        };
        // The ledger of a group also lists the members of all groups below that group, but only the
        // ledger of the process's own group has the obstacles.
        let is_own = process.below.is_empty();
        let bytes = process.devices.iter().map(|usage| usage.in_use());
        let found = Membership {
            group: groups::of_process(&group, &process),
            obstacles: match is_own {
                true => obstacles::of_word(ledger.obstacles_of(&process.identity)),
                false => vec![obstacles::UNREAD_LEDGER],
            },
            home: is_own.then_some(group),
            bytes: bytes.fold(0, u64::saturating_add),
        };
        if is_own {
            return Some(found);
        }
        above.get_or_insert(found);
    }
    above
}

/// Reports whether the process is in the group that the rules and the environment select.
fn place(wanted: Option<&Assignment>, member: Option<&str>) -> Option<Finding> {
    const CHECK: Check = Check("group");
    let Some(assignment) = wanted else {
        let text = "neither a rule nor the process's environment asks for a limit";
        return member.is_none().then(|| CHECK.fine(text));
    };
    let group = &assignment.group;
    Some(match (&assignment.create, member) {
        (Some(_), Some(_)) => return None,
        (None, Some(member)) if member == group => return None,
        (Some(request), None) => {
            let variable = &request.variable;
            CHECK.fine(format!("{variable} asks for a separate group for the job"))
        }
        (None, Some(_)) => CHECK.warning(
            format!(
                "a process that starts now with the same environment would be in group {group}"
            ),
            "the rules have changed since the process started: restart the process",
        ),
        (None, None) => match assignment.root.group(group) {
            Ok(_) => {
                let text = format!("the process will join group {group} when it first uses a GPU");
                CHECK.fine(text)
            }
            Err(error) => {
                let remedy = "until this error is corrected, the process gets no GPU memory";
                CHECK.error(error.to_string(), remedy)
            }
        },
    })
}

/// Parses an environment as in `/proc/PID/environ`: `NAME=VALUE` entries that each end with a zero
/// byte.
fn variables(bytes: &[u8]) -> Vec<(OsString, OsString)> {
    let pair = |text: &[u8]| {
        let at = text.iter().position(|c| *c == b'=')?;
        let part = |bytes| OsStr::from_bytes(bytes).to_owned();
        Some((part(&text[..at]), part(&text[at + 1..])))
    };
    bytes.split(|c| *c == 0).filter_map(pair).collect()
}

/// Returns the paths in the text of `/proc/PID/maps`, each path once.
fn mapped(maps: &str) -> Vec<String> {
    let mut paths: Vec<String> = library::paths(maps).map(str::to_owned).collect();
    paths.dedup();
    paths
}

/// Reads only the beginning of a `/proc` file. A process can make its files in `/proc` very long.
fn start_of(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = fs::File::open(path)?;
    file.take(LONGEST).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Returns the start time of a process. The times of files in `/proc/PID` are those of the first
/// access.
fn started(pid: u32) -> Option<SystemTime> {
    /// The clock ticks per second in `/proc`. This number is the same on every machine.
    const TICKS_PER_SECOND: u64 = 100;
    let ticks = SeenProcess::by_pid(pid).start_time()?;
    let since_boot = Duration::from_millis(ticks * 1000 / TICKS_PER_SECOND);
    let uptime = fs::read_to_string("/proc/uptime").ok()?;
    let uptime = uptime.split_whitespace().next()?.parse().ok()?;
    let uptime = Duration::try_from_secs_f64(uptime).ok()?;
    SystemTime::now().checked_sub(uptime.saturating_sub(since_boot))
}

#[cfg(test)]
mod tests {
    use super::*;
    use gpulimit_support::{Running, Scratch, executable, wait_until};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_without_a_gpu_is_not_the_one_that_nvml_means() {
        let found = candidate(std::process::id());
        assert_eq!((&*found.why, found.ledgers), (outside::UNKNOWN, None));
        assert!(found.command.is_some());
        let gone = candidate(u32::MAX);
        assert_eq!((&*gone.why, gone.ledgers), (outside::UNKNOWN, None));
    }

    /// Returns a program that maps the files of its arguments, says so, and waits.
    fn compiled(scratch: &Scratch, name: &str, options: &[&str]) -> PathBuf {
        let code = "#include <fcntl.h>\n#include <sys/mman.h>\n#include <unistd.h>\n\
            int main(int count, char **files) { char c; while (--count) mmap(0, 1, PROT_READ, \
            MAP_PRIVATE, open(files[count], O_RDONLY), 0); return write(1, \"\\n\", 1) + \
            read(0, &c, 1); }\n";
        executable::compiled(&scratch.0, name, code, options)
    }

    /// Returns the reason for a running program that maps these files.
    fn reason(program: &Path, maps: &[PathBuf], variables: &[(&str, &str)]) -> String {
        let mut command = Command::new(program);
        command.args(maps).envs(variables.iter().copied());
        command.env_remove("LD_PRELOAD");
        let mut child = Running::start(command.stdin(Stdio::piped()).stdout(Stdio::piped()));
        let said = child.stdout.take().expect("piped").read(&mut [0]);
        assert_eq!(said.expect("it starts"), 1);
        candidate(child.id()).why
    }

    #[test]
    fn each_reason_is_told() {
        let scratch = Scratch::new();
        let file = |name: &str| {
            let path = scratch.0.join(name);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(&path, "x").expect("written");
            path
        };
        let [gpu, own] = ["nvidia0", "libgpulimit.so"].map(file);
        let [cuda, other] = ["a/libcuda.so.1", "b/libcuda.so.1"].map(file);
        let musl = scratch.0.join("ld-musl-x86_64.so.1");
        let plain = compiled(&scratch, "plain", &[]);
        let elf::Kind::Dynamic(linker) =
            elf::kind(&fs::File::open(&plain).expect("built")).expect("ELF")
        else {
            panic!("a dynamic program");
        };
        std::os::unix::fs::symlink(linker, &musl).expect("linked");
        let musl = format!("-Wl,--dynamic-linker={}", musl.display());
        let limit = [("GPULIMIT_MAX", "1G")];
        let preload = own.display().to_string();
        let preload = [("LD_PRELOAD", preload.as_str())];
        let gpu = [gpu];
        for (program, maps, variables, why) in [
            (
                &compiled(&scratch, "static", &["-static"]),
                &gpu[..],
                &[][..],
                "static",
            ),
            (&compiled(&scratch, "musl", &[&musl]), &gpu, &[], "musl"),
            (&plain, &gpu, &[], "not loaded"),
            (
                &plain,
                &gpu,
                &[("GPULIMIT_GROUP", "lab")],
                "environment cleared",
            ),
            // The dynamic linker refuses the file.
            (&plain, &gpu, &preload, "not loaded"),
            (&plain, &[own.clone(), cuda.clone()], &[], "no group"),
            (&plain, &[own.clone(), cuda.clone()], &limit, "no door"),
            (
                &plain,
                &[own.clone(), cuda.clone(), other],
                &limit,
                "another libcuda",
            ),
            (&plain, &[], &[], outside::UNKNOWN),
        ] {
            assert_eq!(
                reason(program, maps, variables),
                why,
                "{maps:?} {variables:?}"
            );
        }
    }

    #[test]
    fn a_process_is_older_than_the_file_that_names_the_library() {
        let scratch = Scratch::new();
        let root = &scratch.0;
        let mut child = Command::new("cat");
        let child = Running::start(child.stdin(Stdio::piped()));
        for path in ["etc/ld.so.preload", "lib/libgpulimit.so"] {
            let path = root.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            fs::write(path, "/lib/libgpulimit.so\n").expect("written");
        }
        let process = Process {
            pid: child.id(),
            uid: 0,
            files: Some(Files::of_image(root).expect("a directory")),
            environment: None,
            mapped: None,
        };
        let file = fs::File::open(root.join("etc/ld.so.preload")).expect("there");
        // A pause of this process makes the computed start of the other one later.
        let later = SystemTime::now() + Duration::from_secs(3600);
        for (changed, why) in [
            (later, "started before"),
            (SystemTime::UNIX_EPOCH, NOT_LOADED),
        ] {
            file.set_modified(changed).expect("set");
            assert_eq!(process.why_not().0, why);
        }
    }

    #[test]
    fn an_environment_is_parsed() {
        let all = variables(b"A=1\0EMPTY=\0B=x=y\0broken\0");
        let expected = [("A", "1"), ("EMPTY", ""), ("B", "x=y")];
        let expected = expected.map(|(name, value)| (name.into(), value.into()));
        assert_eq!(all, expected);
    }

    #[test]
    fn a_child_started_after_this_process() {
        // The computed time can be too early by two clock ticks. A pause of this process during
        // the calculation makes the time later, so look again.
        const TICKS: Duration = Duration::from_millis(20);
        let mut own = SystemTime::now();
        wait_until("this process is older than the child will be", || {
            own = started(std::process::id()).expect("/proc");
            own + 2 * TICKS < SystemTime::now()
        });
        let before = SystemTime::now();
        let mut child = Command::new("cat");
        let child = Running::start(child.stdin(Stdio::piped()));
        let later = started(child.id()).expect("/proc");
        assert!(later >= before - TICKS && later > own, "{own:?} {later:?}");
    }

    #[test]
    fn mapped_files_are_listed_once() {
        let maps = "7f0-7f1 r--p 0 08:01 1 /a/libgpulimit.so\n7f1-7f2 r-xp 0 08:01 1 \
                    /a/libgpulimit.so\n\
                    7f3-7f4 rw-p 0 00:00 0\n7f5-7f6 r--p 0 08:01 2 /b/x y (deleted)\n";
        assert_eq!(mapped(maps), ["/a/libgpulimit.so", "/b/x y (deleted)"]);
    }
}
