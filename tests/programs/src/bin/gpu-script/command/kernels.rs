//! Kernels that need more memory than the program requests, and all ways to launch them.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "kernels" => {
            let text = ptx(words)?;
            let arguments = [text.as_ptr() as usize];
            scope.keep(words.at(1)?, driver.get("cuModuleLoadData", &arguments))
        }
        "kernel-library" => {
            let text = ptx(words)?;
            let arguments = [text.as_ptr() as usize, 0, 0, 0, 0, 0, 0];
            scope.keep(words.at(1)?, driver.get("cuLibraryLoadData", &arguments))
        }
        "launch-kernel" => {
            let stream = scope.stream(words.get(2))?;
            plain(launch(driver, kernel(driver, scope, words.at(1)?)?, stream))
        }
        "get-function" => {
            function(driver, scope, words.at(1)?)?;
            "0".to_owned()
        }
        "launch-ex" => {
            let function = function(driver, scope, words.at(1)?)?;
            let stream = scope.stream(words.get(2))?;
            // `CUlaunchConfig`: seven 32-bit numbers, the stream at byte 32, then attributes.
            let config = [1 << 32 | 1, 1 << 32 | 1, 1 << 32 | 1, 0, stream, 0, 0];
            let arguments = [config.as_ptr() as usize, function, 0, 0];
            plain(driver.call("cuLaunchKernelEx", &arguments))
        }
        "launch-one" => plain(driver.call("cuLaunch", &[function(driver, scope, words.at(1)?)?])),
        "launch-grid" => {
            let function = function(driver, scope, words.at(1)?)?;
            plain(driver.call("cuLaunchGrid", &[function, 1, 1]))
        }
        "launch-grid-async" => {
            let function = function(driver, scope, words.at(1)?)?;
            let arguments = [function, 1, 1, scope.stream(words.get(2))?];
            plain(driver.call("cuLaunchGridAsync", &arguments))
        }
        "launch-many" => {
            let mut list = Vec::new();
            let mut at = 1;
            while let Some(module) = words.get(at) {
                let function = function(driver, scope, module)?;
                let stream = scope.stream(Some(words.at(at + 1)?))?;
                // `CUDA_LAUNCH_PARAMS`: 56 bytes, the stream at byte 40.
                list.push([
                    function,
                    1 << 32 | 1,
                    1 << 32 | 1,
                    1 << 32 | 1,
                    0,
                    stream,
                    0,
                ]);
                at += 2;
            }
            let arguments = [list.as_ptr() as usize, list.len(), 0];
            plain(driver.call("cuLaunchCooperativeKernelMultiDevice", &arguments))
        }
        _ => return Ok(None),
    }))
}

fn launch(driver: &Driver, function: usize, stream: usize) -> i32 {
    driver.call(
        "cuLaunchKernel",
        &[function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0],
    )
}

/// Returns the kernel of a library, as a `CUkernel`.
pub fn kernel(driver: &Driver, scope: &Scope, library: &str) -> Answer<usize> {
    let arguments = [scope.value(library)?, c"kernel".as_ptr() as usize];
    match driver.get("cuLibraryGetKernel", &arguments) {
        (0, kernel) => Ok(kernel as usize),
        (failed, _) => Err(format!("no kernel in {library}: {failed}")),
    }
}

/// Returns the kernel of a module.
pub fn function(driver: &Driver, scope: &Scope, module: &str) -> Answer<usize> {
    let arguments = [scope.value(module)?, c"kernel".as_ptr() as usize];
    match driver.get("cuModuleGetFunction", &arguments) {
        (0, function) => Ok(function as usize),
        (failed, _) => Err(format!("no kernel in {module}: {failed}")),
    }
}

/// Returns PTX with a kernel that has this much local memory, and that may use the device runtime
/// or be long.
fn ptx(words: &Words<'_>) -> Answer<String> {
    let local = words.size(2)?;
    let (mut uses, mut calls, mut stores) = (String::new(), String::new(), 0);
    for at in 3.. {
        let word = words.get(at);
        calls += match word {
            Some("malloc") => " call malloc;\n",
            Some("assert") => " call __assertfail;\n",
            Some("printf") => " call vprintf;\n",
            _ => "",
        };
        uses += match word {
            None => break,
            Some("malloc") => ".extern .func (.param .b64 place) malloc (.param .b64 size);\n",
            Some("assert") => ".extern .func __assertfail (.param .b64 what);\n",
            Some("long") => {
                stores = 60_000;
                ""
            }
            Some("printf") => {
                ".extern .func (.param .b32 count) vprintf (.param .b64 format, .param .b64 \
                    values);\n"
            }
            Some(other) => return Err(format!("no use of {other}")),
        };
    }
    Ok(format!(
        ".version 7.0\n.target sm_52\n.address_size 64\n{uses}.visible .entry kernel()\n\
            {{\n .local .align 16 .b8 depot[{local}];\n{calls}{} ret;\n}}\n\0",
        " st.global.u32 [%rd1], 7;\n".repeat(stores)
    ))
}
