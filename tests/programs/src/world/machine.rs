//! The simulated machine, as its own controller sees it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::artefacts;

/// A machine of one test alone.
pub struct Machine {
    state: PathBuf,
    knobs: Vec<(String, String)>,
}

/// What is true of a GPU.
#[derive(Clone, Debug)]
pub struct Gpu {
    /// As NVML writes it.
    pub uuid: String,
    /// Bytes in use now.
    pub used: u64,
    /// The most bytes that ever were in use at once.
    pub peak: u64,
    /// Who uses them.
    pub holders: Vec<Holder>,
}

/// A process that has memory of a GPU.
#[derive(Clone, Copy, Debug)]
pub struct Holder {
    /// Its pid.
    pub pid: u32,
    /// Bytes.
    pub bytes: u64,
    /// Dead, but the driver has not let go.
    pub dying: bool,
}

impl Machine {
    /// With its state in this file.
    pub fn new(state: PathBuf, knobs: &[(&str, &str)]) -> Machine {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let machine = Machine {
            state,
            knobs: knobs.iter().map(own).collect(),
        };
        // Makes it.
        machine.gpus();
        machine
    }

    /// The file that it is in.
    pub fn state(&self) -> &Path {
        &self.state
    }

    /// Lets a program run on this machine.
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

    /// Starts the peaks anew.
    pub fn reset_peak(&self) {
        self.control(&["reset-peak"]);
    }

    /// All GPUs in NVML's order.
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
                        bytes: number(&holder["bytes"]),
                        dying: holder["dying"].as_bool().unwrap_or(false),
                    })
                    .collect(),
            })
            .collect()
    }

    /// One GPU.
    pub fn gpu(&self, index: usize) -> Gpu {
        self.gpus().swap_remove(index)
    }

    /// Bytes in use on the first GPU.
    pub fn used(&self) -> u64 {
        self.gpu(0).used
    }

    /// The most bytes that were ever in use on the first GPU.
    pub fn peak(&self) -> u64 {
        self.gpu(0).peak
    }
}
