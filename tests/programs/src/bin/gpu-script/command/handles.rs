//! Handles obtained in unusual ways, and their destruction.

use super::{Answer, placed, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "listed" => {
            let mut list = [0u64; 4];
            let place = list.as_mut_ptr() as usize;
            let function = words.at(2)?;
            let arguments = [place, list.len(), scope.value(words.at(3)?)?];
            let status = driver.call(function, &arguments);
            scope.keep(words.at(1)?, (status, list[0]))
        }
        "clone-graph" => {
            let graph = scope.value(words.at(2)?)?;
            scope.keep(words.at(1)?, driver.get("cuGraphClone", &[graph]))
        }
        "launch-handle" => {
            let (function, stream) = (scope.value(words.at(1)?)?, scope.stream(words.get(2))?);
            let arguments = [function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0];
            plain(driver.call("cuLaunchKernel", &arguments))
        }
        "destroy-stream" => {
            let stream = scope.stream(Some(words.at(1)?))?;
            plain(driver.call(words.get(2).unwrap_or("cuStreamDestroy_v2"), &[stream]))
        }
        "unseen-stream" => {
            let (status, stream) = driver.get("unseenStreamCreate", &[1]);
            if status == 0 {
                scope.streams.insert(words.at(1)?.to_owned(), stream);
            }
            plain(status)
        }
        "unseen-context" => {
            let arguments = [0, words.gpu(2)?];
            scope.keep(words.at(1)?, driver.get("unseenCtxCreate", &arguments))
        }
        "unseen-pool" => {
            let properties = placed(words.gpu(2)?);
            let arguments = [properties.as_ptr() as usize];
            scope.keep(words.at(1)?, driver.get("unseenMemPoolCreate", &arguments))
        }
        "unseen-function" | "unseen-kernel" => {
            let function = match name {
                "unseen-function" => "unseenModuleGetFunction",
                _ => "unseenLibraryGetKernel",
            };
            let arguments = [scope.value(words.at(2)?)?, c"kernel".as_ptr() as usize];
            scope.keep(words.at(1)?, driver.get(function, &arguments))
        }
        "unseen-graph" => scope.keep(words.at(1)?, driver.get("unseenGraphCreate", &[0])),
        "unseen-exec" => {
            let arguments = [scope.value(words.at(2)?)?, 0];
            let answer = driver.get("unseenGraphInstantiate", &arguments);
            scope.keep(words.at(1)?, answer)
        }
        _ => return Ok(None),
    }))
}
