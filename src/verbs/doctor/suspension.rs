//! Reports whether processes can be suspended. Limits do not need that, so no finding is a warning.

use super::finding::{Check, Finding, Level};
use super::process::Membership;
use crate::machine::child::{What, ask};
use crate::machine::nvml::Driver;
use crate::machine::obstacles::{self, Obstacle};
use crate::suspension::bound::passed;
use crate::suspension::subjects::{Subject, members};
use gpulimit_base::units::gib;
use gpulimit_ledger::Errand;

const CHECK: Check = Check("suspend");
/// How the finding begins that says that no obstacle was found.
const NOTHING: &str = "nothing";

/// Returns a finding about `what` that an obstacle concerns.
fn finding(what: &str, obstacle: &Obstacle) -> Finding {
    let text = format!("{what} cannot be suspended: {obstacle}");
    CHECK.found(Level::Fine, text, obstacle.remedy.as_ref())
}

/// Reports whether processes of this machine can be suspended. `has_functions` says whether the
/// CUDA driver has the functions for that.
pub(super) fn of_machine(has_functions: bool) -> Vec<Finding> {
    let gpus = match Driver::load() {
        Ok(gpus) => gpus,
        Err(error) => {
            let text = format!("processes cannot be suspended: NVML does not answer ({error})");
            return vec![CHECK.fine(text)];
        }
    };
    let mut found = obstacles::of_machine(&gpus);
    if found.is_empty() && !has_functions {
        found.extend(gpus.version().map(|version| obstacles::driver(&version)));
    }
    if !found.is_empty() {
        let obstacles = found.iter();
        return obstacles
            .map(|obstacle| finding("processes", obstacle))
            .collect();
    }
    let mut findings = vec![
        CHECK.fine("processes can be suspended; for one process, see `gpulimit doctor --pid PID`"),
    ];
    let remark = |text: String, remedy: &str| CHECK.found(Level::Fine, text, remedy);
    for gpu in gpus.gpus().iter().filter(|gpu| gpu.instances.is_some()) {
        let index = gpu.index;
        let text = format!("but not on GPU {index}, which is split into MIG instances");
        findings.push(remark(text, &obstacles::mig(index).remedy));
    }
    for index in gpus.without_persistence() {
        let text = format!(
            "GPU {index} is not in persistence mode: resuming a process takes seconds longer while \
             no other program uses the GPU"
        );
        findings.push(remark(text, "run `nvidia-smi -pm 1` as root"));
    }
    findings
}

/// Reports whether a process that may have loaded the CUDA driver is suspended, or can be. Reading
/// the process's files may block forever.
pub(super) fn of_process(pid: u32, member: Option<&Membership>) -> Vec<Finding> {
    let refused = |why: String| CHECK.fine(format!("the process cannot be suspended: {why}"));
    let home = member.and_then(|member| member.home.as_ref());
    let proven = home.map_or_else(|| Ok(Vec::new()), |home| members(home, Some(&[pid])));
    let subjects: Vec<&Subject> = proven.iter().flatten().collect();
    if let Some(found) = subjects.iter().find_map(|subject| under_way(subject)) {
        return vec![found];
    }
    let gpus = Driver::load().ok();
    let bytes = gpus.as_ref().map_or(0, |gpus| gpus.used(pid));
    let mut found = gpus.as_ref().map_or_else(Vec::new, obstacles::of_machine);
    let answer = obstacles::answer(pid);
    found.extend(obstacles::of_process(pid, gpus.as_ref(), &answer));
    found.extend(obstacles::of_memory(&[(pid, bytes)]));
    found.extend(member.iter().flat_map(|member| member.obstacles.clone()));
    let of_it = |obstacle| finding("the process", obstacle);
    let mut findings: Vec<Finding> = found.iter().map(of_it).collect();
    match passed(&subjects) {
        Ok(reasons) => findings.extend(reasons.into_iter().map(refused)),
        Err(failure) => findings.push(refused(failure.to_string())),
    }
    // Obstacles say the same in fewer words.
    if let (Err(failure), []) = (&proven, &*findings) {
        findings.push(refused(failure.to_string()));
    }
    let text = match member {
        _ if !findings.is_empty() => return findings,
        Some(_) => "nothing prevents the process from being suspended",
        None => {
            "nothing that is seen from outside prevents the process from being suspended, but \
             gpulimit suspends only members of groups"
        }
    };
    vec![CHECK.fine(text)]
}

/// Returns what `suspend` and `resume` have done with a member, or do at this moment.
fn under_way(subject: &Subject) -> Option<Finding> {
    // The driver works only within the process's pid namespace.
    let (pid, place) = match subject.check_namespace() {
        Ok(()) => (subject.target.pid, ""),
        Err(_) => (
            subject.identity().pid,
            " in the container (pid namespace) of the process",
        ),
    };
    let resume = format!("run `gpulimit resume --pid {pid}`{place}");
    let (text, remedy) = match subject.errand().0 {
        _ if subject.is_abandoned() => (
            "a command that suspended or resumed the process was killed at work".to_owned(),
            resume,
        ),
        Errand::Suspend | Errand::Resume => (
            "another command suspends or resumes the process at this moment".to_owned(),
            "wait until that command has ended".to_owned(),
        ),
        Errand::Lost => (
            "the process is lost: its calls of CUDA never return".to_owned(),
            format!("end it: `gpulimit resume --pid {pid} --kill-lost`{place}"),
        ),
        Errand::None if subject.is_suspended() => {
            let bytes = gib(subject.bytes(None));
            let also = if subject.is_stopped() {
                " and stopped"
            } else {
                ""
            };
            let text = format!("the process is suspended{also}, with {bytes} on the host");
            (text, resume)
        }
        Errand::None => return None,
    };
    Some(CHECK.found(Level::Fine, text, remedy))
}

/// Adds what the machine lacks to suspend processes to findings about a process that may have
/// loaded the CUDA driver. Loads the driver in a child process, which takes seconds on some
/// machines.
pub(super) fn add_missing(findings: &mut Vec<Finding>) {
    if !findings.iter().any(|finding| finding.check == CHECK.0) {
        return;
    }
    let why = match ask(What::Checkpoints, None) {
        Ok(answers) => answers.get("missing").map(str::to_owned),
        Err(how) => Some(format!(
            "the child process that loads the CUDA driver ended with {how}"
        )),
    };
    if let Some(why) = why {
        findings.retain(|found| found.check != CHECK.0 || !found.text.starts_with(NOTHING));
        let text = format!("processes cannot be suspended here: {why}");
        findings.push(CHECK.fine(text));
    }
}
