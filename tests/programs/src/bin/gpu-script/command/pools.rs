//! Stream-ordered memory and pools.

use super::{Answer, placed, plain, rights};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};
use crate::size;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "async" => {
            let stream = scope.stream(words.get(3))?;
            let answer = driver.get("cuMemAllocAsync", &[words.size(2)?, stream]);
            scope.keep(words.at(1)?, answer)
        }
        "async-over" => {
            let mut place = scope.value(words.at(1)?)?;
            let arguments = [&raw mut place as usize, words.size(2)?, 0];
            plain(driver.call("cuMemAllocAsync", &arguments))
        }
        "async-from" => {
            let (pool, stream) = (scope.value(words.at(2)?)?, scope.stream(words.get(4))?);
            let answer = driver.get("cuMemAllocFromPoolAsync", &[words.size(3)?, pool, stream]);
            scope.keep(words.at(1)?, answer)
        }
        "free-async" => {
            let stream = scope.stream(words.get(2))?;
            plain(driver.call("cuMemFreeAsync", &[scope.value(words.at(1)?)?, stream]))
        }
        "sync" => match words.get(1) {
            None => plain(driver.call("cuCtxSynchronize", &[])),
            Some("null") => plain(driver.call("cuStreamSynchronize", &[0])),
            name => plain(driver.call("cuStreamSynchronize", &[scope.stream(name)?])),
        },
        "sync-context" => plain(driver.call("cuCtxSynchronize_v2", &[scope.value(words.at(1)?)?])),
        "event-sync" => {
            let (_, event) = driver.get("cuEventCreate", &[0]);
            driver.call("cuEventRecord", &[event as usize, 0]);
            let status = driver.call("cuEventSynchronize", &[event as usize]);
            driver.call("cuEventDestroy_v2", &[event as usize]);
            plain(status)
        }
        "pool" => {
            let properties = placed(words.gpu(2)?);
            scope.keep(
                words.at(1)?,
                driver.get("cuMemPoolCreate", &[properties.as_ptr() as usize]),
            )
        }
        "managed-pool" => {
            let mut properties = place(words.at(2)?)?;
            properties[0] = 2;
            scope.keep(
                words.at(1)?,
                driver.get("cuMemPoolCreate", &[properties.as_ptr() as usize]),
            )
        }
        "default-managed-pool" | "current-managed-pool" => {
            let properties = place(words.at(2)?)?;
            let function = match name {
                "default-managed-pool" => "cuMemGetDefaultMemPool",
                _ => "cuMemGetMemPool",
            };
            let location = properties[2..].as_ptr() as usize;
            scope.keep(words.at(1)?, driver.get(function, &[location, 2]))
        }
        "default-pool" => scope.keep(
            words.at(1)?,
            driver.get("cuDeviceGetDefaultMemPool", &[words.gpu(2)?]),
        ),
        "threshold" => {
            let bytes = size::parse(words.at(2)?)?;
            let place = &raw const bytes as usize;
            plain(driver.call(
                "cuMemPoolSetAttribute",
                &[scope.value(words.at(1)?)?, 4, place],
            ))
        }
        "trim" => plain(driver.call(
            "cuMemPoolTrimTo",
            &[scope.value(words.at(1)?)?, words.size(2)?],
        )),
        "use-pool" => {
            let pool = scope.value(words.at(1)?)?;
            plain(driver.call("cuDeviceSetMemPool", &[words.gpu(2)?, pool]))
        }
        "use-pool-at" => {
            let (pool, location) = (scope.value(words.at(1)?)?, [1i32, words.gpu(2)? as i32]);
            plain(driver.call("cuMemSetMemPool", &[location.as_ptr() as usize, 1, pool]))
        }
        "pool-bytes" => {
            let pool = scope.value(words.at(1)?)?;
            let read = |attribute: usize| {
                let mut bytes = 0u64;
                let place = &raw mut bytes as usize;
                driver.call("cuMemPoolGetAttribute", &[pool, attribute, place]);
                bytes
            };
            format!("{} {}", read(5), read(7))
        }
        "pool-access" => {
            let rights = rights(words, 2)?;
            let list = rights.as_ptr() as usize;
            let arguments = [scope.value(words.at(1)?)?, list, rights.len()];
            plain(driver.call("cuMemPoolSetAccess", &arguments))
        }
        "export-pool" => {
            let mut descriptor = -1i32;
            let place = &raw mut descriptor as usize;
            let arguments = [place, scope.value(words.at(2)?)?, 1, 0];
            let status = driver.call("cuMemPoolExportToShareableHandle", &arguments);
            scope.keep(words.at(1)?, (status, descriptor as u64))
        }
        "import-pool" => {
            let arguments = [scope.value(words.at(2)?)?, 1, 0];
            let answer = driver.get("cuMemPoolImportFromShareableHandle", &arguments);
            scope.keep(words.at(1)?, answer)
        }
        "import-pointer" => {
            let data = [0u64; 8];
            let arguments = [scope.value(words.at(2)?)?, data.as_ptr() as usize];
            let answer = driver.get("cuMemPoolImportPointer", &arguments);
            scope.keep(words.at(1)?, answer)
        }
        "destroy-pool" => plain(driver.call("cuMemPoolDestroy", &[scope.value(words.at(1)?)?])),
        _ => return Ok(None),
    }))
}

/// Returns the properties of a pool at a place: `none`, `host`, or a GPU by its number.
fn place(word: &str) -> Answer<[i32; 22]> {
    let mut properties = placed(0);
    (properties[2], properties[3]) = match word {
        "none" => (0, 0),
        "host" => (2, 0),
        gpu => (1, gpu.parse().map_err(|_| format!("no place: {gpu}"))?),
    };
    Ok(properties)
}
