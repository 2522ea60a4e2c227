//! The simulated machine, as its own control program sees it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::artefacts;

/// A machine for a single test.
pub struct Machine {
    state: PathBuf,
    knobs: Vec<(String, String)>,
}

/// The true state of a GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// The UUID as NVML writes it.
    pub uuid: String,
    /// Bytes in use now.
    pub used: u64,
    /// The most bytes that were ever in use at once.
    pub peak: u64,
    /// The processes that use memory.
    pub holders: Vec<Holder>,
}

/// A process that has memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// The pid of the process in its own PID namespace.
    pub pid: u32,
    /// The inode of that namespace.
    pub namespace: u64,
    /// The bytes that the process has.
    pub bytes: u64,
    /// The process is dead, but the driver has not freed its memory yet.
    pub dying: bool,
}

impl Machine {
    /// Makes a machine with its state in this file.
    pub fn new(state: PathBuf, knobs: &[(&str, &str)]) -> Machine {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let machine = Machine {
            state,
            knobs: knobs.iter().map(own).collect(),
        };
        // The first call makes the machine.
        machine.gpus();
        machine
    }

    /// Returns the file with the machine's state.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Makes a command run on this machine.
    pub fn enter(&self, command: &mut Command) {
        command
            .env("GPULIMIT_SIM_STATE", &self.state)
            .env("LD_LIBRARY_PATH", artefacts::driver())
            .envs(self.knobs.iter().map(|(name, value)| (name, value)));
    }

    fn control(&self, arguments: &[&str]) -> String {
        let mut command = Command::new(artefacts::driver().join("gpulimit-sim-ctl"));
        self.enter(&mut command);
        let output = command.args(arguments).output().expect("it runs");
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Changes a knob while programs run.
    pub fn knob(&self, name: &str, value: &str) {
        self.control(&["knob", name, value]);
    }

    /// Resets the peaks.
    pub fn reset_peak(&self) {
        self.control(&["reset-peak"]);
    }

    /// Returns all GPUs in NVML's order.
    pub fn gpus(&self) -> Vec<Gpu> {
        let usage: Value = serde_json::from_str(&self.control(&["usage"])).expect("JSON");
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let number = |value: &Value| value.as_u64().expect("a number");
        list(&usage["devices"])
            .iter()
            .map(|gpu| Gpu {
                uuid: gpu["uuid"].as_str().expect("a UUID").to_owned(),
                used: number(&gpu["used"]),
                peak: number(&gpu["peak"]),
                holders: list(&gpu["processes"])
                    .iter()
                    .map(|holder| Holder {
                        pid: number(&holder["pid"]) as u32,
                        namespace: number(&holder["namespace"]),
                        bytes: number(&holder["bytes"]),
                        dying: holder["dying"].as_bool().unwrap_or(false),
                    })
                    .collect(),
            })
            .collect()
    }

    /// Returns one GPU.
    pub fn gpu(&self, index: usize) -> Gpu {
        self.gpus().swap_remove(index)
    }

    /// Returns the bytes in use on the first GPU.
    pub fn used(&self) -> u64 {
        self.gpu(0).used
    }

    /// Returns the most bytes that were ever in use on the first GPU.
    pub fn peak(&self) -> u64 {
        self.gpu(0).peak
    }
}
