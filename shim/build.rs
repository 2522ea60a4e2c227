//! Sets the linker options of `libgpulimit.so`.
//!
//! With /etc/ld.so.preload, every program loads the library, so loading it must be fast.

use std::path::{Path, PathBuf};
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // Binds the library's calls of its own functions at link time, so that no other library can
    // replace them.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Writes only the GNU hash table of symbols, which every supported dynamic linker can read.
    println!("cargo::rustc-cdylib-link-arg=-Wl,--hash-style=gnu");
    // Never unloads this library, because symbols of other libraries may point to it
    // (entry/door/front.rs).
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Links the unwinder statically: loading libgcc_s with every program would take 0.1 ms more.
    if let Some(folder) = archive("libgcc_eh.a").as_deref().and_then(Path::parent) {
        println!("cargo::rustc-link-search=native={}", folder.display());
        println!("cargo::rustc-link-lib=static:-bundle=gcc_eh");
        // backtrace.rs defines functions that the unwinder's object file also defines. The linker
        // takes the first definition, the one in backtrace.rs.
        println!("cargo::rustc-cdylib-link-arg=-Wl,--allow-multiple-definition");
    }
}

/// Returns the path of a static library of the system's C compiler; `None` when the compiler lacks
/// it.
fn archive(name: &str) -> Option<PathBuf> {
    // A linker of another toolchain (zig, a cross compiler) brings its own static libraries.
    if std::env::var_os("RUSTC_LINKER").is_some() {
        return None;
    }
    let asked = Command::new("cc")
        .arg(format!("-print-file-name={name}"))
        .output()
        .ok()?;
    let path = PathBuf::from(String::from_utf8(asked.stdout).ok()?.trim());
    // Where the compiler lacks the file, it prints the bare name instead of a path.
    path.is_absolute().then_some(path)
}
