//! The library's declarations of the driver's interface match NVIDIA's own headers, of several CUDA
//! versions (scripts/wheels fetches them).
//!
//! A C++ compiler checks the argument sizes of every function in the hook table, and the size and
//! field offsets of every structure that the library reads.
#![allow(clippy::unwrap_used, reason = "a test that reads files")]

use gpulimit_support::{fetch, skip};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Returns the folders of headers that have `file`, by CUDA version.
fn headers(file: &str) -> Vec<(String, PathBuf)> {
    fetch("wheels");
    let Ok(folders) = fs::read_dir(root().join(".cache/headers")) else {
        return Vec::new();
    };
    let mut found: Vec<_> = folders
        .filter_map(Result::ok)
        .map(|folder| {
            (
                folder.file_name().to_string_lossy().into_owned(),
                folder.path(),
            )
        })
        .filter(|(_, folder)| folder.join(file).exists())
        .collect();
    found.sort();
    if found.is_empty() {
        skip(format_args!("no {file} is there (scripts/wheels)"));
    }
    found
}

/// Compiles the text against the headers in `folder`; returns the compiler's messages, which are
/// empty on success.
fn compile(text: &str, folder: &Path) -> String {
    use std::io::Write;
    use std::process::Stdio;
    let compiler = std::env::var("CXX").unwrap_or("c++".into());
    let mut process = Command::new(compiler)
        .args([
            "-std=c++17",
            "-fsyntax-only",
            "-fmax-errors=0",
            "-w",
            "-x",
            "c++",
            "-I",
        ])
        .args([folder, Path::new("-")])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("a C++ compiler (scripts/setup c++)");
    process
        .stdin
        .take()
        .unwrap()
        .write_all(text.as_bytes())
        .unwrap();
    String::from_utf8_lossy(&process.wait_with_output().unwrap().stderr).into_owned()
}

/// Returns the functions of the hook table (hooked and only called) that begin with `prefix`, with
/// the sizes of their arguments in bytes.
fn functions(prefix: &str) -> BTreeMap<String, Vec<usize>> {
    let table = fs::read_to_string(root().join("shim/src/table.rs")).unwrap();
    let mut functions = BTreeMap::new();
    for line in table
        .lines()
        .map(str::trim)
        .filter(|line| line.ends_with(';'))
    {
        let Some((front, rest)) = line.split_once('(') else {
            continue;
        };
        let name = front.split_whitespace().last().unwrap_or_default();
        if !name.starts_with(prefix) {
            continue;
        }
        let arguments = rest.split_once(')').unwrap().0;
        let size = |argument: &str| match argument.split_once(':').unwrap().1.trim() {
            "i32" | "u32" | "Device" | "DevicePtrV1" => 4,
            "u64" | "usize" | "DevicePtr" | "Context" | "Stream" | "Event" | "MemPool"
            | "Graph" | "Node" | "GraphExec" | "AllocationHandle" | "NvmlDevice" | "Opaque"
            | "Array" | "Image" | "FileName" => 8,
            "IpcHandle" => 64,
            other if other.starts_with("Out<") || other.starts_with("In<") => 8,
            other => panic!("{name}: how large is {other}?"),
        };
        let sizes = arguments
            .split(", ")
            .filter(|one| !one.is_empty())
            .map(size);
        functions.insert(name.to_owned(), sizes.collect());
    }
    functions
}

const PROLOGUE: &str = "
#include <cstddef>
#include <cstdint>
template <size_t... N> struct sizes {};
template <typename R, typename... A> sizes<sizeof(A)...> of(R (*)(A...));
template <typename A, typename B> struct same { static constexpr bool value = false; };
template <typename A> struct same<A, A> { static constexpr bool value = true; };
";

/// Checks the functions against one header; returns the number of those that the header declares.
fn check_functions(header: &str, version: &str, folder: &Path, prefix: &str) -> usize {
    let functions = functions(prefix);
    assert!(!functions.is_empty());
    // With these macros the headers also declare the older variants, under their own names.
    let mut text = format!(
        "#define __CUDA_API_VERSION_INTERNAL\n#define NVML_NO_UNVERSIONED_FUNC_DEFS\n\
            #include <{header}>\n{PROLOGUE}"
    );
    let mut lines = BTreeMap::new();
    for (name, sizes) in &functions {
        let (base, sizes) = (
            name.trim_end_matches("_ptsz").trim_end_matches("_ptds"),
            sizes
                .iter()
                .map(usize::to_string)
                .collect::<Vec<_>>()
                .join(", "),
        );
        write!(
            text,
            "#undef {base}\nstatic_assert(same<decltype(of({base})), \
            sizes<{sizes}>>::value, \"differs\");\n"
        )
        .unwrap();
        lines.insert(text.lines().count(), name);
    }
    let complaints = compile(&text, folder);
    let mut undeclared = BTreeSet::new();
    for complaint in complaints
        .lines()
        .filter(|line| line.starts_with("<stdin>:") && line.contains("error:"))
    {
        let number: usize = complaint.split(':').nth(1).unwrap().parse().unwrap();
        let Some(name) = lines.get(&number) else {
            panic!("{header} of {version}: {complaint}");
        };
        if complaint.contains("was not declared") || complaint.contains("undeclared identifier") {
            undeclared.insert(name);
        } else if !complaint.contains("template argument") {
            panic!("{header} of {version}: the arguments of {name}: {complaint}");
        }
    }
    functions.len() - undeclared.len()
}

#[test]
fn functions_of_the_driver_match_the_headers() {
    for (version, folder) in headers("cuda.h") {
        let declared = check_functions("cuda.h", &version, &folder, "cu");
        assert!(declared >= 60, "{version} declares only {declared}");
    }
}

#[test]
fn functions_of_nvml_match_the_headers() {
    for (version, folder) in headers("nvml.h") {
        let declared = check_functions("nvml.h", &version, &folder, "nvml");
        assert!(declared >= 14, "{version} declares only {declared}");
    }
}

/// A structure of C, its size, and the offsets of the fields that the library reads, in bytes.
type Layout = (&'static str, usize, &'static [(&'static str, usize)]);

/// Checks structures that exist since a version.
fn check_layouts(file: &str, since: &str, layouts: &[Layout]) {
    let versions = headers(file).into_iter();
    for (version, folder) in versions.filter(|(version, _)| version.as_str() >= since) {
        let mut text =
            format!("#define NVML_NO_UNVERSIONED_FUNC_DEFS\n#include <{file}>\n{PROLOGUE}");
        for (name, size, fields) in layouts {
            writeln!(
                text,
                "static_assert(sizeof({name}) == {size}, \"size of {name}\");"
            )
            .unwrap();
            for (field, place) in *fields {
                writeln!(
                    text,
                    "static_assert(offsetof({name}, {field}) == {place}, \"{name}.{field}\");"
                )
                .unwrap();
            }
        }
        let complaints = compile(&text, &folder);
        assert!(complaints.is_empty(), "{file} of {version}:\n{complaints}");
    }
}

#[test]
fn structures_of_the_driver_match_the_headers() {
    check_layouts(
        "cuda.h",
        "11.0",
        &[
            ("CUmemLocation", 8, &[("type", 0), ("id", 4)]),
            (
                "CUmemAllocationProp",
                32,
                &[("type", 0), ("requestedHandleTypes", 4), ("location", 8)],
            ),
            (
                "CUmemPoolProps",
                88,
                &[("allocType", 0), ("handleTypes", 4), ("location", 8)],
            ),
            (
                "CUDA_ARRAY_DESCRIPTOR",
                24,
                &[
                    ("Width", 0),
                    ("Height", 8),
                    ("Format", 16),
                    ("NumChannels", 20),
                ],
            ),
            (
                "CUDA_ARRAY3D_DESCRIPTOR",
                40,
                &[
                    ("Depth", 16),
                    ("Format", 24),
                    ("NumChannels", 28),
                    ("Flags", 32),
                ],
            ),
            (
                "CUDA_ARRAY_MEMORY_REQUIREMENTS",
                32,
                &[("size", 0), ("alignment", 8)],
            ),
            (
                "CUDA_LAUNCH_PARAMS",
                56,
                &[("function", 0), ("hStream", 40)],
            ),
            (
                "CUlaunchConfig",
                56,
                &[("sharedMemBytes", 24), ("hStream", 32)],
            ),
            (
                "CUDA_KERNEL_NODE_PARAMS_v1",
                56,
                &[("func", 0), ("gridDimX", 8), ("extra", 48)],
            ),
            (
                "CUDA_MEM_ALLOC_NODE_PARAMS",
                120,
                &[("poolProps", 0), ("bytesize", 104), ("dptr", 112)],
            ),
            ("CUuuid", 16, &[]),
            ("CUdeviceptr", 8, &[]),
            ("CUmemGenericAllocationHandle", 8, &[]),
        ],
    );
    check_layouts(
        "cuda.h",
        "12.4",
        &[
            (
                "CUgraphNodeParams",
                256,
                &[
                    ("type", 0),
                    ("kernel", 16),
                    ("graph", 16),
                    ("conditional", 16),
                ],
            ),
            (
                "CUDA_KERNEL_NODE_PARAMS_v2",
                72,
                &[("func", 0), ("kern", 56), ("ctx", 64)],
            ),
            (
                "CUDA_KERNEL_NODE_PARAMS_v3",
                72,
                &[("func", 0), ("kern", 56), ("ctx", 64)],
            ),
            (
                "CUDA_CONDITIONAL_NODE_PARAMS",
                32,
                &[("handle", 0), ("size", 12), ("phGraph_out", 16)],
            ),
        ],
    );
}

/// The controller gives the driver a structure only for a lock; the others it leaves out.
#[test]
fn options_of_the_checkpoint_functions_match_the_headers() {
    check_layouts(
        "cuda.h",
        "12.9",
        &[
            (
                "CUcheckpointLockArgs",
                64,
                &[("timeoutMs", 0), ("reserved0", 4), ("reserved1", 8)],
            ),
            ("CUcheckpointCheckpointArgs", 64, &[]),
            ("CUcheckpointRestoreArgs", 64, &[]),
            ("CUcheckpointUnlockArgs", 64, &[]),
        ],
    );
}

#[test]
fn structures_of_nvml_match_the_headers() {
    check_layouts(
        "nvml.h",
        "12.2",
        &[
            (
                "nvmlProcessDetail_v1_t",
                32,
                &[
                    ("pid", 0),
                    ("usedGpuMemory", 8),
                    ("gpuInstanceId", 16),
                    ("computeInstanceId", 20),
                    ("usedGpuCcProtectedMemory", 24),
                ],
            ),
            (
                "nvmlProcessDetailList_v1_t",
                24,
                &[
                    ("version", 0),
                    ("mode", 4),
                    ("numProcArrayEntries", 8),
                    ("procArray", 16),
                ],
            ),
        ],
    );
    check_layouts(
        "nvml.h",
        "11.0",
        &[
            (
                "nvmlMemory_t",
                24,
                &[("total", 0), ("free", 8), ("used", 16)],
            ),
            (
                "nvmlMemory_v2_t",
                40,
                &[
                    ("version", 0),
                    ("total", 8),
                    ("reserved", 16),
                    ("free", 24),
                    ("used", 32),
                ],
            ),
            (
                "nvmlProcessInfo_v1_t",
                16,
                &[("pid", 0), ("usedGpuMemory", 8)],
            ),
            (
                "nvmlProcessInfo_v2_t",
                24,
                &[
                    ("pid", 0),
                    ("usedGpuMemory", 8),
                    ("gpuInstanceId", 16),
                    ("computeInstanceId", 20),
                ],
            ),
        ],
    );
}
