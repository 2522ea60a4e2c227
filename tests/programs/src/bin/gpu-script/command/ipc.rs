//! Linear memory that processes share.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Bytes of `CUipcMemHandle`.
const HANDLE: usize = 64;

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "ipc-get" => {
            let path = words.at(1)?;
            let mut handle = [0u8; HANDLE];
            let offset = words.get(3).map_or(Ok(0), |_| words.size(3))?;
            let arguments = [
                handle.as_mut_ptr() as usize,
                scope.value(words.at(2)?)? + offset,
            ];
            let status = driver.call("cuIpcGetMemHandle", &arguments);
            std::fs::write(path, handle).map_err(|why| format!("{path}: {why}"))?;
            plain(status)
        }
        "ipc-open" | "ipc-open-v1" => {
            let path = words.at(2)?;
            let bytes = std::fs::read(path).map_err(|why| format!("{path}: {why}"))?;
            let mut handle = [0; HANDLE / 8];
            for (word, bytes) in handle.iter_mut().zip(bytes.chunks_exact(8)) {
                *word = u64::from_le_bytes(bytes.try_into().unwrap_or_default());
            }
            let function = match name {
                "ipc-open" => "cuIpcOpenMemHandle_v2",
                _ => "cuIpcOpenMemHandle",
            };
            scope.keep(words.at(1)?, driver.open_handle(function, handle))
        }
        "ipc-open-event" => {
            let opened = driver.open_handle("cuIpcOpenEventHandle", [0; HANDLE / 8]);
            scope.keep(words.at(1)?, opened)
        }
        "ipc-close" => plain(driver.call("cuIpcCloseMemHandle", &[scope.value(words.at(1)?)?])),
        _ => return Ok(None),
    }))
}
