//! Reports whether processes can be suspended. Limits do not need that, so no finding is a warning.

use super::Finding;
use crate::nvml::Driver;
use crate::obstacles::{self, Obstacle};
use gpulimit_base::identity::SeenProcess;
use gpulimit_base::obstacle::Obstacle as Inner;
use gpulimit_base::proc;
use gpulimit_group::effective_user;

const CHECK: &str = "suspend";

/// Returns a finding about `what` that an obstacle concerns.
fn finding(what: &str, obstacle: &Obstacle) -> Finding {
    Finding {
        remedy: obstacle.remedy(),
        ..Finding::fine(CHECK, format!("{what} cannot be suspended: {obstacle}"))
    }
}

/// Reports whether processes of this machine can be suspended. `has_functions` says whether the
/// CUDA driver has the functions for that.
pub(super) fn of_machine(has_functions: bool) -> Vec<Finding> {
    let gpus = match Driver::load() {
        Ok(gpus) => gpus,
        Err(error) => {
            let text = format!("processes cannot be suspended: NVML does not answer ({error})");
            return vec![Finding::fine(CHECK, text)];
        }
    };
    let mut found = obstacles::of_machine(&gpus);
    if found.is_empty() && !has_functions {
        found.extend(gpus.version().map(Obstacle::Driver));
    }
    let mut findings: Vec<Finding> = found
        .iter()
        .map(|obstacle| finding("processes", obstacle))
        .collect();
    if !findings.is_empty() {
        return findings;
    }
    findings.push(Finding::fine(CHECK, "processes can be suspended"));
    let remark = |text: String, remedy: String| Finding {
        remedy,
        ..Finding::fine(CHECK, text)
    };
    for gpu in gpus.gpus().iter().filter(|gpu| gpu.instances.is_some()) {
        let text = format!(
            "but not on GPU {}, which is split into MIG instances",
            gpu.index
        );
        findings.push(remark(text, Obstacle::Mig(gpu.index).remedy()));
    }
    if has_mps() {
        let text = "but not the clients of MPS, which runs here".to_owned();
        findings.push(remark(text, Obstacle::Mps.remedy()));
    }
    let scope = obstacles::yama().filter(|scope| *scope > 0);
    if let Some(scope) = scope.filter(|scope| *scope > 2 || effective_user() != 0) {
        let denied = obstacles::Denied::Yama(scope);
        let text = format!("but {denied}");
        findings.push(remark(text, denied.remedy()));
    }
    for index in gpus.without_persistence() {
        let text = format!(
            "GPU {index} is not in persistence mode: resuming a process takes seconds longer while \
             no other program uses the GPU"
        );
        findings.push(remark(text, "run `nvidia-smi -pm 1` as root".to_owned()));
    }
    findings
}

/// Returns whether the control daemon or a server of MPS runs.
fn has_mps() -> bool {
    // The kernel cuts `nvidia-cuda-mps-server` after 15 bytes.
    let is_it = |name: String| name.trim_end() == "nvidia-cuda-mps";
    SeenProcess::numbers().any(|pid| proc::read(format!("/proc/{pid}/comm")).is_ok_and(is_it))
}

/// Reports whether a process that may have loaded the CUDA driver can be suspended. `inner` is a
/// member's word of obstacles in the ledger; the word is `None` if the library in the process does
/// not know suspensions. Reading the process's files may block forever.
pub(super) fn of_process(pid: u32, inner: Option<Option<u64>>) -> Vec<Finding> {
    let gpus = Driver::load().ok();
    let used = |gpus: &Driver| {
        let used = gpus
            .gpus()
            .iter()
            .filter_map(|gpu| gpus.used_by(pid, &gpu.id));
        used.fold(0, u64::saturating_add)
    };
    let bytes = gpus.as_ref().map_or(0, used);
    let mut found = obstacles::of_process(pid, gpus.as_ref(), &obstacles::answer(pid));
    found.extend(obstacles::of_memory(&[(pid, bytes)]));
    let of_it = |obstacle| finding("the process", obstacle);
    let mut findings: Vec<Finding> = found.iter().map(of_it).collect();
    let word = inner.flatten().unwrap_or(0);
    findings.extend(Inner::texts(word).map(|text| Finding {
        remedy: "wait until that is over, or change the program".into(),
        ..Finding::fine(CHECK, format!("the process cannot be suspended: it {text}"))
    }));
    let text = match inner {
        _ if !findings.is_empty() => return findings,
        Some(Some(_)) => "nothing prevents the process from being suspended",
        Some(None) => {
            "nothing that is seen from outside prevents the process from being suspended; the \
             library in the process is too old to say more"
        }
        None => {
            "nothing that is seen from outside prevents the process from being suspended, but \
             gpulimit suspends only members of groups"
        }
    };
    vec![Finding::fine(CHECK, text)]
}
