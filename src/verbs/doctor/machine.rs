//! What kind of machine this is, where limits work otherwise or were not tried (docs/machines.md).

use super::finding::{Check, Finding};
use crate::groups::warnings::reserve;
use crate::machine::nvml::Driver;
use gpulimit_base::proc;
use gpulimit_limits::LimitSet;

/// Files of kinds of machines, a word in the file, and what is said of the machine.
const KINDS: [(&str, &str, &str); 2] = [
    (
        "/proc/device-tree/compatible",
        "nvidia,tegra",
        "a Jetson: not tried; NVML may not tell the memory of processes, which is estimated then",
    ),
    (
        "/proc/sys/kernel/osrelease",
        "microsoft",
        "Windows Subsystem for Linux: not tried; NVML does not tell the memory of processes, which \
         is estimated",
    ),
];

/// Says what is special about this machine. No finding for a server with GPUs of their own memory.
pub(super) fn kind(driver: &Driver) -> Vec<Finding> {
    const CHECK: Check = Check("machine");
    let mut said = Vec::new();
    said.extend(reserve(&LimitSet::default(), Some(driver)));
    for gpu in driver.gpus() {
        let index = gpu.index;
        if gpu.shares_host {
            said.push(format!(
                "GPU {index}: pinned host memory counts, and free memory is MemAvailable; not \
                 tried on such hardware"
            ));
        }
        if ["GH200", "GB200", "GB300"]
            .iter()
            .any(|name| gpu.name.contains(name))
        {
            said.push(format!(
                "GPU {index} can reach memory of malloc, which does not count; not tried"
            ));
        }
    }
    let has = |file, word| proc::read(file).is_ok_and(|text| text.to_lowercase().contains(word));
    let kinds = KINDS.iter().filter(|(file, word, _)| has(file, word));
    said.extend(kinds.map(|(.., text)| (*text).to_owned()));
    let fine = |text| CHECK.fine(format!("{text} (docs/machines.md)"));
    said.into_iter().map(fine).collect()
}
