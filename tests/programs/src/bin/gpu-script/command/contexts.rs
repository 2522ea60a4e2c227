//! Contexts.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "start" => {
            let init = driver.call("cuInit", &[0]);
            let (status, context) = driver.get("cuDevicePrimaryCtxRetain", &[0]);
            scope.keep("primary-0", (status, context));
            if init == 0 && status == 0 {
                driver.call("cuCtxSetCurrent", &[context as usize]);
            }
            format!("{init} {status}")
        }
        "init" => plain(driver.call("cuInit", &[0])),
        "retain" => scope.keep(
            &format!("primary-{}", words.gpu(1)?),
            driver.get("cuDevicePrimaryCtxRetain", &[words.gpu(1)?]),
        ),
        "release-primary" => plain(driver.call("cuDevicePrimaryCtxRelease_v2", &[words.gpu(1)?])),
        "release-primary-v1" => plain(driver.call("cuDevicePrimaryCtxRelease", &[words.gpu(1)?])),
        "reset" => plain(driver.call("cuDevicePrimaryCtxReset_v2", &[words.gpu(1)?])),
        "reset-v1" => plain(driver.call("cuDevicePrimaryCtxReset", &[words.gpu(1)?])),
        "current" => {
            let context = scope.value(&format!("primary-{}", words.gpu(1)?))?;
            plain(driver.call("cuCtxSetCurrent", &[context]))
        }
        "enable-peer" => {
            let peer = scope.value(words.at(1)?)?;
            plain(driver.call("cuCtxEnablePeerAccess", &[peer, 0]))
        }
        "context" => {
            let gpu = words.gpu(2)?;
            let (symbol, arguments) = match words.at(3)? {
                "v1" => ("cuCtxCreate", vec![0, gpu]),
                "v2" => ("cuCtxCreate_v2", vec![0, gpu]),
                "v3" => ("cuCtxCreate_v3", vec![0, 0, 0, gpu]),
                "gl-v1" => ("cuGLCtxCreate", vec![0, gpu]),
                "gl-v2" => ("cuGLCtxCreate_v2", vec![0, gpu]),
                "vdpau-v1" => ("cuVDPAUCtxCreate", vec![0, gpu, 1, 1]),
                "vdpau-v2" => ("cuVDPAUCtxCreate_v2", vec![0, gpu, 1, 1]),
                _ => ("cuCtxCreate_v4", vec![0, 0, gpu]),
            };
            scope.keep(words.at(1)?, driver.get(symbol, &arguments))
        }
        "destroy" => plain(driver.call("cuCtxDestroy_v2", &[scope.value(words.at(1)?)?])),
        "destroy-v1" => plain(driver.call("cuCtxDestroy", &[scope.value(words.at(1)?)?])),
        "detach" => plain(driver.call("cuCtxDetach", &[scope.value(words.at(1)?)?])),
        "limit" => {
            let (status, value) = driver.get("cuCtxGetLimit", &[words.size(1)?]);
            format!("{status} {value}")
        }
        "set-limit" => plain(driver.call("cuCtxSetLimit", &[words.size(1)?, words.size(2)?])),
        "use" => plain(driver.call("cuCtxSetCurrent", &[scope.value(words.at(1)?)?])),
        "push" => plain(driver.call("cuCtxPushCurrent_v2", &[scope.value(words.at(1)?)?])),
        "pop" => plain(driver.get("cuCtxPopCurrent_v2", &[]).0),
        _ => return Ok(None),
    }))
}
