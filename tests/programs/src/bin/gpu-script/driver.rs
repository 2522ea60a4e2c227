//! The driver's functions, found through a door.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard};

use crate::door::Door;
use crate::process;

/// Functions whose last argument is a stream, and which have a twin for the per-thread default
/// stream.
const TWINS: &[&str] = &[
    "cuMemAllocAsync",
    "cuMemAllocFromPoolAsync",
    "cuMemFreeAsync",
    "cuStreamSynchronize",
    "cuStreamBeginCapture",
    "cuStreamBeginCapture_v2",
    "cuStreamBeginCaptureToGraph",
    "cuStreamBeginRecaptureToGraph",
    "cuStreamEndCapture",
    "cuStreamQuery",
    "cuLaunchKernel",
    "cuLaunchKernelEx",
    "cuLaunchCooperativeKernel",
    "cuGraphInstantiateWithParams",
    "cuGraphUpload",
    "cuGraphLaunch",
];

/// The status of a call of a function that does not exist.
pub const ABSENT: i32 = -1;

/// The driver behind a door.
pub struct Driver {
    door: Door,
    nvml: usize,
    twins: bool,
    known: Mutex<HashMap<String, usize>>,
    /// The file in which scripts/prove-hooks records the functions that are called.
    record: Option<PathBuf>,
}

impl Driver {
    /// Opens the driver through this door; with `twins`, by the per-thread variants of stream
    /// functions.
    pub fn open(door: Door, twins: bool) -> Result<Driver, String> {
        Ok(Driver {
            door,
            nvml: process::open("libnvidia-ml.so.1", libc::RTLD_NOW),
            twins,
            known: Mutex::default(),
            record: std::env::var_os("GPULIMIT_SCRIPT_RECORD").map(PathBuf::from),
        })
    }

    fn known(&self) -> MutexGuard<'_, HashMap<String, usize>> {
        self.known.lock().unwrap_or_else(|held| held.into_inner())
    }

    /// Returns the address of a function by its exported name, or 0 if there is none.
    pub fn find(&self, name: &str) -> usize {
        *self.known().entry(name.to_owned()).or_insert_with(|| {
            if name.starts_with("nvml") {
                process::find(self.nvml, name)
            } else {
                self.door.find(name)
            }
        })
    }

    /// Calls a function.
    pub fn call(&self, name: &str, arguments: &[usize]) -> i32 {
        let twin = self.twins && TWINS.contains(&name);
        let name = if twin {
            format!("{name}_ptsz")
        } else {
            name.to_owned()
        };
        match self.address(&name) {
            0 => ABSENT,
            address => process::call(address, arguments),
        }
    }

    /// Opens another process's memory by its handle, with the function of this name.
    pub fn open_handle(&self, name: &str, handle: [u64; 8]) -> (i32, u64) {
        let mut result = 0;
        match self.address(name) {
            0 => (ABSENT, 0),
            address => (process::open_handle(address, &mut result, handle), result),
        }
    }

    /// Returns the address at which to call a function.
    fn address(&self, name: &str) -> usize {
        let new = !self.known().contains_key(name);
        let address = self.find(name);
        if let Some(record) = self.record.as_ref().filter(|_| new) {
            let file = OpenOptions::new().create(true).append(true).open(record);
            let _ = file.and_then(|mut file| writeln!(file, "{name}"));
        }
        address
    }

    /// Calls a function whose first argument points to the result.
    pub fn get(&self, name: &str, arguments: &[usize]) -> (i32, u64) {
        let mut result = 0u64;
        let mut all = vec![&raw mut result as usize];
        all.extend(arguments);
        (self.call(name, &all), result)
    }
}
