//! The simulated machine, as its own control program sees it.

use std::ffi::OsString;
use std::iter::repeat;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::artefacts;

const HOST_MEMORY: &str = "GPULIMIT_SIM_HOST_MEMORY";

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
    /// Makes a machine with its state in this file. With `GPULIMIT_TEST_SHARED_HOST` its GPUs share
    /// the host's memory, unless they are divided.
    pub fn new(state: PathBuf, knobs: &[(&str, &str)]) -> Machine {
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        let mut machine = Machine {
            state,
            knobs: knobs.iter().map(own).collect(),
        };
        let is_asked = std::env::var_os("GPULIMIT_TEST_SHARED_HOST").is_some();
        if is_asked && !machine.shares_host() && machine.knob_of("GPULIMIT_SIM_MIG").is_none() {
            let text = |name, default| machine.knob_of(name).unwrap_or(default);
            let number = |text: &str| text.parse::<u64>().expect("a number");
            let capacity = text("GPULIMIT_SIM_CAPACITY", "85017493504").to_owned();
            let last = capacity.split(',').next_back().map_or(0, number);
            let sizes = capacity.split(',').map(number).chain(repeat(last));
            let gpus = number(text("GPULIMIT_SIM_GPUS", "1")) as usize;
            // The default of `keep_free` leaves room for what the GPUs show.
            let all = (sizes.take(gpus).sum::<u64>() + (8 << 30)) / 9 * 10;
            machine.knobs.push((HOST_MEMORY.into(), all.to_string()));
            let same = ("GPULIMIT_SIM_CAPACITY".into(), capacity);
            machine.knobs.push(same);
        }
        // The first call makes the machine.
        machine.gpus();
        machine
    }

    /// Returns the file with the machine's state.
    pub fn state(&self) -> &Path {
        &self.state
    }

    fn knob_of(&self, name: &str) -> Option<&str> {
        let mut found = self.knobs.iter().filter(|(known, _)| known == name);
        found.next_back().map(|(_, value)| &**value)
    }

    /// Returns whether the GPUs share the host's memory.
    pub fn shares_host(&self) -> bool {
        self.knob_of(HOST_MEMORY).is_some()
    }

    /// Returns the value of `LD_PRELOAD` for a program with this library on this machine.
    pub fn preload(&self, library: Option<PathBuf>) -> OsString {
        let host = || artefacts::driver().join("libgpulimit-sim-host.so");
        let all = library.into_iter().chain(self.shares_host().then(host));
        let all: Vec<OsString> = all.map(PathBuf::into_os_string).collect();
        all.join(":".as_ref())
    }

    /// Makes a command run on this machine.
    pub fn enter(&self, command: &mut Command) {
        if self.shares_host() {
            command.env("LD_PRELOAD", self.preload(None));
        }
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

    /// Returns the bytes of the host's memory that are in use, and how often they were more than
    /// the host has.
    pub fn host(&self) -> [u64; 2] {
        let usage = self.usage();
        ["host", "overruns"].map(|key| usage[key].as_u64().expect("a number"))
    }

    fn usage(&self) -> Value {
        serde_json::from_str(&self.control(&["usage"])).expect("JSON")
    }

    /// Returns all GPUs in NVML's order.
    pub fn gpus(&self) -> Vec<Gpu> {
        let usage = self.usage();
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
