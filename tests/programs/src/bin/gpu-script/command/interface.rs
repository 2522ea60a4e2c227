//! The C interface of gpulimit, as a program finds it at run time.

use std::ffi::CString;

use super::{Answer, plain};
use crate::driver::{ABSENT, Driver};
use crate::interpreter::{Scope, Words};
use crate::process;

/// The words of `struct gpulimit_memory`.
const MEMORY: usize = 13;
/// The words of `struct gpulimit_pressure`.
const PRESSURE: usize = 43;

/// Runs a command of this subject; `None` for others.
pub fn run(_: &Driver, _: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    Ok(Some(match words.name() {
        "captures" => plain(call("gpulimit_captures", &[])),
        "can" => plain(call("gpulimit_capabilities", &[])),
        "group" => {
            let mut name = vec![0u8; words.size(1)?.max(1)];
            let place = name.as_mut_ptr() as usize;
            let code = call("gpulimit_group", &[place, words.size(1)?]);
            format!("{code} {}", text(&name))
        }
        "figures" => figures(words)?,
        "error" => {
            let mut message = vec![0u8; 512];
            let place = message.as_mut_ptr() as usize;
            let code = call("gpulimit_error", &[place, message.len()]);
            format!("{code} {}", text(&message))
        }
        "peak-begin" => peak_begin(words)?,
        "peak-read" => peak("gpulimit_peak_read", words)?,
        "peak-end" => peak("gpulimit_peak_end", words)?,
        "register" => plain(call("gpulimit_pressure_register", &[])),
        "unregister" => plain(call("gpulimit_pressure_unregister", &[])),
        "asked" => asked(
            words
                .at(1)?
                .parse::<i32>()
                .map_err(|error| error.to_string())?,
        ),
        _ => return Ok(None),
    }))
}

fn call(name: &str, arguments: &[usize]) -> i32 {
    match process::find(libc::RTLD_DEFAULT as usize, name) {
        0 => ABSENT,
        address => process::call(address, arguments),
    }
}

fn text(bytes: &[u8]) -> String {
    let text = bytes.iter().take_while(|byte| **byte != 0);
    text.map(|byte| char::from(*byte)).collect()
}

/// Returns the code and the figures of a device, in MiB but for the size and the refusals.
fn figures(words: &Words<'_>) -> Answer<String> {
    let mut memory = [0u64; MEMORY];
    memory[0] = 8 * MEMORY as u64;
    let device =
        CString::new(words.get(1).unwrap_or_default()).map_err(|error| error.to_string())?;
    let places = [device.as_ptr() as usize, memory.as_mut_ptr() as usize];
    let code = call("gpulimit_memory", &places);
    let names = [
        "size",
        "limit",
        "usage",
        "available",
        "total",
        "own",
        "allocations",
        "pools",
        "managed",
        "driver",
        "idle",
        "peak",
        "refusals",
    ];
    let shown = names.iter().zip(memory).map(|(name, figure)| match *name {
        "size" | "refusals" => format!("{name}={figure}"),
        _ if figure == u64::MAX => format!("{name}=none"),
        _ => format!("{name}={}M", figure >> 20),
    });
    Ok(format!("{code} {}", shown.collect::<Vec<_>>().join(" ")))
}

/// Begins to measure a peak; returns the code and the number of the measurement.
fn peak_begin(words: &Words<'_>) -> Answer<String> {
    let mut number = 0u64;
    let device =
        CString::new(words.get(1).unwrap_or_default()).map_err(|error| error.to_string())?;
    let places = [device.as_ptr() as usize, &raw mut number as usize];
    Ok(match call("gpulimit_peak_begin", &places) {
        0 => format!("0 {number}"),
        code => plain(code),
    })
}

/// Reads a measurement; returns the code and the peak in MiB.
fn peak(function: &str, words: &Words<'_>) -> Answer<String> {
    let mut bytes = 0u64;
    let number = words.size(1)?;
    Ok(match call(function, &[number, &raw mut bytes as usize]) {
        0 => format!("0 {}M", bytes >> 20),
        code => plain(code),
    })
}

/// Waits for pressure; returns the code, and what is asked: the bytes in MiB, rounded up, the
/// reason, the ordinal, the UUID and the group.
fn asked(timeout: i32) -> String {
    let mut words = [0u64; PRESSURE];
    words[0] = 8 * PRESSURE as u64;
    let code = call(
        "gpulimit_pressure_wait",
        &[timeout as usize, words.as_mut_ptr() as usize],
    );
    if code != 0 {
        return plain(code);
    }
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
    format!(
        "0 {}M {} {} {} {}",
        words[1].div_ceil(1 << 20),
        words[2] as u32,
        (words[2] >> 32) as i32,
        text(&bytes[24..88]),
        text(&bytes[88..]),
    )
}
