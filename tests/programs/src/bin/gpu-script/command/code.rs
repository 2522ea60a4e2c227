//! Modules, libraries and launches.

use super::{Answer, plain};
use crate::driver::Driver;
use crate::interpreter::{Scope, Words};

/// Runs a command of this subject; `None` for others.
pub fn run(driver: &Driver, scope: &mut Scope, words: &Words<'_>) -> Answer<Option<String>> {
    let name = words.name();
    Ok(Some(match name {
        "module" | "module-fat" => {
            let function = match name {
                "module" => "cuModuleLoadData",
                _ => "cuModuleLoadFatBinary",
            };
            let text = ptx(words.size(2)?);
            scope.keep(
                words.at(1)?,
                driver.get(function, &[text.as_ptr() as usize]),
            )
        }
        "module-ex" => {
            let text = ptx(words.size(2)?);
            let arguments = [text.as_ptr() as usize, 0, 0, 0];
            scope.keep(words.at(1)?, driver.get("cuModuleLoadDataEx", &arguments))
        }
        "image" | "library-image" | "image-file" => {
            let path = words.at(2)?;
            let mut image = std::fs::read(path).map_err(|error| format!("{path}: {error}"))?;
            // In memory, a PTX text ends with a NUL.
            image.push(0);
            let path = std::ffi::CString::new(path).map_err(|error| error.to_string())?;
            let (function, source) = match name {
                "image" => ("cuModuleLoadData", image.as_ptr() as usize),
                "library-image" => ("cuLibraryLoadData", image.as_ptr() as usize),
                _ => ("cuModuleLoad", path.as_ptr() as usize),
            };
            let count = if name == "library-image" { 7 } else { 1 };
            let arguments = [source, 0, 0, 0, 0, 0, 0];
            scope.keep(words.at(1)?, driver.get(function, &arguments[..count]))
        }
        "library" => {
            let text = ptx(words.size(2)?);
            let arguments = [text.as_ptr() as usize, 0, 0, 0, 0, 0, 0];
            scope.keep(words.at(1)?, driver.get("cuLibraryLoadData", &arguments))
        }
        "module-file" | "library-file" => {
            let folder = gpulimit_support::Scratch::new();
            let file = folder.at("code.ptx");
            let text = ptx(words.size(2)?);
            std::fs::write(&file, text.trim_end_matches('\0'))
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let path = std::ffi::CString::new(file.as_os_str().as_encoded_bytes())
                .map_err(|error| error.to_string())?;
            let arguments = [path.as_ptr() as usize, 0, 0, 0, 0, 0, 0];
            let answer = match name {
                "module-file" => driver.get("cuModuleLoad", &arguments[..1]),
                _ => driver.get("cuLibraryLoadFromFile", &arguments),
            };
            scope.keep(words.at(1)?, answer)
        }
        "library-global" => {
            let library = scope.value(words.at(1)?)?;
            let mut bytes = 0usize;
            let arguments = [&raw mut bytes as usize, library, c"data".as_ptr() as usize];
            match driver.get("cuLibraryGetGlobal", &arguments) {
                (0, _) => format!("0 {bytes}"),
                (failed, _) => plain(failed),
            }
        }
        "library-launch" => {
            let library = scope.value(words.at(1)?)?;
            let kernel = c"kernel".as_ptr() as usize;
            match driver.get("cuLibraryGetKernel", &[library, kernel]) {
                (0, kernel) => {
                    let arguments = [kernel as usize, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0];
                    plain(driver.call("cuLaunchKernel", &arguments))
                }
                (failed, _) => plain(failed),
            }
        }
        "library-function" => {
            let library = scope.value(words.at(1)?)?;
            let kernel = c"kernel".as_ptr() as usize;
            match driver.get("cuLibraryGetKernel", &[library, kernel]) {
                (0, kernel) => plain(driver.get("cuKernelGetFunction", &[kernel as usize]).0),
                (failed, _) => plain(failed),
            }
        }
        "library-module" => {
            let library = scope.value(words.at(1)?)?;
            plain(driver.get("cuLibraryGetModule", &[library]).0)
        }
        "unload" => plain(driver.call("cuModuleUnload", &[scope.value(words.at(1)?)?])),
        "unload-library" => plain(driver.call("cuLibraryUnload", &[scope.value(words.at(1)?)?])),
        "launch" | "cooperative" => {
            let (module, stream) = (scope.value(words.at(1)?)?, scope.stream(words.get(2))?);
            let kernel = c"kernel".as_ptr() as usize;
            match driver.get("cuModuleGetFunction", &[module, kernel]) {
                (0, function) => {
                    let function = function as usize;
                    // Only the ordinary launch has the last argument.
                    let arguments = [function, 1, 1, 1, 1, 1, 1, 0, stream, 0, 0];
                    plain(match name {
                        "launch" => driver.call("cuLaunchKernel", &arguments),
                        _ => driver.call("cuLaunchCooperativeKernel", &arguments[..10]),
                    })
                }
                (failed, _) => plain(failed),
            }
        }
        _ => return Ok(None),
    }))
}

/// Returns PTX with a variable of this many bytes and a kernel.
fn ptx(bytes: usize) -> String {
    let data = match bytes {
        0 => String::new(),
        bytes => format!(".visible .global .align 4 .b8 data[{bytes}];\n"),
    };
    format!(
        ".version 7.0\n.target sm_52\n.address_size 64\n{data}.visible .entry kernel()\n{{\n ret;\n\
            }}\n\0"
    )
}
