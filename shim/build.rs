//! Sets the linker options of `libgpulimit.so`.
//!
//! With /etc/ld.so.preload, every program loads the library, so loading it must be fast.

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
}
