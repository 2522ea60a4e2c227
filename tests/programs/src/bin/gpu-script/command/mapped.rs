//! Virtual memory management.

use super::{Answer, placed, plain, rights};
use crate::driver::{ABSENT, Driver};
use crate::interpreter::{Scope, Words};
use crate::process;
use std::os::fd::AsRawFd;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "create" => {
            let mut properties = placed(words.gpu(3)?);
            // The handle type is a file descriptor, so that the memory can be exported.
            properties[1] = 1;
            let place = properties.as_ptr() as usize;
            scope.keep(
                words.at(1)?,
                driver.get("cuMemCreate", &[words.size(2)?, place, 0]),
            )
        }
        "create-on-host" => {
            let mut properties = placed(0);
            properties[2] = 2;
            let place = properties.as_ptr() as usize;
            scope.keep(
                words.at(1)?,
                driver.get("cuMemCreate", &[words.size(2)?, place, 0]),
            )
        }
        "multicast" => {
            // The number of GPUs, and the bytes.
            let properties = [1u64, words.size(2)? as u64, 1, 0];
            let place = properties.as_ptr() as usize;
            scope.keep(words.at(1)?, driver.get("cuMulticastCreate", &[place]))
        }
        "reserve" => scope.keep(
            words.at(1)?,
            driver.get("cuMemAddressReserve", &[words.size(2)?, 0, 0, 0]),
        ),
        "map" => {
            let address = scope.value(words.at(1)?)? + words.size(2)?;
            let (handle, size) = (scope.value(words.at(3)?)?, words.size(4)?);
            plain(driver.call("cuMemMap", &[address, size, 0, handle, 0]))
        }
        "access" => {
            let address = scope.value(words.at(1)?)? + words.size(2)?;
            let rights = rights(words, 4)?;
            let (list, count) = (rights.as_ptr() as usize, rights.len());
            plain(driver.call("cuMemSetAccess", &[address, words.size(3)?, list, count]))
        }
        "unmap" => {
            let address = scope.value(words.at(1)?)? + words.size(2)?;
            plain(driver.call("cuMemUnmap", &[address, words.size(3)?]))
        }
        "release" => plain(driver.call("cuMemRelease", &[scope.value(words.at(1)?)?])),
        "retain-handle" => {
            let address = scope.value(words.at(2)?)? + words.size(3)?;
            scope.keep(
                words.at(1)?,
                driver.get("cuMemRetainAllocationHandle", &[address]),
            )
        }
        "export" => {
            let mut descriptor = -1i32;
            let place = &raw mut descriptor as usize;
            let arguments = [place, scope.value(words.at(2)?)?, 1, 0];
            let status = driver.call("cuMemExportToShareableHandle", &arguments);
            scope
                .values
                .insert(words.at(1)?.to_owned(), descriptor as u64);
            format!("{} {descriptor}", plain(status))
        }
        // Exports the memory for any process that reads the file: the descriptor stays open, and
        // the file leads to it.
        "offer" => {
            let mut descriptor = -1i32;
            let place = &raw mut descriptor as usize;
            let arguments = [place, scope.value(words.at(2)?)?, 1, 0];
            let status = driver.call("cuMemExportToShareableHandle", &arguments);
            if status == 0 {
                let path = words.at(1)?;
                let own = format!("{path}.{}.{descriptor}", std::process::id());
                let target = format!("/proc/{}/fd/{descriptor}", std::process::id());
                std::os::unix::fs::symlink(target, &own)
                    .and_then(|()| std::fs::rename(&own, path))
                    .map_err(|why| format!("{path}: {why}"))?;
            }
            plain(status)
        }
        "take" => {
            let mut options = std::fs::File::options();
            match options.read(true).write(true).open(words.at(2)?) {
                Ok(file) => {
                    let arguments = [file.as_raw_fd() as usize, 1];
                    let answer = driver.get("cuMemImportFromShareableHandle", &arguments);
                    scope.keep(words.at(1)?, answer)
                }
                // The memory was never offered, or its process is gone.
                Err(_) => scope.keep(words.at(1)?, (ABSENT, 0)),
            }
        }
        "close" => {
            process::close(scope.value(words.at(1)?)? as i32);
            "0".to_owned()
        }
        "import-from" => {
            let path = words.at(2)?;
            let file = std::fs::File::options()
                .read(true)
                .write(true)
                .open(path)
                .map_err(|why| format!("{path}: {why}"))?;
            let arguments = [file.as_raw_fd() as usize, 1];
            scope.keep(
                words.at(1)?,
                driver.get("cuMemImportFromShareableHandle", &arguments),
            )
        }
        "import" => {
            let mut descriptor = 0i32;
            let place = &raw mut descriptor as usize;
            let exported = [place, scope.value(words.at(2)?)?, 1, 0];
            match driver.call("cuMemExportToShareableHandle", &exported) {
                0 => {
                    let arguments = [descriptor as usize, 1];
                    let answer = driver.get("cuMemImportFromShareableHandle", &arguments);
                    process::close(descriptor);
                    scope.keep(words.at(1)?, answer)
                }
                failed => plain(failed),
            }
        }
        _ => return Ok(None),
    }))
}
