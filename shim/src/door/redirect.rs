//! The driver's own symbol table, made to name our functions.
//!
//! For libraries that the dynamic linker binds past every preload: whoever asks libcuda itself for a hooked name gets ours, whatever way
//! he asks. Only the copy of this process changes: the table is a private mapping.
#![allow(unsafe_code)]

use std::ffi::c_void;

/// `ElfW(Dyn)`.
#[repr(C)]
struct Dyn {
    tag: isize,
    value: usize,
}

/// The head of `struct link_map`, which is all that is public of it.
#[repr(C)]
struct LinkMap {
    /// What is added to every address in the file.
    base: usize,
    name: *const libc::c_char,
    dynamic: *const Dyn,
}

const DT_NULL: isize = 0;
const DT_HASH: isize = 4;
const DT_SYMTAB: isize = 6;
const DT_GNU_HASH: isize = 0x6fff_fef5;
/// `struct link_map **`.
const RTLD_DI_LINKMAP: libc::c_int = 2;

unsafe extern "C" {
    // Since GLIBC_2.3.3; not in the libc crate.
    fn dlinfo(handle: *mut c_void, request: libc::c_int, info: *mut c_void) -> libc::c_int;
}

/// Where a library's dynamic symbols lie.
struct Symbols {
    base: usize,
    first: *mut libc::Elf64_Sym,
    count: usize,
}

/// Makes the symbols of the library behind `handle` lead elsewhere: `target` tells for each function's address where to, if anywhere. False when the
/// table cannot be found or written; then nothing has changed.
pub fn redirect(
    handle: *mut c_void,
    target: impl Fn(*const c_void) -> Option<*const c_void>,
) -> bool {
    let Some(symbols) = find(handle) else {
        return false;
    };
    // SAFETY: only asks for a figure.
    let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let start = symbols.first as usize / page * page;
    let end = symbols.first as usize + symbols.count * size_of::<libc::Elf64_Sym>();
    let executable = protection_of(start).map_or(0, |flags| flags & libc::PROT_EXEC);
    let writable = |on| {
        let write = if on { libc::PROT_WRITE } else { 0 };
        // SAFETY: pages of the library's own mapping, which stays loaded. They keep what they allow, and may be written meanwhile.
        unsafe {
            libc::mprotect(
                start as *mut c_void,
                end.next_multiple_of(page) - start,
                libc::PROT_READ | write | executable,
            ) == 0
        }
    };
    if !writable(true) {
        return false;
    }
    for at in 0..symbols.count {
        // SAFETY: within the table; the pages may be written now, and the linker only ever reads whole words of it.
        unsafe {
            let symbol = symbols.first.add(at);
            let address = symbols.base.wrapping_add((*symbol).st_value as usize);
            if (*symbol).st_shndx != 0
                && let Some(target) = target(address as *const c_void)
            {
                (*symbol).st_value = (target as usize).wrapping_sub(symbols.base) as u64;
            }
        }
    }
    writable(false)
}

fn find(handle: *mut c_void) -> Option<Symbols> {
    let mut map: *const LinkMap = std::ptr::null();
    // SAFETY: `handle` is a loaded library's, and the request fills one pointer.
    if unsafe { dlinfo(handle, RTLD_DI_LINKMAP, (&raw mut map).cast()) } != 0 || map.is_null() {
        return None;
    }
    // SAFETY: the dynamic linker's record of a loaded library; its dynamic section ends with DT_NULL. The linker has added the base to the
    // addresses in it where it can write to it.
    unsafe {
        let base = (*map).base;
        let address = |value: usize| if value < base { base + value } else { value };
        let (mut first, mut count) = (0, 0);
        let mut entry = (*map).dynamic;
        while (*entry).tag != DT_NULL {
            match (*entry).tag {
                DT_SYMTAB => first = address((*entry).value),
                // The second word of the older table is the number of symbols. A library has one table or both.
                DT_HASH => count = *(address((*entry).value) as *const u32).add(1) as usize,
                DT_GNU_HASH if count == 0 => {
                    count = gnu_count(address((*entry).value) as *const u32)
                }
                _ => {}
            }
            entry = entry.add(1);
        }
        (first != 0 && count != 0).then_some(Symbols {
            base,
            first: first as *mut libc::Elf64_Sym,
            count,
        })
    }
}

/// Number of symbols, by the GNU hash table: the highest that a bucket's chain ends with.
///
/// # Safety
/// `hash` is a DT_GNU_HASH table of a loaded library.
unsafe fn gnu_count(hash: *const u32) -> usize {
    // SAFETY: the table's layout: four words, the Bloom filter in words of 8 bytes, the buckets, a chain of hashes whose last has bit 0 set.
    unsafe {
        let (buckets, offset, bloom) = (*hash, *hash.add(1), *hash.add(2));
        let first = hash.add(4 + 2 * bloom as usize);
        let chains = first.add(buckets as usize);
        let Some(mut last) = (0..buckets as usize).map(|at| *first.add(at)).max() else {
            return 0;
        };
        if last < offset {
            return offset as usize;
        }
        while *chains.add((last - offset) as usize) & 1 == 0 {
            last += 1;
        }
        last as usize + 1
    }
}

/// What the segment that holds `address` allows, in `PROT_` flags.
fn protection_of(address: usize) -> Option<libc::c_int> {
    struct Search {
        address: usize,
        found: Option<libc::c_int>,
    }
    unsafe extern "C" fn look(
        info: *mut libc::dl_phdr_info,
        _size: usize,
        data: *mut c_void,
    ) -> libc::c_int {
        // SAFETY: called by `dl_iterate_phdr` with a library's headers and our `Search`.
        let (info, search) = unsafe { (&*info, &mut *data.cast::<Search>()) };
        // SAFETY: as many headers as the linker says.
        let headers =
            unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        let inside = |header: &&libc::Elf64_Phdr| {
            let start = (info.dlpi_addr + header.p_vaddr) as usize;
            header.p_type == libc::PT_LOAD
                && (start..start + header.p_memsz as usize).contains(&search.address)
        };
        let Some(header) = headers.iter().find(inside) else {
            return 0;
        };
        let flag = |bit, protection| {
            if header.p_flags & bit != 0 {
                protection
            } else {
                0
            }
        };
        search.found = Some(
            flag(libc::PF_R, libc::PROT_READ)
                | flag(libc::PF_W, libc::PROT_WRITE)
                | flag(libc::PF_X, libc::PROT_EXEC),
        );
        1
    }
    let mut search = Search {
        address,
        found: None,
    };
    // SAFETY: `look` gets `search`, which outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(look), (&raw mut search).cast()) };
    search.found
}
