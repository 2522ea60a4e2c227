//! Green contexts.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "green" => {
            let gpu = words.gpu(2)?;
            // `CUdevResource`: 144 bytes.
            let mut resource = [0u64; 18];
            let place = &raw mut resource as usize;
            match driver.call("cuDeviceGetDevResource", &[gpu, place, 1]) {
                0 => {
                    let description = driver.get("cuDevResourceGenerateDesc", &[place, 1]).1;
                    let arguments = [description as usize, gpu, 1];
                    scope.keep(words.at(1)?, driver.get("cuGreenCtxCreate", &arguments))
                }
                failed => plain(failed),
            }
        }
        "use-green" => {
            let green = scope.value(words.at(1)?)?;
            match driver.get("cuCtxFromGreenCtx", &[green]) {
                (0, context) => plain(driver.call("cuCtxSetCurrent", &[context as usize])),
                (failed, _) => plain(failed),
            }
        }
        "green-stream" => {
            let green = scope.value(words.at(2)?)?;
            let (status, stream) = driver.get("cuGreenCtxStreamCreate", &[green, 1, 0]);
            if status == 0 {
                scope.streams.insert(words.at(1)?.to_owned(), stream);
            }
            plain(status)
        }
        "destroy-green" => plain(driver.call("cuGreenCtxDestroy", &[scope.value(words.at(1)?)?])),
        _ => return Ok(None),
    }))
}
