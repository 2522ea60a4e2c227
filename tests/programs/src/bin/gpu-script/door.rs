//! The ways in which programs get the addresses of the driver's functions.
//!
//! | door | |
//! |---|---|
//! | `dlsym` | `dlopen("libcuda.so.1")`, `dlsym` of every name |
//! | `soname-so` | the same by `libcuda.so` |
//! | `absolute` | the same by an absolute path |
//! | `deepbind` | the same with `RTLD_DEEPBIND` |
//! | `default` | loaded globally, `dlsym(RTLD_DEFAULT, …)` |
//! | `getproc1:V`, `getproc2:V` | `cuGetProcAddress`, `_v2`, for CUDA version V |
//! | `linked:FILE`, `linked-deepbind:FILE` | a library linked against libcuda (c/linked.c), or one that looks names up itself, in libcuda or by RTLD_NEXT (c/asks.c) |
//! | `library:FILE` | `dlsym` of every name in some other library |

use crate::process;

const LIBRARY: &str = "libcuda.so.1";

/// A way to the driver's functions.
pub enum Door {
    /// By name in an open library, with this handle.
    Names(usize),
    /// By `cuGetProcAddress`: the address of that function, its version, and the CUDA version to
    /// ask for.
    Pointers(usize, u32, i32),
    /// By the dynamic linker: the address of the library's `linked`.
    Linked(usize),
}

/// Returns the path at which the dynamic linker finds the driver.
fn path() -> Option<String> {
    let folders = std::env::var("LD_LIBRARY_PATH").unwrap_or_default();
    folders
        .split(':')
        .chain([
            "/usr/lib/x86_64-linux-gnu",
            "/usr/lib/aarch64-linux-gnu",
            "/usr/lib64",
        ])
        .map(|folder| format!("{folder}/{LIBRARY}"))
        .find(|path| std::path::Path::new(path).exists())
}

/// Returns the CUDA version that changed a function's name to this variant, if it is not the newest
/// one that the scripts ask for.
fn version_of(name: &str) -> Option<i32> {
    Some(match name {
        "cuCtxCreate" | "cuCtxDestroy" => 2000,
        "cuMemAlloc" | "cuMemAllocPitch" | "cuMemFree" | "cuMemGetInfo" | "cuDeviceTotalMem" => {
            2000
        }
        "cuCtxCreate_v2" => 3020,
        "cuCtxCreate_v3" => 11040,
        "cuCtxCreate_v4" => 12050,
        "cuDevicePrimaryCtxRelease" | "cuDevicePrimaryCtxReset" => 7000,
        "cuMemSetMemPool" => 13000,
        "cuCtxSynchronize" => 2000,
        "cuCtxSynchronize_v2" => 13000,
        "cuGraphInstantiate" => 10000,
        "cuGraphInstantiate_v2" => 11000,
        "cuGetProcAddress" => 11030,
        "cuGetProcAddress_v2" => 12000,
        _ => return None,
    })
}

impl Door {
    /// Opens the door with this name.
    pub fn parse(text: &str) -> Result<Door, String> {
        let open = |path: &str, flags| match process::open(path, libc::RTLD_NOW | flags) {
            0 => Err(process::error().unwrap_or_default()),
            handle => Ok(handle),
        };
        let (kind, detail) = text.split_once(':').unwrap_or((text, ""));
        let lookups = |name: &str, version| {
            let cuda = detail
                .parse()
                .map_err(|_| format!("{text}: not a CUDA version"))?;
            let first = process::find(open(LIBRARY, 0)?, name);
            if first == 0 {
                return Err(format!("no {name}"));
            }
            // libcudart asks the function for its own address.
            let door = Door::Pointers(first, version, cuda);
            Ok(match door.find(name) {
                0 => door,
                itself => Door::Pointers(itself, version, cuda),
            })
        };
        let linked = |flags| match process::find(open(detail, flags)?, "linked") {
            0 => Err(format!("{detail} has no linked")),
            function => Ok(Door::Linked(function)),
        };
        Ok(match kind {
            "dlsym" => Door::Names(open(LIBRARY, 0)?),
            "soname-so" => Door::Names(open("libcuda.so", 0)?),
            "absolute" => Door::Names(open(&path().ok_or("no libcuda.so.1")?, 0)?),
            "deepbind" => Door::Names(open(LIBRARY, libc::RTLD_DEEPBIND)?),
            "default" => {
                open(LIBRARY, libc::RTLD_GLOBAL)?;
                Door::Names(libc::RTLD_DEFAULT as usize)
            }
            "getproc1" => lookups("cuGetProcAddress", 1)?,
            "getproc2" => lookups("cuGetProcAddress_v2", 2)?,
            "library" => Door::Names(open(detail, 0)?),
            "linked" => linked(0)?,
            "linked-deepbind" => linked(libc::RTLD_DEEPBIND)?,
            _ => return Err(format!("no door {text}")),
        })
    }

    /// Returns the address of the function with this exported name, or 0 if this door does not lead
    /// to it.
    pub fn find(&self, name: &str) -> usize {
        match self {
            Door::Names(library) => process::find(*library, name),
            Door::Linked(function) => process::lookup(*function, name),
            Door::Pointers(function, version, cuda) => {
                let (mut base, mut flags) = (name, 0);
                for twin in ["_ptsz", "_ptds"] {
                    if let Some(rest) = base.strip_suffix(twin) {
                        (base, flags) = (rest, 2);
                    }
                }
                let wanted = version_of(base).unwrap_or(*cuda);
                if let Some((rest, _)) = base
                    .rsplit_once("_v")
                    .filter(|(_, digits)| digits.parse::<u32>().is_ok())
                {
                    base = rest;
                }
                let base = std::ffi::CString::new(base).unwrap_or_default();
                let (mut found, mut status) = (0usize, 0i32);
                let mut arguments = vec![
                    base.as_ptr() as usize,
                    &raw mut found as usize,
                    wanted as usize,
                    flags,
                ];
                if *version == 2 {
                    arguments.push(&raw mut status as usize);
                }
                match process::call(*function, &arguments) {
                    0 => found,
                    _ => 0,
                }
            }
        }
    }
}
